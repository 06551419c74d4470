//! Independent readers of NVML on the simulated driver: what they show is what the scenario says.

use nvml_sim::Scenario;
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};
use tempfile::TempDir;

const PACKAGES: [&str; 3] = ["nvidia-ml-py==13.615.71", "nvitop==1.7.2", "gpustat==1.1.1"];

/// How long a peer may take to start, ask and answer.
const ANSWER: Duration = Duration::from_secs(120);
/// How long an installation may take over a slow line, or a build on a slow machine.
pub const INSTALLATION: Duration = Duration::from_secs(600);

/// The cards as nvidia-ml-py is told of them; unknown is null.
pub fn nvidia_ml_py_sees(scenario: &Path) -> Value {
    sees("nvidia_ml_py.py", &Library::new(), scenario)
}

/// The cards as nvitop shows them, in the same shape.
pub fn nvitop_sees(scenario: &Path) -> Value {
    sees("nvitop.py", &Library::new(), scenario)
}

/// The cards as `gpustat --json` shows them, in the same shape. It knows MiB and whole watts only.
pub fn gpustat_sees(scenario: &Path) -> Value {
    sees("gpustat.py", &Library::new(), scenario)
}

pub fn sees(script: &str, library: &Library, scenario: &Path) -> Value {
    let mut python = Command::new(&*PYTHON);
    // Isolated: scripts are named like what they import.
    python.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent/peers").join(script));
    python.env("LD_LIBRARY_PATH", library.0.path()).env("NVML_SIM_SCENARIO", scenario);
    serde_json::from_str(&output(python, ANSWER)).unwrap_or_else(|error| panic!("{script}: {error}"))
}

/// A folder in which the simulated library bears the name of the real one.
pub struct Library(pub TempDir);

impl Library {
    pub fn new() -> Self {
        // Cargo leaves it beside the test binaries.
        let built = env::current_exe().unwrap().with_file_name("libnvml_sim.so");
        assert!(built.exists(), "{} is missing: `cargo test` builds it", built.display());
        Self::of(&built)
    }

    /// The library of an old driver. Symbols are fixed when a library is built, so it is built apart.
    pub fn old() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("old-driver");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "nvml-sim", "--features", "old-driver"]);
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).arg("--target-dir").arg(&target);
        output(cargo, INSTALLATION);
        Self::of(&target.join("debug/libnvml_sim.so"))
    }

    fn of(built: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(built, folder.path().join("libnvidia-ml.so.1")).unwrap();
        Self(folder)
    }
}

static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| python_with(&PACKAGES));

/// The Python of an environment that has the packages; made once, and kept for the next run.
pub fn python_with(packages: &[&str]) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("peers-{}", packages.join("-")));
    let python = Path::new("bin/python");
    if !place.join(python).exists() {
        let unfinished = PathBuf::from(format!("{}-{}", place.display(), process::id()));
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&unfinished);
        output(venv, INSTALLATION);
        let mut pip = Command::new(unfinished.join(python));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
        output(pip, INSTALLATION);
        // Another run may have been faster; then its environment serves as well.
        if fs::rename(&unfinished, &place).is_err() {
            fs::remove_dir_all(&unfinished).unwrap();
        }
    }
    place.join(python)
}

/// What a command prints, within a time.
pub fn output(mut command: Command, limit: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    let [printed, complained] = ["stdout", "stderr"].map(|name| folder.path().join(name));
    command.stdin(Stdio::null()).stdout(File::create(&printed).unwrap()).stderr(File::create(&complained).unwrap());
    let started = command.spawn();
    let mut child = started.unwrap_or_else(|error| panic!("{command:?}: {error}; install python3 and python3-venv"));
    let late = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > late {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} takes more than {limit:?}");
        }
        thread::sleep(Duration::from_millis(10));
    };
    let complaints = fs::read_to_string(complained).unwrap();
    assert!(status.success(), "{command:?}: {status}; are python3 and python3-venv installed?\n{complaints}");
    fs::read_to_string(printed).unwrap()
}

/// A process that does nothing until it is ended.
pub struct Sleeper(Child);

impl Sleeper {
    pub fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn written(scenario: &str) -> (TempDir, PathBuf) {
    let scenario: Scenario = scenario.parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    scenario.write(&path).unwrap();
    (folder, path)
}

/// Every peer sees this; the first that does not is named.
fn all_see(scenario: &Path, expected: &Value) {
    let seen = [nvidia_ml_py_sees(scenario), nvitop_sees(scenario), gpustat_sees(scenario)];
    for (peer, seen) in ["nvidia-ml-py", "nvitop", "gpustat"].iter().zip(seen) {
        assert_eq!(&seen, expected, "{peer} sees\n{seen:#}\ninstead of\n{expected:#}");
    }
}

#[test]
fn peers_show_the_cards_and_processes_of_the_scenario_until_they_exit() {
    let [first, second, third] = [(); 3].map(|()| Sleeper::new());
    let (_folder, scenario) = written(&format!(
        "
        defaults: {{name: NVIDIA H100 80GB HBM3, memory: {{total: 81559MiB, reserved: 551MiB}}, temperature: 41}}
        gpus:
          - utilization: 37%
            power: 120W
            processes:
              - {{pid: {}, memory: 10GiB, utilization: 30%}}
              - {{pid: {}, memory: 512MiB, kind: graphics}}
          - utilization: 100%
            temperature: 83
            power: 699W
            memory: {{used: 70GiB}}
            processes: [{{pid: {}, memory: 69GiB, kind: both}}]
        ",
        first.pid(),
        second.pid(),
        third.pid()
    ));
    let card = |index: usize, used: u64, utilization: u32, temperature: u32, power: u32, processes: Value| {
        json!({
            "name": "NVIDIA H100 80GB HBM3",
            "uuid": format!("GPU-00000000-0000-4000-8000-{index:012x}"),
            "memory_total": 81559u64 << 20,
            "memory_used": used << 20,
            "utilization": utilization,
            "temperature": temperature,
            "power": power,
            "processes": processes,
        })
    };
    let on_first = json!({first.pid().to_string(): 10u64 << 30, second.pid().to_string(): 512u64 << 20});
    let on_second = json!({third.pid().to_string(): 69u64 << 30});
    all_see(
        &scenario,
        &json!([card(0, 10 * 1024 + 512, 37, 41, 120, on_first), card(1, 70 * 1024, 100, 83, 699, on_second.clone()),]),
    );

    drop((first, second));
    all_see(&scenario, &json!([card(0, 0, 37, 41, 120, json!({})), card(1, 70 * 1024, 100, 83, 699, on_second)]));
}

#[test]
fn peers_know_nothing_of_what_the_scenario_leaves_out() {
    // Only the memory is said: without it nvitop shows that of the host, as for cards with unified memory.
    let (_folder, scenario) = written("defaults: {memory: {total: 8GiB}}\ngpus: [{}, {temperature: {error: UNKNOWN}}]");
    let card = |index: usize| {
        json!({
            "name": "NVIDIA Simulated GPU",
            "uuid": format!("GPU-00000000-0000-4000-8000-{index:012x}"),
            "memory_total": 8u64 << 30,
            "memory_used": 0,
            "utilization": null,
            "temperature": null,
            "power": null,
            "processes": {},
        })
    };
    all_see(&scenario, &json!([card(0), card(1)]));
}

#[test]
fn peers_tell_a_lost_card_from_the_others() {
    let (_folder, scenario) = written("gpus: [{lost: true}, {name: NVIDIA L4}]");
    for sees in [nvidia_ml_py_sees, nvitop_sees, gpustat_sees] {
        let seen = sees(&scenario);
        assert_eq!((&seen[0], &seen[1]["name"]), (&json!({"lost": true}), &json!("NVIDIA L4")));
    }
}

#[test]
fn peers_are_told_that_the_memory_of_a_process_is_unavailable() {
    let sleeper = Sleeper::new();
    let (_folder, scenario) = written(&format!("gpus: [{{processes: [{{pid: {}}}]}}]", sleeper.pid()));
    for sees in [nvidia_ml_py_sees, nvitop_sees, gpustat_sees] {
        assert_eq!(sees(&scenario)[0]["processes"], json!({sleeper.pid().to_string(): null}));
    }
}

#[test]
fn peers_fall_back_to_the_lists_of_an_old_driver() {
    let sleeper = Sleeper::new();
    let process = format!("{{pid: {}, memory: 1GiB}}", sleeper.pid());
    let (_folder, scenario) = written(&format!("gpus: [{{memory: {{total: 8GiB}}, processes: [{process}]}}]"));
    let library = Library::old();
    for script in ["nvitop.py", "gpustat.py"] {
        let seen = &sees(script, &library, &scenario)[0];
        assert_eq!(seen["memory_used"], json!(1u64 << 30), "{script}");
        assert_eq!(seen["processes"], json!({sleeper.pid().to_string(): 1u64 << 30}), "{script}");
    }
}
