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
    // Cards that share the host's memory answer 0 in all fields rather than NOT_SUPPORTED. More than all of it is nothing
    // that a card can have.
    let (total, used, free, reserved) = memory;
    if [0, u64::MAX].contains(&total) {
        return Ok(Memory::default());
    }
    let within = |bytes: &Bytes| bytes.0 <= total;
    let part = |bytes: u64| Some(Bytes(bytes)).filter(within);
    Ok(Memory { total: Some(Bytes(total)), used: part(used), free: part(free), reserved: reserved.filter(within) })
}
