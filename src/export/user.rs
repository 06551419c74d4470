//! Users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::card::{Card, gpu_labels};
use super::series::{Labels, Series, Subject, counter, gauge};
use crate::cycle::Cycle;
use crate::cycle::tallies::CardTime;
use crate::cycle::usage::Usage;
use crate::snapshot::{GpuUuid, User};

/// Who a user is.
pub struct Person<'a> {
    user: &'a User,
    group: Option<&'a Arc<str>>,
}

impl Subject for Person<'_> {
    const LABELS: &'static [&'static str] = &["user", "uid", "group"];

    fn labels(&self) -> Labels {
        let mut labels = vec![("user", self.user.label().into()), ("uid", self.user.uid.0.into())];
        labels.extend(self.group.map(|group| ("group", group.clone().into())));
        labels
    }
}

/// Whoever is seen now, and whoever still has counters.
pub fn people(cycle: &Cycle) -> Vec<Person<'_>> {
    let people = cycle.tallies.people.values();
    people.map(|user| Person { user, group: group(user, &cycle.setup.groups) }).collect()
}

/// The first of his groups that the configuration names, else his primary one.
fn group<'a>(user: &'a User, named: &BTreeSet<String>) -> Option<&'a Arc<str>> {
    let groups = user.groups.known()?;
    let group = groups.iter().find(|group| named.contains(&*group.name)).or(groups.first())?;
    Some(&group.name)
}

pub fn info<'a>() -> Vec<Series<Person<'a>>> {
    vec![gauge(
        "user_info",
        "A user; 1. The group is the first of his that the configuration names, else his primary one.",
        |_| Some(1.0),
    )]
}

/// A user on one card.
pub struct OnCard<'a> {
    cycle: &'a Cycle,
    usage: &'a Usage<'a>,
}

impl Subject for OnCard<'_> {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "user"];

    fn labels(&self) -> Labels {
        user_on(self.usage.gpu.index, &self.usage.gpu.uuid, &self.usage.user)
    }
}

fn user_on(index: u32, uuid: &GpuUuid, user: &Arc<str>) -> Labels {
    let mut labels = gpu_labels(index, uuid);
    labels.push(("user", user.clone().into()));
    labels
}

pub fn on_cards<'a>(cycle: &'a Cycle, cards: &'a [Card<'a>]) -> Vec<OnCard<'a>> {
    cards.iter().flat_map(|card| &card.usages).map(|usage| OnCard { cycle, usage }).collect()
}

pub fn on_card<'a>() -> Vec<Series<OnCard<'a>>> {
    vec![
        gauge("user_memory_bytes", "Memory of a user on a card; absent where it is not known of one process.", |on| {
            on.usage.memory().exact().map(|bytes| bytes.0 as f64)
        }),
        gauge("user_unassigned_memory_bytes", "Memory of a user on a card that he may not use now.", |on| {
            on.usage.unassigned_memory(&on.cycle.seen).map(|bytes| bytes.0 as f64)
        }),
    ]
}

/// A user on the whole node.
pub struct OnNode {
    user: Arc<str>,
    /// Cards on which he holds more than the footprint, and processes, where both are known.
    gpus: Option<u64>,
    processes: Option<u64>,
}

impl Subject for OnNode {
    const LABELS: &'static [&'static str] = &["user"];

    fn labels(&self) -> Labels {
        vec![("user", self.user.clone().into())]
    }
}

/// Everybody who is known has nothing, unless he has something, or a list could not be read.
pub fn users(cycle: &Cycle, cards: &[Card]) -> Vec<OnNode> {
    let mut by_user: BTreeMap<Arc<str>, Vec<&Usage>> = BTreeMap::new();
    by_user.extend(cycle.tallies.people.values().map(|user| (user.label(), Vec::new())));
    for usage in cards.iter().flat_map(|card| &card.usages) {
        by_user.entry(usage.user.clone()).or_default().push(usage);
    }
    let all_read = lists_are_whole(cycle);
    let user = |(user, usages): (Arc<str>, Vec<&Usage>)| OnNode {
        gpus: gpus(cycle, &usages).filter(|_| all_read),
        processes: all_read.then(|| processes(&usages)),
        user,
    };
    by_user.into_iter().map(user).collect()
}

/// Whether every card that answers told who is on it. A lost card has nobody on it who could use it.
fn lists_are_whole(cycle: &Cycle) -> bool {
    let answering =
        |gpus: &Vec<crate::snapshot::Gpu>| gpus.iter().all(|gpu| gpu.readings.is_err() || gpu.holds.is_ok());
    cycle.seen.gpus.as_ref().is_ok_and(answering)
}

fn gpus(cycle: &Cycle, usages: &[&Usage]) -> Option<u64> {
    let held = usages.iter().map(|usage| usage.memory().exceeds(cycle.rules().footprint));
    held.map(|held| held.known().map(u64::from)).sum()
}

fn processes(usages: &[&Usage]) -> u64 {
    let pids: BTreeSet<i32> = usages.iter().flat_map(|usage| &usage.parts).map(|part| part.hold.pid).collect();
    pids.len() as u64
}

pub fn user() -> Vec<Series<OnNode>> {
    vec![
        gauge("user_gpus", "Cards on which a user holds more memory than the footprint that is configured.", |user| {
            user.gpus.map(|gpus| gpus as f64)
        }),
        gauge("user_processes", "Processes of a user on the cards.", |user| {
            user.processes.map(|processes| processes as f64)
        }),
    ]
}

/// The time of a user on one card, up to a day after he left.
pub struct Time<'a> {
    cycle: &'a Cycle,
    user: &'a Arc<str>,
    uuid: &'a GpuUuid,
    time: &'a CardTime,
}

impl Subject for Time<'_> {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "user"];

    fn labels(&self) -> Labels {
        user_on(self.time.index, self.uuid, self.user)
    }
}

pub fn times(cycle: &Cycle) -> Vec<Time<'_>> {
    let users = cycle.tallies.users.iter();
    users
        .flat_map(|(user, tally)| tally.cards.iter().map(move |(uuid, time)| Time { cycle, user, uuid, time }))
        .collect()
}

pub fn time<'a>() -> Vec<Series<Time<'a>>> {
    vec![
        counter(
            "user_gpu_held_seconds_total",
            "Time in which a user held more memory of a card than the footprint that is configured.",
            |of| Some(of.time.held.as_secs_f64()),
        ),
        counter("user_gpu_busy_seconds_total", "Held time in which his busiest process ran kernels.", |of| {
            of.time.told.then_some(of.time.busy.as_secs_f64())
        }),
        counter("user_gpu_idle_seconds_total", "Held time in which none of his processes ran kernels.", |of| {
            of.time.told.then_some(of.time.idle.as_secs_f64())
        }),
        counter(
            "user_energy_joules_total",
            "Energy of a card by the time that a user kept it busy, or by the number of its holders while none does: an estimate.",
            |of| of.time.energy.map(|joules| joules.0),
        ),
        counter("user_gpu_unassigned_seconds_total", "Held time in which he was known to have no right.", |of| {
            // Without sources nobody ever knows.
            let known = !of.cycle.seen.assignments.sources.is_empty();
            known.then_some(of.time.unassigned.as_secs_f64())
        }),
    ]
}
