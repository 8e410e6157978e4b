//! IPv6 (RFC 8200) with its extension headers.

use std::net::Ipv6Addr;

use crate::{ParseError, be16, be32, octets16, protocol};

/// Length of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Most extension headers that are walked; real traffic has at most three or four, and each costs time.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// A packet whose lengths are consistent.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
}

/// The upper-layer header: what follows the extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upper {
    /// Its protocol.
    pub protocol: u8,
    /// Its offset in the packet.
    pub offset: usize,
    /// Offset of this fragment in octets, when there is a fragment header. Only offset 0 carries the transport header.
    pub fragment: Option<usize>,
    /// With a fragment header: where that ends.
    pub fragmented_at: usize,
}

impl<'a> Packet<'a> {
    /// Checks version and length; octets beyond the payload length are left out of the view.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        if bytes.len() < HEADER_LEN {
            return Err(ParseError::Truncated);
        }
        if bytes[0] >> 4 != 6 {
            return Err(ParseError::Version);
        }
        let total = HEADER_LEN + usize::from(be16(bytes, 4));
        if bytes.len() < total {
            return Err(ParseError::Truncated);
        }
        Ok(Packet { bytes: &bytes[..total] })
    }

    /// The packet without trailing padding.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.bytes, 0) >> 4) as u8
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.bytes, 0) & 0x000F_FFFF
    }

    /// Type of what follows the fixed header.
    pub fn next_header(&self) -> u8 {
        self.bytes[6]
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.bytes[7]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(octets16(self.bytes, 8))
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(octets16(self.bytes, 24))
    }

    /// What follows the fixed header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Walks the extension headers. Authentication and ESP headers count as upper layer: rules select
    /// them by SPI. Behind a fragment header other than the first fragment nothing can be read, so
    /// the walk ends there.
    pub fn upper(&self) -> Result<Upper, ParseError> {
        let mut upper =
            Upper { protocol: self.next_header(), offset: HEADER_LEN, fragment: None, fragmented_at: 0 };
        for _ in 0..MAX_EXTENSION_HEADERS {
            let length = match upper.protocol {
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                    let header =
                        self.bytes.get(upper.offset..upper.offset + 8).ok_or(ParseError::Truncated)?;
                    8 + usize::from(header[1]) * 8
                }
                protocol::FRAGMENT => {
                    let header =
                        self.bytes.get(upper.offset..upper.offset + 8).ok_or(ParseError::Truncated)?;
                    upper.fragment = Some(usize::from(be16(header, 2) & 0xFFF8));
                    upper.fragmented_at = upper.offset + 8;
                    8
                }
                _ => return Ok(upper),
            };
            if upper.offset + length > self.bytes.len() {
                return Err(ParseError::Truncated);
            }
            upper.protocol = self.bytes[upper.offset];
            upper.offset += length;
            if upper.fragment.is_some_and(|offset| offset > 0) {
                return Ok(upper);
            }
        }
        Err(ParseError::TooManyExtensions)
    }
}

/// The fields of a header to build.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label; the low 20 bits count.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Header {
    /// A header with usual values: hop limit 64, no traffic class, no flow label.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8) -> Header {
        Header { source, destination, next_header, traffic_class: 0, flow_label: 0, hop_limit: 64 }
    }

    /// The header octets for a payload of `payload_len` octets.
    pub fn encode(&self, payload_len: usize) -> Result<[u8; HEADER_LEN], ParseError> {
        let length = u16::try_from(payload_len).map_err(|_| ParseError::Length)?;
        let first = (6 << 28) | (u32::from(self.traffic_class) << 20) | (self.flow_label & 0x000F_FFFF);
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&length.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.source.octets());
        out[24..40].copy_from_slice(&self.destination.octets());
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
