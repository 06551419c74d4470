//! Which card an index means: the one that bore it when the agent first saw it. The driver may number the cards anew
//! after a card is lost or moved, and then every right by index would be somebody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::disk;
use crate::snapshot::{Gpu, GpuUuid};

/// The pins, and the file that carries them over restarts.
pub struct Pins {
    path: PathBuf,
    /// `None` where the file is there and cannot be read: then no index means anything.
    pins: Option<BTreeMap<u32, GpuUuid>>,
    /// An admin said that the numbers of now are right, whatever is missing.
    asked: bool,
    warned: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    indexes: BTreeMap<u32, GpuUuid>,
}

impl Pins {
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join("pins.yaml");
        let pins = match read(&path) {
            Ok(pins) => Some(pins),
            Err(fault) => {
                tracing::error!(%fault, "rights by index are unknown; `gpuwarden reset pins` starts anew");
                None
            }
        };
        Self { path, pins, asked: false, warned: None }
    }

    /// Pins the indexes that are new. A new card beside the known ones is one that was added, and its index is what an
    /// admin reads in nvidia-smi; where a known one is not at its place, or one is missing from the bus, the numbers
    /// have moved, and a new number may be an old card's.
    pub fn see(&mut self, gpus: &[Gpu], expected: Option<u32>) {
        let Some(pins) = &self.pins else { return };
        let moved: Vec<String> =
            pins.keys().filter(|index| self.card(**index, gpus).is_none()).map(u32::to_string).collect();
        let new: Vec<&Gpu> = gpus.iter().filter(|gpu| !pins.contains_key(&gpu.index)).collect();
        let distinct = new.iter().map(|gpu| gpu.index).collect::<BTreeSet<u32>>().len() == new.len();
        let strangers = new.iter().all(|gpu| pins.values().all(|uuid| *uuid != gpu.uuid));
        let missing = !self.asked && expected.is_some_and(|expected| (gpus.len() as u64) < u64::from(expected));
        let trouble = if !moved.is_empty() {
            Some(format!("the cards are no longer numbered as they were: {}", moved.join(", ")))
        } else if new.is_empty() {
            None
        } else if missing {
            Some("the driver does not show every card on the bus, and may have numbered them otherwise".to_owned())
        } else if !distinct || !strangers {
            Some("two cards bear one number".to_owned())
        } else {
            self.pin(new)
        };
        if let Some(why) = &trouble
            && self.warned != trouble
        {
            tracing::warn!(%why, "some rights by index are unknown; `gpuwarden reset pins` takes the numbers of now");
        }
        self.warned = trouble;
    }

    /// A pin that is not on disk would be another after a restart, so it is none.
    fn pin(&mut self, new: Vec<&Gpu>) -> Option<String> {
        let mut pinned = self.pins.clone()?;
        pinned.extend(new.into_iter().map(|gpu| (gpu.index, gpu.uuid.clone())));
        if let Err(error) = write(&self.path, &pinned) {
            return Some(format!("cannot write {}: {error}", self.path.display()));
        }
        self.pins = Some(pinned);
        self.asked = false;
        None
    }

    /// Whether this card was pinned to the index.
    pub fn is_pinned(&self, index: u32, uuid: &GpuUuid) -> bool {
        self.pins.as_ref().and_then(|pins| pins.get(&index)) == Some(uuid)
    }

    /// The card that an index means, while it still bears it.
    pub fn card(&self, index: u32, gpus: &[Gpu]) -> Option<GpuUuid> {
        let pinned = self.pins.as_ref()?.get(&index)?;
        let mut bearers = gpus.iter().filter(|gpu| gpu.index == index);
        let (Some(bearer), None) = (bearers.next(), bearers.next()) else { return None };
        (bearer.uuid == *pinned).then(|| pinned.clone())
    }

    /// From now on the indexes mean the cards of now.
    pub fn reset(&mut self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.pins = Some(BTreeMap::new());
        self.asked = true;
        self.warned = None;
        Ok(())
    }
}

fn read(path: &Path) -> Result<BTreeMap<u32, GpuUuid>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    let stored: Stored = serde_yaml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(stored.indexes)
}

fn write(path: &Path, pins: &BTreeMap<u32, GpuUuid>) -> io::Result<()> {
    let text = serde_yaml::to_string(&Stored { indexes: pins.clone() }).map_err(io::Error::other)?;
    disk::replace(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::tests::gpus;
    use super::*;

    /// The index of each card after the agent has seen these sightings one after the other, `-` where it means none.
    fn check(sightings: &[&str], expected: &str) {
        let state = tempfile::tempdir().unwrap();
        let mut last = String::new();
        for cards in sightings {
            // Each sighting is after a restart, for the pins are over restarts too.
            let mut pins = Pins::load(state.path());
            if *cards == "reset" {
                pins.reset().unwrap();
                continue;
            }
            let (cards, expected) = match cards.split_once('/') {
                Some((cards, expected)) => (cards, Some(expected.parse().unwrap())),
                None => (*cards, None),
            };
            let gpus = gpus(cards);
            pins.see(&gpus, expected);
            let meant = (0..4).map(|index| pins.card(index, &gpus).map_or("-".into(), |uuid| uuid.0.to_string()));
            last = meant.collect::<Vec<String>>().join(" ");
        }
        assert_eq!(last, expected, "{sightings:?}");
    }

    #[test]
    fn an_index_means_the_card_that_first_bore_it() {
        check(&["A B C"], "A B C -");
        check(&["A B C", "A B C"], "A B C -");
        check(&["A B C", "A C"], "A - - -");
        check(&["A B C", "A C B"], "A - - -");
        check(&["A B C", "A C", "A B C"], "A B C -");
    }

    #[test]
    fn a_card_that_was_added_is_pinned_only_while_the_others_are_in_their_places() {
        check(&["A B", "A B C"], "A B C -");
        check(&["A B", "A C B"], "A - - -");
        check(&["A B", "A C B", "A B C"], "A B C -");
        check(&["A B", "B C D"], "- - - -");
    }

    #[test]
    fn nothing_is_pinned_while_a_card_is_missing_from_the_bus() {
        check(&["A C/3"], "- - - -");
        check(&["A C/3", "A B C/3"], "A B C -");
    }

    #[test]
    fn after_a_reset_the_indexes_mean_the_cards_of_now() {
        check(&["A B C", "A C", "reset", "A C"], "A C - -");
    }

    #[test]
    fn while_the_file_cannot_be_read_no_index_means_anything() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("pins.yaml"), "indexes: {0: ").unwrap();
        let mut pins = Pins::load(state.path());
        pins.see(&gpus("A"), None);
        assert_eq!(pins.card(0, &gpus("A")), None);
        pins.reset().unwrap();
        pins.see(&gpus("A"), Some(2));
        assert_eq!(pins.card(0, &gpus("A")), Some(GpuUuid("A".into())));
    }
}
