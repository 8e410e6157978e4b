//! Memory that grows by chunks and never moves, mapped directly from the kernel.

use std::ptr::{NonNull, null_mut};

use crate::sync::{AtomicUsize, Ordering};

/// Octets of a chunk: two huge pages if the kernel provides them. A session with as many PDRs as there are
/// identifiers fits.
pub(crate) const CHUNK_BYTES: usize = 4 << 20;
/// Most chunks of an arena: 16 GiB.
pub(crate) const CHUNKS: usize = 4096;

/// An array of values that grows by chunks and never moves. All octets are zero at first, so it holds only values for
/// which zeros are valid.
///
/// The addresses of the whole array are reserved at once, and chunks get memory when they are needed. So a value is found
/// by its number alone. Mapped directly from the kernel: the allocator would write zeros to pages that the kernel has
/// just zeroed.
pub(crate) struct Chunks<T> {
    /// First value, aligned to a chunk so that chunks can consist of huge pages. Null if there are no addresses.
    first: *mut T,
    /// Number of values that have memory.
    len: AtomicUsize,
    most: usize,
    reserved: *mut libc::c_void,
}

// SAFETY: the values are reached only through references to the array and are freed with it.
unsafe impl<T: Sync> Sync for Chunks<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Chunks<T> {}

impl<T> Chunks<T> {
    /// Values of a chunk.
    pub(crate) const LEN: usize = CHUNK_BYTES / size_of::<T>();

    /// An array that can have `most` chunks. Where the kernel refuses the addresses, it stays empty.
    pub(crate) fn new(most: usize) -> Chunks<T> {
        const { assert!(CHUNK_BYTES.is_multiple_of(size_of::<T>()) && CHUNK_BYTES.is_multiple_of(align_of::<T>())) }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses does not touch existing memory.
        let reserved =
            unsafe { libc::mmap(null_mut(), (most + 1) * CHUNK_BYTES, libc::PROT_NONE, flags, -1, 0) };
        let (first, most) = if reserved == libc::MAP_FAILED {
            (null_mut(), 0)
        } else {
            let before = reserved.addr().next_multiple_of(CHUNK_BYTES) - reserved.addr();
            (reserved.wrapping_byte_add(before).cast(), most)
        };
        Chunks { first, len: AtomicUsize::new(0), most, reserved }
    }

    /// Whether the kernel has given the addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.first.is_null()
    }

    /// Pointer to the value with this number; null when it has no memory yet.
    #[inline(always)]
    pub(crate) fn at(&self, number: usize) -> *mut T {
        if number < self.len.load(Ordering::Acquire) { self.first.wrapping_add(number) } else { null_mut() }
    }

    /// Pointer to a value that has been written.
    ///
    /// # Safety
    /// The value with this number has memory.
    #[inline(always)]
    pub(crate) unsafe fn written(&self, number: usize) -> NonNull<T> {
        debug_assert!(number < self.len.load(Ordering::Acquire));
        // SAFETY: the place is within the array's memory, which is not at address zero.
        unsafe { NonNull::new_unchecked(self.first.wrapping_add(number)) }
    }

    /// The value with this number; `None` when it has no memory yet.
    ///
    /// # Safety
    /// Zeros are a valid `T`, and nobody changes the value without `T`'s own means while the reference exists.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, number: usize) -> Option<&T> {
        if number >= self.len.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the place is within the array's memory, which is aligned and stays until `self` is dropped; the caller
        // vouches for the value.
        Some(unsafe { NonNull::new_unchecked(self.first.wrapping_add(number)).as_ref() })
    }

    /// Makes sure that the chunk with this number and those before it have memory; `false` when there is none. For one
    /// thread at a time.
    pub(crate) fn grow(&self, number: usize) -> bool {
        let (now, then) = (self.len.load(Ordering::Acquire), (number + 1) * Self::LEN);
        if then <= now {
            return true;
        }
        if number >= self.most {
            return false;
        }
        let (new, octets) = (self.first.wrapping_add(now).cast(), (then - now) * size_of::<T>());
        // SAFETY: the chunks lie within the reserved addresses, and nothing refers to them yet; advice changes no contents.
        let has_memory = unsafe {
            let done = libc::mprotect(new, octets, libc::PROT_READ | libc::PROT_WRITE) == 0;
            libc::madvise(new, octets, libc::MADV_HUGEPAGE);
            done
        };
        if has_memory {
            // Never less, whoever else grows it.
            self.len.fetch_max(then, Ordering::Release);
        }
        has_memory
    }
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: mapped by `new` with this length. The values need no drop, and no reference to them is left.
            unsafe { libc::munmap(self.reserved, (self.most + 1) * CHUNK_BYTES) };
        }
    }
}

/// Octets of addresses that this process may have (RLIMIT_AS); `None` without limit. Tables reserve many more than they use.
pub fn address_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a value of the right type.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
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
