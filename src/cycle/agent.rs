//! What the agent itself takes of its host, for the standard `process_*` metrics.

use std::fs;
use std::time::Duration;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use crate::snapshot::process::TICKS_PER_SECOND;
use crate::units::Bytes;

/// As `/proc/self` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Agent {
    pub cpu: Option<Duration>,
    pub resident: Option<Bytes>,
    pub virtual_memory: Option<Bytes>,
    pub open_fds: Option<u64>,
    /// The soft limit; `None` where there is none.
    pub max_fds: Option<u64>,
    /// Since boot.
    pub started: Option<Duration>,
    pub threads: Option<u64>,
}

impl Agent {
    /// Reads `/proc/self`; the limit, getrlimit(2).
    pub fn observe() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let mut agent = stat.map_or_else(Self::default, |stat| Self::from_stat(&stat));
        agent.resident = fs::read_to_string("/proc/self/statm").ok().and_then(|statm| resident(&statm));
        agent.max_fds = getrlimit(Resource::Nofile).current;
        agent.open_fds = open_fds();
        agent
    }

    /// `/proc/self/stat`, of which the name in parentheses may contain anything.
    fn from_stat(stat: &str) -> Self {
        let after_name = stat.rsplit_once(')').map(|(_, rest)| rest);
        let fields: Vec<&str> = after_name.into_iter().flat_map(str::split_whitespace).collect();
        // proc_pid_stat(5) counts from 1, and the third field is the first after the name.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = |number| field(number).map(|ticks| Duration::from_millis(ticks * (1000 / TICKS_PER_SECOND)));
        Self {
            cpu: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
            virtual_memory: field(23).map(Bytes),
            threads: field(20),
            started: ticks(22),
            ..Self::default()
        }
    }
}

/// How many there are, by the size of the directory, which Linux tells since 6.2 (proc_pid_fd(5)); before, it is 0.
fn open_fds() -> Option<u64> {
    let directory = "/proc/self/fd";
    let size = fs::metadata(directory).ok()?.len();
    if size > 0 { Some(size) } else { fs::read_dir(directory).ok().map(|entries| entries.count() as u64) }
}

/// Its second field, in pages. stat has a number of that name too, which since Linux 6.2 is an approximation.
fn resident(statm: &str) -> Option<Bytes> {
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(page_size() as u64).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let stat = "7 (a) S 1 (b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 3 0 4000 8192 300 18446744073709551615";
        let agent = Agent::from_stat(stat);
        assert_eq!(agent.cpu, Some(Duration::from_secs(3)));
        assert_eq!(agent.threads, Some(3));
        assert_eq!(agent.virtual_memory, Some(Bytes(8192)));
        assert_eq!(agent.started, Some(Duration::from_secs(40)));
    }

    #[test]
    fn what_cannot_be_read_is_absent() {
        assert_eq!(Agent::from_stat(""), Agent::default());
        assert_eq!(resident("9000"), None);
        assert_eq!(resident("9000 300 200 1 0 2 0\n"), Some(Bytes(300 * page_size() as u64)));
    }

    #[test]
    fn this_process_knows_itself() {
        let agent = Agent::observe();
        assert!(agent.cpu.is_some() && agent.resident.is_some() && agent.open_fds.is_some() && agent.threads.is_some());
    }
}
