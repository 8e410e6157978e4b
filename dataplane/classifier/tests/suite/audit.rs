//! Rules without effect are found, and nothing else is reported.

use classifier::audit::{Finding, audit};
use classifier::generate::{Family, Fields, Traffic, rules, trace};
use classifier::{Classifier, Filter, List, PortRange, Prefix, Rule};

fn prefix(text: &str, length: u8) -> Option<Prefix> {
    Some(Prefix::new(text.parse().unwrap(), length).unwrap())
}

fn ports(first: u16, last: u16) -> Option<PortRange> {
    Some(PortRange::new(first, last).unwrap())
}

fn rule(id: u32, precedence: u32, filter: Filter) -> Rule {
    Rule { id, precedence, value: id, filter }
}

#[test]
fn each_kind_is_found_and_says_who_wins() {
    let all = Filter::default();
    let wide = Filter { source: prefix("10.0.0.0", 8), destination_ports: ports(0, 1023), ..all };
    let set = [
        rule(1, 10, wide),
        rule(2, 11, Filter { source: prefix("10.1.0.0", 16), destination_ports: ports(80, 80), ..all }),
        rule(3, 12, wide),
        rule(4, 13, Filter { source: prefix("10.0.0.0", 8), destination: prefix("fd00::", 8), ..all }),
        // Not covered: more ports, another address, no condition on ports, and a rule that comes first.
        rule(5, 14, Filter { source: prefix("10.1.0.0", 16), destination_ports: ports(80, 1024), ..all }),
        rule(6, 15, Filter { source: prefix("11.0.0.0", 8), destination_ports: ports(80, 80), ..all }),
        rule(7, 16, Filter { source: prefix("10.0.0.0", 8), ..all }),
        rule(8, 9, Filter { source: prefix("10.0.0.0", 9), destination_ports: ports(5, 6), ..all }),
    ];
    let expected = [
        Finding::Shadowed { rule: 2, by: 1 },
        Finding::Duplicate { rule: 3, of: 1 },
        Finding::NeverMatches { rule: 4 },
    ];
    assert_eq!(audit(&set), expected);
    assert_eq!(expected.map(Finding::rule), [2, 3, 4]);
    assert!(expected[0].to_string().contains("rule 2 has no effect: rule 1"));
    assert_eq!(audit(&[]), []);
    // A rule that selects everything and comes first covers all others.
    let with_all = [&set[..], &[rule(9, 0, all)]].concat();
    assert_eq!(audit(&with_all).len(), 8);
}

#[test]
fn equal_precedences_go_by_id() {
    let filter = Filter { protocol: Some(6), ..Filter::default() };
    let set = [rule(2, 5, filter), rule(1, 5, filter), rule(3, 5, Filter::default())];
    assert_eq!(audit(&set), [Finding::Duplicate { rule: 2, of: 1 }]);
}

/// Without the reported rules every packet has the same verdict as before.
#[test]
fn rules_that_are_reported_have_no_effect() {
    let mut found = 0;
    for family in [Family::Acl, Family::Fw, Family::Ipc, Family::EachItsTuple] {
        for fields in [Fields::FiveTuple, Fields::Full] {
            let mut set = rules(family, fields, 2000, 9);
            // Wide rules first, so that some are covered; a generated set has narrow rules first.
            for rule in &mut set {
                rule.precedence = 2000 - rule.precedence;
            }
            let findings = audit(&set);
            found += findings.len();
            let without: Vec<Rule> =
                set.iter().filter(|rule| findings.iter().all(|it| it.rule() != rule.id)).copied().collect();
            assert_eq!(without.len() + findings.len(), set.len());
            let keys = trace(&set, Traffic::Uniform, 3000, 4);
            let verdicts = [&set, &without].map(|rules| {
                let mut list = List::new();
                list.insert_all(rules).unwrap();
                let mut verdicts = vec![None; keys.len()];
                list.classify(&keys, &mut verdicts);
                verdicts
            });
            assert_eq!(verdicts[0], verdicts[1], "{} {fields:?}", family.name());
        }
    }
    assert!(found > 1000, "{found} of 16000 rules are covered");
}

/// Small sets against the definition: a rule is covered by another when every field is.
#[test]
fn nothing_is_missed_in_small_sets() {
    let range = |id: u32| (id % 7 * 3, id % 7 * 3 + id / 7 % 5 * 4);
    let set: Vec<Rule> = (0..200)
        .map(|id| {
            let (first, last) = range(id);
            let source = [None, prefix("10.0.0.0", 8), prefix("10.64.0.0", 10)][(id / 35 % 3) as usize];
            let filter =
                Filter { source, destination_ports: ports(first as u16, last as u16), ..Filter::default() };
            rule(id, (id * 37) % 50, filter)
        })
        .collect();
    let covers = |a: &Rule, b: &Rule| {
        let (x, y) =
            (a.filter.destination_ports.unwrap().bounds(), b.filter.destination_ports.unwrap().bounds());
        let width = |rule: &Rule| rule.filter.source.map_or(0, |prefix| prefix.length());
        a.rank() < b.rank() && x.0 <= y.0 && y.1 <= x.1 && width(a) <= width(b)
    };
    let expected = set.iter().filter(|rule| set.iter().any(|other| covers(other, rule))).count();
    assert_eq!(audit(&set).len(), expected);
}

#[test]
fn a_hundred_thousand_rules_are_audited_at_once() {
    let set = rules(Family::EachItsTuple, Fields::FiveTuple, 100_000, 1);
    assert!(audit(&set).len() < set.len());
}
