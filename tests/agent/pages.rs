//! `/metrics` as Prometheus reads it.

use crate::harness::worker::{SLEEPS, sleep_named};
use crate::harness::{Agent, LIMIT, Node, Worker, eventually, http, root};
use nvml_sim::scenario::EnergyCounter;
use nvml_sim::units::Energy;
use nvml_sim::value::{Error, Value};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[test]
fn a_name_that_is_cut_inside_a_character_blinds_nobody() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(1);
    // The kernel cuts at 15 bytes; each letter is two of them. And a name that is no text at all.
    let cut = sleep_named(&node.path(""), "ééééééééé");
    let hostile = sleep_named(&node.path(""), OsStr::from_bytes(b") S 1 7\n\xff\"\\"));
    let workers = [&cut, &hostile].map(|program| Worker::program(node.alice, program, &["120"]));
    node.held(0, &[&workers[0].with(1), &workers[1].with(2)]);
    let agent = node.start();
    // `page` refuses what is not UTF-8, and each line that is no sample.
    let page = agent.shows("both processes", |page| page.all("gpuwarden_process_info", &[]).count() == 2);
    let command = |worker: &Worker| {
        let pid = worker.pid().to_string();
        page.all("gpuwarden_process_info", &[("pid", &pid)]).next().unwrap().labels["command"].clone()
    };
    assert!(command(&workers[0]).starts_with("ééééééé"), "{}", command(&workers[0]));
    assert!(!command(&workers[1]).contains('\n'), "{}", command(&workers[1]));
    is_well_formed(&agent);
}

#[test]
fn energy_that_cannot_be_read_is_absent_and_a_driver_that_begins_again_is_believed() {
    let mut node = Node::new(1);
    let energy = |joules: u64| Value::Known(EnergyCounter::At(Energy(joules * 1000)));
    node.change(|scenario| scenario.gpus[0].energy = energy(5000));
    let agent = node.start();
    let shows = |what: &str, value: Option<f64>| {
        agent.shows(what, |page| page.value("gpuwarden_gpu_energy_joules_total", &[]) == value);
    };
    shows("the energy", Some(5000.0));
    node.change(|scenario| scenario.gpus[0].energy = Value::Failing(Error::UNKNOWN));
    shows("no energy", None);
    assert!(!agent.page().text.contains("NaN"));
    node.change(|scenario| scenario.gpus[0].energy = energy(0));
    shows("the energy of a driver that was loaded again", Some(0.0));
}

#[test]
fn each_name_with_its_labels_is_there_once_and_families_stand_together() {
    if !root("several people") {
        return;
    }
    let mut node = Node::new(2);
    let workers: Vec<Worker> =
        [node.alice, node.alice, node.bob].into_iter().map(|who| node.runs(who, SLEEPS)).collect();
    node.held(0, &[&workers[0].with(1), &workers[1].with(2)]);
    node.held(1, &[&workers[0].with(3), &workers[2].with(4)]);
    let agent = node.start();
    agent.cycles(2);
    is_well_formed(&agent);
    let page = agent.page();
    assert_eq!(page.sum("gpuwarden_user_memory_bytes", &[("user", "alice")]), 6.0 * f64::from(1 << 30));
    assert_eq!(page.value("gpuwarden_user_gpus", &[("user", "alice")]), Some(2.0));
    assert_eq!(page.value("gpuwarden_user_processes", &[("user", "alice")]), Some(2.0));
}

fn is_well_formed(agent: &Agent) {
    let page = agent.page();
    let mut seen = BTreeSet::new();
    for sample in &page.samples {
        assert!(seen.insert((&sample.name, &sample.labels)), "twice: {sample:?}");
    }
    let mut families = BTreeSet::new();
    for line in page.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let family = line.split(' ').next().unwrap();
        assert!(families.insert(family), "a family in two pieces: {family}");
    }
    for sample in &page.samples {
        assert!(families.contains(sample.name.as_str()), "without a TYPE: {sample:?}");
    }
    promtool_is_silent(&page.text);
}

pub fn promtool_is_silent(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool, of Debian's package prometheus");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    assert!(said.status.success());
}

/// A server of Debian's that scrapes an agent each second, ended with this value.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    pub fn scraping(agent: &Agent, dir: &Path) -> Self {
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: gpuwarden, static_configs: [{{targets: ['{}']}}]}}]\n",
            agent.address
        );
        Self::with(&text, dir)
    }

    /// One with this configuration.
    pub fn with(text: &str, dir: &Path) -> Self {
        let address = crate::harness::agent::free_address();
        let config = dir.join("prometheus.yml");
        std::fs::write(&config, text).unwrap();
        let mut server = Command::new("prometheus");
        server.arg(format!("--config.file={}", config.display()));
        server.arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()));
        server.arg(format!("--web.listen-address={address}"));
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: server.spawn().expect("prometheus, of Debian's package of that name"), address }
    }

    /// The answer to a query: series with their values. `None` while the server is not yet there.
    pub fn query(&self, query: &str) -> Option<Vec<Json>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = http::ask(self.address, "GET", &format!("/api/v1/query?query={encoded}")).ok()?;
        if answer.status == 503 {
            return None;
        }
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        Some(answer.json()["data"]["result"].as_array().unwrap_or(&Vec::new()).clone())
    }

    /// Waits until a query has an answer that is not empty: the value of its first series.
    #[track_caller]
    pub fn value(&self, query: &str) -> f64 {
        let text = eventually(query, || self.query(query)?.first()?["value"][1].as_str().map(str::to_owned));
        text.parse().unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        // A failure means that it has ended, and then there is nothing to do.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        if crate::harness::wait::within(LIMIT, || self.child.try_wait().unwrap()).is_none() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

#[test]
fn prometheus_scrapes_it() {
    let node = Node::new(2);
    let agent = node.start();
    promtool_is_silent(&agent.page().text);
    let prometheus = Prometheus::scraping(&agent, &node.path(""));
    assert_eq!(prometheus.value("up"), 1.0);
    assert_eq!(prometheus.value("gpuwarden_gpu_temperature_celsius{gpu=\"1\"}"), 41.0);
    assert_eq!(prometheus.value("count(gpuwarden_gpu_up == 1)"), 2.0);
    assert_eq!(prometheus.value("gpuwarden_source_up{source=\"nvml\"}"), 1.0);
}

#[test]
fn each_page_is_there_and_says_what_it_is() {
    let node = Node::new(1);
    let agent = node.start();
    let answer = agent.get("/metrics").unwrap();
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert_eq!(agent.get("/nothing").unwrap().status, 404);
    let page = agent.get("/").unwrap();
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let status = agent.get("/api/v1/status").unwrap().json();
    assert!(status.to_string().contains("GPU-00000000-0000-4000-8000-000000000000"), "{status}");
}
