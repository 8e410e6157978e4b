//! Counting and timing transactions.
//!
//! Each worker has its own [`Tally`] and checks the [`Meter`]'s phase after each transaction. Times go into one
//! histogram of the process.
//!
//! The rate is the sum of the workers' rates: transactions between the first and the last that a worker timed,
//! divided by the time between. Dividing a count by the length of the measurement would be wrong by a whole
//! round of all workers when the server delays its answers, as they all come together.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use net::time::Duration;
use serde::{Deserialize, Serialize};

/// Bits of resolution: buckets are 1/128 of a value apart.
const STEPS: u32 = 7;
/// Doublings above the first 2⁷ ns: up to 2⁴⁴ ns, almost five hours.
const DOUBLINGS: usize = 37;

/// Times of a process in logarithmic buckets. Any thread may add to it.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let buckets = (0..(DOUBLINGS + 1) << STEPS).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum_ns: AtomicU64::new(0), max_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Adds a time.
    pub fn add(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.buckets[bucket(ns).min(self.buckets.len() - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Mean and percentiles; `None` without times.
    pub fn latency(&self) -> Option<Latency> {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let quantile = |q: f64| {
            let rank = (total as f64 * q).ceil().max(1.0) as u64;
            let mut seen = 0;
            let at = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            middle_ns(at.unwrap_or(counts.len() - 1)) / 1e3
        };
        (total > 0).then(|| Latency {
            mean: self.sum_ns.load(Ordering::Relaxed) as f64 / total as f64 / 1e3,
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.max_ns.load(Ordering::Relaxed) as f64 / 1e3,
            timed: total,
        })
    }
}

fn bucket(ns: u64) -> usize {
    // The seven bits after the leading one are the bucket within the doubling.
    let doublings = (63 - (ns | 1).leading_zeros()).saturating_sub(STEPS);
    let step = ns >> doublings;
    ((doublings as usize) << STEPS) + step as usize
}

fn middle_ns(bucket: usize) -> f64 {
    let (at, first) = (bucket >> STEPS, 1 << STEPS);
    // Buckets below 2⁸ hold one value each.
    if at <= 1 {
        return bucket as f64;
    }
    let doublings = at - 1;
    let step = bucket - (doublings << STEPS);
    debug_assert!(step >= first);
    (step as f64 + 0.5) * 2_f64.powi(doublings as i32)
}

/// Times of transactions, microseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// Number of transactions that were timed.
    pub timed: u64,
}

/// State shared by all workers of one kind.
#[derive(Debug)]
pub struct Meter {
    phase: AtomicU8,
    every: u32,
    size: usize,
    histogram: Histogram,
    trouble: Mutex<Option<String>>,
}

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;

impl Meter {
    /// A meter. A worker times one of `every` transactions; answers have `size` octets.
    pub fn new(every: u32, size: usize) -> Meter {
        Meter {
            phase: AtomicU8::new(WARM_UP),
            every,
            size,
            histogram: Histogram::default(),
            trouble: Mutex::new(None),
        }
    }

    /// Starts the measurement.
    pub fn measure(&self) {
        self.phase.store(MEASURE, Ordering::Relaxed);
    }

    /// Tells workers to end after their next answer.
    pub fn stop(&self) {
        self.phase.store(STOP, Ordering::Relaxed);
    }

    /// Whether workers must end.
    pub fn stopped(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == STOP
    }

    /// Octets of an answer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The times.
    pub fn latency(&self) -> Option<Latency> {
        self.histogram.latency()
    }

    /// Records the first failure for the report.
    pub fn note(&self, error: &dyn std::fmt::Display) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get_or_insert_with(|| error.to_string());
    }

    /// The first failure.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The end of a transaction, and its duration if that is known.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// From having the request to having its answer.
    pub time: Option<Duration>,
    /// Its end.
    pub end: Instant,
}

/// Counts of one worker, or of one connection that carries the transactions of several.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Transactions since the start, to choose which ones to time.
    all: u32,
    /// Transactions during the measurement.
    pub done: u64,
    /// Answers that did not match their requests.
    pub wrong: u64,
    /// Calls that failed.
    pub failed: u64,
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl Tally {
    /// Whether the next transaction is to be timed.
    pub fn times_next(&self, meter: &Meter) -> bool {
        self.all.is_multiple_of(meter.every)
    }

    /// Counts a transaction that succeeded, and its end if the clock was read.
    pub fn add(&mut self, meter: &Meter, right: bool, timed: Option<Timed>) {
        self.all = self.all.wrapping_add(1);
        self.wrong += u64::from(!right);
        if meter.phase.load(Ordering::Relaxed) != MEASURE {
            return;
        }
        self.done += 1;
        let Some(timed) = timed else { return };
        self.mark(timed.end);
        if let Some(time) = timed.time {
            meter.histogram.add(time);
        }
    }

    /// Records the end of a transaction.
    fn mark(&mut self, end: Instant) {
        let now = (end, self.done);
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Transactions per second of this worker. If it has too few times of its own, uses the length of the
    /// measurement.
    pub fn rate(&self, window: Duration) -> f64 {
        match (self.first, self.last) {
            (Some((from, before)), Some((to, done))) if done > before => {
                (done - before) as f64 / (to - from).as_secs_f64()
            }
            _ => self.done as f64 / window.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_within_a_percent() {
        for ns in [0, 1, 127, 128, 129, 255, 256, 1000, 10_000_000, u64::from(u32::MAX), 1 << 43] {
            let told = middle_ns(bucket(ns));
            assert!((told - ns as f64).abs() <= ns as f64 * 0.008, "{ns}: {told}");
        }
        let all = (0..200_000_u64).map(bucket);
        assert!(all.clone().zip(all.skip(1)).all(|(a, b)| b == a || b == a + 1));
        let histogram = Histogram::default();
        assert_eq!(histogram.latency(), None);
        for micros in 1..=1000 {
            histogram.add(Duration::from_micros(micros));
        }
        histogram.add(Duration::MAX);
        let latency = histogram.latency().unwrap();
        assert!((latency.p50 - 500.0).abs() < 5.0 && (latency.p99 - 990.0).abs() < 9.0, "{latency:?}");
    }

    #[test]
    fn a_rate_is_not_of_the_window_but_of_whole_turns() {
        let meter = Meter::new(1, 10);
        let (start, ms) = (net::time::now_std(), Duration::from_millis);
        let mut tally = Tally::default();
        tally.add(&meter, true, Some(Timed { time: None, end: start }));
        meter.measure();
        for turn in 1..=5 {
            assert!(tally.times_next(&meter));
            let timed = Timed { time: Some(ms(10)), end: start + turn * ms(10) };
            tally.add(&meter, turn != 3, Some(timed));
        }
        assert_eq!((tally.done, tally.wrong), (5, 1));
        assert!((tally.rate(ms(59)) - 100.0).abs() < 1e-6);
        assert_eq!(Tally { done: 1, ..Tally::default() }.rate(ms(500)), 2.0);
    }
}
