//! F-TEID, the UE's address, and sets of sessions that fail together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::codec::{Cursor, Fault, Value};

/// Which end of which interface a tunnel endpoint is (§8.22), 6 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct InterfaceType(pub u8);

/// Constants with their documentation.
macro_rules! interfaces {
    ($($name:ident = $code:literal, $doc:literal;)*) => {
        impl InterfaceType {
            $(#[doc = $doc] pub const $name: Self = Self($code);)*
        }
    };
}

interfaces! {
    S1U_ENB = 0, "S1-U, eNodeB, GTP-U.";
    S1U_SGW = 1, "S1-U, S-GW, GTP-U.";
    S12_RNC = 2, "S12, RNC, GTP-U.";
    S12_SGW = 3, "S12, S-GW, GTP-U.";
    S5S8_SGW_GTPU = 4, "S5/S8, S-GW, GTP-U.";
    S5S8_PGW_GTPU = 5, "S5/S8, P-GW, GTP-U.";
    S5S8_SGW_GTPC = 6, "S5/S8, S-GW, GTP-C.";
    S5S8_PGW_GTPC = 7, "S5/S8, P-GW, GTP-C.";
    S11_MME = 10, "S11, MME, GTP-C.";
    S11_S4_SGW = 11, "S11 and S4, S-GW, GTP-C.";
    ENB_DL_FORWARDING = 19, "eNodeB, GTP-U, for forwarding of downlink data.";
    ENB_UL_FORWARDING = 20, "eNodeB, GTP-U, for forwarding of uplink data.";
    SGW_DL_FORWARDING = 23, "S-GW or UPF, GTP-U, for forwarding of downlink data.";
    SGW_UL_FORWARDING = 28, "S-GW or UPF, GTP-U, for forwarding of uplink data.";
    S11U_MME = 38, "S11-U, MME, GTP-U.";
    S11U_SGW = 39, "S11-U, S-GW, GTP-U.";
}

/// Tunnel endpoint of GTP-C or GTP-U (§8.22).
///
/// ```text
/// octet 5: V4 · V6 · interface type (6)   TEID or GRE key (4) · IPv4 (4) · IPv6 (16)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FTeid {
    /// Interface and end.
    pub interface: InterfaceType,
    /// Tunnel endpoint identifier.
    pub teid: u32,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl FTeid {
    /// With the one address the endpoint listens on.
    pub fn new(interface: InterfaceType, teid: u32, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self { interface, teid, ipv4: Some(v4), ipv6: None },
            IpAddr::V6(v6) => Self { interface, teid, ipv4: None, ipv6: Some(v6) },
        }
    }

    /// The address: the IPv4 one where there are two.
    pub fn address(&self) -> Option<IpAddr> {
        self.ipv4.map(IpAddr::V4).or(self.ipv6.map(IpAddr::V6))
    }
}

impl Value for FTeid {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let first = cursor.u8()?;
        let teid = cursor.u32()?;
        if first & 0xc0 == 0 {
            return Err(Fault::Incorrect);
        }
        Ok(Self {
            interface: InterfaceType(first & 0x3f),
            teid,
            ipv4: cursor.optional(first & 0x80 != 0)?.map(Ipv4Addr::from_octets),
            ipv6: cursor.optional(first & 0x40 != 0)?.map(Ipv6Addr::from_octets),
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let present = u8::from(self.ipv4.is_some()) << 7 | u8::from(self.ipv6.is_some()) << 6;
        out.push(present | self.interface.0 & 0x3f);
        out.extend_from_slice(&self.teid.to_be_bytes());
        out.extend(self.ipv4.map(|v4| v4.octets()).iter().flatten());
        out.extend(self.ipv6.map(|v6| v6.octets()).iter().flatten());
    }
}

/// An IPv6 prefix with the interface identifier that the UE is to use in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv6Prefix {
    /// Prefix and interface identifier.
    pub address: Ipv6Addr,
    /// Length of the prefix in bits, 64 as a rule.
    pub length: u8,
}

/// PDN address allocation (§8.14): the UE's address. An address of zeros in a request means that none is known.
///
/// ```text
/// octet 5: spare (5) · PDN type (3)   [prefix length (1) · IPv6 (16)] [IPv4 (4)]
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Paa {
    /// IPv4.
    Ipv4(Ipv4Addr),
    /// IPv6.
    Ipv6(Ipv6Prefix),
    /// Both.
    Ipv4v6(Ipv4Addr, Ipv6Prefix),
    /// Non-IP: no address.
    NonIp,
    /// Ethernet: no address.
    Ethernet,
}

impl Paa {
    /// The IPv4 address, if any.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        match self {
            Self::Ipv4(v4) | Self::Ipv4v6(v4, _) => Some(v4),
            Self::Ipv6(_) | Self::NonIp | Self::Ethernet => None,
        }
    }

    /// The IPv6 prefix, if any.
    pub fn ipv6(self) -> Option<Ipv6Prefix> {
        match self {
            Self::Ipv6(v6) | Self::Ipv4v6(_, v6) => Some(v6),
            Self::Ipv4(_) | Self::NonIp | Self::Ethernet => None,
        }
    }
}

impl Value for Paa {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let pdn_type = cursor.u8()? & 7;
        let v4 = |cursor: &mut Cursor<'_>| cursor.array().map(Ipv4Addr::from_octets);
        let v6 = |cursor: &mut Cursor<'_>| -> Result<Ipv6Prefix, Fault> {
            let length = cursor.u8()?;
            let address = Ipv6Addr::from_octets(cursor.array()?);
            if length > 128 { Err(Fault::Incorrect) } else { Ok(Ipv6Prefix { address, length }) }
        };
        match pdn_type {
            1 => v4(&mut cursor).map(Self::Ipv4),
            2 => v6(&mut cursor).map(Self::Ipv6),
            3 => {
                let prefix = v6(&mut cursor)?;
                Ok(Self::Ipv4v6(v4(&mut cursor)?, prefix))
            }
            4 => Ok(Self::NonIp),
            5 => Ok(Self::Ethernet),
            _ => Err(Fault::Incorrect),
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Ipv4(_) => 1,
            Self::Ipv6(_) => 2,
            Self::Ipv4v6(..) => 3,
            Self::NonIp => 4,
            Self::Ethernet => 5,
        });
        if let Some(prefix) = self.ipv6() {
            out.push(prefix.length);
            out.extend_from_slice(&prefix.address.octets());
        }
        out.extend(self.ipv4().map(|v4| v4.octets()).iter().flatten());
    }
}

/// Sets of sessions that a failure takes down together (§8.62).
///
/// ```text
/// octet 5: node ID type (4) · number of CSIDs (4)   node ID (4 or 16) · CSIDs (2 each)
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FqCsid {
    /// Address of the node, or its PLMN and a number where it has no fixed address.
    pub node: CsidNode,
    /// Sets of that node, 15 at most.
    pub csids: Vec<u16>,
}

/// Who the numbers of an [`FqCsid`] belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CsidNode {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// IPv6 address.
    Ipv6(Ipv6Addr),
    /// MCC × 1000 + MNC in the upper 20 bits, a number in the others.
    Other(u32),
}

impl Default for CsidNode {
    fn default() -> Self {
        Self::Ipv4(Ipv4Addr::UNSPECIFIED)
    }
}

impl Value for FqCsid {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let first = cursor.u8()?;
        let node = match first >> 4 {
            0 => CsidNode::Ipv4(Ipv4Addr::from_octets(cursor.array()?)),
            1 => CsidNode::Ipv6(Ipv6Addr::from_octets(cursor.array()?)),
            2 => CsidNode::Other(cursor.u32()?),
            _ => return Err(Fault::Incorrect),
        };
        let csids = (0..first & 0x0f).map(|_| cursor.u16()).collect::<Result<_, _>>()?;
        Ok(Self { node, csids })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let csids = &self.csids[..self.csids.len().min(15)];
        let count = csids.len() as u8;
        match self.node {
            CsidNode::Ipv4(address) => {
                out.push(count);
                out.extend_from_slice(&address.octets());
            }
            CsidNode::Ipv6(address) => {
                out.push(0x10 | count);
                out.extend_from_slice(&address.octets());
            }
            CsidNode::Other(number) => {
                out.push(0x20 | count);
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        for csid in csids {
            out.extend_from_slice(&csid.to_be_bytes());
        }
    }
}
