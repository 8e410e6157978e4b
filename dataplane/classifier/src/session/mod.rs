//! Many sessions with few rules each, where every packet is of another session: the real load of a user plane.
//!
//! A million sessions fit no cache, so what counts is how many cache lines a packet touches that are in memory only
//! (150 ns and more each), and that these are fetched for many packets at once. [`Sessions`] has one line per
//! session, indexed by the session's number; it says which of the session's rules can match at all. The rules are
//! rows of 32 octets elsewhere (`program`), shared by all sessions with the same policy, whose addresses and
//! TEIDs alone differ. So a packet costs one line from memory when policies are shared, and seldom more than two when
//! every session has rules of its own. [`Sessions::classify`] asks for the lines of all packets of a batch first,
//! works out where their rows are and asks for these, and then compares.
//!
//! ```text
//!  session ──► head, 64 octets: own address, TEIDs, four bits to look at ──table──► rows that may match
//!                                                                        place ──► row, row │ row, row │ …
//! ```
//! A session's rules are replaced as a whole ([`Sessions::set`]), in some microseconds. For a session with hundreds of
//! rules use a classifier of its own.
//!
//! Where sessions are objects of their own, held by pointer, [`Interner`] compiles rules to [`Program`]s, which share
//! rows in the same way.
//!
//! [`HashList`] is what others do, for comparison.

mod arena;
mod hash_list;
mod program;

use std::collections::HashSet;
use std::sync::Arc;

use crate::{Key, Rule, Verdict};
use arena::Arena;
pub use hash_list::HashList;
use program::{Head, Line, Pair, Start, compile, prefetch};

/// Most rules of a session.
pub const MAX_RULES: usize = 256;
/// Packets whose lines are under way at once: more than a core has requests outstanding, and few enough for all lines
/// to stay in the first-level cache.
const BURST: usize = 32;
/// Heads in a chunk: 256 KiB, allocated when the first of its sessions comes.
const CHUNK: usize = 4096;

/// Why a session did not get its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// More than [`MAX_RULES`].
    #[error("{0} rules are more than {MAX_RULES}, the most of a session")]
    TooMany(usize),
    /// Two rules with one id.
    #[error("two rules have the id {0}")]
    SameId(u32),
}

/// The rules in order of rank, checked.
fn sorted(rules: &[Rule]) -> Result<Vec<&Rule>, SessionError> {
    if rules.len() > MAX_RULES {
        return Err(SessionError::TooMany(rules.len()));
    }
    let mut ids: Vec<u32> = rules.iter().map(|rule| rule.id).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(SessionError::SameId(pair[0]));
    }
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_unstable_by_key(|rule| rule.rank());
    Ok(sorted)
}

/// A chunk of no sessions, made on the heap.
fn empty_chunk() -> Box<[Head; CHUNK]> {
    // The length is right, so this does not fail; what stands for failure is right too, by way of the stack.
    vec![Head::NONE; CHUNK].try_into().unwrap_or_else(|_| Box::new([Head::NONE; CHUNK]))
}

fn to_pairs(lines: &[Line]) -> impl Iterator<Item = Pair> {
    lines.chunks(2).map(|pair| Pair([pair[0], pair.get(1).copied().unwrap_or_default()]))
}

/// A table of sessions by number.
#[derive(Clone, Debug)]
pub struct Sessions {
    heads: Vec<Option<Box<[Head; CHUNK]>>>,
    arena: Arena,
    len: usize,
    /// Kept for their capacity.
    lines: Vec<Line>,
    pairs: Vec<Pair>,
}

/// A look-up under way.
#[derive(Clone, Copy)]
struct Look<'a> {
    head: &'a Head,
    rows: &'a [Pair],
    start: Start,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions::new()
    }
}

impl Sessions {
    /// No sessions.
    pub fn new() -> Sessions {
        Sessions { heads: Vec::new(), arena: Arena::new(), len: 0, lines: Vec::new(), pairs: Vec::new() }
    }

    /// Gives a session its rules; those it had are gone. Numbers should be dense: memory is taken for 4,096 at once.
    /// A rule that can never match is left out. On an error nothing changes.
    pub fn set(&mut self, session: u32, rules: &[Rule]) -> Result<(), SessionError> {
        let rules = sorted(rules)?;
        let mut head = compile(&rules, &mut self.lines);
        self.pairs.clear();
        self.pairs.extend(to_pairs(&self.lines));
        self.remove(session);
        head.place = self.arena.keep(&self.pairs);
        let chunk = session as usize / CHUNK;
        if self.heads.len() <= chunk {
            self.heads.resize(chunk + 1, None);
        }
        let heads = self.heads[chunk].get_or_insert_with(empty_chunk);
        heads[session as usize % CHUNK] = head;
        self.len += 1;
        Ok(())
    }

    /// Removes a session; `false` when there is none with this number.
    pub fn remove(&mut self, session: u32) -> bool {
        let chunk = self.heads.get_mut(session as usize / CHUNK).and_then(Option::as_mut);
        let Some(head) = chunk.map(|heads| &mut heads[session as usize % CHUNK]) else { return false };
        let old = std::mem::replace(head, Head::NONE);
        if !old.exists() {
            return false;
        }
        self.arena.release(old.place, old.pairs);
        self.len -= 1;
        true
    }

    #[inline]
    fn head(&self, session: u32) -> &Head {
        let chunk = self.heads.get(session as usize / CHUNK);
        chunk.and_then(Option::as_ref).map_or(&Head::NONE, |heads| &heads[session as usize % CHUNK])
    }

    /// Writes the verdict of packet `keys[i]` of session `sessions[i]` to `verdicts[i]`; the shortest slice counts. A
    /// session that is not there gives no verdict. Made for 32 packets and more at a time.
    pub fn classify(&self, sessions: &[u32], keys: &[Key], verdicts: &mut [Verdict]) {
        let bursts = sessions.chunks(BURST).zip(keys.chunks(BURST)).zip(verdicts.chunks_mut(BURST));
        for ((sessions, keys), verdicts) in bursts {
            self.classify_burst(sessions, keys, verdicts);
        }
    }

    #[inline]
    fn classify_burst(&self, sessions: &[u32], keys: &[Key], verdicts: &mut [Verdict]) {
        let mut looks = [Look { head: &Head::NONE, rows: &[], start: Start::default() }; BURST];
        for (look, session) in looks.iter_mut().zip(sessions) {
            look.head = self.head(*session);
            prefetch(Some(look.head));
        }
        for (look, key) in looks.iter_mut().zip(keys) {
            look.start = look.head.start(key);
            look.rows = self.arena.get(look.head.place, look.head.pairs);
            prefetch(look.rows.get(look.head.first_pair(look.start)));
        }
        for ((look, key), verdict) in looks.iter().zip(keys).zip(verdicts) {
            *verdict = look.head.find(look.rows, key, look.start);
        }
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of different policies, as far as sessions were found to share one.
    pub fn policies(&self) -> usize {
        self.arena.programs()
    }

    /// Octets held, the heap included.
    pub fn memory_bytes(&self) -> usize {
        let chunks = self.heads.iter().flatten().count();
        size_of::<Sessions>()
            + chunks * CHUNK * size_of::<Head>()
            + self.heads.capacity() * size_of::<Option<Box<[Head; CHUNK]>>>()
            + self.arena.memory_bytes()
            + self.lines.capacity() * size_of::<Line>()
            + self.pairs.capacity() * size_of::<Pair>()
    }
}

/// Rules of one session, compiled and immutable. Equal rows are shared by the programs of one [`Interner`].
#[derive(Clone, Debug)]
pub struct Program {
    head: Head,
    rows: Arc<[Pair]>,
}

/// A look-up that has begun: see [`Program::begin`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun(Start);

impl Program {
    /// Looks at the packet and asks for the memory that [`Program::finish`] will need. Between the two, begin with the
    /// other packets of the batch.
    #[inline]
    pub fn begin(&self, key: &Key) -> Begun {
        let start = self.head.start(key);
        prefetch(self.rows.get(self.head.first_pair(start)));
        Begun(start)
    }

    /// The verdict for the packet that the look-up began with.
    #[inline]
    pub fn finish(&self, key: &Key, begun: Begun) -> Verdict {
        self.head.find(&self.rows, key, begun.0)
    }

    /// The verdict for a packet.
    #[inline]
    pub fn find(&self, key: &Key) -> Verdict {
        self.head.find(&self.rows, key, self.head.start(key))
    }

    /// Whether both have one copy of their rows.
    pub fn shares_rows(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows)
    }

    /// Octets held, the rows included, which others may hold as well.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Program>() + size_of_val(&*self.rows)
    }
}

/// Compiles rules to programs that share what is equal.
#[derive(Debug, Default)]
pub struct Interner {
    known: HashSet<Arc<[Pair]>>,
    /// Number of known rows at which those that nobody uses are looked for.
    limit: usize,
    lines: Vec<Line>,
}

/// Rows that an [`Interner`] holds at least before it looks for unused ones.
const KNOWN: usize = 64;

impl Interner {
    /// Knows nothing yet.
    pub fn new() -> Interner {
        Interner::default()
    }

    /// Compiles a session's rules. A rule that can never match is left out.
    pub fn compile(&mut self, rules: &[Rule]) -> Result<Program, SessionError> {
        let head = compile(&sorted(rules)?, &mut self.lines);
        let rows: Arc<[Pair]> = to_pairs(&self.lines).collect();
        let rows = match self.known.get(&rows) {
            Some(known) => Arc::clone(known),
            None => {
                self.known.insert(Arc::clone(&rows));
                rows
            }
        };
        if self.known.len() > self.limit {
            // Looked for when their number has doubled, so that it costs little per session.
            self.known.retain(|rows| Arc::strong_count(rows) > 1);
            self.limit = KNOWN.max(2 * self.known.len());
        }
        Ok(Program { head, rows })
    }

    /// Number of different rows in use, and at most as many that are not any more.
    pub fn policies(&self) -> usize {
        self.known.len()
    }
}
