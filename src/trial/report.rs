//! What was expected beside what came, in the order of time.

use std::fmt::Write;
use std::time::Duration;

use super::course::{Course, Event, Sight};
use super::{Expectation, Outcome, Trial};
use crate::policy::{Fate, RuleName};
use crate::units::Span;

pub fn compare(trial: &Trial, course: &Course) -> Outcome {
    let happened: Vec<&Event> = course.events.iter().filter(|event| event.result == Fate::Done).collect();
    let missing: Vec<&Expectation> =
        trial.expected.iter().filter(|expected| !happened.iter().any(|event| expected.is_met_by(event))).collect();
    let is_expected = |event: &Event| trial.expected.iter().any(|expected| expected.is_met_by(event));
    let surplus = happened.iter().filter(|event| !is_expected(event)).count();
    let passed = missing.is_empty() && (surplus == 0 || !trial.nothing_else);
    if passed {
        let count = match trial.expected.len() {
            0 => "nothing".to_owned(),
            some => some.to_string(),
        };
        return Outcome { passed, text: format!("ok      {} ({count} as expected)\n", trial.title) };
    }
    let mut lines: Vec<Line> = missing.into_iter().map(Line::missing).collect();
    lines.extend(happened.into_iter().map(|event| match (is_expected(event), trial.nothing_else) {
        (true, _) => Line::event(' ', event, ""),
        (false, true) => Line::event('+', event, ""),
        (false, false) => Line::event(' ', event, "(not asked about)"),
    }));
    lines.extend(not_done(course));
    lines.extend(course.sights.iter().map(Line::sight));
    Outcome { passed, text: block(&trial.title, lines) }
}

impl Expectation {
    fn is_met_by(&self, event: &Event) -> bool {
        self.at == event.at
            && self.rule == event.rule
            && self.does.0 == event.does
            && self.pid.is_none_or(|pid| event.pids.contains(&pid))
            && self.gpu.is_none_or(|gpu| event.gpus.contains(&gpu))
            && self.user.as_ref().is_none_or(|(_, uid)| event.people.iter().any(|person| person.uid == *uid))
    }
}

/// `-` was expected and did not come, `+` came and was not expected, `.` is what the rules saw on the way.
struct Line {
    at: Duration,
    mark: char,
    rule: RuleName,
    what: String,
}

impl Line {
    fn missing(expected: &Expectation) -> Self {
        let pid = expected.pid.map(|pid| format!("pid {pid}"));
        let user = expected.user.as_ref().map(|(name, _)| name.clone());
        let gpu = expected.gpu.map(|gpu| format!("GPU {gpu}"));
        let whom: Vec<String> = [pid, user, gpu].into_iter().flatten().collect();
        let what = format!("{} {}", expected.does.0, whom.join(", "));
        Self { at: expected.at, mark: '-', rule: expected.rule.clone(), what }
    }

    fn event(mark: char, event: &Event, remark: &str) -> Self {
        let pids = event.pids.iter().map(|pid| format!("pid {pid}"));
        let people = event.people.iter().map(|person| person.name.to_string());
        let gpus = event.gpus.iter().map(|gpu| format!("GPU {gpu}"));
        let whom: Vec<String> = pids.chain(people).chain(gpus).collect();
        let what = format!("{} {} {remark}", event.does, whom.join(", "));
        Self { at: event.at, mark, rule: event.rule.clone(), what: what.trim_end().to_owned() }
    }

    fn sight(sight: &Sight) -> Self {
        let truth = sight.truth.map_or("not seen", |truth| truth.as_str());
        let evidence = if sight.evidence.is_empty() { String::new() } else { format!("; {}", sight.evidence) };
        let what = format!("{}: {truth}{evidence}", sight.subject);
        Self { at: sight.at, mark: '.', rule: sight.rule.clone(), what }
    }
}

/// What was tried and not done, once for as long as it stays the same.
fn not_done(course: &Course) -> impl Iterator<Item = Line> {
    let mut told: Vec<(&Event, Duration)> = Vec::new();
    for event in course.events.iter().filter(|event| event.result != Fate::Done) {
        match told.iter_mut().find(|(before, _)| Event { at: before.at, ..event.clone() } == **before) {
            Some((_, last)) => *last = event.at,
            None => told.push((event, event.at)),
        }
    }
    told.into_iter().map(|(event, last)| {
        let result = match &event.result {
            Fate::Refused(guard) => format!("refused: {}", guard.as_str()),
            other => other.as_str().to_owned(),
        };
        let span = if last > event.at { format!(", last at {}", Span(last)) } else { String::new() };
        Line::event('.', event, &format!("({result}{span})"))
    })
}

fn block(title: &str, mut lines: Vec<Line>) -> String {
    lines.sort_by_key(|line| (line.at, line.mark == ' ' || line.mark == '+' || line.mark == '-'));
    let wide = lines.iter().map(|line| line.rule.as_str().len()).max();
    let mut text = format!("FAILED  {title}\n        - expected, + got, . seen on the way\n");
    for Line { at, mark, rule, what } in lines {
        let at = Span(at).to_string();
        writeln!(text, "        {mark} {at:>8}  {:width$}  {what}", rule.as_str(), width = wide.unwrap_or_default())
            .expect("text grows");
    }
    text
}
