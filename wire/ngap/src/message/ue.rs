//! Messages about one UE's connection (TS 38.413 §8.3, §8.5, §8.6, §8.14): NAS transport, context, paging.

use crate::cause::Cause;
use crate::ie::*;
use crate::message::messages;
use bytes::Bytes;
use types::{Ambr, Guami, Key, PduSessionId, SNssai, STmsi, Tai};

messages! {
    /// INITIAL UE MESSAGE (§9.2.5.1): the first NAS message of a UE without an N2 connection.
    InitialUeMessage = InitialUEMessage {
        /// The gNB's new identity for the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The NAS message.
        nas_pdu: Bytes = NAS_PDU reject req,
        /// Where the UE is.
        user_location: UserLocation = UserLocationInformation reject req,
        /// Why it connected.
        rrc_establishment_cause: RrcEstablishmentCause = RRCEstablishmentCause ignore def,
        /// Who it is, if it said so to the gNB.
        s_tmsi: Option<STmsi> = FiveG_S_TMSI reject opt,
        /// The AMF set it asked for, in a rerouted message.
        amf_set_id: Option<AmfSetId> = AMFSetID ignore opt,
        /// Whether the gNB wants an Initial Context Setup even for signalling only.
        ue_context_request: bool = UEContextRequest ignore flag,
        /// Slices allowed, in a rerouted message.
        allowed_nssai: Option<Vec<SNssai>> = AllowedNSSAI reject opt,
    }

    /// UPLINK NAS TRANSPORT (§9.2.5.3).
    UplinkNasTransport = UplinkNASTransport {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The NAS message.
        nas_pdu: Bytes = NAS_PDU reject req,
        /// Where the UE is. Mandatory, but a receiver may do without (criticality ignore).
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
    }

    /// DOWNLINK NAS TRANSPORT (§9.2.5.2).
    DownlinkNasTransport = DownlinkNASTransport {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The AMF that held the UE before a relocation.
        old_amf: Option<String> = OldAMF reject opt,
        /// The NAS message.
        nas_pdu: Bytes = NAS_PDU reject req,
        /// The UE's aggregate bit rate of non-GBR flows.
        ue_ambr: Option<Ambr> = UEAggregateMaximumBitRate ignore opt,
        /// Slices the UE may use.
        allowed_nssai: Option<Vec<SNssai>> = AllowedNSSAI reject opt,
    }

    /// NAS NON DELIVERY INDICATION (§9.2.5.4).
    NasNonDeliveryIndication = NASNonDeliveryIndication {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The message that did not reach the UE. Mandatory, but of criticality ignore.
        nas_pdu: Option<Bytes> = NAS_PDU ignore opt,
        /// Why.
        cause: Cause = Cause ignore def,
    }

    /// REROUTE NAS REQUEST (§9.2.5.5): hand this initial message to another AMF.
    RerouteNasRequest = RerouteNASRequest {
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The AMF's identity of the UE, if it gave one.
        amf_ue_ngap_id: Option<AmfUeNgapId> = AMF_UE_NGAP_ID ignore opt,
        /// The whole INITIAL UE MESSAGE as received.
        ngap_message: Bytes = NGAP_Message reject req,
        /// The set to choose the other AMF from.
        amf_set_id: AmfSetId = AMFSetID reject req,
        /// Slices allowed.
        allowed_nssai: Option<Vec<SNssai>> = AllowedNSSAI reject opt,
    }

    /// INITIAL CONTEXT SETUP REQUEST (§9.2.2.1).
    InitialContextSetupRequest = InitialContextSetupRequest {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The UE's aggregate bit rate; present whenever sessions are.
        ue_ambr: Option<Ambr> = UEAggregateMaximumBitRate reject opt,
        /// The AMF's identity.
        guami: Guami = GUAMI reject req,
        /// Sessions to set up at once.
        pdu_sessions: Vec<PduSessionSetupItem> = PDUSessionResourceSetupListCxtReq reject list,
        /// Slices the UE may use.
        allowed_nssai: Vec<SNssai> = AllowedNSSAI reject req,
        /// Algorithms the UE supports.
        ue_security_capabilities: UeSecurityCapabilities = UESecurityCapabilities reject req,
        /// K_gNB.
        security_key: Key<32> = SecurityKey reject req,
        /// What the UE told of its radio, opaque.
        ue_radio_capability: Option<Bytes> = UERadioCapability ignore opt,
        /// NAS message for the UE.
        nas_pdu: Option<Bytes> = NAS_PDU ignore opt,
    }

    /// INITIAL CONTEXT SETUP RESPONSE (§9.2.2.2).
    InitialContextSetupResponse = InitialContextSetupResponse {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Sessions set up, with Setup Response Transfers.
        pdu_sessions: Vec<PduSessionItem> = PDUSessionResourceSetupListCxtRes ignore list,
        /// Sessions that were not, with Setup Unsuccessful Transfers.
        failed: Vec<PduSessionItem> = PDUSessionResourceFailedToSetupListCxtRes ignore list,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// INITIAL CONTEXT SETUP FAILURE (§9.2.2.3).
    InitialContextSetupFailure = InitialContextSetupFailure {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Sessions that failed, with Setup Unsuccessful Transfers.
        failed: Vec<PduSessionItem> = PDUSessionResourceFailedToSetupListCxtFail ignore list,
        /// Why.
        cause: Cause = Cause ignore def,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// UE CONTEXT RELEASE REQUEST (§9.2.2.4): the gNB asks for the release.
    UeContextReleaseRequest = UEContextReleaseRequest {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// Sessions with user plane resources in the gNB.
        pdu_sessions: Vec<PduSessionId> = PDUSessionResourceListCxtRelReq reject list,
        /// Why.
        cause: Cause = Cause ignore def,
    }

    /// UE CONTEXT RELEASE COMMAND (§9.2.2.5).
    UeContextReleaseCommand = UEContextReleaseCommand {
        /// The UE.
        ue_ngap_ids: UeNgapIds = UE_NGAP_IDs reject req,
        /// Why.
        cause: Cause = Cause ignore def,
    }

    /// UE CONTEXT RELEASE COMPLETE (§9.2.2.6).
    UeContextReleaseComplete = UEContextReleaseComplete {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Where the UE was last.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
        /// Sessions that had user plane resources in the gNB.
        pdu_sessions: Vec<PduSessionId> = PDUSessionResourceListCxtRelCpl reject list,
        /// What was at fault in the command.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// UE CONTEXT MODIFICATION REQUEST (§9.2.2.7); absent fields do not change.
    UeContextModificationRequest = UEContextModificationRequest {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// New K_gNB.
        security_key: Option<Key<32>> = SecurityKey reject opt,
        /// New aggregate bit rate.
        ue_ambr: Option<Ambr> = UEAggregateMaximumBitRate ignore opt,
        /// New security capabilities.
        ue_security_capabilities: Option<UeSecurityCapabilities> = UESecurityCapabilities reject opt,
        /// New AMF identity of the UE.
        new_amf_ue_ngap_id: Option<AmfUeNgapId> = NewAMF_UE_NGAP_ID reject opt,
    }

    /// UE CONTEXT MODIFICATION RESPONSE (§9.2.2.8).
    UeContextModificationResponse = UEContextModificationResponse {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Where the UE is.
        user_location: Option<UserLocation> = UserLocationInformation ignore opt,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// UE CONTEXT MODIFICATION FAILURE (§9.2.2.9).
    UeContextModificationFailure = UEContextModificationFailure {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID ignore req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID ignore req,
        /// Why.
        cause: Cause = Cause ignore def,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// UE RADIO CAPABILITY INFO INDICATION (§9.2.13.1).
    UeRadioCapabilityInfoIndication = UERadioCapabilityInfoIndication {
        /// The AMF's identity of the UE.
        amf_ue_ngap_id: AmfUeNgapId = AMF_UE_NGAP_ID reject req,
        /// The gNB's identity of the UE.
        ran_ue_ngap_id: RanUeNgapId = RAN_UE_NGAP_ID reject req,
        /// The radio capabilities, opaque. Mandatory, but of criticality ignore.
        ue_radio_capability: Option<Bytes> = UERadioCapability ignore opt,
    }

    /// PAGING (§9.2.4.1): find an idle UE.
    Paging = Paging {
        /// The UE.
        s_tmsi: STmsi = UEPagingIdentity ignore req,
        /// Its own paging cycle, if it has one.
        paging_drx: Option<PagingDrx> = PagingDRX ignore opt,
        /// Where to look.
        tais: Vec<Tai> = TAIListForPaging ignore req,
    }
}
