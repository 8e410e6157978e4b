//! Rules as leaves hold them, and the arena that the leaves lie in.
//!
//! An entry has two parts in two arrays at the same place: what a packet is compared with ([`Hot`], 32 octets, so two
//! to a cache line) and what is needed once it matched ([`Tail`]). A look-up that matches nothing never touches the
//! second array. Entries say all about a 5-tuple rule; for one with other fields, [`Tail::more`] points at its whole
//! [`Matcher`].

use crate::{Key, Matcher, Verdict};

/// [`Tail::more`] of an entry that says everything itself.
const COMPLETE: u32 = u32::MAX;
/// The words of a key that an entry holds masks for: addresses, and protocol with ToS, QFI and presence.
const WORDS: [usize; 3] = [0, 1, 3];

/// What a packet is compared with.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Hot {
    mask: [u32; 3],
    value: [u32; 3],
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
}

/// What is needed of a rule that matches.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tail {
    /// Place in the order.
    pub rank: u64,
    /// The verdict.
    pub value: u32,
    more: u32,
}

impl Tail {
    /// No rule: comes after every one.
    pub const NONE: Tail = Tail { rank: u64::MAX, value: 0, more: COMPLETE - 1 };

    /// Upper half of the rank.
    #[inline]
    pub fn precedence(&self) -> u32 {
        (self.rank >> 32) as u32
    }

    /// The verdict, unless this is [`Tail::NONE`].
    #[inline]
    pub fn verdict(&self) -> Verdict {
        (self.more != Tail::NONE.more).then_some(self.value)
    }
}

/// A rule as a leaf holds it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    hot: Hot,
    /// The part that is needed once it matched.
    pub tail: Tail,
}

impl Entry {
    /// Precedence, the upper half of the rank.
    pub fn precedence(&self) -> u32 {
        (self.tail.rank >> 32) as u32
    }

    /// Identifier, the lower half.
    pub fn id(&self) -> u32 {
        self.tail.rank as u32
    }
}

/// The words of a key that [`Hot`] is about, taken out once per look-up.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    words: [u32; 3],
    source_port: u16,
    destination_port: u16,
}

impl Probe {
    /// Of this key.
    #[inline]
    pub fn new(key: &Key) -> Probe {
        let words = &key.words;
        Probe {
            words: WORDS.map(|word| words[word]),
            source_port: (words[2] >> 16) as u16,
            destination_port: words[2] as u16,
        }
    }
}

impl Hot {
    /// Whether the fields match that stand here. One branch for all of them: in a leaf it is anyone's guess which
    /// field fails, and a wrong guess costs more than all the comparisons.
    #[inline]
    fn matches(&self, probe: &Probe) -> bool {
        let [a, b, c] = std::array::from_fn(|at| probe.words[at] & self.mask[at] ^ self.value[at]);
        let within =
            |(first, last): (u16, u16), port: u16| port.wrapping_sub(first) <= last.wrapping_sub(first);
        (a | b | c == 0)
            & within(self.source_ports, probe.source_port)
            & within(self.destination_ports, probe.destination_port)
    }
}

/// Whole matchers of the rules that entries do not say all about.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    matchers: Vec<Matcher>,
    free: Vec<u32>,
}

impl Pool {
    /// The entry of a rule. What it takes from the pool is given back by [`Pool::release`].
    pub fn entry(&mut self, matcher: &Matcher, rank: u64, value: u32) -> Entry {
        let held: u32 = WORDS.iter().map(|word| 1 << word).sum();
        let more = if matcher.used_words() & !held == 0 {
            COMPLETE
        } else if let Some(slot) = self.free.pop() {
            self.matchers[slot as usize] = *matcher;
            slot
        } else {
            self.matchers.push(*matcher);
            self.matchers.len() as u32 - 1
        };
        let hot = Hot {
            mask: WORDS.map(|word| matcher.mask[word]),
            value: WORDS.map(|word| matcher.value[word]),
            source_ports: matcher.source_ports,
            destination_ports: matcher.destination_ports,
        };
        Entry { hot, tail: Tail { rank, value, more } }
    }

    /// The matcher that an entry was made of.
    pub fn matcher(&self, entry: &Entry) -> Matcher {
        if entry.tail.more != COMPLETE {
            return self.matchers[entry.tail.more as usize];
        }
        let mut matcher = Matcher::ALL;
        for (at, word) in WORDS.into_iter().enumerate() {
            matcher.mask[word] = entry.hot.mask[at];
            matcher.value[word] = entry.hot.value[at];
        }
        matcher.source_ports = entry.hot.source_ports;
        matcher.destination_ports = entry.hot.destination_ports;
        matcher
    }

    /// Gives back what an entry held.
    pub fn release(&mut self, entry: &Entry) {
        if entry.tail.more != COMPLETE {
            self.free.push(entry.tail.more);
        }
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.matchers.capacity() * size_of::<Matcher>() + self.free.capacity() * size_of::<u32>()
    }
}

/// The entries of all leaves. Those of one leaf lie side by side, the first in order first.
///
/// The room of a leaf follows from its length ([`room`]), so nobody has to store it; a leaf that outgrows its room
/// moves, and what it leaves is kept for the next leaf of that size.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    hots: Vec<Hot>,
    tails: Vec<Tail>,
    /// First places of rooms without a leaf, by class.
    free: Vec<Vec<u32>>,
}

const NOTHING: Entry = Entry {
    hot: Hot { mask: [0; 3], value: [1, 0, 0], source_ports: (0, 0), destination_ports: (0, 0) },
    tail: Tail { rank: u64::MAX, value: 0, more: COMPLETE },
};

/// Class and size of the room of a leaf: steps of two up to 8 entries, then half and whole powers of two.
fn room(len: usize) -> (usize, usize) {
    if len <= 8 {
        return (len.div_ceil(2), len.next_multiple_of(2));
    }
    let power = len.next_power_of_two();
    let class = 5 + 2 * (power.trailing_zeros() as usize - 4);
    if len <= power / 4 * 3 { (class, power / 4 * 3) } else { (class + 1, power) }
}

impl Arena {
    fn take(&mut self, len: usize) -> u32 {
        let (class, size) = room(len);
        if size == 0 {
            return 0;
        }
        if let Some(first) = self.free.get_mut(class).and_then(Vec::pop) {
            return first;
        }
        let first = self.hots.len();
        self.hots.resize(first + size, NOTHING.hot);
        self.tails.resize(first + size, NOTHING.tail);
        first as u32
    }

    fn give_back(&mut self, first: u32, len: usize) {
        let (class, size) = room(len);
        if size == 0 {
            return;
        }
        if self.free.len() <= class {
            self.free.resize(class + 1, Vec::new());
        }
        self.free[class].push(first);
    }

    /// A leaf of these entries, which are in order.
    pub fn add(&mut self, entries: impl ExactSizeIterator<Item = Entry>) -> u32 {
        let first = self.take(entries.len());
        for (at, entry) in entries.enumerate() {
            self.hots[first as usize + at] = entry.hot;
            self.tails[first as usize + at] = entry.tail;
        }
        first
    }

    /// Forgets a leaf.
    pub fn drop_leaf(&mut self, first: u32, len: usize) {
        self.give_back(first, len);
    }

    /// The entries of a leaf.
    pub fn entries(&self, first: u32, len: usize) -> impl ExactSizeIterator<Item = Entry> {
        let span = first as usize..first as usize + len;
        std::iter::zip(&self.hots[span.clone()], &self.tails[span])
            .map(|(hot, tail)| Entry { hot: *hot, tail: *tail })
    }

    /// Whether a leaf has an entry of this rank.
    pub fn holds(&self, first: u32, len: usize, rank: u64) -> bool {
        let span = first as usize..first as usize + len;
        self.tails[span].binary_search_by_key(&rank, |tail| tail.rank).is_ok()
    }

    /// The least precedence value in a leaf.
    pub fn best(&self, first: u32, len: usize) -> u32 {
        if len == 0 { u32::MAX } else { (self.tails[first as usize].rank >> 32) as u32 }
    }

    fn move_to_room(&mut self, first: u32, len: usize, new_len: usize) -> u32 {
        if room(len) == room(new_len) {
            return first;
        }
        let to = self.take(new_len);
        let (from, count) = (first as usize, len.min(new_len));
        self.hots.copy_within(from..from + count, to as usize);
        self.tails.copy_within(from..from + count, to as usize);
        self.give_back(first, len);
        to
    }

    /// Puts an entry in its place in a leaf; where the leaf begins now.
    pub fn insert(&mut self, first: u32, len: usize, entry: &Entry) -> u32 {
        let first = self.move_to_room(first, len, len + 1);
        let span = first as usize..first as usize + len;
        let at = self.tails[span].partition_point(|tail| tail.rank < entry.tail.rank);
        let (from, end) = (first as usize + at, first as usize + len);
        self.hots.copy_within(from..end, from + 1);
        self.tails.copy_within(from..end, from + 1);
        self.hots[from] = entry.hot;
        self.tails[from] = entry.tail;
        first
    }

    /// Takes the entry of this rank out of a leaf; where the leaf begins now. `None` when it is not there.
    pub fn remove(&mut self, first: u32, len: usize, rank: u64) -> Option<u32> {
        let span = first as usize..first as usize + len;
        let at = self.tails[span].binary_search_by_key(&rank, |tail| tail.rank).ok()?;
        let (from, end) = (first as usize + at, first as usize + len);
        self.hots.copy_within(from + 1..end, from);
        self.tails.copy_within(from + 1..end, from);
        Some(self.move_to_room(first, len, len - 1))
    }

    /// The first entry of a leaf that matches, if it comes before `found`.
    #[inline]
    pub fn scan(&self, first: u32, len: usize, pool: &Pool, probe: &Probe, key: &Key, found: &mut Tail) {
        let span = first as usize..first as usize + len;
        let (hots, tails) = (&self.hots[span.clone()], &self.tails[span]);
        for (at, hot) in hots.iter().enumerate() {
            // Long leaves end where the entries come after what another tree has found.
            if at % 16 == 15 && tails[at].rank > found.rank {
                return;
            }
            if hot.matches(probe) {
                let tail = tails[at];
                if tail.more == COMPLETE || pool.matchers[tail.more as usize].matches(key) {
                    if tail.rank <= found.rank {
                        *found = tail;
                    }
                    return;
                }
            }
        }
    }

    /// Octets on the heap.
    pub fn memory_bytes(&self) -> usize {
        let free: usize = self.free.iter().map(|rooms| rooms.capacity() * size_of::<u32>()).sum();
        self.hots.capacity() * size_of::<Hot>() + self.tails.capacity() * size_of::<Tail>() + free
    }
}
