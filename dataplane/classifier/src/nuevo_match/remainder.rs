//! The rules that are in no iSet, in a TupleMerge, which the papers found to be the best companion.

use crate::Key;
use crate::matcher::Ranked;
use crate::ranked::Best;
use crate::tuple_merge::TupleMerge;

/// The rules that can match and are in no iSet.
#[derive(Clone, Debug, Default)]
pub(super) struct Remainder {
    rules: TupleMerge,
}

impl Remainder {
    /// A remainder with these rules.
    pub(super) fn new(rules: &[Ranked]) -> Remainder {
        let mut remainder = Remainder::default();
        rules.iter().for_each(|rule| remainder.insert(rule));
        remainder.rules.merge();
        remainder
    }

    /// The first rule that the key matches and that ranks before `best`; otherwise `best`.
    #[inline]
    pub(super) fn better(&self, key: &Key, best: Best) -> Best {
        self.rules.space.better::<true>(key, best)
    }

    /// Adds a rule, whose id must be new.
    pub(super) fn insert(&mut self, rule: &Ranked) {
        let Ranked { matcher, rank, value } = rule;
        if let Ok(slot) = self.rules.space.store.insert_compiled(*rank, *value, Some(matcher)) {
            self.rules.place(slot, matcher);
        }
    }

    /// Removes a rule.
    pub(super) fn remove(&mut self, id: u32) {
        self.rules.space.remove(id);
    }

    /// Changes the precedence of a rule.
    pub(super) fn set_precedence(&mut self, id: u32, precedence: u32) {
        self.rules.space.set_precedence(id, precedence);
    }

    /// Number of rules.
    pub(super) fn len(&self) -> usize {
        self.rules.space.store.len()
    }

    /// All rules.
    pub(super) fn rules(&self) -> impl Iterator<Item = Ranked> {
        let store = &self.rules.space.store;
        store.slots_by_rank().into_iter().map(|slot| {
            let entry = store.entry(slot);
            Ranked { matcher: store.matcher(slot), rank: entry.rank, value: entry.value }
        })
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.rules.space.memory_bytes().saturating_sub(size_of::<Remainder>())
    }
}
