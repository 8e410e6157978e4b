//! A client's connections: which one takes a call, how each is made again when it is lost.

use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::config::ClientConfig;
use super::connection::Connection;
use super::link::{DOWN, Link};
use super::stream::{Address, Stream, failure};
use super::time;
use crate::core::Version;
use crate::error::ConnectionError;

/// A connection that ends sooner is made again after a pause: the server may not want us.
const LASTING: Duration = Duration::from_secs(1);
/// Connections that are looked at for the least busy one.
const CANDIDATES: usize = 16;

/// The connections of a client.
pub(super) struct Pool {
    /// Two for each connection: while one finishes its calls as the server goes away, the other takes new ones.
    pub(super) links: Box<[Arc<Link>]>,
    pub(super) config: ClientConfig,
    /// Callers that found no connection at all.
    waiting: Mutex<Waiting>,
    /// Why the last connection ended, or could not be made.
    reason: Mutex<ConnectionError>,
    /// The one that took the last call.
    current: AtomicUsize,
    /// Where looking begins next.
    next: AtomicUsize,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct Waiting {
    tickets: u64,
    wakers: Vec<(u64, Waker)>,
}

/// What happened to the connections.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connected: AtomicU64,
    pub(super) connect_failed: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) fell_back: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) closed: AtomicBool,
}

impl Pool {
    pub(super) fn new(config: ClientConfig) -> Self {
        let now = time::now();
        let links = (0..config.connections.max(1) * 2).map(|_| Arc::new(Link::new(now))).collect();
        Self {
            links,
            config,
            waiting: Mutex::default(),
            reason: Mutex::new(ConnectionError::Io(io::ErrorKind::NotConnected)),
            current: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    /// The link for a call: the one that the calls of this turn go to already, or the least busy of some. Calls that
    /// go together cost one write; the turns spread them over all connections. True when no other call is seen.
    #[inline]
    pub(super) fn choose(&self) -> (usize, bool) {
        if self.links.len() > 2 {
            return self.choose_of_many();
        }
        let current = self.current.load(Relaxed);
        let other = current ^ 1;
        let moved = self.links[current].load() == DOWN && self.links[other].load() != DOWN;
        if moved {
            self.current.store(other, Relaxed);
        }
        (if moved { other } else { current }, true)
    }

    /// Leaves the waker of a caller that found no connection; gives the ticket for the next two.
    pub(super) fn wait(&self, cx: &Context<'_>) -> u64 {
        let mut waiting = self.lock();
        waiting.tickets += 1;
        let ticket = waiting.tickets;
        waiting.wakers.push((ticket, cx.waker().clone()));
        drop(waiting);
        // One may have come up in between.
        if self.links.iter().any(|link| link.load() != DOWN) {
            self.forget(ticket);
        }
        ticket
    }

    /// Whether the caller still has to wait; leaves the new waker.
    pub(super) fn is_waiting(&self, ticket: u64, cx: &Context<'_>) -> bool {
        let mut waiting = self.lock();
        let entry = waiting.wakers.iter_mut().find(|(waiting, _)| *waiting == ticket);
        entry.map(|(_, waker)| waker.clone_from(cx.waker())).is_some()
    }

    /// The caller does not wait any more.
    pub(super) fn forget(&self, ticket: u64) {
        self.lock().wakers.retain(|(waiting, _)| *waiting != ticket);
    }

    /// A caller gives up waiting, for room on a link or for any connection.
    pub(super) fn give_up(&self, link: Option<usize>, ticket: u64) {
        match link {
            Some(link) => self.links[link].forget(ticket),
            None => self.forget(ticket),
        }
    }

    /// Why there is no connection: what happened last.
    pub(super) fn reason(&self) -> ConnectionError {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_reason(&self, error: ConnectionError) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// There is a connection, or will be none.
    pub(super) fn wake(&self) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose_of_many(&self) -> (usize, bool) {
        let current = self.current.load(Relaxed);
        let batch = self.links.get(current).map_or(0, |link| link.batch());
        if (1..self.config.burst).contains(&batch) {
            return (current, false);
        }
        let count = self.links.len();
        let start = self.next.load(Relaxed);
        let (mut best, mut busy) = ((DOWN, start % count), count > CANDIDATES);
        for offset in 0..count {
            let index = (start + offset) % count;
            let load = self.links.get(index).map_or(DOWN, |link| link.load());
            if load < best.0 {
                best = (load, index);
            }
            busy |= load != 0 && load != DOWN;
            // Without a connection among the candidates, look on.
            if (best.0 == 0 && busy) || (offset >= CANDIDATES && best.0 != DOWN) {
                break;
            }
        }
        self.current.store(best.1, Relaxed);
        self.next.store(best.1 + 1, Relaxed);
        (best.1, !busy)
    }
}

/// Keeps one place of a pool connected until the client closes.
pub(super) struct Keeper {
    pub(super) pool: Arc<Pool>,
    /// Of the two links that take turns, the one for the next connection.
    pub(super) index: usize,
    /// The connection on the other one, while it finishes its calls.
    pub(super) leaving: Option<JoinHandle<()>>,
    pub(super) address: Option<Address>,
    pub(super) closing: watch::Receiver<bool>,
}

impl Keeper {
    /// Connects once, within the time there is for it.
    pub(super) async fn connect(pool: &Pool, address: &Address) -> io::Result<Stream> {
        let attempt = tokio::time::timeout(pool.config.connect_timeout, address.connect());
        let result = attempt.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let counter = if result.is_ok() { &pool.counters.connected } else { &pool.counters.connect_failed };
        counter.fetch_add(1, Relaxed);
        result
    }

    /// Runs until the client closes; a stream that is connected already comes first.
    pub(super) async fn run(mut self, mut ready: Option<Stream>) {
        let mut failures = 0;
        let mut negotiate = self.pool.config.connection.negotiate;
        while !*self.closing.borrow() {
            let stream = match (ready.take(), &self.address) {
                (Some(stream), _) => Ok(stream),
                (None, Some(address)) => Self::connect(&self.pool, address).await,
                (None, None) => break,
            };
            match stream {
                Ok(stream) => {
                    let end = self.hold(stream, negotiate).await;
                    let fall_back = negotiate && end.before_any_answer();
                    negotiate = self.pool.config.connection.negotiate && !fall_back;
                    if fall_back {
                        // A version 1 server that closes on a HELLO (SPEC §2): again at once, without.
                        self.pool.counters.fell_back.fetch_add(1, Relaxed);
                        continue;
                    }
                    // One that lasted is made again at once.
                    failures = if end.answered && end.lasted > LASTING { 0 } else { failures + 1 };
                }
                Err(error) => {
                    negotiate = self.pool.config.connection.negotiate;
                    failures += 1;
                    self.pool.note_reason(failure(&error));
                }
            }
            if failures > 0 {
                let pause = backoff(&self.pool.config, failures);
                let _ = tokio::time::timeout(pause, self.closing.wait_for(|closing| *closing)).await;
            }
        }
        self.link().go_away();
        self.pool.wake();
    }

    fn link(&self) -> &Arc<Link> {
        &self.pool.links[self.index]
    }

    /// Drives one connection to its end, or until the server takes no more calls on it.
    async fn hold(&mut self, stream: Stream, negotiate: bool) -> End {
        let (link, pool) = (Arc::clone(self.link()), Arc::clone(&self.pool));
        let mut config = pool.config.connection.clone();
        config.negotiate = negotiate;
        let Stream { reader, writer } = stream;
        link.open(time::now(), writer, config);
        pool.wake();
        let mut connection = Connection::new(Arc::clone(&link), reader);
        let (answered_before, begin) = (link.stats().frames_in, time::now());
        let may_leave = self.address.is_some();
        let error = poll_fn(|cx| match connection.poll(cx) {
            Poll::Ready(error) => Poll::Ready(Some(error)),
            Poll::Pending if connection.leaving && may_leave => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        let error = error.await;
        let (answered, lasted) = (link.stats().frames_in > answered_before, time::now() - begin);
        let Some(error) = error else {
            self.index ^= 1;
            pool.note_reason(link.lock().reason.clone());
            let drained = tokio::spawn(async move {
                let error = poll_fn(|cx| connection.poll(cx)).await;
                finish(&pool, &link, error);
            });
            // The link that comes next must be free.
            if let Some(previous) = self.leaving.replace(drained) {
                // If that task panicked, its connection is over all the same.
                let _ = previous.await;
            }
            return End { error: ConnectionError::Local, answered, version: None, lasted };
        };
        let version = finish(&pool, &link, error.clone());
        End { error, answered, version, lasted }
    }
}

/// The connection of a link is over; gives what had been agreed on.
fn finish(pool: &Pool, link: &Link, error: ConnectionError) -> Option<Version> {
    pool.counters.lost.fetch_add(1, Relaxed);
    pool.note_reason(error.clone());
    let (version, writer, rest) = link.close(error)?;
    tokio::spawn(writer.close(rest));
    Some(version)
}

/// How a connection ended.
struct End {
    error: ConnectionError,
    /// Something came from the peer.
    answered: bool,
    version: Option<Version>,
    lasted: Duration,
}

impl End {
    /// The peer ended the stream without a word.
    fn before_any_answer(&self) -> bool {
        let ended = matches!(
            self.error,
            ConnectionError::Closed
                | ConnectionError::Io(
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
                )
        );
        ended && !self.answered && self.version == Some(Version::Undecided)
    }
}

/// The pause after so many failures in a row: it doubles, and half of it is random, so that clients which lost the same
/// server do not come back together.
fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    let whole = config.backoff_min.saturating_mul(1 << (failures - 1).min(20)).min(config.backoff_max);
    let random = RandomState::new().hash_one(failures) as u32;
    let half = whole / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let config = ClientConfig::default();
        for failures in 1..100 {
            let whole = config.backoff_max.min(config.backoff_min * 2u32.pow((failures - 1).min(12)));
            let pause = backoff(&config, failures);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} after {failures}");
        }
    }
}
