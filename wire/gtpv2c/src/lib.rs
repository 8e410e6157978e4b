//! GTPv2-C (TS 29.274, Rel-15/16): the protocol between MME, S-GW and P-GW (S11, S5, S8).
//!
//! Read first: [`message`] (the messages), [`bearer`] (their bearer contexts), then [`endpoint`]. The crate has the shape of
//! `pfcp`, so that a reader of one finds everything in the other.
//!
//! - [`codec`] holds the TLIV walk and the table macro: a grouped IE or message is declared as a list of
//!   `type instance => field: presence Type` lines, and decoder, encoder and missing-IE check follow from the table.
//! - [`value`] holds the leaf IEs, and the traffic flow template of TS 24.008 ([`value::tft`]).
//! - [`endpoint`] is the sans-IO state machine: sequence numbers, retransmission, duplicates, piggybacking, echo.
//!
//! Invariants: no socket, no clock, no unsafe. A decoder never panics, whatever the bytes; nesting depth is two; lists are
//! bounded by the message's own length; unknown IEs are skipped. A message that is refused yields a [`DecodeError`] with the
//! cause and the offending IE of §7.7.
//!
//! Flag types are named in the standard's own abbreviations, bit for bit.
#![forbid(unsafe_code)]

pub mod bearer;
pub mod codec;
pub mod endpoint;
pub mod ie;
pub mod message;
pub mod value;

pub use bearer::*;
pub use codec::{DecodeError, EncodeError, OffendingIe};
pub use message::{Header, Message, MessageType};
pub use value::*;
