//! What a rule can ask.

use std::fmt;

use serde::Deserialize;

use crate::schedule::Window;
use crate::snapshot::{GpuSelector, Kind};
use crate::units::{Bytes, Malformed, Percent, Scalar, Span, filled, read_as_scalar};

/// One condition. The variant's name is the fact that it asks for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    #[serde(deserialize_with = "filled")]
    Any(Vec<Condition>),
    #[serde(deserialize_with = "filled")]
    All(Vec<Condition>),
    Not(Box<Condition>),
    Assigned(bool),
    AssignedToOther(ToOther),
    Memory(Compare<MemoryAmount>),
    Utilization(Compare<Percent>),
    Gpus(Compare<Count>),
    Processes(Compare<Count>),
    Age(Compare<Span>),
    User(Words),
    Group(Words),
    Uid(Words),
    Command(Words),
    Executable(Words),
    Kind(Kinds),
    Gpu(Selectors),
    GpuName(Words),
    Time(Windows),
}

impl Condition {
    /// The conditions that ask for a fact, below `any`, `all` and `not`.
    pub fn leaves(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        match self {
            Self::Any(parts) | Self::All(parts) => Box::new(parts.iter().flat_map(Self::leaves)),
            Self::Not(part) => part.leaves(),
            leaf => Box::new(std::iter::once(leaf)),
        }
    }

    /// What it says about its fact, as rules write it: `> 40GiB`. Nothing where it asks for none itself.
    pub fn asked(&self) -> String {
        fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
            items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
        }

        match self {
            Self::Any(_) | Self::All(_) | Self::Not(_) => String::new(),
            Self::Assigned(wanted) | Self::AssignedToOther(ToOther::Now(wanted)) => wanted.to_string(),
            Self::AssignedToOther(ToOther::Within(span)) => format!("within {span}"),
            Self::Memory(compare) => compare.to_string(),
            Self::Utilization(compare) => compare.to_string(),
            Self::Gpus(compare) | Self::Processes(compare) => compare.to_string(),
            Self::Age(compare) => compare.to_string(),
            Self::User(words)
            | Self::Group(words)
            | Self::Uid(words)
            | Self::Command(words)
            | Self::Executable(words)
            | Self::GpuName(words) => list(words.iter()),
            Self::Kind(kinds) => list(kinds.0.iter().map(|kind| kind.as_str())),
            Self::Gpu(selectors) => list(&selectors.0),
            Self::Time(windows) => list(&windows.0),
        }
    }

    /// The fact's name, as rules write it.
    pub fn fact(&self) -> &'static str {
        match self {
            Self::Any(_) => "any",
            Self::All(_) => "all",
            Self::Not(_) => "not",
            Self::Assigned(_) => "assigned",
            Self::AssignedToOther(_) => "assigned_to_other",
            Self::Memory(_) => "memory",
            Self::Utilization(_) => "utilization",
            Self::Gpus(_) => "gpus",
            Self::Processes(_) => "processes",
            Self::Age(_) => "age",
            Self::User(_) => "user",
            Self::Group(_) => "group",
            Self::Uid(_) => "uid",
            Self::Command(_) => "command",
            Self::Executable(_) => "executable",
            Self::Kind(_) => "kind",
            Self::Gpu(_) => "gpu",
            Self::GpuName(_) => "gpu_name",
            Self::Time(_) => "time",
        }
    }
}

/// A comparison with a number, written `"> 40GiB"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compare<T> {
    pub how: Comparison,
    pub with: T,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
    Equal,
}

impl Comparison {
    const SPELLINGS: [(&'static str, Self); 5] =
        [(">=", Self::AtLeast), ("<=", Self::AtMost), ("==", Self::Equal), (">", Self::Above), ("<", Self::Below)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Above => ">",
            Self::AtLeast => ">=",
            Self::Below => "<",
            Self::AtMost => "<=",
            Self::Equal => "==",
        }
    }

    /// Whether it is true of small values: it can only be proved by a value that is known in full.
    pub fn is_upper_bound(self) -> bool {
        matches!(self, Self::Below | Self::AtMost | Self::Equal)
    }
}

impl<T: Scalar> Scalar for Compare<T> {
    const EXPECTED: &'static str = "a quoted comparison, such as \"> 40GiB\", \"<= 5%\" or \">= 3\"";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let text = text.trim();
        let (how, rest) = Comparison::SPELLINGS
            .iter()
            .find_map(|(sign, how)| text.strip_prefix(sign).map(|rest| (*how, rest.trim_start())))
            .ok_or_else(|| Malformed::new(text, Self::EXPECTED))?;
        // A count is a bare number, all else bears its unit; `from_text` of the quantity knows.
        Ok(Self { how, with: T::from_text(rest)? })
    }
}

impl<'de, T: Scalar> Deserialize<'de> for Compare<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::units::scalar(deserializer)
    }
}

impl<T: fmt::Display> fmt::Display for Compare<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.how.as_str(), self.with)
    }
}

/// An amount of GPU memory: in bytes, or as a share of one card's total.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemoryAmount {
    Bytes(Bytes),
    Share(Percent),
}

impl Scalar for MemoryAmount {
    const EXPECTED: &'static str = "a size or a share with its unit, such as 40GiB or 50%";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        if text.ends_with('%') {
            Percent::from_text(text).map(Self::Share)
        } else {
            Bytes::from_text(text).map(Self::Bytes)
        }
        .map_err(|_| Malformed::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for MemoryAmount {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

/// A number of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl Scalar for Count {
    const EXPECTED: &'static str = "a number without a unit, such as 3";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        let digits = text.chars().all(|c| c.is_ascii_digit());
        let count = if digits { text.parse().ok() } else { None };
        count.map(Self).ok_or_else(|| Malformed::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `true`, `false`, or `within 30m`: somebody else holds a right now, or will that soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToOther {
    Now(bool),
    Within(Span),
}

/// Words of which one must match; `*` is a wildcard. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words(Vec<String>);

impl Words {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// One or several, as rules write them; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kinds(pub Vec<Kind>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selectors(pub Vec<GpuSelector>);

#[derive(Debug, Clone, PartialEq)]
pub struct Windows(pub Vec<Window>);

read_as_scalar!(MemoryAmount, Count);

/// Reads one value or a list of them, which may not be empty.
fn one_or_many<'de, T, D>(deserializer: D, expected: &'static str) -> Result<Vec<T>, D::Error>
where
    T: Scalar + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    struct Visitor<T>(&'static str, std::marker::PhantomData<T>);

    impl<'de, T: Scalar + Deserialize<'de>> serde::de::Visitor<'de> for Visitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            write!(f, "{}, or a list of such", self.0)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            T::from_text(text).map(|one| vec![one]).map_err(E::custom)
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Vec<T>, E> {
            T::from_number(number).map(|one| vec![one]).map_err(E::custom)
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut many = Vec::new();
            while let Some(item) = items.next_element()? {
                many.push(item);
            }
            if many.is_empty() {
                return Err(serde::de::Error::custom(format_args!("an empty list, expected {}", self.0)));
            }
            Ok(many)
        }
    }

    deserializer.deserialize_any(Visitor(expected, std::marker::PhantomData))
}

/// A word or a number that stands for one.
struct Word(String);

impl Scalar for Word {
    const EXPECTED: &'static str = "a word";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        if text.is_empty() { Err(Malformed::new(text, Self::EXPECTED)) } else { Ok(Self(text.to_owned())) }
    }

    fn from_number(number: u64) -> Result<Self, Malformed> {
        Ok(Self(number.to_string()))
    }
}

impl Scalar for Kind {
    const EXPECTED: &'static str = "compute, graphics or both";

    fn from_text(text: &str) -> Result<Self, Malformed> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| Malformed::new(text, Self::EXPECTED))
    }
}

read_as_scalar!(Word);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_many::<Word, D>(deserializer, Word::EXPECTED)
            .map(|words| Self(words.into_iter().map(|word| word.0).collect()))
    }
}

impl<'de> Deserialize<'de> for Kinds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_many(deserializer, Kind::EXPECTED).map(Self)
    }
}

impl<'de> Deserialize<'de> for Selectors {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_many(deserializer, GpuSelector::EXPECTED).map(Self)
    }
}

impl<'de> Deserialize<'de> for Windows {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_many(deserializer, Window::EXPECTED).map(Self)
    }
}

impl<'de> Deserialize<'de> for ToOther {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = ToOther;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("true, false, or `within` a duration, such as within 30m")
            }

            fn visit_bool<E>(self, now: bool) -> Result<ToOther, E> {
                Ok(ToOther::Now(now))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ToOther, E> {
                match text.strip_prefix("within ") {
                    Some(span) => Span::from_text(span.trim()).map(ToOther::Within).map_err(E::custom),
                    None => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
