//! A program that runs for the benchmark, and what it has cost so far.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use rustix::process::{Signal, set_parent_process_death_signal};

pub struct Program {
    child: Child,
}

impl Program {
    /// It ends with this value, and with the benchmark however that ends.
    pub fn start(mut command: Command) -> Self {
        let end_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec there is one system call.
        unsafe { command.pre_exec(end_with_us) };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// User and system time of all its threads, also of those that have ended: its CPU clock (clock_getcpuclockid(3)),
    /// which the scheduler keeps in nanoseconds.
    pub fn cpu(&self) -> Duration {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.pid() as i32)).unwrap();
        clock_gettime(clock).unwrap().into()
    }

    /// The same by thread, of those that live (the first number of `/proc/PID/task/TID/schedstat`), by name.
    pub fn cpu_by_thread(&self) -> Vec<(String, Duration)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut threads: Vec<(u32, String, Duration)> = tasks
            .map(|task| {
                let task = task.unwrap();
                let file = |name: &str| fs::read_to_string(task.path().join(name)).unwrap();
                let number = task.file_name().to_str().unwrap().parse().unwrap();
                let nanoseconds = file("schedstat").split(' ').next().unwrap().parse().unwrap();
                (number, file("comm").trim().to_owned(), Duration::from_nanos(nanoseconds))
            })
            .collect();
        threads.sort();
        threads.into_iter().map(|(_, name, cpu)| (name, cpu)).collect()
    }

    /// VmRSS of proc_pid_status(5), in KiB.
    pub fn resident(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        number.ok_or_else(|| io::Error::other(format!("no VmRSS in {status}")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_alive() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}
