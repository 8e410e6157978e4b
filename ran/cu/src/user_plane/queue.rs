//! Packets that wait until the DU wants them.

use std::collections::VecDeque;
use std::time::Duration;

/// A packet of a data network, before SDAP and PDCP: sequence numbers are given when it is sent, so that packets that are
/// discarded leave no gap.
#[derive(Debug)]
pub struct Waiting {
    /// The IP packet.
    pub packet: Box<[u8]>,
    /// The second octet of its PDU Session Container: QFI and RQI.
    pub flow: u8,
    /// When it came.
    since_ns: u64,
}

/// The waiting packets of a bearer, oldest first.
#[derive(Debug)]
pub struct Queue {
    packets: VecDeque<Waiting>,
    octets: usize,
    most_octets: usize,
    /// How long a packet waits at most (TS 38.323 §5.3, discardTimer).
    discard: Option<Duration>,
}

/// Memory that a packet takes besides its octets.
const OVERHEAD: usize = 64;

impl Queue {
    /// For packets of up to `most_octets` octets in all.
    pub fn new(most_octets: usize, discard: Option<Duration>) -> Queue {
        Queue { packets: VecDeque::new(), octets: 0, most_octets, discard }
    }

    /// Whether no packet waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Memory of the packets.
    pub fn octets(&self) -> usize {
        self.octets
    }

    /// Adds a packet; `false` when there is no room.
    pub fn push(&mut self, packet: &[u8], flow: u8, now_ns: u64) -> bool {
        let octets = packet.len() + OVERHEAD;
        let fits = self.octets + octets <= self.most_octets;
        if fits {
            self.octets += octets;
            self.packets.push_back(Waiting { packet: packet.into(), flow, since_ns: now_ns });
        }
        fits
    }

    /// The oldest packet.
    pub fn front(&self) -> Option<&Waiting> {
        self.packets.front()
    }

    /// Takes the oldest packet.
    pub fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.packets.pop_front()?;
        self.octets -= waiting.packet.len() + OVERHEAD;
        if self.packets.is_empty() {
            // A bearer that has recovered gives its memory back.
            self.packets = VecDeque::new();
        }
        Some(waiting)
    }

    /// When the oldest packet has waited too long.
    pub fn next_expiry_ns(&self) -> Option<u64> {
        Some(self.packets.front()?.since_ns.saturating_add(self.discard?.as_nanos() as u64))
    }

    /// Discards packets that have waited too long; returns how many.
    pub fn expire(&mut self, now_ns: u64) -> usize {
        let mut discarded = 0;
        while self.next_expiry_ns().is_some_and(|expiry| expiry <= now_ns) && self.pop().is_some() {
            discarded += 1;
        }
        discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_in_order_and_not_too_long() {
        let mut queue = Queue::new(3 * (100 + OVERHEAD), Some(Duration::from_nanos(50)));
        for n in 0..4u8 {
            assert_eq!(queue.push(&[n; 100], n, u64::from(n) * 10), n < 3, "{n}");
        }
        assert_eq!((queue.len(), queue.octets()), (3, 3 * (100 + OVERHEAD)));
        assert_eq!(queue.next_expiry_ns(), Some(50));
        assert_eq!(queue.expire(49), 0);
        assert_eq!(queue.expire(60), 2);
        assert_eq!(queue.front().map(|waiting| waiting.flow), Some(2));
        let last = queue.pop().unwrap();
        assert_eq!((&last.packet[..], last.flow), (&[2; 100][..], 2));
        assert!(queue.pop().is_none() && queue.is_empty() && queue.octets() == 0);
        assert_eq!(queue.next_expiry_ns(), None);

        let mut patient = Queue::new(1000, None);
        assert!(patient.push(b"x", 0, 0));
        assert_eq!((patient.next_expiry_ns(), patient.expire(u64::MAX)), (None, 0));
    }
}
