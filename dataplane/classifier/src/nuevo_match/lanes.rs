//! Counts how many sorted numbers are at most `x`: the only vector arithmetic that a look-up needs.
//!
//! [`Lanes`] has one implementation per instruction set, on the token that proves that the processor has the
//! set ([`crate::cpu`]). All implementations return the same counts; they differ in speed only.

use super::model::PIECES;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Avx2, Avx512};

/// Number of interval starts compared at once.
pub(super) const WINDOW: usize = 16;

/// Vector arithmetic.
pub(super) trait Lanes: Copy {
    /// How many knots are at most `x`.
    fn knots(self, knots: &[u64; PIECES], x: u64) -> usize;

    /// How many interval starts are at most `x`.
    fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize;
}

/// Plain loops, for any processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scalar;

impl Lanes for Scalar {
    #[inline(always)]
    fn knots(self, knots: &[u64; PIECES], x: u64) -> usize {
        knots.iter().map(|knot| usize::from(*knot <= x)).sum()
    }

    #[inline(always)]
    fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize {
        lows.iter().map(|low| usize::from(*low <= x)).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m256i, _mm256_castsi256_pd, _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_pd,
        _mm256_set1_epi64x, _mm512_cmple_epu64_mask, _mm512_loadu_si512, _mm512_set1_epi64,
    };

    use super::{Avx2, Avx512, Lanes, PIECES, WINDOW};

    /// How many of eight numbers are at most `x`. All are below 2⁶³, so they compare alike as signed numbers.
    #[inline(always)]
    fn count_avx2(_proof: Avx2, numbers: &[u64; 8], x: u64) -> usize {
        let mut above = 0;
        let (halves, _) = numbers.as_chunks::<4>();
        for half in halves {
            // SAFETY: there is a token, so the processor has the instructions. The load reads the 32 octets of
            // the array and needs no alignment.
            above += unsafe {
                let half = _mm256_loadu_si256(half.as_ptr().cast::<__m256i>());
                let greater = _mm256_cmpgt_epi64(half, _mm256_set1_epi64x(x as i64));
                _mm256_movemask_pd(_mm256_castsi256_pd(greater)).count_ones() as usize
            };
        }
        8 - above
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn knots(self, knots: &[u64; PIECES], x: u64) -> usize {
            count_avx2(self, knots, x)
        }

        #[inline(always)]
        fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize {
            let mut count = 0;
            for half in lows.as_chunks::<8>().0 {
                count += count_avx2(self, half, x);
            }
            count
        }
    }

    #[inline(always)]
    fn count_avx512(_proof: Avx512, numbers: &[u64; 8], x: u64) -> usize {
        // SAFETY: there is a token, so the processor has the instructions. The load reads the 64 octets of the
        // array and needs no alignment.
        unsafe {
            let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
            _mm512_cmple_epu64_mask(numbers, _mm512_set1_epi64(x as i64)).count_ones() as usize
        }
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn knots(self, knots: &[u64; PIECES], x: u64) -> usize {
            count_avx512(self, knots, x)
        }

        #[inline(always)]
        fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize {
            let mut count = 0;
            for line in lows.as_chunks::<8>().0 {
                count += count_avx512(self, line, x);
            }
            count
        }
    }
}

/// Prefetches the cache line of `target`.
#[inline(always)]
pub(super) fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching never faults and changes nothing that a program can see; SSE is part of x86-64.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Cpu;

    fn count(cpu: Cpu, lows: &[u64; WINDOW], x: u64) -> (usize, usize) {
        let knots: &[u64; PIECES] = lows.first_chunk().expect("eight of sixteen");
        match cpu {
            Cpu::Scalar => (Scalar.knots(knots, x), Scalar.lows(lows, x)),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(lanes) => (lanes.knots(knots, x), lanes.lows(lows, x)),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(lanes) => (lanes.knots(knots, x), lanes.lows(lows, x)),
        }
    }

    #[test]
    fn all_instructions_count_alike() {
        let lows: [u64; WINDOW] = std::array::from_fn(|at| match at as u64 {
            at @ 0..8 => at * 0x1000_0001,
            at => 0x7FFF_FFFC + (at - 8) * 2 + ((at / 14) << 61),
        });
        for around in lows.iter().chain(&[0, 1 << 31, 1 << 62, super::super::model::MAX]) {
            for x in around.saturating_sub(2)..=(around + 2).min(super::super::model::MAX) {
                let expected = count(Cpu::Scalar, &lows, x);
                for cpu in Cpu::all() {
                    assert_eq!(count(cpu, &lows, x), expected, "{cpu:?} {x}");
                }
            }
        }
    }
}
