//! Sans-IO PFCP endpoint: reliable delivery (TS 29.244 §6.4), duplicates, heartbeat (§6.2.2), peer restart (§6.2.3).
//!
//! SMF and UPF both use it; it knows nothing of associations or sessions.
//!
//! Polling contract. The owner calls [`Endpoint::handle_datagram`] for each datagram received and
//! [`Endpoint::handle_timeout`] once the instant of [`Endpoint::poll_timeout`] has come. After these calls, and after
//! [`Endpoint::send_request`], [`Endpoint::respond`], [`Endpoint::reject`] and [`Endpoint::add_peer`], it
//!
//! 1. drains [`Endpoint::poll_transmit`] until `None` and sends each payload,
//! 2. drains [`Endpoint::poll_event`] until `None`,
//! 3. asks [`Endpoint::poll_timeout`] again and re-arms its one timer.
//!
//! Instants are the owner's, so that simulated time works. Invariants: each accepted [`Handle`] ends in exactly one
//! [`Event::Response`] or [`Event::Failed`]; a request is given to the owner once, however often it is
//! received; memory is bounded by the limits of [`Config`].
//!
//! UDP does not prove a sender. So a restart of a peer ([`Event::PeerRestarted`]) is believed only from a
//! response to a request that was sent to the peer's own address and port, with a sequence number that nobody
//! else can predict ([`scramble`]). If a request suggests a restart, the endpoint asks the peer
//! ([`Endpoint::ask`]).

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::codec::{DecodeError, EncodeError};
use crate::message::*;
use crate::value::*;
use foldhash::HashMap;

/// Most messages bundled in one datagram that are processed; the rest is dropped as malformed.
const MAX_BUNDLE: usize = 16;

/// Limits and timers.
#[derive(Debug, Clone)]
pub struct Config {
    /// This side's node ID, for rejections that the endpoint makes.
    pub node_id: NodeId,
    /// When this side started; sent to peers in heartbeats.
    pub recovery_time_stamp: NtpSeconds,
    /// Secret from which sequence numbers are derived; must be random, and differ between restarts.
    pub secret: u64,
    /// T1: time until a request is repeated.
    pub t1: Duration,
    /// N1: how often a request is sent at most.
    pub n1: u8,
    /// Time between heartbeats to each peer.
    pub heartbeat_interval: Duration,
    /// Most requests in flight.
    pub max_outstanding: usize,
    /// Most requests that are remembered to detect duplicates; the oldest is forgotten first.
    pub max_remembered: usize,
    /// Most octets of the remembered answers; the oldest is forgotten first.
    pub max_remembered_octets: usize,
}

impl Config {
    /// Defaults: T1 1 s, N1 3, heartbeat every 10 s; 65,536 requests in flight; and as many remembered requests
    /// of peers as come in 5 s at 100,000 a second.
    pub fn new(node_id: NodeId, recovery_time_stamp: NtpSeconds, secret: u64) -> Self {
        Self {
            node_id,
            recovery_time_stamp,
            secret,
            t1: Duration::from_secs(1),
            n1: 3,
            heartbeat_interval: Duration::from_secs(10),
            max_outstanding: 65_536,
            max_remembered: 1 << 19,
            max_remembered_octets: 64 << 20,
        }
    }

    /// How long a request is remembered: as long as its sender may repeat it.
    fn remember_for(&self) -> Duration {
        self.t1 * u32::from(self.n1.max(1)) * 2
    }
}

/// Identifies a request that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

/// Identifies a request that was received, for its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Source of the request and destination of the response.
    pub peer: SocketAddr,
    /// Its sequence number.
    pub sequence: u32,
    /// Its type.
    pub message_type: MessageType,
}

/// A datagram to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// Destination.
    pub to: SocketAddr,
    /// Octets.
    pub payload: Arc<[u8]>,
}

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// N1 transmissions without an answer.
    #[error("peer does not answer")]
    TimedOut,
    /// The peer refused, in a response with missing or broken IEs: only the cause is used.
    #[error("refused with cause {0:?}")]
    Refused(Cause),
    /// The answer could not be decoded.
    #[error("malformed response: {0}")]
    Malformed(DecodeError),
    /// The peer uses another version.
    #[error("peer does not support PFCP version 1")]
    Version,
}

/// Why a request or response was not accepted for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too many requests in flight.
    #[error("too many requests in flight")]
    Busy,
    /// The message is a response where a request is wanted, or the other way round.
    #[error("{0:?} is not of the wanted direction")]
    Direction(MessageType),
    /// The message does not fit in a datagram.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// An event for the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // events are consumed as they are polled
pub enum Event {
    /// A request to answer with [`Endpoint::respond`] or [`Endpoint::reject`].
    Request {
        /// Its identification.
        id: RequestId,
        /// This side's SEID, in session messages.
        seid: Option<u64>,
        /// The message.
        message: Message,
    },
    /// A session request that cannot be decoded; the owner knows the peer's SEID and answers with
    /// [`Endpoint::reject`]. (Node messages and session establishment are rejected here.)
    MalformedRequest {
        /// Its identification.
        id: RequestId,
        /// This side's SEID.
        seid: Option<u64>,
        /// The error.
        error: DecodeError,
    },
    /// The response to a request of this side.
    Response {
        /// The request.
        handle: Handle,
        /// Who answered.
        peer: SocketAddr,
        /// This side's SEID, in session messages.
        seid: Option<u64>,
        /// The message.
        message: Message,
    },
    /// A request of this side failed.
    Failed {
        /// The request.
        handle: Handle,
        /// Destination of the request.
        peer: SocketAddr,
        /// Its type.
        message_type: MessageType,
        /// The reason.
        failure: Failure,
    },
    /// The recovery time stamp of a peer changed, so it has lost its sessions. The peer itself has confirmed
    /// it, in a response to a request of this side. Comes before the event of the message that shows it.
    PeerRestarted {
        /// The peer.
        peer: IpAddr,
        /// Its new recovery time stamp.
        recovery_time_stamp: NtpSeconds,
    },
    /// A peer no longer answers heartbeats. Comes once; heartbeats continue.
    PeerFailed {
        /// The peer.
        peer: IpAddr,
    },
    /// A peer that had failed answers heartbeats again.
    PeerRecovered {
        /// The peer.
        peer: IpAddr,
    },
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages received.
    pub received: u64,
    /// Messages sent, repetitions included.
    pub sent: u64,
    /// Messages refused as malformed.
    pub malformed: u64,
    /// Messages of another version.
    pub version: u64,
    /// Repeated requests.
    pub duplicates: u64,
    /// Responses without a matching request.
    pub unmatched_responses: u64,
    /// Requests sent again.
    pub retransmissions: u64,
    /// Requests given up.
    pub timeouts: u64,
}

type Key = (SocketAddr, u32);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Heartbeat,
    Owner(Handle),
}

struct Outstanding {
    purpose: Purpose,
    message_type: MessageType,
    payload: Arc<[u8]>,
    deadline: Instant,
    sent: u8,
}

struct Remembered {
    message_type: MessageType,
    /// `None` until the owner has answered.
    response: Option<Arc<[u8]>>,
}

impl Remembered {
    fn octets(&self) -> usize {
        self.response.as_ref().map_or(0, |response| response.len())
    }
}

struct Peer {
    address: SocketAddr,
    recovery_time_stamp: Option<NtpSeconds>,
    next_heartbeat: Instant,
    /// Number of heartbeats that it has not answered yet.
    asked: u32,
    /// [`Endpoint::ask`] does not ask before this instant: forged requests must not make this side flood the
    /// peer.
    next_ask: Instant,
    failed: bool,
}

/// Rounds of [`scramble`].
const ROUNDS: u8 = 6;

/// Permutes 24-bit numbers under a secret. It turns a counter into sequence numbers that repeat after 2^24 at
/// the earliest and that nobody without the secret can predict. A Feistel network over halves of 12 bits.
fn scramble(secret: u64, counted: u32) -> u32 {
    let (mut left, mut right) = (counted >> 12 & 0xfff, counted & 0xfff);
    for round in 0..ROUNDS {
        let mut hasher = DefaultHasher::new();
        (secret, round, right).hash(&mut hasher);
        (left, right) = (right, left ^ (hasher.finish() as u32 & 0xfff));
    }
    left << 12 | right
}

/// The endpoint; see the module for its polling contract.
pub struct Endpoint {
    config: Config,
    /// Number of sequence numbers drawn; see [`scramble`].
    drawn: u32,
    next_handle: u64,
    outstanding: HashMap<Key, Outstanding>,
    /// Deadlines in order (T1 is the same for all); outdated entries are skipped.
    deadlines: VecDeque<(Instant, Key)>,
    remembered: HashMap<Key, Remembered>,
    /// Octets of the responses among the remembered requests.
    remembered_octets: usize,
    forget: VecDeque<(Instant, Key)>,
    peers: HashMap<IpAddr, Peer>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    scratch: Vec<u8>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint without peers.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            drawn: 0,
            next_handle: 0,
            outstanding: HashMap::default(),
            deadlines: VecDeque::new(),
            remembered: HashMap::default(),
            remembered_octets: 0,
            forget: VecDeque::new(),
            peers: HashMap::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            scratch: Vec::with_capacity(2048),
            counters: Counters::default(),
        }
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Starts heartbeats to a peer and watches its recovery time stamp. Known peers keep their stamp.
    pub fn add_peer(&mut self, now: Instant, address: SocketAddr) {
        let next_heartbeat = now + self.config.heartbeat_interval;
        let (recovery_time_stamp, asked, next_ask, failed) = (None, 0, now, false);
        let new = Peer { address, recovery_time_stamp, next_heartbeat, asked, next_ask, failed };
        let peer = self.peers.entry(address.ip()).or_insert(new);
        if peer.address != address {
            // It no longer answers at its old address.
            peer.address = address;
            peer.asked = 0;
        }
    }

    /// Sets a peer's confirmed recovery time stamp; no restart is reported for it.
    pub fn set_recovery_time_stamp(&mut self, peer: IpAddr, stamp: NtpSeconds) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.recovery_time_stamp = Some(stamp);
        }
    }

    /// Asks a watched peer for its recovery time stamp now, unless a heartbeat to it is unanswered, or it was
    /// asked within T1.
    pub fn ask(&mut self, now: Instant, peer: IpAddr) {
        let peer = self.peers.get_mut(&peer);
        if let Some(peer) = peer.filter(|peer| peer.asked == 0 && peer.next_ask <= now) {
            peer.next_ask = now + self.config.t1;
            peer.next_heartbeat = now;
            self.send_heartbeats(now);
        }
    }

    /// Stops watching a peer.
    pub fn remove_peer(&mut self, peer: IpAddr) {
        self.peers.remove(&peer);
    }

    /// The recovery time stamp last heard from a watched peer.
    pub fn peer_recovery_time_stamp(&self, peer: IpAddr) -> Option<NtpSeconds> {
        self.peers.get(&peer)?.recovery_time_stamp
    }

    /// Sends a request to `to`. `seid` is the peer's SEID (0 in session establishment, ignored in node
    /// messages).
    pub fn send_request(
        &mut self,
        now: Instant,
        to: SocketAddr,
        seid: u64,
        message: impl Into<Message>,
    ) -> Result<Handle, SendError> {
        let handle = Handle(self.next_handle);
        self.transmit_request(now, to, seid, &message.into(), Purpose::Owner(handle))?;
        self.next_handle += 1;
        Ok(handle)
    }

    /// Answers a request; `seid` is the peer's SEID. A second answer to the same request is not sent.
    pub fn respond(
        &mut self,
        now: Instant,
        id: RequestId,
        seid: u64,
        message: impl Into<Message>,
    ) -> Result<(), SendError> {
        let message = message.into();
        if message.message_type().is_request() {
            return Err(SendError::Direction(message.message_type()));
        }
        self.forget_old(now);
        let entry = self.remembered.get_mut(&(id.peer, id.sequence));
        if entry.as_ref().is_some_and(|entry| entry.response.is_some()) {
            return Ok(());
        }
        self.scratch.clear();
        message.encode(seid, id.sequence, &mut self.scratch)?;
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        if let Some(entry) = entry {
            entry.response = Some(payload.clone());
            self.remembered_octets += payload.len();
        }
        self.push_transmit(id.peer, payload);
        while self.remembered_octets > self.config.max_remembered_octets && self.forget_oldest() {}
        Ok(())
    }

    /// Rejects a request with a cause; `seid` is the peer's SEID, or 0 if unknown.
    pub fn reject(
        &mut self,
        now: Instant,
        id: RequestId,
        seid: u64,
        cause: Cause,
        offending_ie: Option<u16>,
    ) -> Result<(), SendError> {
        let Some(response) = self.rejection(id.message_type, cause, offending_ie.map(OffendingIe)) else {
            return Err(SendError::Direction(id.message_type));
        };
        self.respond(now, id, seid, response)
    }

    /// Processes a received datagram.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let mut rest = datagram;
        for _ in 0..MAX_BUNDLE {
            self.counters.received += 1;
            match Header::decode(rest) {
                Ok((header, ies, after)) => {
                    if header.message_type.is_request() {
                        self.handle_request(now, from, header, ies);
                    } else {
                        self.handle_response(now, from, header, ies);
                    }
                    if !header.follow_on || after.is_empty() {
                        return;
                    }
                    rest = after;
                }
                Err(DecodeError::Version(_)) => {
                    self.counters.version += 1;
                    return self.answer_version(from, rest);
                }
                Err(_) => {
                    self.counters.malformed += 1;
                    return;
                }
            }
        }
        self.counters.malformed += 1;
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Endpoint::handle_timeout`] must be called next.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        while let Some(&(deadline, key)) = self.deadlines.front() {
            if self.outstanding.get(&key).is_some_and(|request| request.deadline == deadline) {
                break;
            }
            self.deadlines.pop_front();
        }
        let request = self.deadlines.front().map(|(deadline, _)| *deadline);
        let heartbeat = self.peers.values().map(|peer| peer.next_heartbeat).min();
        request.into_iter().chain(heartbeat).min()
    }

    /// Repeats and gives up requests, sends heartbeats, forgets old requests. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.forget_old(now);
        while let Some(&(deadline, key)) = self.deadlines.front() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            let Some(request) = self.outstanding.get_mut(&key).filter(|request| request.deadline == deadline)
            else {
                continue;
            };
            if request.sent < self.config.n1 {
                request.sent += 1;
                request.deadline = now + self.config.t1;
                let (deadline, payload) = (request.deadline, request.payload.clone());
                self.deadlines.push_back((deadline, key));
                self.counters.retransmissions += 1;
                self.push_transmit(key.0, payload);
            } else {
                self.give_up(key);
            }
        }
        self.send_heartbeats(now);
    }

    fn give_up(&mut self, key: Key) {
        let Some(request) = self.outstanding.remove(&key) else { return };
        self.counters.timeouts += 1;
        match request.purpose {
            Purpose::Owner(handle) => self.events.push_back(Event::Failed {
                handle,
                peer: key.0,
                message_type: request.message_type,
                failure: Failure::TimedOut,
            }),
            Purpose::Heartbeat => {
                let ip = key.0.ip();
                let Some(peer) = self.peers.get_mut(&ip).filter(|peer| peer.address == key.0) else { return };
                peer.asked = peer.asked.saturating_sub(1);
                if !std::mem::replace(&mut peer.failed, true) {
                    self.events.push_back(Event::PeerFailed { peer: ip });
                }
            }
        }
    }

    fn send_heartbeats(&mut self, now: Instant) {
        let interval = self.config.heartbeat_interval;
        let due = self.peers.values_mut().filter(|peer| peer.next_heartbeat <= now).map(|peer| {
            peer.next_heartbeat = now + interval;
            peer.address
        });
        for address in due.collect::<Vec<_>>() {
            let message = HeartbeatRequest { recovery_time_stamp: self.config.recovery_time_stamp }.into();
            // If too many requests are in flight, the next heartbeat is sent an interval later.
            if self.transmit_request(now, address, 0, &message, Purpose::Heartbeat).is_ok()
                && let Some(peer) = self.peers.get_mut(&address.ip())
            {
                peer.asked += 1;
            }
        }
    }

    fn transmit_request(
        &mut self,
        now: Instant,
        to: SocketAddr,
        seid: u64,
        message: &Message,
        purpose: Purpose,
    ) -> Result<(), SendError> {
        let message_type = message.message_type();
        if !message_type.is_request() {
            return Err(SendError::Direction(message_type));
        }
        if self.outstanding.len() >= self.config.max_outstanding {
            return Err(SendError::Busy);
        }
        // At most `max_outstanding` of 2^24 numbers are in use, so the loop ends.
        let sequence = loop {
            self.drawn = (self.drawn + 1) & 0xff_ffff;
            let sequence = scramble(self.config.secret, self.drawn);
            if !self.outstanding.contains_key(&(to, sequence)) {
                break sequence;
            }
        };
        self.scratch.clear();
        message.encode(seid, sequence, &mut self.scratch)?;
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        let deadline = now + self.config.t1;
        let key = (to, sequence);
        let request = Outstanding { purpose, message_type, payload: payload.clone(), deadline, sent: 1 };
        self.outstanding.insert(key, request);
        self.deadlines.push_back((deadline, key));
        self.push_transmit(to, payload);
        Ok(())
    }

    fn push_transmit(&mut self, to: SocketAddr, payload: Arc<[u8]>) {
        self.counters.sent += 1;
        self.transmits.push_back(Transmit { to, payload });
    }

    fn handle_request(&mut self, now: Instant, from: SocketAddr, header: Header, ies: &[u8]) {
        self.forget_old(now);
        let key = (from, header.sequence);
        let id = RequestId { peer: from, sequence: header.sequence, message_type: header.message_type };
        // The same number with another type is not a repetition: the peer has restarted its numbering.
        if let Some(entry) =
            self.remembered.get(&key).filter(|entry| entry.message_type == header.message_type)
            && header.message_type != MessageType::HeartbeatRequest
        {
            self.counters.duplicates += 1;
            if let Some(payload) = entry.response.clone() {
                self.push_transmit(from, payload);
            }
            return;
        }
        let message = match Message::decode_ies(header.message_type, ies) {
            Ok(message) => message,
            Err(error) => {
                self.counters.malformed += 1;
                return self.handle_malformed_request(now, id, header, ies, error);
            }
        };
        if let Message::HeartbeatRequest(heartbeat) = &message {
            self.doubt(now, from.ip(), heartbeat.recovery_time_stamp);
            let response = HeartbeatResponse { recovery_time_stamp: self.config.recovery_time_stamp };
            let _ = self.respond(now, id, 0, response);
            return;
        }
        self.remember(now, key, header.message_type);
        self.events.push_back(Event::Request { id, seid: header.seid, message });
    }

    fn handle_malformed_request(
        &mut self,
        now: Instant,
        id: RequestId,
        header: Header,
        ies: &[u8],
        error: DecodeError,
    ) {
        let Some(cause) = error.cause() else { return };
        self.remember(now, (id.peer, id.sequence), id.message_type);
        let peer_seid = match header.message_type {
            MessageType::SessionEstablishmentRequest => peek_cp_f_seid(ies).map_or(0, |f_seid| f_seid.seid),
            node if !node.has_seid() => 0,
            _ => return self.events.push_back(Event::MalformedRequest { id, seid: header.seid, error }),
        };
        // A heartbeat cannot be rejected; nothing is sent for it.
        let _ = self.reject(now, id, peer_seid, cause, error.offending_ie());
    }

    fn handle_response(&mut self, now: Instant, from: SocketAddr, header: Header, ies: &[u8]) {
        let key = (from, header.sequence);
        let version = header.message_type == MessageType::VersionNotSupportedResponse;
        let matches = self
            .outstanding
            .get(&key)
            .is_some_and(|request| version || header.message_type as u8 == request.message_type as u8 + 1);
        let Some(request) = matches.then(|| self.outstanding.remove(&key)).flatten() else {
            self.counters.unmatched_responses += 1;
            return;
        };
        let decoded = Message::decode_ies(header.message_type, ies);
        let refusal = if decoded.is_err() { peek_rejection(ies) } else { None };
        if decoded.is_err() && refusal.is_none() {
            self.counters.malformed += 1;
        }
        match &decoded {
            Ok(Message::HeartbeatResponse(heartbeat)) => {
                self.note_recovery(from, heartbeat.recovery_time_stamp, false);
            }
            Ok(Message::AssociationSetupResponse(setup)) if setup.cause.is_accepted() => {
                self.note_recovery(from, setup.recovery_time_stamp, true);
            }
            _ => {}
        }
        if let Some(peer) = self.peers.get_mut(&from.ip()).filter(|peer| peer.address == from) {
            // Any answer proves that the peer is alive, so the next heartbeat can wait.
            peer.next_heartbeat = now + self.config.heartbeat_interval;
            if request.purpose == Purpose::Heartbeat {
                peer.asked = peer.asked.saturating_sub(1);
            }
            if std::mem::take(&mut peer.failed) {
                self.events.push_back(Event::PeerRecovered { peer: from.ip() });
            }
        }
        let Purpose::Owner(handle) = request.purpose else { return };
        let failure = match decoded {
            Ok(_) if version => Failure::Version,
            Ok(message) => {
                return self.events.push_back(Event::Response {
                    handle,
                    peer: from,
                    seid: header.seid,
                    message,
                });
            }
            Err(error) => refusal.map_or(Failure::Malformed(error), Failure::Refused),
        };
        self.events.push_back(Event::Failed {
            handle,
            peer: from,
            message_type: request.message_type,
            failure,
        });
    }

    /// Handles the recovery time stamp in a response of the peer. A newer stamp means a restart. An older stamp
    /// is a late message, unless the peer accepts an association (its clock may have gone back).
    fn note_recovery(&mut self, from: SocketAddr, stamp: NtpSeconds, setup: bool) {
        let ip = from.ip();
        let Some(peer) = self.peers.get_mut(&ip).filter(|peer| peer.address == from) else { return };
        let restarted = match peer.recovery_time_stamp {
            None => false,
            Some(old) if setup => old != stamp,
            Some(old) => is_newer(stamp, old),
        };
        if peer.recovery_time_stamp.is_none() || restarted {
            peer.recovery_time_stamp = Some(stamp);
        }
        if restarted {
            self.events.push_back(Event::PeerRestarted { peer: ip, recovery_time_stamp: stamp });
        }
    }

    /// Handles a heartbeat request whose stamp suggests a restart. Anyone can send one, so the peer itself is
    /// asked.
    fn doubt(&mut self, now: Instant, ip: IpAddr, stamp: NtpSeconds) {
        let known = self.peers.get(&ip).and_then(|peer| peer.recovery_time_stamp);
        if known.is_some_and(|known| is_newer(stamp, known)) {
            self.ask(now, ip);
        }
    }

    fn remember(&mut self, now: Instant, key: Key, message_type: MessageType) {
        while self.remembered.len() >= self.config.max_remembered.max(1) && self.forget_oldest() {}
        let before = self.remembered.insert(key, Remembered { message_type, response: None });
        self.remembered_octets -= before.map_or(0, |entry| entry.octets());
        self.forget.push_back((now + self.config.remember_for(), key));
    }

    fn forget_old(&mut self, now: Instant) {
        while self.forget.front().is_some_and(|(at, _)| *at <= now) {
            self.forget_oldest();
        }
    }

    /// Forgets the oldest request; `false` when there is none.
    fn forget_oldest(&mut self) -> bool {
        let Some((_, key)) = self.forget.pop_front() else { return false };
        if let Some(entry) = self.remembered.remove(&key) {
            self.remembered_octets -= entry.octets();
        }
        true
    }

    /// Sends a Version Not Supported Response, with the sequence number at version 1's position (§7.6.3).
    fn answer_version(&mut self, from: SocketAddr, datagram: &[u8]) {
        // Such a response is never answered: two such endpoints would never stop.
        let Some(&[flags, code, _, _]) = datagram.first_chunk::<4>() else { return };
        if code == MessageType::VersionNotSupportedResponse as u8 {
            return;
        }
        let at = if flags & 1 != 0 { 12 } else { 4 };
        let Some(&[a, b, c]) = datagram.get(at..).and_then(|rest| rest.first_chunk::<3>()) else { return };
        self.scratch.clear();
        let message = Message::VersionNotSupportedResponse(VersionNotSupportedResponse {});
        if message.encode(0, u32::from_be_bytes([0, a, b, c]), &mut self.scratch).is_ok() {
            let payload = self.scratch.as_slice().into();
            self.push_transmit(from, payload);
        }
    }

    fn rejection(
        &self,
        request: MessageType,
        cause: Cause,
        offending_ie: Option<OffendingIe>,
    ) -> Option<Message> {
        use MessageType as T;
        let node_id = self.config.node_id.clone();
        let recovery_time_stamp = self.config.recovery_time_stamp;
        Some(match request {
            T::AssociationSetupRequest => {
                AssociationSetupResponse { node_id, cause, recovery_time_stamp, ..Default::default() }.into()
            }
            T::AssociationUpdateRequest => {
                AssociationUpdateResponse { node_id, cause, ..Default::default() }.into()
            }
            T::AssociationReleaseRequest => AssociationReleaseResponse { node_id, cause }.into(),
            T::NodeReportRequest => NodeReportResponse { node_id, cause, offending_ie }.into(),
            T::SessionSetDeletionRequest => {
                SessionSetDeletionResponse { node_id, cause, offending_ie }.into()
            }
            T::SessionEstablishmentRequest => {
                SessionEstablishmentResponse { node_id, cause, offending_ie, ..Default::default() }.into()
            }
            T::SessionModificationRequest => {
                SessionModificationResponse { cause, offending_ie, ..Default::default() }.into()
            }
            T::SessionDeletionRequest => {
                SessionDeletionResponse { cause, offending_ie, ..Default::default() }.into()
            }
            T::SessionReportRequest => {
                SessionReportResponse { cause, offending_ie, ..Default::default() }.into()
            }
            _ => return None,
        })
    }
}

/// Whether a stamp is the later one; stamps wrap in 2036.
fn is_newer(stamp: NtpSeconds, than: NtpSeconds) -> bool {
    stamp.0.wrapping_sub(than.0) as i32 > 0
}
