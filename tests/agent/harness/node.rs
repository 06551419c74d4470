//! A node: its cards and who holds them, its configuration and rules, and what the agent keeps.

use super::agent::Agent;
use super::wait::eventually;
use super::worker::Worker;
use nvml_sim::scenario::{EnergyCounter, Memory};
use nvml_sim::units::{Bytes, Load, Percent, Power};
use nvml_sim::{Gpu, Process, Scenario};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs};
use tempfile::TempDir;

/// Somebody with an account on the node, of whom this host has never heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    pub name: &'static str,
    pub uid: u32,
}

/// Different on each node: a person is warned wherever he works, on the terminals of another test as well.
fn uids() -> impl Iterator<Item = u32> {
    static NODES: AtomicU32 = AtomicU32::new(0);
    let node = std::process::id() * 128 + NODES.fetch_add(1, Ordering::Relaxed);
    1_000_000 + node * 4..
}

/// What ladders climb in tests: a rung is due some cycles after the one before.
pub const INTERVAL: Duration = Duration::from_millis(250);

pub struct Node {
    dir: TempDir,
    scenario: Scenario,
    pub alice: Who,
    pub bob: Who,
    pub carol: Who,
    /// What a shell does, as root and in the agent's own mount namespace, before it becomes the agent (`"$@"`).
    pub before: String,
    /// The driver's library.
    pub library: PathBuf,
    /// The socket on which somebody plays systemd.
    pub notify: Option<PathBuf>,
}

impl Node {
    /// A node with so many cards of 80 GiB, nobody on them, and a configuration without rules.
    pub fn new(cards: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Those who work here have to reach what they run.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let scenario = Scenario { defaults: h100(), gpus: vec![Gpu::default(); cards], ..Scenario::default() };
        let mut uids = uids();
        let people = ["alice", "bob", "carol"].map(|name| Who { name, uid: uids.next().unwrap() });
        let [alice, bob, carol] = people;
        let node = Self { dir, scenario, alice, bob, carol, before: ":".into(), library: library(), notify: None };
        let accounts = people.map(|Who { name, uid }| format!("{name}:x:{uid}:{uid}::/nonexistent:/bin/sh\n"));
        let groups = people.map(|Who { name, uid }| format!("{name}:x:{uid}:\n"));
        node.write("passwd", &(fs::read_to_string("/etc/passwd").unwrap() + &accounts.concat()));
        node.write("group", &(fs::read_to_string("/etc/group").unwrap() + &groups.concat()));
        node.configure("mode: observe");
        node.rules("rules: []");
        node.write_scenario();
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn scenario(&self) -> PathBuf {
        self.path("scenario.yaml")
    }

    /// Replaces a file as a whole.
    pub fn write(&self, name: &str, text: &str) {
        let unfinished = self.path(&format!("{name}.unfinished"));
        fs::write(&unfinished, text).unwrap();
        fs::rename(unfinished, self.path(name)).unwrap();
    }

    /// The configuration, but for what is the same in every test.
    pub fn configure(&self, settings: &str) {
        let state_dir = self.path("state");
        let common =
            format!("interval: {}ms\nrules: [rules.yaml]\nstate_dir: {}", INTERVAL.as_millis(), state_dir.display());
        self.write("gpuwarden.yaml", &format!("{common}\n{settings}\n"));
    }

    pub fn rules(&self, rules: &str) {
        self.write("rules.yaml", rules);
    }

    /// From now on the cards are otherwise.
    pub fn change(&mut self, change: impl FnOnce(&mut Scenario)) {
        change(&mut self.scenario);
        self.write_scenario();
    }

    /// These hold a card now, and nobody else.
    pub fn held(&mut self, card: usize, by: &[&Process]) {
        self.change(|scenario| scenario.gpus[card].processes = by.iter().map(|process| (*process).clone()).collect());
    }

    fn write_scenario(&self) {
        self.write("scenario.yaml", &serde_yaml::to_string(&self.scenario).unwrap());
    }

    /// A process of somebody that runs this script; no card is held by it yet.
    pub fn runs(&self, who: Who, script: &str) -> Worker {
        Worker::start(who, script, self.dir.path(), false)
    }

    /// The same on a terminal of its own.
    pub fn runs_on_terminal(&self, who: Who, script: &str) -> Worker {
        Worker::start(who, script, self.dir.path(), true)
    }

    /// The same under a pid that was somebody else's.
    pub fn runs_with_pid(&self, pid: u32, who: Who, script: &str) -> Worker {
        // Whoever forks in between takes it, and is gone before long.
        eventually("the pid is free and given again", || {
            fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
            Some(self.runs(who, script)).filter(|worker| worker.pid() == pid)
        })
    }

    /// The agent, after its first cycle.
    pub fn start(&self) -> Agent {
        self.start_with(&[])
    }

    pub fn start_with(&self, arguments: &[&str]) -> Agent {
        Agent::start(self, arguments)
    }

    pub fn audit(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path("state/audit.jsonl")).unwrap_or_default();
        // The last line may still be in the making.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }
}

/// The library that cargo leaves beside the test binaries.
pub fn library() -> PathBuf {
    let library = env::current_exe().unwrap().with_file_name("libnvml_sim.so");
    assert!(library.exists(), "{} is missing: `cargo test` builds it", library.display());
    library
}

pub fn agent_binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_gpuwarden"))
}

fn h100() -> Gpu {
    Gpu {
        name: Some("NVIDIA H100 80GB HBM3".into()),
        memory: Memory { total: gib(80), reserved: Bytes(500 << 20), used: None }.into(),
        utilization: Load::Steady(Percent(0)).into(),
        temperature: 41.into(),
        power: Power(120_000).into(),
        energy: EnergyCounter::Integrate.into(),
        ..Gpu::default()
    }
}

pub fn gib(number: u64) -> Bytes {
    Bytes(number << 30)
}
