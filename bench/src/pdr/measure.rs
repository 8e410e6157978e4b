//! How times are taken: one pinned thread, samples long enough for the clock, and the clock's own cost known.

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

/// What two readings of the clock, one after the other, are apart: the median of many.
pub(super) fn clock_cost() -> f64 {
    let mut costs: Vec<f64> = (0..2001).map(|_| nanoseconds(|| ())).collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

/// Looks packets of a trace up until `at_least` has passed; nanoseconds per packet.
///
/// A fast classifier goes through the whole trace again and again, a slow one through some windows of it, from a place
/// that moves on with `round`. Each sample goes through its packets once before the clock starts: what is measured is
/// a warm classifier, as other contenders used the caches meanwhile.
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
    // Windows per sample: at most the whole trace, of which there may be several rounds.
    let count = enough.clamp(1, windows);
    if count > 1 {
        run(count);
    }
    let repeat = (enough / count).max(1);
    let mut looked_up = 0;
    let total = nanoseconds(|| looked_up = (0..repeat).map(|_| run(count)).sum());
    total / looked_up as f64
}
