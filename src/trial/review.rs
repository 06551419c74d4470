//! What a rule test must not say: names that nothing bears, pids that two hold at once, moments after its end.

use std::time::Duration;

use super::cast::Cast;
use super::node;
use super::script::{Actor, Expect, Script};
use super::timed::{Known, Timed};
use crate::policy::check::{self, Complaint, Step, steps};
use crate::policy::rule::About;
use crate::policy::{RuleName, Rules};
use crate::snapshot::GpuSelector;
use crate::source::assignment::entry::{Entry, To};
use crate::units::{Percent, Span};

/// More cycles take minutes, and nobody means them.
const MOST_CYCLES: u128 = 10_000_000;

/// No host has more cards.
const MOST_GPUS: u32 = 64;

pub fn complaints(script: &Script, rules: &Rules, cast: &Cast) -> Vec<Complaint> {
    if script.interval.0.is_zero() {
        let what = "no time, expected an interval such as 5s".into();
        return vec![Complaint { at: steps!["interval"], what }];
    }
    let mut review = Review { script, cast, end: super::end(script), complaints: Vec::new() };
    review.bounds();
    if review.complaints.is_empty() {
        script.processes.iter().enumerate().for_each(|(number, actor)| review.process(number, actor));
        review.assignments();
        review.exempt(rules);
        review.faults();
        review.purpose(rules);
        script.expect.iter().enumerate().for_each(|(number, expect)| review.expect(number, expect, rules));
    }
    review.complaints
}

struct Review<'a> {
    script: &'a Script,
    cast: &'a Cast,
    end: Duration,
    complaints: Vec<Complaint>,
}

impl Review<'_> {
    fn complain(&mut self, at: Vec<Step>, what: impl Into<String>) {
        self.complaints.push(Complaint { at, what: what.into() });
    }

    fn bounds(&mut self) {
        if self.end.as_nanos() / self.script.interval.0.as_nanos() > MOST_CYCLES {
            let last = if self.script.until.is_some() { "until" } else { "interval" };
            self.complain(steps![last], "too many cycles, expected a shorter test or a longer `interval`");
        }
        if !(1..=MOST_GPUS).contains(&self.script.gpus.count) {
            self.complain(steps!["gpus", "count"], format!("expected 1 to {MOST_GPUS} GPUs"));
        }
        let nothing_else = Expect { nothing_else: Some(true), ..Expect::default() };
        if self.script.until.is_none() && self.script.expect.iter().all(|expect| *expect == nothing_else) {
            self.complain(steps!["expect"], "nothing says when the test ends, expected `until:` or an item with `at`");
        }
        if self.script.gpus.utilization.as_ref().is_some_and(is_above_all) {
            self.complain(steps!["gpus", "utilization"], ABOVE_ALL);
        }
    }

    /// Where there is nobody to judge, nothing comes of any rule, and the test would show nothing.
    fn purpose(&mut self, rules: &Rules) {
        let gpus = rules.rules.iter().any(|rule| rule.about == About::Gpu);
        if self.script.processes.is_empty() && !gpus {
            self.complain(steps!["expect"], "there is nobody to judge, expected `processes:` with one at least");
        }
    }

    fn process(&mut self, number: usize, actor: &Actor) {
        let at = |key: &str| steps!["processes", number, key];
        if actor.pid <= 0 {
            self.complain(at("pid"), "expected a pid above 0");
        }
        if actor.until.is_some_and(|until| until <= actor.from) {
            self.complain(at("until"), "not after its `from`, expected a later moment");
        }
        let count = self.script.gpus.count;
        if let Some(index) = actor.gpu.values().flat_map(|indexes| &indexes.0).find(|index| **index >= count) {
            self.complain(at("gpu"), no_gpu(*index, count));
        }
        if actor.gpu.values().all(|indexes| indexes.0.is_empty()) {
            self.complain(at("gpu"), "no GPU at any time, expected one at least");
        }
        if is_above_all(&actor.utilization) {
            self.complain(at("utilization"), ABOVE_ALL);
        }
        self.not_late(at("from"), actor.from.0);
        self.not_late(at("gpu"), actor.gpu.last_change());
        self.not_late(at("memory"), actor.memory.last_change());
        self.not_late(at("utilization"), actor.utilization.last_change());
        if let Some(other) = self.script.processes[..number].iter().find(|other| collide(other, actor)) {
            let what = format!(
                "pid {} is held by another process from {}; a process on several cards has the same `from`, `until` and owner in each entry",
                other.pid, other.from
            );
            self.complain(at("pid"), what);
        }
    }

    fn assignments(&mut self) {
        let Some(assignments) = &self.script.assignments else { return };
        self.not_late(steps!["assignments"], assignments.last_change());
        let timed = assignments.changes().len() > 1;
        for (from, entries) in assignments.changes() {
            let at =
                if timed { steps!["assignments", Span(*from).to_string().as_str()] } else { steps!["assignments"] };
            entries.iter().enumerate().for_each(|(number, entry)| self.entry(entry, &at, number));
        }
    }

    fn entry(&mut self, entry: &Entry, at: &[Step], number: usize) {
        let below = |steps: Vec<Step>| [at, &steps].concat();
        if let To::Group(group) = &entry.to
            && !self.cast.has_group(group)
        {
            self.complain(below(steps![number, "to", "group"]), format!("group `{group}` is not among `groups`"));
        }
        if let Some(fault) = entry.fault() {
            self.complain(below(steps![number, "until"]), fault);
        }
        let cards = node::cards(&self.script.gpus);
        for (item, selector) in entry.gpus.iter().enumerate() {
            if let GpuSelector::Indexes(_, last) = selector
                && *last >= self.script.gpus.count
            {
                self.complain(below(steps![number, "gpus", item]), no_gpu(*last, self.script.gpus.count));
            } else if !cards.iter().any(|card| selector.matches(card).is_true()) {
                self.complain(below(steps![number, "gpus", item]), format!("`{selector}` names no GPU of this test"));
            }
        }
    }

    fn exempt(&mut self, rules: &Rules) {
        for (number, exemption) in self.script.exempt.iter().enumerate() {
            self.complaints.extend(check::values(&exemption.of, steps!["exempt", number]));
            if let Some(fault) = exemption.fault() {
                self.complain(steps!["exempt", number, "until"], fault);
            }
            for (item, rule) in exemption.rules.iter().enumerate() {
                self.known_rule(steps!["exempt", number, "rules", item], rule, rules);
            }
        }
    }

    fn known_rule(&mut self, at: Vec<Step>, rule: &RuleName, rules: &Rules) {
        if !rules.rules.iter().any(|known| known.name == *rule) {
            let known: Vec<&str> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
            self.complain(at, format!("unknown rule `{rule}`, expected one of {}", known.join(", ")));
        }
    }

    fn faults(&mut self) {
        for (source, periods) in &self.script.silent {
            self.not_late(steps!["silent", source.as_str()], periods.last_start());
        }
        for (name, periods) in &self.script.undelivered {
            let at = steps!["undelivered", name.as_str()];
            if self.cast.uid(name).is_none() {
                self.complain(at.clone(), nobody(name));
            }
            self.not_late(at, periods.last_start());
        }
        for (number, restart) in self.script.restart.iter().enumerate() {
            self.not_late(steps!["restart", number], restart.0);
        }
        self.not_late(steps!["mode"], self.script.mode.last_change());
    }

    /// What lies after the end would be written in vain.
    fn not_late(&mut self, at: Vec<Step>, time: Duration) {
        if time > self.end {
            let (time, end) = (Span(time), Span(self.end));
            self.complain(at, format!("{time} is after the end of the test at {end}, expected a later `until`"));
        }
    }

    fn expect(&mut self, number: usize, expect: &Expect, rules: &Rules) {
        let at = |key: &str| steps!["expect", number, key];
        let whole = steps!["expect", number];
        if self.script.expect[..number].iter().any(|before| self.in_its_cycle(before) == self.in_its_cycle(expect)) {
            return self.complain(whole, "says what an item before it says of the same cycle, expected it once");
        }
        if let Some(nothing_else) = expect.nothing_else {
            if !nothing_else || *expect != (Expect { nothing_else: Some(true), ..Expect::default() }) {
                self.complain(whole, "expected `nothing_else: true` alone");
            }
            return;
        }
        let (Some(time), Some(rule), Some(_)) = (expect.at, &expect.rule, expect.does) else {
            return self.complain(whole, "expected `at`, `rule` and `does`, or `nothing_else: true`");
        };
        if expect.pid.is_none() && expect.user.is_none() && expect.gpu.is_none() {
            self.complain(whole, "nobody is named, expected `pid`, `user` or `gpu`");
        }
        self.not_late(at("at"), super::cycle_at(time.0, self.script.interval.0));
        self.known_rule(at("rule"), rule, rules);
        if let Some(pid) = expect.pid.filter(|pid| !self.script.processes.iter().any(|actor| actor.pid == *pid)) {
            self.complain(at("pid"), format!("no process has pid {pid}"));
        }
        if let Some(name) = expect.user.as_deref().filter(|name| self.cast.uid(name).is_none()) {
            self.complain(at("user"), nobody(name));
        }
        if let Some(index) = expect.gpu.filter(|index| *index >= self.script.gpus.count) {
            self.complain(at("gpu"), no_gpu(index, self.script.gpus.count));
        }
    }

    /// An expectation holds for the first cycle at its time or after.
    fn in_its_cycle(&self, expect: &Expect) -> Expect {
        let cycle = |at: Span| Span(super::cycle_at(at.0, self.script.interval.0));
        Expect { at: expect.at.map(cycle), ..expect.clone() }
    }
}

const ABOVE_ALL: &str = "a utilization is never above 100%, expected shares up to that";

fn is_above_all(utilization: &Timed<Known<Percent>>) -> bool {
    utilization.values().any(|Known(share)| share.is_some_and(|share| share.0 > 100.0))
}

/// Whether two entries cannot both be true: one pid at one time, and not the same process.
fn collide(one: &Actor, other: &Actor) -> bool {
    let ended = |actor: &Actor, at: Span| actor.until.is_some_and(|until| until <= at);
    let same = (one.from, one.until, &one.user, one.uid, &one.command, &one.executable, one.confidence, one.protection)
        == (
            other.from,
            other.until,
            &other.user,
            other.uid,
            &other.command,
            &other.executable,
            other.confidence,
            other.protection,
        );
    one.pid == other.pid && !same && !ended(one, other.from) && !ended(other, one.from)
}

fn nobody(name: &str) -> String {
    format!("nobody in this test is called `{name}`")
}

fn no_gpu(index: u32, count: u32) -> String {
    format!("no GPU {index}, expected 0 to {}", count - 1)
}
