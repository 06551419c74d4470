//! Xid errors: what a driver tells of a card by itself. It is asked once a cycle what has come, never waited for.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::calls::Calls;
use super::card::{Asked, Card, Trouble};
use super::error;
use super::raw::events::{self, EventSet, Name};
use crate::snapshot::GpuUuid;
use crate::snapshot::gpu::Xid;

/// The shortest time that is surely a limit: what 0 means is not documented.
const MILLISECOND: u32 = 1;

/// The rest of a storm waits for the next cycle.
const AT_ONCE: u64 = 256;

/// The cards that are listened to.
#[derive(Debug, Default)]
pub struct Xids {
    set: Option<EventSet>,
    registered: BTreeMap<Name, GpuUuid>,
    /// This driver has no events.
    refused: bool,
}

impl Xids {
    /// Listens to a card that answers, from now on.
    pub fn listen(&mut self, card: &mut Card, asked: &mut Asked) -> Result<(), Trouble> {
        let name = events::name(asked.device);
        if self.refused || self.registered.contains_key(&name) {
            return Ok(());
        }
        let nvml = asked.nvml;
        if self.set.is_none() {
            match asked.calls.make("nvmlEventSetCreate", || events::create(nvml)) {
                Ok(set) => self.set = Some(set),
                Err(error) => self.refused = error::is_refusal(&error),
            }
        }
        let Some(set) = &self.set else { return Ok(()) };
        let call = ("nvmlDeviceRegisterEvents", 0);
        if asked.value(&mut card.refused, call, |device| events::register(nvml, device, set))?.is_some() {
            self.registered.insert(name, card.uuid.clone());
        }
        Ok(())
    }

    /// Counts what has come. The code of an error belongs to the card; the process that the kernel's log names with it is
    /// the one that happened to be there, and nobody's fault.
    pub fn count(&mut self, nvml: &Nvml, calls: &mut Calls, cards: &mut [Card]) {
        let Some(set) = self.set.take() else { return };
        let mut came: BTreeMap<(Name, u64), u64> = BTreeMap::new();
        let mut next = || calls.make("nvmlEventSetWait_v2", || events::wait(nvml, &set, MILLISECOND));
        let mut event = next();
        while let Ok(Some(of)) = event {
            *came.entry(of).or_default() += 1;
            event = if came.values().sum::<u64>() < AT_ONCE { next() } else { Ok(None) };
        }
        for ((name, code), number) in came {
            let uuid = self.registered.get(&name);
            let Some(card) = cards.iter_mut().find(|card| Some(&card.uuid) == uuid) else { continue };
            let last = crate::source::now().wall;
            let xid = card.xids.entry(code).or_insert(Xid { count: 0, last });
            *xid = Xid { count: xid.count + number, last };
            tracing::warn!(gpu = card.index, uuid = %card.uuid, xid = code, number, "the driver reports an Xid error");
        }
        if event.is_ok() {
            self.set = Some(set);
        } else {
            // A lost card makes the whole set fail: another is made of those that answer.
            self.registered.clear();
            calls.make("nvmlEventSetFree", || events::free(nvml, set)).ok();
        }
    }

    /// The set ended with the library.
    pub fn forget_the_session(&mut self) {
        *self = Self::default();
    }
}
