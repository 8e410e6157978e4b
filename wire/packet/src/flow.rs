//! What rules select user packets by: addresses, ports, ToS, SPI, flow label (TS 29.244 §8.2.5).

use std::net::IpAddr;

use crate::{ParseError, be16, be32, ipv4, ipv6, protocol};

/// The selectable fields of one IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol, behind IPv6 extension headers.
    pub protocol: u8,
    /// Source and destination port; none for other protocols and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Security parameter index of ESP or AH.
    pub spi: Option<u32>,
    /// IPv6 flow label; 0 in IPv4.
    pub flow_label: u32,
    /// Length of the IP packet without padding.
    pub length: usize,
    /// Which part of a packet this is, when it is a fragment and not all of one.
    pub fragment: Option<Fragment>,
}

/// A fragment of a packet (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fragment {
    /// Tells packets of the same addresses (in IPv4 also of the same protocol) apart.
    pub identification: u32,
    /// Where in the packet's payload this part begins, octets.
    pub offset: usize,
    /// Octets of the payload that are here.
    pub length: usize,
    /// Whether more follows behind this part.
    pub more: bool,
}

impl Flow {
    /// Reads an IP packet of either version.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Flow, ParseError> {
        match bytes.first().ok_or(ParseError::Truncated)? >> 4 {
            4 => Flow::of_v4(ipv4::Packet::new(bytes)?),
            6 => Flow::of_v6(ipv6::Packet::new(bytes)?),
            _ => Err(ParseError::Version),
        }
    }

    fn of_v4(packet: ipv4::Packet<'_>) -> Result<Flow, ParseError> {
        let readable = packet.fragment_offset() == 0;
        let (ports, spi) = transport(packet.protocol(), readable, packet.payload())?;
        Ok(Flow {
            source: IpAddr::V4(packet.source()),
            destination: IpAddr::V4(packet.destination()),
            protocol: packet.protocol(),
            ports,
            tos: packet.tos(),
            spi,
            flow_label: 0,
            length: packet.bytes().len(),
            fragment: fragment(
                packet.identification().into(),
                packet.fragment_offset(),
                packet.payload().len(),
                packet.more_fragments(),
            ),
        })
    }

    fn of_v6(packet: ipv6::Packet<'_>) -> Result<Flow, ParseError> {
        let upper = packet.upper()?;
        let readable = upper.fragment.unwrap_or(0) == 0;
        let (ports, spi) = transport(upper.protocol, readable, &packet.bytes()[upper.offset..])?;
        Ok(Flow {
            source: IpAddr::V6(packet.source()),
            destination: IpAddr::V6(packet.destination()),
            protocol: upper.protocol,
            ports,
            tos: packet.traffic_class(),
            spi,
            flow_label: packet.flow_label(),
            length: packet.bytes().len(),
            fragment: upper.fragment.and_then(|offset| {
                let (bytes, at) = (packet.bytes(), upper.fragmented_at);
                // The walk has read the header: flags and identification are in its last six octets.
                let more = bytes[at - 5] & 1 != 0;
                fragment(be32(bytes, at - 4), offset, bytes.len() - at, more)
            }),
        })
    }
}

/// A packet with a fragment header that holds all of it is none (RFC 6946).
#[inline]
fn fragment(identification: u32, offset: usize, length: usize, more: bool) -> Option<Fragment> {
    (offset > 0 || more).then_some(Fragment { identification, offset, length, more })
}

type Selectors = (Option<(u16, u16)>, Option<u32>);

/// Ports or SPI from the start of the transport header. A transport header cut short makes the packet
/// malformed, since a rule could not be applied to it.
#[inline]
fn transport(protocol: u8, readable: bool, bytes: &[u8]) -> Result<Selectors, ParseError> {
    if !readable {
        return Ok((None, None));
    }
    match protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP if bytes.len() >= 4 => {
            Ok((Some((be16(bytes, 0), be16(bytes, 2))), None))
        }
        protocol::ESP if bytes.len() >= 4 => Ok((None, Some(be32(bytes, 0)))),
        protocol::AH if bytes.len() >= 8 => Ok((None, Some(be32(bytes, 4)))),
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ESP | protocol::AH => {
            Err(ParseError::Truncated)
        }
        _ => Ok((None, None)),
    }
}
