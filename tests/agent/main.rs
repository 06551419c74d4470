//! The real agent, and its peers, on simulated nodes.

mod harness;
mod smoke;
