//! One more look at a process before it is hit: what the kernel says of it now.

use std::io;

use crate::policy::Signal;
use crate::snapshot::ProcessId;
use crate::source::procfs::{Procfs, Stat, Status};
use crate::units::Uid;

/// What matters of a process for a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    stat: Stat,
    status: Status,
    runs_a_file: bool,
}

impl Sight {
    /// The process that has this pid now, or none.
    pub fn of(procfs: &Procfs, pid: i32) -> io::Result<Option<Self>> {
        let (Some(stat), Some(status)) = (procfs.stat(pid)?, procfs.status(pid)?) else { return Ok(None) };
        let runs_a_file = procfs.executable(pid)?.is_some();
        Ok(Some(Self { stat, status, runs_a_file }))
    }

    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.stat.pid, started: self.stat.started }
    }

    /// The real uid.
    pub fn uid(&self) -> Uid {
        self.status.uid
    }

    /// It has ended and only waits to be reaped. A leader that ended before its threads is no such process.
    pub fn is_dead(&self) -> bool {
        self.stat.is_zombie() && !self.outlives_its_leader()
    }

    /// Nobody can tell what it is. A leader that has ended runs no file, its threads still do.
    pub fn is_nameless(&self) -> bool {
        !self.runs_a_file && !self.outlives_its_leader()
    }

    pub fn is_stopped(&self) -> bool {
        self.stat.state == 'T'
    }

    pub fn catches(&self, signal: Signal) -> bool {
        self.status.signals.catches(number(signal))
    }

    /// Why the signal may bring nothing, for the record.
    pub fn remarks(&self, signal: Signal) -> Vec<String> {
        let signals = self.status.signals;
        let deaf = self.status.is_first_of_a_namespace() && signal != Signal::Kill && !self.catches(signal);
        let told = [
            (deaf, "it is the first process of a PID namespace and has no handler: it does not hear this signal"),
            (signals.ignores(number(signal)), "it ignores this signal"),
            (signals.blocks(number(signal)), "it blocks this signal"),
            (self.is_stopped(), "it was stopped"),
            (self.stat.is_zombie() && self.outlives_its_leader(), "its leader has ended, its threads have not"),
        ];
        told.into_iter().filter(|(is, _)| *is).map(|(_, remark)| remark.to_owned()).collect()
    }

    fn outlives_its_leader(&self) -> bool {
        self.stat.is_zombie() && self.stat.threads > 1
    }
}

fn number(signal: Signal) -> i32 {
    super::pidfd::number(signal).as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tx\nUid:\t1000\t0\t0\t0\nNSpid:\t4242\t1\nSigBlk:\t0000000000000000\n\
        SigIgn:\t0000000000004000\nSigCgt:\t0000000000000200\n";

    fn sight(state: char, threads: u64) -> Sight {
        let stat = format!("4242 (x) {state} 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0\n");
        let (stat, status) = (Stat::parse(stat.as_bytes()).unwrap(), Status::parse(STATUS).unwrap());
        Sight { stat, status, runs_a_file: false }
    }

    #[test]
    fn a_leader_that_ended_before_its_threads_is_alive() {
        assert!(sight('Z', 1).is_dead());
        assert!(!sight('Z', 2).is_dead());
        assert_eq!(sight('Z', 2).remarks(Signal::Kill), ["its leader has ended, its threads have not"]);
    }

    #[test]
    fn a_process_that_runs_no_file_is_nameless_unless_its_leader_has_ended() {
        assert!(sight('R', 1).is_nameless());
        assert!(!sight('Z', 2).is_nameless());
    }

    #[test]
    fn the_first_process_of_a_namespace_without_a_handler_does_not_hear() {
        let sight = sight('T', 1);
        assert_eq!(
            sight.remarks(Signal::Term),
            [
                "it is the first process of a PID namespace and has no handler: it does not hear this signal",
                "it ignores this signal",
                "it was stopped"
            ]
        );
        assert_eq!(sight.remarks(Signal::Kill), ["it was stopped"]);
        assert_eq!(sight.remarks(Signal::Usr1), ["it was stopped"]);
    }

    #[test]
    fn a_pid_without_a_process_is_nobody() {
        let procfs = Procfs::new("/proc");
        assert_eq!(Sight::of(&procfs, i32::MAX).unwrap(), None);
        assert!(!Sight::of(&procfs, std::process::id() as i32).unwrap().unwrap().is_dead());
    }
}
