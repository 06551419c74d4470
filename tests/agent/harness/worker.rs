//! A real process that the simulated driver lists on a card.

use super::node::{Who, gib};
use super::terminal::Terminal;
use super::wait::eventually;
use nvml_sim::Process;
use nvml_sim::scenario::ProcessMemory;
use nvml_sim::units::{Load, Percent};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Sleeps, and ends at the first signal. Every script ends by itself after two minutes.
pub const SLEEPS: &str = "exec sleep 120";

/// Writes down when each TERM came, and goes on.
pub const IGNORES_TERM: &str = r#"
trap 'read up idle </proc/uptime; echo "TERM $up"' TERM
echo ready
n=0; while [ $n -lt 1200 ]; do n=$((n + 1)); sleep 0.1 & wait; done
"#;

pub struct Worker {
    child: Child,
    pub terminal: Option<Terminal>,
    output: PathBuf,
}

impl Worker {
    /// Starts a shell under an account, as root; as anybody else, under one's own.
    pub(super) fn start(who: Who, script: &str, dir: &Path, on_terminal: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let output = dir.join(format!("{}-{}.out", who.name, NUMBER.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(if on_terminal { "setsid" } else { "sh" });
        if on_terminal {
            command.args(["--ctty", "sh"]);
        }
        command.args(["-c", script]).current_dir("/");
        command.stdout(File::create(&output).unwrap()).stderr(Stdio::null()).stdin(Stdio::null());
        let root = nix::unistd::geteuid().is_root();
        let terminal = on_terminal.then(|| Terminal::open(root.then_some(who.uid)));
        if let Some(terminal) = &terminal {
            command.stdin(terminal.slave());
        }
        if root {
            command.uid(who.uid).gid(who.uid);
        }
        let worker = Self { child: command.spawn().unwrap(), terminal, output };
        // What setsid starts takes its place, and only then is it the program that the agent is to see; a trap that is
        // not yet set catches nothing.
        eventually("the program runs", || (worker.executable()?.file_name()? != "setsid").then_some(()));
        if script.contains("echo ready") {
            eventually("the script is ready", || worker.output().contains("ready").then_some(()));
        }
        worker
    }

    /// Starts a program that may not be a shell, as somebody.
    pub fn program(who: Who, program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).uid(who.uid).gid(who.uid).current_dir("/").stdin(Stdio::null());
        Self { child: command.spawn().unwrap(), terminal: None, output: PathBuf::from("/dev/null") }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn executable(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid())).ok()
    }

    /// Field 22 of `/proc/PID/stat`.
    pub fn started(&self) -> u64 {
        started(self.pid()).expect("it runs")
    }

    /// As the driver lists it, busy and with so much memory.
    pub fn with(&self, gibibytes: u64) -> Process {
        Process {
            pid: self.pid(),
            started: Some(self.started()),
            memory: ProcessMemory::Used(gib(gibibytes)),
            utilization: Some(Load::Steady(Percent(90))),
            ..Process::default()
        }
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The signal that ended it, once it has.
    #[track_caller]
    pub fn ended_by(&mut self) -> Option<i32> {
        let pid = self.pid();
        eventually(&format!("process {pid} ends"), || self.child.try_wait().unwrap()).signal()
    }

    /// What it has written so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// When each TERM came, in seconds since boot.
    pub fn terms(&self) -> Vec<f64> {
        let output = self.output();
        output.lines().filter_map(|line| line.strip_prefix("TERM ")).map(|at| at.parse().unwrap()).collect()
    }

    pub fn terminal(&self) -> &Terminal {
        self.terminal.as_ref().expect("it was started on a terminal")
    }

    /// Ends it by its own pid.
    pub fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_alive() {
            self.end();
        }
    }
}

pub fn started(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A copy of `sleep` under another name, that root owns if this is root.
pub fn sleep_named(dir: &Path, name: impl AsRef<Path>) -> PathBuf {
    let copy = dir.join(name);
    fs::copy("/bin/sleep", &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}
