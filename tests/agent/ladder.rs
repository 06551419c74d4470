//! From warning to KILL, on real terminals and with real signals: who is hit, when, and who is not.

use crate::harness::node::INTERVAL;
use crate::harness::worker::{IGNORES_TERM, SLEEPS, sleep_named};
use crate::harness::{Node, Worker, eventually, root, uptime};
use nix::sys::signal::Signal;
use nvml_sim::Process;
use nvml_sim::scenario::ProcessMemory;
use serde_json::Value;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

pub const TERM: Option<i32> = Some(15);
pub const KILL: Option<i32> = Some(9);

/// What writing down a moment may take on a busy machine. The agent never acts early; what is measured can be late.
pub const SLACK: f64 = 0.15;

/// Acts from the first cycle on, on however many.
pub const ENFORCE: &str = "
mode: enforce
limits: {start_delay: 0s, share_of_workloads: 100%}
";

pub const NOBODY_MAY: &str = "assignments: {fixed: []}";

pub const UNASSIGNED: &str = r#"
rules:
  - name: unassigned-gpu
    description: Use only the GPUs that are assigned to you.
    about: process
    mode: enforce
    when: [{assigned: false}, {memory: "> 300MiB"}]
    then:
      - {after: 500ms, warn: [terminal]}
      - {after: 1500ms, signal: TERM}
      - {after: 1s, signal: KILL}
"#;

pub const SENTENCE: &str = "Use only the GPUs that are assigned to you.";

/// A node on which every process breaks the rule.
pub fn strict(cards: usize) -> Node {
    let node = Node::new(cards);
    node.configure(&format!("{ENFORCE}{NOBODY_MAY}"));
    node.rules(UNASSIGNED);
    node
}

fn on(record: &Value, pid: u32) -> bool {
    record["targets"].as_array().is_some_and(|targets| targets.iter().any(|target| target["pid"] == pid))
}

/// What the audit log says of an action on a process: `intent`, then what came of it.
pub fn told(node: &Node, action: &str, pid: u32) -> Vec<String> {
    let records = node.audit().into_iter().filter(|record| record["action"] == action && on(record, pid));
    let word = |record: Value| record.get("outcome").unwrap_or(&record["kind"]).as_str().unwrap().to_owned();
    records.map(word).collect()
}

#[test]
fn who_is_on_a_card_that_is_not_his_is_warned_and_then_ended() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(2);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(1, &[&worker.with(10)]);
    let agent = node.start();
    let warned = worker.terminal().said(SENTENCE);
    assert!(worker.is_alive());
    assert_eq!(worker.ended_by(), TERM);
    assert!(uptime() - warned >= 1.5 - SLACK);
    let text = worker.terminal().text();
    for said in [format!("pid {}", worker.pid()), "GPU 1".into(), "to alice".into(), "TERM".into()] {
        assert!(text.contains(&said), "{said:?} is not in {text}");
    }
    assert_eq!(worker.terminal().count(SENTENCE), 1);
    let labels = [("rule", "unassigned-gpu"), ("action", "TERM"), ("outcome", "done")];
    agent.shows("the act is counted", |page| page.value("gpuwarden_actions_total", &labels) == Some(1.0));
    assert_eq!(told(&node, "warn", worker.pid()), ["intent", "done"]);
    assert_eq!(told(&node, "TERM", worker.pid()), ["intent", "done"]);
    assert!(told(&node, "KILL", worker.pid()).is_empty());
}

#[test]
fn who_does_not_hear_term_is_killed_no_sooner_than_the_ladder_says() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    node.held(0, &[&worker.with(10)]);
    let _agent = node.start();
    let warned = worker.terminal().said(SENTENCE);
    assert_eq!(worker.ended_by(), KILL);
    let ended = uptime();
    let terms = worker.terms();
    assert_eq!(terms.len(), 1, "{terms:?}");
    assert!(terms[0] - warned >= 1.5 - SLACK, "warned {warned}, {terms:?}");
    assert!(ended - terms[0] >= 1.0 - SLACK, "{terms:?}, ended {ended}");
    eventually("the outcome is written", || (told(&node, "KILL", worker.pid()) == ["intent", "done"]).then_some(()));
    assert_eq!(told(&node, "TERM", worker.pid()), ["intent", "done"]);
}

const QUOTA: &str = r#"
rules:
  - name: memory-quota
    description: No more than 20 GiB for each of you.
    about: user
    mode: enforce
    when: [{memory: "> 20GiB"}]
    targets: newest
    then:
      - {after: 0s, warn: [terminal]}
      - {after: 1s, signal: TERM}
"#;

#[test]
fn over_the_quota_the_newest_process_goes_and_the_older_stays() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(2);
    node.configure(ENFORCE);
    node.rules(QUOTA);
    let mut older = node.runs(node.alice, SLEEPS);
    // In ticks of a hundredth of a second, it is older.
    let began = older.started();
    let mut newer = eventually("the next tick", || {
        let worker = node.runs_on_terminal(node.alice, SLEEPS);
        (worker.started() > began).then_some(worker)
    });
    // On different cards: the quota is for the node.
    node.held(0, &[&older.with(16)]);
    node.held(1, &[&newer.with(8)]);
    let agent = node.start();
    newer.terminal().said("No more than 20 GiB");
    assert_eq!(newer.ended_by(), TERM);
    agent.cycles(10);
    assert!(older.is_alive());
    assert!(told(&node, "TERM", older.pid()).is_empty());
}

#[test]
fn owner_protected_exempt_and_unknown_are_left_alone() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(4);
    node.configure(&format!(
        "{ENFORCE}
assignments: {{fixed: [{{to: {{user: alice}}, gpus: [0]}}]}}
exempt: [{{user: [carol], reason: a deadline}}]"
    ));
    node.rules(UNASSIGNED);
    let mut owner = node.runs_on_terminal(node.alice, SLEEPS);
    let mut exempt = node.runs_on_terminal(node.carol, SLEEPS);
    let mut unknown = node.runs(node.bob, SLEEPS);
    let mut offender = node.runs_on_terminal(node.bob, IGNORES_TERM);
    let mut protected = Worker::program(node.bob, &sleep_named(&node.path(""), "nv-hostengine"), &["120"]);
    // Only the name of the executable says so, not the name that a process gives itself; nor a file of the user's own.
    let own = sleep_named(&node.path(""), "nvidia-persistenced");
    nix::unistd::chown(&own, Some(nix::unistd::Uid::from_raw(node.bob.uid)), None).unwrap();
    let mut pretender = Worker::program(node.bob, &own, &["120"]);

    let unreadable = Process { memory: ProcessMemory::Unavailable, ..unknown.with(0) };
    node.held(0, &[&owner.with(10), &protected.with(1)]);
    node.held(1, &[&exempt.with(10)]);
    node.held(2, &[&unreadable]);
    node.held(3, &[&offender.with(10), &pretender.with(1)]);
    let agent = node.start();
    assert_eq!(offender.ended_by(), KILL);
    assert_eq!(pretender.ended_by(), TERM);
    let page = agent.cycles(8);
    for (who, worker) in
        [("the owner", &mut owner), ("exempt", &mut exempt), ("unknown", &mut unknown), ("protected", &mut protected)]
    {
        assert!(worker.is_alive(), "{who}");
        assert!(!told(&node, "TERM", worker.pid()).iter().any(|told| told == "done"), "{who}");
    }
    assert!(page.value("gpuwarden_refusals_total", &[("reason", "protected")]) >= Some(1.0));
    assert_eq!(page.value("gpuwarden_exempt_processes", &[]), Some(1.0));
    assert_eq!(owner.terminal().text(), "");
    assert_eq!(exempt.terminal().text(), "");
    assert_eq!(page.value("gpuwarden_process_assigned", &[("pid", &owner.pid().to_string())]), Some(1.0));
    assert_eq!(page.value("gpuwarden_process_memory_bytes", &[("pid", &unknown.pid().to_string())]), None);
}

#[test]
fn infrastructure_is_known_where_systemd_mounts_the_host_without_setuid() {
    if !root("a service") {
        return;
    }
    let mut node = strict(1);
    // As systemd does for `NoNewPrivileges=yes` with `ProtectSystem=strict`.
    node.before = "for place in / /etc/passwd /etc/group; do mount -o remount,bind,nosuid $place || exit; done".into();
    let mut offender = node.runs_on_terminal(node.bob, SLEEPS);
    let mut protected = Worker::program(node.bob, &sleep_named(&node.path(""), "sshd"), &["120"]);
    node.held(0, &[&offender.with(10), &protected.with(10)]);
    let agent = node.start();
    assert_eq!(offender.ended_by(), TERM);
    let refused = [("reason", "protected")];
    agent.shows("it is protected", |page| page.value("gpuwarden_refusals_total", &refused) >= Some(1.0));
    assert!(protected.is_alive());
}

#[test]
fn a_pid_that_was_reused_between_warning_and_signal_is_left_alone() {
    if !root("choosing pids") {
        return;
    }
    let mut node = Node::new(1);
    node.configure(&format!("{ENFORCE}assignments: {{fixed: [{{to: {{user: carol}}, gpus: [0]}}]}}"));
    node.rules(UNASSIGNED);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    let pid = worker.pid();
    // Whoever has the pid holds the card, as real drivers tell it.
    node.held(0, &[&Process { started: None, ..worker.with(10) }]);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    let before = worker.started();
    worker.end();
    let mut successor = node.runs_with_pid(pid, node.carol, SLEEPS);
    assert_ne!(successor.started(), before);
    agent.shows("the successor is seen", |page| {
        page.value("gpuwarden_process_info", &[("pid", &pid.to_string()), ("user", "carol")]).is_some()
    });
    agent.cycles(16);
    assert!(successor.is_alive());
    for signal in ["TERM", "KILL"] {
        assert!(told(&node, signal, pid).is_empty(), "{signal}");
    }
    assert!(Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn in_observe_nobody_is_touched_and_the_log_says_what_would_have_been() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    node.configure(&format!("mode: observe\nlimits: {{start_delay: 0s, share_of_workloads: 100%}}\n{NOBODY_MAY}"));
    let mut worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    for action in ["warn", "TERM", "KILL"] {
        let labels = [("rule", "unassigned-gpu"), ("action", action), ("outcome", "rehearsed")];
        agent.shows("it is rehearsed", |page| page.value("gpuwarden_actions_total", &labels) >= Some(1.0));
        let told = told(&node, action, worker.pid());
        assert!(told.iter().any(|told| told == "rehearsed") && !told.iter().any(|told| told == "done"), "{told:?}");
    }
    assert!(worker.is_alive());
    assert!(worker.terms().is_empty());
    assert_eq!(worker.terminal().text(), "");
    assert!(agent.page().has("gpuwarden_rule_info", &[("rule", "unassigned-gpu"), ("mode", "observe")], 1.0));
}

#[test]
fn in_warn_people_are_told_and_nobody_is_signalled() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    node.configure(&format!("mode: warn\nlimits: {{start_delay: 0s, share_of_workloads: 100%}}\n{NOBODY_MAY}"));
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    let labels = [("rule", "unassigned-gpu"), ("action", "TERM"), ("outcome", "rehearsed")];
    agent.shows("the act is rehearsed", |page| page.value("gpuwarden_actions_total", &labels) >= Some(1.0));
    assert!(worker.is_alive());
    assert!(!worker.terminal().text().contains("TERM"), "a threat that is not meant: {}", worker.terminal().text());
}

#[test]
fn who_has_no_terminal_is_not_hit() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = node.runs(node.alice, SLEEPS);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    agent.shows("it is unreachable", |page| {
        page.has("gpuwarden_violations", &[("user", "alice"), ("state", "unreachable")], 1.0)
    });
    agent.cycles(14);
    assert!(worker.is_alive());
    assert!(told(&node, "TERM", worker.pid()).iter().all(|told| told != "done"));
}

#[test]
fn time_in_which_the_agent_did_not_look_does_not_count() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    node.held(0, &[&worker.with(10)]);
    let agent = node.start();
    let warned = worker.terminal().said(SENTENCE);
    agent.cycles(1);
    // As in a suspended host, or one that swaps.
    agent.signal(Signal::SIGSTOP);
    sleep(Duration::from_millis(2500));
    agent.signal(Signal::SIGCONT);
    assert_eq!(worker.ended_by(), TERM);
    let counted_at_most = 2.0 * INTERVAL.as_secs_f64();
    assert!(uptime() - warned >= 1.5 + 2.5 - counted_at_most - SLACK, "after {} s", uptime() - warned);
}

#[test]
fn a_process_cannot_command_the_terminal_of_its_owner() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let hostile = sleep_named(&node.path(""), "x\u{1b}]0;owned\u{7}\n\u{202e}y");
    let keeper = node.runs_on_terminal(node.alice, SLEEPS);
    let worker = Worker::program(node.alice, &hostile, &["120"]);
    node.held(0, &[&worker.with(10)]);
    let _agent = node.start();
    keeper.terminal().said(&format!("pid {}", worker.pid()));
    let text = keeper.terminal().text();
    let harmful = |c: &char| c.is_control() && !['\n', '\u{7}'].contains(c) || *c == '\u{202e}';
    assert_eq!(text.chars().find(harmful), None, "{text:?}");
    // The bell that announces a message, and no other.
    assert!(text.matches('\u{7}').count() <= 1, "{text:?}");
}
