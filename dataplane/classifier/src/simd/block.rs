//! Blocks of rules that are all compared with a key at once.
//!
//! A block holds up to `N` rules in columns, in order of rank: the first lane that matches wins. Five columns
//! hold an IPv4 5-tuple in 20 octets:
//!
//! ```text
//! code         flags 8, see below | destination shift 8 | source shift 8 | protocol 8
//! source       word 0 of the value; matches if (value xor key) >> source shift is zero
//! destination  word 1 of the value; likewise with destination shift
//! first ports  source 16 | destination 16
//! span ports   last minus first port of each; matches if (port - first) mod 2^16 is at most this
//!
//! flags 31 compare protocol   30 TEID   29 ports   28 record   27 Ethernet   26 IPv6   25 IPv4   24 more
//! ```
//! A shift encodes a prefix in one octet where a mask would need a word, so 16 lanes take five registers. Flags
//! 30, 29 and 27 to 25 are the presence bits of word 3 that the key must have. Three more columns are the
//! rule's value, precedence and id.
//!
//! Conditions on other fields (QFI, ToS, tunnel, IPv6 …) are a record in [`Rests`]. The lane then has the flag
//! *more*, and its value column holds the place of the record, which is compared when the columns match.

use crate::key::present;
use crate::matcher::Ranked;
use crate::{Key, Matcher, Verdict, rank};

use super::isa::{HotColumns, Vector};
use super::rest::Rests;
use super::rows::Rows;

/// Bits of the code of a lane.
pub(super) mod code {
    use crate::key::present;

    pub const PROTOCOL: u32 = 0xFF;
    pub const SOURCE_SHIFT: u32 = 8;
    pub const DESTINATION_SHIFT: u32 = 16;
    pub const MORE: u32 = 1 << 24;
    pub const FAMILIES: u32 = present::V4 | present::V6;
    /// Presence bits that a code can require, at their positions in word 3.
    pub const FLAGS: u32 = FAMILIES | present::ETHERNET | present::PORTS | present::TEID;
    /// The rule has a record in addition to its row: see [`super::super::rows`].
    pub const RECORD: u32 = 1 << 28;
    pub const PROTOCOL_COUNTS: u32 = 1 << 31;
    /// Flags of a rule that cannot match: no key has both IP versions.
    pub const NEVER: u32 = FAMILIES;
    /// Code of a lane without rule.
    pub const EMPTY: u32 = u32::MAX;
}

/// A key, prepared for the comparison with any number of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Probe<V: Vector> {
    words: V::Probe,
}

impl<V: Vector> Probe<V> {
    /// The probe of this key.
    #[inline(always)]
    pub fn new(vector: V, key: &Key) -> Probe<V> {
        Probe { words: vector.probe(&key.words) }
    }
}

/// One rule in the form in which a lane holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane {
    code: u32,
    source: u32,
    destination: u32,
    first_ports: u32,
    span_ports: u32,
    value: u32,
    precedence: u32,
    id: u32,
}

impl Lane {
    /// A lane without rule: matches nothing.
    pub const EMPTY: Lane = Lane {
        code: code::EMPTY,
        source: 0,
        destination: 0,
        first_ports: 0,
        span_ports: 0,
        value: 0,
        precedence: u32::MAX,
        id: u32::MAX,
    };

    /// The lane of the rule with this rank ([`rank`]) and value. Conditions that do not fit a lane go to
    /// `rests`; free them with [`Lane::drop_rest`] once no lane holds the rule any more. Copies of a lane share
    /// them.
    pub fn new(matcher: &Matcher, rank: u64, value: u32, rests: &mut Rests) -> Lane {
        let Some(used) = Lane::used(matcher) else { return Lane::never(rank, value) };
        let mut lane = Lane::fitting(matcher, rank, value);
        let left = Lane::words_beyond(matcher, used);
        if left != 0 {
            lane.code |= code::MORE;
            lane.value = rests.add(value, matcher, left & !0xF);
        }
        lane
    }

    /// One bit for each word that a matcher uses; `None` if it can never match.
    pub(super) fn used(matcher: &Matcher) -> Option<u32> {
        let contradicts =
            std::iter::zip(&matcher.mask, &matcher.value).any(|(mask, value)| value & !mask != 0);
        let reversed = |(first, last)| first > last;
        let never = contradicts | reversed(matcher.source_ports) | reversed(matcher.destination_ports);
        (!never).then(|| matcher.used_words())
    }

    /// The words, of those that a rule uses, that do not fit a lane.
    #[inline]
    pub(super) fn words_beyond(matcher: &Matcher, used: u32) -> u32 {
        let word_3 = (matcher.mask[3], matcher.value[3]);
        used & !0xF | u32::from(word_3_in_code(word_3).1 != word_3) << 3
    }

    /// The lane of a rule that can never match.
    pub(super) fn never(rank: u64, value: u32) -> Lane {
        let (precedence, id) = ((rank >> 32) as u32, rank as u32);
        Lane { code: code::NEVER, value, precedence, id, ..Lane::EMPTY }
    }

    /// The lane with the conditions that fit it. The rule must be able to match.
    #[inline]
    pub(super) fn fitting(matcher: &Matcher, rank: u64, value: u32) -> Lane {
        let (precedence, id) = ((rank >> 32) as u32, rank as u32);
        let lane = Lane { value, precedence, id, ..Lane::EMPTY };
        let bounds = [matcher.source_ports, matcher.destination_ports];
        let (word, _) = word_3_in_code((matcher.mask[3], matcher.value[3]));
        let [source, destination] = [shift(matcher.mask[0]), shift(matcher.mask[1])];
        Lane {
            code: word | source << code::SOURCE_SHIFT | destination << code::DESTINATION_SHIFT,
            source: matcher.value[0],
            destination: matcher.value[1],
            first_ports: pair(bounds.map(|(first, _)| first)),
            span_ports: pair(bounds.map(|(first, last)| last - first)),
            ..lane
        }
    }

    /// Whether the rule can never match.
    pub(super) fn is_never(&self) -> bool {
        self.code & code::FAMILIES == code::FAMILIES
    }

    /// The same lane, of a rule whose other conditions are in this row.
    pub(super) fn with_row(self, row: u32, has_record: bool) -> Lane {
        let record = if has_record { code::RECORD } else { 0 };
        Lane { code: self.code | code::MORE | record, value: row, ..self }
    }

    /// The row of the rule, and whether it has a record as well.
    pub(super) fn row(&self) -> Option<(u32, bool)> {
        has_more(self.code).then_some((self.value, self.code & code::RECORD != 0))
    }

    /// The rule with only the conditions in the lane.
    pub(super) fn ranked_in_lane(&self) -> Ranked {
        Ranked { rank: self.rank(), value: self.value, matcher: self.matcher_in_lane() }
    }

    /// The matcher of a rule whose lane [`Lane::new`] made.
    pub fn matcher(&self, rests: &Rests) -> Matcher {
        let mut matcher = self.matcher_in_lane();
        if has_more(self.code) {
            rests.read(self.value, &mut matcher);
        }
        matcher
    }

    fn matcher_in_lane(&self) -> Matcher {
        if self.is_never() {
            return Matcher::NEVER;
        }
        let mut matcher = Matcher::ALL;
        let mask = |shift: u32| u32::MAX.checked_shl(self.code >> shift & 0xFF).unwrap_or(0);
        (matcher.mask[0], matcher.value[0]) = (mask(code::SOURCE_SHIFT), self.source);
        (matcher.mask[1], matcher.value[1]) = (mask(code::DESTINATION_SHIFT), self.destination);
        let ports = |shift: u32| {
            let (first, span) = ((self.first_ports >> shift) as u16, (self.span_ports >> shift) as u16);
            (first, first + span)
        };
        (matcher.source_ports, matcher.destination_ports) = (ports(16), ports(0));
        let flags = self.code & code::FLAGS;
        (matcher.mask[3], matcher.value[3]) = (flags, flags);
        if flags & code::FAMILIES != 0 {
            matcher.mask[3] |= code::FAMILIES;
        }
        if self.code & code::PROTOCOL_COUNTS != 0 {
            matcher.mask[3] |= code::PROTOCOL;
            matcher.value[3] |= self.code & code::PROTOCOL;
        }
        matcher
    }

    /// Frees what the rule has in `rests`.
    pub fn drop_rest(&self, rests: &mut Rests) {
        if has_more(self.code) {
            rests.remove(self.value);
        }
    }

    /// A copy of the rule, whose record is copied from `rests` to `to`.
    pub fn copy(&self, rests: &Rests, to: &mut Rests) -> Lane {
        let value = if has_more(self.code) { to.copy(rests, self.value) } else { self.value };
        Lane { value, ..*self }
    }

    /// The same rule with another precedence.
    pub fn with_precedence(self, precedence: u32) -> Lane {
        Lane { precedence, ..self }
    }

    /// Rank of the rule.
    pub fn rank(&self) -> u64 {
        rank(self.precedence, self.id)
    }

    /// Whether the lane holds no rule.
    pub fn is_empty(&self) -> bool {
        self.code == code::EMPTY
    }

    /// Id of the rule.
    pub fn id(&self) -> u32 {
        self.id
    }
}

/// The part of word 3 that fits a code: the code bits, and the mask and value that they represent.
#[inline]
fn word_3_in_code((mask, value): (u32, u32)) -> (u32, (u32, u32)) {
    let mut word = mask & value & code::FLAGS & !code::FAMILIES;
    let mut said = (word, word);
    let mut say = |when: bool, bits: u32, (mask, value): (u32, u32)| {
        if when {
            word |= bits;
            said = (said.0 | mask, said.1 | value);
        }
    };
    for family in [present::V4, present::V6] {
        let wanted = mask & code::FAMILIES == code::FAMILIES && value & code::FAMILIES == family;
        say(wanted, family, (code::FAMILIES, family));
    }
    let protocol = value & code::PROTOCOL;
    say(mask & 0xFF == 0xFF, code::PROTOCOL_COUNTS | protocol, (0xFF, protocol));
    (word, said)
}

/// Number of bits that the mask of a prefix leaves open. Filters have no other masks in the words 0 and 1.
fn shift(mask: u32) -> u32 {
    let length = mask.leading_ones();
    debug_assert_eq!(mask.checked_shl(length).unwrap_or(0), 0, "addresses have prefixes");
    32 - length
}

fn pair([source, destination]: [u16; 2]) -> u32 {
    u32::from(source) << 16 | u32::from(destination)
}

#[inline(always)]
fn has_more(code: u32) -> bool {
    // An empty lane has all bits set.
    code & code::MORE != 0 && code != code::EMPTY
}

/// Up to `N` (8 or 16) rules, sorted by rank, starting at lane 0.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Block<const N: usize> {
    hot: HotColumns<N>,
    value: [u32; N],
    precedence: [u32; N],
    id: [u32; N],
}

impl<const N: usize> Default for Block<N> {
    fn default() -> Block<N> {
        Block::new()
    }
}

impl<const N: usize> Block<N> {
    /// An empty block.
    pub fn new() -> Block<N> {
        Block {
            hot: HotColumns {
                code: [Lane::EMPTY.code; N],
                source: [0; N],
                destination: [0; N],
                first_ports: [0; N],
                span_ports: [0; N],
            },
            value: [0; N],
            precedence: [Lane::EMPTY.precedence; N],
            id: [Lane::EMPTY.id; N],
        }
    }

    /// The lane of the first rule that matches. The probe must be of the same key.
    #[inline(always)]
    pub fn find<V: Vector>(&self, vector: V, probe: &Probe<V>, key: &Key, rests: &Rests) -> Option<usize> {
        let mut candidates = self.candidates::<V, N>(vector, probe);
        while candidates != 0 {
            let lane = candidates.trailing_zeros() as usize & (N - 1);
            if self.hot.code[lane] & code::MORE == 0 || rests.matches(vector, self.value[lane], key) {
                return Some(lane);
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// The lanes whose columns match, among the first `USED`. These rules match if none has conditions beyond
    /// its lane.
    #[inline(always)]
    pub fn candidates<V: Vector, const USED: usize>(&self, vector: V, probe: &Probe<V>) -> u32 {
        const { assert!(USED <= N) };
        vector.candidates::<USED, N>(&self.hot, &probe.words)
    }

    /// The value of the rule in this lane.
    #[inline(always)]
    pub fn value(&self, lane: usize, rests: &Rests) -> u32 {
        let value = self.value[lane & (N - 1)];
        if self.hot.code[lane & (N - 1)] & code::MORE == 0 { value } else { rests.value(value) }
    }

    /// The verdict of the first of these lanes whose row, if it has one, matches too.
    #[inline(always)]
    pub(super) fn first<V: Vector, const RECORDS: bool>(
        &self,
        vector: V,
        mut lanes: u32,
        rows: &Rows,
        picked: &V::Picked,
        key: &Key,
    ) -> Verdict {
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize & (N - 1);
            let (code, value) = (self.hot.code[lane], self.value[lane]);
            if code & code::MORE == 0 {
                return Some(value);
            }
            let place = (value, code & code::RECORD != 0);
            let verdict = rows.verdict::<V, RECORDS>(vector, place, picked, key);
            if verdict.is_some() {
                return verdict;
            }
            lanes &= lanes - 1;
        }
        None
    }

    /// The value of the rule in this lane, if no rule of the block has conditions beyond its lane.
    #[inline(always)]
    pub(super) fn small_value(&self, lane: usize) -> u32 {
        self.value[lane & (N - 1)]
    }

    /// The rank of the rule in this lane; the greatest possible rank if the lane is empty.
    #[inline(always)]
    pub fn rank(&self, lane: usize) -> u64 {
        rank(self.precedence[lane & (N - 1)], self.id[lane & (N - 1)])
    }

    /// Number of rules.
    #[inline(always)]
    pub fn len<V: Vector>(&self, vector: V) -> usize {
        vector.equal(&self.hot.code, code::EMPTY).trailing_zeros().min(N as u32) as usize
    }

    /// The lane of the rule with this id.
    #[inline(always)]
    pub fn find_id<V: Vector>(&self, vector: V, id: u32) -> Option<usize> {
        let mut lanes = vector.equal(&self.id, id);
        if id == Lane::EMPTY.id {
            lanes &= !vector.equal(&self.hot.code, code::EMPTY);
        }
        (lanes != 0).then(|| lanes.trailing_zeros() as usize)
    }

    /// The lane for a rule of this rank: the number of rules with a lower rank.
    #[inline(always)]
    pub fn position<V: Vector>(&self, vector: V, rank: u64) -> usize {
        let (precedence, id) = ((rank >> 32) as u32, rank as u32);
        let equal = vector.equal(&self.precedence, precedence) & vector.less(&self.id, id);
        (vector.less(&self.precedence, precedence) | equal).count_ones() as usize
    }

    /// The content of a lane, which may be empty.
    #[inline(always)]
    pub fn get(&self, lane: usize) -> Lane {
        let lane = lane & (N - 1);
        Lane {
            code: self.hot.code[lane],
            source: self.hot.source[lane],
            destination: self.hot.destination[lane],
            first_ports: self.hot.first_ports[lane],
            span_ports: self.hot.span_ports[lane],
            value: self.value[lane],
            precedence: self.precedence[lane],
            id: self.id[lane],
        }
    }

    /// Overwrites a lane.
    #[inline(always)]
    pub fn set(&mut self, lane: usize, rule: &Lane) {
        self.each(rule, |column, word| column[lane & (N - 1)] = word);
    }

    /// Inserts the rule at `lane`. The rule in the last lane is lost.
    #[inline(always)]
    pub fn insert<V: Vector>(&mut self, vector: V, lane: usize, rule: &Lane) {
        self.each(rule, |column, word| vector.insert(column, lane & (N - 1), word));
    }

    /// Removes the rule at `lane`; the rules behind it move up.
    #[inline(always)]
    pub fn remove<V: Vector>(&mut self, vector: V, lane: usize) {
        self.each(&Lane::EMPTY, |column, word| vector.remove(column, lane & (N - 1), word));
    }

    /// Calls `change` for each column with the word of the rule that belongs to it.
    #[inline(always)]
    fn each(&mut self, rule: &Lane, mut change: impl FnMut(&mut [u32; N], u32)) {
        change(&mut self.hot.code, rule.code);
        change(&mut self.hot.source, rule.source);
        change(&mut self.hot.destination, rule.destination);
        change(&mut self.hot.first_ports, rule.first_ports);
        change(&mut self.hot.span_ports, rule.span_ports);
        change(&mut self.value, rule.value);
        change(&mut self.precedence, rule.precedence);
        change(&mut self.id, rule.id);
    }
}
