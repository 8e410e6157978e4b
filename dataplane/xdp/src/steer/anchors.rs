//! Outer destinations, and where the lines of their tunnels are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Relaxed, Release};

use pktio::bpf::{BpfError, SharedWords};

use super::lines::NoLine;
use super::records::{self, ANCHOR_IPV4, ANCHOR_IPV6, ANCHOR_PROBES, ANCHOR_REMOVED, ANCHOR_WORDS};
use super::rows::{Grace, Rows};

/// The TEIDs of an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Teids {
    /// Assigned by our own anchor: `count` TEIDs from `first` on have a line each. Others of it are found by hash.
    Own {
        /// The lowest TEID.
        first: u32,
        /// Their number.
        count: u32,
    },
    /// Assigned by somebody else: found by hash.
    Foreign,
}

/// An anchor as this process knows it.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// Its number, which is part of keys.
    pub number: u16,
    row: u32,
    first_teid: u32,
    teids: u32,
    first_line: u32,
    /// Its entries.
    pub entries: u32,
}

impl Anchor {
    /// The line that the TEID has for itself, if it has one.
    pub fn own_line(&self, teid: u32) -> Option<u32> {
        let offset = teid.wrapping_sub(self.first_teid);
        (offset < self.teids).then(|| self.first_line + offset)
    }
}

/// All anchors, with the table that programs read.
#[derive(Debug)]
pub struct Anchors {
    words: SharedWords,
    mask: u32,
    limit: usize,
    by_address: HashMap<IpAddr, Anchor>,
    numbers: Rows,
    /// Of each row: the generation in which it was given back.
    removed: Vec<Option<u32>>,
    /// Ranges of lines that no anchor has: first line, count, generation.
    ranges: Vec<(u32, u32, u32)>,
}

impl Anchors {
    /// A table for `limit` anchors, whose own TEIDs have lines from `first_line` on.
    pub fn new(limit: u32, first_line: u32, lines: u32) -> Result<Anchors, BpfError> {
        // A quarter full at most, so that nearly every address is found in the first row.
        let rows = (limit.max(4) * 4).next_power_of_two();
        Ok(Anchors {
            words: SharedWords::new(rows as usize * ANCHOR_WORDS * 8)?,
            mask: rows - 1,
            limit: limit as usize,
            by_address: HashMap::new(),
            numbers: Rows::new(1, limit + 1),
            removed: vec![None; rows as usize],
            ranges: vec![(first_line, lines, 0)],
        })
    }

    /// The table, and the mask of its rows' numbers.
    pub fn memory(&self) -> (&SharedWords, u32) {
        (&self.words, self.mask)
    }

    pub fn get(&self, address: IpAddr) -> Option<&Anchor> {
        self.by_address.get(&address)
    }

    pub fn get_mut(&mut self, address: IpAddr) -> Option<&mut Anchor> {
        self.by_address.get_mut(&address)
    }

    /// Whether so many TEIDs in succession have lines that no anchor has.
    pub fn has_range(&self, count: u32) -> bool {
        count == 0 || self.ranges.iter().any(|range| range.1 >= count)
    }

    /// Adds an anchor, which is not there yet.
    pub fn add(&mut self, address: IpAddr, teids: Teids, grace: Grace) -> Result<(), NoLine> {
        if self.by_address.len() >= self.limit {
            return Err(NoLine::Full);
        }
        let row = self.free_row(address, grace)?;
        let (first_teid, teids) = match teids {
            Teids::Own { first, count } => (first, count),
            Teids::Foreign => (0, 0),
        };
        let range = self.free_range(teids, grace)?;
        let Some(number) = self.numbers.take(grace) else {
            return Err(if self.numbers.will_have() { NoLine::Later } else { NoLine::Full });
        };
        let first_line = range.map_or(0, |range| self.take_range(range, teids));
        let words = &self.words.words()[row as usize * ANCHOR_WORDS..][..ANCHOR_WORDS];
        for (word, part) in words.iter().zip(records::address_words(address)) {
            word.store(part, Relaxed);
        }
        words[2].store(u64::from(first_teid) | u64::from(teids) << 32, Relaxed);
        let state = if address.is_ipv6() { ANCHOR_IPV6 } else { ANCHOR_IPV4 };
        let last = u64::from(first_line) | u64::from(number) << 32 | state << 48;
        words[3].store(last, Release);
        self.removed[row as usize] = None;
        let number = number as u16;
        let anchor = Anchor { number, row, first_teid, teids, first_line, entries: 0 };
        self.by_address.insert(address, anchor);
        Ok(())
    }

    /// Removes an anchor.
    pub fn remove(&mut self, address: IpAddr, grace: Grace) {
        let Some(anchor) = self.by_address.remove(&address) else { return };
        let words = &self.words.words()[anchor.row as usize * ANCHOR_WORDS..][..ANCHOR_WORDS];
        words[3].store(ANCHOR_REMOVED << 48, Release);
        self.removed[anchor.row as usize] = Some(grace.now);
        self.numbers.give_back(anchor.number.into(), grace);
        if anchor.teids > 0 {
            self.ranges.push((anchor.first_line, anchor.teids, grace.now));
            self.join_ranges();
        }
    }

    fn free_row(&self, address: IpAddr, grace: Grace) -> Result<u32, NoLine> {
        let hash = records::anchor_hash(address);
        let mut later = false;
        for probe in 0..ANCHOR_PROBES {
            let row = hash.wrapping_add(probe) & self.mask;
            let state = self.words.words()[row as usize * ANCHOR_WORDS + 3].load(Relaxed) >> 48;
            match (state, self.removed[row as usize]) {
                (0, _) => return Ok(row),
                (ANCHOR_REMOVED, Some(generation)) if grace.is_over(generation) => return Ok(row),
                (ANCHOR_REMOVED, _) => later = true,
                _ => {}
            }
        }
        Err(if later { NoLine::Later } else { NoLine::Full })
    }

    /// Which range has so many lines.
    fn free_range(&self, count: u32, grace: Grace) -> Result<Option<usize>, NoLine> {
        if count == 0 {
            return Ok(None);
        }
        let fits = |range: &(u32, u32, u32)| range.1 >= count;
        match self.ranges.iter().position(|range| fits(range) && grace.is_over(range.2)) {
            Some(range) => Ok(Some(range)),
            None if self.ranges.iter().any(fits) => Err(NoLine::Later),
            None => Err(NoLine::Full),
        }
    }

    fn take_range(&mut self, range: usize, count: u32) -> u32 {
        let (first, length, generation) = self.ranges[range];
        self.ranges[range] = (first + count, length - count, generation);
        self.ranges.retain(|range| range.1 > 0);
        first
    }

    fn join_ranges(&mut self) {
        self.ranges.sort_unstable();
        let mut joined: Vec<(u32, u32, u32)> = Vec::new();
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last) if last.0 + last.1 == range.0 => {
                    last.1 += range.1;
                    last.2 = last.2.max(range.2);
                }
                _ => joined.push(range),
            }
        }
        self.ranges = joined;
    }
}
