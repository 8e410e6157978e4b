//! Ethernet II frames with up to two VLAN tags (IEEE 802.3, 802.1Q).

use crate::{ParseError, be16};

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86DD;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88A8;
/// Tags beyond these are left in the payload: 802.1ad knows two.
const MAX_TAGS: usize = 2;

/// A MAC address.
pub type Mac = [u8; 6];

/// A frame whose header length has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    header_len: usize,
}

impl<'a> Frame<'a> {
    /// Checks that the addresses, all VLAN tags and the EtherType are present.
    pub fn new(bytes: &'a [u8]) -> Result<Frame<'a>, ParseError> {
        let mut header_len = 14;
        for _ in 0..MAX_TAGS {
            if bytes.len() < header_len {
                return Err(ParseError::Truncated);
            }
            match be16(bytes, header_len - 2) {
                VLAN | SERVICE_VLAN => header_len += 4,
                _ => break,
            }
        }
        if bytes.len() < header_len {
            return Err(ParseError::Truncated);
        }
        Ok(Frame { bytes, header_len })
    }

    /// Destination address.
    pub fn destination(&self) -> Mac {
        std::array::from_fn(|i| self.bytes[i])
    }

    /// Source address.
    pub fn source(&self) -> Mac {
        std::array::from_fn(|i| self.bytes[6 + i])
    }

    /// The EtherType behind all VLAN tags.
    pub fn ethertype(&self) -> u16 {
        be16(self.bytes, self.header_len - 2)
    }

    /// VLAN identifiers from the outside in, `None` where there is no tag.
    pub fn vlans(&self) -> [Option<u16>; MAX_TAGS] {
        std::array::from_fn(|i| (self.header_len > 14 + 4 * i).then(|| be16(self.bytes, 14 + 4 * i) & 0x0FFF))
    }

    /// What follows the EtherType.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..]
    }
}

/// Builds a frame; `vlan` adds an 802.1Q tag of priority 0.
pub fn build(destination: Mac, source: Mac, vlan: Option<u16>, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(18 + payload.len());
    out.extend_from_slice(&destination);
    out.extend_from_slice(&source);
    if let Some(id) = vlan {
        out.extend_from_slice(&VLAN.to_be_bytes());
        out.extend_from_slice(&(id & 0x0FFF).to_be_bytes());
    }
    out.extend_from_slice(&ethertype.to_be_bytes());
    out.extend_from_slice(payload);
    out
}
