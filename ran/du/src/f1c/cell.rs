//! The DU's cell: what it broadcasts, what the CU is told of it, and what UEs are told of their bearers (TS 38.331).
//!
//! There is no radio: frequency, bandwidth and physical identity are values that a real cell could have.

use f1ap::ie::{
    FreqBandIndicatorNr, FreqBandNrItem, GnbDuId, GnbDuSystemInformation, NrArfcn, NrFreqInfo, NrModeInfo,
    NrNrb, NrPci, NrScs, ServedCell, ServedCellInformation, ServedPlmn, SliceSupportItem, SliceSupportList,
    TddInfo, TransmissionBandwidth,
};
use l2::rlc::am;
use rrc::cell_group::{
    AmRlc, CellGroupId, DlAmRlc, DlUmRlc, LogicalChannelIdentity, MaxRetxThreshold, PollByte, PollPdu,
    RlcBearerConfig, RlcConfig, ServedRadioBearer, SnFieldLengthAm, SnFieldLengthUm, TPollRetransmit,
    TReassembly, TStatusProhibit, UlAmRlc, UlUmRlc, UmRlc,
};
use rrc::system::{
    Bits4, Bits6, CellAccessRelatedInfo, CellBarred, CellReservedForOperatorUse, CellSelectionInfo,
    DmrsTypeAPosition, IntraFreqReselection, Mib, PlmnIdentityInfo, QRxLevMin, Sib1, SubCarrierSpacingCommon,
};
use rrc::value::{DrbIdentity, SrbIdentity};
use rrc::{BcchBch, BcchDlSch, CellGroupConfig};
use types::{Ncgi, NrCellId, Plmn, SNssai, Tac};

use crate::control::BearerSetup;

/// Physical cell identities (TS 38.211 §7.4.2.1).
const PCIS: u64 = 1008;
/// 3,490 MHz in band n78, 40 MHz wide with 30 kHz subcarriers (TS 38.104 §5.3.2, §5.4.2).
const ARFCN: u32 = 632_628;
const BAND: u16 = 78;
const RESOURCE_BLOCKS: u16 = 106;
/// MeasurementTimingConfiguration (TS 38.331 §11.2.2) without its optional measTiming.
const MEASUREMENT_TIMING: [u8; 1] = [0];
/// q-RxLevMin of SIB1: -140 dBm, so that no UE finds the cell too weak.
const Q_RX_LEV_MIN: i8 = -70;
const MS: u64 = 1_000_000;

/// Why a cell cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Invalid {
    /// The gNB-DU ID has more than 36 bits.
    #[error("id: a gNB-DU ID has 36 bits")]
    Id,
    /// The name is empty, too long, or has other characters than those of a PrintableString.
    #[error("name: 1 to 150 letters, digits, spaces or of '()+,-./:=?")]
    Name,
    /// There are no slices, or more than the standard allows.
    #[error("slices: 1 to 1024")]
    Slices,
    /// A message cannot be encoded.
    #[error("the cell cannot be described: {0}")]
    Encode(String),
}

/// A cell and its DU.
#[derive(Clone, Debug)]
pub struct Cell {
    id: GnbDuId,
    name: String,
    ncgi: Ncgi,
    tac: Tac,
    slices: Vec<SNssai>,
    /// MIB and SIB1 as messages of BCCH, which UEs hear.
    broadcast: (Vec<u8>, Vec<u8>),
    /// Both as they are, for the CU.
    system_information: GnbDuSystemInformation,
}

impl Cell {
    /// The cell `nr_cell_id` of a DU.
    ///
    /// # Errors
    /// See [`Invalid`].
    pub fn new(
        id: u64,
        name: &str,
        nr_cell_id: NrCellId,
        plmn: Plmn,
        tac: Tac,
        slices: &[SNssai],
    ) -> Result<Cell, Invalid> {
        if id >> 36 != 0 {
            return Err(Invalid::Id);
        }
        let printable = |c: u8| c.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&c);
        if name.is_empty() || name.len() > 150 || !name.bytes().all(printable) {
            return Err(Invalid::Name);
        }
        if slices.is_empty() || slices.len() > 1024 {
            return Err(Invalid::Slices);
        }
        let failed = |error: rrc::EncodeError| Invalid::Encode(error.to_string());
        let mib = mib().ok_or_else(|| Invalid::Encode("MIB".to_owned()))?;
        let sib1 = sib1(nr_cell_id, plmn, tac);
        let system_information = GnbDuSystemInformation {
            mib: mib.encode().map_err(failed)?.to_vec(),
            sib1: sib1.encode().map_err(failed)?.to_vec(),
        };
        let mib = BcchBch::from(mib).encode().map_err(failed)?.to_vec();
        let sib1 = BcchDlSch::from(sib1).encode().map_err(failed)?.to_vec();
        Ok(Cell {
            id: GnbDuId(id),
            name: name.to_owned(),
            ncgi: Ncgi { plmn, nr_cell_id },
            tac,
            slices: slices.to_vec(),
            broadcast: (mib, sib1),
            system_information,
        })
    }

    pub(super) fn du_id(&self) -> GnbDuId {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn ncgi(&self) -> Ncgi {
        self.ncgi
    }

    /// The messages with MIB and SIB1 for UEs.
    pub(super) fn broadcast(&self) -> (Vec<u8>, Vec<u8>) {
        self.broadcast.clone()
    }

    /// What the CU is told of the cell.
    pub(super) fn served(&self) -> ServedCell {
        let slices = self.slices.iter().map(|slice| SliceSupportItem { s_nssai: *slice }).collect();
        let band = FreqBandNrItem { band: FreqBandIndicatorNr(BAND), supported_sul_bands: Vec::new() };
        let information = ServedCellInformation {
            nr_cgi: self.ncgi,
            nr_pci: NrPci((self.ncgi.nr_cell_id.value() % PCIS) as u16),
            tac: Some(self.tac),
            configured_eps_tac: None,
            served_plmns: vec![ServedPlmn { plmn: self.ncgi.plmn, slices: Some(SliceSupportList(slices)) }],
            nr_mode: NrModeInfo::Tdd(TddInfo {
                freq: NrFreqInfo { arfcn: NrArfcn(ARFCN), sul: None, bands: vec![band] },
                bandwidth: TransmissionBandwidth { scs: NrScs::Scs30, nrb: NrNrb(RESOURCE_BLOCKS) },
            }),
            measurement_timing_configuration: MEASUREMENT_TIMING.to_vec(),
        };
        ServedCell { information, system_information: Some(self.system_information.clone()) }
    }
}

fn mib() -> Option<Mib> {
    Some(Mib {
        system_frame_number: Bits6::new(0)?,
        sub_carrier_spacing_common: SubCarrierSpacingCommon::Scs30Or120,
        ssb_subcarrier_offset: Bits4::new(0)?,
        dmrs_type_a_position: DmrsTypeAPosition::Pos2,
        pdcch_config_sib1: 0,
        cell_barred: CellBarred::NotBarred,
        intra_freq_reselection: IntraFreqReselection::Allowed,
    })
}

fn sib1(cell_identity: NrCellId, plmn: Plmn, tac: Tac) -> Sib1 {
    let selection = QRxLevMin::new(Q_RX_LEV_MIN).map(|q_rx_lev_min| CellSelectionInfo {
        q_rx_lev_min,
        q_rx_lev_min_offset: None,
        q_rx_lev_min_sul: None,
        q_qual_min: None,
        q_qual_min_offset: None,
    });
    let identity = PlmnIdentityInfo {
        plmn_identity_list: vec![plmn],
        tracking_area_code: Some(tac),
        ranac: None,
        cell_identity,
        cell_reserved_for_operator_use: CellReservedForOperatorUse::NotReserved,
    };
    Sib1 {
        cell_selection_info: selection,
        cell_access_related_info: CellAccessRelatedInfo {
            plmn_identity_info_list: vec![identity],
            cell_reserved_for_other_use: false,
        },
    }
}

/// A CellGroupConfig under construction: what changes for a UE.
#[derive(Debug, Default)]
pub(super) struct CellGroup {
    added: Vec<RlcBearerConfig>,
    released: Vec<LogicalChannelIdentity>,
}

impl CellGroup {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.released.is_empty()
    }

    /// SRB1 or SRB2, in acknowledged mode.
    pub(super) fn add_srb(&mut self, srb: u8) {
        let bearer = SrbIdentity::new(srb).map(ServedRadioBearer::Srb);
        self.add(srb, bearer, signalling_rlc());
    }

    /// A DRB in unacknowledged mode.
    pub(super) fn add_drb(&mut self, drb: u8, lcid: u8) {
        let bearer = DrbIdentity::new(drb).map(ServedRadioBearer::Drb);
        self.add(lcid, bearer, data_rlc());
    }

    fn add(&mut self, lcid: u8, bearer: Option<ServedRadioBearer>, rlc: Option<RlcConfig>) {
        let Some(logical_channel_identity) = LogicalChannelIdentity::new(lcid) else { return };
        self.added.push(RlcBearerConfig {
            logical_channel_identity,
            served_radio_bearer: bearer,
            reestablish_rlc: false,
            rlc_config: rlc,
            mac_logical_channel_config: None,
        });
    }

    pub(super) fn release(&mut self, lcid: u8) {
        self.released.extend(LogicalChannelIdentity::new(lcid));
    }

    /// The octets.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let config = CellGroupConfig {
            cell_group_id: CellGroupId::new(0)?,
            rlc_bearer_to_add_mod_list: self.added.clone(),
            rlc_bearer_to_release_list: self.released.clone(),
        };
        match config.encode() {
            Ok(octets) => Some(octets.to_vec()),
            Err(error) => {
                tracing::error!(%error, "a CellGroupConfig does not encode");
                None
            }
        }
    }
}

/// RLC of SRBs, as the user plane has it.
fn signalling_rlc() -> Option<RlcConfig> {
    const OURS: am::Config = am::Config::SIGNALLING;
    let ms = |ns: u64| u32::try_from(ns / MS).ok();
    let poll_pdu = OURS.poll_pdu.map_or(Some(PollPdu::INFINITY), PollPdu::new)?;
    let kilobytes = OURS.poll_byte.map(|octets| octets as u32 / 1_000);
    let poll_byte = kilobytes.map_or(Some(PollByte::INFINITY), PollByte::new)?;
    Some(RlcConfig::Am(AmRlc {
        ul_am_rlc: UlAmRlc {
            sn_field_length: Some(SnFieldLengthAm::Size12),
            t_poll_retransmit: TPollRetransmit::new(ms(OURS.t_poll_retransmit_ns)?)?,
            poll_pdu,
            poll_byte,
            max_retx_threshold: MaxRetxThreshold::new(OURS.max_retx_threshold)?,
        },
        dl_am_rlc: DlAmRlc {
            sn_field_length: Some(SnFieldLengthAm::Size12),
            t_reassembly: TReassembly::new(ms(OURS.t_reassembly_ns)?)?,
            t_status_prohibit: TStatusProhibit::new(ms(OURS.t_status_prohibit_ns)?)?,
        },
    }))
}

/// RLC of DRBs, as the user plane has it.
fn data_rlc() -> Option<RlcConfig> {
    let sn_field_length = Some(SnFieldLengthUm::Size12);
    let t_reassembly = TReassembly::new(BearerSetup::T_REASSEMBLY.as_millis() as u32)?;
    Some(RlcConfig::UmBiDirectional(UmRlc {
        ul_um_rlc: UlUmRlc { sn_field_length },
        dl_um_rlc: DlUmRlc { sn_field_length, t_reassembly },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearers_have_the_rlc_of_the_user_plane() {
        let mut group = CellGroup::default();
        assert!(group.is_empty());
        group.add_srb(1);
        group.add_drb(29, 32);
        group.release(4);
        let config = CellGroupConfig::decode(&group.encode().unwrap()).unwrap();
        let [srb, drb] = &config.rlc_bearer_to_add_mod_list[..] else { panic!("{config:?}") };
        let Some(RlcConfig::Am(am)) = &srb.rlc_config else { panic!("{srb:?}") };
        assert_eq!(am.ul_am_rlc.t_poll_retransmit.value(), Some(45));
        assert_eq!((am.dl_am_rlc.t_reassembly.value(), am.ul_am_rlc.poll_pdu.value()), (Some(35), None));
        let Some(RlcConfig::UmBiDirectional(um)) = &drb.rlc_config else { panic!("{drb:?}") };
        assert_eq!(um.dl_um_rlc.t_reassembly.value(), Some(50));
        assert_eq!(drb.logical_channel_identity.value(), 32);
        assert_eq!(config.rlc_bearer_to_release_list, [LogicalChannelIdentity::new(4).unwrap()]);
    }

    #[test]
    fn a_cell_that_cannot_be_is_refused() {
        let cell = NrCellId::new(7).unwrap();
        let (plmn, tac) = (Plmn::new("999", "70").unwrap(), Tac::new(1).unwrap());
        let slices = [SNssai::new(1, None).unwrap()];
        let new = |id, name: &str, slices: &[SNssai]| Cell::new(id, name, cell, plmn, tac, slices).map(drop);
        assert_eq!(new(7, "du-1", &slices), Ok(()));
        assert_eq!(new(1 << 36, "du-1", &slices), Err(Invalid::Id));
        assert_eq!(new(7, "", &slices), Err(Invalid::Name));
        assert_eq!(new(7, "dü", &slices), Err(Invalid::Name));
        assert_eq!(new(7, "du_1", &slices), Err(Invalid::Name));
        assert_eq!(new(7, "du-1", &[]), Err(Invalid::Slices));
        assert!(signalling_rlc().is_some() && data_rlc().is_some());
    }
}
