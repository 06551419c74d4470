//! Who is connected, and for how long: nobody who is slow, or many, keeps anybody else from the page.
//!
//! A client waits (for its handshake, with its next question, for its password to be compared) or is answered. When all places are taken, one who waits
//! has to go, of the peer that takes most places the one who has waited longest; one who is answered goes only when it has
//! stopped reading, or when all are: then of that peer the one who came first. Each phase has its limit besides.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How many clients there are at a time, and how many of one peer.
pub const CLIENTS: usize = 64;
pub const OF_ONE_PEER: usize = 32;

/// How long a client may take for its handshake and its first question, and from the first byte of another to its end.
const QUESTION_WITHIN: Duration = Duration::from_secs(10);

/// How long it may be silent between two: longer than the pause between two scrapes is anywhere.
const SILENT_FOR: Duration = Duration::from_secs(150);

/// How long it may take to read an answer, and how long it may stop meanwhile. The answer to a reload takes up to 30 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const READS_WITHIN: Duration = Duration::from_secs(10);

/// Whoever has read nothing for so long makes room, when somebody else comes.
const STALLED: Duration = Duration::from_secs(1);

/// One who may come with many clients at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Over a Unix socket.
    Local,
    V4(std::net::Ipv4Addr),
    /// The first 64 bits: whoever has one address of IPv6 has as many.
    V6(u64),
}

impl Peer {
    pub fn of(address: IpAddr) -> Self {
        let network = |address: Ipv6Addr| (address.to_bits() >> 64) as u64;
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(network(address)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No question has come in whole yet, or none after the last answer; until then it must.
    Waits { since: Instant, until: Instant },
    /// A question came in whole, and may be asked. When the client last took something of the answer, and whether the connection has all of
    /// that.
    Answered { since: Instant, took: Option<Instant>, handed_over: bool },
}

/// What is known of one client. Shared by its connection, its answers and the list of all.
#[derive(Debug)]
pub struct Client {
    peer: Peer,
    phase: Mutex<Phase>,
    sooner: Notify,
}

impl Client {
    fn new(peer: Peer) -> Self {
        let now = Instant::now();
        let phase = Phase::Waits { since: now, until: now + QUESTION_WITHIN };
        Self { peer, phase: Mutex::new(phase), sooner: Notify::new() }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A question that may be asked has come in whole.
    pub fn asks(&self) {
        let now = Instant::now();
        *self.phase() = Phase::Answered { since: now, took: None, handed_over: false };
        self.sooner.notify_one();
    }

    /// All of the answer is with the connection, which may still have to write it.
    fn is_handed_over(&self) {
        if let Phase::Answered { handed_over, .. } = &mut *self.phase() {
            *handed_over = true;
        }
    }

    /// Some of the answer could be written, or waits for the client from now on.
    fn takes(&self, some: bool) {
        if let Phase::Answered { took, .. } = &mut *self.phase()
            && (some || took.is_none())
            && took.replace(Instant::now()).is_none()
        {
            self.sooner.notify_one();
        }
    }

    /// Nothing is left to write.
    fn has_all(&self) {
        let mut phase = self.phase();
        if let Phase::Answered { handed_over: true, .. } = *phase {
            let now = Instant::now();
            *phase = Phase::Waits { since: now, until: now + SILENT_FOR };
        }
    }

    /// A question begins.
    fn begins(&self) {
        if let Phase::Waits { until, .. } = &mut *self.phase() {
            let soon = Instant::now() + QUESTION_WITHIN;
            if soon < *until {
                *until = soon;
                self.sooner.notify_one();
            }
        }
    }

    /// When its time is over, as it stands.
    fn limit(&self) -> Instant {
        match *self.phase() {
            Phase::Waits { until, .. } => until,
            Phase::Answered { since, took: None, .. } => since + ANSWER_WITHIN,
            Phase::Answered { since, took: Some(took), .. } => (since + ANSWER_WITHIN).min(took + READS_WITHIN),
        }
    }

    /// Returns when its time is over.
    async fn overstays(&self) {
        loop {
            let limit = self.limit();
            if limit <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(limit) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Since when it has made no use of its place, if others may take it.
    fn idle_since(&self, now: Instant) -> Option<Instant> {
        match *self.phase() {
            Phase::Waits { since, .. } => Some(since),
            Phase::Answered { took: Some(took), .. } => Some(took).filter(|took| *took + STALLED <= now),
            Phase::Answered { took: None, .. } => None,
        }
    }
}

/// Those who are connected, in the order in which they came.
#[derive(Default)]
pub struct Clients(Mutex<Vec<(Arc<Client>, AbortHandle)>>);

impl Clients {
    /// Attends to a client as long as it may stay.
    pub fn admit<F: Future<Output = ()> + Send + 'static>(&self, peer: Peer, attend: impl FnOnce(Arc<Client>) -> F) {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|(_, task)| !task.is_finished());
        make_room(&mut clients, peer);
        let client = Arc::new(Client::new(peer));
        let attended = attend(client.clone());
        let task = tokio::spawn({
            let client = client.clone();
            async move {
                tokio::select! {
                    () = attended => {}
                    () = client.overstays() => tracing::debug!(?peer, "a client took too long"),
                }
            }
        });
        clients.push((client, task.abort_handle()));
    }
}

/// A place for one more of that peer; one has to go if need be.
fn make_room(clients: &mut Vec<(Arc<Client>, AbortHandle)>, peer: Peer) {
    let mut places: BTreeMap<Peer, usize> = BTreeMap::new();
    clients.iter().for_each(|(client, _)| *places.entry(client.peer).or_default() += 1);
    let of = |peer: &Peer| places.get(peer).copied().unwrap_or_default();
    let full_of_peer = of(&peer) >= OF_ONE_PEER;
    if clients.len() < CLIENTS && !full_of_peer {
        return;
    }
    let now = Instant::now();
    let may_go = clients.iter().enumerate().filter(|(_, (client, _))| !full_of_peer || client.peer == peer);
    // The idle ones first, then the most places, and of these the longest wait, or whoever came first.
    let goes = may_go.min_by_key(|(_, (client, _))| {
        let idle_since = client.idle_since(now);
        (idle_since.is_none(), Reverse(of(&client.peer)), idle_since)
    });
    if let Some((at, _)) = goes {
        clients.remove(at).1.abort();
    }
}

/// A connection that tells of its client what it does.
pub struct Watched<S> {
    stream: S,
    client: Arc<Client>,
}

impl<S> Watched<S> {
    pub fn new(stream: S, client: Arc<Client>) -> Self {
        Self { stream, client }
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(written) => self.client.takes(written.as_ref().is_ok_and(|bytes| *bytes > 0)),
            Poll::Pending => self.client.takes(false),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.client.begins();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        match flushed {
            Poll::Ready(_) => self.client.has_all(),
            Poll::Pending => self.client.takes(false),
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A body that tells when the connection has taken all of it.
pub struct Handed<B> {
    body: B,
    client: Arc<Client>,
}

impl<B> Handed<B> {
    pub fn new(body: B, client: Arc<Client>) -> Self {
        Self { body, client }
    }
}

impl<B> Drop for Handed<B> {
    fn drop(&mut self) {
        self.client.is_handed_over();
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Handed<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One more comes to clients of peers, each in a phase: the place in the list of who goes.
    fn comes(peer: u8, clients: &[(u8, Phase)]) -> Option<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let of = |last: u8| Peer::of([192, 0, 2, last].into());
        let client = |(from, phase): &(u8, Phase)| {
            let client = Arc::new(Client { phase: Mutex::new(*phase), ..Client::new(of(*from)) });
            (client, tokio::spawn(async {}).abort_handle())
        };
        let before: Vec<_> = clients.iter().map(client).collect();
        let mut list = before.clone();
        make_room(&mut list, of(peer));
        let is_left = |client: &Arc<Client>| list.iter().any(|(left, _)| Arc::ptr_eq(left, client));
        before.iter().position(|(client, _)| !is_left(client))
    }

    fn waits() -> Phase {
        let now = Instant::now();
        Phase::Waits { since: now, until: now + QUESTION_WITHIN }
    }

    fn answered(seconds_ago: u64) -> Phase {
        let then = Instant::now() - Duration::from_secs(seconds_ago);
        Phase::Answered { since: then, took: Some(then), handed_over: false }
    }

    #[test]
    fn one_of_those_who_wait_makes_room() {
        let mut clients = vec![(1, answered(0))];
        clients.extend((0..CLIENTS - 1).map(|number| (2 + (number / 20) as u8, waits())));
        // The first peer of which there are twenty.
        assert_eq!(comes(9, &clients), Some(1));
    }

    #[test]
    fn a_scrape_under_way_makes_room_after_all_that_wait_or_stopped_reading() {
        let mut clients = vec![(8, answered(0))];
        clients.extend((1..CLIENTS).map(|number| ((number / 25) as u8, answered(0))));
        assert_eq!(comes(9, &clients), Some(25), "the first of those with most places");
        clients[60].1 = answered(2);
        assert_eq!(comes(9, &clients), Some(60));
        clients[0].1 = waits();
        assert_eq!(comes(9, &clients), Some(60), "its peer has more places");
    }

    #[test]
    fn who_reads_without_end_keeps_nobody_of_its_address_out() {
        let clients: Vec<_> = (0..OF_ONE_PEER).map(|_| (1, answered(0))).collect();
        assert_eq!(comes(1, &clients), Some(0));
    }

    #[test]
    fn who_takes_all_it_may_displaces_itself() {
        let mut clients: Vec<_> = (0..OF_ONE_PEER).map(|_| (1, waits())).collect();
        clients.insert(0, (2, waits()));
        assert_eq!(comes(1, &clients), Some(1));
        assert_eq!(comes(2, &clients), None, "there is room for others");
    }

    #[test]
    fn a_host_is_one_peer_however_it_writes_its_address() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::2"));
        assert_ne!(peer("2001:db8:0:1::1"), peer("2001:db8::1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }

    #[test]
    fn each_phase_has_its_limit() {
        let client = Client::new(Peer::Local);
        let left = || client.limit().saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u64;
        assert_eq!(left(), QUESTION_WITHIN.as_secs());
        client.asks();
        assert_eq!(left(), ANSWER_WITHIN.as_secs());
        client.takes(false);
        assert_eq!(left(), READS_WITHIN.as_secs());
        client.has_all();
        assert_eq!(left(), READS_WITHIN.as_secs(), "some of the answer is still to come");
        client.is_handed_over();
        client.has_all();
        assert_eq!(left(), SILENT_FOR.as_secs());
        client.begins();
        assert_eq!(left(), QUESTION_WITHIN.as_secs());
    }
}
