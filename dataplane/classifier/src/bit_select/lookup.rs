//! The look-up.

use super::{BitSelect, COMPLETE, LINK, Row};
use crate::simd::{LookUp, Vector};
use crate::{Key, Verdict};

/// Looks up key by key.
pub(super) struct First;

impl LookUp<BitSelect> for First {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &BitSelect, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = rules.find(vector, key);
        }
    }
}

impl BitSelect {
    /// The best rule for a key.
    #[inline(always)]
    fn find<V: Vector>(&self, vector: V, key: &Key) -> Verdict {
        let (mut best, mut verdict) = (u64::MAX, None);
        for table in &self.tables {
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
                let row = &self.rows[row as usize];
                if row.rank > best {
                    break;
                }
                if self.matches(vector, row, key) {
                    (best, verdict) = (row.rank, Some(row.verdict));
                    break;
                }
            }
        }
        verdict
    }

    #[inline(always)]
    fn matches<V: Vector>(&self, vector: V, row: &Row, key: &Key) -> bool {
        let words = &key.words;
        vector.row(&row.value, &row.mask, &[words[0], words[1], words[3], words[2]])
            && (row.rest == COMPLETE || self.rests.matches(vector, row.rest, key))
    }
}
