//! Every call to the driver goes through here: which one is under way, and which ones failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;

use super::error;

/// Failures since the agent started, by call and error.
pub type Errors = BTreeMap<(&'static str, &'static str), u64>;

/// The call that the driver has not returned from, for whoever waits.
#[derive(Debug, Clone, Default)]
pub struct Underway(Arc<Mutex<Option<(&'static str, Instant)>>>);

impl Underway {
    fn set(&self, call: Option<(&'static str, Instant)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }

    pub fn read(&self) -> Option<(&'static str, Duration)> {
        let underway = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        underway.map(|(call, since)| (call, since.elapsed()))
    }
}

#[derive(Debug, Default)]
pub struct Calls {
    pub underway: Underway,
    pub errors: Errors,
}

impl Calls {
    pub fn make<T>(&mut self, call: &'static str, ask: impl FnOnce() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
        self.underway.set(Some((call, Instant::now())));
        let answer = ask();
        self.underway.set(None);
        if let Err(failure) = &answer
            && !error::is_refusal(failure)
            && !matches!(failure, NvmlError::NotFound)
        {
            *self.errors.entry((call, error::name(failure))).or_default() += 1;
        }
        answer
    }
}
