//! F-TEID, F-SEID, UE IP address, outer header creation, remote GTP-U peer.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::codec::{Cursor, Fault, ShortBytes, Value};

fn v4(cursor: &mut Cursor<'_>, present: bool) -> Result<Option<Ipv4Addr>, Fault> {
    present.then(|| cursor.array::<4>().map(Ipv4Addr::from)).transpose()
}

fn v6(cursor: &mut Cursor<'_>, present: bool) -> Result<Option<Ipv6Addr>, Fault> {
    present.then(|| cursor.array::<16>().map(Ipv6Addr::from)).transpose()
}

fn put_v4(out: &mut Vec<u8>, address: Option<Ipv4Addr>) {
    if let Some(address) = address {
        out.extend_from_slice(&address.octets());
    }
}

fn put_v6(out: &mut Vec<u8>, address: Option<Ipv6Addr>) {
    if let Some(address) = address {
        out.extend_from_slice(&address.octets());
    }
}

/// Local or remote tunnel endpoint (§8.2.3).
///
/// ```text
/// octet 5: 0000 CHID CH V6 V4 · TEID (4) · IPv4 (4) · IPv6 (16) · choose id (1)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FTeid {
    /// An allocated endpoint; at least one address.
    Assigned {
        /// Tunnel endpoint identifier.
        teid: u32,
        /// IPv4 address of the endpoint.
        ipv4: Option<Ipv4Addr>,
        /// IPv6 address of the endpoint.
        ipv6: Option<Ipv6Addr>,
    },
    /// The UP function is to allocate one (CHOOSE).
    Choose {
        /// An IPv4 address is wanted.
        ipv4: bool,
        /// An IPv6 address is wanted.
        ipv6: bool,
        /// PDRs of one message with the same identifier get the same F-TEID.
        id: Option<u8>,
    },
}

impl Default for FTeid {
    fn default() -> Self {
        Self::Choose { ipv4: true, ipv6: false, id: None }
    }
}

impl Value for FTeid {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let (has_v4, has_v6) = (flags & 1 != 0, flags & 2 != 0);
        if !has_v4 && !has_v6 {
            return Err(Fault::Incorrect);
        }
        if flags & 4 != 0 {
            let id = if flags & 8 != 0 { Some(cursor.u8()?) } else { None };
            return Ok(Self::Choose { ipv4: has_v4, ipv6: has_v6, id });
        }
        let teid = cursor.u32()?;
        Ok(Self::Assigned { teid, ipv4: v4(&mut cursor, has_v4)?, ipv6: v6(&mut cursor, has_v6)? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Assigned { teid, ipv4, ipv6 } => {
                out.push(u8::from(ipv4.is_some()) | u8::from(ipv6.is_some()) << 1);
                out.extend_from_slice(&teid.to_be_bytes());
                put_v4(out, ipv4);
                put_v6(out, ipv6);
            }
            Self::Choose { ipv4, ipv6, id } => {
                out.push(u8::from(ipv4) | u8::from(ipv6) << 1 | 4 | u8::from(id.is_some()) << 3);
                out.extend(id);
            }
        }
    }
}

/// Session endpoint: SEID and the address it is valid at (§8.2.37).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FSeid {
    /// Session endpoint identifier, chosen by the owner of the address.
    pub seid: u64,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl FSeid {
    /// With the one address the endpoint listens on.
    pub fn new(seid: u64, address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(v4) => Self { seid, ipv4: Some(v4), ipv6: None },
            std::net::IpAddr::V6(v6) => Self { seid, ipv4: None, ipv6: Some(v6) },
        }
    }
}

impl Value for FSeid {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        if flags & 3 == 0 {
            return Err(Fault::Incorrect);
        }
        let seid = cursor.u64()?;
        Ok(Self { seid, ipv4: v4(&mut cursor, flags & 2 != 0)?, ipv6: v6(&mut cursor, flags & 1 != 0)? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.ipv6.is_some()) | u8::from(self.ipv4.is_some()) << 1);
        out.extend_from_slice(&self.seid.to_be_bytes());
        put_v4(out, self.ipv4);
        put_v6(out, self.ipv6);
    }
}

/// UE address to match, or to be chosen by the UP function (§8.2.62).
///
/// ```text
/// octet 5: 0 IP6PL CHV6 CHV4 IPv6D S/D V4 V6 · IPv4 (4) · IPv6 (16) · delegation bits (1) · prefix length (1)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct UeIpAddress {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 prefix; 64 bits long unless `ipv6_prefix_length` says otherwise.
    pub ipv6: Option<Ipv6Addr>,
    /// S/D: true when the address is the packet's destination (downlink), false when its source.
    pub destination: bool,
    /// Delegated bits: the prefix is 64 minus this many bits.
    pub ipv6_delegation_bits: Option<u8>,
    /// Length of the IPv6 prefix where it is not 64.
    pub ipv6_prefix_length: Option<u8>,
    /// The UP function is to choose an IPv4 address.
    pub choose_ipv4: bool,
    /// The UP function is to choose an IPv6 prefix.
    pub choose_ipv6: bool,
}

impl Value for UeIpAddress {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let value = Self {
            destination: flags & 4 != 0,
            choose_ipv4: flags & 0x10 != 0,
            choose_ipv6: flags & 0x20 != 0,
            ipv4: v4(&mut cursor, flags & 2 != 0)?,
            ipv6: v6(&mut cursor, flags & 1 != 0)?,
            ipv6_delegation_bits: if flags & 8 != 0 { Some(cursor.u8()?) } else { None },
            ipv6_prefix_length: if flags & 0x40 != 0 { Some(cursor.u8()?) } else { None },
        };
        if value.ipv6_prefix_length.is_some_and(|n| n > 128)
            || value.ipv6_delegation_bits.is_some_and(|n| n > 63)
        {
            return Err(Fault::Incorrect);
        }
        Ok(value)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(
            u8::from(self.ipv6.is_some())
                | u8::from(self.ipv4.is_some()) << 1
                | u8::from(self.destination) << 2
                | u8::from(self.ipv6_delegation_bits.is_some()) << 3
                | u8::from(self.choose_ipv4) << 4
                | u8::from(self.choose_ipv6) << 5
                | u8::from(self.ipv6_prefix_length.is_some()) << 6,
        );
        put_v4(out, self.ipv4);
        put_v6(out, self.ipv6);
        out.extend(self.ipv6_delegation_bits);
        out.extend(self.ipv6_prefix_length);
    }
}

/// The header put around a forwarded packet (§8.2.56).
///
/// Which fields are present follows from `description`; the constructors build the usual forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OuterHeaderCreation {
    /// Bits of octets 5 (high byte) and 6 (low byte); see the constants.
    pub description: u16,
    /// TEID, for GTP-U.
    pub teid: Option<u32>,
    /// IPv4 address of the peer.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the peer.
    pub ipv6: Option<Ipv6Addr>,
    /// UDP port, for plain UDP.
    pub port: Option<u16>,
    /// C-TAG.
    pub c_tag: Option<[u8; 3]>,
    /// S-TAG.
    pub s_tag: Option<[u8; 3]>,
}

impl OuterHeaderCreation {
    /// GTP-U/UDP/IPv4.
    pub const GTPU_UDP_IPV4: u16 = 0x0100;
    /// GTP-U/UDP/IPv6.
    pub const GTPU_UDP_IPV6: u16 = 0x0200;
    /// UDP/IPv4.
    pub const UDP_IPV4: u16 = 0x0400;
    /// UDP/IPv6.
    pub const UDP_IPV6: u16 = 0x0800;
    /// IPv4.
    pub const IPV4: u16 = 0x1000;
    /// IPv6.
    pub const IPV6: u16 = 0x2000;
    /// C-TAG.
    pub const C_TAG: u16 = 0x4000;
    /// S-TAG.
    pub const S_TAG: u16 = 0x8000;

    /// GTP-U towards `peer`.
    pub fn gtpu(teid: u32, peer: std::net::IpAddr) -> Self {
        match peer {
            std::net::IpAddr::V4(v4) => {
                Self { description: Self::GTPU_UDP_IPV4, teid: Some(teid), ipv4: Some(v4), ..Self::default() }
            }
            std::net::IpAddr::V6(v6) => {
                Self { description: Self::GTPU_UDP_IPV6, teid: Some(teid), ipv6: Some(v6), ..Self::default() }
            }
        }
    }

    /// The GTP-U endpoint, when this is one.
    pub fn gtpu_endpoint(&self) -> Option<(u32, std::net::IpAddr)> {
        let address = self.ipv4.map(Into::into).or(self.ipv6.map(Into::into))?;
        Some((self.teid?, address))
    }
}

impl Value for OuterHeaderCreation {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let d = cursor.u16()?;
        let has = |bits: u16| d & bits != 0;
        if d & 0xff00 == 0 {
            return Err(Fault::Incorrect);
        }
        let teid = if has(Self::GTPU_UDP_IPV4 | Self::GTPU_UDP_IPV6) { Some(cursor.u32()?) } else { None };
        let ipv4 = v4(&mut cursor, has(Self::GTPU_UDP_IPV4 | Self::UDP_IPV4 | Self::IPV4))?;
        let ipv6 = v6(&mut cursor, has(Self::GTPU_UDP_IPV6 | Self::UDP_IPV6 | Self::IPV6))?;
        let port = if has(Self::UDP_IPV4 | Self::UDP_IPV6) { Some(cursor.u16()?) } else { None };
        let c_tag = if has(Self::C_TAG) { Some(cursor.array()?) } else { None };
        let s_tag = if has(Self::S_TAG) { Some(cursor.array()?) } else { None };
        Ok(Self { description: d, teid, ipv4, ipv6, port, c_tag, s_tag })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.description.to_be_bytes());
        if let Some(teid) = self.teid {
            out.extend_from_slice(&teid.to_be_bytes());
        }
        put_v4(out, self.ipv4);
        put_v6(out, self.ipv6);
        if let Some(port) = self.port {
            out.extend_from_slice(&port.to_be_bytes());
        }
        out.extend(self.c_tag.iter().flatten());
        out.extend(self.s_tag.iter().flatten());
    }
}

/// The header taken off a received packet (§8.2.64).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OuterHeaderRemoval {
    /// Which header; see the constants.
    pub description: u8,
    /// GTP-U extension headers to delete (bit 1: PDU Session Container).
    pub extension_header_deletion: Option<u8>,
}

impl OuterHeaderRemoval {
    /// GTP-U/UDP/IPv4.
    pub const GTPU_UDP_IPV4: u8 = 0;
    /// GTP-U/UDP/IPv6.
    pub const GTPU_UDP_IPV6: u8 = 1;
    /// UDP/IPv4.
    pub const UDP_IPV4: u8 = 2;
    /// UDP/IPv6.
    pub const UDP_IPV6: u8 = 3;
    /// IPv4.
    pub const IPV4: u8 = 4;
    /// IPv6.
    pub const IPV6: u8 = 5;
    /// GTP-U over UDP over either IP.
    pub const GTPU_UDP_IP: u8 = 6;
}

impl Value for OuterHeaderRemoval {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let (&description, rest) = bytes.split_first().ok_or(Fault::Length)?;
        if description > 8 {
            return Err(Fault::Incorrect);
        }
        Ok(Self { description, extension_header_deletion: rest.first().copied() })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.description);
        out.extend(self.extension_header_deletion);
    }
}

/// A GTP-U peer in path failure and recovery reports (§8.2.70).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RemoteGtpuPeer {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Destination interface the peer is reached through.
    pub destination_interface: Option<u8>,
    /// Network instance the peer is in.
    pub network_instance: Option<ShortBytes>,
}

impl Value for RemoteGtpuPeer {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let ipv4 = v4(&mut cursor, flags & 2 != 0)?;
        let ipv6 = v6(&mut cursor, flags & 1 != 0)?;
        let mut destination_interface = None;
        if flags & 4 != 0 {
            let length = cursor.u16()?;
            destination_interface = cursor.take(length.into())?.first().map(|octet| octet & 0x0f);
            if destination_interface.is_none() {
                return Err(Fault::Length);
            }
        }
        let mut network_instance = None;
        if flags & 8 != 0 {
            let length = cursor.u16()?;
            network_instance = Some(cursor.take(length.into())?.into());
        }
        Ok(Self { ipv4, ipv6, destination_interface, network_instance })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(
            u8::from(self.ipv6.is_some())
                | u8::from(self.ipv4.is_some()) << 1
                | u8::from(self.destination_interface.is_some()) << 2
                | u8::from(self.network_instance.is_some()) << 3,
        );
        put_v4(out, self.ipv4);
        put_v6(out, self.ipv6);
        if let Some(interface) = self.destination_interface {
            out.extend_from_slice(&[0, 1, interface]);
        }
        if let Some(instance) = &self.network_instance {
            out.extend_from_slice(&(instance.as_bytes().len() as u16).to_be_bytes());
            out.extend_from_slice(instance.as_bytes());
        }
    }
}
