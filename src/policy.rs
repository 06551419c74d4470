//! (rules, snapshot, state) -> (state, verdicts); (state, outcomes) -> state.

pub mod rule;
pub mod condition;
pub mod check;
