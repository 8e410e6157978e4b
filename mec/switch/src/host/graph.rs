//! A worker of the switch: a vector of frames in, the same frames out by other ports, and copies where entries say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openflow::PacketIn;
use path::calls::Calls;
use path::{Graph, Outputs, Ports};
use pktio::frame::NO_PEER;
use pktio::poll::Waker;
use pktio::{Pool, Sent, VECTOR, Vector};
use telemetry::DropReason;
use telemetry::worker::Drops;

use super::cache::{Cache, Found, Stale};
use crate::core::Switch;
use crate::offload::Offer;
use crate::pipeline::exact;
use crate::pipeline::parse::{Headers, Layout};
use crate::pipeline::rewrite::{self, Exit, Sink};
use crate::pipeline::trace::Dropped;

/// How long packets may wait to be counted. Who asks for counters does not wait for that ([`crate::core::Switch::settle`]).
const COUNT_EVERY_NS: u64 = 100_000_000;

/// What a worker's cache has done, for people.
#[derive(Debug, Default)]
pub struct CacheCounts {
    /// Packets whose translation was known.
    pub hits: AtomicU64,
    /// Packets that had to be translated.
    pub misses: AtomicU64,
    /// Translations that are known.
    pub entries: AtomicU64,
    /// Sets of consulted fields.
    pub kinds: AtomicU64,
    /// How often all were forgotten for lack of room.
    pub overflows: AtomicU64,
}

/// The graph of one worker.
pub struct SwitchGraph {
    home: Arc<dyn Pool>,
    switch: Arc<Switch>,
    calls: Calls<SwitchGraph>,
    cache: Cache,
    version: u64,
    counted_ns: u64,
    outputs: Outputs,
    /// Copies, by number of the interface.
    copies: Vec<Vector>,
    /// This vector's packets for the controllers.
    packets_in: Vec<PacketIn>,
    /// Translations of this vector's packets for the data path of tunnels.
    offers: Vec<Offer>,
    /// All positions of a vector.
    all: [u16; VECTOR],
    counts: Arc<CacheCounts>,
    drops: Arc<Drops>,
}

impl SwitchGraph {
    /// A worker. Its interfaces are the switch's ports, in their order.
    pub fn new(
        home: Arc<dyn Pool>,
        switch: Arc<Switch>,
        calls: Calls<SwitchGraph>,
        counts: Arc<CacheCounts>,
        drops: Arc<Drops>,
    ) -> SwitchGraph {
        let interfaces = switch.ports().len();
        SwitchGraph {
            copies: (0..interfaces).map(|_| Vector::of(&home)).collect(),
            outputs: Outputs::new(interfaces),
            all: std::array::from_fn(|at| at as u16),
            cache: Cache::default(),
            packets_in: Vec::new(),
            offers: Vec::new(),
            version: 0,
            counted_ns: 0,
            home,
            switch,
            calls,
            counts,
            drops,
        }
    }

    /// Brings what was counted to the entries, and sees the present version of the entries.
    pub fn settle(&mut self, now_ns: u64) {
        self.version = self.switch.version();
        if self.cache.is_dirty() {
            self.cache.count(&self.switch.pipeline(), now_ns);
        }
        self.counted_ns = now_ns;
        let Cache { hits, misses, overflows, .. } = self.cache;
        self.counts.hits.store(hits, Relaxed);
        self.counts.misses.store(misses, Relaxed);
        self.counts.overflows.store(overflows, Relaxed);
        self.counts.entries.store(self.cache.len() as u64, Relaxed);
        self.counts.kinds.store(self.cache.kinds() as u64, Relaxed);
    }

    /// Sends a frame of a controller.
    pub fn send(&mut self, port: u32, frame: &[u8], ports: &mut Ports) {
        let Some(interface) = interface(&self.switch, port) else { return };
        if !copy(&mut self.copies[interface], frame) {
            self.drops.count(DropReason::TooBig);
        }
        self.send_copies(ports);
    }

    fn send_copies(&mut self, ports: &mut Ports) {
        for (interface, copies) in self.copies.iter_mut().enumerate().filter(|(_, copies)| !copies.is_empty())
        {
            let sent = ports[interface].transmit(copies, &self.all[..copies.len()]);
            copies.clear();
            count_sent(&self.switch, &self.drops, interface, sent);
        }
    }

    /// Reads the losses of all ports.
    fn losses(&self, ports: &mut Ports) {
        for (interface, port) in ports.iter_mut().enumerate() {
            port.losses(&mut |reason, number| {
                self.drops.count_n(reason, number);
                self.switch.ports()[interface].counts.rx_dropped.fetch_add(number as u64, Relaxed);
            });
        }
    }
}

/// The interface of a port.
#[inline]
fn interface(switch: &Switch, port: u32) -> Option<usize> {
    switch.ports().iter().position(|own| own.number == port)
}

/// Adds a copy of a frame; `false` if it is too long, or too many wait.
fn copy(copies: &mut Vector, frame: &[u8]) -> bool {
    copies.push(frame, NO_PEER)
}

fn count_sent(switch: &Switch, drops: &Drops, interface: usize, sent: Sent) {
    let counts = &switch.ports()[interface].counts;
    counts.tx_packets.fetch_add(sent.packets as u64, Relaxed);
    counts.tx_bytes.fetch_add(sent.bytes as u64, Relaxed);
    let lost = sent.full + sent.too_big + sent.unresolved + sent.errors;
    if lost > 0 {
        counts.tx_dropped.fetch_add(lost as u64, Relaxed);
        drops.count_n(DropReason::TxQueueFull, sent.full);
        drops.count_n(DropReason::TooBig, sent.too_big);
        drops.count_n(DropReason::TxError, sent.errors + sent.unresolved);
    }
}

/// Takes the frames that a packet becomes.
struct Exits<'g> {
    at: usize,
    switch: &'g Switch,
    outputs: &'g mut Outputs,
    copies: &'g mut [Vector],
    packets_in: &'g mut Vec<PacketIn>,
    drops: &'g Drops,
    layout: &'g Layout,
}

impl Sink for Exits<'_> {
    #[inline]
    fn send(&mut self, exit: Exit<'_>, frame: &mut [u8], is_last: bool) {
        match exit {
            Exit::Port(port) => {
                let Some(interface) = interface(self.switch, port) else { return };
                if is_last {
                    self.outputs.push(interface as u8, self.at);
                } else if !copy(&mut self.copies[interface], frame) {
                    // A vector of copies has room for one of each packet; more are for entries that send twice to a port.
                    self.drops.count(DropReason::TxQueueFull);
                }
            }
            Exit::Controller(to) => self.packets_in.extend(self.switch.packet_in(to, frame, self.layout)),
        }
    }
}

/// The name under which a packet that went nowhere is counted.
pub(crate) fn reason(dropped: Dropped) -> DropReason {
    match dropped {
        Dropped::NoEntry => DropReason::NoFlowEntry,
        Dropped::NoOutput => DropReason::FlowEntryDrop,
        Dropped::LastHop => DropReason::TtlExpired,
        Dropped::TooLong | Dropped::Tunnel => DropReason::FlowEntryUnusable,
    }
}

impl Graph for SwitchGraph {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.outputs.clear();
        self.version = self.switch.version();
        if self.cache.is_full() {
            self.cache.forget(&self.switch.pipeline(), now_ns);
        }
        let (switch, mut bytes) = (&*self.switch, 0);
        let in_port = switch.ports()[input].number;
        for at in 0..vector.len() {
            if let Some(next) = vector.frames().get(at + 2) {
                next.prefetch();
            }
            let mut frame = vector.frame_mut(at);
            let frame = frame.packet_mut();
            bytes += frame.len();
            let headers = Headers::parse(frame, in_port);
            let translate = |version: &mut u64, stale: Option<Stale>| {
                let pipeline = switch.pipeline();
                if let Some(stale) = stale {
                    stale.count(&pipeline, now_ns);
                }
                // From here on no packet is treated by older entries.
                *version = pipeline.version();
                let Headers { outer, inner, .. } = &headers;
                let mut trace = pipeline.trace(outer, inner);
                let exact = switch.offload().and_then(|_| {
                    let exact = exact::exact(&pipeline, outer, inner, &trace);
                    exact::separate(outer, inner, &mut trace.consulted);
                    exact
                });
                (trace, exact)
            };
            let Found { steps, dropped, offer } =
                self.cache.look_up(&headers, frame.len(), &mut self.version, translate);
            if let Some(exact) = offer {
                self.offers.push(Offer { outer: headers.outer, inner: headers.inner, exact: *exact });
            }
            if let Some(dropped) = dropped {
                self.drops.count(reason(dropped));
                continue;
            }
            let layout = &headers.layout;
            let (outputs, copies, drops) = (&mut self.outputs, &mut self.copies[..], &*self.drops);
            let packets_in = &mut self.packets_in;
            let mut exits = Exits { at, switch, outputs, copies, packets_in, drops, layout };
            rewrite::execute(steps, frame, layout, &mut exits);
        }
        let counts = &switch.ports()[input].counts;
        counts.rx_packets.fetch_add(vector.len() as u64, Relaxed);
        counts.rx_bytes.fetch_add(bytes as u64, Relaxed);
        self.send_copies(ports);
        let (switch, drops) = (&*self.switch, &*self.drops);
        self.outputs.transmit(vector, ports, |interface, sent| count_sent(switch, drops, interface, sent));
        // Behind the packets: a controller that wakes up may take this core.
        self.packets_in.drain(..).for_each(|packet| switch.tell_packet(packet));
        // Behind the packets: those of a tunnel that leave by another path from now on do not overtake them.
        if let Some(offload) = self.switch.offload().filter(|_| !self.offers.is_empty()) {
            offload.offer(self.offers.drain(..));
        }
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        for call in self.calls.take() {
            call(self, now_ns, ports);
        }
        if now_ns.saturating_sub(self.counted_ns) >= COUNT_EVERY_NS {
            self.settle(now_ns);
            self.losses(ports);
        }
        self.cache.is_dirty().then_some(self.counted_ns + COUNT_EVERY_NS)
    }

    fn recover(&mut self, lost: usize) {
        self.drops.count_n(DropReason::WorkerFailed, lost);
        self.outputs.clear();
        self.copies.iter_mut().for_each(Vector::clear);
        self.packets_in.clear();
        self.offers.clear();
        self.cache = Cache::default();
    }

    fn wake_with(&mut self, waker: Waker) {
        self.calls.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.switch.ports().get(number).map_or("", |port| &port.name)
    }
}
