//! One more look at a process before it is hit: what `/proc` says of it now.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::policy::Signal;
use crate::units::Uid;

/// Where `/proc` is.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
}

/// What matters of a process for a signal (proc_pid_stat(5), proc_pid_status(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    pub started: u64,
    pub state: char,
    pub threads: u64,
    /// The real uid.
    pub uid: Uid,
    /// It is the first process of a PID namespace below the agent's.
    pub first_of_namespace: bool,
    blocked: u64,
    ignored: u64,
    caught: u64,
    /// Its executable can be named: else nobody can tell what it is.
    pub executable: bool,
}

impl Proc {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The process that has this pid now, or none.
    pub fn look(&self, pid: i32) -> io::Result<Option<Sight>> {
        let (Some(stat), Some(status)) = (self.read(pid, "stat")?, self.read(pid, "status")?) else { return Ok(None) };
        let executable = fs::read_link(self.path(pid, "exe")).is_ok();
        let sight = parse(&stat, &status).map(|sight| Sight { executable, ..sight });
        sight.map(Some).ok_or_else(|| io::Error::other(format!("/proc/{pid} is not as proc(5) says")))
    }

    fn path(&self, pid: i32, file: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(file)
    }

    fn read(&self, pid: i32, file: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(pid, file)) {
            Ok(content) => Ok(Some(content)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A process that exits takes its files with it: ENOENT on opening, ESRCH on reading.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn parse(stat: &[u8], status: &[u8]) -> Option<Sight> {
    // A process chooses its name, brackets and spaces included; nothing after it holds a bracket.
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let status = String::from_utf8_lossy(status);
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let mask = |key| u64::from_str_radix(line(key)?, 16).ok();
    let pids: Vec<&str> = line("NSpid")?.split_whitespace().collect();
    Some(Sight {
        started: field(22)?.parse().ok()?,
        state: field(3)?.chars().next()?,
        threads: field(20)?.parse().ok()?,
        uid: Uid(line("Uid")?.split_whitespace().next()?.parse().ok()?),
        first_of_namespace: pids.len() > 1 && pids.last() == Some(&"1"),
        blocked: mask("SigBlk")?,
        ignored: mask("SigIgn")?,
        caught: mask("SigCgt")?,
        executable: false,
    })
}

impl Sight {
    /// It has ended and only waits to be reaped. A leader that ended before its threads is no such process.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }

    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    pub fn catches(&self, signal: Signal) -> bool {
        self.caught & bit(signal) != 0
    }

    /// Why the signal may bring nothing, for the record.
    pub fn remarks(&self, signal: Signal) -> Vec<&'static str> {
        let deaf = self.first_of_namespace && signal != Signal::Kill && !self.catches(signal);
        let told = [
            (deaf, "it is the first process of a PID namespace and has no handler: it does not hear this signal"),
            (self.ignored & bit(signal) != 0, "it ignores this signal"),
            (self.blocked & bit(signal) != 0, "it blocks this signal"),
            (self.is_stopped(), "it was stopped"),
            (matches!(self.state, 'Z'), "its leader has ended, its threads have not"),
        ];
        told.into_iter().filter(|(is, _)| *is).map(|(_, remark)| remark).collect()
    }
}

/// Its place in the masks of `/proc/<pid>/status`.
fn bit(signal: Signal) -> u64 {
    1 << (super::pidfd::number(signal).as_raw() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tx\nUid:\t1000\t0\t0\t0\nNSpid:\t4242\t1\nSigBlk:\t0000000000000000\n\
        SigIgn:\t0000000000004000\nSigCgt:\t0000000000000200\n";

    fn stat(name: &str, state: char, threads: u64) -> Vec<u8> {
        format!("4242 ({name}) {state} 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0\n").into_bytes()
    }

    #[test]
    fn a_name_forges_neither_state_nor_start() {
        for name in ["x", "foo) Z ", ") S 1 7", "a\nb (c", "((((", ""] {
            let sight = parse(&stat(name, 'R', 3), STATUS).unwrap();
            assert_eq!((sight.started, sight.state, sight.threads), (777, 'R', 3), "{name}");
        }
        assert_eq!(parse(b"4242 (x) R", STATUS), None);
        assert_eq!(parse(&stat("x", 'R', 1), b"Name:\tx\n"), None);
    }

    #[test]
    fn a_leader_that_ended_before_its_threads_is_alive() {
        assert!(parse(&stat("x", 'Z', 1), STATUS).unwrap().is_dead());
        assert!(!parse(&stat("x", 'Z', 2), STATUS).unwrap().is_dead());
    }

    #[test]
    fn the_first_process_of_a_namespace_without_a_handler_does_not_hear() {
        let sight = parse(&stat("x", 'T', 1), STATUS).unwrap();
        assert_eq!(
            sight.remarks(Signal::Term),
            [
                "it is the first process of a PID namespace and has no handler: it does not hear this signal",
                "it ignores this signal",
                "it was stopped"
            ]
        );
        assert_eq!(sight.remarks(Signal::Kill), ["it was stopped"]);
        assert!(sight.catches(Signal::Usr1));
        assert_eq!(sight.remarks(Signal::Usr1), ["it was stopped"]);
    }

    #[test]
    fn a_pid_without_a_process_is_nobody() {
        assert_eq!(Proc::new("/proc").look(i32::MAX).unwrap(), None);
        assert!(!Proc::new("/proc").look(std::process::id() as i32).unwrap().unwrap().is_dead());
    }
}
