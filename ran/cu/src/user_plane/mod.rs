//! The user plane of a CU (CU-UP): one worker's relay between N3 and F1-U, as a graph of the forwarding engine.
//!
//! ```text
//!  N3 ──► receive ──► downlink: QFI ► bearer, SDAP, PDCP, NR-U ──► transmit ──► F1-U
//!            │            └─► queue ──► downlink            while the DU wants no more
//!            ├──────► uplink: PDCP, SDAP, QFI ──► transmit ──► N3
//!            │            └─► reorder ──► uplink            until older PDUs have come
//!            └──────► signalling ──► transmit               Echo, Error Indication, delivery status
//! ```
//! There may be several interfaces to DUs, such as a memif for each, and one interface may be both N3 and F1-U: a TEID belongs to one end of one tunnel ([`tunnels`]). The ends
//! are set up through a [`UserPlane`], which gives out TEIDs and has the worker execute commands; the worker tells about peers by
//! [`Event`]s.
//!
//! The straight way rewrites a packet in place, and neither allocates nor locks. The state of a bearer is its worker's alone.

mod bearer;
mod control;
mod downlink;
mod flow;
mod queue;
mod signalling;
mod stats;
mod tunnels;
mod uplink;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use packet::gtpu::{self, extension_type, message_type};
use path::calls::Calls;
use path::{Graph, Outputs, Ports, Stopwatch};
use pktio::poll::Waker;
use pktio::{Peers, Pool, Sent, Slab, VECTOR, Vector};
use telemetry::DropReason;
use telemetry::worker::Traffic;

use bearer::{Bearer, End, FLOWS, MOST_BEARERS};
pub use control::{BearerConfig, BearerId, Event, Interface, Refused, Role, SessionId, Tunnel, UserPlane};
use signalling::{Events, ReplyLimit};
pub use stats::{BearerStats, NODES, Stats, WAYS, Way};
use tunnels::Table;

/// Longest packet of a vector's own memory: the largest MTU of a link, with headers.
const PACKET: usize = 9216;
/// Frames of the home pool: the worker's vector, those that wait in ports, and what the relay itself sends.
const CHUNKS: usize = 12 * VECTOR;
/// Memory for packets that wait for DUs, of all bearers.
const WAITING_OCTETS: usize = 256 << 20;

/// The relay of a worker.
pub struct Relay {
    interfaces: Arc<[Interface]>,
    home: Arc<dyn Pool>,
    calls: Calls<Relay>,
    peers: Arc<Peers>,
    stats: Arc<Stats>,
    ends: Table<End>,
    outputs: Outputs,
    /// Packets that the relay sends besides those of the vector, and where.
    extra: Vector,
    extra_outputs: Outputs,
    replies: ReplyLimit,
    events: Events,
    /// The far ends of our tunnels, by interface, address and TEID, and how many tunnels lead there.
    far_ends: HashMap<(u8, IpAddr, u32), u32>,
    /// Echo Requests without answer: sequence numbers by interface and address.
    echoes: HashMap<(u8, IpAddr), u16>,
    /// When to look after bearers: times and our TEIDs on F1-U.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Bearers whose DU may want packets that wait: our TEIDs on F1-U.
    wanted: Vec<u32>,
    /// Memory of packets that wait.
    waiting_octets: usize,
    stopwatch: Stopwatch,
}

/// A G-PDU.
#[derive(Clone, Copy)]
struct Gpdu {
    teid: u32,
    /// Second octet of the PDU Session Container: QFI and RQI; 0 without one.
    flow: u8,
    /// Length of the headers.
    header: usize,
    /// Length of the whole.
    total: usize,
}

/// Flags and type of a G-PDU without options, and of one with extension headers only.
const PLAIN: u16 = u16::from_be_bytes([0x30, message_type::G_PDU]);
const EXTENDED: u16 = u16::from_be_bytes([0x34, message_type::G_PDU]);
/// The octets that a usual downlink PDU Session Container has in common with others: it is the only extension header, is one word
/// long, is of type 0, and has no optional fields. Sequence number and N-PDU number may be anything.
const CONTAINER_MASK: u64 = 0x0000_00FF_FFFF_80FF;
const CONTAINER: u64 = (extension_type::PDU_SESSION_CONTAINER as u64) << 32 | 1 << 24;

/// Reads a G-PDU in its usual form: without extension header, as a DU sends it, or with a PDU Session Container, as a UPF does.
#[inline(always)]
fn usual(bytes: &[u8]) -> Option<Gpdu> {
    let head = u64::from_be_bytes(*bytes.first_chunk()?);
    let (flags_and_type, teid) = ((head >> 48) as u16, head as u32);
    let total = gtpu::HEADER_LEN + usize::from((head >> 32) as u16);
    if total > bytes.len() {
        return None;
    }
    if flags_and_type == EXTENDED {
        let options = u64::from_be_bytes(*bytes[..total].get(8..16)?.first_chunk()?);
        let flow = (options >> 8) as u8;
        return (options & CONTAINER_MASK == CONTAINER).then_some(Gpdu { teid, flow, header: 16, total });
    }
    (flags_and_type == PLAIN).then_some(Gpdu { teid, flow: 0, header: gtpu::HEADER_LEN, total })
}

impl Relay {
    fn new(
        interfaces: Arc<[Interface]>,
        calls: Calls<Relay>,
        peers: Arc<Peers>,
        stats: Arc<Stats>,
        events: Events,
    ) -> Relay {
        let home: Arc<dyn Pool> = Slab::new(CHUNKS, PACKET);
        let count = interfaces.len();
        Relay {
            outputs: Outputs::new(count),
            extra_outputs: Outputs::new(count),
            extra: Vector::of(&home),
            replies: ReplyLimit::default(),
            far_ends: HashMap::new(),
            echoes: HashMap::new(),
            ends: Table::default(),
            due: BinaryHeap::new(),
            wanted: Vec::new(),
            waiting_octets: 0,
            stopwatch: Stopwatch::default(),
            interfaces,
            home,
            calls,
            peers,
            stats,
            events,
        }
    }

    /// Relays one packet of the vector; the reason if it is dropped.
    #[inline(always)]
    fn relay(
        &mut self,
        input: usize,
        vector: &mut Vector,
        at: usize,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), DropReason> {
        let mut frame = vector.frame_mut(at);
        let gpdu = match usual(frame.packet()) {
            Some(gpdu) => gpdu,
            None => match self.unusual(input, frame.packet(), *frame.peer, now_ns)? {
                Some(gpdu) => gpdu,
                None => return Ok(()),
            },
        };
        frame.truncate(gpdu.total);
        frame.trim_front(gpdu.header);
        match self.ends.get_mut(gpdu.teid) {
            Some(End::Session(session)) if input == usize::from(session.interface) => {
                let bearer = session.bearer_of(gpdu.flow & 0x3F);
                self.downlink(bearer, gpdu.flow, vector, at, now_ns)
            }
            Some(End::Bearer(bearer)) if input == usize::from(bearer.interface) => {
                self.uplink(gpdu.teid, vector, at, now_ns, ports)
            }
            Some(_) => Err(DropReason::DirectionMismatch),
            None => {
                let peer = *frame.peer;
                self.unknown_tunnel(input, gpdu.teid, peer, now_ns);
                Err(DropReason::UnknownTeid)
            }
        }
    }

    /// The bearer with our TEID on F1-U.
    #[inline(always)]
    fn bearer(&mut self, teid: u32) -> Option<&mut Bearer> {
        match self.ends.get_mut(teid) {
            Some(End::Bearer(bearer)) => Some(bearer),
            _ => None,
        }
    }

    /// Sends what has been put into the lists of the vector, so that later packets do not overtake it.
    fn send_outputs(&mut self, vector: &mut Vector, ports: &mut Ports) {
        vector.set_peers(&self.peers);
        let (stats, interfaces) = (&self.stats, &self.interfaces);
        self.outputs.transmit(vector, ports, |number, sent| count_sent(stats, interfaces, number, sent));
        self.outputs.clear();
    }

    /// Sends the packets of `extra` that have got an interface, and forgets the others.
    fn send_extra(&mut self, ports: &mut Ports) {
        self.extra.set_peers(&self.peers);
        send_all(&mut self.extra, &mut self.extra_outputs, ports, (&self.stats, &self.interfaces));
    }

    /// Sees to it that a bearer is looked after when something of it has waited too long.
    fn plan(&mut self, teid: u32) {
        let Some(bearer) = self.bearer(teid) else { return };
        let Some(expiry_ns) = bearer.next_expiry_ns() else { return };
        if bearer.due_ns.is_none_or(|due_ns| expiry_ns < due_ns) {
            bearer.due_ns = Some(expiry_ns);
            self.due.push(Reverse((expiry_ns, teid)));
        }
    }

    /// Looks after the bearers of which something has waited too long.
    fn look_after(&mut self, now_ns: u64, ports: &mut Ports) {
        while let Some(Reverse((due_ns, teid))) =
            self.due.peek().copied().filter(|Reverse(due)| due.0 <= now_ns)
        {
            self.due.pop();
            let Some(bearer) = self.bearer(teid) else { continue };
            if bearer.due_ns != Some(due_ns) {
                // It was planned for an earlier time as well.
                continue;
            }
            bearer.due_ns = None;
            let queue = &mut bearer.down.queue;
            let before = queue.octets();
            let discarded = queue.expire(now_ns);
            let freed = before - queue.octets();
            bearer.rx.expire(now_ns);
            self.waiting_octets -= freed;
            self.stats.drops.count_n(DropReason::DiscardTimer, discarded);
            self.release_reordered(teid, ports);
            self.probe(teid, now_ns, ports);
            self.plan(teid);
        }
    }

    fn count_losses(&self, ports: &mut Ports) {
        let drops = &self.stats.drops;
        ports.iter_mut().for_each(|port| port.losses(&mut |reason, count| drops.count_n(reason, count)));
    }

    fn count_received(&self, input: usize, vector: &Vector) {
        let octets = vector.frames().iter().map(|frame| frame.len()).sum();
        self.stats.nodes[Way::Receive as usize].count(vector.len());
        traffic(&self.stats, &self.interfaces, input, true).count_n(vector.len(), octets);
    }
}

/// Sends the packets of a vector that have got an interface, and forgets all.
fn send_all(
    vector: &mut Vector,
    outputs: &mut Outputs,
    ports: &mut Ports,
    (stats, interfaces): (&Stats, &[Interface]),
) {
    if !vector.is_empty() {
        outputs.transmit(vector, ports, |number, sent| count_sent(stats, interfaces, number, sent));
        outputs.clear();
        vector.clear();
    }
}

/// The counters of what an interface has received or sent. Those of one with both roles are those of F1-U.
fn traffic<'s>(stats: &'s Stats, interfaces: &[Interface], number: usize, received: bool) -> &'s Traffic {
    let (directions, from_ue) = match interfaces.get(number).map(|interface| interface.role) {
        Some(Role::N3) => (&stats.n3.0, !received),
        _ => (&stats.f1u.0, received),
    };
    if from_ue { &directions.uplink } else { &directions.downlink }
}

fn count_sent(stats: &Stats, interfaces: &[Interface], number: usize, sent: Sent) {
    stats.nodes[Way::Transmit as usize].count(sent.packets);
    traffic(stats, interfaces, number, false).count_n(sent.packets, sent.bytes);
    stats.copied.add(sent.copied as u64);
    if sent.full + sent.too_big + sent.unresolved + sent.errors > 0 {
        stats.drops.count_n(DropReason::TxQueueFull, sent.full);
        stats.drops.count_n(DropReason::TooBig, sent.too_big);
        stats.drops.count_n(DropReason::NeighbourUnresolved, sent.unresolved);
        stats.drops.count_n(DropReason::TxError, sent.errors);
    }
}

impl Graph for Relay {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        // Commands first: a tunnel that has been set up takes packets from then on.
        self.turn(now_ns, ports);
        self.count_received(input, vector);
        self.stopwatch.begin();
        for at in 0..vector.len() {
            if let Err(reason) = self.relay(input, vector, at, now_ns, ports) {
                self.stats.drops.count(reason);
            }
        }
        let role = self.interfaces.get(input).map(|interface| interface.role);
        let node = if role == Some(Role::N3) { Way::Downlink } else { Way::Uplink };
        self.stopwatch.lap(&self.stats.nodes[node as usize], vector.len());
        self.send_outputs(vector, ports);
        self.stopwatch.end();
        // Replies to peers.
        self.send_extra(ports);
        while let Some(teid) = self.wanted.pop() {
            self.send_waiting(teid, ports);
        }
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        self.count_losses(ports);
        for call in self.calls.take() {
            call(self, now_ns, ports);
        }
        if self.due.peek().is_some_and(|Reverse(due)| due.0 <= now_ns) {
            self.look_after(now_ns, ports);
        }
        self.due.peek().map(|Reverse(due)| due.0)
    }

    fn recover(&mut self, lost: usize) {
        self.stats.drops.count_n(DropReason::WorkerFailed, lost);
        self.stopwatch.end();
        self.outputs.clear();
        self.extra_outputs.clear();
        self.extra.clear();
    }

    fn wake_with(&mut self, waker: Waker) {
        self.calls.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.interfaces.get(number).map_or("", |interface| &interface.name)
    }
}
