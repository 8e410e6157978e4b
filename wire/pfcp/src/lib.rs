//! PFCP (TS 29.244, Rel-16/17): the protocol between SMF and UPF (N4).
//!
//! Read first: [`message`] (the messages), [`rules`] (PDR, FAR, QER, URR, BAR), then [`endpoint`].
//!
//! - [`codec`] holds the TLV walk and the table macro: a grouped IE or message is declared as a list of
//!   `type => field: presence Type` lines, and decoder, encoder and missing-IE check follow from the table.
//! - [`value`] holds the leaf IEs.
//! - [`endpoint`] is the sans-IO state machine: sequence numbers, retransmission, duplicates, heartbeat.
//!
//! Invariants: no socket, no clock, no unsafe. A decoder never panics, whatever the bytes; nesting depth is that of
//! the types (at most four), lists are bounded by the message's own length; unknown and vendor IEs are
//! skipped. A message that is refused yields a [`DecodeError`] with the cause and the offending IE of §7.6.
//!
//! Flag types are named in the standard's own abbreviations, bit for bit.
#![forbid(unsafe_code)]

pub mod codec;
pub mod endpoint;
pub mod ie;
pub mod message;
pub mod report;
pub mod rules;
pub mod value;

pub use codec::{DecodeError, EncodeError, ShortBytes};
pub use message::{Header, Message, MessageType};
pub use report::*;
pub use rules::*;
pub use value::*;
