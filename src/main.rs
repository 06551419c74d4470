mod units;
mod schedule;
mod snapshot;
mod source;

fn main() {}
