//! The calls that the wrapper lacks, or makes in a way that some drivers answer wrongly. The only unsafe code.

pub mod events;
pub mod samples;
pub mod fields;
pub mod values;

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlMemory_t, nvmlProcessUtilizationSample_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
    nvmlReturn_t,
};

pub mod gpm;
pub mod mig;
pub mod nvlink;

/// The lists of processes that a driver keeps for a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Compute,
    Graphics,
    /// Clients of an MPS server.
    Mps,
}

impl List {
    /// The function in its newest form, then in the form of older drivers; both fill records of 24 bytes.
    pub fn calls(self) -> [&'static str; 2] {
        match self {
            Self::Compute => ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"],
            Self::Graphics => ["nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"],
            Self::Mps => ["nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"],
        }
    }
}

/// One record of such a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub pid: u32,
    /// `None` where the driver does not tell (all bits set).
    pub memory: Option<u64>,
    /// GPU instance and compute instance; all bits set outside MIG.
    pub instance: (u32, u32),
}

/// A list, and whether the driver wrote more than records of the size that was agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Records {
    pub records: Vec<Record>,
    pub overrun: bool,
}

/// `nvmlProcessInfo_t` in words of eight bytes: pid and padding, memory, the two instances.
const WORDS: usize = 3;
/// What the buffer holds before the call. Some drivers write records of another size behind an unchanged function
/// version; what they leave of this, and what not, gives them away.
const SENTINEL: u64 = 0xa5a5_a5a5_a5a5_a5a5;
/// Between the question how many there are and the list itself more may come.
const HEADROOM: usize = 32;
const TRIES: usize = 4;
/// A driver that asks for room for more processes on a card than this is out of its mind.
const MOST: usize = 1 << 16;

type ListProcesses = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut u64) -> nvmlReturn_t;

pub fn processes(nvml: &Nvml, device: &Device, list: List) -> Result<Records, NvmlError> {
    let library = &nvml.lib().__library;
    // SAFETY: both functions are `nvmlReturn_t f(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *)` in every version of
    // nvml.h; the record is passed as words of the same size and alignment.
    let symbol = list.calls().into_iter().map(|name| unsafe { library.get::<ListProcesses>(name.as_bytes()) });
    let call = symbol
        .reduce(|newer, older| newer.or(older))
        .expect("there are two")
        .map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    // SAFETY: the handle is used with the library that gave it, which is open as long as `nvml` lives.
    let handle = unsafe { device.handle() };

    let mut capacity = HEADROOM;
    for _ in 0..TRIES {
        // Twice as large as the driver is told, so that records of 32 or even 48 bytes do not end in somebody else's memory.
        let mut words = vec![SENTINEL; capacity * WORDS * 2];
        let mut count = capacity as c_uint;
        // SAFETY: the buffer has room for `count` records and as much again.
        let code = unsafe { call(handle, &mut count, words.as_mut_ptr()) };
        if code == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE {
            capacity = room(count, capacity)?;
            continue;
        }
        nvml_try(code)?;
        return Ok(decode(&words, (count as usize).min(capacity)));
    }
    Err(NvmlError::InsufficientSize(None))
}

/// How many records there is to be room for, when a driver says that so many do not fit where there was room for some.
fn room(count: c_uint, before: usize) -> Result<usize, NvmlError> {
    let room = (count as usize).max(before) + HEADROOM;
    if room > MOST { Err(NvmlError::InsufficientSize(Some(count as usize))) } else { Ok(room) }
}

fn decode(words: &[u64], count: usize) -> Records {
    let records = words.chunks_exact(WORDS).take(count).map(|record| Record {
        pid: low(record[0]),
        memory: Some(record[1]).filter(|bytes| *bytes != u64::MAX),
        instance: (low(record[2]), high(record[2])),
    });
    // A driver may clear what it does not use; anything else there belongs to records that are larger than ours.
    let overrun = words[count * WORDS..].iter().any(|word| *word != SENTINEL && *word != 0);
    Records { records: records.collect(), overrun }
}

/// The first four bytes of a word in memory.
fn low(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// The last four bytes of a word in memory.
fn high(word: u64) -> u32 {
    let [.., a, b, c, d] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// The samples of `nvmlDeviceGetProcessUtilization` since a time stamp of the driver. NOT_FOUND, the answer where there
/// are no new ones, is an empty list.
pub fn process_utilization(
    nvml: &Nvml,
    device: &Device,
    since: u64,
) -> Result<Vec<nvmlProcessUtilizationSample_t>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetProcessUtilization.as_ref())?;
    // SAFETY: as above.
    let handle = unsafe { device.handle() };
    let nothing =
        nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };
    // The first call asks only how many there are, by a null pointer.
    let mut samples: Vec<nvmlProcessUtilizationSample_t> = Vec::new();
    for _ in 0..=TRIES {
        let mut count = samples.len() as c_uint;
        let buffer = if samples.is_empty() { std::ptr::null_mut() } else { samples.as_mut_ptr() };
        // SAFETY: the buffer has room for `count` samples, and none where it is null.
        let code = unsafe { call(handle, buffer, &mut count, since as c_ulonglong) };
        match nvml_try(code) {
            Ok(()) => {
                samples.truncate(count as usize);
                return Ok(samples);
            }
            Err(NvmlError::InsufficientSize(_)) => {
                samples = vec![nothing; room(count, samples.len())?];
            }
            Err(NvmlError::NotFound) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
    }
    Err(NvmlError::InsufficientSize(None))
}

/// Total, free and used in bytes, as drivers before R510 tell them: reserved memory counts as used there.
pub fn memory_before_r510(nvml: &Nvml, device: &Device) -> Result<nvmlMemory_t, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle belongs to this library, and the function fills one such record.
    nvml_try(unsafe { call(device.handle(), &mut memory) })?;
    Ok(memory)
}

/// Closes NVML without unloading the library (`nvmlShutdown`).
pub fn shutdown(nvml: &Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    // SAFETY: it takes nothing; no handle of before is used after it.
    nvml_try(unsafe { call() })
}

/// Where code of the library lies.
pub fn address(nvml: &Nvml) -> Option<usize> {
    nvml.lib().nvmlShutdown.as_ref().ok().map(|call| *call as usize)
}

/// Whether this is the simulated driver, whose pids are of the agent's own PID namespace.
pub fn simulated(nvml: &Nvml) -> bool {
    // SAFETY: only the simulated driver has a function of this name; it takes nothing and returns an int.
    let symbol = unsafe { nvml.lib().__library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlSimulated") };
    // SAFETY: as above.
    symbol.is_ok_and(|call| unsafe { call() } == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a driver leaves in the buffer that writes records of `size` words.
    fn written(size: usize, pids: &[u32]) -> Vec<u64> {
        let mut words = vec![SENTINEL; 8 * WORDS * 2];
        for (record, pid) in words.chunks_exact_mut(size).zip(pids) {
            record.fill(0);
            record[..WORDS].copy_from_slice(&[u64::from(*pid), 6 << 30, u64::MAX]);
        }
        words
    }

    #[test]
    fn a_record_is_pid_memory_and_instances() {
        let list = decode(&written(3, &[4242, 7]), 2);
        assert!(!list.overrun);
        assert_eq!(list.records[1], Record { pid: 7, memory: Some(6 << 30), instance: (u32::MAX, u32::MAX) });
    }

    #[test]
    fn a_number_of_records_that_cannot_be_is_given_no_room() {
        assert_eq!(room(100, 32).unwrap(), 100 + HEADROOM);
        assert_eq!(room(0, 64).unwrap(), 64 + HEADROOM);
        assert!(room(u32::MAX, 32).is_err());
    }

    #[test]
    fn memory_with_all_bits_set_is_unknown() {
        assert_eq!(decode(&[7, u64::MAX, u64::MAX], 1).records[0].memory, None);
    }

    #[test]
    fn records_of_another_size_are_noticed() {
        for count in 2..=6 {
            let list = decode(&written(4, &[4242; 6][..count]), count);
            assert!(list.overrun || list.records.iter().any(|record| record.pid == 0), "{count}");
        }
    }

    #[test]
    fn a_driver_that_clears_the_rest_of_the_buffer_is_no_suspect() {
        let mut words = written(3, &[4242]);
        words[3..].fill(0);
        assert!(!decode(&words, 1).overrun);
    }
}
