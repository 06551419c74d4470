//! The library of a driver before R510. `cargo test -p nvml-sim --features old-driver`

use crate::sim::Sim;
use nvml_wrapper::error::NvmlError;

#[test]
fn an_old_driver_has_neither_the_new_lists_nor_the_new_memory() {
    let sim = Sim::new("gpus: [{memory: {total: 80GiB}, processes: [{pid: 1, always: true}]}]");
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.memory_info(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert!(matches!(gpu.running_compute_processes(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert!(matches!(gpu.running_graphics_processes(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert_eq!(gpu.minor_number().unwrap(), 0);
    assert!(nvml.lib().nvmlDeviceGetMemoryInfo.is_ok());
    assert!(nvml.lib().nvmlDeviceGetCurrentClocksEventReasons.is_err());
    assert!(nvml.lib().nvmlDeviceGetCurrentClocksThrottleReasons.is_ok());
}
