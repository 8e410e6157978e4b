//! The memory that AF_XDP sockets exchange packets in (UMEM): chunks of equal size. At any time a chunk belongs to the
//! kernel (its address is in a ring), to a frame of a vector, or to the list of free chunks.
//!
//! One worker's sockets share one UMEM, so that a packet goes from one interface to the other without a copy. The
//! list is behind a lock that is taken once per batch, by that worker alone.
//!
//! A packet may begin anywhere in its chunk. The kernel therefore hands addresses back that point into a chunk: those
//! of received packets, and those of sent packets, which it returns as they were submitted. [`Umem::chunk`] is the only
//! way from an address to a chunk, whatever the address.

use std::io;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Vector;
use crate::frame::{Frame, HEADROOM, RawFrame, memory};

/// A chunk by its number. Its owner alone may write into it, so it can be neither copied nor cloned.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk(u32);

/// The chunks of one worker's sockets; see the module.
#[derive(Debug)]
pub struct Umem {
    memory: NonNull<u8>,
    /// Octets of a chunk.
    chunk_len: u32,
    chunks: u32,
    free: Mutex<Free>,
}

/// Chunks that are neither the kernel's nor in a batch.
#[derive(Debug)]
pub(super) struct Free {
    /// The chunk returned last is used first: it is still in the caches.
    list: Vec<Chunk>,
    /// Chunks in batches.
    lent: usize,
}

// SAFETY: the memory is reached through chunks only, each of which has one owner at a time: the kernel, one buffer,
// or the list behind the lock.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// `chunks` chunks of `chunk_len` octets each: 2048 or 4096, as the kernel demands.
    pub fn new(chunks: u32, chunk_len: u32) -> io::Result<Umem> {
        if !matches!(chunk_len, 2048 | 4096) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = chunks as usize * chunk_len as usize;
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
        let list = (0..chunks).rev().map(Chunk).collect();
        Ok(Umem { memory, chunk_len, chunks, free: Mutex::new(Free { list, lent: 0 }) })
    }

    pub(super) fn base(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Octets in all.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.chunk_len)
    }

    pub(super) fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Number of chunks.
    pub(super) fn chunks(&self) -> usize {
        self.chunks as usize
    }

    /// How many chunks are free.
    pub(super) fn free_chunks(&self) -> usize {
        self.free().list.len()
    }

    /// How many chunks are in batches.
    pub(super) fn lent_chunks(&self) -> usize {
        self.free().lent
    }

    pub(super) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk that an address points into; `None` outside the memory. For addresses that the kernel or a buffer
    /// gives back: with the address goes the right to use the chunk.
    #[inline]
    pub(super) fn chunk(&self, address: u64) -> Option<Chunk> {
        let number = address >> self.chunk_len.trailing_zeros();
        (number < u64::from(self.chunks)).then_some(Chunk(number as u32))
    }

    /// Where a chunk begins, as the kernel counts.
    #[inline]
    pub(super) fn address(&self, chunk: &Chunk) -> u64 {
        u64::from(chunk.0) * u64::from(self.chunk_len)
    }

    /// The frame of a packet of `length` octets that the kernel has put at `address`; `None` when these octets do not
    /// lie in one chunk of this memory.
    #[inline]
    pub(super) fn frame(&self, address: u64, length: u32) -> Option<RawFrame> {
        let Chunk(number) = self.chunk(address)?;
        let start = (address & u64::from(self.chunk_len - 1)) as u32;
        let end = start.checked_add(length).filter(|end| *end <= self.chunk_len)?;
        Some(self.raw(number, start as u16, end as u16))
    }

    /// The frame in a chunk of this memory.
    #[inline]
    fn raw(&self, number: u32, start: u16, end: u16) -> RawFrame {
        // SAFETY: a chunk of this memory begins inside the mapping.
        let base = unsafe { self.memory.add(number as usize * self.chunk_len as usize) };
        // 2048 or 4096.
        RawFrame { base, token: number.into(), room: self.chunk_len as u16, start, end }
    }

    /// Where the packet of a frame begins, as the kernel counts.
    #[inline]
    pub(super) fn address_in(&self, raw: &RawFrame) -> u64 {
        raw.token * u64::from(self.chunk_len) + u64::from(raw.start)
    }

    /// Copies a packet into a chunk, behind the headroom; returns its address. `None` when it does not fit, or when the
    /// chunk is of a larger memory.
    #[inline]
    pub(super) fn fill(&self, chunk: &mut Chunk, packet: &[u8]) -> Option<u64> {
        if packet.len() > memory::Memory::longest(self) || chunk.0 >= self.chunks {
            return None;
        }
        let address = self.address(chunk) + HEADROOM as u64;
        // SAFETY: the chunk is one of this memory, and headroom and packet end before it does, as was just checked. The
        // caller owns the chunk, so `packet` is other memory.
        unsafe {
            let to = self.memory.as_ptr().add(address as usize);
            std::ptr::copy_nonoverlapping(packet.as_ptr(), to, packet.len());
        }
        Some(address)
    }
}

impl Free {
    /// Takes a free chunk.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Chunk> {
        self.list.pop()
    }

    /// Puts a chunk back.
    #[inline]
    pub(super) fn push(&mut self, chunk: Chunk) {
        self.list.push(chunk);
    }

    /// `n` chunks have gone into a batch.
    pub(super) fn lend(&mut self, n: usize) {
        self.lent += n;
    }

    /// `n` chunks of a batch have gone to the kernel.
    pub(super) fn returned(&mut self, n: usize) {
        self.lent -= n;
    }
}

impl memory::Memory for Umem {
    fn draw(&self, vector: &mut Vector, count: usize) {
        let mut free = self.free();
        for _ in 0..count {
            let Some(Chunk(number)) = free.pop() else { return };
            // SAFETY: the chunk was free, so nobody else uses it; the mapping is initialised and stays while chunks are
            // lent.
            unsafe { vector.lend(self.raw(number, HEADROOM as u16, HEADROOM as u16)) };
            free.lent += 1;
        }
    }

    fn take_back(&self, frames: &mut [Frame]) {
        let mut free = self.free();
        for raw in frames.iter_mut().filter_map(Frame::take) {
            free.list.push(Chunk(raw.token as u32));
            free.lent -= 1;
        }
    }

    fn longest(&self) -> usize {
        self.chunk_len as usize - HEADROOM
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // A buffer that was leaked may still be in use; the memory then stays mapped for good.
        if self.free().lent == 0 {
            // SAFETY: `new` made the mapping, all sockets are closed since they refer to this UMEM, and no buffer
            // has a chunk of it.
            unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len() as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: u32 = 4;
    const LENGTH: u32 = 2048;

    /// Every address, and every packet length around a chunk's: what is inside is one whole chunk, all else nothing.
    #[test]
    fn any_address_is_of_one_chunk_or_of_none() {
        let umem = Umem::new(CHUNKS, LENGTH).unwrap();
        for address in (0..umem.len() + 5000).chain([u64::MAX, u64::MAX - 2047, 1 << 48]) {
            let chunk = umem.chunk(address);
            assert_eq!(chunk.is_some(), address < umem.len(), "{address}");
            let Some(chunk) = chunk else {
                assert!(umem.frame(address, 0).is_none());
                continue;
            };
            let first = umem.address(&chunk);
            assert!(first.is_multiple_of(LENGTH.into()) && (first..first + 2048).contains(&address));
            let room = LENGTH - (address - first) as u32;
            let frame = umem.frame(address, room).unwrap();
            let found = (frame.token * 2048, u32::from(frame.end), u32::from(frame.start));
            assert_eq!(found, (first, LENGTH, LENGTH - room));
            assert!(umem.frame(address, room + 1).is_none() && umem.frame(address, u32::MAX).is_none());
        }
    }

    #[test]
    fn filling_a_chunk_leaves_its_neighbours_alone() {
        let umem = Umem::new(CHUNKS, LENGTH).unwrap();
        let longest = LENGTH as usize - HEADROOM;
        let mut taken: Vec<Chunk> = std::iter::from_fn(|| umem.free().pop()).collect();
        assert_eq!(taken.len(), CHUNKS as usize);
        for (number, chunk) in taken.iter_mut().enumerate() {
            assert!(umem.fill(chunk, &vec![number as u8 + 1; longest]).is_some());
            assert!(umem.fill(chunk, &vec![9; longest + 1]).is_none(), "it would reach into the next chunk");
        }
        for (number, chunk) in taken.iter().enumerate() {
            let frame = umem.frame(umem.address(chunk) + HEADROOM as u64, longest as u32).unwrap();
            // SAFETY: the frame is inside the mapping, and nobody writes meanwhile.
            let packet = unsafe { std::slice::from_raw_parts(frame.base.as_ptr().add(HEADROOM), longest) };
            assert!(packet.iter().all(|octet| *octet == number as u8 + 1));
        }
        assert!(umem.fill(&mut Chunk(CHUNKS), b"x").is_none(), "of another memory");
        // What begins late in a chunk comes back as that chunk.
        let late = umem.address(&taken[1]) + 2000;
        assert_eq!(umem.chunk(late).unwrap(), taken[1]);
    }
}
