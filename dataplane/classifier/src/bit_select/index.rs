//! From the chosen bits of a key to the number of a cell.

use super::choose::Ternary;
use crate::Key;
use crate::simd::Scan;
use crate::simd::portable::Portable;
use crate::store::{PAIRS, pair};

/// Gathers bits of two neighbouring words.
#[derive(Clone, Copy, Debug, Default)]
struct Pick {
    /// Which pair of words.
    pair: usize,
    mask: u64,
    /// Where the gathered bits go.
    shift: u32,
}

/// Which bits make up the number of a cell.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Addresses, and ports with protocol: what almost all rules are told apart by. Zero masks cost next to nothing.
    addresses: Pick,
    ports: Pick,
    /// All other words.
    more: Box<[Pick]>,
    bits: u32,
}

impl Index {
    /// Of these bits, in any order.
    pub fn new(selection: &[usize]) -> Index {
        let mut masks = [0u64; PAIRS];
        for bit in selection {
            masks[bit / 64] |= 1 << (bit % 64);
        }
        let mut bits = 0;
        let mut picks = masks.into_iter().enumerate().map(|(pair, mask)| {
            let pick = Pick { pair, mask, shift: bits };
            bits += mask.count_ones();
            pick
        });
        let (addresses, ports) = (picks.next().unwrap_or_default(), picks.next().unwrap_or_default());
        let more = picks.filter(|pick| pick.mask != 0).collect();
        Index { addresses, ports, more, bits }
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        1 << self.bits
    }

    /// The cell of a key.
    #[inline(always)]
    pub fn of(&self, key: &Key, scan: impl Scan) -> usize {
        self.gather(|at| pair(&key.words, at), scan)
    }

    /// The number that these pairs of words make.
    #[inline(always)]
    fn gather(&self, pair: impl Fn(usize) -> u64, scan: impl Scan) -> usize {
        // The first two picks are at fixed places, the others are seldom there.
        let mut number = scan.gather(pair(0), self.addresses.mask)
            | scan.gather(pair(1), self.ports.mask) << self.ports.shift;
        for pick in &self.more {
            number |= scan.gather(pair(pick.pair), pick.mask) << pick.shift;
        }
        number as usize
    }

    /// The bit of the number that a bit of the key becomes.
    pub fn weight(&self, bit: usize) -> usize {
        self.gather(|at| if at == bit / 64 { 1 << (bit % 64) } else { 0 }, Portable)
    }

    /// Mask and value that a rule demands of the number.
    #[inline(always)]
    pub fn demands(&self, rule: &Ternary, scan: impl Scan) -> (usize, usize) {
        (self.gather(|at| rule.mask[at], scan), self.gather(|at| rule.value[at], scan))
    }

    /// Bits of the number that a rule leaves open: it belongs to two to this power of cells.
    #[inline(always)]
    pub fn spread(&self, rule: &Ternary, scan: impl Scan) -> u32 {
        self.bits - self.gather(|at| rule.mask[at], scan).count_ones()
    }

    /// All cells that a rule belongs to, ascending.
    #[inline(always)]
    pub fn cells_of(&self, rule: &Ternary, scan: impl Scan) -> Cells {
        let (mask, base) = self.demands(rule, scan);
        Cells { base, open: !mask & (self.cells() - 1), at: Some(0) }
    }
}

/// Cells of one rule.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    base: usize,
    open: usize,
    at: Option<usize>,
}

impl Iterator for Cells {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let at = self.at?;
        // The next subset of the open bits in ascending order; zero after the last.
        let next = at.wrapping_sub(self.open) & self.open;
        self.at = (next != 0).then_some(next);
        Some(self.base | at)
    }
}
