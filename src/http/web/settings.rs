//! The file as it is written, and what may stand in it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use rustls::pki_types::UnixTime;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::rate::Bucket;
use super::tls::{self, Tls};
use super::users::Users;
use super::{Reader, Web, certificate};
use crate::config::{Diagnostic, yaml};
use crate::policy::check::{Complaint, Step, steps};
use crate::units::Span;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    tls_server_config: Option<tls::Settings>,
    http_server_config: Http,
    basic_auth_users: BTreeMap<String, String>,
    rate_limit: Option<RateLimit>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Http {
    /// Served is HTTP/1.1, which every client that speaks HTTP/2 speaks as well: true and false come to the same.
    #[serde(rename = "http2")]
    _http2: bool,
    headers: Headers,
}

/// The headers that the toolkit lets people set.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Headers {
    #[serde(rename = "Content-Security-Policy")]
    content_security_policy: String,
    #[serde(rename = "X-Frame-Options")]
    x_frame_options: String,
    #[serde(rename = "X-Content-Type-Options")]
    x_content_type_options: String,
    #[serde(rename = "X-XSS-Protection")]
    x_xss_protection: String,
    #[serde(rename = "Strict-Transport-Security")]
    strict_transport_security: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    interval: Interval,
    #[serde(default)]
    burst: u32,
}

/// The time between two requests; zero for no limit.
struct Interval(Duration);

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = Interval;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a duration with its unit, such as 1s, or 0")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Interval, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Interval, E> {
                if text == "0" {
                    return Ok(Interval(Duration::ZERO));
                }
                let wrong = |_| E::invalid_value(Unexpected::Str(text), &self);
                text.parse().map(|Span(interval)| Interval(interval)).map_err(wrong)
            }
        }

        deserializer.deserialize_any(Read)
    }
}

/// Complaints as they come up, and the path under which they are.
pub(super) struct Complaints(Vec<Complaint>);

impl Complaints {
    pub fn at(&mut self, at: Vec<Step>, what: impl Into<String>) {
        self.0.push(Complaint { at, what: what.into() });
    }

    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads a file's text, and what it names.
pub(super) fn read(path: &Path, text: &str, reader: &mut Reader) -> Result<Web, Vec<Diagnostic>> {
    let expected = "a web configuration, such as `tls_server_config:` or `basic_auth_users:`";
    let settings: Settings = yaml::parse(path, text, expected, &[])?;
    let mut complaints = Complaints(Vec::new());
    let directory = path.parent().unwrap_or(Path::new(""));
    let headers = headers(&settings.http_server_config.headers, &mut complaints);
    let users = users(settings.basic_auth_users, &mut complaints);
    let rate = settings.rate_limit.and_then(|limit| bucket(&limit, &mut complaints));
    let asked = settings.tls_server_config.as_ref().map(tls::Settings::asked).unwrap_or_default();
    let tls = settings.tls_server_config.and_then(|tls| tls.server_config(directory, reader, &mut complaints));
    if !complaints.are_none() {
        return Err(yaml::sorted(yaml::locate_all(path, text, complaints.0)));
    }
    let now = certificate::moment(UnixTime::now());
    let warning = tls.as_ref().zip(now).and_then(|(tls, now)| tls.warning(now));
    let warnings = yaml::locate_all(path, text, warning.into_iter().collect());
    let until = tls.as_ref().and_then(Tls::until);
    Ok(Web { tls: tls.map(|tls| tls.config), until, warnings, asked, headers, users, rate })
}

fn headers(headers: &Headers, complaints: &mut Complaints) -> Vec<(HeaderName, HeaderValue)> {
    let table: [(&str, &str, &[&str]); 5] = [
        ("Content-Security-Policy", &headers.content_security_policy, &[]),
        ("X-Frame-Options", &headers.x_frame_options, &["deny", "sameorigin"]),
        ("X-Content-Type-Options", &headers.x_content_type_options, &["nosniff"]),
        ("X-XSS-Protection", &headers.x_xss_protection, &[]),
        ("Strict-Transport-Security", &headers.strict_transport_security, &[]),
    ];
    let mut set = Vec::new();
    for (name, value, words) in table.into_iter().filter(|(_, value, _)| !value.is_empty()) {
        let at = || steps!["http_server_config", "headers", name];
        if !words.is_empty() && !words.contains(&value) {
            complaints.at(at(), format!("unknown word `{value}`, expected {}", words.join(" or ")));
            continue;
        }
        match (name.parse(), HeaderValue::from_str(value)) {
            (Ok(name), Ok(value)) => set.push((name, value)),
            _ => complaints.at(at(), "a control character, expected one line of text"),
        }
    }
    set
}

fn users(users: BTreeMap<String, String>, complaints: &mut Complaints) -> Users {
    for (name, hash) in &users {
        if name.is_empty() || name.contains(':') {
            let what = format!("`{name}` is no name that a client could send, expected one without a colon");
            complaints.at(steps!["basic_auth_users", name.as_str()], what);
        } else if let Some(fault) = Users::fault(hash) {
            complaints.at(steps!["basic_auth_users", name.as_str()], fault);
        }
    }
    Users::new(users)
}

fn bucket(limit: &RateLimit, complaints: &mut Complaints) -> Option<Arc<Bucket>> {
    let Interval(interval) = limit.interval;
    if interval.is_zero() {
        return None;
    }
    if limit.burst == 0 {
        complaints.at(steps!["rate_limit"], "a burst of 0 would answer nobody, expected `burst: 1` or more");
    }
    Some(Arc::new(Bucket::new(interval, limit.burst)))
}
