//! Every call that the agent makes fails, one at a time, in every way: nothing that is told is wrong, nothing is lost but
//! what that call tells, and all of it comes back.

use crate::harness::wait::within;
use crate::harness::{Agent, Node, Page, root};
use crate::pages::promtool_is_silent;
use nvml_sim::scenario::{Calls, Pcie};
use nvml_sim::units::{Bytes, Load, Percent, Span};
use nvml_sim::value::{Error, Value};
use nvml_sim::{Gpu, Process, Scenario};
use std::collections::{BTreeMap, BTreeSet};

type Series = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// A node with as many cards that support everything; the agent's own host has somebody with the pid 1.
fn node(cards: usize) -> Node {
    let mut full: Scenario = include_str!("scenarios/four-cards.yaml").parse().unwrap();
    let process = Process { pid: 1, always: true, ..full.gpus[0].processes[0].clone() };
    full.gpus = vec![Gpu { processes: vec![process], ..Gpu::default() }; cards];
    let mut node = Node::new(0);
    node.change(|scenario| *scenario = full);
    node
}

/// The calls about a card, as the simulated driver wrote them down.
fn calls() -> Vec<String> {
    let mut node = node(1);
    let file = node.path("calls");
    node.before = format!("export NVML_SIM_CALLS={}", file.display());
    let agent = node.start();
    agent.cycles(2);
    drop(agent);
    let text = std::fs::read_to_string(file).unwrap();
    let calls: BTreeSet<&str> = text.lines().filter_map(|line| line.split_once(' ')).map(|(call, _)| call).collect();
    calls.into_iter().filter(|call| call.starts_with("nvml")).map(str::to_owned).collect()
}

/// What a page tells of the cards and does not change by itself.
fn steady(page: &Page) -> Series {
    let changes = ["_seconds", "_seconds_total", "_joules_total", "_utilization_ratio"];
    let about_cards =
        page.samples.iter().filter(|sample| sample.labels.contains_key("uuid") && !sample.name.contains("user_"));
    about_cards
        .filter(|sample| !changes.iter().any(|end| sample.name.ends_with(end)))
        .map(|sample| ((sample.name.clone(), sample.labels.clone()), sample.value))
        .collect()
}

/// Differences between what is told and what is true.
fn wrong(told: &Series, truth: &Series) -> Vec<String> {
    let right = |(name, labels): &(String, BTreeMap<String, String>), value: f64| {
        // What a card is stands in labels; one that does not tell it leaves it empty.
        let info = |(other, theirs): &(String, BTreeMap<String, String>)| {
            name.ends_with("_info")
                && other == name
                && labels.iter().all(|(key, value)| value.is_empty() || theirs.get(key) == Some(value))
        };
        let down = name == "gpuwarden_gpu_up" || name == "gpuwarden_gpu_fault_info";
        down || truth.get(&(name.clone(), labels.clone())) == Some(&value) || truth.keys().any(info)
    };
    told.iter().filter(|(key, value)| !right(key, **value)).map(|(key, value)| format!("{key:?} {value}")).collect()
}

fn failing(node: &mut Node, calls: &[String], error: Error) {
    node.change(|scenario| {
        for (card, call) in scenario.gpus.iter_mut().zip(calls) {
            card.errors = Calls::from([(call.clone(), error)]);
        }
    });
}

fn well(node: &mut Node) {
    node.change(|scenario| scenario.gpus.iter_mut().for_each(|card| card.errors.clear()));
}

fn comes_back(agent: &Agent, truth: &Series, what: &str, calls: &[String]) {
    let came = within(std::time::Duration::from_secs(20), || {
        let now = steady(&agent.page());
        (now == *truth).then_some(())
    });
    if came.is_none() {
        let now = steady(&agent.page());
        for key in truth.keys().filter(|key| now.get(key) != truth.get(key)) {
            eprintln!("{what}: {} after {}", key.0, calls[key.1["gpu"].parse::<usize>().unwrap()]);
        }
        panic!("{what}: not all is back");
    }
}

/// Those of which a driver may think better. What it does not support, or has in another version, it is not asked again.
const PASSING: [Error; 9] = [
    Error::UNKNOWN,
    Error::GPU_IS_LOST,
    Error::NO_PERMISSION,
    Error::TIMEOUT,
    Error::UNINITIALIZED,
    Error::INSUFFICIENT_SIZE,
    Error::RESET_REQUIRED,
    Error::NOT_FOUND,
    Error::INVALID_ARGUMENT,
];

#[test]
fn no_call_that_fails_costs_more_than_what_it_tells() {
    if !root("a record of the calls") {
        return;
    }
    let calls = calls();
    assert!(calls.len() > 40, "{calls:?}");
    let mut node = node(calls.len());
    let agent = node.start();
    let truth = steady(&agent.cycles(3));
    let mut bad = 0;
    for error in PASSING {
        failing(&mut node, &calls, error);
        let page = agent.cycles(3);
        promtool_is_silent(&page.text);
        for line in wrong(&steady(&page), &truth) {
            eprintln!("{error:?} {line}");
            bad += 1;
        }
        well(&mut node);
        comes_back(&agent, &truth, &format!("{error:?}"), &calls);
    }
    assert_eq!(bad, 0);
}

#[test]
fn a_call_that_fails_from_the_start_is_made_again() {
    if !root("a record of the calls") {
        return;
    }
    let calls = calls();
    let mut node = node(calls.len());
    let truth = steady(&node.start().cycles(3));
    for error in PASSING.into_iter().filter(|error| *error != Error::UNINITIALIZED) {
        failing(&mut node, &calls, error);
        let agent = node.start();
        agent.cycles(2);
        well(&mut node);
        comes_back(&agent, &truth, &format!("{error:?}"), &calls);
    }
}

#[test]
fn what_a_driver_has_in_another_version_is_not_asked_for_again() {
    if !root("a record of the calls") {
        return;
    }
    let calls = calls();
    let mut node = node(calls.len());
    let truth = steady(&node.start().cycles(3));
    for error in [Error::ARGUMENT_VERSION_MISMATCH, Error::DEPRECATED] {
        failing(&mut node, &calls, error);
        let page = node.start().cycles(3);
        promtool_is_silent(&page.text);
        // What is reserved counts as used in the first version.
        // A card that does not say which reasons it knows is one where none of the others holds.
        let known = ["memory_used", "memory_unattributed", "clock_event_active"];
        let other = |line: &String| !known.iter().any(|known| line.contains(known));
        let wrong: Vec<String> = wrong(&steady(&page), &truth).into_iter().filter(other).collect();
        assert_eq!(wrong, [""; 0]);
        let memory = calls.iter().position(|call| call == "nvmlDeviceGetMemoryInfo_v2").unwrap().to_string();
        let told = |family: &str| page.value(&format!("gpuwarden_gpu_memory_{family}_bytes"), &[("gpu", &memory)]);
        assert!(told("total").is_some() && told("reserved").is_none(), "the first version tells without it");
        let name = if error == Error::DEPRECATED { "DEPRECATED" } else { "ARGUMENT_VERSION_MISMATCH" };
        let errors = |call: &str| page.value("gpuwarden_nvml_errors_total", &[("call", call), ("error", name)]);
        for call in ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetTemperature"] {
            assert_eq!(errors(call), Some(1.0), "{call}");
        }
        node.change(|scenario| scenario.gpus.iter_mut().for_each(|card| card.errors.clear()));
    }
}

#[test]
fn versions_that_a_driver_could_not_tell_are_asked_for_again() {
    let mut node = Node::new(1);
    node.change(|scenario| scenario.errors = [("nvmlSystem*".into(), Error::TIMEOUT)].into());
    let agent = node.start();
    assert_eq!(agent.cycles(1).value("gpuwarden_driver_info", &[("driver_version", "")]), Some(1.0));
    node.change(|scenario| scenario.errors.clear());
    agent.shows("the versions", |page| {
        let told = page.all("gpuwarden_driver_info", &[]).next().unwrap();
        ["driver_version", "nvml_version", "cuda_version"].iter().all(|label| told.labels.contains_key(*label))
    });
}

const UTILIZATION: &str = "gpuwarden_gpu_utilization_ratio";

#[test]
fn samples_go_on_after_the_clock_was_set_back() {
    let mut node = Node::new(1);
    let process = Process { pid: 1, always: true, utilization: Some(Load::Steady(Percent(100))), ..Process::default() };
    node.change(|scenario| scenario.gpus[0].utilization = Load::Steady(Percent(100)).into());
    node.held(0, &[&process]);
    let agent = node.start();
    let read = |page: &Page| {
        let process = page.all("gpuwarden_process_utilization_ratio", &[]).next().map(|sample| sample.value);
        (page.value("gpuwarden_gpu_busy_seconds_total", &[]).unwrap(), process)
    };
    agent.shows("both are busy", |page| read(page).0 > 0.0 && read(page).1 == Some(1.0));
    node.change(|scenario| scenario.samples_behind = Some(Span(3_600_000_000)));
    agent.cycles(2);
    let (stood, _) = read(&agent.page());
    let page = agent.shows("the counter goes on", |page| {
        assert_ne!(read(page).1, Some(0.0), "nobody saw it idle");
        read(page).0 > stood + 1.0
    });
    assert!(read(&page).0 < stood + 4.0, "an hour was not made up for");
    agent.shows("so does the process", |page| read(page).1 == Some(1.0));
}

#[test]
fn a_driver_that_keeps_more_samples_than_others_is_heard() {
    let mut node = Node::new(1);
    node.change(|scenario| scenario.kept_samples = Some(2000));
    let agent = node.start();
    agent.shows("idle time", |page| page.value("gpuwarden_gpu_idle_seconds_total", &[]).is_some_and(|idle| idle > 0.0));
    assert_eq!(agent.page().all("gpuwarden_nvml_errors_total", &[]).count(), 0);
}

#[test]
fn nobody_is_idle_whose_card_was_not_watched_all_the_time() {
    let mut node = Node::new(1);
    node.held(0, &[&Process { pid: 1, always: true, ..Process::default() }]);
    let agent = node.start();
    let ratio = |page: &Page| page.all("gpuwarden_process_utilization_ratio", &[]).next().map(|sample| sample.value);
    agent.shows("it is idle", |page| ratio(page) == Some(0.0));
    node.change(|scenario| scenario.errors = [("nvmlDeviceGetSamples".into(), Error::UNKNOWN)].into());
    let page = agent.cycles(2);
    assert_eq!(page.value(UTILIZATION, &[]), Some(0.0), "the driver's own last look");
    assert_eq!(ratio(&page), None);
}

#[test]
fn a_card_that_was_lost_is_met_anew() {
    let mut node = Node::new(1);
    let pcie = |total: u64| Pcie { rx_total: Bytes(total).into(), ..Pcie::default() };
    node.change(|scenario| {
        scenario.gpus[0].pcie = pcie(3 << 30);
        scenario.defaults.temperature = Value::LeftOut;
    });
    let agent = node.start();
    let page = agent.cycles(1);
    let up = |page: &Page| page.value("gpuwarden_gpu_up", &[]);
    let received = |page: &Page| page.value("gpuwarden_gpu_pcie_bytes_total", &[("direction", "rx")]);
    assert_eq!((up(&page), received(&page)), (Some(1.0), Some(0.0)));
    assert_eq!(page.all("gpuwarden_gpu_temperature_celsius", &[]).count(), 0);
    node.change(|scenario| scenario.gpus[0].lost = true);
    agent.shows("it is lost", |page| up(page) == Some(0.0));
    // Whoever resets it sees its counters begin anew.
    node.change(|scenario| {
        scenario.gpus[0].lost = false;
        scenario.gpus[0].pcie = pcie(1 << 20);
        scenario.gpus[0].temperature = 41.into();
    });
    let page = agent.shows("it is back", |page| up(page) == Some(1.0));
    assert_eq!(received(&page), Some(0.0), "no wrap");
    assert_eq!(page.value("gpuwarden_gpu_temperature_celsius", &[]), Some(41.0));
}

#[test]
fn of_two_cards_with_one_name_the_first_has_it() {
    let mut node = Node::new(3);
    node.change(|scenario| {
        scenario.gpus[1].uuid = Some("GPU-00000000-0000-4000-8000-000000000000".into());
        scenario.gpus[0].temperature = 40.into();
        scenario.gpus[1].temperature = 50.into();
    });
    let agent = node.start();
    let page = agent.cycles(2);
    promtool_is_silent(&page.text);
    assert_eq!(page.value("gpuwarden_gpu_temperature_celsius", &[("gpu", "0")]), Some(40.0));
    assert_eq!(page.value("gpuwarden_gpus_found", &[]), Some(2.0));
}

#[test]
fn numbers_that_cannot_be_end_no_agent() {
    let mut node = Node::new(0);
    let all = u64::MAX;
    let scenario = format!(
        "gpus: [{{mig: {{enabled: true, max: 4294967295}}, memory: {{total: 1GiB, used: 2GiB}},
            ecc: {{mode: true, volatile: {{corrected: {{sram: 1}}, uncorrected: {{sram: {all}}}}}}}}}]"
    );
    node.change(|now| *now = scenario.parse().unwrap());
    let page = node.start().cycles(2);
    assert_eq!(page.value("gpuwarden_gpu_up", &[]), Some(1.0));
    assert_eq!(page.value("gpuwarden_gpu_memory_total_bytes", &[]), Some(f64::from(1 << 30)));
    assert_eq!(page.value("gpuwarden_gpu_memory_used_bytes", &[]), None);
    let errors = |kind: &str| page.value("gpuwarden_gpu_ecc_errors_total", &[("type", kind), ("location", "sram")]);
    assert_eq!((errors("corrected"), errors("uncorrected")), (Some(1.0), None));
}
