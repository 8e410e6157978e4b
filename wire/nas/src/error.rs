//! Errors of decoding and encoding.
//!
//! Errors are split by what the receiver must do (TS 24.501 §7): ignore the message, answer it with a cause,
//! or go on without an optional element.

use crate::{GmmCause, GsmCause};

/// Why received octets cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Ends inside its header: to be ignored (TS 24.501 §7.2.1).
    #[error("the message ends inside its header")]
    TooShort,
    /// Not the protocol of this decoder: to be ignored (TS 24.501 §7.2.2).
    #[error("extended protocol discriminator {0:#04x} is not the expected one")]
    UnknownProtocol(u8),
    /// A security protected message where a plain one must be: unprotect it first, else ignore it.
    #[error("the message is security protected (security header type {0})")]
    Protected(u8),
    /// A message type that does not exist or is not implemented (TS 24.501 §7.4).
    #[error("message type {0:#04x} is not implemented")]
    UnknownMessageType(u8),
    /// A PDU session identity that is reserved: to be ignored (TS 24.501 §7.3.2).
    #[error("PDU session identity {0} is reserved")]
    ReservedPduSessionId(u8),
    /// The reserved procedure transaction identity 255 (TS 24.501 §7.3.1).
    #[error("procedure transaction identity 255 is reserved")]
    ReservedPti,
    /// A mandatory element is missing or wrong (TS 24.501 §7.5.1).
    #[error("mandatory element `{ie}` {reason}")]
    InvalidMandatory {
        /// The element, as TS 24.501 names it in lower case with hyphens.
        ie: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An unknown element that is encoded as "comprehension required" (TS 24.501 §7.5.1).
    #[error("unknown element {0:#04x} must be understood")]
    ComprehensionRequired(u8),
    /// Another error, for which the standard has no cause of its own.
    #[error("{0}")]
    Protocol(String),
}

impl DecodeError {
    /// The 5GMM cause to answer with in 5GMM STATUS (or in the procedure's own reject); `None`: ignore the message.
    pub fn gmm_cause(&self) -> Option<GmmCause> {
        match self {
            Self::TooShort | Self::UnknownProtocol(_) | Self::Protected(_) => None,
            Self::ReservedPduSessionId(_) | Self::ReservedPti => None,
            Self::UnknownMessageType(_) => Some(GmmCause::MessageTypeNotImplemented),
            Self::InvalidMandatory { .. } | Self::ComprehensionRequired(_) => {
                Some(GmmCause::InvalidMandatoryInformation)
            }
            Self::Protocol(_) => Some(GmmCause::ProtocolErrorUnspecified),
        }
    }

    /// The 5GSM cause to answer with in 5GSM STATUS (or in the procedure's own reject); `None`: ignore the message.
    pub fn gsm_cause(&self) -> Option<GsmCause> {
        match self {
            Self::TooShort | Self::UnknownProtocol(_) | Self::Protected(_) => None,
            Self::ReservedPduSessionId(_) => None,
            Self::ReservedPti => Some(GsmCause::InvalidPti),
            Self::UnknownMessageType(_) => Some(GsmCause::MessageTypeNotImplemented),
            Self::InvalidMandatory { .. } | Self::ComprehensionRequired(_) => {
                Some(GsmCause::InvalidMandatoryInformation)
            }
            Self::Protocol(_) => Some(GsmCause::ProtocolErrorUnspecified),
        }
    }
}

/// An optional element that was wrong and is treated as absent (TS 24.501 §7.6); to be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("optional element `{ie}` ignored: {reason}")]
pub struct SoftError {
    /// The element: its name in this crate, or its IEI in hexadecimal.
    pub ie: String,
    /// What is wrong with it.
    pub reason: String,
}

/// A decoded message, and the optional elements that were left out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded<M> {
    /// The message.
    pub message: M,
    /// What was wrong with optional elements; empty for a clean message.
    pub soft_errors: Vec<SoftError>,
}

/// Why a message cannot be encoded: a value does not fit its element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot encode `{ie}`: {reason}")]
pub struct EncodeError {
    /// The element that does not fit, or the message.
    pub ie: &'static str,
    /// Why.
    pub reason: String,
}

/// The value of one element is not what its clause says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub(crate) &'static str);
