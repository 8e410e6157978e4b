//! PartitionSort: few partitions of rules, each sorted like the keys of a search tree.
//!
//! S. Yingchareonthawornchai, J. Daly, A. X. Liu and E. Torng, "A sorted partitioning approach to high-speed and
//! S. Yingchareonthawornchai, J. Daly, A. X. Liu and E. Torng, "A sorted partitioning approach to high-speed
//! and fast-update OpenFlow classification", ICNP 2016. A set of rules is *sortable* by a sequence of fields
//! when for any two rules the intervals of the first field in which they differ are disjoint. Such rules form a
//! search tree over several keys: a packet can match at one place at most, and an update is that of a search
//! tree. A greedy algorithm divides the rules into as few sortable partitions as it can ([`sortable`]). A
//! look-up searches one after the other, the partition with the best rank first, until its match ranks before
//! all that are left.
//!
//! - Insertion: the first partition that can sort the rule takes it. Otherwise it is a *loose* rule; these are
//!   tried one by one. When there are more than [`LOOSE`], a sortable part of them becomes a partition.
//! - Insertion of many rules, and [`optimise`](Classifier::optimise): partitions are chosen anew for all rules.
//!
//! Differences from the paper. The paper has balanced binary trees with one field per node; here every field,
//! and every group of rules that agree in earlier fields, has a B+ tree of intervals, searched by comparing 15
//! bounds at once ([`tree`]). The paper rebuilds a small tree with another order of fields when a rule does not
//! fit; here such rules are collected until a partition pays, so that small sets stay a list, which is best for
//! them. A non-contiguous mask is represented by the interval around its values. Every rule that a search finds
//! is verified in all fields, so trees need not contain every field.
//!
//! Cost with p partitions: a look-up takes p descents of O(log n); an insertion up to p descents, a removal
//! one. A rule set without sortable subsets becomes a list.

mod sortable;
mod tree;

use crate::ranked::{Best, Groups, Order, Place};
use crate::store::{NONE, Store, first_pairs};
use crate::{Classifier, InsertError, Key, Rule, Verdict};
use tree::Tree;

/// Most loose rules before a partition is made of them.
const LOOSE: usize = 16;
/// Fewest rules of a new partition.
const WORTH: usize = 8;
/// A new partition must take at least one in this many of the rules that are left; otherwise they stay loose.
const SHARE: usize = 256;

#[derive(Clone, Debug)]
struct Partition {
    tree: Tree,
    /// A lower bound of the ranks in the partition.
    best: u64,
    rules: usize,
    /// Removals since `best` was last exact.
    worn: usize,
    /// Whether the rule with rank `best` has been removed.
    stale: bool,
}

/// Partitions of sorted rules.
#[derive(Clone, Debug, Default)]
pub struct PartitionSort {
    store: Store,
    groups: Groups,
    parts: Vec<Partition>,
    free: Vec<u32>,
    /// The parts that contain rules, in order of search.
    order: Order,
    /// The part of the loose rules, whose tree has no fields.
    loose: Option<u32>,
    /// Rules that have become loose since sorting them was last tried.
    refused: usize,
}

impl PartitionSort {
    /// A classifier without rules.
    pub fn new() -> PartitionSort {
        PartitionSort::default()
    }

    #[inline]
    fn search(&self, key: &Key) -> Verdict {
        let first = first_pairs(&key.words);
        let mut best = Best::NONE;
        for place in self.order.places() {
            if best.is_before(place.best) {
                break;
            }
            let Some(head) = self.parts[place.part as usize].tree.find(key) else { continue };
            for &slot in self.groups.of(&head) {
                let entry = self.store.entry(slot);
                if best.is_before(entry.rank) {
                    break;
                }
                if self.store.matches(entry, first, key) {
                    best = Best { rank: entry.rank, verdict: Some(entry.value) };
                    break;
                }
            }
        }
        best.verdict
    }

    /// Puts a rule of the store into a part.
    fn place(&mut self, slot: u32) {
        for number in 0..self.parts.len() as u32 {
            let sorted = self.loose != Some(number) && self.parts[number as usize].rules > 0;
            if sorted && self.attach(slot, number) {
                return;
            }
        }
        let number =
            *self.loose.get_or_insert_with(|| make(&mut self.parts, &mut self.free, Tree::new(Vec::new())));
        self.attach(slot, number);
        self.refused += 1;
        let rules = self.parts[number as usize].rules;
        // An attempt costs as much per rule as some insertions, and fails more often the more rules it leaves
        // over.
        if rules > LOOSE && self.refused >= LOOSE.max(rules / 2) {
            self.refused = 0;
            let slots = self.slots(number);
            for &slot in &slots {
                self.detach(slot);
            }
            self.partition(slots);
        }
    }

    /// Makes partitions of rules that are in no part; the rest become loose.
    fn partition(&mut self, mut slots: Vec<u32>) {
        while slots.len() > LOOSE {
            let found = sortable::choose(&self.store, &slots);
            if found.taken.len() < WORTH.max(slots.len() / SHARE) {
                break;
            }
            let number = make(&mut self.parts, &mut self.free, Tree::new(found.fields));
            slots = found.left;
            for slot in found.taken {
                if !self.attach(slot, number) {
                    slots.push(slot);
                }
            }
        }
        for slot in slots {
            let number = *self
                .loose
                .get_or_insert_with(|| make(&mut self.parts, &mut self.free, Tree::new(Vec::new())));
            self.attach(slot, number);
        }
    }

    /// Puts a rule into a part; `false` if it cannot be sorted there.
    fn attach(&mut self, slot: u32, number: u32) -> bool {
        let part = &mut self.parts[number as usize];
        if !part.tree.insert(slot, &self.store, &mut self.groups) {
            return false;
        }
        self.store.set_home(slot, number);
        part.rules += 1;
        let rank = self.store.entry(slot).rank;
        if part.rules == 1 {
            part.best = rank;
            self.order.insert(Place { best: rank, part: number });
        } else if rank < part.best {
            self.set_best(number, rank);
        }
        true
    }

    fn detach(&mut self, slot: u32) {
        let entry = self.store.entry(slot);
        let (number, rank) = (entry.home, entry.rank);
        if number == NONE {
            return;
        }
        self.store.set_home(slot, NONE);
        let part = &mut self.parts[number as usize];
        let empty = part.tree.remove(slot, &self.store, &mut self.groups);
        part.rules -= 1;
        part.worn += 1;
        part.stale |= rank == part.best;
        if empty {
            self.order.remove(Place { best: part.best, part: number });
            *part = Partition::new(Tree::new(Vec::new()));
            self.free.push(number);
            if self.loose == Some(number) {
                self.loose = None;
            }
        } else if part.stale && part.worn * 4 >= part.rules {
            (part.stale, part.worn) = (false, 0);
            let heads = part.tree.heads();
            let rank = |head| self.store.entry(self.groups.of(head)[0]).rank;
            let best = heads.iter().map(rank).min().unwrap_or(u64::MAX);
            self.set_best(number, best);
        }
    }

    fn set_best(&mut self, number: u32, best: u64) {
        let part = &mut self.parts[number as usize];
        let old = Place { best: std::mem::replace(&mut part.best, best), part: number };
        self.order.update(old, best);
    }

    /// All rules of a part.
    fn slots(&self, number: u32) -> Vec<u32> {
        let heads = self.parts[number as usize].tree.heads();
        heads.iter().flat_map(|head| self.groups.of(head)).copied().collect()
    }

    /// Chooses all partitions anew.
    fn rebuild(&mut self) {
        let slots = self.store.slots_by_rank();
        self.store.reorder(&slots);
        (self.groups, self.order, self.loose) = (Groups::default(), Order::default(), None);
        self.parts.clear();
        self.free.clear();
        let slots = (0..slots.len() as u32).filter(|&slot| !self.store.is_never(slot)).collect();
        self.partition(slots);
    }
}

impl Partition {
    fn new(tree: Tree) -> Partition {
        Partition { tree, best: u64::MAX, rules: 0, worn: 0, stale: false }
    }
}

/// Adds a part and returns its number.
fn make(parts: &mut Vec<Partition>, free: &mut Vec<u32>, tree: Tree) -> u32 {
    let part = Partition::new(tree);
    if let Some(number) = free.pop() {
        parts[number as usize] = part;
        return number;
    }
    parts.push(part);
    parts.len() as u32 - 1
}

impl Classifier for PartitionSort {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = self.search(key);
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        let (slot, matcher) = self.store.insert(&rule)?;
        if matcher.is_some() {
            self.place(slot);
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(slot) = self.store.find(id) else { return false };
        self.detach(slot);
        self.store.remove(slot);
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(slot) = self.store.find(id) else { return false };
        let sorted = self.store.entry(slot).home != NONE;
        self.detach(slot);
        self.store.set_precedence(slot, precedence);
        if sorted {
            self.place(slot);
        }
        true
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        if rules.len() <= self.len() || rules.len() <= LOOSE {
            return rules.iter().try_for_each(|rule| self.insert(*rule));
        }
        let inserted = rules.iter().try_for_each(|rule| self.store.insert(rule).map(|_| ()));
        self.rebuild();
        inserted
    }

    fn optimise(&mut self) {
        self.rebuild();
    }

    fn memory_bytes(&self) -> usize {
        let trees: usize = self.parts.iter().map(|part| part.tree.heap_bytes()).sum();
        size_of::<PartitionSort>()
            + trees
            + self.parts.capacity() * size_of::<Partition>()
            + self.free.capacity() * size_of::<u32>()
            + self.order.heap_bytes()
            + self.groups.heap_bytes()
            + self.store.heap_bytes()
    }

    fn len(&self) -> usize {
        self.store.len()
    }
}
