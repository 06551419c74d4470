//! A handle on one process, which no successor with the same pid can inherit (pidfd_open(2), pidfd_send_signal(2)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags};

use crate::policy::Signal;

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
    #[error("cannot send {}: {source}", signal.as_str())]
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
