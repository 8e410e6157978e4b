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
use crate::hold::Put;
use crate::offload::Offer;
use crate::pipeline::exact::{self, Exact};
use crate::pipeline::parse::{Headers, Layout};
use crate::pipeline::rewrite::{self, Exit, Sink};
use crate::pipeline::trace::{Dropped, Trace};

/// Vectors of packets that have waited which are let go at once: more than one comes in meanwhile.
const AT_ONCE: usize = 2;
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
    /// Its number among those that hold packets.
    number: usize,
    /// The port by which packets come back that have waited.
    hold_port: u32,
    /// Packets that have waited and go on.
    let_go: Vector,
    /// When the last turn was: all inputs have been looked at since.
    turned_ns: u64,
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
        let hold_port = switch.pipeline().ports().hold.map_or(0, |ports| ports.hold);
        SwitchGraph {
            copies: (0..interfaces).map(|_| Vector::of(&home)).collect(),
            outputs: Outputs::new(interfaces),
            all: std::array::from_fn(|at| at as u16),
            number: switch.hold().enrol(),
            hold_port,
            let_go: Vector::of(&home),
            turned_ns: 0,
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

    /// Sends frames of a controller, vector by vector.
    pub fn send_all(&mut self, frames: &[(u32, Vec<u8>)], ports: &mut Ports) {
        for (port, frame) in frames {
            let Some(interface) = interface(&self.switch, *port) else { continue };
            if self.copies[interface].len() == VECTOR {
                self.send_copies(ports);
            }
            if !copy(&mut self.copies[interface], frame) {
                self.drops.count(DropReason::TxQueueFull);
            }
        }
        self.send_copies(ports);
    }

    /// Does with a vector what the entries say; its octets.
    fn forward(&mut self, from: From, vector: &mut Vector, now_ns: u64, ports: &mut Ports) -> usize {
        self.outputs.clear();
        if self.cache.is_full() {
            self.cache.forget(&self.switch.pipeline(), now_ns);
        }
        let (switch, mut bytes) = (&*self.switch, 0);
        for at in 0..vector.len() {
            if let Some(next) = vector.frames().get(at + 2) {
                next.prefetch();
            }
            let mut frame = vector.frame_mut(at);
            let frame = frame.packet_mut();
            bytes += frame.len();
            let mut from = from;
            // Again for a packet that passes the hold port: once.
            loop {
                let headers = from.headers(frame);
                let translate = |version: &mut u64, stale: Option<Stale>| {
                    translate(switch, &headers, version, stale, now_ns)
                };
                let Found { steps, dropped, offer } =
                    self.cache.look_up(&headers, frame.len(), &mut self.version, translate);
                if let Some(exact) = offer {
                    self.offers.push(Offer { outer: headers.outer, inner: headers.inner, exact: *exact });
                }
                if let Some(dropped) = dropped {
                    self.drops.count(reason(dropped));
                    break;
                }
                let (layout, worker, hold_port) = (&headers.layout, self.number, self.hold_port);
                let (outputs, copies, drops) = (&mut self.outputs, &mut self.copies[..], &*self.drops);
                let (packets_in, passes) = (&mut self.packets_in, None);
                let mut exits = Exits {
                    at,
                    switch,
                    outputs,
                    copies,
                    packets_in,
                    drops,
                    layout,
                    worker,
                    hold_port,
                    now_ns,
                    passes,
                };
                rewrite::execute(steps, frame, layout, &mut exits);
                match exits.passes {
                    Some(back) => from = back,
                    None => break,
                }
            }
        }
        self.send_copies(ports);
        let (switch, drops) = (&*self.switch, &*self.drops);
        self.outputs.transmit(vector, ports, |interface, sent| count_sent(switch, drops, interface, sent));
        // Behind the packets: a controller that wakes up may take this core.
        self.packets_in.drain(..).for_each(|packet| switch.tell_packet(packet));
        // Behind the packets: those of a tunnel that leave by another path from now on do not overtake them.
        if let Some(offload) = self.switch.offload().filter(|_| !self.offers.is_empty()) {
            offload.offer(self.offers.drain(..));
        }
        bytes
    }

    /// Lets packets go that have waited, up to [`AT_ONCE`] vectors, so that others have their turn. `in_turn`: all inputs have been
    /// looked at since the last turn.
    pub(super) fn let_go(&mut self, now_ns: u64, ports: &mut Ports, in_turn: bool) {
        let switch = Arc::clone(&self.switch);
        let round_ns = in_turn.then_some(self.turned_ns);
        for _ in 0..AT_ONCE {
            if !switch.hold().has_packets() {
                return;
            }
            let Some((queue, mut frames)) = switch.hold().take(self.number, round_ns, VECTOR, now_ns) else {
                return;
            };
            let mut vector = std::mem::replace(&mut self.let_go, Vector::of(&self.home));
            let fits = frames.iter().position(|frame| !vector.push(frame, NO_PEER)).unwrap_or(frames.len());
            let left = frames.split_off(fits);
            let has_left = !left.is_empty();
            if has_left {
                // Frames come back when interfaces have sent them.
                switch.hold().put_back(self.number, queue, left, now_ns);
            }
            self.version = switch.version();
            self.forward(From::Hold { port: self.hold_port, queue }, &mut vector, now_ns, ports);
            vector.clear();
            self.let_go = vector;
            if has_left {
                return;
            }
        }
    }

    /// Puts a controller's frame into a queue of the hold port.
    pub fn hold(&mut self, queue: u32, frame: &[u8], now_ns: u64) {
        hold(&self.switch, self.number, queue, frame, true, now_ns);
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

/// Where the packets of a vector come from.
#[derive(Clone, Copy)]
enum From {
    /// A port with an interface.
    Port(u32),
    /// A queue of the hold port.
    Hold { port: u32, queue: u32 },
}

impl From {
    #[inline]
    fn headers(self, frame: &[u8]) -> Headers {
        match self {
            From::Port(port) => Headers::parse(frame, port),
            From::Hold { port, queue } => Headers::parse_held(frame, port, queue),
        }
    }
}

/// Translates a packet, and says what a data path for tunnels can do in its place.
fn translate(
    switch: &Switch,
    headers: &Headers,
    version: &mut u64,
    stale: Option<Stale>,
    now_ns: u64,
) -> (Trace, Option<Exact>) {
    let pipeline = switch.pipeline();
    if let Some(stale) = stale {
        stale.count(&pipeline, now_ns);
    }
    // From here on no packet is treated by older entries.
    *version = pipeline.version();
    let Headers { outer, inner, .. } = headers;
    let mut trace = pipeline.trace(outer, inner);
    let exact = switch.offload().and_then(|_| {
        let exact = exact::exact(&pipeline, outer, inner, &trace);
        exact::separate(outer, inner, &mut trace.consulted);
        exact
    });
    (trace, exact)
}

/// Puts a frame into a queue of the hold port; `false`: it passes.
fn hold(switch: &Switch, worker: usize, queue: u32, frame: &[u8], must: bool, now_ns: u64) -> bool {
    match switch.hold().put(worker, queue, frame, must, now_ns) {
        Put::Passes => return false,
        Put::Held => {}
        Put::Full(workers) => switch.wake(workers, Some(worker)),
    }
    true
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
    worker: usize,
    hold_port: u32,
    now_ns: u64,
    /// The packet goes on as one that comes from there.
    passes: Option<From>,
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
            Exit::Hold(queue) => {
                // A copy is behind what waits: it is not the packet that goes on here.
                if !hold(self.switch, self.worker, queue, frame, !is_last, self.now_ns) {
                    self.passes = Some(From::Hold { port: self.hold_port, queue });
                }
            }
            Exit::Release(queue) => self.switch.release(queue, Some(self.worker)),
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
        self.version = self.switch.version();
        let in_port = self.switch.ports()[input].number;
        let bytes = self.forward(From::Port(in_port), vector, now_ns, ports);
        let counts = &self.switch.ports()[input].counts;
        counts.rx_packets.fetch_add(vector.len() as u64, Relaxed);
        counts.rx_bytes.fetch_add(bytes as u64, Relaxed);
        // Behind the packets of the old path that were in this vector.
        self.let_go(now_ns, ports, false);
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        for call in self.calls.take() {
            call(self, now_ns, ports);
        }
        if now_ns.saturating_sub(self.counted_ns) >= COUNT_EVERY_NS {
            self.settle(now_ns);
            self.losses(ports);
        }
        self.let_go(now_ns, ports, true);
        self.turned_ns = now_ns;
        let hold = self.switch.hold();
        let waits_ns = hold.has_packets().then(|| hold.next_ns(self.number, now_ns)).flatten();
        self.cache.is_dirty().then_some(self.counted_ns + COUNT_EVERY_NS).into_iter().chain(waits_ns).min()
    }

    fn recover(&mut self, lost: usize) {
        self.drops.count_n(DropReason::WorkerFailed, lost);
        self.outputs.clear();
        self.copies.iter_mut().for_each(Vector::clear);
        self.packets_in.clear();
        self.offers.clear();
        self.let_go = Vector::of(&self.home);
        self.cache = Cache::default();
    }

    fn wake_with(&mut self, waker: Waker) {
        self.calls.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.switch.ports().get(number).map_or("", |port| &port.name)
    }
}
