//! `/proc/<pid>/status`: owner, signals, and its pid in each namespace.

use crate::units::Uid;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The real uid.
    pub uid: Uid,
    /// Its pid in each namespace it is in, the innermost last.
    pub namespace_pids: Vec<i32>,
    pub signals: Signals,
}

/// What it does with signals, a bit each, bit 0 for signal 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signals {
    pub blocked: u64,
    pub ignored: u64,
    pub caught: u64,
}

impl Signals {
    pub fn blocks(self, signal: i32) -> bool {
        has(self.blocked, signal)
    }

    pub fn ignores(self, signal: i32) -> bool {
        has(self.ignored, signal)
    }

    pub fn catches(self, signal: i32) -> bool {
        has(self.caught, signal)
    }
}

fn has(mask: u64, signal: i32) -> bool {
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

impl Status {
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        // The kernel escapes line ends in the name, so that no name can begin a line.
        let value = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim()).next()
        };
        let mask = |name: &str| u64::from_str_radix(value(name)?, 16).ok();
        let pids = value("NSpid").map(|pids| pids.split_ascii_whitespace().map_while(|pid| pid.parse().ok()).collect());
        Some(Self {
            uid: Uid(value("Uid")?.split_ascii_whitespace().next()?.parse().ok()?),
            namespace_pids: pids.unwrap_or_else(Vec::new),
            signals: Signals { blocked: mask("SigBlk")?, ignored: mask("SigIgn")?, caught: mask("SigCgt")? },
        })
    }

    /// Whether it is the first process of a namespace inside the agent's: the kernel keeps signals from it that it has
    /// no handler for.
    pub fn is_first_of_a_namespace(&self) -> bool {
        self.namespace_pids.len() > 1 && self.namespace_pids.last() == Some(&1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tUid:\\t0\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t4242\nUid:\t1000\t0\t0\t0\n\
        Gid:\t1000\t1000\t1000\t1000\nNSpid:\t4242\t1\nSigBlk:\t0000000000000001\n\
        SigIgn:\t0000000000001000\nSigCgt:\t0000000000004000\n";

    #[test]
    fn the_owner_is_the_real_uid() {
        let status = Status::parse(STATUS.as_bytes()).unwrap();
        assert_eq!(status.uid, Uid(1000));
        assert!(status.is_first_of_a_namespace());
        let (hup, pipe, term) = (1, 13, 15);
        let signals = status.signals;
        assert!(signals.blocks(hup) && signals.ignores(pipe) && signals.catches(term));
        assert!(!signals.blocks(term) && !signals.ignores(term) && !signals.catches(0) && !signals.catches(65));
    }

    #[test]
    fn without_an_owner_nothing_is_known() {
        assert_eq!(Status::parse(b"Name:\tpython3\n"), None);
        assert_eq!(Status::parse(b""), None);
    }
}
