//! One writer, any number of readers that never wait: left-right over two copies of a classifier.
//!
//! After P. Ramalhete and A. Correia, "Left-Right: A Concurrency Control Technique with Wait-Free Population
//! Oblivious Reads", 2013. Readers use the *live* copy while the writer changes the *hidden* copy.
//! [`Writer::publish`] makes the hidden copy live by a single store, waits until no reader is left in the copy
//! that was live before, and repeats the changes there. So a look-up sees either all updates of a publication
//! or none of them. A reader enters with one store, one fence and one load, whatever the writer does.
//!
//! Where this differs from the paper: readers do not share two counters; every reader has a slot on its own
//! cache line, so that readers do not disturb each other. A reader enters once per burst of packets, not once
//! per look-up. Updates are repeated from a log; after bulk work ([`Writer::insert_all`], [`Writer::optimise`])
//! the copy is cloned instead, as building twice would cost more.
//!
//! ```text
//!  reader                                    writer
//!  slot := odd                               change the hidden copy
//!  fence                                     epoch := epoch + 1          (publishes)
//!  copy := copies[epoch mod 2]               fence
//!  look-ups                                  for every slot that is odd: wait until it changes
//!  slot := even                              repeat the changes on the copy that is hidden now
//! ```
//! The two fences are totally ordered. When the reader's fence comes first, the writer sees the odd slot and
//! waits. When the writer's fence comes first, the reader sees the new epoch. Either way the writer never
//! writes what a reader reads. A reader that leaves and enters again has changed its slot, so it cannot starve
//! the writer. `make loom` checks this in every interleaving.
//!
//! # Readers that do not leave
//! A reader that panics leaves by unwinding. A [`Guard`] that is forgotten (`mem::forget`) keeps the writer
//! waiting in `publish` until its reader pins again or is dropped; other readers are not affected. A reader
//! that is forgotten together with its guard stops the writer for good, as does a reader that never ends its
//! burst. Safe code cannot tell these from a slow reader.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::{Classifier, InsertError, Rule};
use sync::{Arc, AtomicU64, ConstPtr, Mutex, Ordering, UnsafeCell, fence};

/// How often the writer looks at a slot before it lets other threads run: a burst ends within some
/// microseconds.
const SPINS: u32 = 128;

/// The types that the model checker replaces. Only tests see `loom`.
#[cfg(all(loom, test))]
mod sync {
    pub use loom::cell::{ConstPtr, UnsafeCell};
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
    pub use loom::sync::{Arc, Mutex};
    pub use loom::thread::yield_now;
}

#[cfg(not(all(loom, test)))]
mod sync {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{AtomicU64, Ordering, fence};
    pub use std::sync::{Arc, Mutex};
    pub use std::thread::yield_now;

    /// The same interface as `loom`'s cell, without its checks.
    #[derive(Debug)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub fn get(&self) -> ConstPtr<T> {
            ConstPtr(self.0.get())
        }

        #[inline]
        pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
            change(self.0.get())
        }
    }

    /// A pointer for reading.
    #[derive(Debug)]
    pub struct ConstPtr<T>(*const T);

    impl<T> ConstPtr<T> {
        /// # Safety
        /// No thread may write the value while the reference lives.
        #[inline]
        pub unsafe fn deref(&self) -> &T {
            // SAFETY: the pointer comes from a cell that outlives it; the caller guarantees that no thread
            // writes.
            unsafe { &*self.0 }
        }
    }
}

/// Odd while the reader is inside. Takes two cache lines, as processors fetch lines in pairs.
#[repr(align(128))]
struct Slot(AtomicU64);

/// One of the two copies, on cache lines of its own.
#[repr(align(128))]
struct Copied<C>(UnsafeCell<C>);

struct Core<C> {
    /// Number of publications. Its parity is the index of the live copy.
    epoch: AtomicU64,
    copies: [Copied<C>; 2],
    /// The slots of all readers. Locked only for moments: never by look-ups, and never while the writer waits.
    slots: Mutex<Vec<Arc<Slot>>>,
}

// SAFETY: readers share `&C` between threads, hence `C: Sync`. The one `Writer` changes copies and may be on
// another thread than the one that drops them, hence `C: Send`. The protocol in the module's documentation
// ensures that the writer never writes a copy that others read.
unsafe impl<C: Send + Sync> Sync for Core<C> {}
// SAFETY: as above; nothing in a `Core` belongs to one thread.
unsafe impl<C: Send + Sync> Send for Core<C> {}

impl<C> Core<C> {
    fn slots(&self) -> sync_guard::Locked<'_, Vec<Arc<Slot>>> {
        // Under the lock only allocation can panic, and it leaves the list as it was.
        self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One name for the lock guards of both kinds of mutex.
mod sync_guard {
    #[cfg(all(loom, test))]
    pub type Locked<'a, T> = loom::sync::MutexGuard<'a, T>;
    #[cfg(not(all(loom, test)))]
    pub type Locked<'a, T> = std::sync::MutexGuard<'a, T>;
}

/// An update that is still to be repeated on the other copy.
enum Change {
    Insert(Rule),
    Remove(u32),
    SetPrecedence(u32, u32),
}

/// Changes the classifier. There is one writer. When it is dropped, readers keep the state published last.
pub struct Writer<C> {
    core: Arc<Core<C>>,
    /// Updates that the hidden copy has and the live copy has not.
    log: Vec<Change>,
    /// Whether the hidden copy has changes that are not in the log.
    diverged: bool,
    /// Readers to wait for. Kept to reuse its memory.
    inside: Vec<(Arc<Slot>, u64)>,
}

/// Looks up keys. Every thread has a reader of its own; `clone` registers another one.
pub struct Reader<C> {
    core: Arc<Core<C>>,
    slot: Arc<Slot>,
}

/// A reader inside a copy: it sees one published state until the guard is dropped at the end of the burst.
pub struct Guard<'a, C> {
    copy: ConstPtr<C>,
    slot: &'a Slot,
    /// Value of the slot while the reader is inside.
    entered: u64,
    epoch: u64,
    reader: PhantomData<&'a mut Reader<C>>,
}

impl<C: Clone> Writer<C> {
    /// Shares a classifier; makes the second copy of it.
    pub fn new(classifier: C) -> Writer<C> {
        let copies = [classifier.clone(), classifier].map(|copy| Copied(UnsafeCell::new(copy)));
        let core = Core { epoch: AtomicU64::new(0), copies, slots: Mutex::new(Vec::new()) };
        Writer { core: Arc::new(core), log: Vec::new(), diverged: false, inside: Vec::new() }
    }

    /// Registers another reader.
    pub fn reader(&self) -> Reader<C> {
        Reader::register(&self.core)
    }

    /// Number of publications so far.
    pub fn epoch(&self) -> u64 {
        self.core.epoch.load(Ordering::Relaxed)
    }

    fn hidden(&self) -> &UnsafeCell<C> {
        &self.core.copies[(self.epoch() + 1) as usize % 2].0
    }

    fn change<R>(&mut self, change: impl FnOnce(&mut C) -> R) -> R {
        // SAFETY: readers are in the live copy only. `publish` has waited until all had left this copy, and
        // readers that entered since saw the epoch that hides it. `&mut self` excludes every other access by
        // the writer.
        self.hidden().with_mut(|copy| change(unsafe { &mut *copy }))
    }

    /// Makes the hidden copy live; see [`Writer::publish`].
    fn swap(&mut self) {
        let epoch = self.epoch() + 1;
        // Release: a reader that sees the epoch sees the changes.
        self.core.epoch.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
        let entered = self.core.slots();
        self.inside.extend(entered.iter().filter_map(|slot| {
            // Acquire, here and below: the reader's accesses happened before.
            let state = slot.0.load(Ordering::Acquire);
            (state % 2 == 1).then(|| (Arc::clone(slot), state))
        }));
        drop(entered);
        for (slot, state) in self.inside.drain(..) {
            let mut spins = 0;
            while slot.0.load(Ordering::Acquire) == state {
                if spins < SPINS {
                    spins += 1;
                    sync::spin_loop();
                } else {
                    sync::yield_now();
                }
            }
        }
    }

    /// Makes the hidden copy equal to the live one: repeats the log with `repeat`, or clones the live copy.
    fn catch_up(&mut self, repeat: impl Fn(&mut C, Change)) {
        let mut log = std::mem::take(&mut self.log);
        if std::mem::take(&mut self.diverged) {
            log.clear();
            let live = self.core.copies[self.epoch() as usize % 2].0.get();
            // SAFETY: only this writer writes copies, and it never writes the live one.
            let clone = unsafe { live.deref() }.clone();
            self.change(|copy| *copy = clone);
        }
        self.change(|copy| log.drain(..).for_each(|change| repeat(copy, change)));
        self.log = log;
    }
}

impl<C: Classifier + Clone> Writer<C> {
    /// Adds a rule. As with all updates, readers see it after [`Writer::publish`].
    pub fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        self.change(|copy| copy.insert(rule))?;
        self.log.push(Change::Insert(rule));
        Ok(())
    }

    /// Removes a rule; `false` when no rule has this id.
    pub fn remove(&mut self, id: u32) -> bool {
        let removed = self.change(|copy| copy.remove(id));
        if removed {
            self.log.push(Change::Remove(id));
        }
        removed
    }

    /// Changes a rule's precedence; `false` when no rule has this id.
    pub fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let set = self.change(|copy| copy.set_precedence(id, precedence));
        if set {
            self.log.push(Change::SetPrecedence(id, precedence));
        }
        set
    }

    /// Adds many rules. Like [`Classifier::insert_all`], it stops at the first error and keeps the rules before
    /// it.
    pub fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        self.diverged = true;
        self.change(|copy| copy.insert_all(rules))
    }

    /// Rebuilds what updates have degraded, in the hidden copy: readers use the live copy meanwhile.
    pub fn optimise(&mut self) {
        self.diverged = true;
        self.change(Classifier::optimise);
    }

    /// Makes all updates since the last publication visible to readers, at once.
    ///
    /// When it returns, no reader is in an older state any more. It waits for readers that are, each at most
    /// until the end of its burst. Apart from that it costs about a microsecond, which many updates can share.
    pub fn publish(&mut self) {
        self.swap();
        // Each of these changes has already succeeded on an equal copy.
        self.catch_up(|copy, change| match change {
            Change::Insert(rule) => _ = copy.insert(rule),
            Change::Remove(id) => _ = copy.remove(id),
            Change::SetPrecedence(id, precedence) => _ = copy.set_precedence(id, precedence),
        });
    }

    /// Number of rules, including those that are not yet published.
    pub fn len(&self) -> usize {
        self.look(C::len)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Octets of memory in use by both copies and the log.
    pub fn memory_bytes(&self) -> usize {
        2 * self.look(C::memory_bytes) + self.log.capacity() * size_of::<Change>()
    }

    fn look<R>(&self, look: impl FnOnce(&C) -> R) -> R {
        let hidden = self.hidden().get();
        // SAFETY: only this writer writes copies, and `&self` prevents it from doing so meanwhile.
        look(unsafe { hidden.deref() })
    }
}

impl<C> Reader<C> {
    fn register(core: &Arc<Core<C>>) -> Reader<C> {
        let slot = Arc::new(Slot(AtomicU64::new(0)));
        core.slots().push(Arc::clone(&slot));
        Reader { core: Arc::clone(core), slot }
    }

    /// Enters the live copy. Wait-free.
    #[inline]
    pub fn pin(&mut self) -> Guard<'_, C> {
        // The slot is odd already when a guard was forgotten. The next odd number tells a waiting writer that
        // the old guard is no longer in use.
        let entered = (self.slot.0.load(Ordering::Relaxed) + 1) | 1;
        self.slot.0.store(entered, Ordering::Release);
        fence(Ordering::SeqCst);
        let epoch = self.core.epoch.load(Ordering::Acquire);
        let copy = self.core.copies[epoch as usize % 2].0.get();
        Guard { copy, slot: &self.slot, entered, epoch, reader: PhantomData }
    }
}

impl<C> Clone for Reader<C> {
    fn clone(&self) -> Reader<C> {
        Reader::register(&self.core)
    }
}

impl<C> Drop for Reader<C> {
    fn drop(&mut self) {
        // No guard can borrow this reader any more, so even a forgotten guard is no longer in use.
        self.slot.0.store(0, Ordering::Release);
        let mut slots = self.core.slots();
        if let Some(at) = slots.iter().position(|slot| Arc::ptr_eq(slot, &self.slot)) {
            slots.swap_remove(at);
        }
    }
}

impl<C> Guard<'_, C> {
    /// Number of the publication that this guard sees: equal numbers mean equal rules. Verdict caches compare
    /// it.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl<C> Deref for Guard<'_, C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        // SAFETY: the slot has been odd since before the epoch was read, so the writer does not write this copy
        // until `drop` has changed the slot.
        unsafe { self.copy.deref() }
    }
}

impl<C> Drop for Guard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        // Release: all reads under this guard happen before the store.
        self.slot.0.store(self.entered.wrapping_add(1), Ordering::Release);
    }
}

impl<C> fmt::Debug for Writer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("pending", &self.log.len()).finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Reader<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl<C> fmt::Debug for Guard<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

#[cfg(all(loom, test))]
mod loom_tests;
