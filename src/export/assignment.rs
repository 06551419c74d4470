//! Rights that hold now.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::card::gpu_labels;
use super::series::{Labels, Series, Subject, gauge};
use crate::cycle::Cycle;
use crate::snapshot::{Grantee, Source};

/// A right on one card.
pub struct Right {
    gpu: Labels,
    source: Source,
    user: String,
    group: String,
    end: Option<Timestamp>,
}

impl Subject for Right {
    const LABELS: &'static [&'static str] = &["gpu", "uuid", "source", "user", "group"];

    fn labels(&self) -> Labels {
        let mut labels = self.gpu.clone();
        labels.extend([
            ("source", self.source.as_str().into()),
            ("user", self.user.clone().into()),
            ("group", self.group.clone().into()),
        ]);
        labels
    }
}

/// One for each card, source and name. Of two rights with equal names the one that ends later counts.
pub fn rights(cycle: &Cycle) -> Vec<Right> {
    let snapshot = &cycle.seen;
    let mut rights = BTreeMap::new();
    for (source, right) in snapshot.assignments.holding(snapshot.at.wall) {
        let Some((user, group)) = names(&right.to) else { continue };
        for gpu in right.gpus.known.iter().filter_map(|uuid| snapshot.gpu(uuid)) {
            let key = (gpu.index, source, user.clone(), group.clone());
            let end = right.when.until;
            let gpu = gpu_labels(gpu.index, &gpu.uuid);
            let same =
                rights.entry(key).or_insert(Right { gpu, source, user: user.clone(), group: group.clone(), end });
            same.end = later(same.end, end);
        }
    }
    rights.into_values().collect()
}

/// The labels `user` and `group`; a name that nobody bears now gives nobody a right.
fn names(to: &Grantee) -> Option<(String, String)> {
    match to {
        Grantee::Everyone => Some(("*".to_owned(), String::new())),
        Grantee::User { name, .. } => Some((name.clone(), String::new())),
        Grantee::Group { name, .. } => Some((String::new(), name.clone())),
        Grantee::Unresolved(_) => None,
    }
}

/// A right without an end outlasts any other.
fn later(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.zip(other).map(|(one, other)| one.max(other))
}

pub fn table() -> Vec<Series<Right>> {
    vec![
        gauge("gpu_assignment_info", "A right on a card that holds now; 1. The user * is everyone.", |_| Some(1.0)),
        gauge("gpu_assignment_end_timestamp_seconds", "When that right ends, where it is known to end.", |right| {
            right.end.map(|end| end.as_second() as f64)
        }),
    ]
}
