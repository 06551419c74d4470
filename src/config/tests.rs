use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use expect_test::{Expect, expect};

use super::check::Names;
use super::*;
use crate::snapshot::{GpuSelector, Lookup};

/// A configuration beside `rules/a.yaml` and whatever else is given, checked; the directory is cut off.
fn check(files: &[(&str, &str)], names: &Names, expected: Expect) {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path(), files);
    let errors = super::check::file(
        &directory.path().join(files[0].0),
        names,
        super::check::Others { test: |_, _| Vec::new(), web: |_, _| Vec::new() },
    );
    expected.assert_eq(&shown(&errors, directory.path()));
}

fn write_all(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

fn shown(errors: &[Diagnostic], directory: &Path) -> String {
    errors.iter().fold(String::new(), |mut text, error| {
        let error =
            Diagnostic { file: error.file.strip_prefix(directory).unwrap_or(&error.file).into(), ..error.clone() };
        writeln!(text, "{error}").unwrap();
        text
    })
}

const RULE: &str = "rules:
  - name: unassigned-gpu
    description: Use only the GPUs that are assigned to you.
    about: user
    per_gpu: true
    when:
      - assigned: false
      - memory: \"> 300MiB\"
    targets: all
    then:
      - {after: 1m,  warn: [terminal]}
      - {after: 10m, signal: TERM}
      - {after: 2m,  signal: KILL}
  - name: idle-holder
    description: Do not hold a GPU that you do not use.
    about: process
    when:
      - utilization: \"< 5%\"
      - any: [{age: \"> 1h\"}, {not: {kind: graphics}}]
    unless:
      - time: [\"Sat,Sun UTC\", \"22:00-06:00 Asia/Shanghai\"]
    clear_after: 0s
    mode: enforce
    then:
      - {after: 30m, warn: [terminal]}
      - {after: 30m, signal: INT}
";

const CONFIG: &str = "mode: enforce
interval: 10s
rules: [rules/*.yaml]
state_dir: /var/lib/gpuwarden
footprint: 500MiB
assignments:
  fixed:
    - {to: {user: alice}, gpus: [0, 1]}
    - {to: {group: vision}, gpus: [GPU-8f3a12cd, 4-7], time: \"Mon-Fri 22:00-06:00 Asia/Shanghai\"}
    - {to: {user: bob}, gpus: [3], from: 2026-12-01T09:00:00+08:00, until: 2026-12-05T18:00:00+08:00}
    - {to: everyone, gpus: [7]}
  files: [/srv/reservations/*.yaml, here.yaml]
exempt:
  - {user: [svc-monitor], reason: service account}
  - {user: carol, uid: 1000, rules: [idle-holder], until: 2026-12-20T00:00:00+08:00, reason: paper deadline}
metrics: {processes: 16}
limits:
  acts_per_cycle: 1
  acts_per_hour: 2
  share_of_workloads: 12.5%
  min_uid: 500
  start_delay: 0s
";

const GOOD: [(&str, &str); 2] = [("gpuwarden.yaml", CONFIG), ("rules/a.yaml", RULE)];

fn load_from(files: &[(&str, &str)]) -> Config {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path(), files);
    load(&directory.path().join(files[0].0)).unwrap_or_else(|errors| panic!("{}", shown(&errors, directory.path())))
}

#[test]
fn what_is_written_is_what_is_meant() {
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path(), &GOOD);
    let config = load(&directory.path().join("gpuwarden.yaml")).unwrap();
    assert_eq!(config.mode, Mode::Enforce);
    assert_eq!(config.interval, Duration::from_secs(10));
    assert_eq!(config.footprint, Bytes(500 << 20));
    assert_eq!(
        config.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
        ["unassigned-gpu", "idle-holder"]
    );
    assert_eq!(config.exempt.iter().map(|exemption| exemption.of.len()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(config.assignments.fixed.as_ref().map(Vec::len), Some(4));
    let here = directory.path().join("here.yaml").display().to_string();
    assert_eq!(config.assignments.files, Some(vec!["/srv/reservations/*.yaml".into(), here]));
    assert_eq!(config.metrics.processes, 16);
    assert_eq!(
        config.limits,
        Limits {
            acts_per_cycle: 1,
            acts_per_hour: 2,
            share_of_workloads: Percent(12.5),
            min_uid: Uid(500),
            start_delay: Duration::ZERO,
        }
    );
}

#[test]
fn what_is_left_out_is_as_the_contract_says() {
    let config = load_from(&[("gpuwarden.yaml", "mode: observe\n"), ("rules/a.yaml", RULE)]);
    assert_eq!(config.interval, Duration::from_secs(5));
    assert_eq!(config.footprint, Bytes(300 << 20));
    assert_eq!(config.state_dir, Path::new("/var/lib/gpuwarden"));
    assert_eq!(config.assignments, Assignments::default());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.metrics.processes, 256);
    assert!(config.exempt.is_empty());
    assert!(load_from(&[("gpuwarden.yaml", "rules: []\n")]).rules.is_empty());
}

#[test]
fn nobody_is_an_empty_list_and_no_source_is_none() {
    let fixed = |text| load_from(&[("gpuwarden.yaml", text)]).assignments.fixed;
    assert_eq!(fixed("rules: []\nassignments: {fixed: []}\n"), Some(vec![]));
    assert_eq!(fixed("rules: []\n"), None);
}

#[test]
fn tests_of_rules_are_never_rules_and_a_file_counts_once() {
    let config = load_from(&[
        ("gpuwarden.yaml", "rules: [rules/*.yaml, rules/a.yaml, \"rules/**/*.yaml\"]\n"),
        ("rules/a.yaml", RULE),
        ("rules/a.test.yaml", "rules: [a.yaml]\n"),
    ]);
    assert_eq!(config.rules.len(), 2);
}

#[test]
fn the_directory_of_a_configuration_may_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let odd = directory.path().join("a [b] *?");
    write_all(&odd, &GOOD);
    assert_eq!(load(&odd.join("gpuwarden.yaml")).map(|config| config.rules.len()), Ok(2));
}

#[test]
fn two_nodes_with_the_same_files_have_the_same_hash() {
    let hash = |config: &str, rule: &str| load_from(&[("gpuwarden.yaml", config), ("rules/a.yaml", rule)]).hash;
    assert_eq!(hash(CONFIG, RULE), hash(CONFIG, RULE));
    assert_ne!(hash(CONFIG, RULE), hash(&CONFIG.replace("10s", "11s"), RULE));
    assert_ne!(hash(CONFIG, RULE), hash(CONFIG, &RULE.replace("10m", "11m")));
    assert!(hash(CONFIG, RULE) < 1 << 48);
}

#[test]
fn the_file_that_is_not_there_is_named() {
    check(
        &[("x/y", "")],
        &Names::UNASKED,
        expect![[r#"
            x/y:1:1: an empty file, expected a configuration, such as `mode: observe`
        "#]],
    );
    let errors = load(Path::new("/nonexistent/gpuwarden.yaml")).unwrap_err();
    assert_eq!(
        shown(&errors, Path::new("/nonexistent")),
        "gpuwarden.yaml:1:1: cannot be read: No such file or directory (os error 2), expected a YAML file\n"
    );
    let errors = load(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(shown(&errors, Path::new("/dev")), "zero:1:1: not a regular file, expected a YAML file\n");
}

#[test]
fn a_file_is_read_up_to_a_mebibyte() {
    let large = format!("rules: []\n#{}\n", "x".repeat((1 << 20) - 12));
    check(&[("a.yaml", &large)], &Names::UNASKED, expect![""]);
    check(
        &[("a.yaml", &format!("{large}#"))],
        &Names::UNASKED,
        expect!["a.yaml:1:1: too large, expected at most 1MiB\n"],
    );
}

#[test]
fn aliases_count_as_what_they_stand_for() {
    let list = format!("a: &a [{}]\nb: [{}]\n", "1,".repeat(1000), "*a,".repeat(1000));
    let text = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(1000));
    for bomb in [list, text] {
        let errors = from_text(Path::new("bomb.yaml"), &bomb).err().unwrap();
        assert!(shown(&errors, Path::new("")).contains(": too much, expected a smaller file"), "{errors:?}");
    }
}

#[test]
fn names_that_nobody_knows_are_errors_where_somebody_answers() {
    let names = Names {
        user: &|user| if user == "alice" { Lookup::Known(()) } else { Lookup::Absent },
        group: &|_| Lookup::Absent,
        gpu: &|gpu| match gpu {
            GpuSelector::Indexes(0..=3, 0..=3) => Lookup::Known(()),
            GpuSelector::Indexes(..) => Lookup::Absent,
            _ => Lookup::Pending,
        },
    };
    let rules = RULE.replace("- assigned: false", "- any: [{user: [\"a*\", mallory]}, {not: {gpu: 9}}]");
    check(
        &[("gpuwarden.yaml", CONFIG), ("rules/a.yaml", &rules)],
        &names,
        expect![[r#"
        gpuwarden.yaml:9:20: unknown group `vision`, expected one that the directory knows
        gpuwarden.yaml:9:50: unknown GPU `4-7`, expected one that the driver shows
        gpuwarden.yaml:10:19: unknown user `bob`, expected one that the directory knows
        gpuwarden.yaml:11:29: unknown GPU `7`, expected one that the driver shows
        gpuwarden.yaml:14:12: unknown user `svc-monitor`, expected one that the directory knows
        gpuwarden.yaml:15:12: unknown user `carol`, expected one that the directory knows
        rules/a.yaml:7:22: unknown user `mallory`, expected one that the directory knows
        rules/a.yaml:7:52: unknown GPU `9`, expected one that the driver shows
    "#]],
    );
    check(&GOOD, &Names::UNASKED, expect![""]);
    // What `files:` names is looked at as well.
    let backwards = "- {to: everyone, gpus: [0], from: 2026-12-02T00:00:00Z, until: 2026-12-01T00:00:00Z}\n";
    check(
        &[GOOD.as_slice(), &[("here.yaml", backwards)]].concat(),
        &Names::UNASKED,
        expect![[r#"
        here.yaml:1:64: the right ends before it begins, expected `until` after `from`
    "#]],
    );
    check(
        &[("rights.yaml", "- {to: {user: bob}, gpus: [0, 5]}\n")],
        &names,
        expect![[r#"
        rights.yaml:1:15: unknown user `bob`, expected one that the directory knows
        rights.yaml:1:31: unknown GPU `5`, expected one that the driver shows
    "#]],
    );
}

/// xorshift64: the same mutations in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

#[test]
fn no_text_makes_the_reader_panic() {
    const SPICE: [&str; 24] = [
        "\t", "\n", ": ", "- ", "{", "}", "[", "]", "\"", "'", "&a ", "*a", "!x ", "%", "#", "> ", "|", "\u{0}", "ü",
        "~", "0", "---\n", "<<: ", "? ",
    ];
    let directory = tempfile::tempdir().unwrap();
    write_all(directory.path(), &GOOD);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..1500 {
        let original = if round % 2 == 0 { CONFIG } else { RULE };
        let mut text: Vec<char> = original.chars().collect();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(text.len());
            match dice.roll(3) {
                0 => drop(text.remove(at)),
                1 => text.splice(at..at, SPICE[dice.roll(SPICE.len())].chars()).for_each(drop),
                _ => text.truncate(at.max(1)),
            }
        }
        let text: String = text.into_iter().collect();
        let path = directory.path().join("mutant.yaml");
        let errors = if round % 2 == 0 {
            from_text(&path, &text).err().unwrap_or_default()
        } else {
            rule_file(path, text.clone()).map_or_else(|errors| errors, |(_, errors)| errors)
        };
        for error in errors {
            let line = error.to_string();
            assert!(!line.contains(" at line "), "{line}\n{text}");
            let expects = ["expected", "is not"].iter().any(|word| error.message.contains(word));
            assert!(!line.contains('\n') && expects, "{line}\n{text}");
            assert!(error.line <= text.lines().count() + 1, "{line}\n{text}");
        }
    }
}

#[test]
fn a_file_may_begin_with_a_mark_of_its_byte_order() {
    let text = "\u{feff}intervall: 5s\nrules: [r.yaml]\n";
    let expected = expect![[r#"
        a.yaml:1:1: unknown key `intervall`, expected one of mode, interval, rules, state_dir, footprint, assignments, exempt, limits, metrics; did you mean `interval`?
    "#]];
    check(&[("a.yaml", text), ("r.yaml", RULE)], &Names::UNASKED, expected);
}

#[test]
fn brackets_without_end_take_no_time() {
    let text = format!("rules: {}", "[".repeat(1 << 19));
    let expected = expect![[r#"
        a.yaml:1:1008: too deep, expected fewer levels
    "#]];
    check(&[("a.yaml", &text)], &Names::UNASKED, expected);
}
