//! The driver's library while it is loaded, and the patience between two attempts to load it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::Wanted;
use super::calls::Calls;
use super::card::{Asked, Card, Trouble};
use super::error::{self, Failure};
use super::mapped::Mapped;
use super::processes::{Lists, Sample};
use super::raw;
use super::topology::survey;
use super::work::Utilizations;
use super::xids::Xids;
use crate::snapshot::gpu::{Identity, Instance, Xid};
use crate::snapshot::{Driver, GpuFault, GpuUuid, Readings, Topology};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A number of cards beyond this is nonsense.
const MOST_CARDS: u32 = 4096;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the driver told of the whole node.
#[derive(Debug, Clone)]
pub struct Look {
    pub driver: Driver,
    pub simulated: bool,
    pub cards: Vec<Seen>,
    pub topology: Arc<Topology>,
}

/// What the driver told of one card.
#[derive(Debug, Clone)]
pub struct Seen {
    pub uuid: GpuUuid,
    pub index: u32,
    pub identity: Arc<Identity>,
    pub readings: Result<Readings, GpuFault>,
    pub lists: Result<Lists, String>,
    pub samples: Option<Vec<Sample>>,
    /// How busy its engines were while those were taken, where that was measured as well.
    pub measured: Utilizations,
    /// Whether it is cut into instances, as it last said.
    pub mig: bool,
    pub xids: BTreeMap<u64, Xid>,
    pub instances: Vec<Instance>,
}

/// Who is on one card.
#[derive(Debug, Clone)]
pub struct Holders {
    pub uuid: GpuUuid,
    pub lists: Result<Lists, String>,
}

/// Owned by the driver's thread, and by nobody else.
pub struct Session {
    library: OsString,
    nvml: Option<Nvml>,
    driver: Driver,
    simulated: bool,
    /// Every card ever seen, by the index it had then.
    cards: Vec<Card>,
    topology: Arc<Topology>,
    pub calls: Calls,
    patience: Patience,
    xids: Xids,
    /// The library's file, since it was first loaded.
    pub mapped: Option<Mapped>,
    /// A library that this thread has closed, and the next is to unload: its thread-local destructors must have run.
    closed: Option<Nvml>,
    /// Nothing more is to be asked in this thread.
    pub is_over: bool,
    /// Why the agent must start anew: the library that was closed stands in the way of another.
    pub stale: Option<String>,
}

/// When the library may be loaded again, and why it could not be.
struct Patience {
    next: Option<(Instant, String)>,
    pause: Duration,
}

impl Session {
    pub fn new(library: OsString, calls: Calls) -> Self {
        Self {
            library,
            nvml: None,
            driver: Driver { driver_version: None, nvml_version: None, cuda_version: None },
            simulated: false,
            cards: Vec::new(),
            topology: Arc::default(),
            calls,
            patience: Patience { next: None, pause: FIRST_PAUSE },
            xids: Xids::default(),
            mapped: None,
            closed: None,
            is_over: false,
            stale: None,
        }
    }

    /// In a thread of its own, after another has ended.
    pub fn resume(&mut self) {
        drop(self.closed.take());
        self.is_over = false;
    }

    pub fn look(&mut self, wanted: Wanted) -> Result<Look, String> {
        let mut xids = std::mem::take(&mut self.xids);
        let cards = self.with_each_card(|card, asked| {
            card.identify(asked)?;
            let (identity, uuid, index) = (card.identity.clone(), card.uuid.clone(), card.index);
            // The lists come first: what the cards tell of themselves takes longer, and processes come and go.
            let slots = card.slots(asked)?;
            let lists = card.all_lists(asked, &slots)?;
            let samples = card.samples(asked)?;
            let mut readings = card.read(asked, wanted)?;
            let mut instances = card.instances(asked, &slots)?;
            readings.activity = card.activity(asked, wanted, &mut instances)?;
            readings.mig_mode = slots.mode;
            let (mig, measured) = (card.mig == Some(true), card.measured);
            xids.listen(card, asked)?;
            let xids = BTreeMap::new();
            Ok(Seen { uuid, index, identity, readings: Ok(readings), lists, samples, measured, mig, instances, xids })
        })?;
        if let Some(nvml) = &self.nvml {
            xids.count(nvml, &mut self.calls, &mut self.cards);
        }
        self.xids = xids;
        let lost = |card: &Card, fault: GpuFault| Seen {
            uuid: card.uuid.clone(),
            index: card.index,
            identity: card.identity.clone(),
            lists: Err(format!("GPU {} ({}) is {}", card.index, card.uuid, fault.0)),
            readings: Err(fault),
            samples: None,
            measured: Utilizations::default(),
            mig: false,
            xids: BTreeMap::new(),
            instances: Vec::new(),
        };
        let mut cards: Vec<Seen> = self
            .cards
            .iter()
            .zip(cards)
            .map(|(card, seen)| Seen { xids: card.xids.clone(), ..seen.unwrap_or_else(|fault| lost(card, fault)) })
            .collect();
        cards.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
        if let Some(nvml) = &self.nvml {
            self.topology = survey(&self.topology, nvml, &mut self.calls, &cards);
        }
        let (driver, simulated, topology) = (self.driver.clone(), self.simulated, self.topology.clone());
        Ok(Look { driver, simulated, cards, topology })
    }

    /// Its versions, as far as they are not known yet.
    fn identify(&mut self, nvml: &Nvml) {
        let (driver, calls) = (&mut self.driver, &mut self.calls);
        let told = &mut driver.driver_version;
        *told = told.take().or_else(|| calls.make("nvmlSystemGetDriverVersion", || nvml.sys_driver_version()).ok());
        let told = &mut driver.nvml_version;
        *told = told.take().or_else(|| calls.make("nvmlSystemGetNVMLVersion", || nvml.sys_nvml_version()).ok());
        let told = &mut driver.cuda_version;
        *told = told.take().or_else(|| {
            let version = calls.make("nvmlSystemGetCudaDriverVersion_v2", || nvml.sys_cuda_driver_version()).ok();
            version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
        });
    }

    /// The lists alone, for whoever is about to act.
    pub fn holders(&mut self) -> Result<Vec<Holders>, String> {
        let lists = self.with_each_card(|card, asked| {
            let slots = card.slots(asked)?;
            card.all_lists(asked, &slots)
        })?;
        Ok(self
            .cards
            .iter()
            .zip(lists)
            .map(|(card, lists)| Holders {
                uuid: card.uuid.clone(),
                lists: match lists {
                    Ok(lists) => lists,
                    Err(fault) => Err(format!("GPU {} ({}) is {}", card.index, card.uuid, fault.0)),
                },
            })
            .collect())
    }

    /// Asks each card that was ever seen, in the order of `self.cards`. A lost one does not disturb the others.
    fn with_each_card<T>(
        &mut self,
        mut ask: impl FnMut(&mut Card, &mut Asked) -> Result<T, Trouble>,
    ) -> Result<Vec<Result<T, GpuFault>>, String> {
        let nvml = self.open()?;
        match visit(&nvml, &mut self.cards, &mut self.calls, &mut ask) {
            Ok(answers) => {
                self.identify(&nvml);
                self.nvml = Some(nvml);
                Ok(answers)
            }
            // The library is closed, and loaded afresh: the driver was exchanged under it.
            Err(failure) => {
                self.cards.iter_mut().for_each(|card| card.gpm.free(&nvml, &mut self.calls));
                self.calls.make("nvmlShutdown", || raw::shutdown(&nvml)).ok();
                (self.closed, self.is_over) = (Some(nvml), true);
                Err(self.patience.wait(failure.to_string()))
            }
        }
    }

    fn open(&mut self) -> Result<Nvml, String> {
        if let Some(nvml) = self.nvml.take() {
            return Ok(nvml);
        }
        self.patience.allow()?;
        let library = self.library.clone();
        if self.mapped.as_ref().is_some_and(|mapped| mapped.stands_in_the_way(&library)) {
            let why = "the driver was exchanged, and its old library cannot be unloaded";
            self.stale = Some(why.into());
            return Err(self.patience.wait(why.into()));
        }
        let nvml = match self.calls.make("nvmlInit_v2", || Nvml::builder().lib_path(&library).init()) {
            Ok(nvml) => nvml,
            Err(NvmlError::LibloadingError(cause)) => {
                let why = format!("there is no NVIDIA driver: {cause}");
                return Err(self.patience.wait(why));
            }
            Err(failure) => {
                self.is_over = true;
                let failure = Failure { call: "nvmlInit_v2", error: error::name(&failure) };
                return Err(self.patience.wait(failure.to_string()));
            }
        };
        self.mapped = raw::address(&nvml).and_then(Mapped::at);
        self.xids.forget_the_session();
        self.cards.iter_mut().for_each(Card::forget_the_session);
        self.topology = Arc::default();
        self.simulated = raw::simulated(&nvml);
        self.driver = Driver { driver_version: None, nvml_version: None, cuda_version: None };
        Ok(nvml)
    }
}

fn visit<T>(
    nvml: &Nvml,
    cards: &mut Vec<Card>,
    calls: &mut Calls,
    ask: &mut impl FnMut(&mut Card, &mut Asked) -> Result<T, Trouble>,
) -> Result<Vec<Result<T, GpuFault>>, Failure> {
    let failed = |call, error: &NvmlError| Failure { call, error: error::name(error) };
    let count = calls
        .make("nvmlDeviceGetCount_v2", || match nvml.device_count()? {
            count if count > MOST_CARDS => Err(NvmlError::Unknown),
            count => Ok(count),
        })
        .map_err(|error| failed("nvmlDeviceGetCount_v2", &error))?;
    // Until a card is asked it is one that the driver no longer names.
    let mut answers: Vec<Result<T, GpuFault>> = cards.iter().map(|_| Err(error::MISSING)).collect();
    let mut named = BTreeSet::new();
    let mut mute = Vec::new();
    for index in 0..count {
        const CALL: &str = "nvmlDeviceGetHandleByIndex_v2";
        let device = calls.make(CALL, || nvml.device_by_index(index));
        let device = match device {
            Ok(device) => device,
            Err(error) if error::ends_the_session(&error) => return Err(failed(CALL, &error)),
            Err(error) => {
                mute.push((index, error::fault(&error)));
                continue;
            }
        };
        let uuid = match calls.make("nvmlDeviceGetUUID", || device.uuid()) {
            Ok(uuid) => GpuUuid(uuid.into()),
            Err(error) if error::ends_the_session(&error) => return Err(failed("nvmlDeviceGetUUID", &error)),
            Err(error) => {
                mute.push((index, error::fault(&error)));
                continue;
            }
        };
        let mut asked = Asked { nvml, device: &device, calls };
        let place = match cards.iter().position(|card| card.uuid == uuid) {
            Some(place) => place,
            None => match Card::meet(uuid, index, &mut asked) {
                Ok(card) => {
                    cards.push(card);
                    answers.push(Err(error::MISSING));
                    cards.len() - 1
                }
                Err(Trouble::Driver(failure)) => return Err(failure),
                // It was lost while it introduced itself; it is met when it answers again.
                Err(Trouble::Card(_)) => continue,
            },
        };
        // Two that bear one name cannot be told apart: the first has it.
        if !named.insert(place) {
            continue;
        }
        answers[place] = match ask(&mut cards[place], &mut asked) {
            Ok(answer) => Ok(answer),
            Err(Trouble::Card(fault)) => Err(fault),
            Err(Trouble::Driver(failure)) => return Err(failure),
        };
    }
    // A card that cannot even say who it is is the one that was seen under this number, unless that one has spoken.
    for (index, fault) in mute {
        if let Some(place) = cards.iter().position(|card| card.index == index)
            && !named.contains(&place)
        {
            answers[place] = Err(fault);
        }
    }
    for (card, _) in cards.iter_mut().zip(&answers).filter(|(_, answer)| answer.is_err()) {
        card.forget_the_time_before(nvml, calls);
    }
    Ok(answers)
}

impl Patience {
    /// Whether it is time to try again; if not, why the last attempt failed.
    fn allow(&self) -> Result<(), String> {
        match &self.next {
            Some((next, why)) if Instant::now() < *next => Err(why.clone()),
            _ => Ok(()),
        }
    }

    fn wait(&mut self, why: String) -> String {
        self.next = Some((Instant::now() + self.pause, why.clone()));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        why
    }
}
