//! One card as the driver tells of it. What it once refused it is not asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_ulong;
use std::sync::Arc;
use std::time::Instant;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::NVML_AFFINITY_SCOPE_NODE;

use super::Wanted;
use super::calls::Calls;
use super::error::{self, Failure};
use super::gpm::Gpm;
use super::instances::Known;
use super::meter::Meters;
use super::raw;
use super::work::Utilizations;
use crate::snapshot::gpu::{Identity, Xid};
use crate::snapshot::readings::{Ecc, NvLink, Pcie};
use crate::snapshot::{GpuFault, GpuUuid, Readings};
use crate::units::Percent;

mod fields;
mod memory;
mod temperature;
mod power;
mod clocks;
mod pcie;
mod nvlink;
mod ecc;

pub(super) use memory::memory;
use pcie::Odometers;

/// Enough for the 1024 NUMA nodes that Linux can have.
const NODE_WORDS: usize = 1024 / c_ulong::BITS as usize;

/// What stays of a card from one cycle to the next.
#[derive(Debug)]
pub struct Card {
    pub uuid: GpuUuid,
    /// As the driver numbered it when it was first seen.
    pub index: u32,
    pub identity: Arc<Identity>,
    /// Nothing of its identity is left to ask for: it told, or said that it cannot.
    identified: bool,
    /// Calls and their variants that this card does not have.
    pub(super) refused: BTreeSet<(&'static str, u32)>,
    constants: Constants,
    /// The newest time stamp among the samples of its processes, which the next question starts from, and when it came.
    pub(super) sampled: Option<(u64, Instant)>,
    pub(super) meters: Meters,
    /// How busy its engines were since the last look, as far as there are samples of all that time.
    pub(super) measured: Utilizations,
    /// Xid errors since the agent listens.
    pub xids: BTreeMap<u64, Xid>,
    pcie_bytes: Odometers,
    pub(super) mig: Option<bool>,
    /// Its MIG instances, by their UUIDs.
    pub(super) instances: BTreeMap<String, Known>,
    pub(super) gpm: Gpm,
}

/// What does not change while the driver is loaded, as far as the card has told it.
#[derive(Debug, Clone, Default)]
struct Constants {
    /// Whether the card is a part of one that is in another machine.
    vgpu: Option<bool>,
    /// In degrees Celsius.
    temperature_thresholds: [Option<u32>; 4],
    fans: Option<u32>,
    /// In milliwatts.
    power_default: Option<u32>,
    power_bounds: Option<(u32, u32)>,
    /// In MHz.
    clocks_max: [Option<u32>; 4],
    /// The bits of the reasons for which its clocks can be held down.
    clock_events: Option<u64>,
    pcie_generation_max: Option<u32>,
    pcie_width_max: Option<u32>,
    nvlinks: Option<u32>,
}

/// Why there is nothing further to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// This card no longer answers.
    Card(GpuFault),
    /// No card will.
    Driver(Failure),
}

/// A card to be asked.
pub struct Asked<'a> {
    pub nvml: &'a Nvml,
    pub device: &'a Device<'a>,
    pub calls: &'a mut Calls,
}

impl Asked<'_> {
    /// A value, or `None` where the card has none or could not tell this time.
    pub fn value<T>(
        &mut self,
        refused: &mut BTreeSet<(&'static str, u32)>,
        (call, variant): (&'static str, u32),
        ask: impl FnOnce(&Device) -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Trouble> {
        if refused.contains(&(call, variant)) {
            return Ok(None);
        }
        let device = self.device;
        match self.calls.make(call, || ask(device)) {
            Ok(value) => Ok(Some(value)),
            Err(failure @ NvmlError::GpuLost) => Err(Trouble::Card(error::fault(&failure))),
            Err(failure) if error::ends_the_session(&failure) => {
                Err(Trouble::Driver(Failure { call, error: error::name(&failure) }))
            }
            Err(failure) => {
                if error::is_refusal(&failure) || error::is_of_another_version(&failure) {
                    refused.insert((call, variant));
                }
                Ok(None)
            }
        }
    }
}

/// Asks for a value: `ask!(card, asked, "nvmlDeviceGetX", |device| …)`, with the variant where a call has several.
macro_rules! ask {
    ($card:expr, $asked:expr, $call:literal, $ask:expr) => {
        $asked.value(&mut $card.refused, ($call, 0), $ask)?
    };
    ($card:expr, $asked:expr, $call:literal, $variant:expr, $ask:expr) => {
        $asked.value(&mut $card.refused, ($call, $variant as u32), $ask)?
    };
}
pub(super) use ask;

/// A constant: asked for until it is known.
macro_rules! once {
    ($constant:expr, $ask:expr) => {{
        if $constant.is_none() {
            $constant = $ask;
        }
        $constant
    }};
}
use once;

impl Card {
    pub fn meet(uuid: GpuUuid, index: u32, asked: &mut Asked) -> Result<Self, Trouble> {
        let mut card = Self {
            uuid,
            index,
            identity: Arc::default(),
            identified: false,
            refused: BTreeSet::new(),
            constants: Constants::default(),
            sampled: None,
            meters: Meters::default(),
            measured: Utilizations::default(),
            xids: BTreeMap::new(),
            pcie_bytes: Odometers::default(),
            mig: None,
            instances: BTreeMap::new(),
            gpm: Gpm::default(),
        };
        card.identify(asked)?;
        Ok(card)
    }

    /// A card that was lost may have been reset: what it refused it may tell now, and its counters may begin anew.
    pub fn forget_the_time_before(&mut self, nvml: &Nvml, calls: &mut Calls) {
        self.gpm.free(nvml, calls);
        self.forget_the_session();
    }

    /// After the driver was loaded again nothing holds that it refused, or that it counted.
    pub fn forget_the_session(&mut self) {
        self.refused.clear();
        self.identified = false;
        self.constants = Constants::default();
        self.sampled = None;
        self.meters.forget_the_session();
        self.pcie_bytes.forget_the_session();
        self.instances.clear();
        // Its samples are another library's, which this one must not be asked to free.
        self.gpm = Gpm::default();
    }

    /// Asks who it is, and again for what it could not tell the last time.
    pub fn identify(&mut self, asked: &mut Asked) -> Result<(), Trouble> {
        if self.identified {
            return Ok(());
        }
        let mut identified = true;
        let identity = Arc::make_mut(&mut self.identity);
        macro_rules! learn {
            ($field:ident, $call:literal, $ask:expr, $read:expr) => {
                if identity.$field.is_none() {
                    let answer = ask!(self, asked, $call, $ask);
                    identified &= answer.is_some() || self.refused.contains(&($call, 0));
                    identity.$field = answer.and_then($read);
                }
            };
        }
        learn!(model, "nvmlDeviceGetName", |d| d.name(), |name| Some(name.into()));
        learn!(pci_bus_id, "nvmlDeviceGetPciInfo_v3", |d| d.pci_info(), |pci| Some(pci.bus_id));
        learn!(minor, "nvmlDeviceGetMinorNumber", |d| d.minor_number(), Some);
        learn!(serial, "nvmlDeviceGetSerial", |d| d.serial(), Some);
        learn!(brand, "nvmlDeviceGetBrand", |d| d.brand(), |brand| Some(format!("{brand:?}")));
        learn!(architecture, "nvmlDeviceGetArchitecture", |d| d.architecture(), |name| Some(name.to_string()));
        learn!(compute_capability, "nvmlDeviceGetCudaComputeCapability", |d| d.cuda_compute_capability(), |version| {
            Some(format!("{}.{}", version.major, version.minor))
        });
        learn!(vbios, "nvmlDeviceGetVbiosVersion", |d| d.vbios_version(), Some);
        learn!(inforom, "nvmlDeviceGetInforomImageVersion", |d| d.info_rom_image_version(), Some);
        learn!(board_part, "nvmlDeviceGetBoardPartNumber", |d| d.board_part_number(), Some);
        learn!(
            numa_node,
            "nvmlDeviceGetMemoryAffinity",
            |d| d.memory_affinity(NODE_WORDS, NVML_AFFINITY_SCOPE_NODE),
            |nodes| only_bit(&nodes)
        );
        self.identified = identified;
        Ok(())
    }

    pub fn read(&mut self, asked: &mut Asked, wanted: Wanted) -> Result<Readings, Trouble> {
        // Under MIG the driver has no utilisation of the card, and where it gives one it is always 0.
        self.measured = Utilizations::default();
        let utilizations = if self.mig != Some(true) { self.utilizations(asked)? } else { Utilizations::default() };
        let links = if wanted.nvlink { self.links(asked)? } else { 0 };
        let rows = wanted.ecc && self.may_tell_of_rows(asked)?;
        let numbers = self.numbers(asked, wanted, links, rows)?;
        Ok(Readings {
            utilization: utilizations.gpu,
            memory_controller_utilization: utilizations.memory_controller,
            encoder_utilization: utilizations.encoder,
            decoder_utilization: utilizations.decoder,
            jpeg_utilization: utilizations.jpeg,
            ofa_utilization: utilizations.optical_flow,
            worked: utilizations.worked,
            memory: memory(&mut self.refused, asked)?,
            temperature: self.temperature(asked)?,
            memory_temperature: temperature::of_memory(&numbers),
            temperature_margin: self.temperature_margin(asked)?,
            temperature_thresholds: self.temperature_thresholds(asked)?,
            fans: self.fans(asked)?,
            power: self.power(asked)?,
            power_limits: self.power_limits(asked)?,
            energy: self.energy(asked, &numbers)?,
            clocks: if wanted.clocks { self.clocks(asked)? } else { Vec::new() },
            clocks_max: if wanted.clocks { self.clocks_max(asked)? } else { Vec::new() },
            performance_state: if wanted.clocks { self.performance_state(asked)? } else { None },
            clock_events: if wanted.clocks { self.clock_events(asked)? } else { Vec::new() },
            clock_event_times: clocks::event_times(&numbers),
            pcie: if wanted.pcie { self.pcie(asked, &numbers)? } else { Pcie::default() },
            pcie_throughput: if wanted.pcie_throughput { self.pcie_throughput(asked)? } else { Vec::new() },
            nvlink: if wanted.nvlink { self.nvlink(asked, &numbers, links)? } else { NvLink::default() },
            ecc: if wanted.ecc { self.ecc(asked, &numbers, rows)? } else { Ecc::default() },
            recovery_action: numbers.of(fields::RECOVERY_ACTION),
            persistence_mode: ask!(self, asked, "nvmlDeviceGetPersistenceMode", |d| d.is_in_persistent_mode()),
            compute_mode: ask!(self, asked, "nvmlDeviceGetComputeMode", |d| d.compute_mode()).map(|mode| mode.as_c()),
            ..Readings::default()
        })
    }
}

/// A share of time; more than all of it is nonsense that drivers are known to tell.
pub(super) fn percent(share: u32) -> Option<Percent> {
    (share <= 100).then(|| Percent(f64::from(share)))
}

/// The number of the bit that is set, where it is the only one.
fn only_bit(words: &[c_ulong]) -> Option<u32> {
    let bits = words.iter().enumerate().flat_map(|(at, word)| {
        (0..c_ulong::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as u32 * c_ulong::BITS + bit)
    });
    let mut bits = bits.take(2);
    bits.next().filter(|_| bits.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_is_near_to_several_nodes_is_near_to_none() {
        for (words, node) in
            [(vec![1], Some(0)), (vec![0, 4], Some(66)), (vec![0, 0], None), (vec![2, 2], None), (vec![3], None)]
        {
            assert_eq!(only_bit(&words), node, "{words:?}");
        }
    }
}
