//! The ends of tunnels at this node, by TEID.
//!
//! A TEID's low 20 bits are its position in the table, so that finding an end is one load. The high 12 bits are a generation:
//! packets for an end that is gone do not reach the next one at its position. Generations begin at random, so that a node that
//! was started anew does not take packets for the ends of its predecessor.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Bits of a TEID that are the position.
const POSITION_BITS: u32 = 20;
/// Most ends at once.
pub const MOST: usize = (1 << POSITION_BITS) - 1;
/// Position 0 is never used, so that no TEID is 0.
const FIRST: u32 = 1;

/// The position of a TEID in the table.
#[inline(always)]
pub fn position(teid: u32) -> usize {
    (teid & MOST as u32) as usize
}

/// Gives out TEIDs; for the side that sets tunnels up.
#[derive(Debug)]
pub struct Allocator {
    /// The generation that each position had last.
    generations: Vec<u16>,
    /// Those that are free longest first: the longer a TEID is not used, the less likely somebody still sends to it.
    free: VecDeque<u32>,
    first_generation: u16,
}

impl Default for Allocator {
    fn default() -> Allocator {
        let random = RandomState::new().build_hasher().finish();
        Allocator { generations: Vec::new(), free: VecDeque::new(), first_generation: random as u16 }
    }
}

impl Allocator {
    /// A TEID that is not in use; `None` when all are.
    pub fn allocate(&mut self) -> Option<u32> {
        let position = match self.free.pop_front() {
            Some(position) => position,
            None => {
                let position = self.generations.len() as u32 + FIRST;
                if position as usize > MOST {
                    return None;
                }
                self.generations.push(self.first_generation);
                position
            }
        };
        let generation = self.generations.get_mut((position - FIRST) as usize)?;
        *generation = generation.wrapping_add(1);
        Some(u32::from(*generation) << POSITION_BITS | position)
    }

    /// The end of a TEID is gone.
    pub fn release(&mut self, teid: u32) {
        self.free.push_back(position(teid) as u32);
    }
}

/// The ends, for the worker.
#[derive(Debug)]
pub struct Table<T> {
    /// By position; TEID 0 stands for none.
    slots: Vec<(u32, Option<T>)>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { slots: Vec::new() }
    }
}

impl<T> Table<T> {
    /// The end of a TEID.
    #[inline(always)]
    pub fn get_mut(&mut self, teid: u32) -> Option<&mut T> {
        match self.slots.get_mut(position(teid)) {
            Some((known, end)) if *known == teid => end.as_mut(),
            _ => None,
        }
    }

    /// Sets the end of a TEID.
    pub fn insert(&mut self, teid: u32, end: T) {
        let at = position(teid);
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || (0, None));
        }
        self.slots[at] = (teid, Some(end));
    }

    /// Takes the end of a TEID out.
    pub fn remove(&mut self, teid: u32) -> Option<T> {
        let slot = self.slots.get_mut(position(teid)).filter(|(known, _)| *known == teid)?;
        slot.0 = 0;
        slot.1.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teid_that_is_used_again_is_another_one() {
        let (mut allocator, mut table) = (Allocator::default(), Table::default());
        let first = allocator.allocate().unwrap();
        let second = allocator.allocate().unwrap();
        table.insert(first, 'a');
        table.insert(second, 'b');
        assert_eq!((table.get_mut(first), position(first)), (Some(&mut 'a'), 1));
        assert_eq!(table.get_mut(first ^ 1 << 31), None);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!((table.remove(first), table.get_mut(first)), (None, None));
        allocator.release(first);
        let third = allocator.allocate().unwrap();
        assert_eq!((position(third), third == first), (1, false));
        table.insert(third, 'c');
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.get_mut(third), Some(&mut 'c'));
        for teid in [0, position(third) as u32, u32::MAX] {
            assert!(teid == third || table.get_mut(teid).is_none());
        }
    }

    #[test]
    fn teids_run_out() {
        let mut allocator = Allocator::default();
        assert_eq!((0..).take_while(|_| allocator.allocate().is_some()).count(), MOST);
        allocator.release(77);
        allocator.release(5);
        // The one that is free longest comes first.
        assert_eq!([77, 5].map(Some), [(); 2].map(|()| allocator.allocate().map(position)));
        assert_eq!(allocator.allocate(), None);
    }
}
