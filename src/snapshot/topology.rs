//! How the cards of a node are wired to each other and to the host. It does not change while the driver is loaded.

use std::collections::BTreeMap;

use super::GpuUuid;

/// What the driver told of the wires when it was loaded, and when a card joined.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    pub cards: BTreeMap<GpuUuid, Wiring>,
    /// Each pair once, the smaller UUID first.
    pub pairs: BTreeMap<(GpuUuid, GpuUuid), Relation>,
}

/// A card and the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wiring {
    /// The NUMA nodes of the host that are near (`nvmlDeviceGetMemoryAffinity`); without entries where the driver does not
    /// tell.
    pub numa_nodes: Vec<u32>,
    /// Active NVLinks that end at an NVSwitch; `None` where the other ends are not all told.
    pub switch_links: Option<u32>,
}

/// Two cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relation {
    /// What PCIe traffic between them passes, by the names of `nvmlGpuTopologyLevel_t`: internal, single, multiple,
    /// hostbridge, node, system.
    pub pcie: Option<&'static str>,
    /// Active NVLinks from the one to the other; `None` where neither of them tells of all its links.
    pub nvlinks: Option<u32>,
}
