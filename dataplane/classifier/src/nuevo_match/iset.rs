//! Independent sets (iSets): rules whose ranges in a [`View`] do not overlap, so that a packet can match at most one.

use super::entry::Entries;
use super::lanes::Lanes;
use super::model::Model;
use super::view::View;
use crate::Key;
use crate::matcher::Ranked;
use crate::ranked::Best;

/// Most iSets. Whatever its size, each costs a look-up about as much as two or three probes of hash tables.
const MOST: usize = 4;

/// One independent set.
#[derive(Clone, Debug)]
pub(super) struct Set {
    view: View,
    model: Model,
    /// Upper ends of the intervals.
    highs: Vec<u64>,
    /// The rules, in the order of their intervals.
    entries: Entries,
    dead: usize,
}

/// Divides rules into iSets of at least `least` rules, each as large as possible; also returns the rules left
/// over.
pub(super) fn divide(mut rules: Vec<Ranked>, least: usize) -> (Vec<Set>, Vec<Ranked>) {
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
/// Interval scheduling: of the ranges that start behind the chosen ones, taking the one that ends first is
/// always optimal.
fn independent(rules: &[Ranked], view: View) -> Vec<u32> {
    let with_place = |(at, rule): (usize, &Ranked)| {
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
    fn new(view: View, rules: &[Ranked], chosen: &[u32]) -> Set {
        let chosen = chosen.iter().map(|at| &rules[*at as usize]);
        let intervals: Vec<_> = chosen.clone().map(|rule| view.range(&rule.matcher)).collect();
        let entries = Entries::new(chosen);
        let model = Model::train(&intervals);
        let highs = intervals.iter().map(|interval| interval.1).collect();
        Set { view, model, highs, entries, dead: 0 }
    }

    /// Number of rules, without dead entries.
    pub(super) fn live(&self) -> usize {
        self.entries.len() - self.dead
    }

    /// Ids and positions of the rules.
    pub(super) fn positions(&self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.entries.len()).map(|at| (self.entries.id(at), at as u32))
    }

    /// The rules.
    pub(super) fn rules(&self) -> impl Iterator<Item = Ranked> {
        (0..self.entries.len()).filter(|at| !self.entries.is_dead(*at)).map(|at| self.entries.get(at))
    }

    /// Puts a rule into the place of a removed rule whose interval contains its own; `None` when there is no
    /// such place.
    pub(super) fn revive(&mut self, rule: &Ranked) -> Option<u32> {
        if self.dead == 0 {
            return None;
        }
        let (low, high) = self.view.range(&rule.matcher);
        let position = self.model.find_one(low);
        let at = position as usize;
        let free = self.entries.is_dead(at) && self.model.low(position) <= low && high <= self.highs[at];
        if !free || !self.entries.revive(at, rule) {
            return None;
        }
        self.dead -= 1;
        Some(position)
    }

    /// Removes the rule at a position.
    pub(super) fn kill(&mut self, at: u32) {
        self.entries.kill(at as usize);
        self.dead += 1;
    }

    /// Changes the rank of the rule at a position.
    pub(super) fn set_rank(&mut self, at: u32, rank: u64) {
        self.entries.set_rank(at as usize, rank);
    }

    /// Replaces `best[i]` by the rule of this set that `keys[i]` matches, if it is better; for at most `N`
    /// keys.
    ///
    /// Every step is done for all keys before the next step, so that the cache misses of a step overlap.
    #[inline(always)]
    pub(super) fn look_up<L: Lanes, const N: usize>(&self, lanes: L, keys: &[Key], best: &mut [Best; N]) {
        let count = keys.len().min(N);
        let (mut values, mut places) = ([0; N], [0; N]);
        for (key, value) in keys.iter().zip(&mut values) {
            *value = self.view.of(key);
        }
        self.model.find(lanes, &values[..count], &mut places[..count]);
        places[..count].iter().for_each(|place| self.entries.prefetch(*place as usize));
        for ((key, best), place) in keys.iter().zip(best).zip(&places) {
            self.entries.check(*place as usize, key, best);
        }
    }

    /// Finds the best match of one packet in all sets; every step is done in all sets before the next step.
    #[inline(always)]
    pub(super) fn look_up_one<L: Lanes>(sets: &[Set], lanes: L, key: &Key) -> Best {
        let (mut values, mut places) = ([0; MOST], [0; MOST]);
        let mut stages = 0;
        for (set, value) in sets.iter().zip(&mut values) {
            *value = set.view.of(key);
            stages = set.model.stages().max(stages);
        }
        for stage in 0..stages {
            for ((set, value), place) in sets.iter().zip(&values).zip(&mut places) {
                *place = set.model.predict(lanes, stage, *value, *place);
            }
            for ((set, value), place) in sets.iter().zip(&values).zip(&mut places) {
                *place = set.model.correct(lanes, stage, *value, *place);
            }
        }
        sets.iter().zip(&places).for_each(|(set, place)| set.entries.prefetch(*place as usize));
        let mut best = Best::NONE;
        for (set, place) in sets.iter().zip(&places) {
            set.entries.check(*place as usize, key, &mut best);
        }
        best
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.model.heap_bytes() + self.highs.capacity() * size_of::<u64>() + self.entries.heap_bytes()
    }
}
