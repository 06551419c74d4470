//! The one door that every call passes: is the library initialised, is the call slow, hung or to fail, the card lost.

use crate::driver::{self, Card, Driver};
use crate::handle::{Handle, Place};
use crate::record;
use crate::scenario::{Gpu, Init, Latency};
use crate::value::Error;
use nvml_wrapper_sys::bindings::{nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

pub type Answer = Result<(), Error>;

/// How often a hung call looks whether the scenario has let it go.
const LOOK: Duration = Duration::from_millis(5);

/// `nvmlInit` less `nvmlShutdown`.
static USERS: AtomicUsize = AtomicUsize::new(0);

pub fn init(name: &str) -> nvmlReturn_t {
    code(passed(name, None).and_then(|driver| {
        if let Init::Failing(error) = driver.scenario.init {
            return Err(error);
        }
        USERS.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }))
}

pub fn shutdown(name: &str) -> nvmlReturn_t {
    answer(name, |_| {
        let leave = |users: usize| users.checked_sub(1);
        let users = USERS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).map_err(|_| Error::UNINITIALIZED)?;
        if users == 1 {
            crate::gpm::complain_of_samples();
            driver::forget();
        }
        Ok(())
    })
}

/// A call that is about the node.
pub fn answer(name: &str, call: impl FnOnce(&Driver) -> Answer) -> nvmlReturn_t {
    code(initialized().and_then(|()| passed(name, None)).and_then(|driver| call(&driver)))
}

/// A call that is about a device.
pub fn answer_device(name: &str, handle: Handle, call: impl FnOnce(&Device) -> Answer) -> nvmlReturn_t {
    code(initialized().and_then(|()| Device::find(name, handle)).and_then(|device| call(&device)))
}

fn code(answer: Answer) -> nvmlReturn_t {
    answer.map_or_else(|error| error.0, |()| nvmlReturn_enum_NVML_SUCCESS)
}

fn initialized() -> Answer {
    if USERS.load(Ordering::SeqCst) == 0 { Err(Error::UNINITIALIZED) } else { Ok(()) }
}

/// The node once the call has taken its time, unless it is to fail.
fn passed(name: &str, place: Option<Place>) -> Result<Arc<Driver>, Error> {
    record::call(name, place);
    let mut slept = false;
    loop {
        let driver = driver::current()?;
        let gpu = place.map(|place| driver.gpu(place).ok_or(Error::INVALID_ARGUMENT)).transpose()?;
        match driver.latency(name, gpu) {
            Some(Latency::Hang) => sleep(LOOK),
            Some(Latency::For(span)) if !slept => {
                sleep(Duration::from_micros(span.0));
                slept = true;
            }
            _ => {
                driver.answers(name, gpu)?;
                return Ok(driver);
            }
        }
    }
}

/// A card or a MIG instance, during one call.
pub struct Device {
    pub driver: Arc<Driver>,
    pub place: Place,
}

impl Device {
    /// The device of a handle, once the call has taken its time, unless it is to fail.
    fn find(name: &str, handle: Handle) -> Result<Self, Error> {
        let place = handle.place().ok_or(Error::INVALID_ARGUMENT)?;
        Ok(Self { driver: passed(name, Some(place))?, place })
    }

    pub fn card(&self) -> &Card {
        &self.driver.cards[self.place.card]
    }
}

impl Deref for Device {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        let card = self.card();
        self.place.instance.map_or(&card.gpu, |instance| &card.instances[instance])
    }
}

/// Functions of the library: those about the node, …
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($driver:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
            $crate::call::answer(stringify!($name), |$driver| $body)
        }
    )*};
}

/// … those about a device, …
macro_rules! device_calls {
    ($($(#[$doc:meta])* $name:ident($device:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: $crate::handle::Handle $(, $argument: $type)*) -> nvmlReturn_t {
            $crate::call::answer_device(stringify!($name), device, |$device| $body)
        }
    )*};
}

/// … those that write values of a device, a row each, …
macro_rules! device_values {
    ($($(#[$doc:meta])* $name:ident($device:ident $(, $argument:ident: $type:ty)*)
        -> $($value:ident: $value_type:ty = $expression:expr),+;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            device: $crate::handle::Handle
            $(, $argument: $type)*
            $(, $value: $crate::pointer::Out<$value_type>)*
        ) -> nvmlReturn_t {
            $crate::call::answer_device(stringify!($name), device, |$device| {
                $($value.check()?;)+
                $($value.set($expression)?;)+
                Ok(())
            })
        }
    )*};
}

/// … and those that write a text.
macro_rules! device_texts {
    ($($(#[$doc:meta])* $name:ident($device:ident $(, $argument:ident: $type:ty)*) = $expression:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(
            device: $crate::handle::Handle,
            $($argument: $type,)*
            text: $crate::pointer::Buffer,
            length: ::std::ffi::c_uint,
        ) -> nvmlReturn_t {
            $crate::call::answer_device(stringify!($name), device, |$device| text.write(length, $expression))
        }
    )*};
}

pub(crate) use {calls, device_calls, device_texts, device_values};
