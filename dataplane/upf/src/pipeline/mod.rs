//! The host pipeline: parse → look up → execute → send, each stage over a whole batch.
//!
//! A [`Meta`](packets::Meta) holds the progress of a packet. A stage processes only packets that are still `State::Live`, and
//! ends others by giving them a drop reason or taking them out (`State::Consumed`: signalling, buffered). At
//! the end every received packet has been sent, consumed, or counted under one drop reason.
//!
//! Each worker has its own pipeline. It reads sessions through [`Tables`], never locks, and allocates nothing
//! for a packet that it forwards. Memory is prefetched ahead of its use: a packet's slot while it is parsed, the rest a
//! few packets ahead ([`look_up`](self)), because a core drops prefetches beyond about twenty.

mod context;
pub mod ethernet;
mod execute;
mod exits;
mod forward;
pub mod graph;
pub mod guard;
pub mod limit;
pub mod links;
mod look_up;
pub mod mtu;
mod packets;
mod parse;
mod rare;
pub mod translations;
pub mod url_redirect;

use std::sync::Arc;

use pktio::crossing::Crossed;
use pktio::poll::Waker;
use pktio::{Pool, Slab, VECTOR, Vector, crossing, owner};
use tokio::sync::mpsc;

use crate::plan::Peer;
use crate::stats::WorkerStats;
use crate::tables::{Command, Mailbox, Tables};
use context::{Context, Input, Pass, Snapshot};
use exits::{EXTRA, Events, Exits, Extra, Injections};
use graph::Way;
use guard::{Closed, Guard};
use links::Links;
use look_up::{PlaceOf, Places};
use packets::{State, Verdict};
use path::Stopwatch;
pub use path::{Graph, Ports, Worker};
use rare::bridge::Bridging;
use rare::buffer::Buffer;
use rare::fragments::Fragments;
use rcu::Reader;
use telemetry::DropReason;

/// Packets per batch.
pub const BATCH: usize = VECTOR;
/// Octets per packet buffer: the largest N6 MTU with a GTP-U header.
pub const PACKET: usize = 9216;
/// Chunks of memory: those of every vector of a worker and its pipeline, full.
const CHUNKS: usize = EXTRA + 12 * VECTOR;

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
    /// No packets follow in a tunnel to this UPF.
    EndMarker {
        /// Where the End Marker came from.
        peer: Peer,
        /// TEID of the tunnel at this UPF.
        teid: u32,
    },
    /// A peer does not know the tunnel to which this UPF sends.
    ErrorIndication {
        /// The peer; the indication came from its own address.
        peer: Peer,
        /// TEID of the tunnel at the peer.
        teid: u32,
    },
}

/// The pipeline of one worker: the graph of the UPF.
pub struct Pipeline {
    tables: Arc<Tables>,
    /// Read access to the tables.
    reader: Reader,
    /// Commands of the N4 task.
    mailbox: Arc<Mailbox>,
    guard: Arc<Guard>,
    stages: Stages,
}

/// What happens to a batch while its worker reads the tables: the stages, and the nodes of the rare ways that have
/// state of their own.
struct Stages {
    context: Context,
    pass: Pass,
    exits: Exits,
    recent: look_up::Recent,
    fragments: Fragments,
    buffer: Buffer,
    /// Exists only with Ethernet data networks.
    bridging: Option<Box<Bridging>>,
    stopwatch: Stopwatch,
}

impl Graph for Pipeline {
    /// The memory for the packets that this pipeline makes, and for those that are received by copying and do not fit into
    /// frames of a port.
    fn home(&self) -> &Arc<dyn Pool> {
        &self.stages.context.home
    }

    /// Runs a batch that the interface with number `input` has received through all stages, and sends the result.
    /// `now_ns` is the time by `net::time::now_ns`.
    fn process(&mut self, input: usize, batch: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.turn(now_ns, ports);
        let inside = self.reader.enter();
        let snapshot = Snapshot { tables: &self.tables, inside: &inside, now_ns };
        self.stages.process(snapshot, input, batch, ports);
    }

    /// Carries out the N4 task's commands: releases or discards buffered packets. A worker calls it once per
    /// round, and when an event can be tried again or fragments have waited too long.
    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        let stages = &mut self.stages;
        stages.count_losses(ports);
        if let Some(closed) = self.guard.closed(&stages.context.closed) {
            stages.context.closed = closed;
        }
        stages.exits.events.retry();
        if !stages.fragments.is_empty() {
            stages.fragments.expire(now_ns);
            stages.fragments.count_lost(&stages.context);
        }
        if self.mailbox.is_waiting() {
            self.obey(now_ns, ports);
        }
        let stages = &self.stages;
        stages.exits.events.next_retry_ns(now_ns).into_iter().chain(stages.fragments.next_expiry_ns()).min()
    }

    /// A packet belongs to a worker by its tunnel or the UE's address (ADR 0024). Frames of Ethernet sessions stay.
    fn owners(&self, input: usize, vector: &Vector, workers: usize, owners: &mut [u8; VECTOR]) {
        let Some(interface) = self.stages.context.interfaces.get(input) else { return };
        if self.tables.bridge(input).is_some() {
            return;
        }
        let workers = workers as u32;
        let packets = owners.iter_mut().zip(vector.frames());
        if interface.role().has_tunnels() {
            packets.for_each(|(owner, frame)| *owner = owner::of_message(frame.packet(), workers) as u8);
        } else {
            packets.for_each(|(owner, frame)| *owner = owner::of_packet(frame.packet(), workers) as u8);
        }
    }

    fn crossed(&mut self, _: usize, packets: Crossed) {
        let context = &self.stages.context;
        context.count_way(Way::Cross, packets.given + packets.dropped);
        context.stats().drops.count_n(DropReason::WorkerQueueFull, packets.dropped);
    }

    /// Prepares the pipeline for the next batch after a batch of `lost` packets ended by a panic: replaces the
    /// state that this batch may have left half changed. Buffered packets stay.
    fn recover(&mut self, lost: usize) {
        let stages = &mut self.stages;
        stages.context.stats().drops.count_n(DropReason::WorkerFailed, lost);
        stages.stopwatch.end();
        stages.begin(0);
        stages.pass.frames.clear();
        stages.pass.fragments.clear();
        stages.pass.source = context::Source::Port;
        stages.fragments = Fragments::default();
        stages.exits.injections.take();
        stages.bridging = Bridging::of(&stages.context);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.mailbox.wake_with(waker);
    }

    /// Name of an interface, for messages.
    fn interface_name(&self, number: usize) -> &str {
        self.stages.context.interfaces.get(number).map_or("", |interface| interface.name())
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
        let home: Arc<dyn Pool> = Slab::new(CHUNKS + crossing::frames(stats.len()), PACKET);
        let interfaces = tables.interfaces().len();
        let closed = guard.closed(&Closed::default()).unwrap_or_default();
        let exits = Exits {
            extra: Extra::new(&home, interfaces),
            injections: Injections::new(&home),
            events: Events::new(events),
            scratch: vec![0; PACKET].into(),
        };
        let buffer = Buffer::new(Arc::clone(tables.held_octets()));
        let context = Context::new(worker, stats, Arc::clone(&tables), closed, home);
        Pipeline {
            reader: tables.domain().reader(),
            mailbox: tables.mailbox(),
            guard,
            stages: Stages {
                pass: Pass::new(interfaces),
                exits,
                recent: look_up::Recent::new(),
                fragments: Fragments::default(),
                buffer,
                bridging: Bridging::of(&context),
                stopwatch: Stopwatch::default(),
                context,
            },
            tables,
        }
    }

    /// Sends no Error Indications until `time_ns`, as sessions are being restored.
    pub fn keep_quiet_until(&mut self, time_ns: u64) {
        self.stages.context.quiet_until_ns = time_ns;
    }

    /// Sets how long packets may be, and the router addresses with which longer ones are answered; without this
    /// call there are no limits.
    pub fn set_links(&mut self, links: Links) {
        self.stages.context.links = links;
    }

    /// Times every vector instead of one in 64 ([`graph::json`]). Costs a clock reading per stage and vector.
    pub fn time_stages(&mut self) {
        self.stages.stopwatch.time_all();
    }

    #[cold]
    fn obey(&mut self, now_ns: u64, ports: &mut Ports) {
        for command in self.mailbox.take() {
            // For each anew: no memory is freed meanwhile.
            let inside = self.reader.enter();
            let snapshot = Snapshot { tables: &self.tables, inside: &inside, now_ns };
            match command {
                Command::Release(seid) => self.stages.release(snapshot, seid, ports),
                Command::Discard(seid) => {
                    let dropped = self.stages.buffer.discard(seid);
                    self.stages.context.stats().drops.count_n(DropReason::FarDrop, dropped);
                }
            }
        }
    }
}

impl Stages {
    /// Runs a batch from a port through all stages.
    fn process(&mut self, snapshot: Snapshot<'_>, input: usize, batch: &mut Vector, ports: &mut Ports) {
        self.context.count_received(input, batch);
        self.enter(input as u8);
        self.begin(batch.len());
        if self.bridging.is_some() && snapshot.tables.bridge(input).is_some() {
            self.switch(snapshot, batch, input);
            self.run_bridged(snapshot, batch, ports);
        } else {
            self.stopwatch.begin();
            let mut places = PlaceOf::NONE;
            if self.pass.input.has_tunnels {
                self.parse_tunnelled(snapshot, batch, &mut places);
            } else {
                self.parse_native(snapshot, batch, &mut places);
            }
            self.lap(Way::Parse);
            self.run(snapshot, batch, &places, ports);
        }
        self.run_early_fragments(snapshot, ports);
        self.run_injected(snapshot, ports);
    }

    /// Notes from which interface the next packets came.
    fn enter(&mut self, number: u8) {
        let Some(interface) = self.context.interfaces.get(usize::from(number)) else { return };
        self.pass.input = Input {
            interface: number,
            has_tunnels: interface.role().has_tunnels(),
            instance: interface.instance,
            local: interface.local(),
            clamp: self.context.links.of(number).clamp as usize,
        };
    }

    /// Begins a pass of `packets` packets.
    #[inline]
    fn begin(&mut self, packets: usize) {
        self.pass.begin(packets);
        self.exits.extra.clear();
    }

    /// Runs the stages after parsing.
    fn run<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        places: &Places<'g>,
        ports: &mut Ports,
    ) {
        let mut verdicts = [Verdict::NONE; BATCH];
        self.look_up(snapshot, batch, places, &mut verdicts);
        if !self.pass.frames.is_empty() {
            self.look_up_frames(snapshot, batch, &mut verdicts);
        }
        self.lap(Way::LookUp);
        let all_sent = self.execute(snapshot, batch, &verdicts);
        self.lap(Way::Execute);
        if !all_sent {
            self.count_drops();
        }
        self.transmit(batch, ports);
        self.lap(Way::Transmit);
        self.stopwatch.end();
        self.deliver(snapshot, batch, ports);
    }

    /// Runs the stages for packets, or `frames`, that have waited: they are parsed, and their keys are known.
    fn run_again(&mut self, snapshot: Snapshot<'_>, frames: bool, batch: &mut Vector, ports: &mut Ports) {
        if frames {
            self.pass.keys_are_known = true;
            self.run_bridged(snapshot, batch, ports);
        } else {
            let places = self.places_of(snapshot, batch);
            self.run(snapshot, batch, &places, ports);
        }
    }

    /// A stage has handled the batch.
    #[inline]
    fn lap(&mut self, stage: Way) {
        self.stopwatch.lap(&self.context.stats().nodes[stage as usize], self.pass.packets.len());
    }

    /// Counts packets that the ports discarded while receiving: frames with another destination, packets whose
    /// next hop never answered.
    fn count_losses(&self, ports: &mut Ports) {
        let drops = &self.context.stats().drops;
        let mut count = |reason, packets| drops.count_n(reason, packets);
        ports.iter_mut().for_each(|port| port.losses(&mut count));
    }

    fn count_drops(&self) {
        let (packets, drops) = (&self.pass.packets, &self.context.stats().drops);
        for meta in &packets.metas[..packets.len()] {
            if let State::Dropped(reason) = meta.state {
                drops.count(reason);
            }
        }
    }

    fn transmit(&mut self, batch: &mut Vector, ports: &mut Ports) {
        let context = &self.context;
        batch.set_peers(context.tables.peers());
        self.pass.outputs.transmit(batch, ports, |number, sent| context.count_sent(number, sent));
        self.exits.extra.transmit(context, ports);
    }
}
