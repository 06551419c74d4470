//! What the driver does to people who run GPU hosts: it is not there, hangs, loses cards, and does not know.

use crate::harness::agent::Agent;
use crate::harness::worker::{IGNORES_TERM, SLEEPS};
use crate::harness::{Node, Page, eventually, root, uptime};
use crate::ladder::{ENFORCE, NOBODY_MAY, SENTENCE, SLACK, strict, told};
use nvml_sim::scenario::{Init, Kind, Latency, ProcessMemory};
use nvml_sim::units::{Bytes, Load, Percent, Span, Wave};
use nvml_sim::value::{Error, Value};
use nvml_sim::{Gpu, Process};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

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
    node.change(|scenario| scenario.gpus[0].xids = vec![31]);
    agent.shows("an Xid error", |page| page.all("gpuwarden_gpu_xid_errors_total", &[]).count() == 1);
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
    // What is known by itself stays: whom a rule was about stands as before, and what the cards had reported.
    assert_eq!(page.value("gpuwarden_violations", &[("user", "alice")]), Some(1.0));
    assert_eq!(page.sum("gpuwarden_rule_subjects", &[("state", "warned")]), 1.0);
    assert_eq!(page.all("gpuwarden_gpu_xid_errors_total", &[("gpu", "0"), ("xid", "31")]).count(), 1);
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
    let agent = node.start();
    let page = agent.shows("her name", |page| page.all("gpuwarden_user_info", &[("user", "alice")]).count() == 1);
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

#[test]
fn bursts_are_counted_by_the_drivers_own_samples() {
    let mut node = Node::new(1);
    let bursts = Load::Wave(Wave { low: Percent(0), high: Percent(100), period: Span(2_000_000) });
    node.change(|scenario| scenario.gpus[0].utilization = bursts.into());
    let agent = node.start();
    let read = |page: &Page| {
        let value = |family: &str| page.value(family, &[]).unwrap();
        [value("gpuwarden_gpu_busy_seconds_total"), value("gpuwarden_gpu_idle_seconds_total"), uptime()]
    };
    let first = agent.page();
    assert!(read(&first)[0] < 1.0, "what was before the agent came counts for nothing");
    let before = read(&agent.cycles(2));
    // Two and a half waves, then as much again: as if it were scraped seldom.
    for _ in 0..2 {
        thread::sleep(Duration::from_secs(5));
    }
    let after = read(&agent.page());
    let [busy, idle, passed] = [0, 1, 2].map(|of| after[of] - before[of]);
    assert!((busy - passed / 2.0).abs() < 1.0, "{busy} of {passed}");
    assert!((idle - passed / 2.0).abs() < 1.0, "{idle} of {passed}");
    // An instant is either 0 or 1; the mean over a cycle of a quarter of a second is mostly one of both.
    let mean = agent.page().value("gpuwarden_gpu_utilization_ratio", &[]).unwrap();
    assert!((0.0..=1.0).contains(&mean));
}

#[test]
fn xid_errors_are_counted_by_their_code_and_stay_with_a_lost_card() {
    let mut node = Node::new(2);
    // Those of before the agent came are not told.
    node.change(|scenario| scenario.gpus[0].xids = vec![31]);
    let agent = node.start();
    let xid = |page: &Page, card: &str, code: &str| {
        let labels = [("gpu", card), ("xid", code)];
        page.value("gpuwarden_gpu_xid_errors_total", &labels)
    };
    let page = agent.cycles(1);
    assert_eq!(page.all("gpuwarden_gpu_xid_errors_total", &[]).count(), 0);
    node.change(|scenario| scenario.gpus[0].xids.extend([79, 13, 79]));
    let page = agent.shows("the Xid errors", |page| xid(page, "0", "79") == Some(2.0));
    assert_eq!((xid(&page, "0", "13"), xid(&page, "0", "31"), xid(&page, "1", "79")), (Some(1.0), None, None));
    let last = |page: &Page| page.value("gpuwarden_gpu_xid_last_timestamp_seconds", &[("gpu", "0"), ("xid", "79")]);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - last(&page).unwrap()).abs() < 30.0);

    node.change(|scenario| scenario.gpus[0].lost = true);
    let page = agent.shows("the card is lost", |page| page.value("gpuwarden_gpu_up", &[("gpu", "0")]) == Some(0.0));
    assert_eq!(xid(&page, "0", "79"), Some(2.0));
    // A lost card does not deafen the agent to the others.
    agent.cycles(2);
    node.change(|scenario| scenario.gpus[1].xids = vec![94]);
    agent.shows("the other card's", |page| xid(page, "1", "94") == Some(1.0));
    node.change(|scenario| scenario.gpus[0].lost = false);
    agent.shows("the card is back", |page| page.value("gpuwarden_gpu_up", &[("gpu", "0")]) == Some(1.0));
    agent.cycles(2);
    node.change(|scenario| scenario.gpus[0].xids.push(48));
    let page = agent.shows("it is listened to again", |page| xid(page, "0", "48") == Some(1.0));
    assert_eq!(xid(&page, "0", "79"), Some(2.0));
}

/// A library of the node's own, which can be exchanged.
fn own_library(node: &mut Node) -> PathBuf {
    let path = node.path("libnvidia-ml.so.1");
    std::fs::copy(&node.library, &path).unwrap();
    node.library = path.clone();
    path
}

/// As an installer does: the new file under another name, and then over the old one.
fn exchange(library: &Path) {
    let new = library.with_extension("new");
    std::fs::copy(library, &new).unwrap();
    std::fs::rename(new, library).unwrap();
}

/// The inodes under which the library is mapped.
fn mapped(agent: &Agent) -> BTreeSet<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", agent.pid())).unwrap();
    let lines = maps.lines().filter(|line| line.contains("libnvidia-ml.so.1"));
    lines.map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_driver_that_is_upgraded_is_loaded_afresh() {
    let mut node = Node::new(1);
    let library = own_library(&mut node);
    let agent = node.start();
    let old = mapped(&agent);
    assert_eq!(old.len(), 1);
    node.change(|scenario| {
        scenario.init = Init::Failing(Error::LIB_RM_VERSION_MISMATCH);
        scenario.errors = [("nvmlDevice*".into(), Error::LIB_RM_VERSION_MISMATCH)].into();
    });
    agent.shows("the driver is gone", |page| page.value("gpuwarden_source_up", NVML) == Some(0.0));
    assert!(agent.log().contains("LIB_RM_VERSION_MISMATCH"));
    exchange(&library);
    node.change(|scenario| {
        (scenario.init, scenario.errors) = (Init::Ok, [].into());
        scenario.driver.version = Some("580.65.06".into());
    });
    let page = agent.shows("the new driver", |page| page.value("gpuwarden_source_up", NVML) == Some(1.0));
    assert_eq!(page.value("gpuwarden_driver_info", &[("driver_version", "580.65.06")]), Some(1.0));
    let new = mapped(&agent);
    assert!(new.len() == 1 && new != old, "{old:?} {new:?}");
    assert!(!agent.log().contains("starts anew"), "the old one could be unloaded");
}

#[test]
fn an_agent_that_is_stuck_in_an_old_library_starts_anew() {
    starts_anew(Node::new(1), &[]);
}

#[test]
fn an_agent_that_starts_anew_still_has_the_sockets_of_systemd() {
    if !root("a shell before the agent") {
        return;
    }
    let mut node = Node::new(1);
    let scenario = node.scenario();
    node.before = format!(
        "for a; do case $a in --web.listen-address=*) l=${{a#*=}};; esac; done; \
         set -- systemd-socket-activate --listen $l --setenv NVML_SIM_SCENARIO={} \"$@\"",
        scenario.display()
    );
    starts_anew(node, &["--web.systemd-socket"]);
}

fn starts_anew(mut node: Node, arguments: &[&str]) {
    let library = own_library(&mut node);
    let agent = node.start_with(arguments);
    let (pid, old) = (agent.pid(), mapped(&agent));
    let cycles = |page: &Page| page.value("gpuwarden_cycles_total", &[]);
    node.change(|scenario| scenario.latency = [("nvmlDeviceGetCount_v2".into(), Latency::Hang)].into());
    let page = agent.shows("it hangs", |page| page.value("gpuwarden_source_up", NVML) == Some(0.0));
    let hung = cycles(&page).unwrap();
    // The same driver: it may come back by itself, and is waited for.
    agent.cycles(8);
    exchange(&library);
    // The new library hangs no more; the old one does for ever.
    node.change(|scenario| scenario.driver.version = Some("580.65.06".into()));
    // An agent that could not start is worse than one without a driver.
    node.configure("mode: perhaps");
    eventually("it cannot", || agent.log().contains("cannot start anew").then_some(()));
    agent.cycles(2);
    node.configure("mode: observe");
    eventually("it starts anew", || agent.log().contains("gpuwarden starts anew").then_some(()));
    node.change(|scenario| scenario.latency.clear());
    let page = eventually("the new driver", || {
        let page = Page::parse(&agent.get("/metrics").ok()?.body);
        (page.value("gpuwarden_source_up", NVML) == Some(1.0)).then_some(page)
    });
    assert_eq!(agent.pid(), pid);
    let new = mapped(&agent);
    assert!(new.len() == 1 && new != old, "{old:?} {new:?}");
    assert!(cycles(&page).unwrap() < hung + 8.0, "counters begin at 0");
}

#[test]
fn in_a_pid_namespace_of_its_own_it_exports_and_signals_nobody() {
    if !root("a namespace") {
        return;
    }
    let mut node = strict(1);
    // In there it is the agent's own pid.
    let someone = Process { pid: 1, always: true, memory: ProcessMemory::Used(Bytes(10 << 30)), ..Process::default() };
    node.held(0, &[&someone]);
    node.change(|scenario| scenario.driver.host_pids = true);
    node.before = r#"set -- unshare --pid --fork --kill-child --mount-proc -- "$@""#.into();
    let agent = node.start();
    let page = agent.cycles(3);
    assert_eq!(page.value("gpuwarden_enforcement_paused", &[("reason", "pid_namespace")]), Some(1.0));
    assert_eq!(page.value("gpuwarden_gpu_memory_used_bytes", &[]), Some(f64::from(1 << 30) * 10.0));
    assert_eq!(page.value("gpuwarden_gpu_processes", &[("kind", "compute")]), Some(1.0));
    assert_eq!(page.all("gpuwarden_process_info", &[]).count(), 0, "the pid is nobody's that the agent could know");
    assert_eq!(page.sum("gpuwarden_violations", &[]), 0.0);
    assert!(agent.log().contains("PID namespace of its own"));
    // What is between it and the test does not pass signals on.
    agent.kill();
}

#[test]
fn a_host_without_a_driver_is_told_so_and_one_that_comes_is_used() {
    let mut node = Node::new(1);
    let library = node.path("libnvidia-ml.so.1");
    let to_come = std::mem::replace(&mut node.library, library.clone());
    let agent = node.start();
    let page = agent.page();
    assert_eq!(page.value("gpuwarden_source_up", NVML), Some(0.0));
    assert_eq!(page.all("gpuwarden_driver_info", &[]).count(), 0);
    assert!(agent.log().contains("there is no NVIDIA driver"), "{}", agent.log());
    assert!(agent.ready().body.contains("there is no NVIDIA driver"));
    std::fs::copy(to_come, &library).unwrap();
    agent.shows("the driver", |page| page.value("gpuwarden_source_up", NVML) == Some(1.0));
    assert_eq!(agent.ready().status, 200);
}
