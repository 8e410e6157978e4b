//! Which rules can be sorted together, and by which fields: the greedy choice of the paper (§IV, "GrInd").
//!
//! One field after the other is chosen: within each group of rules that agree so far, the largest set of rules is kept
//! whose intervals are equal or disjoint (weighted interval scheduling, exact in O(n log n)), and the field that keeps
//! the most rules of all groups comes next. What is not kept is left for another partition.

use crate::Field;
use crate::store::Store;

/// Rules that fields are chosen by, when there are more.
const SAMPLE: usize = 2048;

/// The outcome.
pub(super) struct Sortable {
    /// All fields, in the order to sort by.
    pub fields: Vec<Field>,
    pub taken: Vec<u32>,
    pub left: Vec<u32>,
}

/// Fields that rules can be sorted by. Presence is no interval: its bits say apart what other fields mean.
fn sorting_fields() -> impl Iterator<Item = Field> {
    Field::ALL.into_iter().filter(|field| (field.word, field.shift) != (3, 22))
}

/// Chooses an order of fields, and the rules to sort by it.
pub(super) fn choose(store: &Store, slots: &[u32]) -> Sortable {
    let step = slots.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<u32> = slots.iter().copied().step_by(step).collect();
    let says_something =
        |field: &Field| slots.iter().any(|&slot| store.range(slot, *field) != (0, field.max()));
    let (mut open, unused): (Vec<Field>, Vec<Field>) = sorting_fields().partition(says_something);
    let mut fields = Vec::new();
    let mut groups = vec![sample];
    while !open.is_empty() {
        let mut best = (0, 0, 0);
        for (at, &field) in open.iter().enumerate() {
            let parts = divide(store, &groups, field);
            let kept: usize = parts.iter().map(Vec::len).sum();
            // Among fields that keep as many, the one that divides most makes the shallowest tree.
            if (kept, parts.len()) > (best.0, best.1) {
                best = (kept, parts.len(), at);
            }
        }
        let field = open.remove(best.2);
        groups = divide(store, &groups, field);
        groups.retain(|group| group.len() > 1);
        fields.push(field);
    }
    let mut taken = vec![slots.to_vec()];
    for &field in &fields {
        taken = divide(store, &taken, field);
    }
    let taken: Vec<u32> = taken.concat();
    let mut sorted = taken.clone();
    sorted.sort_unstable();
    let left = slots.iter().copied().filter(|slot| sorted.binary_search(slot).is_err()).collect();
    fields.extend(unused);
    Sortable { fields, taken, left }
}

/// Divides each group by the intervals of a field, without the rules that stand in the way of more others.
fn divide(store: &Store, groups: &[Vec<u32>], field: Field) -> Vec<Vec<u32>> {
    let mut parts = Vec::new();
    for group in groups {
        if let [_] = group[..] {
            parts.push(group.clone());
        } else {
            schedule(store, group, field, &mut parts);
        }
    }
    parts
}

/// The rules of one group with the most that have equal or disjoint intervals, by interval.
fn schedule(store: &Store, group: &[u32], field: Field, parts: &mut Vec<Vec<u32>>) {
    let mut by_end: Vec<((u32, u32), u32)> = group
        .iter()
        .map(|&slot| {
            let (low, high) = store.range(slot, field);
            ((high, low), slot)
        })
        .collect();
    by_end.sort_unstable();
    // Each interval with its rules; the most rules among the intervals up to it, and where the one before it stands.
    let intervals: Vec<&[((u32, u32), u32)]> = by_end.chunk_by(|a, b| a.0 == b.0).collect();
    let mut most = vec![0];
    let mut before = Vec::with_capacity(intervals.len());
    for (at, rules) in intervals.iter().enumerate() {
        let (_, low) = rules[0].0;
        let compatible = intervals[..at].partition_point(|other| other[0].0.0 < low);
        before.push(compatible);
        most.push(most[at].max(most[compatible] + rules.len()));
    }
    let mut at = intervals.len();
    while at > 0 {
        if most[at] == most[at - 1] {
            at -= 1;
        } else {
            parts.push(intervals[at - 1].iter().map(|(_, slot)| *slot).collect());
            at = before[at - 1];
        }
    }
}
