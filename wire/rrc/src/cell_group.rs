//! CellGroupConfig: what the DU tells a UE about RLC and MAC (TS 38.331 §6.3.2).
//!
//! To the CU it is octets, which it puts into RRCSetup and RRCReconfiguration. The DU builds it and the UE reads
//! it, both with [`CellGroupConfig`].

use crate::codec::{
    Flag, NotSupported, Optional, OptionalList, Rest, Value, carried, choice, enumerated, integer, quantity,
    sequence,
};
use crate::value::{DrbIdentity, SrbIdentity};

integer! {
    /// CellGroupId: 0 is the master cell group.
    pub struct CellGroupId(u8) in 0..=3
}

integer! {
    /// LogicalChannelIdentity.
    pub struct LogicalChannelIdentity(u8) in 1..=32
}

sequence! {
    /// CellGroupConfig.
    pub struct CellGroupConfig extensible true {
        /// cellGroupId.
        pub cell_group_id: CellGroupId as Value,
        /// rlc-BearerToAddModList.
        pub rlc_bearer_to_add_mod_list: Vec<RlcBearerConfig> as OptionalList<32>,
        /// rlc-BearerToReleaseList.
        pub rlc_bearer_to_release_list: Vec<LogicalChannelIdentity> as OptionalList<32>,
        // MAC and PHY are simulated: their configuration has nothing to configure.
        "mac-CellGroupConfig" as Rest,
        "physicalCellGroupConfig" as Rest,
        "spCellConfig" as Rest,
        "sCellToAddModList" as Rest,
        "sCellToReleaseList" as Rest,
    }
}

carried!(CellGroupConfig);

sequence! {
    /// RLC-BearerConfig: the RLC entity of one radio bearer, and its logical channel.
    pub struct RlcBearerConfig extensible true {
        /// logicalChannelIdentity.
        pub logical_channel_identity: LogicalChannelIdentity as Value,
        /// servedRadioBearer: given when the bearer is added.
        pub served_radio_bearer: Option<ServedRadioBearer> as Optional,
        /// reestablishRLC.
        pub reestablish_rlc: bool as Flag,
        /// rlc-Config; an SRB without has the default configuration of §9.2.1.
        pub rlc_config: Option<RlcConfig> as Optional,
        /// mac-LogicalChannelConfig.
        pub mac_logical_channel_config: Option<LogicalChannelConfig> as Optional,
    }
}

choice! {
    /// servedRadioBearer.
    pub enum ServedRadioBearer extensible false of ["srb-Identity", "drb-Identity"]; {
        /// srb-Identity.
        0 => Srb(SrbIdentity),
        /// drb-Identity.
        1 => Drb(DrbIdentity),
    }
}

choice! {
    /// RLC-Config.
    pub enum RlcConfig extensible true
    of ["am", "um-Bi-Directional", "um-Uni-Directional-UL", "um-Uni-Directional-DL"]; {
        /// am.
        0 => Am(AmRlc),
        /// um-Bi-Directional.
        1 => UmBiDirectional(UmRlc),
        /// um-Uni-Directional-UL.
        2 => UmUniDirectionalUl(UmUlOnly),
        /// um-Uni-Directional-DL.
        3 => UmUniDirectionalDl(UmDlOnly),
    }
}

sequence! {
    /// am of an RLC-Config.
    pub struct AmRlc extensible false {
        /// ul-AM-RLC.
        pub ul_am_rlc: UlAmRlc as Value,
        /// dl-AM-RLC.
        pub dl_am_rlc: DlAmRlc as Value,
    }
}

sequence! {
    /// UL-AM-RLC.
    pub struct UlAmRlc extensible false {
        /// sn-FieldLength.
        pub sn_field_length: Option<SnFieldLengthAm> as Optional,
        /// t-PollRetransmit.
        pub t_poll_retransmit: TPollRetransmit as Value,
        /// pollPDU.
        pub poll_pdu: PollPdu as Value,
        /// pollByte.
        pub poll_byte: PollByte as Value,
        /// maxRetxThreshold.
        pub max_retx_threshold: MaxRetxThreshold as Value,
    }
}

sequence! {
    /// DL-AM-RLC.
    pub struct DlAmRlc extensible false {
        /// sn-FieldLength.
        pub sn_field_length: Option<SnFieldLengthAm> as Optional,
        /// t-Reassembly.
        pub t_reassembly: TReassembly as Value,
        /// t-StatusProhibit.
        pub t_status_prohibit: TStatusProhibit as Value,
    }
}

sequence! {
    /// um-Bi-Directional of an RLC-Config.
    pub struct UmRlc extensible false {
        /// ul-UM-RLC.
        pub ul_um_rlc: UlUmRlc as Value,
        /// dl-UM-RLC.
        pub dl_um_rlc: DlUmRlc as Value,
    }
}

sequence! {
    /// um-Uni-Directional-UL of an RLC-Config.
    pub struct UmUlOnly extensible false {
        /// ul-UM-RLC.
        pub ul_um_rlc: UlUmRlc as Value,
    }
}

sequence! {
    /// um-Uni-Directional-DL of an RLC-Config.
    pub struct UmDlOnly extensible false {
        /// dl-UM-RLC.
        pub dl_um_rlc: DlUmRlc as Value,
    }
}

sequence! {
    /// UL-UM-RLC.
    pub struct UlUmRlc extensible false {
        /// sn-FieldLength.
        pub sn_field_length: Option<SnFieldLengthUm> as Optional,
    }
}

sequence! {
    /// DL-UM-RLC.
    pub struct DlUmRlc extensible false {
        /// sn-FieldLength.
        pub sn_field_length: Option<SnFieldLengthUm> as Optional,
        /// t-Reassembly.
        pub t_reassembly: TReassembly as Value,
    }
}

enumerated! {
    /// SN-FieldLengthAM.
    pub enum SnFieldLengthAm extensible false of 2 {
        /// size12.
        Size12 = 0,
        /// size18.
        Size18 = 1,
    }
}

enumerated! {
    /// SN-FieldLengthUM.
    pub enum SnFieldLengthUm extensible false of 2 {
        /// size6.
        Size6 = 0,
        /// size12.
        Size12 = 1,
    }
}

quantity! {
    /// T-PollRetransmit, in milliseconds. The four shortest came later, so they stand behind the others.
    pub struct TPollRetransmit of 64: [
        5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 100, 105, 110, 115, 120, 125, 130,
        135, 140, 145, 150, 155, 160, 165, 170, 175, 180, 185, 190, 195, 200, 205, 210, 215, 220, 225, 230, 235, 240,
        245, 250, 300, 350, 400, 450, 500, 800, 1000, 2000, 4000, 1, 2, 3, 4
    ]
}

quantity! {
    /// PollPDU, in PDUs.
    pub struct PollPdu of 32: [
        4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 40960,
        49152, 57344, 65536
    ], then INFINITY
}

quantity! {
    /// PollByte, in kilobytes.
    pub struct PollByte of 64: [
        1, 2, 5, 8, 10, 15, 25, 50, 75, 100, 125, 250, 375, 500, 750, 1000, 1250, 1500, 2000, 3000, 4000, 4500, 5000,
        5500, 6000, 6500, 7000, 7500, 8000, 9000, 10_000, 11_000, 12_000, 13_000, 14_000, 15_000, 16_000, 17_000, 18_000,
        20_000, 25_000, 30_000, 40_000
    ], then INFINITY
}

quantity! {
    /// maxRetxThreshold.
    pub struct MaxRetxThreshold of 8: [1, 2, 3, 4, 6, 8, 16, 32]
}

quantity! {
    /// T-Reassembly, in milliseconds.
    pub struct TReassembly of 32: [
        0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 100, 110, 120, 130, 140, 150, 160,
        170, 180, 190, 200
    ]
}

quantity! {
    /// T-StatusProhibit, in milliseconds.
    pub struct TStatusProhibit of 64: [
        0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 100, 105, 110, 115, 120, 125, 130,
        135, 140, 145, 150, 155, 160, 165, 170, 175, 180, 185, 190, 195, 200, 205, 210, 215, 220, 225, 230, 235, 240,
        245, 250, 300, 350, 400, 450, 500, 800, 1000, 1200, 1600, 2000, 2400
    ]
}

sequence! {
    /// LogicalChannelConfig.
    pub struct LogicalChannelConfig extensible true {
        /// ul-SpecificParameters.
        pub ul_specific_parameters: Option<UlSpecificParameters> as Optional,
    }
}

sequence! {
    /// ul-SpecificParameters of a LogicalChannelConfig: how the UE shares its grants among its channels.
    pub struct UlSpecificParameters extensible true {
        /// priority: 1 is the first.
        pub priority: Priority as Value,
        /// prioritisedBitRate.
        pub prioritised_bit_rate: PrioritisedBitRate as Value,
        /// bucketSizeDuration.
        pub bucket_size_duration: BucketSizeDuration as Value,
        // Cells, subcarriers and grants that the simulated radio link does not have.
        "allowedServingCells" as NotSupported,
        "allowedSCS-List" as NotSupported,
        "maxPUSCH-Duration" as NotSupported,
        "configuredGrantType1Allowed" as NotSupported,
        /// logicalChannelGroup.
        pub logical_channel_group: Option<LogicalChannelGroup> as Optional,
        /// schedulingRequestID.
        pub scheduling_request_id: Option<SchedulingRequestId> as Optional,
        /// logicalChannelSR-Mask.
        pub logical_channel_sr_mask: bool as Value,
        /// logicalChannelSR-DelayTimerApplied.
        pub logical_channel_sr_delay_timer_applied: bool as Value,
    }
}

integer! {
    /// priority of a logical channel.
    pub struct Priority(u8) in 1..=16
}

integer! {
    /// logicalChannelGroup.
    pub struct LogicalChannelGroup(u8) in 0..=7
}

integer! {
    /// SchedulingRequestId.
    pub struct SchedulingRequestId(u8) in 0..=7
}

quantity! {
    /// prioritisedBitRate, in kilobytes per second.
    pub struct PrioritisedBitRate of 16: [
        0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536
    ], then INFINITY
}

quantity! {
    /// bucketSizeDuration, in milliseconds.
    pub struct BucketSizeDuration of 16: [5, 10, 20, 50, 100, 150, 300, 500, 1000]
}
