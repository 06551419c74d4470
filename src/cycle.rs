//! One turn: what was seen, decided and done, and the running tallies.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::policy::{ChannelName, Judgement, Outcome, Rules, Standing, State};
use crate::snapshot::{Pause, ProcessId, Snapshot};

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
    pub judgements: Vec<Judgement>,
    pub outcomes: Vec<Outcome>,
    /// Settled with those outcomes.
    pub state: State,
    /// Processes that are judged by no rule.
    pub exempt: BTreeSet<ProcessId>,
    /// Why nothing is signalled now, as far as anybody can tell.
    pub pauses: BTreeSet<Pause>,
    pub blown: BTreeSet<Fuse>,
    pub tallies: Tallies,
    /// How long the turn took.
    pub took: Duration,
    pub setup: Arc<Setup>,
    pub reload: Reload,
    pub agent: Agent,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reload {
    /// Whether the last attempt succeeded.
    pub successful: bool,
    pub last_success: Timestamp,
}

/// A limit on acts that forbids all of them once it is exceeded; the label `fuse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fuse {
    ActsPerHour,
    ShareOfWorkloads,
}

impl Fuse {
    pub const ALL: [Self; 2] = [Self::ActsPerHour, Self::ShareOfWorkloads];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ActsPerHour => "acts_per_hour",
            Self::ShareOfWorkloads => "share_of_workloads",
        }
    }
}

/// What became of one message on one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub channel: ChannelName,
    pub fate: Fate,
}

/// The label `outcome` of `notifications_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    Delivered,
    /// The channel does not reach that person.
    Undeliverable,
    Failed,
}

impl Fate {
    pub const ALL: [Self; 3] = [Self::Delivered, Self::Undeliverable, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Undeliverable => "undeliverable",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Fuse {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
