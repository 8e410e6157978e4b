//! Cache lines of words that any thread may change at any time, for counters and meters.
//!
//! ```text
//!  number of a line:  region 4 bits | place in the region 28 bits
//! ```
//! Lines lie in regions. Region 0 is this process's own memory, which grows. The others are memory that somebody
//! else provides ([`Memory`]), for instance a map that programs in the kernel share. A line's number says where
//! it is.

use std::ptr::NonNull;
use std::sync::OnceLock;
// The model checker's atomics cannot be used in memory that starts as zeros.
use std::sync::atomic::AtomicU64 as PlainU64;

use crate::chunks::{CHUNK_BYTES, CHUNKS, Chunks, prefetch};

/// Words of a cache line.
pub type Line = [PlainU64; 8];

/// Most regions: the process's own memory and three others.
const REGIONS: usize = 4;
/// Bits of a line's number that are its place in its region.
const PLACE_BITS: u32 = 28;
const _: () = assert!(Chunks::<Line>::LEN * CHUNKS == 1 << PLACE_BITS && REGIONS <= 1 << (32 - PLACE_BITS));

/// Where lines lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region(u32);

impl Region {
    /// The process's own memory.
    pub const OWN: Region = Region(0);
    /// Number of regions that lines can have; [`Region::index`] is below it.
    pub const COUNT: usize = REGIONS;

    /// Most lines of a region.
    pub const LINES: u32 = 1 << PLACE_BITS;

    /// The region of the line with this number.
    #[inline]
    pub fn of(line: u32) -> Region {
        Region(line >> PLACE_BITS)
    }

    /// The number of the line at a place of this region, which is below [`Region::LINES`].
    #[inline]
    pub fn line(self, place: u32) -> u32 {
        debug_assert!(place < Region::LINES);
        self.0 << PLACE_BITS | place
    }

    /// The number of the region.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Why memory cannot become a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// There are already as many as there can be.
    #[error("no more than {REGIONS} regions of state lines")]
    TooMany,
    /// It does not begin at a cache line, or its length is not right.
    #[error(
        "a region of state lines is 1 to {CHUNKS} times {CHUNK_BYTES} octets long and begins at a cache line"
    )]
    Unsuitable,
}

/// Memory for lines that somebody else provides, and may share with others.
///
/// # Safety
/// The memory stays mapped, readable and writable at the same address until the value is dropped. Whoever else
/// accesses it does so by atomic operations, or is no part of this program.
pub unsafe trait Memory: Send + Sync {
    /// The memory, which contains only zeros at first.
    fn lines(&self) -> NonNull<[Line]>;
}

// SAFETY: the memory is that of the value to which the count refers, which lives as long as any count of it.
unsafe impl<M: Memory + ?Sized> Memory for std::sync::Arc<M> {
    fn lines(&self) -> NonNull<[Line]> {
        (**self).lines()
    }
}

/// Cache lines of words that any thread may change at any time. They never move.
pub struct Lines {
    own: Chunks<Line>,
    /// The regions from 1 on.
    lent: [OnceLock<Lent>; REGIONS - 1],
}

/// A region in memory of somebody else.
struct Lent {
    lines: NonNull<[Line]>,
    _memory: Box<dyn Memory>,
}

// SAFETY: the lines are atomics.
unsafe impl Sync for Lines {}
// SAFETY: as above.
unsafe impl Send for Lines {}

impl Default for Lines {
    fn default() -> Lines {
        Lines { own: Chunks::new(CHUNKS), lent: [const { OnceLock::new() }; REGIONS - 1] }
    }
}

impl Lines {
    /// The unit in which regions grow. A contiguous run of lines lies in one.
    pub const CHUNK: usize = Chunks::<Line>::LEN;

    /// Whether the kernel has given the addresses for lines in this process's own memory.
    pub fn has_addresses(&self) -> bool {
        self.own.has_addresses()
    }

    /// Adds a region, for as long as `self` lives.
    ///
    /// # Errors
    /// There are too many regions, or the memory is not some whole chunks ([`Lines::CHUNK`]).
    pub fn add_region(&self, memory: Box<dyn Memory>) -> Result<Region, RegionError> {
        let lines = memory.lines();
        let chunks = lines.len() / Lines::CHUNK;
        let whole = lines.len().is_multiple_of(Lines::CHUNK) && (1..=CHUNKS).contains(&chunks);
        if !whole || !lines.cast::<Line>().addr().get().is_multiple_of(size_of::<Line>()) {
            return Err(RegionError::Unsuitable);
        }
        let mut lent = Lent { lines, _memory: memory };
        for (place, number) in self.lent.iter().zip(1..) {
            match place.set(lent) {
                Ok(()) => return Ok(Region(number)),
                Err(refused) => lent = refused,
            }
        }
        Err(RegionError::TooMany)
    }

    /// The line with this number, if [`Lines::grow_shared`] has been called for it.
    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<&Line> {
        // SAFETY: every bit pattern is a valid atomic, and atomics may be shared.
        match unsafe { self.own.get(number as usize) } {
            Some(line) => Some(line),
            None => self.lent(number),
        }
    }

    /// A line of somebody else's memory.
    #[inline(never)]
    fn lent(&self, number: u32) -> Option<&Line> {
        let lent = self.lent.get(Region::of(number).index().checked_sub(1)?)?.get()?;
        // SAFETY: the owner of the memory vouches for it until it is dropped, which happens after `self`'s last use; every
        // bit pattern is a valid atomic, and atomics may be shared.
        unsafe { lent.lines.as_ref() }.get((number & (Region::LINES - 1)) as usize)
    }

    /// Makes sure that the line with this number exists; `false` when there is no memory. For one thread at a
    /// time.
    pub fn grow_shared(&self, number: u32) -> bool {
        match Region::of(number) {
            Region::OWN => self.own.grow(number as usize / Self::CHUNK),
            _ => self.lent(number).is_some(),
        }
    }

    /// Prefetches a line and returns it.
    #[inline(always)]
    pub fn prefetched(&self, number: u32) -> Option<&Line> {
        let line = self.get(number);
        if let Some(line) = line {
            prefetch(std::ptr::from_ref(line));
        }
        line
    }

    /// Prefetches a line.
    #[inline(always)]
    pub fn prefetch(&self, number: u32) {
        if let Some(line) = self.get(number) {
            prefetch(std::ptr::from_ref(line));
        }
    }
}
