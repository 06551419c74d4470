//! Things that callers make and hold by a pointer that is only a number.

use crate::value::Error;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub struct Registry<T>(Mutex<BTreeMap<usize, T>>);

impl<T> Registry<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<usize, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers begin at 1: none is the null pointer.
    pub fn add<P>(&self, entry: T) -> *mut P {
        let mut entries = self.entries();
        let number = entries.last_key_value().map_or(0, |(last, _)| *last) + 1;
        entries.insert(number, entry);
        std::ptr::without_provenance_mut(number)
    }

    pub fn len(&self) -> usize {
        self.entries().len()
    }

    pub fn with<P, R>(&self, pointer: *mut P, work: impl FnOnce(&mut T) -> R) -> Result<R, Error> {
        self.entries().get_mut(&pointer.addr()).map(work).ok_or(Error::INVALID_ARGUMENT)
    }

    pub fn remove<P>(&self, pointer: *mut P) -> Result<T, Error> {
        self.entries().remove(&pointer.addr()).ok_or(Error::INVALID_ARGUMENT)
    }
}
