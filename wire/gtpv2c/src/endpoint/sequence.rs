//! Sequence numbers that nobody without the secret can predict (§7.6).

use std::hash::{DefaultHasher, Hash, Hasher};

/// The bit that is set in the numbers of commands and of what they trigger, and in no other.
pub const COMMAND: u32 = 0x80_0000;

/// Most requests in flight: half of the 2^23 numbers, so that a free one is found soon.
pub const USABLE: usize = 1 << 22;

/// Rounds of [`scramble`].
const ROUNDS: u8 = 6;

/// A series of 2^23 numbers without repetition, which then starts again.
pub struct Sequence {
    secret: u64,
    counted: u32,
}

impl Sequence {
    /// The series of a secret.
    pub fn new(secret: u64) -> Self {
        Self { secret, counted: 0 }
    }

    /// The next number, without the [`COMMAND`] bit.
    pub fn draw(&mut self) -> u32 {
        // Half of the 24-bit numbers have the bit; they are left out.
        loop {
            self.counted = (self.counted + 1) & 0xff_ffff;
            let number = scramble(self.secret, self.counted);
            if number & COMMAND == 0 {
                return number;
            }
        }
    }
}

/// Permutes 24-bit numbers under a secret, so that a counter becomes a series without order. A Feistel network over halves of
/// 12 bits.
fn scramble(secret: u64, counted: u32) -> u32 {
    let (mut left, mut right) = (counted >> 12 & 0xfff, counted & 0xfff);
    for round in 0..ROUNDS {
        let mut hasher = DefaultHasher::new();
        (secret, round, right).hash(&mut hasher);
        (left, right) = (right, left ^ (hasher.finish() as u32 & 0xfff));
    }
    left << 12 | right
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole series is drawn once, then it starts again with the same number.
    #[test]
    fn numbers_come_once_in_a_turn() {
        let mut sequence = Sequence::new(7);
        let mut drawn = vec![false; 1 << 23];
        let first = sequence.draw();
        drawn[first as usize] = true;
        for _ in 1..1 << 23 {
            let number = sequence.draw();
            assert!(!std::mem::replace(&mut drawn[number as usize], true));
        }
        assert_eq!(sequence.draw(), first);
    }
}
