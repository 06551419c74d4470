mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;

fn main() {}
