//! One turn on a node of four cards, for the tests of all that shows it: alice on cards that are hers, bob on one that is
//! not, a card whose processes tell no memory, and a card that was lost.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::policy::rule::RuleFile;
use crate::policy::state::{Progress, Sighting, Warned};
use crate::policy::{
    Card, ChannelName, Deed, Episode, EpisodeKey, Evidence, Fate, Guard, Judgement, Mode, Outcome, Person, RuleName,
    Rules, Signal, Subject,
};
use crate::snapshot::gpu::Identity;
use crate::snapshot::readings::{Ecc, Memory, NvLink, Pcie};
use crate::snapshot::topology::{Relation, Wiring};
use crate::snapshot::*;
use crate::units::{Bytes, Celsius, Gid, Hertz, Joules, Percent, Uid, Watts};

const MIB: u64 = 1 << 20;
const INTERVAL: Duration = Duration::from_secs(5);

const RULES: &str = "
rules:
  - name: unassigned-gpu
    description: Use only the GPUs that are assigned to you.
    about: user
    per_gpu: true
    when: [{assigned: false}, {memory: '> 300MiB'}]
    targets: all
    mode: enforce
    severity: critical
    then:
      - {after: 1m, warn: [terminal, mail]}
      - {after: 10m, signal: TERM}
      - {after: 2m, signal: KILL}
  - name: idle-holder
    description: Give back what you do not use.
    about: process
    when: [{memory: '> 300MiB'}]
    then:
      - {after: 30m, warn: [terminal]}
";

pub fn at(seconds: u64) -> Moment {
    let boot = Duration::from_secs(100_000 + seconds);
    Moment { wall: Timestamp::from_second(1_796_029_200 + seconds as i64).unwrap(), boot }
}

pub fn uuid(index: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{index}0000000-1111-2222-3333-444444444444").into())
}

pub fn id(pid: i32) -> ProcessId {
    ProcessId { pid, started: 9_000_000 + pid as u64 }
}

pub fn rule_name(name: &str) -> RuleName {
    name.parse().unwrap()
}

pub fn user(uid: u32, name: Lookup<Arc<str>>, groups: &[(u32, &str)]) -> User {
    let groups = groups.iter().map(|(gid, name)| Group { gid: Gid(*gid), name: (*name).into() }).collect();
    User { uid: Uid(uid), name, groups: Lookup::Known(groups) }
}

pub fn process(pid: i32, uid: u32, command: &str) -> Process {
    Process {
        id: id(pid),
        uid: Some(Uid(uid)),
        confidence: Confidence::High,
        command: command.into(),
        executable: None,
        command_line: None,
        protection: Some(Protection::None),
        host_memory: Some(Bytes(512 * MIB)),
        host_cpu: Some(Duration::from_millis(12_340)),
    }
}

pub fn hold(pid: i32, kind: Kind, mebibytes: Option<u64>, utilization: Option<f64>) -> Hold {
    Hold {
        memory: mebibytes.map(|number| Bytes(number * MIB)),
        utilization: utilization.map(Percent),
        ..Hold::new(pid, Ok(id(pid)), kind, Duration::from_secs(99_000))
    }
}

pub fn gpu(index: u32, readings: Result<Readings, GpuFault>, holds: Vec<Hold>) -> Gpu {
    let identity = Identity {
        model: Some("NVIDIA A100-SXM4-80GB".into()),
        pci_bus_id: Some(format!("00000000:{:02X}:00.0", 0x17 + index)),
        minor: Some(index),
        serial: Some(format!("156062{index}")),
        brand: Some("nvidia".into()),
        architecture: Some("ampere".into()),
        compute_capability: Some("8.0".into()),
        vbios: Some("92.00.45.00.03".into()),
        inforom: Some("G506.0210.00.04".into()),
        board_part: Some("692-2G506-0210-002".into()),
        numa_node: Some(index / 2),
    };
    Gpu { identity: Arc::new(identity), readings, holds: Ok(holds), ..Gpu::named(uuid(index), index) }
}

/// A card that tells everything.
pub fn readings(used: u64, utilization: f64) -> Readings {
    Readings {
        utilization: Some(Percent(utilization)),
        memory_controller_utilization: Some(Percent(utilization / 2.0)),
        encoder_utilization: Some(Percent(0.0)),
        decoder_utilization: Some(Percent(0.0)),
        jpeg_utilization: Some(Percent(0.0)),
        ofa_utilization: Some(Percent(0.0)),
        memory: Memory {
            total: Some(Bytes(81_920 * MIB)),
            used: Some(Bytes(used * MIB)),
            free: Some(Bytes((81_920 - 640 - used) * MIB)),
            reserved: Some(Bytes(640 * MIB)),
        },
        temperature: Some(Celsius(54.0)),
        memory_temperature: Some(Celsius(61.0)),
        temperature_margin: Some(Celsius(33.0)),
        temperature_thresholds: vec![
            ("slowdown", Celsius(89.0)),
            ("shutdown", Celsius(92.0)),
            ("gpu_max", Celsius(85.0)),
            ("memory_max", Celsius(95.0)),
        ],
        power: Some(Watts(311.5)),
        power_limits: vec![
            ("enforced", Watts(400.0)),
            ("default", Watts(400.0)),
            ("min", Watts(100.0)),
            ("max", Watts(400.0)),
        ],
        energy: Some(Joules(123_456_789.012)),
        clocks: vec![
            ("graphics", Hertz(1_410e6)),
            ("sm", Hertz(1_410e6)),
            ("memory", Hertz(1_593e6)),
            ("video", Hertz(1_275e6)),
        ],
        clocks_max: vec![("graphics", Hertz(1_410e6)), ("memory", Hertz(1_593e6))],
        performance_state: Some(0),
        clock_events: vec![
            ("gpu_idle", false),
            ("applications_clocks_setting", false),
            ("sw_power_cap", true),
            ("hw_slowdown", false),
            ("sync_boost", false),
            ("sw_thermal_slowdown", false),
            ("hw_thermal_slowdown", false),
            ("hw_power_brake_slowdown", false),
            ("display_clock_setting", false),
            ("board_limit", false),
            ("reliability", false),
        ],
        clock_event_times: vec![
            ("sw_power_cap", Duration::from_millis(12_500)),
            ("sync_boost", Duration::ZERO),
            ("sw_thermal_slowdown", Duration::from_secs(3)),
            ("hw_thermal_slowdown", Duration::ZERO),
            ("hw_power_brake_slowdown", Duration::ZERO),
        ],
        fans: vec![(0, Percent(40.0)), (1, Percent(42.0))],
        pcie: Pcie {
            generation: Some(4),
            generation_max: Some(4),
            width: Some(16),
            width_max: Some(16),
            replays: Some(0),
            bytes: vec![("rx", Bytes(7 << 30)), ("tx", Bytes(5 << 30))],
        },
        pcie_throughput: vec![("rx", Bytes(200 * MIB)), ("tx", Bytes(100 * MIB))],
        nvlink: NvLink {
            up: vec![(0, true), (1, false)],
            errors: vec![("replay", 0), ("recovery", 1), ("crc", 0)],
            bytes: vec![("rx", Bytes(2 << 30)), ("tx", Bytes(1 << 30))],
            fabric_state: Some(3),
        },
        ecc: Ecc {
            mode: Some(true),
            errors: BTreeMap::from([(("corrected", "dram"), 3), (("uncorrected", "sram"), 0)]),
            lifetime_errors: BTreeMap::from([(("corrected", "dram"), 41)]),
            sram_threshold_exceeded: Some(false),
            retired_pages: vec![("corrected", 2), ("uncorrected", 0)],
            retired_pages_pending: Some(false),
            remapped_rows: vec![("corrected", 0), ("uncorrected", 1)],
            row_remap_pending: Some(true),
            row_remap_failure: Some(false),
            row_remap_banks: vec![("max", 639), ("high", 0), ("partial", 1), ("low", 0), ("none", 0)],
        },
        recovery_action: Some(0),
        persistence_mode: Some(true),
        compute_mode: Some(0),
        mig_mode: Some(false),
        ..Readings::default()
    }
}

/// A card whose memory is the host's: the driver tells none of it.
fn without_memory() -> Readings {
    Readings { temperature: Some(Celsius(48.0)), utilization: Some(Percent(12.5)), ..Readings::default() }
}

pub fn snapshot(seconds: u64) -> Snapshot {
    let mut hidden = hold(4004, Kind::Compute, None, None);
    hidden.process = Err(Unseen::Hidden);
    let mut exited = hold(4005, Kind::Compute, Some(512), None);
    exited.process = Err(Unseen::Exited);
    let gpus = vec![
        gpu(
            0,
            Ok(readings(40_000, 93.0)),
            vec![
                hold(4000, Kind::Compute, Some(38_000), Some(90.0)),
                hold(4001, Kind::Both, Some(1_000), Some(0.0)),
                exited,
            ],
        ),
        gpu(
            1,
            Ok(readings(9_000, 20.0)),
            vec![hold(4001, Kind::Compute, Some(200), Some(0.0)), hold(4002, Kind::Compute, Some(8_000), Some(20.0))],
        ),
        gpu(2, Ok(without_memory()), vec![hold(4003, Kind::Graphics, None, None), hidden]),
        gpu(3, Err(GpuFault("lost")), Vec::new()),
    ];
    let processes = [
        process(4000, 1001, "python3"),
        process(4001, 1001, "jupyter \"lab\""),
        process(4002, 1002, "<b>train</b>\n1"),
        process(4003, 1003, "Xorg"),
    ];
    let users = [
        user(1001, Lookup::Known("alice".into()), &[(100, "users"), (200, "vision")]),
        user(1002, Lookup::Absent, &[(100, "users")]),
        user(1003, Lookup::Known("CORP\\carol".into()), &[(100, "users")]),
    ];
    Snapshot {
        at: at(seconds),
        boot_id: "5d2c7a52-0000-4000-8000-000000000000".into(),
        driver: Ok(Driver {
            driver_version: Some("570.133.20".into()),
            nvml_version: Some("12.570.133.20".into()),
            cuda_version: Some("12.8".into()),
        }),
        gpus: Ok(gpus),
        processes: processes.into_iter().map(|process| (process.id, process)).collect(),
        users: users.into_iter().map(|user| (user.uid, user)).collect(),
        assignments: assignments(),
        health: health(),
        pauses: Vec::new(),
        gpus_expected: Some(4),
        topology: topology(),
        nvml_errors: BTreeMap::from([(("nvmlDeviceGetMemoryInfo_v2", "GPU_IS_LOST"), 12)]),
    }
}

/// The first two cards on one switch and with four links between them; of the others nothing is told.
fn topology() -> Arc<Topology> {
    let wiring = Wiring { numa_nodes: vec![0], switch_links: Some(0) };
    let relation = Relation { pcie: Some("single"), nvlinks: Some(4) };
    Arc::new(Topology {
        cards: BTreeMap::from([(uuid(0), wiring), (uuid(1), Wiring::default())]),
        pairs: BTreeMap::from([((uuid(0), uuid(1)), relation)]),
    })
}

fn assignments() -> Assignments {
    let right = |to: Grantee, cards: &[u32], until: Option<&str>| Right {
        to,
        gpus: Cards { known: cards.iter().map(|index| uuid(*index)).collect(), unresolved: Vec::new() },
        when: Validity { until: until.map(|until| until.parse().unwrap()), ..Validity::default() },
    };
    let alice = Grantee::User { uid: Uid(1001), name: "alice".into() };
    let rights = vec![
        right(alice, &[0, 1], Some("2026-12-05T10:00:00Z")),
        right(Grantee::Group { gid: Gid(200), name: "vision".into() }, &[1], None),
        right(Grantee::Everyone, &[2, 3], None),
        right(Grantee::Unresolved("mallory".into()), &[3], None),
    ];
    let answer = Answer { at: Duration::from_secs(99_990), rights };
    Assignments { sources: vec![AssignmentSource { source: Source::Fixed, answer: Ok(answer) }] }
}

fn health() -> Vec<Health> {
    let health = |source, took, unresolved| Health {
        source,
        fault: None,
        last_success: Some(at(0).wall),
        took: Some(Duration::from_micros(took)),
        errors: 0,
        unresolved,
    };
    let silent = Health {
        fault: Some("the directory does not answer".into()),
        errors: 2,
        last_success: None,
        took: None,
        ..health(Source::Directory, 0, None)
    };
    vec![
        health(Source::Nvml, 4_200, None),
        health(Source::Procfs, 900, None),
        silent,
        health(Source::Fixed, 30, Some(vec!["dave".into()])),
    ]
}

pub fn setup() -> Setup {
    let file: RuleFile = serde_yaml::from_str(RULES).unwrap();
    Setup {
        host: "gpu01".into(),
        build: Build { version: "0.1.0", revision: Some("0123abc"), rustc_version: Some("1.95.0") },
        rules: Rules {
            mode: Mode::Enforce,
            interval: INTERVAL,
            footprint: Bytes(300 * MIB),
            rules: file.rules,
            exempt: Vec::new(),
        },
        channels: ["mail", "terminal"].map(|name| ChannelName(name.into())).into(),
        groups: ["vision".to_owned()].into(),
        processes: 256,
        hash: 0x4567_89ab_cdef,
    }
}

pub fn bob() -> Person {
    Person { uid: Uid(1002), name: "1002".into() }
}

pub fn bobs_key() -> EpisodeKey {
    EpisodeKey { rule: rule_name("unassigned-gpu"), subject: Subject::User { uid: Uid(1002), gpu: Some(uuid(1)) } }
}

fn card(index: u32) -> Card {
    Card { uuid: uuid(index), index, model: Some("NVIDIA A100-SXM4-80GB".into()) }
}

pub fn judgements(began: bool) -> Vec<Judgement> {
    let evidence = |fact, value: &str, asked: &str| Evidence {
        fact,
        value: value.into(),
        asked: asked.into(),
        truth: Truth::True,
    };
    let idle = |pid, index, truth, uid: u32, name: &str| Judgement {
        key: EpisodeKey { rule: rule_name("idle-holder"), subject: Subject::Process { id: id(pid), gpu: uuid(index) } },
        truth,
        owner: Some(Person { uid: Uid(uid), name: name.into() }),
        gpu: Some(card(index).into()),
        evidence: Vec::new(),
        began: false,
    };
    vec![
        Judgement {
            key: bobs_key(),
            truth: Truth::True,
            owner: Some(bob()),
            gpu: Some(card(1).into()),
            evidence: vec![evidence("assigned", "false", "false"), evidence("memory", "7.8GiB", "> 300MiB")],
            began,
        },
        idle(4000, 0, Truth::True, 1001, "alice"),
        idle(4001, 0, Truth::True, 1001, "alice"),
        idle(4001, 1, Truth::False, 1001, "alice"),
        idle(4003, 2, Truth::Unknown, 1003, "CORP\\carol"),
    ]
}

pub fn outcome(deed: Deed, rung: usize, target: Option<i32>, result: Fate) -> Outcome {
    Outcome { key: bobs_key(), rung, deed, owner: Some(bob()), target: target.map(id), result }
}

fn outcomes() -> Vec<Outcome> {
    let channels = vec![ChannelName("terminal".into()), ChannelName("mail".into())];
    let warn = Deed::Warn { to: vec![bob()], channels };
    vec![
        outcome(warn, 0, None, Fate::Done),
        outcome(Deed::Signal(Signal::Term), 1, Some(4002), Fate::Refused(Guard::Fuse)),
    ]
}

/// One message came, one reached nobody.
fn notifications() -> BTreeMap<(ChannelName, &'static str), u64> {
    let count = |channel: &str, outcome, count| ((ChannelName(channel.into()), outcome), count);
    [
        count("mail", "delivered", 0),
        count("mail", "undeliverable", 1),
        count("mail", "failed", 0),
        count("terminal", "delivered", 1),
        count("terminal", "undeliverable", 0),
        count("terminal", "failed", 0),
    ]
    .into()
}

/// Bob was warned five minutes ago.
fn state() -> State {
    let episode = Episode {
        meaning: 1,
        mode: Mode::Enforce,
        right: Some(false),
        owner: Some(bob()),
        began: at(0).wall - Duration::from_secs(360),
        clock: Duration::from_secs(360),
        climbed: vec![Duration::from_secs(60)],
        last: Sighting { at: at(5).boot, truth: Truth::True },
        false_for: Duration::ZERO,
        unknown_since: None,
        warned: BTreeMap::from([(
            Uid(1002),
            Warned {
                name: "1002".into(),
                at: Duration::from_secs(99_700),
                channels: vec![ChannelName("terminal".into())],
            },
        )]),
        unreachable: false,
        targets: BTreeMap::<ProcessId, Progress>::new(),
        tried: Vec::new(),
    };
    State { episodes: BTreeMap::from([(bobs_key(), episode)]) }
}

/// The second of two turns, five seconds after the first.
pub fn cycle() -> Cycle {
    let setup = Arc::new(setup());
    let (first, second) = (snapshot(0), snapshot(5));
    let took = Duration::from_millis(8);
    let mut tallies = Tallies::default();
    let (began, goes_on, outcomes) = (judgements(true), judgements(false), outcomes());
    let opening = Turn { before: None, now: &first, judgements: &began, outcomes: &[], took, setup: &setup };
    tallies.count(&opening);
    tallies.count(&Turn { before: Some(&first), now: &second, judgements: &goes_on, outcomes: &outcomes, ..opening });
    let state = Arc::new(state());
    Cycle {
        seen: second,
        standings: Standings::of(goes_on, &state, None),
        outcomes,
        state,
        exempt: [id(4003)].into(),
        pauses: [Pause::Fuse].into(),
        blown: [Fuse::ActsPerHour].into(),
        unkillable: 1,
        notifications: notifications(),
        tallies: tallies.into(),
        took,
        setup,
        reload: Reload { failure: None, last_success: at(0).wall },
        agent: Agent {
            cpu: Some(Duration::from_millis(1_250)),
            resident: Some(Bytes(18 * MIB)),
            virtual_memory: Some(Bytes(300 * MIB)),
            open_fds: Some(14),
            max_fds: Some(1024),
            started: Some(Duration::from_millis(99_900_250)),
            threads: Some(4),
        },
    }
}
