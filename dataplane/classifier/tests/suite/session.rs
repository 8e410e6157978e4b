//! Tables of sessions compared with the linear list.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::generate::{Family, Fields, Random, Traffic, rules, trace};
use classifier::session::{HashList, Interner, MAX_RULES, SessionError, Sessions};
use classifier::{
    Classifier, Filter, FlowLabel, Interface, Key, List, Masked, PortRange, Prefix, Qfi, Rule, Side, Verdict,
};

fn listed(rules: &[Rule], keys: &[Key]) -> Vec<Verdict> {
    let mut list = List::new();
    list.insert_all(rules).unwrap();
    let mut verdicts = vec![None; keys.len()];
    list.classify(keys, &mut verdicts);
    verdicts
}

/// A typical operator's policy: both directions of some services, and a default rule. `own` makes sessions
/// different.
fn policy(services: u32, own: u32) -> Vec<Rule> {
    let ue: IpAddr = if own.is_multiple_of(3) {
        Ipv6Addr::new(0xFD00, 0, own as u16, 0, 0, 0, 0, 0).into()
    } else {
        Ipv4Addr::from_bits(0x0A00_0000 + own).into()
    };
    let length = if ue.is_ipv4() { 32 } else { 64 };
    let mut rules = Vec::new();
    for service in 0..=services {
        let ports = (service < services).then(|| PortRange::single(80 + service as u16));
        for side in [Side::Source, Side::Destination] {
            let uplink = side == Side::Source;
            let filter = Filter {
                ue: Some((side, Prefix::new(ue, length).unwrap())),
                teid: uplink.then_some(own ^ 0x5555),
                source_interface: Some(Interface::new(u8::from(!uplink)).unwrap()),
                destination_ports: ports.filter(|_| uplink),
                source_ports: ports.filter(|_| !uplink),
                ..Filter::default()
            };
            let id = rules.len() as u32;
            rules.push(Rule { id, precedence: 10 + service, value: 100 + id, filter });
        }
    }
    rules
}

fn without_teid(rule: Rule) -> Rule {
    Rule { filter: Filter { teid: None, ..rule.filter }, ..rule }
}

/// Packets of a session, and packets that nearly belong to it.
fn packets(own: u32, random: &mut Random, count: usize) -> Vec<Key> {
    let near = |random: &mut Random| own ^ u32::from(random.chance(200));
    let packet = |random: &mut Random| {
        let (ue, uplink) = (near(random), random.chance(500));
        let (ue, other): (IpAddr, IpAddr) = if ue.is_multiple_of(3) {
            let low = random.word() as u16;
            (
                Ipv6Addr::new(0xFD00, 0, ue as u16, 0, 1, 2, 3, low).into(),
                Ipv6Addr::new(1, 0, 0, 0, 0, 0, 0, 1).into(),
            )
        } else {
            (Ipv4Addr::from_bits(0x0A00_0000 + ue).into(), Ipv4Addr::from_bits(random.word()).into())
        };
        // Some packets go from the UE to itself.
        let other = if random.chance(100) { ue } else { other };
        let (source, destination) = if uplink { (ue, other) } else { (other, ue) };
        let port = 78 + random.below(10) as u16;
        let ports = if random.chance(500) { (4000, port) } else { (port, 4000) };
        let key = Key::new(source, destination, 17).with_ports(ports.0, ports.1);
        let key = key.with_source_interface(u8::from(!uplink));
        if uplink { key.with_teid(near(random) ^ 0x5555) } else { key }
    };
    (0..count).map(|_| packet(random)).collect()
}

#[test]
fn sessions_with_one_policy_share_it() {
    let (mut sessions, mut baseline) = (Sessions::new(), HashList::new());
    let mut random = Random::new(1);
    for own in 1..2000 {
        sessions.set(own, &policy(own % 4, own)).unwrap();
        baseline.set(own, &policy(own % 4, own)).unwrap();
    }
    assert_eq!((sessions.len(), baseline.len()), (1999, 1999));
    // Policies with four numbers of services, for IPv4 and IPv6.
    assert_eq!(sessions.policies(), 8);
    let mut found = 0;
    for own in 1..2000 {
        let keys = packets(own, &mut random, 8);
        let numbers = vec![own; keys.len()];
        let (mut verdicts, mut others) = (vec![None; 8], vec![Some(9); 8]);
        sessions.classify(&numbers, &keys, &mut verdicts);
        baseline.classify(&numbers, &keys, &mut others);
        assert_eq!(verdicts, listed(&policy(own % 4, own), &keys), "session {own}: {keys:?}");
        assert_eq!(verdicts, others);
        found += verdicts.iter().flatten().count();
    }
    assert!(found > 4000, "{found}");
    for own in 1..2000 {
        assert!(sessions.remove(own) && !sessions.remove(own));
        assert!(baseline.remove(own) && !baseline.remove(own));
    }
    assert_eq!((sessions.policies(), sessions.len(), baseline.len()), (0, 0, 0));
    assert!(sessions.is_empty() && baseline.is_empty());
}

/// Rules of all kinds: each form of row, further conditions, non-contiguous masks, rules that never match.
fn any_rules(random: &mut Random) -> Vec<Rule> {
    let count = [0, 1, 2, 4, 15, 16, 17, 40, 200, MAX_RULES][random.below(10)];
    let seed = random.bits();
    let family = [Family::Acl, Family::Fw, Family::Ipc][random.below(3)];
    let fields = if random.chance(500) { Fields::FiveTuple } else { Fields::Full };
    let mut all = rules(family, fields, count, seed);
    for rule in &mut all {
        rule.precedence = random.below(5) as u32;
        if random.chance(100) {
            rule.filter.tos = Some(Masked::new(random.word() as u8, 0b1010_0101));
            rule.filter.qfi = Some(Qfi::new(random.below(3) as u8).unwrap());
        }
        if random.chance(30) {
            rule.filter.source = Some(Prefix::host(Ipv4Addr::LOCALHOST.into()));
            rule.filter.flow_label = Some(FlowLabel::new(5).unwrap());
        }
        if random.chance(100) {
            rule.filter = Filter { teid: Some(random.below(4) as u32), ..Filter::default() };
        }
    }
    all
}

/// Packets that match or nearly match rules, and keys of any words.
fn any_packets(rules: &[Rule], random: &mut Random) -> Vec<Key> {
    let seed = random.bits();
    let mut keys = if rules.is_empty() { Vec::new() } else { trace(rules, Traffic::Uniform, 60, seed) };
    for key in &mut keys {
        let mut words = *key.words();
        if random.chance(300) {
            words[random.below(20)] ^= 1 << random.below(32);
        }
        if random.chance(300) {
            words[6] = random.below(4) as u32;
            words[3] |= 1 << 30;
        }
        *key = Key::from_words(words);
    }
    keys.extend((0..6).map(|_| Key::from_words(std::array::from_fn(|_| random.word()))));
    keys
}

#[test]
fn tables_and_programs_give_the_verdicts_of_the_list() {
    let mut random = Random::new(7);
    let (mut sessions, mut interner) = (Sessions::new(), Interner::new());
    let mut present: HashMap<u32, Vec<Rule>> = HashMap::new();
    let mut found = 0;
    for _ in 0..400 {
        let session = random.below(30) as u32 * 1000;
        if random.chance(200) {
            assert_eq!(sessions.remove(session), present.remove(&session).is_some());
            continue;
        }
        let rules = any_rules(&mut random);
        sessions.set(session, &rules).unwrap();
        let program = interner.compile(&rules).unwrap();
        let keys = any_packets(&rules, &mut random);
        let right = listed(&rules, &keys);
        present.insert(session, rules);
        assert_eq!(sessions.len(), present.len());
        let mut verdicts = vec![None; keys.len()];
        sessions.classify(&vec![session; keys.len()], &keys, &mut verdicts);
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(verdicts[at], right[at], "{key:?}");
            assert_eq!(program.finish(key, program.begin(key)), right[at]);
            assert_eq!(program.find(key), right[at]);
        }
        found += right.iter().flatten().count();
    }
    assert!(found > 5000, "{found}");
    // All sessions at once: each keeps its own rules, whatever happened to the others.
    let (mut numbers, mut keys, mut right) = (Vec::new(), Vec::new(), Vec::new());
    for (session, rules) in &present {
        let some = any_packets(rules, &mut random);
        right.extend(listed(rules, &some));
        numbers.extend(vec![*session; some.len()]);
        keys.extend(some);
    }
    numbers.extend([999_999, u32::MAX]);
    keys.extend([Key::unknown(); 2]);
    right.extend([None; 2]);
    let mut verdicts = vec![Some(1); keys.len()];
    sessions.classify(&numbers, &keys, &mut verdicts);
    assert_eq!(verdicts, right);
}

#[test]
fn memory_of_sessions_that_are_gone_is_used_again() {
    let mut sessions = Sessions::new();
    let mut after_first = 0;
    for round in 0..20 {
        for session in 0..200 {
            let seed = round * 1000 + u64::from(session);
            let rules = rules(Family::Acl, Fields::FiveTuple, 1 + session as usize % 8, seed);
            sessions.set(session, &rules).unwrap();
        }
        let bytes = sessions.memory_bytes();
        after_first = if round == 0 { bytes } else { after_first };
        assert!(bytes <= after_first + 100_000, "round {round}: {bytes}, {after_first} at first");
    }
}

#[test]
fn programs_with_one_policy_share_rows_as_long_as_somebody_uses_them() {
    let mut interner = Interner::new();
    // A program compares TEIDs in its rows: its caller has found the session by the tunnel already, so these
    // rules leave TEIDs out.
    let one = |own| policy(2, own).into_iter().map(without_teid).collect::<Vec<_>>();
    let programs: Vec<_> = (1..100).map(|own| interner.compile(&one(3 * own + 1)).unwrap()).collect();
    assert!(programs.iter().all(|program| program.shares_rows(&programs[0])));
    assert_eq!(interner.policies(), 1);
    drop(programs);
    for own in 0..1000 {
        let services = own % 100;
        let program = interner.compile(&policy(services, 1)).unwrap();
        assert!(program.memory_bytes() > services as usize * 64);
    }
    assert!(interner.policies() <= 64 + 1, "{}", interner.policies());
}

#[test]
fn the_ue_s_address_is_replaced_by_another_ue_s() {
    let mut interner = Interner::new();
    // Every third session uses IPv6.
    for (own, other) in [(4, 7), (3, 6)] {
        let rules = [own, other].map(|own| policy(2, own));
        let ues = rules.each_ref().map(|rules| rules[0].filter.ue.unwrap().1.address());
        let own = rules.map(|rules| interner.compile(&rules).unwrap().into_parts().0);
        assert_ne!(own[0], own[1]);
        assert_eq!(own[0].for_other_ue(ues[0], ues[1]), own[1]);
        assert_eq!(own[0].for_other_ue(ues[1], ues[0]), own[0], "it is not that UE's");
    }
}

#[test]
fn what_a_session_cannot_have_is_refused() {
    let mut sessions = Sessions::new();
    let rules = policy(2, 1);
    sessions.set(5, &rules).unwrap();
    let mut twice = rules.clone();
    twice[1].id = twice[0].id;
    assert_eq!(sessions.set(5, &twice), Err(SessionError::SameId(0)));
    let many: Vec<Rule> = (0..=MAX_RULES as u32).map(|id| Rule { id, ..rules[0] }).collect();
    assert_eq!(sessions.set(5, &many), Err(SessionError::TooMany(MAX_RULES + 1)));
    assert_eq!(HashList::new().set(5, &twice), Err(SessionError::SameId(0)));
    let key = Key::new([10, 0, 0, 1].into(), [1, 1, 1, 1].into(), 17)
        .with_teid(1 ^ 0x5555)
        .with_source_interface(0)
        .with_ports(1, 81);
    let mut verdicts = [None; 2];
    sessions.classify(&[5, 6], &[key; 2], &mut verdicts);
    assert_eq!(verdicts, [Some(102), None], "the old rules are still there");
    let mut untouched = [Some(7); 3];
    sessions.classify(&[5], &[key; 2], &mut untouched);
    assert_eq!(untouched, [Some(102), Some(7), Some(7)]);
    sessions.set(5, &[]).unwrap();
    sessions.classify(&[5], &[key], &mut verdicts);
    assert_eq!((verdicts[0], sessions.len(), sessions.remove(5)), (None, 1, true));
}
