//! `Sources::observe`: the node as it is now, from the driver, `/proc`, the directory and the lists of rights. Only here
//! is a clock read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

pub mod nvml;
pub mod procfs;
pub mod cgroup;
pub mod processes;
pub mod pci;
pub mod directory;
pub mod assignment;
pub mod names;

use crate::snapshot::hold::Engines;
use crate::snapshot::{
    Fault, Gpu, GpuUuid, Grantee, Health, Hold, Moment, Pause, Process, ProcessId, Reading, Snapshot, Source, Unseen,
    User,
};
use crate::units::{Percent, Uid};
use directory::Directory;
use nvml::processes::{Listed, Lists, Sample};
use nvml::{Look, Nvml, Seen, Wanted};
use processes::{Processes, Standpoint};
use procfs::Procfs;
use procfs::namespace::FIRST_PID_NAMESPACE;

/// Longer the cycle does not wait for the driver, however long its interval.
const PATIENCE: Duration = Duration::from_secs(3);

/// A driver that answers as fast as this is well, however short the interval: its late answers would all be lost.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// Where to look.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The driver's library, where it is not the one that the loader finds.
    pub nvml_library: Option<PathBuf>,
    pub procfs: PathBuf,
    pub state_dir: PathBuf,
    pub interval: Duration,
    pub wanted: Wanted,
    pub assignments: assignment::Settings,
}

/// Everything that the agent looks at, and what it must remember to understand it.
pub struct Sources {
    interval: Duration,
    wanted: Wanted,
    nvml: Nvml,
    procfs: Procfs,
    processes: Processes,
    directory: Directory,
    assignments: assignment::Sources,
    boot_id: String,
    /// When each process was first seen on each card.
    arrivals: BTreeMap<(i32, Option<u64>, GpuUuid), Duration>,
    /// Whether the driver is the simulated one, as it last said.
    simulated: bool,
    /// The most cards that were ever seen at once.
    most_cards: u32,
    mps_clients: BTreeSet<i32>,
    nvml_record: Record,
    procfs_record: Record,
    directory_record: Record,
    warned: BTreeMap<String, String>,
}

/// How a source fared so far.
#[derive(Debug, Clone, Default)]
struct Record {
    last_success: Option<Timestamp>,
    took: Option<Duration>,
    errors: u64,
}

/// Who is on which card at this moment, for whoever is about to act.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Occupancy {
    pub cards: BTreeMap<i32, BTreeSet<GpuUuid>>,
    /// Cards whose lists could not be read: who is on them is not known.
    pub unread: BTreeSet<GpuUuid>,
}

/// The one clock: wall time and boot time, read together.
pub fn now() -> Moment {
    let read = |clock| clock_gettime(clock).expect("Linux has had this clock since 2.6.39");
    let (wall, boot) = (read(ClockId::CLOCK_REALTIME), read(ClockId::CLOCK_BOOTTIME));
    let wall = Timestamp::new(wall.tv_sec(), wall.tv_nsec() as i32).expect("a year of four digits");
    Moment { wall, boot: Duration::from(boot) }
}

impl Sources {
    /// Fails only where the kernel gives no thread.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let procfs = Procfs::new(settings.procfs);
        let pins = assignment::pins::Pins::load(&settings.state_dir);
        Ok(Self {
            interval: settings.interval,
            wanted: settings.wanted,
            nvml: Nvml::new(settings.nvml_library.map(PathBuf::into_os_string)),
            boot_id: boot_id(&procfs),
            procfs,
            processes: Processes::default(),
            directory: Directory::start()?,
            assignments: assignment::Sources::new(settings.assignments, pins),
            arrivals: BTreeMap::new(),
            simulated: false,
            most_cards: 0,
            mps_clients: BTreeSet::new(),
            nvml_record: Record::default(),
            procfs_record: Record::default(),
            directory_record: Record::default(),
            warned: BTreeMap::new(),
        })
    }

    /// Takes over what may change while the agent runs. The driver's thread, what is known of processes and people, and
    /// the pins stay.
    pub fn reconfigure(&mut self, settings: Settings) {
        self.interval = settings.interval;
        self.wanted = settings.wanted;
        self.assignments.reconfigure(settings.assignments);
    }

    /// From now on the indexes mean the cards of now.
    pub fn reset_pins(&mut self) -> io::Result<()> {
        self.assignments.reset_pins()
    }

    pub fn now(&self) -> Moment {
        now()
    }

    /// Which boot of the host this is: boot times and process ids mean nothing in another.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The node as it is now. Never fails: what a source did not tell is absent from the value, with the reason.
    pub fn observe(&mut self) -> Snapshot {
        let began = Instant::now();
        let look = self.nvml.look(self.wanted, self.patience());
        if let Ok(look) = &look {
            self.nvml_record.took = Some(began.elapsed());
            self.simulated = look.simulated;
        }

        let began = Instant::now();
        let sight = Sight::of(&self.procfs, self.simulated);
        let (cards, suspect) = self.merged(&look);
        let identities = self.identify(&cards, &sight);
        self.procfs_record.took = Some(began.elapsed());

        self.assignments.read();
        self.directory.take_answers();

        let at = now();
        let mut gpus = match cards {
            Ok(cards) => Ok(self.assemble(cards, &identities, at)),
            Err(what) => Err(Fault::new(Source::Nvml, what)),
        };
        let gpus_expected = self.expected(&gpus);
        self.assignments.see(&gpus, gpus_expected);
        for gpu in gpus.iter_mut().flatten() {
            gpu.pinned = self.assignments.is_pinned(gpu.index, &gpu.uuid);
        }
        let (assignments, rights_health) = self.assignments.answer(&gpus, &mut self.directory, at);

        let processes: BTreeMap<ProcessId, Process> =
            identities.into_values().filter_map(|read| read.ok()).map(|process| (process.id, process)).collect();
        self.processes.keep(&processes);
        let owners = processes.values().filter_map(|process| process.uid);
        let named =
            assignments.sources.iter().flat_map(|source| source.answer.iter().flat_map(|answer| &answer.rights));
        let named = named.filter_map(|right| match right.to {
            Grantee::User { uid, .. } => Some(uid),
            _ => None,
        });
        let uids: BTreeSet<Uid> = owners.chain(named).collect();
        let users: BTreeMap<Uid, User> = uids.into_iter().map(|uid| (uid, self.directory.user(uid))).collect();

        let pauses = sight.pauses(look.is_err(), suspect);
        let nvml_fault = look.as_ref().err().cloned();
        let mut health = vec![self.nvml_health(nvml_fault, at), self.procfs_health(at), self.directory_health(at)];
        health.extend(rights_health);
        self.warn(&health, &gpus, &pauses);
        Snapshot {
            at,
            boot_id: self.boot_id.clone(),
            topology: look.as_ref().map_or_else(|_| Arc::default(), |look| look.topology.clone()),
            driver: look.map(|look| look.driver).map_err(|what| Fault::new(Source::Nvml, what)),
            gpus,
            processes,
            users,
            assignments,
            health,
            pauses,
            gpus_expected,
            nvml_errors: self.nvml.errors.clone(),
        }
    }

    /// Why the agent must start anew, where it must: another driver came, and the old one's library cannot be unloaded.
    pub fn stale_driver(&self) -> Option<&str> {
        self.nvml.stale.as_deref()
    }

    /// One fresh reading of the driver's lists, which serves all targets of a cycle.
    pub fn reexamine(&mut self) -> Reading<Occupancy> {
        let silent = |what: String| Fault::new(Source::Nvml, what);
        let holders = self.nvml.holders(self.patience()).map_err(silent)?;
        let pid_max = self.procfs.pid_max();
        let mut occupancy = Occupancy::default();
        for card in holders {
            let Ok(lists) = card.lists else {
                occupancy.unread.insert(card.uuid);
                continue;
            };
            // One list that cannot be true casts doubt on all of them.
            let listed = nvml::processes::merge(&lists, pid_max).map_err(|suspect| silent(suspect.to_string()))?;
            for pid in listed.into_keys() {
                occupancy.cards.entry(pid).or_default().insert(card.uuid.clone());
            }
        }
        Ok(occupancy)
    }

    /// One process as it is now: its start time, owner, confidence and protection, for whoever has opened its pidfd.
    pub fn process(&mut self, pid: i32) -> io::Result<Result<Process, Unseen>> {
        let sight = Sight::of(&self.procfs, self.simulated);
        self.processes.read(&self.procfs, &sight.standpoint, pid, self.mps_clients.contains(&pid))
    }

    fn patience(&self) -> Duration {
        self.interval.clamp(LEAST_PATIENCE, PATIENCE)
    }

    /// Each card with its processes, each pid once; and whether a list cannot be true.
    fn merged<'a>(&self, look: &'a Result<Look, String>) -> (Result<Vec<Merged<'a>>, String>, bool) {
        let look = match look {
            Ok(look) => look,
            Err(what) => return (Err(what.clone()), false),
        };
        let pid_max = self.procfs.pid_max();
        let mut suspect = false;
        let mut merge = |lists: &Lists| {
            nvml::processes::merge(lists, pid_max).map_err(|reason| {
                suspect = true;
                reason.to_string()
            })
        };
        let cards = look
            .cards
            .iter()
            .map(|seen| Merged { seen, listed: seen.lists.as_ref().map_err(Clone::clone).and_then(&mut merge) })
            .collect();
        (Ok(cards), suspect)
    }

    /// Who each pid is, read once however many cards it is on.
    fn identify(
        &mut self,
        cards: &Result<Vec<Merged>, String>,
        sight: &Sight,
    ) -> BTreeMap<i32, Result<Process, Unseen>> {
        let cards = cards.as_deref().unwrap_or(&[]);
        let listed = || cards.iter().flat_map(|card| card.listed.iter().flatten());
        self.mps_clients = listed().filter(|(_, listed)| listed.mps).map(|(pid, _)| *pid).collect();
        let pids: BTreeSet<i32> = listed().map(|(pid, _)| *pid).collect();
        let (mut identities, at) = (BTreeMap::new(), Instant::now());
        for pid in pids {
            // A pid of another namespace names nobody here, or somebody else.
            let read = if sight.foreign_pids {
                Ok(Err(Unseen::Hidden))
            } else {
                self.processes.follow(&self.procfs, &sight.standpoint, pid, self.mps_clients.contains(&pid), at)
            };
            let identity = read.unwrap_or_else(|error| {
                self.procfs_record.errors += 1;
                tracing::debug!(pid, %error, "cannot read a process");
                Err(Unseen::Hidden)
            });
            identities.insert(pid, identity);
        }
        identities
    }

    fn assemble(
        &mut self,
        cards: Vec<Merged>,
        identities: &BTreeMap<i32, Result<Process, Unseen>>,
        at: Moment,
    ) -> Vec<Gpu> {
        let mut present = BTreeSet::new();
        let mut unread = BTreeSet::new();
        let mut gpus = Vec::new();
        for Merged { seen, listed } in cards {
            let engines = self.wanted.process_engines;
            let mut hold = |(pid, listed): (i32, Listed)| {
                let process = match &identities[&pid] {
                    Ok(process) => Ok(process.id),
                    Err(unseen) => Err(*unseen),
                };
                let key = (pid, process.ok().map(|id| id.started), seen.uuid.clone());
                let since = *self.arrivals.entry(key.clone()).or_insert(at.boot);
                present.insert(key);
                let utilization = seen.utilization(pid);
                let engines = if engines { seen.engines(pid) } else { Engines::default() };
                // Outside MIG there are no instances, whatever stands in the fields for them.
                let instances = if seen.mig { listed.instances } else { BTreeMap::new() };
                let memory = listed.memory;
                let hold = Hold::new(pid, process, listed.kind, since);
                Hold { memory, utilization, engines, instances, ..hold }
            };
            let holds = match listed {
                Ok(listed) => Ok(listed.into_iter().map(&mut hold).collect()),
                Err(what) => {
                    unread.insert(seen.uuid.clone());
                    Err(Fault::new(Source::Nvml, what))
                }
            };
            gpus.push(Gpu {
                pinned: false,
                identity: seen.identity.clone(),
                readings: seen.readings.clone(),
                holds,
                xids: seen.xids.clone(),
                instances: seen.instances.clone(),
                ..Gpu::named(seen.uuid.clone(), seen.index)
            });
        }
        // Of a card whose list could not be read nobody has left.
        self.arrivals.retain(|key, _| present.contains(key) || unread.contains(&key.2));
        gpus
    }

    /// Cards on the bus or seen since the start, whichever are more; a simulated driver's are on no bus.
    fn expected(&mut self, gpus: &Reading<Vec<Gpu>>) -> Option<u32> {
        if let Ok(gpus) = gpus {
            self.most_cards = self.most_cards.max(gpus.len() as u32);
        }
        let seen = (self.most_cards > 0).then_some(self.most_cards);
        if self.simulated { seen } else { pci::cards(Path::new(pci::DEVICES)).max(seen) }
    }

    fn nvml_health(&mut self, fault: Option<String>, at: Moment) -> Health {
        match &fault {
            None => self.nvml_record.last_success = Some(at.wall),
            Some(_) => self.nvml_record.errors += 1,
        }
        self.nvml_record.health(Source::Nvml, fault)
    }

    fn procfs_health(&mut self, at: Moment) -> Health {
        let fault = std::fs::read_dir(self.procfs.root())
            .err()
            .map(|error| format!("cannot read {}: {error}", self.procfs.root().display()));
        match &fault {
            None => self.procfs_record.last_success = Some(at.wall),
            Some(_) => self.procfs_record.errors += 1,
        }
        self.procfs_record.health(Source::Procfs, fault)
    }

    fn directory_health(&mut self, at: Moment) -> Health {
        let fared = &self.directory.health;
        if fared.answered {
            self.directory_record.last_success = Some(at.wall);
        }
        self.directory_record.took = fared.took;
        self.directory_record.errors = fared.errors;
        self.directory_record.health(Source::Directory, fared.fault.clone())
    }

    /// Says once what has changed.
    fn warn(&mut self, health: &[Health], gpus: &Reading<Vec<Gpu>>, pauses: &[Pause]) {
        let mut troubles: BTreeMap<String, String> = BTreeMap::new();
        // The files speak for themselves, with the place of what is wrong.
        for fared in health.iter().filter(|fared| fared.source != Source::Files) {
            troubles.extend(fared.fault.clone().map(|fault| (fared.source.to_string(), fault)));
        }
        for fared in health {
            let names = fared.unresolved.iter().filter(|names| !names.is_empty()).map(|names| names.join(", "));
            troubles.extend(names.map(|names| (format!("names in {}", fared.source), unknown(&names))));
        }
        for gpu in gpus.iter().flatten() {
            let fault = match (&gpu.readings, &gpu.holds) {
                (Err(fault), _) => Some(format!("the card does not answer: {}", fault.0)),
                (Ok(_), Err(fault)) => Some(fault.what.clone()),
                (Ok(_), Ok(_)) => None,
            };
            troubles.extend(fault.map(|fault| (format!("gpu {} {}", gpu.index, gpu.uuid), fault)));
        }
        for pause in pauses {
            troubles.extend(remedy(*pause).map(|text| (format!("pause {}", pause.as_str()), text.to_owned())));
        }
        for (about, trouble) in &troubles {
            // What hangs is told of with its growing age: one warning is enough.
            if !self.warned.get(about).is_some_and(|before| ageless(before).eq(ageless(trouble))) {
                tracing::warn!(%about, "{trouble}");
            }
        }
        for about in self.warned.keys().filter(|about| !troubles.contains_key(*about)) {
            tracing::info!(%about, "well again");
        }
        self.warned = troubles;
    }
}

/// The words of a text, without those that say how many seconds something has lasted.
fn ageless(text: &str) -> impl Iterator<Item = &str> {
    let is_age = |word: &str| {
        let seconds = word.trim_end_matches(';').strip_suffix('s');
        seconds.is_some_and(|seconds| !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.split(' ').filter(move |word| !is_age(word))
}

fn unknown(names: &str) -> String {
    format!("no user, group or GPU of now, so that the rights which they could speak of are unknown: {names}")
}

/// A card and its processes, each pid once.
struct Merged<'a> {
    seen: &'a Seen,
    listed: Result<BTreeMap<i32, Listed>, String>,
}

impl Seen {
    fn utilization(&self, pid: i32) -> Option<Percent> {
        self.share(pid, |sample| sample.gpu, self.measured.gpu)
    }

    fn engines(&self, pid: i32) -> Engines {
        Engines {
            memory_controller: self.share(pid, |sample| sample.memory_controller, self.measured.memory_controller),
            encoder: self.share(pid, |sample| sample.encoder, self.measured.encoder),
            decoder: self.share(pid, |sample| sample.decoder, self.measured.decoder),
        }
    }

    fn share(&self, pid: i32, engine: fn(&Sample) -> Option<Percent>, card: Option<Percent>) -> Option<Percent> {
        // Under MPS the work of all clients appears as the server's.
        if self.lists.as_ref().is_ok_and(|lists| !lists.mps.is_empty()) {
            return None;
        }
        nvml::processes::share(pid, self.samples.as_deref(), engine, card)
    }
}

/// How far the agent can see the processes of its node.
struct Sight {
    standpoint: Standpoint,
    /// The driver's pids are those of another PID namespace.
    foreign_pids: bool,
    hidepid: bool,
    wsl: bool,
}

impl Sight {
    fn of(procfs: &Procfs, simulated: bool) -> Self {
        let standpoint = Standpoint::of(procfs, std::process::id() as i32);
        // Where the namespace cannot be read, it is not known to be the first.
        let foreign_pids = !simulated && standpoint.pid_namespace != Some(FIRST_PID_NAMESPACE);
        let (hidepid, wsl) = (procfs.hides_processes(), procfs.is_wsl());
        let standpoint = Standpoint { blind: foreign_pids || hidepid || wsl, ..standpoint };
        Self { standpoint, foreign_pids, hidepid, wsl }
    }

    fn pauses(&self, silent: bool, suspect: bool) -> Vec<Pause> {
        let table = [
            (silent, Pause::DriverStale),
            (suspect, Pause::SuspectList),
            (self.foreign_pids, Pause::PidNamespace),
            (self.hidepid, Pause::Hidepid),
            (self.wsl, Pause::Wsl),
        ];
        table.into_iter().filter(|(now, _)| *now).map(|(_, pause)| pause).collect()
    }
}

/// What the admin can do about a pause that the sources see.
fn remedy(pause: Pause) -> Option<&'static str> {
    match pause {
        Pause::PidNamespace => Some(
            "the agent runs in a PID namespace of its own and the driver speaks of the host's pids: \
             nothing is signalled; run it on the host, or in a container with the host's PID namespace",
        ),
        Pause::Hidepid => Some(
            "/proc is mounted with hidepid and hides other users' processes: nothing is signalled; \
             run the agent as root, with CAP_SYS_PTRACE, or in the group of the mount option gid=",
        ),
        Pause::Wsl => Some("under WSL the driver cannot tell processes apart: nothing is signalled"),
        _ => None,
    }
}

impl Record {
    fn health(&self, source: Source, fault: Option<String>) -> Health {
        let Self { last_success, took, errors } = self.clone();
        Health { source, fault, last_success, took, errors, unresolved: None }
    }
}

/// The boot that process ids and boot times belong to. One that cannot be read is like no other, so that nothing of
/// another boot is taken for this one's.
fn boot_id(procfs: &Procfs) -> String {
    let host = || Procfs::new("/proc").boot_id();
    procfs.boot_id().or_else(host).unwrap_or_else(|| format!("unknown since {}", now().wall))
}

#[cfg(test)]
mod tests;
