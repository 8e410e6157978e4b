//! The rules of a classifier as its packet path reads them: one cache line for each slot.
//!
//! Structures that only *find candidates* (hash tables, search trees) keep slot numbers of this store and ask
//! it whether a candidate really matches. An [`Entry`] holds the words 0 to 3 of a matcher as two pairs of
//! words, both port ranges, and rank and value. The other sixteen words are stored separately, as [`Rest`].
//! They are read only for rules that use them, and only when the first words match.
//!
//! Invariant: `ids` has exactly the slots in use; slots in `free` hold stale entries to which nothing refers.

use crate::ids::{IdMap, map_bytes};
use crate::{Field, InsertError, Key, Matcher, Rule, rank};

/// Number of pairs of words in a key.
pub(crate) const PAIRS: usize = 10;
/// Number of pairs that [`Rest`] holds: the words 4 to 19.
pub(crate) const REST: usize = PAIRS - 2;
/// Means "no slot" or "no table".
pub(crate) const NONE: u32 = u32::MAX;
/// The value of [`Entry::rest`] when the rule uses none of the words 4 to 19.
const COMPLETE: u32 = u32::MAX;

/// Words `2 * at` (lower half) and `2 * at + 1` of a key, mask or value.
#[inline]
pub(crate) fn pair(words: &[u32; 2 * PAIRS], at: usize) -> u64 {
    u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32
}

/// The pairs 0 and 1: addresses; ports and word 3.
#[inline]
pub(crate) fn first_pairs(words: &[u32; 2 * PAIRS]) -> [u64; 2] {
    [pair(words, 0), pair(words, 1)]
}

/// The other pairs: words 4 to 19.
pub(crate) fn rest_pairs(words: &[u32; 2 * PAIRS]) -> [u64; REST] {
    std::array::from_fn(|at| pair(words, 2 + at))
}

/// One rule.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// Bits of the pairs 0 and 1 that are compared; none of the ports.
    pub masks: [u64; 2],
    /// The values of these bits.
    pub values: [u64; 2],
    /// First and last source port.
    pub source_ports: (u16, u16),
    pub destination_ports: (u16, u16),
    /// Precedence and id: [`crate::rank`].
    pub rank: u64,
    /// The verdict when this rule wins.
    pub value: u32,
    /// Slot of the [`Rest`], or [`COMPLETE`].
    rest: u32,
    /// The part of the structure in which the rule is; the structure sets it. [`NONE`] for rules that never
    /// match.
    pub home: u32,
}

impl Entry {
    /// Whether the first four words match. Without branches, as the outcome of a single comparison is hard to
    /// predict.
    #[inline]
    fn first_match(&self, first: [u64; 2]) -> bool {
        let ports = first[1] as u32;
        let within = |port: u16, (low, high): (u16, u16)| port.wrapping_sub(low) <= high.wrapping_sub(low);
        let differ =
            (first[0] & self.masks[0] ^ self.values[0]) | (first[1] & self.masks[1] ^ self.values[1]);
        (differ == 0)
            & within((ports >> 16) as u16, self.source_ports)
            & within(ports as u16, self.destination_ports)
    }

    /// The pairs 0 and 1 of a key that matches the rule in all bits that a tuple may compare. Ports are the
    /// first of their ranges.
    #[inline]
    pub fn sample(&self) -> [u64; 2] {
        let ports = u64::from(self.source_ports.0) << 16 | u64::from(self.destination_ports.0);
        [self.values[0], self.values[1] | ports]
    }
}

/// The words 4 to 19 of a matcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub masks: [u64; REST],
    pub values: [u64; REST],
}

impl Rest {
    #[inline]
    fn matches(&self, key: &Key) -> bool {
        let words = &key.words;
        let differ = |at: usize| pair(words, 2 + at) & self.masks[at] ^ self.values[at];
        (0..REST).fold(0, |all, at| all | differ(at)) == 0
    }
}

/// All rules, by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    entries: Vec<Entry>,
    free: Vec<u32>,
    rests: Vec<Rest>,
    free_rests: Vec<u32>,
    ids: IdMap<u32>,
}

impl Store {
    /// Stores a rule. Returns its slot, and its matcher unless the rule can never match.
    pub fn insert(&mut self, rule: &Rule) -> Result<(u32, Option<Matcher>), InsertError> {
        let compiled = Matcher::new(&rule.filter);
        let slot = self.insert_compiled(rule.rank(), rule.value, compiled.as_ref())?;
        Ok((slot, compiled))
    }

    /// Stores a rule that is already compiled; `matcher` is `None` if it can never match.
    pub fn insert_compiled(
        &mut self,
        rank: u64,
        value: u32,
        compiled: Option<&Matcher>,
    ) -> Result<u32, InsertError> {
        let id = rank as u32;
        let slot = self.free.last().copied().unwrap_or(self.entries.len() as u32);
        match self.ids.entry(id) {
            std::collections::hash_map::Entry::Occupied(_) => return Err(InsertError::Exists(id)),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(slot),
        };
        let matcher = compiled.unwrap_or(&Matcher::NEVER);
        let entry = Entry {
            masks: first_pairs(&matcher.mask),
            values: first_pairs(&matcher.value),
            source_ports: matcher.source_ports,
            destination_ports: matcher.destination_ports,
            rank,
            value,
            rest: self.add_rest(matcher),
            home: NONE,
        };
        if self.free.pop().is_some() {
            self.entries[slot as usize] = entry;
        } else {
            self.entries.push(entry);
        }
        Ok(slot)
    }

    fn add_rest(&mut self, matcher: &Matcher) -> u32 {
        let masks = rest_pairs(&matcher.mask);
        if masks == [0; REST] {
            return COMPLETE;
        }
        let rest = Rest { masks, values: rest_pairs(&matcher.value) };
        if let Some(slot) = self.free_rests.pop() {
            self.rests[slot as usize] = rest;
            return slot;
        }
        self.rests.push(rest);
        self.rests.len() as u32 - 1
    }

    /// Slot of the rule with this id.
    pub fn find(&self, id: u32) -> Option<u32> {
        self.ids.get(&id).copied()
    }

    /// Frees the slot of a rule that the structure has already removed.
    pub fn remove(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        self.ids.remove(&(entry.rank as u32));
        if entry.rest != COMPLETE {
            self.free_rests.push(entry.rest);
        }
        self.free.push(slot);
    }

    /// Changes the precedence of a rule that the structure has already removed.
    pub fn set_precedence(&mut self, slot: u32, precedence: u32) {
        let entry = &mut self.entries[slot as usize];
        entry.rank = rank(precedence, entry.rank as u32);
    }

    #[inline]
    pub fn entry(&self, slot: u32) -> &Entry {
        &self.entries[slot as usize]
    }

    /// Sets the part of the structure in which the rule is.
    pub fn set_home(&mut self, slot: u32, home: u32) {
        self.entries[slot as usize].home = home;
    }

    /// The words 4 to 19, when the rule uses any.
    #[inline]
    pub fn rest(&self, slot: u32) -> Option<&Rest> {
        let rest = self.entries[slot as usize].rest;
        if rest == COMPLETE { None } else { Some(&self.rests[rest as usize]) }
    }

    /// Whether the rule matches; `first` are the first pairs of `key`.
    #[inline]
    pub fn matches(&self, entry: &Entry, first: [u64; 2], key: &Key) -> bool {
        entry.first_match(first) && (entry.rest == COMPLETE || self.rests[entry.rest as usize].matches(key))
    }

    /// Smallest and greatest value of a field that can match: [`Matcher::range`] without the matcher.
    pub fn range(&self, slot: u32, field: Field) -> (u32, u32) {
        let entry = self.entry(slot);
        let (mask, value) = match (field.word / 2, self.rest(slot)) {
            (1, _) if field == Field::SOURCE_PORT => {
                return (entry.source_ports.0.into(), entry.source_ports.1.into());
            }
            (1, _) if field == Field::DESTINATION_PORT => {
                return (entry.destination_ports.0.into(), entry.destination_ports.1.into());
            }
            (at @ 0..2, _) => (entry.masks[usize::from(at)], entry.values[usize::from(at)]),
            (_, None) => (0, 0),
            (at, Some(rest)) => (rest.masks[usize::from(at) - 2], rest.values[usize::from(at) - 2]),
        };
        let cut = |pair: u64| (pair >> (32 * (field.word % 2)) >> field.shift) as u32 & field.max();
        (cut(value), cut(value) | !cut(mask) & field.max())
    }

    /// Whether the rule can never match.
    pub fn is_never(&self, slot: u32) -> bool {
        let entry = self.entry(slot);
        entry.values[0] & !entry.masks[0] != 0
    }

    /// The rule's matcher, rebuilt; not for rules that never match.
    pub fn matcher(&self, slot: u32) -> Matcher {
        let entry = self.entry(slot);
        let mut matcher = Matcher::ALL;
        matcher.source_ports = entry.source_ports;
        matcher.destination_ports = entry.destination_ports;
        let mut put = |at: usize, mask: u64, value: u64| {
            (matcher.mask[2 * at], matcher.mask[2 * at + 1]) = (mask as u32, (mask >> 32) as u32);
            (matcher.value[2 * at], matcher.value[2 * at + 1]) = (value as u32, (value >> 32) as u32);
        };
        for at in 0..2 {
            put(at, entry.masks[at], entry.values[at]);
        }
        if let Some(rest) = self.rest(slot) {
            for at in 0..REST {
                put(2 + at, rest.masks[at], rest.values[at]);
            }
        }
        matcher
    }

    /// The slots in use, in order of rank.
    pub fn slots_by_rank(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.ids.values().copied().collect();
        slots.sort_unstable_by_key(|&slot| self.entry(slot).rank);
        slots
    }

    /// Renumbers the slots to follow `order`, which must contain every rule that is in the structure.
    pub fn reorder(&mut self, order: &[u32]) {
        let mut fresh = Store::default();
        fresh.entries.reserve_exact(order.len());
        for (at, &slot) in order.iter().enumerate() {
            let mut entry = *self.entry(slot);
            if entry.rest != COMPLETE {
                fresh.rests.push(self.rests[entry.rest as usize]);
                entry.rest = fresh.rests.len() as u32 - 1;
            }
            fresh.ids.insert(entry.rank as u32, at as u32);
            fresh.entries.push(entry);
        }
        *self = fresh;
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Octets on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.rests.capacity() * size_of::<Rest>()
            + (self.free.capacity() + self.free_rests.capacity()) * size_of::<u32>()
            + map_bytes(&self.ids)
    }
}
