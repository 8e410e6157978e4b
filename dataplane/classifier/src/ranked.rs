//! Candidates and parts of a structure in order of rank.
//!
//! [`Groups`] holds rules that a structure cannot tell apart, [`Order`] the parts of a structure (tables, partitions)
//! by the best rank in each, so that a search can stop early, and [`Best`] is what a search has found.

use crate::Verdict;
use crate::store::Store;

/// What a place in a structure holds: the slot of a rule, or a group of rules.
pub(crate) type Head = u32;
/// Marks a head that is the number of a group.
pub(crate) const GROUP: u32 = 1 << 30;

/// The best match of a search so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    /// The greatest when nothing has matched; a rule may have it nevertheless.
    pub rank: u64,
    pub verdict: Verdict,
}

impl Best {
    pub const NONE: Best = Best { rank: u64::MAX, verdict: None };

    /// Whether nothing from `rank` on can be better.
    #[inline]
    pub fn is_before(&self, rank: u64) -> bool {
        self.rank <= rank && self.verdict.is_some()
    }
}

/// Rules that must be tried one by one, wherever there are two or more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// Slots in order of rank.
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

    /// The slots that a head stands for.
    #[inline]
    pub fn of<'a>(&'a self, head: &'a Head) -> &'a [u32] {
        if head & GROUP == 0 { std::slice::from_ref(head) } else { &self.lists[(head & !GROUP) as usize] }
    }

    /// Adds a slot to what `head` stands for; gives the number of slots.
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

    /// Takes a slot out; `false` when it was the only one.
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

/// A part's place in the order of search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    /// No rule of the part ranks before this.
    pub best: u64,
    pub part: u32,
}

/// Parts, sorted by the best rank in them.
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

    /// Moves the part of `old` to where `best` belongs.
    pub fn update(&mut self, old: Place, best: u64) {
        let new = Place { best, ..old };
        let from = self.places.partition_point(|place| *place < old);
        let to = self.places.partition_point(|place| *place < new);
        // Only the places in between move.
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
