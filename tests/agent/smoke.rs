//! The harness itself.

use crate::harness::worker::{IGNORES_TERM, SLEEPS};
use crate::harness::{Node, eventually, root, uptime};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn a_worker_writes_down_each_term() {
    let node = Node::new(1);
    let mut worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    let began = uptime();
    let pid = Pid::from_raw(worker.pid() as i32);
    kill(pid, Signal::SIGTERM).unwrap();
    eventually("it says so", || (worker.terms().len() == 1).then_some(()));
    assert!(worker.terms()[0] >= began - 0.02);
    assert!(worker.is_alive());
    if root("a terminal of somebody else's") {
        std::fs::write(&worker.terminal().path, "hello\n").unwrap();
        worker.terminal().said("hello");
    }
}

#[test]
fn a_worker_sleeps() {
    let node = Node::new(1);
    let mut worker = node.runs(node.alice, SLEEPS);
    assert!(worker.is_alive());
    worker.end();
}
