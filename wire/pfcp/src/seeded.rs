//! Hash maps with keys that peers choose, looked up a few times per message.
//!
//! The standard library's hash is made for secrecy that is not needed here. This one is a folded multiplication per word,
//! with a seed that is drawn at start and never leaves the process: peers do not see hashes, so they cannot aim for
//! collisions either.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A hash map with a [`Seed`] of its own.
pub type SeededMap<K, V> = HashMap<K, V, Seed>;

/// Makes [`Folded`] hashers that agree with each other.
#[derive(Debug, Clone, Copy)]
pub struct Seed([u64; 2]);

impl Default for Seed {
    fn default() -> Seed {
        let random = RandomState::new();
        // Odd, so that no word is lost in the multiplication.
        Seed([random.hash_one(0u8), random.hash_one(1u8) | 1])
    }
}

impl BuildHasher for Seed {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded { state: self.0[0], factor: self.0[1] }
    }
}

/// The hasher.
#[derive(Debug, Clone, Copy)]
pub struct Folded {
    state: u64,
    factor: u64,
}

impl Folded {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        // Rotated, so that a product of nothing does not stay nothing.
        self.state = ((product >> 64) as u64 ^ product as u64).wrapping_add(self.factor.rotate_left(23));
    }
}

impl Hasher for Folded {
    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::net::SocketAddr;

    /// What peers count up in (sequence numbers, SEIDs, ports) spreads over the low bits, which choose the bucket, and
    /// over the high ones, which tell keys of one bucket apart.
    #[test]
    fn keys_that_count_up_are_spread() {
        let seed = Seed::default();
        let peer = |n: u32| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 8805));
        let hashes: Vec<u64> = (0..4096u32)
            .map(|n| seed.hash_one((peer(7), n)))
            .chain((0..4096u32).map(|n| seed.hash_one((peer(n), 9999u32))))
            .collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        for half in hashes.chunks(4096) {
            let low: HashSet<u64> = half.iter().map(|hash| hash & 0xfff).collect();
            let high: HashSet<u64> = half.iter().map(|hash| hash >> 57).collect();
            // Of 4,096 balls in as many boxes, 63 % of the boxes have one.
            assert!(low.len() > 2300, "{}", low.len());
            assert!(high.len() > 120, "{}", high.len());
        }
    }
}
