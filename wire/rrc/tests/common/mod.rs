//! A value of every message; those of tests/vectors/generate.py, with the same names.

#![allow(dead_code, reason = "not every test uses everything")]

use bytes::Bytes;
use rrc::bearer::*;
use rrc::cell_group::*;
use rrc::message::*;
use rrc::system::*;
use rrc::value::*;
use rrc::*;
use types::{AmfId, NrCellId, Plmn, Qfi, SNssai, STmsi, Tac, Tmsi};

/// A message of a channel, or a CellGroupConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Any {
    UlCcch(UlCcch),
    DlCcch(DlCcch),
    UlDcch(UlDcch),
    DlDcch(DlDcch),
    Pcch(Pcch),
    BcchBch(BcchBch),
    BcchDlSch(BcchDlSch),
    CellGroup(CellGroupConfig),
}

/// The names of the channels, as generate.py has them.
pub const CHANNELS: [&str; 8] =
    ["UL-CCCH", "DL-CCCH", "UL-DCCH", "DL-DCCH", "PCCH", "BCCH-BCH", "BCCH-DL-SCH", "CellGroupConfig"];

impl Any {
    pub fn decode(channel: &str, octets: &[u8]) -> Result<Self, DecodeError> {
        match channel {
            "UL-CCCH" => UlCcch::decode(octets).map(Self::UlCcch),
            "DL-CCCH" => DlCcch::decode(octets).map(Self::DlCcch),
            "UL-DCCH" => UlDcch::decode(octets).map(Self::UlDcch),
            "DL-DCCH" => DlDcch::decode(octets).map(Self::DlDcch),
            "PCCH" => Pcch::decode(octets).map(Self::Pcch),
            "BCCH-BCH" => BcchBch::decode(octets).map(Self::BcchBch),
            "BCCH-DL-SCH" => BcchDlSch::decode(octets).map(Self::BcchDlSch),
            "CellGroupConfig" => CellGroupConfig::decode(octets).map(Self::CellGroup),
            other => panic!("no channel {other}"),
        }
    }

    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        match self {
            Self::UlCcch(message) => message.encode(),
            Self::DlCcch(message) => message.encode(),
            Self::UlDcch(message) => message.encode(),
            Self::DlDcch(message) => message.encode(),
            Self::Pcch(message) => message.encode(),
            Self::BcchBch(message) => message.encode(),
            Self::BcchDlSch(message) => message.encode(),
            Self::CellGroup(config) => config.encode(),
        }
    }

    pub fn channel(&self) -> &'static str {
        let index = match self {
            Self::UlCcch(_) => 0,
            Self::DlCcch(_) => 1,
            Self::UlDcch(_) => 2,
            Self::DlDcch(_) => 3,
            Self::Pcch(_) => 4,
            Self::BcchBch(_) => 5,
            Self::BcchDlSch(_) => 6,
            Self::CellGroup(_) => 7,
        };
        CHANNELS[index]
    }
}

pub fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

pub fn transaction(id: u8) -> RrcTransactionIdentifier {
    RrcTransactionIdentifier::new(id).unwrap()
}

pub fn nas() -> Bytes {
    unhex("7e0043").into()
}

pub fn s_tmsi() -> STmsi {
    STmsi::new(0x155, 0x2a, Tmsi(0xc0ff_ee01)).unwrap()
}

fn drb(id: u8) -> DrbIdentity {
    DrbIdentity::new(id).unwrap()
}

fn qfi(id: u8) -> Qfi {
    Qfi::new(id).unwrap()
}

fn channel(id: u8) -> LogicalChannelIdentity {
    LogicalChannelIdentity::new(id).unwrap()
}

pub fn cell_group() -> CellGroupConfig {
    let am = AmRlc {
        ul_am_rlc: UlAmRlc {
            sn_field_length: Some(SnFieldLengthAm::Size12),
            t_poll_retransmit: TPollRetransmit::new(45).unwrap(),
            poll_pdu: PollPdu::INFINITY,
            poll_byte: PollByte::INFINITY,
            max_retx_threshold: MaxRetxThreshold::new(8).unwrap(),
        },
        dl_am_rlc: DlAmRlc {
            sn_field_length: Some(SnFieldLengthAm::Size18),
            t_reassembly: TReassembly::new(35).unwrap(),
            t_status_prohibit: TStatusProhibit::new(2400).unwrap(),
        },
    };
    let um = UmRlc {
        ul_um_rlc: UlUmRlc { sn_field_length: Some(SnFieldLengthUm::Size6) },
        dl_um_rlc: DlUmRlc {
            sn_field_length: Some(SnFieldLengthUm::Size12),
            t_reassembly: TReassembly::new(200).unwrap(),
        },
    };
    let parameters = UlSpecificParameters {
        priority: Priority::new(1).unwrap(),
        prioritised_bit_rate: PrioritisedBitRate::INFINITY,
        bucket_size_duration: BucketSizeDuration::new(1000).unwrap(),
        logical_channel_group: LogicalChannelGroup::new(0),
        scheduling_request_id: SchedulingRequestId::new(7),
        logical_channel_sr_mask: false,
        logical_channel_sr_delay_timer_applied: true,
    };
    CellGroupConfig {
        cell_group_id: CellGroupId::new(0).unwrap(),
        rlc_bearer_to_add_mod_list: vec![
            RlcBearerConfig {
                logical_channel_identity: channel(1),
                served_radio_bearer: Some(ServedRadioBearer::Srb(SrbIdentity::new(1).unwrap())),
                reestablish_rlc: false,
                rlc_config: Some(RlcConfig::Am(am)),
                mac_logical_channel_config: Some(LogicalChannelConfig {
                    ul_specific_parameters: Some(parameters),
                }),
            },
            RlcBearerConfig {
                logical_channel_identity: channel(32),
                served_radio_bearer: Some(ServedRadioBearer::Drb(drb(29))),
                reestablish_rlc: true,
                rlc_config: Some(RlcConfig::UmBiDirectional(um)),
                mac_logical_channel_config: None,
            },
        ],
        rlc_bearer_to_release_list: vec![channel(4), channel(5)],
    }
}

fn srb(id: u8) -> SrbToAddMod {
    SrbToAddMod {
        srb_identity: SrbIdentity::new(id).unwrap(),
        reestablish_pdcp: false,
        discard_on_pdcp: false,
        pdcp_config: None,
    }
}

fn bearers() -> RadioBearerConfig {
    let t_reordering = |ms| Some(TReordering::new(ms).unwrap());
    let sdap = SdapConfig {
        pdu_session: types::PduSessionId::new(1).unwrap().into(),
        sdap_header_dl: SdapHeader::Present,
        sdap_header_ul: SdapHeader::Absent,
        default_drb: true,
        mapped_qos_flows_to_add: vec![qfi(1), qfi(63)],
        mapped_qos_flows_to_release: vec![qfi(9)],
    };
    RadioBearerConfig {
        srb_to_add_mod_list: vec![
            SrbToAddMod {
                reestablish_pdcp: true,
                pdcp_config: Some(PdcpConfig { t_reordering: t_reordering(3000), ..PdcpConfig::default() }),
                ..srb(1)
            },
            SrbToAddMod { discard_on_pdcp: true, ..srb(2) },
        ],
        drb_to_add_mod_list: vec![
            DrbToAddMod {
                cn_association: Some(CnAssociation::SdapConfig(sdap)),
                drb_identity: drb(1),
                reestablish_pdcp: false,
                recover_pdcp: true,
                pdcp_config: Some(PdcpConfig {
                    drb: Some(PdcpDrb {
                        discard_timer: Some(DiscardTimer::INFINITY),
                        pdcp_sn_size_ul: Some(PdcpSnSize::Len18Bits),
                        pdcp_sn_size_dl: Some(PdcpSnSize::Len12Bits),
                        integrity_protection: true,
                        status_report_required: true,
                        out_of_order_delivery: true,
                    }),
                    t_reordering: t_reordering(0),
                    ciphering_disabled: true,
                }),
            },
            DrbToAddMod {
                cn_association: None,
                drb_identity: drb(32),
                reestablish_pdcp: true,
                recover_pdcp: false,
                pdcp_config: Some(PdcpConfig {
                    drb: Some(PdcpDrb { discard_timer: DiscardTimer::new(10), ..PdcpDrb::default() }),
                    t_reordering: t_reordering(220),
                    ciphering_disabled: false,
                }),
            },
        ],
        drb_to_release_list: vec![drb(2), drb(31)],
        security_config: Some(SecurityConfig {
            security_algorithm_config: Some(algorithms()),
            key_to_use: Some(KeyToUse::Secondary),
        }),
    }
}

fn algorithms() -> SecurityAlgorithmConfig {
    SecurityAlgorithmConfig {
        ciphering_algorithm: CipheringAlgorithm::Nea2,
        integrity_prot_algorithm: Some(IntegrityProtAlgorithm::Nia2),
    }
}

/// Every value that has a name in generate.py.
pub fn samples() -> Vec<(&'static str, Any)> {
    [srb0(), uplink(), downlink(), broadcast()].concat()
}

fn srb0() -> Vec<(&'static str, Any)> {
    let up = |message: UlCcch| Any::UlCcch(message);
    let down = |message: DlCcch| Any::DlCcch(message);
    let (part1, _) = split_s_tmsi(s_tmsi());
    vec![
        (
            "rrcSetupRequest random",
            up(RrcSetupRequest {
                ue_identity: InitialUeIdentity::RandomValue(Bits39::new(0x12_3456_789a).unwrap()),
                establishment_cause: EstablishmentCause::MoSignalling,
            }
            .into()),
        ),
        (
            "rrcSetupRequest s-tmsi",
            up(RrcSetupRequest {
                ue_identity: InitialUeIdentity::Ng5gSTmsiPart1(part1),
                establishment_cause: EstablishmentCause::Spare(15),
            }
            .into()),
        ),
        (
            "rrcReestablishmentRequest",
            up(RrcReestablishmentRequest {
                ue_identity: ReestabUeIdentity {
                    c_rnti: 0x4601,
                    phys_cell_id: PhysCellId::new(1007).unwrap(),
                    short_mac_i: 0xbeef,
                },
                reestablishment_cause: ReestablishmentCause::OtherFailure,
            }
            .into()),
        ),
        ("rrcReject", down(RrcReject { wait_time: RejectWaitTime::new(16) }.into())),
        ("rrcReject bare", down(RrcReject { wait_time: None }.into())),
        (
            "rrcSetup",
            down(
                RrcSetup {
                    rrc_transaction_identifier: transaction(3),
                    radio_bearer_config: RadioBearerConfig {
                        srb_to_add_mod_list: vec![srb(1)],
                        ..RadioBearerConfig::default()
                    },
                    master_cell_group: cell_group().encode().unwrap(),
                }
                .into(),
            ),
        ),
    ]
}

fn uplink() -> Vec<(&'static str, Any)> {
    let up = |message: UlDcch| Any::UlDcch(message);
    let amf = AmfId::new(2, 0x155, 0x2a).unwrap();
    let (_, part2) = split_s_tmsi(s_tmsi());
    let bare = RrcSetupComplete {
        rrc_transaction_identifier: transaction(0),
        selected_plmn_identity: SelectedPlmn::new(1).unwrap(),
        registered_amf: None,
        guami_type: None,
        s_nssai_list: Vec::new(),
        dedicated_nas_message: nas(),
        ng_5g_s_tmsi_value: None,
    };
    let full = RrcSetupComplete {
        rrc_transaction_identifier: transaction(3),
        selected_plmn_identity: SelectedPlmn::new(12).unwrap(),
        registered_amf: Some(RegisteredAmf {
            plmn_identity: Some(Plmn::new("310", "410").unwrap()),
            amf_identifier: amf,
        }),
        guami_type: Some(GuamiType::Mapped),
        s_nssai_list: vec![SNssai::new(1, None).unwrap(), SNssai::new(2, Some(0xff)).unwrap()],
        ng_5g_s_tmsi_value: Some(Ng5gSTmsiValue::Ng5gSTmsiPart2(part2)),
        ..bare.clone()
    };
    let whole = RrcSetupComplete {
        rrc_transaction_identifier: transaction(1),
        registered_amf: Some(RegisteredAmf { plmn_identity: None, amf_identifier: amf }),
        dedicated_nas_message: vec![0; 200].into(),
        ng_5g_s_tmsi_value: Some(Ng5gSTmsiValue::Ng5gSTmsi(s_tmsi())),
        ..bare.clone()
    };
    let transfer = |nas: Bytes| up(UlInformationTransfer { dedicated_nas_message: Some(nas) }.into());
    vec![
        ("rrcSetupComplete", up(full.into())),
        ("rrcSetupComplete bare", up(bare.into())),
        ("rrcSetupComplete s-tmsi", up(whole.into())),
        (
            "securityModeComplete",
            up(SecurityModeComplete { rrc_transaction_identifier: transaction(1) }.into()),
        ),
        (
            "securityModeFailure",
            up(SecurityModeFailure { rrc_transaction_identifier: transaction(2) }.into()),
        ),
        (
            "rrcReconfigurationComplete",
            up(RrcReconfigurationComplete { rrc_transaction_identifier: transaction(3) }.into()),
        ),
        ("ulInformationTransfer", transfer(nas())),
        ("ulInformationTransfer long", transfer(vec![0x5a; 16_385].into())),
    ]
}

fn downlink() -> Vec<(&'static str, Any)> {
    let down = |message: DlDcch| Any::DlDcch(message);
    let cell_group = cell_group().encode().unwrap();
    vec![
        (
            "securityModeCommand",
            down(
                SecurityModeCommand {
                    rrc_transaction_identifier: transaction(1),
                    security_config_smc: SecurityConfigSmc { security_algorithm_config: algorithms() },
                }
                .into(),
            ),
        ),
        (
            "dlInformationTransfer",
            down(
                DlInformationTransfer {
                    rrc_transaction_identifier: transaction(2),
                    dedicated_nas_message: Some(nas()),
                }
                .into(),
            ),
        ),
        (
            "rrcReconfiguration",
            down(
                RrcReconfiguration {
                    rrc_transaction_identifier: transaction(3),
                    radio_bearer_config: Some(bearers()),
                    secondary_cell_group: Some(cell_group.clone()),
                    v1530: Some(RrcReconfigurationV1530 {
                        master_cell_group: Some(cell_group),
                        full_config: true,
                        dedicated_nas_message_list: vec![nas(), unhex("7e0055").into()],
                    }),
                }
                .into(),
            ),
        ),
        (
            "rrcReconfiguration bare",
            down(
                RrcReconfiguration {
                    rrc_transaction_identifier: transaction(0),
                    radio_bearer_config: None,
                    secondary_cell_group: None,
                    v1530: None,
                }
                .into(),
            ),
        ),
        (
            "rrcRelease",
            down(
                RrcRelease {
                    rrc_transaction_identifier: transaction(3),
                    deprioritisation_req: Some(DeprioritisationReq {
                        deprioritisation_type: DeprioritisationType::Nr,
                        deprioritisation_timer: DeprioritisationTimer::Min30,
                    }),
                    v1540: Some(RrcReleaseV1540 { wait_time: RejectWaitTime::new(7) }),
                }
                .into(),
            ),
        ),
        (
            "rrcRelease bare",
            down(
                RrcRelease {
                    rrc_transaction_identifier: transaction(0),
                    deprioritisation_req: None,
                    v1540: None,
                }
                .into(),
            ),
        ),
    ]
}

fn broadcast() -> Vec<(&'static str, Any)> {
    let paging = Paging {
        paging_record_list: vec![
            PagingRecord { ue_identity: PagingUeIdentity::Ng5gSTmsi(s_tmsi()), non_3gpp_access: false },
            PagingRecord {
                ue_identity: PagingUeIdentity::FullIRnti(FullIRnti::new(0xfe_dcba_9876).unwrap()),
                non_3gpp_access: true,
            },
        ],
    };
    let mib = Mib {
        system_frame_number: Bits6::new(0x2a).unwrap(),
        sub_carrier_spacing_common: SubCarrierSpacingCommon::Scs30Or120,
        ssb_subcarrier_offset: Bits4::new(5).unwrap(),
        dmrs_type_a_position: DmrsTypeAPosition::Pos3,
        pdcch_config_sib1: 0xc3,
        cell_barred: CellBarred::NotBarred,
        intra_freq_reselection: IntraFreqReselection::Allowed,
    };
    let sib1 = Sib1 {
        cell_selection_info: Some(CellSelectionInfo {
            q_rx_lev_min: QRxLevMin::new(-62).unwrap(),
            q_rx_lev_min_offset: Offset::new(8),
            q_rx_lev_min_sul: QRxLevMin::new(-22),
            q_qual_min: QQualMin::new(-43),
            q_qual_min_offset: Offset::new(1),
        }),
        cell_access_related_info: CellAccessRelatedInfo {
            plmn_identity_info_list: vec![PlmnIdentityInfo {
                plmn_identity_list: vec![Plmn::new("999", "70").unwrap(), Plmn::new("310", "410").unwrap()],
                tracking_area_code: Some(Tac::new(0x0a_0b0c).unwrap()),
                ranac: Some(200),
                cell_identity: NrCellId::new(0x1_2345_6789).unwrap(),
                cell_reserved_for_operator_use: CellReservedForOperatorUse::NotReserved,
            }],
            cell_reserved_for_other_use: false,
        },
    };
    vec![
        ("paging", Any::Pcch(paging.into())),
        ("mib", Any::BcchBch(mib.into())),
        ("sib1", Any::BcchDlSch(sib1.into())),
        ("cellGroupConfig", Any::CellGroup(cell_group())),
    ]
}
