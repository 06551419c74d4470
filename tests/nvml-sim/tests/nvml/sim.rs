//! The library under test, loaded anew for each test.

use nvml_sim::Scenario;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::PathBuf;
use std::{env, fs};
use tempfile::TempDir;

/// A copy of the library with a scenario beside it.
pub struct Sim {
    folder: TempDir,
}

impl Sim {
    pub fn new(scenario: &str) -> Self {
        let built = env::current_exe().unwrap().with_file_name("libnvml_sim.so");
        let sim = Self { folder: tempfile::tempdir().unwrap() };
        fs::copy(built, sim.library()).unwrap();
        sim.now(scenario);
        sim
    }

    /// From here on this is so.
    pub fn now(&self, scenario: &str) {
        let scenario: Scenario = scenario.parse().unwrap();
        scenario.write(&self.scenario()).unwrap();
    }

    pub fn scenario(&self) -> PathBuf {
        self.folder.path().join("scenario.yaml")
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    pub fn init(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.library().as_os_str()).init()
    }
}
