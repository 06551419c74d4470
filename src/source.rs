//! Sources::observe, and the one clock.

pub mod assignment;
