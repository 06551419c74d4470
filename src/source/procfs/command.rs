//! A command line as it may be shown: secrets masked, nothing that a terminal would obey.

use crate::text::cleaned;

/// What stands for a secret.
const MASK: &str = "***";
/// Longer ones are cut: they are for people to recognise a program by.
const LONGEST: usize = 4096;
/// How much of a line is looked at, in bytes. Its owner chooses its length, up to some megabytes.
pub const READ: usize = 4 * LONGEST;

/// Parts of a name that make its value a secret, alone or in this order: `--api-key`, `HF_TOKEN`, `dbPassword`.
const SECRET_NAMES: [&[&str]; 24] = [
    &["password"],
    &["passwd"],
    &["passphrase"],
    &["passwort"],
    &["pass"],
    &["pwd"],
    &["secret"],
    &["secrets"],
    &["token"],
    &["apikey"],
    &["apitoken"],
    &["credential"],
    &["credentials"],
    &["auth"],
    &["authorization"],
    &["bearer"],
    &["cookie"],
    &["signature"],
    &["api", "key"],
    &["access", "key"],
    &["private", "key"],
    &["encryption", "key"],
    &["account", "key"],
    &["license", "key"],
];

/// How secrets of well-known services begin, whatever stands before them.
const SECRET_VALUES: [&str; 14] = [
    "sk-",
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA",
    "ASIA",
    "nvapi-",
    "AIza",
    "eyJ",
];

/// The text of `/proc/<pid>/cmdline`, whose arguments end in NUL. What goes on after [`READ`] bytes is left out, with the
/// word that was cut: a half secret no longer looks like one.
pub fn masked(text: &[u8]) -> String {
    let is_end = |b: &u8| *b == 0 || b.is_ascii_whitespace();
    let end = text.get(..READ).map(|read| read.iter().rposition(is_end).map_or(0, |at| at));
    let shown = shown(&text[..end.unwrap_or(text.len())]);
    if end.is_some() && !shown.ends_with('…') { format!("{shown}…") } else { shown }
}

fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let arguments = text.trim_end_matches('\0').split('\0');
    let mut shown: Vec<String> = Vec::new();
    let mut secret_follows = false;
    for argument in arguments {
        // The argument after `--password` is the secret, whatever is in it; in a line that a process wrote itself, as
        // its title, all words are one argument.
        let all = std::mem::take(&mut secret_follows);
        let mut words = Vec::new();
        for word in argument.split(char::is_whitespace) {
            let secret = (all || secret_follows) && !word.is_empty();
            words.push(if secret { MASK.to_owned() } else { without_secrets(word) });
            secret_follows = !all && announces(word);
        }
        shown.push(words.join(" "));
    }
    cut(&cleaned(&shown.join(" "), ' '))
}

/// Whether the word after this one is a secret: `--api-key`, `Authorization:`, `Bearer`.
fn announces(word: &str) -> bool {
    let name = word.trim_matches(|c: char| !c.is_alphanumeric());
    let flag = word.starts_with('-') && !word.contains('=');
    let header = word.trim_start_matches(['"', '\'']).ends_with([':', '=']);
    let scheme = matches!(name.to_ascii_lowercase().as_str(), "bearer" | "basic") && !word.contains(['=', '/']);
    ((flag || header) && is_secret_name(name)) || scheme
}

fn without_secrets(word: &str) -> String {
    let word = without_url_password(word);
    let mut shown = String::new();
    // `{"user":"a","api_key":"b"}`, `https://host/?a=b&token=c`
    for part in word.split_inclusive([',', ';', '&', '?', '{', '}']) {
        let ends = part.len() - part.trim_end_matches([',', ';', '&', '?', '{', '}']).len();
        let (body, end) = part.split_at(part.len() - ends);
        shown.push_str(&without_value(body));
        shown.push_str(end);
    }
    shown
}

/// `name=value` and `name:value` without the value of a secret.
fn without_value(part: &str) -> String {
    // Word by word and never from the start again: a part may consist of nothing but colons.
    let (mut words, mut from) = (Vec::new(), 0);
    for (at, _) in part.char_indices().filter(|(_, c)| matches!(c, '=' | ':')) {
        let seen = words.len();
        words.extend(words_of(&part[from..at]));
        from = at + 1;
        if from < part.len() && (is_only_key(&words) || names_secret(&words[seen.saturating_sub(1)..])) {
            return format!("{}{MASK}", &part[..=at]);
        }
    }
    let start = part.find(['=', ':']).map_or(0, |at| at + 1);
    let value = part[start..].trim_start_matches(['"', '\'']);
    if SECRET_VALUES.iter().any(|prefix| value.len() >= prefix.len() + 12 && value.starts_with(prefix)) {
        return format!("{}{MASK}", &part[..start]);
    }
    part.to_owned()
}

/// `scheme://user:password@host`; where there is no colon the user may be a token.
fn without_url_password(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let Some((person, host)) = rest.rsplit_once('@') else { return word.to_owned() };
    let person = match person.split_once(':') {
        Some((user, _)) => format!("{user}:{MASK}"),
        None => MASK.to_owned(),
    };
    format!("{scheme}://{person}@{host}")
}

fn is_secret_name(name: &str) -> bool {
    let words = words_of(name);
    is_only_key(&words) || names_secret(&words)
}

/// `--key X`: nobody can tell, so it is one.
fn is_only_key(words: &[String]) -> bool {
    matches!(words, [only] if only == "key")
}

fn names_secret(words: &[String]) -> bool {
    SECRET_NAMES.iter().any(|secret| words.windows(secret.len()).any(|run| run == *secret))
}

/// `--apiKey`, `API_KEY` and `api-key` in the same words.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if begins {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        id: String,
        argv: Vec<String>,
        #[serde(default)]
        must_contain: Vec<String>,
        #[serde(default)]
        must_not_contain: Vec<String>,
    }

    #[test]
    fn no_secret_of_the_table_is_shown() {
        let table = include_str!("../../../tests/cases/cmdline_redaction.yaml");
        let cases: Vec<Case> = serde_yaml::from_str(table).unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            // As the kernel has it, and as a process that sets its own title writes it.
            for text in [case.argv.join("\0"), case.argv.join(" ")] {
                let shown = masked(text.as_bytes());
                assert!(case.must_not_contain.iter().all(|secret| !shown.contains(secret)), "{} {shown}", case.id);
                assert!(case.must_contain.iter().all(|part| shown.contains(part)), "{} {shown}", case.id);
            }
        }
    }

    #[test]
    fn a_line_keeps_what_is_no_secret() {
        for (argv, shown) in [
            (&["python", "train.py", "--lr=1e-3"][..], "python train.py --lr=1e-3"),
            (&["vllm", "serve", "--api-key=abc", "--port", "80"], "vllm serve --api-key=*** --port 80"),
            (&["a", "--password", "my secret words", "-v"], "a --password *** *** *** -v"),
            (&["a", "--token", "--verbose"], "a --token ***"),
            (&["a", "--max-tokens", "512", "--tokenizer=bert"], "a --max-tokens 512 --tokenizer=bert"),
            (&["a", "--apiKey", "x"], "a --apiKey ***"),
            (&["curl", "-H", "Authorization: Bearer abc"], "curl -H Authorization: *** ***"),
            (&["curl", "https://h/?a=b&token=c&d=e"], "curl https://h/?a=b&token=***&d=e"),
            (&["git", "clone", "https://abc@github.com/x"], "git clone https://***@github.com/x"),
            (&["a", "{\"u\":\"v\",\"api_key\":\"w\"}"], "a {\"u\":\"v\",\"api_key\":***}"),
            (&["a", "sk-abcdefghijklmnop"], "a ***"),
            (&["a", "--model=hf_abcdefghijklmnop"], "a --model=***"),
            (&["sh", "-c", "clear\x1b[2J\nls"], "sh -c clear [2J ls"),
            (&["a", "x\u{202e}y"], "a x y"),
            (&[""], ""),
        ] {
            assert_eq!(masked(argv.join("\0").as_bytes()), shown);
        }
    }

    #[test]
    fn a_name_of_several_words_may_stand_on_both_sides_of_a_colon() {
        for (argument, shown) in [
            ("api:key:x", "api:key:***"),
            ("a:b:key=x", "a:b:key=x"),
            ("key:x", "key:***"),
            ("a::password::x", "a::password:***"),
            ("token=", "token="),
        ] {
            assert_eq!(masked(argument.as_bytes()), shown);
        }
    }

    #[test]
    fn a_line_of_megabytes_takes_no_longer_than_a_long_one() {
        let began = std::time::Instant::now();
        for piece in [":", "a:", "a=", "key", "-", " :", "\0:", "?a=", "\u{202e}"] {
            let shown = masked(piece.repeat(1 << 20).as_bytes());
            assert!(shown.chars().count() <= LONGEST + 1, "{piece}");
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }

    #[test]
    fn a_secret_that_is_cut_is_not_shown() {
        for before in [READ - 7, READ - 16] {
            let text = format!("{} sk-abcdefghijklmnopqrstuvwxyz", "é".repeat(before / 2));
            assert!(!masked(text.as_bytes()).contains("sk-"));
        }
        // Masks are shorter than what they stand for, so that the end of what was read may be shown.
        let text = format!("{} --token {} sk-abcdefghijklmnopqrstuvwxyz", "a", "x".repeat(READ - 30));
        assert_eq!(masked(text.as_bytes()), "a --token ***…");
    }

    #[test]
    fn broken_utf8_is_replaced() {
        assert_eq!(masked(b"job-\xe5\x9e\0x\0"), "job-\u{fffd} x");
    }
}
