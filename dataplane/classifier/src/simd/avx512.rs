//! Comparison of lanes in AVX-512 registers: 16 lanes in a full register, or 8 in one of half the size.

use std::arch::x86_64::*;

use super::block::code;
use super::isa::{HotColumns, Vector};
use super::rows::{Row, SLOTS};
use crate::cpu::Avx512;
use crate::key::WORDS;

/// `(a & b) ^ c` bit by bit.
const AND_XOR: i32 = 0x6A;
/// `(a ^ b) & c`.
const XOR_AND: i32 = 0x28;
/// `if c { a } else { b }`.
const IF: i32 = 0xE4;
/// `a | b & c`.
const OR_AND: i32 = 0xF8;
/// `a | b | c`.
const OR: i32 = 0xFE;

/// The words of a probe, each copied to all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    source: __m512i,
    destination: __m512i,
    ports: __m512i,
    others: __m512i,
}

impl Vector for Avx512 {
    type Probe = Probe;

    #[inline(always)]
    fn probe(self, words: &[u32; WORDS]) -> Probe {
        // SAFETY: the CPU has the instructions, as `self` exists.
        let spread = |word: u32| unsafe { _mm512_set1_epi32(word as i32) };
        Probe {
            source: spread(words[0]),
            destination: spread(words[1]),
            ports: spread(words[2]),
            others: spread(words[3]),
        }
    }

    #[inline(always)]
    fn candidates<const USED: usize, const N: usize>(self, columns: &HotColumns<N>, probe: &Probe) -> u32 {
        const { assert!(USED <= N && (USED == 8 || USED == 16)) };
        // SAFETY: the CPU has the instructions, as `self` exists; `USED` lanes are read of columns of `N`.
        unsafe { if USED == 16 { candidates_16(columns, probe) } else { candidates_8(columns, probe) } }
    }

    type Picked = __m256i;

    #[inline(always)]
    fn pick(self, words: &[u32; 16], places: &[u32; 8]) -> __m256i {
        // SAFETY: the CPU has the instructions, as `self` exists; words and places are as many as are loaded.
        unsafe {
            let places = _mm512_castsi256_si512(load_8(places));
            _mm512_castsi512_si256(_mm512_permutexvar_epi32(places, load_16(words)))
        }
    }

    #[inline(always)]
    fn row_matches(self, row: &Row, picked: &__m256i) -> bool {
        const USED: u8 = (1 << SLOTS) - 1;
        // SAFETY: the CPU has the instructions, as `self` exists; the loads stay within the masks and values.
        unsafe {
            let masks = _mm256_maskz_loadu_epi32(USED, row.masks.as_ptr().cast());
            let values = _mm256_maskz_loadu_epi32(USED, row.values.as_ptr().cast());
            let differs = _mm256_ternarylogic_epi32::<AND_XOR>(*picked, masks, values);
            _mm256_mask_test_epi32_mask(USED, differs, differs) == 0
        }
    }

    #[inline(always)]
    fn rest_matches(self, words: &[u32; 16], which: u16, pairs: &[u32]) -> bool {
        let (masks, values) = pairs.split_at(pairs.len() / 2);
        // SAFETY: the CPU has the instructions, as `self` exists. There are 16 words; the masked loads read
        // only existing masks and values, which are fewer than 256.
        unsafe {
            let used = _bzhi_u32(0xFFFF, masks.len().min(16) as u32) as u16;
            let words = _mm512_maskz_compress_epi32(which, _mm512_loadu_si512(words.as_ptr().cast()));
            let masks = _mm512_maskz_loadu_epi32(used, masks.as_ptr().cast());
            let values = _mm512_maskz_loadu_epi32(used, values.as_ptr().cast());
            let differs = _mm512_ternarylogic_epi32::<AND_XOR>(words, masks, values);
            _mm512_test_epi32_mask(differs, differs) == 0
        }
    }

    #[inline(always)]
    fn equal<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        // SAFETY: the CPU has the instructions, as `self` exists; `N` lanes are read.
        unsafe {
            match N {
                16 => _mm512_cmpeq_epi32_mask(load_16(column), _mm512_set1_epi32(value as i32)).into(),
                _ => _mm256_cmpeq_epi32_mask(load_8(column), _mm256_set1_epi32(value as i32)).into(),
            }
        }
    }

    #[inline(always)]
    fn less<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        // SAFETY: likewise.
        unsafe {
            match N {
                16 => _mm512_cmplt_epu32_mask(load_16(column), _mm512_set1_epi32(value as i32)).into(),
                _ => _mm256_cmplt_epu32_mask(load_8(column), _mm256_set1_epi32(value as i32)).into(),
            }
        }
    }

    #[inline(always)]
    fn insert<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        let others = !(1u32 << lane);
        // SAFETY: likewise; `N` lanes are written.
        unsafe {
            match N {
                16 => {
                    let value = _mm512_set1_epi32(value as i32);
                    let moved = _mm512_mask_expand_epi32(value, others as u16, load_16(column));
                    _mm512_storeu_si512(column.as_mut_ptr().cast(), moved);
                }
                _ => {
                    let value = _mm256_set1_epi32(value as i32);
                    let moved = _mm256_mask_expand_epi32(value, others as u8, load_8(column));
                    _mm256_storeu_si256(column.as_mut_ptr().cast(), moved);
                }
            }
        }
    }

    #[inline(always)]
    fn remove<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        let others = !(1u32 << lane);
        // SAFETY: likewise. The store is not masked: compressing to memory is slow on some CPUs.
        unsafe {
            match N {
                16 => {
                    let value = _mm512_set1_epi32(value as i32);
                    let moved = _mm512_mask_compress_epi32(value, others as u16, load_16(column));
                    _mm512_storeu_si512(column.as_mut_ptr().cast(), moved);
                }
                _ => {
                    let value = _mm256_set1_epi32(value as i32);
                    let moved = _mm256_mask_compress_epi32(value, others as u8, load_8(column));
                    _mm256_storeu_si256(column.as_mut_ptr().cast(), moved);
                }
            }
        }
    }
}

/// # Safety
/// The CPU has the instructions, and `N` is 16 or more.
#[inline(always)]
unsafe fn load_16<const N: usize>(column: &[u32; N]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_si512(column.as_ptr().cast()) }
}

/// # Safety
/// The CPU has the instructions, and `N` is 8 or more.
#[inline(always)]
unsafe fn load_8<const N: usize>(column: &[u32; N]) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(column.as_ptr().cast()) }
}

/// # Safety
/// The CPU has the instructions, and `N` is 16.
#[inline(always)]
unsafe fn candidates_16<const N: usize>(columns: &HotColumns<N>, probe: &Probe) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let rule = load_16(&columns.code);
        // Two shifts each, as a shuffle would have to load its pattern.
        let source_shift = _mm512_srli_epi32::<24>(_mm512_slli_epi32::<16>(rule));
        let destination_shift = _mm512_srli_epi32::<24>(_mm512_slli_epi32::<8>(rule));
        let source =
            _mm512_srlv_epi32(_mm512_xor_si512(load_16(&columns.source), probe.source), source_shift);
        let destination = _mm512_srlv_epi32(
            _mm512_xor_si512(load_16(&columns.destination), probe.destination),
            destination_shift,
        );
        let ports = _mm512_sub_epi16(probe.ports, load_16(&columns.first_ports));
        let ports = _mm512_subs_epu16(ports, load_16(&columns.span_ports));
        let differs = _mm512_ternarylogic_epi32::<OR>(source, destination, ports);
        // The rule's flags are compared, and the protocol only if the sign bit of the code is set.
        let exact = _mm512_srai_epi32::<31>(rule);
        let counts = _mm512_ternarylogic_epi32::<IF>(rule, exact, _mm512_set1_epi32(code::FLAGS as i32));
        let compared = _mm512_set1_epi32((code::FLAGS | code::PROTOCOL) as i32);
        let others = _mm512_ternarylogic_epi32::<XOR_AND>(rule, probe.others, compared);
        let differs = _mm512_ternarylogic_epi32::<OR_AND>(differs, others, counts);
        _mm512_testn_epi32_mask(differs, differs).into()
    }
}

/// # Safety
/// The CPU has the instructions, and `N` is 8 or more.
#[inline(always)]
unsafe fn candidates_8<const N: usize>(columns: &HotColumns<N>, probe: &Probe) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let half = |word: __m512i| _mm512_castsi512_si256(word);
        let rule = load_8(&columns.code);
        let source_shift = _mm256_srli_epi32::<24>(_mm256_slli_epi32::<16>(rule));
        let destination_shift = _mm256_srli_epi32::<24>(_mm256_slli_epi32::<8>(rule));
        let source =
            _mm256_srlv_epi32(_mm256_xor_si256(load_8(&columns.source), half(probe.source)), source_shift);
        let destination = _mm256_srlv_epi32(
            _mm256_xor_si256(load_8(&columns.destination), half(probe.destination)),
            destination_shift,
        );
        let ports = _mm256_sub_epi16(half(probe.ports), load_8(&columns.first_ports));
        let ports = _mm256_subs_epu16(ports, load_8(&columns.span_ports));
        let differs = _mm256_ternarylogic_epi32::<OR>(source, destination, ports);
        // The rule's flags are compared, and the protocol only if the sign bit of the code is set.
        let exact = _mm256_srai_epi32::<31>(rule);
        let counts = _mm256_ternarylogic_epi32::<IF>(rule, exact, _mm256_set1_epi32(code::FLAGS as i32));
        let compared = _mm256_set1_epi32((code::FLAGS | code::PROTOCOL) as i32);
        let others = _mm256_ternarylogic_epi32::<XOR_AND>(rule, half(probe.others), compared);
        let differs = _mm256_ternarylogic_epi32::<OR_AND>(differs, others, counts);
        _mm256_testn_epi32_mask(differs, differs).into()
    }
}
