mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod cycle;
mod export;
mod http;
mod status;

fn main() {}
