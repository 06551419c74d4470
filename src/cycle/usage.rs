//! Who has what on which card: the processes of a snapshot, added up over their owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::assignment::Asker;
use crate::snapshot::{Gpu, Hold, Process, Snapshot, Truth, Unseen, User};
use crate::units::{Bytes, Percent};

/// A sum of which parts may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    known: u64,
    whole: bool,
}

impl Amount {
    pub fn of(parts: impl IntoIterator<Item = Option<Bytes>>) -> Self {
        parts.into_iter().fold(Self { known: 0, whole: true }, |sum, part| match part {
            Some(bytes) => Self { known: sum.known.saturating_add(bytes.0), ..sum },
            None => Self { whole: false, ..sum },
        })
    }

    /// The sum, where every part is known.
    pub fn exact(self) -> Option<Bytes> {
        self.whole.then_some(Bytes(self.known))
    }

    /// It is at least its known part: that can prove "more", never "less".
    pub fn exceeds(self, limit: Bytes) -> Truth {
        match (self.known > limit.0, self.whole) {
            (true, _) => Truth::True,
            (false, true) => Truth::False,
            (false, false) => Truth::Unknown,
        }
    }
}

/// One process on one card, as far as it can be told who that is.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub gpu: &'a Gpu,
    pub hold: &'a Hold,
    /// `None` where `/proc` hides it.
    pub process: Option<&'a Process>,
}

impl<'a> Part<'a> {
    pub fn owner(&self, snapshot: &'a Snapshot) -> Option<&'a User> {
        snapshot.users.get(&self.process?.uid?)
    }

    /// The label `user`: the name, the uid in digits where there is none, empty where the owner is not known.
    pub fn user(&self, snapshot: &Snapshot) -> Arc<str> {
        let Some(uid) = self.process.and_then(|process| process.uid) else { return Arc::default() };
        self.owner(snapshot).map_or_else(|| uid.to_string().into(), User::label)
    }

    /// May its owner use this card now? Unknown where the owner is.
    pub fn assigned(&self, snapshot: &Snapshot) -> Truth {
        match self.owner(snapshot) {
            Some(user) => {
                let asker = Asker { user: Some(user), came: Some(self.hold.since) };
                snapshot.assignments.assigned(asker, &self.gpu.uuid, snapshot.at.wall)
            }
            None => Truth::Unknown,
        }
    }
}

/// The processes on the cards. One that has ended, and is not yet gone from the driver's list, is none of them: what it
/// still holds is attributed to nobody.
pub fn parts(snapshot: &Snapshot) -> impl Iterator<Item = Part<'_>> {
    snapshot.cards().iter().flat_map(|gpu| parts_on(snapshot, gpu))
}

/// The driver's list of a card that answers, where it could be read: of a lost card nothing is known any more.
pub fn listed(gpu: &Gpu) -> Option<&[Hold]> {
    gpu.readings.as_ref().ok()?;
    gpu.holds.as_deref().ok()
}

pub fn parts_on<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> impl Iterator<Item = Part<'a>> {
    let holds = listed(gpu).unwrap_or(&[]);
    holds.iter().filter(|hold| hold.process != Err(Unseen::Exited)).map(move |hold| {
        let process = hold.process.as_ref().ok().and_then(|id| snapshot.processes.get(id));
        Part { gpu, hold, process }
    })
}

/// All that one owner has on one card.
#[derive(Debug, Clone)]
pub struct Usage<'a> {
    pub gpu: &'a Gpu,
    /// The label `user`.
    pub user: Arc<str>,
    pub parts: Vec<Part<'a>>,
}

impl Usage<'_> {
    pub fn memory(&self) -> Amount {
        Amount::of(self.parts.iter().map(|part| part.hold.memory))
    }

    /// Memory of the processes whose owner may not use this card; `None` where that is not known of one of them.
    pub fn unassigned_memory(&self, snapshot: &Snapshot) -> Option<Bytes> {
        let memory = self.parts.iter().filter_map(|part| match part.assigned(snapshot) {
            Truth::True => None,
            Truth::False => Some(part.hold.memory),
            Truth::Unknown => Some(None),
        });
        Amount::of(memory).exact()
    }

    /// Whether one of the processes is here without a right.
    pub fn unassigned(&self, snapshot: &Snapshot) -> Truth {
        Truth::any(self.parts.iter().map(|part| !part.assigned(snapshot)))
    }
}

/// Who has what on which card, by card and owner. Owners whom the directory gives one name are one.
pub fn usages(snapshot: &Snapshot) -> Vec<Usage<'_>> {
    snapshot.cards().iter().flat_map(|gpu| usages_of(snapshot, gpu)).collect()
}

pub fn usages_of<'a>(snapshot: &'a Snapshot, gpu: &'a Gpu) -> Vec<Usage<'a>> {
    let mut by_user: BTreeMap<Arc<str>, Vec<Part>> = BTreeMap::new();
    for part in parts_on(snapshot, gpu) {
        by_user.entry(part.user(snapshot)).or_default().push(part);
    }
    by_user.into_iter().map(|(user, parts)| Usage { gpu, user, parts }).collect()
}

/// A utilisation as a share of time; none that a broken driver could not have measured.
pub fn share(utilization: Option<Percent>) -> Option<f64> {
    let ratio = utilization?.ratio();
    ratio.is_finite().then(|| ratio.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_an_unknown_part_can_prove_more_and_never_less() {
        let sum = Amount::of([Some(Bytes(400)), None]);
        assert_eq!(sum.exact(), None);
        assert_eq!(sum.exceeds(Bytes(300)), Truth::True);
        assert_eq!(sum.exceeds(Bytes(400)), Truth::Unknown);
        assert_eq!(Amount::of([]).exact(), Some(Bytes(0)));
        assert_eq!(Amount::of([Some(Bytes(300))]).exceeds(Bytes(300)), Truth::False);
    }
}
