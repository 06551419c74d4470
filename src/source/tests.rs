use std::fs;
use std::path::PathBuf;

use super::*;
use crate::snapshot::readings::Memory;
use crate::snapshot::{GpuFault, Kind, Lookup, Protection};
use crate::units::{Bytes, Celsius, Hertz, Joules, Percent, Watts};

/// A node of its own: the simulated driver with a scenario beside it, the real `/proc`, and the agent's sources.
struct Node {
    root: tempfile::TempDir,
    sources: Sources,
}

impl Node {
    fn new(scenario: &str) -> Self {
        Self::with(scenario, "/proc".into(), None)
    }

    fn with(scenario: &str, procfs: PathBuf, rights: Option<&str>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libnvml_sim.so");
        let own = root.path().join("libnvidia-ml.so.1");
        // Loaded under a path of its own it is a driver of its own.
        fs::copy(library, &own).unwrap();
        fs::write(root.path().join("scenario.yaml"), scenario).unwrap();
        let fixed = rights.map(|text| assignment::files::parse(std::path::Path::new("test"), text).unwrap());
        let state_dir = root.path().join("state");
        fs::create_dir(&state_dir).unwrap();
        let sources = Sources::new(Settings {
            nvml_library: Some(own),
            procfs,
            state_dir,
            interval: Duration::from_secs(60),
            wanted: Wanted::default(),
            assignments: assignment::Settings { fixed, files: None },
        });
        Self { root, sources: sources.unwrap() }
    }

    fn turns_to(&self, scenario: &str) {
        let new = self.root.path().join("new");
        fs::write(&new, scenario).unwrap();
        fs::rename(new, self.root.path().join("scenario.yaml")).unwrap();
    }

    fn observe(&mut self) -> Snapshot {
        self.sources.observe()
    }
}

/// A process that is this test itself.
fn own() -> u32 {
    std::process::id()
}

/// A pid that no process has, above that of this test.
fn nobodys() -> i32 {
    let unused = |pid: &i32| !PathBuf::from(format!("/proc/{pid}")).exists();
    (own() as i32..32768).rev().find(unused).unwrap()
}

#[test]
fn everything_that_a_card_tells_is_read_in_its_unit() {
    let mut node = Node::new(
        "
driver: {version: 570.124.06, cuda: 12.8}
gpus:
  - uuid: GPU-8f3a12cd-0000-4000-8000-000000000001
    name: NVIDIA H100 80GB HBM3
    pci: '00000000:17:00.0'
    minor: 3
    serial: '1650522000001'
    architecture: hopper
    compute_capability: 9.0
    memory: {total: 80GiB, reserved: 500MiB, used: 10GiB}
    utilization: 37%
    encoder_utilization: 5%
    temperature: 41
    temperature_thresholds: {shutdown: 95, slowdown: 90}
    power: 120W
    power_limits: {enforced: 700, default: 700, min: 200, max: 700}
    energy: 123kJ
    clocks: {graphics: 1980MHz, memory: 2619MHz}
    max_clocks: {graphics: 1980MHz}
    performance_state: 0
    fans: [30%, 31%]
    pcie: {generation: 4, max_generation: 5, width: 8, max_width: 16, replays: 2}
    ecc: {mode: true, volatile: {corrected: {dram: 1, sram: 2}, uncorrected: {dram: 0}}, aggregate: {corrected: {dram: 9}}}
    persistence: true
    compute_mode: default
",
    );
    let snapshot = node.observe();
    let driver = snapshot.driver.unwrap();
    assert_eq!((driver.driver_version.as_deref(), driver.cuda_version.as_deref()), (Some("570.124.06"), Some("12.8")));
    let gpus = snapshot.gpus.unwrap();
    let gpu = &gpus[0];
    assert_eq!(gpu.identity.pci_bus_id.as_deref(), Some("00000000:17:00.0"));
    assert_eq!(gpu.identity.minor, Some(3));
    assert_eq!(gpu.identity.architecture.as_deref(), Some("Hopper"));
    assert_eq!(gpu.identity.compute_capability.as_deref(), Some("9.0"));
    assert_eq!(gpu.identity.vbios, None);
    let told = gpu.readings.as_ref().unwrap();
    assert_eq!(told.utilization, Some(Percent(37.0)));
    assert_eq!(told.encoder_utilization, Some(Percent(5.0)));
    assert_eq!(told.decoder_utilization, None);
    let gib = |count: u64| Some(Bytes(count << 30));
    assert_eq!(
        told.memory,
        Memory {
            total: gib(80),
            used: gib(10),
            free: Some(Bytes((70 << 30) - (500 << 20))),
            reserved: Some(Bytes(500 << 20))
        }
    );
    assert_eq!(told.temperature, Some(Celsius(41.0)));
    assert_eq!(told.temperature_thresholds, [("slowdown", Celsius(90.0)), ("shutdown", Celsius(95.0))]);
    assert_eq!(told.power, Some(Watts(120.0)));
    assert_eq!(
        told.power_limits,
        [("enforced", Watts(700.0)), ("default", Watts(700.0)), ("min", Watts(200.0)), ("max", Watts(700.0))]
    );
    assert_eq!(told.energy, Some(Joules(123_000.0)));
    assert_eq!(told.clocks, [("graphics", Hertz(1.98e9)), ("memory", Hertz(2.619e9))]);
    assert_eq!(told.clocks_max, [("graphics", Hertz(1.98e9))]);
    assert_eq!(told.performance_state, Some(0));
    assert_eq!(told.fans, [(0, Percent(30.0)), (1, Percent(31.0))]);
    let pcie = &told.pcie;
    assert_eq!((pcie.generation, pcie.generation_max, pcie.width, pcie.replays), (Some(4), Some(5), Some(8), Some(2)));
    assert_eq!(told.ecc.mode, Some(true));
    let errors: Vec<_> = told.ecc.errors.iter().map(|(place, count)| (*place, *count)).collect();
    assert_eq!(errors, [(("corrected", "dram"), 1), (("corrected", "sram"), 2), (("uncorrected", "dram"), 0)]);
    assert_eq!(told.ecc.lifetime_errors[&("corrected", "dram")], 9);
    assert_eq!((told.persistence_mode, told.compute_mode, told.mig_mode), (Some(true), Some(0), None));
    assert!(snapshot.nvml_errors.is_empty(), "{:?}", snapshot.nvml_errors);
    assert!(snapshot.pauses.is_empty(), "{:?}", snapshot.pauses);
}

#[test]
fn a_card_that_tells_nothing_has_nothing_that_is_zero() {
    let mut node = Node::new("gpus: [{uuid: GPU-aa}]");
    let snapshot = node.observe();
    let gpu = &snapshot.cards()[0];
    assert_eq!(gpu.readings, Ok(Default::default()));
    assert_eq!(gpu.holds, Ok(Vec::new()));
    assert!(snapshot.nvml_errors.is_empty(), "{:?}", snapshot.nvml_errors);
}

#[test]
fn a_card_without_memory_of_its_own_still_tells_what_each_process_holds() {
    let mut node = Node::new(&format!("gpus: [{{processes: [{{pid: {}, memory: 43MiB}}]}}]", own()));
    let snapshot = node.observe();
    let gpu = &snapshot.cards()[0];
    assert_eq!(gpu.readings.as_ref().unwrap().memory, Memory::default());
    assert_eq!(gpu.holds.as_ref().unwrap()[0].memory, Some(Bytes(43 << 20)));
}

#[test]
fn a_process_is_named_with_its_owner_and_stays_since_it_came() {
    let scenario = format!(
        "
gpus:
  - {{memory: {{total: 80GiB}}, utilization: 0%, processes: [{{pid: {0}, memory: 1GiB, kind: both}}]}}
  - {{processes: [{{pid: {0}, memory: unavailable}}, {{pid: {1}, always: true, memory: 5MiB}}]}}
",
        own(),
        nobodys()
    );
    let mut node = Node::new(&scenario);
    let first = node.observe();
    let holds = |snapshot: &Snapshot, gpu: usize| snapshot.cards()[gpu].holds.clone().unwrap();
    let hold = &holds(&first, 0)[0];
    let id = hold.process.unwrap();
    assert_eq!((id.pid, hold.kind, hold.memory), (own() as i32, Kind::Both, Some(Bytes(1 << 30))));
    assert_eq!(hold.since, first.at.boot);
    assert_eq!(holds(&first, 1)[0].memory, None);
    assert_eq!(holds(&first, 1)[1].process, Err(Unseen::Exited));
    let process = &first.processes[&id];
    assert_eq!(process.uid, Some(Uid(nix::unistd::getuid().as_raw())));
    assert_eq!(process.protection, Some(Protection::Agent));
    assert_eq!(first.users.keys().copied().collect::<Vec<_>>(), [process.uid.unwrap()]);

    let second = node.observe();
    assert_eq!(holds(&second, 0)[0].since, first.at.boot);
    assert!(second.at.boot > first.at.boot);
    // The card does nothing, and once there is a sample of that, neither did the process.
    assert_eq!(holds(&first, 0)[0].utilization, None);
    let began = Instant::now();
    let told = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(20));
        holds(&node.observe(), 0)[0].utilization
    })
    .take_while(|_| began.elapsed() < Duration::from_secs(20))
    .flatten()
    .next();
    assert_eq!(told, Some(Percent(0.0)));

    node.turns_to("gpus: [{}, {}]");
    node.observe();
    node.turns_to(&scenario);
    let back = node.observe();
    assert_eq!(holds(&back, 0)[0].since, back.at.boot);
}

#[test]
fn what_a_process_did_since_the_last_cycle_is_what_the_driver_sampled() {
    let mut node = Node::new(&format!(
        "gpus: [{{utilization: 60%, processes: [{{pid: {}, memory: 1GiB, utilization: 60%}}, {{pid: 1, memory: 1GiB}}]}}]",
        own()
    ));
    assert!(node.observe().cards()[0].holds.iter().flatten().all(|hold| hold.utilization.is_none()));
    let began = Instant::now();
    loop {
        let snapshot = node.observe();
        let holds = snapshot.cards()[0].holds.clone().unwrap();
        let share = |pid| holds.iter().find(|hold| hold.pid == pid).unwrap().utilization;
        // As long as there is no new sample the card is busy and nobody is.
        if let Some(share_of_own) = share(own() as i32) {
            assert_eq!((share_of_own, share(1)), (Percent(60.0), Some(Percent(0.0))));
            break;
        }
        assert_eq!(share(1), None);
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_old_driver_counts_what_is_reserved_as_used() {
    let mut node = Node::new(
        "
errors: {nvmlDeviceGetMemoryInfo_v2: FUNCTION_NOT_FOUND}
gpus: [{memory: {total: 80GiB, reserved: 1GiB, used: 10GiB}}]
",
    );
    let memory = node.observe().cards()[0].readings.as_ref().unwrap().memory;
    assert_eq!((memory.used, memory.reserved), (Some(Bytes(11 << 30)), None));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_real_driver_is_understood() {
    let root = tempfile::tempdir().unwrap();
    let mut sources = Sources::new(Settings {
        nvml_library: None,
        procfs: "/proc".into(),
        state_dir: root.path().into(),
        interval: Duration::from_secs(5),
        wanted: Wanted::default(),
        assignments: assignment::Settings::default(),
    })
    .unwrap();
    let first = sources.observe();
    std::thread::sleep(Duration::from_secs(2));
    let snapshot = sources.observe();
    println!("{snapshot:#?}\n{:#?}", sources.reexamine());
    assert!(!snapshot.cards().is_empty());
    for gpu in snapshot.cards() {
        assert!(gpu.holds.is_ok() && gpu.readings.as_ref().is_ok_and(|told| told.memory.total.is_some()));
    }
    assert_eq!(snapshot.nvml_errors, first.nvml_errors);
    assert!(!snapshot.pauses.contains(&Pause::SuspectList));
}

#[test]
fn a_lost_card_keeps_its_name_and_does_not_disturb_the_others() {
    let four =
        "gpus: [{uuid: GPU-aa, name: A}, {uuid: GPU-bb, name: B}, {uuid: GPU-cc, name: C}, {uuid: GPU-dd, name: D}]";
    let rights = "- {to: everyone, gpus: [1, 2]}";
    let mut node = Node::with(four, "/proc".into(), Some(rights));
    assert_eq!(node.observe().cards().len(), 4);

    for lost in ["lost: true", "errors: {nvmlDeviceGetHandleByIndex_v2: GPU_IS_LOST}"] {
        node.turns_to(&four.replace("name: B", &format!("name: B, {lost}")));
        let snapshot = node.observe();
        let seen: Vec<(u32, &str, bool)> = snapshot
            .cards()
            .iter()
            .map(|gpu| (gpu.index, gpu.identity.model.as_deref().unwrap(), gpu.readings.is_ok()))
            .collect();
        assert_eq!(seen, [(0, "A", true), (1, "B", false), (2, "C", true), (3, "D", true)], "{lost}");
        assert_eq!(snapshot.cards()[1].readings, Err(GpuFault("lost")));
        assert!(snapshot.cards()[1].holds.is_err());
        assert_eq!(snapshot.gpus_expected, Some(4));
        // Rights by index go on meaning the same cards.
        let right = &snapshot.assignments.sources[0].answer.as_ref().unwrap().rights[0];
        assert_eq!(right.gpus.known, BTreeSet::from([GpuUuid("GPU-bb".into()), GpuUuid("GPU-cc".into())]));
        assert!(right.gpus.unresolved.is_empty());
    }
    node.turns_to("gpus: [{uuid: GPU-aa}, {uuid: GPU-cc}, {uuid: GPU-dd}]");
    assert_eq!(node.observe().cards()[1].readings, Err(GpuFault("missing")));
    node.turns_to(four);
    assert!(node.observe().cards().iter().all(|gpu| gpu.readings.is_ok()));
}

#[test]
fn a_list_that_cannot_be_true_is_not_believed() {
    let processes = format!(
        "processes: [{{pid: {0}, memory: 1GiB}}, {{pid: 1, memory: 2GiB}}, {{pid: 2, always: true, memory: 1GiB}}]",
        own()
    );
    let mut node = Node::new(&format!("driver: {{oversized_process_entries: true}}\ngpus: [{{{processes}}}, {{}}]"));
    let snapshot = node.observe();
    assert_eq!(snapshot.pauses, [Pause::SuspectList]);
    assert!(snapshot.cards()[0].holds.is_err() && snapshot.cards()[0].readings.is_ok());
    assert_eq!(snapshot.cards()[1].holds, Ok(Vec::new()));
    assert!(node.sources.reexamine().is_err());
}

#[test]
fn a_driver_that_is_not_there_is_waited_for() {
    let mut node = Node::new("init: DRIVER_NOT_LOADED\ngpus: [{}]");
    let silent = node.observe();
    assert!(silent.gpus.as_ref().unwrap_err().what.starts_with("nvmlInit_v2: DRIVER_NOT_LOADED: "));
    assert_eq!(silent.pauses, [Pause::DriverStale]);
    assert_eq!(silent.nvml_errors[&("nvmlInit_v2", "DRIVER_NOT_LOADED")], 1);
    assert_eq!(silent.health[0].errors, 1);
    node.turns_to("gpus: [{}]");
    // It is tried again after a second, not in each cycle.
    assert!(node.observe().gpus.is_err());
    let began = Instant::now();
    while node.observe().gpus.is_err() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(node.observe().health[0].last_success.is_some());
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let mut node = Node::new("gpus: []");
    fs::remove_file(node.root.path().join("libnvidia-ml.so.1")).unwrap();
    let fault = node.observe().gpus.unwrap_err().what;
    assert!(fault.starts_with("there is no NVIDIA driver") && fault.contains("libnvidia-ml.so.1"), "{fault}");
}

#[test]
fn a_driver_that_hangs_costs_one_wait_and_is_used_again_when_it_returns() {
    let mut node = Node::new("gpus: [{temperature: 41}]");
    assert!(node.observe().gpus.is_ok());
    node.sources.interval = Duration::from_millis(200);
    node.turns_to("latency: {nvmlDeviceGetTemperature: hang}\ngpus: [{temperature: 41}]");
    for _ in 0..10 {
        let began = Instant::now();
        let snapshot = node.observe();
        assert!(began.elapsed() < Duration::from_secs(2));
        let fault = snapshot.gpus.unwrap_err().what;
        assert!(fault.starts_with("nvmlDeviceGetTemperature has not returned for "), "{fault}");
        assert_eq!(snapshot.pauses, [Pause::DriverStale]);
        assert!(node.sources.reexamine().is_err());
    }
    node.turns_to("gpus: [{temperature: 42}]");
    let began = Instant::now();
    let back = loop {
        let snapshot = node.observe();
        if snapshot.gpus.is_ok() {
            break snapshot;
        }
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(back.cards()[0].readings.as_ref().unwrap().temperature, Some(Celsius(42.0)));
}

#[test]
fn a_failing_call_leaves_out_its_value_alone_and_is_counted() {
    let mut node = Node::new("errors: {nvmlDeviceGetTemperature: UNKNOWN}\ngpus: [{temperature: 41, power: 120W}]");
    node.observe();
    let snapshot = node.observe();
    let told = snapshot.cards()[0].readings.as_ref().unwrap();
    assert_eq!((told.temperature, told.power), (None, Some(Watts(120.0))));
    assert_eq!(snapshot.nvml_errors, BTreeMap::from([(("nvmlDeviceGetTemperature", "UNKNOWN"), 2)]));
}

#[test]
fn a_list_that_fails_is_unknown_on_its_card_only() {
    let mut node =
        Node::new("gpus: [{errors: {nvmlDeviceGetComputeRunningProcesses_v3: UNKNOWN}, temperature: 41}, {}]");
    let snapshot = node.observe();
    let fault = snapshot.cards()[0].holds.as_ref().unwrap_err();
    assert_eq!(fault.what, "nvmlDeviceGetComputeRunningProcesses_v3: UNKNOWN");
    assert!(snapshot.cards()[0].readings.is_ok());
    assert!(snapshot.cards()[1].holds.is_ok());
    assert!(snapshot.pauses.is_empty());
    let occupancy = node.sources.reexamine().unwrap();
    assert_eq!(occupancy.unread, BTreeSet::from([snapshot.cards()[0].uuid.clone()]));
}

#[test]
fn under_mig_and_mps_nobody_knows_who_is_busy() {
    let mut node = Node::new(&format!(
        "
gpus:
  - utilization: 50%
    mig: {{enabled: true, max: 7, instances: []}}
    processes: [{{pid: {0}, memory: 14GiB, utilization: 50%, gpu_instance: 1, compute_instance: 0}}]
  - utilization: 50%
    processes: [{{pid: {0}, memory: 1GiB, utilization: 50%, kind: mps}}]
",
        own()
    ));
    node.observe();
    let snapshot = node.observe();
    let told = snapshot.cards()[0].readings.as_ref().unwrap();
    assert_eq!((told.mig_mode, told.utilization), (Some(true), None));
    for gpu in snapshot.cards() {
        assert_eq!(gpu.holds.as_ref().unwrap()[0].utilization, None, "{}", gpu.index);
    }
}

#[test]
fn a_fresh_reading_tells_who_is_on_which_card_now() {
    let on = |second: &str| {
        format!("gpus: [{{uuid: GPU-aa, processes: [{{pid: {0}, memory: 1GiB}}]}}, {{uuid: GPU-bb{second}}}]", own())
    };
    let mut node = Node::new(&on(""));
    node.observe();
    node.turns_to(&on(&format!(", processes: [{{pid: {}, memory: 1GiB}}]", own())));
    let occupancy = node.sources.reexamine().unwrap();
    let both = BTreeSet::from([GpuUuid("GPU-aa".into()), GpuUuid("GPU-bb".into())]);
    assert_eq!(occupancy.cards, BTreeMap::from([(own() as i32, both)]));
    let again = node.sources.process(own() as i32).unwrap().unwrap();
    assert_eq!(Some(&again.id), node.observe().processes.keys().next());
    assert_eq!(node.sources.process(nobodys()).unwrap(), Err(Unseen::Exited));
}

#[test]
fn where_proc_hides_others_a_listed_pid_is_hidden_and_not_dead() {
    let forged = |files: &[(&str, &str)]| {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    };
    let hidepid = forged(&[("mounts", "proc /proc proc rw,hidepid=2 0 0\n")]);
    let wsl = forged(&[("sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")]);
    for (root, pause) in [(hidepid, Pause::Hidepid), (wsl, Pause::Wsl)] {
        let scenario = "gpus: [{processes: [{pid: 7000, always: true, memory: unavailable}]}]";
        let snapshot = Node::with(scenario, root.path().into(), None).observe();
        assert_eq!(snapshot.pauses, [pause]);
        let hold = &snapshot.cards()[0].holds.as_ref().unwrap()[0];
        assert_eq!((hold.process, hold.memory), (Err(Unseen::Hidden), None));
    }
}

#[test]
fn a_new_list_of_rights_holds_in_the_cycle_that_reads_it() {
    let mut node = Node::new("gpus: [{uuid: GPU-aa}]");
    let file = node.root.path().join("rights.yaml");
    fs::write(&file, "[]").unwrap();
    let settings = Settings {
        nvml_library: None,
        procfs: "/proc".into(),
        state_dir: node.root.path().join("state"),
        interval: Duration::from_secs(5),
        wanted: Wanted::default(),
        assignments: assignment::Settings { fixed: None, files: Some(vec![file.clone()]) },
    };
    node.sources.reconfigure(settings);
    let rights = |snapshot: Snapshot| snapshot.assignments.sources[0].answer.clone().map(|answer| answer.rights.len());
    assert_eq!(rights(node.observe()), Ok(0));
    fs::write(&file, "- {to: everyone, gpus: [0]}\n").unwrap();
    assert_eq!(rights(node.observe()), Ok(1));
    fs::write(&file, "- {to: everyone, gpus: [0]}\n- {to: ").unwrap();
    assert!(rights(node.observe()).is_err());
}

#[test]
fn names_come_when_the_directory_has_answered() {
    let mut node = Node::new(&format!("gpus: [{{processes: [{{pid: {}, memory: 1GiB}}]}}]", own()));
    let uid = Uid(nix::unistd::getuid().as_raw());
    assert_eq!(node.observe().users[&uid].name, Lookup::Pending);
    let began = Instant::now();
    while node.observe().users[&uid].name == Lookup::Pending {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_only_lasts_longer_is_told_once() {
    let same = |one, other| ageless(one).eq(ageless(other));
    assert!(same("nvmlInit_v2 has not returned for 5s", "nvmlInit_v2 has not returned for 17s"));
    assert!(same(
        "the files have not been read for 5s; is their server there?",
        "the files have not been read for 6s; is their server there?"
    ));
    assert!(!same("nvmlInit_v2 has not returned for 5s", "nvmlShutdown has not returned for 5s"));
    assert!(!same("no card for user s", "no card for user 1"));
}
