//! What the units of a card and of its GPU instances did since the last cycle, out of two GPM samples of each. Hopper and
//! later.

use std::collections::{BTreeMap, BTreeSet};

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::Wanted;
use super::calls::Calls;
use super::card::{Asked, Card, Trouble, ask};
use super::instances::spared;
use super::raw::gpm::{Sample, metrics};
use crate::snapshot::gpu::Instance;
use crate::snapshot::readings::Activity;
use crate::units::Percent;

/// The parts of a card that are active or not, by the names of their families.
const PARTS: [(&str, GpmMetricId); 8] = [
    ("graphics", GpmMetricId::GraphicsUtil),
    ("sm", GpmMetricId::SmUtil),
    ("tensor", GpmMetricId::AnyTensorUtil),
    ("dram", GpmMetricId::DramBwUtil),
    ("fp64", GpmMetricId::Fp64Util),
    ("fp32", GpmMetricId::Fp32Util),
    ("fp16", GpmMetricId::Fp16Util),
    ("integer", GpmMetricId::IntegerUtil),
];

/// What is kept of a card from one cycle to the next.
#[derive(Debug, Default)]
pub struct Gpm {
    /// Whether the card has GPM; `None` until it has said so.
    supported: Option<bool>,
    card: Meter,
    by_gpu_instance: BTreeMap<u32, Meter>,
}

/// Two samples that take turns: the last one, and the one before, in which the next will be taken.
#[derive(Debug, Default)]
struct Meter {
    last: Option<Sample>,
    spare: Option<Sample>,
    refused: BTreeSet<(&'static str, u32)>,
}

impl Card {
    /// The activity of the card since its last sample, and into the instances that of theirs. It is asked last: some
    /// drivers of the 535 series were seen to answer the questions after it wrongly.
    pub fn activity(
        &mut self,
        asked: &mut Asked,
        wanted: Wanted,
        instances: &mut [Instance],
    ) -> Result<Activity, Trouble> {
        if !wanted.gpm {
            self.gpm.free(asked.nvml, asked.calls);
            return Ok(Activity::default());
        }
        let there: BTreeSet<u32> = instances.iter().map(|instance| instance.place.gpu_instance).collect();
        self.gpm.keep(&there, asked);
        if self.gpm.supported.is_none() {
            self.gpm.supported = ask!(self, asked, "nvmlGpmQueryDeviceSupport", |d| d.gpm_support());
        }
        if self.gpm.supported != Some(true) {
            return Ok(Activity::default());
        }
        let nvml = asked.nvml;
        let own = self.gpm.card.read(asked, "nvmlGpmSampleGet", |card, sample| sample.take(nvml, card))?;
        for gpu_instance in there {
            let meter = self.gpm.by_gpu_instance.entry(gpu_instance).or_default();
            let activity =
                spared(meter.read(asked, "nvmlGpmMigSampleGet", |card, sample| {
                    sample.take_of_instance(nvml, card, gpu_instance)
                }))?;
            for instance in instances.iter_mut().filter(|instance| instance.place.gpu_instance == gpu_instance) {
                instance.activity.clone_from(&activity);
            }
        }
        Ok(own)
    }
}

impl Gpm {
    /// Gives all samples back; what will be measured next begins anew.
    pub fn free(&mut self, nvml: &Nvml, calls: &mut Calls) {
        let Self { card, by_gpu_instance, .. } = std::mem::take(self);
        for mut meter in std::iter::once(card).chain(by_gpu_instance.into_values()) {
            meter.give_back(nvml, calls);
        }
    }

    /// Gives back the samples of instances that are gone. One of the same number that comes later is another.
    fn keep(&mut self, there: &BTreeSet<u32>, asked: &mut Asked) {
        for (_, mut meter) in self.by_gpu_instance.extract_if(.., |gpu_instance, _| !there.contains(gpu_instance)) {
            meter.give_back(asked.nvml, asked.calls);
        }
    }
}

impl Meter {
    fn read(
        &mut self,
        asked: &mut Asked,
        call: &'static str,
        take: impl FnOnce(&Device, &mut Sample) -> Result<(), NvmlError>,
    ) -> Result<Activity, Trouble> {
        let nvml = asked.nvml;
        if self.refused.contains(&(call, 0)) {
            return Ok(Activity::default());
        }
        if self.spare.is_none() {
            self.spare = ask!(self, asked, "nvmlGpmSampleAlloc", |_| Sample::allocate(nvml));
        }
        let Some(mut sample) = self.spare.take() else { return Ok(Activity::default()) };
        let taken = asked.value(&mut self.refused, (call, 0), |device| take(device, &mut sample));
        if !matches!(taken, Ok(Some(()))) {
            // The one before stays: the next that comes off measures the longer time.
            self.spare = Some(sample);
            if self.refused.contains(&(call, 0)) {
                self.give_back(nvml, asked.calls);
            }
            return taken.map(|_| Activity::default());
        }
        let before = self.last.replace(sample);
        let told = match (&before, &self.last) {
            (Some(before), Some(last)) => asked
                .value(&mut self.refused, ("nvmlGpmMetricsGet", 0), |_| metrics(nvml, before, last, &wanted_metrics())),
            _ => Ok(None),
        };
        self.spare = before;
        Ok(told?.map_or_else(Activity::default, |told| activity(&told)))
    }

    fn give_back(&mut self, nvml: &Nvml, calls: &mut Calls) {
        for sample in self.last.take().into_iter().chain(self.spare.take()) {
            // Nothing is left to be done about one that the library does not take back.
            calls.make("nvmlGpmSampleFree", || sample.free(nvml)).ok();
        }
    }
}

/// The parts, then the occupancy.
fn wanted_metrics() -> Vec<GpmMetricId> {
    PARTS.iter().map(|(_, metric)| *metric).chain([GpmMetricId::SmOccupancy]).collect()
}

fn activity(told: &[Option<f64>]) -> Activity {
    let share = |metric: usize| told.get(metric).copied().flatten().and_then(share);
    let active = PARTS.iter().enumerate().filter_map(|(metric, (part, _))| Some((*part, share(metric)?)));
    Activity { active: active.collect(), sm_occupancy: share(PARTS.len()) }
}

/// A share of time in percent; what is no number or none of a share was not measured.
fn share(told: f64) -> Option<Percent> {
    (0.0..=100.0).contains(&told).then_some(Percent(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_share_is_absent_and_spoils_no_other() {
        let told =
            [Some(97.5), Some(f64::NAN), None, Some(0.0), Some(100.1), Some(-1.0), Some(f64::INFINITY), Some(100.0)];
        let told: Vec<Option<f64>> = told.into_iter().chain([Some(12.5)]).collect();
        let activity = activity(&told);
        let expected = [("graphics", 97.5), ("dram", 0.0), ("integer", 100.0)];
        assert_eq!(activity.active, expected.map(|(part, share)| (part, Percent(share))).into());
        assert_eq!(activity.sm_occupancy, Some(Percent(12.5)));
    }
}
