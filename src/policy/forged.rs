//! Verdicts that no rule came to, and the least of a node, for the tests of those who carry verdicts out.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{Card, Deed, EpisodeKey, Evidence, Mode, Next, Person, RuleName, Subject, Target, Verdict};
use crate::snapshot::{Assignments, Confidence, Driver, GpuUuid, Moment, ProcessId, Snapshot};
use crate::units::Uid;

impl Verdict {
    /// About a user on this node, under a rule of this name. What else it says is said with the other constructors.
    pub(crate) fn forged(rule: &str, uid: Uid, mode: Mode, deed: Deed) -> Self {
        let rule: RuleName = rule.parse().unwrap();
        Self {
            key: EpisodeKey { rule, subject: Subject::User { uid, gpu: None } },
            description: "Use only the GPUs that are assigned to you.".into(),
            mode,
            rung: 0,
            deed,
            owner: Some(Person { uid, name: format!("user{uid}").into() }),
            gpu: None,
            targets: Vec::new(),
            evidence: Vec::new(),
            since: Timestamp::UNIX_EPOCH,
            next: None,
        }
    }

    pub(crate) fn at(mut self, targets: Vec<Target>) -> Self {
        self.targets = targets;
        self
    }

    pub(crate) fn on(mut self, gpu: Card) -> Self {
        self.gpu = Some(gpu.into());
        self
    }

    pub(crate) fn seen(mut self, evidence: Vec<Evidence>, since: Timestamp) -> Self {
        self.evidence = evidence;
        self.since = since;
        self
    }

    pub(crate) fn then(mut self, next: Next) -> Self {
        self.next = Some(next);
        self
    }
}

/// An empty node, this many seconds after boot.
pub fn snapshot(second: u64) -> Snapshot {
    let boot = Duration::from_secs(second);
    let wall = Timestamp::from_second(1_796_000_000 + second as i64).unwrap();
    Snapshot {
        at: Moment { wall, boot },
        boot_id: "boot-1".into(),
        driver: Ok(Driver { driver_version: None, nvml_version: None, cuda_version: None }),
        gpus: Ok(Vec::new()),
        processes: BTreeMap::new(),
        users: BTreeMap::new(),
        assignments: Assignments::default(),
        health: Vec::new(),
        pauses: Vec::new(),
        gpus_expected: None,
        topology: Default::default(),
        nvml_errors: BTreeMap::new(),
    }
}

pub fn target(pid: i32, started: u64, uid: Uid) -> Target {
    Target {
        process: ProcessId { pid, started },
        uid: Some(uid),
        confidence: Confidence::High,
        cards: vec![Card { uuid: GpuUuid("GPU-1".into()), index: 1, model: None }],
        command: "python".into(),
        command_line: None,
        memory: None,
        objection: None,
        overdue: Duration::ZERO,
    }
}
