//! Fits straight pieces to intervals, each within an error: the training of submodels.

/// An interval of inputs, both ends included. Its position in the list is the output to predict.
pub(super) type Interval = (u64, u64);

/// A straight piece.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Piece {
    /// Index of its first interval. At the lower end of that interval the piece has the value of its position.
    pub first: usize,
    /// Number of intervals.
    pub count: usize,
    /// Never negative.
    pub slope: f64,
}

/// The longest piece from the interval at `first` on that misses no position by more than `allowed`.
///
/// It narrows the cone of slopes that still reach both ends of the following intervals until none is left, and
/// visits each interval once (J. O'Rourke, "An on-line algorithm for fitting straight lines between data
/// ranges", CACM 24(9), 1981, with the lower end of the first interval as the apex). A piece with slope zero
/// misses only positions further than `allowed` away, so a piece always has more than `allowed` intervals, if
/// there are as many.
pub(super) fn longest(intervals: &[Interval], first: usize, allowed: f64) -> Piece {
    let apex = intervals[first].0;
    let (mut least, mut most) = (0.0_f64, f64::INFINITY);
    let mut count = 0;
    for (up, (low, high)) in intervals[first..].iter().enumerate() {
        let (mut from, mut to) = (least, most);
        for right in [low - apex, high - apex] {
            if right > 0 {
                from = from.max((up as f64 - allowed) / right as f64);
                to = to.min((up as f64 + allowed) / right as f64);
            }
        }
        if from > to {
            break;
        }
        (least, most) = (from, to);
        count += 1;
    }
    Piece { first, count, slope: if most.is_finite() { f64::midpoint(least, most) } else { 0.0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenly_spaced_intervals_take_one_piece() {
        let intervals: Vec<_> = (0..1000).map(|at| (at * 7, at * 7 + 3)).collect();
        let piece = longest(&intervals, 0, 2.0);
        assert_eq!((piece.first, piece.count), (0, 1000));
        assert!((piece.slope - 1.0 / 7.0).abs() < 0.01);
    }

    #[test]
    fn a_piece_is_longer_than_the_error() {
        // Every interval starts at twice the start of the one before: the worst case for straight pieces.
        let intervals: Vec<_> = (0..62).map(|at| (1 << at, (1_u64 << at) + ((1 << at) - 1))).collect();
        let mut first = 0;
        while first < intervals.len() {
            let piece = longest(&intervals, first, 6.0);
            assert!(piece.count > 6 || first + piece.count == intervals.len());
            for (at, (low, high)) in intervals.iter().enumerate().skip(first).take(piece.count) {
                for x in [low, high] {
                    let value = first as f64 + (x - intervals[first].0) as f64 * piece.slope;
                    assert!((value - at as f64).abs() < 6.001);
                }
            }
            first += piece.count;
        }
    }

    #[test]
    fn one_interval_is_a_piece() {
        assert_eq!(longest(&[(9, 9)], 0, 6.0), Piece { first: 0, count: 1, slope: 0.0 });
        assert_eq!(longest(&[(0, u64::MAX >> 1)], 0, 6.0).count, 1);
    }
}
