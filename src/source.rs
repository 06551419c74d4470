//! Sources::observe, and the one clock.

pub mod nvml;
pub mod procfs;
pub mod cgroup;
pub mod processes;
pub mod pci;
pub mod directory;
pub mod assignment;
