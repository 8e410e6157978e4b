//! Verdicts of packets seen before, for traffic in which few flows are most of the packets.
//!
//! A [`Cache`] belongs to one reader thread and stands in front of a classifier. Every entry names the epoch of
//! the rules from which its verdict came. An update of the rules begins a new epoch, which invalidates all
//! entries without writing to them. A hit compares the whole key: no packet ever gets the verdict of another
//! packet.
//!
//! ```text
//! key ─hash→ set of 2 lines: words 0 to 8 | kind | epoch 64 | found | value     (64 octets)
//!            and 2 rests:    words 9 to 19, read for IPv6 and Ethernet only     (44 octets)
//! ```
//! One vector operation compares a line. The first line of a set is the one that was hit last; a hit in the
//! second exchanges them. The misses of a batch are classified together in one call.
//!
//! The cache is bypassed where it does not pay. Up to [`SMALL`] rules, a look-up takes no longer than a hit.
//! When less than a quarter of [`WINDOW`] packets hit, as when a peer sends nothing but new flows, the next
//! [`SKIPPED`] packets bypass the cache; then it is tried again.

use crate::key::WORDS;
use crate::simd::compare::{EPOCH, KIND, NARROW, WIDE};
use crate::simd::{Cpu, Kernel, Vector};
use crate::{Classifier, Key, Verdict};

/// Up to this number of rules, packets bypass the cache.
pub const SMALL: usize = 64;
/// Packets after which the hits are counted.
pub const WINDOW: u32 = 1024;
/// Packets that bypass the cache after a window of misses. Misses then cost a sixteenth of the time.
pub const SKIPPED: u32 = 15 * WINDOW;
/// Packets looked up together: their misses are collected and classified at the end.
const CHUNK: usize = 32;

/// Index of the verdict in a line, behind the words that are compared.
const FOUND: usize = EPOCH + 2;
const VALUE: usize = EPOCH + 3;
/// Kinds of lines. Zero is a line without entry.
const IS_NARROW: u32 = 1;
const IS_WIDE: u32 = 2;

/// Verdicts by key.
#[derive(Clone, Debug)]
pub struct Cache {
    cpu: Cpu,
    /// Packets that are still to bypass the cache.
    skip: u32,
    /// Packets of this window, and how many of them missed.
    seen: u32,
    misses: u32,
    sets: Vec<Set>,
    rests: Vec<[[u32; WIDE]; 2]>,
    scratch: Box<Scratch>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Set {
    lines: [[u32; 16]; 2],
}

/// The misses of a batch. Kept between batches, since clearing it would take longer than a hit.
#[derive(Clone, Debug)]
struct Scratch {
    /// Position in the batch, and number of the set.
    missed: [(u32, u32); CHUNK],
    keys: [Key; CHUNK],
    verdicts: [Verdict; CHUNK],
}

impl Cache {
    /// A cache with room for `entries` verdicts, rounded up to a power of two; each takes 108 octets.
    pub fn new(entries: usize) -> Cache {
        let sets = entries.div_ceil(2).clamp(1, 1 << 30).next_power_of_two();
        Cache {
            cpu: Cpu::detect(),
            skip: 0,
            seen: 0,
            misses: 0,
            sets: vec![Set { lines: [[0; 16]; 2] }; sets],
            rests: vec![[[0; WIDE]; 2]; sets],
            scratch: Box::new(Scratch {
                missed: [(0, 0); CHUNK],
                keys: [Key::unknown(); CHUNK],
                verdicts: [None; CHUNK],
            }),
        }
    }

    /// Looks up keys as `classifier` does. `epoch` identifies the classifier's rules: whoever changes the
    /// rules, or passes another classifier, must pass an epoch that was not used before.
    #[inline]
    pub fn classify<C: Classifier + ?Sized>(
        &mut self,
        classifier: &C,
        epoch: u64,
        keys: &[Key],
        verdicts: &mut [Verdict],
    ) {
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(keys.len() as u32);
            classifier.classify(keys, verdicts);
        } else if keys.len() <= CHUNK {
            self.chunk(classifier, epoch, keys, verdicts);
        } else {
            for (keys, verdicts) in keys.chunks(CHUNK).zip(verdicts.chunks_mut(CHUNK)) {
                self.chunk(classifier, epoch, keys, verdicts);
            }
        }
    }

    #[inline(always)]
    fn chunk<C: Classifier + ?Sized>(
        &mut self,
        classifier: &C,
        epoch: u64,
        keys: &[Key],
        verdicts: &mut [Verdict],
    ) {
        let misses = self.cpu.run(Find { cache: self, epoch, keys, verdicts });
        if misses > 0 {
            self.ask(classifier, epoch, misses, keys, verdicts);
        }
        self.seen += keys.len() as u32;
        if self.seen >= WINDOW {
            self.end_window(classifier.len());
        }
    }

    #[cold]
    fn end_window(&mut self, rules: usize) {
        let pays = rules > SMALL && self.misses <= self.seen / 4 * 3;
        self.skip = if pays { 0 } else { SKIPPED };
        (self.seen, self.misses) = (0, 0);
    }

    /// Classifies the keys that missed, and stores the verdicts.
    #[inline(never)]
    fn ask<C: Classifier + ?Sized>(
        &mut self,
        classifier: &C,
        epoch: u64,
        misses: usize,
        keys: &[Key],
        verdicts: &mut [Verdict],
    ) {
        self.misses += misses as u32;
        let scratch = &mut *self.scratch;
        for (key, (at, _)) in scratch.keys.iter_mut().zip(&scratch.missed[..misses]) {
            *key = keys[*at as usize];
        }
        classifier.classify(&scratch.keys[..misses], &mut scratch.verdicts);
        for miss in 0..misses {
            let (at, set) = self.scratch.missed[miss];
            let verdict = self.scratch.verdicts[miss];
            verdicts[at as usize] = verdict;
            self.keep(set as usize, epoch, &keys[at as usize], verdict);
        }
    }

    /// Stores an entry as the first of its set.
    fn keep(&mut self, set: usize, epoch: u64, key: &Key, verdict: Verdict) {
        let (narrow, rest) = split(key);
        let kind = if *rest == [0; WIDE] { IS_NARROW } else { IS_WIDE };
        let mut line = [0; 16];
        line[..NARROW].copy_from_slice(narrow);
        (line[KIND], line[EPOCH], line[EPOCH + 1]) = (kind, epoch as u32, (epoch >> 32) as u32);
        (line[FOUND], line[VALUE]) = (verdict.is_some().into(), verdict.unwrap_or(0));
        let (lines, rests) = (&mut self.sets[set].lines, &mut self.rests[set]);
        if lines[0] == line && (kind == IS_NARROW || rests[0] == *rest) {
            // The key missed twice in this batch.
            return;
        }
        if lines[0][EPOCH..FOUND] == line[EPOCH..FOUND] {
            (lines[1], rests[1]) = (lines[0], rests[0]);
        }
        (lines[0], rests[0]) = (line, *rest);
    }

    /// Octets of memory in use, the heap included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Cache>() + size_of::<Scratch>() + size_of_val(&self.sets[..]) + size_of_val(&self.rests[..])
    }
}

/// The look-up of up to [`CHUNK`] keys. Returns how many missed.
struct Find<'a> {
    cache: &'a mut Cache,
    epoch: u64,
    keys: &'a [Key],
    verdicts: &'a mut [Verdict],
}

impl Kernel for Find<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) -> usize {
        let Cache { sets, rests, scratch, .. } = self.cache;
        let mut misses = 0;
        for (at, (key, verdict)) in self.keys.iter().zip(self.verdicts).enumerate() {
            let place = hash(key) as usize & (sets.len() - 1);
            let lines = &mut sets[place].lines;
            let (_, rest) = split(key);
            let hit = if vector.rest(rest, &[0; WIDE]) {
                [0, 1].into_iter().find(|way| vector.line(&lines[*way], &key.words, IS_NARROW, self.epoch))
            } else {
                let rests = &rests[place];
                [0, 1].into_iter().find(|way| {
                    vector.line(&lines[*way], &key.words, IS_WIDE, self.epoch)
                        && vector.rest(&rests[*way], rest)
                })
            };
            let Some(way) = hit else {
                scratch.missed[misses % CHUNK] = (at as u32, place as u32);
                misses += 1;
                continue;
            };
            *verdict = (lines[way][FOUND] != 0).then_some(lines[way][VALUE]);
            if way == 1 {
                lines.swap(0, 1);
                rests[place].swap(0, 1);
            }
        }
        misses
    }
}

/// A hash of the words in which most flows differ. Keys that are equal in these words share a set, but never a
/// verdict.
#[inline(always)]
fn hash(key: &Key) -> u64 {
    let word = |at: usize| u64::from(key.words[at + 1]) << 32 | u64::from(key.words[at]);
    let mixed = fold(word(0) ^ 0x9E37_79B9_7F4A_7C15, word(2) ^ 0xD1B5_4A32_D192_ED03);
    mixed ^ fold(word(6) ^ 0x8CB9_2BA7_2F3D_8DD7, word(4) ^ 0xA076_1D64_78BD_642F)
}

/// Multiplies two numbers and folds the halves of the product together, so that every bit depends on all bits.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn split(key: &Key) -> (&[u32; NARROW], &[u32; WIDE]) {
    match (key.words.first_chunk(), key.words.last_chunk()) {
        (Some(narrow), Some(rest)) => (narrow, rest),
        _ => (&[0; NARROW], &[0; WIDE]),
    }
}

const _: () = assert!(NARROW + WIDE == WORDS);
