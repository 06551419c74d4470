//! A scrape as Prometheus makes it, but for the connection, which is a new one each time: not every exporter keeps one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The longest that anybody may take: an exporter that is busy answers late.
const PATIENCE: Duration = Duration::from_secs(30);

/// A page, and how long it took from the first packet to the last.
pub struct Scrape {
    pub took: Duration,
    pub page: Vec<u8>,
}

/// One question on a connection of its own.
pub fn once(address: SocketAddr) -> io::Result<Scrape> {
    let began = Instant::now();
    let mut stream = connect(address)?;
    // HTTP/1.0: no keep-alive and no chunks.
    ask(&mut stream, address, "HTTP/1.0")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let took = began.elapsed();
    let body = body(&answer)?;
    Ok(Scrape { took, page: answer.split_off(body) })
}

/// A connection that stays open.
pub struct Kept {
    stream: TcpStream,
    address: SocketAddr,
}

impl Kept {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: connect(address)?, address })
    }

    pub fn scrape(&mut self) -> io::Result<Duration> {
        let began = Instant::now();
        ask(&mut self.stream, self.address, "HTTP/1.1")?;
        let mut answer = vec![0; 1 << 20];
        let mut length = 0;
        let mut whole = None;
        while whole.is_none_or(|whole| length < whole) {
            if length == answer.len() {
                answer.resize(length * 2, 0);
            }
            match self.stream.read(&mut answer[length..])? {
                0 => return Err(io::Error::other("it closed the connection")),
                read => length += read,
            }
            if whole.is_none()
                && let Ok(start) = body(&answer[..length])
            {
                whole = Some(start + content_length(&answer[..start])?);
            }
        }
        Ok(began.elapsed())
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream, address: SocketAddr, version: &str) -> io::Result<()> {
    let question = format!("GET /metrics {version}\r\nHost: {address}\r\nAccept: text/plain;version=0.0.4\r\n\r\n");
    stream.write_all(question.as_bytes())
}

/// Where the body of a good answer begins.
fn body(answer: &[u8]) -> io::Result<usize> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|four| four == END);
    let start = end.map(|end| end + END.len()).ok_or_else(|| io::Error::other("no HTTP"))?;
    let good = answer.split(|byte| *byte == b' ').nth(1) == Some(b"200");
    if good { Ok(start) } else { Err(io::Error::other(String::from_utf8_lossy(&answer[..start]).into_owned())) }
}

fn content_length(head: &[u8]) -> io::Result<usize> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    length.ok_or_else(|| io::Error::other(format!("no length in {head}")))
}
