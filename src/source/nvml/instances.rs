//! The MIG instances of a card, and who is on them.
//!
//! Whom a card under MIG lists depends on who asks: by `nvml.h` the card's own handle tells of all its instances "only if
//! the caller has appropriate privileges", and "per-instance information can be queried by using specific MIG device
//! handles". So both are asked, and the same process on the same instance counts once.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::card::{Asked, Card, Trouble, ask, memory};
use super::error::{self, Failure};
use super::processes::{Lists, NO_INSTANCE};
use super::raw;
use crate::snapshot::gpu::Instance;
use crate::snapshot::hold::Place;
use crate::snapshot::readings::{Activity, Memory};

/// More than any card can be cut into (7 GPU instances, each of up to 7 compute instances).
const MOST_INSTANCES: u32 = 64;

/// A compute instance and its handle. Handles last a cycle: an instance may be gone in the next.
pub struct Slot<'a> {
    device: Device<'a>,
    uuid: String,
    place: Place,
}

/// The instances of a card in this cycle.
#[derive(Default)]
pub struct Slots<'a> {
    /// Whether the card said that it is under MIG, or is not.
    pub mode: Option<bool>,
    all: Vec<Slot<'a>>,
    /// There are others, that did not even say who they are.
    mute: bool,
}

/// What is at one place of the card's list.
enum Found<'a> {
    Slot(Slot<'a>),
    Mute,
    Nothing,
}

/// What stays of an instance from one cycle to the next.
#[derive(Debug)]
pub struct Known {
    place: Place,
    refused: BTreeSet<(&'static str, u32)>,
}

impl Card {
    /// Whether the card is under MIG now, and if so its instances.
    pub fn slots<'a>(&mut self, asked: &mut Asked<'a>) -> Result<Slots<'a>, Trouble> {
        const MODE: (&str, u32) = ("nvmlDeviceGetMigMode", 0);
        let mode = asked.value(&mut self.refused, MODE, |d| d.mig_mode())?.map(|mode| mode.current == 1);
        // A card that once does not tell is as it was.
        let mig = if mode.is_some() || self.refused.contains(&MODE) { mode } else { self.mig };
        if mig != self.mig {
            // What was refused under MIG may be told without, and the other way round.
            self.refused.clear();
            self.gpm.free(asked.nvml, asked.calls);
            self.mig = mig;
        }
        let mut slots = Slots { mode, ..Slots::default() };
        if mig == Some(true) {
            let most = ask!(self, asked, "nvmlDeviceGetMaxMigDeviceCount", |d| d.mig_device_count());
            // A number that cannot be is none.
            let most = most.filter(|most| *most <= MOST_INSTANCES);
            slots.mute = most.is_none();
            for index in most.map_or(0..0, |most| 0..most) {
                match self.slot(index, asked)? {
                    Found::Slot(slot) => slots.all.push(slot),
                    Found::Mute => slots.mute = true,
                    Found::Nothing => {}
                }
            }
        }
        self.instances.retain(|uuid, _| slots.all.iter().any(|slot| slot.uuid == *uuid));
        Ok(slots)
    }

    fn slot<'a>(&mut self, index: u32, asked: &mut Asked<'a>) -> Result<Found<'a>, Trouble> {
        const CALL: &str = "nvmlDeviceGetMigDeviceHandleByIndex";
        let card = asked.device;
        match asked.calls.make(CALL, || card.mig_device_by_index(index)) {
            Ok(device) => Ok(spared(self.introduced(device, asked))?.map_or(Found::Mute, Found::Slot)),
            Err(NvmlError::NotFound) => Ok(Found::Nothing),
            Err(failure @ NvmlError::GpuLost) => Err(Trouble::Card(error::fault(&failure))),
            Err(failure) if error::ends_the_session(&failure) => {
                Err(Trouble::Driver(Failure { call: CALL, error: error::name(&failure) }))
            }
            Err(_) => Ok(Found::Mute),
        }
    }

    /// An instance that does not say what it is is none: what it holds could be given no name.
    fn introduced<'a>(&mut self, device: Device<'a>, asked: &mut Asked) -> Result<Option<Slot<'a>>, Trouble> {
        let nvml = asked.nvml;
        let asked = &mut Asked { nvml, device: &device, calls: asked.calls };
        let mut refused = BTreeSet::new();
        let Some(uuid) = asked.value(&mut refused, ("nvmlDeviceGetUUID", 0), |d| d.uuid())? else { return Ok(None) };
        if let Some(Known { place, .. }) = self.instances.get(&uuid) {
            return Ok(Some(Slot { place: *place, device, uuid }));
        }
        const IDS: [(&str, u32); 2] = [("nvmlDeviceGetGpuInstanceId", 0), ("nvmlDeviceGetComputeInstanceId", 0)];
        let gpu_instance = asked.value(&mut refused, IDS[0], |d| raw::mig::gpu_instance(nvml, d))?;
        let Some(gpu_instance) = gpu_instance else { return Ok(None) };
        let compute_instance = asked.value(&mut refused, IDS[1], |d| raw::mig::compute_instance(nvml, d))?;
        let place = Place { gpu_instance, compute_instance };
        // One that could not tell its own number is asked again.
        if compute_instance.is_some() {
            self.instances.insert(uuid.clone(), Known { place, refused });
        }
        Ok(Some(Slot { device, uuid, place }))
    }

    /// What the instances tell of themselves. Compute instances share the memory of their GPU instance: the first that
    /// knows it tells it for all.
    pub fn instances(&mut self, asked: &mut Asked, slots: &Slots) -> Result<Vec<Instance>, Trouble> {
        let mut memories: BTreeMap<u32, Memory> = BTreeMap::new();
        let mut instances = Vec::new();
        for Slot { device, uuid, place } in &slots.all {
            let asked = &mut Asked { nvml: asked.nvml, device, calls: asked.calls };
            let mut passing = BTreeSet::new();
            let refused = self.instances.get_mut(uuid).map_or(&mut passing, |known| &mut known.refused);
            let name = spared(asked.value(refused, ("nvmlDeviceGetName", 0), |d| d.name()))?;
            let shared = memories.entry(place.gpu_instance).or_default();
            if shared.total.is_none() {
                *shared = spared(memory(refused, asked))?;
            }
            let profile = name.as_deref().and_then(profile).map(str::to_owned);
            let activity = Activity::default();
            instances.push(Instance {
                uuid: uuid.clone(),
                place: *place,
                profile,
                memory: Memory::default(),
                activity,
            });
        }
        for instance in &mut instances {
            instance.memory = memories[&instance.place.gpu_instance];
        }
        Ok(instances)
    }

    /// The processes on the card and on its instances, or why they are not known. What the card tells stands whatever
    /// becomes of an instance, unless it is seen to keep some of them to itself.
    pub fn all_lists(&mut self, asked: &mut Asked, slots: &Slots) -> Result<Result<Lists, String>, Trouble> {
        let own = self.lists(asked)?;
        let mut whole = !slots.mute;
        let mut theirs = Lists::default();
        for Slot { device, place, .. } in &slots.all {
            let asked = &mut Asked { nvml: asked.nvml, device, calls: asked.calls };
            match spared(self.lists(asked).map(Some))? {
                Some(Ok(lists)) => theirs.join(lists.on(*place)),
                Some(Err(_)) | None => whole = false,
            }
        }
        Ok(joined(own, theirs, whole, !slots.all.is_empty()))
    }
}

/// The card's own lists and those of its instances. These are `whole` if each of them told, and there are some.
fn joined(own: Result<Lists, Failure>, theirs: Lists, whole: bool, cut: bool) -> Result<Lists, String> {
    match own {
        Ok(own) if !whole && own.hides_one_of(&theirs) => {
            Err("the card does not tell who is on its MIG instances, and not each of them does".into())
        }
        Ok(mut own) => {
            own.join(theirs);
            Ok(own)
        }
        Err(_) if whole && cut => Ok(theirs),
        Err(failure) => Err(failure.to_string()),
    }
}

impl Lists {
    /// Whatever names no instance is on the one that was asked.
    fn on(mut self, place: Place) -> Self {
        let compute_instance = place.compute_instance.unwrap_or(NO_INSTANCE);
        for record in self.compute.iter_mut().chain(&mut self.graphics).chain(&mut self.mps) {
            record.instance = match record.instance {
                (NO_INSTANCE, _) => (place.gpu_instance, compute_instance),
                (named, NO_INSTANCE) if named == place.gpu_instance => (named, compute_instance),
                named => named,
            };
        }
        self
    }

    fn pids(&self) -> BTreeSet<u32> {
        self.compute.iter().chain(&self.graphics).chain(&self.mps).map(|record| record.pid).collect()
    }

    fn hides_one_of(&self, theirs: &Self) -> bool {
        !theirs.pids().is_subset(&self.pids())
    }

    fn join(&mut self, other: Self) {
        self.compute.extend(other.compute);
        self.graphics.extend(other.graphics);
        self.mps.extend(other.mps);
        self.overrun |= other.overrun;
    }
}

/// An instance that is lost, or errs, is a gap in what is known of it alone; the card itself would have said so.
pub fn spared<T: Default>(answer: Result<T, Trouble>) -> Result<T, Trouble> {
    match answer {
        Err(Trouble::Card(_)) => Ok(T::default()),
        answer => answer,
    }
}

/// `1g.10gb` out of the name of an instance, `NVIDIA H100 80GB HBM3 MIG 1g.10gb` (`nvmlDeviceGetName` of a MIG device
/// handle). The call for it, `nvmlDeviceGetGpuInstanceProfileInfo`, wants the number of the profile.
fn profile(name: &str) -> Option<&str> {
    name.rsplit_once(" MIG ").map(|(_, profile)| profile.trim()).filter(|profile| !profile.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::raw::Record;
    use super::*;

    #[test]
    fn the_profile_is_what_stands_behind_the_name_of_the_card() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Some("1g.10gb")),
            ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", Some("1c.3g.40gb")),
            ("NVIDIA A100 MIG 1g.10gb+me", Some("1g.10gb+me")),
            ("NVIDIA A100 MIG ", None),
            ("NVIDIA A100", None),
        ] {
            assert_eq!(profile(name), expected, "{name}");
        }
    }

    #[test]
    fn what_the_card_tells_stands_unless_it_is_seen_to_keep_quiet() {
        let lists = |pids: &[u32]| Lists {
            compute: pids.iter().map(|pid| Record { pid: *pid, memory: None, instance: (1, 0) }).collect(),
            ..Lists::default()
        };
        let failed = || Err(Failure { call: "nvmlDeviceGetComputeRunningProcesses_v3", error: "NO_PERMISSION" });
        for (case, own, theirs, whole, expected) in [
            ("both tell of both", Ok(lists(&[7, 8])), vec![7, 8], true, Some(vec![7, 8])),
            ("an instance is lost", Ok(lists(&[7, 8])), vec![7], false, Some(vec![7, 8])),
            ("nobody is there, and an instance is lost", Ok(lists(&[])), vec![], false, Some(vec![])),
            ("the card keeps quiet", Ok(lists(&[])), vec![7, 8], true, Some(vec![7, 8])),
            ("the card keeps quiet, and an instance is lost", Ok(lists(&[])), vec![7], false, None),
            ("the card refuses", failed(), vec![7], true, Some(vec![7])),
            ("the card refuses, and an instance is lost", failed(), vec![7], false, None),
        ] {
            let pids = joined(own, lists(&theirs), whole, true).ok().map(|lists| lists.pids());
            assert_eq!(pids, expected.map(|pids: Vec<u32>| pids.into_iter().collect()), "{case}");
        }
        assert_eq!(
            joined(failed(), Lists::default(), true, false).map(|_| ()).unwrap_err(),
            failed().map(|_: Lists| ()).unwrap_err().to_string()
        );
    }

    #[test]
    fn what_an_instance_lists_without_a_place_is_on_it() {
        let record = |instance| Record { pid: 7, memory: None, instance };
        let place = Place { gpu_instance: 2, compute_instance: Some(1) };
        for (told, expected) in [
            ((NO_INSTANCE, NO_INSTANCE), (2, 1)),
            ((2, NO_INSTANCE), (2, 1)),
            ((2, 0), (2, 0)),
            ((3, NO_INSTANCE), (3, NO_INSTANCE)),
        ] {
            let lists = Lists { compute: vec![record(told)], ..Lists::default() };
            assert_eq!(lists.on(place).compute, [record(expected)]);
        }
    }
}
