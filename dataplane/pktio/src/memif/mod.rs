//! memif: Ethernet frames through memory shared with another process, such as VPP or a program of DPDK.
//!
//! ```text
//! peer ── Unix socket ── session (a thread): connects, checks, notices the end      protocol, region
//!   │                       │ Slot: the two ends of a queue's rings
//!   └── shared memory ── MemifPort (a worker): copies packets in and out             ring, wait
//! ```
//! [`MemifPort::open`] takes a device string such as DPDK's: `memif0,role=server,socket=/run/godwit/n3.sock` ([`Settings`]).
//! Both roles connect again for ever, whichever side starts first. DPDK is not needed, and a DPDK program may be the peer.
//!
//! A worker can sleep until packets come ([`wait`]). Packets are copied into frames of the vector's home pool and out of the
//! frames of any pool. Chains of descriptors become one frame; chains too long for a frame are dropped (`too_big`). Packets
//! that wait when the peer ends are still received; those that it had not taken count as `peer_gone`.
//!
//! Invariants: the peer may do what it likes with the shared memory and the socket. This side reads and writes nothing
//! outside the mapping, the mapping stays while a port may use it, and memory and time per connection are bounded. A peer
//! that breaks the rules is disconnected. What a peer can still do: garble packets, and stop a worker by making the eventfd
//! that it rings block. So whoever may open the socket is trusted that far.

#[cfg(test)]
mod hostile;
pub mod protocol;
mod region;
mod ring;
mod session;
mod settings;
mod wait;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use packet::ethernet::Mac;
use telemetry::DropReason;

use crate::{Frame, FramePort, Port, Sent, VECTOR, Vector};
pub use ring::Role;
use ring::{Put, Taken, Violation};
use session::{Ends, Session, Slot};
pub use settings::{Settings, SettingsError};
use wait::Wait;

/// Packets for which memory is fetched before they are copied. Their lines are in the other core's cache.
const AHEAD: u16 = 8;

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device string.
    #[error("memif: {0}")]
    Settings(#[from] SettingsError),
    /// The socket, the thread or a descriptor.
    #[error("memif: {socket}: {error}")]
    Socket {
        /// Its path.
        socket: String,
        /// Why.
        error: io::Error,
    },
}

/// One queue of a memif.
#[derive(Debug)]
pub struct MemifPort {
    queue: u16,
    /// The ends of the rings, from the connection's beginning until no packet is left after its end.
    ends: Option<Ends>,
    /// Whether the connection lasts.
    up: bool,
    /// After its end: how many descriptors are still read.
    remaining: u16,
    /// The number of the connection.
    generation: u64,
    wait: Wait,
    /// Packets lost since the last call of `losses`.
    lost: Lost,
    /// The last port ends it.
    session: Arc<Session>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Lost {
    /// Received and too long for a frame.
    too_long: usize,
    /// Sent and not taken by the peer before it ended.
    peer_gone: usize,
    /// The peer broke the rules.
    violations: usize,
}

impl MemifPort {
    /// Opens a device: a port per queue. A server listens when the call returns; peers are connected later.
    ///
    /// # Errors
    /// The device string is wrong, or a server's socket cannot be made, such as when another server listens there.
    pub fn open(device: &str, queues: u16, mtu: u16) -> Result<Vec<MemifPort>, OpenError> {
        let settings = Settings::parse(device, queues, mtu)?.read_secret()?;
        let (queues, socket) = (settings.queues, settings.socket.display().to_string());
        let open = || -> io::Result<Vec<MemifPort>> {
            let session = Arc::new(Session::start(settings)?);
            (0..queues).map(|queue| MemifPort::new(queue, &session)).collect()
        };
        open().map_err(|error| OpenError::Socket { socket, error })
    }

    fn new(queue: u16, session: &Arc<Session>) -> io::Result<MemifPort> {
        Ok(MemifPort {
            queue,
            ends: None,
            up: false,
            remaining: 0,
            generation: 0,
            wait: Wait::new(session.shared.slot(queue))?,
            lost: Lost::default(),
            session: Arc::clone(session),
        })
    }

    /// Whether a peer is connected.
    pub fn is_up(&self) -> bool {
        self.session.shared.is_connected()
    }

    #[inline]
    fn slot(&self) -> &Slot {
        self.session.shared.slot(self.queue)
    }

    /// The connection has changed since this port looked last.
    #[cold]
    fn look(&mut self) {
        match &self.ends {
            // Packets are left of a connection that has ended: they come before those of the next one.
            Some(_) if !self.up => (),
            Some(ends) => {
                self.up = false;
                self.lost.peer_gone += usize::from(ends.sender.in_flight());
                self.remaining = ends.receiver.waiting().unwrap_or(0);
                if self.remaining == 0 {
                    self.drop_ends();
                }
            }
            None => {
                let waiting = self.slot().take();
                (self.ends, self.up, self.generation) = (waiting.ends, waiting.up, waiting.generation);
                if let Some(ends) = &self.ends {
                    self.wait.watch(&ends.receiver);
                    self.remaining = ends.receiver.waiting().unwrap_or(0);
                }
            }
        }
        let slot = self.session.shared.slot(self.queue);
        self.wait.busy(slot, self.ends.as_ref().map(|ends| &ends.receiver));
    }

    /// The peer broke the rules: no more of this connection.
    #[cold]
    fn broken(&mut self, violation: Violation) {
        self.lost.violations += 1;
        if self.up {
            self.lost.peer_gone += self.ends.as_ref().map_or(0, |ends| usize::from(ends.sender.in_flight()));
            self.session.shared.report(self.generation, violation);
        }
        self.drop_ends();
        self.up = false;
    }

    fn drop_ends(&mut self) {
        if let Some(ends) = self.ends.take() {
            self.wait.forget(&ends.receiver);
        }
    }

    /// Copies waiting packets to the vector; how many there are, and whether the peer broke the rules meanwhile.
    #[inline]
    fn copy_in(&mut self, vector: &mut Vector) -> (usize, Result<(), Violation>) {
        let longest = self.session.shared.settings().frame() as usize;
        let Some(Ends { receiver, .. }) = &mut self.ends else { return (0, Ok(())) };
        let mut waiting = match receiver.waiting_up_to(VECTOR as u16) {
            Ok(waiting) if self.up => waiting,
            Ok(waiting) => waiting.min(self.remaining),
            Err(violation) => return (0, Err(violation)),
        };
        if waiting == 0 {
            return (0, Ok(()));
        }
        receiver.prefetch_next();
        let (room, before) = (vector.draw(VECTOR, longest), waiting);
        let (mut received, mut result) = (0, Ok(()));
        (0..AHEAD.min(waiting)).for_each(|ahead| receiver.prefetch(ahead));
        while waiting > 0 && received < room {
            let Some(mut frame) = vector.drawn(received) else { break };
            if waiting > AHEAD {
                receiver.prefetch(AHEAD);
            }
            match receiver.take(&mut waiting, frame.space()) {
                Ok(Taken::Packet(length)) => {
                    frame.filled(length);
                    received += 1;
                }
                Ok(Taken::TooLong) => self.lost.too_long += 1,
                Err(violation) => {
                    result = Err(violation);
                    break;
                }
            }
        }
        vector.set_len(received);
        receiver.release();
        if !self.up {
            self.remaining -= before - waiting;
        }
        (received, result)
    }
}

impl Port for MemifPort {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        if self.slot().generation() != self.generation {
            self.look();
        }
        let (received, result) = self.copy_in(vector);
        if let Err(violation) = result {
            self.broken(violation);
        } else if !self.up && self.remaining == 0 {
            self.drop_ends();
        }
        let slot = self.session.shared.slot(self.queue);
        let receiver = self.ends.as_ref().map(|ends| &ends.receiver);
        match received {
            0 => {
                self.wait.idle(slot, self.generation, receiver);
                if let Some(ends) = &self.ends {
                    ends.sender.prepare();
                }
            }
            _ => self.wait.busy(slot, receiver),
        }
        Ok(received)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        if self.slot().generation() != self.generation {
            self.look();
        }
        let mut sent = Sent::default();
        let longest = self.session.shared.settings().frame() as usize;
        let sender = self.ends.as_mut().filter(|_| self.up).map(|ends| &mut ends.sender);
        let Some(sender) = sender else {
            sent.full = selected.len();
            return sent;
        };
        let length = |position: &u16| vector.sendable(*position).map_or(0, Frame::len);
        for (ahead, position) in (0..AHEAD).zip(selected) {
            sender.prefetch(ahead, length(position));
        }
        let mut result = Ok(());
        for (number, &position) in selected.iter().enumerate() {
            let Some(frame) = vector.sendable(position) else {
                sent.errors += 1;
                continue;
            };
            if let Some(later) = selected.get(number + usize::from(AHEAD)) {
                sender.prefetch(AHEAD, length(later));
            }
            let put = match result {
                _ if frame.len() > longest => Ok(Put::TooLong),
                // Nor do shorter packets pass one for which there was no room: what was sent is always the first part.
                Ok(()) if sent.full > 0 => Ok(Put::Full),
                Ok(()) => sender.put(frame.packet()),
                Err(violation) => Err(violation),
            };
            match put {
                Ok(Put::Done) => {
                    sent.packets += 1;
                    sent.bytes += frame.len();
                }
                Ok(Put::Full) => sent.full += 1,
                Ok(Put::TooLong) => sent.too_big += 1,
                Err(violation) => {
                    sent.errors += 1;
                    result = Err(violation);
                }
            }
        }
        sender.publish();
        if let Err(violation) = result {
            self.broken(violation);
        }
        sent
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        let Lost { too_long, peer_gone, violations } = std::mem::take(&mut self.lost);
        let reasons = [
            (DropReason::TooBig, too_long),
            (DropReason::PeerGone, peer_gone),
            (DropReason::RxError, violations),
        ];
        for (reason, packets) in reasons.into_iter().filter(|(_, packets)| *packets > 0) {
            count(reason, packets);
        }
    }

    fn before_sleep(&mut self) -> io::Result<()> {
        let slot = self.session.shared.slot(self.queue);
        let receiver = self.ends.as_ref().map(|ends| &ends.receiver);
        self.wait.before_sleep(slot, self.generation, receiver);
        Ok(())
    }

    /// Readable until [`Port::receive`] has found nothing several times in a row, and again when packets come or the
    /// connection changes. After [`Port::before_sleep`] only until packets are received.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wait.fd())
    }
}

impl FramePort for MemifPort {
    fn mac(&self) -> Mac {
        self.session.shared.settings().mac
    }

    fn mtu(&self) -> usize {
        self.session.shared.settings().mtu.into()
    }
}
