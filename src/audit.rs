//! Intent before, outcome after: `audit.jsonl`, one JSON object a line. The intent to act is on disk before the act, all
//! else by the end of the cycle: thousands of records, each with a disk to wait for, would make a cycle of minutes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use crate::policy::{Evidence, Fate, Mode, Outcome, Person, RuleName, Subject, Target, Verdict};
use crate::snapshot::{Confidence, ProcessId, Snapshot};

/// The log. A failure to write is forgotten as soon as a later record is written.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    host: String,
    file: Option<File>,
    /// Something was written that is not yet known to be on disk.
    unsynced: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the audit log {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot write the audit log {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// What is about to be done.
    Intent,
    /// What came of it.
    Outcome,
    /// Anything else that an admin wants to find here: a reload, a reset, a fuse that blew.
    Note,
}

/// A line of the log. What does not apply is left out.
#[derive(Debug, Serialize)]
struct Record<'a> {
    time: Timestamp,
    boot_id: &'a str,
    host: &'a str,
    kind: Kind,
    #[serde(flatten)]
    about: Option<About<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<Hit<'a>>,
    #[serde(flatten)]
    outcome: Option<Came<'a>>,
    /// What else is to be known of it.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    remarks: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct About<'a> {
    rule: &'a RuleName,
    mode: Mode,
    subject: &'a Subject,
    owner: Option<&'a Person>,
    rung: usize,
    action: &'a str,
    evidence: &'a [Evidence],
}

/// A record about a verdict that is no longer there.
#[derive(Debug, Serialize)]
struct Lost<'a> {
    #[serde(flatten)]
    record: Record<'a>,
    rule: &'a RuleName,
    subject: &'a Subject,
    rung: usize,
    action: &'a str,
    targets: Vec<Named>,
}

#[derive(Debug, Serialize)]
struct Named {
    pid: i32,
    start_time: u64,
}

#[derive(Debug, Serialize)]
struct Hit<'a> {
    #[serde(flatten)]
    process: Named,
    uid: Option<crate::units::Uid>,
    confidence: Confidence,
    command: &'a str,
    gpus: Vec<&'a str>,
}

#[derive(Debug, Serialize)]
struct Came<'a> {
    outcome: &'static str,
    /// Which guard refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> From<&'a Fate> for Came<'a> {
    fn from(done: &'a Fate) -> Self {
        let (reason, error) = match done {
            Fate::Refused(guard) => (Some(guard.as_str()), None),
            Fate::Failed(why) => (None, Some(why.as_str())),
            Fate::Done | Fate::Rehearsed | Fate::Pending | Fate::Gone => (None, None),
        };
        Self { outcome: done.as_str(), reason, error }
    }
}

impl From<ProcessId> for Named {
    fn from(ProcessId { pid, started }: ProcessId) -> Self {
        Self { pid, start_time: started }
    }
}

impl<'a> From<&'a Target> for Hit<'a> {
    fn from(target: &'a Target) -> Self {
        let gpus = target.cards.iter().map(|card| &*card.uuid.0).collect();
        let (uid, confidence) = (target.uid, target.confidence);
        Self { process: target.process.into(), uid, confidence, command: &target.command, gpus }
    }
}

impl Audit {
    /// A log that is opened when the first record is written.
    pub fn new(state_dir: &Path, host: &str) -> Self {
        Self { path: state_dir.join("audit.jsonl"), host: host.to_owned(), file: None, unsynced: false }
    }

    /// To be written before the verdict is carried out: on this target, or as a whole. `sync` before that is done.
    pub fn intent(&mut self, now: &Snapshot, verdict: &Verdict, target: Option<&Target>) -> Result<(), Error> {
        let record = self.record(now, Kind::Intent);
        let line = Record { about: Some(about(verdict)), targets: hits(verdict, target), ..record }.line();
        self.append(&line)
    }

    pub fn outcome(
        &mut self,
        now: &Snapshot,
        verdict: &Verdict,
        target: Option<&Target>,
        done: &Fate,
        remarks: &[String],
    ) -> Result<(), Error> {
        let record = self.record(now, Kind::Outcome);
        let (about, targets) = (Some(about(verdict)), hits(verdict, target));
        let line = Record { about, targets, outcome: Some(done.into()), remarks, ..record }.line();
        self.append(&line)
    }

    /// What is known of the outcome of an act whose verdict is no longer there: the agent was ended in between.
    pub fn lost(&mut self, now: &Snapshot, outcome: &Outcome) -> Result<(), Error> {
        let record = self.record(now, Kind::Outcome);
        let line = Lost {
            record: Record { outcome: Some((&outcome.result).into()), ..record },
            rule: &outcome.key.rule,
            subject: &outcome.key.subject,
            rung: outcome.rung,
            action: outcome.deed.as_str(),
            targets: outcome.target.into_iter().map(Named::from).collect(),
        };
        self.append(&to_line(&line))
    }

    /// A sentence about the agent itself.
    pub fn note(&mut self, now: &Snapshot, note: &str) -> Result<(), Error> {
        let record = self.record(now, Kind::Note);
        let line = Record { note: Some(note), ..record }.line();
        self.append(&line)
    }

    /// Whether a record could be written now; opens the log where it is not open.
    pub fn probe(&mut self) -> Result<(), Error> {
        self.file().map(|_| ())
    }

    fn record<'a>(&'a self, now: &'a Snapshot, kind: Kind) -> Record<'a> {
        Record {
            time: now.at.wall,
            boot_id: &now.boot_id,
            host: &self.host,
            kind,
            about: None,
            targets: Vec::new(),
            outcome: None,
            remarks: &[],
            note: None,
        }
    }

    /// Returns when all that was written is on disk.
    pub fn sync(&mut self) -> Result<(), Error> {
        if !self.unsynced {
            return Ok(());
        }
        self.with_file(|file| file.sync_data())?;
        self.unsynced = false;
        Ok(())
    }

    fn append(&mut self, line: &[u8]) -> Result<(), Error> {
        self.with_file(|file| file.write_all(line))?;
        self.unsynced = true;
        Ok(())
    }

    fn with_file(&mut self, act: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
        let done = act(self.file()?);
        done.map_err(|source| {
            // What is on disk now is not known: opened again, a half-written line is ended first.
            self.file = None;
            Error::Write { path: self.path.clone(), source }
        })
    }

    fn file(&mut self) -> Result<&mut File, Error> {
        // An admin or logrotate may have moved the log; what is written to a file without a name is lost.
        let moved = self.file.as_ref().is_some_and(|file| !is_at(file, &self.path));
        let file = match self.file.take() {
            Some(file) if !moved => file,
            _ => open(&self.path).map_err(|source| Error::Open { path: self.path.clone(), source })?,
        };
        Ok(self.file.insert(file))
    }
}

/// Opens the log for appending. A last line that a crash left half-written is ended, so that the next one can be read.
fn open(path: &Path) -> io::Result<File> {
    let mut file = File::options().create(true).read(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    // A new file is in its directory only once that is on disk.
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?;
    Ok(file)
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (named.dev(), named.ino())
}

impl Record<'_> {
    fn line(&self) -> Vec<u8> {
        to_line(self)
    }
}

/// JSON escapes control characters, so that a record is a line whatever a process calls itself.
fn to_line(record: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(record).expect("records have only text as keys");
    line.push(b'\n');
    line
}

fn about(verdict: &Verdict) -> About<'_> {
    About {
        rule: &verdict.key().rule,
        mode: verdict.mode(),
        subject: &verdict.key().subject,
        owner: verdict.owner(),
        rung: verdict.rung(),
        action: verdict.deed().as_str(),
        evidence: verdict.evidence(),
    }
}

fn hits<'a>(verdict: &'a Verdict, target: Option<&'a Target>) -> Vec<Hit<'a>> {
    target.map_or_else(|| verdict.targets().iter().map(Hit::from).collect(), |target| vec![target.into()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::forged::{snapshot, target};
    use crate::policy::{Deed, Guard, Signal};
    use crate::units::Uid;
    use std::os::unix::fs::PermissionsExt;

    fn verdict() -> Verdict {
        let mut target = target(4242, 99, Uid(1000));
        target.command = "a\nb\u{1b}[31m\u{2028}\"".into();
        Verdict::forged("idle", Uid(1000), Mode::Enforce, Deed::Signal(Signal::Term)).at(vec![target])
    }

    fn lines(dir: &Path) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(dir.join("audit.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or(serde_json::Value::Null)).collect()
    }

    #[test]
    fn a_record_says_who_is_hit_by_what_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::new(dir.path(), "gpu01");
        let verdict = verdict();
        audit.intent(&snapshot(0), &verdict, verdict.targets().first()).unwrap();
        audit
            .outcome(&snapshot(0), &verdict, None, &Fate::Refused(Guard::Protected), &["it was stopped".into()])
            .unwrap();
        let text = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
        expect_test::expect![[r#"
            {"time":"2026-11-30T00:53:20Z","boot_id":"boot-1","host":"gpu01","kind":"intent","rule":"idle","mode":"enforce","subject":{"user":{"uid":1000,"gpu":null}},"owner":{"uid":1000,"name":"user1000"},"rung":0,"action":"TERM","evidence":[],"targets":[{"pid":4242,"start_time":99,"uid":1000,"confidence":"high","command":"a\nb\u001b[31m \"","gpus":["GPU-1"]}]}
            {"time":"2026-11-30T00:53:20Z","boot_id":"boot-1","host":"gpu01","kind":"outcome","rule":"idle","mode":"enforce","subject":{"user":{"uid":1000,"gpu":null}},"owner":{"uid":1000,"name":"user1000"},"rung":0,"action":"TERM","evidence":[],"targets":[{"pid":4242,"start_time":99,"uid":1000,"confidence":"high","command":"a\nb\u001b[31m \"","gpus":["GPU-1"]}],"outcome":"refused","reason":"protected","remarks":["it was stopped"]}
        "#]].assert_eq(&text);
        assert_eq!(fs::metadata(dir.path().join("audit.jsonl")).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_lost_act_names_its_target_as_any_other_record_does() {
        let dir = tempfile::tempdir().unwrap();
        let verdict = verdict();
        let lost = Outcome {
            key: verdict.key().clone(),
            rung: 1,
            deed: verdict.deed().clone(),
            owner: None,
            target: Some(ProcessId { pid: 4242, started: 99 }),
            result: Fate::Failed("nobody knows".into()),
        };
        Audit::new(dir.path(), "gpu01").lost(&snapshot(0), &lost).unwrap();
        let record = &lines(dir.path())[0];
        assert_eq!(record["targets"], serde_json::json!([{"pid": 4242, "start_time": 99}]));
        assert_eq!((&record["outcome"], &record["error"]), (&"failed".into(), &"nobody knows".into()));
    }

    #[test]
    fn a_line_that_a_crash_left_half_written_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("audit.jsonl"), b"{\"time\":\"20").unwrap();
        Audit::new(dir.path(), "gpu01").note(&snapshot(0), "started").unwrap();
        Audit::new(dir.path(), "gpu01").note(&snapshot(0), "started again").unwrap();
        let lines = lines(dir.path());
        assert!(lines[0].is_null());
        assert_eq!(lines[1]["note"], "started");
        assert_eq!(lines[2]["note"], "started again");
    }

    #[test]
    fn a_log_that_was_moved_away_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut audit = Audit::new(dir.path(), "gpu01");
        audit.note(&snapshot(0), "one").unwrap();
        fs::rename(dir.path().join("audit.jsonl"), dir.path().join("audit.jsonl.1")).unwrap();
        audit.note(&snapshot(0), "two").unwrap();
        assert_eq!(lines(dir.path())[0]["note"], "two");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("not-yet");
        let mut audit = Audit::new(&gone, "gpu01");
        assert!(audit.note(&snapshot(0), "lost").is_err());
        assert!(audit.probe().is_err());
        fs::create_dir(&gone).unwrap();
        audit.note(&snapshot(0), "kept").unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("audit.jsonl")).unwrap();
        assert!(Audit::new(dir.path(), "gpu01").note(&snapshot(0), "lost").is_err());
    }
}
