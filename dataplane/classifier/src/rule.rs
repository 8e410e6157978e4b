//! Keys, filters and rules.
//!
//! Everything is constructed through checks: a prefix longer than its address or a reversed port range is an
//! error, never a rule that silently means something else.

use std::net::IpAddr;

/// Why a filter could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// Prefix longer than the address.
    #[error("prefix length {length} exceeds the {bits} bits of the address")]
    PrefixLength {
        /// As given.
        length: u8,
        /// 32 or 128.
        bits: u8,
    },
    /// First port above the last.
    #[error("port range {0}-{1} is reversed")]
    PortRange(u16, u16),
    /// A flow label of more than 20 bits.
    #[error("flow label {0:#x} exceeds 20 bits")]
    FlowLabel(u32),
    /// A QFI of more than 6 bits.
    #[error("QFI {0} exceeds 63")]
    Qfi(u8),
}

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// An address as an integer, so that prefixes are masks: IPv4 in the upper 32 bits, IPv6 in all 128.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The fields of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    family: Family,
    source: u128,
    destination: u128,
    /// Transport protocol.
    pub protocol: u8,
    /// Source and destination port, where the protocol has ports and the packet shows them.
    pub ports: Option<(u16, u16)>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Security parameter index.
    pub spi: Option<u32>,
    /// IPv6 flow label; 0 for IPv4.
    pub flow_label: u32,
    /// QoS flow identifier of the PDU Session Container.
    pub qfi: Option<u8>,
}

impl Key {
    /// A key with addresses and protocol; other fields are absent. Of addresses of two families, the
    /// source decides, and the packet matches no filter on the destination.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8) -> Key {
        Key {
            family: Family::of(source),
            source: bits(source),
            destination: bits(destination),
            protocol,
            ports: None,
            tos: 0,
            spi: None,
            flow_label: 0,
            qfi: None,
        }
    }
}

/// An address prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    family: Family,
    value: u128,
    mask: u128,
}

impl Prefix {
    /// The prefix of `length` bits of `address`; bits behind it are ignored.
    pub fn new(address: IpAddr, length: u8) -> Result<Prefix, RuleError> {
        let width = if address.is_ipv4() { 32 } else { 128 };
        if length > width {
            return Err(RuleError::PrefixLength { length, bits: width });
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Ok(Prefix { family: Family::of(address), value: bits(address) & mask, mask })
    }

    /// Exactly this address.
    pub fn host(address: IpAddr) -> Prefix {
        let mask = if address.is_ipv4() { u128::from(u32::MAX) << 96 } else { u128::MAX };
        Prefix { family: Family::of(address), value: bits(address), mask }
    }

    #[inline]
    fn matches(&self, family: Family, address: u128) -> bool {
        self.family == family && address & self.mask == self.value
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// A range; an error when reversed.
    pub fn new(first: u16, last: u16) -> Result<PortRange, RuleError> {
        if first > last { Err(RuleError::PortRange(first, last)) } else { Ok(PortRange { first, last }) }
    }

    /// One port.
    pub fn single(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }

    #[inline]
    fn matches(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

/// A value of which only the bits of a mask count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Masked {
    value: u8,
    mask: u8,
}

impl Masked {
    /// Bits of `value` outside `mask` are ignored. Masks may have holes.
    pub fn new(value: u8, mask: u8) -> Masked {
        Masked { value: value & mask, mask }
    }

    #[inline]
    fn matches(&self, value: u8) -> bool {
        value & self.mask == self.value
    }
}

/// An IPv6 flow label of 20 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FlowLabel(u32);

impl FlowLabel {
    /// An error beyond 20 bits.
    pub fn new(label: u32) -> Result<FlowLabel, RuleError> {
        if label > 0x000F_FFFF { Err(RuleError::FlowLabel(label)) } else { Ok(FlowLabel(label)) }
    }
}

/// A QoS flow identifier of 6 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Qfi(u8);

impl Qfi {
    /// An error beyond 6 bits.
    pub fn new(qfi: u8) -> Result<Qfi, RuleError> {
        if qfi > 63 { Err(RuleError::Qfi(qfi)) } else { Ok(Qfi(qfi)) }
    }
}

/// What a rule selects: all fields that are set must match. The default selects every packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Filter {
    /// Source prefix.
    pub source: Option<Prefix>,
    /// Destination prefix.
    pub destination: Option<Prefix>,
    /// Transport protocol.
    pub protocol: Option<u8>,
    /// Source ports. A packet without ports does not match.
    pub source_ports: Option<PortRange>,
    /// Destination ports, likewise.
    pub destination_ports: Option<PortRange>,
    /// Type of service or traffic class.
    pub tos: Option<Masked>,
    /// Security parameter index. A packet without one does not match.
    pub spi: Option<u32>,
    /// IPv6 flow label. IPv4 packets do not match.
    pub flow_label: Option<FlowLabel>,
    /// QoS flow identifier. A packet without one does not match.
    pub qfi: Option<Qfi>,
}

impl Filter {
    /// Whether the filter selects every packet: then no key needs to be built.
    pub fn selects_all(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether it selects this packet.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && self.source.is_none_or(|prefix| prefix.matches(key.family, key.source))
            && self.destination.is_none_or(|prefix| prefix.matches(key.family, key.destination))
            && self.source_ports.is_none_or(|range| key.ports.is_some_and(|(port, _)| range.matches(port)))
            && self
                .destination_ports
                .is_none_or(|range| key.ports.is_some_and(|(_, port)| range.matches(port)))
            && self.tos.is_none_or(|tos| tos.matches(key.tos))
            && self.spi.is_none_or(|spi| key.spi == Some(spi))
            && self.flow_label.is_none_or(|label| key.family == Family::V6 && key.flow_label == label.0)
            && self.qfi.is_none_or(|qfi| key.qfi == Some(qfi.0))
    }
}

/// A filter with its place in the order and what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Unique in its classifier; the lower id wins among equal precedences.
    pub id: u32,
    /// The lower value wins.
    pub precedence: u32,
    /// What a match returns: the position of a PDR, for instance. Several rules may share it, as
    /// several SDF filters share a PDR.
    pub value: u32,
    /// What it selects.
    pub filter: Filter,
}
