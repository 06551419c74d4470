//! After whatever upsets the view, nobody is hit for a while: what is seen first need not be what is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::snapshot::{Driver, Moment, Snapshot, Source};

/// Wall and boot time drift apart by less than this between two cycles unless somebody set the clock; a leap second
/// and the slewing of NTP (0.5 ms a second) stay below.
const CLOCK_STEP: Duration = Duration::from_secs(2);
/// A cycle that is later than twice its interval and this: the host slept, or was as good as asleep.
const SLEPT: Duration = Duration::from_secs(30);

/// Since when nothing has upset the view.
#[derive(Debug, Default)]
pub struct Holdoff {
    since: Option<Duration>,
    before: Option<Before>,
    reloaded: bool,
}

/// What the cycle before saw.
#[derive(Debug)]
struct Before {
    at: Moment,
    silent: BTreeSet<Source>,
    driver: Option<Driver>,
}

impl Holdoff {
    /// A reload that changed something: counts from the next cycle.
    pub fn reloaded(&mut self) {
        self.reloaded = true;
    }

    /// Takes one cycle in and tells whether it is still too soon. The first cycle is the start of the agent.
    pub fn is_on(&mut self, now: &Snapshot, interval: Duration, delay: Duration) -> bool {
        let seen = Before::from(now);
        let upset = std::mem::take(&mut self.reloaded)
            || self.before.as_ref().is_none_or(|before| seen.upsets(before, interval));
        let since = self.since.filter(|_| !upset).unwrap_or(now.at.boot);
        self.since = Some(since);
        self.before = Some(seen);
        now.at.boot.saturating_sub(since) < delay
    }
}

impl From<&Snapshot> for Before {
    fn from(now: &Snapshot) -> Self {
        let silent = now.health.iter().filter(|health| health.fault.is_some()).map(|health| health.source);
        let mut silent: BTreeSet<_> = silent.collect();
        if now.driver.is_err() || now.gpus.is_err() {
            silent.insert(Source::Nvml);
        }
        Self { at: now.at, silent, driver: now.driver.as_ref().ok().cloned() }
    }
}

impl Before {
    fn upsets(&self, before: &Self, interval: Duration) -> bool {
        let passed = self.at.boot.checked_sub(before.at.boot);
        let on_the_wall = Duration::try_from(self.at.wall.duration_since(before.at.wall));
        let in_step = matches!((passed, on_the_wall), (Some(passed), Ok(wall)) if passed.abs_diff(wall) < CLOCK_STEP);
        let slept = passed.is_none_or(|passed| passed > interval * 2 + SLEPT);
        let returned = !before.silent.is_subset(&self.silent);
        let other_driver = matches!((&self.driver, &before.driver), (Some(now), Some(then)) if now != then);
        !in_step || slept || returned || other_driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::forged::snapshot;
    use crate::snapshot::{Fault, Health};
    use jiff::SignedDuration;

    const INTERVAL: Duration = Duration::from_secs(5);
    const DELAY: Duration = Duration::from_secs(60);

    /// The seconds, five apart up to 300, at which it is on, where each cycle is as `what` makes it.
    fn on(what: impl Fn(u64, &mut Snapshot, &mut Holdoff)) -> Vec<std::ops::RangeInclusive<u64>> {
        let mut holdoff = Holdoff::default();
        let mut spans: Vec<std::ops::RangeInclusive<u64>> = Vec::new();
        for second in (0..=300).step_by(5) {
            let mut now = snapshot(second);
            what(second, &mut now, &mut holdoff);
            if holdoff.is_on(&now, INTERVAL, DELAY) {
                match spans.last_mut() {
                    Some(span) if *span.end() + 5 == second => *span = *span.start()..=second,
                    _ => spans.push(second..=second),
                }
            }
        }
        spans
    }

    #[test]
    fn nobody_is_hit_right_after_the_start() {
        assert_eq!(on(|_, _, _| ()), [0..=55]);
    }

    #[test]
    fn a_reload_begins_it_again() {
        assert_eq!(
            on(|second, _, holdoff| if second == 100 {
                holdoff.reloaded()
            }),
            [0..=55, 100..=155]
        );
    }

    #[test]
    fn the_return_of_the_driver_begins_it_again() {
        let silent = |second, now: &mut Snapshot, _: &mut Holdoff| {
            if (100..120).contains(&second) {
                now.driver = Err(Fault::new(Source::Nvml, "hung"));
            }
        };
        assert_eq!(on(silent), [0..=55, 120..=175]);
    }

    #[test]
    fn another_driver_version_begins_it_again() {
        let other = |second, now: &mut Snapshot, _: &mut Holdoff| {
            if second >= 100 {
                now.driver = Ok(Driver { driver_version: Some("999".into()), nvml_version: None, cuda_version: None });
            }
        };
        assert_eq!(on(other), [0..=55, 100..=155]);
    }

    #[test]
    fn the_return_of_a_source_begins_it_again() {
        let silent = |second, now: &mut Snapshot, _: &mut Holdoff| {
            let fault = (100..120).contains(&second).then(|| "gone".to_owned());
            let health =
                Health { source: Source::Files, fault, last_success: None, took: None, errors: 0, unresolved: None };
            now.health = vec![health];
        };
        assert_eq!(on(silent), [0..=55, 120..=175]);
    }

    #[test]
    fn a_clock_that_was_set_begins_it_again() {
        for step in [3600, -3600, 3] {
            let set = move |second, now: &mut Snapshot, _: &mut Holdoff| {
                if second >= 100 {
                    now.at.wall += SignedDuration::from_secs(step);
                }
            };
            assert_eq!(on(set), [0..=55, 100..=155], "{step}");
        }
    }

    #[test]
    fn a_host_that_slept_begins_it_again() {
        let mut holdoff = Holdoff::default();
        assert!(holdoff.is_on(&snapshot(0), INTERVAL, DELAY));
        assert!(holdoff.is_on(&snapshot(3600), INTERVAL, DELAY));
        assert!(!holdoff.is_on(&snapshot(3600 + 35), INTERVAL, Duration::from_secs(35)));
    }
}
