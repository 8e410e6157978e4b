//! Many sessions with few rules each, where every packet is of another session: the real load of a user plane.
//!
//! The heads of a million sessions fit no cache. The cost of a packet is therefore the number of cache lines
//! that must come from memory (150 ns and more each), and it helps to fetch them for many packets at once.
//! [`Sessions`] has one line per session, indexed by the session's number, that says which of the session's
//! rules can match at all. The rules are rows of 32 octets elsewhere (`program`). Sessions with the same
//! policy, which differ only in addresses and TEIDs, share their rows. So a packet costs one line from memory
//! when policies are shared, and seldom more than two when every session has rules of its own.
//! [`Sessions::classify`] first prefetches the lines of all packets of a burst, then finds and prefetches their
//! rows, and then compares.
//!
//! ```text
//!  session ──► head, 64 octets: own address, TEIDs, four bits to look at ──table──► rows that may match
//!                                                                        place ──► row, row │ row, row │ …
//! ```
//! [`Sessions::set`] replaces all rules of a session at once, in some microseconds. For a session with hundreds
//! of rules, use a classifier of its own.
//!
//! Where sessions are objects of their own behind pointers, use an [`Interner`]. It compiles rules to
//! [`Program`]s, which share rows in the same way.
//!
//! [`HashList`] is the usual design, for comparison.

mod arena;
mod few;
mod hash_list;
mod program;

use std::collections::HashSet;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

#[cfg(target_arch = "x86_64")]
use crate::cpu::Avx2;
use crate::cpu::Job;
use crate::ids::IdHasher;
use crate::key::split;
use crate::{Key, Rule, Verdict};
use arena::Arena;
use few::{FEW, Few};
pub use hash_list::HashList;
use program::{Choice, Compiler, Head, Own, Pair, Start, prefetch};

/// Most rules that a session can have.
pub const MAX_RULES: usize = 256;
/// Packets whose heads are prefetched at once, while those of the burst before are compared. Few on purpose: a
/// core drops prefetches beyond those for which it has buffers, and the look-up then waits for memory in full.
/// On the Zen core measured, twice 8 to 10 are kept and twice 12 are not (26 ns a packet against 40; twice 32:
/// 48).
const BURST: usize = 8;
/// Heads in a chunk: 256 KiB, allocated when its first session is set.
const CHUNK: usize = 4096;

/// Why a session's rules were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SessionError {
    /// More than [`MAX_RULES`] rules.
    #[error("{0} rules are more than {MAX_RULES}, the most of a session")]
    TooMany(usize),
    /// Two rules have this id.
    #[error("two rules have the id {0}")]
    SameId(u32),
}

/// The rules in order of rank, checked for number and equal ids.
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

/// A chunk without sessions, made on the heap.
fn empty_chunk() -> Box<[Head; CHUNK]> {
    // The vector has the right length, so the conversion does not fail. The fallback is the same value, by way
    // of the stack.
    vec![Head::NONE; CHUNK].try_into().unwrap_or_else(|_| Box::new([Head::NONE; CHUNK]))
}

/// Sessions and their rules, by the session's number.
#[derive(Clone, Debug)]
pub struct Sessions {
    heads: Vec<Option<Box<[Head; CHUNK]>>>,
    arena: Arena,
    len: usize,
    compiler: Compiler,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions::new()
    }
}

impl Sessions {
    /// A table without sessions.
    pub fn new() -> Sessions {
        Sessions { heads: Vec::new(), arena: Arena::new(), len: 0, compiler: Compiler::default() }
    }

    /// Sets a session's rules and drops those it had. Numbers should be dense: memory is allocated for 4,096
    /// sessions at once. A rule that can never match is left out. On an error nothing changes.
    pub fn set(&mut self, session: u32, rules: &[Rule]) -> Result<(), SessionError> {
        let rules = sorted(rules)?;
        let mut head = self.compiler.compile(&rules, true);
        self.remove(session);
        (head.place, head.choice) = self.arena.keep(&self.compiler.pairs, || self.compiler.choose(&head));
        let chunk = session as usize / CHUNK;
        if self.heads.len() <= chunk {
            self.heads.resize(chunk + 1, None);
        }
        let heads = self.heads[chunk].get_or_insert_with(empty_chunk);
        heads[session as usize % CHUNK] = head;
        self.len += 1;
        Ok(())
    }

    /// Removes a session; `false` when no session has this number.
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

    #[inline(always)]
    fn head(&self, session: u32) -> &Head {
        let chunk = self.heads.get(session as usize / CHUNK);
        chunk.and_then(Option::as_ref).map_or(&Head::NONE, |heads| &heads[session as usize % CHUNK])
    }

    /// Writes the verdict of packet `keys[i]` of session `sessions[i]` to `verdicts[i]`; stops at the end of
    /// the shortest slice. An unknown session gives no verdict. Best for 32 packets and more at a time: some
    /// are then compared while the lines of others are fetched.
    pub fn classify(&self, sessions: &[u32], keys: &[Key], verdicts: &mut [Verdict]) {
        let count = sessions.len().min(keys.len()).min(verdicts.len());
        let (sessions, keys, verdicts) = (&sessions[..count], &keys[..count], &mut verdicts[..count]);
        let job = Classify { sessions: self, numbers: sessions, keys, verdicts };
        // The instructions of `Avx2` make a shift or a bit count one instruction.
        #[cfg(target_arch = "x86_64")]
        if let Some(instructions) = Avx2::detect() {
            return instructions.run(job);
        }
        job.run(());
    }

    #[inline(always)]
    fn classify_bursts(&self, sessions: &[u32], keys: &[Key], verdicts: &mut [Verdict]) {
        let mut following = sessions.chunks(BURST);
        let (mut heads, mut next) = ([&Head::NONE; BURST], [&Head::NONE; BURST]);
        self.find_heads(following.next(), &mut next);
        for (keys, verdicts) in keys.chunks(BURST).zip(verdicts.chunks_mut(BURST)) {
            std::mem::swap(&mut heads, &mut next);
            self.find_heads(following.next(), &mut next);
            self.classify_burst(&heads, keys, verdicts);
        }
    }

    /// Finds the heads of a burst and prefetches them.
    #[inline(always)]
    fn find_heads<'a>(&'a self, sessions: Option<&[u32]>, heads: &mut [&'a Head; BURST]) {
        for (head, session) in heads.iter_mut().zip(sessions.unwrap_or_default()) {
            *head = self.head(*session);
            prefetch(Some(*head));
        }
    }

    /// Classifies packets whose heads have been prefetched.
    #[inline(always)]
    fn classify_burst(&self, heads: &[&Head; BURST], keys: &[Key], verdicts: &mut [Verdict]) {
        let mut looks = [(Start::default(), [].as_slice()); BURST];
        for ((head, look), key) in heads.iter().zip(&mut looks).zip(keys) {
            let start = head.start(key);
            let rows = self.arena.get(head.place, head.pairs);
            head.prefetch_rows(rows, start);
            *look = (start, rows);
        }
        for (((head, (start, rows)), key), verdict) in heads.iter().zip(&looks).zip(keys).zip(verdicts) {
            *verdict = head.find(rows, key, *start);
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

    /// Number of different policies. Policies that were not recognised as equal count separately.
    pub fn policies(&self) -> usize {
        self.arena.programs()
    }

    /// Octets of memory in use, the heap included.
    pub fn memory_bytes(&self) -> usize {
        let chunks = self.heads.iter().flatten().count();
        size_of::<Sessions>()
            + chunks * CHUNK * size_of::<Head>()
            + self.heads.capacity() * size_of::<Option<Box<[Head; CHUNK]>>>()
            + self.arena.memory_bytes()
    }
}

/// [`Sessions::classify`], to be compiled for different instruction sets.
struct Classify<'a> {
    sessions: &'a Sessions,
    numbers: &'a [u32],
    keys: &'a [Key],
    verdicts: &'a mut [Verdict],
}

impl<T> Job<T> for Classify<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: T) {
        self.sessions.classify_bursts(self.numbers, self.keys, self.verdicts);
    }
}

/// The rules of one session, compiled and immutable. Programs of one [`Interner`] share equal rows.
#[derive(Clone, Debug)]
pub struct Program {
    own: OwnAddresses,
    rows: Rows,
}

/// A look-up that has begun: see [`Program::begin`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StartedLookup(Start);

impl Program {
    /// Examines the packet and prefetches the memory that [`Program::finish`] will need. Between the two calls,
    /// begin the look-ups of the other packets of the batch.
    #[inline]
    pub fn begin(&self, key: &Key) -> StartedLookup {
        self.rows.begin(&self.own, key)
    }

    /// The verdict for the packet with which the look-up began.
    #[inline]
    pub fn finish(&self, key: &Key, begun: StartedLookup) -> Verdict {
        self.rows.finish(key, begun)
    }

    /// The verdict for a packet.
    #[inline]
    pub fn find(&self, key: &Key) -> Verdict {
        self.finish(key, self.begin(key))
    }

    /// Whether both programs share one copy of their rows.
    pub fn shares_rows(&self, other: &Program) -> bool {
        self.rows.same(&other.rows)
    }

    /// Octets of memory in use, including rows that other programs may share.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Program>() + self.rows.memory_bytes()
    }

    /// Takes the program apart into the session's own part, which the caller can keep where the look-up reads
    /// anyway, and the part that sessions share.
    pub fn into_parts(self) -> (OwnAddresses, Rows) {
        (self.own, self.rows)
    }
}

/// The part of a [`Program`] that is the session's own: the UE's IPv4 address and IPv6 prefix, twelve octets of
/// plain data. Everything else that a look-up needs first belongs to the policy and is in its [`Rows`], which
/// are in a cache already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct OwnAddresses(Own);

impl OwnAddresses {
    /// For a session without address.
    pub const NONE: OwnAddresses = OwnAddresses(Own::NONE);

    /// The same part of another session with the same policy: the address `ue`, if it is here, is replaced by
    /// `other`. Of IPv6 addresses only the first half is used.
    pub fn for_other_ue(mut self, ue: IpAddr, other: IpAddr) -> OwnAddresses {
        match (ue, other) {
            (IpAddr::V4(ue), IpAddr::V4(other)) if self.0.ue_v4 == ue.to_bits() => {
                self.0.ue_v4 = other.to_bits();
            }
            (IpAddr::V6(ue), IpAddr::V6(other)) if self.0.ue_v6 == halves(ue) => self.0.ue_v6 = halves(other),
            _ => {}
        }
        self
    }

    /// Whether source or destination of the packet is the UE's address.
    pub fn owns(&self, key: &Key) -> bool {
        let (source, destination) = self.0.sides(key);
        source || destination
    }
}

/// The first half of an IPv6 address, as keys hold it.
fn halves(address: Ipv6Addr) -> [u32; 2] {
    let [first, second, ..] = split(address.to_bits());
    [first, second]
}

/// The rows of a [`Program`], which programs with the same policy share, and the choice of the rows to try.
#[derive(Clone, Debug)]
pub struct Rows {
    shared: Arc<Shared>,
    choice: Choice,
    /// Rows per bit of the choice; 0 if there are so few rows that all are compared.
    group: u16,
}

#[derive(Debug)]
struct Shared {
    /// The first rows, in columns.
    few: Few,
    pairs: Box<[Pair]>,
}

impl Rows {
    /// Examines a packet of the session with this UE and prefetches the rows that [`Rows::finish`] will need.
    #[inline(always)]
    pub fn begin(&self, own: &OwnAddresses, key: &Key) -> StartedLookup {
        if self.group == 0 {
            self.shared.few.prefetch();
            return StartedLookup(own.0.start(key));
        }
        let start = self.choice.start(own.0.sides(key), 0, key);
        program::prefetch_rows(&self.shared.pairs, self.group, start);
        StartedLookup(start)
    }

    /// The verdict for the packet with which the look-up began.
    #[inline(always)]
    pub fn finish(&self, key: &Key, begun: StartedLookup) -> Verdict {
        if self.group != 0 {
            return program::find(&self.shared.pairs, self.group, key, begun.0);
        }
        self.finish_few(key, begun.0)
    }

    #[inline(always)]
    fn finish_few(&self, key: &Key, start: Start) -> Verdict {
        match self.shared.few.find(key, start.own) {
            Ok(verdict) => verdict,
            Err(groups) => self.shared.conditional(key, Start { groups, ..start }),
        }
    }

    /// The verdict for a packet, if the rows are so few that all are compared and are `near`, in the caches. `None`
    /// otherwise, for [`Rows::begin`].
    #[inline(always)]
    pub fn few(&self, own: &OwnAddresses, key: &Key, near: bool) -> Option<Verdict> {
        if near && self.group == 0 { Some(self.finish_few(key, own.0.start(key))) } else { None }
    }

    /// Whether both are the same copy.
    pub fn same(&self, other: &Rows) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// A number that identifies this copy of the rows while it exists.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    /// Octets of memory in use, which other programs may share.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Shared>() + size_of_val(&*self.shared.pairs)
    }
}

impl Shared {
    /// The verdict among the rows in `start` whose further conditions must be compared.
    #[cold]
    fn conditional(&self, key: &Key, start: Start) -> Verdict {
        program::find(&self.pairs, 1, key, start)
    }
}

/// Rows in a set, found by their content.
#[derive(Debug)]
struct Known(Rows);

impl std::borrow::Borrow<[Pair]> for Known {
    fn borrow(&self) -> &[Pair] {
        &self.0.shared.pairs
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Known) -> bool {
        self.0.shared.pairs == other.0.shared.pairs
    }
}

impl Eq for Known {}

impl std::hash::Hash for Known {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.shared.pairs.hash(state);
    }
}

/// Compiles rules to programs, and lets programs share equal rows.
#[derive(Debug, Default)]
pub struct Interner {
    known: HashSet<Known, BuildHasherDefault<IdHasher>>,
    /// Number of known rows at which unused rows are removed.
    limit: usize,
    compiler: Compiler,
}

/// The limit is never below this.
const KNOWN: usize = 64;

impl Interner {
    /// An interner that knows no rows.
    pub fn new() -> Interner {
        Interner::default()
    }

    /// Compiles a session's rules. A rule that can never match is left out.
    pub fn compile(&mut self, rules: &[Rule]) -> Result<Program, SessionError> {
        let head = self.compiler.compile(&sorted(rules)?, false);
        let rows = match self.known.get(self.compiler.pairs.as_slice()) {
            Some(Known(rows)) => rows.clone(),
            None => {
                let pairs: Box<[Pair]> = self.compiler.pairs.as_slice().into();
                let few = Few::new(&pairs, self.compiler.rows());
                let group = if self.compiler.rows() <= FEW { 0 } else { head.group() };
                let choice = self.compiler.choose(&head);
                let rows = Rows { shared: Arc::new(Shared { few, pairs }), choice, group };
                self.known.insert(Known(rows.clone()));
                rows
            }
        };
        if self.known.len() > self.limit {
            // The limit is twice the number that was left last time, so that the search costs little per
            // session.
            self.known.retain(|Known(rows)| Arc::strong_count(&rows.shared) > 1);
            self.limit = KNOWN.max(2 * self.known.len());
        }
        Ok(Program { own: OwnAddresses(head.own), rows })
    }

    /// Number of different rows that are known. At most half of them, or 64, may be unused.
    pub fn policies(&self) -> usize {
        self.known.len()
    }
}
