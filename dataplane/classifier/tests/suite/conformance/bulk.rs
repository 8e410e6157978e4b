//! A hundred thousand rules in every backend: built at once, looked up, updated, looked up.

use std::sync::OnceLock;

use classifier::generate::{Family, Fields, rules};
use classifier::{Backend, Classifier, Key, List, Rule, Verdict};

use super::traces::packets;
use super::{assert_verdicts, classify};

const RULES: usize = 100_000;

/// Rules, packets, and the list's verdicts before and after the updates.
struct Case {
    rules: Vec<Rule>,
    keys: Vec<Key>,
    before: Vec<Verdict>,
    after: Vec<Verdict>,
}

/// The case, built once for all tests of this file.
fn case() -> &'static Case {
    static CASE: OnceLock<Case> = OnceLock::new();
    CASE.get_or_init(|| {
        let rules = rules(Family::Acl, Fields::FiveTuple, RULES, 3);
        let keys = packets(&rules, 300);
        let mut list = List::new();
        // In order, so that the list only appends.
        list.insert_all(&rules).unwrap();
        let before = classify(&list, &keys);
        update(&mut list, &rules);
        let after = classify(&list, &keys);
        Case { rules, keys, before, after }
    })
}

/// Some updates spread over the set.
fn update(classifier: &mut dyn Classifier, rules: &[Rule]) {
    for rule in rules.iter().step_by(1009) {
        assert!(classifier.remove(rule.id));
    }
    for rule in rules.iter().skip(1).step_by(2003) {
        assert!(classifier.set_precedence(rule.id, rule.precedence / 2));
    }
    for rule in rules.iter().step_by(2018) {
        classifier.insert(Rule { value: rule.value + 1_000_000, ..*rule }).unwrap();
    }
}

fn check(backend: Backend) {
    let Case { rules, keys, before, after } = case();
    let mut classifier = backend.build();
    classifier.insert_all(rules).unwrap();
    assert_eq!(classifier.len(), RULES);
    assert!(classifier.memory_bytes() > RULES, "what is held is counted");
    assert_verdicts(backend.name(), &*classifier, keys, before);
    update(&mut *classifier, rules);
    assert_verdicts(backend.name(), &*classifier, keys, after);
}

/// Every second backend, starting at `first`, so that two cores share the work.
fn check_half(first: usize) {
    Backend::ALL.iter().skip(first).step_by(2).for_each(|backend| check(*backend));
}

#[test]
fn a_hundred_thousand_rules_in_one_half_of_the_backends() {
    check_half(0);
}

#[test]
fn a_hundred_thousand_rules_in_the_other_half_of_the_backends() {
    check_half(1);
}
