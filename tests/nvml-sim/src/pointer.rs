//! The caller's memory. All that is unsafe in the library is that it believes the caller about these pointers.

use crate::call::Answer;
use crate::value::Error;
use std::ffi::{CStr, c_char, c_uint};
use std::{mem, ptr};

/// Where one value goes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub fn check(&self) -> Answer {
        if self.0.is_null() { Err(Error::INVALID_ARGUMENT) } else { Ok(()) }
    }

    pub fn set(&self, value: T) -> Answer {
        self.check()?;
        // SAFETY: NVML asks of its callers that a pointer which is not null points to room for one value.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The struct that the caller has prepared, if it is of the version that is meant (`NVML_STRUCT_VERSION`).
    pub fn prepared(&self, version: u32) -> Result<T, Error> {
        // A struct of another version may be shorter: only its first field, the version, is sure to be there.
        let written = self.cast::<u32>().value()?;
        if written == mem::size_of::<T>() as u32 | version << 24 {
            self.value()
        } else {
            Err(Error::ARGUMENT_VERSION_MISMATCH)
        }
    }

    /// The same place, for a struct of another version.
    pub fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }

    /// What the caller has written there, for structs that go both ways.
    pub fn value(&self) -> Result<T, Error> {
        self.check()?;
        // SAFETY: as in `set`; such structs are written by the caller before the call.
        Ok(unsafe { self.0.read() })
    }
}

/// Where several values go.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Array<T>(*mut T);

impl<T: Copy> Array<T> {
    pub fn new(start: *mut T) -> Self {
        Self(start)
    }

    /// The same place, for values of another size.
    #[cfg(not(feature = "old-driver"))]
    pub fn cast<U>(self) -> Array<U> {
        Array(self.0.cast())
    }

    pub fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes values, where `room` tells for how many there is room.
    pub fn fill(&self, room: usize, values: &[T]) -> Answer {
        if room < values.len() {
            return Err(Error::INSUFFICIENT_SIZE);
        }
        if self.0.is_null() && !values.is_empty() {
            return Err(Error::INVALID_ARGUMENT);
        }
        // SAFETY: NVML asks of its callers that there be room for as many values as they say.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    /// The two-call protocol: `count` says for how many there is room, and then how many there are.
    pub fn answer(&self, count: &Out<c_uint>, values: &[T]) -> Answer {
        let room = count.value()? as usize;
        count.set(values.len() as c_uint)?;
        self.fill(room, values)
    }

    /// The values that the caller has written there.
    pub fn values(&self, count: usize) -> Result<Vec<T>, Error> {
        if self.0.is_null() {
            return Err(Error::INVALID_ARGUMENT);
        }
        // SAFETY: NVML asks of its callers that there be as many values as they say.
        Ok((0..count).map(|index| unsafe { self.0.add(index).read() }).collect())
    }
}

/// Where a text goes.
#[repr(transparent)]
pub struct Buffer(*mut c_char);

impl Buffer {
    pub fn write(&self, length: c_uint, text: &str) -> Answer {
        let room = length as usize;
        let chars: Vec<c_char> = text.bytes().chain([0]).map(|byte| byte as c_char).collect();
        if self.0.is_null() {
            return Err(Error::INVALID_ARGUMENT);
        }
        Array(self.0).fill(room, &chars)
    }
}

/// A text of the caller.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub fn read(&self) -> Result<&str, Error> {
        if self.0.is_null() {
            return Err(Error::INVALID_ARGUMENT);
        }
        // SAFETY: NVML asks of its callers that texts end with a null byte; they outlive the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Error::INVALID_ARGUMENT)
    }
}

/// A text in a struct.
pub fn chars<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut chars = [0; LENGTH];
    for (place, byte) in chars.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *place = byte as c_char;
    }
    chars
}
