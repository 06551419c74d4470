//! The agent and its peers on simulated nodes.

mod peers;
