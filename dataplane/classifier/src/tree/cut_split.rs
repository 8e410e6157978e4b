//! CutSplit: cuts where they copy nothing, then splits (W. Li, X. Li, H. Li, G. Xie, "CutSplit: A Decision-Tree
//! Combining Cutting and Splitting for Scalable Packet Classification", IEEE INFOCOM 2018).
//!
//! Cuts are fast but copy rules that are wide in the field that is cut; splits copy few but make deep trees. So rules are
//! divided by which field they are small in, each group gets a tree, the tree cuts that field as long as there are many
//! rules (FiCuts: no choice of fields, hence no wrong one), and splits the small rest like
//! [`hyper_split`](super::hyper_split).
//!
//! - *Small* is a range below the square root of the field's size, 2^16 for an address: the paper's threshold.
//! - Group 1 is small in the first field, group 2 only in the second, group 3 in neither. The paper has a group for small
//!   in both as well; it is in group 1 here, where splits take care of the second field: one tree less to search.
//! - The two fields are the addresses in the paper. Here they are chosen: the wide fields (addresses, TEID, SPI,
//!   application, words of IPv6 addresses …) that have the most small and different values. So a set of uplink rules, which
//!   differ by TEID, is divided by TEID.
//! - Group 3 is split only, where the paper takes it to a tuple space search. So are rules inserted later that reach too
//!   many leaves of every tree: they go to the list of the [`Forest`], which becomes trees when long.
//! - A cut goes on in smaller parts (down to [`SPLIT_BELOW`] rules) as long as copies stay below [`GROWTH`].
//!
//! Cost: per tree that is searched two to four cuts and as many splits, one cache line each, and a block of a leaf. The
//! trees with worse rules than the best found are skipped. An update touches the leaves that the rule reaches in one tree.

use super::Forest;
use super::build::{Action, Part, Policy, Space};
use super::choice::{Column, best_cut};
use super::hyper_split::best_split;
use crate::Field;

/// Share of rules that reach nearly everywhere, from which on they are put beside the others.
const WIDE_PERCENT: usize = 20;

/// The classifier.
pub type CutSplit = Forest<CutThenSplit>;

/// A part of fewer rules is split.
const SPLIT_BELOW: usize = 24;
/// Copies of rules in the children of a cut, in percent of its rules.
const GROWTH: usize = 115;
/// Children of a cut: `2^bits` is about the number of rules divided by this.
const RULES_PER_CHILD: usize = 2;
/// Fields narrower than this are not divided by.
const MIN_WIDTH: u32 = 16;

/// Divides by small fields, then cuts them, then splits.
#[derive(Clone, Debug, Default)]
pub struct CutThenSplit {
    /// Indices in [`Field::ALL`] of the fields that rules are divided by.
    small: [Option<u8>; 2],
}

/// Whether a rule matches so little of a field that cuts rarely copy it.
fn is_small(space: &Space, rule: u32, dim: usize) -> bool {
    let width = Field::ALL[space.dims()[dim] as usize].width();
    space.extent(rule, dim).span() < 1 << (width / 2)
}

impl CutThenSplit {
    fn dims(&self, space: &Space) -> Vec<usize> {
        let dim =
            |field: &Option<u8>| field.and_then(|field| space.dims().iter().position(|&dim| dim == field));
        self.small.iter().filter_map(dim).collect()
    }
}

impl Policy for CutThenSplit {
    fn prepare(&mut self, space: &Space) {
        self.small = [None, None];
        let wide: Vec<usize> = (0..space.dims().len())
            .filter(|&dim| Field::ALL[space.dims()[dim] as usize].width() >= MIN_WIDTH)
            .collect();
        let mut left: Vec<u32> = (0..space.len() as u32).collect();
        for at in 0..2 {
            let part = space.part(left.clone());
            let worth = |dim: &usize| {
                let small = left.iter().filter(|&&rule| is_small(space, rule, *dim)).count();
                small * Column::new(space, &part, *dim).map_or(0, |column| column.distinct())
            };
            let Some(&best) = wide.iter().max_by_key(|dim| worth(dim)).filter(|dim| worth(dim) > 0) else {
                break;
            };
            self.small[at] = Some(space.dims()[best]);
            left.retain(|&rule| !is_small(space, rule, best));
        }
    }

    fn partition(&self, space: &Space, rules: Vec<u32>) -> Vec<Vec<u32>> {
        let dims = self.dims(space);
        let mut groups = vec![Vec::new(); 3];
        for rule in rules {
            let group = dims.iter().position(|&dim| is_small(space, rule, dim)).unwrap_or(2);
            groups[group].push(rule);
        }
        groups.retain(|group| !group.is_empty());
        groups
    }

    fn choose(&self, space: &Space, part: &Part, _depth: u32) -> Action {
        if part.rules.len() >= SPLIT_BELOW {
            let small = |dim: &usize| part.rules.iter().all(|&rule| is_small(space, rule, *dim));
            let dims = self.dims(space).into_iter().filter(small);
            let columns: Vec<Column> = dims.filter_map(|dim| Column::new(space, part, dim)).collect();
            let bits = (part.rules.len() / RULES_PER_CHILD).max(2).ilog2();
            if let Some(action) = best_cut(&columns, bits, GROWTH, false) {
                return action;
            }
        }
        best_split(&Column::all(space, part)).map_or(Action::Leaf, |split| split.action())
    }

    fn wide_percent(&self) -> usize {
        WIDE_PERCENT
    }
}
