//! The ladders on disk: written whole, or not at all; and the lock that keeps two agents from one directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::policy::State;

/// A file of another version is not read: what it means is not known.
const VERSION: u32 = 1;

/// A directory that belongs to this agent alone, as long as this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot create the state directory {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("the state directory {} is open to others, expected one of the agent's own", path.display())]
    Open { path: PathBuf },
    #[error("cannot lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("another gpuwarden uses the state directory {}", path.display())]
    Taken { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl StateDir {
    /// Creates the directory where there is none, and locks it until the value is dropped.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|source| Error::Create { path: path.to_owned(), source })?;
        let dir = fs::metadata(path).map_err(|source| Error::Create { path: path.to_owned(), source })?;
        // Who can write here can say that somebody was warned long ago, and lead what root writes into any file.
        if ![0, geteuid().as_raw()].contains(&dir.uid()) || dir.mode() & 0o022 != 0 {
            return Err(Error::Open { path: path.to_owned() });
        }
        let lock = path.join("lock");
        let failed = |source| Error::Lock { path: lock.clone(), source };
        let file = File::options().create(true).append(true).mode(0o600).open(&lock).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Taken { path: path.to_owned() }),
            Err(error) => Err(failed(error.into())),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes a file of the state directory anew; after a crash it is the old one or the new one.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), Error> {
    disk::replace(path, content).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Moves a file that cannot be read to the first free name `<name>.broken-<n>`, for the admin to look at.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let free = (1..1000).map(|n| path.with_file_name(format!("{name}.broken-{n}"))).find(|aside| !aside.exists());
    let aside = free.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    boot_id: String,
    state: State,
}

/// `state.json`, and what it is known to hold.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    boot_id: String,
    written: Option<State>,
}

impl Store {
    /// Reads what an agent before this one left. What belongs to another boot or cannot be read is no state: every
    /// ladder then begins at its foot.
    pub fn load(dir: &StateDir, boot_id: &str) -> (Self, State) {
        let path = dir.path().join("state.json");
        let state = match read(&path) {
            Ok(Some(saved)) if saved.boot_id == boot_id => Some(saved.state),
            Ok(Some(_)) => {
                tracing::info!("the host was restarted: all ladders begin afresh");
                None
            }
            Ok(None) => None,
            Err(why) => {
                give_up(&path, &why);
                None
            }
        };
        let store = Self { path, boot_id: boot_id.to_owned(), written: state.clone() };
        (store, state.unwrap_or_default())
    }

    /// Writes the state where it differs from what was written last; one in which only time has passed, not before so much
    /// has. A ladder that is resumed from an older clock acts later, never sooner, and a disk is spared.
    pub fn save(&mut self, state: &State, patience: Duration) -> Result<(), Error> {
        if let Some(written) = &self.written
            && (written == state || state.is_later_than(written).is_some_and(|passed| passed < patience))
        {
            return Ok(());
        }
        // After a failure it is not known which of the two is on disk.
        self.written = None;
        let saved = Saved { version: VERSION, boot_id: self.boot_id.clone(), state: state.clone() };
        let text = serde_json::to_vec(&saved)
            .map_err(|source| Error::Write { path: self.path.clone(), source: source.into() })?;
        write_whole(&self.path, &text)?;
        self.written = Some(saved.state);
        Ok(())
    }
}

fn read(path: &Path) -> Result<Option<Saved>, String> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let saved: Saved = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if saved.version == VERSION { Ok(Some(saved)) } else { Err(format!("version {} is not known", saved.version)) }
}

fn give_up(path: &Path, why: &str) {
    match set_aside(path) {
        Ok(aside) => tracing::error!(
            path = %path.display(), aside = %aside.display(), why,
            "the saved ladders cannot be read and were set aside: all begin afresh"
        ),
        Err(error) => tracing::error!(
            path = %path.display(), %error, why,
            "the saved ladders can be neither read nor set aside: all begin afresh"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Episode, EpisodeKey, Mode, Subject, state::Sighting};
    use crate::snapshot::Truth;
    use crate::units::Uid;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn dir() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(&temp.path().join("state")).unwrap();
        (temp, dir)
    }

    fn some_state() -> State {
        let key = EpisodeKey { rule: "idle".parse().unwrap(), subject: Subject::User { uid: Uid(1000), gpu: None } };
        let episode = Episode {
            meaning: 7,
            mode: Mode::Enforce,
            right: None,
            owner: None,
            began: jiff::Timestamp::UNIX_EPOCH,
            clock: Duration::from_secs(5),
            climbed: vec![],
            last: Sighting { at: Duration::from_secs(9), truth: Truth::True },
            false_for: Duration::ZERO,
            unknown_since: None,
            warned: Default::default(),
            unreachable: false,
            targets: Default::default(),
            tried: vec![],
        };
        State { episodes: [(key, episode)].into() }
    }

    #[test]
    fn what_was_saved_is_loaded_in_the_same_boot_only() {
        let (_temp, dir) = dir();
        let (mut store, empty) = Store::load(&dir, "boot-1");
        assert_eq!(empty, State::default());
        store.save(&some_state(), Duration::ZERO).unwrap();
        assert_eq!(Store::load(&dir, "boot-1").1, some_state());
        assert_eq!(Store::load(&dir, "boot-2").1, State::default());
    }

    #[test]
    fn the_file_is_written_only_when_the_state_changed() {
        let (_temp, dir) = dir();
        let path = dir.path().join("state.json");
        let (mut store, _) = Store::load(&dir, "b");
        store.save(&some_state(), Duration::ZERO).unwrap();
        fs::remove_file(&path).unwrap();
        store.save(&some_state(), Duration::ZERO).unwrap();
        assert!(!path.exists());
        store.save(&State::default(), Duration::ZERO).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn time_that_passes_is_written_now_and_then_and_all_else_at_once() {
        let (_temp, dir) = dir();
        let (mut store, _) = Store::load(&dir, "b");
        let at = |seconds: u64, truth| {
            let mut state = some_state();
            let episode = state.episodes.values_mut().next().unwrap();
            episode.clock = Duration::from_secs(seconds);
            episode.last = Sighting { at: Duration::from_secs(seconds), truth };
            state
        };
        let mut on_disk_after = |state: State| {
            store.save(&state, Duration::from_secs(10)).unwrap();
            Store::load(&dir, "b").1
        };
        assert_eq!(on_disk_after(at(100, Truth::True)), at(100, Truth::True));
        assert_eq!(on_disk_after(at(109, Truth::True)), at(100, Truth::True));
        assert_eq!(on_disk_after(at(110, Truth::True)), at(110, Truth::True));
        assert_eq!(on_disk_after(at(111, Truth::False)), at(111, Truth::False));
        assert_eq!(on_disk_after(State::default()), State::default());
    }

    #[test]
    fn a_broken_file_is_set_aside_and_never_overwritten() {
        let (_temp, dir) = dir();
        let path = dir.path().join("state.json");
        for (n, broken) in
            [&b"{\"version\":1,"[..], b"", b"{\"version\":9,\"boot_id\":\"b\",\"state\":{\"episodes\":[]}}"]
                .iter()
                .enumerate()
        {
            fs::write(&path, broken).unwrap();
            assert_eq!(Store::load(&dir, "b").1, State::default());
            assert_eq!(fs::read(dir.path().join(format!("state.json.broken-{}", n + 1))).unwrap(), *broken);
        }
    }

    #[test]
    fn a_state_that_cannot_be_written_is_an_error_and_is_tried_again() {
        let (temp, dir) = dir();
        let (mut store, _) = Store::load(&dir, "b");
        fs::rename(dir.path(), temp.path().join("away")).unwrap();
        assert!(store.save(&some_state(), Duration::ZERO).is_err());
        fs::rename(temp.path().join("away"), dir.path()).unwrap();
        store.save(&some_state(), Duration::ZERO).unwrap();
        assert_eq!(Store::load(&dir, "b").1, some_state());
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("state");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        assert!(matches!(StateDir::open(&path), Err(Error::Open { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
            assert!(matches!(StateDir::open(&path), Err(Error::Open { .. })));
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        assert!(StateDir::open(&path).is_ok());
    }

    #[test]
    fn two_agents_never_share_a_directory() {
        let (_temp, dir) = dir();
        assert!(matches!(StateDir::open(dir.path()), Err(Error::Taken { .. })));
        let path = dir.path().to_owned();
        drop(dir);
        assert!(StateDir::open(&path).is_ok());
    }
}
