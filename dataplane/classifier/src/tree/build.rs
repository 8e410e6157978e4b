//! Building trees: the rules as ranges ([`Space`]), nodes that are not yet built ([`Part`]), ways to divide
//! them ([`Action`]), and the [`Policy`] that chooses among these.
//!
//! [`Space::apply`] changes nothing: it may be called to try an action, or a whole tree of them, without
//! building. [`build`] asks the policy for an action per node, applies it, and writes nodes and leaves.
//!
//! Memory is bounded whatever the policy does. A rule comes into a tree with a budget of [`Limits::copies`],
//! which the children that it reaches share. A rule that reaches more children than it has budget left *reaches
//! far* at that node. All such rules become a separate tree, where other fields divide them, and look-ups
//! search both trees ([`Step::Both`]). This replaces the rule lists that HyperCuts pushes up to inner nodes,
//! and EffiCuts' separation of large rules, and happens only where it is needed. When the copies of all rules
//! exceed [`Limits::total`] times their number, no rule is copied any more.

use super::entry::{Entry, LANES};
use super::node::{Extent, FIELDS, MAX_CUT_BITS, MAX_CUTS, Step, Tree, Window};
use crate::Field;

/// Most levels of a tree, the leaves included. The walk of an update recurses, so there must be a bound.
pub const MAX_DEPTH: u32 = 48;

/// The rules from which trees are built, as ranges of the fields that they use. Rules are numbered in order of
/// rank: 0 comes first.
#[derive(Clone, Debug)]
pub struct Space {
    entries: Vec<Entry>,
    dims: Vec<u8>,
    /// The extents of a rule in all `dims`, rule after rule.
    extents: Vec<Extent>,
}

/// A node that is not built yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Rules that can match in this part, in order.
    pub rules: Vec<u32>,
    /// First and last value of every dimension of the space, shrunk to what the rules cover.
    pub region: Box<[(u32, u32)]>,
    /// Bits of every dimension that cuts above have decided, and their values.
    pub known: Box<[(u32, u32)]>,
}

/// How a part is divided. Dimensions are indices into [`Space::dims`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Not at all: its rules are compared one by one.
    Leaf,
    /// Two children: the dimension, and the greatest value that belongs to the first child.
    Split(u8, u32),
    /// Equal-sized cuts: pairs of dimension and number of bits, which give `2^bits` cuts; zero bits mean no
    /// cut. A cut takes the upper bits of those that differ within the region. Bits that do not exist, or for
    /// which a node has no room, are left out.
    Cut([(u8, u8); MAX_CUTS]),
    /// Cuts by any bits of fields (not dimensions). The bits of a port, whose rules are ranges, must be the
    /// highest that differ within the region.
    Windows([Window; MAX_CUTS]),
    /// Moves rules that fix fewer than `least` bits of a field to a separate tree; look-ups search both.
    SeparateTree {
        /// Index in [`Field::ALL`].
        field: u8,
        /// Number of bits.
        least: u8,
    },
}

impl Action {
    /// A cut of one dimension.
    pub fn cut(dim: u8, bits: u8) -> Action {
        Action::Cut([(dim, bits), (0, 0), (0, 0)])
    }
}

impl Space {
    /// A space of these entries, which must be in order of rank. Each comes with the extents that it can match:
    /// all of it, or less where the tree above has already divided the fields.
    pub fn new(rules: Vec<(Entry, [Extent; FIELDS])>) -> Space {
        let used = |at: &usize| {
            let max = Field::ALL[*at].max();
            rules.iter().any(|(_, extents)| (extents[*at].first, extents[*at].last) != (0, max))
        };
        let dims: Vec<u8> = (0..FIELDS).filter(used).map(|at| at as u8).collect();
        let mut extents = Vec::with_capacity(rules.len() * dims.len());
        for (_, all) in &rules {
            extents.extend(dims.iter().map(|&dim| all[dim as usize]));
        }
        Space { entries: rules.into_iter().map(|(entry, _)| entry).collect(), dims, extents }
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The fields that at least one rule restricts, as indices into [`Field::ALL`].
    pub fn dims(&self) -> &[u8] {
        &self.dims
    }

    /// The entry of a rule.
    pub fn entry(&self, rule: u32) -> &Entry {
        &self.entries[rule as usize]
    }

    /// The values of a dimension that a rule can match, without regard to any part.
    #[inline]
    pub fn extent(&self, rule: u32, dim: usize) -> &Extent {
        &self.extents[rule as usize * self.dims.len() + dim]
    }

    /// Number of bits of a field that a rule fixes. For a port, its width less the bits that the length of the
    /// range needs.
    pub fn fixed_bits(&self, rule: u32, field: u8) -> u32 {
        let Some(dim) = self.dims.iter().position(|&dim| dim == field) else { return 0 };
        let extent = self.extent(rule, dim);
        match Field::ALL[field as usize] {
            port @ (Field::SOURCE_PORT | Field::DESTINATION_PORT) => {
                port.width() - (extent.span() + 1).ilog2()
            }
            _ => extent.mask.count_ones(),
        }
    }

    /// The values of a dimension that a rule can match within a part to which it belongs.
    #[inline]
    pub fn clipped(&self, part: &Part, rule: u32, dim: usize) -> Extent {
        let extent = *self.extent(rule, dim);
        let (first, last) = part.region[dim];
        let (known, bits) = part.known[dim];
        Extent {
            first: extent.first.max(first),
            last: extent.last.min(last),
            mask: extent.mask | known,
            value: extent.value & !known | bits,
        }
    }

    /// A part with these rules, which must be in order.
    pub fn part(&self, rules: Vec<u32>) -> Part {
        let whole = self.dims.iter().map(|&dim| (0, Field::ALL[dim as usize].max())).collect();
        self.shrink(Part { rules, region: whole, known: vec![(0, 0); self.dims.len()].into() })
    }

    /// A part with all rules.
    pub fn whole(&self) -> Part {
        self.part((0..self.len() as u32).collect())
    }

    /// Shrinks the region to what the rules cover.
    fn shrink(&self, mut part: Part) -> Part {
        for dim in 0..self.dims.len() {
            let (first, last) = part.region[dim];
            let (mut least, mut greatest) = (last, first);
            for &rule in &part.rules {
                let extent = self.extent(rule, dim);
                least = least.min(extent.first.max(first));
                greatest = greatest.max(extent.last.min(last));
                if (least, greatest) == (first, last) {
                    break;
                }
            }
            if least <= greatest {
                part.region[dim] = (least, greatest);
            }
        }
        part
    }

    /// The step that carries out an action in this part; `None` when it would divide nothing.
    pub fn step(&self, part: &Part, action: &Action) -> Option<Step> {
        match *action {
            Action::Leaf | Action::SeparateTree { .. } => None,
            Action::Split(dim, bound) => {
                let &(first, last) = part.region.get(dim as usize)?;
                let field = self.dims[dim as usize];
                (first <= bound && bound < last).then_some(Step::Split { field, bound })
            }
            Action::Cut(cuts) => {
                let mut windows = [Window::default(); MAX_CUTS];
                let mut left = MAX_CUT_BITS;
                for (window, (dim, bits)) in windows.iter_mut().zip(cuts) {
                    let Some(&(first, last)) = part.region.get(dim as usize) else { continue };
                    let differ = u32::BITS - (first ^ last).leading_zeros();
                    let bits = u32::from(bits).min(differ).min(left);
                    if bits > 0 {
                        let shift = (differ - bits) as u8;
                        *window = Window { field: self.dims[dim as usize], shift, bits: bits as u8 };
                        left -= bits;
                    }
                }
                (left < MAX_CUT_BITS).then_some(Step::Cut(windows))
            }
            Action::Windows(windows) => {
                let bits: u32 = windows.iter().map(|window| u32::from(window.bits)).sum();
                let valid = windows.iter().all(|window| window.bits == 0 || self.can_take(part, window));
                (valid && (1..=MAX_CUT_BITS).contains(&bits)).then_some(Step::Cut(windows))
            }
        }
    }

    /// Whether a cut of the part may use these bits.
    fn can_take(&self, part: &Part, window: &Window) -> bool {
        let Some(dim) = self.dims.iter().position(|&dim| dim == window.field) else { return false };
        let field = Field::ALL[window.field as usize];
        let end = u32::from(window.shift) + u32::from(window.bits);
        let (first, last) = part.region[dim];
        let port = field == Field::SOURCE_PORT || field == Field::DESTINATION_PORT;
        end <= field.width() && (!port || u64::from(first ^ last) >> end == 0)
    }

    /// The children that an action gives a part, in the order of the node's children; none when it would divide
    /// nothing. Children may be empty. Every rule is in each child that it reaches.
    pub fn apply(&self, part: &Part, action: &Action) -> Vec<Part> {
        self.step(part, action).map_or(Vec::new(), |step| self.children(part, &step, |_, _| {}))
    }

    /// The children of a step. Calls `each` with the index of every rule in the part and the children that
    /// contain it.
    fn children(&self, part: &Part, step: &Step, mut each: impl FnMut(usize, &[u32])) -> Vec<Part> {
        let mut rules: Vec<Vec<u32>> = vec![Vec::new(); step.children()];
        let mut cells = Vec::new();
        for (at, &rule) in part.rules.iter().enumerate() {
            cells.clear();
            self.cells(part, step, rule, &mut cells);
            cells.iter().for_each(|&cell| rules[cell as usize].push(rule));
            each(at, &cells);
        }
        let whole = rules.into_iter().enumerate().map(|(cell, rules)| {
            let mut child = Part { rules, region: part.region.clone(), known: part.known.clone() };
            self.narrow(step, cell as u32, &mut child);
            self.shrink(child)
        });
        whole.collect()
    }

    /// Number of children that a rule reaches; sometimes a few too many.
    fn reach(&self, part: &Part, step: &Step, rule: u32) -> usize {
        match *step {
            Step::Split { field, bound } => {
                let extent = self.clipped(part, rule, self.dim(field));
                1 + usize::from(extent.first <= bound && bound < extent.last)
            }
            Step::Cut(windows) => {
                let taken = windows.iter().filter(|window| window.bits > 0);
                let reach = taken.map(|window| {
                    self.clipped(part, rule, self.dim(window.field))
                        .reach(window.shift.into(), window.bits.into())
                });
                reach.product()
            }
            Step::Leaf { .. } | Step::Both => 1,
        }
    }

    /// Numbers of the children that a rule reaches.
    pub fn cells(&self, part: &Part, step: &Step, rule: u32, cells: &mut Vec<u32>) {
        match *step {
            Step::Leaf { .. } | Step::Both => {}
            Step::Split { field, bound } => {
                let extent = self.clipped(part, rule, self.dim(field));
                cells.extend((extent.first <= bound).then_some(0));
                cells.extend((extent.last > bound).then_some(1));
            }
            Step::Cut(windows) => {
                cells.push(0);
                for window in windows.iter().filter(|window| window.bits > 0) {
                    let extent = self.clipped(part, rule, self.dim(window.field));
                    let before = cells.len();
                    extent.cut(window.shift.into(), window.bits.into(), |cell, _| {
                        for at in 0..before {
                            cells.push(cells[at] << window.bits | cell);
                        }
                    });
                    cells.drain(..before);
                }
            }
        }
    }

    /// Index of a field among the dimensions.
    fn dim(&self, field: u8) -> usize {
        self.dims.iter().position(|&dim| dim == field).unwrap_or(0)
    }

    /// Narrows a part to the region of a child.
    fn narrow(&self, step: &Step, cell: u32, part: &mut Part) {
        match *step {
            Step::Leaf { .. } | Step::Both => {}
            Step::Split { field, bound } => {
                let region = &mut part.region[self.dim(field)];
                *region = if cell == 0 { (region.0, bound) } else { (bound + 1, region.1) };
            }
            Step::Cut(windows) => {
                let mut cell = cell;
                for window in windows.iter().rev().filter(|window| window.bits > 0) {
                    let dim = self.dim(window.field);
                    let cells = (1 << window.bits) - 1;
                    let taken = (cell & cells) << window.shift;
                    cell >>= window.bits;
                    let (known, bits) = &mut part.known[dim];
                    (*known, *bits) =
                        (*known | cells << window.shift, *bits & !(cells << window.shift) | taken);
                    let region = &mut part.region[dim];
                    let below = ((1u64 << (window.shift + window.bits)) - 1) as u32;
                    // Where bits above the window differ, the child has values all over the region.
                    if (region.0 ^ region.1) & !below == 0 {
                        let low = ((1u64 << window.shift) - 1) as u32;
                        let above = region.0 & !below;
                        *region = (region.0.max(above | taken), region.1.min(above | taken | low));
                    }
                }
            }
        }
    }
}

/// Decides how trees are built. Every copy of a classifier has its own copy of the policy.
pub trait Policy: Clone + Send + Sync {
    /// Examines all rules before a build, to choose fields or to learn.
    fn prepare(&mut self, space: &Space) {
        let _ = space;
    }

    /// Divides rules into groups, one tree each; look-ups search all trees. Every rule must be in one group,
    /// and each group in order.
    fn partition(&self, space: &Space, rules: Vec<u32>) -> Vec<Vec<u32>> {
        let _ = space;
        vec![rules]
    }

    /// How to divide a part with more rules than a leaf should have, `depth` levels below the root.
    fn choose(&self, space: &Space, part: &Part, depth: u32) -> Action;

    /// Most rules that a leaf should have ("binth").
    fn leaf_rules(&self) -> usize {
        LANES
    }

    /// A share of the rules of a part, in percent. When at least so many rules reach more than half of a step's
    /// children, these rules move to a separate tree before they have used up their budgets.
    fn wide_percent(&self) -> usize {
        100
    }

    /// How much copying of rules is allowed.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Octets on the heap.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// How much copying of rules is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Copies of one rule in a tree before the rule moves to a separate tree.
    pub copies: usize,
    /// Copies of all rules, as a multiple of the number of rules.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { copies: 32, total: 6 }
    }
}

impl Limits {
    /// The limits when a leaf is divided.
    pub const LOCAL: Limits = Limits { copies: 2, total: 3 };
}

/// A part with rules that reach far becomes a leaf if its rules fill no more than this number of leaves:
/// usually, and when the copies of all rules are used up.
const CHAIN_OR_LEAF: (usize, usize) = (4, 8);
/// Budget of rules that move to a separate tree.
const FAR_COPIES: u32 = 4;

/// Builds the tree of a part at `root`, which is an empty leaf at level `depth`.
pub fn build<P: Policy>(
    tree: &mut Tree,
    root: u32,
    space: &Space,
    part: Part,
    policy: &P,
    (limits, depth): (Limits, u32),
) {
    let allowed = limits.total.saturating_mul(part.rules.len());
    let budgets = vec![limits.copies.clamp(1, u32::MAX as usize) as u32; part.rules.len()];
    let mut builder = Builder { tree, space, policy, allowed, total: 0, open: Vec::new() };
    builder.open.push(Open { node: root, part, budgets, depth });
    while let Some(open) = builder.open.pop() {
        builder.node(open);
    }
}

/// A node that is to be built.
struct Open {
    node: u32,
    part: Part,
    /// Number of copies that each rule of the part may still have.
    budgets: Vec<u32>,
    depth: u32,
}

struct Builder<'a, P> {
    tree: &'a mut Tree,
    space: &'a Space,
    policy: &'a P,
    allowed: usize,
    /// Number of rules in all leaves so far.
    total: usize,
    open: Vec<Open>,
}

impl<P: Policy> Builder<'_, P> {
    fn node(&mut self, open: Open) {
        let rules = open.part.rules.len();
        let small = rules <= self.policy.leaf_rules() || open.depth + 1 >= MAX_DEPTH;
        let action =
            if small { Action::Leaf } else { self.policy.choose(self.space, &open.part, open.depth) };
        if let Action::SeparateTree { field, least } = action {
            let wide = |&rule: &u32| self.space.fixed_bits(rule, field) < u32::from(least);
            let wide: Vec<bool> = open.part.rules.iter().map(wide).collect();
            let both = wide.contains(&true) && wide.contains(&false);
            return if both { self.both(open, &wide) } else { self.leaf(open) };
        }
        let Some(step) = self.space.step(&open.part, &action) else { return self.leaf(open) };
        let reach: Vec<usize> =
            open.part.rules.iter().map(|&rule| self.space.reach(&open.part, &step, rule)).collect();
        let exhausted = self.total > self.allowed;
        // Where many rules reach nearly all children, they move to the separate tree at once.
        let half = step.children() / 2;
        let wide = reach.iter().filter(|&&reach| reach > half).count();
        let crowd = rules > 4 * self.policy.leaf_rules() && wide * 100 > rules * self.policy.wide_percent();
        let limit = |at: usize| {
            let budget = if exhausted { 1 } else { open.budgets[at] as usize };
            if crowd { half.min(budget) } else { budget }
        };
        // A leaf of a few blocks is faster than a chain of small separate trees.
        let blocks = if exhausted { CHAIN_OR_LEAF.1 } else { CHAIN_OR_LEAF.0 };
        let short = rules <= blocks * self.policy.leaf_rules();
        let far: Vec<bool> = (0..rules).map(|at| reach[at] > limit(at)).collect();
        let count = far.iter().filter(|&&far| far).count();
        if count == 0 {
            self.divide(open, &step);
        } else if count < rules && !short {
            self.both(open, &far);
        } else if exhausted || short {
            self.leaf(open);
        } else {
            // All rules reach far, so a separate tree would have all of them too.
            self.divide(open, &step);
        }
    }

    /// Moves the rules that reach far to a separate tree.
    fn both(&mut self, open: Open, far: &[bool]) {
        let Open { node, part, budgets, depth } = open;
        let mut sides = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for (at, &rule) in part.rules.iter().enumerate() {
            let (rules, left) = &mut sides[usize::from(!far[at])];
            rules.push(rule);
            left.push(if far[at] { budgets[at].max(FAR_COPIES) } else { budgets[at] });
        }
        let base = self.tree.set_inner(node, self.best(&part), Step::Both);
        for (side, (rules, budgets)) in sides.into_iter().enumerate() {
            let Part { region, known, .. } = part.clone();
            let part = self.space.shrink(Part { rules, region, known });
            self.open.push(Open { node: base + side as u32, part, budgets, depth: depth + 1 });
        }
    }

    /// Makes and queues the children of a step.
    fn divide(&mut self, open: Open, step: &Step) {
        let Open { node, part, budgets, depth } = &open;
        let mut left: Vec<Vec<u32>> = vec![Vec::new(); step.children()];
        let children = self.space.children(part, step, |at, cells| {
            let share = (budgets[at] as usize / cells.len().max(1)).max(1) as u32;
            cells.iter().for_each(|&cell| left[cell as usize].push(share));
        });
        // A step that puts every rule into every child divides nothing, and would be repeated for ever.
        if children.iter().all(|child| child.rules.len() == part.rules.len()) {
            return self.leaf(open);
        }
        let base = self.tree.set_inner(*node, self.best(part), *step);
        for (at, (part, budgets)) in children.into_iter().zip(left).enumerate() {
            if !part.rules.is_empty() {
                self.open.push(Open { node: base + at as u32, part, budgets, depth: depth + 1 });
            }
        }
    }

    /// The least precedence value of a part.
    fn best(&self, part: &Part) -> u32 {
        part.rules.first().map_or(u32::MAX, |&rule| self.space.entry(rule).precedence())
    }

    fn leaf(&mut self, open: Open) {
        let rules = &open.part.rules;
        self.total += rules.len();
        self.tree.set_leaf(open.node, rules.iter().map(|&rule| *self.space.entry(rule)));
    }
}
