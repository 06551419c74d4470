//! Errors of the memory, and what they have cost of it.

use std::collections::BTreeMap;

use super::Card;
use crate::export::series::{Sample, Series, by, counters, gauge, gauges};

pub fn rows<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauge("gpu_ecc_mode", "Whether memory errors are corrected.", |card| card.flag(|told| told.ecc.mode)),
        counters("gpu_ecc_errors_total", &["type", "location"], "Memory errors since the driver was loaded.", |card| {
            card.list(|told| errors(&told.ecc.errors))
        }),
        counters(
            "gpu_ecc_lifetime_errors_total",
            &["type", "location"],
            "Memory errors in the life of the card.",
            |card| card.list(|told| errors(&told.ecc.lifetime_errors)),
        ),
        gauge(
            "gpu_ecc_sram_threshold_exceeded",
            "Whether the SRAM has had more errors than the driver tolerates.",
            |card| card.flag(|told| told.ecc.sram_threshold_exceeded),
        ),
        gauges("gpu_retired_pages", &["cause"], "Pages of memory that are no longer used.", |card| {
            card.list(|told| counts("cause", &told.ecc.retired_pages))
        }),
        gauge("gpu_retired_pages_pending", "Whether pages will be retired when the card is reset.", |card| {
            card.flag(|told| told.ecc.retired_pages_pending)
        }),
        gauges("gpu_remapped_rows", &["cause"], "Rows of memory for which others stand in.", |card| {
            card.list(|told| counts("cause", &told.ecc.remapped_rows))
        }),
        gauge("gpu_row_remap_pending", "Whether rows will be remapped when the card is reset.", |card| {
            card.flag(|told| told.ecc.row_remap_pending)
        }),
        gauge("gpu_row_remap_failure", "Whether a row could not be remapped; the card wants to be replaced.", |card| {
            card.flag(|told| told.ecc.row_remap_failure)
        }),
        gauges(
            "gpu_row_remap_banks",
            &["availability"],
            "Banks of memory, by how many of their spare rows are left.",
            |card| card.list(|told| counts("availability", &told.ecc.row_remap_banks)),
        ),
    ]
}

fn errors(errors: &BTreeMap<(&'static str, &'static str), u64>) -> Vec<Sample> {
    errors
        .iter()
        .map(|((kind, location), count)| {
            (vec![("type", (*kind).into()), ("location", (*location).into())], *count as f64)
        })
        .collect()
}

fn counts(label: &'static str, counts: &[(&'static str, u64)]) -> Vec<Sample> {
    by(label, counts.iter().map(|(value, count)| (*value, *count as f64)))
}
