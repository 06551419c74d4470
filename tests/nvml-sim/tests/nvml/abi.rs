//! The C interface itself: what callers may get wrong, and the protocols of lists.

use crate::sim::Sim;
use nvml_wrapper_sys::bindings::*;
use std::mem;
use std::ptr::{self, null_mut};

/// The library, and the first card of `gpus: [{gpu}]`.
struct Loaded {
    _sim: Sim,
    nvml: NvmlLib,
    card: nvmlDevice_t,
}

impl Loaded {
    fn new(scenario: &str) -> Self {
        let sim = Sim::new(scenario);
        // SAFETY: it is our own library.
        let nvml = unsafe { NvmlLib::new(sim.library()) }.unwrap();
        let mut card = null_mut();
        // SAFETY: the pointer is one to a handle.
        unsafe {
            assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut card), nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
            assert_eq!(nvml.nvmlInit_v2(), nvmlReturn_enum_NVML_SUCCESS);
            assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(0, &mut card), nvmlReturn_enum_NVML_SUCCESS);
        }
        Self { _sim: sim, nvml, card }
    }

    /// What the list of compute processes answers where there is `room`, how many it says there are, and the entries.
    fn processes(&self, room: u32) -> (nvmlReturn_t, u32, Vec<nvmlProcessInfo_t>) {
        // SAFETY: zeros are such an entry.
        let mut entries: Vec<nvmlProcessInfo_t> = vec![unsafe { mem::zeroed() }; room as usize];
        let start = if room == 0 { null_mut() } else { entries.as_mut_ptr() };
        let mut count = room;
        // SAFETY: there is as much room as is said.
        let answer = unsafe { self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.card, &mut count, start) };
        (answer, count, entries)
    }
}

const TWO: &str = "gpus: [{utilization: 1%, processes: [
    {pid: 7, always: true, utilization: 1%, memory: 1MiB}, {pid: 8, always: true, utilization: 2%}]}]";

#[test]
fn a_list_says_how_much_room_it_needs() {
    let (code, count, _) = Loaded::new("gpus: [{}]").processes(0);
    assert_eq!((code, count), (nvmlReturn_enum_NVML_SUCCESS, 0), "nobody needs no room");
    let two = Loaded::new(TWO);
    for room in [0, 1] {
        let (code, count, _) = two.processes(room);
        assert_eq!((code, count), (nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, 2));
    }
    let (code, count, entries) = two.processes(5);
    assert_eq!((code, count), (nvmlReturn_enum_NVML_SUCCESS, 2));
    let told: Vec<_> = entries.iter().map(|entry| (entry.pid, entry.usedGpuMemory)).collect();
    assert_eq!(told, [(7, 1 << 20), (8, u64::MAX), (0, 0), (0, 0), (0, 0)]);
}

#[test]
fn samples_of_processes_say_how_much_room_they_need() {
    let two = Loaded::new(TWO);
    let mut count = 0;
    // SAFETY: no room is said, none is given; then there is room for two.
    unsafe {
        let answer = two.nvml.nvmlDeviceGetProcessUtilization(two.card, null_mut(), &mut count, 0);
        assert_eq!((answer, count), (nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, 2));
        let mut samples: [nvmlProcessUtilizationSample_t; 2] = mem::zeroed();
        let answer = two.nvml.nvmlDeviceGetProcessUtilization(two.card, samples.as_mut_ptr(), &mut count, 0);
        assert_eq!((answer, count), (nvmlReturn_enum_NVML_SUCCESS, 2));
        assert_eq!(samples.map(|sample| (sample.pid, sample.smUtil)), [(7, 1), (8, 2)]);

        let mut samples: [nvmlProcessUtilizationInfo_v1_t; 2] = mem::zeroed();
        let version = mem::size_of::<nvmlProcessesUtilizationInfo_v1_t>() as u32 | 1 << 24;
        let mut info = nvmlProcessesUtilizationInfo_v1_t {
            version,
            processSamplesCount: 2,
            lastSeenTimeStamp: 0,
            procUtilArray: samples.as_mut_ptr(),
        };
        let answer = two.nvml.nvmlDeviceGetProcessesUtilizationInfo(two.card, &mut info);
        assert_eq!((answer, info.processSamplesCount), (nvmlReturn_enum_NVML_SUCCESS, 2));
        assert_eq!(samples.map(|sample| (sample.pid, sample.smUtil)), [(7, 1), (8, 2)]);
    }
}

#[test]
fn entries_of_a_faulty_driver_are_32_bytes_apart() {
    let faulty = Loaded::new(&format!("driver: {{oversized_process_entries: true}}\n{TWO}"));
    let (_, count, entries) = faulty.processes(5);
    assert_eq!(count, 2);
    // The second entry begins 8 bytes into the next slot of 24, so that its pid is read out of the middle of one.
    assert_eq!((entries[0].pid, entries[1].pid), (7, u32::MAX));
}

#[test]
fn pointers_that_lead_nowhere_are_invalid_arguments() {
    let one = Loaded::new("gpus: [{name: A, memory: {total: 1GiB}}]");
    let (nvml, card) = (&one.nvml, one.card);
    let foreign = ptr::from_ref(&0u64).cast_mut().cast();
    let mut degrees = 0;
    // SAFETY: null and foreign handles are what the library promises to refuse.
    let answers = unsafe {
        [
            nvml.nvmlDeviceGetName(card, null_mut(), 0),
            nvml.nvmlDeviceGetMemoryInfo(card, null_mut()),
            nvml.nvmlDeviceGetHandleByUUID(ptr::null(), &mut null_mut()),
            nvml.nvmlDeviceGetHandleByIndex_v2(1, &mut null_mut()),
            nvml.nvmlDeviceGetTemperature(null_mut(), 0, &mut degrees),
            nvml.nvmlDeviceGetTemperature(foreign, 0, &mut degrees),
            nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, null_mut(), null_mut()),
            nvml.nvmlEventSetFree(null_mut()),
        ]
    };
    assert_eq!(answers, [nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT; 8]);
}

#[test]
fn a_text_needs_room_and_a_struct_its_version() {
    let one = Loaded::new("gpus: [{name: A card, memory: {total: 1GiB}}]");
    let mut text = [0; 7];
    // SAFETY: there is as much room as is said, and zeros are such a struct.
    unsafe {
        let answer = one.nvml.nvmlDeviceGetName(one.card, text.as_mut_ptr(), 6);
        assert_eq!(answer, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
        assert_eq!(one.nvml.nvmlDeviceGetName(one.card, text.as_mut_ptr(), 7), nvmlReturn_enum_NVML_SUCCESS);
        let mut memory = nvmlMemory_v2_t { version: 1, ..mem::zeroed() };
        let answer = one.nvml.nvmlDeviceGetMemoryInfo_v2(one.card, &mut memory);
        assert_eq!(answer, nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    }
}

#[test]
fn each_init_wants_its_shutdown() {
    let one = Loaded::new("gpus: [{}]");
    // SAFETY: these take no pointers.
    let answers =
        unsafe { [one.nvml.nvmlInit_v2(), one.nvml.nvmlShutdown(), one.nvml.nvmlShutdown(), one.nvml.nvmlShutdown()] };
    let (success, uninitialized) = (nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    assert_eq!(answers, [success, success, success, uninitialized]);
}

#[test]
fn every_function_of_nvml_is_there() {
    let one = Loaded::new("gpus: [{}]");
    assert!(one.nvml.nvmlVgpuTypeGetName.is_ok() && one.nvml.nvmlUnitGetCount.is_ok());
    let mut fans = 0;
    // SAFETY: the pointer is one to a number.
    let answer = unsafe { one.nvml.nvmlDeviceGetIrqNum(one.card, &mut fans) };
    assert_eq!(answer, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
}
