//! Writes to the terminals on which a user works, as write(1) does, but never waits for one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, fstat, makedev, open};
use rustix::io::Errno;
use rustix::termios::isatty;

use super::{Delivery, Recipient};
use crate::source::procfs::Procfs;
use crate::units::Uid;

/// The device numbers of terminals (Documentation/admin-guide/devices.txt): consoles and serial lines, and the
/// pseudo-terminals of devpts.
const CONSOLES: u32 = 4;
const FIRST_SERIAL_LINE: u32 = 64;
const PSEUDO_TERMINALS: std::ops::RangeInclusive<u32> = 136..=143;

/// More terminals of one person than this are not written to.
const MOST: usize = 32;

/// The device numbers of the terminals that control processes, by whose those are; or why nobody knows.
pub type Places = Result<BTreeMap<Uid, BTreeSet<u32>>, String>;

#[derive(Debug, Clone)]
pub struct Terminal {
    procfs: Procfs,
    dev: PathBuf,
}

/// Why a terminal is left alone.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("cannot open it: {0}")]
    Open(Errno),
    #[error("it is another device by now")]
    OtherDevice,
    #[error("it belongs to somebody else")]
    OtherOwner,
    #[error("its owner takes no messages (mesg n)")]
    Closed,
    #[error("it takes no more text")]
    Full,
    #[error("cannot write to it: {0}")]
    Write(Errno),
}

impl Terminal {
    pub fn new(procfs: Procfs, dev: impl Into<PathBuf>) -> Self {
        Self { procfs, dev: dev.into() }
    }

    /// Where everybody works now. One look serves a round: it reads of every process on the host.
    pub fn places(&self) -> Places {
        self.look_around().map_err(|error| format!("cannot list processes: {error}"))
    }

    /// Delivered when one terminal took the whole of it. The admins are reached where root works.
    pub fn deliver(&self, places: &Places, to: &Recipient, text: &str) -> Delivery {
        let uid = match to {
            Recipient::Person(person) => person.uid,
            Recipient::Admins => Uid(0),
        };
        let terminals = match places {
            Ok(places) => places.get(&uid).into_iter().flatten(),
            Err(why) => return Delivery::Failed(why.clone()),
        };
        let text = for_terminal(text);
        let mut written = 0;
        let mut why = BTreeSet::new();
        for device in terminals {
            match self.write(*device, uid, &text) {
                Ok(()) => written += 1,
                Err(refusal) => drop(why.insert(refusal.to_string())),
            }
            if written == MOST {
                break;
            }
        }
        if written > 0 {
            return Delivery::Delivered;
        }
        match why.is_empty() {
            true => Delivery::Undeliverable("no terminal".into()),
            false => Delivery::Undeliverable(format!("terminal: {}", why.into_iter().collect::<Vec<_>>().join(", "))),
        }
    }

    fn look_around(&self) -> io::Result<BTreeMap<Uid, BTreeSet<u32>>> {
        let mut found: BTreeMap<Uid, BTreeSet<u32>> = BTreeMap::new();
        for entry in fs::read_dir(self.procfs.root())? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that is gone or hidden is none of his that could be named.
            let Ok(Some(stat)) = self.procfs.stat(pid) else { continue };
            if stat.terminal == 0 {
                continue;
            }
            let Ok(Some(status)) = self.procfs.status(pid) else { continue };
            found.entry(status.uid).or_default().insert(stat.terminal);
        }
        Ok(found)
    }

    fn write(&self, device: u32, uid: Uid, text: &[u8]) -> Result<(), Refusal> {
        let (major, minor) = unpacked(device);
        let path = match (major, minor) {
            (CONSOLES, serial @ FIRST_SERIAL_LINE..) => self.dev.join(format!("ttyS{}", serial - FIRST_SERIAL_LINE)),
            (CONSOLES, console) => self.dev.join(format!("tty{console}")),
            (major, minor) if PSEUDO_TERMINALS.contains(&major) => {
                self.dev.join("pts").join(((major - PSEUDO_TERMINALS.start()) * 256 + minor).to_string())
            }
            _ => return Err(Refusal::OtherDevice),
        };
        // Not to block on it, not to be controlled by it, not to be led elsewhere.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let terminal = open(&path, flags, Mode::empty()).map_err(Refusal::Open)?;
        check(&terminal, makedev(major, minor), uid)?;
        write_all(&terminal, text)
    }
}

/// What was opened is that terminal, is his, and is open to messages.
fn check(terminal: &OwnedFd, device: u64, uid: Uid) -> Result<(), Refusal> {
    let file = fstat(terminal).map_err(Refusal::Open)?;
    let is_device = FileType::from_raw_mode(file.st_mode) == FileType::CharacterDevice && file.st_rdev == device;
    if !is_device || !isatty(terminal) {
        return Err(Refusal::OtherDevice);
    }
    if file.st_uid != uid.0 {
        return Err(Refusal::OtherOwner);
    }
    if Mode::from_raw_mode(file.st_mode).contains(Mode::WGRP) { Ok(()) } else { Err(Refusal::Closed) }
}

fn write_all(terminal: &OwnedFd, mut text: &[u8]) -> Result<(), Refusal> {
    while !text.is_empty() {
        match rustix::io::write(terminal, text) {
            Ok(0) | Err(Errno::AGAIN) => return Err(Refusal::Full),
            Ok(taken) => text = &text[taken..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Refusal::Write(errno)),
        }
    }
    Ok(())
}

/// The kernel packs a device number for user space as `new_encode_dev` of linux/kdev_t.h.
fn unpacked(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// A bell before, and line ends for a terminal in raw mode, where a line feed does not return.
fn for_terminal(text: &str) -> Vec<u8> {
    format!("\r\n\u{7}{}\r\n", text.replace('\n', "\r\n")).into_bytes()
}

#[cfg(test)]
pub mod tests;
