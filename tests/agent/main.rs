//! The one integration binary: the real program on a simulated node.

mod harness;
mod architecture;
mod check;
mod shipped;
mod peers;
mod beside;
mod ladder;
mod fuse;
mod restart;
mod rights;
mod driver;
mod listed;
mod faults;
mod mig;
mod topology;
mod pages;
mod counters;
mod readings;
mod web;
mod golden;
mod reload;
mod commands;
mod together;
mod demo;
mod smoke;
mod bench;
