//! Handles of devices: addresses that mean a place on the node and are never looked behind.

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use std::ptr;

const CARDS: usize = 256;
/// A card itself and the MIG instances it may have.
const PLACES: usize = 64;

static HANDLES: [u8; CARDS * PLACES] = [0; CARDS * PLACES];

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Handle(nvmlDevice_t);

/// Which card, and which of its MIG instances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub card: usize,
    pub instance: Option<usize>,
}

impl Handle {
    pub fn of(card: usize, instance: Option<usize>) -> Self {
        let place = card * PLACES + instance.map_or(0, |instance| instance + 1);
        Self(ptr::from_ref(&HANDLES).cast::<u8>().wrapping_add(place).cast_mut().cast())
    }

    /// None for a pointer that is no handle of ours.
    pub fn place(self) -> Option<Place> {
        let offset = self.0.addr().checked_sub(HANDLES.as_ptr().addr()).filter(|offset| *offset < HANDLES.len())?;
        Some(Place { card: offset / PLACES, instance: (offset % PLACES).checked_sub(1) })
    }

    pub fn raw(self) -> nvmlDevice_t {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_leads_back_to_its_place() {
        for place in [Place { card: 0, instance: None }, Place { card: 7, instance: Some(6) }] {
            assert_eq!(Handle::of(place.card, place.instance).place(), Some(place));
        }
    }

    #[test]
    fn a_foreign_pointer_is_no_handle() {
        assert_eq!(Handle(ptr::null_mut()).place(), None);
        assert_eq!(Handle(ptr::from_ref(&0u64).cast_mut().cast()).place(), None);
    }
}
