//! Leaf IEs: identifiers, flags and enumerations here, structured values in the submodules.

mod address;
mod filter;
mod forwarding;
mod measurement;
mod node;

pub use address::*;
pub use filter::*;
pub use forwarding::*;
pub use measurement::*;
pub use node::*;

use crate::codec::{enumerated, flags, integers};

integers! {
    /// PDR ID, unique in its session (§8.2.36).
    PdrId(u16);
    /// MAR ID (§8.2.124).
    MarId(u16);
    /// FAR ID (§8.2.74); the top bit marks one predefined in the UP function.
    FarId(u32);
    /// QER ID (§8.2.75).
    QerId(u32);
    /// URR ID (§8.2.54).
    UrrId(u32);
    /// BAR ID (§8.2.57).
    BarId(u8);
    /// Traffic endpoint ID (§8.2.92).
    TrafficEndpointId(u8);
    /// Precedence of a PDR: the lowest value is looked at first (§8.2.11).
    Precedence(u32);
    /// QER correlation ID (§8.2.10).
    QerCorrelationId(u32);
    /// Sequence number of a usage report in its URR (§8.2.71).
    UrSeqn(u32);
    /// Correlates a query with its reports (§8.2.90).
    QueryUrrReference(u32);
    /// Orders load and overload control information of one sender (§8.2.33).
    ControlSequence(u32);
    /// Load or reduction in per cent, 0 to 100 (§8.2.34).
    Metric(u8);
    /// Length in seconds (time thresholds, quotas, inactivity, measurement periods, durations).
    Seconds(u32);
    /// Length in milliseconds (averaging window).
    Milliseconds(u32);
    /// Seconds since 1900-01-01 UTC, as in NTP (recovery time stamp, event times).
    NtpSeconds(u32);
    /// Number of events (event threshold, event quota).
    Events(u32);
    /// Type of the IE that made a request fail (§8.2.22).
    OffendingIe(u16);
    /// EtherType (§8.2.95).
    Ethertype(u16);
    /// Ethernet filter ID (§8.2.97).
    EthernetFilterId(u32);
    /// Number of packets suggested for buffering (§8.2.99).
    PacketCount(u8);
    /// Downlink data notification delay in units of 50 ms (§8.2.28).
    NotificationDelay(u8);
    /// Number of reports (§8.2.133).
    ReportCount(u16);
    /// 3GPP interface type (§8.2.118).
    InterfaceType(u8);
    /// Paging policy indicator, 3 bits (§8.2.116).
    PagingPolicyIndicator(u8);
    /// Framed-Routing (§8.2.110).
    FramedRouting(u32);
    /// Cause of a response (§8.2.1).
    Cause(u8);
}

impl NtpSeconds {
    /// Seconds from the NTP epoch (1900) to the Unix epoch (1970).
    pub const UNIX_OFFSET: u64 = 2_208_988_800;

    /// From seconds since the Unix epoch; wraps in 2036 as the field does.
    pub fn from_unix(seconds: u64) -> Self {
        Self(seconds.wrapping_add(Self::UNIX_OFFSET) as u32)
    }
}

impl InterfaceType {
    /// S1-U.
    pub const S1_U: Self = Self(0);
    /// S5/S8-U.
    pub const S5S8_U: Self = Self(1);
    /// SGi.
    pub const SGI: Self = Self(16);
    /// N3, 3GPP access.
    pub const N3_3GPP_ACCESS: Self = Self(11);
    /// N6.
    pub const N6: Self = Self(17);
}

impl Cause {
    /// Request accepted.
    pub const ACCEPTED: Self = Self(1);
    /// More usage reports to send.
    pub const MORE_USAGE_REPORTS: Self = Self(2);
    /// Request rejected, reason not specified.
    pub const REJECTED: Self = Self(64);
    /// Session context not found.
    pub const SESSION_NOT_FOUND: Self = Self(65);
    /// Mandatory IE missing.
    pub const MANDATORY_IE_MISSING: Self = Self(66);
    /// Conditional IE missing.
    pub const CONDITIONAL_IE_MISSING: Self = Self(67);
    /// Invalid length.
    pub const INVALID_LENGTH: Self = Self(68);
    /// Mandatory IE incorrect.
    pub const MANDATORY_IE_INCORRECT: Self = Self(69);
    /// Invalid forwarding policy.
    pub const INVALID_FORWARDING_POLICY: Self = Self(70);
    /// Invalid F-TEID allocation option.
    pub const INVALID_F_TEID_ALLOCATION: Self = Self(71);
    /// No established PFCP association.
    pub const NO_ASSOCIATION: Self = Self(72);
    /// Rule creation or modification failure; the response carries the failed rule.
    pub const RULE_FAILURE: Self = Self(73);
    /// PFCP entity in congestion.
    pub const CONGESTION: Self = Self(74);
    /// No resources available.
    pub const NO_RESOURCES: Self = Self(75);
    /// Service not supported.
    pub const SERVICE_NOT_SUPPORTED: Self = Self(76);
    /// System failure.
    pub const SYSTEM_FAILURE: Self = Self(77);
    /// Redirection requested.
    pub const REDIRECTION_REQUESTED: Self = Self(78);
    /// All dynamic addresses are occupied.
    pub const ADDRESSES_OCCUPIED: Self = Self(79);
    /// Unknown predefined rule.
    pub const UNKNOWN_PREDEFINED_RULE: Self = Self(80);
    /// Unknown application ID.
    pub const UNKNOWN_APPLICATION_ID: Self = Self(81);

    /// Whether the request was accepted.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::ACCEPTED | Self::MORE_USAGE_REPORTS)
    }
}

enumerated! {
    /// Where a packet comes from (§8.2.2).
    SourceInterface(mask 0x0f) { #[default] Access = 0, Core = 1, SgiLan = 2, CpFunction = 3, FiveGvnInternal = 4 }
    /// Where a packet goes to (§8.2.24).
    DestinationInterface(mask 0x0f) {
        #[default] Access = 0, Core = 1, SgiLan = 2, CpFunction = 3, LiFunction = 4, FiveGvnInternal = 5,
    }
    /// PDN type (§8.2.79).
    PdnType(mask 0x07) { #[default] Ipv4 = 1, Ipv6 = 2, Ipv4v6 = 3, NonIp = 4, Ethernet = 5 }
    /// Gate in one direction; see [`GateStatus`].
    Gate(mask 0x03) { #[default] Open = 0, Closed = 1 }
    /// Kind of header to enrich (§8.2.67).
    HeaderType(mask 0x1f) { #[default] Http = 0 }
}

flags! {
    /// What to do with a packet (§8.2.26).
    ApplyAction(min 1) {
        DROP = 0x01; FORW = 0x02; BUFF = 0x04; NOCP = 0x08; DUPL = 0x10; IPMA = 0x20; IPMD = 0x40; DFRT = 0x80;
        EDRT = 0x100; BDPN = 0x200; DDPN = 0x400; FSSM = 0x800; MBSU = 0x1000;
    }
    /// When a URR reports (§8.2.19).
    ReportingTriggers(min 2) {
        PERIO = 0x01; VOLTH = 0x02; TIMTH = 0x04; QUHTI = 0x08; START = 0x10; STOPT = 0x20; DROTH = 0x40; LIUSA = 0x80;
        VOLQU = 0x100; TIMQU = 0x200; ENVCL = 0x400; MACAR = 0x800; EVETH = 0x1000; EVEQU = 0x2000; IPMJL = 0x4000;
        QUVTI = 0x8000; REEMR = 0x1_0000; UPINT = 0x2_0000;
    }
    /// Why a usage report was made (§8.2.41).
    UsageReportTrigger(min 2) {
        PERIO = 0x01; VOLTH = 0x02; TIMTH = 0x04; QUHTI = 0x08; START = 0x10; STOPT = 0x20; DROTH = 0x40; IMMER = 0x80;
        VOLQU = 0x100; TIMQU = 0x200; LIUSA = 0x400; TERMR = 0x800; MONIT = 0x1000; ENVCL = 0x2000; MACAR = 0x4000;
        EVETH = 0x8000; EVEQU = 0x1_0000; TEBUR = 0x2_0000; IPMJL = 0x4_0000; QUVTI = 0x8_0000; EMRRE = 0x10_0000;
        UPINT = 0x20_0000;
    }
    /// What a session report reports (§8.2.21).
    ReportType(min 1) { DLDR = 0x01; USAR = 0x02; ERIR = 0x04; UPIR = 0x08; TMIR = 0x10; SESR = 0x20; UISR = 0x40; }
    /// What a node report reports (§8.2.69).
    NodeReportType(min 1) { UPFR = 0x01; UPRR = 0x02; CKDR = 0x04; GPQR = 0x08; PURR = 0x10; VSR = 0x20; }
    /// OCI-Flags (§8.2.76).
    OciFlags(min 1) { AOCI = 0x01; }
    /// What a URR measures (§8.2.40).
    MeasurementMethod(min 1) { DURAT = 0x01; VOLUM = 0x02; EVENT = 0x04; }
    /// How a URR measures (§8.2.68).
    MeasurementInformation(min 1) {
        MBQE = 0x01; INAM = 0x02; RADI = 0x04; ISTM = 0x08; MNOP = 0x10; SSPOC = 0x20; ASPOC = 0x40; CIAM = 0x80;
    }
    /// Which part of the traffic a report covers (§8.2.60).
    UsageInformation(min 1) { BEF = 0x01; AFT = 0x02; UAE = 0x04; UBE = 0x08; }
    /// PFCPSMReq-Flags (§8.2.29): drop buffered, send End Marker, query all URRs.
    SmReqFlags(min 1) { DROBU = 0x01; SNDEM = 0x02; QAURR = 0x04; }
    /// PFCPSRRsp-Flags (§8.2.30).
    SrRspFlags(min 1) { DROBU = 0x01; }
    /// PFCPSRReq-Flags (§8.2.113): the session was deleted in the UP function.
    SrReqFlags(min 1) { PSDBU = 0x01; }
    /// PFCPSEReq-Flags (§8.2.124): restoration of a session.
    SeReqFlags(min 1) { RESTI = 0x01; SUMPC = 0x02; }
    /// PFCPASReq-Flags (§8.2.179).
    AsReqFlags(min 1) { UUPSI = 0x01; }
    /// PFCPASRsp-Flags (§8.2.135).
    AsRspFlags(min 1) { PSREI = 0x01; UUPSI = 0x02; }
    /// PFCPAUReq-Flags (§8.2.114).
    AuReqFlags(min 1) { PARPS = 0x01; }
    /// PFCP Association Release Request (§8.2.77).
    AssociationRelease(min 1) { SARR = 0x01; URSS = 0x02; }
    /// Reflective QoS indication (§8.2.88).
    Rqi(min 1) { RQI = 0x01; }
    /// Ethernet filter properties (§8.2.98).
    EthernetFilterProperties(min 1) { BIDE = 0x01; }
    /// Ethernet PDU session information (§8.2.102).
    EthernetPduSessionInformation(min 1) { ETHI = 0x01; }
    /// Proxying (§8.2.96).
    Proxying(min 1) { ARP = 0x01; INS = 0x02; }
    /// What the UP function can do (§8.2.25).
    UpFunctionFeatures(min 2) {
        BUCP = 0x01; DDND = 0x02; DLBD = 0x04; TRST = 0x08; FTUP = 0x10; PFDM = 0x20; HEEU = 0x40; TREU = 0x80;
        EMPU = 0x100; PDIU = 0x200; UDBC = 0x400; QUOAC = 0x800; TRACE = 0x1000; FRRT = 0x2000; PFDE = 0x4000;
        EPFAR = 0x8000; DPDRA = 0x1_0000; ADPDP = 0x2_0000; UEIP = 0x4_0000; SSET = 0x8_0000; MNOP = 0x10_0000;
        MTE = 0x20_0000; BUNDL = 0x40_0000; GCOM = 0x80_0000; MPAS = 0x100_0000; RTTL = 0x200_0000; VTIME = 0x400_0000;
        NORP = 0x800_0000; IPTV = 0x1000_0000; IP6PL = 0x2000_0000; TSCU = 0x4000_0000; MPTCP = 0x8000_0000;
    }
    /// What the CP function can do (§8.2.58).
    CpFunctionFeatures(min 1) {
        LOAD = 0x01; OVRL = 0x02; EPFAR = 0x04; SSET = 0x08; BUNDL = 0x10; MPAS = 0x20; ARDR = 0x40; UIAUR = 0x80;
        PSUCC = 0x100; RPGUR = 0x200;
    }
}
