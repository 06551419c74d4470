mod units;
mod schedule;
mod snapshot;
mod source;
mod policy;
mod config;
mod trial;
mod cli;

use clap::Parser;

fn main() -> std::process::ExitCode {
    match cli::Cli::parse().command {
        cli::Command::Check { files } => {
            let fine =
                config::check::run(&files, &config::check::Names::UNASKED, trial::errors, &mut std::io::stdout());
            match fine {
                Ok(true) => std::process::ExitCode::SUCCESS,
                Ok(false) => std::process::ExitCode::from(78),
                Err(_) => std::process::ExitCode::FAILURE,
            }
        }
        cli::Command::Test { files } => trial::run(&files),
        _ => std::process::ExitCode::FAILURE,
    }
}
