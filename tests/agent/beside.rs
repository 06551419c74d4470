//! Every value that nvitop or gpustat and the agent show of one node at one time is the same.

use crate::harness::worker::SLEEPS;
use crate::harness::{Node, Page, Worker, root};
use crate::peers::{Library, sees};
use nvml_sim::{Process, Scenario};
use serde_json::Value;

/// Two cards, of which the second says as little as it can.
const CARDS: &str = "
    defaults: {memory: {total: 80GiB, reserved: 500MiB}}
    gpus:
      - name: NVIDIA H100 80GB HBM3
        serial: '1650522000001'
        compute_capability: 9.0
        utilization: 37%
        memory_utilization: 20%
        encoder_utilization: 5%
        decoder_utilization: 7%
        temperature: 41
        power: 120.5W
        power_limits: {enforced: 650W, default: 700W, min: 200W, max: 700W}
        clocks: {graphics: 1980MHz, sm: 1965MHz, memory: 2619MHz, video: 1545MHz}
        max_clocks: {graphics: 1990MHz, sm: 1985MHz, memory: 2625MHz, video: 1550MHz}
        performance_state: 2
        fans: [30%, 31%]
        pcie: {tx: 100MiB, rx: 200MiB}
        ecc: {mode: true, volatile: {corrected: {dram: 1, sram: 0}, uncorrected: {dram: 3, sram: 2}}}
        persistence: true
        compute_mode: exclusive_process
        mig: {enabled: false}
      - {}
";

/// How a value of a peer is written on our page: its name there, ours, our further labels, and how many of our units are
/// one of theirs.
type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)], f64);

const NVITOP_CARD: &[Row] = &[
    ("memory_total", "gpu_memory_total_bytes", &[], 1.0),
    ("memory_used", "gpu_memory_used_bytes", &[], 1.0),
    ("memory_free", "gpu_memory_free_bytes", &[], 1.0),
    ("gpu_utilization", "gpu_utilization_ratio", &[], 0.01),
    ("memory_utilization", "gpu_memory_controller_utilization_ratio", &[], 0.01),
    ("encoder_utilization", "gpu_encoder_utilization_ratio", &[], 0.01),
    ("decoder_utilization", "gpu_decoder_utilization_ratio", &[], 0.01),
    ("temperature", "gpu_temperature_celsius", &[], 1.0),
    ("fan_speed", "gpu_fan_speed_ratio", &[("fan", "0")], 0.01),
    ("power_usage", "gpu_power_watts", &[], 1e-3),
    ("power_limit", "gpu_power_limit_watts", &[("limit", "enforced")], 1e-3),
    ("clock_graphics", "gpu_clock_hertz", &[("clock", "graphics")], 1e6),
    ("clock_sm", "gpu_clock_hertz", &[("clock", "sm")], 1e6),
    ("clock_memory", "gpu_clock_hertz", &[("clock", "memory")], 1e6),
    ("clock_video", "gpu_clock_hertz", &[("clock", "video")], 1e6),
    ("max_clock_graphics", "gpu_clock_max_hertz", &[("clock", "graphics")], 1e6),
    ("max_clock_sm", "gpu_clock_max_hertz", &[("clock", "sm")], 1e6),
    ("max_clock_memory", "gpu_clock_max_hertz", &[("clock", "memory")], 1e6),
    ("max_clock_video", "gpu_clock_max_hertz", &[("clock", "video")], 1e6),
    ("pcie_tx_throughput", "gpu_pcie_throughput_bytes_per_second", &[("direction", "tx")], 1024.0),
    ("pcie_rx_throughput", "gpu_pcie_throughput_bytes_per_second", &[("direction", "rx")], 1024.0),
];

const NVITOP_PROCESS: &[Row] = &[
    ("gpu_memory", "process_memory_bytes", &[], 1.0),
    ("gpu_sm_utilization", "process_utilization_ratio", &[], 0.01),
    ("gpu_memory_utilization", "process_memory_controller_utilization_ratio", &[], 0.01),
    ("gpu_encoder_utilization", "process_encoder_utilization_ratio", &[], 0.01),
    ("gpu_decoder_utilization", "process_decoder_utilization_ratio", &[], 0.01),
];

const GPUSTAT_CARD: &[Row] = &[
    ("memory.total", "gpu_memory_total_bytes", &[], MIB),
    ("memory.used", "gpu_memory_used_bytes", &[], MIB),
    ("utilization.gpu", "gpu_utilization_ratio", &[], 0.01),
    ("utilization.enc", "gpu_encoder_utilization_ratio", &[], 0.01),
    ("utilization.dec", "gpu_decoder_utilization_ratio", &[], 0.01),
    ("temperature.gpu", "gpu_temperature_celsius", &[], 1.0),
    ("fan.speed", "gpu_fan_speed_ratio", &[("fan", "0")], 0.01),
    ("enforced.power.limit", "gpu_power_limit_watts", &[("limit", "enforced")], 1.0),
];

const GPUSTAT_PROCESS: &[Row] = &[("gpu_memory_usage", "process_memory_bytes", &[], MIB)];

const MIB: f64 = 1_048_576.0;

/// What a peer knows and the agent does not, or the other way round, is no value that both show.
#[track_caller]
fn agree(peer: &str, page: &Page, rows: &[Row], labels: &[(&str, &str)], theirs: &Value) {
    for (name, family, more, unit) in rows {
        let family = format!("gpuwarden_{family}");
        let labels: Vec<_> = labels.iter().chain(*more).copied().collect();
        let (ours, theirs) = (page.value(&family, &labels), theirs[name].as_f64().map(|value| value * unit));
        let same = ours.zip(theirs).map_or(ours == theirs, |(ours, theirs)| (ours - theirs).abs() <= theirs * 1e-9);
        assert!(same, "{family}{labels:?} is {ours:?}, and {peer}'s {name} {theirs:?}");
    }
}

/// The label of the one series of an info family.
fn label<'a>(page: &'a Page, family: &'a str, of: &'a [(&'a str, &'a str)], label: &str) -> Option<&'a str> {
    page.all(family, of).next()?.labels.get(label).map(String::as_str)
}

#[test]
fn nvitop_and_gpustat_show_what_the_agent_shows() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(0);
    node.configure("metrics: {process_engines: true, pcie_throughput: true}");
    let workers = [node.alice, node.bob].map(|who| node.runs(who, SLEEPS));
    node.change(|scenario| {
        *scenario = CARDS.parse::<Scenario>().unwrap();
        let [alice, bob] = &workers;
        let share = |percent| Some(nvml_sim::units::Load::Steady(nvml_sim::units::Percent(percent)));
        scenario.gpus[0].processes = vec![
            Process {
                utilization: share(30),
                memory_utilization: share(11),
                encoder_utilization: share(5),
                decoder_utilization: share(6),
                ..alice.with(10)
            },
            Process { kind: nvml_sim::scenario::Kind::Both, ..bob.with(3) },
        ];
    });
    let agent = node.start();
    agent
        .shows("who is busy", |page| page.value("gpuwarden_process_utilization_ratio", &[("user", "alice")]).is_some());
    let page = agent.cycles(2);
    nvitop(&page, &sees("nvitop_values.py", &Library::new(), &node.scenario()), &workers);
    gpustat(&page, &sees("gpustat_values.py", &Library::new(), &node.scenario()));
}

fn nvitop(page: &Page, cards: &Value, workers: &[Worker]) {
    let cards = cards.as_array().unwrap();
    assert_eq!(cards.len(), page.all("gpuwarden_gpu_up", &[]).count());
    let driver = |name: &str| label(page, "gpuwarden_driver_info", &[], name);
    for card in cards {
        let of = [("uuid", card["uuid"].as_str().unwrap())];
        agree("nvitop", page, NVITOP_CARD, &of, card);
        for (name, ours) in [
            ("name", "model"),
            ("serial", "serial"),
            ("bus_id", "pci_bus_id"),
            ("compute_capability", "compute_capability"),
        ] {
            assert_eq!(label(page, "gpuwarden_gpu_info", &of, ours), card[name].as_str(), "{name}");
        }
        assert_eq!(driver("driver_version"), card["driver_version"].as_str());
        assert_eq!(driver("cuda_version"), card["cuda_driver_version"].as_str());
        let number = |family: &str| page.value(&format!("gpuwarden_{family}"), &of);
        let flag = |name: &str| card[name].as_str().map(|mode| f64::from(u8::from(mode == "Enabled")));
        assert_eq!(number("gpu_persistence_mode"), flag("persistence_mode"));
        assert_eq!(number("gpu_mig_mode"), flag("mig_mode"));
        let state = card["performance_state"].as_str().map(|state| state[1..].parse().unwrap());
        assert_eq!(number("gpu_performance_state"), state);
        let mode = card["compute_mode"].as_str().map(|mode| match mode {
            "Default" => 0.0,
            "Prohibited" => 2.0,
            "Exclusive Process" => 3.0,
            other => panic!("{other}"),
        });
        assert_eq!(number("gpu_compute_mode"), mode);
        let uncorrected = [of[0], ("type", "uncorrected")];
        let errors = page.all("gpuwarden_gpu_ecc_errors_total", &uncorrected).map(|sample| sample.value);
        let sum = errors.reduce(|sum, more| sum + more);
        assert_eq!(sum, card["total_volatile_uncorrected_ecc_errors"].as_f64());

        let processes = card["processes"].as_array().unwrap();
        assert_eq!(processes.len(), page.all("gpuwarden_process_memory_bytes", &of).count());
        for process in processes {
            let pid = ("pid", process["pid"].as_str().unwrap());
            agree("nvitop", page, NVITOP_PROCESS, &[of[0], pid], process);
            let info = |name| label(page, "gpuwarden_process_info", &[pid], name).map(str::to_owned);
            assert_eq!(info("command").as_deref(), process["name"].as_str());
            let kind = match process["type"].as_str().unwrap() {
                "C" => "compute",
                "G" => "graphics",
                _ => "both",
            };
            assert_eq!(info("kind").as_deref(), Some(kind));
            let memory = page.value("gpuwarden_process_host_memory_bytes", &[pid]);
            assert_eq!(memory, process["host_memory"].as_f64());
            let started = page.value("gpuwarden_process_start_time_seconds", &[pid]).unwrap();
            assert!((started - process["create_time"].as_f64().unwrap()).abs() < 2.0);
            // Whom the peer names it asks this host, which has never heard of the people of the node.
            assert!(workers.iter().any(|worker| worker.pid().to_string() == pid.1));
        }
    }
}

fn gpustat(page: &Page, shown: &Value) {
    assert_eq!(label(page, "gpuwarden_driver_info", &[], "driver_version"), shown["driver_version"].as_str());
    let cards = shown["gpus"].as_array().unwrap();
    assert_eq!(cards.len(), page.all("gpuwarden_gpu_up", &[]).count());
    for card in cards {
        let of = [("uuid", card["uuid"].as_str().unwrap())];
        agree("gpustat", page, GPUSTAT_CARD, &of, card);
        let info = |name| label(page, "gpuwarden_gpu_info", &of, name);
        assert_eq!(info("model"), card["name"].as_str());
        assert_eq!(info("gpu"), Some(card["index"].to_string().as_str()));
        // It cuts watts down to whole ones.
        let power = page.value("gpuwarden_gpu_power_watts", &of).map(f64::floor);
        assert_eq!(power, card["power.draw"].as_f64());
        let processes = card["processes"].as_array().unwrap();
        assert_eq!(processes.len(), page.all("gpuwarden_process_memory_bytes", &of).count());
        for process in processes {
            let pid = process["pid"].to_string();
            agree("gpustat", page, GPUSTAT_PROCESS, &[of[0], ("pid", &pid)], process);
            let of_pid = [("pid", pid.as_str())];
            assert_eq!(label(page, "gpuwarden_process_info", &of_pid, "command"), process["command"].as_str());
            let memory = page.value("gpuwarden_process_host_memory_bytes", &[("pid", &pid)]);
            assert_eq!(memory, process["cpu_memory_usage"].as_f64());
        }
    }
}
