//! The default: the fastest backend for the number of rules. Up to [`BLOCKS`] rules that is [`Simd`], beyond it
//! [`BitSelect`].
//!
//! Rules move to the larger structure when one more does not fit, and back only when far fewer are left, so
//! that rules which come and go around a limit do not move each time. A move costs as much as building the
//! structure: a millisecond. Both structures give the same verdicts, so a move changes the speed only.
//!
//! One or two rules are fastest in a block too: comparing them one by one took 8 ns where a block takes 3 ns,
//! as the processor cannot predict which of them matches.

use crate::bit_select::BitSelect;
use crate::simd::Simd;
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Most rules that are compared in blocks. A block look-up stops at the block with the match; when packets are
/// unpredictable, this costs a mispredicted branch. Look-ups in cells do not have this branch. In `godwit bench
/// pdr`, whose traces no branch predictor can learn, cells are faster from 64 rules on; on a trace of 2000
/// packets both are equally fast at 100 rules.
const BLOCKS: usize = 64;
/// The rules of a [`BitSelect`] move back to blocks when no more than this many are left.
const BLOCKS_AGAIN: usize = 32;

/// Rules in the structure that suits their number.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Blocks(Simd),
    /// Boxed, because most classifiers of a user plane hold few rules and should stay small.
    Cells(Box<BitSelect>),
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::Blocks(Simd::new())
    }
}

/// Calls a method of the structure in use.
macro_rules! each {
    ($rules:expr, $name:ident => $call:expr) => {
        match $rules {
            Rules::Blocks($name) => $call,
            Rules::Cells($name) => $call,
        }
    };
}

impl Auto {
    /// A classifier without rules.
    pub fn new() -> Auto {
        Auto::default()
    }

    /// Moves the rules to the larger structure if `more` rules do not fit in blocks.
    fn grow(&mut self, more: usize) {
        if let Rules::Blocks(simd) = &self.rules
            && simd.len() + more > BLOCKS
        {
            self.rules = Rules::Cells(Box::new(BitSelect::of(&simd.ranked())));
        }
    }

    /// Moves the rules back to blocks when few are left.
    fn shrink(&mut self) {
        if let Rules::Cells(cells) = &self.rules
            && cells.len() <= BLOCKS_AGAIN
        {
            self.rules = Rules::Blocks(Simd::of(&cells.ranked()));
        }
    }
}

impl Classifier for Auto {
    #[inline]
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        each!(&self.rules, rules => rules.classify(keys, verdicts))
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
        let outside = match &self.rules {
            Rules::Blocks(simd) => simd.memory_bytes() - size_of::<Simd>(),
            Rules::Cells(cells) => cells.memory_bytes(),
        };
        size_of::<Auto>() + outside
    }

    fn len(&self) -> usize {
        each!(&self.rules, rules => rules.len())
    }
}
