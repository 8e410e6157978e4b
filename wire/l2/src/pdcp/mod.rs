//! PDCP of a radio bearer (TS 38.323): [`Tx`] protects and numbers, [`Rx`] opens, orders and drops duplicates.
//!
//! ```text
//! SRB            R R R R SN(4) | SN(8)                  | data | MAC-I (4)       signalling: MAC-I always
//! DRB, 12 bits   1 R R R SN(4) | SN(8)                  | data | [MAC-I (4)]     with integrity: MAC-I
//! DRB, 18 bits   1 R R R R R SN(2) | SN(8) | SN(8)      | data | [MAC-I (4)]
//! control        0 type(3) R R R R | …                                           DRBs only
//! ```
//! The data begin with the SDAP header where the bearer has one. Ciphered are the data after that header, and the MAC-I;
//! the MAC-I covers everything in front of it before ciphering (§5.8, §5.9). COUNT is the hyper frame number followed by
//! the sequence number; only the latter is sent.
//!
//! Both entities work in the caller's memory. On the straight way (the next PDU in order, nothing held) neither
//! allocates nor copies. Read first: [`Config`], then [`Rx`].

mod control;
mod rx;
mod tx;

#[cfg(test)]
mod tests;

pub use control::{ControlType, StatusReport};
pub use rx::{Discard, Rx, RxConfig, RxCounters, Verdict};
pub use tx::{SealError, Tx};

use crate::sdap::{self, DrbId};
use crate::security::{Cipher, CipheringAlgorithm, Direction, Input, Integrity, IntegrityAlgorithm, MAC_LEN};

/// Longest PDCP SDU (§4.3.1).
pub const MAX_SDU: usize = 9000;
/// Most octets of a header.
pub const MAX_HEADER: usize = 3;

/// D/C bit of PDUs on data radio bearers.
const DATA: u8 = 0x80;

/// Length of a sequence number (§6.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnLength {
    /// 12 bits; the only length on signalling bearers.
    Twelve = 12,
    /// 18 bits.
    Eighteen = 18,
}

impl SnLength {
    /// Bits of a sequence number.
    #[inline]
    pub const fn bits(self) -> u32 {
        self as u32
    }

    /// Half of the sequence numbers: Window_Size (§7.2).
    #[inline]
    pub const fn window(self) -> u32 {
        1 << (self.bits() - 1)
    }

    #[inline]
    const fn mask(self) -> u32 {
        (1 << self.bits()) - 1
    }

    #[inline]
    const fn header_len(self) -> usize {
        match self {
            SnLength::Twelve => 2,
            SnLength::Eighteen => 3,
        }
    }
}

/// The radio bearer of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bearer {
    /// A signalling radio bearer.
    Srb(SrbId),
    /// A data radio bearer.
    Drb(DrbId),
}

/// Signalling radio bearers with PDCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SrbId {
    /// RRC, and NAS before SRB2 is set up.
    Srb1 = 1,
    /// NAS, and logged measurements.
    Srb2 = 2,
    /// RRC with the secondary node.
    Srb3 = 3,
}

impl Bearer {
    /// BEARER of the algorithms: the identity of the bearer minus one (§5.8).
    #[inline]
    fn input(self) -> u8 {
        match self {
            Bearer::Srb(id) => id as u8 - 1,
            Bearer::Drb(id) => id.number() - 1,
        }
    }
}

/// What both ends of a bearer must agree on, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    bearer: Bearer,
    direction: Direction,
    sn: SnLength,
    sdap_header: bool,
}

impl Config {
    /// A signalling bearer: 12 bits, no SDAP.
    pub fn srb(id: SrbId, direction: Direction) -> Self {
        Self { bearer: Bearer::Srb(id), direction, sn: SnLength::Twelve, sdap_header: false }
    }

    /// A data bearer. `sdap_header`: its packets of this direction begin with the SDAP header.
    pub fn drb(id: DrbId, direction: Direction, sn: SnLength, sdap_header: bool) -> Self {
        Self { bearer: Bearer::Drb(id), direction, sn, sdap_header }
    }

    /// The bearer.
    pub fn bearer(&self) -> Bearer {
        self.bearer
    }

    /// Length of sequence numbers.
    pub fn sn(&self) -> SnLength {
        self.sn
    }

    #[inline]
    fn is_srb(&self) -> bool {
        matches!(self.bearer, Bearer::Srb(_))
    }

    /// Octets of a data PDU's header.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.sn.header_len()
    }

    /// Octets at the start of the data that are not ciphered.
    #[inline]
    fn sdap_len(&self) -> usize {
        if self.sdap_header { sdap::HEADER_LEN } else { 0 }
    }

    #[inline]
    fn input(&self, count: u32) -> Input {
        Input { count, bearer: self.bearer.input(), direction: self.direction }
    }

    /// Writes the header; `header` has [`Config::header_len`] octets.
    #[inline]
    fn write_header(&self, count: u32, header: &mut [u8]) {
        let sn = count & self.sn.mask();
        let first = if self.is_srb() { 0 } else { DATA };
        match header {
            [a, b] => [*a, *b] = [first | (sn >> 8) as u8, sn as u8],
            [a, b, c] => [*a, *b, *c] = [first | (sn >> 16) as u8, (sn >> 8) as u8, sn as u8],
            _ => {}
        }
    }

    /// The sequence number in the header of a data PDU. Reserved bits are ignored (§6.3.1).
    #[inline]
    fn read_sn(&self, pdu: &[u8]) -> Option<u32> {
        match (self.sn, pdu) {
            (SnLength::Twelve, [a, b, ..]) => Some(u32::from(a & 0x0F) << 8 | u32::from(*b)),
            (SnLength::Eighteen, [a, b, c, ..]) => {
                Some(u32::from(a & 0x03) << 16 | u32::from(*b) << 8 | u32::from(*c))
            }
            _ => None,
        }
    }
}

/// The algorithms and keys of a bearer; both directions have the same.
#[derive(Debug, Clone)]
pub struct Security {
    cipher: Cipher,
    integrity: Option<Integrity>,
}

impl Security {
    /// Ciphering, and integrity protection if it is configured. A data bearer has a MAC-I with integrity protection only,
    /// also with NIA0; a signalling bearer always, and without integrity protection the receiver does not look at it.
    pub fn new(cipher: Cipher, integrity: Option<Integrity>) -> Self {
        Self { cipher, integrity }
    }

    /// Neither: signalling before the security mode command.
    pub fn none() -> Self {
        Self { cipher: Cipher::nea0(), integrity: None }
    }

    /// The algorithms.
    pub fn algorithms(&self) -> (CipheringAlgorithm, Option<IntegrityAlgorithm>) {
        (self.cipher.algorithm(), self.integrity.as_ref().map(Integrity::algorithm))
    }

    #[inline]
    fn trailer_len(&self, config: &Config) -> usize {
        if config.is_srb() || self.integrity.is_some() { MAC_LEN } else { 0 }
    }
}
