//! The user-space endpoint: one socket, one SCTP port, many associations.
//!
//! A task receives packets and looks up their association by our address and the peer's address and
//! port. An INIT to a listener is answered without storing anything (see [`super::cookie`]); a COOKIE
//! ECHO with one of our cookies creates an association; all other packets are out of the blue (RFC 9260
//! §8.4). The protocol machine checks verification tags (§8.5).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dcsctp::api::{DcSctpSocket, Options, Socket, SocketEvent};
use tokio::sync::{Notify, mpsc};

use super::association::Shared;
use super::cookie::{BadCookie, CookieKey, Path};
use super::packet::{self, BadPacket, Packet};
use super::wire::{MAX_PACKET, Wire};
use super::{Rejected, SctpConfig};
use crate::time::{self, Duration, Instant};

/// Associations set up but not yet accepted by the application. Beyond, a COOKIE ECHO is ignored until
/// it is retransmitted.
const BACKLOG: usize = 64;

/// Pause after the socket reports an error, so that a broken one does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// One socket and its associations.
pub(super) struct Endpoint {
    wire: Wire,
    /// Our SCTP port.
    port: u16,
    config: SctpConfig,
    key: CookieKey,
    /// The time at which the clock of cookies is zero.
    born: Instant,
    associations: Mutex<HashMap<Path, Weak<Shared>>>,
    /// The queue for new associations; `None` if not listening.
    backlog: Option<mpsc::Sender<Arc<Shared>>>,
    listening: AtomicBool,
    stop: Notify,
    rejected: Counters,
}

/// Rejected packets, by reason.
#[derive(Default)]
struct Counters {
    malformed: AtomicU64,
    checksum: AtomicU64,
    out_of_the_blue: AtomicU64,
    forged_cookie: AtomicU64,
    stale_cookie: AtomicU64,
    table_full: AtomicU64,
    backlog_full: AtomicU64,
}

impl Endpoint {
    /// Opens an endpoint on `wire` and starts receiving. With `listen`, the receiver gets new
    /// associations.
    pub fn open(
        wire: Wire,
        port: u16,
        config: SctpConfig,
        listen: bool,
    ) -> std::io::Result<(Arc<Endpoint>, mpsc::Receiver<Arc<Shared>>)> {
        let (backlog, accepted) = mpsc::channel(BACKLOG);
        let endpoint = Arc::new(Endpoint {
            wire,
            port,
            config,
            key: CookieKey::random()?,
            born: time::now(),
            associations: Mutex::default(),
            backlog: listen.then_some(backlog),
            listening: AtomicBool::new(listen),
            stop: Notify::new(),
            rejected: Counters::default(),
        });
        tokio::spawn(receive(Arc::clone(&endpoint)));
        Ok((endpoint, accepted))
    }

    /// Adds an association that we initiate, and starts it.
    pub fn add(self: &Arc<Endpoint>, path: Path, udp_port: u16) -> Arc<Shared> {
        let shared = Shared::new(Arc::clone(self), path, udp_port);
        self.table().insert(path, Arc::downgrade(&shared));
        shared.start();
        shared
    }

    /// Removes a closed association from the table.
    pub fn remove(&self, path: &Path) {
        self.table().remove(path);
        self.stop_if_idle();
    }

    /// Accepts no more associations.
    pub fn close(&self) {
        self.listening.store(false, Ordering::Release);
        self.stop_if_idle();
    }

    /// Sends a packet of the protocol machine; the cookie of an INIT ACK is sealed first.
    pub fn transmit(&self, path: &Path, to: SocketAddr, made: Vec<u8>) {
        let sealed = packet::seal_init_ack(&made, |cookie| self.key.seal(path, self.now_ms(), cookie));
        let result = self.wire.send(path.local, to, sealed.as_deref().unwrap_or(&made));
        if let Err(error) = result {
            // The packet is lost, as it could be anywhere; retransmission or the failure of the path
            // follow.
            tracing::debug!(%error, %to, "SCTP packet not sent");
        }
    }

    /// The protocol machine's parameters for a peer on `remote_port`.
    pub fn options(&self, remote_port: u16) -> Options {
        let config = &self.config;
        Options {
            local_port: self.port,
            remote_port,
            announced_maximum_incoming_streams: config.streams,
            announced_maximum_outgoing_streams: config.streams,
            mtu: self.wire.mtu(),
            max_message_size: config.max_message_size,
            max_receiver_window_buffer_size: (2 * config.max_message_size).max(256 * 1024),
            max_send_buffer_size: config.send_buffer,
            per_stream_send_queue_limit: config.send_buffer,
            total_buffered_amount_low_threshold: config.send_buffer / 2,
            rto_initial: config.rto_initial,
            rto_min: config.rto_min,
            rto_max: config.rto_max,
            t1_init_timeout: config.rto_initial,
            t1_cookie_timeout: config.rto_initial,
            t2_shutdown_timeout: config.rto_initial,
            max_timer_backoff_duration: Some(config.rto_max),
            heartbeat_interval: config.heartbeat_interval,
            max_retransmissions: Some(config.max_retransmissions),
            max_init_retransmits: Some(config.max_init_retransmissions),
            // N2 uses neither; without them a peer cannot negotiate features that it could misuse.
            enable_partial_reliability: false,
            enable_message_interleaving: false,
            ..Options::default()
        }
    }

    /// The packets rejected so far.
    pub fn rejected(&self) -> Rejected {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Rejected {
            malformed: read(&self.rejected.malformed),
            checksum: read(&self.rejected.checksum),
            out_of_the_blue: read(&self.rejected.out_of_the_blue),
            forged_cookie: read(&self.rejected.forged_cookie),
            stale_cookie: read(&self.rejected.stale_cookie),
            table_full: read(&self.rejected.table_full),
            backlog_full: read(&self.rejected.backlog_full),
        }
    }

    /// Our SCTP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The UDP port in use, if encapsulated.
    pub fn udp_port(&self) -> Option<u16> {
        self.wire.udp_port()
    }

    /// Number of associations in the table.
    #[cfg(test)]
    pub fn associations(&self) -> usize {
        self.table().len()
    }

    /// Handles one packet.
    fn input(self: &Arc<Endpoint>, from: SocketAddr, local: IpAddr, bytes: &[u8]) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(BadPacket::Malformed) => return count(&self.rejected.malformed),
            Err(BadPacket::Checksum) => return count(&self.rejected.checksum),
        };
        if packet.destination_port() != self.port || packet.source_port() == 0 || !unicast(from.ip()) {
            return count(&self.rejected.malformed);
        }
        let path = Path { local, peer: SocketAddr::new(from.ip(), packet.source_port()) };
        let known = self.table().get(&path).and_then(Weak::upgrade);
        let Some(sealed) = packet.cookie() else {
            return match known {
                Some(association) => association.input(&packet, from.port()),
                None => self.out_of_the_blue(&path, from, &packet),
            };
        };
        match self.key.open(&path, self.now_ms(), sealed) {
            Ok(cookie) => {
                let opened = packet.with_cookie(cookie);
                let Ok(packet) = Packet::parse(&opened) else { return count(&self.rejected.malformed) };
                match known {
                    Some(association) => association.input(&packet, from.port()),
                    None => self.establish(path, from, cookie, &packet),
                }
            }
            Err(BadCookie::Forged) => count(&self.rejected.forged_cookie),
            Err(BadCookie::Stale(by_ms)) => {
                count(&self.rejected.stale_cookie);
                let micros = u32::try_from(by_ms.saturating_mul(1000)).unwrap_or(u32::MAX);
                self.reply(
                    &path,
                    from,
                    packet::stale_cookie(self.port, path.peer.port(), peer_tag(sealed), micros),
                );
            }
        }
    }

    /// Handles a COOKIE ECHO, which completes a hand-shake.
    fn establish(self: &Arc<Endpoint>, path: Path, from: SocketAddr, cookie: &[u8], packet: &Packet) {
        let Some(backlog) = self.backlog.as_ref().filter(|_| self.listening.load(Ordering::Acquire)) else {
            return self.out_of_the_blue(&path, from, packet);
        };
        if self.table().len() >= self.config.max_associations {
            count(&self.rejected.table_full);
            let cause = Some(packet::CAUSE_OUT_OF_RESOURCE);
            let abort = packet::abort(self.port, path.peer.port(), peer_tag(cookie), false, cause);
            return self.reply(&path, from, abort);
        }
        let slot = match backlog.try_reserve() {
            Ok(slot) => slot,
            Err(mpsc::error::TrySendError::Full(())) => return count(&self.rejected.backlog_full),
            Err(mpsc::error::TrySendError::Closed(())) => return self.out_of_the_blue(&path, from, packet),
        };
        let association = Shared::new(Arc::clone(self), path, from.port());
        // Added to the table first, because the peer's answer may arrive before this function ends.
        self.table().insert(path, Arc::downgrade(&association));
        association.input(packet, from.port());
        if association.connected() {
            association.start();
            slot.send(association);
        } else {
            // The verification tag was not the one in the cookie.
            count(&self.rejected.forged_cookie);
            self.table().remove(&path);
        }
    }

    /// A packet of no association (RFC 9260 §8.4).
    fn out_of_the_blue(&self, path: &Path, from: SocketAddr, packet: &Packet) {
        let Some(first) = packet.first() else { return count(&self.rejected.malformed) };
        let peer_port = path.peer.port();
        if first.kind == packet::INIT {
            let alone = packet.chunks().count() == 1 && packet.verification_tag() == 0;
            let Some(tag) = packet.initiate_tag().filter(|tag| alone && *tag != 0) else {
                return count(&self.rejected.malformed);
            };
            if self.listening.load(Ordering::Acquire) {
                return self.answer_init(path, from, packet);
            }
            count(&self.rejected.out_of_the_blue);
            return self.reply(path, from, packet::abort(self.port, peer_port, tag, false, None));
        }
        count(&self.rejected.out_of_the_blue);
        let silent = packet.chunks().any(|chunk| match chunk.kind {
            packet::ABORT | packet::SHUTDOWN_COMPLETE | packet::COOKIE_ACK => true,
            packet::ERROR => chunk.causes().any(|cause| cause == packet::CAUSE_STALE_COOKIE),
            _ => false,
        });
        if silent {
            return;
        }
        let tag = packet.verification_tag();
        let reply = if first.kind == packet::SHUTDOWN_ACK {
            packet::shutdown_complete(self.port, peer_port, tag)
        } else {
            packet::abort(self.port, peer_port, tag, true, None)
        };
        self.reply(path, from, reply);
    }

    /// Answers an INIT with a temporary protocol machine: its state is in the cookie.
    fn answer_init(&self, path: &Path, from: SocketAddr, packet: &Packet) {
        let mut machine = Socket::new("", &self.options(path.peer.port()));
        machine.handle_input(packet.bytes());
        while let Some(event) = machine.poll_event() {
            match event {
                SocketEvent::SendPacket(made) => self.transmit(path, from, made),
                _ => count(&self.rejected.malformed),
            }
        }
    }

    fn reply(&self, path: &Path, from: SocketAddr, packet: Vec<u8>) {
        self.transmit(path, from, packet);
    }

    fn now_ms(&self) -> u64 {
        (time::now() - self.born).as_millis() as u64
    }

    fn stop_if_idle(&self) {
        if !self.listening.load(Ordering::Acquire) && self.table().is_empty() {
            self.stop.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Path, Weak<Shared>>> {
        // The table is consistent between any two statements, even after a panic.
        self.associations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives until the listener is closed and the last association has ended.
async fn receive(endpoint: Arc<Endpoint>) {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let arrival = tokio::select! {
            () = endpoint.stop.notified() => return,
            arrival = endpoint.wire.receive(&mut buffer) => arrival,
        };
        match arrival {
            Ok(arrival) => endpoint.input(arrival.from, arrival.local, &buffer[arrival.start..arrival.end]),
            Err(error) => {
                // UDP sockets report ICMP errors here. They concern one peer, whose heartbeats will
                // fail.
                tracing::debug!(%error, "SCTP socket");
                time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// The peer's verification tag in the protocol machine's cookie, after two words of magic. From a
/// cookie of another layout the result is a tag that no peer has.
fn peer_tag(cookie: &[u8]) -> u32 {
    cookie.get(8..12).map_or(0, |tag| u32::from_be_bytes([tag[0], tag[1], tag[2], tag[3]]))
}

/// Whether an answer may be sent to this address.
fn unicast(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_multicast() || address.is_unspecified() || broadcast)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
