//! Who may use which GPU: the union of the enabled sources, each known, stale or silent.

pub mod entry;
