//! The command line: what is printed, and the exit codes.

use crate::harness::agent::{free_address, in_node, serve};
use crate::harness::node::library;
use crate::harness::wait::within;
use crate::harness::worker::SLEEPS;
use crate::harness::{LIMIT, Node, root};
use std::process::{Command, Output, Stdio};

/// Runs to its end.
fn output(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if within(LIMIT, || child.try_wait().unwrap()).is_none() {
        child.kill().unwrap();
        panic!("{command:?} does not end: {:?}", child.wait_with_output());
    }
    child.wait_with_output().unwrap()
}

fn gpuwarden(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwarden"));
    command.args(arguments);
    output(command)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_owned()).unwrap()
}

#[test]
fn help_is_no_failure_and_a_wrong_flag_is_two() {
    let help = gpuwarden(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for command in ["serve", "demo", "check", "test", "status", "reset"] {
        assert!(text(&help.stdout).contains(command), "{command}");
        assert_eq!(gpuwarden(&[command, "--help"]).status.code(), Some(0), "{command}");
    }
    assert_eq!(gpuwarden(&["--version"]).status.code(), Some(0));
    for wrong in [&["serve", "--no.such-flag"][..], &["no-such-command"], &[], &["serve", "--web.listen-address=here"]]
    {
        let said = gpuwarden(wrong);
        assert_eq!(said.status.code(), Some(2), "{wrong:?}");
        assert!(!said.stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn a_file_of_another_kind_is_told_as_what_it_is() {
    let rules = gpuwarden(&["test", "rules/unassigned-gpu.yaml"]);
    assert_eq!(rules.status.code(), Some(78));
    assert_eq!(
        text(&rules.stderr),
        "rules/unassigned-gpu.yaml:1:1: a rule file, expected a rule test: these are called `*.test.yaml`\n"
    );
    for file in ["docs/examples/alerts.yaml", "docs/examples/scenario.yaml"] {
        let said = gpuwarden(&["check", file]);
        assert_eq!(said.status.code(), Some(78));
        let told = text(&said.stdout);
        assert!(told.starts_with(&format!("{file}:1:1: no file of gpuwarden's, expected ")), "{told}");
    }
}

#[test]
fn check_asks_the_driver_that_it_is_told_and_only_where_a_gpu_is_named() {
    let node = Node::new(2);
    node.write("named.yaml", "assignments: {fixed: [{to: everyone, gpus: [0, 2]}]}\nrules: []\n");
    node.write("unnamed.yaml", "rules: []\n");
    let check = |file: &str, library: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwarden"));
        command.env("NVML_SIM_SCENARIO", node.path("scenario.yaml"));
        command.args(["check", &format!("--nvml.library={library}")]).arg(node.path(file));
        output(command)
    };
    let library = library().display().to_string();
    let told = text(&check("named.yaml", &library).stdout);
    assert!(told.contains("unknown GPU `2`") && !told.contains("unknown GPU `0`"), "{told}");
    let unread = check("named.yaml", "/nowhere.so");
    assert!(text(&unread.stderr).starts_with("GPUs are not checked: there is no NVIDIA driver: "));
    assert_eq!(unread.status.code(), Some(0));
    assert_eq!(text(&check("unnamed.yaml", "/nowhere.so").stderr), "");
}

#[test]
fn a_configuration_that_is_missing_or_wrong_is_seventy_eight() {
    let node = Node::new(1);
    let none = node.path("none.yaml").display().to_string();
    for command in [vec!["serve".to_owned(), format!("--config.file={none}")], vec!["check".to_owned(), none.clone()]] {
        let said = gpuwarden(&command.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(said.status.code(), Some(78), "{command:?}: {said:?}");
        assert!((text(&said.stderr) + &text(&said.stdout)).contains(&none), "{said:?}");
    }
    node.configure("mode: enfroce");
    let mut command = in_node(&node);
    command.args(serve(&node, free_address()));
    let said = output(command);
    assert_eq!(said.status.code(), Some(78), "{said:?}");
    // The mode stands below the three lines that all configurations here begin with.
    assert!(text(&said.stderr).contains("gpuwarden.yaml:4:7"), "{}", text(&said.stderr));
}

#[test]
fn a_reader_who_has_seen_enough_does_not_change_the_exit_code() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/rules");
    let tests = std::fs::read_dir(rules).unwrap().map(|file| file.unwrap().path());
    let tests: Vec<_> = tests.filter(|path| path.to_string_lossy().ends_with(".test.yaml")).collect();
    let broken = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/broken/several.yaml");
    for (arguments, files, code) in [("test", tests, 0), ("check", vec![broken.into()], 78)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwarden"));
        command.arg(arguments).args(&files).stdout(writer).stderr(Stdio::piped());
        let said = command.output().unwrap();
        assert_eq!(said.status.code(), Some(code), "{arguments}: {}", text(&said.stderr));
        assert!(!text(&said.stderr).contains("pipe"), "{arguments}: {}", text(&said.stderr));
    }
}

#[test]
fn complaints_that_nobody_reads_change_no_exit_code() {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut serve = Command::new(env!("CARGO_BIN_EXE_gpuwarden"));
    let status = serve.args(["serve", "--config.file=/nonexistent.yaml"]).stderr(write).status().unwrap();
    assert_eq!(status.code(), Some(78));
}

#[test]
fn a_second_agent_on_one_state_directory_gives_up_and_says_why() {
    let node = Node::new(1);
    let agent = node.start();
    let mut second = in_node(&node);
    second.args(serve(&node, free_address()));
    let said = output(second);
    assert_eq!(said.status.code(), Some(1));
    let state = node.path("state").display().to_string();
    assert!(text(&said.stderr).contains(&state) && text(&said.stderr).contains("another"), "{}", text(&said.stderr));
    agent.cycles(1);
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let node = Node::new(1);
    let mut command = in_node(&node);
    command.args(serve(&node, address));
    let said = output(command);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains(&address.to_string()), "{}", text(&said.stderr));
}

#[test]
fn status_prints_who_holds_what() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = Node::new(2);
    node.configure("mode: observe\nassignments: {fixed: [{to: {user: bob}, gpus: [1]}]}");
    let worker = node.runs(node.alice, SLEEPS);
    node.held(1, &[&worker.with(10)]);
    let agent = node.start();
    agent.cycles(1);
    let url = format!("http://{}", agent.address);
    let table = gpuwarden(&["status", "--url", &url]);
    assert_eq!(table.status.code(), Some(0), "{table:?}");
    for shown in ["alice", "bob", "H100", &worker.pid().to_string()] {
        assert!(text(&table.stdout).contains(shown), "{shown:?} is not in {}", text(&table.stdout));
    }
    let json = gpuwarden(&["status", "--url", &url, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json.to_string().contains("alice"), "{json}");
    drop(agent);
    let gone = gpuwarden(&["status", "--url", &url]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains(&url["http://".len()..]), "{}", text(&gone.stderr));
}

#[test]
fn the_page_is_served_on_a_socket_as_well() {
    use std::io::{Read, Write};

    let node = Node::new(1);
    let socket = node.path("web.sock");
    let agent = node.start_with(&[&format!("--web.listen-address=unix:{}", socket.display())]);
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"GET /-/healthy HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("healthy.\n"), "{answer}");
    assert_eq!(agent.ready().status, 200);
}
