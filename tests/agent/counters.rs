//! Counters that Prometheus can trust.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use nvml_sim::scenario::{Init, Latency};
use nvml_sim::units::{Load, Percent};
use nvml_sim::value::Error;

use crate::harness::worker::SLEEPS;
use crate::harness::{Agent, Node, Page, root};
use crate::ladder::UNASSIGNED;

/// Counters that restart with the driver.
const OF_THE_DRIVER: [&str; 6] = [
    "gpuwarden_gpu_energy_joules_total",
    "gpuwarden_gpu_clock_event_seconds_total",
    "gpuwarden_gpu_pcie_replays_total",
    "gpuwarden_gpu_pcie_bytes_total",
    "gpuwarden_gpu_nvlink_bytes_total",
    "gpuwarden_gpu_ecc_errors_total",
];

/// What each counter was when it was last seen.
#[derive(Default)]
struct Seen(BTreeMap<(String, BTreeMap<String, String>), f64>);

impl Seen {
    fn look(&mut self, page: &Page) {
        let counters: BTreeSet<&str> =
            page.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
        for sample in page.samples.iter().filter(|sample| counters.contains(sample.name.as_str())) {
            let before = self.0.insert((sample.name.clone(), sample.labels.clone()), sample.value);
            let fell = before.is_some_and(|before| sample.value < before);
            assert!(!fell, "{}{:?} was {before:?} and is {}", sample.name, sample.labels, sample.value);
        }
    }

    /// Looks at every page until one shows something, and then at those of some cycles more.
    fn until(&mut self, agent: &Agent, what: &str, shows: impl Fn(&Page) -> bool) {
        let pages = RefCell::new(Vec::new());
        agent.shows(what, |page| {
            pages.borrow_mut().push(page.clone());
            shows(page)
        });
        pages.into_inner().iter().for_each(|page| self.look(page));
        for _ in 0..3 {
            self.look(&agent.cycles(1));
        }
    }
}

#[test]
fn no_counter_falls_while_the_agent_lives() {
    if !root("several people") {
        return;
    }
    const NVML: &[(&str, &str)] = &[("source", "nvml")];
    let up = |page: &Page| page.value("gpuwarden_source_up", NVML) == Some(1.0);
    let is_lost = |page: &Page| page.value("gpuwarden_gpu_up", &[("gpu", "1")]) == Some(0.0);
    let mut node = Node::new(2);
    let settings = "mode: warn\nassignments: {fixed: []}";
    node.configure(settings);
    node.rules(UNASSIGNED);
    let alice = node.runs_on_terminal(node.alice, SLEEPS);
    let bob = node.runs(node.bob, SLEEPS);
    let busy = |percent| Some(Load::Steady(Percent(percent)));
    node.change(|scenario| scenario.defaults.utilization = Load::Steady(Percent(80)).into());
    node.held(0, &[&nvml_sim::Process { utilization: busy(70), ..alice.with(10) }]);
    node.held(1, &[&nvml_sim::Process { utilization: busy(20), ..bob.with(5) }]);
    let agent = node.start();
    let mut seen = Seen::default();
    seen.until(&agent, "both", |page| page.all("gpuwarden_process_memory_bytes", &[]).count() == 2);

    node.change(|scenario| {
        scenario.gpus[1].lost = true;
        scenario.gpus[1].xids = vec![79];
    });
    seen.until(&agent, "a lost card", is_lost);
    node.change(|scenario| scenario.gpus[1].lost = false);
    seen.until(&agent, "it is back", |page| !is_lost(page));

    node.change(|scenario| scenario.latency = [("nvmlDevice*".into(), Latency::Hang)].into());
    seen.until(&agent, "a hang", |page| !up(page));
    node.change(|scenario| scenario.latency.clear());
    seen.until(&agent, "it answers", up);

    node.change(|scenario| {
        scenario.init = Init::Failing(Error::DRIVER_NOT_LOADED);
        scenario.errors = [("*".into(), Error::UNINITIALIZED)].into();
    });
    seen.until(&agent, "no driver", |page| !up(page));
    // What the driver counts begins again with the driver, and is shown as it is.
    seen.0.retain(|(family, _), _| !OF_THE_DRIVER.contains(&family.as_str()));
    node.change(|scenario| (scenario.init, scenario.errors) = (Init::Ok, [].into()));
    seen.until(&agent, "the driver is loaded again", up);

    node.configure(&format!("{settings}\nmetrics: {{processes: 1}}"));
    assert!(agent.reload());
    seen.look(&agent.cycles(2));
    node.held(0, &[]);
    seen.until(&agent, "alice is gone", |page| page.value("gpuwarden_gpu_holders", &[("gpu", "0")]) == Some(0.0));
    node.held(0, &[&alice.with(10)]);
    seen.until(&agent, "alice is back", |page| page.value("gpuwarden_gpu_holders", &[("gpu", "0")]) == Some(1.0));

    let named = |name: &str| seen.0.iter().filter(|((family, _), value)| family == name && **value > 0.0).count();
    for family in ["gpu_busy_seconds_total", "user_energy_joules_total", "nvml_errors_total", "gpu_xid_errors_total"] {
        assert!(named(&format!("gpuwarden_{family}")) > 0, "{family} never moved");
    }
}
