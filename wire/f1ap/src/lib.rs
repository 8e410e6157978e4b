//! F1AP (TS 38.473), the control protocol of F1 between a CU and its DUs.
//!
//! [`Pdu::decode`] and [`Pdu::encode`] are all that an endpoint needs. A received PDU that cannot be served is a
//! [`DecodeError`], whose [`reply`](DecodeError::reply) is what §10 of the standard has the receiver send. RRC messages
//! and configurations of TS 38.331 are octets in the messages.
//!
//! Invariants: no octets make a decoder panic; memory is bounded by the size of the input (SCTP bounds that); a decoded
//! message has the standard's mandatory IEs; IEs are read in any order and written in the standard's.
//!
//! Read first: [`Pdu`], then [`message`], then `codec.rs` for how a message is declared and for §10.3. What of the
//! standard is here stands in `docs/spec/f1ap.md`.
//!
//! ```
//! use f1ap::{Pdu, cause::{Cause, Misc}, ie::TransactionId, message::F1SetupFailure};
//!
//! let failure = F1SetupFailure {
//!     transaction_id: TransactionId(1),
//!     cause: Cause::Misc(Misc::ControlProcessingOverload),
//!     time_to_wait: None,
//!     criticality_diagnostics: None,
//! };
//! let octets = Pdu::from(failure.clone()).encode()?;
//! assert_eq!(Pdu::decode(&octets)?.pdu, Pdu::F1SetupFailure(failure));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod cause;
mod codec;
mod error;
pub mod ie;
pub mod message;

use per::{Reader, Variant};

pub use error::{DecodeError, EncodeError, ErrorKind};

use codec::Envelope;
use ie::{CriticalityDiagnostics, TriggeringMessage};
use message::*;

/// SCTP payload protocol identifier of F1AP (TS 38.472 §7).
pub const PPID: u32 = 62;

/// SCTP port of F1AP (TS 38.472 §7).
pub const PORT: u16 = 38472;

/// A decoded PDU, and the errors in it that its sender is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The message.
    pub pdu: Pdu,
    /// IEs of criticality `notify` that were not comprehended: the receiver carries on and reports them in its response
    /// or an Error Indication with cause abstract-syntax-error-ignore-and-notify.
    pub notify: Option<CriticalityDiagnostics>,
}

macro_rules! pdus {
    ($($name:ident,)*) => {
        /// Every message this crate knows.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is the message of its name")]
        #[allow(clippy::large_enum_variant, reason = "boxes would cost every reader a dereference")]
        pub enum Pdu { $($name($name),)* }

        $(impl From<$name> for Pdu {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*

        impl Pdu {
            /// The name TS 38.473 gives the message.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => <$name as Message>::NAME,)* }
            }

            /// The procedure code and which of its messages this is.
            pub fn procedure(&self) -> (u8, TriggeringMessage) {
                match self { $(Self::$name(_) => (<$name as Message>::PROCEDURE_CODE, <$name as Message>::DIRECTION),)* }
            }

            /// The octets of the message, one SCTP user message.
            pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                match self {
                    $(Self::$name(message) => codec::encode(message)
                        .map_err(|reason| EncodeError { message: <$name as Message>::NAME, reason }),)*
                }
            }

            /// The message behind an envelope; `None` for one this crate does not know.
            fn read(envelope: &Envelope, r: &mut Reader<'_>) -> Option<Result<Decoded, DecodeError>> {
                let procedure = (envelope.code, envelope.direction);
                $(if procedure == (<$name as Message>::PROCEDURE_CODE, <$name as Message>::DIRECTION) {
                    let read = codec::decode::<$name>(envelope, r);
                    return Some(read.map(|(message, notify)| Decoded { pdu: message.into(), notify }));
                })*
                None
            }

            /// The names of all messages, for tests and documentation.
            pub const NAMES: &'static [&'static str] = &[$(<$name as Message>::NAME,)*];
        }
    };
}

pdus! {
    F1SetupRequest,
    F1SetupResponse,
    F1SetupFailure,
    Reset,
    ResetAcknowledge,
    ErrorIndication,
    InitialUlRrcMessageTransfer,
    DlRrcMessageTransfer,
    UlRrcMessageTransfer,
    UeContextSetupRequest,
    UeContextSetupResponse,
    UeContextSetupFailure,
    UeContextReleaseRequest,
    UeContextReleaseCommand,
    UeContextReleaseComplete,
    UeContextModificationRequest,
    UeContextModificationResponse,
    UeContextModificationFailure,
    Paging,
}

impl Pdu {
    /// Decodes one SCTP user message.
    pub fn decode(octets: &[u8]) -> Result<Decoded, DecodeError> {
        let mut r = Reader::new(Variant::Aligned, octets);
        let envelope = Envelope::read(&mut r).map_err(DecodeError::no_pdu)?;
        Self::read(&envelope, &mut r).unwrap_or_else(|| Err(DecodeError::unknown_procedure(&envelope)))
    }
}
