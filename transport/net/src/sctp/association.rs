//! One user-space association: the protocol machine behind its lock, its timer task, its queue of
//! received messages.
//!
//! There is one [`Shared`] per association, owned by its timer task and by the application's handles;
//! the endpoint has weak references. The endpoint's receiving task, senders and the timer each take the
//! lock, run the protocol machine, and send the resulting packets before they release the lock. So
//! messages do not pass between tasks, and packets leave in order. The lock is never held across an
//! `await`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dcsctp::api::{
    DcSctpSocket, ErrorKind, PpId, SendOptions, Socket, SocketEvent, SocketState, SocketTime, StreamId,
};
use tokio::sync::Notify;

use super::cookie::Path;
use super::endpoint::Endpoint;
use super::packet::{self, ABORT, Packet};
use super::{CloseReason, Event, Message, SendError};
use crate::time::{self, Duration, Instant};

/// Bytes of complete messages kept for a slow reader; beyond, the receive window closes.
const INBOX_BYTES: usize = 256 * 1024;

/// How often a requested heartbeat is sent within its time limit.
const HEARTBEATS: u32 = 3;

/// Unpredictable, so that only a host that received the heartbeat can answer it.
fn random_number() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The protocol machine, movable between threads.
struct Machine(Socket);

// SAFETY: `Socket` is not `Send` only because its parts share `Rc`s among themselves (event queue, clock). Those are
// made inside `Socket::new` and no method hands one out, so the whole graph moves as one; the mutex around `Machine`
// lets one thread at a time touch it.
unsafe impl Send for Machine {}

/// One association.
pub(super) struct Shared {
    endpoint: Arc<Endpoint>,
    pub path: Path,
    /// The peer's UDP port when encapsulated; follows the peer (RFC 6951 §5.4).
    udp_port: AtomicU16,
    /// The peer's verification tag from the protocol machine's last packet; 0 before the hand-shake.
    peer_tag: AtomicU32,
    /// The number of the latest [`Shared::heartbeat`] that the peer answered.
    heartbeat_returned: AtomicU64,
    state: Mutex<State>,
    readable: Notify,
    writable: Notify,
    rearm: Notify,
}

struct State {
    machine: Machine,
    /// The time at which the machine's clock is zero.
    born: Instant,
    /// When the timer task will wake next.
    armed: Option<Instant>,
    inbox: VecDeque<Event>,
    inbox_bytes: usize,
    connected: bool,
    outgoing_streams: u16,
    closed: Option<CloseReason>,
    close_reported: bool,
    /// There is no reader any more.
    abandoned: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Association").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Shared {
    /// An association before its hand-shake. Its timers start with [`Shared::start`].
    pub fn new(endpoint: Arc<Endpoint>, path: Path, udp_port: u16) -> Arc<Shared> {
        let machine = Machine(Socket::new("", &endpoint.options(path.peer.port())));
        let state = State {
            machine,
            born: time::now(),
            armed: None,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            connected: false,
            outgoing_streams: 0,
            closed: None,
            close_reported: false,
            abandoned: false,
        };
        Arc::new(Shared {
            endpoint,
            path,
            udp_port: AtomicU16::new(udp_port),
            peer_tag: AtomicU32::new(0),
            heartbeat_returned: AtomicU64::new(0),
            state: Mutex::new(state),
            readable: Notify::new(),
            writable: Notify::new(),
            rearm: Notify::new(),
        })
    }

    /// Starts the timer task, which runs until the association is closed.
    pub fn start(self: &Arc<Shared>) {
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (armed, closed) = {
                    let state = shared.lock();
                    (state.armed, state.closed.is_some())
                };
                if closed {
                    break;
                }
                let rearmed = shared.rearm.notified();
                match armed {
                    Some(deadline) => {
                        if time::now() >= deadline {
                            shared.lock().armed = None;
                            shared.drive(|_| {});
                        } else {
                            tokio::select! {
                                () = time::sleep_until(deadline) => {}
                                () = rearmed => {}
                            }
                        }
                    }
                    None => rearmed.await,
                }
            }
            shared.endpoint.remove(&shared.path);
        });
    }

    /// Starts the hand-shake.
    pub fn connect(&self) {
        self.drive(DcSctpSocket::connect);
    }

    /// Handles a packet from the peer; `udp_port` is the port it came from.
    pub fn input(&self, packet: &Packet, udp_port: u16) {
        {
            let mut state = self.lock();
            let own_tag = state.machine.0.verification_tag();
            if own_tag != 0 && packet.verification_tag() == own_tag {
                self.udp_port.store(udp_port, Ordering::Relaxed);
                // The machine ignores an ABORT that answers its INIT, because it has no association
                // yet. But with that a host without listener answers.
                if !state.connected
                    && state.machine.0.state() == SocketState::Connecting
                    && packet.first().is_some_and(|chunk| chunk.kind == ABORT && !chunk.reflected())
                {
                    state.close(CloseReason::PeerAborted("nobody listens there".to_owned()));
                    self.wake_all();
                    return;
                }
            }
        }
        if let Some(number) = packet.heartbeat_acknowledged()
            && packet.verification_tag() == self.lock().machine.0.verification_tag()
        {
            self.heartbeat_returned.store(number, Ordering::Release);
            self.readable.notify_waiters();
        }
        let spelt_out = packet.with_shutdown_acknowledged();
        self.drive(|machine| machine.handle_input(spelt_out.as_deref().unwrap_or(packet.bytes())));
    }

    /// Whether the hand-shake is complete.
    pub fn connected(&self) -> bool {
        self.lock().connected
    }

    /// Waits until the hand-shake is complete, or has failed.
    pub async fn established(&self) -> Result<(), CloseReason> {
        self.wait(&self.readable, |state| match &state.closed {
            Some(reason) => Some(Err(reason.clone())),
            None => state.connected.then_some(Ok(())),
        })
        .await
    }

    /// As [`super::Association::recv`].
    pub async fn recv(&self) -> Option<Event> {
        self.wait(&self.readable, |state| {
            if let Some(event) = state.inbox.pop_front() {
                if let Event::Message(message) = &event {
                    state.inbox_bytes -= message.payload.len();
                }
                state.fill_inbox();
                return Some(Some(event));
            }
            let reason = state.closed.clone()?;
            let first = !std::mem::replace(&mut state.close_reported, true);
            Some(first.then_some(Event::Closed { reason }))
        })
        .await
    }

    /// As [`super::Sender::send`].
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        loop {
            let writable = self.writable.notified();
            tokio::pin!(writable);
            writable.as_mut().enable();
            match self.try_send(message.clone()) {
                Err(SendError::Full) => writable.await,
                result => return result,
            }
        }
    }

    /// As [`super::Sender::try_send`].
    pub fn try_send(&self, message: Message) -> Result<(), SendError> {
        let length = message.payload.len();
        {
            let state = self.lock();
            if state.closed.is_some() {
                return Err(SendError::Closed);
            }
            if message.stream >= state.outgoing_streams {
                return Err(SendError::Stream(message.stream));
            }
        }
        let message =
            dcsctp::api::Message::new(StreamId(message.stream), PpId(message.ppid), message.payload.into());
        self.drive(|machine| machine.send(message, &SendOptions::default())).map_err(|error| match error {
            dcsctp::api::SendError::EmptyPayload | dcsctp::api::SendError::MessageTooLarge { .. } => {
                SendError::Size(length)
            }
            dcsctp::api::SendError::ResourceExhaustion => SendError::Full,
            dcsctp::api::SendError::ShuttingDown => SendError::Closed,
        })
    }

    /// Starts an orderly shutdown.
    pub fn shutdown(&self) {
        self.drive(DcSctpSocket::shutdown);
    }

    /// There is no reader any more: shut down, and discard messages that still arrive.
    pub fn abandon(&self) {
        {
            let mut state = self.lock();
            state.abandoned = true;
            state.inbox.clear();
            state.inbox_bytes = 0;
        }
        self.shutdown();
    }

    /// Waits until the association has ended.
    pub async fn closed(&self) -> CloseReason {
        self.wait(&self.readable, |state| {
            // Nobody reads these messages, and a full queue would keep the peer from shutting down.
            state.inbox.clear();
            state.inbox_bytes = 0;
            state.fill_inbox();
            state.closed.clone()
        })
        .await
    }

    /// Aborts the association.
    pub fn abort(&self) {
        self.drive(DcSctpSocket::close);
    }

    /// As [`super::Sender::heartbeat`].
    pub async fn heartbeat(&self, limit: Duration) -> bool {
        let Ok(number) = random_number() else { return false };
        let deadline = time::now() + limit;
        while time::now() < deadline {
            let tag = self.peer_tag.load(Ordering::Relaxed);
            let heartbeat = packet::heartbeat(self.endpoint.port(), self.path.peer.port(), tag, number);
            self.endpoint.transmit(&self.path, self.destination(), heartbeat);
            // Sent again while there is time, because one may be lost.
            let again = time::now() + limit / HEARTBEATS;
            let answered = self.wait(&self.readable, |state| {
                if self.heartbeat_returned.load(Ordering::Acquire) == number {
                    return Some(true);
                }
                state.closed.is_some().then_some(false)
            });
            let remaining = again.min(deadline).saturating_duration_since(time::now());
            if let Ok(answered) = time::timeout(remaining, answered).await {
                return answered;
            }
        }
        false
    }

    /// Number of streams that we may send on.
    pub fn outgoing_streams(&self) -> u16 {
        self.lock().outgoing_streams
    }

    /// Our address and SCTP port.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.path.local, self.endpoint.port())
    }

    /// The address for packets to the peer.
    fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.path.peer.ip(), self.udp_port.load(Ordering::Relaxed))
    }

    /// Waits on `notify` until `look` returns a value.
    async fn wait<T>(&self, notify: &Notify, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let notified = notify.notified();
            tokio::pin!(notified);
            // Registered before looking, so that no change in between is missed.
            notified.as_mut().enable();
            if let Some(found) = look(&mut self.lock()) {
                return found;
            }
            notified.await;
        }
    }

    /// Runs the machine: sets its clock, applies `step`, and handles the events and packets that
    /// result.
    fn drive<T>(&self, step: impl FnOnce(&mut Socket) -> T) -> T {
        let mut state = self.lock();
        let now = time::now();
        let machine_now = SocketTime::zero() + (now - state.born);
        state.machine.0.advance_time(machine_now);
        let result = step(&mut state.machine.0);
        let mut wake_readers = false;
        // Bounded: each event results from this step; the machine makes no event out of an event.
        while let Some(event) = state.machine.0.poll_event() {
            match event {
                SocketEvent::SendPacket(packet) => {
                    if let Some(&[a, b, c, d]) = packet.get(4..8) {
                        self.peer_tag.store(u32::from_be_bytes([a, b, c, d]), Ordering::Relaxed);
                    }
                    self.endpoint.transmit(&self.path, self.destination(), packet)
                }
                SocketEvent::OnTotalBufferedAmountLow() => self.writable.notify_waiters(),
                other => wake_readers |= state.apply(other),
            }
        }
        if state.machine.0.state() == SocketState::Closed && state.armed.is_some() && state.closed.is_none() {
            // An association being set up was closed without a reason.
            state.close(CloseReason::Aborted("by the application".to_owned()));
        }
        wake_readers |= state.fill_inbox();
        let due = match state.machine.0.poll_timeout() {
            deadline if deadline == SocketTime::infinite_future() => None,
            deadline => Some(state.born + (deadline - SocketTime::zero())),
        };
        // A timer that fires early finds nothing to do and is set again, so only earlier deadlines need
        // a wake-up.
        let rearm = match (due, state.armed) {
            (Some(due), Some(armed)) => due < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if rearm {
            state.armed = due;
        }
        let ended = state.closed.is_some();
        drop(state);
        if rearm {
            self.rearm.notify_one();
        }
        if ended {
            self.wake_all();
        } else if wake_readers {
            self.readable.notify_waiters();
        }
        result
    }

    fn wake_all(&self) {
        self.readable.notify_waiters();
        self.writable.notify_waiters();
        self.rearm.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock is a defect; the state is plain data, so continuing does less harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Applies an event of the protocol machine; `true` if it may wake a reader.
    fn apply(&mut self, event: SocketEvent) -> bool {
        match event {
            SocketEvent::OnConnected() => {
                self.connected = true;
                self.learn_streams();
            }
            SocketEvent::OnConnectionRestarted() => {
                self.learn_streams();
                if !self.abandoned {
                    self.inbox.push_back(Event::Restarted);
                }
            }
            SocketEvent::OnClosed() => {
                self.fill_inbox();
                self.close(CloseReason::Shutdown);
            }
            SocketEvent::OnAborted(kind, cause) => self.close(match kind {
                ErrorKind::NoError => CloseReason::Shutdown,
                ErrorKind::TooManyRetries => CloseReason::Lost,
                ErrorKind::PeerReported => CloseReason::PeerAborted(cause),
                _ => CloseReason::Aborted(cause),
            }),
            SocketEvent::OnError(kind, cause) => {
                tracing::debug!(?kind, cause, "SCTP");
                return false;
            }
            _ => return false,
        }
        true
    }

    fn close(&mut self, reason: CloseReason) {
        self.closed.get_or_insert(reason);
    }

    fn learn_streams(&mut self) {
        if let Some(metrics) = self.machine.0.get_metrics() {
            self.outgoing_streams = metrics.negotiated_maximum_outgoing_streams;
        }
    }

    /// Moves complete messages out of the machine; `true` if there were any. They must leave it before
    /// it closes, because closing discards them. Their number is bounded, so that a slow reader closes
    /// the window.
    fn fill_inbox(&mut self) -> bool {
        let mut any = false;
        while self.inbox_bytes < INBOX_BYTES
            && let Some(message) = self.machine.0.get_next_message()
        {
            if self.abandoned {
                continue;
            }
            any = true;
            self.inbox_bytes += message.payload.len();
            self.inbox.push_back(Event::Message(Message {
                stream: message.stream_id.0,
                ppid: message.ppid.0,
                payload: Bytes::from(message.payload),
            }));
        }
        any
    }
}
