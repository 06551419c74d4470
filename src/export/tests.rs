use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::*;
use expect_test::expect_file;
use prometheus::TextEncoder;
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use serde::Deserialize;

use super::series::{Kind, Labels};
use super::*;
use crate::cycle::tallies::Turn;
use crate::cycle::{Standings, fixture};
use crate::snapshot::{Fault, GpuFault, Hold, Kind as Lists, Lookup, ProcessId, Snapshot, Source};
use crate::units::{Celsius, Percent, Uid};

fn text(cycle: &Cycle) -> String {
    String::from_utf8(super::page(cycle)).unwrap()
}

#[test]
fn the_page_is_as_expected() {
    expect_file!["../../tests/golden/page.prom"].assert_eq(&text(&fixture::cycle()));
}

fn promtool(page: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect(
            "promtool is needed to check the page: install Debian's package `prometheus`, or put promtool on the PATH",
        );
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}

#[test]
fn promtool_has_nothing_to_say_about_the_page() {
    assert_eq!(promtool(&text(&fixture::cycle())), "");
}

/// The page of a snapshot, in the first turn of an agent.
fn page_of(seen: Snapshot) -> String {
    page_with(seen, |_| ())
}

fn page_with(seen: Snapshot, change: impl FnOnce(&mut Cycle)) -> String {
    let mut cycle = Cycle { seen, ..fixture::cycle() };
    cycle.tallies = Arc::default();
    change(&mut cycle);
    let turn = Turn {
        before: None,
        now: &cycle.seen,
        judgements: &[],
        outcomes: &[],
        took: Duration::ZERO,
        setup: &cycle.setup,
    };
    Arc::make_mut(&mut cycle.tallies).count(&turn);
    text(&cycle)
}

fn samples(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| !line.starts_with('#'))
}

/// Name and labels of each sample.
fn series(page: &str) -> Vec<&str> {
    samples(page).map(|line| line.rsplit_once(' ').unwrap().0).collect()
}

fn lines_with<'a>(page: &'a str, part: &str) -> Vec<&'a str> {
    samples(page).filter(|line| line.contains(part)).collect()
}

fn once_each(page: &str) {
    let series = series(page);
    let mut seen = BTreeSet::new();
    for one in &series {
        assert!(seen.insert(one), "twice: {one}");
    }
    let families: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(families.len(), families.iter().collect::<BTreeSet<_>>().len());
    assert_eq!(promtool(page), "");
}

/// Readings that no driver should give and some did.
fn hostile(seen: &mut Snapshot) {
    let gpus = seen.gpus.as_mut().unwrap();
    let told = gpus[0].readings.as_mut().unwrap();
    told.temperature = Some(Celsius(f64::NAN));
    told.utilization = Some(Percent(f64::INFINITY));
    told.temperature_thresholds.push(("slowdown", Celsius(1.0)));
    Arc::make_mut(&mut gpus[0].identity).model = Some("x=\"1\"} 9\nfake_metric 1".into());
    // One process in two entries of one list, and a pid that passed to another process between two lists.
    let twice = gpus[0].holds.as_ref().unwrap()[0].clone();
    gpus[0].holds.as_mut().unwrap().push(Hold { kind: Lists::Graphics, utilization: Some(Percent(f64::NAN)), ..twice });
    let successor = ProcessId { pid: 4000, started: 9_500_000 };
    let held = Hold { process: Ok(successor), ..fixture::hold(4000, Lists::Compute, Some(500), Some(1.0)) };
    gpus[1].holds.as_mut().unwrap().push(held);
    let copy = gpus[1].clone();
    gpus.push(copy);
    let process = crate::snapshot::Process { id: successor, ..fixture::process(4000, 1001, "next") };
    seen.processes.insert(successor, process);
    // Two uids of one name, and a name that looks like the uid of somebody without one.
    for (uid, name) in [(1011, "alice"), (1012, "1002")] {
        seen.users.insert(Uid(uid), fixture::user(uid, Lookup::Known(name.into()), &[(100, "users")]));
    }
    let process = |pid, uid| fixture::process(pid, uid, "}\n#");
    for (pid, uid) in [(4011, 1011), (4012, 1012)] {
        seen.processes.insert(fixture::id(pid), process(pid, uid));
        let gpus = seen.gpus.as_mut().unwrap();
        gpus[1].holds.as_mut().unwrap().push(fixture::hold(pid, Lists::Compute, Some(700), None));
    }
}

#[test]
fn no_series_is_there_twice_whatever_the_driver_says() {
    let mut seen = fixture::snapshot(5);
    hostile(&mut seen);
    let page = page_of(seen);
    once_each(&page);
    assert!(!page.contains("NaN") && !page.contains("inf\n"), "{page}");
    assert!(!page.lines().any(|line| line.starts_with("fake_metric")), "{page}");
    // Bob without a name and the user of that name are added up: the sum stays right.
    let sum = lines_with(&page, "gpuwarden_user_memory_bytes{gpu=\"1\"");
    assert!(sum.iter().any(|line| line.contains("user=\"1002\"") && line.ends_with(" 9122611200")), "{sum:#?}");
}

#[test]
fn the_values_of_a_lost_card_vanish_and_no_other_card_is_renumbered() {
    let mut seen = fixture::snapshot(5);
    seen.gpus.as_mut().unwrap()[1].readings = Err(GpuFault("gpu_is_lost"));
    let page = page_of(seen);
    let of_driver: BTreeSet<&str> = lines_with(&page, "gpuwarden_gpu_")
        .into_iter()
        .filter(|line| line.contains("gpu=\"1\""))
        .map(|line| line.split_once('{').unwrap().0)
        .collect();
    let stay =
        ["assignment_end_timestamp_seconds", "assignment_info", "fault_info", "held_seconds_total", "info", "up"];
    let stay: BTreeSet<String> = stay.iter().map(|name| format!("gpuwarden_gpu_{name}")).collect();
    assert_eq!(of_driver, stay.iter().map(String::as_str).collect());
    assert!(lines_with(&page, "gpuwarden_process_memory_bytes{gpu=\"1\"").is_empty());
    assert!(page.contains("gpuwarden_gpu_up{gpu=\"2\",uuid=\"GPU-20000000-1111-2222-3333-444444444444\"} 1"));
}

#[test]
fn without_a_driver_the_page_is_served_without_cards() {
    let mut seen = fixture::snapshot(5);
    let fault = Fault::new(Source::Nvml, "the driver is not loaded");
    seen.gpus = Err(fault.clone());
    seen.driver = Err(fault.clone());
    seen.health[0].fault = Some(fault.what);
    let page = page_of(seen);
    once_each(&page);
    assert_eq!(lines_with(&page, "gpuwarden_gpu_"), Vec::<&str>::new());
    assert_eq!(lines_with(&page, "gpuwarden_gpus_"), ["gpuwarden_gpus_expected 4", "gpuwarden_gpus_found 0"]);
    assert_eq!(lines_with(&page, "source_up{source=\"nvml\"}"), ["gpuwarden_source_up{source=\"nvml\"} 0"]);
    // How many cards a user holds is not known, and so it is not 0.
    assert_eq!(lines_with(&page, "gpuwarden_user_gpus"), Vec::<&str>::new());
    // Nor is how many processes no rule judges.
    assert_eq!(lines_with(&page, "gpuwarden_exempt_processes"), Vec::<&str>::new());
}

#[test]
fn what_is_not_known_is_not_zero() {
    let page = text(&fixture::cycle());
    for unknown in ["gpu_memory_total_bytes", "gpu_memory_unattributed_bytes", "gpu_holders", "user_memory_bytes"] {
        assert!(lines_with(&page, &format!("gpuwarden_{unknown}{{gpu=\"2\"")).is_empty(), "{unknown}");
    }
    let memory = lines_with(&page, "gpuwarden_gpu_processes_memory_unknown{gpu=\"2\"");
    assert!(memory[0].ends_with(" 2"), "{memory:?}");
}

#[test]
fn without_sources_of_rights_nobody_is_known_to_be_unassigned() {
    let mut seen = fixture::snapshot(5);
    seen.assignments.sources.clear();
    let page = page_of(seen);
    for unknown in ["process_assigned", "user_unassigned_memory_bytes", "user_gpu_unassigned_seconds_total"] {
        assert_eq!(lines_with(&page, unknown), Vec::<&str>::new());
    }
}

#[test]
fn beyond_the_cap_pairs_are_counted_and_not_shown() {
    let cap = |processes| {
        move |cycle: &mut Cycle| {
            let setup = crate::cycle::Setup { processes, ..(*cycle.setup).clone() };
            cycle.setup = std::sync::Arc::new(setup);
        }
    };
    let page = page_with(fixture::snapshot(5), cap(2));
    let shown: Vec<_> = lines_with(&page, "gpuwarden_process_memory_bytes");
    assert!(shown.len() == 2 && shown[0].contains("4000") && shown[1].contains("4002"), "{shown:#?}");
    assert_eq!(lines_with(&page, "processes_omitted"), ["gpuwarden_processes_omitted 3"]);
    let page = page_with(fixture::snapshot(5), cap(0));
    assert_eq!(lines_with(&page, "gpuwarden_process_"), Vec::<&str>::new());
    assert_eq!(lines_with(&page, "processes_omitted"), ["gpuwarden_processes_omitted 5"]);
}

/// Something with one label.
struct Labelled(String);

impl Subject for Labelled {
    const LABELS: &'static [&'static str] = &["command"];

    fn labels(&self) -> Labels {
        vec![("command", self.0.clone().into())]
    }
}

/// What is written of one row that has a sample of 1.
fn written(help: &'static str, subject: impl Subject) -> String {
    let mut page = Page::new();
    page.table(&[series::gauge("x", help, |_| Some(1.0)).standard()], &[subject]);
    String::from_utf8(page.into_bytes()).unwrap()
}

#[derive(Deserialize)]
struct LabelCase {
    id: String,
    raw_b64: String,
    text_0_0_4: String,
}

#[test]
fn label_values_are_escaped_as_prometheus_reads_them() {
    let cases: Vec<LabelCase> = serde_yaml::from_str(include_str!("../../tests/cases/label_escapes.yaml")).unwrap();
    for case in cases {
        let raw = BASE64_STANDARD.decode(&case.raw_b64).unwrap();
        // The sources have made text of it by then: NULs between arguments, broken UTF-8.
        let raw = String::from_utf8_lossy(&raw).trim_end_matches('\0').replace('\0', " ");
        let expected = format!("# HELP x A.\n# TYPE x gauge\nx{{command=\"{}\"}} 1\n", case.text_0_0_4);
        assert_eq!(written("A.", Labelled(raw)), expected, "{}", case.id);
    }
}

#[derive(Deserialize)]
struct HelpCase {
    id: String,
    raw: String,
    text_0_0_4: String,
}

#[test]
fn help_is_escaped_as_prometheus_reads_it() {
    let cases: Vec<HelpCase> = serde_yaml::from_str(include_str!("../../tests/cases/help_escapes.yaml")).unwrap();
    for case in cases {
        let expected = format!("# HELP x {}\n# TYPE x gauge\nx 1\n", case.text_0_0_4);
        assert_eq!(written(case.raw.leak(), Build::THIS), expected, "{}", case.id);
    }
}

/// The families as the crate `prometheus` knows them.
#[derive(Default)]
struct Families(Vec<MetricFamily>);

impl Sink for Families {
    fn table<T: Subject>(&mut self, rows: &[Series<T>], subjects: &[T]) {
        self.0.extend(rows.iter().map(|row| family(row, subjects)).filter(|family| !family.get_metric().is_empty()));
    }
}

fn family<T: Subject>(row: &Series<T>, subjects: &[T]) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(row.full_name());
    family.set_help(row.help.to_owned());
    let (kind, metric): (_, fn(f64) -> Metric) = match row.kind {
        Kind::Gauge => (MetricType::GAUGE, gauge),
        Kind::Counter => (MetricType::COUNTER, counter),
    };
    family.set_field_type(kind);
    let mut seen = BTreeSet::new();
    for subject in subjects {
        row.read.each(subject, |more, value| {
            let labels = [subject.labels(), more].concat();
            let labels: Vec<_> = labels.into_iter().map(|(name, value)| (name, value.to_string())).collect();
            // An empty value is the same as none.
            if seen.insert(labels.iter().filter(|(_, value)| !value.is_empty()).cloned().collect::<BTreeSet<_>>()) {
                let mut metric = metric(value);
                metric.set_label(labels.into_iter().map(pair).collect());
                family.mut_metric().push(metric);
            }
        });
    }
    family
}

fn gauge(value: f64) -> Metric {
    let mut gauge = proto::Gauge::default();
    gauge.set_value(value);
    Metric::from_gauge(gauge)
}

fn counter(value: f64) -> Metric {
    let mut metric = Metric::default();
    let mut counter = proto::Counter::default();
    counter.set_value(value);
    metric.set_counter(counter);
    metric
}

fn pair((name, value): (&'static str, String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}

#[test]
fn the_page_is_what_the_crate_of_prometheus_would_write() {
    let mut odd = fixture::snapshot(5);
    hostile(&mut odd);
    for (seen, family) in [(fixture::snapshot(5), "gpuwarden_gpu_info"), (odd, "fake_metric")] {
        let cycle = Cycle { seen, ..fixture::cycle() };
        let mut families = Families::default();
        all(&cycle, &mut families);
        let expected = TextEncoder::new().encode_to_string(&families.0).unwrap();
        assert!(expected.contains(family));
        assert_eq!(text(&cycle), expected);
    }
}

/// The rows of all tables, for people.
#[derive(Default)]
struct Listing {
    rows: Vec<String>,
    labels: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Sink for Listing {
    fn table<T: Subject>(&mut self, rows: &[Series<T>], _: &[T]) {
        for row in rows {
            let labels: Vec<&str> = T::LABELS.iter().chain(row.labels).copied().collect();
            let kind = if row.kind == Kind::Gauge { "gauge" } else { "counter" };
            let (name, help) = (row.full_name(), row.help);
            let shown: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            self.rows.push(format!("| `{name}` | {kind} | {} | {help} |\n", shown.join(", ")));
            let before = self.labels.insert(name.clone(), labels.into_iter().collect());
            assert_eq!(before, None, "{name} is in two tables");
        }
    }
}

fn listing() -> Listing {
    let mut listing = Listing::default();
    all(&fixture::cycle(), &mut listing);
    listing
}

#[test]
fn the_documentation_lists_every_family() {
    let heading = "# Metrics\n\nWhat `/metrics` publishes. A value that is not known is absent, never 0.\n\n\
                   | family | type | labels | meaning |\n|---|---|---|---|\n";
    expect_file!["../../docs/metrics.md"].assert_eq(&format!("{heading}{}", listing().rows.concat()));
}

#[test]
fn a_family_has_no_labels_but_those_that_are_documented() {
    let documented = listing().labels;
    let mut families = Families::default();
    all(&fixture::cycle(), &mut families);
    for family in families.0 {
        for label in family.get_metric().iter().flat_map(|metric| metric.get_label()) {
            assert!(documented[family.name()].contains(label.name()), "{} of {}", label.name(), family.name());
        }
    }
}

#[test]
fn labels_that_belong_to_whoever_scrapes_are_never_ours() {
    let theirs = ["instance", "job", "host", "node", "cluster", "namespace", "pod", "container", "service", "endpoint"];
    for (name, labels) in listing().labels {
        assert!(!theirs.iter().any(|label| labels.contains(label)), "{name}");
    }
}

#[test]
fn the_first_page_has_every_combination_with_zero() {
    let page = page_with(fixture::snapshot(0), |cycle| {
        cycle.standings = Standings::default();
        cycle.notifications.values_mut().for_each(|count| *count = 0);
    });
    let zeros = |name: &str| lines_with(&page, name).iter().filter(|line| line.ends_with(" 0")).count();
    // Four rungs by five outcomes, ten reasons, two channels by three, two rules by three users, four cards.
    assert_eq!(zeros("gpuwarden_actions_total"), 20);
    assert_eq!(zeros("gpuwarden_refusals_total"), 10);
    assert_eq!(zeros("gpuwarden_notifications_total"), 6);
    assert_eq!(zeros("gpuwarden_episodes_total"), 6);
    assert_eq!(zeros("gpuwarden_gpu_held_seconds_total"), 4);
    assert_eq!(zeros("gpuwarden_rule_subjects"), 12);
    // Who holds a card now begins now.
    assert_eq!(zeros("gpuwarden_user_gpu_held_seconds_total"), 2);
}

/// Eight cards with sixteen processes each.
fn full_node() -> Cycle {
    let mut cycle = fixture::cycle();
    let pid = |card: u32, number: u32| (5000 + card * 16 + number) as i32;
    let holds =
        |card| (0..16).map(move |number| fixture::hold(pid(card, number), Lists::Compute, Some(4_000), Some(50.0)));
    let cards = (0..8).map(|card| fixture::gpu(card, Ok(fixture::readings(64_000, 90.0)), holds(card).collect()));
    cycle.seen.gpus = Ok(cards.collect());
    let processes = (0..8)
        .flat_map(|card| (0..16).map(move |number| fixture::process(pid(card, number), 1001 + number % 3, "python3")));
    cycle.seen.processes = processes.map(|process| (process.id, process)).collect();
    cycle
}

#[test]
#[ignore = "a measurement: cargo test --release -- --ignored bench_"]
fn bench_a_page_of_eight_cards_with_sixteen_processes_each() {
    let mut cycle = full_node();
    let before = cycle.seen.clone();
    let setup = cycle.setup.clone();
    let turns = 200;
    let mut spent = [Duration::ZERO; 2];
    let mut bytes = 0;
    for _ in 0..turns {
        let begun = std::time::Instant::now();
        let turn = Turn {
            before: Some(&before),
            now: &cycle.seen,
            judgements: &[],
            outcomes: &[],
            took: Duration::ZERO,
            setup: &setup,
        };
        Arc::make_mut(&mut cycle.tallies).count(&turn);
        let counted = std::time::Instant::now();
        bytes = super::page(&cycle).len();
        for (sum, part) in spent.iter_mut().zip([counted - begun, counted.elapsed()]) {
            *sum += part;
        }
    }
    let [counted, written] = spent.map(|spent| spent / turns);
    println!("{bytes} bytes: counted in {counted:?}, written in {written:?}");
}
