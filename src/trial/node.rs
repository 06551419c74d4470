//! The made-up node: what the sources of a real one would have seen in each cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::script::{Actor, Gpus};
use super::{Trial, confidence};
use crate::snapshot::Readings;
use crate::snapshot::gpu::Identity;
use crate::snapshot::readings::Memory;
use crate::snapshot::{
    Answer, AssignmentSource, Assignments, Cards, Driver, Fault, Gpu, GpuUuid, Hold, Moment, Pause, Process, ProcessId,
    Right, Snapshot, Source, Unseen,
};
use crate::source::assignment::entry::Entry;
use crate::units::{Bytes, Percent, Uid};

/// How long the node has been up when a test begins.
const UPTIME: Duration = Duration::from_secs(86_400);

/// A Monday, for tests that do not say when they begin.
const START: Timestamp = Timestamp::constant(1_767_571_200, 0);

const SILENT: &str = "silent in this test";

/// The node in the course of one test.
pub struct Node<'a> {
    trial: &'a Trial,
    cards: Vec<Gpu>,
    /// Boot time at which the agent first saw a process on a card.
    came: BTreeMap<(ProcessId, u32), Duration>,
    /// Processes that a signal has ended.
    ended: BTreeSet<ProcessId>,
}

impl<'a> Node<'a> {
    pub fn new(trial: &'a Trial) -> Self {
        let cards = cards(&trial.script.gpus);
        Self { trial, cards, came: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// The agent is started again, and remembers nothing that only its sources knew.
    pub fn restart(&mut self) {
        self.came.clear();
    }

    pub fn end(&mut self, process: ProcessId) {
        self.ended.insert(process);
    }

    pub fn actor(&self, process: ProcessId) -> Option<&'a Actor> {
        self.trial.script.processes.iter().find(|actor| identity(actor) == process)
    }

    /// What a cycle sees at that time of the test.
    pub fn observe(&mut self, time: Duration) -> Snapshot {
        let at = self.moment(time);
        let actors: Vec<&Actor> =
            self.trial.script.processes.iter().filter(|actor| self.is_there(actor, time)).collect();
        self.remember(&actors, time, at.boot);
        let nvml = self.silence(Source::Nvml, time);
        let processes = actors.iter().filter(|_| nvml.is_none() && !self.is_silent(Source::Procfs, time));
        Snapshot {
            at,
            boot_id: "00000000-0000-0000-0000-000000000000".to_owned(),
            driver: nvml.clone().map_or(Ok(DRIVER), Err),
            gpus: nvml.clone().map_or_else(|| Ok(self.gpus(&actors, time)), Err),
            processes: processes.map(|actor| (identity(actor), self.process(actor))).collect(),
            users: self.trial.cast.users(self.is_silent(Source::Directory, time)),
            assignments: self.assignments(time, at.boot),
            health: Vec::new(),
            pauses: nvml.iter().map(|_| Pause::DriverStale).collect(),
            gpus_expected: None,
            topology: Default::default(),
            nvml_errors: BTreeMap::new(),
        }
    }

    fn moment(&self, time: Duration) -> Moment {
        let start = self.trial.script.start.map_or(START, |date| date.0);
        Moment { wall: start.saturating_add(time).unwrap_or(Timestamp::MAX), boot: UPTIME + time }
    }

    fn is_there(&self, actor: &Actor, time: Duration) -> bool {
        actor.lives(time) && !self.ended.contains(&identity(actor))
    }

    fn is_silent(&self, source: Source, time: Duration) -> bool {
        self.trial.script.silent.get(&source).is_some_and(|periods| periods.contain(time))
    }

    fn silence(&self, source: Source, time: Duration) -> Option<Fault> {
        self.is_silent(source, time).then(|| Fault::new(source, SILENT))
    }

    /// Notes who is on which card. While the driver is silent, nobody can be seen to come or go.
    fn remember(&mut self, actors: &[&Actor], time: Duration, now: Duration) {
        if self.is_silent(Source::Nvml, time) {
            return;
        }
        let pairs = actors.iter().flat_map(|actor| actor.gpu.at(time).0.iter().map(|index| (identity(actor), *index)));
        let seen: BTreeSet<(ProcessId, u32)> = pairs.collect();
        self.came.retain(|pair, _| seen.contains(pair));
        for pair in seen {
            self.came.entry(pair).or_insert(now);
        }
    }

    fn gpus(&self, actors: &[&Actor], time: Duration) -> Vec<Gpu> {
        self.cards.iter().map(|card| self.gpu(card, actors, time)).collect()
    }

    fn gpu(&self, card: &Gpu, actors: &[&Actor], time: Duration) -> Gpu {
        let here = actors.iter().filter(|actor| actor.gpu.at(time).0.contains(&card.index));
        let holds: Vec<Hold> = here.map(|actor| self.hold(actor, card.index, time)).collect();
        let given = self.trial.script.gpus.utilization.as_ref().map(|timed| timed.at(time).0);
        let readings = Readings {
            utilization: given.unwrap_or_else(|| busiest(&holds)),
            memory: Memory {
                used: together(&holds),
                ..card.readings.as_ref().map(|readings| readings.memory).unwrap_or_default()
            },
            ..Readings::default()
        };
        Gpu { readings: Ok(readings), holds: Ok(holds), ..card.clone() }
    }

    fn hold(&self, actor: &Actor, index: u32, time: Duration) -> Hold {
        let process = identity(actor);
        let since = self.came.get(&(process, index)).copied();
        let seen = if self.is_silent(Source::Procfs, time) { Err(Unseen::Hidden) } else { Ok(process) };
        Hold {
            memory: actor.memory.at(time).0,
            utilization: actor.utilization.at(time).0,
            ..Hold::new(actor.pid, seen, actor.kind, since.unwrap_or(UPTIME + time))
        }
    }

    fn process(&self, actor: &Actor) -> Process {
        Process {
            id: identity(actor),
            uid: self.owner(actor),
            confidence: confidence(actor),
            command: actor.command.as_str().into(),
            executable: actor.executable.as_deref().map(Arc::from),
            command_line: None,
            protection: Some(actor.protection),
            host_memory: None,
            host_cpu: None,
        }
    }

    fn owner(&self, actor: &Actor) -> Option<Uid> {
        actor.uid.or_else(|| self.trial.cast.uid(actor.user.as_deref()?))
    }

    /// The source `fixed` where rights are given, and whichever else is said to be silent at some time.
    fn assignments(&self, time: Duration, now: Duration) -> Assignments {
        let enabled = [Source::Fixed, Source::Files].into_iter().filter(|source| {
            let named = *source == Source::Fixed && self.trial.script.assignments.is_some();
            named || self.trial.script.silent.contains_key(source)
        });
        let sources = enabled.map(|source| match self.silence(source, time) {
            Some(_) => AssignmentSource::silent(source, SILENT),
            None => AssignmentSource { source, answer: Ok(Answer { at: now, rights: self.rights(source, time) }) },
        });
        Assignments { sources: sources.collect() }
    }

    fn rights(&self, source: Source, time: Duration) -> Vec<Right> {
        let granted = self.trial.script.assignments.as_ref().filter(|_| source == Source::Fixed);
        let entries = granted.map_or(&[][..], |timed| timed.at(time));
        entries.iter().map(|entry| self.right(entry, self.is_silent(Source::Directory, time))).collect()
    }

    fn right(&self, entry: &Entry, directory_is_silent: bool) -> Right {
        let named = self.cards.iter().filter(|card| entry.gpus.iter().any(|selector| selector.matches(card).is_true()));
        Right {
            to: self.trial.cast.grantee(&entry.to, directory_is_silent),
            gpus: Cards { known: named.map(|card| card.uuid.clone()).collect(), unresolved: Vec::new() },
            when: entry.validity(),
        }
    }
}

const DRIVER: Driver = Driver { driver_version: None, nvml_version: None, cuda_version: None };

/// The cards of the node with nobody on them.
pub fn cards(gpus: &Gpus) -> Vec<Gpu> {
    (0..gpus.count).map(|index| card(gpus, index)).collect()
}

fn card(gpus: &Gpus, index: u32) -> Gpu {
    let memory = Memory { total: gpus.memory.and_then(|known| known.0), ..Memory::default() };
    Gpu {
        identity: Arc::new(Identity { model: gpus.name.as_deref().map(Arc::from), ..Identity::default() }),
        readings: Ok(Readings { memory, ..Readings::default() }),
        ..Gpu::named(GpuUuid(format!("GPU-00000000-0000-0000-0000-{index:012x}").into()), index)
    }
}

fn identity(actor: &Actor) -> ProcessId {
    let tick = 1000 / crate::snapshot::process::TICKS_PER_SECOND;
    let started = (UPTIME + actor.from.0).as_millis() / u128::from(tick);
    // A hundred years of ticks fit, and no span is longer.
    ProcessId { pid: actor.pid, started: u64::try_from(started).unwrap_or(u64::MAX) }
}

/// What a card is used by processes that each say so: unknown with one that does not tell.
fn busiest(holds: &[Hold]) -> Option<Percent> {
    let known: Option<Vec<f64>> = holds.iter().map(|hold| hold.utilization.map(|share| share.0)).collect();
    known.map(|shares| Percent(shares.into_iter().fold(0.0, f64::max)))
}

fn together(holds: &[Hold]) -> Option<Bytes> {
    holds.iter().map(|hold| hold.memory.map(|bytes| bytes.0)).sum::<Option<u64>>().map(Bytes)
}
