//! Ports whose other end is a test or a benchmark.
//!
//! [`pair`] gives a port and its wire: two bounded queues. [`Generator`] and [`Sink`] have no other end. They cost no more
//! than the caller's function, so that a pipeline can be measured alone.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{FrameMut, Port, Sent, Vector};

type Queue = VecDeque<(Vec<u8>, SocketAddr)>;

#[derive(Debug, Default)]
struct Queues {
    to_port: Queue,
    from_port: Queue,
}

/// The port; see [`pair`].
#[derive(Debug)]
pub struct MemoryPort {
    queues: Arc<Mutex<Queues>>,
    capacity: usize,
}

/// The other end of a [`MemoryPort`].
#[derive(Debug, Clone)]
pub struct Wire {
    queues: Arc<Mutex<Queues>>,
}

/// A port and the wire it is connected to. `capacity` bounds what is sent and not yet taken.
pub fn pair(capacity: usize) -> (MemoryPort, Wire) {
    let queues = Arc::new(Mutex::new(Queues::default()));
    (MemoryPort { queues: Arc::clone(&queues), capacity }, Wire { queues })
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// Lets the port receive a packet that comes from `peer`.
    pub fn inject(&self, packet: &[u8], peer: SocketAddr) {
        lock(&self.queues).to_port.push_back((packet.to_vec(), peer));
    }

    /// Takes everything that the port has sent: packets and their destinations.
    pub fn take(&self) -> Vec<(Vec<u8>, SocketAddr)> {
        lock(&self.queues).from_port.drain(..).collect()
    }
}

impl Port for MemoryPort {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.clear();
        let mut queues = lock(&self.queues);
        while batch.len() < batch.capacity() {
            let Some((packet, peer)) = queues.to_port.pop_front() else { break };
            // A packet longer than a buffer is lost, as a device would lose it.
            batch.push(&packet, peer);
        }
        Ok(batch.len())
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        let mut queues = lock(&self.queues);
        for &position in selected {
            let Some(buffer) = batch.sendable(position) else {
                sent.errors += 1;
                continue;
            };
            if queues.from_port.len() >= self.capacity {
                sent.full += 1;
                continue;
            }
            let Some(peer) = batch.destination(position.into()) else {
                sent.errors += 1;
                continue;
            };
            queues.from_port.push_back((buffer.packet().to_vec(), peer));
            sent.packets += 1;
            sent.bytes += buffer.len();
        }
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A port that always has packets: a function makes each in its buffer. What is sent is counted and gone.
///
/// The function gets buffers whose memory still holds what it wrote there before, at the same place: it may write a
/// packet once by [`FrameMut::set`] and later only [`FrameMut::restore`] it and change some octets.
pub struct Generator<F> {
    fill: F,
    /// What was sent through this port.
    pub sink: Sink,
}

impl<F: FnMut(usize, FrameMut<'_>) + Send> Generator<F> {
    /// `fill` is called with the position in the batch and its frame.
    pub fn new(fill: F) -> Generator<F> {
        Generator { fill, sink: Sink::default() }
    }
}

impl<F: FnMut(usize, FrameMut<'_>) + Send> Port for Generator<F> {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.refill(batch.capacity());
        let count = batch.len();
        for (i, mut frame) in batch.frames_mut().enumerate() {
            frame.set_tos(0);
            frame.send_to(0);
            (self.fill)(i, frame);
        }
        Ok(count)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.sink.transmit(batch, selected)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A port that takes every packet and never receives one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sink {
    /// Packets so far.
    pub packets: u64,
    /// Their octets.
    pub bytes: u64,
}

impl Port for Sink {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.clear();
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        for &position in selected {
            match batch.sendable(position) {
                Some(buffer) => {
                    sent.packets += 1;
                    sent.bytes += buffer.len();
                }
                None => sent.errors += 1,
            }
        }
        self.packets += sent.packets as u64;
        self.bytes += sent.bytes as u64;
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_fills_batches_and_counts_what_is_sent() {
        let mut port = Generator::new(|i, mut buffer: FrameMut<'_>| {
            if buffer.packet() != [7; 9] {
                buffer.set(&[7; 9]);
            }
            buffer.restore(9);
            buffer.packet_mut()[8] = i as u8;
        });
        let mut batch = Vector::new(3, 64);
        for _ in 0..2 {
            assert_eq!(port.receive(&mut batch).unwrap(), 3);
            assert_eq!(batch.frames()[2].packet(), [7, 7, 7, 7, 7, 7, 7, 7, 2]);
            batch.frame_mut(1).trim_front(4);
        }
        let sent = port.transmit(&mut batch, &[0, 1, 3]);
        assert_eq!(sent, Sent { packets: 2, bytes: 14, errors: 1, ..Sent::default() });
        assert_eq!((port.sink.packets, port.sink.bytes), (2, 14));
    }

    #[test]
    fn packets_pass_in_order_and_the_queue_is_bounded() {
        let (mut port, wire) = pair(2);
        let peer = "192.0.2.1:1".parse().unwrap();
        for n in 0..3u8 {
            wire.inject(&[n], peer);
        }
        let mut batch = Vector::new(8, 64);
        assert_eq!(port.receive(&mut batch).unwrap(), 3);
        let sent = port.transmit(&mut batch, &[2, 0, 1, 9]);
        assert_eq!(sent, Sent { packets: 2, bytes: 2, full: 1, errors: 1, ..Sent::default() });
        assert_eq!(wire.take(), [(vec![2], peer), (vec![0], peer)]);
        assert_eq!(port.receive(&mut batch).unwrap(), 0);
    }
}
