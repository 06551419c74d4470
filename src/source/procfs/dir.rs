//! The directory of one process. Once it is open it is that process's and no other's: when the pid passes on, its files
//! are gone (`proc_pid_lookup`, `get_proc_task`; `fs/proc/base.c`). What is read through it is all of one process.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, openat, readlinkat, statx};
use rustix::io::{pread, read};
use rustix::param::page_size;

use super::{Executable, Stat, Status, executable, namespace};
use crate::units::{Bytes, Uid};

/// More than the files of a process hold, as a rule.
const USUAL: usize = 4096;

/// Every question answers `None` where the process is gone.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    fd: OwnedFd,
}

impl Dir {
    /// `None` where nobody has this pid.
    pub(super) fn open(path: PathBuf) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        present(rustix::fs::open(&path, flags, Mode::empty()))?.map_or(Ok(None), |fd| Ok(Some(Self { path, fd })))
    }

    pub fn stat(&self) -> io::Result<Option<Stat>> {
        self.parsed("stat", Stat::parse)
    }

    /// `stat`, to be read again and again: to find and open it costs more than to read it.
    pub fn open_stat(&self) -> io::Result<Option<StatFile>> {
        let opened = openat(&self.fd, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(present(opened)?.map(StatFile))
    }

    pub fn status(&self) -> io::Result<Option<Status>> {
        self.parsed("status", Status::parse)
    }

    /// Resident memory, by `statm`: what `stat` tells of it is behind by some pages for each processor (`get_mm_rss`,
    /// `include/linux/mm.h`). None for kernel threads and zombies, which have no memory of their own.
    pub fn resident(&self) -> io::Result<Option<Bytes>> {
        Ok(self.parsed("statm", |text| Some(resident(text)))?.flatten())
    }

    /// The text of its cgroup file, for `source::cgroup` to read.
    pub fn cgroup(&self) -> io::Result<Option<String>> {
        self.read("cgroup", |text| String::from_utf8_lossy(text).into_owned())
    }

    /// The effective uid, which owns the directory whatever the process hides of itself (`task_dump_owner`,
    /// `fs/proc/base.c`). It costs a fraction of what `status` does, which tells the real uid.
    pub fn effective_uid(&self) -> io::Result<Option<Uid>> {
        Ok(self.attributes("", AtFlags::EMPTY_PATH)?.map(|dir| Uid(dir.stx_uid)))
    }

    /// Its `cmdline`, open: to read it may take for ever, see [`Arguments`](super::Arguments).
    pub fn cmdline(&self) -> io::Result<Option<File>> {
        let opened = openat(&self.fd, "cmdline", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(present(opened)?.map(File::from))
    }

    /// The file that it runs; `None` also for one that runs none, such as a kernel thread or a zombie.
    pub fn executable(&self) -> io::Result<Option<Executable>> {
        let Some(target) = present(readlinkat(&self.fd, "exe", Vec::with_capacity(256)))? else { return Ok(None) };
        // Its server is not asked: the executables of users lie on network and FUSE filesystems, and one that hangs
        // would hang the agent.
        let file = self.attributes("exe", AtFlags::STATX_DONT_SYNC)?;
        Ok(file.map(|file| executable(OsStr::from_bytes(target.as_bytes()), &file)))
    }

    /// The identity of one of its namespaces: `pid`, `user`, `mnt`.
    pub fn namespace(&self, kind: &str) -> io::Result<Option<u64>> {
        let target = present(readlinkat(&self.fd, format!("ns/{kind}"), Vec::with_capacity(32)))?;
        Ok(target.and_then(|target| namespace::parse(&target.to_string_lossy())))
    }

    fn attributes(&self, file: &str, flags: AtFlags) -> io::Result<Option<Statx>> {
        present(statx(&self.fd, file, flags, StatxFlags::BASIC_STATS))
    }

    fn parsed<T>(&self, file: &str, parse: impl FnOnce(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
        let Some(parsed) = self.read(file, parse)? else { return Ok(None) };
        let not_understood = || format!("{} is not understood", self.path.join(file).display());
        parsed.map(Some).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, not_understood()))
    }

    /// The kernel writes such a file in one go, and as much as there is room for (`single_open`, `seq_read_iter`;
    /// `fs/seq_file.c`): where room is left, that was all. To ask again would double the calls.
    fn read<T>(&self, file: &str, take: impl FnOnce(&[u8]) -> T) -> io::Result<Option<T>> {
        let opened = openat(&self.fd, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let Some(file) = present(opened)? else { return Ok(None) };
        // On the stack: for a buffer of this size the allocator tidies up what the last cycle left, each time.
        let mut room = [MaybeUninit::uninit(); USUAL];
        let Some((text, rest)) = present(read(&file, &mut room))? else { return Ok(None) };
        if !rest.is_empty() {
            return Ok(Some(take(text)));
        }
        let mut text = text.to_vec();
        while text.len() == text.capacity() {
            text.reserve(text.len());
            if present(read(&file, spare_capacity(&mut text)))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(take(&text)))
    }
}

/// The `stat` of one process, as long as that lives: then it can no longer be read (`proc_single_show`, `fs/proc/base.c`).
#[derive(Debug)]
pub struct StatFile(OwnedFd);

impl StatFile {
    pub fn read(&self) -> io::Result<Option<Stat>> {
        let mut room = [MaybeUninit::uninit(); USUAL];
        Ok(present(pread(&self.0, &mut room, 0))?.and_then(|(text, _)| Stat::parse(text)))
    }
}

/// The second field of `statm` in bytes, where the first is not 0 (proc_pid_statm(5)).
fn resident(statm: &[u8]) -> Option<Bytes> {
    let mut pages = std::str::from_utf8(statm).ok()?.split_ascii_whitespace().map(str::parse::<u64>);
    let (size, resident) = (pages.next()?.ok()?, pages.next()?.ok()?);
    (size > 0).then(|| Bytes(resident.saturating_mul(page_size() as u64)))
}

/// A process that is gone is no error: its directory is gone, or its files no longer answer (ESRCH).
fn present<T>(answer: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_the_second_field_in_pages() {
        assert_eq!(resident(b"25 3 1 1 0 10 0\n"), Some(Bytes(3 * page_size() as u64)));
        for none in ["0 0 0 0 0 0 0\n", "", "7", "x 3 1"] {
            assert_eq!(resident(none.as_bytes()), None, "{none}");
        }
    }
}
