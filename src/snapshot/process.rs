//! A process, whoever it belongs to, and what is known of it beyond the card.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Uid};

/// The kernel's clock ticks a second as `/proc` shows them: `USER_HZ`, 100 on every architecture that NVIDIA supports
/// (proc_pid_stat(5), sysconf(3)).
pub const TICKS_PER_SECOND: u64 = 100;

/// A process: its pid together with its start time, for pids are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks from boot to its start (`starttime`, field 22 of `/proc/<pid>/stat`).
    pub started: u64,
}

impl ProcessId {
    /// Boot time at which it started.
    pub fn start(self) -> Duration {
        Duration::from_millis(self.started.saturating_mul(1000 / TICKS_PER_SECOND))
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.pid, self.started)
    }
}

/// A process that holds a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub id: ProcessId,
    /// The real uid, and with it the owner; `None` where `/proc/<pid>/status` could not be read.
    pub uid: Option<Uid>,
    /// How sure it is that this uid is the person behind it.
    pub confidence: Confidence,
    /// The executable's name as first seen, broken UTF-8 replaced.
    pub command: Arc<str>,
    /// The path of the executable, where it could be read.
    pub executable: Option<Arc<str>>,
    /// The command line with secrets masked; never exported, shown to its owner only.
    pub command_line: Option<Arc<str>>,
    /// Why no rule may ever hit it. `None` where `/proc` did not tell enough to know.
    pub protection: Option<Protection>,
    /// Resident memory on the host (`VmRSS`).
    pub host_memory: Option<Bytes>,
    /// User and system time since it started.
    pub host_cpu: Option<Duration>,
}

/// Whether a process is one that no rule may ever hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// An ordinary process.
    None,
    /// Pid 1.
    Init,
    /// A kernel thread.
    Kernel,
    /// The agent or one of its ancestors.
    Agent,
    /// A session manager, display server, container runtime, scheduler or driver daemon whose executable root owns.
    Infrastructure,
    /// A client of an MPS server, whose end can take the others with it.
    MpsClient,
}

/// How sure it is who the human owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    Low,
    Medium,
    High,
}

impl Confidence {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}
