//! Control PDUs of data radio bearers (TS 38.323 §6.2.3).

/// Octets of a status report before its bitmap.
const FIXED: usize = 5;

/// Types of control PDUs (§6.3.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlType {
    /// PDCP status report.
    StatusReport,
    /// Interspersed ROHC feedback.
    RohcFeedback,
    /// EHC feedback.
    EhcFeedback,
    /// UDC feedback.
    UdcFeedback,
    /// Reserved.
    Reserved(u8),
}

impl ControlType {
    /// The type in the first octet.
    pub fn of(first: u8) -> Self {
        match first >> 4 & 7 {
            0 => Self::StatusReport,
            1 => Self::RohcFeedback,
            2 => Self::EhcFeedback,
            3 => Self::UdcFeedback,
            other => Self::Reserved(other),
        }
    }
}

/// A PDCP status report: what the sender lacks (§6.2.3.1).
///
/// ```text
///  0 0 0 0 R R R R    D/C = 0, type 0
///  FMC (32)           COUNT of the first missing SDU
///  bitmap             bit i (from the highest): COUNT FMC + 1 + i was received; without bitmap nothing after FMC
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusReport<'a> {
    /// COUNT of the first missing SDU; everything below was received.
    pub first_missing: u32,
    bitmap: &'a [u8],
}

impl<'a> StatusReport<'a> {
    /// Reads a report; `None` when the PDU is another one or too short, or longer than an SDU.
    pub fn parse(pdu: &'a [u8]) -> Option<Self> {
        let (fixed, bitmap) = pdu.split_first_chunk::<FIXED>()?;
        let [first, fmc @ ..] = *fixed;
        if first & super::DATA != 0
            || ControlType::of(first) != ControlType::StatusReport
            || bitmap.len() > super::MAX_SDU
        {
            return None;
        }
        Some(Self { first_missing: u32::from_be_bytes(fmc), bitmap })
    }

    /// Whether the SDU with this COUNT was received.
    pub fn received(&self, count: u32) -> bool {
        let Some(distance) = count.checked_sub(self.first_missing) else { return true };
        let Some(bit) = distance.checked_sub(1) else { return false };
        self.bitmap.get(bit as usize / 8).is_some_and(|octet| octet & 0x80 >> (bit % 8) != 0)
    }

    /// The COUNTs after the first missing one that were received, in order.
    pub fn received_above(&self) -> impl Iterator<Item = u32> + '_ {
        let bits =
            (0..).take(self.bitmap.len() * 8).map_while(|i: u32| self.first_missing.checked_add(i + 1));
        bits.filter(|count| self.received(*count))
    }

    /// Writes a report: `received` are COUNTs above `first_missing`. Those that are more than 9,000 octets of bitmap away
    /// are left out (the report is an SDU's length at most).
    pub fn build(first_missing: u32, received: impl IntoIterator<Item = u32>) -> Vec<u8> {
        let mut pdu = vec![0];
        pdu.extend(first_missing.to_be_bytes());
        for count in received {
            let Some(bit) = count.checked_sub(first_missing).and_then(|distance| distance.checked_sub(1))
            else {
                continue;
            };
            let at = FIXED + bit as usize / 8;
            if at < super::MAX_SDU {
                pdu.resize(pdu.len().max(at + 1), 0);
                pdu[at] |= 0x80 >> (bit % 8);
            }
        }
        pdu
    }
}
