//! Numbers that nobody outside this process can predict: SEIDs, TEIDs, sequence numbers of Echo Requests.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};

/// A secret of this process, from the operating system's random numbers.
pub fn secret() -> u64 {
    RandomState::new().hash_one(0)
}

/// A sequence of numbers derived from a secret. The same secret gives the same numbers; without it, known
/// numbers do not help to guess the next.
#[derive(Debug)]
pub struct Draw {
    secret: u64,
    drawn: u64,
}

impl Draw {
    /// The sequence of this secret.
    pub fn new(secret: u64) -> Draw {
        Draw { secret, drawn: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = DefaultHasher::new();
        (self.secret, self.drawn).hash(&mut hasher);
        hasher.finish()
    }

    /// The next number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.number() >> 32) * u64::from(bound)) >> 32) as u32
    }
}
