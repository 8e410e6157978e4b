//! Where users' messages differ on S11: identities, TEIDs, cells, addresses (TS 29.274 §8).

use gtpv2c::ie;

use super::HEADER;
use crate::template::{Source, Spot};

/// The spots of a message. None beyond the first octet that cannot be read.
pub fn find(message: &[u8], found: &mut Vec<Spot>) {
    let has_teid = message.first().is_some_and(|flags| flags & 0x08 != 0);
    if message.len() < HEADER || !has_teid || message.len() > usize::from(u16::MAX) {
        return;
    }
    found.push(Spot { at: 4, len: 4, source: Source::Stored });
    found.push(Spot { at: 8, len: 3, source: Source::Sequence });
    ies(message, HEADER, message.len(), false, found);
}

fn ies(message: &[u8], mut at: usize, end: usize, is_grouped: bool, found: &mut Vec<Spot>) {
    while let Some([kind, l0, l1, _]) = message.get(at..end).and_then(|rest| rest.first_chunk()) {
        let (begin, length) = (at + 4, usize::from(u16::from_be_bytes([*l0, *l1])));
        let Some(value) = message.get(begin..end).and_then(|rest| rest.get(..length)) else { return };
        let mut spot = |offset: usize, len: usize| {
            if len > 0 && offset + len <= value.len() {
                found.push(Spot { at: (begin + offset) as u16, len: len as u16, source: Source::Stored });
            }
        };
        match *kind {
            ie::IMSI | ie::MSISDN | ie::MEI | ie::CHARGING_ID => spot(0, length),
            ie::F_TEID => spot(1, 4),
            ie::ULI => spot(cell(value), 4),
            ie::PAA => match value.first().map(|kind| kind & 0x7) {
                Some(1) => spot(1, 4),
                Some(2) => spot(2, 16),
                Some(3) => {
                    spot(2, 16);
                    spot(18, 4);
                }
                _ => {}
            },
            ie::BEARER_CONTEXT if !is_grouped => ies(message, begin, begin + length, true, found),
            _ => {}
        }
        at = begin + length;
    }
}

/// Where a cell's identity is in user location information (§8.21): in ECGI, behind its PLMN. Beyond the end if there is none.
fn cell(value: &[u8]) -> usize {
    let Some(flags) = value.first().filter(|flags| **flags & 0x10 != 0) else { return value.len() };
    let before = [(0x01, 7), (0x02, 7), (0x04, 7), (0x08, 5)];
    1 + 3 + before.iter().map(|(flag, octets)| if flags & flag != 0 { *octets } else { 0 }).sum::<usize>()
}
