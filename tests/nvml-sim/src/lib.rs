//! A simulated NVIDIA driver: `libnvidia-ml.so.1` whose GPUs are written down in a file.

pub mod scenario;
pub mod units;
pub mod value;
mod call;
mod device;
mod driver;
mod find;
mod handle;
mod pointer;
mod processes;
mod samples;
mod system;

pub use scenario::{Gpu, Process, Scenario};
