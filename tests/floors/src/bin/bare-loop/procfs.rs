//! What has to be read of a process in each cycle, and nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::{Errno, read};

/// The files of its directory; and the directory itself is asked for its owner.
const FILES: [&str; 3] = ["stat", "statm", "cgroup"];

pub struct Procfs(OwnedFd);

impl Procfs {
    pub fn open() -> io::Result<Self> {
        Ok(Self(openat(CWD, "/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Whether it is still there. Its directory is opened once, so that all that is read is of the same process.
    pub fn visit(&self, pid: u32) -> io::Result<bool> {
        match visit(self.0.as_fd(), pid) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn visit(procfs: BorrowedFd, pid: u32) -> Result<(), Errno> {
    let mut name = [0; 10];
    let directory =
        openat(procfs, digits(pid, &mut name), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    statx(&directory, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::UID)?;
    let mut text = [0; 4096];
    for file in FILES {
        let file = openat(&directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        // Both are shorter than this, and procfs gives them in one piece.
        read(&file, &mut text)?;
    }
    Ok(())
}

/// A number in decimal, without an allocation.
fn digits(mut number: u32, room: &mut [u8; 10]) -> &str {
    let mut start = room.len();
    loop {
        start -= 1;
        room[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return str::from_utf8(&room[start..]).expect("digits");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_told_from_one_that_is_gone() {
        let procfs = Procfs::open().unwrap();
        assert!(procfs.visit(std::process::id()).unwrap());
        assert!(!procfs.visit(u32::MAX).unwrap());
    }

    #[test]
    fn a_number_is_written_in_decimal() {
        for number in [0, 7, 4_194_304, u32::MAX] {
            assert_eq!(digits(number, &mut [0; 10]), number.to_string());
        }
    }
}
