//! One session's rules: a head of one cache line and rows of 32 octets.
//!
//! # Rows
//! A row is one rule, in order of rank. It compares the 5-tuple, ToS and QFI; conditions on other fields of a
//! PDI are in lines behind the rows, three to a line, and are compared when the row has matched.
//!
//! ```text
//! word  row                                         further conditions
//!  0    source address                              words of the key that they are on, 8 bits each
//!  1    destination address                         mask, value of the first
//!  2    8 conditions | 8 own | 8 + 8 bits of the     ...
//!       destination's and the source's prefix
//!  3    mask of word 3 of the key                   mask, value of the second
//!  4    value of it                                 ...
//!  5    last - first | first source port            mask, value of the third
//!  6    last - first | first destination port       ...
//!  7    verdict, or line of the further conditions  verdict, in the first line
//! ```
//!
//! # Fields of the session's own
//! Rules of two sessions with one policy differ in the UE's address and in TEIDs. The head holds these values.
//! A row only requires that source, destination or TEID is the session's *own*, which is computed once per
//! packet. So equal policies have equal rows, of which one copy is stored ([`super::arena`],
//! [`super::Interner`]).
//!
//! # Which rows to try
//! The head has four bit positions, and a table from the values of these bits in a packet to the rows that
//! these values do not exclude: one bit per row, or per group of neighbouring rows when there are more than
//! sixteen. The positions are chosen so that few rows remain, as in bit-selection schemes for large sets (T. Y.
//! C. Woo, "A Modular Approach to Packet Classification", INFOCOM 2000). So a look-up in memory that is in no
//! cache touches the head, and mostly one line of rows.

use std::net::IpAddr;

use super::halves;
use crate::key::{WORDS, present};
use crate::matcher::Field;
use crate::{Key, Matcher, Prefix, Rule, Verdict};

/// Rows, or groups of rows, that a head tells apart.
pub(super) const GROUPS: usize = 16;
/// Bits of a packet that choose among them.
const BITS: usize = 4;
/// Words from which bits are chosen: those that a row or the head compares.
const CHOICE: usize = 8;
/// Words 4 and 7 seldom tell rules apart. In their place, bits are chosen from the address that is not the
/// UE's, and from the ports with the UE's port in the upper half. So the same bits serve both directions of a
/// service.
const REMOTE: usize = 4;
const PORTS: usize = 7;
/// Positions that are examined closely, after a rough ranking of all.
const FINALISTS: usize = 24;

/// "Own" bits, in bits of word 5 that keys and matchers leave free.
mod own {
    pub const SOURCE: u32 = 1 << 20;
    pub const DESTINATION: u32 = 1 << 21;
    pub const TEIDS: [u32; 2] = [1 << 22, 1 << 23];
    pub const ALL: u32 = 0xF << 20;
    /// Shift from their place in word 5 to that in word 2 of a row.
    pub const SHIFT: u32 = 4;
}

/// Half a cache line: a row, or three further conditions.
pub(super) type Line = [u32; 8];

/// A cache line: two lines of 32 octets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Pair(pub [Line; 2]);

/// Which groups of rows a packet can match. Equal for programs with equal rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub(super) struct Choice {
    table: [u16; GROUPS],
    /// Index of the word in the upper 3 bits, bit position in the lower 5.
    bits: [u8; BITS],
}

/// The UE's address, in which sessions of one policy differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Own {
    pub ue_v4: u32,
    pub ue_v6: [u32; 2],
}

/// The fields of one session, and its choice of rows. One cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub(super) struct Head {
    pub choice: Choice,
    /// Place of the rows in the arena.
    pub place: u32,
    pub own: Own,
    teids: [u32; 2],
    /// Rows per bit of the table.
    group: u16,
    /// Number of cache lines at `place`.
    pub pairs: u16,
}

const _: () = assert!(size_of::<Head>() == 64 && size_of::<Pair>() == 64);

/// What a look-up needs to know of a packet before it compares rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// Groups that may match: one bit each, 16 bits.
    pub groups: u32,
    /// Which fields have the session's own values, as in word 2 of a row.
    pub own: u32,
}

impl Head {
    /// The head of no session: nothing matches.
    pub const NONE: Head = Head {
        choice: Choice { table: [0; GROUPS], bits: [0; BITS] },
        place: 0,
        own: Own::NONE,
        teids: [0; 2],
        group: 0,
        pairs: 0,
    };

    /// Rows per bit of the table.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Whether this is the head of a session: only then it has groups.
    pub fn exists(&self) -> bool {
        self.group != 0
    }

    /// Compares the head's fields with a packet.
    #[inline(always)]
    pub fn start(&self, key: &Key) -> Start {
        let is = |teid: u32, bit: u32| if key.words[6] == teid { bit } else { 0 };
        let teids = is(self.teids[0], own::TEIDS[0]) | is(self.teids[1], own::TEIDS[1]);
        self.choice.start(self.own.sides(key), teids, key)
    }

    /// Prefetches the lines of the first two rows to try, from the lines at `place`.
    #[inline(always)]
    pub fn prefetch_rows(&self, pairs: &[Pair], start: Start) {
        prefetch_rows(pairs, self.group, start);
    }

    /// The verdict for the packet from which `start` was made.
    #[inline(always)]
    pub fn find(&self, pairs: &[Pair], key: &Key, start: Start) -> Verdict {
        find(pairs, self.group, key, start)
    }
}

impl Own {
    /// For a session without address.
    pub const NONE: Own = Own { ue_v4: 0, ue_v6: [0; 2] };

    /// Which addresses of the packet are the session's own, as in word 2 of a row.
    #[inline(always)]
    pub fn start(&self, key: &Key) -> Start {
        let (source, destination) = self.sides(key);
        let own = (u32::from(source) * own::SOURCE) | (u32::from(destination) * own::DESTINATION);
        Start { groups: 0, own: own >> own::SHIFT }
    }

    /// Whether source and destination are the session's own.
    #[inline(always)]
    pub fn sides(&self, key: &Key) -> (bool, bool) {
        let words = &key.words;
        // A key without IP version or with both matches no rule on addresses, so the result for it does not
        // matter.
        if words[3] & present::V4 != 0 {
            (words[0] == self.ue_v4, words[1] == self.ue_v4)
        } else {
            ([words[0], words[9]] == self.ue_v6, [words[1], words[12]] == self.ue_v6)
        }
    }
}

impl Choice {
    /// Which groups may match a packet; `teids` are its "own" bits for TEIDs.
    #[inline(always)]
    pub fn start(&self, (source, destination): (bool, bool), teids: u32, key: &Key) -> Start {
        let words = &key.words;
        let is = |bit: u32, wanted: bool| if wanted { bit } else { 0 };
        let own = is(own::SOURCE, source) | is(own::DESTINATION, destination) | teids;
        let mut chosen = [0; CHOICE];
        chosen.copy_from_slice(&words[..CHOICE]);
        chosen[5] = chosen[5] & !own::ALL | own;
        chosen[REMOTE] = if source { words[1] } else { words[0] };
        chosen[PORTS] = if source { words[2] } else { words[2].rotate_left(16) };
        let index = self.bits.iter().enumerate().fold(0, |index, (at, bit)| {
            let value = chosen[usize::from(bit >> 5)] >> (bit & 31) & 1;
            index | (value as usize) << at
        });
        // From the UE to itself: rules of both directions may match, and they expect different values in these
        // bits. Computed without a branch, because the direction of packets is unpredictable.
        let to_itself = std::hint::black_box(u32::from(source) & u32::from(destination)) != 0;
        let groups = if to_itself { self.all() } else { self.table[index] };
        Start { groups: groups.into(), own: own >> own::SHIFT }
    }

    /// All groups that the table contains.
    #[cold]
    fn all(&self) -> u16 {
        self.table.iter().fold(0, |all, groups| all | groups)
    }
}

/// Prefetches the lines of the first two rows to try.
#[inline(always)]
pub(super) fn prefetch_rows(pairs: &[Pair], group: u16, start: Start) {
    let more = start.groups & start.groups.wrapping_sub(1);
    for groups in [start.groups, if more == 0 { start.groups } else { more }] {
        prefetch(pairs.get(groups.trailing_zeros() as usize * usize::from(group) / 2));
    }
}

/// The verdict for the packet from which `start` was made.
#[inline(always)]
pub(super) fn find(pairs: &[Pair], group: u16, key: &Key, start: Start) -> Verdict {
    let mut groups = start.groups;
    let group = usize::from(group);
    while groups != 0 {
        let first = groups.trailing_zeros() as usize * group;
        for at in first..first + group {
            let row = line(pairs, at)?;
            if row_matches(row, key, start.own) {
                match row[2] >> 24 {
                    0 => return Some(row[7]),
                    lines => {
                        let verdict = further(pairs, row[7] as usize, lines as usize, key);
                        if verdict.is_some() {
                            return verdict;
                        }
                    }
                }
            }
        }
        groups &= groups - 1;
    }
    None
}

/// The verdict of a row, if its further conditions, in `count` lines, match.
fn further(pairs: &[Pair], first: usize, count: usize, key: &Key) -> Verdict {
    let all =
        (first..first + count).all(|at| line(pairs, at).is_some_and(|line| conditions_match(line, key)));
    if all { line(pairs, first).map(|line| line[7]) } else { None }
}

#[inline(always)]
pub(super) fn line(pairs: &[Pair], at: usize) -> Option<&Line> {
    pairs.get(at / 2).map(|pair| &pair.0[at % 2])
}

/// Mask of a prefix of up to 32 bits.
#[inline(always)]
pub(super) fn prefix_mask(length: u32) -> u32 {
    (0xFFFF_FFFF_0000_0000_u64 >> (length & 63)) as u32
}

/// Whether the row matches, without regard to its further conditions. All fields are compared before the one
/// branch: comparisons are cheaper than a mispredicted branch.
#[inline(always)]
fn row_matches(row: &Line, key: &Key, own: u32) -> bool {
    let words = &key.words;
    let (source, destination) = ((words[2] >> 16) as u16, words[2] as u16);
    let within = |range: u32, port: u16| port.wrapping_sub(range as u16) <= (range >> 16) as u16;
    let differ = (words[0] ^ row[0]) & prefix_mask(row[2] & 0xFF)
        | (words[1] ^ row[1]) & prefix_mask(row[2] >> 8 & 0xFF)
        | words[3] & row[3] ^ row[4]
        | row[2] & !own & 0x000F_0000;
    (differ == 0) & within(row[5], source) & within(row[6], destination)
}

#[inline]
fn conditions_match(line: &Line, key: &Key) -> bool {
    let differ = (0..3).fold(0, |differ, at| {
        let word = key.words[(line[0] >> (8 * at) & 31) as usize % WORDS];
        differ | word & line[1 + 2 * at] ^ line[2 + 2 * at]
    });
    differ == 0
}

/// Compiles rules to a head and rows. Kept between sessions, to reuse the memory of its vectors.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiler {
    /// Matchers and verdicts, without the conditions that became "own" bits.
    matchers: Vec<(Matcher, u32)>,
    lines: Vec<Line>,
    /// The rows and the lines of further conditions, the last cache line filled up.
    pub pairs: Vec<Pair>,
}

impl Compiler {
    /// Compiles rules, which must be in order of rank, to a head and [`Compiler::pairs`]. Rules that can never
    /// match are left out. `place` and `choice` of the head are not set: [`Compiler::choose`] computes the
    /// choice for rows that are new. `own_teids` says whether the head holds TEIDs as well.
    pub fn compile(&mut self, rules: &[&Rule], own_teids: bool) -> Head {
        let matchers = &mut self.matchers;
        matchers.clear();
        matchers.extend(rules.iter().filter_map(|rule| Some((Matcher::new(&rule.filter)?, rule.value))));
        let named = || rules.iter().filter_map(|rule| rule.filter.ue.map(|(_, prefix)| prefix));
        let all = || matchers.iter().map(|(matcher, _)| matcher);
        let mut head = Head {
            own: Own {
                ue_v4: first_of(named().filter_map(host_v4), all().flat_map(hosts_v4)).unwrap_or_default(),
                ue_v6: first_of(named().filter_map(prefix_v6), all().flat_map(prefixes_v6))
                    .unwrap_or_default(),
            },
            group: matchers.len().div_ceil(GROUPS).max(1) as u16,
            ..Head::NONE
        };
        let on_teid = matchers.iter().filter(|(matcher, _)| own_teids && matcher.mask[6] == u32::MAX);
        let teids = most_frequent(on_teid.map(|(matcher, _)| matcher.value[6]));
        for (own, teid) in std::iter::zip(&mut head.teids, &teids) {
            *own = *teid;
        }
        for (matcher, _) in matchers.iter_mut() {
            take_out_own(matcher, &head, teids.len());
        }
        write_rows(matchers, usize::from(head.group), &mut self.lines);
        self.pairs.clear();
        let pair = |lines: &[Line]| Pair([lines[0], lines.get(1).copied().unwrap_or_default()]);
        self.pairs.extend(self.lines.chunks(2).map(pair));
        head.pairs = self.pairs.len() as u16;
        head
    }

    /// Number of rows compiled last.
    pub fn rows(&self) -> usize {
        self.matchers.len()
    }

    /// The choice of rows for the rules compiled last.
    pub fn choose(&self, head: &Head) -> Choice {
        choose_bits(head.group, &self.matchers)
    }
}

/// Distinct values, the most frequent first; among equally frequent ones the first seen comes first.
fn most_frequent<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut counted: Vec<(u32, T)> = Vec::new();
    for value in values {
        match counted.iter_mut().find(|(_, seen)| *seen == value) {
            Some((count, _)) => *count += 1,
            None => counted.push((1, value)),
        }
    }
    counted.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    counted.into_iter().map(|(_, value)| value).collect()
}

fn is_v4(matcher: &Matcher) -> bool {
    matcher.mask[3] & matcher.value[3] & present::V4 != 0
}

fn is_v6(matcher: &Matcher) -> bool {
    matcher.mask[3] & matcher.value[3] & present::V6 != 0
}

/// The value that rules name as the UE's; if none does, the most frequent one of all.
fn first_of<T: PartialEq>(mut named: impl Iterator<Item = T>, all: impl Iterator<Item = T>) -> Option<T> {
    named.next().or_else(|| most_frequent(all).into_iter().next())
}

/// The address, if the prefix is an IPv4 address in full.
fn host_v4(prefix: Prefix) -> Option<u32> {
    match prefix.address() {
        IpAddr::V4(address) if prefix.length() == 32 => Some(address.to_bits()),
        _ => None,
    }
}

/// The first half of the address, if the prefix has all of it.
fn prefix_v6(prefix: Prefix) -> Option<[u32; 2]> {
    match prefix.address() {
        IpAddr::V6(address) if prefix.length() >= 64 => Some(halves(address)),
        _ => None,
    }
}

/// IPv4 addresses that a matcher compares in full.
fn hosts_v4(matcher: &Matcher) -> impl Iterator<Item = u32> {
    let words = if is_v4(matcher) { 0..2 } else { 0..0 };
    words.filter(move |&word| matcher.mask[word] == u32::MAX).map(move |word| matcher.value[word])
}

/// First halves of IPv6 addresses that a matcher compares in full.
fn prefixes_v6(matcher: &Matcher) -> impl Iterator<Item = [u32; 2]> {
    let sides = if is_v6(matcher) { [[0, 9], [1, 12]].as_slice() } else { &[] };
    let full = move |words: &&[usize; 2]| words.iter().all(|&word| matcher.mask[word] == u32::MAX);
    sides.iter().filter(full).map(move |words| words.map(|word| matcher.value[word]))
}

/// Replaces conditions on values that the head holds by "own" bits.
fn take_out_own(matcher: &mut Matcher, head: &Head, teids: usize) {
    for (first, second, bit) in [(0, 9, own::SOURCE), (1, 12, own::DESTINATION)] {
        let full = |word: usize, value: u32| matcher.mask[word] == u32::MAX && matcher.value[word] == value;
        let v4 = is_v4(matcher) && full(first, head.own.ue_v4);
        let v6 = is_v6(matcher) && full(first, head.own.ue_v6[0]) && full(second, head.own.ue_v6[1]);
        if v4 || v6 {
            (matcher.mask[first], matcher.value[first]) = (0, 0);
            require(matcher, bit);
        }
        if v6 {
            (matcher.mask[second], matcher.value[second]) = (0, 0);
        }
    }
    let known = std::iter::zip(head.teids, own::TEIDS).take(teids);
    if matcher.mask[6] == u32::MAX
        && let Some((_, bit)) = known.into_iter().find(|(teid, _)| *teid == matcher.value[6])
    {
        (matcher.mask[6], matcher.value[6]) = (0, 0);
        require(matcher, bit);
    }
}

fn require(matcher: &mut Matcher, bit: u32) {
    matcher.mask[5] |= bit;
    matcher.value[5] |= bit;
}

/// A bit position, with the groups that have a rule for value 0 and those that have one for value 1.
#[derive(Clone, Copy)]
struct Position {
    bit: u8,
    sides: [u16; 2],
}

/// Chooses the bits greedily. Each step takes the bit that leaves the fewest groups to try, averaged over the
/// groups and over the bit values under which a group is found.
fn choose_bits(group: u16, matchers: &[(Matcher, u32)]) -> Choice {
    let all = (0..matchers.len()).fold(0, |all, at| all | 1 << (at / usize::from(group)));
    let cost = |sets: &[u16], position: &Position| -> u32 {
        let left = |set: &u16, side: u16| (set & side).count_ones();
        let counts = sets.iter().flat_map(|set| position.sides.map(|side| left(set, side)));
        let (sum, squares) = counts.fold((0, 0), |(sum, squares), n| (sum + n, squares + n * n));
        1000 * squares / sum.max(1)
    };
    let mut positions = positions(matchers, group, all);
    positions.sort_by_cached_key(|position| cost(&[all], position));
    positions.truncate(FINALISTS);
    let mut choice = Choice::default();
    let mut sets = vec![all];
    for at in 0..BITS {
        let nothing = Position { bit: 0, sides: [all; 2] };
        let best = positions.iter().min_by_key(|position| cost(&sets, position)).unwrap_or(&nothing);
        choice.bits[at] = best.bit;
        // The new bit becomes the highest bit of the index.
        let split = best.sides.iter().flat_map(|side| sets.iter().map(move |set| set & side));
        sets = split.collect();
    }
    choice.table.copy_from_slice(&sets);
    choice
}

/// All positions that tell groups apart.
fn positions(matchers: &[(Matcher, u32)], group: u16, all: u16) -> Vec<Position> {
    let mut positions = Vec::new();
    for word in 0..CHOICE {
        let column: Vec<(u32, u32)> = matchers.iter().map(|(matcher, _)| bits_of(matcher, word)).collect();
        let used = column.iter().fold(0, |used, (mask, _)| used | mask);
        for bit in (0..32).filter(|bit| used >> bit & 1 != 0) {
            let mut sides = [0; 2];
            for (at, (mask, value)) in column.iter().enumerate() {
                let flag = 1 << (at / usize::from(group));
                let (cares, one) = (mask >> bit & 1 != 0, value >> bit & 1 != 0);
                sides[0] |= if cares && one { 0 } else { flag };
                sides[1] |= if cares && !one { 0 } else { flag };
            }
            if sides != [all; 2] {
                positions.push(Position { bit: (word as u8) << 5 | bit as u8, sides });
            }
        }
    }
    positions
}

/// Mask and value of one of the words from which bits are chosen.
fn bits_of(matcher: &Matcher, word: usize) -> (u32, u32) {
    // Ports: the leading bits that are equal in the whole range.
    let ports = |of: fn(&Matcher, Field) -> u32| {
        of(matcher, Field::SOURCE_PORT) << 16 | of(matcher, Field::DESTINATION_PORT)
    };
    let both = || (ports(Matcher::mask), ports(Matcher::value));
    let uplink = matcher.value[5] & own::SOURCE != 0;
    let downlink = matcher.value[5] & own::DESTINATION != 0;
    match (word, uplink, downlink) {
        (2, ..) | (PORTS, true, _) => both(),
        (REMOTE, true, _) => (matcher.mask[1], matcher.value[1]),
        (REMOTE, false, true) => (matcher.mask[0], matcher.value[0]),
        (PORTS, false, true) => {
            let (mask, value) = both();
            (mask.rotate_left(16), value.rotate_left(16))
        }
        // Packets from the UE to itself are handled apart, in [`Choice::start`].
        (5, true, false) => (matcher.mask[5] | own::DESTINATION, matcher.value[5]),
        (5, false, true) => (matcher.mask[5] | own::SOURCE, matcher.value[5]),
        // The matcher does not say which address is the UE's.
        (REMOTE | PORTS, false, false) => (0, 0),
        _ => (matcher.mask[word], matcher.value[word]),
    }
}

/// Length of a mask that is a prefix; otherwise `None`.
fn prefix_length(mask: u32) -> Option<u32> {
    (mask.leading_ones() + mask.trailing_zeros() == 32).then(|| mask.leading_ones())
}

fn write_rows(matchers: &[(Matcher, u32)], group: usize, lines: &mut Vec<Line>) {
    lines.clear();
    // Whole groups, so that a look-up need not check where the rows end. The rows that fill up require a bit
    // outside their mask, so no packet matches them.
    let rows = matchers.len().next_multiple_of(group);
    let never: Line = [0, 0, 0, 0, 1, 0xFFFF_0000, 0xFFFF_0000, 0];
    lines.resize(rows, never);
    for (at, (matcher, value)) in matchers.iter().enumerate() {
        let mut left = *matcher;
        let mut take = |word: usize| std::mem::take(&mut left.mask[word]);
        let (row_own, lengths) = (take(5), [0, 1].map(|word| prefix_length(matcher.mask[word])));
        left.mask[5] = row_own & !own::ALL;
        left.mask[3] = 0;
        for (word, length) in lengths.iter().enumerate() {
            if length.is_some() {
                left.mask[word] = 0;
            }
        }
        let (mut further, mut words) = ([0; WORDS], 0);
        for (word, _) in left.mask.iter().enumerate().filter(|(_, mask)| **mask != 0) {
            further[words] = word;
            words += 1;
        }
        let count = words.div_ceil(3) as u32;
        let range = |(first, last): (u16, u16)| u32::from(last - first) << 16 | u32::from(first);
        let [source, destination] = lengths.map(|length| length.unwrap_or(0));
        lines[at] = [
            if source > 0 { matcher.value[0] } else { 0 },
            if destination > 0 { matcher.value[1] } else { 0 },
            count << 24 | (row_own & own::ALL) >> own::SHIFT | destination << 8 | source,
            matcher.mask[3],
            matcher.value[3],
            range(matcher.source_ports),
            range(matcher.destination_ports),
            if count == 0 { *value } else { lines.len() as u32 },
        ];
        lines.extend(further[..words].chunks(3).map(|words| conditions(words, &left, *value)));
    }
}

fn conditions(words: &[usize], matcher: &Matcher, value: u32) -> Line {
    let mut line = [0; 8];
    line[7] = value;
    for (at, &word) in words.iter().enumerate() {
        line[0] |= (word as u32) << (8 * at);
        line[1 + 2 * at] = matcher.mask[word];
        line[2 + 2 * at] = matcher.value[word] & matcher.mask[word];
    }
    line
}

/// Prefetches the cache line of a value.
#[inline(always)]
pub(super) fn prefetch<T>(value: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = value {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has SSE, and prefetching a valid address has no effect but on caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
