//! HyperCuts: equal-sized cuts in several fields at once (S. Singh, F. Baboescu, G. Varghese, J. Wang, "Packet
//! Classification Using Multidimensional Cutting", ACM SIGCOMM 2003).
//!
//! A node cuts the fields in which its rules have more different ranges than in the mean of all fields, into
//! `SPACE · √rules` children at most: the paper's two heuristics. Of its refinements, region compaction is part of the
//! core and free (see [`node`](super::node)). Rules that would be pushed up to a parent in the paper, because all
//! children have them, are evicted here into a tree of their own, where other fields are cut: one list
//! per tree is read instead of one per node. Nodes are not shared between children, as updates would have to part them.
//!
//! How many bits each field gets is found by trying them on a sample: bits go where they leave the fewest pairs of
//! rules in one child. Three fields per node at most, as a node is 16 octets.
//!
//! Cost: a look-up reads one cache line per level and a leaf of up to 8 rules per tree; a tree of 100,000 rules
//! has about four levels. An update touches every leaf that the rule reaches, most often one.

use super::Forest;
use super::build::{Action, Limits, Part, Policy, Space};
use super::choice::{Column, best_cut};

/// Share of rules that reach nearly everywhere, from which on they are put beside the others.
const WIDE_PERCENT: usize = 20;

/// The classifier.
pub type HyperCuts = Forest<Multidimensional>;

/// Children that a node may have, times the square root of its rules ("spfac").
const SPACE: f64 = 4.0;
/// Copies of rules in the children of a node, in percent of its rules.
const GROWTH: usize = 200;

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
            .or_else(|| best_cut(&good, 1, usize::MAX / SPARE, true))
            .unwrap_or(Action::Leaf)
    }

    fn limits(&self) -> Limits {
        Limits { copies: 16, total: 4 }
    }

    fn wide_percent(&self) -> usize {
        WIDE_PERCENT
    }
}

/// Keeps a product of a growth without bounds and a number of rules within range.
const SPARE: usize = 1 << 20;
