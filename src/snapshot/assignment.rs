//! Who may use which GPU: rights that are known, or unknown, never assumed.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Fault, GpuUuid, Reading, Source, Truth, User};
use crate::schedule::Window;
use crate::units::{Gid, Uid};

/// What every enabled source said. A right is the union of what they grant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assignments {
    pub sources: Vec<AssignmentSource>,
}

/// One source of rights. It must answer: while it does not, nobody who could have a right by it is without one.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentSource {
    pub source: Source,
    pub answer: Reading<Answer>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Boot time at which the source said so.
    pub at: Duration,
    pub rights: Vec<Right>,
}

/// Somebody may use some cards at some time.
#[derive(Debug, Clone, PartialEq)]
pub struct Right {
    pub to: Grantee,
    pub gpus: Cards,
    pub when: Validity,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grantee {
    Everyone,
    User {
        uid: Uid,
        name: String,
    },
    Group {
        gid: Gid,
        name: String,
    },
    /// A name that the directory does not know, or has not answered about: it could be anybody's.
    Unresolved(String),
}

/// The cards of a right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cards {
    pub known: BTreeSet<GpuUuid>,
    /// Names that no card bears now, or an index whose pin no longer holds: each could be any card's.
    pub unresolved: Vec<String>,
}

/// When a right holds. What is left out does not bound it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Validity {
    pub window: Option<Window>,
    /// Included.
    pub from: Option<Timestamp>,
    /// Not included.
    pub until: Option<Timestamp>,
}

impl Validity {
    pub fn holds(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= at)
            && self.until.is_none_or(|until| at < until)
            && self.window.as_ref().is_none_or(|window| window.contains(at))
    }
}

/// Whose right is asked about, and since when he has been on the card.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// `None` where nobody can be named.
    pub user: Option<&'a User>,
    /// Boot time at which he came to this card, where it matters that the source has spoken since.
    pub came: Option<Duration>,
}

impl Assignments {
    /// May he use this card at that time? Unknown without sources, and while a source that could say yes is silent.
    pub fn assigned(&self, asker: Asker, gpu: &GpuUuid, at: Timestamp) -> Truth {
        if self.sources.is_empty() {
            return Truth::Unknown;
        }
        Truth::any(self.sources.iter().map(|source| source.assigned(asker, gpu, at)))
    }

    /// Does somebody else hold a right on this card, and he does not?
    pub fn assigned_to_other(&self, asker: Asker, gpu: &GpuUuid, at: Timestamp) -> Truth {
        if self.sources.is_empty() {
            return Truth::Unknown;
        }
        let other = Truth::any(self.sources.iter().map(|source| source.assigned_to_other(asker, gpu, at)));
        Truth::all([other, !self.assigned(asker, gpu, at)])
    }

    /// Whether it is known of everybody whether he may use this card at that time.
    pub fn are_known(&self, gpu: &GpuUuid, at: Timestamp) -> bool {
        let answers = self.sources.iter().map(|source| source.answer.as_ref().ok());
        let doubtful = |right: &&Right| {
            let to_anybody = matches!(right.to, Grantee::Unresolved(_)) && right.covers(gpu) != Truth::False;
            right.when.holds(at) && (to_anybody || right.covers(gpu) == Truth::Unknown)
        };
        let everybody_may = self.assigned(Asker { user: None, came: None }, gpu, at).is_true();
        everybody_may
            || !self.sources.is_empty()
                && answers
                    .into_iter()
                    .all(|answer| answer.is_some_and(|answer| !answer.rights.iter().any(|right| doubtful(&right))))
    }

    /// The rights that hold at that time, each with the source that grants it; none from a silent source.
    pub fn holding(&self, at: Timestamp) -> impl Iterator<Item = (Source, &Right)> {
        self.sources.iter().flat_map(move |source| {
            let rights = source.answer.as_ref().map_or(&[][..], |answer| &answer.rights);
            rights.iter().filter(move |right| right.when.holds(at)).map(move |right| (source.source, right))
        })
    }
}

impl AssignmentSource {
    pub fn silent(source: Source, what: impl Into<String>) -> Self {
        Self { source, answer: Err(Fault::new(source, what)) }
    }

    fn assigned(&self, asker: Asker, gpu: &GpuUuid, at: Timestamp) -> Truth {
        let Ok(answer) = &self.answer else { return Truth::Unknown };
        let granted = Truth::any(
            answer
                .rights
                .iter()
                .filter(|right| right.when.holds(at))
                .map(|right| Truth::all([right.covers(gpu), right.names(asker)])),
        );
        // Whoever came after the source last spoke may have come with a right that it has not told of yet.
        let heard = asker.came.is_none_or(|came| came <= answer.at);
        if granted == Truth::False && !heard { Truth::Unknown } else { granted }
    }

    fn assigned_to_other(&self, asker: Asker, gpu: &GpuUuid, at: Timestamp) -> Truth {
        let Ok(answer) = &self.answer else { return Truth::Unknown };
        // "Everyone" is nobody else in particular, and gives the asker a right anyway.
        let others = answer.rights.iter().filter(|right| right.to != Grantee::Everyone && right.when.holds(at));
        Truth::any(others.map(|right| Truth::all([right.covers(gpu), !right.names(asker)])))
    }
}

impl Right {
    fn covers(&self, gpu: &GpuUuid) -> Truth {
        if self.gpus.known.contains(gpu) {
            Truth::True
        } else if self.gpus.unresolved.is_empty() {
            Truth::False
        } else {
            Truth::Unknown
        }
    }

    /// Whether the right names this person, himself or by one of his groups.
    fn names(&self, asker: Asker) -> Truth {
        match (&self.to, asker.user) {
            (Grantee::Everyone, _) => Truth::True,
            (Grantee::Unresolved(_), _) => Truth::Unknown,
            // Where nobody can be named, no right can name him.
            (_, None) => Truth::False,
            (Grantee::User { uid, .. }, Some(user)) => Truth::from(*uid == user.uid),
            (Grantee::Group { gid, .. }, Some(user)) => match &user.groups {
                super::Lookup::Known(groups) => Truth::from(groups.iter().any(|group| group.gid == *gid)),
                super::Lookup::Absent => Truth::False,
                super::Lookup::Pending => Truth::Unknown,
            },
        }
    }
}
