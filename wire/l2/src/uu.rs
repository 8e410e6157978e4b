//! `uu`: the link between UEs and a distributed unit, which stands for MAC and PHY. `docs/uu.md` describes it for others.
//!
//! ```text
//!  0        1            2        4     5 … 6   7 (36 bits)            12
//!  magic    version|type C-RNTI   LCID  0       NR Cell Identity       payload
//! ```
//! A datagram carries one RLC PDU, as a MAC SDU with its logical channel, or a step of the simplified random access.
//! [`Header::write`] puts the header in front of a PDU in place.

/// The UDP port of a distributed unit. UEs use any port.
pub const PORT: u16 = 38_321;
/// Octets of the header.
pub const HEADER_LEN: usize = 12;
/// First octet of every datagram.
pub const MAGIC: u8 = 0x55;
/// Version of the format.
pub const VERSION: u8 = 1;
/// Highest C-RNTI (TS 38.321 §7.1); 0 is none.
pub const MAX_C_RNTI: u16 = 0xFFEF;
/// Logical channels 1 to 32 (TS 38.321 table 6.2.1-1); 0 is SRB0.
pub const MAX_LCID: u8 = 32;
/// What stands for the C-RNTI in a broadcast on BCCH-BCH: the MIB.
pub const BCH: u16 = 0;
/// What stands for the C-RNTI in a broadcast on BCCH-DL-SCH, SIB1: SI-RNTI (TS 38.321 table 7.1-1).
pub const SI_RNTI: u16 = 0xFFFF;
/// What stands for the C-RNTI in a broadcast on PCCH: P-RNTI (TS 38.321 table 7.1-1).
pub const P_RNTI: u16 = 0xFFFE;
/// How often who camps says so, in seconds.
pub const CAMP_INTERVAL_S: u64 = 5;
/// After how long a DU forgets who has not said again that it camps, in seconds: two camps may be lost.
pub const CAMP_EXPIRY_S: u64 = 15;
/// Highest NR Cell Identity: 36 bits (TS 38.413 §9.3.1.7).
pub const MAX_CELL: u64 = (1 << 36) - 1;

/// What a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An RLC PDU of a UE.
    Uplink,
    /// An RLC PDU for a UE.
    Downlink,
    /// A UE asks for a C-RNTI. The payload is a [`ContentionIdentity`], the C-RNTI 0.
    Preamble,
    /// The C-RNTI that a UE gets. The payload is the identity from its preamble.
    RandomAccessResponse,
    /// A UE gets no C-RNTI for now. The payload is the identity from its preamble, the C-RNTI 0.
    Backoff,
    /// The sender has released the C-RNTI. There is no payload.
    Release,
    /// The sender wants what the cell broadcasts. There is no payload, the C-RNTI is 0.
    Camp,
    /// An RRC message for all that camp. The C-RNTI is [`BCH`], [`SI_RNTI`] or [`P_RNTI`].
    Broadcast,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Kind::Uplink => 1,
            Kind::Downlink => 2,
            Kind::Preamble => 3,
            Kind::RandomAccessResponse => 4,
            Kind::Backoff => 5,
            Kind::Release => 6,
            Kind::Camp => 7,
            Kind::Broadcast => 8,
        }
    }

    const fn of_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Uplink,
            2 => Kind::Downlink,
            3 => Kind::Preamble,
            4 => Kind::RandomAccessResponse,
            5 => Kind::Backoff,
            6 => Kind::Release,
            7 => Kind::Camp,
            8 => Kind::Broadcast,
            _ => return None,
        })
    }
}

/// What a UE chooses to recognise the answer to its preamble: as long as NR's contention resolution identity
/// (TS 38.321 §6.1.3.3).
pub type ContentionIdentity = [u8; 6];

/// Why a datagram is not one of this link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends within the header, or has no payload although its type has one.
    #[error("the datagram is truncated")]
    Truncated,
    /// It begins with another octet than [`MAGIC`].
    #[error("the datagram is not one of this link")]
    Magic,
    /// A version that is not known.
    #[error("unknown version")]
    Version,
    /// A type that is not known.
    #[error("unknown type")]
    Kind,
    /// A C-RNTI, logical channel or reserved field that the type does not allow.
    #[error("a field has a value that it cannot have")]
    Value,
    /// A payload whose length its type does not allow.
    #[error("the payload has the wrong length")]
    Length,
}

/// The header of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The UE; 0 while it has none; the channel of a broadcast.
    pub c_rnti: u16,
    /// The logical channel of an RLC PDU; else 0.
    pub lcid: u8,
    /// The cell: [`MAX_CELL`] at most.
    pub cell: u64,
}

impl Header {
    /// Of an RLC PDU for a UE.
    #[inline]
    pub const fn downlink(cell: u64, c_rnti: u16, lcid: u8) -> Header {
        Header { kind: Kind::Downlink, c_rnti, lcid, cell }
    }

    /// Of an RLC PDU of a UE.
    #[inline]
    pub const fn uplink(cell: u64, c_rnti: u16, lcid: u8) -> Header {
        Header { kind: Kind::Uplink, c_rnti, lcid, cell }
    }

    /// Of a wish for what a cell broadcasts.
    pub const fn camp(cell: u64) -> Header {
        Header { kind: Kind::Camp, c_rnti: 0, lcid: 0, cell }
    }

    /// Of an RRC message for all that camp, on the channel of [`BCH`], [`SI_RNTI`] or [`P_RNTI`].
    pub const fn broadcast(cell: u64, channel: u16) -> Header {
        Header { kind: Kind::Broadcast, c_rnti: channel, lcid: 0, cell }
    }

    /// Reads a datagram: its header and payload.
    ///
    /// # Errors
    /// It is not a datagram of this link.
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<(Header, &[u8]), Malformed> {
        let (head, payload) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        let [magic, version_and_kind, r0, r1, tail @ ..] = *head;
        if magic != MAGIC {
            return Err(Malformed::Magic);
        }
        if version_and_kind >> 4 != VERSION {
            return Err(Malformed::Version);
        }
        let kind = Kind::of_number(version_and_kind & 0x0F).ok_or(Malformed::Kind)?;
        let c_rnti = u16::from_be_bytes([r0, r1]);
        let tail = u64::from_be_bytes(tail);
        let header = Header { kind, c_rnti, lcid: (tail >> 56) as u8, cell: tail & MAX_CELL };
        if tail & !(0xFF << 56 | MAX_CELL) != 0 {
            return Err(Malformed::Value);
        }
        header.check(payload.len())?;
        Ok((header, payload))
    }

    /// Checks the fields against the type.
    #[inline]
    fn check(&self, octets: usize) -> Result<(), Malformed> {
        let of_ue = self.c_rnti >= 1 && self.c_rnti <= MAX_C_RNTI;
        let (fields, length) = match self.kind {
            Kind::Uplink | Kind::Downlink => (of_ue && self.lcid <= MAX_LCID, octets > 0),
            Kind::Preamble | Kind::Backoff => {
                (self.c_rnti == 0 && self.lcid == 0, octets == size_of::<ContentionIdentity>())
            }
            Kind::RandomAccessResponse => {
                (of_ue && self.lcid == 0, octets == size_of::<ContentionIdentity>())
            }
            Kind::Release => (of_ue && self.lcid == 0, octets == 0),
            Kind::Camp => (self.c_rnti == 0 && self.lcid == 0, octets == 0),
            Kind::Broadcast => (matches!(self.c_rnti, BCH | SI_RNTI | P_RNTI) && self.lcid == 0, octets > 0),
        };
        match (fields, length) {
            (false, _) => Err(Malformed::Value),
            (true, false) if octets == 0 => Err(Malformed::Truncated),
            (true, false) => Err(Malformed::Length),
            (true, true) => Ok(()),
        }
    }

    /// The header's octets.
    #[inline]
    pub const fn octets(&self) -> [u8; HEADER_LEN] {
        let [r0, r1] = self.c_rnti.to_be_bytes();
        let [lcid, a, b, c, d, e, f, g] = ((self.lcid as u64) << 56 | self.cell & MAX_CELL).to_be_bytes();
        [MAGIC, VERSION << 4 | self.kind.number(), r0, r1, lcid, a, b, c, d, e, f, g]
    }

    /// Writes the header into the end of `headroom`, right in front of a payload; `false` when there is not enough room.
    #[inline]
    pub fn write(&self, headroom: &mut [u8]) -> bool {
        let Some(out) = headroom.last_chunk_mut() else { return false };
        *out = self.octets();
        true
    }

    /// A whole datagram.
    pub fn datagram(&self, payload: &[u8]) -> Vec<u8> {
        [&self.octets()[..], payload].concat()
    }
}

/// The identity in the payload of a preamble, or of an answer to one, whose header has been read.
pub fn contention_identity(payload: &[u8]) -> Option<ContentionIdentity> {
    payload.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: u64 = 0x8_1234_5678;

    fn examples() -> [(Header, &'static [u8]); 10] {
        let control = |kind, c_rnti| Header { kind, c_rnti, lcid: 0, cell: CELL };
        [
            (Header::uplink(CELL, 0x4601, 4), &[0, 1, 2]),
            (Header::downlink(MAX_CELL, MAX_C_RNTI, MAX_LCID), &[7]),
            (control(Kind::Preamble, 0), b"abcdef"),
            (control(Kind::RandomAccessResponse, 1), b"abcdef"),
            (control(Kind::Backoff, 0), b"abcdef"),
            (control(Kind::Release, 0x4601), b""),
            (Header::camp(CELL), b""),
            (Header::broadcast(CELL, BCH), b"MIB"),
            (Header::broadcast(CELL, SI_RNTI), b"SIB1"),
            (Header::broadcast(CELL, P_RNTI), b"Paging"),
        ]
    }

    #[test]
    fn the_octets_are_as_documented() {
        let datagram = Header::uplink(CELL, 0x4601, 4).datagram(&[0xAB]);
        assert_eq!(datagram, [0x55, 0x11, 0x46, 0x01, 4, 0, 0, 0x08, 0x12, 0x34, 0x56, 0x78, 0xAB]);
        for (header, payload) in examples() {
            assert_eq!(Header::parse(&header.datagram(payload)), Ok((header, payload)));
            let mut room = [9; 20];
            assert!(header.write(&mut room) && room[..8] == [9; 8] && room[8..] == header.octets());
            assert!(!header.write(&mut room[..11]));
        }
    }

    #[test]
    fn a_datagram_ends_nowhere_before_its_end() {
        for (header, payload) in examples() {
            let datagram = header.datagram(payload);
            for length in 0..datagram.len() {
                let found = Header::parse(&datagram[..length]);
                match header.kind {
                    // Any payload of one octet or more is a PDU.
                    Kind::Uplink | Kind::Broadcast if length > HEADER_LEN => assert!(found.is_ok()),
                    _ => assert!(matches!(found, Err(Malformed::Truncated | Malformed::Length)), "{length}"),
                }
            }
        }
        let long = Header { kind: Kind::Release, c_rnti: 1, lcid: 0, cell: 0 }.datagram(&[1]);
        assert_eq!(Header::parse(&long), Err(Malformed::Length));
    }

    #[test]
    fn flipped_bits_are_refused_or_mean_something_else() {
        for (header, payload) in examples() {
            let datagram = header.datagram(payload);
            for bit in 0..HEADER_LEN * 8 {
                let mut changed = datagram.clone();
                changed[bit / 8] ^= 0x80 >> (bit % 8);
                match Header::parse(&changed) {
                    Ok((found, rest)) => {
                        assert_ne!(found, header);
                        assert_eq!(found.datagram(rest), changed, "nothing is ignored");
                    }
                    Err(error) if bit < 8 => assert_eq!(error, Malformed::Magic),
                    Err(error) if bit < 12 => assert_eq!(error, Malformed::Version),
                    Err(_) => {}
                }
            }
        }
        for channel in [1, MAX_C_RNTI, P_RNTI - 1] {
            let other = Header::broadcast(CELL, channel).datagram(b"MIB");
            assert_eq!(Header::parse(&other), Err(Malformed::Value));
        }
        assert_eq!(Header::parse(&Header::camp(CELL).datagram(b"x")), Err(Malformed::Length));
        let lcid = Header { lcid: MAX_LCID + 1, ..examples()[0].0 };
        assert_eq!(Header::parse(&lcid.datagram(&[1])), Err(Malformed::Value));
        let c_rnti = Header { c_rnti: MAX_C_RNTI + 1, ..examples()[0].0 };
        assert_eq!(Header::parse(&c_rnti.datagram(&[1])), Err(Malformed::Value));
    }
}
