//! HyperSplit: binary splits at the end points of ranges (Y. Qi, L. Xu, B. Yang, Y. Xue, J. Li, "Packet
//! Classification Algorithms: From Theory to Practice", IEEE INFOCOM 2009).
//!
//! A node compares one field with a bound that stands where a rule's range begins or ends. So splits adapt to where the
//! rules are: nodes are never empty and few rules are copied, which makes it the smallest of the trees here. The price is
//! depth: about log2 of the number of leaves, one comparison and mostly one cache line each.
//!
//! Where we differ:
//! - The paper takes the field whose segments are covered by the fewest rules on the average, and the bound that halves
//!   this weight. We take, of all fields and bounds, the one with the fewest rules on its larger side, copies counted
//!   twice, which is what the weight stands for.
//! - Rules on both sides of too many splits stand beside the others ([`Step::Both`](super::node::Step::Both)); in the
//!   paper they are copied, which takes gigabytes for large firewalls.
//!
//! Cost: a look-up makes about 10 comparisons at 10,000 rules. An update touches the leaves that the rule reaches.

use super::Forest;
use super::build::{Action, Part, Policy, Space};
use super::choice::{Column, Split};

/// Share of rules that reach nearly everywhere, from which on they are put beside the others.
const WIDE_PERCENT: usize = 20;

/// The classifier.
pub type HyperSplit = Forest<Balanced>;

/// Splits where both sides get about the same number of rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balanced;

/// The best split of a part.
pub fn best_split(columns: &[Column]) -> Option<Split> {
    columns.iter().filter_map(Column::best_split).min_by_key(|split| split.larger + split.copied)
}

impl Policy for Balanced {
    fn choose(&self, space: &Space, part: &Part, _depth: u32) -> Action {
        best_split(&Column::all(space, part)).map_or(Action::Leaf, |split| split.action())
    }

    fn wide_percent(&self) -> usize {
        WIDE_PERCENT
    }
}
