//! The rights that another program keeps in files: the list of `fixed`, one a file, read again when it changes. One
//! file that cannot be read, or is not finished, silences all of them: who stands in it is not known.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::entry::Entry;
use crate::nesting::too_deep;
use crate::source::Record;

/// A list of rights is not as long.
const LONGEST: u64 = 16 << 20;

/// A star does not stand for the dot before a temporary file.
const AS_SHELLS_DO: glob::MatchOptions =
    glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// How long the cycle waits for the files: those on a server that has gone away are never read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The files as the cycle sees them. They are read by a thread of its own: one that is stuck on a dead server is waited
/// for once, and neither joined nor doubled.
pub struct Files {
    patterns: Vec<PathBuf>,
    questions: Sender<Vec<PathBuf>>,
    answers: Receiver<Told>,
    /// Since when an answer is to come.
    asked: Option<Instant>,
    said: Result<Vec<Entries>, String>,
    warned: Option<String>,
    record: Record,
}

/// What one file says.
type Entries = Arc<[Entry]>;

/// What all files say, and how long they took.
struct Told {
    said: Result<Vec<Entries>, String>,
    took: Duration,
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
        let (questions, asked) = channel();
        let (telling, answers) = channel();
        // Without the thread nobody answers, and the source is silent.
        if let Err(error) = thread::Builder::new().name("files".into()).spawn(move || serve(&asked, &telling)) {
            tracing::error!(%error, "cannot start the thread that reads files of rights");
        }
        let said = Err("not read yet".into());
        Self { patterns, questions, answers, asked: None, said, warned: None, record: Record::default() }
    }

    pub fn with(self, patterns: Vec<PathBuf>) -> Self {
        Self { patterns, ..self }
    }

    pub fn read(&mut self) {
        self.said = self.ask();
        self.warn();
    }

    fn ask(&mut self) -> Result<Vec<Entries>, String> {
        const ENDED: &str = "the thread that reads the files has ended";
        if let Some(since) = self.asked {
            // An answer that comes now is to an earlier cycle: the files may say something else by now.
            match self.answers.try_recv() {
                Ok(_) => self.asked = None,
                Err(TryRecvError::Empty) => return Err(stuck(since)),
                Err(TryRecvError::Disconnected) => return Err(ENDED.into()),
            }
        }
        let since = Instant::now();
        self.questions.send(self.patterns.clone()).map_err(|_| ENDED)?;
        self.asked = Some(since);
        match self.answers.recv_timeout(PATIENCE) {
            Ok(Told { said, took }) => {
                self.asked = None;
                self.record.took = Some(took);
                said
            }
            Err(RecvTimeoutError::Timeout) => Err(stuck(since)),
            Err(RecvTimeoutError::Disconnected) => Err(ENDED.into()),
        }
    }

    /// Every entry of every file, or why they are silent.
    pub(super) fn said(&mut self) -> (Result<impl Iterator<Item = &Entry>, String>, &mut Record) {
        let said = self.said.as_ref().map(|files| files.iter().flat_map(|entries| entries.iter()));
        (said.map_err(Clone::clone), &mut self.record)
    }

    fn warn(&mut self) {
        let silent = self.said.as_ref().err().cloned();
        // That of a reader that is stuck grows with its age: it is said once.
        let said_before = self.asked.is_some() && self.warned.is_some();
        if silent != self.warned && !said_before {
            match &silent {
                Some(fault) => tracing::warn!(source = "files", %fault, "rights from files are unknown"),
                None => tracing::info!(source = "files", "rights from files are known again"),
            }
        }
        self.warned = silent;
    }
}

fn stuck(since: Instant) -> String {
    format!("the files have not been read for {}s; is their server there?", since.elapsed().as_secs())
}

fn serve(questions: &Receiver<Vec<PathBuf>>, answers: &Sender<Told>) {
    let mut known = BTreeMap::new();
    for patterns in questions {
        let began = Instant::now();
        let said = read_all(&patterns, &mut known);
        if answers.send(Told { said, took: began.elapsed() }).is_err() {
            return;
        }
    }
}

/// What the files say, each read again only when it has changed.
fn read_all(patterns: &[PathBuf], known: &mut BTreeMap<PathBuf, Read>) -> Result<Vec<Entries>, String> {
    let paths = found(patterns)?;
    let mut before = std::mem::take(known);
    for path in paths {
        let read = read_again(&path, before.remove(&path));
        known.insert(path, read);
    }
    known.values().map(|(_, read)| read.clone()).collect()
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

/// What a file said, and of which of its versions that holds; `None` where it must be read again in any case.
type Read = (Option<Version>, Result<Entries, String>);

fn read_again(path: &Path, known: Option<Read>) -> Read {
    let unread = |why: &str| (None, Err(format!("{}: {why}", path.display())));
    let failed = |error: io::Error| (None, Err(format!("cannot read {}: {error}", path.display())));
    let file = match fs::metadata(path) {
        Ok(file) if !file.is_file() => return unread("not a file"),
        Ok(file) if file.size() > LONGEST => return unread("too large"),
        Ok(file) => file,
        Err(error) => return failed(error),
    };
    let version = Some(Version::from(file));
    if let Some(read) = known.filter(|(before, _)| *before == version) {
        return read;
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return failed(error),
    };
    // Written while it was read: what was read may be half of it.
    if fs::metadata(path).ok().map(Version::from) != version {
        return unread("is being written");
    }
    (version, parse(path, &text).map(Entries::from))
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

    #[test]
    fn a_reader_that_is_stuck_silences_the_source_and_is_waited_for_once() {
        let (questions, asked) = channel();
        let (telling, answers) = channel();
        let said = Err("not read yet".into());
        let patterns = vec!["/srv/*.yaml".into()];
        let mut files =
            Files { patterns, questions, answers, asked: None, said, warned: None, record: Record::default() };
        let silent = |files: &mut Files| {
            files.read();
            files.said().0.map(Iterator::count)
        };
        let began = Instant::now();
        assert!(silent(&mut files).unwrap_err().starts_with("the files have not been read for 1s"));
        (0..100).for_each(|_| assert!(silent(&mut files).is_err()));
        assert!(began.elapsed() < PATIENCE * 2);
        assert_eq!(asked.try_iter().count(), 1);
        // What comes late was so earlier; it is asked again, and that answer counts.
        telling.send(Told { said: Ok(Vec::new()), took: PATIENCE }).unwrap();
        telling.send(Told { said: Ok(vec![Entries::from([])]), took: PATIENCE }).unwrap();
        assert_eq!(silent(&mut files), Ok(0));
        assert_eq!(asked.try_iter().count(), 1);
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
