//! What the rules go to that no iSet takes.

use super::entry::{Best, Entries, Held};
use crate::Key;

/// A classifier that can start from what has been found already. Ranks are those of rules that can match.
pub trait Remainder: Clone + Default + Send + Sync {
    /// Betters `best[i]` by the first rule that `keys[i]` matches, if it comes before.
    fn improve(&self, keys: &[Key], best: &mut [Best]);

    /// Adds a rule; its id is not present.
    fn insert(&mut self, rule: &Held);

    /// Adds many.
    fn insert_all(&mut self, rules: &[Held]) {
        rules.iter().for_each(|rule| self.insert(rule));
    }

    /// Removes the rule of this rank, which is present.
    fn remove(&mut self, rank: u64);

    /// Gives the rule of a rank, which is present, another one with the same id.
    fn set_rank(&mut self, old: u64, new: u64);

    /// All rules.
    fn rules(&self) -> Vec<Held>;

    /// Octets on the heap.
    fn heap_bytes(&self) -> usize;
}

/// Rules in order, tried one by one until one matches or what is known comes before.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    entries: Entries,
}

impl Remainder for Scan {
    #[inline]
    fn improve(&self, keys: &[Key], best: &mut [Best]) {
        for (key, best) in keys.iter().zip(best) {
            for at in 0..self.entries.len() {
                if self.entries.is_behind(at, best) || self.entries.check(at, key, best) {
                    break;
                }
            }
        }
    }

    fn insert(&mut self, rule: &Held) {
        self.entries.insert(self.entries.position(rule.rank), rule);
    }

    fn insert_all(&mut self, rules: &[Held]) {
        let mut all = self.rules();
        all.extend(rules);
        all.sort_unstable_by_key(|rule| rule.rank);
        self.entries = Entries::with_capacity(all.len());
        all.iter().for_each(|rule| self.entries.push(rule));
    }

    fn remove(&mut self, rank: u64) {
        self.entries.remove(self.entries.position(rank));
    }

    fn set_rank(&mut self, old: u64, new: u64) {
        let rule = self.entries.remove(self.entries.position(old));
        self.insert(&Held { rank: new, ..rule });
    }

    fn rules(&self) -> Vec<Held> {
        (0..self.entries.len()).map(|at| self.entries.get(at)).collect()
    }

    fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }
}
