//! One ladder acts on a process at a time.

use super::Verdict;
use super::rule::Rules;
use super::state::State;

pub(super) fn one_ladder_a_process(_state: &State, _verdicts: &mut Vec<Verdict>, _rules: &Rules) {
    todo!()
}
