//! Who is on a card, and what they and the card did since the last look.

use std::time::Instant;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::UtilizationInfo;

use super::card::{Asked, Card, Trouble, ask, percent};
use super::error::{self, Failure};
use super::meter::{Engine, SILENCE};
use super::processes::{Lists, Sample};
use super::raw::{self, List};
use crate::snapshot::readings::Worked;
use crate::units::Percent;

/// The time stamp that asks for all samples that the driver still has.
const BEGINNING: u64 = 0;

/// Shares of time in which the engines of a card were busy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Utilizations {
    pub gpu: Option<Percent>,
    pub memory_controller: Option<Percent>,
    pub encoder: Option<Percent>,
    pub decoder: Option<Percent>,
    pub jpeg: Option<Percent>,
    pub optical_flow: Option<Percent>,
    pub worked: Option<Worked>,
}

impl Card {
    /// The processes on it, list by list. `Ok(Err(…))`: one of them could not be read this time.
    pub fn lists(&mut self, asked: &mut Asked) -> Result<Result<Lists, Failure>, Trouble> {
        let mut lists = Lists::default();
        for list in [List::Compute, List::Graphics, List::Mps] {
            let (nvml, device, call) = (asked.nvml, asked.device, list.calls()[0]);
            match asked.calls.make(call, || raw::processes(nvml, device, list)) {
                Ok(records) => lists.add(list, records),
                // No graphics and no MPS on this card; that it has no compute would be no answer.
                Err(failure) if error::is_refusal(&failure) && list != List::Compute => {}
                Err(failure @ NvmlError::GpuLost) => return Err(Trouble::Card(error::fault(&failure))),
                Err(failure) if error::ends_the_session(&failure) => {
                    return Err(Trouble::Driver(Failure { call, error: error::name(&failure) }));
                }
                Err(failure) => return Ok(Err(Failure { call, error: error::name(&failure) })),
            }
        }
        Ok(Ok(lists))
    }

    /// What its processes did since the last question; `None` where that is not known.
    pub fn samples(&mut self, asked: &mut Asked) -> Result<Option<Vec<Sample>>, Trouble> {
        if self.mig == Some(true) {
            return Ok(None);
        }
        // The driver's buffer reaches back before the agent came: the first question only finds out where it ends.
        let (nvml, now) = (asked.nvml, Instant::now());
        let mut since = self.sampled.map(|(newest, _)| newest);
        let is_silent = self.sampled.is_some_and(|(_, heard)| now.duration_since(heard) > SILENCE);
        let from = since.filter(|_| !is_silent).unwrap_or(BEGINNING);
        let answer = ask!(self, asked, "nvmlDeviceGetProcessUtilization", |d| raw::process_utilization(nvml, d, from));
        let Some(samples) = answer else { return Ok(None) };
        let newest = samples.iter().map(|sample| sample.timeStamp).max();
        // All that it has is older than what it had: its clock was set back.
        since = since.filter(|since| !is_silent || newest.is_none_or(|newest| newest >= *since));
        if since.is_none() || newest > since {
            self.sampled = Some((newest.unwrap_or(BEGINNING), now));
        }
        let fresh = samples.iter().filter(|sample| Some(sample.timeStamp) > since);
        let shares = fresh.map(|sample| Sample {
            pid: sample.pid,
            gpu: percent(sample.smUtil),
            memory_controller: percent(sample.memUtil),
            encoder: percent(sample.encUtil),
            decoder: percent(sample.decUtil),
        });
        Ok(since.map(|_| shares.collect()))
    }

    /// How busy its engines were since the last look, from the driver's samples; where it keeps none of an engine, what it
    /// answers to the plain question.
    pub fn utilizations(&mut self, asked: &mut Asked) -> Result<Utilizations, Trouble> {
        let mut used = Utilizations {
            gpu: self.mean(asked, Engine::Gpu)?,
            memory_controller: self.mean(asked, Engine::MemoryController)?,
            encoder: self.mean(asked, Engine::Encoder)?,
            decoder: self.mean(asked, Engine::Decoder)?,
            jpeg: self.mean(asked, Engine::Jpeg)?,
            optical_flow: self.mean(asked, Engine::OpticalFlow)?,
            worked: None,
        };
        self.measured = used;
        used.worked = self.keeps_samples(Engine::Gpu).then(|| self.meters.of(Engine::Gpu).worked());
        if used.gpu.is_none() || used.memory_controller.is_none() {
            let rates = ask!(self, asked, "nvmlDeviceGetUtilizationRates", |d| d.utilization_rates());
            used.gpu = used.gpu.or(rates.as_ref().and_then(|rates| percent(rates.gpu)));
            used.memory_controller = used.memory_controller.or(rates.and_then(|rates| percent(rates.memory)));
        }
        let nvml = asked.nvml;
        let plain = |answer: Option<UtilizationInfo>| answer.and_then(|answer| percent(answer.utilization));
        if used.encoder.is_none() {
            used.encoder = plain(ask!(self, asked, "nvmlDeviceGetEncoderUtilization", |d| d.encoder_utilization()));
        }
        if used.decoder.is_none() {
            used.decoder = plain(ask!(self, asked, "nvmlDeviceGetDecoderUtilization", |d| d.decoder_utilization()));
        }
        if used.jpeg.is_none() {
            let answer = ask!(self, asked, "nvmlDeviceGetJpgUtilization", |d| raw::samples::jpeg_utilization(nvml, d));
            used.jpeg = answer.and_then(percent);
        }
        if used.optical_flow.is_none() {
            let answer = ask!(self, asked, "nvmlDeviceGetOfaUtilization", |d| raw::samples::ofa_utilization(nvml, d));
            used.optical_flow = answer.and_then(percent);
        }
        Ok(used)
    }

    /// The mean since the last look, where there are samples.
    fn mean(&mut self, asked: &mut Asked, engine: Engine) -> Result<Option<Percent>, Trouble> {
        let (nvml, kind) = (asked.nvml, engine.sampling());
        let since = self.meters.of(engine).since(Instant::now());
        let samples = ask!(self, asked, "nvmlDeviceGetSamples", kind, |d| raw::samples::samples(nvml, d, kind, since));
        Ok(samples.and_then(|samples| self.meters.of(engine).add(samples, Instant::now())))
    }

    fn keeps_samples(&self, engine: Engine) -> bool {
        !self.refused.contains(&("nvmlDeviceGetSamples", engine.sampling()))
    }
}
