//! Sans-IO GTPv2-C endpoint: reliable delivery (TS 29.274 §7.6), duplicates, piggybacking (§5.5.1), echo (§7.1.1), peer restart
//! (TS 23.007 §18).
//!
//! S-GW, P-GW and MME use it; it knows nothing of sessions.
//!
//! Polling contract. The owner calls [`Endpoint::handle_datagram`] for each datagram received and
//! [`Endpoint::handle_timeout`] once the instant of [`Endpoint::poll_timeout`] has come. After these calls, and after
//! every method that sends, and [`Endpoint::add_peer`], it
//!
//! 1. drains [`Endpoint::poll_transmit`] until `None` and sends each payload from [`PORT`],
//! 2. drains [`Endpoint::poll_event`] until `None`,
//! 3. asks [`Endpoint::poll_timeout`] again and re-arms its one timer.
//!
//! Instants are the owner's, so that simulated time works. Invariants: each accepted [`Handle`] ends in exactly one
//! [`Event::Response`] or [`Event::Failed`], or, if it is a command, in an event with that handle as its `command`;
//! a request is given to the owner once, however often it is received; memory is bounded by the limits of [`Config`].
//!
//! UDP does not prove a sender. So a restart of a peer ([`Event::PeerRestarted`]) is believed only from an Echo
//! Response to an Echo Request that was sent to the peer's own address and port, with a sequence number that nobody
//! else can predict ([`sequence`]). If another message suggests a restart, the endpoint asks the peer
//! ([`Endpoint::ask`]).
//!
//! [`memory`] holds the requests of peers, [`peers`] the peers that are watched.

mod memory;
mod peers;
mod sequence;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::codec::{DecodeError, EncodeError};
use crate::message::*;
use crate::value::*;
use foldhash::HashMap;
use memory::{Memory, Seen};
use peers::{Added, Peers};
use sequence::{COMMAND, Sequence};

/// Port on which GTP-C entities receive requests (§4.2.2.1).
pub const PORT: u16 = 2123;

/// Limits and timers.
#[derive(Debug, Clone)]
pub struct Config {
    /// This side's restart counter; sent to peers in echo messages.
    pub restart_counter: Recovery,
    /// Secret from which sequence numbers are derived; must be random, and differ between restarts.
    pub secret: u64,
    /// T3-RESPONSE: time until a request is repeated.
    pub t3_response: Duration,
    /// N3-REQUESTS: how often a request is sent at most. To a watched peer that has failed it is sent once.
    pub n3_requests: u8,
    /// Time between Echo Requests to each peer; the standard wants 60 s at least (§7.1.1).
    pub echo_interval: Duration,
    /// Most requests in flight.
    pub max_outstanding: usize,
    /// Most requests that are remembered to detect duplicates; the oldest is forgotten first.
    pub max_remembered: usize,
    /// Most octets of the remembered answers; the oldest is forgotten first.
    pub max_remembered_octets: usize,
    /// Most peers that are watched. When there are so many, a peer that has failed gives its place to a new one.
    pub max_peers: usize,
}

impl Config {
    /// Defaults: T3-RESPONSE 2 s, N3-REQUESTS 3, echo every 60 s; 65,536 requests in flight, and as many remembered
    /// requests of peers as come in 12 s at 20,000 a second; 4,096 peers.
    pub fn new(restart_counter: Recovery, secret: u64) -> Self {
        Self {
            restart_counter,
            secret,
            t3_response: Duration::from_secs(2),
            n3_requests: 3,
            echo_interval: Duration::from_secs(60),
            max_outstanding: 65_536,
            max_remembered: 1 << 18,
            max_remembered_octets: 64 << 20,
            max_peers: 4096,
        }
    }

    /// How long a request is remembered: as long as its sender may repeat it.
    fn remember_for(&self) -> Duration {
        self.t3_response * u32::from(self.n3_requests.max(1)) * 2
    }
}

/// Identifies a request or command that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

/// Identifies a request or command that was received, for its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// Source of the request and destination of the response.
    pub peer: SocketAddr,
    /// Its sequence number.
    pub sequence: u32,
    /// Its type.
    pub message_type: MessageType,
    /// Its priority, which the response has, too.
    pub priority: Option<u8>,
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
    /// N3-REQUESTS transmissions without an answer; one, if the peer answers no Echo Requests either.
    #[error("peer does not answer")]
    TimedOut,
    /// The peer refused, in a response with missing or broken IEs: only the cause is used.
    #[error("refused with cause {0:?}")]
    Refused(Cause),
    /// The answer could not be decoded.
    #[error("malformed response: {0}")]
    Malformed(DecodeError),
    /// The peer uses another version.
    #[error("peer does not support GTP version 2")]
    Version,
}

/// Why a request or response was not accepted for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too many requests in flight, or one with this command's sequence number.
    #[error("too many requests in flight")]
    Busy,
    /// The message is a response where a request is wanted, or the other way round, or the command cannot trigger it.
    #[error("{0:?} is not of the wanted kind")]
    Direction(MessageType),
    /// The message does not fit in a datagram.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// An event for the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // events are consumed as they are polled
pub enum Event {
    /// A request or command to answer with [`Endpoint::respond`] or [`Endpoint::reject`]; a command also with
    /// [`Endpoint::send_triggered`].
    Request {
        /// Its identification.
        id: RequestId,
        /// This side's TEID; 0 when the peer does not know one.
        teid: u32,
        /// The message.
        message: Message,
        /// The command of this side that triggered this request, and that is thereby answered.
        command: Option<Handle>,
        /// It came behind a response in the same datagram. So its own response may go behind the Modify Bearer
        /// Request ([`Endpoint::send_request_with_response`]).
        piggybacked: bool,
    },
    /// A request that cannot be decoded; the owner knows the peer's TEID and answers with [`Endpoint::reject`].
    /// (Create Session Requests are rejected here: they carry the peer's TEID.)
    MalformedRequest {
        /// Its identification.
        id: RequestId,
        /// This side's TEID.
        teid: u32,
        /// The error.
        error: DecodeError,
        /// The command of this side that triggered this request, and that is thereby answered.
        command: Option<Handle>,
    },
    /// The response to a request of this side, or the failure indication of a command.
    Response {
        /// The request.
        handle: Handle,
        /// Who answered.
        peer: SocketAddr,
        /// This side's TEID; 0 when the peer does not know one.
        teid: u32,
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
    /// A message that is not answered: Downlink Data Notification Failure Indication.
    Indication {
        /// Its sender.
        peer: SocketAddr,
        /// This side's TEID.
        teid: u32,
        /// The message.
        message: Message,
    },
    /// The restart counter of a peer grew, so it has lost its sessions. The peer itself has confirmed it, in an Echo
    /// Response. Comes before the event of a message behind it.
    PeerRestarted {
        /// The peer.
        peer: IpAddr,
        /// Its new restart counter.
        restart_counter: Recovery,
        /// When a message of the peer first showed a newer counter. Sessions set up since then belong to the
        /// restarted peer and live on.
        since: Instant,
    },
    /// A peer no longer answers Echo Requests. Comes once; Echo Requests continue, unless another peer needs its place, or
    /// the peer has never answered one and nothing comes from it for a long time.
    PeerFailed {
        /// The peer.
        peer: IpAddr,
    },
    /// A peer that had failed answers again.
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
    /// Datagrams sent, repetitions included.
    pub sent: u64,
    /// Messages refused as malformed.
    pub malformed: u64,
    /// Messages of unknown types.
    pub unknown: u64,
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
    /// Failed peers that are no longer watched, because others took their places.
    pub peers_replaced: u64,
    /// Peers that are not watched, because there are too many.
    pub peers_refused: u64,
}

/// What a response must have to belong to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    peer: IpAddr,
    sequence: u32,
    /// A command of this side and a request that a command of the peer triggered may have the same number.
    command: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Echo,
    Owner(Handle),
}

struct Outstanding {
    purpose: Purpose,
    message_type: MessageType,
    to: SocketAddr,
    /// The response may come from another port: a piggybacked request has not been sent to the port of requests, and
    /// its response may come behind a request.
    any_port: bool,
    payload: Arc<[u8]>,
    deadline: Instant,
    sent: u8,
}

/// The endpoint; see the module for its polling contract.
pub struct Endpoint {
    config: Config,
    sequence: Sequence,
    next_handle: u64,
    outstanding: HashMap<Key, Outstanding>,
    /// Deadlines in order (T3-RESPONSE is the same for all); outdated entries are skipped.
    deadlines: VecDeque<(Instant, Key)>,
    memory: Memory,
    peers: Peers,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    scratch: Vec<u8>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint without peers.
    pub fn new(config: Config) -> Self {
        Self {
            sequence: Sequence::new(config.secret),
            next_handle: 0,
            outstanding: HashMap::default(),
            deadlines: VecDeque::new(),
            memory: Memory::new(&config),
            peers: Peers::new(&config),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            scratch: Vec::with_capacity(2048),
            counters: Counters::default(),
            config,
        }
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Watches a peer: sends it Echo Requests from now on, and learns its restart counter from the answers. Known
    /// peers keep their counter. `false` when [`Config::max_peers`] are watched already and none of them has failed.
    pub fn add_peer(&mut self, now: Instant, address: SocketAddr) -> bool {
        let added = self.peers.add(now, address);
        match added {
            Added::Watched => {}
            Added::InsteadOf(_) => self.counters.peers_replaced += 1,
            Added::Refused => self.counters.peers_refused += 1,
        }
        self.send_echoes(now);
        added != Added::Refused
    }

    /// Number of watched peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Sets a watched peer's confirmed restart counter, for example from a file; no restart is reported for it.
    pub fn set_restart_counter(&mut self, peer: IpAddr, counter: Recovery) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.restart_counter = Some(counter);
        }
    }

    /// Asks a watched peer for its restart counter now, unless an Echo Request to it is unanswered, or it was asked
    /// within T3-RESPONSE.
    pub fn ask(&mut self, now: Instant, peer: IpAddr) {
        self.peers.ask(now, peer);
        self.send_echoes(now);
    }

    /// Stops watching a peer.
    pub fn remove_peer(&mut self, peer: IpAddr) {
        self.peers.remove(peer);
    }

    /// The restart counter last confirmed by a watched peer.
    pub fn peer_restart_counter(&self, peer: IpAddr) -> Option<Recovery> {
        self.peers.get(peer)?.restart_counter
    }

    /// Sends a request or command to `to`, port [`PORT`] as a rule. `teid` is the peer's TEID, 0 when not known.
    pub fn send_request(
        &mut self,
        now: Instant,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<Handle, SendError> {
        let (handle, message) = (Handle(self.next_handle), message.into());
        self.transmit_request(now, to, teid, &message, Purpose::Owner(handle), None)?;
        self.next_handle += 1;
        Ok(handle)
    }

    /// Sends the request that a received command asks for (§7.6): it has the command's sequence number. The command is
    /// thereby answered. `to` is the peer's address for requests.
    pub fn send_triggered(
        &mut self,
        now: Instant,
        command: RequestId,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<Handle, SendError> {
        let (handle, message) = (Handle(self.next_handle), message.into());
        let message_type = message.message_type();
        if !message_type.is_triggered_by(command.message_type) {
            return Err(SendError::Direction(message_type));
        }
        let key = Key { peer: to.ip(), sequence: command.sequence, command: false };
        if self.outstanding.len() >= self.config.max_outstanding || self.outstanding.contains_key(&key) {
            return Err(SendError::Busy);
        }
        self.scratch.clear();
        message.encode(teid, command.sequence, &mut self.scratch)?;
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        self.memory.answer(now, command, None);
        self.push_transmit(to, payload.clone());
        self.await_response(now, key, Purpose::Owner(handle), message_type, to, false, payload);
        self.next_handle += 1;
        Ok(handle)
    }

    /// Sends a request with the response to a received request behind it, in one datagram (§5.5.1): a Modify Bearer
    /// Request with a Create Bearer Response. Both go to `to`.
    pub fn send_request_with_response(
        &mut self,
        now: Instant,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
        (id, response_teid, response): (RequestId, u32, Message),
    ) -> Result<Handle, SendError> {
        let (handle, message) = (Handle(self.next_handle), message.into());
        if response.message_type().kind() != Kind::Response {
            return Err(SendError::Direction(response.message_type()));
        }
        let behind = Some((id, response_teid, &response));
        self.transmit_request(now, to, teid, &message, Purpose::Owner(handle), behind)?;
        self.next_handle += 1;
        Ok(handle)
    }

    /// Sends a message that is not answered: Downlink Data Notification Failure Indication.
    pub fn send_indication(
        &mut self,
        to: SocketAddr,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<(), SendError> {
        let message = message.into();
        if message.message_type().kind() != Kind::Indication {
            return Err(SendError::Direction(message.message_type()));
        }
        let sequence = self.sequence.draw();
        self.scratch.clear();
        message.encode(teid, sequence, &mut self.scratch)?;
        let payload = self.scratch.as_slice().into();
        self.push_transmit(to, payload);
        Ok(())
    }

    /// Answers a request; `teid` is the peer's TEID. A second answer to the same request is not sent.
    pub fn respond(
        &mut self,
        now: Instant,
        id: RequestId,
        teid: u32,
        message: impl Into<Message>,
    ) -> Result<(), SendError> {
        let message = message.into();
        if message.message_type().kind() != Kind::Response {
            return Err(SendError::Direction(message.message_type()));
        }
        if self.memory.is_answered(now, id) {
            return Ok(());
        }
        self.scratch.clear();
        message.encode_with(response_header(id, teid, &message, false), &mut self.scratch)?;
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        self.memory.answer(now, id, Some(payload.clone()));
        self.push_transmit(id.peer, payload);
        Ok(())
    }

    /// Answers a request, with a request of this side behind the response in one datagram (§5.5.1): a Create Session
    /// Response with a Create Bearer Request. Both have the peer's TEID. If the request must be repeated, it is sent alone
    /// to [`PORT`] of the peer. `None` when the request has been answered before: then nothing is sent.
    pub fn respond_with_request(
        &mut self,
        now: Instant,
        id: RequestId,
        teid: u32,
        message: impl Into<Message>,
        request: impl Into<Message>,
    ) -> Result<Option<Handle>, SendError> {
        let (message, request) = (message.into(), request.into());
        let request_type = request.message_type();
        for (found, wanted) in [(message.message_type(), Kind::Response), (request_type, Kind::Request)] {
            if found.kind() != wanted {
                return Err(SendError::Direction(found));
            }
        }
        if self.memory.is_answered(now, id) {
            return Ok(None);
        }
        let key = self.draw(id.peer.ip(), false)?;
        let mut alone = Vec::new();
        request.encode(teid, key.sequence, &mut alone)?;
        self.scratch.clear();
        message.encode_with(response_header(id, teid, &message, true), &mut self.scratch)?;
        self.scratch.extend_from_slice(&alone);
        check_length(&self.scratch)?;
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        self.memory.answer(now, id, Some(payload.clone()));
        self.push_transmit(id.peer, payload);
        let (handle, to) = (Handle(self.next_handle), SocketAddr::new(id.peer.ip(), PORT));
        self.await_response(now, key, Purpose::Owner(handle), request_type, to, true, alone.into());
        self.next_handle += 1;
        Ok(Some(handle))
    }

    /// Rejects a request with a cause; `teid` is the peer's TEID, or 0 if unknown, as it is with Context Not Found.
    pub fn reject(
        &mut self,
        now: Instant,
        id: RequestId,
        teid: u32,
        cause: impl Into<Cause>,
    ) -> Result<(), SendError> {
        let Some(response) = id.message_type.rejection(cause.into()) else {
            return Err(SendError::Direction(id.message_type));
        };
        self.respond(now, id, teid, response)
    }

    /// Processes a received datagram: a message, and perhaps a piggybacked one.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) {
        let mut rest = datagram;
        for piggybacked in [false, true] {
            self.counters.received += 1;
            match Header::decode(rest) {
                Ok((header, ies, after)) => {
                    self.handle_message(now, from, header, ies, piggybacked);
                    if !header.piggybacking || after.is_empty() {
                        return;
                    }
                    rest = after;
                }
                Err(DecodeError::Version(version)) => {
                    self.counters.version += 1;
                    return self.answer_version(from, version, rest);
                }
                Err(DecodeError::UnknownMessage(_)) => {
                    self.counters.unknown += 1;
                    return;
                }
                Err(_) => {
                    self.counters.malformed += 1;
                    return;
                }
            }
        }
        // The piggybacked message announces another one.
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
        request.into_iter().chain(self.peers.next_echo()).min()
    }

    /// Repeats and gives up requests, sends Echo Requests, forgets old requests. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.memory.forget_old(now);
        while let Some(&(deadline, key)) = self.deadlines.front() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_front();
            let Some(request) = self.outstanding.get_mut(&key).filter(|request| request.deadline == deadline)
            else {
                continue;
            };
            if request.sent < self.config.n3_requests {
                request.sent += 1;
                request.deadline = now + self.config.t3_response;
                let (deadline, to, payload) = (request.deadline, request.to, request.payload.clone());
                self.deadlines.push_back((deadline, key));
                self.counters.retransmissions += 1;
                self.push_transmit(to, payload);
            } else {
                self.give_up(now, key);
            }
        }
        self.send_echoes(now);
    }
}

/// Sending.
impl Endpoint {
    fn give_up(&mut self, now: Instant, key: Key) {
        let Some(request) = self.outstanding.remove(&key) else { return };
        self.counters.timeouts += 1;
        match request.purpose {
            Purpose::Owner(handle) => self.events.push_back(Event::Failed {
                handle,
                peer: request.to,
                message_type: request.message_type,
                failure: Failure::TimedOut,
            }),
            Purpose::Echo => {
                if self.peers.unanswered(now, request.to) {
                    self.events.push_back(Event::PeerFailed { peer: key.peer });
                }
            }
        }
    }

    fn send_echoes(&mut self, now: Instant) {
        let recovery = self.config.restart_counter;
        while let Some(address) = self.peers.due(now) {
            let message = EchoRequest { recovery, ..Default::default() }.into();
            // If too many requests are in flight, the next Echo Request is sent an interval later.
            if self.transmit_request(now, address, 0, &message, Purpose::Echo, None).is_ok()
                && let Some(peer) = self.peers.get_mut(address.ip())
            {
                peer.asked += 1;
            }
        }
    }

    /// A sequence number that no request in flight to this peer has.
    fn draw(&mut self, peer: IpAddr, command: bool) -> Result<Key, SendError> {
        if self.outstanding.len() >= self.config.max_outstanding.min(sequence::USABLE) {
            return Err(SendError::Busy);
        }
        loop {
            let bit = if command { COMMAND } else { 0 };
            let key = Key { peer, sequence: self.sequence.draw() | bit, command };
            if !self.outstanding.contains_key(&key) {
                return Ok(key);
            }
        }
    }

    fn transmit_request(
        &mut self,
        now: Instant,
        to: SocketAddr,
        teid: u32,
        message: &Message,
        purpose: Purpose,
        behind: Option<(RequestId, u32, &Message)>,
    ) -> Result<(), SendError> {
        let message_type = message.message_type();
        if !message_type.is_request() {
            return Err(SendError::Direction(message_type));
        }
        let key = self.draw(to.ip(), message_type.kind() == Kind::Command)?;
        self.scratch.clear();
        let (sequence, piggybacking) = (key.sequence, behind.is_some());
        let header = Header { message_type, teid: Some(teid), sequence, piggybacking, priority: None };
        message.encode_with(header, &mut self.scratch)?;
        if let Some((id, teid, response)) = behind {
            let mut alone = Vec::new();
            response.encode_with(response_header(id, teid, response, false), &mut alone)?;
            self.scratch.extend_from_slice(&alone);
            check_length(&self.scratch)?;
            // A repeated request of the peer is answered with the response alone.
            self.memory.answer(now, id, Some(alone.into()));
        }
        let payload: Arc<[u8]> = self.scratch.as_slice().into();
        self.push_transmit(to, payload.clone());
        self.await_response(now, key, purpose, message_type, to, false, payload);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // the fields of one `Outstanding`
    fn await_response(
        &mut self,
        now: Instant,
        key: Key,
        purpose: Purpose,
        message_type: MessageType,
        to: SocketAddr,
        any_port: bool,
        payload: Arc<[u8]>,
    ) {
        let deadline = now + self.config.t3_response;
        // A peer that answers no Echo Request is tried once: who waits for it holds up others, and an answer shows that it is back.
        let is_last = purpose != Purpose::Echo && self.peers.is_silent(to.ip());
        let sent = if is_last { self.config.n3_requests } else { 1 };
        let request = Outstanding { purpose, message_type, to, any_port, payload, deadline, sent };
        self.outstanding.insert(key, request);
        self.deadlines.push_back((deadline, key));
    }

    fn push_transmit(&mut self, to: SocketAddr, payload: Arc<[u8]>) {
        self.counters.sent += 1;
        self.transmits.push_back(Transmit { to, payload });
    }

    /// Sends a Version Not Supported Indication of version 2, with the sequence number of the message (§7.7.2).
    fn answer_version(&mut self, from: SocketAddr, version: u8, datagram: &[u8]) {
        // Such an indication is never answered: two such endpoints would never stop. Version 1 has the same type.
        let Some(&[flags, code, _, _]) = datagram.first_chunk::<4>() else { return };
        if version == 0 || code == MessageType::VersionNotSupportedIndication as u8 {
            return;
        }
        // Version 1 has 16 bits behind a TEID that is always there. A later version is taken to be like version 2.
        let at = if version == 1 || flags & 0x08 != 0 { 8 } else { 4 };
        let Some(&[a, b, c]) = datagram.get(at..).and_then(|rest| rest.first_chunk::<3>()) else { return };
        let sequence = if version == 1 { [0, 0, a, b] } else { [0, a, b, c] };
        self.scratch.clear();
        let message = Message::from(VersionNotSupportedIndication {});
        if message.encode(0, u32::from_be_bytes(sequence), &mut self.scratch).is_ok() {
            let payload = self.scratch.as_slice().into();
            self.push_transmit(from, payload);
        }
    }
}

/// Receiving.
impl Endpoint {
    fn handle_message(
        &mut self,
        now: Instant,
        from: SocketAddr,
        header: Header,
        ies: &[u8],
        piggybacked: bool,
    ) {
        // An Echo Response that was asked for is believed; from any other message a restart is only suspected.
        if self.peers.heard(now, from.ip())
            && header.message_type != MessageType::EchoResponse
            && let Some(recovery) = peek_recovery(ies)
            && self.peers.doubt(now, from.ip(), recovery)
        {
            self.ask(now, from.ip());
        }
        match header.message_type.kind() {
            Kind::Request | Kind::Command => self.handle_request(now, from, header, ies, piggybacked),
            Kind::Response => self.handle_response(now, from, header, ies),
            Kind::Indication => match Message::decode_ies(header.message_type, ies) {
                Ok(message) => {
                    let teid = header.teid.unwrap_or(0);
                    self.events.push_back(Event::Indication { peer: from, teid, message });
                }
                Err(_) => self.counters.malformed += 1,
            },
        }
    }

    fn handle_request(
        &mut self,
        now: Instant,
        from: SocketAddr,
        header: Header,
        ies: &[u8],
        piggybacked: bool,
    ) {
        let Header { message_type, sequence, priority, .. } = header;
        let id = RequestId { peer: from, sequence, message_type, priority };
        let teid = header.teid.unwrap_or(0);
        if message_type == MessageType::EchoRequest {
            return self.answer_echo(id, ies);
        }
        match self.memory.see(now, id) {
            Seen::New => {}
            Seen::Before(answer) => {
                self.counters.duplicates += 1;
                if let Some(payload) = answer {
                    self.push_transmit(from, payload);
                }
                return;
            }
        }
        let command = self.answered_command(from, header);
        match Message::decode_ies(message_type, ies) {
            Ok(message) => {
                self.events.push_back(Event::Request { id, teid, message, command, piggybacked });
            }
            Err(error) => {
                self.counters.malformed += 1;
                let cause = error.cause().unwrap_or(CauseValue::INVALID_MESSAGE_FORMAT.into());
                if message_type == MessageType::CreateSessionRequest {
                    // It carries the peer's TEID, so nothing of the owner's is needed to refuse it.
                    let peer_teid = peek_sender_f_teid(ies).map_or(0, |f_teid| f_teid.teid);
                    let _ = self.reject(now, id, peer_teid, cause);
                } else {
                    self.events.push_back(Event::MalformedRequest { id, teid, error, command });
                }
            }
        }
    }

    /// Echo Requests are answered each time: the answer is the same.
    fn answer_echo(&mut self, id: RequestId, ies: &[u8]) {
        if Message::decode_ies(id.message_type, ies).is_err() {
            self.counters.malformed += 1;
            return;
        }
        let recovery = self.config.restart_counter;
        let response = Message::from(EchoResponse { recovery, ..Default::default() });
        self.scratch.clear();
        let header = response_header(id, 0, &response, false);
        if response.encode_with(header, &mut self.scratch).is_ok() {
            let payload = self.scratch.as_slice().into();
            self.push_transmit(id.peer, payload);
        }
    }

    /// Ends the command of this side that a request of the peer answers.
    fn answered_command(&mut self, from: SocketAddr, header: Header) -> Option<Handle> {
        let key = Key { peer: from.ip(), sequence: header.sequence, command: true };
        let command = self.outstanding.get(&key)?.message_type;
        if !header.message_type.is_triggered_by(command) {
            return None;
        }
        match self.outstanding.remove(&key)?.purpose {
            Purpose::Owner(handle) => Some(handle),
            Purpose::Echo => None,
        }
    }

    /// Takes the request that a response is for out of those in flight.
    fn answered_request(&mut self, from: SocketAddr, header: Header) -> Option<(Key, Outstanding)> {
        let version = header.message_type == MessageType::VersionNotSupportedIndication;
        [false, true].into_iter().find_map(|command| {
            let key = Key { peer: from.ip(), sequence: header.sequence, command };
            let request = self.outstanding.get(&key)?;
            let matches = (request.to == from || request.any_port)
                && (version || header.message_type.is_response_to(request.message_type));
            Some((key, matches.then(|| self.outstanding.remove(&key)).flatten()?))
        })
    }

    fn handle_response(&mut self, now: Instant, from: SocketAddr, header: Header, ies: &[u8]) {
        let Some((key, request)) = self.answered_request(from, header) else {
            self.counters.unmatched_responses += 1;
            return;
        };
        let decoded = Message::decode_ies(header.message_type, ies);
        let refusal = if decoded.is_err() { peek_rejection(ies) } else { None };
        if decoded.is_err() && refusal.is_none() {
            self.counters.malformed += 1;
        }
        if self.peers.answered(now, from, request.purpose == Purpose::Echo) {
            self.events.push_back(Event::PeerRecovered { peer: key.peer });
        }
        if let Ok(Message::EchoResponse(echo)) = &decoded
            && let Some(since) = self.peers.confirm(now, from, echo.recovery)
        {
            let (peer, restart_counter) = (key.peer, echo.recovery);
            self.memory.forget_peer(peer, since);
            self.events.push_back(Event::PeerRestarted { peer, restart_counter, since });
        }
        let Purpose::Owner(handle) = request.purpose else { return };
        let failure = match decoded {
            Ok(Message::VersionNotSupportedIndication(_)) => Failure::Version,
            Ok(message) => {
                let teid = header.teid.unwrap_or(0);
                return self.events.push_back(Event::Response { handle, peer: from, teid, message });
            }
            Err(error) => refusal.map_or(Failure::Malformed(error), Failure::Refused),
        };
        let message_type = request.message_type;
        self.events.push_back(Event::Failed { handle, peer: from, message_type, failure });
    }
}

fn response_header(id: RequestId, teid: u32, message: &Message, piggybacking: bool) -> Header {
    let (message_type, priority) = (message.message_type(), id.priority);
    Header { message_type, teid: Some(teid), sequence: id.sequence, piggybacking, priority }
}

/// Two messages must fit in one datagram together.
fn check_length(datagram: &[u8]) -> Result<(), EncodeError> {
    if datagram.len() > crate::codec::MAX_MESSAGE {
        Err(EncodeError::TooLong(datagram.len()))
    } else {
        Ok(())
    }
}
