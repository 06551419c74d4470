//! The driver's buffer of samples.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper::enum_wrappers::device::SampleValueType;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlSamplingType_t, nvmlValue_t, nvmlValueType_t};

/// More than drivers are known to keep (about 120 of each kind), so that one call is enough.
const CAPACITY: usize = 256;
/// A driver that asks for room for more samples than this is out of its mind.
const MOST: usize = 1 << 16;

/// What was measured at a moment in microseconds of the driver's clock; `None` where it is no number.
pub type Sampled = (u64, Option<f64>);

/// The samples of a kind after a moment (`nvmlDeviceGetSamples`), in the driver's order. NOT_FOUND, the answer where there
/// are no new ones, is an empty list.
pub fn samples(nvml: &Nvml, device: &Device, kind: nvmlSamplingType_t, since: u64) -> Result<Vec<Sampled>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetSamples.as_ref())?;
    let nothing = nvmlSample_t { timeStamp: 0, sampleValue: nvmlValue_t { ullVal: 0 } };
    let mut capacity = CAPACITY;
    loop {
        let mut samples = vec![nothing; capacity];
        let (mut count, mut value_type) = (capacity as c_uint, 0);
        // SAFETY: the handle belongs to this library, and the buffer has room for `count` samples.
        let code = unsafe {
            call(device.handle(), kind, since as c_ulonglong, &mut value_type, &mut count, samples.as_mut_ptr())
        };
        match nvml_try(code) {
            Ok(()) => samples.truncate(count as usize),
            Err(NvmlError::NotFound) => samples.clear(),
            // One that keeps more says how many.
            Err(NvmlError::InsufficientSize(_)) if count as usize > capacity && count as usize <= MOST => {
                capacity = count as usize * 2;
                continue;
            }
            Err(error) => return Err(error),
        }
        return Ok(samples.iter().map(|sample| (sample.timeStamp, number(value_type, sample.sampleValue))).collect());
    }
}

/// A value as the driver says that it has written it.
fn number(value_type: nvmlValueType_t, value: nvmlValue_t) -> Option<f64> {
    let tag = SampleValueType::try_from(value_type).ok()?;
    Some(match SampleValue::from_tag_and_union(&tag, value) {
        SampleValue::F64(number) => number,
        SampleValue::U32(number) => f64::from(number),
        SampleValue::U64(number) => number as f64,
        SampleValue::I64(number) => number as f64,
    })
}

/// The share of the last sample period in which JPEG images were decoded, in percent (`nvmlDeviceGetJpgUtilization`).
pub fn jpeg_utilization(nvml: &Nvml, device: &Device) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetJpgUtilization.as_ref())?;
    let (mut share, mut period) = (0, 0);
    // SAFETY: the handle belongs to this library, and the function fills two numbers.
    nvml_try(unsafe { call(device.handle(), &mut share, &mut period) })?;
    Ok(share)
}

/// Likewise of the optical flow accelerator (`nvmlDeviceGetOfaUtilization`).
pub fn ofa_utilization(nvml: &Nvml, device: &Device) -> Result<u32, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetOfaUtilization.as_ref())?;
    let (mut share, mut period) = (0, 0);
    // SAFETY: as above.
    nvml_try(unsafe { call(device.handle(), &mut share, &mut period) })?;
    Ok(share)
}
