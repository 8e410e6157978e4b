//! Building: chooses bits and fills cells.

use super::choose::{self, MAX_OPEN, SMALL, Ternary};
use super::index::Index;
use super::lookup::First;
use super::{ALWAYS, BitSelect, Classes, LINK, Line, MAX_TABLES, NOWHERE, Table, new_line};
use crate::simd::Compiled;
use crate::simd::portable::Portable;

/// Fewer rules do not get a table of their own.
const FEW: usize = 16;

/// A rule that is to be put into a table.
struct Entry {
    row: u32,
    ternary: Ternary,
}

impl BitSelect {
    /// Chooses the tables anew, for the present rules.
    pub(super) fn build(&mut self) {
        let mut rows: Vec<u32> = self.ids.values().copied().collect();
        rows.retain(|row| self.rows[*row as usize].table != NOWHERE);
        // In order of rank throughout, as cells are filled in this order.
        rows.sort_unstable_by_key(|row| self.rows[*row as usize].rank);
        let left: Vec<Entry> =
            rows.into_iter().map(|row| Entry { row, ternary: Ternary::new(&self.matcher(row)) }).collect();
        self.lines.clear();
        self.lines.push(Line::EMPTY);
        self.free_lines = Vec::new();
        self.tables.clear();
        let ternaries: Vec<&Ternary> = left.iter().map(|entry| &entry.ternary).collect();
        let (bit, rules) = (choose::class_bit(&ternaries), left.len());
        self.classes = None;
        if let Some(bit) = bit {
            self.add_classes(bit, left);
        } else {
            let left = self.add_tables(left, choose::away(rules, false));
            self.add_last(left);
        }
        self.look_up = match self.classes {
            Some(_) => Compiled::new::<First<true>>(self.cpu),
            None => Compiled::new::<First<false>>(self.cpu),
        };
        self.strays = 0;
        self.built = self.ids.len();
        self.lines.shrink_to_fit();
    }

    /// Adds tables for rules that require a zero of a bit, for those that leave it open, and for those that
    /// require a one.
    fn add_classes(&mut self, bit: usize, entries: Vec<Entry>) {
        let away = choose::away(entries.len(), true);
        let (zero, others): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.ternary.is(bit, false));
        let (one, mut common): (Vec<Entry>, Vec<Entry>) =
            others.into_iter().partition(|entry| entry.ternary.is(bit, true));
        common.extend(self.add_tables(zero, away));
        // Last in the order, but built first, as the rules that they leave over go to the tables for all
        // packets.
        let before = std::mem::take(&mut self.tables);
        let mut placed: Vec<u32> = one.iter().map(|entry| entry.row).collect();
        let over = self.add_tables(one, away);
        over.iter().for_each(|entry| self.rows[entry.row as usize].table = NOWHERE);
        placed.retain(|row| self.rows[*row as usize].table != NOWHERE);
        common.extend(over);
        let after = std::mem::replace(&mut self.tables, before);
        let own = self.tables.len();
        common.sort_unstable_by_key(|entry| self.rows[entry.row as usize].rank);
        let left = self.add_tables(common, away);
        self.add_last(left);
        let common = self.tables.len();
        self.tables.extend(after);
        for row in placed {
            self.rows[row as usize].table += common as u8;
        }
        self.classes = Some(Classes { mask: 1 << (bit % 32), own, common });
    }

    /// Adds the table with one cell.
    fn add_last(&mut self, mut entries: Vec<Entry>) {
        entries.sort_unstable_by_key(|entry| self.rows[entry.row as usize].rank);
        self.add_table(Index::new(&[]), &choose::Selection::new(), &entries);
    }

    /// Adds tables for rules, which must be sorted by rank. Returns the rules that no table took. `away` is the
    /// cost of leaving a rule to the next table.
    fn add_tables(&mut self, mut left: Vec<Entry>, away: f64) -> Vec<Entry> {
        let first = self.tables.len();
        while left.len() > FEW && self.tables.len() + 1 < first + MAX_TABLES {
            let ternaries: Vec<&Ternary> = left.iter().map(|entry| &entry.ternary).collect();
            let bits = choose::index_bits(&ternaries, away);
            let index = Index::new(&bits);
            let (taken, others): (Vec<Entry>, Vec<Entry>) =
                left.into_iter().partition(|entry| index.spread(&entry.ternary, Portable) <= MAX_OPEN);
            left = others;
            if bits.is_empty() || taken.is_empty() {
                left.extend(taken);
                break;
            }
            self.add_table(index, &bits, &taken);
        }
        left
    }

    fn add_table(&mut self, index: Index, bits: &choose::Selection, entries: &[Entry]) {
        let order: Vec<usize> = bits.iter().map(|bit| index.weight(*bit)).collect();
        let mut cubes = Vec::new();
        let all = (0..entries.len() as u32).collect();
        fill(entries, &index, &order, Cube { base: 0, fixed: 0, members: all }, &mut cubes);
        let ternaries: Vec<&Ternary> = entries.iter().map(|entry| &entry.ternary).collect();
        let cells: Vec<Vec<u32>> = cubes.iter().map(|cube| cube.members.clone()).collect();
        let filter = Index::new(&choose::filter_bits(&ternaries, &cells, bits));
        let best = entries.first().map_or(u64::MAX, |entry| self.rows[entry.row as usize].rank);
        let mut table = Table { cells: vec![0; index.cells()], index, filter, best };
        for cube in &cubes {
            let line = self.chain(entries, &table.filter, &cube.members);
            for cell in cube.cells(table.cells.len()) {
                table.cells[cell] = line;
            }
        }
        let number = self.tables.len() as u8;
        for entry in entries {
            self.rows[entry.row as usize].table = number;
        }
        self.tables.push(table);
    }

    /// Stores rules in a chain of lines and returns the first line; 0 for no rules.
    fn chain(&mut self, entries: &[Entry], filter: &Index, members: &[u32]) -> u32 {
        let mut lanes = members.iter().map(|member| {
            let entry = &entries[*member as usize];
            let (mask, value) = filter.demands(&entry.ternary, Portable);
            (mask as u16, value as u16, entry.row)
        });
        let mut left = members.len();
        if left == 0 {
            return 0;
        }
        let first = new_line(&mut self.lines, &mut self.free_lines);
        let mut line = first;
        loop {
            let here = if left > 8 { 7 } else { left };
            for (lane, entry) in lanes.by_ref().take(here).enumerate() {
                self.lines[line as usize].set(lane, entry);
            }
            left -= here;
            if left == 0 {
                return first;
            }
            let next = new_line(&mut self.lines, &mut self.free_lines);
            self.lines[line as usize].set(7, (ALWAYS.0, ALWAYS.1, LINK | next));
            line = next;
        }
    }
}

/// Cells that have the same rules: all cells in whose number certain bits have certain values.
struct Cube {
    base: usize,
    fixed: usize,
    members: Vec<u32>,
}

impl Cube {
    /// Numbers of the cells, out of `count` cells in all.
    fn cells(&self, count: usize) -> impl Iterator<Item = usize> {
        let (base, open) = (self.base, !self.fixed & (count - 1));
        let mut at = Some(0usize);
        std::iter::from_fn(move || {
            let subset = at?;
            let next = subset.wrapping_sub(open) & open;
            at = (next != 0).then_some(next);
            Some(base | subset)
        })
    }
}

/// Divides a cube by the bits in their order until few rules are left in each part.
fn fill(entries: &[Entry], index: &Index, order: &[usize], cube: Cube, out: &mut Vec<Cube>) {
    let (bit, order) = match order {
        [bit, order @ ..] if cube.members.len() > SMALL => (*bit, order),
        _ => return out.push(cube),
    };
    let (mut zero, mut one) = (Vec::new(), Vec::new());
    for member in cube.members {
        let (mask, value) = index.demands(&entries[member as usize].ternary, Portable);
        if mask & bit == 0 {
            zero.push(member);
            one.push(member);
        } else if value & bit == 0 {
            zero.push(member);
        } else {
            one.push(member);
        }
    }
    let fixed = cube.fixed | bit;
    fill(entries, index, order, Cube { base: cube.base, fixed, members: zero }, out);
    fill(entries, index, order, Cube { base: cube.base | bit, fixed, members: one }, out);
}
