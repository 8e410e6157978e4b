//! The default: whichever backend is the fastest for the rules there are.
//!
//! | rules | structure |
//! |---|---|
//! | up to [`FEW`] | compared one by one, without memory of their own |
//! | up to [`BLOCKS`] | [`Simd`] |
//! | more | [`BitSelect`] |
//!
//! Rules move on to the next structure when one more does not fit, and back only when far fewer are left, so that
//! rules which come and go around a limit do not move each time. Moving costs as much as building: a millisecond at
//! the upper limit. All structures say the same of every packet, so nothing but time changes.

use crate::bit_select::BitSelect;
use crate::matcher::Ranked;
use crate::simd::{Lane, Rests, Simd};
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Rules that are compared one by one: these take as long as one block, and no memory behind the classifier itself.
const FEW: usize = 2;
/// When no more than this many are left in a [`Simd`], they are compared one by one again.
const FEW_AGAIN: usize = 1;
/// Rules up to which comparing all of them, sixteen at a time, is faster than finding the few to compare: measured with
/// `godwit bench pdr`, where the two cross between 100 and 150 rules in all families.
const BLOCKS: usize = 128;
/// When no more than this many are left in a [`BitSelect`], all are compared again.
const BLOCKS_AGAIN: usize = 64;

/// Rules in the structure that suits their number.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Few(Few),
    Blocks(Simd),
    /// Boxed, as most classifiers of a user plane are of the other kinds and should stay small.
    Cells(Box<BitSelect>),
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::Few(Few::default())
    }
}

/// Calls a method of whichever structure there is.
macro_rules! each {
    ($rules:expr, $name:ident => $call:expr) => {
        match $rules {
            Rules::Few($name) => $call,
            Rules::Blocks($name) => $call,
            Rules::Cells($name) => $call,
        }
    };
}

impl Auto {
    /// No rules.
    pub fn new() -> Auto {
        Auto::default()
    }

    /// Moves the rules to a structure that suits `more` than there are.
    fn grow(&mut self, more: usize) {
        let rules = match &self.rules {
            Rules::Few(few) if few.len() + more > FEW => few.ranked(),
            Rules::Blocks(simd) if simd.len() + more > BLOCKS => simd.ranked(),
            _ => return,
        };
        self.rules = if rules.len() + more > BLOCKS {
            Rules::Cells(Box::new(BitSelect::of(&rules)))
        } else {
            Rules::Blocks(Simd::of(&rules))
        };
    }

    /// Moves them back when few are left.
    fn shrink(&mut self) {
        let rules = match &self.rules {
            Rules::Blocks(simd) if simd.len() <= FEW_AGAIN => simd.ranked(),
            Rules::Cells(cells) if cells.len() <= BLOCKS_AGAIN => cells.ranked(),
            _ => return,
        };
        self.rules = if rules.len() <= FEW_AGAIN {
            let mut few = Few::default();
            for rule in &rules {
                let lane = Lane::new(&rule.matcher, rule.rank, rule.value, &mut few.rests);
                few.push(lane);
            }
            Rules::Few(few)
        } else {
            Rules::Blocks(Simd::of(&rules))
        };
    }
}

impl Classifier for Auto {
    #[inline]
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        each!(&self.rules, rules => rules.classify(keys, verdicts));
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        self.grow(1);
        each!(&mut self.rules, rules => rules.insert(rule))
    }

    fn remove(&mut self, id: u32) -> bool {
        let removed = each!(&mut self.rules, rules => rules.remove(id));
        self.shrink();
        removed
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        each!(&mut self.rules, rules => rules.set_precedence(id, precedence))
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        self.grow(rules.len());
        let inserted = each!(&mut self.rules, present => present.insert_all(rules));
        self.shrink();
        inserted
    }

    fn optimise(&mut self) {
        each!(&mut self.rules, rules => rules.optimise());
    }

    fn memory_bytes(&self) -> usize {
        let (inline, rules) = each!(&self.rules, rules => (size_of_val(rules), rules.memory_bytes()));
        size_of::<Auto>() + rules - inline
    }

    fn len(&self) -> usize {
        each!(&self.rules, rules => rules.len())
    }
}

/// Up to [`FEW`] rules, sorted by rank.
#[derive(Clone, Debug, Default)]
struct Few {
    lanes: [Option<Lane>; FEW],
    rests: Rests,
}

impl Few {
    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().flatten()
    }

    fn ranked(&self) -> Vec<Ranked> {
        self.lanes().map(|lane| lane.ranked(&self.rests)).collect()
    }

    /// Adds a rule if there is room.
    fn push(&mut self, lane: Lane) {
        if let Some(place) = self.lanes.iter_mut().find(|lane| lane.is_none()) {
            *place = Some(lane);
        }
        self.lanes.sort_by_key(|lane| (lane.is_none(), lane.map(|lane| lane.rank())));
    }

    fn take(&mut self, id: u32) -> Option<Lane> {
        let at = self.lanes.iter().position(|lane| lane.is_some_and(|lane| lane.id() == id))?;
        let taken = self.lanes[at].take();
        self.lanes[at..].rotate_left(1);
        taken
    }
}

impl Classifier for Few {
    #[inline]
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            let first = self.lanes().find(|lane| lane.matches(key, &self.rests));
            *verdict = first.map(|lane| lane.value(&self.rests));
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.lanes().any(|lane| lane.id() == rule.id) {
            return Err(InsertError::Exists(rule.id));
        }
        let Ranked { rank, value, matcher } = Ranked::new(&rule);
        let lane = Lane::new(&matcher, rank, value, &mut self.rests);
        self.push(lane);
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let taken = self.take(id);
        taken.inspect(|lane| lane.drop_rest(&mut self.rests)).is_some()
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let taken = self.take(id);
        taken.inspect(|lane| self.push(lane.with_precedence(precedence))).is_some()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Few>() + self.rests.heap_bytes()
    }

    fn len(&self) -> usize {
        self.lanes().count()
    }
}
