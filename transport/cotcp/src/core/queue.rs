//! The order of fragments: messages take turns by priority, and no message waits for ever.
//!
//! Each message has a *pass*. The message with the lowest pass sends next, and each fragment raises its pass:
//! by little when the message is urgent, by up to 128 times as much when it is not. A message that waited
//! long therefore comes to the front. A new message starts at the current pass, not at zero.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::frame::LEAST_URGENT;

/// Added to the cost of a fragment, so that empty fragments cost something.
const PER_FRAGMENT: u64 = 64;

/// Messages with something to send, by key.
#[derive(Debug)]
pub(crate) struct Queue<K> {
    turns: BinaryHeap<Reverse<(u64, u64, K)>>,
    /// Messages that wait for credit of the connection.
    blocked: Vec<K>,
    /// Pass of the message that sent last.
    pass: u64,
    /// Breaks ties among equal passes: first come, first served.
    order: u64,
    /// Number of keys in the queue whose messages were dropped.
    pub stale: usize,
}

impl<K: Copy + Ord> Queue<K> {
    pub(crate) fn new() -> Self {
        Self { turns: BinaryHeap::new(), blocked: Vec::new(), pass: 0, order: 0, stale: 0 }
    }

    /// Enters a message at the current pass, or at its own when that is higher.
    pub(crate) fn push(&mut self, key: K, pass: u64) {
        self.order += 1;
        self.turns.push(Reverse((pass.max(self.pass), self.order, key)));
    }

    /// Removes the message whose turn it is and returns it with its pass.
    pub(crate) fn pop(&mut self) -> Option<(K, u64)> {
        let Reverse((pass, _, key)) = self.turns.pop()?;
        self.pass = pass;
        Some((key, pass))
    }

    /// The pass of a message after it has sent this many octets.
    pub(crate) fn after(pass: u64, priority: u8, octets: usize) -> u64 {
        pass + ((octets as u64 + PER_FRAGMENT) << priority.min(LEAST_URGENT))
    }

    /// Records that a message waits for credit of the connection.
    pub(crate) fn block(&mut self, key: K) {
        self.blocked.push(key);
    }

    /// Returns the waiting messages to the queue, because the connection has credit again.
    pub(crate) fn unblock(&mut self) {
        for key in std::mem::take(&mut self.blocked) {
            self.push(key, 0);
        }
    }

    /// Removes the keys of dropped messages when they are the majority. Otherwise a peer could make the queue
    /// grow without bound.
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

    /// Two messages of the same priority alternate. An urgent message gets most turns, and the other still
    /// gets its share.
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
