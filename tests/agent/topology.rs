//! How the cards are wired, in `/api/v1/status`.

use crate::harness::{Agent, Node, eventually};
use expect_test::{Expect, expect};
use nvml_sim::scenario::Remote;
use nvml_sim::value::Error;
use nvml_sim::{Gpu, Scenario};
use serde_json::Value as Json;
use std::fmt::Write;

/// The first two cards share a PCIe switch and two NVLinks, of which one end of the second is down; the third has links
/// to switches, the fourth none at all, and both are far away.
const WIRED: &str = "
topology: [{gpus: [0, 1], level: single}, {gpus: [2, 3], level: hostbridge}]
gpus:
  - {numa_node: 0, nvlink: {links: [true, true, false], remotes: [1, 1, 1]}}
  - {numa_node: 0, nvlink: {links: [true, true], remotes: [0, 0]}}
  - {numa_node: 1, nvlink: {links: [true, true, true], remotes: [switch, switch, switch]}}
  - {numa_node: 1}
";

fn node(scenario: &str) -> Node {
    let mut node = Node::new(0);
    let written: Scenario = scenario.parse().unwrap();
    node.change(|scenario| *scenario = written);
    node
}

/// The topology in lines; what is not known is `-`.
fn told(agent: &Agent) -> String {
    let status = agent.get("/api/v1/status").unwrap().json();
    let topology = &status["topology"];
    let known = |value: &Json| if value.is_null() { "-".to_owned() } else { value.to_string() };
    let mut text = String::new();
    for card in topology["cards"].as_array().unwrap() {
        assert!(card["uuid"].as_str().unwrap().starts_with("GPU-"));
        let (nodes, switches) = (&card["numa_nodes"], known(&card["nvswitch_links"]));
        writeln!(text, "{}: numa {nodes} switches {switches}", card["gpu"]).unwrap();
    }
    for pair in topology["pairs"].as_array().unwrap() {
        let (gpus, pcie, links) = (&pair["gpus"], pair["pcie"].as_str().unwrap_or("-"), known(&pair["nvlinks"]));
        writeln!(text, "{gpus}: {pcie} links {links}").unwrap();
    }
    text
}

#[track_caller]
fn check(agent: &Agent, expected: Expect) {
    expected.assert_eq(&told(agent));
}

#[test]
fn links_switches_buses_and_numa_nodes_are_told() {
    let agent = node(WIRED).start();
    check(
        &agent,
        expect![[r#"
        0: numa [0] switches 0
        1: numa [0] switches 0
        2: numa [1] switches 3
        3: numa [1] switches -
        [0,1]: single links 2
        [0,2]: system links 0
        [0,3]: system links 0
        [1,2]: system links 0
        [1,3]: system links 0
        [2,3]: hostbridge links 0
    "#]],
    );
}

#[test]
fn what_the_driver_does_not_tell_is_absent() {
    let mut node = node(WIRED);
    node.change(|scenario| {
        scenario.gpus[0].errors = [("nvmlDeviceGetNvLinkState".into(), Error::UNKNOWN)].into();
        scenario.gpus[1].nvlink.remotes[1] = Remote::Unknown;
        scenario.gpus[2].errors = [("nvmlDeviceGetTopologyCommonAncestor".into(), Error::UNKNOWN)].into();
        scenario.gpus[3] = Gpu::default();
    });
    let agent = node.start();
    check(
        &agent,
        expect![[r#"
        0: numa [0] switches -
        1: numa [0] switches -
        2: numa [1] switches 3
        3: numa [] switches -
        [0,1]: single links -
        [0,2]: system links 0
        [0,3]: system links -
        [1,2]: system links 0
        [1,3]: system links -
        [2,3]: - links 0
    "#]],
    );
}

#[test]
fn a_lost_card_stays_where_it_is_and_one_that_joins_is_asked() {
    let mut node = node(WIRED);
    node.change(|scenario| scenario.gpus.truncate(2));
    let agent = node.start();
    let before = told(&agent);
    assert_eq!(before.lines().count(), 3, "{before}");
    node.change(|scenario| scenario.gpus[0].lost = true);
    agent.shows("the card is lost", |page| page.value("gpuwarden_gpu_up", &[("gpu", "0")]) == Some(0.0));
    assert_eq!(told(&agent), before);
    node.change(|scenario| scenario.gpus.push(Gpu { numa_node: 1.into(), ..Gpu::default() }));
    let pairs = eventually("the new card is there", || Some(told(&agent)).filter(|told| told.contains("[1,2]")));
    expect![[r#"
        0: numa [0] switches 0
        1: numa [0] switches 0
        2: numa [1] switches -
        [0,1]: single links 2
        [1,2]: system links 0
    "#]]
    .assert_eq(&pairs);
    node.change(|scenario| scenario.gpus[0].lost = false);
    eventually("all pairs are told", || told(&agent).contains("[0,2]: system links 0").then_some(()));
}

#[test]
fn a_driver_that_is_loaded_again_is_asked_again_and_one_that_is_gone_tells_nothing() {
    let mut node = node(WIRED);
    node.change(|scenario| scenario.gpus.truncate(2));
    let agent = node.start();
    node.change(|scenario| scenario.errors = [("nvmlDeviceGetCount_v2".into(), Error::DRIVER_NOT_LOADED)].into());
    eventually("nothing is told", || told(&agent).is_empty().then_some(()));
    node.change(|scenario| {
        scenario.errors.clear();
        scenario.topology.clear();
    });
    let told = eventually("it is told again", || Some(told(&agent)).filter(|told| !told.is_empty()));
    expect![[r#"
        0: numa [0] switches 0
        1: numa [0] switches 0
        [0,1]: node links 2
    "#]]
    .assert_eq(&told);
}
