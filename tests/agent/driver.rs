//! What the driver does to people who run GPU hosts: it is not there, hangs, loses cards, and does not know.

use crate::harness::worker::{IGNORES_TERM, SLEEPS};
use crate::harness::{Node, eventually, root, uptime};
use crate::ladder::{ENFORCE, NOBODY_MAY, SENTENCE, SLACK, strict, told};
use nvml_sim::scenario::{Init, Kind, Latency, ProcessMemory};
use nvml_sim::units::Bytes;
use nvml_sim::value::{Error, Value};
use nvml_sim::{Gpu, Process};
use std::time::{Duration, Instant};

const NVML: &[(&str, &str)] = &[("source", "nvml")];

#[test]
fn without_a_driver_it_serves_and_waits_for_one() {
    let mut node = Node::new(2);
    node.change(|scenario| scenario.init = Init::Failing(Error::DRIVER_NOT_LOADED));
    let agent = node.start();
    let page = agent.page();
    assert_eq!(page.value("gpuwarden_source_up", NVML), Some(0.0));
    assert_eq!(page.all("gpuwarden_gpu_up", &[]).count(), 0);
    let ready = agent.ready();
    assert_eq!(ready.status, 503);
    assert!(!ready.body.trim().is_empty());
    assert_eq!(agent.get("/-/healthy").unwrap().status, 200);

    node.change(|scenario| scenario.init = Init::Ok);
    agent.shows("the driver is there", |page| page.value("gpuwarden_source_up", NVML) == Some(1.0));
    eventually("it is ready", || (agent.ready().status == 200).then_some(()));
    assert_eq!(agent.page().all("gpuwarden_gpu_up", &[]).filter(|sample| sample.value == 1.0).count(), 2);
}

#[test]
fn a_driver_that_hangs_blocks_no_page_and_stops_every_ladder() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    node.change(|scenario| scenario.latency = [("nvmlDevice*".into(), Latency::Hang)].into());

    let page = agent.shows("the driver is stale", |page| {
        let began = Instant::now();
        let answered = agent.get("/metrics").is_ok() && began.elapsed() < Duration::from_secs(2);
        assert!(answered, "a page that waits");
        page.value("gpuwarden_source_up", NVML) == Some(0.0)
    });
    assert_eq!(page.all("gpuwarden_gpu_temperature_celsius", &[]).count(), 0, "values of before");
    assert_eq!(page.all("gpuwarden_process_memory_bytes", &[]).count(), 0, "values of before");
    let paused = [("reason", "driver_stale")];
    agent.shows("enforcement is paused", |page| page.value("gpuwarden_enforcement_paused", &paused) == Some(1.0));
    assert_eq!(agent.ready().status, 503);
    // The TERM was due long ago.
    let last =
        |page: &crate::harness::Page| page.value("gpuwarden_source_last_success_timestamp_seconds", NVML).unwrap();
    let before = last(&agent.page());
    let page = agent.cycles(12);
    assert_eq!(last(&page), before, "the moment of the last answer stays");
    assert!(worker.is_alive());

    node.change(|scenario| scenario.latency.clear());
    agent.shows("the driver answers", |page| page.value("gpuwarden_source_up", NVML) == Some(1.0));
    eventually("it is ready", || (agent.ready().status == 200).then_some(()));
    assert_eq!(agent.page().all("gpuwarden_gpu_temperature_celsius", &[]).count(), 1);
}

#[test]
fn a_driver_that_was_loaded_again_is_believed_and_nobody_is_hit_at_once() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    node.configure(&format!("mode: enforce\nlimits: {{start_delay: 2s}}\n{NOBODY_MAY}"));
    let worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    node.change(|scenario| {
        scenario.init = Init::Failing(Error::DRIVER_NOT_LOADED);
        scenario.errors = [("*".into(), Error::UNINITIALIZED)].into();
    });
    agent.shows("the driver is gone", |page| page.value("gpuwarden_source_up", NVML) == Some(0.0));
    let paused = [("reason", "start_delay")];
    agent.cycles(8);
    let back = uptime();
    node.change(|scenario| {
        scenario.init = Init::Ok;
        scenario.errors.clear();
    });
    let page = agent.shows("the driver is back", |page| page.value("gpuwarden_source_up", NVML) == Some(1.0));
    assert_eq!(page.value("gpuwarden_enforcement_paused", &paused), Some(1.0));
    eventually("the TERM", || (!worker.terms().is_empty()).then_some(()));
    assert!(worker.terms()[0] - back >= 2.0 - SLACK, "back {back}, {:?}", worker.terms());
    assert_eq!(worker.terminal().count(SENTENCE), 1);
}

#[test]
fn a_lost_card_is_named_and_spoils_no_other() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(4);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(1, &[&worker.with(10)]);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    let uuid = agent.page().all("gpuwarden_gpu_info", &[("gpu", "1")]).next().unwrap().labels["uuid"].clone();
    node.change(|scenario| scenario.gpus[1].lost = true);
    let page = agent.shows("the card is lost", |page| page.value("gpuwarden_gpu_up", &[("uuid", &uuid)]) == Some(0.0));
    assert_eq!(page.value("gpuwarden_gpu_info", &[("uuid", &uuid), ("gpu", "1")]), Some(1.0));
    assert_eq!(page.value("gpuwarden_gpu_fault_info", &[("uuid", &uuid)]), Some(1.0));
    assert_eq!(page.all("gpuwarden_gpu_temperature_celsius", &[("uuid", &uuid)]).count(), 0);
    for other in ["0", "2", "3"] {
        assert_eq!(page.value("gpuwarden_gpu_up", &[("gpu", other)]), Some(1.0));
        assert_eq!(page.value("gpuwarden_gpu_temperature_celsius", &[("gpu", other)]), Some(41.0));
    }
    agent.cycles(12);
    assert!(worker.is_alive(), "nobody is hit on a card of which nothing is known");
    assert!(told(&node, "TERM", worker.pid()).iter().all(|told| told != "done"));
}

#[test]
fn a_card_without_memory_of_its_own_has_no_total_and_no_shares() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(1);
    node.configure(ENFORCE);
    node.rules(
        r#"
rules:
  - {name: share, description: A share., about: process, when: [{memory: "> 1%"}], then: [{after: 0s, warn: [terminal]}]}
  - {name: size, description: A size., about: process, when: [{memory: "> 40MiB"}], then: [{after: 0s, warn: [terminal]}]}
"#,
    );
    let worker = node.runs(node.alice, SLEEPS);
    let held = Process { memory: ProcessMemory::Used(Bytes(43 << 20)), ..worker.with(0) };
    node.change(|scenario| {
        scenario.gpus[0] =
            Gpu { memory: Value::Failing(Error::NOT_SUPPORTED), processes: vec![held], ..Gpu::default() };
    });
    let page = node.start().cycles(2);
    assert_eq!(page.all("gpuwarden_gpu_memory_total_bytes", &[]).count(), 0);
    assert_eq!(page.all("gpuwarden_gpu_memory_used_bytes", &[]).count(), 0);
    assert_eq!(page.value("gpuwarden_process_memory_bytes", &[("user", "alice")]), Some(f64::from(43 << 20)));
    let unknown = [("rule", "share"), ("state", "unknown")];
    assert_eq!(page.value("gpuwarden_rule_subjects", &unknown), Some(1.0));
    assert_eq!(page.value("gpuwarden_rule_subjects", &[("rule", "size"), ("state", "clear")]), Some(0.0));
    assert_eq!(page.value("gpuwarden_rule_subjects", &[("rule", "size"), ("state", "unknown")]), Some(0.0));
}

#[test]
fn a_process_that_computes_and_draws_is_one_and_counts_once() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(1);
    let worker = node.runs(node.alice, SLEEPS);
    node.held(0, &[&Process { kind: Kind::Both, ..worker.with(2) }]);
    let page = node.start().cycles(1);
    assert_eq!(page.value("gpuwarden_process_memory_bytes", &[("user", "alice")]), Some(f64::from(1 << 30) * 2.0));
    assert_eq!(page.value("gpuwarden_user_memory_bytes", &[("user", "alice")]), Some(f64::from(1 << 30) * 2.0));
    assert_eq!(page.value("gpuwarden_gpu_processes", &[("kind", "both")]), Some(1.0));
    assert_eq!(page.value("gpuwarden_gpu_processes", &[("kind", "compute")]), Some(0.0));
    assert_eq!(page.value("gpuwarden_gpu_processes", &[("kind", "graphics")]), Some(0.0));
}

#[test]
fn a_process_that_proc_does_not_know_is_counted_and_not_judged() {
    let mut node = strict(1);
    let free = (2..32768).rev().find(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()).unwrap();
    node.held(0, &[&Process { pid: free, always: true, ..Process::default() }]);
    let agent = node.start();
    let page = agent.cycles(3);
    assert_eq!(page.value("gpuwarden_gpu_processes_memory_unknown", &[]), Some(1.0));
    assert_eq!(page.all("gpuwarden_process_memory_bytes", &[]).count(), 0);
    assert_eq!(page.all("gpuwarden_violations", &[]).count(), 0);
    assert_eq!(page.value("gpuwarden_rule_subjects", &[("state", "pending")]), Some(0.0));
}

#[test]
fn an_agent_that_may_not_see_other_peoples_processes_takes_none_for_gone_and_hits_nobody() {
    if !root("another procfs") {
        return;
    }
    let mut node = strict(1);
    const NOBODY: u32 = 65_534;
    let state = node.path("state");
    std::fs::create_dir(&state).unwrap();
    nix::unistd::chown(&state, Some(nix::unistd::Uid::from_raw(NOBODY)), None).unwrap();
    let unprivileged = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    node.before = format!(r#"mount -t proc -o hidepid=2 proc /proc && set -- {unprivileged} "$@""#);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(0, &[&Process { always: true, ..worker.with(10) }]);
    let agent = node.start();
    let hidden = [("reason", "hidepid")];
    agent.shows("enforcement is paused", |page| page.value("gpuwarden_enforcement_paused", &hidden) == Some(1.0));
    let page = agent.cycles(14);
    assert!(worker.is_alive());
    assert_eq!(worker.terminal().text(), "");
    assert_eq!(page.all("gpuwarden_process_info", &[]).count(), 0);
    assert_eq!(page.sum("gpuwarden_gpu_processes", &[]), 1.0);
    assert!(agent.log().contains("hidepid"), "{}", agent.log());
}
