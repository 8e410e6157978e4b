//! Axes of the series of `pdr`.

pub(super) use crate::samples::{Axes, Results};

/// Nanoseconds per packet over the number of rules.
pub(super) const LOOKUP: Axes = Axes { x: "rules", y: "look-up", unit: "ns" };
/// Nanoseconds per update.
pub(super) const UPDATE: Axes = Axes { x: "rules", y: "update", unit: "ns" };
/// Octets per rule.
pub(super) const BYTES: Axes = Axes { x: "rules", y: "memory", unit: "B/rule" };
/// Milliseconds to build.
pub(super) const BUILD: Axes = Axes { x: "rules", y: "build", unit: "ms" };
