//! Chooses rules that can be sorted together, and the order of fields; the paper does this greedily (§IV,
//! "GrInd").
//!
//! For one field, the largest subset of a group is kept in which intervals are equal or disjoint (weighted
//! interval scheduling, exact in O(n log n)). These intervals divide the subset into smaller groups, which the
//! next field divides in turn. Rules that are not kept are left for another partition.
//!
//! Which field should be next? The one that keeps most rules is a poor choice: a field that most rules leave
//! open keeps these rules, loses the others, and divides nothing. With few fields all orders are tried on a
//! sample. With many fields, a group counts as the square root of its rules, as rules that are still together
//! will be lost to later fields.

use crate::Field;
use crate::store::Store;

/// Most rules from which the order of fields is chosen.
const SAMPLE: usize = 1024;
/// Up to this number of fields all orders are tried: 120.
const FEW: usize = 5;
/// With fewer rules, choosing an order is not worth its time.
const MANY: usize = 64;

/// Result of the choice.
pub(super) struct Sortable {
    /// All fields, in the order to sort by.
    pub fields: Vec<Field>,
    pub taken: Vec<u32>,
    pub left: Vec<u32>,
}

/// Fields by which rules can be sorted. Not the presence bits, which form no interval and only qualify other
/// fields.
fn sorting_fields() -> impl Iterator<Item = Field> {
    Field::ALL.into_iter().filter(|field| (field.word, field.shift) != (3, 22))
}

/// Chooses an order of fields, and the rules that can be sorted by it.
pub(super) fn choose(store: &Store, slots: &[u32]) -> Sortable {
    let step = slots.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<u32> = slots.iter().copied().step_by(step).collect();
    let says_something =
        |field: &Field| slots.iter().any(|&slot| store.range(slot, *field) != (0, field.max()));
    let (open, unused): (Vec<Field>, Vec<Field>) = sorting_fields().partition(says_something);
    let mut fields = if open.len() <= FEW && slots.len() >= MANY {
        best_order(store, &[sample], &open).1
    } else {
        good_order(store, sample, open)
    };
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

/// The order of fields that keeps the most rules, and their number.
fn best_order(store: &Store, groups: &[Vec<u32>], open: &[Field]) -> (usize, Vec<Field>) {
    let mut best = (groups.iter().map(Vec::len).sum(), Vec::new());
    for (at, &field) in open.iter().enumerate() {
        let mut parts = divide(store, groups, field);
        let all = parts.len();
        parts.retain(|part| part.len() > 1);
        let alone = all - parts.len();
        let others: Vec<Field> = [&open[..at], &open[at + 1..]].concat();
        let (kept, order) = best_order(store, &parts, &others);
        if best.1.is_empty() || alone + kept > best.0 {
            best = (alone + kept, [vec![field], order].concat());
        }
    }
    best
}

/// An order of fields, chosen one after the other.
fn good_order(store: &Store, sample: Vec<u32>, mut open: Vec<Field>) -> Vec<Field> {
    let mut fields = Vec::new();
    let mut groups = vec![sample];
    let worth = |parts: &[Vec<u32>]| parts.iter().map(|part| (part.len() as f64).sqrt()).sum::<f64>();
    while !open.is_empty() {
        let worths: Vec<f64> = open.iter().map(|&field| worth(&divide(store, &groups, field))).collect();
        let best = (0..open.len()).max_by(|&a, &b| worths[a].total_cmp(&worths[b])).unwrap_or(0);
        let field = open.remove(best);
        groups = divide(store, &groups, field);
        groups.retain(|group| group.len() > 1);
        fields.push(field);
    }
    fields
}

/// Divides each group by the intervals of a field, and drops rules that overlap too many others.
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

/// The largest subset of a group in which intervals are equal or disjoint, grouped by interval.
fn schedule(store: &Store, group: &[u32], field: Field, parts: &mut Vec<Vec<u32>>) {
    let mut by_end: Vec<((u32, u32), u32)> = group
        .iter()
        .map(|&slot| {
            let (low, high) = store.range(slot, field);
            ((high, low), slot)
        })
        .collect();
    by_end.sort_unstable();
    // For each interval: its rules, the most rules that can be kept among the intervals up to it, and its
    // predecessor in that choice.
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
