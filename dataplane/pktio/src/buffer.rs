//! One packet in its memory, and the backends that memory may come from.
//!
//! A [`Buffer`] made by a [`Batch`](crate::Batch) has memory of its own. A backend that receives without copying
//! lends frames of its pool instead: a piece of a UMEM, an mbuf. Sent through a port of the same pool, the frame
//! itself goes to the device; any other port copies the packet. What is not sent returns to its [`Pool`] with the
//! batch's next use.
//!
//! Invariants that the unsafe code here relies on:
//! - a buffer's memory is `room` octets at `base`, initialised, and reached through this buffer only;
//! - it stays mapped while the buffer exists: memory of its own goes with it, and a [`Pool`] may only free its
//!   memory once every frame it lent has come back. A buffer that is swapped into another batch, or leaked,
//!   therefore leaks at worst its pool.

use std::fmt;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Free octets in front of a received packet: GTP-U with a PDU Session Container takes 20; Ethernet, IPv6 and
/// UDP take 66 more.
pub const HEADROOM: usize = 128;

/// Names a [`Pool`] within the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolNumber(u16);

impl PoolNumber {
    /// The buffer's own memory.
    const OWN: PoolNumber = PoolNumber(0);
    /// No memory: the frame has been sent.
    const GONE: PoolNumber = PoolNumber(u16::MAX);

    /// A number that no other pool of this process has had; `None` when there have been 65,534 pools.
    pub fn next() -> Option<PoolNumber> {
        static LAST: AtomicU16 = AtomicU16::new(0);
        LAST.fetch_update(Relaxed, Relaxed, |last| (last < u16::MAX - 1).then_some(last + 1))
            .ok()
            .map(|last| PoolNumber(last + 1))
    }
}

/// Where lent frames return to.
pub trait Pool: Send + Sync + fmt::Debug {
    /// The pool's number, which its frames bear.
    fn number(&self) -> PoolNumber;

    /// Takes back the frames of this pool that `buffers` still hold, by [`Buffer::take`]. Called from any thread.
    fn take_back(&self, buffers: &mut [Buffer]);
}

/// A frame on its way between a backend and a buffer. Not returning one to its pool leaks the pool.
#[derive(Debug)]
pub struct Frame {
    /// First octet of the memory.
    pub base: NonNull<u8>,
    /// Octets of the memory.
    pub room: u32,
    /// Where the packet begins in it.
    pub start: u32,
    /// Where it ends: at most `room`, not before `start`.
    pub end: u32,
    /// What the backend calls it.
    pub token: u64,
}

/// One packet in its buffer.
pub struct Buffer {
    base: NonNull<u8>,
    token: u64,
    room: u32,
    start: u32,
    end: u32,
    owner: PoolNumber,
    /// On a UDP port: traffic class (DSCP and ECN) of the outer header to send with. Receiving sets it to 0.
    pub tos: u8,
    /// On a UDP port: the sender after receiving, the destination when sending.
    pub peer: SocketAddr,
}

// SAFETY: the memory is reached through this buffer only (module invariant), so it may go to another thread with it.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer only reads its memory.
unsafe impl Sync for Buffer {}

const NO_PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

impl Buffer {
    /// An empty buffer with memory of its own for packets of up to `capacity` octets.
    pub(crate) fn new(capacity: usize) -> Buffer {
        let room = (HEADROOM + capacity).min(u32::MAX as usize);
        let memory = Box::into_raw(vec![0u8; room].into_boxed_slice());
        // A box of at least HEADROOM octets is not null.
        let base = NonNull::new(memory.cast::<u8>()).unwrap_or(NonNull::dangling());
        let (start, room) = (HEADROOM as u32, room as u32);
        Buffer { base, token: 0, room, start, end: start, owner: PoolNumber::OWN, tos: 0, peer: NO_PEER }
    }

    /// Makes a buffer in a backend's frame, in `place`.
    ///
    /// Field by field: a buffer that is built elsewhere and moved is read again before its parts have left the
    /// processor's store queue, which costs more than all else here.
    ///
    /// # Safety
    /// The frame's memory is initialised, `start <= end <= room`, nobody else uses it until it is taken again, and
    /// the pool `owner` keeps it mapped until then.
    #[inline]
    pub(crate) unsafe fn lent(place: &mut MaybeUninit<Buffer>, frame: Frame, owner: PoolNumber) {
        let Frame { base, room, start, end, token } = frame;
        debug_assert!(start <= end && end <= room && owner != PoolNumber::OWN);
        let place = place.as_mut_ptr();
        // SAFETY: each is a field of the place, which is ours.
        unsafe {
            (&raw mut (*place).base).write(base);
            (&raw mut (*place).token).write(token);
            (&raw mut (*place).room).write(room);
            (&raw mut (*place).start).write(start);
            (&raw mut (*place).end).write(end);
            (&raw mut (*place).owner).write(owner);
            (&raw mut (*place).tos).write(0);
            (&raw mut (*place).peer).write(NO_PEER);
        }
    }

    /// Takes the frame if it is one of pool `owner`; the buffer is then empty and without memory.
    #[inline]
    pub fn take(&mut self, owner: PoolNumber) -> Option<Frame> {
        if self.owner != owner || owner == PoolNumber::OWN || owner == PoolNumber::GONE {
            return None;
        }
        let Buffer { base, token, room, start, end, .. } = *self;
        self.base = NonNull::dangling();
        (self.room, self.start, self.end, self.owner) = (0, 0, 0, PoolNumber::GONE);
        Some(Frame { base, room, start, end, token })
    }

    /// Whether the frame has been taken: it was sent, and there is nothing left to send.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.owner == PoolNumber::GONE
    }

    /// The packet.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        // SAFETY: `start <= end <= room`, and the memory is valid for reads as the module's invariants say.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.start as usize), self.len()) }
    }

    /// The packet, to change in place.
    #[inline]
    pub fn packet_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `packet`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(self.start as usize), self.len()) }
    }

    /// Length of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the packet has no octets.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Asks the processor to fetch the packet's first octets.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing as far as the program can tell, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(self.start as usize).cast());
        }
    }

    /// The same for a frame, whose headers reach into a second line: those of a tunnel and of the packet inside.
    #[inline]
    pub(crate) fn prefetch_headers(&self) {
        const LINE: usize = 64;
        self.prefetch();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `prefetch`.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().wrapping_add(self.start as usize + LINE).cast());
        }
    }

    /// The free octets in front of the packet. What is written at their end joins the packet by [`Buffer::grow_front`].
    #[inline]
    pub fn headroom(&mut self) -> &mut [u8] {
        // SAFETY: `start <= room`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.start as usize) }
    }

    /// Moves the start of the packet `n` octets forward into the headroom; `false` when there is no room.
    #[inline]
    pub fn grow_front(&mut self, n: usize) -> bool {
        if n > self.start as usize {
            return false;
        }
        self.start -= n as u32;
        true
    }

    /// Removes up to `n` octets from the front.
    #[inline]
    pub fn trim_front(&mut self, n: usize) {
        self.start += n.min(self.len()) as u32;
    }

    /// Keeps at most the first `n` octets.
    #[inline]
    pub fn truncate(&mut self, n: usize) {
        self.end = self.start + n.min(self.len()) as u32;
    }

    /// Takes up to `n` octets behind the packet, which [`Buffer::truncate`] may have cut off, into it.
    #[inline]
    pub fn extend(&mut self, n: usize) {
        self.end += n.min((self.room - self.end) as usize) as u32;
    }

    /// Replaces the packet; `false`, and an empty packet, when it does not fit.
    #[inline]
    pub fn set(&mut self, packet: &[u8]) -> bool {
        let fits = self.restore(packet.len());
        if fits {
            self.packet_mut().copy_from_slice(packet);
        }
        fits
    }

    /// Makes a packet of the `n` octets behind the headroom, whatever they are; `false`, and an empty packet, when
    /// there are not so many. For generators of load, which write a packet once and send it often.
    #[inline]
    pub fn restore(&mut self, n: usize) -> bool {
        let start = self.room.min(HEADROOM as u32);
        let fits = n <= (self.room - start) as usize;
        self.start = start;
        self.end = if fits { start + n as u32 } else { start };
        fits
    }

    /// The whole space for a packet that is about to be received; sets the buffer to empty.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.restore(0);
        self.tos = 0;
        let (start, room) = (self.start as usize, (self.room - self.start) as usize);
        // SAFETY: `start + room` is the memory's length; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), room) }
    }

    /// Declares that `n` octets have been received into [`Buffer::space`].
    #[inline]
    pub(crate) fn filled(&mut self, n: usize) {
        self.end = self.start + n.min((self.room - self.start) as usize) as u32;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owner == PoolNumber::OWN {
            let memory = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.room as usize);
            // SAFETY: `new` made the memory as a box of `room` octets, and neither has changed since.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("packet", &self.packet())
            .field("peer", &self.peer)
            .field("tos", &self.tos)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_fills_a_cache_line() {
        assert_eq!(size_of::<Buffer>(), 64);
    }

    #[test]
    fn headers_are_added_and_removed_in_place() {
        let mut buffer = Buffer::new(16);
        assert!(buffer.set(b"payload"));
        let room = buffer.headroom();
        let at = room.len() - 2;
        room[at..].copy_from_slice(b"HH");
        assert!(buffer.grow_front(2));
        assert_eq!(buffer.packet(), b"HHpayload");
        buffer.trim_front(4);
        buffer.truncate(3);
        assert_eq!(buffer.packet(), b"ylo");
        buffer.extend(1);
        assert_eq!(buffer.packet(), b"yloa");
        buffer.extend(1000);
        assert!(buffer.packet().starts_with(b"yload\0") && buffer.len() == 14);
        buffer.truncate(3);
        assert!(!buffer.grow_front(HEADROOM + 100));
        buffer.trim_front(100);
        assert!(buffer.is_empty());
        assert!(!buffer.set(&[0; 17]));
        assert!(buffer.set(&[1; 16]));
        buffer.trim_front(9);
        assert!(buffer.restore(16));
        assert_eq!(buffer.packet(), [1; 16]);
        assert!(!buffer.restore(17) && buffer.is_empty());
    }

    #[test]
    fn own_memory_is_never_taken() {
        let mut buffer = Buffer::new(16);
        assert!(buffer.take(PoolNumber::OWN).is_none());
        assert!(buffer.take(PoolNumber::next().unwrap()).is_none());
        assert!(!buffer.is_gone() && buffer.set(&[1; 16]));
    }
}
