//! Estimates, from a sample of the rules, how good a cut or a split would be.
//!
//! Large nodes are few but take most of the time, so every estimate uses at most [`SAMPLE`] rules, evenly
//! spread over the order. In smaller parts all rules are used.

use super::build::{Action, Part, Space};
use super::node::{Extent, MAX_CUT_BITS, MAX_CUTS};

/// Most rules that an estimate uses.
const SAMPLE: usize = 512;
/// A rule that reaches more than this number of a cut's children, or more than half of them, counts as one for
/// a separate tree.
const FAR: usize = 16;

/// The values of one dimension of a part that the rules of a sample match.
#[derive(Clone, Debug)]
pub struct Column {
    /// Index of the dimension.
    pub dim: u8,
    extents: Vec<Extent>,
    /// Mask of the bits that differ within the region, starting at the lowest.
    differ: u32,
}

/// A split and its effect, in rules of the sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Split {
    dim: u8,
    bound: u32,
    /// Rules on the larger side.
    pub larger: usize,
    /// Rules that would be on both sides.
    pub copied: usize,
}

impl Split {
    /// The split as an action.
    pub fn action(&self) -> Action {
        Action::Split(self.dim, self.bound)
    }
}

impl Column {
    /// The dimensions of a part in which its rules can be divided.
    pub fn all(space: &Space, part: &Part) -> Vec<Column> {
        (0..space.dims().len()).filter_map(|dim| Column::new(space, part, dim)).collect()
    }

    /// The column of one dimension; `None` when the dimension does not tell the part's rules apart.
    pub fn new(space: &Space, part: &Part, dim: usize) -> Option<Column> {
        let (first, last) = part.region[dim];
        let step = part.rules.len().div_ceil(SAMPLE).max(1);
        let extents: Vec<Extent> =
            part.rules.iter().step_by(step).map(|&rule| space.clipped(part, rule, dim)).collect();
        let whole = extents.iter().all(|extent| extent.first == first && extent.last == last);
        let differ = u32::BITS - (first ^ last).leading_zeros();
        (!whole).then_some(Column { dim: dim as u8, extents, differ })
    }

    /// Number of different ranges.
    pub fn distinct(&self) -> usize {
        let mut ranges: Vec<(u32, u32)> =
            self.extents.iter().map(|extent| (extent.first, extent.last)).collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges.len()
    }

    /// All possible bounds, at end points of the ranges, in order. Each with the number of rules that begin at
    /// or below it, and of rules that end at or below it.
    fn bounds(&self) -> Vec<(u32, usize, usize)> {
        let mut firsts: Vec<u32> = self.extents.iter().map(|extent| extent.first).collect();
        let mut lasts: Vec<u32> = self.extents.iter().map(|extent| extent.last).collect();
        firsts.sort_unstable();
        lasts.sort_unstable();
        let (mut begun, mut ended) = (0, 0);
        let mut bounds = Vec::with_capacity(2 * firsts.len());
        while ended < lasts.len() {
            // The next bound is just before the start of a range, or at the end of one.
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

    /// Average number of rules that cover a segment between two neighbouring end points.
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

    /// The split that leaves the fewest rules on the larger side; copies count twice.
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

/// The bits of up to three dimensions that divide the sample best, at most `bits` in all.
///
/// Bits are added one by one to the dimension where they leave the fewest pairs of rules together, as long as
/// the copies stay below `growth` percent of the rules. With `beside`, rules that reach far do not count as
/// copies: they go to a separate tree.
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
        // A bit that divides nothing is kept too: the bit below it may divide well.
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

/// Adds a bit to a dimension; `None` when the dimension has no more bits, or the cut would have one dimension
/// too many.
fn add_bit(taken: &[(usize, u32)], at: usize, differ: u32) -> Option<Vec<(usize, u32)>> {
    let mut trial = taken.to_vec();
    match trial.iter().position(|(other, _)| *other == at) {
        Some(place) if trial[place].1 < differ => trial[place].1 += 1,
        None if differ > 0 && trial.len() < MAX_CUTS => trial.push((at, 1)),
        _ => return None,
    }
    Some(trial)
}

/// Buffer to count the rules of each child.
#[derive(Clone, Debug, Default)]
struct Cells {
    beside: bool,
    counts: Vec<u32>,
    reached: Vec<u32>,
}

impl Cells {
    /// Sum of the rules of all children, and sum of the squares.
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
