//! What the driver lists of processes, on the page: each quirk of its lists as the exact lines or their exact absence.

use crate::harness::worker::SLEEPS;
use crate::harness::{Node, Page, Worker, root};
use crate::pages::promtool_is_silent;
use expect_test::{Expect, expect};
use nvml_sim::scenario::{Kind, ProcessMemory};
use nvml_sim::units::{Bytes, Load, Percent};
use nvml_sim::{Gpu, Process};
use std::fmt::Write;

const FAMILIES: [&str; 12] = [
    "gpu_utilization_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_unattributed_bytes",
    "gpu_processes",
    "gpu_processes_memory_unknown",
    "gpu_holders",
    "process_memory_bytes",
    "process_utilization_ratio",
    "user_memory_bytes",
    "user_gpus",
    "user_processes",
    "enforcement_paused",
];

/// Alice's and bob's process on one card of 80 GiB, half of which they keep busy.
const USUAL: &str = r#"gpu_utilization_ratio 0.6
gpu_memory_used_bytes 21474836480
gpu_memory_unattributed_bytes 0
gpu_processes{kind="compute"} 2
gpu_processes{kind="graphics"} 0
gpu_processes{kind="both"} 0
gpu_processes_memory_unknown 0
gpu_holders 2
process_memory_bytes{user="alice"} 10737418240
process_memory_bytes{user="bob"} 10737418240
process_utilization_ratio{user="alice"} 0.3
process_utilization_ratio{user="bob"} 0.3
user_memory_bytes{user="alice"} 10737418240
user_memory_bytes{user="bob"} 10737418240
user_gpus{user="alice"} 1
user_gpus{user="bob"} 1
user_processes{user="alice"} 1
user_processes{user="bob"} 1"#;

/// What the page shows otherwise than usual where a card is as the change has it: lines that are gone, and lines that came.
fn check(change: impl FnOnce(&mut Gpu, &[Process; 2]), expected: &Expect) {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(1);
    // Long enough for some samples in each cycle.
    let state = node.path("state");
    node.write("gpuwarden.yaml", &format!("interval: 1s\nrules: []\nstate_dir: {}\n", state.display()));
    let workers = [node.alice, node.bob].map(|who| node.runs(who, SLEEPS));
    let on = workers.each_ref().map(|worker| Process { utilization: share(30), ..worker.with(10) });
    node.change(|scenario| {
        scenario.defaults.utilization = Load::Steady(Percent(60)).into();
        scenario.gpus[0].processes = on.to_vec();
        change(&mut scenario.gpus[0], &on);
    });
    let agent = node.start();
    expected.assert_eq(&unusual(&lines(&agent.cycles(2), &workers)));
}

fn unusual(lines: &str) -> String {
    let gone =
        USUAL.lines().filter(|usual| !lines.lines().any(|line| line == *usual)).map(|line| format!("- {line}\n"));
    let came =
        lines.lines().filter(|line| !USUAL.lines().any(|usual| usual == *line)).map(|line| format!("+ {line}\n"));
    gone.chain(came).collect()
}

fn share(percent: u32) -> Option<Load> {
    Some(Load::Steady(Percent(percent)))
}

/// The lines of the families, without what they begin with, what names the card, and pauses that are none.
fn lines(page: &Page, [alice, bob]: &[Worker; 2]) -> String {
    const CARD: &str = "gpu=\"0\",uuid=\"GPU-00000000-0000-4000-8000-000000000000\"";
    promtool_is_silent(&page.text);
    let mut lines = String::new();
    for family in FAMILIES {
        for sample in page.text.lines().filter_map(|line| line.strip_prefix("gpuwarden_")?.strip_prefix(family)) {
            let pause = family == "enforcement_paused" && (sample.ends_with(" 0") || sample.contains("start_delay"));
            if !pause && sample.starts_with('{') {
                let sample = sample.replacen(&format!("{CARD},"), "", 1).replacen(&format!("{{{CARD}}}"), "", 1);
                let sample = sample.replace(&format!("pid=\"{}\",", alice.pid()), "");
                writeln!(lines, "{family}{}", sample.replace(&format!("pid=\"{}\",", bob.pid()), "")).unwrap();
            }
        }
    }
    lines
}

#[test]
fn each_process_is_told_by_itself() {
    check(|_, _| {}, &expect![[""]]);
}

#[test]
fn a_process_without_samples_did_nothing_where_others_account_for_what_the_card_did() {
    check(
        |gpu, [alice, bob]| gpu.processes = vec![Process { utilization: None, ..alice.clone() }, bob.clone()],
        &expect![[r#"
            - process_utilization_ratio{user="alice"} 0.3
            + process_utilization_ratio{user="alice"} 0
        "#]],
    );
}

#[test]
fn nobody_knows_who_is_busy_on_a_card_that_is_and_lists_no_samples() {
    check(
        |gpu, _| gpu.processes.iter_mut().for_each(|process| process.utilization = None),
        &expect![[r#"
        - process_utilization_ratio{user="alice"} 0.3
        - process_utilization_ratio{user="bob"} 0.3
    "#]],
    );
}

#[test]
fn a_share_of_more_than_all_of_the_time_is_none() {
    check(
        |gpu, _| gpu.processes[0].utilization = share(101),
        &expect![[r#"
        - process_utilization_ratio{user="alice"} 0.3
    "#]],
    );
}

#[test]
fn a_process_that_computes_and_draws_holds_its_memory_once() {
    check(
        |gpu, _| gpu.processes[0].kind = Kind::Both,
        &expect![[r#"
        - gpu_processes{kind="compute"} 2
        - gpu_processes{kind="both"} 0
        + gpu_processes{kind="compute"} 1
        + gpu_processes{kind="both"} 1
    "#]],
    );
}

#[test]
fn memory_that_is_not_told_is_in_no_sum() {
    check(
        |gpu, _| gpu.processes[0].memory = ProcessMemory::Unavailable,
        &expect![[r#"
        - gpu_memory_used_bytes 21474836480
        - gpu_memory_unattributed_bytes 0
        - gpu_processes_memory_unknown 0
        - gpu_holders 2
        - process_memory_bytes{user="alice"} 10737418240
        - user_memory_bytes{user="alice"} 10737418240
        - user_gpus{user="alice"} 1
        + gpu_memory_used_bytes 10737418240
        + gpu_processes_memory_unknown 1
    "#]],
    );
}

#[test]
fn under_mps_the_work_is_the_servers_and_no_clients() {
    check(
        |gpu, [alice, bob]| {
            gpu.processes =
                vec![Process { kind: Kind::Mps, ..alice.clone() }, Process { kind: Kind::Mps, ..bob.clone() }]
        },
        &expect![[r#"
            - process_utilization_ratio{user="alice"} 0.3
            - process_utilization_ratio{user="bob"} 0.3
        "#]],
    );
}

#[test]
fn a_pid_that_nobody_has_is_counted_and_named_by_nobody() {
    check(
        |gpu, _| {
            let free = (2..32768).rev().find(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()).unwrap();
            let memory = ProcessMemory::Used(Bytes(1 << 30));
            gpu.processes.push(Process { pid: free, always: true, memory, ..Process::default() });
        },
        &expect![[r#"
            - gpu_memory_used_bytes 21474836480
            - gpu_memory_unattributed_bytes 0
            - gpu_processes{kind="compute"} 2
            + gpu_memory_used_bytes 22548578304
            + gpu_memory_unattributed_bytes 1073741824
            + gpu_processes{kind="compute"} 3
        "#]],
    );
}

#[test]
fn a_list_with_records_of_another_size_is_not_believed() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(1);
    let workers = [node.alice, node.bob].map(|who| node.runs(who, SLEEPS));
    node.held(0, &[&workers[0].with(10), &workers[1].with(10)]);
    node.change(|scenario| scenario.driver.oversized_process_entries = true);
    let agent = node.start();
    expect![[r#"
        gpu_utilization_ratio 0
        gpu_memory_used_bytes 21474836480
        enforcement_paused{reason="suspect_list"} 1
    "#]]
    .assert_eq(&lines(&agent.cycles(2), &workers));
    assert!(agent.log().contains("records"), "{}", agent.log());
}
