//! Prometheus's text format (0.0.4), written straight from the rows: families built first, with every label of every
//! sample, would cost five times as much as the page. The crate `prometheus` judges it in the tests.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::Sink;
use super::series::{Kind, Labels, Series, Subject, Text};

/// What is asked for at first. So much comes from the kernel and goes back to it, page by page as it is filled: it leaves no
/// holes between what lives longer.
const ROOM: usize = 1 << 20;

/// The length that most labels do not exceed on the mean, name and value and what stands around them.
const LABEL: usize = 24;

/// What has a backslash before it in the value of a label.
const SPECIAL: &[u8] = b"\\\n\"";

pub struct Page(String);

/// A subject with its labels as they stand in the page.
struct Named<'a, T> {
    subject: &'a T,
    labels: Written,
    /// The place of the first subject with the same labels.
    place: usize,
}

impl Sink for Page {
    fn table<T: Subject>(&mut self, rows: &[Series<T>], subjects: &[T]) {
        let subjects = named(subjects);
        for row in rows {
            self.family(row, &subjects);
        }
    }
}

impl Page {
    pub fn new() -> Self {
        Self(String::with_capacity(ROOM))
    }

    /// Without room for more: it stays until the next cycle.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.0.into_bytes();
        bytes.shrink_to_fit();
        bytes
    }

    /// A family without a sample is left out.
    fn family<T: Subject>(&mut self, row: &Series<T>, subjects: &[Named<T>]) {
        let name = row.full_name();
        let kind = match row.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let before = self.0.len();
        self.heading(&name, row.help, kind);
        let without = self.0.len();
        // Two samples with equal labels would make the whole scrape fail: the first counts.
        let (mut alone, mut among) = (vec![true; subjects.len()], HashSet::new());
        for Named { subject, labels, place } in subjects {
            row.read.each(subject, |more, value| {
                let more = Written::new(&more, row.labels);
                let is_first = match more.given() {
                    "" => std::mem::take(&mut alone[*place]),
                    given => among.insert((*place, given.to_owned())),
                };
                if is_first {
                    self.sample(&name, [&labels.text, &more.text], value);
                }
            });
        }
        if self.0.len() == without {
            self.0.truncate(before);
        }
    }

    fn heading(&mut self, name: &str, help: &str, kind: &str) {
        self.all(["# HELP ", name, " "]);
        escape(&mut self.0, help, b"\\\n");
        self.all(["\n# TYPE ", name, " ", kind, "\n"]);
    }

    fn sample(&mut self, name: &str, labels: [&str; 2], value: f64) {
        let (open, between, close) = match labels.map(str::is_empty) {
            [true, true] => ("", "", ""),
            [false, false] => ("{", ",", "}"),
            _ => ("{", "", "}"),
        };
        self.all([name, open, labels[0], between, labels[1], close, " "]);
        self.value(value);
        self.0.push('\n');
    }

    /// An f64 is written as Prometheus reads it. Whole numbers and hundredths, which most values are, are written the same
    /// and faster as integers.
    fn value(&mut self, value: f64) {
        let written = match hundredths(value) {
            Some((whole, 0)) => write!(self.0, "{whole}"),
            Some((whole, rest)) if rest % 10 == 0 => write!(self.0, "{whole}.{}", rest / 10),
            Some((whole, rest)) => write!(self.0, "{whole}.{rest:02}"),
            None => write!(self.0, "{value}"),
        };
        written.expect("a string takes it all");
    }

    fn all<const N: usize>(&mut self, parts: [&str; N]) {
        parts.into_iter().for_each(|part| self.0.push_str(part));
    }
}

/// The whole part and the hundredths of a number that has no more digits: so few that no shorter number is read as it.
fn hundredths(value: f64) -> Option<(u64, u64)> {
    const MOST: f64 = 1e15;
    let hundredths = (value * 100.0).round();
    let exact = hundredths / 100.0 == value && hundredths < MOST && value.is_sign_positive();
    let whole = hundredths as u64;
    exact.then_some((whole / 100, whole % 100))
}

fn named<T: Subject>(subjects: &[T]) -> Vec<Named<'_, T>> {
    let labels: Vec<Written> = subjects.iter().map(|subject| Written::new(&subject.labels(), T::LABELS)).collect();
    let mut first = HashMap::with_capacity(labels.len());
    let places = labels.iter().enumerate().map(|(place, labels)| *first.entry(labels.given()).or_insert(place));
    let places: Vec<usize> = places.collect();
    let named = subjects.iter().zip(labels).zip(places);
    named.map(|((subject, labels), place)| Named { subject, labels, place }).collect()
}

/// Labels as they stand in the page.
struct Written {
    text: String,
    /// Without those of an empty value, where there are such: an empty value is the same as none.
    given: Option<String>,
}

impl Written {
    /// In the order of `known`, so that equal labels are equal text.
    fn new(labels: &Labels, known: &[&str]) -> Self {
        debug_assert!(are_in_order(labels, known), "{labels:?} of {known:?}");
        let given = || write_labels(labels.iter().filter(|(_, value)| !value.is_empty()));
        let some_are_empty = labels.iter().any(|(_, value)| value.is_empty());
        Self { text: write_labels(labels.iter()), given: some_are_empty.then(given) }
    }

    fn given(&self) -> &str {
        self.given.as_ref().unwrap_or(&self.text)
    }
}

fn are_in_order(labels: &Labels, known: &[&str]) -> bool {
    let mut known = known.iter();
    labels.iter().all(|(name, _)| known.any(|known| known == name))
}

fn write_labels<'a>(labels: impl Iterator<Item = &'a (&'static str, Text)>) -> String {
    let mut text = String::with_capacity(labels.size_hint().1.map_or(0, |most| most * LABEL));
    for (name, value) in labels {
        text.push_str(if text.is_empty() { "" } else { "," });
        text.push_str(name);
        text.push_str("=\"");
        match value.as_str() {
            Some(value) => escape(&mut text, value, SPECIAL),
            None => write!(text, "{value}").expect("a string takes it all"),
        }
        text.push('"');
    }
    text
}

/// Writes it with a backslash before each of these, which are ASCII; the end of a line as `\n`.
fn escape(text: &mut String, raw: &str, these: &[u8]) {
    let mut rest = raw;
    while let Some(at) = rest.bytes().position(|byte| these.contains(&byte)) {
        let (plain, special) = rest.split_at(at);
        let (special, after) = special.split_at(1);
        text.push_str(plain);
        text.push('\\');
        text.push_str(if special == "\n" { "n" } else { special });
        rest = after;
    }
    text.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: f64) -> String {
        let mut page = Page(String::new());
        page.value(value);
        page.0
    }

    #[test]
    fn a_number_is_written_as_a_float_is() {
        let odd = [
            0.0,
            -0.0,
            -1.0,
            -0.25,
            0.1 + 0.2,
            1.005,
            0.005,
            1e-7,
            1e13,
            1e15,
            1e16,
            1e22,
            f64::MAX,
            f64::MIN_POSITIVE,
            9_007_199_254_740_993.0,
            9_999_999_999_999.99,
            99_999_999_999_999.98,
            1_764_553_612.123,
        ];
        let hundredths = (0..30_000).map(|number| f64::from(number) / 100.0);
        let late = (0..30_000).map(|number| 1_764_553_612.0 + f64::from(number) / 100.0);
        let large = (0..50).map(|power| (1_u64 << power) as f64 + 0.25);
        // Not all of them are the nearest to what they seem to be.
        let sums = (0..30_000).scan(0.0, |sum, _| Some(std::mem::replace(sum, *sum + 0.01)));
        for value in odd.into_iter().chain(hundredths).chain(late).chain(large).chain(sums) {
            assert_eq!(written(value), value.to_string());
        }
    }
}
