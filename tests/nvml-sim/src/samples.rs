//! Utilisation over time: a sample at each sixth of a second, as long as NVML keeps them.

use crate::call::{Device, device_calls};
use crate::driver::{self, now};
use crate::pointer::{Array, Out};
use crate::processes;
use crate::scenario::{Gpu, Process};
use crate::units::Load;
use crate::value::Error;
use nvml_wrapper_sys::bindings::*;
use std::ffi::{c_uint, c_ulonglong};

/// Between two samples, in microseconds.
pub const PERIOD: u64 = 1_000_000 / 6;
/// How many samples NVML keeps, if the scenario does not say.
const KEPT: u64 = 120;

/// The moment of the latest sample, in microseconds since the epoch.
pub fn latest() -> u64 {
    now() / PERIOD * PERIOD
}

/// The moments of the samples after one, oldest first.
fn since(last_seen: u64, kept: u64) -> impl Iterator<Item = u64> {
    let latest = latest();
    (0..kept).rev().map(move |age| latest - age * PERIOD).filter(move |moment| *moment > last_seen)
}

/// By how much stamps are earlier than their moments.
fn behind(device: &Device) -> u64 {
    device.driver.scenario.samples_behind.map_or(0, |span| span.0)
}

device_calls! {
    nvmlDeviceGetSamples(
        device, kind: nvmlSamplingType_t, last_seen: c_ulonglong, value_type: Out<nvmlValueType_t>, count: Out<c_uint>,
        samples: Array<nvmlSample_t>
    ) {
        sampled(device, kind, latest())?;
        let behind = behind(device);
        let values: Vec<nvmlSample_t> = since(last_seen + behind, device.driver.scenario.kept_samples.unwrap_or(KEPT))
            .filter_map(|moment| {
                let then = driver::at(moment)?;
                let value = sampled(&then.cards.get(device.place.card)?.gpu, kind, moment).ok()?;
                Some(nvmlSample_t { timeStamp: moment - behind, sampleValue: nvmlValue_t { ullVal: value.into() } })
            })
            .collect();
        value_type.set(nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        fresh(&values)?;
        // Without room the question is how much is needed.
        if samples.is_null() { count.set(values.len() as c_uint) } else { samples.answer(&count, &values) }
    }

    nvmlDeviceGetProcessUtilization(
        device, samples: Array<nvmlProcessUtilizationSample_t>, count: Out<c_uint>, last_seen: c_ulonglong
    ) {
        let sample = |process: &Process, moment, timeStamp| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp,
            smUtil: share(process.utilization, moment),
            memUtil: share(process.memory_utilization, moment),
            encUtil: share(process.encoder_utilization, moment),
            decUtil: share(process.decoder_utilization, moment),
        };
        samples.answer(&count, fresh(&busy_processes(device, last_seen, sample)?)?)
    }

    nvmlDeviceGetProcessesUtilizationInfo(device, info: Out<nvmlProcessesUtilizationInfo_v1_t>) {
        let asked = info.prepared(1)?;
        let sample = |process: &Process, moment, timeStamp| nvmlProcessUtilizationInfo_v1_t {
            timeStamp,
            pid: process.pid,
            smUtil: share(process.utilization, moment),
            memUtil: share(process.memory_utilization, moment),
            encUtil: share(process.encoder_utilization, moment),
            decUtil: share(process.decoder_utilization, moment),
            jpgUtil: share(process.jpeg_utilization, moment),
            ofaUtil: share(process.ofa_utilization, moment),
        };
        let samples = busy_processes(device, asked.lastSeenTimeStamp, sample)?;
        fresh(&samples)?;
        info.set(nvmlProcessesUtilizationInfo_v1_t { processSamplesCount: samples.len() as c_uint, ..asked })?;
        Array::new(asked.procUtilArray).fill(asked.processSamplesCount as usize, &samples)
    }
}

/// NVML has no empty answer: no new samples is `NOT_FOUND`.
fn fresh<T>(samples: &[T]) -> Result<&[T], Error> {
    if samples.is_empty() { Err(Error::NOT_FOUND) } else { Ok(samples) }
}

/// What is sampled of a card, as it was at a moment while this was so.
fn sampled(gpu: &Gpu, kind: nvmlSamplingType_t, moment: u64) -> Result<u32, Error> {
    let load = match kind {
        nvmlSamplingType_enum_NVML_TOTAL_POWER_SAMPLES => return gpu.power.get(),
        nvmlSamplingType_enum_NVML_PROCESSOR_CLK_SAMPLES => return gpu.clocks.graphics.get(),
        nvmlSamplingType_enum_NVML_MEMORY_CLK_SAMPLES => return gpu.clocks.memory.get(),
        nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES => &gpu.utilization,
        nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES => &gpu.memory_utilization,
        nvmlSamplingType_enum_NVML_ENC_UTILIZATION_SAMPLES => &gpu.encoder_utilization,
        nvmlSamplingType_enum_NVML_DEC_UTILIZATION_SAMPLES => &gpu.decoder_utilization,
        nvmlSamplingType_enum_NVML_JPG_UTILIZATION_SAMPLES => &gpu.jpeg_utilization,
        nvmlSamplingType_enum_NVML_OFA_UTILIZATION_SAMPLES => &gpu.ofa_utilization,
        _ => return Err(Error::INVALID_ARGUMENT),
    };
    Ok(load.known()?.at(moment).0)
}

fn share(load: Option<Load>, moment: u64) -> u32 {
    load.map_or(0, |load| load.at(moment).0)
}

/// One sample of each process that did anything, of a moment and with a stamp, if it is newer than the last one seen.
fn busy_processes<T>(
    device: &Device,
    last_seen: u64,
    sample: impl Fn(&Process, u64, u64) -> T,
) -> Result<Vec<T>, Error> {
    device.utilization.known()?;
    let (latest, behind) = (latest(), behind(device));
    let loads = |process: &Process| {
        let Process { utilization, memory_utilization, encoder_utilization, decoder_utilization, .. } = *process;
        [
            utilization,
            memory_utilization,
            encoder_utilization,
            decoder_utilization,
            process.jpeg_utilization,
            process.ofa_utilization,
        ]
    };
    let busy =
        |process: &&Process| latest - behind > last_seen && loads(process).iter().any(|load| share(*load, latest) > 0);
    Ok(processes::listed(device).filter(busy).map(|process| sample(process, latest, latest - behind)).collect())
}
