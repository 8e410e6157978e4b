//! Buffered packets (TS 29.244 §5.2.4, UP-2): each worker holds those that came in through it, in their order.
//!
//! The N4 task publishes new rules first and asks for the release behind that. Until the release a packet of the session,
//! whatever its rules say by then, joins the queue: so none overtakes. Bounded in packets and octets per session, and in
//! octets for all workers together.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use classifier::Key;
use pktio::Batch;

use super::PACKET;

/// Packets held per session, where its BAR does not say.
const PACKETS: usize = 512;
/// Octets held per session.
const SESSION: usize = 1 << 20;
/// Octets held in all.
const TOTAL: usize = 128 << 20;
/// Counts of queues by the last bits of the SEID, to tell quickly that there is none.
const HINTS: usize = 4096;
/// Packets released at once.
const BATCH: usize = 32;

/// A packet that waits.
pub(super) struct Waiting {
    /// The IP packet.
    pub octets: Box<[u8]>,
    pub native: bool,
    pub qfi: u8,
    /// An Ethernet frame.
    pub frame: bool,
    pub teid: u32,
    /// Of a later fragment: what it is looked up by.
    pub key: Option<Box<Key>>,
}

/// Packets of one session.
#[derive(Default)]
struct Queue {
    packets: VecDeque<Waiting>,
    octets: usize,
    /// The CP function has been told.
    told: bool,
}

/// What a worker holds.
pub(super) struct Held {
    queues: HashMap<u64, Queue>,
    hints: Box<[u16]>,
    octets: Arc<AtomicUsize>,
    batch: Option<Batch>,
}

impl Held {
    pub fn new(octets: Arc<AtomicUsize>) -> Held {
        Held { queues: HashMap::new(), hints: vec![0; HINTS].into(), octets, batch: None }
    }

    /// Whether nothing is held.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether packets of a session are held.
    #[inline]
    pub fn holds(&self, seid: u64) -> bool {
        self.hints[seid as usize % HINTS] != 0 && self.queues.contains_key(&seid)
    }

    /// Holds a packet, of which there may be `most` for the session (0: the usual bound). `None` when there is no room; else
    /// whether the CP function has not been told of any yet.
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

    /// Takes the packets of a session.
    pub fn take(&mut self, seid: u64) -> VecDeque<Waiting> {
        let Some(queue) = self.queues.remove(&seid) else { return VecDeque::new() };
        let hint = &mut self.hints[seid as usize % HINTS];
        // A count that reached its end stays: then the map is asked in vain.
        if *hint < u16::MAX {
            *hint -= 1;
        }
        self.octets.fetch_sub(queue.octets, Relaxed);
        queue.packets
    }

    /// Drops the packets of a session, and tells how many there were.
    pub fn discard(&mut self, seid: u64) -> usize {
        self.take(seid).len()
    }

    /// The batch for releases, made when first needed.
    pub fn batch(&mut self) -> Option<Batch> {
        Some(self.batch.take().unwrap_or_else(|| Batch::new(BATCH, PACKET)))
    }

    /// Takes the batch back.
    pub fn keep(&mut self, batch: Batch) {
        self.batch = Some(batch);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let octets: usize = self.queues.values().map(|queue| queue.octets).sum();
        self.octets.fetch_sub(octets, Relaxed);
    }
}
