//! A million sessions with a few PDRs each, where every packet is of another session: the normal load of a user
//! plane. The sessions fit no cache, so the number of waits for memory per packet decides.
//!
//! Contenders: [`Sessions`]; and [`HashList`], the hash table with linked lists that user plane functions
//! commonly have. A session has rules in both directions for some services, and a default rule in each
//! direction; all contain the UE's address. Situations: `cold`, with 5-tuple rules and 64 policies, as
//! operators assign them; `cold_own`, where no two sessions have the same services; `cold_full`, where rules
//! also contain source interface and TEID.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use classifier::generate::{self, Family, Fields, Random, Traffic};
use classifier::session::{HashList, Sessions};
use classifier::{Classifier, Filter, Interface, Key, List, Prefix, Rule, Side};

use super::lookup::SEED;
use super::measure::{self, BATCH};
use super::results::Axes;
use super::{Plan, Session};

/// Sessions.
const COUNT: usize = 1_000_000;
/// Rule sets that operators assign.
const POLICIES: usize = 64;
/// Packets between two clock readings. Their keys fit the second-level cache, as keys of packets that were just
/// parsed do.
const WINDOW: usize = 2048;
/// Windows per sample.
const WINDOWS: usize = 8;
/// Sessions whose verdicts are compared with those of a list of their own.
const COMPARED: usize = 2000;

const LOOKUP: Axes = Axes { x: "rules per session", y: "look-up in one of a million sessions", unit: "ns" };
const BYTES: Axes = Axes { x: "rules per session", y: "memory", unit: "B/session" };

pub(super) fn run(plan: &Plan, session: &mut Session) {
    // Making the sessions takes longer than measuring, so the quick run has time for one kind only.
    let all: &[_] = if plan.quick { &[Kind::Cold] } else { &[Kind::Cold, Kind::Own, Kind::Full] };
    for kind in all {
        for rules in if plan.quick { [4].as_slice() } else { &[4, 16] } {
            measure(plan, session, *kind, *rules);
        }
    }
}

/// What sessions have in common, and which fields their rules have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cold,
    Own,
    Full,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Cold => "cold",
            Kind::Own => "cold_own",
            Kind::Full => "cold_full",
        }
    }
}

/// The rules of the services, from which sessions' rules are made.
struct Policies {
    services: Vec<Vec<Rule>>,
    rules: usize,
    full: bool,
}

impl Policies {
    fn new(rules: usize, kind: Kind) -> Policies {
        let count = if kind == Kind::Own { COUNT } else { POLICIES };
        let services = (rules - 2) / 2;
        let draw = |policy| generate::rules(Family::Acl, Fields::FiveTuple, services, SEED + policy as u64);
        Policies { services: (0..count).map(draw).collect(), rules, full: kind == Kind::Full }
    }

    /// The rules of a session: both directions of each service, then the default rules.
    fn of(&self, session: usize) -> Vec<Rule> {
        // UE addresses starting at 10.0.0.0, one per session.
        let ue = Prefix::host(IpAddr::V4(Ipv4Addr::from(0x0A00_0000 + session as u32)));
        let services = &self.services[session % self.services.len()];
        let mut rules = Vec::with_capacity(self.rules);
        for service in services.iter().map(|rule| rule.filter).chain([Filter::default()]) {
            for uplink in [true, false] {
                let (side, interface) = if uplink { (Side::Source, 0) } else { (Side::Destination, 1) };
                let (source_ports, destination_ports) = match uplink {
                    true => (service.source_ports, service.destination_ports),
                    false => (service.destination_ports, service.source_ports),
                };
                let filter = Filter {
                    source: if uplink { None } else { service.destination },
                    destination: if uplink { service.destination } else { None },
                    source_ports,
                    destination_ports,
                    ue: Some((side, ue)),
                    teid: (self.full && uplink).then_some(session as u32 + 1),
                    source_interface: if self.full { Interface::new(interface).ok() } else { None },
                    ..service
                };
                let id = rules.len() as u32;
                rules.push(Rule { id, precedence: id, value: id, filter });
            }
        }
        rules
    }
}

/// Packets of random sessions, each matching one of the session's rules.
fn packets(policies: &Policies, count: usize) -> (Vec<u32>, Vec<Key>) {
    let mut random = Random::new(SEED);
    let draw = |_| {
        let session = random.below(COUNT);
        let rules = policies.of(session);
        let rule = rules[random.below(rules.len())];
        let key = generate::trace(&[rule], Traffic::Uniform, 1, random.bits());
        (session as u32, key.first().copied().unwrap_or_else(Key::unknown))
    };
    (0..count).map(draw).unzip()
}

fn measure(plan: &Plan, session: &mut Session, kind: Kind, rules: usize) {
    let situation = kind.name();
    session.progress.say(&format!("{COUNT} sessions with {rules} rules, {situation}"));
    let policies = Policies::new(rules, kind);
    let (mut sessions, mut hash_list) = (Sessions::new(), HashList::new());
    for number in 0..COUNT {
        let rules = policies.of(number);
        if sessions.set(number as u32, &rules).is_err() || hash_list.set(number as u32, &rules).is_err() {
            session.checked("sessions", "a session could not be set", rules.len(), 1, 1);
            return;
        }
    }
    for (name, bytes) in [("sessions", sessions.memory_bytes()), ("hash_list", hash_list.memory_bytes())] {
        session.results.add(format!("{name}.{situation}.bytes"), BYTES, rules, bytes as f64 / COUNT as f64);
    }
    // Enough packets that a session has left the caches before it comes again.
    let (numbers, keys) = packets(&policies, if plan.quick { COUNT / 2 } else { COUNT });
    check(session, &policies, &sessions, &hash_list, &numbers, &keys);
    let windows = keys.len() / WINDOW;
    for round in 0..plan.rounds {
        let (mut by_hash_list, mut by_sessions) = (0.0, 0.0);
        for window in 0..WINDOWS {
            let from = (round * WINDOWS + window) % windows * WINDOW;
            let (numbers, keys) = (&numbers[from..from + WINDOW], keys[from..from + WINDOW].to_vec());
            let mut verdicts = vec![None; WINDOW];
            by_hash_list += measure::nanoseconds(|| {
                hash_list.classify(numbers, black_box(&keys), &mut verdicts);
            });
            black_box(&verdicts);
            by_sessions += measure::nanoseconds(|| {
                let batches = numbers.chunks(BATCH).zip(keys.chunks(BATCH)).zip(verdicts.chunks_mut(BATCH));
                batches.for_each(|((numbers, keys), verdicts)| sessions.classify(numbers, keys, verdicts));
            });
            black_box(&verdicts);
        }
        let looked_up = (WINDOW * WINDOWS) as f64;
        session.results.add(format!("hash_list.{situation}.lookup"), LOOKUP, rules, by_hash_list / looked_up);
        session.results.add(
            format!("sessions.{situation}.lookup_b32"),
            LOOKUP,
            rules,
            by_sessions / looked_up,
        );
    }
}

/// Compares the two contenders with each other for every packet, and with one list per session for some.
fn check(
    session: &mut Session,
    policies: &Policies,
    sessions: &Sessions,
    hash_list: &HashList,
    numbers: &[u32],
    keys: &[Key],
) {
    let (mut found, mut expected) = (vec![None; keys.len()], vec![None; keys.len()]);
    sessions.classify(numbers, keys, &mut found);
    hash_list.classify(numbers, keys, &mut expected);
    let mut wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
    for (at, number) in numbers.iter().enumerate().take(COMPARED) {
        let mut list = List::new();
        let mut verdict = [None];
        if list.insert_all(&policies.of(*number as usize)).is_ok() {
            list.classify(&keys[at..=at], &mut verdict);
        }
        wrong += usize::from(verdict[0] != found[at] || verdict[0].is_none());
    }
    session.checked("sessions", "a million sessions", policies.rules, wrong, keys.len() + COMPARED);
}
