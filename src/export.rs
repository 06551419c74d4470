//! Tables of metrics: a metric is a row. A [`Cycle`] goes in, Prometheus families come out; nothing is remembered, so no
//! series can be stale.

use std::collections::HashSet;

use prometheus::TextEncoder;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::cycle::{Build, Cycle};

mod series;
mod card;
mod mig;
mod activity;
mod assignment;
mod process;
mod user;
mod rule;
mod source;
mod agent;
#[cfg(test)]
mod tests;

use series::{Kind, Labels, Series, Subject};

/// What every family of the agent begins with, the standard `process_*` excepted.
const PREFIX: &str = "gpuwarden_";

/// The text that is served of one cycle.
pub fn page(cycle: &Cycle) -> Vec<u8> {
    let mut page = Page(String::with_capacity(64 << 10));
    all(cycle, &mut page);
    page.0.into_bytes()
}

/// The text before the first cycle.
pub fn page_before(build: &Build) -> Vec<u8> {
    let mut page = Page::default();
    page.table(&agent::build(), &[*build]);
    page.0.into_bytes()
}

/// Where the rows of all tables go: to the page, or into the documentation.
trait Sink {
    fn table<T: Subject>(&mut self, rows: &[Series<T>], subjects: &[T]);
}

/// Every table, in the order of the page.
fn all(cycle: &Cycle, sink: &mut impl Sink) {
    let cards = card::cards(cycle);
    sink.table(&card::card(), &cards);
    sink.table(&activity::card(), &cards);
    sink.table(&card::node(), &[cycle]);
    let instances = mig::compute_instances(cycle);
    sink.table(&mig::compute_instance(), &instances);
    let instances = mig::gpu_instances(&instances);
    sink.table(&mig::gpu_instance(), &instances);
    sink.table(&activity::gpu_instance(), &instances);
    sink.table(&assignment::table(), &assignment::rights(cycle));
    let shown = process::shown(cycle);
    sink.table(&process::process(), &process::whole(&shown));
    sink.table(&process::on_card(), &shown);
    sink.table(&process::node(), &[cycle]);
    sink.table(&user::info(), &user::people(cycle));
    sink.table(&user::on_card(), &user::on_cards(cycle));
    sink.table(&user::user(), &user::users(cycle));
    sink.table(&user::time(), &user::times(cycle));
    sink.table(&rule::rule(), &rule::rules(cycle));
    sink.table(&rule::node(), &[cycle]);
    sink.table(&source::source(), &cycle.seen.health);
    sink.table(&source::node(), &[cycle]);
    sink.table(&agent::cycle(), &[cycle]);
    sink.table(&agent::build(), &[cycle.setup.build]);
    sink.table(&agent::process(), &[cycle]);
}

/// Each family becomes text as soon as it is made: all of them at once would be many times the page.
#[derive(Default)]
struct Page(String);

impl Sink for Page {
    fn table<T: Subject>(&mut self, rows: &[Series<T>], subjects: &[T]) {
        let labels: Vec<_> = subjects.iter().map(|subject| pairs(subject.labels())).collect();
        for family in rows.iter().filter_map(|row| family(row, subjects, &labels)) {
            encode(family, &mut self.0);
        }
    }
}

/// A family that is made here is whole, so only a broken encoder could fail.
fn encode(family: MetricFamily, page: &mut String) {
    if let Err(error) = TextEncoder::new().encode_utf8(&[family], page) {
        unreachable!("a family that was made here has a name and a sample: {error}");
    }
}

/// One family, or none where it has no sample.
fn family<T: Subject>(row: &Series<T>, subjects: &[T], labels: &[Vec<LabelPair>]) -> Option<MetricFamily> {
    let mut metrics = Vec::new();
    for (subject, base) in subjects.iter().zip(labels) {
        debug_assert!(base.iter().all(|pair| T::LABELS.contains(&pair.name())), "labels of {}", row.name);
        row.read.each(subject, |more, value| {
            debug_assert!(more.iter().all(|(name, _)| row.labels.contains(name)), "labels of {}", row.name);
            let mut labels = base.clone();
            labels.extend(pairs(more));
            metrics.push(metric(row.kind, labels, value));
        });
    }
    once(&mut metrics);
    (!metrics.is_empty()).then(|| named(row, metrics))
}

/// Two samples with equal labels would make the whole scrape fail: the first counts.
fn once(metrics: &mut Vec<Metric>) {
    let mut seen = HashSet::with_capacity(metrics.len());
    let first: Vec<bool> = metrics.iter().map(|metric| seen.insert(given(metric))).collect();
    let mut first = first.into_iter();
    metrics.retain(|_| first.next() == Some(true));
}

/// Its labels, the same in whatever order; an empty value is the same as none.
fn given(metric: &Metric) -> Vec<(&str, &str)> {
    let pairs = metric.get_label().iter().map(|pair| (pair.name(), pair.value()));
    let mut given: Vec<_> = pairs.filter(|(_, value)| !value.is_empty()).collect();
    given.sort_unstable();
    given
}

fn named<T>(row: &Series<T>, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(row.full_name());
    family.set_help(row.help.to_owned());
    family.set_field_type(match row.kind {
        Kind::Gauge => MetricType::GAUGE,
        Kind::Counter => MetricType::COUNTER,
    });
    family.set_metric(metrics);
    family
}

fn metric(kind: Kind, labels: Vec<LabelPair>, value: f64) -> Metric {
    let mut metric = Metric::from_label(labels);
    match kind {
        Kind::Gauge => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Kind::Counter => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
    }
    metric
}

fn pairs(labels: Labels) -> Vec<LabelPair> {
    labels.into_iter().map(|(name, value)| pair(name, value)).collect()
}

fn pair(name: &str, value: String) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}
