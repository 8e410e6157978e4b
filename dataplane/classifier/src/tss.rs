//! Tuple space search: a hash table for every combination of masks that rules have.
//!
//! V. Srinivasan, S. Suri and G. Varghese, "Packet classification using tuple space search", SIGCOMM 1999. Rules with
//! the same masks in all fields form a tuple; within it a rule is found by one hash look-up of the packet's masked
//! fields. The price of a packet is the number of tuples, which real rule sets keep far below the number of rules,
//! and an adversary does not: the worst case is one tuple per rule. Updates touch one table, hence its use in
//! virtual switches.
//!
//! [`TssSorted`] is the form of Open vSwitch (B. Pfaff et al., "The design and implementation of Open vSwitch", NSDI
//! 2015, §5.2): tables in order of the best rank in them, and the search stops when its match ranks before all that
//! the next table has. [`Tss`] tries every table.
//!
//! Both differ from the papers in the port ranges. The original gives ranges numbers by nesting level, Open vSwitch
//! cuts them into prefixes; either multiplies tables or rules. Here a tuple has none, the upper half or all of a
//! port's bits, whatever all ports of the range have in common; rules that then share a masked key form a short list
//! in order of rank and are verified (see [`tuple`](crate::tuple)).
//!
//! Cost, with t tables: look-up t hashes and usually one line per table; insertion and removal one table, and moving
//! up to t places of the search order when the best rank of a table changes.

use crate::tuple::{Space, Tuple};
use crate::{Classifier, Field, InsertError, Key, Matcher, Rule, Verdict};

/// Tuple space search that tries all tables.
pub type Tss = TupleSpace<false>;
/// Tuple space search that tries tables by rank and stops early.
pub type TssSorted = TupleSpace<true>;

/// Both of them: [`Tss`], [`TssSorted`].
#[derive(Clone, Debug)]
pub struct TupleSpace<const SORTED: bool> {
    space: Space,
}

impl<const SORTED: bool> TupleSpace<SORTED> {
    /// Without rules.
    pub fn new() -> Self {
        TupleSpace { space: Space::new() }
    }
}

impl<const SORTED: bool> Default for TupleSpace<SORTED> {
    fn default() -> Self {
        TupleSpace::new()
    }
}

/// Bits of a port that a tuple asks for: all, the upper eight or none.
fn port_bits(matcher: &Matcher, field: Field) -> u32 {
    match matcher.mask(field) {
        0xFFFF => 0xFFFF,
        mask if mask >= 0xFF00 => 0xFF00,
        _ => 0,
    }
}

fn tuple_of(matcher: &Matcher) -> Tuple {
    let (source, destination) =
        (port_bits(matcher, Field::SOURCE_PORT), port_bits(matcher, Field::DESTINATION_PORT));
    Tuple::new(matcher, source << 16 | destination)
}

impl<const SORTED: bool> Classifier for TupleSpace<SORTED> {
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            *verdict = self.space.search::<SORTED>(key);
        }
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        let (slot, matcher) = self.space.store.insert(&rule)?;
        if let Some(matcher) = matcher {
            let table = self.space.table(&tuple_of(&matcher));
            self.space.attach(slot, table);
        }
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        self.space.remove(id)
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        self.space.set_precedence(id, precedence)
    }

    fn optimise(&mut self) {
        self.space.relayout();
    }

    fn memory_bytes(&self) -> usize {
        self.space.memory_bytes()
    }

    fn len(&self) -> usize {
        self.space.store.len()
    }
}
