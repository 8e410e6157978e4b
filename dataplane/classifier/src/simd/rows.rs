//! The conditions of rules beyond the 5-tuple, for [`super::Simd`].
//!
//! Rules with such conditions mostly use the same few words: QFI and ToS, source interface, TEID, network
//! instance, application. Up to [`SLOTS`] of these words have a slot in the rows. Every rule whose conditions
//! do not fit its lane has a row:
//!
//! ```text
//! row  value of the rule | mask for each slot | value for each slot
//! ```
//! The words of a key are picked once, in the order of the slots, and a row is then compared in one operation.
//! A rule that also uses other words has a record of them in [`Rests`], and its row has the place of the record
//! instead of the value. The words for the slots are chosen among [`COMMON`] as rules are added, and anew, by
//! the words that rules use, when all rules are added again.

use crate::key::WORDS;
use crate::matcher::Ranked;
use crate::{Key, Verdict};

use super::block::Lane;
use super::isa::Vector;
use super::rest::Rests;

/// Slots in a row. With five, a rule takes 76 octets.
pub const SLOTS: usize = 5;
/// Words that get a slot as soon as a rule uses them.
const COMMON: [usize; SLOTS] = [3, 5, 6, 7, 8];
/// Any other word gets a slot if at least one in this many rules uses it.
const WORTH: usize = 10;
/// The last word that can be picked; the last word of a key never has a slot.
const LAST: usize = WORDS - 2;
/// End of the list of free rows.
const NONE: u32 = u32::MAX;

/// A row; see the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Row {
    /// Value of the rule, or the place of its record. In a free row, the next free row.
    value: u32,
    pub(super) masks: [u32; SLOTS],
    pub(super) values: [u32; SLOTS],
}

/// Rows of rules.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The word of each slot, counted from word 3. Slots from `width` on are unused: their masks are zero.
    pick: [u32; 8],
    width: usize,
    rows: Vec<Row>,
    /// The first free row.
    free: u32,
    used: u32,
    rests: Rests,
}

impl Default for Rows {
    fn default() -> Rows {
        Rows { pick: [0; 8], width: 0, rows: Vec::new(), free: NONE, used: 0, rests: Rests::default() }
    }
}

impl Rows {
    /// No rows, but slots for the words that most of these rules use.
    pub fn for_rules(rules: &[Ranked]) -> Rows {
        let beyond = |rule: &Ranked| {
            Lane::used(&rule.matcher).map_or(0, |used| Lane::words_beyond(&rule.matcher, used))
        };
        let mut uses = [0; WORDS];
        for rule in rules {
            let used = beyond(rule);
            (0..WORDS).for_each(|word| uses[word] += (used >> word & 1) as usize);
        }
        let mut words: Vec<usize> = (0..=LAST).filter(|word| uses[*word] > 0).collect();
        words.retain(|word| uses[*word] * WORTH >= rules.len());
        words.sort_by_key(|word| usize::MAX - uses[*word]);
        words.truncate(SLOTS);
        let needed = rules.iter().filter(|rule| beyond(rule) != 0).count();
        let mut rows = Rows { width: words.len(), rows: Vec::with_capacity(needed), ..Rows::default() };
        rows.pick.iter_mut().zip(words).for_each(|(place, word)| *place = word as u32 - 3);
        rows
    }

    /// Frees unused memory.
    pub fn shrink(&mut self) {
        self.rests.shrink();
    }

    /// One bit for each word with a slot.
    fn slots(&self) -> u32 {
        self.pick[..self.width].iter().map(|word| 8 << word).sum()
    }

    /// Gives slots to those of these words that are in [`COMMON`], while there is room.
    fn widen(&mut self, used: u32) {
        for word in COMMON {
            if used & 1 << word == 0 || self.slots() & 1 << word != 0 || self.width == SLOTS {
                continue;
            }
            self.pick[self.width] = word as u32 - 3;
            self.width += 1;
        }
    }

    /// The lane of a rule, with a row if it needs one.
    pub fn add(&mut self, rule: &Ranked) -> Lane {
        match Lane::used(&rule.matcher) {
            Some(used) => self.add_with_row(rule, Lane::words_beyond(&rule.matcher, used)),
            None => Lane::never(rule.rank, rule.value),
        }
    }

    /// As [`add`](Self::add), for a rule that can match; `used` are the words that do not fit its lane.
    pub fn add_with_row(&mut self, rule: &Ranked, used: u32) -> Lane {
        let Ranked { rank, value, ref matcher } = *rule;
        let lane = Lane::fitting(matcher, rank, value);
        if used == 0 {
            return lane;
        }
        if used & !self.slots() != 0 {
            self.widen(used);
        }
        let left = used & !self.slots();
        let value = match left {
            0 => value,
            _ => self.rests.add(value, matcher, left & !0xF),
        };
        let mut row = Row { value, ..Row::default() };
        for (slot, word) in self.pick[..self.width].iter().enumerate() {
            let word = *word as usize + 3;
            (row.masks[slot], row.values[slot]) = (matcher.mask[word], matcher.value[word]);
        }
        lane.with_row(self.place(row), left != 0)
    }

    fn place(&mut self, row: Row) -> u32 {
        self.used += 1;
        if let Some(place) = self.rows.get_mut(self.free as usize) {
            let at = std::mem::replace(&mut self.free, place.value);
            *place = row;
            return at;
        }
        if self.rows.len() == self.rows.capacity() {
            // Grows by a quarter, as doubled rows would be larger than their rules.
            self.rows.reserve_exact((self.rows.len() / 4).max(1));
        }
        self.rows.push(row);
        self.rows.len() as u32 - 1
    }

    /// Frees the row and record of a lane.
    pub fn give_back(&mut self, lane: &Lane) {
        let Some((at, has_record)) = lane.row() else { return };
        let row = &mut self.rows[at as usize];
        if has_record {
            self.rests.remove(row.value);
        }
        row.value = std::mem::replace(&mut self.free, at);
        self.used -= 1;
    }

    /// The rule of a lane.
    pub fn ranked(&self, lane: &Lane) -> Ranked {
        let mut rule = lane.ranked_in_lane();
        let Some((at, has_record)) = lane.row() else { return rule };
        let row = &self.rows[at as usize];
        rule.value = row.value;
        if has_record {
            rule.value = self.rests.value(row.value);
            self.rests.read(row.value, &mut rule.matcher);
        }
        for (slot, word) in self.pick[..self.width].iter().enumerate() {
            let word = *word as usize + 3;
            rule.matcher.mask[word] |= row.masks[slot];
            rule.matcher.value[word] |= row.values[slot];
        }
        rule
    }

    /// Whether any rule has a record.
    pub fn has_records(&self) -> bool {
        !self.rests.is_empty()
    }

    /// Whether no rule has a row.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Picks the words of a key that are compared with rows.
    #[inline(always)]
    pub fn pick<V: Vector>(&self, vector: V, key: &Key) -> V::Picked {
        match key.words[3..].first_chunk() {
            Some(words) => vector.pick(words, &self.pick),
            None => vector.pick(&[0; 16], &self.pick),
        }
    }

    /// The verdict of a rule whose lane matches, if its row matches, and, with `RECORDS`, its record.
    #[inline(always)]
    pub fn verdict<V: Vector, const RECORDS: bool>(
        &self,
        vector: V,
        (row, has_record): (u32, bool),
        picked: &V::Picked,
        key: &Key,
    ) -> Verdict {
        let row = self.rows.get(row as usize)?;
        if !vector.row_matches(row, picked) {
            return None;
        }
        if !RECORDS || !has_record {
            return Some(row.value);
        }
        self.rests.matches(vector, row.value, key).then(|| self.rests.value(row.value))
    }

    /// Octets on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>() + self.rests.heap_bytes()
    }
}
