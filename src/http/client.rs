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
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, InvalidMessage,
    RootCertStore, SignatureScheme, StreamOwned,
};

use super::PLAIN;
use super::web::certificate;

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
    #[error("`{0}` says neither http:// nor https://, and no port; an address is such as https://{0}:9845")]
    Scheme(String),
    #[error("`{0}` is no name that a certificate could bear")]
    Name(String),
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Pem { path: PathBuf, source: pem::Error },
    #[error("{} cannot be used", path.display())]
    Unusable { path: PathBuf, source: rustls::Error },
    #[error("there is no authority to trust; name one with --ca-file")]
    NoAuthority,
    #[error("cannot reach an agent at {url}; is `gpuwarden serve` running there?")]
    Connect { url: String, source: io::Error },
    #[error("no TLS with {url}; see --ca-file")]
    Handshake { url: String, source: io::Error },
    #[error("{0} is plain HTTP, without TLS")]
    Plain(String),
    #[error("the agent at {0} serves TLS; its address begins with https://")]
    Tls(String),
    #[error("the agent at {0} serves TLS; see --ca-file and --server-name")]
    SocketTls(String),
    #[error("the agent at {0} wants a certificate; see --cert-file and --key-file")]
    Uncertified(String),
    #[error("the agent at {url} refused this certificate; see --cert-file")]
    Certificate { url: String, source: rustls::Error },
    #[error("the agent at {url} did not answer in full")]
    Exchange { url: String, source: io::Error },
    #[error("what answers at {0} is no agent")]
    NoAgent(String),
    #[error("the agent at {0} wants a user and his password; see --user and --password-file")]
    Unauthorized(String),
    #[error("the agent at {0} refused this user or password")]
    WrongUser(String),
    #[error("the agent at {url} answers {status}: {body}")]
    Refused { url: String, status: u16, body: String },
}

/// The agent to ask, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Target {
    /// The agent to ask: an http:// or https:// address, or unix:/absolute/path
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9845")]
    pub url: String,
    /// Certificates to trust, in PEM, of authorities or the agent's own; without it, the authorities of the system
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The name that the agent's certificate must bear; without it, that in the address, or localhost for a socket
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
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
        let bare = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if !url.is_empty() && url.chars().all(bare) {
            return Err(Error::Scheme(url.to_owned()));
        }
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
        let host = match &address {
            Address::Tcp { secure: true, authority, .. } => {
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                Some(host.trim_start_matches('[').trim_end_matches(']'))
            }
            // An agent that serves TLS does so on every socket.
            Address::Unix(_) if target.ca_file.is_some() || target.server_name.is_some() => Some("localhost"),
            _ => None,
        };
        let tls = host.map(|host| {
            let name = target.server_name.as_deref().unwrap_or(host).to_owned();
            let name = ServerName::try_from(name.clone()).map_err(|_| Error::Name(name))?;
            Ok::<_, Error>((Arc::new(config(target)?), name))
        });
        let tls = tls.transpose()?;
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
                let handshake = |source| self.unheard(source, |url, source| Error::Handshake { url, source });
                let connection = ClientConnection::new(config.clone(), name.clone());
                let mut connection = connection.map_err(|error| handshake(io::Error::other(error)))?;
                while connection.is_handshaking() {
                    connection.complete_io(&mut stream).map_err(handshake)?;
                }
                exchange(StreamOwned::new(connection, stream), &question)
            }
        };
        let exchanged = |source| self.unheard(source, |url, source| Error::Exchange { url, source });
        let answer = answer.map_err(exchanged)?;
        match parse(&answer).ok_or_else(|| Error::NoAgent(url()))? {
            (200, body) => Ok(body),
            (401, _) if self.authorization.is_empty() => Err(Error::Unauthorized(url())),
            (401, _) => Err(Error::WrongUser(url())),
            // Servers in Go say it in the same words.
            (400, body) if self.tls.is_none() && PLAIN.ends_with(format!("\r\n\r\n{body}").as_bytes()) => {
                Err(if matches!(self.address, Address::Unix(_)) { Error::SocketTls(url()) } else { Error::Tls(url()) })
            }
            (status, body) => Err(Error::Refused { url: url(), status, body: beginning(&body) }),
        }
    }

    /// Why there was no answer: what TLS tells of it is worth words of its own.
    fn unheard(&self, error: io::Error, otherwise: fn(String, io::Error) -> Error) -> Error {
        let url = self.url.clone();
        match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Error::Plain(url),
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => Error::Uncertified(url),
            Some(source @ rustls::Error::AlertReceived(alert)) if REFUSALS.contains(alert) => {
                Error::Certificate { url, source: source.clone() }
            }
            _ => otherwise(url, error),
        }
    }
}

/// What a server says of a client's certificate (RFC 8446, 6.2).
const REFUSALS: [AlertDescription; 7] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

/// What is worth reading of an answer that is none of an agent's.
fn beginning(body: &str) -> String {
    body.trim().lines().take(1).flat_map(str::chars).take(200).collect()
}

/// Whom to trust, and what to show.
fn config(target: &Target) -> Result<ClientConfig, Error> {
    let bundle = || AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let authorities = target.ca_file.clone().or_else(bundle).ok_or(Error::NoAuthority)?;
    let all = certificates(&authorities)?;
    let mut roots = RootCertStore::empty();
    // Bundles of systems may hold one that is no good; one's own must have one that is.
    roots.add_parsable_certificates(all.iter().cloned());
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let authorities_only = verifier.map_err(|_| Error::NoAuthority)?;
    let own = if target.ca_file.is_some() { all } else { Vec::new() };
    let verifier = Arc::new(Trusted { authorities: authorities_only, own });
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|source| Error::Unusable { path: authorities, source })?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let (Some(certificate), Some(key)) = (&target.cert_file, &target.key_file) else {
        return Ok(builder.with_no_client_auth());
    };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| Error::Pem { path: key.clone(), source })?;
    let identity = builder.with_client_auth_cert(certificates(certificate)?, private);
    identity.map_err(|source| Error::Unusable { path: key.clone(), source })
}

/// Trusts what authorities have signed, and a certificate that was named itself. One that signs itself is mostly that of an
/// authority too, as `openssl req -x509` makes it, and webpki takes an authority for no server.
#[derive(Debug)]
struct Trusted {
    authorities: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.own.iter().any(|own| own == certificate) {
            return self.authorities.verify_server_cert(certificate, intermediates, name, ocsp_response, now);
        }
        let (from, until) = certificate::validity(certificate).ok_or(CertificateError::BadEncoding)?;
        let now = certificate::moment(now).ok_or(CertificateError::BadEncoding)?;
        if now < from {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > until {
            return Err(CertificateError::Expired.into());
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
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
        assert!(matches!("gpu01".parse::<Address>(), Err(Error::Scheme(_))));
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
        let (ca_file, server_name, cert_file, key_file, user, password_file) = (None, None, None, None, None, None);
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client =
            Client::new(&Target { url, ca_file, server_name, cert_file, key_file, user, password_file }).unwrap();
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
    fn plain_http_where_tls_is_served_is_told_what_to_ask() {
        let told = told(PLAIN);
        assert!(told.ends_with(" serves TLS; its address begins with https://"), "{told}");
    }

    #[test]
    fn a_certificate_that_is_named_itself_is_trusted_for_its_name_and_its_time() {
        let signed_by_itself = |from: i32, until: i32| {
            let mut params = rcgen::CertificateParams::new(["gpu01".to_owned()]).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().clone()
        };
        let own = signed_by_itself(2020, 2030);
        let verify = |own: &CertificateDer<'static>, shown: &CertificateDer<'static>, name: &str, year: u64| {
            let mut roots = RootCertStore::empty();
            roots.add(own.clone()).unwrap();
            let provider = Arc::new(ring::default_provider());
            let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            let trusted = Trusted { authorities, own: vec![own.clone()] };
            let now = UnixTime::since_unix_epoch(Duration::from_secs((year - 1970) * 31_557_600));
            let name = ServerName::try_from(name.to_owned()).unwrap();
            trusted.verify_server_cert(shown, &[], &name, &[], now).map_err(|error| error.to_string())
        };
        assert!(verify(&own, &own, "gpu01", 2025).is_ok());
        assert!(verify(&own, &own, "gpu02", 2025).unwrap_err().contains("not valid for name"));
        assert_eq!(verify(&own, &own, "gpu01", 2032).unwrap_err(), "invalid peer certificate: Expired");
        assert_eq!(verify(&own, &own, "gpu01", 2019).unwrap_err(), "invalid peer certificate: NotValidYet");
        assert!(verify(&own, &signed_by_itself(2020, 2030), "gpu01", 2025).is_err());
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
