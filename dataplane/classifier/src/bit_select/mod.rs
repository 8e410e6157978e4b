//! Some bits of the packet that tell rules apart form the number of a cell, and every cell has few rules. The
//! default for more than about sixty rules.
//!
//! ```text
//! key ─PEXT→ number of the cell → line: up to 8 rules, 16 bits of each → row: the whole rule
//! ```
//! A table uses as many chosen bits as leave about eight rules in a cell ([`choose`]). A rule is in every cell
//! whose number fits it. A rule that leaves too many of the bits open is in the next table, which chose its
//! bits for the rules left over, and so on. Rules that no table took are in the last table, which has one cell.
//! A look-up goes through all tables whose best rule is better than the match so far.
//!
//! Rules with the fields of PDRs are of kinds that use different words, above all IPv6 and IPv4. A bit that
//! tells the rules of one kind apart is open in all others, which would be copied or left over. So where a bit
//! of word 3 separates two kinds, each kind has its own tables. Four kinds, by source interface or protocol as
//! well, were slower below 100k rules: each kind leaves some rules over, which need further tables.
//!
//! Beyond a thousand rules, look-up time is cache misses and mispredicted branches. So cells do not hold copies
//! of rules. A cell's line holds the numbers of the rules' rows, with the 16 bits of each that best tell apart
//! rules in one cell of the table: one comparison shows which of eight rows are worth reading. With generated
//! 5-tuple rules a packet reads one to three lines and one or two rows. Fields for which a row has no room are
//! in a second row at the same index, so that both can be fetched at once; only Ethernet and the end of IPv6
//! addresses are in records ([`Rests`]). Measurements showed no gain from: collecting the candidates of all
//! tables before reading a row; prefetching for a whole batch, or for a packet's lines in all tables; storing
//! the best rank of a cell beside its line.
//!
//! Woo used bits that tell rules apart ("A modular approach to packet classification: algorithms and results",
//! INFOCOM 2000); DBTable does with several tables (J. Liao et al., "DBTable: Leveraging Discriminative Bitsets
//! for High-Performance Packet Classification", IEEE/ACM Transactions on Networking, 2024). Differences: cells
//! hold references with a second-level filter; a rule with open bits is copied or left to the next table,
//! whichever costs look-ups less; cells of a table merge where few rules are.
//!
//! An update changes one row and the lines of the rule's cells, in place: some hundred nanoseconds, most of
//! them for rules in many cells. The chosen bits stay. `optimise` chooses them anew, and so does an insertion
//! into a structure that has become more than twice as large as when it was built.
//!
//! Invariants: line 0 is empty and is the cell of no rule. A line's rules are sorted by rank, also along a
//! chain. A row knows its table. `Table::best` is at most the rank of every rule in the table.

mod build;
mod choose;
mod index;
mod lookup;

use std::ops::Range;

use crate::ids::{IdMap, map_bytes};
use crate::matcher::{Ranked, common};
use crate::rule::rank;
use crate::simd::{Compiled, Cpu, Kernel, Rests, Scan, Vector};
use crate::store::PAIRS;
use crate::{Classifier, InsertError, Key, Matcher, Rule, Verdict};

use choose::{MAX_OPEN, Ternary};
use index::Index;

/// Most tables, the last one included.
const MAX_TABLES: usize = 16;
/// [`Row::rest`]: the row holds all fields of the rule.
const COMPLETE: u32 = u32::MAX;
/// [`Row::rest`]: the row and its second row hold all fields of the rule.
const SECOND: u32 = u32::MAX - 1;
/// Words 0 to 3, which are in the row.
const IN_ROW: u32 = 0b1111;
/// Words 4 to 11, which are in the second row; the others are in a record.
const IN_SECOND: u32 = 0b1111_1111_0000;

/// A classifier of tables of cells.
#[derive(Clone, Debug)]
pub struct BitSelect {
    cpu: Cpu,
    look_up: Compiled<BitSelect>,
    rows: Vec<Row>,
    /// The second row for every row; empty when no rule needs one.
    seconds: Vec<Second>,
    free_rows: Vec<u32>,
    lines: Vec<Line>,
    free_lines: Vec<u32>,
    /// `None` when all rules are of one kind.
    classes: Option<Classes>,
    /// Never empty.
    tables: Vec<Table>,
    rests: Rests,
    ids: IdMap<u32>,
    /// Number of rules when the tables were built.
    built: usize,
    /// Number of rules inserted since that fit only the last table.
    strays: usize,
}

/// A rule, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Row {
    /// Words 0, 1 and 3, and the first ports.
    value: [u32; 4],
    /// The masks of these words, and the lengths of the port ranges.
    mask: [u32; 4],
    rank: u64,
    verdict: u32,
    /// Number of the record with the other words, or [`SECOND`] or [`COMPLETE`].
    rest: u32,
    /// Number of the table, or [`NOWHERE`].
    table: u8,
}

impl Row {
    /// First and last of the ports at bit `shift`: 16 for the source, 0 for the destination.
    #[inline(always)]
    fn ports(&self, shift: u32) -> (u16, u16) {
        let first = (self.value[3] >> shift) as u16;
        (first, first + (self.mask[3] >> shift) as u16)
    }
}

/// The words 4 to 11 of a rule, which most rules of a UPF use. One cache line, found without reading the row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Second {
    value: [u32; 8],
    mask: [u32; 8],
}

impl Second {
    const ALL: Second = Second { value: [0; 8], mask: [0; 8] };

    fn new(matcher: &Matcher) -> Second {
        let words = |words: &[u32; 2 * PAIRS]| std::array::from_fn(|at| words[4 + at]);
        Second { value: words(&matcher.value), mask: words(&matcher.mask) }
    }
}

/// [`Row::table`] of a rule that can never match.
const NOWHERE: u8 = u8::MAX;

/// Up to eight rules of a cell, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    /// Bits of the table's filter that each rule requires.
    masks: [u16; 8],
    values: [u16; 8],
    /// Numbers of rows; the last lane may hold [`LINK`] and the number of the next line.
    rows: [u32; 8],
}

/// Marks a lane that holds the number of the next line.
const LINK: u32 = 1 << 31;
/// An empty lane: no key matches it.
const FREE: (u16, u16, u32) = (0, 1, u32::MAX);
/// Filter of the lane with the next line: every key matches it.
const ALWAYS: (u16, u16) = (0, 0);

impl Line {
    const EMPTY: Line = Line { masks: [FREE.0; 8], values: [FREE.1; 8], rows: [FREE.2; 8] };

    fn lane(&self, lane: usize) -> (u16, u16, u32) {
        (self.masks[lane], self.values[lane], self.rows[lane])
    }

    fn set(&mut self, lane: usize, (mask, value, row): (u16, u16, u32)) {
        (self.masks[lane], self.values[lane], self.rows[lane]) = (mask, value, row);
    }

    /// Number of the next line of the chain.
    fn next(&self) -> Option<u32> {
        let last = self.rows[7];
        (last != FREE.2 && last & LINK != 0).then_some(last & !LINK)
    }

    /// Number of lanes with rules.
    fn len(&self) -> usize {
        self.rows.iter().take_while(|row| **row & LINK == 0).count()
    }
}

/// Rules of two kinds, separated by a bit of word 3, have their own tables.
///
/// `tables` has those of one kind, then those for all packets, then those of the other kind. So the tables for
/// any packet are contiguous.
#[derive(Clone, Copy, Debug)]
struct Classes {
    /// The bit, as a mask.
    mask: u32,
    /// Tables before this index are only for packets without the bit.
    own: usize,
    /// Tables for all packets end at this index. The last of them has one cell.
    common: usize,
}

#[derive(Clone, Debug)]
struct Table {
    index: Index,
    filter: Index,
    cells: Vec<u32>,
    best: u64,
}

impl Table {
    /// A table with one cell.
    fn last() -> Table {
        Table { index: Index::new(&[]), filter: Index::new(&[]), cells: vec![0], best: u64::MAX }
    }
}

impl Default for BitSelect {
    fn default() -> BitSelect {
        let cpu = Cpu::default();
        BitSelect {
            cpu,
            look_up: Compiled::new::<lookup::First<false>>(cpu),
            rows: Vec::new(),
            seconds: Vec::new(),
            free_rows: Vec::new(),
            lines: vec![Line::EMPTY],
            free_lines: Vec::new(),
            classes: None,
            tables: vec![Table::last()],
            rests: Rests::default(),
            ids: IdMap::default(),
            built: 0,
            strays: 0,
        }
    }
}

impl BitSelect {
    /// A classifier without rules.
    pub fn new() -> BitSelect {
        BitSelect::default()
    }

    /// Allocates room for exactly this many rules: rows take most of the memory.
    fn reserve(&mut self, rules: usize) {
        self.ids.reserve(rules);
        self.rows.reserve_exact(rules.saturating_sub(self.free_rows.len()));
    }

    /// Puts a rule into a row; not yet into a table.
    fn add_row(&mut self, rule: &Ranked) -> u32 {
        let matcher = &rule.matcher;
        let used = matcher.used_words();
        let more = used & !IN_ROW & !IN_SECOND;
        let (source, destination) = (matcher.source_ports, matcher.destination_ports);
        let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let row = Row {
            value: [matcher.value[0], matcher.value[1], matcher.value[3], pair(source.0, destination.0)],
            mask: [
                matcher.mask[0],
                matcher.mask[1],
                matcher.mask[3],
                pair(source.1 - source.0, destination.1 - destination.0),
            ],
            rank: rule.rank,
            verdict: rule.value,
            rest: if used & !IN_ROW == 0 {
                COMPLETE
            } else if more == 0 {
                SECOND
            } else {
                self.rests.add(rule.value, matcher, more)
            },
            table: NOWHERE,
        };
        let at = self.free_rows.pop().unwrap_or_else(|| {
            self.rows.push(row);
            self.rows.len() as u32 - 1
        });
        self.rows[at as usize] = row;
        if used & !IN_ROW != 0 || !self.seconds.is_empty() {
            // Extends the second rows to all rows when the first rule needs one.
            if self.seconds.len() < self.rows.len() {
                if self.seconds.is_empty() {
                    self.seconds.reserve_exact(self.rows.capacity());
                }
                self.seconds.resize(self.rows.len(), Second::ALL);
            }
            self.seconds[at as usize] = Second::new(matcher);
        }
        at
    }

    /// The bits that the rule in a row requires.
    #[inline(always)]
    fn ternary(&self, row: u32) -> Ternary {
        let here = &self.rows[row as usize];
        if here.rest < SECOND {
            return Ternary::new(&self.matcher(row));
        }
        // The row itself has everything; making a matcher first would cost more than the update.
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let ports = common(here.ports(16)) << 16 | common(here.ports(0));
        let mut ternary = Ternary { mask: [0; PAIRS], value: [0; PAIRS] };
        ternary.mask[0] = pair(here.mask[0], here.mask[1]);
        ternary.value[0] = pair(here.value[0], here.value[1]);
        ternary.mask[1] = pair(ports, here.mask[2]);
        ternary.value[1] = pair(here.value[3] & ports, here.value[2]);
        if let Some(second) = self.seconds.get(row as usize) {
            for at in 0..4 {
                ternary.mask[2 + at] = pair(second.mask[2 * at], second.mask[2 * at + 1]);
                ternary.value[2 + at] = pair(second.value[2 * at], second.value[2 * at + 1]);
            }
        }
        ternary
    }

    /// The matcher of the rule in a row.
    fn matcher(&self, row: u32) -> Matcher {
        let second = self.seconds.get(row as usize);
        let row = &self.rows[row as usize];
        let mut matcher = Matcher::ALL;
        for (from, to) in [(0, 0), (1, 1), (2, 3)] {
            (matcher.mask[to], matcher.value[to]) = (row.mask[from], row.value[from]);
        }
        (matcher.source_ports, matcher.destination_ports) = (row.ports(16), row.ports(0));
        if let Some(second) = second {
            matcher.mask[4..12].copy_from_slice(&second.mask);
            matcher.value[4..12].copy_from_slice(&second.value);
        }
        if row.rest < SECOND {
            self.rests.read(row.rest, &mut matcher);
        }
        matcher
    }

    /// All rules, in any order.
    pub(crate) fn ranked(&self) -> Vec<Ranked> {
        let rows = self.ids.values().map(|row| (*row, &self.rows[*row as usize]));
        rows.map(|(at, row)| Ranked { rank: row.rank, value: row.verdict, matcher: self.matcher(at) })
            .collect()
    }

    /// A classifier with these rules; no two may have the same id.
    pub(crate) fn of(rules: &[Ranked]) -> BitSelect {
        let mut these = BitSelect::new();
        these.reserve(rules.len());
        for rule in rules {
            these.add(rule);
        }
        these.build();
        these
    }

    /// Adds a rule, which the next [`build`](Self::build) puts into a table.
    fn add(&mut self, rule: &Ranked) {
        let row = self.add_row(rule);
        self.rows[row as usize].table = if rule.matcher == Matcher::NEVER { NOWHERE } else { 0 };
        self.ids.insert(rule.rank as u32, row);
    }

    /// Puts the rule of a row into the first table that takes it.
    #[inline(always)]
    fn place<S: Scan>(&mut self, scan: S, row: u32, ternary: &Ternary) {
        let last = self.last();
        let mut at = last;
        'found: for tables in self.tables_for(ternary) {
            for table in tables {
                if self.tables[table].index.spread(ternary, scan) <= MAX_OPEN {
                    at = table;
                    break 'found;
                }
            }
        }
        self.strays += usize::from(at == last);
        self.rows[row as usize].table = at as u8;
        let rank = self.rows[row as usize].rank;
        let table = &mut self.tables[at];
        table.best = table.best.min(rank);
        let (mask, value) = table.filter.demands(ternary, scan);
        for cell in table.index.cells_of(ternary, scan) {
            let line = &mut self.tables[at].cells[cell];
            if *line == 0 {
                *line = new_line(&mut self.lines, &mut self.free_lines);
            }
            let line = *line;
            self.insert_into(line, (mask as u16, value as u16, row));
        }
    }

    /// Inserts a lane into a chain of lines, unless it is there already: neighbouring cells may share their
    /// line.
    fn insert_into(&mut self, mut line: u32, mut entry: (u16, u16, u32)) {
        let rank = self.rows[entry.2 as usize].rank;
        loop {
            let length = self.lines[line as usize].len();
            let next = self.lines[line as usize].next();
            let rows = &self.lines[line as usize].rows[..length];
            let before = |row: &u32| self.rows[*row as usize].rank < rank;
            let lane = rows.partition_point(before);
            if rows.get(lane) == Some(&entry.2) {
                return;
            }
            if let (true, Some(next)) = (lane == length, next) {
                line = next;
                continue;
            }
            let here = &mut self.lines[line as usize];
            if length < 8 - usize::from(next.is_some()) {
                here.open(lane, length, entry);
                return;
            }
            // The line is full: its last rule moves to the next line, a new one if there is none.
            let next = next.unwrap_or_else(|| {
                let next = new_line(&mut self.lines, &mut self.free_lines);
                let here = &mut self.lines[line as usize];
                let last = here.lane(7);
                here.set(7, (ALWAYS.0, ALWAYS.1, LINK | next));
                self.lines[next as usize].set(0, last);
                next
            });
            if lane == 8 {
                // There was no next line, and the rule comes after the one that moved there.
                self.lines[next as usize].set(1, entry);
                return;
            }
            let here = &mut self.lines[line as usize];
            if lane < 7 {
                let moved = here.lane(6);
                here.open(lane, 6, entry);
                entry = moved;
            }
            // The rule that moves comes before all rules there.
            self.push_front(next, entry);
            return;
        }
    }

    /// Inserts a lane at the front of a chain.
    fn push_front(&mut self, mut line: u32, mut entry: (u16, u16, u32)) {
        loop {
            let here = &mut self.lines[line as usize];
            let (length, next) = (here.len(), here.next());
            if length < 8 - usize::from(next.is_some()) {
                here.open(0, length, entry);
                return;
            }
            if let Some(next) = next {
                let moved = here.lane(6);
                here.open(0, 6, entry);
                (line, entry) = (next, moved);
            } else {
                let (moved, last) = (here.lane(6), here.lane(7));
                here.open(0, 6, entry);
                let next = new_line(&mut self.lines, &mut self.free_lines);
                self.lines[line as usize].set(7, (ALWAYS.0, ALWAYS.1, LINK | next));
                self.lines[next as usize].set(0, moved);
                self.lines[next as usize].set(1, last);
                return;
            }
        }
    }

    /// Takes the rule of a row out of its table.
    #[inline(always)]
    fn displace<S: Scan>(&mut self, scan: S, row: u32) {
        let at = usize::from(self.rows[row as usize].table);
        if at >= self.tables.len() {
            return;
        }
        if at == self.last() {
            self.strays = self.strays.saturating_sub(1);
        }
        let ternary = self.ternary(row);
        for cell in self.tables[at].index.cells_of(&ternary, scan) {
            self.remove_from(self.tables[at].cells[cell], row);
        }
    }

    /// Removes a row from a chain, if it is there.
    fn remove_from(&mut self, mut line: u32, row: u32) {
        let mut previous = None;
        loop {
            let here = &mut self.lines[line as usize];
            let length = here.len();
            if let Some(lane) = here.rows[..length].iter().position(|present| *present == row) {
                here.close(lane, length);
                if let (1, Some(previous)) = (length, previous) {
                    self.unlink(previous, line);
                }
                return;
            }
            previous = Some(line);
            match here.next() {
                Some(next) => line = next,
                None => return,
            }
        }
    }

    /// Removes a line without rules from its chain.
    fn unlink(&mut self, previous: u32, line: u32) {
        let last = match self.lines[line as usize].next() {
            Some(next) => (ALWAYS.0, ALWAYS.1, LINK | next),
            None => FREE,
        };
        self.lines[previous as usize].set(7, last);
        self.free_lines.push(line);
    }

    /// Index of the table with one cell.
    fn last(&self) -> usize {
        self.classes.map_or(self.tables.len(), |classes| classes.common) - 1
    }

    /// The other tables that may hold a rule, in order of preference.
    #[inline(always)]
    fn tables_for(&self, rule: &Ternary) -> [Range<usize>; 2] {
        let Some(classes) = self.classes else { return [0..self.tables.len() - 1, 0..0] };
        let mask = u64::from(classes.mask) << 32;
        let own = match (rule.mask[1] & mask, rule.value[1] & mask) {
            (0, _) => 0..0,
            (_, 0) => 0..classes.own,
            _ => classes.common..self.tables.len(),
        };
        [own, classes.own..classes.common - 1]
    }

    /// Whether the rules have changed too much since the tables were built.
    fn is_worn(&self) -> bool {
        self.ids.len() > 2 * self.built + 64 || self.strays > 64 + self.ids.len() / 16
    }
}

impl Line {
    /// Shifts the lanes from `lane` on, of `length` lanes, by one and sets `lane`.
    fn open(&mut self, lane: usize, length: usize, entry: (u16, u16, u32)) {
        self.masks.copy_within(lane..length, lane + 1);
        self.values.copy_within(lane..length, lane + 1);
        self.rows.copy_within(lane..length, lane + 1);
        self.set(lane, entry);
    }

    /// Shifts the lanes behind `lane`, of `length` lanes, back by one.
    fn close(&mut self, lane: usize, length: usize) {
        self.masks.copy_within(lane + 1..length, lane);
        self.values.copy_within(lane + 1..length, lane);
        self.rows.copy_within(lane + 1..length, lane);
        self.set(length - 1, FREE);
    }
}

fn new_line(lines: &mut Vec<Line>, free: &mut Vec<u32>) -> u32 {
    if let Some(line) = free.pop() {
        lines[line as usize] = Line::EMPTY;
        return line;
    }
    lines.push(Line::EMPTY);
    lines.len() as u32 - 1
}

/// How the table of a rule changes.
enum Step {
    Insert,
    Remove,
    SetRank(u64),
}

/// A [`Step`] of the rule in a row, compiled for the instructions of look-ups.
struct Update<'a> {
    classifier: &'a mut BitSelect,
    row: u32,
    step: Step,
}

impl Kernel for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) {
        let Update { classifier, row, step } = self;
        match step {
            Step::Insert => {
                let ternary = classifier.ternary(row);
                classifier.place(vector, row, &ternary);
            }
            Step::Remove => classifier.displace(vector, row),
            Step::SetRank(rank) => {
                classifier.displace(vector, row);
                let here = &mut classifier.rows[row as usize];
                here.rank = rank;
                if here.table != NOWHERE {
                    let ternary = classifier.ternary(row);
                    classifier.place(vector, row, &ternary);
                }
            }
        }
    }
}

impl Classifier for BitSelect {
    #[inline]
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        self.look_up.call(self, keys, verdicts);
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.ids.contains_key(&rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        let rule = Ranked::new(&rule);
        let row = self.add_row(&rule);
        self.ids.insert(rule.rank as u32, row);
        if rule.matcher != Matcher::NEVER {
            self.cpu.run(Update { classifier: self, row, step: Step::Insert });
        }
        if self.is_worn() {
            self.build();
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(row) = self.ids.remove(&id) else { return false };
        self.cpu.run(Update { classifier: self, row, step: Step::Remove });
        let rest = self.rows[row as usize].rest;
        if rest < SECOND {
            self.rests.remove(rest);
        }
        self.free_rows.push(row);
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(&row) = self.ids.get(&id) else { return false };
        self.cpu.run(Update { classifier: self, row, step: Step::SetRank(rank(precedence, id)) });
        true
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        if rules.len() < 64 + self.ids.len() / 2 {
            return rules.iter().try_for_each(|rule| self.insert(*rule));
        }
        self.reserve(rules.len());
        let present = rules.iter().position(|rule| {
            let present = self.ids.contains_key(&rule.id);
            if !present {
                self.add(&Ranked::new(rule));
            }
            present
        });
        self.build();
        present.map_or(Ok(()), |at| Err(InsertError::Exists(rules[at].id)))
    }

    fn optimise(&mut self) {
        self.build();
    }

    fn len(&self) -> usize {
        self.ids.len()
    }

    fn memory_bytes(&self) -> usize {
        let tables: usize =
            self.tables.iter().map(|table| size_of::<Table>() + table.cells.capacity() * 4).sum();
        size_of::<BitSelect>()
            + tables
            + self.rows.capacity() * size_of::<Row>()
            + self.seconds.capacity() * size_of::<Second>()
            + self.lines.capacity() * size_of::<Line>()
            + (self.free_rows.capacity() + self.free_lines.capacity()) * 4
            + self.rests.heap_bytes()
            + map_bytes(&self.ids)
    }
}
