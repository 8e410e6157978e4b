//! A controller as the rest of the switch sees it: its role, what it wants to hear of, and what waits to be sent to it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use openflow::{AsyncConfig, FlowRemovedReason, Message, PacketInReason, PortReason, Role};
use tokio::sync::Notify;

/// Octets of events behind which no packet waits for a controller. It is lost and counted: packets come again or do not matter.
const MAX_EVENTS: usize = 1 << 20;
/// The same for all else, with room for the entries of a full table that end at once. A controller that takes so little is
/// disconnected, as it would never learn what it has missed; when it connects again, it asks.
const MAX_NOTICES: usize = 32 << 20;

/// A connected controller.
#[derive(Debug)]
pub struct Peer {
    /// Tells connections apart.
    pub id: u64,
    /// Where it is.
    pub address: SocketAddr,
    role: Mutex<Role>,
    wants: Mutex<AsyncConfig>,
    events: Mutex<Vec<u8>>,
    /// Events have come.
    pub(crate) waiting: Notify,
    xid: AtomicU32,
    overrun: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// A controller that has just connected: one of several equals.
    pub fn new(id: u64, address: SocketAddr) -> Peer {
        Peer {
            id,
            address,
            role: Mutex::new(Role::Equal),
            wants: Mutex::new(AsyncConfig::INITIAL),
            events: Mutex::default(),
            waiting: Notify::new(),
            xid: AtomicU32::new(0),
            overrun: AtomicBool::new(false),
        }
    }

    /// Its role.
    pub fn role(&self) -> Role {
        *lock(&self.role)
    }

    pub(crate) fn set_role(&self, role: Role) {
        *lock(&self.role) = role;
    }

    /// What it wants to hear of.
    pub(crate) fn wants(&self) -> AsyncConfig {
        lock(&self.wants).clone()
    }

    pub(crate) fn set_wants(&self, wants: AsyncConfig) {
        *lock(&self.wants) = wants;
    }

    fn hears(&self, masks: [u32; 2], reason: u32) -> bool {
        masks[usize::from(self.role() == Role::Slave)] & 1 << reason != 0
    }

    /// Whether it wants packets that come for this reason.
    pub(crate) fn hears_of_packet(&self, reason: PacketInReason) -> bool {
        self.hears(self.wants().packet_in, reason as u32)
    }

    /// The same for changes of ports.
    pub(crate) fn hears_of_port(&self, reason: PortReason) -> bool {
        self.hears(self.wants().port_status, reason as u32)
    }

    /// The same for entries that are gone.
    pub(crate) fn hears_of_removal(&self, reason: FlowRemovedReason) -> bool {
        self.hears(self.wants().flow_removed, reason as u32)
    }

    /// Sends it an event; `false` if too much waits.
    pub(crate) fn tell(&self, message: &Message) -> bool {
        let is_packet = matches!(message, Message::PacketIn(_));
        let mut events = lock(&self.events);
        if events.len() >= if is_packet { MAX_EVENTS } else { MAX_NOTICES } {
            if !is_packet {
                self.overrun.store(true, Relaxed);
                self.waiting.notify_one();
            }
            return false;
        }
        if message.encode_into(self.xid.fetch_add(1, Relaxed), &mut events).is_err() {
            return false;
        }
        drop(events);
        self.waiting.notify_one();
        true
    }

    /// Whether it missed something that does not come again.
    pub(crate) fn is_overrun(&self) -> bool {
        self.overrun.load(Relaxed)
    }

    /// Takes the events.
    pub(crate) fn take_events(&self, out: &mut Vec<u8>) {
        out.append(&mut lock(&self.events));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_lost_before_notices() {
        let peer = Peer::new(1, "127.0.0.1:1".parse().unwrap());
        let packet = Message::PacketIn(openflow::PacketIn {
            buffer_id: openflow::BufferId::NO_BUFFER,
            total_len: 60_000,
            reason: PacketInReason::Action,
            table_id: openflow::TableId(0),
            cookie: 0,
            matching: openflow::Match::default(),
            data: vec![0; 60_000],
        });
        let notice = Message::EchoRequest(vec![0; 60_000]);
        assert!((0..100).any(|_| !peer.tell(&packet)));
        assert!(peer.tell(&notice));
        assert!(!peer.is_overrun());
        assert!((0..1000).any(|_| !peer.tell(&notice)));
        assert!(peer.is_overrun());
    }
}
