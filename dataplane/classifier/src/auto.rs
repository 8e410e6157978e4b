//! The default: whichever backend is the fastest for the rules there are.
//!
//! | rules | structure |
//! |---|---|
//! | up to [`FEW`] | compared one by one, without memory of their own |
//! | up to [`BLOCKS`] | [`Simd`] |
//!
//! Rules move on to the next structure when one more does not fit, and back only when far fewer are left, so that
//! rules which come and go around a limit do not move each time. Moving costs as much as building; the limits are so
//! small that this is microseconds. All structures say the same of every packet, so nothing but time changes.

use crate::matcher::Ranked;
use crate::simd::{Lane, Rests, Simd};
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Rules that are compared one by one: these take as long as one block, and no memory behind the classifier itself.
const FEW: usize = 2;
/// When no more than this many are left in a [`Simd`], they are compared one by one again.
const FEW_AGAIN: usize = 1;

/// Rules in the structure that suits their number.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Few(Few),
    Blocks(Simd),
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
        }
    };
}

impl Auto {
    /// No rules.
    pub fn new() -> Auto {
        Auto::default()
    }

    /// Moves the rules to a structure that holds `more` than there are.
    fn grow(&mut self, more: usize) {
        if let Rules::Few(few) = &self.rules
            && few.len() + more > FEW
        {
            let rules: Vec<Ranked> = few.lanes().map(|lane| lane.ranked(&few.rests)).collect();
            self.rules = Rules::Blocks(Simd::of(&rules));
        }
    }

    /// Moves them back when few are left.
    fn shrink(&mut self) {
        if let Rules::Blocks(simd) = &self.rules
            && simd.len() <= FEW_AGAIN
        {
            let mut few = Few::default();
            for rule in simd.ranked() {
                let lane = Lane::new(&rule.matcher, rule.rank, rule.value, &mut few.rests);
                few.push(lane);
            }
            self.rules = Rules::Few(few);
        }
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
