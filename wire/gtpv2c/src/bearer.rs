//! Bearer contexts: one IE type whose content depends on the message that it is in (tables of §7.2), so one struct for each.
//!
//! The instance of an F-TEID tells whose it is. What SGSN, RNC, ePDG and TWAN have to do with is skipped.

use crate::codec::grouped;
use crate::value::*;

grouped! {
    /// Bearer to be created in Create Session Request (table 7.2.1-2).
    BearerToBeCreated {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Its traffic; see [`tft`].
        BEARER_TFT 0 => tft: opt Octets,
        /// The eNodeB's end, when known (relocation).
        F_TEID 0 => s1u_enb_f_teid: cond FTeid,
        /// The S-GW's end towards the P-GW.
        F_TEID 2 => s5s8u_sgw_f_teid: cond FTeid,
        /// The P-GW's end towards the S-GW, when known (relocation).
        F_TEID 3 => s5s8u_pgw_f_teid: cond FTeid,
        /// The MME's end, for data over NAS.
        F_TEID 7 => s11u_mme_f_teid: opt FTeid,
        /// QoS.
        BEARER_QOS 0 => qos: one BearerQos,
    }
    /// Bearer to be removed in Create Session Request (table 7.2.1-3) and Modify Bearer Request (table 7.2.7-3).
    BearerToBeRemoved {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
    }
    /// Bearer created in Create Session Response (table 7.2.2-2).
    BearerCreated {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
        /// The S-GW's end towards the eNodeB.
        F_TEID 0 => s1u_sgw_f_teid: cond FTeid,
        /// The P-GW's end towards the S-GW.
        F_TEID 2 => s5s8u_pgw_f_teid: cond FTeid,
        /// The S-GW's end towards the MME, for data over NAS.
        F_TEID 6 => s11u_sgw_f_teid: opt FTeid,
        /// QoS, when the P-GW changed it.
        BEARER_QOS 0 => qos: cond BearerQos,
        /// Charging ID that the P-GW gave.
        CHARGING_ID 0 => charging_id: cond ChargingId,
        /// Flags.
        BEARER_FLAGS 0 => flags: opt BearerFlags,
    }
    /// A bearer and what became of it: marked for removal (tables 7.2.2-3, 7.2.8-3), failed (table 7.2.9.2-2), or the one of
    /// Delete Bearer Failure Indication (table 7.2.17.2-2).
    BearerResult {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
    }
    /// Bearer in Create Bearer Request (table 7.2.3-2).
    BearerInCreateRequest {
        /// 0: the MME chooses.
        EBI 0 => ebi: one Ebi,
        /// Its traffic; see [`tft`].
        BEARER_TFT 0 => tft: one Octets,
        /// The S-GW's end towards the eNodeB.
        F_TEID 0 => s1u_sgw_f_teid: cond FTeid,
        /// The P-GW's end towards the S-GW.
        F_TEID 1 => s5s8u_pgw_f_teid: cond FTeid,
        /// QoS.
        BEARER_QOS 0 => qos: one BearerQos,
        /// Charging ID that the P-GW gave.
        CHARGING_ID 0 => charging_id: cond ChargingId,
        /// Flags.
        BEARER_FLAGS 0 => flags: opt BearerFlags,
        /// For the UE.
        PCO 0 => pco: opt Octets,
        /// For the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Bearer in Create Bearer Response (table 7.2.4-2).
    BearerInCreateResponse {
        /// The MME's choice.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
        /// The eNodeB's end.
        F_TEID 0 => s1u_enb_f_teid: cond FTeid,
        /// The S-GW's end towards the eNodeB, from the request: tells which of its bearers this is.
        F_TEID 1 => s1u_sgw_f_teid: cond FTeid,
        /// The S-GW's end towards the P-GW.
        F_TEID 2 => s5s8u_sgw_f_teid: cond FTeid,
        /// The P-GW's end, from the request: tells which of its bearers this is.
        F_TEID 3 => s5s8u_pgw_f_teid: cond FTeid,
        /// From the UE.
        PCO 0 => pco: opt Octets,
        /// Why the radio network or the UE refused.
        RAN_NAS_CAUSE 0 => ran_nas_cause: opt Octets,
        /// From the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Bearer to be modified in Modify Bearer Request (table 7.2.7-2).
    BearerToBeModified {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// The eNodeB's end.
        F_TEID 0 => s1u_enb_f_teid: cond FTeid,
        /// The S-GW's end towards the P-GW.
        F_TEID 1 => s5s8u_sgw_f_teid: cond FTeid,
        /// The MME's end, for data over NAS.
        F_TEID 4 => s11u_mme_f_teid: opt FTeid,
    }
    /// Bearer modified in Modify Bearer Response (table 7.2.8-2).
    BearerModified {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
        /// The S-GW's end towards the eNodeB.
        F_TEID 0 => s1u_sgw_f_teid: cond FTeid,
        /// The S-GW's end towards the MME, for data over NAS.
        F_TEID 3 => s11u_sgw_f_teid: opt FTeid,
        /// Charging ID that the P-GW gave.
        CHARGING_ID 0 => charging_id: cond ChargingId,
        /// Flags.
        BEARER_FLAGS 0 => flags: opt BearerFlags,
    }
    /// Bearer in Modify Bearer Command (table 7.2.14.1-2).
    BearerInModifyCommand {
        /// Default bearer.
        EBI 0 => ebi: one Ebi,
        /// QoS from the subscription.
        BEARER_QOS 0 => qos: cond BearerQos,
    }
    /// Bearer in Update Bearer Request (table 7.2.15-2).
    BearerInUpdateRequest {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Change of its traffic; see [`tft`].
        BEARER_TFT 0 => tft: cond Octets,
        /// New QoS.
        BEARER_QOS 0 => qos: cond BearerQos,
        /// Flags.
        BEARER_FLAGS 0 => flags: opt BearerFlags,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// For the UE.
        APCO 0 => apco: opt Octets,
        /// For the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Bearer in Update Bearer Response (table 7.2.16-2) and Delete Bearer Response (table 7.2.10.2-2).
    BearerResultWithOptions {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
        /// From the UE.
        PCO 0 => pco: opt Octets,
        /// Why the radio network or the UE refused.
        RAN_NAS_CAUSE 0 => ran_nas_cause: opt Octets,
        /// From the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Bearer in Delete Bearer Command (table 7.2.17.1-2).
    BearerInDeleteCommand {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Flags.
        BEARER_FLAGS 0 => flags: opt BearerFlags,
        /// Why the radio network released it.
        RAN_NAS_CAUSE 0 => ran_nas_cause: opt Octets,
    }
    /// Bearer in Create Indirect Data Forwarding Tunnel Request (table 7.2.18-2).
    BearerToBeForwarded {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// The target eNodeB's end for downlink data.
        F_TEID 0 => enb_downlink_f_teid: cond FTeid,
        /// The target S-GW's end for downlink data.
        F_TEID 1 => sgw_downlink_f_teid: cond FTeid,
        /// The target eNodeB's end for uplink data.
        F_TEID 4 => enb_uplink_f_teid: opt FTeid,
        /// The target S-GW's end for uplink data.
        F_TEID 5 => sgw_uplink_f_teid: opt FTeid,
    }
    /// Bearer in Create Indirect Data Forwarding Tunnel Response (table 7.2.19-2).
    BearerForwarded {
        /// Bearer.
        EBI 0 => ebi: one Ebi,
        /// Result for this bearer.
        CAUSE 0 => cause: one Cause,
        /// The S-GW's S1-U end for downlink data.
        F_TEID 0 => s1u_sgw_downlink_f_teid: cond FTeid,
        /// The S-GW's end for downlink data from another S-GW.
        F_TEID 3 => sgw_downlink_f_teid: cond FTeid,
        /// The S-GW's S1-U end for uplink data.
        F_TEID 4 => s1u_sgw_uplink_f_teid: opt FTeid,
        /// The S-GW's end for uplink data from another S-GW.
        F_TEID 5 => sgw_uplink_f_teid: opt FTeid,
    }
}
