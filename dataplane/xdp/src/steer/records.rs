//! The records that this process shares with the program, and their octets: the other side of `bpf/records.h`.
//!
//! All shared memory is words of 64 bits in the processor's order, which is little-endian.

use std::net::IpAddr;

use packet::ethernet::Mac;

/// Words of a line, its rest, a hop, an anchor, and a row of an address.
pub const LINE_WORDS: usize = 4;
pub const MORE_WORDS: usize = 8;
pub const HOP_WORDS: usize = 16;
pub const ANCHOR_WORDS: usize = 4;
pub const ADDRESS_WORDS: usize = 2;
/// Octets of a key for inner fields.
pub const INSIDE_KEY: usize = 44;

/// Words of a line.
pub mod word {
    pub const KEY: usize = 0;
    pub const ACTION: usize = 1;
    pub const PACKETS: usize = 2;
    pub const OCTETS: usize = 3;
}

/// Words of a line's rest.
pub mod more {
    pub const TURN: usize = 0;
    /// Of slot 0; that of slot 1 follows.
    pub const ACTION: usize = 1;
    /// Slot 0 in the lower half, slot 1 in the upper one.
    pub const INNER: usize = 3;
    /// `key[0]`, `key[1]`; then `key[2]`.
    pub const KEY: usize = 4;
    pub const PACKETS: usize = 6;
    pub const OCTETS: usize = 7;
}

pub const TURN_SLOT: u64 = 1;
pub const TURN_SETTLED: u64 = 2;
pub const TURN_EPOCH_BIT: u32 = 2;

/// Where numbers of anchors begin in a line's word of its key.
pub const KEY_NUMBER_BIT: u32 = 32;
/// `key[1]` of lines for inner fields. No anchor has this number.
pub const KEY_INSIDE: u32 = 0xFFFF;
/// The same part of a line's word for link-layer addresses, which are in a region of their own.
pub const KEY_FRAME: u32 = 0xFFFF;
/// The key of a line that was used.
pub const REMOVED: [u32; 3] = [1, 0, 0];
/// The key of a line that was never used.
pub const FREE: [u32; 3] = [0, 0, 0];

pub const VERDICT_FORWARD: u32 = 1;
pub const VERDICT_HOST: u32 = 2;
pub const VERDICT_DROP: u32 = 3;
pub const VERDICT_MORE: u32 = 4;
pub const SET_TEID: u32 = 0x08;
pub const SET_INNER_SOURCE: u32 = 0x10;
pub const SET_INNER_DESTINATION: u32 = 0x20;
pub const INNER_IPV6: u32 = 0x40;
pub const END_MARKERS: u32 = 0x80;
pub const INSIDE_BIT: u32 = 8;
pub const INSIDE_SETS: usize = 6;
pub const HOP_BIT: u32 = 16;

pub const HOP_DESTINATION: u32 = 0x01;
pub const HOP_SOURCE: u32 = 0x02;
pub const HOP_ETH_DESTINATION: u32 = 0x04;
pub const HOP_ETH_SOURCE: u32 = 0x08;
pub const HOP_IPV6: u32 = 0x10;
pub const HOP_IPV4: u32 = 0x20;
pub const ONLY_INTERFACE: u32 = 0x100;
pub const ONLY_SOURCE: u32 = 0x200;
pub const ONLY_ETH_DESTINATION: u32 = 0x400;
pub const ONLY_ETH_SOURCE: u32 = 0x800;

pub const ANCHOR_REMOVED: u64 = 1;
pub const ANCHOR_IPV4: u64 = 2;
pub const ANCHOR_IPV6: u64 = 3;
pub const ANCHOR_PROBES: u32 = 16;
pub const PROBES: u32 = 32;

pub const PASSED_COUNT: usize = 11;
pub const PASSED_ROW: usize = 16;
pub const PASSED_PROCESSORS: usize = 256;
pub const SCRATCH_OCTETS: usize = 128;

/// Everything above as numbers, in the order of the section `records` of the object.
#[cfg(all(test, feature = "clang"))]
pub const RECORDS: [u32; 40] = [
    LINE_WORDS as u32 * 8,
    HOP_WORDS as u32 * 8,
    ANCHOR_WORDS as u32 * 8,
    INSIDE_KEY as u32,
    MORE_WORDS as u32 * 8,
    PROBES,
    ANCHOR_PROBES,
    PASSED_COUNT as u32,
    PASSED_ROW as u32,
    PASSED_PROCESSORS as u32,
    REMOVED[0],
    KEY_NUMBER_BIT,
    KEY_INSIDE,
    KEY_FRAME,
    VERDICT_FORWARD,
    VERDICT_HOST,
    VERDICT_DROP,
    VERDICT_MORE,
    SET_TEID,
    SET_INNER_SOURCE,
    SET_INNER_DESTINATION,
    INNER_IPV6,
    END_MARKERS,
    INSIDE_BIT,
    INSIDE_SETS as u32,
    HOP_BIT,
    HOP_DESTINATION,
    HOP_SOURCE,
    HOP_ETH_DESTINATION,
    HOP_ETH_SOURCE,
    HOP_IPV6,
    HOP_IPV4,
    ONLY_INTERFACE,
    ONLY_SOURCE,
    ONLY_ETH_DESTINATION,
    ONLY_ETH_SOURCE,
    ANCHOR_REMOVED as u32,
    ANCHOR_IPV4 as u32,
    ANCHOR_IPV6 as u32,
    SCRATCH_OCTETS as u32,
];

/// An address as octets on the wire; IPv4 addresses are mapped.
pub fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The words of an address.
pub fn address_words(address: IpAddr) -> [u64; 2] {
    let octets = u128::from_le_bytes(octets(address));
    [octets as u64, (octets >> 64) as u64]
}

/// The two words of a key in a line's rest.
pub fn key_words(key: [u32; 3]) -> [u64; 2] {
    [u64::from(key[0]) | u64::from(key[1]) << 32, u64::from(key[2])]
}

/// A line's word of a key that is no pair of link-layer addresses. Its owner is nobody.
pub fn plain_key(key: [u32; 3]) -> u64 {
    u64::from(key[0]) | u64::from(key[1]) << KEY_NUMBER_BIT
}

/// A line's word of link-layer addresses.
pub fn hashed_key(key: [u32; 3]) -> u64 {
    plain_key([hash(key).0, KEY_FRAME, 0])
}

/// The key of link-layer addresses; the source is 0 for any.
pub fn frame_key(destination: Mac, source: Option<Mac>) -> [u32; 3] {
    let mut octets = [0; 12];
    octets[..6].copy_from_slice(&destination);
    octets[6..].copy_from_slice(&source.unwrap_or_default());
    let word = |at: usize| u32::from_le_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
    [word(0), word(4), word(8)]
}

/// The place where the search for a key begins in a table of `mask` + 1 buckets, and the step from bucket to bucket.
pub fn hash(key: [u32; 3]) -> (u32, u32) {
    let mut hash = key[0].wrapping_mul(0x9E37_79B1)
        ^ key[1].wrapping_mul(0x85EB_CA6B)
        ^ key[2].wrapping_mul(0xC2B2_AE35);
    hash ^= hash >> 15;
    hash = hash.wrapping_mul(0x2C1B_3C6D);
    hash ^= hash >> 13;
    (hash, hash >> 16 | 1)
}

/// The row where the search for an outer destination begins, before it is masked.
pub fn anchor_hash(address: IpAddr) -> u32 {
    let mixed = match address {
        IpAddr::V4(address) => u32::from_le_bytes(address.octets()).into(),
        IpAddr::V6(_) => {
            let [front, back] = address_words(address);
            front ^ (front >> 29) ^ back
        }
    };
    (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32
}

#[cfg(all(test, feature = "clang"))]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_records() {
        let object = crate::programs::steer().unwrap();
        let section = object.section("records").unwrap();
        let numbers: Vec<u32> =
            section.chunks_exact(4).map(|octets| u32::from_le_bytes(octets.try_into().unwrap())).collect();
        assert_eq!(numbers, RECORDS);
    }
}
