//! The real agent, and its peers, on simulated nodes.

mod harness;
mod ladder;
mod fuse;
mod restart;
mod rights;
mod driver;
mod pages;
mod reload;
mod commands;
mod smoke;
