//! YAML text to values, with the place and a plain sentence for each error. Bounded, whatever the text.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use serde::de::{DeserializeOwned, DeserializeSeed};

mod seek;
mod census;
mod words;

use super::diagnostic::Diagnostic;
use crate::nesting::too_deep;
use crate::policy::check::{Complaint, Step};
use census::Census;
use seek::Nothing;
pub use seek::{Keys, seek};
use words::diagnostic;
pub use words::did_you_mean;

/// No configuration that people write is larger.
const LARGEST_FILE: u64 = 1 << 20;

/// Errors of one file that are looked for; nobody reads more.
const MOST_ERRORS: usize = 100;

/// How often a file is read from its top in search of errors: 8 MiB of text are some tenths of a second.
fn most_walks(text: &str) -> usize {
    ((8 << 20) / text.len().max(1)).clamp(1, MOST_ERRORS)
}

/// The text of a file, or why there is none. Never waits for a pipe or reads a device.
pub fn read(path: &Path) -> Result<String, Diagnostic> {
    let unread = |error| Diagnostic::of_file(path, format!("cannot be read: {error}, expected a YAML file"));
    let metadata = std::fs::metadata(path).map_err(unread)?;
    if metadata.is_dir() {
        return Err(Diagnostic::of_file(path, "a directory, expected a YAML file"));
    }
    if !metadata.is_file() {
        return Err(Diagnostic::of_file(path, "not a regular file, expected a YAML file"));
    }
    let mut bytes = Vec::new();
    open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)).map_err(unread)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Diagnostic::of_file(path, "too large, expected at most 1MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = end_of(&good);
        Diagnostic { file: path.to_owned(), line, column, message: "not UTF-8, expected UTF-8 text".into() }
    })?;
    // The parser takes the mark of the byte order with which some editors begin a file for a document of its own.
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    match too_deep(&text) {
        None => Ok(text),
        Some((line, column)) => {
            Err(Diagnostic { file: path.to_owned(), line, column, message: "too deep, expected fewer levels".into() })
        }
    }
}

/// Opens a file of the disk. Whatever comes to lie there meanwhile is not waited for, as a pipe without a writer would be.
pub fn open(path: &Path) -> io::Result<File> {
    let must_be_regular = |metadata: Metadata| {
        if metadata.is_file() { Ok(()) } else { Err(io::Error::other("not a regular file")) }
    };
    must_be_regular(std::fs::metadata(path)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    must_be_regular(file.metadata()?)?;
    Ok(file)
}

/// Line and column behind the last character.
fn end_of(text: &str) -> (usize, usize) {
    let last = text.rsplit('\n').next().map_or(0, |line| line.chars().count());
    (text.matches('\n').count() + 1, last + 1)
}

/// A part of a file that is read once more on its own when the whole failed, to find more errors than the first.
pub struct Part {
    at: Vec<Step>,
    read: fn(&str, &[Step]) -> Result<bool, serde_yaml::Error>,
    each_item: bool,
}

impl Part {
    pub fn of<T: DeserializeOwned>(at: Vec<Step>) -> Self {
        Self { at, read: |text, at| seek::<T>(text, at).map(|found| found.is_some()), each_item: false }
    }

    /// Every item of the list at that path.
    pub fn of_items<T: DeserializeOwned>(at: Vec<Step>) -> Self {
        Self { each_item: true, ..Self::of::<T>(at) }
    }

    fn errors(&self, text: &str, errors: &mut Vec<serde_yaml::Error>) {
        let most = if self.each_item { most_walks(text) } else { 1 };
        for item in 0..most {
            let mut at = self.at.clone();
            if self.each_item {
                at.push(Step::Item(item));
            }
            match (self.read)(text, &at) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => errors.push(error),
            }
        }
    }
}

/// Reads a file's text as a `T`. With an error, `parts` are read on their own for more of them.
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    expected: &str,
    parts: &[Part],
) -> Result<T, Vec<Diagnostic>> {
    let mut census = Census::default();
    if let Err(error) = DeserializeSeed::deserialize(&mut census, serde_yaml::Deserializer::from_str(text)) {
        return Err(vec![diagnostic(path, text, &error)]);
    }
    if census.is_empty() {
        return Err(vec![Diagnostic::of_file(path, format!("an empty file, expected {expected}"))]);
    }
    let mut diagnostics = locate_all(path, text, census.complaints);
    let known = diagnostics.len();
    match serde_yaml::from_str(text) {
        Ok(value) if known == 0 => return Ok(value),
        Ok(_) => {}
        Err(error) => {
            let mut errors = vec![error];
            parts.iter().for_each(|part| part.errors(text, &mut errors));
            // The census has told where the second of two equal keys stands.
            let new = errors.iter().filter(|error| known == 0 || !error.to_string().contains("duplicate field `"));
            // What has no value is told once.
            let told: BTreeSet<(usize, usize)> = diagnostics.iter().map(Diagnostic::place).collect();
            let new = new.map(|error| diagnostic(path, text, error)).filter(|error| !told.contains(&error.place()));
            diagnostics.extend(new);
        }
    }
    Err(sorted(diagnostics))
}

/// In the order of the file, each once.
pub fn sorted(mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    diagnostics.sort();
    diagnostics.dedup();
    diagnostics
}

/// Each once, the files in the order in which they came.
pub fn in_order(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = BTreeSet::new();
    diagnostics.into_iter().filter(|diagnostic| seen.insert(diagnostic.clone())).collect()
}

/// Complaints about a file with their places.
pub fn locate_all(path: &Path, text: &str, complaints: Vec<Complaint>) -> Vec<Diagnostic> {
    let place = |Complaint { at, what }| {
        let (line, column) = locate(text, &at);
        Diagnostic { file: path.to_owned(), line, column, message: what }
    };
    complaints.into_iter().take(most_walks(text)).map(place).collect()
}

/// The place of a path, or of as much of it as there is.
fn locate(text: &str, at: &[Step]) -> (usize, usize) {
    (0..=at.len())
        .rev()
        .find_map(|depth| seek::<Nothing>(text, &at[..depth]).err())
        .and_then(|error| error.location())
        .map_or((1, 1), |place| (place.line(), place.column()))
}
