//! Comparison of lanes in AVX2 registers, eight lanes in each.

use std::arch::x86_64::*;

use super::block::code;
use super::isa::{HotColumns, Vector};
use super::portable::Portable;
use super::rows::Row;
use crate::cpu::Avx2;
use crate::key::WORDS;

/// The words of a probe, each copied to all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    source: __m256i,
    destination: __m256i,
    ports: __m256i,
    others: __m256i,
}

impl Vector for Avx2 {
    type Probe = Probe;

    #[inline(always)]
    fn probe(self, words: &[u32; WORDS]) -> Probe {
        // SAFETY: the CPU has the instructions, as `self` exists.
        unsafe {
            Probe {
                source: _mm256_set1_epi32(words[0] as i32),
                destination: _mm256_set1_epi32(words[1] as i32),
                ports: _mm256_set1_epi32(words[2] as i32),
                others: _mm256_set1_epi32(words[3] as i32),
            }
        }
    }

    #[inline(always)]
    fn candidates<const USED: usize, const N: usize>(self, columns: &HotColumns<N>, probe: &Probe) -> u32 {
        const { assert!(USED <= N && (USED == 8 || USED == 16)) };
        // SAFETY: the CPU has the instructions, as `self` exists; all lanes read are below `N`.
        unsafe {
            let low = candidates(columns, 0, probe);
            if USED == 16 { low | candidates(columns, 8, probe) << 8 } else { low }
        }
    }

    type Picked = [u32; 8];

    #[inline(always)]
    fn pick(self, words: &[u32; 16], places: &[u32; 8]) -> [u32; 8] {
        Portable.pick(words, places)
    }

    #[inline(always)]
    fn row_matches(self, row: &Row, picked: &[u32; 8]) -> bool {
        Portable.row_matches(row, picked)
    }

    #[inline(always)]
    fn rest_matches(self, words: &[u32; 16], which: u16, pairs: &[u32]) -> bool {
        Portable.rest_matches(words, which, pairs)
    }

    #[inline(always)]
    fn equal<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        const { assert!(N == 8 || N == 16) };
        // SAFETY: likewise.
        unsafe {
            let value = _mm256_set1_epi32(value as i32);
            let low = bits(_mm256_cmpeq_epi32(load(column, 0), value));
            if N == 16 { low | bits(_mm256_cmpeq_epi32(load(column, 8), value)) << 8 } else { low }
        }
    }

    #[inline(always)]
    fn less<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        const { assert!(N == 8 || N == 16) };
        // SAFETY: likewise.
        unsafe {
            let value = _mm256_set1_epi32(value as i32);
            let low = not_less(load(column, 0), value);
            let high = if N == 16 { not_less(load(column, 8), value) << 8 } else { 0xFF00 };
            !(low | high) & 0xFFFF
        }
    }

    #[inline(always)]
    fn insert<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        Portable.insert(column, lane, value);
    }

    #[inline(always)]
    fn remove<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        Portable.remove(column, lane, value);
    }
}

/// # Safety
/// The CPU has AVX2, and `first + 7` is below `N`.
#[inline(always)]
unsafe fn candidates<const N: usize>(columns: &HotColumns<N>, first: usize, probe: &Probe) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        let rule = load(&columns.code, first);
        let octet = _mm256_set1_epi32(code::PROTOCOL as i32);
        let source_shift = _mm256_and_si256(_mm256_srli_epi32::<8>(rule), octet);
        let destination_shift = _mm256_and_si256(_mm256_srli_epi32::<16>(rule), octet);
        let source = _mm256_xor_si256(load(&columns.source, first), probe.source);
        let destination = _mm256_xor_si256(load(&columns.destination, first), probe.destination);
        let ports = _mm256_sub_epi16(probe.ports, load(&columns.first_ports, first));
        let ports = _mm256_subs_epu16(ports, load(&columns.span_ports, first));
        let exact = _mm256_and_si256(_mm256_srai_epi32::<31>(rule), octet);
        let flags = _mm256_and_si256(rule, _mm256_set1_epi32(code::FLAGS as i32));
        let others = _mm256_xor_si256(rule, probe.others);
        let others = _mm256_and_si256(others, _mm256_or_si256(flags, exact));
        let addresses = _mm256_or_si256(
            _mm256_srlv_epi32(source, source_shift),
            _mm256_srlv_epi32(destination, destination_shift),
        );
        let differs = _mm256_or_si256(addresses, _mm256_or_si256(others, ports));
        bits(_mm256_cmpeq_epi32(differs, _mm256_setzero_si256()))
    }
}

/// The lanes that are not less than `value`, as unsigned numbers. AVX2 compares signed numbers only, but has an
/// unsigned maximum.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn not_less(lanes: __m256i, value: __m256i) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { bits(_mm256_cmpeq_epi32(_mm256_max_epu32(lanes, value), lanes)) }
}

/// # Safety
/// The CPU has AVX2, and `first + 7` is below `N`.
#[inline(always)]
unsafe fn load<const N: usize>(column: &[u32; N], first: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(column.as_ptr().add(first).cast()) }
}

/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn bits(lanes: __m256i) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32 }
}
