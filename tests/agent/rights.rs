//! Who may: files that fall silent, cards that change places, rights that come and go.

use crate::harness::worker::{IGNORES_TERM, SLEEPS};
use crate::harness::{Node, Page, Worker, eventually, root, uptime};
use crate::ladder::{ENFORCE, SENTENCE, SLACK, TERM, UNASSIGNED, told};
use nvml_sim::scenario::{Kind, Latency, ProcessMemory};
use nvml_sim::units::Bytes;
use nvml_sim::{Gpu, Process};
use std::fs;

/// Rights are what the files of a folder say.
fn by_files() -> Node {
    let node = Node::new(2);
    let files = node.path("rights");
    fs::create_dir(&files).unwrap();
    node.configure(&format!("{ENFORCE}assignments: {{files: [{}/*.yaml]}}", files.display()));
    node.rules(UNASSIGNED);
    node
}

fn offender(node: &mut Node) -> Worker {
    let worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    node.held(0, &[&worker.with(10)]);
    worker
}

#[test]
fn a_source_that_says_nothing_takes_no_right_away() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = by_files();
    let worker = offender(&mut node);
    let agent = node.start();
    let nothing_advances = |what: &str| {
        let page = agent.cycles(6);
        assert_eq!(page.value("gpuwarden_source_up", &[("source", "files")]), Some(0.0), "{what}");
        let state = [("rule", "unassigned-gpu"), ("state", "unknown")];
        assert_eq!(page.value("gpuwarden_rule_subjects", &state), Some(1.0), "{what}");
        assert_eq!(page.all("gpuwarden_process_assigned", &[]).count(), 0, "{what}");
        assert_eq!(worker.terminal().text(), "", "{what}");
    };
    nothing_advances("a pattern without a file");
    node.write("rights/now.yaml", "");
    nothing_advances("an empty file");
    node.write("rights/now.yaml", "- {to: {user: alice}, gpus: [0]");
    nothing_advances("a broken file");
    node.write("rights/now.yaml", "[]");
    worker.terminal().said(SENTENCE);
}

#[test]
fn a_source_that_falls_silent_stops_the_clock() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = by_files();
    node.write("rights/now.yaml", "[]");
    let mut worker = offender(&mut node);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    fs::remove_file(node.path("rights/now.yaml")).unwrap();
    agent.shows("the source is down", |page| page.has("gpuwarden_source_up", &[("source", "files")], 0.0));
    agent.cycles(14);
    assert!(worker.is_alive());
    assert!(worker.terms().is_empty());
    node.write("rights/now.yaml", "[]");
    eventually("the ladder goes on", || (worker.terms().len() == 1).then_some(()));
    assert_eq!(worker.terminal().count(SENTENCE), 1);
}

#[test]
fn a_source_that_speaks_again_is_heard_for_a_while_before_anybody_is_hit() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = by_files();
    let pattern = node.path("rights/*.yaml");
    node.configure(&format!(
        "mode: enforce\nlimits: {{start_delay: 2s}}\nassignments: {{files: [{}]}}",
        pattern.display()
    ));
    node.write("rights/now.yaml", "[]");
    let worker = offender(&mut node);
    let agent = node.start();
    let up = |page: &Page| page.value("gpuwarden_source_up", &[("source", "files")]);
    let delay = |page: &Page| page.value("gpuwarden_enforcement_paused", &[("reason", "start_delay")]);
    worker.terminal().said(SENTENCE);
    fs::remove_file(node.path("rights/now.yaml")).unwrap();
    agent.shows("the source is down", |page| up(page) == Some(0.0));
    let back = uptime();
    node.write("rights/now.yaml", "[]");
    let page = agent.shows("the source is up", |page| up(page) == Some(1.0));
    assert_eq!(delay(&page), Some(1.0));
    eventually("the TERM", || (!worker.terms().is_empty()).then_some(()));
    // The delay after the start would have been over before.
    assert!(worker.terms()[0] - back >= 2.0 - SLACK, "back {back}, {:?}", worker.terms());
}

#[test]
fn a_right_that_comes_ends_the_ladder_and_one_that_goes_begins_another() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = by_files();
    node.write("rights/now.yaml", "[]");
    let mut worker = offender(&mut node);
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    node.write("rights/now.yaml", "[{to: {user: alice}, gpus: [0]}]");
    worker.terminal().said("All is well again");
    let left = |record: &serde_json::Value| record.to_string().contains("the ladder of rule unassigned-gpu");
    assert!(node.audit().iter().any(left), "the audit log does not say that it was left");
    let page = agent.cycles(14);
    assert!(worker.is_alive() && worker.terms().is_empty());
    assert_eq!(page.all("gpuwarden_violations", &[]).count(), 0);
    assert_eq!(page.value("gpuwarden_process_assigned", &[("user", "alice")]), Some(1.0));

    let taken = uptime();
    node.write("rights/now.yaml", "[]");
    let warned = eventually("a second warning", || {
        (worker.terminal().count(&format!("{SENTENCE} [rule unassigned-gpu]\n  GPU")) == 2).then(uptime)
    });
    eventually("a TERM", || (worker.terms().len() == 1).then_some(()));
    assert!(warned - taken >= 0.5 - SLACK);
    assert!(worker.terms()[0] - warned >= 1.5 - SLACK - 0.1, "warned {warned}, {:?}", worker.terms());
}

fn reset(node: &Node) {
    crate::fuse::reset(node, "pins");
}

#[test]
fn pins_are_not_reset_while_there_are_no_cards_of_now() {
    if !root("a reset") {
        return;
    }
    let mut node = Node::new(2);
    let agent = node.start();
    let pins = node.path("state/pins.yaml");
    let before = fs::read_to_string(&pins).unwrap();
    node.change(|scenario| scenario.latency = [("*".into(), Latency::Hang)].into());
    agent.shows("no driver", |page| page.value("gpuwarden_source_up", &[("source", "nvml")]) == Some(0.0));
    let refused = crate::fuse::ask_reset(&node, "pins");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the driver is silent"), "{refused:?}");
    assert_eq!(fs::read_to_string(&pins).unwrap(), before);
}

#[test]
fn cards_that_changed_places_leave_rights_by_index_unknown_until_they_are_pinned_again() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(2);
    node.configure(&format!("{ENFORCE}assignments: {{fixed: [{{to: {{user: alice}}, gpus: [0]}}]}}"));
    node.rules(UNASSIGNED);
    const FIRST: &str = "GPU-11111111-0000-4000-8000-000000000000";
    const SECOND: &str = "GPU-22222222-0000-4000-8000-000000000000";
    let card = |uuid: &str, pci: &str, processes: Vec<Process>| Gpu {
        uuid: Some(uuid.into()),
        pci: Some(pci.into()),
        processes,
        ..Gpu::default()
    };
    let mut worker = node.runs_on_terminal(node.alice, SLEEPS);
    let held = worker.with(10);
    node.change(|scenario| {
        scenario.gpus =
            vec![card(FIRST, "00000000:17:00.0", vec![held.clone()]), card(SECOND, "00000000:65:00.0", vec![])];
    });
    let agent = node.start();
    let assigned = [("user", "alice"), ("uuid", FIRST)];
    agent.shows("the right is known", |page| page.value("gpuwarden_process_assigned", &assigned) == Some(1.0));
    assert!(agent.stop().success());

    // The card that she works on is now the second.
    node.change(|scenario| {
        scenario.gpus = vec![card(SECOND, "00000000:17:00.0", vec![]), card(FIRST, "00000000:65:00.0", vec![held])];
    });
    let agent = node.start();
    let page = agent.cycles(12);
    assert_eq!(page.value("gpuwarden_process_assigned", &assigned), None);
    assert!(page.value("gpuwarden_source_unresolved_names", &[("source", "fixed")]) >= Some(1.0));
    assert!(worker.is_alive());
    assert_eq!(worker.terminal().text(), "");

    reset(&node);
    agent.shows("the right is known", |page| page.value("gpuwarden_process_assigned", &assigned) == Some(0.0));
    assert_eq!(worker.ended_by(), TERM);
}

/// bob is on a card that is reserved for alice and on one that nobody has reserved; an X server is there too.
fn two_levels(condition: &str) -> (String, usize) {
    let mut node = Node::new(4);
    node.configure(&format!("{ENFORCE}assignments: {{fixed: [{{to: {{user: alice}}, gpus: [2]}}]}}"));
    node.rules(&format!(
        r#"
rules:
  - name: level
    description: Keep off.
    about: user
    per_gpu: true
    mode: warn
    when: [{condition}, {{memory: "> 300MiB"}}]
    then: [{{after: 500ms, warn: [terminal]}}, {{after: 1h, warn: [terminal]}}]
"#
    ));
    let worker = node.runs_on_terminal(node.bob, SLEEPS);
    let screen = node.runs_on_terminal(node.carol, SLEEPS);
    let x = Process { memory: ProcessMemory::Used(Bytes(60 << 20)), kind: Kind::Graphics, ..screen.with(0) };
    let agent = node.start();
    // The directory has been asked who alice is.
    agent.cycles(2);
    node.change(|scenario| {
        scenario.gpus[2].processes = vec![worker.with(6), x];
        scenario.gpus[3].processes = vec![worker.with(2)];
    });
    worker.terminal().said("Keep off.");
    agent.cycles(6);
    assert_eq!(screen.terminal().text(), "");
    assert!(told(&node, "warn", screen.pid()).is_empty());
    (worker.terminal().text(), worker.terminal().count("gpuwarden on"))
}

#[test]
fn where_only_reserved_cards_are_guarded_one_message_is_about_that_card() {
    if !root("several people") {
        return;
    }
    let (text, messages) = two_levels("{assigned_to_other: true}");
    assert_eq!(messages, 1, "{text}");
    assert!(text.contains("GPU 2") && !text.contains("GPU 3"), "{text}");
}

#[test]
fn where_all_use_needs_a_right_one_message_is_about_both_cards() {
    if !root("several people") {
        return;
    }
    let (text, messages) = two_levels("{assigned: false}");
    assert_eq!(messages, 1, "{text}");
    assert!(text.contains("GPU 2") && text.contains("GPU 3"), "{text}");
}
