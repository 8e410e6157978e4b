//! Conditions that do not fit a lane: the other words of rules, in one arena for all rules of a classifier.
//!
//! ```text
//! record  value of the rule | which words | mask, value of word 3 | masks of the words | values of the words
//! ```
//! Only words that a rule uses are stored, so a rule with three more fields takes 40 octets. Freed records are
//! kept by size and used again.

use crate::key::WORDS;
use crate::{Key, Matcher};

use super::isa::Vector;

/// Records of rules.
#[derive(Clone, Debug)]
pub struct Rests {
    words: Vec<u32>,
    /// For every number of words, the first free record; a free record holds the place of the next one.
    free: [u32; SIZES],
    /// Records in use.
    used: u32,
}

/// Possible numbers of words in a record: from none to all except word 3.
const SIZES: usize = WORDS;
/// End of a list of free records.
const NONE: u32 = u32::MAX;
/// Words in front of the masks.
const HEAD: usize = 4;
impl Default for Rests {
    fn default() -> Rests {
        Rests { words: Vec::new(), free: [NONE; SIZES], used: 0 }
    }
}

impl Rests {
    /// Stores the value of a rule, word 3 of its matcher, and the words `which`, none of them below 4. Returns
    /// the place of the record.
    pub(crate) fn add(&mut self, value: u32, matcher: &Matcher, which: u32) -> u32 {
        debug_assert_eq!(which & 0xF, 0, "columns say these words");
        let count = which.count_ones() as usize;
        let at = self.place(count);
        let record = &mut self.words[at..at + HEAD + 2 * count];
        (record[0], record[1]) = (value, which);
        (record[2], record[3]) = (matcher.mask[3], matcher.value[3]);
        let (masks, values) = record[HEAD..].split_at_mut(count);
        for (place, word) in bits(which).enumerate() {
            (masks[place], values[place]) = (matcher.mask[word], matcher.value[word]);
        }
        at as u32
    }

    fn place(&mut self, count: usize) -> usize {
        self.used += 1;
        let free = self.free[count];
        if free == NONE {
            let at = self.words.len();
            // Grows by at most a quarter, as a doubled arena would be larger than its rules.
            if self.words.capacity() - at < HEAD + 2 * count {
                self.words.reserve_exact((at / 4).max(HEAD + 2 * count));
            }
            self.words.resize(at + HEAD + 2 * count, 0);
            return at;
        }
        self.free[count] = self.words[free as usize];
        free as usize
    }

    /// Writes word 3 and the words of a record into a matcher.
    pub(crate) fn read(&self, at: u32, matcher: &mut Matcher) {
        let record = &self.words[at as usize..];
        let count = record[1].count_ones() as usize;
        (matcher.mask[3], matcher.value[3]) = (record[2], record[3]);
        for (place, word) in bits(record[1]).enumerate() {
            matcher.mask[word] = record[HEAD + place];
            matcher.value[word] = record[HEAD + count + place];
        }
    }

    /// Frees a record.
    pub(crate) fn remove(&mut self, at: u32) {
        let count = self.words[at as usize + 1].count_ones() as usize;
        self.words[at as usize] = self.free[count];
        self.free[count] = at;
        self.used -= 1;
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.words.shrink_to_fit();
    }

    /// Whether no rule has a record.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Copies a record of another arena; returns its new place.
    pub(super) fn copy(&mut self, from: &Rests, record: u32) -> u32 {
        let record = &from.words[record as usize..];
        let count = record[1].count_ones() as usize;
        let at = self.place(count);
        let length = HEAD + 2 * count;
        self.words[at..at + length].copy_from_slice(&record[..length]);
        at as u32
    }

    /// The value of the rule.
    #[inline(always)]
    pub(super) fn value(&self, at: u32) -> u32 {
        self.words[at as usize]
    }

    /// Whether the words match.
    #[inline(always)]
    pub(crate) fn matches<V: Vector>(&self, vector: V, at: u32, key: &Key) -> bool {
        let Some(&[_, which, mask, value, ref tail @ ..]) = self.words.get(at as usize..) else {
            return false;
        };
        let Some(pairs) = tail.get(..2 * which.count_ones() as usize) else { return false };
        let Some(words) = key.words.last_chunk() else { return false };
        // Both are compared, as one branch is cheaper than two.
        (key.words[3] & mask == value) & vector.rest_matches(words, (which >> 4) as u16, pairs)
    }

    /// Octets on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>()
    }
}

/// The positions of the bits, ascending.
fn bits(mut which: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let word = which.trailing_zeros() as usize;
        which &= which.wrapping_sub(1);
        (word < 32).then_some(word)
    })
}
