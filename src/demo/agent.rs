//! The same program as `gpuwarden serve`, for the time of the demo.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::Error;
use super::node::Folder;

/// What its start may take on a slow machine, and its end.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Agent {
    child: Child,
    log: PathBuf,
    audit: PathBuf,
    // The last to go.
    _folder: Folder,
}

/// A signal that was sent, or not.
#[derive(Debug, PartialEq)]
pub struct Act {
    pub pid: u64,
    pub signal: String,
    pub outcome: String,
}

impl Agent {
    /// Starts it, and waits until it serves.
    pub fn start(folder: Folder, driver: &Path, listen: &[SocketAddr]) -> Result<Self, Error> {
        let (log, audit) = (folder.file("agent.log"), folder.file("state/audit.jsonl"));
        let stderr = File::create(&log).map_err(|source| Error::Write { path: log.clone(), source })?;
        // It gets TERM when its parent dies.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(env::current_exe().map_err(Error::Program)?);
        command.arg("serve").arg(with("--config.file=", &folder.file("gpuwarden.yaml")));
        command.arg(with("--nvml.library=", driver));
        command.args(listen.iter().map(|address| format!("--web.listen-address={address}")));
        command.env("NVML_SIM_SCENARIO", folder.file("scenario.yaml")).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
        let child = command.spawn().map_err(|source| Error::Start { program: "setpriv", source })?;
        let mut agent = Self { child, log, audit, _folder: folder };
        let began = Instant::now();
        while listen.iter().any(|address| TcpStream::connect(address).is_err()) {
            agent.lives()?;
            if began.elapsed() > PATIENCE {
                return Err(Error::Silent("the agent"));
            }
            thread::sleep(PAUSE);
        }
        Ok(agent)
    }

    pub fn lives(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => {
                let log = fs::read_to_string(&self.log);
                Err(Error::Ended(log.unwrap_or_else(|error| format!("its log cannot be read: {error}"))))
            }
        }
    }

    /// All acts so far, with what came of them.
    pub fn acts(&self) -> Vec<Act> {
        // Not there before the first record.
        let text = fs::read_to_string(&self.audit).unwrap_or_default();
        text.lines().filter_map(act).collect()
    }
}

fn with(flag: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(flag);
    argument.push(path);
    argument
}

fn act(line: &str) -> Option<Act> {
    let record: Value = serde_json::from_str(line).ok()?;
    let word = |key: &str| record[key].as_str().map(str::to_owned);
    let signal = word("action").filter(|action| ["TERM", "KILL"].contains(&action.as_str()))?;
    let outcome = match word("reason") {
        Some(reason) => format!("{} ({reason})", word("outcome")?),
        None => word("outcome")?,
    };
    Some(Act { pid: record["targets"][0]["pid"].as_u64()?, signal, outcome })
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Before it is waited for the pid is nobody else's.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _: nix::Result<()> = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
            let began = Instant::now();
            while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < PATIENCE {
                thread::sleep(PAUSE);
            }
        }
        let _: io::Result<()> = self.child.kill();
        let _: io::Result<_> = self.child.wait();
    }
}

#[test]
fn an_act_is_told_by_its_outcome() {
    let line = r#"{"kind":"outcome","action":"TERM","targets":[{"pid":7}],"outcome":"refused","reason":"stale"}"#;
    let told = Act { pid: 7, signal: "TERM".into(), outcome: "refused (stale)".into() };
    assert_eq!(act(line), Some(told));
    assert_eq!(act(&line.replace("TERM", "warn")), None);
    assert_eq!(act(r#"{"kind":"intent","action":"TERM","targets":[{"pid":7}]}"#), None);
    assert_eq!(act("{"), None);
}
