//! The look-up.

use super::{BitSelect, COMPLETE, LINK, Row, SECOND, Table};
use crate::simd::{LookUp, Vector};
use crate::{Key, Verdict};

/// Looks up keys one after the other. With `CLASSES`, some tables are for part of the packets only; a variant
/// of its own, because testing for them takes a nanosecond.
pub(super) struct First<const CLASSES: bool>;

impl<const CLASSES: bool> LookUp<BitSelect> for First<CLASSES> {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &BitSelect, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = rules.find(vector, if CLASSES { rules.tables_of(key) } else { &rules.tables }, key);
        }
    }
}

impl BitSelect {
    /// The best rule for a key in these tables.
    #[inline(always)]
    fn find<V: Vector>(&self, vector: V, tables: &[Table], key: &Key) -> Verdict {
        let (mut best, mut verdict) = (u64::MAX, None);
        for table in tables {
            if table.best > best {
                continue;
            }
            let line = table.cells[table.index.of(key, vector)];
            let bits = table.filter.of(key, vector) as u16;
            let mut line = &self.lines[line as usize];
            let mut lanes = vector.filter(&line.masks, &line.values, bits);
            while lanes != 0 {
                let row = line.rows[lanes.trailing_zeros() as usize & 7];
                lanes &= lanes - 1;
                if row & LINK != 0 {
                    line = &self.lines[(row & !LINK) as usize];
                    lanes = vector.filter(&line.masks, &line.values, bits);
                    continue;
                }
                let number = row as usize;
                let row = &self.rows[number];
                if row.rank > best {
                    break;
                }
                if self.matches(vector, number, row, key) {
                    (best, verdict) = (row.rank, Some(row.verdict));
                    break;
                }
            }
        }
        verdict
    }

    /// The tables to search for a key.
    #[inline(always)]
    fn tables_of(&self, key: &Key) -> &[Table] {
        let Some(classes) = &self.classes else { return &self.tables };
        let range =
            if key.words[3] & classes.mask == 0 { 0..classes.common } else { classes.own..self.tables.len() };
        self.tables.get(range).unwrap_or_default()
    }

    #[inline(always)]
    fn matches<V: Vector>(&self, vector: V, number: usize, row: &Row, key: &Key) -> bool {
        let words = &key.words;
        if !vector.row(&row.value, &row.mask, &[words[0], words[1], words[3], words[2]]) {
            return false;
        }
        if row.rest == COMPLETE {
            return true;
        }
        let (Some(second), Some(words)) = (self.seconds.get(number), words[4..].first_chunk()) else {
            return false;
        };
        vector.eight(&second.value, &second.mask, words)
            && (row.rest == SECOND || self.rests.matches(vector, row.rest, key))
    }
}
