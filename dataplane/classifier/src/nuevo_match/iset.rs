//! Independent sets (iSets): rules whose ranges in a [`View`] do not overlap, so that a packet can match at most one.

use super::entry::{Best, Entries, Held};
use super::lanes::{Lanes, prefetch};
use super::model::Model;
use super::view::View;
use crate::Key;

/// Most iSets. Every one costs a look-up about as much as a probe of a hash table, whatever it holds.
const MOST: usize = 6;

/// One independent set.
#[derive(Clone, Debug)]
pub(super) struct Set {
    view: View,
    model: Model,
    /// Where the intervals end.
    highs: Vec<u64>,
    /// The rules, in the order of their intervals.
    entries: Entries,
    dead: usize,
}

/// Divides rules into iSets of at least `least` rules each, one after the other as large as can be; also returns the
/// rules left over.
pub(super) fn divide(mut rules: Vec<Held>, least: usize) -> (Vec<Set>, Vec<Held>) {
    let mut sets = Vec::new();
    while sets.len() < MOST && rules.len() >= least {
        let view = View::choose(&rules);
        let chosen = independent(&rules, view);
        if chosen.len() < least.max(1) {
            break;
        }
        sets.push(Set::new(view, &rules, &chosen));
        let mut taken = vec![false; rules.len()];
        chosen.iter().for_each(|at| taken[*at as usize] = true);
        let mut taken = taken.into_iter();
        rules.retain(|_| !taken.next().unwrap_or(false));
    }
    (sets, rules)
}

/// The largest set of rules whose ranges in `view` do not overlap, in order.
///
/// Interval scheduling: of the ranges that start behind those chosen, the one that ends first is always right.
fn independent(rules: &[Held], view: View) -> Vec<u32> {
    let with_place = |(at, rule): (usize, &Held)| {
        let (low, high) = view.range(&rule.matcher);
        (high, low, at as u32)
    };
    let mut ends: Vec<(u64, u64, u32)> = rules.iter().enumerate().map(with_place).collect();
    ends.sort_unstable();
    let mut free = 0;
    let mut chosen = Vec::new();
    for (high, low, at) in ends {
        if low >= free {
            chosen.push(at);
            free = high + 1;
        }
    }
    chosen
}

impl Set {
    fn new(view: View, rules: &[Held], chosen: &[u32]) -> Set {
        let mut entries = Entries::with_capacity(chosen.len());
        let mut intervals = Vec::with_capacity(chosen.len());
        for at in chosen {
            let rule = &rules[*at as usize];
            intervals.push(view.range(&rule.matcher));
            entries.push(rule);
        }
        let model = Model::train(&intervals);
        let highs = intervals.iter().map(|interval| interval.1).collect();
        Set { view, model, highs, entries, dead: 0 }
    }

    /// Rules, the dead left out.
    pub(super) fn live(&self) -> usize {
        self.entries.len() - self.dead
    }

    /// Ids and positions.
    pub(super) fn positions(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.entries.len()).map(|at| (self.entries.get(at).id(), at as u32))
    }

    /// The rules.
    pub(super) fn rules(&self) -> impl Iterator<Item = Held> {
        (0..self.entries.len()).filter(|at| !self.entries.is_dead(*at)).map(|at| self.entries.get(at))
    }

    /// Puts a rule where a removed one was whose interval holds its own; `None` when there is no such place.
    pub(super) fn revive(&mut self, rule: &Held) -> Option<u32> {
        if self.dead == 0 {
            return None;
        }
        let (low, high) = self.view.range(&rule.matcher);
        let position = self.model.find(low);
        let at = position as usize;
        let free = self.entries.is_dead(at) && self.model.low(position) <= low && high <= self.highs[at];
        free.then(|| {
            self.entries.revive(at, rule);
            self.dead -= 1;
            position
        })
    }

    /// Removes the rule at a position.
    pub(super) fn kill(&mut self, at: u32) {
        self.entries.kill(at as usize);
        self.dead += 1;
    }

    /// Gives it another rank.
    pub(super) fn set_rank(&mut self, at: u32, rank: u64) {
        self.entries.set_rank(at as usize, rank);
    }

    /// Betters `best[i]` by the rule of the set that `keys[i]` matches, if it does; for at most `N` keys.
    ///
    /// One step for all keys before the next step for any, so that the cache misses of a step overlap.
    #[inline(always)]
    pub(super) fn look_up<L: Lanes, const N: usize>(&self, lanes: L, keys: &[Key], best: &mut [Best]) {
        let mut values = [0; N];
        let mut leaves = [0; N];
        let mut places = [0; N];
        for ((key, value), leaf) in keys.iter().zip(&mut values).zip(&mut leaves) {
            *value = self.view.of(key);
            *leaf = self.model.leaf(lanes, *value);
        }
        for ((value, leaf), place) in values[..keys.len().min(N)].iter().zip(&leaves).zip(&mut places) {
            *place = self.model.start(lanes, *value, *leaf);
        }
        for ((value, leaf), place) in values[..keys.len().min(N)].iter().zip(&leaves).zip(&mut places) {
            *place = self.model.position(lanes, *value, *leaf, *place);
            prefetch(self.entries.line(*place as usize));
        }
        for ((key, best), place) in keys.iter().zip(best).zip(&places) {
            self.entries.check(*place as usize, key, best);
        }
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.model.heap_bytes() + self.highs.capacity() * size_of::<u64>() + self.entries.heap_bytes()
    }
}
