//! Nudm (TS 29.503): UE authentication, subscriber data, UE context management.

use std::collections::BTreeMap;

use types::{Ambr, Dnn, Guami, Key, PduSessionId, PduSessionType, Pei, Plmn, SNssai, SscMode, Supi};

use super::{
    common::{
        AccessType, AuthType, DateTime, IpAddress, NfInstanceId, NotifyItem, Nssai, RatType,
        ResynchronizationInfo, SubscribedDefaultQos,
    },
    model, open_enum,
};
use crate::{message::Media, operation::Message};

open_enum! {
    /// Kind of authentication vector.
    pub enum AvType { FiveGHeAka = "5G_HE_AKA", EapAkaPrime = "EAP_AKA_PRIME", }
    /// Why UDM deregisters an NF.
    pub enum DeregistrationReason {
        UeInitialRegistration = "UE_INITIAL_REGISTRATION",
        UeRegistrationAreaChange = "UE_REGISTRATION_AREA_CHANGE",
        SubscriptionWithdrawn = "SUBSCRIPTION_WITHDRAWN",
        FiveGsToEpsMobility = "5GS_TO_EPS_MOBILITY",
        ReregistrationRequired = "REREGISTRATION_REQUIRED",
        SmfContextTransferred = "SMF_CONTEXT_TRANSFERRED",
        DuplicatePduSession = "DUPLICATE_PDU_SESSION",
    }
}

model! {
    /// Asks for an authentication vector.
    pub struct AuthenticationInfoRequest {
        serving_network_name: String,
        ? resynchronization_info: ResynchronizationInfo,
        ausf_instance_id: NfInstanceId,
        ? supported_features: String,
    }

    /// The vector, and who the SUCI was.
    pub struct AuthenticationInfoResult {
        auth_type: AuthType,
        ? authentication_vector: Av5GHeAka,
        ? supi: Supi,
        ? supported_features: String,
    }

    /// 5G home environment vector (TS 33.501 §6.1.3.2).
    pub struct Av5GHeAka {
        av_type: AvType,
        rand: Key<16>,
        xres_star: Key<16>,
        autn: Key<16>,
        kausf: Key<32>,
    }

    /// Report of an authentication.
    pub struct AuthEvent {
        nf_instance_id: NfInstanceId,
        success: bool,
        time_stamp: DateTime,
        auth_type: AuthType,
        serving_network_name: String,
        ? auth_removal_ind: bool,
    }

    /// Access and mobility subscription.
    #[derive(Default)]
    pub struct AccessAndMobilitySubscriptionData {
        ? supported_features: String,
        * gpsis: Vec<String>,
        ? subscribed_ue_ambr: Ambr,
        ? nssai: Nssai,
        ? rfsp_index: u16,
        ? subs_reg_timer: u32,
        ? mico_allowed: bool,
    }

    /// Which DNNs may be used on which slices; keys as in `sst` or `sst-sd`.
    #[derive(Default)]
    pub struct SmfSelectionSubscriptionData {
        ? supported_features: String,
        * subscribed_snssai_infos: BTreeMap<String, SnssaiInfo>,
    }

    /// DNNs of one slice.
    pub struct SnssaiInfo {
        dnn_infos: Vec<DnnInfo>,
    }

    /// One DNN of a slice.
    pub struct DnnInfo {
        dnn: Dnn,
        ? default_dnn_indicator: bool,
        ? lbo_roaming_allowed: bool,
    }

    /// Session subscription of one slice; `dnn_configurations` by DNN.
    pub struct SessionManagementSubscriptionData {
        single_nssai: SNssai,
        * dnn_configurations: BTreeMap<Dnn, DnnConfiguration>,
    }

    /// Session subscription of one DNN.
    pub struct DnnConfiguration {
        pdu_session_types: PduSessionTypes,
        ssc_modes: SscModes,
        #[serde(rename = "5gQosProfile")]
        ? five_g_qos_profile: SubscribedDefaultQos,
        ? session_ambr: Ambr,
        * static_ip_address: Vec<IpAddress>,
    }

    /// Session types a subscriber may use.
    pub struct PduSessionTypes {
        ? default_session_type: PduSessionType,
        * allowed_session_types: Vec<PduSessionType>,
    }

    /// SSC modes a subscriber may use.
    pub struct SscModes {
        default_ssc_mode: SscMode,
        * allowed_ssc_modes: Vec<SscMode>,
    }

    /// The AMF that serves a UE over 3GPP access.
    pub struct Amf3GppAccessRegistration {
        amf_instance_id: NfInstanceId,
        dereg_callback_uri: String,
        guami: Guami,
        rat_type: RatType,
        ? initial_registration_ind: bool,
        ? supi: Supi,
        ? pei: Pei,
        ? purge_flag: bool,
        ? ims_vo_ps: String,
        ? registration_time: DateTime,
        ? supported_features: String,
    }

    /// Change of that registration; `purge_flag` ends it.
    pub struct Amf3GppAccessRegistrationModification: MergePatch {
        guami: Guami,
        ? purge_flag: bool,
        ? pei: Pei,
    }

    /// The SMF that serves a session.
    pub struct SmfRegistration {
        smf_instance_id: NfInstanceId,
        pdu_session_id: PduSessionId,
        single_nssai: SNssai,
        ? dnn: Dnn,
        plmn_id: Plmn,
        ? emergency_services: bool,
        ? registration_time: DateTime,
        ? supported_features: String,
    }

    /// UDM tells an AMF or SMF that it no longer serves.
    pub struct DeregistrationData {
        dereg_reason: DeregistrationReason,
        ? access_type: AccessType,
        ? pdu_session_id: PduSessionId,
        ? new_smf_instance_id: NfInstanceId,
    }

    /// Asks for notifications when subscription data changes.
    pub struct SdmSubscription {
        nf_instance_id: NfInstanceId,
        callback_reference: String,
        * monitored_resource_uris: Vec<String>,
        ? implicit_unsubscribe: bool,
        ? expires: DateTime,
        ? single_nssai: SNssai,
        ? dnn: Dnn,
        ? plmn_id: Plmn,
        ? subscription_id: String,
        ? supported_features: String,
    }
}

model! {
    /// Tells who subscribed what has changed.
    pub struct ModificationNotification {
        notify_items: Vec<NotifyItem>,
        ? subscription_id: String,
    }
}

/// `sdm-subscriptions` of a subscriber in the UDR.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SdmSubscriptions(pub Vec<SdmSubscription>);

impl Message for SdmSubscriptions {
    const MEDIA: Media = Media::Json;
}

/// `sm-data`: one entry per slice.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SmSubsData(pub Vec<SessionManagementSubscriptionData>);

impl Message for SmSubsData {
    const MEDIA: Media = Media::Json;
}
