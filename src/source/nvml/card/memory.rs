//! The memory of a card.

use std::collections::BTreeSet;

use super::raw;
use super::{Asked, Trouble};
use crate::snapshot::readings::Memory;
use crate::units::Bytes;

/// The memory of the card, or of the MIG instance, that is asked.
pub fn memory(refused: &mut BTreeSet<(&'static str, u32)>, asked: &mut Asked) -> Result<Memory, Trouble> {
    const SECOND: (&str, u32) = ("nvmlDeviceGetMemoryInfo_v2", 0);
    let memory = match asked.value(refused, SECOND, |d| d.memory_info())? {
        Some(memory) => (memory.total, memory.used, memory.free, Some(Bytes(memory.reserved))),
        // Drivers before R510 have the first version only, in which what is reserved counts as used.
        None if refused.contains(&SECOND) => {
            let nvml = asked.nvml;
            match asked.value(refused, ("nvmlDeviceGetMemoryInfo", 0), |d| raw::memory_before_r510(nvml, d))? {
                Some(memory) => (memory.total, memory.used, memory.free, None),
                None => return Ok(Memory::default()),
            }
        }
        None => return Ok(Memory::default()),
    };
    // Cards that share the host's memory answer 0 in all fields rather than NOT_SUPPORTED.
    Ok(match memory {
        (0, ..) => Memory::default(),
        (total, used, free, reserved) => {
            Memory { total: Some(Bytes(total)), used: Some(Bytes(used)), free: Some(Bytes(free)), reserved }
        }
    })
}
