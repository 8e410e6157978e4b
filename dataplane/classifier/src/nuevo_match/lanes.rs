//! Counting how many sorted numbers do not exceed another: all the arithmetic on vectors that a look-up needs.
//!
//! [`Lanes`] has one implementation per instruction set; a value of it proves that the processor has the set. All of
//! them count the same numbers, so they cannot differ in anything but speed.

use super::model::PIECES;

/// Lows compared at once.
pub(super) const WINDOW: usize = 16;

/// Which instruction set is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// The widest that this processor has.
    pub(super) fn detect() -> Level {
        Level::all().pop().unwrap_or(Level::Scalar)
    }

    /// Every one that this processor has, the widest last.
    pub(super) fn all() -> Vec<Level> {
        let all = std::iter::once(Level::Scalar);
        #[cfg(target_arch = "x86_64")]
        let all = all.chain(Avx2::detect().map(Level::Avx2)).chain(Avx512::detect().map(Level::Avx512));
        all.collect()
    }
}

/// Vector arithmetic.
pub(super) trait Lanes: Copy {
    /// How many knots do not exceed `x`.
    fn knots(self, knots: &[u64; PIECES], x: u64) -> usize;

    /// How many lows do not exceed `x`.
    fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize;
}

/// Any processor.
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

    use super::{Lanes, PIECES, WINDOW};

    /// A processor with AVX2 and what came with it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in crate::nuevo_match) struct Avx2(());

    impl Avx2 {
        pub(super) fn detect() -> Option<Avx2> {
            let has = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2");
            has.then_some(Avx2(()))
        }
    }

    /// How many of eight do not exceed `x`. All are below 2⁶³, so that they compare alike as signed numbers.
    #[target_feature(enable = "avx2,popcnt")]
    #[inline]
    fn count_avx2(numbers: &[u64; 8], x: u64) -> usize {
        let x = _mm256_set1_epi64x(x as i64);
        let above = |half: &[u64; 4]| {
            // SAFETY: the load reads the 32 octets of the array and asks for no alignment.
            let half = unsafe { _mm256_loadu_si256(half.as_ptr().cast::<__m256i>()) };
            _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(half, x))).count_ones() as usize
        };
        let (halves, _) = numbers.as_chunks::<4>();
        8 - halves.iter().map(above).sum::<usize>()
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn knots(self, knots: &[u64; PIECES], x: u64) -> usize {
            // SAFETY: `self` proves that the processor has AVX2.
            unsafe { count_avx2(knots, x) }
        }

        #[inline(always)]
        fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize {
            let (halves, _) = lows.as_chunks::<8>();
            // SAFETY: as above.
            halves.iter().map(|half| unsafe { count_avx2(half, x) }).sum()
        }
    }

    /// A processor with AVX-512.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(in crate::nuevo_match) struct Avx512(Avx2);

    impl Avx512 {
        pub(super) fn detect() -> Option<Avx512> {
            is_x86_feature_detected!("avx512f").then(Avx2::detect).flatten().map(Avx512)
        }
    }

    #[target_feature(enable = "avx512f,popcnt")]
    #[inline]
    fn count_avx512(numbers: &[u64; 8], x: u64) -> usize {
        // SAFETY: the load reads the 64 octets of the array and asks for no alignment.
        let numbers = unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) };
        _mm512_cmple_epu64_mask(numbers, _mm512_set1_epi64(x as i64)).count_ones() as usize
    }

    impl Lanes for Avx512 {
        #[inline(always)]
        fn knots(self, knots: &[u64; PIECES], x: u64) -> usize {
            // SAFETY: `self` proves that the processor has AVX-512.
            unsafe { count_avx512(knots, x) }
        }

        #[inline(always)]
        fn lows(self, lows: &[u64; WINDOW], x: u64) -> usize {
            let (lines, _) = lows.as_chunks::<8>();
            // SAFETY: as above.
            lines.iter().map(|line| unsafe { count_avx512(line, x) }).sum()
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// Asks for the cache line of `target`.
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

    fn count(level: Level, lows: &[u64; WINDOW], x: u64) -> (usize, usize) {
        let knots: &[u64; PIECES] = lows.first_chunk().expect("eight of sixteen");
        match level {
            Level::Scalar => (Scalar.knots(knots, x), Scalar.lows(lows, x)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(lanes) => (lanes.knots(knots, x), lanes.lows(lows, x)),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(lanes) => (lanes.knots(knots, x), lanes.lows(lows, x)),
        }
    }

    #[test]
    fn every_level_counts_alike() {
        let lows: [u64; WINDOW] = std::array::from_fn(|at| match at as u64 {
            at @ 0..8 => at * 0x1000_0001,
            at => 0x7FFF_FFFC + (at - 8) * 2 + ((at / 14) << 61),
        });
        for around in lows.iter().chain(&[0, 1 << 31, 1 << 62, super::super::model::MAX]) {
            for x in around.saturating_sub(2)..=(around + 2).min(super::super::model::MAX) {
                let expected = count(Level::Scalar, &lows, x);
                for level in Level::all() {
                    assert_eq!(count(level, &lows, x), expected, "{level:?} {x}");
                }
            }
        }
    }
}
