//! Up to four rows as columns, so that a packet is compared with all of them at once.
//!
//! Most programs have at most four rows, and the processor cannot predict which of them
//! matches. So there is no branch before the end.

use super::program::{Line, Pair, line, prefetch, prefix_mask};
use crate::{Key, Verdict};
#[cfg(not(target_arch = "x86_64"))]
use portable::Lanes;
#[cfg(target_arch = "x86_64")]
use sse2::Lanes;

/// Number of rows that are compared at once.
pub(super) const FEW: usize = 4;
/// An "own" bit that no packet has.
const NEVER: u32 = 1 << 31;

/// The rows, one in each lane.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Few {
    /// Mask and value of the source address, the destination address and word 3 of the key.
    words: [[Lanes; 2]; 3],
    /// "Own" bits that the row requires.
    own: Lanes,
    /// First port and length of the range: source ports in the upper half, destination ports in the lower.
    first: Lanes,
    span: Lanes,
    verdicts: [u32; FEW],
    /// One bit for each row with further conditions.
    conditional: u32,
}

impl Few {
    /// Columns of the first `rows` rows.
    pub fn new(pairs: &[Pair], rows: usize) -> Few {
        // Fills the lanes that have no row.
        let never: Line = [0, 0, NEVER, 0, 0, 0, 0, 0];
        let row = |lane: usize| line(pairs, lane).filter(|_| lane < rows).unwrap_or(&never);
        let rows: [&Line; FEW] = std::array::from_fn(row);
        let lanes = |of: fn(&Line) -> u32| Lanes::new(rows.map(of));
        let word = |mask: fn(&Line) -> u32, value: fn(&Line) -> u32| {
            let values = rows.map(|row| mask(row) & value(row));
            [lanes(mask), Lanes::new(values)]
        };
        Few {
            words: [
                word(|row| prefix_mask(row[2] & 0xFF), |row| row[0]),
                word(|row| prefix_mask(row[2] >> 8 & 0xFF), |row| row[1]),
                word(|row| row[3], |row| row[4]),
            ],
            own: lanes(|row| row[2] & (NEVER | 0x000F_0000)),
            first: lanes(|row| row[5] << 16 | row[6] & 0xFFFF),
            span: lanes(|row| row[5] & 0xFFFF_0000 | row[6] >> 16),
            verdicts: rows.map(|row| row[7]),
            conditional: (0..FEW)
                .fold(0, |bits, lane| bits | u32::from(rows[lane][2] >> 24 & 0x7F != 0) << lane),
        }
    }

    /// Prefetches all three cache lines.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch(Some(&self.words));
        prefetch(Some(&self.words[2]));
        prefetch(Some(&self.span));
    }

    /// One bit for each row that matches, without regard to its further conditions.
    #[inline(always)]
    fn matching(&self, key: &Key, own: u32) -> u32 {
        let words = &key.words;
        let beyond = Lanes::splat(words[2]).minus_16(self.first).beyond_16(self.span);
        let packet = [words[0], words[1], words[3]];
        let mut differ = beyond.or(self.own.and_not(Lanes::splat(own)));
        for (word, [mask, value]) in packet.iter().zip(&self.words) {
            differ = differ.or(Lanes::splat(*word).and(*mask).xor(*value));
        }
        differ.zeroes()
    }

    /// The verdict for a packet. `Err` with the rows that may match, when their further conditions have to be
    /// compared.
    #[inline(always)]
    pub fn find(&self, key: &Key, own: u32) -> Result<Verdict, u32> {
        let matched = self.matching(key, own);
        if matched & self.conditional != 0 {
            return Err(matched);
        }
        Ok((matched != 0).then(|| self.verdicts[matched.trailing_zeros() as usize % FEW]))
    }
}

/// Four words at once. Every x86-64 processor has these instructions, but compilers seldom find them in loops.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::*;

    macro_rules! sse2 {
        ($instructions:expr) => {
            // SAFETY: every x86-64 processor has SSE2, which is all that these instructions need.
            unsafe { $instructions }
        };
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Lanes(__m128i);

    impl Lanes {
        pub fn new(words: [u32; 4]) -> Lanes {
            let [a, b, c, d] = words.map(u32::cast_signed);
            Lanes(sse2!(_mm_setr_epi32(a, b, c, d)))
        }

        #[inline(always)]
        pub fn splat(word: u32) -> Lanes {
            Lanes(sse2!(_mm_set1_epi32(word.cast_signed())))
        }

        #[inline(always)]
        pub fn and(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_and_si128(self.0, other.0)))
        }

        /// Bits that are set here and not in `other`.
        #[inline(always)]
        pub fn and_not(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_andnot_si128(other.0, self.0)))
        }

        #[inline(always)]
        pub fn or(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_or_si128(self.0, other.0)))
        }

        #[inline(always)]
        pub fn xor(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_xor_si128(self.0, other.0)))
        }

        /// Differences of the 16-bit halves.
        #[inline(always)]
        pub fn minus_16(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_sub_epi16(self.0, other.0)))
        }

        /// By how much each 16-bit half exceeds that of `other`; zero if it does not.
        #[inline(always)]
        pub fn beyond_16(self, other: Lanes) -> Lanes {
            Lanes(sse2!(_mm_subs_epu16(self.0, other.0)))
        }

        /// One bit for each lane that is zero.
        #[inline(always)]
        pub fn zeroes(self) -> u32 {
            let zeroes = sse2!(_mm_castsi128_ps(_mm_cmpeq_epi32(self.0, _mm_setzero_si128())));
            sse2!(_mm_movemask_ps(zeroes)).cast_unsigned()
        }
    }
}

/// The same operations for other processors.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    #[derive(Clone, Copy, Debug)]
    pub struct Lanes([u32; 4]);

    fn each(one: Lanes, other: Lanes, of: impl Fn(u32, u32) -> u32) -> Lanes {
        Lanes(std::array::from_fn(|lane| of(one.0[lane], other.0[lane])))
    }

    fn halves(one: u32, other: u32, of: fn(u16, u16) -> u16) -> u32 {
        let high = of((one >> 16) as u16, (other >> 16) as u16);
        u32::from(high) << 16 | u32::from(of(one as u16, other as u16))
    }

    impl Lanes {
        pub fn new(words: [u32; 4]) -> Lanes {
            Lanes(words)
        }

        pub fn splat(word: u32) -> Lanes {
            Lanes([word; 4])
        }

        pub fn and(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| one & other)
        }

        pub fn and_not(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| one & !other)
        }

        pub fn or(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| one | other)
        }

        pub fn xor(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| one ^ other)
        }

        pub fn minus_16(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| halves(one, other, u16::wrapping_sub))
        }

        pub fn beyond_16(self, other: Lanes) -> Lanes {
            each(self, other, |one, other| halves(one, other, u16::saturating_sub))
        }

        pub fn zeroes(self) -> u32 {
            (0..4).fold(0, |zeroes, lane| zeroes | u32::from(self.0[lane] == 0) << lane)
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{portable, sse2};
    use crate::generate::Random;

    /// The portable lanes are for other processors; this tests them on x86-64.
    #[test]
    fn lanes_are_the_same_on_any_processor() {
        let mut random = Random::new(3);
        for _ in 0..10_000 {
            // Few bits are set, so that some lanes are zero.
            let [one, other]: [[u32; 4]; 2] =
                std::array::from_fn(|_| std::array::from_fn(|_| random.word() & 0x8003_8003));
            macro_rules! zeroes {
                ($lanes:ident) => {{
                    let (a, b) = ($lanes::Lanes::new(one), $lanes::Lanes::new(other));
                    let splat = $lanes::Lanes::splat(one[0]);
                    [
                        a.and(b),
                        a.and_not(b),
                        a.or(b),
                        a.xor(b),
                        a.minus_16(b),
                        a.beyond_16(b),
                        splat.minus_16(a).beyond_16(b),
                        // Checks the difference itself, and not only whether it is zero.
                        a.minus_16(b).xor($lanes::Lanes::splat(one[1].wrapping_sub(other[1]))),
                    ]
                    .map(|lanes| lanes.zeroes())
                }};
            }
            assert_eq!(zeroes!(portable), zeroes!(sse2), "{one:x?} {other:x?}");
        }
    }
}
