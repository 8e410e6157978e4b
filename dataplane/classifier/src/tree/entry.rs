//! Rules in the form in which leaves store them, and the arena that stores the leaves.
//!
//! A leaf is one or more blocks of [`LANES`] rules in columns, in order, all but the last full: see
//! [`simd::block`](crate::simd::block). One comparison checks a packet against all rules of a block without a
//! branch, so a leaf costs about the same with one rule as with [`LANES`]. Copies of a rule in several leaves
//! share the fields for which a lane has no room.

use crate::simd::{Block, Lane, Probe, Rests, Vector, portable::Portable};
use crate::{Key, Matcher, Verdict};

/// Rules in a block of a leaf.
pub const LANES: usize = 16;

/// A rule in the form in which leaves store it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    lane: Lane,
}

impl Entry {
    /// Position in the order of precedence, then id.
    #[inline]
    pub fn rank(&self) -> u64 {
        self.lane.rank()
    }

    /// Precedence, the upper half of the rank.
    #[inline]
    pub fn precedence(&self) -> u32 {
        (self.rank() >> 32) as u32
    }

    /// Id, the lower half of the rank.
    #[inline]
    pub fn id(&self) -> u32 {
        self.lane.id()
    }

    /// The same rule with another precedence.
    pub fn with_precedence(&self, precedence: u32) -> Entry {
        Entry { lane: self.lane.with_precedence(precedence) }
    }
}

/// The best rule of a look-up so far.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    rank: u64,
    /// Value of the rule; `None` if no rule was found.
    pub verdict: Verdict,
}

impl Found {
    /// No rule: every rule comes before it.
    pub const NONE: Found = Found { rank: u64::MAX, verdict: None };

    /// Precedence of the match so far. Nodes whose best precedence value is higher contain nothing better.
    #[inline(always)]
    pub fn precedence(&self) -> u32 {
        (self.rank >> 32) as u32
    }
}

/// The fields of rules for which lanes have no room.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    rests: Rests,
}

impl Pool {
    /// Makes the entry of a rule. [`Pool::release`] frees what the entry takes from the pool.
    pub fn entry(&mut self, matcher: &Matcher, rank: u64, value: u32) -> Entry {
        Entry { lane: Lane::new(matcher, rank, value, &mut self.rests) }
    }

    /// The matcher from which the entry was made.
    pub fn matcher(&self, entry: &Entry) -> Matcher {
        entry.lane.matcher(&self.rests)
    }

    /// Frees what an entry and its copies hold.
    pub fn release(&mut self, entry: &Entry) {
        entry.lane.drop_rest(&mut self.rests);
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.rests.heap_bytes()
    }
}

/// The blocks of all leaves. Those of one leaf lie side by side.
///
/// The number of blocks for which a leaf has room follows from its length ([`room`]) and need not be stored. A
/// leaf that outgrows its room moves, and its old room is kept for the next leaf of that size.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    blocks: Vec<Block<LANES>>,
    /// First blocks of free rooms, by class.
    free: Vec<Vec<u32>>,
}

/// Class of a leaf's room and its size in blocks, a power of two.
fn room(len: usize) -> (usize, usize) {
    if len == 0 {
        return (0, 0);
    }
    let size = len.div_ceil(LANES).next_power_of_two();
    (1 + size.trailing_zeros() as usize, size)
}

impl Arena {
    fn take(&mut self, len: usize) -> u32 {
        let (class, size) = room(len);
        if size == 0 {
            return 0;
        }
        if let Some(first) = self.free.get_mut(class).and_then(Vec::pop) {
            return first;
        }
        let first = self.blocks.len();
        self.blocks.resize(first + size, Block::new());
        first as u32
    }

    /// Frees the room of a leaf.
    pub fn drop_leaf(&mut self, first: u32, len: usize) {
        let (class, size) = room(len);
        if size == 0 {
            return;
        }
        self.blocks[first as usize..first as usize + size].fill(Block::new());
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        self.free[class].push(first);
    }

    /// Stores a leaf of these entries, which must be in order; returns its first block.
    pub fn add(&mut self, entries: impl ExactSizeIterator<Item = Entry>) -> u32 {
        let first = self.take(entries.len());
        for (at, entry) in entries.enumerate() {
            self.blocks[first as usize + at / LANES].set(at % LANES, &entry.lane);
        }
        first
    }

    /// The blocks of a leaf.
    #[inline(always)]
    fn blocks(&self, first: u32, len: usize) -> &[Block<LANES>] {
        let first = first as usize;
        &self.blocks[first..first + len.div_ceil(LANES)]
    }

    /// The entries of a leaf.
    pub fn entries(&self, first: u32, len: usize) -> impl ExactSizeIterator<Item = Entry> {
        let blocks = self.blocks(first, len);
        (0..len).map(|at| Entry { lane: blocks[at / LANES].get(at % LANES) })
    }

    /// Index of the first entry of a leaf that does not come before this rank.
    fn place(&self, first: u32, len: usize, rank: u64) -> usize {
        let blocks = self.blocks(first, len);
        // The last block whose first entry comes before the rank, or the first block.
        let block = blocks.partition_point(|block| block.rank(0) < rank).saturating_sub(1);
        block * LANES + blocks.get(block).map_or(0, |block| block.position(Portable, rank))
    }

    /// Whether a leaf has an entry of this rank.
    pub fn holds(&self, first: u32, len: usize, rank: u64) -> bool {
        let at = self.place(first, len, rank);
        at < len && self.blocks(first, len)[at / LANES].rank(at % LANES) == rank
    }

    /// The least precedence value in a leaf.
    pub fn best(&self, first: u32, len: usize) -> u32 {
        if len == 0 { u32::MAX } else { (self.blocks[first as usize].rank(0) >> 32) as u32 }
    }

    fn move_to_room(&mut self, first: u32, len: usize, new_len: usize) -> u32 {
        if room(len) == room(new_len) {
            return first;
        }
        let to = self.take(new_len);
        let (from, blocks) = (first as usize, len.min(new_len).div_ceil(LANES));
        self.blocks.copy_within(from..from + blocks, to as usize);
        self.drop_leaf(first, len);
        to
    }

    /// Inserts an entry into a leaf in order; returns the leaf's first block, which may be new.
    pub fn insert(&mut self, first: u32, len: usize, entry: &Entry) -> u32 {
        let at = self.place(first, len, entry.rank());
        let first = self.move_to_room(first, len, len + 1);
        let blocks = &mut self.blocks[first as usize..first as usize + (len + 1).div_ceil(LANES)];
        // The last lane of every block moves to the next block.
        let mut carried = entry.lane;
        for (number, block) in blocks.iter_mut().enumerate().skip(at / LANES) {
            let last = block.get(LANES - 1);
            let lane = if number == at / LANES { at % LANES } else { 0 };
            block.insert(Portable, lane, &carried);
            carried = last;
        }
        first
    }

    /// Removes the entry of this rank from a leaf; returns the leaf's first block, which may be new. `None`
    /// when it is not there.
    pub fn remove(&mut self, first: u32, len: usize, rank: u64) -> Option<u32> {
        if !self.holds(first, len, rank) {
            return None;
        }
        let at = self.place(first, len, rank);
        let blocks = &mut self.blocks[first as usize..first as usize + len.div_ceil(LANES)];
        for number in at / LANES..blocks.len() {
            let next = blocks.get(number + 1).map(|block| block.get(0));
            let lane = if number == at / LANES { at % LANES } else { 0 };
            blocks[number].remove(Portable, lane);
            if let Some(next) = next {
                blocks[number].set(LANES - 1, &next);
            }
        }
        Some(self.move_to_room(first, len, len - 1))
    }

    /// Finds the first entry of a leaf that matches, if it comes before `found`.
    #[inline(always)]
    pub fn scan<V: Vector>(
        &self,
        vector: V,
        (first, len): (u32, usize),
        pool: &Pool,
        (key, probe): (&Key, &Probe<V>),
        found: &mut Found,
    ) {
        for block in self.blocks(first, len) {
            // The rest of a long leaf is skipped when its entries come after the match from another tree.
            if block.rank(0) > found.rank {
                return;
            }
            if let Some(lane) = block.find(vector, probe, key, &pool.rests) {
                let rank = block.rank(lane);
                if rank <= found.rank {
                    *found = Found { rank, verdict: Some(block.value(lane, &pool.rests)) };
                }
                return;
            }
        }
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        let free: usize = self.free.iter().map(|rooms| rooms.capacity() * size_of::<u32>()).sum();
        self.blocks.capacity() * size_of::<Block<LANES>>() + free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_keep_their_order_while_they_grow_and_shrink() {
        let (mut pool, mut arena) = (Pool::default(), Arena::default());
        let (mut first, mut ranks) = (0, Vec::new());
        let mut state = 1u64;
        for step in 0..4000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let rank = state >> 54;
            let growing = step / 1000 % 2 == 0;
            match ranks.binary_search(&rank) {
                Ok(at) if !growing || state & 7 == 0 => {
                    first = arena.remove(first, ranks.len(), rank).unwrap();
                    ranks.remove(at);
                }
                Err(at) if growing => {
                    let entry = pool.entry(&Matcher::ALL, rank, 0);
                    first = arena.insert(first, ranks.len(), &entry);
                    ranks.insert(at, rank);
                }
                found => assert_eq!(arena.holds(first, ranks.len(), rank), found.is_ok()),
            }
            let held: Vec<u64> = arena.entries(first, ranks.len()).map(|entry| entry.rank()).collect();
            assert_eq!(held, ranks);
        }
        assert!(ranks.len() > 100 && arena.remove(first, ranks.len(), u64::MAX).is_none());
    }
}
