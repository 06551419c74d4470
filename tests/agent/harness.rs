//! The real agent on a simulated node: a driver that is written down in a file, real processes and terminals, and names
//! that only the agent knows.
//!
//! Whatever is started here ends with the value that stands for it, by its own pid, and has a bounded life besides.

pub mod wait;
pub mod http;
pub mod page;
pub mod node;
pub mod agent;
pub mod worker;
pub mod terminal;

pub use agent::Agent;
pub use node::Node;
pub use page::Page;
pub use wait::{LIMIT, eventually, uptime};
pub use worker::Worker;

/// Whether this is root; a test that cannot do without says so and is over.
#[must_use]
pub fn root(what_for: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        eprintln!("{test}: skipped, for {what_for} takes root");
    }
    root
}
