//! Where clients come in: addresses that are bound here, and sockets that systemd has bound.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use listenfd::ListenFd;
use nix::time::{ClockId, clock_gettime};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::Service;
use super::clients::Peer;

/// How long to wait when no client can be accepted, as when all descriptors are in use.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Clients that wait to be accepted, as many as with the standard library's sockets.
const BACKLOG: i32 = 128;

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

/// The sockets that systemd has passed (sd_listen_fds(3)): streams, of TCP or of Unix. At least one. They stay open in the
/// program that this one becomes, if it starts anew ([`pass_on`]); it runs no other.
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
    listener.outlives_exec()?;
    Ok(listener)
}

/// Has a program under this pid find the sockets where this one did.
pub fn pass_on(sockets: usize, program: &mut Command) {
    program.env("LISTEN_FDS", sockets.to_string()).env("LISTEN_PID", std::process::id().to_string());
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
            Self::Tcp(listener) => sockopt::socket_acceptconn(listener)?,
            Self::Unix(listener) => sockopt::socket_acceptconn(listener)?,
        })
    }

    fn outlives_exec(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => fcntl_setfd(listener, FdFlags::empty())?,
            Self::Unix(listener) => fcntl_setfd(listener, FdFlags::empty())?,
        }
        Ok(())
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

/// A socket that nobody listens on any more is left over from an agent that was killed, and is replaced.
fn bind_path(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Whether the kernel says that nobody listens there. A file is somebody's, as is a socket of another kind, or one with
/// more clients than it takes: asking that one would wait.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let client = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None);
    let asked = client.and_then(|client| net::connect(&client, &SocketAddrUnix::new(path)?));
    is_socket && asked == Err(Errno::CONNREFUSED)
}

/// Every interface is that of IPv4 as well, unless the host has no IPv6 at all; then it is that alone.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.is_ipv6() || !address.ip().is_unspecified() {
        return TcpListener::bind(address);
    }
    match bind_both(address) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())),
        bound => Ok(bound?),
    }
}

/// As the standard library binds, but whatever net.ipv6.bindv6only says (ipv6(7)).
fn bind_both(address: SocketAddr) -> Result<TcpListener, Errno> {
    let socket = net::socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
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
    let mut trouble = Trouble::default();
    loop {
        let accepted = listener.accept().await;
        if let Some((client, address)) = trouble.or_wait(accepted).await {
            service.admit(client, Peer::of(address.ip()));
        }
    }
}

async fn accept_unix(listener: UnixListener, service: Arc<Service>) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let mut trouble = Trouble::default();
    loop {
        let accepted = listener.accept().await;
        if let Some((client, _)) = trouble.or_wait(accepted).await {
            service.admit(client, Peer::Local);
        }
    }
}

/// Whether the last client could not be accepted. It may last, and is told once.
#[derive(Default)]
struct Trouble(bool);

impl Trouble {
    async fn or_wait<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        let had = std::mem::replace(&mut self.0, accepted.is_err());
        match accepted {
            Ok(accepted) => Some(accepted),
            Err(error) => {
                if !had {
                    tracing::warn!(%error, "cannot accept a client");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
                None
            }
        }
    }
}

/// The clock that cycles are dated by, for `/-/ready` only.
pub(super) fn boot_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    #[test]
    fn only_a_socket_that_was_left_over_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let bind = |name: &str| Listener::bind(&ListenAddress::Unix(path(name)));
        drop(UnixListener::bind(path("left")).unwrap());
        assert!(bind("left").is_ok() && UnixStream::connect(path("left")).is_err());

        fs::write(path("file"), "somebody's").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("loose")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        let _datagrams = UnixDatagram::bind(path("datagrams")).unwrap();
        let _served = UnixListener::bind(path("served")).unwrap();
        let busy = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&busy, &SocketAddrUnix::new(path("busy")).unwrap()).unwrap();
        net::listen(&busy, 0).unwrap();
        let _waits = UnixStream::connect(path("busy")).unwrap();
        for name in ["file", "link", "loose", "folder", "datagrams", "served", "busy"] {
            assert_eq!(bind(name).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{name}");
        }
        assert_eq!(fs::read_to_string(path("link")).unwrap(), "somebody's");
    }

    #[test]
    fn every_interface_is_had_whole_or_not_at_all() {
        let others = net::socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        sockopt::set_ipv6_v6only(&others, true).unwrap();
        net::bind(&others, &"[::]:0".parse::<SocketAddr>().unwrap()).unwrap();
        net::listen(&others, 1).unwrap();
        let others = TcpListener::from(others);
        let taken = bind_tcp(others.local_addr().unwrap());
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn every_interface_is_that_of_ipv4_too_whatever_the_host_has_for_a_default() {
        let in_a_network_of_its_own = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            fs::write("/proc/sys/net/ipv6/bindv6only", "1").ok()?;
            let whole = bind_tcp("[::]:0".parse().unwrap()).unwrap();
            Some(sockopt::ipv6_v6only(&whole).unwrap())
        };
        match std::thread::spawn(in_a_network_of_its_own).join().unwrap() {
            Some(only) => assert!(!only),
            None => eprintln!("skipped: it needs root, and a network of its own"),
        }
    }
}
