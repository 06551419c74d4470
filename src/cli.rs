//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::check::DEFAULT_FILE;
use crate::control::Reset;
use crate::http::ListenAddress;
use crate::http::client::Target;
use crate::status::Output;
use crate::units::{Malformed, Span};

/// Sees who holds which GPU of this host, knows who may, judges the difference by rules, and acts on it.
#[derive(Debug, Parser)]
#[command(name = "gpuwarden", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: watch the GPUs, apply the rules, serve the page and /metrics
    Serve(Serve),
    /// The agent on a simulated node with four cards, and children that break the rules
    Demo(Demo),
    /// Prints every error of configurations, rule files, rule tests and web configurations; exit code 78 if there is one
    Check {
        /// Files to check, told apart by their keys; /etc/gpuwarden/gpuwarden.yaml if none is given
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// NVML, which knows the GPUs, where it is not found as libnvidia-ml.so.1
        #[arg(long = "nvml.library", value_name = "FILE")]
        nvml_library: Option<PathBuf>,
    },
    /// Runs rule tests; exit code 1 if one fails
    Test {
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Who holds what, who may, and what is pending, of the running agent
    Status(Status),
    /// Accept the present cards as the pinned ones (pins), or make blown fuses whole again (fuses)
    Reset {
        what: Reset,
        /// The configuration of the agent, which names its state directory
        #[arg(long = "config.file", value_name = "FILE", default_value = DEFAULT_FILE)]
        config_file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration
    #[arg(long = "config.file", value_name = "FILE", default_value = DEFAULT_FILE)]
    pub config_file: PathBuf,
    /// Addresses to serve the page and /metrics on; may be given several times
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, value_parser = str::parse::<ListenAddress>)]
    pub listen_addresses: Vec<ListenAddress>,
    /// Serve on the sockets that systemd passes, and on no address
    #[arg(long = "web.systemd-socket")]
    pub systemd_socket: bool,
    /// TLS, basic authentication and headers, in the format of Prometheus' exporter-toolkit
    #[arg(long = "web.config.file", value_name = "FILE")]
    pub web_config_file: Option<PathBuf>,
    /// Reload on POST /-/reload
    #[arg(long = "web.enable-lifecycle")]
    pub enable_lifecycle: bool,
    /// NVML, where it is not found as libnvidia-ml.so.1
    #[arg(long = "nvml.library", value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// Where procfs is mounted
    #[arg(long = "path.procfs", value_name = "DIRECTORY", default_value = "/proc")]
    pub procfs: PathBuf,
    #[command(flatten)]
    pub log: Log,
}

/// What goes to standard error.
#[derive(Debug, Clone, Copy, Args)]
pub struct Log {
    /// Nothing milder than this is logged
    #[arg(long = "log.level", value_name = "LEVEL", default_value = "info")]
    pub level: LogLevel,
    #[arg(long = "log.format", value_name = "FORMAT", default_value = "logfmt")]
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Logfmt,
    Json,
}

#[derive(Debug, Args)]
pub struct Demo {
    /// End after this long; without it, on Ctrl-C
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub length: Option<Duration>,
    /// Addresses to serve the page and /metrics on; may be given several times
    #[arg(long = "web.listen-address", value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, value_parser = port)]
    pub listen_addresses: Vec<SocketAddr>,
}

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub target: Target,
    /// Ask again and again
    #[arg(long)]
    pub watch: bool,
    #[arg(short, long = "output", value_name = "FORMAT", default_value = "table")]
    pub output: Output,
}

const DEFAULT_ADDRESS: &str = "127.0.0.1:9845";

fn port(text: &str) -> Result<SocketAddr, String> {
    match text.parse()? {
        ListenAddress::Tcp(address) => Ok(address),
        ListenAddress::Named(name) => ListenAddress::resolve(&name).map_err(|error| error.to_string()),
        ListenAddress::Unix(_) => Err("expected an IP address and a port: the demo listens on no socket".into()),
    }
}

fn duration(text: &str) -> Result<Duration, Malformed> {
    text.parse::<Span>().map(|span| span.0)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn read(line: &str) -> Result<Command, i32> {
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command).map_err(|error| error.exit_code())
    }

    #[test]
    fn the_command_line_fits_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_left_out_is_as_the_contract_says() {
        let Ok(Command::Serve(serve)) = read("gpuwarden serve") else { panic!() };
        assert_eq!(serve.config_file.to_str(), Some("/etc/gpuwarden/gpuwarden.yaml"));
        assert_eq!(serve.listen_addresses, ["127.0.0.1:9845".parse().unwrap()]);
        assert_eq!(serve.procfs.to_str(), Some("/proc"));
        assert_eq!((serve.enable_lifecycle, serve.nvml_library), (false, None));
        assert_eq!((serve.systemd_socket, serve.web_config_file), (false, None));
        assert_eq!((serve.log.level, serve.log.format), (LogLevel::Info, LogFormat::Logfmt));
        let Ok(Command::Status(status)) = read("gpuwarden status") else { panic!() };
        assert_eq!(
            (status.target.url.as_str(), status.watch, status.output),
            ("http://127.0.0.1:9845", false, Output::Table)
        );
    }

    #[test]
    fn what_is_given_is_what_is_meant() {
        let line = "gpuwarden serve --config.file=a.yaml --web.listen-address=:1 --web.listen-address=unix:/run/x --web.enable-lifecycle \
                    --nvml.library=x.so --path.procfs=/host/proc --log.level=debug --log.format=json";
        let Ok(Command::Serve(serve)) = read(line) else { panic!() };
        assert_eq!(serve.listen_addresses, ["[::]:1".parse().unwrap(), ListenAddress::Unix("/run/x".into())]);
        assert_eq!(
            (serve.enable_lifecycle, serve.log.level, serve.log.format),
            (true, LogLevel::Debug, LogFormat::Json)
        );
        let line = "gpuwarden serve --web.systemd-socket --web.config.file=web.yml --web.listen-address=localhost:9845";
        let Ok(Command::Serve(serve)) = read(line) else { panic!() };
        assert_eq!((serve.systemd_socket, serve.web_config_file), (true, Some("web.yml".into())));
        assert_eq!(serve.listen_addresses, [ListenAddress::Named("localhost:9845".into())]);
        let Ok(Command::Demo(demo)) = read("gpuwarden demo --for 1m30s") else { panic!() };
        assert_eq!(demo.length, Some(Duration::from_secs(90)));
        let Ok(Command::Check { files, nvml_library: None }) = read("gpuwarden check") else { panic!() };
        assert!(files.is_empty());
        let Ok(Command::Check { nvml_library, .. }) = read("gpuwarden check --nvml.library=x.so a.yaml") else {
            panic!()
        };
        assert_eq!(nvml_library, Some("x.so".into()));
        assert!(matches!(read("gpuwarden reset fuses"), Ok(Command::Reset { what: Reset::Fuses, .. })));
        assert!(matches!(
            read("gpuwarden status --watch -o json"),
            Ok(Command::Status(Status { watch: true, output: Output::Json, .. }))
        ));
    }

    #[test]
    fn a_wrong_command_line_is_exit_code_2() {
        for line in [
            "gpuwarden",
            "gpuwarden frobnicate",
            "gpuwarden serve --config.fil=x",
            "gpuwarden serve --web.listen-address=unix:x",
            "gpuwarden demo --web.listen-address=unix:/run/x",
            "gpuwarden serve --web.listen-address=localhost",
            "gpuwarden serve --log.level=loud",
            "gpuwarden demo --for 60",
            "gpuwarden test",
            "gpuwarden reset",
            "gpuwarden reset everything",
            "gpuwarden status -o yaml",
            "gpuwarden status --user alice",
            "gpuwarden status --password-file x",
            "gpuwarden status --cert-file x",
        ] {
            assert_eq!(read(line).err(), Some(2), "{line}");
        }
        assert_eq!(read("gpuwarden --version").err(), Some(0));
        assert_eq!(read("gpuwarden --help").err(), Some(0));
    }
}
