//! Which bits to index by.
//!
//! The bits are taken one by one. Each divides every cell that is still too large in two; a rule that leaves the bit
//! open goes into both halves. Wanted are small cells for those who look up, so a bit is worth the drop in what a
//! packet drawn from a random rule has to scan. A rule that leaves more than [`MAX_OPEN`] of the bits open is turned
//! away instead and goes to the next table, at a price.

use crate::matcher::{Field, Matcher};
use crate::store::{PAIRS, pair};

/// Bits of the index that a rule may leave open: it belongs to two to this power of cells.
pub(super) const MAX_OPEN: u32 = 4;
/// Bits of an index at most: 2²⁰ cells of 4 octets.
const MAX_BITS: usize = 20;
/// What turning a rule away costs, in rules scanned.
const AWAY: f64 = 60.0;
/// The same for more than so many rules of two kinds. Their look-ups wait for memory, more so the more tables they go
/// through: with 200 they took 10 to 30 % less. With fewer rules, or of one kind, they took as much or more, and rules
/// were in more cells.
const AWAY_MANY: (usize, f64) = (4096, 200.0);
/// Cells with no more rules are not divided further.
pub(super) const SMALL: usize = 8;
/// Rules looked at when choosing: more do not choose better, and choosing is most of the time of building.
const SAMPLE: usize = 8192;
/// Pairs of rules looked at when choosing the bits of a filter.
const SAMPLE_PAIRS: usize = 2048;
/// Bits of a filter: what a line has room for.
const FILTER_BITS: usize = 16;
/// Fewer rules mostly fit one table, of whatever kinds they are: one took 10 to 20 % less with 300 and 600.
const CLASS_RULES: usize = 700;
/// Rules looked at when parting them into kinds.
const CLASS_SAMPLE: usize = 1024;
/// Bits that rules of two kinds demand differently, at least. IPv6 differs from IPv4 by 60 to 130; protocols with ports
/// from those without by 20, which made look-ups slower.
const CLASS_WORTH: f32 = 48.0;
/// Least part of the cost that a bit has to save, since it doubles the index.
const LEAST_GAIN: f64 = 0.01;

/// What a rule demands of every bit, ports included as far as their range is a prefix.
///
/// In pairs of words, as they are gathered: reading a pair just after writing its halves would wait for both.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ternary {
    pub mask: [u64; PAIRS],
    pub value: [u64; PAIRS],
}

impl Ternary {
    #[inline(always)]
    pub fn new(matcher: &Matcher) -> Ternary {
        let mut ternary = Ternary {
            mask: std::array::from_fn(|at| pair(&matcher.mask, at)),
            value: std::array::from_fn(|at| pair(&matcher.value, at)),
        };
        let (source, destination) = (Field::SOURCE_PORT, Field::DESTINATION_PORT);
        // Word 2 of a matcher is empty.
        ternary.mask[1] |= u64::from(matcher.mask(source) << 16 | matcher.mask(destination));
        ternary.value[1] |= u64::from(matcher.value(source) << 16 | matcher.value(destination));
        ternary
    }

    /// Whether the bit has to have a certain value.
    #[inline(always)]
    fn demands(&self, bit: usize) -> bool {
        self.mask[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Which.
    #[inline(always)]
    fn is_one(&self, bit: usize) -> bool {
        self.value[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Whether the bit has to have this value.
    pub fn is(&self, bit: usize, value: bool) -> bool {
        self.demands(bit) && self.is_one(bit) == value
    }

    /// Bits of which the two demand different values.
    fn excludes(&self, other: &Ternary) -> [u64; PAIRS] {
        std::array::from_fn(|at| (self.value[at] ^ other.value[at]) & self.mask[at] & other.mask[at])
    }
}

/// Bits to index by, the most dividing first.
pub(super) type Selection = Vec<usize>;

/// A rule in a cell.
#[derive(Clone, Copy)]
struct Member {
    rule: u32,
    /// Part of the rule: one that is in four cells is a quarter of a rule in each, since of the packets that match it
    /// a quarter come here.
    part: f32,
}

/// What turning away one of so many rules costs.
pub(super) fn away(rules: usize, kinds: bool) -> f64 {
    if kinds && rules > AWAY_MANY.0 { AWAY_MANY.1 } else { AWAY }
}

/// Chooses the bits of an index for `rules`; none when none is worth it. Turning a rule away costs `away`.
pub(super) fn index_bits(rules: &[&Ternary], away: f64) -> Selection {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<&Ternary> = rules.iter().copied().step_by(step).collect();
    let all = (0..sample.len() as u32).map(|rule| Member { rule, part: 1.0 }).collect();
    let most = (rules.len().max(2).ilog2() as usize + 2).min(MAX_BITS);
    Chooser::new(sample, vec![all], step as f64, away).choose(most)
}

/// Chooses the bits that tell the rules of a cell apart: those that a line of the cell holds of each of its rules.
/// `cells` are positions in `rules`.
///
/// A bit is worth the pairs of rules of one cell that demand different values of it. A pair that is told apart already
/// counts for less, but counts: a packet of the one rule may be anything where that rule leaves bits open.
pub(super) fn filter_bits(rules: &[&Ternary], cells: &[Vec<u32>], index: &Selection) -> Selection {
    let pairs =
        cells.iter().flat_map(|cell| cell.windows(2).chain(cell.chunks(8).filter(|few| few.len() > 2)));
    let all: Vec<(&Ternary, &Ternary)> = pairs
        .filter_map(|few| Some((*rules.get(*few.first()? as usize)?, *rules.get(*few.last()? as usize)?)))
        .collect();
    let step = (all.len() / SAMPLE_PAIRS).max(1);
    let mut pairs: Vec<([u64; PAIRS], f32)> =
        all.iter().step_by(step).map(|(one, other)| (one.excludes(other), 1.0)).collect();
    let mut chosen = Selection::new();
    while chosen.len() < FILTER_BITS {
        let mut worth = [0.0f32; PAIRS * 64];
        for (differ, weight) in &pairs {
            for (at, differ) in differ.iter().enumerate() {
                let mut left = *differ;
                while left != 0 {
                    worth[at * 64 + left.trailing_zeros() as usize] += weight;
                    left &= left - 1;
                }
            }
        }
        index.iter().chain(&chosen).for_each(|taken| worth[*taken] = 0.0);
        let best = (0..worth.len()).max_by(|a, b| worth[*a].total_cmp(&worth[*b]));
        let Some(bit) = best.filter(|bit| worth[*bit] > 0.0) else { break };
        chosen.push(bit);
        for (differ, weight) in &mut pairs {
            if differ[bit / 64] >> (bit % 64) & 1 == 1 {
                *weight /= 4.0;
            }
        }
    }
    chosen
}

/// Chooses the bit of word 3 that parts rules into two kinds which demand different things: none when there is none.
///
/// Nearly every rule has to demand it, with either value, and its value has to foretell which other bits the rule
/// demands: rules for IPv6 look at other words than those for IPv4. Each kind has tables of its own, whose bits its
/// rules do not leave open.
pub(super) fn class_bit(rules: &[&Ternary]) -> Option<usize> {
    if rules.len() < CLASS_RULES {
        return None;
    }
    let step = rules.len().div_ceil(CLASS_SAMPLE);
    let sample: Vec<&Ternary> = rules.iter().copied().step_by(step).collect();
    let worth = (96..128).filter_map(|bit| Some((class_worth(&sample, bit)?, bit)));
    let (worth, bit) = worth.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (worth >= CLASS_WORTH).then_some(bit)
}

/// How many bits more or less a rule demands when it demands a one of this bit than when it demands a zero, pair by
/// pair. None when too few rules demand the one or the other.
fn class_worth(sample: &[&Ternary], bit: usize) -> Option<f32> {
    let mut bits = [[0.0; PAIRS]; 2];
    let mut count = [0; 2];
    for rule in sample.iter().filter(|rule| rule.demands(bit)) {
        let which = usize::from(rule.is_one(bit));
        count[which] += 1;
        bits[which].iter_mut().zip(rule.mask).for_each(|(sum, mask)| *sum += mask.count_ones() as f32);
    }
    let [zero, one] = [0, 1].map(|which| bits[which].map(|sum| sum / count[which] as f32));
    let rare = count[0].min(count[1]) * 32 < sample.len();
    let often = (count[0] + count[1]) * 8 > sample.len() * 7;
    (often && !rare).then(|| zero.iter().zip(one).map(|(zero, one)| (zero - one).abs()).sum())
}

struct Chooser<'a> {
    sample: Vec<&'a Ternary>,
    /// How many rules each of the sample stands for.
    scale: f64,
    /// What turning a rule away costs.
    away: f64,
    /// Bits that divide at all.
    candidates: Selection,
    /// Chosen bits that each rule leaves open.
    open: Vec<u32>,
    /// Cells that are worth dividing.
    cells: Vec<Vec<Member>>,
}

/// What one half of a cell would hold.
#[derive(Clone, Copy, Default)]
struct Half {
    members: u32,
    parts: f32,
}

impl Half {
    #[inline]
    fn add(&mut self, part: f32) {
        self.members += 1;
        self.parts += part;
    }

    /// What scanning costs all who do.
    fn cost(self, chooser: &Chooser) -> f64 {
        let scale = chooser.scale;
        f64::from(self.parts) * scale * (f64::from(self.members) * scale).max(SMALL as f64)
    }
}

impl<'a> Chooser<'a> {
    fn new(sample: Vec<&'a Ternary>, cells: Vec<Vec<Member>>, scale: f64, away: f64) -> Chooser<'a> {
        let candidates = (0..PAIRS * 64).filter(|bit| divides(&sample, *bit)).collect();
        Chooser { open: vec![0; sample.len()], sample, scale, away, candidates, cells }
    }

    fn choose(mut self, most: usize) -> Selection {
        let mut chosen = Selection::new();
        while chosen.len() < most {
            let Some(bit) = self.best_bit() else { break };
            self.candidates.retain(|candidate| *candidate != bit);
            chosen.push(bit);
            self.divide(bit);
        }
        chosen
    }

    /// The bit that saves most; none when it saves too little.
    fn best_bit(&self) -> Option<usize> {
        let cost = |cell: &Vec<Member>| {
            let mut whole = Half::default();
            cell.iter().for_each(|member| whole.add(member.part));
            whole.cost(self)
        };
        let present: f64 = self.cells.iter().map(cost).sum();
        let divided = |bit| self.cells.iter().map(|cell| self.divided(cell, bit)).sum::<f64>();
        let costs = self.candidates.iter().map(|bit| (divided(*bit), *bit));
        let (least, bit) = costs.min_by(|a, b| a.0.total_cmp(&b.0))?;
        (present - least > LEAST_GAIN * present).then_some(bit)
    }

    /// What the cell costs after division by a bit.
    fn divided(&self, cell: &[Member], bit: usize) -> f64 {
        let (mut zero, mut one, mut away) = (Half::default(), Half::default(), 0.0f32);
        for member in cell {
            let rule = self.sample[member.rule as usize];
            if rule.demands(bit) {
                if rule.is_one(bit) { one.add(member.part) } else { zero.add(member.part) }
            } else if self.open[member.rule as usize] < MAX_OPEN {
                one.add(member.part / 2.0);
                zero.add(member.part / 2.0);
            } else {
                away += member.part;
            }
        }
        zero.cost(self) + one.cost(self) + f64::from(away) * self.scale * self.away
    }

    /// Divides the cells; those that become small are done.
    fn divide(&mut self, bit: usize) {
        let mut halves = Vec::with_capacity(self.cells.len() * 2);
        for cell in &self.cells {
            let (mut zero, mut one) = (Vec::new(), Vec::new());
            for member in cell {
                let rule = self.sample[member.rule as usize];
                if rule.demands(bit) {
                    if rule.is_one(bit) { &mut one } else { &mut zero }.push(*member);
                } else if self.open[member.rule as usize] < MAX_OPEN {
                    let half = Member { part: member.part / 2.0, ..*member };
                    zero.push(half);
                    one.push(half);
                }
            }
            let large = |half: &Vec<Member>| half.len() as f64 * self.scale > SMALL as f64;
            halves.extend([zero, one].into_iter().filter(large));
        }
        for (rule, open) in self.sample.iter().zip(&mut self.open) {
            *open += u32::from(!rule.demands(bit));
        }
        self.cells = halves;
    }
}

/// Whether some rules demand a zero and some a one, enough of them.
fn divides(sample: &[&Ternary], bit: usize) -> bool {
    let demanding = sample.iter().filter(|rule| rule.demands(bit)).count();
    let one = sample.iter().filter(|rule| rule.is_one(bit)).count();
    one.min(demanding - one) * 64 > sample.len()
}
