//! HyperCuts: equal-sized cuts in several fields at once (S. Singh, F. Baboescu, G. Varghese, J. Wang, "Packet
//! Classification Using Multidimensional Cutting", ACM SIGCOMM 2003).
//!
//! A node cuts the fields in which its rules have at least as many different ranges as in the mean of all fields, into
//! at most [`SPACE`] · √rules children: the paper's two heuristics. How many bits each field gets is found by trying
//! them on a sample: bits go where they leave the fewest pairs of rules in one child.
//!
//! Where we differ:
//! - Region compaction is part of the core and free in the look-up (see [`node`](super::node)).
//! - Rules that all children have are pushed up to the parent in the paper, as a list. Here they become a tree beside the
//!   others ([`Step::Both`](super::node::Step::Both)), which cuts other fields: lists would be long in firewalls.
//! - Children are not shared by nodes, as updates would have to part them. Empty ones cost 16 octets.
//! - Three fields per node at most, as a node is 16 octets; cuts are powers of two, so that a child is found by shifts.
//!
//! Cost: a look-up reads one cache line per level and the block of a leaf; 10,000 rules have about four levels of cuts. An
//! update touches the leaves that the rule reaches, most often one.

use super::Forest;
use super::build::{Action, Limits, Part, Policy, Space};
use super::choice::{Column, best_cut};

/// Share of rules that reach nearly everywhere, from which on they are put beside the others.
const WIDE_PERCENT: usize = 35;

/// The classifier.
pub type HyperCuts = Forest<Multidimensional>;

/// Children that a node may have, times the square root of its rules ("spfac").
const SPACE: f64 = 4.0;
/// Copies of rules in the children of a node, in percent of its rules.
const GROWTH: usize = 200;
/// The same without a bound, but far from the end of numbers.
const ANY_GROWTH: usize = 1 << 40;

/// Cuts in the fields in which most rules differ.
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
        // When no cut stays within the growth: cut the best field, and let what reaches everywhere be evicted.
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
