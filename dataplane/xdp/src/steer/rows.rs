//! Numbers of rows that programs may still read after they are given back.
//!
//! A row that was given back is used again only when all programs that ran then have ended: a *generation* later. Rows that nobody
//! has used come first, so most tables never wait.

use std::collections::VecDeque;

/// Counts grace periods: what was given back in a generation that has passed is read by nobody.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// The generation of what is given back now.
    pub now: u32,
    /// Generations below have passed.
    settled: u32,
}

/// The generation of what no program has ever read.
const UNREAD: u32 = 0;

impl Default for Grace {
    fn default() -> Grace {
        Grace { now: 1, settled: 1 }
    }
}

impl Grace {
    /// A grace period begins: what is given back from now on belongs to another one. Returns what [`Grace::passed`] is told.
    pub fn begin(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// All programs that ran when this grace period began have ended.
    pub fn passed(&mut self, began: u32) {
        self.settled = self.settled.max(began);
    }

    /// Whether what was given back then is read by nobody.
    pub fn is_over(&self, generation: u32) -> bool {
        generation < self.settled
    }
}

/// The numbers of a table's rows.
#[derive(Debug)]
pub struct Rows {
    next: u32,
    end: u32,
    /// Given back, with their generation; the oldest first.
    back: VecDeque<(u32, u32)>,
}

impl Rows {
    /// The rows from `first` on, up to `end`.
    pub fn new(first: u32, end: u32) -> Rows {
        Rows { next: first, end, back: VecDeque::new() }
    }

    /// A row that nobody reads.
    pub fn take(&mut self, grace: Grace) -> Option<u32> {
        if self.next < self.end {
            self.next += 1;
            return Some(self.next - 1);
        }
        match self.back.front() {
            Some((generation, row)) if grace.is_over(*generation) => {
                let row = *row;
                self.back.pop_front();
                Some(row)
            }
            _ => None,
        }
    }

    /// Whether there will be one after a grace period.
    pub fn will_have(&self) -> bool {
        !self.back.is_empty()
    }

    /// Gives a row back.
    pub fn give_back(&mut self, row: u32, grace: Grace) {
        self.back.push_back((grace.now, row));
    }

    /// Gives a row back that no program has read.
    pub fn untake(&mut self, row: u32) {
        self.back.push_front((UNREAD, row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_after_a_grace_period() {
        let (mut rows, mut grace) = (Rows::new(1, 3), Grace::default());
        assert_eq!([rows.take(grace), rows.take(grace), rows.take(grace)], [Some(1), Some(2), None]);
        assert!(!rows.will_have());
        rows.give_back(2, grace);
        assert!(rows.will_have());
        assert_eq!(rows.take(grace), None, "a program may read it");
        let began = grace.begin();
        rows.give_back(1, grace);
        grace.passed(began);
        assert_eq!([rows.take(grace), rows.take(grace)], [Some(2), None], "1 came back after it had begun");
        let began = grace.begin();
        grace.passed(began);
        assert_eq!(rows.take(grace), Some(1));
        rows.untake(1);
        assert_eq!(rows.take(grace), Some(1));
    }
}
