//! gpuwarden: who holds which GPU of this host, who may, and what is done about the difference.
//!
//! A cycle sees the node as a value, decides by a function, acts through one door, and publishes what it saw, decided and
//! did. The modules below stand in reading order; each knows only those before it (a test holds that true):
//!
//! * [`nesting`], [`text`], [`causes`], [`disk`]: what text from anywhere may hold, how an error is told, how a file is
//!   replaced.
//! * [`units`], [`schedule`], [`snapshot`]: quantities, windows of the week, the node at one moment. Plain values.
//! * [`policy`]: `step` and `settle`, pure functions over these; the only maker of verdicts.
//! * [`source`]: NVML, `/proc`, the directory and the lists of rights become a snapshot. The only reader of the clock.
//! * [`state`], [`audit`], [`notify`]: ladders on disk, the record of acts, messages to people.
//! * [`enforce`]: verdicts become outcomes. The only one that signals.
//! * [`config`]: gpuwarden.yaml and rule files become values that cannot be wrong.
//! * [`cycle`], [`export`], [`http`]: one turn and the running tallies, as Prometheus families, as pages.
//! * [`control`], [`trial`], [`mod@status`], [`mod@demo`]: what the commands `reset`, `test`, `status` and `demo` do.
//! * [`agent`]: the loop. It puts the parts together for `serve`.

mod nesting;
mod text;
mod causes;
mod disk;
mod units;
mod schedule;
mod snapshot;
mod policy;
mod source;
mod state;
mod audit;
mod notify;
mod enforce;
mod config;
mod cycle;
mod export;
mod http;
mod control;
mod trial;
mod status;
mod demo;
mod cli;
mod agent;

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use cli::{Command, LogFormat, LogLevel};
use config::Diagnostic;
use config::check::{Names, Others};

/// EX_CONFIG of sysexits.h: the unit file tells systemd not to try again.
const BAD_CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    match cli::Cli::parse().command {
        Command::Serve(options) => serve(&options),
        Command::Check { files, nvml_library } => check(&files, nvml_library),
        Command::Test { files } => test(&files),
        Command::Reset { what, config_file } => reset(what, &config_file),
        Command::Status(options) => status(&options),
        Command::Demo(options) => demo(&options),
    }
}

fn serve(options: &cli::Serve) -> ExitCode {
    log(options.log);
    end_on_panic();
    match agent::serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(agent::Error::Config(errors)) => bad_configuration(&errors),
        Err(error) => failed(&error),
    }
}

fn demo(options: &cli::Demo) -> ExitCode {
    match demo::run(options.length, &options.listen_addresses) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn check(files: &[PathBuf], nvml_library: Option<PathBuf>) -> ExitCode {
    let known = match source::names::Known::ask(nvml_library) {
        Ok(known) => known,
        Err(error) => return failed(&error),
    };
    let names = Names {
        user: &|name| known.user(name),
        group: &|name| known.group(name),
        gpu: &|selector| known.gpu(selector),
    };
    let readers = Others { test: trial::errors, web: http::web::errors };
    let checked = config::check::run(files, &names, readers, http::web::warnings, &mut Readers(io::stdout()));
    if let Some(fault) = known.driver_fault() {
        complain(format_args!("GPUs are not checked: {fault}"));
    }
    if known.directory_is_silent() {
        complain("users and groups are not all checked: the directory does not answer");
    }
    match checked {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(BAD_CONFIGURATION),
        Err(error) => failed(&error),
    }
}

fn test(files: &[PathBuf]) -> ExitCode {
    trial::run(files, &mut Readers(io::stdout())).unwrap_or_else(|error| failed(&error))
}

fn status(options: &cli::Status) -> ExitCode {
    match status::run(&options.target, options.watch, options.output, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn reset(what: control::Reset, config_file: &Path) -> ExitCode {
    let state_dir = match config::load(config_file) {
        Ok(config) => config.state_dir,
        Err(errors) => return bad_configuration(&errors),
    };
    match control::ask(&state_dir, what) {
        Ok(()) => {
            // It is done, whether anybody reads that or not.
            let _ = writeln!(io::stdout(), "{}", what.done());
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

/// Standard output of a command that has an answer beside what it prints: a reader who has seen enough, as in
/// `check | head`, does not change the exit code.
struct Readers(io::Stdout);

impl Write for Readers {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self.0.write(text) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(text.len()),
            written => written,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            flushed => flushed,
        }
    }
}

/// `eprintln!`, but that nobody reads it is no reason to panic.
fn complain(what: impl std::fmt::Display) {
    let _: io::Result<()> = writeln!(io::stderr(), "{what}");
}

fn bad_configuration(errors: &[Diagnostic]) -> ExitCode {
    for error in errors {
        complain(error);
    }
    ExitCode::from(BAD_CONFIGURATION)
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    complain(format_args!("gpuwarden: {}", causes::chain(error)));
    ExitCode::FAILURE
}

/// Logs go to standard error.
fn log(log: cli::Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let registry = tracing_subscriber::registry().with(level);
    match log.format {
        LogFormat::Logfmt => registry.with(tracing_logfmt::builder().layer().with_writer(io::stderr)).init(),
        LogFormat::Json => registry.with(tracing_subscriber::fmt::layer().json().with_writer(io::stderr)).init(),
    }
}

/// Half an agent is worse than none: a panic in any thread ends it, and systemd starts it afresh.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(1);
    }));
}
