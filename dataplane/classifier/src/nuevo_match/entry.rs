//! Rules as a look-up checks them: one cache line each, more only for rules on fields beyond the 5-tuple.

use crate::{Key, Matcher, Verdict};

/// A rule on its way into or out of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub matcher: Matcher,
    /// Precedence and id.
    pub rank: u64,
    pub value: u32,
}

impl Held {
    pub(crate) fn id(&self) -> u32 {
        self.rank as u32
    }
}

/// The first in order of what has matched so far.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    /// The greatest rank when nothing has matched: a rule of that rank may still come.
    pub rank: u64,
    pub verdict: Verdict,
}

impl Best {
    pub(crate) const NONE: Best = Best { rank: u64::MAX, verdict: None };
}

/// [`Entry::more`] of an entry that says everything itself.
const COMPLETE: u32 = u32::MAX;
/// The words of a key that an entry holds masks for: addresses and protocol, ToS, QFI, presence.
const WORDS: [usize; 3] = [0, 1, 3];

/// One rule. A dead one has an expectation that no key meets.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    mask: [u32; 3],
    expected: [u32; 3],
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
    more: u32,
    value: u32,
    rank: u64,
}

/// Entries, and the matchers of those that need one.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    entries: Vec<Entry>,
    /// At [`Entry::more`].
    matchers: Vec<Matcher>,
    /// Places of `matchers` that are not used.
    free: Vec<u32>,
}

impl Entries {
    pub(super) fn with_capacity(count: usize) -> Entries {
        Entries { entries: Vec::with_capacity(count), ..Entries::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&mut self, rule: &Held) -> Entry {
        let Held { matcher, rank, value } = *rule;
        let held: u32 = WORDS.iter().map(|word| 1 << word).sum();
        let more = if matcher.used_words() & !held == 0 {
            COMPLETE
        } else if let Some(place) = self.free.pop() {
            self.matchers[place as usize] = matcher;
            place
        } else {
            self.matchers.push(matcher);
            self.matchers.len() as u32 - 1
        };
        Entry {
            mask: WORDS.map(|word| matcher.mask[word]),
            expected: WORDS.map(|word| matcher.value[word]),
            source_ports: matcher.source_ports,
            destination_ports: matcher.destination_ports,
            more,
            value,
            rank,
        }
    }

    /// Appends a rule.
    pub(super) fn push(&mut self, rule: &Held) {
        let entry = self.entry(rule);
        self.entries.push(entry);
    }

    /// Puts a rule before the one at `at`.
    pub(super) fn insert(&mut self, at: usize, rule: &Held) {
        let entry = self.entry(rule);
        self.entries.insert(at, entry);
    }

    /// Takes the rule at `at` out, and all behind it one forward.
    pub(super) fn remove(&mut self, at: usize) -> Held {
        let rule = self.get(at);
        let entry = self.entries.remove(at);
        self.release(entry.more);
        rule
    }

    /// Lets the entry at `at` match nothing; its place stays.
    pub(super) fn kill(&mut self, at: usize) {
        let more = self.entries[at].more;
        self.release(more);
        let entry = &mut self.entries[at];
        (entry.mask[0], entry.expected[0], entry.more) = (0, 1, COMPLETE);
    }

    /// Replaces a dead entry.
    pub(super) fn revive(&mut self, at: usize, rule: &Held) {
        self.entries[at] = self.entry(rule);
    }

    fn release(&mut self, more: u32) {
        if more != COMPLETE {
            self.free.push(more);
        }
    }

    pub(super) fn is_dead(&self, at: usize) -> bool {
        let Entry { mask, expected, .. } = &self.entries[at];
        mask[0] & expected[0] != expected[0]
    }

    pub(super) fn set_rank(&mut self, at: usize, rank: u64) {
        self.entries[at].rank = rank;
    }

    /// First position of a rank in entries that are sorted by it.
    pub(super) fn position(&self, rank: u64) -> usize {
        self.entries.partition_point(|entry| entry.rank < rank)
    }

    /// The rule at `at`.
    pub(super) fn get(&self, at: usize) -> Held {
        let entry = &self.entries[at];
        let matcher = match self.matchers.get(entry.more as usize) {
            Some(matcher) => *matcher,
            None => {
                let mut matcher = Matcher::ALL;
                for (at, word) in WORDS.into_iter().enumerate() {
                    (matcher.mask[word], matcher.value[word]) = (entry.mask[at], entry.expected[at]);
                }
                matcher.source_ports = entry.source_ports;
                matcher.destination_ports = entry.destination_ports;
                matcher
            }
        };
        Held { matcher, rank: entry.rank, value: entry.value }
    }

    /// The place of an entry in memory, to ask for it early.
    #[inline(always)]
    pub(super) fn line(&self, at: usize) -> &Entry {
        &self.entries[at]
    }

    /// Whether the entry's rank is above that of `best`: neither it nor one behind it in order can come first.
    #[inline(always)]
    pub(super) fn is_behind(&self, at: usize, best: &Best) -> bool {
        self.entries[at].rank > best.rank
    }

    /// Takes the entry as `best` if the key matches it and it comes before.
    #[inline(always)]
    pub(super) fn check(&self, at: usize, key: &Key, best: &mut Best) -> bool {
        let entry = &self.entries[at];
        let words = key.words();
        let (source, destination) = ((words[2] >> 16) as u16, words[2] as u16);
        // Together, not one after the other: where a rule fails is hard to predict.
        let differs = (words[0] & entry.mask[0] ^ entry.expected[0])
            | (words[1] & entry.mask[1] ^ entry.expected[1])
            | (words[3] & entry.mask[2] ^ entry.expected[2]);
        let outside = (source < entry.source_ports.0)
            | (source > entry.source_ports.1)
            | (destination < entry.destination_ports.0)
            | (destination > entry.destination_ports.1);
        let first = (differs == 0) & !outside & (entry.rank <= best.rank);
        let matches = first && (entry.more == COMPLETE || self.matchers[entry.more as usize].matches(key));
        if matches {
            *best = Best { rank: entry.rank, verdict: Some(entry.value) };
        }
        matches
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.matchers.capacity() * size_of::<Matcher>()
            + self.free.capacity() * size_of::<u32>()
    }
}
