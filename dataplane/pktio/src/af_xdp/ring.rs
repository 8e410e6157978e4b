//! The four rings that an AF_XDP socket shares with the kernel: single producer, single consumer.
//!
//! Positions are 32-bit counters that wrap; the ring's size is a power of two. One side writes entries and then
//! moves the producer counter (release), the other reads it (acquire) before the entries. Each side keeps a copy of
//! the other's counter and reads the shared one only when the copy says that it is stuck.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Our side of a ring of `T`.
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_len: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own counter, as last published or about to be.
    own: u32,
    /// The kernel's counter when it was last read.
    seen: u32,
    _entries: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone on our side, and the counters shared with the kernel are atomic.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `entries` (a power of two) that was made for `socket`, at `page_offset`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        entries: u32,
        offsets: &libc::xdp_ring_offset,
        page_offset: i64,
    ) -> io::Result<Ring<T>> {
        let map_len = offsets.desc as usize + entries as usize * size_of::<T>();
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page_offset,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(map) = NonNull::new(map.cast::<u8>()) else { return Err(io::ErrorKind::InvalidData.into()) };
        // SAFETY: the kernel's offsets lie inside the mapping that it made for this ring.
        let (producer, consumer, flags, entries_at) = unsafe {
            (
                map.add(offsets.producer as usize).cast::<AtomicU32>(),
                map.add(offsets.consumer as usize).cast::<AtomicU32>(),
                map.add(offsets.flags as usize).cast::<AtomicU32>(),
                map.add(offsets.desc as usize).cast::<T>(),
            )
        };
        Ok(Ring {
            map,
            map_len,
            producer,
            consumer,
            flags,
            entries: entries_at,
            mask: entries - 1,
            own: 0,
            seen: 0,
            _entries: PhantomData,
        })
    }

    /// How many entries the ring has.
    pub(super) fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Whether the kernel sleeps until a system call wakes it for this ring.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: the flags word is inside the mapping, which lives as long as `self`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// As producer: how many of `wanted` entries are free.
    #[inline]
    pub(super) fn free(&mut self, wanted: u32) -> u32 {
        let free = |ring: &Ring<T>| ring.size() - ring.own.wrapping_sub(ring.seen);
        if free(self) < wanted {
            // SAFETY: the counter is inside the mapping.
            self.seen = unsafe { self.consumer.as_ref() }.load(Ordering::Acquire);
        }
        free(self).min(wanted)
    }

    /// As producer: entries that the kernel has not taken yet.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        // SAFETY: the counter is inside the mapping.
        self.seen = unsafe { self.consumer.as_ref() }.load(Ordering::Acquire);
        self.own.wrapping_sub(self.seen)
    }

    /// As producer: writes an entry that [`Ring::free`] has granted. The kernel sees it after [`Ring::publish`].
    #[inline]
    pub(super) fn put(&mut self, entry: T) {
        debug_assert!(self.own.wrapping_sub(self.seen) < self.size());
        // SAFETY: the masked position is inside the ring, and the kernel does not read it before it is published.
        unsafe { self.entries.add((self.own & self.mask) as usize).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// As producer: shows the kernel what was written.
    #[inline]
    pub(super) fn publish(&mut self) {
        // SAFETY: the counter is inside the mapping.
        unsafe { self.producer.as_ref() }.store(self.own, Ordering::Release);
    }

    /// As consumer: how many of `wanted` entries are there.
    #[inline]
    pub(super) fn ready(&mut self, wanted: u32) -> u32 {
        if self.seen.wrapping_sub(self.own) < wanted {
            // SAFETY: the counter is inside the mapping.
            self.seen = unsafe { self.producer.as_ref() }.load(Ordering::Acquire);
        }
        self.seen.wrapping_sub(self.own).min(wanted)
    }

    /// As consumer: takes an entry that [`Ring::ready`] has announced.
    #[inline]
    pub(super) fn get(&mut self) -> T {
        debug_assert!(self.own != self.seen);
        // SAFETY: the masked position is inside the ring, and the kernel wrote it before it moved its counter.
        let entry = unsafe { self.entries.add((self.own & self.mask) as usize).read() };
        self.own = self.own.wrapping_add(1);
        entry
    }

    /// As consumer: gives the entries that were taken back to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        // SAFETY: the counter is inside the mapping.
        unsafe { self.consumer.as_ref() }.store(self.own, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}
