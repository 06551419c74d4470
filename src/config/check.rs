//! `gpuwarden check`: every error of configurations, rule files, rule tests, lists of rights and web configurations, told
//! apart by their keys.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use super::yaml::{self, Keys};
use super::{Diagnostic, Loaded};
use crate::policy::check::{Complaint, Step, steps};
use crate::policy::condition::Condition;
use crate::snapshot::{GpuSelector, Lookup};
use crate::source::assignment::entry::{Entry, To};

/// Where the configuration stands if nobody says otherwise.
pub const DEFAULT_FILE: &str = "/etc/gpuwarden/gpuwarden.yaml";

/// Answers about names that only this moment can make wrong. A name is an error where the answer is `Absent`.
pub struct Names<'a> {
    pub user: &'a dyn Fn(&str) -> Lookup<()>,
    pub group: &'a dyn Fn(&str) -> Lookup<()>,
    pub gpu: &'a dyn Fn(&GpuSelector) -> Lookup<()>,
}

impl Names<'_> {
    /// Where neither the directory nor the driver is asked.
    #[cfg(test)]
    pub const UNASKED: Names<'static> =
        Names { user: &|_| Lookup::Pending, group: &|_| Lookup::Pending, gpu: &|_| Lookup::Pending };
}

/// The errors of a file that another module reads.
pub type Errors = fn(&Path, &str) -> Vec<Diagnostic>;

/// Those who read what is not ours: rule tests, and how the page is served.
#[derive(Clone, Copy)]
pub struct Others {
    pub test: Errors,
    pub web: Errors,
}

/// Checks the files, or the default configuration, and prints every error, and what web configurations are warned of.
/// Whether there was no error.
pub fn run(
    files: &[PathBuf],
    names: &Names,
    others: Others,
    warnings: Errors,
    output: &mut dyn Write,
) -> io::Result<bool> {
    let default = [PathBuf::from(DEFAULT_FILE)];
    let files = if files.is_empty() { &default } else { files };
    let errors = yaml::in_order(files.iter().flat_map(|path| file(path, names, others)).collect());
    let warned = |path: &PathBuf| {
        let text = yaml::read(path).ok().filter(|text| kind(path, text) == Kind::Web);
        text.map(|text| warnings(path, &text))
    };
    let warnings: Vec<Diagnostic> = files.iter().filter_map(warned).flatten().collect();
    for line in errors.iter().chain(&warnings) {
        writeln!(output, "{line}")?;
    }
    Ok(errors.is_empty())
}

/// The errors of one file, and of the files that it names.
pub fn file(path: &Path, names: &Names, others: Others) -> Vec<Diagnostic> {
    let text = match yaml::read(path) {
        Ok(text) => text,
        Err(error) => return vec![error],
    };
    match kind(path, &text) {
        Kind::Test => (others.test)(path, &text),
        Kind::Web => (others.web)(path, &text),
        Kind::Rules => rules(path.to_owned(), text, names),
        Kind::Rights => rights(path, &text, names),
        Kind::Foreign => match yaml::parse::<IgnoredAny>(path, &text, FOREIGN, &[]) {
            Ok(IgnoredAny) => vec![Diagnostic::of_file(path, format!("no file of gpuwarden's, expected {FOREIGN}"))],
            Err(errors) => errors,
        },
        Kind::Configuration => match super::from_text(path, &text) {
            Ok(loaded) => unknown_names(path, &text, &loaded, names),
            Err(errors) => errors,
        },
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Configuration,
    Rules,
    Test,
    Web,
    Rights,
    /// None of these, by any of its keys.
    Foreign,
}

const FOREIGN: &str = "a configuration, rules, a rule test, a list of rights or a web configuration";

/// The keys of gpuwarden.yaml.
const OURS: [&str; 9] =
    ["mode", "interval", "rules", "state_dir", "footprint", "assignments", "exempt", "limits", "metrics"];

/// Whether a file has rules, by its keys.
pub fn is_rule_file(path: &Path, text: &str) -> bool {
    kind(path, text) == Kind::Rules
}

fn kind(path: &Path, text: &str) -> Kind {
    let keys = |at: Vec<Step>| yaml::seek::<Keys>(text, &at).ok().flatten();
    let is_map = |at: Vec<Step>| keys(at).is_some();
    let top = keys(vec![]).map_or(Vec::new(), |Keys(keys)| keys);
    let has = |names: &[&str]| top.iter().any(|key| names.contains(&key.as_str()));
    if path.to_string_lossy().ends_with(".test.yaml") || has(&["expect", "processes"]) {
        Kind::Test
    } else if has(&["tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"]) {
        Kind::Web
    } else if is_map(steps!["rules", 0]) || (has(&["name", "when", "then"]) && !has(&["mode", "interval"])) {
        Kind::Rules
    } else if text.trim_end() == "[]" || is_map(steps![0]) {
        Kind::Rights
    } else if !top.is_empty() && !has(&OURS) && path.file_name() != Path::new(DEFAULT_FILE).file_name() {
        Kind::Foreign
    } else {
        Kind::Configuration
    }
}

fn rules(path: PathBuf, text: String, names: &Names) -> Vec<Diagnostic> {
    match super::rule_file(path, text) {
        Err(errors) => errors,
        Ok((file, mut errors)) => {
            errors.extend(super::names(std::slice::from_ref(&file)).1);
            errors.extend(unknown_in_rules(&file, names));
            yaml::sorted(errors)
        }
    }
}

/// A list of rights that another program keeps.
fn rights(path: &Path, text: &str, names: &Names) -> Vec<Diagnostic> {
    let parts = [yaml::Part::of_items::<Entry>(steps![])];
    match yaml::parse::<Vec<Entry>>(path, text, "a list of rights; nobody is `[]`", &parts) {
        Err(errors) => errors,
        Ok(entries) => {
            let complaints =
                super::entries(&entries, vec![]).into_iter().chain(unknown_in_entries(&entries, vec![], names));
            yaml::sorted(yaml::locate_all(path, text, complaints.collect()))
        }
    }
}

fn unknown_names(path: &Path, text: &str, loaded: &Loaded, names: &Names) -> Vec<Diagnostic> {
    let fixed = loaded.config.assignments.fixed.as_deref().unwrap_or(&[]);
    let mut complaints = unknown_in_entries(fixed, steps!["assignments", "fixed"], names);
    for (number, exemption) in loaded.config.exempt.iter().enumerate() {
        for condition in &exemption.of {
            unknown_in_condition(condition, steps!["exempt", number], names, &mut complaints);
        }
    }
    let mut errors = yaml::locate_all(path, text, complaints);
    // One that is not there yet is kept by another program, and its silence is told by the agent.
    for list in loaded.config.assignments.files.iter().flatten().flat_map(|pattern| matching(pattern)) {
        errors.extend(yaml::read(&list).map_or_else(|error| vec![error], |text| rights(&list, &text, names)));
    }
    errors.extend(loaded.rule_files.iter().flat_map(|file| unknown_in_rules(file, names)));
    yaml::sorted(errors)
}

fn matching(pattern: &str) -> Vec<PathBuf> {
    glob::glob(pattern).into_iter().flatten().flatten().collect()
}

fn unknown_in_rules(file: &super::ParsedFile, names: &Names) -> Vec<Diagnostic> {
    let mut complaints = Vec::new();
    for (number, rule) in file.rules.iter().enumerate() {
        for (key, list) in [("among", &rule.among), ("when", &rule.when), ("unless", &rule.unless)] {
            for (item, condition) in list.iter().enumerate() {
                unknown_in_condition(condition, steps!["rules", number, key, item], names, &mut complaints);
            }
        }
    }
    yaml::locate_all(&file.path, &file.text, complaints)
}

fn unknown_in_entries(entries: &[Entry], at: Vec<Step>, names: &Names) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let mut ask = |answer: Lookup<()>, below: Vec<Step>, what: String| {
            if answer == Lookup::Absent {
                let at = at.iter().cloned().chain(steps![number]).chain(below).collect();
                complaints.push(Complaint { at, what });
            }
        };
        match &entry.to {
            To::Everyone => {}
            To::User(user) => ask((names.user)(user), steps!["to", "user"], unknown_user(user)),
            To::Group(group) => ask((names.group)(group), steps!["to", "group"], unknown_group(group)),
        }
        for (item, gpu) in entry.gpus.iter().enumerate() {
            ask((names.gpu)(gpu), steps!["gpus", item], unknown_gpu(gpu));
        }
    }
    complaints
}

fn unknown_in_condition(condition: &Condition, at: Vec<Step>, names: &Names, complaints: &mut Vec<Complaint>) {
    let below = |steps: Vec<Step>| at.iter().cloned().chain(steps).collect::<Vec<_>>();
    let fact = condition.fact();
    // A pattern may well match nobody today.
    let plain = |word: &&str| !word.contains('*');
    let what = match condition {
        Condition::Any(parts) | Condition::All(parts) => {
            for (item, part) in parts.iter().enumerate() {
                unknown_in_condition(part, below(steps![fact, item]), names, complaints);
            }
            return;
        }
        Condition::Not(part) => return unknown_in_condition(part, below(steps![fact]), names, complaints),
        Condition::User(words) => {
            words.iter().filter(plain).find(|user| (names.user)(user) == Lookup::Absent).map(unknown_user)
        }
        Condition::Group(words) => {
            words.iter().filter(plain).find(|group| (names.group)(group) == Lookup::Absent).map(unknown_group)
        }
        Condition::Gpu(gpus) => gpus.0.iter().find(|gpu| (names.gpu)(gpu) == Lookup::Absent).map(unknown_gpu),
        _ => None,
    };
    complaints.extend(what.map(|what| Complaint { at: below(steps![fact]), what }));
}

fn unknown_user(user: &str) -> String {
    format!("unknown user `{user}`, expected one that the directory knows")
}

fn unknown_group(group: &str) -> String {
    format!("unknown group `{group}`, expected one that the directory knows")
}

fn unknown_gpu(gpu: &GpuSelector) -> String {
    format!("unknown GPU `{gpu}`, expected one that the driver shows")
}
