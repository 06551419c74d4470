use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::prelude::*;
use expect_test::expect_file;
use serde::Deserialize;

use super::*;
use crate::cycle::fixture;
use crate::snapshot::{GpuUuid, Lookup, ProcessId};

fn text(cycle: &Cycle) -> String {
    String::from_utf8(encode(&families(cycle))).unwrap()
}

#[test]
fn the_page_is_as_expected() {
    expect_file!["../../tests/golden/page.prom"].assert_eq(&text(&fixture::cycle()));
}

fn promtool(page: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect(
            "promtool is needed to check the page: install Debian's package `prometheus`, or put promtool on the PATH",
        );
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr))
}

#[test]
fn promtool_has_nothing_to_say_about_the_page() {
    assert_eq!(promtool(&text(&fixture::cycle())), "");
}
