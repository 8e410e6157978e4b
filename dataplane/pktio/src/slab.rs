//! A pool in ordinary memory, for ports that copy: sockets, TUN devices, tests.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Vector;
use crate::frame::memory::Memory;
use crate::frame::{Frame, HEADROOM, RawFrame};

/// Octets of a cache line.
const LINE: usize = 64;

/// Most chunks: with the longest ones 1 GB, whose size every machine can express.
const MAX_CHUNKS: usize = 1 << 14;

/// Chunks of equal size in one piece of memory. Pages of chunks that were never used take no memory.
#[derive(Debug)]
pub struct Slab {
    /// What was allocated.
    memory: NonNull<u8>,
    layout: Layout,
    /// The first chunk, at the begin of a cache line.
    first: NonNull<u8>,
    /// Octets of a chunk that a frame may use.
    room: u16,
    /// Octets from one chunk to the next: an odd number of cache lines, so that the headers of successive packets do not
    /// fall into the same sets of the caches.
    stride: usize,
    chunks: u32,
    free: Mutex<Free>,
}

/// Chunks that are in no vector.
#[derive(Debug)]
struct Free {
    /// Chunks that were in use before. The chunk returned last is used first: it is still in the caches.
    list: Vec<u32>,
    /// Chunks from this one on were never in use.
    unused: u32,
}

// SAFETY: the memory is reached through chunks only, each of which is in one frame or in the list behind the lock.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// `chunks` chunks, each for a packet of up to `packet_len` octets behind its headroom.
    pub fn new(chunks: usize, packet_len: usize) -> Arc<Slab> {
        let room = u16::try_from(HEADROOM.saturating_add(packet_len)).unwrap_or(u16::MAX);
        let stride = (usize::from(room).div_ceil(LINE) | 1) * LINE;
        let chunks = chunks.clamp(1, MAX_CHUNKS);
        // Memory with an alignment of its own would be filled with zeros page by page. Without one, the system maps pages of
        // zeros when they are used.
        let layout = Layout::from_size_align(chunks * stride + LINE - 1, 1);
        let Ok(layout) = layout else { handle_alloc_error(Layout::new::<Slab>()) };
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        // SAFETY: there are as many octets more than those of the chunks as the address can need to be aligned.
        let first = unsafe { memory.add(memory.align_offset(LINE)) };
        let free = Mutex::new(Free { list: Vec::new(), unused: 0 });
        Arc::new(Slab { memory, layout, first, room, stride, chunks: chunks as u32, free })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many chunks are in no vector.
    pub fn free_chunks(&self) -> usize {
        let free = self.free();
        free.list.len() + (self.chunks - free.unused) as usize
    }
}

impl Memory for Slab {
    fn draw(&self, vector: &mut Vector, count: usize) {
        let mut free = self.free();
        for _ in 0..count {
            let number = match free.list.pop() {
                Some(number) => number,
                None if free.unused < self.chunks => {
                    free.unused += 1;
                    free.unused - 1
                }
                None => return,
            };
            // SAFETY: a chunk of this memory begins inside the allocation.
            let base = unsafe { self.first.add(number as usize * self.stride) };
            let (room, start) = (self.room, HEADROOM as u16);
            // SAFETY: the chunk was free, so nobody else uses it; its memory was zero at first, and it stays while the
            // slab has chunks in vectors, which keep the slab.
            unsafe { vector.lend(RawFrame { base, token: number.into(), room, start, end: start }) };
        }
    }

    fn take_back(&self, frames: &mut [Frame]) {
        let mut free = self.free();
        free.list.extend(frames.iter_mut().filter_map(Frame::take).map(|chunk| chunk.token as u32));
    }

    fn longest(&self) -> usize {
        usize::from(self.room).saturating_sub(HEADROOM)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout. A vector with chunks of the slab would keep it.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
