//! The walls of the house: which module may know which, what pure modules may not name, and what stands nowhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A module, and those that it may know. Nothing knows `main` and `agent`; they know all.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("nesting", &[]),
    ("text", &[]),
    ("causes", &["text"]),
    ("disk", &[]),
    ("units", &[]),
    ("schedule", &["units"]),
    ("snapshot", &["units", "schedule"]),
    ("policy", &["units", "schedule", "snapshot"]),
    ("source", &["nesting", "text", "disk", "units", "schedule", "snapshot"]),
    ("notify", &["text", "units", "snapshot", "policy", "source"]),
    ("audit", &["units", "snapshot", "policy"]),
    ("state", &["disk", "policy"]),
    ("control", &["state"]),
    ("enforce", &["causes", "units", "snapshot", "policy", "source", "notify", "audit", "state"]),
    ("config", &["nesting", "text", "units", "snapshot", "policy", "source", "enforce"]),
    ("cycle", &["units", "snapshot", "policy", "enforce"]),
    ("export", &["units", "snapshot", "policy", "enforce", "cycle"]),
    ("http", &["text", "units", "snapshot", "policy", "config", "cycle", "export"]),
    ("trial", &["units", "schedule", "snapshot", "policy", "source", "config"]),
    ("status", &["causes", "text", "units", "http"]),
    ("demo", &[]),
    ("cli", &["units", "config", "http", "control", "status"]),
];

/// The modules as `main.rs` declares them.
fn declared() -> Vec<String> {
    let main = fs::read_to_string(root().join("src/main.rs")).unwrap();
    main.lines().filter_map(|line| Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())).collect()
}

#[test]
fn a_module_knows_only_those_that_are_declared_before_it() {
    let order = declared();
    for (module, allowed) in MAY_KNOW {
        let before = order.iter().take_while(|name| name != module).collect::<Vec<_>>();
        for known in *allowed {
            assert!(before.iter().any(|name| name == known), "{module} may know {known}, which stands after it");
        }
    }
}

/// Files and folders that may not name a clock, a file, a socket or a runtime.
const PURE: &[&str] = &["nesting", "text", "units", "schedule", "snapshot", "policy", "source/cgroup", "export"];

const IMPURE_WORDS: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "Instant",
    "SystemTime",
    "Timestamp::now",
    "Zoned::now",
    "tokio",
    "hyper",
    "rustix",
    "nix::",
];

/// Who may read a clock: the sources, and the page where it compares the last cycle with now.
const CLOCK_WORDS: &[&str] = &["SystemTime::now", "Timestamp::now", "Zoned::now", "clock_gettime", "Instant::now"];
const MAY_READ_A_CLOCK: &[&str] = &["source", "http", "demo", "status", "control", "agent"];

#[test]
fn modules_know_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for file in sources() {
        let module = module(&file);
        if ["main", "agent"].contains(&module.as_str()) {
            continue;
        }
        let allowed = MAY_KNOW.iter().find(|(name, _)| *name == module);
        let Some((_, allowed)) = allowed else {
            wrong.push(format!("{} is not in the table", file.display()));
            continue;
        };
        for known in known_modules(&code(&file)) {
            if known != module && !allowed.contains(&known.as_str()) {
                wrong.push(format!("{} knows `{known}`", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_modules_name_no_clock_file_socket_or_runtime() {
    let pure = sources().into_iter().filter(|file| {
        let path = file.with_extension("");
        PURE.iter().any(|pure| path.starts_with(root().join("src").join(pure)))
    });
    expect_no_words(pure, IMPURE_WORDS);
}

#[test]
fn only_the_sources_and_the_page_read_a_clock() {
    let others = sources().into_iter().filter(|file| !MAY_READ_A_CLOCK.contains(&module(file).as_str()));
    expect_no_words(others, CLOCK_WORDS);
}

#[test]
fn unsafe_code_is_a_call_of_the_driver() {
    let raw = root().join("src/source/nvml/raw");
    let others = sources().into_iter().filter(|file| !file.with_extension("").starts_with(&raw));
    expect_no_words(others, &["unsafe "]);
}

#[test]
fn what_is_unknown_becomes_no_default() {
    expect_no_words(sources().into_iter(), &["unwrap_or(0", "unwrap_or(false)", "unwrap_or(\"\")", "allow(dead_code)"]);
}

fn expect_no_words(files: impl Iterator<Item = PathBuf>, words: &[&str]) {
    let mut wrong = Vec::new();
    for file in files {
        let code = code(&file);
        for (number, line) in code.lines().enumerate() {
            if let Some(word) = words.iter().find(|word| line.contains(**word)) {
                wrong.push(format!("{}:{}: `{word}`", file.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the crate, without those that hold only tests.
fn sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && path.file_stem().is_some_and(|it| it != "tests")
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn module(file: &Path) -> String {
    let inside = file.strip_prefix(root().join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The code of a file: without comments, and without the tests at its end. A `mod tests;` ends nothing: it stands among
/// the modules, before the code.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The modules that follow a `crate::`, also within braces.
fn known_modules(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut known = BTreeSet::new();
    for (_, after) in code.match_indices("crate::").map(|(at, word)| (at, &code[at + word.len()..])) {
        match after.strip_prefix('{') {
            Some(list) => known.extend(list.split('}').next().unwrap().split(',').map(|item| name(item.trim()))),
            None => drop(known.insert(name(after))),
        }
    }
    known.retain(|name| !name.is_empty() && name.chars().next().is_some_and(char::is_lowercase));
    known
}
