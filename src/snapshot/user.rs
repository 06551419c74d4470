//! A person as the directory (NSS) knows him.

use std::sync::Arc;

use crate::units::{Gid, Uid};

/// What the directory said of one question. It may be slow, and the cycle does not wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup<T> {
    Known(T),
    /// The directory answered that it has none.
    Absent,
    /// It has not answered yet, or failed.
    Pending,
}

impl<T> Lookup<T> {
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Absent | Self::Pending => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub gid: Gid,
    /// The gid in digits where the directory has no name.
    pub name: Arc<str>,
}

/// A uid and what the directory knows about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: Uid,
    pub name: Lookup<Arc<str>>,
    /// Every Unix group of the user, the primary one first (getgrouplist(3)).
    pub groups: Lookup<Vec<Group>>,
}

impl User {
    /// The name, or the uid in digits where there is none: the label `user`.
    pub fn label(&self) -> Arc<str> {
        self.name.known().cloned().unwrap_or_else(|| self.uid.to_string().into())
    }
}
