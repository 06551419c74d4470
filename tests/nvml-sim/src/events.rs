//! Events: an Xid that the scenario adds while a program waits reaches it once.

use crate::call::{self, Answer, calls, device_calls};
use crate::driver::{self, Driver};
use crate::handle::Handle;
use crate::pointer::Out;
use crate::registry::Registry;
use crate::value::Error;
use nvml_wrapper_sys::bindings::*;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a waiting call looks into the scenario.
const LOOK: Duration = Duration::from_millis(5);

/// The cards whose Xid errors are waited for, with how many of them have been told.
type EventSet = BTreeMap<usize, usize>;

static SETS: Registry<EventSet> = Registry::new();

calls! {
    nvmlEventSetCreate(_driver, set: Out<nvmlEventSet_t>) {
        set.check()?;
        set.set(SETS.add(EventSet::new()))
    }

    nvmlEventSetFree(_driver, set: nvmlEventSet_t) {
        SETS.remove(set).map(|_| ())
    }
}

device_calls! {
    nvmlDeviceGetSupportedEventTypes(device, types: Out<c_ulonglong>) {
        device.place.instance.map_or(Ok(()), |_| Err(Error::NOT_SUPPORTED))?;
        types.set(nvmlEventTypeXidCriticalError.into())
    }

    nvmlDeviceRegisterEvents(device, types: c_ulonglong, set: nvmlEventSet_t) {
        if types != nvmlEventTypeXidCriticalError.into() {
            return Err(Error::NOT_SUPPORTED);
        }
        SETS.with(set, |set| { set.entry(device.place.card).or_insert(device.xids.len()); })
    }
}

macro_rules! waits {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(set: nvmlEventSet_t, event: Out<nvmlEventData_t>, limit: c_uint) -> nvmlReturn_t {
            call::answer(stringify!($name), |_| wait(set, &event, Duration::from_millis(limit.into())))
        }
    )*};
}

waits! { nvmlEventSetWait nvmlEventSetWait_v2 }

fn wait(set: nvmlEventSet_t, event: &Out<nvmlEventData_t>, limit: Duration) -> Answer {
    event.check()?;
    let begun = Instant::now();
    loop {
        let driver = driver::current()?;
        if let Some(data) = SETS.with(set, |set| next(&driver, set))?? {
            return event.set(data);
        }
        if begun.elapsed() >= limit {
            return Err(Error::TIMEOUT);
        }
        sleep(LOOK.min(limit));
    }
}

/// The next Xid that has not been told; with none left, a lost card is an error.
fn next(driver: &Driver, set: &mut EventSet) -> Result<Option<nvmlEventData_t>, Error> {
    for (&card, told) in set.iter_mut() {
        let gpu = &driver.cards.get(card).ok_or(Error::GPU_IS_LOST)?.gpu;
        // A driver that was loaded anew has had fewer.
        *told = gpu.xids.len().min(*told);
        if let Some(xid) = gpu.xids.get(*told) {
            *told += 1;
            return Ok(Some(nvmlEventData_t {
                device: Handle::of(card, None).raw(),
                eventType: nvmlEventTypeXidCriticalError.into(),
                eventData: *xid,
                gpuInstanceId: u32::MAX,
                computeInstanceId: u32::MAX,
            }));
        }
    }
    let lost = |card: &usize| driver.cards.get(*card).is_none_or(|card| card.gpu.lost);
    if set.keys().any(lost) { Err(Error::GPU_IS_LOST) } else { Ok(None) }
}
