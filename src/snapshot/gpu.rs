//! A card: what names it, and what becomes of it in a cycle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Reading;
use super::hold::{Hold, Place};
use super::readings::{Activity, Memory, Readings};

/// The identity of a card (`nvmlDeviceGetUUID`). Index, minor number and CUDA ordinal are names of it, never this. Every
/// process and every ladder on it bears it: they share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub Arc<str>);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One card in one cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    pub uuid: GpuUuid,
    /// As NVML numbered it when it was first seen; a lost card keeps its number.
    pub index: u32,
    /// Whether the index still means this card: it is the one that was pinned to it. Otherwise what people mean by the
    /// number is not known.
    pub pinned: bool,
    pub identity: Arc<Identity>,
    /// What the card told of itself, or why it could not.
    pub readings: Result<Readings, GpuFault>,
    /// Who is on it, merged over the compute and graphics lists; a fault where a list could not be read.
    pub holds: Reading<Vec<Hold>>,
    /// The MIG instances that it is cut into; empty outside MIG.
    pub instances: Vec<Instance>,
    /// Xid errors since the agent listens, by code. A lost card keeps them.
    pub xids: BTreeMap<u64, Xid>,
}

impl Gpu {
    /// A card of which nothing is known but its name.
    pub fn named(uuid: GpuUuid, index: u32) -> Self {
        Self {
            uuid,
            index,
            pinned: true,
            identity: Arc::default(),
            readings: Ok(Readings::default()),
            holds: Ok(Vec::new()),
            instances: Vec::new(),
            xids: BTreeMap::new(),
        }
    }
}

/// A compute instance of a card under MIG (`nvmlDeviceGetMigDeviceHandleByIndex`).
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// `MIG-…`
    pub uuid: String,
    pub place: Place,
    /// `1g.10gb`, where the driver names it.
    pub profile: Option<String>,
    /// Of its GPU instance, which its compute instances share.
    pub memory: Memory,
    /// Likewise.
    pub activity: Activity,
}

/// How often an Xid error came, and when the last time (`nvmlEventTypeXidCriticalError`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    pub count: u64,
    pub last: Timestamp,
}

/// Why a card no longer answers (`NVML_ERROR_GPU_IS_LOST` and the like); the label `reason` of `gpu_fault_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFault(pub &'static str);

/// What names a card and stays while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub model: Option<Arc<str>>,
    /// `00000000:17:00.0` (`nvmlPciInfo_t.busId`).
    pub pci_bus_id: Option<String>,
    pub minor: Option<u32>,
    pub serial: Option<String>,
    pub brand: Option<String>,
    pub architecture: Option<String>,
    /// `9.0` (`nvmlDeviceGetCudaComputeCapability`).
    pub compute_capability: Option<String>,
    pub vbios: Option<String>,
    pub inforom: Option<String>,
    pub board_part: Option<String>,
    /// The one of the host that is near (`nvmlDeviceGetMemoryAffinity`), where that is a single one. On coherent platforms
    /// the memory of the card is a node as well (`nvmlDeviceGetNumaNodeId`): that is not it.
    pub numa_node: Option<u32>,
}
