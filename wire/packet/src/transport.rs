//! UDP (RFC 768) and TCP (RFC 9293).

use std::net::IpAddr;

use crate::checksum::Sum;
use crate::{ParseError, be16, be32, protocol};

/// Length of the UDP header.
pub const UDP_HEADER_LEN: usize = 8;

/// A UDP datagram whose length has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    bytes: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Checks the length field; octets beyond it are left out.
    pub fn new(bytes: &'a [u8]) -> Result<Udp<'a>, ParseError> {
        if bytes.len() < UDP_HEADER_LEN {
            return Err(ParseError::Truncated);
        }
        let length = usize::from(be16(bytes, 4));
        if length < UDP_HEADER_LEN {
            return Err(ParseError::Length);
        }
        if bytes.len() < length {
            return Err(ParseError::Truncated);
        }
        Ok(Udp { bytes: &bytes[..length] })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        be16(self.bytes, 0)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.bytes, 2)
    }

    /// Whether the checksum is right; over IPv4 zero means that there is none.
    pub fn checksum_ok(&self, source: IpAddr, destination: IpAddr) -> bool {
        if be16(self.bytes, 6) == 0 && source.is_ipv4() {
            return true;
        }
        Sum::default()
            .pseudo_header(source, destination, protocol::UDP, self.bytes.len())
            .octets(self.bytes)
            .finish()
            == 0
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[UDP_HEADER_LEN..]
    }
}

/// Builds a datagram with its checksum.
pub fn build_udp(
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    payload: &[u8],
) -> Result<Vec<u8>, ParseError> {
    let length = u16::try_from(UDP_HEADER_LEN + payload.len()).map_err(|_| ParseError::Length)?;
    let mut out = Vec::with_capacity(usize::from(length));
    out.extend_from_slice(&source.1.to_be_bytes());
    out.extend_from_slice(&destination.1.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(payload);
    let sum =
        Sum::default().pseudo_header(source.0, destination.0, protocol::UDP, out.len()).octets(&out).finish();
    // Zero means "no checksum": RFC 768 sends all ones instead.
    out[6..8].copy_from_slice(&(if sum == 0 { 0xFFFF } else { sum }).to_be_bytes());
    Ok(out)
}

/// A TCP segment whose header length has been checked.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    bytes: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Checks the data offset.
    pub fn new(bytes: &'a [u8]) -> Result<Tcp<'a>, ParseError> {
        if bytes.len() < 20 {
            return Err(ParseError::Truncated);
        }
        let header_len = usize::from(bytes[12] >> 4) * 4;
        if header_len < 20 {
            return Err(ParseError::Length);
        }
        if bytes.len() < header_len {
            return Err(ParseError::Truncated);
        }
        Ok(Tcp { bytes })
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        be16(self.bytes, 0)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        be16(self.bytes, 2)
    }

    /// Sequence number.
    pub fn sequence(&self) -> u32 {
        be32(self.bytes, 4)
    }

    /// Acknowledgement number; it means something when the ACK flag is set.
    pub fn acknowledgement(&self) -> u32 {
        be32(self.bytes, 8)
    }

    /// Flags, FIN in bit 0 to CWR in bit 7.
    pub fn flags(&self) -> u8 {
        self.bytes[13]
    }

    /// Whether the checksum is right.
    pub fn checksum_ok(&self, source: IpAddr, destination: IpAddr) -> bool {
        Sum::default()
            .pseudo_header(source, destination, protocol::TCP, self.bytes.len())
            .octets(self.bytes)
            .finish()
            == 0
    }

    /// What follows the header and its options.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.bytes[12] >> 4) * 4..]
    }
}
