//! The driver's library, and how each call is made. One that is not in the table is refused at the start: a floor that
//! left it out would be none.

use std::collections::BTreeMap;
use std::ffi::{CString, c_uint, c_void};
use std::mem::size_of;
use std::ptr::{null_mut, without_provenance_mut};

use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NvmlLib, nvmlEventTypeXidCriticalError, nvmlFieldValue_t, nvmlGpmMetricsGet_t,
    nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_TIMEOUT, nvmlReturn_enum_NVML_SUCCESS,
    nvmlReturn_t, nvmlSample_t,
};

use crate::script::{Call, FIRST};

/// What a call takes. Devices come first where there is one.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Of the node: places for values.
    Node,
    /// Of the node: a buffer and its length.
    NodeText,
    /// A number, and a place for the handle of the card with this number.
    Handle,
    /// Places for values.
    Values,
    /// Numbers, each out of a list; from call to call another combination. Then places for values.
    Numbered(&'static [&'static [usize]]),
    /// A buffer and its length.
    Text,
    /// A struct of a version and a size.
    Struct {
        version: usize,
        size: usize,
    },
    /// A count and a list of processes.
    Processes,
    /// A number that counts up to this, a count and a list.
    List(usize),
    /// Samples of processes since a moment, with their count.
    ProcessSamples,
    /// A number as above, a moment, the type of the values, a count and the samples since.
    Samples(usize),
    /// A count and fields with their ids.
    Fields,
    /// A place for a sample of GPM; the sample that was longest kept; the sample of a card; the last two of a card.
    GpmAlloc,
    GpmFree,
    GpmSample,
    GpmMetrics,
    /// The set that waits for Xid errors, a place for one, and no time to wait.
    Events,
}

use Shape::*;

const LINKS: [usize; 18] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];
const FANS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Of `nvmlMemoryLocation_t`, the two that the agent asks for.
const DRAM: usize = 2;
const SRAM: usize = 7;

/// Answers that are none of a call that was made wrongly: nothing new, no room yet, nothing came.
const IN_ORDER: [nvmlReturn_t; 4] = [
    nvmlReturn_enum_NVML_SUCCESS,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT,
];

const SHAPES: &[(&str, Shape)] = &[
    (FIRST, Node),
    ("nvmlSystemGetCudaDriverVersion_v2", Node),
    ("nvmlSystemGetDriverVersion", NodeText),
    ("nvmlSystemGetNVMLVersion", NodeText),
    ("nvmlDeviceGetHandleByIndex_v2", Handle),
    ("nvmlDeviceGetUUID", Text),
    ("nvmlDeviceGetName", Text),
    ("nvmlDeviceGetSerial", Text),
    ("nvmlDeviceGetVbiosVersion", Text),
    ("nvmlDeviceGetInforomImageVersion", Text),
    ("nvmlDeviceGetBoardPartNumber", Text),
    ("nvmlDeviceGetArchitecture", Values),
    ("nvmlDeviceGetBAR1MemoryInfo", Values),
    ("nvmlDeviceGetBrand", Values),
    ("nvmlDeviceGetComputeMode", Values),
    ("nvmlDeviceGetCudaComputeCapability", Values),
    ("nvmlDeviceGetCurrPcieLinkGeneration", Values),
    ("nvmlDeviceGetCurrPcieLinkWidth", Values),
    ("nvmlDeviceGetCurrentClocksEventReasons", Values),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", Values),
    ("nvmlDeviceGetDecoderUtilization", Values),
    ("nvmlDeviceGetEccMode", Values),
    ("nvmlDeviceGetEncoderUtilization", Values),
    ("nvmlDeviceGetEnforcedPowerLimit", Values),
    ("nvmlDeviceGetJpgUtilization", Values),
    ("nvmlDeviceGetMaxPcieLinkGeneration", Values),
    ("nvmlDeviceGetMaxPcieLinkWidth", Values),
    ("nvmlDeviceGetMemoryInfo", Values),
    ("nvmlDeviceGetMigMode", Values),
    ("nvmlDeviceGetMinorNumber", Values),
    ("nvmlDeviceGetNumFans", Values),
    ("nvmlDeviceGetNumaNodeId", Values),
    ("nvmlDeviceGetOfaUtilization", Values),
    ("nvmlDeviceGetPciInfo_v3", Values),
    ("nvmlDeviceGetPcieReplayCounter", Values),
    ("nvmlDeviceGetPerformanceState", Values),
    ("nvmlDeviceGetPersistenceMode", Values),
    ("nvmlDeviceGetPowerManagementDefaultLimit", Values),
    ("nvmlDeviceGetPowerManagementLimit", Values),
    ("nvmlDeviceGetPowerManagementLimitConstraints", Values),
    ("nvmlDeviceGetPowerUsage", Values),
    ("nvmlDeviceGetRemappedRows", Values),
    ("nvmlDeviceGetRetiredPagesPendingStatus", Values),
    ("nvmlDeviceGetRowRemapperHistogram", Values),
    ("nvmlDeviceGetTotalEnergyConsumption", Values),
    ("nvmlDeviceGetUtilizationRates", Values),
    ("nvmlDeviceGetClockInfo", Numbered(&[&[0, 1, 2, 3]])),
    ("nvmlDeviceGetFanSpeed_v2", Numbered(&[&FANS])),
    ("nvmlDeviceGetMaxClockInfo", Numbered(&[&[0, 1, 2, 3]])),
    ("nvmlDeviceGetMemoryErrorCounter", Numbered(&[&[0, 1], &[0, 1], &[DRAM, SRAM]])),
    ("nvmlDeviceGetNvLinkErrorCounter", Numbered(&[&LINKS, &[0, 1, 2]])),
    ("nvmlDeviceGetNvLinkState", Numbered(&[&LINKS])),
    ("nvmlDeviceGetNvLinkVersion", Numbered(&[&LINKS])),
    ("nvmlDeviceGetPcieThroughput", Numbered(&[&[0, 1]])),
    ("nvmlDeviceGetTemperature", Numbered(&[&[0]])),
    ("nvmlDeviceGetTemperatureThreshold", Numbered(&[&[0, 1, 2, 3]])),
    ("nvmlDeviceGetTotalEccErrors", Numbered(&[&[0, 1], &[0, 1]])),
    ("nvmlDeviceGetViolationStatus", Numbered(&[&[0, 1, 2]])),
    ("nvmlDeviceGetMemoryInfo_v2", Struct { version: 2, size: size_of::<nvmlMemory_v2_t>() }),
    ("nvmlDeviceGetComputeRunningProcesses_v3", Processes),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", Processes),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", Processes),
    ("nvmlDeviceGetRetiredPages", List(2)),
    ("nvmlDeviceGetProcessUtilization", ProcessSamples),
    ("nvmlDeviceGetSamples", Samples(7)),
    ("nvmlDeviceGetFieldValues", Fields),
    ("nvmlGpmSampleAlloc", GpmAlloc),
    ("nvmlGpmSampleFree", GpmFree),
    ("nvmlGpmSampleGet", GpmSample),
    ("nvmlGpmMetricsGet", GpmMetrics),
    ("nvmlEventSetWait_v2", Events),
];

/// Every function of NVML takes at most six numbers or pointers, and answers with a number.
type Function = unsafe extern "C" fn(Word, Word, Word, Word, Word, Word) -> nvmlReturn_t;
type Word = *mut c_void;

/// Room for the longest list, and for any struct or text.
const ENTRIES: usize = 4096;
const PLACE: usize = 16 << 10;

pub struct Driver {
    functions: BTreeMap<String, (Function, Shape)>,
    handles: BTreeMap<usize, Word>,
    listed: Vec<u32>,
    /// How many calls of this cycle the driver had no answer to.
    pub refused: usize,
    /// When a card's processes were last sampled, and its values.
    seen: BTreeMap<(usize, String, usize), u64>,
    gpm: Gpm,
    events: Word,
    processes: Vec<nvmlProcessInfo_t>,
    process_samples: Vec<nvmlProcessUtilizationSample_t>,
    samples: Vec<nvmlSample_t>,
    fields: Vec<nvmlFieldValue_t>,
    metrics: Box<nvmlGpmMetricsGet_t>,
    places: [Vec<u64>; 4],
    // It has to outlive its functions.
    library: NvmlLib,
}

/// Samples of GPM: the last two of each card, and which card was sampled last.
#[derive(Default)]
struct Gpm {
    pairs: BTreeMap<usize, [Word; 2]>,
    fresh: Option<Word>,
    done: Vec<Word>,
    last: Option<usize>,
}

impl Driver {
    /// The library, initialised, with what these calls need.
    pub fn load<'a>(path: &str, calls: impl Iterator<Item = &'a Call>) -> Result<Self, String> {
        // SAFETY: what a library does when it is loaded is its own affair; this one is a driver's.
        let library = unsafe { NvmlLib::new(path) }.map_err(|error| error.to_string())?;
        let mut driver = Self {
            functions: BTreeMap::new(),
            handles: BTreeMap::new(),
            listed: Vec::new(),
            refused: 0,
            seen: BTreeMap::new(),
            gpm: Gpm::default(),
            events: null_mut(),
            processes: zeros(ENTRIES),
            process_samples: zeros(ENTRIES),
            samples: zeros(ENTRIES),
            fields: zeros(ENTRIES),
            metrics: Box::new(zeros(1)[0]),
            places: [(); 4].map(|()| vec![0; PLACE / 8]),
            library,
        };
        // SAFETY: it takes nothing.
        succeeded("nvmlInit_v2", unsafe { driver.library.nvmlInit_v2() })?;
        for call in calls {
            if !driver.functions.contains_key(&call.name) {
                let function = driver.function(&call.name)?;
                driver.functions.insert(call.name.clone(), function);
            }
        }
        driver.expect_xids()?;
        Ok(driver)
    }

    fn function(&self, name: &str) -> Result<(Function, Shape), String> {
        let shape = SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape);
        let shape = shape.ok_or_else(|| format!("the bare loop does not know how to call {name}: see SHAPES"))?;
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: it is a function of nvml.h. In the C calling conventions of Linux six numbers or pointers are passed
        // in registers, and a function does not look at those that it does not take.
        let function = unsafe { self.library.__library.get::<Function>(symbol.as_bytes_with_nul()) };
        Ok((*function.map_err(|error| error.to_string())?, shape))
    }

    /// Once, as every program that waits for events does: outside of the cycles.
    fn expect_xids(&mut self) -> Result<(), String> {
        if !self.functions.contains_key("nvmlEventSetWait_v2") {
            return Ok(());
        }
        let mut count = 0;
        // SAFETY: the pointers lead to a number, a set and a handle; set and handle are used with their own library.
        unsafe {
            let nvml = &self.library;
            succeeded("nvmlEventSetCreate", nvml.nvmlEventSetCreate((&raw mut self.events).cast()))?;
            succeeded(FIRST, nvml.nvmlDeviceGetCount_v2(&mut count))?;
            for index in 0..count {
                let mut card = null_mut();
                succeeded("nvmlDeviceGetHandleByIndex_v2", nvml.nvmlDeviceGetHandleByIndex_v2(index, &mut card))?;
                let xids = u64::from(nvmlEventTypeXidCriticalError);
                succeeded("nvmlDeviceRegisterEvents", nvml.nvmlDeviceRegisterEvents(card, xids, self.events.cast()))?;
            }
        }
        Ok(())
    }

    /// Makes the call. What it answers is of no interest, but for the processes that it lists.
    pub fn make(&mut self, call: &Call) {
        if call.name == FIRST {
            self.listed.clear();
            self.refused = 0;
        }
        let (function, shape) = self.functions[&call.name];
        let none = null_mut();
        let card = call.card.and_then(|card| self.handles.get(&card).copied()).unwrap_or(none);
        let [a, b, c, d] = self.places.each_mut().map(|place| place.as_mut_ptr().cast::<c_void>());
        // Of each function the table says what it takes. Places are larger than any struct, lists have as much
        // room as is said, and handles, samples and sets are the library's own or null, which it refuses.
        let mut refused = 0;
        let mut invoke = |[a, b, c, d, e, f]: [Word; 6]| {
            // SAFETY: see above.
            let code = unsafe { function(a, b, c, d, e, f) };
            refused += usize::from(!IN_ORDER.contains(&code));
            code
        };
        match shape {
            Node => _ = invoke([a, b, c, d, none, none]),
            NodeText => _ = invoke([a, number(PLACE), none, none, none, none]),
            Handle => {
                let mut handle: Word = none;
                invoke([number(call.before), (&raw mut handle).cast(), none, none, none, none]);
                self.handles.insert(call.before, handle);
            }
            Values => _ = invoke([card, a, b, c, d, none]),
            Numbered(choices) => {
                let mut words = [card, none, none, none, a, b];
                let mut rest = call.before;
                for (word, choice) in words[1..].iter_mut().zip(choices) {
                    *word = number(choice[rest % choice.len()]);
                    rest /= choice.len();
                }
                for (word, place) in words[1 + choices.len()..].iter_mut().zip([a, b]) {
                    *word = place;
                }
                invoke(words);
            }
            Text => _ = invoke([card, a, number(PLACE), none, none, none]),
            Struct { version, size } => {
                self.places[0][0] = (size | version << 24) as u64;
                invoke([card, self.places[0].as_mut_ptr().cast(), none, none, none, none]);
            }
            Processes => {
                let mut count = ENTRIES as c_uint;
                let entries = self.processes.as_mut_ptr().cast();
                if invoke([card, (&raw mut count).cast(), entries, none, none, none]) == 0 {
                    self.listed.extend(self.processes[..count as usize].iter().map(|entry| entry.pid));
                }
            }
            List(limit) => {
                let mut count = (PLACE / 8) as c_uint;
                invoke([card, number(call.before % limit), (&raw mut count).cast(), a, none, none]);
            }
            ProcessSamples => {
                let seen = self.seen.entry((call.card.unwrap_or_default(), call.name.clone(), 0)).or_default();
                // The first question is how many there are.
                let (mut count, samples) = match call.before {
                    0 => (0, none),
                    _ => (ENTRIES as c_uint, self.process_samples.as_mut_ptr().cast()),
                };
                let code = invoke([card, samples, (&raw mut count).cast(), number(*seen as usize), none, none]);
                if code == 0 && !samples.is_null() {
                    let newest = self.process_samples[..count as usize].iter().map(|sample| sample.timeStamp).max();
                    *seen = newest.unwrap_or(0).max(*seen);
                }
            }
            Samples(limit) => {
                let kind = call.before % limit;
                let seen = self.seen.entry((call.card.unwrap_or_default(), call.name.clone(), kind)).or_default();
                let mut count = ENTRIES as c_uint;
                let samples = self.samples.as_mut_ptr().cast();
                if invoke([card, number(kind), number(*seen as usize), a, (&raw mut count).cast(), samples]) == 0 {
                    let newest = self.samples[..count as usize].iter().map(|sample| sample.timeStamp).max();
                    *seen = newest.unwrap_or(0).max(*seen);
                }
            }
            Fields => {
                for (field, id) in self.fields.iter_mut().zip(&call.ids) {
                    (field.fieldId, field.scopeId) = (*id, 0);
                }
                invoke([card, number(call.ids.len()), self.fields.as_mut_ptr().cast(), none, none, none]);
            }
            GpmAlloc => {
                let mut sample: Word = none;
                invoke([(&raw mut sample).cast(), none, none, none, none, none]);
                self.gpm.fresh = Some(sample);
            }
            GpmFree => {
                if let Some(sample) = self.gpm.done.pop() {
                    invoke([sample, none, none, none, none, none]);
                }
            }
            GpmSample => _ = invoke([card, self.next_sample(call.card), none, none, none, none]),
            GpmMetrics => {
                let pair = self.gpm.last.and_then(|card| self.gpm.pairs.get(&card)).copied().unwrap_or([none; 2]);
                self.metrics.version = NVML_GPM_METRICS_GET_VERSION;
                self.metrics.numMetrics = call.ids.len() as c_uint;
                (self.metrics.sample1, self.metrics.sample2) = (pair[0].cast(), pair[1].cast());
                for (metric, id) in self.metrics.metrics.iter_mut().zip(&call.ids) {
                    metric.metricId = *id;
                }
                invoke([(&raw mut *self.metrics).cast(), none, none, none, none, none]);
            }
            Events => _ = invoke([self.events, a, none, none, none, none]),
        }
        self.refused += refused;
    }

    /// Where the next sample of a card goes: into the one that was just made, or else into the older of two.
    fn next_sample(&mut self, card: Option<usize>) -> Word {
        let Some(card) = card else { return null_mut() };
        self.gpm.last = Some(card);
        let fresh = self.gpm.fresh.take();
        let [older, newer] = *self.gpm.pairs.entry(card).or_insert_with(|| {
            [(); 2].map(|()| {
                let mut sample: Word = null_mut();
                // SAFETY: the pointer leads to a place for one sample.
                unsafe { self.library.nvmlGpmSampleAlloc((&raw mut sample).cast()) };
                sample
            })
        });
        let next = match fresh {
            Some(fresh) => {
                self.gpm.done.push(older);
                fresh
            }
            None => older,
        };
        self.gpm.pairs.insert(card, [newer, next]);
        next
    }

    /// The processes of this cycle, each once.
    pub fn listed(&mut self) -> Vec<u32> {
        self.listed.sort_unstable();
        self.listed.dedup();
        self.listed.clone()
    }
}

fn number(number: usize) -> Word {
    without_provenance_mut(number)
}

/// Records of NVML that are still to be written.
fn zeros<T: Copy>(count: usize) -> Vec<T> {
    // SAFETY: only called for C structs of numbers and pointers, for which zeros are a value.
    vec![unsafe { std::mem::zeroed() }; count]
}

fn succeeded(call: &str, code: nvmlReturn_t) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} answered {code}")) }
}
