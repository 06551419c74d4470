//! The agent itself.

use super::series::{Labels, Series, Subject, Text, counter, gauge, gauges, info, truth};
use crate::cycle::{Build, Cycle};

impl Subject for &Cycle {
    const LABELS: &'static [&'static str] = &[];

    fn labels(&self) -> Labels {
        Labels::new()
    }
}

pub fn cycle<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        gauge("cycle_duration_seconds", "How long the last cycle took.", |cycle| Some(cycle.took.as_secs_f64())),
        gauge("last_cycle_timestamp_seconds", "When the last cycle read the clock.", |cycle| {
            Some(cycle.seen.at.wall.as_millisecond() as f64 / 1e3)
        }),
        counter("cycles_total", "Cycles.", |cycle| Some(cycle.tallies.cycles as f64)),
        counter("cycles_late_total", "Cycles that took longer than the interval.", |cycle| {
            Some(cycle.tallies.late as f64)
        }),
        gauge("config_last_reload_successful", "Whether the configuration was good when it was last read.", |cycle| {
            Some(truth(cycle.reload.failure.is_none()))
        }),
        gauge("config_last_reload_success_timestamp_seconds", "When the configuration in effect was read.", |cycle| {
            Some(cycle.reload.last_success.as_second() as f64)
        }),
        gauge("config_hash", "A number for configuration and rules; nodes with one number judge alike.", |cycle| {
            Some(cycle.setup.hash as f64)
        }),
    ]
}

impl Subject for Build {
    const LABELS: &'static [&'static str] = &[];

    fn labels(&self) -> Labels {
        Labels::new()
    }
}

pub fn build() -> Vec<Series<Build>> {
    vec![gauges(
        "build_info",
        &["version", "revision", "rustc_version"],
        "Which program this is; 1.",
        |build: &Build| {
            info([
                ("version", Some(build.version.into())),
                ("revision", build.revision.map(Text::from)),
                ("rustc_version", build.rustc_version.map(Text::from)),
            ])
        },
    )]
}

/// What every Prometheus client publishes of its own process, without prefix and with the usual sentences.
pub fn process<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", |cycle: &&Cycle| {
            cycle.agent.cpu.map(|time| time.as_secs_f64())
        }),
        gauge("process_max_fds", "Maximum number of open file descriptors.", |cycle| {
            cycle.agent.max_fds.map(|fds| fds as f64)
        }),
        gauge("process_open_fds", "Number of open file descriptors.", |cycle| {
            cycle.agent.open_fds.map(|fds| fds as f64)
        }),
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", |cycle| {
            cycle.agent.resident.map(|bytes| bytes.0 as f64)
        }),
        gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", |cycle| {
            cycle.tallies.booted.zip(cycle.agent.started).map(|(booted, started)| booted.unix_seconds(started))
        }),
        gauge("process_threads", "Number of OS threads in the process.", |cycle| {
            cycle.agent.threads.map(|threads| threads as f64)
        }),
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", |cycle| {
            cycle.agent.virtual_memory.map(|bytes| bytes.0 as f64)
        }),
    ]
    .into_iter()
    .map(Series::standard)
    .collect()
}
