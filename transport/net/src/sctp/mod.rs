//! SCTP (RFC 9260), the transport of N2: message boundaries, streams, payload protocol identifiers
//! (PPID).
//!
//! One API with three implementations, chosen by [`SctpMode`]:
//! - **kernel**: the kernel's own SCTP sockets;
//! - **raw**: user-space SCTP on raw IP protocol 132, byte-compatible with kernel peers and real gNBs; needs
//!   CAP_NET_RAW;
//! - **udp**: user-space SCTP in UDP (RFC 6951), for hosts that grant no privileges.
//!
//! [`SctpMode::Auto`] uses the first that works, in this order, and logs the choice once.
//!
//! The user-space protocol machine is the crate `dcsctp`, which does no I/O; one socket per
//! association. Our own code around it: `endpoint` (demultiplexing, listening, out-of-the-blue
//! packets), `association` (one association: its lock, timers, queues), `cookie` (stateless,
//! authenticated association set-up), `packet` (the header and chunk views for these), `wire` (raw and
//! UDP sockets), and `user` (opening them). `kernel` uses the kernel's sockets.
//!
//! An association has one address per end.

mod association;
mod cookie;
mod crc32c;
mod endpoint;
mod kernel;
mod packet;
#[cfg(test)]
mod tests;
mod user;
mod wire;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Once};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::capability;
use crate::time::Duration;

/// Entry point for fuzzing: everything the demultiplexer reads from a packet, whose checksum is
/// corrected first.
#[doc(hidden)]
pub fn fuzz_packet(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let checksum = if bytes.len() >= packet::HEADER { crc32c::packet_checksum(&bytes) } else { 0 };
    if let Some(field) = bytes.get_mut(8..12) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
    let Ok(packet) = packet::Packet::parse(&bytes) else { return };
    for chunk in packet.chunks() {
        let _ = (chunk.reflected(), chunk.causes().count());
    }
    let _ = (packet.first().is_some(), packet.initiate_tag());
    let _ = packet.with_shutdown_acknowledged();
    if let Some(cookie) = packet.cookie() {
        let _ = packet.with_cookie(cookie);
    }
}

/// PPID of NGAP (TS 38.412 §7).
pub const PPID_NGAP: u32 = 60;
/// Port on which NGAP is served (TS 38.412 §7).
pub const NGAP_PORT: u16 = 38412;
/// Port of UDP-encapsulated SCTP (RFC 6951 §5.1).
pub const UDP_ENCAPSULATION_PORT: u16 = 9899;

/// Which implementation to use. Written in the configuration as `auto`, `kernel`, `raw`, `udp` or
/// `udp:<port>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SctpMode {
    /// Kernel, else raw, else UDP.
    #[default]
    Auto,
    /// The kernel's SCTP sockets.
    Kernel,
    /// User space over raw IP protocol 132.
    Raw,
    /// User space over UDP.
    Udp {
        /// UDP port of a listener, to which clients send.
        port: u16,
    },
}

impl SctpMode {
    /// The UDP port that SCTP may use in this mode, for captures and firewalls.
    pub fn udp_port(self) -> Option<u16> {
        match self {
            SctpMode::Udp { port } => Some(port),
            SctpMode::Auto => Some(UDP_ENCAPSULATION_PORT),
            SctpMode::Kernel | SctpMode::Raw => None,
        }
    }
}

/// The text is not an SCTP mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no SCTP mode: expected auto, kernel, raw, udp or udp:<port>")]
pub struct UnknownMode {
    /// What was given.
    pub text: String,
}

impl fmt::Display for SctpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SctpMode::Auto => f.write_str("auto"),
            SctpMode::Kernel => f.write_str("kernel"),
            SctpMode::Raw => f.write_str("raw"),
            SctpMode::Udp { port: UDP_ENCAPSULATION_PORT } => f.write_str("udp"),
            SctpMode::Udp { port } => write!(f, "udp:{port}"),
        }
    }
}

impl FromStr for SctpMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<SctpMode, UnknownMode> {
        match text {
            "auto" => Ok(SctpMode::Auto),
            "kernel" => Ok(SctpMode::Kernel),
            "raw" => Ok(SctpMode::Raw),
            "udp" => Ok(SctpMode::Udp { port: UDP_ENCAPSULATION_PORT }),
            _ => match text.strip_prefix("udp:").and_then(|port| port.parse().ok()) {
                Some(port) if port != 0 => Ok(SctpMode::Udp { port }),
                _ => Err(UnknownMode { text: text.to_owned() }),
            },
        }
    }
}

impl TryFrom<String> for SctpMode {
    type Error = UnknownMode;

    fn try_from(text: String) -> Result<SctpMode, UnknownMode> {
        text.parse()
    }
}

impl From<SctpMode> for String {
    fn from(mode: SctpMode) -> String {
        mode.to_string()
    }
}

/// Parameters of an endpoint. The defaults suit N2 in a data centre: a dead peer is noticed in about 15 s.
#[derive(Clone, Debug)]
pub struct SctpConfig {
    /// The implementation.
    pub mode: SctpMode,
    /// Streams offered in each direction; the peer may accept fewer.
    pub streams: u16,
    /// Largest message that is sent or accepted, in bytes.
    pub max_message_size: usize,
    /// Associations a listener keeps at once; further ones are refused.
    pub max_associations: usize,
    /// Time between heartbeats on an idle association.
    pub heartbeat_interval: Duration,
    /// Retransmission time-out before the first measurement; also the time limit of a heartbeat.
    pub rto_initial: Duration,
    /// Lower bound of the retransmission time-out. Must exceed the peer's acknowledgement delay
    /// (usually 200 ms).
    pub rto_min: Duration,
    /// Upper bound of the retransmission time-out.
    pub rto_max: Duration,
    /// Consecutive losses (data or heartbeat) after which the peer counts as dead.
    pub max_retransmissions: u32,
    /// Attempts to set up an association before [`ConnectError::Unreachable`].
    pub max_init_retransmissions: u32,
    /// Bytes waiting for the peer above which [`Sender::send`] waits.
    pub send_buffer: usize,
}

impl Default for SctpConfig {
    fn default() -> SctpConfig {
        SctpConfig {
            mode: SctpMode::Auto,
            streams: 16,
            max_message_size: 256 * 1024,
            max_associations: 1024,
            heartbeat_interval: Duration::from_secs(3),
            rto_initial: Duration::from_millis(500),
            rto_min: Duration::from_millis(400),
            rto_max: Duration::from_secs(3),
            max_retransmissions: 4,
            max_init_retransmissions: 4,
            send_buffer: 1024 * 1024,
        }
    }
}

/// One message, sent and received whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The stream; messages in a stream keep their order.
    pub stream: u16,
    /// Payload protocol identifier, carried unchanged.
    pub ppid: u32,
    /// The content; never empty.
    pub payload: Bytes,
}

/// An event of an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message arrived.
    Message(Message),
    /// The peer restarted the association (RFC 9260 §5.2.4.1): its state, and messages under way, are lost.
    Restarted,
    /// The association ended. Always the last event.
    Closed {
        /// Why.
        reason: CloseReason,
    },
}

/// Why an association ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Orderly, by either side.
    #[error("shut down")]
    Shutdown,
    /// The peer aborted it, with this cause.
    #[error("aborted by the peer: {0}")]
    PeerAborted(String),
    /// The peer does not answer any more.
    #[error("the peer does not answer")]
    Lost,
    /// We aborted it: the peer violated the protocol, or [`Association::abort`] was called.
    #[error("aborted: {0}")]
    Aborted(String),
}

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// This implementation does not exist here.
    #[error("SCTP mode {mode} is not available: {source}; {hint}")]
    Unavailable {
        /// The requested mode.
        mode: SctpMode,
        /// The system's error.
        source: io::Error,
        /// What the operator can do.
        hint: &'static str,
    },
    /// The address is in use, or not of this host.
    #[error("cannot use SCTP address {address}: {source}")]
    Address {
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// Why an association was not set up.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The local side could not be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No answer after [`SctpConfig::max_init_retransmissions`].
    #[error("no SCTP answer from {remote}")]
    Unreachable {
        /// The peer's address.
        remote: SocketAddr,
    },
    /// The peer refused.
    #[error("{remote} refused the SCTP association: {cause}")]
    Refused {
        /// The peer's address.
        remote: SocketAddr,
        /// The peer's cause.
        cause: String,
    },
}

/// Why a message was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The association has ended.
    #[error("the association is closed")]
    Closed,
    /// Empty, or larger than [`SctpConfig::max_message_size`].
    #[error("an SCTP message of {0} bytes cannot be sent")]
    Size(usize),
    /// The stream does not exist on this association.
    #[error("stream {0} was not negotiated")]
    Stream(u16),
    /// Only from [`Sender::try_send`]: the send buffer is full, because the peer is slower than we are.
    #[error("the send buffer is full")]
    Full,
}

/// The listener has been closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the SCTP listener is closed")]
pub struct ListenerClosed;

/// Packets that a user-space endpoint rejected, by reason. All zero with kernel sockets; the kernel has
/// its own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Truncated, with inconsistent chunk lengths, or with impossible ports, addresses or tags.
    pub malformed: u64,
    /// Wrong checksum.
    pub checksum: u64,
    /// Packets of no association (RFC 9260 §8.4).
    pub out_of_the_blue: u64,
    /// State cookies that we did not make.
    pub forged_cookie: u64,
    /// State cookies that came back too late.
    pub stale_cookie: u64,
    /// Beyond [`SctpConfig::max_associations`].
    pub table_full: u64,
    /// Associations that arrived faster than the application accepted them.
    pub backlog_full: u64,
}

/// Accepts associations on one address.
#[derive(Debug)]
pub struct Listener {
    carrier: ListenerCarrier,
}

#[derive(Debug)]
enum ListenerCarrier {
    User(user::Listener),
    Kernel(kernel::Listener),
}

impl Listener {
    /// Opens an endpoint at `address` and starts listening. Must be called in the endpoint's namespace.
    ///
    /// # Errors
    /// [`BindError`]: the mode does not exist here, or the address cannot be used.
    pub async fn bind(address: SocketAddr, config: SctpConfig) -> Result<Listener, BindError> {
        let mode = choose(config.mode);
        let carrier = match mode {
            SctpMode::Kernel => ListenerCarrier::Kernel(kernel::Listener::bind(address, &config)?),
            _ => ListenerCarrier::User(user::bind(address, mode, config)?),
        };
        Ok(Listener { carrier })
    }

    /// Waits for the next association. Cancel-safe.
    ///
    /// # Errors
    /// [`ListenerClosed`] if the endpoint was closed.
    pub async fn accept(&mut self) -> Result<Association, ListenerClosed> {
        let carrier = match &mut self.carrier {
            ListenerCarrier::User(listener) => {
                Carrier::User(listener.accepted.recv().await.ok_or(ListenerClosed)?)
            }
            ListenerCarrier::Kernel(listener) => Carrier::Kernel(Arc::new(listener.accept().await?)),
        };
        Ok(Association { carrier, ended: false })
    }

    /// The address it listens on.
    pub fn local(&self) -> SocketAddr {
        match &self.carrier {
            ListenerCarrier::User(listener) => listener.local,
            ListenerCarrier::Kernel(listener) => listener.local(),
        }
    }

    /// The mode in use; never [`SctpMode::Auto`].
    pub fn mode(&self) -> SctpMode {
        match &self.carrier {
            ListenerCarrier::User(listener) => listener.mode,
            ListenerCarrier::Kernel(_) => SctpMode::Kernel,
        }
    }

    /// The packets rejected so far.
    pub fn rejected(&self) -> Rejected {
        match &self.carrier {
            ListenerCarrier::User(listener) => listener.endpoint.rejected(),
            ListenerCarrier::Kernel(_) => Rejected::default(),
        }
    }
}

#[derive(Clone, Debug)]
enum Carrier {
    User(Arc<association::Shared>),
    Kernel(Arc<kernel::Association>),
}

/// One association: it receives, and keeps the association open.
///
/// Dropping it shuts the association down in the background; messages already sent are still delivered.
///
/// It must be read: if [`Association::recv`] is not called for long, the receive window closes, and a
/// user-space peer ends the association after the time in which it would notice a dead peer.
#[derive(Debug)]
pub struct Association {
    carrier: Carrier,
    /// [`Association::shutdown`] or [`Association::abort`] was called, so `drop` does nothing.
    ended: bool,
}

impl Association {
    /// Sets up an association from `local` (port 0: any; address unspecified: by route) to `remote`.
    /// Must be called in the association's namespace.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        local: SocketAddr,
        remote: SocketAddr,
        config: SctpConfig,
    ) -> Result<Association, ConnectError> {
        let mode = choose(config.mode);
        let carrier = match mode {
            SctpMode::Kernel => {
                Carrier::Kernel(Arc::new(kernel::Association::connect(local, remote, &config).await?))
            }
            _ => Carrier::User(user::connect(local, remote, mode, config).await?),
        };
        Ok(Association { carrier, ended: false })
    }

    /// Waits for the next event; `None` after [`Event::Closed`]. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        match &self.carrier {
            Carrier::User(shared) => shared.recv().await,
            Carrier::Kernel(association) => association.recv().await,
        }
    }

    /// A sending half; there may be any number.
    pub fn sender(&self) -> Sender {
        Sender { carrier: self.carrier.clone() }
    }

    /// Sends through [`Association::sender`].
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        self.sender().send(message).await
    }

    /// The peer's address and SCTP port.
    pub fn peer(&self) -> SocketAddr {
        match &self.carrier {
            Carrier::User(shared) => shared.path.peer,
            Carrier::Kernel(association) => association.peer(),
        }
    }

    /// Our address and SCTP port.
    pub fn local(&self) -> SocketAddr {
        match &self.carrier {
            Carrier::User(shared) => shared.local(),
            Carrier::Kernel(association) => association.local(),
        }
    }

    /// Number of streams we may send on: `0..outgoing_streams()`.
    pub fn outgoing_streams(&self) -> u16 {
        match &self.carrier {
            Carrier::User(shared) => shared.outgoing_streams(),
            Carrier::Kernel(association) => association.outgoing_streams(),
        }
    }

    /// Delivers the messages already sent, then shuts the association down. Returns why it ended.
    /// Messages that still arrive are discarded.
    pub async fn shutdown(mut self) -> CloseReason {
        self.ended = true;
        match &self.carrier {
            Carrier::User(shared) => {
                shared.abandon();
                shared.closed().await
            }
            Carrier::Kernel(association) => association.shutdown().await,
        }
    }

    /// Aborts the association; the peer is told.
    pub fn abort(mut self) {
        self.ended = true;
        match &self.carrier {
            Carrier::User(shared) => shared.abort(),
            Carrier::Kernel(association) => association.abort(),
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        if !self.ended {
            match &self.carrier {
                Carrier::User(shared) => shared.abandon(),
                Carrier::Kernel(association) => association.abandon(),
            }
        }
    }
}

/// Sends on one association. Clones share it.
#[derive(Clone, Debug)]
pub struct Sender {
    carrier: Carrier,
}

impl Sender {
    /// Queues a message, and waits while more than [`SctpConfig::send_buffer`] bytes are unsent. A
    /// return means accepted, not delivered. Cancel-safe.
    ///
    /// # Errors
    /// [`SendError`], never [`SendError::Full`].
    pub async fn send(&self, message: Message) -> Result<(), SendError> {
        match &self.carrier {
            Carrier::User(shared) => shared.send(message).await,
            Carrier::Kernel(association) => association.send(message).await,
        }
    }

    /// As [`Sender::send`], without waiting.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn try_send(&self, message: Message) -> Result<(), SendError> {
        match &self.carrier {
            Carrier::User(shared) => shared.try_send(message),
            Carrier::Kernel(association) => association.try_send(&message),
        }
    }

    /// Sends a HEARTBEAT at once (RFC 9260 §8.3) and returns whether the peer answered within `limit`.
    /// If the peer does not answer, the association itself finds out later whether it is lost.
    pub async fn heartbeat(&self, limit: Duration) -> bool {
        match &self.carrier {
            Carrier::User(shared) => shared.heartbeat(limit).await,
            Carrier::Kernel(association) => association.heartbeat(limit).await,
        }
    }

    /// The peer's address and SCTP port.
    pub fn peer(&self) -> SocketAddr {
        match &self.carrier {
            Carrier::User(shared) => shared.path.peer,
            Carrier::Kernel(association) => association.peer(),
        }
    }
}

/// Resolves [`SctpMode::Auto`], and logs the choice once.
fn choose(mode: SctpMode) -> SctpMode {
    if mode != SctpMode::Auto {
        return mode;
    }
    let chosen = if capability::kernel_sctp() {
        SctpMode::Kernel
    } else if capability::raw_sctp() {
        SctpMode::Raw
    } else {
        SctpMode::Udp { port: UDP_ENCAPSULATION_PORT }
    };
    static SAID: Once = Once::new();
    SAID.call_once(|| tracing::info!(mode = %chosen, "SCTP carrier chosen: kernel, else raw IP, else UDP"));
    chosen
}
