//! Nodes, the look-up, and the walk of a rule to its leaves.
//!
//! All trees of a classifier share one array of nodes of 16 octets. The children of a node lie side by side, so
//! a step of a look-up touches one cache line: that of the child. The `code` of a node says what it does with a
//! packet:
//!
//! ```text
//! leaf   bits 0-1 = 0 | length 2-31                                           base = first block in the arena
//! split  bits 0-1 = 1 | word 2-6 | shift 7-11 | width - 1 12-16 | bound 32-63 base = first of two children
//! cut    bits 0-1 = 2 | three times: word 5 | shift 5 | bits 4                base = first of 2^(all bits) children
//! both   bits 0-1 = 3                                                         base = first of two children
//! ```
//! A split sends values up to its bound left. A cut uses some bits of up to three fields as the number of the
//! child: the equal-sized cuts of HyperCuts are powers of two, so that a child is found without division or
//! comparison. A cut ignores the bits above those that it uses: a key that differs there from all rules of the
//! node ends in some leaf and matches nothing. So regions that were shrunk to their rules ("region compaction")
//! cost nothing in the look-up. Below a `both`, both children are searched: the first has the rules that would
//! have had too many copies in the second.

use super::entry::{Arena, Entry, Found, Pool};
use crate::key::WORDS;
use crate::simd::{Probe, Vector};
use crate::{Field, Key, Matcher, Verdict};

/// Most fields that one node cuts.
pub const MAX_CUTS: usize = 3;
/// Most bits that one node uses, of all fields: 64 KiB of children.
pub const MAX_CUT_BITS: u32 = 12;
/// Number of fields.
pub const FIELDS: usize = Field::ALL.len();

/// The values of a field that a rule can match: a range, and within it the values with certain bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Smallest value.
    pub first: u32,
    /// Greatest value, included.
    pub last: u32,
    /// Bits that are compared, see [`Matcher::mask`].
    pub mask: u32,
    /// The values of these bits.
    pub value: u32,
}

impl Extent {
    /// The extent of one field.
    pub fn of(matcher: &Matcher, field: Field) -> Extent {
        let (first, last) = matcher.range(field);
        Extent { first, last, mask: matcher.mask(field), value: matcher.value(field) }
    }

    /// The extents of all fields.
    pub fn all(matcher: &Matcher) -> [Extent; FIELDS] {
        Field::ALL.map(|field| Extent::of(matcher, field))
    }

    /// The extents of the fields that have a bit in `used`; the others are unrestricted.
    pub fn some(matcher: &Matcher, used: u32) -> [Extent; FIELDS] {
        let mut extents = [Extent { first: 0, last: 0, mask: 0, value: 0 }; FIELDS];
        let mut left = used;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            extents[at] = Extent::of(matcher, Field::ALL[at]);
            left &= left - 1;
        }
        extents
    }

    /// Number of values in the range, less one.
    pub fn span(&self) -> u32 {
        self.last - self.first
    }

    /// The part on one side of a bound: up to it, or above it. `None` when it is empty.
    pub fn side(self, bound: u32, above: bool) -> Option<Extent> {
        if above && self.last > bound {
            Some(Extent { first: self.first.max(bound + 1), ..self })
        } else if !above && self.first <= bound {
            Some(Extent { last: self.last.min(bound), ..self })
        } else {
            None
        }
    }

    /// Number of children that [`Extent::cut`] reaches; sometimes a few too many.
    #[inline]
    pub fn reach(&self, shift: u32, bits: u32) -> usize {
        let cells = (1u32 << bits) - 1;
        let open = (!self.mask >> shift & cells).count_ones();
        let range = (self.last >> shift) - (self.first >> shift);
        (range.min(cells) as usize + 1).min(1 << open)
    }

    /// A cut uses `bits` bits of the field, starting at `shift`. Calls `each` with every child that the extent
    /// reaches, and the part of the extent there. Building, inserting and removing all use this function, so
    /// they agree on where a rule goes.
    #[inline]
    pub fn cut(self, shift: u32, bits: u32, mut each: impl FnMut(u32, Extent)) {
        let low = ((1u64 << shift) - 1) as u32;
        let cells = (1u32 << bits) - 1;
        let (from, to) = (self.first >> shift, self.last >> shift);
        let fits = |child: u32| (child ^ self.value >> shift) & (self.mask >> shift) & cells == 0;
        // In a child the used bits are known, whatever part of the range is left: a cut further down may use
        // some of them again.
        let known = |child: u32| Extent {
            mask: self.mask | cells << shift,
            value: self.value & !(cells << shift) | child << shift,
            ..self
        };
        if to - from > cells {
            // The range wraps around: bits above the used ones differ between first and last.
            (0..=cells).filter(|&child| fits(child)).for_each(|child| each(child, known(child)));
            return;
        }
        for cell in from..=to {
            if fits(cell & cells) {
                let first = self.first.max(cell << shift);
                let last = self.last.min(cell << shift | low);
                each(cell & cells, Extent { first, last, ..known(cell & cells) });
            }
        }
    }
}

/// A run of bits of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Index of the field in [`Field::ALL`].
    pub field: u8,
    /// Lowest bit of the window; bit 0 is the lowest of the field.
    pub shift: u8,
    /// Number of bits; zero when unused.
    pub bits: u8,
}

/// What a node does with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Compares the packet with rules.
    Leaf {
        /// Number of rules.
        len: usize,
    },
    /// Sends the packet left when the field is at most `bound`, else right.
    Split {
        /// Index of the field in [`Field::ALL`].
        field: u8,
        /// Greatest value that goes left.
        bound: u32,
    },
    /// Sends the packet to the child whose number the bits of the fields make, the first field in the upper
    /// bits.
    Cut([Window; MAX_CUTS]),
    /// Sends the packet to two children: the rules that reach far, and all others.
    Both,
}

impl Step {
    /// Number of children of a node with this step.
    pub fn children(&self) -> usize {
        match self {
            Step::Leaf { .. } => 0,
            Step::Split { .. } | Step::Both => 2,
            Step::Cut(windows) => 1 << windows.iter().map(|window| u32::from(window.bits)).sum::<u32>(),
        }
    }
}

/// A node, as the module's documentation describes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct Node {
    /// A lower bound of the precedence values below. Removals may leave it too low.
    best: u32,
    base: u32,
    code: u64,
}

const LEAF: u64 = 0;
const SPLIT: u64 = 1;
const CUT: u64 = 2;
const BOTH: u64 = 3;
/// Bits that a window takes in a code.
const WINDOW: u32 = 14;

/// For each bit of each word, the index in [`Field::ALL`] of the field that contains it.
const FIELD_AT: [[u8; 32]; WORDS] = {
    let mut fields = [[u8::MAX; 32]; WORDS];
    let mut at = 0;
    while at < FIELDS {
        let field = Field::ALL[at];
        let mut bit = field.shift;
        while bit < field.shift + field.width {
            fields[field.word as usize][bit as usize] = at as u8;
            bit += 1;
        }
        at += 1;
    }
    fields
};

impl Node {
    /// A leaf without rules.
    pub const EMPTY: Node = Node { best: u32::MAX, base: 0, code: LEAF };

    fn new(best: u32, base: u32, step: Step) -> Node {
        let code = match step {
            Step::Leaf { len } => LEAF | (len as u64) << 2,
            Step::Split { field, bound } => {
                let Field { word, shift, width } = Field::ALL[field as usize];
                let place = u64::from(word) | u64::from(shift) << 5 | u64::from(width - 1) << 10;
                SPLIT | place << 2 | u64::from(bound) << 32
            }
            Step::Cut(windows) => {
                let mut code = CUT;
                for (at, window) in windows.into_iter().enumerate() {
                    // A window without bits may lie beyond its field, where the code has no room for it.
                    if window.bits == 0 {
                        continue;
                    }
                    let field = Field::ALL[window.field as usize];
                    let shift = field.shift + window.shift;
                    let place = u64::from(field.word) | u64::from(shift) << 5 | u64::from(window.bits) << 10;
                    code |= place << (2 + WINDOW as usize * at);
                }
                code
            }
            Step::Both => BOTH,
        };
        Node { best, base, code }
    }

    /// What it does with a packet.
    pub fn step(&self) -> Step {
        let place = (self.code >> 2) as u32;
        match self.code & 3 {
            LEAF => Step::Leaf { len: self.len() },
            BOTH => Step::Both,
            SPLIT => Step::Split {
                field: FIELD_AT[place as usize & 31][place as usize >> 5 & 31],
                bound: (self.code >> 32) as u32,
            },
            _ => Step::Cut(std::array::from_fn(|at| {
                let place = self.code >> (2 + WINDOW as usize * at);
                let shift = (place >> 5 & 31) as u8;
                let bits = (place >> 10 & 15) as u8;
                if bits == 0 {
                    return Window::default();
                }
                let field = FIELD_AT[place as usize & 31][shift as usize];
                Window { field, shift: shift - Field::ALL[field as usize].shift, bits }
            })),
        }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        (self.code >> 2) as usize
    }

    /// First block of a leaf in the arena, or index of the first child.
    pub fn base(&self) -> u32 {
        self.base
    }

    /// A lower bound of the precedence values below.
    pub fn best(&self) -> u32 {
        self.best
    }

    /// The child to which a key belongs. Only for splits and cuts.
    #[inline(always)]
    fn child(&self, key: &Key) -> u32 {
        let code = self.code;
        let word = |at: u32| key.words.get((code >> at) as usize & 31).copied().unwrap_or(0);
        if code & 3 == SPLIT {
            let value = word(2) >> (code >> 7 & 31) as u32 & (u32::MAX >> (31 - (code >> 12 & 31) as u32));
            return self.base + u32::from(value > (code >> 32) as u32);
        }
        let mut child = 0;
        for at in [2, 2 + WINDOW, 2 + 2 * WINDOW] {
            let bits = (code >> (at + 10) & 15) as u32;
            child = child << bits | word(at) >> (code >> (at + 5) & 31) as u32 & ((1 << bits) - 1);
        }
        self.base + child
    }
}

/// Most nodes that a look-up can postpone: one per level, and trees have fewer levels.
const WAITING: usize = 64;
const _: () = assert!(WAITING >= super::build::MAX_DEPTH as usize);

/// Nodes and leaves of all trees of a classifier.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    arena: Arena,
    /// One bit for every field that some node examines.
    used: u32,
    /// The parts of matchers for which lanes have no room.
    pub pool: Pool,
}

impl Tree {
    /// A new empty leaf.
    pub fn add_root(&mut self) -> u32 {
        self.add_children(1)
    }

    fn add_children(&mut self, count: usize) -> u32 {
        let base = self.nodes.len();
        self.nodes.resize(base + count, Node::EMPTY);
        base as u32
    }

    /// The extents of a rule in the fields that nodes examine.
    pub fn extents(&self, entry: &Entry) -> [Extent; FIELDS] {
        Extent::some(&self.pool.matcher(entry), self.used)
    }

    /// Number of nodes, leaves included.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// One node.
    pub fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    /// Turns an empty leaf into an inner node; returns its first child.
    pub fn set_inner(&mut self, node: u32, best: u32, step: Step) -> u32 {
        self.used |= match step {
            Step::Split { field, .. } => 1 << field,
            Step::Cut(windows) => windows.iter().fold(0, |used, window| used | 1 << window.field),
            Step::Leaf { .. } | Step::Both => 0,
        };
        let base = self.add_children(step.children());
        self.nodes[node as usize] = Node::new(best, base, step);
        base
    }

    /// Fills an empty leaf with entries, which must be in order.
    pub fn set_leaf(&mut self, node: u32, entries: impl ExactSizeIterator<Item = Entry>) {
        let len = entries.len();
        let base = self.arena.add(entries);
        let best = self.arena.best(base, len);
        self.nodes[node as usize] = Node::new(best, base, Step::Leaf { len });
    }

    /// The entries of a leaf.
    pub fn leaf_entries(&self, leaf: u32) -> impl ExactSizeIterator<Item = Entry> {
        let node = &self.nodes[leaf as usize];
        self.arena.entries(node.base, node.len())
    }

    /// Empties a leaf and returns its entries.
    pub fn take_leaf(&mut self, leaf: u32) -> Vec<Entry> {
        let entries = self.leaf_entries(leaf).collect();
        let node = std::mem::replace(&mut self.nodes[leaf as usize], Node::EMPTY);
        self.arena.drop_leaf(node.base, node.len());
        entries
    }

    /// Inserts an entry into a leaf; returns the new number of entries.
    pub fn insert_at(&mut self, leaf: u32, entry: &Entry) -> usize {
        let node = self.nodes[leaf as usize];
        let len = node.len();
        let base = self.arena.insert(node.base, len, entry);
        let best = node.best.min(entry.precedence());
        self.nodes[leaf as usize] = Node::new(best, base, Step::Leaf { len: len + 1 });
        len + 1
    }

    /// Removes an entry from a leaf; `false` when it is not there.
    pub fn remove_at(&mut self, leaf: u32, rank: u64) -> bool {
        let node = self.nodes[leaf as usize];
        let Some(base) = self.arena.remove(node.base, node.len(), rank) else { return false };
        let len = node.len() - 1;
        self.nodes[leaf as usize] = Node::new(self.arena.best(base, len), base, Step::Leaf { len });
        true
    }

    /// Lowers the bound of a node to this precedence value.
    pub fn improve(&mut self, node: u32, precedence: u32) {
        let node = &mut self.nodes[node as usize];
        node.best = node.best.min(precedence);
    }

    /// The verdict of the first entry, below any of `roots`, that matches the key.
    #[inline(always)]
    pub fn search<V: Vector>(&self, vector: V, roots: impl Iterator<Item = u32>, key: &Key) -> Verdict {
        let probe = Probe::new(vector, key);
        let mut found = Found::NONE;
        // Second children of the `Both` nodes above; fewer than there are levels.
        let mut waiting = [0; WAITING];
        let mut count = 0;
        for root in roots {
            let mut node = self.nodes[root as usize];
            loop {
                if node.best <= found.precedence() {
                    match node.code & 3 {
                        LEAF => {
                            let leaf = (node.base, node.len());
                            self.arena.scan(vector, leaf, &self.pool, (key, &probe), &mut found);
                        }
                        BOTH => {
                            // The child that may have the better rule comes first, so that the other may be
                            // skipped.
                            let base = node.base as usize;
                            let swap = usize::from(self.nodes[base + 1].best < self.nodes[base].best);
                            waiting[count % WAITING] = (base + 1 - swap) as u32;
                            count += 1;
                            node = self.nodes[base + swap];
                            continue;
                        }
                        _ => {
                            node = self.nodes[node.child(key) as usize];
                            continue;
                        }
                    }
                }
                if count == 0 {
                    break;
                }
                count -= 1;
                node = self.nodes[waiting[count % WAITING] as usize];
            }
        }
        found.verdict
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.arena.memory_bytes() + self.pool.memory_bytes()
    }
}

/// The leaves to which a rule belongs.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// The leaves, after a walk.
    pub leaves: Vec<u32>,
    /// The inner nodes above them.
    pub inner: Vec<u32>,
}

impl Walk {
    /// Finds the leaves below `root` for the insertion of a rule with these extents; `false` when there are
    /// more than `limit`.
    pub fn insert(&mut self, tree: &Tree, root: u32, extents: &mut [Extent; FIELDS], limit: usize) -> bool {
        self.leaves.clear();
        self.inner.clear();
        self.visit(tree, root, extents, Purpose::Insert { limit })
    }

    /// Finds the leaves below `root` that contain the rule with these extents and this rank.
    pub fn find(&mut self, tree: &Tree, root: u32, extents: &mut [Extent; FIELDS], rank: u64) {
        self.leaves.clear();
        self.inner.clear();
        self.visit(tree, root, extents, Purpose::Find { rank });
    }

    fn visit(&mut self, tree: &Tree, at: u32, extents: &mut [Extent; FIELDS], purpose: Purpose) -> bool {
        let node = tree.node(at);
        match (node.step(), purpose) {
            (Step::Leaf { .. }, Purpose::Insert { limit }) => {
                self.leaves.push(at);
                return self.leaves.len() <= limit;
            }
            (Step::Leaf { .. }, Purpose::Find { .. }) => {
                self.leaves.push(at);
                return true;
            }
            (Step::Both, Purpose::Insert { limit }) => {
                self.inner.push(at);
                let before = (self.leaves.len(), self.inner.len());
                let local = Purpose::Insert { limit: limit.min(before.0 + FAR) };
                if self.visit(tree, node.base + 1, extents, local) {
                    return true;
                }
                self.leaves.truncate(before.0);
                self.inner.truncate(before.1);
                return self.visit(tree, node.base, extents, purpose);
            }
            (Step::Both, Purpose::Find { rank }) => {
                self.inner.push(at);
                let far = tree.holds(node.base, extents, rank);
                return self.visit(tree, node.base + u32::from(!far), extents, purpose);
            }
            _ => self.inner.push(at),
        }
        for_children(node, extents, &mut |child, extents| self.visit(tree, child, extents, purpose))
    }
}

/// Purpose of a walk.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    /// To find at most `limit` leaves to insert a rule into.
    Insert { limit: usize },
    /// To find the leaves that contain a rule.
    Find { rank: u64 },
}

/// An inserted rule that needs more leaves than this below a [`Step::Both`] counts as one that reaches far.
const FAR: usize = 4;

impl Tree {
    /// Whether a rule is below a node. It is in every leaf that it reaches or in none, so one leaf is checked.
    fn holds(&self, at: u32, extents: &mut [Extent; FIELDS], rank: u64) -> bool {
        let node = self.node(at);
        match node.step() {
            Step::Leaf { len } => self.arena.holds(node.base, len, rank),
            Step::Both => self.holds(node.base, extents, rank) || self.holds(node.base + 1, extents, rank),
            _ => {
                let mut holds = false;
                for_children(node, extents, &mut |child, extents| {
                    // A rule may reach a child but no leaf below it. Such a child decides nothing: go on with
                    // the next.
                    holds = self.holds(child, extents, rank);
                    !holds && !self.reaches(child, extents)
                });
                holds
            }
        }
    }

    /// Whether a rule reaches any leaf below a node.
    fn reaches(&self, at: u32, extents: &mut [Extent; FIELDS]) -> bool {
        let node = self.node(at);
        if let Step::Leaf { .. } = node.step() {
            return true;
        }
        !for_children(node, extents, &mut |child, extents| !self.reaches(child, extents))
    }
}

/// Calls `each` with every child that the extents reach, and the extents cut to it, until it returns `false`.
pub fn for_children(
    node: &Node,
    extents: &mut [Extent; FIELDS],
    each: &mut dyn FnMut(u32, &mut [Extent; FIELDS]) -> bool,
) -> bool {
    match node.step() {
        Step::Leaf { .. } => true,
        Step::Split { field, bound } => {
            let whole = extents[field as usize];
            for above in [false, true] {
                if let Some(part) = whole.side(bound, above) {
                    extents[field as usize] = part;
                    let go_on = each(node.base + u32::from(above), extents);
                    extents[field as usize] = whole;
                    if !go_on {
                        return false;
                    }
                }
            }
            true
        }
        Step::Cut(windows) => for_cells(&windows, node.base, 0, extents, each),
        Step::Both => each(node.base, extents) && each(node.base + 1, extents),
    }
}

fn for_cells(
    windows: &[Window],
    base: u32,
    child: u32,
    extents: &mut [Extent; FIELDS],
    each: &mut dyn FnMut(u32, &mut [Extent; FIELDS]) -> bool,
) -> bool {
    let Some((window, rest)) = windows.split_first() else { return each(base + child, extents) };
    if window.bits == 0 {
        return for_cells(rest, base, child, extents, each);
    }
    let field = window.field as usize;
    let whole = extents[field];
    let mut go_on = true;
    whole.cut(window.shift.into(), window.bits.into(), |cell, part| {
        if go_on {
            extents[field] = part;
            go_on = for_cells(rest, base, child << window.bits | cell, extents, each);
        }
    });
    extents[field] = whole;
    go_on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_their_code() {
        for field in 0..FIELDS as u8 {
            let width = Field::ALL[field as usize].width() as u8;
            let split = Step::Split { field, bound: Field::ALL[field as usize].max() / 3 };
            assert_eq!(Node::new(7, 9, split).step(), split);
            let window = Window { field, shift: width - 2, bits: 2 };
            let cut = Step::Cut([window, Window::default(), Window { field, shift: 0, bits: 4 }]);
            assert_eq!((Node::new(7, 9, cut).step(), cut.children()), (cut, 64));
        }
        assert_eq!(Node::new(7, 9, Step::Leaf { len: 100_000 }).step(), Step::Leaf { len: 100_000 });
        assert_eq!(Node::new(7, 9, Step::Both).step(), Step::Both);
        assert_eq!(size_of::<Node>(), 16);
    }

    #[test]
    fn a_value_is_in_the_child_that_its_bits_say() {
        for (first, last, mask, value) in
            [(0, 63, 0, 0), (5, 40, 0, 0), (13, 13, 63, 13), (8, 59, 12, 8), (30, 33, 0, 0)]
        {
            let extent = Extent { first, last, mask, value };
            for (shift, bits) in [(0, 1), (0, 6), (2, 2), (3, 3), (5, 1)] {
                let mut parts = Vec::new();
                extent.cut(shift, bits, |child, part| parts.push((child, part)));
                assert!(parts.len() <= extent.reach(shift, bits));
                for key in (first..=last).filter(|key| key & mask == value) {
                    let child = key >> shift & ((1 << bits) - 1);
                    let part = parts.iter().find(|(at, _)| *at == child).map(|(_, part)| *part);
                    assert!(part.is_some_and(|part| (part.first..=part.last).contains(&key)), "{key}");
                }
            }
        }
    }
}
