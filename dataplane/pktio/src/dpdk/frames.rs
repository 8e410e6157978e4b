//! DPDK's packet buffers behind ours.
//!
//! A received mbuf is lent to a vector as a [`Frame`] whose token is its address, and returns to the memory pool it
//! came from, which it knows itself. To the vector all received mbufs of the process are therefore of one [`Pool`], whatever
//! the port, and a packet received on one DPDK port leaves through another without being copied. So does a packet that a
//! socket has received into the mbufs of a device ([`DpdkPort`](super::port::DpdkPort)'s pool).

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::Vector;
use crate::frame::{Frame, Pool, RawFrame, TOKENS, memory};

/// Frames handed over per call: the size of arrays on the stack.
const CALL: usize = 64;

/// A frame as the C side describes it. Equal to `struct godwit_frame` of port.c.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Raw {
    base: *mut u8,
    mbuf: *mut u8,
    room: u32,
    start: u32,
    end: u32,
}

impl Raw {
    pub(super) const NONE: Raw =
        Raw { base: std::ptr::null_mut(), mbuf: std::ptr::null_mut(), room: 0, start: 0, end: 0 };

    /// The frame that a vector may hold.
    #[inline]
    pub(super) fn to_frame(self) -> Option<RawFrame> {
        let Raw { base, mbuf, room, start, end } = self;
        // DPDK has 16 bits for each of them.
        let (room, start, end) = (room as u16, start as u16, end as u16);
        // User space has no memory beyond, unless somebody asks the kernel for it: rather lose an mbuf than mistake one.
        let token = Some(mbuf as u64).filter(|address| *address < TOKENS && room > 0)?;
        Some(RawFrame { base: NonNull::new(base)?, token, room, start, end })
    }

    /// What the C side needs to know of a frame that was taken from a vector.
    #[inline]
    pub(super) fn from_frame(frame: &RawFrame) -> Raw {
        let RawFrame { base, token, room, start, end } = *frame;
        let (room, start, end) = (room.into(), start.into(), end.into());
        Raw { base: base.as_ptr(), mbuf: token as *mut u8, room, start, end }
    }

    /// Octets of the packet.
    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Places a copy of a packet in a frame that was just taken from its pool; `false` when it does not fit.
    pub(super) fn fill(&mut self, packet: &[u8]) -> bool {
        if packet.len() > (self.room - self.start) as usize {
            return false;
        }
        // SAFETY: the frame is an mbuf that only the caller knows of, with `room - start` octets behind `start`.
        unsafe {
            let to = self.base.add(self.start as usize);
            std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
        }
        self.end = self.start + packet.len() as u32;
        true
    }
}

unsafe extern "C" {
    fn godwit_frames_give(mbufs: *mut *mut u8, count: u16);
}

/// All mbufs of the process.
#[derive(Debug)]
pub(super) struct Mbufs(());

impl memory::Memory for Mbufs {
    /// Adds none: a device's own memory pool gives its frames.
    fn draw(&self, _: &mut Vector, _: usize) {}

    fn take_back(&self, frames: &mut [Frame]) {
        take_back(frames);
    }

    fn longest(&self) -> usize {
        0
    }

    fn has_mbufs(&self) -> bool {
        true
    }
}

/// Gives back the mbufs of frames.
pub(super) fn take_back(frames: &mut [Frame]) {
    for group in frames.chunks_mut(CALL) {
        let mut mbufs = [std::ptr::null_mut(); CALL];
        let mut count = 0;
        for raw in group.iter_mut().filter_map(Frame::take) {
            mbufs[count] = raw.token as *mut u8;
            count += 1;
        }
        if count > 0 {
            // SAFETY: the first `count` are mbufs, which only the frames knew of and do not any more.
            unsafe { godwit_frames_give(mbufs.as_mut_ptr(), count as u16) }
        }
    }
}

/// Gives back frames that were taken and not used.
pub(super) fn give(frames: &[Raw]) {
    for group in frames.chunks(CALL) {
        let mut mbufs = [std::ptr::null_mut(); CALL];
        for (mbuf, raw) in mbufs.iter_mut().zip(group) {
            *mbuf = raw.mbuf;
        }
        // SAFETY: as many mbufs as the group has, which only the caller knew of.
        unsafe { godwit_frames_give(mbufs.as_mut_ptr(), group.len() as u16) }
    }
}

/// The pool of all mbufs.
pub(super) fn mbufs() -> Arc<dyn Pool> {
    static MBUFS: OnceLock<Arc<Mbufs>> = OnceLock::new();
    Arc::<Mbufs>::clone(MBUFS.get_or_init(|| Arc::new(Mbufs(()))))
}
