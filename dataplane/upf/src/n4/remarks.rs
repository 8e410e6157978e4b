//! PDRs without effect: worth a line in the log, no reason to refuse a session.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use classifier::{Matcher, Rule};

use crate::plan::Pdr;

/// What is odd about a session's PDRs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remark {
    /// Conditions of the PDI exclude each other: no packet matches.
    Never {
        /// The PDR.
        pdr: u16,
    },
    /// All it matches is matched by equal filters of PDRs that come first.
    Duplicate {
        /// The PDR.
        pdr: u16,
        /// One that comes first.
        of: u16,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remark::Never { pdr } => write!(f, "no packet can match PDR {pdr}"),
            Remark::Duplicate { pdr, of } => {
                write!(f, "PDR {pdr} never applies: it matches as PDR {of}, which comes first")
            }
        }
    }
}

/// What a PDR's filters have come to so far.
#[derive(Clone, Copy, Default)]
struct Effect {
    applies: bool,
    duplicates: Option<u32>,
}

/// Looks through the rules of one set, whose values are positions in `pdrs`.
pub fn find(rules: &[Rule], pdrs: &[Pdr], remarks: &mut Vec<Remark>) {
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_unstable_by_key(|rule| rule.rank());
    let mut first: HashMap<Matcher, u32> = HashMap::new();
    let mut effects: Vec<Option<Effect>> = vec![None; pdrs.len()];
    for rule in sorted {
        let effect = effects[rule.value as usize].get_or_insert_default();
        let Some(matcher) = Matcher::new(&rule.filter) else { continue };
        match first.entry(matcher) {
            Entry::Vacant(place) => {
                place.insert(rule.value);
                effect.applies = true;
            }
            Entry::Occupied(owner) if *owner.get() != rule.value => effect.duplicates = Some(*owner.get()),
            Entry::Occupied(_) => {}
        }
    }
    for (pdr, effect) in pdrs.iter().zip(effects) {
        remarks.extend(match effect {
            Some(Effect { applies: false, duplicates: None }) => Some(Remark::Never { pdr: pdr.id }),
            Some(Effect { applies: false, duplicates: Some(of) }) => {
                Some(Remark::Duplicate { pdr: pdr.id, of: pdrs[of as usize].id })
            }
            _ => None,
        });
    }
}
