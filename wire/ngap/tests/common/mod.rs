//! One of each message, with every field set: the material of the other tests.

use bytes::Bytes;
use ngap::cause::{Misc, Nas, Protocol, RadioNetwork};
use ngap::transfer::*;
use ngap::*;
use types::*;

pub const AMF_ID: AmfUeNgapId = AmfUeNgapId(0x12_3456_789a);
pub const RAN_ID: RanUeNgapId = RanUeNgapId(0xfffe_0007);

pub fn plmn() -> Plmn {
    Plmn::new("999", "70").unwrap()
}

pub fn tai() -> Tai {
    Tai { plmn: plmn(), tac: Tac::new(0x0a0b0c).unwrap() }
}

pub fn slices() -> Vec<SNssai> {
    vec![SNssai::new(1, None).unwrap(), SNssai::new(2, Some(0x0000ff)).unwrap()]
}

pub fn guami() -> Guami {
    Guami { plmn: plmn(), amf_id: AmfId::new(2, 513, 42).unwrap() }
}

pub fn location() -> UserLocation {
    let ncgi = Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(0x1_2345_6789).unwrap() };
    UserLocation::Nr { ncgi, tai: tai(), time_stamp: Some(0xdead_beef) }
}

pub fn s_tmsi() -> STmsi {
    STmsi::new(513, 42, Tmsi(0xc0ff_ee01)).unwrap()
}

pub fn diagnostics() -> Option<CriticalityDiagnostics> {
    let error = TypeOfError::Missing;
    let item = IeDiagnostics { ie_id: 38, criticality: Criticality::Reject, error };
    Some(CriticalityDiagnostics {
        procedure_code: Some(15),
        triggering_message: Some(TriggeringMessage::SuccessfulOutcome),
        procedure_criticality: Some(Criticality::Notify),
        ies: vec![item, IeDiagnostics { error: TypeOfError::NotUnderstood, ..item }],
    })
}

pub fn ambr() -> Ambr {
    Ambr { uplink: "1 Gbps".parse().unwrap(), downlink: "2500 Mbps".parse().unwrap() }
}

pub fn session(id: u8) -> PduSessionId {
    PduSessionId::new(id).unwrap()
}

pub fn items(first: u8) -> Vec<PduSessionItem> {
    let item = |id| PduSessionItem { id: session(id), transfer: Bytes::from(vec![id; 9]) };
    vec![item(first), item(first + 1)]
}

fn setup_items() -> Vec<PduSessionSetupItem> {
    let item = |id, nas_pdu| PduSessionSetupItem {
        id: session(id),
        nas_pdu,
        s_nssai: slices()[1],
        transfer: setup_request_transfer().encode().unwrap(),
    };
    vec![item(1, Some(Bytes::from_static(b"\x2e\x01\x01\xc2"))), item(15, None)]
}

pub fn tunnel(teid: u32) -> GtpTunnel {
    let (v4, v6) = ("10.1.2.3".parse().unwrap(), "fd00::7".parse().unwrap());
    let address = match teid % 3 {
        0 => TransportAddress::V4(v4),
        1 => TransportAddress::V6(v6),
        _ => TransportAddress::V4V6(v4, v6),
    };
    GtpTunnel { address, teid: Teid(teid) }
}

fn parameters() -> QosParameters {
    QosParameters::non_gbr(FiveQi(9), Arp { priority: 8, may_preempt: true, preemptable: false })
}

fn gbr() -> QosParameters {
    QosParameters {
        characteristics: QosCharacteristics::Dynamic {
            priority: 20,
            delay_budget: 100,
            error_rate: (1, 6),
            five_qi: Some(FiveQi(3)),
        },
        arp: Arp { priority: 1, may_preempt: false, preemptable: true },
        gbr: Some(GbrQos { maximum: ambr(), guaranteed: ambr(), notification: true }),
        reflective: true,
    }
}

pub fn setup_request_transfer() -> PduSessionResourceSetupRequestTransfer {
    PduSessionResourceSetupRequestTransfer {
        session_ambr: Some(ambr()),
        ul_tunnel: tunnel(0x8000_0003),
        data_forwarding_not_possible: true,
        pdu_session_type: PduSessionType::Ipv4v6,
        security_indication: Some(SecurityIndication {
            integrity: Protection::NotNeeded,
            confidentiality: Protection::Preferred,
            full_rate_integrity_uplink: Some(true),
        }),
        network_instance: Some(7),
        qos_flows: vec![
            QosFlow { qfi: Qfi::new(1).unwrap(), parameters: parameters() },
            QosFlow { qfi: Qfi::new(63).unwrap(), parameters: gbr() },
        ],
    }
}

pub fn setup_response_transfer() -> PduSessionResourceSetupResponseTransfer {
    PduSessionResourceSetupResponseTransfer {
        dl_tunnel: tunnel(1),
        qos_flows: vec![Qfi::new(1).unwrap(), Qfi::new(9).unwrap()],
        security_result: Some(SecurityResult { integrity: false, confidentiality: true }),
        failed_qos_flows: vec![flow_cause()],
    }
}

fn flow_cause() -> QosFlowCause {
    QosFlowCause { qfi: Qfi::new(63).unwrap(), cause: RadioNetwork::NotSupported5qiValue.into() }
}

pub fn modify_request_transfer() -> PduSessionResourceModifyRequestTransfer {
    PduSessionResourceModifyRequestTransfer {
        session_ambr: Some(ambr()),
        ul_tunnels: vec![(tunnel(3), tunnel(4))],
        network_instance: Some(200),
        qos_flows: vec![
            QosFlowChange { qfi: Qfi::new(1).unwrap(), parameters: None },
            QosFlowChange { qfi: Qfi::new(2).unwrap(), parameters: Some(gbr()) },
        ],
        released_qos_flows: vec![flow_cause()],
    }
}

pub fn modify_response_transfer() -> PduSessionResourceModifyResponseTransfer {
    PduSessionResourceModifyResponseTransfer {
        dl_tunnel: Some(tunnel(5)),
        ul_tunnel: Some(tunnel(6)),
        qos_flows: vec![Qfi::new(2).unwrap()],
        failed_qos_flows: vec![flow_cause()],
    }
}

/// Every message, every field set.
pub fn all() -> Vec<Pdu> {
    let mut pdus = interface();
    pdus.extend(ue());
    pdus.extend(context());
    pdus.extend(sessions());
    pdus
}

fn interface() -> Vec<Pdu> {
    let name = Some("gnb-1".to_owned());
    let global_ran_node_id = GlobalRanNodeId::Gnb { plmn: plmn(), id: GnbId::new(0x2a, 24).unwrap() };
    let areas = PlmnSlices { plmn: plmn(), slices: slices() };
    let supported_tas = vec![SupportedTa { tac: tai().tac, broadcast_plmns: vec![areas.clone()] }];
    let served = ServedGuami { guami: guami(), backup_amf_name: Some("amf-2".into()) };
    let cause = Cause::Misc(Misc::UnknownPlmnOrSnpn);
    let (time_to_wait, criticality_diagnostics) = (Some(TimeToWait::V20s), diagnostics());
    let connections = vec![
        UeConnection { amf_ue_ngap_id: Some(AMF_ID), ran_ue_ngap_id: None },
        UeConnection { amf_ue_ngap_id: None, ran_ue_ngap_id: Some(RAN_ID) },
    ];
    vec![
        NgSetupRequest {
            global_ran_node_id,
            ran_node_name: name.clone(),
            supported_tas: supported_tas.clone(),
            default_paging_drx: PagingDrx::V256,
        }
        .into(),
        NgSetupResponse {
            amf_name: "amf-1".into(),
            served_guamis: vec![served.clone()],
            relative_amf_capacity: 255,
            plmn_support: vec![areas.clone()],
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        NgSetupFailure { cause, time_to_wait, criticality_diagnostics: diagnostics() }.into(),
        RanConfigurationUpdate {
            ran_node_name: name,
            supported_tas: Some(supported_tas),
            default_paging_drx: Some(PagingDrx::V32),
            global_ran_node_id: Some(global_ran_node_id),
        }
        .into(),
        RanConfigurationUpdateAcknowledge { criticality_diagnostics: diagnostics() }.into(),
        RanConfigurationUpdateFailure { cause, time_to_wait, criticality_diagnostics: diagnostics() }.into(),
        AmfConfigurationUpdate {
            amf_name: Some("amf".into()),
            served_guamis: Some(vec![served]),
            relative_amf_capacity: Some(1),
            plmn_support: Some(vec![areas]),
        }
        .into(),
        AmfConfigurationUpdateAcknowledge { criticality_diagnostics: diagnostics() }.into(),
        AmfConfigurationUpdateFailure { cause, time_to_wait, criticality_diagnostics: diagnostics() }.into(),
        NgReset { cause, reset_type: ResetType::NgInterface }.into(),
        NgReset { cause, reset_type: ResetType::PartOfNgInterface(connections.clone()) }.into(),
        NgResetAcknowledge { connections, criticality_diagnostics: diagnostics() }.into(),
        ErrorIndication {
            amf_ue_ngap_id: Some(AMF_ID),
            ran_ue_ngap_id: Some(RAN_ID),
            cause: Some(Protocol::SemanticError.into()),
            criticality_diagnostics,
            s_tmsi: Some(s_tmsi()),
        }
        .into(),
    ]
}

fn ue() -> Vec<Pdu> {
    let (amf_ue_ngap_id, ran_ue_ngap_id) = (AMF_ID, RAN_ID);
    let nas_pdu = Bytes::from_static(b"\x7e\x00\x41\x79\x00\x0d\x01\x99\xf9\x07");
    let allowed_nssai = Some(slices());
    vec![
        InitialUeMessage {
            ran_ue_ngap_id,
            nas_pdu: nas_pdu.clone(),
            user_location: location(),
            rrc_establishment_cause: RrcEstablishmentCause::MoData,
            s_tmsi: Some(s_tmsi()),
            amf_set_id: AmfSetId::new(1023),
            ue_context_request: true,
            allowed_nssai: allowed_nssai.clone(),
        }
        .into(),
        UplinkNasTransport {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            nas_pdu: nas_pdu.clone(),
            user_location: Some(location()),
        }
        .into(),
        DownlinkNasTransport {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            old_amf: Some("old".into()),
            nas_pdu: nas_pdu.clone(),
            ue_ambr: Some(ambr()),
            allowed_nssai: allowed_nssai.clone(),
        }
        .into(),
        NasNonDeliveryIndication {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            nas_pdu: Some(nas_pdu.clone()),
            cause: RadioNetwork::RadioConnectionWithUeLost.into(),
        }
        .into(),
        RerouteNasRequest {
            ran_ue_ngap_id,
            amf_ue_ngap_id: Some(amf_ue_ngap_id),
            ngap_message: nas_pdu,
            amf_set_id: AmfSetId::new(7).unwrap(),
            allowed_nssai,
        }
        .into(),
        UeRadioCapabilityInfoIndication {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            ue_radio_capability: Some(Bytes::from(vec![9; 300])),
        }
        .into(),
        Paging { s_tmsi: s_tmsi(), paging_drx: Some(PagingDrx::V64), tais: vec![tai(), tai()] }.into(),
    ]
}

fn context() -> Vec<Pdu> {
    let (amf_ue_ngap_id, ran_ue_ngap_id) = (AMF_ID, RAN_ID);
    let cause = Cause::Nas(Nas::Deregister);
    let ue_security_capabilities = UeSecurityCapabilities::from_nas(0xe0, 0x60, 0xf0, 0x70);
    let user_location = Some(location());
    let criticality_diagnostics = diagnostics();
    vec![
        InitialContextSetupRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            ue_ambr: Some(ambr()),
            guami: guami(),
            pdu_sessions: setup_items(),
            allowed_nssai: slices(),
            ue_security_capabilities,
            security_key: Key::new([0x5a; 32]),
            ue_radio_capability: Some(Bytes::from_static(b"radio")),
            nas_pdu: Some(Bytes::from_static(b"nas")),
        }
        .into(),
        InitialContextSetupResponse {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: items(1),
            failed: items(5),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        InitialContextSetupFailure {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            failed: items(5),
            cause,
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        UeContextReleaseRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: vec![session(1), session(15)],
            cause,
        }
        .into(),
        UeContextReleaseCommand { ue_ngap_ids: UeNgapIds::Pair(AMF_ID, RAN_ID), cause }.into(),
        UeContextReleaseCommand { ue_ngap_ids: UeNgapIds::Amf(AMF_ID), cause }.into(),
        UeContextReleaseComplete {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            user_location,
            pdu_sessions: vec![session(3)],
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        UeContextModificationRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            security_key: Some(Key::new([1; 32])),
            ue_ambr: Some(ambr()),
            ue_security_capabilities: Some(ue_security_capabilities),
            new_amf_ue_ngap_id: Some(AmfUeNgapId(0xff_ffff_ffff)),
        }
        .into(),
        UeContextModificationResponse {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            user_location,
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        UeContextModificationFailure { amf_ue_ngap_id, ran_ue_ngap_id, cause, criticality_diagnostics }
            .into(),
    ]
}

fn sessions() -> Vec<Pdu> {
    let (amf_ue_ngap_id, ran_ue_ngap_id) = (AMF_ID, RAN_ID);
    let nas_pdu = Some(Bytes::from_static(b"\x7e\x00\x68"));
    let user_location = Some(location());
    vec![
        PduSessionResourceSetupRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            nas_pdu: nas_pdu.clone(),
            pdu_sessions: setup_items(),
            ue_ambr: Some(ambr()),
        }
        .into(),
        PduSessionResourceSetupResponse {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: items(1),
            failed: items(3),
            criticality_diagnostics: diagnostics(),
            user_location,
        }
        .into(),
        PduSessionResourceReleaseCommand {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            nas_pdu: nas_pdu.clone(),
            pdu_sessions: items(2),
        }
        .into(),
        PduSessionResourceReleaseResponse {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: items(2),
            user_location,
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        PduSessionResourceModifyRequest {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: vec![PduSessionModifyItem {
                id: session(4),
                nas_pdu,
                transfer: modify_request_transfer().encode().unwrap(),
            }],
        }
        .into(),
        PduSessionResourceModifyResponse {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: items(1),
            failed: items(6),
            user_location,
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        PduSessionResourceNotify {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            pdu_sessions: items(1),
            released: items(4),
            user_location,
        }
        .into(),
    ]
}
