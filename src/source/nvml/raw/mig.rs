//! Which MIG instance a handle stands for.

use std::ffi::c_uint;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};

/// The id of its GPU instance, unique on the card (`nvmlDeviceGetGpuInstanceId`).
pub fn gpu_instance(nvml: &Nvml, device: &Device) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id: c_uint = 0;
    // SAFETY: the handle belongs to this library, which is open as long as `nvml` lives; the function writes one number.
    nvml_try(unsafe { call(device.handle(), &mut id) })?;
    Ok(id)
}

/// The id of its compute instance, unique in the GPU instance (`nvmlDeviceGetComputeInstanceId`).
pub fn compute_instance(nvml: &Nvml, device: &Device) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut id: c_uint = 0;
    // SAFETY: as above.
    nvml_try(unsafe { call(device.handle(), &mut id) })?;
    Ok(id)
}
