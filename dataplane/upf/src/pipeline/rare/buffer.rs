//! Buffered packets (TS 29.244 §5.2.4, UP-2): each worker buffers the packets that it received, in order.
//!
//! The N4 task first publishes new rules and then asks for the release. Until the release every packet of the
//! session joins the queue, whatever its rules say by then, so that no packet overtakes another. Bounded in
//! packets and octets per session, and in octets for all workers together.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use classifier::Key;
use packet::flow::Flow;
use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass, Snapshot, Source};
use crate::pipeline::ethernet::View;
use crate::pipeline::exits::Events;
use crate::pipeline::graph::Way;
use crate::pipeline::packets::{Matched, Meta, State};
use crate::pipeline::{Event, Ports, Stages};
use crate::session::{flag, kind};

/// Most packets buffered per session, unless its BAR gives a number.
const PACKETS: usize = 512;
/// Most octets buffered per session.
const SESSION: usize = 1 << 20;
/// Most octets buffered by all workers.
const TOTAL: usize = 128 << 20;
/// Number of counters, indexed by the last bits of the SEID, that quickly tell that a session has no queue.
const HINTS: usize = 4096;

/// A buffered packet.
struct Waiting {
    /// The IP packet.
    octets: Box<[u8]>,
    /// Number of the interface from which it came.
    interface: u8,
    native: bool,
    marks: u8,
    /// Whether it is an Ethernet frame.
    frame: bool,
    teid: u32,
    /// For a later fragment: its key for the look-up.
    key: Option<Box<Key>>,
}

/// The buffered packets of one session.
#[derive(Default)]
struct Queue {
    packets: VecDeque<Waiting>,
    octets: usize,
    /// Whether the CP function has been told.
    told: bool,
}

/// The buffered packets of a worker.
pub(in crate::pipeline) struct Buffer {
    queues: HashMap<u64, Queue>,
    hints: Box<[u16]>,
    octets: Arc<AtomicUsize>,
}

impl Buffer {
    pub fn new(octets: Arc<AtomicUsize>) -> Buffer {
        Buffer { queues: HashMap::new(), hints: vec![0; HINTS].into(), octets }
    }

    /// Whether no packets are buffered.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether packets of a session are buffered.
    #[inline]
    pub fn holds(&self, seid: u64) -> bool {
        self.hints[seid as usize % HINTS] != 0 && self.queues.contains_key(&seid)
    }

    /// Buffers a packet, and tells the CP function of the first one if the rules ask for it.
    #[cold]
    pub fn hold(
        &mut self,
        context: &Context,
        pass: &mut Pass,
        events: &mut Events,
        batch: &Vector,
        matched: Matched<'_>,
    ) {
        context.count_way(Way::Buffer, 1);
        let Matched { at, entry, .. } = matched;
        let (seid, meta) = (matched.endpoint.seid(), &mut pass.packets.metas[at]);
        let buffering = entry.kind() == kind::BUFFER;
        let most = if buffering { entry.teid as usize } else { 0 };
        let octets: Box<[u8]> = batch.frames()[at].packet().into();
        let frame = entry.is(flag::FRAME);
        let flow = match frame {
            true => View::parse(&octets).ok().and_then(|view| view.flow),
            false => Flow::parse(&octets).ok(),
        };
        let later = flow.and_then(|flow| flow.fragment).is_some_and(|part| part.offset > 0);
        let key = later.then(|| Box::new(pass.packets.keys[at]));
        let (native, marks, teid) = (meta.native, meta.marks, meta.teid);
        let waiting = Waiting { octets, interface: pass.input.interface, native, marks, frame, teid, key };
        match self.add(seid, most, waiting) {
            Some(first) => {
                meta.state = State::Consumed;
                if first && buffering && entry.is(flag::NOTIFY) {
                    self.told(seid);
                    events.send(Event::DownlinkData { seid, pdr: entry.pdr });
                }
            }
            None => meta.drop(DropReason::BufferOverflow),
        }
    }

    /// Adds a packet. `most` is the limit of the session (0 means the default). `None` when there is no
    /// room; otherwise whether the CP function has not been told of any packet yet.
    fn add(&mut self, seid: u64, most: usize, packet: Waiting) -> Option<bool> {
        let length = packet.octets.len();
        let most = if most == 0 { PACKETS } else { most };
        if let Some(queue) = self.queues.get(&seid)
            && (queue.packets.len() >= most || queue.octets + length > SESSION)
        {
            return None;
        }
        if self.octets.fetch_add(length, Relaxed) + length > TOTAL {
            self.octets.fetch_sub(length, Relaxed);
            return None;
        }
        let hint = &mut self.hints[seid as usize % HINTS];
        let queue = self.queues.entry(seid).or_insert_with(|| {
            *hint = hint.saturating_add(1);
            Queue::default()
        });
        queue.octets += length;
        queue.packets.push_back(packet);
        Some(!queue.told)
    }

    /// Notes that the CP function has been told.
    fn told(&mut self, seid: u64) {
        if let Some(queue) = self.queues.get_mut(&seid) {
            queue.told = true;
        }
    }

    /// Takes the buffered packets of a session.
    fn take(&mut self, seid: u64) -> VecDeque<Waiting> {
        let Some(queue) = self.queues.remove(&seid) else { return VecDeque::new() };
        let hint = &mut self.hints[seid as usize % HINTS];
        // A counter that has reached its maximum stays there; the map is then searched in vain.
        if *hint < u16::MAX {
            *hint -= 1;
        }
        self.octets.fetch_sub(queue.octets, Relaxed);
        queue.packets
    }

    /// Drops the packets of a session and returns their number.
    pub fn discard(&mut self, seid: u64) -> usize {
        self.take(seid).len()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let octets: usize = self.queues.values().map(|queue| queue.octets).sum();
        self.octets.fetch_sub(octets, Relaxed);
    }
}

impl Stages {
    /// Runs the buffered packets of a session through the stages again, in order and before newer ones.
    pub(in crate::pipeline) fn release(&mut self, snapshot: Snapshot<'_>, seid: u64, ports: &mut Ports) {
        let mut queue = self.buffer.take(seid);
        let mut batch = Vector::of(&self.context.home);
        // All packets of a session are of one kind.
        let frames = queue.front().is_some_and(|packet| packet.frame);
        while let Some(interface) = queue.front().map(|packet| packet.interface) {
            self.enter(interface);
            batch.clear();
            self.begin(0);
            // Keys of later fragments, which have no ports.
            let mut known = Vec::new();
            while let Some(packet) = queue.front().filter(|packet| packet.interface == interface) {
                if !batch.push(&packet.octets, self.pass.input.local) {
                    break;
                }
                let meta =
                    Meta { native: packet.native, marks: packet.marks, teid: packet.teid, ..Meta::NEW };
                self.pass.packets.push(meta, Key::unknown());
                known.extend(packet.key.as_deref().map(|key| (batch.len() - 1, *key)));
                queue.pop_front();
            }
            if batch.is_empty() {
                // Cannot happen: the packet came from a buffer, so it fits into one.
                queue.pop_front();
                continue;
            }
            self.pass.source = Source::Buffer;
            if !frames {
                self.parse_held(&mut batch);
            }
            for (at, key) in known {
                self.pass.packets.keys[at] = key;
            }
            self.run_again(snapshot, frames, &mut batch, ports);
            self.pass.source = Source::Port;
            self.run_injected(snapshot, ports);
        }
    }
}
