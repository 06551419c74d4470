//! A rule test as admins write it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::timed::{Known, Periods, Timed};
use crate::policy::rule::Exemption;
use crate::policy::{Mode, RuleName, Signal};
use crate::schedule::Date;
use crate::snapshot::{Confidence, Kind, Protection, Source};
use crate::source::assignment::entry::Entry;
use crate::units::{Bytes, Malformed, Percent, Scalar, Span, Uid, filled, read_as_scalar};

/// One test: rules, what happens on a node, and what must come of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What it shows, in a sentence.
    pub name: Option<String>,
    /// Relative to the test's file.
    #[serde(deserialize_with = "filled")]
    pub rules: Vec<PathBuf>,
    #[serde(default = "Script::default_interval")]
    pub interval: Span,
    /// When it begins by the calendar.
    pub start: Option<Date>,
    /// How long it goes on; as a rule until 10m after the last `at`.
    pub until: Option<Span>,
    pub gpus: Gpus,
    /// A smaller context does not make a GPU "used".
    #[serde(default = "Script::default_footprint")]
    pub footprint: Bytes,
    /// Who is in which group.
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<String>>,
    /// What the source `fixed` says; left out, there is no such source.
    pub assignments: Option<Timed<Vec<Entry>>>,
    #[serde(default)]
    pub processes: Vec<Actor>,
    /// As in the configuration.
    #[serde(default)]
    pub exempt: Vec<Exemption>,
    /// The mode of the configuration; the rules' own is `enforce`.
    #[serde(default = "Script::default_mode")]
    pub mode: Timed<Mode>,
    #[serde(default)]
    pub silent: BTreeMap<Source, Periods>,
    /// Whom no message reaches, and when.
    #[serde(default)]
    pub undelivered: BTreeMap<String, Periods>,
    /// When the agent is ended and started again.
    #[serde(default)]
    pub restart: Vec<Span>,
    #[serde(deserialize_with = "filled")]
    pub expect: Vec<Expect>,
}

impl Script {
    fn default_interval() -> Span {
        Span(Duration::from_secs(5))
    }

    fn default_footprint() -> Bytes {
        Bytes(300 << 20)
    }

    fn default_mode() -> Timed<Mode> {
        Timed::always(Mode::Enforce)
    }
}

/// The cards of the node, all alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpus {
    pub count: u32,
    /// Of each; left out, the driver does not tell.
    pub memory: Option<Known<Bytes>>,
    pub name: Option<String>,
    /// Of each; left out, that of the busiest process.
    pub utilization: Option<Timed<Known<Percent>>>,
}

/// A process on one or several cards. Two entries with one pid and one `from` are one process.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    pub pid: i32,
    pub user: Option<String>,
    /// Of a user: his; without one: an owner whom the directory does not know. With neither, nobody knows the owner.
    pub uid: Option<Uid>,
    pub gpu: Timed<Indexes>,
    /// On each of the cards; left out, the driver does not tell. So with the utilization.
    #[serde(default = "Actor::unknown")]
    pub memory: Timed<Known<Bytes>>,
    #[serde(default = "Actor::unknown")]
    pub utilization: Timed<Known<Percent>>,
    #[serde(default = "Actor::default_kind")]
    pub kind: Kind,
    #[serde(default = "Actor::default_command")]
    pub command: String,
    /// Left out, `/proc` does not tell.
    pub executable: Option<String>,
    /// `high` where there is an owner.
    pub confidence: Option<Confidence>,
    #[serde(default = "Actor::default_protection")]
    pub protection: Protection,
    #[serde(default)]
    pub from: Span,
    pub until: Option<Span>,
    /// The signal that ends it. Without one it survives them all, for a test has to show what comes next.
    pub dies_on: Option<Signal>,
}

impl Actor {
    fn unknown<T>() -> Timed<Known<T>> {
        Timed::always(Known(None))
    }

    fn default_kind() -> Kind {
        Kind::Compute
    }

    fn default_command() -> String {
        "python3".to_owned()
    }

    fn default_protection() -> Protection {
        Protection::None
    }

    /// Whether it is there at that time, as far as nothing ends it before.
    pub fn lives(&self, time: Duration) -> bool {
        self.from.0 <= time && self.until.is_none_or(|until| time < until.0)
    }
}

/// Indexes of cards: `0`, or `[0, 1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Indexes(pub Vec<u32>);

impl<'de> Deserialize<'de> for Indexes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Indexes;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("the index of a GPU or a list of such: 0, or [0, 1]")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Indexes, E> {
                let unexpected = || E::invalid_value(serde::de::Unexpected::Unsigned(number), &self);
                u32::try_from(number).map(|index| Indexes(vec![index])).map_err(|_| unexpected())
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Indexes, A::Error> {
                let mut indexes = Vec::new();
                while let Some(index) = items.next_element()? {
                    indexes.push(index);
                }
                Ok(Indexes(indexes))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// `{at: 1m, rule: …, pid: 7, does: warn}`, or `{nothing_else: true}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub at: Option<Span>,
    pub rule: Option<RuleName>,
    pub pid: Option<i32>,
    pub user: Option<String>,
    pub gpu: Option<u32>,
    pub does: Option<Does>,
    pub nothing_else: Option<bool>,
}

/// The name of a deed, as `actions_total` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Does(pub &'static str);

impl Scalar for Does {
    const EXPECTED: &'static str = "warn, alert, inform, all_clear or a signal such as TERM";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let signals = Signal::ALL.into_iter().map(Signal::as_str);
        let mut known = ["warn", "alert", "inform", "all_clear"].into_iter().chain(signals);
        known.find(|does| *does == text).map(Self).ok_or_else(|| Malformed::new(text, Self::EXPECTED))
    }
}

read_as_scalar!(Does);
