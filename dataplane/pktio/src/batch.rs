//! Buffers that are allocated once and reused for every batch.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// Free octets in front of a received packet: GTP-U with a PDU Session Container takes 20, Ethernet, IPv6 and
/// UDP would take 62 more.
pub const HEADROOM: usize = 128;

/// One packet in its buffer.
#[derive(Debug)]
pub struct Buffer {
    data: Box<[u8]>,
    start: usize,
    end: usize,
    /// On a UDP port: the sender after receiving, the destination when sending.
    pub peer: SocketAddr,
}

impl Buffer {
    fn new(capacity: usize) -> Buffer {
        Buffer {
            data: vec![0; HEADROOM + capacity].into_boxed_slice(),
            start: HEADROOM,
            end: HEADROOM,
            peer: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        }
    }

    /// The packet.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    /// The packet, to change in place.
    #[inline]
    pub fn packet_mut(&mut self) -> &mut [u8] {
        &mut self.data[self.start..self.end]
    }

    /// Length of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the packet has no octets.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The free octets in front of the packet. What is written at their end joins the packet by [`Buffer::grow_front`].
    #[inline]
    pub fn headroom(&mut self) -> &mut [u8] {
        &mut self.data[..self.start]
    }

    /// Moves the start of the packet `n` octets forward into the headroom; `false` when there is no room.
    #[inline]
    pub fn grow_front(&mut self, n: usize) -> bool {
        match self.start.checked_sub(n) {
            Some(start) => {
                self.start = start;
                true
            }
            None => false,
        }
    }

    /// Removes up to `n` octets from the front.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
    }

    /// Keeps at most the first `n` octets.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.end = self.end.min(self.start + n);
    }

    /// Replaces the packet; `false`, and an empty packet, when it does not fit.
    pub fn set(&mut self, packet: &[u8]) -> bool {
        self.start = HEADROOM;
        self.end = HEADROOM;
        let Some(space) = self.data.get_mut(HEADROOM..HEADROOM + packet.len()) else { return false };
        space.copy_from_slice(packet);
        self.end += packet.len();
        true
    }

    /// The whole space for a packet that is about to be received; sets the buffer to empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.start = HEADROOM;
        self.end = HEADROOM;
        &mut self.data[HEADROOM..]
    }

    /// Declares that `n` octets have been received into [`Buffer::space`].
    pub(crate) fn filled(&mut self, n: usize) {
        self.end = (self.start + n).min(self.data.len());
    }
}

/// A number of buffers, of which the first [`Batch::len`] hold packets.
#[derive(Debug)]
pub struct Batch {
    buffers: Vec<Buffer>,
    len: usize,
}

impl Batch {
    /// `capacity` buffers for packets of up to `packet_len` octets.
    pub fn new(capacity: usize, packet_len: usize) -> Batch {
        let capacity = capacity.clamp(1, usize::from(u16::MAX));
        Batch { buffers: (0..capacity).map(|_| Buffer::new(packet_len)).collect(), len: 0 }
    }

    /// How many packets the batch holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many it can hold.
    pub fn capacity(&self) -> usize {
        self.buffers.len()
    }

    /// The packets.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers[..self.len]
    }

    /// The packets, to change in place.
    #[inline]
    pub fn buffers_mut(&mut self) -> &mut [Buffer] {
        &mut self.buffers[..self.len]
    }

    /// Forgets the packets.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a copy of a packet; `false` when the batch is full or the packet does not fit.
    pub fn push(&mut self, packet: &[u8], peer: SocketAddr) -> bool {
        let Some(buffer) = self.buffers.get_mut(self.len) else { return false };
        if !buffer.set(packet) {
            return false;
        }
        buffer.peer = peer;
        self.len += 1;
        true
    }

    /// All buffers, including those without packet; for a backend that receives.
    pub(crate) fn all_mut(&mut self) -> &mut [Buffer] {
        &mut self.buffers
    }

    /// Declares that the first `n` buffers have been filled.
    pub(crate) fn set_len(&mut self, n: usize) {
        self.len = n.min(self.buffers.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_added_and_removed_in_place() {
        let mut batch = Batch::new(1, 16);
        let peer = "192.0.2.1:2152".parse().unwrap();
        assert!(batch.push(b"payload", peer));
        assert!(!batch.push(b"more", peer), "the batch is full");
        let buffer = &mut batch.buffers_mut()[0];
        let room = buffer.headroom();
        let at = room.len() - 2;
        room[at..].copy_from_slice(b"HH");
        assert!(buffer.grow_front(2));
        assert_eq!(buffer.packet(), b"HHpayload");
        buffer.trim_front(4);
        buffer.truncate(3);
        assert_eq!(buffer.packet(), b"ylo");
        assert!(!buffer.grow_front(HEADROOM + 100));
        buffer.trim_front(100);
        assert!(buffer.is_empty());
        assert!(!buffer.set(&[0; 17]));
    }
}
