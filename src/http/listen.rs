//! Where clients come in.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use nix::time::{ClockId, clock_gettime};

use super::{Clients, Service};

/// How long to wait when no client can be accepted, as when all descriptors are in use.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// An address that is bound.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where to listen, as it is written: `127.0.0.1:9845`, `[::1]:9845`, `:9845` for every interface, `unix:/run/gpuwarden.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(path.into()));
        }
        let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
        whole.parse().map(Self::Tcp).map_err(|_| {
            "expected an IP address and a port, such as 127.0.0.1:9845, [::1]:9845 or :9845, or unix:/absolute/path"
                .into()
        })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Listener {
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        let listener = match address {
            ListenAddress::Unix(path) => Self::Unix(bind_path(path)?),
            ListenAddress::Tcp(address) => Self::Tcp(bind_tcp(*address)?),
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

pub(super) async fn accept(listener: Listener, service: Arc<Service>, clients: Arc<Clients>) {
    let ended = match listener {
        Listener::Tcp(listener) => accept_tcp(listener, service, clients).await,
        Listener::Unix(listener) => accept_unix(listener, service, clients).await,
    };
    if let Err(error) = ended {
        tracing::error!(%error, "an address is not served");
    }
}

async fn accept_tcp(listener: TcpListener, service: Arc<Service>, clients: Arc<Clients>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((client, _)) => clients.admit(service.clone().attend(client)),
            Err(error) => wait_after(error).await,
        }
    }
}

async fn accept_unix(listener: UnixListener, service: Arc<Service>, clients: Arc<Clients>) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((client, _)) => clients.admit(service.clone().attend(client)),
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
