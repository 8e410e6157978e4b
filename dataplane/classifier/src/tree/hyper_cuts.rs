//! HyperCuts: equal-sized cuts in several fields at once (S. Singh, F. Baboescu, G. Varghese, J. Wang, "Packet
//! Classification Using Multidimensional Cutting", ACM SIGCOMM 2003).
//!
//! A node cuts the fields in which its rules have at least as many different ranges as the average field, into
//! at most [`SPACE`] · √rules children: the paper's two heuristics. How many bits each field gets is found by
//! trial on a sample: bits go where they leave the fewest pairs of rules in one child.
//!
//! Differences from the paper:
//! - Region compaction is part of the core and free in the look-up (see [`node`](super::node)).
//! - Rules that all children have are pushed up to the parent in the paper, as a list. Here they become a
//!   separate tree ([`Step::Both`](super::node::Step::Both)) that cuts other fields, as in firewalls the lists
//!   would be long.
//! - Nodes do not share children, because updates would have to separate them. An empty child costs 16 octets.
//! - A node cuts at most three fields, as it has 16 octets. Cuts are powers of two, so that shifts find the
//!   child.
//!
//! Cost: a look-up reads one cache line per level and the block of a leaf; 10,000 rules have about four levels
//! of cuts. An update changes the leaves that the rule reaches, most often one.

use super::Forest;
use super::build::{Action, Limits, Part, Policy, Space};
use super::choice::{Column, best_cut};

/// When this share of a part's rules (percent) reaches nearly all children, these rules move to a separate
/// tree.
const WIDE_PERCENT: usize = 35;

/// The classifier.
pub type HyperCuts = Forest<Multidimensional>;

/// Most children of a node, as a multiple of the square root of its rules ("spfac").
const SPACE: f64 = 4.0;
/// Limit for the copies of rules in the children of a node, in percent of its rules.
const GROWTH: usize = 200;
/// In practice no limit, yet small enough for products not to overflow.
const ANY_GROWTH: usize = 1 << 40;

/// The policy: cuts the fields in which most rules differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Multidimensional;

impl Policy for Multidimensional {
    fn choose(&self, space: &Space, part: &Part, _depth: u32) -> Action {
        let columns = Column::all(space, part);
        let distinct: Vec<usize> = columns.iter().map(Column::distinct).collect();
        let mean = distinct.iter().sum::<usize>() / distinct.len().max(1);
        let good: Vec<Column> = std::iter::zip(columns, distinct)
            .filter(|(_, ranges)| *ranges >= mean)
            .map(|(column, _)| column)
            .collect();
        let bits = (SPACE * (part.rules.len() as f64).sqrt()).log2() as u32;
        // When no cut stays within the limit: cut the best field; rules that reach all children move to a
        // separate tree.
        best_cut(&good, bits, GROWTH, true)
            .or_else(|| best_cut(&good, 1, ANY_GROWTH, true))
            .unwrap_or(Action::Leaf)
    }

    fn limits(&self) -> Limits {
        Limits { copies: 16, total: 4 }
    }

    fn wide_percent(&self) -> usize {
        WIDE_PERCENT
    }
}
