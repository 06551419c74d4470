//! One question to an agent, over plain HTTP and with limits on time and size.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// An agent answers from memory; whoever takes longer is not well.
const WITHIN: Duration = Duration::from_secs(10);

/// No node has so many cards.
const SIZE: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{0}` is not an address such as http://127.0.0.1:9845")]
    Address(String),
    #[error("cannot reach an agent at {url}; is `gpuwarden serve` running there?")]
    Connect { url: String, source: io::Error },
    #[error("the agent at {url} did not answer in full")]
    Exchange { url: String, source: io::Error },
    #[error("what answers at {0} is no agent")]
    NoAgent(String),
    #[error("the agent at {url} answers {status}: {body}")]
    Refused { url: String, status: u16, body: String },
}

/// Where an agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    url: String,
    /// Host and port.
    authority: String,
    prefix: String,
}

impl std::str::FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = || Error::Address(url.to_owned());
        let bare = url.strip_prefix("http://");
        let rest = bare.unwrap_or(url);
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = rest.bytes().all(|byte| byte.is_ascii_graphic()) && !host.contains('@');
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        // Without the scheme it is as --web.listen-address has it, with a port.
        if host.is_empty() || !plain || (bare.is_none() && !has_port) {
            return Err(wrong());
        }
        let authority = if has_port { host.to_owned() } else { format!("{host}:80") };
        Ok(Self { url: url.to_owned(), authority, prefix: prefix.trim_end_matches('/').to_owned() })
    }
}

/// The body of the answer.
pub fn get(address: &Address, path: &str) -> Result<String, Error> {
    let url = || address.url.clone();
    let until = Instant::now() + WITHIN;
    let stream = connect(&address.authority).map_err(|source| Error::Connect { url: url(), source })?;
    let prefix = if address.prefix.is_empty() { String::new() } else { format!("/{}", address.prefix) };
    let question = format!("GET {prefix}{path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", address.authority);
    let answer = exchange(stream, &question, until).map_err(|source| Error::Exchange { url: url(), source })?;
    let (status, body) = parse(&answer).ok_or_else(|| Error::NoAgent(url()))?;
    if status == 200 { Ok(body) } else { Err(Error::Refused { url: url(), status, body: body.trim().to_owned() }) }
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

/// Reads until the agent closes, which it was asked to do.
fn exchange(mut stream: TcpStream, question: &str, until: Instant) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(WITHIN))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() as u64 > SIZE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(answer),
            read => answer.extend_from_slice(&part[..read]),
        }
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
    fn an_address_is_plain_http() {
        let read = |url: &str| url.parse::<Address>().map(|address| (address.authority, address.prefix));
        assert_eq!(read("http://127.0.0.1:9845").unwrap(), ("127.0.0.1:9845".into(), String::new()));
        assert_eq!(read("http://[::1]:9845/").unwrap(), ("[::1]:9845".into(), String::new()));
        assert_eq!(read("http://gpu01/agent/").unwrap(), ("gpu01:80".into(), "agent".into()));
        assert_eq!(read("gpu01:9845").unwrap(), ("gpu01:9845".into(), String::new()));
        for wrong in
            ["", "gpu01", "https://gpu01", "http://", "http:///x", "http://a b", "http://a/\r\nX: y", "http://u@h"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_is_cut_short_is_none() {
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Some((200, "hi".into())));
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi"), None);
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\nhi"), None);
        assert_eq!(parse(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), None);
    }
}
