//! 5G NAS (TS 24.501), NAS security, 5G-AKA and SUCI behind Godwit's own types.
//!
//! Flow: octets of N1 → [`security::SecurityContext::unprotect`] (or plain, when
//! [`security::allowed_unprotected`]) → [`Message::decode`] → a struct of [`gmm`] → procedure; a 5GSM payload in
//! it → [`SmMessage::decode`] → a struct of [`gsm`]. The way back is `encode`, then
//! [`security::SecurityContext::protect`].
//!
//! Invariants: no clock, no socket; no input makes a decoder panic or allocate more than its own size times a
//! small constant; a broken optional element costs only itself ([`SoftError`]); an error says what to answer
//! ([`DecodeError::gmm_cause`]). The codec library beneath is named in `codec`, `security`, `aka` and `suci` only.
//!
//! Read first: [`gmm::Message`], [`security`], [`aka`].
#![forbid(unsafe_code)]

pub mod aka;
pub mod cause;
mod codec;
pub mod error;
pub mod gmm;
pub mod gsm;
pub mod ie;
pub mod security;
pub mod suci;

pub use cause::{GmmCause, GsmCause};
pub use error::{DecodeError, Decoded, EncodeError, SoftError};
pub use gmm::Message;
pub use gsm::{SmBody, SmMessage};
pub use ie::*;
