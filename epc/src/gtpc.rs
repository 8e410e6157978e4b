//! GTP-C: the socket and the GTPv2-C endpoint (TS 29.274).
//!
//! [`Gtpc::request`] sends a request and waits for its answer. [`GtpcEvent`]s are what peers begin. One task receives and
//! keeps the timers. The endpoint is behind a mutex that is held for microseconds, so a procedure sends on its own task.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gtpv2c::DecodeError;
use gtpv2c::endpoint::{Endpoint, Event, Failure, Handle, PORT, RequestId, SendError};
use gtpv2c::message::Message;
use gtpv2c::value::{Cause, CauseValue, FTeid, Recovery};
use net::time;
use net::udp::UdpSocket;
use telemetry::counters::{Counter, Family};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::config::Timers;

/// Most unhandled events; requests that find no room are refused.
const MAX_EVENTS: usize = 16_384;

static FAILURES: Family = Family::new("epc_gtpc_failure", "cause");
static EVENTS_DROPPED: Counter = Counter::new("epc_gtpc_events_dropped");

/// Why a request has no usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GtpcError {
    #[error("peer: {0}")]
    Failed(Failure),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("its F-TEID has no address")]
    NoAddress,
    #[error("the gateway is stopping")]
    Stopped,
}

/// What a peer begins.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub(crate) enum GtpcEvent {
    /// A request or command to answer.
    Request { id: RequestId, teid: u32, message: Message },
    /// One that cannot be decoded, to be refused towards the peer's TEID.
    Malformed { id: RequestId, teid: u32, error: DecodeError },
    /// A message that is not answered.
    Indication { peer: IpAddr, teid: u32, message: Message },
    /// A peer has lost its sessions, but for those set up since this instant.
    PeerRestarted { peer: IpAddr, since: std::time::Instant },
}

type Answer = Result<Message, GtpcError>;

struct State {
    endpoint: Endpoint,
    waiting: HashMap<Handle, oneshot::Sender<Answer>>,
    /// When the receiving task's timer expires.
    armed: Option<std::time::Instant>,
}

struct Inner {
    socket: UdpSocket,
    /// Our address in F-TEIDs.
    local: SocketAddr,
    /// How often this gateway has started, modulo 256.
    restart_counter: Recovery,
    /// Held for microseconds, never over an await.
    state: Mutex<State>,
    /// Wakes the receiving task if its timer must expire earlier.
    rearm: Notify,
    events: mpsc::Sender<GtpcEvent>,
}

/// Handle to GTP-C; clones share it.
#[derive(Clone)]
pub(crate) struct Gtpc {
    inner: Arc<Inner>,
}

impl Gtpc {
    /// Binds the socket. It works as long as `tasks` lives. `restarts` holds the restart counter, which this start increments
    /// (TS 23.007 §18).
    pub async fn start(
        address: SocketAddr,
        timers: &Timers,
        restarts: &Path,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<(Self, mpsc::Receiver<GtpcEvent>)> {
        let socket = net::udp::bind(address).await?;
        let local = socket.local_addr()?;
        let restart_counter = next_restart(restarts)?;
        // Derived from random numbers of the operating system.
        let secret = std::hash::RandomState::new().hash_one(restart_counter.0);
        let mut config = gtpv2c::endpoint::Config::new(restart_counter, secret);
        config.t3_response = Duration::from_millis(timers.gtpc_t3_ms);
        config.n3_requests = timers.gtpc_n3;
        config.echo_interval = Duration::from_millis(timers.gtpc_echo_ms);
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let state = State { endpoint: Endpoint::new(config), waiting: HashMap::new(), armed: None };
        let inner =
            Inner { socket, local, restart_counter, state: state.into(), rearm: Notify::new(), events };
        let gtpc = Self { inner: Arc::new(inner) };
        tasks.spawn(gtpc.clone().receive());
        Ok((gtpc, receiver))
    }

    /// Our address.
    pub fn local(&self) -> SocketAddr {
        self.inner.local
    }

    /// How often this gateway has started, modulo 256.
    pub fn restart_counter(&self) -> Recovery {
        self.inner.restart_counter
    }

    /// Watches a peer: it is sent Echo Requests from now on.
    pub fn watch(&self, peer: IpAddr) {
        let mut state = self.lock();
        state.endpoint.add_peer(time::now().into_std(), SocketAddr::new(peer, PORT));
        self.flush(&mut state);
    }

    /// Sends a request to a peer's tunnel endpoint and waits for the answer.
    pub async fn request(&self, peer: FTeid, message: impl Into<Message>) -> Answer {
        let to = peer.address().ok_or(GtpcError::NoAddress)?;
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            let to = SocketAddr::new(to, PORT);
            let handle = state.endpoint.send_request(time::now().into_std(), to, peer.teid, message)?;
            state.waiting.insert(handle, sender);
            self.flush(&mut state);
        }
        self.answer(answer).await
    }

    /// Sends the request that a received command asks for, and waits for the answer.
    pub async fn request_triggered(
        &self,
        command: RequestId,
        peer: FTeid,
        message: impl Into<Message>,
    ) -> Answer {
        let to = peer.address().ok_or(GtpcError::NoAddress)?;
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            let to = SocketAddr::new(to, PORT);
            let now = time::now().into_std();
            let handle = state.endpoint.send_triggered(now, command, to, peer.teid, message)?;
            state.waiting.insert(handle, sender);
            self.flush(&mut state);
        }
        self.answer(answer).await
    }

    async fn answer(&self, answer: oneshot::Receiver<Answer>) -> Answer {
        let answer = answer.await.unwrap_or(Err(GtpcError::Stopped));
        if let Err(error) = &answer {
            FAILURES.inc(match error {
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
        let _ = state.endpoint.reject(time::now().into_std(), id, teid, cause);
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
            // Without a timer, the next request wakes this task.
            let wait = armed.map_or_else(|| time::now() + Duration::from_secs(3600), time::Instant::from_std);
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
            Event::Response { handle, message, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    // The procedure may have stopped waiting.
                    let _ = waiting.send(Ok(message));
                }
            }
            Event::Failed { handle, failure, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    let _ = waiting.send(Err(GtpcError::Failed(failure)));
                }
            }
            Event::Request { id, teid, message, .. } => {
                if !self.queue(GtpcEvent::Request { id, teid, message }) {
                    // The endpoint gives a repeated request to nobody.
                    let _ = state.endpoint.reject(time::now().into_std(), id, 0, CauseValue::NO_RESOURCES);
                }
            }
            Event::MalformedRequest { id, teid, error, .. } => {
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

    /// Whether there was room.
    fn queue(&self, event: GtpcEvent) -> bool {
        let queued = self.inner.events.try_send(event).is_ok();
        if !queued {
            EVENTS_DROPPED.inc();
        }
        queued
    }
}

/// Reads the number of the last start from a file, and writes that of this one.
fn next_restart(file: &Path) -> io::Result<Recovery> {
    let last = match std::fs::read_to_string(file) {
        Ok(text) => {
            text.trim().parse::<u8>().map_err(|_| io::Error::other("no restart counter in the file"))?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let next = last.wrapping_add(1);
    // A start that is cut off leaves the old file or the new one.
    let new = file.with_extension("new");
    let mut written = std::fs::File::create(&new)?;
    io::Write::write_all(&mut written, format!("{next}\n").as_bytes())?;
    written.sync_all()?;
    std::fs::rename(new, file)?;
    if let Some(folder) = file.parent() {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(Recovery(next))
}
