//! Messages about PDU session resources (TS 38.413 §8.2).

use crate::ie::*;
use crate::message::messages;
use bytes::Bytes;
use types::Ambr;

messages! {
    /// PDU SESSION RESOURCE SETUP REQUEST (§9.2.1.1).
    PduSessionResourceSetupRequest = PDUSessionResourceSetupRequest {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// NAS message for the UE that belongs to no session.
        nas_pdu: Option<Bytes> = NAS_PDU reject opt,
        /// The sessions, with Setup Request Transfers.
        pdu_sessions: Vec<PduSessionSetupItem> = PDUSessionResourceSetupListSUReq reject req,
        /// The UE's aggregate bit rate of non-GBR flows.
        ue_ambr: Option<Ambr> = UEAggregateMaximumBitRate ignore opt,
    }

    /// PDU SESSION RESOURCE SETUP RESPONSE (§9.2.1.2).
    PduSessionResourceSetupResponse = PDUSessionResourceSetupResponse {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Sessions set up, with Setup Response Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceSetupListSURes ignore list,
        /// Sessions that were not, with Setup Unsuccessful Transfers.
        failed: Vec<PduSessionItem> = PDUSessionResourceFailedToSetupListSURes ignore list,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
        /// Where the UE is.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
    }

    /// PDU SESSION RESOURCE RELEASE COMMAND (§9.2.1.3).
    PduSessionResourceReleaseCommand = PDUSessionResourceReleaseCommand {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// NAS message for the UE.
        nas_pdu: Option<Bytes> = NAS_PDU ignore opt,
        /// The sessions, with Release Command Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceToReleaseListRelCmd reject req,
    }

    /// PDU SESSION RESOURCE RELEASE RESPONSE (§9.2.1.4).
    PduSessionResourceReleaseResponse = PDUSessionResourceReleaseResponse {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// The sessions, with Release Response Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceReleasedListRelRes ignore req,
        /// Where the UE is.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
        /// What was at fault in the command.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// PDU SESSION RESOURCE MODIFY REQUEST (§9.2.1.5).
    PduSessionResourceModifyRequest = PDUSessionResourceModifyRequest {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The sessions, with Modify Request Transfers.
        pdu_sessions: Vec<PduSessionModifyItem> = PDUSessionResourceModifyListModReq reject req,
    }

    /// PDU SESSION RESOURCE MODIFY RESPONSE (§9.2.1.6).
    PduSessionResourceModifyResponse = PDUSessionResourceModifyResponse {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Sessions modified, with Modify Response Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceModifyListModRes ignore list,
        /// Sessions that were not, with Modify Unsuccessful Transfers.
        failed: Vec<PduSessionItem> = PDUSessionResourceFailedToModifyListModRes ignore list,
        /// Where the UE is.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// PDU SESSION RESOURCE NOTIFY (§9.2.1.7): QoS no longer, or again, fulfilled; or released.
    PduSessionResourceNotify = PDUSessionResourceNotify {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// Sessions with news, with Notify Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceNotifyList reject list,
        /// Sessions the gNB released, with Notify Released Transfers.
        released: Vec<PduSessionItem> = PDUSessionResourceReleasedListNot ignore list,
        /// Where the UE is.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
    }
}
