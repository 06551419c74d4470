//! A token bucket: so many questions at once, and one more each interval.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct Bucket {
    interval: Duration,
    burst: u32,
    /// The tokens that were in it, and when.
    filled: Mutex<(f64, Instant)>,
}

impl Bucket {
    /// A full one. The interval is not zero.
    pub fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, filled: Mutex::new((f64::from(burst), Instant::now())) }
    }

    /// The old one, where the new one is like it: that files were read again fills no bucket.
    pub fn carried_over(new: Option<Arc<Self>>, old: Option<&Arc<Self>>) -> Option<Arc<Self>> {
        let new = new?;
        let same = old.filter(|old| (old.interval, old.burst) == (new.interval, new.burst));
        Some(same.cloned().unwrap_or(new))
    }

    /// Whether one more may be answered.
    pub fn takes(&self) -> bool {
        self.takes_at(Instant::now())
    }

    fn takes_at(&self, now: Instant) -> bool {
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, then) = *filled;
        let new = now.saturating_duration_since(then).as_secs_f64() / self.interval.as_secs_f64();
        let tokens = (tokens + new).min(f64::from(self.burst));
        let may = tokens >= 1.0;
        *filled = (if may { tokens - 1.0 } else { tokens }, now);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_answered_and_then_one_each_interval() {
        let bucket = Bucket::new(Duration::from_secs(1), 3);
        let begun = Instant::now();
        let answered = |millis| bucket.takes_at(begun + Duration::from_millis(millis));
        let came = [0, 0, 0, 0, 500, 1100, 1200, 60_000, 60_000, 60_000, 60_000].map(answered);
        assert_eq!(came, [true, true, true, false, false, true, false, true, true, true, false]);
    }
}
