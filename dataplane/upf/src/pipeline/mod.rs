//! The host pipeline: parse → session → classify → qos → forward, each stage over a whole batch.
//!
//! A packet's progress is a `Meta`; a stage only looks at packets that are still `State::Live`, and ends
//! others by giving them a drop reason or taking them out (`State::Consumed`: signalling). At the end every
//! received packet has been sent, consumed, or counted under one drop reason.
//!
//! One pipeline belongs to one worker. It reads sessions through [`Tables`], never locks, and allocates nothing
//! per packet it forwards; replies to GTP-U signalling have buffers of their own.

mod classify;
pub mod ethernet;
pub(crate) mod forward;
pub mod guard;
pub mod limit;
pub mod mtu;
mod parse;
mod qos;
pub mod redirect;
mod session;
mod signalling;
pub mod translate;

use std::net::SocketAddr;
use std::sync::Arc;

use packet::flow::Flow;
use pktio::{Batch, Port, Sent};
use telemetry::DropReason;
use telemetry::worker::Traffic;
use tokio::sync::mpsc;

use crate::session::{Compiled, Meter};
use crate::stats::WorkerStats;
use crate::tables::Tables;
use guard::Guard;

/// Packets per batch: large enough to spread system calls, small enough to stay in the first-level caches.
pub const BATCH: usize = 64;
/// Octets per packet buffer: the largest N6 MTU with a GTP-U header.
pub const PACKET: usize = 9216;
/// Replies to signalling per batch.
const REPLIES: usize = 64;
/// Octets of the longest reply: an Error Indication with an IPv6 address.
const REPLY: usize = 64;

/// What the control task learns from packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A packet that its FAR says to buffer.
    Buffered {
        /// The session.
        seid: u64,
        /// The PDR that matched.
        pdr: u16,
        /// The IP packet.
        packet: Box<[u8]>,
    },
    /// A peer has answered an Echo Request.
    EchoResponse {
        /// The peer.
        peer: std::net::IpAddr,
    },
    /// A peer does not know the tunnel that we send to.
    ErrorIndication {
        /// The peer, as its message names it.
        peer: std::net::IpAddr,
        /// TEID there.
        teid: u32,
    },
}

/// The ports of a worker.
pub struct Ports {
    /// N3, N9 and N4-u.
    pub n3: Box<dyn Port>,
    /// N6, one per data network.
    pub n6: Vec<Box<dyn Port>>,
}

/// Where a batch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The GTP-U socket.
    N3,
    /// The data network with this number.
    N6(usize),
}

/// How far a packet has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Dropped(DropReason),
    Consumed,
}

/// Marks a packet that came without tunnel, instead of the tunnel's position.
const NATIVE: u16 = u16::MAX;

/// What the stages know of a packet.
#[derive(Debug, Clone, Copy)]
struct Meta {
    state: State,
    /// TEID it arrived on.
    teid: u32,
    /// QFI of its PDU Session Container.
    qfi: Option<u8>,
    /// The IP packet's fields.
    flow: Option<Flow>,
    /// Position in [`Pipeline::sessions`].
    session: u16,
    /// Position of the tunnel in the session, or [`NATIVE`].
    tunnel: u16,
    /// Position of the PDR in the session.
    pdr: u32,
}

impl Meta {
    const NEW: Meta =
        Meta { state: State::Live, teid: 0, qfi: None, flow: None, session: 0, tunnel: NATIVE, pdr: 0 };

    fn drop(&mut self, reason: DropReason) {
        self.state = State::Dropped(reason);
    }
}

/// The pipeline of one worker.
pub struct Pipeline {
    worker: usize,
    tables: Arc<Tables>,
    stats: Arc<[WorkerStats]>,
    /// Our GTP-U address, for Error Indications.
    local: SocketAddr,
    events: mpsc::Sender<Event>,
    guard: Arc<Guard>,
    metas: Vec<Meta>,
    sessions: Vec<Arc<Compiled>>,
    lookups: classify::Lookups,
    to_n3: Vec<u16>,
    to_n6: Vec<Vec<u16>>,
    replies: Batch,
    reply_positions: Vec<u16>,
    /// Meters of what packets can make us send: replies with errors, packets to the CP function.
    error_meter: Meter,
    control_meter: Meter,
}

impl Pipeline {
    /// The pipeline of worker number `worker` of `stats.len()`, between N3 and `networks` data networks.
    pub fn new(
        worker: usize,
        tables: Arc<Tables>,
        stats: Arc<[WorkerStats]>,
        local: SocketAddr,
        networks: usize,
        events: mpsc::Sender<Event>,
        guard: Arc<Guard>,
    ) -> Pipeline {
        Pipeline {
            worker,
            tables,
            stats,
            local,
            events,
            guard,
            metas: Vec::with_capacity(BATCH),
            sessions: Vec::with_capacity(BATCH),
            lookups: classify::Lookups::new(),
            to_n3: Vec::with_capacity(BATCH),
            to_n6: (0..networks).map(|_| Vec::with_capacity(BATCH)).collect(),
            replies: Batch::new(REPLIES, REPLY),
            reply_positions: (0..REPLIES as u16).collect(),
            error_meter: Meter::default(),
            control_meter: Meter::default(),
        }
    }

    /// Takes a received batch through all stages and sends what comes out. `now_ns` is any clock that only
    /// goes forward.
    pub fn process(&mut self, input: Input, batch: &mut Batch, now_ns: u64, ports: &mut Ports) {
        self.metas.clear();
        self.metas.resize(batch.len(), Meta::NEW);
        self.sessions.clear();
        self.replies.clear();
        self.to_n3.clear();
        self.to_n6.iter_mut().for_each(Vec::clear);

        let received = batch.buffers().iter().map(pktio::Buffer::len).sum();
        let stats = &self.stats[self.worker];
        match input {
            Input::N3 => {
                stats.n3.uplink.count_n(batch.len(), received);
                self.parse_n3(batch, now_ns);
                self.find_sessions_by_teid(batch, now_ns);
            }
            Input::N6(_) => {
                stats.n6.uplink.count_n(batch.len(), received);
                self.parse_n6(batch);
                self.find_sessions_by_ue();
            }
        }
        self.classify();
        self.enforce_qos(now_ns);
        self.forward(batch, now_ns);
        self.count_drops();
        self.transmit(batch, ports);
        // Sessions that were replaced meanwhile can go as soon as possible.
        self.sessions.clear();
    }

    fn count_drops(&self) {
        let drops = &self.stats[self.worker].drops;
        for meta in &self.metas {
            if let State::Dropped(reason) = meta.state {
                drops.count(reason);
            }
        }
    }

    fn transmit(&mut self, batch: &mut Batch, ports: &mut Ports) {
        let stats = &self.stats[self.worker];
        if !self.to_n3.is_empty() {
            count_sent(stats, &stats.n3.downlink, ports.n3.transmit(batch, &self.to_n3));
        }
        for (selected, port) in self.to_n6.iter().zip(&mut ports.n6) {
            if !selected.is_empty() {
                count_sent(stats, &stats.n6.downlink, port.transmit(batch, selected));
            }
        }
        if !self.replies.is_empty() {
            let selected = &self.reply_positions[..self.replies.len()];
            count_sent(stats, &stats.n3.downlink, ports.n3.transmit(&mut self.replies, selected));
        }
    }
}

fn count_sent(stats: &WorkerStats, interface: &Traffic, sent: Sent) {
    interface.count_n(sent.packets, sent.bytes);
    for (reason, count) in [
        (DropReason::TxQueueFull, sent.full),
        (DropReason::TooBig, sent.too_big),
        (DropReason::NeighbourUnresolved, sent.unresolved),
        (DropReason::TxError, sent.errors),
    ] {
        if count > 0 {
            stats.drops.count_n(reason, count);
        }
    }
}
