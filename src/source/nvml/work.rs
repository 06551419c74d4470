//! Who is on a card, and what they did there.

use nvml_wrapper::error::NvmlError;

use super::card::{Asked, Card, Trouble, ask, percent};
use super::error::{self, Failure};
use super::processes::{Lists, Sample};
use super::raw::{self, List};

/// The time stamp that asks for all samples that the driver still has.
const BEGINNING: u64 = 0;

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
        let (nvml, since) = (asked.nvml, self.sampled);
        let answer = ask!(self, asked, "nvmlDeviceGetProcessUtilization", |d| raw::process_utilization(
            nvml,
            d,
            since.unwrap_or(BEGINNING)
        ));
        let Some(samples) = answer else { return Ok(None) };
        let newest = samples.iter().map(|sample| sample.timeStamp).max();
        self.sampled = Some(newest.max(since).unwrap_or(BEGINNING));
        let fresh = samples.iter().filter(|sample| sample.timeStamp > since.unwrap_or(BEGINNING));
        Ok(since.map(|_| fresh.map(|sample| Sample { pid: sample.pid, busy: percent(sample.smUtil) }).collect()))
    }
}
