//! `gpuwarden demo` as it is installed: the program in `bin`, the simulated driver in `lib/gpuwarden`.

use crate::harness::agent::free_address;
use crate::harness::node::{agent_binary, library};
use crate::harness::wait::within;
use crate::harness::{LIMIT, Page, eventually, http, root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Until all three have met their fate, on a busy machine.
const ALL_TOLD: Duration = Duration::from_secs(60);

struct Demo {
    /// The installation; what the demo makes for itself is below it too.
    prefix: TempDir,
    child: Child,
    address: SocketAddr,
}

impl Demo {
    /// As this user, or as another.
    fn start(uid: Option<u32>, arguments: &[&str]) -> Self {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, lib) = (prefix.path().join("bin"), prefix.path().join("lib/gpuwarden"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        // A copy, so that the library beside the binary is not there. Not made by this process: what it has open for
        // writing, a child of another thread's could hold open, and then it cannot be run.
        let copied = Command::new("cp").arg(agent_binary()).arg(bin.join("gpuwarden")).status().unwrap();
        assert!(copied.success());
        fs::copy(library(), lib.join("libnvml_sim.so")).unwrap();
        fs::create_dir(prefix.path().join("tmp")).unwrap();
        fs::set_permissions(prefix.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(prefix.path().join("tmp"), Permissions::from_mode(0o1777)).unwrap();

        let address = free_address();
        // As under nohup(1): whoever starts it may have it ignore that its terminal hangs up.
        let mut command = Command::new("env");
        command.arg("--ignore-signal=HUP").arg(bin.join("gpuwarden"));
        if let Some(uid) = uid {
            use std::os::unix::process::CommandExt;
            command.uid(uid).gid(uid);
        }
        command.arg("demo").arg(format!("--web.listen-address={address}")).args(arguments);
        command.env("TMPDIR", prefix.path().join("tmp")).current_dir("/");
        command.stdin(Stdio::null());
        command.stdout(File::create(prefix.path().join("out")).unwrap());
        command.stderr(File::create(prefix.path().join("err")).unwrap());
        let child = command.spawn().unwrap();
        Self { prefix, child, address }
    }

    fn said(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.prefix.path().join(name)).unwrap();
        read("out") + &read("err")
    }

    /// Waits until it has told something.
    #[track_caller]
    fn tells(&self, text: &str) {
        let told = within(ALL_TOLD, || self.said().contains(text).then_some(()));
        assert!(told.is_some(), "{text:?} is not in {}", self.said());
    }

    /// The pids of its children that hold cards, by card.
    fn cast(&self) -> Vec<u32> {
        self.tells("GPU 3: nobody.");
        let said = self.said();
        let pids = said.lines().filter_map(|line| line.trim().split_once(": pid ")?.1.split(' ').next()?.parse().ok());
        pids.take(3).collect()
    }

    /// The demo's agent: the process that listens under its name.
    fn agent(&self) -> u32 {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.child.id())).unwrap();
        let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        let is_agent = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap().windows(5).any(|w| w == b"serve");
        pids.into_iter().find(is_agent).unwrap()
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        fs::read_dir(self.prefix.path().join("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[track_caller]
    fn ends(&mut self, limit: Duration) -> ExitStatus {
        let ended = within(limit, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it does not end: {}", self.said()))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::SIGTERM);
            if within(LIMIT, || self.child.try_wait().unwrap()).is_none() {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
            }
        }
        if std::thread::panicking() {
            eprintln!("--- the demo said:\n{}---", self.said());
        }
    }
}

/// A zombie is dead, even where nobody asks how it ended.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// One is spared, one is warned, one is warned and then ended; and nothing is left.
fn shows_three_fates(uid: Option<u32>) {
    let mut demo = Demo::start(uid, &["--for", "60s"]);
    let cast = demo.cast();
    let [spared, warned, ended] = cast[..] else { panic!("{cast:?}") };
    demo.tells(&format!("the audit log: TERM to pid {ended}: done"));
    demo.tells(&format!("pid {ended} has ended (signal: 15 (SIGTERM))"));
    let page = Page::parse(&http::ask(demo.address, "GET", "/metrics").unwrap().body);
    assert_eq!(page.all("gpuwarden_gpu_up", &[]).filter(|sample| sample.value == 1.0).count(), 4);
    demo.signal(Signal::SIGINT);
    assert!(demo.ends(LIMIT).success());
    demo.tells(&format!("pid {spared} was spared, pid {warned} was warned, pid {ended} was warned and then ended."));
    demo.tells("Use only the GPUs that are assigned to you.");
    demo.tells("Do not hold a GPU that you do not use.");
    for pid in [spared, warned, ended] {
        assert!(!lives(pid), "{pid} is left");
    }
    assert_eq!(demo.leftovers(), <[PathBuf; 0]>::default());
}

#[test]
fn one_is_spared_one_is_warned_one_is_ended() {
    shows_three_fates(None);
}

#[test]
fn an_ordinary_user_sees_the_same() {
    if root("becoming another user") {
        shows_three_fates(Some(64_999));
    }
}

#[test]
fn a_demo_that_is_killed_leaves_nothing() {
    let mut demo = Demo::start(None, &[]);
    let (cast, agent) = (demo.cast(), demo.agent());
    demo.signal(Signal::SIGKILL);
    demo.ends(LIMIT);
    for pid in cast.into_iter().chain([agent]) {
        eventually(&format!("{pid} ends"), || (!lives(pid)).then_some(()));
    }
    eventually("its files go", || demo.leftovers().is_empty().then_some(()));
}

#[test]
fn a_demo_ends_when_its_time_is_over() {
    let mut demo = Demo::start(None, &["--for", "1s"]);
    assert!(demo.ends(LIMIT).success());
    demo.tells("the end: ");
    assert_eq!(demo.leftovers(), <[PathBuf; 0]>::default());
}

#[test]
fn a_port_that_is_taken_is_named_with_the_flag_that_chooses_another() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--web.listen-address={}", taken.local_addr().unwrap());
    let mut demo = Demo::start(None, &[&address]);
    assert_eq!(demo.ends(LIMIT).code(), Some(1));
    demo.tells(&taken.local_addr().unwrap().to_string());
    demo.tells("--web.listen-address");
    assert_eq!(demo.leftovers(), <[PathBuf; 0]>::default());
}
