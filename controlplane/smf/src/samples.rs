//! Durations of procedures for `GET /procedures`. The reader computes medians and percentiles.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use net::time::{self, Instant};
use serde::Serialize;
use types::Supi;

/// Most samples; the oldest are dropped.
const CAPACITY: usize = 100_000;

/// One finished procedure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Name of the procedure, which is the name of its file.
    pub procedure: &'static str,
    pub supi: Supi,
    /// `ok`, or the reason of the failure.
    pub outcome: String,
    /// Processing time, microseconds: without waiting for UDM, PCF, UPF, AMF, UE and gNB.
    pub core_us: u64,
    /// From the first received message to the last sent one, microseconds.
    pub total_us: u64,
}

/// The latest procedures, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<VecDeque<Sample>>);

impl Samples {
    /// Stores the time since `start`, of which `at_work` was processing time ([`at_work`]).
    pub fn push(
        &self,
        procedure: &'static str,
        supi: Supi,
        outcome: String,
        start: Instant,
        at_work: Duration,
    ) {
        let total = time::now().saturating_duration_since(start);
        let sample = Sample {
            procedure,
            supi,
            outcome,
            core_us: at_work.as_micros() as u64,
            total_us: total.as_micros() as u64,
        };
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() >= CAPACITY {
            ring.pop_front();
        }
        ring.push_back(sample);
    }

    pub fn snapshot(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Runs a future. Returns its output and its processing time: the time in its polls, not between them.
pub(crate) async fn at_work<F: Future>(future: F) -> (F::Output, Duration) {
    let mut future = pin!(future);
    let mut worked = Duration::ZERO;
    let output = std::future::poll_fn(|context| {
        let began = time::now();
        let polled = future.as_mut().poll(context);
        worked += time::now().saturating_duration_since(began);
        polled
    })
    .await;
    (output, worked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_are_no_work() {
        let busy = || {
            let began = time::now();
            while began.elapsed() < Duration::from_millis(20) {}
        };
        let started = time::now();
        let ((), worked) = at_work(async {
            busy();
            time::sleep(Duration::from_millis(300)).await;
            busy();
        })
        .await;
        assert!(worked >= Duration::from_millis(40), "{worked:?}");
        assert!(worked + Duration::from_millis(290) <= started.elapsed(), "{worked:?}");
    }
}
