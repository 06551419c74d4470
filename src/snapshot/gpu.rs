//! A card, what the driver told of it, and who holds memory on it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ProcessId, Reading, Truth};
use crate::units::{Bytes, Celsius, Hertz, Joules, Malformed, Percent, Scalar, Watts, read_as_scalar};

/// The identity of a card (`nvmlDeviceGetUUID`). Index, minor number and CUDA ordinal are names of it, never this.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

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
    pub identity: Identity,
    /// What the card told of itself, or why it could not.
    pub readings: Result<Readings, GpuFault>,
    /// Who is on it, merged over the compute and graphics lists; a fault where a list could not be read.
    pub holds: Reading<Vec<Hold>>,
}

/// Why a card no longer answers (`NVML_ERROR_GPU_IS_LOST` and the like); the label `reason` of `gpu_fault_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFault(pub &'static str);

/// What names a card and stays while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub model: Option<String>,
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
    pub numa_node: Option<u32>,
}

/// What a card told of itself. A value that it did not give is `None`; a list without entries was not given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Readings {
    pub utilization: Option<Percent>,
    pub memory_controller_utilization: Option<Percent>,
    pub encoder_utilization: Option<Percent>,
    pub decoder_utilization: Option<Percent>,
    pub memory: Memory,
    pub temperature: Option<Celsius>,
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
    /// Each fan's speed as a share of its maximum.
    pub fans: Vec<Percent>,
    pub pcie: Pcie,
    pub ecc: Ecc,
    pub persistence_mode: Option<bool>,
    /// As NVML numbers it (`nvmlComputeMode_t`).
    pub compute_mode: Option<u32>,
    pub mig_mode: Option<bool>,
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
    pub replays: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ecc {
    pub mode: Option<bool>,
    /// By the labels `type` (corrected, uncorrected) and `location` (dram, sram), since the driver was loaded.
    pub errors: BTreeMap<(&'static str, &'static str), u64>,
    /// Likewise, in the life of the card.
    pub lifetime_errors: BTreeMap<(&'static str, &'static str), u64>,
}

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

/// How people name cards: `3`, `4-7`, `GPU-8f3a12cd`, `00000000:17:00.0`, `model:*A100*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuSelector {
    /// First and last index.
    Indexes(u32, u32),
    /// A UUID or a prefix of one.
    Uuid(String),
    /// A PCI bus id, domain and case as NVML writes them.
    PciBusId(String),
    /// A pattern for the model's name.
    Model(String),
}

impl Scalar for GpuSelector {
    const EXPECTED: &'static str =
        "a GPU: an index (0), a range (4-7), a UUID or its beginning (GPU-8f3a12cd), a PCI bus id, or model:*A100*";

    fn from_number(number: u64) -> Result<Self, Malformed> {
        let index = u32::try_from(number).map_err(|_| Malformed::new(&number.to_string(), Self::EXPECTED))?;
        Ok(Self::Indexes(index, index))
    }

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed::new(text, Self::EXPECTED);
        let index = |text: &str| {
            let digits = text.chars().all(|c| c.is_ascii_digit());
            if digits { text.parse::<u32>().ok() } else { None }
        };
        if let Some(pattern) = text.strip_prefix("model:") {
            return if pattern.is_empty() { Err(malformed()) } else { Ok(Self::Model(pattern.to_owned())) };
        }
        if let Some(rest) = text.strip_prefix("GPU-") {
            let hex = rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
            return if rest.is_empty() || !hex { Err(malformed()) } else { Ok(Self::Uuid(text.to_owned())) };
        }
        if let Some(only) = index(text) {
            return Ok(Self::Indexes(only, only));
        }
        if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (index(first).ok_or_else(malformed)?, index(last).ok_or_else(malformed)?);
            return if first <= last { Ok(Self::Indexes(first, last)) } else { Err(malformed()) };
        }
        pci_bus_id(text).map(Self::PciBusId).ok_or_else(malformed)
    }
}

read_as_scalar!(GpuSelector);

impl GpuSelector {
    /// Whether this names the card with that index and identity; unknown where the driver did not tell what it is, or
    /// where the numbers have moved.
    pub fn matches(&self, gpu: &Gpu) -> Truth {
        match self {
            Self::Indexes(first, last) => Truth::from(gpu.pinned.then(|| (*first..=*last).contains(&gpu.index))),
            Self::Uuid(prefix) => Truth::from(gpu.uuid.0.starts_with(prefix.as_str())),
            Self::PciBusId(id) => {
                Truth::from(gpu.identity.pci_bus_id.as_deref().and_then(pci_bus_id).map(|place| place == *id))
            }
            Self::Model(pattern) => Truth::from(gpu.identity.model.as_deref().map(|model| wildcard(pattern, model))),
        }
    }
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Indexes(first, last) if first == last => write!(f, "{first}"),
            Self::Indexes(first, last) => write!(f, "{first}-{last}"),
            Self::Uuid(text) | Self::PciBusId(text) => f.write_str(text),
            Self::Model(pattern) => write!(f, "model:{pattern}"),
        }
    }
}

/// `[[dddd]dddd:]bb:dd.f` in NVML's spelling, `00000000:17:00.0`, whatever the length of the domain and the case.
fn pci_bus_id(text: &str) -> Option<String> {
    let (place, function) = text.rsplit_once('.')?;
    let parts: Vec<u32> = place.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
    let function = u32::from_str_radix(function, 16).ok()?;
    match parts[..] {
        [domain, bus, device] => Some(format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")),
        [bus, device] => Some(format!("{:08X}:{bus:02X}:{device:02X}.{function:X}", 0)),
        _ => None,
    }
}

/// Whether `text` is as `pattern` says, where `*` stands for any run of characters. Each piece between two stars is taken
/// where it first comes, so that a text of somebody's choice takes no longer than another.
pub fn wildcard(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text.strip_suffix(tail) else { return false };
    middle.split('*').all(|piece| match text.find(piece) {
        Some(at) => {
            text = &text[at + piece.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_named_in_five_ways() {
        let read = |text: &str| text.parse::<GpuSelector>().map(|selector| selector.to_string());
        assert_eq!(read("3"), Ok("3".into()));
        assert_eq!(read("4-7"), Ok("4-7".into()));
        assert_eq!(read("GPU-8f3a12cd"), Ok("GPU-8f3a12cd".into()));
        assert_eq!(read("0000:17:00.0"), Ok("00000000:17:00.0".into()));
        assert_eq!(read("ca:00.0"), Ok("00000000:CA:00.0".into()));
        assert_eq!(read("model:*A100*"), Ok("model:*A100*".into()));
        for wrong in ["", "7-4", "-1", "GPU-", "GPU-xyz", "all", "model:", "1.5", "+1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_driver_did_not_tell_names_no_card_and_excludes_none() {
        let gpu = |identity| Gpu {
            uuid: GpuUuid("GPU-aa11".into()),
            index: 0,
            pinned: true,
            identity,
            readings: Ok(Readings::default()),
            holds: Ok(Vec::new()),
        };
        let silent = gpu(Identity::default());
        for (selector, expected) in [
            ("model:*A100*", Truth::Unknown),
            ("model:*", Truth::Unknown),
            ("ca:00.0", Truth::Unknown),
            ("GPU-aa", Truth::True),
            ("1", Truth::False),
        ] {
            assert_eq!(selector.parse::<GpuSelector>().unwrap().matches(&silent), expected, "{selector}");
        }
        let other = gpu(Identity { model: Some("NVIDIA H100".into()), ..Identity::default() });
        assert_eq!("model:*A100*".parse::<GpuSelector>().unwrap().matches(&other), Truth::False);
        // While the numbers have moved, "0" may mean another card, and "1" this one.
        let moved = Gpu { pinned: false, ..other };
        for (selector, expected) in [("0", Truth::Unknown), ("1", Truth::Unknown), ("GPU-aa", Truth::True)] {
            assert_eq!(selector.parse::<GpuSelector>().unwrap().matches(&moved), expected, "{selector}");
        }
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("py*", "python3", true),
            ("*A100*", "NVIDIA A100-SXM4-80GB", true),
            ("a*b*c", "aXbXbXc", true),
            ("a", "ab", false),
            ("a*", "b", false),
            ("训*", "训练模型", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*bc", "abc", false),
            ("**a**", "ba", true),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "aab", false),
            ("a*b*c*d", "abcxcxd", true),
            ("a*b*c*d", "acbd", false),
        ] {
            assert_eq!(wildcard(pattern, text), fits, "{pattern} {text}");
        }
        // A path of the greatest length: one step for each of its characters, not one for each choice of five of them.
        assert!(!wildcard("*/*/*/*/*/xmrig", &"/".repeat(4096)));
    }
}
