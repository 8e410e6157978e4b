//! Where the fields of a packet lie in [`Words`], and the masks of matches over it.
//!
//! A key is a row of 64-bit words with a fixed place for each field that can be matched. A match is a mask over the words and
//! a value; so comparing, hashing and noting what was consulted are the same few operations for any set of fields. Fields
//! that no packet has at once share a place: ports of TCP and UDP, types of ICMP; addresses of IPv4 and ARP. A match names
//! the protocol beside such a field (OpenFlow 1.3.5 §7.2.3.8), so that it cannot be mistaken.

use openflow::{Code, Field, Match};

/// Words of a key.
pub const WORDS: usize = 22;

/// The fields of a packet.
pub type Words = [u64; WORDS];

/// What is not a field but decides what happens to a packet.
pub mod shape {
    /// Word of these bits.
    pub const WORD: usize = 21;
    /// A GTP-U message that can be read.
    pub const GTPU: u64 = 1;
    /// Where TTL or hop limit lies: 1 at least, 0 where none can be read.
    const TTL: u32 = 56;

    /// The bits for TTL or hop limit. Bit n says that n hops use it up, so that an entry of one hop depends on one bit; there
    /// are such bits for up to 55 hops.
    #[inline(always)]
    pub fn hops(ttl: u8) -> u64 {
        let ttl = ttl.max(1);
        let used_up = u64::MAX.checked_shl(ttl.into()).unwrap_or(0) & !(u64::MAX << TTL);
        u64::from(ttl) << TTL | used_up
    }

    /// The bits that say whether so many hops use up TTL or hop limit.
    pub fn asked(hops: u32) -> u64 {
        if hops < TTL { 1 << hops } else { u64::MAX << TTL }
    }

    /// Whether so many hops use up TTL or hop limit.
    pub fn is_last(word: u64, hops: u32) -> bool {
        let ttl = word >> TTL;
        ttl != 0 && ttl <= u64::from(hops)
    }
}

/// Where a field lies: its word and how far it is shifted. Fields of 128 bits have that word and the next one.
struct Place {
    word: usize,
    shift: u32,
}

const fn place(field: Field) -> Option<Place> {
    let (word, shift) = match field {
        Field::InPort => (0, 32),
        Field::Metadata => (1, 0),
        Field::TunnelId => (2, 0),
        Field::TunIpv4Src => (3, 32),
        Field::TunIpv4Dst => (3, 0),
        Field::TunIpv6Src => (4, 0),
        Field::TunIpv6Dst => (6, 0),
        Field::TunGtpuFlags => (8, 56),
        Field::TunGtpuMsgtype => (8, 48),
        Field::PacketType => (8, 0),
        Field::EthDst => (9, 0),
        Field::EthSrc => (10, 0),
        Field::EthType => (10, 48),
        Field::VlanVid => (9, 48),
        Field::VlanPcp => (9, 61),
        Field::IpDscp => (11, 58),
        Field::IpEcn => (11, 56),
        Field::IpProto => (11, 48),
        Field::Ipv6Flabel => (11, 0),
        Field::ArpOp => (11, 32),
        Field::Ipv4Src | Field::ArpSpa => (12, 32),
        Field::Ipv4Dst | Field::ArpTpa => (12, 0),
        Field::Ipv6Src => (13, 0),
        Field::Ipv6Dst => (15, 0),
        Field::TcpSrc | Field::UdpSrc | Field::Icmpv4Type | Field::Icmpv6Type => (17, 48),
        Field::TcpDst | Field::UdpDst | Field::Icmpv4Code | Field::Icmpv6Code => (17, 32),
        Field::ArpSha | Field::Ipv6NdSll => (18, 0),
        Field::ArpTha => (13, 0),
        Field::Ipv6NdTll => (18, 0),
        Field::Ipv6NdTarget => (19, 0),
        // Ports here are physical: `in_port` says it.
        Field::InPhyPort => return None,
    };
    Some(Place { word, shift })
}

/// A field's place with the bits that it has there.
#[derive(Clone, Copy)]
pub struct Spot {
    word: usize,
    shift: u32,
    bits: u128,
}

impl Spot {
    /// Writes a field of at most 64 bits into a place that is zero, as is all of a new key.
    #[inline(always)]
    pub fn put(self, words: &mut Words, value: u64) {
        words[self.word] |= value << self.shift;
    }

    /// The same for a field of 128 bits.
    #[inline(always)]
    pub fn put_long(self, words: &mut Words, value: u128) {
        words[self.word] = (value >> 64) as u64;
        words[self.word + 1] = value as u64;
    }
}

/// The place of a field that matches may have.
pub const fn spot(field: Field) -> Spot {
    match place(field) {
        Some(Place { word, shift }) => Spot { word, shift, bits: field.all_bits() },
        // Nothing is written, and zero is read.
        None => Spot { word: 0, shift: 0, bits: 0 },
    }
}

/// The places of all fields, by their numbers.
static SPOTS: [Spot; Field::ALL.len()] = {
    let mut spots = [Spot { word: 0, shift: 0, bits: 0 }; Field::ALL.len()];
    let mut number = 0;
    while number < spots.len() {
        spots[Field::ALL[number] as usize] = spot(Field::ALL[number]);
        number += 1;
    }
    spots
};

/// Whether matches and actions may have the field.
pub fn is_known(field: Field) -> bool {
    SPOTS[field as usize].bits != 0
}

/// Whether this switch can write the field into packets.
pub fn can_be_set(field: Field) -> bool {
    let cannot = matches!(
        field,
        Field::VlanVid
            | Field::VlanPcp
            | Field::IpProto
            | Field::Ipv6NdTarget
            | Field::Ipv6NdSll
            | Field::Ipv6NdTll
    );
    field.is_settable() && is_known(field) && !cannot
}

/// Reads a field.
#[inline]
pub fn get(words: &Words, field: Field) -> u128 {
    let Spot { word, shift, bits } = SPOTS[field as usize];
    if bits > u128::from(u64::MAX) {
        return u128::from(words[word]) << 64 | u128::from(words[word + 1]);
    }
    u128::from(words[word] >> shift) & bits
}

/// Writes a field.
#[inline]
pub fn set(words: &mut Words, field: Field, value: u128) {
    put(words, field, value, u128::MAX);
}

#[inline]
fn put(words: &mut Words, field: Field, value: u128, mask: u128) {
    let Spot { word, shift, bits } = SPOTS[field as usize];
    let mask = mask & bits;
    if bits > u128::from(u64::MAX) {
        let [high, low] = [(value >> 64) as u64, value as u64];
        let [high_mask, low_mask] = [(mask >> 64) as u64, mask as u64];
        words[word] = words[word] & !high_mask | high & high_mask;
        words[word + 1] = words[word + 1] & !low_mask | low & low_mask;
    } else {
        let (value, mask) = ((value as u64) << shift, (mask as u64) << shift);
        words[word] = words[word] & !mask | value & mask;
    }
}

/// Sets all bits of a field.
pub fn cover(mask: &mut Words, field: Field) {
    set(mask, field, u128::MAX);
}

/// Parts of a packet in the order in which a look-up consults them, as the first word behind each: port, metadata and
/// tunnel; GTP-U header and type of what is inside; link layer; network layer; transport. A packet that differs early is not
/// looked at further: entries for an application of one user do not make the packets of other users depend on what is inside.
const STAGES: [u8; 5] = [8, 9, 11, 17, WORDS as u8];

/// Number of stages.
pub const STAGE_COUNT: usize = STAGES.len();

/// The bits that a match looks at: words with their bits, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Mask(Box<[(u8, u64)]>);

impl Mask {
    /// Of the bits that are set.
    pub fn of(bits: &Words) -> Mask {
        let words = bits.iter().enumerate().filter(|(_, bits)| **bits != 0);
        Mask(words.map(|(word, bits)| (word as u8, *bits)).collect())
    }

    /// How many of the words lie in each stage or before it.
    pub fn stages(&self) -> [u8; STAGE_COUNT] {
        STAGES.map(|end| self.0.iter().take_while(|(word, _)| *word < end).count() as u8)
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it looks at nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The masked words of a packet, written into the beginning of `values`, which has room for them.
    #[inline]
    pub fn apply<'v>(&self, words: &Words, values: &'v mut [u64]) -> &'v [u64] {
        for (value, (word, bits)) in values.iter_mut().zip(&self.0) {
            *value = words[usize::from(*word)] & bits;
        }
        &values[..self.0.len()]
    }

    /// Notes the first `count` words as consulted.
    #[inline]
    pub fn note(&self, count: usize, consulted: &mut Words) {
        for (word, bits) in &self.0[..count] {
            consulted[usize::from(*word)] |= bits;
        }
    }

    /// Whether some packet has these values of this mask and those of the other one.
    pub fn can_meet(&self, values: &[u64], other: &Mask, others: &[u64]) -> bool {
        self.0.iter().zip(values).all(|((word, bits), value)| {
            let same = other.0.iter().zip(others).find(|((theirs, _), _)| theirs == word);
            same.is_none_or(|((_, their_bits), their_value)| (value ^ their_value) & bits & their_bits == 0)
        })
    }
}

/// A match as mask and values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pattern {
    /// The bits that it looks at.
    pub mask: Mask,
    /// Their values.
    pub values: Box<[u64]>,
}

impl Pattern {
    /// Of a match.
    ///
    /// # Errors
    /// A field that this switch does not match.
    pub fn new(matching: &Match) -> Result<Pattern, Code> {
        let (mut bits, mut words) = ([0; WORDS], [0; WORDS]);
        for oxm in matching.iter() {
            if !is_known(oxm.field()) {
                return Err(Code::OFPBMC_BAD_FIELD);
            }
            put(&mut bits, oxm.field(), oxm.mask(), oxm.mask());
            put(&mut words, oxm.field(), oxm.value(), oxm.mask());
        }
        let mask = Mask::of(&bits);
        let mut values = [0; WORDS];
        let values = mask.apply(&words, &mut values).into();
        Ok(Pattern { mask, values })
    }

    /// Whether it matches a packet.
    pub fn matches(&self, words: &Words) -> bool {
        self.mask
            .0
            .iter()
            .zip(&self.values)
            .all(|((word, bits), value)| words[usize::from(*word)] & bits == *value)
    }

    /// Whether it matches every packet that `other` matches.
    pub fn includes(&self, other: &Pattern) -> bool {
        let mut theirs = other.mask.0.iter().zip(&other.values);
        self.mask.0.iter().zip(&self.values).all(|((word, bits), value)| {
            // Both are in the order of their words.
            let same = theirs.find(|((their_word, _), _)| their_word >= word);
            same.is_some_and(|((their_word, their_bits), their_value)| {
                their_word == word && their_bits & bits == *bits && their_value & bits == *value
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields that one packet can have at once do not share bits.
    #[test]
    fn each_field_has_its_place() {
        let alternatives: &[&[Field]] = &[
            &[Field::ArpOp, Field::ArpSpa, Field::ArpTpa, Field::ArpSha, Field::ArpTha],
            &[
                Field::IpDscp,
                Field::IpEcn,
                Field::IpProto,
                Field::Ipv4Src,
                Field::Ipv4Dst,
                Field::TcpSrc,
                Field::TcpDst,
            ],
            &[
                Field::IpDscp,
                Field::IpEcn,
                Field::IpProto,
                Field::Ipv6Src,
                Field::Ipv6Dst,
                Field::Ipv6Flabel,
                Field::Icmpv6Type,
                Field::Icmpv6Code,
                Field::Ipv6NdSll,
                Field::Ipv6NdTarget,
            ],
        ];
        let network: Vec<Field> = alternatives.concat();
        let always = Field::ALL.iter().filter(|field| {
            is_known(**field)
                && !network.contains(field)
                && ![Field::UdpSrc, Field::UdpDst, Field::Icmpv4Type, Field::Icmpv4Code, Field::Ipv6NdTll]
                    .contains(field)
        });
        for alternative in alternatives {
            let mut seen = [0; WORDS];
            seen[shape::WORD] = u64::MAX;
            for field in always.clone().chain(*alternative) {
                let mut bits = [0; WORDS];
                cover(&mut bits, *field);
                let taken: u32 = bits.iter().map(|word| word.count_ones()).sum();
                assert_eq!(taken, field.all_bits().count_ones(), "{field:?}");
                for (seen, bits) in seen.iter_mut().zip(bits) {
                    assert_eq!(*seen & bits, 0, "{field:?}");
                    *seen |= bits;
                }
            }
        }
    }

    #[test]
    fn what_is_set_can_be_read() {
        for field in Field::ALL.iter().filter(|field| is_known(**field)) {
            let mut words = [u64::MAX; WORDS];
            let value = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321 & field.all_bits();
            set(&mut words, *field, value);
            assert_eq!(get(&words, *field), value, "{field:?}");
            set(&mut words, *field, field.all_bits());
            assert_eq!(words, [u64::MAX; WORDS], "{field:?}: others are as they were");
        }
    }
}
