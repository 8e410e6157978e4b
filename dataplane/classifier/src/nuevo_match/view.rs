//! The key by which an iSet orders rules: up to 63 bits of a packet, cut out of its fields and concatenated.
//!
//! The papers use one field. Rule sets repeat values too often for that: an access list of 100,000 rules may
//! have 200 different sources and 7,000 destinations, so no iSet by one field has more rules than that. But
//! ranges of the *sequence* (source, destination) overlap only when both do. In a sequence of fields, a rule
//! selects at most what lies between its lowest values in all fields and its highest. A learned index works as
//! well with intervals of such numbers as with intervals of one field, which is the case of one slice.

use super::model::MAX;
use crate::matcher::Ranked;
use crate::{Field, Key, Matcher};

/// Most fields of a view.
const SLICES: usize = 6;
/// Number of bits of a view.
const BITS: u32 = 64 - MAX.leading_zeros();
/// Number of bits of a view before its least useful bits are cut off.
const UNCUT: u32 = 128;
/// Number of bits that are cut off at a time.
const CUT: u8 = 4;
/// Most rules from which views are chosen.
const SAMPLE: usize = 8192;

/// A part of a field: `width` bits of a word, starting at bit `shift`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Slice {
    word: u8,
    shift: u8,
    width: u8,
}

impl Slice {
    fn of_field(field: Field) -> Slice {
        Slice { word: field.word, shift: field.shift, width: field.width }
    }

    #[inline(always)]
    fn cut(self, word: u32) -> u32 {
        (u64::from(word >> (self.shift & 31)) & ((1 << (self.width & 63)) - 1)) as u32
    }

    /// Smallest and greatest value of the slice in packets that match.
    fn range(self, matcher: &Matcher) -> (u32, u32) {
        let word = usize::from(self.word);
        if word != 2 {
            let (value, mask) = (matcher.value[word], matcher.mask[word]);
            return (self.cut(value), self.cut(value | !mask));
        }
        let ((first, last), base) =
            if self.shift >= 16 { (matcher.source_ports, 16) } else { (matcher.destination_ports, 0) };
        let (first, last) = (u32::from(first) << base, u32::from(last) << base);
        // Where the bits above the slice differ, the bits of the slice take any value.
        let above = u32::from(self.shift + self.width);
        let (apart, all) = ((u64::from(first) ^ u64::from(last)) >> above, self.cut(u32::MAX));
        if apart == 0 { (self.cut(first), self.cut(last)) } else { (0, all) }
    }
}

/// A sequence of slices; the first ones are the upper bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct View {
    slices: [Slice; SLICES],
    used: usize,
}

impl View {
    fn new(slices: &[Slice]) -> View {
        let mut view = View { slices: [Slice::default(); SLICES], used: slices.len() };
        view.slices[..slices.len()].copy_from_slice(slices);
        view
    }

    /// The bits of a packet in this view.
    #[inline(always)]
    pub(super) fn of(&self, key: &Key) -> u64 {
        self.slices[..self.used].iter().fold(0, |bits, slice| {
            // A word index is always below the number of words. The remainder tells the compiler so, which then
            // needs no bounds check.
            let word = key.words()[usize::from(slice.word) % key.words().len()];
            bits << (slice.width & 63) | u64::from(slice.cut(word))
        })
    }

    /// The least and the greatest value of the view in packets that match. Other packets may lie in between.
    pub(super) fn range(&self, matcher: &Matcher) -> (u64, u64) {
        self.slices[..self.used].iter().fold((0, 0), |(low, high), slice| {
            let (least, most) = slice.range(matcher);
            (low << slice.width | u64::from(least), high << slice.width | u64::from(most))
        })
    }

    /// The view in which the most rules have disjoint ranges, as far as a search that tries one step after the
    /// other finds it.
    pub(super) fn choose(rules: &[Ranked]) -> View {
        let stride = rules.len().div_ceil(SAMPLE).max(1);
        let mut chooser = Chooser { rules: rules.iter().step_by(stride).collect(), ranges: Vec::new() };
        let slices = chooser.fields();
        View::new(&chooser.narrow(slices))
    }
}

struct Chooser<'a> {
    rules: Vec<&'a Ranked>,
    /// Buffer for [`Chooser::count`].
    ranges: Vec<(u128, u128)>,
}

impl Chooser<'_> {
    /// An order of fields. Each step adds the field, in front or behind, with which the most rules have
    /// disjoint ranges.
    fn fields(&mut self) -> Vec<Slice> {
        let useful = |field: &Field| {
            let any = (0, field.max());
            self.rules.iter().any(|rule| rule.matcher.range(*field) != any)
        };
        let useful: Vec<Slice> = Field::ALL.into_iter().filter(useful).map(Slice::of_field).collect();
        let (mut best, mut slices) = (0, Vec::new());
        loop {
            let mut better = None;
            for slice in &useful {
                if slices.contains(slice) || slices.len() == SLICES || bits(&slices) + bits(&[*slice]) > UNCUT
                {
                    continue;
                }
                for at in [slices.len(), 0] {
                    let mut more = slices.clone();
                    more.insert(at, *slice);
                    let count = self.count(&more);
                    if count > best {
                        (best, better) = (count, Some(more));
                    }
                }
            }
            match better {
                Some(more) => slices = more,
                None => return slices,
            }
        }
    }

    /// Cuts bits off the ends of slices, where it costs the fewest rules, until a view can hold them.
    fn narrow(&mut self, mut slices: Vec<Slice>) -> Vec<Slice> {
        while bits(&slices) > BITS {
            let surplus = (bits(&slices) - BITS) as u8;
            let (mut best, mut narrower) = (None, Vec::new());
            for at in 0..slices.len() {
                let cut = CUT.min(surplus).min(slices[at].width);
                for shift in [slices[at].shift, slices[at].shift + cut] {
                    let mut fewer = slices.clone();
                    (fewer[at].shift, fewer[at].width) = (shift, fewer[at].width - cut);
                    fewer.retain(|slice| slice.width > 0);
                    let count = self.count(&fewer);
                    if best < Some(count) {
                        (best, narrower) = (Some(count), fewer);
                    }
                }
            }
            slices = narrower;
        }
        slices
    }

    /// Number of rules with disjoint ranges.
    fn count(&mut self, slices: &[Slice]) -> usize {
        self.ranges.clear();
        self.ranges.extend(self.rules.iter().map(|rule| {
            slices.iter().fold((0, 0), |(high, low), slice| {
                let (least, most) = slice.range(&rule.matcher);
                (high << slice.width | u128::from(most), low << slice.width | u128::from(least))
            })
        }));
        self.ranges.sort_unstable();
        let mut last = None;
        self.ranges
            .iter()
            .filter(|(high, low)| {
                let apart = last.is_none_or(|last| last < *low);
                last = if apart { Some(*high) } else { last };
                apart
            })
            .count()
    }
}

fn bits(slices: &[Slice]) -> u32 {
    slices.iter().map(|slice| u32::from(slice.width)).sum()
}

#[cfg(all(test, feature = "generate"))]
mod tests {
    use super::*;
    use crate::generate::{self, Family, Fields, Traffic};

    #[test]
    fn packets_lie_in_the_ranges_of_their_rules() {
        for family in Family::CLASSBENCH {
            for fields in [Fields::FiveTuple, Fields::Full] {
                let rules = generate::rules(family, fields, 300, 5);
                let keys = generate::trace(&rules, Traffic::Uniform, 300, 6);
                let matchers = rules.iter().filter_map(|rule| Matcher::new(&rule.filter));
                let held: Vec<_> = matchers.map(|matcher| Ranked { matcher, rank: 0, value: 0 }).collect();
                let slices: Vec<_> = Field::ALL.into_iter().map(Slice::of_field).collect();
                let parts = slices.iter().flat_map(|slice| {
                    let Slice { word, shift, width } = *slice;
                    [
                        Slice { width: width / 2, ..*slice },
                        Slice { word, shift: shift + width / 2, width: width / 2 },
                    ]
                });
                let mut views: Vec<View> = slices.chunks(1).map(View::new).collect();
                views.extend(parts.collect::<Vec<_>>().chunks(3).map(View::new));
                views.push(View::choose(&held));
                for view in views {
                    for rule in &held {
                        let (low, high) = view.range(&rule.matcher);
                        assert!(low <= high && high <= MAX, "{view:?}");
                        for key in keys.iter().filter(|key| rule.matcher.matches(key)) {
                            assert!((low..=high).contains(&view.of(key)), "{view:?} {rule:?}");
                        }
                    }
                }
            }
        }
    }
}
