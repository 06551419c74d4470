//! A server that sends the same bytes to whoever asks, whatever he asks for: one thread, one client at a time.
//!
//! `static-server ADDRESS FILE`. It speaks as much HTTP as a scrape needs: the connection stays open for the next
//! question unless it is one of HTTP/1.0.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, fs};

const END: &[u8] = b"\r\n\r\n";

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, file] = arguments.as_slice() else { return Err(io::Error::other("static-server ADDRESS FILE")) };
    let body = fs::read(file)?;
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = [head.into_bytes(), body].concat();
    for client in TcpListener::bind(address)?.incoming() {
        // One that leaves in the middle is no reason to end.
        let _ = client.and_then(|client| serve(client, &answer));
    }
    Ok(())
}

fn serve(mut client: TcpStream, answer: &[u8]) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut question = [0; 4096];
    let mut length = 0;
    loop {
        match client.read(&mut question[length..])? {
            0 => return Ok(()),
            read => length += read,
        }
        if question[..length].ends_with(END) {
            client.write_all(answer)?;
            if question[..length].windows(8).any(|word| word == b"HTTP/1.0") {
                return Ok(());
            }
            length = 0;
        }
    }
}
