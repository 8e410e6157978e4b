//! The backends by name, for configuration and benchmarks.

use std::fmt;
use std::str::FromStr;

use crate::{Classifier, List};

/// A classification algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// [`Auto`](crate::auto::Auto).
    Auto,
    /// [`List`].
    List,
    /// [`Simd`](crate::simd::Simd).
    Simd,
    /// [`BitSelect`](crate::bit_select::BitSelect).
    BitSelect,
    /// [`Tss`](crate::tss::Tss).
    Tss,
    /// [`TssSorted`](crate::tss::TssSorted).
    TssSorted,
    /// [`HyperCuts`](crate::tree::HyperCuts).
    HyperCuts,
    /// [`HyperSplit`](crate::tree::HyperSplit).
    HyperSplit,
    /// [`CutSplit`](crate::tree::CutSplit).
    CutSplit,
    /// [`RlTree`](crate::rl_tree::RlTree).
    #[cfg(feature = "learned")]
    RlTree,
    /// [`NuevoMatch`](crate::nuevo_match::NuevoMatch).
    #[cfg(feature = "learned")]
    NuevoMatch,
    /// [`TupleMerge`](crate::tuple_merge::TupleMerge).
    TupleMerge,
    /// [`PartitionSort`](crate::partition_sort::PartitionSort).
    PartitionSort,
}

impl Backend {
    /// Every backend.
    pub const ALL: &[Backend] = &[
        Backend::Auto,
        Backend::List,
        Backend::Simd,
        Backend::BitSelect,
        Backend::Tss,
        Backend::TssSorted,
        Backend::HyperCuts,
        Backend::HyperSplit,
        Backend::CutSplit,
        #[cfg(feature = "learned")]
        Backend::RlTree,
        #[cfg(feature = "learned")]
        Backend::NuevoMatch,
        Backend::TupleMerge,
        Backend::PartitionSort,
    ];

    /// The name that `upf.classifier` and benchmark results use.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::List => "list",
            Backend::Simd => "simd",
            Backend::BitSelect => "bit_select",
            Backend::Tss => "tss",
            Backend::TssSorted => "tss_sorted",
            Backend::HyperCuts => "hyper_cuts",
            Backend::HyperSplit => "hyper_split",
            Backend::CutSplit => "cut_split",
            #[cfg(feature = "learned")]
            Backend::RlTree => "rl_tree",
            #[cfg(feature = "learned")]
            Backend::NuevoMatch => "nuevo_match",
            Backend::TupleMerge => "tuple_merge",
            Backend::PartitionSort => "partition_sort",
        }
    }

    /// Calls `visit` with an empty classifier of this kind.
    pub fn with<V: Visit>(self, visit: V) -> V::Output {
        match self {
            Backend::Auto => visit.visit(crate::auto::Auto::new()),
            Backend::List => visit.visit(List::new()),
            Backend::Simd => visit.visit(crate::simd::Simd::new()),
            Backend::BitSelect => visit.visit(crate::bit_select::BitSelect::new()),
            Backend::Tss => visit.visit(crate::tss::Tss::new()),
            Backend::TssSorted => visit.visit(crate::tss::TssSorted::new()),
            Backend::HyperCuts => visit.visit(crate::tree::HyperCuts::default()),
            Backend::HyperSplit => visit.visit(crate::tree::HyperSplit::default()),
            Backend::CutSplit => visit.visit(crate::tree::CutSplit::default()),
            #[cfg(feature = "learned")]
            Backend::RlTree => visit.visit(crate::rl_tree::RlTree::new()),
            #[cfg(feature = "learned")]
            Backend::NuevoMatch => visit.visit(crate::nuevo_match::NuevoMatch::new()),
            Backend::TupleMerge => visit.visit(crate::tuple_merge::TupleMerge::new()),
            Backend::PartitionSort => visit.visit(crate::partition_sort::PartitionSort::new()),
        }
    }

    /// An empty classifier of this kind.
    pub fn build(self) -> Box<dyn Classifier> {
        struct Boxed;

        impl Visit for Boxed {
            type Output = Box<dyn Classifier>;

            fn visit<C: Classifier + Clone + 'static>(self, classifier: C) -> Self::Output {
                Box::new(classifier)
            }
        }

        self.with(Boxed)
    }
}

/// Code that is generic over the type of the classifier. Look-ups then need no virtual call, and the classifier
/// can be [`shared`](crate::shared).
pub trait Visit {
    /// Result of the visit.
    type Output;

    /// Uses the classifier.
    fn visit<C: Classifier + Clone + 'static>(self, classifier: C) -> Self::Output;
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no backend has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no classifier is called {0:?}; there are {names}", names = names())]
pub struct UnknownBackend(String);

fn names() -> String {
    let names = Backend::ALL.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ");
    if cfg!(feature = "learned") {
        names
    } else {
        names + "; rl_tree and nuevo_match in a build with `--features learned`"
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Backend, UnknownBackend> {
        let found = Backend::ALL.iter().find(|backend| backend.name() == name);
        found.copied().ok_or_else(|| UnknownBackend(name.to_owned()))
    }
}
