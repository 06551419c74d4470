mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod cycle;
mod export;
mod http;

fn main() {}
