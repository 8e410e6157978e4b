//! Policy decisions for sessions (TS 23.503 §6.3, §6.4).

use std::collections::BTreeMap;

use sbi::model::{
    common::SubscribedDefaultQos,
    pcf::{
        FlowDirection, FlowInformation, PccRule, QosData, SessionRule, SmPolicyContextData, SmPolicyDecision,
    },
};
use types::{Ambr, Arp, BitRate, FiveQi};

use crate::config::Config;

/// Internet traffic without guarantees (TS 23.501 table 5.7.4-1).
const DEFAULT_FIVE_QI: FiveQi = FiveQi(9);
/// Middle of the range: a session neither pre-empts others nor is pre-empted.
const DEFAULT_ARP: Arp = Arp { priority: 8, may_preempt: false, preemptable: false };
/// Bits per second if neither operator nor subscription limits a session.
const DEFAULT_BIT_RATE: u64 = 1_000_000_000;
/// Lowest precedence of PCC rules (TS 29.512 §5.6.2.6): every other rule takes precedence.
const DEFAULT_RULE_PRECEDENCE: u32 = 255;
const DEFAULT_RULE: &str = "default";

/// The policy for a session.
pub fn decide(config: &Config, session: &SmPolicyContextData) -> SmPolicyDecision {
    let policy = config.dnn.iter().find(|policy| policy.name == session.dnn);
    let subscribed = session.subs_def_qos.as_ref();
    let five_qi = policy.and_then(|p| p.five_qi).or(subscribed.map(|q| q.five_qi)).unwrap_or(DEFAULT_FIVE_QI);
    let arp = policy.and_then(|p| p.arp).or(subscribed.map(|q| q.arp)).unwrap_or(DEFAULT_ARP);
    let priority_level = subscribed.and_then(|q| q.priority_level);
    let unlimited =
        Ambr { uplink: BitRate::from_bps(DEFAULT_BIT_RATE), downlink: BitRate::from_bps(DEFAULT_BIT_RATE) };
    let ambr = policy.and_then(|p| p.session_ambr).or(session.subs_sess_ambr).unwrap_or(unlimited);

    let session_rule = SessionRule {
        sess_rule_id: DEFAULT_RULE.to_owned(),
        auth_sess_ambr: Some(ambr),
        auth_def_qos: Some(SubscribedDefaultQos { five_qi, arp, priority_level }),
    };
    let everything = FlowInformation {
        flow_description: Some("permit out ip from any to assigned".to_owned()),
        flow_direction: Some(FlowDirection::Bidirectional),
        packet_filter_usage: None,
    };
    let pcc_rule = PccRule {
        pcc_rule_id: DEFAULT_RULE.to_owned(),
        flow_infos: vec![everything],
        app_id: None,
        precedence: Some(DEFAULT_RULE_PRECEDENCE),
        ref_qos_data: vec![DEFAULT_RULE.to_owned()],
    };
    let qos = QosData {
        qos_id: DEFAULT_RULE.to_owned(),
        five_qi: Some(five_qi),
        maxbr_ul: None,
        maxbr_dl: None,
        gbr_ul: None,
        gbr_dl: None,
        arp: Some(arp),
        priority_level,
        def_qos_flow_indication: Some(true),
    };
    let key = || DEFAULT_RULE.to_owned();
    SmPolicyDecision {
        sess_rules: BTreeMap::from([(key(), session_rule)]),
        pcc_rules: BTreeMap::from([(key(), pcc_rule)]),
        qos_decs: BTreeMap::from([(key(), qos)]),
        policy_ctrl_req_triggers: Vec::new(),
        online: None,
        offline: None,
        supp_feat: session.supp_feat.as_ref().map(|_| "0".to_owned()),
    }
}
