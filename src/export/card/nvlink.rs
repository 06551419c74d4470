//! NVLink, and the fabric that it makes.

use super::Card;
use crate::export::series::{Series, by, counters, gauge, gauges, truth};

pub fn rows<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauges("gpu_nvlink_up", &["link"], "Whether a link is up.", |card| {
            card.list(|told| by("link", told.nvlink.up.iter().map(|(link, up)| (*link, truth(*up)))))
        }),
        counters(
            "gpu_nvlink_errors_total",
            &["type"],
            "Errors on all links together since the driver was loaded.",
            |card| card.list(|told| by("type", told.nvlink.errors.iter().map(|(name, count)| (*name, *count as f64)))),
        ),
        counters(
            "gpu_nvlink_bytes_total",
            &["direction"],
            "Bytes over all links together since the driver was loaded, without those of the protocol.",
            |card| {
                card.list(|told| by("direction", told.nvlink.bytes.iter().map(|(name, bytes)| (*name, bytes.0 as f64))))
            },
        ),
        gauge(
            "gpu_fabric_state",
            "How far the card is in joining the NVSwitch fabric: 1 not started, 2 in progress, 3 ready.",
            |card| card.count(|told| told.nvlink.fabric_state),
        ),
    ]
}
