//! The information elements of TS 38.473 §9.3, as far as the messages here use them.

use std::net::{Ipv4Addr, Ipv6Addr};

use per::{BitString, DecodeError, EncodeError, ErrorKind, Range, Reader, Size, Writer};
use types::{BitRate, Ncgi, NrCellId, Plmn, Qfi, SNssai, STmsi, Tac, Teid, Tmsi};

use crate::cause::Cause;
use crate::codec::{Per, enumerations, integers, read_extensions, read_single, sequences, write_ie};

integers! {
    /// gNB-CU UE F1AP ID (§9.3.1.4): the CU's number of a UE.
    GnbCuUeF1apId(u32) Range::new(0, 0xffff_ffff);
    /// gNB-DU UE F1AP ID (§9.3.1.5): the DU's number of a UE.
    GnbDuUeF1apId(u32) Range::new(0, 0xffff_ffff);
    /// Transaction ID (§9.3.1.23): pairs the messages of a procedure about the interface.
    TransactionId(u8) Range::new(0, 255).extensible();
    /// gNB-DU ID (§9.3.1.9): 36 bits.
    GnbDuId(u64) Range::new(0, 0xf_ffff_ffff);
    /// C-RNTI (§9.3.1.32).
    CRnti(u16) Range::new(0, 65_535).extensible();
    /// SRB ID (§9.3.1.7).
    SrbId(u8) Range::new(0, 3).extensible();
    /// DRB ID (§9.3.1.8).
    DrbId(u8) Range::new(1, 32).extensible();
    /// LCID (§9.3.1.35).
    Lcid(u8) Range::new(1, 32).extensible();
    /// Index of a serving cell: 0 is the primary cell.
    ServCellIndex(u8) Range::new(0, 31).extensible();
    /// Physical cell identity (NR PCI).
    NrPci(u16) Range::new(0, 1007);
    /// NR ARFCN (TS 38.104 §5.4.2.1).
    NrArfcn(u32) Range::new(0, 3_279_165);
    /// Frequency band number.
    FreqBandIndicatorNr(u16) Range::new(1, 1024).extensible();
    /// 5QI (TS 23.501 §5.7.4).
    FiveQi(u8) Range::new(0, 255).extensible();
    /// QoS priority level: 1 is the highest.
    QosPriorityLevel(u8) Range::new(1, 127);
    /// Averaging window in milliseconds.
    AveragingWindow(u16) Range::new(0, 4095).extensible();
    /// Maximum data burst volume in octets.
    MaxDataBurstVolume(u16) Range::new(0, 4095).extensible();
    /// Packet delay budget in units of 0.5 ms.
    PacketDelayBudget(u16) Range::new(0, 1023).extensible();
    /// Mantissa or negated exponent of a packet error rate.
    ErrorRateDigit(u8) Range::new(0, 9).extensible();
    /// Allocation and retention priority: 1 is the highest.
    PriorityLevel(u8) Range::new(0, 15);
    /// Packet loss rate in tenths of a per cent.
    MaxPacketLossRate(u16) Range::new(0, 1000);
    /// QCI of E-UTRAN.
    Qci(u8) Range::new(0, 255);
    /// Procedure code (§9.3.1.3).
    ProcedureCode(u8) Range::new(0, 255);
}

enumerations! {
    /// What a receiver does that does not comprehend an IE (§10.3).
    Criticality false { Reject "reject", Ignore "ignore", Notify "notify", }
    /// Which message of a procedure.
    TriggeringMessage false {
        InitiatingMessage "initiating-message",
        SuccessfulOutcome "successful-outcome",
        UnsuccessfulOutcome "unsuccessful-outcome",
    }
    /// What was wrong with an IE (§9.3.1.3).
    TypeOfError true { NotUnderstood "not-understood", Missing "missing", }
    /// How long a DU waits before it repeats a setup (§9.3.1.13).
    TimeToWait true { V1s "v1s", V2s "v2s", V5s "v5s", V10s "v10s", V20s "v20s", V60s "v60s", }
    /// Subcarrier spacing.
    NrScs true { Scs15 "scs15", Scs30 "scs30", Scs60 "scs60", Scs120 "scs120", }
        + { Scs480 "scs480", Scs960 "scs960", }
    /// RLC mode (§9.3.1.27).
    RlcMode true {
        Am "rlc-am",
        UmBidirectional "rlc-um-bidirectional",
        UmUnidirectionalUl "rlc-um-unidirectional-ul",
        UmUnidirectionalDl "rlc-um-unidirectional-dl",
    }
    /// PDCP SN length (§9.3.1.63).
    PdcpSnLength true { TwelveBits "twelve-bits", EighteenBits "eighteen-bits", }
    /// Whether PDCP duplicates an SRB.
    DuplicationIndication true { True "true", } + { False "false", }
    /// Whether duplication of a DRB starts active.
    DuplicationActivation true { Active "active", Inactive "inactive", }
    /// How the UE uses this cell group for uplink data.
    UlUeConfiguration true { NoData "no-data", Shared "shared", Only "only", }
    /// Which uplink carriers a cell has configured.
    CellUlConfigured true { None "none", Ul "ul", Sul "sul", UlAndSul "ul-and-sul", }
    /// May a bearer take resources of others.
    PreEmptionCapability false {
        ShallNotTriggerPreEmption "shall-not-trigger-pre-emption",
        MayTriggerPreEmption "may-trigger-pre-emption",
    }
    /// May others take resources of a bearer.
    PreEmptionVulnerability false { NotPreEmptable "not-pre-emptable", PreEmptable "pre-emptable", }
    /// Reflective QoS.
    ReflectiveQosAttribute true { SubjectTo "subject-to", }
    /// Whether the DU reports GFBR that it cannot fulfil.
    NotificationControl true { Active "active", NotActive "not-active", }
    /// Delay-critical GBR.
    DelayCritical false { DelayCritical "delay-critical", NonDelayCritical "non-delay-critical", }
    /// Paging cycle in radio frames (§9.3.1.40).
    PagingDrx true { V32 "v32", V64 "v64", V128 "v128", V256 "v256", }
    /// Whether the UE's RRC reconfiguration completed.
    RrcReconfigurationCompleteIndicator true { True "true", } + { Failure "failure", }
    /// The DU reports delivery of the RRC message to the UE.
    RrcDeliveryStatusRequest true { True "true", }
    /// The DU's configuration is complete, not a difference.
    FullConfiguration true { Full "full", }
    /// All of the interface.
    ResetAll true { ResetAll "reset-all", }
}

sequences! {
    /// Information of an IE at fault.
    CriticalityDiagnosticsIe true {
        /// The criticality the sender gave it.
        req => criticality: Criticality,
        /// Its id.
        req => ie_id: u16,
        /// What is wrong.
        req => type_of_error: TypeOfError,
    }
    /// Criticality Diagnostics (§9.3.1.3): what was wrong with a message.
    CriticalityDiagnostics true {
        /// The procedure, if the message is not the answer to it.
        opt => procedure_code: Option<ProcedureCode>,
        /// Which of its messages.
        opt => triggering_message: Option<TriggeringMessage>,
        /// The criticality of the procedure.
        opt => procedure_criticality: Option<Criticality>,
        /// The transaction of the message.
        opt => transaction_id: Option<TransactionId>,
        /// The IEs at fault.
        optlist(1, 256) => ies: Vec<CriticalityDiagnosticsIe>,
    }

    /// A slice that a cell supports.
    SliceSupportItem false {
        /// The slice.
        req => s_nssai: SNssai,
    }
    /// A network that a cell serves.
    ServedPlmn true {
        /// The network.
        req => plmn: Plmn,
    } + {
        /// Its slices in this cell.
        slices: SliceSupportList = 131 Ignore,
    }
    /// A band and the supplementary uplink bands beside it.
    FreqBandNrItem true {
        /// The band.
        req => band: FreqBandIndicatorNr,
        /// Supplementary uplink bands.
        list(0, 32) => supported_sul_bands: Vec<SupportedSulFreqBandItem>,
    }
    /// A supplementary uplink band.
    SupportedSulFreqBandItem true {
        /// The band.
        req => band: FreqBandIndicatorNr,
    }
    /// The width of a carrier.
    TransmissionBandwidth true {
        /// Subcarrier spacing.
        req => scs: NrScs,
        /// Resource blocks.
        req => nrb: NrNrb,
    }
    /// A supplementary uplink carrier.
    SulInformation true {
        /// Its frequency.
        req => arfcn: NrArfcn,
        /// Its width.
        req => bandwidth: TransmissionBandwidth,
    }
    /// Frequency of a carrier (§9.3.1.17).
    NrFreqInfo true {
        /// The frequency.
        req => arfcn: NrArfcn,
        /// Supplementary uplink.
        opt => sul: Option<SulInformation>,
        /// The bands.
        list(1, 32) => bands: Vec<FreqBandNrItem>,
    }
    /// Carriers of a cell with paired spectrum.
    FddInfo true {
        /// Uplink frequency.
        req => ul_freq: NrFreqInfo,
        /// Downlink frequency.
        req => dl_freq: NrFreqInfo,
        /// Uplink width.
        req => ul_bandwidth: TransmissionBandwidth,
        /// Downlink width.
        req => dl_bandwidth: TransmissionBandwidth,
    }
    /// Carrier of a cell with unpaired spectrum.
    TddInfo true {
        /// Frequency.
        req => freq: NrFreqInfo,
        /// Width.
        req => bandwidth: TransmissionBandwidth,
    }
    /// Served Cell Information (§9.3.1.10).
    ServedCellInformation true {
        /// The cell.
        req => nr_cgi: Ncgi,
        /// Its physical cell identity.
        req => nr_pci: NrPci,
        /// Its tracking area.
        opt => tac: Option<Tac>,
        /// Its tracking area of EPS.
        opt => configured_eps_tac: Option<EpsTac>,
        /// The networks it serves.
        list(1, 6) => served_plmns: Vec<ServedPlmn>,
        /// Its carriers.
        req => nr_mode: NrModeInfo,
        /// MeasurementTimingConfiguration of TS 38.331.
        req => measurement_timing_configuration: Vec<u8>,
    }
    /// gNB-DU System Information (§9.3.1.18).
    GnbDuSystemInformation true {
        /// MIB of TS 38.331.
        req => mib: Vec<u8>,
        /// SIB1 of TS 38.331.
        req => sib1: Vec<u8>,
    }
    /// A cell of the DU.
    ServedCell true {
        /// The cell.
        req => information: ServedCellInformation,
        /// What it broadcasts.
        opt => system_information: Option<GnbDuSystemInformation>,
    }
    /// A cell that the CU activates.
    CellToBeActivated true {
        /// The cell.
        req => nr_cgi: Ncgi,
        /// Its physical cell identity.
        opt => nr_pci: Option<NrPci>,
    }
    /// RRC version (§9.3.1.70).
    RrcVersion false {
        /// Unused bits of old; the version follows.
        req => latest: RrcVersionBits,
    } + {
        /// x.y.z of TS 38.331, an octet each.
        latest_enhanced: [u8; 3] = 199 Ignore,
    }

    /// A GTP-U tunnel of a bearer's uplink or downlink (items of ULUPTNLInformation-ToBeSetup-List and
    /// DLUPTNLInformation-ToBeSetup-List).
    UpTnlItem true {
        /// Its end at the node that sends this.
        req => tunnel: GtpTunnel,
    }
    /// Uplink of a DRB (§9.3.1.31).
    UlConfiguration true {
        /// What the UE sends here.
        req => ul_ue_configuration: UlUeConfiguration,
    }
    /// 5QI with standardised characteristics (§9.3.1.49).
    NonDynamic5Qi false {
        /// 5QI.
        req => five_qi: FiveQi,
        /// Other than the 5QI's.
        opt => priority_level: Option<QosPriorityLevel>,
        /// Other than the 5QI's.
        opt => averaging_window: Option<AveragingWindow>,
        /// Other than the 5QI's.
        opt => max_data_burst_volume: Option<MaxDataBurstVolume>,
    }
    /// Scalar · 10^-exponent.
    PacketErrorRate true {
        /// Scalar.
        req => scalar: ErrorRateDigit,
        /// Exponent.
        req => exponent: ErrorRateDigit,
    }
    /// Characteristics that are signalled (§9.3.1.47).
    Dynamic5Qi false {
        /// Priority.
        req => priority_level: QosPriorityLevel,
        /// Delay budget.
        req => packet_delay_budget: PacketDelayBudget,
        /// Error rate.
        req => packet_error_rate: PacketErrorRate,
        /// 5QI, if one is assigned.
        opt => five_qi: Option<FiveQi>,
        /// Delay-critical GBR.
        opt => delay_critical: Option<DelayCritical>,
        /// For GBR.
        opt => averaging_window: Option<AveragingWindow>,
        /// For delay-critical GBR.
        opt => max_data_burst_volume: Option<MaxDataBurstVolume>,
    }
    /// NG-RAN allocation and retention priority (§9.3.1.48).
    NgranArp false {
        /// 1 is the highest.
        req => priority_level: PriorityLevel,
        /// May take resources of others.
        req => pre_emption_capability: PreEmptionCapability,
        /// May lose its resources.
        req => pre_emption_vulnerability: PreEmptionVulnerability,
    }
    /// Bit rates of a GBR flow (§9.3.1.46).
    GbrQosFlowInformation true {
        /// Maximum downlink.
        req => max_dl: BitRate,
        /// Maximum uplink.
        req => max_ul: BitRate,
        /// Guaranteed downlink.
        req => guaranteed_dl: BitRate,
        /// Guaranteed uplink.
        req => guaranteed_ul: BitRate,
        /// Loss that the downlink bears.
        opt => max_packet_loss_rate_dl: Option<MaxPacketLossRate>,
        /// Loss that the uplink bears.
        opt => max_packet_loss_rate_ul: Option<MaxPacketLossRate>,
    }
    /// QoS Flow Level QoS Parameters (§9.3.1.45).
    QosFlowLevelQosParameters false {
        /// What the flow needs.
        req => characteristics: QosCharacteristics,
        /// Whose resources go first.
        req => arp: NgranArp,
        /// For GBR flows.
        opt => gbr: Option<GbrQosFlowInformation>,
        /// Reflective QoS.
        opt => reflective_qos: Option<ReflectiveQosAttribute>,
    }
    /// A QoS flow in a DRB.
    FlowMappedToDrb false {
        /// The flow.
        req => qfi: Qfi,
        /// Its QoS.
        req => qos: QosFlowLevelQosParameters,
    }
    /// DRB Information: the QoS of a bearer of a 5G session.
    DrbInformation false {
        /// QoS of the bearer.
        req => qos: QosFlowLevelQosParameters,
        /// Slice of its session.
        req => s_nssai: SNssai,
        /// Reports about GFBR.
        opt => notification_control: Option<NotificationControl>,
        /// The flows it carries.
        list(1, 64) => flows: Vec<FlowMappedToDrb>,
    }

    /// An SRB to set up.
    SrbToBeSetup true {
        /// The SRB.
        req => srb_id: SrbId,
        /// PDCP duplication.
        opt => duplication_indication: Option<DuplicationIndication>,
    }
    /// A DRB to set up, in UE Context Setup and Modification Requests alike.
    DrbToBeSetup true {
        /// The DRB.
        req => drb_id: DrbId,
        /// Its QoS.
        req => qos: DrbQos,
        /// The CU's ends of its tunnels.
        list(1, 2) => ul_up_tnl: Vec<UpTnlItem>,
        /// RLC mode.
        req => rlc_mode: RlcMode,
        /// Uplink with two cell groups.
        opt => ul_configuration: Option<UlConfiguration>,
        /// Duplication at the start.
        opt => duplication_activation: Option<DuplicationActivation>,
    } + {
        /// Length of PDCP sequence numbers, of the downlink if the uplink's is given too. Mandatory in a Setup Request.
        dl_pdcp_sn_length: PdcpSnLength = 161 Ignore,
        /// Length of the uplink's.
        ul_pdcp_sn_length: PdcpSnLength = 192 Ignore,
    }
    /// A DRB to modify.
    DrbToBeModified true {
        /// The DRB.
        req => drb_id: DrbId,
        /// New QoS.
        opt => qos: Option<DrbQos>,
        /// The CU's ends of its tunnels.
        list(1, 2) => ul_up_tnl: Vec<UpTnlItem>,
        /// Uplink with two cell groups.
        opt => ul_configuration: Option<UlConfiguration>,
    } + {
        /// Length of PDCP sequence numbers.
        dl_pdcp_sn_length: PdcpSnLength = 161 Ignore,
        /// Length of the uplink's.
        ul_pdcp_sn_length: PdcpSnLength = 192 Ignore,
        /// New RLC mode.
        rlc_mode: RlcMode = 187 Ignore,
    }
    /// A DRB to release.
    DrbToBeReleased true {
        /// The DRB.
        req => drb_id: DrbId,
    }
    /// A DRB that was set up or modified.
    DrbSetup true {
        /// The DRB.
        req => drb_id: DrbId,
        /// Its logical channel.
        opt => lcid: Option<Lcid>,
        /// The DU's ends of its tunnels.
        list(1, 2) => dl_up_tnl: Vec<UpTnlItem>,
    }
    /// A DRB that was not set up or modified.
    DrbFailed true {
        /// The DRB.
        req => drb_id: DrbId,
        /// Why.
        opt => cause: Option<Cause>,
    }
    /// An SRB that was not set up.
    SrbFailed true {
        /// The SRB.
        req => srb_id: SrbId,
        /// Why.
        opt => cause: Option<Cause>,
    }
    /// CU to DU RRC Information (§9.3.1.25): octets of TS 38.331 types.
    CuToDuRrcInformation true {
        /// CG-ConfigInfo.
        opt => cg_config_info: Option<Vec<u8>>,
        /// UE-CapabilityRAT-ContainerList.
        opt => ue_capability_rat_container_list: Option<Vec<u8>>,
        /// MeasConfig.
        opt => meas_config: Option<Vec<u8>>,
    } + {
        /// HandoverPreparationInformation.
        handover_preparation_information: Vec<u8> = 119 Ignore,
        /// CellGroupConfig.
        cell_group_config: Vec<u8> = 173 Ignore,
    }
    /// DU to CU RRC Information (§9.3.1.26): octets of TS 38.331 types.
    DuToCuRrcInformation true {
        /// CellGroupConfig.
        req => cell_group_config: Vec<u8>,
        /// MeasGapConfig.
        opt => meas_gap_config: Option<Vec<u8>>,
        /// requestedP-MaxFR1.
        opt => requested_p_max_fr1: Option<Vec<u8>>,
    }
    /// A cell to page in.
    PagingCell false {
        /// The cell.
        req => nr_cgi: Ncgi,
    }
    /// A UE of a partial reset.
    UeAssociation true {
        /// The CU's number of it.
        opt => gnb_cu_ue_f1ap_id: Option<GnbCuUeF1apId>,
        /// The DU's number of it.
        opt => gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId>,
    }
}

/// What stands for a mandatory transaction that is absent, where its criticality is ignore, and in an Error Indication
/// about a message without one.
impl Default for TransactionId {
    fn default() -> Self {
        Self(0)
    }
}

/// Slices of a network in a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceSupportList(pub Vec<SliceSupportItem>);

impl Per for SliceSupportList {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.list(&self.0, Size::new(1, 1024), |w, item| item.write(w))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.list(Size::new(1, 1024), SliceSupportItem::read).map(Self)
    }
}

/// A value of ours that the wire type holds but the meaning does not allow.
fn invalid(r: &Reader<'_>, what: &'static str) -> DecodeError {
    r.error(ErrorKind::Value(what))
}

impl Per for u16 {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.integer((*self).into(), Range::new(0, 65_535))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.integer(Range::new(0, 65_535)).map(|value| value as Self)
    }
}

impl<const N: usize> Per for [u8; N] {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.octet_string(self, Size::fixed(N))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.octets()
    }
}

impl Per for Plmn {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        self.to_bcd().write(w)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_bcd(r.octets()?).map_err(|_| invalid(r, "not a PLMN"))
    }
}

impl Per for Tac {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        self.to_octets().write(w)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.octets().map(Self::from_octets)
    }
}

/// Tracking area code of EPS.
pub type EpsTac = [u8; 2];

/// The end of a SEQUENCE without optional members but iE-Extensions, of which none is known.
fn skip_extensions(r: &mut Reader<'_>, present: bool) -> Result<(), DecodeError> {
    if present { read_extensions(r, |_, _| Ok(false)) } else { Ok(()) }
}

impl Per for SNssai {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.preamble(None, &[self.sd().is_some(), false]);
        [self.sst].write(w)?;
        self.sd_octets().map_or(Ok(()), |sd| sd.write(w))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let preamble = r.preamble(false, 2)?;
        let [sst] = r.octets()?;
        let sd = if preamble.present(0) { Some(r.octets()?) } else { None };
        skip_extensions(r, preamble.present(1))?;
        Ok(Self::from_octets(sst, sd))
    }
}

impl Per for Ncgi {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.preamble(Some(false), &[false]);
        self.plmn.write(w)?;
        w.fixed_bits(self.nr_cell_id.value(), 36)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let preamble = r.preamble(true, 1)?;
        let plmn = Plmn::read(r)?;
        let cell = r.fixed_bits(36)?;
        skip_extensions(r, preamble.present(0))?;
        r.skip_additions(&preamble)?;
        let nr_cell_id = NrCellId::new(cell).map_err(|_| invalid(r, "not a cell identity"))?;
        Ok(Self { plmn, nr_cell_id })
    }
}

impl Per for Qfi {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.integer(self.value().into(), Range::new(0, 63))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let value = r.integer(Range::new(0, 63))? as u8;
        Self::new(value).map_err(|_| invalid(r, "not a QFI"))
    }
}

/// Bit Rate (§9.3.1.22).
const BIT_RATE: Range = Range::new(0, 4_000_000_000_000).extensible();

impl Per for BitRate {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.integer(i64::try_from(self.bps()).unwrap_or(i64::MAX), BIT_RATE)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let value = r.integer(BIT_RATE)?;
        value.try_into().map(Self::from_bps).map_err(|_| r.error(ErrorKind::Range))
    }
}

/// A name (gNB-DU Name, gNB-CU Name): 1 to 150 characters of PrintableString.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeName(pub String);

fn printable(character: u8) -> bool {
    character.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&character)
}

impl Per for NodeName {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.visible_string(&self.0, Size::new(1, 150).extensible(), printable)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.visible_string(Size::new(1, 150).extensible(), printable).map(Self)
    }
}

/// The three bits of Latest RRC Version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RrcVersionBits(pub u8);

impl Per for RrcVersionBits {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.fixed_bits(self.0.into(), 3)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.fixed_bits(3).map(|bits| Self(bits as u8))
    }
}

/// Number of resource blocks of a carrier: one of those of TS 38.104 §5.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NrNrb(pub u16);

impl NrNrb {
    /// The values, in the order of the ASN.1.
    const ALL: [u16; 40] = [
        11, 18, 24, 25, 31, 32, 38, 51, 52, 65, 66, 78, 79, 93, 106, 107, 121, 132, 133, 135, 160, 162, 189,
        216, 217, 245, 264, 270, 273, // Additions follow.
        33, 62, 124, 148, 248, 44, 58, 92, 119, 188, 242,
    ];
    const ROOT: usize = 29;
}

impl Per for NrNrb {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        let index = Self::ALL.iter().position(|&nrb| nrb == self.0);
        w.enumerated(index.ok_or(EncodeError::Range(self.0.into()))?, Self::ROOT, true)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let index = r.enumerated(Self::ROOT, true)?;
        Self::ALL.get(index).copied().map(Self).ok_or_else(|| invalid(r, "unknown number of resource blocks"))
    }
}

/// Carriers of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "a cell is described once")]
pub enum NrModeInfo {
    /// Paired spectrum.
    Fdd(FddInfo),
    /// Unpaired spectrum.
    Tdd(TddInfo),
}

impl Per for NrModeInfo {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        match self {
            Self::Fdd(info) => w.choice(0, 3, false).and_then(|()| info.write(w)),
            Self::Tdd(info) => w.choice(1, 3, false).and_then(|()| info.write(w)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(3, false)? {
            0 => FddInfo::read(r).map(Self::Fdd),
            1 => TddInfo::read(r).map(Self::Tdd),
            _ => Err(invalid(r, "unknown mode")),
        }
    }
}

/// What a flow needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QosCharacteristics {
    /// As a 5QI says.
    NonDynamic(NonDynamic5Qi),
    /// As given.
    Dynamic(Dynamic5Qi),
}

impl Per for QosCharacteristics {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        match self {
            Self::NonDynamic(qos) => w.choice(0, 3, false).and_then(|()| qos.write(w)),
            Self::Dynamic(qos) => w.choice(1, 3, false).and_then(|()| qos.write(w)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(3, false)? {
            0 => NonDynamic5Qi::read(r).map(Self::NonDynamic),
            1 => Dynamic5Qi::read(r).map(Self::Dynamic),
            _ => Err(invalid(r, "unknown QoS characteristics")),
        }
    }
}

/// QoS of a DRB: its DRB Information. That of bearers of EPS (EUTRANQoS) is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrbQos(pub DrbInformation);

/// DRB-Information in the choice-extension of QoSInformation.
const DRB_INFORMATION: u16 = 164;

impl Per for DrbQos {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.choice(1, 2, false)?;
        write_ie(w, DRB_INFORMATION, Criticality::Ignore, |w| self.0.write(w))
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(2, false)? {
            1 => read_single(r, DRB_INFORMATION).map(Self),
            _ => Err(invalid(r, "QoS of EPS")),
        }
    }
}

/// One end of a GTP-U tunnel (UP Transport Layer Information, §9.3.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GtpTunnel {
    /// Where.
    pub address: TransportLayerAddress,
    /// Which.
    pub teid: Teid,
}

/// Transport Layer Address (§9.3.2.3, TS 38.414).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportLayerAddress {
    /// 32 bits.
    V4(Ipv4Addr),
    /// 128 bits.
    V6(Ipv6Addr),
    /// 160 bits: both, IPv4 first.
    Both(Ipv4Addr, Ipv6Addr),
}

impl Per for TransportLayerAddress {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        let octets = match self {
            Self::V4(v4) => v4.octets().to_vec(),
            Self::V6(v6) => v6.octets().to_vec(),
            Self::Both(v4, v6) => [&v4.octets()[..], &v6.octets()].concat(),
        };
        let bits = octets.len() * 8;
        let string = BitString::new(octets, bits).ok_or(EncodeError::Size(bits))?;
        w.bit_string(&string, Size::new(1, 160).extensible())
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let string = r.bit_string(Size::new(1, 160).extensible())?;
        let octets = string.octets();
        let v4 = |octets: &[u8]| <[u8; 4]>::try_from(octets).map(Ipv4Addr::from);
        let v6 = |octets: &[u8]| <[u8; 16]>::try_from(octets).map(Ipv6Addr::from);
        let address = match (string.bits(), octets.split_at_checked(4)) {
            (32, _) => v4(octets).map(Self::V4),
            (128, _) => v6(octets).map(Self::V6),
            (160, Some((a, b))) => v4(a).and_then(|a| v6(b).map(|b| Self::Both(a, b))),
            _ => return Err(invalid(r, "not an address")),
        };
        address.map_err(|_| invalid(r, "not an address"))
    }
}

impl Per for GtpTunnel {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.choice(0, 2, false)?;
        w.preamble(Some(false), &[false]);
        self.address.write(w)?;
        self.teid.0.to_be_bytes().write(w)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if r.choice(2, false)? != 0 {
            return Err(invalid(r, "not a GTP-U tunnel"));
        }
        let preamble = r.preamble(true, 1)?;
        let address = TransportLayerAddress::read(r)?;
        let teid = Teid(u32::from_be_bytes(r.octets()?));
        skip_extensions(r, preamble.present(0))?;
        r.skip_additions(&preamble)?;
        Ok(Self { address, teid })
    }
}

/// UE Identity Index Value (§9.3.1.39): 5G-S-TMSI mod 1024, which decides when the UE listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UeIdentityIndexValue(pub u16);

impl Per for UeIdentityIndexValue {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.choice(0, 2, false)?;
        w.fixed_bits(self.0.into(), 10)
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(2, false)? {
            0 => r.fixed_bits(10).map(|bits| Self(bits as u16)),
            _ => Err(invalid(r, "unknown identity index")),
        }
    }
}

/// Paging Identity (§9.3.1.43, §9.3.1.44).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PagingIdentity {
    /// I-RNTI, 40 bits: paging of an inactive UE by the CU.
    RanUe(u64),
    /// Paging by the core.
    CnUe(STmsi),
}

impl Per for PagingIdentity {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        match self {
            Self::RanUe(i_rnti) => {
                w.choice(0, 3, false)?;
                w.preamble(None, &[false]);
                w.fixed_bits(*i_rnti, 40)
            }
            Self::CnUe(s_tmsi) => {
                w.choice(1, 3, false)?;
                w.choice(0, 2, false)?;
                let amf = u64::from(s_tmsi.set()) << 6 | u64::from(s_tmsi.pointer());
                w.fixed_bits(amf << 32 | u64::from(s_tmsi.tmsi().0), 48)
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(3, false)? {
            0 => {
                let preamble = r.preamble(false, 1)?;
                let i_rnti = r.fixed_bits(40)?;
                skip_extensions(r, preamble.present(0))?;
                Ok(Self::RanUe(i_rnti))
            }
            1 if r.choice(2, false)? == 0 => {
                let bits = r.fixed_bits(48)?;
                let (set, pointer) = ((bits >> 38) as u16, (bits >> 32 & 0x3f) as u8);
                let s_tmsi = STmsi::new(set, pointer, Tmsi(bits as u32));
                s_tmsi.map(Self::CnUe).map_err(|_| invalid(r, "not a 5G-S-TMSI"))
            }
            _ => Err(invalid(r, "unknown paging identity")),
        }
    }
}

/// What a Reset resets (§9.2.1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetType {
    /// All UEs.
    F1Interface,
    /// These UEs.
    PartOfF1Interface(Vec<UeAssociation>),
}

/// UE-associatedLogicalF1-ConnectionItem.
const UE_ASSOCIATION: u16 = 80;

impl Per for ResetType {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        match self {
            Self::F1Interface => {
                w.choice(0, 3, false)?;
                ResetAll::ResetAll.write(w)
            }
            Self::PartOfF1Interface(ues) => {
                w.choice(1, 3, false)?;
                w.list(ues, Size::new(1, 65_536), |w, ue| {
                    write_ie(w, UE_ASSOCIATION, Criticality::Reject, |w| ue.write(w))
                })
            }
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(3, false)? {
            0 => ResetAll::read(r).map(|_| Self::F1Interface),
            1 => {
                let ues = r.list(Size::new(1, 65_536), |r| read_single(r, UE_ASSOCIATION))?;
                Ok(Self::PartOfF1Interface(ues))
            }
            _ => Err(invalid(r, "unknown kind of reset")),
        }
    }
}
