//! The range-query recursive model index (RQ-RMI): finds the interval that holds `x` in a sorted array of
//! intervals.
//!
//! Submodels are in stages. The first stage has one submodel; each stage leads to a submodel of the next, and
//! the last stage to the interval. A submodel predicts a position, and one vector comparison searches a window
//! around the prediction, so the result is exact.
//!
//! A submodel of the paper is a network of one input, eight hidden ReLU neurons and one output. Such a network
//! is a continuous function of at most nine straight pieces; here the pieces themselves are stored. Eight
//! comparisons find the piece, and one multiplication gives the value. Neighbouring pieces need not meet.
//!
//! **Training** works in the opposite direction to the paper's. In the paper the number of submodels is given,
//! each stage is trained on the inputs that the stage before sends to it, and the error is what results; a
//! prediction of an inner stage is never corrected. Inputs that cluster at several scales, as sequences of
//! fields do, then nearly all end in one leaf, whose error is the whole array (we tried). Here the error is
//! given, at most half a [`WINDOW`]. Pieces are as long as it allows, eight pieces are a submodel, and the
//! ranges of the submodels are the intervals of the stage before. Each stage takes one pass, and has at most a
//! 56th of the submodels of the next.
//!
//! **Why the window always contains the answer.** All arithmetic is on integers, so a prediction is the same
//! function of `x` on every processor. A piece starts at the lower end of an interval, so each interval lies
//! within one piece. A piece never decreases, as its slope is not negative and rounding down keeps order. Hence
//! the predictions for an interval lie between those at its two ends. Training computes the errors at the ends
//! with the function that look-ups use, and these errors bound the error everywhere. The paper needs an
//! analysis of its networks for this (its "transition inputs"), as those may decrease and are computed in
//! floating point.

use super::fit::{self, Interval};
use super::lanes::{Lanes, Scalar, WINDOW, prefetch};

/// The greatest `x`: 63 bits, so that signed and unsigned comparisons agree.
pub(super) const MAX: u64 = u64::MAX >> 1;
/// Number of straight pieces of a submodel.
pub(super) const PIECES: usize = 8;
/// Greatest error with which pieces are fitted. Rounding slope and value down adds less than two, so all
/// errors, and the position itself, fit into a window.
const ERROR: f64 = (WINDOW / 2 - 2) as f64;
/// Most intervals of a piece: with this many, rounding slopes to 26 bits has no effect.
const LONGEST: usize = 1 << 20;

/// A submodel, in two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Node {
    /// Starts of the pieces; [`MAX`] for unused pieces.
    knots: [u64; PIECES],
    slopes: [Slope; PIECES],
    /// Start of each piece's window at its knot: the predicted position less the greatest error.
    bases: [i32; PIECES],
}

impl Node {
    /// The submodel of as many intervals from `first` on as eight pieces can hold; also returns their number.
    fn train(intervals: &[Interval], first: usize) -> (Node, usize) {
        let mut node = Node { knots: [MAX; PIECES], slopes: [Slope(0); PIECES], bases: [0; PIECES] };
        let mut next = first;
        for at in 0..PIECES {
            if next == intervals.len() {
                // For MAX this is the last piece, used or not.
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

    /// Start of the window; may be before the first position or behind the last.
    #[inline(always)]
    fn start<L: Lanes>(&self, lanes: L, x: u64) -> i64 {
        let at = lanes.knots(&self.knots, x).saturating_sub(1) % PIECES;
        start(self.slopes[at], self.bases[at], x.saturating_sub(self.knots[at]))
    }
}

/// Positions per input, in units of 2⁻⁶⁴: a 26-bit number, and in the lower 6 bits its left shift.
///
/// Intervals do not overlap, so no slope above one is ever useful.
#[derive(Clone, Copy, Debug)]
struct Slope(u32);

impl Slope {
    const BITS: u32 = 26;

    /// The slope, rounded down.
    fn new(slope: f64) -> Slope {
        // Rust's conversion saturates: a slope of one becomes the greatest number below it.
        let units = (slope * 2.0_f64.powi(64)) as u64;
        let shift = (u64::BITS - Self::BITS).saturating_sub(units.leading_zeros());
        Slope(((units >> shift) as u32) << 6 | shift)
    }

    #[inline(always)]
    fn units(self) -> u64 {
        u64::from(self.0 >> 6) << (self.0 & 63)
    }
}

/// The value of a piece at distance `right` from its knot.
#[inline(always)]
fn start(slope: Slope, base: i32, right: u64) -> i64 {
    i64::from(base) + ((u128::from(right) * u128::from(slope.units())) >> 64) as i64
}

/// One stage: its submodels, and the positions that they search.
#[derive(Clone, Debug)]
struct Stage {
    nodes: Vec<Node>,
    /// Starts of the ranges of the next stage's submodels, or of the intervals, in order; then [`WINDOW`] times
    /// the greatest number.
    lows: Vec<u64>,
    /// The last valid index of `lows`.
    last: u32,
}

impl Stage {
    /// Trains on intervals; also returns the ranges of the submodels.
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

    /// First half of a step: computes the start of the window and prefetches it.
    #[inline(always)]
    fn start<L: Lanes>(&self, lanes: L, x: u64, node: u32) -> u32 {
        let start = self.nodes[node as usize].start(lanes, x).clamp(0, self.last.into()) as u32;
        let window = &self.lows[start as usize..start as usize + WINDOW];
        window.iter().step_by(8).chain(window.last()).for_each(prefetch);
        start
    }

    /// Second half: the position of the interval that holds `x`; some valid position when no interval does.
    #[inline(always)]
    fn position<L: Lanes>(&self, lanes: L, x: u64, start: u32) -> u32 {
        let count = match self.lows[start as usize..].first_chunk() {
            Some(lows) => lanes.lows(lows, x),
            None => 0,
        };
        (start + count as u32).saturating_sub(1).min(self.last)
    }

    /// Prefetches a submodel.
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
    /// The first stage has one submodel.
    stages: Vec<Stage>,
}

impl Model {
    /// Trains on at least one interval; the intervals must be sorted and not overlap.
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

    /// Replaces each input of `xs` by the position of the interval that holds it, or by some valid position.
    ///
    /// Every half step is done for all inputs before the next.
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

    /// Number of stages.
    #[inline(always)]
    pub(super) fn stages(&self) -> usize {
        self.stages.len()
    }

    /// First half of the step of one stage, for one input. `place` is the result of the stage before, zero for
    /// the first. Does nothing when the stage does not exist.
    #[inline(always)]
    pub(super) fn predict<L: Lanes>(&self, lanes: L, stage: usize, x: u64, place: u32) -> u32 {
        self.stages.get(stage).map_or(place, |stage| stage.start(lanes, x, place))
    }

    /// Second half of the step.
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

    /// Lower end of the interval at a position.
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

    /// Checks on every instruction set that each stage's window contains its answer, and that the result is
    /// right.
    fn check(model: &Model, x: u64, expected: u32) {
        let mut node = 0;
        for (depth, stage) in model.stages.iter().enumerate() {
            // Position of the interval or submodel that holds `x`, by binary search.
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

    /// Checks every `x` near an end of an interval, and so of a piece and a submodel, if an interval holds it.
    fn check_borders(set: &[Interval]) {
        let model = Model::train(set);
        for (at, (low, high)) in set.iter().enumerate() {
            let near_low = *low..=(*low + 3).min(*high);
            let near_high = high.saturating_sub(3).max(*low)..=*high;
            for x in near_low.chain(near_high).chain([low.midpoint(*high)]) {
                check(&model, x, at as u32);
            }
        }
        // An input outside all intervals finds some valid position.
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
        // Dense and sparse intervals within 16 bits, as in a port field; every port is tried.
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
