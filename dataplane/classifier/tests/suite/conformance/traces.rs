//! Generated rule sets and traces: every family, kind of rule and kind of traffic.

use classifier::generate::{Family, Fields, Random, Traffic, rules, trace};
use classifier::{Classifier, Key, List, Rule, Verdict};

use super::definition::{self, Packet};
use super::{assert_verdicts, classify, contenders};

const FAMILIES: [Family; 5] = [Family::Acl, Family::Fw, Family::Ipc, Family::OneTuple, Family::EachItsTuple];
const PACKETS: usize = 200;

/// Packets of every kind of traffic.
pub fn packets(rules: &[Rule], each: usize) -> Vec<Key> {
    let kinds = [Traffic::Uniform, Traffic::Zipf { flows: each / 4 }, Traffic::NoMatch];
    kinds.into_iter().zip(1..).flat_map(|(traffic, seed)| trace(rules, traffic, each, seed)).collect()
}

fn list(rules: &[Rule]) -> List {
    let mut list = List::new();
    list.insert_all(rules).unwrap();
    list
}

/// The verdicts of the list, each compared with the definition.
fn expected(rules: &[Rule], keys: &[Key]) -> Vec<Verdict> {
    let verdicts = classify(&list(rules), keys);
    for (key, verdict) in keys.iter().zip(&verdicts) {
        assert_eq!(*verdict, definition::verdict(rules, &Packet::read(key)), "{key:?}");
    }
    verdicts
}

/// Builds from all rules at once and looks up; then updates a third of the rules one by one, with look-ups in
/// between.
fn check(family: Family, fields: Fields, n: usize) {
    let set = rules(family, fields, n, 7);
    let keys = packets(&set, PACKETS);
    let before = expected(&set, &keys);
    // The rules that remain after the updates below.
    let mut random = Random::new(n as u64);
    let mut changed = set.clone();
    let mut steps = Vec::new();
    for _ in 0..n.div_ceil(3) {
        let at = random.below(changed.len());
        let rule = changed[at];
        if random.chance(500) {
            changed.swap_remove(at);
            steps.push((rule, None));
        } else {
            changed[at].precedence = random.below(n) as u32;
            steps.push((rule, Some(changed[at].precedence)));
        }
        if changed.is_empty() {
            break;
        }
    }
    let after = expected(&changed, &keys);
    for (name, mut classifier) in contenders() {
        let name = format!("{name}, {n} rules of {} {fields:?}", family.name());
        classifier.insert_all(&set).unwrap();
        assert_verdicts(&name, &*classifier, &keys, &before);
        for (rule, precedence) in &steps {
            match precedence {
                None => assert!(classifier.remove(rule.id), "{name}"),
                Some(precedence) => assert!(classifier.set_precedence(rule.id, *precedence), "{name}"),
            }
        }
        assert_eq!(classifier.len(), changed.len(), "{name}");
        assert_verdicts(&format!("{name}, updated"), &*classifier, &keys, &after);
        classifier.optimise();
        assert_verdicts(&format!("{name}, optimised"), &*classifier, &keys, &after);
    }
}

fn check_all(family: Family) {
    for fields in [Fields::FiveTuple, Fields::Full] {
        for n in [1, 2, 4, 16, 33, 100, 1000] {
            check(family, fields, n);
        }
    }
}

#[test]
fn acl() {
    check_all(Family::Acl);
}

#[test]
fn fw() {
    check_all(Family::Fw);
}

#[test]
fn ipc() {
    check_all(Family::Ipc);
}

#[test]
fn one_tuple() {
    check_all(Family::OneTuple);
}

#[test]
fn each_its_tuple() {
    check_all(Family::EachItsTuple);
}

/// One by one instead of all at once: structures grow, split and rebuild on the way.
#[test]
fn backends_that_grow_rule_by_rule_are_the_list_at_every_size() {
    for family in FAMILIES {
        let set = rules(family, Fields::Full, 300, 11);
        let keys = packets(&set, 20);
        let mut order = set.clone();
        Random::new(5).shuffle(&mut order);
        let mut reference = List::new();
        let mut all = contenders();
        for (step, rule) in order.iter().enumerate() {
            reference.insert(*rule).unwrap();
            let look = step < 40 || step % 20 == 0;
            let expected = if look { classify(&reference, &keys) } else { Vec::new() };
            for (name, classifier) in &mut all {
                classifier.insert(*rule).unwrap();
                if look {
                    let name = format!("{name}, {} rules of {}", step + 1, family.name());
                    assert_verdicts(&name, &**classifier, &keys, &expected);
                }
            }
        }
        // And back to no rules.
        Random::new(6).shuffle(&mut order);
        for (step, rule) in order.iter().enumerate() {
            assert!(reference.remove(rule.id));
            let look = step % 20 == 0 || step > 280;
            let expected = if look { classify(&reference, &keys) } else { Vec::new() };
            for (name, classifier) in &mut all {
                assert!(classifier.remove(rule.id), "{name}");
                if look {
                    let name = format!("{name}, without {} rules of {}", step + 1, family.name());
                    assert_verdicts(&name, &**classifier, &keys, &expected);
                }
            }
        }
        assert!(all.iter().all(|(_, classifier)| classifier.is_empty()));
    }
}
