//! The memory of a card.

use super::raw;
use super::{Asked, Card, Trouble, ask};
use crate::snapshot::readings::Memory;
use crate::units::Bytes;

impl Card {
    pub fn memory(&mut self, asked: &mut Asked) -> Result<Memory, Trouble> {
        let memory = match ask!(self, asked, "nvmlDeviceGetMemoryInfo_v2", |d| d.memory_info()) {
            Some(memory) => (memory.total, memory.used, memory.free, Some(Bytes(memory.reserved))),
            // Drivers before R510 have the first version only, in which what is reserved counts as used.
            None if self.refused.contains(&("nvmlDeviceGetMemoryInfo_v2", 0)) => {
                let nvml = asked.nvml;
                match ask!(self, asked, "nvmlDeviceGetMemoryInfo", |d| raw::memory_before_r510(nvml, d)) {
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
}
