//! A simulated NVIDIA driver: `libnvidia-ml.so.1` whose GPUs are written down in a file.
//!
//! Programs load the library built from this crate (`libnvml_sim.so`) under the name of the real one: linked or copied
//! to `libnvidia-ml.so.1` in a folder of `LD_LIBRARY_PATH`, or by its path. It knows every function of NVML 13.0.
//!
//! # The scenario
//!
//! A YAML file, named by `NVML_SIM_SCENARIO`; without that, `scenario.yaml` beside the library (so that a test may load
//! a copy of its own, with a scenario of its own). Each call looks whether the file has changed, and reads it again if
//! so. One that does not parse is complained of on standard error, and the one before stays in force: change it by
//! renaming another over it. `gpus: [{}, {}]` is a node with two cards that support nothing.
//!
//! ```yaml
//! driver: {version: 570.124.06, cuda: 12.8}  # nvml: follows from both; oversized_process_entries: true is a 535 fault;
//!                                     # host_pids: true denies that the driver is simulated
//! init: ok                            # or an error: DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH …
//! latency: {nvmlDeviceGetMemoryInfo_v2: 30ms, "nvmlEvent*": hang}   # until the scenario says otherwise
//! errors: {nvmlDeviceGetTemperature: UNKNOWN}    # by name of the call; the longest pattern holds
//! defaults:                           # of each card that says nothing else; deep: {total: …} here, {used: …} there
//!   name: NVIDIA H100 80GB HBM3
//!   memory: {total: 80GiB, reserved: 500MiB}
//! gpus:
//!   - count: 2                        # so many alike; uuid, pci and minor follow from the index, or are written
//!     uuid: GPU-8f3a12cd-0000-4000-8000-000000000001
//!     pci: "00000000:17:00.0"
//!     minor: 0
//!     serial: "1650522000001"
//!     brand: nvidia                   # architecture: hopper, compute_capability: 9.0, vbios, inforom, board_part,
//!                                     # board_id, module_id, cores, numa_node, pci_device_id, pci_subsystem_id
//!     memory: {used: 10GiB}           # without `used`: the sum of the processes. bar1: likewise
//!     utilization: 37%                # or a square wave: {low: 0%, high: 90%, period: 20s}
//!                                     # memory_, encoder_, decoder_, jpeg_, ofa_utilization: likewise
//!     temperature: 41                 # memory_temperature, temperature_margin,
//!                                     # temperature_thresholds: {shutdown, slowdown, memory_max, gpu_max}
//!     power: 120W                     # power_limits: {enforced, requested, default, min, max}; power_management: true
//!     energy: 123kJ                   # or `integrate`: the power over time, since the program first looked
//!     clocks: {graphics: 1980MHz, sm: 1980MHz, memory: 2619MHz, video: 1545MHz}   # max_clocks, application_clocks
//!     performance_state: 0
//!     clock_events: [sw_power_cap]    # clock_event_times: {sw_power_cap: 12s}
//!     fans: [30%, 31%]
//!     pcie: {generation: 5, max_generation: 5, gpu_max_generation: 5, width: 16, max_width: 16, link_speed: 32000,
//!            replays: 0, tx: 100MiB, rx: 200MiB, tx_total: 5GiB, rx_total: 7GiB}
//!     nvlink: {links: [true, true, false], remotes: [1, switch, unknown], version: 4, replay_errors: 0,
//!              recovery_errors: 0, crc_errors: 0, tx_total: 1GiB, rx_total: 1GiB}   # the counters are those of each link
//!     fabric: {state: 3, clique: 1, health_mask: 0}                               # status: an error
//!     ecc: {mode: true, pending: true, default: true, sram_threshold_exceeded: false,
//!           volatile: {corrected: {dram: 0, sram: 1}, uncorrected: {dram: 0, sram: 0}}, aggregate: {}}                         # also l1, l2, registers, texture
//!     retired_pages: {single_bit: [4096], double_bit: [], pending: false}
//!     remapped_rows: {corrected: 0, uncorrected: 1, pending: false, failure: false}
//!     row_remap_banks: {max: 639, high: 0, partial: 1, low: 0, none: 0}
//!     recovery_action: 0
//!     persistence: true               # accounting, display_mode, display_active: likewise
//!     compute_mode: default           # exclusive_process, exclusive_thread, prohibited
//!     virtualization: none            # passthrough, vgpu, host_vgpu, host_vsga
//!     mig: {enabled: true, max: 7, hides_processes: false, instances: [
//!           {profile: 1g.10gb, gpu_instance: 7, compute_instance: 0, memory: {total: 9856MiB}, bar1: {total: 16GiB}, multiprocessors: 16,
//!            gpm: {}, lost: false, errors: {}}]}
//!     gpm: {1: 37.0, 2: 35.5}         # by nvmlGpmMetricId_t; an instance has its own
//!     xids: [13, 79]                  # since the driver was loaded; one that is added reaches who waits for events
//!     fields: {230: 1, 195: {error: UNKNOWN}}     # field values by id, over those that follow from the rest
//!     lost: true                      # each call about it answers GPU_IS_LOST
//!     latency: {}                     # as above, for this card
//!     errors: {}
//!     processes:
//!       - pid: 4242                   # listed while it lives: in /proc, no zombie,
//!         started: 1234567            # and began then (field 22 of /proc/PID/stat); left out, whoever has the pid
//!         always: true                # or listed anyhow
//!         memory: 10GiB               # or `unavailable`, as if left out
//!         utilization: 90%            # memory_, encoder_, decoder_, jpeg_, ofa_utilization; makes samples while not 0
//!         kind: compute               # graphics, both, mps
//!         gpu_instance: 7             # on a MIG instance
//!         compute_instance: 0
//! topology: [{gpus: [0, 1], level: single}]   # internal, multiple, hostbridge, node, system; other pairs by numa_node
//! gpm_samples: 16                     # room for so many, any number if left out; nvmlShutdown complains of any that are left
//! kept_samples: 120                   # of utilisation, of each kind
//! samples_behind: 1h                  # their stamps are so much too early: the clock was set back
//! ```
//!
//! Any value of a card may be `{error: NAME}` instead; a value that is left out is `NOT_SUPPORTED`. Sizes are in `B` to
//! `TiB`, power in `W`, energy in `J`, clocks in `MHz`, spans in `s` where no unit is written.
//!
//! A card that is cut into MIG instances tells no utilisation. Who has initialised the library stays so when `init`
//! begins to fail; for a driver that is replaced under a running program, give `errors` for `nvmlDevice*` as well.
//! Samples of processes want a card whose `utilization` is said.
//!
//! What differs from a driver: pids are of the reader's own PID namespace, which `nvmlSimulated` tells who asks; the
//! order and the number of the cards are those of the list, even while programs run; nothing can be set.
//!
//! # Which calls are made
//!
//! Where `NVML_SIM_CALLS` names a file, a line is added to it for each call: its name, then the number of the card if it
//! is about one (`nvmlDeviceGetName 3`), and of the MIG instance on it (`nvmlDeviceGetName 3/0`). What a call asks for by
//! a list follows in a line of its own, which a tab begins: the ids of field values and of GPM metrics. That makes every
//! call slow; without the variable it costs nothing.
//!
//! The feature `old-driver` builds the library of a driver before R510, without the `_v3` lists of processes,
//! `nvmlDeviceGetMemoryInfo_v2`, `nvmlDeviceGetMarginTemperature` and the functions about clock events, which were called
//! throttle reasons.

#![allow(non_upper_case_globals, non_snake_case, reason = "NVML's names are kept")]

pub mod scenario;
pub mod units;
pub mod value;
mod call;
mod device;
mod driver;
mod events;
mod fields;
mod find;
mod gpm;
mod handle;
mod mig;
mod pointer;
mod processes;
mod record;
mod registry;
mod samples;
mod system;
mod unsupported;

pub use scenario::{Gpu, Process, Scenario};
