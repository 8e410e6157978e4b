//! How good a cut or a split would be, estimated from a sample of the rules.
//!
//! Large nodes are few but cost the most, so every estimate looks at [`SAMPLE`] rules at most, evenly spread over the
//! order. Parts that are smaller are looked at whole.

use super::build::{Action, Part, Space};
use super::node::{Extent, MAX_CUT_BITS, MAX_CUTS};

/// Rules that an estimate looks at.
const SAMPLE: usize = 512;
/// A rule that reaches more children of a cut, or more than half of them, would rather stand beside the cut.
const FAR: usize = 16;

/// What the rules of a sample match in one dimension of a part.
#[derive(Clone, Debug)]
pub struct Column {
    /// Number among the dimensions.
    pub dim: u8,
    extents: Vec<Extent>,
    /// Bits that differ within the region, from the lowest.
    differ: u32,
}

/// A split and what it would lead to, in rules of the sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Split {
    dim: u8,
    bound: u32,
    /// Rules on the larger side.
    pub larger: usize,
    /// Rules that stand on both sides.
    pub copied: usize,
}

impl Split {
    /// As an action.
    pub fn action(&self) -> Action {
        Action::Split(self.dim, self.bound)
    }
}

impl Column {
    /// Dimensions of a part in which something can be divided.
    pub fn all(space: &Space, part: &Part) -> Vec<Column> {
        (0..space.dims().len()).filter_map(|dim| Column::new(space, part, dim)).collect()
    }

    /// One dimension; `None` when its rules cannot be told apart there.
    pub fn new(space: &Space, part: &Part, dim: usize) -> Option<Column> {
        let (first, last) = part.region[dim];
        let step = part.rules.len().div_ceil(SAMPLE).max(1);
        let extents: Vec<Extent> =
            part.rules.iter().step_by(step).map(|&rule| space.clipped(part, rule, dim)).collect();
        let whole = extents.iter().all(|extent| extent.first == first && extent.last == last);
        let differ = u32::BITS - (first ^ last).leading_zeros();
        (!whole).then_some(Column { dim: dim as u8, extents, differ })
    }

    /// Ranges that differ from each other.
    pub fn distinct(&self) -> usize {
        let mut ranges: Vec<(u32, u32)> =
            self.extents.iter().map(|extent| (extent.first, extent.last)).collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges.len()
    }

    /// The places between the end points of the ranges, in order: bound, rules that begin up to it, rules that end up
    /// to it.
    fn bounds(&self) -> Vec<(u32, usize, usize)> {
        let mut firsts: Vec<u32> = self.extents.iter().map(|extent| extent.first).collect();
        let mut lasts: Vec<u32> = self.extents.iter().map(|extent| extent.last).collect();
        firsts.sort_unstable();
        lasts.sort_unstable();
        let (mut begun, mut ended) = (0, 0);
        let mut bounds = Vec::with_capacity(2 * firsts.len());
        while ended < lasts.len() {
            // The next bound: before a range begins, or where one ends.
            let bound = match firsts.get(begun) {
                Some(&first) if first <= lasts[ended] => {
                    begun += firsts[begun..].iter().take_while(|&&other| other == first).count();
                    match firsts.get(begun) {
                        Some(&next) if next <= lasts[ended] => next - 1,
                        _ => lasts[ended],
                    }
                }
                Some(&first) if lasts[ended] < first - 1 => lasts[ended],
                Some(&first) => first - 1,
                None => lasts[ended],
            };
            ended += lasts[ended..].iter().take_while(|&&last| last <= bound).count();
            bounds.push((bound, begun, ended));
        }
        bounds
    }

    /// Rules that cover a segment between two end points, on the average.
    pub fn overlap(&self) -> f64 {
        let bounds = self.bounds();
        let mut before = 0;
        let mut covered = 0;
        for &(_, begun, ended) in &bounds {
            covered += begun - before;
            before = ended;
        }
        covered as f64 / bounds.len().max(1) as f64
    }

    /// The split that leaves the fewest rules on the larger side, copies counted twice.
    pub fn best_split(&self) -> Option<Split> {
        let rules = self.extents.len();
        let splits = self.bounds().into_iter().map(|(bound, begun, ended)| {
            let (left, right) = (begun, rules - ended);
            let copied = left + right - rules;
            Split { dim: self.dim, bound, larger: left.max(right), copied }
        });
        splits.filter(|split| split.larger < rules).min_by_key(|split| split.larger + split.copied)
    }
}

/// Bits of up to three dimensions that divide the sample best, at most `bits` in all.
///
/// Bits are given one by one to the dimension where they leave the fewest pairs of rules together, as long as the copies
/// stay below `growth` percent of the rules. With `beside`, rules that reach far are no copies but a group of their own.
pub fn best_cut(columns: &[Column], bits: u32, growth: usize, beside: bool) -> Option<Action> {
    let rules = columns.first()?.extents.len();
    let bits = bits.min(MAX_CUT_BITS);
    let mut taken: Vec<(usize, u32)> = Vec::new();
    let mut together = rules * rules;
    let mut chosen = Vec::new();
    let mut cells = Cells { beside, ..Cells::default() };
    for _ in 0..bits {
        let mut best: Option<(usize, Vec<(usize, u32)>)> = None;
        for (at, column) in columns.iter().enumerate() {
            let Some(trial) = add_bit(&taken, at, column.differ) else { continue };
            let (copies, pairs) = cells.count(columns, &trial);
            let fits = copies * 100 <= rules * growth;
            if fits && best.as_ref().is_none_or(|(fewest, _)| pairs < *fewest) {
                best = Some((pairs, trial));
            }
        }
        let Some((pairs, trial)) = best else { break };
        // A bit that does nothing may still have to be passed for the next to do something.
        taken = trial;
        if pairs < together {
            together = pairs;
            chosen.clone_from(&taken);
        }
    }
    let mut cuts = [(0, 0); MAX_CUTS];
    for (cut, (at, bits)) in cuts.iter_mut().zip(&chosen) {
        *cut = (columns[*at].dim, *bits as u8);
    }
    (!chosen.is_empty()).then_some(Action::Cut(cuts))
}

/// One more bit for a dimension; `None` when it has no more, or would be one dimension too many.
fn add_bit(taken: &[(usize, u32)], at: usize, differ: u32) -> Option<Vec<(usize, u32)>> {
    let mut trial = taken.to_vec();
    match trial.iter().position(|(other, _)| *other == at) {
        Some(place) if trial[place].1 < differ => trial[place].1 += 1,
        None if differ > 0 && trial.len() < MAX_CUTS => trial.push((at, 1)),
        _ => return None,
    }
    Some(trial)
}

/// Room to count the rules of cells in.
#[derive(Clone, Debug, Default)]
struct Cells {
    beside: bool,
    counts: Vec<u32>,
    reached: Vec<u32>,
}

impl Cells {
    /// Rules in all cells, and the sum of their squares.
    fn count(&mut self, columns: &[Column], cuts: &[(usize, u32)]) -> (usize, usize) {
        let all: u32 = cuts.iter().map(|(_, bits)| bits).sum();
        self.counts.clear();
        self.counts.resize(1 << all, 0);
        let rules = columns.first().map_or(0, |column| column.extents.len());
        let mut far = 0;
        for rule in 0..rules {
            let reach: usize = cuts
                .iter()
                .map(|&(at, bits)| columns[at].extents[rule].reach(columns[at].differ - bits, bits))
                .product();
            if self.beside && reach > FAR.min(self.counts.len() / 2) {
                far += 1;
                continue;
            }
            self.reached.clear();
            self.reached.push(0);
            for &(at, bits) in cuts {
                let column = &columns[at];
                let before = self.reached.len();
                let reached = &mut self.reached;
                column.extents[rule].cut(column.differ - bits, bits, |cell, _| {
                    for from in 0..before {
                        reached.push(reached[from] << bits | cell);
                    }
                });
                self.reached.drain(..before);
            }
            self.reached.iter().for_each(|&cell| self.counts[cell as usize] += 1);
        }
        let sums = self.counts.iter().map(|&count| (count as usize, (count as usize).pow(2)));
        sums.fold((far, far * far), |(copies, pairs), (count, square)| (copies + count, pairs + square))
    }
}
