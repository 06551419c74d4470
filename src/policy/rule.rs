//! A rule as admins write it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::condition::{Condition, ToOther, Words};
use crate::schedule::Date;
use crate::units::{Bytes, Malformed, Scalar, Span, filled, filled_option, meaning, read_as_scalar};

/// Everything the engine judges by.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// The most that any rule may do.
    pub mode: Mode,
    /// The length of a cycle; a sighting counts for twice this at most.
    pub interval: Duration,
    /// A smaller context does not make a GPU "used".
    pub footprint: Bytes,
    /// With unique names.
    pub rules: Vec<Rule>,
    pub exempt: Vec<Exemption>,
}

/// A file of rules.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    #[serde(with = "serde_yaml::with::singleton_map_recursive")]
    pub rules: Vec<Rule>,
}

/// A rule on its own, read as one of a [`RuleFile`] is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct OneRule(#[serde(with = "serde_yaml::with::singleton_map_recursive")] pub Rule);

/// What is not allowed, and what follows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub name: RuleName,
    /// One sentence, quoted to the user.
    pub description: String,
    pub about: About,
    #[serde(default)]
    pub per_gpu: bool,
    /// Which processes of the subject count; empty: all.
    #[serde(default, deserialize_with = "filled")]
    pub among: Vec<Condition>,
    /// All must be known to be true.
    #[serde(deserialize_with = "filled")]
    pub when: Vec<Condition>,
    /// All must be known to be false.
    #[serde(default, deserialize_with = "filled")]
    pub unless: Vec<Condition>,
    pub then: Ladder,
    #[serde(default)]
    pub targets: Targets,
    #[serde(default = "Rule::default_clear_after")]
    pub clear_after: Span,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub severity: Severity,
    /// Whether it may act on people who were not warned.
    #[serde(default)]
    pub without_warning: bool,
}

impl Rule {
    fn default_clear_after() -> Span {
        Span(Duration::from_secs(600))
    }

    /// The mode in effect: its own, capped by the configuration's.
    pub fn effective_mode(&self, cap: Mode) -> Mode {
        self.mode.min(cap)
    }

    /// Every condition in `among`, `when` and `unless`, nested ones included.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.among.iter().chain(&self.when).chain(&self.unless).flat_map(Condition::leaves)
    }

    /// Whether it asks for somebody's right, so that a change of the right is a new beginning.
    pub fn asks_for_rights(&self) -> bool {
        self.conditions().any(|condition| matches!(condition, Condition::Assigned(_) | Condition::AssignedToOther(_)))
    }

    /// A number for what the rule means, so that a ladder under a rule that has since changed starts afresh. Its name,
    /// sentence, severity and mode are not part of it.
    pub fn meaning(&self) -> u64 {
        // All fields by name: whoever adds one has to decide.
        let Self {
            name: _,
            description: _,
            mode: _,
            severity: _,
            about,
            per_gpu,
            among,
            when,
            unless,
            then,
            targets,
            clear_after,
            without_warning,
        } = self;
        let text = format!(
            "{about:?} {per_gpu} {among:?} {when:?} {unless:?} {then:?} {targets:?} {clear_after:?} {without_warning}"
        );
        fnv1a(text.bytes())
    }

    /// Whether its ladder has a rung that tells whom a right names.
    pub fn informs(&self) -> bool {
        self.then.rungs().iter().any(|rung| matches!(rung.action, Action::Inform(_)))
    }

    /// How far into the future it asks for rights.
    pub fn looks_ahead(&self) -> Duration {
        let spans = self.conditions().filter_map(|condition| match condition {
            Condition::AssignedToOther(ToOther::Within(span)) => Some(span.0),
            _ => None,
        });
        spans.fold(Duration::ZERO, Duration::max)
    }

    /// Whether its ladder has a rung that acts.
    pub fn acts(&self) -> bool {
        self.then.rungs().iter().any(|rung| rung.action.is_act())
    }
}

/// A name of the form `[a-z0-9-]+`. Every ladder and every judgement bears one: they share it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RuleName(Arc<str>);

impl RuleName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn shared(&self) -> Arc<str> {
        self.0.clone()
    }
}

impl Scalar for RuleName {
    const EXPECTED: &'static str = "a name of lower-case letters, digits and dashes";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits { Ok(Self(text.into())) } else { Err(Malformed::new(text, Self::EXPECTED)) }
    }

    fn from_number(number: u64) -> Result<Self, Malformed> {
        Ok(Self(number.to_string().into()))
    }
}

read_as_scalar!(RuleName);

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// To whom the ladder belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum About {
    /// One process on one GPU.
    Process,
    /// All that a user holds on the node, or on each GPU with `per_gpu`.
    User,
    Gpu,
}

impl About {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::User => "user",
            Self::Gpu => "gpu",
        }
    }
}

/// What may be done: each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Everything is only rehearsed.
    #[default]
    Observe,
    /// People are told, nothing is signalled.
    Warn,
    Enforce,
}

impl Mode {
    /// Whether a message, or what touches processes, is carried out in this mode and not only rehearsed.
    pub fn carries_out(self, is_act: bool) -> bool {
        self >= if is_act { Self::Enforce } else { Self::Warn }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    #[default]
    Warning,
    Critical,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Which of the subject's processes an act hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Targets {
    /// The one that started last; the next when it is gone and the condition still holds.
    #[default]
    Newest,
    /// The one with the most GPU memory; likewise.
    Largest,
    All,
}

/// Rungs to climb, one a cycle. Never empty.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Ladder(#[serde(deserialize_with = "filled")] Vec<Rung>);

impl Ladder {
    pub fn rungs(&self) -> &[Rung] {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rung {
    /// From the rung before, the first from when the condition became true; only time seen to be true counts.
    pub after: Duration,
    pub action: Action,
}

/// What a rung does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell the subject's owner.
    Warn(Vec<ChannelName>),
    /// Tell the admins.
    Alert(Vec<ChannelName>),
    /// Tell whom the right on that GPU names; never everyone, never a whole group.
    Inform(Vec<ChannelName>),
    Signal(Signal),
}

impl Action {
    /// Whether it touches processes; all else are messages.
    pub fn is_act(&self) -> bool {
        matches!(self, Self::Signal(_))
    }

    /// The label `action` of the metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Warn(_) => "warn",
            Self::Alert(_) => "alert",
            Self::Inform(_) => "inform",
            Self::Signal(signal) => signal.as_str(),
        }
    }

    pub fn channels(&self) -> &[ChannelName] {
        match self {
            Self::Warn(channels) | Self::Alert(channels) | Self::Inform(channels) => channels,
            Self::Signal(_) => &[],
        }
    }
}

/// The name of a channel; `terminal` exists without being named.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelName(pub String);

impl ChannelName {
    pub const TERMINAL: &str = "terminal";
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A signal that a rule may send, from the mildest to the harshest (signal(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    #[serde(rename = "USR1")]
    Usr1,
    #[serde(rename = "USR2")]
    Usr2,
    #[serde(rename = "HUP")]
    Hup,
    #[serde(rename = "INT")]
    Int,
    #[serde(rename = "TERM")]
    Term,
    #[serde(rename = "KILL")]
    Kill,
}

impl Signal {
    pub const ALL: [Self; 6] = [Self::Usr1, Self::Usr2, Self::Hup, Self::Int, Self::Term, Self::Kill];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usr1 => "USR1",
            Self::Usr2 => "USR2",
            Self::Hup => "HUP",
            Self::Int => "INT",
            Self::Term => "TERM",
            Self::Kill => "KILL",
        }
    }

    /// TERM, INT and KILL mean "end"; any other goes only to a process that catches it.
    pub fn ends(self) -> bool {
        matches!(self, Self::Int | Self::Term | Self::Kill)
    }
}

/// Who is never judged, counted or hit. Every key that is given must be true of the process.
#[derive(Debug, Clone, PartialEq)]
pub struct Exemption {
    /// At least one; `user`, `group`, `uid` or `executable` conditions.
    pub of: Vec<Condition>,
    /// Only under these rules; empty: under all.
    pub rules: Vec<RuleName>,
    /// Included.
    pub from: Option<Date>,
    /// Not included.
    pub until: Option<Date>,
    pub reason: Option<String>,
}

impl Exemption {
    /// What is wrong with it although each of its parts is in order.
    pub fn fault(&self) -> Option<&'static str> {
        let backwards = self.from.zip(self.until).is_some_and(|(from, until)| from >= until);
        backwards.then_some("the exemption ends before it begins, expected `until` after `from`")
    }
}

impl<'de> Deserialize<'de> for Rung {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            after: Span,
            #[serde(default, deserialize_with = "filled_option")]
            warn: Option<Vec<ChannelName>>,
            #[serde(default, deserialize_with = "filled_option")]
            alert: Option<Vec<ChannelName>>,
            #[serde(default, deserialize_with = "filled_option")]
            inform: Option<Vec<ChannelName>>,
            signal: Option<Signal>,
        }

        meaning(deserializer, |written: Written| {
            let actions = [
                written.warn.map(Action::Warn),
                written.alert.map(Action::Alert),
                written.inform.map(Action::Inform),
                written.signal.map(Action::Signal),
            ];
            let mut actions = actions.into_iter().flatten();
            match (actions.next(), actions.next()) {
                (Some(action), None) => Ok(Self { after: written.after.0, action }),
                (None, _) => Err("a rung that does nothing, expected one of warn, alert, inform, signal".into()),
                (Some(_), Some(_)) => {
                    Err("a rung that does several things, expected one of warn, alert, inform, signal".into())
                }
            }
        })
    }
}

impl<'de> Deserialize<'de> for Exemption {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            user: Option<Words>,
            group: Option<Words>,
            uid: Option<Words>,
            executable: Option<Words>,
            #[serde(default, deserialize_with = "filled")]
            rules: Vec<RuleName>,
            from: Option<Date>,
            until: Option<Date>,
            reason: Option<String>,
        }

        meaning(deserializer, |written: Written| {
            let of = [
                written.user.map(Condition::User),
                written.group.map(Condition::Group),
                written.uid.map(Condition::Uid),
                written.executable.map(Condition::Executable),
            ];
            let of: Vec<Condition> = of.into_iter().flatten().collect();
            if of.is_empty() {
                return Err("an exemption of nobody, expected at least one of user, group, uid, executable".into());
            }
            let Written { rules, from, until, reason, .. } = written;
            Ok(Self { of, rules, from, until, reason })
        })
    }
}

/// FNV-1a, 64 bits: it is the same in every process and release, as std's hasher need not be.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}
