//! Processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::card::gpu_labels;
use super::mig::{PLACE, place_labels};
use super::series::{Labels, Sample, Series, Subject, counter, counters, gauge, gauges, info, truth};
use crate::cycle::Cycle;
use crate::cycle::usage::{Part, parts};
use crate::snapshot::{Kind, Process};
use crate::units::Bytes;

/// A process on one card.
pub struct OnCard<'a> {
    cycle: &'a Cycle,
    part: Part<'a>,
    process: &'a Process,
    user: Arc<str>,
}

impl Subject for OnCard<'_> {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "pid", "user"];

    fn labels(&self) -> Labels {
        let mut labels = gpu_labels(self.part.gpu.index, &self.part.gpu.uuid);
        labels.extend([("pid", self.process.id.pid.into()), ("user", self.user.clone().into())]);
        labels
    }
}

impl OnCard<'_> {
    /// One sample of the memory on the card, or of that on each MIG instance that the driver names.
    fn where_it_is(&self, value: impl Fn(Option<Bytes>) -> Option<f64>) -> Vec<Sample> {
        let hold = self.part.hold;
        if hold.instances.is_empty() {
            return one(value(hold.memory));
        }
        let instances = hold.instances.iter();
        instances.filter_map(|(place, memory)| Some((place_labels(*place), value(*memory)?))).collect()
    }

    /// A sample of the whole card; none under MIG, where the driver measures no process.
    fn outside_mig(&self, value: Option<f64>) -> Vec<Sample> {
        one(value.filter(|_| self.part.hold.instances.is_empty()))
    }
}

fn one(value: Option<f64>) -> Vec<Sample> {
    value.map(|value| (Labels::new(), value)).into_iter().collect()
}

/// Those that have series of their own.
pub fn shown(cycle: &Cycle) -> Vec<OnCard<'_>> {
    chosen(cycle).map(|(part, process)| OnCard { cycle, part, process, user: part.user(&cycle.seen) }).collect()
}

fn chosen(cycle: &Cycle) -> impl Iterator<Item = (Part<'_>, &Process)> {
    let latest = latest(cycle);
    parts(&cycle.seen)
        .filter_map(|part| Some((part, part.process?)))
        .filter(|(part, process)| cycle.tallies.shown.contains(&(process.id, part.gpu.uuid.clone())))
        .filter(move |(_, process)| latest.get(&process.id.pid) == Some(&process.id.started))
}

/// The start time of each pid's last holder. While the lists are read a pid can pass to another process; the labels
/// know the pid only.
fn latest(cycle: &Cycle) -> BTreeMap<i32, u64> {
    cycle.seen.processes.keys().map(|id| (id.pid, id.started)).collect()
}

/// A process, whatever the number of its cards.
pub struct Whole<'a> {
    cycle: &'a Cycle,
    process: &'a Process,
    user: Arc<str>,
    kind: Kind,
}

impl Subject for Whole<'_> {
    const LABELS: &'static [&'static str] = &["pid", "user"];

    fn labels(&self) -> Labels {
        vec![("pid", self.process.id.pid.into()), ("user", self.user.clone().into())]
    }
}

pub fn whole<'a>(shown: &[OnCard<'a>]) -> Vec<Whole<'a>> {
    let mut by_pid: BTreeMap<i32, Whole> = BTreeMap::new();
    for OnCard { cycle, part, process, user } in shown {
        by_pid
            .entry(process.id.pid)
            .and_modify(|whole| whole.kind = whole.kind.and(part.hold.kind))
            .or_insert_with(|| Whole { cycle, process, user: user.clone(), kind: part.hold.kind });
    }
    by_pid.into_values().collect()
}

impl Kind {
    /// What it is that does the one on one card and the other on another.
    fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Both }
    }
}

pub fn process<'a>() -> Vec<Series<Whole<'a>>> {
    vec![
        gauges(
            "process_info",
            &["uid", "command", "kind", "owner_confidence"],
            "A process on a card; 1. One series, whatever the number of cards.",
            whole_info,
        ),
        gauge("process_start_time_seconds", "When the process started.", |whole| {
            whole.cycle.tallies.booted.map(|booted| booted.unix_seconds(whole.process.id.start()))
        }),
        gauge("process_host_memory_bytes", "Resident memory on the host.", |whole| {
            whole.process.host_memory.map(|bytes| bytes.0 as f64)
        }),
        counter("process_host_cpu_seconds_total", "User and system time on the host.", |whole| {
            whole.process.host_cpu.map(|time| time.as_secs_f64())
        }),
    ]
}

fn whole_info(whole: &Whole) -> Vec<Sample> {
    let process = whole.process;
    info([
        ("uid", process.uid.map(|uid| uid.0.into())),
        ("command", Some(process.command.clone().into())),
        ("kind", Some(whole.kind.as_str().into())),
        ("owner_confidence", Some(process.confidence.as_str().into())),
    ])
}

pub fn on_card<'a>() -> Vec<Series<OnCard<'a>>> {
    vec![
        gauges("process_memory_bytes", PLACE, "Memory of the process on the card, or on each MIG instance.", |on| {
            on.where_it_is(|memory| memory.map(|bytes| bytes.0 as f64))
        }),
        gauges(
            "process_utilization_ratio",
            PLACE,
            "Share of time since the last cycle in which its kernels ran; not told under MIG.",
            |on| on.outside_mig(on.part.hold.utilization.map(|share| share.ratio())),
        ),
        counters("process_busy_seconds_total", PLACE, "Time in which its kernels were seen to run.", |on| {
            let pair = (on.process.id, on.part.gpu.uuid.clone());
            on.outside_mig(on.cycle.tallies.busy.get(&pair).map(|time| time.as_secs_f64()))
        }),
        gauges(
            "process_memory_controller_utilization_ratio",
            PLACE,
            "Share of time since the last cycle in which it read or wrote memory of the card.",
            |on| on.outside_mig(on.part.hold.engines.memory_controller.map(|share| share.ratio())),
        ),
        gauges(
            "process_encoder_utilization_ratio",
            PLACE,
            "Share of time since the last cycle in which it encoded video.",
            |on| on.outside_mig(on.part.hold.engines.encoder.map(|share| share.ratio())),
        ),
        gauges(
            "process_decoder_utilization_ratio",
            PLACE,
            "Share of time since the last cycle in which it decoded video.",
            |on| on.outside_mig(on.part.hold.engines.decoder.map(|share| share.ratio())),
        ),
        gauges(
            "process_assigned",
            PLACE,
            "Whether its owner may use the card now; absent where that is unknown.",
            |on| {
                let assigned = on.part.assigned(&on.cycle.seen).known().map(truth);
                on.where_it_is(|_| assigned)
            },
        ),
    ]
}

pub fn node<'a>() -> Vec<Series<&'a Cycle>> {
    vec![
        gauge(
            "processes_omitted",
            "Pairs of process and card without series of their own, beyond metrics.processes of gpuwarden.yaml.",
            |cycle| {
                cycle.seen.gpus.as_ref().ok()?;
                let pairs = parts(&cycle.seen).filter(|part| part.process.is_some()).count();
                Some(pairs.saturating_sub(chosen(cycle).count()) as f64)
            },
        ),
        gauge(
            "exempt_processes",
            "Processes on the cards that an entry under exempt in gpuwarden.yaml takes out of every rule.",
            |cycle| cycle.seen.gpus.as_ref().ok().map(|_| cycle.exempt.len() as f64),
        ),
        gauge("unkillable_processes", "Processes that are still there after they were killed.", |cycle| {
            Some(cycle.unkillable as f64)
        }),
    ]
}
