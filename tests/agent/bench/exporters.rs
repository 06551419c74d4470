//! The exporters that are compared, and what they were seen to do.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, iter};

use tempfile::TempDir;

use super::node::Loaded;
use super::program::Program;
use super::scrape::{self, Kept};
use crate::harness::agent::{free_address, in_node, serve};
use crate::harness::wait::within;
use crate::peers::{Library, python_with};

/// How long one may take until it shows all processes.
const START: Duration = Duration::from_secs(180);

/// Something that is scraped.
pub struct Exporter {
    pub name: String,
    pub program: Program,
    pub began: Instant,
    address: SocketAddr,
    pub took: Vec<Duration>,
    pub took_kept: Vec<Duration>,
    pub page: Vec<u8>,
}

impl Exporter {
    /// Waits until it shows each of these pids.
    pub fn start(name: &str, command: Command, address: SocketAddr, pids: &[u32]) -> Self {
        let program = Program::start(command);
        let (took, took_kept, page) = (Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        let mut exporter = Self { name: name.to_owned(), program, began, address, took, took_kept, page };
        let mut missing = None;
        within(START, || {
            assert!(exporter.program.is_alive(), "{name} has ended");
            let page = String::from_utf8(scrape::once(address).ok()?.page).ok()?;
            missing = pids.iter().find(|pid| !page.contains(&format!("pid=\"{pid}\""))).copied();
            (missing.is_none() && page.contains("80GB")).then_some(())
        })
        .unwrap_or_else(|| panic!("{name} shows no card, or not process {missing:?}"));
        exporter
    }

    pub fn scrape(&mut self) {
        let scrape = scrape::once(self.address).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        self.took.push(scrape.took);
        self.page = scrape.page;
    }

    pub fn keeps_open(&self) -> Kept {
        Kept::open(self.address).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

pub fn ours(loaded: &Loaded) -> Exporter {
    let address = free_address();
    let mut command = in_node(&loaded.node);
    command.args(serve(&loaded.node, address));
    // As its unit runs it.
    let unit = include_str!("../../../systemd/gpuwarden.service").lines();
    command.envs(unit.filter_map(|line| line.strip_prefix("Environment=")?.split_once('=')));
    Exporter::start("gpuwarden", command, address, &loaded.pids())
}

pub fn nvitop_exporter(loaded: &Loaded, library: &Library) -> Exporter {
    let python = python_with(&["nvidia-ml-py==13.615.71", "nvitop==1.7.2", "nvitop-exporter==1.7.2"]);
    let address = free_address();
    let mut command = Command::new(python);
    command.args(["-m", "nvitop_exporter", "--interval", &seconds(loaded), "--bind-address", "127.0.0.1", "--port"]);
    command.arg(address.port().to_string());
    on_the_simulated_driver(&mut command, loaded, library);
    Exporter::start("nvitop-exporter 1.7.2", command, address, &loaded.pids())
}

pub fn all_smi(loaded: &Loaded, library: &Library, binary: &Path, folder: &TempDir) -> Exporter {
    let address = free_address();
    let mut command = Command::new(binary);
    command.env("PATH", with_nvidia_smi(folder));
    command.args(["api", "--interval", &seconds(loaded), "--processes", "--port"]).arg(address.port().to_string());
    on_the_simulated_driver(&mut command, loaded, library);
    Exporter::start("all-smi 0.22", command, address, &loaded.pids())
}

/// Whether there is a card all-smi asks `nvidia-smi -L`; the rest it asks the driver's library.
fn with_nvidia_smi(folder: &TempDir) -> OsString {
    let script = folder.path().join("nvidia-smi");
    fs::write(&script, "#!/bin/sh\n[ \"$*\" = -L ] && echo 'GPU 0: NVIDIA H100 80GB HBM3'\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = env::var_os("PATH").unwrap_or_default();
    env::join_paths(iter::once(folder.path().to_owned()).chain(env::split_paths(&path))).unwrap()
}

fn seconds(loaded: &Loaded) -> String {
    loaded.interval.as_secs().to_string()
}

fn on_the_simulated_driver(command: &mut Command, loaded: &Loaded, library: &Library) {
    command.env("LD_LIBRARY_PATH", library.0.path()).env("NVML_SIM_SCENARIO", loaded.node.scenario());
}
