//! One packet in its memory, and the pools that memory comes from.
//!
//! A [`Frame`] is a chunk of a [`Pool`] and the extent of a packet in it: a piece of a UMEM, an mbuf, a chunk of a
//! [`Slab`](crate::slab::Slab). Frames live in a [`Vector`], which returns them to their pool. Sent
//! through a port of the same pool, the chunk itself goes to the device; any other port copies the packet.
//!
//! Invariants that the unsafe code here relies on:
//! - the memory of a frame is `room` octets at `base`, initialised, and reached through this frame only;
//! - it stays mapped while the frame exists: a pool frees its memory only after it has every chunk back. A vector that
//!   is leaked therefore leaks its pool;
//! - all frames of a vector belong to one pool. Nobody outside this crate gets a `&mut Frame`, with which frames of two
//!   vectors could be exchanged: changes go through [`FrameMut`]. Only pools of this crate lend frames.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Deref;
use std::ptr::NonNull;

use crate::Vector;

/// Free octets in front of a received packet: GTP-U with a PDU Session Container takes 20; Ethernet, IPv6 and
/// UDP take 66 more.
pub const HEADROOM: usize = 128;

/// Octets of a cache line.
const LINE: usize = 64;

/// Memory for frames. A pool is told apart by its address, so it is only used through an [`Arc`](std::sync::Arc).
/// Vectors rely on what a pool does, so all pools are in this crate.
pub trait Pool: memory::Memory {}

impl<M: memory::Memory> Pool for M {}

/// What vectors ask of pools. Nobody outside this crate can call or implement it.
pub(crate) mod memory {
    use super::{Frame, Vector, fmt};

    pub trait Memory: Send + Sync + fmt::Debug {
        /// Adds up to `count` empty frames to `vector`, which has room for them and holds frames of this pool only, by
        /// [`Vector::lend`].
        fn draw(&self, vector: &mut Vector, count: usize);

        /// Takes back the chunks of `frames` by [`Frame::take`]; all of them are of this pool. Called from any thread.
        fn take_back(&self, frames: &mut [Frame]);

        /// Longest packet that a frame of [`Memory::draw`] takes.
        fn longest(&self) -> usize;

        /// Whether its frames are mbufs, which every port of DPDK sends as they are.
        fn has_mbufs(&self) -> bool {
            false
        }
    }
}

/// The parts of a frame on its way between a pool or device and a vector. Losing them leaks the pool.
#[derive(Debug)]
pub(crate) struct RawFrame {
    /// First octet of the memory.
    pub base: NonNull<u8>,
    /// What the pool calls it: a number below [`TOKENS`].
    pub token: u64,
    /// Octets of the memory: not 0.
    pub room: u16,
    /// Where the packet begins in it.
    pub start: u16,
    /// Where the packet ends: at most `room`, not before `start`.
    pub end: u16,
}

/// Tokens are below this: they number chunks, or are addresses, of which user space has no higher ones.
pub(crate) const TOKENS: u64 = 1 << 48;

/// One packet in its chunk.
pub struct Frame {
    /// After the chunk was taken, it points nowhere.
    base: NonNull<u8>,
    /// The token in pieces of 16 bits, so that a frame is small.
    token: [u16; 3],
    /// 0 after the chunk was taken; `start` and `end` then are too.
    room: u16,
    start: u16,
    end: u16,
    /// Number of the peer to which the packet is sent; 0 for the vector's peer at its position.
    to: u16,
    tos: u8,
}

// SAFETY: the memory is reached through this frame only (module invariant), so it may go to another thread with it.
unsafe impl Send for Frame {}
// SAFETY: a shared frame only reads its memory.
unsafe impl Sync for Frame {}

/// For packets that are not sent to an address: to a number, or without one.
pub const NO_PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl Frame {
    /// A frame without chunk.
    pub(crate) const GONE: Frame =
        Frame { base: NonNull::dangling(), token: [0; 3], room: 0, start: 0, end: 0, to: 0, tos: 0 };

    /// Makes this the frame of a chunk, field by field: a frame that is built elsewhere and moved is read again before
    /// its parts have left the processor's store queue.
    ///
    /// # Safety
    /// As for [`Vector::lend`].
    #[inline(always)]
    pub(crate) unsafe fn fill_in(&mut self, raw: RawFrame) {
        let RawFrame { base, token, room, start, end } = raw;
        debug_assert!(start <= end && end <= room && room > 0 && token < TOKENS);
        self.base = base;
        self.token = [token as u16, (token >> 16) as u16, (token >> 32) as u16];
        (self.room, self.start, self.end) = (room, start, end);
        (self.to, self.tos) = (0, 0);
    }

    /// Takes the chunk; the frame is then gone. `None` if it was before.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<RawFrame> {
        if self.is_gone() {
            return None;
        }
        let Frame { base, token: [a, b, c], room, start, end, .. } = *self;
        self.base = NonNull::dangling();
        (self.start, self.end, self.room) = (0, 0, 0);
        Some(RawFrame {
            base,
            token: u64::from(c) << 32 | u64::from(b) << 16 | u64::from(a),
            room,
            start,
            end,
        })
    }

    /// Whether the chunk has been taken: the packet was sent, and there is nothing left to send.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.room == 0
    }

    #[inline(always)]
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The packet.
    #[inline(always)]
    pub fn packet(&self) -> &[u8] {
        // SAFETY: `start <= end <= room`, and the memory is valid for reads as the module's invariants say. A frame that
        // is gone has no octets.
        unsafe { std::slice::from_raw_parts(self.base().add(usize::from(self.start)), self.len()) }
    }

    /// Length of the packet.
    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Whether the packet has no octets.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// On a UDP port: traffic class (DSCP and ECN) of the outer header to send with.
    #[inline(always)]
    pub fn tos(&self) -> u8 {
        self.tos
    }

    /// The number of the peer to which the packet is sent; 0 if its vector has the address.
    #[inline(always)]
    pub(crate) fn to(&self) -> u16 {
        self.to
    }

    /// Asks the processor to fetch the packet's first octets.
    #[inline(always)]
    pub fn prefetch(&self) {
        self.prefetch_at(0);
    }

    /// The same for an Ethernet frame, whose headers reach into a second line: those of a tunnel and of the packet
    /// inside.
    #[inline(always)]
    pub(crate) fn prefetch_headers(&self) {
        self.prefetch_at(0);
        self.prefetch_at(LINE);
    }

    /// The same for a packet that another core has touched last, with the line in front, into which headers go.
    #[inline(always)]
    pub(crate) fn prefetch_around(&self) {
        self.prefetch_at(LINE.wrapping_neg());
        self.prefetch_headers();
    }

    #[inline(always)]
    fn prefetch_at(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing as far as the program can tell, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(
                self.base().wrapping_add(usize::from(self.start).wrapping_add(offset)).cast(),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// Makes a new packet of the `n` octets behind the headroom; `false`, and an empty packet, when there are not so
    /// many.
    #[inline(always)]
    fn restore(&mut self, n: usize) -> bool {
        let start = self.room.min(HEADROOM as u16);
        let fits = n <= usize::from(self.room - start);
        self.start = start;
        self.end = if fits { start + n as u16 } else { start };
        (self.to, self.tos) = (0, 0);
        fits
    }

    /// The memory of the packet at `start..end`.
    ///
    /// # Safety
    /// The offsets are in order and within the room.
    #[inline(always)]
    unsafe fn memory(&mut self, start: usize, end: usize) -> &mut [u8] {
        // SAFETY: the caller's promise, and the module's invariants; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base().add(start), end - start) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("packet", &self.packet()).field("tos", &self.tos).finish()
    }
}

/// A packet of a vector, to change in place.
pub struct FrameMut<'a> {
    frame: &'a mut Frame,
    /// On a UDP port: the sender after receiving; the destination when sending, unless that is a number.
    pub peer: &'a mut SocketAddr,
}

impl Deref for FrameMut<'_> {
    type Target = Frame;

    #[inline(always)]
    fn deref(&self) -> &Frame {
        self.frame
    }
}

impl<'a> FrameMut<'a> {
    #[inline(always)]
    pub(crate) fn new(frame: &'a mut Frame, peer: &'a mut SocketAddr) -> FrameMut<'a> {
        FrameMut { frame, peer }
    }

    /// On a UDP port: the packet is sent to the peer with this number in the vector's table ([`Vector::set_peers`]).
    #[inline(always)]
    pub fn send_to(&mut self, number: u16) {
        self.frame.to = number;
    }

    /// The packet, to change in place.
    #[inline(always)]
    pub fn packet_mut(&mut self) -> &mut [u8] {
        let (start, end) = (usize::from(self.frame.start), usize::from(self.frame.end));
        // SAFETY: `start <= end <= room`.
        unsafe { self.frame.memory(start, end) }
    }

    /// The free octets in front of the packet. What is written at their end joins the packet by
    /// [`FrameMut::grow_front`].
    #[inline(always)]
    pub fn headroom(&mut self) -> &mut [u8] {
        let start = usize::from(self.frame.start);
        // SAFETY: `start <= room`.
        unsafe { self.frame.memory(0, start) }
    }

    /// Moves the start of the packet `n` octets forward into the headroom; `false` when there is no room.
    #[inline(always)]
    pub fn grow_front(&mut self, n: usize) -> bool {
        if n > usize::from(self.frame.start) {
            return false;
        }
        self.frame.start -= n as u16;
        true
    }

    /// Removes up to `n` octets from the front.
    #[inline(always)]
    pub fn trim_front(&mut self, n: usize) {
        self.frame.start += n.min(self.len()) as u16;
    }

    /// Keeps at most the first `n` octets.
    #[inline(always)]
    pub fn truncate(&mut self, n: usize) {
        self.frame.end = self.frame.start + n.min(self.len()) as u16;
    }

    /// Takes up to `n` octets behind the packet, which [`FrameMut::truncate`] may have cut off, into it.
    #[inline]
    pub fn extend(&mut self, n: usize) {
        self.frame.end += n.min(usize::from(self.frame.room - self.frame.end)) as u16;
    }

    /// Replaces the packet by a new one, without traffic class and number of a peer; `false`, and an empty packet, when it
    /// does not fit.
    #[inline]
    pub fn set(&mut self, packet: &[u8]) -> bool {
        let fits = self.restore(packet.len());
        if fits {
            self.packet_mut().copy_from_slice(packet);
        }
        fits
    }

    /// Makes a new packet of the `n` octets behind the headroom, whatever they are; `false`, and an empty packet, when
    /// there are not so many. For generators of load, which write a packet once and send it often.
    #[inline(always)]
    pub fn restore(&mut self, n: usize) -> bool {
        self.frame.restore(n)
    }

    /// Sets the traffic class to send with.
    #[inline(always)]
    pub fn set_tos(&mut self, tos: u8) {
        self.frame.tos = tos;
    }

    /// The whole space for a packet that is about to be received; sets the frame to empty.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.restore(0);
        let (start, room) = (usize::from(self.frame.start), usize::from(self.frame.room));
        // SAFETY: `start <= room`.
        unsafe { self.frame.memory(start, room) }
    }

    /// Declares that `n` octets have been received into [`FrameMut::space`].
    #[inline]
    pub(crate) fn filled(&mut self, n: usize) {
        self.frame.end = self.frame.start + n.min(usize::from(self.frame.room - self.frame.start)) as u16;
    }
}

impl fmt::Debug for FrameMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameMut").field("frame", &self.frame).field("peer", &self.peer).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_small() {
        assert_eq!(size_of::<Frame>(), 24);
    }

    #[test]
    fn headers_are_added_and_removed_in_place() {
        let mut vector = Vector::new(1, 16);
        assert!(vector.push(b"payload", NO_PEER));
        let mut frame = vector.frame_mut(0);
        let room = frame.headroom();
        let at = room.len() - 2;
        room[at..].copy_from_slice(b"HH");
        assert!(frame.grow_front(2));
        assert_eq!(frame.packet(), b"HHpayload");
        frame.trim_front(4);
        frame.truncate(3);
        assert_eq!(frame.packet(), b"ylo");
        frame.extend(1);
        assert_eq!(frame.packet(), b"yloa");
        frame.extend(1000);
        assert!(frame.packet().starts_with(b"yload\0") && frame.len() == 14);
        frame.truncate(3);
        assert!(!frame.grow_front(HEADROOM + 100));
        frame.trim_front(100);
        assert!(frame.is_empty());
        assert!(!frame.set(&[0; 17]));
        assert!(frame.set(&[1; 16]));
        frame.trim_front(9);
        assert!(frame.restore(16));
        assert_eq!(frame.packet(), [1; 16]);
        assert!(!frame.restore(17) && frame.is_empty());
    }
}
