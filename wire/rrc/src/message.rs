//! The messages of signalling radio bearers and paging (TS 38.331 §6.2.2).

use bytes::Bytes;
use types::{SNssai, STmsi};

use crate::DecodeError;
use crate::bearer::{RadioBearerConfig, SecurityAlgorithmConfig};
use crate::codec::{
    First, Flag, NotSupported, Optional, OptionalList, Rest, SkippedOctets, Spare, Value, choice, enumerated,
    integer, sequence,
};
use crate::value::{
    PhysCellId, RegisteredAmf, RejectWaitTime, RrcTransactionIdentifier, s_tmsi_bits, s_tmsi_of_bits,
};

/// criticalExtensions ::= CHOICE { the message, criticalExtensionsFuture }.
type Critical = First<2, false>;

// --- SRB0, uplink ---------------------------------------------------------------------------------------

sequence! {
    /// RRCSetupRequest: a UE asks for a connection.
    pub struct RrcSetupRequest extensible false {
        /// ue-Identity.
        pub ue_identity: InitialUeIdentity as Value,
        /// establishmentCause.
        pub establishment_cause: EstablishmentCause as Value,
        "spare" as Spare<1>,
    }
}

choice! {
    /// InitialUE-Identity.
    pub enum InitialUeIdentity extensible false of ["ng-5G-S-TMSI-Part1", "randomValue"]; {
        /// ng-5G-S-TMSI-Part1: the low 39 bits. The others come in RRCSetupComplete.
        0 => Ng5gSTmsiPart1(Bits39),
        /// randomValue.
        1 => RandomValue(Bits39),
    }
}

integer! {
    /// BIT STRING (SIZE (39)), as a number.
    pub struct Bits39(i64) in 0..=0x7f_ffff_ffff
}

integer! {
    /// ng-5G-S-TMSI-Part2: BIT STRING (SIZE (9)), as a number.
    pub struct Bits9(u16) in 0..=0x1ff
}

/// The two parts of an NG-5G-S-TMSI: for RRCSetupRequest, and for RRCSetupComplete.
pub fn split_s_tmsi(id: STmsi) -> (Bits39, Bits9) {
    let bits = s_tmsi_bits(id);
    (Bits39((bits & 0x7f_ffff_ffff) as i64), Bits9((bits >> 39) as u16))
}

/// The NG-5G-S-TMSI of the two parts.
pub fn join_s_tmsi(part1: Bits39, part2: Bits9) -> Result<STmsi, DecodeError> {
    s_tmsi_of_bits(u64::from(part2.value()) << 39 | part1.value() as u64)
}

enumerated! {
    /// EstablishmentCause. A gNB serves causes that it does not know as well.
    pub enum EstablishmentCause extensible false of 16 {
        /// emergency.
        Emergency = 0,
        /// highPriorityAccess.
        HighPriorityAccess = 1,
        /// mt-Access.
        MtAccess = 2,
        /// mo-Signalling.
        MoSignalling = 3,
        /// mo-Data.
        MoData = 4,
        /// mo-VoiceCall.
        MoVoiceCall = 5,
        /// mo-VideoCall.
        MoVideoCall = 6,
        /// mo-SMS.
        MoSms = 7,
        /// mps-PriorityAccess.
        MpsPriorityAccess = 8,
        /// mcs-PriorityAccess.
        McsPriorityAccess = 9,
    } else
        /// A value without name.
        Spare
}

sequence! {
    /// RRCReestablishmentRequest: a UE that lost its connection asks for it.
    pub struct RrcReestablishmentRequest extensible false {
        /// ue-Identity.
        pub ue_identity: ReestabUeIdentity as Value,
        /// reestablishmentCause.
        pub reestablishment_cause: ReestablishmentCause as Value,
        "spare" as Spare<1>,
    }
}

sequence! {
    /// ReestabUE-Identity.
    pub struct ReestabUeIdentity extensible false {
        /// c-RNTI in the cell that it lost.
        pub c_rnti: u16 as Value,
        /// physCellId of that cell.
        pub phys_cell_id: PhysCellId as Value,
        /// shortMAC-I: proof that the UE has the keys.
        pub short_mac_i: u16 as Value,
    }
}

enumerated! {
    /// ReestablishmentCause. A gNB serves causes that it does not know as well.
    pub enum ReestablishmentCause extensible false of 4 {
        /// reconfigurationFailure.
        ReconfigurationFailure = 0,
        /// handoverFailure.
        HandoverFailure = 1,
        /// otherFailure.
        OtherFailure = 2,
    } else
        /// A value without name.
        Spare
}

// --- SRB0, downlink -------------------------------------------------------------------------------------

sequence! {
    /// RRCReject: no connection now.
    pub struct RrcReject extensible false
    [ "criticalExtensions" as Critical ]
    {
        /// waitTime: after which the UE may ask again.
        pub wait_time: Option<RejectWaitTime> as Optional,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

sequence! {
    /// RRCSetup: a connection with SRB1.
    pub struct RrcSetup extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        /// radioBearerConfig.
        pub radio_bearer_config: RadioBearerConfig as Value,
        /// masterCellGroup: a [`CellGroupConfig`](crate::CellGroupConfig).
        pub master_cell_group: Bytes as Value,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

// --- SRB1 and SRB2, uplink ------------------------------------------------------------------------------

sequence! {
    /// RRCSetupComplete: the UE has SRB1, and its first NAS message.
    pub struct RrcSetupComplete extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        /// selectedPLMN-Identity: its number in the list of SIB1.
        pub selected_plmn_identity: SelectedPlmn as Value,
        /// registeredAMF.
        pub registered_amf: Option<RegisteredAmf> as Optional,
        /// guami-Type.
        pub guami_type: Option<GuamiType> as Optional,
        /// s-NSSAI-List.
        pub s_nssai_list: Vec<SNssai> as OptionalList<8>,
        /// dedicatedNAS-Message.
        pub dedicated_nas_message: Bytes as Value,
        /// ng-5G-S-TMSI-Value.
        pub ng_5g_s_tmsi_value: Option<Ng5gSTmsiValue> as Optional,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

integer! {
    /// selectedPLMN-Identity: 1 is the first PLMN of SIB1.
    pub struct SelectedPlmn(u8) in 1..=12
}

enumerated! {
    /// guami-Type.
    pub enum GuamiType extensible false of 2 {
        /// native.
        Native = 0,
        /// mapped.
        Mapped = 1,
    }
}

choice! {
    /// ng-5G-S-TMSI-Value.
    pub enum Ng5gSTmsiValue extensible false of ["ng-5G-S-TMSI", "ng-5G-S-TMSI-Part2"]; {
        /// ng-5G-S-TMSI.
        0 => Ng5gSTmsi(STmsi),
        /// ng-5G-S-TMSI-Part2: the high 9 bits. The others came in RRCSetupRequest.
        1 => Ng5gSTmsiPart2(Bits9),
    }
}

/// Declares messages of which only the transaction matters.
macro_rules! acknowledgements {
    ($($(#[$meta:meta])* $type:ident;)*) => {
        $(sequence! {
            $(#[$meta])*
            pub struct $type extensible false
            [
                /// rrc-TransactionIdentifier.
                pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
                "criticalExtensions" as Critical,
            ]
            {
                "lateNonCriticalExtension" as SkippedOctets,
                "nonCriticalExtension" as Rest,
            }
        })*
    };
}

acknowledgements! {
    /// SecurityModeComplete.
    SecurityModeComplete;
    /// SecurityModeFailure.
    SecurityModeFailure;
    /// RRCReconfigurationComplete.
    RrcReconfigurationComplete;
}

sequence! {
    /// ULInformationTransfer: NAS from the UE.
    pub struct UlInformationTransfer extensible false
    [ "criticalExtensions" as Critical ]
    {
        /// dedicatedNAS-Message.
        pub dedicated_nas_message: Option<Bytes> as Optional,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

// --- SRB1 and SRB2, downlink ----------------------------------------------------------------------------

sequence! {
    /// SecurityModeCommand: the algorithms of signalling and data.
    pub struct SecurityModeCommand extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        /// securityConfigSMC.
        pub security_config_smc: SecurityConfigSmc as Value,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

sequence! {
    /// SecurityConfigSMC.
    pub struct SecurityConfigSmc extensible true {
        /// securityAlgorithmConfig.
        pub security_algorithm_config: SecurityAlgorithmConfig as Value,
    }
}

sequence! {
    /// DLInformationTransfer: NAS for the UE.
    pub struct DlInformationTransfer extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        /// dedicatedNAS-Message.
        pub dedicated_nas_message: Option<Bytes> as Optional,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

sequence! {
    /// RRCReconfiguration: bearers added, changed and released.
    pub struct RrcReconfiguration extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        /// radioBearerConfig.
        pub radio_bearer_config: Option<RadioBearerConfig> as Optional,
        /// secondaryCellGroup.
        pub secondary_cell_group: Option<Bytes> as Optional,
        "measConfig" as NotSupported,
        "lateNonCriticalExtension" as SkippedOctets,
        /// nonCriticalExtension.
        pub v1530: Option<RrcReconfigurationV1530> as Optional,
    }
}

sequence! {
    /// RRCReconfiguration-v1530-IEs.
    #[derive(Default)]
    pub struct RrcReconfigurationV1530 extensible false {
        /// masterCellGroup: a [`CellGroupConfig`](crate::CellGroupConfig).
        pub master_cell_group: Option<Bytes> as Optional,
        /// fullConfig.
        pub full_config: bool as Flag,
        /// dedicatedNAS-MessageList.
        pub dedicated_nas_message_list: Vec<Bytes> as OptionalList<29>,
        "masterKeyUpdate" as NotSupported,
        "dedicatedSIB1-Delivery" as SkippedOctets,
        "dedicatedSystemInformationDelivery" as SkippedOctets,
        "otherConfig" as Rest,
        "nonCriticalExtension" as Rest,
    }
}

sequence! {
    /// RRCRelease: the connection ends.
    pub struct RrcRelease extensible false
    [
        /// rrc-TransactionIdentifier.
        pub rrc_transaction_identifier: RrcTransactionIdentifier as Value,
        "criticalExtensions" as Critical,
    ]
    {
        "redirectedCarrierInfo" as NotSupported,
        "cellReselectionPriorities" as NotSupported,
        "suspendConfig" as NotSupported,
        /// deprioritisationReq.
        pub deprioritisation_req: Option<DeprioritisationReq> as Optional,
        "lateNonCriticalExtension" as SkippedOctets,
        /// nonCriticalExtension.
        pub v1540: Option<RrcReleaseV1540> as Optional,
    }
}

sequence! {
    /// deprioritisationReq of an RRCRelease.
    pub struct DeprioritisationReq extensible false {
        /// deprioritisationType.
        pub deprioritisation_type: DeprioritisationType as Value,
        /// deprioritisationTimer.
        pub deprioritisation_timer: DeprioritisationTimer as Value,
    }
}

enumerated! {
    /// deprioritisationType.
    pub enum DeprioritisationType extensible false of 2 {
        /// frequency.
        Frequency = 0,
        /// nr.
        Nr = 1,
    }
}

enumerated! {
    /// deprioritisationTimer.
    pub enum DeprioritisationTimer extensible false of 4 {
        /// min5.
        Min5 = 0,
        /// min10.
        Min10 = 1,
        /// min15.
        Min15 = 2,
        /// min30.
        Min30 = 3,
    }
}

sequence! {
    /// RRCRelease-v1540-IEs.
    pub struct RrcReleaseV1540 extensible false {
        /// waitTime.
        pub wait_time: Option<RejectWaitTime> as Optional,
        "nonCriticalExtension" as Rest,
    }
}

// --- PCCH -----------------------------------------------------------------------------------------------

sequence! {
    /// Paging.
    pub struct Paging extensible false {
        /// pagingRecordList.
        pub paging_record_list: Vec<PagingRecord> as OptionalList<32>,
        "lateNonCriticalExtension" as SkippedOctets,
        "nonCriticalExtension" as Rest,
    }
}

sequence! {
    /// PagingRecord.
    pub struct PagingRecord extensible true {
        /// ue-Identity.
        pub ue_identity: PagingUeIdentity as Value,
        /// accessType non3GPP: the session that has data is not of 3GPP access.
        pub non_3gpp_access: bool as Flag,
    }
}

choice! {
    /// PagingUE-Identity.
    pub enum PagingUeIdentity extensible true of ["ng-5G-S-TMSI", "fullI-RNTI"]; {
        /// ng-5G-S-TMSI: of a UE in idle mode.
        0 => Ng5gSTmsi(STmsi),
        /// fullI-RNTI: of an inactive UE.
        1 => FullIRnti(FullIRnti),
    }
}

integer! {
    /// I-RNTI-Value: BIT STRING (SIZE (40)), as a number.
    pub struct FullIRnti(i64) in 0..=0xff_ffff_ffff
}
