use std::path::PathBuf;

use expect_test::{Expect, expect, expect_file};

use super::*;
use crate::config::check::{self, Names, Others};

const RULES: &str = r#"
rules:
  - name: too-much
    description: No process may have more than 10GiB.
    about: process
    when:
      - memory: "> 10GiB"
    then:
      - {after: 1m, warn: [terminal]}
      - {after: 1m, signal: TERM}
"#;

const HEAD: &str = "rules: [rules.yaml]\ninterval: 10s\ngpus: {count: 2, memory: 80GiB}\n";

const BOB: &str = "processes:\n  - {pid: 7, user: bob, gpu: 0, memory: 20GiB}\n";

/// A folder with the rules, and the path of a test beside them.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let path = folder.path().join("it.test.yaml");
    (folder, path)
}

fn outcomes(text: &str) -> Vec<Outcome> {
    let (folder, path) = place();
    let shown = format!("{}/", folder.path().display());
    let trials = parse(&path, text).unwrap();
    trials
        .iter()
        .map(Trial::outcome)
        .map(|outcome| Outcome { text: outcome.text.replace(&shown, ""), ..outcome })
        .collect()
}

/// What is printed of a test with these further lines.
fn check(rest: &str, expected: Expect) {
    expected.assert_eq(&outcomes(&format!("{HEAD}{rest}"))[0].text);
}

/// What is wrong with a test.
fn slips(text: &str) -> String {
    let (folder, path) = place();
    let shown = format!("{}/", folder.path().display());
    errors(&path, text).iter().map(|error| error.to_string().replace(&shown, "") + "\n").collect()
}

fn passes(rest: &str) -> bool {
    outcomes(&format!("{HEAD}{rest}"))[0].passed
}

#[test]
fn expected_and_got_stand_side_by_side() {
    check(
        &format!(
            "{BOB}expect:\n  - {{at: 1m, rule: too-much, pid: 7, does: warn}}\n  - {{at: 2m, rule: too-much, pid: 7, does: KILL}}\n  - {{nothing_else: true}}\n"
        ),
        expect![[r#"
            FAILED  it.test.yaml:1
                    - expected, + got, . seen on the way
                    .       0s  too-much  pid 7, bob, GPU 0: true; memory: 20GiB (true)
                            1m  too-much  warn pid 7, bob, GPU 0
                    -       2m  too-much  KILL pid 7
                    +       2m  too-much  TERM pid 7, bob, GPU 0
        "#]],
    );
}

#[test]
fn why_nothing_was_done_is_to_be_seen() {
    check(
        "processes:
  - {pid: 7, user: bob, gpu: 0, memory: 20GiB, confidence: medium}
  - {pid: 8, user: eve, gpu: 1, memory: {0s: unknown, 5m: 1GiB}, until: 6m}
undelivered: {bob: [0s, 70s]}
expect:
  - {at: 3m, rule: too-much, pid: 7, does: TERM}
",
        expect![[r#"
            FAILED  it.test.yaml:1
                    - expected, + got, . seen on the way
                    .       0s  too-much  pid 7, bob, GPU 0: true; memory: 20GiB (true)
                    .       0s  too-much  pid 8, eve, GPU 1: unknown; memory: unknown (unknown)
                    .       1m  too-much  warn pid 7, bob, GPU 0 (refused: unreachable)
                         1m10s  too-much  warn pid 7, bob, GPU 0 (not asked about)
                    .    2m10s  too-much  TERM pid 7, bob, GPU 0 (refused: confidence, last at 13m)
                    -       3m  too-much  TERM pid 7
                    .       5m  too-much  pid 8, eve, GPU 1: false; memory: 1GiB (false)
                    .       6m  too-much  pid 8, eve, GPU 1: not seen
        "#]],
    );
}

#[test]
fn an_expectation_holds_for_the_first_cycle_at_its_time_or_after() {
    let warned_at = |at: &str| passes(&format!("{BOB}expect:\n  - {{at: {at}, rule: too-much, pid: 7, does: warn}}\n"));
    assert!(warned_at("51s") && warned_at("60s"));
    assert!(!warned_at("50s") && !warned_at("61s"));
}

#[test]
fn what_nobody_asked_about_matters_only_if_there_must_be_nothing_else() {
    let warn = "  - {at: 1m, rule: too-much, pid: 7, does: warn}\n";
    assert!(passes(&format!("{BOB}expect:\n{warn}")));
    assert!(!passes(&format!("{BOB}expect:\n{warn}  - {{nothing_else: true}}\n")));
}

#[test]
fn whoever_is_named_must_be_the_one() {
    let warned = |whom: &str| {
        let others = "  - {pid: 8, user: eve, gpu: 1, memory: 1GiB}\n";
        passes(&format!("{BOB}{others}expect:\n  - {{at: 1m, rule: too-much, {whom}, does: warn}}\n"))
    };
    assert!(warned("pid: 7") && warned("user: bob") && warned("gpu: 0") && warned("pid: 7, user: bob, gpu: 0"));
    assert!(!warned("pid: 8") && !warned("user: eve") && !warned("gpu: 1") && !warned("pid: 7, gpu: 1"));
}

#[test]
fn a_signal_ends_only_who_dies_on_it() {
    let gone = |more: &str| {
        let process = format!("{{pid: 7, user: bob, gpu: 0, memory: 20GiB{more}}}");
        passes(&format!(
            "processes: [{process}]\nuntil: 13m\nexpect:\n  - {{at: 2m, rule: too-much, pid: 7, does: TERM}}\n  \
             - {{at: 12m10s, rule: too-much, user: bob, does: all_clear}}\n"
        ))
    };
    assert!(gone(", dies_on: TERM"));
    assert!(!gone("") && !gone(", dies_on: KILL"));
}

#[test]
fn tests_of_one_file_are_apart_and_keep_their_lines() {
    let text = format!(
        "# A word before.\n---\nname: one\n{HEAD}{BOB}expect: [{{at: 1m, rule: too-much, pid: 7, does: warn}}]\n---\nname: two\n{HEAD}{BOB}expect:\n  - {{nothing_else: true}}\nuntil: 2m\n"
    );
    let outcomes = outcomes(&text);
    assert_eq!(outcomes.len(), 2);
    assert_eq!(outcomes[0], Outcome { passed: true, text: "ok      it.test.yaml:3: one (1 as expected)\n".into() });
    assert!(outcomes[1].text.starts_with("FAILED  it.test.yaml:11: two\n"));
    let wrong = text.replace("until: 2m", "untill: 2m");
    assert!(slips(&wrong).starts_with("it.test.yaml:19:1: unknown key `untill`"), "{}", slips(&wrong));
}

#[test]
fn every_slip_is_told_with_its_place() {
    let expected = "expect:\n  - {at: 1m, rule: too-much, pid: 7, does: warn}\n";
    let mut told = String::new();
    for rest in [
        format!("{BOB}expect:\n  - {{at: 1m, rule: too-mush, pid: 8, user: eve, gpu: 2, does: warn}}\n"),
        format!("{BOB}expect:\n  - {{at: 1m, rule: too-much, does: warn}}\n  - {{at: 1m, pid: 7}}\n"),
        format!("{BOB}expect:\n  - {{at: 1m, rule: too-much, pid: 7, does: kill}}\n"),
        format!("{BOB}expect:\n  - {{nothing_else: true}}\n"),
        format!("{BOB}until: 1m\nexpect:\n  - {{nothing_else: false}}\n  - {{nothing_else: true, pid: 7}}\n"),
        format!("{BOB}until: 30s\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 2, memory: 20GiB}}\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 0, from: 2m, until: 1m}}\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 0, memory: {{0s: 1GiB, 1h: 20GiB}}}}\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 0, memory: {{1m: 1GiB}}}}\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 0, memory: {{0s: 1GiB, 0s: 2GiB}}}}\n{expected}"),
        format!("processes:\n  - {{pid: 7, user: bob, gpu: 0, utilization: 90}}\n{expected}"),
        format!("{BOB}  - {{pid: 7, user: eve, gpu: 1, from: 1m}}\n{expected}"),
        format!(
            "{BOB}  - {{pid: 8, user: bob, uid: 5, gpu: 1}}\n  - {{pid: 9, user: eve, uid: 5, gpu: 1}}\n{expected}"
        ),
        format!("{BOB}assignments: [{{to: {{group: vision}}, gpus: [0, 7]}}]\n{expected}"),
        format!("{BOB}assignments:\n  0s: []\n  1m:\n    - {{to: everyone, gpus: [9]}}\n{expected}"),
        format!("{BOB}silent: {{slurm: [5m]}}\n{expected}"),
        format!("{BOB}silent: {{nvml: [5m, 1m]}}\n{expected}"),
        format!("{BOB}undelivered: {{carol: [5m]}}\nrestart: [1d]\n{expected}"),
        format!("{BOB}exempt: [{{uid: bob, rules: [too-mush]}}]\n{expected}"),
        format!("{BOB}until: 100d\ninterval: 1ms\n{expected}"),
    ] {
        let head = if rest.contains("interval") { HEAD.replace("interval: 10s\n", "") } else { HEAD.to_owned() };
        told += &slips(&format!("{head}{rest}"));
    }
    told += &slips("");
    told += &slips(&HEAD.replace("rules.yaml", "absent.yaml"));
    told += &slips(&format!("{}{BOB}{expected}", HEAD.replace("rules.yaml", "absent.yaml")));
    expect![[r#"
        it.test.yaml:7:20: unknown rule `too-mush`, expected one of too-much
        it.test.yaml:7:35: no process has pid 8
        it.test.yaml:7:44: nobody in this test is called `eve`
        it.test.yaml:7:54: no GPU 2, expected 0 to 1
        it.test.yaml:7:5: nobody is named, expected `pid`, `user` or `gpu`
        it.test.yaml:8:5: expected `at`, `rule` and `does`, or `nothing_else: true`
        it.test.yaml:7:44: `kill` is not warn, alert, inform, all_clear or a signal such as TERM
        it.test.yaml:7:3: nothing says when the test ends, expected `until:` or an item with `at`
        it.test.yaml:8:5: expected `nothing_else: true` alone
        it.test.yaml:9:5: expected `nothing_else: true` alone
        it.test.yaml:8:10: 1m is after the end of the test at 30s, expected a later `until`
        it.test.yaml:5:30: no GPU 2, expected 0 to 1
        it.test.yaml:5:50: not after its `from`, expected a later moment
        it.test.yaml:5:41: 1h is after the end of the test at 11m, expected a later `until`
        it.test.yaml:5:41: nothing is said of the beginning, expected `0s` as the first moment
        it.test.yaml:5:41: `0s` is out of order, expected moments that ascend
        it.test.yaml:5:52: duplicate key `0s`, expected it once
        it.test.yaml:5:46: `90` is not a share with a percent sign, such as 50%
        it.test.yaml:6:11: pid 7 is held by another process from 0s; a process on several cards has the same `from`, `until` and owner in each entry
        it.test.yaml:7:30: `eve` has uid 5 here and another elsewhere, or shares it, expected one for each
        it.test.yaml:6:28: group `vision` is not among `groups`
        it.test.yaml:6:47: no GPU 7, expected 0 to 1
        it.test.yaml:9:29: no GPU 9, expected 0 to 1
        it.test.yaml:6:10: unknown word `slurm`, expected one of nvml, procfs, directory, fixed, files
        it.test.yaml:6:9: moments out of order, expected from and until in turn, such as [5m, 10m]
        it.test.yaml:6:22: nobody in this test is called `carol`
        it.test.yaml:7:11: 1d is after the end of the test at 11m, expected a later `until`
        it.test.yaml:6:16: `bob` is not a uid, expected a number; a name goes by `user`
        it.test.yaml:6:29: unknown rule `too-mush`, expected one of too-much
        it.test.yaml:5:8: too many cycles, expected a shorter test or a longer `interval`
        it.test.yaml:1:1: an empty file, expected a rule test
        it.test.yaml:1:1: the key `expect` is missing, expected it here
        it.test.yaml:1:9: `absent.yaml`: cannot be read: No such file or directory (os error 2), expected a YAML file
    "#]]
    .assert_eq(&told);
}

/// Configurations, rules, rights and rule tests.
#[test]
fn every_broken_file_is_told_with_its_place() {
    let folder = Path::new("tests/broken");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut told = String::new();
    for file in files {
        let lines = check::file(&file, &Names::UNASKED, Others { test: errors, web: |_, _| Vec::new() });
        assert!(!lines.is_empty(), "{} is not broken", file.display());
        told.extend(lines.iter().map(|line| line.to_string().replacen("tests/broken/", "", 1) + "\n"));
    }
    expect_file![concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken/errors.txt")].assert_eq(&told);
}

#[test]
fn no_text_makes_the_reader_panic() {
    const SPICE: [&str; 26] = [
        "\n",
        ": ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "0s",
        "0",
        "-1",
        "1.5",
        "unknown",
        "true",
        "~",
        "{0s: 1}",
        "[]",
        "{}",
        "9999999999999999999999",
        "---\n",
        "100d",
        "1ns",
        "%",
        "7",
        "everyone",
        "KILL",
    ];
    let (_folder, path) = place();
    let original: Vec<char> = format!(
        "{HEAD}start: 2026-11-30T09:00:00+08:00\ngroups: {{vision: [bob]}}\nassignments: {{0s: [], 5m: [{{to: {{group: vision}}, gpus: [0, 1]}}]}}\n\
         exempt: [{{user: eve, uid: 5, rules: [too-much]}}]\nsilent: {{nvml: [5m, 6m]}}\nundelivered: {{bob: [0s, 70s]}}\nrestart: [2m]\nmode: {{0s: warn, 1m: enforce}}\n\
         processes:\n  - {{pid: 7, user: bob, gpu: {{0s: 0, 9m: [0, 1]}}, memory: {{0s: 20GiB, 5m: unknown}}, utilization: 5%, from: 10s, until: 20m}}\n\
         expect:\n  - {{at: 1m, rule: too-much, pid: 7, user: bob, gpu: 0, does: warn}}\n  - {{nothing_else: true}}\nuntil: 12m\n"
    )
    .chars()
    .collect();
    assert_eq!(slips(&original.iter().collect::<String>()), "");
    // xorshift64: the same mutations in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut roll = |sides: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % sides as u64) as usize
    };
    for _ in 0..1000 {
        let mut text = original.clone();
        for _ in 0..=roll(2) {
            let at = roll(text.len());
            let until = (at + roll(6)).min(text.len());
            text.splice(at..until, SPICE[roll(SPICE.len())].chars()).for_each(drop);
        }
        let text: String = text.into_iter().collect();
        for error in errors(&path, &text) {
            let line = error.to_string();
            let clear = ["expected", "is not", "no process", "nobody"].iter().any(|word| error.message.contains(word));
            assert!(clear && !line.contains('\n') && error.line <= text.lines().count() + 1, "{line}\n{text}");
        }
    }
}
