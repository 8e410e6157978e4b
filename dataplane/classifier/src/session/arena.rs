//! Memory for the rows of a million sessions: chunks that never move, in which equal rows are stored once.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::program::{Choice, Pair};
use crate::ids::{IdMap, map_bytes};

/// Cache lines in a chunk, 256 KiB; longer than the longest program.
const CHUNK: usize = 4096;
/// Buckets of programs that can be found again to be shared. Bounded, so that a flood of sessions without
/// common rows costs no more memory than this.
const BUCKETS: usize = 1024;
const WAYS: usize = 4;

/// Rows, found by their place.
#[derive(Clone, Debug)]
pub(super) struct Arena {
    chunks: Vec<Box<[Pair]>>,
    /// Lines in use of the last chunk.
    used: usize,
    /// Free places, by their length.
    free: Vec<Vec<u32>>,
    /// Number of users of each place with more than one.
    shared: IdMap<u32>,
    buckets: Box<[[Entry; WAYS]]>,
    programs: usize,
}

/// A program that other sessions may share.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    place: u32,
    /// Length in lines; zero means no entry.
    pairs: u16,
    tag: u16,
    choice: Choice,
}

impl Arena {
    pub fn new() -> Arena {
        Arena {
            chunks: Vec::new(),
            used: CHUNK,
            free: Vec::new(),
            shared: IdMap::default(),
            buckets: vec![[Entry::default(); WAYS]; BUCKETS].into(),
            programs: 0,
        }
    }

    /// The lines at `place`; empty when the place does not exist.
    #[inline(always)]
    pub fn get(&self, place: u32, pairs: u16) -> &[Pair] {
        let at = place as usize % CHUNK;
        let chunk = self.chunks.get(place as usize / CHUNK);
        chunk.and_then(|chunk| chunk.get(at..at + usize::from(pairs))).unwrap_or_default()
    }

    /// A place with these lines: an existing one if it is remembered, else a new one, for which `choose` is
    /// called.
    pub fn keep(&mut self, pairs: &[Pair], choose: impl FnOnce() -> Choice) -> (u32, Choice) {
        if pairs.is_empty() {
            return (0, Choice::default());
        }
        let (bucket, tag) = spread(pairs);
        let len = pairs.len() as u16;
        let same =
            |entry: &&Entry| entry.pairs == len && entry.tag == tag && self.get(entry.place, len) == pairs;
        if let Some(&Entry { place, choice, .. }) = self.buckets[bucket].iter().find(same) {
            *self.shared.entry(place).or_insert(1) += 1;
            return (place, choice);
        }
        let (place, choice) = (self.allocate(pairs.len()), choose());
        let at = place as usize % CHUNK;
        if let Some(chunk) = self.chunks.get_mut(place as usize / CHUNK) {
            chunk[at..at + pairs.len()].copy_from_slice(pairs);
        }
        // Shared programs stay remembered. A program with one user may be forgotten for this one.
        let unshared = |entry: &&mut Entry| entry.pairs == 0 || !self.shared.contains_key(&entry.place);
        let victims = self.buckets[bucket].iter_mut().filter(unshared);
        if let Some(entry) = victims.min_by_key(|entry| entry.pairs) {
            *entry = Entry { place, pairs: len, tag, choice };
        }
        self.programs += 1;
        (place, choice)
    }

    /// Removes one user of a place. The last one frees the place.
    pub fn release(&mut self, place: u32, pairs: u16) {
        if pairs == 0 {
            return;
        }
        if let Some(users) = self.shared.get_mut(&place) {
            *users -= 1;
            if *users == 1 {
                self.shared.remove(&place);
            }
            return;
        }
        let (bucket, _) = spread(self.get(place, pairs));
        for entry in &mut self.buckets[bucket] {
            if entry.place == place && entry.pairs == pairs {
                *entry = Entry::default();
            }
        }
        self.give_back(place, usize::from(pairs));
        self.programs -= 1;
    }

    fn allocate(&mut self, pairs: usize) -> u32 {
        if let Some(place) = self.free.get_mut(pairs).and_then(Vec::pop) {
            return place;
        }
        if self.used + pairs > CHUNK {
            // The rest of the chunk is for shorter programs.
            let rest = CHUNK - self.used;
            if rest > 0 {
                self.give_back(((self.chunks.len() - 1) * CHUNK + self.used) as u32, rest);
            }
            self.chunks.push(vec![Pair::default(); CHUNK].into());
            self.used = 0;
        }
        let place = (self.chunks.len() - 1) * CHUNK + self.used;
        self.used += pairs;
        place as u32
    }

    fn give_back(&mut self, place: u32, pairs: usize) {
        if self.free.len() <= pairs {
            self.free.resize(pairs + 1, Vec::new());
        }
        self.free[pairs].push(place);
    }

    /// Number of different programs. Equal programs of which one was forgotten count twice.
    pub fn programs(&self) -> usize {
        self.programs
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Pair>()
            + self.chunks.capacity() * size_of::<Box<[Pair]>>()
            + self.free.iter().map(|free| free.capacity() * 4 + size_of::<Vec<u32>>()).sum::<usize>()
            + map_bytes(&self.shared)
            + BUCKETS * WAYS * size_of::<Entry>()
    }
}

fn spread(pairs: &[Pair]) -> (usize, u16) {
    let mut hasher = DefaultHasher::new();
    pairs.hash(&mut hasher);
    let hash = hasher.finish();
    (hash as usize % BUCKETS, (hash >> 48) as u16)
}
