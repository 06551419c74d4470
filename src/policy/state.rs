//! How far each ladder has come: a value that survives a restart of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::conflict::Due;
use super::rule::{ChannelName, Mode, RuleName, Signal};
use super::subject::{EpisodeKey, Subject};
use super::{Deed, Fate, Guard, Outcome, Person, Verdict};
use crate::snapshot::{Gpu, Hold, ProcessId, Snapshot, Truth, Unseen};
use crate::units::Uid;

/// All ladders that are not at rest. Boot times in it mean nothing in another boot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    #[serde(with = "as_list")]
    pub episodes: BTreeMap<EpisodeKey, Episode>,
}

/// One subject under one rule, since the rule was first seen to be broken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episode {
    /// What the rule meant when this began ([`super::Rule::meaning`]).
    pub meaning: u64,
    pub mode: Mode,
    /// Whether the owner had a right on the card, when that was last known; only under a rule that asks for it.
    pub right: Option<bool>,
    pub owner: Option<Person>,
    pub began: Timestamp,
    /// Time in which the condition was seen to be true: the ladder's own clock.
    pub clock: Duration,
    /// The clock at which each rung was climbed.
    pub climbed: Vec<Duration>,
    pub last: Sighting,
    /// How long the condition has been seen to be false.
    pub false_for: Duration,
    /// Boot time since which it has been unknown on end.
    pub unknown_since: Option<Duration>,
    #[serde(with = "as_pairs")]
    pub warned: BTreeMap<Uid, Warned>,
    /// The last warning reached nobody.
    pub unreachable: bool,
    #[serde(with = "as_pairs")]
    pub targets: BTreeMap<ProcessId, Progress>,
    /// Signals that were decided and may or may not have gone out.
    pub tried: Vec<Tried>,
}

/// What the last cycle saw, and when (boot time).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sighting {
    pub at: Duration,
    pub truth: Truth,
}

/// A warning that was delivered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warned {
    pub name: Arc<str>,
    /// Boot time by which it had been delivered.
    pub at: Duration,
    pub channels: Vec<ChannelName>,
}

/// How far one target has come on this ladder.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The last act that was done to it.
    pub rung: usize,
    /// The ladder's clock at that act.
    pub clock: Duration,
    /// Boot time by which it had been done: later than the cycle began, where the driver or the disk was slow.
    pub at: Duration,
    /// Whether this ladder did it, and did not only rehearse it or share what another did.
    pub sent: bool,
    /// Nobody knows whether that act was done, so no further one follows.
    pub lost: bool,
    /// Boot time since which it has been on no card.
    #[serde(default)]
    pub gone_since: Option<Duration>,
}

/// What was written down before it was carried out, by the ladder itself or by another that had the same due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tried {
    Signal { rung: usize, signal: Signal, targets: Vec<ProcessId> },
}

impl Tried {
    /// The rung that this outcome of another ladder climbs here.
    pub(super) fn shares(&self, outcome: &Outcome) -> Option<usize> {
        let Self::Signal { rung, signal, targets } = self;
        let same = outcome.deed == Deed::Signal(*signal) && outcome.target.is_some_and(|hit| targets.contains(&hit));
        same.then_some(*rung)
    }
}

/// How a subject stands; the label `state` of `violations` and `rule_subjects`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    Clear,
    Unknown,
    /// The rule is broken, and nobody has been told yet.
    Pending,
    Warned,
    /// A process was signalled, or would have been.
    Acted,
    /// The rule is broken, and no channel reaches its owner.
    Unreachable,
}

impl Standing {
    pub const ALL: [Self; 6] =
        [Self::Clear, Self::Unknown, Self::Pending, Self::Warned, Self::Acted, Self::Unreachable];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Unknown => "unknown",
            Self::Pending => "pending",
            Self::Warned => "warned",
            Self::Acted => "acted",
            Self::Unreachable => "unreachable",
        }
    }

    /// Whether it is a violation; an episode goes on while its condition is unknown.
    pub fn is_violation(self) -> bool {
        !matches!(self, Self::Clear | Self::Unknown)
    }
}

impl State {
    /// How long after another this is, if nothing has happened since but that time passed: conditions were seen to be as
    /// they were. `None` if anything else is different.
    pub fn is_later_than(&self, before: &Self) -> Option<Duration> {
        let pairs = || self.episodes.iter().zip(&before.episodes);
        let same = self.episodes.len() == before.episodes.len()
            && pairs().all(|((key, now), (before, then))| key == before && now.differs_in_time_only(then));
        let latest = |state: &Self| state.episodes.values().map(|episode| episode.last.at).max();
        latest(self).zip(latest(before)).filter(|_| same).map(|(now, then)| now.saturating_sub(then))
    }

    /// How the subject of this key stands, given what was just seen of it.
    pub fn standing(&self, key: &EpisodeKey, truth: Truth) -> Standing {
        match (truth, self.episodes.get(key)) {
            (Truth::False, _) => Standing::Clear,
            (Truth::Unknown, None) => Standing::Unknown,
            (Truth::True, None) => Standing::Pending,
            (_, Some(episode)) if !episode.targets.is_empty() => Standing::Acted,
            (_, Some(episode)) if episode.unreachable => Standing::Unreachable,
            (_, Some(episode)) if !episode.warned.is_empty() => Standing::Warned,
            (_, Some(_)) => Standing::Pending,
        }
    }

    pub(super) fn note_as_tried(&mut self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            let Deed::Signal(signal) = verdict.deed else { continue };
            let targets: Vec<_> = verdict
                .targets
                .iter()
                .filter(|target| target.objection.is_none())
                .map(|target| target.process)
                .collect();
            if !verdict.mode.carries_out(true) || targets.is_empty() {
                continue;
            }
            if let Some(episode) = self.episodes.get_mut(&verdict.key) {
                episode.tried.push(Tried::Signal { rung: verdict.rung, signal, targets });
            }
        }
    }

    pub(super) fn note_as_shared(&mut self, merged: Vec<Due>) {
        for Due { key, rung, signal, process } in merged {
            if let Some(episode) = self.episodes.get_mut(&key) {
                episode.tried.push(Tried::Signal { rung, signal, targets: vec![process] });
            }
        }
    }
}

impl Episode {
    /// Whether only the clocks of the two differ.
    fn differs_in_time_only(&self, other: &Self) -> bool {
        // All fields by name: whoever adds one has to decide.
        let Self {
            meaning,
            mode,
            right,
            owner,
            began,
            clock: _,
            climbed,
            last: Sighting { at: _, truth },
            false_for: _,
            unknown_since,
            warned,
            unreachable,
            targets,
            tried,
        } = self;
        let facts = (*meaning, *mode, *right, *began, *truth, *unknown_since, *unreachable);
        let others = (other.meaning, other.mode, other.right, other.began, other.last.truth);
        facts == (others.0, others.1, others.2, others.3, others.4, other.unknown_since, other.unreachable)
            && (owner, climbed, warned, targets, tried)
                == (&other.owner, &other.climbed, &other.warned, &other.targets, &other.tried)
    }

    /// What came of one verdict of this episode.
    pub(super) fn settle(&mut self, outcome: &Outcome, done_by: Duration) {
        if let Deed::Warn { to, channels } = &outcome.deed {
            self.unreachable = outcome.result == Fate::Refused(Guard::Unreachable);
            if outcome.result.climbs() {
                self.warned.extend(to.iter().map(|person| {
                    (person.uid, Warned { name: person.name.clone(), at: done_by, channels: channels.clone() })
                }));
            }
        }
        self.climb(outcome.rung, outcome, outcome.result == Fate::Done, done_by);
    }

    /// What came of a signal of another ladder that was due on this one too, as this rung.
    pub(super) fn share(&mut self, rung: usize, outcome: &Outcome, done_by: Duration) {
        self.climb(rung, outcome, false, done_by);
    }

    fn climb(&mut self, rung: usize, outcome: &Outcome, sent: bool, done_by: Duration) {
        if !outcome.result.climbs() {
            return;
        }
        if let Some(target) = outcome.target {
            self.targets
                .insert(target, Progress { rung, clock: self.clock, at: done_by, sent, lost: false, gone_since: None });
        }
        if rung == self.climbed.len() {
            self.climbed.push(self.clock);
        }
    }

    /// A signal to this target may or may not have gone out.
    pub(super) fn lose(&mut self, target: ProcessId, rung: usize) {
        let (clock, at) = (self.clock, self.last.at);
        self.targets.insert(target, Progress { rung, clock, at, sent: false, lost: true, gone_since: None });
    }

    /// A target that has been on no card for this long has left the ladder: a user's may stand for weeks, with thousands
    /// of processes that come and go.
    pub(super) fn forget_the_gone(&mut self, now: &Snapshot, after: Duration) {
        self.targets.retain(|target, progress| {
            progress.gone_since = is_gone(*target, now).then(|| progress.gone_since.unwrap_or(now.at.boot));
            progress.gone_since.is_none_or(|since| now.at.boot.saturating_sub(since) < after)
        });
    }
}

/// Whether the driver shows it on no card. A list that cannot be read, and a pid that is hidden, prove nobody's end; on a
/// lost card nobody computes.
fn is_gone(process: ProcessId, now: &Snapshot) -> bool {
    let hidden = Err(Unseen::Hidden);
    let is_away = |hold: &Hold| hold.process != Ok(process) && (hold.pid != process.pid || hold.process != hidden);
    let is_free = |gpu: &Gpu| gpu.holds.as_ref().map_or(gpu.readings.is_err(), |holds| holds.iter().all(is_away));
    !now.processes.contains_key(&process) && now.gpus.as_ref().is_ok_and(|gpus| gpus.iter().all(is_free))
}

/// JSON objects take only text as keys, so maps with other keys are lists.
mod as_list {
    use super::*;
    use serde::{Deserializer, Serializer};

    #[derive(Serialize)]
    struct Written<'a> {
        rule: &'a RuleName,
        subject: &'a Subject,
        episode: &'a Episode,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Read {
        rule: RuleName,
        subject: Subject,
        episode: Episode,
    }

    pub fn serialize<S: Serializer>(
        episodes: &BTreeMap<EpisodeKey, Episode>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(episodes.iter().map(|(key, episode)| Written {
            rule: &key.rule,
            subject: &key.subject,
            episode,
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<EpisodeKey, Episode>, D::Error> {
        let list = Vec::<Read>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|read| (EpisodeKey { rule: read.rule, subject: read.subject }, read.episode)).collect())
    }
}

mod as_pairs {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Vec::<(K, V)>::deserialize(deserializer).map(|pairs| pairs.into_iter().collect())
    }
}
