//! The far ends of tunnels, by number: the destinations of most packets.
//!
//! Sessions name a peer by its number, and so does a packet that is sent to it ([`FrameMut::send_to`]). A vector
//! carries the table of its numbers ([`Vector::set_peers`]). An entry has the peer's address in the kernel's form, for
//! sockets, and the ready-made headers of packets to it, for ports that write frames ([`stack`]). Ports read entries
//! under read-copy-update: one thread replaces an entry as a whole while others send to it.
//!
//! Who gives the number its address makes an entry without headers. The first port that sends to it adds them, and makes
//! them anew when a route, a neighbour or its own address has changed.
//!
//! [`FrameMut::send_to`]: crate::FrameMut::send_to
//! [`stack`]: crate::stack

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rcu::{Domain, Guard, Slots, Writer};

use crate::Vector;
use crate::name::Name;
use crate::stack::header::Header;

/// Peers that a table can hold. Number 0 stands for none.
pub const PEERS: usize = 1 << 16;

/// A peer, on two cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub(crate) name: Name,
    /// Of packets through the port that sends to this peer.
    pub(crate) header: Header,
}

const _: () = assert!(size_of::<Entry>() == 128);

/// A table of peers; see the module.
pub struct Peers {
    domain: Domain,
    slots: Slots<Entry>,
    writer: Mutex<Writer<Entry>>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peers")
    }
}

impl Default for Peers {
    /// An empty table.
    fn default() -> Peers {
        let domain = Domain::default();
        let writer = Writer::new(&domain);
        Peers { slots: writer.slots(PEERS), writer: Mutex::new(writer), domain }
    }
}

impl Peers {
    /// Whether the kernel has given the addresses for the table.
    pub fn has_addresses(&self) -> bool {
        self.slots.has_addresses()
    }

    fn writer(&self) -> MutexGuard<'_, Writer<Entry>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the peer with this number is. Packets that are being sent to the number may still reach the address
    /// it stood for before; `false`, and no change, for number 0, or when there is no memory.
    pub fn set(&self, number: u16, address: SocketAddr) -> bool {
        number != 0
            && self.replace(&mut self.writer(), number, Entry { name: address.into(), header: Header::NONE })
    }

    /// Replaces an entry; `false`, and no change, when there is no memory.
    fn replace(&self, writer: &mut Writer<Entry>, number: u16, entry: Entry) -> bool {
        writer.reclaim(|_| ());
        let Some(block) = writer.block(&[entry]) else { return false };
        writer.install(&self.slots, number.into(), block);
        // Not if there is no memory for the slot.
        writer.get(&self.slots, number.into()).is_some()
    }

    /// Where the peer with this number is. Takes a lock: ports read in another way.
    pub fn address(&self, number: u16) -> Option<SocketAddr> {
        Some(self.writer().get(&self.slots, number.into())?.first()?.name.address())
    }
}

/// A port's way to read the table of the vectors that it sends.
#[derive(Default)]
pub(crate) struct View(Option<Box<(Arc<Peers>, rcu::Reader)>>);

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("View")
    }
}

impl View {
    /// Reads the table of `vector` until the result is dropped: for the time of one call of `transmit`.
    #[inline]
    pub(crate) fn enter(&mut self, vector: &Vector) -> Inside<'_> {
        let table = vector.peers_table();
        if let Some(table) = table
            && !self.0.as_ref().is_some_and(|known| Arc::ptr_eq(&known.0, table))
        {
            self.0 = Some(Box::new((Arc::clone(table), table.domain.reader())));
        }
        let known = self.0.as_deref_mut().filter(|_| table.is_some());
        Inside(known.map(|(peers, reader)| (&**peers, reader.enter())))
    }
}

/// Entries of a table, to read.
pub(crate) struct Inside<'v>(Option<(&'v Peers, Guard<'v>)>);

impl Inside<'_> {
    /// The peer with this number.
    #[inline(always)]
    pub(crate) fn get(&self, number: u16) -> Option<&Entry> {
        let (peers, guard) = self.0.as_ref()?;
        peers.slots.load(guard, number.into())?.first()
    }

    /// Adds headers to the entry of a peer, unless the number has got another address since, or newer headers. If another
    /// thread is changing the table, a later packet adds them.
    #[cold]
    pub(crate) fn add_header(&self, number: u16, address: SocketAddr, header: &Header) {
        let Some((peers, _)) = &self.0 else { return };
        let Ok(mut writer) = peers.writer.try_lock() else { return };
        let Some(&[entry]) = writer.get(&peers.slots, number.into()) else { return };
        if entry.name.address() == address && entry.header.version() < header.version() {
            peers.replace(&mut writer, number, Entry { header: *header, ..entry });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_number_stands_for_the_address_that_it_was_given_last() {
        let peers = Arc::new(Peers::default());
        let addresses: [SocketAddr; 3] =
            ["192.0.2.1:2152", "[2001:db8::1]:2152", "192.0.2.1:2153"].map(|text| text.parse().unwrap());
        let mut vector = Vector::new(1, 64);
        let mut view = View::default();
        assert!(vector.push(b"x", "203.0.113.9:9".parse().unwrap()));
        assert!(view.enter(&vector).get(1).is_none(), "the vector has no table");
        vector.set_peers(&peers);
        for address in addresses {
            assert!(peers.set(1, address) && peers.set(65_535, address) && !peers.set(0, address));
            assert_eq!(peers.address(1), Some(address));
            assert_eq!(view.enter(&vector).get(65_535).map(|entry| entry.name.address()), Some(address));
        }
        assert!(view.enter(&vector).get(0).is_none() && view.enter(&vector).get(2).is_none());

        vector.frame_mut(0).send_to(1);
        assert_eq!(vector.destination(0), Some(addresses[2]));
        vector.frame_mut(0).send_to(2);
        assert_eq!(vector.destination(0), None, "nobody has the number");
        vector.clear();
        assert!(vector.push(b"x", addresses[0]));
        assert_eq!(vector.destination(0), Some(addresses[0]), "a new packet is to its own peer");
    }

    /// Readers see the one address or the other, whole.
    #[test]
    fn no_reader_sees_half_an_entry() {
        let peers = Arc::new(Peers::default());
        let address = |n: u8| SocketAddr::from(([n; 16], u16::from_be_bytes([n, n])));
        assert!(peers.set(7, address(1)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut vector = Vector::new(1, 64);
                    vector.set_peers(&peers);
                    let mut view = View::default();
                    let mut reads = 0u32;
                    while !stop.load(Ordering::Relaxed) || reads < 1000 {
                        let inside = view.enter(&vector);
                        for _ in 0..64 {
                            let seen = inside.get(7).unwrap().name.address();
                            assert_eq!(seen, address(seen.port() as u8));
                        }
                        reads += 1;
                    }
                });
            }
            for n in 0..100_000u32 {
                assert!(peers.set(7, address(n as u8 | 1)));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
