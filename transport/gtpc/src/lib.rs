//! GTP-C over UDP: the socket, the task and the timers of a GTPv2-C endpoint (TS 29.274). S-GW, P-GW and MME use it.
//!
//! ```text
//! procedure ── request, command, respond ──► Endpoint (behind a mutex) ──► socket
//!     ▲                                          ▲
//!     └── answer ── receiving task ── datagrams, timers
//!                        └── GtpcEvent: what peers begin ──► owner
//! ```
//!
//! [`Gtpc::request`] sends a request and waits for its answer. The mutex is held for microseconds, so a procedure sends on its
//! own task. `--pcap` sees the datagrams at the kernel, as those of all sockets.
//!
//! Invariants: a request ends with its answer or an error; what a peer begins is given to the owner or refused; the queue of
//! events is bounded; the mutex is not held over an await.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gtpv2c::endpoint::{Counters, Endpoint, Event, Failure, Handle, PORT, RequestId, SendError};
use gtpv2c::{Cause, CauseValue, DecodeError, FTeid, Message, Recovery};
use net::time;
use net::udp::UdpSocket;
use telemetry::counters::{Counter, Family};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

/// Most unhandled events; requests that find no room are refused.
const MAX_EVENTS: usize = 16_384;
/// How long the receiving task sleeps when no timer runs. A request wakes it.
const NO_TIMER: Duration = Duration::from_secs(3600);

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
    /// Binds the socket. It works as long as `tasks` lives.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub async fn start(
        config: Config,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<(Self, mpsc::Receiver<GtpcEvent>)> {
        let socket = net::udp::bind(config.address).await?;
        let local = socket.local_addr()?;
        let restart_counter = config.restart_counter;
        // Derived from random numbers of the operating system.
        let secret = RandomState::new().hash_one(restart_counter.0);
        let mut endpoint = gtpv2c::endpoint::Config::new(restart_counter, secret);
        endpoint.t3_response = config.t3_response;
        endpoint.n3_requests = config.n3_requests;
        endpoint.echo_interval = config.echo_interval;
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let state = State { endpoint: Endpoint::new(endpoint), waiting: HashMap::new(), armed: None };
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
        tasks.spawn(gtpc.clone().receive());
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
        let mut state = self.lock();
        state.endpoint.add_peer(time::now().into_std(), peer);
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

    /// Receives datagrams, keeps the timers, and passes on the endpoint's events.
    async fn receive(self) {
        let mut buffer = vec![0u8; 65_536];
        loop {
            let armed = {
                let mut state = self.lock();
                state.armed = state.endpoint.poll_timeout();
                state.armed
            };
            let wait = armed.map_or_else(|| time::now() + NO_TIMER, time::Instant::from_std);
            tokio::select! {
                received = self.inner.socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.process(|endpoint, now| {
                        endpoint.handle_datagram(now, from, buffer.get(..length).unwrap_or_default());
                    }),
                    // ICMP errors of unreachable peers; requests to them time out.
                    Err(error) => tracing::debug!(%error, "GTP-C socket"),
                },
                () = time::sleep_until(wait) => self.process(|endpoint, now| endpoint.handle_timeout(now)),
                () = self.inner.rearm.notified() => {}
            }
        }
    }

    /// Performs one step of the endpoint and handles its events and datagrams.
    fn process(&self, step: impl FnOnce(&mut Endpoint, std::time::Instant)) {
        let mut state = self.lock();
        step(&mut state.endpoint, time::now().into_std());
        while let Some(event) = state.endpoint.poll_event() {
            self.handle_event(&mut state, event);
        }
        self.flush(&mut state);
    }

    fn handle_event(&self, state: &mut State, event: Event) {
        match event {
            // The procedure may have stopped waiting for any of these.
            Event::Response { handle, teid, message, .. } => {
                let answer = Answer { teid, message };
                match state.waiting.remove(&handle) {
                    Some(Waiting::Request(sender)) => drop(sender.send(Ok(answer))),
                    Some(Waiting::Command(sender)) => drop(sender.send(Ok(Outcome::Refused(answer)))),
                    None => {}
                }
            }
            Event::Failed { handle, failure, .. } => state.fail(handle, failure),
            Event::Request { id, teid, message, command, .. } => {
                self.begun(state, id, teid, message, command);
            }
            Event::MalformedRequest { id, teid, error, command, .. } => {
                if let Some(command) = command {
                    state.fail(command, Failure::Malformed(error));
                }
                self.queue(GtpcEvent::Malformed { id, teid, error });
            }
            Event::Indication { peer, teid, message } => {
                self.queue(GtpcEvent::Indication { peer: peer.ip(), teid, message });
            }
            Event::PeerRestarted { peer, since, .. } => {
                self.queue(GtpcEvent::PeerRestarted { peer, since });
            }
            Event::PeerFailed { peer } => tracing::warn!(%peer, "GTP-C peer does not answer Echo Requests"),
            Event::PeerRecovered { peer } => tracing::info!(%peer, "GTP-C peer answers again"),
        }
    }

    /// Gives a request to who has triggered it with a command and still waits, or else to the owner.
    fn begun(&self, state: &mut State, id: RequestId, teid: u32, message: Message, command: Option<Handle>) {
        let mut request = (teid, message);
        if let Some(Waiting::Command(sender)) = command.and_then(|command| state.waiting.remove(&command)) {
            let (teid, message) = request;
            match sender.send(Ok(Outcome::Triggered { id, teid, message })) {
                Err(Ok(Outcome::Triggered { teid, message, .. })) => request = (teid, message),
                _ => return,
            }
        }
        let (teid, message) = request;
        if !self.queue(GtpcEvent::Request { id, teid, message }) {
            // The endpoint gives a repeated request to nobody.
            let _ = state.endpoint.reject(time::now().into_std(), id, 0, CauseValue::NO_RESOURCES);
        }
    }

    /// Whether there was room.
    fn queue(&self, event: GtpcEvent) -> bool {
        let queued = self.inner.events.try_send(event).is_ok();
        if !queued {
            self.inner.counts.events_dropped.inc();
        }
        queued
    }
}

impl State {
    fn fail(&mut self, handle: Handle, failure: Failure) {
        match self.waiting.remove(&handle) {
            Some(Waiting::Request(sender)) => drop(sender.send(Err(GtpcError::Failed(failure)))),
            Some(Waiting::Command(sender)) => drop(sender.send(Err(GtpcError::Failed(failure)))),
            None => {}
        }
    }
}
