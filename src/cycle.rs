//! One turn: what was seen, decided and done, and the running tallies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::enforce::Fuse;
use crate::policy::{ChannelName, Judgement, Outcome, RuleName, Rules, Standing, State};
use crate::snapshot::{Pause, ProcessId, Snapshot, Truth};

pub mod usage;
pub mod tallies;
pub mod agent;
#[cfg(test)]
pub mod fixture;

pub use agent::Agent;
pub use tallies::{Recent, Tallies, Turn};

/// Everything that is published of one turn of the loop.
#[derive(Debug, Clone)]
pub struct Cycle {
    pub seen: Snapshot,
    pub standings: Standings,
    pub outcomes: Vec<Outcome>,
    /// Settled with those outcomes.
    pub state: Arc<State>,
    /// Processes that are judged by no rule.
    pub exempt: BTreeSet<ProcessId>,
    /// Why nothing is signalled now, as far as anybody can tell.
    pub pauses: BTreeSet<Pause>,
    pub blown: BTreeSet<Fuse>,
    /// Processes that got a KILL and are still there long after.
    pub unkillable: usize,
    /// Messages since the agent started, by channel and by what became of them.
    pub notifications: BTreeMap<(ChannelName, &'static str), u64>,
    pub tallies: Arc<Tallies>,
    /// How long the turn took.
    pub took: Duration,
    pub setup: Arc<Setup>,
    pub reload: Reload,
    pub agent: Agent,
}

/// How the subjects of all rules stand.
#[derive(Debug, Clone, Default)]
pub struct Standings {
    /// How many stand how, by rule.
    pub subjects: BTreeMap<(RuleName, Standing), u64>,
    /// Those under which a rule is broken.
    pub violations: Vec<Judgement>,
}

impl Standings {
    /// Of what is clear only the number is kept: nobody asks why a rule is not broken, and there is a judgement for every
    /// rule and process.
    ///
    /// Who could not be judged in this cycle, because the driver or a list of it was silent, stands as in the one before:
    /// nothing has become known of him.
    pub fn of(mut judgements: Vec<Judgement>, state: &State, before: Option<&Self>) -> Self {
        let is_unknown = |key| state.episodes.get(key).is_some_and(|episode| episode.last.truth == Truth::Unknown);
        let unseen: Vec<Judgement> = before
            .iter()
            .flat_map(|before| &before.violations)
            .filter(|before| is_unknown(&before.key) && judgements.iter().all(|now| now.key != before.key))
            .map(|before| Judgement { truth: Truth::Unknown, began: false, ..before.clone() })
            .collect();
        judgements.extend(unseen);
        let mut subjects = BTreeMap::new();
        judgements.retain(|judgement| {
            let standing = state.standing(&judgement.key, judgement.truth);
            *subjects.entry((judgement.key.rule.clone(), standing)).or_default() += 1;
            standing.is_violation()
        });
        judgements.shrink_to_fit();
        Self { subjects, violations: judgements }
    }
}

impl Cycle {
    pub fn rules(&self) -> &Rules {
        &self.setup.rules
    }

    pub fn standing(&self, judgement: &Judgement) -> Standing {
        self.state.standing(&judgement.key, judgement.truth)
    }
}

/// What stays from one reload to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    pub host: String,
    pub build: Build,
    pub rules: Rules,
    /// Every channel that a rule could name, `terminal` among them.
    pub channels: BTreeSet<ChannelName>,
    /// The groups that the configuration names, by rights, rules or exemptions.
    pub groups: BTreeSet<String>,
    /// How many pairs of process and card get series of their own.
    pub processes: usize,
    /// Two nodes with one number judge alike.
    pub hash: u64,
}

/// Which program this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    pub version: &'static str,
    /// The commit, where the build knew it.
    pub revision: Option<&'static str>,
    pub rustc_version: Option<&'static str>,
}

impl Build {
    pub const THIS: Self = Self {
        version: env!("CARGO_PKG_VERSION"),
        revision: option_env!("GPUWARDEN_REVISION"),
        rustc_version: option_env!("GPUWARDEN_RUSTC_VERSION"),
    };
}

/// How the configuration was last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// Why the last attempt failed, if it did; then what was read before is in force.
    pub failure: Option<String>,
    pub last_success: Timestamp,
}
