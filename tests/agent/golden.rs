//! Every series of one node, on a page that a person can read: `tests/golden/node.prom`, renewed with `UPDATE_EXPECT=1`.

use std::fmt::Write;

use expect_test::expect_file;
use nvml_sim::Scenario;

use crate::harness::worker::SLEEPS;
use crate::harness::{Node, root};

const OBSERVE: &str = r#"
rules:
  - name: unassigned-gpu
    description: Use only the GPUs that are assigned to you.
    about: user
    per_gpu: true
    when: [{assigned: false}, {memory: "> 300MiB"}]
    then: [{after: 1h, warn: [terminal]}, {after: 10m, signal: TERM}]
"#;

/// Values that are another on each run, by the end of the family's name; and all that the agent tells of itself.
const VARIES: [&str; 12] = [
    "_seconds",
    "_seconds_total",
    "_joules_total",
    "_host_memory_bytes",
    "nvml_errors_total",
    "cycles_total",
    "cycles_late_total",
    "config_hash",
    "gpus_expected",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "_fds",
];

#[test]
fn every_series_of_a_node_stands_on_one_page() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(0);
    let mut full: Scenario = include_str!("scenarios/four-cards.yaml").parse().unwrap();
    full.gpus.iter_mut().for_each(|gpu| gpu.processes.clear());
    node.change(|scenario| *scenario = full);
    node.configure("assignments: {fixed: [{to: {user: alice}, gpus: [0]}, {to: {group: carol}, gpus: [1]}]}");
    node.rules(OBSERVE);
    let workers = [node.alice, node.bob].map(|who| node.runs(who, SLEEPS));
    node.held(0, &[&workers[0].with(10)]);
    node.held(1, &[&workers[1].with(4)]);
    let agent = node.start();
    agent.shows("all cards", |page| page.all("gpuwarden_gpu_up", &[]).count() == 4);
    node.change(|scenario| scenario.gpus[3].lost = true);
    let page = agent.shows("all of it", |page| {
        let violation = page.value("gpuwarden_violations", &[("user", "bob"), ("state", "pending")]);
        let lost = page.value("gpuwarden_gpu_up", &[("gpu", "3")]);
        violation == Some(1.0) && lost == Some(0.0) && page.value("gpuwarden_user_gpus", &[("user", "alice")]).is_some()
    });
    let people = [("alice", node.alice.uid, workers[0].pid()), ("bob", node.bob.uid, workers[1].pid())];
    let text = people.iter().fold(page.text, |text, (name, uid, pid)| {
        text.replace(&format!("uid=\"{uid}\""), &format!("uid=\"{name}'s\""))
            .replace(&format!("pid=\"{pid}\""), &format!("pid=\"{name}'s\""))
    });
    let steady = text.lines().fold(String::new(), |mut steady, line| {
        match line.rsplit_once(' ') {
            Some((series, _)) if varies(series) => writeln!(steady, "{series} *").unwrap(),
            _ => writeln!(steady, "{line}").unwrap(),
        }
        steady
    });
    expect_file!["../golden/node.prom"].assert_eq(&steady);
}

fn varies(series: &str) -> bool {
    let family = series.split('{').next().unwrap();
    !series.starts_with('#') && (family == "process_threads" || VARIES.iter().any(|end| family.ends_with(end)))
}
