//! The search tree of one partition: B+ trees of intervals, one field after the other.
//!
//! ```text
//! root ─► tree of field a ──[low,high]──► tree of field b ──[low,high]──► rule, or group of equal rules
//!                         ──[low,high]──► rule            (the only one with this interval of a)
//! ```
//! The fields of a partition have an order. A *map* divides rules that agree in all earlier fields by their
//! intervals of one field, which are disjoint; each interval leads to the rules that have it. A map exists only
//! where at least two intervals differ, so a rule that is alone after one field is found through one map; the
//! caller verifies its other fields. Large maps are B+ trees: *inner* nodes lead to nodes of the same map.
//!
//! A node is three cache lines, of which a search reads two: all lower bounds, compared at once, and the line
//! with the upper bound and reference of the entry found.
//!
//! Invariants. The intervals below one entry of an inner node end before the lower bound of the next entry;
//! that bound may be too low after removals, and a rule in between is then refused. A map has at least two
//! intervals. Places behind the last entry repeat it, so that a search need not know the number of entries.

use crate::ranked::{Groups, Head};
use crate::store::Store;
use crate::{Field, Key};

/// A [`Head`], or a node: its number, the position of its field, and whether it is an inner node.
type Ref = u32;
const NODE: u32 = 1 << 31;
const INNER: u32 = 1 << 30;
const FIELD_SHIFT: u32 = 25;
/// The root of a tree without rules.
const NOTHING: Ref = u32::MAX;

/// Entries of a node.
const FANOUT: usize = 15;

fn node_ref(inner: bool, field: usize, number: usize) -> Ref {
    NODE | if inner { INNER } else { 0 } | (field as u32) << FIELD_SHIFT | number as u32
}

#[inline]
fn field_of(at: Ref) -> usize {
    (at >> FIELD_SHIFT & 0x1F) as usize
}

#[inline]
fn number_of(at: Ref) -> usize {
    (at & ((1 << FIELD_SHIFT) - 1)) as usize
}

/// Maps unsigned to signed numbers in the same order, as vector units compare signed numbers.
#[inline]
fn biased(value: u32) -> i32 {
    (value ^ 1 << 31) as i32
}

/// The end of an interval and the reference. In inner nodes the end is unused and set to the greatest value.
#[derive(Clone, Copy, Debug)]
struct End {
    high: u32,
    to: Ref,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Node {
    /// Biased. The last one has no entry and is always the greatest value.
    lows: [i32; FANOUT + 1],
    ends: [End; FANOUT],
    len: u32,
}

impl Node {
    fn new(entries: &[(u32, End)]) -> Node {
        let mut node =
            Node { lows: [i32::MAX; FANOUT + 1], ends: [End { high: 0, to: NOTHING }; FANOUT], len: 0 };
        for (at, &(low, end)) in entries.iter().enumerate() {
            (node.lows[at], node.ends[at]) = (biased(low), end);
        }
        node.len = entries.len() as u32;
        node.pad();
        node
    }

    fn pad(&mut self) {
        let len = self.len as usize;
        if let Some(&last) = self.ends[..len].last() {
            self.lows[len..].fill(i32::MAX);
            self.ends[len..].fill(last);
        }
    }

    /// Number of lower bounds that are at most `value`, including those behind the last entry.
    #[inline]
    fn count(&self, value: u32) -> usize {
        let value = biased(value);
        self.lows.iter().map(|&low| i32::from(low <= value)).sum::<i32>() as usize
    }

    /// Number of entries whose lower bound is at most `value`.
    fn entries_until(&self, value: u32) -> usize {
        self.count(value).min(self.len as usize)
    }

    fn low(&self, place: usize) -> u32 {
        self.lows[place] as u32 ^ 1 << 31
    }

    fn insert(&mut self, place: usize, low: u32, end: End) {
        let len = self.len as usize;
        self.lows.copy_within(place..len, place + 1);
        self.ends.copy_within(place..len, place + 1);
        (self.lows[place], self.ends[place]) = (biased(low), end);
        self.len += 1;
        self.pad();
    }

    fn remove(&mut self, place: usize) {
        let len = self.len as usize;
        self.lows.copy_within(place + 1..len, place);
        self.ends.copy_within(place + 1..len, place);
        self.len -= 1;
        self.pad();
    }

    /// Moves the upper half to a new node.
    fn split(&mut self) -> Node {
        let half = self.len as usize / 2;
        let entries: Vec<(u32, End)> =
            (half..self.len as usize).map(|place| (self.low(place), self.ends[place])).collect();
        self.len = half as u32;
        self.pad();
        Node::new(&entries)
    }
}

/// Rules sorted by a sequence of fields.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    fields: Vec<Field>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: Ref,
    /// Nodes on the way to the place of an update, with the entries taken. Kept to reuse its memory.
    path: Vec<(Ref, usize)>,
}

impl Tree {
    /// An empty tree. Without fields, all rules are one group.
    pub fn new(fields: Vec<Field>) -> Tree {
        Tree { fields, nodes: Vec::new(), free: Vec::new(), root: NOTHING, path: Vec::new() }
    }

    /// The only rules that can match, if any. The tree must not be empty.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<Head> {
        let mut at = self.root;
        while at & NODE != 0 {
            let value = self.fields[field_of(at)].of(key);
            let node = &self.nodes[number_of(at)];
            let place = node.count(value).min(FANOUT).checked_sub(1)?;
            let end = node.ends[place];
            if value > end.high {
                return None;
            }
            at = end.to;
        }
        Some(at)
    }

    /// Adds a rule; `false`, and no change, when it cannot be sorted among the rules in the tree.
    pub fn insert(&mut self, slot: u32, store: &Store, groups: &mut Groups) -> bool {
        if self.root == NOTHING {
            self.root = slot;
            return true;
        }
        self.path.clear();
        let mut at = self.root;
        let mut depth = 0;
        // Bounds from the nodes above in the same map: where the next interval may start.
        let (mut same_map, mut limit) = (false, None);
        loop {
            let field = if at & NODE == 0 { self.fields.len() } else { field_of(at) };
            if !same_map && depth < field {
                // Fields in which all rules below agree have no map.
                match self.differing(depth..field, at, slot, store, groups) {
                    Differ::Nowhere => {}
                    Differ::Overlap => return false,
                    Differ::At(field, present, new) => {
                        self.fork(field, (present, at), (new, slot));
                        return true;
                    }
                }
            }
            if at & NODE == 0 {
                let mut head = at;
                groups.join(&mut head, slot, store);
                self.lead_to(head);
                return true;
            }
            let (low, high) = store.range(slot, self.fields[field]);
            let node = &self.nodes[number_of(at)];
            let until = node.entries_until(low);
            let next = if until < node.len as usize { Some(node.low(until)) } else { limit };
            let before = until.max(1) - 1;
            if at & INNER != 0 {
                self.path.push((at, before));
                // The entry behind `before`; it is the first entry when all are greater.
                let next = if before + 1 < node.len as usize { Some(node.low(before + 1)) } else { limit };
                (at, same_map, limit) = (node.ends[before].to, true, next);
                continue;
            }
            if until > 0 && node.ends[before].high >= low {
                if (node.low(before), node.ends[before].high) != (low, high) {
                    return false;
                }
                self.path.push((at, before));
                (at, same_map, limit) = (node.ends[before].to, false, None);
                depth = field + 1;
                continue;
            }
            if next.is_some_and(|next| high >= next) {
                return false;
            }
            self.lower(low);
            self.add(at, until, low, End { high, to: slot });
            return true;
        }
    }

    /// Removes a rule, which must be in the tree; `true` when it was the last.
    pub fn remove(&mut self, slot: u32, store: &Store, groups: &mut Groups) -> bool {
        self.path.clear();
        let mut at = self.root;
        while at & NODE != 0 {
            let low = store.range(slot, self.fields[field_of(at)]).0;
            let node = &self.nodes[number_of(at)];
            let place = node.entries_until(low).max(1) - 1;
            self.path.push((at, place));
            at = node.ends[place].to;
        }
        let mut head = at;
        if groups.leave(&mut head, slot, store) {
            self.lead_to(head);
            return false;
        }
        while let Some((at, place)) = self.path.pop() {
            let node = &mut self.nodes[number_of(at)];
            node.remove(place);
            if node.len > 0 {
                self.collapse(at);
                return false;
            }
            self.free.push(number_of(at) as u32);
        }
        self.root = NOTHING;
        true
    }

    /// The heads under which the rules of the tree are found.
    pub fn heads(&self) -> Vec<Head> {
        let mut heads = Vec::new();
        let mut open = if self.root == NOTHING { Vec::new() } else { vec![self.root] };
        while let Some(at) = open.pop() {
            if at & NODE == 0 {
                heads.push(at);
            } else {
                let node = &self.nodes[number_of(at)];
                open.extend(node.ends[..node.len as usize].iter().map(|end| end.to));
            }
        }
        heads
    }

    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.free.capacity() * size_of::<u32>()
            + self.fields.capacity() * size_of::<Field>()
            + self.path.capacity() * size_of::<(Ref, usize)>()
    }

    /// The first of some fields in which a rule differs from the rules below `at`, which agree in these fields.
    fn differing(
        &self,
        fields: std::ops::Range<usize>,
        at: Ref,
        slot: u32,
        store: &Store,
        groups: &Groups,
    ) -> Differ {
        let mut some = at;
        while some & NODE != 0 {
            some = self.nodes[number_of(some)].ends[0].to;
        }
        let present = groups.of(&some)[0];
        for field in fields {
            let (ours, theirs) =
                (store.range(slot, self.fields[field]), store.range(present, self.fields[field]));
            if ours == theirs {
                continue;
            }
            let overlap = ours.0 <= theirs.1 && theirs.0 <= ours.1;
            return if overlap { Differ::Overlap } else { Differ::At(field, theirs, ours) };
        }
        Differ::Nowhere
    }

    /// Puts a map of two intervals at the end of the path.
    fn fork(&mut self, field: usize, one: ((u32, u32), Ref), other: ((u32, u32), Ref)) {
        let entry = |((low, high), to): ((u32, u32), Ref)| (low, End { high, to });
        let (first, second) = if one.0.0 < other.0.0 { (one, other) } else { (other, one) };
        let number = self.allocate(Node::new(&[entry(first), entry(second)]));
        self.lead_to(node_ref(false, field, number));
    }

    fn allocate(&mut self, node: Node) -> usize {
        if let Some(number) = self.free.pop() {
            self.nodes[number as usize] = node;
            return number as usize;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Replaces the reference at the end of the path.
    fn lead_to(&mut self, to: Ref) {
        match self.path.last() {
            None => self.root = to,
            Some(&(at, place)) => {
                let node = &mut self.nodes[number_of(at)];
                node.ends[place].to = to;
                node.pad();
            }
        }
    }

    /// Lowers the bounds of the inner nodes above to a new lower bound.
    fn lower(&mut self, low: u32) {
        for &(at, place) in self.path.iter().rev().take_while(|(at, _)| at & INNER != 0) {
            let bound = &mut self.nodes[number_of(at)].lows[place];
            *bound = biased(low).min(*bound);
        }
    }

    /// Adds an entry to the node at the end of the path; splits the node when it is full.
    fn add(&mut self, at: Ref, place: usize, low: u32, end: End) {
        let node = &mut self.nodes[number_of(at)];
        if (node.len as usize) < FANOUT {
            node.insert(place, low, end);
            return;
        }
        let mut right = node.split();
        let half = node.len as usize;
        if place <= half {
            node.insert(place, low, end);
        } else {
            right.insert(place - half, low, end);
        }
        let (left_low, right_low) = (node.low(0), right.low(0));
        let number = self.allocate(right);
        let right = node_ref(at & INNER != 0, field_of(at), number);
        let above = End { high: u32::MAX, to: right };
        match self.path.last().copied() {
            Some((parent, place)) if parent & INNER != 0 => {
                self.path.pop();
                self.add(parent, place + 1, right_low, above);
            }
            _ => {
                let left = End { high: u32::MAX, to: at };
                let number = self.allocate(Node::new(&[(left_low, left), (right_low, above)]));
                self.lead_to(node_ref(true, field_of(at), number));
            }
        }
    }

    /// Removes the top node of a map, as long as it has only one entry.
    fn collapse(&mut self, mut at: Ref) {
        if self.path.last().is_some_and(|(parent, _)| parent & INNER != 0) {
            return;
        }
        while self.nodes[number_of(at)].len == 1 {
            let to = self.nodes[number_of(at)].ends[0].to;
            self.free.push(number_of(at) as u32);
            self.lead_to(to);
            if at & INNER == 0 {
                return;
            }
            at = to;
        }
    }
}

/// How a rule compares with others in some fields.
enum Differ {
    Nowhere,
    Overlap,
    /// Position of the field, interval of the rules in the tree, interval of the rule.
    At(usize, (u32, u32), (u32, u32)),
}
