//! The nodes of the rare ways: what happens to packets that do not go the straight way.
//!
//! A node reads the [`Context`](super::context::Context) and the tables, changes the packets of the
//! [`Pass`](super::context::Pass) and state of its own, and gives what it makes to [`Exits`](super::exits::Exits). It knows
//! neither the stages nor other nodes. Where packets return from a node to the straight way, the end of its file has that
//! edge, as a method of [`Stages`](super::Stages).

pub(super) mod bridge;
pub(super) mod buffer;
pub(super) mod copy;
pub(super) mod fragments;
pub(super) mod inject;
pub(super) mod redirect;
pub(super) mod signalling;
pub(super) mod too_long;
pub(super) mod translate;
