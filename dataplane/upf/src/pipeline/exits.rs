//! What nodes make besides sending the packets of a batch: packets that are sent in addition, packets that go through
//! the stages again, and events for the N4 task.

use std::net::SocketAddr;
use std::sync::Arc;

use pktio::{FrameMut, Pool, VECTOR, Vector};
use tokio::sync::mpsc;

use super::context::{Context, Source};
use super::{Event, Ports};

/// Packets sent in addition to a batch: copies, fragments, answers to data networks and to peers.
pub(super) const EXTRA: usize = 320;
/// Most events that are kept while the control task has no room.
const UNSENT: usize = 65_536;
/// When these are tried again while no packets come.
const EVENT_RETRY_NS: u64 = 1_000_000;

/// The edges of the nodes to ports, to the first stage and to the N4 task.
pub(super) struct Exits {
    pub extra: Extra,
    pub injections: Injections,
    pub events: Events,
    /// Memory in which a node writes a packet before it is copied into a frame.
    pub scratch: Box<[u8]>,
}

/// Packets that are sent after those of the batch.
pub(super) struct Extra {
    home: Arc<dyn Pool>,
    /// Position `n` is packet `n % VECTOR` of vector `n / VECTOR`.
    vectors: Vec<Vector>,
    /// Positions by number of the interface through which they leave.
    to: Vec<Vec<u16>>,
}

impl Extra {
    pub fn new(home: &Arc<dyn Pool>, interfaces: usize) -> Extra {
        Extra { home: Arc::clone(home), vectors: Vec::new(), to: vec![Vec::new(); interfaces] }
    }

    /// Adds a packet; returns it with its position, or `None` when there is no room. It is sent only after
    /// [`Extra::send`].
    pub fn push(&mut self, packet: &[u8], peer: SocketAddr) -> Option<(u16, FrameMut<'_>)> {
        let position = self.len();
        let number = position / VECTOR;
        if position >= EXTRA {
            return None;
        }
        if self.vectors.len() == number {
            self.vectors.push(Vector::of(&self.home));
        }
        let vector = &mut self.vectors[number];
        if !vector.push(packet, peer) {
            return None;
        }
        vector.last_mut().map(|frame| (position as u16, frame))
    }

    /// Sends the packet at a position through an interface.
    pub fn send(&mut self, interface: u8, position: u16) {
        self.to[usize::from(interface)].push(position);
    }

    /// Sends a packet as it is; returns whether there was room.
    pub fn push_to(&mut self, interface: u8, packet: &[u8], peer: SocketAddr) -> bool {
        let position = self.push(packet, peer).map(|(position, _)| position);
        if let Some(position) = position {
            self.send(interface, position);
        }
        position.is_some()
    }

    fn len(&self) -> usize {
        self.vectors.iter().map(Vector::len).sum()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.vectors.first().is_none_or(Vector::is_empty)
    }

    /// Number of packets for which there is still room.
    pub fn room(&self) -> usize {
        EXTRA - self.len()
    }

    #[inline]
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.vectors.iter_mut().for_each(Vector::clear);
            self.to.iter_mut().for_each(Vec::clear);
        }
    }

    #[inline]
    pub fn transmit(&mut self, context: &Context, ports: &mut Ports) {
        if !self.is_empty() {
            self.transmit_all(context, ports);
        }
    }

    #[cold]
    fn transmit_all(&mut self, context: &Context, ports: &mut Ports) {
        self.vectors.iter_mut().for_each(|vector| vector.set_peers(context.tables.peers()));
        for (interface, (positions, port)) in self.to.iter_mut().zip(ports).enumerate() {
            // Positions are in order.
            for part in positions.chunk_by_mut(|a, b| usize::from(*a) / VECTOR == usize::from(*b) / VECTOR) {
                let number = part.first().map_or(0, |first| usize::from(*first) / VECTOR);
                let Some(vector) = self.vectors.get_mut(number) else { continue };
                part.iter_mut().for_each(|position| *position %= VECTOR as u16);
                context.count_sent(interface, port.transmit(vector, part));
            }
        }
    }
}

/// Injected packets of one kind to UEs of one network instance.
pub(super) struct Injected {
    pub source: Source,
    /// The interface from which they seem to come.
    pub interface: u8,
    pub batch: Vector,
}

/// Packets that go through the stages after the present batch: see [`inject`](super::rare::inject).
pub(super) struct Injections {
    home: Arc<dyn Pool>,
    queues: Vec<Injected>,
}

impl Injections {
    pub fn new(home: &Arc<dyn Pool>) -> Injections {
        Injections { home: Arc::clone(home), queues: Vec::new() }
    }

    /// Queues a packet to a UE, as if it came from the data network of `interface`; `false` when there is no room.
    #[cold]
    pub fn push(&mut self, source: Source, packet: &[u8], interface: u8, peer: SocketAddr) -> bool {
        let alike = |known: &&mut Injected| known.source == source && known.interface == interface;
        if let Some(known) = self.queues.iter_mut().find(alike) {
            return known.batch.push(packet, peer);
        }
        let mut batch = Vector::of(&self.home);
        let queued = batch.push(packet, peer);
        if queued {
            self.queues.push(Injected { source, interface, batch });
        }
        queued
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Takes all packets.
    pub fn take(&mut self) -> Vec<Injected> {
        std::mem::take(&mut self.queues)
    }
}

/// Events for the control task.
pub(super) struct Events {
    sender: mpsc::Sender<Event>,
    /// Those for which it had no room.
    unsent: Vec<Event>,
}

impl Events {
    pub fn new(sender: mpsc::Sender<Event>) -> Events {
        Events { sender, unsent: Vec::new() }
    }

    /// Sends an event. It is kept when the queue is full, as marks are reported only once.
    pub fn send(&mut self, event: Event) {
        if let Err(mpsc::error::TrySendError::Full(event)) = self.sender.try_send(event)
            && self.unsent.len() < UNSENT
        {
            self.unsent.push(event);
        }
    }

    /// Sends an event that its cause repeats; without effect when the queue is full.
    pub fn offer(&self, event: Event) {
        let _ = self.sender.try_send(event);
    }

    /// Whether the queue is less than half full.
    pub fn has_room(&self) -> bool {
        self.sender.capacity() > self.sender.max_capacity() / 2
    }

    /// Tries those again for which there was no room.
    #[inline]
    pub fn retry(&mut self) {
        if !self.unsent.is_empty() {
            self.send_unsent();
        }
    }

    #[cold]
    fn send_unsent(&mut self) {
        if self.sender.is_closed() {
            // The N4 task has ended, and nobody will ever take them.
            self.unsent.clear();
        }
        let sent = self.unsent.iter().take_while(|event| self.sender.try_send((*event).clone()).is_ok());
        let sent = sent.count();
        self.unsent.drain(..sent);
    }

    /// When they are to be tried again.
    #[inline]
    pub fn next_retry_ns(&self, now_ns: u64) -> Option<u64> {
        (!self.unsent.is_empty()).then_some(now_ns + EVENT_RETRY_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events wait for a task that is busy, and not for one that has ended: a worker would wake for them for ever.
    #[test]
    fn unsent_events_end_with_the_task() {
        let (sender, mut receiver) = mpsc::channel(1);
        let mut events = Events::new(sender);
        let event = |seid| Event::DownlinkData { seid, pdr: 1 };
        (1..=3).for_each(|seid| events.send(event(seid)));
        assert_eq!(events.next_retry_ns(7), Some(7 + EVENT_RETRY_NS));
        for seid in 1..=2 {
            assert!(
                matches!(receiver.try_recv(), Ok(Event::DownlinkData { seid: came, .. }) if came == seid)
            );
            events.retry();
        }
        assert_eq!(events.next_retry_ns(7), None, "all are sent");
        events.send(event(4));
        assert!(events.next_retry_ns(7).is_some());
        drop(receiver);
        events.retry();
        assert_eq!(events.next_retry_ns(7), None);
    }
}
