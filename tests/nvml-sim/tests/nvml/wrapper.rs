//! The library as nvml-wrapper sees it.

use crate::sim::Sim;
use nvml_sim::Scenario;
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, Sampling, TemperatureSensor, TopologyLevel};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::structs::device::FieldId;
use std::fmt::Debug;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Checks what a question about the first card brings.
fn check<T: Debug>(gpu: &str, question: impl Fn(&Device) -> Result<T, NvmlError>, answer: &str) {
    let sim = Sim::new(&format!("gpus: [{gpu}]"));
    let nvml = sim.init().unwrap();
    let got = question(&nvml.device_by_index(0).unwrap());
    let got = got.map_or_else(|error| format!("{error:?}"), |value| format!("{value:?}"));
    assert_eq!(got, answer, "{gpu}");
}

/// A process that does nothing until it is ended.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn pids(device: &Device) -> Vec<u32> {
    device.running_compute_processes().unwrap().iter().map(|process| process.pid).collect()
}

#[test]
fn the_whole_of_a_card_can_be_asked_for() {
    check("{name: NVIDIA H200}", |gpu| gpu.name(), r#""NVIDIA H200""#);
    check("{}", |gpu| gpu.uuid(), r#""GPU-00000000-0000-4000-8000-000000000000""#);
    check("{serial: '1650'}", |gpu| gpu.serial(), r#""1650""#);
    check("{temperature: 41}", |gpu| gpu.temperature(TemperatureSensor::Gpu), "41");
    check("{power: 120.5W}", |gpu| gpu.power_usage(), "120500");
    check(
        "{power_limits: {min: 200W, max: 700W}}",
        |gpu| Ok(gpu.power_management_limit_constraints()?.max_limit),
        "700000",
    );
    check("{energy: 123kJ}", |gpu| gpu.total_energy_consumption(), "123000000");
    check("{clocks: {memory: 2619MHz}}", |gpu| gpu.clock_info(Clock::Memory), "2619");
    check("{fans: [30%, 31%]}", |gpu| gpu.fan_speed(1), "31");
    check("{pcie: {generation: 5}}", |gpu| gpu.current_pcie_link_gen(), "5");
    check("{architecture: hopper}", |gpu| gpu.architecture(), "Hopper");
    check("{compute_capability: 9.0}", |gpu| Ok(gpu.cuda_compute_capability()?.major), "9");
    check("{persistence: true}", |gpu| gpu.is_in_persistent_mode(), "true");
    check("{compute_mode: exclusive_process}", |gpu| gpu.compute_mode(), "ExclusiveProcess");
    check("{ecc: {mode: true}}", |gpu| Ok(gpu.is_ecc_enabled()?.currently_enabled), "true");
    check(
        "{ecc: {volatile: {uncorrected: {dram: 3, sram: 4}}}}",
        |gpu| gpu.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile),
        "7",
    );
    check("{pci: '00000000:17:00.0'}", |gpu| Ok(gpu.pci_info()?.bus_id), r#""00000000:17:00.0""#);
    check("{mig: {enabled: true}}", |gpu| Ok(gpu.mig_mode()?.current), "1");
    check("{fields: {230: 2}}", |gpu| gpu.field_values_for(&[FieldId(230)])?.remove(0)?.value, "U64(2)");
    check("{nvlink: {links: [true]}}", |gpu| gpu.field_values_for(&[FieldId(165)])?.remove(0)?.value, "U64(1)");
    check("{pcie: {tx_total: 5GiB}}", |gpu| gpu.field_values_for(&[FieldId(197)])?.remove(0)?.value, "U64(5368709120)");
}

#[test]
fn a_value_left_out_is_not_supported_and_an_error_is_itself() {
    check("{}", |gpu| gpu.temperature(TemperatureSensor::Gpu), "NotSupported");
    check("{}", |gpu| gpu.memory_info(), "NotSupported");
    check("{}", |gpu| gpu.field_values_for(&[FieldId(82)])?.remove(0)?.value, "NotSupported");
    check("{temperature: {error: UNKNOWN}}", |gpu| gpu.temperature(TemperatureSensor::Gpu), "Unknown");
    check("{errors: {nvmlDeviceGetSerial: NO_PERMISSION}}", |gpu| gpu.serial(), "NoPermission");
    check("{errors: {'nvmlDeviceGetS*': NO_PERMISSION}}", |gpu| gpu.serial(), "NoPermission");
    check("{utilization: 37%, mig: {enabled: true}}", |gpu| gpu.utilization_rates(), "NotSupported");
}

#[test]
fn reserved_memory_is_not_used_memory() {
    let gpu = "{memory: {total: 80GiB, reserved: 1GiB}, processes: [{pid: 1, memory: 9GiB, always: true}]}";
    let gibibytes = |gpu: &Device| {
        gpu.memory_info().map(|memory| [memory.used, memory.reserved, memory.free].map(|part| part >> 30))
    };
    check(gpu, gibibytes, "[9, 1, 70]");
}

#[test]
fn defaults_hold_where_a_card_says_nothing() {
    let sim = Sim::new(
        "defaults: {name: A, temperature: 41, memory: {total: 80GiB, used: 1GiB}}
gpus: [{count: 2}, {temperature: {error: NOT_SUPPORTED}, memory: {used: 2GiB}}]",
    );
    let nvml = sim.init().unwrap();
    let cards: Vec<Device> = (0..3).map(|index| nvml.device_by_index(index).unwrap()).collect();
    let temperatures: Vec<_> = cards.iter().map(|card| card.temperature(TemperatureSensor::Gpu).ok()).collect();
    assert_eq!(temperatures, [Some(41), Some(41), None]);
    let used: Vec<_> = cards.iter().map(|card| card.memory_info().unwrap().used >> 30).collect();
    assert_eq!(used, [1, 1, 2]);
    assert_eq!(cards.iter().map(|card| card.pci_info().unwrap().bus).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_change_of_the_scenario_is_seen_by_the_next_call_and_nonsense_changes_nothing() {
    let sim = Sim::new("gpus: [{temperature: 41}]");
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 41);
    sim.now("gpus: [{temperature: 42}]");
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 42);
    fs::write(sim.scenario(), "gpus: [{temp").unwrap();
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 42);
}

#[test]
fn a_lost_card_leaves_the_others_alone() {
    let sim = Sim::new("gpus: [{name: A}, {name: B}]");
    let nvml = sim.init().unwrap();
    let lost = nvml.device_by_index(0).unwrap();
    sim.now("gpus: [{name: A, lost: true}, {name: B}]");
    assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert_eq!(nvml.device_by_index(1).unwrap().name().unwrap(), "B");
}

#[test]
fn init_fails_as_the_scenario_says() {
    let sim = Sim::new("init: DRIVER_NOT_LOADED");
    assert!(matches!(sim.init(), Err(NvmlError::DriverNotLoaded)));
    sim.now("init: LIB_RM_VERSION_MISMATCH");
    assert!(matches!(sim.init(), Err(NvmlError::LibRmVersionMismatch)));
    sim.now("init: ok");
    assert_eq!(sim.init().unwrap().device_count().unwrap(), 0);
}

#[test]
fn a_hung_call_holds_up_no_other_and_ends_with_the_scenario() {
    let hung = "latency: {nvmlDeviceGetName: hang}\ngpus: [{temperature: 41}]";
    let sim = Sim::new(hung);
    let nvml = sim.init().unwrap();
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| done.send(nvml.device_by_index(0).unwrap().name()).unwrap());
        let gpu = nvml.device_by_index(0).unwrap();
        assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 41);
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err());
        sim.now("gpus: [{name: A}]");
        assert_eq!(ended.recv_timeout(Duration::from_secs(10)).unwrap().unwrap(), "A");
    });
}

#[test]
fn a_slow_call_takes_its_time() {
    let sim = Sim::new("latency: {nvmlDeviceGetName: 50ms}\ngpus: [{}]");
    let nvml = sim.init().unwrap();
    let begun = Instant::now();
    nvml.device_by_index(0).unwrap().name().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_process_is_listed_while_it_lives() {
    let mut sleeper = Sleeper::new();
    let pid = sleeper.0.id();
    let sim = Sim::new(&format!(
        "gpus: [{{memory: {{total: 8GiB}}, processes: [{{pid: {pid}, memory: 1GiB}}, {{pid: {pid}, started: 1}}]}}]"
    ));
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(pids(&gpu), [pid], "the second one has started at another time");
    assert_eq!(gpu.memory_info().unwrap().used, 1 << 30);
    sleeper.0.kill().unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    while !pids(&gpu).is_empty() {
        assert!(Instant::now() < limit, "a zombie is still listed");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(gpu.memory_info().unwrap().used, 0);
}

#[test]
fn the_lists_tell_compute_from_graphics_and_known_memory_from_unknown() {
    let sim = Sim::new(
        "gpus: [{processes: [{pid: 1, always: true, kind: both, memory: 1GiB}, {pid: 2, always: true, kind: graphics},
{pid: 3, always: true, kind: mps, gpu_instance: 1, compute_instance: 0}]}]",
    );
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(pids(&gpu), [1]);
    let graphics = gpu.running_graphics_processes().unwrap();
    assert_eq!(graphics.iter().map(|process| process.pid).collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(graphics[0].used_gpu_memory, UsedGpuMemory::Used(0x4000_0000)));
    assert!(matches!(graphics[1].used_gpu_memory, UsedGpuMemory::Unavailable));
    assert_eq!(graphics[1].gpu_instance_id, None);
    let clients = gpu.mps_running_compute_processes().unwrap();
    assert_eq!((clients[0].pid, clients[0].gpu_instance_id), (3, Some(1)));
}

#[test]
fn a_sample_is_given_once_and_the_idle_have_none() {
    let sim = Sim::new(
        "gpus: [{utilization: 37%, processes: [{pid: 1, always: true, utilization: 90%}, {pid: 2, always: true}]}]",
    );
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let samples = gpu.process_utilization_stats(None).unwrap();
    assert_eq!(samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect::<Vec<_>>(), [(1, 90)]);
    let later = samples[0].timestamp + 3_600_000_000;
    assert!(matches!(gpu.process_utilization_stats(later), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.samples(Sampling::GpuUtilization, later), Err(NvmlError::NotFound)));
    assert_eq!(gpu.samples(Sampling::GpuUtilization, None).unwrap().len(), 120);
}

#[test]
fn an_xid_reaches_those_who_wait_once() {
    let sim = Sim::new("gpus: [{xids: [13]}]");
    let nvml = sim.init().unwrap();
    let events = nvml.create_event_set().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let events = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, events).unwrap();
    assert!(matches!(events.wait(10), Err(NvmlError::Timeout)));
    sim.now("gpus: [{xids: [13, 79]}]");
    let event = events.wait(5000).unwrap();
    assert!(matches!(event.event_data, Some(XidError::Value(79))), "{event:?}");
    assert!(matches!(events.wait(10), Err(NvmlError::Timeout)));
}

#[test]
fn a_mig_instance_is_a_device_with_its_own_memory_and_processes() {
    let sim = Sim::new(
        "gpus: [{name: NVIDIA H100, mig: {enabled: true, instances: [
  {profile: 1g.10gb, gpu_instance: 7, compute_instance: 0, memory: {total: 10GiB}},
  {profile: 2g.20gb, gpu_instance: 3, compute_instance: 0, memory: {total: 20GiB}}]},
  processes: [{pid: 1, always: true, memory: 1GiB, gpu_instance: 3, compute_instance: 0}]}]",
    );
    let nvml = sim.init().unwrap();
    let card = nvml.device_by_index(0).unwrap();
    assert_eq!(card.mig_device_count().unwrap(), 7);
    let second = card.mig_device_by_index(1).unwrap();
    assert_eq!(second.name().unwrap(), "NVIDIA H100 MIG 2g.20gb");
    assert_eq!(second.memory_info().unwrap().used, 1 << 30);
    assert_eq!(pids(&second), [1]);
    assert_eq!(pids(&card.mig_device_by_index(0).unwrap()), []);
    assert!(matches!(card.mig_device_by_index(2), Err(NvmlError::NotFound)));
    assert_eq!(second.mig_parent_device().unwrap().uuid().unwrap(), card.uuid().unwrap());
    assert_eq!(nvml.device_by_uuid(second.uuid().unwrap()).unwrap().name().unwrap(), second.name().unwrap());
}

#[test]
fn a_sample_is_of_what_was_so_at_its_time() {
    let sim = Sim::new("gpus: [{utilization: 10%}]");
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    sim.now("gpus: [{utilization: 90%}]");
    let limit = Instant::now() + Duration::from_secs(10);
    let values: Vec<u32> = loop {
        let samples = gpu.samples(Sampling::GpuUtilization, None).unwrap();
        let values = samples.iter().map(|sample| match sample.value {
            SampleValue::U32(value) => value,
            ref other => panic!("{other:?}"),
        });
        let values: Vec<u32> = values.collect();
        if values.ends_with(&[90]) {
            break values;
        }
        assert!(Instant::now() < limit, "{values:?}");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(values.starts_with(&[10, 10, 10]) && values.is_sorted(), "{values:?}");
}

#[test]
fn energy_grows_with_power_when_asked_to() {
    let sim = Sim::new("gpus: [{power: 1000W, energy: integrate}]");
    let nvml = sim.init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let first = gpu.total_energy_consumption().unwrap();
    thread::sleep(Duration::from_millis(20));
    let second = gpu.total_energy_consumption().unwrap();
    assert!(second >= first + 20_000, "{first} mJ, {second} mJ");
    sim.now("gpus: [{power: 0, energy: integrate}]");
    let third = gpu.total_energy_consumption().unwrap();
    assert!(third >= second);
    assert_eq!(gpu.total_energy_consumption().unwrap(), third);
}

#[test]
fn activity_is_that_of_the_card_or_of_the_instance() {
    let sim = Sim::new(
        "gpus: [{gpm: {2: 35.5}}, {mig: {enabled: true, instances: [
            {profile: 1g.10gb, gpu_instance: 7, compute_instance: 0, gpm: {2: 80.0}}]}}]",
    );
    let nvml = sim.init().unwrap();
    let card = nvml.device_by_index(0).unwrap();
    assert!(card.gpm_support().unwrap());
    let sm = |samples: [GpmSample; 2]| {
        let [first, second] = &samples;
        let metrics = [GpmMetricId::SmUtil, GpmMetricId::GraphicsUtil];
        let told = gpm_metrics_get(&nvml, first, second, &metrics).unwrap();
        told.into_iter().map(|metric| metric.ok().map(|metric| metric.value)).collect::<Vec<_>>()
    };
    assert_eq!(sm([card.gpm_sample().unwrap(), card.gpm_sample().unwrap()]), [Some(35.5), None]);
    let cut = nvml.device_by_index(1).unwrap();
    assert!(matches!(cut.gpm_sample(), Err(NvmlError::NotSupported)));
    assert_eq!(sm([cut.gpm_mig_sample(7).unwrap(), cut.gpm_mig_sample(7).unwrap()]), [Some(80.0), None]);
}

#[test]
fn the_documented_scenario_is_one() {
    let page = include_str!("../../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//!"));
    let yaml: String = page
        .skip_while(|line| !line.contains("```yaml"))
        .skip(1)
        .take_while(|line| !line.contains("```"))
        .fold(String::new(), |yaml, line| yaml + line.strip_prefix(' ').unwrap_or(line) + "\n");
    let scenario: Scenario = yaml.parse().unwrap();
    assert_eq!(scenario.gpus[0].processes[0].pid, 4242);
}

#[test]
fn every_scenario_of_the_repository_can_be_loaded() {
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/scenarios");
    for file in fs::read_dir(scenarios).unwrap() {
        let file = file.unwrap().path();
        let sim = Sim::new(&fs::read_to_string(&file).unwrap());
        assert!(!matches!(sim.init(), Err(NvmlError::DriverNotLoaded)), "{}", file.display());
    }
}

#[test]
fn a_scenario_is_written_as_it_is_read() {
    let text = "
        init: UNKNOWN
        latency: {a: hang, b: 30ms}
        defaults: {temperature: {error: UNKNOWN}}
        gpus:
          - energy: integrate
            utilization: {low: 0%, high: 90%, period: 20s}
            processes: [{pid: 1, memory: 1GiB}, {pid: 2, memory: unavailable}]
        ";
    let scenario: Scenario = text.parse().unwrap();
    let written = serde_yaml::to_string(&scenario).unwrap();
    assert_eq!(written.parse::<Scenario>().unwrap(), scenario, "{written}");
    assert!("gpus: [{temprature: 41}]".parse::<Scenario>().is_err());
}

#[test]
fn links_lead_to_cards_and_switches_and_pairs_are_as_near_as_is_written() {
    let sim = Sim::new(
        "
topology: [{gpus: [1, 0], level: single}]
gpus:
  - {numa_node: 0, nvlink: {links: [true, true, false], remotes: [1, switch]}}
  - {numa_node: 0}
  - {numa_node: 1}
",
    );
    let nvml = sim.init().unwrap();
    let card = |index| nvml.device_by_index(index).unwrap();
    let remote = |link| card(0).link_wrapper_for(link).remote_pci_info().map(|pci| pci.bus_id);
    assert_eq!(remote(0).unwrap(), card(1).pci_info().unwrap().bus_id);
    assert_eq!(remote(1).unwrap(), "00000000:F0:00.0");
    assert!(matches!(remote(2), Err(NvmlError::NotSupported)));
    assert!(matches!(remote(3), Err(NvmlError::InvalidArg)));
    let level = |one, other| card(one).topology_common_ancestor(card(other)).unwrap();
    assert_eq!(level(0, 1), TopologyLevel::Single);
    assert_eq!(level(1, 2), TopologyLevel::System);
}

#[test]
fn a_lost_instance_spoils_neither_its_card_nor_the_others_and_a_card_may_hide_who_is_on_it() {
    let sim = Sim::new(
        "
gpus:
  - memory: {total: 80GiB}
    mig: {enabled: true, hides_processes: true, instances: [
      {profile: 1g.10gb, gpu_instance: 7, lost: true},
      {profile: 1g.10gb, gpu_instance: 8, errors: {nvmlDeviceGetName: UNKNOWN}}]}
    processes: [{pid: 4242, always: true, gpu_instance: 8, compute_instance: 0}]
",
    );
    let nvml = sim.init().unwrap();
    let card = nvml.device_by_index(0).unwrap();
    let instance = |index| card.mig_device_by_index(index).unwrap();
    assert!(matches!(instance(0).uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(instance(1).name(), Err(NvmlError::Unknown)));
    assert!(instance(1).uuid().is_ok() && card.name().is_ok());
    assert_eq!(card.running_compute_processes().unwrap().len(), 0);
    assert_eq!(instance(1).running_compute_processes().unwrap().len(), 1);
}
