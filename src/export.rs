//! Tables of metrics: a metric is a row. A [`Cycle`] goes in, Prometheus families come out; nothing is remembered, so no
//! series can be stale.

use crate::cycle::{Build, Cycle};

mod series;
mod text;
mod card;
mod xid;
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

use series::{Series, Subject};
use text::Page;

/// What every family of the agent begins with, the standard `process_*` excepted.
const PREFIX: &str = "gpuwarden_";

/// The text that is served of one cycle.
pub fn page(cycle: &Cycle) -> Vec<u8> {
    let mut page = Page::new();
    all(cycle, &mut page);
    page.into_bytes()
}

/// The text before the first cycle.
pub fn page_before(build: &Build) -> Vec<u8> {
    let mut page = Page::new();
    page.table(&agent::build(), &[*build]);
    page.into_bytes()
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
    sink.table(&xid::rows(), &xid::cards(cycle));
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
    sink.table(&user::on_card(), &user::on_cards(cycle, &cards));
    sink.table(&user::user(), &user::users(cycle, &cards));
    sink.table(&user::time(), &user::times(cycle));
    sink.table(&rule::rule(), &rule::rules(cycle));
    sink.table(&rule::node(), &[cycle]);
    sink.table(&source::source(), &cycle.seen.health);
    sink.table(&source::node(), &[cycle]);
    sink.table(&agent::cycle(), &[cycle]);
    sink.table(&agent::build(), &[cycle.setup.build]);
    sink.table(&agent::process(), &[cycle]);
}
