//! The node that all look at: cards that tell all they can, and processes that sleep on them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nvml_sim::scenario::ProcessMemory;
use nvml_sim::units::{Load, Percent};
use nvml_sim::{Gpu, Process};

use super::program::Program;
use crate::harness::Node;
use crate::harness::node::gib;

const CARD: &str = include_str!("h100.yaml");

/// How many cards, and how many processes on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub cards: usize,
    pub processes: usize,
}

impl Size {
    pub const fn new(cards: usize, processes: usize) -> Self {
        Self { cards, processes }
    }

    /// As `tests/bench --size` has it.
    pub fn short(self) -> String {
        format!("{}x{}", self.cards, self.processes)
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { cards, processes } = self;
        match processes % cards {
            0 => write!(f, "{cards} GPUs × {} processes", processes / cards),
            _ => write!(f, "{cards} GPUs, {processes} processes"),
        }
    }
}

/// The node, with the processes on it for so long at most.
pub struct Loaded {
    pub node: Node,
    /// Between two looks of everybody.
    pub interval: Duration,
    sleepers: Vec<Program>,
}

impl Loaded {
    pub fn new(size: Size, interval: Duration, life: Duration) -> Self {
        let sleepers: Vec<Program> = (0..size.processes).map(|_| sleeper(life)).collect();
        let mut node = Node::new(size.cards);
        let card: Gpu = serde_yaml::from_str(CARD).unwrap();
        let mut shares: Vec<Vec<Process>> = vec![Vec::new(); size.cards];
        for (number, sleeper) in sleepers.iter().enumerate() {
            shares[number % size.cards].push(process(sleeper.pid()));
        }
        node.change(|scenario| {
            scenario.defaults = card;
            for (card, processes) in scenario.gpus.iter_mut().zip(shares) {
                card.processes = processes;
            }
        });
        configure(&node, size, interval);
        Self { node, interval, sleepers }
    }

    pub fn pids(&self) -> Vec<u32> {
        self.sleepers.iter().map(Program::pid).collect()
    }
}

/// The shipped rules, everybody may use everything, and no process without its own series: the other
/// exporters show them all as well.
fn configure(node: &Node, size: Size, interval: Duration) {
    let state = node.path("state");
    let rules = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("rules/*.yaml");
    let settings = format!(
        "interval: {}ms\nrules: [{}]\nstate_dir: {}\nmetrics: {{processes: 100000}}\n\
         assignments: {{fixed: [{{to: everyone, gpus: [0-{}]}}]}}\n",
        interval.as_millis(),
        rules.display(),
        state.display(),
        size.cards - 1
    );
    node.write("gpuwarden.yaml", &settings);
}

fn sleeper(life: Duration) -> Program {
    let mut command = Command::new("sleep");
    command.arg(life.as_secs().to_string());
    Program::start(command)
}

/// It computes a little, so that the driver has samples of it. It is listed without a look whether it lives, which a
/// driver does not read in `/proc` either, and which would be most of what the simulated one costs.
fn process(pid: u32) -> Process {
    let utilization = Some(Load::Steady(Percent(1)));
    Process { pid, always: true, memory: ProcessMemory::Used(gib(1)), utilization, ..Process::default() }
}
