//! TupleMerge: tuple space search with fewer tables, because a table may compare fewer bits than its rules do.
//!
//! J. Daly, V. Bruschi, L. Linguaglossa, S. Pontarelli, D. Rossi, J. Tollet, E. Torng and A. Yourtchenko, "TupleMerge:
//! fast software packet processing for online packet classification", IEEE/ACM Transactions on Networking 27(4), 2019.
//! A rule may be in every table whose bits are all in the rule's own masks, so rules of many tuples share a
//! table. The price is collisions: rules with the same masked key in the table form a group, and a look-up
//! tries them one by one.
//!
//! - Insertion takes the fitting table with the most bits. If none fits, a new table gets the rule's masks
//!   *relaxed*: address prefixes cut to whole octets, and all other fields left out if the addresses have at
//!   least [`ENOUGH`] bits.
//! - When a group grows beyond [`LIMIT`], the table is *split*. A further field is chosen that divides the
//!   group best, and rules that have these bits move to a table with this field: all such rules of the old
//!   table, or, if there are more than [`MOVED`] (the paper has no bound), only those of the group.
//! - Search is that of a sorted tuple space: tables in order of their best rank, with an early stop.
//! - [`optimise`](Classifier::optimise), and insertion of many rules, move the rules of small tables into other
//!   tables where no group then grows beyond the limit.
//!
//! Differences from the paper. Its tuples are lengths of address prefixes; these are masks over all fields. Its
//! splits follow a fixed order of fields; these use the field in which the group differs, since PDRs of one
//! session often agree in the first bits of both addresses and differ in application, QFI or ports. Its limit
//! is 40 for rules of 20 octets; here a verification reads a cache line, so a lower limit is better. A group of
//! rules that no field tells apart (equal filters, overlapping port ranges) may exceed the limit.
//!
//! Cost with t tables: a look-up takes at most t hashes and one group. Insertion takes t mask comparisons, one
//! table, and sometimes a split. Removal changes one table.

use crate::store::NONE;
use crate::tuple::{Space, Tuple};
use crate::{Classifier, Field, InsertError, Key, Matcher, Rule, Verdict};

/// Rules in a group before its table is split.
const LIMIT: usize = 8;
/// Most rules that one split moves, so that no insertion takes long.
const MOVED: usize = 256;
/// Bits of addresses that make a new table selective enough without other fields.
const ENOUGH: u32 = 16;

/// A tuple space in which rules of several tuples share a table.
#[derive(Clone, Debug)]
pub struct TupleMerge {
    pub(crate) space: Space,
}

impl Default for TupleMerge {
    fn default() -> Self {
        TupleMerge::new()
    }
}

/// All bits that a table may compare for this rule.
fn masks(matcher: &Matcher) -> Tuple {
    Tuple::new(matcher, matcher.mask(Field::SOURCE_PORT) << 16 | matcher.mask(Field::DESTINATION_PORT))
}

/// Cuts a prefix to whole octets; leaves a mask that is not a prefix unchanged.
fn whole_octets(mask: u32) -> u32 {
    let length = mask.leading_ones();
    if length == mask.count_ones() { u32::MAX.checked_shl(32 - length / 8 * 8).unwrap_or(0) } else { mask }
}

/// The tuple of a new table for this rule.
fn relaxed(matcher: &Matcher) -> Tuple {
    let mut fewer = Matcher::ALL;
    fewer.mask[0] = whole_octets(matcher.mask[0]);
    fewer.mask[1] = whole_octets(matcher.mask[1]);
    if fewer.mask[0].count_ones() + fewer.mask[1].count_ones() >= ENOUGH {
        return Tuple::new(&fewer, 0);
    }
    let exact = |field| if matcher.mask(field) == 0xFFFF { 0xFFFF } else { 0 };
    let ports = exact(Field::SOURCE_PORT) << 16 | exact(Field::DESTINATION_PORT);
    (fewer.mask[0], fewer.mask[1]) = (matcher.mask[0], matcher.mask[1]);
    fewer.mask[2..].copy_from_slice(&matcher.mask[2..]);
    Tuple::new(&fewer, ports)
}

impl TupleMerge {
    /// A classifier without rules.
    pub fn new() -> TupleMerge {
        TupleMerge { space: Space::new() }
    }

    /// Puts a rule of the store into a table.
    pub(crate) fn place(&mut self, slot: u32, matcher: &Matcher) {
        let table = match self.space.fitting(&masks(matcher), NONE) {
            Some(table) => table,
            None => self.space.table(&relaxed(matcher)),
        };
        let group = self.space.attach(slot, table);
        // A group that could not be divided is tried again when its excess over the limit has doubled.
        if group > LIMIT && (group - LIMIT).is_power_of_two() {
            self.split(slot, table);
        }
    }

    /// Moves those rules of a group that share a further field to a table that compares this field, together
    /// with such rules of the whole table unless there are too many.
    fn split(&mut self, slot: u32, table: u32) {
        let group = self.space.group(slot, table).to_vec();
        let matchers: Vec<Matcher> = group.iter().map(|&slot| self.space.store.matcher(slot)).collect();
        let Some(tuple) = divide(&matchers, self.space.tuple(table)) else { return };
        let slots = if self.space.len(table) <= MOVED { self.space.rules(table) } else { group };
        for slot in slots {
            if tuple.within(&masks(&self.space.store.matcher(slot))) {
                self.space.detach(slot);
                let table = self.space.table(&tuple);
                self.space.attach(slot, table);
            }
        }
    }

    /// Moves the rules of small tables into other tables where that makes no group too long.
    pub(crate) fn merge(&mut self) {
        for table in self.space.smallest_tables() {
            let slots = self.space.rules(table);
            let mut moved = Vec::new();
            for &slot in &slots {
                let masks = masks(&self.space.store.matcher(slot));
                let other = self.space.fitting(&masks, table);
                let Some(other) = other.filter(|&other| self.space.group(slot, other).len() < LIMIT) else {
                    break;
                };
                moved.push((slot, other));
            }
            // Several of the moved rules may join one group, which then exceeds the limit by at most their
            // number.
            if moved.len() == slots.len() {
                for (slot, other) in moved {
                    self.space.detach(slot);
                    self.space.attach(slot, other);
                }
            }
        }
    }
}

/// The tuple with one more field, or with more bits of one field, that leaves the fewest rules of a group
/// together.
fn divide(group: &[Matcher], present: &Tuple) -> Option<Tuple> {
    let mut best = (group.len(), u32::MAX, None);
    for field in Field::ALL {
        let mut tried = Vec::new();
        for mask in group.iter().map(|matcher| matcher.mask(field)) {
            if mask == 0 || tried.contains(&mask) {
                continue;
            }
            tried.push(mask);
            let having: Vec<u32> = group
                .iter()
                .filter(|matcher| mask & !matcher.mask(field) == 0)
                .map(|matcher| matcher.value(field) & mask)
                .collect();
            let together =
                having.iter().map(|value| having.iter().filter(|other| *other == value).count()).max();
            let left = together.unwrap_or(0).max(group.len() - having.len());
            let score = (left, mask.count_ones());
            if score < (best.0, best.1) {
                best = (score.0, score.1, Some((field, mask)));
            }
        }
    }
    let (field, mask) = best.2?;
    let tuple = present.with(field, mask);
    // A new table that takes away less than a quarter of the group does not pay.
    (tuple != *present && best.0 * 4 <= group.len() * 3).then_some(tuple)
}

impl Classifier for TupleMerge {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = self.space.search::<true>(key);
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        let (slot, matcher) = self.space.store.insert(&rule)?;
        if let Some(matcher) = matcher {
            self.place(slot, &matcher);
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        self.space.remove(id)
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        self.space.set_precedence(id, precedence)
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        let before = self.space.store.len();
        let inserted = rules.iter().try_for_each(|rule| self.insert(*rule));
        if self.space.store.len() > 2 * before {
            self.merge();
        }
        inserted
    }

    fn optimise(&mut self) {
        self.merge();
        self.space.relayout();
    }

    fn memory_bytes(&self) -> usize {
        self.space.memory_bytes()
    }

    fn len(&self) -> usize {
        self.space.store.len()
    }
}
