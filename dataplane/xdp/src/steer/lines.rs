//! The lines of entries: where a key's line is, and how a line is changed while programs read it.
//!
//! ```text
//!  numbers of lines:  tunnels by hash | link-layer addresses by hash | tunnels by TEID | inner fields
//! ```
//! A hashed region is searched in buckets of two neighbouring lines; the program stops at a line that was never used. So a line
//! that was removed stays in the way of the search for those that were put behind it ([`Shadow::behind`]).
//!
//! A line is half a cache line: key, action, counters. That is all that programs read for nearly every packet, so a cache holds as
//! many entries as can be. The rest, a cache line, is for what few packets need, and for changes.
//!
//! **Changing a line.** First its action says that the rest holds, which has two slots. Programs read the word `turn` there, a slot, and
//! `turn` again; they start again when it has changed. A change makes `turn` say that the slot in use holds whatever the epoch is, then
//! writes the other slot, then makes `turn` say from which epoch that one holds. Each value of `turn` occurs once. When the epoch has
//! begun, the line gets the new action ([`Lines::settle`]). Programs read in order on x86-64 only
//! ([`SteerError::Processor`](super::SteerError::Processor)).

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use pktio::bpf::{BpfError, SharedWords};

use super::FRAMES;
use super::entry::Counters;
use super::records::{self, LINE_WORDS, MORE_WORDS, PROBES, more, word};
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
    /// The action, and the inner address.
    fn words(self) -> (u64, u32) {
        let action = u64::from(self.teid) | u64::from(self.flags) << 32;
        (action | u64::from(self.hop) << (32 + records::HOP_BIT), self.inner)
    }

    fn of(action: u64, inner: u32) -> Slot {
        Slot {
            teid: action as u32,
            inner,
            flags: (action >> 32) as u32 & 0xFFFF,
            hop: (action >> (32 + records::HOP_BIT)) as u32,
        }
    }
}

/// The action of a line whose rest says what holds.
const MORE: u64 = (records::VERDICT_MORE as u64) << 32;

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

/// What a line was used for, and what its counters said when its entry was added.
#[derive(Clone, Copy, Debug)]
pub struct Was {
    pub state: State,
    since: Counters,
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
    more: SharedWords,
    shadows: Vec<Shadow>,
    hashed: [Hashed; 2],
    live: u32,
}

impl Lines {
    /// `count` lines, of which these two regions are searched by hash.
    pub fn new(count: u32, hashed: [Hashed; 2]) -> Result<Lines, BpfError> {
        Ok(Lines {
            words: SharedWords::new(count as usize * LINE_WORDS * 8)?,
            more: SharedWords::new(count as usize * MORE_WORDS * 8)?,
            shadows: vec![Shadow::default(); count as usize],
            hashed,
            live: 0,
        })
    }

    /// The lines' memory and that of their rest.
    pub fn memory(&self) -> (&SharedWords, &SharedWords) {
        (&self.words, &self.more)
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
    pub fn set_state(&mut self, line: u32, state: State) -> Was {
        let shadow = self.shadows[line as usize];
        let is_new = shadow.state != State::Live && state == State::Live;
        let since = if is_new { self.totals(line) } else { shadow.since };
        self.restore(line, Was { state, since })
    }

    /// Takes a change of state back: an entry that is there again has counted all the time. Returns what was until now.
    pub fn restore(&mut self, line: u32, to: Was) -> Was {
        let shadow = &mut self.shadows[line as usize];
        let was = Was { state: shadow.state, since: shadow.since };
        (shadow.state, shadow.since) = (to.state, to.since);
        self.live = self.live + u32::from(to.state == State::Live) - u32::from(was.state == State::Live);
        was
    }

    fn line(&self, line: u32) -> &[AtomicU64] {
        &self.words.words()[line as usize * LINE_WORDS..][..LINE_WORDS]
    }

    fn more(&self, line: u32) -> &[AtomicU64] {
        &self.more.words()[line as usize * MORE_WORDS..][..MORE_WORDS]
    }

    pub fn key(&self, line: u32) -> [u32; 3] {
        let words = self.more(line);
        let (first, second) = (words[more::KEY].load(Relaxed), words[more::KEY + 1].load(Relaxed));
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
        // Nothing holds, neither here nor in either slot, so that programs may find the key at any time.
        let words = self.more(line);
        let turn = words[more::TURN].load(Relaxed) | records::TURN_SETTLED;
        words[more::TURN].store(turn, Relaxed);
        for at in [more::ACTION, more::ACTION + 1, more::INNER] {
            words[at].store(0, Relaxed);
        }
        self.line(line)[word::ACTION].store(0, Relaxed);
        self.set_key(line, key);
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

    /// Writes a key where this process and where programs look for it.
    fn set_key(&self, line: u32, key: [u32; 3]) {
        for (at, key) in records::key_words(key).into_iter().enumerate() {
            self.more(line)[more::KEY + at].store(key, Relaxed);
        }
        let addresses =
            self.hashed[FRAMES].contains(line) && ![records::FREE, records::REMOVED].contains(&key);
        let key = if addresses { records::hashed_key(key) } else { records::plain_key(key) };
        self.line(line)[word::KEY].store(key, Release);
    }

    /// What holds for a line, or will with the epoch that is being prepared.
    pub fn slot(&self, line: u32) -> Slot {
        self.read_slot(line, self.more(line)[more::TURN].load(Relaxed) & records::TURN_SLOT)
    }

    fn read_slot(&self, line: u32, which: u64) -> Slot {
        let words = self.more(line);
        let inner = words[more::INNER].load(Relaxed) >> (32 * which);
        Slot::of(words[more::ACTION + which as usize].load(Relaxed), inner as u32)
    }

    /// Makes `slot` hold from `epoch` on, which programs have not seen. Returns what it replaces: what holds until then, or what a
    /// call before for the same epoch has written.
    pub fn write(&self, line: u32, slot: Slot, epoch: u64) -> Slot {
        let words = self.more(line);
        let turn = words[more::TURN].load(Relaxed);
        let again = turn >> records::TURN_EPOCH_BIT == epoch;
        let which = turn & records::TURN_SLOT;
        let (replaced, to) = (self.read_slot(line, which), if again { which } else { which ^ 1 });
        if !again {
            // Until now both say the same.
            self.line(line)[word::ACTION].store(MORE, Relaxed);
            // Unique, as `turn` has had this epoch neither with this bit nor without.
            let settled = epoch << records::TURN_EPOCH_BIT | records::TURN_SETTLED | which;
            words[more::TURN].store(settled, Release);
            fence(Release);
        }
        let (action, inner) = slot.words();
        let other = words[more::INNER].load(Relaxed) & (0xFFFF_FFFF << (32 * (to ^ 1)));
        words[more::ACTION + to as usize].store(action, Relaxed);
        words[more::INNER].store(other | u64::from(inner) << (32 * to), Relaxed);
        words[more::TURN].store(epoch << records::TURN_EPOCH_BIT | to, Release);
        replaced
    }

    /// Gives a line the action of its slot, whose epoch has begun. Where an inner address is replaced the rest goes on saying what holds.
    pub fn settle(&self, line: u32) {
        let slot = self.slot(line);
        if slot.flags & (records::SET_INNER_SOURCE | records::SET_INNER_DESTINATION) == 0 {
            self.line(line)[word::ACTION].store(slot.words().0, Release);
        }
    }

    /// Counters of a line since it exists, of all its entries.
    fn totals(&self, line: u32) -> Counters {
        let (words, others) = (self.line(line), self.more(line));
        Counters {
            packets: words[word::PACKETS].load(Relaxed).wrapping_add(others[more::PACKETS].load(Relaxed)),
            octets: words[word::OCTETS].load(Relaxed).wrapping_add(others[more::OCTETS].load(Relaxed)),
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
        let shared = (LINE_WORDS + MORE_WORDS) * 8;
        self.shadows.len() * (shared + size_of::<Shadow>())
    }
}
