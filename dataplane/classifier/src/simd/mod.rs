//! Rules compared sixteen at a time with vector instructions: the fastest backend for up to about a hundred
//! rules, and the leaf of larger structures.
//!
//! Rules are in [`Block`]s of 16, sorted by rank. A look-up compares a key with all rules of a block at once;
//! the first match in the first block with a match wins. A block costs about as much as one rule of a list. The
//! cost does not depend on the rules, except for rules with fields beyond the 5-tuple: when their 5-tuple
//! matches, their other fields are compared one rule at a time ([`rest`]).
//!
//! An update compares ids in the same way, so no map from ids to rules is needed. Then it shifts the columns of
//! one block, and sometimes moves a rule to the next block, or half a block to a new one. Invariants: blocks
//! are in order, none is empty, lanes are filled starting at 0.
//!
//! Comparing all rules with a packet at once is what TCAMs do. In software it is the last step of
//! DBTable (J. Liao et al., "DBTable: Leveraging Discriminative Bitsets for High-Performance Packet Classification",
//! IEEE/ACM Transactions on Networking, 2024) and of DPDK's `rte_acl` (many packets, one rule each). Here rules are in
//! columns of 32 bits, prefixes are shifts and port ranges two 16-bit halves, so that a rule is 20 octets.
//!
//! [`isa`] chooses between AVX-512, AVX2 and plain loops.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod block;
pub mod compare;
pub mod isa;
pub(crate) mod portable;
pub mod rest;
mod rows;
pub mod scan;

use std::collections::HashSet;

use crate::matcher::Ranked;
use crate::{Classifier, InsertError, Key, Matcher, Rule, Verdict};

use rows::Rows;

pub use block::{Block, Lane, Probe};
pub use compare::Compare;
pub use isa::{Compiled, Cpu, Isa, Kernel, LookUp, Vector};
pub use rest::Rests;
pub use scan::Scan;

/// Rules in a block.
const LANES: usize = 16;
/// Two neighbouring blocks with at most this many rules are merged. Fewer than fill a block, so that the next
/// insertion does not divide it again.
const MERGED: usize = 12;
/// Up to this many rules are inserted one by one; more are inserted by building anew.
const FEW: usize = 8;

/// Where the conditions of the rules are stored.
enum Fields {
    InLanes,
    Rows,
    Records,
}

/// A classifier of sorted blocks.
#[derive(Clone, Debug)]
pub struct Simd {
    cpu: Cpu,
    /// The fastest look-up that suits the rules.
    look_up: Compiled<Simd>,
    len: usize,
    blocks: Vec<Block<LANES>>,
    /// Exists once a rule needs a row.
    rows: Option<Box<Rows>>,
}

impl Default for Simd {
    fn default() -> Simd {
        Simd::on(Cpu::detect())
    }
}

impl Simd {
    fn on(cpu: Cpu) -> Simd {
        let look_up = Compiled::new::<TuplesInBlocks>(cpu);
        Simd { cpu, look_up, len: 0, blocks: Vec::new(), rows: None }
    }

    /// Chooses the look-up; called after every change of the rules.
    fn choose(&mut self) {
        let small = self.len <= LANES / 2;
        let one = self.blocks.len() == 1;
        let fields = match &self.rows {
            Some(rows) if rows.has_records() => Fields::Records,
            Some(rows) if !rows.is_empty() => Fields::Rows,
            _ => Fields::InLanes,
        };
        self.look_up = match (one, fields) {
            (true, Fields::InLanes) if small => Compiled::new::<TuplesInOneBlock<{ LANES / 2 }>>(self.cpu),
            (true, Fields::InLanes) => Compiled::new::<TuplesInOneBlock<LANES>>(self.cpu),
            (false, Fields::InLanes) => Compiled::new::<TuplesInBlocks>(self.cpu),
            (true, Fields::Rows) if small => Compiled::new::<RulesInOneBlock<{ LANES / 2 }, false>>(self.cpu),
            (true, Fields::Rows) => Compiled::new::<RulesInOneBlock<LANES, false>>(self.cpu),
            (false, Fields::Rows) => Compiled::new::<RulesInBlocks<false>>(self.cpu),
            (true, Fields::Records) if small => {
                Compiled::new::<RulesInOneBlock<{ LANES / 2 }, true>>(self.cpu)
            }
            (true, Fields::Records) => Compiled::new::<RulesInOneBlock<LANES, true>>(self.cpu),
            (false, Fields::Records) => Compiled::new::<RulesInBlocks<true>>(self.cpu),
        };
    }

    /// A classifier without rules that uses the fastest instructions of this CPU.
    pub fn new() -> Simd {
        Simd::default()
    }

    /// A classifier without rules that uses these instructions; `None` when this CPU does not have them.
    pub fn with_isa(isa: Isa) -> Option<Simd> {
        Cpu::with(isa).map(Simd::on)
    }

    /// A classifier with these rules, in any order; no two may have the same id.
    pub(crate) fn of(rules: &[Ranked]) -> Simd {
        let mut simd = Simd::new();
        simd.fill(rules.to_vec());
        simd
    }

    /// All rules.
    pub(crate) fn ranked(&self) -> Vec<Ranked> {
        let rule =
            |lane: Lane| self.rows.as_ref().map_or_else(|| lane.ranked_in_lane(), |rows| rows.ranked(&lane));
        self.lanes().map(rule).collect()
    }

    /// The lane of a rule, with a row if it needs one.
    #[inline]
    fn lane(&mut self, rule: &Rule) -> Lane {
        let mut ranked = Ranked { rank: rule.rank(), value: rule.value, matcher: Matcher::ALL };
        let Some(used) = ranked.matcher.demand(&rule.filter) else {
            return Lane::never(ranked.rank, ranked.value);
        };
        match Lane::words_beyond(&ranked.matcher, used) {
            0 => Lane::fitting(&ranked.matcher, ranked.rank, ranked.value),
            beyond => self.rows.get_or_insert_default().add_with_row(&ranked, beyond),
        }
    }

    fn drop_row(&mut self, lane: &Lane) {
        if let Some(rows) = &mut self.rows {
            rows.give_back(lane);
        }
    }

    fn lanes(&self) -> impl Iterator<Item = Lane> {
        let ranks = self.blocks.iter().enumerate().flat_map(|(at, _)| (0..LANES).map(move |lane| (at, lane)));
        ranks.map(|(at, lane)| self.blocks[at].get(lane)).filter(|lane| !lane.is_empty())
    }

    /// Replaces all blocks by full blocks of these rules.
    fn fill(&mut self, mut rules: Vec<Ranked>) {
        rules.sort_unstable_by_key(|rule| rule.rank);
        self.len = rules.len();
        let mut rows = Rows::for_rules(&rules);
        let chunks = rules.chunks(LANES).map(|chunk| {
            let mut block = Block::new();
            for (at, rule) in chunk.iter().enumerate() {
                block.set(at, &rows.add(rule));
            }
            block
        });
        self.blocks = chunks.collect();
        rows.shrink();
        self.rows = (!rows.is_empty()).then(|| Box::new(rows));
        self.choose();
    }
}

impl Classifier for Simd {
    #[inline]
    fn classify(&self, keys: &[Key], verdicts: &mut [Verdict]) {
        self.look_up.call(self, keys, verdicts);
    }

    fn insert(&mut self, rule: Rule) -> Result<(), InsertError> {
        if self.cpu.run(Contains { blocks: &self.blocks, id: rule.id }) {
            return Err(InsertError::Exists(rule.id));
        }
        let lane = self.lane(&rule);
        self.cpu.run(Insert { blocks: &mut self.blocks, lane });
        self.len += 1;
        self.choose();
        Ok(())
    }

    fn remove(&mut self, id: u32) -> bool {
        let Some(lane) = self.cpu.run(Remove { blocks: &mut self.blocks, id }) else { return false };
        self.drop_row(&lane);
        self.len -= 1;
        self.choose();
        true
    }

    fn set_precedence(&mut self, id: u32, precedence: u32) -> bool {
        let moved = self.cpu.run(SetPrecedence { blocks: &mut self.blocks, id, precedence });
        self.choose();
        moved
    }

    fn insert_all(&mut self, rules: &[Rule]) -> Result<(), InsertError> {
        if rules.len() <= FEW {
            return rules.iter().try_for_each(|rule| self.insert(*rule));
        }
        let mut all = self.ranked();
        let mut ids: HashSet<u32> = all.iter().map(|rule| rule.rank as u32).collect();
        let fresh = rules.iter().take_while(|rule| ids.insert(rule.id)).count();
        all.extend(rules[..fresh].iter().map(Ranked::new));
        self.fill(all);
        rules.get(fresh).map_or(Ok(()), |rule| Err(InsertError::Exists(rule.id)))
    }

    /// Fills the blocks, so that look-ups compare fewer, and frees unused memory.
    fn optimise(&mut self) {
        self.fill(self.ranked());
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Simd>()
            + self.blocks.capacity() * size_of::<Block<LANES>>()
            + self.rows.as_ref().map_or(0, |rows| size_of::<Rows>() + rows.heap_bytes())
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Look-up in one block with rules in at most `USED` lanes, whose conditions all fit their lanes.
struct TuplesInOneBlock<const USED: usize>;

impl<const USED: usize> LookUp<Simd> for TuplesInOneBlock<USED> {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &Simd, keys: &[Key], verdicts: &mut [Verdict]) {
        let Some(block) = rules.blocks.first() else { return };
        for (key, verdict) in keys.iter().zip(verdicts) {
            let found = block.candidates::<V, USED>(vector, &Probe::new(vector, key));
            *verdict = (found != 0).then(|| block.small_value(found.trailing_zeros() as usize));
        }
    }
}

/// Look-up in any number of blocks of rules whose conditions all fit their lanes.
struct TuplesInBlocks;

impl LookUp<Simd> for TuplesInBlocks {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &Simd, keys: &[Key], verdicts: &mut [Verdict]) {
        for (key, verdict) in keys.iter().zip(verdicts) {
            let probe = Probe::new(vector, key);
            *verdict = None;
            for block in &rules.blocks {
                let found = block.candidates::<V, LANES>(vector, &probe);
                if found != 0 {
                    *verdict = Some(block.small_value(found.trailing_zeros() as usize));
                    break;
                }
            }
        }
    }
}

/// Look-up in one block with any rules in its first `USED` lanes.
struct RulesInOneBlock<const USED: usize, const RECORDS: bool>;

impl<const USED: usize, const RECORDS: bool> LookUp<Simd> for RulesInOneBlock<USED, RECORDS> {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &Simd, keys: &[Key], verdicts: &mut [Verdict]) {
        let (Some(block), Some(rows)) = (rules.blocks.first(), &rules.rows) else { return };
        for (key, verdict) in keys.iter().zip(verdicts) {
            let found = block.candidates::<V, USED>(vector, &Probe::new(vector, key));
            let picked = rows.pick(vector, key);
            *verdict = block.first::<V, RECORDS>(vector, found, rows, &picked, key);
        }
    }
}

/// Look-up in any number of blocks with any rules.
struct RulesInBlocks<const RECORDS: bool>;

impl<const RECORDS: bool> LookUp<Simd> for RulesInBlocks<RECORDS> {
    #[inline(always)]
    fn look_up<V: Vector>(vector: V, rules: &Simd, keys: &[Key], verdicts: &mut [Verdict]) {
        let Some(rows) = &rules.rows else { return };
        for (key, verdict) in keys.iter().zip(verdicts) {
            let (probe, picked) = (Probe::new(vector, key), rows.pick(vector, key));
            *verdict = None;
            for block in &rules.blocks {
                let found = block.candidates::<V, LANES>(vector, &probe);
                *verdict = block.first::<V, RECORDS>(vector, found, rows, &picked, key);
                if verdict.is_some() {
                    break;
                }
            }
        }
    }
}

/// Block and lane of the rule with this id.
#[inline(always)]
fn find<V: Vector>(vector: V, blocks: &[Block<LANES>], id: u32) -> Option<(usize, usize)> {
    blocks.iter().enumerate().find_map(|(at, block)| Some((at, block.find_id(vector, id)?)))
}

/// Whether there is a rule with this id.
struct Contains<'a> {
    blocks: &'a [Block<LANES>],
    id: u32,
}

impl Kernel for Contains<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) -> bool {
        find(vector, self.blocks, self.id).is_some()
    }
}

/// Changes the precedence of the rule with this id; `false` when there is none.
struct SetPrecedence<'a> {
    blocks: &'a mut Vec<Block<LANES>>,
    id: u32,
    precedence: u32,
}

impl Kernel for SetPrecedence<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) -> bool {
        let SetPrecedence { blocks, id, precedence } = self;
        let Some(lane) = (Remove { blocks: &mut *blocks, id }).run(vector) else { return false };
        Insert { blocks, lane: lane.with_precedence(precedence) }.run(vector);
        true
    }
}

struct Insert<'a> {
    blocks: &'a mut Vec<Block<LANES>>,
    lane: Lane,
}

impl Kernel for Insert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) {
        let Insert { blocks, lane } = self;
        let rank = lane.rank();
        let at = blocks.partition_point(|block| block.rank(0) < rank).saturating_sub(1);
        let Some(block) = blocks.get_mut(at) else {
            add(blocks, 0).set(0, &lane);
            return;
        };
        let position = block.position(vector, rank);
        if block.len(vector) < LANES {
            block.insert(vector, position, &lane);
            return;
        }
        // The block is full: one rule moves to the next block if that has room.
        let out = if position == LANES { lane } else { block.get(LANES - 1) };
        if blocks.get(at + 1).is_none_or(|next| next.len(vector) == LANES) {
            if position == LANES {
                add(blocks, at + 1).set(0, &lane);
                return;
            }
            divide(vector, blocks, at);
            let (at, position) =
                if position <= LANES / 2 { (at, position) } else { (at + 1, position - LANES / 2) };
            blocks[at].insert(vector, position, &lane);
            return;
        }
        if position < LANES {
            blocks[at].insert(vector, position, &lane);
        }
        blocks[at + 1].insert(vector, 0, &out);
    }
}

/// Adds an empty block at `at`.
fn add(blocks: &mut Vec<Block<LANES>>, at: usize) -> &mut Block<LANES> {
    if blocks.len() == blocks.capacity() {
        // Capacity grows by a quarter: small sets should not hold twice the memory that they need.
        blocks.reserve_exact((blocks.len() / 4).max(1));
    }
    blocks.insert(at, Block::new());
    &mut blocks[at]
}

/// Moves the upper half of a block to a new block behind it.
#[inline(always)]
fn divide<V: Vector>(vector: V, blocks: &mut Vec<Block<LANES>>, at: usize) {
    add(blocks, at + 1);
    for lane in 0..LANES / 2 {
        let rule = blocks[at].get(LANES / 2 + lane);
        blocks[at + 1].set(lane, &rule);
    }
    for lane in (LANES / 2..LANES).rev() {
        blocks[at].remove(vector, lane);
    }
}

/// Removes the rule with this id.
struct Remove<'a> {
    blocks: &'a mut Vec<Block<LANES>>,
    id: u32,
}

impl Kernel for Remove<'_> {
    type Output = Option<Lane>;

    #[inline(always)]
    fn run<V: Vector>(self, vector: V) -> Option<Lane> {
        let Remove { blocks, id } = self;
        let (at, lane) = find(vector, blocks, id)?;
        let removed = blocks[at].get(lane);
        blocks[at].remove(vector, lane);
        let left = blocks[at].len(vector);
        if left == 0 {
            blocks.remove(at);
            return Some(removed);
        }
        // Merges with the next or the previous block when few rules are left in both.
        for first in [at, at.wrapping_sub(1)] {
            let (Some(one), Some(two)) = (blocks.get(first), blocks.get(first.wrapping_add(1))) else {
                continue;
            };
            let (held, moved) = (one.len(vector), two.len(vector));
            if held + moved <= MERGED {
                for lane in 0..moved {
                    let rule = blocks[first + 1].get(lane);
                    blocks[first].set(held + lane, &rule);
                }
                blocks.remove(first + 1);
                break;
            }
        }
        Some(removed)
    }
}
