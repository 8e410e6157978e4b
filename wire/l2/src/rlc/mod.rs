//! RLC (TS 38.322): segmentation and reassembly of SDUs, with retransmission in acknowledged mode.
//!
//! ```text
//!  PDCP ──SDU──► transmitting entity ──PDU, as long as the grant──► MAC ~~~► receiving entity ──SDU──► PDCP
//! ```
//! [`um`] carries user data: an SDU that fits its grant gets one octet in front, and none is kept. Segments carry sequence
//! numbers. [`am`] carries signalling: all PDUs carry sequence numbers, and the receiver reports what it lacks.
//! Transparent mode adds nothing, so it needs no code.
//!
//! State variables have the names of the standard (§7.1). Times are nanoseconds of any clock that the caller passes in.
//! Every buffer has a limit in octets: what exceeds it is refused, and the caller counts it.
//!
//! Read first: [`um::Rx`], then [`am`].

pub mod am;
mod segments;
pub mod um;

/// Octets of the longest SDU: PDCP's limit of 9,000 octets (TS 38.323 §4.3.1) with room for its header, SDAP's, and MAC-I.
pub const LONGEST_SDU: usize = 9_016;

/// Which part of its SDU a PDU carries: the field SI (§6.2.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentInfo {
    /// All octets.
    Whole,
    /// The first octets, and not the last one.
    First,
    /// The last octets, and not the first one.
    Last,
    /// Neither the first octet nor the last one.
    Middle,
}

impl SegmentInfo {
    /// From the two upper bits of `octet`.
    #[inline]
    fn of_upper_bits(octet: u8) -> SegmentInfo {
        match octet >> 6 {
            0 => SegmentInfo::Whole,
            1 => SegmentInfo::First,
            2 => SegmentInfo::Last,
            _ => SegmentInfo::Middle,
        }
    }

    /// The part of an SDU of `total` octets that `octets` octets from `offset` on are.
    fn of_part(offset: usize, octets: usize, total: usize) -> SegmentInfo {
        match (offset == 0, offset + octets >= total) {
            (true, true) => SegmentInfo::Whole,
            (true, false) => SegmentInfo::First,
            (false, true) => SegmentInfo::Last,
            (false, false) => SegmentInfo::Middle,
        }
    }

    fn bits(self) -> u8 {
        match self {
            SegmentInfo::Whole => 0,
            SegmentInfo::First => 1,
            SegmentInfo::Last => 2,
            SegmentInfo::Middle => 3,
        }
    }

    /// Whether the header has a segment offset.
    fn has_offset(self) -> bool {
        matches!(self, SegmentInfo::Last | SegmentInfo::Middle)
    }

    /// Whether the segment ends its SDU.
    fn is_end(self) -> bool {
        matches!(self, SegmentInfo::Whole | SegmentInfo::Last)
    }
}

/// Why a received PDU was discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PduError {
    /// It ends within its header, or behind it without data.
    #[error("the PDU is truncated")]
    Truncated,
    /// A reserved type of control PDU.
    #[error("the PDU has an unknown type")]
    UnknownType,
    /// A later segment at offset 0, or a segment that contradicts others about the length of their SDU.
    #[error("the segment does not fit its SDU")]
    Inconsistent,
    /// The SDU would be longer than [`LONGEST_SDU`].
    #[error("the SDU is too long")]
    TooLong,
    /// Its SDU has been delivered or given up, all its octets have come before, or it is outside the receiving window.
    #[error("the PDU is outside the receiving window or a duplicate")]
    OutsideWindow,
    /// The reassembly buffer is full.
    #[error("the reassembly buffer is full")]
    NoRoom,
    /// A status about SDUs that were never sent, with ranges that cannot be, or older than one that has come.
    #[error("the status contradicts what was sent")]
    Status,
}

/// Why an SDU was not taken for transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SduError {
    /// It has no octets.
    #[error("the SDU is empty")]
    Empty,
    /// It is longer than [`LONGEST_SDU`].
    #[error("the SDU is too long")]
    TooLong,
    /// The transmission buffer is full.
    #[error("the transmission buffer is full")]
    NoRoom,
}

/// Checks the length of an SDU of `octets` octets for a buffer that holds `used` of `limit` octets.
fn admit(octets: usize, used: usize, limit: usize) -> Result<(), SduError> {
    match octets {
        0 => Err(SduError::Empty),
        _ if octets > LONGEST_SDU => Err(SduError::TooLong),
        _ if octets > limit.saturating_sub(used) => Err(SduError::NoRoom),
        _ => Ok(()),
    }
}

/// Sequence numbers of `bits` bits, compared from a base on (§7.1).
#[derive(Clone, Copy, Debug)]
struct Modulo {
    mask: u32,
}

impl Modulo {
    const fn of_bits(bits: u32) -> Modulo {
        Modulo { mask: (1 << bits) - 1 }
    }

    /// Half of all numbers: the size of the windows.
    const fn window(self) -> u32 {
        self.mask.div_ceil(2)
    }

    #[inline]
    const fn add(self, sn: u32, n: u32) -> u32 {
        sn.wrapping_add(n) & self.mask
    }

    /// How far `sn` is behind `base`.
    #[inline]
    const fn distance(self, base: u32, sn: u32) -> u32 {
        sn.wrapping_sub(base) & self.mask
    }
}
