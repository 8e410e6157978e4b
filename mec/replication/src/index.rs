//! Where a record is, by a key that is in the record: an open-addressed table of numbers.
//!
//! An entry is four octets: the key itself stays in the record, and is compared there. Entries lie at most a few places behind the
//! one that their hash says; a removed one is filled by those behind it, so nothing has to be swept. Capacity grows by a quarter, so that
//! an entry takes six octets at most.

/// Records by hash.
#[derive(Debug, Default)]
pub struct Index {
    /// Number of the record plus one; 0: free.
    entries: Vec<u32>,
    len: usize,
}

/// Fullest: five of six places.
const fn is_full(len: usize, capacity: usize) -> bool {
    len * 6 >= capacity * 5
}

impl Index {
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.entries.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// The first record of this hash that fits.
    pub fn find(&self, hash: u64, fits: impl Fn(u32) -> bool) -> Option<u32> {
        self.all(hash).find(|number| fits(*number))
    }

    /// Records that may have this hash, all that have it among them.
    pub fn all(&self, hash: u64) -> impl Iterator<Item = u32> + use<'_> {
        let mut at = if self.entries.is_empty() { 0 } else { self.home(hash) };
        std::iter::from_fn(move || {
            let number = self.entries.get(at)?.checked_sub(1)?;
            at = self.next(at);
            Some(number)
        })
    }

    /// Adds a record; `hash_of` gives the hash of those that are there.
    pub fn insert(&mut self, number: u32, hash: u64, hash_of: impl Fn(u32) -> u64) {
        if is_full(self.len + 1, self.entries.len()) {
            let capacity = (self.entries.len() * 5 / 4).max(16);
            let old = std::mem::replace(&mut self.entries, vec![0; capacity]);
            for entry in old.into_iter().filter(|entry| *entry != 0) {
                self.place(entry, hash_of(entry - 1));
            }
        }
        self.place(number + 1, hash);
        self.len += 1;
    }

    fn place(&mut self, entry: u32, hash: u64) {
        let mut at = self.home(hash);
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = entry;
    }

    /// Removes a record; `hash_of` gives the hash of those behind it.
    pub fn remove(&mut self, number: u32, hash: u64, hash_of: impl Fn(u32) -> u64) {
        if self.entries.is_empty() {
            return;
        }
        let mut at = self.home(hash);
        while self.entries[at] != number + 1 {
            if self.entries[at] == 0 {
                return;
            }
            at = self.next(at);
        }
        self.len -= 1;
        let (mut hole, mut behind) = (at, self.next(at));
        while let Some(other) = self.entries[behind].checked_sub(1) {
            let home = self.home(hash_of(other));
            // Whether the hole lies between its home and where it is, around the end.
            let is_between =
                if home <= behind { home <= hole && hole < behind } else { home <= hole || hole < behind };
            if is_between {
                self.entries[hole] = self.entries[behind];
                hole = behind;
            }
            behind = self.next(behind);
        }
        self.entries[hole] = 0;
    }

    /// Octets of memory.
    pub fn octets(&self) -> usize {
        self.entries.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The same as a map, with hashes that collide and wrap around the end.
        #[test]
        fn it_finds_what_a_map_finds(changes in proptest::collection::vec((0u32..40, any::<bool>()), 1..200)) {
            let hash_of = |number: u32| (u64::MAX / 8) * u64::from(number % 9).min(8);
            let mut index = Index::default();
            let mut expected = std::collections::BTreeSet::new();
            for (number, add) in changes {
                if add && expected.insert(number) {
                    index.insert(number, hash_of(number), hash_of);
                } else if !add && expected.remove(&number) {
                    index.remove(number, hash_of(number), hash_of);
                }
                for number in 0..40 {
                    let found = index.find(hash_of(number), |other| other == number);
                    prop_assert_eq!(found.is_some(), expected.contains(&number), "{}", number);
                }
            }
        }
    }
}
