//! Times of procedures, raw, for `GET /procedures`: medians and tails are computed by whoever asks.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use net::time::{self, Instant};
use serde::Serialize;
use types::Supi;

/// Samples kept; the oldest go.
const CAPACITY: usize = 100_000;

/// One finished procedure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Name of the procedure, as its file is called.
    pub procedure: &'static str,
    pub supi: Supi,
    /// `ok`, or why not.
    pub outcome: String,
    /// Time at work, microseconds: without waits for UE and gNB.
    pub core_us: u64,
    /// From first message in to last message out, microseconds.
    pub total_us: u64,
}

/// The last procedures, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<VecDeque<Sample>>);

impl Samples {
    /// Keeps the time since `start`; `waited` of it was for UE and gNB.
    pub fn push(
        &self,
        procedure: &'static str,
        supi: Supi,
        outcome: String,
        start: Instant,
        waited: Duration,
    ) {
        let total = time::now().saturating_duration_since(start);
        let sample = Sample {
            procedure,
            supi,
            outcome,
            core_us: total.saturating_sub(waited).as_micros() as u64,
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
