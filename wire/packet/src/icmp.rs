//! Echo of ICMP (RFC 792) and ICMPv6 (RFC 4443); other messages as type, code and body.

use std::net::IpAddr;

use crate::checksum::Sum;
use crate::{ParseError, be16, protocol};

/// ICMP type of an echo request.
pub const ECHO_REQUEST_V4: u8 = 8;
/// ICMP type of an echo reply.
pub const ECHO_REPLY_V4: u8 = 0;
/// ICMPv6 type of an echo request.
pub const ECHO_REQUEST_V6: u8 = 128;
/// ICMPv6 type of an echo reply.
pub const ECHO_REPLY_V6: u8 = 129;
const HEADER_LEN: usize = 8;

/// A message whose fixed header is present.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// Checks that type, code, checksum and the four octets after them are present.
    pub fn new(bytes: &'a [u8]) -> Result<Message<'a>, ParseError> {
        if bytes.len() < HEADER_LEN { Err(ParseError::Truncated) } else { Ok(Message { bytes }) }
    }

    /// Type.
    pub fn kind(&self) -> u8 {
        self.bytes[0]
    }

    /// Code.
    pub fn code(&self) -> u8 {
        self.bytes[1]
    }

    /// Identifier of an echo.
    pub fn identifier(&self) -> u16 {
        be16(self.bytes, 4)
    }

    /// Sequence number of an echo.
    pub fn sequence(&self) -> u16 {
        be16(self.bytes, 6)
    }

    /// What follows the eight octets of the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Whether the checksum is right. ICMPv6 includes the pseudo header.
    pub fn checksum_ok(&self, source: IpAddr, destination: IpAddr) -> bool {
        sum(source, destination, self.bytes) == 0
    }
}

/// The checksum over `message`; with a zeroed field it is the value of the field.
pub(crate) fn sum(source: IpAddr, destination: IpAddr, message: &[u8]) -> u16 {
    let start = match source {
        IpAddr::V4(_) => Sum::default(),
        IpAddr::V6(_) => Sum::default().pseudo_header(source, destination, protocol::ICMPV6, message.len()),
    };
    start.octets(message).finish()
}

/// Builds an echo request or reply (`kind`) for addresses of either family.
pub fn build_echo(
    source: IpAddr,
    destination: IpAddr,
    kind: u8,
    identifier: u16,
    sequence: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
    out.extend_from_slice(&[kind, 0, 0, 0]);
    out.extend_from_slice(&identifier.to_be_bytes());
    out.extend_from_slice(&sequence.to_be_bytes());
    out.extend_from_slice(payload);
    let checksum = sum(source, destination, &out);
    out[2..4].copy_from_slice(&checksum.to_be_bytes());
    out
}
