//! Who may ask the agent, and how: TLS, users, sockets of systemd, clients that are slow or many.

use crate::harness::agent::{free_address, in_node, serve};
use crate::harness::node::agent_binary;
use crate::harness::wait::within;
use crate::harness::{LIMIT, Node, eventually, http};
use crate::pages::Prometheus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvml_sim::scenario::Latency;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A page is there at once.
const AT_ONCE: Duration = Duration::from_millis(100);

/// An authority, whose certificates name a host or a person.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { pem: params.self_signed(&key).unwrap().pem(), issuer: Issuer::new(params, key) }
    }

    /// Writes NAME.crt and NAME.key, for these host names and addresses.
    fn certifies(&self, node: &Node, name: &str, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        replace(node, &format!("{name}.crt"), &params.signed_by(&key, &self.issuer).unwrap().pem());
        replace(node, &format!("{name}.key"), &key.serialize_pem());
    }
}

/// Writes server.crt and server.key as `openssl req -x509` makes them: signed by itself, as an authority.
fn signed_by_itself(node: &Node, until: i32) {
    let mut params = CertificateParams::new(HERE.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    replace(node, "server.crt", &params.self_signed(&key).unwrap().pem());
    replace(node, "server.key", &key.serialize_pem());
}

/// A new file in the place of the old one, as those do who renew certificates.
fn replace(node: &Node, name: &str, text: &str) {
    fs::write(node.path("new"), text).unwrap();
    fs::rename(node.path("new"), node.path(name)).unwrap();
}

const HERE: &[&str] = &["localhost", "127.0.0.1"];

const TLS: &str = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n";

/// alice's password is `secret`.
fn users() -> String {
    format!("basic_auth_users: {{alice: {}}}\n", bcrypt::hash("secret", 8).unwrap())
}

/// The agent with a web configuration, and with what it is served.
struct Served {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Served {
    fn start(node: &Node, web: &str) -> Self {
        replace(node, "web.yml", web);
        let address = free_address();
        Self::launch(node, address, in_node(node).args(serve(node, address)).arg(web_flag(node)))
    }

    fn launch(node: &Node, address: SocketAddr, command: &mut Command) -> Self {
        let log = node.path(&format!("{}.log", address.port()));
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let served = Self { child: command.stderr(file).spawn().unwrap(), address, log };
        eventually("its first cycle", || served.log().contains("gpuwarden sees, and serves").then_some(()));
        served
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }

    /// Resident memory in KiB.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A failure means that it has ended, and then there is nothing to do.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        if within(LIMIT, || self.child.try_wait().unwrap()).is_none() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
        if thread::panicking() {
            eprintln!("--- the agent said:\n{}---", self.log());
        }
    }
}

fn web_flag(node: &Node) -> String {
    format!("--web.config.file={}", node.path("web.yml").display())
}

/// Status, head and body of what curl gets; the status is 0 where it gets nothing.
fn curl(arguments: &[&str], url: &str) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--include", "--max-time", "10"]).args(arguments).arg(url);
    let answer = String::from_utf8(curl.output().expect("curl, of Debian's package of that name").stdout).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), answer)
}

/// The text of a path, for an argument.
fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn output(node: &Node, arguments: &[&str]) -> Output {
    in_node(node).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

#[test]
fn over_tls_a_user_is_known_by_his_password() {
    let node = Node::new(1);
    let authority = Authority::new("authority");
    authority.certifies(&node, "server", HERE);
    node.write("ca.crt", &authority.pem);
    let headers =
        "http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: \"img-src 'self'\"}}\n";
    let served = Served::start(&node, &format!("{TLS}{headers}{}", users()));
    let ca = node.path("ca.crt");
    let ca = ["--cacert", text(&ca)];
    for path in ["/metrics", "/", "/-/healthy", "/-/ready", "/api/v1/status", "/nothing"] {
        let url = served.url("https") + path;
        let ask = |user: &[&str]| curl(&[&ca[..], user].concat(), &url);
        for (user, expected) in [
            (&["--user", "alice:secret"][..], if path == "/nothing" { 404 } else { 200 }),
            (&["--user", "alice:wrong"], 401),
            (&["--user", "bob:secret"], 401),
            (&[], 401),
        ] {
            let (status, answer) = ask(user);
            assert_eq!(status, expected, "{path} {user:?}");
            let head = answer.to_ascii_lowercase();
            assert_eq!(head.contains("www-authenticate: basic\r\n"), status == 401, "{head}");
            assert!(head.contains("x-frame-options: deny\r\n"), "{head}");
            assert_eq!(head.matches("content-security-policy: ").count(), 1, "{head}");
            assert!(head.contains("content-security-policy: img-src 'self'\r\n"), "{head}");
        }
    }
    // An authority of which nobody has heard, and no TLS at all.
    assert_eq!(curl(&["--user", "alice:secret"], &served.url("https")).0, 0);
    let (status, answer) = curl(&[], &served.url("http"));
    assert_eq!(status, 400);
    assert!(answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{answer}");
    let log = served.log();
    assert!(!log.contains("secret") && !log.contains("wrong"), "{log}");
}

#[test]
fn each_policy_lets_in_whom_it_says() {
    let node = Node::new(1);
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.certifies(&node, "server", HERE);
    ours.certifies(&node, "known", &["prometheus.example.edu"]);
    ours.certifies(&node, "other", &["other.example.edu"]);
    theirs.certifies(&node, "foreign", &["prometheus.example.edu"]);
    node.write("ca.crt", &ours.pem);
    let ca = "client_ca_file: ca.crt, ";
    let sans = "client_allowed_sans: [192.0.2.1, prometheus.example.edu], ";
    // Whether they are let in: without a certificate, of another authority, of ours with another name, of ours.
    let table: [(&str, String, [bool; 4]); 7] = [
        ("NoClientCert", String::new(), [true, true, true, true]),
        ("RequestClientCert", ca.into(), [true, true, true, true]),
        ("RequireAnyClientCert", String::new(), [false, true, true, true]),
        ("RequireAnyClientCert", sans.into(), [false, true, false, true]),
        ("VerifyClientCertIfGiven", ca.into(), [true, false, true, true]),
        ("RequireAndVerifyClientCert", ca.into(), [false, false, true, true]),
        ("RequireAndVerifyClientCert", format!("{ca}{sans}"), [false, false, false, true]),
    ];
    let ca_file = node.path("ca.crt");
    for (policy, with, expected) in table {
        let tls = "cert_file: server.crt, key_file: server.key";
        let served = Served::start(&node, &format!("tls_server_config: {{{tls}, {with}client_auth_type: {policy}}}\n"));
        for version in ["1.2", "1.3"] {
            let came = ["", "foreign", "other", "known"].map(|name| {
                let [certificate, key] = ["crt", "key"].map(|end| node.path(&format!("{name}.{end}")));
                let mut arguments = vec!["--cacert", text(&ca_file), "--tls-max", version];
                if !name.is_empty() {
                    arguments.extend(["--cert", text(&certificate), "--key", text(&key)]);
                }
                curl(&arguments, &served.url("https")).0 == 200
            });
            assert_eq!(came, expected, "{policy} {with} TLS {version}");
        }
    }
}

#[test]
fn a_renewed_certificate_is_served_and_a_broken_one_is_told_once() {
    let node = Node::new(1);
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    old.certifies(&node, "server", HERE);
    node.write("old.crt", &old.pem);
    node.write("new.crt", &new.pem);
    let served = Served::start(&node, TLS);
    let trusts = |name: &str| curl(&["--cacert", text(&node.path(name))], &served.url("https")).0 == 200;
    assert!(trusts("old.crt") && !trusts("new.crt"));
    replace(&node, "server.key", "none");
    assert!((0..5).all(|_| trusts("old.crt")));
    let log = served.log();
    assert_eq!(log.matches("the web configuration was not read again").count(), 1, "{log}");
    assert!(log.contains("web.yml:1:54: no private key in PEM"), "{log}");
    new.certifies(&node, "server", HERE);
    assert!(trusts("new.crt") && !trusts("old.crt"));
    let log = served.log();
    let line = |what: &str| log.lines().rfind(|line| line.contains(what)).unwrap_or_else(|| panic!("{log}"));
    for line in [line("message=listening"), line("the web configuration was read again")] {
        assert!(line.contains(" tls=true certificate_until=4096-01-01T00:00:00Z users=0"), "{line}");
    }
    // Users can come and change as well.
    replace(&node, "web.yml", &format!("{TLS}{}", users()));
    assert!(!trusts("new.crt"));
}

#[test]
fn a_certificate_that_expired_is_a_warning_and_served() {
    let node = Node::new(1);
    signed_by_itself(&node, 2001);
    let told = "web.yml:1:32: warning: the certificate has expired at 2001-01-01T00:00:00Z, and clients refuse it";
    let served = Served::start(&node, &format!("{TLS}{}", users()));
    let log = served.log();
    assert!(log.contains("level=warn") && log.contains(told), "{log}");
    assert!(log.contains(" tls=true certificate_until=2001-01-01T00:00:00Z users=1"), "{log}");
    let checked = output(&node, &["check", text(&node.path("web.yml"))]);
    assert!(String::from_utf8(checked.stdout).unwrap().contains(told));
    assert_eq!(checked.status.code(), Some(0));
}

#[test]
fn a_wrong_file_is_exit_code_78_at_the_start_and_in_check() {
    let node = Node::new(1);
    Authority::new("authority").certifies(&node, "server", HERE);
    let address = free_address();
    for (web, told) in [
        ("tls_server_config: {cert_file: server.crt, key_file: gone.key}\n", "web.yml:1:54: `"),
        ("basic_auth_users: {alice: secret}\n", "web.yml:1:27: not a bcrypt hash"),
        ("basic_auth_user: {}\nrate_limit: {}\n", "web.yml:1:1: unknown key `basic_auth_user`"),
    ] {
        node.write("web.yml", web);
        let file = node.path("web.yml");
        let checked = output(&node, &["check", text(&file)]);
        assert_eq!(checked.status.code(), Some(78), "{web}");
        let said = String::from_utf8(checked.stdout).unwrap();
        assert!(said.contains(told), "{said}");
        let mut agent = in_node(&node);
        agent.args(serve(&node, address)).arg(web_flag(&node)).stderr(Stdio::piped());
        let served = agent.output().unwrap();
        assert_eq!(served.status.code(), Some(78), "{web}");
        assert!(String::from_utf8(served.stderr).unwrap().contains(told), "{web}");
    }
    node.write("web.yml", &format!("{TLS}{}", users()));
    assert_eq!(output(&node, &["check", text(&node.path("web.yml"))]).status.code(), Some(0));
}

/// Asks as a client that keeps its connection does, and reads the head and what `Content-Length` promises.
fn ask(stream: &mut (impl Read + Write), head: &str) -> std::io::Result<String> {
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{head}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    let head = String::from_utf8(answer).map_err(std::io::Error::other)?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.ok_or_else(|| std::io::Error::other(head.clone()))?.parse().map_err(std::io::Error::other)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(head)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

fn basic(credentials: &str) -> String {
    use base64::Engine;
    format!("Authorization: Basic {}\r\n", base64::engine::general_purpose::STANDARD.encode(credentials))
}

/// A client that comes from another address of this host.
fn connect_from(last: u8, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&client, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    connect(&client, &address).unwrap();
    client.into()
}

#[test]
fn a_flood_of_wrong_passwords_keeps_no_scrape_waiting() {
    let node = Node::new(1);
    // 70 ms each where code is optimized, and this is not.
    let users = format!("basic_auth_users: {{alice: {}}}\n", bcrypt::hash("secret", 10).unwrap());
    let served = Served::start(&node, &users);
    let scrape = || {
        let begun = Instant::now();
        let head = ask(&mut connect(served.address), &basic("alice:secret")).unwrap();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        begun.elapsed()
    };
    scrape();
    // From two hosts, as many as there are places; each with a password of its own.
    let mut flood: Vec<TcpStream> = (0..64).map(|number| connect_from(2 + number % 2, served.address)).collect();
    for (number, stream) in flood.iter_mut().enumerate() {
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{}\r\n", basic(&format!("alice:{number}"))).unwrap();
    }
    // When one was refused the others have long been read, and it asks again.
    flood.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    // One may have had to go for the first scrape, whose place was not free yet: that one says nothing.
    let is_answered = |stream: &TcpStream| stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
    let refused = eventually("one is refused", || flood.iter().position(is_answered));
    let refused = &mut flood[refused];
    refused.set_nonblocking(false).unwrap();
    assert!(ask(refused, &basic("alice:again")).unwrap().starts_with("http/1.1 401"));
    let slowest = (0..20).map(|_| scrape()).max().unwrap();
    assert!(slowest < AT_ONCE * 5, "{slowest:?}");
    // Most still wait, some had to go, and whoever has an answer was refused.
    let mut waiting = 0;
    for stream in &mut flood {
        stream.set_nonblocking(true).unwrap();
        let mut said = [0; 12];
        match stream.read(&mut said) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => waiting += 1,
            Ok(12) => assert_eq!(&said, b"HTTP/1.1 401"),
            Ok(0) | Err(_) => {}
            Ok(more) => panic!("{more} bytes"),
        }
    }
    assert!(waiting > 0, "the flood was over before");
}

#[test]
fn more_requests_than_the_limit_are_told_so() {
    let node = Node::new(1);
    let served = Served::start(&node, "rate_limit: {interval: 1h, burst: 3}\n");
    let came = [(); 5].map(|()| http::ask(served.address, "GET", "/-/healthy").unwrap().status);
    assert_eq!(came, [200, 200, 200, 429, 429]);
}

#[test]
fn several_addresses_are_served_by_name_and_by_path() {
    let node = Node::new(1);
    let (named, socket) = (free_address(), node.path("web.sock"));
    let agent = node.start_with(&[
        &format!("--web.listen-address=localhost:{}", named.port()),
        &format!("--web.listen-address=unix:{}", socket.display()),
    ]);
    assert_eq!(agent.get("/-/healthy").unwrap().status, 200);
    assert_eq!(http::ask(named, "GET", "/-/healthy").unwrap().status, 200);
    let mut stream = UnixStream::connect(&socket).unwrap();
    assert!(ask(&mut stream, "").unwrap().starts_with("http/1.1 200"));
    let url = format!("unix:{}", socket.display());
    let status = output(&node, &["status", "--url", &url]);
    assert!(String::from_utf8(status.stdout).unwrap().contains("NVIDIA H100"), "{url}");
}

#[test]
fn the_sockets_of_systemd_are_served_and_no_address_is() {
    let node = Node::new(1);
    let (tcp, ignored, socket) = (free_address(), free_address(), node.path("activated.sock"));
    let mut activate = Command::new("systemd-socket-activate");
    activate.args(["--listen", &tcp.to_string(), "--listen", text(&socket)]);
    activate.args(["--setenv", &format!("NVML_SIM_SCENARIO={}", node.scenario().display())]).arg(agent_binary());
    activate.args(serve(&node, ignored)).arg("--web.systemd-socket").stdin(Stdio::null()).stdout(Stdio::null());
    let log = node.path("web.log");
    activate.stderr(File::create(&log).unwrap());
    // It becomes the agent when the first client comes.
    let served = Served { child: activate.spawn().unwrap(), address: tcp, log };
    eventually("the agent serves", || http::ask(tcp, "GET", "/-/healthy").ok().filter(|answer| answer.status == 200));
    let mut stream = UnixStream::connect(&socket).unwrap();
    assert!(ask(&mut stream, "").unwrap().starts_with("http/1.1 200"));
    assert!(TcpStream::connect(ignored).is_err());
    let log = served.log();
    assert!(log.contains(&format!("addresses=\"{tcp} unix:{}\"", socket.display())), "{log}");
}

#[test]
fn without_a_socket_of_systemd_there_is_nothing_to_serve_on() {
    let node = Node::new(1);
    let mut agent = in_node(&node);
    let ended = agent.args(serve(&node, free_address())).arg("--web.systemd-socket").stderr(Stdio::piped()).output();
    let ended = ended.unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("cannot serve on the sockets of systemd") && said.contains("passed no socket"), "{said}");
}

#[test]
fn the_format_is_one_whatever_is_asked_and_gzip_is_for_those_who_ask() {
    let node = Node::new(8);
    let agent = node.start();
    let mut stream = connect(agent.address);
    for accept in [
        "",
        "Accept: text/html\r\n",
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n",
        "Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited\r\n",
        "Accept: \u{1}\r\n",
        "X-Prometheus-Scrape-Timeout-Seconds: 10\r\n",
        "X-Prometheus-Scrape-Timeout-Seconds: soon\r\n",
        "X-Prometheus-Scrape-Timeout-Seconds: -1\r\n",
        "X-Prometheus-Scrape-Timeout-Seconds: NaN\r\nX-Prometheus-Scrape-Timeout-Seconds: 1e999\r\n",
    ] {
        let accept = accept.replace('\u{1}', "*/*;;q=,");
        let head = ask(&mut stream, &accept).unwrap();
        assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{accept}: {head}");
        assert!(head.contains("vary: accept-encoding\r\n") && !head.contains("content-encoding"), "{accept}: {head}");
    }
    for (accept, encoded) in [("gzip", true), ("gzip;q=0", false), ("br, *;q=0.1", true), ("identity", false)] {
        let head = ask(&mut stream, &format!("Accept-Encoding: {accept}\r\n")).unwrap();
        assert_eq!(head.contains("content-encoding: gzip\r\n"), encoded, "{accept}: {head}");
    }
    let unpacked = curl(&["--compressed"], &format!("http://{}/metrics", agent.address)).1;
    assert!(unpacked.contains("\ngpuwarden_build_info{"), "{unpacked}");
}

#[test]
fn a_scrape_is_answered_at_once_while_a_cycle_hangs() {
    let mut node = Node::new(2);
    let agent = node.start();
    node.change(|scenario| scenario.latency = [("nvmlDevice*".into(), Latency::Hang)].into());
    let until = Instant::now() + Duration::from_secs(3);
    let mut slowest = Duration::ZERO;
    let mut stream = connect(agent.address);
    while Instant::now() < until {
        let begun = Instant::now();
        let head = ask(&mut stream, "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 0.1\r\n").unwrap();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        slowest = slowest.max(begun.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(slowest < AT_ONCE, "{slowest:?}");
    assert_eq!(agent.page().value("gpuwarden_source_up", &[("source", "nvml")]), Some(0.0));
}

#[test]
fn many_scrapes_at_once_are_all_answered_and_a_head_is_as_its_page() {
    let node = Node::new(8);
    let agent = node.start();
    let address = agent.address;
    let scrapes: Vec<_> = (0..24)
        .map(|number| {
            thread::spawn(move || {
                let mut stream = connect(address);
                let head = if number % 2 == 0 { "" } else { "Accept-Encoding: gzip\r\n" };
                (0..10).all(|_| ask(&mut stream, head).unwrap().starts_with("http/1.1 200"))
            })
        })
        .collect();
    assert!(scrapes.into_iter().all(|scrape| scrape.join().unwrap()));
    // Between two pages nothing need stay the same but the names of the headers.
    let names = |method: &str| {
        let answer = http::ask(address, method, "/metrics").unwrap();
        assert_eq!(answer.body.is_empty(), method == "HEAD");
        answer.head.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(names("HEAD"), names("GET"));
}

/// Prometheus scrapes `target` each second, with these settings besides.
fn scraping(node: &Node, target: SocketAddr, settings: &str) -> Prometheus {
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: gpuwarden\n    {settings}\n    static_configs: \
         [{{targets: ['{target}']}}]\n"
    );
    Prometheus::with(&text, &node.path(""))
}

/// How many scrapes there were in the last minute, and how many of them failed.
fn scrapes(prometheus: &Prometheus) -> (f64, f64) {
    (prometheus.value("count_over_time(up[1m])"), prometheus.value("count_over_time(up[1m]) - sum_over_time(up[1m])"))
}

/// Opens clients that never end their question, and opens those again that had to go, until the value is dropped.
struct Slow {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Slow {
    fn clients(number: usize, address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let open = move || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let run = move || {
            let mut clients: Vec<TcpStream> = (0..number).map(|_| open()).collect();
            while !stopped.load(Ordering::Relaxed) {
                for client in &mut clients {
                    let gone = match client.read(&mut [0]) {
                        Err(error) => error.kind() != ErrorKind::WouldBlock,
                        Ok(_) => true,
                    };
                    // One byte a round.
                    if gone || client.write_all(b"G").is_err() {
                        *client = open();
                    }
                }
                thread::sleep(Duration::from_millis(200));
            }
        };
        Self { stop, thread: Some(thread::spawn(run)) }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

#[test]
fn two_hundred_slow_clients_keep_prometheus_from_nothing() {
    let node = Node::new(8);
    let served = Served::start(&node, "http_server_config: {http2: false}\n");
    let before = served.resident();
    let slow = Slow::clients(200, served.address);
    let prometheus = scraping(&node, served.address, "scrape_timeout: 1s");
    eventually("some scrapes", || (scrapes(&prometheus).0 >= 8.0).then_some(()));
    let (_, failed) = scrapes(&prometheus);
    assert_eq!(failed, 0.0);
    let grown = served.resident().saturating_sub(before);
    assert!(grown < 4096, "{grown} KiB");
    drop(slow);
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let node = Node::new(8);
    let served = Served::start(&node, "http_server_config: {http2: false}\n");
    let before = served.resident();
    // One that has its answer, and no other question yet.
    let mut silent = connect(served.address);
    ask(&mut silent, "").unwrap();
    let mut streams: Vec<TcpStream> = (0..8).map(|_| connect(served.address)).collect();
    // More than fits between the two.
    let questions = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    for stream in &mut streams {
        stream.set_nonblocking(true).unwrap();
        assert!(stream.write(questions.as_bytes()).is_ok());
    }
    let begun = Instant::now();
    for stream in &mut streams {
        eventually("it is dropped", || {
            stream.write(b"G").is_err_and(|error| error.kind() != ErrorKind::WouldBlock).then_some(())
        });
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "{:?}", begun.elapsed());
    let grown = served.resident().saturating_sub(before);
    assert!(grown < 4096, "{grown} KiB");
    assert!(ask(&mut silent, "").unwrap().starts_with("http/1.1 200"));
}

#[test]
fn who_never_ends_a_handshake_or_a_question_is_dropped() {
    let node = Node::new(1);
    Authority::new("authority").certifies(&node, "server", HERE);
    let served = Served::start(&node, TLS);
    // Nothing, the begin of a handshake, and the begin of a question in plain HTTP, which is refused at once.
    let begun = Instant::now();
    let beginnings: [&[u8]; 3] = [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HT"];
    let waits = beginnings.map(|beginning| {
        let mut stream = connect(served.address);
        stream.write_all(beginning).unwrap();
        thread::spawn(move || {
            let mut said = Vec::new();
            // Whether it ends well does not matter here.
            let _ = stream.read_to_end(&mut said);
            (begun.elapsed(), String::from_utf8_lossy(&said).into_owned())
        })
    });
    let [silent, handshake, plain] = waits.map(|wait| wait.join().unwrap());
    for (waited, said) in [silent, handshake] {
        assert!((8..LIMIT.as_secs()).contains(&waited.as_secs()) && said.is_empty(), "{waited:?} {said}");
    }
    assert!(plain.0.as_secs() < 5 && plain.1.contains("to an HTTPS server"), "{plain:?}");
}

#[test]
fn prometheus_scrapes_over_tls_as_a_user_with_a_certificate_also_after_they_were_renewed() {
    let node = Node::new(1);
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    old.certifies(&node, "server", HERE);
    old.certifies(&node, "prometheus", &["prometheus.example.edu"]);
    node.write("servers.crt", &old.pem);
    node.write("old.crt", &old.pem);
    node.write("new.crt", &new.pem);
    let tls = "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: old.crt, \
               client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [prometheus.example.edu]}\n";
    let served = Served::start(&node, &format!("{tls}{}", users()));
    let file = |name: &str| node.path(name).display().to_string();
    let settings = format!(
        "scheme: https\n    basic_auth: {{username: alice, password: secret}}\n    tls_config: {{ca_file: {}, cert_file: {}, \
         key_file: {}}}",
        file("servers.crt"),
        file("prometheus.crt"),
        file("prometheus.key")
    );
    let prometheus = scraping(&node, served.address, &settings);
    assert_eq!(prometheus.value("up"), 1.0);
    assert_eq!(prometheus.value("gpuwarden_gpu_temperature_celsius"), 41.0);

    // The same client asks as a person would.
    let url = served.url("https");
    node.write("password", "secret\n");
    let status = |ca: &str, user: &str| {
        let files = [ca, "prometheus.crt", "prometheus.key", "password"].map(file);
        let [ca, certificate, key, password] = &files;
        let mut all = vec!["status", "--url", &url, "--ca-file", ca, "--cert-file", certificate, "--key-file", key];
        all.extend(["--user", user, "--password-file", password]);
        let said = output(&node, &all);
        String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
    };
    assert!(status("old.crt", "alice").contains("NVIDIA H100"));
    let distrusted = status("new.crt", "alice");
    assert!(distrusted.contains("see --ca-file: ") && distrusted.contains("UnknownIssuer"), "{distrusted}");
    assert!(status("old.crt", "bob").contains("refused this user or password"));

    new.certifies(&node, "server", HERE);
    assert!(status("new.crt", "alice").contains("NVIDIA H100"));
    // With another authority to trust, Prometheus makes a new connection.
    replace(&node, "servers.crt", &new.pem);
    let then = scrapes(&prometheus).0;
    eventually("more scrapes", || (scrapes(&prometheus).0 >= then + 4.0).then_some(()));
    assert_eq!(scrapes(&prometheus).1, 0.0);
}

#[test]
fn whoever_asks_for_the_status_is_told_what_the_agent_wants() {
    let node = Node::new(1);
    signed_by_itself(&node, 2999);
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    ours.certifies(&node, "me", &["me.example.edu"]);
    theirs.certifies(&node, "stranger", &["me.example.edu"]);
    node.write("clients.crt", &ours.pem);
    node.write("password", "wrong\n");
    let web = "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: clients.crt, \
               client_auth_type: RequireAndVerifyClientCert}\n";
    replace(&node, "web.yml", web);
    let (address, socket) = (free_address(), node.path("web.sock"));
    let listen = format!("--web.listen-address=unix:{}", socket.display());
    let served =
        Served::launch(&node, address, in_node(&node).args(serve(&node, address)).args([&listen, &web_flag(&node)]));
    let file = |name: &str| node.path(name).display().to_string();
    let status = |url: &str, more: &[&str]| {
        let said = output(&node, &[&["status", "--url", url], more].concat());
        String::from_utf8([said.stdout, said.stderr].concat()).unwrap()
    };
    let [ca, me, my_key, stranger, his_key, password] =
        ["server.crt", "me.crt", "me.key", "stranger.crt", "stranger.key", "password"].map(file);
    let as_me = ["--ca-file", &ca, "--cert-file", &me, "--key-file", &my_key];
    let as_stranger = ["--ca-file", &ca, "--cert-file", &stranger, "--key-file", &his_key];
    let (https, unix) = (served.url("https"), format!("unix:{}", socket.display()));
    for (url, arguments, told) in [
        (&https, &as_me[..], "NVIDIA H100"),
        (&unix, &as_me, "NVIDIA H100"),
        (&https, &[&as_me[..], &["--server-name", "other.example.edu"]].concat(), "not valid for name"),
        (&unix, &[&as_me[..], &["--server-name", "other.example.edu"]].concat(), "not valid for name"),
        (&https, &as_me[..2], "wants a certificate; see --cert-file and --key-file"),
        (&https, &as_stranger, "refused this certificate; see --cert-file: "),
        (&served.url("http"), &[], "serves TLS; its address begins with https://"),
        (&unix, &[], "serves TLS; see --ca-file and --server-name"),
        (&"gpu01".to_owned(), &[], "says neither http:// nor https://"),
    ] {
        let said = status(url, arguments);
        assert!(said.contains(told), "{url} {arguments:?}: {said}");
    }

    drop(served);
    let plain = Served::start(&node, &users());
    let user = ["--user", "alice", "--password-file", &password];
    for (url, arguments, told) in [
        (plain.url("http"), &[][..], "wants a user and his password; see --user and --password-file"),
        (plain.url("http"), &user, "refused this user or password"),
        (plain.url("https"), &as_me, " is plain HTTP, without TLS"),
    ] {
        let said = status(&url, arguments);
        assert!(said.contains(told), "{url} {arguments:?}: {said}");
    }
}

#[test]
fn the_guide_names_every_key_and_its_examples_are_in_order() {
    let node = Node::new(1);
    let authority = Authority::new("authority");
    authority.certifies(&node, "server", HERE);
    node.write("clients.crt", &authority.pem);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/web.md")).unwrap();
    let check = |web: &str| {
        node.write("web.yml", web);
        String::from_utf8(output(&node, &["check", text(&node.path("web.yml"))]).stdout).unwrap()
    };
    let examples: Vec<&str> = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(examples.len(), 2);
    let hash = page.split_whitespace().find(|word| word.starts_with("$2")).unwrap();
    assert!(bcrypt::verify("test", hash).unwrap(), "{hash}");
    for example in examples {
        assert_eq!(check(example), "", "{example}");
    }
    // Each is told where there is none of that name.
    for wrong in [
        "rate_limit: {interval: 1s, burst: 1}\nx: 1",
        "tls_server_config: {x: 1}",
        "http_server_config: {x: 1}",
        "http_server_config: {headers: {x: 1}}",
        "rate_limit: {x: 1}",
    ] {
        let told = check(wrong);
        let keys = told.split_once("expected one of ").unwrap_or_else(|| panic!("{told}")).1;
        let keys = keys.split(';').next().unwrap().split(',').map(str::trim);
        let left_out: Vec<&str> = keys.filter(|key| !page.contains(&format!("`{key}`"))).collect();
        assert!(left_out.is_empty(), "{left_out:?}");
    }
}
