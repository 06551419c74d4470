//! The one integration binary: the real program on a simulated node.

mod harness;
mod architecture;
mod check;
mod shipped;
mod peers;
mod ladder;
mod fuse;
mod restart;
mod rights;
mod driver;
mod pages;
mod web;
mod golden;
mod reload;
mod commands;
mod together;
mod demo;
mod smoke;
mod bench;
