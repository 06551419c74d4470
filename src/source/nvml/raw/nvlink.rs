//! What is at the other end of an NVLink. The wrapper has the call, and loses the answer.

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN, nvmlIntNvLinkDeviceType_t,
};

/// `nvmlIntNvLinkDeviceType_t`, but for the unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    Gpu,
    /// A POWER processor.
    Npu,
    Switch,
}

const NUMBERS: [(nvmlIntNvLinkDeviceType_t, Remote); 3] = [
    (nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU, Remote::Gpu),
    (nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_IBMNPU, Remote::Npu),
    (nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH, Remote::Switch),
];

/// `None` where the driver does not know, or names something that is newer than this (`nvmlDeviceGetNvLinkRemoteDeviceType`).
pub fn remote(nvml: &Nvml, device: &Device, link: u32) -> Result<Option<Remote>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref())?;
    let mut kind = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    // SAFETY: the handle belongs to this library, which is open as long as `nvml` lives; the function writes one number.
    nvml_try(unsafe { call(device.handle(), link, &mut kind) })?;
    Ok(NUMBERS.iter().find(|(number, _)| *number == kind).map(|(_, remote)| *remote))
}
