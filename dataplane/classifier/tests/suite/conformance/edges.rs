//! Limits: no rules, one rule, rules that never match, equal rules, equal precedences, odd batches, values out of range.

use classifier::{
    EthernetFilter, Filter, FlowLabel, InsertError, Interface, Key, LocalAddress, Masked, NetworkInstance,
    PortRange, Prefix, Qfi, Rule, RuleError, Side,
};

use super::{assert_verdicts, classify, contenders};

fn key() -> Key {
    Key::new("10.45.0.2".parse().unwrap(), "192.0.2.7".parse().unwrap(), 17).with_ports(4000, 53)
}

fn dns() -> Filter {
    Filter { protocol: Some(17), destination_ports: Some(PortRange::single(53)), ..Filter::default() }
}

fn rule(id: u32, precedence: u32, filter: Filter) -> Rule {
    Rule { id, precedence, value: 100 + id, filter }
}

fn prefix(text: &str, length: u8) -> Option<Prefix> {
    Some(Prefix::new(text.parse().unwrap(), length).unwrap())
}

/// Filters with conditions that exclude each other.
fn impossible() -> Vec<Filter> {
    let all = Filter::default();
    vec![
        Filter { source: prefix("10.0.0.0", 8), destination: prefix("fd00::", 8), ..all },
        Filter {
            source: prefix("10.0.0.0", 8),
            ue: Some((Side::Source, prefix("11.0.0.0", 8).unwrap())),
            ..all
        },
        Filter { source: prefix("10.0.0.0", 8), flow_label: FlowLabel::new(1).ok(), ..all },
    ]
}

#[test]
fn an_empty_classifier_finds_nothing_and_knows_nothing() {
    for (name, mut classifier) in contenders() {
        assert_eq!((classifier.len(), classifier.is_empty()), (0, true), "{name}");
        assert_verdicts(&name, &*classifier, &[key(), Key::unknown()], &[None, None]);
        assert!(!classifier.remove(0) && !classifier.set_precedence(0, 1), "{name}");
        classifier.insert_all(&[]).unwrap();
        classifier.optimise();
        assert_verdicts(&name, &*classifier, &[key()], &[None]);
        assert!(classifier.memory_bytes() > 0, "{name}");
    }
}

#[test]
fn extreme_ids_precedences_and_values_are_ordinary() {
    let numbers = [(0, 0), (u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (u32::MAX - 1, u32::MAX)];
    for (id, precedence) in numbers {
        for (name, mut classifier) in contenders() {
            for value in [0, u32::MAX - 1] {
                classifier.insert(Rule { id, precedence, value, filter: dns() }).unwrap();
                assert_verdicts(&name, &*classifier, &[key(), Key::unknown()], &[Some(value), None]);
                assert!(classifier.set_precedence(id, !precedence), "{name}");
                assert_verdicts(&name, &*classifier, &[key()], &[Some(value)]);
                assert!(classifier.remove(id) && classifier.is_empty(), "{name}");
                assert_verdicts(&name, &*classifier, &[key()], &[None]);
            }
        }
    }
}

#[test]
fn rules_that_never_match_are_kept_counted_and_never_found() {
    for (name, mut classifier) in contenders() {
        for (id, filter) in (0..).zip(impossible()) {
            assert!(!filter.matches(&key()));
            classifier.insert(rule(id, 0, filter)).unwrap();
        }
        assert_eq!(classifier.len(), 3, "{name}");
        assert_verdicts(&name, &*classifier, &[key(), Key::unknown()], &[None, None]);
        classifier.insert(rule(9, 5, Filter::default())).unwrap();
        classifier.optimise();
        assert_verdicts(&name, &*classifier, &[key(), Key::unknown()], &[Some(109), Some(109)]);
        assert!(classifier.set_precedence(1, 9) && classifier.remove(1) && !classifier.remove(1), "{name}");
        assert_eq!(classifier.len(), 3, "{name}");
        assert_eq!(classifier.insert(rule(0, 0, dns())), Err(InsertError::Exists(0)), "{name}");
    }
}

#[test]
fn equal_filters_and_precedences_go_by_precedence_and_then_by_id() {
    for (name, mut classifier) in contenders() {
        for (id, precedence) in [(5, 1), (3, 1), (7, 0), (4, 1), (6, 2)] {
            classifier.insert(rule(id, precedence, dns())).unwrap();
        }
        for (id, precedence) in [(7, 9), (3, 9), (4, 0), (5, 0)] {
            let first = [107, 103, 104, 104][[7, 3, 4, 5].iter().position(|it| *it == id).unwrap()];
            assert_verdicts(&name, &*classifier, &[key()], &[Some(first)]);
            assert!(classifier.set_precedence(id, precedence));
        }
        // Precedences are now: 4 and 5 at 0, 6 at 2, 3 and 7 at 9.
        for id in [4, 5, 6, 3, 7] {
            assert_verdicts(&name, &*classifier, &[key()], &[Some(100 + id)]);
            assert!(classifier.remove(id), "{name}");
        }
        assert_verdicts(&name, &*classifier, &[key()], &[None]);
    }
}

#[test]
fn an_id_that_exists_changes_nothing() {
    for (name, mut classifier) in contenders() {
        classifier.insert(rule(1, 5, dns())).unwrap();
        assert_eq!(classifier.insert(rule(1, 0, Filter::default())), Err(InsertError::Exists(1)), "{name}");
        let some = [rule(2, 9, Filter::default()), rule(1, 0, Filter::default()), rule(3, 0, dns())];
        assert_eq!(classifier.insert_all(&some), Err(InsertError::Exists(1)), "{name}");
        // The rules before the error are there, those behind it are not.
        assert_eq!(classifier.len(), 2, "{name}");
        assert_verdicts(&name, &*classifier, &[key(), Key::unknown()], &[Some(101), Some(102)]);
        let twice = [rule(4, 9, dns()), rule(4, 9, dns())];
        assert_eq!(classifier.insert_all(&twice), Err(InsertError::Exists(4)), "{name}");
        assert!(classifier.len() == 3 && !classifier.remove(3), "{name}");
    }
}

#[test]
fn batches_of_any_length_are_looked_up() {
    for (name, mut classifier) in contenders() {
        classifier.insert_all(&[rule(1, 5, dns()), rule(2, 6, Filter::default())]).unwrap();
        for length in (0..70).chain([127, 128, 129, 1000]) {
            let keys: Vec<Key> =
                (0..length).map(|at| if at % 3 == 0 { key() } else { Key::unknown() }).collect();
            for (at, verdict) in classify(&*classifier, &keys).into_iter().enumerate() {
                let expected = if at % 3 == 0 { 101 } else { 102 };
                assert_eq!(verdict, Some(expected), "{name}: {at} of {length}");
            }
        }
        // Keys without a place for the verdict are not looked up; places without a key stay unchanged.
        let mut verdicts = [Some(7); 3];
        classifier.classify(&[key(); 40], &mut verdicts);
        assert_eq!(verdicts, [Some(101); 3], "{name}");
        let mut verdicts = [Some(7); 3];
        classifier.classify(&[key()], &mut verdicts);
        assert_eq!(verdicts, [Some(101), Some(7), Some(7)], "{name}");
    }
}

#[test]
fn a_set_that_was_emptied_and_filled_again_is_as_good_as_new() {
    for (name, mut classifier) in contenders() {
        for round in 0..3 {
            for id in 0..150u32 {
                let port = PortRange::new(id as u16, id as u16 + 10).unwrap();
                let filter = Filter { destination_ports: Some(port), ..Filter::default() };
                classifier.insert(rule(id, 200 - id, filter)).unwrap();
            }
            assert_verdicts(&name, &*classifier, &[key()], &[Some(153)]);
            assert!((0..150).all(|id| classifier.remove(id)), "{name}, round {round}");
            assert_verdicts(&name, &*classifier, &[key()], &[None]);
        }
    }
}

#[test]
fn values_out_of_range_are_errors_of_their_type() {
    assert_eq!(PortRange::new(443, 80), Err(RuleError::PortRange(443, 80)));
    for (text, length, bits) in [("10.0.0.0", 33, 32), ("10.0.0.0", 255, 32), ("fd00::", 129, 128)] {
        let error = Prefix::new(text.parse().unwrap(), length).unwrap_err();
        assert_eq!(error, RuleError::PrefixLength { length, bits });
        assert!(error.to_string().contains(&length.to_string()), "{error}");
    }
    let number = |field, value| RuleError::Number { field, value };
    assert_eq!(FlowLabel::new(1 << 20), Err(number("flow label", 1 << 20)));
    assert_eq!(Qfi::new(64), Err(number("QFI", 64)));
    assert_eq!(Interface::new(16), Err(number("source interface", 16)));
    assert_eq!(NetworkInstance::new(0), Err(number("network instance", 0)));
    assert_eq!(LocalAddress::new(127), Err(number("local address", 127)));
    // Bits outside a mask are not errors: they are ignored.
    assert_eq!(Masked::new(0xFF, 0x0F), Masked::new(0x0F, 0x0F));
    assert_eq!(Masked::tag(0xFFFF, 0x0FFF).value(), 0x0FFF);
    assert_eq!(Prefix::new("10.1.2.3".parse().unwrap(), 8), Prefix::new("10.0.0.0".parse().unwrap(), 8));
    assert_eq!(prefix("10.1.2.3", 8).unwrap().to_string(), "10.0.0.0/8");
    // A tag condition with an empty mask still requires a tag.
    let tagged = EthernetFilter { c_tag: Some(Masked::tag(5, 0)), ..EthernetFilter::default() };
    let tagged = Filter { ethernet: Some(tagged), ..Filter::default() };
    let frame = classifier::Ethernet::default();
    assert!(!tagged.matches(&key().with_ethernet(frame)));
    assert!(tagged.matches(&key().with_ethernet(classifier::Ethernet { c_tag: Some(7), ..frame })));
}
