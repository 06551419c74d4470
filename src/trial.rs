//! `gpuwarden test`: rules against a made-up node and a timeline, and whether there came of it what was expected.
//!
//! A file holds one test or, parted by `---`, several. [`script`] is what is written; [`node`] makes of it what the
//! sources would have seen in each cycle, [`course`] runs the policy on that, and [`report`] compares.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::config::check::is_rule_file;
use crate::config::{self, Diagnostic, yaml};
use crate::policy::check::{Complaint, steps};
use crate::policy::{Mode, Rule, RuleName, Rules};
use crate::snapshot::Confidence;
use crate::units::Uid;

pub mod script;
pub mod timed;
mod cast;
mod review;
mod node;
mod course;
mod report;
#[cfg(test)]
mod tests;

use cast::Cast;
use script::{Actor, Does, Expect, Script};

/// A rule test that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// File and line, and its name where it has one.
    title: String,
    script: Script,
    rules: Rules,
    cast: Cast,
    expected: Vec<Expectation>,
    nothing_else: bool,
    end: Duration,
}

/// What must happen, and in which cycle.
#[derive(Debug, Clone, PartialEq)]
struct Expectation {
    at: Duration,
    rule: RuleName,
    pid: Option<i32>,
    user: Option<(String, Uid)>,
    gpu: Option<u32>,
    does: Does,
}

/// How long a test goes on after the last moment at which something is expected.
const AFTERWARDS: Duration = Duration::from_secs(600);

/// Runs the tests of these files and prints what came of them: 0, 1 where a test failed, 78 where a file is broken.
pub fn run(files: &[PathBuf], output: &mut dyn Write) -> io::Result<ExitCode> {
    let mut failed = false;
    let mut broken = false;
    for file in files {
        let read = yaml::read(file).map_err(|error| vec![error]);
        match read.and_then(|text| if is_rule_file(file, &text) { Err(rule_file(file)) } else { parse(file, &text) }) {
            Ok(trials) => {
                for outcome in trials.iter().map(Trial::outcome) {
                    failed |= !outcome.passed;
                    output.write_all(outcome.text.as_bytes())?;
                }
            }
            Err(diagnostics) => {
                broken = true;
                diagnostics.iter().for_each(|diagnostic| eprintln!("{diagnostic}"));
            }
        }
    }
    Ok(ExitCode::from(if broken { 78 } else { u8::from(failed) }))
}

/// What `gpuwarden test rules/*.yaml` takes along.
fn rule_file(path: &Path) -> Vec<Diagnostic> {
    vec![Diagnostic::of_file(path, "a rule file, expected a rule test: these are called `*.test.yaml`")]
}

/// Whether a test passed, and what to tell about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub passed: bool,
    pub text: String,
}

impl Trial {
    pub fn outcome(&self) -> Outcome {
        report::compare(self, &course::run(self))
    }

    /// The first cycle at that time or after.
    fn cycle_at(&self, time: Duration) -> Duration {
        cycle_at(time, self.script.interval.0)
    }
}

fn cycle_at(time: Duration, interval: Duration) -> Duration {
    let cycles = time.as_nanos().div_ceil(interval.as_nanos());
    // Durations here are bounded by `Span`, so this is never cut.
    Duration::from_nanos_u128(cycles * interval.as_nanos())
}

/// What is wrong with a file of tests and the rules that they name.
pub fn errors(path: &Path, text: &str) -> Vec<Diagnostic> {
    parse(path, text).err().into_iter().flatten().collect()
}

/// The tests of a file, and the rules that they name.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Trial>, Vec<Diagnostic>> {
    let mut trials = Vec::new();
    let mut diagnostics = Vec::new();
    for document in documents(text) {
        match read(path, &document) {
            Ok(trial) => trials.push(trial),
            Err(errors) => diagnostics.extend(errors),
        }
    }
    if !diagnostics.is_empty() {
        return Err(yaml::sorted(diagnostics));
    }
    if trials.is_empty() {
        Err(vec![Diagnostic::of_file(path, "an empty file, expected a rule test")])
    } else {
        Ok(trials)
    }
}

/// One of the documents in a file, behind as many empty lines as stand before it, so that places stay what they are.
struct Document {
    line: usize,
    text: String,
}

fn documents(text: &str) -> Vec<Document> {
    let mut documents = vec![Document { line: 1, text: String::new() }];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push(Document { line: number + 2, text: "\n".repeat(number + 1) });
        } else if let Some(document) = documents.last_mut() {
            document.text.push_str(line);
            document.text.push('\n');
        }
    }
    let says_something = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    documents.retain(|document| document.text.lines().any(says_something));
    documents
}

fn read(path: &Path, document: &Document) -> Result<Trial, Vec<Diagnostic>> {
    let parts = [yaml::Part::of_items::<Actor>(steps!["processes"]), yaml::Part::of_items::<Expect>(steps!["expect"])];
    let script: Script = yaml::parse(path, &document.text, "a rule test", &parts)?;
    let locate = |complaints| yaml::locate_all(path, &document.text, complaints);
    let rules = rules(path, &script, locate)?;
    let cast = Cast::of(&script).map_err(|complaint| locate(vec![complaint]))?;
    let title = match &script.name {
        Some(name) => format!("{}:{}: {name}", path.display(), document.line),
        None => format!("{}:{}", path.display(), document.line),
    };
    let complaints = review::complaints(&script, &rules, &cast);
    if complaints.is_empty() { Ok(Trial::new(title, script, rules, cast)) } else { Err(locate(complaints)) }
}

/// The rules that a test names, as if they were enforced.
fn rules(
    path: &Path,
    script: &Script,
    locate: impl Fn(Vec<Complaint>) -> Vec<Diagnostic>,
) -> Result<Rules, Vec<Diagnostic>> {
    let mut rules: Vec<Rule> = Vec::new();
    for (number, file) in script.rules.iter().enumerate() {
        let place = path.with_file_name("").join(file);
        let found = config::load_rules(&place).map_err(|errors| {
            // That a file is not there is the fault of whoever names it.
            let told = |error: Diagnostic| {
                let what = format!("`{}`: {}", file.display(), error.message);
                Complaint { at: steps!["rules", number], what }
            };
            if place.is_file() { errors } else { locate(errors.into_iter().map(told).collect()) }
        })?;
        for rule in found {
            if rules.iter().any(|before| before.name == rule.name) {
                let what = format!("a second rule `{}`, expected unique names", rule.name);
                return Err(locate(vec![Complaint { at: steps!["rules", number], what }]));
            }
            rules.push(Rule { mode: Mode::Enforce, ..rule });
        }
    }
    Ok(Rules {
        mode: Mode::Enforce,
        interval: script.interval.0,
        footprint: script.footprint,
        rules,
        exempt: script.exempt.clone(),
    })
}

impl Trial {
    /// Of a script about which there is no complaint.
    fn new(title: String, script: Script, rules: Rules, cast: Cast) -> Self {
        let expected =
            script.expect.iter().filter_map(|expect| expectation(expect, script.interval.0, &cast)).collect();
        let nothing_else = script.expect.iter().any(|expect| expect.nothing_else == Some(true));
        let end = end(&script);
        Self { title, script, rules, cast, expected, nothing_else, end }
    }
}

fn expectation(expect: &Expect, interval: Duration, cast: &Cast) -> Option<Expectation> {
    let user = expect.user.clone().and_then(|name| cast.uid(&name).map(|uid| (name, uid)));
    Some(Expectation {
        at: cycle_at(expect.at?.0, interval),
        rule: expect.rule.clone()?,
        pid: expect.pid,
        user,
        gpu: expect.gpu,
        does: expect.does?,
    })
}

/// When a test ends: as it says, or some time after the last moment at which something is expected.
fn end(script: &Script) -> Duration {
    let last = script.expect.iter().filter_map(|expect| expect.at).max();
    match (script.until, last) {
        (Some(until), _) => until.0,
        (None, Some(last)) => cycle_at(last.0, script.interval.0) + AFTERWARDS,
        (None, None) => AFTERWARDS,
    }
}

/// How sure it is who owns the process.
fn confidence(actor: &Actor) -> Confidence {
    let owned = actor.user.is_some() || actor.uid.is_some();
    actor.confidence.unwrap_or(if owned { Confidence::High } else { Confidence::Low })
}
