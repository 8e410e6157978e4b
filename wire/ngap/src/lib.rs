//! NGAP (TS 38.413), the protocol of N2 between gNB and AMF, behind Godwit's own message types.
//!
//! [`Pdu::decode`] and [`Pdu::encode`] are all that an endpoint needs. A received PDU that cannot be
//! served is a [`DecodeError`], whose [`reply`](DecodeError::reply) is what §10 of the standard has
//! the receiver send. The transfers that SMF and gNB exchange through the AMF are octets in the
//! messages and types in [`transfer`].
//!
//! Invariants: no octets make a decoder panic; memory is bounded by the size of the input (SCTP
//! bounds that); a decoded message satisfies the standard's mandatory IEs; what is encoded deviates
//! in nothing from the standard's object sets. The ASN.1 codec is `oxirush-ngap`; no type of it is
//! visible outside this crate.
//!
//! Read first: [`Pdu`], then [`message`] for how a message is declared, then `codec.rs` for §10.3.
//!
//! ```
//! use ngap::{Pdu, NgSetupFailure, cause::{Cause, Misc}};
//!
//! let failure = NgSetupFailure {
//!     cause: Cause::Misc(Misc::UnknownPlmnOrSnpn),
//!     time_to_wait: None,
//!     criticality_diagnostics: None,
//! };
//! let octets = Pdu::from(failure.clone()).encode()?;
//! assert_eq!(Pdu::decode(&octets)?.pdu, Pdu::NgSetupFailure(failure));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod cause;
mod codec;
mod error;
pub mod ie;
pub mod message;
pub mod transfer;
mod wire;

use bytes::Bytes;
use oxirush_ngap::ngap::NGAPPDU;

pub use cause::Cause;
pub use error::{DecodeError, EncodeError, ErrorKind, TransferError};
pub use ie::*;
pub use message::*;

/// SCTP payload protocol identifier of NGAP (TS 38.412 §7).
pub const PPID: u32 = 60;

/// SCTP port of NGAP (TS 38.412 §7).
pub const PORT: u16 = 38412;

/// A decoded PDU, and the errors in it that its sender is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The message.
    pub pdu: Pdu,
    /// IEs of criticality `notify` that were not comprehended: the receiver carries on and reports
    /// them in its response or an Error Indication with cause abstract-syntax-error-ignore-and-notify.
    pub notify: Option<CriticalityDiagnostics>,
}

macro_rules! pdus {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Every message this crate knows.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is the message of its name")]
        // Boxing the large ones would cost every reader a dereference to save bytes on short-lived values.
        #[allow(clippy::large_enum_variant)]
        pub enum Pdu { $($name($name),)* }

        $(impl From<$name> for Pdu {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*

        impl Pdu {
            /// The name TS 38.413 gives the message.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => <$name as message::Message>::NAME,)* }
            }

            /// The procedure code and which of its messages this is.
            pub fn procedure(&self) -> (u8, TriggeringMessage) {
                match self {
                    $(Self::$name(_) => (
                        <$name as message::Message>::PROCEDURE_CODE,
                        TriggeringMessage::of(<$name as message::Message>::DIRECTION),
                    ),)*
                }
            }

            /// The octets of the message, one SCTP user message.
            pub fn encode(&self) -> Result<Bytes, EncodeError> {
                match self { $(Self::$name(message) => codec::encode(message),)* }
            }

            /// The message of a decoded envelope; `None` for one this crate does not know.
            fn read(envelope: &NGAPPDU<'_>) -> Option<Result<Decoded, DecodeError>> {
                let procedure = (envelope.procedure_code(), envelope.direction());
                $(if procedure == (
                    <$name as message::Message>::PROCEDURE_CODE,
                    <$name as message::Message>::DIRECTION,
                ) {
                    let read = codec::decode::<$name>(envelope);
                    return Some(read.map(|(message, notify)| Decoded { pdu: message.into(), notify }));
                })*
                None
            }

            /// The names of all messages, for tests and documentation.
            pub const NAMES: &'static [&'static str] = &[$(<$name as message::Message>::NAME,)*];
        }
    };
}

pdus! {
    NgSetupRequest,
    NgSetupResponse,
    NgSetupFailure,
    RanConfigurationUpdate,
    RanConfigurationUpdateAcknowledge,
    RanConfigurationUpdateFailure,
    AmfConfigurationUpdate,
    AmfConfigurationUpdateAcknowledge,
    AmfConfigurationUpdateFailure,
    NgReset,
    NgResetAcknowledge,
    ErrorIndication,
    InitialUeMessage,
    UplinkNasTransport,
    DownlinkNasTransport,
    NasNonDeliveryIndication,
    RerouteNasRequest,
    InitialContextSetupRequest,
    InitialContextSetupResponse,
    InitialContextSetupFailure,
    UeContextReleaseRequest,
    UeContextReleaseCommand,
    UeContextReleaseComplete,
    UeContextModificationRequest,
    UeContextModificationResponse,
    UeContextModificationFailure,
    UeRadioCapabilityInfoIndication,
    Paging,
    PduSessionResourceSetupRequest,
    PduSessionResourceSetupResponse,
    PduSessionResourceReleaseCommand,
    PduSessionResourceReleaseResponse,
    PduSessionResourceModifyRequest,
    PduSessionResourceModifyResponse,
    PduSessionResourceNotify,
}

impl Pdu {
    /// Decodes one SCTP user message.
    pub fn decode(octets: &[u8]) -> Result<Decoded, DecodeError> {
        let envelope = NGAPPDU::decode_borrowed(octets).map_err(|error| DecodeError {
            kind: ErrorKind::TransferSyntax(error.to_string()),
            message: "NGAP-PDU",
            procedure: None,
            criticality: None,
            amf_ue_ngap_id: None,
            ran_ue_ngap_id: None,
            diagnostics: None,
        })?;
        Self::read(&envelope).unwrap_or_else(|| Err(unknown_procedure(&envelope)))
    }
}

/// Reads the UE identities out of every message that has both.
macro_rules! ue_ids {
    ($self:expr; $($name:ident)*) => {
        match $self {
            $(Pdu::$name(message) => (Some(message.amf_ue_ngap_id), Some(message.ran_ue_ngap_id)),)*
            Pdu::InitialUeMessage(message) => (None, Some(message.ran_ue_ngap_id)),
            Pdu::RerouteNasRequest(message) => (message.amf_ue_ngap_id, Some(message.ran_ue_ngap_id)),
            Pdu::ErrorIndication(message) => (message.amf_ue_ngap_id, message.ran_ue_ngap_id),
            Pdu::UeContextReleaseCommand(message) => match message.ue_ngap_ids {
                UeNgapIds::Pair(amf, ran) => (Some(amf), Some(ran)),
                UeNgapIds::Amf(amf) => (Some(amf), None),
            },
            _ => (None, None),
        }
    };
}

impl Pdu {
    /// The identities of the UE the message is about: the AMF's and the gNB's. Both are `None` in a
    /// message about the interface.
    pub fn ue_ids(&self) -> (Option<AmfUeNgapId>, Option<RanUeNgapId>) {
        ue_ids!(self;
            UplinkNasTransport DownlinkNasTransport NasNonDeliveryIndication
            InitialContextSetupRequest InitialContextSetupResponse InitialContextSetupFailure
            UeContextReleaseRequest UeContextReleaseComplete
            UeContextModificationRequest UeContextModificationResponse UeContextModificationFailure
            UeRadioCapabilityInfoIndication
            PduSessionResourceSetupRequest PduSessionResourceSetupResponse
            PduSessionResourceReleaseCommand PduSessionResourceReleaseResponse
            PduSessionResourceModifyRequest PduSessionResourceModifyResponse PduSessionResourceNotify
        )
    }
}

/// The error of a procedure that is not served here (§10.3.4.1).
fn unknown_procedure(envelope: &NGAPPDU<'_>) -> DecodeError {
    let procedure = (envelope.procedure_code(), codec::direction(envelope));
    let criticality = Criticality::from(envelope.criticality());
    DecodeError {
        kind: ErrorKind::UnknownProcedure,
        message: envelope.procedure_name(),
        procedure: Some(procedure),
        criticality: Some(criticality),
        amf_ue_ngap_id: envelope
            .ie::<oxirush_ngap::ie::AMF_UE_NGAP_ID>()
            .and_then(Result::ok)
            .map(|id| AmfUeNgapId(id.0)),
        ran_ue_ngap_id: envelope
            .ie::<oxirush_ngap::ie::RAN_UE_NGAP_ID>()
            .and_then(Result::ok)
            .map(|id| RanUeNgapId(id.0)),
        diagnostics: Some(CriticalityDiagnostics {
            procedure_code: Some(procedure.0),
            triggering_message: Some(procedure.1),
            procedure_criticality: Some(criticality),
            ies: Vec::new(),
        }),
    }
}
