//! Timing: one pinned thread, samples that are long enough for the clock, and the clock's own cost subtracted.

use std::ops::Range;

use net::time::{self, Duration};

/// Packets per call in the series of batches.
pub(super) const BATCH: usize = 32;

/// Nanoseconds that `work` takes.
pub(super) fn nanoseconds(work: impl FnOnce()) -> f64 {
    let start = time::now_std();
    work();
    (time::now_std() - start).as_nanos() as f64
}

/// Cost of reading the clock: the median difference of two consecutive readings.
pub(super) fn clock_cost() -> f64 {
    let mut costs: Vec<f64> = (0..2001).map(|_| nanoseconds(|| ())).collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// Looks up packets of a trace for at least `at_least`; returns nanoseconds per packet.
///
/// A fast classifier goes through the whole trace several times, a slow one through some windows of it, which
/// move on with `round`. Each sample goes through its packets once before the clock starts. So a warm
/// classifier is measured, although other contenders have used the caches meanwhile.
pub(super) fn lookup(
    packets: usize,
    round: usize,
    at_least: Duration,
    classify: &mut dyn FnMut(Range<usize>),
) -> f64 {
    const WINDOW: usize = 256;
    let windows = packets.div_ceil(WINDOW);
    let first = round * windows / 7;
    let mut run = |count: usize| {
        let window = |at: usize| {
            let from = (first + at) % windows * WINDOW;
            let range = from..packets.min(from + WINDOW);
            classify(range.clone());
            range.len()
        };
        (0..count).map(window).sum::<usize>()
    };
    let one = nanoseconds(|| {
        run(1);
    });
    let enough = (at_least.as_nanos() as f64 / one).ceil() as usize;
    // Windows per sample: at most one pass over the trace, which may be repeated.
    let count = enough.clamp(1, windows);
    if count > 1 {
        run(count);
    }
    let repeat = (enough / count).max(1);
    let mut looked_up = 0;
    let total = nanoseconds(|| looked_up = (0..repeat).map(|_| run(count)).sum());
    total / looked_up as f64
}
