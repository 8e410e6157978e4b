//! Buffered packets (TS 29.244 §5.2.4, UP-2): each worker buffers the packets that it received, in order.
//!
//! The N4 task first publishes new rules and then asks for the release. Until the release every packet of the
//! session joins the queue, whatever its rules say by then, so that no packet overtakes another. Bounded in
//! packets and octets per session, and in octets for all workers together.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use classifier::Key;

/// Most packets buffered per session, unless its BAR gives a number.
const PACKETS: usize = 512;
/// Most octets buffered per session.
const SESSION: usize = 1 << 20;
/// Most octets buffered by all workers.
const TOTAL: usize = 128 << 20;
/// Number of counters, indexed by the last bits of the SEID, that quickly tell that a session has no queue.
const HINTS: usize = 4096;

/// A buffered packet.
pub(super) struct Waiting {
    /// The IP packet.
    pub octets: Box<[u8]>,
    /// Number of the interface from which it came.
    pub interface: u8,
    pub native: bool,
    pub qfi: u8,
    /// Whether it is an Ethernet frame.
    pub frame: bool,
    pub teid: u32,
    /// For a later fragment: its key for the look-up.
    pub key: Option<Box<Key>>,
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
pub(super) struct Held {
    queues: HashMap<u64, Queue>,
    hints: Box<[u16]>,
    octets: Arc<AtomicUsize>,
}

impl Held {
    pub fn new(octets: Arc<AtomicUsize>) -> Held {
        Held { queues: HashMap::new(), hints: vec![0; HINTS].into(), octets }
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

    /// Buffers a packet. `most` is the limit of the session (0 means the default). `None` when there is no
    /// room; otherwise whether the CP function has not been told of any packet yet.
    pub fn hold(&mut self, seid: u64, most: usize, packet: Waiting) -> Option<bool> {
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
    pub fn told(&mut self, seid: u64) {
        if let Some(queue) = self.queues.get_mut(&seid) {
            queue.told = true;
        }
    }

    /// Takes the buffered packets of a session.
    pub fn take(&mut self, seid: u64) -> VecDeque<Waiting> {
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

impl Drop for Held {
    fn drop(&mut self) {
        let octets: usize = self.queues.values().map(|queue| queue.octets).sum();
        self.octets.fetch_sub(octets, Relaxed);
    }
}
