//! Sources::observe, and the one clock.

pub mod nvml;
pub mod procfs;
pub mod assignment;
