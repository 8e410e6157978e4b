//! IPv4 (RFC 791).
//!
//! ```text
//!  0       1       2       3
//!  ver ihl | tos   | total length
//!  identification  | flags, fragment offset
//!  ttl     | proto | header checksum
//!  source
//!  destination
//!  options (ihl > 5)
//! ```

use std::net::Ipv4Addr;

use crate::checksum::checksum;
use crate::{ParseError, be16, be32};

/// Length of a header without options.
pub const HEADER_LEN: usize = 20;

/// A packet whose lengths are consistent. The header checksum is not verified: the kernel or NIC has,
/// or the packet came through a tunnel that protects it; see [`Packet::checksum_ok`].
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks version and lengths; octets beyond the total length (padding) are left out of the view.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        if bytes.len() < HEADER_LEN {
            return Err(ParseError::Truncated);
        }
        if bytes[0] >> 4 != 4 {
            return Err(ParseError::Version);
        }
        let header_len = usize::from(bytes[0] & 0x0F) * 4;
        let total_len = usize::from(be16(bytes, 2));
        if header_len < HEADER_LEN || total_len < header_len {
            return Err(ParseError::Length);
        }
        if bytes.len() < total_len {
            return Err(ParseError::Truncated);
        }
        Ok(Packet { bytes: &bytes[..total_len] })
    }

    /// Header length including options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes[0] & 0x0F) * 4
    }

    /// The packet without trailing padding.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Type of service: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.bytes[1]
    }

    /// Identification.
    pub fn identification(&self) -> u16 {
        be16(self.bytes, 4)
    }

    /// The don't-fragment flag.
    pub fn dont_fragment(&self) -> bool {
        self.bytes[6] & 0x40 != 0
    }

    /// Whether more fragments follow.
    pub fn more_fragments(&self) -> bool {
        self.bytes[6] & 0x20 != 0
    }

    /// Fragment offset in octets; only offset 0 carries the transport header.
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(self.bytes, 6) & 0x1FFF) * 8
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        self.bytes[8]
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.bytes[9]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.bytes, 12))
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(be32(self.bytes, 16))
    }

    /// Whether the header checksum is right.
    pub fn checksum_ok(&self) -> bool {
        checksum(&self.bytes[..self.header_len()]) == 0
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len()..]
    }
}

/// The fields of a header to build; the rest (length, checksum) follows from the payload.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Type of service.
    pub tos: u8,
    /// Identification, for fragments.
    pub identification: u16,
    /// Time to live.
    pub ttl: u8,
    /// The don't-fragment flag.
    pub dont_fragment: bool,
}

impl Header {
    /// A header with usual values: TTL 64, no ToS, no flags.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8) -> Header {
        Header { source, destination, protocol, tos: 0, identification: 0, ttl: 64, dont_fragment: false }
    }

    /// The header octets for a payload of `payload_len` octets.
    pub fn encode(&self, payload_len: usize) -> Result<[u8; HEADER_LEN], ParseError> {
        let total = u16::try_from(HEADER_LEN + payload_len).map_err(|_| ParseError::Length)?;
        let mut out = [0; HEADER_LEN];
        out[0] = 0x45;
        out[1] = self.tos;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[4..6].copy_from_slice(&self.identification.to_be_bytes());
        out[6] = if self.dont_fragment { 0x40 } else { 0 };
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum(&out);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        Ok(out)
    }

    /// A whole packet.
    pub fn build(&self, payload: &[u8]) -> Result<Vec<u8>, ParseError> {
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.extend_from_slice(&self.encode(payload.len())?);
        out.extend_from_slice(payload);
        Ok(out)
    }
}
