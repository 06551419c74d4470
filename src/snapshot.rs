//! The node at one moment: plain values, no handles. What `policy` and `source` both speak of.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;

use crate::units::Uid;

pub mod truth;
pub mod gpu;
pub mod readings;
pub mod hold;
pub mod topology;
pub mod selector;
pub mod process;
pub mod user;
pub mod assignment;

pub use assignment::{Answer, AssignmentSource, Assignments, Cards, Grantee, Right, Validity};
pub use gpu::{Gpu, GpuFault, GpuUuid};
pub use hold::{Hold, Kind, Unseen};
pub use process::{Confidence, Process, ProcessId, Protection};
pub use readings::Readings;
pub use selector::GpuSelector;
pub use topology::Topology;
pub use truth::Truth;
pub use user::{Group, Lookup, User};

/// Wall and boot time, read together. Calendars go by the one, lengths of time by the other, which neither steps nor
/// stands still in suspend (`CLOCK_REALTIME`, `CLOCK_BOOTTIME`; clock_gettime(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub wall: Timestamp,
    pub boot: Duration,
}

/// What a source said, or why it said nothing.
pub type Reading<T> = Result<T, Fault>;

/// Why a source said nothing, in a sentence for the admin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}: {what}")]
pub struct Fault {
    pub source_name: Source,
    pub what: String,
}

impl Fault {
    pub fn new(source_name: Source, what: impl Into<String>) -> Self {
        Self { source_name, what: what.into() }
    }
}

/// Where facts come from; the label `source` of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Nvml,
    Procfs,
    Directory,
    Fixed,
    Files,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Procfs => "procfs",
            Self::Directory => "directory",
            Self::Fixed => "fixed",
            Self::Files => "files",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Everything that one cycle saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub at: Moment,
    /// `/proc/sys/kernel/random/boot_id`: process ids and boot times of another boot mean nothing in this one.
    pub boot_id: String,
    pub driver: Reading<Driver>,
    /// By index. A lost card stays in the list, with its fault.
    pub gpus: Reading<Vec<Gpu>>,
    /// The processes that hold a GPU and could be read in `/proc`.
    pub processes: BTreeMap<ProcessId, Process>,
    /// The owners of those processes, and whom rights name.
    pub users: BTreeMap<Uid, User>,
    pub assignments: Assignments,
    /// How each enabled source fared.
    pub health: Vec<Health>,
    /// Why nothing may be signalled now, as far as the sources can tell.
    pub pauses: Vec<Pause>,
    /// Cards on the PCI bus or seen since boot, where that can be told.
    pub gpus_expected: Option<u32>,
    /// How the cards are wired; empty where the driver does not tell.
    pub topology: Arc<Topology>,
    /// NVML calls that failed since the agent started, by call and error; NOT_SUPPORTED and NOT_FOUND are answers.
    pub nvml_errors: BTreeMap<(&'static str, &'static str), u64>,
}

impl Snapshot {
    /// The cards that the driver showed, or none where it showed none.
    pub fn cards(&self) -> &[Gpu] {
        self.gpus.as_deref().unwrap_or(&[])
    }

    pub fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.cards().iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// Each identified process on each card.
    pub fn holds(&self) -> impl Iterator<Item = (&Gpu, &Hold, &Process)> {
        self.cards().iter().flat_map(move |gpu| {
            gpu.holds.iter().flatten().filter_map(move |hold| {
                let process = self.processes.get(hold.process.as_ref().ok()?)?;
                Some((gpu, hold, process))
            })
        })
    }
}

/// Versions that the driver gave (`nvmlSystemGetDriverVersion`, `…NVMLVersion`, `…CudaDriverVersion_v2`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    pub driver_version: Option<String>,
    pub nvml_version: Option<String>,
    pub cuda_version: Option<String>,
}

/// How a source fared in this cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    pub source: Source,
    /// Why the source does not speak, where it does not.
    pub fault: Option<String>,
    /// When it last answered.
    pub last_success: Option<Timestamp>,
    /// How long the last answer took.
    pub took: Option<Duration>,
    /// Failures since the agent started.
    pub errors: u64,
    /// Names in it that nobody knows now, each once; `None` for a source that has no names.
    pub unresolved: Option<Vec<String>>,
}

/// Why nothing may be signalled now; the label `reason` of `gpuwarden_enforcement_paused`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pause {
    /// Too soon after start, a reload that changed something, resume, a clock jump or the return of a source.
    StartDelay,
    /// The driver did not answer in this cycle.
    DriverStale,
    /// The driver listed impossible processes.
    SuspectList,
    /// The driver's pids are not of the agent's PID namespace.
    PidNamespace,
    /// `/proc` hides other people's processes from the agent.
    Hidepid,
    /// Under WSL the driver cannot tell processes apart.
    Wsl,
    /// The audit log or the state could not be written.
    Audit,
    /// A fuse has blown and was not reset.
    Fuse,
}

impl Pause {
    pub const ALL: [Self; 8] = [
        Self::StartDelay,
        Self::DriverStale,
        Self::SuspectList,
        Self::PidNamespace,
        Self::Hidepid,
        Self::Wsl,
        Self::Audit,
        Self::Fuse,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::StartDelay => "start_delay",
            Self::DriverStale => "driver_stale",
            Self::SuspectList => "suspect_list",
            Self::PidNamespace => "pid_namespace",
            Self::Hidepid => "hidepid",
            Self::Wsl => "wsl",
            Self::Audit => "audit",
            Self::Fuse => "fuse",
        }
    }

    /// The same for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::StartDelay => "the agent has just started, or what it sees has just changed (limits.start_delay)",
            Self::DriverStale => "the driver does not answer",
            Self::SuspectList => "the driver lists processes that cannot be",
            Self::PidNamespace => "the driver's pids are not of the agent's PID namespace",
            Self::Hidepid => "/proc hides other people's processes from the agent",
            Self::Wsl => "under WSL the driver cannot tell processes apart",
            Self::Audit => "the audit log or the state cannot be written",
            Self::Fuse => "a fuse has blown (gpuwarden reset fuses)",
        }
    }
}
