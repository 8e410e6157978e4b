//! RadioBearerConfig: signalling and data bearers above RLC (TS 38.331 §6.3.2).

use per::{Reader, Writer};
use types::Qfi;

use crate::codec::{
    First, Flag, Optional, OptionalList, SkippedFlag, Uper, Value, choice, enumerated, quantity, sequence,
};
use crate::value::{DrbIdentity, PduSessionId, SrbIdentity};
use crate::{DecodeError, EncodeError};

sequence! {
    /// RadioBearerConfig: what to add, change and release.
    #[derive(Default)]
    pub struct RadioBearerConfig extensible true {
        /// srb-ToAddModList.
        pub srb_to_add_mod_list: Vec<SrbToAddMod> as OptionalList<2>,
        // SRB3 belongs to dual connectivity.
        "srb3-ToRelease" as SkippedFlag,
        /// drb-ToAddModList.
        pub drb_to_add_mod_list: Vec<DrbToAddMod> as OptionalList<29>,
        /// drb-ToReleaseList.
        pub drb_to_release_list: Vec<DrbIdentity> as OptionalList<29>,
        /// securityConfig.
        pub security_config: Option<SecurityConfig> as Optional,
    }
}

sequence! {
    /// SRB-ToAddMod.
    pub struct SrbToAddMod extensible true {
        /// srb-Identity.
        pub srb_identity: SrbIdentity as Value,
        /// reestablishPDCP.
        pub reestablish_pdcp: bool as Flag,
        /// discardOnPDCP.
        pub discard_on_pdcp: bool as Flag,
        /// pdcp-Config; without it the bearer has the default configuration of §9.2.1.
        pub pdcp_config: Option<PdcpConfig> as Optional,
    }
}

sequence! {
    /// DRB-ToAddMod.
    pub struct DrbToAddMod extensible true {
        /// cnAssociation: given when the bearer is added.
        pub cn_association: Option<CnAssociation> as Optional,
        /// drb-Identity.
        pub drb_identity: DrbIdentity as Value,
        /// reestablishPDCP.
        pub reestablish_pdcp: bool as Flag,
        /// recoverPDCP.
        pub recover_pdcp: bool as Flag,
        /// pdcp-Config: given when the bearer is added.
        pub pdcp_config: Option<PdcpConfig> as Optional,
    }
}

choice! {
    /// cnAssociation of a DRB-ToAddMod: what of the core network the bearer serves.
    pub enum CnAssociation extensible false of ["eps-BearerIdentity", "sdap-Config"]; {
        /// sdap-Config: a PDU session of 5GC.
        1 => SdapConfig(SdapConfig),
    }
}

sequence! {
    /// SDAP-Config: the bearer's PDU session and QoS flows.
    pub struct SdapConfig extensible true {
        /// pdu-Session.
        pub pdu_session: PduSessionId as Value,
        /// sdap-HeaderDL.
        pub sdap_header_dl: SdapHeader as Value,
        /// sdap-HeaderUL.
        pub sdap_header_ul: SdapHeader as Value,
        /// defaultDRB: takes the session's flows that no bearer names.
        pub default_drb: bool as Value,
        /// mappedQoS-FlowsToAdd.
        pub mapped_qos_flows_to_add: Vec<Qfi> as OptionalList<64>,
        /// mappedQoS-FlowsToRelease.
        pub mapped_qos_flows_to_release: Vec<Qfi> as OptionalList<64>,
    }
}

enumerated! {
    /// Whether packets have an SDAP header.
    pub enum SdapHeader extensible false of 2 {
        /// present.
        Present = 0,
        /// absent.
        Absent = 1,
    }
}

/// PDCP-Config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PdcpConfig {
    /// drb: what only data bearers have.
    pub drb: Option<PdcpDrb>,
    /// t-Reordering; absent is infinity (§6.3.2).
    pub t_reordering: Option<TReordering>,
    /// cipheringDisabled: the bearer is not ciphered, whatever the algorithm.
    pub ciphering_disabled: bool,
}

/// By hand, as its addition matters: the first group of additions has `cipheringDisabled`.
impl Uper for PdcpConfig {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.preamble(Some(self.ciphering_disabled), &[self.drb.is_some(), false, self.t_reordering.is_some()]);
        if let Some(drb) = &self.drb {
            drb.put(w)?;
        }
        if let Some(t_reordering) = &self.t_reordering {
            t_reordering.put(w)?;
        }
        if self.ciphering_disabled {
            // Release 17 has three groups of additions.
            w.additions(&[true, false, false])?;
            w.open::<EncodeError>(|w| {
                w.preamble(None, &[true]);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let preamble = r.preamble(true, 3)?;
        let drb = if preamble.present(0) { Some(PdcpDrb::get(r)?) } else { None };
        if preamble.present(1) {
            return Err(DecodeError::NotSupported("moreThanOneRLC"));
        }
        let t_reordering = if preamble.present(2) { Some(TReordering::get(r)?) } else { None };
        let mut ciphering_disabled = false;
        r.additions::<DecodeError>(&preamble, |index, r| {
            if index == 0 {
                ciphering_disabled = r.preamble(false, 1)?.present(0);
            }
            Ok(())
        })?;
        Ok(Self { drb, t_reordering, ciphering_disabled })
    }
}

sequence! {
    /// drb of a PDCP-Config.
    #[derive(Default)]
    pub struct PdcpDrb extensible false {
        /// discardTimer: given when the bearer is added.
        pub discard_timer: Option<DiscardTimer> as Optional,
        /// pdcp-SN-SizeUL: given when the bearer is added.
        pub pdcp_sn_size_ul: Option<PdcpSnSize> as Optional,
        /// pdcp-SN-SizeDL: given when the bearer is added.
        pub pdcp_sn_size_dl: Option<PdcpSnSize> as Optional,
        // Always notUsed.
        "headerCompression" as First<3, true>,
        /// integrityProtection.
        pub integrity_protection: bool as Flag,
        /// statusReportRequired.
        pub status_report_required: bool as Flag,
        /// outOfOrderDelivery.
        pub out_of_order_delivery: bool as Flag,
    }
}

enumerated! {
    /// pdcp-SN-SizeUL and pdcp-SN-SizeDL.
    pub enum PdcpSnSize extensible false of 2 {
        /// len12bits.
        Len12Bits = 0,
        /// len18bits.
        Len18Bits = 1,
    }
}

quantity! {
    /// discardTimer, in milliseconds.
    pub struct DiscardTimer of 16: [10, 20, 30, 40, 50, 60, 75, 100, 150, 200, 250, 300, 500, 750, 1500], then INFINITY
}

quantity! {
    /// t-Reordering, in milliseconds.
    pub struct TReordering of 64: [
        0, 1, 2, 4, 5, 8, 10, 15, 20, 30, 40, 50, 60, 80, 100, 120, 140, 160, 180, 200, 220, 240, 260, 280, 300, 500,
        750, 1000, 1250, 1500, 1750, 2000, 2250, 2500, 2750, 3000
    ]
}

sequence! {
    /// SecurityConfig of a RadioBearerConfig.
    pub struct SecurityConfig extensible true {
        /// securityAlgorithmConfig.
        pub security_algorithm_config: Option<SecurityAlgorithmConfig> as Optional,
        /// keyToUse.
        pub key_to_use: Option<KeyToUse> as Optional,
    }
}

enumerated! {
    /// keyToUse: from which key the bearers' keys come.
    pub enum KeyToUse extensible false of 2 {
        /// master: K_gNB.
        Master = 0,
        /// secondary: S-K_gNB, of dual connectivity.
        Secondary = 1,
    }
}

sequence! {
    /// SecurityAlgorithmConfig.
    pub struct SecurityAlgorithmConfig extensible true {
        /// cipheringAlgorithm.
        pub ciphering_algorithm: CipheringAlgorithm as Value,
        /// integrityProtAlgorithm.
        pub integrity_prot_algorithm: Option<IntegrityProtAlgorithm> as Optional,
    }
}

enumerated! {
    /// CipheringAlgorithm.
    pub enum CipheringAlgorithm extensible true of 8 {
        /// nea0: none.
        Nea0 = 0,
        /// nea1: SNOW 3G.
        Nea1 = 1,
        /// nea2: AES.
        Nea2 = 2,
        /// nea3: ZUC.
        Nea3 = 3,
    }
}

enumerated! {
    /// IntegrityProtAlgorithm.
    pub enum IntegrityProtAlgorithm extensible true of 8 {
        /// nia0: none.
        Nia0 = 0,
        /// nia1: SNOW 3G.
        Nia1 = 1,
        /// nia2: AES.
        Nia2 = 2,
        /// nia3: ZUC.
        Nia3 = 3,
    }
}
