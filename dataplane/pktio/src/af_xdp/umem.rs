//! The memory that AF_XDP sockets exchange packets in: frames of equal size, of which each belongs to the kernel
//! (in a ring), to a batch, or to the list of free ones.
//!
//! One worker's sockets share one UMEM, so that a packet goes from one interface to the other without a copy. The
//! list is behind a lock that is taken once per batch, by that worker alone.

use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::buffer::{Buffer, Frame, Pool, PoolNumber};

/// Frames of a UMEM; see the module.
#[derive(Debug)]
pub struct Umem {
    number: PoolNumber,
    memory: NonNull<u8>,
    frame_len: u32,
    frames: u32,
    free: Mutex<Free>,
}

/// Frames that are neither the kernel's nor in a batch.
#[derive(Debug)]
pub(super) struct Free {
    /// Offsets of frames. The last one returned is the first one used: it is still in the caches.
    list: Vec<u64>,
    /// Frames in batches.
    lent: usize,
}

// SAFETY: the memory is reached through frames only, each of which has one owner at a time: the kernel, one buffer,
// or the list behind the lock.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// `frames` frames of `frame_len` octets each: 2048 or 4096, as the kernel demands.
    pub fn new(frames: u32, frame_len: u32) -> io::Result<Umem> {
        let number = PoolNumber::next().ok_or(io::ErrorKind::OutOfMemory)?;
        let length = frames as usize * frame_len as usize;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let list = (0..frames).rev().map(|i| u64::from(i) * u64::from(frame_len)).collect();
        Ok(Umem { number, memory, frame_len, frames, free: Mutex::new(Free { list, lent: 0 }) })
    }

    pub(super) fn base(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Octets in all.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.frames) * u64::from(self.frame_len)
    }

    pub(super) fn frame_len(&self) -> u32 {
        self.frame_len
    }

    /// How many frames are free.
    pub(super) fn free_frames(&self) -> usize {
        self.free().list.len()
    }

    pub(super) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frame around a packet that the kernel has put at `address`; `None` if that is not inside the UMEM.
    #[inline]
    pub(super) fn frame(&self, address: u64, length: u32) -> Option<Frame> {
        let start = (address & u64::from(self.frame_len - 1)) as u32;
        let token = address - u64::from(start);
        let end = start.checked_add(length)?;
        if address >= self.len() || end > self.frame_len {
            return None;
        }
        // SAFETY: the offset is inside the mapping, as was just checked.
        let base = unsafe { self.memory.add(token as usize) };
        Some(Frame { base, room: self.frame_len, start, end, token })
    }

    /// Writes a packet into a frame that the caller took from the list, `at` octets from its start.
    #[inline]
    pub(super) fn fill(&self, token: u64, at: u32, packet: &[u8]) {
        assert!(at as usize + packet.len() <= self.frame_len as usize && token < self.len());
        // SAFETY: the place is inside the mapping, as was just checked; the frame is the caller's, and `packet` is
        // memory of somebody else's.
        unsafe {
            let to = self.memory.as_ptr().add(token as usize + at as usize);
            std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
        }
    }
}

impl Free {
    /// A free frame.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.list.pop()
    }

    /// A frame is free again.
    #[inline]
    pub(super) fn push(&mut self, token: u64) {
        self.list.push(token);
    }

    /// `n` frames have gone into a batch.
    pub(super) fn lend(&mut self, n: usize) {
        self.lent += n;
    }

    /// `n` frames of a batch have gone to the kernel.
    pub(super) fn returned(&mut self, n: usize) {
        self.lent -= n;
    }
}

impl Pool for Umem {
    fn number(&self) -> PoolNumber {
        self.number
    }

    fn take_back(&self, buffers: &mut [Buffer]) {
        let mut free = self.free();
        for buffer in buffers {
            if let Some(frame) = buffer.take(self.number) {
                free.list.push(frame.token);
                free.lent -= 1;
            }
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // A frame that never came back may still be in use; its memory then stays mapped for good.
        if self.free().lent == 0 {
            // SAFETY: `new` made the mapping, all sockets are closed since they refer to this UMEM, and no buffer
            // has a frame of it.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len() as usize) };
        }
    }
}
