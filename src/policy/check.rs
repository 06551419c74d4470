//! What a rule must not say: facts that its subject does not have, rungs that can never be climbed, acts without a warning.

use std::time::Duration;

use super::condition::Condition;
use super::rule::{About, Action, Rule, Signal, Targets};

/// What is wrong, and where: a path into the file, from its top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    pub at: Vec<Step>,
    pub what: String,
}

/// A step down into a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To the value of a key.
    Key(String),
    /// To an item of a list.
    Item(usize),
    /// To a key itself, the one that comes that many times after the first of its name. The last step of its path.
    Name(String, usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(item: usize) -> Self {
        Self::Item(item)
    }
}

/// A path: `steps!["rules", 2, "then", 0]`.
macro_rules! steps {
    ($($step:expr),* $(,)?) => { vec![$($crate::policy::check::Step::from($step)),*] };
}
pub(crate) use steps;

/// Complaints about the rules of one file, as it stands under its key `rules`. `channels` are those that exist.
pub fn rules(rules: &[Rule], channels: &[&str]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let mut check = Check { rule, at: steps!["rules", number], complaints: &mut complaints };
        check.description();
        check.subject();
        check.conditions();
        check.ladder(channels);
    }
    complaints
}

struct Check<'a> {
    rule: &'a Rule,
    at: Vec<Step>,
    complaints: &'a mut Vec<Complaint>,
}

/// Which of the three lists a condition stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Among,
    When,
    Unless,
}

impl Check<'_> {
    fn complain(&mut self, below: Vec<Step>, what: impl Into<String>) {
        let at = self.at.iter().cloned().chain(below).collect();
        self.complaints.push(Complaint { at, what: what.into() });
    }

    fn description(&mut self) {
        let text = &self.rule.description;
        if text.trim().is_empty() || text.trim_end().contains('\n') || text.chars().count() > 300 {
            self.complain(steps!["description"], "expected one sentence of at most 300 characters, in one line");
        }
        if self.rule.name.as_str().len() > 64 {
            self.complain(steps!["name"], "the name is too long, expected at most 64 characters");
        }
    }

    fn subject(&mut self) {
        let rule = self.rule;
        if rule.per_gpu && rule.about != About::User {
            let what = format!("`per_gpu` has no meaning about a {}, expected `about: user`", rule.about.as_str());
            self.complain(vec![name("per_gpu")], what);
        }
        if !rule.among.is_empty() && rule.about != About::User {
            let what = format!("`among` has no meaning about a {}, expected `about: user`", rule.about.as_str());
            self.complain(vec![name("among")], what);
        }
        if rule.targets != Targets::Newest && (rule.about != About::User || !rule.acts()) {
            let what = "`targets` has no meaning here, expected a rule about users with a rung that acts";
            self.complain(vec![name("targets")], what);
        }
        if rule.without_warning && !rule.acts() {
            let what = "`without_warning` has no meaning here, expected a rung that acts, such as `signal: TERM`";
            self.complain(vec![name("without_warning")], what);
        }
    }

    fn conditions(&mut self) {
        let rule = self.rule;
        for (key, list, conditions) in [
            ("among", List::Among, &rule.among),
            ("when", List::When, &rule.when),
            ("unless", List::Unless, &rule.unless),
        ] {
            for (item, condition) in conditions.iter().enumerate() {
                self.condition(condition, list, list != List::Unless, steps![key, item]);
            }
        }
    }

    /// `wanted`: whether the rule holds while the condition is true, or while it is false.
    fn condition(&mut self, condition: &Condition, list: List, wanted: bool, at: Vec<Step>) {
        let below = |steps: Vec<Step>| at.iter().cloned().chain(steps).collect::<Vec<_>>();
        let fact = condition.fact();
        match condition {
            Condition::Any(parts) | Condition::All(parts) => {
                for (item, part) in parts.iter().enumerate() {
                    self.condition(part, list, wanted, below(steps![fact, item]));
                }
            }
            Condition::Not(part) => self.condition(part, list, !wanted, below(steps![fact])),
            leaf => {
                if list != List::Among || self.rule.about == About::User {
                    self.fact(leaf, list, below(vec![name(fact)]));
                }
                self.value(leaf, wanted, below(steps![fact]));
            }
        }
    }

    fn fact(&mut self, leaf: &Condition, list: List, at: Vec<Step>) {
        let (about, per_gpu) = (self.rule.about, self.rule.per_gpu);
        if list == List::Among {
            if !is_fact_of(leaf.fact(), About::Process, false) {
                let what = format!(
                    "`{}` is not known of a process, expected one of {}",
                    leaf.fact(),
                    facts_of(About::Process, false)
                );
                self.complain(at, what);
            }
        } else if !is_fact_of(leaf.fact(), about, per_gpu) {
            let subject = if about == About::User && per_gpu { "user on a GPU" } else { about.as_str() };
            let hint = if about == About::User && is_fact_of(leaf.fact(), about, true) {
                "; with `per_gpu: true` it can be asked"
            } else if about == About::User && is_fact_of(leaf.fact(), About::Process, false) {
                "; in `among` it can be asked"
            } else {
                ""
            };
            let known = facts_of(about, per_gpu);
            self.complain(at, format!("`{}` is not known of a {subject}, expected one of {known}{hint}", leaf.fact()));
        }
    }

    fn value(&mut self, leaf: &Condition, wanted: bool, at: Vec<Step>) {
        match leaf {
            Condition::Utilization(compare) if compare.with.0 > 100.0 => {
                self.complain(at, "a utilization is never above 100%, expected a share up to that");
            }
            // What is wanted to be small adds up over the pauses of a job that works in bursts.
            Condition::Utilization(compare)
                if self.rule.acts()
                    && self.rule.clear_after.0 != Duration::ZERO
                    && compare.how.is_upper_bound() == wanted =>
            {
                let what = "an upper bound of utilization in a rule that acts would add up pauses, expected `clear_after: 0s` in this rule";
                self.complain(at, what);
            }
            leaf => {
                if let Some(what) = not_a_uid(leaf) {
                    self.complain(at, what);
                }
            }
        }
    }

    fn ladder(&mut self, channels: &[&str]) {
        let rule = self.rule;
        let (mut warned, mut termed, mut complained) = (rule.without_warning, false, false);
        for (number, rung) in rule.then.rungs().iter().enumerate() {
            let key = if rung.action.is_act() { "signal" } else { rung.action.as_str() };
            for (item, channel) in rung.action.channels().iter().enumerate() {
                if !channels.contains(&channel.0.as_str()) {
                    let what = format!("unknown channel `{channel}`, expected {}", one_of(channels));
                    self.complain(steps!["then", number, key, item], what);
                }
            }
            let what = match rung.action {
                Action::Warn(_) if rule.about == About::Gpu => {
                    Some("a GPU has no owner to warn, expected `alert` or `inform`".to_owned())
                }
                Action::Inform(_) if rule.about == About::User && !rule.per_gpu => {
                    Some("`inform` needs a subject on one GPU, expected `per_gpu: true` in this rule".to_owned())
                }
                Action::Signal(_) if rule.about == About::Gpu => {
                    Some("nothing can be signalled about a GPU, expected `about: process` or `about: user`".to_owned())
                }
                Action::Signal(_) if !warned && !complained => {
                    complained = true;
                    Some(
                        "an act before any warning, expected a rung with `warn` before it, or `without_warning: true`"
                            .to_owned(),
                    )
                }
                Action::Signal(Signal::Kill) if !termed => Some(
                    "a KILL never comes before its own TERM, expected a rung with `signal: TERM` before it".to_owned(),
                ),
                _ => None,
            };
            if let Some(what) = what {
                self.complain([steps!["then", number].as_slice(), &[name(key)]].concat(), what);
            }
            warned |= matches!(rung.action, Action::Warn(_));
            termed |= rung.action == Action::Signal(Signal::Term);
        }
    }
}

/// Complaints about the values of conditions that stand as keys below that path, as those of an exemption do.
pub fn values(conditions: &[Condition], at: Vec<Step>) -> Vec<Complaint> {
    let complaint = |leaf: &Condition| {
        let at = at.iter().cloned().chain(steps![leaf.fact()]).collect();
        not_a_uid(leaf).map(|what| Complaint { at, what })
    };
    conditions.iter().filter_map(complaint).collect()
}

fn not_a_uid(leaf: &Condition) -> Option<String> {
    let Condition::Uid(words) = leaf else { return None };
    let number = |word: &str| word.bytes().all(|b| b.is_ascii_digit() || b == b'*');
    let word = words.iter().find(|word| !number(word))?;
    Some(format!("`{word}` is not a uid, expected a number; a name goes by `user`"))
}

fn name(key: &str) -> Step {
    Step::Name(key.to_owned(), 0)
}

const FACTS: [&str; 16] = [
    "assigned",
    "assigned_to_other",
    "memory",
    "utilization",
    "gpus",
    "processes",
    "age",
    "user",
    "group",
    "uid",
    "command",
    "executable",
    "kind",
    "gpu",
    "gpu_name",
    "time",
];

/// The table of facts and of whom they can be asked.
fn is_fact_of(fact: &str, about: About, per_gpu: bool) -> bool {
    match fact {
        "memory" | "utilization" | "time" => true,
        "assigned" | "assigned_to_other" => about == About::Process || (about == About::User && per_gpu),
        "gpu" | "gpu_name" => about != About::User || per_gpu,
        "user" | "group" | "uid" => about != About::Gpu,
        "gpus" => about == About::User,
        "processes" => about != About::Process,
        _ => about == About::Process,
    }
}

fn facts_of(about: About, per_gpu: bool) -> String {
    let known: Vec<&str> = FACTS.into_iter().filter(|fact| is_fact_of(fact, about, per_gpu)).collect();
    known.join(", ")
}

fn one_of(names: &[&str]) -> String {
    match names {
        [only] => format!("`{only}`"),
        several => format!("one of {}", several.join(", ")),
    }
}
