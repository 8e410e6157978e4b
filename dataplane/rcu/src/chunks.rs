//! Memory in chunks that never move, mapped directly from the kernel.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};

use crate::sync::{AtomicPtr, Ordering};

/// Octets of a chunk: two huge pages if the kernel provides them. A session with as many PDRs as there are
/// identifiers fits.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// Most chunks of an arena: 16 GiB.
pub(crate) const CHUNKS: usize = 4096;

/// Memory in chunks that never move and are freed together. All octets are zero at first, so it holds only
/// values for which zeros are valid.
///
/// Mapped directly from the kernel: the allocator would write zeros to pages that the kernel has just zeroed.
pub(crate) struct Chunks<T> {
    chunks: Box<[AtomicPtr<T>]>,
    /// Chunks from this number on belong to somebody else.
    own: usize,
    _owns: PhantomData<T>,
}

impl<T> Chunks<T> {
    pub(crate) const LEN: usize = CHUNK_BYTES / size_of::<T>();

    pub(crate) fn new(most: usize) -> Chunks<T> {
        Chunks::with_others(most, 0)
    }

    /// At most `own` chunks, and behind them up to `others` chunks of other owners ([`Chunks::lend`]).
    pub(crate) fn with_others(own: usize, others: usize) -> Chunks<T> {
        let chunks = (0..own + others).map(|_| AtomicPtr::new(null_mut())).collect();
        Chunks { chunks, own, _owns: PhantomData }
    }

    /// Makes a chunk of somebody else the one with this number.
    ///
    /// # Safety
    /// `memory` is aligned for `T`, has [`CHUNK_BYTES`] octets whose bits are valid values of `T`, and lives as
    /// long as `self` does.
    pub(crate) unsafe fn lend(&self, number: usize, memory: *mut T) {
        debug_assert!(number >= self.own);
        self.chunks[number].store(memory, Ordering::Release);
    }

    /// Pointer to the value with this number; null when its chunk does not exist yet.
    #[inline(always)]
    pub(crate) fn at(&self, number: usize) -> *mut T {
        match self.chunks.get(number / Self::LEN) {
            Some(chunk) => {
                let chunk = chunk.load(Ordering::Acquire);
                if chunk.is_null() { chunk } else { chunk.wrapping_add(number % Self::LEN) }
            }
            None => null_mut(),
        }
    }

    /// The value with this number; `None` when its chunk does not exist yet.
    ///
    /// # Safety
    /// Zeros are a valid `T`, and nobody changes the value without `T`'s own means while the reference exists.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, number: usize) -> Option<&T> {
        let chunk = NonNull::new(self.chunks.get(number / Self::LEN)?.load(Ordering::Acquire))?;
        // SAFETY: the place is within its chunk, which is aligned and stays until `self` is dropped; the caller vouches for
        // the value.
        Some(unsafe { chunk.add(number % Self::LEN).as_ref() })
    }

    /// Makes sure that the chunk with this number exists; `false` when it is somebody else's and has not been
    /// lent, or there is no memory. For one thread at a time.
    pub(crate) fn grow(&self, number: usize) -> bool {
        let Some(chunk) = self.chunks.get(number) else { return false };
        if chunk.load(Ordering::Acquire).is_null() {
            if number >= self.own {
                return false;
            }
            match map_chunk() {
                Some(memory) => chunk.store(memory.cast(), Ordering::Release),
                None => return false,
            }
        }
        true
    }
}

/// A chunk of zeros, aligned to its size so that it can consist of huge pages.
fn map_chunk() -> Option<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses does not touch existing memory.
    let memory = unsafe { libc::mmap(null_mut(), 2 * CHUNK_BYTES, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let memory = memory.cast::<u8>();
    let before = memory.addr().next_multiple_of(CHUNK_BYTES) - memory.addr();
    let chunk = memory.wrapping_add(before);
    // SAFETY: the parts before and behind the chunk belong to this mapping and nothing refers to them; advice
    // changes no contents.
    unsafe {
        if before > 0 {
            libc::munmap(memory.cast(), before);
        }
        libc::munmap(chunk.wrapping_add(CHUNK_BYTES).cast(), CHUNK_BYTES - before);
        libc::madvise(chunk.cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE);
    }
    Some(chunk)
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().take(self.own) {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: mapped by `grow` with this length. The values need no drop, and no reference to them
                // is left.
                unsafe { libc::munmap(chunk.cast(), CHUNK_BYTES) };
            }
        }
    }
}

/// Prefetches a cache line.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction. It only affects caches, whatever the address is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
