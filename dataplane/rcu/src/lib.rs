//! Read-copy-update: readers read published data without waiting; writers replace it and free the old data
//! later.
//!
//! ```text
//!  reader                               writer
//!  slot := epoch       (enter)          replace the pointer or the position
//!  fence                                fence
//!  look at what is published            ticket := epoch, epoch := epoch + 1
//!  slot := idle        (leave)          free the old once no reader's slot is at or below the ticket
//! ```
//! The two fences are totally ordered. When the reader's fence comes first, the writer sees the reader's slot,
//! whose epoch is at most the ticket, and waits. When the writer's fence comes first, the reader sees the new
//! data. A worker enters once per batch, so the cost per packet is negligible. `make loom` checks this in every
//! interleaving. Readers may also be elsewhere, with their own way to say that they have left: `grace.rs`.
//!
//! This crate holds the unsafe code of the user plane's tables. It is sound for this reason. References to
//! published data come from [`Cell::load`], [`Cells::load`], [`Slots::load`] and [`Place::load`] only. These need a [`Guard`] of the same
//! [`Domain`] (with another domain's guard they return nothing), and the references live no longer than the
//! guard. Replaced data is freed or overwritten by the one [`Writer`] of an arena, or dropped by a [`Bin`],
//! only after a ticket taken after the replacement has passed. Lines of counters are atomics that anybody may
//! change; their memory stays as long as the lines do, also when somebody else provides it (`lines.rs`).
//!
//! Besides, it has what workers exchange packets with: a queue from one thread to another ([`ring()`]), and whether a thread
//! that sleeps must be woken ([`Sleep`]).
#![deny(unsafe_op_in_unsafe_fn)]

mod cells;
mod chunks;
mod grace;
mod lines;
mod ring;
mod sleep;

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
// The model checker's atomics cannot be used in memory that starts as zeros.
use std::sync::atomic::AtomicU32 as PlainU32;

pub use cells::{Cells, View};
pub use chunks::address_limit;
use chunks::{CHUNK_BYTES, CHUNKS, Chunks, prefetch};
pub use grace::{Domain, Guard, Queue, Reader, SOURCES, Source, Ticket, TooManySources};
pub use lines::{Line, Lines, Memory, Region, RegionError};
pub use ring::{Consumer, Producer, ring};
pub use sleep::Sleep;
use sync::{Arc, AtomicPtr, Ordering};

/// The types that the model checker replaces. Only tests see `loom`.
#[cfg(all(loom, test))]
mod sync {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Arc, Mutex};
}

#[cfg(not(all(loom, test)))]
mod sync {
    pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
    pub use std::sync::{Arc, Mutex};

    /// A place that threads use in turn, with the interface of the model checker's.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }
}

/// Old values of [`Cell`]s that wait to be dropped.
pub struct Bin {
    queue: Queue<Box<dyn Send>>,
}

impl Bin {
    /// An empty bin.
    pub fn new(domain: &Domain) -> Bin {
        Bin { queue: Queue::new(domain) }
    }

    /// Takes a value that readers of `domain` may still see. A value of another domain is leaked.
    fn take(&mut self, domain: &Domain, old: Box<impl Send + 'static>) {
        if self.queue.domain().is(domain) {
            self.queue.push(old);
        } else {
            std::mem::forget(old);
        }
    }

    /// Drops the values that no reader sees any more.
    pub fn empty(&mut self) {
        self.queue.drain().for_each(drop);
    }
}

impl Drop for Bin {
    fn drop(&mut self) {
        // If a reader is still inside, the rest is leaked; this happens once, when the program ends.
        self.empty();
        while let Some(value) = self.queue.pop() {
            std::mem::forget(value);
        }
    }
}

/// A published value.
pub struct Cell<T> {
    domain: Domain,
    value: AtomicPtr<T>,
    _owns: PhantomData<T>,
}

// SAFETY: a cell hands out `&T` in several threads and moves `T` to the thread that drops it.
unsafe impl<T: Send + Sync> Sync for Cell<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Cell<T> {}

impl<T: Send + Sync + 'static> Cell<T> {
    /// A cell without value.
    pub fn new(domain: &Domain) -> Cell<T> {
        Cell { domain: domain.clone(), value: AtomicPtr::new(null_mut()), _owns: PhantomData }
    }

    /// The value, borrowed for the lifetime of the guard.
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g Guard<'_>) -> Option<&'g T> {
        if !guard.of(&self.domain) {
            return None;
        }
        // SAFETY: a pointer in the cell is null or comes from a box. `store` drops the box only after a grace
        // period that began after the pointer was replaced, and that period does not end while the guard
        // exists.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Replaces the value. `bin` drops the old one when no reader sees it any more. A bin of another domain
    /// leaks it.
    pub fn store(&self, value: Option<Box<T>>, bin: &mut Bin) {
        let new = value.map_or(null_mut(), Box::into_raw);
        let old = self.value.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`, and after the swap only this function has it.
            bin.take(&self.domain, unsafe { Box::from_raw(old) });
        }
    }
}

impl<T> Drop for Cell<T> {
    fn drop(&mut self) {
        let value = self.value.load(Ordering::Acquire);
        if !value.is_null() {
            // SAFETY: guards that see the value borrow the cell, so there are none; the pointer comes from a
            // box.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

/// Bits of a slot that are the position; the other bits are the class of the length.
const POSITION_BITS: u32 = 27;
const POSITION: u32 = (1 << POSITION_BITS) - 1;
/// Number of lengths with a class of their own. After these, each class is twice as long as the one before.
const EXACT: usize = 16;

/// The class of a length, and the length of blocks of that class.
fn class_of(len: usize) -> Option<(u32, usize)> {
    if len == 0 {
        return None;
    }
    if len <= EXACT {
        return Some((len as u32 - 1, len));
    }
    let (mut class, mut size) = (EXACT as u32, 2 * EXACT);
    while size < len {
        (class, size) = (class + 1, 2 * size);
    }
    (class < 1 << (32 - POSITION_BITS)).then_some((class, size))
}

/// The length of blocks of each class.
const LENGTHS: [u32; 1 << (32 - POSITION_BITS)] = {
    let mut lengths = [0; 1 << (32 - POSITION_BITS)];
    let mut class = 0;
    while class < lengths.len() {
        lengths[class] = if class < EXACT { class as u32 + 1 } else { (EXACT as u32) << (class - EXACT + 1) };
        class += 1;
    }
    lengths
};

#[inline(always)]
fn len_of(class: u32) -> usize {
    LENGTHS[class as usize % LENGTHS.len()] as usize
}

/// Blocks of plain values, to which slots refer.
struct Arena<T> {
    domain: Domain,
    chunks: Chunks<T>,
}

// SAFETY: values are shared by reference; the one `Writer` writes them only while no reader sees them.
unsafe impl<T: Send + Sync> Sync for Arena<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for Arena<T> {}

/// A slot: position and class of a block, or zero for none.
type Slot = PlainU32;

/// An array of slots that refer to blocks. It gets memory on first use, so a large array costs little.
pub struct Slots<T> {
    arena: Arc<Arena<T>>,
    chunks: Chunks<Slot>,
    len: usize,
}

impl<T: Copy + Send + Sync + 'static> Slots<T> {
    /// Whether the kernel has given the addresses for the slots and their blocks.
    pub fn has_addresses(&self) -> bool {
        self.chunks.has_addresses() && self.arena.chunks.has_addresses()
    }

    /// Number of slots.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// The slot with this number; `None` where there is no memory yet.
    #[inline(always)]
    pub fn place(&self, index: usize) -> Option<Place<'_, T>> {
        // SAFETY: all bit patterns are atomics, which may be shared.
        let slot = unsafe { self.chunks.get(index) }?;
        Some(Place { arena: &self.arena, slot })
    }

    /// The block that the slot refers to, for as long as the guard is there.
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g Guard<'_>, index: usize) -> Option<&'g [T]> {
        self.place(index)?.load(guard)
    }

    /// A number that changes when the slot refers to another block.
    #[inline]
    pub fn version(&self, index: usize) -> u32 {
        self.place(index).map_or(0, |place| place.slot.load(Ordering::Acquire))
    }
}

/// A slot of [`Slots`] that was found.
pub struct Place<'t, T> {
    arena: &'t Arena<T>,
    slot: &'t Slot,
}

impl<T> Clone for Place<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<'_, T> {}

impl<'t, T: Copy + Send + Sync + 'static> Place<'t, T> {
    /// Prefetches the slot.
    #[inline(always)]
    pub fn prefetch(self) {
        prefetch(std::ptr::from_ref(self.slot));
    }

    /// The block to which the slot refers, borrowed for the lifetime of the guard. Prefetches its first two
    /// lines.
    #[inline(always)]
    pub fn load<'g>(self, guard: &'g Guard<'_>) -> Option<&'g [T]>
    where
        't: 'g,
    {
        let value = self.slot.load(Ordering::Acquire);
        if value == 0 || !guard.of(&self.arena.domain) {
            return None;
        }
        // SAFETY: the writer wrote a block of this class at this position, which therefore has memory, before it stored
        // the slot (release; acquire here).
        let first = unsafe { self.arena.chunks.written((value & POSITION) as usize) };
        let len = len_of(value >> POSITION_BITS);
        prefetch(first.as_ptr());
        if size_of::<T>() * len > 64 {
            prefetch(first.as_ptr().cast::<u8>().wrapping_add(64));
        }
        // SAFETY: as above. The writer writes there again only after a grace period, which does not end while the guard
        // exists.
        Some(unsafe { NonNull::slice_from_raw_parts(first, len).as_ref() })
    }
}

/// A block that is written but not in a slot yet. Must be passed to [`Writer::install`] or [`Writer::discard`].
#[derive(Debug)]
pub struct Block(u32);

/// The only one that writes blocks and slots.
pub struct Writer<T> {
    arena: Arc<Arena<T>>,
    free: Vec<Vec<u32>>,
    next: usize,
    replaced: Queue<u32>,
    blocks: usize,
    bytes: usize,
}

impl<T: Copy + Send + Sync + 'static> Writer<T> {
    /// A writer without slots.
    pub fn new(domain: &Domain) -> Writer<T> {
        const { assert!(CHUNK_BYTES.is_multiple_of(size_of::<T>()) && align_of::<T>() >= 64) }
        Writer {
            arena: Arc::new(Arena { domain: domain.clone(), chunks: Chunks::new(CHUNKS) }),
            free: Vec::new(),
            // Position zero with class zero would be an empty slot.
            next: 1,
            replaced: Queue::new(domain),
            blocks: 0,
            bytes: 0,
        }
    }

    /// Makes slots for this writer's blocks.
    pub fn slots(&self, len: usize) -> Slots<T> {
        let chunks = Chunks::new(len.div_ceil(Chunks::<Slot>::LEN));
        Slots { arena: Arc::clone(&self.arena), chunks, len }
    }

    /// Writes a block; `None` when it is empty or too long, or there is no memory.
    pub fn block(&mut self, values: &[T]) -> Option<Block> {
        let (class, size) = class_of(values.len())?;
        let position = match self.free.get_mut(class as usize).and_then(Vec::pop) {
            Some(position) => position,
            None => self.extend(size)?,
        };
        let first = self.arena.chunks.at(position as usize);
        for at in 0..size {
            let value = values[at.min(values.len() - 1)];
            // SAFETY: the block is within its chunk, no slot refers to it, and no reader has seen it since it
            // was freed.
            unsafe { first.add(at).write(value) };
        }
        self.blocks += 1;
        self.bytes += size * size_of::<T>();
        Some(Block(class << POSITION_BITS | position))
    }

    /// Allocates memory for a block within one chunk.
    fn extend(&mut self, size: usize) -> Option<u32> {
        let len = Chunks::<T>::LEN;
        if size > len {
            return None;
        }
        if self.next % len + size > len {
            self.next = self.next.next_multiple_of(len);
        }
        let position = self.next;
        if position + size > POSITION as usize || !self.arena.chunks.grow(position / len) {
            return None;
        }
        self.next += size;
        Some(position as u32)
    }

    /// Puts a block into a slot and retires the slot's previous block. If the slot does not exist, the block is
    /// discarded.
    pub fn install(&mut self, slots: &Slots<T>, index: usize, block: Block) {
        let ours = Arc::ptr_eq(&slots.arena, &self.arena) && index < slots.len;
        let there = ours && slots.chunks.grow(index / Chunks::<Slot>::LEN);
        match slots.place(index).filter(|_| there) {
            Some(Place { slot, .. }) => self.replace(slot.swap(block.0, Ordering::AcqRel)),
            None => self.discard(block),
        }
    }

    /// The values of a block that is in no slot.
    pub fn values(&self, block: &Block) -> &[T] {
        self.at(block.0)
    }

    /// The block in a slot. The writer needs no guard, because nobody else writes.
    pub fn get(&self, slots: &Slots<T>, index: usize) -> Option<&[T]> {
        let ours = Arc::ptr_eq(&slots.arena, &self.arena);
        let value = slots.place(index).filter(|_| ours)?.slot.load(Ordering::Acquire);
        (value != 0).then(|| self.at(value))
    }

    fn at(&self, block: u32) -> &[T] {
        let (position, len) = ((block & POSITION) as usize, len_of(block >> POSITION_BITS));
        let first = self.arena.chunks.at(position);
        if first.is_null() || position % Chunks::<T>::LEN + len > Chunks::<T>::LEN {
            return &[];
        }
        // SAFETY: within one chunk, whose values are always valid. Only this writer changes them, and that
        // needs `&mut self`.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// Empties a slot.
    pub fn clear(&mut self, slots: &Slots<T>, index: usize) {
        if Arc::ptr_eq(&slots.arena, &self.arena)
            && let Some(Place { slot, .. }) = slots.place(index)
        {
            self.replace(slot.swap(0, Ordering::AcqRel));
        }
    }

    fn replace(&mut self, old: u32) {
        if old != 0 {
            self.count_out(old);
            self.replaced.push(old);
        }
    }

    /// Frees a block that is in no slot.
    pub fn discard(&mut self, block: Block) {
        self.count_out(block.0);
        self.give_back(block.0);
    }

    fn count_out(&mut self, block: u32) {
        self.blocks -= 1;
        self.bytes -= len_of(block >> POSITION_BITS) * size_of::<T>();
    }

    fn give_back(&mut self, block: u32) {
        let class = (block >> POSITION_BITS) as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(block & POSITION);
    }

    /// Frees the blocks that no reader sees any more; calls `gone` with each.
    pub fn reclaim(&mut self, mut gone: impl FnMut(&[T])) {
        let free: Vec<u32> = self.replaced.drain().collect();
        for block in free {
            gone(self.at(block));
            self.give_back(block);
        }
    }

    /// Number of blocks that wait to be freed.
    pub fn waiting(&self) -> usize {
        self.replaced.len()
    }

    /// Octets of the blocks in slots.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
