//! Single values of a card for which the wrapper has no function.

use std::ffi::{c_uint, c_ulonglong};
use std::mem;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, nvmlEccSramErrorStatus_v1_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlMarginTemperature_v1_t, nvmlRowRemapperHistogramValues_t,
};

/// What a versioned struct says of itself (`NVML_STRUCT_VERSION`).
const fn version<T>(number: u32) -> c_uint {
    mem::size_of::<T>() as c_uint | number << 24
}

/// Degrees left to slowdown (`nvmlDeviceGetMarginTemperature`).
pub fn temperature_margin(nvml: &Nvml, device: &Device) -> Result<i32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMarginTemperature.as_ref())?;
    let mut margin =
        nvmlMarginTemperature_v1_t { version: version::<nvmlMarginTemperature_v1_t>(1), marginTemperature: 0 };
    // SAFETY: the handle belongs to this library, and the function fills one such record.
    nvml_try(unsafe { call(device.handle(), &mut margin) })?;
    Ok(margin.marginTemperature)
}

/// The reasons for which the clocks are held down now, a bit each (`nvmlDeviceGetCurrentClocksEventReasons`).
pub fn clock_events(nvml: &Nvml, device: &Device) -> Result<u64, NvmlError> {
    let library = nvml.lib();
    // Drivers before R535 know it by the name of throttle reasons.
    let (newer, older) =
        (&library.nvmlDeviceGetCurrentClocksEventReasons, &library.nvmlDeviceGetCurrentClocksThrottleReasons);
    let call = nvml_sym(newer.as_ref().or(older.as_ref()))?;
    let mut reasons: c_ulonglong = 0;
    // SAFETY: the handle belongs to this library, and the function fills one number.
    nvml_try(unsafe { call(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

/// The reasons for which they can be (`nvmlDeviceGetSupportedClocksEventReasons`).
pub fn supported_clock_events(nvml: &Nvml, device: &Device) -> Result<u64, NvmlError> {
    let library = nvml.lib();
    let (newer, older) =
        (&library.nvmlDeviceGetSupportedClocksEventReasons, &library.nvmlDeviceGetSupportedClocksThrottleReasons);
    let call = nvml_sym(newer.as_ref().or(older.as_ref()))?;
    let mut reasons: c_ulonglong = 0;
    // SAFETY: as above.
    nvml_try(unsafe { call(device.handle(), &mut reasons) })?;
    Ok(reasons)
}

/// How far the card is in joining the NVSwitch fabric, `NVML_GPU_FABRIC_STATE_…` (`nvmlDeviceGetGpuFabricInfoV`). A card
/// that has none does not support it.
pub fn fabric_state(nvml: &Nvml, device: &Device) -> Result<u32, NvmlError> {
    let library = nvml.lib();
    let state = if let Ok(call) = &library.nvmlDeviceGetGpuFabricInfoV {
        let mut info = nvmlGpuFabricInfo_v2_t {
            version: version::<nvmlGpuFabricInfo_v2_t>(2),
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
        };
        // SAFETY: the handle belongs to this library; the record says that it is of the second version, and the function
        // fills no more than that has.
        nvml_try(unsafe { call(device.handle(), (&raw mut info).cast()) })?;
        info.state
    } else {
        let call = nvml_sym(library.nvmlDeviceGetGpuFabricInfo.as_ref())?;
        let mut info = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
        // SAFETY: the handle belongs to this library, and the function fills one such record.
        nvml_try(unsafe { call(device.handle(), &mut info) })?;
        info.state
    };
    match state.into() {
        NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => Err(NvmlError::NotSupported),
        state => Ok(state),
    }
}

/// Errors of the SRAM, since the driver was loaded and in the life of the card (`nvmlDeviceGetSramEccErrorStatus`).
pub fn sram_errors(nvml: &Nvml, device: &Device) -> Result<nvmlEccSramErrorStatus_v1_t, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetSramEccErrorStatus.as_ref())?;
    let mut status = nvmlEccSramErrorStatus_v1_t {
        version: version::<nvmlEccSramErrorStatus_v1_t>(1),
        aggregateUncParity: 0,
        aggregateUncSecDed: 0,
        aggregateCor: 0,
        volatileUncParity: 0,
        volatileUncSecDed: 0,
        volatileCor: 0,
        aggregateUncBucketL2: 0,
        aggregateUncBucketSm: 0,
        aggregateUncBucketPcie: 0,
        aggregateUncBucketMcu: 0,
        aggregateUncBucketOther: 0,
        bThresholdExceeded: 0,
    };
    // SAFETY: the handle belongs to this library, and the function fills one such record.
    nvml_try(unsafe { call(device.handle(), &mut status) })?;
    Ok(status)
}

/// Memory banks by how many of their spare rows are left (`nvmlDeviceGetRowRemapperHistogram`).
pub fn row_remap_banks(nvml: &Nvml, device: &Device) -> Result<nvmlRowRemapperHistogramValues_t, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetRowRemapperHistogram.as_ref())?;
    let mut banks = nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    // SAFETY: the handle belongs to this library, and the function fills one such record.
    nvml_try(unsafe { call(device.handle(), &mut banks) })?;
    Ok(banks)
}
