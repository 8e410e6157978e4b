//! A port whose other end is a test: two bounded queues.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Batch, Port, Sent};

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
    fn receive(&mut self, batch: &mut Batch) -> io::Result<usize> {
        batch.clear();
        let mut queues = lock(&self.queues);
        while batch.len() < batch.capacity() {
            let Some((packet, peer)) = queues.to_port.pop_front() else { break };
            // A packet longer than a buffer is lost, as a device would lose it.
            batch.push(&packet, peer);
        }
        Ok(batch.len())
    }

    fn transmit(&mut self, batch: &mut Batch, selected: &[u16]) -> Sent {
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
            queues.from_port.push_back((buffer.packet().to_vec(), buffer.peer));
            sent.packets += 1;
            sent.bytes += buffer.len();
        }
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
    fn packets_pass_in_order_and_the_queue_is_bounded() {
        let (mut port, wire) = pair(2);
        let peer = "192.0.2.1:1".parse().unwrap();
        for n in 0..3u8 {
            wire.inject(&[n], peer);
        }
        let mut batch = Batch::new(8, 64);
        assert_eq!(port.receive(&mut batch).unwrap(), 3);
        let sent = port.transmit(&mut batch, &[2, 0, 1, 9]);
        assert_eq!(sent, Sent { packets: 2, bytes: 2, full: 1, errors: 1, ..Sent::default() });
        assert_eq!(wire.take(), [(vec![2], peer), (vec![0], peer)]);
        assert_eq!(port.receive(&mut batch).unwrap(), 0);
    }
}
