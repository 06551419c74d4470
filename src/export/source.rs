//! Sources, and the driver among them.

use super::series::{Labels, Sample, Series, Subject, Text, counter, counters, gauge, gauges, info, truth};
use crate::cycle::Cycle;
use crate::snapshot::Health;

impl Subject for Health {
    const LABELS: &'static [&'static str] = &["source"];

    fn labels(&self) -> Labels {
        vec![("source", self.source.as_str().into())]
    }
}

pub fn source() -> Vec<Series<Health>> {
    vec![
        gauge("source_up", "Whether a source answers; 0 while it is silent.", |health| {
            Some(truth(health.fault.is_none()))
        }),
        gauge("source_last_success_timestamp_seconds", "When a source last answered.", |health| {
            health.last_success.map(|at| at.as_millisecond() as f64 / 1e3)
        }),
        gauge("source_duration_seconds", "How long the last answer of a source took.", |health| {
            health.took.map(|took| took.as_secs_f64())
        }),
        counter("source_errors_total", "Failures of a source.", |health| Some(health.errors as f64)),
        gauge("source_unresolved_names", "Users, groups and cards in a source that nobody knows now.", |health| {
            health.unresolved.as_ref().map(|names| names.len() as f64)
        }),
    ]
}

pub fn node<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        counters("nvml_errors_total", &["call", "error"], "Calls of the driver's library that failed.", nvml_errors),
        gauges(
            "driver_info",
            &["driver_version", "nvml_version", "cuda_version"],
            "Versions of the driver; 1.",
            |cycle| match &cycle.seen.driver {
                Ok(driver) => info([
                    ("driver_version", driver.driver_version.clone().map(Text::from)),
                    ("nvml_version", driver.nvml_version.clone().map(Text::from)),
                    ("cuda_version", driver.cuda_version.clone().map(Text::from)),
                ]),
                Err(_) => Vec::new(),
            },
        ),
    ]
}

fn nvml_errors(cycle: &&Cycle) -> Vec<Sample> {
    let errors = cycle.seen.nvml_errors.iter();
    errors
        .map(|((call, error), count)| (vec![("call", (*call).into()), ("error", (*error).into())], *count as f64))
        .collect()
}
