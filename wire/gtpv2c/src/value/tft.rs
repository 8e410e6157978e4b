//! Traffic flow template (TS 24.008 §10.5.6.12): which packets a bearer carries. The IEs Bearer TFT and TAD hold its octets.
//!
//! ```text
//! octet 1: operation (3) · E · number of packet filters (4)   packet filters or their numbers   [parameters when E]
//! packet filter: spare (2) · direction (2) · number (4)   precedence (1)   length (1)   components: type (1) · value
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::codec::{Cursor, Fault, Octets};
use crate::value::CauseValue;

/// Most packet filters in a template: the number has 4 bits.
pub const MAX_FILTERS: usize = 15;

/// Why a template was refused or cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TftError {
    /// The operation or the list around the filters is broken.
    #[error("traffic flow template is malformed")]
    Operation,
    /// A packet filter is broken.
    #[error("packet filter {0} is malformed")]
    Filter(u8),
    /// More filters or longer ones than the template can hold.
    #[error("traffic flow template is too long")]
    TooLong,
}

impl TftError {
    /// The cause for a refusal of a received template.
    pub fn cause(self) -> CauseValue {
        match self {
            Self::Operation | Self::TooLong => CauseValue::TFT_SYNTACTIC_ERROR,
            Self::Filter(_) => CauseValue::FILTER_SYNTACTIC_ERRORS,
        }
    }
}

/// A traffic flow template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tft {
    /// What is to be done with the bearer's filters.
    pub operation: Operation,
    /// Parameters: identifiers of authorisation and flows.
    pub parameters: Vec<Parameter>,
}

/// Operation of a [`Tft`] with what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Operation {
    /// Ignore this template.
    #[default]
    Ignore,
    /// New template with these filters.
    Create(Vec<PacketFilter>),
    /// Delete the whole template.
    Delete,
    /// Add these filters.
    Add(Vec<PacketFilter>),
    /// Replace the filters with the same numbers.
    Replace(Vec<PacketFilter>),
    /// Delete the filters with these numbers.
    DeleteFilters(Vec<u8>),
    /// Nothing changes; there are only parameters.
    NoOperation,
}

/// A parameter, kept as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// 1 authorisation token, 2 flow identifier, 3 packet filter identifiers.
    pub identifier: u8,
    /// Content, 255 octets at most.
    pub content: Vec<u8>,
}

/// Packet filter: it matches a packet that has all components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketFilter {
    /// Number in the template, 4 bits.
    pub id: u8,
    /// Direction.
    pub direction: Direction,
    /// Evaluation precedence: the lowest value is looked at first.
    pub precedence: u8,
    /// What a packet must have.
    pub components: Vec<Component>,
}

/// Which packets a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Direction {
    /// As before Release 7: an uplink filter, from an old UE.
    PreRelease7 = 0,
    /// Downlink only.
    Downlink = 1,
    /// Uplink only.
    Uplink = 2,
    /// Both.
    #[default]
    Bidirectional = 3,
}

impl Direction {
    fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::PreRelease7,
            1 => Self::Downlink,
            2 => Self::Uplink,
            _ => Self::Bidirectional,
        }
    }
}

/// One condition. Local is the UE's side, remote the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Component {
    /// Remote IPv4 address.
    Ipv4Remote {
        /// Address.
        address: Ipv4Addr,
        /// Bits that count.
        mask: Ipv4Addr,
    },
    /// Local IPv4 address.
    Ipv4Local {
        /// Address.
        address: Ipv4Addr,
        /// Bits that count.
        mask: Ipv4Addr,
    },
    /// Remote IPv6 address, with a mask.
    Ipv6RemoteMask {
        /// Address.
        address: Ipv6Addr,
        /// Bits that count.
        mask: Ipv6Addr,
    },
    /// Remote IPv6 prefix.
    Ipv6Remote {
        /// Address.
        address: Ipv6Addr,
        /// Length of the prefix in bits, 128 at most.
        prefix_length: u8,
    },
    /// Local IPv6 prefix.
    Ipv6Local {
        /// Address.
        address: Ipv6Addr,
        /// Length of the prefix in bits, 128 at most.
        prefix_length: u8,
    },
    /// IPv4 protocol, or IPv6 next header.
    Protocol(u8),
    /// Local port.
    LocalPort(u16),
    /// Local ports from the first to the second one.
    LocalPorts(u16, u16),
    /// Remote port.
    RemotePort(u16),
    /// Remote ports from the first to the second one.
    RemotePorts(u16, u16),
    /// Security parameter index of IPsec.
    SecurityParameterIndex(u32),
    /// Type of service, or traffic class.
    TypeOfService {
        /// Value.
        value: u8,
        /// Bits that count.
        mask: u8,
    },
    /// IPv6 flow label, 20 bits.
    FlowLabel(u32),
}

impl Tft {
    /// Reads a template. Two filters with the same number are a broken filter; what filters mean together is not judged.
    pub fn decode(octets: &[u8]) -> Result<Self, TftError> {
        let mut cursor = Cursor(octets);
        let first = cursor.u8().map_err(|_| TftError::Operation)?;
        let count = first & 0x0f;
        let operation = match first >> 5 {
            0 => return Ok(Self::default()),
            1 => Operation::Create(filters(&mut cursor, count)?),
            2 if count == 0 => Operation::Delete,
            3 => Operation::Add(filters(&mut cursor, count)?),
            4 => Operation::Replace(filters(&mut cursor, count)?),
            5 => Operation::DeleteFilters(numbers(&mut cursor, count)?),
            6 if count == 0 => Operation::NoOperation,
            _ => return Err(TftError::Operation),
        };
        let mut parameters = Vec::new();
        if first & 0x10 != 0 {
            while !cursor.0.is_empty() {
                parameters.push(parameter(&mut cursor).map_err(|_| TftError::Operation)?);
            }
        }
        Ok(Self { operation, parameters })
    }

    /// Writes the template, for the IEs Bearer TFT and TAD.
    pub fn encode(&self) -> Result<Octets, TftError> {
        let (code, count) = match &self.operation {
            Operation::Ignore => (0, 0),
            Operation::Create(filters) => (1, filters.len()),
            Operation::Delete => (2, 0),
            Operation::Add(filters) => (3, filters.len()),
            Operation::Replace(filters) => (4, filters.len()),
            Operation::DeleteFilters(numbers) => (5, numbers.len()),
            Operation::NoOperation => (6, 0),
        };
        if count > MAX_FILTERS {
            return Err(TftError::TooLong);
        }
        let mut out = vec![code << 5 | u8::from(!self.parameters.is_empty()) << 4 | count as u8];
        match &self.operation {
            Operation::Create(filters) | Operation::Add(filters) | Operation::Replace(filters) => {
                for filter in filters {
                    filter.encode(&mut out)?;
                }
            }
            Operation::DeleteFilters(numbers) => out.extend(numbers.iter().map(|number| number & 0x0f)),
            Operation::Ignore | Operation::Delete | Operation::NoOperation => {}
        }
        for parameter in &self.parameters {
            let length = u8::try_from(parameter.content.len()).map_err(|_| TftError::TooLong)?;
            out.extend_from_slice(&[parameter.identifier, length]);
            out.extend_from_slice(&parameter.content);
        }
        Ok(Octets(out))
    }
}

/// A list of filters; there must be at least one.
fn filters(cursor: &mut Cursor<'_>, count: u8) -> Result<Vec<PacketFilter>, TftError> {
    if count == 0 {
        return Err(TftError::Operation);
    }
    let mut filters: Vec<PacketFilter> = Vec::new();
    for _ in 0..count {
        let [first, precedence, length] = cursor.array().map_err(|_| TftError::Operation)?;
        let id = first & 0x0f;
        let content = cursor.take(length.into()).map_err(|_| TftError::Operation)?;
        let components = components(content).map_err(|_| TftError::Filter(id))?;
        if filters.iter().any(|filter| filter.id == id) {
            return Err(TftError::Filter(id));
        }
        filters.push(PacketFilter {
            id,
            direction: Direction::from_bits(first >> 4),
            precedence,
            components,
        });
    }
    Ok(filters)
}

fn numbers(cursor: &mut Cursor<'_>, count: u8) -> Result<Vec<u8>, TftError> {
    if count == 0 {
        return Err(TftError::Operation);
    }
    let numbers = cursor.take(count.into()).map_err(|_| TftError::Operation)?;
    Ok(numbers.iter().map(|number| number & 0x0f).collect())
}

fn parameter(cursor: &mut Cursor<'_>) -> Result<Parameter, Fault> {
    let [identifier, length] = cursor.array()?;
    Ok(Parameter { identifier, content: cursor.take(length.into())?.to_vec() })
}

fn components(content: &[u8]) -> Result<Vec<Component>, Fault> {
    let mut cursor = Cursor(content);
    let mut components = Vec::new();
    while !cursor.0.is_empty() {
        components.push(Component::decode(&mut cursor)?);
    }
    Ok(components)
}

impl PacketFilter {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), TftError> {
        out.extend_from_slice(&[(self.direction as u8) << 4 | self.id & 0x0f, self.precedence, 0]);
        let start = out.len();
        for component in &self.components {
            component.encode(out);
        }
        let length = u8::try_from(out.len() - start).map_err(|_| TftError::TooLong)?;
        out[start - 1] = length;
        Ok(())
    }
}

impl Component {
    fn decode(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let v4 = |cursor: &mut Cursor<'_>| cursor.array().map(Ipv4Addr::from_octets);
        let v6 = |cursor: &mut Cursor<'_>| cursor.array().map(Ipv6Addr::from_octets);
        let prefix = |cursor: &mut Cursor<'_>| match cursor.u8()? {
            length @ 0..=128 => Ok(length),
            _ => Err(Fault::Incorrect),
        };
        let ports = |cursor: &mut Cursor<'_>| match (cursor.u16()?, cursor.u16()?) {
            (low, high) if low <= high => Ok((low, high)),
            _ => Err(Fault::Incorrect),
        };
        Ok(match cursor.u8()? {
            0x10 => Self::Ipv4Remote { address: v4(cursor)?, mask: v4(cursor)? },
            0x11 => Self::Ipv4Local { address: v4(cursor)?, mask: v4(cursor)? },
            0x20 => Self::Ipv6RemoteMask { address: v6(cursor)?, mask: v6(cursor)? },
            0x21 => Self::Ipv6Remote { address: v6(cursor)?, prefix_length: prefix(cursor)? },
            0x23 => Self::Ipv6Local { address: v6(cursor)?, prefix_length: prefix(cursor)? },
            0x30 => Self::Protocol(cursor.u8()?),
            0x40 => Self::LocalPort(cursor.u16()?),
            0x41 => ports(cursor).map(|(low, high)| Self::LocalPorts(low, high))?,
            0x50 => Self::RemotePort(cursor.u16()?),
            0x51 => ports(cursor).map(|(low, high)| Self::RemotePorts(low, high))?,
            0x60 => Self::SecurityParameterIndex(cursor.u32()?),
            0x70 => Self::TypeOfService { value: cursor.u8()?, mask: cursor.u8()? },
            0x80 => {
                let [a, b, c] = cursor.array()?;
                Self::FlowLabel(u32::from_be_bytes([0, a & 0x0f, b, c]))
            }
            // The length of an unknown component is not known either.
            _ => return Err(Fault::Incorrect),
        })
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Ipv4Remote { address, mask } => put(out, 0x10, &[&address.octets(), &mask.octets()]),
            Self::Ipv4Local { address, mask } => put(out, 0x11, &[&address.octets(), &mask.octets()]),
            Self::Ipv6RemoteMask { address, mask } => put(out, 0x20, &[&address.octets(), &mask.octets()]),
            Self::Ipv6Remote { address, prefix_length } => {
                put(out, 0x21, &[&address.octets(), &[prefix_length]]);
            }
            Self::Ipv6Local { address, prefix_length } => {
                put(out, 0x23, &[&address.octets(), &[prefix_length]]);
            }
            Self::Protocol(protocol) => put(out, 0x30, &[&[protocol]]),
            Self::LocalPort(port) => put(out, 0x40, &[&port.to_be_bytes()]),
            Self::LocalPorts(low, high) => put(out, 0x41, &[&low.to_be_bytes(), &high.to_be_bytes()]),
            Self::RemotePort(port) => put(out, 0x50, &[&port.to_be_bytes()]),
            Self::RemotePorts(low, high) => put(out, 0x51, &[&low.to_be_bytes(), &high.to_be_bytes()]),
            Self::SecurityParameterIndex(index) => put(out, 0x60, &[&index.to_be_bytes()]),
            Self::TypeOfService { value, mask } => put(out, 0x70, &[&[value, mask]]),
            Self::FlowLabel(label) => put(out, 0x80, &[&(label & 0x000f_ffff).to_be_bytes()[1..]]),
        }
    }
}

fn put(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    out.push(kind);
    out.extend(parts.iter().copied().flatten());
}
