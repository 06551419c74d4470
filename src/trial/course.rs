//! What the policy makes of the node, cycle after cycle, and what comes of that.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Trial;
use super::node::Node;
use crate::policy::{
    self, Card, Deed, EpisodeKey, Fate, Guard, Judgement, Outcome, Person, RuleName, Signal, State, Subject, Verdict,
};
use crate::snapshot::{ProcessId, Truth};

/// All that happened in a test.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Course {
    pub events: Vec<Event>,
    /// What the rules said of each subject, whenever it changed.
    pub sights: Vec<Sight>,
}

/// What came of one verdict: of a message as a whole, of an act for each target.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub at: Duration,
    pub rule: RuleName,
    pub does: &'static str,
    /// Who was told; of an act and of an alert, whose process it is.
    pub people: Vec<Person>,
    pub pids: Vec<i32>,
    pub gpus: Vec<u32>,
    pub result: Fate,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sight {
    pub at: Duration,
    pub rule: RuleName,
    pub subject: String,
    /// `None` while the subject is not seen.
    pub truth: Option<Truth>,
    /// What it was judged by.
    pub evidence: String,
}

pub fn run(trial: &Trial) -> Course {
    let mut run = Run {
        trial,
        node: Node::new(trial),
        state: State::default(),
        seen: BTreeMap::new(),
        course: Course::default(),
    };
    let interval = trial.script.interval.0;
    let mut time = Duration::ZERO;
    while time <= trial.end {
        if trial.script.restart.iter().any(|restart| trial.cycle_at(restart.0) == time) {
            run.restart();
        }
        run.cycle(time);
        time += interval;
    }
    run.course
}

struct Run<'a> {
    trial: &'a Trial,
    node: Node<'a>,
    state: State,
    /// What each rule last said of each subject.
    seen: BTreeMap<EpisodeKey, Sight>,
    course: Course,
}

impl Run<'_> {
    fn cycle(&mut self, time: Duration) {
        let now = self.node.observe(time);
        let mode = *self.trial.script.mode.at(time);
        let step = if mode == self.trial.rules.mode {
            policy::step(&self.trial.rules, &now, &self.state)
        } else {
            policy::step(&policy::Rules { mode, ..self.trial.rules.clone() }, &now, &self.state)
        };
        self.notice(time, &step.judgements);
        let outcomes: Vec<Outcome> = step.verdicts.iter().flat_map(|verdict| self.carry_out(verdict, time)).collect();
        self.state = policy::settle(step.state, &outcomes, now.at);
    }

    /// What was to be written down is written and read again, as JSON.
    fn restart(&mut self) {
        let written = serde_json::to_string(&self.state);
        let read = written.and_then(|text| serde_json::from_str(&text)).expect("what was written can be read again");
        (self.state, _) = policy::resume(read);
        self.node.restart();
    }

    fn notice(&mut self, time: Duration, judgements: &[Judgement]) {
        for judgement in judgements {
            if self.seen.get(&judgement.key).is_none_or(|before| before.truth != Some(judgement.truth)) {
                let sight = Sight::of(judgement, time);
                self.seen.insert(judgement.key.clone(), sight.clone());
                self.course.sights.push(sight);
            }
        }
        let gone = |key: &EpisodeKey| !judgements.iter().any(|judgement| judgement.key == *key);
        for (_, sight) in self.seen.extract_if(.., |key, _| gone(key)) {
            self.course.sights.push(Sight { at: time, truth: None, evidence: String::new(), ..sight });
        }
    }

    /// Does nothing and says what would have come of it, on a node without fuses.
    fn carry_out(&mut self, verdict: &Verdict, time: Duration) -> Vec<Outcome> {
        let outcomes = match verdict.deed() {
            Deed::Signal(signal) => self.signal(verdict, *signal),
            _ => vec![self.tell(verdict, time)],
        };
        let told_nobody = matches!(verdict.deed(), Deed::Inform { to, .. } if to.is_empty());
        if !told_nobody {
            self.course.events.extend(outcomes.iter().map(|outcome| Event::of(verdict, outcome, time)));
        }
        outcomes
    }

    fn signal(&mut self, verdict: &Verdict, signal: Signal) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for target in verdict.targets() {
            let result = match target.objection {
                Some(guard) => Fate::Refused(guard),
                None if !verdict.mode().carries_out(true) => Fate::Rehearsed,
                None => Fate::Done,
            };
            if result == Fate::Done && self.dies_on(target.process, signal) {
                self.node.end(target.process);
            }
            outcomes.push(outcome(verdict, Some(target.process), result));
        }
        outcomes
    }

    fn dies_on(&self, process: ProcessId, signal: Signal) -> bool {
        let fatal = self.node.actor(process).and_then(|actor| actor.dies_on);
        fatal.is_some_and(|fatal| signal == fatal || signal == Signal::Kill)
    }

    fn tell(&self, verdict: &Verdict, time: Duration) -> Outcome {
        if !verdict.mode().carries_out(false) {
            return outcome(verdict, None, Fate::Rehearsed);
        }
        let result = match verdict.deed() {
            // Nobody to inform is nothing to do; nobody to warn is a warning that reached nobody.
            Deed::Warn { to, .. } if to.is_empty() => Fate::Refused(Guard::Unreachable),
            Deed::Warn { to, .. } | Deed::Inform { to, .. } | Deed::AllClear { to, .. } => {
                let all = to.iter().all(|person| self.is_reached(person, time));
                if all { Fate::Done } else { Fate::Refused(Guard::Unreachable) }
            }
            Deed::Alert { .. } | Deed::Signal(_) => Fate::Done,
        };
        outcome(verdict, None, result)
    }

    fn is_reached(&self, person: &Person, time: Duration) -> bool {
        let mut undelivered = self.trial.script.undelivered.iter();
        !undelivered.any(|(name, periods)| self.trial.cast.uid(name) == Some(person.uid) && periods.contain(time))
    }
}

fn outcome(verdict: &Verdict, target: Option<ProcessId>, result: Fate) -> Outcome {
    Outcome {
        key: verdict.key().clone(),
        rung: verdict.rung(),
        deed: verdict.deed().clone(),
        owner: verdict.owner().cloned(),
        target,
        result,
    }
}

impl Event {
    fn of(verdict: &Verdict, outcome: &Outcome, at: Duration) -> Self {
        let people = match &outcome.deed {
            Deed::Warn { to, .. } | Deed::Inform { to, .. } | Deed::AllClear { to, .. } => to.clone(),
            Deed::Alert { .. } | Deed::Signal(_) => outcome.owner.iter().cloned().collect(),
        };
        let concerned =
            verdict.targets().iter().filter(|target| outcome.target.is_none_or(|hit| hit == target.process));
        let mut pids: Vec<i32> = concerned.clone().map(|target| target.process.pid).collect();
        if let (true, Subject::Process { id, .. }) = (pids.is_empty(), &verdict.key().subject) {
            pids.push(id.pid);
        }
        let cards: Vec<&Card> = match verdict.gpu() {
            Some(card) => vec![card],
            None => concerned.flat_map(|target| &target.cards).collect(),
        };
        let mut gpus: Vec<u32> = cards.into_iter().map(|card| card.index).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let (rule, does, result) = (outcome.key.rule.clone(), outcome.deed.as_str(), outcome.result.clone());
        Self { at, rule, does, people, pids, gpus, result }
    }
}

impl Sight {
    fn of(judgement: &Judgement, at: Duration) -> Self {
        let seen =
            judgement.evidence.iter().map(|part| format!("{}: {} ({})", part.fact, part.value, part.truth.as_str()));
        let pid = match &judgement.key.subject {
            Subject::Process { id, .. } => Some(format!("pid {}", id.pid)),
            Subject::User { .. } | Subject::Gpu { .. } => None,
        };
        let owner = judgement.owner.as_ref().map(|person| person.name.to_string());
        let gpu = judgement.gpu.as_ref().map(|card| format!("GPU {}", card.index));
        Self {
            at,
            rule: judgement.key.rule.clone(),
            subject: [pid, owner, gpu].into_iter().flatten().collect::<Vec<_>>().join(", "),
            truth: Some(judgement.truth),
            evidence: seen.collect::<Vec<_>>().join(", "),
        }
    }
}
