//! (rules, snapshot, state) -> (state, verdicts); (state, outcomes) -> state.
//!
//! A rule has subjects; [`judge`] tells for each whether the rule is broken, in three values; [`ladder`] turns what was
//! seen, cycle after cycle, into rungs; [`step`] does both for all rules and [`settle`] writes down what came of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{Confidence, GpuUuid, Moment, ProcessId, Snapshot, Truth};
use crate::units::{Bytes, Uid};

pub mod rule;
pub mod condition;
pub mod check;
pub mod subject;
pub mod state;
mod facts;
mod judge;
mod ladder;
mod conflict;
#[cfg(test)]
pub mod forged;
#[cfg(test)]
mod tests;

pub use facts::Evidence;
pub use rule::{Action, ChannelName, Mode, Rule, RuleName, Rules, Signal};
pub use state::{Episode, Standing, State};
pub use subject::{EpisodeKey, Subject};

/// What one cycle came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// To be written before the verdicts are carried out, and to be settled with what came of them.
    pub state: State,
    pub verdicts: Vec<Verdict>,
    /// What every rule says of every subject that it has now.
    pub judgements: Vec<Judgement>,
    /// The processes that no rule judges.
    pub exempt: BTreeSet<ProcessId>,
    /// The ladders that were left: the condition was false for long enough, or what it meant has changed.
    pub ended: Vec<EpisodeKey>,
}

/// What a rule says of one subject in this cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub key: EpisodeKey,
    pub truth: Truth,
    /// The accountable owner, where the subject has one.
    pub owner: Option<Person>,
    /// The card, where the subject is on one.
    pub gpu: Option<Arc<Card>>,
    pub evidence: Vec<Evidence>,
    /// An episode that this cycle began.
    pub began: bool,
}

/// A decision that something be done. Only this module makes one; whether it is carried out or rehearsed, `enforce`
/// decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    key: EpisodeKey,
    description: String,
    mode: Mode,
    rung: usize,
    deed: Deed,
    owner: Option<Person>,
    gpu: Option<Arc<Card>>,
    targets: Vec<Target>,
    evidence: Vec<Evidence>,
    since: Timestamp,
    next: Option<Next>,
}

impl Verdict {
    /// The episode that it belongs to.
    pub fn key(&self) -> &EpisodeKey {
        &self.key
    }

    /// The rule's sentence.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The mode in effect for its rule.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The place on the ladder, from 0.
    pub fn rung(&self) -> usize {
        self.rung
    }

    pub fn deed(&self) -> &Deed {
        &self.deed
    }

    pub fn owner(&self) -> Option<&Person> {
        self.owner.as_ref()
    }

    pub fn gpu(&self) -> Option<&Card> {
        self.gpu.as_deref()
    }

    /// The processes to be hit; of a message, the ones that it is about.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    pub fn evidence(&self) -> &[Evidence] {
        &self.evidence
    }

    /// When the condition was first seen to be true.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// The rung after this one.
    pub fn next(&self) -> Option<&Next> {
        self.next.as_ref()
    }
}

/// What a verdict wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// Tell these people, the subject's owner, over each channel until one delivers.
    Warn {
        to: Vec<Person>,
        channels: Vec<ChannelName>,
    },
    /// Tell the admins.
    Alert {
        channels: Vec<ChannelName>,
    },
    /// Tell whom the right on the card names.
    Inform {
        to: Vec<Person>,
        channels: Vec<ChannelName>,
    },
    /// Tell who was warned that all is well.
    AllClear {
        to: Vec<Person>,
        channels: Vec<ChannelName>,
    },
    Signal(Signal),
}

impl Deed {
    /// The label `action`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Warn { .. } => "warn",
            Self::Alert { .. } => "alert",
            Self::Inform { .. } => "inform",
            Self::AllClear { .. } => "all_clear",
            Self::Signal(signal) => signal.as_str(),
        }
    }

    pub fn is_act(&self) -> bool {
        matches!(self, Self::Signal(_))
    }
}

/// Somebody with an account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Person {
    pub uid: Uid,
    /// The name, or the uid in digits.
    pub name: Arc<str>,
}

/// A card as people name it, and as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Card {
    pub uuid: GpuUuid,
    pub index: u32,
    pub model: Option<Arc<str>>,
}

/// A process that a verdict is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub process: ProcessId,
    pub uid: Option<Uid>,
    pub confidence: Confidence,
    /// The cards on which it offends.
    pub cards: Vec<Card>,
    pub command: Arc<str>,
    /// With secrets masked; shown to its owner only.
    pub command_line: Option<Arc<str>>,
    /// On those cards together; `None` where a part is unknown.
    pub memory: Option<Bytes>,
    /// Why policy forbids the act on this process.
    pub objection: Option<Guard>,
    /// How long the act has been due.
    pub overdue: Duration,
}

/// What the ladder holds in store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    pub action: Action,
    pub after: Duration,
}

/// Why an act was not done; the label `reason` of `refusals_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// The process is one that no rule may hit.
    Protected,
    /// An exemption covers it, or could not be judged.
    Exempt,
    /// It is no longer the process that was seen.
    Identity,
    /// Its owner is not certain.
    Confidence,
    /// Its owner was not warned by this ladder.
    Unwarned,
    /// No channel reaches its owner.
    Unreachable,
    /// It was killed and is still there.
    Unkillable,
    /// The driver no longer says that it holds the card, or says nothing.
    Stale,
    /// A fuse forbids it.
    Fuse,
    /// Nothing may be signalled now.
    Paused,
}

impl Guard {
    pub const ALL: [Self; 10] = [
        Self::Protected,
        Self::Exempt,
        Self::Identity,
        Self::Confidence,
        Self::Unwarned,
        Self::Unreachable,
        Self::Unkillable,
        Self::Stale,
        Self::Fuse,
        Self::Paused,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protected => "protected",
            Self::Exempt => "exempt",
            Self::Identity => "identity",
            Self::Confidence => "confidence",
            Self::Unwarned => "unwarned",
            Self::Unreachable => "unreachable",
            Self::Unkillable => "unkillable",
            Self::Stale => "stale",
            Self::Fuse => "fuse",
            Self::Paused => "paused",
        }
    }
}

/// What came of a verdict: of a message as a whole, of an act for each target.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub key: EpisodeKey,
    pub rung: usize,
    pub deed: Deed,
    pub owner: Option<Person>,
    pub target: Option<ProcessId>,
    pub result: Fate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It was done: delivered by one channel, or signalled.
    Done,
    /// It would have been done, had the mode allowed it.
    Rehearsed,
    /// The answer comes in a later cycle.
    Pending,
    /// A guard forbade it. Tried again.
    Refused(Guard),
    /// The target is no longer there.
    Gone,
    /// It could not be done, for this reason. Tried again.
    Failed(String),
}

impl Fate {
    /// Whether a rung is climbed by it.
    pub fn climbs(&self) -> bool {
        matches!(self, Self::Done | Self::Rehearsed)
    }

    /// The label `outcome` of `actions_total`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Rehearsed => "rehearsed",
            Self::Pending => "pending",
            Self::Refused(_) => "refused",
            Self::Gone => "gone",
            Self::Failed(_) => "failed",
        }
    }
}

/// Judges every subject of every rule, and moves each along its ladder.
pub fn step(rules: &Rules, now: &Snapshot, before: &State) -> Step {
    let mut state = State::default();
    let mut verdicts = Vec::new();
    let mut judgements = Vec::new();
    let seen: Vec<_> = facts::seen(now).collect();
    let cards = judge::cards(now);
    for rule in &rules.rules {
        let meaning = rule.meaning();
        for judged in judge::subjects(rule, rules, now, &seen, &cards, before) {
            let key = EpisodeKey { rule: rule.name.clone(), subject: judged.subject.clone() };
            let was = before.episodes.get(&key);
            let advanced = ladder::advance(rule, meaning, rules, now.at, &judged, was);
            verdicts.extend(advanced.verdicts);
            if let Some(mut episode) = advanced.episode {
                episode.forget_the_gone(now, rule.clear_after.0);
                state.episodes.insert(key.clone(), episode);
            }
            if judged.present {
                judgements.push(Judgement {
                    key,
                    truth: judged.truth,
                    owner: judged.owner,
                    gpu: judged.gpu,
                    evidence: judged.evidence,
                    began: advanced.began,
                });
            }
        }
    }
    let merged = conflict::one_ladder_a_process(&state, &mut verdicts, rules);
    state.note_as_tried(&verdicts);
    state.note_as_shared(merged);
    let ended = before.episodes.keys().filter(|key| !state.episodes.contains_key(key)).cloned().collect();
    Step { state, verdicts, judgements, exempt: judge::exempt_processes(rules, now, &seen), ended }
}

/// Writes down what came of the verdicts. `after` is a moment by which they had all been carried out: warning and
/// signal count from then, so that nobody has less time than he was promised. A signal counts for every ladder that had
/// it due.
pub fn settle(mut next: State, outcomes: &[Outcome], after: Moment) -> State {
    let trying = next.episodes.iter_mut().filter(|(_, episode)| !episode.tried.is_empty());
    let tried: Vec<_> = trying.map(|(key, episode)| (key.clone(), std::mem::take(&mut episode.tried))).collect();
    for outcome in outcomes {
        if let Some(episode) = next.episodes.get_mut(&outcome.key) {
            episode.settle(outcome, after.boot);
        }
        let others = tried.iter().filter(|(key, _)| outcome.target.is_some() && *key != outcome.key);
        for (key, tried) in others {
            let shared = tried.iter().find_map(|tried| tried.shares(outcome)).zip(next.episodes.get_mut(key));
            if let Some((rung, episode)) = shared {
                episode.share(rung, outcome, after.boot);
            }
        }
    }
    next
}

/// The state of an agent that was ended between trying and settling: a warning is tried again; of a signal nobody knows
/// whether it went out, so its target gets no further one from this ladder. Those targets are returned as failed.
pub fn resume(mut state: State) -> (State, Vec<Outcome>) {
    let mut lost = Vec::new();
    for (key, episode) in &mut state.episodes {
        for tried in std::mem::take(&mut episode.tried) {
            let state::Tried::Signal { rung, signal, targets } = tried;
            for target in targets {
                episode.lose(target, rung);
                lost.push(Outcome {
                    key: key.clone(),
                    rung,
                    deed: Deed::Signal(signal),
                    owner: None,
                    target: Some(target),
                    result: Fate::Failed(
                        "the agent was ended while it acted; whether the signal went out is not known".into(),
                    ),
                });
            }
        }
    }
    (state, lost)
}
