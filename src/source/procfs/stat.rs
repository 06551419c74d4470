//! `/proc/<pid>/stat`, from the last `)`: the name before it is whatever its user chose.

use std::time::Duration;

use rustix::param::page_size;

use crate::snapshot::process::TICKS_PER_SECOND;
use crate::units::Bytes;

/// A thread of the kernel itself (`include/linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The last field that is read here.
const LAST: usize = 48;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    /// The first 15 bytes of the name that the process gives itself, broken UTF-8 replaced.
    pub name: String,
    pub state: char,
    pub parent: i32,
    /// Its controlling terminal, as the kernel packs a device number; 0: none.
    pub terminal: u32,
    pub kernel_thread: bool,
    pub threads: u64,
    /// Clock ticks from boot to its start.
    pub started: u64,
    /// User and system time.
    pub cpu: Duration,
    /// Resident memory; none for kernel threads and zombies, which have no memory of their own.
    pub resident: Option<Bytes>,
    pub image: Option<Image>,
}

/// Where the kernel laid out the program in memory and its arguments on the stack, at random as a rule: after an exec they
/// lie elsewhere. Told only of whom the agent may trace, and not of zombies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    code: (u64, u64),
    stack: u64,
    brk: u64,
    arguments: u64,
}

impl Stat {
    pub fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = text.get(open + 1..close)?;
        let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
        // Counted as proc_pid_stat(5) does: the state is the third.
        let mut fields = [None; LAST - 2];
        for (place, field) in fields.iter_mut().zip(rest.split_ascii_whitespace()) {
            *place = Some(field);
        }
        let field = |number: usize| fields.get(number - 3).copied().flatten();
        let number = |at: usize| field(at)?.parse::<u64>().ok();
        let id = |at: usize| field(at)?.parse::<i32>().ok();
        let ticks = number(14)?.checked_add(number(15)?)?;
        let memory = number(23).filter(|virtual_memory| *virtual_memory > 0);
        let pages = memory.and_then(|_| number(24));
        Some(Self {
            pid: std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?,
            name: String::from_utf8_lossy(name).into_owned(),
            state: field(3)?.chars().next()?,
            parent: id(4)?,
            terminal: id(7)?.cast_unsigned(),
            kernel_thread: number(9)? & PF_KTHREAD != 0,
            threads: number(20)?,
            started: number(22)?,
            cpu: Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?),
            resident: pages.map(|pages| Bytes(pages.saturating_mul(page_size() as u64))),
            image: Image::parse(number),
        })
    }

    /// Dead already, though its parent has not taken note, or its other threads live on in the kernel.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

impl Image {
    fn parse(number: impl Fn(usize) -> Option<u64>) -> Option<Self> {
        let stack = number(28).filter(|start| *start > 0)?;
        Some(Self { code: (number(26)?, number(27)?), stack, brk: number(47)?, arguments: number(48)? })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        id: String,
        raw_b64: String,
        expect: Expected,
    }

    #[derive(Deserialize)]
    struct Expected {
        pid: i32,
        comm: String,
        state: char,
        ppid: i32,
        num_threads: u64,
        starttime: u64,
        #[serde(default)]
        kernel_thread: bool,
    }

    #[test]
    fn no_name_that_a_user_can_choose_forges_a_field() {
        let table = include_str!("../../../tests/cases/stat_lines.yaml");
        let cases: Vec<Case> = serde_yaml::from_str(table).unwrap();
        assert!(!cases.is_empty());
        for Case { id, raw_b64, expect } in cases {
            let raw = base64::engine::general_purpose::STANDARD.decode(raw_b64).unwrap();
            let stat = Stat::parse(&raw).unwrap_or_else(|| panic!("{id}"));
            let seen = (stat.pid, stat.name, stat.state, stat.parent, stat.threads, stat.started, stat.kernel_thread);
            let Expected { pid, comm, state, ppid, num_threads, starttime, kernel_thread } = expect;
            assert_eq!(seen, (pid, comm, state, ppid, num_threads, starttime, kernel_thread), "{id}");
        }
    }

    #[test]
    fn what_is_no_line_of_it_is_not_understood() {
        for text in ["", "7", "7 (a", "7 (a)", "7 (a) S 1 7", ")(", "x (a) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 9"] {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text}");
        }
    }
}
