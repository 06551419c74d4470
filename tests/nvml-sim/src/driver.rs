//! The node as the scenario has it now: read again whenever the file has changed, kept when the new one does not parse.

use crate::handle::Place;
use crate::scenario::{Calls, EnergyCounter, Gpu, Latency, Memory, Mig, MigInstance, Scenario};
use crate::value::{Error, Value, is_failing};
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

/// How long what has been is remembered, in microseconds. NVML keeps 120 samples, six in a second.
const MEMORY: u64 = 20_000_000;

/// The node during the life of one version of the scenario.
#[derive(Debug)]
pub struct Driver {
    pub scenario: Scenario,
    pub cards: Vec<Card>,
    /// When the scenario was written, in microseconds since the epoch.
    pub since: u64,
    /// When this program first saw it. Energy counts from here: what it has told does not become less.
    pub seen: u64,
}

/// A card, and its MIG instances seen as cards.
#[derive(Debug)]
pub struct Card {
    pub gpu: Gpu,
    pub instances: Vec<Gpu>,
    /// The energy integrated until `Driver::seen`, in millijoules.
    energy: u64,
}

impl Driver {
    fn new(scenario: Scenario, since: u64, before: Option<&Driver>) -> Result<Self, serde_yaml::Error> {
        let seen = now();
        let defaults = serde_yaml::to_value(&scenario.defaults)?;
        let mut cards = Vec::new();
        for written in &scenario.gpus {
            let gpu: Gpu = serde_yaml::from_value(merge(defaults.clone(), serde_yaml::to_value(written)?))?;
            for _ in 0..gpu.count.unwrap_or(1) {
                let index = cards.len();
                let energy = before.and_then(|driver| Some(driver.cards.get(index)?.energy_at(seen, driver.seen)));
                cards.push(Card::new(identified(gpu.clone(), index), energy.unwrap_or_default()));
            }
        }
        Ok(Self { scenario, cards, since, seen })
    }

    /// What a scenario says of a call, the card's own word first.
    pub fn latency(&self, call: &str, gpu: Option<&Gpu>) -> Option<Latency> {
        about(call, gpu.map(|gpu| &gpu.latency), &self.scenario.latency)
    }

    /// Whether the scenario lets a call through to a card, or to the node.
    pub fn answers(&self, call: &str, gpu: Option<&Gpu>) -> Result<(), Error> {
        match about(call, gpu.map(|gpu| &gpu.errors), &self.scenario.errors) {
            Some(error) => Err(error),
            None if gpu.is_some_and(|gpu| gpu.lost) => Err(Error::GPU_IS_LOST),
            None => Ok(()),
        }
    }

    /// The card or MIG instance of a handle.
    pub fn gpu(&self, place: Place) -> Option<&Gpu> {
        let card = self.cards.get(place.card)?;
        place.instance.map_or(Some(&card.gpu), |instance| card.instances.get(instance))
    }
}

impl Card {
    fn new(mut gpu: Gpu, energy: u64) -> Self {
        let mig = gpu.mig.known().ok().filter(|mig| mig.enabled).cloned();
        let instances = mig.map(|mig| mig.instances.iter().map(|instance| seen_as_card(instance, &gpu)).collect());
        if instances.is_some() {
            without_utilization(&mut gpu);
        }
        Self { gpu, instances: instances.unwrap_or_default(), energy }
    }

    /// The integral of the power at a moment, when this has been so since another.
    fn energy_at(&self, moment: u64, since: u64) -> u64 {
        let power = self.gpu.power.get::<u32>().map(u64::from).unwrap_or_default();
        self.energy + power * moment.saturating_sub(since) / 1_000_000
    }

    /// `nvmlDeviceGetTotalEnergyConsumption`, in millijoules.
    pub fn energy(&self, since: u64) -> Result<u64, Error> {
        match self.gpu.energy.known()? {
            EnergyCounter::At(energy) => Ok(energy.0),
            EnergyCounter::Integrate => Ok(self.energy_at(now(), since)),
        }
    }
}

fn about<T: Copy>(call: &str, own: Option<&Calls<T>>, all: &Calls<T>) -> Option<T> {
    own.and_then(|own| named(own, call)).or_else(|| named(all, call))
}

/// The entry for a call: its own name before a pattern, a longer pattern before a shorter.
fn named<T: Copy>(calls: &Calls<T>, call: &str) -> Option<T> {
    let matches = |name: &str| name == call || name.strip_suffix('*').is_some_and(|start| call.starts_with(start));
    calls.iter().filter(|(name, _)| matches(name)).max_by_key(|(name, _)| name.len()).map(|(_, said)| *said)
}

/// What is written over what is not; an error replaces a value whole, and a value an error.
fn merge(below: serde_yaml::Value, above: serde_yaml::Value) -> serde_yaml::Value {
    use serde_yaml::Value::Mapping;
    match (below, above) {
        (below, above) if is_failing(&below) || is_failing(&above) => above,
        (Mapping(mut below), Mapping(above)) => {
            for (key, value) in above {
                let under = below.remove(&key).unwrap_or_default();
                below.insert(key, merge(under, value));
            }
            Mapping(below)
        }
        (_, above) => above,
    }
}

/// A card with all that real ones always have.
fn identified(mut gpu: Gpu, index: usize) -> Gpu {
    gpu.name.get_or_insert_with(|| "NVIDIA Simulated GPU".into());
    gpu.uuid.get_or_insert_with(|| format!("GPU-00000000-0000-4000-8000-{index:012x}"));
    gpu.pci.get_or_insert_with(|| format!("00000000:{:02X}:00.0", index + 1));
    gpu.minor.get_or_insert(index as u32);
    gpu.power_limits.requested = gpu.power_limits.requested.or(gpu.power_limits.enforced.clone());
    gpu.ecc.pending = gpu.ecc.pending.or(gpu.ecc.mode.clone());
    gpu
}

/// A MIG instance answers as a device that knows little.
fn seen_as_card(instance: &MigInstance, card: &Gpu) -> Gpu {
    let MigInstance { gpu_instance, compute_instance, .. } = *instance;
    let ours =
        |gi: Option<u32>, ci: Option<u32>| gi == Some(gpu_instance) && ci.is_none_or(|ci| ci == compute_instance);
    let name = card.name.as_deref().unwrap_or_default();
    let uuid = || format!("MIG-{:08x}-{:04x}-4000-8000-{}", gpu_instance, compute_instance, tail(card.uuid.as_deref()));
    Gpu {
        name: Some(format!("{name} MIG {}", instance.profile)),
        uuid: Some(instance.uuid.clone().unwrap_or_else(uuid)),
        pci: card.pci.clone(),
        compute_capability: card.compute_capability.clone(),
        memory: instance.memory.clone(),
        bar1: instance.bar1.clone(),
        gpm: instance.gpm.clone(),
        mig: Value::Known(Mig { instances: vec![instance.clone()], ..Mig::default() }),
        lost: card.lost || instance.lost,
        latency: card.latency.clone(),
        errors: card.errors.iter().chain(&instance.errors).map(|(call, error)| (call.clone(), *error)).collect(),
        processes: card
            .processes
            .iter()
            .filter(|process| ours(process.gpu_instance, process.compute_instance))
            .cloned()
            .collect(),
        ..Gpu::default()
    }
}

fn tail(uuid: Option<&str>) -> &str {
    uuid.and_then(|uuid| uuid.rsplit('-').next()).unwrap_or("000000000000")
}

/// "On MIG-enabled GPUs, querying device utilization rates is not currently supported."
fn without_utilization(gpu: &mut Gpu) {
    gpu.utilization = Value::LeftOut;
    gpu.encoder_utilization = Value::LeftOut;
    gpu.decoder_utilization = Value::LeftOut;
    gpu.jpeg_utilization = Value::LeftOut;
    gpu.ofa_utilization = Value::LeftOut;
}

impl Memory {
    pub fn free(&self, used: u64) -> u64 {
        self.total.0.saturating_sub(self.reserved.0).saturating_sub(used)
    }
}

/// What tells one state of the file from another.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    written: i128,
}

struct Loaded {
    stamp: Option<Stamp>,
    /// The newest last.
    history: VecDeque<Arc<Driver>>,
}

static LOADED: Mutex<Loaded> = Mutex::new(Loaded { stamp: None, history: VecDeque::new() });

/// The node now; without a scenario there is no driver.
pub fn current() -> Result<Arc<Driver>, Error> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = loaded.refresh() {
        eprintln!("nvml-sim: {error}");
    }
    loaded.history.back().cloned().ok_or(Error::DRIVER_NOT_LOADED)
}

/// The node as it was at a moment; before the first scenario, as it was then.
pub fn at(moment: u64) -> Option<Arc<Driver>> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.history.iter().rev().find(|driver| driver.since <= moment).or(loaded.history.front()).cloned()
}

/// Forgets what has been: a library that is unloaded takes nothing of it along, and each that is loaded would leave it.
pub fn forget() {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let old = loaded.history.len().saturating_sub(1);
    loaded.history.drain(..old);
    loaded.history.shrink_to_fit();
}

impl Loaded {
    /// Reads the scenario if it has changed. Each state of the file is complained of once.
    fn refresh(&mut self) -> Result<(), String> {
        let Some(path) = scenario_path() else { return Ok(()) };
        let stamp = fs::metadata(path).ok().map(|file| Stamp {
            inode: file.ino(),
            size: file.size(),
            written: i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec()),
        });
        if stamp == self.stamp {
            return Ok(());
        }
        self.stamp = stamp;
        // While there is no file, what it said last holds.
        let Some(stamp) = stamp else { return Ok(()) };
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
        let scenario = serde_yaml::from_str(&text).map_err(|error| wrong(&error))?;
        // A file that was copied with its times, or written while the clock was wrong, does not rewrite history.
        let newest = self.history.back().map_or(0, |driver| driver.since);
        let since = u64::try_from(stamp.written / 1000).unwrap_or_default().clamp(newest, now().max(newest));
        let driver =
            Driver::new(scenario, since, self.history.back().map(Arc::as_ref)).map_err(|error| wrong(&error))?;
        self.history.push_back(Arc::new(driver));
        while self.history.get(1).is_some_and(|next| next.since + MEMORY < now()) {
            self.history.pop_front();
        }
        Ok(())
    }
}

/// The file that `NVML_SIM_SCENARIO` names, or else `scenario.yaml` beside the library as it was loaded.
fn scenario_path() -> Option<&'static Path> {
    static PATH: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let named = env::var_os("NVML_SIM_SCENARIO").map(PathBuf::from);
        named.or_else(|| {
            // A constant lies in the part of the library that is mapped from its file.
            let beside = "scenario.yaml";
            let maps = fs::read_to_string("/proc/self/maps").ok()?;
            Some(mapped_at(beside.as_ptr().addr(), &maps)?.with_file_name(beside))
        })
    });
    PATH.as_deref()
}

/// The file that is mapped at an address, out of `/proc/PID/maps`.
fn mapped_at(address: usize, maps: &str) -> Option<&Path> {
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    maps.lines().find_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let here = (number(start)?..number(end)?).contains(&address);
        here.then(|| line.find('/').map(|path| Path::new(&line[path..])))?
    })
}

/// Microseconds since the epoch, as NVML counts time.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_knows_the_file_it_was_loaded_from() {
        let maps = "10-20 r--p 00000000 08:01 7    /usr/bin/x\n20-30 rw-p 00000000 00:00 0 \n\
            30-40 r--p 00000000 08:01 8    /tmp/a b/libnvidia-ml.so.1\n";
        let found = [0x1f, 0x20, 0x30, 0x40].map(|address| mapped_at(address, maps));
        assert_eq!(found, [Some(Path::new("/usr/bin/x")), None, Some(Path::new("/tmp/a b/libnvidia-ml.so.1")), None]);
    }

    #[test]
    fn a_call_obeys_its_own_name_before_a_longer_pattern_before_a_shorter() {
        let calls: Calls<u8> =
            [("*", 1), ("nvmlDevice*", 2), ("nvmlDeviceGetName", 3)].map(|(name, said)| (name.to_owned(), said)).into();
        let said = ["nvmlInit_v2", "nvmlDeviceGetNames", "nvmlDeviceGetName"].map(|call| named(&calls, call));
        assert_eq!(said, [Some(1), Some(2), Some(3)]);
    }
}
