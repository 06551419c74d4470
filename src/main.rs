mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod config;

fn main() {}
