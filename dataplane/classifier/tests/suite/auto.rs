//! The default classifier compared with the list, while rules come and go across its limits.

use classifier::auto::Auto;
use classifier::generate::{self, Family, Fields, Random, Traffic};
use classifier::{Classifier, Key, List, Verdict};

fn verdicts(classifier: &dyn Classifier, keys: &[Key]) -> Vec<Verdict> {
    let mut verdicts = vec![Some(u32::MAX); keys.len()];
    classifier.classify(keys, &mut verdicts);
    verdicts
}

#[test]
fn equals_the_list_across_all_limits() {
    for (family, fields) in [(Family::Fw, Fields::FiveTuple), (Family::Acl, Fields::Full)] {
        let rules = generate::rules(family, fields, 800, 7);
        let keys = generate::trace(&rules, Traffic::Uniform, 60, 7);
        let (mut list, mut auto, mut random) = (List::new(), Auto::new(), Random::new(7));
        // Waves of different heights: each limit is crossed both ways several times.
        for height in [1, 20, 800, 3, 150, 1, 65, 32, 64, 65, 0, 5] {
            while list.len() != height {
                let rule = rules[random.below(rules.len())];
                if list.len() < height {
                    assert_eq!(auto.insert(rule), list.insert(rule));
                } else {
                    assert_eq!(auto.remove(rule.id), list.remove(rule.id));
                }
                let (id, precedence) = (random.below(rules.len()) as u32, random.below(800) as u32);
                assert_eq!(auto.set_precedence(id, precedence), list.set_precedence(id, precedence));
                if random.chance(50) {
                    assert_eq!(verdicts(&auto, &keys), verdicts(&list, &keys));
                }
            }
            assert_eq!((auto.len(), verdicts(&auto, &keys)), (height, verdicts(&list, &keys)));
            auto.optimise();
            assert_eq!(verdicts(&auto, &keys), verdicts(&list, &keys));
        }
    }
}

#[test]
fn many_rules_at_once_end_where_one_by_one_do() {
    let rules = generate::rules(Family::Ipc, Fields::Full, 300, 3);
    let keys = generate::trace(&rules, Traffic::Uniform, 300, 3);
    for count in [0, 1, 2, 16, 63, 64, 65, 300] {
        let (mut list, mut auto) = (List::new(), Auto::new());
        list.insert_all(&rules[..count]).unwrap();
        auto.insert_all(&rules[..count]).unwrap();
        assert_eq!(verdicts(&auto, &keys), verdicts(&list, &keys));
        let twice = [rules[299], rules[298], rules[0]];
        assert_eq!(auto.insert_all(&twice), list.insert_all(&twice));
        assert_eq!((auto.len(), verdicts(&auto, &keys)), (list.len(), verdicts(&list, &keys)));
    }
}

/// Generated rules are in the order of what they select, so that wide rules come last. Here rules with the same
/// masks, which share a table of the index, are contiguous, and these groups come in many orders.
#[test]
fn shapes_of_rules_may_come_in_any_order() {
    for (family, seed) in (0..8).flat_map(|seed| [(Family::Fw, seed), (Family::Ipc, seed)]) {
        let mut rules = generate::rules(family, Fields::FiveTuple, 2000, 11);
        let keys = generate::trace(&rules, Traffic::Uniform, 2000, 11);
        let mut random = Random::new(seed);
        let bands: Vec<u32> = (0..64).map(|_| random.below(64) as u32 * 1000).collect();
        for rule in &mut rules {
            let length = |prefix: Option<classifier::Prefix>| {
                prefix.map_or(0, |prefix| usize::from(prefix.length()) / 8)
            };
            let shape = length(rule.filter.source) * 8 + length(rule.filter.destination);
            rule.precedence = bands[shape] + random.below(1000) as u32;
        }
        let (mut list, mut auto) = (List::new(), Auto::new());
        list.insert_all(&rules).unwrap();
        auto.insert_all(&rules).unwrap();
        assert_eq!(verdicts(&auto, &keys), verdicts(&list, &keys), "{family:?}, seed {seed}");
    }
}
