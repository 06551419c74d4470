//! SIGHUP, and POST to `/-/reload`.

use crate::harness::worker::SLEEPS;
use crate::harness::{Node, Page, http, root};
use crate::ladder::UNASSIGNED;
use nix::sys::signal::Signal;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SUCCESSFUL: &str = "gpuwarden_config_last_reload_successful";

#[test]
fn a_broken_file_leaves_the_old_one_in_force_and_a_good_one_is_taken() {
    let node = Node::new(1);
    let agent = node.start();
    let before = agent.page();
    assert_eq!(before.value(SUCCESSFUL, &[]), Some(1.0));
    assert_eq!(before.all("gpuwarden_rule_info", &[]).count(), 0);

    node.rules("rules: [{name: half\n");
    assert!(!agent.reload());
    let page = agent.page();
    assert_eq!(page.value("gpuwarden_config_hash", &[]), before.value("gpuwarden_config_hash", &[]));
    assert!(agent.log().contains("rules.yaml:2:1: "), "the place of the error is not in the log: {}", agent.log());

    node.configure("mode: enforce\nno_such_key: 1");
    assert!(!agent.reload());

    node.configure("mode: enforce\nassignments: {fixed: []}");
    node.rules(UNASSIGNED);
    assert!(agent.reload());
    let page = agent.page();
    assert_ne!(page.value("gpuwarden_config_hash", &[]), before.value("gpuwarden_config_hash", &[]));
    assert!(page.has("gpuwarden_rule_info", &[("rule", "unassigned-gpu"), ("mode", "enforce")], 1.0));
    // No acts so soon after a reload that changed something.
    assert_eq!(page.value("gpuwarden_enforcement_paused", &[("reason", "start_delay")]), Some(1.0));
}

#[test]
fn a_right_or_a_limit_that_changed_alone_is_taken() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(1);
    let worker = node.runs(node.alice, SLEEPS);
    node.held(0, &[&worker.with(1)]);
    node.configure("assignments: {fixed: []}");
    let agent = node.start();
    let assigned = |page: &Page| page.value("gpuwarden_process_assigned", &[("user", "alice")]);
    agent.shows("she may not", |page| assigned(page) == Some(0.0));
    node.configure("assignments: {fixed: [{to: {user: alice}, gpus: [0]}]}\nlimits: {start_delay: 0s}");
    assert!(agent.reload());
    agent.shows("she may", |page| assigned(page) == Some(1.0));

    let delay = |page: &Page| page.value("gpuwarden_enforcement_paused", &[("reason", "start_delay")]);
    agent.shows("no delay", |page| delay(page) == Some(0.0));
    node.configure("assignments: {fixed: [{to: {user: alice}, gpus: [0]}]}\nlimits: {start_delay: 1h}");
    assert!(agent.reload());
    agent.shows("a delay", |page| delay(page) == Some(1.0));
}

#[test]
fn however_many_ask_for_a_reload_the_cycle_turns() {
    let node = Node::new(1);
    let agent = node.start_with(&["--web.enable-lifecycle"]);
    let over = AtomicBool::new(false);
    let address = agent.address;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // Of so many some are not served.
                    let _ = http::ask(address, "POST", "/-/reload");
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                agent.signal(Signal::SIGHUP);
                thread::sleep(Duration::from_micros(200));
            }
        });
        let turned = panic::catch_unwind(AssertUnwindSafe(|| agent.cycles(6)));
        over.store(true, Ordering::Relaxed);
        turned.unwrap();
    });
    // Nothing is left over that it would have to do first.
    assert!(agent.stop().success());
}

#[test]
fn http_reloads_only_where_that_is_switched_on() {
    let node = Node::new(1);
    let post = |agent: &crate::harness::Agent| http::ask(agent.address, "POST", "/-/reload").unwrap();
    let agent = node.start();
    let status = post(&agent).status;
    assert!((400..500).contains(&status), "{status}");
    assert!(agent.stop().success());

    let agent = node.start_with(&["--web.enable-lifecycle"]);
    assert_eq!(post(&agent).status, 200);
    node.rules("rules: nonsense");
    assert_ne!(post(&agent).status, 200);
    agent.shows("the reload failed", |page| page.value(SUCCESSFUL, &[]) == Some(0.0));
    assert!((400..500).contains(&agent.get("/-/reload").unwrap().status));
}
