//! From what was seen, cycle after cycle, to rungs.
//!
//! A ladder has a clock of its own that runs only between two sightings of true that follow each other. A rung is due
//! when the clock has run for its `after` since the rung before; it is climbed when `settle` hears that it was done.
//! Acts count for each target besides: whoever comes later has every act in its order and at its distance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::judge::Judged;
use super::rule::{Action, Rule, Rules, Rung, Targets};
use super::state::{Episode, Progress, Sighting};
use super::subject::EpisodeKey;
use super::{ChannelName, Deed, Guard, Mode, Next, Person, Target, Verdict};
use crate::snapshot::{Moment, Truth};
use crate::units::Uid;

/// Unknown for this long on end, nothing that was seen before counts any more.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

pub(super) struct Advanced {
    /// `None`: the ladder is at rest.
    pub episode: Option<Episode>,
    /// The episode began in this cycle.
    pub began: bool,
    pub verdicts: Vec<Verdict>,
}

impl Advanced {
    fn went_on(episode: Episode, verdicts: Vec<Verdict>) -> Self {
        Self { episode: Some(episode), began: false, verdicts }
    }

    fn at_rest(verdicts: Vec<Verdict>) -> Self {
        Self { episode: None, began: false, verdicts }
    }
}

/// Moves one subject along the ladder of one rule.
pub(super) fn advance(
    rule: &Rule,
    meaning: u64,
    rules: &Rules,
    now: Moment,
    judged: &Judged,
    was: Option<&Episode>,
) -> Advanced {
    let bench = Bench { rule, meaning, mode: rule.effective_mode(rules.mode), interval: rules.interval, now, judged };
    // Under another meaning or another mode, what was climbed means something else.
    let was = was.filter(|episode| episode.meaning == meaning && episode.mode == bench.mode);
    match was {
        Some(episode) if judged.exempt => bench.leave(episode),
        Some(episode) if !bench.right_changed(episode) => bench.go_on(episode.clone()),
        _ if judged.truth.is_true() => bench.begin(),
        Some(episode) => bench.leave(episode),
        None => Advanced::at_rest(Vec::new()),
    }
}

struct Bench<'a> {
    rule: &'a Rule,
    meaning: u64,
    mode: Mode,
    interval: Duration,
    now: Moment,
    judged: &'a Judged,
}

impl Bench<'_> {
    fn begin(&self) -> Advanced {
        let episode = Episode {
            meaning: self.meaning,
            mode: self.mode,
            right: self.judged.right,
            owner: self.judged.owner.clone(),
            began: self.now.wall,
            clock: Duration::ZERO,
            climbed: Vec::new(),
            last: Sighting { at: self.now.boot, truth: Truth::True },
            false_for: Duration::ZERO,
            unknown_since: None,
            warned: BTreeMap::new(),
            unreachable: false,
            targets: BTreeMap::new(),
            tried: Vec::new(),
        };
        Advanced { verdicts: self.due(&episode), began: true, episode: Some(episode) }
    }

    fn right_changed(&self, episode: &Episode) -> bool {
        matches!((episode.right, self.judged.right), (Some(was), Some(is)) if was != is)
    }

    fn go_on(&self, mut episode: Episode) -> Advanced {
        let truth = self.judged.truth;
        let passed = self.passed(episode.last, truth);
        episode.last = Sighting { at: self.now.boot, truth };
        episode.right = self.judged.right.or(episode.right);
        match truth {
            Truth::True => {
                episode.clock += passed;
                episode.false_for = Duration::ZERO;
                episode.unknown_since = None;
                let verdicts = self.due(&episode);
                Advanced::went_on(episode, verdicts)
            }
            Truth::False => {
                episode.false_for += passed;
                episode.unknown_since = None;
                if episode.false_for >= self.rule.clear_after.0 {
                    return self.leave(&episode);
                }
                Advanced::went_on(episode, Vec::new())
            }
            Truth::Unknown => {
                let since = *episode.unknown_since.get_or_insert(self.now.boot);
                if self.now.boot.saturating_sub(since) >= FORGET_AFTER {
                    return Advanced::at_rest(Vec::new());
                }
                Advanced::went_on(episode, Vec::new())
            }
        }
    }

    /// Time between two sightings of the same that follow each other; a late cycle or a suspended host counts for two
    /// intervals at most.
    fn passed(&self, last: Sighting, truth: Truth) -> Duration {
        if last.truth == truth { self.now.boot.saturating_sub(last.at).min(self.interval * 2) } else { Duration::ZERO }
    }

    /// Ends the episode; who was warned is told once that all is well.
    fn leave(&self, episode: &Episode) -> Advanced {
        let to: Vec<Person> =
            episode.warned.iter().map(|(uid, warned)| Person { uid: *uid, name: warned.name.clone() }).collect();
        let channels = episode.warned.values().flat_map(|warned| &warned.channels).cloned();
        let channels: Vec<ChannelName> = channels.collect::<BTreeSet<_>>().into_iter().collect();
        let told = (!to.is_empty()).then(|| self.verdict(episode, 0, Deed::AllClear { to, channels }, Vec::new()));
        Advanced::at_rest(told.into_iter().collect())
    }

    /// The verdicts of a cycle in which the condition is true: the next message if it is due, and the acts that are due
    /// for each target.
    fn due(&self, episode: &Episode) -> Vec<Verdict> {
        let next = episode.climbed.len();
        let rung = self.rungs().get(next);
        let due = rung.is_some_and(|rung| self.overdue(episode, next, rung).is_some());
        let message = rung.filter(|_| due).and_then(|rung| self.message(episode, next, rung));
        let reached = next + usize::from(due);
        message.into_iter().chain(self.acts(episode, reached)).collect()
    }

    fn rungs(&self) -> &[Rung] {
        self.rule.then.rungs()
    }

    /// How long the rung has been due, if it is.
    fn overdue(&self, episode: &Episode, rung: usize, what: &Rung) -> Option<Duration> {
        // The first counts from when the condition became true, which is when the clock began.
        let since =
            rung.checked_sub(1).and_then(|before| episode.climbed.get(before)).map_or(Duration::ZERO, |clock| *clock);
        episode.clock.saturating_sub(since).checked_sub(what.after)
    }

    /// None where the rung is an act.
    fn message(&self, episode: &Episode, rung: usize, what: &Rung) -> Option<Verdict> {
        let deed = match what.action.clone() {
            Action::Warn(channels) => Deed::Warn { to: self.judged.owner.iter().cloned().collect(), channels },
            Action::Alert(channels) => Deed::Alert { channels },
            Action::Inform(channels) => Deed::Inform { to: self.judged.entitled.clone(), channels },
            Action::Signal(_) => return None,
        };
        Some(self.verdict(episode, rung, deed, self.judged.targets.clone()))
    }

    /// The acts that are due, a verdict for each rung that has targets. `reached`: rungs from 0 that may be done now.
    fn acts(&self, episode: &Episode, reached: usize) -> Vec<Verdict> {
        let mut by_rung: BTreeMap<usize, Vec<Target>> = BTreeMap::new();
        for target in self.chosen(episode) {
            let progress = episode.targets.get(&target.process);
            let Some(rung) = self.next_act(progress).filter(|rung| *rung < reached) else { continue };
            let Some(overdue) = self.target_overdue(episode, rung, progress) else { continue };
            match self.warned_in_time(episode, rung, target.uid) {
                Warning::Waits => {}
                Warning::Given => by_rung.entry(rung).or_default().push(Target { overdue, ..target.clone() }),
                Warning::Missing => {
                    let objection = target.objection.or(Some(Guard::Unwarned));
                    by_rung.entry(rung).or_default().push(Target { overdue, objection, ..target.clone() });
                }
            }
        }
        let verdicts = by_rung.into_iter().filter_map(|(rung, targets)| match self.rungs()[rung].action {
            Action::Signal(signal) => Some(self.verdict(episode, rung, Deed::Signal(signal), targets)),
            Action::Warn(_) | Action::Alert(_) | Action::Inform(_) => None,
        });
        verdicts.collect()
    }

    /// Whom the ladder hits now: all, or one at a time, and then the same one until it is gone.
    fn chosen(&self, episode: &Episode) -> Vec<&Target> {
        let candidates = &self.judged.targets;
        if self.rule.targets == Targets::All {
            return candidates.iter().collect();
        }
        let current = candidates.iter().find(|target| episode.targets.contains_key(&target.process));
        // A process whose memory is unknown is never the largest.
        let memory =
            |target: &Target| target.memory.filter(|_| self.rule.targets == Targets::Largest).map(|bytes| bytes.0);
        let order = |target: &&Target| (memory(target), target.process.started, target.process.pid);
        // Whoever may not be hit does not stand in front of whoever may; of those alone, the refusal is to be seen.
        let free = candidates.iter().filter(|target| target.objection.is_none()).max_by_key(order);
        current.or(free).or_else(|| candidates.iter().max_by_key(order)).into_iter().collect()
    }

    /// The first act that a target has not had; none for one of which nobody knows what it had.
    fn next_act(&self, progress: Option<&Progress>) -> Option<usize> {
        if progress.is_some_and(|progress| progress.lost) {
            return None;
        }
        let from = progress.map_or(0, |progress| progress.rung + 1);
        (from..self.rungs().len()).find(|rung| self.rungs()[*rung].action.is_act())
    }

    /// How long the act has been due for this target: by the ladder's clock, and by the target's own last act. That was
    /// done some time after its cycle began, and the distance is one between deeds.
    fn target_overdue(&self, episode: &Episode, rung: usize, progress: Option<&Progress>) -> Option<Duration> {
        match progress {
            Some(progress) => {
                let distance: Duration = self.rungs()[progress.rung + 1..=rung].iter().map(|rung| rung.after).sum();
                let clock = episode.clock.saturating_sub(progress.clock);
                let ago = self.now.boot.saturating_sub(progress.at);
                clock.min(ago).checked_sub(distance)
            }
            // A latecomer under a ladder that has passed this rung is due at once.
            None if rung < episode.climbed.len() => Some(Duration::ZERO),
            None => self.overdue(episode, rung, &self.rungs()[rung]),
        }
    }

    /// Whether this ladder has warned the owner of what it is about to hit, at least the rung's `after` ago.
    fn warned_in_time(&self, episode: &Episode, rung: usize, uid: Option<Uid>) -> Warning {
        if self.rule.without_warning {
            return Warning::Given;
        }
        let Some(warned) = uid.and_then(|uid| episode.warned.get(&uid)) else { return Warning::Missing };
        let ago = self.now.boot.saturating_sub(warned.at);
        if ago >= self.rungs()[rung].after { Warning::Given } else { Warning::Waits }
    }

    fn verdict(&self, episode: &Episode, rung: usize, deed: Deed, targets: Vec<Target>) -> Verdict {
        let next = self.rungs().get(rung + 1).map(|next| Next { action: next.action.clone(), after: next.after });
        Verdict {
            key: EpisodeKey { rule: self.rule.name.clone(), subject: self.judged.subject.clone() },
            description: self.rule.description.clone(),
            mode: self.mode,
            rung,
            deed,
            owner: self.judged.owner.clone().or_else(|| episode.owner.clone()),
            gpu: self.judged.gpu.clone(),
            targets,
            evidence: self.judged.evidence.clone(),
            since: episode.began,
            next,
        }
    }
}

enum Warning {
    Given,
    /// Given, and not yet long enough ago.
    Waits,
    Missing,
}
