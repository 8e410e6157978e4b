//! Npcf_AMPolicyControl (TS 29.507) and Npcf_SMPolicyControl (TS 29.512).

use std::{collections::BTreeMap, net::Ipv4Addr};

use types::{Ambr, Arp, BitRate, Dnn, FiveQi, Guami, PduSessionId, PduSessionType, Pei, Plmn, SNssai, Supi};

use super::{
    common::{AccessType, RatType, SubscribedDefaultQos, UserLocation},
    model, open_enum,
};

open_enum! {
    /// When PCF wants to hear of an access and mobility change.
    pub enum AmTrigger {
        LocationChange = "LOC_CH", PraChange = "PRA_CH", ServAreaChange = "SERV_AREA_CH", RfspChange = "RFSP_CH",
        AllowedNssaiChange = "ALLOWED_NSSAI_CH", UeAmbrChange = "UE_AMBR_CH",
    }
    /// When PCF wants to hear of a session change.
    pub enum PolicyControlRequestTrigger {
        PlmnChange = "PLMN_CH", ResourceModificationRequest = "RES_MO_RE", AccessTypeChange = "AC_TY_CH",
        UeIpChange = "UE_IP_CH", DefaultQosChange = "DEF_QOS_CH", SessionAmbrChange = "SE_AMBR_CH",
        QosNotification = "QOS_NOTIF", RatTypeChange = "RAT_TY_CH",
    }
    /// Which way a flow goes.
    pub enum FlowDirection {
        Downlink = "DOWNLINK", Uplink = "UPLINK", Bidirectional = "BIDIRECTIONAL", Unspecified = "UNSPECIFIED",
    }
}

model! {
    /// AMF asks for access and mobility policy.
    pub struct PolicyAssociationRequest {
        notification_uri: String,
        supi: Supi,
        ? gpsi: String,
        ? access_type: AccessType,
        ? pei: Pei,
        ? user_loc: UserLocation,
        ? time_zone: String,
        ? serving_plmn: Plmn,
        ? rat_type: RatType,
        ? rfsp: u16,
        ? ue_ambr: Ambr,
        * allowed_snssais: Vec<SNssai>,
        ? guami: Guami,
        ? service_name: String,
        supp_feat: String,
    }

    /// The policy in force.
    pub struct PolicyAssociation {
        ? request: PolicyAssociationRequest,
        * triggers: Vec<AmTrigger>,
        ? rfsp: u16,
        ? ue_ambr: Ambr,
        supp_feat: String,
    }

    /// SMF asks for session policy.
    pub struct SmPolicyContextData {
        supi: Supi,
        ? gpsi: String,
        pdu_session_id: PduSessionId,
        pdu_session_type: PduSessionType,
        dnn: Dnn,
        notification_uri: String,
        ? access_type: AccessType,
        ? rat_type: RatType,
        ? serving_network: Plmn,
        ? user_location_info: UserLocation,
        ? ue_time_zone: String,
        ? pei: Pei,
        ? ipv4_address: Ipv4Addr,
        ? ipv6_address_prefix: String,
        ? subs_sess_ambr: Ambr,
        ? subs_def_qos: SubscribedDefaultQos,
        slice_info: SNssai,
        ? supp_feat: String,
    }

    /// What PCF decided: session rules, PCC rules and the QoS they refer to, each by its identifier.
    #[derive(Default)]
    pub struct SmPolicyDecision {
        * sess_rules: BTreeMap<String, SessionRule>,
        * pcc_rules: BTreeMap<String, PccRule>,
        * qos_decs: BTreeMap<String, QosData>,
        * policy_ctrl_req_triggers: Vec<PolicyControlRequestTrigger>,
        ? online: bool,
        ? offline: bool,
        ? supp_feat: String,
    }

    /// Rule for the whole session.
    pub struct SessionRule {
        sess_rule_id: String,
        ? auth_sess_ambr: Ambr,
        ? auth_def_qos: SubscribedDefaultQos,
    }

    /// Rule for one service data flow.
    pub struct PccRule {
        pcc_rule_id: String,
        * flow_infos: Vec<FlowInformation>,
        ? app_id: String,
        ? precedence: u32,
        * ref_qos_data: Vec<String>,
    }

    /// A filter; `flow_description` is an IPFilterRule of RFC 6733.
    pub struct FlowInformation {
        ? flow_description: String,
        ? flow_direction: FlowDirection,
        ? packet_filter_usage: bool,
    }

    /// QoS of a flow.
    pub struct QosData {
        qos_id: String,
        #[serde(rename = "5qi")]
        ? five_qi: FiveQi,
        ? maxbr_ul: BitRate,
        ? maxbr_dl: BitRate,
        ? gbr_ul: BitRate,
        ? gbr_dl: BitRate,
        ? arp: Arp,
        ? priority_level: u8,
        ? def_qos_flow_indication: bool,
    }

    /// SMF reports a change, typically the address it gave the UE.
    #[derive(Default)]
    pub struct SmPolicyUpdateContextData {
        * rep_policy_ctrl_req_triggers: Vec<PolicyControlRequestTrigger>,
        ? access_type: AccessType,
        ? rat_type: RatType,
        ? user_location_info: UserLocation,
        ? ipv4_address: Ipv4Addr,
        ? rel_ipv4_address: Ipv4Addr,
        ? ipv6_address_prefix: String,
        ? subs_sess_ambr: Ambr,
        ? subs_def_qos: SubscribedDefaultQos,
    }

    /// SMF ends the association.
    #[derive(Default)]
    pub struct SmPolicyDeleteData {
        ? user_location_info: UserLocation,
        ? ue_time_zone: String,
        ? serving_network: Plmn,
    }

    /// PCF changes the access and mobility policy; what is left out stays.
    pub struct PolicyUpdate {
        resource_uri: String,
        * triggers: Vec<AmTrigger>,
        ? rfsp: u16,
        ? ue_ambr: Ambr,
    }

    /// PCF changes session policy.
    pub struct SmPolicyNotification {
        resource_uri: String,
        ? sm_policy_decision: SmPolicyDecision,
    }

    /// PCF ends an association; the cause is one of TS 29.507 table 5.6.3.4-1 or TS 29.512 table 5.6.3.15-1.
    pub struct TerminationNotification {
        resource_uri: String,
        cause: String,
    }

    /// A policy association as GET shows it.
    pub struct SmPolicyControl {
        context: SmPolicyContextData,
        policy: SmPolicyDecision,
    }
}
