//! TEIDs of this UPF's own choice. The lower bits index the table of tunnels directly; which index is drawn at random, and so
//! are the other bits, so that nobody can guess a TEID. A tunnel that is gone does not come back to life for packets still
//! under way: its index rests until others have been used, and then comes under another TEID.

use std::collections::VecDeque;

use crate::random::Draw;
use crate::tables::{INDEX_MASK, TEID_INDEX_BITS};

/// Freed indices that rest, at most. Of a small table it is a quarter.
const RESTING: usize = 65_536;
/// Values of the bits above the index.
const GENERATIONS: u32 = 1 << (32 - TEID_INDEX_BITS);

/// The TEIDs that are in use, and the indices that are not.
pub(super) struct Teids {
    draw: Draw,
    /// Free indices, in no order.
    free: Vec<u32>,
    /// Indices freed lately, the oldest first.
    resting: VecDeque<u32>,
    most_resting: usize,
    /// The TEID that each index is allocated under, or 0.
    allocated: Vec<u32>,
    /// The upper bits that each index had last.
    generations: Vec<u16>,
}

impl Teids {
    /// For a table with this many indices, of which 0 is not used.
    pub fn new(indices: u32, secret: u64) -> Teids {
        let count = indices as usize;
        Teids {
            draw: Draw::new(secret),
            free: (1..indices).collect(),
            resting: VecDeque::new(),
            most_resting: RESTING.min(count / 4),
            allocated: vec![0; count],
            generations: vec![0; count],
        }
    }

    /// How many are in use.
    pub fn len(&self) -> usize {
        self.allocated.len() - 1 - self.free.len() - self.resting.len()
    }

    /// A TEID that is not in use and that `is_usable` accepts.
    pub fn allocate(&mut self, is_usable: impl Fn(u32) -> bool) -> Option<u32> {
        while self.resting.len() > self.most_resting {
            self.free.extend(self.resting.pop_front());
        }
        let index = if self.free.is_empty() {
            self.resting.pop_front()?
        } else {
            let at = self.draw.below(self.free.len() as u32);
            self.free.swap_remove(at as usize)
        };
        let last = u32::from(self.generations[index as usize]);
        // A TEID that the CP function assigned may stand in the way of one generation, not of several.
        for _ in 0..16 {
            // Never the last one: 1 to GENERATIONS - 1 further.
            let generation = (last + 1 + self.draw.below(GENERATIONS - 1)) % GENERATIONS;
            let teid = generation << TEID_INDEX_BITS | index;
            if is_usable(teid) {
                self.generations[index as usize] = generation as u16;
                self.allocated[index as usize] = teid;
                return Some(teid);
            }
        }
        self.resting.push_back(index);
        None
    }

    /// Whether a TEID was allocated here and is in use.
    pub fn contains(&self, teid: u32) -> bool {
        // Index 0 is never given out, so no TEID that is allocated is 0.
        teid != 0 && self.allocated.get((teid & INDEX_MASK) as usize) == Some(&teid)
    }

    /// Gives a TEID back that is in use.
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
            let mut teids = Teids::new(65_536, secret);
            (0..1000).filter_map(|_| teids.allocate(|_| true)).collect::<Vec<_>>()
        };
        let (a, b) = (draw(1), draw(2));
        assert_eq!(a.iter().collect::<std::collections::HashSet<_>>().len(), 1000);
        // Neither in a row nor alike: of 1,000 in 2^28 next to none meet by chance.
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
        let mut teids = Teids::new(64, 7);
        let first = teids.allocate(|_| true).unwrap();
        teids.release(first);
        // 16 others may rest meanwhile.
        for _ in 0..16 {
            let other = teids.allocate(|_| true).unwrap();
            assert_ne!(other & INDEX_MASK, first & INDEX_MASK);
            teids.release(other);
        }
        let mut all: Vec<u32> = std::iter::from_fn(|| teids.allocate(|_| true)).collect();
        assert_eq!((all.len(), teids.len()), (63, 63), "every index but 0");
        assert!(!all.contains(&first) && !teids.contains(first));
        all.iter().for_each(|teid| assert!(teids.contains(*teid)));
        let again = all.pop().unwrap();
        teids.release(again);
        let last = teids.allocate(|_| true).unwrap();
        assert!(last != again && last & INDEX_MASK == again & INDEX_MASK, "the one that is left");
    }
}
