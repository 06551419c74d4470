//! The floors: what nobody can do the same in less than. They are programs of the package `floors`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;

use super::exporters::Exporter;
use super::node::Loaded;
use super::program::Program;
use crate::harness::agent::{free_address, in_node, serve};
use crate::harness::node::library;
use crate::harness::wait::within;
use crate::peers::{INSTALLATION, output};

/// As the bare loop has it, too.
const FIRST: &str = "nvmlDeviceGetCount_v2";
/// Before it is known what a card refuses, and what stays as it is, more is asked than later.
const BEGINNING: usize = 3;
/// How many of the cycles after that are done again.
const CYCLES: usize = 4;

/// Where their programs are, optimised whatever this is built as.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("floors");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--release", "--package", "floors"]);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--target-dir").arg(&target);
    output(cargo, INSTALLATION);
    target.join("release")
});

/// The same page as somebody else's, for nothing.
pub fn static_server(page: &[u8], folder: &TempDir) -> Exporter {
    let address = free_address();
    let file = folder.path().join("page");
    fs::write(&file, page).unwrap();
    let mut command = Command::new(PROGRAMS.join("static-server"));
    command.arg(address.to_string()).arg(file);
    Exporter::start("static server, the same bytes", command, address, &[])
}

/// What the agent asks the driver in a cycle, of some cycles in a row.
pub struct Calls(pub Vec<String>);

impl Calls {
    /// Lets the agent run, and has the driver write down what it is asked.
    pub fn of_the_agent(loaded: &Loaded, folder: &TempDir) -> Self {
        let record = folder.path().join("calls-of-the-agent");
        let mut command = in_node(&loaded.node);
        command.args(serve(&loaded.node, free_address())).env("NVML_SIM_CALLS", &record);
        Self::recorded("the agent", command, &record)
    }

    pub fn of_the_loop(loaded: &Loaded, calls: &Self, folder: &TempDir) -> Self {
        let record = folder.path().join("calls-of-the-loop");
        let mut command = bare_loop_command(loaded, calls, folder);
        command.env("NVML_SIM_CALLS", &record);
        Self::recorded("the bare loop", command, &record)
    }

    fn recorded(who: &str, command: Command, record: &Path) -> Self {
        let mut program = Program::start(command);
        let cycles = within(Duration::from_secs(120), || {
            assert!(program.is_alive(), "{who} has ended");
            let cycles = cycles(&fs::read_to_string(record).ok()?);
            (cycles.len() > BEGINNING + CYCLES).then_some(cycles)
        });
        let cycles = cycles.unwrap_or_else(|| panic!("{who} makes too few cycles: {}", record.display()));
        // The last one may still be under way.
        Self(cycles[BEGINNING..BEGINNING + CYCLES].to_vec())
    }

    /// The cycles that are recorded of the loop: it has done the first of them before.
    pub fn as_seen_again(&self) -> Vec<String> {
        self.0.iter().cycle().skip(BEGINNING).take(CYCLES).cloned().collect()
    }

    /// In a cycle.
    pub fn number(&self) -> usize {
        self.0.iter().flat_map(|cycle| cycle.lines()).filter(|line| !line.starts_with('\t')).count() / self.0.len()
    }
}

/// The record as cycles.
fn cycles(record: &str) -> Vec<String> {
    let mut cycles: Vec<String> = Vec::new();
    for line in record.lines() {
        if line == FIRST {
            cycles.push(String::new());
        }
        if let Some(cycle) = cycles.last_mut() {
            *cycle += &format!("{line}\n");
        }
    }
    cycles
}

/// The same calls and the files of the same processes, and nothing else.
pub struct BareLoop {
    pub program: Program,
    report: PathBuf,
}

/// What it has counted.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    pub driver: Duration,
    pub procfs: Duration,
    /// In its last cycle.
    pub processes: u64,
    /// Calls of it that the driver had no answer to.
    pub refused: u64,
}

impl BareLoop {
    pub fn start(loaded: &Loaded, calls: &Calls, folder: &TempDir) -> Self {
        let mut program = Program::start(bare_loop_command(loaded, calls, folder));
        let report = report_of(folder);
        within(Duration::from_secs(60), || {
            assert!(program.is_alive(), "the bare loop refuses: {}", complaint(loaded, calls, folder));
            read(&report)
        })
        .expect("the bare loop makes a cycle");
        Self { program, report }
    }

    pub fn report(&self) -> Report {
        read(&self.report).unwrap()
    }
}

fn report_of(folder: &TempDir) -> PathBuf {
    folder.path().join("report")
}

fn bare_loop_command(loaded: &Loaded, calls: &Calls, folder: &TempDir) -> Command {
    let script = folder.path().join("script");
    fs::write(&script, calls.0.concat()).unwrap();
    // One of an earlier loop.
    let _ = fs::remove_file(report_of(folder));
    let mut command = Command::new(PROGRAMS.join("bare-loop"));
    command.arg(script).arg(library()).arg(report_of(folder)).arg(loaded.interval.as_millis().to_string());
    command.env("NVML_SIM_SCENARIO", loaded.node.scenario());
    command
}

/// Why the loop ends: it says so again.
pub fn complaint(loaded: &Loaded, calls: &Calls, folder: &TempDir) -> String {
    let answer = bare_loop_command(loaded, calls, folder).output().unwrap();
    String::from_utf8_lossy(&answer.stderr).into_owned()
}

fn read(report: &Path) -> Option<Report> {
    let text = fs::read_to_string(report).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [driver, procfs, processes, refused] = numbers.try_into().ok()?;
    Some(Report { driver: Duration::from_nanos(driver), procfs: Duration::from_nanos(procfs), processes, refused })
}
