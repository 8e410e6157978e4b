//! Random numbers for exploration: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
//! OOPSLA 2014). Seeded, so that a training run can be repeated bit by bit.

/// A random number generator.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// A number below `end`, which must not be zero. The small bias of the multiplication does not matter here.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f32 {
        // 24 bits: as many as an f32 holds exactly.
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Shuffles the elements.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
