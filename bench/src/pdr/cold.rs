//! Look-ups of a classifier that was not used for a while, so that its memory has left the second-level cache,
//! or all caches.
//!
//! Between samples a buffer larger than the cache is read. A sample is one batch of packets. The packets
//! themselves are in the cache, as they are just after parsing.

use std::hint::black_box;

use classifier::generate::{Family, Fields};

use super::contender::{Calls, Contender};
use super::lookup::Situation;
use super::measure::{self, BATCH};
use super::results::LOOKUP;
use super::{Plan, Session};

/// Octets to read to evict each level: twice a common second-level cache, and three times the largest common
/// share of the third level.
const LEVELS: [(&str, usize); 2] = [("l2_cold", 4 << 20), ("dram_cold", 96 << 20)];
/// Octets per cache line.
const LINE: usize = 64;
/// Samples per round, since one sample is only one batch.
const SAMPLES: usize = 4;

pub(super) fn run(plan: &Plan, session: &mut Session) {
    let buffer = vec![1_u8; LEVELS.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0)];
    for &n in &plan.cold_sizes {
        let situation = Situation::new(Family::Acl, Fields::FiveTuple, n);
        let built = |backend| Contender::build(backend, &situation.rules).ok();
        // Backends that are left out elsewhere would take as long to build here.
        let backends = plan.backends(Family::Fw, Fields::FiveTuple).into_iter();
        let contenders: Vec<Contender> =
            backends.filter(|backend| session.built(*backend, "acl", n)).filter_map(built).collect();
        session.progress.say(&format!("cold look-up, {n} rules"));
        let clock = measure::clock_cost();
        for round in 0..plan.rounds * SAMPLES {
            for (level, bytes) in LEVELS {
                for contender in &contenders {
                    let ns = (one(contender, &situation, round, &buffer[..bytes]) - clock).max(0.0);
                    let name = format!("{}.acl.lookup_{level}", contender.name);
                    session.results.add(name, LOOKUP, n, ns / BATCH as f64);
                }
            }
        }
    }
}

/// Time of one batch after reading `evict`.
fn one(contender: &Contender, situation: &Situation, round: usize, evict: &[u8]) -> f64 {
    let read: usize = evict.iter().step_by(LINE).map(|byte| usize::from(*byte)).sum();
    black_box(read);
    let from = round * BATCH * 3 % (situation.keys.len() - BATCH);
    // Copies the packets, which brings them into the cache.
    let keys = black_box(situation.keys[from..from + BATCH].to_vec());
    let mut verdicts = vec![None; BATCH];
    measure::nanoseconds(|| contender.classify(black_box(&keys), 0..BATCH, Calls::Batch, &mut verdicts))
}
