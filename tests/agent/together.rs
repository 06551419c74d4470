//! The agent beside other programs: readers of the same driver, Grafana's queries, systemd.

use crate::harness::agent::free_address;
use crate::harness::worker::{IGNORES_TERM, SLEEPS};
use crate::harness::{Node, Page, root};
use crate::ladder::{ENFORCE, UNASSIGNED};
use crate::pages::Prometheus;
use crate::peers::{gpustat_sees, nvidia_ml_py_sees, nvitop_sees};
use crate::shipped::expressions;
use nvml_sim::scenario::Kind;
use nvml_sim::units::{Load, Percent, Power};
use nvml_sim::{Process, Scenario};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{fs, io};

/// What the agent exports, in the shape in which peers are asked. Whole numbers, as NVML has them.
fn as_peers_see(page: &Page) -> Value {
    let number = |family: &str, labels: &[(&str, &str)], scale: f64| {
        page.value(family, labels).map_or(Value::Null, |value| json!((value * scale).round() as u64))
    };
    let cards = page.all("gpuwarden_gpu_info", &[]).map(|card| {
        let uuid = card.labels["uuid"].as_str();
        let of = [("uuid", uuid)];
        let processes: BTreeMap<String, u64> = page
            .all("gpuwarden_process_memory_bytes", &of)
            .map(|sample| (sample.labels["pid"].clone(), sample.value as u64))
            .collect();
        json!({
            "name": card.labels["model"],
            "uuid": uuid,
            "memory_total": number("gpuwarden_gpu_memory_total_bytes", &of, 1.0),
            "memory_used": number("gpuwarden_gpu_memory_used_bytes", &of, 1.0),
            "utilization": number("gpuwarden_gpu_utilization_ratio", &of, 100.0),
            "temperature": number("gpuwarden_gpu_temperature_celsius", &of, 1.0),
            "power": number("gpuwarden_gpu_power_watts", &of, 1.0),
            "processes": processes,
        })
    });
    let mut cards: Vec<Value> = cards.collect();
    cards.sort_by_key(|card| card["uuid"].to_string());
    Value::Array(cards)
}

#[test]
fn nvitop_and_gpustat_see_what_the_agent_sees() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(3);
    let workers = [node.alice, node.alice, node.bob].map(|who| node.runs(who, SLEEPS));
    node.change(|scenario| {
        scenario.defaults.utilization = Load::Steady(Percent(37)).into();
        scenario.gpus[0].processes = vec![workers[0].with(10), workers[1].with(3)];
        scenario.gpus[1].processes = vec![Process { kind: Kind::Both, ..workers[2].with(60) }];
        scenario.gpus[1].temperature = 83.into();
        scenario.gpus[1].power = Power(699_000).into();
    });
    let agent = node.start();
    let page = agent.shows("all processes", |page| page.all("gpuwarden_process_memory_bytes", &[]).count() == 3);
    let ours = as_peers_see(&page);
    for (peer, theirs) in [
        ("nvidia-ml-py", nvidia_ml_py_sees(&node.scenario())),
        ("nvitop", nvitop_sees(&node.scenario())),
        ("gpustat", gpustat_sees(&node.scenario())),
    ] {
        assert_eq!(theirs, ours, "{peer} sees\n{theirs:#}\nand the agent\n{ours:#}");
    }
}

/// Cards that can tell all that the dashboard asks.
const TALKATIVE: &str = "
    gpus:
      - {gpm: {2: 90.0, 5: 60.0, 10: 33.0}}
      - {}
      - mig:
          enabled: true
          instances: [{profile: 1g.10gb, gpu_instance: 7, memory: {total: 10GiB, used: 4GiB}, gpm: {2: 75.0}}]
    defaults:
      name: NVIDIA H100 80GB HBM3
      memory: {total: 80GiB, reserved: 500MiB}
      utilization: 50%
      temperature: 41
      temperature_thresholds: {slowdown: 87}
      power: 120W
      power_limits: {enforced: 700W}
      energy: integrate
      clocks: {sm: 1980MHz}
      clock_events: []
      fans: [30%]
      pcie: {generation: 5, max_generation: 5, width: 16, max_width: 16, replays: 0, tx_total: 5GiB, rx_total: 7GiB}
      nvlink: {links: [true, true], tx_total: 1GiB, rx_total: 1GiB}
      ecc: {mode: true, volatile: {corrected: {dram: 1, sram: 0}, uncorrected: {dram: 0, sram: 0}}}
      retired_pages: {single_bit: [4096], double_bit: [], pending: false}
      remapped_rows: {corrected: 0, uncorrected: 1, pending: false, failure: false}
";

#[test]
fn every_panel_of_the_dashboard_has_data() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(2);
    node.change(|scenario| *scenario = TALKATIVE.parse::<Scenario>().unwrap());
    node.configure(&format!("{ENFORCE}assignments: {{fixed: [{{to: {{user: carol}}, gpus: [0]}}]}}"));
    node.rules(UNASSIGNED);
    let agent = node.start();
    let prometheus = Prometheus::scraping(&agent, &node.path(""));
    let counted = |query: &str| prometheus.value(query);
    assert_eq!(counted("up"), 1.0);
    // Only now, so that each counter is seen to rise: one is warned and signalled, one cannot be reached.
    let workers =
        [node.runs(node.carol, SLEEPS), node.runs_on_terminal(node.alice, IGNORES_TERM), node.runs(node.bob, SLEEPS)];
    node.held(0, &[&workers[0].with(8), &workers[2].with(2)]);
    node.held(1, &[&workers[1].with(10)]);
    let on_an_instance = Process { gpu_instance: Some(7), compute_instance: Some(0), ..workers[0].with(3) };
    node.held(2, &[&on_an_instance]);
    node.change(|scenario| scenario.gpus[0].xids = vec![94]);
    agent.shows("the Xid error", |page| page.all("gpuwarden_gpu_xid_errors_total", &[]).count() == 1);
    let dashboard: Value = serde_json::from_str(include_str!("../../grafana/node.json")).unwrap();
    for (title, query) in expressions(&dashboard, &agent.address.to_string()) {
        // That there is something, not what.
        assert!(counted(&format!("count({query})")) >= 1.0, "{title}");
    }
}

/// The families of each switch of `metrics`, as the page has them.
fn families_of_switches() -> BTreeMap<&'static str, BTreeSet<String>> {
    let page = include_str!("../../docs/config.md");
    let table = page.split("\n| switch | families |\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows = table.lines().skip(1).map(|row| {
        let mut words = row.split('`').skip(1).step_by(2);
        (words.next().unwrap(), words.map(|family| format!("gpuwarden_{family}")).collect())
    });
    rows.collect()
}

#[test]
fn a_switch_takes_the_families_that_the_page_says_and_no_other() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(0);
    let worker = node.runs(node.alice, SLEEPS);
    node.change(|scenario| {
        *scenario = include_str!("scenarios/four-cards.yaml").parse::<Scenario>().unwrap();
        let talkative: Scenario = TALKATIVE.parse().unwrap();
        let share = || Some(Load::Steady(Percent(7)));
        let busy = Process {
            utilization: share(),
            memory_utilization: share(),
            encoder_utilization: share(),
            decoder_utilization: share(),
            ..worker.with(10)
        };
        scenario.gpus.iter_mut().for_each(|gpu| gpu.processes.clear());
        scenario.gpus[0].processes = vec![busy];
        scenario.gpus[0].gpm = talkative.gpus[0].gpm.clone();
        scenario.gpus.push(talkative.gpus[2].clone());
    });
    let switches = families_of_switches();
    let without = |off: &str| {
        let lines = switches.keys().map(|switch| format!("{switch}: {}", *switch != off)).collect::<Vec<_>>();
        node.configure(&format!("metrics: {{{}}}", lines.join(", ")));
    };
    let families = |page: &Page| page.samples.iter().map(|sample| sample.name.clone()).collect::<BTreeSet<_>>();
    without("");
    let agent = node.start();
    let all = families(&agent.shows("what everything tells", |page| {
        let told = |family| page.all(family, &[]).next().is_some();
        told("gpuwarden_process_decoder_utilization_ratio") && told("gpuwarden_mig_sm_active_ratio")
    }));
    for (switch, documented) in &switches {
        without(switch);
        assert!(agent.reload());
        let shown = families(&agent.cycles(3));
        let left: Vec<&String> = documented.intersection(&shown).collect();
        assert!(left.is_empty(), "{switch} leaves {left:?}");
        let gone: BTreeSet<String> = all.difference(&shown).cloned().collect();
        assert!(!gone.is_empty() && gone.is_subset(documented), "{switch} takes {gone:?}");
    }
}

#[test]
fn systemd_hears_that_it_is_ready_alive_reloading_and_ending() {
    let mut node = Node::new(1);
    let path = node.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    node.notify = Some(path);
    socket.set_read_timeout(Some(crate::harness::LIMIT)).unwrap();
    let hears = |what: &str| {
        let mut buffer = [0; 1024];
        loop {
            let length = socket.recv(&mut buffer).unwrap_or_else(|error: io::Error| panic!("{what}: {error}"));
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == what) {
                return;
            }
        }
    };
    let agent = node.start();
    hears("READY=1");
    hears("WATCHDOG=1");
    assert!(agent.reload());
    hears("RELOADING=1");
    hears("READY=1");
    assert!(agent.stop().success());
    hears("STOPPING=1");
}

#[test]
fn a_systemd_that_hears_nothing_stops_no_cycle() {
    let mut node = Node::new(1);
    let path = node.path("notify");
    let _unread = UnixDatagram::bind(&path).unwrap();
    node.notify = Some(path);
    let agent = node.start();
    // More than the kernel keeps for it (net.unix.max_dgram_qlen).
    let kept = fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").unwrap().trim().parse::<u32>().unwrap();
    agent.cycles(kept.min(40) + 5);
    assert!(agent.stop().success());
}

#[test]
fn systemd_hears_in_an_abstract_socket() {
    let mut node = Node::new(1);
    let name = format!("gpuwarden-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(crate::harness::LIMIT)).unwrap();
    node.notify = Some(format!("@{name}").into());
    let _agent = node.start();
    let mut buffer = [0; 1024];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1\n");
}

#[test]
fn logs_are_lines_of_json_where_that_is_asked_for() {
    let mut node = Node::new(1);
    let agent = node.start_with(&["--log.format=json", "--log.level=debug"]);
    agent.reload();
    node.change(|scenario| scenario.errors = [("*".into(), nvml_sim::value::Error::UNINITIALIZED)].into());
    agent.shows("a silent driver", |page| page.value("gpuwarden_source_up", &[("source", "nvml")]) == Some(0.0));
    let log = agent.log();
    assert!(!log.is_empty());
    for line in log.lines() {
        let told = serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(told["fields"]["message"].is_string(), "{line}");
    }
}

#[test]
fn it_listens_on_several_addresses() {
    let node = Node::new(1);
    let second = free_address();
    let agent = node.start_with(&[&format!("--web.listen-address={second}")]);
    assert_eq!(crate::harness::http::ask(second, "GET", "/metrics").unwrap().status, 200);
    assert_eq!(agent.get("/metrics").unwrap().status, 200);
}

#[test]
fn the_port_that_the_kernel_chose_is_said() {
    let node = Node::new(1);
    let agent = node.start_with(&["--web.listen-address=127.0.0.1:0"]);
    let log = agent.log();
    let ports = log.split("127.0.0.1:").skip(1).filter_map(|rest| rest.split(['"', ' ', '\n']).next()?.parse().ok());
    let chosen = ports.last().map(|port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert_ne!(chosen, agent.address);
    assert_eq!(crate::harness::http::ask(chosen, "GET", "/metrics").unwrap().status, 200);
}
