//! Who may use which GPU: the union of the enabled sources, each known, stale or silent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

pub mod entry;
pub mod fixed;
pub mod files;
pub mod pins;

use entry::{Entry, To};
use files::Files;
use fixed::Fixed;
use pins::Pins;

use super::Record;
use super::directory::Directory;
use crate::snapshot::{
    Answer, AssignmentSource, Assignments, Cards, Gpu, GpuSelector, GpuUuid, Grantee, Health, Lookup, Moment, Reading,
    Right, Source, Truth,
};

/// Which sources are enabled.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// The list in the configuration itself.
    pub fixed: Option<Vec<Entry>>,
    /// Patterns of paths, absolute.
    pub files: Option<Vec<PathBuf>>,
}

/// The enabled sources, and the cards that indexes stand for.
pub struct Sources {
    fixed: Option<Fixed>,
    files: Option<Files>,
    pins: Pins,
}

impl Sources {
    pub fn new(settings: Settings, pins: Pins) -> Self {
        let fixed = settings.fixed.map(Fixed::new);
        Self { fixed, files: settings.files.map(Files::new), pins }
    }

    /// Other rights, the same pins.
    pub fn reconfigure(&mut self, settings: Settings) {
        self.fixed = settings.fixed.map(|entries| match self.fixed.take() {
            Some(before) => before.with(entries),
            None => Fixed::new(entries),
        });
        self.files = settings.files.map(|patterns| match self.files.take() {
            Some(before) => before.with(patterns),
            None => Files::new(patterns),
        });
    }

    pub fn reset_pins(&mut self) -> std::io::Result<()> {
        self.pins.reset()
    }

    /// Pins what can be pinned now.
    pub fn see(&mut self, gpus: &Reading<Vec<Gpu>>, expected: Option<u32>) {
        if let Ok(gpus) = gpus {
            self.pins.see(gpus, expected);
        }
    }

    /// Whether the index still means this card.
    pub fn is_pinned(&self, index: u32, uuid: &GpuUuid) -> bool {
        self.pins.is_pinned(index, uuid)
    }

    /// Reads what there is to read; the rights are resolved by `answer`, when the moment is known.
    pub fn read(&mut self) {
        if let Some(files) = &mut self.files {
            files.read();
        }
    }

    /// What each enabled source says, and how it fared.
    pub fn answer(
        &mut self,
        gpus: &Reading<Vec<Gpu>>,
        directory: &mut Directory,
        at: Moment,
    ) -> (Assignments, Vec<Health>) {
        let mut sources = Vec::new();
        let mut health = Vec::new();
        let mut names = Names { gpus: gpus.as_deref().ok(), pins: &self.pins, directory, missing: BTreeSet::new() };
        if let Some(fixed) = &mut self.fixed {
            let (said, record) = fixed.said();
            let (source, fared) = speak(Source::Fixed, said, &mut names, at, record);
            sources.push(source);
            health.push(fared);
        }
        if let Some(files) = &mut self.files {
            let (said, record) = files.said();
            let (source, fared) = speak(Source::Files, said, &mut names, at, record);
            sources.push(source);
            health.push(fared);
        }
        (Assignments { sources }, health)
    }
}

fn speak<'a>(
    source: Source,
    said: Result<impl IntoIterator<Item = &'a Entry>, String>,
    names: &mut Names,
    at: Moment,
    record: &mut Record,
) -> (AssignmentSource, Health) {
    let began = Instant::now();
    names.missing.clear();
    let answer = said.map(|entries| entries.into_iter().map(|entry| names.right(entry)).collect::<Vec<Right>>());
    let took = began.elapsed();
    match answer {
        Ok(rights) => {
            record.last_success = Some(at.wall);
            record.took = Some(record.took.map_or(took, |reading| reading.max(took)));
            let unresolved = Some(names.missing.iter().cloned().collect());
            let answer = Answer { at: at.boot, rights };
            (AssignmentSource { source, answer: Ok(answer) }, Health { unresolved, ..record.health(source, None) })
        }
        Err(fault) => {
            record.errors += 1;
            // Which of its names are known is not known either.
            (AssignmentSource::silent(source, fault.clone()), record.health(source, Some(fault)))
        }
    }
}

/// Whoever knows what a name stands for at this moment.
struct Names<'a> {
    /// `None` where the driver is silent.
    gpus: Option<&'a [Gpu]>,
    pins: &'a Pins,
    directory: &'a mut Directory,
    /// Users, groups and GPUs that nobody knows now. Where the directory or the driver has not answered, a name is not
    /// known to be one of these.
    missing: BTreeSet<String>,
}

impl Names<'_> {
    fn right(&mut self, entry: &Entry) -> Right {
        Right { to: self.grantee(&entry.to), gpus: self.cards(&entry.gpus), when: entry.validity() }
    }

    fn grantee(&mut self, to: &To) -> Grantee {
        match to {
            To::Everyone => Grantee::Everyone,
            To::User(name) => match self.directory.uid_of(name) {
                Lookup::Known(uid) => Grantee::User { uid, name: name.clone() },
                Lookup::Absent => self.missing(format!("user {name}")),
                Lookup::Pending => Grantee::Unresolved(format!("user {name}")),
            },
            To::Group(name) => match self.directory.gid_of(name) {
                Lookup::Known(gid) => Grantee::Group { gid, name: name.clone() },
                Lookup::Absent => self.missing(format!("group {name}")),
                Lookup::Pending => Grantee::Unresolved(format!("group {name}")),
            },
        }
    }

    fn missing(&mut self, name: String) -> Grantee {
        self.missing.insert(name.clone());
        Grantee::Unresolved(name)
    }

    fn cards(&mut self, selectors: &[GpuSelector]) -> Cards {
        let mut cards = Cards::default();
        for selector in selectors {
            self.select(selector, &mut cards);
        }
        if self.gpus.is_some() {
            self.missing.extend(cards.unresolved.iter().map(|name| format!("GPU {name}")));
        }
        cards
    }

    fn select(&self, selector: &GpuSelector, cards: &mut Cards) {
        // While the driver is silent any card could be meant.
        let Some(gpus) = self.gpus else { return cards.unresolved.push(selector.to_string()) };
        let fitting = || gpus.iter().filter(|gpu| selector.matches(gpu).is_true()).map(|gpu| gpu.uuid.clone());
        match selector {
            GpuSelector::Indexes(first, last) => {
                for index in *first..=(*last).min(first.saturating_add(LONGEST_RANGE)) {
                    match self.pins.card(index, gpus) {
                        Some(uuid) => cards.known.extend([uuid]),
                        None => cards.unresolved.push(index.to_string()),
                    }
                }
            }
            GpuSelector::Uuid(_) | GpuSelector::PciBusId(_) => {
                let mut fitting = fitting();
                match (fitting.next(), fitting.next()) {
                    (Some(only), None) => cards.known.extend([only]),
                    // The beginning of two UUIDs names neither.
                    _ => cards.unresolved.push(selector.to_string()),
                }
            }
            GpuSelector::Model(_) => {
                // A card whose model is not known may be of this one.
                let unknown = gpus.iter().any(|gpu| selector.matches(gpu) == Truth::Unknown);
                if unknown || fitting().next().is_none() {
                    cards.unresolved.push(selector.to_string());
                }
                cards.known.extend(fitting());
            }
        }
    }
}

/// No node has as many cards; a range that goes on is a slip of the pen.
const LONGEST_RANGE: u32 = 1023;

#[cfg(test)]
mod tests;
