//! VLAN tags of an interface's frames: none, one (IEEE 802.1Q), or two, an outer and an inner one (IEEE 802.1ad, "QinQ").
//!
//! ```text
//! to (6) · from (6) · [88a8 · outer ·] [8100 · inner ·] EtherType · payload
//! ```
//! Frames are sent with the outer tag of 802.1ad. Received ones may have that of 802.1Q in its place, which many switches
//! send. Priority bits are sent as zero and ignored.

/// EtherType of a VLAN tag: 802.1Q.
pub const CUSTOMER: u16 = 0x8100;
/// EtherType of an outer tag: 802.1ad.
pub const SERVICE: u16 = 0x88A8;
/// Most tags.
pub const MAX_TAGS: usize = 2;
/// Octets of a frame in front of its payload at most: addresses, tags, type.
pub const LONGEST_HEADER: usize = ADDRESSES + 4 * MAX_TAGS + 2;
/// Highest identifier; 0 and 4095 are reserved.
pub const MAX_ID: u16 = 4094;

/// Octets of both addresses.
const ADDRESSES: usize = 12;
/// The identifier in a tag.
const ID: u16 = 0x0FFF;

/// The tags of an interface, the outer one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    ids: [u16; MAX_TAGS],
    count: u8,
    /// As they stand in a frame.
    octets: [u8; 4 * MAX_TAGS],
}

impl Tags {
    /// Tags with these identifiers; `None` for more than two, or identifiers that are not between 1 and [`MAX_ID`].
    pub fn new(ids: &[u16]) -> Option<Tags> {
        let mut tags = Tags { count: ids.len() as u8, ..Tags::default() };
        if ids.len() > MAX_TAGS || ids.iter().any(|id| !(1..=MAX_ID).contains(id)) {
            return None;
        }
        for (at, id) in ids.iter().enumerate() {
            let kind = if at + 1 < ids.len() { SERVICE } else { CUSTOMER };
            tags.ids[at] = *id;
            tags.octets[4 * at..4 * at + 2].copy_from_slice(&kind.to_be_bytes());
            tags.octets[4 * at + 2..4 * at + 4].copy_from_slice(&id.to_be_bytes());
        }
        Some(tags)
    }

    /// The identifiers, the outer one first.
    #[inline]
    pub fn ids(&self) -> &[u16] {
        &self.ids[..usize::from(self.count)]
    }

    /// Whether frames have no tags.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The tags as they stand in a frame.
    #[inline]
    pub fn octets(&self) -> &[u8] {
        &self.octets[..4 * usize::from(self.count)]
    }

    /// Length of a frame's header.
    #[inline]
    pub fn header_len(&self) -> usize {
        ADDRESSES + 4 * usize::from(self.count) + 2
    }

    /// Whether a frame of at least [`Tags::header_len`] octets begins with these tags. More may follow.
    #[inline]
    pub fn begin(&self, frame: &[u8]) -> bool {
        self.is_empty() || {
            let own = frame[ADDRESSES..].chunks_exact(4).zip(self.ids().iter().zip(1..));
            own.fold(true, |same, (tag, (id, place))| {
                let kind = u16::from_be_bytes([tag[0], tag[1]]);
                let outer = kind == SERVICE && place < self.count;
                same && (kind == CUSTOMER || outer) && u16::from_be_bytes([tag[2], tag[3]]) & ID == *id
            })
        }
    }

    /// A number for the identifiers, different for all tags.
    pub(crate) fn key(&self) -> u32 {
        u32::from(self.ids[0]) << 16 | u32::from(self.ids[1])
    }

    /// The key of a frame's tags, up to two, and the length of its header.
    #[inline]
    pub(crate) fn read(frame: &[u8]) -> (u32, usize) {
        let (mut key, mut at) = (0, ADDRESSES);
        for place in 0..MAX_TAGS {
            let Some(tag) = frame.get(at..at + 4) else { break };
            let kind = u16::from_be_bytes([tag[0], tag[1]]);
            if kind != CUSTOMER && (kind != SERVICE || place > 0) {
                break;
            }
            key |= u32::from(u16::from_be_bytes([tag[2], tag[3]]) & ID) << (16 * (MAX_TAGS - 1 - place));
            at += 4;
        }
        (key, at + 2)
    }
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

    #[test]
    fn tags_are_written_and_read() {
        let frame = |tags: &[u8]| [&[0; 12], tags, &[8, 0, 0x45]].concat();
        let (one, two) = (Tags::new(&[100]).unwrap(), Tags::new(&[100, 200]).unwrap());
        assert_eq!(one.octets(), [0x81, 0, 0, 100]);
        assert_eq!(two.octets(), [0x88, 0xA8, 0, 100, 0x81, 0, 0, 200]);
        assert_eq!([Tags::default(), one, two].map(|tags| tags.header_len()), [14, 18, 22]);
        for tags in [Tags::default(), one, two] {
            let own = frame(tags.octets());
            assert_eq!(Tags::read(&own), (tags.key(), tags.header_len()));
            assert!(tags.begin(&own));
        }
        // An outer tag of 802.1Q, and priorities.
        let plain = frame(&[0x81, 0, 0xE0, 100, 0x81, 0, 0x20, 200]);
        assert_eq!(Tags::read(&plain), (two.key(), 22));
        assert!(two.begin(&plain));
        let service = frame(&[0x88, 0xA8, 0, 100]);
        assert!(!one.begin(&service), "one tag is 802.1Q");
        assert!(!two.begin(&frame(&[0x88, 0xA8, 0, 100, 0x88, 0xA8, 0, 200])));
        assert!(!two.begin(&frame(&[0x88, 0xA8, 0, 200, 0x81, 0, 0, 100])));
        // Frames that end within their tags.
        for length in 0..22 {
            Tags::read(&plain[..length]);
        }
        assert_eq!([&[0][..], &[4095], &[1, 0], &[1, 2, 3]].map(Tags::new), [None; 4]);
        assert_eq!(Tags::new(&[]), Some(Tags::default()));
    }
}
