//! A flow table: its entries by mask, so that a look-up costs one probe of a hash table for each mask that is in use.
//!
//! Masks are tried in the order of the highest priority that they have, until no later one could do better. Before a mask is
//! probed with all of its words, those of its early stages are looked up: a packet whose tunnel no entry names is not asked
//! for its ports. So what a look-up has consulted, which caches go by, stays small.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use std::hash::BuildHasher as _;

use super::field::{Mask, Pattern, STAGE_COUNT, WORDS, Words};
use super::flow::Flow;

type Map<K, V> = HashMap<K, V, RandomState>;

/// Entries with the same mask and values; nearly always one.
#[derive(Debug)]
enum Entries {
    One(Arc<Flow>),
    /// By priority, the highest first.
    Many(Vec<Arc<Flow>>),
}

impl Entries {
    fn as_slice(&self) -> &[Arc<Flow>] {
        match self {
            Entries::One(flow) => std::slice::from_ref(flow),
            Entries::Many(flows) => flows,
        }
    }
}

/// All entries with one mask.
#[derive(Debug)]
struct Tuple {
    mask: Mask,
    /// How many of the mask's words each stage has, with those before it.
    stages: [u8; STAGE_COUNT],
    entries: Map<Box<[u64]>, Entries>,
    /// For each stage in which the mask does not end: how many entries begin with words of this hash.
    beginnings: [Map<u64, u32>; STAGE_COUNT],
    /// How many entries have each priority.
    priorities: BTreeMap<u16, usize>,
}

/// A flow table.
#[derive(Debug, Default)]
pub struct Table {
    /// By their highest priority, the highest first.
    tuples: Vec<Tuple>,
    hash: RandomState,
    /// All of them by their numbers, for readers that go through them in parts while they change.
    flows: BTreeMap<u64, Arc<Flow>>,
    lookups: AtomicU64,
    matches: AtomicU64,
}

impl Tuple {
    fn new(mask: Mask) -> Tuple {
        let stages = mask.stages();
        let (entries, beginnings) = (Map::default(), std::array::from_fn(|_| Map::default()));
        Tuple { mask, stages, entries, beginnings, priorities: BTreeMap::new() }
    }

    fn highest(&self) -> u16 {
        self.priorities.last_key_value().map_or(0, |(priority, _)| *priority)
    }

    /// The stages that have a set of beginnings, with the number of words: those that do not have all words, nor those of the
    /// stage before.
    fn partial(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (stages, all) = (self.stages, self.mask.len());
        (0..STAGE_COUNT).filter_map(move |stage| {
            let count = usize::from(stages[stage]);
            let before = if stage == 0 { 0 } else { usize::from(stages[stage - 1]) };
            (count > before && count < all).then_some((stage, count))
        })
    }

    fn insert(&mut self, flow: Arc<Flow>, hash: &RandomState) -> Option<Arc<Flow>> {
        let values = &flow.pattern.values;
        let old = match self.entries.get_mut(values) {
            None => {
                self.entries.insert(values.clone(), Entries::One(Arc::clone(&flow)));
                None
            }
            Some(Entries::One(own)) if own.priority == flow.priority => {
                Some(std::mem::replace(own, Arc::clone(&flow)))
            }
            Some(place) => {
                let mut flows = place.as_slice().to_vec();
                let at = flows.iter().position(|own| own.priority <= flow.priority).unwrap_or(flows.len());
                let same = flows.get(at).is_some_and(|own| own.priority == flow.priority);
                let old = if same {
                    Some(std::mem::replace(&mut flows[at], Arc::clone(&flow)))
                } else {
                    flows.insert(at, Arc::clone(&flow));
                    None
                };
                *place = Entries::Many(flows);
                old
            }
        };
        if old.is_none() {
            *self.priorities.entry(flow.priority).or_default() += 1;
            for (stage, count) in self.partial() {
                *self.beginnings[stage].entry(hash.hash_one(&values[..count])).or_default() += 1;
            }
        }
        old
    }

    fn remove(&mut self, flow: &Flow, hash: &RandomState) -> Option<Arc<Flow>> {
        let values = &flow.pattern.values;
        let place = self.entries.get_mut(values)?;
        let at = place.as_slice().iter().position(|own| own.priority == flow.priority)?;
        let old = match place {
            Entries::Many(flows) if flows.len() > 1 => flows.remove(at),
            _ => {
                let old = Arc::clone(&place.as_slice()[at]);
                self.entries.remove(values);
                old
            }
        };
        if let Some(count) = self.priorities.get_mut(&flow.priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&flow.priority);
            }
        }
        for (stage, count) in self.partial() {
            let key = hash.hash_one(&values[..count]);
            if let Some(number) = self.beginnings[stage].get_mut(&key) {
                *number -= 1;
                if *number == 0 {
                    self.beginnings[stage].remove(&key);
                }
            }
        }
        Some(old)
    }

    /// The best entry for a packet, and how many of the mask's words were needed to know it.
    #[inline]
    fn look_up(&self, words: &Words, hash: &RandomState) -> (Option<&Arc<Flow>>, usize) {
        let mut values = [0; WORDS];
        let values = self.mask.apply(words, &mut values);
        for (stage, count) in self.partial() {
            if !self.beginnings[stage].contains_key(&hash.hash_one(&values[..count])) {
                return (None, count);
            }
        }
        (self.entries.get(values).and_then(|entries| entries.as_slice().first()), values.len())
    }
}

impl Table {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Look-ups, and those that found an entry.
    pub fn counts(&self) -> (u64, u64) {
        (self.lookups.load(Relaxed), self.matches.load(Relaxed))
    }

    /// Counts look-ups.
    pub fn count(&self, lookups: u64, matches: u64) {
        self.lookups.fetch_add(lookups, Relaxed);
        self.matches.fetch_add(matches, Relaxed);
    }

    /// The entry that a packet with these fields takes; notes in `consulted` what that depends on.
    #[inline]
    pub fn look_up(&self, words: &Words, consulted: &mut Words) -> Option<&Arc<Flow>> {
        let mut best: Option<&Arc<Flow>> = None;
        for tuple in &self.tuples {
            if best.is_some_and(|best| best.priority >= tuple.highest()) {
                break;
            }
            let (found, needed) = tuple.look_up(words, &self.hash);
            tuple.mask.note(needed, consulted);
            if let Some(found) = found
                && best.is_none_or(|best| found.priority > best.priority)
            {
                best = Some(found);
            }
        }
        best
    }

    /// Installs an entry; the one with its match and priority that it replaces.
    pub fn insert(&mut self, flow: Arc<Flow>) -> Option<Arc<Flow>> {
        let at = match self.tuples.iter().position(|tuple| tuple.mask == flow.pattern.mask) {
            Some(at) => at,
            None => {
                self.tuples.push(Tuple::new(flow.pattern.mask.clone()));
                self.tuples.len() - 1
            }
        };
        let before = self.tuples[at].highest();
        let old = self.tuples[at].insert(Arc::clone(&flow), &self.hash);
        if let Some(old) = &old {
            self.flows.remove(&old.number);
        }
        self.flows.insert(flow.number, flow);
        let is_first = self.tuples[at].entries.len() == 1;
        if is_first || self.tuples[at].highest() != before {
            self.sort();
        }
        old
    }

    /// Removes the entry with this one's match and priority.
    pub fn remove(&mut self, flow: &Flow) -> Option<Arc<Flow>> {
        let at = self.tuples.iter().position(|tuple| tuple.mask == flow.pattern.mask)?;
        let before = self.tuples[at].highest();
        let old = self.tuples[at].remove(flow, &self.hash)?;
        self.flows.remove(&old.number);
        if self.tuples[at].priorities.is_empty() {
            self.tuples.remove(at);
        } else if self.tuples[at].highest() != before {
            self.sort();
        }
        Some(old)
    }

    fn sort(&mut self) {
        self.tuples.sort_by_key(|tuple| std::cmp::Reverse(tuple.highest()));
    }

    /// The entry with exactly this match and priority.
    pub fn exactly(&self, pattern: &Pattern, priority: u16) -> Option<&Arc<Flow>> {
        let tuple = self.tuples.iter().find(|tuple| tuple.mask == pattern.mask)?;
        tuple.entries.get(&pattern.values)?.as_slice().iter().find(|flow| flow.priority == priority)
    }

    /// The entries all of whose packets the pattern matches, in no order.
    pub fn within<'t, 'p>(
        &'t self,
        pattern: &'p Pattern,
    ) -> impl Iterator<Item = &'t Arc<Flow>> + use<'t, 'p> {
        self.tuples.iter().flat_map(move |tuple| {
            // With the same mask only entries with the same values.
            let same = (tuple.mask == pattern.mask).then(|| tuple.entries.get(&pattern.values)).flatten();
            let others = (tuple.mask != pattern.mask).then(|| tuple.entries.values());
            let entries = same.into_iter().chain(others.into_iter().flatten());
            entries.flat_map(Entries::as_slice).filter(|flow| pattern.includes(&flow.pattern))
        })
    }

    /// Whether an entry of this priority has packets in common with the pattern (§6.4, OFPFF_CHECK_OVERLAP).
    pub fn overlaps(&self, pattern: &Pattern, priority: u16) -> bool {
        self.tuples.iter().filter(|tuple| tuple.priorities.contains_key(&priority)).any(|tuple| {
            if tuple.mask == pattern.mask {
                return self.exactly(pattern, priority).is_some();
            }
            let meets = |flow: &&Arc<Flow>| {
                flow.priority == priority
                    && tuple.mask.can_meet(&flow.pattern.values, &pattern.mask, &pattern.values)
            };
            tuple.entries.values().flat_map(Entries::as_slice).any(|flow| meets(&flow))
        })
    }

    /// All entries, by their numbers.
    pub fn flows(&self) -> impl Iterator<Item = &Arc<Flow>> {
        self.flows.values()
    }

    /// Those whose number is higher.
    pub fn flows_after(&self, number: u64) -> impl Iterator<Item = &Arc<Flow>> {
        self.flows.range((Bound::Excluded(number), Bound::Unbounded)).map(|(_, flow)| flow)
    }

    /// Distinct masks.
    pub fn masks(&self) -> usize {
        self.tuples.len()
    }

    /// Whether an entry has this mask.
    pub fn has_mask(&self, mask: &Mask) -> bool {
        self.tuples.iter().any(|tuple| tuple.mask == *mask)
    }
}
