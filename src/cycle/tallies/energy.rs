//! Whose the energy of a card was: an estimate, for a card meters itself and not its processes.

use std::collections::BTreeMap;

use super::super::usage::{Usage, share};
use super::{Pair, Turn, pair};
use crate::snapshot::{Gpu, Snapshot};
use crate::units::Joules;

/// Joules that a card took since the turn before, as far as these are counted; `None` where its counter did not go on, as
/// after the driver was loaded again.
pub fn taken(before: &Gpu, now: &Snapshot, counted: f64) -> Option<f64> {
    let meter = |gpu: &Gpu| gpu.readings.as_ref().ok()?.energy.map(|Joules(joules)| joules);
    let taken = meter(now.gpu(&before.uuid)?)? - meter(before)?;
    (taken >= 0.0).then_some(taken * counted)
}

/// What share of it is each user's: by the time that his kernels ran, and while nobody's did, the same for all who hold
/// the card. `None` where that time is not known of somebody: whatever is given to the others would be too much.
pub fn shares<'a>(usages: &[&'a Usage<'a>], busy: &BTreeMap<Pair, f64>, turn: &Turn) -> Option<Vec<(&'a str, f64)>> {
    // A process that has ended since has no share in this turn; what it did in the one before is the best guess.
    let part = |part| pair(part).and_then(|pair| busy.get(&pair).copied()).or(share(part.hold.utilization));
    let of = |usage: &&'a Usage| Some((*usage, usage.parts.iter().map(part).sum::<Option<f64>>()?));
    let times = usages.iter().map(of).collect::<Option<Vec<_>>>()?;
    let all: f64 = times.iter().map(|(_, time)| time).sum();
    if all > 0.0 {
        return Some(times.into_iter().map(|(usage, time)| (&*usage.user, time / all)).collect());
    }
    let holders: Vec<&str> =
        times.iter().filter(|(usage, _)| usage.is_held(turn.setup)).map(|(usage, _)| &*usage.user).collect();
    let each = 1.0 / holders.len() as f64;
    Some(holders.into_iter().map(|user| (user, each)).collect())
}
