//! MIG: a card's instances are devices of their own.

use crate::call::{Device, device_calls, device_values};
use crate::handle::Handle;
use crate::pointer::Out;
use crate::scenario::{Mig, MigInstance};
use crate::value::Error;
use nvml_wrapper_sys::bindings::*;
use std::ffi::c_uint;

/// What a card may be cut into at most.
const MOST: u32 = 7;

device_values! {
    nvmlDeviceGetMigMode(device) ->
        current: c_uint = of_card(device)?.enabled.into(),
        pending: c_uint = of_card(device)?.pending().into();
    nvmlDeviceGetMaxMigDeviceCount(device) -> count: c_uint = of_card(device)?.max.unwrap_or(MOST);
    nvmlDeviceIsMigDeviceHandle(device) -> is: c_uint = device.place.instance.is_some().into();
    nvmlDeviceGetGpuInstanceId(device) -> id: c_uint = of_instance(device)?.gpu_instance;
    nvmlDeviceGetComputeInstanceId(device) -> id: c_uint = of_instance(device)?.compute_instance;
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device) -> card: nvmlDevice_t = {
        of_instance(device)?;
        Handle::of(device.place.card, None).raw()
    };
    nvmlDeviceGetAttributes(device) -> attributes: nvmlDeviceAttributes_t = attributes_of(device)?;
    nvmlDeviceGetAttributes_v2(device) -> attributes: nvmlDeviceAttributes_t = attributes_of(device)?;
}

device_calls! {
    nvmlDeviceGetMigDeviceHandleByIndex(device, index: c_uint, instance: Out<nvmlDevice_t>) {
        let mig = of_card(device)?;
        if index >= mig.max.unwrap_or(MOST) {
            return Err(Error::INVALID_ARGUMENT);
        }
        let index = index as usize;
        device.card().instances.get(index).ok_or(Error::NOT_FOUND)?;
        instance.set(Handle::of(device.place.card, Some(index)).raw())
    }
}

fn of_card(device: &Device) -> Result<&Mig, Error> {
    if device.place.instance.is_some() { Err(Error::INVALID_ARGUMENT) } else { device.mig.known() }
}

fn of_instance(device: &Device) -> Result<&MigInstance, Error> {
    let index = device.place.instance.ok_or(Error::INVALID_ARGUMENT)?;
    device.card().gpu.mig.known()?.instances.get(index).ok_or(Error::INVALID_ARGUMENT)
}

impl Mig {
    fn pending(&self) -> bool {
        self.pending.unwrap_or(self.enabled)
    }
}

fn attributes_of(device: &Device) -> Result<nvmlDeviceAttributes_t, Error> {
    let instance = of_instance(device)?;
    // `1c.3g.40gb` is one of three compute slices.
    let slices = |unit| {
        let parts = instance.profile.split('.');
        parts.filter_map(|part| part.strip_suffix(unit)?.parse().ok()).next()
    };
    let gpu_slices = slices("g").unwrap_or(1);
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: instance.multiprocessors,
        sharedCopyEngineCount: 1,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: gpu_slices,
        computeInstanceSliceCount: slices("c").unwrap_or(gpu_slices),
        memorySizeMB: instance.memory.known()?.total.0 >> 20,
    })
}
