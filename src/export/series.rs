//! The form of a row.

use std::fmt;
use std::sync::Arc;

use super::PREFIX;

/// Names and values of labels, in the order in which the row or subject lists them; one that is left out is the empty
/// value.
pub type Labels = Vec<(&'static str, Text)>;

/// The value of a label, as it is at hand: most are neither new nor text.
#[derive(Debug, Clone)]
pub enum Text {
    Fixed(&'static str),
    Shared(Arc<str>),
    Own(String),
    Number(i64),
}

impl Text {
    /// `None` of a number, in which nothing is empty or special.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Fixed(text) => Some(text),
            Self::Shared(text) => Some(text),
            Self::Own(text) => Some(text),
            Self::Number(_) => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.as_str().is_some_and(str::is_empty)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Fixed(text) => f.write_str(text),
            Self::Shared(text) => f.write_str(text),
            Self::Own(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Self {
        Self::Fixed(text)
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::Own(text)
    }
}

impl From<i32> for Text {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for Text {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

/// One of several samples that a row has of one subject.
pub type Sample = (Labels, f64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
}

/// A metric.
pub struct Series<T> {
    /// Without the prefix.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// Besides the subject's own.
    pub labels: &'static [&'static str],
    /// Standard metrics bear no prefix.
    pub standard: bool,
    pub read: Read<T>,
}

/// What a row takes from its subject.
pub enum Read<T> {
    One(fn(&T) -> Option<f64>),
    Each(fn(&T) -> Vec<Sample>),
}

/// What a table is about, and the labels by which its rows name it.
pub trait Subject {
    const LABELS: &'static [&'static str];

    fn labels(&self) -> Labels;
}

impl<T> Series<T> {
    pub fn full_name(&self) -> String {
        let prefix = if self.standard { "" } else { PREFIX };
        format!("{prefix}{}", self.name)
    }

    pub const fn standard(mut self) -> Self {
        self.standard = true;
        self
    }
}

impl<T> Read<T> {
    /// Hands on every sample. What is no number is no sample: Prometheus would carry it through every sum.
    pub fn each(&self, subject: &T, mut put: impl FnMut(Labels, f64)) {
        match self {
            Self::One(read) => {
                if let Some(value) = read(subject).filter(|value| value.is_finite()) {
                    put(Labels::new(), value);
                }
            }
            Self::Each(read) => {
                for (labels, value) in read(subject).into_iter().filter(|(_, value)| value.is_finite()) {
                    put(labels, value);
                }
            }
        }
    }
}

pub const fn gauge<T>(name: &'static str, help: &'static str, read: fn(&T) -> Option<f64>) -> Series<T> {
    Series { name, help, kind: Kind::Gauge, labels: &[], standard: false, read: Read::One(read) }
}

pub const fn counter<T>(name: &'static str, help: &'static str, read: fn(&T) -> Option<f64>) -> Series<T> {
    Series { name, help, kind: Kind::Counter, labels: &[], standard: false, read: Read::One(read) }
}

/// With labels besides the subject's own.
pub const fn gauges<T>(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&T) -> Vec<Sample>,
) -> Series<T> {
    Series { name, help, kind: Kind::Gauge, labels, standard: false, read: Read::Each(read) }
}

pub const fn counters<T>(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&T) -> Vec<Sample>,
) -> Series<T> {
    Series { name, help, kind: Kind::Counter, labels, standard: false, read: Read::Each(read) }
}

/// A gauge of 1 for what identifies and does not measure.
pub fn info(labels: impl IntoIterator<Item = (&'static str, Option<Text>)>) -> Vec<Sample> {
    let given = labels.into_iter().filter_map(|(name, value)| Some((name, value?)));
    vec![(given.collect(), 1.0)]
}

/// One sample for each value of one label.
pub fn by<V: Into<Text>>(label: &'static str, values: impl IntoIterator<Item = (V, f64)>) -> Vec<Sample> {
    values.into_iter().map(|(name, value)| (vec![(label, name.into())], value)).collect()
}

pub fn truth(known: bool) -> f64 {
    if known { 1.0 } else { 0.0 }
}
