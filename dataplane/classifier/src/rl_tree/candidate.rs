//! The actions to consider at a node, and the numbers about each that the policy gets as input.
//!
//! The paper's state is the box of a node in binary and its partition history. A policy with that input learns
//! where the rules of *one* set are. Here the input describes what an action would do: how many rules the
//! children hold, how many copies that takes, how many bits of the box are left, what the partitions above did.
//! The same small network scores every action. So the number of fields does not matter, and what the policy
//! learns on one rule set is valid for others.

use super::action::{Action, Ports, Windows, categories, category, cells, clipped, fixed_bits_of};
use super::grow::{Node, place};
use super::space::{Column, Space};
use crate::tree::node::{Extent, Window};

/// Number of inputs about the node, equal for all its candidates.
pub(super) const NODE_INPUTS: usize = 10;
/// Number of inputs about one action.
const ACTION_INPUTS: usize = KINDS + 9;
/// Kinds of actions: leaf, best window, highest window, several fields, and the two partitions.
const KINDS: usize = 6;
/// Number of inputs in all.
pub(super) const INPUTS: usize = NODE_INPUTS + ACTION_INPUTS;
/// Nodes of at most this many rules may be leaves by choice.
pub(super) const LEAF_MAX: f32 = 64.0;

/// Most rules and keys from which the inputs are computed. Enough for shares, and bounds the work per node.
pub(super) const SAMPLE: usize = 256;
/// Most fields for which cuts are considered: those that separate best.
const FIELDS: usize = 6;
/// Limit for the rules in all children of a cut, as a multiple of the rules in the node.
const COPIES: f32 = 8.0;
/// Numbers of bits for cuts of one field.
const SIZES: [u8; 6] = [1, 2, 3, 4, 6, 8];
/// Numbers of bits for cuts of the two or three fields that separate best, the best field first.
const JOINT: [[u8; 3]; 8] =
    [[1, 1, 0], [2, 1, 0], [2, 2, 0], [3, 3, 0], [4, 4, 0], [1, 1, 1], [2, 2, 2], [4, 3, 3]];
/// Most partitions above a leaf, without those of whole trees.
pub(super) const PARTED_MAX: u8 = 3;
/// Most parts of one tree; a look-up visits all of them.
pub(super) const PARTS_MAX: usize = 8;

/// An action and its inputs for the policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub action: Action,
    /// Average number of rules that a key meets afterwards.
    pub meets: f32,
    /// Rules in all children, as a multiple of the rules in the node.
    pub copies: f32,
    pub inputs: [f32; INPUTS],
}

/// How often a bit is one and zero among the sampled rules, and how well it separates them.
#[derive(Clone, Copy, Default)]
struct Bit {
    gain: f32,
    wild: f32,
}

/// Counts of 32 bit positions at once: plane `p` holds bit `p` of each count.
#[derive(Default)]
struct Counts([u32; 9]);

impl Counts {
    #[inline]
    fn add(&mut self, mut carry: u32) {
        for plane in &mut self.0 {
            let next = *plane & carry;
            *plane ^= carry;
            carry = next;
            if carry == 0 {
                return;
            }
        }
    }

    fn get(&self, bit: u32) -> u32 {
        self.0.iter().enumerate().map(|(plane, bits)| (bits >> bit & 1) << plane).sum()
    }
}

/// [`Bit::gain`] of a bit that is already used: no window with this bit is good.
const TAKEN: f32 = -1e6;

/// Effect of a cut.
struct Effect {
    meets: f32,
    most: f32,
    copies: f32,
    empty: f32,
}

/// Finds candidates. Keeps its buffers from node to node.
#[derive(Default)]
pub(super) struct CandidateFinder {
    /// The candidates of the node examined last.
    pub candidates: Vec<Candidate>,
    /// The inputs about that node.
    pub node: [f32; NODE_INPUTS],
    rules: Vec<u32>,
    keys: Vec<u32>,
    /// Number of rules of the node, also when only a sample is examined.
    count: f32,
    /// Buffers of [`CandidateFinder::effect`]: differences of the number of rules from child to child, and keys per
    /// child.
    steps: Vec<i32>,
    held: Vec<u32>,
}

/// At most [`SAMPLE`] elements, evenly spaced.
fn thin(from: &[u32], to: &mut Vec<u32>) {
    to.clear();
    let step = from.len().div_ceil(SAMPLE).max(1);
    to.extend(from.iter().step_by(step));
}

/// Counts a rule in the children that it reaches, from `child` on, as differences from child to child.
fn step_cells(columns: &[(Window, &Column)], rule: usize, ports: &Ports, child: usize, steps: &mut [i32]) {
    let Some(((window, column), rest)) = columns.split_first() else { return };
    let extent = clipped(column, rule, ports);
    let child = child << window.bits;
    cells(column.port.is_some(), &extent, window.shift, window.bits, |first, last| {
        if rest.is_empty() {
            steps[child | first as usize] += 1;
            steps[(child | last as usize) + 1] -= 1;
        } else {
            (first..=last).for_each(|cell| step_cells(rest, rule, ports, child | cell as usize, steps));
        }
    });
}

/// The window of `size` bits that separates best, and the highest window that separates. Ports have only the
/// latter, as ranges would wrap around in a lower one.
fn windows(node: &Node, column: &Column, bits: &[Bit; 32], size: u8) -> Option<(Option<Window>, Window)> {
    let differ = column.port.map(|side| 32 - (node.ports[side].0 ^ node.ports[side].1).leading_zeros() as u8);
    let top = || (0..32u8).rev().find(|&at| bits[usize::from(at)].gain > 0.0);
    let end = differ.or_else(|| top().map(|top| top + 1))?;
    if size > end {
        return None;
    }
    let window = |shift| Window { field: column.number, shift, bits: size };
    if column.port.is_some() {
        return Some((None, window(end - size)));
    }
    let best =
        (0..=end - size).rev().max_by(|&a, &b| gain(bits, &window(a)).total_cmp(&gain(bits, &window(b))));
    let best = best.map(window).filter(|best| gain(bits, best) > 0.0)?;
    // The bits below the highest may be used already: then take the next lower window that is free.
    let highest = (0..=end - size).rev().map(window).find(|window| gain(bits, window) > 0.0);
    Some((Some(best), highest.unwrap_or(best)))
}

/// Gain of all bits of a window.
fn gain(bits: &[Bit; 32], window: &Window) -> f32 {
    bits[usize::from(window.shift)..usize::from(window.shift + window.bits)].iter().map(|bit| bit.gain).sum()
}

fn log(x: f32) -> f32 {
    (1.0 + x).ln() / 8.0
}

impl CandidateFinder {
    /// Lists the candidates for `node`. `parts` is the number of parts of the tree so far.
    pub fn list(&mut self, space: &Space, node: &Node, parts: usize) {
        self.candidates.clear();
        thin(&node.rules, &mut self.rules);
        thin(&node.keys, &mut self.keys);
        self.count = node.rules.len() as f32 * space.weight;
        let mut fields: Vec<(f32, &Column, [Bit; 32])> = Vec::new();
        for column in &space.columns {
            let bits = self.bits(column, node.taken[usize::from(column.number)]);
            let least = if self.ranges_differ(column, node) { 0.05 } else { 0.0 };
            let best = bits.iter().map(|bit| bit.gain).fold(least, f32::max);
            if best > 0.0 {
                fields.push((best, column, bits));
            }
        }
        fields.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.describe(space, node, parts, &fields);
        let count = self.count;
        if count <= LEAF_MAX {
            self.push(Action::Leaf, 0, [count, count, 1.0, 0.0], [0.0; 4]);
        }
        for (_, column, bits) in fields.iter().take(FIELDS) {
            self.cuts(node, column, bits);
        }
        self.joint_cuts(node, &fields);
        let allowed = if node.top { parts < PARTS_MAX } else { node.parted < PARTED_MAX };
        if allowed && count > LEAF_MAX {
            self.partitions(space, node.top, parts);
        }
    }

    /// The gain of every bit of the column: the logarithm of the factor by which a key meets fewer rules after
    /// a cut at it.
    fn bits(&self, column: &Column, taken: u32) -> [Bit; 32] {
        let (mut ones, mut zeros) = (Counts::default(), Counts::default());
        for &rule in &self.rules {
            let Extent { mask, value, .. } = column.extents[rule as usize];
            ones.add(value);
            zeros.add(mask & !value);
        }
        let mut key_ones = Counts::default();
        for &key in &self.keys {
            key_ones.add(column.keys[key as usize]);
        }
        let differ = |bit: u32| (1..self.keys.len() as u32).contains(&key_ones.get(bit));
        let total = self.rules.len() as f32;
        let mut bits = [Bit::default(); 32];
        for (at, bit) in (0..).zip(&mut bits[..column.field.width() as usize]) {
            let (ones, zeros) = (ones.get(at) as f32, zeros.get(at) as f32);
            let known = ones + zeros;
            bit.wild = total - known;
            if taken >> at & 1 != 0 {
                bit.gain = TAKEN;
            } else if ones > 0.0 && zeros > 0.0 || known > 0.0 && differ(at) {
                let meets = bit.wild + (ones * ones + zeros * zeros) / known;
                // A bit that has one value in all rules that fix it, while other rules leave it open, still
                // separates keys. It is worth little, but more than nothing.
                bit.gain = (total / meets).ln().max(0.01 * known / total);
            }
            bit.wild /= total;
        }
        bits
    }

    /// Whether the rules have different port ranges, which may not show in the ranges' common bits.
    fn ranges_differ(&self, column: &Column, node: &Node) -> bool {
        let Some(side) = column.port else { return false };
        let range = |rule: u32| clipped(column, rule as usize, &node.ports);
        self.rules.iter().any(|&rule| (range(rule).first, range(rule).last) != node.ports[side])
    }

    fn describe(&mut self, space: &Space, node: &Node, parts: usize, fields: &[(f32, &Column, [Bit; 32])]) {
        let best = fields.first().map_or(0.0, |field| field.0);
        let wild = |bits: &[Bit; 32]| {
            let best = bits.iter().max_by(|a, b| a.gain.total_cmp(&b.gain));
            best.map_or(1.0, |bit| bit.wild)
        };
        let tamest = fields.iter().map(|(_, _, bits)| wild(bits)).fold(1.0, f32::min);
        let fixed_bits: u32 = self.rules.iter().map(|&rule| fixed_bits_of(space, 0, rule as usize)).sum();
        let room = |(low, high): (u32, u32)| (high - low + 1).ilog2() as f32 / 16.0;
        self.node = [
            log(self.count),
            log(node.keys.len() as f32 * space.weight),
            node.depth as f32 / 8.0,
            f32::from(u8::from(node.top)),
            if node.top {
                parts as f32 / PARTS_MAX as f32
            } else {
                f32::from(node.parted) / f32::from(PARTED_MAX)
            },
            best,
            fields.len() as f32 / 8.0,
            tamest,
            fixed_bits as f32 / (32 * self.rules.len().max(1)) as f32,
            room(node.ports[0]) + room(node.ports[1]),
        ];
    }

    /// Cuts of one field. For each size: the equal cuts of the box, and the window that separates best.
    fn cuts(&mut self, node: &Node, column: &Column, bits: &[Bit; 32]) {
        for size in SIZES {
            let Some((best, highest)) = windows(node, column, bits, size) else { break };
            if let Some(best) = best {
                self.cut(node, &[(best, column, bits)], 1);
            }
            if best != Some(highest) {
                self.cut(node, &[(highest, column, bits)], 2);
            }
        }
    }

    /// Cuts of several fields at once.
    fn joint_cuts(&mut self, node: &Node, fields: &[(f32, &Column, [Bit; 32])]) {
        for sizes in JOINT {
            let parts = sizes.iter().zip(fields).filter(|(size, _)| **size > 0);
            let parts = parts.map_while(|(&size, (_, column, bits))| {
                let (best, highest) = windows(node, column, bits, size)?;
                Some((best.unwrap_or(highest), *column, bits))
            });
            let parts: Vec<_> = parts.collect();
            if parts.len() == sizes.iter().filter(|size| **size > 0).count() {
                self.cut(node, &parts, 3);
            }
        }
    }

    fn cut(&mut self, node: &Node, parts: &[(Window, &Column, &[Bit; 32])], kind: usize) {
        let size: u8 = parts.iter().map(|(window, ..)| window.bits).sum();
        let children = f32::from(1u16 << size);
        if size > 1 && children > 4.0 * self.count {
            return;
        }
        let columns: Vec<(Window, &Column)> =
            parts.iter().map(|(window, column, _)| (*window, *column)).collect();
        let effect = self.effect(node, &columns, size);
        if effect.meets >= 0.98 * self.count || effect.copies > COPIES {
            return;
        }
        let gain: f32 = parts.iter().map(|(window, _, bits)| gain(bits, window)).sum();
        let ports = columns.iter().filter(|(_, column)| column.port.is_some()).count();
        let more = [f32::from(size) / 8.0, effect.empty, ports as f32, gain / f32::from(size)];
        let mut windows = Windows::default();
        windows.iter_mut().zip(&columns).for_each(|(to, (window, _))| *to = *window);
        self.push(Action::Cut(windows), kind, [effect.meets, effect.most, effect.copies, children], more);
    }

    /// Counts rules and keys of each child.
    fn effect(&mut self, node: &Node, columns: &[(Window, &Column)], size: u8) -> Effect {
        let children = 1usize << size;
        self.steps.clear();
        self.steps.resize(children + 1, 0);
        for &rule in &self.rules {
            step_cells(columns, rule as usize, &node.ports, 0, &mut self.steps);
        }
        self.held.clear();
        self.held.resize(children, 0);
        for &key in &self.keys {
            self.held[place(columns, key)] += 1;
        }
        let (mut running, mut sum, mut most, mut empty, mut met) = (0i32, 0i32, 0i32, 0u32, 0f32);
        for (step, keys) in self.steps.iter().zip(&self.held) {
            running += step;
            sum += running;
            most = most.max(running);
            empty += u32::from(running == 0);
            met += *keys as f32 * running as f32;
        }
        let seen = self.rules.len().max(1) as f32;
        let scale = self.count / seen;
        let spread = sum as f32 / children as f32;
        let meets = if self.keys.is_empty() { spread } else { met / self.keys.len() as f32 };
        Effect {
            meets: meets * scale,
            most: most as f32 * scale,
            copies: sum as f32 / seen,
            empty: empty as f32 / children as f32,
        }
    }

    /// Partitions: by each field of the 5-tuple at three thresholds, and the EffiCuts partition.
    fn partitions(&mut self, space: &Space, top: bool, parts: usize) {
        let count = self.count;
        for column in space.columns.iter().filter(|column| column.number < 5) {
            let width = column.field.width() as u8;
            for least in [1, width / 2, width] {
                let asking = |rule: &&u32| column.fixed_bits[**rule as usize] >= u32::from(least);
                let first = self.rules.iter().filter(asking).count();
                let share = first as f32 / self.rules.len().max(1) as f32;
                if share <= 0.02 || share >= 0.98 {
                    continue;
                }
                let more = [f32::from(least) / f32::from(width), share, 0.0, f32::from(width) / 32.0];
                let action = Action::Simple { field: column.number, least };
                self.push(action, 4, [count * share.max(1.0 - share), count * share, 1.0, 2.0], more);
            }
        }
        let (map, found) =
            categories(self.rules.iter().copied(), |rule, field| fixed_bits_of(space, field, rule as usize));
        if top && found > 1 && parts + found - 1 <= PARTS_MAX {
            let mut sizes = [0usize; 8];
            for &rule in &self.rules {
                let at = category(|field| fixed_bits_of(space, field, rule as usize));
                sizes[usize::from(map[at]) % 8] += 1;
            }
            let most = sizes.iter().max().copied().unwrap_or(0) as f32;
            let share = most / self.rules.len().max(1) as f32;
            let size = found as f32;
            self.push(
                Action::Large,
                5,
                [count * share, count * share, 1.0, size],
                [size / 8.0, share, 0.0, 0.0],
            );
        }
    }

    /// Adds a candidate. `effect` is: rules met, rules in the fullest child, copies, children. `more` is four
    /// further inputs.
    fn push(&mut self, action: Action, kind: usize, effect: [f32; 4], more: [f32; 4]) {
        let [meets, most, copies, children] = effect;
        let mut inputs = [0.0; INPUTS];
        inputs[..NODE_INPUTS].copy_from_slice(&self.node);
        let own = &mut inputs[NODE_INPUTS..];
        own[kind] = 1.0;
        own[KINDS] = log(meets);
        own[KINDS + 1] = log(most);
        own[KINDS + 2] = copies.max(0.01).ln() / 2.0;
        own[KINDS + 3] = log(children);
        own[KINDS + 4] = own[KINDS] - self.node[0];
        own[KINDS + 5..].copy_from_slice(&more);
        self.candidates.push(Candidate { action, meets, copies, inputs });
    }
}
