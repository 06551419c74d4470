//! Fuses: a rule that would act on implausibly many acts on none.

use crate::harness::agent::in_node;
use crate::harness::worker::IGNORES_TERM;
use crate::harness::{Node, Worker, root};
use crate::ladder::{KILL, NOBODY_MAY, SENTENCE, UNASSIGNED, told};

/// So many processes of alice's that break the rule.
fn crowd(node: &mut Node, size: usize) -> Vec<Worker> {
    let workers: Vec<Worker> = (0..size).map(|_| node.runs_on_terminal(node.alice, IGNORES_TERM)).collect();
    hold(node, &workers);
    workers
}

fn hold(node: &mut Node, workers: &[Worker]) {
    let processes: Vec<_> = workers.iter().map(|worker| worker.with(2)).collect();
    node.held(0, &processes.iter().collect::<Vec<_>>());
}

fn limited(limits: &str) -> Node {
    let node = Node::new(1);
    node.configure(&format!("mode: enforce\nlimits: {{start_delay: 0s, {limits}}}\n{NOBODY_MAY}"));
    node.rules(UNASSIGNED);
    node
}

pub fn ask_reset(node: &Node, what: &str) -> std::process::Output {
    let mut reset = in_node(node);
    reset.args(["reset", what]).arg(format!("--config.file={}", node.path("gpuwarden.yaml").display()));
    reset.stderr(std::process::Stdio::piped()).output().unwrap()
}

pub fn reset(node: &Node, what: &str) {
    let done = ask_reset(node, what);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_blown_fuse_lets_neither_term_nor_kill_through_until_it_is_reset() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = limited("share_of_workloads: 25%, acts_per_cycle: 10");
    let mut workers = crowd(&mut node, 4);
    let agent = node.start();
    workers[0].terminal().said(SENTENCE);
    let blown = [("fuse", "share_of_workloads")];
    agent.shows("the fuse is blown", |page| page.value("gpuwarden_fuse_blown", &blown) == Some(1.0));
    agent.cycles(8);
    for worker in &mut workers {
        assert!(worker.is_alive());
        assert!(worker.terms().is_empty());
    }
    assert!(agent.page().value("gpuwarden_refusals_total", &[("reason", "fuse")]) >= Some(1.0));

    // It stays blown over a restart, and when there are fewer.
    assert!(agent.stop().success());
    workers.truncate(1);
    hold(&mut node, &workers);
    let agent = node.start();
    let page = agent.cycles(8);
    assert_eq!(page.value("gpuwarden_fuse_blown", &blown), Some(1.0));
    assert!(workers[0].terms().is_empty());

    reset(&node, "fuses");
    agent.shows("the fuse is whole", |page| page.value("gpuwarden_fuse_blown", &blown) == Some(0.0));
    assert_eq!(workers[0].ended_by(), KILL);
    assert_eq!(workers[0].terms().len(), 1);
}

#[test]
fn more_acts_than_an_hour_allows_are_none() {
    if !root("several people") {
        return;
    }
    let mut node = limited("share_of_workloads: 100%, acts_per_hour: 1");
    let mut alices = node.runs_on_terminal(node.alice, IGNORES_TERM);
    let mut bobs = node.runs_on_terminal(node.bob, IGNORES_TERM);
    node.held(0, &[&alices.with(2), &bobs.with(2)]);
    let agent = node.start();
    let blown = [("fuse", "acts_per_hour")];
    agent.shows("the fuse is blown", |page| page.value("gpuwarden_fuse_blown", &blown) == Some(1.0));
    agent.cycles(8);
    assert!(alices.is_alive() && bobs.is_alive());
    let terms = alices.terms().len() + bobs.terms().len();
    assert!(terms <= 1, "{terms}");
}

#[test]
fn what_one_cycle_does_not_allow_waits_for_the_next() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = limited("share_of_workloads: 100%, acts_per_cycle: 1");
    let mut workers = crowd(&mut node, 3);
    let _agent = node.start();
    for worker in &mut workers {
        assert_eq!(worker.ended_by(), KILL);
        assert_eq!(told(&node, "TERM", worker.pid()).last().map(String::as_str), Some("done"));
    }
    assert_eq!(workers.iter().flat_map(Worker::terms).count(), 3);
    // All were due in one cycle, which had room for one.
    let waited = |worker: &&Worker| told(&node, "TERM", worker.pid()).iter().any(|told| told == "refused");
    assert_eq!(workers.iter().filter(waited).count(), 2);
}
