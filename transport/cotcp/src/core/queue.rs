//! Whose fragment is next: messages take turns by priority, and none waits for ever.
//!
//! Each message has a *pass*. The one with the lowest goes next, and what it sends moves its pass on: by little when it is
//! urgent, by up to 128 times as much when it is not. A message that was long without a turn therefore comes to the
//! front by itself; one that begins now starts at the pass of the moment, not at zero.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::frame::LEAST_URGENT;

/// Added to what a fragment costs, so that empty ones cost something.
const PER_FRAGMENT: u64 = 64;

/// Messages with something to send, by key.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    turns: BinaryHeap<Reverse<(u64, u64, K)>>,
    /// Those that wait for credit of the connection.
    blocked: Vec<K>,
    /// The pass of whose turn it was last.
    pass: u64,
    /// Among equal passes the one that came first.
    order: u64,
    /// Keys here whose messages were given up.
    pub stale: usize,
}

impl<K: Copy + Ord> Queue<K> {
    pub(crate) fn new() -> Self {
        Self { turns: BinaryHeap::new(), blocked: Vec::new(), pass: 0, order: 0, stale: 0 }
    }

    /// Puts a message in line that was not: it starts now, or where it was when that is later.
    pub(crate) fn push(&mut self, key: K, pass: u64) {
        self.order += 1;
        self.turns.push(Reverse((pass.max(self.pass), self.order, key)));
    }

    /// Whose turn it is, with its pass.
    pub(crate) fn pop(&mut self) -> Option<(K, u64)> {
        let Reverse((pass, _, key)) = self.turns.pop()?;
        self.pass = pass;
        Some((key, pass))
    }

    /// The pass of a message after it sent so many octets.
    pub(crate) fn after(pass: u64, priority: u8, octets: usize) -> u64 {
        pass + ((octets as u64 + PER_FRAGMENT) << priority.min(LEAST_URGENT))
    }

    /// The message waits for credit of the connection.
    pub(crate) fn block(&mut self, key: K) {
        self.blocked.push(key);
    }

    /// There is credit of the connection again.
    pub(crate) fn unblock(&mut self) {
        for key in std::mem::take(&mut self.blocked) {
            self.push(key, 0);
        }
    }

    /// Drops the keys of messages that were given up, when they are the most: a peer could make ever more of them.
    pub(crate) fn tidy(&mut self, mut sends: impl FnMut(K) -> bool) {
        if self.stale > 64 && self.stale * 2 > self.turns.len() + self.blocked.len() {
            self.turns.retain(|Reverse((_, _, key))| sends(*key));
            self.blocked.retain(|key| sends(*key));
            self.stale = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two messages of the same priority alternate; an urgent one gets most and the other still its part.
    #[test]
    fn shares_follow_priority_and_nobody_starves() {
        for (priorities, least, most) in [([3, 3], 49, 51), ([3, 5], 77, 83), ([0, 7], 975, 995)] {
            let mut queue = Queue::new();
            queue.push(0, 0);
            queue.push(1, 0);
            let rounds = if most > 100 { 1000 } else { 100 };
            let mut turns = [0, 0];
            for _ in 0..rounds {
                let (key, pass) = queue.pop().unwrap();
                turns[key] += 1;
                queue.push(key, Queue::<usize>::after(pass, priorities[key], 4096));
            }
            assert!((least..=most).contains(&turns[0]), "{priorities:?}: {turns:?}");
            assert!(turns[1] > 0);
        }
    }

    #[test]
    fn a_new_urgent_message_does_not_wait_and_does_not_get_the_past() {
        let mut queue = Queue::new();
        queue.push(1, 0);
        for _ in 0..1000 {
            let (key, pass) = queue.pop().unwrap();
            queue.push(key, Queue::<usize>::after(pass, 7, 4096));
        }
        queue.push(2, 0);
        let mut turns = Vec::new();
        for _ in 0..4 {
            let (key, pass) = queue.pop().unwrap();
            turns.push(key);
            queue.push(key, Queue::<usize>::after(pass, 7, 4096));
        }
        turns.sort_unstable();
        assert_eq!(turns, [1, 1, 2, 2]);
    }
}
