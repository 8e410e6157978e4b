//! Namf_Communication (TS 29.518): what SMF asks AMF to pass to UE and gNB.

use types::{Arp, FiveQi, PduSessionId, SNssai};

use super::{common::NfInstanceId, model, open_enum, smf::N2SmInfoType};
use crate::{
    message::{BinaryPart, Media, PartSlot},
    operation::Message,
    problem::ProblemDetails,
};

open_enum! {
    /// Kind of N1 message.
    pub enum N1MessageClass {
        FiveGmm = "5GMM", Sm = "SM", Lpp = "LPP", Sms = "SMS", Updp = "UPDP", Lcs = "LCS",
    }
    /// Kind of N2 information.
    pub enum N2InformationClass {
        Sm = "SM", NrppA = "NRPPa", Pws = "PWS", PwsBcal = "PWS-BCAL", PwsRf = "PWS-RF", Ran = "RAN",
    }
    /// What became of a transfer.
    pub enum N1N2MessageTransferCause {
        AttemptingToReachUe = "ATTEMPTING_TO_REACH_UE",
        Initiated = "N1_N2_TRANSFER_INITIATED",
        WaitingForAsynchronousTransfer = "WAITING_FOR_ASYNCHRONOUS_TRANSFER",
        UeNotResponding = "UE_NOT_RESPONDING",
        N1MsgNotTransferred = "N1_MSG_NOT_TRANSFERRED",
        N2MsgNotTransferred = "N2_MSG_NOT_TRANSFERRED",
        UeNotReachableForSession = "UE_NOT_REACHABLE_FOR_SESSION",
        TemporaryRejectRegistrationOngoing = "TEMPORARY_REJECT_REGISTRATION_ONGOING",
        TemporaryRejectHandoverOngoing = "TEMPORARY_REJECT_HANDOVER_ONGOING",
        AnNotResponding = "AN_NOT_RESPONDING",
        FailureCauseUnspecified = "FAILURE_CAUSE_UNSPECIFIED",
    }
}

model! {
    /// N1 message for the UE, N2 information for the gNB, or both.
    #[derive(Default)]
    pub struct N1N2MessageTransferReqData: manual {
        ? n1_message_container: N1MessageContainer,
        ? n2_info_container: N2InfoContainer,
        ? skip_ind: bool,
        ? last_msg_indication: bool,
        ? pdu_session_id: PduSessionId,
        ? ppi: u8,
        ? arp: Arp,
        #[serde(rename = "5qi")]
        ? five_qi: FiveQi,
        #[serde(rename = "n1n2FailureTxfNotifURI")]
        ? n1n2_failure_txf_notif_uri: String,
        ? smf_reallocation_ind: bool,
        ? supported_features: String,
    }

    /// An N1 message.
    pub struct N1MessageContainer {
        n1_message_class: N1MessageClass,
        n1_message_content: BinaryPart,
        ? nf_id: NfInstanceId,
    }

    /// N2 information.
    pub struct N2InfoContainer {
        n2_information_class: N2InformationClass,
        ? sm_info: N2SmInformation,
    }

    /// N2 information about a session.
    pub struct N2SmInformation {
        pdu_session_id: PduSessionId,
        ? n2_info_content: N2InfoContent,
        ? s_nssai: SNssai,
        ? subject_to_ho: bool,
    }

    /// An NGAP information element.
    pub struct N2InfoContent {
        ? ngap_message_type: u32,
        ? ngap_ie_type: N2SmInfoType,
        ngap_data: BinaryPart,
    }

    /// How far the transfer got.
    pub struct N1N2MessageTransferRspData {
        cause: N1N2MessageTransferCause,
        ? supported_features: String,
    }

    /// The transfer was refused.
    pub struct N1N2MessageTransferError {
        error: ProblemDetails,
        ? err_info: N1N2MsgTxfrErrDetail,
    }

    /// When to try again.
    pub struct N1N2MsgTxfrErrDetail {
        ? retry_after: u32,
        ? highest_prio_arp: Arp,
    }

    /// AMF tells SMF that an accepted transfer failed later (callback `n1n2FailureTxfNotifURI`).
    pub struct N1N2MsgTxfrFailureNotification {
        cause: N1N2MessageTransferCause,
        n1n2_msg_data_uri: String,
    }
}

impl Message for N1N2MessageTransferReqData {
    fn parts(&mut self, visit: &mut dyn FnMut(PartSlot<'_>)) {
        if let Some(n1) = &mut self.n1_message_container {
            visit(PartSlot { id: "n1MessageContent", media: Media::Nas, part: &mut n1.n1_message_content });
        }
        let n2 = self.n2_info_container.as_mut().and_then(|n2| n2.sm_info.as_mut()?.n2_info_content.as_mut());
        if let Some(content) = n2 {
            visit(PartSlot { id: "ngapData", media: Media::Ngap, part: &mut content.ngap_data });
        }
    }
}

super::error_with_problem!(N1N2MessageTransferError { err_info });
