//! HyperCuts: equal-sized cuts in several fields at once (S. Singh, F. Baboescu, G. Varghese, J. Wang, "Packet
//! Classification Using Multidimensional Cutting", ACM SIGCOMM 2003).

use super::Forest;
use super::build::{Action, Part, Policy, Space};
use super::node::MAX_CUT_BITS;

/// The classifier.
pub type HyperCuts = Forest<Multidimensional>;

/// Cuts in the fields in which most rules differ.
#[derive(Clone, Copy, Debug, Default)]
pub struct Multidimensional;

impl Policy for Multidimensional {
    fn choose(&self, space: &Space, part: &Part, _depth: u32) -> Action {
        let widest = (0..space.dims().len()).max_by_key(|&dim| {
            let firsts: std::collections::HashSet<_> = part
                .rules
                .iter()
                .map(|&rule| space.clipped(part, rule, dim))
                .map(|e| (e.first, e.last))
                .collect();
            firsts.len()
        });
        let bits = (part.rules.len().ilog2() / 2 + 1).min(MAX_CUT_BITS) as u8;
        widest.map_or(Action::Leaf, |dim| Action::cut(dim as u8, bits))
    }
}
