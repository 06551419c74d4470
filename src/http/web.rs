//! The web configuration: who may ask, and how what is said is protected. Its format is that of Prometheus'
//! exporter-toolkit (docs/web-configuration.md there), and docs/web.md tells where this differs.
//!
//! Its files are looked at with each client and each question, and read again when they have changed.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use jiff::civil::DateTime;
use rustls::ServerConfig;

use crate::config::{Diagnostic, yaml};

mod settings;
mod tls;
pub(super) mod certificate;
mod users;
mod rate;
#[cfg(test)]
mod tests;

use rate::Bucket;
pub use users::Passwords;
use users::Users;

/// All that one reading of the files came to.
#[derive(Debug)]
pub struct Web {
    /// Without it, plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// When its certificate expires, in UTC.
    until: Option<DateTime>,
    /// What is no error, and needs somebody's attention.
    warnings: Vec<Diagnostic>,
    asked: Asked,
    /// Those of every answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Without any, nobody has to say who he is.
    pub users: Users,
    pub rate: Option<Arc<Bucket>>,
}

/// What protects the page, for the log.
#[derive(Debug)]
pub struct Protection {
    pub tls: bool,
    /// When the certificate expires (RFC 3339).
    pub certificate_until: Option<String>,
    /// What clients are asked for, in the word of `client_auth_type`.
    pub client_certificates: Option<&'static str>,
    pub users: usize,
}

impl Protection {
    /// What an agent without such a file has.
    pub const NONE: Self = Self { tls: false, certificate_until: None, client_certificates: None, users: 0 };
}

impl Web {
    pub fn protection(&self) -> Protection {
        Protection {
            tls: self.tls.is_some(),
            certificate_until: self.until.map(|until| format!("{until}Z")),
            client_certificates: self.asked.policy,
            users: self.users.len(),
        }
    }

    fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{}", warning.to_string());
        }
    }

    /// What the one before protected and this one does not. A file that is read while somebody writes it must not open the
    /// door: that takes a restart.
    fn opens(&self, before: &Self) -> Option<&'static str> {
        match () {
            () if self.tls.is_none() && before.tls.is_some() => Some("TLS is gone"),
            () if self.users.is_empty() && !before.users.is_empty() => Some("all users are gone"),
            () if before.asked.certificate && !self.asked.certificate => Some("clients need no certificate any more"),
            () if before.asked.authority && !self.asked.authority => Some("any certificate would do"),
            () if before.asked.name && !self.asked.name => Some("any name would do"),
            () => None,
        }
    }
}

/// What a client must show: a certificate, of an authority, with one of some names.
#[derive(Debug, Default)]
struct Asked {
    /// The word for it, where anything is asked for.
    policy: Option<&'static str>,
    certificate: bool,
    authority: bool,
    name: bool,
}

/// After so long what could not be read is tried again, though it seems to be as it was: descriptors may have been short,
/// or a disk away.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A file as it was when it was read: replaced or written, it is another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(Option<[i64; 5]>);

impl Stamp {
    fn of(path: &Path) -> Self {
        let stamp = |file: fs::Metadata| {
            [file.ino().cast_signed(), file.mtime(), file.mtime_nsec(), file.ctime_nsec(), file.size().cast_signed()]
        };
        Self(fs::metadata(path).ok().map(stamp))
    }
}

/// A web configuration that was read once, well or not, with the files it came from.
struct Reading {
    files: Vec<(PathBuf, Stamp)>,
    web: Result<Web, Vec<Diagnostic>>,
}

/// Reads files and remembers which, as they were before.
#[derive(Default)]
struct Reader(Vec<(PathBuf, Stamp)>);

impl Reader {
    /// No certificate is larger.
    const LARGEST: u64 = 1 << 20;

    fn saw(&mut self, path: &Path) {
        self.0.push((path.to_owned(), Stamp::of(path)));
    }

    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.saw(path);
        let mut bytes = Vec::new();
        yaml::open(path)?.take(Self::LARGEST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > Self::LARGEST { Err(io::Error::other("larger than 1MiB")) } else { Ok(bytes) }
    }
}

fn read(path: &Path) -> Reading {
    let mut reader = Reader::default();
    reader.saw(path);
    let text = yaml::read(path).map_err(|error| vec![error]);
    let web = text.and_then(|text| settings::read(path, &text, &mut reader));
    Reading { files: reader.0, web }
}

/// The errors of a web configuration and the files that it names.
pub fn errors(path: &Path, text: &str) -> Vec<Diagnostic> {
    settings::read(path, text, &mut Reader::default()).err().unwrap_or_default()
}

/// What is no error of it, and needs somebody's attention: a certificate that expires.
pub fn warnings(path: &Path, text: &str) -> Vec<Diagnostic> {
    settings::read(path, text, &mut Reader::default()).map(|web| web.warnings).unwrap_or_default()
}

/// The web configuration as its files have it now.
pub struct Live {
    path: PathBuf,
    now: Mutex<Now>,
}

struct Now {
    files: Vec<(PathBuf, Stamp)>,
    web: Arc<Web>,
    trouble: Option<Trouble>,
}

/// The last reading failed.
struct Trouble {
    errors: Vec<String>,
    again: Instant,
}

impl Live {
    pub fn open(path: &Path) -> Result<Self, Vec<Diagnostic>> {
        let Reading { files, web } = read(path);
        let web = web?;
        web.warn();
        let now = Now { files, web: Arc::new(web), trouble: None };
        Ok(Self { path: path.to_owned(), now: Mutex::new(now) })
    }

    /// The last one that could be read.
    pub fn web(&self) -> Arc<Web> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let again = now.trouble.as_ref().is_some_and(|trouble| trouble.again <= Instant::now());
        if again || now.files.iter().any(|(path, stamp)| Stamp::of(path) != *stamp) {
            now.take(read(&self.path));
        }
        now.web.clone()
    }
}

impl Now {
    fn take(&mut self, reading: Reading) {
        let kept = "the web configuration was not read again, the old one is in force";
        match reading.web {
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                let told = self.trouble.as_ref().is_some_and(|trouble| trouble.errors == errors);
                if !told {
                    tracing::error!(errors = errors.join("; "), "{kept}");
                }
                self.trouble = Some(Trouble { errors, again: Instant::now() + AGAIN_AFTER });
                // Those that it did not come to may be what is mended.
                let others = self.files.iter().filter(|(path, _)| reading.files.iter().all(|(read, _)| read != path));
                let others = others.map(|(path, _)| (path.clone(), Stamp::of(path))).collect::<Vec<_>>();
                self.files = reading.files.into_iter().chain(others).collect();
            }
            Ok(mut web) => {
                self.files = reading.files;
                self.trouble = None;
                if let Some(what) = web.opens(&self.web) {
                    tracing::error!("{kept}: {what}, which takes a restart");
                    return;
                }
                web.rate = Bucket::carried_over(web.rate, self.web.rate.as_ref());
                web.warn();
                self.web = Arc::new(web);
                let Protection { tls, certificate_until, client_certificates, users } = self.web.protection();
                let certificate_until = certificate_until.as_deref();
                tracing::info!(
                    tls,
                    certificate_until,
                    client_certificates,
                    users,
                    "the web configuration was read again"
                );
            }
        }
    }
}
