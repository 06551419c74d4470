//! A handle on one process, which no successor with the same pid can inherit (pidfd_open(2), pidfd_send_signal(2)).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags};

use crate::policy::Signal;
use crate::source::procfs::Procfs;

#[derive(Debug)]
pub struct Pidfd(OwnedFd);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process has this pid.
    #[error("there is no such process")]
    Gone,
    /// Signals by number could hit somebody else, so there is no way round it.
    #[error("this kernel has no pidfd (Linux 5.3), and without one nothing is signalled")]
    Unsupported,
    #[error("cannot open a pidfd")]
    Open(#[source] io::Error),
    #[error("cannot send {}", signal.as_str())]
    Send { signal: Signal, source: io::Error },
}

impl Pidfd {
    pub fn open(pid: i32) -> Result<Self, Error> {
        let pid = Pid::from_raw(pid).ok_or(Error::Gone)?;
        process::pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(|errno| match errno {
            // The last two: the pid now belongs to a thread (ENOENT since Linux 6.18).
            Errno::SRCH | Errno::INVAL | Errno::NOENT => Error::Gone,
            Errno::NOSYS => Error::Unsupported,
            other => Error::Open(other.into()),
        })
    }

    /// The pid of its process as that `/proc` counts, or none where it has ended and was reaped.
    pub fn pid(&self, procfs: &Procfs) -> io::Result<Option<i32>> {
        let path = procfs.root().join("self/fdinfo").join(self.0.as_raw_fd().to_string());
        let text = fs::read_to_string(path)?;
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        // -1: reaped. 0: not in the namespace of that `/proc` (fs/pidfs.c).
        pid.map(|pid: i32| (pid != -1).then_some(pid)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub fn send(&self, signal: Signal) -> Result<(), Error> {
        self.send_raw(number(signal)).map_err(|errno| match errno {
            Errno::SRCH => Error::Gone,
            other => Error::Send { signal, source: other.into() },
        })
    }

    /// Lets a stopped process run on, so that it can hear what was sent.
    pub fn wake(&self) -> io::Result<()> {
        self.send_raw(process::Signal::CONT).map_err(io::Error::from)
    }

    fn send_raw(&self, signal: process::Signal) -> Result<(), Errno> {
        process::pidfd_send_signal(&self.0, signal)
    }
}

pub fn number(signal: Signal) -> process::Signal {
    match signal {
        Signal::Usr1 => process::Signal::USR1,
        Signal::Usr2 => process::Signal::USR2,
        Signal::Hup => process::Signal::HUP,
        Signal::Int => process::Signal::INT,
        Signal::Term => process::Signal::TERM,
        Signal::Kill => process::Signal::KILL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_pidfd_names_its_process_until_that_is_reaped() {
        let procfs = Procfs::new("/proc");
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let pidfd = Pidfd::open(pid).unwrap();
        assert_eq!(pidfd.pid(&procfs).unwrap(), Some(pid));
        pidfd.send(Signal::Kill).unwrap();
        child.wait().unwrap();
        assert_eq!(pidfd.pid(&procfs).unwrap(), None);
        assert!(matches!(pidfd.send(Signal::Kill), Err(Error::Gone)));
        assert!(matches!(Pidfd::open(i32::MAX), Err(Error::Gone)));
        assert!(pidfd.pid(&Procfs::new("/nowhere")).is_err());
    }
}
