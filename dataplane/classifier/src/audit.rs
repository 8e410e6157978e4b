//! Rules that have no effect: reported, never rejected.
//!
//! A valid rule set may still not do what its author meant. [`audit`] finds rules that can never match, rules
//! that repeat an earlier rule, and rules that one earlier rule covers wholly. Every finding is certain. Two
//! kinds of rules are not found: those that only several earlier rules together cover, and those that no packet
//! of a given network can match. In large sets the search is limited to the [`MASKS`] widest combinations of
//! fields, and to [`RANGES`] port ranges of each, so that its time grows with the number of rules and not with
//! its square.
//!
//! The search works like a tuple space: a map holds earlier rules by mask and value, without ports. A rule is
//! covered by an earlier rule if the earlier mask is part of the rule's mask, the values agree under the
//! earlier mask, and the earlier port ranges contain the rule's.

use std::collections::HashMap;
use std::fmt;

use crate::key::WORDS;
use crate::{Matcher, Rule};

/// Combinations of fields that are tried for each rule: those with the fewest bits, as these cover most.
pub const MASKS: usize = 256;
/// Earlier rules that are tried for one mask and value; they differ in their ports only.
pub const RANGES: usize = 64;

/// A rule without effect. Rules are named by their ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Finding {
    /// Two of its fields exclude each other.
    NeverMatches {
        /// The rule without effect.
        rule: u32,
    },
    /// The rule selects exactly what an earlier rule selects, and the earlier rule wins.
    Duplicate {
        /// The rule without effect.
        rule: u32,
        /// The earlier rule.
        of: u32,
    },
    /// An earlier rule selects all that this rule selects, and more.
    Shadowed {
        /// The rule without effect.
        rule: u32,
        /// The earlier rule.
        by: u32,
    },
}

impl Finding {
    /// The rule without effect.
    pub fn rule(self) -> u32 {
        match self {
            Finding::NeverMatches { rule }
            | Finding::Duplicate { rule, .. }
            | Finding::Shadowed { rule, .. } => rule,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::NeverMatches { rule } => {
                write!(f, "rule {rule} can never match: its conditions exclude each other")
            }
            Finding::Duplicate { rule, of } => {
                write!(f, "rule {rule} selects the same packets as rule {of}, which comes first")
            }
            Finding::Shadowed { rule, by } => {
                write!(f, "rule {rule} has no effect: rule {by} comes first and selects all of its packets")
            }
        }
    }
}

/// The rules without effect, in order of precedence. Each rule appears once, with the first reason that
/// applies.
pub fn audit(rules: &[Rule]) -> Vec<Finding> {
    let mut compiled: Vec<(&Rule, Option<Matcher>)> =
        rules.iter().map(|rule| (rule, Matcher::new(&rule.filter))).collect();
    compiled.sort_by_key(|(rule, _)| rule.rank());
    let mut first: HashMap<Matcher, u32> = HashMap::with_capacity(rules.len());
    let mut earlier = Earlier::new(compiled.iter().filter_map(|(_, matcher)| matcher.as_ref()));
    let mut findings = Vec::new();
    for (Rule { id: rule, .. }, matcher) in compiled {
        let rule = *rule;
        let Some(matcher) = matcher else {
            findings.push(Finding::NeverMatches { rule });
            continue;
        };
        if let Some(&of) = first.get(&matcher) {
            findings.push(Finding::Duplicate { rule, of });
            continue;
        }
        first.insert(matcher, rule);
        // A covered rule need not be remembered: the rule that covers it also covers whatever it would cover.
        match earlier.covering(&matcher) {
            Some(by) => findings.push(Finding::Shadowed { rule, by }),
            None => earlier.add(rule, &matcher),
        }
    }
    findings
}

/// An earlier rule, among those with the same mask and value.
struct Ranges {
    id: u32,
    source: (u16, u16),
    destination: (u16, u16),
}

/// The rules before the current one.
struct Earlier {
    /// The widest masks, widest first.
    masks: Vec<[u32; WORDS]>,
    /// Index of each mask in `masks`.
    places: HashMap<[u32; WORDS], usize>,
    /// The rules by index of their mask and by value.
    buckets: HashMap<(usize, [u32; WORDS]), Vec<Ranges>>,
    /// For each mask, whether any rule has it yet.
    filled: Vec<bool>,
}

impl Earlier {
    fn new<'a>(matchers: impl Iterator<Item = &'a Matcher>) -> Earlier {
        let mut masks: Vec<[u32; WORDS]> = matchers.map(|matcher| matcher.mask).collect();
        masks.sort_unstable_by_key(|mask| (mask.iter().map(|word| word.count_ones()).sum::<u32>(), *mask));
        masks.dedup();
        masks.truncate(MASKS);
        let places = masks.iter().enumerate().map(|(place, mask)| (*mask, place)).collect();
        Earlier { filled: vec![false; masks.len()], masks, places, buckets: HashMap::new() }
    }

    fn add(&mut self, id: u32, matcher: &Matcher) {
        let Some(&place) = self.places.get(&matcher.mask) else { return };
        let bucket = self.buckets.entry((place, matcher.value)).or_default();
        if bucket.len() < RANGES {
            let (source, destination) = (matcher.source_ports, matcher.destination_ports);
            bucket.push(Ranges { id, source, destination });
            self.filled[place] = true;
        }
    }

    /// An earlier rule that selects everything `matcher` selects. Wider masks are tried first; of one mask, the
    /// first rule that does.
    fn covering(&self, matcher: &Matcher) -> Option<u32> {
        for (place, mask) in self.masks.iter().enumerate() {
            let part = std::iter::zip(mask, &matcher.mask).all(|(mask, of)| mask & !of == 0);
            if !part || !self.filled[place] {
                continue;
            }
            let value = std::array::from_fn(|word| matcher.value[word] & mask[word]);
            let bucket = self.buckets.get(&(place, value)).map_or(&[][..], Vec::as_slice);
            let covers = |ranges: &&Ranges| {
                holds(ranges.source, matcher.source_ports)
                    && holds(ranges.destination, matcher.destination_ports)
            };
            if let Some(ranges) = bucket.iter().find(covers) {
                return Some(ranges.id);
            }
        }
        None
    }
}

/// Whether one range contains another.
fn holds(wide: (u16, u16), narrow: (u16, u16)) -> bool {
    wide.0 <= narrow.0 && narrow.1 <= wide.1
}
