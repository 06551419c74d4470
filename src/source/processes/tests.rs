use std::fs;
use std::path::Path;

use super::*;

/// A proc filesystem in which pid 100 is the agent, started by pid 1.
struct Forged {
    root: tempfile::TempDir,
    procfs: Procfs,
}

const SESSION: &str = "0::/user.slice/user-1000.slice/session-12.scope\n";
const DOCKER: &str = "0::/system.slice/docker-deac4b5dcb3471a3874168ffc9a9be8565213d8a6d0faa5f15e59c61327548ff.scope\n";

impl Forged {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let procfs = Procfs::new(root.path());
        let forged = Self { root, procfs };
        forged.process(1, 0, "systemd", SESSION);
        forged.process(100, 1, "gpuwarden", SESSION);
        std::os::unix::fs::symlink("100", forged.path("self")).unwrap();
        forged
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::remove_file(&path).ok();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    fn started(&self, pid: i32, parent: i32, name: &str, started: u64) {
        let flags = if parent == 2 { 0x0020_0000 } else { 0 };
        let line = format!("{pid} ({name}) S {parent} 1 1 0 -1 {flags} 0 0 0 0 150 50 0 0 20 0 1 0 {started} 0 0");
        self.write(&format!("{pid}/stat"), &line);
    }

    fn process(&self, pid: i32, parent: i32, name: &str, cgroup: &str) {
        self.started(pid, parent, name, 500);
        self.write(
            &format!("{pid}/status"),
            "Uid:\t1000\t1000\t1000\t1000\nVmRSS:\t4 kB\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n",
        );
        self.write(&format!("{pid}/cmdline"), &format!("{name}\0--token\0abc\0"));
        self.write(&format!("{pid}/cgroup"), cgroup);
        self.link(&format!("{pid}/ns/pid"), "pid:[4026531836]");
        self.link(&format!("{pid}/ns/user"), "user:[4026531837]");
        self.link(&format!("{pid}/ns/mnt"), "mnt:[1]");
    }

    fn runs(&self, pid: i32, file: impl AsRef<Path>) {
        self.link(&format!("{pid}/exe"), file);
    }

    fn read(&self, processes: &mut Processes, pid: i32, mps: bool) -> Result<Process, Unseen> {
        let standpoint = Standpoint::of(&self.procfs, 100);
        processes.read(&self.procfs, &standpoint, pid, mps).unwrap()
    }

    fn once(&self, pid: i32) -> Process {
        self.read(&mut Processes::default(), pid, false).unwrap()
    }
}

#[test]
fn what_is_told_of_a_process_is_what_proc_says() {
    let forged = Forged::new();
    forged.process(7, 1, "job-\u{fffd}", SESSION);
    forged.runs(7, "/proc/self/exe");
    let process = forged.once(7);
    assert_eq!(process.id, ProcessId { pid: 7, started: 500 });
    assert_eq!(process.uid, Some(crate::units::Uid(1000)));
    assert_eq!(process.command_line.as_deref(), Some("job-\u{fffd} --token ***"));
    assert_eq!(process.host_cpu, Some(std::time::Duration::from_secs(2)));
    assert_eq!(process.host_memory, Some(crate::units::Bytes(4096)));
    assert_eq!((process.confidence, process.protection), (Confidence::High, Some(Protection::None)));
}

#[test]
fn a_reused_pid_is_another_process() {
    let forged = Forged::new();
    let mut processes = Processes::default();
    forged.process(7, 1, "python3", SESSION);
    let first = forged.read(&mut processes, 7, false).unwrap();
    forged.process(7, 1, "vim", SESSION);
    forged.started(7, 1, "vim", 900);
    let second = forged.read(&mut processes, 7, false).unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!((first.command.as_str(), second.command.as_str()), ("python3", "vim"));
}

#[test]
fn a_process_that_renames_itself_keeps_the_name_it_was_first_seen_with() {
    let forged = Forged::new();
    let mut processes = Processes::default();
    forged.process(7, 1, "python3", SESSION);
    forged.read(&mut processes, 7, false).unwrap();
    forged.started(7, 1, "sshd", 500);
    let renamed = forged.read(&mut processes, 7, false).unwrap();
    assert_eq!(renamed.command, "python3");
}

#[test]
fn a_pid_without_an_entry_is_dead_unless_the_agent_is_blind() {
    let forged = Forged::new();
    let mut processes = Processes::default();
    assert_eq!(forged.read(&mut processes, 7000, false), Err(Unseen::Exited));
    let standpoint = Standpoint { blind: true, ..Standpoint::of(&forged.procfs, 100) };
    assert_eq!(processes.read(&forged.procfs, &standpoint, 7000, false).unwrap(), Err(Unseen::Hidden));
}

#[test]
fn an_owner_is_certain_only_outside_containers() {
    let forged = Forged::new();
    for (pid, cgroup) in [(7, SESSION), (8, DOCKER), (9, SESSION), (10, SESSION)] {
        forged.process(pid, 1, "python3", cgroup);
    }
    forged.link("9/ns/user", "user:[4026532000]");
    forged.link("10/ns/pid", "pid:[4026532000]");
    forged.process(11, 1, "python3", SESSION);
    fs::remove_file(forged.path("11/cgroup")).unwrap();
    let confidence = |pid| forged.once(pid).confidence;
    assert_eq!(confidence(7), Confidence::High);
    for pid in [8, 9, 10, 11] {
        assert_eq!(confidence(pid), Confidence::Low, "{pid}");
    }
    // The agent's own container is its host.
    forged.write("100/cgroup", DOCKER);
    assert_eq!(confidence(8), Confidence::High);
}

#[test]
fn pid_1_kernel_threads_and_who_started_the_agent_are_protected() {
    let forged = Forged::new();
    forged.process(50, 1, "bash", SESSION);
    forged.started(100, 50, "gpuwarden", 500);
    forged.started(87, 2, "nvidia-modeset/", 500);
    for (pid, expected) in
        [(1, Protection::Init), (87, Protection::Kernel), (50, Protection::Agent), (100, Protection::Agent)]
    {
        assert_eq!(forged.once(pid).protection, Some(expected), "{pid}");
    }
}

#[test]
fn infrastructure_is_known_by_a_file_that_root_owns_on_the_host() {
    use std::os::unix::fs::{PermissionsExt, chown};
    // Only root can make a file that root owns.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let forged = Forged::new();
    let file = |path: &str, owner, mode| {
        forged.write(path, "");
        let path = forged.path(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chown(&path, Some(owner), None).unwrap();
        path
    };
    let roots = file("usr/sbin/sshd", 0, 0o755);
    let users = file("home/sshd", 1000, 0o755);
    let open = file("tmp/sshd", 0, 0o777);
    let other = file("usr/bin/python3.11", 0, 0o755);
    let check = |pid, name: &str, exe: &Path, cgroup, expected| {
        forged.process(pid, 1, name, cgroup);
        forged.runs(pid, exe);
        assert_eq!(forged.once(pid).protection, Some(expected), "{pid} {name}");
    };
    check(7, "sshd", &roots, SESSION, Protection::Infrastructure);
    check(8, "sshd", &users, SESSION, Protection::None);
    check(9, "sshd", &open, SESSION, Protection::None);
    check(10, "sshd", &other, SESSION, Protection::None);
    check(11, "python3", &roots, SESSION, Protection::Infrastructure);
    // In a container root is whoever made the image.
    check(12, "sshd", &roots, DOCKER, Protection::None);
}

#[test]
fn without_its_executable_nobody_knows_whether_it_is_protected() {
    let forged = Forged::new();
    forged.process(7, 1, "python3", SESSION);
    assert_eq!(forged.once(7).protection, None);
}

#[test]
fn a_client_of_an_mps_server_is_protected_as_one() {
    let forged = Forged::new();
    forged.process(7, 1, "python3", SESSION);
    forged.runs(7, "/proc/self/exe");
    let process = forged.read(&mut Processes::default(), 7, true).unwrap();
    assert_eq!(process.protection, Some(Protection::MpsClient));
}
