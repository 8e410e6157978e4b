//! The part of the SCTP packet format (RFC 9260 §3) that demultiplexing and association set-up need.
//!
//! ```text
//! common header   source port 16 | destination port 16 | verification tag 32 | checksum 32
//! chunk           type 8 | flags 8 | length 16 (with this header, without padding) | value | padding to 4
//! ```

use super::crc32c::packet_checksum;

pub(super) const HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
/// Chunk header, initiate tag, window, stream counts, initial TSN.
const INIT_FIXED: usize = 20;
const STATE_COOKIE: u16 = 7;
const HEARTBEAT_INFORMATION: u16 = 1;

pub(super) const INIT: u8 = 1;
pub(super) const INIT_ACK: u8 = 2;
const SACK: u8 = 3;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
pub(super) const ABORT: u8 = 6;
pub(super) const SHUTDOWN: u8 = 7;
pub(super) const SHUTDOWN_ACK: u8 = 8;
pub(super) const ERROR: u8 = 9;
pub(super) const COOKIE_ECHO: u8 = 10;
pub(super) const COOKIE_ACK: u8 = 11;
pub(super) const SHUTDOWN_COMPLETE: u8 = 14;

/// The verification tag was copied from the packet being answered, because there is no association (RFC
/// 9260 §8.4).
const T_BIT: u8 = 1;

/// Error causes (RFC 9260 §3.3.10).
pub(super) const CAUSE_STALE_COOKIE: u16 = 3;
pub(super) const CAUSE_OUT_OF_RESOURCE: u16 = 4;

/// Why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadPacket {
    /// Shorter than a header, or its chunks do not fill it.
    Malformed,
    /// The checksum differs.
    Checksum,
}

/// A packet with a correct checksum and consistent chunk lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    bytes: &'a [u8],
}

/// One chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk<'a> {
    pub kind: u8,
    pub flags: u8,
    /// With header, without padding.
    pub bytes: &'a [u8],
    /// Length with padding.
    padded: usize,
}

impl<'a> Packet<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, BadPacket> {
        if bytes.len() < HEADER + CHUNK_HEADER {
            return Err(BadPacket::Malformed);
        }
        let packet = Packet { bytes };
        let carried = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if carried != packet_checksum(bytes) {
            return Err(BadPacket::Checksum);
        }
        let filled: usize = packet.chunks().map(|chunk| chunk.padded).sum();
        // The padding of the last chunk may be missing.
        if HEADER + filled < bytes.len() { Err(BadPacket::Malformed) } else { Ok(packet) }
    }

    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.bytes[0], self.bytes[1]])
    }

    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }

    pub fn verification_tag(&self) -> u32 {
        u32::from_be_bytes([self.bytes[4], self.bytes[5], self.bytes[6], self.bytes[7]])
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The chunks, up to the first with an impossible length.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk<'a>> + use<'a> {
        let mut rest = &self.bytes[HEADER..];
        std::iter::from_fn(move || {
            let chunk = chunk(rest)?;
            rest = &rest[chunk.padded..];
            Some(chunk)
        })
    }

    /// The first chunk: `parse` has checked that there is one.
    pub fn first(&self) -> Option<Chunk<'a>> {
        self.chunks().next()
    }

    /// The initiate tag, if the first chunk is an INIT or INIT ACK.
    pub fn initiate_tag(&self) -> Option<u32> {
        let value = self.first()?.bytes.get(4..8)?;
        Some(u32::from_be_bytes([value[0], value[1], value[2], value[3]]))
    }

    /// The cookie, if the first chunk is a COOKIE ECHO.
    pub fn cookie(&self) -> Option<&'a [u8]> {
        self.first().filter(|chunk| chunk.kind == COOKIE_ECHO).map(|chunk| &chunk.bytes[CHUNK_HEADER..])
    }

    /// The number of our [`heartbeat`] that a HEARTBEAT ACK in this packet returns. The protocol
    /// machine's own heartbeats have information of another length.
    pub fn heartbeat_acknowledged(&self) -> Option<u64> {
        let acknowledge = self.chunks().find(|chunk| chunk.kind == HEARTBEAT_ACK)?;
        let information = chunk(&acknowledge.bytes[CHUNK_HEADER..])?;
        if u16::from_be_bytes([information.kind, information.flags]) != HEARTBEAT_INFORMATION {
            return None;
        }
        Some(u64::from_be_bytes(information.bytes[CHUNK_HEADER..].try_into().ok()?))
    }

    /// This packet with a SACK in front that repeats the acknowledgement in its SHUTDOWN (RFC 9260
    /// §3.3.8), because the protocol machine ignores it there; `None` if there is no SHUTDOWN.
    pub fn with_shutdown_acknowledged(&self) -> Option<Vec<u8>> {
        let shutdown = self.chunks().find(|chunk| chunk.kind == SHUTDOWN)?;
        let cumulative_tsn = shutdown.bytes.get(CHUNK_HEADER..CHUNK_HEADER + 4)?;
        let mut packet = self.bytes[..HEADER].to_vec();
        // Cumulative TSN, a window without further use, no gaps, no duplicates.
        push_tlv(
            &mut packet,
            [SACK, 0],
            &[cumulative_tsn, &u32::from(u16::MAX).to_be_bytes(), &[0; 4]].concat(),
        );
        packet.extend_from_slice(&self.bytes[HEADER..]);
        write_checksum(&mut packet);
        Some(packet)
    }

    /// This packet with another cookie in its leading COOKIE ECHO.
    pub fn with_cookie(&self, cookie: &[u8]) -> Vec<u8> {
        let after = self.first().map_or(HEADER, |chunk| HEADER + chunk.padded);
        let mut packet = self.bytes[..HEADER].to_vec();
        push_tlv(&mut packet, [COOKIE_ECHO, 0], cookie);
        packet.extend_from_slice(&self.bytes[after..]);
        write_checksum(&mut packet);
        packet
    }
}

/// The chunk at the start of `bytes`.
fn chunk(bytes: &[u8]) -> Option<Chunk<'_>> {
    let header = bytes.get(..CHUNK_HEADER)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length < CHUNK_HEADER || length > bytes.len() {
        return None;
    }
    let padded = length.next_multiple_of(4).min(bytes.len());
    Some(Chunk { kind: header[0], flags: header[1], bytes: &bytes[..length], padded })
}

impl Chunk<'_> {
    /// Whether the verification tag is a reflected one.
    pub fn reflected(&self) -> bool {
        self.flags & T_BIT != 0
    }

    /// The codes of the error causes in an ABORT or ERROR.
    pub fn causes(&self) -> impl Iterator<Item = u16> {
        let mut rest = &self.bytes[CHUNK_HEADER..];
        std::iter::from_fn(move || {
            let cause = chunk(rest)?;
            rest = &rest[cause.padded..];
            Some(u16::from_be_bytes([cause.kind, cause.flags]))
        })
    }
}

/// Replaces the state cookie of one of our INIT ACK packets by the result of `seal`. `None` if the
/// packet is not an INIT ACK.
pub(super) fn seal_init_ack(bytes: &[u8], seal: impl FnOnce(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    let init_ack = chunk(bytes.get(HEADER..)?).filter(|chunk| chunk.kind == INIT_ACK)?.bytes;
    let mut parameters = init_ack.get(INIT_FIXED..)?;
    let mut packet = bytes[..HEADER + INIT_FIXED].to_vec();
    let mut seal = Some(seal);
    // Parameters have the same layout as chunks, with type and flags as one 16-bit type.
    while let Some(parameter) = chunk(parameters) {
        if u16::from_be_bytes([parameter.kind, parameter.flags]) == STATE_COOKIE
            && let Some(seal) = seal.take()
        {
            push_tlv(&mut packet, STATE_COOKIE.to_be_bytes(), &seal(&parameter.bytes[CHUNK_HEADER..]));
        } else {
            packet.extend_from_slice(&parameters[..parameter.padded]);
            packet.resize(packet.len().next_multiple_of(4), 0);
        }
        parameters = &parameters[parameter.padded..];
    }
    let length = (packet.len() - HEADER) as u16;
    packet[HEADER + 2..HEADER + 4].copy_from_slice(&length.to_be_bytes());
    write_checksum(&mut packet);
    Some(packet)
}

/// An ABORT for a packet without an association (RFC 9260 §8.4): `tag` is the packet's reflected tag,
/// or the initiate tag of an INIT, or the tag in the cookie.
pub(super) fn abort(source: u16, destination: u16, tag: u32, reflected: bool, cause: Option<u16>) -> Vec<u8> {
    let mut value = Vec::new();
    if let Some(cause) = cause {
        push_tlv(&mut value, cause.to_be_bytes(), &[]);
    }
    single(source, destination, tag, [ABORT, if reflected { T_BIT } else { 0 }], &value)
}

/// The answer to a SHUTDOWN ACK of an unknown association.
pub(super) fn shutdown_complete(source: u16, destination: u16, tag: u32) -> Vec<u8> {
    single(source, destination, tag, [SHUTDOWN_COMPLETE, T_BIT], &[])
}

/// A HEARTBEAT that carries `number`, which the peer returns (RFC 9260 §8.3).
pub(super) fn heartbeat(source: u16, destination: u16, tag: u32, number: u64) -> Vec<u8> {
    let mut value = Vec::new();
    push_tlv(&mut value, HEARTBEAT_INFORMATION.to_be_bytes(), &number.to_be_bytes());
    single(source, destination, tag, [HEARTBEAT, 0], &value)
}

/// An ERROR that reports the cookie as too old by `micros` (RFC 9260 §5.2.6).
pub(super) fn stale_cookie(source: u16, destination: u16, tag: u32, micros: u32) -> Vec<u8> {
    let mut value = Vec::new();
    push_tlv(&mut value, CAUSE_STALE_COOKIE.to_be_bytes(), &micros.to_be_bytes());
    single(source, destination, tag, [ERROR, 0], &value)
}

fn single(source: u16, destination: u16, tag: u32, kind: [u8; 2], value: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(HEADER + CHUNK_HEADER + value.len());
    packet.extend_from_slice(&source.to_be_bytes());
    packet.extend_from_slice(&destination.to_be_bytes());
    packet.extend_from_slice(&tag.to_be_bytes());
    packet.extend_from_slice(&[0; 4]);
    push_tlv(&mut packet, kind, value);
    write_checksum(&mut packet);
    packet
}

/// Appends type, length, value and padding.
fn push_tlv(packet: &mut Vec<u8>, kind: [u8; 2], value: &[u8]) {
    packet.extend_from_slice(&kind);
    packet.extend_from_slice(&((CHUNK_HEADER + value.len()) as u16).to_be_bytes());
    packet.extend_from_slice(value);
    packet.resize(packet.len().next_multiple_of(4), 0);
}

fn write_checksum(packet: &mut [u8]) {
    let checksum = packet_checksum(packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn our_packets_parse_and_say_what_they_are() {
        let bytes = abort(38412, 1000, 7, true, Some(CAUSE_OUT_OF_RESOURCE));
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(
            (packet.source_port(), packet.destination_port(), packet.verification_tag()),
            (38412, 1000, 7)
        );
        let chunk = packet.first().unwrap();
        assert_eq!((chunk.kind, chunk.reflected()), (ABORT, true));
        assert_eq!(chunk.causes().collect::<Vec<_>>(), [CAUSE_OUT_OF_RESOURCE]);
        let bytes = stale_cookie(1, 2, 3, 1_000_000);
        assert_eq!(Packet::parse(&bytes).unwrap().first().unwrap().causes().next(), Some(CAUSE_STALE_COOKIE));
        assert_eq!(
            Packet::parse(&shutdown_complete(1, 2, 3)).unwrap().first().unwrap().kind,
            SHUTDOWN_COMPLETE
        );
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = stale_cookie(1, 2, 3, 99);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Packet::parse(&bad).unwrap_err(), BadPacket::Checksum);
        }
        for length in 0..good.len() {
            assert!(Packet::parse(&good[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_cookie_is_replaced_and_what_follows_stays() {
        let mut bytes = single(1, 2, 3, [COOKIE_ECHO, 0], b"twelve bytes");
        push_tlv(&mut bytes, [0, 3], b"data");
        write_checksum(&mut bytes);
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.cookie(), Some(&b"twelve bytes"[..]));
        let replaced = packet.with_cookie(b"short");
        let packet = Packet::parse(&replaced).unwrap();
        assert_eq!(packet.cookie(), Some(&b"short"[..]));
        assert_eq!(packet.chunks().nth(1).unwrap().bytes, b"\x00\x03\x00\x08data");
    }

    #[test]
    fn a_shutdown_acknowledges() {
        let bytes = single(1, 2, 3, [SHUTDOWN, 0], &[0xde, 0xad, 0xbe, 0xef]);
        let spelt_out = Packet::parse(&bytes).unwrap().with_shutdown_acknowledged().unwrap();
        let packet = Packet::parse(&spelt_out).unwrap();
        let chunks: Vec<_> = packet.chunks().collect();
        assert_eq!((chunks[0].kind, &chunks[0].bytes[4..8]), (SACK, &[0xde, 0xad, 0xbe, 0xef][..]));
        assert_eq!(chunks[1].bytes, &bytes[HEADER..]);
        let none = abort(1, 2, 3, false, None);
        assert!(Packet::parse(&none).unwrap().with_shutdown_acknowledged().is_none());
    }

    proptest! {
        /// Arbitrary packets, with a corrected checksum so that the chunks are read.
        #[test]
        fn arbitrary_packets_do_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if bytes.len() >= HEADER {
                write_checksum(&mut bytes);
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let _ = packet.with_shutdown_acknowledged();
                let _ = (packet.initiate_tag(), packet.cookie().map(|_| packet.with_cookie(b"x")));
                for chunk in packet.chunks() {
                    let _ = chunk.causes().count();
                }
            }
            let _ = seal_init_ack(&bytes, <[u8]>::to_vec);
        }
    }
}
