//! 5GSM messages (TS 24.501 §8.3): a header and one body struct per message type.

use types::{Ambr, Dnn, PduSessionId, PduSessionType, Pti, SNssai, SscMode};

use crate::{GsmCause, IntegrityDataRate, Pco, PduAddress, QosFlowDescription, QosRule, SmCapability, Timer};

/// A 5GSM message with its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmMessage {
    /// PDU session; `None` is "no PDU session identity assigned".
    pub pdu_session_id: Option<PduSessionId>,
    /// Transaction of the UE's procedure; [`Pti::UNASSIGNED`] in procedures of the network.
    pub pti: Pti,
    /// What it says.
    pub body: SmBody,
}

impl SmMessage {
    /// A message of the session.
    pub fn new(pdu_session_id: PduSessionId, pti: Pti, body: SmBody) -> Self {
        Self { pdu_session_id: Some(pdu_session_id), pti, body }
    }
}

/// What a 5GSM message says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // The variants are the structs' names.
pub enum SmBody {
    EstablishmentRequest(EstablishmentRequest),
    EstablishmentAccept(EstablishmentAccept),
    EstablishmentReject(EstablishmentReject),
    ModificationRequest(ModificationRequest),
    ModificationReject(ModificationReject),
    ModificationCommand(ModificationCommand),
    ModificationComplete(ModificationComplete),
    ModificationCommandReject(ModificationCommandReject),
    ReleaseRequest(ReleaseRequest),
    ReleaseReject(ReleaseReject),
    ReleaseCommand(ReleaseCommand),
    ReleaseComplete(ReleaseComplete),
    Status(SmStatus),
}

/// PDU SESSION ESTABLISHMENT REQUEST (§8.3.1), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstablishmentRequest {
    /// Highest data rates at which the UE supports user-plane integrity protection.
    pub integrity_rate: IntegrityDataRate,
    /// Session type wished for.
    pub session_type: Option<PduSessionType>,
    /// SSC mode wished for.
    pub ssc_mode: Option<SscMode>,
    /// 5GSM capability.
    pub capability: Option<SmCapability>,
    /// Packet filters the UE can hold, when more than 16.
    pub max_packet_filters: Option<u16>,
    /// Always-on session wished for.
    pub always_on: bool,
    /// Contents for the data network's own authorization.
    pub dn_request: Option<Vec<u8>>,
    /// DNS, MTU and other wishes.
    pub pco: Option<Pco>,
}

impl EstablishmentRequest {
    /// A session of the type, full integrity rate, nothing else said.
    pub fn new(session_type: PduSessionType) -> Self {
        Self {
            integrity_rate: IntegrityDataRate::FULL,
            session_type: Some(session_type),
            ssc_mode: None,
            capability: None,
            max_packet_filters: None,
            always_on: false,
            dn_request: None,
            pco: None,
        }
    }
}

/// PDU SESSION ESTABLISHMENT ACCEPT (§8.3.2), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstablishmentAccept {
    /// Type the session has.
    pub session_type: PduSessionType,
    /// SSC mode the session has.
    pub ssc_mode: SscMode,
    /// QoS rules, the default one among them.
    pub qos_rules: Vec<QosRule>,
    /// Rate limit of the session's non-GBR flows.
    pub session_ambr: Ambr,
    /// Why the type is not the one asked for (#50, #51).
    pub cause: Option<GsmCause>,
    /// Address.
    pub address: Option<PduAddress>,
    /// Reflective QoS timer.
    pub rq_timer: Option<Timer>,
    /// Slice.
    pub s_nssai: Option<SNssai>,
    /// Whether the session is always on; said when asked for.
    pub always_on: Option<bool>,
    /// QoS flows.
    pub qos_flows: Vec<QosFlowDescription>,
    /// DNS, MTU and others.
    pub pco: Option<Pco>,
    /// Data network.
    pub dnn: Option<Dnn>,
}

/// PDU SESSION ESTABLISHMENT REJECT (§8.3.3), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstablishmentReject {
    /// Why.
    pub cause: GsmCause,
    /// When the UE may try again.
    pub back_off: Option<Timer>,
    /// SSC modes that would be allowed, with #68.
    pub allowed_ssc_modes: Vec<SscMode>,
    /// Options.
    pub pco: Option<Pco>,
}

impl EstablishmentReject {
    /// A reject with its cause alone.
    pub fn new(cause: GsmCause) -> Self {
        Self { cause, back_off: None, allowed_ssc_modes: Vec::new(), pco: None }
    }
}

/// PDU SESSION MODIFICATION REQUEST (§8.3.7), from the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModificationRequest {
    /// 5GSM capability.
    pub capability: Option<SmCapability>,
    /// Why.
    pub cause: Option<GsmCause>,
    /// Packet filters the UE can hold.
    pub max_packet_filters: Option<u16>,
    /// Always-on session wished for.
    pub always_on: bool,
    /// Highest data rates at which the UE supports user-plane integrity protection.
    pub integrity_rate: Option<IntegrityDataRate>,
    /// QoS rules wished for.
    pub qos_rules: Vec<QosRule>,
    /// QoS flows wished for.
    pub qos_flows: Vec<QosFlowDescription>,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION MODIFICATION REJECT (§8.3.8), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModificationReject {
    /// Why.
    pub cause: GsmCause,
    /// When the UE may try again.
    pub back_off: Option<Timer>,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION MODIFICATION COMMAND (§8.3.9), to the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModificationCommand {
    /// Why.
    pub cause: Option<GsmCause>,
    /// New rate limit.
    pub session_ambr: Option<Ambr>,
    /// Reflective QoS timer.
    pub rq_timer: Option<Timer>,
    /// Whether the session is always on.
    pub always_on: Option<bool>,
    /// Changes of QoS rules.
    pub qos_rules: Vec<QosRule>,
    /// Changes of QoS flows.
    pub qos_flows: Vec<QosFlowDescription>,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION MODIFICATION COMPLETE (§8.3.10), from the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModificationComplete {
    /// What the UE could not do.
    pub cause: Option<GsmCause>,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION MODIFICATION COMMAND REJECT (§8.3.11), from the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModificationCommandReject {
    /// Why.
    pub cause: GsmCause,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION RELEASE REQUEST (§8.3.12), from the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReleaseRequest {
    /// Why.
    pub cause: Option<GsmCause>,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION RELEASE REJECT (§8.3.13), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseReject {
    /// Why.
    pub cause: GsmCause,
    /// Options.
    pub pco: Option<Pco>,
}

/// PDU SESSION RELEASE COMMAND (§8.3.14), to the UE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseCommand {
    /// Why.
    pub cause: GsmCause,
    /// When the UE may ask for the session again.
    pub back_off: Option<Timer>,
    /// Options.
    pub pco: Option<Pco>,
}

impl ReleaseCommand {
    /// A command with its cause alone.
    pub fn new(cause: GsmCause) -> Self {
        Self { cause, back_off: None, pco: None }
    }
}

/// PDU SESSION RELEASE COMPLETE (§8.3.15), from the UE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReleaseComplete {
    /// What the UE found wrong.
    pub cause: Option<GsmCause>,
    /// Options.
    pub pco: Option<Pco>,
}

/// 5GSM STATUS (§8.3.16), both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmStatus {
    /// What was wrong with the message that it answers.
    pub cause: GsmCause,
}

impl SmBody {
    /// Name of the message, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::EstablishmentRequest(_) => "PduSessionEstablishmentRequest",
            Self::EstablishmentAccept(_) => "PduSessionEstablishmentAccept",
            Self::EstablishmentReject(_) => "PduSessionEstablishmentReject",
            Self::ModificationRequest(_) => "PduSessionModificationRequest",
            Self::ModificationReject(_) => "PduSessionModificationReject",
            Self::ModificationCommand(_) => "PduSessionModificationCommand",
            Self::ModificationComplete(_) => "PduSessionModificationComplete",
            Self::ModificationCommandReject(_) => "PduSessionModificationCommandReject",
            Self::ReleaseRequest(_) => "PduSessionReleaseRequest",
            Self::ReleaseReject(_) => "PduSessionReleaseReject",
            Self::ReleaseCommand(_) => "PduSessionReleaseCommand",
            Self::ReleaseComplete(_) => "PduSessionReleaseComplete",
            Self::Status(_) => "5gsmStatus",
        }
    }
}

/// The header of a 5GSM message, readable also when the rest is not, so that the answer can be addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmHeader {
    /// PDU session; `None` for "not assigned" and for reserved values.
    pub pdu_session_id: Option<PduSessionId>,
    /// Transaction.
    pub pti: Pti,
    /// Message type octet.
    pub message_type: u8,
}

impl SmHeader {
    /// Reads the header; `None` when the octets are no 5GSM message or end inside it.
    pub fn read(octets: &[u8]) -> Option<Self> {
        match *octets {
            [crate::codec::EPD_GSM, id, pti, message_type, ..] => {
                Some(Self { pdu_session_id: PduSessionId::new(id).ok(), pti: Pti(pti), message_type })
            }
            _ => None,
        }
    }
}
