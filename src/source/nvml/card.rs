//! One card as the driver tells of it. What it once refused it is not asked again.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, MemoryLocation, PerformanceState, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::Wanted;
use super::calls::Calls;
use super::error::{self, Failure};
use super::gpm::Gpm;
use super::instances::Known;
use super::raw;
use crate::snapshot::gpu::Identity;
use crate::snapshot::readings::{Ecc, Memory, Pcie};
use crate::snapshot::{GpuFault, GpuUuid, Readings};
use crate::units::{Bytes, Celsius, Hertz, Joules, Percent, Watts};

/// What stays of a card from one cycle to the next.
#[derive(Debug)]
pub struct Card {
    pub uuid: GpuUuid,
    /// As the driver numbered it when it was first seen.
    pub index: u32,
    pub identity: Identity,
    /// Calls and their variants that this card does not have.
    pub(super) refused: BTreeSet<(&'static str, u32)>,
    /// The newest time stamp among the samples of its processes, which the next question starts from.
    pub(super) sampled: Option<u64>,
    pub(super) mig: Option<bool>,
    /// Its MIG instances, by their UUIDs.
    pub(super) instances: BTreeMap<String, Known>,
    pub(super) gpm: Gpm,
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
                if error::is_refusal(&failure) {
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

impl Card {
    pub fn meet(uuid: GpuUuid, index: u32, asked: &mut Asked) -> Result<Self, Trouble> {
        let identity = Identity::default();
        let (refused, instances, gpm) = Default::default();
        let mut card = Self { uuid, index, identity, refused, sampled: None, mig: None, instances, gpm };
        card.identity = card.identify(asked)?;
        Ok(card)
    }

    /// After the driver was loaded again nothing holds that it refused, or that it counted.
    pub fn forget_the_session(&mut self) {
        self.refused.clear();
        self.sampled = None;
        self.instances.clear();
        // Its samples are another library's, which this one must not be asked to free.
        self.gpm = Gpm::default();
    }

    fn identify(&mut self, asked: &mut Asked) -> Result<Identity, Trouble> {
        let capability = ask!(self, asked, "nvmlDeviceGetCudaComputeCapability", |d| d.cuda_compute_capability());
        Ok(Identity {
            model: ask!(self, asked, "nvmlDeviceGetName", |d| d.name()),
            pci_bus_id: ask!(self, asked, "nvmlDeviceGetPciInfo_v3", |d| d.pci_info()).map(|pci| pci.bus_id),
            minor: ask!(self, asked, "nvmlDeviceGetMinorNumber", |d| d.minor_number()),
            serial: ask!(self, asked, "nvmlDeviceGetSerial", |d| d.serial()),
            brand: ask!(self, asked, "nvmlDeviceGetBrand", |d| d.brand()).map(|brand| format!("{brand:?}")),
            architecture: ask!(self, asked, "nvmlDeviceGetArchitecture", |d| d.architecture())
                .map(|architecture| architecture.to_string()),
            compute_capability: capability.map(|version| format!("{}.{}", version.major, version.minor)),
            vbios: ask!(self, asked, "nvmlDeviceGetVbiosVersion", |d| d.vbios_version()),
            inforom: ask!(self, asked, "nvmlDeviceGetInforomImageVersion", |d| d.info_rom_image_version()),
            board_part: ask!(self, asked, "nvmlDeviceGetBoardPartNumber", |d| d.board_part_number()),
            numa_node: ask!(self, asked, "nvmlDeviceGetNumaNodeId", |d| d.numa_node_id()),
        })
    }

    pub fn read(&mut self, asked: &mut Asked, wanted: Wanted) -> Result<Readings, Trouble> {
        // Under MIG the driver has no utilisation of the card, and where it gives one it is always 0.
        let whole = self.mig != Some(true);
        let rates =
            if whole { ask!(self, asked, "nvmlDeviceGetUtilizationRates", |d| d.utilization_rates()) } else { None };
        let encoder = if whole {
            ask!(self, asked, "nvmlDeviceGetEncoderUtilization", |d| d.encoder_utilization())
        } else {
            None
        };
        let decoder = if whole {
            ask!(self, asked, "nvmlDeviceGetDecoderUtilization", |d| d.decoder_utilization())
        } else {
            None
        };
        let performance_state =
            ask!(self, asked, "nvmlDeviceGetPerformanceState", |d| d.performance_state()).and_then(number_of);
        Ok(Readings {
            utilization: rates.as_ref().and_then(|rates| percent(rates.gpu)),
            memory_controller_utilization: rates.as_ref().and_then(|rates| percent(rates.memory)),
            encoder_utilization: encoder.and_then(|rate| percent(rate.utilization)),
            decoder_utilization: decoder.and_then(|rate| percent(rate.utilization)),
            memory: memory(&mut self.refused, asked)?,
            temperature: ask!(self, asked, "nvmlDeviceGetTemperature", |d| d.temperature(TemperatureSensor::Gpu))
                .map(|degrees| Celsius(f64::from(degrees))),
            temperature_thresholds: self.temperature_thresholds(asked)?,
            power: ask!(self, asked, "nvmlDeviceGetPowerUsage", |d| d.power_usage()).map(watts),
            power_limits: self.power_limits(asked)?,
            energy: ask!(self, asked, "nvmlDeviceGetTotalEnergyConsumption", |d| d.total_energy_consumption())
                .map(|millijoules| Joules(millijoules as f64 / 1000.0)),
            clocks: if wanted.clocks { self.clocks(asked)? } else { Vec::new() },
            clocks_max: if wanted.clocks { self.clocks_max(asked)? } else { Vec::new() },
            performance_state,
            fans: self.fans(asked)?,
            pcie: self.pcie(asked)?,
            ecc: self.ecc(asked)?,
            persistence_mode: ask!(self, asked, "nvmlDeviceGetPersistenceMode", |d| d.is_in_persistent_mode()),
            compute_mode: ask!(self, asked, "nvmlDeviceGetComputeMode", |d| d.compute_mode()).map(|mode| mode.as_c()),
            ..Readings::default()
        })
    }

    fn temperature_thresholds(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Celsius)>, Trouble> {
        let table = [
            ("slowdown", TemperatureThreshold::Slowdown),
            ("shutdown", TemperatureThreshold::Shutdown),
            ("gpu_max", TemperatureThreshold::GpuMax),
            ("memory_max", TemperatureThreshold::MemoryMax),
        ];
        let mut thresholds = Vec::new();
        for (at, (label, threshold)) in table.into_iter().enumerate() {
            let degrees =
                ask!(self, asked, "nvmlDeviceGetTemperatureThreshold", at, |d| d.temperature_threshold(threshold));
            thresholds.extend(degrees.map(|degrees| (label, Celsius(f64::from(degrees)))));
        }
        Ok(thresholds)
    }

    fn power_limits(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Watts)>, Trouble> {
        let enforced = ask!(self, asked, "nvmlDeviceGetEnforcedPowerLimit", |d| d.enforced_power_limit());
        let default =
            ask!(self, asked, "nvmlDeviceGetPowerManagementDefaultLimit", |d| d.power_management_limit_default());
        let bounds = ask!(self, asked, "nvmlDeviceGetPowerManagementLimitConstraints", |d| d
            .power_management_limit_constraints());
        let table = [
            ("enforced", enforced),
            ("default", default),
            ("min", bounds.as_ref().map(|bounds| bounds.min_limit)),
            ("max", bounds.as_ref().map(|bounds| bounds.max_limit)),
        ];
        Ok(table.into_iter().filter_map(|(label, limit)| Some((label, watts(limit?)))).collect())
    }

    fn clocks(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Hertz)>, Trouble> {
        let mut clocks = Vec::new();
        for (at, (label, clock)) in clock_table().into_iter().enumerate() {
            let megahertz = ask!(self, asked, "nvmlDeviceGetClockInfo", at, |d| d.clock_info(clock));
            clocks.extend(megahertz.map(|megahertz| (label, hertz(megahertz))));
        }
        Ok(clocks)
    }

    fn clocks_max(&mut self, asked: &mut Asked) -> Result<Vec<(&'static str, Hertz)>, Trouble> {
        let mut clocks = Vec::new();
        for (at, (label, clock)) in clock_table().into_iter().enumerate() {
            let megahertz = ask!(self, asked, "nvmlDeviceGetMaxClockInfo", at, |d| d.max_clock_info(clock));
            clocks.extend(megahertz.map(|megahertz| (label, hertz(megahertz))));
        }
        Ok(clocks)
    }

    fn fans(&mut self, asked: &mut Asked) -> Result<Vec<Percent>, Trouble> {
        let Some(count) = ask!(self, asked, "nvmlDeviceGetNumFans", |d| d.num_fans()) else { return Ok(Vec::new()) };
        let mut fans = Vec::new();
        for fan in 0..count {
            match ask!(self, asked, "nvmlDeviceGetFanSpeed_v2", fan, |d| d.fan_speed(fan)) {
                // A fan may be told to run above its nominal speed.
                Some(speed) => fans.push(Percent(f64::from(speed))),
                // The place in the list is the number of the fan: without this one the next would bear its name.
                None => break,
            }
        }
        Ok(fans)
    }

    fn pcie(&mut self, asked: &mut Asked) -> Result<Pcie, Trouble> {
        Ok(Pcie {
            generation: ask!(self, asked, "nvmlDeviceGetCurrPcieLinkGeneration", |d| d.current_pcie_link_gen()),
            generation_max: ask!(self, asked, "nvmlDeviceGetMaxPcieLinkGeneration", |d| d.max_pcie_link_gen()),
            width: ask!(self, asked, "nvmlDeviceGetCurrPcieLinkWidth", |d| d.current_pcie_link_width()),
            width_max: ask!(self, asked, "nvmlDeviceGetMaxPcieLinkWidth", |d| d.max_pcie_link_width()),
            replays: ask!(self, asked, "nvmlDeviceGetPcieReplayCounter", |d| d.pcie_replay_counter()).map(u64::from),
        })
    }

    fn ecc(&mut self, asked: &mut Asked) -> Result<Ecc, Trouble> {
        let mode = ask!(self, asked, "nvmlDeviceGetEccMode", |d| d.is_ecc_enabled());
        let mut ecc = Ecc { mode: mode.map(|mode| mode.currently_enabled), ..Ecc::default() };
        if ecc.mode != Some(true) {
            return Ok(ecc);
        }
        let kinds = [("corrected", MemoryError::Corrected), ("uncorrected", MemoryError::Uncorrected)];
        let places = [("dram", MemoryLocation::Device), ("sram", MemoryLocation::SRAM)];
        let mut variant = 0;
        for (kind, error) in &kinds {
            for (place, location) in &places {
                for (counter, counts) in
                    [(EccCounter::Volatile, &mut ecc.errors), (EccCounter::Aggregate, &mut ecc.lifetime_errors)]
                {
                    variant += 1;
                    let count = ask!(self, asked, "nvmlDeviceGetMemoryErrorCounter", variant, |d| d
                        .memory_error_counter(*error, counter, *location));
                    counts.extend(count.map(|count| ((*kind, *place), count)));
                }
            }
        }
        Ok(ecc)
    }
}

/// The memory of the card, or of the MIG instance, that is asked.
pub(super) fn memory(refused: &mut BTreeSet<(&'static str, u32)>, asked: &mut Asked) -> Result<Memory, Trouble> {
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

fn clock_table() -> [(&'static str, Clock); 4] {
    [("graphics", Clock::Graphics), ("sm", Clock::SM), ("memory", Clock::Memory), ("video", Clock::Video)]
}

/// A share of time; more than all of it is nonsense that drivers are known to tell.
pub(super) fn percent(share: u32) -> Option<Percent> {
    (share <= 100).then(|| Percent(f64::from(share)))
}

fn watts(milliwatts: u32) -> Watts {
    Watts(f64::from(milliwatts) / 1000.0)
}

fn hertz(megahertz: u32) -> Hertz {
    Hertz(f64::from(megahertz) * 1e6)
}

fn number_of(state: PerformanceState) -> Option<u32> {
    Some(state.as_c()).filter(|number| *number <= 15)
}
