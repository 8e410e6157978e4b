//! Packets that wait: the queues of the hold port.
//!
//! A move of a user without loss or reordering needs packets of the new path to wait until the last one of the old path has passed
//! (docs/adr/0033-packets-wait-for-a-token.md). Entries put packets into a queue by `set_queue` and an output to the hold port;
//! another packet, the token, opens the queue by an output to the release port.
//!
//! ```text
//!   no queue ──packet──► holding ──token, time, overflow──► open: packets pass
//!      └──────────────token────────────────────────────────────►┘
//! ```
//! Packets of a queue come back to the first table by the hold port, in the order in which they came to it, with the queue's number
//! as metadata.
//!
//! **Order with several workers.** The packets of one flow come to one worker, by the queue of its interface. So each worker keeps its
//! own packets, and lets them go itself: they leave by the rings by which later ones do. A worker that did not see the token
//! goes once more through its inputs before, as packets of the old path may wait there.
//!
//! Invariants: no packet is lost here, one that finds no room opens its queue; memory is bounded by [`Limits`]; one lock for all
//! queues, taken for packets to the hold port only.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

/// After the last entry for a queue is gone, workers may have packets of it on their way for so long.
const ENDED_NS: u64 = 1_000_000_000;
/// A queue that nobody used for so long makes room for others.
const IDLE_NS: u64 = 60_000_000_000;

/// What bounds the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Packets of a queue.
    pub packets: usize,
    /// Octets of all queues.
    pub octets: usize,
    /// Queues.
    pub queues: usize,
    /// Time after the first packet at which a queue opens without a token.
    pub timeout_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { packets: 4096, octets: 64 << 20, queues: 16_384, timeout_ns: 200_000_000 }
    }
}

/// What becomes of a packet for the hold port.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    /// It waits.
    Held,
    /// It waits for these workers to let go what they have: there was no room for more.
    Full(Vec<usize>),
    /// It goes on at once.
    Passes,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Holding {
        until_ns: u64,
    },
    Open {
        since_ns: u64,
        /// The worker that saw why: it has sent what came before.
        by: Option<usize>,
    },
}

#[derive(Debug)]
struct Queue {
    state: State,
    /// Frames by the worker that has them.
    waiting: BTreeMap<usize, VecDeque<Box<[u8]>>>,
    packets: usize,
    used_ns: u64,
    /// When the last entry that puts packets into it went.
    ended_ns: Option<u64>,
}

impl Queue {
    fn new(state: State, now_ns: u64) -> Queue {
        Queue { state, waiting: BTreeMap::new(), packets: 0, used_ns: now_ns, ended_ns: None }
    }

    fn open(&mut self, by: Option<usize>, now_ns: u64) -> Vec<usize> {
        self.state = State::Open { since_ns: now_ns, by };
        self.waiting.keys().copied().collect()
    }

    /// Whether a worker may let its packets go. `round_ns`: when it began to look at all of its inputs, if it has done so since.
    fn may_go(&self, worker: usize, round_ns: Option<u64>) -> bool {
        match self.state {
            State::Holding { .. } => false,
            State::Open { since_ns, by } => by == Some(worker) || round_ns.is_some_and(|at| at >= since_ns),
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.packets == 0 && self.ended_ns.is_some_and(|ended_ns| now_ns >= ended_ns + ENDED_NS)
    }
}

/// What has been, for people.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    held: u64,
    passed: u64,
    released: u64,
    timeouts: u64,
    overflows: u64,
    tokens: u64,
    idle_tokens: u64,
}

#[derive(Debug, Default)]
struct Queues {
    all: BTreeMap<u32, Queue>,
    octets: usize,
    counts: Counts,
}

/// The queues of the hold port.
#[derive(Debug)]
pub struct Hold {
    limits: Limits,
    queues: Mutex<Queues>,
    /// Packets that wait, so that workers need no lock to see that there are none.
    packets: AtomicUsize,
    workers: AtomicUsize,
}

impl Hold {
    /// No queues.
    pub fn new(limits: Limits) -> Hold {
        let queues = Mutex::default();
        Hold { limits, queues, packets: AtomicUsize::new(0), workers: AtomicUsize::new(0) }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new worker: they count from 0.
    pub(crate) fn enrol(&self) -> usize {
        self.workers.fetch_add(1, Relaxed)
    }

    /// Whether packets wait.
    #[inline]
    pub fn has_packets(&self) -> bool {
        self.packets.load(Relaxed) > 0
    }

    /// A packet of a worker for a queue; one that `must` wait does so behind those that are there.
    pub fn put(&self, worker: usize, queue: u32, frame: &[u8], must: bool, now_ns: u64) -> Put {
        let mut guard = self.queues();
        let queues = &mut *guard;
        if !queues.all.contains_key(&queue) && !queues.make_room(self.limits.queues, now_ns) {
            queues.counts.overflows += 1;
            return Put::Passes;
        }
        let holding = State::Holding { until_ns: now_ns.saturating_add(self.limits.timeout_ns) };
        let own = queues.all.entry(queue).or_insert_with(|| Queue::new(holding, now_ns));
        own.used_ns = now_ns;
        let is_open = matches!(own.state, State::Open { .. });
        if is_open && !must && !own.waiting.contains_key(&worker) {
            queues.counts.passed += 1;
            return Put::Passes;
        }
        own.waiting.entry(worker).or_default().push_back(frame.into());
        own.packets += 1;
        queues.octets += frame.len();
        queues.counts.held += 1;
        self.packets.fetch_add(1, Relaxed);
        let is_full = own.packets > self.limits.packets || queues.octets > self.limits.octets;
        if is_open || !is_full {
            return Put::Held;
        }
        queues.counts.overflows += 1;
        Put::Full(own.open(Some(worker), now_ns))
    }

    /// Opens a queue, as a token has come to this worker, or a controller wants it. Returns the workers that have packets of it. A
    /// queue that has no packets yet is open from its beginning.
    pub fn release(&self, queue: u32, worker: Option<usize>, now_ns: u64) -> Vec<usize> {
        let mut guard = self.queues();
        let queues = &mut *guard;
        queues.counts.tokens += 1;
        if !queues.all.contains_key(&queue) {
            queues.counts.idle_tokens += 1;
            if queues.make_room(self.limits.queues, now_ns) {
                queues.all.insert(queue, Queue::new(State::Open { since_ns: now_ns, by: worker }, now_ns));
            }
            return Vec::new();
        }
        let Some(own) = queues.all.get_mut(&queue) else { return Vec::new() };
        own.used_ns = now_ns;
        match own.state {
            State::Holding { .. } => own.open(worker, now_ns),
            State::Open { .. } => {
                queues.counts.idle_tokens += 1;
                Vec::new()
            }
        }
    }

    /// The last entry that puts packets into a queue is gone. What waits goes on.
    pub fn end(&self, ended: &[u32], now_ns: u64) -> Vec<usize> {
        let mut guard = self.queues();
        guard.all.retain(|_, queue| !queue.is_over(now_ns));
        let mut workers = Vec::new();
        for queue in ended {
            let Some(own) = guard.all.get_mut(queue) else { continue };
            own.ended_ns = Some(now_ns);
            if matches!(own.state, State::Holding { .. }) {
                workers.extend(own.open(None, now_ns));
            }
        }
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// The next packets of one queue, at most so many, that a worker lets go: frames with the queue's number. `round_ns`: when the worker
    /// began to look at all of its inputs, if it has done so since.
    pub fn take(
        &self,
        worker: usize,
        round_ns: Option<u64>,
        most: usize,
        now_ns: u64,
    ) -> Option<(u32, Vec<Box<[u8]>>)> {
        let mut guard = self.queues();
        let queues = &mut *guard;
        for own in queues.all.values_mut() {
            if matches!(own.state, State::Holding { until_ns } if until_ns <= now_ns) {
                own.open(Some(worker), now_ns);
                queues.counts.timeouts += 1;
            }
        }
        let may_go =
            |(_, own): &(&u32, &mut Queue)| own.waiting.contains_key(&worker) && own.may_go(worker, round_ns);
        let (queue, own) = queues.all.iter_mut().find(may_go)?;
        let waiting = own.waiting.get_mut(&worker)?;
        let frames: Vec<_> = waiting.drain(..waiting.len().min(most)).collect();
        if waiting.is_empty() {
            own.waiting.remove(&worker);
        }
        own.packets -= frames.len();
        queues.octets -= frames.iter().map(|frame| frame.len()).sum::<usize>();
        queues.counts.released += frames.len() as u64;
        self.packets.fetch_sub(frames.len(), Relaxed);
        Some((*queue, frames))
    }

    /// Takes back packets of [`Hold::take`] that a worker has no memory for at present.
    pub fn put_back(&self, worker: usize, queue: u32, frames: Vec<Box<[u8]>>, now_ns: u64) {
        let mut guard = self.queues();
        let queues = &mut *guard;
        let open = State::Open { since_ns: now_ns, by: Some(worker) };
        let own = queues.all.entry(queue).or_insert_with(|| Queue::new(open, now_ns));
        let waiting = own.waiting.entry(worker).or_default();
        own.packets += frames.len();
        queues.octets += frames.iter().map(|frame| frame.len()).sum::<usize>();
        queues.counts.released -= frames.len() as u64;
        self.packets.fetch_add(frames.len(), Relaxed);
        frames.into_iter().rev().for_each(|frame| waiting.push_front(frame));
    }

    /// When a worker has something to let go, as far as is known now.
    pub fn next_ns(&self, worker: usize, now_ns: u64) -> Option<u64> {
        let queues = self.queues();
        let own = queues.all.values().filter(|queue| queue.waiting.contains_key(&worker));
        own.map(|queue| match queue.state {
            State::Holding { until_ns } => until_ns,
            State::Open { .. } => now_ns,
        })
        .min()
    }

    /// All about it, for administration.
    pub fn status(&self) -> Value {
        let queues = self.queues();
        let counts = queues.counts;
        json!({
            "queues": queues.all.len(),
            "waiting": self.packets.load(Relaxed),
            "waiting_bytes": queues.octets,
            "held": counts.held,
            "passed": counts.passed,
            "released": counts.released,
            "timeouts": counts.timeouts,
            "overflows": counts.overflows,
            "tokens": counts.tokens,
            "idle_tokens": counts.idle_tokens,
        })
    }
}

impl Queues {
    /// Whether there is room for one more queue.
    fn make_room(&mut self, most: usize, now_ns: u64) -> bool {
        if self.all.len() >= most {
            self.all.retain(|_, queue| {
                let is_idle = queue.packets == 0 && now_ns.saturating_sub(queue.used_ns) >= IDLE_NS;
                !is_idle && !queue.is_over(now_ns)
            });
        }
        self.all.len() < most
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    const MS: u64 = 1_000_000;

    fn hold() -> Hold {
        Hold::new(Limits { packets: 4, octets: 1000, queues: 2, timeout_ns: 200 * MS })
    }

    fn put(hold: &Hold, worker: usize, queue: u32, number: u8, now_ns: u64) -> Put {
        hold.put(worker, queue, &[number; 10], false, now_ns)
    }

    fn numbers(taken: Option<(u32, Vec<Box<[u8]>>)>) -> Vec<u8> {
        taken.map(|(_, frames)| frames.iter().map(|frame| frame[0]).collect()).unwrap_or_default()
    }

    #[test]
    fn packets_wait_for_the_token_and_go_in_order() {
        let hold = hold();
        assert_eq!(put(&hold, 0, 7, 1, 0), Put::Held);
        assert_eq!(put(&hold, 0, 7, 2, MS), Put::Held);
        assert_eq!(hold.take(0, None, 64, 2 * MS), None);
        assert_eq!(hold.next_ns(0, 2 * MS), Some(200 * MS));
        assert_eq!(hold.release(7, Some(0), 3 * MS), [0]);
        // What comes before those have gone is behind them.
        assert_eq!(put(&hold, 0, 7, 3, 3 * MS), Put::Held);
        let (queue, frames) = hold.take(0, None, 3, 3 * MS).unwrap();
        hold.put_back(0, queue, frames, 3 * MS);
        assert_eq!(numbers(hold.take(0, None, 2, 3 * MS)), [1, 2]);
        assert_eq!(numbers(hold.take(0, None, 2, 3 * MS)), [3]);
        assert_eq!(put(&hold, 0, 7, 4, 3 * MS), Put::Passes);
        assert!(!hold.has_packets());
        let status = hold.status();
        assert_eq!(
            (&status["held"], &status["released"], &status["passed"]),
            (&json!(3), &json!(3), &json!(1))
        );
    }

    #[test]
    fn a_token_before_the_first_packet_opens_the_queue() {
        let hold = hold();
        assert!(hold.release(7, Some(0), 0).is_empty());
        assert_eq!(put(&hold, 0, 7, 1, MS), Put::Passes);
        assert!(hold.release(7, Some(0), MS).is_empty());
        assert_eq!(hold.status()["idle_tokens"], 2);
    }

    #[test]
    fn time_ends_the_waiting() {
        let hold = hold();
        put(&hold, 0, 7, 1, 0);
        put(&hold, 1, 7, 2, 0);
        assert_eq!(hold.take(0, None, 64, 199 * MS), None);
        assert_eq!(numbers(hold.take(0, None, 64, 200 * MS)), [1]);
        // The other worker goes through its inputs before.
        assert_eq!(hold.take(1, None, 64, 201 * MS), None);
        assert_eq!(hold.next_ns(1, 201 * MS), Some(201 * MS));
        assert_eq!(hold.take(1, Some(199 * MS), 64, 201 * MS), None);
        assert_eq!(numbers(hold.take(1, Some(200 * MS), 64, 202 * MS)), [2]);
        assert_eq!(hold.status()["timeouts"], 1);
    }

    #[test]
    fn what_finds_no_room_opens_its_queue_and_is_not_lost() {
        let hold = hold();
        for number in 0..4 {
            assert_eq!(put(&hold, 0, 7, number, 0), Put::Held);
        }
        assert_eq!(put(&hold, 0, 7, 4, 0), Put::Full(vec![0]));
        assert_eq!(numbers(hold.take(0, None, 64, 0)), [0, 1, 2, 3, 4]);
        // Octets of all queues.
        assert_eq!(hold.put(0, 8, &[0; 1001], false, 0), Put::Full(vec![0]));
        assert_eq!(numbers(hold.take(0, None, 64, 0)), [0]);
        // Queues.
        assert_eq!(put(&hold, 0, 9, 0, 0), Put::Passes);
        assert_eq!(hold.status()["overflows"], 3);
        // Those whose entries are gone make room a moment later.
        hold.end(&[7], 0);
        assert_eq!(put(&hold, 0, 9, 0, ENDED_NS - 1), Put::Passes);
        assert_eq!(put(&hold, 0, 9, 0, ENDED_NS), Put::Held);
        assert_eq!(hold.end(&[9], ENDED_NS), [0]);
        assert_eq!(numbers(hold.take(0, Some(ENDED_NS), 64, ENDED_NS)), [0]);
    }

    /// Two workers that let go while packets come: each has the order of its own.
    #[test]
    fn workers_let_go_while_others_put() {
        let hold = Hold::new(Limits { packets: 100_000, ..Limits::default() });
        let opened = AtomicBool::new(false);
        let run = |worker: usize| {
            let (mut left, mut round_ns) = (Vec::new(), 0);
            for number in 0..20_000_u32 {
                if number == 5000 && worker == 0 {
                    hold.release(7, Some(0), 1);
                    opened.store(true, Relaxed);
                }
                if hold.put(worker, 7, &number.to_be_bytes(), false, 0) == Put::Passes {
                    left.push(number);
                }
                if number % 64 == 63 {
                    round_ns += u64::from(opened.load(Relaxed));
                    while let Some((_, frames)) = hold.take(worker, Some(round_ns), 16, 0) {
                        left.extend(
                            frames.iter().map(|frame| u32::from_be_bytes(frame[..].try_into().unwrap())),
                        );
                    }
                }
            }
            while let Some((_, frames)) = hold.take(worker, Some(1), 16, 0) {
                left.extend(frames.iter().map(|frame| u32::from_be_bytes(frame[..].try_into().unwrap())));
            }
            left
        };
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| run(1));
            (run(0), second.join().unwrap())
        });
        assert_eq!(first, (0..20_000).collect::<Vec<_>>());
        // It may have ended before the token came.
        let rest: Vec<u32> = std::iter::from_fn(|| hold.take(1, Some(1), 64, 0))
            .flat_map(|(_, frames)| frames)
            .map(|frame| u32::from_be_bytes(frame[..].try_into().unwrap()))
            .collect();
        assert_eq!([second, rest].concat(), (0..20_000).collect::<Vec<_>>());
    }
}
