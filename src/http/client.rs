//! One question to an agent: over HTTP or HTTPS, as a user or with a certificate, and with limits on time and size.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// An agent answers from memory; whoever takes longer is not well.
const WITHIN: Duration = Duration::from_secs(10);

/// No node has so many cards.
const SIZE: usize = 16 << 20;

/// Where systems keep the authorities that they trust: Debian and its like, Red Hat and its like, openSUSE.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{0}` is not an address such as http://127.0.0.1:9845, https://gpu01:9845 or unix:/run/gpuwarden.sock")]
    Address(String),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{} cannot be used", path.display())]
    Tls { path: PathBuf, source: rustls::Error },
    #[error("there is no authority to trust; name one with --ca-file")]
    NoAuthority,
    #[error("cannot reach an agent at {url}; is `gpuwarden serve` running there?")]
    Connect { url: String, source: io::Error },
    #[error("no TLS with {url}; see --ca-file")]
    Handshake { url: String, source: io::Error },
    #[error("the agent at {url} did not answer in full")]
    Exchange { url: String, source: io::Error },
    #[error("what answers at {0} is no agent")]
    NoAgent(String),
    #[error("the agent at {0} wants a user and his password; see --user and --password-file")]
    Unauthorized(String),
    #[error("the agent at {url} answers {status}: {body}")]
    Refused { url: String, status: u16, body: String },
}

/// The agent to ask, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Target {
    /// The agent to ask: an http:// or https:// address, or unix:/absolute/path
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9845")]
    pub url: String,
    /// Certificates of the authorities to trust, in PEM; without it, those of the system
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The certificate to show to an agent that asks for one, in PEM
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    pub key_file: Option<PathBuf>,
    /// The user to be, where the agent asks for one
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub user: Option<String>,
    /// A file with the password of that user
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<PathBuf>,
}

/// Where an agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Address {
    Tcp {
        secure: bool,
        /// Host and port.
        authority: String,
        prefix: String,
    },
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = || Error::Address(url.to_owned());
        if let Some(path) = url.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(wrong()) };
        }
        let schemes = [("http://", 80, false), ("https://", 443, true)];
        let scheme = schemes.into_iter().find_map(|(name, port, secure)| Some((url.strip_prefix(name)?, port, secure)));
        let (rest, default_port, secure) = scheme.unwrap_or((url, 80, false));
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = rest.bytes().all(|byte| byte.is_ascii_graphic()) && !host.contains('@');
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        // Without the scheme it is as --web.listen-address has it, with a port.
        if host.is_empty() || !plain || (scheme.is_none() && !has_port) {
            return Err(wrong());
        }
        let authority = if has_port { host.to_owned() } else { format!("{host}:{default_port}") };
        Ok(Self::Tcp { secure, authority, prefix: prefix.trim_end_matches('/').to_owned() })
    }
}

/// Asks one agent.
pub struct Client {
    url: String,
    address: Address,
    /// With the name that the agent's certificate must bear.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The header of a user.
    authorization: String,
}

impl Client {
    /// Reads the files that are named.
    pub fn new(target: &Target) -> Result<Self, Error> {
        let address: Address = target.url.parse()?;
        let tls = match &address {
            Address::Tcp { secure: true, authority, .. } => {
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host).map_err(|_| Error::Address(target.url.clone()))?;
                Some((Arc::new(config(target)?), name))
            }
            _ => None,
        };
        let authorization = match (&target.user, &target.password_file) {
            (Some(user), Some(file)) => authorization(user, file)?,
            _ => String::new(),
        };
        Ok(Self { url: target.url.clone(), address, tls, authorization })
    }

    /// The body of the answer.
    pub fn get(&self, path: &str) -> Result<String, Error> {
        let url = || self.url.clone();
        let until = Instant::now() + WITHIN;
        let (authority, prefix) = match &self.address {
            Address::Tcp { authority, prefix, .. } if prefix.is_empty() => (authority.as_str(), String::new()),
            Address::Tcp { authority, prefix, .. } => (authority.as_str(), format!("/{prefix}")),
            Address::Unix(_) => ("localhost", String::new()),
        };
        let question = format!(
            "GET {prefix}{path} HTTP/1.1\r\nHost: {authority}\r\n{}Connection: close\r\n\r\n",
            self.authorization
        );
        let stream = self.address.connect().map_err(|source| Error::Connect { url: url(), source })?;
        let mut stream = Timed { stream, until };
        let answer = match &self.tls {
            None => exchange(stream, &question),
            Some((config, name)) => {
                let handshake = |source| Error::Handshake { url: url(), source };
                let connection = ClientConnection::new(config.clone(), name.clone());
                let mut connection = connection.map_err(|error| handshake(io::Error::other(error)))?;
                while connection.is_handshaking() {
                    connection.complete_io(&mut stream).map_err(handshake)?;
                }
                exchange(StreamOwned::new(connection, stream), &question)
            }
        };
        let answer = answer.map_err(|source| Error::Exchange { url: url(), source })?;
        match parse(&answer).ok_or_else(|| Error::NoAgent(url()))? {
            (200, body) => Ok(body),
            (401, _) => Err(Error::Unauthorized(url())),
            (status, body) => Err(Error::Refused { url: url(), status, body: beginning(&body) }),
        }
    }
}

/// What is worth reading of an answer that is none of an agent's.
fn beginning(body: &str) -> String {
    body.trim().lines().next().unwrap_or_default().chars().take(200).collect()
}

/// Whom to trust, and what to show.
fn config(target: &Target) -> Result<ClientConfig, Error> {
    let bundle = || AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let authorities = target.ca_file.clone().or_else(bundle).ok_or(Error::NoAuthority)?;
    let mut roots = RootCertStore::empty();
    // Bundles of systems may hold one that is no good; one's own must have one that is.
    let (good, _) = roots.add_parsable_certificates(certificates(&authorities)?);
    if good == 0 {
        return Err(Error::NoAuthority);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let tls = |source| Error::Tls { path: authorities.clone(), source };
    let builder = builder.map_err(tls)?.with_root_certificates(roots);
    let (Some(certificate), Some(key)) = (&target.cert_file, &target.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| Error::Pem { path: key.clone(), source })?;
    let identity = builder.with_client_auth_cert(certificates(certificate)?, private);
    identity.map_err(|source| Error::Tls { path: key.clone(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    all.map_err(|source| Error::Pem { path: path.to_owned(), source })
}

fn authorization(user: &str, file: &Path) -> Result<String, Error> {
    let text = fs::read(file).map_err(|source| Error::Read { path: file.to_owned(), source })?;
    // Editors end a file with a line's end.
    let password = text.strip_suffix(b"\n").unwrap_or(&text);
    let password = password.strip_suffix(b"\r").unwrap_or(password);
    let both = [user.as_bytes(), b":", password].concat();
    Ok(format!("Authorization: Basic {}\r\n", STANDARD.encode(both)))
}

impl Address {
    fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => connect_path(path, WITHIN).map_err(in_words).map(Stream::Unix),
            Self::Tcp { authority, .. } => connect(authority).map(Stream::Tcp),
        }
    }
}

/// A socket with more clients than it takes would let this one wait for ever.
fn connect_path(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(within))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The kernel says `try again` where a wait came to its end (socket(7), SO_RCVTIMEO).
fn in_words(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

fn connect(authority: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A stream whose every wait ends at that moment.
struct Timed {
    stream: Stream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        let read = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
            Stream::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(buffer)),
        };
        read.map_err(in_words)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        let written = match &mut self.stream {
            Stream::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            Stream::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
        };
        written.map_err(in_words)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads until the agent closes, which it was asked to do.
fn exchange(mut stream: impl Read + Write, question: &str) -> io::Result<Vec<u8>> {
    stream.write_all(question.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        if answer.len() > SIZE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            // Without a word of TLS; the length tells whether anything is missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(answer),
            read => answer.extend_from_slice(&part[..read?]),
        }
    }
}

/// A password is for no log.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a client of {}", self.url)
    }
}

/// Status and body; none where the answer is not HTTP, or was cut short.
fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length?.1.trim().parse().ok()?;
    Some((status, String::from_utf8(body.get(..length)?.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_http_https_or_a_socket() {
        let read = |url: &str| url.parse::<Address>().ok();
        let tcp = |secure, authority: &str, prefix: &str| {
            Some(Address::Tcp { secure, authority: authority.into(), prefix: prefix.into() })
        };
        assert_eq!(read("http://127.0.0.1:9845"), tcp(false, "127.0.0.1:9845", ""));
        assert_eq!(read("http://[::1]:9845/"), tcp(false, "[::1]:9845", ""));
        assert_eq!(read("http://gpu01/agent/"), tcp(false, "gpu01:80", "agent"));
        assert_eq!(read("gpu01:9845"), tcp(false, "gpu01:9845", ""));
        assert_eq!(read("https://gpu01"), tcp(true, "gpu01:443", ""));
        assert_eq!(read("https://gpu01:9845/agent"), tcp(true, "gpu01:9845", "agent"));
        assert_eq!(read("unix:/run/x.sock"), Some(Address::Unix("/run/x.sock".into())));
        for wrong in [
            "",
            "gpu01",
            "ftp://gpu01",
            "http://",
            "http:///x",
            "http://a b",
            "http://a/\r\nX: y",
            "http://u@h",
            "unix:x",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_password_ends_where_its_line_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        for text in ["secret", "secret\n", "secret\r\n"] {
            fs::write(&file, text).unwrap();
            assert_eq!(authorization("alice", &file).unwrap(), "Authorization: Basic YWxpY2U6c2VjcmV0\r\n", "{text:?}");
        }
        assert!(authorization("alice", &folder.path().join("gone")).is_err());
    }

    #[test]
    fn an_answer_that_is_cut_short_is_none() {
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Some((200, "hi".into())));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi"), None);
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\nhi"), None);
        assert_eq!(parse(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), None);
    }

    /// What is said of somebody who takes a question and answers so, or not at all.
    fn told(answer: &'static [u8]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (ca_file, cert_file, key_file, user, password_file) = (None, None, None, None, None);
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::new(&Target { url, ca_file, cert_file, key_file, user, password_file }).unwrap();
        let answers = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(answer).unwrap();
        });
        let error = client.get("/").unwrap_err();
        answers.join().unwrap();
        crate::causes::chain(&error)
    }

    #[test]
    fn who_answers_otherwise_commands_no_terminal() {
        let told = told(b"HTTP/1.1 500 x\r\nContent-Length: 22\r\n\r\n\x1b[2Jlost \xc2\x9b\nline two..");
        assert!(told.ends_with(" answers 500: \u{fffd}[2Jlost \u{fffd}"), "{told}");
        assert_eq!(beginning(&"x".repeat(5000)).len(), 200);
    }

    #[test]
    fn a_wait_ends_and_is_called_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("busy");
        let busy = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        net::bind(&busy, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&busy, 0).unwrap();
        let first = Stream::Unix(UnixStream::connect(&path).unwrap());
        let within = Duration::from_millis(50);
        assert_eq!(in_words(connect_path(&path, within).unwrap_err()).kind(), io::ErrorKind::TimedOut);
        let mut first = Timed { stream: first, until: Instant::now() + within };
        assert_eq!(first.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
