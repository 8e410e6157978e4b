//! Decision trees: `hyper_cuts`, `hyper_split` and `cut_split`, which share one implementation.
//!
//! A tree divides the space of packets by fields until few rules are left; these are compared one by one. The
//! algorithms differ in how they divide, so each is a [`Policy`]:
//!
//! - [`entry`]: rules in the form in which leaves store them, and the arena of the leaves;
//! - [`node`]: nodes, the look-up, and the walk of a rule to its leaves;
//! - [`build`](mod@build): rules as ranges, actions on parts of the space, and the [`Policy`] that chooses them;
//! - [`choice`]: estimates of how good an action would be;
//! - [`forest`]: the classifier, several trees and a list, with updates.
//!
//! A new algorithm implements [`Policy`] and is `Forest<ThatPolicy>`. [`Space::apply`] tries actions without
//! building.
//!
//! Invariants:
//! - A rule is in every leaf that it reaches, in one tree, and on one side of every [`Both`](node::Step::Both)
//!   above. Building, inserting and removing agree on the leaves that it reaches, as all use
//!   [`Extent::cut`](node::Extent::cut) and [`Extent::side`](node::Extent::side).
//! - A key that matches a rule is led to a leaf that the rule reaches. Leaves compare all fields, so trees may
//!   lead other keys anywhere. A range that is wider than what a rule matches (a non-contiguous mask) is
//!   therefore correct, only slower.
//! - No rule below a node has a lower precedence value than the node's `best`, by which look-ups skip nodes.
//!
//! A tree can divide any field of a PDI. Fields that no rule uses cost nothing.

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
pub use forest::{Forest, TreeStats};
pub use hyper_cuts::HyperCuts;
pub use hyper_split::HyperSplit;
