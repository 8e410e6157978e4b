//! QoS rules and QoS flow descriptions (TS 24.501 §9.11.4.12, §9.11.4.13).

use std::net::{Ipv4Addr, Ipv6Addr};

use types::{BitRate, FiveQi, Qfi};

use crate::{
    codec::values::{Read, Reader, read_rate, write_rate},
    error::ValueError,
};

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

/// Reads a list of QoS rules (§9.11.4.13).
pub(crate) fn read_rules(octets: &[u8]) -> Read<Vec<QosRule>> {
    let mut reader = Reader(octets);
    let mut rules = Vec::new();
    while !reader.is_empty() {
        let id = reader.u8()?;
        let len = reader.u16()?;
        rules.push(QosRule::read(id, Reader(reader.take(len.into())?))?);
    }
    Ok(rules)
}

/// Writes a list of QoS rules.
pub(crate) fn write_rules(rules: &[QosRule]) -> Vec<u8> {
    let mut out = Vec::new();
    for rule in rules {
        let value = rule.write();
        out.push(rule.id);
        out.extend((value.len() as u16).to_be_bytes());
        out.extend(value);
    }
    out
}

impl QosRule {
    fn read(id: u8, mut reader: Reader<'_>) -> Read<Self> {
        let head = reader.u8()?;
        let operation = match head >> 5 {
            1 => RuleOperation::Create,
            2 => RuleOperation::Delete,
            3 => RuleOperation::ModifyAdd,
            4 => RuleOperation::ModifyReplace,
            5 => RuleOperation::ModifyDelete,
            6 => RuleOperation::ModifyKeep,
            _ => return Err(ValueError("has a reserved rule operation")),
        };
        let mut filters = Vec::new();
        for _ in 0..head & 0x0f {
            filters.push(PacketFilter::read(&mut reader, operation == RuleOperation::ModifyDelete)?);
        }
        let precedence = if reader.is_empty() { None } else { Some(reader.u8()?) };
        let last = if reader.is_empty() { None } else { Some(reader.u8()?) };
        let qfi = last.and_then(|octet| Qfi::new(octet & 0x3f).ok());
        let segregation = last.is_some_and(|octet| octet & 0x40 != 0);
        Ok(Self { id, operation, default: head & 0x10 != 0, filters, precedence, qfi, segregation })
    }

    fn write(&self) -> Vec<u8> {
        let operation = match self.operation {
            RuleOperation::Create => 1,
            RuleOperation::Delete => 2,
            RuleOperation::ModifyAdd => 3,
            RuleOperation::ModifyReplace => 4,
            RuleOperation::ModifyDelete => 5,
            RuleOperation::ModifyKeep => 6,
        };
        let filters = self.filters.iter().take(15);
        let mut out = vec![operation << 5 | u8::from(self.default) << 4 | filters.len() as u8];
        for filter in filters {
            filter.write(&mut out, self.operation == RuleOperation::ModifyDelete);
        }
        if let Some(precedence) = self.precedence {
            out.push(precedence);
            out.extend(self.qfi.map(|qfi| u8::from(self.segregation) << 6 | qfi.value()));
        }
        out
    }
}

impl PacketFilter {
    fn read(reader: &mut Reader<'_>, identifier_only: bool) -> Read<Self> {
        let head = reader.u8()?;
        let direction = match head >> 4 & 0x03 {
            // Where only identifiers are listed, the bits are spare.
            _ if identifier_only => FilterDirection::Bidirectional,
            1 => FilterDirection::Downlink,
            2 => FilterDirection::Uplink,
            _ => FilterDirection::Bidirectional,
        };
        let mut components = Vec::new();
        if !identifier_only {
            let len = reader.u8()?;
            let mut contents = Reader(reader.take(len.into())?);
            while !contents.is_empty() {
                components.push(FilterComponent::read(&mut contents)?);
            }
        }
        Ok(Self { id: head & 0x0f, direction, components })
    }

    fn write(&self, out: &mut Vec<u8>, identifier_only: bool) {
        if identifier_only {
            out.push(self.id & 0x0f);
            return;
        }
        let direction = match self.direction {
            FilterDirection::Downlink => 1,
            FilterDirection::Uplink => 2,
            FilterDirection::Bidirectional => 3,
        };
        let mut contents = Vec::new();
        self.components.iter().for_each(|component| component.write(&mut contents));
        out.extend([direction << 4 | self.id & 0x0f, contents.len().min(0xff) as u8]);
        out.extend(contents.into_iter().take(0xff));
    }
}

impl FilterComponent {
    fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let v4 = |reader: &mut Reader<'_>| reader.array::<4>().map(Ipv4Addr::from);
        let v6 = |reader: &mut Reader<'_>| {
            let address = reader.array::<16>().map(Ipv6Addr::from)?;
            let prefix = reader.u8()?;
            if prefix > 128 { Err(ValueError("has a prefix above 128")) } else { Ok((address, prefix)) }
        };
        Ok(match reader.u8()? {
            0x01 => Self::MatchAll,
            0x10 => Self::Ipv4Remote(v4(reader)?, v4(reader)?),
            0x11 => Self::Ipv4Local(v4(reader)?, v4(reader)?),
            0x21 => v6(reader).map(|(address, prefix)| Self::Ipv6Remote(address, prefix))?,
            0x23 => v6(reader).map(|(address, prefix)| Self::Ipv6Local(address, prefix))?,
            0x30 => Self::Protocol(reader.u8()?),
            0x40 => Self::LocalPort(reader.u16()?),
            0x41 => Self::LocalPortRange(reader.u16()?, reader.u16()?),
            0x50 => Self::RemotePort(reader.u16()?),
            0x51 => Self::RemotePortRange(reader.u16()?, reader.u16()?),
            0x60 => Self::SecurityParameterIndex(u32::from_be_bytes(reader.array()?)),
            0x70 => Self::TrafficClass(reader.u8()?, reader.u8()?),
            0x80 => {
                let [a, b, c] = reader.array()?;
                Self::FlowLabel(u32::from_be_bytes([0, a & 0x0f, b, c]))
            }
            0x81 => Self::DestinationMac(reader.array()?),
            0x82 => Self::SourceMac(reader.array()?),
            0x83 => Self::CTagVid(reader.u16()? & 0x0fff),
            0x84 => Self::STagVid(reader.u16()? & 0x0fff),
            0x85 => Self::CTagPcp(reader.u8()? & 0x0f),
            0x86 => Self::STagPcp(reader.u8()? & 0x0f),
            0x87 => Self::Ethertype(reader.u16()?),
            // Its length is not known, so nothing after it can be read.
            _ => return Err(ValueError("has a packet filter component of an unknown type")),
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u8, parts: &[&[u8]]| {
            out.push(kind);
            parts.iter().for_each(|part| out.extend(*part));
        };
        match self {
            Self::MatchAll => put(0x01, &[]),
            Self::Ipv4Remote(address, mask) => put(0x10, &[&address.octets(), &mask.octets()]),
            Self::Ipv4Local(address, mask) => put(0x11, &[&address.octets(), &mask.octets()]),
            Self::Ipv6Remote(address, prefix) => put(0x21, &[&address.octets(), &[*prefix]]),
            Self::Ipv6Local(address, prefix) => put(0x23, &[&address.octets(), &[*prefix]]),
            Self::Protocol(protocol) => put(0x30, &[&[*protocol]]),
            Self::LocalPort(port) => put(0x40, &[&port.to_be_bytes()]),
            Self::LocalPortRange(low, high) => put(0x41, &[&low.to_be_bytes(), &high.to_be_bytes()]),
            Self::RemotePort(port) => put(0x50, &[&port.to_be_bytes()]),
            Self::RemotePortRange(low, high) => put(0x51, &[&low.to_be_bytes(), &high.to_be_bytes()]),
            Self::SecurityParameterIndex(spi) => put(0x60, &[&spi.to_be_bytes()]),
            Self::TrafficClass(value, mask) => put(0x70, &[&[*value, *mask]]),
            Self::FlowLabel(label) => {
                let [_, a, b, c] = label.to_be_bytes();
                put(0x80, &[&[a & 0x0f, b, c]]);
            }
            Self::DestinationMac(address) => put(0x81, &[address]),
            Self::SourceMac(address) => put(0x82, &[address]),
            Self::CTagVid(vid) => put(0x83, &[&(vid & 0x0fff).to_be_bytes()]),
            Self::STagVid(vid) => put(0x84, &[&(vid & 0x0fff).to_be_bytes()]),
            Self::CTagPcp(pcp) => put(0x85, &[&[pcp & 0x0f]]),
            Self::STagPcp(pcp) => put(0x86, &[&[pcp & 0x0f]]),
            Self::Ethertype(ethertype) => put(0x87, &[&ethertype.to_be_bytes()]),
        }
    }
}

/// Reads a list of QoS flow descriptions (§9.11.4.12). Unknown parameters are skipped.
pub(crate) fn read_flows(octets: &[u8]) -> Read<Vec<QosFlowDescription>> {
    let mut reader = Reader(octets);
    let mut flows = Vec::new();
    while !reader.is_empty() {
        let qfi = Qfi::new(reader.u8()? & 0x3f).map_err(|_| ValueError("has a QFI above 63"))?;
        let operation = match reader.u8()? >> 5 {
            1 => FlowOperation::Create,
            2 => FlowOperation::Delete,
            3 => FlowOperation::Modify,
            _ => return Err(ValueError("has a reserved flow operation")),
        };
        let head = reader.u8()?;
        let mut parameters = Vec::new();
        for _ in 0..head & 0x3f {
            let id = reader.u8()?;
            let len = reader.u8()?;
            parameters.extend(FlowParameter::read(id, Reader(reader.take(len.into())?))?);
        }
        flows.push(QosFlowDescription { qfi, operation, replace: head & 0x40 != 0, parameters });
    }
    Ok(flows)
}

/// Writes a list of QoS flow descriptions.
pub(crate) fn write_flows(flows: &[QosFlowDescription]) -> Vec<u8> {
    let mut out = Vec::new();
    for flow in flows {
        let operation = match flow.operation {
            FlowOperation::Create => 1,
            FlowOperation::Delete => 2,
            FlowOperation::Modify => 3,
        };
        let parameters = flow.parameters.iter().take(0x3f);
        out.extend([flow.qfi.value(), operation << 5, u8::from(flow.replace) << 6 | parameters.len() as u8]);
        for parameter in parameters {
            let (id, contents) = parameter.write();
            out.extend([id, contents.len() as u8]);
            out.extend(contents);
        }
    }
    out
}

impl FlowParameter {
    fn read(id: u8, mut reader: Reader<'_>) -> Read<Option<Self>> {
        let rate = |reader: &mut Reader<'_>| Ok(read_rate(reader.u8()?, reader.u16()?));
        Ok(Some(match id {
            1 => Self::FiveQi(FiveQi(reader.u8()?)),
            2 => Self::GfbrUplink(rate(&mut reader)?),
            3 => Self::GfbrDownlink(rate(&mut reader)?),
            4 => Self::MfbrUplink(rate(&mut reader)?),
            5 => Self::MfbrDownlink(rate(&mut reader)?),
            6 => Self::AveragingWindow(reader.u16()?),
            7 => Self::EpsBearer(reader.u8()? >> 4),
            _ => return Ok(None),
        }))
    }

    fn write(&self) -> (u8, Vec<u8>) {
        match self {
            Self::FiveQi(five_qi) => (1, vec![five_qi.0]),
            Self::GfbrUplink(rate) => (2, write_rate(*rate).to_vec()),
            Self::GfbrDownlink(rate) => (3, write_rate(*rate).to_vec()),
            Self::MfbrUplink(rate) => (4, write_rate(*rate).to_vec()),
            Self::MfbrDownlink(rate) => (5, write_rate(*rate).to_vec()),
            Self::AveragingWindow(ms) => (6, ms.to_be_bytes().to_vec()),
            Self::EpsBearer(id) => (7, vec![id << 4]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_survives_and_unknown_ones_refuse_the_rule() {
        let v6 = "2001:db8::1".parse().unwrap();
        let components = vec![
            FilterComponent::Ipv4Remote([192, 0, 2, 1].into(), [255, 255, 255, 255].into()),
            FilterComponent::Ipv4Local([10, 45, 0, 2].into(), [255, 255, 0, 0].into()),
            FilterComponent::Ipv6Remote(v6, 64),
            FilterComponent::Ipv6Local(v6, 128),
            FilterComponent::Protocol(17),
            FilterComponent::LocalPort(53),
            FilterComponent::LocalPortRange(1, 2),
            FilterComponent::RemotePort(443),
            FilterComponent::RemotePortRange(3, 65535),
            FilterComponent::SecurityParameterIndex(0xdead_beef),
            FilterComponent::TrafficClass(0xb8, 0xfc),
            FilterComponent::FlowLabel(0xf_ffff),
            FilterComponent::DestinationMac([1; 6]),
            FilterComponent::SourceMac([2; 6]),
            FilterComponent::CTagVid(4095),
            FilterComponent::STagVid(1),
            FilterComponent::CTagPcp(15),
            FilterComponent::STagPcp(1),
            FilterComponent::Ethertype(0x0800),
        ];
        let filter = PacketFilter { id: 3, direction: FilterDirection::Uplink, components };
        let mut rule = QosRule::match_all(7, 10, Qfi::new(5).unwrap());
        rule.filters.push(filter);
        let octets = write_rules(&[rule.clone(), rule.clone()]);
        assert_eq!(read_rules(&octets).unwrap(), [rule.clone(), rule]);
        for len in 1..octets.len() / 2 {
            assert!(read_rules(&octets[..len]).is_err(), "{len} octets");
        }
        assert!(read_rules(&[1, 0, 6, 0x31, 0x31, 1, 0x99, 255, 1]).is_err());
        assert!(read_rules(&[1, 0, 1, 0x00]).is_err(), "a reserved operation");
    }

    #[test]
    fn spare_bits_of_a_filter_to_be_deleted_mean_nothing() {
        // Found by fuzzing: they were read as a direction, which is not written.
        let octets = [1, 0, 4, 0xa2, 0xf1, 0x12, 16];
        let rules = read_rules(&octets).unwrap();
        assert_eq!(rules[0].filters.len(), 2);
        assert_eq!(read_rules(&write_rules(&rules)).unwrap(), rules);
    }

    #[test]
    fn every_flow_parameter_survives_and_unknown_ones_are_skipped() {
        let rate = BitRate::from_kbps(64_000);
        let parameters = vec![
            FlowParameter::FiveQi(FiveQi(1)),
            FlowParameter::GfbrUplink(rate),
            FlowParameter::GfbrDownlink(rate),
            FlowParameter::MfbrUplink(rate),
            FlowParameter::MfbrDownlink(rate),
            FlowParameter::AveragingWindow(2000),
            FlowParameter::EpsBearer(5),
        ];
        let mut flow = QosFlowDescription::non_gbr(Qfi::new(2).unwrap(), FiveQi(1));
        flow.parameters = parameters;
        let octets = write_flows(std::slice::from_ref(&flow));
        assert_eq!(read_flows(&octets).unwrap(), [flow]);
        let unknown = [1, 0x20, 0x42, 0x77, 1, 0, 1, 1, 9];
        assert_eq!(read_flows(&unknown).unwrap()[0].five_qi(), Some(FiveQi(9)));
    }
}
