//! The agent is ended in the middle of a ladder: it resumes where it was, never higher.

use crate::harness::worker::IGNORES_TERM;
use crate::harness::{Agent, Node, Worker, eventually, root, uptime};
use crate::ladder::{KILL, SENTENCE, SLACK, strict, told};
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

fn offender(node: &mut Node) -> Worker {
    let worker = node.runs_on_terminal(node.alice, IGNORES_TERM);
    node.held(0, &[&worker.with(10)]);
    worker
}

/// One warning, one TERM, one KILL, none early.
fn is_a_whole_ladder(worker: &mut Worker) {
    assert_eq!(worker.ended_by(), KILL);
    let (warned, terms, ended) = (worker.terminal().said(SENTENCE), worker.terms(), uptime());
    assert_eq!(worker.terminal().count(SENTENCE), 1, "{}", worker.terminal().text());
    assert_eq!(terms.len(), 1, "{terms:?}");
    assert!(terms[0] - warned >= 1.5 - SLACK, "warned {warned}, {terms:?}");
    assert!(ended - terms[0] >= 1.0 - SLACK, "{terms:?}, ended {ended}");
}

/// Ends the agent at several points of the ladder.
fn resumes_after(end: fn(Agent)) {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = offender(&mut node);
    // Before the warning.
    end(node.start());
    // Between warning and TERM, twice.
    let agent = node.start();
    worker.terminal().said(SENTENCE);
    let settled = |action: &str| {
        let pid = worker.pid();
        eventually("the ladder is written", || {
            // What is climbed is written after the outcome; a cycle later at the latest.
            (told(&node, action, pid).last()? == "done").then_some(())
        });
    };
    settled("warn");
    agent.cycles(2);
    end(agent);
    let agent = node.start();
    agent.cycles(2);
    end(agent);
    // Between TERM and KILL.
    let agent = node.start();
    eventually("the TERM", || (worker.terms().len() == 1).then_some(()));
    settled("TERM");
    agent.cycles(1);
    end(agent);
    let _agent = node.start();
    is_a_whole_ladder(&mut worker);
}

#[test]
fn an_agent_that_was_ended_resumes_its_ladders() {
    resumes_after(|agent| assert!(agent.stop().success()));
}

#[test]
fn an_agent_that_was_killed_resumes_its_ladders() {
    resumes_after(Agent::kill);
}

/// Not more than one TERM, none early, and no KILL without one.
fn no_signal_twice_or_early(worker: &mut Worker) {
    let terms = worker.terms();
    assert!(terms.len() <= 1, "{terms:?}");
    let warned = worker.terminal().said(SENTENCE);
    if let Some(term) = terms.first() {
        assert!(term - warned >= 1.5 - SLACK, "warned {warned}, {terms:?}");
    }
    if !worker.is_alive() {
        assert_eq!(terms.len(), 1, "a KILL without a TERM");
        assert!(uptime() - terms[0] >= 1.0 - SLACK);
    }
}

/// Of a signal during which the agent was killed nobody knows whether it went out; its target gets no further one.
fn is_lost(node: &Node, worker: &Worker) -> bool {
    let of = |record: &Value| record["outcome"] == "failed" && record["targets"][0]["pid"] == worker.pid();
    node.audit().iter().any(of)
}

#[test]
fn an_agent_that_is_killed_again_and_again_signals_nobody_twice_or_early() {
    if !root("a person of one's own") {
        return;
    }
    for seed in [0x5eed, 0xfeed] {
        let mut node = strict(1);
        let mut workers = [(); 3].map(|()| node.runs_on_terminal(node.alice, IGNORES_TERM));
        node.held(0, &workers.each_ref().map(|worker| worker.with(10)).each_ref());
        let mut random = Random(seed);
        // No agent lives long enough to climb the ladder by itself.
        for round in 0.. {
            assert!(round < 60, "nothing advances");
            let agent = node.start();
            sleep(Duration::from_millis(random.below(900)));
            agent.kill();
            if workers.iter_mut().all(|worker| !worker.is_alive() || is_lost(&node, worker)) {
                break;
            }
        }
        let agent = node.start();
        agent.cycles(6);
        workers.iter_mut().for_each(no_signal_twice_or_early);
    }
}

#[test]
fn an_agent_that_is_killed_while_it_signals_does_not_signal_again() {
    if !root("a person of one's own") {
        return;
    }
    let mut node = strict(1);
    let mut worker = offender(&mut node);
    let agent = node.start();
    eventually("the intent is written", || (!told(&node, "TERM", worker.pid()).is_empty()).then_some(()));
    agent.kill();
    let agent = node.start();
    agent.cycles(8);
    // Either what came of it was written down, and the ladder goes on, or it ends here, and the log says so.
    eventually("the ladder ends", || (!worker.is_alive() || is_lost(&node, &worker)).then_some(()));
    agent.cycles(8);
    assert_eq!(worker.is_alive(), is_lost(&node, &worker));
    no_signal_twice_or_early(&mut worker);
}

/// Marsaglia's xorshift: the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
