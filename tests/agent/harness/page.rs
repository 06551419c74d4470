//! `/metrics` as samples.

use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Debug, Clone)]
pub struct Page {
    pub text: String,
    pub samples: Vec<Sample>,
}

impl Page {
    /// Reads the text format, version 0.0.4; every line that is neither comment nor sample is an error.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line}"))).collect();
        Self { text: text.to_owned(), samples }
    }

    /// The samples of a family that bear these labels, and maybe others.
    pub fn all<'a>(&'a self, family: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Sample> {
        let bears = |sample: &Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).map_or("", String::as_str) == *value)
        };
        self.samples.iter().filter(move |sample| sample.name == family && bears(sample))
    }

    /// The one sample that bears these labels, if there is one.
    #[track_caller]
    pub fn value(&self, family: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found: Vec<_> = self.all(family, labels).collect();
        assert!(found.len() <= 1, "more than one: {found:?}");
        found.first().map(|sample| sample.value)
    }

    pub fn sum(&self, family: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(family, labels).map(|sample| sample.value).sum()
    }

    pub fn has(&self, family: &str, labels: &[(&str, &str)], value: f64) -> bool {
        self.all(family, labels).any(|sample| sample.value == value)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_ends = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            assert!(labels.insert(key.to_owned(), value).is_none(), "a label twice: {line}");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    Some(Sample { name: name.to_owned(), labels, value: rest.trim().parse().ok()? })
}

/// A label's value up to the closing quote, and what stands behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, char) => value.push(char),
        }
    }
}

#[test]
fn the_text_format_is_read() {
    let page = Page::parse("# HELP a b\na{x=\"1\",y=\"q\\\"\\\\\\n}\"} 2\na{x=\"2\",y=\"\"} +Inf\nb 1e3\n");
    assert_eq!(page.value("a", &[("x", "1"), ("y", "q\"\\\n}")]), Some(2.0));
    assert_eq!(page.value("a", &[("y", "")]), Some(f64::INFINITY));
    assert_eq!(page.value("b", &[]), Some(1000.0));
    assert_eq!(page.value("b", &[("x", "1")]), None);
}
