//! Sessions of unmodified anchors, made again at other ones: an anchor's state is what its control plane has told it, so whoever has heard
//! that can tell it to another anchor. Nothing of MME, SMF and anchors is changed, and they notice nothing.
//!
//! ```text
//!  captured messages ─► s11::Tracker, n4::Tracker ─► table of records ─► replicator ──TCP──► agent ─► clone
//!                         (transactions: track.rs)    (record.rs,          (frame.rs)       (clone.rs)
//!                                                      template.rs)
//! ```
//! A tracker follows the messages between control planes and one anchor, and keeps for each user the requests that make its session, as a
//! [`record`] of at most 64 octets: what users have in common is in a [`template`]. The [`replicator`] has an [`agent`] beside another anchor
//! make the sessions there, keeps them as the originals are, and passes on what the clone asks the control plane.
//!
//! Invariants: only what an anchor or a control plane has accepted is kept; all that is kept can be made again, or says that it cannot
//! (`incomplete`); requests come back octet for octet, but for what a replay must give anew (sequence number, receiver's TEID or SEID);
//! memory is bounded by the number of sessions; nothing that was captured can cause a panic.
//!
//! Read first: [`template`], [`record`], then [`s11::track`] and [`clone`](mod@clone).
#![forbid(unsafe_code)]

pub mod agent;
mod asking;
pub mod clone;
mod connection;
pub mod frame;
mod history;
mod index;
pub mod intercept;
pub mod keep;
mod listing;
mod moved;
pub mod n4;
mod original;
pub mod record;
mod refusal;
mod replica;
pub mod replicator;
pub mod s11;
pub mod session;
pub mod table;
pub mod template;
pub mod track;
