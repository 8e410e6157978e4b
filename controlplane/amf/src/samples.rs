//! Durations of procedures: the total time, and the part that the core itself used.
//!
//! **Core time** is the time from a procedure's first N2 message reaching the AMF to its last one leaving it, less
//! the time spent waiting for UE and gNB. [`Stopwatch`] measures it inside a UE's task: the task says when it begins
//! The task says when it begins to wait for the radio side, and an arriving message says when it
//! reached the AMF (not when the task received it: queueing in the AMF is core time). [`Samples`] keeps
//! a bounded ring of raw values for `GET /procedures`; the reader computes medians and percentiles.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use net::time::Instant;
use serde::Serialize;
use types::Supi;

/// One finished procedure.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Name of the procedure, which is the name of its file.
    pub procedure: &'static str,
    /// The subscriber, if known.
    pub supi: Option<Supi>,
    /// `ok`, or the reason of the failure.
    pub outcome: String,
    /// Core time, microseconds.
    pub core_us: u64,
    /// From the first received N2 message to the last sent one, microseconds.
    pub total_us: u64,
}

/// The latest procedures, oldest first.
#[derive(Debug)]
pub struct Samples {
    ring: Mutex<VecDeque<Sample>>,
    capacity: usize,
}

impl Samples {
    /// A ring of `capacity` samples.
    pub fn new(capacity: usize) -> Samples {
        Samples { ring: Mutex::default(), capacity }
    }

    /// Adds a sample; a full ring drops the oldest.
    pub fn push(&self, sample: Sample) {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= self.capacity {
            ring.pop_front();
        }
        ring.push_back(sample);
    }

    /// A copy of the samples.
    pub fn snapshot(&self) -> Vec<Sample> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Measures one procedure.
#[derive(Debug)]
pub struct Stopwatch {
    started: Instant,
    last_sent: Instant,
    waited: Duration,
    /// The part of `waited` that lies before `last_sent`.
    waited_when_sent: Duration,
}

impl Stopwatch {
    /// Starts at the arrival of the first N2 message.
    pub fn start(received: Instant) -> Stopwatch {
        Stopwatch {
            started: received,
            last_sent: received,
            waited: Duration::ZERO,
            waited_when_sent: Duration::ZERO,
        }
    }

    /// Records that an N2 message was sent.
    pub fn sent(&mut self, now: Instant) {
        self.last_sent = now;
        self.waited_when_sent = self.waited;
    }

    /// Records a wait for the radio side from `from` until a message arrived at `until`.
    pub fn waited(&mut self, from: Instant, until: Instant) {
        self.waited += until.saturating_duration_since(from);
    }

    /// Core time and total time, microseconds.
    pub fn read(&self) -> (u64, u64) {
        let total = self.last_sent.saturating_duration_since(self.started);
        let core = total.saturating_sub(self.waited_when_sent);
        (core.as_micros() as u64, total.as_micros() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_time_leaves_out_waits_for_the_radio_side_only() {
        let t0 = net::time::now();
        let ms = |n| t0 + Duration::from_millis(n);
        let mut watch = Stopwatch::start(t0);
        watch.sent(ms(2)); // challenge leaves after 2 ms of core time
        watch.waited(ms(2), ms(52)); // the UE takes 50 ms
        watch.sent(ms(55)); // 3 ms of core time
        watch.waited(ms(55), ms(90)); // after the last message out: does not count
        assert_eq!(watch.read(), (5_000, 55_000));
    }

    #[test]
    fn queueing_before_the_task_notices_is_core_time() {
        let t0 = net::time::now();
        let ms = |n| t0 + Duration::from_millis(n);
        let mut watch = Stopwatch::start(t0);
        watch.sent(ms(1));
        // The message arrived at 4 ms; the task was busy and began to wait only at 6 ms, so it did not
        // wait.
        watch.waited(ms(6), ms(4));
        watch.sent(ms(7));
        assert_eq!(watch.read(), (7_000, 7_000));
    }

    #[test]
    fn the_ring_is_bounded() {
        let samples = Samples::new(3);
        for n in 0..5 {
            let sample = Sample {
                procedure: "registration",
                supi: None,
                outcome: "ok".into(),
                core_us: n,
                total_us: n,
            };
            samples.push(sample);
        }
        let kept: Vec<_> = samples.snapshot().into_iter().map(|s| s.core_us).collect();
        assert_eq!(kept, [2, 3, 4]);
    }
}
