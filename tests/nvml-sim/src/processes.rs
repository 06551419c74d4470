//! Who holds a card: the processes of the scenario that are still there.

use crate::call::{Answer, Device, device_calls};
use crate::pointer::{Array, Out};
use crate::scenario::{Kind, Process, ProcessMemory};
use nvml_wrapper_sys::bindings::*;
use std::ffi::c_uint;
use std::fs;

/// `NVML_VALUE_NOT_AVAILABLE` in 64 bits.
const NOT_AVAILABLE: u64 = u64::MAX;
/// No MIG instance.
const NONE: u32 = u32::MAX;

const COMPUTE: &[Kind] = &[Kind::Compute, Kind::Both];
const GRAPHICS: &[Kind] = &[Kind::Graphics, Kind::Both];
const MPS: &[Kind] = &[Kind::Mps];

/// The processes on a device. One that has exited, is a zombie or has handed its pid on is none of them.
pub fn listed(device: &Device) -> impl Iterator<Item = &Process> {
    let hidden = device.place.instance.is_none() && device.mig.known().is_ok_and(|mig| mig.hides_processes);
    let told = move |process: &&Process| !(hidden && process.gpu_instance.is_some());
    device.processes.iter().filter(told).filter(|process| process.always || lives(process))
}

/// What the processes on a device use together, as far as is known.
pub fn memory(device: &Device) -> u64 {
    listed(device)
        .filter_map(|process| match process.memory {
            ProcessMemory::Used(bytes) => Some(bytes.0),
            ProcessMemory::Unavailable => None,
        })
        .sum()
}

fn lives(process: &Process) -> bool {
    // A process may bear a name that is no text.
    let stat = fs::read(format!("/proc/{}/stat", process.pid)).ok();
    stat.map(|stat| String::from_utf8_lossy(&stat).into_owned()).as_deref().and_then(state_and_start).is_some_and(
        |(state, started)| !matches!(state, "Z" | "X") && process.started.is_none_or(|meant| meant == started),
    )
}

/// Fields 3 and 22. The name before them may itself contain parentheses and spaces.
fn state_and_start(stat: &str) -> Option<(&str, u64)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?, fields.nth(18)?.parse().ok()?))
}

macro_rules! lists {
    ($($name:ident: $entry:ident of $kinds:ident;)*) => {
        device_calls! {$(
            $name(device, count: Out<c_uint>, entries: Array<$entry>) {
                list(device, $kinds, &count, entries)
            }
        )*}
    };
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t of COMPUTE;
    nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_v2_t of COMPUTE;
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t of GRAPHICS;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t of GRAPHICS;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t of MPS;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t of MPS;
}

#[cfg(not(feature = "old-driver"))]
mod v3 {
    use super::*;
    use crate::value::Error;

    macro_rules! lists {
        ($($name:ident of $kinds:ident;)*) => {
            device_calls! {$(
                $name(device, count: Out<c_uint>, entries: Array<nvmlProcessInfo_t>) {
                    if device.driver.scenario.driver.oversized_process_entries {
                        list::<nvmlProcessDetail_v1_t>(device, $kinds, &count, entries.cast())
                    } else {
                        list(device, $kinds, &count, entries)
                    }
                }
            )*}
        };
    }

    lists! {
        nvmlDeviceGetComputeRunningProcesses_v3 of COMPUTE;
        nvmlDeviceGetGraphicsRunningProcesses_v3 of GRAPHICS;
        nvmlDeviceGetMPSComputeRunningProcesses_v3 of MPS;
    }

    device_calls! {
        nvmlDeviceGetRunningProcessDetailList(device, list: Out<nvmlProcessDetailList_v1_t>) {
            let asked = list.prepared(1)?;
            let kinds = match asked.mode {
                0 => COMPUTE,
                1 => GRAPHICS,
                2 => MPS,
                _ => return Err(Error::INVALID_ARGUMENT),
            };
            let entries = entries::<nvmlProcessDetail_v1_t>(device, kinds);
            list.set(nvmlProcessDetailList_v1_t { numProcArrayEntries: entries.len() as c_uint, ..asked })?;
            Array::new(asked.procArray).fill(asked.numProcArrayEntries as usize, &entries)
        }
    }
}

fn list<T: Entry>(device: &Device, kinds: &[Kind], count: &Out<c_uint>, entries: Array<T>) -> Answer {
    entries.answer(count, &self::entries(device, kinds))
}

fn entries<T: Entry>(device: &Device, kinds: &[Kind]) -> Vec<T> {
    listed(device).filter(|process| kinds.contains(&process.kind)).map(T::of).collect()
}

/// A process as one version of the lists tells it.
trait Entry: Copy {
    fn of(process: &Process) -> Self;
}

impl Entry for nvmlProcessInfo_v1_t {
    fn of(process: &Process) -> Self {
        Self { pid: process.pid, usedGpuMemory: used(process) }
    }
}

impl Entry for nvmlProcessInfo_v2_t {
    fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            usedGpuMemory: used(process),
            gpuInstanceId: process.gpu_instance.unwrap_or(NONE),
            computeInstanceId: process.compute_instance.unwrap_or(NONE),
        }
    }
}

#[cfg(not(feature = "old-driver"))]
impl Entry for nvmlProcessDetail_v1_t {
    fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            usedGpuMemory: used(process),
            gpuInstanceId: process.gpu_instance.unwrap_or(NONE),
            computeInstanceId: process.compute_instance.unwrap_or(NONE),
            usedGpuCcProtectedMemory: NOT_AVAILABLE,
        }
    }
}

fn used(process: &Process) -> u64 {
    match process.memory {
        ProcessMemory::Used(bytes) => bytes.0,
        ProcessMemory::Unavailable => NOT_AVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_named_to_look_like_its_own_fields() {
        let stat = "7 (x) Z 1) R 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1";
        assert_eq!(state_and_start(stat), Some(("R", 4242)));
    }
}
