//! Comparison with the linear list, on every instruction set.

use proptest::prelude::*;

use super::*;
use crate::generate::{self, Family, Fields, Random, Traffic};
use crate::{Filter, List, Masked, PortRange, Prefix};

/// The list, and one NuevoMatch per instruction set, which all get the same updates.
struct Both {
    list: List,
    ours: Vec<NuevoMatch>,
}

impl Both {
    fn new() -> Both {
        let ours = Cpu::all().map(|cpu| NuevoMatch { cpu, ..NuevoMatch::new() });
        Both { list: List::new(), ours: ours.collect() }
    }

    fn update<T: PartialEq + std::fmt::Debug>(&mut self, update: impl Fn(&mut dyn Classifier) -> T) {
        let expected = update(&mut self.list);
        for ours in &mut self.ours {
            assert_eq!(update(ours), expected);
            assert_eq!(ours.len(), self.list.len());
        }
    }

    fn check(&self, keys: &[Key]) {
        let mut expected = vec![None; keys.len()];
        self.list.classify(keys, &mut expected);
        for ours in &self.ours {
            for batch in [1, 7, keys.len().max(1)] {
                let mut verdicts = vec![Some(u32::MAX); keys.len()];
                for (keys, verdicts) in keys.chunks(batch).zip(verdicts.chunks_mut(batch)) {
                    ours.classify(keys, verdicts);
                }
                let wrong = std::iter::zip(&verdicts, &expected).position(|(found, right)| found != right);
                assert_eq!(wrong, None, "{:?} batch {batch}: {verdicts:?} {expected:?}", ours.cpu);
            }
        }
    }
}

/// Packets that match the rules, and packets that nearly do.
fn packets(rules: &[Rule], count: usize, seed: u64) -> Vec<Key> {
    let mut keys = generate::trace(rules, Traffic::Uniform, count, seed);
    let mut random = Random::new(seed);
    for at in 0..keys.len() / 4 {
        let mut words = *keys[at * 4].words();
        words[random.below(words.len())] ^= 1 << random.below(32);
        keys[at * 4] = Key::from_words(words);
    }
    keys
}

#[test]
fn families_are_classified_as_by_the_list() {
    for family in Family::CLASSBENCH.into_iter().chain([Family::OneTuple, Family::EachItsTuple]) {
        for fields in [Fields::FiveTuple, Fields::Full] {
            for n in [0, 1, 3, 255, 256, 400, 3000] {
                let rules = generate::rules(family, fields, n, 7);
                let mut both = Both::new();
                both.update(|all| all.insert_all(&rules));
                both.check(&packets(&rules, 600, 8));
            }
        }
    }
}

#[test]
fn rules_that_come_back_take_their_old_places() {
    let rules = generate::rules(Family::Acl, Fields::FiveTuple, 2000, 1);
    let mut ours = NuevoMatch::new();
    ours.insert_all(&rules).unwrap();
    let in_remainder = |ours: &NuevoMatch| ours.remainder.len();
    let before = in_remainder(&ours);
    assert!(before < 1000, "{before}");
    for rule in &rules {
        assert!(ours.remove(rule.id));
        ours.insert(*rule).unwrap();
    }
    assert_eq!(in_remainder(&ours), before);
    rules.iter().for_each(|rule| assert!(ours.remove(rule.id)));
    assert_eq!((ours.len(), in_remainder(&ours)), (0, 0));
    ours.optimise();
    assert!(ours.sets.is_empty());
}

#[test]
fn an_id_that_exists_ends_a_bulk_insertion() {
    let mut rules = generate::rules(Family::Ipc, Fields::FiveTuple, 400, 3);
    rules[200].id = rules[100].id;
    let mut both = Both::new();
    both.update(|all| all.insert_all(&rules));
    both.check(&packets(&rules, 300, 4));
    assert_eq!(both.list.len(), 200);
}

#[test]
fn the_last_rank_of_all_is_found() {
    let last = |id| Rule { id, precedence: u32::MAX, value: 5, filter: Filter::default() };
    let mut both = Both::new();
    both.update(|all| all.insert(last(u32::MAX)));
    both.check(&[Key::unknown()]);
    // The same with the rule in an iSet.
    let mut rules = generate::rules(Family::OneTuple, Fields::FiveTuple, 400, 3);
    rules[50] = Rule { filter: rules[50].filter, ..last(u32::MAX) };
    let mut both = Both::new();
    both.update(|all| all.insert_all(&rules));
    assert_eq!(both.ours[0].sizes(), (vec![400], 0));
    both.check(&generate::trace(&rules, Traffic::Uniform, 1000, 4));
}

/// One rule with few different values, so that rules overlap, repeat and exclude themselves.
fn few(random: &mut Random, id: u32) -> Rule {
    let address = |random: &mut Random| {
        let bits = [0x0A00_0000, 0x0A00_0001, 0x0A80_0000, 0x0AFF_FFFF, u32::MAX, 0][random.below(6)];
        std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(bits | random.below(64) as u32))
    };
    let prefix = |random: &mut Random| {
        let length = [0, 1, 8, 9, 28, 31, 32, 32][random.below(8)];
        random.chance(700).then(|| Prefix::new(address(random), length).expect("a length within bounds"))
    };
    let ports = |random: &mut Random| {
        let (a, b) = (random.below(40) as u16 * 1600, random.below(40) as u16 * 1600);
        random.chance(400).then(|| PortRange::new(a.min(b), a.max(b)).expect("in order"))
    };
    let filter = Filter {
        source: prefix(random),
        destination: prefix(random),
        ue: random.chance(100).then(|| (crate::Side::Source, Prefix::host(address(random)))),
        source_ports: ports(random),
        destination_ports: ports(random),
        tos: random.chance(200).then(|| Masked::new(random.below(256) as u8, random.below(256) as u8)),
        teid: random.chance(300).then(|| random.below(500) as u32),
        ..Filter::default()
    };
    Rule { id, precedence: random.below(50) as u32, value: random.word(), filter }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_program_of_updates_keeps_the_verdicts(seed in any::<u64>(), n in 1..1200_usize, fields in any::<bool>()) {
        let mut random = Random::new(seed);
        let rules: Vec<Rule> = if fields {
            generate::rules(Family::CLASSBENCH[random.below(3)], Fields::Full, n, seed)
        } else {
            (0..n as u32).map(|id| few(&mut random, id)).collect()
        };
        let keys = packets(&rules, 200, seed);
        let mut both = Both::new();
        let first = random.below(n);
        both.update(|all| all.insert_all(&rules[..first]));
        for step in 0..400 {
            let rule = rules[random.below(n)];
            let precedence = random.below(60) as u32;
            match random.below(64) {
                0..20 => both.update(|all| all.remove(rule.id)),
                20..40 => both.update(|all| all.insert(rule)),
                40..62 => both.update(|all| all.set_precedence(rule.id, precedence)),
                62 => both.update(|all| all.insert_all(&rules[first..])),
                _ => both.update(|all| all.optimise()),
            }
            if step % 16 == 0 {
                both.check(&keys[..keys.len().min(40)]);
            }
        }
        both.check(&keys);
    }
}
