//! YAML text to values, with the place and a plain sentence for each error. Bounded, whatever the text.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess,
    SeqAccess, Visitor,
};

use super::diagnostic::Diagnostic;
use crate::policy::check::{Complaint, Step};
use crate::source::assignment::files::too_deep;

/// No configuration that people write is larger.
const LARGEST_FILE: u64 = 1 << 20;

/// What aliases may blow a file up to: values, with a byte of text counted as a sixteenth.
const LARGEST_TREE: usize = 1 << 18;

/// Errors of one file that are looked for; nobody reads more.
const MOST_ERRORS: usize = 100;

/// How often a file is read from its top in search of errors: 8 MiB of text are some tenths of a second.
fn most_walks(text: &str) -> usize {
    ((8 << 20) / text.len().max(1)).clamp(1, MOST_ERRORS)
}

/// The text of a file, or why there is none. Never waits for a pipe or reads a device.
pub fn read(path: &Path) -> Result<String, Diagnostic> {
    let unread = |error| Diagnostic::of_file(path, format!("cannot be read: {error}, expected a YAML file"));
    let metadata = std::fs::metadata(path).map_err(unread)?;
    if metadata.is_dir() {
        return Err(Diagnostic::of_file(path, "a directory, expected a YAML file"));
    }
    if !metadata.is_file() {
        return Err(Diagnostic::of_file(path, "not a regular file, expected a YAML file"));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)).map_err(unread)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(Diagnostic::of_file(path, "too large, expected at most 1MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = end_of(&good);
        Diagnostic { file: path.to_owned(), line, column, message: "not UTF-8, expected UTF-8 text".into() }
    })?;
    // The parser takes the mark of the byte order with which some editors begin a file for a document of its own.
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    match too_deep(&text) {
        None => Ok(text),
        Some((line, column)) => {
            Err(Diagnostic { file: path.to_owned(), line, column, message: "too deep, expected fewer levels".into() })
        }
    }
}

/// Line and column behind the last character.
fn end_of(text: &str) -> (usize, usize) {
    let last = text.rsplit('\n').next().map_or(0, |line| line.chars().count());
    (text.matches('\n').count() + 1, last + 1)
}

/// A part of a file that is read once more on its own when the whole failed, to find more errors than the first.
pub struct Part {
    at: Vec<Step>,
    read: fn(&str, &[Step]) -> Result<bool, serde_yaml::Error>,
    each_item: bool,
}

impl Part {
    pub fn of<T: DeserializeOwned>(at: Vec<Step>) -> Self {
        Self { at, read: |text, at| seek::<T>(text, at).map(|found| found.is_some()), each_item: false }
    }

    /// Every item of the list at that path.
    pub fn of_items<T: DeserializeOwned>(at: Vec<Step>) -> Self {
        Self { each_item: true, ..Self::of::<T>(at) }
    }

    fn errors(&self, text: &str, errors: &mut Vec<serde_yaml::Error>) {
        let most = if self.each_item { most_walks(text) } else { 1 };
        for item in 0..most {
            let mut at = self.at.clone();
            if self.each_item {
                at.push(Step::Item(item));
            }
            match (self.read)(text, &at) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => errors.push(error),
            }
        }
    }
}

/// Reads a file's text as a `T`. With an error, `parts` are read on their own for more of them.
pub fn parse<T: DeserializeOwned>(
    path: &Path,
    text: &str,
    expected: &str,
    parts: &[Part],
) -> Result<T, Vec<Diagnostic>> {
    let mut census = Census { budget: LARGEST_TREE, at: Vec::new(), complaints: Vec::new() };
    if let Err(error) = DeserializeSeed::deserialize(&mut census, serde_yaml::Deserializer::from_str(text)) {
        return Err(vec![diagnostic(path, text, &error)]);
    }
    if census.budget == LARGEST_TREE {
        return Err(vec![Diagnostic::of_file(path, format!("an empty file, expected {expected}"))]);
    }
    let mut diagnostics = locate_all(path, text, census.complaints);
    let known = diagnostics.len();
    match serde_yaml::from_str(text) {
        Ok(value) if known == 0 => return Ok(value),
        Ok(_) => {}
        Err(error) => {
            let mut errors = vec![error];
            parts.iter().for_each(|part| part.errors(text, &mut errors));
            // The census has told where the second of two equal keys stands.
            let new = errors.iter().filter(|error| known == 0 || !error.to_string().contains("duplicate field `"));
            diagnostics.extend(new.map(|error| diagnostic(path, text, error)));
        }
    }
    Err(sorted(diagnostics))
}

/// In the order of the file, each once.
pub fn sorted(mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    diagnostics.sort();
    diagnostics.dedup();
    diagnostics
}

/// Each once, the files in the order in which they came.
pub fn in_order(diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = std::collections::BTreeSet::new();
    diagnostics.into_iter().filter(|diagnostic| seen.insert(diagnostic.clone())).collect()
}

/// Complaints about a file with their places.
pub fn locate_all(path: &Path, text: &str, complaints: Vec<Complaint>) -> Vec<Diagnostic> {
    let place = |Complaint { at, what }| {
        let (line, column) = locate(text, &at);
        Diagnostic { file: path.to_owned(), line, column, message: what }
    };
    complaints.into_iter().take(most_walks(text)).map(place).collect()
}

/// The place of a path, or of as much of it as there is.
fn locate(text: &str, at: &[Step]) -> (usize, usize) {
    (0..=at.len())
        .rev()
        .find_map(|depth| seek::<Nothing>(text, &at[..depth]).err())
        .and_then(|error| error.location())
        .map_or((1, 1), |place| (place.line(), place.column()))
}

/// What no value is: the error bears the place.
enum Nothing {}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Refuse;

        impl Visitor<'_> for Refuse {
            type Value = Nothing;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("nothing")
            }
        }

        deserializer.deserialize_any(Refuse)
    }
}

/// The keys of a map, in their order.
pub struct Keys(pub Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_any(Collect)
    }
}

/// Reads what stands at a path, or `None` where the path leads nowhere.
pub fn seek<T: DeserializeOwned>(text: &str, at: &[Step]) -> Result<Option<T>, serde_yaml::Error> {
    Seek { at, as_type: std::marker::PhantomData }.deserialize(serde_yaml::Deserializer::from_str(text))
}

struct Seek<'a, T> {
    at: &'a [Step],
    as_type: std::marker::PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Seek<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        if self.at.is_empty() { T::deserialize(deserializer).map(Some) } else { deserializer.deserialize_any(self) }
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Seek<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list or a map")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<T>, A::Error> {
        let mut found = None;
        if let [Step::Item(wanted), below @ ..] = self.at {
            for _ in 0..*wanted {
                if items.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            found = items.next_element_seed(Seek { at: below, as_type: self.as_type })?.flatten();
        }
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<T>, A::Error> {
        let mut found = None;
        let mut times = 0;
        while let Some(is_name) = map.next_key_seed(SeekKey { at: self.at, times: &mut times })? {
            match self.at {
                [Step::Key(_), below @ ..] if is_name && found.is_none() => {
                    found = map.next_value_seed(Seek { at: below, as_type: self.as_type })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// Tells whether a key is the next step, and fails at the key that a path ends with.
struct SeekKey<'a> {
    at: &'a [Step],
    times: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for SeekKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for SeekKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        match self.at.first() {
            Some(Step::Key(wanted)) => Ok(wanted == key),
            Some(Step::Name(wanted, occurrence)) if wanted == key => {
                *self.times += 1;
                if *self.times > *occurrence { Err(E::custom("here")) } else { Ok(false) }
            }
            _ => Ok(false),
        }
    }
}

/// A first walk through the whole file: how large it is with its aliases, and what no file of ours may contain. Two equal
/// keys of a named map serde would take without a word, and a value that is not there for a default.
struct Census {
    budget: usize,
    at: Vec<Step>,
    complaints: Vec<Complaint>,
}

impl Census {
    fn count<E: serde::de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.budget = self.budget.checked_sub(1 + bytes / 16).filter(|left| *left > 0).ok_or_else(|| {
            E::custom("too much, expected a smaller file; aliases (`*name`) count as what they stand for")
        })?;
        Ok(())
    }

    fn complain(&mut self, at: Vec<Step>, what: String) {
        if self.complaints.len() < MOST_ERRORS {
            self.complaints.push(Complaint { at, what });
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut Census {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Census {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.count(0)
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<(), E> {
        self.count(0)
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<(), E> {
        self.count(0)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.count(0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.count(text.len())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.at.is_empty() {
            return Ok(());
        }
        self.count(0)?;
        let what = match self.at.last() {
            Some(Step::Key(key)) => format!("`{key}` has no value, expected one, or the key left out"),
            _ => "an item without a value, expected one".into(),
        };
        let at = self.at.clone();
        self.complain(at, what);
        Ok(())
    }

    /// The whole of an empty file.
    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.count(0)?;
        for item in 0.. {
            self.at.push(Step::Item(item));
            if items.next_element_seed(&mut *self)?.is_none() {
                break;
            }
            self.at.pop();
        }
        self.at.pop();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.count(0)?;
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        while let Some(Name(key)) = map.next_key()? {
            self.count(key.len())?;
            let before = times.entry(key.clone()).or_default();
            if *before > 0 {
                let at = self.at.iter().cloned().chain([Step::Name(key.clone(), *before)]).collect();
                self.complain(at, format!("duplicate key `{key}`, expected it once"));
            }
            *before += 1;
            self.at.push(Step::Key(key));
            map.next_value_seed(&mut *self)?;
            self.at.pop();
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(A::Error::custom("a tag (`!…`), expected a plain value; quote a text that begins with `!`"))
    }
}

/// A key.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Plain;

        impl Visitor<'_> for Plain {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a key, which is a word")
            }

            fn visit_str<E>(self, key: &str) -> Result<Name, E> {
                Ok(Name(key.to_owned()))
            }
        }

        deserializer.deserialize_str(Plain)
    }
}

fn diagnostic(path: &Path, text: &str, error: &serde_yaml::Error) -> Diagnostic {
    let (line, column) = error.location().map_or((1, 1), |place| (place.line(), place.column()));
    let whole = error.to_string();
    let bare = whole.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&whole);
    let file = path.to_owned();
    if let Some((line, column, message)) = in_syntax(text, bare, line, column) {
        return Diagnostic { file, line, column, message };
    }
    // `rules[0].when[1]: …`: the place says as much. Known keys have no spaces, and unknown ones are refused above them.
    let bare = match bare.split_once(": ") {
        Some((path, rest)) if !path.contains([' ', '`', '"']) => rest,
        _ => bare,
    };
    Diagnostic { file, line, column, message: reworded(bare) }
}

/// What the YAML parser itself said, in words for people who do not know its grammar.
fn in_syntax(text: &str, bare: &str, line: usize, column: usize) -> Option<(usize, usize, String)> {
    let written: Vec<char> = text.lines().nth(line - 1).into_iter().flat_map(str::chars).collect();
    let here = written.get(column - 1).copied();
    let say = |what: &str| Some((line, column, what.to_owned()));
    if bare.contains("while scanning a block scalar") || (bare.contains("cannot start any token") && here == Some('>'))
    {
        // The parser stops behind the sign, in the comparison.
        let sign =
            written[..column.min(written.len())].iter().rposition(|c| matches!(c, '>' | '|')).unwrap_or(column - 1);
        let comparison: String = written[sign..].iter().take_while(|c| !matches!(c, '#' | '}' | ',')).collect();
        let comparison = comparison.trim_end();
        return Some((
            line,
            sign + 1,
            format!("`{comparison}` means a block of text in YAML, expected a quoted comparison: \"{comparison}\""),
        ));
    }
    if bare.contains("cannot start any token") {
        return match here {
            Some('\t') => say("a tab, expected spaces: YAML is not indented with tabs"),
            Some(c) => Some((line, column, format!("`{c}` cannot begin a value in YAML, expected it in quotes"))),
            None => say("broken YAML, expected a value"),
        };
    }
    if let Some(control) = bare.strip_prefix("control characters are not allowed at position ") {
        let before: String = text.chars().take(control.split(' ').next()?.parse().ok()?).collect();
        let (line, column) = end_of(&before);
        return Some((line, column, "a control character, expected text".into()));
    }
    let context = bare.rsplit_once(", while ").map(|(_, context)| context);
    let begun =
        context.and_then(|context| context.split_once(" at line ")).map(|(_, place)| place.split(" column ").next());
    let begun = begun.flatten().map(|line| format!(", in what begins in line {line}")).unwrap_or_default();
    if bare == "unknown anchor" {
        return say(
            "an alias (`*name`) without its anchor, expected `&name` before it; quote a text that begins with `*`",
        );
    }
    if bare.contains("more than one document") {
        let second = text.lines().enumerate().skip(1).filter(|(_, line)| line.starts_with("---")).map(|(at, _)| at + 1);
        let content = text.lines().position(|line| !line.starts_with(['#', '-', '%']) && !line.trim().is_empty());
        let line = second.into_iter().find(|line| content.is_none_or(|content| *line > content)).unwrap_or(line);
        return Some((line, 1, "a second document (`---`), expected one in a file".into()));
    }
    if bare.contains("mapping values are not allowed") {
        return say(
            "a second `:`, or a line that is indented too far, expected one `key: value` in a line; quote a text with `: `",
        );
    }
    if bare.contains("recursion limit exceeded") {
        return say("too deep, expected fewer levels, and no alias (`*name`) inside its own anchor");
    }
    if bare.contains("repetition limit exceeded") {
        return say("too many aliases (`*name`), expected a smaller file");
    }
    if bare.contains("found unexpected end of stream") || (here.is_none() && bare.contains("while parsing a flow")) {
        return Some((line, column, format!("the file ends too early{begun}, expected a closing quote or bracket")));
    }
    if bare.contains("did not find expected key") || bare.contains("did not find expected '-' indicator") {
        return Some((
            line,
            column,
            format!("broken YAML{begun}, expected a key or an item as far to the right as those before it"),
        ));
    }
    if bare.contains("could not find expected ':'") {
        return Some((line, column, format!("a key without its `:`{begun}, expected `key: value`")));
    }
    if let Some(closing) = bare.strip_prefix("did not find expected ',' or ") {
        let closing: String = closing.trim_start_matches('\'').chars().take(1).collect();
        return Some((line, column, format!("broken YAML{begun}, expected `,` or `{closing}` before this")));
    }
    // serde's sentences, and ours, say what was expected.
    let sentence =
        [", expected ", " is not ", "missing field ", "duplicate field "].iter().any(|words| bare.contains(words));
    let problem = bare.split(" at line ").next().unwrap_or(bare);
    (!sentence).then(|| (line, column, format!("broken YAML ({problem}){begun}, expected other text here")))
}

/// serde's wording, in words for admins.
fn reworded(bare: &str) -> String {
    if let Some(rest) = bare.strip_prefix("unknown field ") {
        return unknown("unknown key", rest);
    }
    if let Some(rest) = bare.strip_prefix("unknown variant ") {
        return unknown(if rest.contains("`assigned_to_other`") { "unknown fact" } else { "unknown word" }, rest);
    }
    if let Some(rest) = bare.strip_prefix("missing field ") {
        return format!("the key {rest} is missing, expected it here");
    }
    if let Some(rest) = bare.strip_prefix("duplicate field ") {
        return format!("duplicate key {rest}, expected it once");
    }
    if bare == "invalid value: map, expected map with a single key" {
        return "a map of several keys or none, expected one fact in each item: begin each with `- `".into();
    }
    if bare == "invalid type: unit variant, expected newtype variant" {
        return "a fact without a value, expected one, such as `assigned: false`".into();
    }
    let found = bare.strip_prefix("invalid type: ").or_else(|| bare.strip_prefix("invalid value: "));
    match found.and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => format!("found {}, expected {}", found_in_words(found), expected_in_words(expected)),
        None => bare.to_owned(),
    }
}

fn found_in_words(found: &str) -> String {
    match found.split_once(' ') {
        None if found == "sequence" => "a list".into(),
        None if found == "map" => "a map".into(),
        Some(("unit", _)) => "nothing".into(),
        Some(("integer" | "boolean", what)) => what.into(),
        Some(("string", what)) => format!("`{}`", what.trim_matches('"')),
        Some(("floating", what)) => what.trim_start_matches("point ").into(),
        _ => found.into(),
    }
}

fn expected_in_words(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a boolean" => "true or false",
        "a string" => "a text",
        "u16" | "u32" | "u64" | "usize" => "a whole number",
        "enum Condition" => "one condition, such as `assigned: false`",
        _ if expected.starts_with("struct ") => "a map of keys",
        _ if expected.starts_with("enum ") || expected == "variant identifier" => "one word",
        _ => expected,
    }
}

/// serde's `` `wrong`, expected one of `a`, `b` `` with the nearest of them.
fn unknown(what: &str, rest: &str) -> String {
    let Some((wrong, known)) = rest.split_once(", expected ") else {
        return format!("{what} {}", rest.replace(", there are no fields", ", expected none here"));
    };
    let names: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let near =
        nearest(wrong.trim_matches('`'), &names).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    match names[..] {
        [only] => format!("{what} {wrong}, expected `{only}`"),
        _ => format!("{what} {wrong}, expected one of {}{near}", names.join(", ")),
    }
}

/// The name that is a slip or two away.
pub fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let wrong: String = wrong.chars().take(64).collect::<String>().to_lowercase();
    names
        .iter()
        .map(|name| (distance(&wrong, &name.to_lowercase()), *name))
        .filter(|(slips, name)| *slips <= 1 + name.len() / 4 && *slips < name.len())
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, name)| name)
}

/// Letters to add, take away or change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
