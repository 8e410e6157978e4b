//! The host pipeline: parse → look up → execute → send, each stage over a whole batch.
//!
//! A `Meta` holds the progress of a packet. A stage processes only packets that are still `State::Live`, and
//! ends others by giving them a drop reason or taking them out (`State::Consumed`: signalling, buffered). At
//! the end every received packet has been sent, consumed, or counted under one drop reason.
//!
//! Each worker has its own pipeline. It reads sessions through [`Tables`], never locks, and allocates nothing
//! for a packet that it forwards; replies to GTP-U signalling have their own buffers. Memory is prefetched a
//! few packets ahead of its use ([`look_up`](self)), because a core drops prefetches beyond about twenty.

mod bridged;
pub mod ethernet;
mod execute;
mod forward;
mod fragments;
pub mod graph;
pub mod guard;
mod held;
mod inject;
pub mod limit;
pub mod links;
mod look_up;
pub mod mtu;
mod packets;
mod parse;
pub mod redirect;
mod signalling;
pub mod translate;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use classifier::Key;
use pktio::poll::Waker;
use pktio::{Frame, FrameMut, Pool, Sent, Slab, VECTOR, Vector};
use telemetry::DropReason;
use telemetry::worker::Traffic;
use tokio::sync::mpsc;

use crate::interfaces::Interfaces;
use crate::plan::Peer;
use crate::state::Writers;
use crate::stats::WorkerStats;
use crate::tables::{Command, Mailbox, Tables};
use bridged::Bridging;
use fragments::Fragments;
use graph::Way;
use guard::{Closed, Guard};
use held::Held;
use links::Links;
use packets::{Meta, NO_QFI, Packets, State, Verdict, Verdicts};
use rcu::{Guard as Inside, Reader};

pub use path::{Graph, Ports, Worker};
use path::{Outputs, Stopwatch};

/// Packets per batch.
pub const BATCH: usize = VECTOR;
/// Octets per packet buffer: the largest N6 MTU with a GTP-U header.
pub const PACKET: usize = 9216;
/// Replies to signalling per batch.
const REPLIES: usize = 64;
/// Packets sent in addition to a batch: copies, fragments, answers to data networks.
const EXTRA: usize = 256;
/// Chunks of memory: those of every vector of a worker and its pipeline, full.
const CHUNKS: usize = EXTRA + 12 * VECTOR;
/// Most events that are kept while the control task has no room.
const UNSENT: usize = 65_536;
/// When these are tried again while no packets come.
const EVENT_RETRY_NS: u64 = 1_000_000;

/// An event from the packets for the control task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first packet of a session was buffered or dropped, and its rules ask to tell the CP function.
    DownlinkData {
        /// The session.
        seid: u64,
        /// The PDR that matched.
        pdr: u16,
    },
    /// A usage reporting rule reached a mark. Sent once per mark.
    Usage {
        /// The session.
        seid: u64,
        /// The rule.
        urr: u32,
    },
    /// A new address behind the UE of an Ethernet session, whose rules ask to tell the CP function.
    Address {
        /// The session.
        seid: u64,
        /// The address.
        mac: crate::bridge::Mac,
        /// Customer tag of its frame.
        c_tag: Option<u16>,
        /// Service tag of its frame.
        s_tag: Option<u16>,
    },
    /// A peer answered an Echo Request.
    EchoResponse {
        /// The peer.
        peer: Peer,
        /// Sequence number of the request.
        sequence: u16,
    },
    /// A peer does not know the tunnel to which this UPF sends.
    ErrorIndication {
        /// The peer; the indication came from its own address.
        peer: Peer,
        /// TEID of the tunnel at the peer.
        teid: u32,
    },
}

/// What the stages need to know of the interface from which a batch came.
#[derive(Debug, Clone, Copy)]
struct Input {
    /// Its number.
    interface: u8,
    /// Whether its packets are in tunnels.
    has_tunnels: bool,
    /// Number of its network instance, in whose tables packets are looked up.
    instance: u8,
    /// Its GTP-U address, for Error Indications; the unspecified address if it has no tunnels.
    local: SocketAddr,
    /// MTU to which TCP's MSS is lowered when a packet enters a tunnel.
    clamp: usize,
}

impl Input {
    /// Before the first batch.
    const NONE: Input = Input {
        interface: 0,
        has_tunnels: false,
        instance: 0,
        local: SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
        clamp: usize::MAX,
    };
}

/// Source of the packets that are being processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// From a port.
    Port,
    /// The buffer of a session.
    Frame,
    /// This pipeline, which made or changed them.
    Injected,
    /// This pipeline, as a router that answers a sender.
    Router,
}

impl Source {
    /// Whether the packets were made or changed here. They never cause further ones.
    fn is_own(self) -> bool {
        matches!(self, Source::Injected | Source::Router)
    }
}

/// Packets that are sent in addition to a batch, and their destinations.
struct Extra {
    /// Position `n` is packet `n % VECTOR` of vector `n / VECTOR`.
    vectors: Vec<Vector>,
    /// Positions by number of the interface through which they leave.
    to: Vec<Vec<u16>>,
}

/// The pipeline of one worker.
pub struct Pipeline {
    worker: usize,
    tables: Arc<Tables>,
    stats: Arc<[WorkerStats]>,
    interfaces: Arc<Interfaces>,
    /// The UPF's GTP-U addresses.
    locals: Box<[IpAddr]>,
    /// The interface from which the batch came.
    input: Input,
    events: mpsc::Sender<Event>,
    guard: Arc<Guard>,
    /// The closed destinations as of this batch.
    closed: Arc<Closed>,
    /// Read access to the tables; taken while a batch is processed.
    reader: Option<Reader>,
    mailbox: Arc<Mailbox>,
    /// The packets of the batch.
    packets: Packets,
    recent: look_up::Recent,
    held: Held,
    fragments: Fragments,
    /// Positions of the fragments in the batch.
    fragmented: Vec<u16>,
    /// Whether the keys of fragments in frames are set already: see [`Pipeline::frame_key`].
    keys_are_known: bool,
    /// Whether other workers read the same inputs, and therefore write the same cells.
    writers: Writers,
    /// Events for which the control task had no room.
    unsent: Vec<Event>,
    links: Links,
    source: Source,
    extra: Extra,
    /// Packets that go through the stages after the present batch: see [`inject`].
    injected: Vec<inject::Injected>,
    /// Frame in which answers and fragments are written.
    scratch: Box<[u8]>,
    /// Memory of all packets that do not lie in a backend's memory.
    home: Arc<dyn Pool>,
    /// Positions of packets in the batch that may be frames of Ethernet sessions.
    frames: Vec<u16>,
    /// Exists only with Ethernet data networks.
    bridging: Option<Box<Bridging>>,
    stopwatch: Stopwatch,
    /// The packets of the batch that are sent.
    outputs: Outputs,
    replies: Vector,
    reply_positions: Vec<u16>,
    /// Until this time, packets of unknown tunnels get no Error Indication.
    quiet_until_ns: u64,
}

impl Graph for Pipeline {
    /// The memory for packets that are received by copying, and for those that this pipeline makes.
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    /// Runs a batch that the interface with number `input` has received through all stages, and sends the result.
    /// `now_ns` is the time by `net::time::now_ns`.
    fn process(&mut self, input: usize, batch: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.turn(now_ns, ports);
        let received = batch.frames().iter().map(Frame::len).sum();
        self.stats[self.worker].interfaces[input].uplink.count_n(batch.len(), received);
        self.count_way(Way::Receive, batch.len());
        self.enter(input as u8);
        self.begin(batch.len());
        if self.bridging.is_some() && self.tables.bridge(input).is_some() {
            self.run_bridged(Some(input), batch, now_ns, ports);
            return self.run_early_fragments(now_ns, ports);
        }
        self.stopwatch.begin();
        if self.input.has_tunnels {
            self.parse_tunnelled(batch, now_ns);
        } else {
            self.parse_native(batch, now_ns);
        }
        self.lap(Way::Parse);
        self.run(batch, now_ns, ports);
        self.run_early_fragments(now_ns, ports);
        self.run_injected(now_ns, ports);
    }

    /// Carries out the N4 task's commands: releases or discards buffered packets. A worker calls it once per
    /// round, and when an event can be tried again or fragments have waited too long.
    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        self.count_losses(ports);
        if let Some(closed) = self.guard.closed(&self.closed) {
            self.closed = closed;
        }
        if !self.unsent.is_empty() {
            self.send_events();
        }
        if !self.fragments.is_empty() {
            self.expire_fragments(now_ns);
        }
        if self.mailbox.is_waiting() {
            self.obey(now_ns, ports);
        }
        let retry_ns = (!self.unsent.is_empty()).then_some(now_ns + EVENT_RETRY_NS);
        retry_ns.into_iter().chain(self.fragments.next_expiry_ns()).min()
    }

    /// Prepares the pipeline for the next batch after a batch of `lost` packets ended by a panic: replaces the
    /// parts that were taken out for that batch. Buffered packets stay.
    fn recover(&mut self, lost: usize) {
        self.stats[self.worker].drops.count_n(DropReason::WorkerFailed, lost);
        self.stopwatch.end();
        self.begin(0);
        self.frames.clear();
        self.fragmented.clear();
        self.fragments = Fragments::default();
        self.keys_are_known = false;
        self.injected.clear();
        self.source = Source::Port;
        self.scratch = vec![0; PACKET].into();
        self.bridging = self.tables.has_bridges().then(|| Box::new(Bridging::new(&self.home)));
        if self.reader.is_none() {
            self.reader = Some(self.tables.domain().reader());
        }
    }

    fn wake_with(&mut self, waker: Waker) {
        self.mailbox.wake_with(waker);
    }

    /// Name of an interface, for messages.
    fn interface_name(&self, number: usize) -> &str {
        self.interfaces.get(number).map_or("", |interface| interface.name())
    }
}

impl Pipeline {
    /// The pipeline of worker number `worker` of `stats.len()`, between the interfaces of `tables`.
    pub fn new(
        worker: usize,
        tables: Arc<Tables>,
        stats: Arc<[WorkerStats]>,
        events: mpsc::Sender<Event>,
        guard: Arc<Guard>,
    ) -> Pipeline {
        let home: Arc<dyn Pool> = Slab::new(CHUNKS, PACKET);
        let used = tables.interfaces().len();
        Pipeline {
            worker,
            stats,
            input: Input::NONE,
            events,
            closed: guard.closed(&Closed::default()).unwrap_or_default(),
            guard,
            reader: Some(tables.domain().reader()),
            mailbox: tables.mailbox(),
            held: Held::new(Arc::clone(tables.held_octets())),
            fragments: Fragments::default(),
            fragmented: Vec::new(),
            keys_are_known: false,
            frames: Vec::new(),
            bridging: tables.has_bridges().then(|| Box::new(Bridging::new(&home))),
            extra: Extra { vectors: Vec::new(), to: vec![Vec::new(); used] },
            locals: tables.interfaces().gtpu_addresses().map(|own| own.ip()).collect(),
            interfaces: Arc::clone(tables.interfaces()),
            tables,
            packets: Packets::new(),
            recent: look_up::Recent::new(),
            writers: Writers::One,
            unsent: Vec::new(),
            links: Links::unlimited(),
            source: Source::Port,
            injected: Vec::new(),
            scratch: vec![0; PACKET].into(),
            stopwatch: Stopwatch::default(),
            outputs: Outputs::new(used),
            replies: Vector::of(&home),
            home,
            reply_positions: (0..REPLIES as u16).collect(),
            quiet_until_ns: 0,
        }
    }

    /// Sends no Error Indications until `time_ns`, as sessions are being restored.
    pub fn keep_quiet_until(&mut self, time_ns: u64) {
        self.quiet_until_ns = time_ns;
    }

    /// Sets how long packets may be, and the router addresses with which longer ones are answered; without this
    /// call there are no limits.
    pub fn set_links(&mut self, links: Links) {
        self.links = links;
    }

    /// Tells the pipeline that other workers read the same inputs, so that counters are shared with them.
    pub fn share_inputs(&mut self) {
        self.writers = Writers::Many;
    }

    /// Times every vector instead of one in 64 ([`graph::json`]). Costs a clock reading per stage and vector.
    pub fn time_stages(&mut self) {
        self.stopwatch.time_all();
    }

    /// Notes from which interface the next packets came.
    fn enter(&mut self, number: u8) {
        let Some(interface) = self.interfaces.get(usize::from(number)) else { return };
        self.input = Input {
            interface: number,
            has_tunnels: interface.role().has_tunnels(),
            instance: interface.instance,
            local: interface.local(),
            clamp: self.links.of(number).clamp as usize,
        };
    }

    /// Counts packets that the ports discarded while receiving: frames with another destination, packets whose
    /// next hop never answered.
    fn count_losses(&self, ports: &mut Ports) {
        let drops = &self.stats[self.worker].drops;
        let mut count = |reason, packets| drops.count_n(reason, packets);
        ports.iter_mut().for_each(|port| port.losses(&mut count));
    }

    /// Runs buffered packets through the stages again, in order and before newer ones.
    fn release(&mut self, seid: u64, now_ns: u64, ports: &mut Ports) {
        let mut queue = self.held.take(seid);
        let mut batch = Vector::of(&self.home);
        // All packets of a session are of one kind.
        let frames = queue.front().is_some_and(|packet| packet.frame);
        while let Some(interface) = queue.front().map(|packet| packet.interface) {
            self.enter(interface);
            batch.clear();
            self.begin(0);
            // Keys of later fragments, which have no ports.
            let mut known = Vec::new();
            while let Some(packet) = queue.front().filter(|packet| packet.interface == interface) {
                if !batch.push(&packet.octets, self.input.local) {
                    break;
                }
                let meta = Meta { native: packet.native, qfi: packet.qfi, teid: packet.teid, ..Meta::NEW };
                self.packets.push(meta, Key::unknown());
                known.extend(packet.key.as_deref().map(|key| (batch.len() - 1, *key)));
                queue.pop_front();
            }
            if batch.is_empty() {
                // Cannot happen: the packet came from a buffer, so it fits into one.
                queue.pop_front();
                continue;
            }
            self.source = Source::Frame;
            if !frames {
                self.parse_held(&mut batch);
            }
            for (at, key) in known {
                self.packets.keys[at] = key;
            }
            if frames {
                self.keys_are_known = true;
                self.run_bridged(None, &mut batch, now_ns, ports);
                self.keys_are_known = false;
            } else {
                self.run(&mut batch, now_ns, ports);
            }
            self.source = Source::Port;
            self.run_injected(now_ns, ports);
        }
    }

    fn begin(&mut self, packets: usize) {
        self.packets.begin(packets);
        self.replies.clear();
        self.outputs.clear();
        self.extra.clear();
    }

    /// Runs the stages after parsing. The read guard is held until the packets are sent, so that after a grace
    /// period they have left.
    fn run(&mut self, batch: &mut Vector, now_ns: u64, ports: &mut Ports) {
        let tables = Arc::clone(&self.tables);
        let Some(mut reader) = self.reader.take() else { return };
        let inside = reader.enter();
        let mut verdicts = [Verdict::NONE; BATCH];
        self.look_up(&tables, &inside, batch, &mut verdicts, now_ns);
        if !self.frames.is_empty() {
            self.look_up_frames(&tables, &inside, batch, &mut verdicts, now_ns);
        }
        self.lap(Way::LookUp);
        self.execute(&tables, &inside, batch, &verdicts, now_ns);
        self.lap(Way::Execute);
        self.count_drops();
        self.transmit(batch, ports);
        self.lap(Way::Transmit);
        self.stopwatch.end();
        self.deliver(&tables, &inside, batch, now_ns, ports);
        drop(inside);
        self.reader = Some(reader);
    }

    /// A stage has handled the batch.
    #[inline]
    fn lap(&mut self, stage: Way) {
        self.stopwatch.lap(&self.stats[self.worker].nodes[stage as usize], self.packets.len());
    }

    /// Counts packets that take a rare way.
    #[inline]
    fn count_way(&self, way: Way, packets: usize) {
        self.stats[self.worker].nodes[way as usize].count(packets);
    }

    /// Sends an event to the control task. It is kept when the queue is full, as marks are reported only once.
    fn send_event(&mut self, event: Event) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.events.try_send(event)
            && self.unsent.len() < UNSENT
        {
            self.unsent.push(event);
        }
    }

    #[cold]
    fn obey(&mut self, now_ns: u64, ports: &mut Ports) {
        for command in self.mailbox.take() {
            match command {
                Command::Release(seid) => self.release(seid, now_ns, ports),
                Command::Discard(seid) => {
                    let dropped = self.held.discard(seid);
                    self.stats[self.worker].drops.count_n(DropReason::FarDrop, dropped);
                }
            }
        }
    }

    fn send_events(&mut self) {
        let mut sent = 0;
        for event in &self.unsent {
            if self.events.try_send(event.clone()).is_err() {
                break;
            }
            sent += 1;
        }
        self.unsent.drain(..sent);
    }

    fn count_drops(&self) {
        let drops = &self.stats[self.worker].drops;
        for meta in &self.packets.metas[..self.packets.len()] {
            if let State::Dropped(reason) = meta.state {
                drops.count(reason);
            }
        }
    }

    fn transmit(&mut self, batch: &mut Vector, ports: &mut Ports) {
        let stats = &self.stats[self.worker];
        batch.set_peers(self.tables.peers());
        self.outputs.transmit(batch, ports, |number, sent| {
            if let Some(interface) = stats.interfaces.get(number) {
                count_sent(stats, &interface.downlink, sent);
            }
        });
        if self.extra.len() > 0 {
            self.extra.transmit(self.tables.peers(), stats, ports);
        }
        if !self.replies.is_empty() {
            let selected = &self.reply_positions[..self.replies.len()];
            let input = usize::from(self.input.interface);
            let sent = ports[input].transmit(&mut self.replies, selected);
            count_sent(stats, &stats.interfaces[input].downlink, sent);
        }
    }
}

impl Extra {
    /// Adds a packet; returns it with its position, or `None` when there is no room.
    fn push(&mut self, packet: &[u8], home: &Arc<dyn Pool>, peer: SocketAddr) -> Option<(u16, FrameMut<'_>)> {
        let position = self.len();
        let number = position / VECTOR;
        if position >= EXTRA {
            return None;
        }
        if self.vectors.len() == number {
            self.vectors.push(Vector::of(home));
        }
        let vector = &mut self.vectors[number];
        if !vector.push(packet, peer) {
            return None;
        }
        vector.last_mut().map(|frame| (position as u16, frame))
    }

    fn len(&self) -> usize {
        self.vectors.iter().map(Vector::len).sum()
    }

    /// Number of packets for which there is still room.
    fn room(&self) -> usize {
        EXTRA - self.len()
    }

    fn clear(&mut self) {
        if self.vectors.first().is_some_and(|first| !first.is_empty()) {
            self.vectors.iter_mut().for_each(Vector::clear);
            self.to.iter_mut().for_each(Vec::clear);
        }
    }

    fn transmit(&mut self, peers: &Arc<pktio::Peers>, stats: &WorkerStats, ports: &mut Ports) {
        self.vectors.iter_mut().for_each(|vector| vector.set_peers(peers));
        for ((positions, port), traffic) in self.to.iter_mut().zip(ports).zip(&stats.interfaces) {
            // Positions are in order.
            for part in positions.chunk_by_mut(|a, b| usize::from(*a) / VECTOR == usize::from(*b) / VECTOR) {
                let number = part.first().map_or(0, |first| usize::from(*first) / VECTOR);
                let Some(vector) = self.vectors.get_mut(number) else { continue };
                part.iter_mut().for_each(|position| *position %= VECTOR as u16);
                count_sent(stats, &traffic.downlink, port.transmit(vector, part));
            }
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
