//! The one door: verdicts go in, outcomes come out, and whether one is carried out or only rehearsed is decided here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::audit::{self, Audit};
use crate::causes::chain;
use crate::notify::{Channels, Delivery};
use crate::policy::{Deed, EpisodeKey, Fate, Guard, Outcome, Signal, Target, Verdict};
use crate::snapshot::{Pause, Process, ProcessId, Protection, Reading, Snapshot, Unseen};
use crate::source::procfs::Procfs;
use crate::source::{Occupancy, Sources};
use crate::state;

pub mod fuses;
mod holdoff;
mod pidfd;
mod sight;

use fuses::Due;
pub use fuses::{Fuse, Fuses, Limits};
use holdoff::Holdoff;
use pidfd::Pidfd;
use sight::Sight;

/// A process that is still there this long after a KILL will not go: it hangs in the driver or in the kernel.
const KILL_WAIT: Duration = Duration::from_secs(60);
/// How long what was recorded of a refusal is remembered after it was last repeated.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What can be asked anew when an act is about to be carried out.
pub trait Witness {
    /// One fresh reading of the driver's lists; asked once a cycle at most.
    fn occupancy(&mut self) -> Reading<Occupancy>;
    /// The process that has this pid now.
    fn process(&mut self, pid: i32) -> io::Result<Result<Process, Unseen>>;
}

impl Witness for Sources {
    fn occupancy(&mut self) -> Reading<Occupancy> {
        self.reexamine()
    }

    fn process(&mut self, pid: i32) -> io::Result<Result<Process, Unseen>> {
        Sources::process(self, pid)
    }
}

#[derive(Debug)]
pub struct Enforcer {
    limits: Limits,
    interval: Duration,
    procfs: Procfs,
    audit: Audit,
    channels: Channels,
    fuses: Fuses,
    fuses_file: PathBuf,
    holdoff: Holdoff,
    pauses: BTreeSet<Pause>,
    /// The last record could not be written.
    unaudited: bool,
    /// The state of the ladders could not be written.
    unsaved: bool,
    killed: BTreeMap<ProcessId, Killed>,
    recorded: BTreeMap<Place, Recorded>,
    without_pidfd_said: bool,
}

/// A process that this agent sent a KILL.
#[derive(Debug)]
struct Killed {
    /// Boot time of the KILL.
    at: Duration,
    /// It should be gone by now, and the admins know.
    unkillable: bool,
}

/// Where on which ladder something came out, and for whom.
type Place = (EpisodeKey, usize, Option<ProcessId>);

/// What was last written down about a place, and when it last came out so.
#[derive(Debug)]
struct Recorded {
    result: Fate,
    last: Duration,
}

/// An act on one target.
#[derive(Clone, Copy)]
struct Act<'a> {
    verdict: &'a Verdict,
    signal: Signal,
    target: &'a Target,
}

/// What an act came to, and what else is to be known of it.
struct Came {
    result: Fate,
    remarks: Vec<String>,
}

impl From<Fate> for Came {
    fn from(result: Fate) -> Self {
        Self { result, remarks: Vec::new() }
    }
}

impl Came {
    /// The guard alone does not say what it saw.
    fn refused(guard: Guard, why: impl ToString) -> Self {
        Self { result: Fate::Refused(guard), remarks: vec![why.to_string()] }
    }
}

/// The one place where it is decided whether a verdict is carried out or rehearsed.
fn is_carried_out(verdict: &Verdict) -> bool {
    verdict.mode().carries_out(verdict.deed().is_act())
}

impl Enforcer {
    /// `now` is only to say since when fuses that cannot be read count as blown.
    pub fn new(
        limits: Limits,
        interval: Duration,
        state_dir: &Path,
        procfs: Procfs,
        audit: Audit,
        channels: Channels,
        now: Timestamp,
    ) -> Self {
        let fuses_file = state_dir.join("fuses.json");
        Self {
            limits,
            interval,
            procfs,
            audit,
            channels,
            fuses: fuses::load(&fuses_file, now),
            fuses_file,
            holdoff: Holdoff::default(),
            pauses: BTreeSet::new(),
            unaudited: false,
            unsaved: false,
            killed: BTreeMap::new(),
            recorded: BTreeMap::new(),
            without_pidfd_said: false,
        }
    }

    /// Carries out or rehearses each verdict, and tells what came of it: of a message as a whole, of an act for each
    /// target.
    pub fn carry_out(&mut self, verdicts: &[Verdict], now: &Snapshot, witness: &mut dyn Witness) -> Vec<Outcome> {
        self.look_around(now);
        let mut outcomes = self.tell(verdicts, now);
        let acts = acts(verdicts);
        let mut ready = Vec::new();
        for act in acts {
            match self.inspect(act, witness) {
                Err(came) => outcomes.push(self.settle(now, act, came)),
                Ok(_) if is_carried_out(act.verdict) => ready.push(act),
                Ok(sight) => {
                    let remarks = sight.remarks(act.signal);
                    outcomes.push(self.settle(now, act, Came { result: Fate::Rehearsed, remarks }));
                }
            }
        }
        let (admitted, waiting) = self.admit(ready, now);
        outcomes.extend(waiting.into_iter().map(|(act, guard)| self.settle(now, act, Fate::Refused(guard).into())));
        outcomes.extend(self.act(&admitted, now, witness));
        self.sync();
        self.forget(now);
        outcomes
    }

    /// Why nothing is signalled in this cycle.
    pub fn pauses(&self) -> &BTreeSet<Pause> {
        &self.pauses
    }

    pub fn fuses(&self) -> &Fuses {
        &self.fuses
    }

    /// How many processes got a KILL and are still there long after.
    pub fn unkillable(&self) -> usize {
        self.killed.values().filter(|killed| killed.unkillable).count()
    }

    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// To be told of each attempt to save the ladders: without them on disk nobody is hit.
    pub fn state_was_saved(&mut self, saved: Result<(), state::Error>) {
        if let Err(error) = &saved
            && !self.unsaved
        {
            tracing::error!(error = error as &dyn std::error::Error, "nobody is signalled until it can be written");
        }
        self.unsaved = saved.is_err();
    }

    /// A reload that changed something. Ladders, fuses and what is recorded stay.
    pub fn reload(&mut self, limits: Limits, interval: Duration, now: &Snapshot) {
        self.limits = limits;
        self.interval = interval;
        self.holdoff.reloaded();
        self.note(now, "the configuration was reloaded");
    }

    /// An admin makes the fuses whole again.
    pub fn reset_fuses(&mut self, now: &Snapshot) -> Result<(), state::Error> {
        let whole = Fuses::default();
        // Whole in memory and blown on disk would be a refusal that takes effect.
        fuses::save(&self.fuses_file, &whole)?;
        self.fuses = whole;
        self.pauses.remove(&Pause::Fuse);
        self.note(now, "the fuses were reset");
        Ok(())
    }

    /// Writes down, and tells the admins, what an agent before this one may or may not have done.
    pub fn report_lost(&mut self, lost: &[Outcome], now: &Snapshot) {
        for outcome in lost {
            let written = self.audit.lost(now, outcome);
            self.heed(written);
            let pid = outcome.target.map(|target| format!(" to pid {}", target.pid)).unwrap_or_default();
            let sentence = format!(
                "The agent was ended while it sent {}{pid} (rule {}). Whether it went out is not known; no further signal follows from this ladder.",
                outcome.deed.as_str(),
                outcome.key.rule
            );
            self.alert(&sentence);
        }
    }

    /// A sentence for the audit log.
    pub fn note(&mut self, now: &Snapshot, sentence: &str) {
        let written = self.audit.note(now, sentence).and_then(|()| self.audit.sync());
        self.heed(written);
    }

    /// What was recorded is on disk; where it is not, nobody is signalled.
    fn sync(&mut self) {
        let synced = self.audit.sync();
        if synced.is_err() || !self.unaudited {
            self.heed(synced);
        }
    }

    /// What holds for the whole cycle: pauses, and who did not go when he was killed.
    fn look_around(&mut self, now: &Snapshot) {
        if self.unaudited {
            self.note(now, "the audit log can be written again");
        } else {
            let probed = self.audit.probe();
            self.heed(probed);
        }
        let own = [
            (self.holdoff.is_on(now, self.interval, self.limits.start_delay), Pause::StartDelay),
            (now.driver.is_err() || now.gpus.is_err(), Pause::DriverStale),
            (self.unaudited || self.unsaved, Pause::Audit),
            (self.fuses.blown().next().is_some(), Pause::Fuse),
        ];
        self.pauses = own.into_iter().filter(|(is, _)| *is).map(|(_, pause)| pause).collect();
        self.pauses.extend(&now.pauses);
        self.find_unkillable(now);
    }

    fn find_unkillable(&mut self, now: &Snapshot) {
        let procfs = &self.procfs;
        // One that cannot be read now may still be there.
        self.killed.retain(|process, _| match Sight::of(procfs, process.pid) {
            Ok(Some(sight)) => sight.id() == *process && !sight.is_dead(),
            Ok(None) => false,
            Err(_) => true,
        });
        let late: Vec<ProcessId> = self
            .killed
            .iter_mut()
            .filter(|(_, killed)| !killed.unkillable && now.at.boot.saturating_sub(killed.at) > KILL_WAIT)
            .map(|(process, killed)| {
                killed.unkillable = true;
                *process
            })
            .collect();
        for process in late {
            let sentence = format!(
                "Pid {} was sent KILL and is still there: it hangs in the driver or the kernel. It gets no further signal; consider draining the host.",
                process.pid
            );
            self.note(now, &sentence);
            self.alert(&sentence);
        }
    }

    fn tell(&mut self, verdicts: &[Verdict], now: &Snapshot) -> Vec<Outcome> {
        let messages: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.deed().is_act()).collect();
        let (carried, rehearsed): (Vec<_>, Vec<_>) = messages.into_iter().partition(|verdict| is_carried_out(verdict));
        for verdict in &carried {
            if !self.recorded.contains_key(&(verdict.key().clone(), verdict.rung(), None)) {
                let written = self.audit.intent(now, verdict, None);
                self.heed(written);
            }
        }
        self.sync();
        let came = self.channels.tell(&carried);
        let came = came.into_iter().map(|told| Came { result: told.fate, remarks: told.why });
        let rehearsed = rehearsed.into_iter().map(|verdict| (verdict, Fate::Rehearsed.into()));
        carried
            .into_iter()
            .zip(came)
            .chain(rehearsed)
            .map(|(verdict, came)| self.record(now, verdict, None, came))
            .collect()
    }

    /// Whether this target may be hit, as far as it itself goes. Reads only.
    fn inspect(&self, act: Act, witness: &mut dyn Witness) -> Result<Sight, Came> {
        let target = act.target;
        if let Some(guard) = target.objection {
            return Err(Fate::Refused(guard).into());
        }
        if self.killed.get(&target.process).is_some_and(|killed| killed.unkillable) {
            return Err(Fate::Refused(Guard::Unkillable).into());
        }
        let process = match witness.process(target.process.pid) {
            Ok(Ok(process)) if process.id == target.process => process,
            // Nobody, or a successor with the same pid.
            Ok(Ok(_)) | Ok(Err(Unseen::Exited)) => return Err(Fate::Gone.into()),
            Ok(Err(Unseen::Hidden)) => return Err(Came::refused(Guard::Identity, "/proc hides it")),
            Err(error) => return Err(Came::refused(Guard::Identity, error)),
        };
        let sight = match Sight::of(&self.procfs, target.process.pid) {
            Ok(Some(sight)) if sight.id() == target.process && !sight.is_dead() => sight,
            Ok(_) => return Err(Fate::Gone.into()),
            Err(error) => return Err(Came::refused(Guard::Identity, error)),
        };
        if target.uid != Some(sight.uid()) {
            return Err(Came::refused(Guard::Identity, "it has another owner by now"));
        }
        if sight.is_nameless() {
            return Err(Came::refused(Guard::Identity, "its executable cannot be read"));
        }
        if sight.uid() < self.limits.min_uid {
            return Err(Came::refused(Guard::Protected, "its uid is below limits.min_uid"));
        }
        match process.protection {
            // Policy weighed the confidence that it saw; with less of it the act is another one.
            Some(Protection::None) if process.confidence >= target.confidence => Ok(sight),
            Some(Protection::None) => Err(Fate::Refused(Guard::Confidence).into()),
            Some(_) => Err(Fate::Refused(Guard::Protected).into()),
            None => Err(Came::refused(Guard::Identity, "whether it is protected cannot be told")),
        }
    }

    /// Those that pauses and fuses let through, and those that wait.
    fn admit<'a>(&mut self, ready: Vec<Act<'a>>, now: &Snapshot) -> (Vec<Act<'a>>, Vec<(Act<'a>, Guard)>) {
        if ready.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let guard = match self.pauses.iter().find(|pause| **pause != Pause::Fuse) {
            Some(_) => Guard::Paused,
            None => match self.ask_fuses(&ready, now) {
                Ok(admitted) => {
                    let (through, waiting): (Vec<_>, Vec<_>) =
                        ready.into_iter().partition(|act| admitted.contains(&act.target.process));
                    return (through, waiting.into_iter().map(|act| (act, Guard::Fuse)).collect());
                }
                Err(guard) => guard,
            },
        };
        (Vec::new(), ready.into_iter().map(|act| (act, guard)).collect())
    }

    fn ask_fuses(&mut self, ready: &[Act], now: &Snapshot) -> Result<BTreeSet<ProcessId>, Guard> {
        let was_blown = self.fuses.blown().next().is_some();
        let due: Vec<Due> = ready.iter().filter_map(due).collect();
        let workloads = workloads(now);
        let admitted = self.fuses.admit(&self.limits, &due, workloads, now.at.wall);
        // What they count is on disk before anything is done, or nothing is done.
        if let Err(error) = fuses::save(&self.fuses_file, &self.fuses) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the fuses cannot be written: nobody is signalled"
            );
            self.pauses.insert(Pause::Audit);
            return Err(Guard::Paused);
        }
        admitted.map_err(|fuse| {
            if !was_blown {
                self.pauses.insert(Pause::Fuse);
                self.announce(fuse, due.len(), workloads, now);
            }
            Guard::Fuse
        })
    }

    fn announce(&mut self, fuse: Fuse, due: usize, workloads: usize, now: &Snapshot) {
        let sentence = format!(
            "The fuse {} has blown: {due} acts were due at once, {workloads} processes are on the GPUs. Nobody is signalled until `gpuwarden reset fuses`.",
            fuse.as_str()
        );
        self.note(now, &sentence);
        self.alert(&sentence);
    }

    /// Carries the acts out.
    fn act(&mut self, acts: &[Act], now: &Snapshot, witness: &mut dyn Witness) -> Vec<Outcome> {
        let mut came = Vec::new();
        let mut held = Vec::new();
        for act in acts {
            match self.take_hold(*act, now) {
                Ok(pidfd) => held.push((*act, pidfd)),
                Err(result) => came.push((*act, result.into())),
            }
        }
        // After the pidfds are open, so that what the driver says is said of those that are held.
        let occupancy = if held.is_empty() { None } else { Some(witness.occupancy()) };
        for (act, pidfd) in held {
            let result = match &occupancy {
                Some(Ok(occupancy)) if is_listed(act.target, occupancy) => self.hit(act, &pidfd, now, witness),
                Some(Err(fault)) => Came::refused(Guard::Stale, fault),
                _ => Came::refused(Guard::Stale, "the driver no longer lists it on that card"),
            };
            came.push((act, result));
        }
        came.into_iter().map(|(act, came)| self.settle(now, act, came)).collect()
    }

    /// Writes down what is intended and pins the process.
    fn take_hold(&mut self, act: Act, now: &Snapshot) -> Result<Pidfd, Fate> {
        let written = self.audit.intent(now, act.verdict, Some(act.target)).and_then(|()| self.audit.sync());
        if !self.heed(written) {
            self.pauses.insert(Pause::Audit);
            return Err(Fate::Refused(Guard::Paused));
        }
        Pidfd::open(act.target.process.pid).map_err(|error| {
            if matches!(error, pidfd::Error::Unsupported) && !std::mem::replace(&mut self.without_pidfd_said, true) {
                tracing::error!("{error}");
            }
            came_of(error)
        })
    }

    /// The start time is read after the pidfd is open: if it still is the one that was seen, the pid has had a single
    /// holder all along.
    fn hit(&mut self, act: Act, pidfd: &Pidfd, now: &Snapshot, witness: &mut dyn Witness) -> Came {
        let sight = match self.is_held(act.target, pidfd).and_then(|()| self.inspect(act, witness)) {
            Ok(sight) => sight,
            Err(came) => return came,
        };
        let mut remarks = sight.remarks(act.signal);
        if !act.signal.ends() && !sight.catches(act.signal) {
            remarks.push("it does not catch this signal, so it was not sent".into());
            return Came { result: Fate::Done, remarks };
        }
        if let Err(error) = pidfd.send(act.signal) {
            return Came { result: came_of(error), remarks };
        }
        if act.signal == Signal::Kill {
            self.killed.entry(act.target.process).or_insert(Killed { at: now.at.boot, unkillable: false });
        } else if sight.is_stopped() {
            remarks.push(match pidfd.wake() {
                Ok(()) => "it was sent CONT, so that it can hear".into(),
                Err(error) => format!("it could not be sent CONT: {error}"),
            });
        }
        Came { result: Fate::Done, remarks }
    }

    /// That the `/proc` which is read means the same process by this pid: it may be of another PID namespace.
    fn is_held(&self, target: &Target, pidfd: &Pidfd) -> Result<(), Came> {
        match pidfd.pid(&self.procfs) {
            Ok(Some(pid)) if pid == target.process.pid => Ok(()),
            Ok(None) => Err(Fate::Gone.into()),
            Ok(Some(_)) => Err(Came::refused(Guard::Identity, "its pid is another in this /proc")),
            Err(error) => Err(Came::refused(Guard::Identity, error)),
        }
    }

    fn settle(&mut self, now: &Snapshot, act: Act, came: Came) -> Outcome {
        self.record(now, act.verdict, Some(act.target), came)
    }

    /// Writes down an outcome, unless it is a repetition.
    fn record(&mut self, now: &Snapshot, verdict: &Verdict, target: Option<&Target>, came: Came) -> Outcome {
        let Came { result, remarks } = came;
        let process = target.map(|target| target.process);
        let place = (verdict.key().clone(), verdict.rung(), process);
        let repeated = self.recorded.get(&place).is_some_and(|recorded| recorded.result == result);
        let written = repeated || {
            log(verdict, process, &result, &remarks);
            let written = self.audit.outcome(now, verdict, target, &result, &remarks);
            self.heed(written)
        };
        match &result {
            Fate::Refused(_) | Fate::Failed(_) | Fate::Pending | Fate::Gone if written => {
                self.recorded.insert(place, Recorded { result: result.clone(), last: now.at.boot });
            }
            // Done and rehearsed are events: the next of them is another one.
            _ => drop(self.recorded.remove(&place)),
        }
        Outcome {
            key: verdict.key().clone(),
            rung: verdict.rung(),
            deed: verdict.deed().clone(),
            owner: verdict.owner().cloned(),
            target: process,
            result,
        }
    }

    fn forget(&mut self, now: &Snapshot) {
        self.recorded.retain(|_, recorded| now.at.boot.saturating_sub(recorded.last) < REMEMBERED);
    }

    /// Whether a record was written; that none can be is said when it begins.
    fn heed(&mut self, written: Result<(), audit::Error>) -> bool {
        if let Err(error) = &written
            && !self.unaudited
        {
            tracing::error!(error = error as &dyn std::error::Error, "nobody is signalled until it can be written");
        }
        self.unaudited = written.is_err();
        written.is_ok()
    }

    fn alert(&mut self, sentence: &str) {
        tracing::error!("{sentence}");
        if let Delivery::Undeliverable(why) | Delivery::Failed(why) = self.channels.alert(sentence) {
            tracing::warn!(why, "no admin was reached on a terminal");
        }
    }
}

/// Every act on every target.
fn acts(verdicts: &[Verdict]) -> Vec<Act<'_>> {
    let acts = verdicts.iter().filter_map(|verdict| match verdict.deed() {
        Deed::Signal(signal) => Some((verdict, *signal)),
        Deed::Warn { .. } | Deed::Alert { .. } | Deed::Inform { .. } | Deed::AllClear { .. } => None,
    });
    acts.flat_map(|(verdict, signal)| verdict.targets().iter().map(move |target| Act { verdict, signal, target }))
        .collect()
}

fn due(act: &Act) -> Option<Due> {
    Some(Due {
        process: act.target.process,
        owner: act.target.uid?,
        rule: act.verdict.key().rule.clone(),
        overdue: act.target.overdue,
    })
}

/// How many there are that could be hit: each process counts once, on however many cards.
fn workloads(now: &Snapshot) -> usize {
    now.holds().map(|(_, _, process)| process.id).collect::<BTreeSet<_>>().len()
}

/// The driver still shows it on one of the cards on which it offends.
fn is_listed(target: &Target, occupancy: &Occupancy) -> bool {
    let on = occupancy.cards.get(&target.process.pid);
    on.is_some_and(|cards| target.cards.iter().any(|card| cards.contains(&card.uuid)))
}

fn came_of(error: pidfd::Error) -> Fate {
    match error {
        pidfd::Error::Gone => Fate::Gone,
        other => Fate::Failed(chain(&other)),
    }
}

fn log(verdict: &Verdict, process: Option<ProcessId>, result: &Fate, remarks: &[String]) {
    let (rule, pid, why) = (verdict.key().rule.as_str(), process.map(|process| process.pid), remarks.join("; "));
    let user = verdict.owner().map(|owner| &*owner.name);
    let gpu = verdict.gpu().map(|card| card.index);
    let what = format!("{} {}", verdict.deed().as_str(), result.as_str());
    match result {
        Fate::Refused(guard) => tracing::warn!(rule, user, gpu, pid, reason = guard.as_str(), why, "{what}"),
        Fate::Failed(error) => tracing::error!(rule, user, gpu, pid, error, why, "{what}"),
        Fate::Done | Fate::Rehearsed | Fate::Pending | Fate::Gone => {
            tracing::info!(rule, user, gpu, pid, why, "{what}")
        }
    }
}

#[cfg(test)]
mod tests;
