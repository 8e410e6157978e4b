//! Sending through a port that another thread owns.
//!
//! The worker that owns a frame port is the only one who may use it and its neighbours' table. What others have to send
//! there now and then (End Markers, path management) they put into an [`Outbox`], a port of its own; the owner
//! uses its port through [`Shared`], which sends what is waiting whenever it receives.
//!
//! The packets of an outbox are sent in their order. It holds [`CAPACITY`] packets; more are refused as by any full queue.
//! The owner loads one counter per batch to see whether packets are waiting. Only when some are does it take the lock, which
//! is held while pointers are copied. An owner that sleeps is woken by the first packet ([`Port::wake_with`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telemetry::DropReason;

use crate::poll::Waker;
use crate::{Pool, Port, Sent, Vector};

/// Packets that may wait: far more than a control task sends between two batches of a worker.
pub const CAPACITY: usize = 1024;
/// Packets sent with each batch of the owner; more wait for the next one.
const BATCH: usize = 32;
/// Longest packet: signalling is short, and a user's packet with its tunnel header fits as well.
const LONGEST: usize = 2048;

/// What the owner has to send.
#[derive(Debug, Default)]
struct Waiting {
    /// Each packet with its destination and traffic class.
    packets: VecDeque<(Vec<u8>, SocketAddr, u8)>,
    /// Wakes the owner.
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Packets in `waiting`; written under its lock.
    count: AtomicUsize,
    waiting: Mutex<Waiting>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end, for any number of threads. It never receives.
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Queue>);

/// A port with an outbox, for its owner.
pub struct Shared<P> {
    port: P,
    queue: Arc<Queue>,
    batch: Vector,
    lost: usize,
}

/// Gives a port an outbox.
pub fn share<P: Port>(port: P) -> (Shared<P>, Outbox) {
    let queue = Arc::new(Queue::default());
    let batch = Vector::new(BATCH, LONGEST);
    (Shared { port, queue: Arc::clone(&queue), batch, lost: 0 }, Outbox(queue))
}

impl<P: Port> Shared<P> {
    /// The port itself.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Sends up to a batch of what is waiting.
    fn send_waiting(&mut self) {
        self.batch.clear();
        {
            let packets = &mut self.queue.lock().packets;
            let take = packets.len().min(BATCH);
            for (packet, peer, tos) in packets.drain(..take) {
                // They were found to fit when they were put in.
                if self.batch.push(&packet, peer)
                    && let Some(mut frame) = self.batch.last_mut()
                {
                    frame.set_tos(tos);
                }
            }
            self.queue.count.store(packets.len(), Ordering::Release);
        }
        let mut selected = [0u16; BATCH];
        for (position, number) in selected.iter_mut().zip(0..) {
            *position = number;
        }
        let count = self.batch.len();
        let sent = self.port.transmit(&mut self.batch, &selected[..count]);
        self.lost += sent.full + sent.too_big + sent.errors;
    }
}

impl<P: Port> Port for Shared<P> {
    #[inline]
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        if self.queue.count.load(Ordering::Acquire) > 0 {
            self.send_waiting();
        }
        self.port.receive(batch)
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.port.transmit(batch, selected)
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        if self.lost > 0 {
            count(DropReason::TxError, self.lost);
            self.lost = 0;
        }
        self.port.losses(count);
    }

    fn unsent(&self) -> bool {
        self.port.unsent() || self.queue.count.load(Ordering::Relaxed) > 0
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        self.port.before_sleep()
    }

    fn wake_with(&mut self, waker: &Waker) {
        // Packets that wait already are sent when the owner receives for the first time.
        self.queue.lock().waker = Some(waker.clone());
        self.port.wake_with(waker);
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        self.port.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }
}

impl Port for Outbox {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.clear();
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        let waiting = &mut *self.0.lock();
        let packets = &mut waiting.packets;
        let were_waiting = !packets.is_empty();
        for &position in selected {
            let Some(buffer) = batch.sendable(position) else {
                sent.errors += 1;
                continue;
            };
            if buffer.len() > LONGEST {
                sent.too_big += 1;
            } else if packets.len() >= CAPACITY {
                sent.full += 1;
            } else {
                let Some(peer) = batch.destination(position.into()) else {
                    sent.errors += 1;
                    continue;
                };
                packets.push_back((buffer.packet().to_vec(), peer, buffer.tos()));
                sent.packets += 1;
                sent.bytes += buffer.len();
            }
        }
        // The owner sees the count when it has been woken. Who put in the first packet has woken it, or is about to: only
        // this lock lets others see that packet.
        self.0.count.store(packets.len(), Ordering::Release);
        if !were_waiting
            && sent.packets > 0
            && let Some(waker) = &waiting.waker
        {
            waker.wake();
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
    use crate::memory;
    use crate::poll::Poller;

    #[test]
    fn what_others_send_leaves_in_order_when_the_owner_receives() {
        let (port, wire) = memory::pair(4096);
        let (mut shared, outbox) = share(port);
        let peer: SocketAddr = "192.0.2.1:2152".parse().unwrap();
        let mut other = outbox.clone();
        std::thread::spawn(move || {
            let mut batch = Vector::new(1, 3000);
            for n in 0..40u8 {
                batch.clear();
                assert!(batch.push(&[n, n], peer));
                assert_eq!(other.transmit(&mut batch, &[0]).packets, 1);
            }
            batch.clear();
            assert!(batch.push(&[0; 2049], peer));
            assert_eq!(
                other.transmit(&mut batch, &[0, 7]),
                Sent { too_big: 1, errors: 1, ..Sent::default() }
            );
            assert_eq!(other.receive(&mut batch).unwrap(), 0);
        })
        .join()
        .unwrap();

        let mut batch = Vector::new(8, 64);
        wire.inject(b"in", peer);
        assert_eq!(shared.receive(&mut batch).unwrap(), 1);
        assert_eq!(wire.take().len(), BATCH, "a batch per look, so that users' packets do not wait");
        assert_eq!(shared.receive(&mut batch).unwrap(), 0);
        assert_eq!(wire.take(), (32..40).map(|n| (vec![n, n], peer)).collect::<Vec<_>>());
        assert_eq!(shared.receive(&mut batch).unwrap(), 0);
        assert!(wire.take().is_empty());
    }

    /// The owner sleeps whenever nothing is left, and others put packets in at random moments. If a packet did not wake it,
    /// later ones would not either.
    #[test]
    fn no_packet_waits_for_an_owner_that_sleeps() {
        const COUNT: usize = 20_000;
        let (port, wire) = memory::pair(4096);
        let (mut shared, outbox) = share(port);
        let mut poller = Poller::new().unwrap();
        shared.wake_with(&poller.waker());
        let senders = [1u32, 2].map(|mut noise| {
            let mut outbox = outbox.clone();
            std::thread::spawn(move || {
                let mut batch = Vector::new(1, 64);
                assert!(batch.push(&[0; 4], "192.0.2.1:2152".parse().unwrap()));
                for _ in 0..COUNT {
                    while outbox.transmit(&mut batch, &[0]).packets == 0 {
                        std::thread::yield_now();
                    }
                    noise ^= noise << 13;
                    noise ^= noise >> 17;
                    noise ^= noise << 5;
                    (0..noise % 2000).for_each(|_| std::hint::spin_loop());
                }
            })
        });
        let (mut batch, mut sent) = (Vector::new(8, 64), 0);
        while sent < 2 * COUNT {
            shared.receive(&mut batch).unwrap();
            sent += wire.take().len();
            if !shared.unsent() && sent < 2 * COUNT && !poller.wait(Some(100), |_| ()).unwrap().woken {
                // The senders were slow, or a signal ended the wait: then nothing waits now, or the owner is woken. A sender
                // puts its packet in and wakes the owner under one lock.
                drop(shared.queue.lock());
                assert!(
                    !shared.unsent() || poller.wait(Some(0), |_| ()).unwrap().woken,
                    "a packet woke nobody"
                );
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    }

    #[test]
    fn an_outbox_that_nobody_empties_is_bounded_and_what_the_port_refuses_is_counted() {
        let (port, wire) = memory::pair(10);
        let (mut shared, mut outbox) = share(port);
        let mut batch = Vector::new(1, 64);
        assert!(batch.push(b"x", "192.0.2.1:2152".parse().unwrap()));
        let sent = outbox.transmit(&mut batch, &[0; CAPACITY + 3]);
        assert_eq!((sent.packets, sent.full), (CAPACITY, 3));
        shared.receive(&mut Vector::new(1, 64)).unwrap();
        assert_eq!(wire.take().len(), 10);
        let mut lost = Vec::new();
        shared.losses(&mut |reason, count| lost.push((reason, count)));
        assert_eq!(lost, [(DropReason::TxError, BATCH - 10)]);
    }
}
