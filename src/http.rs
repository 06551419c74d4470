//! What the agent shows over HTTP: the page for Prometheus, the page for people, health. Every answer is made of the last
//! cycle that was published; nothing here acts on processes, and nothing waits for a cycle.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::cycle::{Build, Cycle};
use crate::export;

mod answer;
pub mod client;
mod listen;
mod page;
pub mod view;
#[cfg(test)]
mod tests;

use answer::Answer;
pub use listen::{ListenAddress, Listener};

/// How long a client may take for the head of a request, and how long it may be silent between two.
const HEAD_WITHIN: Duration = Duration::from_secs(30);

/// The head of a request is no longer than this.
const HEAD_SIZE: usize = 16 << 10;

/// How many clients there are at a time. One more puts out the one that has been here longest: whoever is slow, or many,
/// can keep nobody else away.
const CLIENTS: usize = 64;

/// How long a reload may take before its client is told to look into the log.
const RELOAD_WITHIN: Duration = Duration::from_secs(30);

/// After so many intervals without a cycle, and the longest that one waits for its sources, the agent is not ready.
const READY_INTERVALS: u32 = 3;
const WAITS: Duration = Duration::from_secs(2);

/// What is served until the next cycle.
#[derive(Debug)]
pub struct Published {
    page: Bytes,
    cycle: Option<Arc<Cycle>>,
}

impl Published {
    /// Encodes the page, once; a scrape copies it.
    pub fn new(cycle: Arc<Cycle>) -> Self {
        Self { page: export::page(&cycle).into(), cycle: Some(cycle) }
    }

    /// Before the first cycle only the program itself is known.
    pub fn before(build: &Build) -> Self {
        Self { page: export::page_before(build).into(), cycle: None }
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
    /// Without `reload` there is no `POST /-/reload`.
    pub fn start(
        listeners: Vec<Listener>,
        published: watch::Receiver<Arc<Published>>,
        reload: Option<AskReload>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let service = Arc::new(Service { published, reload });
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("http".into())
            .spawn(move || runtime.block_on(serve(listeners, service, stopped)))?;
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
    let clients = Arc::new(Clients::default());
    for listener in listeners {
        tokio::spawn(listen::accept(listener, service.clone(), clients.clone()));
    }
    let _ = stopped.await;
}

/// The clients that are connected, the oldest first.
#[derive(Default)]
struct Clients(Mutex<VecDeque<AbortHandle>>);

impl Clients {
    fn admit(&self, client: impl Future<Output = ()> + Send + 'static) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| !client.is_finished());
        if clients.len() >= CLIENTS
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        clients.push_back(tokio::spawn(client).abort_handle());
    }
}

/// What every request is answered from.
struct Service {
    published: watch::Receiver<Arc<Published>>,
    reload: Option<AskReload>,
}

impl Service {
    async fn attend(self: Arc<Self>, client: impl AsyncRead + AsyncWrite + Unpin) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(HEAD_SIZE)
            .serve_connection(
                TokioIo::new(client),
                service_fn(|request| {
                    let service = self.clone();
                    async move { Ok::<_, Infallible>(service.answer(request).await) }
                }),
            );
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a client went away");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/-/reload") => self.reload().await,
            (_, "/-/reload") => answer::not_allowed("POST"),
            (&Method::GET | &Method::HEAD, path) => self.show(path),
            (_, path) if is_page(path) => answer::not_allowed("GET, HEAD"),
            _ => answer::not_found(),
        }
    }

    fn show(&self, path: &str) -> Answer {
        let published = self.published.borrow().clone();
        match path {
            "/metrics" => answer::with_type(answer::METRICS, published.page.clone()),
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
