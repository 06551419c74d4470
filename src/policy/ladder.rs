//! From what was seen, cycle after cycle, to rungs.

use super::Verdict;
use super::judge::Judged;
use super::rule::{Rule, Rules};
use super::state::Episode;
use crate::snapshot::Moment;

pub(super) struct Advanced {
    pub episode: Option<Episode>,
    pub verdicts: Vec<Verdict>,
}

pub(super) fn advance(
    _rule: &Rule,
    _rules: &Rules,
    _now: Moment,
    _judged: &Judged,
    _was: Option<&Episode>,
) -> Advanced {
    todo!()
}
