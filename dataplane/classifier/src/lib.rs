//! Packet classification over the rules that packet detection rules are made of (TS 29.244 §5.2.1A, §8.2.5).
//!
//! A [`Rule`] selects packets by masked, ranged and exact fields ([`rule::Filter`]) and has a precedence;
//! a [`Classifier`] finds, for a batch of packet [`Key`]s, the matching rule that comes first. The lower
//! precedence value comes first (TS 29.244 §8.2.11); among equal ones, the lower rule id.
//!
//! Backends are modules, each written from its paper; [`Backend`] lists them. [`list`] is the linear list that the
//! standard describes, and the oracle for all others. Backends see filters only as [`Matcher`]s: masks, values and two
//! port ranges. [`sdf`] reads the text form of SDF filters.
//!
//! The crate depends on nothing of the project and never allocates in `classify`.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod audit;
pub mod auto;
pub mod backend;
pub mod cache;
#[cfg(feature = "generate")]
pub mod generate;
pub mod ids;
pub mod key;
pub mod list;
pub mod matcher;
pub mod nuevo_match;
pub mod partition_sort;
mod ranked;
pub mod rl_tree;
pub mod rule;
pub mod sdf;
pub mod session;
pub mod shared;
pub mod simd;
mod store;
pub mod tree;
pub mod tss;
mod tuple;
pub mod tuple_merge;

pub use backend::Backend;
pub use key::{Ethernet, Key};
pub use list::List;
pub use matcher::{Field, Matcher};
pub use rule::{
    EthernetFilter, Family, Filter, FlowLabel, Interface, LocalAddress, Masked, NetworkInstance, PortRange,
    Prefix, Qfi, Rule, RuleError, Side, rank,
};

/// The value of the first matching rule, if any matches.
pub type Verdict = Option<u32>;

/// Why a rule was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError {
    /// A rule with this id is present.
    #[error("rule {0} exists already")]
    Exists(u32),
}

/// A set of rules that packets are looked up in.
pub trait Classifier: Send + Sync {
    /// Writes the verdict of `keys[i]` to `verdicts[i]`. Keys beyond the length of `verdicts` are not looked up.
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]);

    /// Adds a rule. One that can never match counts as a rule and is never found.
    fn insert(&mut self, rule: Rule) -> Result<(), InsertError>;

    /// Removes the rule with this id; `false` when there is none.
    fn remove(&mut self, id: u32) -> bool;

    /// Gives the rule another precedence; `false` when there is none with this id.
    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool;

    /// Adds many rules at once: what backends that build do better than one by one. Stops at the first error.
    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        rules.iter().try_for_each(|rule| self.insert(*rule))
    }

    /// Rebuilds what updates have worn out. Takes as long as building anew: nothing for the packet path.
    fn optimise(&mut self) {}

    /// Octets held, the heap included.
    fn memory_bytes(&self) -> usize;

    /// Number of rules.
    fn len(&self) -> usize;

    /// Whether there are no rules.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
