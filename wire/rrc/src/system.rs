//! What a cell broadcasts: MIB and SIB1 (TS 38.331 §6.2.2), with what a UE needs to find its network.
//!
//! The DU builds both. It broadcasts them as messages of BCCH, and gives them to the CU in F1 Setup as they are (TS 38.473 §9.3.1.18). Of
//! the radio they say next to nothing, as there is none: `servingCellConfigCommon` is absent.

use types::{NrCellId, Plmn, Tac};

use crate::codec::{Flag, List, Optional, Rest, Spare, Value, carried, enumerated, integer, sequence};
use crate::value::PlmnList;

sequence! {
    /// MIB.
    pub struct Mib extensible false {
        /// systemFrameNumber: its high six bits.
        pub system_frame_number: Bits6 as Value,
        /// subCarrierSpacingCommon.
        pub sub_carrier_spacing_common: SubCarrierSpacingCommon as Value,
        /// ssb-SubcarrierOffset.
        pub ssb_subcarrier_offset: Bits4 as Value,
        /// dmrs-TypeA-Position.
        pub dmrs_type_a_position: DmrsTypeAPosition as Value,
        /// pdcch-ConfigSIB1: controlResourceSetZero and searchSpaceZero, four bits each.
        pub pdcch_config_sib1: u8 as Value,
        /// cellBarred.
        pub cell_barred: CellBarred as Value,
        /// intraFreqReselection.
        pub intra_freq_reselection: IntraFreqReselection as Value,
        "spare" as Spare<1>,
    }
}

carried!(Mib);

integer! {
    /// BIT STRING (SIZE (6)), as a number.
    pub struct Bits6(u8) in 0..=63
}

integer! {
    /// INTEGER (0..15).
    pub struct Bits4(u8) in 0..=15
}

enumerated! {
    /// subCarrierSpacingCommon.
    pub enum SubCarrierSpacingCommon extensible false of 2 {
        /// scs15or60.
        Scs15Or60 = 0,
        /// scs30or120.
        Scs30Or120 = 1,
    }
}

enumerated! {
    /// dmrs-TypeA-Position.
    pub enum DmrsTypeAPosition extensible false of 2 {
        /// pos2.
        Pos2 = 0,
        /// pos3.
        Pos3 = 1,
    }
}

enumerated! {
    /// cellBarred.
    pub enum CellBarred extensible false of 2 {
        /// barred.
        Barred = 0,
        /// notBarred.
        NotBarred = 1,
    }
}

enumerated! {
    /// intraFreqReselection.
    pub enum IntraFreqReselection extensible false of 2 {
        /// allowed.
        Allowed = 0,
        /// notAllowed.
        NotAllowed = 1,
    }
}

sequence! {
    /// SIB1.
    pub struct Sib1 extensible false {
        /// cellSelectionInfo.
        pub cell_selection_info: Option<CellSelectionInfo> as Optional,
        /// cellAccessRelatedInfo.
        pub cell_access_related_info: CellAccessRelatedInfo as Value,
        // Timers, scheduling and radio parameters: a UE of the simulated link has no use for them.
        "connEstFailureControl" as Rest,
        "si-SchedulingInfo" as Rest,
        "servingCellConfigCommon" as Rest,
        "ims-EmergencySupport" as Rest,
        "eCallOverIMS-Support" as Rest,
        "ue-TimersAndConstants" as Rest,
        "uac-BarringInfo" as Rest,
        "useFullResumeID" as Rest,
        "lateNonCriticalExtension" as Rest,
        "nonCriticalExtension" as Rest,
    }
}

carried!(Sib1);

sequence! {
    /// cellSelectionInfo of a SIB1.
    pub struct CellSelectionInfo extensible false {
        /// q-RxLevMin, in 2 dBm.
        pub q_rx_lev_min: QRxLevMin as Value,
        /// q-RxLevMinOffset.
        pub q_rx_lev_min_offset: Option<Offset> as Optional,
        /// q-RxLevMinSUL, in 2 dBm.
        pub q_rx_lev_min_sul: Option<QRxLevMin> as Optional,
        /// q-QualMin, in dB.
        pub q_qual_min: Option<QQualMin> as Optional,
        /// q-QualMinOffset.
        pub q_qual_min_offset: Option<Offset> as Optional,
    }
}

integer! {
    /// Q-RxLevMin.
    pub struct QRxLevMin(i8) in -70..=-22
}

integer! {
    /// Q-QualMin.
    pub struct QQualMin(i8) in -43..=-12
}

integer! {
    /// An offset to one of the minima.
    pub struct Offset(u8) in 1..=8
}

sequence! {
    /// CellAccessRelatedInfo.
    pub struct CellAccessRelatedInfo extensible true {
        /// plmn-IdentityInfoList.
        pub plmn_identity_info_list: Vec<PlmnIdentityInfo> as List<1, 12>,
        /// cellReservedForOtherUse.
        pub cell_reserved_for_other_use: bool as Flag,
    }
}

sequence! {
    /// PLMN-IdentityInfo: networks that share a tracking area and a cell identity.
    pub struct PlmnIdentityInfo extensible true {
        /// plmn-IdentityList.
        pub plmn_identity_list: Vec<Plmn> as PlmnList,
        /// trackingAreaCode.
        pub tracking_area_code: Option<Tac> as Optional,
        /// ranac: the RAN area code.
        pub ranac: Option<u8> as Optional,
        /// cellIdentity.
        pub cell_identity: NrCellId as Value,
        /// cellReservedForOperatorUse.
        pub cell_reserved_for_operator_use: CellReservedForOperatorUse as Value,
    }
}

enumerated! {
    /// cellReservedForOperatorUse.
    pub enum CellReservedForOperatorUse extensible false of 2 {
        /// reserved.
        Reserved = 0,
        /// notReserved.
        NotReserved = 1,
    }
}
