//! What the agent shows over HTTP: the page for Prometheus, the page for people, health. Every answer is made of the last
//! cycle that was published; nothing here acts on processes, and nothing waits for a cycle.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderValue, VARY, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use crate::cycle::{Build, Cycle};
use crate::export;

mod answer;
pub mod client;
mod clients;
mod encoding;
mod listen;
mod page;
pub mod view;
pub mod web;
#[cfg(test)]
mod tests;

use answer::Answer;
use clients::{Client, Clients, Handed, Peer, Watched};
use encoding::Encoded;
pub use listen::{ListenAddress, Listener, pass_on, passed};
use web::{Live, Passwords, Web};

/// The head of a request is no longer than this.
const HEAD_SIZE: usize = 16 << 10;

/// How long a reload may take before its client is told to look into the log.
const RELOAD_WITHIN: Duration = Duration::from_secs(30);

/// A thread that compressed a page, or compared a password, waits so long for more of it.
const THREAD_WAITS: Duration = Duration::from_secs(1);

/// After so many intervals without a cycle, and the longest that one waits for its sources, the agent is not ready.
const READY_INTERVALS: u32 = 3;
const WAITS: Duration = Duration::from_secs(2);

/// What is served until the next cycle.
#[derive(Debug)]
pub struct Published {
    page: Encoded,
    cycle: Option<Arc<Cycle>>,
}

impl Published {
    /// Encodes the page, once; a scrape copies it.
    pub fn new(cycle: Arc<Cycle>) -> Self {
        Self { page: Encoded::new(export::page(&cycle)), cycle: Some(cycle) }
    }

    /// Before the first cycle only the program itself is known.
    pub fn before(build: &Build) -> Self {
        Self { page: Encoded::new(export::page_before(build)), cycle: None }
    }
}

/// Asks the main loop to read the configuration again; the answer comes through the channel.
pub type AskReload = Box<dyn Fn(oneshot::Sender<Result<(), String>>) + Send + Sync>;

/// The thread that serves. Dropped, it stops.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Without `reload` there is no `POST /-/reload`; without `web` everybody may ask, in plain HTTP.
    pub fn start(
        listeners: Vec<Listener>,
        published: watch::Receiver<Arc<Published>>,
        reload: Option<AskReload>,
        web: Option<Live>,
    ) -> io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(THREAD_WAITS).build()?;
        let passwords = web.is_some().then(Passwords::new).transpose()?;
        let web = web.zip(passwords);
        let service = Arc::new(Service { published, reload, web, clients: Clients::default() });
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listeners, service, stopped));
            // A password that is being compared is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("http".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listeners: Vec<Listener>, service: Arc<Service>, stopped: oneshot::Receiver<()>) {
    for listener in listeners {
        tokio::spawn(listen::accept(listener, service.clone()));
    }
    let _ = stopped.await;
}

/// What every request is answered from.
struct Service {
    published: watch::Receiver<Arc<Published>>,
    reload: Option<AskReload>,
    web: Option<(Live, Passwords)>,
    clients: Clients,
}

/// A client of the page.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static {
    /// Whether it begins as TLS does. Who speaks plain HTTP where TLS is served shall read why he gets no page.
    fn greets(&self) -> impl Future<Output = bool> + Send;
}

/// The first byte of a client that begins with TLS: a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

impl Stream for TcpStream {
    async fn greets(&self) -> bool {
        let mut first = [HANDSHAKE];
        self.peek(&mut first).await.is_ok() && first == [HANDSHAKE]
    }
}

impl Stream for UnixStream {
    async fn greets(&self) -> bool {
        let mut first = [HANDSHAKE];
        let peek = || Ok(rustix::net::recv(self, &mut first[..], RecvFlags::PEEK)?);
        self.async_io(Interest::READABLE, peek).await.is_ok() && first == [HANDSHAKE]
    }
}

/// Go's servers say it in these words.
const PLAIN: &[u8] = b"HTTP/1.0 400 Bad Request\r\nContent-Length: 48\r\n\r\n\
    Client sent an HTTP request to an HTTPS server.\n";

impl Service {
    fn admit(self: &Arc<Self>, stream: impl Stream, peer: Peer) {
        self.clients.admit(peer, |client| self.clone().attend(stream, client));
    }

    async fn attend(self: Arc<Self>, mut stream: impl Stream, client: Arc<Client>) {
        let tls = self.web.as_ref().and_then(|(live, _)| live.web().tls.clone());
        let Some(tls) = tls else { return self.converse(stream, client).await };
        if !stream.greets().await {
            let _ = stream.write_all(PLAIN).await;
            // What it said is read, or the answer is lost with the connection.
            let _ = stream.read(&mut [0; 1024]).await;
            return;
        }
        match TlsAcceptor::from(tls).accept(stream).into_fallible().await {
            Ok(stream) => self.converse(stream, client).await,
            Err((error, mut stream)) => {
                tracing::debug!(%error, "a client is not let in");
                // Likewise: why it is not let in was said last.
                let _ = stream.read(&mut [0; 1024]).await;
            }
        }
    }

    async fn converse(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin, client: Arc<Client>) {
        // The limits on time are those of `Client`.
        let connection = http1::Builder::new().header_read_timeout(None).max_buf_size(HEAD_SIZE).serve_connection(
            TokioIo::new(Watched::new(stream, client.clone())),
            service_fn(|request| {
                let (service, client) = (self.clone(), client.clone());
                async move {
                    let answer = service.answer(request, &client).await;
                    Ok::<_, Infallible>(answer.map(|body| Handed::new(body, client)))
                }
            }),
        );
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a client went away");
        }
    }

    async fn answer(&self, request: Request<Incoming>, client: &Client) -> Answer {
        let Some((live, passwords)) = &self.web else {
            client.asks();
            return self.say(&request).await;
        };
        let web = live.web();
        let mut answer = match let_in(&web, passwords, request.headers()).await {
            Ok(()) => {
                client.asks();
                self.say(&request).await
            }
            // Who may not ask still waits, and others may have his place.
            Err(refusal) => refusal,
        };
        for (name, value) in &web.headers {
            answer.headers_mut().insert(name, value.clone());
        }
        answer
    }

    async fn say(&self, request: &Request<Incoming>) -> Answer {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/-/reload") => self.reload().await,
            (_, "/-/reload") => answer::not_allowed("POST"),
            (&Method::GET | &Method::HEAD, "/metrics") => self.metrics(request.headers()).await,
            (&Method::GET | &Method::HEAD, path) => self.show(path),
            (_, path) if is_page(path) => answer::not_allowed("GET, HEAD"),
            _ => answer::not_found(),
        }
    }

    /// In the one format that there is, whatever else the client would take, and at once, however long it would wait.
    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let published = self.published.borrow().clone();
        let small = if encoding::wants_gzip(headers) { published.page.gzip().await } else { None };
        let encoded = small.is_some();
        let mut answer = answer::with_type(answer::METRICS, small.unwrap_or_else(|| published.page.plain()));
        answer.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        if encoded {
            answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    }

    fn show(&self, path: &str) -> Answer {
        let published = self.published.borrow().clone();
        match path {
            "/" => answer::html(page::render(published.cycle.as_deref().map(view::View::of).as_ref())),
            "/-/healthy" => answer::text(StatusCode::OK, "gpuwarden is healthy.\n"),
            "/-/ready" => match ready(published.cycle.as_deref(), listen::boot_time()) {
                Ok(()) => answer::text(StatusCode::OK, "gpuwarden is ready.\n"),
                Err(why) => answer::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            },
            "/api/v1/status" => match published.cycle.as_deref() {
                Some(cycle) => answer::json(StatusCode::OK, &view::View::of(cycle)),
                None => answer::json(StatusCode::SERVICE_UNAVAILABLE, &view::Problem::new("no cycle has ended yet")),
            },
            _ => answer::not_found(),
        }
    }

    async fn reload(&self) -> Answer {
        let Some(ask) = &self.reload else {
            return answer::text(StatusCode::FORBIDDEN, "reload over HTTP needs --web.enable-lifecycle\n");
        };
        let (answer, answered) = oneshot::channel();
        ask(answer);
        match tokio::time::timeout(RELOAD_WITHIN, answered).await {
            Ok(Ok(Ok(()))) => answer::text(StatusCode::OK, "reloaded\n"),
            Ok(Ok(Err(why))) => answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
            Ok(Err(_)) => answer::text(StatusCode::SERVICE_UNAVAILABLE, "the agent is about to end\n"),
            Err(_) => answer::text(StatusCode::GATEWAY_TIMEOUT, "not reloaded yet; its log will say\n"),
        }
    }
}

/// Whether a question may be answered; otherwise what is said instead.
async fn let_in(web: &Web, passwords: &Passwords, headers: &HeaderMap) -> Result<(), Answer> {
    if web.rate.as_ref().is_some_and(|bucket| !bucket.takes()) {
        return Err(answer::text(StatusCode::TOO_MANY_REQUESTS, "too many requests; see rate_limit\n"));
    }
    if web.users.is_empty() || passwords.admit(&web.users, headers.get(AUTHORIZATION)).await {
        return Ok(());
    }
    let mut refusal = answer::text(StatusCode::UNAUTHORIZED, "a user and his password are needed\n");
    refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
    Err(refusal)
}

fn is_page(path: &str) -> bool {
    ["/metrics", "/", "/-/healthy", "/-/ready", "/api/v1/status"].contains(&path)
}

/// Whether the last cycle is recent and the driver answered in it.
fn ready(cycle: Option<&Cycle>, now: Option<Duration>) -> Result<(), String> {
    let Some(cycle) = cycle else { return Err("no cycle has ended yet".into()) };
    let now = now.ok_or("the clock cannot be read")?;
    let age = now.saturating_sub(cycle.seen.at.boot);
    if age > cycle.rules().interval * READY_INTERVALS + WAITS {
        return Err(format!("the last cycle is {} s old", age.as_secs()));
    }
    cycle.seen.gpus.as_ref().map_or_else(|fault| Err(fault.to_string()), |_| Ok(()))
}
