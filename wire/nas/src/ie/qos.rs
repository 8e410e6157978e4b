//! QoS rules and QoS flow descriptions (TS 24.501 §9.11.4.12, §9.11.4.13).

use std::net::{Ipv4Addr, Ipv6Addr};

use types::{BitRate, FiveQi, Qfi};

/// What a QoS rule in a message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleOperation {
    /// Create a new rule.
    Create,
    /// Delete the rule.
    Delete,
    /// Modify it and add packet filters.
    ModifyAdd,
    /// Modify it and replace all packet filters.
    ModifyReplace,
    /// Modify it and delete packet filters (only their identifiers are given).
    ModifyDelete,
    /// Modify it, leave the packet filters.
    ModifyKeep,
}

/// A QoS rule: which packets take which flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosRule {
    /// QoS rule identifier; 0 only in requests.
    pub id: u8,
    /// What to do with it.
    pub operation: RuleOperation,
    /// The default rule of the session (DQR).
    pub default: bool,
    /// Packet filters, at most 15.
    pub filters: Vec<PacketFilter>,
    /// Precedence, lower first; `None` when the rule is deleted or keeps it.
    pub precedence: Option<u8>,
    /// Flow the packets take; `None` when the rule is deleted or keeps it.
    pub qfi: Option<Qfi>,
    /// Segregation requested by the UE.
    pub segregation: bool,
}

impl QosRule {
    /// The default rule that sends everything to `qfi` (TS 23.501 §5.7.1.1): one match-all filter both ways.
    pub fn match_all(id: u8, precedence: u8, qfi: Qfi) -> Self {
        let direction = FilterDirection::Bidirectional;
        let filter = PacketFilter { id: 1, direction, components: vec![FilterComponent::MatchAll] };
        Self {
            id,
            operation: RuleOperation::Create,
            default: true,
            filters: vec![filter],
            precedence: Some(precedence),
            qfi: Some(qfi),
            segregation: false,
        }
    }
}

/// Which way a packet filter looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDirection {
    /// Packets to the UE.
    Downlink,
    /// Packets from the UE.
    Uplink,
    /// Both.
    Bidirectional,
}

/// One packet filter: every component must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketFilter {
    /// Packet filter identifier, 0…15.
    pub id: u8,
    /// Which packets it looks at.
    pub direction: FilterDirection,
    /// Components; empty only where a filter is deleted.
    pub components: Vec<FilterComponent>,
}

/// A condition of a packet filter (TS 24.501 table 9.11.4.13.1). "Local" is the UE's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterComponent {
    /// Every packet.
    MatchAll,
    /// Remote IPv4 address and mask.
    Ipv4Remote(Ipv4Addr, Ipv4Addr),
    /// Local IPv4 address and mask.
    Ipv4Local(Ipv4Addr, Ipv4Addr),
    /// Remote IPv6 address and prefix length.
    Ipv6Remote(Ipv6Addr, u8),
    /// Local IPv6 address and prefix length.
    Ipv6Local(Ipv6Addr, u8),
    /// Protocol number or next header.
    Protocol(u8),
    /// Local port.
    LocalPort(u16),
    /// Local ports, both ends included.
    LocalPortRange(u16, u16),
    /// Remote port.
    RemotePort(u16),
    /// Remote ports, both ends included.
    RemotePortRange(u16, u16),
    /// IPsec security parameter index.
    SecurityParameterIndex(u32),
    /// Type of service or traffic class, and mask.
    TrafficClass(u8, u8),
    /// IPv6 flow label, 20 bits.
    FlowLabel(u32),
    /// Destination MAC address.
    DestinationMac([u8; 6]),
    /// Source MAC address.
    SourceMac([u8; 6]),
    /// 802.1Q C-TAG VID, 12 bits.
    CTagVid(u16),
    /// 802.1Q S-TAG VID, 12 bits.
    STagVid(u16),
    /// 802.1Q C-TAG PCP and DEI, 4 bits.
    CTagPcp(u8),
    /// 802.1Q S-TAG PCP and DEI, 4 bits.
    STagPcp(u8),
    /// Ethertype.
    Ethertype(u16),
}

/// What a QoS flow description in a message does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowOperation {
    /// Create a new description.
    Create,
    /// Delete it.
    Delete,
    /// Modify it.
    Modify,
}

/// Description of a QoS flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosFlowDescription {
    /// The flow.
    pub qfi: Qfi,
    /// What to do.
    pub operation: FlowOperation,
    /// On modification: replace all parameters (true) or extend them. True on creation with parameters.
    pub replace: bool,
    /// Parameters, at most 63.
    pub parameters: Vec<FlowParameter>,
}

impl QosFlowDescription {
    /// A new flow with a 5QI alone, as for every non-GBR flow.
    pub fn non_gbr(qfi: Qfi, five_qi: FiveQi) -> Self {
        let parameters = vec![FlowParameter::FiveQi(five_qi)];
        Self { qfi, operation: FlowOperation::Create, replace: true, parameters }
    }

    /// The 5QI among the parameters.
    pub fn five_qi(&self) -> Option<FiveQi> {
        self.parameters.iter().find_map(|parameter| match parameter {
            FlowParameter::FiveQi(five_qi) => Some(*five_qi),
            _ => None,
        })
    }
}

/// A parameter of a QoS flow (TS 24.501 table 9.11.4.12.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlowParameter {
    /// 5QI.
    FiveQi(FiveQi),
    /// Guaranteed flow bit rate from the UE.
    GfbrUplink(BitRate),
    /// Guaranteed flow bit rate to the UE.
    GfbrDownlink(BitRate),
    /// Maximum flow bit rate from the UE.
    MfbrUplink(BitRate),
    /// Maximum flow bit rate to the UE.
    MfbrDownlink(BitRate),
    /// Averaging window, milliseconds.
    AveragingWindow(u16),
    /// EPS bearer identity, for interworking.
    EpsBearer(u8),
}
