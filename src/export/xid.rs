//! Xid errors of cards.

use std::collections::BTreeMap;

use super::card::{GPU, gpu_labels};
use super::series::{Labels, Series, Subject, by, counters, gauges};
use crate::cycle::Cycle;
use crate::snapshot::GpuUuid;
use crate::snapshot::gpu::Xid;

/// The errors of one card, also while that or the driver is silent.
pub struct OfCard<'a> {
    index: u32,
    uuid: &'a GpuUuid,
    xids: &'a BTreeMap<u64, Xid>,
}

impl Subject for OfCard<'_> {
    const LABELS: &'static [&'static str] = GPU;

    fn labels(&self) -> Labels {
        gpu_labels(self.index, self.uuid)
    }
}

pub fn cards(cycle: &Cycle) -> Vec<OfCard<'_>> {
    cycle.tallies.xids.iter().map(|(uuid, (index, xids))| OfCard { index: *index, uuid, xids }).collect()
}

pub fn rows<'a>() -> Vec<Series<OfCard<'a>>> {
    vec![
        counters(
            "gpu_xid_errors_total",
            &["xid"],
            "Xid errors that the driver reported since the agent listens; a code is there from its first event on.",
            |of| by("xid", of.xids.iter().map(|(code, xid)| (code.to_string(), xid.count as f64))),
        ),
        gauges("gpu_xid_last_timestamp_seconds", &["xid"], "When the driver last reported this Xid error.", |of| {
            by("xid", of.xids.iter().map(|(code, xid)| (code.to_string(), xid.last.as_millisecond() as f64 / 1e3)))
        }),
    ]
}
