//! Tuple spaces: rules grouped by the bits that they compare, with one hash table per group.
//!
//! A [`Tuple`] is a mask over all words of a key. A table hashes the bits of its tuple. Every rule in the table
//! compares at least these bits (in TupleMerge often more), so a packet's masked key leads to every rule of the
//! table that can match. Rules with the same masked key form a group in order of rank. Each candidate is
//! verified, since its conditions may go beyond the tuple: port ranges, and the bits that a relaxed tuple
//! leaves out.
//!
//! What makes it fast:
//! - The first four words (addresses, ports, protocol, ToS, QFI) are two `u64`, hashed by one widening
//!   multiplication. The masks of the other words are stored once for all tables that have them ([`Rests`]):
//!   these tables (all those of a session, say) share one hash of these words per packet.
//! - A miss reads the table's header and one bucket of seven 16-bit tags ([`Table`]).
//! - `order` lists the tables by the least rank in them. A search stops when its match ranks before all tables
//!   that are left.
//!
//! Invariants. `order` has every table that contains rules once, sorted by (best, table). `best` is a lower
//! bound of the ranks in the table; removals may leave it too low for a while, which costs time but loses no
//! match. The home of a rule is the number of its table.

mod table;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) use crate::ranked::Best;
use crate::ranked::{GROUP, Groups, Head, Order, Place};
use crate::store::{NONE, PAIRS, REST, Store, first_pairs, pair, rest_pairs};
use crate::{Field, Key, Matcher, Verdict};
use table::Table;

/// Odd constants without structure: digits of the fractional part of the square roots of 2, 3 and 5.
const SEEDS: [u64; 3] = [0x6A09_E667_F3BC_C909, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B];

/// Mixes two words: combines both halves of their product.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The bits that a table compares, as masks of pairs of words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tuple {
    pub first: [u64; 2],
    pub rest: [u64; REST],
}

impl Tuple {
    /// All bits of a rule's masks, and the bits `ports` (laid out as word 2) of the ports.
    pub fn new(matcher: &Matcher, ports: u32) -> Tuple {
        let mut first = first_pairs(&matcher.mask);
        first[1] |= u64::from(ports);
        Tuple { first, rest: rest_pairs(&matcher.mask) }
    }

    /// Whether all bits of this tuple are in `other`.
    #[inline]
    pub fn within(&self, other: &Tuple) -> bool {
        let outside = (self.first[0] & !other.first[0]) | (self.first[1] & !other.first[1]);
        outside == 0 && (0..REST).fold(0, |all, at| all | (self.rest[at] & !other.rest[at])) == 0
    }

    /// This tuple with further bits of a field.
    pub fn with(mut self, field: Field, mask: u32) -> Tuple {
        let word = u64::from(mask) << field.shift << (32 * (field.word % 2));
        match usize::from(field.word / 2) {
            at @ 0..2 => self.first[at] |= word,
            at => self.rest[at - 2] |= word,
        }
        self
    }

    /// Number of bits.
    pub fn bits(&self) -> u32 {
        self.first.iter().chain(&self.rest).map(|pair| pair.count_ones()).sum()
    }
}

/// Hasher of tuples. They come from rules, not from packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TupleHasher(u64);

impl Hasher for TupleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(16) {
            let mut both = [0; 16];
            both[..chunk.len()].copy_from_slice(chunk);
            let both = u128::from_le_bytes(both);
            self.0 = fold(self.0 ^ both as u64 ^ SEEDS[0], (both >> 64) as u64 ^ SEEDS[1]);
        }
    }

    fn write_usize(&mut self, _: usize) {} // Lengths are constant.
}

type TupleMap<K> = HashMap<K, u32, BuildHasherDefault<TupleHasher>>;

/// How the words 4 to 19 of a tuple are hashed: two masked pairs at a time.
#[derive(Clone, Debug, Default)]
struct RestMask {
    masks: [u64; REST],
    steps: Vec<([u8; 2], [u64; 2])>,
    /// Number of tables that use it.
    users: u32,
}

impl RestMask {
    fn new(masks: [u64; REST]) -> RestMask {
        let used: Vec<usize> = (0..REST).filter(|&at| masks[at] != 0).collect();
        let step = |pairs: &[usize]| {
            let second = pairs.get(1).copied();
            (
                [pairs[0] as u8, second.unwrap_or(pairs[0]) as u8],
                [masks[pairs[0]], second.map_or(0, |at| masks[at])],
            )
        };
        RestMask { masks, steps: used.chunks(2).map(step).collect(), users: 0 }
    }

    #[inline]
    fn hash(&self, pair: impl Fn(usize) -> u64) -> u64 {
        self.steps.iter().fold(0, |hash, &(at, masks)| {
            let first = pair(at[0].into()) & masks[0] ^ SEEDS[2] ^ hash;
            fold(first, pair(at[1].into()) & masks[1] ^ SEEDS[0])
        })
    }
}

/// The masks of the words 4 to 19, each different one once. Number 0 has no bits and hashes to zero.
#[derive(Clone, Debug)]
struct Rests {
    list: Vec<RestMask>,
    free: Vec<u32>,
    numbers: TupleMap<[u64; REST]>,
}

impl Rests {
    fn new() -> Rests {
        Rests { list: vec![RestMask::default()], free: Vec::new(), numbers: TupleMap::default() }
    }

    fn intern(&mut self, masks: [u64; REST]) -> u32 {
        if masks == [0; REST] {
            return 0;
        }
        let next = self.free.last().copied().unwrap_or(self.list.len() as u32);
        let number = *self.numbers.entry(masks).or_insert(next);
        if number == next {
            if self.free.pop().is_some() {
                self.list[number as usize] = RestMask::new(masks);
            } else {
                self.list.push(RestMask::new(masks));
            }
        }
        self.list[number as usize].users += 1;
        number
    }

    fn release(&mut self, number: u32) {
        if number == 0 {
            return;
        }
        let rest = &mut self.list[number as usize];
        rest.users -= 1;
        if rest.users == 0 {
            self.numbers.remove(&rest.masks);
            self.free.push(number);
        }
    }

    fn heap_bytes(&self) -> usize {
        let steps: usize =
            self.list.iter().map(|rest| rest.steps.capacity() * size_of::<([u8; 2], [u64; 2])>()).sum();
        steps
            + self.list.capacity() * size_of::<RestMask>()
            + self.numbers.capacity() * 8 / 7 * (size_of::<([u64; REST], u32)>() + 1)
    }
}

/// Rules in hash tables, one table for each tuple.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub store: Store,
    tables: Vec<Table>,
    free: Vec<u32>,
    order: Order,
    numbers: TupleMap<Tuple>,
    rests: Rests,
    groups: Groups,
}

impl Space {
    pub fn new() -> Space {
        Space {
            store: Store::default(),
            tables: Vec::new(),
            free: Vec::new(),
            order: Order::default(),
            numbers: TupleMap::default(),
            rests: Rests::new(),
            groups: Groups::default(),
        }
    }

    /// The verdict of one key. With `SORTED` the search stops as soon as no table that is left can hold a
    /// better match.
    ///
    /// The loop is small, as it runs once per table and most tables miss; [`Space::visit`] does the rest when a
    /// table may have a match.
    #[inline]
    pub fn search<const SORTED: bool>(&self, key: &Key) -> Verdict {
        self.better::<SORTED>(key, Best::NONE).verdict
    }

    /// Like [`search`](Self::search), but `best` stays unless a rule ranks before it.
    #[inline]
    pub fn better<const SORTED: bool>(&self, key: &Key, mut best: Best) -> Best {
        let first = first_pairs(&key.words);
        let (mut rest, mut rest_hash) = (0, 0);
        for place in self.order.places() {
            if SORTED && best.is_before(place.best) {
                break;
            }
            let table = &self.tables[place.part as usize];
            if table.rest != rest {
                rest = table.rest;
                rest_hash = self.rest_hash(rest, key);
            }
            let hash = table.hash(first, rest_hash);
            if table.may_have(hash) {
                self.visit(table, hash, first, key, &mut best);
            }
        }
        best
    }

    #[inline(never)]
    fn rest_hash(&self, rest: u32, key: &Key) -> u64 {
        self.rests.list[rest as usize].hash(|at| pair(&key.words, 2 + at))
    }

    /// Tries the rules of a table whose key has this hash.
    #[inline(never)]
    fn visit(&self, table: &Table, hash: u64, first: [u64; 2], key: &Key, best: &mut Best) {
        table.probe(hash, |head, _| {
            for &slot in self.groups.of(head) {
                let entry = self.store.entry(slot);
                if best.is_before(entry.rank) {
                    break;
                }
                if self.store.matches(entry, first, key) {
                    *best = Best { rank: entry.rank, verdict: Some(entry.value) };
                    return true;
                }
            }
            false
        });
    }

    /// The table with exactly this tuple; makes one if there is none.
    pub fn table(&mut self, tuple: &Tuple) -> u32 {
        if let Some(&number) = self.numbers.get(tuple) {
            return number;
        }
        let table = Table::new(*tuple, self.rests.intern(tuple.rest));
        let number = if let Some(number) = self.free.pop() {
            self.tables[number as usize] = table;
            number
        } else {
            self.tables.push(table);
            self.tables.len() as u32 - 1
        };
        self.numbers.insert(*tuple, number);
        // An empty table ranks last until it gets its first rule.
        self.order.insert(Place { best: u64::MAX, part: number });
        number
    }

    /// The table with the most bits among those in which a rule with these masks may be, apart from `except`.
    pub fn fitting(&self, masks: &Tuple, except: u32) -> Option<u32> {
        let mut fitting = None;
        let mut bits = 0;
        for place in self.order.places() {
            let table = &self.tables[place.part as usize];
            if table.first_within(masks)
                && (fitting.is_none() || table.bits > bits)
                && (table.rest == 0 || table.tuple.within(masks))
                && place.part != except
            {
                (fitting, bits) = (Some(place.part), table.bits);
            }
        }
        fitting
    }

    /// Numbers of the tables, in order of their number of rules, fewest first.
    pub fn smallest_tables(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.order.parts().collect();
        numbers.sort_by_key(|&number| self.tables[number as usize].rules);
        numbers
    }

    /// The tuple of a table.
    pub fn tuple(&self, number: u32) -> &Tuple {
        &self.tables[number as usize].tuple
    }

    /// Number of rules in a table.
    pub fn len(&self, number: u32) -> usize {
        self.tables[number as usize].rules as usize
    }

    /// All rules of a table.
    pub fn rules(&self, number: u32) -> Vec<u32> {
        let heads = self.tables[number as usize].heads();
        heads.flat_map(|head| self.groups.of(head)).copied().collect()
    }

    /// The rules that a look-up would try together with this rule, if it were in this table; includes the rule
    /// itself.
    pub fn group(&self, slot: u32, number: u32) -> &[u32] {
        let table = &self.tables[number as usize];
        let alike = |head: &Head| Self::alike(&self.store, table, self.groups.of(head)[0], slot);
        let place = table.locate(self.rule_hash(table, slot), alike);
        place.map_or(&[], |place| self.groups.of(table.head(place)))
    }

    fn rule_hash(&self, table: &Table, slot: u32) -> u64 {
        let rest_hash = match self.store.rest(slot) {
            Some(rest) if table.rest != 0 => self.rests.list[table.rest as usize].hash(|at| rest.values[at]),
            _ => 0,
        };
        table.hash(self.store.entry(slot).sample(), rest_hash)
    }

    /// Whether two rules have the same masked key in a table.
    fn alike(store: &Store, table: &Table, one: u32, other: u32) -> bool {
        let (a, b) = (store.entry(one).sample(), store.entry(other).sample());
        let tuple = &table.tuple;
        if ((a[0] ^ b[0]) & tuple.first[0]) | ((a[1] ^ b[1]) & tuple.first[1]) != 0 {
            return false;
        }
        match (store.rest(one), store.rest(other)) {
            (Some(a), Some(b)) => (0..REST).all(|at| (a.values[at] ^ b.values[at]) & tuple.rest[at] == 0),
            // A table without other words compares none.
            _ => true,
        }
    }

    /// Puts a rule into a table whose bits are all in the rule's masks; returns the size of its group.
    pub fn attach(&mut self, slot: u32, number: u32) -> usize {
        let hash = self.rule_hash(&self.tables[number as usize], slot);
        let Space { store, tables, groups, .. } = self;
        store.set_home(slot, number);
        let table = &mut tables[number as usize];
        table.rules += 1;
        let group = match table.locate(hash, |head| Self::alike(store, table, groups.of(head)[0], slot)) {
            Some(at) => groups.join(table.head_mut(at), slot, store),
            None => {
                if table.is_full() {
                    self.resize(number);
                }
                self.tables[number as usize].add(hash, slot);
                1
            }
        };
        let rank = self.store.entry(slot).rank;
        if self.tables[number as usize].rules == 1 || rank < self.tables[number as usize].best {
            self.set_best(number, rank);
        }
        group
    }

    /// Takes a rule out of its table, if it is in one.
    pub fn detach(&mut self, slot: u32) {
        let entry = self.store.entry(slot);
        let (number, rank) = (entry.home, entry.rank);
        if number == NONE {
            return;
        }
        let hash = self.rule_hash(&self.tables[number as usize], slot);
        let Space { store, tables, groups, .. } = self;
        store.set_home(slot, NONE);
        let table = &mut tables[number as usize];
        let place = table.locate(hash, |head| {
            *head == slot || head & GROUP != 0 && Self::alike(store, table, groups.of(head)[0], slot)
        });
        debug_assert!(place.is_some(), "a rule's home has it");
        let Some(at) = place else { return };
        if !groups.leave(table.head_mut(at), slot, store) {
            table.remove(hash, at);
        }
        table.rules -= 1;
        table.worn += 1;
        table.stale |= rank == table.best;
        if table.rules == 0 {
            self.drop_table(number);
        } else if table.is_sparse() {
            self.resize(number);
        }
        self.refresh(number);
    }

    /// Removes a rule from its table and from the store; `false` when no rule has this id.
    pub fn remove(&mut self, id: u32) -> bool {
        let Some(slot) = self.store.find(id) else { return false };
        self.detach(slot);
        self.store.remove(slot);
        true
    }

    /// Changes the precedence of a rule and its position in its group; `false` when no rule has this id.
    pub fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(slot) = self.store.find(id) else { return false };
        let home = self.store.entry(slot).home;
        if home == NONE {
            self.store.set_precedence(slot, precedence);
            return true;
        }
        // If this is the only rule of its table, `detach` drops the table.
        let tuple = self.tables[home as usize].tuple;
        self.detach(slot);
        self.store.set_precedence(slot, precedence);
        let home = self.table(&tuple);
        self.attach(slot, home);
        true
    }

    /// Computes a table's best rank again, but only after so many removals that a pass over the table pays.
    fn refresh(&mut self, number: u32) {
        let table = &mut self.tables[number as usize];
        if table.rules == 0 || !table.stale || table.worn * 4 < table.rules {
            return;
        }
        (table.stale, table.worn) = (false, 0);
        let rank = |head: &Head| self.store.entry(self.groups.of(head)[0]).rank;
        let best = table.heads().map(rank).min().unwrap_or(u64::MAX);
        self.set_best(number, best);
    }

    fn set_best(&mut self, number: u32, best: u64) {
        let table = &mut self.tables[number as usize];
        let old = Place { best: std::mem::replace(&mut table.best, best), part: number };
        self.order.update(old, best);
    }

    fn drop_table(&mut self, number: u32) {
        let table = &self.tables[number as usize];
        self.order.remove(Place { best: table.best, part: number });
        self.numbers.remove(&table.tuple);
        self.rests.release(table.rest);
        self.tables[number as usize].reset(0);
        self.free.push(number);
    }

    /// Moves the heads of a table to a number of buckets that fits them.
    fn resize(&mut self, number: u32) {
        let table = &mut self.tables[number as usize];
        let heads: Vec<Head> = table.heads().copied().collect();
        table.reset(heads.len());
        for head in heads {
            let hash = self.rule_hash(&self.tables[number as usize], self.groups.of(&head)[0]);
            self.tables[number as usize].add(hash, head);
        }
    }

    /// Stores everything anew in order of rank, which is roughly the order of search; every rule keeps its
    /// tuple.
    pub fn relayout(&mut self) {
        let slots = self.store.slots_by_rank();
        let tuples: Vec<Tuple> = self.tables.iter().map(|table| table.tuple).collect();
        let mut fresh = Space::new();
        std::mem::swap(&mut fresh.store, &mut self.store);
        fresh.store.reorder(&slots);
        for slot in 0..slots.len() as u32 {
            let home = fresh.store.entry(slot).home;
            if home != NONE {
                let number = fresh.table(&tuples[home as usize]);
                fresh.attach(slot, number);
            }
        }
        *self = fresh;
    }

    /// Octets of memory in use, this value included.
    pub fn memory_bytes(&self) -> usize {
        let tables: usize = self.tables.iter().map(Table::heap_bytes).sum();
        size_of::<Space>()
            + tables
            + self.tables.capacity() * size_of::<Table>()
            + self.order.heap_bytes()
            + self.numbers.capacity() * 8 / 7 * (size_of::<(Tuple, u32)>() + 1)
            + self.rests.heap_bytes()
            + self.groups.heap_bytes()
            + self.store.heap_bytes()
    }
}

const _: () = assert!(PAIRS == REST + 2);
