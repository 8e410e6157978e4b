//! The steps of a look-up in [`crate::bit_select`], in vector instructions.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Avx2, Avx512};

/// The operations of a look-up.
pub trait Scan: Copy {
    /// Gathers the bits of `word` that are set in `mask` at the low end (the instruction PEXT).
    fn gather(self, word: u64, mask: u64) -> u64;

    /// One bit for each lane with `key & mask == value`; lane 0 is the lowest bit.
    fn filter(self, masks: &[u16; 8], values: &[u16; 8], key: u16) -> u32;

    /// Whether three words match under their masks, and the two ports in the fourth word are at most the mask's
    /// half beyond the value's half.
    fn row(self, value: &[u32; 4], mask: &[u32; 4], key: &[u32; 4]) -> bool;

    /// Whether eight words match under their masks.
    fn eight(self, value: &[u32; 8], mask: &[u32; 8], key: &[u32; 8]) -> bool;
}

impl Scan for Portable {
    #[inline(always)]
    fn gather(self, word: u64, mut mask: u64) -> u64 {
        let (mut gathered, mut at) = (0, 0);
        while mask != 0 {
            gathered |= (word >> mask.trailing_zeros() & 1) << at;
            at += 1;
            mask &= mask - 1;
        }
        gathered
    }

    #[inline(always)]
    fn filter(self, masks: &[u16; 8], values: &[u16; 8], key: u16) -> u32 {
        (0..8).fold(0, |lanes, lane| lanes | u32::from(key & masks[lane] == values[lane]) << lane)
    }

    #[inline(always)]
    fn row(self, value: &[u32; 4], mask: &[u32; 4], key: &[u32; 4]) -> bool {
        let outside = |shift: u32| {
            let port = (key[3] >> shift) as u16;
            port.wrapping_sub((value[3] >> shift) as u16) > (mask[3] >> shift) as u16
        };
        (0..3).all(|word| key[word] & mask[word] == value[word]) && !outside(16) && !outside(0)
    }

    #[inline(always)]
    fn eight(self, value: &[u32; 8], mask: &[u32; 8], key: &[u32; 8]) -> bool {
        (0..8).fold(0, |differ, word| differ | key[word] & mask[word] ^ value[word]) == 0
    }
}

#[cfg(target_arch = "x86_64")]
macro_rules! with_bmi2 {
    ($vector:ty) => {
        impl Scan for $vector {
            #[inline(always)]
            fn gather(self, word: u64, mask: u64) -> u64 {
                // SAFETY: the CPU has BMI2, as `self` exists.
                unsafe { _pext_u64(word, mask) }
            }

            #[inline(always)]
            fn filter(self, masks: &[u16; 8], values: &[u16; 8], key: u16) -> u32 {
                // SAFETY: the CPU has the instructions, as `self` exists; eight 16-bit values are 16 octets.
                unsafe {
                    let masked =
                        _mm_and_si128(_mm_loadu_si128(masks.as_ptr().cast()), _mm_set1_epi16(key as i16));
                    let equal = _mm_cmpeq_epi16(masked, _mm_loadu_si128(values.as_ptr().cast()));
                    _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
                }
            }

            #[inline(always)]
            fn row(self, value: &[u32; 4], mask: &[u32; 4], key: &[u32; 4]) -> bool {
                // SAFETY: the CPU has the instructions, as `self` exists; four words are 16 octets.
                unsafe {
                    let value = _mm_loadu_si128(value.as_ptr().cast());
                    let mask = _mm_loadu_si128(mask.as_ptr().cast());
                    let key = _mm_loadu_si128(key.as_ptr().cast());
                    let words = _mm_xor_si128(_mm_and_si128(key, mask), value);
                    let ports = _mm_subs_epu16(_mm_sub_epi16(key, value), mask);
                    let differs = _mm_blend_epi16::<0b1100_0000>(words, ports);
                    _mm_testz_si128(differs, differs) == 1
                }
            }

            #[inline(always)]
            fn eight(self, value: &[u32; 8], mask: &[u32; 8], key: &[u32; 8]) -> bool {
                // SAFETY: the CPU has the instructions, as `self` exists; eight words are 32 octets.
                unsafe {
                    let value = _mm256_loadu_si256(value.as_ptr().cast());
                    let mask = _mm256_loadu_si256(mask.as_ptr().cast());
                    let key = _mm256_loadu_si256(key.as_ptr().cast());
                    let differs = _mm256_xor_si256(_mm256_and_si256(key, mask), value);
                    _mm256_testz_si256(differs, differs) == 1
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_bmi2!(Avx2);
#[cfg(target_arch = "x86_64")]
with_bmi2!(Avx512);
