//! The PDUs of acknowledged mode (§6.2.2.4, §6.2.2.5).
//!
//! ```text
//!  1 P SI SN(4)     SN(8)          [SO]                 data, 12 bits
//!  1 P SI R R SN(2) SN(8) SN(8)    [SO]                 data, 18 bits
//!  0 000 ACK_SN(4)  ACK_SN(8)             E1 R(7)       status, 12 bits; while E1:
//!    NACK_SN(8) NACK_SN(4) E1 E2 E3 R     [SOstart SOend] [range]
//!  0 000 ACK_SN(4)  ACK_SN(8)  ACK_SN(6)  E1 R          status, 18 bits; while E1:
//!    NACK_SN(8) NACK_SN(8) NACK_SN(2) E1 E2 E3 R R R     [SOstart SOend] [range]
//! ```

use super::super::{Modulo, PduError, SegmentInfo};

const DATA: u8 = 0x80;
const POLL: u8 = 0x40;
/// SOend that stands for the last octet of the SDU.
pub const END_OF_SDU: u16 = 0xFFFF;

/// Length of the sequence number (sn-FieldLength of TS 38.331).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SnLength {
    /// 12 bits.
    Bits12,
    /// 18 bits.
    Bits18,
}

impl SnLength {
    pub(super) const fn modulo(self) -> Modulo {
        match self {
            SnLength::Bits12 => Modulo::of_bits(12),
            SnLength::Bits18 => Modulo::of_bits(18),
        }
    }

    /// Octets of the header of a data PDU.
    pub(super) const fn header_len(self, has_offset: bool) -> usize {
        let sn = match self {
            SnLength::Bits12 => 2,
            SnLength::Bits18 => 3,
        };
        sn + if has_offset { 2 } else { 0 }
    }

    /// Octets of a NACK without its optional fields.
    const fn nack_len(self) -> usize {
        self.header_len(false)
    }
}

/// Octets of a status without NACK.
pub(super) const STATUS_LEN: usize = 3;

/// The header of a data PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The sender asks for a status.
    pub poll: bool,
    /// Which part of the SDU follows.
    pub si: SegmentInfo,
    /// Sequence number of the SDU.
    pub sn: u32,
    /// Offset of the part in the SDU.
    pub so: u16,
}

impl Header {
    /// Writes the header behind what `out` holds.
    pub fn write(&self, length: SnLength, out: &mut Vec<u8>) {
        let first = DATA | if self.poll { POLL } else { 0 } | self.si.bits() << 4;
        let [_, a, b, c] = self.sn.to_be_bytes();
        match length {
            SnLength::Bits12 => out.extend([first | b & 0x0F, c]),
            SnLength::Bits18 => out.extend([first | a & 0x03, b, c]),
        }
        if self.si.has_offset() {
            out.extend(self.so.to_be_bytes());
        }
    }
}

/// Sets the poll bit of a data PDU.
pub(super) fn set_poll(pdu: &mut [u8]) {
    if let Some(first) = pdu.first_mut() {
        *first |= POLL;
    }
}

/// SDUs, or a part of one, that have not arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nack {
    /// Sequence number of the first SDU.
    pub sn: u32,
    /// How many SDUs from this one on: 1 or more.
    pub range: u8,
    /// First missing octet of the first SDU, and last one of the last SDU, [`END_OF_SDU`] if the last is not known.
    pub part: Option<(u16, u16)>,
}

/// A status (§6.2.2.5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// SDUs before this one have arrived, except for those in `nacks`.
    pub ack_sn: u32,
    /// What has not arrived.
    pub nacks: Vec<Nack>,
}

impl Status {
    /// Octets of a NACK.
    pub(super) fn nack_len(nack: &Nack, length: SnLength) -> usize {
        length.nack_len() + if nack.part.is_some() { 4 } else { 0 } + usize::from(nack.range > 1)
    }

    /// Writes the PDU behind what `out` holds.
    pub fn write(&self, length: SnLength, out: &mut Vec<u8>) {
        let e1 = u8::from(!self.nacks.is_empty());
        let ack = self.ack_sn.to_be_bytes();
        match length {
            SnLength::Bits12 => out.extend([ack[2] & 0x0F, ack[3], e1 << 7]),
            SnLength::Bits18 => {
                let [_, a, b, c] = (self.ack_sn << 2).to_be_bytes();
                out.extend([a & 0x0F, b, c | e1 << 1]);
            }
        }
        for (at, nack) in self.nacks.iter().enumerate() {
            let flags = u8::from(at + 1 < self.nacks.len()) << 2
                | u8::from(nack.part.is_some()) << 1
                | u8::from(nack.range > 1);
            match length {
                SnLength::Bits12 => out.extend([(nack.sn >> 4) as u8, (nack.sn << 4) as u8 | flags << 1]),
                SnLength::Bits18 => {
                    out.extend([
                        (nack.sn >> 10) as u8,
                        (nack.sn >> 2) as u8,
                        (nack.sn << 6) as u8 | flags << 3,
                    ]);
                }
            }
            if let Some((start, end)) = nack.part {
                out.extend(start.to_be_bytes());
                out.extend(end.to_be_bytes());
            }
            if nack.range > 1 {
                out.push(nack.range);
            }
        }
    }
}

/// A PDU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pdu<'a> {
    /// With an SDU or a part of it.
    Data(Header, &'a [u8]),
    /// With a status.
    Status(Status),
}

impl<'a> Pdu<'a> {
    /// Reads a PDU. Reserved bits are ignored, and so are octets behind a status.
    ///
    /// # Errors
    /// It is truncated, of an unknown type, or a field contradicts another.
    pub fn parse(pdu: &'a [u8], length: SnLength) -> Result<Pdu<'a>, PduError> {
        let first = *pdu.first().ok_or(PduError::Truncated)?;
        if first & DATA == 0 {
            return if first & 0x70 == 0 {
                parse_status(pdu, length).map(Pdu::Status)
            } else {
                Err(PduError::UnknownType)
            };
        }
        let si = SegmentInfo::of_upper_bits(first << 2);
        let (sn, rest) = match (length, pdu) {
            (SnLength::Bits12, [a, b, rest @ ..]) => (u32::from_be_bytes([0, 0, a & 0x0F, *b]), rest),
            (SnLength::Bits18, [a, b, c, rest @ ..]) => (u32::from_be_bytes([0, a & 0x03, *b, *c]), rest),
            _ => return Err(PduError::Truncated),
        };
        let (so, data) = match rest {
            _ if !si.has_offset() => (0, rest),
            [high, low, data @ ..] => (u16::from_be_bytes([*high, *low]), data),
            _ => return Err(PduError::Truncated),
        };
        if data.is_empty() {
            return Err(PduError::Truncated);
        }
        if si.has_offset() && so == 0 {
            return Err(PduError::Inconsistent);
        }
        Ok(Pdu::Data(Header { poll: first & POLL != 0, si, sn, so }, data))
    }
}

/// Takes octets from the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], PduError> {
    let (taken, behind) = rest.split_first_chunk::<N>().ok_or(PduError::Truncated)?;
    *rest = behind;
    Ok(*taken)
}

fn parse_status(pdu: &[u8], length: SnLength) -> Result<Status, PduError> {
    let mut rest = pdu;
    let [a, b, c] = take(&mut rest)?;
    let (ack_sn, mut more) = match length {
        SnLength::Bits12 => (u32::from_be_bytes([0, 0, a & 0x0F, b]), c & 0x80 != 0),
        SnLength::Bits18 => (u32::from_be_bytes([0, a & 0x0F, b, c]) >> 2, c & 0x02 != 0),
    };
    let mut nacks = Vec::new();
    while more {
        let (sn, flags) = match length {
            SnLength::Bits12 => {
                let [a, b] = take(&mut rest)?;
                (u32::from_be_bytes([0, 0, a, b]) >> 4, b >> 1)
            }
            SnLength::Bits18 => {
                let [a, b, c] = take(&mut rest)?;
                (u32::from_be_bytes([0, a, b, c]) >> 6, c >> 3)
            }
        };
        more = flags & 4 != 0;
        let part = if flags & 2 != 0 {
            let [a, b, c, d] = take(&mut rest)?;
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        } else {
            None
        };
        let range = if flags & 1 != 0 { take::<1>(&mut rest)?[0] } else { 1 };
        if range == 0 || part.is_some_and(|(start, end)| range == 1 && start > end) {
            return Err(PduError::Status);
        }
        nacks.push(Nack { sn, range, part });
    }
    Ok(Status { ack_sn, nacks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_octets_are_those_of_the_standard() {
        let header = |si, sn, so| Header { poll: true, si, sn, so };
        for (length, header, octets) in [
            (SnLength::Bits12, header(SegmentInfo::Whole, 0xABC, 0), &[0xCA, 0xBC][..]),
            (SnLength::Bits12, header(SegmentInfo::Last, 0x123, 0x4567), &[0xE1, 0x23, 0x45, 0x67]),
            (SnLength::Bits18, header(SegmentInfo::First, 0x2_ABCD, 0), &[0xD2, 0xAB, 0xCD]),
            (SnLength::Bits18, header(SegmentInfo::Middle, 0x3_FFFF, 1), &[0xF3, 0xFF, 0xFF, 0, 1]),
        ] {
            let mut pdu = Vec::new();
            header.write(length, &mut pdu);
            assert_eq!(pdu, octets);
            for end in 0..=pdu.len() {
                assert_eq!(Pdu::parse(&octets[..end], length), Err(PduError::Truncated));
            }
            pdu.push(7);
            assert_eq!(Pdu::parse(&pdu, length), Ok(Pdu::Data(header, &[7])));
        }
        let status = |ack_sn, sns: [u32; 3]| Status {
            ack_sn,
            nacks: vec![
                Nack { sn: sns[0], range: 1, part: None },
                Nack { sn: sns[1], range: 1, part: Some((1, 0x203)) },
                Nack { sn: sns[2], range: 9, part: Some((4, END_OF_SDU)) },
            ],
        };
        for (length, status, octets) in [
            (
                SnLength::Bits12,
                status(0xABC, [0x123, 0x456, 0x789]),
                &[0x0A, 0xBC, 0x80, 0x12, 0x38, 0x45, 0x6C, 0, 1, 2, 3, 0x78, 0x96, 0, 4, 0xFF, 0xFF, 9][..],
            ),
            (
                SnLength::Bits18,
                status(0x3_0001, [1, 2, 0x2_0003]),
                // 11 0000 0000 0000 0001: four, eight and six bits.
                &[0x0C, 0x00, 0x06, 0, 0, 0x60, 0, 0, 0xB0, 0, 1, 2, 3, 0x80, 0, 0xD8, 0, 4, 0xFF, 0xFF, 9],
            ),
        ] {
            let mut pdu = Vec::new();
            status.write(length, &mut pdu);
            assert_eq!(pdu, octets, "{length:?}");
            let nacks: usize = status.nacks.iter().map(|nack| Status::nack_len(nack, length)).sum();
            assert_eq!(pdu.len(), STATUS_LEN + nacks);
            for end in 0..pdu.len() {
                assert_eq!(Pdu::parse(&octets[..end], length), Err(PduError::Truncated));
            }
            assert_eq!(Pdu::parse(&pdu, length), Ok(Pdu::Status(status)));
        }
        assert_eq!(Pdu::parse(&[0x10, 0, 0], SnLength::Bits12), Err(PduError::UnknownType));
        assert_eq!(Pdu::parse(&[0, 9, 0x80, 0, 0x12, 0], SnLength::Bits12), Err(PduError::Status), "range 0");
        let backward = [0, 9, 0x80, 0, 0x14, 0, 2, 0, 1];
        assert_eq!(Pdu::parse(&backward, SnLength::Bits12), Err(PduError::Status));
    }
}
