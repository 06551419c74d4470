//! A simulated NVIDIA driver: `libnvidia-ml.so.1` whose GPUs are written down in a file.

#![allow(non_upper_case_globals, non_snake_case, reason = "NVML's names are kept")]

pub mod scenario;
pub mod units;
pub mod value;
mod call;
mod device;
mod driver;
mod events;
mod fields;
mod find;
mod gpm;
mod handle;
mod mig;
mod pointer;
mod processes;
mod registry;
mod samples;
mod system;
mod unsupported;

pub use scenario::{Gpu, Process, Scenario};
