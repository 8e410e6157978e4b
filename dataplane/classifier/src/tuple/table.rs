//! One hash table of a tuple space.
//!
//! Open addressing in buckets of seven places, after F14 (Bronson and Shi, Facebook, 2019). A bucket has seven
//! 16-bit tags, and the number of heads that belong to this bucket but found it full and are in a later one. A
//! look-up compares all tags at once and goes on only when that number is not zero. So removal needs no
//! tombstones, and a miss costs one bucket of 16 octets. Buckets are stored apart from the heads, which keeps
//! the memory that misses touch small.

use super::{SEEDS, Tuple, fold};
use crate::ranked::Head;

/// Places in a bucket.
const PLACES: usize = 7;

#[derive(Clone, Copy, Default, Debug)]
#[repr(C, align(16))]
struct Bucket {
    /// Zero for free places.
    tags: [u16; PLACES],
    /// Number of heads that passed this bucket because it was full. Stays at the maximum once it is reached.
    passed: u16,
}

impl Bucket {
    /// One bit for every place with this tag.
    #[inline]
    fn find(&self, tag: u16) -> u32 {
        #[cfg(target_arch = "x86_64")]
        {
            use core::arch::x86_64::{
                _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
                _mm_setzero_si128,
            };
            // SAFETY: SSE2 is part of x86-64; a bucket has 16 octets at a multiple of 16.
            let found = unsafe {
                let tags = _mm_load_si128(std::ptr::from_ref(self).cast());
                let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
                _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128()))
            };
            // The eighth lane is `passed`, not a tag.
            found as u32 & 0x7F
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.find_one_by_one(tag)
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn find_one_by_one(&self, tag: u16) -> u32 {
        (0..PLACES).map(|at| u32::from(self.tags[at] == tag) << at).sum()
    }
}

/// The tag of a hash; never zero.
#[inline]
fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16 | 0x8000
}

/// The table of one tuple. Its first cache line has everything that a look-up reads of it.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Table {
    first: [u64; 2],
    /// The number of buckets is a power of two.
    buckets: Box<[Bucket]>,
    heads: Box<[Head]>,
    /// Number of the tuple's masks for the words 4 to 19.
    pub rest: u32,
    /// Number of bits in the tuple.
    pub bits: u32,
    /// Number of heads in the table.
    used: u32,
    /// A lower bound of the ranks in the table.
    pub best: u64,
    /// Number of rules in the table.
    pub rules: u32,
    /// Removals since `best` was last exact.
    pub worn: u32,
    /// Whether the rule with rank `best` has been removed.
    pub stale: bool,
    pub tuple: Tuple,
}

impl Table {
    pub fn new(tuple: Tuple, rest: u32) -> Table {
        Table {
            first: tuple.first,
            buckets: vec![Bucket::default(); 1].into(),
            heads: vec![0; PLACES].into(),
            rest,
            bits: tuple.bits(),
            used: 0,
            best: u64::MAX,
            rules: 0,
            worn: 0,
            stale: false,
            tuple,
        }
    }

    /// The hash of a key, given the hash of its words 4 to 19.
    #[inline]
    pub fn hash(&self, first: [u64; 2], rest_hash: u64) -> u64 {
        fold(first[0] & self.first[0] ^ SEEDS[0] ^ rest_hash, first[1] & self.first[1] ^ SEEDS[1])
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Whether a head with this hash may be in the table. Never misses a head that is there; seldom reports one
    /// that is not.
    #[inline]
    pub fn may_have(&self, hash: u64) -> bool {
        let bucket = &self.buckets[self.bucket(hash)];
        bucket.find(tag(hash)) | u32::from(bucket.passed) != 0
    }

    /// Calls `visit` with every head that may have this hash and its place, until it returns `true`.
    #[inline]
    pub fn probe(&self, hash: u64, mut visit: impl FnMut(&Head, usize) -> bool) {
        let tag = tag(hash);
        let mut at = self.bucket(hash);
        // Bounded: if all buckets were at the maximum of `passed`, the search would never end.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut places = bucket.find(tag);
            while places != 0 {
                let place = at * PLACES + places.trailing_zeros() as usize;
                if visit(&self.heads[place], place) {
                    return;
                }
                places &= places - 1;
            }
            if bucket.passed == 0 {
                return;
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    /// Place of the head with this hash for which `is` returns `true`.
    pub fn locate(&self, hash: u64, mut is: impl FnMut(&Head) -> bool) -> Option<usize> {
        let mut found = None;
        self.probe(hash, |head, place| {
            found = is(head).then_some(place);
            found.is_some()
        });
        found
    }

    /// The head in a place.
    pub fn head(&self, place: usize) -> &Head {
        &self.heads[place]
    }

    pub fn head_mut(&mut self, place: usize) -> &mut Head {
        &mut self.heads[place]
    }

    /// Whether the table's bits of the first four words are all in `masks`.
    #[inline]
    pub fn first_within(&self, masks: &Tuple) -> bool {
        (self.first[0] & !masks.first[0]) | (self.first[1] & !masks.first[1]) == 0
    }

    /// Whether the table needs more buckets before the next head. At five eighths, few buckets are passed.
    pub fn is_full(&self) -> bool {
        (self.used as usize + 1) * 8 > self.buckets.len() * PLACES * 5 && self.used >= PLACES as u32
    }

    /// Whether far fewer buckets would suffice.
    pub fn is_sparse(&self) -> bool {
        self.buckets.len() > 1 && (self.used as usize) * 8 < self.buckets.len() * PLACES
    }

    /// Adds a head whose key is not in the table. The table must not be full.
    pub fn add(&mut self, hash: u64, head: Head) {
        let mask = self.buckets.len() - 1;
        let mut at = self.bucket(hash);
        loop {
            let free = self.buckets[at].find(0);
            if free != 0 {
                let place = free.trailing_zeros() as usize;
                self.buckets[at].tags[place] = tag(hash);
                self.heads[at * PLACES + place] = head;
                self.used += 1;
                return;
            }
            self.buckets[at].passed = self.buckets[at].passed.saturating_add(1);
            at = (at + 1) & mask;
        }
    }

    /// Frees the place of a head with this hash.
    pub fn remove(&mut self, hash: u64, place: usize) {
        let (last, mask) = (place / PLACES, self.buckets.len() - 1);
        self.buckets[last].tags[place % PLACES] = 0;
        self.used -= 1;
        let mut at = self.bucket(hash);
        while at != last {
            let passed = &mut self.buckets[at].passed;
            *passed -= u16::from(*passed != u16::MAX);
            at = (at + 1) & mask;
        }
    }

    /// Every head in the table.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        let tags = self.buckets.iter().flat_map(|bucket| &bucket.tags);
        tags.zip(&self.heads).filter_map(|(&tag, head)| (tag != 0).then_some(head))
    }

    /// Empties the table and makes room for this many heads at half the load of a full table.
    pub fn reset(&mut self, heads: usize) {
        let buckets = (heads * 16).div_ceil(PLACES * 5).next_power_of_two();
        self.buckets = vec![Bucket::default(); buckets].into();
        self.heads = vec![0; buckets * PLACES].into();
        self.used = 0;
    }

    pub fn heap_bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>() + self.heads.len() * size_of::<Head>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_as_one_by_one() {
        for seed in 0..2000u64 {
            let tags = std::array::from_fn(|at| [0, 0x8000, 0x8001, 0xFFFF][(seed >> (2 * at) & 3) as usize]);
            let bucket = Bucket { tags, passed: 0x8001 };
            for tag in [0, 0x8000, 0x8001, 0x8002, 0xFFFF] {
                assert_eq!(bucket.find(tag), bucket.find_one_by_one(tag));
            }
        }
    }

    #[test]
    fn heads_that_want_one_bucket_are_found_until_they_go() {
        let tuple = Tuple { first: [0; 2], rest: [0; crate::store::REST] };
        let mut table = Table::new(tuple, 0);
        table.reset(64);
        // All hash to the last bucket; pairs of them have the same tag.
        let hash = |head: u32| u64::MAX >> 16 | u64::from(head / 2) << 48;
        for head in 0..40 {
            assert!(!table.is_full());
            table.add(hash(head), head);
        }
        let place = |table: &Table, wanted: u32| table.locate(hash(wanted), |&head| head == wanted);
        for gone in (0..40).map(|at| at * 7 % 40) {
            let at = place(&table, gone);
            assert_eq!(at.map(|at| *table.head(at)), Some(gone));
            table.remove(hash(gone), at.unwrap_or_default());
            assert_eq!(place(&table, gone), None);
        }
        assert_eq!(table.heads().count(), 0);
        assert!(table.buckets.iter().all(|bucket| bucket.passed == 0));
    }
}
