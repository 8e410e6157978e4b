//! The range-query recursive model index (RQ-RMI): where in a sorted array of intervals is the one that holds `x`?
//!
//! Submodels stand in up to three stages. Each predicts the position; the prediction of one stage chooses the submodel
//! of the next, and that of the last stage (a leaf) starts a window of the array which holds the answer.
//!
//! A submodel of the paper is a network of one input, eight hidden ReLU neurons and one output. Such a network is a
//! continuous function of at most nine straight pieces, and is stored and computed as its pieces here: eight compares
//! find the piece, one multiplication gives the value. Pieces need not meet, only not fall.
//!
//! **Why the window always holds the answer.** All arithmetic is on integers, so a prediction is one exact function of
//! `x` on every processor. A piece does not fall, as its slope is not negative and rounding down keeps order;
//! [`Node::new`] raises each piece to where the one before it ends, and each submodel of an inner stage to where its
//! predecessor ends. Hence a leaf is responsible for one unbroken range of `x`, within it the predictions for an
//! interval lie between those at its two ends, and the error at the ends, which training computes with the very
//! function that look-ups use, bounds the error everywhere. The paper needs an analysis of its networks for this (its
//! "transition inputs"), as those may fall and are computed in floating point.

use super::fit::{self, Point};
use super::lanes::{Lanes, Scalar, WINDOW, prefetch};

/// The greatest `x`. One bit less than there is, so that signed and unsigned comparisons agree.
pub(super) const MAX: u64 = u64::MAX >> 1;
/// Straight pieces of a submodel.
pub(super) const PIECES: usize = 8;
/// Intervals per leaf that training starts with.
const SPARSE: usize = 128;
/// Fewest intervals per leaf that training goes to.
const DENSE: usize = 8;
/// Of so many intervals, one may need a window wider than [`WINDOW`].
const RARE: usize = 50;

/// A straight piece.
#[derive(Clone, Copy, Debug)]
struct Linear {
    /// In units of 2⁻⁶⁴ positions. Intervals do not overlap, so no slope above one is ever useful.
    slope: u64,
    /// Position at the knot.
    base: u32,
}

/// A submodel: three cache lines, one knot for every piece.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Node {
    /// Where the pieces start; [`MAX`] for those not used.
    knots: [u64; PIECES],
    slopes: [u64; PIECES],
    bases: [u32; PIECES],
    /// How far before the prediction the window starts.
    back: u32,
    /// Width of the window.
    window: u32,
}

impl Node {
    /// Trains a submodel on `points`; no prediction is below `floor`.
    fn new(points: &[Point], mut floor: u32) -> Node {
        let mut node =
            Node { knots: [MAX; PIECES], slopes: [0; PIECES], bases: [floor; PIECES], back: 0, window: 1 };
        let fitted = fit::fit(points, PIECES);
        let mut rest = points;
        for (at, piece) in fitted.iter().enumerate() {
            let next = fitted.get(at + 1).map(|next| next.x);
            let own = rest.partition_point(|point| next.is_none_or(|next| point.x < next));
            // Rust's conversion saturates: a slope of one becomes the greatest number below it.
            let slope = (piece.slope * 2.0_f64.powi(64)) as u64;
            let base = centred(&rest[..own], piece.x, slope).max(floor);
            (node.knots[at], node.slopes[at], node.bases[at]) = (piece.x, slope, base);
            floor = ahead(Linear { slope, base }, next.map_or(MAX, |next| next - 1) - piece.x);
            rest = &rest[own..];
        }
        node.bases[fitted.len()..].fill(floor);
        node
    }

    /// The predicted position, which may lie behind the last.
    #[inline(always)]
    fn predict<L: Lanes>(&self, lanes: L, x: u64) -> u32 {
        let at = lanes.knots(&self.knots, x).saturating_sub(1) % PIECES;
        let piece = Linear { slope: self.slopes[at], base: self.bases[at] };
        ahead(piece, x.saturating_sub(self.knots[at]))
    }

    /// Takes the errors at `points`, ends of intervals, as the bound.
    fn bound(&mut self, points: &[Point], last: u32) {
        let (mut back, mut forth) = (0, 0);
        for point in points {
            let predicted = self.predict(Scalar, point.x).min(last);
            back = back.max(predicted.saturating_sub(point.y));
            forth = forth.max(point.y.saturating_sub(predicted));
        }
        (self.back, self.window) = (back, back + forth + 1);
    }
}

/// The value of a piece `right` of its knot.
#[inline(always)]
fn ahead(piece: Linear, right: u64) -> u32 {
    let rise = ((u128::from(right) * u128::from(piece.slope)) >> 64) as u64;
    (u64::from(piece.base) + rise).min(u32::MAX.into()) as u32
}

/// The base with which the errors of a piece at `points` are as large above as below.
fn centred(points: &[Point], knot: u64, slope: u64) -> u32 {
    let rise = |point: &Point| i64::from(ahead(Linear { slope, base: 0 }, point.x - knot));
    let wanted = || points.iter().map(|point| i64::from(point.y) - rise(point));
    let (least, most) = (wanted().min().unwrap_or(0), wanted().max().unwrap_or(0));
    ((least + most) / 2).max(0) as u32
}

/// From an inner stage to the next.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// First submodel of the next stage.
    first: u32,
    /// Submodels of the next stage per position, in units of 2⁻³².
    ratio: u64,
}

/// A trained index of intervals that do not overlap.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// All stages, one after the other.
    nodes: Vec<Node>,
    /// Only `depth` of them count.
    steps: [Step; 2],
    depth: usize,
    /// Where the intervals start, in order, and [`WINDOW`] times the greatest number.
    lows: Vec<u64>,
    /// The last position.
    last: u32,
}

impl Model {
    /// Trains on intervals, both ends included, that are sorted, do not overlap and are at least one.
    pub(super) fn train(intervals: &[(u64, u64)]) -> Model {
        let count = intervals.len();
        let mut leaves = (count / SPARSE).max(1);
        loop {
            let (model, wide) = Model::train_with(intervals, leaves);
            if wide <= count / RARE || leaves * DENSE >= count {
                return model;
            }
            leaves *= 2;
        }
    }

    /// With so many leaves. Also says how many intervals have a window that takes more than one comparison.
    fn train_with(intervals: &[(u64, u64)], leaves: usize) -> (Model, usize) {
        let mut lows: Vec<u64> = intervals.iter().map(|interval| interval.0).collect();
        lows.extend([MAX; WINDOW]);
        let last = intervals.len() as u32 - 1;
        let mut model = Model { nodes: Vec::new(), steps: [Step::default(); 2], depth: 0, lows, last };
        let widths: &[usize] = match leaves {
            1 => &[1],
            2..16 => &[1, leaves],
            _ => &[1, leaves.isqrt(), leaves],
        };
        let mut points = Vec::new();
        let mut wide = 0;
        for (stage, &width) in widths.iter().enumerate() {
            let first = model.nodes.len();
            if stage > 0 {
                let ratio = ((width as u64) << 32) / (u64::from(last) + 1);
                model.steps[stage - 1] = Step { first: first as u32, ratio };
            }
            let is_leaf = stage + 1 == widths.len();
            let starts = model.responsibilities(stage, first, width);
            let mut floor = 0;
            for (start, end) in std::iter::zip(&starts, &starts[1..]) {
                collect(intervals, *start, *end, &mut points);
                // Only inner stages must not fall from one submodel to the next.
                let mut node = Node::new(&points, if is_leaf { 0 } else { floor });
                if *end > *start {
                    floor = node.predict(Scalar, *end - 1);
                }
                if is_leaf {
                    node.bound(&points, last);
                    let own = points.chunk_by(|a, b| a.y == b.y).count();
                    wide += if node.window as usize > WINDOW { own } else { 0 };
                }
                model.nodes.push(node);
            }
            model.depth = stage;
        }
        (model, wide)
    }

    /// The first `x` that leads to each of `width` submodels of a stage, and the end of the last one's.
    fn responsibilities(&self, stage: usize, first: usize, width: usize) -> Vec<u64> {
        let mut starts = vec![0; width + 1];
        starts[width] = MAX + 1;
        for index in 1..width {
            let (mut from, mut to) = (starts[index - 1], MAX + 1);
            while from < to {
                let middle = from.midpoint(to);
                if self.descend(Scalar, middle, stage) < first + index {
                    from = middle + 1;
                } else {
                    to = middle;
                }
            }
            starts[index] = from;
        }
        starts
    }

    /// The submodel of a stage that is responsible for `x`.
    #[inline(always)]
    fn descend<L: Lanes>(&self, lanes: L, x: u64, stage: usize) -> usize {
        let mut at = 0;
        for step in &self.steps[..stage] {
            let predicted = self.nodes[at].predict(lanes, x).min(self.last);
            at = step.first as usize + ((u64::from(predicted) * step.ratio) >> 32) as usize;
        }
        at
    }

    /// First part of a look-up: the leaf, which is asked for from memory.
    #[inline(always)]
    pub(super) fn leaf<L: Lanes>(&self, lanes: L, x: u64) -> u32 {
        let leaf = self.descend(lanes, x, self.depth);
        prefetch(&self.nodes[leaf].knots);
        prefetch(&self.nodes[leaf].slopes);
        prefetch(&self.nodes[leaf].bases);
        leaf as u32
    }

    /// Second part: where the window starts, which is asked for as well.
    #[inline(always)]
    pub(super) fn start<L: Lanes>(&self, lanes: L, x: u64, leaf: u32) -> u32 {
        let node = &self.nodes[leaf as usize];
        let start = node.predict(lanes, x).min(self.last).saturating_sub(node.back);
        prefetch(&self.lows[start as usize]);
        prefetch(&self.lows[start as usize + WINDOW - 1]);
        start
    }

    /// Last part: the position of the interval that holds `x`. When none does, of any.
    #[inline(always)]
    pub(super) fn position<L: Lanes>(&self, lanes: L, x: u64, leaf: u32, start: u32) -> u32 {
        let mut start = start as usize;
        let mut width = (self.nodes[leaf as usize].window as usize).min(self.last as usize + 1 - start);
        while width > WINDOW {
            let half = width / 2;
            let (after, rest) = (self.lows[start + half] <= x, width - half);
            start = if after { start + half } else { start };
            width = if after { rest } else { half };
        }
        let count = match self.lows[start..].first_chunk() {
            Some(lows) => lanes.lows(lows, x),
            None => 0,
        };
        ((start + count).saturating_sub(1) as u32).min(self.last)
    }

    /// All parts, for one `x`.
    pub(super) fn find(&self, x: u64) -> u32 {
        let leaf = self.leaf(Scalar, x);
        self.position(Scalar, x, leaf, self.start(Scalar, x, leaf))
    }

    /// Where the interval at a position starts.
    pub(super) fn low(&self, position: u32) -> u64 {
        self.lows[position as usize]
    }

    /// Octets on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.lows.capacity() * size_of::<u64>()
    }
}

/// The ends of all intervals, cut to what lies from `start` to below `end`, each with the position of its interval.
///
/// Where there is none, one point with the position of the next one, so that the order of predictions is kept.
fn collect(intervals: &[(u64, u64)], start: u64, end: u64, points: &mut Vec<Point>) {
    points.clear();
    if start >= end {
        return;
    }
    let end = end - 1;
    let from = intervals.partition_point(|interval| interval.1 < start);
    let to = intervals.partition_point(|interval| interval.0 <= end);
    for (at, interval) in intervals.iter().enumerate().take(to).skip(from) {
        let (low, high) = (interval.0.max(start), interval.1.min(end));
        points.push(Point { x: low, y: at as u32 });
        if high > low {
            points.push(Point { x: high, y: at as u32 });
        }
    }
    if points.is_empty() {
        points.push(Point { x: start, y: from as u32 });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::lanes::Level;
    use super::*;

    /// What the window promises, at one `x`, on every instruction set.
    fn check(model: &Model, x: u64, expected: u32) {
        let leaf = model.leaf(Scalar, x);
        let start = model.start(Scalar, x, leaf);
        let window = model.nodes[leaf as usize].window;
        assert!((start..start + window).contains(&expected), "{x}: {expected} not in {start} + {window}");
        for level in Level::all() {
            let found = match level {
                Level::Scalar => model.find(x),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2(lanes) => find(model, lanes, x),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512(lanes) => find(model, lanes, x),
            };
            assert_eq!(found, expected, "{level:?} {x}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn find<L: Lanes>(model: &Model, lanes: L, x: u64) -> u32 {
        let leaf = model.leaf(lanes, x);
        model.position(lanes, x, leaf, model.start(lanes, x, leaf))
    }

    /// Every `x` near an end of an interval and near a border between submodels, if an interval holds it.
    fn check_borders(model: &Model, intervals: &[(u64, u64)]) {
        for (at, (low, high)) in intervals.iter().enumerate() {
            let near_low = *low..=(*low + 3).min(*high);
            let near_high = high.saturating_sub(3).max(*low)..=*high;
            for x in near_low.chain(near_high).chain([low.midpoint(*high)]) {
                check(model, x, at as u32);
            }
        }
        let knots = model.nodes.iter().flat_map(|node| node.knots);
        let first = if model.depth == 0 { 0 } else { model.steps[model.depth - 1].first as usize };
        let width = model.nodes.len() - first;
        let starts = model.responsibilities(model.depth, first, width);
        let borders = knots.chain(starts.iter().map(|start| (*start).min(MAX)));
        for border in borders {
            for x in border.saturating_sub(2)..=(border + 2).min(MAX) {
                let at = intervals.partition_point(|interval| interval.1 < x);
                if intervals.get(at).is_some_and(|interval| interval.0 <= x) {
                    check(model, x, at as u32);
                }
            }
        }
    }

    /// Intervals from gaps and lengths, as far as they fit.
    fn intervals(parts: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let mut next = Some(0_u64);
        let mut out = Vec::new();
        for (gap, length) in parts {
            let Some(low) = next.map(|next| next + gap).filter(|low| *low <= MAX) else { break };
            let Some(high) = Some(low + length).filter(|high| *high <= MAX) else { break };
            out.push((low, high));
            next = Some(high + 1);
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
        ] {
            check_borders(&Model::train(&set), &set);
        }
    }

    #[test]
    fn every_x_of_a_small_universe() {
        // Clusters of dense and sparse intervals within 16 bits: a port field, tried at every port.
        let parts =
            (0..6000).map(|at: u64| if at % 700 < 600 { (at % 2, at % 3) } else { (at % 97, at % 31) });
        let set: Vec<_> = intervals(parts).into_iter().filter(|interval| interval.1 < 1 << 16).collect();
        let model = Model::train(&set);
        for (at, (low, high)) in set.iter().enumerate() {
            (*low..=*high).for_each(|x| check(&model, x, at as u32));
        }
        // Whatever is not in an interval finds some position, and never an invalid one.
        (0..1 << 16).chain([MAX]).for_each(|x| assert!((model.find(x) as usize) < set.len()));
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
            for leaves in [1, 7, 64] {
                check_borders(&Model::train_with(&set, leaves).0, &set);
            }
            check_borders(&Model::train(&set), &set);
        }
    }
}
