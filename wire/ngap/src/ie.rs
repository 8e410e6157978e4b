//! Values that NGAP information elements carry (TS 38.413 §9.3), in our own types.
//!
//! Identities that other protocols share (PLMN, TAI, GUAMI, S-NSSAI…) are those of `types`.
//! Containers that NGAP only passes on (NAS PDUs, transfers, radio capabilities) are [`Bytes`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use types::{AmfId, Guami, Ncgi, PduSessionId, Plmn, SNssai, Tac, Tai, Teid};

/// AMF UE NGAP ID (§9.3.3.1): the AMF's number for a UE-associated logical connection, 40 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AmfUeNgapId(pub u64);

/// RAN UE NGAP ID (§9.3.3.2): the gNB's number for a UE-associated logical connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RanUeNgapId(pub u32);

impl fmt::Display for AmfUeNgapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for RanUeNgapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Global RAN node ID (§9.3.1.5). Only gNBs are told apart; other nodes keep their raw identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GlobalRanNodeId {
    /// A gNB.
    Gnb {
        /// The PLMN the gNB belongs to.
        plmn: Plmn,
        /// Its number within the PLMN.
        id: GnbId,
    },
    /// An ng-eNB: PLMN and its 18, 20 or 21 bits.
    NgEnb {
        /// The PLMN the ng-eNB belongs to.
        plmn: Plmn,
        /// The identity's value.
        id: u32,
        /// How many bits the identity has: 18, 20 or 21.
        bits: u8,
    },
    /// A non-3GPP interworking function.
    N3iwf {
        /// The PLMN the N3IWF belongs to.
        plmn: Plmn,
        /// Its 16-bit identity.
        id: u16,
    },
}

impl GlobalRanNodeId {
    /// The PLMN the node belongs to.
    pub fn plmn(&self) -> Plmn {
        match self {
            Self::Gnb { plmn, .. } | Self::NgEnb { plmn, .. } | Self::N3iwf { plmn, .. } => *plmn,
        }
    }
}

impl fmt::Display for GlobalRanNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gnb { plmn, id } => write!(f, "gnb {plmn} {id}"),
            Self::NgEnb { plmn, id, .. } => write!(f, "ng-enb {plmn} {id:#x}"),
            Self::N3iwf { plmn, id } => write!(f, "n3iwf {plmn} {id:#x}"),
        }
    }
}

/// gNB ID (§9.3.1.6): 22 to 32 bits; the leftmost bits of the NR cell identity of its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GnbId {
    value: u32,
    bits: u8,
}

impl GnbId {
    /// A gNB ID of `bits` bits; `None` unless `bits` is 22 to 32 and `value` fits.
    pub fn new(value: u32, bits: u8) -> Option<Self> {
        let fits = (22..=32).contains(&bits) && u64::from(value) >> bits == 0;
        fits.then_some(Self { value, bits })
    }

    /// The number.
    pub fn value(self) -> u32 {
        self.value
    }

    /// How many bits it is written with.
    pub fn bits(self) -> u8 {
        self.bits
    }
}

impl fmt::Display for GnbId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{}", self.value, self.bits)
    }
}

/// A tracking area that a gNB serves, with what it broadcasts there (§9.2.6.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportedTa {
    /// The tracking area code.
    pub tac: Tac,
    /// PLMNs broadcast in the area.
    pub broadcast_plmns: Vec<PlmnSlices>,
}

/// A PLMN and the slices supported in it: an item of Broadcast PLMN List and of PLMN Support List.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlmnSlices {
    /// The PLMN.
    pub plmn: Plmn,
    /// Its slices.
    pub slices: Vec<SNssai>,
}

/// An item of Served GUAMI List (§9.2.6.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedGuami {
    /// The identity of the AMF.
    pub guami: Guami,
    /// The AMF that takes over when this one fails.
    pub backup_amf_name: Option<String>,
}

impl From<Guami> for ServedGuami {
    fn from(guami: Guami) -> Self {
        Self { guami, backup_amf_name: None }
    }
}

/// Paging DRX (§9.3.1.90): the paging cycle in radio frames of 10 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PagingDrx {
    /// 320 ms.
    V32,
    /// 640 ms.
    V64,
    /// 1280 ms.
    #[default]
    V128,
    /// 2560 ms.
    V256,
}

/// Time to Wait (§9.3.1.56) before a rejected set-up may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeToWait {
    /// 1 s.
    V1s,
    /// 2 s.
    V2s,
    /// 5 s.
    V5s,
    /// 10 s.
    V10s,
    /// 20 s.
    V20s,
    /// 60 s.
    V60s,
}

impl TimeToWait {
    /// The time in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::V1s => 1,
            Self::V2s => 2,
            Self::V5s => 5,
            Self::V10s => 10,
            Self::V20s => 20,
            Self::V60s => 60,
        }
    }
}

/// RRC Establishment Cause (§9.3.1.111).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the variants are the standard's own names")]
pub enum RrcEstablishmentCause {
    Emergency,
    HighPriorityAccess,
    MtAccess,
    #[default]
    MoSignalling,
    MoData,
    MoVoiceCall,
    MoVideoCall,
    MoSms,
    MpsPriorityAccess,
    McsPriorityAccess,
    NotAvailable,
    MoExceptionData,
}

/// User Location Information (§9.3.1.16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserLocation {
    /// The UE is in an NR cell.
    Nr {
        /// The cell.
        ncgi: Ncgi,
        /// The tracking area the cell belongs to.
        tai: Tai,
        /// When the location was true: NTP seconds (since 1900), high word.
        time_stamp: Option<u32>,
    },
    /// The UE is in an E-UTRA cell of an ng-eNB.
    Eutra {
        /// The PLMN of the cell identity.
        plmn: Plmn,
        /// The 28-bit E-UTRA cell identity.
        cell_id: u32,
        /// The tracking area the cell belongs to.
        tai: Tai,
    },
    /// The UE is behind a non-3GPP interworking function.
    N3iwf {
        /// The UE's own address.
        address: TransportAddress,
        /// Its UDP source port, when behind a NAT.
        port: u16,
    },
}

impl UserLocation {
    /// The tracking area, where the access has one.
    pub fn tai(&self) -> Option<Tai> {
        match self {
            Self::Nr { tai, .. } | Self::Eutra { tai, .. } => Some(*tai),
            Self::N3iwf { .. } => None,
        }
    }
}

/// Transport Layer Address (§9.3.2.4): an IPv4 address, an IPv6 address or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransportAddress {
    /// 32 bits on the wire.
    V4(Ipv4Addr),
    /// 128 bits on the wire.
    V6(Ipv6Addr),
    /// 160 bits on the wire, IPv4 first.
    V4V6(Ipv4Addr, Ipv6Addr),
}

impl TransportAddress {
    /// The address to send to: IPv4 where there is one.
    pub fn preferred(&self) -> IpAddr {
        match self {
            Self::V4(address) | Self::V4V6(address, _) => IpAddr::V4(*address),
            Self::V6(address) => IpAddr::V6(*address),
        }
    }
}

impl From<IpAddr> for TransportAddress {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address),
        }
    }
}

/// UP Transport Layer Information (§9.3.2.2): one end of a GTP-U tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GtpTunnel {
    /// Where the G-PDUs go, UDP port 2152.
    pub address: TransportAddress,
    /// The TEID they carry.
    pub teid: Teid,
}

/// UE Security Capabilities (§9.3.1.86), 16 bits each, first algorithm in the highest bit.
///
/// The NAS IE of the same name starts with algorithm 0 (always supported), NGAP's with algorithm 1:
/// [`from_nas`](Self::from_nas) shifts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UeSecurityCapabilities {
    /// NR encryption: bit 15 is 128-NEA1, bit 14 128-NEA2, bit 13 128-NEA3.
    pub nr_encryption: u16,
    /// NR integrity: bit 15 is 128-NIA1, bit 14 128-NIA2, bit 13 128-NIA3.
    pub nr_integrity: u16,
    /// E-UTRA encryption: bit 15 is 128-EEA1 …
    pub eutra_encryption: u16,
    /// E-UTRA integrity: bit 15 is 128-EIA1 …
    pub eutra_integrity: u16,
}

impl UeSecurityCapabilities {
    /// From the octets of the NAS IE (TS 24.501 §9.11.3.54), EEA and EIA being 0 when absent.
    pub fn from_nas(nea: u8, nia: u8, eea: u8, eia: u8) -> Self {
        let shift = |octet: u8| u16::from(octet << 1) << 8;
        Self {
            nr_encryption: shift(nea),
            nr_integrity: shift(nia),
            eutra_encryption: shift(eea),
            eutra_integrity: shift(eia),
        }
    }
}

/// UE NGAP IDs (§9.3.3.20): how a UE Context Release Command names its UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UeNgapIds {
    /// Both identities, whenever the AMF knows the gNB's.
    Pair(AmfUeNgapId, RanUeNgapId),
    /// The AMF's alone.
    Amf(AmfUeNgapId),
}

/// Reset Type (§9.2.6.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetType {
    /// Every UE-associated connection of the interface.
    NgInterface,
    /// These connections only; one side's identity is enough to name one.
    PartOfNgInterface(Vec<UeConnection>),
}

/// A UE-associated logical NG-connection in a reset (§9.3.3.25).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UeConnection {
    /// The AMF's identity, if the sender knows it.
    pub amf_ue_ngap_id: Option<AmfUeNgapId>,
    /// The gNB's identity, if the sender knows it.
    pub ran_ue_ngap_id: Option<RanUeNgapId>,
}

/// A PDU session to set up: item of PDU Session Resource Setup Request List, in either message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionSetupItem {
    /// The session.
    pub id: PduSessionId,
    /// NAS message for the UE that belongs to this session, if any.
    pub nas_pdu: Option<Bytes>,
    /// The slice of the session.
    pub s_nssai: SNssai,
    /// PDU Session Resource Setup Request Transfer, encoded.
    pub transfer: Bytes,
}

/// A PDU session to modify: item of PDU Session Resource Modify Request List.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionModifyItem {
    /// The session.
    pub id: PduSessionId,
    /// NAS message for the UE that belongs to this session, if any.
    pub nas_pdu: Option<Bytes>,
    /// PDU Session Resource Modify Request Transfer, encoded.
    pub transfer: Bytes,
}

/// A PDU session with its transfer: item of every other PDU session list. Which transfer it holds
/// follows from the list (a Setup Response list holds Setup Response Transfers, and so on).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionItem {
    /// The session.
    pub id: PduSessionId,
    /// The transfer, encoded.
    pub transfer: Bytes,
}

/// Criticality (§9.3.1.3 and §10.3.2): what a receiver does with something it does not comprehend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criticality {
    /// Reject the procedure.
    Reject,
    /// Carry on as if it were not there.
    Ignore,
    /// Carry on, and tell the sender.
    Notify,
}

/// Which of the three messages of a procedure (§9.3.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggeringMessage {
    /// The message that starts the procedure.
    InitiatingMessage,
    /// Its positive answer.
    SuccessfulOutcome,
    /// Its negative answer.
    UnsuccessfulOutcome,
}

/// Criticality Diagnostics (§9.3.1.3): which parts of a received message were at fault.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CriticalityDiagnostics {
    /// The procedure of the faulty message; in an Error Indication only.
    pub procedure_code: Option<u8>,
    /// Its direction; in an Error Indication only.
    pub triggering_message: Option<TriggeringMessage>,
    /// Its criticality; in an Error Indication only.
    pub procedure_criticality: Option<Criticality>,
    /// The IEs at fault, at most 256.
    pub ies: Vec<IeDiagnostics>,
}

/// One IE at fault (§9.3.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IeDiagnostics {
    /// The IE's identifier.
    pub ie_id: u16,
    /// Its criticality, as received, or as specified for one that is missing.
    pub criticality: Criticality,
    /// What is wrong with it.
    pub error: TypeOfError,
}

/// Type of Error (§9.3.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeOfError {
    /// The IE is unknown here, or its value is.
    NotUnderstood,
    /// The IE is mandatory and absent.
    Missing,
}

/// AMF Set ID of a rerouted message (§9.3.3.12), 10 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmfSetId(u16);

impl AmfSetId {
    /// `None` unless the value fits in 10 bits.
    pub fn new(value: u16) -> Option<Self> {
        (value < 1024).then_some(Self(value))
    }

    /// The number.
    pub fn value(self) -> u16 {
        self.0
    }
}

impl From<AmfId> for AmfSetId {
    fn from(id: AmfId) -> Self {
        Self(id.set())
    }
}
