//! Views and builders of user-plane packets: Ethernet, IPv4, IPv6, UDP, TCP, ICMP, neighbour
//! discovery and GTP-U (TS 29.281) with the PDU Session Container (TS 38.415) and the NR RAN container (TS 38.425).
//!
//! A view borrows bytes and checks their lengths once, in `new`; its accessors cannot fail
//! afterwards. Builders either write a header in front of a payload that is already in place (the
//! packet path) or return a `Vec` (control messages, tests). Nothing allocates while parsing, every
//! chain that a peer controls is walked to a fixed bound, and no input panics.
//!
//! Read first: [`flow::Flow`] (what the packet path wants to know of a user packet) and
//! [`gtpu::Packet`].
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ethernet;
pub mod flow;
pub mod gtpu;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod nr_u;
pub mod transport;

/// IP protocol numbers (IANA) that the code names.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating security payload.
    pub const ESP: u8 = 50;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
}

/// Why bytes are not the header that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before the header, or before what its length field announces.
    #[error("truncated")]
    Truncated,
    /// The version field names another protocol.
    #[error("wrong version")]
    Version,
    /// A length field contradicts the header itself.
    #[error("inconsistent length")]
    Length,
    /// More extension headers than [`ipv6::MAX_EXTENSION_HEADERS`] or [`gtpu::MAX_EXTENSIONS`].
    #[error("too many extension headers")]
    TooManyExtensions,
    /// A field has a value that the standard does not allow.
    #[error("invalid value")]
    Value,
    /// The checksum does not match.
    #[error("wrong checksum")]
    Checksum,
}

/// Two octets, big endian. The caller has checked the length: views do so in `new`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Four octets, big endian, as [`be16`].
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Sixteen octets, as [`be16`].
#[inline]
pub(crate) fn octets16(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&bytes[at..at + 16]);
    out
}
