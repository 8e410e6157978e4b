//! Translations that a worker remembers, by the fields that they have consulted.
//!
//! Translations that consulted the same fields are in one hash table, so a look-up tries as many tables as there are kinds of
//! packets: a few. Any translation that is found is right, whichever table has it. One of an earlier version of the entries is
//! taken out when it is met. Packets are counted in the cache, and brought to the entries' counters together.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::pipeline::Pipeline;
use crate::pipeline::exact::Exact;
use crate::pipeline::field::{Mask, WORDS};
use crate::pipeline::parse::Headers;
use crate::pipeline::trace::{Dropped, Step, Trace};

/// Translations of one worker; more make it forget all.
const MAX_ENTRIES: usize = 1 << 17;
/// Sets of consulted fields.
const MAX_KINDS: usize = 64;
/// Look-ups after which the tables are put in the order of their use.
const REORDER: u32 = 1 << 14;

/// A remembered translation: what a packet needs of it, in one cache line.
#[derive(Debug)]
struct Entry {
    version: u64,
    packets: u64,
    bytes: u64,
    dropped: Option<Dropped>,
    /// Whether a packet has found it, or one of an earlier version in its place.
    was_met: bool,
    steps: Box<[Step]>,
    /// What a data path for tunnels can do in its place.
    exact: Option<Box<Exact>>,
}

/// What becomes of a packet.
#[derive(Debug)]
pub struct Found<'c> {
    /// What is done.
    pub steps: &'c [Step],
    /// Why it is dropped, if it is.
    pub dropped: Option<Dropped>,
    /// What to offer to a data path for tunnels: of translations that are in use, again and again as long as packets come here.
    pub offer: Option<&'c Exact>,
}

/// A translation that no longer holds, with the packets that it has not been told of.
#[derive(Debug)]
pub struct Stale {
    trace: Trace,
    packets: u64,
    bytes: u64,
}

impl Stale {
    /// Brings its packets to the counters.
    pub fn count(&self, pipeline: &Pipeline, now_ns: u64) {
        if self.packets > 0 {
            self.trace.count(pipeline, self.packets, self.bytes, now_ns);
        }
    }
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
    entries: Vec<Entry>,
    /// The rest of each translation: none of a free entry.
    traces: Vec<Option<Trace>>,
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
        outer.apply(&headers.outer, &mut key.0);
        inner.apply(&headers.inner, &mut key.0[outer.len()..]);
        key
    }

    #[inline]
    fn words(&self) -> &[u64] {
        &self.0[..self.1]
    }
}

impl Cache {
    /// What becomes of a packet with these headers and `bytes` octets, which is counted. `translate` translates it if no
    /// translation of this version is known, and sets the version to that of its own; it also says what a data path for tunnels,
    /// if there is one, can do in its place.
    #[inline]
    pub fn look_up(
        &mut self,
        headers: &Headers,
        bytes: usize,
        version: &mut u64,
        translate: impl FnOnce(&mut u64, Option<Stale>) -> (Trace, Option<Exact>),
    ) -> Found<'_> {
        let (at, is_met) = match self.find(headers) {
            Some((_, at)) if self.entries[at as usize].version == *version => {
                self.hits += 1;
                (at, true)
            }
            known => {
                self.misses += 1;
                let stale = known.and_then(|(kind, at)| self.take(kind, at, headers));
                let is_met = stale.is_some();
                let (trace, exact) = translate(version, stale);
                (self.insert(headers, trace, exact), is_met)
            }
        };
        let entry = &mut self.entries[at as usize];
        // At the second packet, and once in each period of counting: floods of single packets offer nothing.
        let is_offered = is_met && (!entry.was_met || entry.packets == 0);
        entry.was_met |= is_met;
        if entry.packets == 0 {
            self.dirty.push(at);
        }
        entry.packets += 1;
        entry.bytes += bytes as u64;
        let offer = entry.exact.as_deref().filter(|_| is_offered);
        Found { steps: &entry.steps, dropped: entry.dropped, offer }
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

    fn take(&mut self, kind: usize, at: u32, headers: &Headers) -> Option<Stale> {
        let kind = &mut self.kinds[kind];
        kind.known.remove(Key::new(&kind.outer, &kind.inner, headers).words());
        self.free.push(at);
        let entry = &mut self.entries[at as usize];
        let (packets, bytes) = (std::mem::take(&mut entry.packets), std::mem::take(&mut entry.bytes));
        Some(Stale { trace: self.traces[at as usize].take()?, packets, bytes })
    }

    fn insert(&mut self, headers: &Headers, mut trace: Trace, exact: Option<Exact>) -> u32 {
        let (outer, inner) = (Mask::of(&trace.consulted.outer), Mask::of(&trace.consulted.inner));
        let number = match self.kinds.iter().position(|kind| kind.outer == outer && kind.inner == inner) {
            Some(number) => number,
            None => {
                self.kinds.push(Kind { outer, inner, known: HashMap::default(), hits: 0 });
                self.kinds.len() - 1
            }
        };
        let steps = std::mem::take(&mut trace.steps).into_boxed_slice();
        let entry = Entry {
            version: trace.version,
            packets: 0,
            bytes: 0,
            dropped: trace.dropped,
            was_met: false,
            steps,
            exact: exact.map(Box::new),
        };
        let at = match self.free.pop() {
            Some(at) => {
                (self.entries[at as usize], self.traces[at as usize]) = (entry, Some(trace));
                at
            }
            None => {
                self.entries.push(entry);
                self.traces.push(Some(trace));
                (self.entries.len() - 1) as u32
            }
        };
        let kind = &mut self.kinds[number];
        let key = Key::new(&kind.outer, &kind.inner, headers);
        if let Some(old) = kind.known.insert(key.words().into(), at)
            && self.entries[old as usize].packets == 0
        {
            // Of an earlier version, and hidden by a translation of another kind so far.
            self.traces[old as usize] = None;
            self.free.push(old);
        }
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
        self.traces.clear();
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
            let (entry, trace) = (&mut self.entries[at as usize], &self.traces[at as usize]);
            let (packets, bytes) = (std::mem::take(&mut entry.packets), std::mem::take(&mut entry.bytes));
            // One that has been replaced meanwhile may be here twice.
            if let Some(trace) = trace.as_ref().filter(|_| packets > 0) {
                trace.count(pipeline, packets, bytes, now_ns);
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
