//! Whom a rule is about.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::RuleName;
use crate::snapshot::{GpuUuid, ProcessId};
use crate::units::Uid;

/// To whom a ladder belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// One process on one card.
    Process {
        id: ProcessId,
        gpu: GpuUuid,
    },
    /// A user with all that he holds on the node, or on one card.
    User {
        uid: Uid,
        gpu: Option<GpuUuid>,
    },
    Gpu {
        uuid: GpuUuid,
    },
}

impl Subject {
    /// The card, where the subject is on one.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        match self {
            Self::Process { gpu, .. } => Some(gpu),
            Self::User { gpu, .. } => gpu.as_ref(),
            Self::Gpu { uuid } => Some(uuid),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Process { id, gpu } => write!(f, "process {} on {gpu}", id.pid),
            Self::User { uid, gpu: Some(gpu) } => write!(f, "user {uid} on {gpu}"),
            Self::User { uid, gpu: None } => write!(f, "user {uid}"),
            Self::Gpu { uuid } => write!(f, "gpu {uuid}"),
        }
    }
}

/// An episode: one subject under one rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct EpisodeKey {
    pub rule: RuleName,
    pub subject: Subject,
}
