//! Grows a tree: the decision process in which the policy learns.
//!
//! A node is a state. An action replaces it by its children, and each child is a problem of its own. The cost
//! of a node follows from the costs of its children (the paper's branching decision process), so every decision
//! is judged only by the subtree below it, once that is complete.

use std::collections::HashMap;

use super::action::{
    ANY_PORTS, Action, Categories, MAX_BITS, Ports, Windows, categories, category, clipped, fixed_bits_of,
    narrowed, total_bits,
};
use super::candidate::{PARTED_MAX, PARTS_MAX};
use super::space::{Column, Space};
use crate::Field;
use crate::tree::entry::LANES;
use crate::tree::node::Window;

/// Nodes of at most this many rules are always leaves: a leaf compares them all at once.
pub(super) const FEW: usize = LANES;
/// Most copies in a tree, as a multiple of the rules.
pub(super) const COPIES: usize = 12;
/// Most levels, partitions included.
pub(super) const MAX_DEPTH: u32 = 24;

/// Nanoseconds that the steps of a look-up take: beginning a tree; a node; a block of rules in a leaf.
const TREE_NS: f32 = 3.0;
const NODE_NS: f32 = 4.0;
const BLOCK_NS: f32 = 6.0;
/// Octets of a node and of a block.
const NODE_BYTES: f32 = 16.0;
const BLOCK_BYTES: f32 = 512.0;

/// A node that is to be decided.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Indices of its rules, ascending, which is in order of rank.
    pub rules: Vec<u32>,
    /// The rules whose keys come to this node.
    pub keys: Vec<u32>,
    /// The node's box in the port dimensions.
    pub ports: Ports,
    /// Bits that cuts above have used, by field of [`Field::ALL`]: using them again would divide nothing.
    pub taken: [u32; Field::ALL.len()],
    pub depth: u32,
    /// Number of nodes of the final tree for which this one stands: equal nodes are grown once, but stored
    /// apart.
    pub times: u32,
    /// Number of partitions above, within the tree.
    pub parted: u8,
    /// Whether all nodes above are partitions, so that this one may be a partition too.
    pub top: bool,
}

/// No bits of any field are used.
pub(super) const UNTAKEN: [u32; Field::ALL.len()] = [0; Field::ALL.len()];

impl Node {
    /// A node with all rules of the space, at level `depth`.
    pub fn whole(space: &Space, taken: [u32; Field::ALL.len()], depth: u32, top: bool) -> Node {
        let all: Vec<u32> = (0..space.rules as u32).collect();
        let mut node =
            Node { rules: all.clone(), keys: all, ports: ANY_PORTS, taken, depth, times: 1, parted: 0, top };
        node.shrink(space);
        node
    }

    /// Shrinks the ports to those that the rules cover.
    fn shrink(&mut self, space: &Space) {
        for column in &space.columns {
            let Some(side) = column.port else { continue };
            let clip = |&rule: &u32| clipped(column, rule as usize, &self.ports);
            let hull = self.rules.iter().map(clip).map(|extent| (extent.first, extent.last));
            if let Some(hull) = hull.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) {
                self.ports[side] = hull;
            }
        }
    }
}

/// Cost of a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    /// Average nanoseconds over the keys of the node.
    pub mean: f32,
    /// Nanoseconds on the slowest path.
    pub worst: f32,
    /// Octets of memory.
    pub bytes: f32,
}

/// How a partition divides rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Parting {
    Simple { field: u8, least: u8 },
    Large(Categories),
}

impl Parting {
    /// The part of a rule, which fixes `fixed_bits(field)` bits of a field.
    pub fn part(&self, fixed_bits: impl Fn(u8) -> u32) -> usize {
        match self {
            Parting::Simple { field, least } => usize::from(fixed_bits(*field) < u32::from(*least)),
            Parting::Large(map) => usize::from(map[category(fixed_bits)]),
        }
    }
}

/// A hash of a node's rules: equal rule sets get the same decision.
pub(super) fn digest(rules: &[u32]) -> u64 {
    let fold =
        |sum: u64, &rule: &u32| (sum.rotate_left(5) ^ u64::from(rule)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    rules.iter().fold(rules.len() as u64, fold)
}

/// The decisions of a tree in the order in which they were taken; nodes are named by [`digest`].
pub(super) type Decisions = Vec<(u64, Action)>;

/// The source of the actions: the policy, a heuristic, or a file.
pub(super) trait Decide {
    /// The action for `node`; `parts` is the number of parts so far. An action that is not possible there
    /// becomes a leaf. The returned number is passed to [`Decide::outcome`].
    fn decide(&mut self, space: &Space, node: &Node, parts: usize) -> (Action, usize);

    /// Reports the cost of the subtree that followed from a decision about `rules` rules.
    fn outcome(&mut self, ticket: usize, rules: usize, cost: &Cost) {
        let _ = (ticket, rules, cost);
    }
}

/// Grows one tree.
pub(super) struct Grower<'a, D> {
    space: &'a Space,
    decide: &'a mut D,
    /// Number of rules that leaves of this tree may still take, copies included: limits the cost of a bad
    /// policy.
    room: usize,
    parts: usize,
    decisions: Decisions,
}

impl<'a, D: Decide> Grower<'a, D> {
    /// Grows the tree of all rules of the space.
    pub fn grow(space: &'a Space, decide: &'a mut D) -> (Decisions, Cost) {
        let mut grower = Grower { space, decide, room: 0, parts: 1, decisions: Vec::new() };
        let cost = grower.node(Node::whole(space, UNTAKEN, 0, true));
        (grower.decisions, cost)
    }

    fn node(&mut self, mut node: Node) -> Cost {
        node.shrink(self.space);
        let held = node.rules.len();
        if node.top {
            self.room = COPIES * held;
        }
        if held <= FEW {
            return self.leaf(&node);
        }
        if node.depth >= MAX_DEPTH || held * node.times as usize > self.room {
            self.decisions.push((digest(&node.rules), Action::Leaf));
            return self.leaf(&node);
        }
        let (action, ticket) = self.decide.decide(self.space, &node, self.parts);
        self.decisions.push((digest(&node.rules), action));
        let cost = match action {
            Action::Leaf => self.leaf(&node),
            Action::Cut(windows) => self.cut(node, windows),
            Action::Simple { field, least } => self.part(node, Parting::Simple { field, least }, 2),
            Action::Large => {
                let rules = node.rules.iter().copied();
                let (map, parts) =
                    categories(rules, |rule, field| fixed_bits_of(self.space, field, rule as usize));
                self.part(node, Parting::Large(map), parts)
            }
        };
        self.decide.outcome(ticket, held, &cost);
        cost
    }

    fn leaf(&mut self, node: &Node) -> Cost {
        self.room = self.room.saturating_sub(node.rules.len() * node.times as usize);
        let blocks = |rules: usize| rules.div_ceil(LANES) as f32;
        let held = blocks(node.rules.len());
        // A key stops at its own rule at the latest. A key of a rule in another part passes all of them.
        let read = |key: &u32| node.rules.binary_search(key).map_or(held, |at| blocks(at + 1));
        let sum: f32 = node.keys.iter().map(read).sum();
        let mean = if node.keys.is_empty() { held } else { sum / node.keys.len() as f32 };
        let root = if node.top { TREE_NS } else { 0.0 };
        Cost { mean: root + BLOCK_NS * mean, worst: root + BLOCK_NS * held, bytes: BLOCK_BYTES * held }
    }

    fn part(&mut self, node: Node, parting: Parting, parts: usize) -> Cost {
        let allowed = if node.top { self.parts + parts - 1 <= PARTS_MAX } else { node.parted < PARTED_MAX };
        if !allowed {
            return self.leaf(&node);
        }
        let mut total = Cost::default();
        let mut parted = 0;
        if node.top {
            self.parts += parts - 1;
        } else {
            // The node that sends keys to both of its children.
            (total.mean, total.worst, total.bytes) = (NODE_NS, NODE_NS, NODE_BYTES * parts as f32);
            parted = node.parted + 1;
        }
        let mut held = vec![Vec::new(); parts];
        for &rule in &node.rules {
            let part = parting.part(|field| fixed_bits_of(self.space, field, rule as usize));
            held[part.min(parts - 1)].push(rule);
        }
        for rules in held {
            let child = Node { rules, parted, depth: node.depth + 1, ..node.clone() };
            let cost = self.node(child);
            total.mean += cost.mean;
            total.worst += cost.worst;
            total.bytes += cost.bytes;
        }
        total
    }

    fn cut(&mut self, node: Node, windows: Windows) -> Cost {
        let mut columns = Vec::with_capacity(windows.len());
        let mut taken = node.taken;
        for window in windows.iter().filter(|window| window.bits > 0) {
            let Some(column) = self.space.column(window.field) else { return self.leaf(&node) };
            columns.push((*window, column));
            taken[usize::from(window.field)] |= window_bits(window);
        }
        let places = 1usize << total_bits(&windows).min(MAX_BITS.into());
        let mut held: Vec<Vec<u32>> = vec![Vec::new(); places];
        let mut copies = 0;
        let mut cells = Vec::new();
        for &rule in &node.rules {
            reach(&columns, rule, &node.ports, &mut cells);
            copies += cells.len();
            if copies > self.room {
                return self.leaf(&node);
            }
            cells.iter().for_each(|&cell| held[cell].push(rule));
        }
        let mut keys: Vec<Vec<u32>> = vec![Vec::new(); places];
        for &key in &node.keys {
            keys[place(&columns, key)].push(key);
        }
        let boxes = |child: usize| {
            let (mut ports, mut child) = (node.ports, child as u32);
            for (window, column) in columns.iter().rev() {
                if let Some(side) = column.port {
                    let cell = child & ((1 << window.bits) - 1);
                    ports = narrowed(&ports, side, window.shift, window.bits, cell);
                }
                child >>= window.bits;
            }
            ports
        };
        let merged = merge(held, keys, boxes);
        let mut total = Cost { bytes: NODE_BYTES * places as f32, ..Cost::default() };
        let mut weights = 0.0;
        for twins in merged {
            // A child without keys may still get packets if it has rules.
            let weight = twins.keys.len() as f32 + if twins.rules.is_empty() { 0.001 } else { 0.1 };
            let Twins { rules, keys, ports, count } = twins;
            let times = node.times.saturating_mul(count);
            let depth = node.depth + 1;
            let cost =
                self.node(Node { rules, keys, ports, taken, depth, times, parted: node.parted, top: false });
            weights += weight;
            total.mean += weight * cost.mean;
            total.worst = total.worst.max(cost.worst);
            total.bytes += cost.bytes * count as f32;
        }
        let step = if node.top { TREE_NS + NODE_NS } else { NODE_NS };
        total.mean = step + total.mean / weights;
        total.worst += step;
        total
    }
}

/// Mask of the field's bits that a window uses.
pub(super) fn window_bits(window: &Window) -> u32 {
    ((1 << window.bits) - 1) << window.shift
}

/// Finds the children that a rule reaches.
fn reach(columns: &[(Window, &Column)], rule: u32, ports: &Ports, cells: &mut Vec<usize>) {
    cells.clear();
    cells.push(0);
    for (window, column) in columns {
        let before = cells.len();
        let extent = clipped(column, rule as usize, ports);
        extent.cut(window.shift.into(), window.bits.into(), |cell, _| {
            for at in 0..before {
                cells.push(cells[at] << window.bits | cell as usize);
            }
        });
        cells.drain(..before);
    }
}

/// The child to which a key goes.
pub(super) fn place(columns: &[(Window, &Column)], key: u32) -> usize {
    columns.iter().fold(0, |child, (window, column)| {
        let bits = column.keys[key as usize] >> window.shift & ((1 << window.bits) - 1);
        child << window.bits | bits as usize
    })
}

/// Children of a cut that have the same rules.
struct Twins {
    rules: Vec<u32>,
    keys: Vec<u32>,
    /// A box around the boxes of all of them.
    ports: Ports,
    count: u32,
}

/// Merges children with the same rules (as HiCuts does), so that each decision is made once.
fn merge(held: Vec<Vec<u32>>, keys: Vec<Vec<u32>>, boxes: impl Fn(usize) -> Ports) -> Vec<Twins> {
    let mut merged: Vec<Twins> = Vec::new();
    let mut known: HashMap<u64, usize> = HashMap::new();
    for (at, (rules, keys)) in held.into_iter().zip(keys).enumerate() {
        let ports = boxes(at);
        let place = *known.entry(digest(&rules)).or_insert(merged.len());
        match merged.get_mut(place) {
            Some(twins) if twins.rules == rules => {
                twins.keys.extend(keys);
                twins.count += 1;
                for (held, new) in twins.ports.iter_mut().zip(ports) {
                    *held = (held.0.min(new.0), held.1.max(new.1));
                }
            }
            _ => merged.push(Twins { rules, keys, ports, count: 1 }),
        }
    }
    merged
}
