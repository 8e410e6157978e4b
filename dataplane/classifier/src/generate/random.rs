//! A small seeded generator of random numbers: the same sequence on every machine and in every version.
//!
//! xoshiro256** (Blackman, Vigna: "Scrambled linear pseudorandom number generators", ACM TOMS 2021), seeded through
//! SplitMix64. Good enough for benchmarks, not for secrets.

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// Mixes 64 bits so that each bit of the result depends on all bits of `value` (SplitMix64's output function).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Random {
        let mut at = seed;
        let mut next = || {
            at = at.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(at)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ b << 17, d.rotate_left(45)];
        result
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// A number below `bound`; zero when `bound` is zero. The bias is below 2⁻³² for the bounds used here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number between `first` and `last`, both included.
    pub fn between(&mut self, first: u16, last: u16) -> u16 {
        first + self.below(usize::from(last - first) + 1) as u16
    }

    /// True in `permille` of 1000 cases.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < permille as usize
    }

    /// An entry of a table, drawn with its weight (the first member).
    ///
    /// # Panics
    /// When the table is empty.
    pub fn weighted<'a, T>(&mut self, table: &'a [(u32, T)]) -> &'a T {
        let total: u32 = table.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total as usize) as u32;
        for (weight, entry) in table {
            if at < *weight {
                return entry;
            }
            at -= weight;
        }
        &table[table.len() - 1].1
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
