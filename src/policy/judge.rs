//! Whether a rule is broken, in three values, for each of its subjects.

use serde::Serialize;

use super::rule::{Rule, Rules};
use super::state::State;
use super::{Card, Person, Subject, Target};
use crate::snapshot::{Snapshot, Truth};

/// What a condition asked, and what it saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub fact: &'static str,
    /// The value that was seen, as people write it; `unknown` where there was none.
    pub value: String,
    /// What the rule says about it, such as `> 40GiB`.
    pub asked: String,
    pub truth: Truth,
}

/// A rule's view of one subject.
pub(super) struct Judged {
    pub subject: Subject,
    pub truth: Truth,
    /// Whether the subject is there at all, and not only remembered.
    pub present: bool,
    pub exempt: bool,
    pub owner: Option<Person>,
    pub gpu: Option<Card>,
    /// Whether the owner has a right on the card, where that is known and the rule asks.
    pub right: Option<bool>,
    pub evidence: Vec<Evidence>,
    /// The processes that count and offend.
    pub targets: Vec<Target>,
    /// Whom the rights on the card name, other than the owner.
    pub entitled: Vec<Person>,
}

pub(super) fn subjects(_rule: &Rule, _rules: &Rules, _now: &Snapshot, _before: &State) -> Vec<Judged> {
    todo!()
}
