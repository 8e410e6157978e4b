//! CutSplit: cuts where they copy few rules, then splits (W. Li, X. Li, H. Li, G. Xie, "CutSplit: A
//! Decision-Tree Combining Cutting and Splitting for Scalable Packet Classification", IEEE INFOCOM 2018).
//!
//! Cuts are fast but copy rules that are wide in the field that is cut; splits copy few rules but make deep
//! trees. So rules are grouped by the field in which they are small, and each group gets a tree. While a part
//! has many rules, the tree cuts that field (FiCuts: the field is fixed, so it cannot be chosen wrongly). The
//! small parts that are left are split as in [`hyper_split`](super::hyper_split).
//!
//! - *Small* is a range below the square root of the field's size, 2^16 for an address: the paper's threshold.
//! - Group 1 is small in the first field, group 2 only in the second, group 3 in neither. The paper has a
//!   fourth group, small in both. Here these rules are in group 1, whose splits use the second field: one tree
//!   less to search.
//! - The two fields are the addresses in the paper. Here they are the two wide fields (addresses, TEID, SPI,
//!   application, words of IPv6 addresses …) in which most rules are small and differ. So a set of uplink
//!   rules, which differ by TEID, is divided by TEID.
//! - Group 3 is split only, where the paper uses a tuple space search. Rules inserted later that reach too many
//!   leaves of every tree go to the list of the [`Forest`], which becomes trees when it is long.
//! - Cutting continues in smaller parts (down to [`SPLIT_BELOW`] rules) as long as copies stay below
//!   [`GROWTH`].
//!
//! Cost: for each tree that is searched, two to four cuts and as many splits of one cache line each, and a
//! block of a leaf. Trees without better rules than the match so far are skipped. An update changes the leaves
//! that the rule reaches in one tree.

use super::Forest;
use super::build::{Action, Part, Policy, Space};
use super::choice::{Column, best_cut};
use super::hyper_split::best_split;
use crate::Field;

/// When this share of a part's rules (percent) reaches nearly all children, these rules move to a separate
/// tree.
const WIDE_PERCENT: usize = 20;

/// The classifier.
pub type CutSplit = Forest<CutThenSplit>;

/// A part of fewer rules is split.
const SPLIT_BELOW: usize = 24;
/// Limit for the copies of rules in the children of a cut, in percent of its rules.
const GROWTH: usize = 115;
/// A cut has about as many children as the number of rules divided by this.
const RULES_PER_CHILD: usize = 2;
/// Rules are not grouped by fields narrower than this.
const MIN_WIDTH: u32 = 16;

/// The policy: groups rules by small fields, cuts these fields, then splits.
#[derive(Clone, Debug, Default)]
pub struct CutThenSplit {
    /// Indices into [`Field::ALL`] of the fields by which rules are grouped.
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
