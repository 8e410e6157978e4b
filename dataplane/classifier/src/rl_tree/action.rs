//! The ways to divide a node of the tree, and their effects.
//!
//! ```text
//! action        children                           of the paper
//! leaf          none                               its fixed leaf threshold, here a decision
//! cut           2^b: b bits of one to three fields cut dimension × number of equal cuts
//! simple f t    rules that fix ≥ t bits, and < t   simple partition by a coverage threshold, anywhere in a tree
//! large         rules by the fields that are wide     EffiCuts partition
//! ```
//! A cut uses a window of bits. The highest undecided bits give the equal cuts of a box that the paper has. A
//! lower window, where the rules differ most, skips the bits that they have in common. A look-up pays one shift
//! and mask for either. Ports, whose rules are ranges, are cut at the highest bits only. Unlike in the paper,
//! one cut may use bits of up to three fields, as nodes of [`tree`](crate::tree) can (and as in HyperCuts).

use super::space::{Column, Space};
use crate::Field;
use crate::tree::node::{Extent, MAX_CUTS, Window};

/// Fields of the 5-tuple; the first of [`Field::ALL`].
const TUPLE: u8 = 5;
/// Categories of the EffiCuts partition: one bit per field of the 5-tuple.
const CATEGORIES: usize = 1 << TUPLE;
/// Most parts of an EffiCuts partition: smaller categories share the last one. Every part is one more tree to
/// search.
const LARGE_PARTS: usize = 4;
/// Most bits of a cut: 1024 children.
pub(super) const MAX_BITS: u8 = 10;

/// Octets of an action in a model file.
pub(super) const ACTION_BYTES: usize = 10;

/// One action. Which ones are useful depends on the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Makes the node a leaf.
    Leaf,
    /// Cuts by bits of fields. Unused windows have no bits and come last.
    Cut(Windows),
    /// Separates rules that fix at least `least` bits of the field from those that fix fewer.
    Simple { field: u8, least: u8 },
    /// Separates rules by the set of fields in which they are wide.
    Large,
}

/// Bits of fields; the first field gives the upper bits of a child's number.
pub(super) type Windows = [Window; MAX_CUTS];

/// Number of bits of all windows.
pub(super) fn total_bits(windows: &Windows) -> u32 {
    windows.iter().map(|window| u32::from(window.bits)).sum()
}

/// The part to which each category of rules belongs.
pub(super) type Categories = [u8; CATEGORIES];

/// The port ranges that the rules of a node cover, as `tree::build` keeps them for all dimensions.
pub(super) type Ports = [(u32, u32); 2];

/// Covers all ports.
pub(super) const ANY_PORTS: Ports = [(0, 0xFFFF); 2];

/// The part of an extent that lies in a node. Only ports are clipped: a cut of another field divides no rule's
/// mask.
#[inline]
pub(super) fn clipped(column: &Column, rule: usize, ports: &Ports) -> Extent {
    let extent = column.extents[rule];
    match column.port {
        Some(side) => {
            let (first, last) = ports[side];
            let (first, last) = (extent.first.max(first), extent.last.min(last));
            Extent { first: first.min(last), last, ..extent }
        }
        None => extent,
    }
}

/// Calls `each` with ranges of children of a cut that a rule reaches. For masks these are the children of
/// [`Extent::cut`], but reported as ranges, for counting. The region of the other fields is ignored.
#[inline]
pub(super) fn cells(port: bool, extent: &Extent, shift: u8, bits: u8, mut each: impl FnMut(u32, u32)) {
    let window = (1u32 << bits) - 1;
    if port {
        let (first, last) = (extent.first >> shift, extent.last >> shift);
        let (start, more) = (first & window, last - first);
        if more >= window {
            each(0, window);
        } else if start + more <= window {
            each(start, start + more);
        } else {
            each(start, window);
            each(0, start + more - window - 1);
        }
        return;
    }
    let (mask, value) = (extent.mask >> shift & window, extent.value >> shift & window);
    let free = !mask & window;
    if free & (free + 1) == 0 {
        return each(value, value | free);
    }
    let mut bits = 0u32;
    loop {
        each(value | bits, value | bits);
        bits = bits.wrapping_sub(free) & free;
        if bits == 0 {
            return;
        }
    }
}

/// The ports of one child of a cut that uses the highest bits that differ.
pub(super) fn narrowed(ports: &Ports, side: usize, shift: u8, bits: u8, child: u32) -> Ports {
    let (first, last) = ports[side];
    let mut narrowed = *ports;
    if (first ^ last) >> (shift + bits) == 0 {
        let start = first >> (shift + bits) << (shift + bits) | child << shift;
        narrowed[side] = (first.max(start), last.min(start | ((1 << shift) - 1)));
    }
    narrowed
}

/// Category of a rule: the set of fields of the 5-tuple in which it is wide. In EffiCuts a rule is wide in a
/// field if it covers half of it, and in an address if it covers a twentieth: if it fixes fewer than five bits.
pub(super) fn category(fixed_bits: impl Fn(u8) -> u32) -> usize {
    (0..TUPLE).filter(|&field| fixed_bits(field) < wide_below(field)).map(|field| 1 << field).sum()
}

fn wide_below(field: u8) -> u32 {
    let field = Field::ALL[usize::from(field)];
    if field == Field::SOURCE || field == Field::DESTINATION { 5 } else { 1 }
}

/// Number of bits that a rule fixes of a field; zero if the field is no column.
pub(super) fn fixed_bits_of(space: &Space, field: u8, rule: usize) -> u32 {
    space.column(field).map_or(0, |column| column.fixed_bits[rule])
}

/// Assigns categories to parts: the largest categories get parts of their own, in order of size. `fixed_bits(rule,
/// field)` is the number of bits that a rule fixes.
pub(super) fn categories(
    rules: impl Iterator<Item = u32>,
    fixed_bits: impl Fn(u32, u8) -> u32,
) -> (Categories, usize) {
    let mut counts = [0usize; CATEGORIES];
    rules.for_each(|rule| counts[category(|field| fixed_bits(rule, field))] += 1);
    let mut order: Vec<usize> = (0..CATEGORIES).filter(|&at| counts[at] > 0).collect();
    order.sort_by_key(|&at| (usize::MAX - counts[at], at));
    let parts = order.len().clamp(1, LARGE_PARTS);
    let mut map = [parts as u8 - 1; CATEGORIES];
    for (part, &at) in order.iter().enumerate() {
        map[at] = part.min(parts - 1) as u8;
    }
    (map, parts)
}

impl Action {
    /// The action as in a model file.
    pub fn to_bytes(self) -> [u8; ACTION_BYTES] {
        let mut bytes = [0; ACTION_BYTES];
        match self {
            Action::Leaf => {}
            Action::Cut(windows) => {
                bytes[0] = 1;
                for (bytes, window) in bytes[1..].chunks_mut(3).zip(windows) {
                    bytes.copy_from_slice(&[window.field, window.shift, window.bits]);
                }
            }
            Action::Simple { field, least } => bytes[..3].copy_from_slice(&[2, field, least]),
            Action::Large => bytes[0] = 3,
        }
        bytes
    }

    /// Reads an action of a model file; `None` when the octets are no possible action.
    pub fn from_bytes(bytes: [u8; ACTION_BYTES]) -> Option<Action> {
        let width = |field: u8| Field::ALL.get(usize::from(field)).map(|field| field.width() as u8);
        let rest = &bytes[1..];
        match bytes[0] {
            0 if rest == [0; 9] => Some(Action::Leaf),
            1 => {
                let mut windows = [Window::default(); MAX_CUTS];
                for (window, bytes) in windows.iter_mut().zip(rest.chunks(3)) {
                    *window = Window { field: bytes[0], shift: bytes[1], bits: bytes[2] };
                    if window.shift.checked_add(window.bits)? > width(window.field)? {
                        return None;
                    }
                }
                (1..=u32::from(MAX_BITS)).contains(&total_bits(&windows)).then_some(Action::Cut(windows))
            }
            2 if rest[2..] == [0; 7] => {
                let (field, least) = (rest[0], rest[1]);
                (1..=width(field)?).contains(&least).then_some(Action::Simple { field, least })
            }
            3 if rest == [0; 9] => Some(Action::Large),
            _ => None,
        }
    }
}
