//! Router discovery (RFC 4861, RFC 8106), by which a UE gets its IPv6 prefix (TS 23.501 §5.8.2.2.3).
//!
//! Messages are whole IPv6 packets, because the checks (hop limit 255, checksum) need the header.

use std::net::{IpAddr, Ipv6Addr};

use crate::{ParseError, be16, be32, icmp, ipv6, octets16, protocol};

/// ICMPv6 type of a Router Solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 type of a Router Advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// All routers on the link, `ff02::2`.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// All nodes on the link, `ff02::1`.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// A lifetime without end.
pub const INFINITE: u32 = u32::MAX;

const OPTION_PREFIX: u8 = 3;
const OPTION_MTU: u8 = 5;
const OPTION_RDNSS: u8 = 25;
/// Neighbour discovery requires the hop limit nobody off the link can produce.
const HOP_LIMIT: u8 = 255;
/// DNS servers that are kept of one advertisement; more are ignored.
pub const MAX_DNS: usize = 8;

/// A Router Solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouterSolicitation {
    /// Source: the UE's link-local address, or unspecified.
    pub source: Ipv6Addr,
}

/// A prefix that a router announces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// The prefix; octets behind its length are zero.
    pub prefix: Ipv6Addr,
    /// Its length in bits.
    pub length: u8,
    /// Whether the prefix is on the link. Not so for a UE: its link is point to point.
    pub on_link: bool,
    /// Whether addresses may be formed from it.
    pub autonomous: bool,
    /// Valid lifetime in seconds.
    pub valid_s: u32,
    /// Preferred lifetime in seconds.
    pub preferred_s: u32,
}

/// A Router Advertisement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouterAdvertisement {
    /// Source: the router's link-local address.
    pub source: Ipv6Addr,
    /// Destination: the UE's link-local address, or all nodes.
    pub destination: Ipv6Addr,
    /// Hop limit that hosts shall use; 0 leaves it to them.
    pub hop_limit: u8,
    /// Lifetime as default router in seconds.
    pub router_lifetime_s: u16,
    /// The prefix, if announced; of several the first.
    pub prefix: Option<Prefix>,
    /// The link's MTU.
    pub mtu: Option<u32>,
    /// DNS servers (RFC 8106).
    pub dns: Vec<Ipv6Addr>,
}

/// Checks what RFC 4861 §6.1 asks of every router discovery message and returns the ICMPv6 part.
fn message(bytes: &[u8], kind: u8, min_len: usize) -> Result<(ipv6::Packet<'_>, &[u8]), ParseError> {
    let packet = ipv6::Packet::new(bytes)?;
    if packet.next_header() != protocol::ICMPV6 || packet.hop_limit() != HOP_LIMIT {
        return Err(ParseError::Value);
    }
    let body = packet.payload();
    if body.len() < min_len {
        return Err(ParseError::Truncated);
    }
    if body[0] != kind || body[1] != 0 {
        return Err(ParseError::Value);
    }
    if icmp::sum(IpAddr::V6(packet.source()), IpAddr::V6(packet.destination()), body) != 0 {
        return Err(ParseError::Checksum);
    }
    Ok((packet, body))
}

/// Calls `visit` with type and whole option for each option; a zero length is an error (RFC 4861 §4.6).
fn options(mut bytes: &[u8], mut visit: impl FnMut(u8, &[u8])) -> Result<(), ParseError> {
    while !bytes.is_empty() {
        if bytes.len() < 8 {
            return Err(ParseError::Truncated);
        }
        let length = usize::from(bytes[1]) * 8;
        if length == 0 {
            return Err(ParseError::Length);
        }
        let option = bytes.get(..length).ok_or(ParseError::Truncated)?;
        visit(option[0], option);
        bytes = &bytes[length..];
    }
    Ok(())
}

/// Whether an IPv6 packet looks like a Router Solicitation; cheap, for the packet path.
pub fn is_router_solicitation(bytes: &[u8]) -> bool {
    bytes.len() >= ipv6::HEADER_LEN + 8
        && bytes[0] >> 4 == 6
        && bytes[6] == protocol::ICMPV6
        && bytes[ipv6::HEADER_LEN] == ROUTER_SOLICITATION
}

impl RouterSolicitation {
    /// Reads a whole IPv6 packet.
    pub fn parse(bytes: &[u8]) -> Result<RouterSolicitation, ParseError> {
        let (packet, body) = message(bytes, ROUTER_SOLICITATION, 8)?;
        options(&body[8..], |_, _| {})?;
        Ok(RouterSolicitation { source: packet.source() })
    }

    /// The whole IPv6 packet, to all routers.
    pub fn build(&self) -> Vec<u8> {
        finish(self.source, ALL_ROUTERS, vec![ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0])
    }
}

impl RouterAdvertisement {
    /// The advertisement of TS 23.501 §5.8.2.2.3: one /64 for autoconfiguration, not on link, for ever.
    pub fn for_ue(source: Ipv6Addr, destination: Ipv6Addr, prefix: Ipv6Addr, mtu: Option<u32>) -> Self {
        RouterAdvertisement {
            source,
            destination,
            hop_limit: 64,
            router_lifetime_s: u16::MAX,
            prefix: Some(Prefix {
                prefix,
                length: 64,
                on_link: false,
                autonomous: true,
                valid_s: INFINITE,
                preferred_s: INFINITE,
            }),
            mtu,
            dns: Vec::new(),
        }
    }

    /// Reads a whole IPv6 packet. Unknown options are skipped.
    pub fn parse(bytes: &[u8]) -> Result<RouterAdvertisement, ParseError> {
        let (packet, body) = message(bytes, ROUTER_ADVERTISEMENT, 16)?;
        let mut out = RouterAdvertisement {
            source: packet.source(),
            destination: packet.destination(),
            hop_limit: body[4],
            router_lifetime_s: be16(body, 6),
            prefix: None,
            mtu: None,
            dns: Vec::new(),
        };
        options(&body[16..], |kind, option| match kind {
            OPTION_PREFIX if option.len() == 32 && option[2] <= 128 && out.prefix.is_none() => {
                out.prefix = Some(Prefix {
                    prefix: Ipv6Addr::from(octets16(option, 16)),
                    length: option[2],
                    on_link: option[3] & 0x80 != 0,
                    autonomous: option[3] & 0x40 != 0,
                    valid_s: be32(option, 4),
                    preferred_s: be32(option, 8),
                });
            }
            OPTION_MTU if option.len() == 8 => out.mtu = Some(be32(option, 4)),
            OPTION_RDNSS if option.len() >= 24 => {
                for server in option[8..].chunks_exact(16) {
                    if out.dns.len() < MAX_DNS {
                        out.dns.push(Ipv6Addr::from(octets16(server, 0)));
                    }
                }
            }
            _ => {}
        })?;
        Ok(out)
    }

    /// The whole IPv6 packet. At most [`MAX_DNS`] servers are announced.
    pub fn build(&self) -> Vec<u8> {
        let mut body = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, self.hop_limit, 0];
        body.extend_from_slice(&self.router_lifetime_s.to_be_bytes());
        // Reachable and retransmission time: unspecified.
        body.extend_from_slice(&[0; 8]);
        if let Some(prefix) = self.prefix {
            let flags = (u8::from(prefix.on_link) << 7) | (u8::from(prefix.autonomous) << 6);
            body.extend_from_slice(&[OPTION_PREFIX, 4, prefix.length, flags]);
            body.extend_from_slice(&prefix.valid_s.to_be_bytes());
            body.extend_from_slice(&prefix.preferred_s.to_be_bytes());
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&prefix.prefix.octets());
        }
        if let Some(mtu) = self.mtu {
            body.extend_from_slice(&[OPTION_MTU, 1, 0, 0]);
            body.extend_from_slice(&mtu.to_be_bytes());
        }
        let dns = &self.dns[..self.dns.len().min(MAX_DNS)];
        if !dns.is_empty() {
            body.extend_from_slice(&[OPTION_RDNSS, 1 + 2 * dns.len() as u8, 0, 0]);
            body.extend_from_slice(&INFINITE.to_be_bytes());
            for server in dns {
                body.extend_from_slice(&server.octets());
            }
        }
        finish(self.source, self.destination, body)
    }
}

fn finish(source: Ipv6Addr, destination: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let sum = icmp::sum(IpAddr::V6(source), IpAddr::V6(destination), &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut header = ipv6::Header::new(source, destination, protocol::ICMPV6);
    header.hop_limit = HOP_LIMIT;
    header.build(&body).expect("a few hundred octets fit the length field")
}
