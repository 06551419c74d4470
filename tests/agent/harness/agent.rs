//! `gpuwarden serve`.

use super::http::{self, Answer};
use super::node::{Node, agent_binary};
use super::page::Page;
use super::wait::{eventually, within};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

/// How long it may take to begin, and to end when it is asked to.
const PROMPT: Duration = Duration::from_secs(10);

pub struct Agent {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
}

impl Agent {
    pub(super) fn start(node: &Node, arguments: &[&str]) -> Self {
        // Somebody may take the port that was free a moment ago.
        let agent = (0..3).find_map(|_| Self::launch(node, arguments).serving());
        let agent = agent.unwrap_or_else(|| panic!("it does not serve: {}", log(&node.path("agent.log"))));
        eventually("the first cycle", || agent.try_page()?.value("gpuwarden_cycles_total", &[]).filter(|n| *n >= 1.0));
        agent
    }

    fn launch(node: &Node, arguments: &[&str]) -> Self {
        let address = free_address();
        let log = node.path("agent.log");
        let mut command = in_node(node);
        command.args(serve(node, address)).args(arguments);
        let file = File::options().create(true).append(true).open(&log).unwrap();
        Self { child: command.stderr(file).spawn().unwrap(), address, log }
    }

    /// `None` if it ends instead.
    fn serving(mut self) -> Option<Self> {
        let serves = within(PROMPT, || match self.child.try_wait().unwrap() {
            Some(_) => Some(false),
            None => self.get("/-/healthy").ok().map(|_| true),
        });
        (serves == Some(true)).then_some(self)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn get(&self, path: &str) -> std::io::Result<Answer> {
        http::ask(self.address, "GET", path)
    }

    fn try_page(&self) -> Option<Page> {
        self.get("/metrics").ok().map(|answer| Page::parse(&answer.body))
    }

    pub fn page(&self) -> Page {
        let answer = self.get("/metrics").unwrap();
        assert_eq!(answer.status, 200);
        Page::parse(&answer.body)
    }

    pub fn ready(&self) -> Answer {
        self.get("/-/ready").unwrap()
    }

    /// Waits for a page that shows something.
    #[track_caller]
    pub fn shows(&self, what: &str, shows: impl Fn(&Page) -> bool) -> Page {
        eventually(what, || Some(self.page()).filter(&shows))
    }

    /// Waits until so many cycles have begun and ended since.
    #[track_caller]
    pub fn cycles(&self, number: u32) -> Page {
        let cycles = |page: &Page| page.value("gpuwarden_cycles_total", &[]).unwrap();
        let now = cycles(&self.page());
        // The one that is under way began before.
        self.shows("more cycles", |page| cycles(page) > now + f64::from(number))
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Asks it to read its configuration again, and waits until it has: whether it took it.
    pub fn reload(&self) -> bool {
        let done = |log: &str| log.matches("reload").count();
        let before = done(&self.log());
        self.signal(Signal::SIGHUP);
        eventually("it says what came of the reload", || (done(&self.log()) > before).then_some(()));
        self.cycles(1).value("gpuwarden_config_last_reload_successful", &[]) == Some(1.0)
    }

    pub fn log(&self) -> String {
        log(&self.log)
    }

    /// Ends it as systemd does.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let ended = within(PROMPT, || self.child.try_wait().unwrap());
        ended.unwrap_or_else(|| panic!("it does not end: {}", self.log()))
    }

    /// Ends it without its knowing.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal(Signal::SIGTERM);
            if within(PROMPT, || self.child.try_wait().unwrap()).is_none() {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
            }
        }
        if thread::panicking() {
            eprintln!("--- the agent said:\n{}---", self.log());
        }
    }
}

fn log(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What `serve` is told.
pub fn serve(node: &Node, address: SocketAddr) -> Vec<OsString> {
    let flag = |name: &str, value: &dyn std::fmt::Display| OsString::from(format!("--{name}={value}"));
    vec![
        "serve".into(),
        flag("config.file", &node.path("gpuwarden.yaml").display()),
        flag("web.listen-address", &address),
        flag("nvml.library", &node.library.display()),
    ]
}

/// The program on the node: with its driver, and as root with its accounts, which hold in a mount namespace that it has
/// for itself.
pub fn in_node(node: &Node) -> Command {
    const ACCOUNTS: &str = r#"mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/group" /etc/group"#;
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", &format!("{ACCOUNTS} && {} && exec \"$@\"", node.before)])
            .arg(node.path(""))
            .arg(agent_binary());
        command
    } else {
        Command::new(agent_binary())
    };
    command.env("NVML_SIM_SCENARIO", node.scenario()).env_remove("NOTIFY_SOCKET");
    if let Some(socket) = &node.notify {
        command.env("NOTIFY_SOCKET", socket);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// A port of the loopback interface on which nobody listens.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}
