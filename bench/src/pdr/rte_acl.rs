//! DPDK's rte_acl as a contender: 5-tuple rules, and packets already in its format.
//!
//! It has no updates: a changed rule requires a new build, so an update costs what `rte_acl.<family>.build`
//! shows.

use std::cell::RefCell;
use std::hint::black_box;

use classifier::generate::Fields;
use classifier::{Field, Matcher, Rule};
use net::time::Duration;
use pktio::dpdk::acl::{self, Acl, Packets};

use super::contender::Calls;
use super::lookup::Situation;
use super::measure::{self, BATCH};
use super::results::BUILD;
use super::{Plan, Session};

/// Highest priority of rte_acl.
const PRIORITIES: u32 = (1 << 29) - 1;

/// A built classifier with its packets.
pub(super) struct RteAcl {
    acl: Acl,
    packets: Packets,
    values: RefCell<Vec<u32>>,
}

/// Starts DPDK on a core; returns the result in words.
pub(super) fn start(core: usize) -> String {
    match pktio::dpdk::start(core) {
        Ok(()) => "linked".to_owned(),
        Err(error) => error.to_string(),
    }
}

impl RteAcl {
    /// Builds the rules of a situation, if they are 5-tuples and building is expected to fit the plan's limit,
    /// and compares all verdicts with the list's.
    pub(super) fn build(plan: &Plan, situation: &Situation, session: &mut Session) -> Option<RteAcl> {
        let (name, n) = (situation.name(), situation.rules.len());
        // rte_acl takes seconds to build large sets, which the quick run therefore leaves out.
        if situation.fields == Fields::Full || (plan.quick && n > 1000) {
            return None;
        }
        let rules: Option<Vec<acl::Rule>> = situation.rules.iter().enumerate().map(convert).collect();
        let mut built = None;
        let took = measure::nanoseconds(|| built = Some(Acl::build(&rules.unwrap_or_default())));
        let acl = match built? {
            Ok(acl) => acl,
            Err(error) => {
                session.left_out.push(format!("rte_acl.{name} with {n} rules: {error}"));
                return None;
            }
        };
        session.results.add(format!("rte_acl.{name}.build"), BUILD, n, took / 1e6);
        let mut packets = Packets::default();
        for key in &situation.keys {
            let field = |field: Field| field.of(key);
            packets.push(
                field(Field::SOURCE),
                field(Field::DESTINATION),
                field(Field::PROTOCOL) as u8,
                field(Field::SOURCE_PORT) as u16,
                field(Field::DESTINATION_PORT) as u16,
            );
        }
        let contender = RteAcl { acl, values: RefCell::new(vec![0; packets.len()]), packets };
        let wrong = [1, BATCH].map(|batch| contender.wrong(situation, batch)).iter().sum();
        session.checked("rte_acl", &name, n, wrong, 2 * situation.keys.len());
        Some(contender)
    }

    fn wrong(&self, situation: &Situation, batch: usize) -> usize {
        let mut values = vec![0; self.packets.len()];
        self.acl.classify(&self.packets, 0..self.packets.len(), batch, &mut values);
        let verdicts = values.iter().map(|value| value.checked_sub(1));
        verdicts.zip(&situation.expected).filter(|(found, expected)| found != *expected).count()
    }

    /// A sample of look-ups: nanoseconds per packet.
    pub(super) fn sample(&self, calls: Calls, round: usize, at_least: Duration) -> f64 {
        let batch = if calls == Calls::Single { 1 } else { BATCH };
        let mut values = self.values.borrow_mut();
        measure::lookup(self.packets.len(), round, at_least, &mut |range| {
            self.acl.classify(&self.packets, range, batch, &mut values);
            black_box(&mut values);
        })
    }
}

/// Converts a rule: values are numbers from 1 on, and the first rule has the highest priority.
fn convert((place, rule): (usize, &Rule)) -> Option<acl::Rule> {
    let matcher = Matcher::new(&rule.filter)?;
    let ports = |field| {
        let (first, last) = matcher.range(field);
        [first as u16, last as u16]
    };
    Some(acl::Rule {
        source: matcher.value(Field::SOURCE),
        destination: matcher.value(Field::DESTINATION),
        priority: PRIORITIES - place as u32,
        value: rule.value + 1,
        source_ports: ports(Field::SOURCE_PORT),
        destination_ports: ports(Field::DESTINATION_PORT),
        source_length: matcher.mask(Field::SOURCE).count_ones() as u8,
        destination_length: matcher.mask(Field::DESTINATION).count_ones() as u8,
        protocol: matcher.value(Field::PROTOCOL) as u8,
        protocol_mask: matcher.mask(Field::PROTOCOL) as u8,
    })
}
