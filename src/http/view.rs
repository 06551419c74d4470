//! A cycle as people look at it: `/api/v1/status`, the status page and `gpuwarden status` all show this one value.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cycle::usage::{Part, usages_of};
use crate::cycle::{Cycle, Recent};
use crate::policy::rule::Rung;
use crate::policy::{Episode, EpisodeKey, Evidence, Fate, Judgement, Mode, Outcome, Rule, Subject};
use crate::snapshot::hold;
use crate::snapshot::{Gpu, GpuUuid, Grantee, Health, Readings, Right, Snapshot, Source, Truth};
use crate::units::Bytes;

/// An answer of the API that is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub error: String,
}

impl Problem {
    pub fn new(error: &str) -> Self {
        Self { error: error.to_owned() }
    }
}

/// What is not known is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    pub host: String,
    pub version: String,
    /// The moment that all of this is about.
    pub at: Timestamp,
    pub interval_seconds: f64,
    /// The most that any rule may do.
    pub mode: String,
    pub driver_version: Option<String>,
    /// Why the driver shows no cards, where it does not.
    pub driver_fault: Option<String>,
    /// Why the configuration could not be read again, where it could not.
    pub reload_failure: Option<String>,
    pub cards: Vec<Card>,
    pub topology: Topology,
    pub violations: Vec<Violation>,
    /// Why nothing is signalled now.
    pub pauses: Vec<String>,
    pub fuses_blown: Vec<String>,
    pub sources: Vec<SourceState>,
    /// The latest first.
    pub recent: Vec<Action>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub index: u32,
    pub uuid: String,
    pub model: Option<String>,
    /// Why the card does not answer, where it does not.
    pub fault: Option<String>,
    /// Why it is not known who is on it, where it is not.
    pub holders_fault: Option<String>,
    pub utilization: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    pub temperature: Option<f64>,
    pub power: Option<f64>,
    /// Whether it is cut into MIG instances; then it has no utilisation.
    pub mig: Option<bool>,
    pub instances: Vec<Instance>,
    pub holders: Vec<Holder>,
    pub rights: Vec<CardRight>,
    /// Whether these are all: no source is silent, and no name in one could be anybody's or any card's.
    pub rights_known: bool,
}

/// A MIG instance; compute instances of one GPU instance share its memory and activity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    pub place: Place,
    pub uuid: String,
    pub profile: Option<String>,
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    /// Share of time in which its multiprocessors had work, where the driver measures it.
    pub sm_active: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Place {
    pub gpu_instance: u32,
    pub compute_instance: Option<u32>,
}

/// How the cards are wired, as the driver told it when it was loaded; without entries where it does not tell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    pub cards: Vec<Wiring>,
    /// Each pair of cards once.
    pub pairs: Vec<Relation>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wiring {
    pub gpu: u32,
    pub uuid: String,
    /// Those of the host that are near; none where that is not told.
    pub numa_nodes: Vec<u32>,
    pub nvswitch_links: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relation {
    pub gpus: [u32; 2],
    pub uuids: [String; 2],
    /// `internal`, `single`, `multiple`, `hostbridge`, `node` or `system`, as NVML names them.
    pub pcie: Option<String>,
    pub nvlinks: Option<u32>,
}

/// Somebody on a card; nobody can be named where `user` is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Holder {
    pub user: Option<String>,
    pub memory: Option<u64>,
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub command: Option<String>,
    pub memory: Option<u64>,
    pub utilization: Option<f64>,
    pub age_seconds: Option<f64>,
    /// Where it is on a card that is cut into MIG instances.
    pub places: Vec<Place>,
    /// May its owner use this card now?
    pub assigned: Option<bool>,
}

/// Somebody who may use a card now. Both `user` and `group` are null for everyone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardRight {
    pub source: String,
    pub user: Option<String>,
    pub group: Option<String>,
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    pub rule: String,
    pub description: String,
    pub mode: Mode,
    pub severity: String,
    pub subject: String,
    pub user: Option<String>,
    pub gpu: Option<u32>,
    pub uuid: Option<String>,
    pub state: String,
    pub since: Option<Timestamp>,
    /// How many rungs were climbed, of how many.
    pub climbed: usize,
    pub rungs: usize,
    pub next: Option<Next>,
    /// What was done about it in this cycle, or not.
    pub done: Vec<Deed>,
    pub evidence: Vec<Fact>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deed {
    pub action: String,
    pub pid: Option<i32>,
    pub outcome: String,
    /// Why it was refused, or failed.
    pub detail: Option<String>,
}

/// The rung that comes next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Next {
    pub action: String,
    /// Whether it touches processes.
    pub acts: bool,
    /// Time in which the condition must still be seen to be true.
    pub in_seconds: f64,
    /// When that is, should it stay true; null while it is not known to be.
    pub due: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub fact: String,
    pub value: String,
    pub asked: String,
    pub truth: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceState {
    pub source: String,
    pub fault: Option<String>,
    pub last_success: Option<Timestamp>,
    /// Users, groups and GPUs that nobody knows now.
    pub unresolved_names: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    pub at: Timestamp,
    pub rule: String,
    pub subject: String,
    pub user: Option<String>,
    pub action: String,
    pub pid: Option<i32>,
    pub outcome: String,
    /// Why it was refused, or failed.
    pub detail: Option<String>,
    pub times: u64,
}

impl View {
    pub fn of(cycle: &Cycle) -> Self {
        let seen = &cycle.seen;
        Self {
            host: cycle.setup.host.clone(),
            version: cycle.setup.build.version.to_owned(),
            at: seen.at.wall,
            interval_seconds: cycle.rules().interval.as_secs_f64(),
            mode: cycle.rules().mode.as_str().to_owned(),
            driver_version: seen.driver.as_ref().ok().and_then(|driver| driver.driver_version.clone()),
            driver_fault: seen.gpus.as_ref().err().map(|fault| fault.what.clone()),
            reload_failure: cycle.reload.failure.clone(),
            cards: seen.cards().iter().map(|gpu| Card::of(cycle, gpu)).collect(),
            topology: Topology::of(seen),
            violations: violations(cycle),
            pauses: cycle.pauses.iter().map(|pause| pause.sentence().to_owned()).collect(),
            fuses_blown: cycle.blown.iter().map(|fuse| fuse.as_str().to_owned()).collect(),
            sources: seen.health.iter().map(SourceState::of).collect(),
            recent: cycle.tallies.recent.iter().rev().map(|recent| Action::of(cycle, recent)).collect(),
        }
    }
}

impl Topology {
    fn of(seen: &Snapshot) -> Self {
        let numbers: BTreeMap<&GpuUuid, u32> = seen.cards().iter().map(|gpu| (&gpu.uuid, gpu.index)).collect();
        let cards = seen.topology.cards.iter().filter_map(|(uuid, wiring)| {
            Some(Wiring {
                gpu: *numbers.get(uuid)?,
                uuid: uuid.0.to_string(),
                numa_nodes: wiring.numa_nodes.clone(),
                nvswitch_links: wiring.switch_links,
            })
        });
        let pairs = seen.topology.pairs.iter().filter_map(|((one, other), relation)| {
            let mut ends = [(*numbers.get(one)?, one), (*numbers.get(other)?, other)];
            ends.sort();
            Some(Relation {
                gpus: ends.map(|(number, _)| number),
                uuids: ends.map(|(_, uuid)| uuid.0.to_string()),
                pcie: relation.pcie.map(str::to_owned),
                nvlinks: relation.nvlinks,
            })
        });
        let (mut cards, mut pairs): (Vec<_>, Vec<_>) = (cards.collect(), pairs.collect());
        cards.sort_by_key(|card| card.gpu);
        pairs.sort_by_key(|pair| pair.gpus);
        Self { cards, pairs }
    }
}

impl Card {
    fn of(cycle: &Cycle, gpu: &Gpu) -> Self {
        let seen = &cycle.seen;
        let told = gpu.readings.as_ref().ok();
        let bytes = |of: fn(&Readings) -> Option<Bytes>| told.and_then(of).map(|bytes| bytes.0);
        let holders = usages_of(seen, gpu).into_iter().map(|usage| Holder {
            memory: usage.memory().exact().map(|bytes| bytes.0),
            processes: usage.parts.iter().map(|part| Process::of(cycle, part)).collect(),
            user: Some(usage.user.to_string()).filter(|user| !user.is_empty()),
        });
        let rights = seen.assignments.holding(seen.at.wall);
        Self {
            index: gpu.index,
            uuid: gpu.uuid.0.to_string(),
            model: gpu.identity.model.as_deref().map(str::to_owned),
            fault: gpu.readings.as_ref().err().map(|fault| fault.0.to_owned()),
            holders_fault: gpu.holds.as_ref().err().map(|fault| fault.what.clone()),
            utilization: told.and_then(|told| told.utilization).map(|share| share.ratio()),
            memory_used: bytes(|told| told.memory.used),
            memory_total: bytes(|told| told.memory.total),
            temperature: told.and_then(|told| told.temperature).map(|celsius| celsius.0),
            power: told.and_then(|told| told.power).map(|watts| watts.0),
            mig: told.and_then(|told| told.mig_mode),
            instances: told.map_or(&[][..], |_| &gpu.instances).iter().map(Instance::of).collect(),
            holders: holders.collect(),
            rights_known: seen.assignments.are_known(&gpu.uuid, seen.at.wall),
            rights: rights
                .filter(|(_, right)| right.gpus.known.contains(&gpu.uuid))
                .filter_map(|(source, right)| CardRight::of(source, right))
                .collect(),
        }
    }
}

impl Instance {
    fn of(instance: &crate::snapshot::gpu::Instance) -> Self {
        let memory = &instance.memory;
        Self {
            place: Place::of(&instance.place),
            uuid: instance.uuid.clone(),
            profile: instance.profile.clone(),
            memory_used: memory.used.map(|bytes| bytes.0),
            memory_total: memory.total.map(|bytes| bytes.0),
            sm_active: instance.activity.active.get("sm").map(|share| share.ratio()),
        }
    }
}

impl Place {
    fn of(place: &hold::Place) -> Self {
        Self { gpu_instance: place.gpu_instance, compute_instance: place.compute_instance }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.compute_instance {
            Some(compute_instance) => write!(f, "{}/{compute_instance}", self.gpu_instance),
            None => write!(f, "{}/?", self.gpu_instance),
        }
    }
}

impl Process {
    /// The places in short, as `7/0 3/1`; empty on a card that is whole.
    pub fn places(&self) -> String {
        self.places.iter().map(Place::to_string).collect::<Vec<_>>().join(" ")
    }

    fn of(cycle: &Cycle, part: &Part) -> Self {
        let age = part.process.map(|process| cycle.seen.at.boot.saturating_sub(process.id.start()));
        Self {
            pid: part.hold.pid,
            command: part.process.map(|process| process.command.to_string()),
            memory: part.hold.memory.map(|bytes| bytes.0),
            utilization: part.hold.utilization.map(|share| share.ratio()),
            age_seconds: age.map(|age| age.as_secs_f64()),
            places: part.hold.instances.keys().map(Place::of).collect(),
            assigned: part.assigned(&cycle.seen).known(),
        }
    }
}

impl CardRight {
    /// None where nobody bears the name now.
    fn of(source: Source, right: &Right) -> Option<Self> {
        let (user, group) = match &right.to {
            Grantee::Everyone => (None, None),
            Grantee::User { name, .. } => (Some(name.clone()), None),
            Grantee::Group { name, .. } => (None, Some(name.clone())),
            Grantee::Unresolved(_) => return None,
        };
        Some(Self { source: source.as_str().to_owned(), user, group, until: right.when.until })
    }
}

impl CardRight {
    /// Whom it names, as rules of rights are written.
    pub fn name(&self) -> String {
        match (&self.user, &self.group) {
            (Some(user), _) => user.clone(),
            (None, Some(group)) => format!("group {group}"),
            (None, None) => "everyone".to_owned(),
        }
    }
}

fn violations(cycle: &Cycle) -> Vec<Violation> {
    cycle.standings.violations.iter().filter_map(|judgement| Violation::of(cycle, judgement)).collect()
}

impl Violation {
    /// Whether what comes next only would be done, for the mode does not allow it.
    pub fn is_rehearsed(&self) -> bool {
        self.next.as_ref().is_some_and(|next| !self.mode.carries_out(next.acts))
    }

    fn of(cycle: &Cycle, judgement: &Judgement) -> Option<Self> {
        let rule = cycle.rules().rules.iter().find(|rule| rule.name == judgement.key.rule)?;
        let episode = cycle.state.episodes.get(&judgement.key);
        let now = (judgement.truth == Truth::True).then_some(cycle.seen.at.wall);
        Some(Self {
            rule: rule.name.to_string(),
            description: rule.description.clone(),
            mode: rule.effective_mode(cycle.rules().mode),
            severity: rule.severity.as_str().to_owned(),
            subject: subject(cycle, &judgement.key),
            user: judgement.owner.as_ref().map(|owner| owner.name.to_string()),
            gpu: judgement.gpu.as_ref().map(|card| card.index),
            uuid: judgement.gpu.as_ref().map(|card| card.uuid.0.to_string()),
            state: cycle.standing(judgement).as_str().to_owned(),
            since: episode.map(|episode| episode.began),
            climbed: episode.map_or(0, |episode| episode.climbed.len()),
            rungs: rule.then.rungs().len(),
            next: episode.and_then(|episode| Next::of(rule, episode, now)),
            done: cycle.outcomes.iter().filter(|outcome| outcome.key == judgement.key).map(Deed::of).collect(),
            evidence: judgement.evidence.iter().map(Fact::of).collect(),
        })
    }
}

/// The subject in words, with the card's number and the process's command where they are known.
fn subject(cycle: &Cycle, key: &EpisodeKey) -> String {
    let card = key.subject.gpu().map(|uuid| match cycle.seen.gpu(uuid) {
        Some(gpu) => format!("GPU {}", gpu.index),
        None => uuid.0.to_string(),
    });
    let who = match &key.subject {
        Subject::Process { id, .. } => match cycle.seen.processes.get(id) {
            Some(process) => Some(format!("{} {}", process.command, id.pid)),
            None => Some(format!("process {}", id.pid)),
        },
        Subject::User { uid, .. } => {
            Some(cycle.tallies.people.get(uid).map_or_else(|| uid.to_string(), |user| user.label().to_string()))
        }
        Subject::Gpu { .. } => None,
    };
    [who, card].into_iter().flatten().collect::<Vec<_>>().join(" on ")
}

impl Next {
    /// `now` where the condition is true, so that the ladder's clock runs.
    fn of(rule: &Rule, episode: &Episode, now: Option<Timestamp>) -> Option<Self> {
        let rung: &Rung = rule.then.rungs().get(episode.climbed.len())?;
        // The first rung counts from the beginning.
        let since = episode.climbed.last().map_or(Duration::ZERO, |clock| *clock);
        let left = rung.after.saturating_sub(episode.clock.saturating_sub(since));
        Some(Self {
            action: rung.action.as_str().to_owned(),
            acts: rung.action.is_act(),
            in_seconds: left.as_secs_f64(),
            due: now.and_then(|now| now.checked_add(left).ok()),
        })
    }
}

impl Deed {
    fn of(outcome: &Outcome) -> Self {
        Self {
            action: outcome.deed.as_str().to_owned(),
            pid: outcome.target.map(|target| target.pid),
            outcome: outcome.result.as_str().to_owned(),
            detail: detail(&outcome.result),
        }
    }
}

/// Why it was refused, or failed.
fn detail(result: &Fate) -> Option<String> {
    match result {
        Fate::Refused(guard) => Some(guard.as_str().to_owned()),
        Fate::Failed(why) => Some(why.clone()),
        Fate::Done | Fate::Rehearsed | Fate::Pending | Fate::Gone => None,
    }
}

impl Fact {
    fn of(evidence: &Evidence) -> Self {
        Self {
            fact: evidence.fact.to_owned(),
            value: evidence.value.clone(),
            asked: evidence.asked.to_string(),
            truth: evidence.truth.as_str().to_owned(),
        }
    }
}

impl SourceState {
    fn of(health: &Health) -> Self {
        Self {
            source: health.source.as_str().to_owned(),
            fault: health.fault.clone(),
            last_success: health.last_success,
            unresolved_names: health.unresolved.clone(),
        }
    }
}

impl Action {
    fn of(cycle: &Cycle, recent: &Recent) -> Self {
        Self {
            at: recent.at,
            rule: recent.key.rule.to_string(),
            subject: subject(cycle, &recent.key),
            user: recent.user.as_deref().map(str::to_owned),
            action: recent.action.to_owned(),
            pid: recent.target.map(|target| target.pid),
            outcome: recent.result.as_str().to_owned(),
            detail: detail(&recent.result),
            times: recent.times,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::cycle::fixture;
    use crate::snapshot::gpu;
    use crate::snapshot::readings::{Activity, Memory};

    /// Every key, at whatever depth.
    fn keys(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                into.insert(key.clone());
                keys(value, into);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
            _ => {}
        }
    }

    #[test]
    fn the_documentation_has_every_key_and_no_other() {
        let mut cycle = fixture::cycle();
        let place = hold::Place { gpu_instance: 7, compute_instance: None };
        let (memory, activity) = (Memory::default(), Activity::default());
        let card = &mut cycle.seen.gpus.as_mut().unwrap()[0];
        card.instances.push(gpu::Instance { uuid: "MIG-7".into(), place, profile: None, memory, activity });
        let mut there = BTreeSet::new();
        keys(&serde_json::to_value(View::of(&cycle)).unwrap(), &mut there);
        let rows = include_str!("../../docs/status.md").lines().filter_map(|line| line.strip_prefix("| `"));
        let named = rows.flat_map(|row| row.split(" | ").next().unwrap().split(", "));
        let documented: BTreeSet<String> = named.map(|key| key.trim_matches('`').to_owned()).collect();
        assert_eq!(there, documented);
    }
}
