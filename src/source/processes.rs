//! The processes that hold a GPU, as `/proc` tells of them, and what is kept of each while it lives.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::cgroup::{self, ContainerId};
use super::procfs::{Executable, Procfs, Stat, attributes};
use crate::snapshot::{Confidence, Process, ProcessId, Protection, Unseen};
use crate::text::cleaned;

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

/// What is known of a living process beyond this cycle.
#[derive(Debug, Clone)]
struct Kept {
    /// The name of its executable as first seen.
    command: String,
    /// What it ran when its command line was read: another file means that it has become another program.
    executable: Option<Executable>,
    command_line: Option<String>,
    protection: Option<Protection>,
}

/// Reads processes; one for the life of the agent.
#[derive(Debug, Default)]
pub struct Processes {
    kept: BTreeMap<ProcessId, Kept>,
}

/// Where the agent itself stands: whom it must not hit, and what counts as the host.
#[derive(Debug, Clone, Default)]
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
        let namespace = |kind| procfs.own_namespace(kind).ok().flatten();
        let cgroup = procfs.own_cgroup().ok().flatten();
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
    /// A process of the driver's list, or why it cannot be named.
    pub fn read(
        &mut self,
        procfs: &Procfs,
        standpoint: &Standpoint,
        pid: i32,
        mps: bool,
    ) -> io::Result<Result<Process, Unseen>> {
        let unseen = if standpoint.blind { Unseen::Hidden } else { Unseen::Exited };
        let before = match procfs.stat(pid) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(Err(unseen)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Err(Unseen::Hidden)),
            Err(error) => return Err(error),
        };
        let process = self.facts(procfs, standpoint, &before, mps);
        // Facts that were read while the pid passed to another process are of both, and so of neither.
        match procfs.stat(pid)? {
            Some(after) if after.started == before.started => Ok(Ok(process)),
            Some(_) | None => {
                self.kept.remove(&process.id);
                Ok(Err(Unseen::Exited))
            }
        }
    }

    /// Forgets those that are gone.
    pub fn keep(&mut self, alive: &BTreeMap<ProcessId, Process>) {
        self.kept.retain(|id, _| alive.contains_key(id));
    }

    /// Owner, executable and cgroup are read each cycle, for exec, setuid and a move between cgroups change them
    /// without changing the process, and whom a signal may hit depends on them; each is one short read. The command line
    /// is read again only when the executable is another.
    fn facts(&mut self, procfs: &Procfs, standpoint: &Standpoint, stat: &Stat, mps: bool) -> Process {
        let pid = stat.pid;
        let id = ProcessId { pid, started: stat.started };
        let status = procfs.status(pid).ok().flatten();
        let executable = procfs.executable(pid).ok().flatten();
        let cgroup = procfs.cgroup(pid).ok().flatten();
        let host = is_on_the_host(procfs, standpoint, pid, cgroup.as_deref());

        let fresh = || Kept {
            command: cleaned(executable.as_ref().map_or(stat.name.as_str(), |file| file.name()).trim_end(), ' '),
            executable: executable.clone(),
            command_line: procfs.command_line(pid).ok().flatten(),
            protection: None,
        };
        let kept = self.kept.entry(id).or_insert_with(fresh);
        if executable.is_some() && executable != kept.executable {
            *kept = Kept { command: kept.command.clone(), ..fresh() };
        }
        // A zombie runs no file any more; what it was it still is.
        if !(stat.is_zombie() && executable.is_none()) {
            kept.protection = protection(procfs, standpoint, stat, executable.as_ref(), host, mps);
        }
        Process {
            id,
            uid: status.as_ref().map(|status| status.uid),
            confidence: if host == Some(true) { Confidence::High } else { Confidence::Low },
            command: kept.command.clone(),
            executable: kept.executable.as_ref().map(|file| file.path.clone()),
            command_line: kept.command_line.clone(),
            protection: kept.protection,
            host_memory: status.as_ref().and_then(|status| status.resident),
            host_cpu: Some(stat.cpu),
        }
    }
}

/// Whether it runs outside containers, as far as namespaces and cgroup tell: there its uid is its owner, and its files
/// are the host's. The container that the agent itself runs in is its host.
fn is_on_the_host(procfs: &Procfs, standpoint: &Standpoint, pid: i32, cgroup: Option<&str>) -> Option<bool> {
    let same = |kind, own: Option<u64>| Some(procfs.namespace(pid, kind).ok().flatten()? == own?);
    let contained = cgroup::container(cgroup?);
    let outside = contained.is_none() || contained == standpoint.container;
    Some(outside && same("pid", standpoint.pid_namespace)? && same("user", standpoint.user_namespace)?)
}

/// Whether a rule may hit it. `None` where that cannot be told.
pub fn protection(
    procfs: &Procfs,
    standpoint: &Standpoint,
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
                is_the_hosts(executable)
                    || procfs.namespace(stat.pid, "mnt").ok().flatten() == Some(standpoint.mount_namespace?)
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
