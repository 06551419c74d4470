//! Answers, by what they hold.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode, header};
use serde::Serialize;

pub type Answer = Response<Full<Bytes>>;

/// The text format of Prometheus, whatever the client asks for.
pub const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// Should the text of a process ever get through as markup, it could load and run nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

pub fn with_type(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = with_type(TEXT, body);
    *answer.status_mut() = status;
    answer
}

pub fn html(body: String) -> Answer {
    let mut answer = with_type(HTML, body);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut answer = with_type(JSON, body);
            *answer.status_mut() = status;
            answer
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "there is no such page; see /, /metrics, /-/healthy, /-/ready, /api/v1/status\n")
}

pub fn not_allowed(allowed: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("only {allowed}\n"));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}
