use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::*;
use crate::cycle::fixture;

/// A server on a free port of loopback.
struct Served {
    address: SocketAddr,
    published: watch::Sender<Arc<Published>>,
    _server: Server,
}

fn serve_with(published: Published, reload: Option<AskReload>) -> Served {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let Listener::Tcp(tcp) = &listener else { panic!("not TCP") };
    let address = tcp.local_addr().unwrap();
    let (published, receiver) = watch::channel(Arc::new(published));
    let server = Server::start(vec![listener], receiver, reload, None).unwrap();
    Served { address, published, _server: server }
}

fn serve_cycle() -> Served {
    serve_with(Published::new(Arc::new(fixture::cycle())), None)
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    /// Head and body of the answer.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = self.connect();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), body.to_owned())
    }

    fn status(&self, method: &str, path: &str) -> String {
        let (head, _) = self.ask(method, path);
        head.split_whitespace().nth(1).unwrap().to_owned()
    }
}

#[test]
fn metrics_are_the_page_that_was_encoded() {
    let served = serve_cycle();
    let (head, body) = served.ask("GET", "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    assert_eq!(body.as_bytes(), export::page(&fixture::cycle()));
}

#[test]
fn head_tells_the_length_and_sends_nothing() {
    let served = serve_cycle();
    let (_, page) = served.ask("GET", "/metrics");
    let (head, body) = served.ask("HEAD", "/metrics");
    assert!(head.starts_with("http/1.1 200") && head.contains(&format!("content-length: {}", page.len())), "{head}");
    assert_eq!(body, "");
}

#[test]
fn each_path_has_its_methods() {
    let served = serve_cycle();
    let answers = [
        ("GET", "/", "200"),
        ("GET", "/metrics?name=x", "200"),
        ("GET", "/-/healthy", "200"),
        ("GET", "/api/v1/status", "200"),
        ("GET", "/nothing", "404"),
        ("POST", "/nothing", "404"),
        ("POST", "/metrics", "405"),
        ("DELETE", "/", "405"),
        ("GET", "/-/reload", "405"),
        ("POST", "/-/reload", "403"),
    ];
    for (method, path, status) in answers {
        assert_eq!(served.status(method, path), status, "{method} {path}");
    }
}

#[test]
fn before_the_first_cycle_the_program_is_all_there_is() {
    let served = serve_with(Published::before(&fixture::setup().build), None);
    let (head, body) = served.ask("GET", "/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let families: Vec<_> = body.lines().filter(|line| line.starts_with("# TYPE")).collect();
    assert_eq!(families, ["# TYPE gpuwarden_build_info gauge"]);
    assert_eq!(served.status("GET", "/-/ready"), "503");
    assert_eq!(served.status("GET", "/api/v1/status"), "503");
    served.published.send(Arc::new(Published::new(Arc::new(fixture::cycle())))).unwrap();
    assert_eq!(served.status("GET", "/api/v1/status"), "200");
}

#[test]
fn ready_is_who_turned_lately_and_whose_driver_answers() {
    let mut cycle = fixture::cycle();
    let at = cycle.seen.at.boot;
    let after = |seconds| Some(at + Duration::from_secs(seconds));
    assert_eq!(ready(Some(&cycle), after(17)), Ok(()));
    assert_eq!(ready(Some(&cycle), after(18)), Err("the last cycle is 18 s old".into()));
    assert_eq!(ready(None, after(0)), Err("no cycle has ended yet".into()));
    cycle.seen.gpus = Err(crate::snapshot::Fault::new(crate::snapshot::Source::Nvml, "the driver is not loaded"));
    assert_eq!(ready(Some(&cycle), after(0)), Err("nvml: the driver is not loaded".into()));
}

#[test]
fn a_reload_is_answered_with_what_came_of_it() {
    for (result, status, said) in
        [(Ok(()), "200", "reloaded\n"), (Err("line 3: what".to_owned()), "500", "line 3: what\n")]
    {
        let ask: AskReload = Box::new(move |answer| drop(answer.send(result.clone())));
        let served = serve_with(Published::before(&Build::THIS), Some(ask));
        let (head, body) = served.ask("POST", "/-/reload");
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert_eq!(body, said);
    }
}

#[test]
fn slow_clients_keep_nobody_else_away() {
    let served = serve_cycle();
    let slow: Vec<TcpStream> = (0..clients::OF_ONE_PEER + 8)
        .map(|_| {
            let mut stream = served.connect();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
            stream
        })
        .collect();
    let begun = Instant::now();
    assert_eq!(served.status("GET", "/metrics"), "200");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The first of them had to go.
    let mut first = &slow[0];
    assert!(matches!(first.read(&mut [0; 1]), Ok(0) | Err(_)));
}

#[test]
fn a_connection_is_good_for_many_questions_also_all_at_once() {
    let served = serve_cycle();
    let mut stream = served.connect();
    let questions = ["/-/healthy", "/nothing", "/-/healthy"];
    let last = "GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let all: String = questions.map(|path| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).concat() + last;
    stream.write_all(all.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let came: Vec<&str> = answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(came, ["200", "404", "200", "200"]);
}

#[test]
fn a_body_that_is_not_wanted_is_not_waited_for() {
    let served = serve_cycle();
    let mut stream = served.connect();
    stream.write_all(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n").unwrap();
    let mut answer = String::new();
    // It ends: what follows would not be read.
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[test]
fn gzip_is_the_same_page_and_each_answer_says_that_it_may_differ() {
    let served = serve_cycle();
    let (head, plain) = served.ask("GET", "/metrics");
    assert!(head.contains("vary: accept-encoding") && !head.contains("content-encoding"), "{head}");
    let mut small = Vec::new();
    for method in ["HEAD", "GET"] {
        let mut stream = served.connect();
        write!(stream, "{method} /metrics HTTP/1.1\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_ascii_lowercase();
        assert!(head.contains("vary: accept-encoding") && head.contains("content-encoding: gzip"), "{head}");
        small.push((
            head.lines().find(|line| line.starts_with("content-length")).unwrap().to_owned(),
            answer.split_off(end + 4),
        ));
    }
    assert_eq!(small[0].0, small[1].0);
    assert!(small[0].1.is_empty());
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(&small[1].1[..]).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain);
}

#[test]
fn a_head_without_end_is_refused() {
    let served = serve_cycle();
    let mut stream = served.connect();
    let endless = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n", "x".repeat(4 * HEAD_SIZE));
    let _ = stream.write_all(endless.as_bytes());
    let mut answer = [0; 12];
    let _ = stream.read(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn a_socket_that_was_left_behind_is_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let address = ListenAddress::Unix(folder.path().join("web.sock"));
    drop(Listener::bind(&address).unwrap());
    let again = Listener::bind(&address).unwrap();
    assert!(Listener::bind(&address).is_err(), "somebody listens there");
    drop(again);
}

#[test]
fn an_address_is_one_of_ip_a_name_or_a_path() {
    let table = [
        ("127.0.0.1:9845", Some("127.0.0.1:9845")),
        ("[::1]:9845", Some("[::1]:9845")),
        (":9845", Some("[::]:9845")),
        ("localhost:9845", Some("localhost:9845")),
        ("gpu-01.example.edu:9845", Some("gpu-01.example.edu:9845")),
        ("unix:/run/gpuwarden.sock", Some("unix:/run/gpuwarden.sock")),
        ("localhost", None),
        ("localhost:", None),
        ("localhost:99999", None),
        ("256.0.0.1:9845", None),
        ("::1:9845", None),
        ("a b:9845", None),
        ("unix:run", None),
        ("http://localhost:9845", None),
        ("", None),
    ];
    for (text, read) in table {
        let address = text.parse::<ListenAddress>();
        assert_eq!(address.map(|address| address.to_string()).ok().as_deref(), read, "{text}");
    }
    let bound = Listener::bind(&"localhost:0".parse().unwrap()).unwrap().address().unwrap();
    assert!(bound.starts_with("127.") || bound.starts_with("[::1]"), "{bound}");
    assert!(Listener::bind(&"no-such-host.invalid:0".parse().unwrap()).is_err());
}
