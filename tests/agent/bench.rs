//! What the agent costs, beside nvitop-exporter on the same simulated driver in the same run:
//!
//! `cargo test --release --test agent -- --ignored bench_ --nocapture`

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvml_sim::Process;

use crate::harness::Node;
use crate::harness::agent::{free_address, in_node, serve};
use crate::harness::http::ask;
use crate::harness::node::gib;
use crate::harness::wait::within;
use crate::peers::{Library, Sleeper, python_with};

const CARDS: usize = 8;
const PROCESSES: usize = 16;
const SCRAPES: usize = 300;
/// How long each is left alone with its cycle, to see what that costs.
const ALONE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "a benchmark: cargo test --release --test agent -- --ignored bench_ --nocapture"]
fn bench_beside_nvitop_exporter() {
    let sleepers: Vec<Sleeper> = (0..CARDS * PROCESSES).map(|_| Sleeper::new()).collect();
    let node = node(&sleepers);
    let library = Library::new();
    let peer = python_with(&["nvidia-ml-py==13.615.71", "nvitop==1.7.2", "nvitop-exporter==1.7.2"]);

    let ours = free_address();
    let mut command = in_node(&node);
    command.args(serve(&node, ours));
    let mut ours = Exporter::start("gpuwarden", command, ours);

    let theirs = free_address();
    let mut command = Command::new(peer);
    command.args(["-m", "nvitop_exporter", "--interval", "1", "--bind-address", "127.0.0.1", "--port"]);
    command.arg(theirs.port().to_string());
    command.env("LD_LIBRARY_PATH", library.0.path()).env("NVML_SIM_SCENARIO", node.scenario());
    let mut theirs = Exporter::start("nvitop-exporter", command, theirs);

    println!("\n{CARDS} GPUs with {PROCESSES} processes each, a cycle a second, {SCRAPES} scrapes each in turn\n");
    println!("| | scrape median | scrape p99 | page | resident | CPU a cycle |");
    println!("|---|---|---|---|---|---|");
    ours.scrape_in_turn(&mut theirs);
    let [mine, yours] = [&ours, &theirs].map(Exporter::cpu);
    thread::sleep(ALONE);
    println!("{}", ours.row(mine));
    println!("{}", theirs.row(yours));
}

/// A node on which every sleeper holds a card, and the agent looks once a second.
fn node(sleepers: &[Sleeper]) -> Node {
    let mut node = Node::new(CARDS);
    let state = node.path("state");
    let rules = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("rules/*.yaml");
    let settings = format!(
        "interval: 1s\nrules: [{}]\nstate_dir: {}\nassignments: {{fixed: [{{to: everyone, gpus: [0-7]}}]}}\n",
        rules.display(),
        state.display()
    );
    node.write("gpuwarden.yaml", &settings);
    for (card, holders) in sleepers.chunks(PROCESSES).enumerate() {
        let holders: Vec<Process> = holders.iter().map(|sleeper| process(sleeper.pid())).collect();
        node.held(card, &holders.iter().collect::<Vec<_>>());
    }
    node
}

fn process(pid: u32) -> Process {
    let memory = nvml_sim::scenario::ProcessMemory::Used(gib(2));
    Process { pid, memory, ..Process::default() }
}

struct Exporter {
    name: &'static str,
    child: Child,
    address: SocketAddr,
    took: Vec<Duration>,
    bytes: usize,
}

impl Exporter {
    fn start(name: &'static str, mut command: Command, address: SocketAddr) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut exporter = Self { name, child, address, took: Vec::new(), bytes: 0 };
        within(Duration::from_secs(60), || exporter.scrape().filter(|page| page.contains("sleep")))
            .unwrap_or_else(|| panic!("{name} shows no process"));
        exporter.took.clear();
        exporter
    }

    fn scrape(&mut self) -> Option<String> {
        let began = Instant::now();
        let answer = ask(self.address, "GET", "/metrics").ok()?;
        self.took.push(began.elapsed());
        self.bytes = answer.body.len();
        Some(answer.body)
    }

    /// One after the other, so that what else the machine does hits both alike.
    fn scrape_in_turn(&mut self, other: &mut Self) {
        for _ in 0..SCRAPES {
            self.scrape().unwrap();
            other.scrape().unwrap();
        }
    }

    /// User and system time so far (proc_pid_stat(5), fields 14 and 15, in hundredths).
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<u64> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .map_while(|field| match field {
                "S" | "R" | "D" => Some(0),
                number => Some(number.parse().unwrap_or(0)),
            })
            .collect();
        Duration::from_millis((fields[11] + fields[12]) * 10)
    }

    fn resident_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    fn row(&mut self, cpu_before: Duration) -> String {
        self.took.sort();
        let at = |share: f64| self.took[((self.took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        let cpu = (self.cpu() - cpu_before).as_secs_f64() * 1e3 / ALONE.as_secs_f64();
        format!(
            "| {} | {:.2} ms | {:.2} ms | {} kB | {:.1} MiB | {cpu:.1} ms |",
            self.name,
            at(0.5),
            at(0.99),
            self.bytes / 1000,
            self.resident_mib()
        )
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
