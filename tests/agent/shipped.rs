//! What is delivered beside the program: rules, their guide, the dashboard, the unit file. Each is as it says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn files_in(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn is_test(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".test.yaml")
}

fn gpuwarden(command: &str, files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwarden")).arg(command).args(files).output().expect("gpuwarden can be started")
}

fn expect_success(output: &Output) {
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{told}{said}", output.status);
}

// Rules

#[test]
fn every_rule_file_and_every_rule_test_is_in_order() {
    let files: Vec<PathBuf> = ["rules", "tests/timelines"].into_iter().flat_map(files_in).collect();
    let output = gpuwarden("check", &files);
    expect_success(&output);
    assert!(output.stdout.is_empty());
}

#[test]
fn every_rule_file_has_tests_and_passes_them() {
    for folder in ["rules", "tests/timelines"] {
        let (tests, rules): (Vec<PathBuf>, Vec<PathBuf>) = files_in(folder).into_iter().partition(|file| is_test(file));
        let untested: Vec<&PathBuf> = rules.iter().filter(|file| !file.with_extension("test.yaml").exists()).collect();
        assert!(untested.is_empty(), "{untested:?}");
        expect_success(&gpuwarden("test", &tests));
    }
}

#[test]
fn every_shipped_rule_observes_and_begins_with_a_word_to_the_admin() {
    for file in files_in("rules").into_iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# "), "{}", file.display());
        let sets_a_mode = |line: &str| line.trim_start().starts_with("mode:");
        assert!(!text.lines().any(sets_a_mode), "{}", file.display());
    }
}

// The guide

/// The blocks of YAML in a page.
fn yaml_blocks(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A folder with the shipped rules and these files.
fn folder_with(files: &[(String, String)]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    for rule in files_in("rules") {
        fs::copy(&rule, folder.path().join(rule.file_name().unwrap())).unwrap();
    }
    let written = files.iter().map(|(name, text)| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    });
    let written = written.collect();
    (folder, written)
}

#[test]
fn the_examples_of_the_guide_are_in_order_and_its_test_passes() {
    let page = read("docs/rules.md");
    let name = |number: usize, text: &str| {
        let kind = if text.contains("\nexpect:") { "test." } else { "" };
        format!("example-{number}.{kind}yaml")
    };
    let blocks = yaml_blocks(&page).into_iter().enumerate();
    let (_folder, files) =
        folder_with(&blocks.map(|(number, text)| (name(number, text), text.to_owned())).collect::<Vec<_>>());
    expect_success(&gpuwarden("check", &files));
    let tests: Vec<PathBuf> = files.into_iter().filter(|file| is_test(file)).collect();
    assert!(!tests.is_empty());
    expect_success(&gpuwarden("test", &tests));
}

/// A rule that asks for a fact of somebody, as the table of the guide has them.
fn rule_asking(number: usize, fact: &str, of: &str) -> String {
    let (about, per_gpu) = match of {
        "user per GPU" => ("user", "\n    per_gpu: true"),
        about => (about, ""),
    };
    format!(
        "rules:\n  - name: asks-{number}\n    description: It asks.\n    about: {about}{per_gpu}\n    when:\n      - {fact}\n    \
         then:\n      - {{after: 1m, alert: [terminal]}}\n"
    )
}

#[test]
fn every_fact_of_the_guide_can_be_asked_of_whom_it_says() {
    let page = read("docs/rules.md");
    let table =
        page.split("## What can be asked").nth(1).unwrap().split("\n\n").find(|part| part.starts_with('|')).unwrap();
    let mut files = Vec::new();
    for row in table.lines().skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for of in cells[2].split(", ") {
            let number = files.len();
            files.push((format!("fact-{number}.yaml"), rule_asking(number, cells[1].trim_matches('`'), of)));
        }
    }
    assert!(files.len() > 16);
    // Not `check`, which asks the directory of this machine for the names.
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let test =
        format!("rules: [{}]\ngpus: {{count: 1}}\nuntil: 30s\nexpect: [{{nothing_else: true}}]\n", names.join(", "));
    files.push(("facts.test.yaml".to_owned(), test));
    let (_folder, files) = folder_with(&files);
    expect_success(&gpuwarden("test", &files[files.len() - 1..]));
}

// The configuration

/// What `check` says of a configuration beside the shipped rules, which lie in `rules`.
fn complaints(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("rules")).unwrap();
    for rule in files_in("rules") {
        fs::copy(&rule, folder.path().join("rules").join(rule.file_name().unwrap())).unwrap();
    }
    let file = folder.path().join("gpuwarden.yaml");
    fs::write(&file, text).unwrap();
    let output = gpuwarden("check", &[file]);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Names of people and cards that the machine of the test need not know are told only of what is right otherwise.
fn is_a_strange_name(complaint: &str) -> bool {
    ["user", "group", "GPU"].iter().any(|kind| complaint.contains(&format!(": unknown {kind} `")))
}

fn expect_strange_names_only(text: &str) {
    let others: Vec<String> = complaints(text).into_iter().filter(|complaint| !is_a_strange_name(complaint)).collect();
    assert!(others.is_empty(), "{others:#?}\n{text}");
}

#[test]
fn the_configurations_and_rights_that_people_are_shown_are_in_order() {
    for page in ["README.md", "docs/config.md"] {
        let text = read(page);
        let blocks = yaml_blocks(&text);
        assert!(!blocks.is_empty());
        blocks.into_iter().for_each(expect_strange_names_only);
    }
    let trial = root().join("docs/examples/gpuwarden.yaml");
    let said = String::from_utf8(gpuwarden("check", &[trial]).stdout).unwrap();
    assert!(said.lines().all(is_a_strange_name), "{said}");
    serde_yaml::from_str::<nvml_sim::Scenario>(&read("docs/examples/scenario.yaml")).unwrap();
}

/// The first cells of the rows of the table under a heading.
fn keys_under(page: &str, heading: &str) -> BTreeSet<String> {
    let section = page.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("{heading}"));
    let table = section.split("\n\n").map(str::trim_start).find(|part| part.starts_with("| key ")).unwrap();
    table.lines().skip(2).map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
}

/// The keys that the parser knows where this text has one that nobody knows.
fn keys_beside(text: &str) -> BTreeSet<String> {
    let said = complaints(text);
    let [said] = &said[..] else { panic!("{said:?}") };
    let known = said.split(", expected ").nth(1).unwrap().trim_start_matches("one of ");
    known.split(", ").map(|key| key.trim_matches('`').to_owned()).collect()
}

#[test]
fn every_key_of_the_configuration_is_explained_and_no_other() {
    let page = read("docs/config.md");
    for (heading, text) in [
        ("## Keys", "x-y: 1"),
        ("## assignments", "assignments: {x-y: 1}"),
        ("### A right", "assignments: {fixed: [{x-y: 1}]}"),
        ("## exempt", "exempt: [{x-y: 1}]"),
        ("## limits", "limits: {x-y: 1}"),
        ("## metrics", "metrics: {x-y: 1}"),
    ] {
        assert_eq!(keys_under(&page, heading), keys_beside(text), "{heading}");
    }
}

// Metrics

/// Family and label, and the values that the guide knows. A cell that is left empty is as the one above.
fn documented_labels() -> Vec<(String, String, BTreeSet<String>)> {
    let page = read("docs/labels.md");
    let mut labels: Vec<(String, String, BTreeSet<String>)> = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `gpuwarden_") || line.starts_with("| | ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let values = cells[3].split(", ").map(|value| value.trim_matches('`').to_owned());
        if cells[1].is_empty() {
            labels.last_mut().unwrap().2.extend(values);
        } else {
            let [family, label] = [cells[1], cells[2]].map(|cell| cell.trim_matches('`').to_owned());
            labels.push((family, label, values.collect()));
        }
    }
    labels
}

/// The values that a label of a family has on a page.
fn values_of(page: &str, family: &str, label: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| line.starts_with(&format!("{family}{{")));
    samples.filter_map(|line| line.split(&format!("{label}=\"")).nth(1)?.split('"').next()).map(str::to_owned).collect()
}

#[test]
fn the_values_of_labels_are_those_of_the_page() {
    let page = read("tests/golden/page.prom");
    let documented = documented_labels();
    assert!(documented.len() > 16);
    for (family, label, values) in documented {
        let shown = values_of(&page, &family, &label);
        assert!(!shown.is_empty() && shown.is_subset(&values), "{family} {label}: {shown:?} of {values:?}");
        // These have a series for each value, whatever is seen.
        if ["reason", "fuse", "state", "outcome"].contains(&label.as_str()) {
            assert_eq!(shown, values, "{family} {label}");
        }
    }
}

/// Whether Prometheus takes a file of rules.
fn expect_prometheus_takes(file: &Path) {
    let output = Command::new("promtool").args(["check", "rules"]).arg(file).output().expect("promtool is installed");
    expect_success(&output);
}

#[test]
fn the_alerts_are_promql_about_metrics_that_the_agent_exports() {
    expect_prometheus_takes(&root().join("docs/examples/alerts.yaml"));
    let exported = read("docs/metrics.md");
    let alerts = read("docs/examples/alerts.yaml");
    let asked: BTreeSet<String> = alerts.lines().filter(|line| line.contains("expr:")).flat_map(metrics).collect();
    let unknown: Vec<&String> = asked.iter().filter(|name| !exported.contains(&format!("`{name}`"))).collect();
    assert!(asked.len() > 4 && unknown.is_empty(), "{unknown:?}");
}

#[test]
fn of_a_driver_that_is_silent_no_card_is_told_to_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("alerts.test.yaml");
    let series = |name: &str, values: &str| format!("- {{series: '{name}', values: '{values}'}}\n    ");
    let labels = |label: &str, value: &str| format!("{{instance=\"{value}\"{label}}}");
    // Of one host the driver hangs, of the other a card is gone.
    let input: String = [("hangs", "0x30", "0x30"), ("lacks", "1x30", "3x30")]
        .map(|(host, up, found)| {
            series(&format!("gpuwarden_source_up{}", labels(", source=\"nvml\"", host)), up)
                + &series(&format!("gpuwarden_gpus_found{}", labels("", host)), found)
                + &series(&format!("gpuwarden_gpus_expected{}", labels("", host)), "4x30")
        })
        .concat();
    let fires = [("GpuMissing", "lacks"), ("NvidiaDriverSilent", "hangs")].map(|(alert, host)| {
        let labels = if alert == "NvidiaDriverSilent" { ", source: nvml" } else { "" };
        format!(
            "- alertname: {alert}\n      eval_time: 20m\n      exp_alerts: [{{exp_labels: {{instance: {host}, severity: \
             critical{labels}}}, exp_annotations: {{summary: \"{}\"}}}}]\n    ",
            summary(alert).replace("{{ $labels.instance }}", host)
        )
    });
    let silent = "- {alertname: GpuwardenSourceSilent, eval_time: 20m, exp_alerts: []}\n";
    let alerts = root().join("docs/examples/alerts.yaml");
    let test = format!(
        "rule_files: [{}]\ntests:\n- interval: 1m\n  input_series:\n    {input}\n  alert_rule_test:\n    {}{silent}",
        alerts.display(),
        fires.concat()
    );
    fs::write(&path, test).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&path).output().expect("promtool is installed");
    expect_success(&output);
}

/// What an alert says.
fn summary(alert: &str) -> String {
    let alerts = read("docs/examples/alerts.yaml");
    let text = alerts.split(&format!("- alert: {alert}\n")).nth(1).unwrap();
    text.split("summary: \"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

// The dashboard

/// Every PromQL expression of a dashboard with the title of its panel, as Grafana would send it for this instance.
pub fn expressions(dashboard: &Value, instance: &str) -> Vec<(String, String)> {
    let targets = panels(dashboard).into_iter().flat_map(|panel| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    });
    targets.map(|(title, expr)| (title, substituted(&expr, instance))).collect()
}

fn substituted(expr: &str, instance: &str) -> String {
    let known = [("$__rate_interval", "1m"), ("$__range", "1h"), ("$instance", instance)];
    let expr = known.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value));
    assert!(!expr.contains('$'), "a variable that nobody knows: {expr}");
    expr
}

/// All panels, those within rows too.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let outer = dashboard["panels"].as_array().expect("panels");
    let inner = outer.iter().flat_map(|panel| panel["panels"].as_array().into_iter().flatten());
    outer.iter().chain(inner).collect()
}

/// The agent's metrics that an expression names.
fn metrics(expr: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    expr.match_indices("gpuwarden_").map(|(at, _)| name(&expr[at..])).collect()
}

fn dashboards() -> Vec<(PathBuf, Value)> {
    let files = files_in("grafana").into_iter().filter(|file| file.extension().is_some_and(|it| it == "json"));
    files.map(|file| (file.clone(), serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap())).collect()
}

#[test]
fn every_metric_of_a_dashboard_is_one_that_the_agent_exports() {
    let exported = read("docs/metrics.md");
    let exported: BTreeSet<&str> = exported.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    for (file, dashboard) in dashboards() {
        for (title, expr) in expressions(&dashboard, "host:9845") {
            let unknown: Vec<String> = metrics(&expr)
                .into_iter()
                .filter(|name| !exported.contains(name.as_str()) && !exported.contains(&name["gpuwarden_".len()..]))
                .collect();
            assert!(unknown.is_empty(), "{}: {title}: {unknown:?}", file.display());
        }
    }
}

#[test]
fn every_expression_of_a_dashboard_is_promql() {
    for (file, dashboard) in dashboards() {
        let rules: String = expressions(&dashboard, "host:9845")
            .iter()
            .enumerate()
            .map(|(number, (_, expr))| {
                format!("  - {{record: \"panel:{number}\", expr: {}}}\n", Value::from(expr.as_str()))
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("panels.yaml");
        fs::write(&path, format!("groups:\n- name: panels\n  rules:\n{rules}")).unwrap();
        println!("{}", file.display());
        expect_prometheus_takes(&path);
    }
}

#[test]
fn cards_are_joined_by_uuid_and_never_by_index() {
    for (_, dashboard) in dashboards() {
        for (title, expr) in expressions(&dashboard, "host:9845") {
            let mut joins = expr.split("on (").skip(1).map(|rest| rest.split(')').next().unwrap().split(", "));
            assert!(!joins.any(|mut labels| labels.any(|label| label == "gpu")), "{title}: {expr}");
            let asks_of_one_node = expr.matches("gpuwarden_").count() == expr.matches("instance=\"host:9845\"").count();
            assert!(asks_of_one_node, "{title}: {expr}");
        }
    }
}

#[test]
fn every_panel_has_a_place_of_its_own_an_id_and_a_unit() {
    for (_, dashboard) in dashboards() {
        assert!(dashboard["uid"].is_string() && dashboard["schemaVersion"].is_u64());
        let panels = panels(&dashboard);
        let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len());
        let mut taken = BTreeSet::new();
        for panel in panels {
            let title = panel["title"].as_str().unwrap();
            let cells = cells(&panel["gridPos"]);
            assert!(cells.iter().all(|cell| cell.0 < 24 && taken.insert(*cell)), "{title} lies over another panel");
            let shown = &panel["fieldConfig"]["defaults"]["unit"];
            assert!(panel["type"] == "row" || shown.is_string(), "{title} has no unit");
        }
    }
}

/// The cells of the grid that a panel covers.
fn cells(place: &Value) -> Vec<(u64, u64)> {
    let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place[key].as_u64().unwrap());
    (x..x + w).flat_map(|column| (y..y + h).map(move |row| (column, row))).collect()
}

// The unit file

const UNIT: &str = "systemd/gpuwarden.service";
const SOCKET: &str = "systemd/gpuwarden.socket";

/// The lines of the unit, continued ones joined, without comments.
fn unit_lines() -> Vec<String> {
    let text = read(UNIT).replace("\\\n", " ");
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

/// The unit with a program that exists on the machine of the test.
fn unit_here(folder: &Path) -> PathBuf {
    let path = folder.join("gpuwarden.service");
    fs::write(&path, read(UNIT).replace("/usr/bin/gpuwarden", env!("CARGO_BIN_EXE_gpuwarden"))).unwrap();
    path
}

fn systemd_analyze(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let unit = unit_here(folder.path());
    Command::new("systemd-analyze").args(arguments).arg(unit).output().expect("systemd-analyze is installed")
}

#[test]
fn systemd_has_nothing_to_say_about_the_unit() {
    let output = systemd_analyze(&["verify", "--man=no"]);
    expect_success(&output);
    // An unknown key is only said.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn the_unit_is_as_closed_as_it_can_be() {
    expect_success(&systemd_analyze(&["security", "--offline=true", "--no-pager", "--threshold=35"]));
}

/// What the guide adds to the unit for sockets of systemd.
fn drop_in() -> String {
    let page = read("docs/web.md");
    page.split("```ini\n").nth(1).unwrap().split("```").next().unwrap().to_owned()
}

#[test]
fn systemd_has_nothing_to_say_about_the_socket_and_what_the_guide_adds_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let unit = unit_here(folder.path());
    let socket = folder.path().join("gpuwarden.socket");
    fs::write(&socket, read(SOCKET)).unwrap();
    let drop_ins = folder.path().join("gpuwarden.service.d");
    fs::create_dir(&drop_ins).unwrap();
    let program = env!("CARGO_BIN_EXE_gpuwarden");
    fs::write(drop_ins.join("socket.conf"), drop_in().replace("/usr/bin/gpuwarden", program)).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).arg(socket).output().unwrap();
    expect_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(drop_in().contains("--web.systemd-socket"));
    // As without it.
    assert!(read(SOCKET).contains("\nListenStream=127.0.0.1:9845\n"));
}

#[test]
fn every_flag_of_the_unit_is_one_of_the_program() {
    let mut lines = unit_lines();
    lines.extend(drop_in().lines().map(str::to_owned));
    let starts = lines.iter().filter_map(|line| line.strip_prefix("ExecStart=")).filter(|start| !start.is_empty());
    let starts: Vec<&str> = starts.collect();
    assert_eq!(starts.len(), 2);
    starts.into_iter().for_each(expect_flags_of_the_program);
}

fn expect_flags_of_the_program(start: &str) {
    let help = Command::new(env!("CARGO_BIN_EXE_gpuwarden")).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[..2], ["/usr/bin/gpuwarden", "serve"]);
    let known = |flag: &str| help.split_whitespace().any(|word| word == flag);
    let unknown: Vec<&str> =
        words[2..].iter().map(|word| word.split('=').next().unwrap()).filter(|flag| !known(flag)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_unit_agrees_with_what_the_agent_tells_systemd() {
    let lines = unit_lines();
    for line in ["Type=notify", "ExecReload=/bin/kill -HUP $MAINPID", "StateDirectory=gpuwarden", "Restart=always"] {
        assert!(lines.iter().any(|it| it == line), "{line}");
    }
    let stays_down = lines.iter().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
    assert!(stays_down.split(' ').any(|code| code == "78"));
    // Each would blind it; ProtectClock= forbids all devices but the clock.
    for key in [
        "ProtectProc=",
        "ProcSubset=",
        "PrivateDevices=",
        "PrivateUsers=",
        "DevicePolicy=",
        "DeviceAllow=",
        "ProtectClock=",
    ] {
        assert!(!lines.iter().any(|line| line.starts_with(key)), "{key}");
    }
}

#[test]
fn every_line_that_shuts_something_has_its_sentence() {
    let text = read(UNIT);
    let service = text.split("[Service]").nth(1).unwrap().split("[Install]").next().unwrap();
    let lines: Vec<&str> = service.lines().filter(|line| !line.is_empty()).collect();
    // Two lines may share a sentence, three are a list.
    let mut since_comment = 0;
    for line in lines {
        since_comment = if line.starts_with('#') { 0 } else { since_comment + 1 };
        assert!(since_comment <= 2, "{line} stands without a word");
    }
}
