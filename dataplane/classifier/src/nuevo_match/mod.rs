//! NuevoMatch: a learned index finds most rules without a search.
//!
//! A. Rashelbach, O. Rottenstreich and M. Silberstein, "A Computational Approach to Packet Classification",
//! SIGCOMM 2020. Training and updates partly follow the same authors' "Scaling Open vSwitch with a
//! Computational Cache", NSDI 2022.
//!
//! ```text
//!           ┌ iSet, by one field: model → window → interval → check all fields ┐
//! packet ───┼ iSet, by another …                                               ├─ the best rank wins
//!           └ remainder: another classifier, given the best match so far ─────┘
//! ```
//! An *iSet* is a set of rules whose ranges in some fields do not overlap, so a packet can match at most one of
//! them ([`iset`], [`view`]). Interval scheduling finds the largest iSet and takes it out of the rules; this
//! repeats while an iSet has at least one in [`SHARE`] of the rules. An RQ-RMI, a hierarchy of tiny piecewise
//! linear models ([`model`]), predicts the interval into which a packet falls. Its worst error is known; within
//! it, mostly one vector comparison finds the interval. The rules left over, the *remainder*, go to a
//! classifier that handles overlaps well ([`remainder`]). It is searched after the iSets, and only for rules
//! that rank before their match.
//!
//! **Invariants.** A rule is in an iSet (live), in the remainder, or nowhere (it can never match); `places`
//! says where. The intervals of an iSet never change after training. A dead entry matches nothing.
//!
//! **Cost.** Look-up: per iSet two or three submodels (two cache lines each), each with two or three lines of
//! interval starts, and one line for the rule, three where rules use fields beyond the 5-tuple. Every step is
//! done for all packets of a batch, or for one packet in all iSets, before the next step, so that cache misses
//! overlap. Removal: one map access and one write. Insertion: into the remainder, or into the place of a
//! removed rule whose interval contains the new rule's, so that rules which come and go do not degrade the
//! structure. [`Classifier::optimise`] trains anew; so does [`Classifier::insert_all`] when it adds a large
//! part of all rules. Memory per rule of an iSet: 64 octets for the rule, 16 for its interval, two for the
//! model; 128 more where rules use fields beyond the 5-tuple.
//!
//! **When it pays.** With tens of thousands of rules and batches, where the remainder alone would miss the
//! cache once per table. Below some thousands of rules, a hash table costs less than an iSet, so the remainder
//! alone is faster. No iSet has fewer than [`LEAST`] rules.
//!
//! **Differences from the papers.**
//! - The papers order an iSet by one field; here a sequence of up to six fields orders it ([`view`]). On
//!   ClassBench-like sets of 100,000 rules four iSets by one field hold 9 % to 17 % of the rules, two by
//!   sequences 43 % to 75 %.
//! - Submodels are fitted in one pass to a given error; the papers use stochastic gradient descent, and the
//!   error is what results ([`model`]). 100,000 rules take less than a second, nearly all of it for choosing
//!   the fields, instead of minutes, and the same rules give the same model everywhere.
//! - Inner stages are corrected by a search like the last stage, so a skewed input costs at most a stage and
//!   does not weaken the error bound.
//! - Inference uses integers and never decreases with growing input, so the error bound needs no analysis of
//!   rounding.
//! - The papers keep inserted rules in the remainder until the next training; here they reuse intervals of
//!   removed rules.
#![allow(clippy::doc_markdown, reason = "iSet and RQ-RMI are the paper's spelling")]

mod entry;
mod fit;
mod iset;
mod lanes;
mod model;
mod remainder;
#[cfg(all(test, feature = "generate"))]
mod tests;
mod view;

use crate::matcher::Ranked;
use iset::Set;
use lanes::{Lanes, Scalar};
use remainder::Remainder;

use crate::cpu::Job;
use crate::ids::{IdMap, map_bytes};
use crate::ranked::Best;
use crate::simd::Cpu;
use crate::{Classifier, InsertError, Key, Matcher, Rule, Verdict, rank};

/// An iSet has at least one in this many of all rules. A smaller iSet would cost more than it saves the
/// remainder.
const SHARE: usize = 10;
/// Fewest rules of an iSet: other means find fewer rules faster.
const LEAST: usize = 256;
/// Number of packets that take each step of a look-up together.
const CHUNK: usize = 32;

/// Where a rule is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the remainder.
    Remainder,
    /// In no structure, as the rule can never match.
    Nowhere,
    /// In an iSet.
    Set { set: u16, position: u32 },
}

/// A classifier of iSets with learned indices, and a remainder.
#[derive(Clone, Debug, Default)]
pub struct NuevoMatch {
    sets: Vec<Set>,
    remainder: Remainder,
    places: IdMap<Place>,
    cpu: Cpu,
}

impl NuevoMatch {
    /// A classifier without rules.
    pub fn new() -> NuevoMatch {
        NuevoMatch::default()
    }
}

impl NuevoMatch {
    /// Number of rules in each iSet, and in the remainder.
    pub fn sizes(&self) -> (Vec<usize>, usize) {
        (self.sets.iter().map(Set::live).collect(), self.remainder.len())
    }

    /// Divides and trains anew with the present rules and these.
    fn rebuild(&mut self, mut rules: Vec<Ranked>) {
        rules.extend(self.sets.iter().flat_map(Set::rules));
        rules.extend(self.remainder.rules());
        // Sorted, so that the result depends on the rules alone, not on their history.
        rules.sort_unstable_by_key(|rule| rule.rank);
        let least = LEAST.max(rules.len() / SHARE);
        let (sets, rest) = iset::divide(rules, least);
        for (at, set) in sets.iter().enumerate() {
            for (id, position) in set.positions() {
                self.set_place(id, Place::Set { set: at as u16, position });
            }
        }
        for rule in &rest {
            self.set_place(rule.id(), Place::Remainder);
        }
        self.sets = sets;
        self.remainder = Remainder::new(&rest);
    }

    fn set_place(&mut self, id: u32, place: Place) {
        self.places.insert(id, place);
    }

    /// Records the id of a new rule; returns the compiled rule unless it can never match.
    fn admit(&mut self, rule: &Rule) -> Result<Option<Ranked>, InsertError> {
        let compiled = Matcher::new(&rule.filter);
        let place = if compiled.is_some() { Place::Remainder } else { Place::Nowhere };
        match self.places.entry(rule.id) {
            std::collections::hash_map::Entry::Occupied(_) => return Err(InsertError::Exists(rule.id)),
            std::collections::hash_map::Entry::Vacant(free) => free.insert(place),
        };
        Ok(compiled.map(|matcher| Ranked { matcher, rank: rule.rank(), value: rule.value }))
    }

    /// Stores a rule for which `admit` was called.
    fn add(&mut self, rule: &Ranked) {
        for (at, set) in self.sets.iter_mut().enumerate() {
            if let Some(position) = set.revive(rule) {
                self.set_place(rule.id(), Place::Set { set: at as u16, position });
                return;
            }
        }
        self.remainder.insert(rule);
    }

    #[inline(always)]
    fn look_up<L: Lanes>(&self, lanes: L, keys: &[Key], verdicts: &mut [Verdict]) {
        // A single packet should not pay for arrays of many.
        if let ([key], [verdict, ..]) = (keys, &mut *verdicts) {
            let best = Set::look_up_one(&self.sets, lanes, key);
            *verdict = self.remainder.better(key, best).verdict;
            return;
        }
        for (keys, verdicts) in keys.chunks(CHUNK).zip(verdicts.chunks_mut(CHUNK)) {
            let keys = &keys[..keys.len().min(verdicts.len())];
            let best = self.chunk::<L, CHUNK>(lanes, keys);
            for (verdict, best) in verdicts.iter_mut().zip(&best[..keys.len()]) {
                *verdict = best.verdict;
            }
        }
    }

    #[inline(always)]
    fn chunk<L: Lanes, const N: usize>(&self, lanes: L, keys: &[Key]) -> [Best; N] {
        let mut best = [Best::NONE; N];
        for set in &self.sets {
            set.look_up::<L, N>(lanes, keys, &mut best);
        }
        for (key, best) in keys.iter().zip(&mut best) {
            *best = self.remainder.better(key, *best);
        }
        best
    }
}

/// A look-up, to be compiled for different instructions.
struct LookUp<'a> {
    rules: &'a NuevoMatch,
    keys: &'a [Key],
    verdicts: &'a mut [Verdict],
}

impl<L: Lanes> Job<L> for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, lanes: L) {
        self.rules.look_up(lanes, self.keys, self.verdicts);
    }
}

impl Classifier for NuevoMatch {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        let look_up = LookUp { rules: self, keys, verdicts };
        match self.cpu {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(instructions) => instructions.run(look_up),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(instructions) => instructions.run(look_up),
            Cpu::Scalar => look_up.run(Scalar),
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if let Some(held) = self.admit(&rule)? {
            self.add(&held);
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(place) = self.places.remove(&id) else { return false };
        match place {
            Place::Nowhere => {}
            Place::Remainder => self.remainder.remove(id),
            Place::Set { set, position } => self.sets[usize::from(set)].kill(position),
        }
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let Some(place) = self.places.get(&id) else { return false };
        match *place {
            Place::Nowhere => {}
            Place::Remainder => self.remainder.set_precedence(id, precedence),
            // An iSet is ordered by interval, so nothing moves.
            Place::Set { set, position } => {
                self.sets[usize::from(set)].set_rank(position, rank(precedence, id))
            }
        }
        true
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        let mut admitted = Vec::with_capacity(rules.len());
        let mut outcome = Ok(());
        for rule in rules {
            match self.admit(rule) {
                Ok(held) => admitted.extend(held),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Training costs as much as this many insertions into the remainder.
        if admitted.len() >= LEAST.max(self.places.len() / 4) {
            self.rebuild(admitted);
        } else {
            admitted.iter().for_each(|rule| self.add(rule));
        }
        outcome
    }

    fn optimise(&mut self) {
        self.rebuild(Vec::new());
    }

    fn memory_bytes(&self) -> usize {
        let sets: usize = self.sets.iter().map(Set::heap_bytes).sum();
        size_of::<Self>()
            + self.sets.capacity() * size_of::<Set>()
            + sets
            + self.remainder.heap_bytes()
            + map_bytes(&self.places)
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}
