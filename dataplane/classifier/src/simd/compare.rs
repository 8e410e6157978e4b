//! The steps of a look-up in [`crate::cache`], in vector instructions.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Avx2, Avx512};
use crate::key::WORDS;

/// Words of a key in a line of the cache: those that an IPv4 packet uses.
pub const NARROW: usize = 9;
/// Number of the other words.
pub const WIDE: usize = WORDS - NARROW;
/// Index of the kind in a line.
pub const KIND: usize = NARROW;
/// Index of the epoch in a line, lower half first.
pub const EPOCH: usize = NARROW + 1;
/// Words of a line that are compared.
const COMPARED: usize = EPOCH + 2;

/// The comparisons of a look-up.
pub trait Compare: Copy {
    /// Whether a line has the first [`NARROW`] words of the key, this kind and this epoch.
    fn line(self, line: &[u32; 16], words: &[u32; WORDS], kind: u32, epoch: u64) -> bool;

    /// Whether the other words of two keys are equal.
    fn rest(self, one: &[u32; WIDE], other: &[u32; WIDE]) -> bool;
}

impl Compare for Portable {
    #[inline(always)]
    fn line(self, line: &[u32; 16], words: &[u32; WORDS], kind: u32, epoch: u64) -> bool {
        let key = (0..NARROW).fold(0, |differ, at| differ | (line[at] ^ words[at]));
        let epoch = (line[EPOCH] ^ epoch as u32) | (line[EPOCH + 1] ^ (epoch >> 32) as u32);
        key | (line[KIND] ^ kind) | epoch == 0
    }

    #[inline(always)]
    fn rest(self, one: &[u32; WIDE], other: &[u32; WIDE]) -> bool {
        one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
    }
}

#[cfg(target_arch = "x86_64")]
impl Compare for Avx2 {
    #[inline(always)]
    fn line(self, line: &[u32; 16], words: &[u32; WORDS], kind: u32, epoch: u64) -> bool {
        Portable.line(line, words, kind, epoch)
    }

    #[inline(always)]
    fn rest(self, one: &[u32; WIDE], other: &[u32; WIDE]) -> bool {
        Portable.rest(one, other)
    }
}

#[cfg(target_arch = "x86_64")]
impl Compare for Avx512 {
    #[inline(always)]
    fn line(self, line: &[u32; 16], words: &[u32; WORDS], kind: u32, epoch: u64) -> bool {
        // SAFETY: the CPU has the instructions, as `self` exists; lines have 16 words, keys more than are
        // loaded.
        unsafe {
            // Built in a register: a load from memory would wait for the narrower stores before it.
            let tail = _mm512_maskz_set1_epi64(1 << (EPOCH / 2), epoch as i64);
            let tail = _mm512_mask_set1_epi32(tail, 1 << KIND, kind as i32);
            let wanted = _mm512_mask_loadu_epi32(tail, (1 << NARROW) - 1, words.as_ptr().cast());
            let line = _mm512_loadu_si512(line.as_ptr().cast());
            _mm512_mask_cmpneq_epi32_mask((1 << COMPARED) - 1, wanted, line) == 0
        }
    }

    #[inline(always)]
    fn rest(self, one: &[u32; WIDE], other: &[u32; WIDE]) -> bool {
        const ALL: u16 = (1 << WIDE) - 1;
        // SAFETY: the CPU has the instructions, as `self` exists; the loads stay within both arrays.
        unsafe {
            let one = _mm512_maskz_loadu_epi32(ALL, one.as_ptr().cast());
            let other = _mm512_maskz_loadu_epi32(ALL, other.as_ptr().cast());
            _mm512_cmpneq_epi32_mask(one, other) == 0
        }
    }
}
