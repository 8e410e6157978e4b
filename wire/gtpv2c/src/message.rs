//! Messages and their header (TS 29.274 §5, §7.1, §7.2).
//!
//! ```text
//! octet 1: version (3) = 2 · P · T · MP · spare (2)   octet 2: message type   3-4: length of the rest
//! [TEID (4) when T]   sequence number (3)   message priority (4) · spare (4)
//! ```

use types::{Imsi, Plmn};

use crate::bearer::*;
use crate::codec::{DecodeError, EncodeError, Fault, Ies, MAX_MESSAGE, OffendingIe, Value, grouped};
use crate::ie;
use crate::value::*;

grouped! {
    /// Echo Request (table 7.1.1-1).
    EchoRequest {
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: one Recovery,
        /// What the sender can do.
        NODE_FEATURES 0 => node_features: opt NodeFeatures,
    }
    /// Echo Response (table 7.1.2-1).
    EchoResponse {
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: one Recovery,
        /// What the sender can do.
        NODE_FEATURES 0 => node_features: opt NodeFeatures,
    }
    /// Version Not Supported Indication (§7.1.3): a header alone.
    VersionNotSupportedIndication {}
    /// Create Session Request (table 7.2.1-1).
    CreateSessionRequest {
        /// Subscriber.
        IMSI 0 => imsi: cond Imsi,
        /// Telephone number.
        MSISDN 0 => msisdn: cond Digits,
        /// Equipment.
        MEI 0 => mei: cond Digits,
        /// Where the UE is.
        ULI 0 => uli: cond Uli,
        /// Network that serves the UE.
        SERVING_NETWORK 0 => serving_network: cond Plmn,
        /// Radio access.
        RAT_TYPE 0 => rat_type: one RatType,
        /// Indications.
        INDICATION 0 => indication: cond Indication,
        /// The sender's end: MME or S-GW.
        F_TEID 0 => sender_f_teid: one FTeid,
        /// The P-GW, on S11.
        F_TEID 1 => pgw_f_teid: cond FTeid,
        /// APN.
        APN 0 => apn: one Apn,
        /// Who chose the APN.
        SELECTION_MODE 0 => selection_mode: cond SelectionMode,
        /// What the UE asks for.
        PDN_TYPE 0 => pdn_type: cond PdnType,
        /// Address of the UE: static or known, or zeros.
        PAA 0 => paa: cond Paa,
        /// Strictest restriction of the UE's other PDN connections.
        APN_RESTRICTION 0 => max_apn_restriction: cond ApnRestriction,
        /// Rates of all non-GBR bearers of the APN together.
        AMBR 0 => apn_ambr: cond Ambr,
        /// Default bearer, in a relocation.
        EBI 0 => linked_ebi: cond Ebi,
        /// From the UE.
        PCO 0 => pco: cond Octets,
        /// Bearers to create: the default one, or all in a relocation.
        BEARER_CONTEXT 0 => bearers_to_be_created: some BearerToBeCreated,
        /// Bearers that were not moved.
        BEARER_CONTEXT 1 => bearers_to_be_removed: many BearerToBeRemoved,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Sets of the MME.
        FQ_CSID 0 => mme_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Charging characteristics.
        CHARGING_CHARACTERISTICS 0 => charging_characteristics: cond ChargingCharacteristics,
        /// Low access priority.
        SIGNALLING_PRIORITY_INDICATION 0 => signalling_priority: opt SignallingPriority,
        /// From the UE.
        APCO 0 => apco: opt Octets,
        /// From the UE.
        EPCO 0 => epco: opt Octets,
        /// What vendors say beyond the standard.
        PRIVATE_EXTENSION 0 => private_extensions: many PrivateExtension,
    }
    /// Create Session Response (table 7.2.2-1).
    CreateSessionResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Which changes of location are to be reported.
        CHANGE_REPORTING_ACTION 0 => change_reporting_action: cond ChangeReportingAction,
        /// The sender's end, on S11 the S-GW's.
        F_TEID 0 => sender_f_teid: cond FTeid,
        /// The P-GW's end.
        F_TEID 1 => pgw_f_teid: cond FTeid,
        /// Address of the UE.
        PAA 0 => paa: cond Paa,
        /// Restriction of combining this APN with others.
        APN_RESTRICTION 0 => apn_restriction: cond ApnRestriction,
        /// Rates that the P-GW allows.
        AMBR 0 => apn_ambr: cond Ambr,
        /// Default bearer, in a relocation.
        EBI 0 => linked_ebi: cond Ebi,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// Bearers created; none when the request was refused.
        BEARER_CONTEXT 0 => bearers_created: many BearerCreated,
        /// Bearers to be removed.
        BEARER_CONTEXT 1 => bearers_marked_for_removal: many BearerResult,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Sets of the P-GW.
        FQ_CSID 0 => pgw_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// For how long the MME is not to ask for this APN again.
        EPC_TIMER 0 => pgw_back_off_time: opt EpcTimer,
        /// For the UE.
        APCO 0 => apco: opt Octets,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// Charging ID of the whole PDN connection.
        CHARGING_ID 0 => pdn_connection_charging_id: opt ChargingId,
        /// For the UE.
        EPCO 0 => epco: opt Octets,
        /// What vendors say beyond the standard.
        PRIVATE_EXTENSION 0 => private_extensions: many PrivateExtension,
    }
    /// Create Bearer Request (table 7.2.3-1).
    CreateBearerRequest {
        /// The UE's procedure that this answers.
        PTI 0 => pti: cond Pti,
        /// Default bearer.
        EBI 0 => linked_ebi: one Ebi,
        /// For the UE.
        PCO 0 => pco: opt Octets,
        /// Bearers to create.
        BEARER_CONTEXT 0 => bearers: some BearerInCreateRequest,
        /// Sets of the P-GW.
        FQ_CSID 0 => pgw_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Which changes of location are to be reported.
        CHANGE_REPORTING_ACTION 0 => change_reporting_action: cond ChangeReportingAction,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Create Bearer Response (table 7.2.4-1).
    CreateBearerResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Bearers, each with its result; a refusal of the whole may lack them.
        BEARER_CONTEXT 0 => bearers: many BearerInCreateResponse,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Sets of the MME.
        FQ_CSID 0 => mme_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// From the UE.
        PCO 0 => pco: cond Octets,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Where the UE is.
        ULI 0 => uli: opt Uli,
    }
    /// Bearer Resource Command (table 7.2.5-1): the UE asks for a change of its traffic.
    BearerResourceCommand {
        /// Default bearer.
        EBI 0 => linked_ebi: one Ebi,
        /// The UE's procedure.
        PTI 0 => pti: one Pti,
        /// QoS that the UE asks for.
        FLOW_QOS 0 => flow_qos: cond FlowQos,
        /// Traffic aggregate, coded as a traffic flow template; see [`tft`].
        TAD 0 => tad: cond Octets,
        /// Radio access.
        RAT_TYPE 0 => rat_type: cond RatType,
        /// Network that serves the UE.
        SERVING_NETWORK 0 => serving_network: opt Plmn,
        /// Where the UE is.
        ULI 0 => uli: opt Uli,
        /// Bearer to change.
        EBI 1 => ebi: cond Ebi,
        /// Indications.
        INDICATION 0 => indication: cond Indication,
        /// From the UE.
        PCO 0 => pco: opt Octets,
        /// Low access priority.
        SIGNALLING_PRIORITY_INDICATION 0 => signalling_priority: opt SignallingPriority,
        /// From the UE.
        EPCO 0 => epco: opt Octets,
        /// The sender's end.
        F_TEID 2 => sender_f_teid: opt FTeid,
    }
    /// Bearer Resource Failure Indication (table 7.2.6-1).
    BearerResourceFailureIndication {
        /// Reason.
        CAUSE 0 => cause: one Cause,
        /// Default bearer, from the command.
        EBI 0 => linked_ebi: one Ebi,
        /// The UE's procedure, from the command.
        PTI 0 => pti: one Pti,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: opt Recovery,
    }
    /// Modify Bearer Request (table 7.2.7-1).
    ModifyBearerRequest {
        /// Equipment.
        MEI 0 => mei: cond Digits,
        /// Where the UE is.
        ULI 0 => uli: cond Uli,
        /// Network that serves the UE.
        SERVING_NETWORK 0 => serving_network: opt Plmn,
        /// Radio access.
        RAT_TYPE 0 => rat_type: cond RatType,
        /// Indications.
        INDICATION 0 => indication: cond Indication,
        /// The sender's end, when it changed.
        F_TEID 0 => sender_f_teid: cond FTeid,
        /// Rates of all non-GBR bearers of the APN together.
        AMBR 0 => apn_ambr: cond Ambr,
        /// The S-GW is to delay downlink data notifications by this.
        DELAY_VALUE 0 => notification_delay: cond DelayValue,
        /// Bearers to modify.
        BEARER_CONTEXT 0 => bearers_to_be_modified: many BearerToBeModified,
        /// Bearers to remove.
        BEARER_CONTEXT 1 => bearers_to_be_removed: many BearerToBeRemoved,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Sets of the MME.
        FQ_CSID 0 => mme_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Subscriber.
        IMSI 0 => imsi: opt Imsi,
    }
    /// Modify Bearer Response (table 7.2.8-1).
    ModifyBearerResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Telephone number.
        MSISDN 0 => msisdn: cond Digits,
        /// Default bearer.
        EBI 0 => linked_ebi: cond Ebi,
        /// Restriction of combining this APN with others.
        APN_RESTRICTION 0 => apn_restriction: cond ApnRestriction,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// Bearers modified.
        BEARER_CONTEXT 0 => bearers_modified: many BearerModified,
        /// Bearers to be removed.
        BEARER_CONTEXT 1 => bearers_marked_for_removal: many BearerResult,
        /// Which changes of location are to be reported.
        CHANGE_REPORTING_ACTION 0 => change_reporting_action: cond ChangeReportingAction,
        /// Sets of the P-GW.
        FQ_CSID 0 => pgw_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// Charging ID of the whole PDN connection.
        CHARGING_ID 0 => pdn_connection_charging_id: opt ChargingId,
    }
    /// Delete Session Request (table 7.2.9.1-1).
    DeleteSessionRequest {
        /// Why.
        CAUSE 0 => cause: cond Cause,
        /// Default bearer of the PDN connection.
        EBI 0 => linked_ebi: cond Ebi,
        /// Where the UE is.
        ULI 0 => uli: cond Uli,
        /// Indications: OI to delete at the P-GW, too; SI to delete at the S-GW only.
        INDICATION 0 => indication: cond Indication,
        /// From the UE.
        PCO 0 => pco: cond Octets,
        /// MME or SGSN, with ISR.
        NODE_TYPE 0 => originating_node: cond NodeType,
        /// The sender's end.
        F_TEID 0 => sender_f_teid: opt FTeid,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Why the radio network released it.
        RAN_NAS_CAUSE 0 => ran_nas_cause: opt Octets,
        /// From the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Delete Session Response (table 7.2.10.1-1).
    DeleteSessionResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// For the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Delete Bearer Request (table 7.2.9.2-1).
    DeleteBearerRequest {
        /// Default bearer, when the whole PDN connection ends.
        EBI 0 => linked_ebi: cond Ebi,
        /// Dedicated bearers to delete.
        EBI 1 => ebis: many Ebi,
        /// Bearers that could not be handled as asked.
        BEARER_CONTEXT 0 => failed_bearers: many BearerResult,
        /// The UE's procedure that this answers.
        PTI 0 => pti: cond Pti,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// Sets of the P-GW.
        FQ_CSID 0 => pgw_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Why.
        CAUSE 0 => cause: cond Cause,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// For the UE.
        EPCO 0 => epco: opt Octets,
    }
    /// Delete Bearer Response (table 7.2.10.2-1).
    DeleteBearerResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Default bearer, when the whole PDN connection ends.
        EBI 0 => linked_ebi: cond Ebi,
        /// Bearers, each with its result.
        BEARER_CONTEXT 0 => bearers: many BearerResultWithOptions,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Sets of the MME.
        FQ_CSID 0 => mme_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// From the UE.
        PCO 0 => pco: cond Octets,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Where the UE is.
        ULI 0 => uli: opt Uli,
    }
    /// Downlink Data Notification (table 7.2.11.1-1).
    DownlinkDataNotification {
        /// After an Error Indication of the eNodeB: that one.
        CAUSE 0 => cause: cond Cause,
        /// Bearers with downlink data.
        EBI 0 => ebis: many Ebi,
        /// Priority of the most important one.
        ARP 0 => arp: opt Arp,
        /// Subscriber, when the MME has lost its context.
        IMSI 0 => imsi: opt Imsi,
        /// The S-GW's end.
        F_TEID 0 => sender_f_teid: opt FTeid,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Downlink Data Notification Acknowledge (table 7.2.11.2-1).
    DownlinkDataNotificationAcknowledge {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// The S-GW is to delay further notifications by this.
        DELAY_VALUE 0 => notification_delay: cond DelayValue,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// The S-GW is to notify less.
        THROTTLING 0 => low_priority_throttling: opt Throttling,
        /// Subscriber.
        IMSI 0 => imsi: opt Imsi,
        /// How long the S-GW is to buffer.
        EPC_TIMER 0 => buffering_duration: opt EpcTimer,
        /// How many packets the S-GW is to buffer.
        INTEGER_NUMBER 0 => buffering_packet_count: opt IntegerNumber,
    }
    /// Downlink Data Notification Failure Indication (table 7.2.11.3-1): the UE was not found. It is not answered.
    DownlinkDataNotificationFailureIndication {
        /// Reason.
        CAUSE 0 => cause: one Cause,
        /// MME or SGSN, with ISR.
        NODE_TYPE 0 => originating_node: opt NodeType,
        /// Subscriber.
        IMSI 0 => imsi: opt Imsi,
    }
    /// Modify Bearer Command (table 7.2.14.1-1): the subscribed QoS changed.
    ModifyBearerCommand {
        /// Subscribed rates.
        AMBR 0 => apn_ambr: one Ambr,
        /// Default bearer.
        BEARER_CONTEXT 0 => bearer: one BearerInModifyCommand,
        /// The sender's end.
        F_TEID 0 => sender_f_teid: opt FTeid,
    }
    /// Modify Bearer Failure Indication (table 7.2.14.2-1).
    ModifyBearerFailureIndication {
        /// Reason.
        CAUSE 0 => cause: one Cause,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Update Bearer Request (table 7.2.15-1).
    UpdateBearerRequest {
        /// Bearers to change.
        BEARER_CONTEXT 0 => bearers: some BearerInUpdateRequest,
        /// The UE's procedure that this answers.
        PTI 0 => pti: cond Pti,
        /// For the UE.
        PCO 0 => pco: cond Octets,
        /// Rates of all non-GBR bearers of the APN together.
        AMBR 0 => apn_ambr: one Ambr,
        /// Which changes of location are to be reported.
        CHANGE_REPORTING_ACTION 0 => change_reporting_action: cond ChangeReportingAction,
        /// Sets of the P-GW.
        FQ_CSID 0 => pgw_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Update Bearer Response (table 7.2.16-1).
    UpdateBearerResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Bearers, each with its result; a refusal of the whole may lack them.
        BEARER_CONTEXT 0 => bearers: many BearerResultWithOptions,
        /// From the UE.
        PCO 0 => pco: opt Octets,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Sets of the MME.
        FQ_CSID 0 => mme_fq_csid: cond FqCsid,
        /// Sets of the S-GW.
        FQ_CSID 1 => sgw_fq_csid: cond FqCsid,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// Where the UE is.
        ULI 0 => uli: opt Uli,
    }
    /// Delete Bearer Command (table 7.2.17.1-1): the radio network released bearers.
    DeleteBearerCommand {
        /// Bearers to delete.
        BEARER_CONTEXT 0 => bearers: some BearerInDeleteCommand,
        /// Where the UE is.
        ULI 0 => uli: opt Uli,
        /// Time zone of the UE.
        UE_TIME_ZONE 0 => ue_time_zone: opt UeTimeZone,
        /// The sender's end.
        F_TEID 0 => sender_f_teid: opt FTeid,
    }
    /// Delete Bearer Failure Indication (table 7.2.17.2-1).
    DeleteBearerFailureIndication {
        /// Reason.
        CAUSE 0 => cause: one Cause,
        /// Bearers, each with its result; a refusal of the whole may lack them.
        BEARER_CONTEXT 0 => bearers: many BearerResult,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Create Indirect Data Forwarding Tunnel Request (table 7.2.18-1).
    CreateIndirectDataForwardingTunnelRequest {
        /// Subscriber.
        IMSI 0 => imsi: cond Imsi,
        /// Equipment.
        MEI 0 => mei: cond Digits,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
        /// The MME's end.
        F_TEID 0 => sender_f_teid: cond FTeid,
        /// Bearers whose data are forwarded.
        BEARER_CONTEXT 0 => bearers: some BearerToBeForwarded,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: opt Recovery,
    }
    /// Create Indirect Data Forwarding Tunnel Response (table 7.2.19-1).
    CreateIndirectDataForwardingTunnelResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// The S-GW's end.
        F_TEID 0 => sender_f_teid: cond FTeid,
        /// Bearers, each with its result; none when the request was refused.
        BEARER_CONTEXT 0 => bearers: many BearerForwarded,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: opt Recovery,
    }
    /// Delete Indirect Data Forwarding Tunnel Request (§7.2.12): no IEs.
    DeleteIndirectDataForwardingTunnelRequest {}
    /// Delete Indirect Data Forwarding Tunnel Response (table 7.2.13-1).
    DeleteIndirectDataForwardingTunnelResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: cond Recovery,
    }
    /// Release Access Bearers Request (table 7.2.21.1-1).
    ReleaseAccessBearersRequest {
        /// Bearers to release; none means all.
        EBI 0 => ebis: many Ebi,
        /// MME or SGSN, with ISR.
        NODE_TYPE 0 => originating_node: opt NodeType,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
    /// Release Access Bearers Response (table 7.2.22.1-1).
    ReleaseAccessBearersResponse {
        /// Result.
        CAUSE 0 => cause: one Cause,
        /// Restart counter of the sender.
        RECOVERY 0 => recovery: opt Recovery,
        /// Indications.
        INDICATION 0 => indication: opt Indication,
    }
}

/// What a message is to its receiver (§4.2.5, §7.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Answered by the response with the next type.
    Request,
    /// Answered by its failure indication, or by a request with the same sequence number, which the command triggers.
    Command,
    /// Answers a request or command.
    Response,
    /// Not answered.
    Indication,
}

macro_rules! messages {
    ($($code:literal $name:ident $kind:ident,)*) => {
        /// Message type (table 6.1-1).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum MessageType { $($name = $code,)* }

        impl MessageType {
            /// Every type.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The type with this code, when known.
            pub fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
            /// What it is to its receiver.
            pub fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }
        }

        /// A decoded message without its header.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, clippy::large_enum_variant)] // messages live on the stack for one procedure step
        pub enum Message { $($name($name),)* }

        impl Message {
            /// Its type.
            pub fn message_type(&self) -> MessageType {
                match self { $(Self::$name(_) => MessageType::$name,)* }
            }

            fn decode_body(message_type: MessageType, body: &[u8]) -> Result<Self, Fault> {
                match message_type { $(MessageType::$name => $name::decode(body).map(Self::$name),)* }
            }

            fn encode_body(&self, out: &mut Vec<u8>) {
                match self { $(Self::$name(message) => message.encode(out),)* }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

messages! {
    1 EchoRequest Request,
    2 EchoResponse Response,
    3 VersionNotSupportedIndication Response,
    32 CreateSessionRequest Request,
    33 CreateSessionResponse Response,
    34 ModifyBearerRequest Request,
    35 ModifyBearerResponse Response,
    36 DeleteSessionRequest Request,
    37 DeleteSessionResponse Response,
    64 ModifyBearerCommand Command,
    65 ModifyBearerFailureIndication Response,
    66 DeleteBearerCommand Command,
    67 DeleteBearerFailureIndication Response,
    68 BearerResourceCommand Command,
    69 BearerResourceFailureIndication Response,
    70 DownlinkDataNotificationFailureIndication Indication,
    95 CreateBearerRequest Request,
    96 CreateBearerResponse Response,
    97 UpdateBearerRequest Request,
    98 UpdateBearerResponse Response,
    99 DeleteBearerRequest Request,
    100 DeleteBearerResponse Response,
    166 CreateIndirectDataForwardingTunnelRequest Request,
    167 CreateIndirectDataForwardingTunnelResponse Response,
    168 DeleteIndirectDataForwardingTunnelRequest Request,
    169 DeleteIndirectDataForwardingTunnelResponse Response,
    170 ReleaseAccessBearersRequest Request,
    171 ReleaseAccessBearersResponse Response,
    176 DownlinkDataNotification Request,
    177 DownlinkDataNotificationAcknowledge Response,
}

impl MessageType {
    /// Whether this is a request or a command, which are answered.
    pub fn is_request(self) -> bool {
        matches!(self.kind(), Kind::Request | Kind::Command)
    }

    /// Whether its header carries a TEID.
    pub fn has_teid(self) -> bool {
        !matches!(self, Self::EchoRequest | Self::EchoResponse | Self::VersionNotSupportedIndication)
    }

    /// Whether this is the response to `request`, or the failure indication of that command.
    pub fn is_response_to(self, request: Self) -> bool {
        request.is_request() && self as u8 == request as u8 + 1
    }

    /// Whether this request may be what `command` asked for (§7.2.3, §7.2.15, §7.2.9.2).
    pub fn is_triggered_by(self, command: Self) -> bool {
        use MessageType as T;
        match command {
            T::BearerResourceCommand => {
                matches!(self, T::CreateBearerRequest | T::UpdateBearerRequest | T::DeleteBearerRequest)
            }
            T::ModifyBearerCommand => self == T::UpdateBearerRequest,
            T::DeleteBearerCommand => self == T::DeleteBearerRequest,
            _ => false,
        }
    }

    /// The answer that refuses a request or command of this type; `None` where there is none. A Bearer Resource Failure Indication
    /// has bearer and transaction 0: an owner that knows them makes its own.
    pub fn rejection(self, cause: Cause) -> Option<Message> {
        use MessageType as T;
        Some(match self {
            T::CreateSessionRequest => CreateSessionResponse { cause, ..Default::default() }.into(),
            T::ModifyBearerRequest => ModifyBearerResponse { cause, ..Default::default() }.into(),
            T::DeleteSessionRequest => DeleteSessionResponse { cause, ..Default::default() }.into(),
            T::CreateBearerRequest => CreateBearerResponse { cause, ..Default::default() }.into(),
            T::UpdateBearerRequest => UpdateBearerResponse { cause, ..Default::default() }.into(),
            T::DeleteBearerRequest => DeleteBearerResponse { cause, ..Default::default() }.into(),
            T::ModifyBearerCommand => ModifyBearerFailureIndication { cause, ..Default::default() }.into(),
            T::DeleteBearerCommand => DeleteBearerFailureIndication { cause, ..Default::default() }.into(),
            T::BearerResourceCommand => {
                BearerResourceFailureIndication { cause, ..Default::default() }.into()
            }
            T::CreateIndirectDataForwardingTunnelRequest => {
                CreateIndirectDataForwardingTunnelResponse { cause, ..Default::default() }.into()
            }
            T::DeleteIndirectDataForwardingTunnelRequest => {
                DeleteIndirectDataForwardingTunnelResponse { cause, ..Default::default() }.into()
            }
            T::ReleaseAccessBearersRequest => {
                ReleaseAccessBearersResponse { cause, ..Default::default() }.into()
            }
            T::DownlinkDataNotification => {
                DownlinkDataNotificationAcknowledge { cause, ..Default::default() }.into()
            }
            _ => return None,
        })
    }
}

/// Message header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Type.
    pub message_type: MessageType,
    /// Receiver's TEID; `None` without one, `Some(0)` where the receiver's TEID is not known.
    pub teid: Option<u32>,
    /// Sequence number, 24 bits; the top one is set in commands and in what they trigger.
    pub sequence: u32,
    /// P: another message follows in the datagram.
    pub piggybacking: bool,
    /// Priority, 4 bits, when given; 0 is the highest.
    pub priority: Option<u8>,
}

const VERSION: u8 = 2;
const FLAG_P: u8 = 0x10;
const FLAG_T: u8 = 0x08;
const FLAG_MP: u8 = 0x04;

impl Header {
    /// Reads the header: `(header, IEs, octets after this message)`.
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8], &[u8]), DecodeError> {
        let &[flags, ..] = datagram else { return Err(DecodeError::Truncated) };
        if flags >> 5 != VERSION {
            return Err(DecodeError::Version(flags >> 5));
        }
        let Some((&[_, code, l0, l1], rest)) = datagram.split_first_chunk::<4>() else {
            return Err(DecodeError::Truncated);
        };
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let (mut message, after) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        let message_type = MessageType::from_code(code).ok_or(DecodeError::UnknownMessage(code))?;
        let mut teid = None;
        if flags & FLAG_T != 0 {
            let (octets, rest) = message.split_first_chunk::<4>().ok_or(DecodeError::Truncated)?;
            teid = Some(u32::from_be_bytes(*octets));
            message = rest;
        } else if message_type.has_teid() {
            return Err(DecodeError::TeidFlag(code));
        }
        let (&[s0, s1, s2, last], ies) = message.split_first_chunk::<4>().ok_or(DecodeError::Truncated)?;
        let header = Self {
            message_type,
            teid,
            sequence: u32::from_be_bytes([0, s0, s1, s2]),
            piggybacking: flags & FLAG_P != 0,
            priority: (flags & FLAG_MP != 0).then_some(last >> 4),
        };
        Ok((header, ies, after))
    }
}

impl Message {
    /// Decodes the first message of a datagram. A fuzz target's entry point.
    pub fn decode(datagram: &[u8]) -> Result<(Header, Self), DecodeError> {
        let (header, body, _) = Header::decode(datagram)?;
        Self::decode_ies(header.message_type, body).map(|message| (header, message))
    }

    /// Decodes the IEs after a header.
    pub fn decode_ies(message_type: MessageType, ies: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_body(message_type, ies).map_err(|fault| match fault {
            Fault::Inner(error) => error,
            // Does not occur: all faults in a message are those of an IE.
            Fault::Length | Fault::Incorrect => DecodeError::Truncated,
        })
    }

    /// Appends the message with its header to `out`. `teid` is the receiver's and ignored in messages without TEID;
    /// `sequence` has 24 bits. Reuse `out` to send without allocating.
    pub fn encode(&self, teid: u32, sequence: u32, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let message_type = self.message_type();
        let header = Header { message_type, teid: Some(teid), sequence, piggybacking: false, priority: None };
        self.encode_with(header, out)
    }

    /// Appends the message like [`Message::encode`], with priority and piggybacking. The header's type is ignored.
    pub fn encode_with(&self, header: Header, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let message_type = self.message_type();
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = VERSION << 5
            | flag(header.piggybacking, FLAG_P)
            | flag(message_type.has_teid(), FLAG_T)
            | flag(header.priority.is_some(), FLAG_MP);
        out.extend_from_slice(&[flags, message_type as u8, 0, 0]);
        if message_type.has_teid() {
            out.extend_from_slice(&header.teid.unwrap_or(0).to_be_bytes());
        }
        let last = header.priority.unwrap_or(0) << 4;
        out.extend_from_slice(&(header.sequence << 8 | u32::from(last)).to_be_bytes());
        self.encode_body(out);
        let total = out.len() - start;
        if total > MAX_MESSAGE {
            out.truncate(start);
            return Err(EncodeError::TooLong(total));
        }
        let length = (total - 4) as u16;
        out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }
}

/// The sender's F-TEID of a request whose other IEs may be broken: its rejection is sent to it.
pub fn peek_sender_f_teid(ies: &[u8]) -> Option<FTeid> {
    FTeid::decode(Ies::new(ies).find(OffendingIe::new(ie::F_TEID, 0))?).ok()
}

/// The restart counter in any message.
pub fn peek_recovery(ies: &[u8]) -> Option<Recovery> {
    Recovery::decode(Ies::new(ies).find(OffendingIe::new(ie::RECOVERY, 0))?).ok()
}

/// The cause of a response whose other IEs are missing or broken, when it is not acceptance.
pub fn peek_rejection(ies: &[u8]) -> Option<Cause> {
    let cause = Cause::decode(Ies::new(ies).find(OffendingIe::new(ie::CAUSE, 0))?).ok();
    cause.filter(|cause| !cause.is_accepted())
}
