//! The rules as decisions need them: one column per field that some rule uses, rules in order of rank.
//!
//! Every rule comes with one random key that it matches. The expected time of a look-up is computed from the
//! paths of these keys, as with ClassBench traces, so no traffic is needed.

use super::rng::Rng;
use crate::Field;
use crate::tree::build::{self, Part};
use crate::tree::node::Extent;

/// One field of every rule.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// The field.
    pub field: Field,
    /// Index of the field in [`Field::ALL`].
    pub number: u8,
    /// 0 or 1 for the source or destination port, whose rules are ranges; `None` for all other fields, whose
    /// rules are masks.
    pub port: Option<usize>,
    /// The values that each rule can match.
    pub extents: Vec<Extent>,
    /// Number of bits that each rule fixes.
    pub fixed_bits: Vec<u32>,
    /// The field's value in the key of each rule.
    pub keys: Vec<u32>,
}

/// All columns of a rule set.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// The used fields, in the order of [`Field::ALL`].
    pub columns: Vec<Column>,
    /// Number of rules.
    pub rules: usize,
    /// Number of rules of the set for which each rule stands: more than one when the rules are a sample.
    pub weight: f32,
}

impl Space {
    /// The columns of the rules of a part, or of `most` of them, evenly spaced.
    pub fn new(from: &build::Space, part: &Part, most: usize, rng: &mut Rng) -> Space {
        let step = part.rules.len().div_ceil(most.max(1)).max(1);
        let chosen: Vec<u32> = part.rules.iter().copied().step_by(step).collect();
        let columns = from.dims().iter().enumerate().map(|(dim, &number)| {
            let field = Field::ALL[usize::from(number)];
            let port = [Field::SOURCE_PORT, Field::DESTINATION_PORT].iter().position(|&port| port == field);
            let extents: Vec<Extent> = chosen.iter().map(|&rule| from.clipped(part, rule, dim)).collect();
            let keys = extents.iter().map(|extent| sample(extent, field, port.is_some(), rng)).collect();
            let fixed_bits = chosen.iter().map(|&rule| from.fixed_bits(rule, number)).collect();
            Column { field, number, port, extents, fixed_bits, keys }
        });
        let weight = part.rules.len() as f32 / chosen.len().max(1) as f32;
        Space { columns: columns.collect(), rules: chosen.len(), weight }
    }

    /// The column of a field of [`Field::ALL`], if a rule uses it.
    pub fn column(&self, number: u8) -> Option<&Column> {
        self.columns.iter().find(|column| column.number == number)
    }
}

/// A random value that the rule matches.
fn sample(extent: &Extent, field: Field, port: bool, rng: &mut Rng) -> u32 {
    if port {
        extent.first + rng.below(extent.span() as usize + 1) as u32
    } else {
        // Bits that the tree above has decided are not in the mask, but are equal in first and last.
        let differ = extent.first ^ extent.last;
        let open = u32::MAX.checked_shr(differ.leading_zeros()).unwrap_or(0) & field.max();
        extent.first & !open | extent.value & open | rng.word() & !extent.mask & open
    }
}
