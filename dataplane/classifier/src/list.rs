//! The linear list: rules in order of precedence, tried one by one (TS 29.244 §5.2.1).
//!
//! The cheapest structure for one or two rules, and the reference and baseline for every other backend. It is
//! made as fast as a list can be: the fields of the 5-tuple, on which nearly every rule fails, lie side by side
//! in 48 octets; the other fields are compared only when these match.

use crate::ids::{IdMap, map_bytes};
use crate::matcher::FiveTuple;
use crate::{Classifier, InsertError, Key, Matcher, Rule, Verdict, rank};

/// Rules sorted by precedence, then id.
#[derive(Clone, Debug, Default)]
pub struct List {
    entries: Vec<Entry>,
    /// Matchers of rules with conditions beyond the 5-tuple; [`Entry::more`] is an index into it.
    matchers: Vec<Matcher>,
    free: Vec<u32>,
    precedences: IdMap<u32>,
}

/// The value of [`Entry::more`] when the rule has no such conditions.
const COMPLETE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tuple: FiveTuple,
    more: u32,
    value: u32,
    rank: u64,
}

impl Entry {
    #[inline]
    fn matches(&self, key: &Key, matchers: &[Matcher]) -> bool {
        self.tuple.matches(key) && (self.more == COMPLETE || matchers[self.more as usize].matches(key))
    }
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        List::default()
    }

    fn position(&self, rank: u64) -> usize {
        self.entries.partition_point(|entry| entry.rank < rank)
    }
}

impl Classifier for List {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            let first = self.entries.iter().find(|entry| entry.matches(key, &self.matchers));
            *verdict = first.map(|entry| entry.value);
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.precedences.contains_key(&rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        self.precedences.insert(rule.id, rule.precedence);
        let mut matcher = Matcher::ALL;
        let used = matcher.demand(&rule.filter).unwrap_or_else(|| {
            matcher = Matcher::NEVER;
            0
        });
        let more = if FiveTuple::is_all_of(used) {
            COMPLETE
        } else if let Some(slot) = self.free.pop() {
            self.matchers[slot as usize] = matcher;
            slot
        } else {
            self.matchers.push(matcher);
            self.matchers.len() as u32 - 1
        };
        let tuple = FiveTuple::new(&matcher);
        let entry = Entry { tuple, more, value: rule.value, rank: rule.rank() };
        self.entries.insert(self.position(entry.rank), entry);
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(precedence) = self.precedences.remove(&id) else { return false };
        let entry = self.entries.remove(self.position(rank(precedence, id)));
        if entry.more != COMPLETE {
            self.free.push(entry.more);
        }
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(present) = self.precedences.get_mut(&id) else { return false };
        let old = std::mem::replace(present, precedence);
        let from = self.position(rank(old, id));
        let mut entry = self.entries.remove(from);
        entry.rank = rank(precedence, id);
        self.entries.insert(self.position(entry.rank), entry);
        true
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<List>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.matchers.capacity() * size_of::<Matcher>()
            + self.free.capacity() * size_of::<u32>()
            + map_bytes(&self.precedences)
    }
}
