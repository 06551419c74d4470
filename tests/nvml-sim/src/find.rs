//! From a name of a device to its handle.

use crate::call::calls;
use crate::device::pci_address;
use crate::driver::Driver;
use crate::handle::Handle;
use crate::pointer::{Out, Text};
use crate::scenario::Gpu;
use crate::value::Error;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use std::ffi::c_uint;

calls! {
    nvmlDeviceGetCount(driver, count: Out<c_uint>) {
        count.set(driver.cards.len() as c_uint)
    }

    nvmlDeviceGetCount_v2(driver, count: Out<c_uint>) {
        count.set(driver.cards.len() as c_uint)
    }
}

/// Each row: the function, what it takes, and which card is meant.
macro_rules! finders {
    ($($name:ident($argument:ident: $type:ty) else $none:ident, $found:expr;)*) => {
        calls! {$(
            $name(driver, $argument: $type, device: Out<nvmlDevice_t>) {
                device.check()?;
                let find: fn(&Driver, $type) -> Result<Option<Handle>, Error> = $found;
                let handle = find(driver, $argument)?.ok_or(Error::$none)?;
                driver.answers(stringify!($name), handle.place().and_then(|place| driver.gpu(place)))?;
                device.set(handle.raw())
            }
        )*}
    };
}

finders! {
    nvmlDeviceGetHandleByIndex(index: c_uint) else INVALID_ARGUMENT, by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint) else INVALID_ARGUMENT, by_index;
    nvmlDeviceGetHandleByUUID(uuid: Text) else NOT_FOUND, by_uuid;
    nvmlDeviceGetHandleBySerial(serial: Text) else NOT_FOUND, by_serial;
    nvmlDeviceGetHandleByPciBusId(address: Text) else NOT_FOUND, by_pci;
    nvmlDeviceGetHandleByPciBusId_v2(address: Text) else NOT_FOUND, by_pci;
}

fn by_index(driver: &Driver, index: c_uint) -> Result<Option<Handle>, Error> {
    let index = index as usize;
    Ok((index < driver.cards.len()).then(|| Handle::of(index, None)))
}

fn by_uuid(driver: &Driver, uuid: Text) -> Result<Option<Handle>, Error> {
    let uuid = uuid.read()?;
    let is_it = |gpu: &Gpu| gpu.uuid.as_deref() == Some(uuid);
    Ok(card(driver, is_it).or_else(|| {
        let instance =
            |card: usize| driver.cards[card].instances.iter().position(is_it).map(|it| Handle::of(card, Some(it)));
        (0..driver.cards.len()).find_map(instance)
    }))
}

fn by_serial(driver: &Driver, serial: Text) -> Result<Option<Handle>, Error> {
    let serial = serial.read()?;
    Ok(card(driver, |gpu| gpu.serial.known().is_ok_and(|known| known == serial)))
}

fn by_pci(driver: &Driver, address: Text) -> Result<Option<Handle>, Error> {
    let address = pci_address(address.read()?).ok_or(Error::INVALID_ARGUMENT)?;
    Ok(card(driver, |gpu| gpu.pci.as_deref().and_then(pci_address) == Some(address)))
}

fn card(driver: &Driver, is_it: impl Fn(&Gpu) -> bool) -> Option<Handle> {
    driver.cards.iter().position(|card| is_it(&card.gpu)).map(|card| Handle::of(card, None))
}
