//! `gpuwarden.yaml` and its rule files -> a [`Config`] that cannot be wrong, or every error with its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::enforce::Limits;
use crate::policy::ChannelName;
use crate::policy::check::{self as rule_check, Complaint, steps};
use crate::policy::rule::{Exemption, Mode, OneRule, Rule, RuleFile, RuleName, Rules, fnv1a};
use crate::source::assignment::entry::Entry;
use crate::source::nvml::Wanted;
use crate::units::{Bytes, Percent, Uid, filled_option};

pub mod diagnostic;
pub mod check;
pub mod yaml;
mod bounds;

use bounds::{Interval, MinUid, Pattern, Positive, SeriesCap, Share, StartDelay, StateDir, bounded};
pub use diagnostic::Diagnostic;

/// Channels that exist without being named.
const CHANNELS: [&str; 1] = [ChannelName::TERMINAL];

/// Everything that the agent is told. Every field holds what it may hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub mode: Mode,
    pub interval: Duration,
    pub rules: Vec<Rule>,
    pub exempt: Vec<Exemption>,
    pub footprint: Bytes,
    pub state_dir: PathBuf,
    pub assignments: Assignments,
    pub limits: Limits,
    pub metrics: MetricsSettings,
    /// Two nodes with the same number judge alike. 48 bits: Prometheus keeps it in a float.
    pub hash: u64,
}

impl Config {
    /// What the engine judges by.
    pub fn rules(&self) -> Rules {
        Rules {
            mode: self.mode,
            interval: self.interval,
            footprint: self.footprint,
            rules: self.rules.clone(),
            exempt: self.exempt.clone(),
        }
    }
}

/// The sources of rights that are enabled.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignments {
    /// `[]` says that nobody has a right; left out, the source is not enabled.
    pub fixed: Option<Vec<Entry>>,
    /// Patterns of absolute paths.
    #[serde(default, deserialize_with = "filled_option")]
    pub files: Option<Vec<String>>,
}

/// The fuses, as they are written.
#[derive(Deserialize)]
#[serde(remote = "Limits", deny_unknown_fields, default = "Limits::default")]
struct WrittenLimits {
    /// At least 1.
    #[serde(deserialize_with = "bounded::<Positive, _, _>")]
    acts_per_cycle: u32,
    /// At least 1.
    #[serde(deserialize_with = "bounded::<Positive, _, _>")]
    acts_per_hour: u32,
    /// Above 0%, at most 100%.
    #[serde(deserialize_with = "bounded::<Share, _, _>")]
    share_of_workloads: Percent,
    #[serde(deserialize_with = "bounded::<MinUid, _, _>")]
    min_uid: Uid,
    #[serde(deserialize_with = "bounded::<StartDelay, _, _>")]
    start_delay: Duration,
}

/// So that the place of an error in `limits` can be sought.
#[derive(Deserialize)]
struct LimitsPart(
    #[serde(with = "WrittenLimits")]
    #[expect(dead_code, reason = "only whether it can be read matters")]
    Limits,
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenMetrics")]
pub struct MetricsSettings {
    /// Most pairs of process and card that have series of their own; 0: no such series.
    pub processes: usize,
    pub wanted: Wanted,
}

/// As it is written: a key for each group.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenMetrics {
    #[serde(deserialize_with = "bounded::<SeriesCap, _, _>")]
    processes: usize,
    clocks: bool,
    pcie: bool,
    nvlink: bool,
    ecc: bool,
    gpm: bool,
    pcie_throughput: bool,
    process_engines: bool,
}

impl Default for WrittenMetrics {
    fn default() -> Self {
        let Wanted { clocks, pcie, nvlink, ecc, gpm, pcie_throughput, process_engines } = Wanted::default();
        Self { processes: 256, clocks, pcie, nvlink, ecc, gpm, pcie_throughput, process_engines }
    }
}

impl From<WrittenMetrics> for MetricsSettings {
    fn from(written: WrittenMetrics) -> Self {
        let WrittenMetrics { processes, clocks, pcie, nvlink, ecc, gpm, pcie_throughput, process_engines } = written;
        Self { processes, wanted: Wanted { clocks, pcie, nvlink, ecc, gpm, pcie_throughput, process_engines } }
    }
}

impl Default for MetricsSettings {
    fn default() -> Self {
        WrittenMetrics::default().into()
    }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    mode: Mode,
    #[serde(deserialize_with = "bounded::<Interval, _, _>")]
    interval: Duration,
    rules: Vec<Pattern>,
    state_dir: StateDir,
    footprint: Bytes,
    assignments: Assignments,
    exempt: Vec<Exemption>,
    #[serde(with = "WrittenLimits")]
    limits: Limits,
    metrics: MetricsSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            interval: Duration::from_secs(5),
            rules: vec![Pattern("rules/*.yaml".into())],
            state_dir: StateDir("/var/lib/gpuwarden".into()),
            footprint: Bytes(300 << 20),
            assignments: Assignments::default(),
            exempt: Vec::new(),
            limits: Limits::default(),
            metrics: MetricsSettings::default(),
        }
    }
}

impl Settings {
    fn parts() -> Vec<yaml::Part> {
        use yaml::Part;
        vec![
            Part::of::<Mode>(steps!["mode"]),
            Part::of::<Interval>(steps!["interval"]),
            Part::of_items::<Pattern>(steps!["rules"]),
            Part::of::<StateDir>(steps!["state_dir"]),
            Part::of::<Bytes>(steps!["footprint"]),
            Part::of::<Assignments>(steps!["assignments"]),
            Part::of_items::<Entry>(steps!["assignments", "fixed"]),
            Part::of_items::<Exemption>(steps!["exempt"]),
            Part::of::<LimitsPart>(steps!["limits"]),
            Part::of::<Positive>(steps!["limits", "acts_per_cycle"]),
            Part::of::<Positive>(steps!["limits", "acts_per_hour"]),
            Part::of::<Share>(steps!["limits", "share_of_workloads"]),
            Part::of::<MinUid>(steps!["limits", "min_uid"]),
            Part::of::<StartDelay>(steps!["limits", "start_delay"]),
            Part::of::<MetricsSettings>(steps!["metrics"]),
        ]
    }
}

/// Reads a configuration and the rule files that it names.
pub fn load(path: &Path) -> Result<Config, Vec<Diagnostic>> {
    let text = yaml::read(path).map_err(|error| vec![error])?;
    from_text(path, &text).map(|loaded| loaded.config)
}

/// Reads one rule file on its own, as a rule test does.
pub fn load_rules(path: &Path) -> Result<Vec<Rule>, Vec<Diagnostic>> {
    let text = yaml::read(path).map_err(|error| vec![error])?;
    let (file, mut wrong) = rule_file(path.to_owned(), text)?;
    wrong.extend(names(std::slice::from_ref(&file)).1);
    if wrong.is_empty() { Ok(file.rules) } else { Err(yaml::sorted(wrong)) }
}

/// A configuration and the files that it came from.
struct Loaded {
    config: Config,
    rule_files: Vec<ParsedFile>,
}

/// A rule file that could be read.
struct ParsedFile {
    path: PathBuf,
    text: String,
    rules: Vec<Rule>,
}

fn from_text(path: &Path, text: &str) -> Result<Loaded, Vec<Diagnostic>> {
    let mut settings: Settings =
        yaml::parse(path, text, "a configuration, such as `mode: observe`", &Settings::parts())?;
    let directory = path.parent().unwrap_or(Path::new("")).to_owned();
    let mut complaints = Vec::new();
    let rule_paths = rule_paths(&settings.rules, &directory, &mut complaints);
    complaints.extend(entries(settings.assignments.fixed.as_deref().unwrap_or(&[]), steps!["assignments", "fixed"]));
    settings.assignments.files = patterns(settings.assignments.files, &directory, &mut complaints);

    let mut diagnostics = Vec::new();
    let mut rule_files = Vec::new();
    for rule_path in rule_paths {
        match yaml::read(&rule_path).map_err(|error| vec![error]).and_then(|text| rule_file(rule_path, text)) {
            Ok((file, wrong)) => {
                diagnostics.extend(wrong);
                rule_files.push(file);
            }
            Err(errors) => diagnostics.extend(errors),
        }
    }
    let (names, repeated) = names(&rule_files);
    diagnostics.extend(repeated);
    // With a rule file that could not be read, its names are not known.
    complaints.extend(exemptions(&settings.exempt, diagnostics.is_empty().then_some(&names)));
    diagnostics.extend(yaml::locate_all(path, text, complaints));
    if !diagnostics.is_empty() {
        return Err(yaml::sorted(diagnostics));
    }

    let config = Config {
        mode: settings.mode,
        interval: settings.interval,
        rules: rule_files.iter().flat_map(|file| file.rules.clone()).collect(),
        exempt: settings.exempt,
        footprint: settings.footprint,
        state_dir: settings.state_dir.0,
        assignments: settings.assignments,
        limits: settings.limits,
        metrics: settings.metrics,
        hash: hash([text].into_iter().chain(rule_files.iter().map(|file| file.text.as_str()))),
    };
    Ok(Loaded { config, rule_files })
}

/// The rule files that patterns name, each once, in the order of the patterns and then of the names.
fn rule_paths(patterns: &[Pattern], directory: &Path, complaints: &mut Vec<Complaint>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut paths = Vec::new();
    for (number, Pattern(pattern)) in patterns.iter().enumerate() {
        let mut complain = |what: String| complaints.push(Complaint { at: steps!["rules", number], what });
        let is_pattern = pattern.contains(['*', '?', '[']);
        let mut matched = false;
        match glob::glob(&within(directory, pattern)) {
            Err(error) => {
                complain(format!("`{pattern}` is not a pattern of paths: {}, expected such as rules/*.yaml", error.msg))
            }
            Ok(found) => {
                for path in found {
                    match path {
                        Err(error) => {
                            complain(format!("cannot be read: {}, expected a directory of rules", error.error()))
                        }
                        Ok(path) if path.to_string_lossy().ends_with(".test.yaml") => {}
                        Ok(path) if is_pattern && path.is_dir() => {}
                        Ok(path) => {
                            matched = true;
                            if seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                                paths.push(path);
                            }
                        }
                    }
                }
                if !matched {
                    complain(format!(
                        "`{pattern}` matches no rule file, expected one at least (`*.test.yaml` are none)"
                    ));
                }
            }
        }
    }
    paths
}

/// A pattern seen from the directory of the configuration, whatever characters that one's name has.
fn within(directory: &Path, pattern: &str) -> String {
    if pattern.starts_with('/') || directory.as_os_str().is_empty() {
        return pattern.to_owned();
    }
    format!("{}/{pattern}", glob::Pattern::escape(&directory.to_string_lossy()))
}

fn patterns(files: Option<Vec<String>>, directory: &Path, complaints: &mut Vec<Complaint>) -> Option<Vec<String>> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut resolve = |(number, pattern): (usize, String)| {
        let mut complain =
            |what: String| complaints.push(Complaint { at: steps!["assignments", "files", number], what });
        if pattern.contains("://") {
            complain(format!("`{pattern}` is an address, expected a path or a pattern of paths"));
        } else if let Err(error) = pattern.parse::<Pattern>() {
            complain(error.to_string());
        }
        within(&directory, &pattern)
    };
    files.map(|files| files.into_iter().enumerate().map(&mut resolve).collect())
}

/// A file of rules, and what is wrong with them where it can be read.
fn rule_file(path: PathBuf, text: String) -> Result<(ParsedFile, Vec<Diagnostic>), Vec<Diagnostic>> {
    let parts = [yaml::Part::of_items::<OneRule>(steps!["rules"])];
    let RuleFile { rules } = yaml::parse(&path, &text, "rules, which begin with `rules:`", &parts)?;
    let wrong = yaml::locate_all(&path, &text, rule_check::rules(&rules, &CHANNELS));
    Ok((ParsedFile { path, text, rules }, wrong))
}

/// The names of all rules, and complaints about those that stand twice.
fn names(files: &[ParsedFile]) -> (BTreeSet<&RuleName>, Vec<Diagnostic>) {
    let mut first: BTreeMap<&RuleName, &Path> = BTreeMap::new();
    let mut repeated = Vec::new();
    for file in files {
        let mut complaints = Vec::new();
        for (number, rule) in file.rules.iter().enumerate() {
            if let Some(other) = first.insert(&rule.name, &file.path) {
                let place = if other == file.path { "in this file".into() } else { format!("in {}", other.display()) };
                let what = format!(
                    "duplicate rule name `{}`, expected another: a rule of this name stands before it {place}",
                    rule.name
                );
                complaints.push(Complaint { at: steps!["rules", number, "name"], what });
            }
        }
        repeated.extend(yaml::locate_all(&file.path, &file.text, complaints));
    }
    (first.into_keys().collect(), repeated)
}

fn exemptions(exempt: &[Exemption], names: Option<&BTreeSet<&RuleName>>) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, exemption) in exempt.iter().enumerate() {
        let fault = exemption.fault();
        complaints.extend(fault.map(|what| Complaint { at: steps!["exempt", number, "until"], what: what.into() }));
        for (item, rule) in exemption.rules.iter().enumerate() {
            let Some(names) = names.filter(|names| !names.contains(rule)) else { continue };
            let known: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            let near = yaml::did_you_mean(rule.as_str(), &known);
            let what = format!("unknown rule `{rule}`, expected the name of a rule{near}");
            complaints.push(Complaint { at: steps!["exempt", number, "rules", item], what });
        }
        complaints.extend(rule_check::values(&exemption.of, steps!["exempt", number]));
    }
    complaints
}

/// Complaints about a list of rights, which stands at that path.
fn entries(list: &[Entry], at: Vec<rule_check::Step>) -> Vec<Complaint> {
    let faults = list.iter().enumerate().filter_map(|(number, entry)| Some((number, entry.fault()?)));
    faults
        .map(|(number, fault)| Complaint {
            at: at.iter().cloned().chain(steps![number, "until"]).collect(),
            what: fault.into(),
        })
        .collect()
}

/// FNV-1a over texts and their lengths, folded to 48 bits.
fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let hash = fnv1a(texts.flat_map(|text| text.len().to_le_bytes().into_iter().chain(text.bytes())));
    (hash ^ hash >> 48) & 0xffff_ffff_ffff
}

#[cfg(test)]
mod tests;
