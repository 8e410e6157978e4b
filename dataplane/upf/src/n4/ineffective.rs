//! PDRs without effect. They are logged, but do not prevent a session.

use std::fmt;

use classifier::{Filter, Matcher, Rule};
use foldhash::HashMap;

use crate::plan::Pdr;

/// Most PDRs without effect that are kept and logged for a session: further ones would tell nothing new.
pub const MAX_KEPT: usize = 32;

/// A PDR without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ineffective {
    /// Conditions of the PDI exclude each other: no packet matches.
    NeverMatches {
        /// The PDR.
        pdr: u16,
    },
    /// Every filter of this PDR equals a filter of a PDR that comes before.
    Duplicate {
        /// The PDR.
        pdr: u16,
        /// A PDR that comes before.
        of: u16,
    },
}

impl fmt::Display for Ineffective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ineffective::NeverMatches { pdr } => write!(f, "no packet can match PDR {pdr}"),
            Ineffective::Duplicate { pdr, of } => {
                write!(f, "PDR {pdr} never applies: it matches as PDR {of}, which comes first")
            }
        }
    }
}

/// What is known of a PDR after some of its filters.
#[derive(Clone, Copy, Default)]
struct Effect {
    applies: bool,
    duplicates: Option<u32>,
}

/// Up to this number of filters, comparing all pairs is faster than hashing.
const FEW: usize = 16;

/// The first PDR that has each filter.
enum FirstPdr {
    Few(Vec<(Matcher, u32)>),
    Many(HashMap<Matcher, u32>),
}

impl FirstPdr {
    fn new(rules: usize) -> FirstPdr {
        if rules <= FEW {
            FirstPdr::Few(Vec::with_capacity(rules))
        } else {
            FirstPdr::Many(HashMap::default())
        }
    }

    /// The PDR that has this filter already. If none has, `pdr` has it from now on.
    fn owner(&mut self, matcher: Matcher, pdr: u32) -> Option<u32> {
        match self {
            FirstPdr::Few(list) => {
                let known = list.iter().find(|(other, _)| *other == matcher).map(|(_, owner)| *owner);
                if known.is_none() {
                    list.push((matcher, pdr));
                }
                known
            }
            // A filter that the PDR itself already has counts as a new one.
            FirstPdr::Many(map) => Some(*map.entry(matcher).or_insert(pdr)).filter(|owner| *owner != pdr),
        }
    }
}

/// Whether all PDRs obviously have an effect, as in most sets: one PDR, with no condition except the UE's
/// address.
fn plain(rules: &[Rule]) -> bool {
    let Some((first, rest)) = rules.split_first() else { return true };
    let any = Filter { ue: first.filter.ue, ..Filter::default() };
    first.filter == any && rest.iter().all(|rule| rule.value == first.value)
}

/// Finds the PDRs without effect of one rule set. The rules' values are positions in `pdrs`.
pub fn find(rules: &[Rule], pdrs: &[Pdr], ineffective: &mut Vec<Ineffective>) {
    if plain(rules) {
        return;
    }
    let mut sorted: Vec<&Rule> = rules.iter().collect();
    sorted.sort_unstable_by_key(|rule| rule.rank());
    let mut first = FirstPdr::new(rules.len());
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
        ineffective.extend(match effect {
            Some(Effect { applies: false, duplicates: None }) => {
                Some(Ineffective::NeverMatches { pdr: pdr.id })
            }
            Some(Effect { applies: false, duplicates: Some(of) }) => {
                Some(Ineffective::Duplicate { pdr: pdr.id, of: pdrs[of as usize].id })
            }
            _ => None,
        });
    }
}
