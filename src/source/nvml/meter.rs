//! How busy the engines of a card were: what the driver samples by itself several times a second, added up since the last
//! look. Its answer to the plain question is the last sample alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlSamplingType_enum_NVML_DEC_UTILIZATION_SAMPLES, nvmlSamplingType_enum_NVML_ENC_UTILIZATION_SAMPLES,
    nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES, nvmlSamplingType_enum_NVML_JPG_UTILIZATION_SAMPLES,
    nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES, nvmlSamplingType_enum_NVML_OFA_UTILIZATION_SAMPLES,
    nvmlSamplingType_t,
};

use super::raw::samples::Sampled;
use crate::snapshot::readings::Worked;
use crate::units::Percent;

/// A sample tells of the time since the one before it, and of no more than this ("the sample period may be between 1 second
/// and 1/6 second", `nvmlUtilization_t`).
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// After so long without a sample the driver is asked for all that it has: its clock may have been set back.
pub const SILENCE: Duration = Duration::from_secs(2);

/// What is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Engine {
    Gpu,
    MemoryController,
    Encoder,
    Decoder,
    Jpeg,
    OpticalFlow,
}

impl Engine {
    pub fn sampling(self) -> nvmlSamplingType_t {
        match self {
            Self::Gpu => nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES,
            Self::MemoryController => nvmlSamplingType_enum_NVML_MEMORY_UTILIZATION_SAMPLES,
            Self::Encoder => nvmlSamplingType_enum_NVML_ENC_UTILIZATION_SAMPLES,
            Self::Decoder => nvmlSamplingType_enum_NVML_DEC_UTILIZATION_SAMPLES,
            Self::Jpeg => nvmlSamplingType_enum_NVML_JPG_UTILIZATION_SAMPLES,
            Self::OpticalFlow => nvmlSamplingType_enum_NVML_OFA_UTILIZATION_SAMPLES,
        }
    }
}

/// One for each engine of a card.
#[derive(Debug, Clone, Default)]
pub struct Meters(BTreeMap<Engine, Meter>);

impl Meters {
    pub fn of(&mut self, engine: Engine) -> &mut Meter {
        self.0.entry(engine).or_default()
    }

    /// Another driver counts its samples otherwise.
    pub fn forget_the_session(&mut self) {
        self.0.values_mut().for_each(Meter::forget_the_session);
    }
}

/// What has been counted of one engine.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    /// The moment of the newest sample that was counted, in microseconds of the driver's clock.
    newest: Option<u64>,
    worked: Worked,
    /// When there was a new one last, or nothing to be new against.
    heard: Option<Instant>,
    /// The mean over the samples that came last, and when they came.
    mean: Option<(Percent, Instant)>,
}

impl Meter {
    /// After which moment the driver is to be asked; the first question only finds out where its buffer ends, which
    /// reaches back before the agent came.
    pub fn since(&self, now: Instant) -> u64 {
        self.newest.filter(|_| !self.is_silent(now)).unwrap_or(u64::MIN)
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now.duration_since(heard) > SILENCE)
    }

    pub fn worked(&self) -> Worked {
        self.worked
    }

    /// Adds the samples after [`Self::since`], and tells the share of time since the last look; `None` where they tell
    /// nothing. Between two samples of the driver what the last ones told still holds.
    pub fn add(&mut self, mut samples: Vec<Sampled>, at: Instant) -> Option<Percent> {
        samples.sort_unstable_by_key(|(moment, _)| *moment);
        let last = samples.last().map(|(moment, _)| *moment);
        let set_back = self.is_silent(at) && last < self.newest;
        let newest = self.newest.filter(|_| !set_back || last.is_none());
        let Some(mut newest) = newest else {
            (self.newest, self.heard) = (last, Some(at));
            return None;
        };
        if last.is_some_and(|last| last > newest) {
            self.heard = Some(at);
        }
        samples.retain(|(moment, _)| *moment > newest);
        let before = self.worked;
        let period = period(&samples);
        for (moment, share) in samples {
            let covered = Duration::from_micros(moment - newest);
            newest = moment;
            // After a gap nobody knows what was, but for the time of the sample itself.
            let covered = if covered > LONGEST_PERIOD { period } else { covered };
            // More than all of the time is nonsense that drivers are known to tell: it is in neither sum.
            if let Some(share) = share.filter(|share| (0.0..=100.0).contains(share)) {
                let busy = covered.mul_f64(share / 100.0);
                self.worked.busy += busy;
                self.worked.idle += covered - busy;
            }
        }
        self.newest = Some(newest);
        let (busy, idle) = (self.worked.busy - before.busy, self.worked.idle - before.idle);
        if busy + idle > Duration::ZERO {
            self.mean = Some((Percent(100.0 * busy.div_duration_f64(busy + idle)), at));
        }
        self.mean.filter(|(_, came)| at.duration_since(*came) <= LONGEST_PERIOD).map(|(mean, _)| mean)
    }

    fn forget_the_session(&mut self) {
        (self.newest, self.heard, self.mean) = (None, None, None);
    }
}

/// Between two samples, as far as these tell.
fn period(samples: &[Sampled]) -> Duration {
    let between = samples.windows(2).map(|pair| Duration::from_micros(pair[1].0 - pair[0].0));
    between.filter(|period| !period.is_zero()).min().unwrap_or(LONGEST_PERIOD).min(LONGEST_PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIXTH: u64 = 1_000_000 / 6;

    /// Batches of samples, `moment in sixths of a second=share`, with what was told after each and the sums in the end.
    fn check(batches: &[(&str, Option<f64>)], busy: f64, idle: f64) {
        let began = Instant::now();
        let mut meter = Meter::default();
        for (number, (batch, mean)) in batches.iter().enumerate() {
            let samples = batch.split_whitespace().map(|sample| {
                let (moment, share) = sample.split_once('=').unwrap();
                (moment.parse::<u64>().unwrap() * SIXTH, share.parse().ok())
            });
            let told = meter.add(samples.collect(), began + Duration::from_secs(5) * number as u32);
            assert_eq!(told.map(|share| share.0.round()), *mean, "{batch}");
        }
        let worked = meter.worked();
        let sums = (worked.busy.as_secs_f64() * 6.0, worked.idle.as_secs_f64() * 6.0);
        assert!((sums.0 - busy).abs() < 0.01 && (sums.1 - idle).abs() < 0.01, "{sums:?}");
    }

    #[test]
    fn a_sample_tells_of_the_time_since_the_one_before() {
        check(&[("1=50", None), ("2=100 3=100 4=0 5=0", Some(50.0)), ("6=25", Some(25.0))], 2.25, 2.75);
    }

    #[test]
    fn what_was_before_the_agent_came_counts_for_nothing() {
        check(&[("1=100 2=100 3=0", None), ("4=0", Some(0.0))], 0.0, 1.0);
    }

    #[test]
    fn a_sample_is_counted_once() {
        check(&[("1=0", None), ("3=100 2=100", Some(100.0)), ("2=100 3=100", None)], 2.0, 0.0);
    }

    #[test]
    fn time_without_samples_is_in_neither_sum() {
        check(&[("1=0", None), ("100=100 101=100", Some(100.0)), ("", None)], 2.0, 0.0);
    }

    #[test]
    fn more_than_all_of_the_time_is_nonsense() {
        check(&[("1=0", None), ("2=101 3=4294967295 4=x 5=40", Some(40.0))], 0.4, 0.6);
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed_after_a_while() {
        let began = Instant::now();
        let mut meter = Meter::default();
        let mut add = |after: u64, moment: u64, share| {
            let now = began + Duration::from_millis(after);
            let samples = if moment * SIXTH > meter.since(now) { vec![(moment * SIXTH, Some(share))] } else { vec![] };
            (meter.add(samples, now), meter.worked().busy.as_millis())
        };
        const HOUR: u64 = 6 * 3600;
        assert_eq!(add(0, HOUR, 100.0), (None, 0));
        assert_eq!(add(166, HOUR + 1, 100.0), (Some(Percent(100.0)), 166));
        assert_eq!(add(2000, 12, 100.0), (None, 166), "it is older than the last");
        assert_eq!(add(2300, 14, 100.0), (None, 166), "now nothing is older");
        assert_eq!(add(2466, 15, 100.0), (Some(Percent(100.0)), 333));
        // A driver that is only silent has told nothing new.
        assert_eq!(add(9000, 0, 100.0), (None, 333));
        assert_eq!(add(9166, 15, 100.0), (None, 333));
        assert_eq!(add(9332, 16, 100.0), (Some(Percent(100.0)), 499));
    }

    #[test]
    fn between_two_samples_the_last_ones_still_hold() {
        let began = Instant::now();
        let mut meter = Meter::default();
        meter.add(vec![(SIXTH, Some(0.0))], began);
        meter.add(vec![(2 * SIXTH, Some(80.0))], began);
        let later = |milliseconds| began + Duration::from_millis(milliseconds);
        assert_eq!(meter.add(Vec::new(), later(100)), Some(Percent(80.0)));
        assert_eq!(meter.add(Vec::new(), later(1100)), None);
    }
}
