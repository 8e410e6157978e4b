//! Rules in the form in which look-ups compare them: one cache line each; three where a rule of the iSet uses
//! fields beyond the 5-tuple.

use super::lanes::prefetch;
use crate::key::WORDS;
use crate::matcher::Ranked;
use crate::ranked::Best;
use crate::{Key, Matcher};

/// The words of a key that an entry compares under masks: addresses, and protocol, ToS, QFI, presence. Word 2
/// holds the ports, compared as ranges.
const FIRST: [usize; 3] = [0, 1, 3];
/// The first of the words that a [`Rest`] compares.
const OTHERS: usize = 4;

/// One rule. A removed rule stays as a dead entry with a value that no key has.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Entry {
    mask: [u32; 3],
    expected: [u32; 3],
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
    value: u32,
    rank: u64,
}

impl Entry {
    fn new(rule: &Ranked) -> Entry {
        let Ranked { matcher, rank, value } = rule;
        Entry {
            mask: FIRST.map(|word| matcher.mask[word]),
            expected: FIRST.map(|word| matcher.value[word]),
            source_ports: matcher.source_ports,
            destination_ports: matcher.destination_ports,
            value: *value,
            rank: *rank,
        }
    }

    /// Without branches, as it is hard to predict which field fails.
    #[inline(always)]
    fn matches(&self, words: &[u32; WORDS]) -> bool {
        let (source, destination) = ((words[2] >> 16) as u16, words[2] as u16);
        let within =
            |port: u16, (first, last): (u16, u16)| port.wrapping_sub(first) <= last.wrapping_sub(first);
        let differs = (words[0] & self.mask[0] ^ self.expected[0])
            | (words[1] & self.mask[1] ^ self.expected[1])
            | (words[3] & self.mask[2] ^ self.expected[2]);
        (differs == 0) & within(source, self.source_ports) & within(destination, self.destination_ports)
    }
}

/// The words of a rule that are not in an [`Entry`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Rest {
    mask: [u32; WORDS - OTHERS],
    expected: [u32; WORDS - OTHERS],
}

impl Rest {
    fn new(matcher: &Matcher) -> Rest {
        Rest {
            mask: std::array::from_fn(|at| matcher.mask[OTHERS + at]),
            expected: std::array::from_fn(|at| matcher.value[OTHERS + at]),
        }
    }

    /// One or two vector operations, when the caller is compiled for a processor that has them.
    #[inline(always)]
    fn matches(&self, words: &[u32; WORDS]) -> bool {
        let both = std::iter::zip(&self.mask, &self.expected).zip(&words[OTHERS..]);
        both.fold(0, |all, ((mask, expected), word)| all | (word & mask ^ expected)) == 0
    }
}

/// Whether a rule uses words that are not in an [`Entry`].
fn needs_rest(rule: &Ranked) -> bool {
    rule.matcher.used_words() >> OTHERS != 0
}

/// Rules in a fixed number of places.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    entries: Vec<Entry>,
    /// One for each entry; empty when no rule needs one.
    rests: Vec<Rest>,
}

impl Entries {
    pub(super) fn new<'a>(rules: impl ExactSizeIterator<Item = &'a Ranked> + Clone) -> Entries {
        let rests = if rules.clone().any(needs_rest) {
            rules.clone().map(|rule| Rest::new(&rule.matcher)).collect()
        } else {
            Vec::new()
        };
        Entries { entries: rules.map(Entry::new).collect(), rests }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Makes the entry at `at` match nothing; its place stays.
    pub(super) fn kill(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        (entry.mask[0], entry.expected[0]) = (0, 1);
    }

    pub(super) fn is_dead(&self, at: usize) -> bool {
        let Entry { mask, expected, .. } = &self.entries[at];
        expected[0] & !mask[0] != 0
    }

    /// Replaces a dead entry by this rule; `false` when the rule needs a [`Rest`] and there is none.
    pub(super) fn revive(&mut self, at: usize, rule: &Ranked) -> bool {
        match self.rests.get_mut(at) {
            Some(rest) => *rest = Rest::new(&rule.matcher),
            None if needs_rest(rule) => return false,
            None => {}
        }
        self.entries[at] = Entry::new(rule);
        true
    }

    pub(super) fn set_rank(&mut self, at: usize, rank: u64) {
        self.entries[at].rank = rank;
    }

    pub(super) fn id(&self, at: usize) -> u32 {
        self.entries[at].rank as u32
    }

    /// The rule at `at`.
    pub(super) fn get(&self, at: usize) -> Ranked {
        let entry = &self.entries[at];
        let mut matcher = Matcher::ALL;
        for (at, word) in FIRST.into_iter().enumerate() {
            (matcher.mask[word], matcher.value[word]) = (entry.mask[at], entry.expected[at]);
        }
        matcher.source_ports = entry.source_ports;
        matcher.destination_ports = entry.destination_ports;
        if let Some(rest) = self.rests.get(at) {
            matcher.mask[OTHERS..].copy_from_slice(&rest.mask);
            matcher.value[OTHERS..].copy_from_slice(&rest.expected);
        }
        Ranked { matcher, rank: entry.rank, value: entry.value }
    }

    /// Prefetches an entry.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        prefetch(&self.entries[at]);
        if let Some(Rest { mask, expected }) = self.rests.get(at) {
            prefetch(mask);
            prefetch(expected);
        }
    }

    /// Stores the entry's rule in `best` if the key matches it and it ranks before `best`.
    #[inline(always)]
    pub(super) fn check(&self, at: usize, key: &Key, best: &mut Best) {
        let entry = &self.entries[at];
        // Ranks are unique, so equal ranks mean that `best` is empty.
        let first = entry.matches(key.words()) & (entry.rank <= best.rank);
        if first && self.rests.get(at).is_none_or(|rest| rest.matches(key.words())) {
            *best = Best { rank: entry.rank, verdict: Some(entry.value) };
        }
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.rests.capacity() * size_of::<Rest>()
    }
}
