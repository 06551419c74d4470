//! Verdicts that no rule came to, for the tests of those who carry them out.

use jiff::Timestamp;

use super::{Card, Deed, EpisodeKey, Evidence, Mode, Next, Person, RuleName, Severity, Subject, Target, Verdict};
use crate::units::Uid;

impl Verdict {
    /// About a user on this node, under a rule of this name. What else it says is said with the other constructors.
    pub(crate) fn forged(rule: &str, uid: Uid, mode: Mode, deed: Deed) -> Self {
        let rule: RuleName = rule.parse().unwrap();
        Self {
            key: EpisodeKey { rule, subject: Subject::User { uid, gpu: None } },
            description: "Use only the GPUs that are assigned to you.".into(),
            severity: Severity::Warning,
            mode,
            rung: 0,
            deed,
            owner: Some(Person { uid, name: format!("user{uid}") }),
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
        self.gpu = Some(gpu);
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

    pub(crate) fn rung_is(mut self, rung: usize) -> Self {
        self.rung = rung;
        self
    }
}
