//! A client's connections: the choice of one for a call, and opening lost ones again.

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

/// When a connection ends sooner than this, the next attempt waits a while: the server may be refusing the
/// client.
const LASTING: Duration = Duration::from_secs(1);
/// Number of connections that are compared to find the least busy one.
const CANDIDATES: usize = 16;

/// The connections of a client.
pub(super) struct Pool {
    /// Two links per connection: while one finishes its calls because the server is going away, the other
    /// takes new calls.
    pub(super) links: Box<[Arc<Link>]>,
    pub(super) config: ClientConfig,
    /// Callers that found no connection.
    waiting: Mutex<Waiting>,
    /// Why the last connection ended, or could not be opened.
    reason: Mutex<ConnectionError>,
    /// The link that took the last call.
    current: AtomicUsize,
    /// Where the next search begins.
    next: AtomicUsize,
    pub(super) counters: Counters,
}

#[derive(Default)]
struct Waiting {
    tickets: u64,
    wakers: Vec<(u64, Waker)>,
}

/// Counters of connections.
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

    /// The link for a call: the one that this turn's calls already use, or the least busy of some. Calls of
    /// one turn share a write, and the turns spread over all connections. The flag says that no other call is
    /// in sight.
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

    /// Stores the waker of a caller that found no connection. Returns a ticket for the next two functions.
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

    /// Whether the caller must still wait. Stores its new waker.
    pub(super) fn is_waiting(&self, ticket: u64, cx: &Context<'_>) -> bool {
        let mut waiting = self.lock();
        let entry = waiting.wakers.iter_mut().find(|(waiting, _)| *waiting == ticket);
        entry.map(|(_, waker)| waker.clone_from(cx.waker())).is_some()
    }

    /// Removes a caller that no longer waits.
    pub(super) fn forget(&self, ticket: u64) {
        self.lock().wakers.retain(|(waiting, _)| *waiting != ticket);
    }

    /// Removes a caller that waits for room on a link, or for any connection.
    pub(super) fn give_up(&self, link: Option<usize>, ticket: u64) {
        match link {
            Some(link) => self.links[link].forget(ticket),
            None => self.forget(ticket),
        }
    }

    /// Why there is no connection: the last error.
    pub(super) fn reason(&self) -> ConnectionError {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_reason(&self, error: ConnectionError) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// Wakes the callers that wait for a connection: there is one, or there will be none.
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

/// Keeps one slot of a pool connected until the client closes.
pub(super) struct Keeper {
    pub(super) pool: Arc<Pool>,
    /// Which of the slot's two links the next connection uses.
    pub(super) index: usize,
    /// The task of the connection on the other link, while that finishes its calls.
    pub(super) leaving: Option<JoinHandle<()>>,
    pub(super) address: Option<Address>,
    pub(super) closing: watch::Receiver<bool>,
}

impl Keeper {
    /// Connects once, within the configured time.
    pub(super) async fn connect(pool: &Pool, address: &Address) -> io::Result<Stream> {
        let attempt = tokio::time::timeout(pool.config.connect_timeout, address.connect());
        let result = attempt.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let counter = if result.is_ok() { &pool.counters.connected } else { &pool.counters.connect_failed };
        counter.fetch_add(1, Relaxed);
        result
    }

    /// Runs until the client closes. A stream that is connected already is used first.
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

    /// Runs one connection until it ends, or until the server takes no more calls on it.
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

/// Removes the ended connection of a link. Returns the version that was in use.
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
    /// Whether the peer sent anything.
    answered: bool,
    version: Option<Version>,
    lasted: Duration,
}

impl End {
    /// Whether the peer closed the stream before it sent anything.
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

/// The pause after this many failures in a row. It doubles, and half of it is random, so that clients which
/// lost the same server do not return at the same moment.
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
