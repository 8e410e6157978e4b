//! Tuple space search: a hash table for every combination of masks that rules have.
//!
//! V. Srinivasan, S. Suri and G. Varghese, "Packet classification using tuple space search", SIGCOMM 1999. Rules with
//! the same masks in all fields form a tuple; within it a rule is found by one hash look-up of the packet's masked
//! A packet costs one hash for every tuple. Real rule sets have far fewer tuples than rules; an adversary can
//! make one tuple per rule. Updates touch one table, which is why virtual switches use this algorithm.
//!
//! [`TssSorted`] is the form of Open vSwitch (B. Pfaff et al., "The design and implementation of Open vSwitch",
//! NSDI 2015, §5.2): tables are searched in order of the best rank in them, and the search stops when its match
//! ranks before everything in the next table. [`Tss`] tries every table.
//!
//! Both differ from the papers in the port ranges. The original gives ranges numbers by nesting level, and Open
//! vSwitch cuts them into prefixes; either multiplies tables or rules. Here a tuple contains no bits, the upper
//! eight or all sixteen bits of a port: as many as are equal in the whole range. Rules that then share a masked
//! key form a short list in order of rank, and each is verified (see [`tuple`](crate::tuple)).
//!
//! Cost with t tables: a look-up takes t hashes and usually one cache line per table. Insertion and removal
//! change one table, and move up to t places of the search order when the best rank of that table changes.

use crate::tuple::{Space, Tuple};
use crate::{Classifier, Field, InsertError, Key, Matcher, Rule, Verdict};

/// Tuple space search that tries all tables.
pub type Tss = TupleSpace<false>;
/// Tuple space search that tries tables by rank and stops early.
pub type TssSorted = TupleSpace<true>;

/// Tuple space search: [`Tss`] and [`TssSorted`].
#[derive(Clone, Debug)]
pub struct TupleSpace<const SORTED: bool> {
    space: Space,
}

impl<const SORTED: bool> TupleSpace<SORTED> {
    /// A classifier without rules.
    pub fn new() -> Self {
        TupleSpace { space: Space::new() }
    }
}

impl<const SORTED: bool> Default for TupleSpace<SORTED> {
    fn default() -> Self {
        TupleSpace::new()
    }
}

/// The bits of a port that a tuple contains: all, the upper eight or none.
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
