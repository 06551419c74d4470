//! What a card tells of itself: a table of values, a row each.

use crate::call::{Device, device_calls, device_texts, device_values};
use crate::driver::now;
use crate::pointer::{Array, Out, chars};
use crate::samples;
use crate::scenario::{ClockEvent, Clocks, Ecc, EccCounts, EccLocations, Gpu, Level, Memory, Remote};
use crate::units::{Clock, Load, Span, Version};
use crate::value::{Error, Value};
use nvml_wrapper_sys::bindings::*;
use std::ffi::{c_int, c_uint, c_ulong, c_ulonglong};

device_texts! {
    nvmlDeviceGetName(device) = device.name.as_deref().unwrap_or_default();
    nvmlDeviceGetUUID(device) = device.uuid.as_deref().unwrap_or_default();
    nvmlDeviceGetSerial(device) = device.serial.known()?;
    nvmlDeviceGetVbiosVersion(device) = device.vbios.known()?;
    nvmlDeviceGetInforomImageVersion(device) = device.inforom.known()?;
    nvmlDeviceGetInforomVersion(device, _object: nvmlInforomObject_t) = device.inforom.known()?;
    nvmlDeviceGetBoardPartNumber(device) = device.board_part.known()?;
}

device_values! {
    nvmlDeviceGetIndex(device) -> index: c_uint = device.place.instance.unwrap_or(device.place.card) as c_uint;
    nvmlDeviceGetMinorNumber(device) -> minor: c_uint = device.minor.ok_or(Error::NOT_SUPPORTED)?;
    nvmlDeviceGetBoardId(device) -> id: c_uint = device.board_id.get()?;
    nvmlDeviceGetModuleId(device) -> id: c_uint = device.module_id.get()?;
    nvmlDeviceGetMultiGpuBoard(device) -> several: c_uint = device.board_id.get::<u32>().map(|_| 0)?;
    nvmlDeviceGetBrand(device) -> brand: nvmlBrandType_t = device.brand.get()?;
    nvmlDeviceGetArchitecture(device) -> architecture: nvmlDeviceArchitecture_t = device.architecture.get()?;
    nvmlDeviceGetCudaComputeCapability(device) ->
        major: c_int = capability(device)?.major,
        minor: c_int = capability(device)?.minor;
    nvmlDeviceGetNumGpuCores(device) -> cores: c_uint = device.cores.get()?;
    nvmlDeviceGetNumaNodeId(device) -> node: c_uint = device.memory_node.get()?;
    nvmlDeviceGetPciInfo(device) -> pci: nvmlPciInfo_t = pci_info(device)?;
    nvmlDeviceGetPciInfo_v2(device) -> pci: nvmlPciInfo_t = pci_info(device)?;
    nvmlDeviceGetPciInfo_v3(device) -> pci: nvmlPciInfo_t = pci_info(device)?;

    // The first version counts what is reserved as used.
    nvmlDeviceGetMemoryInfo(device) -> memory: nvmlMemory_t = {
        let (memory, used) = memory_of(device)?;
        nvmlMemory_t { total: memory.total.0, free: memory.free(used), used: used + memory.reserved.0 }
    };
    nvmlDeviceGetBAR1MemoryInfo(device) -> memory: nvmlBAR1Memory_t = {
        let memory = device.bar1.known()?;
        let used = memory.used.map_or(0, |used| used.0);
        nvmlBAR1Memory_t { bar1Total: memory.total.0, bar1Free: memory.free(used), bar1Used: used }
    };

    nvmlDeviceGetUtilizationRates(device) -> rates: nvmlUtilization_t = nvmlUtilization_t {
        gpu: load(&device.utilization)?,
        memory: if device.memory_utilization == Value::LeftOut { 0 } else { load(&device.memory_utilization)? },
    };
    nvmlDeviceGetEncoderUtilization(device) ->
        percent: c_uint = load(&device.encoder_utilization)?,
        period: c_uint = samples::PERIOD as c_uint;
    nvmlDeviceGetDecoderUtilization(device) ->
        percent: c_uint = load(&device.decoder_utilization)?,
        period: c_uint = samples::PERIOD as c_uint;
    nvmlDeviceGetJpgUtilization(device) ->
        percent: c_uint = load(&device.jpeg_utilization)?,
        period: c_uint = samples::PERIOD as c_uint;
    nvmlDeviceGetOfaUtilization(device) ->
        percent: c_uint = load(&device.ofa_utilization)?,
        period: c_uint = samples::PERIOD as c_uint;

    nvmlDeviceGetTemperature(device, sensor: nvmlTemperatureSensors_t) -> degrees: c_uint =
        gpu_sensor(sensor).and(device.temperature.get())?;
    nvmlDeviceGetTemperatureThreshold(device, threshold: nvmlTemperatureThresholds_t) -> degrees: c_uint = {
        let thresholds = &device.temperature_thresholds;
        match threshold {
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => thresholds.shutdown.get()?,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => thresholds.slowdown.get()?,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => thresholds.memory_max.get()?,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX => thresholds.gpu_max.get()?,
            nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT.. => return Err(Error::INVALID_ARGUMENT),
            _ => return Err(Error::NOT_SUPPORTED),
        }
    };

    // In milliwatts.
    nvmlDeviceGetPowerUsage(device) -> power: c_uint = device.power.get()?;
    nvmlDeviceGetEnforcedPowerLimit(device) -> limit: c_uint = device.power_limits.enforced.get()?;
    nvmlDeviceGetPowerManagementLimit(device) -> limit: c_uint = device.power_limits.requested.get()?;
    nvmlDeviceGetPowerManagementDefaultLimit(device) -> limit: c_uint = device.power_limits.default.get()?;
    nvmlDeviceGetPowerManagementLimitConstraints(device) ->
        min: c_uint = device.power_limits.min.get()?,
        max: c_uint = device.power_limits.max.get()?;
    nvmlDeviceGetPowerManagementMode(device) -> enabled: nvmlEnableState_t = device.power_management.get()?;
    // In millijoules.
    nvmlDeviceGetTotalEnergyConsumption(device) -> energy: c_ulonglong = device.energy()?;

    // In MHz.
    nvmlDeviceGetClockInfo(device, clock: nvmlClockType_t) -> rate: c_uint = device.clocks.of(clock)?;
    nvmlDeviceGetMaxClockInfo(device, clock: nvmlClockType_t) -> rate: c_uint = device.max_clocks.of(clock)?;
    nvmlDeviceGetMaxCustomerBoostClock(device, clock: nvmlClockType_t) -> rate: c_uint = device.max_clocks.of(clock)?;
    nvmlDeviceGetApplicationsClock(device, clock: nvmlClockType_t) -> rate: c_uint =
        device.application_clocks.of(clock)?;
    nvmlDeviceGetDefaultApplicationsClock(device, clock: nvmlClockType_t) -> rate: c_uint =
        device.application_clocks.of(clock)?;
    nvmlDeviceGetClock(device, clock: nvmlClockType_t, id: nvmlClockId_t) -> rate: c_uint = match id {
        nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => device.clocks.of(clock)?,
        nvmlClockId_enum_NVML_CLOCK_ID_APP_CLOCK_TARGET => device.application_clocks.of(clock)?,
        nvmlClockId_enum_NVML_CLOCK_ID_APP_CLOCK_DEFAULT => device.application_clocks.of(clock)?,
        nvmlClockId_enum_NVML_CLOCK_ID_CUSTOMER_BOOST_MAX => device.max_clocks.of(clock)?,
        _ => return Err(Error::INVALID_ARGUMENT),
    };
    nvmlDeviceGetPerformanceState(device) -> state: nvmlPstates_t = device.performance_state.get()?;
    nvmlDeviceGetPowerState(device) -> state: nvmlPstates_t = device.performance_state.get()?;
    nvmlDeviceGetCurrentClocksThrottleReasons(device) -> reasons: c_ulonglong = clock_events(device)?;
    nvmlDeviceGetSupportedClocksThrottleReasons(device) -> reasons: c_ulonglong =
        clock_events(device).map(|_| ClockEvent::ALL)?;
    // In nanoseconds, at a moment in microseconds.
    nvmlDeviceGetViolationStatus(
        device, policy: nvmlPerfPolicyType_t
    ) -> times: nvmlViolationTime_t = nvmlViolationTime_t {
        referenceTime: now(),
        violationTime: clock_event_time(device, match policy {
            nvmlPerfPolicyType_enum_NVML_PERF_POLICY_POWER => ClockEvent::SwPowerCap,
            nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL => ClockEvent::SwThermalSlowdown,
            nvmlPerfPolicyType_enum_NVML_PERF_POLICY_SYNC_BOOST => ClockEvent::SyncBoost,
            _ => return Err(Error::NOT_SUPPORTED),
        })?,
    };

    nvmlDeviceGetNumFans(device) -> fans: c_uint = some(device.fans.len())?;
    nvmlDeviceGetFanSpeed(device) -> percent: c_uint = device.fans.first().ok_or(Error::NOT_SUPPORTED)?.get()?;
    nvmlDeviceGetFanSpeed_v2(device, fan: c_uint) -> percent: c_uint = {
        some(device.fans.len())?;
        device.fans.get(fan as usize).ok_or(Error::INVALID_ARGUMENT)?.get()?
    };

    nvmlDeviceGetCurrPcieLinkGeneration(device) -> generation: c_uint = device.pcie.generation.get()?;
    nvmlDeviceGetMaxPcieLinkGeneration(device) -> generation: c_uint = device.pcie.max_generation.get()?;
    nvmlDeviceGetGpuMaxPcieLinkGeneration(device) -> generation: c_uint = device.pcie.gpu_max_generation.get()?;
    nvmlDeviceGetCurrPcieLinkWidth(device) -> width: c_uint = device.pcie.width.get()?;
    nvmlDeviceGetMaxPcieLinkWidth(device) -> width: c_uint = device.pcie.max_width.get()?;
    nvmlDeviceGetPcieSpeed(device) -> megabytes: c_uint = device.pcie.link_speed.get()?;
    nvmlDeviceGetPcieReplayCounter(device) -> replays: c_uint = device.pcie.replays.get()?;
    // In KB/s, of 1024 bytes for those who read it.
    nvmlDeviceGetPcieThroughput(device, direction: nvmlPcieUtilCounter_t) -> rate: c_uint = match direction {
        nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES => (device.pcie.tx.get::<u64>()? >> 10) as c_uint,
        nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES => (device.pcie.rx.get::<u64>()? >> 10) as c_uint,
        _ => return Err(Error::INVALID_ARGUMENT),
    };

    nvmlDeviceGetNvLinkState(device, link: c_uint) -> up: nvmlEnableState_t = nvlink(device, link)?.get()?;
    nvmlDeviceGetNvLinkVersion(device, link: c_uint) -> version: c_uint =
        nvlink(device, link).and(device.nvlink.version.get())?;
    nvmlDeviceGetNvLinkRemoteDeviceType(device, link: c_uint) -> kind: nvmlIntNvLinkDeviceType_t =
        match remote(device, link)? {
            Remote::Card(_) => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
            Remote::Switch => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
            Remote::Unknown => nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN,
        };
    nvmlDeviceGetNvLinkRemotePciInfo(device, link: c_uint) -> pci: nvmlPciInfo_t = remote_pci_info(device, link)?;
    nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link: c_uint) -> pci: nvmlPciInfo_t = remote_pci_info(device, link)?;
    nvmlDeviceGetNvLinkErrorCounter(device, link: c_uint, counter: nvmlNvLinkErrorCounter_t) -> count: c_ulonglong = {
        nvlink(device, link)?;
        match counter {
            nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_REPLAY => device.nvlink.replay_errors.get()?,
            nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_RECOVERY => device.nvlink.recovery_errors.get()?,
            nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_DL_CRC_FLIT => device.nvlink.crc_errors.get()?,
            nvmlNvLinkErrorCounter_enum_NVML_NVLINK_ERROR_COUNT.. => return Err(Error::INVALID_ARGUMENT),
            _ => return Err(Error::NOT_SUPPORTED),
        }
    };
    nvmlDeviceGetGpuFabricInfo(device) -> info: nvmlGpuFabricInfo_t = fabric_info(device)?;

    nvmlDeviceGetEccMode(device) ->
        current: nvmlEnableState_t = device.ecc.mode.get()?,
        pending: nvmlEnableState_t = device.ecc.pending.get()?;
    nvmlDeviceGetDefaultEccMode(device) -> mode: nvmlEnableState_t = device.ecc.default.get()?;
    nvmlDeviceGetTotalEccErrors(
        device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t
    ) -> count: c_ulonglong = device.ecc.locations(kind, counter)?.total()?;
    nvmlDeviceGetMemoryErrorCounter(
        device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t, location: nvmlMemoryLocation_t
    ) -> count: c_ulonglong =
        device.ecc.locations(kind, counter)?.at(location)?;
    nvmlDeviceGetDetailedEccErrors(
        device, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t
    ) -> counts: nvmlEccErrorCounts_t = {
        let locations = device.ecc.locations(kind, counter)?;
        nvmlEccErrorCounts_t {
            l1Cache: locations.l1.get()?,
            l2Cache: locations.l2.get()?,
            deviceMemory: locations.dram.get()?,
            registerFile: locations.registers.get()?,
        }
    };
    nvmlDeviceGetRetiredPagesPendingStatus(device) -> pending: nvmlEnableState_t =
        device.retired_pages.known()?.pending.into();
    nvmlDeviceGetRemappedRows(device) ->
        corrected: c_uint = device.remapped_rows.known()?.corrected,
        uncorrected: c_uint = device.remapped_rows.known()?.uncorrected,
        pending: c_uint = device.remapped_rows.known()?.pending.into(),
        failure: c_uint = device.remapped_rows.known()?.failure.into();
    nvmlDeviceGetRowRemapperHistogram(device) -> banks: nvmlRowRemapperHistogramValues_t = {
        let banks = device.row_remap_banks.known()?;
        nvmlRowRemapperHistogramValues_t {
            max: banks.max,
            high: banks.high,
            partial: banks.partial,
            low: banks.low,
            none: banks.none,
        }
    };

    nvmlDeviceGetPersistenceMode(device) -> enabled: nvmlEnableState_t = device.persistence.get()?;
    nvmlDeviceGetAccountingMode(device) -> enabled: nvmlEnableState_t = device.accounting.get()?;
    nvmlDeviceGetComputeMode(device) -> mode: nvmlComputeMode_t = device.compute_mode.get()?;
    nvmlDeviceGetDisplayMode(device) -> enabled: nvmlEnableState_t = device.display_mode.get()?;
    nvmlDeviceGetDisplayActive(device) -> active: nvmlEnableState_t = device.display_active.get()?;
    nvmlDeviceGetVirtualizationMode(device) -> mode: nvmlGpuVirtualizationMode_t = device.virtualization.get()?;
}

device_calls! {
    nvmlDeviceGetTemperatureV(device, temperature: Out<nvmlTemperature_v1_t>) {
        let asked = temperature.prepared(1)?;
        gpu_sensor(asked.sensorType)?;
        temperature.set(nvmlTemperature_v1_t { temperature: device.temperature.get::<u32>()? as c_int, ..asked })
    }

    nvmlDeviceGetPciInfoExt(device, pci: Out<nvmlPciInfoExt_v1_t>) {
        let asked = pci.prepared(1)?;
        let nvmlPciInfo_t { domain, bus, device, pciDeviceId, pciSubSystemId, busId, .. } = pci_info(device)?;
        // A 3D controller among display controllers.
        pci.set(nvmlPciInfoExt_v1_t {
            domain,
            bus,
            device,
            pciDeviceId,
            pciSubSystemId,
            baseClass: 3,
            subClass: 2,
            busId,
            ..asked
        })
    }

    // The second version, and the third, which adds a summary of the health.
    nvmlDeviceGetGpuFabricInfoV(device, info: Out<nvmlGpuFabricInfo_v3_t>) {
        let nvmlGpuFabricInfo_t { clusterUuid, status, cliqueId, state } = fabric_info(device)?;
        let healthMask = device.fabric.known()?.health_mask;
        let second = info.cast::<nvmlGpuFabricInfo_v2_t>();
        if let Ok(asked) = second.prepared(2) {
            let told = nvmlGpuFabricInfo_v2_t { clusterUuid, status, cliqueId, state, healthMask, ..asked };
            return second.set(told);
        }
        let asked = info.prepared(3)?;
        let told = nvmlGpuFabricInfo_v3_t { clusterUuid, status, cliqueId, state, healthMask, ..asked };
        info.set(nvmlGpuFabricInfo_v3_t { healthSummary: 0, ..told })
    }

    nvmlDeviceGetSramEccErrorStatus(device, status: Out<nvmlEccSramErrorStatus_v1_t>) {
        let asked = status.prepared(1)?;
        let Ecc { volatile, aggregate, sram_threshold_exceeded, .. } = &device.ecc;
        status.set(nvmlEccSramErrorStatus_v1_t {
            aggregateUncParity: 0,
            aggregateUncSecDed: aggregate.uncorrected.sram.get()?,
            aggregateCor: aggregate.corrected.sram.get()?,
            volatileUncParity: 0,
            volatileUncSecDed: volatile.uncorrected.sram.get()?,
            volatileCor: volatile.corrected.sram.get()?,
            bThresholdExceeded: sram_threshold_exceeded.get()?,
            aggregateUncBucketL2: 0,
            aggregateUncBucketSm: 0,
            aggregateUncBucketPcie: 0,
            aggregateUncBucketMcu: 0,
            aggregateUncBucketOther: 0,
            ..asked
        })
    }

    nvmlDeviceGetRetiredPages(
        device, cause: nvmlPageRetirementCause_t, count: Out<c_uint>, addresses: Array<c_ulonglong>
    ) {
        addresses.answer(&count, retired_pages(device, cause)?)
    }

    nvmlDeviceGetRetiredPages_v2(
        device, cause: nvmlPageRetirementCause_t, count: Out<c_uint>, addresses: Array<c_ulonglong>,
        times: Array<c_ulonglong>
    ) {
        let pages = retired_pages(device, cause)?;
        addresses.answer(&count, pages)?;
        times.answer(&count, &vec![0; pages.len()])
    }

    // The NUMA nodes near the card, a bit each; `scope` makes no difference here.
    nvmlDeviceGetMemoryAffinity(device, size: c_uint, nodes: Array<c_ulong>, _scope: nvmlAffinityScope_t) {
        let node: u32 = device.numa_node.get()?;
        let mut words = vec![0; size as usize];
        let word = words.get_mut((node / c_ulong::BITS) as usize).ok_or(Error::INSUFFICIENT_SIZE)?;
        *word = 1 << (node % c_ulong::BITS);
        nodes.fill(words.len(), &words)
    }

    nvmlDeviceGetTopologyCommonAncestor(device, other: crate::handle::Handle, level: Out<nvmlGpuTopologyLevel_t>) {
        let place = other.place().ok_or(Error::INVALID_ARGUMENT)?;
        let other = &device.driver.cards.get(place.card).ok_or(Error::INVALID_ARGUMENT)?.gpu;
        let (here, there) = (device.place.card, place.card);
        let written = device.driver.scenario.topology.iter();
        let written = written.rev().find(|pair| pair.gpus == [here, there] || pair.gpus == [there, here]);
        let by_node = if device.numa_node == other.numa_node { Level::Node } else { Level::System };
        level.set(match written {
            _ if here == there => Level::Internal.into(),
            Some(pair) => pair.level.get()?,
            None => by_node.into(),
        })
    }
}

// Before, these were called throttle reasons.
#[cfg(not(feature = "old-driver"))]
device_values! {
    nvmlDeviceGetCurrentClocksEventReasons(device) -> reasons: c_ulonglong = clock_events(device)?;
    nvmlDeviceGetSupportedClocksEventReasons(device) -> reasons: c_ulonglong =
        clock_events(device).map(|_| ClockEvent::ALL)?;
}

#[cfg(not(feature = "old-driver"))]
device_calls! {
    nvmlDeviceGetMarginTemperature(device, margin: Out<nvmlMarginTemperature_v1_t>) {
        let asked = margin.prepared(1)?;
        margin.set(nvmlMarginTemperature_v1_t { marginTemperature: device.temperature_margin.get()?, ..asked })
    }

    nvmlDeviceGetMemoryInfo_v2(device, memory: Out<nvmlMemory_v2_t>) {
        let asked = memory.prepared(2)?;
        let (sizes, used) = memory_of(device)?;
        let (total, reserved, free) = (sizes.total.0, sizes.reserved.0, sizes.free(used));
        memory.set(nvmlMemory_v2_t { total, reserved, free, used, ..asked })
    }
}

fn capability(gpu: &Gpu) -> Result<Version, Error> {
    gpu.compute_capability.known().copied()
}

/// `domain:bus:device.function`, in hexadecimal digits.
pub fn pci_address(text: &str) -> Option<[u32; 3]> {
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, _function) = rest.split_once('.')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    Some([number(domain)?, number(bus)?, number(device)?])
}

fn pci_info(gpu: &Gpu) -> Result<nvmlPciInfo_t, Error> {
    let [domain, bus, device] = gpu.pci.as_deref().and_then(pci_address).ok_or(Error::NOT_SUPPORTED)?;
    Ok(nvmlPciInfo_t {
        busIdLegacy: chars(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        // A card of which no more is said is at least NVIDIA's.
        pciDeviceId: gpu.pci_device_id.unwrap_or(0x0000_10DE),
        pciSubSystemId: gpu.pci_subsystem_id.unwrap_or(0x0000_10DE),
        busId: chars(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

/// The memory and what of it is used; without what is reserved.
fn memory_of(device: &Device) -> Result<(Memory, u64), Error> {
    let memory = device.memory.known()?.clone();
    let used = memory.used.map_or_else(|| crate::processes::memory(device), |used| used.0);
    Ok((memory, used))
}

pub fn load(value: &Value<Load>) -> Result<u32, Error> {
    Ok(value.known()?.at(samples::latest()).0)
}

fn gpu_sensor(sensor: nvmlTemperatureSensors_t) -> Result<(), Error> {
    if sensor == nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU { Ok(()) } else { Err(Error::INVALID_ARGUMENT) }
}

/// A number of things; having none is not to support them.
fn some(number: usize) -> Result<c_uint, Error> {
    if number == 0 { Err(Error::NOT_SUPPORTED) } else { Ok(number as c_uint) }
}

pub fn clock_events(gpu: &Gpu) -> Result<u64, Error> {
    Ok(gpu.clock_events.known()?.iter().fold(0, |bits, event| bits | event.bit()))
}

/// In nanoseconds.
pub fn clock_event_time(gpu: &Gpu, event: ClockEvent) -> Result<u64, Error> {
    gpu.clock_event_times.get(&event).map(|Span(time)| time * 1000).ok_or(Error::NOT_SUPPORTED)
}

pub fn nvlink(gpu: &Gpu, link: c_uint) -> Result<&Value<bool>, Error> {
    some(gpu.nvlink.links.len())?;
    gpu.nvlink.links.get(link as usize).ok_or(Error::INVALID_ARGUMENT)
}

fn remote(device: &Device, link: c_uint) -> Result<Remote, Error> {
    nvlink(device, link)?;
    Ok(device.nvlink.remotes.get(link as usize).copied().unwrap_or_default())
}

/// A switch is on the bus behind the cards.
fn remote_pci_info(device: &Device, link: c_uint) -> Result<nvmlPciInfo_t, Error> {
    match remote(device, link)? {
        Remote::Card(card) => pci_info(&device.driver.cards.get(card).ok_or(Error::UNKNOWN)?.gpu),
        Remote::Switch => pci_info(&Gpu { pci: Some("00000000:F0:00.0".into()), ..Gpu::default() }),
        Remote::Unknown => Err(Error::NOT_SUPPORTED),
    }
}

fn fabric_info(gpu: &Gpu) -> Result<nvmlGpuFabricInfo_t, Error> {
    let fabric = gpu.fabric.known()?;
    let status = fabric.status.map_or(nvmlReturn_enum_NVML_SUCCESS, |error| error.0);
    Ok(nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status, cliqueId: fabric.clique, state: fabric.state })
}

fn retired_pages(gpu: &Gpu, cause: nvmlPageRetirementCause_t) -> Result<&[u64], Error> {
    let pages = gpu.retired_pages.known()?;
    match cause {
        nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS => Ok(&pages.single_bit),
        nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR => Ok(&pages.double_bit),
        _ => Err(Error::INVALID_ARGUMENT),
    }
}

impl Device {
    pub fn energy(&self) -> Result<u64, Error> {
        if self.place.instance.is_some() { Err(Error::NOT_SUPPORTED) } else { self.card().energy(self.driver.seen) }
    }
}

impl Clocks {
    fn of(&self, clock: nvmlClockType_t) -> Result<u32, Error> {
        let clock: &Value<Clock> = match clock {
            nvmlClockType_enum_NVML_CLOCK_GRAPHICS => &self.graphics,
            nvmlClockType_enum_NVML_CLOCK_SM => &self.sm,
            nvmlClockType_enum_NVML_CLOCK_MEM => &self.memory,
            nvmlClockType_enum_NVML_CLOCK_VIDEO => &self.video,
            _ => return Err(Error::INVALID_ARGUMENT),
        };
        clock.get()
    }
}

impl Ecc {
    fn locations(&self, kind: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t) -> Result<&EccLocations, Error> {
        let counts: &EccCounts = match counter {
            nvmlEccCounterType_enum_NVML_VOLATILE_ECC => &self.volatile,
            nvmlEccCounterType_enum_NVML_AGGREGATE_ECC => &self.aggregate,
            _ => return Err(Error::INVALID_ARGUMENT),
        };
        match kind {
            nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => Ok(&counts.corrected),
            nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => Ok(&counts.uncorrected),
            _ => Err(Error::INVALID_ARGUMENT),
        }
    }
}

impl EccLocations {
    fn at(&self, location: nvmlMemoryLocation_t) -> Result<u64, Error> {
        let count = match location {
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L1_CACHE => &self.l1,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_L2_CACHE => &self.l2,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DRAM => &self.dram,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_REGISTER_FILE => &self.registers,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_TEXTURE_MEMORY => &self.texture,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_SRAM => &self.sram,
            nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_COUNT.. => return Err(Error::INVALID_ARGUMENT),
            _ => return Err(Error::NOT_SUPPORTED),
        };
        count.get()
    }

    /// The sum of the locations that the card has.
    pub fn total(&self) -> Result<u64, Error> {
        let all = [&self.dram, &self.sram, &self.l1, &self.l2, &self.registers, &self.texture];
        let counts: Vec<u64> =
            all.into_iter().filter(|count| **count != Value::LeftOut).map(Value::get).collect::<Result<_, _>>()?;
        if counts.is_empty() { Err(Error::NOT_SUPPORTED) } else { Ok(counts.iter().sum()) }
    }
}
