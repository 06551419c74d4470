//! What the kernel tells of a process. The root is a parameter, and what was read is a value.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

pub mod dir;
pub mod stat;
pub mod status;
pub mod command;
mod arguments;
pub mod namespace;
pub mod mounts;

pub use arguments::Arguments;
pub use dir::{Dir, StatFile};
pub use stat::Stat;
pub use status::Status;

use crate::text::cleaned;

/// The largest that pid_max can be on 64 bits (proc_sys_kernel(5)), for where it cannot be read.
const PID_MAX_LIMIT: u32 = 4_194_304;

/// A mounted proc filesystem. Every question about a process answers `None` where there is none of that pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Procfs {
    root: PathBuf,
}

/// The file that a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executable {
    /// As the kernel names it, without the ` (deleted)` of a file that was replaced.
    pub path: String,
    pub deleted: bool,
    /// Only root can have put it there: root owns it and nobody else may write it.
    pub of_root: bool,
    /// The device it lies on, and with the inode which file it is, wherever it is mounted.
    pub device: (u32, u32),
    pub inode: u64,
}

impl Executable {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

impl Procfs {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The process that has this pid now.
    pub fn dir(&self, pid: i32) -> io::Result<Option<Dir>> {
        Dir::open(self.path(pid))
    }

    /// The agent itself.
    pub fn own(&self) -> io::Result<Option<Dir>> {
        Dir::open(self.root.join("self"))
    }

    pub fn stat(&self, pid: i32) -> io::Result<Option<Stat>> {
        self.dir(pid)?.map_or(Ok(None), |dir| dir.stat())
    }

    pub fn status(&self, pid: i32) -> io::Result<Option<Status>> {
        self.dir(pid)?.map_or(Ok(None), |dir| dir.status())
    }

    /// The file that it runs; `None` also for one that runs none, such as a kernel thread or a zombie.
    pub fn executable(&self, pid: i32) -> io::Result<Option<Executable>> {
        self.dir(pid)?.map_or(Ok(None), |dir| dir.executable())
    }

    /// Whether the filesystem of this device may be a user's own. Asked of the mounts that pid 1 sees: for a service that
    /// gains no rights, systemd mounts the whole host `nosuid`.
    pub fn may_be_a_users(&self, device: (u32, u32)) -> bool {
        let table = ["1/mountinfo", "self/mountinfo"].iter().find_map(|file| fs::read(self.root.join(file)).ok());
        table.is_some_and(|table| mounts::may_be_a_users(&String::from_utf8_lossy(&table), device))
    }

    /// The agent and the processes that started it, up to pid 1.
    pub fn ancestry(&self, pid: i32) -> Vec<i32> {
        let mut line = vec![pid];
        // Longer than any real one; a forged tree may have a circle.
        while line.len() < 1024
            && let Some(last) = line.last()
            && let Ok(Some(stat)) = self.stat(*last)
            && stat.parent > 0
        {
            line.push(stat.parent);
        }
        line
    }

    /// The largest pid that the kernel gives out.
    pub fn pid_max(&self) -> u32 {
        let read = fs::read_to_string(self.root.join("sys/kernel/pid_max"));
        read.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(PID_MAX_LIMIT)
    }

    pub fn boot_id(&self) -> Option<String> {
        let text = fs::read_to_string(self.root.join("sys/kernel/random/boot_id")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Whether this is the kernel of the Windows subsystem for Linux.
    pub fn is_wsl(&self) -> bool {
        let release = fs::read_to_string(self.root.join("sys/kernel/osrelease"));
        release.is_ok_and(|text| text.to_ascii_lowercase().contains("microsoft"))
    }

    /// Whether other people's processes are hidden from the agent (the mount option `hidepid`).
    pub fn hides_processes(&self) -> bool {
        // The option does not concern root, nor the group that it names. Pid 1 is always there and somebody else's. It is
        // asked first: on a host with containers the table of mounts has thousands of lines.
        if matches!(self.stat(1), Ok(Some(_))) {
            return false;
        }
        let mounts = ["self/mountinfo", "mounts"].iter().find_map(|file| fs::read(self.root.join(file)).ok());
        mounts.is_some_and(|text| mounts::hides(&String::from_utf8_lossy(&text), &self.root))
    }

    fn path(&self, pid: i32) -> PathBuf {
        self.root.join(pid.to_string())
    }
}

/// What the kernel knows of a file. Its server is not asked: the executables of users lie on network and FUSE
/// filesystems, and one that hangs would hang the agent.
pub fn attributes(path: &Path) -> io::Result<Statx> {
    Ok(statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS)?)
}

fn executable(target: &OsStr, file: &Statx) -> Executable {
    let bytes = target.as_bytes();
    let (path, deleted) = match bytes.strip_suffix(b" (deleted)") {
        // A file may bear this as its name: of one that was deleted no directory has an entry.
        Some(path) if file.stx_nlink == 0 => (path, true),
        _ => (bytes, false),
    };
    Executable {
        path: cleaned(&String::from_utf8_lossy(path), ' '),
        deleted,
        of_root: file.stx_uid == 0 && file.stx_mode & 0o022 == 0,
        device: (file.stx_dev_major, file.stx_dev_minor),
        inode: file.stx_ino,
    }
}

#[cfg(test)]
mod tests;
