//! Chooses the bits of the index.
//!
//! The bits are chosen one by one. Each divides every cell that is still too large in two; a rule that leaves
//! the bit open goes into both halves. Look-ups want small cells, so the value of a bit is how much it reduces
//! the rules to scan for a packet that matches a random rule. A rule that leaves more than [`MAX_OPEN`] of the
//! bits open is not copied that often: it goes to the next table, at a cost.

use crate::matcher::{Field, Matcher};
use crate::store::{PAIRS, pair};

/// Most bits of the index that a rule may leave open: with n open bits it is in 2ⁿ cells.
pub(super) const MAX_OPEN: u32 = 4;
/// Most bits of an index: 2²⁰ cells of 4 octets.
const MAX_BITS: usize = 20;
/// Cost of leaving a rule to the next table, in rules scanned.
const AWAY: f64 = 60.0;
/// The same cost for more than this number of rules of two kinds. Their look-ups wait for memory, the more so
/// the more tables they go through: with a cost of 200 they took 10 to 30 % less time. With fewer rules, or
/// with one kind, they took as long or longer, and rules were in more cells.
const AWAY_MANY: (usize, f64) = (4096, 200.0);
/// Cells with at most this many rules are not divided further.
pub(super) const SMALL: usize = 8;
/// Most rules examined for a choice. More do not improve it, and choosing takes most of the time of a build.
const SAMPLE: usize = 8192;
/// Most pairs of rules examined when choosing the bits of a filter.
const SAMPLE_PAIRS: usize = 2048;
/// Bits of a filter, as many as a line has room for.
const FILTER_BITS: usize = 16;
/// Fewer rules mostly fit one table whatever their kinds are: with 300 and 600 rules one table took 10 to 20 %
/// less time.
const CLASS_RULES: usize = 700;
/// Most rules examined when dividing rules into kinds.
const CLASS_SAMPLE: usize = 1024;
/// Rules of two kinds must differ in the number of bits that they require by at least this. IPv6 differs from
/// IPv4 by 60 to 130. Protocols with ports differ from those without by 20, and separating them made look-ups
/// slower.
const CLASS_WORTH: f32 = 48.0;
/// Least share of the cost that a bit has to save, since it doubles the index.
const LEAST_GAIN: f64 = 0.01;

/// The bits that a rule requires and their values. Port ranges count as far as they are prefixes.
///
/// Stored in pairs of words, as they are gathered: reading a pair just after writing its halves would stall
/// until both are written.
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

    /// Whether the rule requires a value of this bit.
    #[inline(always)]
    fn demands(&self, bit: usize) -> bool {
        self.mask[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// The value that it requires.
    #[inline(always)]
    fn is_one(&self, bit: usize) -> bool {
        self.value[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Whether the rule requires this value of the bit.
    pub fn is(&self, bit: usize, value: bool) -> bool {
        self.demands(bit) && self.is_one(bit) == value
    }

    /// Mask of the bits for which the two rules require different values.
    fn excludes(&self, other: &Ternary) -> [u64; PAIRS] {
        std::array::from_fn(|at| (self.value[at] ^ other.value[at]) & self.mask[at] & other.mask[at])
    }
}

/// Bits of an index; those that divide most come first.
pub(super) type Selection = Vec<usize>;

/// A rule in a cell.
#[derive(Clone, Copy)]
struct Member {
    rule: u32,
    /// Share of the rule: a rule in four cells counts a quarter in each, since a quarter of the packets that
    /// match it come there.
    /// a quarter come here.
    part: f32,
}

/// Cost of leaving one of this many rules to the next table.
pub(super) fn away(rules: usize, kinds: bool) -> f64 {
    if kinds && rules > AWAY_MANY.0 { AWAY_MANY.1 } else { AWAY }
}

/// Chooses the bits of an index for `rules`; empty when no bit pays. `away` is the cost of leaving a rule to
/// the next table.
pub(super) fn index_bits(rules: &[&Ternary], away: f64) -> Selection {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<&Ternary> = rules.iter().copied().step_by(step).collect();
    let all = (0..sample.len() as u32).map(|rule| Member { rule, part: 1.0 }).collect();
    let most = (rules.len().max(2).ilog2() as usize + 2).min(MAX_BITS);
    Chooser::new(sample, vec![all], step as f64, away).choose(most)
}

/// Chooses the bits that tell the rules of a cell apart. A line of the cell holds these bits of each of its
/// rules. `cells` are positions in `rules`.
///
/// The value of a bit is the number of pairs of rules in one cell that require different values of it. A pair
/// that other bits tell apart counts less, but still counts: in the bits that one rule leaves open, its packets
/// may have any value.
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

/// Chooses the bit of word 3 that divides rules into two kinds that use different fields; `None` when there is
/// no such bit.
///
/// Nearly every rule has to require a value of this bit, and the value has to predict which other bits the rule
/// requires: rules for IPv6 use other words than rules for IPv4. Each kind then has its own tables, whose bits
/// its rules seldom leave open.
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

/// Difference of the number of required bits, pair by pair, between rules that require a one of this bit and
/// rules that require a zero. `None` when too few rules require one of these values.
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
    /// Number of rules for which each rule of the sample stands.
    scale: f64,
    /// Cost of leaving a rule to the next table.
    away: f64,
    /// Bits that divide the rules at all.
    candidates: Selection,
    /// Number of chosen bits that each rule leaves open.
    open: Vec<u32>,
    /// Cells that may be divided further.
    cells: Vec<Vec<Member>>,
}

/// Content of one half of a cell.
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

    /// Cost of all look-ups that scan this half.
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

    /// The bit that saves most; `None` when it saves too little.
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

    /// Cost of the cell after division by a bit.
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

    /// Divides the cells; those that become small are not divided further.
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

/// Whether enough rules require a zero and enough a one.
fn divides(sample: &[&Ternary], bit: usize) -> bool {
    let demanding = sample.iter().filter(|rule| rule.demands(bit)).count();
    let one = sample.iter().filter(|rule| rule.is_one(bit)).count();
    one.min(demanding - one) * 64 > sample.len()
}
