//! Cause IE (§8.4).

use std::fmt;

use crate::codec::{Cursor, Fault, OffendingIe, Value};

/// Why a request is made, or what became of it (table 8.4-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CauseValue(pub u8);

/// Constants with the standard's wording as their documentation.
macro_rules! causes {
    ($($name:ident = $code:literal, $doc:literal;)*) => {
        impl CauseValue {
            $(#[doc = $doc] pub const $name: Self = Self($code);)*

            /// The standard's wording; `None` for a value without constant.
            pub fn words(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(without_full_stop($doc)),)*
                    _ => None,
                }
            }
        }
    };
}

causes! {
    LOCAL_DETACH = 2, "Local detach.";
    COMPLETE_DETACH = 3, "Complete detach.";
    RAT_CHANGED = 4, "RAT changed from 3GPP to non-3GPP.";
    ISR_DEACTIVATION = 5, "ISR deactivation.";
    ERROR_INDICATION_RECEIVED = 6, "Error Indication received from RNC, eNodeB, S4-SGSN or MME.";
    IMSI_DETACH_ONLY = 7, "IMSI detach only.";
    REACTIVATION_REQUESTED = 8, "Reactivation requested.";
    PDN_RECONNECTION_DISALLOWED = 9, "PDN reconnection to this APN disallowed.";
    ACCESS_CHANGED = 10, "Access changed from non-3GPP to 3GPP.";
    PDN_INACTIVITY = 11, "PDN connection inactivity timer expires.";
    PGW_NOT_RESPONDING = 12, "PGW not responding.";
    NETWORK_FAILURE = 13, "Network failure.";
    QOS_MISMATCH = 14, "QoS parameter mismatch.";
    EPS_TO_5GS_MOBILITY = 15, "EPS to 5GS mobility.";
    ACCEPTED = 16, "Request accepted.";
    ACCEPTED_PARTIALLY = 17, "Request accepted partially.";
    NEW_PDN_TYPE_NETWORK_PREFERENCE = 18, "New PDN type due to network preference.";
    NEW_PDN_TYPE_SINGLE_ADDRESS = 19, "New PDN type due to single address bearer only.";
    CONTEXT_NOT_FOUND = 64, "Context not found.";
    INVALID_MESSAGE_FORMAT = 65, "Invalid message format.";
    VERSION_NOT_SUPPORTED_BY_NEXT_PEER = 66, "Version not supported by next peer.";
    INVALID_LENGTH = 67, "Invalid length.";
    SERVICE_NOT_SUPPORTED = 68, "Service not supported.";
    MANDATORY_IE_INCORRECT = 69, "Mandatory IE incorrect.";
    MANDATORY_IE_MISSING = 70, "Mandatory IE missing.";
    SYSTEM_FAILURE = 72, "System failure.";
    NO_RESOURCES = 73, "No resources available.";
    TFT_SEMANTIC_ERROR = 74, "Semantic error in the TFT operation.";
    TFT_SYNTACTIC_ERROR = 75, "Syntactic error in the TFT operation.";
    FILTER_SEMANTIC_ERRORS = 76, "Semantic errors in packet filters.";
    FILTER_SYNTACTIC_ERRORS = 77, "Syntactic errors in packet filters.";
    UNKNOWN_APN = 78, "Missing or unknown APN.";
    RELOCATION_FAILURE = 81, "Relocation failure.";
    DENIED_IN_RAT = 82, "Denied in RAT.";
    PREFERRED_PDN_TYPE_NOT_SUPPORTED = 83, "Preferred PDN type not supported.";
    ADDRESSES_OCCUPIED = 84, "All dynamic addresses are occupied.";
    UE_CONTEXT_WITHOUT_TFT = 85, "UE context without TFT already activated.";
    PROTOCOL_TYPE_NOT_SUPPORTED = 86, "Protocol type not supported.";
    UE_NOT_RESPONDING = 87, "UE not responding.";
    UE_REFUSES = 88, "UE refuses.";
    SERVICE_DENIED = 89, "Service denied.";
    UNABLE_TO_PAGE_UE = 90, "Unable to page UE.";
    NO_MEMORY = 91, "No memory available.";
    USER_AUTHENTICATION_FAILED = 92, "User authentication failed.";
    NO_SUBSCRIPTION = 93, "APN access denied: no subscription.";
    REJECTED = 94, "Request rejected, reason not specified.";
    IMSI_NOT_KNOWN = 96, "IMSI or IMEI not known.";
    TAD_SEMANTIC_ERROR = 97, "Semantic error in the TAD operation.";
    TAD_SYNTACTIC_ERROR = 98, "Syntactic error in the TAD operation.";
    REMOTE_PEER_NOT_RESPONDING = 100, "Remote peer not responding.";
    COLLISION = 101, "Collision with network initiated request.";
    UE_SUSPENDED = 102, "Unable to page UE due to suspension.";
    CONDITIONAL_IE_MISSING = 103, "Conditional IE missing.";
    APN_RESTRICTION_INCOMPATIBLE = 104, "APN restriction type incompatible with currently active PDN connection.";
    INVALID_PIGGYBACKED_LENGTH = 105, "Invalid overall length of the triggered response and a piggybacked initial message.";
    DATA_FORWARDING_NOT_SUPPORTED = 106, "Data forwarding not supported.";
    INVALID_REPLY_FROM_REMOTE_PEER = 107, "Invalid reply from remote peer.";
    INVALID_PEER = 109, "Invalid peer.";
    TEMPORARILY_REJECTED = 110, "Temporarily rejected due to handover, TAU or RAU procedure in progress.";
    NOT_LIMITED_TO_S1U = 111, "Modifications not limited to S1-U bearers.";
    APN_CONGESTION = 113, "APN congestion.";
    BEARER_HANDLING_NOT_SUPPORTED = 114, "Bearer handling not supported.";
    UE_REATTACHED = 115, "UE already re-attached.";
    MULTIPLE_PDN_CONNECTIONS = 116, "Multiple PDN connections for a given APN not allowed.";
    TARGET_ACCESS_RESTRICTED = 117, "Target access restricted for the subscriber.";
    VPLMN_POLICY = 119, "MME or SGSN refuses due to VPLMN policy.";
    GTPC_ENTITY_CONGESTION = 120, "GTP-C entity congestion.";
    LATE_OVERLAPPING_REQUEST = 121, "Late overlapping request.";
    TIMED_OUT_REQUEST = 122, "Timed out request.";
    UE_POWER_SAVING = 123, "UE is temporarily not reachable due to power saving.";
    S1U_PATH_FAILURE = 128, "S1-U path failure.";
}

/// The wording as part of a sentence.
fn without_full_stop(text: &str) -> &str {
    text.strip_suffix('.').unwrap_or(text)
}

/// The standard's wording and the number, such as `Context not found (64)`.
impl fmt::Display for CauseValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} ({})", self.0),
            None => write!(f, "cause {}", self.0),
        }
    }
}

impl CauseValue {
    /// Whether the request was accepted, wholly or in part: values 16 to 63.
    pub fn is_accepted(self) -> bool {
        (16..64).contains(&self.0)
    }
}

/// Cause IE.
///
/// ```text
/// octet 5: value   octet 6: spare (5) · PCE · BCE · CS   [type (1) · length (2) = 0 · spare, instance (1) of the offending IE]
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cause {
    /// The value.
    pub value: CauseValue,
    /// PCE: the whole message is refused because of the PDN connection IE.
    pub pdn_connection_error: bool,
    /// BCE: the bearer context IE is refused.
    pub bearer_context_error: bool,
    /// CS: the cause comes from the node behind the sender, such as the P-GW behind an S-GW.
    pub from_remote: bool,
    /// The IE at fault.
    pub offending_ie: Option<OffendingIe>,
}

impl Cause {
    /// Whether the request was accepted, wholly or in part.
    pub fn is_accepted(self) -> bool {
        self.value.is_accepted()
    }
}

impl From<CauseValue> for Cause {
    fn from(value: CauseValue) -> Self {
        Self { value, ..Self::default() }
    }
}

impl Value for Cause {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let [value, flags] = cursor.array()?;
        let offending_ie = cursor
            .array()
            .ok()
            .map(|[ie_type, _, _, instance]: [u8; 4]| OffendingIe::new(ie_type, instance & 0x0f));
        Ok(Self {
            value: CauseValue(value),
            pdn_connection_error: flags & 4 != 0,
            bearer_context_error: flags & 2 != 0,
            from_remote: flags & 1 != 0,
            offending_ie,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let flags = u8::from(self.pdn_connection_error) << 2
            | u8::from(self.bearer_context_error) << 1
            | u8::from(self.from_remote);
        out.extend_from_slice(&[self.value.0, flags]);
        if let Some(ie) = self.offending_ie {
            out.extend_from_slice(&[ie.ie_type, 0, 0, ie.instance & 0x0f]);
        }
    }
}
