//! A bounded queue of datagrams in memory of its own.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::frame::{Frame, Pool};
use crate::{Slab, VECTOR, Vector};

/// Most datagrams of a queue.
const MOST: usize = 8192;

/// A datagram to be queued.
pub struct Datagram<'a> {
    pub payload: &'a [u8],
    pub peer: SocketAddr,
    /// Number of the endpoint that sends it.
    pub from: u16,
    pub tos: u8,
}

/// Datagrams in frames of a pool.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<(Frame, SocketAddr)>,
    capacity: usize,
    /// Frames that are about to be filled.
    filling: Vector,
    pool: Arc<dyn Pool>,
}

impl Queue {
    /// For up to `capacity` datagrams of up to `longest` octets. Those that have been moved to a vector count for as long as they
    /// are there, two vectors apart.
    pub fn new(capacity: usize, longest: usize) -> Queue {
        let capacity = capacity.clamp(1, MOST);
        let pool: Arc<dyn Pool> = Slab::new(capacity + 3 * VECTOR, longest);
        let filling = Vector::of(&pool);
        Queue { waiting: VecDeque::with_capacity(capacity), capacity, filling, pool }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Appends copies of datagrams until there is no room for one; returns how many there are.
    pub fn put<'a>(&mut self, datagrams: impl Iterator<Item = Datagram<'a>>) -> usize {
        let before = self.len();
        for Datagram { payload, peer, from, tos } in datagrams {
            if self.len() + self.filling.len() == self.capacity {
                break;
            }
            if self.filling.len() == VECTOR {
                self.append();
            }
            if !self.filling.push(payload, peer) {
                break;
            }
            if let Some(mut frame) = self.filling.last_mut() {
                frame.send_to(from);
                frame.set_tos(tos);
            }
        }
        self.append();
        self.len() - before
    }

    /// Appends the frames that have been filled.
    fn append(&mut self) {
        let waiting = &mut self.waiting;
        self.filling.give_away(|_, _, frame, peer| {
            waiting.push_back((std::mem::replace(frame, Frame::GONE), peer));
            false
        });
    }

    /// Takes the first datagram: `read` gets it.
    pub fn take<R>(&mut self, read: impl FnOnce(&[u8], SocketAddr) -> R) -> Option<R> {
        let (frame, peer) = self.waiting.pop_front()?;
        let result = read(frame.packet(), peer);
        self.pool.take_back(&mut [frame]);
        Some(result)
    }

    /// Moves datagrams into `vector`, as many as it takes; returns how many.
    pub fn move_to(&mut self, vector: &mut Vector) -> usize {
        vector.begin_lent(&self.pool);
        while vector.len() < vector.capacity() {
            let Some((mut frame, peer)) = self.waiting.pop_front() else { break };
            vector.adopt(&mut frame, peer);
        }
        vector.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(payloads: &[Vec<u8>]) -> impl Iterator<Item = Datagram<'_>> {
        payloads.iter().map(|payload| Datagram {
            payload,
            peer: SocketAddr::from(([192, 0, 2, 1], 7)),
            from: 3,
            tos: 0x28,
        })
    }

    #[test]
    fn a_queue_is_bounded_and_keeps_the_order() {
        let mut queue = Queue::new(100, 64);
        let payloads: Vec<Vec<u8>> = (0..150u8).map(|n| vec![n; usize::from(n) % 65]).collect();
        for round in 0..50 {
            assert_eq!(queue.put(datagrams(&payloads)), 100, "round {round}");
            assert_eq!(queue.put(datagrams(&payloads)), 0);
            for payload in &payloads[..10] {
                assert_eq!(queue.take(|packet, _| packet.to_vec()).as_ref(), Some(payload));
            }
            let mut vectors = [Vector::new(VECTOR, 1), Vector::new(VECTOR, 1)];
            assert_eq!(vectors.each_mut().map(|vector| queue.move_to(vector)), [64, 26]);
            let frames = vectors.iter().flat_map(|vector| vector.frames());
            assert!(frames.zip(&payloads[10..]).all(|(frame, payload)| frame.packet() == payload));
            assert_eq!(queue.put(datagrams(&payloads[..90])), 90, "the vectors have room of their own");
            while queue.take(|_, _| ()).is_some() {}
        }
        assert_eq!(queue.put(datagrams(&[vec![0; 65]])), 0, "too long");
        assert!(queue.is_empty());
    }
}
