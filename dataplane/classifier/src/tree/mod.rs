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
