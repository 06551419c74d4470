//! Xid errors, which the driver tells as events.

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError};

/// An event set of a library. It ends with the library, or by [`free`].
#[derive(Debug)]
pub struct EventSet(nvmlEventSet_t);

// SAFETY: NVML is thread-safe, and the set is an address that only the library looks behind.
unsafe impl Send for EventSet {}

/// `nvmlEventSetCreate`
pub fn create(nvml: &Nvml) -> Result<EventSet, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetCreate.as_ref())?;
    let mut set = std::ptr::null_mut();
    // SAFETY: the function fills one pointer.
    nvml_try(unsafe { call(&mut set) })?;
    Ok(EventSet(set))
}

/// Xid errors of this card come from now on; those of before do not (`nvmlDeviceRegisterEvents`).
pub fn register(nvml: &Nvml, device: &Device, set: &EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: handle and set belong to this library.
    nvml_try(unsafe { call(device.handle(), nvmlEventTypeXidCriticalError.into(), set.0) })
}

/// What events call a card: the address of its handle. A card that has fallen off the bus cannot be asked who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(usize);

pub fn name(device: &Device) -> Name {
    // SAFETY: the handle is not used, only its address.
    Name(unsafe { device.handle() } as usize)
}

/// The card and code of the next Xid error, if there is one within so many milliseconds (`nvmlEventSetWait_v2`).
pub fn wait(nvml: &Nvml, set: &EventSet, milliseconds: u32) -> Result<Option<(Name, u64)>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let mut event = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    // SAFETY: the set belongs to this library, and the function fills one such record.
    match nvml_try(unsafe { call(set.0, &mut event, milliseconds) }) {
        Ok(()) => Ok(Some((Name(event.device as usize), event.eventData))),
        Err(NvmlError::Timeout) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `nvmlEventSetFree`
pub fn free(nvml: &Nvml, set: EventSet) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlEventSetFree.as_ref())?;
    // SAFETY: the set belongs to this library, and is not used again.
    nvml_try(unsafe { call(set.0) })
}
