//! Packet classification over the rules that packet detection rules are made of (TS 29.244 §5.2.1A, §8.2.5).
//!
//! A [`Rule`] selects packets by masked, ranged and exact fields ([`rule::Filter`]) and has a precedence;
//! a [`Classifier`] finds, for a batch of packet [`Key`]s, the matching rule that comes first. The lower
//! precedence value comes first (TS 29.244 §8.2.11); among equal ones, the lower rule id.
//!
//! ```
//! use classifier::{Backend, Filter, Key, PortRange, Rule};
//!
//! let web = Filter {
//!     protocol: Some(6),
//!     destination_ports: Some(PortRange::new(80, 443)?),
//!     ..Filter::default()
//! };
//! let mut rules = Backend::Auto.build();
//! rules.insert(Rule { id: 1, precedence: 100, value: 7, filter: web })?;
//! rules.insert(Rule { id: 2, precedence: 255, value: 8, filter: Filter::default() })?;
//!
//! let to = |port| Key::new([10, 45, 0, 2].into(), [192, 0, 2, 7].into(), 6).with_ports(40_000, port);
//! let mut verdicts = [None; 2];
//! rules.classify(&[to(443), to(22)], &mut verdicts);
//! assert_eq!(verdicts, [Some(7), Some(8)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! `cargo run -p classifier --example classify` does this with SDF filters and packets from the command line.
//!
//! | to | see |
//! |---|---|
//! | choose a backend | [`guide`] |
//! | build rules and keys | [`rule`], [`sdf`], [`key`] |
//! | change rules while packets are looked up | [`shared`] |
//! | serve very many sessions with few rules each | [`session`] |
//! | keep verdicts of frequent flows | [`cache`] |
//! | find rules without effect | [`audit`](mod@audit) |
//! | draw rule sets and packets | `generate` (feature `generate`) |
//!
//! Backends are modules, each written from its paper; [`Backend`] lists them. [`list`] is the linear list that
//! the standard describes. Tests compare every other backend with it. Backends see a filter only as a
//! [`Matcher`]: masks, values and two port ranges. [`sdf`] reads the text form of SDF filters.
//!
//! The two learned backends (`rl_tree`, `nuevo_match`) need the feature `learned`. It is off by default,
//! because they are the largest part of the code.
//!
//! The crate depends on no other crate of the project, and `classify` never allocates.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod audit;
pub mod auto;
pub mod backend;
pub mod bit_select;
pub mod cache;
pub mod cpu;
#[cfg(feature = "generate")]
pub mod generate;
pub mod guide;
pub mod ids;
pub mod key;
pub mod list;
pub mod matcher;
#[cfg(feature = "learned")]
pub mod nuevo_match;
pub mod partition_sort;
mod ranked;
#[cfg(feature = "learned")]
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

/// The value of the first matching rule; `None` when no rule matches.
pub type Verdict = Option<u32>;

/// Why a rule was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError {
    /// There is already a rule with this id.
    #[error("rule {0} exists already")]
    Exists(u32),
}

/// A set of rules in which packets are looked up.
pub trait Classifier: Send + Sync {
    /// Writes the verdict of `keys[i]` to `verdicts[i]`. Keys beyond the length of `verdicts` are not looked up.
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]);

    /// Adds a rule. A rule that can never match is accepted and counted, but never found.
    fn insert(&mut self, rule: Rule) -> Result<(), InsertError>;

    /// Removes the rule with this id; `false` when no rule has it.
    fn remove(&mut self, id: u32) -> bool;

    /// Changes a rule's precedence; `false` when no rule has this id.
    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool;

    /// Adds many rules at once. Backends that build a structure do this faster than one insertion at a time.
    /// Stops at the first error; the rules before it stay.
    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        rules.iter().try_for_each(|rule| self.insert(*rule))
    }

    /// Rebuilds what updates have degraded. Takes as long as building the structure: not for the packet path.
    fn optimise(&mut self) {}

    /// Octets of memory in use, the heap included.
    fn memory_bytes(&self) -> usize;

    /// Number of rules.
    fn len(&self) -> usize;

    /// Whether there are no rules.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
