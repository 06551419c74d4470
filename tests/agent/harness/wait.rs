//! Waiting for what another process does. Every wait has a limit.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(20);

/// Asks until there is an answer.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    within(LIMIT, &mut ask).unwrap_or_else(|| panic!("not within {LIMIT:?}: {what}"))
}

/// Asks until there is an answer or the time is over.
pub fn within<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        match ask() {
            None if began.elapsed() < limit => sleep(PAUSE),
            answer => return answer,
        }
    }
}

/// Seconds since boot, in the clock and with the precision in which shells can read it.
pub fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap()
}
