//! `gpuwarden check` over the broken files, as an admin runs it.

use std::path::PathBuf;
use std::process::{Command, Output};

fn check(files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwarden"))
        .arg("check")
        .args(files)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken"))
        .output()
        .expect("gpuwarden check can be started")
}

#[test]
fn every_broken_file_is_told_and_the_exit_code_is_78() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken");
    let names = std::fs::read_dir(folder).expect("the folder of broken files").map(|entry| entry.unwrap().file_name());
    let mut files: Vec<PathBuf> = names.map(PathBuf::from).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();

    let output = check(&files);
    assert_eq!(output.status.code(), Some(78));
    let told = String::from_utf8(output.stdout).expect("UTF-8");
    // These are whole themselves; what they name is not.
    let stand_ins = [
        ("rules-broken.yaml", "rules/bad.yaml"),
        ("rules-twice.yaml", "rules/same-name.yaml"),
        ("rules-directory.yaml", "rules"),
        ("rules-broken.test.yaml", "rules/bad.yaml"),
        ("rules-a-test.test.yaml", "syntax.test.yaml"),
        ("rules-a-configuration.test.yaml", "unknown-mode.yaml"),
    ];
    for file in &files {
        let file = file.to_str().unwrap();
        let told_of = stand_ins.iter().find(|(name, _)| *name == file).map_or(file, |(_, told_of)| told_of);
        assert!(
            told.lines().any(|line| line.starts_with(&format!("{told_of}:"))),
            "nothing is said of {file}:\n{told}"
        );
    }
    for line in told.lines() {
        let places: Vec<&str> = line.splitn(4, ':').collect();
        assert!(places.len() == 4 && places[1..3].iter().all(|place| place.parse::<usize>().is_ok()), "{line}");
    }
}

#[test]
fn good_rules_are_exit_code_0_and_no_error() {
    let output = check(&["rules/good.yaml".into()]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]));
    // Where there is no driver to ask, that is said, and not among the errors.
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.is_empty() || told.starts_with("GPUs are not checked: "), "{told}");
}
