//! Limits against the implausible: a rule that would hit many at once is more likely wrong than they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::policy::RuleName;
use crate::snapshot::ProcessId;
use crate::state;
use crate::units::{Percent, Uid};

/// As the configuration has them, under `limits`.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// The longest due first, the rest wait for the next cycle.
    pub acts_per_cycle: u32,
    /// Repeats on one owner under one rule count once.
    pub acts_per_hour: u32,
    /// Of all GPU workloads, in one cycle.
    pub share_of_workloads: Percent,
    /// No process of a lower uid is ever hit.
    pub min_uid: Uid,
    /// No acts this soon after start, reload, resume, a clock jump, or the return of the driver or a source.
    pub start_delay: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            acts_per_cycle: 3,
            acts_per_hour: 20,
            share_of_workloads: Percent(25.0),
            min_uid: Uid(1000),
            start_delay: Duration::from_secs(60),
        }
    }
}

/// As many targets in one cycle are plausible on the smallest node.
const ALWAYS_PLAUSIBLE: usize = 3;
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// A fuse that blows and stays blown; the label `fuse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fuse {
    ActsPerHour,
    ShareOfWorkloads,
}

impl Fuse {
    pub const ALL: [Self; 2] = [Self::ActsPerHour, Self::ShareOfWorkloads];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ActsPerHour => "acts_per_hour",
            Self::ShareOfWorkloads => "share_of_workloads",
        }
    }
}

/// What the fuses remember. In wall time: an hour goes on over a restart of the host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fuses {
    acts: Vec<Act>,
    blown: BTreeMap<Fuse, Timestamp>,
}

/// The last act on an owner under a rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Act {
    on: Uid,
    under: RuleName,
    at: Timestamp,
}

/// An act that is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    pub process: ProcessId,
    pub owner: Uid,
    pub rule: RuleName,
    pub overdue: Duration,
}

impl Fuses {
    /// Blown from the start: for when it cannot be told what an agent before this one did.
    pub fn blown_at(at: Timestamp) -> Self {
        Self { acts: Vec::new(), blown: Fuse::ALL.map(|fuse| (fuse, at)).into() }
    }

    pub fn blown(&self) -> impl Iterator<Item = Fuse> {
        self.blown.keys().copied()
    }

    #[cfg(test)]
    pub fn is_blown(&self, fuse: Fuse) -> bool {
        self.blown.contains_key(&fuse)
    }

    /// The processes that may be hit in this cycle, counted from now on. `Err`: that fuse blew, and none may.
    pub fn admit(
        &mut self,
        limits: &Limits,
        due: &[Due],
        workloads: usize,
        now: Timestamp,
    ) -> Result<BTreeSet<ProcessId>, Fuse> {
        if let Some(fuse) = self.blown.keys().next() {
            return Err(*fuse);
        }
        if is_implausible(due, workloads, limits.share_of_workloads) {
            return Err(self.blow(Fuse::ShareOfWorkloads, now));
        }
        let chosen = longest_due(due, limits.acts_per_cycle);
        let counted = self.counting(due.iter().filter(|due| chosen.contains(&due.process)), now);
        if counted.len() > limits.acts_per_hour as usize {
            return Err(self.blow(Fuse::ActsPerHour, now));
        }
        self.acts = counted;
        Ok(chosen)
    }

    fn blow(&mut self, fuse: Fuse, now: Timestamp) -> Fuse {
        self.blown.insert(fuse, now);
        fuse
    }

    /// The acts of the last hour and these. One in the future, of a clock that was set back, counts too.
    fn counting<'a>(&self, more: impl Iterator<Item = &'a Due>, now: Timestamp) -> Vec<Act> {
        let mut acts: Vec<Act> = self.acts.iter().filter(|act| now.duration_since(act.at) < HOUR).cloned().collect();
        for due in more {
            acts.retain(|act| (act.on, &act.under) != (due.owner, &due.rule));
            acts.push(Act { on: due.owner, under: due.rule.clone(), at: now });
        }
        acts
    }
}

/// More targets than this share of all that could be targets. A process counts once, whatever is due to it.
fn is_implausible(due: &[Due], workloads: usize, share: Percent) -> bool {
    let targets = due.iter().map(|due| due.process).collect::<BTreeSet<_>>().len();
    targets > ALWAYS_PLAUSIBLE && targets as f64 > share.ratio() * workloads as f64
}

fn longest_due(due: &[Due], at_most: u32) -> BTreeSet<ProcessId> {
    let mut longest: BTreeMap<ProcessId, Duration> = BTreeMap::new();
    for due in due {
        let overdue = longest.entry(due.process).or_default();
        *overdue = due.overdue.max(*overdue);
    }
    let mut by_length: Vec<_> = longest.into_iter().map(|(process, overdue)| (overdue, process)).collect();
    by_length.sort_by_key(|(overdue, process)| (std::cmp::Reverse(*overdue), *process));
    by_length.into_iter().take(at_most as usize).map(|(_, process)| process).collect()
}

/// What an agent before this one left. Where that cannot be read, nobody knows what it did, and the fuses are blown.
pub fn load(path: &Path, now: Timestamp) -> Fuses {
    let read = match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Fuses::default()),
        Err(error) => Err(error.to_string()),
    };
    read.unwrap_or_else(|why| {
        tracing::error!(path = %path.display(), why, "what the fuses counted cannot be read: nobody is signalled until `gpuwarden reset fuses`");
        Fuses::blown_at(now)
    })
}

pub fn save(path: &Path, fuses: &Fuses) -> Result<(), state::Error> {
    let text = serde_json::to_vec(fuses);
    let text = text.map_err(|source| state::Error::Write { path: path.to_owned(), source: source.into() })?;
    state::write_whole(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(pid: i32, owner: u32, rule: &str, overdue: u64) -> Due {
        Due {
            process: ProcessId { pid, started: 1 },
            owner: Uid(owner),
            rule: rule.parse().unwrap(),
            overdue: Duration::from_secs(overdue),
        }
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn pids(admitted: Result<BTreeSet<ProcessId>, Fuse>) -> Result<Vec<i32>, Fuse> {
        admitted.map(|processes| processes.into_iter().map(|process| process.pid).collect())
    }

    #[test]
    fn the_longest_due_go_first() {
        let due: Vec<_> = (1..=5).map(|pid| due(pid, 1000, "idle", pid as u64)).collect();
        assert_eq!(pids(Fuses::default().admit(&Limits::default(), &due, 100, at(0))), Ok(vec![3, 4, 5]));
    }

    #[test]
    fn a_process_counts_once_in_a_cycle() {
        let twice = [due(1, 1000, "a", 1), due(1, 1000, "b", 1), due(2, 1000, "a", 1), due(3, 1000, "a", 1)];
        assert_eq!(pids(Fuses::default().admit(&Limits::default(), &twice, 3, at(0))), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn more_than_a_share_of_all_workloads_are_not_hit_at_once() {
        let many: Vec<_> = (1..=4).map(|pid| due(pid, 1000, "idle", 0)).collect();
        let limits = Limits { acts_per_cycle: 10, ..Limits::default() };
        assert_eq!(pids(Fuses::default().admit(&limits, &many, 16, at(0))), Ok(vec![1, 2, 3, 4]));
        let mut fuses = Fuses::default();
        assert_eq!(fuses.admit(&limits, &many, 15, at(0)), Err(Fuse::ShareOfWorkloads));
        // It stays blown, however little is due later.
        assert_eq!(fuses.admit(&limits, &many[..1], 1000, at(600)), Err(Fuse::ShareOfWorkloads));
        assert!(fuses.is_blown(Fuse::ShareOfWorkloads));
    }

    #[test]
    fn three_are_plausible_on_the_smallest_node() {
        let three: Vec<_> = (1..=3).map(|pid| due(pid, 1000, "idle", 0)).collect();
        assert_eq!(pids(Fuses::default().admit(&Limits::default(), &three, 3, at(0))), Ok(vec![1, 2, 3]));
    }

    #[test]
    fn one_act_too_many_in_an_hour_stops_all() {
        let limits = Limits { acts_per_hour: 2, ..Limits::default() };
        let mut fuses = Fuses::default();
        assert!(fuses.admit(&limits, &[due(1, 1000, "idle", 0)], 9, at(0)).is_ok());
        assert!(fuses.admit(&limits, &[due(2, 1001, "idle", 0)], 9, at(30)).is_ok());
        let mut later = fuses.clone();
        assert_eq!(fuses.admit(&limits, &[due(3, 1002, "idle", 0)], 9, at(59)), Err(Fuse::ActsPerHour));
        assert!(later.admit(&limits, &[due(3, 1002, "idle", 0)], 9, at(60)).is_ok());
    }

    #[test]
    fn repeats_on_one_owner_under_one_rule_count_once() {
        let limits = Limits { acts_per_hour: 1, ..Limits::default() };
        let mut fuses = Fuses::default();
        for minute in 0..50 {
            assert!(fuses.admit(&limits, &[due(minute, 1000, "idle", 0)], 9, at(minute.into())).is_ok());
        }
        assert_eq!(fuses.admit(&limits, &[due(99, 1000, "other", 0)], 9, at(50)), Err(Fuse::ActsPerHour));
    }

    #[test]
    fn a_clock_set_back_forgets_no_act() {
        let limits = Limits { acts_per_hour: 1, ..Limits::default() };
        let mut fuses = Fuses::default();
        assert!(fuses.admit(&limits, &[due(1, 1000, "idle", 0)], 9, at(600)).is_ok());
        assert_eq!(fuses.admit(&limits, &[due(2, 1001, "idle", 0)], 9, at(0)), Err(Fuse::ActsPerHour));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut fuses = Fuses::blown_at(at(3));
        fuses.acts.push(Act { on: Uid(1), under: "a".parse().unwrap(), at: at(2) });
        let text = serde_json::to_string(&fuses).unwrap();
        assert_eq!(serde_json::from_str::<Fuses>(&text).unwrap(), fuses);
    }
}
