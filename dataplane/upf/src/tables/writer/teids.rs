//! TEIDs that this UPF chooses. The lower bits are an index into the table of tunnels. Both the index and the
//! other bits are random, so that nobody can guess a TEID. A new tunnel must not get packets that are still
//! under way for a removed one: a freed index is not reused until others have been, and then with another TEID.

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::TeidRange;
use crate::random::Draw;
use crate::tables::{INDEX_MASK, TEID_INDEX_BITS};

/// Most freed indices that are not yet reused; in a small table a quarter of all indices.
const RESTING: usize = 65_536;
/// Number of the bits above the index.
const GENERATION_BITS: u32 = 32 - TEID_INDEX_BITS;

/// The TEIDs in use, and the indices that are free.
pub(super) struct Teids {
    draw: Draw,
    /// Free indices in random order.
    free: Vec<u32>,
    /// Indices freed lately, oldest first.
    resting: VecDeque<u32>,
    most_resting: usize,
    /// The TEID allocated with each index, or 0.
    allocated: Vec<u32>,
    /// The interface for which each TEID was allocated.
    interfaces: Vec<u8>,
    /// The upper bits of the last TEID of each index.
    generations: Vec<u16>,
    /// What these may be.
    range: Range<u32>,
}

impl Teids {
    /// For a table with this many indices. Index 0 is not used.
    pub fn new(indices: u32, range: Option<TeidRange>, secret: u64) -> Teids {
        let count = indices as usize;
        let range = match range {
            Some(TeidRange { bits, value }) => {
                let bits = GENERATION_BITS - u32::from(bits);
                let value = u32::from(value);
                value << bits..(value + 1) << bits
            }
            None => 0..1 << GENERATION_BITS,
        };
        Teids {
            draw: Draw::new(secret),
            free: (1..indices).collect(),
            resting: VecDeque::new(),
            most_resting: RESTING.min(count / 4),
            allocated: vec![0; count],
            interfaces: vec![0; count],
            generations: vec![range.start as u16; count],
            range,
        }
    }

    /// Number of TEIDs in use.
    pub fn len(&self) -> usize {
        self.allocated.len() - 1 - self.free.len() - self.resting.len()
    }

    /// A new TEID for an interface that `is_usable` accepts.
    pub fn allocate(&mut self, interface: u8, is_usable: impl Fn(u32) -> bool) -> Option<u32> {
        while self.resting.len() > self.most_resting {
            self.free.extend(self.resting.pop_front());
        }
        let index = if self.free.is_empty() {
            self.resting.pop_front()?
        } else {
            let at = self.draw.below(self.free.len() as u32);
            self.free.swap_remove(at as usize)
        };
        let last = u32::from(self.generations[index as usize]) - self.range.start;
        let count = self.range.end - self.range.start;
        // A TEID that the CP function assigned may block one generation of an index, but not several.
        for _ in 0..16 {
            // Adds 1 to `count` - 1, so the generation differs from the last one.
            let generation = self.range.start + (last + 1 + self.draw.below(count - 1)) % count;
            let teid = generation << TEID_INDEX_BITS | index;
            if is_usable(teid) {
                self.generations[index as usize] = generation as u16;
                self.allocated[index as usize] = teid;
                self.interfaces[index as usize] = interface;
                return Some(teid);
            }
        }
        self.resting.push_back(index);
        None
    }

    /// Whether a TEID was allocated here and is in use.
    pub fn contains(&self, teid: u32) -> bool {
        // Index 0 is never allocated, so no allocated TEID is 0.
        teid != 0 && self.allocated.get((teid & INDEX_MASK) as usize) == Some(&teid)
    }

    /// The interface of a TEID that was allocated here and is in use.
    pub fn interface_of(&self, teid: u32) -> Option<u8> {
        self.contains(teid).then(|| self.interfaces[(teid & INDEX_MASK) as usize])
    }

    /// Releases a TEID that is in use.
    pub fn release(&mut self, teid: u32) {
        let index = teid & INDEX_MASK;
        if let Some(slot) = self.allocated.get_mut(index as usize) {
            *slot = 0;
            self.resting.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teids_are_drawn_from_the_whole_table_and_differ_between_secrets() {
        let draw = |secret| {
            let mut teids = Teids::new(65_536, None, secret);
            (0..1000).filter_map(|_| teids.allocate(0, |_| true)).collect::<Vec<_>>()
        };
        let (a, b) = (draw(1), draw(2));
        assert_eq!(a.iter().collect::<std::collections::HashSet<_>>().len(), 1000);
        // TEIDs are neither consecutive nor similar: of 1,000 in 2^28 almost none are neighbours by chance.
        let next = a.windows(2).filter(|pair| pair[1] & INDEX_MASK == (pair[0] & INDEX_MASK) + 1).count();
        let same = a.iter().filter(|teid| b.contains(teid)).count();
        assert!(next < 5 && same < 5, "{next} {same}");
        let quarters = |teids: &[u32]| {
            let mut counts = [0; 4];
            teids.iter().for_each(|teid| counts[(teid & INDEX_MASK) as usize / 16_384] += 1);
            counts
        };
        assert!(quarters(&a).iter().all(|count| (150..350).contains(count)), "{:?}", quarters(&a));
    }

    #[test]
    fn freed_indices_rest_and_come_back_under_other_teids() {
        let mut teids = Teids::new(64, None, 7);
        let first = teids.allocate(0, |_| true).unwrap();
        teids.release(first);
        // 16 other freed indices may come first.
        for _ in 0..16 {
            let other = teids.allocate(0, |_| true).unwrap();
            assert_ne!(other & INDEX_MASK, first & INDEX_MASK);
            teids.release(other);
        }
        let mut all: Vec<u32> = std::iter::from_fn(|| teids.allocate(0, |_| true)).collect();
        assert_eq!((all.len(), teids.len()), (63, 63), "every index but 0");
        assert!(!all.contains(&first) && !teids.contains(first));
        all.iter().for_each(|teid| assert!(teids.contains(*teid)));
        let again = all.pop().unwrap();
        teids.release(again);
        let last = teids.allocate(0, |_| true).unwrap();
        assert!(last != again && last & INDEX_MASK == again & INDEX_MASK, "the one that is left");
    }

    #[test]
    fn a_range_is_kept_and_others_never_meet_it() {
        for bits in 1..=7 {
            for value in [0, 1, (1 << bits) - 1] {
                let mut teids = Teids::new(64, Some(TeidRange { bits, value }), 7);
                let mut all = std::collections::HashSet::new();
                for _ in 0..40 {
                    let some: Vec<u32> = (0..20).filter_map(|_| teids.allocate(0, |_| true)).collect();
                    assert!(some.iter().all(|teid| teid >> (32 - bits) == u32::from(value)));
                    some.iter().for_each(|teid| teids.release(*teid));
                    all.extend(some);
                }
                assert!(all.len() > 600, "{} different ones of 800, {bits} bits", all.len());
            }
        }
    }
}
