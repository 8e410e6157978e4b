//! DPDK's packet buffers behind ours.
//!
//! A received mbuf is lent to a batch as a [`Frame`] whose token is its address, and returns to the memory pool it
//! came from, which it knows itself. To the batch all mbufs of the process are therefore of one [`Pool`], whatever the
//! port, and a packet received on one DPDK port leaves through another without being copied.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::buffer::{Buffer, Frame, Pool, PoolNumber};

use super::Error;

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

    /// The frame that a batch may hold.
    #[inline]
    pub(super) fn to_frame(self) -> Option<Frame> {
        let Raw { base, mbuf, room, start, end } = self;
        Some(Frame { base: NonNull::new(base)?, room, start, end, token: mbuf as u64 })
    }

    /// What the C side needs to know of a frame that was taken from a batch.
    #[inline]
    pub(super) fn from_frame(frame: &Frame) -> Raw {
        let Frame { base, room, start, end, token } = *frame;
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
pub(super) struct Mbufs {
    number: PoolNumber,
}

impl Pool for Mbufs {
    fn number(&self) -> PoolNumber {
        self.number
    }

    fn take_back(&self, buffers: &mut [Buffer]) {
        for group in buffers.chunks_mut(CALL) {
            let mut mbufs = [std::ptr::null_mut(); CALL];
            let mut count = 0;
            for frame in group.iter_mut().filter_map(|buffer| buffer.take(self.number)) {
                mbufs[count] = frame.token as *mut u8;
                count += 1;
            }
            if count > 0 {
                // SAFETY: the first `count` are mbufs, which only the buffers knew of and do not any more.
                unsafe { godwit_frames_give(mbufs.as_mut_ptr(), count as u16) }
            }
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
pub(super) fn mbufs() -> Result<&'static Arc<Mbufs>, Error> {
    static MBUFS: OnceLock<Option<Arc<Mbufs>>> = OnceLock::new();
    MBUFS
        .get_or_init(|| PoolNumber::next().map(|number| Arc::new(Mbufs { number })))
        .as_ref()
        .ok_or_else(|| Error::new("buffers", "there are too many pools"))
}
