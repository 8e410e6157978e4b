//! A bounded queue from one thread to another, without a lock.
//!
//! Each end remembers how far the other one has been seen, so that it reads the other's cache line only when the queue
//! seems full or empty. Items that are in the queue when both ends are gone are dropped.

use std::mem::MaybeUninit;

use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// A number that one thread writes and another reads, on cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Position(AtomicU64);

/// The places of items by their number modulo the capacity, which is a power of two.
struct Ring<T> {
    /// Items before this number have been taken, and their places are free.
    taken: Position,
    /// Items before this number can be taken.
    put: Position,
    /// The consumer is gone.
    closed: AtomicBool,
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: an item is written by the one producer, and read by the one consumer after `put` says so; its place is
// written again only after `taken` says so. So items move from thread to thread, and no place is used by both at once.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn place(&self, number: u64) -> &UnsafeCell<MaybeUninit<T>> {
        // The capacity is a power of two.
        &self.places[number as usize & (self.places.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (taken, put) = (self.taken.0.load(Ordering::Relaxed), self.put.0.load(Ordering::Relaxed));
        for number in taken..put {
            // SAFETY: it was put and not taken, so it is initialised, and both ends are gone.
            self.place(number).with_mut(|item| unsafe { (*item).assume_init_drop() });
        }
    }
}

/// The end that puts items in.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    /// Number of the next item.
    next: u64,
    /// How far the consumer has been seen.
    taken: u64,
}

/// The end that takes them.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// Number of the next item.
    next: u64,
    /// How far the producer has been seen.
    put: u64,
}

/// A queue for at least `capacity` items.
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1).next_power_of_two();
    let places = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let position = || Position(AtomicU64::new(0));
    let ring = Ring { taken: position(), put: position(), closed: AtomicBool::new(false), places };
    let ring = Arc::new(ring);
    (Producer { ring: Arc::clone(&ring), next: 0, taken: 0 }, Consumer { ring, next: 0, put: 0 })
}

impl<T: Send> Producer<T> {
    /// Puts an item in; returns it when there is no room, or nobody to take it.
    #[inline]
    pub fn put(&mut self, item: T) -> Result<(), T> {
        let full =
            |producer: &Producer<T>| (producer.next - producer.taken) as usize == producer.ring.places.len();
        if full(self) {
            self.taken = self.ring.taken.0.load(Ordering::Acquire);
        }
        if full(self) || self.ring.closed.load(Ordering::Relaxed) {
            return Err(item);
        }
        // SAFETY: the place is free, as the consumer has said, and only this producer writes.
        self.ring.place(self.next).with_mut(|place| unsafe { (*place).write(item) });
        self.next += 1;
        self.ring.put.0.store(self.next, Ordering::Release);
        Ok(())
    }

    /// Whether the consumer has taken everything.
    #[inline]
    pub fn is_drained(&mut self) -> bool {
        if self.taken != self.next {
            self.taken = self.ring.taken.0.load(Ordering::Acquire);
        }
        self.taken == self.next
    }
}

impl<T: Send> Consumer<T> {
    /// Whether there is an item.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        if self.next == self.put {
            self.put = self.ring.put.0.load(Ordering::Acquire);
        }
        self.next < self.put
    }

    /// Takes the next item.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if !self.is_ready() {
            return None;
        }
        // SAFETY: it was put, so it is initialised; `next` moves on, so it is read out once.
        let item = self.ring.place(self.next).with_mut(|item| unsafe { (*item).assume_init_read() });
        self.next += 1;
        self.ring.taken.0.store(self.next, Ordering::Release);
        Some(item)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.ring.closed.store(true, Ordering::Relaxed);
    }
}
