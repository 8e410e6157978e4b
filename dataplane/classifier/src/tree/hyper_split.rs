//! HyperSplit: binary splits at the end points of ranges (Y. Qi, L. Xu, B. Yang, Y. Xue, J. Li, "Packet
//! Classification Algorithms: From Theory to Practice", IEEE INFOCOM 2009).
//!
//! A node compares one field with a bound at which a rule's range begins or ends. So splits adapt to the rules:
//! nodes are never empty and few rules are copied, which makes this the smallest of the trees here. The price
//! is depth: about log2 of the number of leaves, one comparison and mostly one cache line each.
//!
//! Differences from the paper:
//! - The paper takes the field whose segments are covered by the fewest rules on average, and the bound that
//!   halves this weight. Here the split with the fewest rules on its larger side is taken, of all fields and
//!   bounds, where copies count twice. The paper's weight is an estimate of this number.
//! - Rules on both sides of too many splits move to a separate tree ([`Step::Both`](super::node::Step::Both)).
//!   The paper copies them, which takes gigabytes for large firewalls.
//!
//! Cost: a look-up makes about 10 comparisons for 10,000 rules. An update changes the leaves that the rule
//! reaches.

use super::Forest;
use super::build::{Action, Part, Policy, Space};
use super::choice::{Column, Split};

/// When this share of a part's rules (percent) reaches nearly all children, these rules move to a separate
/// tree.
const WIDE_PERCENT: usize = 20;

/// The classifier.
pub type HyperSplit = Forest<Balanced>;

/// The policy: splits so that both sides get about the same number of rules.
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
