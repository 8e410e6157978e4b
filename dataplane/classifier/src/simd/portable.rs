//! Comparison of lanes in plain loops, for CPUs without AVX2, and as the reference in tests of the other sets.
//! Compilers use the vector instructions that every CPU of the target has.

use super::block::code;
use super::isa::{HotColumns, Vector};
use super::rows::Row;
use crate::key::WORDS;

/// Instructions that every CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Vector for Portable {
    type Probe = [u32; 4];

    #[inline(always)]
    fn probe(self, words: &[u32; WORDS]) -> [u32; 4] {
        [words[0], words[1], words[2], words[3]]
    }

    #[inline(always)]
    fn candidates<const USED: usize, const N: usize>(self, columns: &HotColumns<N>, probe: &[u32; 4]) -> u32 {
        let differs: [u32; USED] = std::array::from_fn(|lane| {
            let rule = columns.code[lane];
            let exact = (rule as i32 >> 31) as u32;
            let counts = rule & code::FLAGS | exact & code::PROTOCOL;
            let source = shifted(columns.source[lane] ^ probe[0], rule >> code::SOURCE_SHIFT & 0xFF);
            let destination =
                shifted(columns.destination[lane] ^ probe[1], rule >> code::DESTINATION_SHIFT & 0xFF);
            let ports = outside(probe[2], columns.first_ports[lane], columns.span_ports[lane]);
            source | destination | ports | (rule ^ probe[3]) & counts
        });
        mask(&differs, |differs| differs == 0)
    }

    type Picked = [u32; 8];

    #[inline(always)]
    fn pick(self, words: &[u32; 16], places: &[u32; 8]) -> [u32; 8] {
        places.map(|place| words[place as usize % 16])
    }

    #[inline(always)]
    fn row_matches(self, row: &Row, picked: &[u32; 8]) -> bool {
        let words = picked.iter().zip(row.masks.iter().zip(&row.values));
        words.fold(0, |differs, (word, (mask, value))| differs | (word & mask ^ value)) == 0
    }

    #[inline(always)]
    fn rest_matches(self, words: &[u32; 16], which: u16, pairs: &[u32]) -> bool {
        let mut left = which;
        let (masks, values) = pairs.split_at(pairs.len() / 2);
        for (mask, value) in masks.iter().zip(values) {
            if words[left.trailing_zeros() as usize & 15] & mask != *value {
                return false;
            }
            left &= left.wrapping_sub(1);
        }
        true
    }

    #[inline(always)]
    fn equal<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        mask(column, |lane| lane == value)
    }

    #[inline(always)]
    fn less<const N: usize>(self, column: &[u32; N], value: u32) -> u32 {
        mask(column, |lane| lane < value)
    }

    #[inline(always)]
    fn insert<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        let old = *column;
        for (at, place) in column.iter_mut().enumerate() {
            *place = match at {
                at if at < lane => old[at],
                at if at == lane => value,
                _ => old[at - 1],
            };
        }
    }

    #[inline(always)]
    fn remove<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32) {
        let old = *column;
        for (at, place) in column.iter_mut().enumerate() {
            let from = if at < lane { at } else { at + 1 };
            *place = if from < N { old[from] } else { value };
        }
    }
}

#[inline(always)]
fn mask<const N: usize>(column: &[u32; N], holds: impl Fn(u32) -> bool) -> u32 {
    (0..N).fold(0, |mask, lane| mask | u32::from(holds(column[lane])) << lane)
}

/// A right shift; zero when `by` is 32 or more.
#[inline(always)]
fn shifted(word: u32, by: u32) -> u32 {
    (u64::from(word) >> (by & 63)) as u32
}

/// Nonzero when one of two ports is outside its range: its distance from the first port, modulo 2^16, exceeds
/// the span.
#[inline(always)]
fn outside(ports: u32, first: u32, span: u32) -> u32 {
    let one = |ports: u16, first: u16, span: u16| u32::from(ports.wrapping_sub(first).saturating_sub(span));
    one(ports as u16, first as u16, span as u16)
        | one((ports >> 16) as u16, (first >> 16) as u16, (span >> 16) as u16)
}
