//! The default: whichever backend is the fastest for the rules there are: [`Simd`] up to [`BLOCKS`] rules, beyond that
//! [`BitSelect`].
//!
//! Rules move on to the next structure when one more does not fit, and back only when far fewer are left, so that
//! rules which come and go around a limit do not move each time. Moving costs as much as building: a millisecond. Both
//! structures say the same of every packet, so nothing but time changes.
//!
//! One or two rules, too, are fastest in a block: compared one by one they took 8 ns where the block takes 3, as it is
//! hard to foresee which one matches.

use crate::bit_select::BitSelect;
use crate::simd::Simd;
use crate::{Classifier, InsertError, Key, Rule, Verdict};

/// Rules that are compared in blocks. Which block has the match decides when a look-up stops, and costs a wrong guess of
/// the processor when packets cannot be foreseen; cells do not depend on that. With `godwit bench pdr`, whose traces no
/// predictor can learn, cells are faster from 64 rules on; on a trace of 2000 packets both break even at 100.
const BLOCKS: usize = 64;
/// When no more than this many are left in a [`BitSelect`], they are compared in blocks again.
const BLOCKS_AGAIN: usize = 32;

/// Rules in the structure that suits their number.
#[derive(Clone, Debug, Default)]
pub struct Auto {
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Blocks(Simd),
    /// Boxed, as most classifiers of a user plane are of the other kind and should stay small.
    Cells(Box<BitSelect>),
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::Blocks(Simd::new())
    }
}

/// Calls a method of whichever structure there is.
macro_rules! each {
    ($rules:expr, $name:ident => $call:expr) => {
        match $rules {
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

    /// Moves the rules to a structure that holds `more` than there are.
    fn grow(&mut self, more: usize) {
        if let Rules::Blocks(simd) = &self.rules
            && simd.len() + more > BLOCKS
        {
            self.rules = Rules::Cells(Box::new(BitSelect::of(&simd.ranked())));
        }
    }

    /// Moves them back when few are left.
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
