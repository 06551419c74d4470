//! Cards that are cut into MIG instances, and what the parts of cards were doing (GPM).

use std::collections::BTreeMap;

use crate::harness::worker::SLEEPS;
use crate::harness::{Agent, Node, Page, Worker, root};
use crate::pages::promtool_is_silent;
use expect_test::{Expect, expect};
use nvml_sim::scenario::{Mig, MigInstance, ProcessMemory};
use nvml_sim::value::{Error, Value};
use nvml_sim::{Process, Scenario};

/// One card of two GPU instances, the second of which has two compute instances.
const CUT: &str = "
gpus:
  - name: NVIDIA H100 80GB HBM3
    memory: {total: 80GiB, used: 13GiB, reserved: 500MiB}
    mig:
      enabled: true
      instances:
        - {profile: 1g.10gb, gpu_instance: 7, memory: {total: 10GiB, reserved: 10MiB}}
        - {profile: 1c.2g.20gb, gpu_instance: 3, compute_instance: 0, memory: {total: 20GiB, used: 6GiB}}
        - {profile: 1c.2g.20gb, gpu_instance: 3, compute_instance: 1, memory: {total: 20GiB, used: 6GiB}}
";

const NVML: &[(&str, &str)] = &[("source", "nvml")];

const EVERYBODY_MAY: &str = "assignments: {fixed: [{to: everyone, gpus: [0]}]}";

/// A node of which no more is written than this.
fn node(scenario: &str) -> Node {
    let mut node = Node::new(0);
    let written: Scenario = scenario.parse().unwrap();
    node.change(|scenario| *scenario = written);
    node.configure(EVERYBODY_MAY);
    node
}

fn on(worker: &Worker, gibibytes: u64, gpu_instance: u32, compute_instance: u32) -> Process {
    let (gpu_instance, compute_instance) = (Some(gpu_instance), Some(compute_instance));
    Process { gpu_instance, compute_instance, ..worker.with(gibibytes) }
}

fn mig(scenario: &mut Scenario) -> &mut Mig {
    let Value::Known(mig) = &mut scenario.gpus[0].mig else { panic!("the card has no MIG") };
    mig
}

fn instances(scenario: &mut Scenario) -> &mut Vec<MigInstance> {
    &mut mig(scenario).instances
}

/// The samples of families whose names begin so, less what every one of them bears; processes by the names of who runs
/// them.
fn lines(page: &Page, families: &[&str], workers: &[(&str, &Worker)]) -> String {
    let names: BTreeMap<String, &str> =
        workers.iter().map(|(name, worker)| (worker.pid().to_string(), *name)).collect();
    let mut text = String::new();
    for sample in &page.samples {
        let Some(name) = sample.name.strip_prefix("gpuwarden_") else { continue };
        if !families.iter().any(|family| name.starts_with(family)) {
            continue;
        }
        let labels: Vec<String> = sample
            .labels
            .iter()
            .filter(|(key, _)| !["gpu", "uuid", "user"].contains(&key.as_str()))
            .map(|(key, value)| format!("{key}={}", names.get(value).copied().unwrap_or(value)))
            .collect();
        text += &format!("{name} {} {}\n", labels.join(" "), sample.value).replace("  ", " ");
    }
    text
}

/// The families of a process on a card.
const OF_PROCESSES: &[&str] = &[
    "process_memory_bytes",
    "process_utilization_ratio",
    "process_busy_seconds_total",
    "process_assigned",
    "gpu_utilization_ratio",
    "gpu_memory_used_bytes",
    "gpu_memory_unattributed_bytes",
    "user_memory_bytes",
    "user_processes",
];

#[track_caller]
fn check(agent: &Agent, families: &[&str], workers: &[(&str, &Worker)], expected: Expect) {
    let page = agent.cycles(2);
    promtool_is_silent(&page.text);
    expected.assert_eq(&lines(&page, families, workers));
}

#[test]
fn each_instance_has_its_processes_and_the_card_is_counted_once() {
    if !root("several people") {
        return;
    }
    let mut node = node(CUT);
    let (alice, bob) = (node.runs(node.alice, SLEEPS), node.runs(node.bob, SLEEPS));
    node.held(0, &[&on(&alice, 8, 7, 0), &on(&bob, 5, 3, 1)]);
    let agent = node.start();
    let workers = [("alice", &alice), ("bob", &bob)];
    check(
        &agent,
        &["mig_"],
        &workers,
        expect![[r#"
        mig_info compute_instance=0 gpu_instance=7 mig_uuid=MIG-00000007-0000-4000-8000-000000000000 profile=1g.10gb 1
        mig_info compute_instance=0 gpu_instance=3 mig_uuid=MIG-00000003-0000-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_info compute_instance=1 gpu_instance=3 mig_uuid=MIG-00000003-0001-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_memory_total_bytes gpu_instance=3 21474836480
        mig_memory_total_bytes gpu_instance=7 10737418240
        mig_memory_used_bytes gpu_instance=3 6442450944
        mig_memory_used_bytes gpu_instance=7 8589934592
        mig_memory_free_bytes gpu_instance=3 15032385536
        mig_memory_free_bytes gpu_instance=7 2136997888
        mig_memory_reserved_bytes gpu_instance=3 0
        mig_memory_reserved_bytes gpu_instance=7 10485760
    "#]],
    );
    check(
        &agent,
        OF_PROCESSES,
        &workers,
        expect![[r#"
        gpu_memory_used_bytes 13958643712
        gpu_memory_unattributed_bytes 0
        process_memory_bytes compute_instance=0 gpu_instance=7 pid=alice 8589934592
        process_memory_bytes compute_instance=1 gpu_instance=3 pid=bob 5368709120
        process_assigned compute_instance=0 gpu_instance=7 pid=alice 1
        process_assigned compute_instance=1 gpu_instance=3 pid=bob 1
        user_memory_bytes 8589934592
        user_memory_bytes 5368709120
        user_processes 1
        user_processes 1
    "#]],
    );
}

#[test]
fn a_process_on_two_compute_instances_of_one_gpu_instance_counts_once_for_its_user() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = node(CUT);
    let alice = node.runs(node.alice, SLEEPS);
    node.held(0, &[&on(&alice, 2, 3, 0), &on(&alice, 3, 3, 1)]);
    let agent = node.start();
    check(
        &agent,
        OF_PROCESSES,
        &[("alice", &alice)],
        expect![[r#"
        gpu_memory_used_bytes 13958643712
        gpu_memory_unattributed_bytes 8589934592
        process_memory_bytes compute_instance=0 gpu_instance=3 pid=alice 2147483648
        process_memory_bytes compute_instance=1 gpu_instance=3 pid=alice 3221225472
        process_assigned compute_instance=0 gpu_instance=3 pid=alice 1
        process_assigned compute_instance=1 gpu_instance=3 pid=alice 1
        user_memory_bytes 5368709120
        user_processes 1
    "#]],
    );
}

#[test]
fn an_instance_without_processes_is_there_and_one_that_goes_takes_its_series_along() {
    let mut node = node(CUT);
    let agent = node.start();
    check(
        &agent,
        OF_PROCESSES,
        &[],
        expect![[r#"
        gpu_memory_used_bytes 13958643712
        gpu_memory_unattributed_bytes 13958643712
    "#]],
    );
    node.change(|scenario| drop(instances(scenario).remove(0)));
    check(
        &agent,
        &["mig_info", "mig_memory_total_bytes"],
        &[],
        expect![[r#"
        mig_info compute_instance=0 gpu_instance=3 mig_uuid=MIG-00000003-0000-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_info compute_instance=1 gpu_instance=3 mig_uuid=MIG-00000003-0001-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_memory_total_bytes gpu_instance=3 21474836480
    "#]],
    );
    node.change(|scenario| {
        let new = MigInstance { profile: "3g.40gb".into(), gpu_instance: 1, ..MigInstance::default() };
        *instances(scenario) = vec![new];
    });
    check(
        &agent,
        &["mig_"],
        &[],
        expect![[r#"
        mig_info compute_instance=0 gpu_instance=1 mig_uuid=MIG-00000001-0000-4000-8000-000000000000 profile=3g.40gb 1
    "#]],
    );
}

#[test]
fn who_may_not_see_the_memory_sees_the_processes_without_it() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = node(CUT);
    let alice = node.runs(node.alice, SLEEPS);
    let unavailable = |process| Process { memory: ProcessMemory::Unavailable, ..process };
    node.held(0, &[&unavailable(on(&alice, 0, 7, 0)), &on(&alice, 3, 3, 0)]);
    let agent = node.start();
    check(
        &agent,
        OF_PROCESSES,
        &[("alice", &alice)],
        expect![[r#"
        gpu_memory_used_bytes 13958643712
        process_memory_bytes compute_instance=0 gpu_instance=3 pid=alice 3221225472
        process_assigned compute_instance=0 gpu_instance=3 pid=alice 1
        process_assigned compute_instance=0 gpu_instance=7 pid=alice 1
        user_processes 1
    "#]],
    );
    assert_eq!(agent.page().value("gpuwarden_gpu_processes_memory_unknown", &[]), Some(1.0));
}

#[test]
fn processes_that_the_card_hides_are_told_of_by_its_instances() {
    if !root("several people") {
        return;
    }
    let mut node = node(CUT);
    let (alice, bob) = (node.runs(node.alice, SLEEPS), node.runs(node.bob, SLEEPS));
    node.change(|scenario| mig(scenario).hides_processes = true);
    node.held(0, &[&on(&alice, 8, 7, 0), &on(&bob, 5, 3, 1)]);
    let agent = node.start();
    let workers = [("alice", &alice), ("bob", &bob)];
    check(
        &agent,
        &["process_memory_bytes", "user_memory_bytes"],
        &workers,
        expect![[r#"
        process_memory_bytes compute_instance=0 gpu_instance=7 pid=alice 8589934592
        process_memory_bytes compute_instance=1 gpu_instance=3 pid=bob 5368709120
        user_memory_bytes 8589934592
        user_memory_bytes 5368709120
    "#]],
    );
    // Then nobody knows whom the one that errs would have named.
    const LIST: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
    node.change(|scenario| instances(scenario)[0].errors = [(LIST.into(), Error::UNKNOWN)].into());
    check(&agent, &["process_memory_bytes", "user_memory_bytes", "gpu_holders"], &workers, expect![[""]]);
}

#[test]
fn an_instance_that_is_lost_or_errs_spoils_neither_the_card_nor_the_others() {
    if !root("several people") {
        return;
    }
    let mut node = node(CUT);
    let alice = node.runs(node.alice, SLEEPS);
    node.held(0, &[&on(&alice, 8, 7, 0)]);
    node.change(|scenario| {
        let instances = instances(scenario);
        instances[0].lost = true;
        instances[1].errors =
            ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2"].map(|call| (call.into(), Error::UNKNOWN)).into();
    });
    let agent = node.start();
    check(
        &agent,
        &["gpu_up", "mig_", "process_memory_bytes"],
        &[("alice", &alice)],
        expect![[r#"
        gpu_up 1
        mig_info compute_instance=0 gpu_instance=3 mig_uuid=MIG-00000003-0000-4000-8000-000000000000 1
        mig_info compute_instance=1 gpu_instance=3 mig_uuid=MIG-00000003-0001-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_memory_total_bytes gpu_instance=3 21474836480
        mig_memory_used_bytes gpu_instance=3 6442450944
        mig_memory_free_bytes gpu_instance=3 15032385536
        mig_memory_reserved_bytes gpu_instance=3 0
        process_memory_bytes compute_instance=0 gpu_instance=7 pid=alice 8589934592
    "#]],
    );
}

#[test]
fn a_lost_card_takes_its_instances_along() {
    let mut node = node(CUT);
    let agent = node.start();
    assert_eq!(agent.page().all("gpuwarden_mig_info", &[]).count(), 3);
    node.change(|scenario| scenario.gpus[0].lost = true);
    agent.shows("the card is lost", |page| page.value("gpuwarden_gpu_up", &[]) == Some(0.0));
    check(
        &agent,
        &["mig_", "gpu_up", "gpu_fault_info"],
        &[],
        expect![[r#"
        gpu_up 0
        gpu_fault_info reason=lost 1
    "#]],
    );
    node.change(|scenario| scenario.gpus[0].lost = false);
    agent.shows("it is back", |page| page.all("gpuwarden_mig_info", &[]).count() == 3);
}

#[test]
fn a_card_that_is_cut_while_the_agent_runs_loses_its_utilisation_and_finds_it_again() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = node(CUT);
    let alice = node.runs(node.alice, SLEEPS);
    node.change(|scenario| {
        scenario.gpus[0].utilization = nvml_sim::units::Load::Steady(nvml_sim::units::Percent(40)).into();
        mig(scenario).enabled = false;
    });
    node.held(0, &[&alice.with(8)]);
    let agent = node.start();
    let families = ["gpu_utilization_ratio", "gpu_mig_mode", "mig_info", "process_memory_bytes", "process_assigned"];
    check(
        &agent,
        &families,
        &[("alice", &alice)],
        expect![[r#"
        gpu_utilization_ratio 0.4
        gpu_mig_mode 0
        process_memory_bytes pid=alice 8589934592
        process_assigned pid=alice 1
    "#]],
    );
    node.change(|scenario| mig(scenario).enabled = true);
    node.held(0, &[&on(&alice, 8, 7, 0)]);
    check(
        &agent,
        &families,
        &[("alice", &alice)],
        expect![[r#"
        gpu_mig_mode 1
        mig_info compute_instance=0 gpu_instance=7 mig_uuid=MIG-00000007-0000-4000-8000-000000000000 profile=1g.10gb 1
        mig_info compute_instance=0 gpu_instance=3 mig_uuid=MIG-00000003-0000-4000-8000-000000000000 profile=1c.2g.20gb 1
        mig_info compute_instance=1 gpu_instance=3 mig_uuid=MIG-00000003-0001-4000-8000-000000000000 profile=1c.2g.20gb 1
        process_memory_bytes compute_instance=0 gpu_instance=7 pid=alice 8589934592
        process_assigned compute_instance=0 gpu_instance=7 pid=alice 1
    "#]],
    );
    node.change(|scenario| mig(scenario).enabled = false);
    node.held(0, &[&alice.with(8)]);
    check(
        &agent,
        &families,
        &[("alice", &alice)],
        expect![[r#"
        gpu_utilization_ratio 0.4
        gpu_mig_mode 0
        process_memory_bytes pid=alice 8589934592
        process_assigned pid=alice 1
    "#]],
    );
}

/// A card with GPM, one without, and one that is cut.
const MEASURED: &str = "
gpus:
  - {gpm: {1: 97.5, 2: 90.0, 3: 45.0, 4: 1.0, 5: 60.0, 10: 33.0, 11: 0.0, 12: 8.0, 13: 3.0}}
  - {}
  - mig:
      enabled: true
      instances:
        - {profile: 1g.10gb, gpu_instance: 7, gpm: {1: 80.0, 2: 75.0, 3: 40.0, 5: 20.0, 10: 30.0, 12: 5.0}}
        - {profile: 1c.2g.20gb, gpu_instance: 3, compute_instance: 0, gpm: {2: 12.0}}
        - {profile: 1c.2g.20gb, gpu_instance: 3, compute_instance: 1, gpm: {2: 12.0}}
        - {profile: 1g.10gb, gpu_instance: 8}
";

fn is_of_gpm(name: &str) -> bool {
    name.ends_with("_active_ratio") || name.ends_with("_occupancy_ratio")
}

/// Every ratio of GPM on the page.
fn ratios(page: &Page) -> String {
    let of_gpm = page.samples.iter().filter(|sample| is_of_gpm(&sample.name)).map(|sample| {
        let instance = sample.labels.get("gpu_instance").map(|id| format!("/{id}")).unwrap_or_default();
        let name = sample.name.trim_start_matches("gpuwarden_").trim_end_matches("_ratio");
        format!("{}{instance} {name} {}\n", sample.labels["gpu"], sample.value)
    });
    of_gpm.collect()
}

#[track_caller]
fn check_ratios(agent: &Agent, expected: Expect) {
    let page = agent.cycles(2);
    promtool_is_silent(&page.text);
    expected.assert_eq(&ratios(&page));
}

#[test]
fn what_the_parts_of_a_card_did_is_told_by_the_cards_and_instances_that_measure_it() {
    let node = node(MEASURED);
    let agent = node.start();
    check_ratios(
        &agent,
        expect![[r#"
        0 gpu_graphics_active 0.975
        0 gpu_sm_active 0.9
        0 gpu_tensor_active 0.6
        0 gpu_dram_active 0.33
        0 gpu_fp64_active 0
        0 gpu_fp32_active 0.08
        0 gpu_fp16_active 0.03
        0 gpu_integer_active 0.01
        0 gpu_sm_occupancy 0.45
        2/7 mig_graphics_active 0.8
        2/3 mig_sm_active 0.12
        2/7 mig_sm_active 0.75
        2/7 mig_tensor_active 0.2
        2/7 mig_dram_active 0.3
        2/7 mig_sm_occupancy 0.4
    "#]],
    );
    // What nobody wants is not asked for, and gone.
    node.configure("metrics: {gpm: false}");
    assert!(agent.reload());
    check_ratios(&agent, expect![[""]]);
    node.configure("");
    assert!(agent.reload());
    agent.shows("the ratios are back", |page| page.value("gpuwarden_gpu_sm_active_ratio", &[]) == Some(0.9));
}

#[test]
fn a_part_that_cannot_be_measured_is_absent_and_the_others_stay() {
    let mut node = node("gpus: [{gpm: {1: 50.0, 2: .nan, 3: 101.0, 5: -1.0, 10: 100.0}}]");
    let agent = node.start();
    check_ratios(
        &agent,
        expect![[r#"
        0 gpu_graphics_active 0.5
        0 gpu_dram_active 1
    "#]],
    );
    node.change(|scenario| scenario.gpus[0].gpm = Value::Failing(Error::UNKNOWN));
    check_ratios(&agent, expect![[""]]);
    node.change(|scenario| scenario.gpus[0].gpm = Value::Known([(1, 25.0)].into()));
    check_ratios(
        &agent,
        expect![[r#"
        0 gpu_graphics_active 0.25
    "#]],
    );
}

#[test]
fn samples_are_given_back_when_an_instance_goes_the_switch_is_turned_or_the_driver_ends() {
    // Two for each of the cards, and for the two GPU instances; not one more.
    let mut node = node(&format!("gpm_samples: 8\n{MEASURED}"));
    node.change(|scenario| {
        scenario.gpus[1].gpm = Value::Known([(1, 10.0)].into());
        cut(scenario).truncate(2);
    });
    let agent = node.start();
    let all = |page: &Page| {
        let measured = ["gpu_graphics_active_ratio", "mig_sm_active_ratio"];
        measured.map(|family| page.all(&format!("gpuwarden_{family}"), &[]).count()) == [2, 2]
    };
    agent.shows("all is measured", all);
    for round in 0..4 {
        node.change(|scenario| cut(scenario).iter_mut().for_each(|instance| instance.gpu_instance += 10));
        agent.cycles(2);
        agent.shows(&format!("other instances, round {round}"), all);
    }
    for settings in ["metrics: {gpm: false}", "", "metrics: {gpm: false}", ""] {
        node.configure(settings);
        assert!(agent.reload());
        agent.cycles(2);
    }
    agent.shows("switched on again", all);
    for _ in 0..2 {
        node.change(|scenario| scenario.errors = [("nvmlDeviceGetCount_v2".into(), Error::DRIVER_NOT_LOADED)].into());
        agent.shows("the driver is gone", |page| page.value("gpuwarden_source_up", NVML) == Some(0.0));
        node.change(|scenario| scenario.errors.clear());
        agent.shows("the driver is back", all);
    }
    assert_eq!(agent.page().all("gpuwarden_nvml_errors_total", &[("call", "nvmlGpmSampleAlloc")]).count(), 0);
    assert_eq!(agent.page().all("gpuwarden_nvml_errors_total", &[("call", "nvmlGpmSampleFree")]).count(), 0);
}

/// The instances of the card that is cut.
fn cut(scenario: &mut Scenario) -> &mut Vec<MigInstance> {
    let Value::Known(mig) = &mut scenario.gpus[2].mig else { panic!("it is cut") };
    &mut mig.instances
}
