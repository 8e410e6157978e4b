//! The NR user plane protocol (TS 38.425), which F1-U carries in the NR RAN container of GTP-U.
//!
//! A CU sends each PDCP PDU with DL USER DATA, whose NR-U sequence numbers let the DU see losses. The DU answers with DL DATA
//! DELIVERY STATUS: how much more it wants, what it has delivered, what it has missed. Uplink PDUs need no container.
//!
//! ```text
//!  DL USER DATA                            DL DATA DELIVERY STATUS
//!  0: type 0, discard, flush, polling      0: type 1, which fields follow
//!  1: reports asked for, retransmission    1: which fields follow
//!  2: NR-U sequence number, 3 octets       2: desired buffer size, 4 octets
//!  5: what to discard, what to report      6: [data rate] [lost ranges] [PDCP SNs] [cause]
//!     padding up to the end of the extension header
//! ```
//! [`Message::parse`] reads a container, [`usual`] a packet with the usual one; [`encapsulate`] writes the usual DL USER DATA with the GTP-U header in front of a
//! payload, and [`DeliveryStatus::write`] a whole G-PDU without payload.

use crate::gtpu::{HEADER_LEN, Packet, extension_type, message_type};
use crate::{ParseError, be32};

/// NR-U and PDCP sequence numbers in a container have 24 bits.
pub const SEQUENCE_MASK: u32 = 0x00FF_FFFF;
/// Octets that [`encapsulate`] writes, hence headroom that buffers need.
pub const USER_DATA_HEADER: usize = HEADER_LEN + 4 + 8;
/// Longest message that [`DeliveryStatus::write`] makes with [`MAX_RANGES`] ranges of each kind.
pub const MAX_STATUS: usize = HEADER_LEN + 4 + 2 + 6 + 4 + 2 * (1 + 6 * MAX_RANGES) + 4 * 3 + 1 + 3;
/// Most ranges of one kind that a status is written with. More than these are reported by the next one.
pub const MAX_RANGES: usize = 32;

/// Flags of the first two octets.
mod flag {
    pub const DISCARD_BLOCKS: u8 = 0x04;
    pub const FLUSH: u8 = 0x02;
    pub const REPORT_POLLING: u8 = 0x01;
    pub const REPORT_DELIVERED: u8 = 0x08;
    pub const RETRANSMISSION: u8 = 0x01;

    pub const HIGHEST_TRANSMITTED: u8 = 0x08;
    pub const HIGHEST_DELIVERED: u8 = 0x04;
    pub const FINAL: u8 = 0x02;
    pub const LOST: u8 = 0x01;
    pub const DELIVERED_RANGES: u8 = 0x10;
    pub const DATA_RATE: u8 = 0x08;
    pub const RETRANSMITTED: u8 = 0x04;
    pub const DELIVERED_RETRANSMITTED: u8 = 0x02;
    pub const CAUSE: u8 = 0x01;
}

/// A container, by its PDU type (TS 38.425 §5.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// PDU type 0.
    UserData(UserData<'a>),
    /// PDU type 1.
    DeliveryStatus(DeliveryStatus<'a>),
    /// PDU type 2, ASSISTANCE INFORMATION DATA: radio quality and delays. Its content is not read.
    Assistance,
}

/// DL USER DATA (§5.5.2.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct UserData<'a> {
    /// NR-U sequence number, 24 bits: one per packet that the CU sends on the bearer.
    pub sequence: u32,
    /// The CU asks for a delivery status.
    pub report_polling: bool,
    /// The PDCP PDU has been sent before.
    pub retransmission: bool,
    /// The DU discards PDCP PDUs up to this sequence number.
    pub flush: Option<u32>,
    /// The DU discards these PDCP PDUs: pairs of a first sequence number and a count.
    pub discard: Blocks<'a>,
    /// The CU asks for a report once this PDCP PDU has been delivered.
    pub report_delivered: Option<u32>,
}

/// DL DATA DELIVERY STATUS (§5.5.2.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeliveryStatus<'a> {
    /// Octets that the DU wants for the bearer: what the CU may have sent beyond `highest_delivered`, or, where the DU knows
    /// nothing of delivery, beyond `highest_transmitted` (§5.4.2.1).
    pub desired_buffer_size: u32,
    /// Octets per second that the DU wants.
    pub desired_data_rate: Option<u32>,
    /// No further status follows for this bearer.
    pub final_frame: bool,
    /// NR-U sequence numbers that did not arrive.
    pub lost: Ranges<'a>,
    /// Highest PDCP sequence number below which all were delivered to the UE.
    pub highest_delivered: Option<u32>,
    /// Highest PDCP sequence number that was given to lower layers.
    pub highest_transmitted: Option<u32>,
    /// What happened to the radio link (§5.5.3.23).
    pub cause: Option<u8>,
    /// As `highest_delivered`, of those that were sent again.
    pub highest_delivered_retransmitted: Option<u32>,
    /// As `highest_transmitted`, of those that were sent again.
    pub highest_retransmitted: Option<u32>,
    /// PDCP sequence numbers that were delivered beyond `highest_delivered`.
    pub delivered: Ranges<'a>,
}

/// Ranges of sequence numbers, both ends included.
#[derive(Clone, Copy, Default)]
pub struct Ranges<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// Six octets each.
    Octets(&'a [u8]),
    Values(&'a [(u32, u32)]),
}

impl Default for Source<'_> {
    fn default() -> Self {
        Source::Values(&[])
    }
}

/// Blocks of PDCP PDUs to discard: a first sequence number and a count, in four octets each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Blocks<'a>(&'a [u8]);

impl<'a> Ranges<'a> {
    /// Of these values, of which [`MAX_RANGES`] at most are written.
    pub fn of(values: &'a [(u32, u32)]) -> Ranges<'a> {
        Ranges(Source::Values(&values[..values.len().min(MAX_RANGES)]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self.0 {
            Source::Octets(octets) => octets.len() / 6,
            Source::Values(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        let (octets, values): (&[u8], &[(u32, u32)]) = match self.0 {
            Source::Octets(octets) => (octets, &[]),
            Source::Values(values) => (&[], values),
        };
        let of_octets = octets.chunks_exact(6).map(|range| (be24(range, 0), be24(range, 3)));
        of_octets.chain(values.iter().copied())
    }
}

impl PartialEq for Ranges<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ranges<'_> {}

impl std::fmt::Debug for Ranges<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Blocks<'a> {
    /// First sequence number and count of each block.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u8)> + 'a {
        self.0.chunks_exact(4).map(|block| (be24(block, 0), block[3]))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[inline(always)]
fn be24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

/// Reads fields one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn octets(&mut self, count: usize) -> Result<&'a [u8], ParseError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn octet(&mut self) -> Result<u8, ParseError> {
        Ok(self.octets(1)?[0])
    }

    fn sequence(&mut self) -> Result<u32, ParseError> {
        Ok(be24(self.octets(3)?, 0))
    }

    /// A sequence number that is there if `present`.
    fn sequence_if(&mut self, present: bool) -> Result<Option<u32>, ParseError> {
        if present { self.sequence().map(Some) } else { Ok(None) }
    }

    fn ranges_if(&mut self, present: bool) -> Result<Ranges<'a>, ParseError> {
        if !present {
            return Ok(Ranges::default());
        }
        let count = usize::from(self.octet()?);
        Ok(Ranges(Source::Octets(self.octets(6 * count)?)))
    }
}

impl<'a> Message<'a> {
    /// Reads the content of an NR RAN container. Padding may follow.
    #[inline]
    pub fn parse(content: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let [first, second, rest @ ..] = content else { return Err(ParseError::Truncated) };
        match first >> 4 {
            0 => UserData::parse(*first, *second, Reader(rest)).map(Message::UserData),
            1 => DeliveryStatus::parse(*first, *second, Reader(rest)).map(Message::DeliveryStatus),
            2 => Ok(Message::Assistance),
            _ => Err(ParseError::Value),
        }
    }

    /// The container of a G-PDU, if it has one.
    pub fn of(packet: &Packet<'a>) -> Result<Option<Message<'a>>, ParseError> {
        packet.extension(extension_type::NR_RAN_CONTAINER).map(Message::parse).transpose()
    }
}

impl<'a> UserData<'a> {
    #[inline]
    fn parse(first: u8, second: u8, mut fields: Reader<'a>) -> Result<UserData<'a>, ParseError> {
        let sequence = fields.sequence()?;
        let flush = fields.sequence_if(first & flag::FLUSH != 0)?;
        let discard = if first & flag::DISCARD_BLOCKS != 0 {
            let count = usize::from(fields.octet()?);
            Blocks(fields.octets(4 * count)?)
        } else {
            Blocks::default()
        };
        Ok(UserData {
            sequence,
            report_polling: first & flag::REPORT_POLLING != 0,
            retransmission: second & flag::RETRANSMISSION != 0,
            flush,
            discard,
            report_delivered: fields.sequence_if(second & flag::REPORT_DELIVERED != 0)?,
        })
    }
}

impl<'a> DeliveryStatus<'a> {
    fn parse(first: u8, second: u8, mut fields: Reader<'a>) -> Result<DeliveryStatus<'a>, ParseError> {
        let has = |octet: u8, flag: u8| octet & flag != 0;
        Ok(DeliveryStatus {
            desired_buffer_size: be32(fields.octets(4)?, 0),
            desired_data_rate: if has(second, flag::DATA_RATE) {
                Some(be32(fields.octets(4)?, 0))
            } else {
                None
            },
            final_frame: has(first, flag::FINAL),
            lost: fields.ranges_if(has(first, flag::LOST))?,
            highest_delivered: fields.sequence_if(has(first, flag::HIGHEST_DELIVERED))?,
            highest_transmitted: fields.sequence_if(has(first, flag::HIGHEST_TRANSMITTED))?,
            cause: if has(second, flag::CAUSE) { Some(fields.octet()?) } else { None },
            highest_delivered_retransmitted: fields
                .sequence_if(has(second, flag::DELIVERED_RETRANSMITTED))?,
            highest_retransmitted: fields.sequence_if(has(second, flag::RETRANSMITTED))?,
            delivered: fields.ranges_if(has(second, flag::DELIVERED_RANGES))?,
        })
    }

    /// Writes the G-PDU that carries this status, and nothing else, to the CU's tunnel; returns its length. `None`: `out` is
    /// too short ([`MAX_STATUS`] always suffices).
    pub fn write(&self, teid: u32, out: &mut [u8]) -> Option<usize> {
        const CONTAINER: usize = HEADER_LEN + 4;
        let mut writer = Writer { out, at: CONTAINER + 1 };
        let flags =
            |flags: &[(bool, u8)]| flags.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
        writer.put(&[
            0x10 | flags(&[
                (self.highest_transmitted.is_some(), flag::HIGHEST_TRANSMITTED),
                (self.highest_delivered.is_some(), flag::HIGHEST_DELIVERED),
                (self.final_frame, flag::FINAL),
                (!self.lost.is_empty(), flag::LOST),
            ]),
            flags(&[
                (!self.delivered.is_empty(), flag::DELIVERED_RANGES),
                (self.desired_data_rate.is_some(), flag::DATA_RATE),
                (self.highest_retransmitted.is_some(), flag::RETRANSMITTED),
                (self.highest_delivered_retransmitted.is_some(), flag::DELIVERED_RETRANSMITTED),
                (self.cause.is_some(), flag::CAUSE),
            ]),
        ])?;
        writer.put(&self.desired_buffer_size.to_be_bytes())?;
        self.desired_data_rate.map_or(Some(()), |rate| writer.put(&rate.to_be_bytes()))?;
        writer.ranges(&self.lost)?;
        writer.sequence(self.highest_delivered)?;
        writer.sequence(self.highest_transmitted)?;
        self.cause.map_or(Some(()), |cause| writer.put(&[cause]))?;
        writer.sequence(self.highest_delivered_retransmitted)?;
        writer.sequence(self.highest_retransmitted)?;
        writer.ranges(&self.delivered)?;
        // The extension header ends with the type of the next one, on a border of four octets.
        while writer.at % 4 != 3 {
            writer.put(&[0])?;
        }
        writer.put(&[extension_type::NONE])?;
        let end = writer.at;
        out[CONTAINER] = u8::try_from((end - CONTAINER) / 4).ok()?;
        head(teid, (end - HEADER_LEN) as u16).iter().zip(out).for_each(|(octet, out)| *out = *octet);
        Some(end)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, octets: &[u8]) -> Option<()> {
        self.out.get_mut(self.at..self.at + octets.len())?.copy_from_slice(octets);
        self.at += octets.len();
        Some(())
    }

    fn sequence(&mut self, sequence: Option<u32>) -> Option<()> {
        sequence.map_or(Some(()), |sequence| self.put(&sequence.to_be_bytes()[1..]))
    }

    fn ranges(&mut self, ranges: &Ranges<'_>) -> Option<()> {
        let count = ranges.len().min(MAX_RANGES);
        if count > 0 {
            self.put(&[count as u8])?;
        }
        ranges.iter().take(count).try_for_each(|(first, last)| {
            self.sequence(Some(first))?;
            self.sequence(Some(last))
        })
    }
}

/// The GTP-U header of a G-PDU with an NR RAN container, in front of the latter.
#[inline(always)]
fn head(teid: u32, length: u16) -> [u8; HEADER_LEN + 4] {
    let ([l0, l1], [t0, t1, t2, t3]) = (length.to_be_bytes(), teid.to_be_bytes());
    // Version 1, GTP, with extension headers.
    [0x34, message_type::G_PDU, l0, l1, t0, t1, t2, t3, 0, 0, 0, extension_type::NR_RAN_CONTAINER]
}

/// Writes the headers of a PDCP PDU for the DU into the end of `headroom`: GTP-U and DL USER DATA with an NR-U sequence number
/// and, if `polling`, a request for a delivery status. Returns how many octets that took, [`USER_DATA_HEADER`]. `None`: not
/// enough room, or a payload that the length field cannot express.
#[inline(always)]
pub fn encapsulate(
    headroom: &mut [u8],
    teid: u32,
    payload_len: usize,
    sequence: u32,
    polling: bool,
) -> Option<usize> {
    let length = u16::try_from(payload_len + USER_DATA_HEADER - HEADER_LEN).ok()?;
    let [h0, h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11] = head(teid, length);
    let [_, s0, s1, s2] = sequence.to_be_bytes();
    // One value, so that the compiler makes few stores of it.
    *headroom.last_chunk_mut()? = [
        h0,
        h1,
        h2,
        h3,
        h4,
        h5,
        h6,
        h7,
        h8,
        h9,
        h10,
        h11,
        2,
        u8::from(polling) * flag::REPORT_POLLING,
        0,
        s0,
        s1,
        s2,
        0,
        extension_type::NONE,
    ];
    Some(USER_DATA_HEADER)
}

/// What [`usual`] has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usual {
    /// The tunnel.
    pub teid: u32,
    /// NR-U sequence number.
    pub sequence: u32,
    /// The CU asks for a delivery status.
    pub report_polling: bool,
    /// Where the whole message ends. The payload begins behind [`USER_DATA_HEADER`] octets.
    pub end: usize,
}

/// Reads a G-PDU with the headers that [`encapsulate`] writes. `None` for all other messages, which [`Packet::new`] and
/// [`Message::of`] read.
#[inline(always)]
pub fn usual(bytes: &[u8]) -> Option<Usual> {
    let head: &[u8; USER_DATA_HEADER] = bytes.first_chunk()?;
    let end = HEADER_LEN + usize::from(u16::from_be_bytes([head[2], head[3]]));
    let is_usual = head[..2] == [0x34, message_type::G_PDU]
        && head[11..13] == [extension_type::NR_RAN_CONTAINER, 2]
        && head[13] & !flag::REPORT_POLLING == 0
        && head[14] == 0
        && head[19] == extension_type::NONE
        && (USER_DATA_HEADER..=bytes.len()).contains(&end);
    is_usual.then(|| Usual {
        teid: be32(head, 4),
        sequence: be24(head, 15),
        report_polling: head[13] != 0,
        end,
    })
}
