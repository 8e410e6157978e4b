//! GTP-C over UDP: the socket, the task and the timers of a GTPv2-C endpoint (TS 29.274). S-GW, P-GW and MME use it.
//!
//! ```text
//! procedure ── request, command, respond ──► Endpoint (behind a mutex) ──► socket
//!     ▲                                          ▲
//!     └── answer ── receiving task ── datagrams, timers          (`receive.rs`)
//!                        └── GtpcEvent: what peers begin ──► owner
//! ```
//!
//! [`Gtpc::request`] sends a request and waits for its answer. The mutex is held for microseconds, so a procedure sends on its
//! own task. `--pcap` sees the datagrams at the kernel, as those of all sockets.
//!
//! Invariants: a request ends with its answer or an error, also when GTP-C stops; what a peer begins is given to the owner or
//! refused; the queue of events is bounded; the restart of a peer is told, however full the queue is; the mutex is not held over an
//! await.
#![forbid(unsafe_code)]

mod receive;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gtpv2c::endpoint::{Counters, Endpoint, Failure, Handle, PORT, RequestId, SendError};
use gtpv2c::{Cause, DecodeError, FTeid, Message, Recovery};
use net::time;
use net::udp::UdpSocket;
use telemetry::counters::{Counter, Family};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use receive::Receiver;

/// Most unhandled events; requests that find no room are refused.
const MAX_EVENTS: usize = 16_384;
/// Time between two lines of the log about peers that are not watched: any sender of requests can cause them.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// What a GTP-C entity is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our address. Peers send requests to port 2123.
    pub address: SocketAddr,
    /// This side's restart counter.
    pub restart_counter: Recovery,
    /// T3-RESPONSE: time until a request is repeated.
    pub t3_response: Duration,
    /// N3-REQUESTS: how often a request is sent at most.
    pub n3_requests: u8,
    /// Time between Echo Requests to each peer.
    pub echo_interval: Duration,
    /// Where failures are counted.
    pub counts: &'static Counts,
}

/// What is counted. Each program that uses this crate has a static of its own, and so the names that it wants.
#[derive(Debug)]
pub struct Counts {
    /// Requests without a usable answer, by cause.
    pub failures: Family,
    /// What peers began and the owner had no room for.
    pub events_dropped: Counter,
    /// Peers whose restart would not be noticed, because too many are watched.
    pub watch_refused: Counter,
}

/// Why a request has no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GtpcError {
    /// The peer does not answer, refuses without the IEs of an answer, or cannot be understood.
    #[error("peer: {0}")]
    Failed(Failure),
    /// The request could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The peer's F-TEID has no address.
    #[error("its F-TEID has no address")]
    NoAddress,
    /// The receiving task has ended.
    #[error("GTP-C has stopped")]
    Stopped,
}

/// What a peer begins.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub enum GtpcEvent {
    /// A request or command to answer.
    Request {
        /// For the answer.
        id: RequestId,
        /// Our TEID.
        teid: u32,
        /// The request.
        message: Message,
    },
    /// One that cannot be decoded, to be refused towards the peer's TEID.
    Malformed {
        /// For the answer.
        id: RequestId,
        /// Our TEID.
        teid: u32,
        /// What is wrong with it.
        error: DecodeError,
    },
    /// A message that is not answered.
    Indication {
        /// Its sender.
        peer: IpAddr,
        /// Our TEID.
        teid: u32,
        /// The message.
        message: Message,
    },
    /// A peer has lost its sessions, but for those set up since this instant.
    PeerRestarted {
        /// The peer.
        peer: IpAddr,
        /// When it first showed that it had restarted.
        since: std::time::Instant,
    },
}

/// An answer with the TEID that the peer addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Our TEID; 0 when the peer does not know one.
    pub teid: u32,
    /// The response.
    pub message: Message,
}

/// What a command leads to (TS 29.274 §7.6).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub enum Outcome {
    /// The peer does what the command asks for, with this request, which is to be answered.
    Triggered {
        /// For the answer.
        id: RequestId,
        /// Our TEID.
        teid: u32,
        /// The request.
        message: Message,
    },
    /// The peer refuses, with a failure indication.
    Refused(Answer),
}

/// Who waits for the end of what was sent.
enum Waiting {
    Request(oneshot::Sender<Result<Answer, GtpcError>>),
    Command(oneshot::Sender<Result<Outcome, GtpcError>>),
}

struct State {
    endpoint: Endpoint,
    waiting: HashMap<Handle, Waiting>,
    /// When the receiving task's timer expires.
    armed: Option<std::time::Instant>,
    /// Restarts of peers for which the queue has had no room, with their `since`. There are at most as many as peers are watched.
    restarted: HashMap<IpAddr, std::time::Instant>,
    /// When a line about peers that are not watched may be logged.
    next_warning: Option<std::time::Instant>,
    /// The receiving task has ended, and nobody would pass on an answer.
    stopped: bool,
}

struct Inner {
    socket: UdpSocket,
    /// Our address in F-TEIDs.
    local: SocketAddr,
    restart_counter: Recovery,
    /// Held for microseconds, never over an await.
    state: Mutex<State>,
    /// Wakes the receiving task if its timer must expire earlier.
    rearm: Notify,
    events: mpsc::Sender<GtpcEvent>,
    counts: &'static Counts,
}

/// Handle to GTP-C; clones share it.
#[derive(Clone)]
pub struct Gtpc {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Gtpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gtpc").field("local", &self.inner.local).finish_non_exhaustive()
    }
}

impl Gtpc {
    /// Binds the socket. When `tasks` is dropped, GTP-C stops: requests that wait for their answer, and later ones, end with
    /// [`GtpcError::Stopped`].
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub async fn start(
        config: Config,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<(Self, mpsc::Receiver<GtpcEvent>)> {
        let socket = net::udp::bind_with(config.address, net::udp::Options::CONTROL).await?;
        let local = socket.local_addr()?;
        let restart_counter = config.restart_counter;
        // Derived from random numbers of the operating system.
        let secret = RandomState::new().hash_one(restart_counter.0);
        let mut endpoint = gtpv2c::endpoint::Config::new(restart_counter, secret);
        endpoint.t3_response = config.t3_response;
        endpoint.n3_requests = config.n3_requests;
        endpoint.echo_interval = config.echo_interval;
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let state = State {
            endpoint: Endpoint::new(endpoint),
            waiting: HashMap::new(),
            armed: None,
            restarted: HashMap::new(),
            next_warning: None,
            stopped: false,
        };
        let inner = Inner {
            socket,
            local,
            restart_counter,
            state: state.into(),
            rearm: Notify::new(),
            events,
            counts: config.counts,
        };
        let gtpc = Self { inner: Arc::new(inner) };
        tasks.spawn(Receiver(gtpc.clone()).run());
        Ok((gtpc, receiver))
    }

    /// Our address.
    pub fn local(&self) -> SocketAddr {
        self.inner.local
    }

    /// The restart counter that peers see.
    pub fn restart_counter(&self) -> Recovery {
        self.inner.restart_counter
    }

    /// Counts of the GTPv2-C endpoint.
    pub fn counters(&self) -> Counters {
        self.lock().endpoint.counters()
    }

    /// Watches a peer: it is sent Echo Requests from now on.
    pub fn watch(&self, peer: IpAddr) {
        self.watch_at(SocketAddr::new(peer, PORT));
    }

    /// As [`Gtpc::watch`], for a peer that may have another port.
    pub fn watch_at(&self, peer: SocketAddr) {
        let now = time::now().into_std();
        let mut state = self.lock();
        if !state.endpoint.add_peer(now, peer) {
            self.inner.counts.watch_refused.inc();
            if state.next_warning.is_none_or(|next| next <= now) {
                state.next_warning = Some(now + WARN_INTERVAL);
                tracing::warn!(%peer, "too many GTP-C peers are watched: a restart of this one will not be noticed");
            }
        }
        self.flush(&mut state);
    }

    /// Sends a request to a peer's tunnel endpoint and waits for the answer.
    ///
    /// # Errors
    /// There is no usable answer.
    pub async fn request(&self, peer: FTeid, message: impl Into<Message>) -> Result<Message, GtpcError> {
        let to = peer.address().ok_or(GtpcError::NoAddress)?;
        Ok(self.exchange(SocketAddr::new(to, PORT), peer.teid, message).await?.message)
    }

    /// As [`Gtpc::request`], to any port, and with our TEID in the answer.
    ///
    /// # Errors
    /// There is no usable answer.
    pub async fn exchange(
        &self,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<Answer, GtpcError> {
        let answer =
            self.send(Waiting::Request, |endpoint, now| endpoint.send_request(now, to, teid, message))?;
        self.counted(answer).await
    }

    /// Sends the request that a received command asks for, and waits for the answer.
    ///
    /// # Errors
    /// There is no usable answer.
    pub async fn request_triggered(
        &self,
        command: RequestId,
        peer: FTeid,
        message: impl Into<Message>,
    ) -> Result<Message, GtpcError> {
        let to = SocketAddr::new(peer.address().ok_or(GtpcError::NoAddress)?, PORT);
        let answer = self.send(Waiting::Request, |endpoint, now| {
            endpoint.send_triggered(now, command, to, peer.teid, message)
        })?;
        Ok(self.counted(answer).await?.message)
    }

    /// Sends a command, and waits for the request that it triggers or the peer's refusal. If this future is dropped, the
    /// triggered request becomes a [`GtpcEvent::Request`].
    ///
    /// # Errors
    /// There is neither.
    pub async fn command(
        &self,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<Outcome, GtpcError> {
        let outcome =
            self.send(Waiting::Command, |endpoint, now| endpoint.send_request(now, to, teid, message))?;
        self.counted(outcome).await
    }

    /// Sends something and registers who waits for its end.
    fn send<T>(
        &self,
        waiting: impl FnOnce(oneshot::Sender<Result<T, GtpcError>>) -> Waiting,
        send: impl FnOnce(&mut Endpoint, std::time::Instant) -> Result<Handle, SendError>,
    ) -> Result<oneshot::Receiver<Result<T, GtpcError>>, GtpcError> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        if state.stopped {
            return Err(GtpcError::Stopped);
        }
        let handle = send(&mut state.endpoint, time::now().into_std())?;
        state.waiting.insert(handle, waiting(sender));
        self.flush(&mut state);
        Ok(answer)
    }

    /// Waits, and counts a failure.
    async fn counted<T>(&self, answer: oneshot::Receiver<Result<T, GtpcError>>) -> Result<T, GtpcError> {
        let answer = answer.await.unwrap_or(Err(GtpcError::Stopped));
        if let Err(error) = &answer {
            self.inner.counts.failures.inc(match error {
                GtpcError::Failed(Failure::TimedOut) => "timeout",
                _ => "other",
            });
        }
        answer
    }

    /// Answers a request; `teid` is the peer's.
    pub fn respond(&self, id: RequestId, teid: u32, response: impl Into<Message>) {
        let mut state = self.lock();
        // An answer that does not fit into a datagram is not sent; the peer repeats its request and then fails.
        if let Err(error) = state.endpoint.respond(time::now().into_std(), id, teid, response) {
            tracing::warn!(peer = %id.peer, %error, "answer not sent");
        }
        self.flush(&mut state);
    }

    /// Refuses a request; `teid` is the peer's.
    pub fn reject(&self, id: RequestId, teid: u32, cause: impl Into<Cause>) {
        let mut state = self.lock();
        // Fails only for a message that cannot be refused.
        let _ = state.endpoint.reject(time::now().into_std(), id, teid, cause);
        self.flush(&mut state);
    }

    /// Sends a message that is not answered; `teid` is the peer's.
    pub fn indicate(&self, to: SocketAddr, teid: u32, message: impl Into<Message>) {
        let mut state = self.lock();
        if let Err(error) = state.endpoint.send_indication(to, teid, message) {
            tracing::warn!(peer = %to, %error, "message not sent");
        }
        self.flush(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the endpoint's datagrams and wakes the receiving task if its timer must expire earlier.
    fn flush(&self, state: &mut State) {
        while let Some(transmit) = state.endpoint.poll_transmit() {
            // A full socket buffer loses the datagram, which is then repeated.
            let _ = self.inner.socket.try_send_to(&transmit.payload, transmit.to);
        }
        let next = state.endpoint.poll_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            self.inner.rearm.notify_one();
        }
    }
}
