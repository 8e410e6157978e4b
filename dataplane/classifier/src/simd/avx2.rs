//! Lanes in AVX2 registers, eight in each.

use std::arch::x86_64::*;

use super::block::code;
use super::isa::{HotColumns, Kernel, ProbeWords, Vector};
use super::portable::Portable;

/// Proof that the CPU has AVX2. Only [`run`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

/// Runs a kernel with these instructions.
///
/// # Safety
/// The CPU has them.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// The words of a probe, each in all lanes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    source: __m256i,
    destination: __m256i,
    ports: __m256i,
    protocol: __m256i,
    missing: __m256i,
}

impl Vector for Avx2 {
    type Probe = Probe;

    #[inline(always)]
    fn probe(self, words: ProbeWords) -> Probe {
        // SAFETY: the CPU has the instructions, as `self` exists.
        let spread = |word: u32| unsafe { _mm256_set1_epi32(word as i32) };
        Probe {
            source: spread(words.source),
            destination: spread(words.destination),
            ports: spread(words.ports),
            protocol: spread(words.protocol & code::PROTOCOL),
            missing: spread(words.missing),
        }
    }

    #[inline(always)]
    fn candidates<const N: usize>(self, columns: &HotColumns<N>, probe: &Probe) -> u32 {
        eights::<N>(|first| {
            // SAFETY: the CPU has the instructions, as `self` exists; `first` and seven more are below `N`.
            unsafe {
                let load = |column: &[u32; N]| load(column, first);
                let rule = load(&columns.code);
                let octet = _mm256_set1_epi32(0xFF);
                let source_shift = _mm256_and_si256(_mm256_srli_epi32::<8>(rule), octet);
                let destination_shift = _mm256_and_si256(_mm256_srli_epi32::<16>(rule), octet);
                let source = _mm256_xor_si256(load(&columns.source), probe.source);
                let destination = _mm256_xor_si256(load(&columns.destination), probe.destination);
                let ports = _mm256_sub_epi16(probe.ports, load(&columns.first_ports));
                let ports = _mm256_subs_epu16(ports, load(&columns.span_ports));
                let exact = _mm256_and_si256(_mm256_srai_epi32::<31>(rule), octet);
                let protocol = _mm256_and_si256(_mm256_xor_si256(rule, probe.protocol), exact);
                let addresses = _mm256_or_si256(
                    _mm256_srlv_epi32(source, source_shift),
                    _mm256_srlv_epi32(destination, destination_shift),
                );
                let others = _mm256_or_si256(protocol, _mm256_and_si256(rule, probe.missing));
                let differs = _mm256_or_si256(_mm256_or_si256(addresses, others), ports);
                bits(_mm256_cmpeq_epi32(differs, _mm256_setzero_si256()))
            }
        })
    }

    #[inline(always)]
    fn rest_matches(self, words: &[u32; 16], which: u16, masks: &[u32], values: &[u32]) -> bool {
        Portable.rest_matches(words, which, masks, values)
    }

    #[inline(always)]
    fn equal<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        eights::<N>(|first| {
            // SAFETY: the CPU has the instructions, as `self` exists; `first` and seven more are below `N`.
            unsafe { bits(_mm256_cmpeq_epi32(load(column, first), _mm256_set1_epi32(value as i32))) }
        })
    }

    #[inline(always)]
    fn less<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        let Some(limit) = value.checked_sub(1) else { return 0 };
        eights::<N>(|first| {
            // SAFETY: likewise.
            unsafe {
                let lanes = load(column, first);
                // AVX2 compares signed numbers only, but has a minimum of others.
                let least = _mm256_min_epu32(lanes, _mm256_set1_epi32(limit as i32));
                bits(_mm256_cmpeq_epi32(least, lanes))
            }
        })
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

/// The mask of `N` lanes from those of eight at a time.
#[inline(always)]
fn eights<const N: usize>(mask: impl Fn(usize) -> u32) -> u32 {
    const { assert!(N == 8 || N == 16) };
    if N == 8 { mask(0) } else { mask(0) | mask(8) << 8 }
}

/// # Safety
/// The CPU has AVX2, and `first` and seven more are below `N`.
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
