//! The rights that another program keeps in files: the list of `fixed`, one a file, read again when it changes. One
//! file that cannot be read, or is not finished, silences all of them: who stands in it is not known.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Record;
use super::entry::Entry;
use crate::nesting::too_deep;

/// A list of rights is not as long.
const LONGEST: u64 = 16 << 20;

/// A star does not stand for the dot before a temporary file.
const AS_SHELLS_DO: glob::MatchOptions =
    glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// As long as the cycle waits for the files, and then without waiting until they have been read: a file may lie on a
/// server that is gone.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Files {
    patterns: Vec<PathBuf>,
    /// What was read; away while the thread that reads has it.
    shelf: Option<Shelf>,
    reader: io::Result<Reader>,
    warned: Option<String>,
    record: Record,
}

/// What the files hold.
#[derive(Default)]
struct Shelf {
    patterns: Vec<PathBuf>,
    files: BTreeMap<PathBuf, Read>,
    /// Why the patterns as such are silent.
    fault: Option<String>,
}

/// A thread of its own: it may be stuck in a file for as long as a server is away.
struct Reader {
    asked: Sender<Shelf>,
    answers: Receiver<Shelf>,
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for Version {
    fn from(file: Metadata) -> Self {
        Self {
            file: (file.dev(), file.ino()),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl Files {
    pub fn new(patterns: Vec<PathBuf>) -> Self {
        Self::reading(patterns, Shelf::read)
    }

    /// Reads in this way.
    fn reading(patterns: Vec<PathBuf>, read: impl FnMut(&mut Shelf) + Send + 'static) -> Self {
        let (shelf, reader) = (Some(Shelf::default()), Reader::start(read));
        Self { patterns, shelf, reader, warned: None, record: Record::default() }
    }

    pub fn with(self, patterns: Vec<PathBuf>) -> Self {
        Self { patterns, ..self }
    }

    pub fn read(&mut self) {
        let began = Instant::now();
        if let Ok(reader) = &self.reader {
            // What comes late is as old as the question.
            let before = self.shelf.take().or_else(|| reader.answers.try_recv().ok());
            if let Some(shelf) = before {
                let asked = reader.asked.send(Shelf { patterns: self.patterns.clone(), ..shelf });
                self.shelf = asked.ok().and_then(|()| reader.answers.recv_timeout(PATIENCE).ok());
            }
        }
        self.record.took = Some(began.elapsed());
        self.warn();
    }

    /// Every entry of every file, or why they are silent.
    pub(super) fn said(&mut self) -> (Result<impl Iterator<Item = &Entry>, String>, &mut Record) {
        let said = match (self.why_silent(), &self.shelf) {
            (None, Some(shelf)) => Ok(shelf.files.values().filter_map(|(_, read)| read.as_ref().ok()).flatten()),
            (fault, _) => Err(fault.unwrap_or_default()),
        };
        (said, &mut self.record)
    }

    fn why_silent(&self) -> Option<String> {
        match (&self.reader, &self.shelf) {
            (Err(error), _) => Some(format!("cannot start a thread: {error}")),
            (Ok(_), None) => Some("they are not read in time: does a filesystem hang?".into()),
            (Ok(_), Some(shelf)) => shelf.why_silent(),
        }
    }

    fn warn(&mut self) {
        let silent = self.why_silent();
        if silent != self.warned {
            match &silent {
                Some(fault) => tracing::warn!(source = "files", %fault, "rights from files are unknown"),
                None => tracing::info!(source = "files", "rights from files are known again"),
            }
        }
        self.warned = silent;
    }
}

impl Reader {
    /// It ends with whoever asks, or once it is no longer stuck.
    fn start(mut read: impl FnMut(&mut Shelf) + Send + 'static) -> io::Result<Self> {
        let (asked, questions) = channel::<Shelf>();
        let (telling, answers) = channel();
        thread::Builder::new().name("files".into()).spawn(move || {
            for mut shelf in questions {
                read(&mut shelf);
                if telling.send(shelf).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { asked, answers })
    }
}

impl Shelf {
    fn read(&mut self) {
        match found(&self.patterns) {
            Ok(paths) => {
                let mut before = std::mem::take(&mut self.files);
                for path in paths {
                    let known = before.remove(&path);
                    let file = read_again(&path, known);
                    self.files.insert(path, file);
                }
                self.fault = None;
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn why_silent(&self) -> Option<String> {
        let broken = || self.files.values().find_map(|(_, read)| read.as_ref().err());
        self.fault.as_ref().or_else(broken).cloned()
    }
}

fn found(patterns: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for pattern in patterns {
        let text = pattern.to_str().ok_or_else(|| format!("{}: not UTF-8", pattern.display()))?;
        let matches = glob::glob_with(text, AS_SHELLS_DO).map_err(|error| format!("{text}: {error}"))?;
        let before = paths.len();
        for path in matches {
            paths.push(path.map_err(|error| format!("cannot read {}: {}", error.path().display(), error.error()))?);
        }
        // A directory that is not mounted must not read as "nobody has a right".
        if paths.len() == before {
            return Err(format!("{text}: no such file"));
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

type Read = (Version, Result<Vec<Entry>, String>);

fn read_again(path: &Path, known: Option<Read>) -> Read {
    const NOWHERE: Version = Version { file: (0, 0), size: 0, modified: (0, 0), changed: (0, 0) };
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let file = match fs::metadata(path) {
        Ok(file) if !file.is_file() => return (NOWHERE, Err(format!("{}: not a file", path.display()))),
        Ok(file) if file.size() > LONGEST => return (NOWHERE, Err(format!("{}: too large", path.display()))),
        Ok(file) => file,
        Err(error) => return (NOWHERE, Err(failed(error))),
    };
    let version = Version::from(file);
    if let Some((before, read)) = known
        && before == version
    {
        return (before, read);
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return (NOWHERE, Err(failed(error))),
    };
    // Written while it was read: what was read may be half of it.
    if !fs::metadata(path).is_ok_and(|after| Version::from(after) == version) {
        return (NOWHERE, Err(format!("{}: is being written", path.display())));
    }
    (version, parse(path, &text))
}

/// The entries of a file, or what is wrong in it as `file:line:column: …`.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, String> {
    let path = path.display();
    let meaning = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#') && line.trim() != "---";
    if !text.lines().any(meaning) {
        return Err(format!("{path}:1:1: the file is empty, expected a list of rights (`[]` for nobody)"));
    }
    if let Some((line, column)) = too_deep(text) {
        return Err(format!("{path}:{line}:{column}: too deep, expected fewer levels"));
    }
    // Some editors begin a file with a mark of its byte order.
    let entries = serde_yaml::from_str::<Option<Vec<Entry>>>(text.strip_prefix('\u{feff}').unwrap_or(text))
        .map_err(|error| match error.location() {
            Some(place) => {
                let (line, column) = (place.line(), place.column());
                // The place is said once, where editors look for it.
                let what = error.to_string().replace(&format!(" at line {line} column {column}"), "");
                format!("{path}:{line}:{column}: {what}")
            }
            None => format!("{path}:1:1: {error}"),
        })?
        .ok_or_else(|| format!("{path}:1:1: null, expected a list of rights (`[]` for nobody)"))?;
    match entries.iter().find_map(Entry::fault) {
        Some(fault) => Err(format!("{path}:1:1: {fault} (`gpuwarden check` says where)")),
        None => Ok(entries),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const ALICE: &str = "- {to: {user: alice}, gpus: [0, 1]}\n";

    #[test]
    fn a_right_that_ends_before_it_begins_is_a_fault() {
        let text = "- {to: everyone, gpus: [0], from: 2026-12-02T00:00:00Z, until: 2026-12-01T00:00:00Z}";
        assert!(parse(Path::new("r.yaml"), text).unwrap_err().contains("ends before it begins"));
    }

    struct Reservations(tempfile::TempDir, Files);

    impl Reservations {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let files = Files::new(vec![directory.path().join("*.yaml")]);
            Self(directory, files)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.path().join(name), text).unwrap();
        }

        fn said(&mut self) -> Result<usize, String> {
            self.1.read();
            let place = self.0.path().display().to_string();
            self.1.said().0.map(|entries| entries.count()).map_err(|fault| fault.replace(&place, ""))
        }
    }

    #[test]
    fn a_pattern_without_a_file_is_silent() {
        let mut reservations = Reservations::new();
        assert_eq!(reservations.said(), Err("/*.yaml: no such file".into()));
        reservations.write("a.yaml", ALICE);
        assert_eq!(reservations.said(), Ok(1));
        fs::remove_file(reservations.0.path().join("a.yaml")).unwrap();
        assert_eq!(reservations.said(), Err("/*.yaml: no such file".into()));
    }

    #[test]
    fn a_file_is_read_again_when_it_changes() {
        let mut reservations = Reservations::new();
        reservations.write("a.yaml", ALICE);
        reservations.write("b.yaml", "[]");
        reservations.write(".tmp.yaml", "- {to: ");
        assert_eq!(reservations.said(), Ok(1));
        reservations.write("b.yaml", &ALICE.repeat(2));
        assert_eq!(reservations.said(), Ok(3));
        fs::rename(reservations.0.path().join("b.yaml"), reservations.0.path().join("a.yaml")).unwrap();
        assert_eq!(reservations.said(), Ok(2));
    }

    #[test]
    fn one_broken_file_silences_all_and_says_where() {
        let mut reservations = Reservations::new();
        reservations.write("a.yaml", ALICE);
        for (text, fault) in [
            ("", "/b.yaml:1:1: the file is empty"),
            ("# nobody\n---\n", "/b.yaml:1:1: the file is empty"),
            ("null\n", "/b.yaml:1:1: null, expected"),
            ("- {to: {user: bob}, gpus: [0]}\n- {to: {user: eve}, gpus: [", "/b.yaml:3:1: did not find"),
            ("- {to: {user: bob}, gpus: [0], untill: x}\n", "/b.yaml:1:32: "),
            ("- {to: {user: bob}, gpus: []}\n", "/b.yaml:1:"),
            ("- {to: everybody, gpus: [0]}\n", "/b.yaml:1:8: "),
            ("alice: [0]\n", "/b.yaml:1:1: "),
            (&"[".repeat(1 << 20), "/b.yaml:1:1001: too deep"),
            (&format!("# [ {{\n- \"\\\"[\"\n- {}", "[\"]\", ".repeat(1 << 16)), "/b.yaml:3:"),
        ] {
            reservations.write("b.yaml", text);
            let said = reservations.said().unwrap_err();
            assert!(said.starts_with(fault), "{said}");
        }
        reservations.write("b.yaml", "[]");
        assert_eq!(reservations.said(), Ok(1));
    }

    #[test]
    fn a_file_that_hangs_stops_no_cycle_and_is_heard_when_it_answers() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a.yaml"), ALICE).unwrap();
        let (release, hang) = channel::<()>();
        let read = move |shelf: &mut Shelf| {
            hang.recv().ok();
            shelf.read();
        };
        let mut files = Files::reading(vec![directory.path().join("*.yaml")], read);
        for _ in 0..100 {
            files.read();
            let fault = files.said().0.map(Iterator::count).unwrap_err();
            assert!(fault.contains("not read in time"), "{fault}");
        }
        // It was asked once, and what comes now is the answer to that.
        drop(release);
        let began = Instant::now();
        while files.said().0.is_err() && began.elapsed() < Duration::from_secs(10) {
            files.read();
        }
        assert_eq!(files.said().0.map(Iterator::count), Ok(1));
    }

    #[test]
    fn a_mark_of_the_byte_order_is_no_right_and_no_fault() {
        let mut reservations = Reservations::new();
        reservations.write("a.yaml", &format!("\u{feff}{ALICE}"));
        assert_eq!(reservations.said(), Ok(1));
    }

    #[test]
    fn what_is_no_file_is_silent() {
        let mut reservations = Reservations::new();
        fs::create_dir(reservations.0.path().join("a.yaml")).unwrap();
        assert_eq!(reservations.said(), Err("/a.yaml: not a file".into()));
        File::create(reservations.0.path().join("b.yaml")).unwrap().set_len(LONGEST + 1).unwrap();
        fs::remove_dir(reservations.0.path().join("a.yaml")).unwrap();
        assert_eq!(reservations.said(), Err("/b.yaml: too large".into()));
    }
}
