//! Translations that a worker remembers, by the fields that they have consulted.
//!
//! Translations that consulted the same fields are in one hash table, so a look-up tries as many tables as there are kinds of
//! packets: a few. Any translation that is found is right, whichever table has it. One of an earlier version of the entries is
//! taken out when it is met. Packets are counted in the cache, and brought to the entries' counters together.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::pipeline::Pipeline;
use crate::pipeline::field::{Mask, WORDS};
use crate::pipeline::parse::Headers;
use crate::pipeline::trace::{Consulted, Trace};

/// Translations of one worker; more make it forget all.
const MAX_ENTRIES: usize = 1 << 17;
/// Sets of consulted fields.
const MAX_KINDS: usize = 64;
/// Look-ups after which the tables are put in the order of their use.
const REORDER: u32 = 1 << 14;

/// A remembered translation.
#[derive(Debug)]
pub struct Entry {
    /// The translation.
    pub trace: Trace,
    packets: u64,
    bytes: u64,
}

/// The words that translations of one kind have consulted.
#[derive(Debug)]
struct Kind {
    outer: Mask,
    inner: Mask,
    /// Positions of the translations by the values of these words.
    known: HashMap<Box<[u64]>, u32, RandomState>,
    hits: u32,
}

/// A worker's translations.
#[derive(Debug, Default)]
pub struct Cache {
    kinds: Vec<Kind>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Those with packets that are not in the entries' counters yet.
    dirty: Vec<u32>,
    lookups: u32,
    /// Packets that were not known.
    pub misses: u64,
    /// Packets that were.
    pub hits: u64,
    /// How often everything was forgotten for lack of room.
    pub overflows: u64,
}

/// Values of all words of a kind.
struct Key([u64; 2 * WORDS], usize);

impl Key {
    #[inline]
    fn new(outer: &Mask, inner: &Mask, headers: &Headers) -> Key {
        let mut key = Key([0; 2 * WORDS], outer.len() + inner.len());
        let mut words = [0; WORDS];
        key.0[..outer.len()].copy_from_slice(outer.apply(&headers.outer, &mut words));
        key.0[outer.len()..outer.len() + inner.len()]
            .copy_from_slice(inner.apply(&headers.inner, &mut words));
        key
    }

    #[inline]
    fn words(&self) -> &[u64] {
        &self.0[..self.1]
    }
}

impl Cache {
    /// The translation of a packet with these headers and `bytes` octets, which is counted. `translate` makes it if there is
    /// none of this version; it may find that there is a newer version.
    #[inline]
    pub fn look_up(
        &mut self,
        headers: &Headers,
        bytes: usize,
        version: &mut u64,
        pipeline: impl FnOnce(&mut u64, Option<Entry>) -> Trace,
    ) -> &Trace {
        let known = self.find(headers);
        let at = match known {
            Some((_, at)) if self.is_current(at, *version) => {
                self.hits += 1;
                at
            }
            known => {
                self.misses += 1;
                let stale = known.and_then(|(kind, at)| self.take(kind, at, headers));
                let trace = pipeline(version, stale);
                self.insert(headers, trace)
            }
        };
        let entry = &mut self.entries[at as usize];
        if let Some(entry) = entry {
            if entry.packets == 0 {
                self.dirty.push(at);
            }
            entry.packets += 1;
            entry.bytes += bytes as u64;
        }
        // An entry has just been found or put there.
        self.entries[at as usize].as_ref().map(|entry| &entry.trace).unwrap_or(&EMPTY)
    }

    #[inline]
    fn is_current(&self, at: u32, version: u64) -> bool {
        self.entries[at as usize].as_ref().is_some_and(|entry| entry.trace.version == version)
    }

    #[inline]
    fn find(&mut self, headers: &Headers) -> Option<(usize, u32)> {
        self.lookups += 1;
        if self.lookups >= REORDER {
            self.lookups = 0;
            self.kinds.retain(|kind| !kind.known.is_empty());
            self.kinds.sort_by_key(|kind| std::cmp::Reverse(kind.hits));
            self.kinds.iter_mut().for_each(|kind| kind.hits /= 2);
        }
        for (number, kind) in self.kinds.iter_mut().enumerate() {
            let key = Key::new(&kind.outer, &kind.inner, headers);
            if let Some(at) = kind.known.get(key.words()) {
                kind.hits += 1;
                return Some((number, *at));
            }
        }
        None
    }

    fn take(&mut self, kind: usize, at: u32, headers: &Headers) -> Option<Entry> {
        let kind = &mut self.kinds[kind];
        kind.known.remove(Key::new(&kind.outer, &kind.inner, headers).words());
        self.free.push(at);
        self.entries[at as usize].take()
    }

    fn insert(&mut self, headers: &Headers, trace: Trace) -> u32 {
        let Consulted { outer, inner } = &trace.consulted;
        let (outer, inner) = (Mask::of(outer), Mask::of(inner));
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        let kind = match self.kinds.iter_mut().position(|kind| kind.outer == outer && kind.inner == inner) {
            Some(number) => &mut self.kinds[number],
            None => {
                self.kinds.push(Kind { outer, inner, known: HashMap::default(), hits: 0 });
                let last = self.kinds.len() - 1;
                &mut self.kinds[last]
            }
        };
        let key = Key::new(&kind.outer, &kind.inner, headers);
        kind.known.insert(key.words().into(), at);
        self.entries[at as usize] = Some(Entry { trace, packets: 0, bytes: 0 });
        at
    }

    /// Whether there is no room for another translation of another kind: [`Cache::forget`] is due before the next vector.
    pub fn is_full(&self) -> bool {
        self.entries.len() - self.free.len() >= MAX_ENTRIES || self.kinds.len() >= MAX_KINDS
    }

    /// Forgets everything; counts first.
    pub fn forget(&mut self, pipeline: &Pipeline, now_ns: u64) {
        self.count(pipeline, now_ns);
        self.kinds.clear();
        self.entries.clear();
        self.free.clear();
        self.overflows += 1;
    }

    /// Whether packets wait to be counted.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Brings the packets to the entries' counters.
    pub fn count(&mut self, pipeline: &Pipeline, now_ns: u64) {
        for at in self.dirty.drain(..) {
            if let Some(entry) = &mut self.entries[at as usize] {
                entry.count(pipeline, now_ns);
            }
        }
    }

    /// Number of translations.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of sets of consulted fields.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }
}

impl Entry {
    /// Brings its packets to the counters.
    pub fn count(&mut self, pipeline: &Pipeline, now_ns: u64) {
        if self.packets > 0 {
            self.trace.count(pipeline, self.packets, self.bytes, now_ns);
            (self.packets, self.bytes) = (0, 0);
        }
    }
}

/// What a packet without translation would get, if there were one.
static EMPTY: Trace = Trace {
    steps: Vec::new(),
    rules: Vec::new(),
    tables: Vec::new(),
    groups: Vec::new(),
    consulted: Consulted { outer: [0; WORDS], inner: [0; WORDS] },
    dropped: None,
    version: 0,
};
