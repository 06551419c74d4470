//! The agent: it sees, decides, acts and publishes, turn after turn, in one thread; another serves what was published.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use sd_notify::NotifyState;
use tokio::sync::{oneshot, watch};

use crate::audit::Audit;
use crate::causes::chain;
use crate::cli;
use crate::config::{self, Config, Diagnostic};
use crate::control::{self, Asked, Reset};
use crate::cycle::{self, Build, Cycle, Reload, Setup, Standings, Tallies, Turn};
use crate::enforce::Enforcer;
use crate::http::{self, AskReload, ListenAddress, Listener, Published, Server, web};
use crate::notify::Channels;
use crate::notify::message::Voice;
use crate::notify::terminal::Terminal;
use crate::policy::condition::Condition;
use crate::policy::{self, ChannelName, Judgement, Mode, Outcome, State};
use crate::snapshot::{ProcessId, Snapshot};
use crate::source::assignment::entry::To;
use crate::source::procfs::Procfs;
use crate::source::{self, Sources, assignment};
use crate::state::{self, StateDir, Store};

/// systemd hears of a living agent at least this often, however long its interval.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// A ladder that is resumed after a crash is behind by no more than this.
const TIME_MAY_BE_LOST: Duration = Duration::from_secs(10);

/// How long a message may wait for a systemd that does not read: a sign of life, of which there are many, and what else
/// it must hear.
const LIFE_GOES_ON: Duration = Duration::from_millis(100);
const SYSTEMD_IS_BUSY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the configuration is wrong")]
    Config(Vec<Diagnostic>),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error(transparent)]
    Control(#[from] control::Error),
    #[error("cannot listen on {address}; choose another with --web.listen-address")]
    Listen { address: ListenAddress, source: io::Error },
    #[error("cannot serve on the sockets of systemd; see --web.systemd-socket")]
    Passed(#[source] io::Error),
    #[error("{} is no procfs; see --path.procfs", path.display())]
    Procfs { path: PathBuf },
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("cannot take signals")]
    Signals(#[source] nix::Error),
}

/// What reaches the loop between two turns.
enum Request {
    /// Read the configuration again; whoever asked over HTTP waits for the answer.
    Reload(Option<ReloadAnswer>),
    Reset(Asked),
    Stop,
}

type ReloadAnswer = oneshot::Sender<Result<(), String>>;

/// What follows when requests have been served.
enum Next {
    GoOn,
    End,
}

/// Runs the agent until it is told to end.
pub fn serve(options: &cli::Serve) -> Result<(), Error> {
    let (send, requests) = channel();
    take_signals(send.clone())?;
    let config = config::load(&options.config_file).map_err(Error::Config)?;
    if !options.procfs.join("self/stat").exists() {
        return Err(Error::Procfs { path: options.procfs.clone() });
    }
    if config.mode == Mode::Enforce && !nix::unistd::geteuid().is_root() {
        tracing::warn!("not root: only processes of the agent's own user can be signalled, unless it has CAP_KILL");
    }
    let web = options.web_config_file.as_deref().map(web::Live::open).transpose().map_err(Error::Config)?;
    // Ports first: an agent that cannot serve must not act.
    let listeners = listeners(options)?;
    let addresses = listeners.iter().filter_map(|listener| listener.address().ok()).collect::<Vec<_>>().join(" ");
    let protection = web.as_ref().map_or(web::Protection::NONE, |live| live.web().protection());
    let web::Protection { tls, certificate_until, client_certificates, users } = protection;
    let certificate_until = certificate_until.as_deref();
    tracing::info!(addresses, tls, certificate_until, client_certificates, users, "listening");
    let state_dir = StateDir::open(&config.state_dir)?;
    forward(control::listen(&state_dir)?, send.clone())?;

    let passed = options.systemd_socket.then_some(listeners.len());
    let (publish, published) = watch::channel(Arc::new(Published::before(&Build::THIS)));
    let ask: AskReload = Box::new(move |answer| drop(send.send(Request::Reload(Some(answer)))));
    let _server =
        Server::start(listeners, published, options.enable_lifecycle.then_some(ask), web).map_err(Error::Thread)?;
    Agent::new(options, passed, config, state_dir, publish)?.run(&requests);
    Ok(())
}

fn listeners(options: &cli::Serve) -> Result<Vec<Listener>, Error> {
    if options.systemd_socket {
        return http::passed().map_err(Error::Passed);
    }
    options.listen_addresses.iter().map(bind).collect()
}

fn bind(address: &ListenAddress) -> Result<Listener, Error> {
    Listener::bind(address).map_err(|source| Error::Listen { address: address.clone(), source })
}

/// Signals come to a thread of their own; they are blocked before any other thread is started, so that all inherit it.
fn take_signals(requests: Sender<Request>) -> Result<(), Error> {
    let awaited: SigSet = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    awaited.thread_block().map_err(Error::Signals)?;
    let wait = move || {
        while let Ok(signal) = awaited.wait() {
            let request = if signal == Signal::SIGHUP { Request::Reload(None) } else { Request::Stop };
            if requests.send(request).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).map_err(Error::Thread)?;
    Ok(())
}

fn forward(asked: Receiver<Asked>, requests: Sender<Request>) -> Result<(), Error> {
    let pass_on = move || asked.into_iter().map(Request::Reset).all(|request| requests.send(request).is_ok());
    thread::Builder::new().name("resets".into()).spawn(pass_on).map_err(Error::Thread)?;
    Ok(())
}

struct Agent {
    options: Options,
    setup: Arc<Setup>,
    sources: Sources,
    enforcer: Enforcer,
    store: Store,
    state: Arc<State>,
    tallies: Arc<Tallies>,
    /// Acts of which an agent before this one did not say what came of them.
    lost: Vec<Outcome>,
    reload: Reload,
    last: Option<Arc<Cycle>>,
    publish: watch::Sender<Arc<Published>>,
    _state_dir: StateDir,
}

/// What the command line said, and a reload does not change.
struct Options {
    config_file: PathBuf,
    web_config_file: Option<PathBuf>,
    state_dir: PathBuf,
    nvml_library: Option<PathBuf>,
    procfs: PathBuf,
    /// How many sockets systemd has passed.
    passed: Option<usize>,
}

impl Options {
    fn sources(&self, config: &Config) -> source::Settings {
        let files = config.assignments.files.as_ref();
        source::Settings {
            nvml_library: self.nvml_library.clone(),
            procfs: self.procfs.clone(),
            state_dir: self.state_dir.clone(),
            interval: config.interval,
            wanted: config.metrics.wanted,
            assignments: assignment::Settings {
                fixed: config.assignments.fixed.clone(),
                files: files.map(|files| files.iter().map(PathBuf::from).collect()),
            },
        }
    }
}

impl Agent {
    fn new(
        options: &cli::Serve,
        passed: Option<usize>,
        config: Config,
        state_dir: StateDir,
        publish: watch::Sender<Arc<Published>>,
    ) -> Result<Self, Error> {
        let options = Options {
            config_file: options.config_file.clone(),
            web_config_file: options.web_config_file.clone(),
            state_dir: config.state_dir.clone(),
            nvml_library: options.nvml_library.clone(),
            procfs: options.procfs.clone(),
            passed,
        };
        let sources = Sources::new(options.sources(&config)).map_err(Error::Thread)?;
        let now = sources.now().wall;
        let host = host_name();
        let procfs = Procfs::new(&options.procfs);
        let voice = Voice { host: host.clone(), zone: jiff::tz::TimeZone::system() };
        let channels = Channels::new(voice, Terminal::new(procfs.clone(), "/dev"));
        let audit = Audit::new(state_dir.path(), &host);
        let limits = config.limits.clone();
        let enforcer = Enforcer::new(limits, config.interval, state_dir.path(), procfs, audit, channels, now);
        let (store, state) = Store::load(&state_dir, sources.boot_id());
        let (state, lost) = policy::resume(state);
        Ok(Self {
            options,
            setup: Arc::new(setup(&config, host)),
            sources,
            enforcer,
            store,
            state: Arc::new(state),
            tallies: Arc::default(),
            lost,
            reload: Reload { failure: None, last_success: now },
            last: None,
            publish,
            _state_dir: state_dir,
        })
    }

    fn run(mut self, requests: &Receiver<Request>) {
        self.turn();
        say(&[NotifyState::Ready]);
        tracing::info!(
            version = Build::THIS.version,
            mode = self.setup.rules.mode.as_str(),
            rules = self.setup.rules.rules.len(),
            config = %self.options.config_file.display(),
            state_dir = %self.options.state_dir.display(),
            "gpuwarden sees, and serves"
        );
        let mut due = Instant::now() + self.setup.rules.interval;
        while self.wait(due, requests) {
            // A late turn is not made up for.
            due = (due + self.setup.rules.interval).max(Instant::now());
            self.turn();
        }
        self.save(&self.state.clone(), Duration::ZERO);
        say(&[NotifyState::Stopping]);
        tracing::info!("gpuwarden ends");
    }

    fn save(&mut self, state: &State, patience: Duration) {
        self.enforcer.state_was_saved(self.store.save(state, patience));
    }

    /// For how long a state is not written in which only time has passed.
    fn patience(&self) -> Duration {
        (self.setup.rules.interval * 5).min(TIME_MAY_BE_LOST)
    }

    /// One turn: see, decide, act, publish.
    fn turn(&mut self) {
        let began = Instant::now();
        let snapshot = self.sources.observe();
        let step = policy::step(&self.setup.rules, &snapshot, &self.state);
        self.save(&step.state, self.patience());
        let mut outcomes = self.report_what_was_before(&step, &snapshot);
        outcomes.extend(self.enforcer.carry_out(&step.verdicts, &snapshot, &mut self.sources));
        self.state = Arc::new(policy::settle(step.state, &outcomes, self.sources.now()));
        self.save(&self.state.clone(), self.patience());
        self.publish(snapshot, step.judgements, step.exempt, outcomes, began.elapsed());
        if let Some(why) = self.sources.stale_driver().map(str::to_owned) {
            self.start_anew(&why);
        }
    }

    /// Becomes the same program again, under the same pid and with the same arguments: all that must be kept is on disk.
    fn start_anew(&mut self, why: &str) {
        // What runs on files that were good may not start on those of now.
        let config = config::load(&self.options.config_file).err();
        let web = self.options.web_config_file.as_deref().and_then(|path| web::Live::open(path).err());
        if let Some(wrong) = config.or(web).as_deref().and_then(|wrong| wrong.first()) {
            tracing::error!(why, %wrong, "cannot start anew: the configuration is wrong");
            return;
        }
        tracing::warn!(why, "gpuwarden starts anew");
        self.save(&self.state.clone(), Duration::ZERO);
        let mut arguments = std::env::args_os();
        let mut program = Command::new("/proc/self/exe");
        program.arg0(arguments.next().unwrap_or_else(|| "gpuwarden".into())).args(arguments);
        if let Some(sockets) = self.options.passed {
            http::pass_on(sockets, &mut program);
        }
        // It returns only if it failed; then the next turn tries again.
        let error = program.exec();
        tracing::error!(%error, "cannot start anew");
    }

    /// Waits for the next turn and does what is asked meanwhile. False when the agent is to end.
    fn wait(&mut self, due: Instant, requests: &Receiver<Request>) -> bool {
        loop {
            say(&[NotifyState::Watchdog]);
            let left = due.saturating_duration_since(Instant::now());
            match requests.recv_timeout(left.min(SIGN_OF_LIFE)) {
                // All that is there by now, and then the turn if it is due: however many ask, it comes.
                Ok(first) => match self.serve([first].into_iter().chain(requests.try_iter()).collect()) {
                    Next::End => return false,
                    Next::GoOn if Instant::now() >= due => return true,
                    Next::GoOn => {}
                },
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if left <= SIGN_OF_LIFE => return true,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Does what was asked. One reading of the configuration is the answer to all who have asked for it.
    fn serve(&mut self, requests: Vec<Request>) -> Next {
        let mut reloads = Vec::new();
        for request in requests {
            match request {
                Request::Stop => return Next::End,
                Request::Reload(answer) => reloads.push(answer),
                Request::Reset(asked) => self.reset(asked),
            }
        }
        if !reloads.is_empty() {
            self.answer_reload(reloads.into_iter().flatten().collect());
        }
        Next::GoOn
    }

    /// Ladders that were left, and acts that an agent before this one left open.
    fn report_what_was_before(&mut self, step: &policy::Step, now: &Snapshot) -> Vec<Outcome> {
        for key in &step.ended {
            self.enforcer.note(now, &format!("the ladder of rule {} on {} is left", key.rule, key.subject));
        }
        let lost = std::mem::take(&mut self.lost);
        self.enforcer.report_lost(&lost, now);
        lost
    }

    fn publish(
        &mut self,
        seen: Snapshot,
        judgements: Vec<Judgement>,
        exempt: BTreeSet<ProcessId>,
        outcomes: Vec<Outcome>,
        took: Duration,
    ) {
        Arc::make_mut(&mut self.tallies).count(&Turn {
            before: self.last.as_ref().map(|last| &last.seen),
            now: &seen,
            judgements: &judgements,
            outcomes: &outcomes,
            took,
            setup: &self.setup,
        });
        let cycle = Arc::new(Cycle {
            agent: cycle::Agent::observe(),
            seen,
            standings: Standings::of(judgements, &self.state, self.last.as_ref().map(|last| &last.standings)),
            exempt,
            outcomes,
            state: self.state.clone(),
            pauses: self.enforcer.pauses().clone(),
            blown: self.enforcer.fuses().blown().collect(),
            unkillable: self.enforcer.unkillable(),
            notifications: self.enforcer.channels().tally().clone(),
            tallies: self.tallies.clone(),
            took,
            setup: self.setup.clone(),
            reload: self.reload.clone(),
        });
        self.publish.send_replace(Arc::new(Published::new(cycle.clone())));
        self.last = Some(cycle);
    }

    fn answer_reload(&mut self, answers: Vec<ReloadAnswer>) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            say(&[NotifyState::Reloading, now]);
        }
        let reloaded = self.reload();
        say(&[NotifyState::Ready]);
        self.reload.failure = reloaded.as_ref().err().cloned();
        match &reloaded {
            Ok(()) => tracing::info!(hash = self.setup.hash, "the configuration was reloaded"),
            Err(why) => tracing::error!("the configuration was not reloaded, the old one stays in force: {why}"),
        }
        for answer in answers {
            // Whoever asked may have gone away.
            let _ = answer.send(reloaded.clone());
        }
    }

    fn reload(&mut self) -> Result<(), String> {
        let config = config::load(&self.options.config_file)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))?;
        if config.state_dir != self.options.state_dir {
            return Err(format!(
                "state_dir cannot change while the agent runs (it is {})",
                self.options.state_dir.display()
            ));
        }
        let setup = setup(&config, self.setup.host.clone());
        self.reload.last_success = self.sources.now().wall;
        if setup == *self.setup {
            return Ok(());
        }
        self.sources.reconfigure(self.options.sources(&config));
        if let Some(last) = &self.last {
            self.enforcer.reload(config.limits, config.interval, &last.seen);
        }
        self.setup = Arc::new(setup);
        Ok(())
    }

    fn reset(&mut self, asked: Asked) {
        let came = match (asked.what, &self.last) {
            (Reset::Pins, Some(last)) if last.seen.gpus.is_err() => {
                Err("the driver is silent, so there are no cards of now; ask again when it answers".into())
            }
            (Reset::Pins, _) => self.sources.reset_pins().map_err(|error| error.to_string()),
            (Reset::Fuses, Some(last)) => self.enforcer.reset_fuses(&last.seen).map_err(|error| chain(&error)),
            (Reset::Fuses, None) => Err("no cycle has ended yet; ask again".into()),
        };
        if let (Ok(()), Some(last)) = (&came, &self.last) {
            self.enforcer.note(&last.seen, &format!("{} were reset", asked.what.as_str()));
        }
        asked.answer(came);
    }
}

fn setup(config: &Config, host: String) -> Setup {
    Setup {
        host,
        build: Build::THIS,
        rules: config.rules(),
        channels: [ChannelName(ChannelName::TERMINAL.into())].into(),
        groups: groups(config),
        processes: config.metrics.processes,
        hash: config.hash,
    }
}

/// The groups that the configuration names, by rights, rules or exemptions.
fn groups(config: &Config) -> BTreeSet<String> {
    let rights = config.assignments.fixed.iter().flatten().filter_map(|entry| match &entry.to {
        To::Group(name) => Some(name.clone()),
        To::Everyone | To::User(_) => None,
    });
    let exempt = config.exempt.iter().flat_map(|exemption| exemption.of.iter().flat_map(Condition::leaves));
    let asked = config.rules.iter().flat_map(policy::Rule::conditions).chain(exempt);
    let asked = asked.filter_map(|condition| match condition {
        Condition::Group(words) => Some(words.iter().map(str::to_owned).collect::<Vec<_>>()),
        _ => None,
    });
    rights.chain(asked.flatten()).collect()
}

fn host_name() -> String {
    match nix::unistd::gethostname() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(error) => {
            tracing::warn!(%error, "the host's name cannot be read");
            "this host".into()
        }
    }
}

/// Tells systemd, where it wants to know. It not listening must not end the agent.
fn say(state: &[NotifyState]) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let limit = if matches!(state, [NotifyState::Watchdog]) { LIFE_GOES_ON } else { SYSTEMD_IS_BUSY };
    let text: String = state.iter().map(|state| format!("{state}\n")).collect();
    if let Err(error) = send(&path, &text, limit) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}

fn send(path: &OsStr, text: &str, limit: Duration) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    // Who does not read lets others wait.
    socket.set_write_timeout(Some(limit))?;
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&UnixAddress::from_abstract_name(name)?)?,
        None => socket.connect(path)?,
    }
    socket.send(text.as_bytes()).map(drop)
}
