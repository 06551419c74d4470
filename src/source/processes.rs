//! The processes that hold a GPU, as `/proc` tells of them, and what is kept of each while it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cgroup::{self, ContainerId};
use super::procfs::stat::Image;
use super::procfs::{Arguments, Dir, Executable, Procfs, Stat, StatFile, attributes};
use crate::snapshot::{Confidence, Process, ProcessId, Protection, Unseen};
use crate::text::cleaned;
use crate::units::Uid;

/// Whom no rule may hit, by the name of the executable; a star at the end stands for the rest of the name.
const INFRASTRUCTURE: [&str; 56] = [
    // Logins and session managers.
    "sshd",
    "sshd-session",
    "sshd-auth",
    "systemd",
    "systemd-*",
    "(sd-pam)",
    "init",
    "login",
    "agetty",
    "cron",
    "crond",
    "atd",
    "dbus-daemon",
    "dbus-broker",
    "dbus-broker-launch",
    "polkitd",
    "sssd",
    "sssd_*",
    // Display servers and the desktops that compose for them.
    "gdm*",
    "sddm*",
    "lightdm",
    "Xorg",
    "Xorg.bin",
    "Xwayland",
    "Xvnc",
    "gnome-shell",
    "gnome-session*",
    "mutter*",
    "kwin_*",
    "plasmashell",
    "sway",
    "weston",
    // Containers and clusters.
    "dockerd",
    "docker-proxy",
    "docker-init",
    "containerd",
    "containerd-shim*",
    "runc",
    "crun",
    "conmon*",
    "podman",
    "crio",
    "kubelet",
    "kube-proxy",
    "k3s*",
    "slurmd",
    "slurmstepd",
    "slurmctld",
    "slurmdbd",
    "munged",
    // The driver and what watches it.
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
];

/// So many cycles what was read of a process is trusted while nothing shows that it changed. A file whose owner changes,
/// a process that changes its real uid alone: such things show in nothing that is cheap to read.
const TRUSTED: u8 = 16;

/// How long its cgroup, its owner and its memory are good for, however often the cycle turns: to read them costs more than
/// all else that is asked of a process.
const FRESH: Duration = Duration::from_secs(4);

/// Of so many processes a file is kept open: a fraction of what a process may have open.
const OPEN: usize = 256;

/// Into so many parts that time is divided, that those who came together are not all read in one cycle.
const STAGGER: u32 = 16;

/// What is known of a living process beyond this cycle.
#[derive(Debug)]
struct Kept {
    /// As last read as a whole.
    process: Process,
    /// The file behind `process.executable`.
    executable: Option<Executable>,
    marks: Marks,
    /// In how many looks it is read as a whole again.
    trusted_for: u8,
    /// Its `stat`, while there is room for it.
    stat: Option<StatFile>,
    /// Until then it is only looked at to see whether it is still this process and this program.
    fresh_until: Instant,
}

/// What shows that a process may have become another: exec moves its image, setuid changes the owner of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Marks {
    image: Option<Image>,
    effective_uid: Option<Uid>,
    cgroup: Option<String>,
    mps: bool,
}

/// Reads processes; one for the life of the agent.
#[derive(Debug, Default)]
pub struct Processes {
    /// In boxes: the nodes of a map that grows at its end stay half empty.
    kept: BTreeMap<ProcessId, Box<Kept>>,
    /// Where the agent stood when they were read.
    standpoint: Standpoint,
    arguments: Arguments,
}

/// Where the agent itself stands: whom it must not hit, and what counts as the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Standpoint {
    pub ancestry: BTreeSet<i32>,
    pub pid_namespace: Option<u64>,
    pub user_namespace: Option<u64>,
    pub mount_namespace: Option<u64>,
    pub container: Option<ContainerId>,
    /// Why a pid without an entry in `/proc` is not known to be dead.
    pub blind: bool,
}

impl Standpoint {
    pub fn of(procfs: &Procfs, own_pid: i32) -> Self {
        let own = procfs.own().ok().flatten();
        let namespace = |kind| own.as_ref()?.namespace(kind).ok().flatten();
        let cgroup = own.as_ref().and_then(|own| own.cgroup().ok().flatten());
        Self {
            ancestry: procfs.ancestry(own_pid).into_iter().collect(),
            pid_namespace: namespace("pid"),
            user_namespace: namespace("user"),
            mount_namespace: namespace("mnt"),
            container: cgroup.as_deref().and_then(cgroup::container),
            blind: false,
        }
    }
}

impl Processes {
    /// A process of the driver's list, or why it cannot be named. Everything that an act depends on is read now.
    pub fn read(
        &mut self,
        procfs: &Procfs,
        standpoint: &Standpoint,
        pid: i32,
        mps: bool,
    ) -> io::Result<Result<Process, Unseen>> {
        self.seen(procfs, standpoint, pid, mps, None)
    }

    /// The same in each cycle: what does not change while a process lives, or shows when it does, is read once.
    pub fn follow(
        &mut self,
        procfs: &Procfs,
        standpoint: &Standpoint,
        pid: i32,
        mps: bool,
        at: Instant,
    ) -> io::Result<Result<Process, Unseen>> {
        match self.still(procfs, standpoint, pid, mps, at) {
            Some(process) => Ok(Ok(process)),
            None => self.seen(procfs, standpoint, pid, mps, Some(at)),
        }
    }

    /// A process that was read a moment ago, if it is still the same one and runs the same program.
    fn still(&self, procfs: &Procfs, standpoint: &Standpoint, pid: i32, mps: bool, at: Instant) -> Option<Process> {
        let first = ProcessId { pid, started: u64::MIN };
        let (id, kept) = self.kept.range(first..=ProcessId { started: u64::MAX, ..first }).next_back()?;
        if at >= kept.fresh_until || kept.marks.mps != mps || self.standpoint != *standpoint {
            return None;
        }
        let read = kept.stat.as_ref().map_or_else(|| procfs.stat(pid), |file| file.read());
        let stat = read.ok().flatten().filter(|stat| stat.started == id.started && !stat.is_zombie())?;
        let same = stat.image.is_some() && stat.image == kept.marks.image;
        same.then(|| Process { host_cpu: Some(stat.cpu), ..kept.process.clone() })
    }

    fn seen(
        &mut self,
        procfs: &Procfs,
        standpoint: &Standpoint,
        pid: i32,
        mps: bool,
        following: Option<Instant>,
    ) -> io::Result<Result<Process, Unseen>> {
        let unseen = if standpoint.blind { Unseen::Hidden } else { Unseen::Exited };
        let (dir, stat) = match opened(procfs, pid) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok(Err(unseen)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Err(Unseen::Hidden)),
            Err(error) => return Err(error),
        };
        if self.standpoint != *standpoint {
            self.standpoint = standpoint.clone();
            self.kept.values_mut().for_each(|kept| kept.trusted_for = 0);
        }
        let marks = Marks {
            image: stat.image,
            effective_uid: dir.effective_uid().ok().flatten(),
            cgroup: dir.cgroup().ok().flatten(),
            mps,
        };
        let id = ProcessId { pid: stat.pid, started: stat.started };
        if let Some(at) = following
            && let Some(kept) = self.kept.get_mut(&id).filter(|kept| kept.is_trusted(&marks))
        {
            kept.trusted_for -= 1;
            kept.fresh_until = at + FRESH;
            kept.process.host_memory = dir.resident().ok().flatten();
            kept.process.host_cpu = Some(stat.cpu);
            return Ok(Ok(kept.process.clone()));
        }
        let before = self.kept.remove(&id);
        let has_room = self.kept.len() < OPEN || self.kept.values().filter(|kept| kept.stat.is_some()).count() < OPEN;
        let mut kept = facts(procfs, standpoint, &dir, &stat, marks, before.as_deref(), &mut self.arguments);
        kept.fresh_until = match (following, &before) {
            (Some(at), Some(_)) => at + FRESH,
            // Not all in one cycle.
            (Some(at), None) => at + FRESH * (pid.cast_unsigned() % STAGGER + 1) / STAGGER,
            (None, _) => kept.fresh_until,
        };
        kept.stat = before.and_then(|before| before.stat);
        if kept.stat.is_none() && has_room {
            kept.stat = dir.open_stat().ok().flatten();
        }
        let process = kept.process.clone();
        // Of one that ended meanwhile some facts are missing.
        match dir.stat()? {
            Some(_) => {
                self.kept.insert(id, Box::new(kept));
                Ok(Ok(process))
            }
            None => Ok(Err(Unseen::Exited)),
        }
    }

    /// Forgets those that are gone.
    pub fn keep(&mut self, alive: &BTreeMap<ProcessId, Process>) {
        self.kept.retain(|id, _| alive.contains_key(id));
    }
}

fn opened(procfs: &Procfs, pid: i32) -> io::Result<Option<(Dir, Stat)>> {
    let Some(dir) = procfs.dir(pid)? else { return Ok(None) };
    let stat = dir.stat()?;
    Ok(stat.map(|stat| (dir, stat)))
}

impl Kept {
    /// Without an image an exec would not show; where the two uids differ, the real one may become another unseen.
    fn is_trusted(&self, marks: &Marks) -> bool {
        let shows_changes = marks.image.is_some() && marks.effective_uid == self.process.uid;
        self.trusted_for > 0 && shows_changes && *marks == self.marks
    }
}

/// Owner, executable and cgroup can change without changing the process (exec, setuid, a move between cgroups), and whom
/// a signal may hit depends on them. The command line is read again only when another program runs.
fn facts(
    procfs: &Procfs,
    standpoint: &Standpoint,
    dir: &Dir,
    stat: &Stat,
    marks: Marks,
    before: Option<&Kept>,
    arguments: &mut Arguments,
) -> Kept {
    let executable = dir.executable().ok().flatten();
    let host = is_on_the_host(standpoint, dir, marks.cgroup.as_deref());
    // Of one that is in the midst of its exec, the arguments are not there yet, and nor is the image.
    let same_image = |kept: &&Kept| marks.image.is_none() || marks.image == kept.marks.image;
    // A zombie runs no file any more; what it was it still is.
    let same_file = |kept: &&Kept| executable.is_none() || executable == kept.executable;
    let same = before.filter(same_image).filter(same_file);
    let command = || cleaned(executable.as_ref().map_or(stat.name.as_str(), |file| file.name()).trim_end(), ' ').into();
    let ended = stat.is_zombie() && executable.is_none();
    let protection = match same.filter(|_| ended) {
        Some(kept) => kept.process.protection,
        None if ended => None,
        None => protection(procfs, standpoint, dir, stat, executable.as_ref(), host, marks.mps),
    };
    let process = Process {
        id: ProcessId { pid: stat.pid, started: stat.started },
        uid: dir.status().ok().flatten().map(|status| status.uid),
        confidence: if host == Some(true) { Confidence::High } else { Confidence::Low },
        command: before.map_or_else(command, |kept| kept.process.command.clone()),
        executable: same.map_or_else(
            || executable.as_ref().map(|file| Arc::from(file.path.as_str())),
            |kept| kept.process.executable.clone(),
        ),
        command_line: same.map_or_else(
            || dir.cmdline().ok().flatten().and_then(|cmdline| arguments.of(cmdline)).map(Arc::from),
            |kept| kept.process.command_line.clone(),
        ),
        protection,
        host_memory: dir.resident().ok().flatten(),
        host_cpu: Some(stat.cpu),
    };
    // Not all in one cycle.
    let trusted_for = before.map_or(1 + stat.pid.cast_unsigned() as u8 % TRUSTED, |_| TRUSTED);
    let executable = same.map_or(executable, |kept| kept.executable.clone());
    let fresh_until = before.map_or_else(Instant::now, |kept| kept.fresh_until);
    Kept { process, executable, marks, trusted_for, stat: None, fresh_until }
}

/// Whether it runs outside containers, as far as namespaces and cgroup tell: there its uid is its owner, and its files
/// are the host's. The container that the agent itself runs in is its host.
fn is_on_the_host(standpoint: &Standpoint, dir: &Dir, cgroup: Option<&str>) -> Option<bool> {
    let same = |kind, own: Option<u64>| Some(dir.namespace(kind).ok().flatten()? == own?);
    let contained = cgroup::container(cgroup?);
    let outside = contained.is_none() || contained == standpoint.container;
    Some(outside && same("pid", standpoint.pid_namespace)? && same("user", standpoint.user_namespace)?)
}

/// Whether a rule may hit it. `None` where that cannot be told.
fn protection(
    procfs: &Procfs,
    standpoint: &Standpoint,
    dir: &Dir,
    stat: &Stat,
    executable: Option<&Executable>,
    host: Option<bool>,
    mps: bool,
) -> Option<Protection> {
    if stat.pid == 1 {
        return Some(Protection::Init);
    }
    if stat.kernel_thread {
        return Some(Protection::Kernel);
    }
    if standpoint.ancestry.contains(&stat.pid) {
        return Some(Protection::Agent);
    }
    let executable = executable?;
    if is_infrastructure(executable.name()) && executable.of_root && !procfs.may_be_a_users(executable.device) {
        // A file of that name that root owns inside a container's or an image's own tree was not put there by the
        // host's root.
        let own = match host? {
            true => {
                is_the_hosts(executable) || dir.namespace("mnt").ok().flatten() == Some(standpoint.mount_namespace?)
            }
            false => false,
        };
        if own {
            return Some(Protection::Infrastructure);
        }
    }
    Some(if mps { Protection::MpsClient } else { Protection::None })
}

fn is_infrastructure(name: &str) -> bool {
    INFRASTRUCTURE.iter().any(|pattern| crate::snapshot::selector::wildcard(pattern, name))
}

/// Whether the agent finds the same file under the same path: a service may have a mount namespace of its own, but its
/// program lies on the host.
fn is_the_hosts(executable: &Executable) -> bool {
    attributes(Path::new(&executable.path)).is_ok_and(|file| {
        ((file.stx_dev_major, file.stx_dev_minor), file.stx_ino) == (executable.device, executable.inode)
    })
}

#[cfg(test)]
mod tests;
