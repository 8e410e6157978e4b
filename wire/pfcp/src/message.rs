//! Messages and their header (TS 29.244 §7.2 to §7.5).
//!
//! ```text
//! octet 1: version (3) = 1 · spare (2) · FO · MP · S   octet 2: message type   3-4: length of the rest
//! [SEID (8) when S]   sequence number (3)   message priority (4) · spare (4)
//! ```

use crate::codec::{DecodeError, EncodeError, Fault, Ies, MAX_MESSAGE, ShortBytes, Value, grouped};
use crate::ie;
use crate::report::*;
use crate::rules::*;
use crate::value::*;

grouped! {
    /// Heartbeat Request (table 7.4.2.1-1).
    HeartbeatRequest {
        /// When the sender started.
        RECOVERY_TIME_STAMP => recovery_time_stamp: one NtpSeconds,
    }
    /// Heartbeat Response (table 7.4.2.2-1).
    HeartbeatResponse {
        /// When the sender started.
        RECOVERY_TIME_STAMP => recovery_time_stamp: one NtpSeconds,
    }
    /// Association Setup Request (table 7.4.4.1-1).
    AssociationSetupRequest {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// When the sender started.
        RECOVERY_TIME_STAMP => recovery_time_stamp: one NtpSeconds,
        /// What the UP function can do, when it is the sender.
        UP_FUNCTION_FEATURES => up_function_features: opt UpFunctionFeatures,
        /// What the CP function can do, when it is the sender.
        CP_FUNCTION_FEATURES => cp_function_features: opt CpFunctionFeatures,
        /// UUPSI.
        PFCPASREQ_FLAGS => flags: opt AsReqFlags,
    }
    /// Association Setup Response (table 7.4.4.2-1).
    AssociationSetupResponse {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
        /// When the sender started.
        RECOVERY_TIME_STAMP => recovery_time_stamp: one NtpSeconds,
        /// What the UP function can do.
        UP_FUNCTION_FEATURES => up_function_features: opt UpFunctionFeatures,
        /// What the CP function can do.
        CP_FUNCTION_FEATURES => cp_function_features: opt CpFunctionFeatures,
        /// PSREI: sessions were retained.
        PFCPASRSP_FLAGS => flags: opt AsRspFlags,
    }
    /// Association Update Request (table 7.4.4.3-1).
    AssociationUpdateRequest {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// New UP function features.
        UP_FUNCTION_FEATURES => up_function_features: opt UpFunctionFeatures,
        /// New CP function features.
        CP_FUNCTION_FEATURES => cp_function_features: opt CpFunctionFeatures,
        /// The UP function asks to be released.
        PFCP_ASSOCIATION_RELEASE_REQUEST => release_request: opt AssociationRelease,
        /// Time left for the sessions.
        GRACEFUL_RELEASE_PERIOD => graceful_release_period: opt CoarseTimer,
        /// PARPS.
        PFCPAUREQ_FLAGS => flags: opt AuReqFlags,
    }
    /// Association Update Response (table 7.4.4.4-1).
    AssociationUpdateResponse {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
        /// New UP function features.
        UP_FUNCTION_FEATURES => up_function_features: opt UpFunctionFeatures,
        /// New CP function features.
        CP_FUNCTION_FEATURES => cp_function_features: opt CpFunctionFeatures,
    }
    /// Association Release Request (table 7.4.4.5-1).
    AssociationReleaseRequest {
        /// Sender.
        NODE_ID => node_id: one NodeId,
    }
    /// Association Release Response (table 7.4.4.6-1).
    AssociationReleaseResponse {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
    }
    /// Version Not Supported Response (§7.4.4.7): a header alone.
    VersionNotSupportedResponse {}
    /// Node Report Request (table 7.4.5.1.1-1).
    NodeReportRequest {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// What is reported.
        NODE_REPORT_TYPE => report_type: one NodeReportType,
        /// GTP-U peers that do not answer.
        USER_PLANE_PATH_FAILURE_REPORT => path_failure: opt UserPlanePathReport,
        /// GTP-U peers that answer again.
        USER_PLANE_PATH_RECOVERY_REPORT => path_recovery: opt UserPlanePathReport,
    }
    /// Node Report Response (table 7.4.5.2.1-1).
    NodeReportResponse {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
    }
    /// Session Set Deletion Request (table 7.4.6.1-1).
    SessionSetDeletionRequest {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Sets of sessions that failed together; one IE type for all kinds of nodes.
        FQ_CSID => fq_csids: many FqCsid,
    }
    /// Session Set Deletion Response (table 7.4.6.2-1).
    SessionSetDeletionResponse {
        /// Sender.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
    }
    /// Session Establishment Request (table 7.5.2.1-1).
    SessionEstablishmentRequest {
        /// CP function.
        NODE_ID => node_id: one NodeId,
        /// The CP function's SEID, used in everything the UP function sends.
        F_SEID => cp_f_seid: one FSeid,
        /// PDRs.
        CREATE_PDR => create_pdrs: many CreatePdr,
        /// FARs.
        CREATE_FAR => create_fars: many CreateFar,
        /// URRs.
        CREATE_URR => create_urrs: many CreateUrr,
        /// QERs.
        CREATE_QER => create_qers: many CreateQer,
        /// BAR.
        CREATE_BAR => create_bar: opt CreateBar,
        /// Traffic endpoints.
        CREATE_TRAFFIC_ENDPOINT => create_traffic_endpoints: many CreateTrafficEndpoint,
        /// Multi-access rules, as they come: read by nobody here.
        CREATE_MAR => create_mars: many ShortBytes,
        /// Type of session.
        PDN_TYPE => pdn_type: opt PdnType,
        /// Idle time after which the UP function reports.
        USER_PLANE_INACTIVITY_TIMER => user_plane_inactivity_timer: opt Seconds,
        /// Subscriber.
        USER_ID => user_id: opt Box<UserId>,
        /// RESTI: the session is restored after a failure.
        PFCPSEREQ_FLAGS => flags: opt SeReqFlags,
        /// DNN.
        APN_DNN => dnn: opt ApnDnn,
        /// Slice.
        S_NSSAI => s_nssai: opt SNssai,
        /// Sets of sessions that this one fails with; one IE type for all kinds of nodes.
        FQ_CSID => fq_csids: many FqCsid,
    }
    /// Session Establishment Response (table 7.5.3.1-1).
    SessionEstablishmentResponse {
        /// UP function.
        NODE_ID => node_id: one NodeId,
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
        /// The UP function's SEID, when accepted.
        F_SEID => up_f_seid: opt FSeid,
        /// What the UP function chose.
        CREATED_PDR => created_pdrs: many CreatedPdr,
        /// Rule at fault.
        FAILED_RULE_ID => failed_rule_id: opt FailedRuleId,
        /// What the UP function chose for traffic endpoints.
        CREATED_TRAFFIC_ENDPOINT => created_traffic_endpoints: many CreatedTrafficEndpoint,
        /// How busy the UP function is.
        LOAD_CONTROL_INFORMATION => load_control: opt LoadControl,
        /// What the UP function wants to be spared.
        OVERLOAD_CONTROL_INFORMATION => overload_control: opt OverloadControl,
    }
    /// Session Modification Request (table 7.5.4.1-1).
    SessionModificationRequest {
        /// New SEID of the CP function.
        F_SEID => cp_f_seid: opt FSeid,
        /// PDRs to remove.
        REMOVE_PDR => remove_pdrs: many RemovePdr,
        /// FARs to remove.
        REMOVE_FAR => remove_fars: many RemoveFar,
        /// URRs to remove.
        REMOVE_URR => remove_urrs: many RemoveUrr,
        /// QERs to remove.
        REMOVE_QER => remove_qers: many RemoveQer,
        /// BAR to remove.
        REMOVE_BAR => remove_bar: opt RemoveBar,
        /// Traffic endpoints to remove.
        REMOVE_TRAFFIC_ENDPOINT => remove_traffic_endpoints: many RemoveTrafficEndpoint,
        /// PDRs to create.
        CREATE_PDR => create_pdrs: many CreatePdr,
        /// FARs to create.
        CREATE_FAR => create_fars: many CreateFar,
        /// URRs to create.
        CREATE_URR => create_urrs: many CreateUrr,
        /// QERs to create.
        CREATE_QER => create_qers: many CreateQer,
        /// BAR to create.
        CREATE_BAR => create_bar: opt CreateBar,
        /// Traffic endpoints to create.
        CREATE_TRAFFIC_ENDPOINT => create_traffic_endpoints: many CreateTrafficEndpoint,
        /// PDRs to change.
        UPDATE_PDR => update_pdrs: many UpdatePdr,
        /// FARs to change.
        UPDATE_FAR => update_fars: many UpdateFar,
        /// URRs to change.
        UPDATE_URR => update_urrs: many UpdateUrr,
        /// QERs to change.
        UPDATE_QER => update_qers: many UpdateQer,
        /// BAR to change.
        UPDATE_BAR_SMR => update_bar: opt UpdateBar,
        /// Traffic endpoints to change.
        UPDATE_TRAFFIC_ENDPOINT => update_traffic_endpoints: many UpdateTrafficEndpoint,
        /// Multi-access rules to remove, to create and to change, as they come: read by nobody here.
        REMOVE_MAR => remove_mars: many ShortBytes,
        /// To create.
        CREATE_MAR => create_mars: many ShortBytes,
        /// To change.
        UPDATE_MAR => update_mars: many ShortBytes,
        /// Drop buffered packets, query all URRs.
        PFCPSMREQ_FLAGS => flags: opt SmReqFlags,
        /// URRs to report on.
        QUERY_URR => query_urrs: many QueryUrr,
        /// New inactivity timer; 0 stops it.
        USER_PLANE_INACTIVITY_TIMER => user_plane_inactivity_timer: opt Seconds,
        /// Correlates the reports with this query.
        QUERY_URR_REFERENCE => query_urr_reference: opt QueryUrrReference,
    }
    /// Session Modification Response (table 7.5.5.1-1).
    SessionModificationResponse {
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
        /// What the UP function chose.
        CREATED_PDR => created_pdrs: many CreatedPdr,
        /// Reports of queried or removed URRs.
        USAGE_REPORT_SMR => usage_reports: many UsageReport,
        /// Rule at fault.
        FAILED_RULE_ID => failed_rule_id: opt FailedRuleId,
        /// Reports that follow separately.
        ADDITIONAL_USAGE_REPORTS_INFORMATION => additional_usage_reports: opt AdditionalUsageReports,
        /// What the UP function chose for traffic endpoints.
        CREATED_TRAFFIC_ENDPOINT => created_traffic_endpoints: many CreatedTrafficEndpoint,
        /// How busy the UP function is.
        LOAD_CONTROL_INFORMATION => load_control: opt LoadControl,
        /// What the UP function wants to be spared.
        OVERLOAD_CONTROL_INFORMATION => overload_control: opt OverloadControl,
    }
    /// Session Deletion Request (§7.5.6): no IEs.
    SessionDeletionRequest {}
    /// Session Deletion Response (table 7.5.7.1-1).
    SessionDeletionResponse {
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
        /// Last reports.
        USAGE_REPORT_SDR => usage_reports: many UsageReport,
        /// Reports that follow separately.
        ADDITIONAL_USAGE_REPORTS_INFORMATION => additional_usage_reports: opt AdditionalUsageReports,
        /// How busy the UP function is.
        LOAD_CONTROL_INFORMATION => load_control: opt LoadControl,
        /// What the UP function wants to be spared.
        OVERLOAD_CONTROL_INFORMATION => overload_control: opt OverloadControl,
    }
    /// Session Report Request (table 7.5.8.1-1).
    SessionReportRequest {
        /// What is reported.
        REPORT_TYPE => report_type: one ReportType,
        /// Downlink data waits.
        DOWNLINK_DATA_REPORT => downlink_data_report: opt DownlinkDataReport,
        /// Usage.
        USAGE_REPORT_SRR => usage_reports: many UsageReport,
        /// Error indication from a GTP-U peer.
        ERROR_INDICATION_REPORT => error_indication_report: opt ErrorIndicationReport,
        /// Reports that follow separately.
        ADDITIONAL_USAGE_REPORTS_INFORMATION => additional_usage_reports: opt AdditionalUsageReports,
        /// PSDBU.
        PFCPSRREQ_FLAGS => flags: opt SrReqFlags,
        /// How busy the UP function is.
        LOAD_CONTROL_INFORMATION => load_control: opt LoadControl,
        /// What the UP function wants to be spared.
        OVERLOAD_CONTROL_INFORMATION => overload_control: opt OverloadControl,
    }
    /// Session Report Response (table 7.5.9.1-1).
    SessionReportResponse {
        /// Result.
        CAUSE => cause: one Cause,
        /// IE at fault.
        OFFENDING_IE => offending_ie: opt OffendingIe,
        /// Changed buffering.
        UPDATE_BAR_SRR => update_bar: opt UpdateBarInReportResponse,
        /// DROBU.
        PFCPSRRSP_FLAGS => flags: opt SrRspFlags,
    }
}

macro_rules! messages {
    ($($code:literal $name:ident $kind:ident,)*) => {
        /// Message type (table 7.3-1).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum MessageType { $($name = $code,)* }

        impl MessageType {
            /// The type with this code, when known.
            pub fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
            /// Whether its header carries a SEID.
            pub fn has_seid(self) -> bool {
                match self { $(Self::$name => messages!(@seid $kind),)* }
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
    (@seid node) => { false };
    (@seid session) => { true };
}

messages! {
    1 HeartbeatRequest node,
    2 HeartbeatResponse node,
    5 AssociationSetupRequest node,
    6 AssociationSetupResponse node,
    7 AssociationUpdateRequest node,
    8 AssociationUpdateResponse node,
    9 AssociationReleaseRequest node,
    10 AssociationReleaseResponse node,
    11 VersionNotSupportedResponse node,
    12 NodeReportRequest node,
    13 NodeReportResponse node,
    14 SessionSetDeletionRequest node,
    15 SessionSetDeletionResponse node,
    50 SessionEstablishmentRequest session,
    51 SessionEstablishmentResponse session,
    52 SessionModificationRequest session,
    53 SessionModificationResponse session,
    54 SessionDeletionRequest session,
    55 SessionDeletionResponse session,
    56 SessionReportRequest session,
    57 SessionReportResponse session,
}

impl MessageType {
    /// Whether this is a request (which is answered), not a response.
    pub fn is_request(self) -> bool {
        use MessageType as T;
        matches!(
            self,
            T::HeartbeatRequest
                | T::AssociationSetupRequest
                | T::AssociationUpdateRequest
                | T::AssociationReleaseRequest
                | T::NodeReportRequest
                | T::SessionSetDeletionRequest
                | T::SessionEstablishmentRequest
                | T::SessionModificationRequest
                | T::SessionDeletionRequest
                | T::SessionReportRequest
        )
    }
}

/// Message header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Type.
    pub message_type: MessageType,
    /// Receiver's SEID; `None` in node messages, `Some(0)` where the receiver's SEID is not known.
    pub seid: Option<u64>,
    /// Sequence number, 24 bits.
    pub sequence: u32,
    /// FO: another message follows in the datagram.
    pub follow_on: bool,
    /// Priority, 4 bits, when given.
    pub priority: Option<u8>,
}

const VERSION: u8 = 1;
const FLAG_S: u8 = 0x01;
const FLAG_MP: u8 = 0x02;
const FLAG_FO: u8 = 0x04;

impl Header {
    /// Reads the header: `(header, IEs, octets after this message)`.
    pub fn decode(datagram: &[u8]) -> Result<(Self, &[u8], &[u8]), DecodeError> {
        let Some((&[flags, code, l0, l1], rest)) = datagram.split_first_chunk::<4>() else {
            return Err(DecodeError::Truncated);
        };
        if flags >> 5 != VERSION {
            return Err(DecodeError::Version(flags >> 5));
        }
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let (mut message, after) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        let message_type = MessageType::from_code(code).ok_or(DecodeError::UnknownMessage(code))?;
        if (flags & FLAG_S != 0) != message_type.has_seid() {
            return Err(DecodeError::SeidFlag(code));
        }
        let mut seid = None;
        if flags & FLAG_S != 0 {
            let (octets, rest) = message.split_first_chunk::<8>().ok_or(DecodeError::Truncated)?;
            seid = Some(u64::from_be_bytes(*octets));
            message = rest;
        }
        let (&[s0, s1, s2, last], ies) = message.split_first_chunk::<4>().ok_or(DecodeError::Truncated)?;
        let header = Self {
            message_type,
            seid,
            sequence: u32::from_be_bytes([0, s0, s1, s2]),
            follow_on: flags & FLAG_FO != 0,
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
            // Too few octets for another IE header at the end of the message.
            Fault::Length | Fault::Incorrect => DecodeError::Truncated,
        })
    }

    /// Appends the message with its header to `out`. `seid` is the receiver's and ignored in node messages;
    /// `sequence` has 24 bits. Reuse `out` to send without allocating.
    pub fn encode(&self, seid: u64, sequence: u32, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let message_type = self.message_type();
        let flags = VERSION << 5 | if message_type.has_seid() { FLAG_S } else { 0 };
        out.extend_from_slice(&[flags, message_type as u8, 0, 0]);
        if message_type.has_seid() {
            out.extend_from_slice(&seid.to_be_bytes());
        }
        out.extend_from_slice(&(sequence << 8).to_be_bytes());
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

/// The CP F-SEID of a Session Establishment Request whose other IEs may be broken: its rejection is sent to it.
pub fn peek_cp_f_seid(ies: &[u8]) -> Option<FSeid> {
    let mut walk = Ies::new(ies);
    while let Ok(Some((ie, value))) = walk.next_ie() {
        if ie == ie::F_SEID {
            return FSeid::decode(value).ok();
        }
    }
    None
}

/// The cause of a response whose other IEs are missing or broken, when it is not acceptance. Some UP functions leave the
/// Node ID out of a rejection.
pub fn peek_rejection(ies: &[u8]) -> Option<Cause> {
    let mut walk = Ies::new(ies);
    while let Ok(Some((ie, value))) = walk.next_ie() {
        if ie == ie::CAUSE {
            return Cause::decode(value).ok().filter(|cause| !cause.is_accepted());
        }
    }
    None
}

/// A name for [`ShortBytes`] where the standard says network instance.
pub type NetworkInstance = ShortBytes;
