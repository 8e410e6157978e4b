//! Nsmf_PDUSession (TS 29.502): SM contexts between AMF and SMF.

use types::{Dnn, Guami, PduSessionId, Pei, Plmn, SNssai, Supi};

use super::{
    common::{AccessType, NfInstanceId, NgApCause, RatType, UserLocation},
    model, open_enum,
};
use crate::{
    message::{BinaryPart, Media, PartSlot, visit_part},
    operation::Message,
    problem::ProblemDetails,
};

open_enum! {
    /// Why a context is created.
    pub enum RequestType {
        InitialRequest = "INITIAL_REQUEST",
        ExistingPduSession = "EXISTING_PDU_SESSION",
        InitialEmergencyRequest = "INITIAL_EMERGENCY_REQUEST",
        ExistingEmergencyPduSession = "EXISTING_EMERGENCY_PDU_SESSION",
    }
    /// State of the user-plane connection.
    pub enum UpCnxState { Activated = "ACTIVATED", Deactivated = "DEACTIVATED", Activating = "ACTIVATING", }
    /// State of a handover.
    pub enum HoState {
        None = "NONE", Preparing = "PREPARING", Prepared = "PREPARED",
        Completed = "COMPLETED", Cancelled = "CANCELLED",
    }
    /// What the N2 container holds; the NGAP transfer of TS 38.413 §9.3.4.
    pub enum N2SmInfoType {
        PduResSetupReq = "PDU_RES_SETUP_REQ",
        PduResSetupRsp = "PDU_RES_SETUP_RSP",
        PduResSetupFail = "PDU_RES_SETUP_FAIL",
        PduResRelCmd = "PDU_RES_REL_CMD",
        PduResRelRsp = "PDU_RES_REL_RSP",
        PduResModReq = "PDU_RES_MOD_REQ",
        PduResModRsp = "PDU_RES_MOD_RSP",
        PduResModFail = "PDU_RES_MOD_FAIL",
        PduResNty = "PDU_RES_NTY",
        PduResNtyRel = "PDU_RES_NTY_REL",
        PduResModInd = "PDU_RES_MOD_IND",
        PduResModCfm = "PDU_RES_MOD_CFM",
        PathSwitchReq = "PATH_SWITCH_REQ",
        PathSwitchSetupFail = "PATH_SWITCH_SETUP_FAIL",
        PathSwitchReqAck = "PATH_SWITCH_REQ_ACK",
        PathSwitchReqFail = "PATH_SWITCH_REQ_FAIL",
        HandoverRequired = "HANDOVER_REQUIRED",
        HandoverCmd = "HANDOVER_CMD",
        HandoverPrepFail = "HANDOVER_PREP_FAIL",
        HandoverReqAck = "HANDOVER_REQ_ACK",
        HandoverResAllocFail = "HANDOVER_RES_ALLOC_FAIL",
    }
    /// Why a context is changed or released (TS 29.502 `Cause`).
    pub enum Cause {
        RelDueToHo = "REL_DUE_TO_HO",
        RelDueToUpSec = "REL_DUE_TO_UP_SEC",
        DnnCongestion = "DNN_CONGESTION",
        SNssaiCongestion = "S-NSSAI_CONGESTION",
        RelDueToReactivation = "REL_DUE_TO_REACTIVATION",
        FiveGAnNotResponding = "5G_AN_NOT_RESPONDING",
        RelDueToSliceNotAvailable = "REL_DUE_TO_SLICE_NOT_AVAILABLE",
        RelDueToDuplicateSessionId = "REL_DUE_TO_DUPLICATE_SESSION_ID",
        PduSessionStatusMismatch = "PDU_SESSION_STATUS_MISMATCH",
        HoFailure = "HO_FAILURE",
        InsufficientUpResources = "INSUFFICIENT_UP_RESOURCES",
        PduSessionHandedOver = "PDU_SESSION_HANDED_OVER",
        PduSessionResumed = "PDU_SESSION_RESUMED",
        CnAssistedRanParameterTuning = "CN_ASSISTED_RAN_PARAMETER_TUNING",
        RelDueToUnspecifiedReason = "REL_DUE_TO_UNSPECIFIED_REASON",
        RelDueToSubscriptionChange = "REL_DUE_TO_SUBSCRIPTION_CHANGE",
        RelDueToSnpnSnpnMobility = "REL_DUE_TO_SNPN_SNPN_MOBILITY",
    }
    /// What became of a context.
    pub enum ResourceStatus { Released = "RELEASED", Unreleased = "UNRELEASED", Transferred = "TRANSFERRED", Updated = "UPDATED", }
}

model! {
    /// Creates an SM context; `n1_sm_msg` is the UE's PDU SESSION ESTABLISHMENT REQUEST.
    pub struct SmContextCreateData: manual {
        ? supi: Supi,
        ? unauthenticated_supi: bool,
        ? pei: Pei,
        ? gpsi: String,
        ? pdu_session_id: PduSessionId,
        ? dnn: Dnn,
        ? selected_dnn: Dnn,
        ? s_nssai: SNssai,
        ? hplmn_snssai: SNssai,
        serving_nf_id: NfInstanceId,
        ? guami: Guami,
        ? service_name: String,
        serving_network: Plmn,
        ? request_type: RequestType,
        ? n1_sm_msg: BinaryPart,
        an_type: AccessType,
        ? rat_type: RatType,
        ? ue_location: UserLocation,
        ? ue_time_zone: String,
        sm_context_status_uri: String,
        ? old_pdu_session_id: PduSessionId,
        ? pcf_id: NfInstanceId,
        ? sel_mode: String,
        ? supported_features: String,
    }

    /// The context was created; N1 and N2 follow in Namf_Communication.
    #[derive(Default)]
    pub struct SmContextCreatedData: manual {
        ? pdu_session_id: PduSessionId,
        ? s_nssai: SNssai,
        ? up_cnx_state: UpCnxState,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
        ? gpsi: String,
        ? supported_features: String,
    }

    /// It was not; `n1_sm_msg` is the PDU SESSION ESTABLISHMENT REJECT for the UE.
    pub struct SmContextCreateError: manual {
        error: ProblemDetails,
        ? n1_sm_msg: BinaryPart,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
    }

    /// Changes a context: a NAS message from the UE, an answer from the gNB, or a new state.
    #[derive(Default)]
    pub struct SmContextUpdateData: manual {
        ? pei: Pei,
        ? serving_nf_id: NfInstanceId,
        ? guami: Guami,
        ? serving_network: Plmn,
        ? an_type: AccessType,
        ? rat_type: RatType,
        ? ue_location: UserLocation,
        ? ue_time_zone: String,
        ? up_cnx_state: UpCnxState,
        ? ho_state: HoState,
        ? to_be_switched: bool,
        ? failed_to_be_switched: bool,
        ? n1_sm_msg: BinaryPart,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
        ? sm_context_status_uri: String,
        ? data_forwarding: bool,
        ? s_nssai: SNssai,
        ? release: bool,
        ? cause: Cause,
        ? ng_ap_cause: NgApCause,
        #[serde(rename = "5gMmCauseValue")]
        ? five_gmm_cause_value: u8,
    }

    /// What AMF has to pass on.
    #[derive(Default)]
    pub struct SmContextUpdatedData: manual {
        ? up_cnx_state: UpCnxState,
        ? ho_state: HoState,
        ? n1_sm_msg: BinaryPart,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
        ? cause: Cause,
        ? data_forwarding: bool,
        ? supported_features: String,
    }

    /// The change failed.
    pub struct SmContextUpdateError: manual {
        error: ProblemDetails,
        ? n1_sm_msg: BinaryPart,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
        ? up_cnx_state: UpCnxState,
    }

    /// Ends a context without telling the UE.
    #[derive(Default)]
    pub struct SmContextReleaseData: manual {
        ? cause: Cause,
        ? ng_ap_cause: NgApCause,
        #[serde(rename = "5gMmCauseValue")]
        ? five_gmm_cause_value: u8,
        ? ue_location: UserLocation,
        ? ue_time_zone: String,
        ? vsmf_release_only: bool,
        ? n2_sm_info: BinaryPart,
        ? n2_sm_info_type: N2SmInfoType,
    }

    /// SMF tells AMF what became of a context (callback `smContextStatusUri`).
    pub struct SmContextStatusNotification {
        status_info: StatusInfo,
    }

    /// New state of a context, and why.
    pub struct StatusInfo {
        resource_status: ResourceStatus,
        ? cause: Cause,
        ? an_type: AccessType,
    }
}

/// Messages whose only binary parts are `n1SmMsg` and `n2SmInfo`.
macro_rules! n1_and_n2 {
    ($($name:ident),*) => {$(
        impl Message for $name {
            fn parts(&mut self, visit: &mut dyn FnMut(PartSlot<'_>)) {
                visit_part(visit, "n1SmMsg", Media::Nas, &mut self.n1_sm_msg);
                visit_part(visit, "n2SmInfo", Media::Ngap, &mut self.n2_sm_info);
            }
        }
    )*};
}

/// Messages whose only binary part is `n2SmInfo`.
macro_rules! n2_only {
    ($($name:ident),*) => {$(
        impl Message for $name {
            fn parts(&mut self, visit: &mut dyn FnMut(PartSlot<'_>)) {
                visit_part(visit, "n2SmInfo", Media::Ngap, &mut self.n2_sm_info);
            }
        }
    )*};
}

n1_and_n2!(SmContextUpdateData, SmContextUpdatedData, SmContextCreateError, SmContextUpdateError);
n2_only!(SmContextCreatedData, SmContextReleaseData);

impl Message for SmContextCreateData {
    fn parts(&mut self, visit: &mut dyn FnMut(PartSlot<'_>)) {
        visit_part(visit, "n1SmMsg", Media::Nas, &mut self.n1_sm_msg);
    }
}

super::error_with_problem!(SmContextCreateError { n1_sm_msg, n2_sm_info, n2_sm_info_type });
super::error_with_problem!(SmContextUpdateError { n1_sm_msg, n2_sm_info, n2_sm_info_type, up_cnx_state });
