//! A process on a terminal of its own.

use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::unistd::{Uid, chown, geteuid};

use super::Error;
use super::node::Role;

/// Below `nobody`, where hosts have no accounts.
const LAST_UID: u32 = 65_533;

/// What a start may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Actor {
    pub role: &'static Role,
    pub uid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub started: u64,
    /// Whether it was told something that is about it.
    pub warned: bool,
    pub ended: Option<ExitStatus>,
    child: Child,
    master: PtyMaster,
    /// What has arrived and may go on.
    arrived: String,
}

impl Actor {
    /// Under a uid of its own if this is root.
    pub fn start(role: &'static Role, index: usize) -> Result<Self, Error> {
        let own = geteuid();
        let uid = if own.is_root() { LAST_UID - index as u32 } else { own.as_raw() };
        let (master, slave) = terminal(uid).map_err(Error::Terminal)?;
        // A new session, whose terminal hangs up when nobody has its other side any more: then the kernel ends it.
        let mut command = Command::new("setsid");
        // Under nohup(1) it would not hear that.
        command.args(["--ctty", "env", "--default-signal=HUP", "sleep", "86400"]).current_dir("/");
        let copy = || slave.try_clone().map_err(Error::Terminal);
        command.stdin(copy()?).stdout(copy()?).stderr(copy()?);
        if own.is_root() {
            command.uid(uid).gid(uid);
        }
        let child = command.spawn().map_err(|source| Error::Start { program: "setsid", source })?;
        let arrived = String::new();
        let mut actor = Self { role, uid, started: 0, warned: false, ended: None, child, master, arrived };
        actor.started = actor.settled().ok_or(Error::Silent("a process"))?;
        Ok(actor)
    }

    /// Waits until it runs what it is to run; its start time.
    fn settled(&self) -> Option<u64> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
            if stat.contains("(sleep)") {
                return stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok();
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What has arrived at its terminal, once nothing more comes.
    pub fn message(&mut self) -> Option<String> {
        let mut buffer = [0; 4096];
        // An error means that there is nothing more, now or for ever.
        if let Ok(length @ 1..) = self.master.read(&mut buffer) {
            self.arrived += &String::from_utf8_lossy(&buffer[..length]);
            return None;
        }
        let message = std::mem::take(&mut self.arrived).replace(['\r', '\u{7}'], "").trim().to_owned();
        (!message.is_empty()).then_some(message)
    }

    /// Takes a message that names it for a warning.
    pub fn heed(&mut self, message: &str) {
        let named = format!("pid {}", self.pid());
        let names = |word: &str| word.starts_with(|next: char| !next.is_ascii_digit()) || word.is_empty();
        self.warned |= message.split(&named).skip(1).any(names);
    }

    /// How it ended, the first time that this is asked after it has.
    pub fn has_just_ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.child.try_wait().ok().flatten();
        self.ended
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Once it was waited for, its pid may be somebody else's; std knows that and does nothing.
        let _: io::Result<()> = self.child.kill();
        let _: io::Result<_> = self.child.wait();
    }
}

/// A pseudo-terminal of somebody who takes messages.
fn terminal(uid: u32) -> io::Result<(PtyMaster, File)> {
    let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let path = ptsname_r(&master)?;
    let slave = File::options().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(&path)?;
    if geteuid().is_root() {
        chown(path.as_str(), Some(Uid::from_raw(uid)), None)?;
    }
    fs::set_permissions(&path, Permissions::from_mode(0o620))?;
    Ok((master, slave))
}
