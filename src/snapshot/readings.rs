//! What a card told of itself in a cycle.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::units::{Bytes, Celsius, Hertz, Joules, Percent, Watts};

/// What a card told of itself. A value that it did not give is `None`; a list without entries was not given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Readings {
    pub utilization: Option<Percent>,
    pub memory_controller_utilization: Option<Percent>,
    pub encoder_utilization: Option<Percent>,
    pub decoder_utilization: Option<Percent>,
    pub jpeg_utilization: Option<Percent>,
    /// Of the optical flow accelerator.
    pub ofa_utilization: Option<Percent>,
    /// How long kernels ran and did not, since the agent first looked (`nvmlDeviceGetSamples`).
    pub worked: Option<Worked>,
    pub activity: Activity,
    pub memory: Memory,
    pub temperature: Option<Celsius>,
    pub memory_temperature: Option<Celsius>,
    /// Degrees left to slowdown (`nvmlDeviceGetMarginTemperature`); below 0 it is slowed down.
    pub temperature_margin: Option<Celsius>,
    /// By the label `threshold`: slowdown, shutdown, gpu_max, memory_max.
    pub temperature_thresholds: Vec<(&'static str, Celsius)>,
    pub power: Option<Watts>,
    /// By the label `limit`: enforced, default, min, max.
    pub power_limits: Vec<(&'static str, Watts)>,
    /// Since the driver was loaded (`nvmlDeviceGetTotalEnergyConsumption`).
    pub energy: Option<Joules>,
    /// By the label `clock`: graphics, sm, memory, video.
    pub clocks: Vec<(&'static str, Hertz)>,
    pub clocks_max: Vec<(&'static str, Hertz)>,
    /// 0 (fastest) to 15 (`nvmlDeviceGetPerformanceState`).
    pub performance_state: Option<u32>,
    /// What can hold the clocks down, by the label `reason`, and whether it does now.
    pub clock_events: Vec<(&'static str, bool)>,
    /// How long it did since the driver was loaded, of those that the driver times.
    pub clock_event_times: Vec<(&'static str, Duration)>,
    /// Each fan by its number, with its speed as a share of the nominal one.
    pub fans: Vec<(u32, Percent)>,
    pub pcie: Pcie,
    /// Bytes a second, by the label `direction`, over the 20 ms that each takes to measure.
    pub pcie_throughput: Vec<(&'static str, Bytes)>,
    pub nvlink: NvLink,
    pub ecc: Ecc,
    /// What the driver advises, as NVML numbers it (`nvmlDeviceGpuRecoveryAction_t`).
    pub recovery_action: Option<u32>,
    pub persistence_mode: Option<bool>,
    /// As NVML numbers it (`nvmlComputeMode_t`).
    pub compute_mode: Option<u32>,
    pub mig_mode: Option<bool>,
}

/// Time that the driver's own samples cover; what they do not is in neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Worked {
    pub busy: Duration,
    pub idle: Duration,
}

/// Shares of time in which parts of a card were active since the last cycle (GPM, `nvmlGpmMetricsGet`), by the part that
/// their families are named after: graphics, sm, tensor, dram, fp64, fp32, fp16, integer; and of the warps that an SM can
/// hold those that it held.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activity {
    pub active: BTreeMap<&'static str, Percent>,
    pub sm_occupancy: Option<Percent>,
}

/// The memory of a card. `used` does not include `reserved` (`nvmlDeviceGetMemoryInfo_v2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    pub total: Option<Bytes>,
    pub used: Option<Bytes>,
    pub free: Option<Bytes>,
    pub reserved: Option<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pcie {
    pub generation: Option<u32>,
    pub generation_max: Option<u32>,
    pub width: Option<u32>,
    pub width_max: Option<u32>,
    /// Packets that were sent again since the driver was loaded.
    pub replays: Option<u64>,
    /// By the label `direction` (rx, tx), since the agent first looked. Where the driver's counter has 32 bits, at least so
    /// many: what is a multiple of 4 GiB between two looks is not seen.
    pub bytes: Vec<(&'static str, Bytes)>,
}

/// The NVLinks of a card.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NvLink {
    /// Each link by its number, and whether it is up.
    pub up: Vec<(u32, bool)>,
    /// Of all links, by the label `type` (replay, recovery, crc), since the driver was loaded.
    pub errors: Vec<(&'static str, u64)>,
    /// Of all links, by the label `direction` (rx, tx), since the driver was loaded.
    pub bytes: Vec<(&'static str, Bytes)>,
    /// How far the card is in joining the NVSwitch fabric (`NVML_GPU_FABRIC_STATE_…`).
    pub fabric_state: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ecc {
    pub mode: Option<bool>,
    /// By the labels `type` (corrected, uncorrected) and `location` (dram, sram), since the driver was loaded.
    pub errors: BTreeMap<(&'static str, &'static str), u64>,
    /// Likewise, in the life of the card.
    pub lifetime_errors: BTreeMap<(&'static str, &'static str), u64>,
    /// Whether the SRAM has had more errors than the driver takes to be sound.
    pub sram_threshold_exceeded: Option<bool>,
    /// Pages of memory that are no longer used, by the label `cause` (corrected, uncorrected).
    pub retired_pages: Vec<(&'static str, u64)>,
    /// Whether pages will be retired when the card is reset.
    pub retired_pages_pending: Option<bool>,
    /// Rows of memory that others stand in for, by the label `cause`.
    pub remapped_rows: Vec<(&'static str, u64)>,
    pub row_remap_pending: Option<bool>,
    pub row_remap_failure: Option<bool>,
    /// Banks of memory, by the label `availability` of their spare rows.
    pub row_remap_banks: Vec<(&'static str, u64)>,
}
