//! Where clients come in: addresses that are bound here, and sockets that systemd has bound.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use listenfd::ListenFd;
use nix::time::{ClockId, clock_gettime};

use super::Service;
use super::clients::Peer;

/// How long to wait when no client can be accepted, as when all descriptors are in use.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// An address that is bound.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where to listen, as it is written: `127.0.0.1:9845`, `[::1]:9845`, `:9845` for every interface, `localhost:9845`,
/// `unix:/run/gpuwarden.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    /// A name with its port, which is resolved when it is bound.
    Named(String),
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(path.into()));
        }
        let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
        if let Ok(address) = whole.parse() {
            return Ok(Self::Tcp(address));
        }
        if is_named(text) {
            return Ok(Self::Named(whole));
        }
        Err("expected an address and a port, such as 127.0.0.1:9845, [::1]:9845, :9845 or localhost:9845, or \
             unix:/absolute/path"
            .into())
    }
}

/// Whether this is the name of a host and a port. What ends in a number is an IP address, or a slip in one.
fn is_named(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let letters = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let last = host.trim_end_matches('.').rsplit('.').next();
    port.parse::<u16>().is_ok()
        && host.chars().all(letters)
        && last.is_some_and(|label| label.starts_with(|c: char| c.is_ascii_alphabetic()))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Named(name) => f.write_str(name),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenAddress {
    /// The address behind a name: as with exporters in Go, one only, of IPv4 where there is one.
    pub fn resolve(name: &str) -> io::Result<SocketAddr> {
        let all: Vec<SocketAddr> = name.to_socket_addrs()?.collect();
        let found = all.iter().find(|address| address.is_ipv4()).or(all.first());
        found.copied().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
}

/// The sockets that systemd has passed (sd_listen_fds(3)): streams, of TCP or of Unix. At least one.
pub fn passed() -> io::Result<Vec<Listener>> {
    let mut passed = ListenFd::from_env();
    if passed.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "systemd has passed no socket"));
    }
    (0..passed.len()).map(|number| take(&mut passed, number)).collect()
}

fn take(passed: &mut ListenFd, number: usize) -> io::Result<Listener> {
    let not_taken = || io::Error::new(io::ErrorKind::InvalidInput, "neither a TCP socket nor a Unix stream socket");
    let listener = match passed.take_tcp_listener(number) {
        Ok(tcp) => Listener::Tcp(tcp.ok_or_else(not_taken)?),
        Err(_) => Listener::Unix(passed.take_unix_listener(number).ok().flatten().ok_or_else(not_taken)?),
    };
    if !listener.accepts()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket of a connection: set Accept=no"));
    }
    listener.set_nonblocking()?;
    Ok(listener)
}

/// The sockets of systemd, kept for the program that takes this one's place: systemd does not pass them again.
#[derive(Debug, Default)]
pub struct Inheritance(Vec<OwnedFd>);

impl Inheritance {
    pub fn of(listeners: &[Listener]) -> io::Result<Self> {
        let mut sockets: Vec<OwnedFd> = Vec::new();
        // Their numbers must follow each other; where one is taken, the row begins anew behind it.
        while sockets.len() < listeners.len() {
            let next = sockets.last().map_or(0, |last| last.as_raw_fd() + 1);
            let socket = rustix::io::fcntl_dupfd_cloexec(&listeners[sockets.len()], next)?;
            if !sockets.is_empty() && socket.as_raw_fd() != next {
                sockets = vec![rustix::io::fcntl_dupfd_cloexec(&listeners[0], socket.as_raw_fd())?];
            } else {
                sockets.push(socket);
            }
        }
        Ok(Self(sockets))
    }

    /// As systemd does (sd_listen_fds(3)), but for the number of the first, which `listenfd` takes from the environment.
    pub fn hand_over(&self, program: &mut Command) -> io::Result<()> {
        let Some(first) = self.0.first() else { return Ok(()) };
        for socket in &self.0 {
            rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
        }
        program.env("LISTEN_PID", std::process::id().to_string());
        program.env("LISTEN_FDS", self.0.len().to_string());
        program.env("LISTEN_FDS_FIRST_FD", first.as_raw_fd().to_string());
        Ok(())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        let listener = match address {
            ListenAddress::Unix(path) => Self::Unix(bind_path(path)?),
            ListenAddress::Tcp(address) => Self::Tcp(bind_tcp(*address)?),
            ListenAddress::Named(name) => Self::Tcp(bind_tcp(ListenAddress::resolve(name)?)?),
        };
        listener.set_nonblocking()?;
        Ok(listener)
    }

    /// Where it can be reached: the kernel chooses a port for `:0`.
    pub fn address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Self::Unix(listener) => {
                Ok(format!("unix:{}", listener.local_addr()?.as_pathname().unwrap_or(Path::new("")).display()))
            }
        }
    }

    /// Whether clients come in here, as SO_ACCEPTCONN of socket(7) has it.
    fn accepts(&self) -> io::Result<bool> {
        Ok(match self {
            Self::Tcp(listener) => rustix::net::sockopt::socket_acceptconn(listener)?,
            Self::Unix(listener) => rustix::net::sockopt::socket_acceptconn(listener)?,
        })
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

/// A socket that nobody listens on any more is left over from an agent that was killed.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// The kernel takes IPv4 clients on an IPv6 socket for every interface, unless IPv6 is switched off.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address);
    if address.is_ipv6() && address.ip().is_unspecified() {
        bound.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())))
    } else {
        bound
    }
}

pub(super) async fn accept(listener: Listener, service: Arc<Service>) {
    let ended = match listener {
        Listener::Tcp(listener) => accept_tcp(listener, service).await,
        Listener::Unix(listener) => accept_unix(listener, service).await,
    };
    if let Err(error) = ended {
        tracing::error!(%error, "an address is not served");
    }
}

async fn accept_tcp(listener: TcpListener, service: Arc<Service>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((client, address)) => service.admit(client, Peer::of(address.ip())),
            Err(error) => wait_after(error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, service: Arc<Service>) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((client, _)) => service.admit(client, Peer::Local),
            Err(error) => wait_after(error).await,
        }
    }
}

async fn wait_after(error: io::Error) {
    tracing::warn!(%error, "cannot accept a client");
    tokio::time::sleep(ACCEPT_AGAIN).await;
}

/// The clock that cycles are dated by, for `/-/ready` only.
pub(super) fn boot_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_over_has_the_sockets_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let addresses = ["127.0.0.1:0".into(), format!("unix:{}", folder.path().join("socket").display())];
        let listeners = addresses.map(|address| Listener::bind(&address.parse().unwrap()).unwrap());
        let inheritance = Inheritance::of(&listeners).unwrap();
        let mut program = Command::new("sh");
        program.args([
            "-c",
            "echo $LISTEN_FDS; readlink /proc/$$/fd/$LISTEN_FDS_FIRST_FD /proc/$$/fd/$((LISTEN_FDS_FIRST_FD + 1))",
        ]);
        inheritance.hand_over(&mut program).unwrap();
        let said = String::from_utf8(program.output().unwrap().stdout).unwrap();
        let link = |listener: &Listener| fs::read_link(format!("/proc/self/fd/{}", listener.as_fd().as_raw_fd()));
        let expected = listeners.map(|listener| link(&listener).unwrap().display().to_string());
        assert_eq!(said.lines().collect::<Vec<_>>(), ["2", &expected[0], &expected[1]]);
    }
}
