//! One ladder acts on a process at a time, and of several that would begin, the mildest.

use std::collections::BTreeMap;

use super::rule::{Action, Rules, Signal};
use super::state::State;
use super::subject::EpisodeKey;
use super::{Deed, Verdict};
use crate::snapshot::ProcessId;

/// Takes from the verdicts every target on which another ladder acts. Rehearsals hit nobody, so they contend with nobody.
pub(super) fn one_ladder_a_process(state: &State, verdicts: &mut Vec<Verdict>, rules: &Rules) {
    let acting = acting(state, rules);
    let winners = winners(verdicts, &acting);
    for verdict in verdicts.iter_mut().filter(|verdict| contends(verdict).is_some()) {
        let key = &verdict.key;
        // A target with an objection is not hit; its refusal is told whatever others do.
        verdict.targets.retain(|target| target.objection.is_some() || winners.get(&target.process) == Some(key));
    }
    verdicts.retain(|verdict| !verdict.deed.is_act() || !verdict.targets.is_empty());
}

fn contends(verdict: &Verdict) -> Option<Signal> {
    match verdict.deed {
        Deed::Signal(signal) if verdict.mode.carries_out(true) => Some(signal),
        _ => None,
    }
}

/// The ladder that has begun to act on a process and has not come to its end. After a KILL there is nothing left for
/// another to do: whoever is still there does not hear signals.
fn acting<'a>(state: &'a State, rules: &Rules) -> BTreeMap<ProcessId, &'a EpisodeKey> {
    let mut acting = BTreeMap::new();
    for (key, episode) in state.episodes.iter().filter(|(_, episode)| episode.mode.carries_out(true)) {
        let rungs = rules.rules.iter().find(|rule| rule.name == key.rule).map_or(&[][..], |rule| rule.then.rungs());
        for (process, progress) in &episode.targets {
            let killed = rungs.get(progress.rung).is_some_and(|rung| rung.action == Action::Signal(Signal::Kill));
            let more = rungs.iter().skip(progress.rung + 1).any(|rung| rung.action.is_act());
            if (more || killed) && !progress.lost {
                acting.entry(*process).or_insert(key);
            }
        }
    }
    acting
}

/// For each process the ladder that may act on it in this cycle.
fn winners(verdicts: &[Verdict], acting: &BTreeMap<ProcessId, &EpisodeKey>) -> BTreeMap<ProcessId, EpisodeKey> {
    let mut contenders: BTreeMap<ProcessId, (Signal, &EpisodeKey)> = BTreeMap::new();
    for verdict in verdicts {
        let Some(signal) = contends(verdict) else { continue };
        for target in verdict.targets.iter().filter(|target| target.objection.is_none()) {
            let candidate = (signal, &verdict.key);
            contenders.entry(target.process).and_modify(|least| *least = (*least).min(candidate)).or_insert(candidate);
        }
    }
    contenders
        .into_iter()
        .map(|(process, (_, mildest))| (process, (*acting.get(&process).unwrap_or(&mildest)).clone()))
        .collect()
}
