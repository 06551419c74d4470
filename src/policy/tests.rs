//! Timelines: a rule, what is seen from when on, and what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::rule::{Exemption, RuleFile, Rules};
use super::*;
use crate::snapshot::Readings;
use crate::snapshot::gpu::Identity;
use crate::snapshot::readings::Memory;
use crate::snapshot::{
    Answer, AssignmentSource, Assignments, Cards, Fault, Gpu, Grantee, Hold, Kind, Lookup, Process, Protection, Right,
    Source, User, Validity,
};
use crate::units::{Percent, Span};

/// What is on the node. A line of a timeline changes it from its time on:
///
/// `5m pid=7 user=1001 gpu=0 mem=10GiB util=0%` (`?` = unknown), `6m gone 7`, `0m assign 1001 gpu=0`, `9m silent`,
/// `9m driver silent`, `3m undelivered`, `4m restart`, `4m crash`, `0m mode warn`,
/// `5m slow 50s` (what is decided is done so long after the cycle began).
#[derive(Clone)]
struct Node {
    processes: BTreeMap<(i32, u32), BTreeMap<String, String>>,
    rights: Vec<(u32, u32)>,
    source_silent: bool,
    driver_silent: bool,
    undelivered: bool,
    refused: BTreeSet<i32>,
    mode: Mode,
    /// How long it takes to carry verdicts out.
    slow: Duration,
}

const BOOT: Duration = Duration::from_secs(86_400);

impl Node {
    fn new() -> Self {
        Self {
            processes: BTreeMap::new(),
            rights: Vec::new(),
            source_silent: false,
            driver_silent: false,
            undelivered: false,
            refused: BTreeSet::new(),
            mode: Mode::Enforce,
            slow: Duration::ZERO,
        }
    }

    fn change(&mut self, words: &[&str]) {
        let pairs: BTreeMap<String, String> =
            words.iter().filter_map(|word| word.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        let number = |key: &str| pairs[key].parse::<u32>().unwrap();
        match words[0] {
            "gone" => self.processes.retain(|(pid, _), _| pid.to_string() != words[1]),
            "assign" => self.rights.push((words[1].parse().unwrap(), number("gpu"))),
            "revoke" => self.rights.clear(),
            "silent" => self.source_silent = true,
            "speaks" => (self.source_silent, self.driver_silent) = (false, false),
            "driver" => self.driver_silent = true,
            "undelivered" => self.undelivered = true,
            "delivered" => self.undelivered = false,
            "refuse" => drop(self.refused.insert(words[1].parse().unwrap())),
            "allow" => self.refused.clear(),
            "slow" => self.slow = words[1].parse::<Span>().unwrap().0,
            "mode" => self.mode = serde_json::from_value(words[1].into()).unwrap(),
            _ => self.processes.entry((number("pid") as i32, number("gpu"))).or_default().extend(pairs),
        }
    }

    fn snapshot(&self, at: Duration) -> Snapshot {
        let boot = BOOT + at;
        let value = |of: &BTreeMap<String, String>, key: &str| of.get(key).filter(|text| *text != "?").cloned();
        let id = |pid: i32, of: &BTreeMap<String, String>| ProcessId {
            pid,
            started: value(of, "started").map_or(8_640_000, |text| text.parse().unwrap()),
        };
        let gpu = |index: u32| Gpu {
            identity: Arc::new(Identity { model: Some("NVIDIA H200".into()), ..Identity::default() }),
            readings: Ok(Readings {
                memory: Memory { total: Some(Bytes(80 << 30)), ..Memory::default() },
                ..Readings::default()
            }),
            holds: Ok(self
                .processes
                .iter()
                .filter(|((_, on), _)| *on == index)
                .map(|((pid, _), of)| Hold {
                    memory: value(of, "mem").map(|text| text.parse().unwrap()),
                    utilization: value(of, "util").map(|text| text.parse::<Percent>().unwrap()),
                    ..Hold::new(*pid, Ok(id(*pid, of)), Kind::Compute, BOOT)
                })
                .collect()),
            ..Gpu::named(GpuUuid(format!("GPU-{index}").into()), index)
        };
        let process = |pid: i32, of: &BTreeMap<String, String>| Process {
            id: id(pid, of),
            uid: value(of, "user").map(|text| Uid(text.parse().unwrap())),
            confidence: if of.contains_key("container") { Confidence::Low } else { Confidence::High },
            command: "python3".into(),
            executable: None,
            command_line: None,
            protection: if of.contains_key("protected") {
                Some(Protection::Infrastructure)
            } else {
                Some(Protection::None)
            },
            host_memory: None,
            host_cpu: None,
        };
        let rights = self.rights.iter().map(|(uid, index)| Right {
            to: Grantee::User { uid: Uid(*uid), name: uid.to_string() },
            gpus: Cards { known: [GpuUuid(format!("GPU-{index}").into())].into(), unresolved: Vec::new() },
            when: Validity::default(),
        });
        let answer = if self.source_silent {
            Err(Fault::new(Source::Fixed, "silent"))
        } else {
            Ok(Answer { at: boot, rights: rights.collect() })
        };
        let user = |uid| User {
            uid: Uid(uid),
            name: Lookup::Known(format!("u{uid}").into()),
            groups: Lookup::Known(Vec::new()),
        };
        Snapshot {
            at: Moment { wall: Timestamp::UNIX_EPOCH + at, boot },
            boot_id: "boot".into(),
            driver: Err(Fault::new(Source::Nvml, "not asked")),
            gpus: if self.driver_silent {
                Err(Fault::new(Source::Nvml, "silent"))
            } else {
                Ok((0..4).map(gpu).collect())
            },
            processes: self.processes.iter().map(|((pid, _), of)| (id(*pid, of), process(*pid, of))).collect(),
            users: [1001, 1002].map(|uid| (Uid(uid), user(uid))).into(),
            assignments: Assignments { sources: vec![AssignmentSource { source: Source::Fixed, answer }] },
            health: Vec::new(),
            pauses: Vec::new(),
            gpus_expected: None,
            topology: Default::default(),
            nvml_errors: BTreeMap::new(),
        }
    }

    fn outcome(&self, verdict: &Verdict, target: Option<&Target>) -> Outcome {
        let unreachable = self.undelivered && matches!(verdict.deed, Deed::Warn { .. });
        let refused = target.is_some_and(|target| self.refused.contains(&target.process.pid));
        let result = match target.and_then(|target| target.objection) {
            Some(objection) => Fate::Refused(objection),
            None if unreachable => Fate::Refused(Guard::Unreachable),
            None if refused => Fate::Refused(Guard::Fuse),
            None if verdict.mode == Mode::Observe || (verdict.mode == Mode::Warn && verdict.deed.is_act()) => {
                Fate::Rehearsed
            }
            None => Fate::Done,
        };
        Outcome {
            key: verdict.key.clone(),
            rung: verdict.rung,
            deed: verdict.deed.clone(),
            owner: verdict.owner.clone(),
            target: target.map(|target| target.process),
            result,
        }
    }
}

/// Runs the rules, 1 cycle a minute unless `every` says otherwise, and compares what came of it.
fn check(rules: &str, timeline: &str, expected: Expect) {
    check_with(rules, Vec::new(), timeline, expected);
}

fn rules(text: &str) -> Rules {
    let file: RuleFile = serde_yaml::from_str(text).unwrap();
    let interval = Duration::from_secs(60);
    Rules { mode: Mode::Enforce, interval, footprint: Bytes(300 << 20), rules: file.rules, exempt: Vec::new() }
}

fn check_with(text: &str, exempt: Vec<Exemption>, timeline: &str, expected: Expect) {
    let mut rules = Rules { exempt, ..rules(text) };
    let mut node = Node::new();
    let mut lines = timeline.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    if let Some(every) = lines.next_if(|line| line.starts_with("every ")) {
        rules.interval = every[6..].parse::<Span>().unwrap().0;
    }
    let changes: Vec<(Duration, Vec<&str>)> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (words[0].parse::<Span>().unwrap().0, words[1..].to_vec()))
        .collect();
    let end = changes.last().unwrap().0;
    let mut state = State::default();
    let mut log = String::new();
    let mut at = Duration::ZERO;
    let mut changes = changes.into_iter().peekable();
    while at <= end {
        let mut crash = false;
        while let Some((_, words)) = changes.next_if(|(when, _)| *when <= at) {
            match words[0] {
                "restart" => state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap(),
                "crash" => crash = true,
                "end" => {}
                "sleep" => {}
                _ => node.change(&words),
            }
        }
        rules.mode = node.mode;
        let snapshot = node.snapshot(at);
        let step = step(&rules, &snapshot, &state);
        for verdict in &step.verdicts {
            writeln!(log, "{}", line(at, verdict)).unwrap();
        }
        if crash {
            let (resumed, lost) = resume(step.state);
            for outcome in lost {
                writeln!(log, "{} {} lost pid={}", Span(at), outcome.key.rule, outcome.target.unwrap().pid).unwrap();
            }
            state = resumed;
        } else {
            let outcomes: Vec<Outcome> = step
                .verdicts
                .iter()
                .flat_map(|verdict| match verdict.deed {
                    Deed::Signal(_) => {
                        verdict.targets.iter().map(|target| node.outcome(verdict, Some(target))).collect()
                    }
                    _ => vec![node.outcome(verdict, None)],
                })
                .collect();
            let after = Moment { boot: snapshot.at.boot + node.slow, ..snapshot.at };
            state = settle(step.state, &outcomes, after);
        }
        at += rules.interval;
    }
    expected.assert_eq(&log);
}

fn line(at: Duration, verdict: &Verdict) -> String {
    let mut line = format!("{} {} {}", Span(at), verdict.key.rule, verdict.deed.as_str());
    match &verdict.deed {
        Deed::Signal(_) => {
            for target in &verdict.targets {
                write!(line, " pid={}", target.process.pid).unwrap();
                if let Some(objection) = target.objection {
                    write!(line, " ({})", objection.as_str()).unwrap();
                }
            }
        }
        Deed::Warn { to, .. } | Deed::Inform { to, .. } | Deed::AllClear { to, .. } => {
            for person in to {
                write!(line, " {}", person.name).unwrap();
            }
        }
        Deed::Alert { .. } => {}
    }
    line
}

const UNASSIGNED: &str = "
rules:
  - name: unassigned
    description: Use only the GPUs that are assigned to you.
    about: user
    per_gpu: true
    when: [{assigned: false}, {memory: '> 300MiB'}]
    targets: all
    mode: enforce
    then:
      - {after: 1m, warn: [terminal]}
      - {after: 10m, signal: TERM}
      - {after: 2m, signal: KILL}
";

#[test]
fn a_ladder_counts_from_the_rung_before() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        0m pid=8 user=1002 gpu=0 mem=10GiB
        20m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7
            13m unassigned KILL pid=7
        "#]],
    );
}

#[test]
fn a_kill_keeps_its_distance_from_a_term_that_went_out_late() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        5m slow 50s
        12m slow 0s
        20m end
        ",
        // The TERM went out at 11m50s, and the two minutes after it are not over at 13m.
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7
            14m unassigned KILL pid=7
        "#]],
    );
}

#[test]
fn unknown_stops_the_clock_and_an_hour_of_it_forgets() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        5m silent
        15m speaks
        30m gone 7
        45m pid=9 user=1001 gpu=0 mem=10GiB
        47m driver silent
        108m speaks
        110m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            22m unassigned TERM pid=7
            24m unassigned KILL pid=7
            40m unassigned all_clear u1001
            46m unassigned warn u1001
            1h49m unassigned warn u1001
        "#]],
    );
}

#[test]
fn who_comes_later_has_every_act_in_its_order_and_at_its_distance() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        12m pid=8 user=1001 gpu=0 mem=10GiB
        13m gone 7
        16m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7
            12m unassigned TERM pid=8
            14m unassigned KILL pid=8
        "#]],
    );
}

#[test]
fn a_target_that_is_gone_for_clear_after_has_left_the_ladder_and_no_sooner() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        0m pid=8 user=1001 gpu=0 mem=10GiB
        0m pid=9 user=1001 gpu=0 mem=10GiB
        14m gone 7
        14m gone 8
        23m pid=7 user=1001 gpu=0 mem=10GiB
        25m pid=8 user=1001 gpu=0 mem=10GiB
        28m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7 pid=8 pid=9
            13m unassigned KILL pid=7 pid=8 pid=9
            25m unassigned TERM pid=8
            27m unassigned KILL pid=8
        "#]],
    );
}

#[test]
fn a_refused_term_never_lets_kill_through() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        0m pid=8 user=1001 gpu=0 mem=10GiB
        0m refuse 8
        14m allow
        17m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7 pid=8
            12m unassigned TERM pid=8
            13m unassigned TERM pid=8
            13m unassigned KILL pid=7
            14m unassigned TERM pid=8
            16m unassigned KILL pid=8
        "#]],
    );
}

#[test]
fn who_cannot_be_warned_is_not_hit() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m undelivered
        0m pid=7 user=1001 gpu=0 mem=10GiB
        3m delivered
        14m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            2m unassigned warn u1001
            3m unassigned warn u1001
            13m unassigned TERM pid=7
        "#]],
    );
}

#[test]
fn a_right_that_comes_ends_the_ladder_and_one_that_goes_begins_it_afresh() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        9m assign 1001 gpu=0
        10m revoke
        10m assign 1002 gpu=0
        22m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            9m unassigned all_clear u1001
            11m unassigned warn u1001
            21m unassigned TERM pid=7
        "#]],
    );
}

#[test]
fn a_restart_resumes_and_a_crash_while_acting_signals_no_second_time() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        1m crash
        5m restart
        12m crash
        20m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            2m unassigned warn u1001
            12m unassigned TERM pid=7
            12m unassigned lost pid=7
        "#]],
    );
}

#[test]
fn another_mode_is_another_ladder() {
    check(
        UNASSIGNED,
        "
        0m mode observe
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        12m mode enforce
        24m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7
            13m unassigned warn u1001
            23m unassigned TERM pid=7
        "#]],
    );
}

#[test]
fn without_a_source_nothing_is_unassigned() {
    check(
        UNASSIGNED,
        "
        0m silent
        0m pid=7 user=1001 gpu=0 mem=10GiB
        30m end
        ",
        expect![""],
    );
}

#[test]
fn protected_and_uncertain_processes_are_left_alone() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB protected=yes
        0m pid=8 user=1001 gpu=0 mem=10GiB container=yes
        12m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            11m unassigned TERM pid=7 (protected)
            12m unassigned TERM pid=7 (protected)
        "#]],
    );
}

const QUOTA: &str = "
rules:
  - name: quota
    description: At most 40 GiB.
    about: user
    when: [{memory: '> 40GiB'}]
    mode: enforce
    then:
      - {after: 1m, warn: [terminal]}
      - {after: 2m, signal: TERM}
      - {after: 1m, signal: KILL}
";

#[test]
fn over_quota_the_newest_goes_and_the_next_only_while_it_holds() {
    check(
        QUOTA,
        "
        0m pid=7 user=1001 gpu=0 mem=30GiB started=100
        0m pid=8 user=1001 gpu=1 mem=20GiB started=200
        0m pid=9 user=1001 gpu=1 mem=20GiB started=300
        4m gone 9
        5m gone 8
        30m end
        ",
        expect![[r#"
            1m quota warn u1001
            3m quota TERM pid=9
            4m quota TERM pid=8
            15m quota all_clear u1001
        "#]],
    );
}

#[test]
fn a_sum_with_an_unknown_part_can_prove_more_but_never_less() {
    check(
        "
rules:
  - name: more
    description: m
    about: user
    when: [{memory: '> 40GiB'}]
    then: [{after: 0s, warn: [terminal]}]
  - name: less
    description: l
    about: user
    when: [{memory: '< 40GiB'}]
    then: [{after: 0s, warn: [terminal]}]
",
        "
        0m pid=7 user=1001 gpu=0 mem=50GiB
        0m pid=8 user=1001 gpu=1 mem=?
        0m pid=9 user=1002 gpu=1 mem=1GiB
        0m pid=10 user=1002 gpu=1 mem=?
        1m end
        ",
        expect![[r#"
            0s more warn u1001
        "#]],
    );
}

#[test]
fn a_late_cycle_counts_for_two_intervals_at_most() {
    // One sighting in ten minutes: between two of them passes what two intervals of a minute are.
    let rules = rules(UNASSIGNED);
    let mut node = Node::new();
    node.rights.push((1002, 0));
    node.change(&["pid=7", "user=1001", "gpu=0", "mem=10GiB"]);
    let first = step(&rules, &node.snapshot(Duration::ZERO), &State::default());
    let second = step(&rules, &node.snapshot(Duration::from_secs(600)), &first.state);
    let clocks: Vec<Duration> = second.state.episodes.values().map(|episode| episode.clock).collect();
    assert_eq!(clocks, [Duration::from_secs(120)]);
}

#[test]
fn of_two_ladders_the_milder_signal_goes_out_and_the_other_waits() {
    check(
        "
rules:
  - name: a-kill
    description: k
    about: process
    when: [{memory: '> 1GiB'}]
    mode: enforce
    without_warning: true
    then: [{after: 1m, signal: KILL}]
  - name: b-term
    description: t
    about: process
    when: [{memory: '> 1GiB'}]
    mode: enforce
    without_warning: true
    then: [{after: 1m, signal: TERM}, {after: 2m, signal: KILL}]
",
        "
        0m pid=7 user=1001 gpu=0 mem=10GiB
        6m end
        ",
        expect![[r#"
            1m b-term TERM pid=7
            3m b-term KILL pid=7
        "#]],
    );
}

const TWICE: &str = "
rules:
  - name: a
    description: a
    about: process
    when: [{memory: '> 1GiB'}]
    mode: enforce
    without_warning: true
    then: [{after: 1m, signal: TERM}, {after: 2m, signal: KILL}]
  - name: b
    description: b
    about: process
    when: [{memory: '> 1GiB'}]
    mode: enforce
    without_warning: true
    then: [{after: 1m, signal: TERM}, {after: 1m, signal: KILL}]
";

#[test]
fn a_signal_that_two_ladders_had_due_counts_for_both_once_it_was_sent() {
    check(
        TWICE,
        "
        0m pid=7 user=1001 gpu=0 mem=10GiB
        0m refuse 7
        3m allow
        6m end
        ",
        expect![[r#"
            1m a TERM pid=7
            2m a TERM pid=7
            3m a TERM pid=7
            5m a KILL pid=7
        "#]],
    );
}

#[test]
fn a_signal_that_two_ladders_had_due_is_lost_to_both_in_a_crash() {
    check(
        TWICE,
        "
        0m pid=7 user=1001 gpu=0 mem=10GiB
        1m crash
        6m end
        ",
        expect![[r#"
            1m a TERM pid=7
            1m a lost pid=7
            1m b lost pid=7
        "#]],
    );
}

#[test]
fn another_meaning_is_another_ladder_and_another_sentence_is_not() {
    let warns_again = |other: &str| {
        let mut node = Node::new();
        node.rights.push((1002, 0));
        node.change(&["pid=7", "user=1001", "gpu=0", "mem=10GiB"]);
        let (mut state, mut told) = (State::default(), Vec::new());
        for minute in 0..6 {
            let rules = rules(if minute < 3 { UNASSIGNED } else { other });
            let step = step(&rules, &node.snapshot(Duration::from_secs(60 * minute)), &state);
            let outcomes: Vec<Outcome> = step.verdicts.iter().map(|verdict| node.outcome(verdict, None)).collect();
            told.extend(step.verdicts.iter().map(|_| minute));
            state = settle(step.state, &outcomes, Moment { wall: Timestamp::UNIX_EPOCH, boot: BOOT });
        }
        told == [1, 4]
    };
    assert!(!warns_again(UNASSIGNED));
    assert!(!warns_again(&UNASSIGNED.replace("Use only", "Please use only")));
    for (was, is) in [("300MiB", "301MiB"), ("after: 10m", "after: 11m"), ("targets: all", "targets: newest")] {
        assert!(warns_again(&UNASSIGNED.replace(was, is)), "{is}");
    }
}

#[test]
fn false_pauses_the_clock_and_clear_after_zero_ends_at_once() {
    check(
        "
rules:
  - name: idle
    description: i
    about: process
    when: [{utilization: '<= 5%'}]
    clear_after: 0s
    then: [{after: 2m, warn: [terminal]}]
  - name: slow
    description: s
    about: process
    when: [{utilization: '<= 5%'}]
    then: [{after: 2m, warn: [terminal]}]
",
        "
        0m pid=7 user=1001 gpu=0 mem=1GiB util=0%
        1m pid=7 gpu=0 util=90%
        2m pid=7 gpu=0 util=0%
        3m pid=7 gpu=0 util=?
        4m pid=7 gpu=0 util=0%
        6m end
        ",
        expect![[r#"
            6m idle warn u1001
            6m slow warn u1001
        "#]],
    );
}

fn exempt(text: &str) -> Vec<Exemption> {
    let of: Vec<super::condition::Condition> =
        serde_yaml::with::singleton_map_recursive::deserialize(serde_yaml::Deserializer::from_str(text)).unwrap();
    vec![Exemption { of, rules: Vec::new(), from: None, until: None, reason: None }]
}

#[test]
fn the_exempt_are_not_counted_and_who_cannot_be_judged_exempt_is_not_hit() {
    let timeline = "
        0m pid=7 user=1001 gpu=0 mem=50GiB
        0m pid=8 user=1002 gpu=1 mem=50GiB
        3m end
        ";
    check_with(
        QUOTA,
        exempt("[{user: u1001}]"),
        timeline,
        expect![[r#"
        1m quota warn u1002
        3m quota TERM pid=8
    "#]],
    );
    // Neither executable could be read.
    check_with(
        QUOTA,
        exempt("[{executable: /usr/bin/x}]"),
        timeline,
        expect![[r#"
        1m quota warn u1001
        1m quota warn u1002
        3m quota TERM pid=7 (exempt)
        3m quota TERM pid=8 (exempt)
    "#]],
    );
}

#[test]
fn a_process_that_was_killed_gets_no_signal_from_another_ladder() {
    check(
        &UNASSIGNED.replace("about: user\n    per_gpu: true", "about: process").replace("    targets: all\n", ""),
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        0m pid=7 user=1001 gpu=1 mem=10GiB
        30m end
        ",
        expect![[r#"
            1m unassigned warn u1001
            1m unassigned warn u1001
            11m unassigned TERM pid=7
            13m unassigned KILL pid=7
        "#]],
    );
}

#[test]
fn who_is_still_there_with_an_uncertain_owner_is_not_gone() {
    check(
        UNASSIGNED,
        "
        0m assign 1002 gpu=0
        0m pid=7 user=1001 gpu=0 mem=10GiB
        5m pid=7 gpu=0 container=yes
        60m end
        ",
        expect![[r#"
            1m unassigned warn u1001
        "#]],
    );
}

#[test]
fn whom_a_right_names_soon_is_informed() {
    let file = "
rules:
  - name: soon
    description: s
    about: process
    when: [{assigned_to_other: within 30m}]
    then: [{after: 1m, inform: [terminal]}]
";
    let mut node = Node::new();
    node.change(&["pid=7", "user=1001", "gpu=0", "mem=10GiB"]);
    let rules = rules(file);
    let mut snapshot = node.snapshot(Duration::ZERO);
    snapshot.assignments.sources[0].answer = Ok(Answer {
        at: snapshot.at.boot,
        rights: vec![Right {
            to: Grantee::User { uid: Uid(1002), name: "eve".into() },
            gpus: Cards { known: [GpuUuid("GPU-0".into())].into(), unresolved: Vec::new() },
            when: Validity { from: Some(snapshot.at.wall + Duration::from_secs(1200)), ..Validity::default() },
        }],
    });
    let first = step(&rules, &snapshot, &State::default());
    snapshot.at.boot += Duration::from_secs(60);
    snapshot.at.wall += Duration::from_secs(60);
    let second = step(&rules, &snapshot, &first.state);
    let told: Vec<String> = second.verdicts.iter().map(|verdict| line(Duration::from_secs(60), verdict)).collect();
    assert_eq!(told, ["1m soon inform eve"]);
}
