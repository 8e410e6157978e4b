//! Messages in which every IE is there at least once. vectors/generate.py has the same values.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};

use f1ap::Pdu;
use f1ap::cause::{Cause, Misc, Protocol, RadioNetwork, Transport};
use f1ap::ie::*;
use f1ap::message::*;
use types::{BitRate, Ncgi, NrCellId, Plmn, Qfi, SNssai, STmsi, Tac, Teid, Tmsi};

const CU: GnbCuUeF1apId = GnbCuUeF1apId(0xfffe_0007);
const DU: GnbDuUeF1apId = GnbDuUeF1apId(5);
const TRANSACTION: TransactionId = TransactionId(7);

fn plmn() -> Plmn {
    Plmn::from_bcd([0x99, 0xf9, 0x07]).unwrap()
}

fn cgi(cell: u64) -> Ncgi {
    Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(cell).unwrap() }
}

fn rate() -> BitRate {
    BitRate::from_bps(2_500_000_000)
}

fn version() -> RrcVersion {
    RrcVersion { latest: RrcVersionBits(0), latest_enhanced: Some([17, 4, 0]) }
}

fn diagnostics() -> Option<CriticalityDiagnostics> {
    Some(CriticalityDiagnostics {
        procedure_code: Some(ProcedureCode(5)),
        triggering_message: Some(TriggeringMessage::SuccessfulOutcome),
        procedure_criticality: Some(Criticality::Notify),
        transaction_id: Some(TRANSACTION),
        ies: vec![
            CriticalityDiagnosticsIe {
                criticality: Criticality::Reject,
                ie_id: 64,
                type_of_error: TypeOfError::Missing,
            },
            CriticalityDiagnosticsIe {
                criticality: Criticality::Notify,
                ie_id: 700,
                type_of_error: TypeOfError::NotUnderstood,
            },
        ],
    })
}

fn tunnel(teid: u32) -> UpTnlItem {
    let v4 = Ipv4Addr::new(10, 1, 2, 3);
    let v6 = Ipv6Addr::from(0xfd00_0000_0000_0000_0000_0000_0000_0007);
    let address = match teid % 3 {
        0 => TransportLayerAddress::V4(v4),
        1 => TransportLayerAddress::V6(v6),
        _ => TransportLayerAddress::Both(v4, v6),
    };
    UpTnlItem { tunnel: GtpTunnel { address, teid: Teid(teid) } }
}

fn width(scs: NrScs, nrb: u16) -> TransmissionBandwidth {
    TransmissionBandwidth { scs, nrb: NrNrb(nrb) }
}

fn freq(arfcn: u32, band: u16, sul: Option<u32>) -> NrFreqInfo {
    let supported = sul.map(|_| SupportedSulFreqBandItem { band: FreqBandIndicatorNr(80) });
    NrFreqInfo {
        arfcn: NrArfcn(arfcn),
        sul: sul.map(|sul| SulInformation { arfcn: NrArfcn(sul), bandwidth: width(NrScs::Scs15, 160) }),
        bands: vec![FreqBandNrItem {
            band: FreqBandIndicatorNr(band),
            supported_sul_bands: supported.into_iter().collect(),
        }],
    }
}

fn cells() -> Vec<ServedCell> {
    let slices = [SNssai::new(1, None), SNssai::new(2, Some(0xff))];
    let slices = slices.map(|slice| SliceSupportItem { s_nssai: slice.unwrap() });
    vec![
        ServedCell {
            information: ServedCellInformation {
                nr_cgi: cgi(0x1_2345_6789),
                nr_pci: NrPci(1007),
                tac: Some(Tac::from_octets([0x0a, 0x0b, 0x0c])),
                configured_eps_tac: None,
                served_plmns: vec![ServedPlmn {
                    plmn: plmn(),
                    slices: Some(SliceSupportList(slices.to_vec())),
                }],
                nr_mode: NrModeInfo::Tdd(TddInfo {
                    freq: freq(630_000, 78, Some(350_000)),
                    bandwidth: width(NrScs::Scs30, 106),
                }),
                measurement_timing_configuration: b"mtc".to_vec(),
            },
            system_information: Some(GnbDuSystemInformation {
                mib: b"mib".to_vec(),
                sib1: b"sib1".repeat(50),
            }),
        },
        ServedCell {
            information: ServedCellInformation {
                nr_cgi: cgi(0),
                nr_pci: NrPci(0),
                tac: None,
                configured_eps_tac: Some([1, 2]),
                served_plmns: vec![ServedPlmn { plmn: plmn(), slices: None }],
                nr_mode: NrModeInfo::Fdd(FddInfo {
                    ul_freq: freq(380_000, 1, None),
                    dl_freq: freq(428_000, 1, None),
                    ul_bandwidth: width(NrScs::Scs15, 273),
                    dl_bandwidth: width(NrScs::Scs480, 33),
                }),
                measurement_timing_configuration: Vec::new(),
            },
            system_information: None,
        },
    ]
}

fn qos() -> QosFlowLevelQosParameters {
    QosFlowLevelQosParameters {
        characteristics: QosCharacteristics::NonDynamic(NonDynamic5Qi {
            five_qi: FiveQi(9),
            priority_level: Some(QosPriorityLevel(90)),
            averaging_window: None,
            max_data_burst_volume: None,
        }),
        arp: NgranArp {
            priority_level: PriorityLevel(8),
            pre_emption_capability: PreEmptionCapability::MayTriggerPreEmption,
            pre_emption_vulnerability: PreEmptionVulnerability::NotPreEmptable,
        },
        gbr: None,
        reflective_qos: None,
    }
}

fn gbr() -> QosFlowLevelQosParameters {
    QosFlowLevelQosParameters {
        characteristics: QosCharacteristics::Dynamic(Dynamic5Qi {
            priority_level: QosPriorityLevel(20),
            packet_delay_budget: PacketDelayBudget(100),
            packet_error_rate: PacketErrorRate { scalar: ErrorRateDigit(1), exponent: ErrorRateDigit(6) },
            five_qi: Some(FiveQi(3)),
            delay_critical: Some(DelayCritical::NonDelayCritical),
            averaging_window: Some(AveragingWindow(2000)),
            max_data_burst_volume: Some(MaxDataBurstVolume(255)),
        }),
        gbr: Some(GbrQosFlowInformation {
            max_dl: rate(),
            max_ul: BitRate::from_bps(1),
            guaranteed_dl: BitRate::from_bps(0),
            guaranteed_ul: BitRate::from_bps(4_000_000_000_000),
            max_packet_loss_rate_dl: Some(MaxPacketLossRate(1000)),
            max_packet_loss_rate_ul: Some(MaxPacketLossRate(0)),
        }),
        reflective_qos: Some(ReflectiveQosAttribute::SubjectTo),
        ..qos()
    }
}

fn drb_qos(flows: &[(u8, QosFlowLevelQosParameters)]) -> DrbQos {
    DrbQos(DrbInformation {
        qos: flows[0].1.clone(),
        s_nssai: SNssai::new(2, Some(0xff)).unwrap(),
        notification_control: Some(NotificationControl::NotActive),
        flows: flows
            .iter()
            .map(|(qfi, qos)| FlowMappedToDrb { qfi: Qfi::new(*qfi).unwrap(), qos: qos.clone() })
            .collect(),
    })
}

fn drbs() -> Vec<DrbToBeSetup> {
    vec![
        DrbToBeSetup {
            drb_id: DrbId(1),
            qos: drb_qos(&[(9, qos())]),
            ul_up_tnl: vec![tunnel(3)],
            rlc_mode: RlcMode::Am,
            ul_configuration: None,
            duplication_activation: None,
            dl_pdcp_sn_length: Some(PdcpSnLength::TwelveBits),
            ul_pdcp_sn_length: None,
        },
        DrbToBeSetup {
            drb_id: DrbId(32),
            qos: drb_qos(&[(63, gbr()), (0, qos())]),
            ul_up_tnl: vec![tunnel(0x8000_0001), tunnel(5)],
            rlc_mode: RlcMode::UmBidirectional,
            ul_configuration: Some(UlConfiguration { ul_ue_configuration: UlUeConfiguration::Only }),
            duplication_activation: Some(DuplicationActivation::Inactive),
            dl_pdcp_sn_length: Some(PdcpSnLength::EighteenBits),
            ul_pdcp_sn_length: Some(PdcpSnLength::TwelveBits),
        },
    ]
}

fn srbs() -> Vec<SrbToBeSetup> {
    vec![
        SrbToBeSetup { srb_id: SrbId(1), duplication_indication: None },
        SrbToBeSetup { srb_id: SrbId(2), duplication_indication: Some(DuplicationIndication::True) },
    ]
}

fn drbs_setup() -> Vec<DrbSetup> {
    vec![
        DrbSetup { drb_id: DrbId(1), lcid: Some(Lcid(4)), dl_up_tnl: vec![tunnel(6)] },
        DrbSetup { drb_id: DrbId(32), lcid: None, dl_up_tnl: vec![tunnel(7), tunnel(8)] },
    ]
}

fn drbs_failed() -> Vec<DrbFailed> {
    let cause = Some(Cause::RadioNetwork(RadioNetwork::MultipleDrbIdInstances));
    vec![DrbFailed { drb_id: DrbId(7), cause }, DrbFailed { drb_id: DrbId(8), cause: None }]
}

fn srbs_failed() -> Vec<SrbFailed> {
    let cause = Cause::Transport(Transport::TransportResourceUnavailable);
    vec![SrbFailed { srb_id: SrbId(3), cause: Some(cause) }]
}

fn ues() -> Vec<UeAssociation> {
    vec![
        UeAssociation { gnb_cu_ue_f1ap_id: Some(CU), gnb_du_ue_f1ap_id: Some(DU) },
        UeAssociation { gnb_cu_ue_f1ap_id: None, gnb_du_ue_f1ap_id: Some(GnbDuUeF1apId(65_536)) },
        UeAssociation { gnb_cu_ue_f1ap_id: Some(GnbCuUeF1apId(0)), gnb_du_ue_f1ap_id: None },
    ]
}

fn rrc() -> Vec<u8> {
    b"rrc".to_vec()
}

/// The messages, in the order of vectors.tsv.
pub fn messages() -> Vec<Pdu> {
    let mut messages = interface();
    messages.extend(rrc_transfers());
    messages.extend(context_setup());
    messages.extend(context_release());
    messages.extend(context_modification());
    messages.extend(paging());
    messages
}

fn interface() -> Vec<Pdu> {
    let transaction_id = TRANSACTION;
    vec![
        F1SetupRequest {
            transaction_id,
            gnb_du_id: GnbDuId(0x9_8765_4321),
            gnb_du_name: Some(NodeName("godwit du-1".into())),
            served_cells: cells(),
            rrc_version: version(),
        }
        .into(),
        F1SetupResponse {
            transaction_id,
            gnb_cu_name: Some(NodeName("cu".into())),
            cells_to_be_activated: vec![
                CellToBeActivated { nr_cgi: cgi(0x1_2345_6789), nr_pci: Some(NrPci(500)) },
                CellToBeActivated { nr_cgi: cgi(0x1_2345_6789), nr_pci: None },
            ],
            rrc_version: version(),
        }
        .into(),
        F1SetupFailure {
            transaction_id,
            cause: Cause::Misc(Misc::ControlProcessingOverload),
            time_to_wait: Some(TimeToWait::V60s),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        Reset {
            transaction_id,
            cause: Cause::Misc(Misc::OmIntervention),
            reset_type: ResetType::F1Interface,
        }
        .into(),
        Reset {
            transaction_id,
            cause: Cause::RadioNetwork(RadioNetwork::TatSdtExpiry),
            reset_type: ResetType::PartOfF1Interface(ues()),
        }
        .into(),
        ResetAcknowledge { transaction_id, ue_associations: ues(), criticality_diagnostics: diagnostics() }
            .into(),
        ErrorIndication {
            transaction_id,
            gnb_cu_ue_f1ap_id: Some(CU),
            gnb_du_ue_f1ap_id: Some(DU),
            cause: Some(Cause::Protocol(Protocol::SemanticError)),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
    ]
}

fn rrc_transfers() -> Vec<Pdu> {
    vec![
        InitialUlRrcMessageTransfer {
            gnb_du_ue_f1ap_id: DU,
            nr_cgi: cgi(0x1_2345_6789),
            c_rnti: CRnti(17_921),
            rrc_container: rrc(),
            du_to_cu_rrc_container: Some(b"group".to_vec()),
            transaction_id: TRANSACTION,
            rrc_setup_complete: Some(b"done".to_vec()),
        }
        .into(),
        DlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            old_gnb_du_ue_f1ap_id: Some(GnbDuUeF1apId(4)),
            srb_id: SrbId(1),
            rrc_container: rrc(),
            rrc_delivery_status_request: Some(RrcDeliveryStatusRequest::True),
        }
        .into(),
        UlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            srb_id: SrbId(2),
            rrc_container: rrc(),
        }
        .into(),
    ]
}

fn context_setup() -> Vec<Pdu> {
    vec![
        UeContextSetupRequest {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: Some(DU),
            sp_cell_id: cgi(0x1_2345_6789),
            serv_cell_index: ServCellIndex(0),
            sp_cell_ul_configured: Some(CellUlConfigured::Ul),
            cu_to_du_rrc_information: CuToDuRrcInformation {
                cg_config_info: Some(b"info".to_vec()),
                ue_capability_rat_container_list: Some(b"caps".to_vec()),
                meas_config: Some(b"meas".to_vec()),
                handover_preparation_information: Some(b"ho".to_vec()),
                cell_group_config: Some(b"cell".to_vec()),
            },
            srbs: srbs(),
            drbs: drbs(),
            rrc_container: Some(rrc()),
            ue_ambr_ul: Some(rate()),
            rrc_delivery_status_request: Some(RrcDeliveryStatusRequest::True),
        }
        .into(),
        UeContextSetupResponse {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            du_to_cu_rrc_information: DuToCuRrcInformation {
                cell_group_config: b"group".to_vec(),
                meas_gap_config: Some(b"gap".to_vec()),
                requested_p_max_fr1: Some(b"p".to_vec()),
            },
            c_rnti: Some(CRnti(17_921)),
            full_configuration: Some(FullConfiguration::Full),
            drbs: drbs_setup(),
            srbs_failed: srbs_failed(),
            drbs_failed: drbs_failed(),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        UeContextSetupFailure {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: Some(DU),
            cause: Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
    ]
}

fn context_release() -> Vec<Pdu> {
    let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = (CU, DU);
    vec![
        UeContextReleaseRequest {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            cause: Cause::RadioNetwork(RadioNetwork::RlFailureRlc),
        }
        .into(),
        UeContextReleaseCommand {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            cause: Cause::RadioNetwork(RadioNetwork::NormalRelease),
            rrc_container: Some(rrc()),
            srb_id: Some(SrbId(1)),
        }
        .into(),
        UeContextReleaseComplete {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id,
            criticality_diagnostics: diagnostics(),
        }
        .into(),
    ]
}

fn context_modification() -> Vec<Pdu> {
    let modified = DrbToBeModified {
        drb_id: DrbId(3),
        qos: Some(drb_qos(&[(1, qos())])),
        ul_up_tnl: vec![tunnel(9)],
        ul_configuration: None,
        dl_pdcp_sn_length: Some(PdcpSnLength::EighteenBits),
        ul_pdcp_sn_length: Some(PdcpSnLength::EighteenBits),
        rlc_mode: Some(RlcMode::UmUnidirectionalDl),
    };
    let moved = DrbToBeModified {
        drb_id: DrbId(4),
        qos: None,
        ul_up_tnl: vec![tunnel(10)],
        dl_pdcp_sn_length: None,
        ul_pdcp_sn_length: None,
        rlc_mode: None,
        ..modified.clone()
    };
    vec![
        UeContextModificationRequest {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            cu_to_du_rrc_information: Some(CuToDuRrcInformation {
                cg_config_info: None,
                ue_capability_rat_container_list: None,
                meas_config: None,
                handover_preparation_information: None,
                cell_group_config: None,
            }),
            rrc_reconfiguration_complete: Some(RrcReconfigurationCompleteIndicator::Failure),
            rrc_container: Some(rrc()),
            srbs: srbs(),
            drbs: drbs(),
            drbs_to_be_modified: vec![modified, moved],
            drbs_to_be_released: vec![
                DrbToBeReleased { drb_id: DrbId(5) },
                DrbToBeReleased { drb_id: DrbId(6) },
            ],
            ue_ambr_ul: Some(rate()),
        }
        .into(),
        UeContextModificationResponse {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            du_to_cu_rrc_information: Some(DuToCuRrcInformation {
                cell_group_config: b"group".to_vec(),
                meas_gap_config: None,
                requested_p_max_fr1: None,
            }),
            drbs: drbs_setup(),
            drbs_modified: drbs_setup()[..1].to_vec(),
            srbs_failed: srbs_failed(),
            drbs_failed: drbs_failed(),
            drbs_failed_to_be_modified: drbs_failed(),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
        UeContextModificationFailure {
            gnb_cu_ue_f1ap_id: CU,
            gnb_du_ue_f1ap_id: DU,
            cause: Cause::RadioNetwork(RadioNetwork::UnknownDrbId),
            criticality_diagnostics: diagnostics(),
        }
        .into(),
    ]
}

fn paging() -> Vec<Pdu> {
    let cell = PagingCell { nr_cgi: cgi(0x1_2345_6789) };
    // 0x806a: AMF set 0x201, pointer 0x2a.
    let s_tmsi = STmsi::new(0x201, 0x2a, Tmsi(0xc0ff_ee01)).unwrap();
    vec![
        Paging {
            ue_identity_index: UeIdentityIndexValue(0x2a5),
            paging_identity: PagingIdentity::CnUe(s_tmsi),
            paging_drx: Some(PagingDrx::V128),
            cells: vec![cell.clone()],
        }
        .into(),
        Paging {
            ue_identity_index: UeIdentityIndexValue(1),
            paging_identity: PagingIdentity::RanUe(0x12_3456_789a),
            paging_drx: None,
            cells: vec![cell.clone(), cell],
        }
        .into(),
    ]
}
