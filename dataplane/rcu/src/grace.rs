//! Grace periods: when the last reader has left that may still see replaced data.
//!
//! Readers come from several sources. The threads of this process are one: each announces in its seat when it
//! reads. Readers elsewhere, such as programs in the kernel that read tables of ours, are another [`Source`],
//! which knows in its own way when they have finished. A [`Ticket`] has one number of each source. It is taken
//! and looked at without waiting, so a task that serves others can hold values in a [`Queue`] and look again.

use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, fence};

/// Most sources of readers of a domain: the threads of this process and three others.
pub const SOURCES: usize = 4;

/// The seat's value while the reader is outside, and the lowest number of a source without readers.
const IDLE: u64 = u64::MAX;

/// Readers that are not registered threads, with their own way to tell that they have finished.
///
/// [`Domain::ticket`] calls [`Source::take`], [`Domain::passed`] calls [`Source::oldest`], in any thread. A
/// sequentially consistent fence stands before each call. Neither may wait: a source whose answer takes time,
/// such as a grace period of the kernel, finds it in a thread of its own.
pub trait Source: Send + Sync {
    /// Takes a number, which is greater than zero and not lower than those taken before. Readers that are
    /// inside now may still see data that was replaced before this call.
    fn take(&self) -> u64;

    /// A number such that the readers of all lower ones have left. It never becomes lower. `u64::MAX` when there
    /// are no readers and none will come, as after the source has been shut down.
    fn oldest(&self) -> u64;
}

/// The domain has [`SOURCES`] sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("more than {SOURCES} sources of readers")]
pub struct TooManySources;

/// A reader's epoch, on cache lines of its own.
#[repr(align(128))]
struct Seat(AtomicU64);

/// The readers that are threads of this process.
struct Threads {
    epoch: AtomicU64,
    seats: Mutex<Vec<Arc<Seat>>>,
}

impl Threads {
    fn seats<R>(&self, with: impl FnOnce(&mut Vec<Arc<Seat>>) -> R) -> R {
        // Under the lock only allocation can panic, and it leaves the list as it was.
        let mut seats = self.seats.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        with(&mut seats)
    }
}

impl Source for Threads {
    fn take(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel)
    }

    /// The lowest epoch of the readers that are inside.
    fn oldest(&self) -> u64 {
        self.seats(|seats| seats.iter().map(|seat| seat.0.load(Ordering::Acquire)).min().unwrap_or(IDLE))
    }
}

struct Core {
    threads: Threads,
    others: [OnceLock<Box<dyn Source>>; SOURCES - 1],
}

/// A group of readers and writers that share an epoch.
#[derive(Clone)]
pub struct Domain(Arc<Core>);

impl Default for Domain {
    fn default() -> Domain {
        let threads = Threads { epoch: AtomicU64::new(1), seats: Mutex::new(Vec::new()) };
        Domain(Arc::new(Core { threads, others: [const { OnceLock::new() }; SOURCES - 1] }))
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Domain")
    }
}

/// A point in time: once it has passed, no reader sees data that was replaced before it. See
/// [`Domain::passed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket([u64; SOURCES]);

impl Ticket {
    /// Whether every source's number is below the source's oldest, or the source did not exist.
    fn passed(&self, oldest: &[u64; SOURCES]) -> bool {
        self.0.iter().zip(oldest).all(|(number, oldest)| *number == 0 || number < oldest)
    }
}

impl Domain {
    /// Registers a reader, for one thread.
    pub fn reader(&self) -> Reader {
        let seat = Arc::new(Seat(AtomicU64::new(IDLE)));
        self.0.threads.seats(|seats| seats.push(Arc::clone(&seat)));
        Reader { domain: self.clone(), seat }
    }

    /// Adds a source of readers, before its first reader reads. It stays for the domain's lifetime. Tickets that
    /// were taken before do not wait for it: its readers only see data as it is now.
    ///
    /// # Errors
    /// There is no room for another source.
    pub fn add_source(&self, source: Box<dyn Source>) -> Result<(), TooManySources> {
        let added = self.0.others.iter().try_fold(source, |source, place| match place.set(source) {
            Ok(()) => Err(()),
            Err(source) => Ok(source),
        });
        // Either a ticket's fence is later, and the ticket has a number of this source, or it is earlier, and the
        // source's readers see what was published before the ticket.
        fence(Ordering::SeqCst);
        if added.is_err() { Ok(()) } else { Err(TooManySources) }
    }

    /// Takes a ticket: readers that are inside now may still see data that was replaced before this call.
    pub fn ticket(&self) -> Ticket {
        fence(Ordering::SeqCst);
        // Zero for a source that does not exist.
        Ticket(self.of_sources(0, |source| source.take()))
    }

    /// Whether all readers of all sources have left, or entered again, since the ticket was taken. Never waits.
    #[inline]
    pub fn passed(&self, ticket: Ticket) -> bool {
        ticket.passed(&self.oldest())
    }

    /// For each source, the lowest number of the readers that are inside.
    fn oldest(&self) -> [u64; SOURCES] {
        fence(Ordering::SeqCst);
        self.of_sources(IDLE, |source| source.oldest())
    }

    fn of_sources(&self, missing: u64, number: impl Fn(&dyn Source) -> u64) -> [u64; SOURCES] {
        let mut numbers = [missing; SOURCES];
        numbers[0] = number(&self.0.threads);
        for (number_of, source) in numbers[1..].iter_mut().zip(self.0.others.iter().map_while(OnceLock::get))
        {
            *number_of = number(&**source);
        }
        numbers
    }

    pub(crate) fn is(&self, other: &Domain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A registered reader, which enters to read and leaves.
pub struct Reader {
    domain: Domain,
    seat: Arc<Seat>,
}

impl Reader {
    /// Enters: data that is read under the guard stays valid until the guard is dropped. Hold it for one batch
    /// only, because no memory is freed meanwhile.
    #[inline]
    pub fn enter(&mut self) -> Guard<'_> {
        let epoch = self.domain.0.threads.epoch.load(Ordering::Acquire);
        self.seat.0.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
        Guard { reader: self }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let seat = &self.seat;
        self.domain.0.threads.seats(|seats| seats.retain(|other| !Arc::ptr_eq(other, seat)));
    }
}

/// A reader that is inside. If a guard is forgotten (`mem::forget`), memory is not freed until its reader
/// enters again or is dropped; nothing worse happens.
pub struct Guard<'r> {
    reader: &'r Reader,
}

impl Guard<'_> {
    #[inline]
    pub(crate) fn of(&self, domain: &Domain) -> bool {
        self.reader.domain.is(domain)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.reader.seat.0.store(IDLE, Ordering::Release);
    }
}

/// Values that wait until all readers have left.
pub struct Queue<T> {
    domain: Domain,
    waiting: VecDeque<(Ticket, T)>,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new(domain: &Domain) -> Queue<T> {
        Queue { domain: domain.clone(), waiting: VecDeque::new() }
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Adds a value that has just been replaced.
    pub fn push(&mut self, value: T) {
        self.waiting.push_back((self.domain.ticket(), value));
    }

    /// Removes the values that no reader sees any more, in the order of [`Queue::push`].
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        let mut count = 0;
        if !self.waiting.is_empty() {
            let oldest = self.domain.oldest();
            count = self.waiting.iter().take_while(|(ticket, _)| ticket.passed(&oldest)).count();
        }
        self.waiting.drain(..count).map(|(_, value)| value)
    }

    /// The value that has waited longest.
    pub fn front(&self) -> Option<&T> {
        self.waiting.front().map(|(_, value)| value)
    }

    /// Removes the value that has waited longest, if no reader sees it any more.
    pub fn pop_passed(&mut self) -> Option<T> {
        let oldest = if self.waiting.is_empty() { return None } else { self.domain.oldest() };
        self.waiting.pop_front_if(|(ticket, _)| ticket.passed(&oldest)).map(|(_, value)| value)
    }

    /// Removes the value that has waited longest, whether readers still see it or not.
    pub fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front().map(|(_, value)| value)
    }

    /// Number of values that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no value waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
