//! A simulated node as it is written down; see the crate's page for the format.

use crate::units::{Bytes, Clock, Energy, Load, Percent, Power, Span, Version};
use crate::value::{Error, Value};
use nvml_wrapper_sys::bindings::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::{fs, io};

/// Structs whose fields may all be left out, and are then not written either.
macro_rules! written_down {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$field_doc])* #[serde(skip_serializing_if = "left_out")] pub $field: $type,)*
        }
    )*};
}

fn left_out<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Names for NVML's numbers.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $number:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($variant,)*
        }

        impl From<$name> for u32 {
            fn from(name: $name) -> u32 {
                match name {
                    $($name::$variant => $number,)*
                }
            }
        }
    )*};
}

/// What happens to calls, by the name of the function; `nvmlDeviceGet*` stands for all that begin so, `*` for all.
pub type Calls<T> = BTreeMap<String, T>;

written_down! {
    /// A node.
    Scenario {
        driver: DriverVersion,
        /// The error of `nvmlInit`, if it is to fail.
        init: Init,
        /// How long calls take.
        latency: Calls<Latency>,
        /// Calls that fail, whatever the card.
        errors: Calls<Error>,
        /// What holds for each GPU that says nothing else.
        defaults: Gpu,
        gpus: Vec<Gpu>,
        /// How near cards are to each other on the PCI bus, where their NUMA nodes do not tell.
        topology: Vec<Ancestor>,
        /// How many GPM samples the library has room for, if not for any number.
        gpm_samples: Option<usize>,
        /// How many samples of utilisation are kept of each kind: 120 if left out.
        kept_samples: Option<u64>,
        /// The stamps of these samples are so much earlier than the moments: the clock was set back.
        samples_behind: Option<Span>,
    }

    /// `nvmlDeviceGetTopologyCommonAncestor`.
    Ancestor {
        /// Their places in the list.
        gpus: [usize; 2],
        level: Value<Level>,
    }

    /// `nvmlSystemGetDriverVersion`, `nvmlSystemGetCudaDriverVersion`, `nvmlSystemGetNVMLVersion`.
    DriverVersion {
        /// 570.124.06 if left out.
        version: Option<String>,
        /// 12.8 if left out.
        cuda: Option<Version>,
        /// The major version of CUDA before that of the driver, if left out.
        nvml: Option<String>,
        /// `…RunningProcesses_v3` writes entries of 32 bytes where the caller has room for 24: the fault of some
        /// drivers of the 535 series.
        oversized_process_entries: bool,
        /// Pids are held to be those of the host, as a real driver's are: `nvmlSimulated` answers 0.
        host_pids: bool,
    }

    /// A card.
    Gpu {
        /// This many cards like this one; of them, what identifies a card is to be left out.
        count: Option<usize>,
        name: Option<String>,
        /// Made from the index if left out.
        uuid: Option<String>,
        /// `domain:bus:device.0`, made from the index if left out.
        pci: Option<String>,
        /// The device in the upper, the vendor in the lower 16 bits.
        pci_device_id: Option<u32>,
        pci_subsystem_id: Option<u32>,
        /// The index if left out.
        minor: Option<u32>,
        serial: Value<String>,
        brand: Value<Brand>,
        architecture: Value<Architecture>,
        compute_capability: Value<Version>,
        cores: Value<u32>,
        vbios: Value<String>,
        /// `nvmlDeviceGetInforomImageVersion`.
        inforom: Value<String>,
        board_part: Value<String>,
        board_id: Value<u32>,
        module_id: Value<u32>,
        /// The NUMA node of the host that is near.
        numa_node: Value<u32>,
        /// The NUMA node that the memory of the card itself is, on coherent platforms.
        memory_node: Value<u32>,
        memory: Value<Memory>,
        bar1: Value<Memory>,
        utilization: Value<Load>,
        /// 0 if left out, as NVML answers it along with `utilization`.
        memory_utilization: Value<Load>,
        encoder_utilization: Value<Load>,
        decoder_utilization: Value<Load>,
        jpeg_utilization: Value<Load>,
        ofa_utilization: Value<Load>,
        /// Of the GPU, in °C.
        temperature: Value<u32>,
        memory_temperature: Value<u32>,
        /// Degrees left to slowdown.
        temperature_margin: Value<i32>,
        temperature_thresholds: TemperatureThresholds,
        power: Value<Power>,
        power_limits: PowerLimits,
        power_management: Value<bool>,
        energy: Value<EnergyCounter>,
        clocks: Clocks,
        max_clocks: Clocks,
        application_clocks: Clocks,
        /// 0 (fastest) to 15.
        performance_state: Value<u32>,
        clock_events: Value<Vec<ClockEvent>>,
        /// How long each has held the clocks down since the driver was loaded.
        clock_event_times: BTreeMap<ClockEvent, Span>,
        fans: Vec<Value<Percent>>,
        pcie: Pcie,
        nvlink: NvLink,
        fabric: Value<Fabric>,
        ecc: Ecc,
        retired_pages: Value<RetiredPages>,
        remapped_rows: Value<RemappedRows>,
        row_remap_banks: Value<RowRemapBanks>,
        recovery_action: Value<u32>,
        persistence: Value<bool>,
        accounting: Value<bool>,
        compute_mode: Value<ComputeMode>,
        display_mode: Value<bool>,
        display_active: Value<bool>,
        virtualization: Value<Virtualization>,
        mig: Value<Mig>,
        /// Activity by GPM metric, in percent; see `nvmlGpmMetricId_t` for the numbers.
        gpm: Value<BTreeMap<u32, f64>>,
        /// Xid errors since the driver was loaded. Those added while a program waits reach it as events.
        xids: Vec<u64>,
        /// Field values by their id, beyond those that follow from the rest.
        fields: BTreeMap<u32, Value<u64>>,
        /// It has fallen off the bus: each call answers `GPU_IS_LOST`.
        lost: bool,
        latency: Calls<Latency>,
        errors: Calls<Error>,
        processes: Vec<Process>,
    }

    Memory {
        total: Bytes,
        /// By the driver, for itself.
        reserved: Bytes,
        /// Without what is reserved; the sum of the processes if left out.
        used: Option<Bytes>,
    }

    /// In °C.
    TemperatureThresholds {
        shutdown: Value<u32>,
        slowdown: Value<u32>,
        memory_max: Value<u32>,
        gpu_max: Value<u32>,
    }

    PowerLimits {
        enforced: Value<Power>,
        /// As set by the admin; `enforced` if left out.
        requested: Value<Power>,
        default: Value<Power>,
        min: Value<Power>,
        max: Value<Power>,
    }

    Clocks {
        graphics: Value<Clock>,
        sm: Value<Clock>,
        memory: Value<Clock>,
        video: Value<Clock>,
    }

    Pcie {
        generation: Value<u32>,
        max_generation: Value<u32>,
        /// Of the card alone, whatever its slot.
        gpu_max_generation: Value<u32>,
        width: Value<u32>,
        max_width: Value<u32>,
        /// In MB/s.
        link_speed: Value<u32>,
        replays: Value<u32>,
        /// In a second.
        tx: Value<Bytes>,
        rx: Value<Bytes>,
        /// Since the driver was loaded (field values 197 and 198).
        tx_total: Value<Bytes>,
        rx_total: Value<Bytes>,
    }

    NvLink {
        /// Whether each link is up.
        links: Vec<Value<bool>>,
        /// What is at the other end of each.
        remotes: Vec<Remote>,
        version: Value<u32>,
        /// Each counter is that of each link.
        replay_errors: Value<u64>,
        recovery_errors: Value<u64>,
        crc_errors: Value<u64>,
        tx_total: Value<Bytes>,
        rx_total: Value<Bytes>,
    }

    Fabric {
        /// `NVML_GPU_FABRIC_STATE_…`: 1 not started, 2 in progress, 3 completed.
        state: u8,
        /// The error of the registration with the fabric manager.
        status: Option<Error>,
        clique: u32,
        health_mask: u32,
    }

    Ecc {
        mode: Value<bool>,
        /// `mode` if left out.
        pending: Value<bool>,
        default: Value<bool>,
        /// Since the driver was loaded.
        volatile: EccCounts,
        /// In the life of the card.
        aggregate: EccCounts,
        sram_threshold_exceeded: Value<bool>,
    }

    EccCounts {
        corrected: EccLocations,
        uncorrected: EccLocations,
    }

    EccLocations {
        dram: Value<u64>,
        sram: Value<u64>,
        l1: Value<u64>,
        l2: Value<u64>,
        registers: Value<u64>,
        texture: Value<u64>,
    }

    RetiredPages {
        /// Addresses of pages that had several single-bit errors.
        single_bit: Vec<u64>,
        double_bit: Vec<u64>,
        pending: bool,
    }

    RemappedRows {
        corrected: u32,
        uncorrected: u32,
        pending: bool,
        failure: bool,
    }

    /// Memory banks by how many spare rows they have left.
    RowRemapBanks {
        max: u32,
        high: u32,
        partial: u32,
        low: u32,
        none: u32,
    }

    Mig {
        enabled: bool,
        /// `enabled` if left out.
        pending: Option<bool>,
        /// 7 if left out.
        max: Option<u32>,
        /// Whoever asks the card itself who is on it is not told of the instances, as if he had no privileges.
        hides_processes: bool,
        instances: Vec<MigInstance>,
    }

    /// A compute instance within its GPU instance.
    MigInstance {
        /// Made from that of the card and the ids if left out.
        uuid: Option<String>,
        /// Such as `1g.10gb`.
        profile: String,
        gpu_instance: u32,
        compute_instance: u32,
        memory: Value<Memory>,
        bar1: Value<Memory>,
        multiprocessors: u32,
        gpm: Value<BTreeMap<u32, f64>>,
        /// Each call about it answers `GPU_IS_LOST`, and the card goes on.
        lost: bool,
        /// Calls about it that fail, besides those about the card.
        errors: Calls<Error>,
    }

    /// Somebody who holds the card.
    Process {
        pid: u32,
        /// Its start time as in field 22 of `/proc/PID/stat`. Left out, whoever has the pid counts.
        started: Option<u64>,
        /// Unavailable if left out.
        memory: ProcessMemory,
        /// Of the SMs. A process without it makes no utilisation samples.
        utilization: Option<Load>,
        memory_utilization: Option<Load>,
        encoder_utilization: Option<Load>,
        decoder_utilization: Option<Load>,
        jpeg_utilization: Option<Load>,
        ofa_utilization: Option<Load>,
        kind: Kind,
        /// On a MIG instance.
        gpu_instance: Option<u32>,
        compute_instance: Option<u32>,
        /// It is listed even though `/proc` does not know it.
        always: bool,
    }
}

impl Scenario {
    /// Puts the scenario in the place of another, at once: no program that reads it meanwhile sees half of it.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_yaml::to_string(self).map_err(io::Error::other)?;
        let beside = path.with_extension("new");
        fs::write(&beside, text)?;
        fs::rename(beside, path)
    }
}

impl FromStr for Scenario {
    type Err = serde_yaml::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_yaml::from_str(text)
    }
}

/// `ok`, or the name of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Init {
    Failing(Error),
    #[default]
    #[serde(with = "word::ok")]
    Ok,
}

/// `hang`, or how long a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Latency {
    For(Span),
    /// Until the scenario says otherwise.
    #[serde(with = "word::hang")]
    Hang,
}

/// `integrate`, or what the counter shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EnergyCounter {
    At(Energy),
    /// The power over the time since this program first looked.
    #[serde(with = "word::integrate")]
    Integrate,
}

/// `unavailable`, or what a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ProcessMemory {
    Used(Bytes),
    /// `NVML_VALUE_NOT_AVAILABLE`.
    #[default]
    #[serde(with = "word::unavailable")]
    Unavailable,
}

/// The other end of an NVLink: the place of a card in the list, `switch`, or nothing that NVML could name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Remote {
    Card(usize),
    #[serde(with = "word::switch")]
    Switch,
    #[default]
    #[serde(with = "word::unknown")]
    Unknown,
}

/// In which lists a process stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    #[default]
    Compute,
    Graphics,
    Both,
    /// A client of an MPS server.
    Mps,
}

/// Words that stand for a variant in the place of a value.
mod word {
    macro_rules! words {
        ($($word:ident)*) => {$(
            pub mod $word {
                use serde::de::Error as _;
                use serde::{Deserialize, Deserializer, Serializer};

                pub fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.serialize_str(stringify!($word))
                }

                pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
                    match String::deserialize(deserializer)?.as_str() {
                        stringify!($word) => Ok(()),
                        other => Err(D::Error::custom(format!("`{other}` instead of `{}`", stringify!($word)))),
                    }
                }
            }
        )*};
    }

    words! { ok hang integrate unavailable switch unknown }
}

names! {
    /// `nvmlBrandType_t`.
    Brand {
        Unknown = nvmlBrandType_enum_NVML_BRAND_UNKNOWN,
        Quadro = nvmlBrandType_enum_NVML_BRAND_QUADRO,
        Tesla = nvmlBrandType_enum_NVML_BRAND_TESLA,
        Titan = nvmlBrandType_enum_NVML_BRAND_TITAN,
        QuadroRtx = nvmlBrandType_enum_NVML_BRAND_QUADRO_RTX,
        NvidiaRtx = nvmlBrandType_enum_NVML_BRAND_NVIDIA_RTX,
        Nvidia = nvmlBrandType_enum_NVML_BRAND_NVIDIA,
        Geforce = nvmlBrandType_enum_NVML_BRAND_GEFORCE,
        GeforceRtx = nvmlBrandType_enum_NVML_BRAND_GEFORCE_RTX,
        TitanRtx = nvmlBrandType_enum_NVML_BRAND_TITAN_RTX,
    }

    /// `nvmlGpuTopologyLevel_t`.
    Level {
        Internal = nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
        Single = nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
        Multiple = nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
        Hostbridge = nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
        Node = nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE,
        System = nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
    }

    /// `nvmlDeviceArchitecture_t`.
    Architecture {
        Maxwell = NVML_DEVICE_ARCH_MAXWELL,
        Pascal = NVML_DEVICE_ARCH_PASCAL,
        Volta = NVML_DEVICE_ARCH_VOLTA,
        Turing = NVML_DEVICE_ARCH_TURING,
        Ampere = NVML_DEVICE_ARCH_AMPERE,
        Ada = NVML_DEVICE_ARCH_ADA,
        Hopper = NVML_DEVICE_ARCH_HOPPER,
        Blackwell = NVML_DEVICE_ARCH_BLACKWELL,
    }

    /// `nvmlComputeMode_t`.
    ComputeMode {
        Default = nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
        ExclusiveThread = nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_THREAD,
        Prohibited = nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
        ExclusiveProcess = nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    }

    /// `nvmlGpuVirtualizationMode_t`.
    Virtualization {
        None = nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_NONE,
        Passthrough = nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH,
        Vgpu = nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_VGPU,
        HostVgpu = nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU,
        HostVsga = nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA,
    }
}

/// Why the clocks are held down, `nvmlClocksEventReason…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockEvent {
    GpuIdle,
    ApplicationsClocksSetting,
    SwPowerCap,
    HwSlowdown,
    SyncBoost,
    SwThermalSlowdown,
    HwThermalSlowdown,
    HwPowerBrakeSlowdown,
    DisplayClockSetting,
}

impl ClockEvent {
    pub const ALL: u64 = 0x1ff;

    pub fn bit(self) -> u64 {
        u64::from(match self {
            ClockEvent::GpuIdle => nvmlClocksEventReasonGpuIdle,
            ClockEvent::ApplicationsClocksSetting => nvmlClocksEventReasonApplicationsClocksSetting,
            ClockEvent::SwPowerCap => nvmlClocksEventReasonSwPowerCap,
            ClockEvent::HwSlowdown => nvmlClocksThrottleReasonHwSlowdown,
            ClockEvent::SyncBoost => nvmlClocksEventReasonSyncBoost,
            ClockEvent::SwThermalSlowdown => nvmlClocksEventReasonSwThermalSlowdown,
            ClockEvent::HwThermalSlowdown => nvmlClocksThrottleReasonHwThermalSlowdown,
            ClockEvent::HwPowerBrakeSlowdown => nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            ClockEvent::DisplayClockSetting => nvmlClocksEventReasonDisplayClockSetting,
        })
    }
}
