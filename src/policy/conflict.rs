//! One ladder acts on a process at a time, and of several that would begin, the mildest.

use std::collections::BTreeMap;

use super::rule::{Action, Rules, Signal};
use super::state::State;
use super::subject::EpisodeKey;
use super::{Deed, Verdict};
use crate::snapshot::ProcessId;

/// An act that a ladder had due on a process, now or with another ladder's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Due {
    pub key: EpisodeKey,
    pub rung: usize,
    pub signal: Signal,
    pub process: ProcessId,
}

/// Takes from the verdicts every target on which another ladder acts. Rehearsals hit nobody, so they contend with nobody.
/// Those which had the very signal due that now goes out once are returned: it counts for them too.
pub(super) fn one_ladder_a_process(state: &State, verdicts: &mut Vec<Verdict>, rules: &Rules) -> Vec<Due> {
    let acting = acting(state, rules);
    let mut winners: BTreeMap<ProcessId, EpisodeKey> = BTreeMap::new();
    let mut merged = Vec::new();
    for (process, contenders) in contenders(verdicts) {
        let winner = match acting.get(&process) {
            Some(acting) => contenders.iter().find(|due| due.key == **acting),
            None => contenders.iter().min_by_key(|due| (due.signal, &due.key)),
        };
        let Some(winner) = winner else { continue };
        winners.insert(process, winner.key.clone());
        let same = contenders.iter().filter(|due| due.signal == winner.signal && due.key != winner.key);
        merged.extend(same.cloned());
    }
    for verdict in verdicts.iter_mut().filter(|verdict| contends(verdict).is_some()) {
        let key = &verdict.key;
        // A target with an objection is not hit; its refusal is told whatever others do.
        verdict.targets.retain(|target| target.objection.is_some() || winners.get(&target.process) == Some(key));
    }
    verdicts.retain(|verdict| !verdict.deed.is_act() || !verdict.targets.is_empty());
    merged
}

fn contends(verdict: &Verdict) -> Option<Signal> {
    match verdict.deed {
        Deed::Signal(signal) if verdict.mode.carries_out(true) => Some(signal),
        _ => None,
    }
}

fn contenders(verdicts: &[Verdict]) -> BTreeMap<ProcessId, Vec<Due>> {
    let mut contenders: BTreeMap<ProcessId, Vec<Due>> = BTreeMap::new();
    for verdict in verdicts {
        let Some(signal) = contends(verdict) else { continue };
        for target in verdict.targets.iter().filter(|target| target.objection.is_none()) {
            let process = target.process;
            let due = Due { key: verdict.key.clone(), rung: verdict.rung, signal, process };
            contenders.entry(process).or_default().push(due);
        }
    }
    contenders
}

/// The ladder that has begun to act on a process and has not come to its end. After a KILL there is nothing left for
/// another to do: whoever is still there does not hear signals.
fn acting<'a>(state: &'a State, rules: &Rules) -> BTreeMap<ProcessId, &'a EpisodeKey> {
    let mut acting: BTreeMap<ProcessId, (bool, &EpisodeKey)> = BTreeMap::new();
    for (key, episode) in state.episodes.iter().filter(|(_, episode)| episode.mode.carries_out(true)) {
        let rungs = rules.rules.iter().find(|rule| rule.name == key.rule).map_or(&[][..], |rule| rule.then.rungs());
        for (process, progress) in &episode.targets {
            let killed = rungs.get(progress.rung).is_some_and(|rung| rung.action == Action::Signal(Signal::Kill));
            let more = rungs.iter().skip(progress.rung + 1).any(|rung| rung.action.is_act());
            if (more || killed) && !progress.lost {
                // Of several the one that sent its signal itself, and of those the first.
                let first = acting.entry(*process).or_insert((progress.sent, key));
                if progress.sent && !first.0 {
                    *first = (true, key);
                }
            }
        }
    }
    acting.into_iter().map(|(process, (_, key))| (process, key)).collect()
}
