//! The range-query recursive model index (RQ-RMI): where in a sorted array of intervals is the one that holds `x`?
//!
//! Submodels stand in stages: one in the first, and each stage leads to the submodel of the next, the last to the
//! interval. A submodel predicts a position, and a window around the prediction is searched with one comparison of
//! vectors, so that the outcome is exact.
//!
//! A submodel of the paper is a network of one input, eight hidden ReLU neurons and one output. Such a network is a
//! continuous function of at most nine straight pieces, and is stored and computed as its pieces here: eight compares
//! find the piece, one multiplication gives the value. Pieces need not meet.
//!
//! **Training** goes the other way than the paper's. There the number of submodels is given, each stage is trained on
//! what the one before sends to it, and the error is what comes out; a prediction of an inner stage is never
//! corrected. Inputs that cluster at several scales, as sequences of fields do, then nearly all end in one leaf, whose
//! error is the whole array (we tried). Here the error is given, at most half a [`WINDOW`]; pieces are made as long as
//! it allows, eight are a submodel, and the submodels' own ranges are the intervals of the stage before. One pass per
//! stage, and each has at most a 56th of the submodels of the next.
//!
//! **Why the window always holds the answer.** All arithmetic is on integers, so a prediction is one exact function of
//! `x` on every processor. A piece starts at the lower end of an interval, so each interval lies within one piece. A
//! piece does not fall, as its slope is not negative and rounding down keeps order. Hence the predictions for an
//! interval lie between those at its two ends, and the errors there, which training computes with the very function
//! that look-ups use, bound the error everywhere. The paper needs an analysis of its networks for this (its
//! "transition inputs"), as those may fall and are computed in floating point.

use super::fit::{self, Interval};
use super::lanes::{Lanes, Scalar, WINDOW, prefetch};

/// The greatest `x`. One bit less than there is, so that signed and unsigned comparisons agree.
pub(super) const MAX: u64 = u64::MAX >> 1;
/// Straight pieces of a submodel.
pub(super) const PIECES: usize = 8;
/// Greatest error that pieces are fitted with. Rounding slope and value down adds less than two below, so that all
/// errors, and the position itself, fit into a window.
const ERROR: f64 = (WINDOW / 2 - 2) as f64;
/// Most intervals of a piece: so many do not feel that slopes are rounded to 26 bits.
const LONGEST: usize = 1 << 20;

/// A submodel: two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Node {
    /// Where the pieces start; [`MAX`] for those not used.
    knots: [u64; PIECES],
    slopes: [Slope; PIECES],
    /// Where the window of a piece starts at its knot: before the predicted position by the greatest error.
    bases: [i32; PIECES],
}

impl Node {
    /// The submodel of as many intervals from `first` on as eight pieces can hold; also gives how many that are.
    fn train(intervals: &[Interval], first: usize) -> (Node, usize) {
        let mut node = Node { knots: [MAX; PIECES], slopes: [Slope(0); PIECES], bases: [0; PIECES] };
        let mut next = first;
        for at in 0..PIECES {
            if next == intervals.len() {
                // At MAX the last of the pieces is taken, used or not.
                let last = at.saturating_sub(1);
                let end = start(node.slopes[last], node.bases[last], MAX - node.knots[last]);
                node.bases[at..].fill(end.min(i32::MAX.into()) as i32);
                break;
            }
            let end = intervals.len().min(next + LONGEST);
            let piece = fit::longest(&intervals[..end], next, ERROR);
            let slope = Slope::new(piece.slope);
            let knot = intervals[next].0;
            next += piece.count;
            let base = (piece.first..next).flat_map(|at| {
                let ends = [intervals[at].0, intervals[at].1];
                ends.map(|x| at as i64 - start(slope, 0, x - knot))
            });
            (node.knots[at], node.slopes[at], node.bases[at]) = (knot, slope, base.min().unwrap_or(0) as i32);
        }
        (node, next - first)
    }

    /// Where the window starts; may lie before the first position and behind the last.
    #[inline(always)]
    fn start<L: Lanes>(&self, lanes: L, x: u64) -> i64 {
        let at = lanes.knots(&self.knots, x).saturating_sub(1) % PIECES;
        start(self.slopes[at], self.bases[at], x.saturating_sub(self.knots[at]))
    }
}

/// Positions per input, in units of 2⁻⁶⁴: 26 bits, and in the lower 6 bits how far they are shifted left.
///
/// Intervals do not overlap, so no slope above one is ever useful.
#[derive(Clone, Copy, Debug)]
struct Slope(u32);

impl Slope {
    const BITS: u32 = 26;

    /// Rounded down.
    fn new(slope: f64) -> Slope {
        // Rust's conversion saturates: one becomes the greatest number below it.
        let units = (slope * 2.0_f64.powi(64)) as u64;
        let shift = (u64::BITS - Self::BITS).saturating_sub(units.leading_zeros());
        Slope(((units >> shift) as u32) << 6 | shift)
    }

    #[inline(always)]
    fn units(self) -> u64 {
        u64::from(self.0 >> 6) << (self.0 & 63)
    }
}

/// The value of a piece `right` of its knot.
#[inline(always)]
fn start(slope: Slope, base: i32, right: u64) -> i64 {
    i64::from(base) + ((u128::from(right) * u128::from(slope.units())) >> 64) as i64
}

/// One stage: submodels, and what they search.
#[derive(Clone, Debug)]
struct Stage {
    nodes: Vec<Node>,
    /// Where the ranges of the next stage's submodels start, or the intervals, in order; then [`WINDOW`] times the
    /// greatest number.
    lows: Vec<u64>,
    /// The last position of `lows` that counts.
    last: u32,
}

impl Stage {
    /// Trains on intervals; also gives the ranges of the submodels.
    fn train(intervals: &[Interval]) -> (Stage, Vec<Interval>) {
        let (mut nodes, mut ranges) = (Vec::new(), Vec::new());
        let mut next = 0;
        while next < intervals.len() {
            let (node, count) = Node::train(intervals, next);
            nodes.push(node);
            ranges.push((intervals[next].0, intervals[next + count - 1].1));
            next += count;
        }
        nodes.shrink_to_fit();
        let mut lows = Vec::with_capacity(intervals.len() + WINDOW);
        lows.extend(intervals.iter().map(|interval| interval.0));
        lows.extend([MAX; WINDOW]);
        (Stage { nodes, lows, last: (intervals.len() - 1) as u32 }, ranges)
    }

    /// First half of a step: the start of the window, which is asked for from memory.
    #[inline(always)]
    fn start<L: Lanes>(&self, lanes: L, x: u64, node: u32) -> u32 {
        let start = self.nodes[node as usize].start(lanes, x).clamp(0, self.last.into()) as u32;
        let window = &self.lows[start as usize..start as usize + WINDOW];
        window.iter().step_by(8).chain(window.last()).for_each(prefetch);
        start
    }

    /// Second half: the position of the interval that holds `x`. When none does, of any.
    #[inline(always)]
    fn position<L: Lanes>(&self, lanes: L, x: u64, start: u32) -> u32 {
        let count = match self.lows[start as usize..].first_chunk() {
            Some(lows) => lanes.lows(lows, x),
            None => 0,
        };
        (start + count as u32).saturating_sub(1).min(self.last)
    }

    /// Asks for a submodel.
    #[inline(always)]
    fn prefetch(&self, node: u32) {
        let Node { knots, bases, .. } = &self.nodes[node as usize];
        prefetch(knots);
        prefetch(bases);
    }
}

/// A trained index of intervals that do not overlap.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// The first has one submodel.
    stages: Vec<Stage>,
}

impl Model {
    /// Trains on intervals that are sorted, do not overlap and are at least one.
    pub(super) fn train(intervals: &[Interval]) -> Model {
        let (stage, mut ranges) = Stage::train(intervals);
        let mut stages = vec![stage];
        while ranges.len() > 1 {
            let (stage, shorter) = Stage::train(&ranges);
            stages.push(stage);
            ranges = shorter;
        }
        stages.reverse();
        Model { stages }
    }

    /// Replaces each input of `xs` by the position of the interval that holds it, or by any.
    ///
    /// Takes each half step for all before the next for any.
    #[inline(always)]
    pub(super) fn find<L: Lanes>(&self, lanes: L, xs: &[u64], places: &mut [u32]) {
        places.fill(0);
        for (depth, stage) in self.stages.iter().enumerate() {
            for (x, place) in xs.iter().zip(&mut *places) {
                *place = stage.start(lanes, *x, *place);
            }
            let next = self.stages.get(depth + 1);
            for (x, place) in xs.iter().zip(&mut *places) {
                *place = stage.position(lanes, *x, *place);
                if let Some(next) = next {
                    next.prefetch(*place);
                }
            }
        }
    }

    /// How many stages.
    #[inline(always)]
    pub(super) fn stages(&self) -> usize {
        self.stages.len()
    }

    /// First half of the step of one stage, for one input: `place` is the outcome of the stage before, at first zero.
    /// A stage that there is not changes nothing.
    #[inline(always)]
    pub(super) fn predict<L: Lanes>(&self, lanes: L, stage: usize, x: u64, place: u32) -> u32 {
        self.stages.get(stage).map_or(place, |stage| stage.start(lanes, x, place))
    }

    /// Second half.
    #[inline(always)]
    pub(super) fn correct<L: Lanes>(&self, lanes: L, stage: usize, x: u64, start: u32) -> u32 {
        let Some(this) = self.stages.get(stage) else { return start };
        let place = this.position(lanes, x, start);
        if let Some(next) = self.stages.get(stage + 1) {
            next.prefetch(place);
        }
        place
    }

    /// All steps for one input.
    pub(super) fn find_one(&self, x: u64) -> u32 {
        let mut place = [0];
        self.find(Scalar, &[x], &mut place);
        place[0]
    }

    /// Where the interval at a position starts.
    pub(super) fn low(&self, position: u32) -> u64 {
        self.stages.last().map_or(0, |stage| stage.lows[position as usize])
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let stage = |stage: &Stage| {
            stage.nodes.capacity() * size_of::<Node>() + stage.lows.capacity() * size_of::<u64>()
        };
        self.stages.capacity() * size_of::<Stage>() + self.stages.iter().map(stage).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Cpu;

    /// What each stage's window promises, on every instruction set, and the answer.
    fn check(model: &Model, x: u64, expected: u32) {
        let mut node = 0;
        for (depth, stage) in model.stages.iter().enumerate() {
            // Where the intervals or submodels that hold `x` are, by binary search.
            let right = stage.lows[..=stage.last as usize].partition_point(|low| *low <= x) as u32 - 1;
            let start = stage.nodes[node as usize].start(Scalar, x).max(0) as u32;
            assert!(
                (start..start + WINDOW as u32).contains(&right),
                "{x}, stage {depth}: {right} not from {start}"
            );
            node = right;
        }
        for cpu in Cpu::all() {
            let mut found = [0];
            match cpu {
                Cpu::Scalar => model.find(Scalar, &[x], &mut found),
                #[cfg(target_arch = "x86_64")]
                Cpu::Avx2(lanes) => model.find(lanes, &[x], &mut found),
                #[cfg(target_arch = "x86_64")]
                Cpu::Avx512(lanes) => model.find(lanes, &[x], &mut found),
            }
            assert_eq!(found, [expected], "{cpu:?} {x}");
        }
    }

    /// Every `x` near an end of an interval, and so of a piece and a submodel, if an interval holds it.
    fn check_borders(set: &[Interval]) {
        let model = Model::train(set);
        for (at, (low, high)) in set.iter().enumerate() {
            let near_low = *low..=(*low + 3).min(*high);
            let near_high = high.saturating_sub(3).max(*low)..=*high;
            for x in near_low.chain(near_high).chain([low.midpoint(*high)]) {
                check(&model, x, at as u32);
            }
        }
        // Whatever is not in an interval finds some position, and never an invalid one.
        for x in
            [0, 1, MAX / 2, MAX].into_iter().chain(set.iter().flat_map(|(low, high)| [low / 2, high / 2]))
        {
            assert!((model.find_one(x) as usize) < set.len());
        }
    }

    /// Intervals from gaps and lengths, as far as they fit.
    fn intervals(parts: impl IntoIterator<Item = (u64, u64)>) -> Vec<Interval> {
        let mut next = 0_u64;
        let mut out = Vec::new();
        for (gap, length) in parts {
            let (low, high) = (next + gap, next + gap + length);
            if high > MAX {
                break;
            }
            out.push((low, high));
            next = high + 1;
        }
        out
    }

    #[test]
    fn few_and_extreme_intervals_are_found() {
        let max = MAX;
        for set in [
            vec![(0, max)],
            vec![(0, 0)],
            vec![(max, max)],
            vec![(0, 0), (max, max)],
            vec![(0, max - 1), (max, max)],
            vec![(0, 0), (1, max)],
            (0..5000).map(|at| (at, at)).collect(),
            (0..5000).map(|at| (max - 4999 + at, max - 4999 + at)).collect(),
            (0..4096).map(|at| (at << 51, at << 51 | 0xF_FFFF_FFFF)).collect(),
            (0..62).map(|at| (1 << at, (1 << at) + ((1_u64 << at) - 1))).collect(),
            // Clusters of clusters of clusters.
            (0..20_000)
                .map(|at| ((at / 900) << 50 | (at % 900 / 30) << 22 | (at % 30), at))
                .map(|(x, _)| (x, x))
                .collect(),
        ] {
            check_borders(&set);
        }
    }

    #[test]
    fn every_x_of_a_small_universe() {
        // Dense and sparse intervals within 16 bits: a port field, tried at every port.
        let parts =
            (0..6000).map(|at: u64| if at % 700 < 600 { (at % 2, at % 3) } else { (at % 97, at % 31) });
        let set: Vec<_> = intervals(parts).into_iter().filter(|interval| interval.1 < 1 << 16).collect();
        let model = Model::train(&set);
        for (at, (low, high)) in set.iter().enumerate() {
            (*low..=*high).for_each(|x| check(&model, x, at as u32));
        }
        (0..1 << 16).for_each(|x| assert!((model.find_one(x) as usize) < set.len()));
    }

    #[test]
    fn stages_shrink_quickly() {
        for set in [
            (0..100_000_u64).map(|at| (at * at, at * at)).collect::<Vec<_>>(),
            intervals(
                (0..100_000_u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (20 + at % 40), 0)),
            ),
        ] {
            let model = Model::train(&set);
            let mut next = set.len();
            for stage in model.stages.iter().rev() {
                assert!(stage.nodes.len() <= next.div_ceil(56), "{} of {next}", stage.nodes.len());
                next = stage.nodes.len();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_window_holds_the_answer(
            parts in proptest::collection::vec((0_u32..50, 0_u32..50, any::<u64>(), any::<u64>()), 1..2500),
        ) {
            // Gaps and lengths of all magnitudes.
            let set = intervals(parts.iter().map(|(gap, length, a, b)| (a >> (8 + gap), b >> (8 + length))));
            prop_assume!(!set.is_empty());
            check_borders(&set);
        }
    }
}
