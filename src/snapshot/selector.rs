//! How people name cards.

use std::fmt;

use super::{Gpu, Truth};
use crate::units::{Malformed, Scalar, read_as_scalar};

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
    use std::sync::Arc;

    use super::*;
    use crate::snapshot::GpuUuid;
    use crate::snapshot::gpu::Identity;

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
        let gpu = |identity| Gpu { identity: Arc::new(identity), ..Gpu::named(GpuUuid("GPU-aa11".into()), 0) };
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
