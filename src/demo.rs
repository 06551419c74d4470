//! `gpuwarden demo`: the agent on a simulated node, with real processes on real terminals.
//!
//! The driver is simulated and lists the demo's own children, with their start times, and nobody else: nobody else can be
//! judged, warned or signalled. Everything ends with the demo, also when it is killed: the children because their
//! terminals are gone, the agent by the signal that it gets for the death of its parent, the files by a shell that waits
//! for the end of a pipe.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, thread};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

mod actor;
mod agent;
mod node;

use actor::Actor;
use agent::Agent;
use node::{CAST, Fate, Folder};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}; choose another address with --web.listen-address")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the simulated driver is neither {} nor {}; `cargo build` leaves it there", beside.display(), installed.display())]
    NoDriver { beside: PathBuf, installed: PathBuf },
    #[error("cannot find this program's own file")]
    Program(#[source] io::Error),
    #[error("cannot make {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot open a terminal for a process")]
    Terminal(#[source] io::Error),
    #[error("cannot start {program}")]
    Start { program: &'static str, source: io::Error },
    #[error("{0} does not begin")]
    Silent(&'static str),
    #[error("the agent has ended; it said: {0}")]
    Ended(String),
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error("cannot print")]
    Print(#[from] io::Error),
}

/// How often it looks what has happened.
const GLANCE: Duration = Duration::from_millis(200);

/// Runs until the time is over, or until it is told to end.
pub fn run(length: Option<Duration>, listen: &[SocketAddr]) -> Result<(), Error> {
    let listen = listen.iter().map(free).collect::<Result<Vec<_>, _>>()?;
    let folder = Folder::new()?;
    let cast = CAST.iter().enumerate().map(|(index, role)| Actor::start(role, index)).collect::<Result<Vec<_>, _>>()?;
    node::write(&folder, &cast)?;
    let agent = Agent::start(folder, &driver()?, &listen)?;
    let told_to_end = told_to_end().map_err(|errno| Error::Signals(errno.into()))?;

    let mut story = Story { began: Instant::now(), out: io::stdout(), agent, cast, told: BTreeMap::new() };
    story.scene(&listen)?;
    while length.is_none_or(|length| story.began.elapsed() < length) {
        if matches!(told_to_end.read_signal(), Ok(Some(_))) {
            break;
        }
        thread::sleep(GLANCE);
        story.go_on()?;
    }
    story.end()
}

/// From now on these signals are read instead of ending the program. Children would inherit that: they have been started.
fn told_to_end() -> nix::Result<SignalFd> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// The address, with a port that is free now.
fn free(address: &SocketAddr) -> Result<SocketAddr, Error> {
    let bound = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(|source| Error::Listen { address: *address, source })
}

/// The simulated driver: beside the binary, as cargo leaves it, or where a package would install it.
fn driver() -> Result<PathBuf, Error> {
    const LIBRARY: &str = "libnvml_sim.so";
    let program = env::current_exe().map_err(Error::Program)?;
    let beside = program.with_file_name(LIBRARY);
    let installed = beside.with_file_name("../lib/gpuwarden").join(LIBRARY);
    // There `cargo test` leaves it.
    let tested = beside.with_file_name("deps").join(LIBRARY);
    let found = [&beside, &tested, &installed].into_iter().find(|path| path.exists()).cloned();
    found.ok_or(Error::NoDriver { beside, installed })
}

struct Story {
    began: Instant,
    out: io::Stdout,
    // In this order they end: nobody is left for the agent to judge, and nothing is written any more when the files go.
    agent: Agent,
    cast: Vec<Actor>,
    /// What was told of acts: pid and signal, and the outcome that was told last.
    told: BTreeMap<(u64, String), String>,
}

impl Story {
    /// What the node looks like.
    fn scene(&mut self, listen: &[SocketAddr]) -> io::Result<()> {
        let Self { out, cast, .. } = self;
        writeln!(out, "A node with four simulated cards, and on them three real processes of this demo:\n")?;
        for actor in cast {
            let (role, pid, uid) = (actor.role, actor.pid(), actor.uid);
            let node::Role { gpu, memory, utilization, sentence, .. } = role;
            writeln!(out, "  GPU {gpu}: pid {pid} of uid {uid} holds {memory}, {utilization} busy. {sentence}")?;
        }
        writeln!(out, "  GPU 3: nobody.\n")?;
        for address in listen {
            writeln!(out, "The page is http://{address}/, what Prometheus scrapes http://{address}/metrics.")?;
        }
        if let Some(address) = listen.first() {
            writeln!(out, "From another terminal: gpuwarden status --url http://{address}")?;
        }
        writeln!(out, "Ctrl-C ends it.\n")
    }

    fn go_on(&mut self) -> Result<(), Error> {
        self.agent.lives()?;
        self.tell_messages()?;
        self.tell_acts()?;
        self.tell_ends()
    }

    fn line(&mut self, line: std::fmt::Arguments) -> io::Result<()> {
        writeln!(self.out, "{:>4.0?}s  {line}", self.began.elapsed().as_secs_f64())
    }

    /// What has arrived at terminals. The same at several is told once: they may all belong to one person.
    fn tell_messages(&mut self) -> Result<(), Error> {
        let mut messages: Vec<(String, Vec<u32>)> = Vec::new();
        for actor in &mut self.cast {
            let Some(message) = actor.message() else { continue };
            let pid = actor.pid();
            match messages.iter_mut().find(|(text, _)| *text == message) {
                Some((_, pids)) => pids.push(pid),
                None => messages.push((message, vec![pid])),
            }
        }
        for (text, pids) in messages {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            self.line(format_args!("at the terminal of pid {}:", pids.join(" and of pid ")))?;
            for line in text.lines() {
                writeln!(self.out, "        | {line}")?;
            }
            for actor in &mut self.cast {
                actor.heed(&text);
            }
        }
        Ok(())
    }

    /// Who was signalled, as the audit log says.
    fn tell_acts(&mut self) -> Result<(), Error> {
        for act in self.agent.acts() {
            let key = (act.pid, act.signal.clone());
            if self.told.get(&key) != Some(&act.outcome) {
                self.line(format_args!("the audit log: {} to pid {}: {}", act.signal, act.pid, act.outcome))?;
                self.told.insert(key, act.outcome);
            }
        }
        Ok(())
    }

    fn tell_ends(&mut self) -> Result<(), Error> {
        for index in 0..self.cast.len() {
            if let Some(status) = self.cast[index].has_just_ended() {
                let pid = self.cast[index].pid();
                self.line(format_args!("pid {pid} has ended ({status})"))?;
            }
        }
        Ok(())
    }

    /// Who fared how.
    fn end(mut self) -> Result<(), Error> {
        let mut fates = Vec::new();
        for actor in &mut self.cast {
            let fate = match (actor.warned, actor.ended) {
                (false, None) => Fate::Spared,
                (true, None) => Fate::Warned,
                (_, Some(_)) => Fate::Ended,
            };
            fates.push(format!("pid {} was {}", actor.pid(), fate.as_str()));
        }
        self.line(format_args!("the end: {}.", fates.join(", ")))?;
        Ok(())
    }
}
