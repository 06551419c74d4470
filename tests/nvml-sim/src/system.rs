//! The library itself and the node: init, shutdown, versions, process names.

use crate::call::{self, calls};
use crate::driver;
use crate::pointer::{Buffer, Out};
use crate::units::Version;
use crate::value::{self, Error};
use nvml_wrapper_sys::bindings::{nvmlConfComputeSystemState_t, nvmlReturn_t, nvmlSystemDriverBranchInfo_t};
use std::ffi::{c_char, c_int, c_uint};
use std::fs;

/// Tells a caller that knows this library that pids are those of its own PID namespace.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSimulated() -> c_int {
    driver::current().map_or(1, |driver| (!driver.scenario.driver.host_pids).into())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> nvmlReturn_t {
    call::init("nvmlInit")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    call::init("nvmlInit_v2")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    call::init("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    call::shutdown("nvmlShutdown")
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    value::Error::sentence(code).as_ptr()
}

impl crate::scenario::DriverVersion {
    pub fn version(&self) -> &str {
        self.version.as_deref().unwrap_or("570.124.06")
    }

    fn cuda(&self) -> Version {
        self.cuda.unwrap_or(Version { major: 12, minor: 8 })
    }

    fn nvml(&self) -> String {
        self.nvml.clone().unwrap_or_else(|| format!("{}.{}", self.cuda().major, self.version()))
    }

    /// As CUDA counts: 12.8 is 12080.
    fn cuda_number(&self) -> c_int {
        self.cuda().major * 1000 + self.cuda().minor * 10
    }
}

calls! {
    nvmlSystemGetDriverVersion(driver, version: Buffer, length: c_uint) {
        version.write(length, driver.scenario.driver.version())
    }

    nvmlSystemGetNVMLVersion(driver, version: Buffer, length: c_uint) {
        version.write(length, &driver.scenario.driver.nvml())
    }

    nvmlSystemGetCudaDriverVersion(driver, version: Out<c_int>) {
        version.set(driver.scenario.driver.cuda_number())
    }

    nvmlSystemGetCudaDriverVersion_v2(driver, version: Out<c_int>) {
        version.set(driver.scenario.driver.cuda_number())
    }

    nvmlSystemGetProcessName(_driver, pid: c_uint, name: Buffer, length: c_uint) {
        let program = fs::read_link(format!("/proc/{pid}/exe")).map_err(|_| Error::NOT_FOUND)?;
        // NVML cuts a name that is too long.
        let name_length = (length as usize).saturating_sub(1);
        name.write(length, &program.to_string_lossy().chars().take(name_length).collect::<String>())
    }

    nvmlSystemGetConfComputeState(_driver, state: Out<nvmlConfComputeSystemState_t>) {
        state.set(nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 })
    }

    nvmlSystemGetDriverBranch(driver, branch: Out<nvmlSystemDriverBranchInfo_t>, _length: c_uint) {
        let version = branch.value()?.version;
        let major = driver.scenario.driver.version().split('.').next().unwrap_or_default();
        branch.set(nvmlSystemDriverBranchInfo_t { version, branch: crate::pointer::chars(&format!("r{major}_00")) })
    }
}
