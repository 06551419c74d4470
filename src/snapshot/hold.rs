//! A process on a card.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ProcessId;
use crate::units::{Bytes, Percent};

/// One process on one card.
#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    pub pid: i32,
    /// Who that pid was when the list was read, or why that cannot be told.
    pub process: Result<ProcessId, Unseen>,
    pub kind: Kind,
    /// Memory on this card. The driver does not always tell.
    pub memory: Option<Bytes>,
    /// Share of time since the last cycle in which its kernels ran.
    pub utilization: Option<Percent>,
    /// Boot time at which the agent first saw it on this card.
    pub since: Duration,
    /// Its memory on each MIG instance that it is on; empty outside MIG.
    pub instances: BTreeMap<Place, Option<Bytes>>,
    /// Where `metrics.process_engines` asks for them.
    pub engines: Engines,
}

impl Hold {
    /// A process of which nothing is known but that it is there.
    pub fn new(pid: i32, process: Result<ProcessId, Unseen>, kind: Kind, since: Duration) -> Self {
        let (instances, engines) = Default::default();
        Self { pid, process, kind, memory: None, utilization: None, since, instances, engines }
    }
}

/// A MIG instance of a card: the GPU instance and the compute instance in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub gpu_instance: u32,
    /// `None` where the driver tells only the GPU instance.
    pub compute_instance: Option<u32>,
}

/// Shares of time since the last cycle in which a process used the other engines of a card.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Engines {
    pub memory_controller: Option<Percent>,
    pub encoder: Option<Percent>,
    pub decoder: Option<Percent>,
}

/// Why a pid of the driver's list has no process that could be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    /// It is no longer in `/proc`: dead, and not yet gone from the list.
    Exited,
    /// `/proc` hides it (hidepid) or lies in another PID namespace.
    Hidden,
}

/// What a process does on a card: which of the driver's lists it stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Compute,
    Graphics,
    Both,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Compute, Self::Graphics, Self::Both];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Graphics => "graphics",
            Self::Both => "both",
        }
    }
}
