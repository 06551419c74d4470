//! What serde and the YAML parser say, in words for admins.

use std::path::Path;

use super::{Diagnostic, end_of};

/// An error with its place, worded anew.
pub fn diagnostic(path: &Path, text: &str, error: &serde_yaml::Error) -> Diagnostic {
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
        Some(("integer" | "boolean", what)) => what.trim_end_matches(" as u128").into(),
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
        "i32" | "u16" | "u32" | "u64" | "usize" => "a whole number",
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
    let near = did_you_mean(wrong.trim_matches('`'), &names);
    match names[..] {
        [only] => format!("{what} {wrong}, expected `{only}`"),
        _ => format!("{what} {wrong}, expected one of {}{near}", names.join(", ")),
    }
}

/// A question at the end of a complaint, where a name is a slip or two away; else nothing.
pub fn did_you_mean(wrong: &str, names: &[&str]) -> String {
    nearest(wrong, names).map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The name that is a slip or two away.
fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
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
