//! Candidates and parts of a structure in order of rank.
//!
//! [`Groups`] holds rules that a structure cannot tell apart. [`Order`] sorts the parts of a structure (tables,
//! partitions) by the best rank in each, so that a search can stop early. [`Best`] is the best match that a
//! search has found.

use crate::Verdict;
use crate::store::Store;

/// Content of a place in a structure: the slot of one rule, or the number of a group of rules with [`GROUP`]
/// set.
pub(crate) type Head = u32;
/// Set in a head that is the number of a group.
pub(crate) const GROUP: u32 = 1 << 30;

/// The best match of a search so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    /// Rank of the match; `u64::MAX` when nothing has matched. A rule may have this rank too.
    pub rank: u64,
    pub verdict: Verdict,
}

impl Best {
    pub const NONE: Best = Best { rank: u64::MAX, verdict: None };

    /// Whether no rule of rank `rank` or greater can be better than this match.
    #[inline]
    pub fn is_before(&self, rank: u64) -> bool {
        self.rank <= rank && self.verdict.is_some()
    }
}

/// Groups of two or more rules that a structure cannot tell apart, so that a look-up must try them one by one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// The slots of each group in order of rank.
    lists: Vec<Vec<u32>>,
    free: Vec<u32>,
}

impl Groups {
    fn add(&mut self, slots: [u32; 2]) -> Head {
        let number = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() as u32 - 1
        });
        self.lists[number as usize].extend(slots);
        number | GROUP
    }

    /// The slots for which a head stands.
    #[inline]
    pub fn of<'a>(&'a self, head: &'a Head) -> &'a [u32] {
        if head & GROUP == 0 { std::slice::from_ref(head) } else { &self.lists[(head & !GROUP) as usize] }
    }

    /// Adds a slot to the rules for which `head` stands; returns their number.
    pub fn join(&mut self, head: &mut Head, slot: u32, store: &Store) -> usize {
        let rank = store.entry(slot).rank;
        if *head & GROUP == 0 {
            let first = store.entry(*head).rank < rank;
            *head = self.add(if first { [*head, slot] } else { [slot, *head] });
            return 2;
        }
        let list = &mut self.lists[(*head & !GROUP) as usize];
        list.insert(list.partition_point(|&other| store.entry(other).rank < rank), slot);
        list.len()
    }

    /// Removes a slot from the rules for which `head` stands; `false` when it was the only one.
    pub fn leave(&mut self, head: &mut Head, slot: u32, store: &Store) -> bool {
        if *head & GROUP == 0 {
            return false;
        }
        let rank = store.entry(slot).rank;
        let number = *head & !GROUP;
        let list = &mut self.lists[number as usize];
        list.remove(list.partition_point(|&other| store.entry(other).rank < rank));
        if let [last] = list[..] {
            *head = last;
            *list = Vec::new();
            self.free.push(number);
        }
        true
    }

    pub fn heap_bytes(&self) -> usize {
        let lists: usize = self.lists.iter().map(|list| list.capacity() * size_of::<u32>()).sum();
        lists + self.lists.capacity() * size_of::<Vec<u32>>() + self.free.capacity() * size_of::<u32>()
    }
}

/// A part of a structure with the best rank in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    /// A lower bound of the ranks in the part.
    pub best: u64,
    pub part: u32,
}

/// The parts of a structure, sorted by the best rank in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    places: Vec<Place>,
}

impl Order {
    #[inline]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Numbers of the parts.
    pub fn parts(&self) -> impl Iterator<Item = u32> {
        self.places.iter().map(|place| place.part)
    }

    pub fn insert(&mut self, place: Place) {
        self.places.insert(self.places.partition_point(|other| *other < place), place);
    }

    pub fn remove(&mut self, place: Place) {
        self.places.remove(self.places.partition_point(|other| *other < place));
    }

    /// Gives the part of `old` the rank `best` and moves it to its new position.
    pub fn update(&mut self, old: Place, best: u64) {
        let new = Place { best, ..old };
        let from = self.places.partition_point(|place| *place < old);
        let to = self.places.partition_point(|place| *place < new);
        // Only the places between the two positions move.
        if to <= from {
            self.places[to..=from].rotate_right(1);
            self.places[to] = new;
        } else {
            self.places[from..to].rotate_left(1);
            self.places[to - 1] = new;
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }
}
