//! One example of every message, with every IE that it can have.
#![allow(dead_code)] // each test file uses a part of this

use gtpv2c::message::*;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::*;

pub fn f_teid(interface: InterfaceType, teid: u32) -> FTeid {
    FTeid::new(interface, teid, [10, 0, 0, (teid & 0xff) as u8].into())
}

fn both_families(interface: InterfaceType, teid: u32) -> FTeid {
    FTeid { ipv6: Some("2001:db8::7".parse().expect("an address")), ..f_teid(interface, teid) }
}

pub fn digits(text: &str) -> Digits {
    Digits(text.to_owned())
}

fn plmn(mcc: &str, mnc: &str) -> types::Plmn {
    types::Plmn::new(mcc, mnc).expect("a PLMN")
}

fn cause(value: CauseValue) -> Cause {
    value.into()
}

fn accepted() -> Cause {
    cause(CauseValue::ACCEPTED)
}

pub fn uli() -> Uli {
    Uli {
        tai: Some(Tai { plmn: plmn("999", "70"), tac: 0x1234 }),
        ecgi: Some(Ecgi { plmn: plmn("999", "70"), eci: 0x0123_4567 }),
        ..Default::default()
    }
}

pub fn qos(qci: u8, rate: u64) -> BearerQos {
    let flow = FlowQos {
        qci,
        mbr_uplink_kbps: rate,
        mbr_downlink_kbps: rate * 2,
        gbr_uplink_kbps: rate / 2,
        gbr_downlink_kbps: rate,
    };
    BearerQos { arp: Arp { pci: true, pl: 9, pvi: false }, flow }
}

pub fn tft() -> Octets {
    let filter = PacketFilter {
        id: 1,
        direction: Direction::Bidirectional,
        precedence: 7,
        components: vec![
            Component::Ipv4Remote { address: [192, 0, 2, 1].into(), mask: [255, 255, 255, 255].into() },
            Component::Protocol(17),
            Component::RemotePorts(5000, 5010),
            Component::LocalPort(4000),
        ],
    };
    let tft = Tft { operation: Operation::Create(vec![filter]), parameters: Vec::new() };
    tft.encode().expect("it fits")
}

fn octets(bytes: &[u8]) -> Octets {
    bytes.into()
}

/// Configuration protocol, then a request for a DNS server's address.
fn pco() -> Octets {
    octets(&[0x80, 0x00, 0x0d, 0x00])
}

fn fq_csid(last: u8) -> FqCsid {
    FqCsid { node: CsidNode::Ipv4([10, 0, 1, last].into()), csids: vec![1, 0x0203] }
}

fn imsi() -> types::Imsi {
    "999700000000001".parse().expect("an IMSI")
}

fn time_zone() -> UeTimeZone {
    UeTimeZone { time_zone: 0x40, daylight_saving: 1 }
}

/// S1AP, radio network layer, unspecified.
fn ran_nas_cause() -> Octets {
    octets(&[0x10, 0x00])
}

pub fn create_session_request() -> CreateSessionRequest {
    CreateSessionRequest {
        imsi: Some(imsi()),
        msisdn: Some(digits("491701234567")),
        mei: Some(digits("3534900698733190")),
        uli: Some(uli()),
        serving_network: Some(plmn("999", "70")),
        rat_type: RatType::EUTRAN,
        indication: Some(Indication::DAF | Indication::PS | Indication::S6AF | Indication::EPCOSI),
        sender_f_teid: f_teid(InterfaceType::S11_MME, 1),
        pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPC, 0)),
        apn: "internet.mnc070.mcc999.gprs".into(),
        selection_mode: Some(SelectionMode::MsProvidedNotVerified),
        pdn_type: Some(PdnType::Ipv4v6),
        paa: Some(Paa::Ipv4v6([0; 4].into(), Ipv6Prefix { address: [0; 16].into(), length: 64 })),
        max_apn_restriction: Some(ApnRestriction(0)),
        apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
        linked_ebi: Some(Ebi(5)),
        pco: Some(pco()),
        bearers_to_be_created: vec![BearerToBeCreated {
            ebi: Ebi(5),
            tft: Some(tft()),
            s1u_enb_f_teid: Some(f_teid(InterfaceType::S1U_ENB, 2)),
            s5s8u_sgw_f_teid: Some(f_teid(InterfaceType::S5S8_SGW_GTPU, 3)),
            s5s8u_pgw_f_teid: Some(both_families(InterfaceType::S5S8_PGW_GTPU, 4)),
            s11u_mme_f_teid: Some(f_teid(InterfaceType::S11U_MME, 5)),
            qos: qos(9, 0),
        }],
        bearers_to_be_removed: vec![BearerToBeRemoved { ebi: Ebi(6) }, BearerToBeRemoved { ebi: Ebi(7) }],
        recovery: Some(Recovery(17)),
        mme_fq_csid: Some(fq_csid(1)),
        sgw_fq_csid: Some(fq_csid(2)),
        ue_time_zone: Some(time_zone()),
        charging_characteristics: Some(ChargingCharacteristics(0x0800)),
        signalling_priority: Some(SignallingPriority::LAPI),
        apco: Some(pco()),
        epco: Some(pco()),
        private_extensions: vec![PrivateExtension { enterprise: 1, value: octets(&[]) }],
    }
}

pub fn create_session_response() -> CreateSessionResponse {
    let address = "2001:db8:1::1".parse().expect("an address");
    CreateSessionResponse {
        cause: accepted(),
        change_reporting_action: Some(ChangeReportingAction(6)),
        sender_f_teid: Some(f_teid(InterfaceType::S11_S4_SGW, 11)),
        pgw_f_teid: Some(both_families(InterfaceType::S5S8_PGW_GTPC, 12)),
        paa: Some(Paa::Ipv4v6([10, 45, 0, 2].into(), Ipv6Prefix { address, length: 64 })),
        apn_restriction: Some(ApnRestriction(1)),
        apn_ambr: Some(Ambr { uplink_kbps: 1, downlink_kbps: u32::MAX }),
        linked_ebi: Some(Ebi(5)),
        pco: Some(pco()),
        bearers_created: vec![BearerCreated {
            ebi: Ebi(5),
            cause: accepted(),
            s1u_sgw_f_teid: Some(f_teid(InterfaceType::S1U_SGW, 13)),
            s5s8u_pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPU, 14)),
            s11u_sgw_f_teid: Some(f_teid(InterfaceType::S11U_SGW, 15)),
            qos: Some(qos(9, 0)),
            charging_id: Some(ChargingId(0x0102_0304)),
            flags: Some(BearerFlags::PPC),
        }],
        bearers_marked_for_removal: vec![BearerResult {
            ebi: Ebi(6),
            cause: cause(CauseValue::CONTEXT_NOT_FOUND),
        }],
        recovery: Some(Recovery(4)),
        pgw_fq_csid: Some(fq_csid(3)),
        sgw_fq_csid: Some(fq_csid(4)),
        pgw_back_off_time: Some(EpcTimer { unit: 1, value: 5 }),
        apco: Some(pco()),
        indication: Some(Indication::CPOPCI),
        pdn_connection_charging_id: Some(ChargingId(9)),
        epco: Some(pco()),
        private_extensions: vec![PrivateExtension::has_enb_tunnels()],
    }
}

pub fn create_bearer_request() -> CreateBearerRequest {
    CreateBearerRequest {
        pti: Some(Pti(3)),
        linked_ebi: Ebi(5),
        pco: Some(pco()),
        bearers: vec![BearerInCreateRequest {
            ebi: Ebi(0),
            tft: tft(),
            s1u_sgw_f_teid: Some(f_teid(InterfaceType::S1U_SGW, 21)),
            s5s8u_pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPU, 22)),
            qos: qos(1, 1 << 38),
            charging_id: Some(ChargingId(7)),
            flags: Some(BearerFlags::PPC | BearerFlags::VB),
            pco: Some(pco()),
            epco: Some(pco()),
        }],
        pgw_fq_csid: Some(fq_csid(3)),
        sgw_fq_csid: Some(fq_csid(4)),
        change_reporting_action: Some(ChangeReportingAction(0)),
        indication: Some(Indication::MSV),
    }
}

pub fn create_bearer_response() -> CreateBearerResponse {
    CreateBearerResponse {
        cause: accepted(),
        bearers: vec![BearerInCreateResponse {
            ebi: Ebi(6),
            cause: accepted(),
            s1u_enb_f_teid: Some(f_teid(InterfaceType::S1U_ENB, 23)),
            s1u_sgw_f_teid: Some(f_teid(InterfaceType::S1U_SGW, 21)),
            s5s8u_sgw_f_teid: Some(f_teid(InterfaceType::S5S8_SGW_GTPU, 24)),
            s5s8u_pgw_f_teid: Some(f_teid(InterfaceType::S5S8_PGW_GTPU, 22)),
            pco: Some(pco()),
            ran_nas_cause: Some(ran_nas_cause()),
            epco: Some(pco()),
        }],
        recovery: Some(Recovery(1)),
        mme_fq_csid: Some(fq_csid(1)),
        sgw_fq_csid: Some(fq_csid(2)),
        pco: Some(pco()),
        ue_time_zone: Some(time_zone()),
        uli: Some(uli()),
    }
}

pub fn modify_bearer_request() -> ModifyBearerRequest {
    ModifyBearerRequest {
        mei: Some(digits("353490069873319")),
        uli: Some(uli()),
        serving_network: Some(plmn("001", "001")),
        rat_type: Some(RatType::EUTRAN),
        indication: Some(Indication::HI),
        sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 31)),
        apn_ambr: Some(Ambr { uplink_kbps: 10, downlink_kbps: 20 }),
        notification_delay: Some(DelayValue(4)),
        bearers_to_be_modified: vec![BearerToBeModified {
            ebi: Ebi(5),
            s1u_enb_f_teid: Some(f_teid(InterfaceType::S1U_ENB, 32)),
            s5s8u_sgw_f_teid: Some(f_teid(InterfaceType::S5S8_SGW_GTPU, 33)),
            s11u_mme_f_teid: Some(f_teid(InterfaceType::S11U_MME, 34)),
        }],
        bearers_to_be_removed: vec![BearerToBeRemoved { ebi: Ebi(6) }],
        recovery: Some(Recovery(200)),
        ue_time_zone: Some(time_zone()),
        mme_fq_csid: Some(fq_csid(1)),
        sgw_fq_csid: Some(fq_csid(2)),
        imsi: Some(imsi()),
    }
}

fn bearer_result() -> BearerResultWithOptions {
    BearerResultWithOptions {
        ebi: Ebi(6),
        cause: accepted(),
        pco: Some(pco()),
        ran_nas_cause: Some(ran_nas_cause()),
        epco: Some(pco()),
    }
}

/// Every message that this crate knows.
pub fn messages() -> Vec<Message> {
    let mut all = sessions();
    all.extend(bearers());
    all.extend(downlink_data());
    all.extend(commands());
    all.extend(forwarding());
    let mut types: Vec<_> = all.iter().map(|message| message.message_type() as u8).collect();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), MessageType::ALL.len(), "a message type has no example");
    all
}

fn sessions() -> Vec<Message> {
    let node_features = Some(NodeFeatures::PRN);
    vec![
        EchoRequest { recovery: Recovery(1), node_features }.into(),
        EchoResponse { recovery: Recovery(255), node_features }.into(),
        VersionNotSupportedIndication {}.into(),
        create_session_request().into(),
        create_session_response().into(),
        CreateSessionResponse {
            cause: Cause {
                from_remote: true,
                pdn_connection_error: true,
                bearer_context_error: true,
                offending_ie: Some(OffendingIe::new(ie::F_TEID, 1)),
                ..CauseValue::MANDATORY_IE_MISSING.into()
            },
            ..Default::default()
        }
        .into(),
        modify_bearer_request().into(),
        ModifyBearerResponse {
            cause: cause(CauseValue::ACCEPTED_PARTIALLY),
            msisdn: Some(digits("4917012345")),
            linked_ebi: Some(Ebi(5)),
            apn_restriction: Some(ApnRestriction(2)),
            pco: Some(pco()),
            bearers_modified: vec![BearerModified {
                ebi: Ebi(5),
                cause: accepted(),
                s1u_sgw_f_teid: Some(f_teid(InterfaceType::S1U_SGW, 35)),
                s11u_sgw_f_teid: Some(f_teid(InterfaceType::S11U_SGW, 36)),
                charging_id: Some(ChargingId(7)),
                flags: Some(BearerFlags::VIND),
            }],
            bearers_marked_for_removal: vec![BearerResult { ebi: Ebi(6), cause: accepted() }],
            change_reporting_action: Some(ChangeReportingAction(3)),
            pgw_fq_csid: Some(fq_csid(3)),
            sgw_fq_csid: Some(fq_csid(4)),
            recovery: Some(Recovery(0)),
            indication: Some(Indication::PT),
            pdn_connection_charging_id: Some(ChargingId(8)),
        }
        .into(),
        DeleteSessionRequest {
            cause: Some(cause(CauseValue::COMPLETE_DETACH)),
            linked_ebi: Some(Ebi(5)),
            uli: Some(uli()),
            indication: Some(Indication::OI),
            pco: Some(pco()),
            originating_node: Some(NodeType::Mme),
            sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 37)),
            ue_time_zone: Some(time_zone()),
            ran_nas_cause: Some(ran_nas_cause()),
            epco: Some(pco()),
        }
        .into(),
        DeleteSessionResponse {
            cause: accepted(),
            recovery: Some(Recovery(3)),
            pco: Some(pco()),
            indication: Some(Indication::PT),
            epco: Some(pco()),
        }
        .into(),
        ReleaseAccessBearersRequest {
            ebis: vec![Ebi(5), Ebi(6)],
            originating_node: Some(NodeType::Sgsn),
            indication: Some(Indication::ARRL),
        }
        .into(),
        ReleaseAccessBearersResponse {
            cause: accepted(),
            recovery: Some(Recovery(3)),
            indication: Some(Indication::PT),
        }
        .into(),
    ]
}

fn bearers() -> Vec<Message> {
    vec![
        create_bearer_request().into(),
        create_bearer_response().into(),
        UpdateBearerRequest {
            bearers: vec![BearerInUpdateRequest {
                ebi: Ebi(6),
                tft: Some(tft()),
                qos: Some(qos(2, 128)),
                flags: Some(BearerFlags::ASI),
                pco: Some(pco()),
                apco: Some(pco()),
                epco: Some(pco()),
            }],
            pti: Some(Pti(9)),
            pco: Some(pco()),
            apn_ambr: Ambr { uplink_kbps: 1000, downlink_kbps: 2000 },
            change_reporting_action: Some(ChangeReportingAction(0)),
            pgw_fq_csid: Some(fq_csid(3)),
            sgw_fq_csid: Some(fq_csid(4)),
            indication: Some(Indication::RETLOC),
        }
        .into(),
        UpdateBearerResponse {
            cause: accepted(),
            bearers: vec![bearer_result(), BearerResultWithOptions { ebi: Ebi(7), ..bearer_result() }],
            pco: Some(pco()),
            recovery: Some(Recovery(3)),
            mme_fq_csid: Some(fq_csid(1)),
            sgw_fq_csid: Some(fq_csid(2)),
            indication: Some(Indication::DTF),
            ue_time_zone: Some(time_zone()),
            uli: Some(uli()),
        }
        .into(),
        DeleteBearerRequest {
            linked_ebi: None,
            ebis: vec![Ebi(6), Ebi(7)],
            failed_bearers: vec![BearerResult { ebi: Ebi(8), cause: cause(CauseValue::UE_REFUSES) }],
            pti: Some(Pti(9)),
            pco: Some(pco()),
            pgw_fq_csid: Some(fq_csid(3)),
            sgw_fq_csid: Some(fq_csid(4)),
            cause: Some(cause(CauseValue::REACTIVATION_REQUESTED)),
            indication: Some(Indication::RETLOC),
            epco: Some(pco()),
        }
        .into(),
        DeleteBearerResponse {
            cause: accepted(),
            linked_ebi: Some(Ebi(5)),
            bearers: vec![bearer_result()],
            recovery: Some(Recovery(3)),
            mme_fq_csid: Some(fq_csid(1)),
            sgw_fq_csid: Some(fq_csid(2)),
            pco: Some(pco()),
            ue_time_zone: Some(time_zone()),
            uli: Some(uli()),
        }
        .into(),
    ]
}

fn downlink_data() -> Vec<Message> {
    vec![
        DownlinkDataNotification {
            cause: Some(cause(CauseValue::ERROR_INDICATION_RECEIVED)),
            ebis: vec![Ebi(5), Ebi(6)],
            arp: Some(Arp { pci: false, pl: 3, pvi: true }),
            imsi: Some(imsi()),
            sender_f_teid: Some(f_teid(InterfaceType::S11_S4_SGW, 41)),
            indication: Some(Indication::BDWI),
        }
        .into(),
        DownlinkDataNotificationAcknowledge {
            cause: accepted(),
            notification_delay: Some(DelayValue(2)),
            recovery: Some(Recovery(3)),
            low_priority_throttling: Some(Throttling { delay: EpcTimer { unit: 1, value: 3 }, factor: 40 }),
            imsi: Some(imsi()),
            buffering_duration: Some(EpcTimer { unit: 0, value: 30 }),
            buffering_packet_count: Some(IntegerNumber(300)),
        }
        .into(),
        DownlinkDataNotificationFailureIndication {
            cause: cause(CauseValue::UE_NOT_RESPONDING),
            originating_node: Some(NodeType::Mme),
            imsi: Some(imsi()),
        }
        .into(),
    ]
}

fn commands() -> Vec<Message> {
    vec![
        ModifyBearerCommand {
            apn_ambr: Ambr { uplink_kbps: 5, downlink_kbps: 6 },
            bearer: BearerInModifyCommand { ebi: Ebi(5), qos: Some(qos(8, 0)) },
            sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 51)),
        }
        .into(),
        ModifyBearerFailureIndication {
            cause: cause(CauseValue::SERVICE_DENIED),
            recovery: Some(Recovery(3)),
            indication: Some(Indication::PT),
        }
        .into(),
        DeleteBearerCommand {
            bearers: vec![BearerInDeleteCommand {
                ebi: Ebi(6),
                flags: Some(BearerFlags::VB),
                ran_nas_cause: Some(ran_nas_cause()),
            }],
            uli: Some(uli()),
            ue_time_zone: Some(time_zone()),
            sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 52)),
        }
        .into(),
        DeleteBearerFailureIndication {
            cause: cause(CauseValue::REJECTED),
            bearers: vec![BearerResult { ebi: Ebi(6), cause: cause(CauseValue::CONTEXT_NOT_FOUND) }],
            recovery: Some(Recovery(3)),
            indication: Some(Indication::PT),
        }
        .into(),
        BearerResourceCommand {
            linked_ebi: Ebi(5),
            pti: Pti(77),
            flow_qos: Some(qos(1, 64).flow),
            tad: Some(tft()),
            rat_type: Some(RatType::EUTRAN),
            serving_network: Some(plmn("999", "70")),
            uli: Some(uli()),
            ebi: Some(Ebi(6)),
            indication: Some(Indication::DTF),
            pco: Some(pco()),
            signalling_priority: Some(SignallingPriority::LAPI),
            epco: Some(pco()),
            sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 53)),
        }
        .into(),
        BearerResourceFailureIndication {
            cause: cause(CauseValue::TAD_SYNTACTIC_ERROR),
            linked_ebi: Ebi(5),
            pti: Pti(77),
            indication: Some(Indication::PT),
            recovery: Some(Recovery(3)),
        }
        .into(),
    ]
}

fn forwarding() -> Vec<Message> {
    vec![
        CreateIndirectDataForwardingTunnelRequest {
            imsi: Some(imsi()),
            mei: Some(digits("353490069873319")),
            indication: Some(Indication::UIMSI),
            sender_f_teid: Some(f_teid(InterfaceType::S11_MME, 61)),
            bearers: vec![BearerToBeForwarded {
                ebi: Ebi(5),
                enb_downlink_f_teid: Some(f_teid(InterfaceType::ENB_DL_FORWARDING, 62)),
                sgw_downlink_f_teid: Some(f_teid(InterfaceType::SGW_DL_FORWARDING, 63)),
                enb_uplink_f_teid: Some(f_teid(InterfaceType::ENB_UL_FORWARDING, 64)),
                sgw_uplink_f_teid: Some(f_teid(InterfaceType::SGW_UL_FORWARDING, 65)),
            }],
            recovery: Some(Recovery(3)),
        }
        .into(),
        CreateIndirectDataForwardingTunnelResponse {
            cause: accepted(),
            sender_f_teid: Some(f_teid(InterfaceType::S11_S4_SGW, 66)),
            bearers: vec![BearerForwarded {
                ebi: Ebi(5),
                cause: accepted(),
                s1u_sgw_downlink_f_teid: Some(f_teid(InterfaceType::SGW_DL_FORWARDING, 67)),
                sgw_downlink_f_teid: Some(f_teid(InterfaceType::SGW_DL_FORWARDING, 68)),
                s1u_sgw_uplink_f_teid: Some(f_teid(InterfaceType::SGW_UL_FORWARDING, 69)),
                sgw_uplink_f_teid: Some(f_teid(InterfaceType::SGW_UL_FORWARDING, 70)),
            }],
            recovery: Some(Recovery(3)),
        }
        .into(),
        DeleteIndirectDataForwardingTunnelRequest {}.into(),
        DeleteIndirectDataForwardingTunnelResponse { cause: accepted(), recovery: Some(Recovery(3)) }.into(),
    ]
}
