//! The local socket of `gpuwarden reset`: who may ask, what can be asked, and how the answer comes back.
//!
//! A thread takes one caller at a time and hands what he asks to the cycle, which alone owns pins and fuses.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Uid, geteuid};

use crate::state::StateDir;

/// For reading what is asked, for the cycle to answer, and for writing the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait when no caller can be accepted, as when all descriptors are in use.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// Longer than any question.
const LONGEST: u64 = 64;

/// What can be made as new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Reset {
    /// From now on the indexes mean the cards of now.
    Pins,
    /// Blown fuses are whole again.
    Fuses,
}

impl Reset {
    const ALL: [Self; 2] = [Self::Pins, Self::Fuses];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pins => "pins",
            Self::Fuses => "fuses",
        }
    }

    /// What is so once it was done.
    pub fn done(self) -> &'static str {
        match self {
            Self::Pins => "From now on the indexes mean the cards of now.",
            Self::Fuses => "The fuses are whole again.",
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let what = line.trim_end().strip_prefix("reset ")?;
        Self::ALL.into_iter().find(|reset| reset.as_str() == what)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {}", path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("no gpuwarden runs with the state directory of {}", path.display())]
    NotRunning { path: PathBuf },
    #[error("only root and the user of the agent may ask it ({})", path.display())]
    Forbidden { path: PathBuf },
    #[error("cannot reach the agent at {}", path.display())]
    Reach { path: PathBuf, source: io::Error },
    #[error("the agent did not answer within {} s; it may still do what was asked", LIMIT.as_secs())]
    Silent,
    #[error("the agent refused: {0}")]
    Refused(String),
}

/// A question that waits for its answer.
#[derive(Debug)]
pub struct Asked {
    pub what: Reset,
    answer: SyncSender<Result<(), String>>,
}

impl Asked {
    /// To a caller who has gone away nothing is said.
    pub fn answer(self, came: Result<(), String>) {
        let _ = self.answer.try_send(came);
    }
}

/// Listens, and passes on what may be asked. The cycle looks into the receiver while it waits for its next turn.
pub fn listen(dir: &StateDir) -> Result<Receiver<Asked>, Error> {
    let path = socket(dir.path());
    let failed = |source| Error::Listen { path: path.clone(), source };
    let listener = bind(&path).map_err(failed)?;
    let (send, receive) = sync_channel(1);
    let serve = move || {
        for caller in listener.incoming() {
            match caller {
                // One who goes away while he is served is his own affair.
                Ok(caller) => match serve(caller, &send) {
                    Ok(()) => {}
                    Err(error) => tracing::debug!(%error, "a caller of the control socket was not served"),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a caller of the control socket");
                    thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    };
    thread::Builder::new().name("control".into()).spawn(serve).map_err(failed)?;
    Ok(receive)
}

fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("control.sock")
}

/// The directory is locked, so that a socket found there is of an agent that is no more.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn serve(mut caller: UnixStream, cycle: &SyncSender<Asked>) -> io::Result<()> {
    caller.set_read_timeout(Some(LIMIT))?;
    caller.set_write_timeout(Some(LIMIT))?;
    let answer = match may_ask(socket_peercred(&caller)?.uid) {
        true => ask_cycle(&mut caller, cycle)?,
        false => Err("only root and the user of the agent may ask".to_owned()),
    };
    let line = answer.map_or_else(|why| format!("refused {why}\n"), |()| "done\n".to_owned());
    caller.write_all(line.as_bytes())
}

fn may_ask(uid: Uid) -> bool {
    uid.is_root() || uid == geteuid()
}

fn ask_cycle(caller: &mut UnixStream, cycle: &SyncSender<Asked>) -> io::Result<Result<(), String>> {
    let mut line = String::new();
    BufReader::new(caller.take(LONGEST)).read_line(&mut line)?;
    let Some(what) = Reset::parse(&line) else { return Ok(Err("it knows `reset pins` and `reset fuses`".into())) };
    let (answer, receive) = sync_channel(1);
    if cycle.try_send(Asked { what, answer }).is_err() {
        return Ok(Err("it is busy; ask again".into()));
    }
    Ok(receive.recv_timeout(LIMIT).unwrap_or_else(|_| Err("its cycle takes too long; it may still do it".into())))
}

/// Asks the agent that runs with this state directory; for the command.
pub fn ask(state_dir: &Path, what: Reset) -> Result<(), Error> {
    let path = socket(state_dir);
    let answer = converse(&path, what).map_err(|source| failure(path, source))?;
    match answer.trim_end().split_once(' ') {
        None if answer == "done\n" => Ok(()),
        Some(("refused", why)) => Err(Error::Refused(why.to_owned())),
        _ => Err(Error::Silent),
    }
}

fn converse(path: &Path, what: Reset) -> io::Result<String> {
    let mut agent = UnixStream::connect(path)?;
    // The agent takes its own time for the cycle, and then has to write.
    agent.set_read_timeout(Some(LIMIT * 2))?;
    agent.set_write_timeout(Some(LIMIT))?;
    agent.write_all(format!("reset {}\n", what.as_str()).as_bytes())?;
    let mut answer = String::new();
    BufReader::new(agent).read_line(&mut answer)?;
    Ok(answer)
}

fn failure(path: PathBuf, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning { path },
        io::ErrorKind::PermissionDenied => Error::Forbidden { path },
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Silent,
        _ => Error::Reach { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = StateDir::open(&temp.path().join("state")).unwrap();
        (temp, dir)
    }

    #[test]
    fn what_is_asked_reaches_the_cycle_and_its_answer_the_caller() {
        let (_temp, dir) = dir();
        let inbox = listen(&dir).unwrap();
        for (what, answer) in [(Reset::Pins, Ok(())), (Reset::Fuses, Err("the disk is full".to_owned()))] {
            let path = dir.path().to_owned();
            let caller = thread::spawn(move || ask(&path, what));
            let asked = inbox.recv_timeout(LIMIT).unwrap();
            assert_eq!(asked.what, what);
            asked.answer(answer.clone());
            let came = caller.join().unwrap().map_err(|error| error.to_string());
            assert_eq!(came, answer.map_err(|why| format!("the agent refused: {why}")));
        }
    }

    #[test]
    fn the_socket_is_for_the_agents_own_user_alone_and_an_old_one_is_replaced() {
        let (_temp, dir) = dir();
        drop(UnixListener::bind(socket(dir.path())).unwrap());
        let _inbox = listen(&dir).unwrap();
        assert_eq!(fs::metadata(socket(dir.path())).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(may_ask(Uid::ROOT));
        assert!(may_ask(geteuid()));
        assert!(!may_ask(Uid::from_raw(geteuid().as_raw() + 1)));
    }

    #[test]
    fn without_an_agent_the_command_says_so() {
        let (_temp, dir) = dir();
        assert!(matches!(ask(dir.path(), Reset::Pins), Err(Error::NotRunning { .. })));
        drop(UnixListener::bind(socket(dir.path())).unwrap());
        assert!(matches!(ask(dir.path(), Reset::Pins), Err(Error::NotRunning { .. })));
    }

    #[test]
    fn a_question_that_is_none_is_refused_and_the_next_is_heard() {
        let (_temp, dir) = dir();
        let inbox = listen(&dir).unwrap();
        for question in ["reset everything\n", "\n", &"x".repeat(1000), "reset fuses and more\n"] {
            let mut agent = UnixStream::connect(socket(dir.path())).unwrap();
            agent.write_all(question.as_bytes()).unwrap();
            let mut answer = String::new();
            let _ = BufReader::new(agent).read_line(&mut answer);
            assert!(answer.is_empty() || answer.starts_with("refused it knows"), "{question}: {answer}");
        }
        assert!(inbox.try_recv().is_err());
        let path = dir.path().to_owned();
        let caller = thread::spawn(move || ask(&path, Reset::Fuses));
        inbox.recv_timeout(LIMIT).unwrap().answer(Ok(()));
        caller.join().unwrap().unwrap();
    }
}
