//! Maps whose keys the owner of a classifier chose, such as rule ids. Their hash is one multiplication per
//! word.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from rule ids to what a backend needs to find the rule.
///
/// Ids come from the owner of the classifier, not from packets, so an attacker cannot provoke collisions.
pub type IdMap<T> = HashMap<u32, T, BuildHasherDefault<IdHasher>>;

/// Octets that a map holds on the heap: entries and one control octet each, at the load factor of `hashbrown`.
pub(crate) fn map_bytes<T>(map: &IdMap<T>) -> usize {
    map.capacity() * 8 / 7 * (size_of::<(u32, T)>() + 1)
}

/// A hasher for a few words.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u32(&mut self, id: u32) {
        self.write_u64(id.into());
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // Fibonacci hashing. `hashbrown` takes its tags from the upper bits of the hash and the bucket from the
        // lower ones.
        let spread = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ spread >> 32;
    }
}
