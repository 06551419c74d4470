mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod state;
mod audit;
mod notify;
mod enforce;
mod control;

fn main() {}
