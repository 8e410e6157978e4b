//! The backends by name, for configuration and benchmarks.

use std::fmt;
use std::str::FromStr;

use crate::{Classifier, List};

/// A way to classify.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// [`Auto`](crate::auto::Auto).
    Auto,
    /// [`List`].
    List,
    /// [`Simd`](crate::simd::Simd).
    Simd,
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
    /// [`NuevoMatch`](crate::nuevo_match::NuevoMatch).
    NuevoMatch,
    /// [`TupleMerge`](crate::tuple_merge::TupleMerge).
    TupleMerge,
}

impl Backend {
    /// All of them.
    pub const ALL: &[Backend] = &[
        Backend::Auto,
        Backend::List,
        Backend::Simd,
        Backend::Tss,
        Backend::TssSorted,
        Backend::HyperCuts,
        Backend::HyperSplit,
        Backend::CutSplit,
        Backend::NuevoMatch,
        Backend::TupleMerge,
    ];

    /// Its name, as in `upf.classifier` and in benchmark results.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Auto => "auto",
            Backend::List => "list",
            Backend::Simd => "simd",
            Backend::Tss => "tss",
            Backend::TssSorted => "tss_sorted",
            Backend::HyperCuts => "hyper_cuts",
            Backend::HyperSplit => "hyper_split",
            Backend::CutSplit => "cut_split",
            Backend::NuevoMatch => "nuevo_match",
            Backend::TupleMerge => "tuple_merge",
        }
    }

    /// An empty classifier.
    pub fn build(self) -> Box<dyn Classifier> {
        match self {
            Backend::Auto => Box::new(crate::auto::Auto::new()),
            Backend::List => Box::new(List::new()),
            Backend::Simd => Box::new(crate::simd::Simd::new()),
            Backend::Tss => Box::new(crate::tss::Tss::new()),
            Backend::TssSorted => Box::new(crate::tss::TssSorted::new()),
            Backend::HyperCuts => Box::new(crate::tree::HyperCuts::default()),
            Backend::HyperSplit => Box::new(crate::tree::HyperSplit::default()),
            Backend::CutSplit => Box::new(crate::tree::CutSplit::default()),
            Backend::NuevoMatch => Box::new(crate::nuevo_match::NuevoMatch::new()),
            Backend::TupleMerge => Box::new(crate::tuple_merge::TupleMerge::new()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no backend's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no classifier is called {0:?}; there are {names}", names = names())]
pub struct UnknownBackend(String);

fn names() -> String {
    Backend::ALL.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(", ")
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Backend, UnknownBackend> {
        let found = Backend::ALL.iter().find(|backend| backend.name() == name);
        found.copied().ok_or_else(|| UnknownBackend(name.to_owned()))
    }
}
