//! The comparison of the L25GC paper (Jain et al., "L25GC: A Low Latency 5G Core Network based on High-Performance NFV
//! Platforms", SIGCOMM 2022, Figure 11): look-up and update for 2 to 100 PDRs with the linear list, tuple space search
//! in its best case (all rules in one tuple) and worst case (each in its own), and PartitionSort; and `auto` on both of
//! the extreme sets.

use classifier::Backend;
use classifier::generate::{Family, Fields, Random};

use super::contender::{Calls, Contender};
use super::lookup::{SEED, Situation};
use super::results::{LOOKUP, Results};
use super::update::Updates;
use super::{Plan, Session};

/// Series, backend, rule sets.
const LINES: [(&str, &str, Family); 7] = [
    ("list", "list", Family::Acl),
    ("tss_best", "tss", Family::OneTuple),
    ("tss_worst", "tss", Family::EachItsTuple),
    ("partition_sort", "partition_sort", Family::Acl),
    ("auto", "auto", Family::Acl),
    ("auto_tss_best", "auto", Family::OneTuple),
    ("auto_tss_worst", "auto", Family::EachItsTuple),
];

pub(super) fn run(plan: &Plan, session: &mut Session) {
    for &n in &plan.figure11 {
        session.progress.say(&format!("figure 11, {n} rules"));
        let sets = [Family::Acl, Family::OneTuple, Family::EachItsTuple]
            .map(|family| Situation::new(family, Fields::FiveTuple, n));
        let mut lines = Vec::new();
        for (name, backend, family) in LINES {
            let Ok(backend) = backend.parse::<Backend>() else { continue };
            let Some(set) = sets.iter().find(|set| set.family == family) else { continue };
            let Ok(contender) = Contender::build(backend, &set.rules) else { continue };
            let wrong = set.wrong(&contender);
            session.checked(contender.name, &format!("figure 11 {name}"), n, wrong, 2 * set.keys.len());
            lines.push((name, set, contender));
        }
        measure(plan, n, &mut lines, &mut session.results);
    }
}

fn measure(plan: &Plan, n: usize, lines: &mut [(&str, &Situation, Contender)], results: &mut Results) {
    let mut random = Random::new(SEED);
    let mut verdicts = vec![None; lines.iter().map(|line| line.1.keys.len()).max().unwrap_or(0)];
    for round in 0..plan.rounds {
        for (name, set, contender) in lines.iter_mut() {
            let ns = contender.sample(&set.keys, Calls::Single, round, plan.sample, &mut verdicts);
            results.add(format!("{name}.figure11.lookup"), LOOKUP, n, ns);
            let updates = Updates { name: format!("{name}.figure11"), rules: &set.rules };
            updates.sample(contender.classifier(), plan.sample, &mut random, results);
        }
    }
}
