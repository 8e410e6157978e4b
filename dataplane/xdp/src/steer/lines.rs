//! The lines of entries: where a key's line is, and how a line is changed while programs read it.
//!
//! ```text
//!  numbers of lines:  tunnels by hash | link-layer addresses by hash | tunnels by TEID | inner fields
//! ```
//! A hashed region is searched in buckets of two neighbouring lines; the program stops at a line that was never used. So a line
//! that was removed stays in the way of the search for those that were put behind it ([`Shadow::behind`]).
//!
//! **Changing a line.** Programs read the word `turn`, the key, a slot, and `turn` again; they start again when it has changed. A
//! change first makes `turn` say that the slot in use holds whatever the epoch is, then writes the other slot, then makes `turn` say
//! from which epoch that one holds. Each value of `turn` occurs once. Programs read in order on x86-64 only
//! ([`SteerError::Processor`](super::SteerError::Processor)).

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use pktio::bpf::{BpfError, SharedWords};

use super::entry::Counters;
use super::records::{self, LINE_WORDS, OTHERS_WORDS, PROBES, word};
use super::rows::Grace;

/// What a slot says; zeros: as if there were no entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Slot {
    pub teid: u32,
    pub inner: u32,
    /// Without the hop's number.
    pub flags: u32,
    pub hop: u32,
}

impl Slot {
    fn words(self) -> (u64, u32) {
        (u64::from(self.teid) | u64::from(self.inner) << 32, self.flags | self.hop << records::HOP_BIT)
    }

    fn of(low: u64, high: u32) -> Slot {
        Slot {
            teid: low as u32,
            inner: (low >> 32) as u32,
            flags: high & 0xFFFF,
            hop: high >> records::HOP_BIT,
        }
    }
}

/// What a line is used for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum State {
    #[default]
    Free,
    /// It has an entry.
    Live,
    /// It had one. Programs may still count in it until the generation is over.
    Removed(u32),
}

/// What only this process knows of a line.
#[derive(Clone, Copy, Default, Debug)]
struct Shadow {
    /// What the line's counters said when its entry was added.
    since: Counters,
    state: State,
    /// Lines whose search leads over this one.
    behind: u32,
}

/// A region that is searched by hash: as many buckets of two lines as a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Hashed {
    pub first: u32,
    pub buckets: u32,
}

impl Hashed {
    /// A region from `first` on that is half full with `entries` entries.
    pub fn new(first: u32, entries: u32) -> Hashed {
        Hashed { first, buckets: entries.max(1).next_power_of_two() }
    }

    /// Behind its last line.
    pub fn end(self) -> u32 {
        self.first + 2 * self.buckets
    }

    fn contains(self, line: u32) -> bool {
        (self.first..self.end()).contains(&line)
    }

    /// The lines that are searched for a key, in order.
    fn probes(self, key: [u32; 3]) -> impl Iterator<Item = u32> {
        let (hash, step) = records::hash(key);
        (0..PROBES).map(move |probe| {
            let bucket = hash.wrapping_add((probe >> 1).wrapping_mul(step)) & (self.buckets - 1);
            self.first + 2 * bucket + (probe & 1)
        })
    }
}

/// Why there is no line for a key.
pub enum NoLine {
    /// There will be one after a grace period.
    Later,
    /// All are in use.
    Full,
}

/// All lines.
#[derive(Debug)]
pub struct Lines {
    words: SharedWords,
    others: SharedWords,
    shadows: Vec<Shadow>,
    hashed: [Hashed; 2],
    live: u32,
}

impl Lines {
    /// `count` lines, of which these two regions are searched by hash.
    pub fn new(count: u32, hashed: [Hashed; 2]) -> Result<Lines, BpfError> {
        Ok(Lines {
            words: SharedWords::new(count as usize * LINE_WORDS * 8)?,
            others: SharedWords::new(count as usize * OTHERS_WORDS * 8)?,
            shadows: vec![Shadow::default(); count as usize],
            hashed,
            live: 0,
        })
    }

    /// The lines' memory and that of the counters of processors that do not own a line.
    pub fn memory(&self) -> (&SharedWords, &SharedWords) {
        (&self.words, &self.others)
    }

    /// Number of lines.
    pub fn count(&self) -> u32 {
        self.shadows.len() as u32
    }

    /// Lines with entries.
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn state(&self, line: u32) -> State {
        self.shadows[line as usize].state
    }

    /// Says what the line is used for; returns what it was used for. A new entry counts from 0.
    pub fn set_state(&mut self, line: u32, state: State) -> State {
        let was = std::mem::replace(&mut self.shadows[line as usize].state, state);
        match (was == State::Live, state == State::Live) {
            (false, true) => {
                self.shadows[line as usize].since = self.totals(line);
                self.live += 1;
            }
            (true, false) => self.live -= 1,
            _ => {}
        }
        was
    }

    fn line(&self, line: u32) -> &[AtomicU64] {
        &self.words.words()[line as usize * LINE_WORDS..][..LINE_WORDS]
    }

    pub fn key(&self, line: u32) -> [u32; 3] {
        let words = self.line(line);
        let (first, second) = (words[word::KEY].load(Relaxed), words[word::KEY + 1].load(Relaxed));
        [first as u32, (first >> 32) as u32, second as u32]
    }

    /// The line with this key in a hashed region.
    pub fn find(&self, region: usize, key: [u32; 3]) -> Option<u32> {
        for line in self.hashed[region].probes(key) {
            match self.key(line) {
                records::FREE => return None,
                found if found == key => return Some(line),
                _ => {}
            }
        }
        None
    }

    /// The line of a key in a hashed region; a free one gets the key.
    pub fn find_or_take(&mut self, region: usize, key: [u32; 3], grace: Grace) -> Result<u32, NoLine> {
        let mut vacant = None;
        let mut later = false;
        for (probe, line) in self.hashed[region].probes(key).enumerate() {
            let found = self.key(line);
            if found == key {
                return Ok(line);
            }
            match self.state(line) {
                State::Removed(generation) if grace.is_over(generation) => {
                    vacant = vacant.or(Some((probe, line)));
                }
                State::Removed(_) => later = true,
                State::Free if found == records::REMOVED => vacant = vacant.or(Some((probe, line))),
                _ => {}
            }
            if found == records::FREE {
                vacant = vacant.or(Some((probe, line)));
                break;
            }
        }
        let (probe, line) = vacant.ok_or(if later { NoLine::Later } else { NoLine::Full })?;
        self.forget(line);
        for over in self.hashed[region].probes(key).take(probe) {
            self.shadows[over as usize].behind += 1;
        }
        self.give(line, key);
        Ok(line)
    }

    /// Gives a key to a line that has none or an old one, which no program uses any more. Nothing holds for it yet.
    pub fn give(&mut self, line: u32, key: [u32; 3]) {
        let words = self.line(line);
        // Nothing holds in either slot, so that programs may find the key at any time.
        let turn = words[word::TURN].load(Relaxed) | records::TURN_SETTLED;
        words[word::TURN].store(turn, Relaxed);
        for (at, word) in [(word::LOW, 0), (word::LOW + 1, 0), (word::HIGH, 0)] {
            words[at].store(word, Relaxed);
        }
        fence(Release);
        for (at, key) in records::key_words(key).into_iter().enumerate() {
            words[word::KEY + at].store(key, Release);
        }
        self.set_state(line, State::Removed(0));
    }

    /// Takes the key from a line that no program uses any more, and from those that only it kept from being free.
    pub fn forget(&mut self, line: u32) {
        let key = self.key(line);
        if key == records::FREE {
            return;
        }
        self.set_state(line, State::Free);
        let Some(region) = self.hashed.into_iter().find(|region| region.contains(line)) else {
            return self.set_key(line, records::FREE);
        };
        if key != records::REMOVED {
            for over in region.probes(key).take_while(|over| *over != line) {
                self.shadows[over as usize].behind -= 1;
                if self.shadows[over as usize].behind == 0 && self.key(over) == records::REMOVED {
                    self.set_key(over, records::FREE);
                }
            }
        }
        let free = self.shadows[line as usize].behind == 0;
        self.set_key(line, if free { records::FREE } else { records::REMOVED });
    }

    /// Makes a line free or removed. The last part of the key comes first: between them the line must not look free.
    fn set_key(&self, line: u32, key: [u32; 3]) {
        for (at, key) in records::key_words(key).into_iter().enumerate().rev() {
            self.line(line)[word::KEY + at].store(key, Release);
        }
    }

    /// What holds for a line, or will with the epoch that is being prepared.
    pub fn slot(&self, line: u32) -> Slot {
        let words = self.line(line);
        self.read_slot(line, words[word::TURN].load(Relaxed) & records::TURN_SLOT)
    }

    fn read_slot(&self, line: u32, which: u64) -> Slot {
        let words = self.line(line);
        let high = words[word::HIGH].load(Relaxed) >> (32 * which);
        Slot::of(words[word::LOW + which as usize].load(Relaxed), high as u32)
    }

    /// Makes `slot` hold from `epoch` on, which programs have not seen. Returns what it replaces: what holds until then, or what a
    /// call before for the same epoch has written.
    pub fn write(&self, line: u32, slot: Slot, epoch: u64) -> Slot {
        let words = self.line(line);
        let turn = words[word::TURN].load(Relaxed);
        let again = turn >> records::TURN_EPOCH_BIT == epoch;
        let which = turn & records::TURN_SLOT;
        let (replaced, to) = (self.read_slot(line, which), if again { which } else { which ^ 1 });
        if !again {
            // Unique, as `turn` has had this epoch neither with this bit nor without.
            let settled = epoch << records::TURN_EPOCH_BIT | records::TURN_SETTLED | which;
            words[word::TURN].store(settled, Relaxed);
            fence(Release);
        }
        let (low, high) = slot.words();
        let other = words[word::HIGH].load(Relaxed) & (0xFFFF_FFFF << (32 * (to ^ 1)));
        words[word::LOW + to as usize].store(low, Relaxed);
        words[word::HIGH].store(other | u64::from(high) << (32 * to), Relaxed);
        words[word::TURN].store(epoch << records::TURN_EPOCH_BIT | to, Release);
        replaced
    }

    /// Counters of a line since it exists, of all its entries.
    fn totals(&self, line: u32) -> Counters {
        let (words, others) = (self.line(line), &self.others.words()[line as usize * OTHERS_WORDS..]);
        Counters {
            packets: words[word::PACKETS].load(Relaxed).wrapping_add(others[0].load(Relaxed)),
            octets: words[word::OCTETS].load(Relaxed).wrapping_add(others[1].load(Relaxed)),
        }
    }

    /// What the line's entry has counted.
    pub fn counters(&self, line: u32) -> Counters {
        let (totals, since) = (self.totals(line), self.shadows[line as usize].since);
        Counters {
            packets: totals.packets.wrapping_sub(since.packets),
            octets: totals.octets.wrapping_sub(since.octets),
        }
    }

    /// Octets that the lines take: shared with the kernel, and of this process alone.
    pub fn octets(&self) -> usize {
        let shared = (LINE_WORDS + OTHERS_WORDS) * 8;
        self.shadows.len() * (shared + size_of::<Shadow>())
    }
}
