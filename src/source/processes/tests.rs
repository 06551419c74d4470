use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::*;

/// A proc filesystem in which pid 100 is the agent, started by pid 1.
struct Forged {
    root: tempfile::TempDir,
    procfs: Procfs,
    began: Instant,
    looks: Cell<u32>,
}

const SESSION: &str = "0::/user.slice/user-1000.slice/session-12.scope\n";
const DOCKER: &str = "0::/system.slice/docker-deac4b5dcb3471a3874168ffc9a9be8565213d8a6d0faa5f15e59c61327548ff.scope\n";

impl Forged {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let procfs = Procfs::new(root.path());
        let forged = Self { root, procfs, began: Instant::now(), looks: Cell::new(0) };
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
        let line =
            format!("{pid} ({name}) S {parent} 1 1 0 -1 {flags} 0 0 0 0 150 50 0 0 20 0 1 0 {started} 9000000 3");
        self.write(&format!("{pid}/stat"), &line);
        self.write(&format!("{pid}/statm"), "9 3 1 1 0 5 0\n");
    }

    fn process(&self, pid: i32, parent: i32, name: &str, cgroup: &str) {
        self.started(pid, parent, name, 500);
        self.write(&format!("{pid}/status"), "Uid:\t1000\t1000\t1000\t1000\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n");
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
        processes.read(&self.procfs, &self.standpoint(), pid, mps).unwrap()
    }

    fn follow(&self, processes: &mut Processes, pid: i32) -> Process {
        processes.follow(&self.procfs, &self.standpoint(), pid, false, self.later()).unwrap().unwrap()
    }

    /// When what was read before is no longer fresh.
    fn later(&self) -> Instant {
        self.looks.set(self.looks.get() + 1);
        self.began + FRESH * self.looks.get()
    }

    fn standpoint(&self) -> Standpoint {
        Standpoint::of(&self.procfs, 100)
    }

    /// One whose image the agent may see, and whose uid is that of whoever made its directory.
    fn traced(&self, pid: i32, stack: u64) {
        let uid = geteuid();
        self.write(&format!("{pid}/status"), &format!("Uid:\t{uid}\t{uid}\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\n"));
        let line = format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 9000000 3 -1 4096 8192 {stack}");
        self.write(&format!("{pid}/stat"), &format!("{line}{} 0 0 0 0\n", " 7".repeat(20)));
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
    assert_eq!(process.uid, Some(Uid(1000)));
    assert_eq!(process.command_line.as_deref(), Some("job-\u{fffd} --token ***"));
    assert_eq!(process.host_cpu, Some(Duration::from_secs(2)));
    assert_eq!(process.host_memory, Some(crate::units::Bytes(3 * rustix::param::page_size() as u64)));
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
    assert_eq!((&*first.command, &*second.command), ("python3", "vim"));
}

#[test]
fn a_process_that_renames_itself_keeps_the_name_it_was_first_seen_with() {
    let forged = Forged::new();
    let mut processes = Processes::default();
    forged.process(7, 1, "python3", SESSION);
    forged.read(&mut processes, 7, false).unwrap();
    forged.started(7, 1, "sshd", 500);
    let renamed = forged.read(&mut processes, 7, false).unwrap();
    assert_eq!(&*renamed.command, "python3");
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
    if !geteuid().is_root() {
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

#[test]
fn what_shows_in_nothing_is_read_again_before_long_and_for_an_act_at_once() {
    let forged = Forged::new();
    forged.process(7, 1, "python3", SESSION);
    forged.traced(7, 100);
    forged.runs(7, "/bin/true");
    let (mut processes, mut others) = (Processes::default(), Processes::default());
    let first = forged.follow(&mut processes, 7);
    assert_eq!(forged.follow(&mut others, 7), first);
    forged.runs(7, "/bin/false");
    assert_eq!(forged.follow(&mut processes, 7), first);
    assert_ne!(forged.read(&mut others, 7, false).unwrap().executable, first.executable);
    let cycles = (0..TRUSTED).position(|_| forged.follow(&mut processes, 7).executable != first.executable);
    assert!(cycles.is_some());
    forged.runs(7, "/bin/true");
    let cycles = (0..=TRUSTED).position(|_| forged.follow(&mut processes, 7).executable == first.executable);
    assert_eq!(cycles, Some(usize::from(TRUSTED)));
}

#[test]
fn what_shows_is_read_in_the_cycle_in_which_it_shows() {
    let forged = Forged::new();
    for (pid, change) in [(7, "image"), (8, "cgroup"), (9, "standpoint")] {
        forged.process(pid, 1, "python3", SESSION);
        forged.traced(pid, 100);
        let mut processes = Processes::default();
        let first = forged.follow(&mut processes, pid);
        assert_eq!((first.confidence, first.protection), (Confidence::High, None));
        forged.runs(pid, "/bin/true");
        forged.write(&format!("{pid}/cmdline"), "other\0");
        assert_eq!(forged.follow(&mut processes, pid), first, "{change}");
        match change {
            "image" => forged.traced(pid, 200),
            "cgroup" => forged.write(&format!("{pid}/cgroup"), DOCKER),
            _ => forged.link("100/ns/user", "user:[1]"),
        }
        let second = forged.follow(&mut processes, pid);
        assert_eq!((&second.command, second.executable.as_deref()), (&first.command, Some("/bin/true")), "{change}");
        assert_eq!(second.command_line.as_deref(), Some("other"), "{change}");
        assert_eq!(second.confidence == Confidence::High, change == "image", "{change}");
    }
}

#[test]
fn of_a_process_that_was_read_a_moment_ago_only_its_identity_and_its_program_are_read() {
    let forged = Forged::new();
    forged.process(7, 1, "python3", SESSION);
    forged.traced(7, 100);
    let mut processes = Processes::default();
    let at = forged.later();
    let mut follow = |at| processes.follow(&forged.procfs, &forged.standpoint(), 7, false, at).unwrap();
    let first = follow(at).unwrap();
    forged.write("7/cgroup", DOCKER);
    assert_eq!(follow(at), Ok(first.clone()));
    assert_eq!(follow(at + FRESH).unwrap().confidence, Confidence::Low);
    // Another image is another program, and another start time another process.
    let at = at + FRESH;
    forged.write("7/cgroup", SESSION);
    forged.traced(7, 200);
    assert_eq!(follow(at).unwrap().confidence, Confidence::High);
    forged.started(7, 1, "vim", 900);
    assert_ne!(follow(at).unwrap().id, first.id);
}

/// A shell that does the rest of its script when it is told to.
struct Shell(Child);

impl Shell {
    fn new(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo; read go; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Self(command.spawn().unwrap());
        // It runs, and is not about to.
        shell.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        shell
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn goes_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_process_that_execs_is_seen_as_the_new_program_in_the_next_cycle() {
    let procfs = Procfs::new("/proc");
    let standpoint = Standpoint::of(&procfs, std::process::id() as i32);
    for (script, becomes) in [("exec sleep 60", "sleep 60"), ("exec sh -c 'read go' again", "sh -c read go again")] {
        let mut shell = Shell::new(script);
        let pid = shell.pid();
        let mut processes = Processes::default();
        // An exec is seen at once, however lately it was read.
        let at = Instant::now();
        let mut follow = || processes.follow(&procfs, &standpoint, pid, false, at).unwrap().unwrap();
        let first = follow();
        assert_eq!(follow(), Process { host_cpu: follow().host_cpu, ..first.clone() });
        shell.goes_on();
        let line = || fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().replace('\0', " ");
        let limit = Instant::now() + Duration::from_secs(10);
        while line().trim_end() != becomes {
            assert!(Instant::now() < limit, "it still is {}", line());
            thread::sleep(Duration::from_millis(5));
        }
        let second = follow();
        assert_eq!(second.command_line.as_deref(), Some(becomes));
        assert_eq!(second.executable == first.executable, becomes.starts_with("sh"), "{:?}", second.executable);
        assert_eq!((second.id, second.command), (first.id, first.command));
        drop(shell);
        assert_eq!(processes.follow(&procfs, &standpoint, pid, false, at).unwrap(), Err(Unseen::Exited));
    }
}

#[test]
fn a_process_that_changes_its_user_is_his_before_long() {
    use rustix::thread::{gettid, set_thread_uid};
    // Only root can become anybody.
    if !geteuid().is_root() {
        return;
    }
    let procfs = Procfs::new("/proc");
    let standpoint = Standpoint::of(&procfs, std::process::id() as i32);
    let ((send, go), (tell, told)) = (channel(), channel());
    // To the kernel's credentials a thread is a process of its own.
    let other = thread::spawn(move || {
        tell.send(gettid().as_raw_pid()).unwrap();
        while let Ok(uid) = go.recv() {
            set_thread_uid(uid).unwrap();
            tell.send(0).unwrap();
        }
    });
    let pid = told.recv().unwrap();
    let mut processes = Processes::default();
    let mut at = Instant::now();
    let mut uid = || {
        at += FRESH;
        processes.follow(&procfs, &standpoint, pid, false, at).unwrap().unwrap().uid
    };
    assert_eq!([uid(), uid()], [Some(Uid(0)); 2]);
    send.send(rustix::fs::Uid::from_raw(4242)).unwrap();
    told.recv().unwrap();
    assert_eq!([uid(), uid()], [Some(Uid(4242)); 2]);
    drop(send);
    other.join().unwrap();
}
