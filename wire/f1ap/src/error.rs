//! What can be wrong with a message, and how TS 38.473 §10 has a receiver answer.

use crate::Pdu;
use crate::cause::{Cause, Protocol};
use crate::codec::Envelope;
use crate::ie::{
    Criticality, CriticalityDiagnostics, GnbCuUeF1apId, GnbDuUeF1apId, ProcedureCode, TransactionId,
    TriggeringMessage,
};
use crate::message::*;

/// A value of ours that F1AP cannot carry, for example a list longer than the standard allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message} does not encode: {reason}")]
pub struct EncodeError {
    /// The message.
    pub message: &'static str,
    /// What of it the standard does not allow.
    pub reason: per::EncodeError,
}

/// Why a received PDU was rejected (§10.2, §10.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The octets are no F1AP PDU, or an IE that matters does not decode.
    #[error("transfer syntax error: {0}")]
    TransferSyntax(per::DecodeError),
    /// A procedure that is unknown or not served here.
    #[error("procedure not comprehended")]
    UnknownProcedure,
    /// An IE of criticality reject that is not known here.
    #[error("IE {0} not comprehended")]
    UnknownIe(u16),
    /// An IE that has to be there is not.
    #[error("IE {0} is missing")]
    MissingIe(u16),
    /// An IE that comes twice (§10.3.6).
    #[error("IE {0} is repeated")]
    FalselyConstructed(u16),
}

/// A received PDU that has to be rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {kind}")]
pub struct DecodeError {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The standard's name of the message, or "F1AP-PDU" if it is not known.
    pub message: &'static str,
    /// Procedure code and direction, where the envelope could be read.
    pub procedure: Option<(u8, TriggeringMessage)>,
    /// The criticality the sender gave the procedure.
    pub criticality: Option<Criticality>,
    /// The CU's number of the UE concerned, where it could be read.
    pub gnb_cu_ue_f1ap_id: Option<GnbCuUeF1apId>,
    /// The DU's number of the UE concerned, where it could be read.
    pub gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId>,
    /// The transaction, where it could be read.
    pub transaction_id: Option<TransactionId>,
    /// The IEs at fault, with the procedure they came in.
    pub diagnostics: Option<CriticalityDiagnostics>,
}

impl DecodeError {
    /// The octets do not even have an envelope.
    pub(crate) fn no_pdu(why: per::DecodeError) -> Self {
        Self {
            kind: ErrorKind::TransferSyntax(why),
            message: "F1AP-PDU",
            procedure: None,
            criticality: None,
            gnb_cu_ue_f1ap_id: None,
            gnb_du_ue_f1ap_id: None,
            transaction_id: None,
            diagnostics: None,
        }
    }

    /// The procedure is not served here (§10.3.4.1).
    pub(crate) fn unknown_procedure(envelope: &Envelope) -> Self {
        Self {
            kind: ErrorKind::UnknownProcedure,
            message: "F1AP-PDU",
            procedure: Some((envelope.code, envelope.direction)),
            criticality: Some(envelope.criticality),
            gnb_cu_ue_f1ap_id: None,
            gnb_du_ue_f1ap_id: None,
            transaction_id: None,
            diagnostics: Some(CriticalityDiagnostics {
                procedure_code: Some(ProcedureCode(envelope.code)),
                triggering_message: Some(envelope.direction),
                procedure_criticality: Some(envelope.criticality),
                transaction_id: None,
                ies: Vec::new(),
            }),
        }
    }

    /// The protocol cause to answer with.
    pub fn cause(&self) -> Cause {
        Cause::Protocol(match self.kind {
            ErrorKind::TransferSyntax(_) => Protocol::TransferSyntaxError,
            ErrorKind::UnknownProcedure if self.criticality == Some(Criticality::Notify) => {
                Protocol::AbstractSyntaxErrorIgnoreAndNotify
            }
            ErrorKind::UnknownProcedure | ErrorKind::UnknownIe(_) | ErrorKind::MissingIe(_) => {
                Protocol::AbstractSyntaxErrorReject
            }
            ErrorKind::FalselyConstructed(_) => Protocol::AbstractSyntaxErrorFalselyConstructedMessage,
        })
    }

    /// The PDU to answer with: the procedure's failure message where it has one (§10.3.5), otherwise an Error
    /// Indication. `None` when nothing is to be sent: an unknown procedure of criticality ignore (§10.3.4.1), and
    /// anything wrong with an Error Indication itself (§10.5).
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
                transaction_id: self.transaction_id.unwrap_or_default(),
                gnb_cu_ue_f1ap_id: self.gnb_cu_ue_f1ap_id,
                gnb_du_ue_f1ap_id: self.gnb_du_ue_f1ap_id,
                cause: Some(self.cause()),
                criticality_diagnostics: self.diagnostics.clone(),
            }))
        })
    }

    /// The unsuccessful outcome of the procedure, where it has one and its mandatory IEs are known.
    fn failure(&self, code: u8) -> Option<Pdu> {
        let cause = self.cause();
        // In a response the diagnostics list IEs only; the procedure is understood (§9.3.1.3).
        let ies = self.diagnostics.as_ref().map(|found| found.ies.clone()).filter(|ies| !ies.is_empty());
        let criticality_diagnostics = ies.map(|ies| CriticalityDiagnostics {
            procedure_code: None,
            triggering_message: None,
            procedure_criticality: None,
            transaction_id: None,
            ies,
        });
        Some(match code {
            <F1SetupFailure as Message>::PROCEDURE_CODE => F1SetupFailure {
                transaction_id: self.transaction_id?,
                cause,
                time_to_wait: None,
                criticality_diagnostics,
            }
            .into(),
            <UeContextSetupFailure as Message>::PROCEDURE_CODE => UeContextSetupFailure {
                gnb_cu_ue_f1ap_id: self.gnb_cu_ue_f1ap_id?,
                gnb_du_ue_f1ap_id: self.gnb_du_ue_f1ap_id,
                cause,
                criticality_diagnostics,
            }
            .into(),
            <UeContextModificationFailure as Message>::PROCEDURE_CODE => UeContextModificationFailure {
                gnb_cu_ue_f1ap_id: self.gnb_cu_ue_f1ap_id?,
                gnb_du_ue_f1ap_id: self.gnb_du_ue_f1ap_id?,
                cause,
                criticality_diagnostics,
            }
            .into(),
            _ => return None,
        })
    }
}
