//! What can be wrong with a message, and how TS 38.413 §10 has a receiver answer.
//!
//! A [`DecodeError`] carries everything the answer needs: the cause, the criticality diagnostics and
//! whatever UE identities could still be read. [`DecodeError::reply`] builds the answer itself.

use crate::Pdu;
use crate::cause::{Cause, Protocol};
use crate::ie::{AmfUeNgapId, Criticality, CriticalityDiagnostics, RanUeNgapId, TriggeringMessage};
use crate::message::*;

/// A value of ours that NGAP cannot carry, for example a list longer than the standard allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} does not encode: {reason}")]
pub struct EncodeError {
    /// The message or transfer.
    pub what: &'static str,
    /// What of it the standard does not allow.
    pub reason: String,
}

/// Why a received PDU was rejected (§10.2, §10.3).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The octets are no NGAP PDU, or an IE that matters does not decode.
    #[error("transfer syntax error: {0}")]
    TransferSyntax(String),
    /// A procedure that is unknown or not served here.
    #[error("procedure not comprehended")]
    UnknownProcedure,
    /// An IE that must be comprehended or present is not; the diagnostics say which.
    #[error("abstract syntax error (reject): {0}")]
    AbstractSyntaxReject(String),
    /// IEs repeated or in the wrong order (§10.3.6).
    #[error("falsely constructed message: {0}")]
    FalselyConstructed(String),
}

/// A received PDU that has to be rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {kind}")]
pub struct DecodeError {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The standard's name of the message, or "NGAP-PDU" if not even that could be read.
    pub message: &'static str,
    /// Procedure code and direction, where the envelope could be read.
    pub procedure: Option<(u8, TriggeringMessage)>,
    /// The criticality the sender gave the procedure.
    pub criticality: Option<Criticality>,
    /// The AMF's identity of the UE concerned, where it could be read.
    pub amf_ue_ngap_id: Option<AmfUeNgapId>,
    /// The gNB's identity of the UE concerned, where it could be read.
    pub ran_ue_ngap_id: Option<RanUeNgapId>,
    /// The IEs at fault, with the procedure they came in.
    pub diagnostics: Option<CriticalityDiagnostics>,
}

impl DecodeError {
    /// The protocol cause to answer with.
    pub fn cause(&self) -> Cause {
        Cause::Protocol(match self.kind {
            ErrorKind::TransferSyntax(_) => Protocol::TransferSyntaxError,
            ErrorKind::UnknownProcedure if self.criticality == Some(Criticality::Notify) => {
                Protocol::AbstractSyntaxErrorIgnoreAndNotify
            }
            ErrorKind::UnknownProcedure | ErrorKind::AbstractSyntaxReject(_) => {
                Protocol::AbstractSyntaxErrorReject
            }
            ErrorKind::FalselyConstructed(_) => Protocol::AbstractSyntaxErrorFalselyConstructedMessage,
        })
    }

    /// The PDU to answer with: the procedure's failure message where it has one (§10.3.5), otherwise
    /// an Error Indication. `None` when nothing is to be sent: an unknown procedure of criticality
    /// ignore (§10.3.4.1), and anything wrong with an Error Indication itself (§10.5).
    pub fn reply(&self) -> Option<Pdu> {
        const ERROR_INDICATION: u8 = <ErrorIndication as Message>::PROCEDURE_CODE;
        if matches!(self.procedure, Some((ERROR_INDICATION, _)))
            || (self.kind == ErrorKind::UnknownProcedure && self.criticality == Some(Criticality::Ignore))
        {
            return None;
        }
        let failure = match self.procedure {
            Some((code, TriggeringMessage::InitiatingMessage)) => self.failure(code),
            _ => None,
        };
        failure.or_else(|| {
            Some(Pdu::ErrorIndication(ErrorIndication {
                amf_ue_ngap_id: self.amf_ue_ngap_id,
                ran_ue_ngap_id: self.ran_ue_ngap_id,
                cause: Some(self.cause()),
                criticality_diagnostics: self.diagnostics.clone(),
                s_tmsi: None,
            }))
        })
    }

    /// The unsuccessful outcome of the procedure, where the standard has one and its mandatory IEs
    /// are known.
    fn failure(&self, code: u8) -> Option<Pdu> {
        let cause = self.cause();
        // In a response the diagnostics list IEs only; the procedure is understood (§9.3.1.3).
        let criticality_diagnostics = self
            .diagnostics
            .as_ref()
            .map(|found| CriticalityDiagnostics { ies: found.ies.clone(), ..Default::default() });
        let criticality_diagnostics = criticality_diagnostics.filter(|found| !found.ies.is_empty());
        match code {
            <NgSetupFailure as Message>::PROCEDURE_CODE => {
                Some(NgSetupFailure { cause, time_to_wait: None, criticality_diagnostics }.into())
            }
            <RanConfigurationUpdateFailure as Message>::PROCEDURE_CODE => Some(
                RanConfigurationUpdateFailure { cause, time_to_wait: None, criticality_diagnostics }.into(),
            ),
            <AmfConfigurationUpdateFailure as Message>::PROCEDURE_CODE => Some(
                AmfConfigurationUpdateFailure { cause, time_to_wait: None, criticality_diagnostics }.into(),
            ),
            <InitialContextSetupFailure as Message>::PROCEDURE_CODE => Some(
                InitialContextSetupFailure {
                    amf_ue_ngap_id: self.amf_ue_ngap_id?,
                    ran_ue_ngap_id: self.ran_ue_ngap_id?,
                    failed: Vec::new(),
                    cause,
                    criticality_diagnostics,
                }
                .into(),
            ),
            <UeContextModificationFailure as Message>::PROCEDURE_CODE => Some(
                UeContextModificationFailure {
                    amf_ue_ngap_id: self.amf_ue_ngap_id?,
                    ran_ue_ngap_id: self.ran_ue_ngap_id?,
                    cause,
                    criticality_diagnostics,
                }
                .into(),
            ),
            _ => None,
        }
    }
}

/// A transfer that does not decode (§9.3.4). Answered within the session's own procedure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{transfer} does not decode: {reason}")]
pub struct TransferError {
    /// The standard's name of the transfer.
    pub transfer: &'static str,
    /// What is wrong with it.
    pub reason: String,
}
