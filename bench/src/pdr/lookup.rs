//! Look-ups by size, family and fields, with memory and build times.

use std::collections::HashMap;

use classifier::generate::{self, Family, Fields, Traffic};
use classifier::{Backend, Classifier, Key, List, Rule, Verdict};
use net::time::Duration;

use super::contender::{Calls, Contender};
use super::measure;
use super::results::{BUILD, BYTES, LOOKUP, Results};
use super::rte_acl::RteAcl;
use super::{Plan, Session, update};

/// Seed of all rule sets and traces.
pub(super) const SEED: u64 = 20_261_121;
/// Flows of Zipf traffic.
pub(super) const FLOWS: usize = 4096;

/// A rule set with its trace and the right verdicts.
pub(super) struct Situation {
    pub family: Family,
    pub fields: Fields,
    pub rules: Vec<Rule>,
    pub keys: Vec<Key>,
    pub expected: Vec<Verdict>,
}

impl Situation {
    pub(super) fn new(family: Family, fields: Fields, n: usize) -> Situation {
        let rules = generate::rules(family, fields, n, SEED);
        // Long enough that the branch predictor cannot learn it, and short enough for the second-level cache,
        // because packets have just been parsed when they are classified.
        let keys = generate::trace(&rules, Traffic::Uniform, if n < 1000 { 4096 } else { 8192 }, SEED);
        Situation::with(family, fields, rules, keys)
    }

    pub(super) fn with(family: Family, fields: Fields, rules: Vec<Rule>, keys: Vec<Key>) -> Situation {
        let mut list = List::new();
        let mut expected = vec![None; keys.len()];
        if list.insert_all(&rules).is_ok() {
            list.classify(&keys, &mut expected);
        }
        Situation { family, fields, rules, keys, expected }
    }

    /// Name such as `acl` or `acl_full`.
    pub(super) fn name(&self) -> String {
        match self.fields {
            Fields::FiveTuple => self.family.name().to_owned(),
            Fields::Full => format!("{}_full", self.family.name()),
        }
    }

    /// Number of packets for which the contender's verdict differs from the list's, one by one and in batches.
    pub(super) fn wrong(&self, contender: &Contender) -> usize {
        let mut wrong = 0;
        for calls in [Calls::Single, Calls::Batch] {
            let mut verdicts = vec![None; self.keys.len()];
            contender.classify(&self.keys, 0..self.keys.len(), calls, &mut verdicts);
            wrong +=
                verdicts.iter().zip(&self.expected).filter(|(found, expected)| found != expected).count();
        }
        wrong
    }
}

/// Build times so far. A backend is left out from the size on at which it would exceed the limit.
#[derive(Default)]
pub(super) struct Budget {
    /// Number of rules and seconds, by backend and situation.
    built: HashMap<(Backend, String), (usize, f64)>,
}

impl Budget {
    /// Whether building is expected to take at most `limit`. Assumes that the time grows with the power 1.5 of
    /// the size, which is between insertion into tables and cutting of trees.
    fn allows(&self, backend: Backend, situation: &str, n: usize, limit: Duration) -> bool {
        self.built.get(&(backend, situation.to_owned())).is_none_or(|&(rules, seconds)| {
            let growth = n as f64 / rules.max(1) as f64;
            seconds * growth * growth.sqrt() <= limit.as_secs_f64()
        })
    }
}

/// Builds what fits the budget, checks every verdict, and measures.
pub(super) fn run(plan: &Plan, session: &mut Session) {
    let mut budget = Budget::default();
    for family in Family::CLASSBENCH {
        for fields in [Fields::FiveTuple, Fields::Full] {
            for &n in &plan.sizes {
                let situation = Situation::new(family, fields, n);
                let name = situation.name();
                session.progress.say(&format!("look-up, {name}, {n} rules"));
                let mut contenders = Vec::new();
                for backend in plan.backends(family, fields) {
                    // The promised figures are measured at every size.
                    let promised = super::promised(backend);
                    if promised || budget.allows(backend, &name, n, plan.build_limit) {
                        contenders.extend(build(backend, &situation, &mut budget, session));
                    } else {
                        session.leave_out(backend, &name, n);
                    }
                }
                let acl = RteAcl::build(plan, &situation, session);
                measure(plan, &situation, &contenders, acl.as_ref(), &mut session.results);
                if plan.updates(family, fields) {
                    session.progress.say(&format!("updates, {name}, {n} rules"));
                    update::measure(plan, &situation, &mut contenders, session);
                }
            }
        }
    }
}

/// Builds a contender and checks its verdicts; records memory and build time.
fn build(
    backend: Backend,
    situation: &Situation,
    budget: &mut Budget,
    session: &mut Session,
) -> Option<Contender> {
    let (name, n) = (situation.name(), situation.rules.len());
    let mut contender = None;
    let took = measure::nanoseconds(|| contender = Contender::build(backend, &situation.rules).ok());
    budget.built.insert((backend, name.clone()), (n, took / 1e9));
    let mut contender = contender?;
    session.note_built(backend, &name, n);
    session.results.add(format!("{backend}.{name}.build"), BUILD, n, took / 1e6);
    let bytes = contender.classifier().memory_bytes() as f64 / n as f64;
    session.results.add(format!("{backend}.{name}.bytes"), BYTES, n, bytes);
    if backend != Backend::List {
        let wrong = situation.wrong(&contender);
        session.checked(contender.name, &name, n, wrong, 2 * situation.keys.len());
    }
    Some(contender)
}

fn measure(
    plan: &Plan,
    situation: &Situation,
    contenders: &[Contender],
    acl: Option<&RteAcl>,
    results: &mut Results,
) {
    let (name, n) = (situation.name(), situation.rules.len());
    let mut verdicts = vec![None; situation.keys.len()];
    let mut traces = vec![(Calls::Single, "", plan.rounds), (Calls::Batch, "_b32", plan.rounds)];
    // Other traffic is measured for one family, and only if drawing packets without a match does not take too
    // long.
    let others =
        situation.fields == Fields::FiveTuple && situation.family == Family::Acl && n <= plan.traffic_sizes;
    let trace = |traffic| generate::trace(&situation.rules, traffic, situation.keys.len(), SEED);
    let zipf = if others { trace(Traffic::Zipf { flows: FLOWS }) } else { Vec::new() };
    let misses = if others { trace(Traffic::NoMatch) } else { Vec::new() };
    if others {
        let rounds = plan.rounds.div_ceil(2);
        traces.extend([
            (Calls::Single, "_zipf", rounds),
            (Calls::Batch, "_zipf_b32", rounds),
            (Calls::Single, "_no_match", rounds),
        ]);
    }
    // The cache holds all flows.
    let cached = if others { Contender::cached(2 * FLOWS, &situation.rules).ok() } else { None };
    for round in 0..plan.rounds {
        for (calls, suffix, rounds) in &traces {
            let keys = match *suffix {
                "_zipf" | "_zipf_b32" => &zipf,
                "_no_match" => &misses,
                _ => &situation.keys,
            };
            if round >= *rounds || keys.is_empty() {
                continue;
            }
            let cached = cached.iter().filter(|_| suffix.starts_with("_zipf"));
            for contender in contenders.iter().chain(cached) {
                let ns = contender.sample(keys, *calls, round, plan.sample, &mut verdicts);
                results.add(format!("{}.{name}.lookup{suffix}", contender.name), LOOKUP, n, ns);
            }
            if let (Some(acl), "" | "_b32") = (acl, *suffix) {
                let ns = acl.sample(*calls, round, plan.sample);
                results.add(format!("rte_acl.{name}.lookup{suffix}"), LOOKUP, n, ns);
            }
        }
    }
}
