//! PDRs without effect: they are logged, and no reason to refuse a session.

use std::fmt;

use classifier::{Filter, Matcher, Rule};
use foldhash::HashMap;

use crate::plan::Pdr;

/// Most that are kept and logged of a session: more would say the same.
pub const MOST: usize = 32;

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

/// Filters up to which comparing each with each is quicker than hashing them.
const FEW: usize = 16;

/// The first PDR with each filter.
enum First {
    Few(Vec<(Matcher, u32)>),
    Many(HashMap<Matcher, u32>),
}

impl First {
    fn new(rules: usize) -> First {
        if rules <= FEW { First::Few(Vec::with_capacity(rules)) } else { First::Many(HashMap::default()) }
    }

    /// The PDR that has this filter already; from now on it is `pdr` if none had.
    fn owner(&mut self, matcher: Matcher, pdr: u32) -> Option<u32> {
        match self {
            First::Few(list) => {
                let known = list.iter().find(|(other, _)| *other == matcher).map(|(_, owner)| *owner);
                if known.is_none() {
                    list.push((matcher, pdr));
                }
                known
            }
            // A filter that is the PDR's own already applies as well as a new one.
            First::Many(map) => Some(*map.entry(matcher).or_insert(pdr)).filter(|owner| *owner != pdr),
        }
    }
}

/// Whether there is nothing to find, as with most sets: one PDR, and a filter that asks for the UE's address at most.
fn plain(rules: &[Rule]) -> bool {
    let Some((first, rest)) = rules.split_first() else { return true };
    let any = Filter { ue: first.filter.ue, ..Filter::default() };
    first.filter == any && rest.iter().all(|rule| rule.value == first.value)
}

/// Looks through the rules of one set, whose values are positions in `pdrs`.
pub fn find(rules: &[Rule], pdrs: &[Pdr], remarks: &mut Vec<Remark>) {
    if plain(rules) {
        return;
    }
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_unstable_by_key(|rule| rule.rank());
    let mut first = First::new(rules.len());
    let mut effects: Vec<Option<Effect>> = vec![None; pdrs.len()];
    for rule in sorted {
        let effect = effects[rule.value as usize].get_or_insert_default();
        let Some(matcher) = Matcher::new(&rule.filter) else { continue };
        match first.owner(matcher, rule.value) {
            None => effect.applies = true,
            Some(owner) if owner != rule.value => effect.duplicates = Some(owner),
            Some(_) => {}
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
