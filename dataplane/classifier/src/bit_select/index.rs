//! Computes the number of a cell from the chosen bits of a key.

use super::choose::Ternary;
use crate::Key;
use crate::simd::Scan;
use crate::simd::portable::Portable;
use crate::store::{PAIRS, pair};

/// Gathers bits of two neighbouring words of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Pick {
    /// Index of the pair of words.
    pair: usize,
    mask: u64,
    /// Position of the gathered bits in the number.
    shift: u32,
}

/// The bits that make up the number of a cell.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// The first two pairs: addresses, and ports with protocol, which tell almost all rules apart. Empty masks
    /// cost next to nothing.
    addresses: Pick,
    ports: Pick,
    /// All other pairs with chosen bits.
    more: Box<[Pick]>,
    bits: u32,
}

impl Index {
    /// An index of these bits, in any order.
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

    /// The number that the chosen bits of these pairs make.
    #[inline(always)]
    fn gather(&self, pair: impl Fn(usize) -> u64, scan: impl Scan) -> usize {
        // The first two picks are always done; others are rare.
        let mut number = scan.gather(pair(0), self.addresses.mask)
            | scan.gather(pair(1), self.ports.mask) << self.ports.shift;
        for pick in &self.more {
            number |= scan.gather(pair(pick.pair), pick.mask) << pick.shift;
        }
        number as usize
    }

    /// The bit of the number to which a bit of the key contributes.
    pub fn weight(&self, bit: usize) -> usize {
        self.gather(|at| if at == bit / 64 { 1 << (bit % 64) } else { 0 }, Portable)
    }

    /// Mask and value of the number that a rule requires.
    #[inline(always)]
    pub fn demands(&self, rule: &Ternary, scan: impl Scan) -> (usize, usize) {
        (self.gather(|at| rule.mask[at], scan), self.gather(|at| rule.value[at], scan))
    }

    /// Number of bits of the number that a rule leaves open: with n open bits it is in 2ⁿ cells.
    #[inline(always)]
    pub fn spread(&self, rule: &Ternary, scan: impl Scan) -> u32 {
        self.bits - self.gather(|at| rule.mask[at], scan).count_ones()
    }

    /// All cells of a rule, ascending.
    #[inline(always)]
    pub fn cells_of(&self, rule: &Ternary, scan: impl Scan) -> Cells {
        let (mask, base) = self.demands(rule, scan);
        Cells { base, open: !mask & (self.cells() - 1), at: Some(0) }
    }
}

/// The cells of one rule.
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
        // The next larger subset of the open bits; zero after the last.
        let next = at.wrapping_sub(self.open) & self.open;
        self.at = (next != 0).then_some(next);
        Some(self.base | at)
    }
}
