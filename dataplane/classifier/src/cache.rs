//! Verdicts of packets seen before, for traffic in which few flows are most of the packets.
//!
//! A [`Cache`] belongs to one reader thread and stands in front of any classifier. Entries name the epoch of the rules
//! that they were found in, so that an update, which begins a new epoch, makes all of them void without touching any.
//! A hit compares the whole key: no packet ever gets the verdict of another.
//!
//! ```text
//! key ─hash→ set of 2 lines: words 0 to 8 | kind | epoch 64 | found | value     (64 octets)
//!            and 2 rests:    words 9 to 19, read for IPv6 and Ethernet only     (44 octets)
//! ```
//! A line is compared at once. Of the two, the first was hit last; a hit of the second exchanges them. The misses of a
//! batch are classified together in one call.
//!
//! The cache steps aside where it does not pay. Up to [`SMALL`] rules, a look-up takes no longer than a hit. And when
//! less than a quarter of [`WINDOW`] packets hit, as when somebody sends nothing but new flows, the next [`SKIPPED`]
//! packets bypass it; then it is tried again.

use crate::key::WORDS;
use crate::simd::compare::{EPOCH, KIND, NARROW, WIDE};
use crate::simd::{Cpu, Kernel, Vector};
use crate::{Classifier, Key, Verdict};

/// Rules up to which packets bypass the cache.
pub const SMALL: usize = 64;
/// Packets after which hits are counted up.
pub const WINDOW: u32 = 1024;
/// Packets that bypass the cache after a window of misses, so that these cost a sixteenth.
pub const SKIPPED: u32 = 15 * WINDOW;
/// Packets looked up in one go: their misses are kept until all were looked up.
const CHUNK: usize = 32;

/// Places in a line, behind those that are compared.
const FOUND: usize = EPOCH + 2;
const VALUE: usize = EPOCH + 3;
/// Kinds of lines; that of one without an entry is zero.
const IS_NARROW: u32 = 1;
const IS_WIDE: u32 = 2;

/// Verdicts by key.
#[derive(Clone, Debug)]
pub struct Cache {
    cpu: Cpu,
    /// Packets still to bypass.
    skip: u32,
    /// Packets and misses of this window.
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

/// The misses of a batch. Kept, as clearing it each time would take longer than a hit.
#[derive(Clone, Debug)]
struct Scratch {
    /// Position in the batch, and set.
    missed: [(u32, u32); CHUNK],
    keys: [Key; CHUNK],
    verdicts: [Verdict; CHUNK],
}

impl Cache {
    /// Room for `entries` verdicts, rounded up to a power of two; each takes 108 octets.
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

    /// Looks keys up as `classifier` does, whose rules are those of `epoch`. Whoever changes the rules, or passes another
    /// classifier, passes an epoch that was not used before.
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

    /// Asks the classifier for what was missed, and keeps the answers.
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

    /// Makes an entry the first of its set.
    fn keep(&mut self, set: usize, epoch: u64, key: &Key, verdict: Verdict) {
        let (narrow, rest) = split(key);
        let kind = if *rest == [0; WIDE] { IS_NARROW } else { IS_WIDE };
        let mut line = [0; 16];
        line[..NARROW].copy_from_slice(narrow);
        (line[KIND], line[EPOCH], line[EPOCH + 1]) = (kind, epoch as u32, (epoch >> 32) as u32);
        (line[FOUND], line[VALUE]) = (verdict.is_some().into(), verdict.unwrap_or(0));
        let (lines, rests) = (&mut self.sets[set].lines, &mut self.rests[set]);
        if lines[0] == line && (kind == IS_NARROW || rests[0] == *rest) {
            // Twice among the misses of a batch.
            return;
        }
        if lines[0][EPOCH..FOUND] == line[EPOCH..FOUND] {
            (lines[1], rests[1]) = (lines[0], rests[0]);
        }
        (lines[0], rests[0]) = (line, *rest);
    }

    /// Octets held, the heap included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Cache>() + size_of::<Scratch>() + size_of_val(&self.sets[..]) + size_of_val(&self.rests[..])
    }
}

/// The look-up of up to [`CHUNK`] keys. The result is how many were missed.
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

/// Of the words that tell most flows apart. Others that are equal here share a set, not a verdict.
#[inline(always)]
fn hash(key: &Key) -> u64 {
    let word = |at: usize| u64::from(key.words[at + 1]) << 32 | u64::from(key.words[at]);
    let mixed = fold(word(0) ^ 0x9E37_79B9_7F4A_7C15, word(2) ^ 0xD1B5_4A32_D192_ED03);
    mixed ^ fold(word(6) ^ 0x8CB9_2BA7_2F3D_8DD7, word(4) ^ 0xA076_1D64_78BD_642F)
}

/// Product of two numbers, its halves folded together: all bits depend on all.
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
