//! Decision trees: `hyper_cuts`, `hyper_split` and `cut_split` on one core.
//!
//! A tree divides the space of packets by fields until few rules are left, which are compared one by one. The schemes
//! differ in how they divide, so they are policies of one core:
//!
//! - [`entry`]: rules as leaves hold them, and the arena of the leaves;
//! - [`node`]: nodes, look-up, and the walk of a rule to the leaves it stands in;
//! - [`build`](mod@build): rules as ranges, actions on parts of the space, and the [`Policy`] that chooses them;
//! - [`choice`]: how good an action would be;
//! - [`forest`]: the classifier, several trees and a list, with updates.
//!
//! A new scheme implements [`Policy`] and is `Forest<ThatPolicy>`. [`Space::apply`] tries actions without building.
//!
//! Invariants:
//! - A rule stands in every leaf that it reaches, on one side of each [`Both`](node::Step::Both) on the way, in one tree.
//!   Building, inserting and removing agree on what it reaches as they all ask [`Extent::cut`](node::Extent::cut) and
//!   [`Extent::side`](node::Extent::side).
//! - A key that matches a rule is led to a leaf that the rule reaches. Leaves compare all fields, so trees may lead other
//!   keys anywhere: ranges that are wider than what a rule matches (masks with holes) are right, if slower.
//! - No rule below a node has a lower precedence value than the node says. Look-ups skip nodes by it.
//!
//! Any field of a PDI can be divided by. Those that no rule uses are never looked at.

pub mod build;
pub mod choice;
pub mod cut_split;
pub mod entry;
pub mod forest;
pub mod hyper_cuts;
pub mod hyper_split;
pub mod node;

pub use build::{Action, Limits, Part, Policy, Space};
pub use cut_split::CutSplit;
pub use forest::{Forest, Shape};
pub use hyper_cuts::HyperCuts;
pub use hyper_split::HyperSplit;
