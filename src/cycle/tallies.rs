//! What has been counted since the agent started: a fold over the turns, nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Setup;
use super::usage::{Part, Usage, listed, parts, share, usages};
use crate::policy::{Deed, EpisodeKey, Fate, Guard, Judgement, Outcome, RuleName};
use crate::snapshot::gpu::Xid;
use crate::snapshot::{GpuUuid, Lookup, Moment, ProcessId, Snapshot, Truth, User};
use crate::units::{Joules, Uid};

mod energy;
#[cfg(test)]
mod tests;

/// The counters of a user stay this long after he last held a card.
const USERS_STAY: Duration = Duration::from_secs(24 * 3600);

/// How many of the last actions are remembered for people to read.
const RECENT: usize = 50;

/// The outcomes that `actions_total` tells apart; a pending one is counted when its answer comes.
pub const COUNTED: [&str; 5] = ["done", "rehearsed", "refused", "gone", "failed"];

/// A pair of process and card.
pub type Pair = (ProcessId, GpuUuid);

/// One turn, as far as it counts.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'a> {
    /// What the turn before saw.
    pub before: Option<&'a Snapshot>,
    pub now: &'a Snapshot,
    pub judgements: &'a [Judgement],
    pub outcomes: &'a [Outcome],
    pub took: Duration,
    pub setup: &'a Setup,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tallies {
    /// When the host was booted.
    pub booted: Option<Booted>,
    pub cycles: u64,
    pub late: u64,
    /// Time in which somebody held the card.
    pub held: BTreeMap<GpuUuid, Duration>,
    /// Xid errors of each card, with its number: they are known while the driver is silent too.
    pub xids: BTreeMap<GpuUuid, (u32, BTreeMap<u64, Xid>)>,
    /// By the label `user`.
    pub users: BTreeMap<Arc<str>, UserTally>,
    /// Whoever was seen, as long as he is there or his counters are.
    pub people: BTreeMap<Uid, User>,
    /// Time in which the kernels of a process ran on a card; none where that was never told.
    pub busy: BTreeMap<Pair, Duration>,
    /// Which pairs get series of their own.
    pub shown: BTreeSet<Pair>,
    /// By rule and user.
    pub episodes: BTreeMap<(RuleName, Arc<str>), u64>,
    /// By rule, action and outcome.
    pub actions: BTreeMap<(RuleName, &'static str, &'static str), u64>,
    pub refusals: BTreeMap<Guard, u64>,
    /// The last actions, the latest last.
    pub recent: VecDeque<Recent>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct UserTally {
    /// Boot time at which he was last seen to hold a card.
    pub last_hold: Duration,
    pub cards: BTreeMap<GpuUuid, CardTime>,
}

/// Time of one user on one card. What is held is busy, idle or unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CardTime {
    /// The card's number, for the label `gpu` while the driver is silent.
    pub index: u32,
    pub held: Duration,
    pub busy: Duration,
    pub idle: Duration,
    /// Whether those two can be told: under MIG they cannot.
    pub told: bool,
    /// Held without a right.
    pub unassigned: Duration,
    /// His part of what the card took; `None` while that was never known.
    pub energy: Option<Joules>,
}

/// The Unix time of boot, in seconds. Kept, for wall and boot time are never read in the same instant: start times would
/// tremble.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Booted(f64);

impl Booted {
    /// Only a step of the wall clock moves it.
    fn of(at: Moment, before: Option<Self>) -> Self {
        let now = at.wall.as_microsecond() as f64 / 1e6 - at.boot.as_secs_f64();
        before.filter(|before| (before.0 - now).abs() < 1.0).unwrap_or(Self(now))
    }

    /// A boot time as Unix time. The hundredth is as much as the kernel tells of a start.
    pub fn unix_seconds(self, since_boot: Duration) -> f64 {
        ((self.0 + since_boot.as_secs_f64()) * 100.0).round() / 100.0
    }
}

/// Something that was done, or not, and how often in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Recent {
    pub at: Timestamp,
    pub key: EpisodeKey,
    pub rung: usize,
    pub action: &'static str,
    pub user: Option<Arc<str>>,
    pub target: Option<ProcessId>,
    pub result: Fate,
    pub times: u64,
}

impl Tallies {
    pub fn count(&mut self, turn: &Turn) {
        self.booted = Some(Booted::of(turn.now.at, self.booted));
        self.cycles += 1;
        self.late += u64::from(turn.took > turn.setup.rules.interval);
        let named = self.newly_named(turn);
        self.meet(turn);
        if let Some(before) = turn.before {
            self.integrate(before, turn);
        }
        self.count_episodes(turn);
        self.count_actions(turn);
        self.choose_shown(turn);
        for (digits, name) in &named {
            self.rename(digits, name);
        }
        self.forget(turn);
    }

    /// Who went by his uid because the directory had not answered, and has a name now.
    fn newly_named(&self, turn: &Turn) -> Vec<(Arc<str>, Arc<str>)> {
        let known = self.people.iter().filter(|(_, user)| user.name == Lookup::Pending);
        let named = known.filter_map(|(uid, before)| Some((before.label(), turn.now.users.get(uid)?.label())));
        named.filter(|(digits, name)| digits != name).collect()
    }

    /// What was counted under the one is the other's: there never was a user of the name of his digits.
    fn rename(&mut self, digits: &Arc<str>, name: &Arc<str>) {
        if let Some(tally) = self.users.remove(digits) {
            self.users.entry(name.clone()).or_default().add(tally);
        }
        let moved: Vec<_> = self.episodes.extract_if(.., |(_, user), _| user == digits).collect();
        for ((rule, _), count) in moved {
            *self.episodes.entry((rule, name.clone())).or_default() += count;
        }
    }

    /// Whoever and whatever is seen for the first time begins at 0.
    fn meet(&mut self, turn: &Turn) {
        for gpu in turn.now.cards() {
            self.held.entry(gpu.uuid.clone()).or_default();
            if !gpu.xids.is_empty() {
                self.xids.insert(gpu.uuid.clone(), (gpu.index, gpu.xids.clone()));
            }
        }
        for (uid, user) in &turn.now.users {
            if self.people.get(uid) != Some(user) {
                self.people.insert(*uid, user.clone());
            }
        }
        for usage in usages(turn.now).iter().filter(|usage| usage.is_held(turn.setup)) {
            let tally = self.users.entry(usage.user.clone()).or_default();
            tally.last_hold = turn.now.at.boot;
            let time = tally.cards.entry(usage.gpu.uuid.clone()).or_default();
            time.index = usage.gpu.index;
            time.told |= usage.gpu.readings.as_ref().is_ok_and(|told| told.mig_mode != Some(true));
            let told = usage.gpu.readings.as_ref().is_ok_and(|told| told.energy.is_some());
            if told && usage.parts.iter().all(|part| part.hold.utilization.is_some()) {
                time.energy.get_or_insert(Joules(0.0));
            }
        }
        for part in parts(turn.now).filter(|part| part.hold.utilization.is_some()) {
            if let Some(pair) = pair(&part) {
                self.busy.entry(pair).or_default();
            }
        }
    }

    /// The time since the last turn is what that turn saw it to be; how busy it was, this one tells.
    fn integrate(&mut self, before: &Snapshot, turn: &Turn) {
        // A suspended host or a late cycle must not be counted as hours of use.
        let since = turn.now.at.boot.saturating_sub(before.at.boot);
        let passed = since.min(turn.setup.rules.interval * 2);
        let busy = busy_shares(turn.now);
        for part in parts(before) {
            let Some(pair) = pair(&part) else { continue };
            if let Some((share, time)) = busy.get(&pair).zip(self.busy.get_mut(&pair)) {
                *time += passed.mul_f64(*share);
            }
        }
        let usages = usages(before);
        self.share_energy(before, turn, &usages, &busy, passed.div_duration_f64(since));
        let mut held = BTreeSet::new();
        for usage in usages.iter().filter(|usage| usage.is_held(turn.setup)) {
            held.insert(&usage.gpu.uuid);
            let tally = self.users.entry(usage.user.clone()).or_default();
            tally.cards.entry(usage.gpu.uuid.clone()).or_default().add(usage, before, &busy, passed);
        }
        for uuid in held {
            *self.held.entry(uuid.clone()).or_default() += passed;
        }
    }

    /// What each card took since the last turn is its users'. Whoever never held it has no counters.
    fn share_energy(
        &mut self,
        before: &Snapshot,
        turn: &Turn,
        usages: &[Usage],
        busy: &BTreeMap<Pair, f64>,
        counted: f64,
    ) {
        for gpu in before.cards() {
            let here: Vec<&Usage> = usages.iter().filter(|usage| usage.gpu.uuid == gpu.uuid).collect();
            let Some(taken) = energy::taken(gpu, turn.now, counted) else { continue };
            for (user, share) in energy::shares(&here, busy, turn).into_iter().flatten() {
                let time = self.users.get_mut(user).and_then(|tally| tally.cards.get_mut(&gpu.uuid));
                if let Some(time) = time {
                    time.energy.get_or_insert(Joules(0.0)).0 += taken * share;
                }
            }
        }
    }

    fn count_episodes(&mut self, turn: &Turn) {
        let users: BTreeSet<Arc<str>> = self.people.values().map(User::label).collect();
        for rule in &turn.setup.rules.rules {
            // A card is nobody's fault.
            let nobody = (rule.about == crate::policy::rule::About::Gpu).then(Arc::default);
            for user in users.iter().cloned().chain(nobody) {
                self.episodes.entry((rule.name.clone(), user)).or_default();
            }
        }
        for judgement in turn.judgements.iter().filter(|judgement| judgement.began) {
            let user = judgement.owner.as_ref().map_or_else(Arc::default, |owner| owner.name.clone());
            *self.episodes.entry((judgement.key.rule.clone(), user)).or_default() += 1;
        }
    }

    fn count_actions(&mut self, turn: &Turn) {
        for rule in &turn.setup.rules.rules {
            for rung in rule.then.rungs() {
                for outcome in COUNTED {
                    self.actions.entry((rule.name.clone(), rung.action.as_str(), outcome)).or_default();
                }
            }
        }
        for guard in Guard::ALL {
            self.refusals.entry(guard).or_default();
        }
        for outcome in turn.outcomes.iter().filter(|outcome| outcome.result != Fate::Pending) {
            self.remember(outcome, turn.now.at.wall);
            if matches!(outcome.deed, Deed::AllClear { .. }) {
                continue;
            }
            let key = (outcome.key.rule.clone(), outcome.deed.as_str(), outcome.result.as_str());
            *self.actions.entry(key).or_default() += 1;
            if let Fate::Refused(guard) = outcome.result {
                *self.refusals.entry(guard).or_default() += 1;
            }
        }
    }

    /// What is refused every cycle is one line with a number, and does not push out the rest.
    fn remember(&mut self, outcome: &Outcome, at: Timestamp) {
        let mut recent = Recent::of(outcome, at);
        if let Some(place) = self.recent.iter().position(|other| other.repeats(&recent)) {
            recent.times += self.recent.remove(place).map_or(0, |other| other.times);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
    }

    /// The largest first; one that is shown stays until it exits, so that none flickers at the edge.
    fn choose_shown(&mut self, turn: &Turn) {
        let cap = turn.setup.processes;
        self.shown.retain(|pair| is_there(turn.now, pair));
        while self.shown.len() > cap {
            self.shown.pop_last();
        }
        let mut others: Vec<_> = parts(turn.now)
            .filter_map(|part| Some((part.hold.memory, pair(&part)?)))
            .filter(|(_, pair)| !self.shown.contains(pair))
            .collect();
        others.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let room = cap.saturating_sub(self.shown.len());
        self.shown.extend(others.into_iter().take(room).map(|(_, pair)| pair));
    }

    fn forget(&mut self, turn: &Turn) {
        let now = turn.now;
        self.busy.retain(|pair, _| is_there(now, pair));
        self.users.retain(|_, tally| now.at.boot.saturating_sub(tally.last_hold) < USERS_STAY);
        let users = &self.users;
        self.people.retain(|uid, user| now.users.contains_key(uid) || users.contains_key(&user.label()));
        let present: BTreeSet<Arc<str>> = self.people.values().map(User::label).collect();
        let configured: BTreeSet<&RuleName> = turn.setup.rules.rules.iter().map(|rule| &rule.name).collect();
        self.episodes.retain(|(rule, user), _| {
            configured.contains(rule) && (user.is_empty() || present.contains(user) || users.contains_key(user))
        });
        self.actions.retain(|(rule, ..), _| configured.contains(rule));
    }
}

impl UserTally {
    fn add(&mut self, other: Self) {
        self.last_hold = self.last_hold.max(other.last_hold);
        for (uuid, time) in other.cards {
            let own = self.cards.entry(uuid).or_default();
            own.index = time.index;
            own.held += time.held;
            own.busy += time.busy;
            own.idle += time.idle;
            own.told |= time.told;
            own.unassigned += time.unassigned;
            own.energy = match (own.energy, time.energy) {
                (Some(own), Some(other)) => Some(Joules(own.0 + other.0)),
                (own, other) => own.or(other),
            };
        }
    }
}

impl Usage<'_> {
    /// Whether it is known to be more than the footprint.
    pub fn is_held(&self, setup: &Setup) -> bool {
        self.memory().exceeds(setup.rules.footprint).is_true()
    }
}

impl CardTime {
    fn add(&mut self, usage: &Usage, before: &Snapshot, busy: &BTreeMap<Pair, f64>, passed: Duration) {
        self.index = usage.gpu.index;
        self.held += passed;
        let shares = usage.parts.iter().map(|part| pair(part).and_then(|pair| busy.get(&pair).copied()));
        let (known, unknown): (Vec<_>, Vec<_>) = shares.partition(Option::is_some);
        // The busiest of his processes kept the card busy; it was idle only if none is unknown.
        let busiest = known.into_iter().flatten().reduce(f64::max);
        if let Some(busiest) = busiest {
            let busy = passed.mul_f64(busiest);
            self.busy += busy;
            if unknown.is_empty() {
                self.idle += passed.saturating_sub(busy);
            }
        }
        if usage.unassigned(before) == Truth::True {
            self.unassigned += passed;
        }
    }
}

impl Recent {
    fn of(outcome: &Outcome, at: Timestamp) -> Self {
        Self {
            at,
            key: outcome.key.clone(),
            rung: outcome.rung,
            action: outcome.deed.as_str(),
            user: outcome.owner.as_ref().map(|owner| owner.name.clone()),
            target: outcome.target,
            result: outcome.result.clone(),
            times: 1,
        }
    }

    fn repeats(&self, other: &Self) -> bool {
        let of = |recent: &Self| (recent.rung, recent.action, recent.target);
        self.key == other.key && of(self) == of(other) && self.result == other.result
    }
}

fn pair(part: &Part) -> Option<Pair> {
    Some((part.process?.id, part.gpu.uuid.clone()))
}

/// The share of time since the last turn in which each process ran kernels, where the driver told.
fn busy_shares(now: &Snapshot) -> BTreeMap<Pair, f64> {
    parts(now).filter_map(|part| Some((pair(&part)?, share(part.hold.utilization)?))).collect()
}

/// A list that cannot be read proves nobody's end.
fn is_there(now: &Snapshot, (process, uuid): &Pair) -> bool {
    let Ok(gpus) = &now.gpus else { return true };
    let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == *uuid) else { return false };
    listed(gpu).is_none_or(|holds| holds.iter().any(|hold| hold.process == Ok(*process)))
}
