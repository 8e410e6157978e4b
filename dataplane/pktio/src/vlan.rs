//! VLAN tags of an interface's frames: none, one, or two, an outer and an inner one ("QinQ").
//!
//! ```text
//! to (6) · from (6) · [outer protocol · outer ·] [8100 · inner ·] EtherType · payload
//! ```
//! A tag begins with the EtherType of its [`Protocol`]. Tags with the same identifiers and other protocols are other VLANs. The
//! inner one of two tags is always of 802.1Q.
//!
//! Priority bits are sent as zero and ignored. A tag with the identifier 0 has priority bits only, and names no VLAN
//! (IEEE 802.1Q §6.9): a received frame may have one such tag more, at any place.

use std::fmt;
use std::str::FromStr;

/// Most tags.
pub const MAX_TAGS: usize = 2;
/// Most tags of a received frame: one may have priority bits only.
const MAX_RECEIVED: usize = MAX_TAGS + 1;
/// Octets of a frame in front of its payload at most: addresses, tags, type.
pub const LONGEST_HEADER: usize = ADDRESSES + TAG * MAX_TAGS + 2;
/// Highest identifier; 0 and 4095 are reserved.
pub const MAX_ID: u16 = 4094;

/// Octets of both addresses.
const ADDRESSES: usize = 12;
/// Octets of a tag.
const TAG: usize = 4;
/// The identifier in a tag.
pub(crate) const ID: u16 = 0x0FFF;

/// The kind of a tag, by its EtherType.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// IEEE 802.1Q, 0x8100.
    #[default]
    Customer,
    /// IEEE 802.1ad, 0x88A8.
    Service,
    /// 0x9100, which switches sent as outer tag before there was 802.1ad.
    Old,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 3] = [Protocol::Customer, Protocol::Service, Protocol::Old];

    /// The EtherType.
    #[inline]
    pub const fn ethertype(self) -> u16 {
        match self {
            Protocol::Customer => 0x8100,
            Protocol::Service => 0x88A8,
            Protocol::Old => 0x9100,
        }
    }

    /// What tells it from others in a key, in the bits above an identifier.
    #[inline]
    pub(crate) const fn code(self) -> u16 {
        (self as u16) << ID.count_ones()
    }

    /// The protocol with this EtherType.
    #[inline]
    pub fn of(ethertype: u16) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.ethertype() == ethertype)
    }

    /// The name, as `ip link` has it; the EtherType where there is none.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Customer => "802.1q",
            Protocol::Service => "802.1ad",
            Protocol::Old => "0x9100",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No protocol has this name or EtherType.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 802.1q, 802.1ad or 0x9100")]
pub struct UnknownProtocol;

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    /// By name or EtherType, `802.1ad` or `0x88a8`.
    fn from_str(text: &str) -> Result<Protocol, UnknownProtocol> {
        let text = text.to_ascii_lowercase();
        let number = text.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let by_number = number.and_then(Protocol::of);
        by_number.or_else(|| Protocol::ALL.into_iter().find(|own| own.name() == text)).ok_or(UnknownProtocol)
    }
}

/// The tags of an interface, the outer one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    ids: [u16; MAX_TAGS],
    count: u8,
    /// That of the outer tag, or of the only one.
    protocol: Protocol,
    /// As they stand in a frame.
    octets: [u8; TAG * MAX_TAGS],
}

impl Tags {
    /// Tags with these identifiers: one of 802.1Q, an outer one of 802.1ad. `None` for more than two, or identifiers that are
    /// not between 1 and [`MAX_ID`].
    pub fn new(ids: &[u16]) -> Option<Tags> {
        if ids.len() > MAX_TAGS || ids.iter().any(|id| !(1..=MAX_ID).contains(id)) {
            return None;
        }
        let mut tags = Tags { count: ids.len() as u8, ..Tags::default() };
        for (own, id) in tags.ids.iter_mut().zip(ids) {
            *own = *id;
        }
        Some(tags.with_protocol(if ids.len() > 1 { Protocol::Service } else { Protocol::Customer }))
    }

    /// The same with another protocol of the outer tag, or of the only one.
    pub fn with_protocol(mut self, protocol: Protocol) -> Tags {
        if self.is_empty() {
            return self;
        }
        self.protocol = protocol;
        self.octets = [0; TAG * MAX_TAGS];
        let own = self;
        for (out, (protocol, id)) in self.octets.chunks_exact_mut(TAG).zip(own.all()) {
            out[..2].copy_from_slice(&protocol.ethertype().to_be_bytes());
            out[2..].copy_from_slice(&id.to_be_bytes());
        }
        self
    }

    /// The identifiers, the outer one first.
    #[inline]
    pub fn ids(&self) -> &[u16] {
        &self.ids[..usize::from(self.count)]
    }

    /// The protocol of the outer tag, or of the only one.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Protocols and identifiers, the outer tag first.
    pub fn all(&self) -> impl Iterator<Item = (Protocol, u16)> + '_ {
        let protocols = [self.protocol, Protocol::Customer];
        protocols.into_iter().zip(self.ids().iter().copied())
    }

    /// Whether frames have no tags.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The tags as they stand in a frame.
    #[inline]
    pub fn octets(&self) -> &[u8] {
        &self.octets[..TAG * usize::from(self.count)]
    }

    /// Length of a frame's header.
    #[inline]
    pub fn header_len(&self) -> usize {
        ADDRESSES + TAG * usize::from(self.count) + 2
    }

    /// Whether a frame of at least [`Tags::header_len`] octets begins with these tags, and none with priority bits only
    /// among them. More may follow.
    #[inline]
    pub fn begin(&self, frame: &[u8]) -> bool {
        let same = |tag: &[u8], own: &[u8]| {
            tag[..2] == own[..2] && (tag[2] & (ID >> 8) as u8, tag[3]) == (own[2], own[3])
        };
        let own = self.octets().chunks_exact(TAG);
        self.is_empty() || frame[ADDRESSES..].chunks_exact(TAG).zip(own).all(|(tag, own)| same(tag, own))
    }

    /// A number for protocols and identifiers, different for all tags.
    pub(crate) fn key(&self) -> u32 {
        let [outer, inner] = self.ids;
        key_of_outer(self.protocol, outer) | u32::from(inner)
    }

    /// The key of a frame's tags, up to two, and the length of its header.
    #[inline]
    pub(crate) fn read(frame: &[u8]) -> (u32, usize) {
        let (mut key, mut at, mut count) = (0, ADDRESSES, 0);
        for _ in 0..MAX_RECEIVED {
            let Some([a, b, c, d]) = frame.get(at..).and_then(|rest| rest.first_chunk()) else { break };
            let Some(protocol) = Protocol::of(u16::from_be_bytes([*a, *b])) else { break };
            let id = u16::from_be_bytes([*c, *d]) & ID;
            match (count, protocol) {
                _ if id == 0 => {}
                (0, _) => (key, count) = (key_of_outer(protocol, id), 1),
                (1, Protocol::Customer) => (key, count) = (key | u32::from(id), 2),
                _ => break,
            }
            at += TAG;
        }
        (key, at + 2)
    }

    /// Rewrites a frame with these tags and others with priority bits only: it then begins with these tags behind as many
    /// octets as are returned. `None`, and nothing changes, for any other frame.
    pub(crate) fn settle(&self, frame: &mut [u8]) -> Option<usize> {
        let (key, header) = Tags::read(frame);
        let more = header.checked_sub(self.header_len()).filter(|more| *more > 0)?;
        if key != self.key() || frame.len() < header {
            return None;
        }
        frame.copy_within(..ADDRESSES, more);
        frame[more + ADDRESSES..header - 2].copy_from_slice(self.octets());
        Some(more)
    }
}

/// The part of a key that says the outer tag: its upper half. The lower half is the identifier of the inner one.
fn key_of_outer(protocol: Protocol, id: u16) -> u32 {
    u32::from(protocol.code() | id) << 16
}

impl From<Option<u16>> for Tags {
    /// One tag, or none for an identifier that no VLAN has.
    fn from(id: Option<u16>) -> Tags {
        id.and_then(|id| Tags::new(&[id])).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: u16 = 0x8100;
    const S: u16 = 0x88A8;

    /// Tags, each as EtherType and identifier.
    type Octets = [(u16, u16)];

    /// A frame with these tags.
    fn frame(tags: &Octets) -> Vec<u8> {
        let mut out: Vec<u8> = (1..13).collect();
        out.extend(tags.iter().flat_map(|(kind, id)| [kind.to_be_bytes(), id.to_be_bytes()]).flatten());
        out.extend([8, 0, 0x45]);
        out
    }

    fn tags(ids: &[u16]) -> Tags {
        Tags::new(ids).unwrap()
    }

    #[test]
    fn tags_are_written_and_read() {
        let (none, one, two) = (Tags::default(), tags(&[100]), tags(&[100, 200]));
        assert_eq!(one.octets(), [0x81, 0, 0, 100]);
        assert_eq!(two.octets(), [0x88, 0xA8, 0, 100, 0x81, 0, 0, 200]);
        assert_eq!([none, one, two].map(|tags| tags.header_len()), [14, 18, 22]);
        let mut all = vec![none];
        for protocol in Protocol::ALL {
            all.extend([one, two, tags(&[100, 100]), tags(&[4094])].map(|tags| tags.with_protocol(protocol)));
        }
        assert_eq!(none.with_protocol(Protocol::Old), none);
        for own in &all {
            let octets: Vec<_> = own.all().map(|(protocol, id)| (protocol.ethertype(), id)).collect();
            // Priority bits do not matter.
            for bits in [0, 0xE000, 0x1000] {
                let octets: Vec<_> = octets.iter().map(|(kind, id)| (*kind, id | bits)).collect();
                let frame = frame(&octets);
                assert_eq!(Tags::read(&frame), (own.key(), own.header_len()));
                for other in &all {
                    let begins = other == own || other.is_empty() || own.octets().starts_with(other.octets());
                    let long = frame.len() >= other.header_len();
                    assert_eq!(long && other.begin(&frame), begins, "{own:?} {other:?}");
                    assert_eq!(own.key() == other.key(), own == other);
                }
            }
        }
        // Two tags of 802.1ad are none of ours.
        assert_eq!(
            Tags::read(&frame(&[(S, 100), (S, 200)])),
            (tags(&[100]).with_protocol(Protocol::Service).key(), 18)
        );
        assert_eq!([&[0][..], &[4095], &[1, 0], &[1, 2, 3]].map(Tags::new), [None; 4]);
        assert_eq!(Tags::new(&[]), Some(none));
    }

    #[test]
    fn a_tag_with_priority_bits_only_names_no_vlan() {
        let of = |protocol| tags(&[100, 200]).with_protocol(protocol);
        let (none, one, two) = (Tags::default(), tags(&[100]), of(Protocol::Service));
        let cases: [(Tags, &Octets, usize); 8] = [
            (none, &[(C, 0xE000)], 4),
            (none, &[(S, 0), (C, 0)], 8),
            (one, &[(C, 0xE000), (C, 100)], 4),
            (one, &[(C, 0x2000 | 100), (C, 0xE000)], 4),
            (two, &[(S, 100), (C, 0), (C, 200)], 4),
            (two, &[(S, 100), (C, 200), (C, 0)], 4),
            (two, &[(C, 0), (S, 100), (C, 200)], 4),
            (of(Protocol::Old), &[(C, 0), (0x9100, 100), (C, 200)], 4),
        ];
        for (own, octets, more) in cases {
            let mut received = frame(octets);
            assert_eq!(Tags::read(&received), (own.key(), own.header_len() + more), "{octets:?}");
            // Frames that end within their header.
            for length in 0..own.header_len() + more {
                let mut cut = received[..length].to_vec();
                if own.settle(&mut cut).is_none() {
                    assert_eq!(cut, received[..length], "it is left alone");
                }
            }
            assert_eq!(own.settle(&mut received), Some(more));
            let octets: Vec<_> = own.all().map(|(protocol, id)| (protocol.ethertype(), id)).collect();
            assert_eq!(received[more..], frame(&octets));
            assert_eq!(own.settle(&mut received[more..]), None, "nothing is left to do");
        }
        for octets in
            [&[(C, 101)][..], &[(C, 0), (C, 101)], &[(C, 0), (S, 100)], &[(C, 0), (C, 0), (C, 0), (C, 100)]]
        {
            let mut received = frame(octets);
            assert_eq!(one.settle(&mut received), None);
            assert_eq!(received, frame(octets));
        }
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        for protocol in Protocol::ALL {
            assert_eq!(protocol.to_string().parse(), Ok(protocol));
            assert_eq!(format!("{:#x}", protocol.ethertype()).parse(), Ok(protocol));
            assert_eq!(Protocol::of(protocol.ethertype()), Some(protocol));
        }
        assert_eq!("0x88A8".parse(), Ok(Protocol::Service));
        for wrong in ["", "802.1x", "0x0800", "9100", "0x19100"] {
            assert_eq!(wrong.parse::<Protocol>(), Err(UnknownProtocol), "{wrong}");
        }
    }
}
