//! Rules, SDF filter texts and the linear list.

use std::net::IpAddr;

use classifier::sdf::{Address, Direction, SdfError, SdfFilter};
use classifier::{
    Classifier, Filter, FlowLabel, InsertError, Key, List, Masked, PortRange, Prefix, Qfi, Rule, RuleError,
    Verdict,
};
use proptest::prelude::*;

fn address(text: &str) -> IpAddr {
    text.parse().expect("tests use valid addresses")
}

fn key(source: &str, destination: &str, protocol: u8, ports: (u16, u16)) -> Key {
    Key::new(address(source), address(destination), protocol).with_ports(ports.0, ports.1)
}

fn verdict(list: &List, key: Key) -> Verdict {
    let mut out = [None];
    list.classify(&[key], &mut out);
    out[0]
}

fn rule(id: u32, precedence: u32, value: u32, filter: Filter) -> Rule {
    Rule { id, precedence, value, filter }
}

#[test]
fn the_lower_precedence_wins_and_then_the_lower_id() {
    let mut list = List::new();
    let web = Filter { destination_ports: Some(PortRange::single(80)), ..Filter::default() };
    list.insert(rule(1, 255, 10, Filter::default())).unwrap();
    list.insert(rule(2, 100, 20, web)).unwrap();
    assert_eq!(verdict(&list, key("10.0.0.1", "10.0.0.2", 6, (1000, 80))), Some(20));
    assert_eq!(verdict(&list, key("10.0.0.1", "10.0.0.2", 6, (1000, 81))), Some(10));
    list.insert(rule(0, 100, 30, web)).unwrap();
    assert_eq!(verdict(&list, key("10.0.0.1", "10.0.0.2", 6, (1000, 80))), Some(30));
    assert_eq!(list.insert(rule(2, 1, 1, web)), Err(InsertError::Exists(2)));
    assert!(list.remove(0) && !list.remove(0));
    assert_eq!((verdict(&list, key("10.0.0.1", "10.0.0.2", 6, (1, 80))), list.len()), (Some(20), 2));
    assert!(list.remove(1));
    assert_eq!(verdict(&list, Key::new(address("::1"), address("::2"), 17)), None);
}

#[test]
fn every_field_selects() {
    let base = key("10.45.0.2", "192.0.2.7", 17, (4000, 5000)).with_tos(0b1010_1001).with_qfi(5);
    let matches = |filter: Filter| filter.matches(&base);
    let prefix = |text: &str, length| Some(Prefix::new(address(text), length).unwrap());
    let all = Filter::default();
    assert!(matches(all) && all.selects_all());
    assert!(matches(Filter { source: prefix("10.45.255.255", 16), ..all }));
    assert!(!matches(Filter { source: prefix("10.46.0.0", 16), ..all }));
    assert!(matches(Filter { destination: prefix("0.0.0.0", 0), ..all }));
    assert!(!matches(Filter { destination: prefix("::", 0), ..all }), "any IPv6 is not any");
    assert!(!matches(Filter { protocol: Some(6), ..all }));
    assert!(matches(Filter { source_ports: Some(PortRange::new(4000, 4010).unwrap()), ..all }));
    assert!(!matches(Filter { source_ports: Some(PortRange::new(4001, 4010).unwrap()), ..all }));
    assert!(
        matches(Filter { tos: Some(Masked::new(0b1000_0001, 0b1100_0011)), ..all }),
        "masks may have holes"
    );
    assert!(!matches(Filter { tos: Some(Masked::new(0, 0b1100_0011)), ..all }));
    assert!(
        matches(Filter { qfi: Qfi::new(5).ok(), ..all }) && !matches(Filter { qfi: Qfi::new(6).ok(), ..all })
    );
    assert!(!matches(Filter { spi: Some(1), ..all }));
    assert!(!matches(Filter { flow_label: FlowLabel::new(0).ok(), ..all }), "IPv4 has no flow label");
    let esp = Key::new(address("::1"), address("::2"), 50).with_spi(7).with_flow_label(9);
    assert!(Filter { spi: Some(7), flow_label: FlowLabel::new(9).ok(), ..all }.matches(&esp));
    assert!(!Filter { destination_ports: Some(PortRange::new(0, 65535).unwrap()), ..all }.matches(&esp));
}

#[test]
fn impossible_values_are_errors() {
    assert_eq!(Prefix::new(address("10.0.0.0"), 33), Err(RuleError::PrefixLength { length: 33, bits: 32 }));
    assert!(Prefix::new(address("::"), 129).is_err() && Prefix::new(address("::"), 128).is_ok());
    assert_eq!(PortRange::new(2, 1), Err(RuleError::PortRange(2, 1)));
    assert!(FlowLabel::new(1 << 20).is_err());
    assert!(Qfi::new(64).is_err());
}

#[test]
fn sdf_filters_are_read() {
    let any = SdfFilter::parse("permit out ip from any to assigned").unwrap();
    assert_eq!((any.protocol, any.from.address, any.to.address), (None, Address::Any, Address::Assigned));
    assert_eq!(any.filters(Direction::Uplink), [Filter::default()]);

    let web =
        SdfFilter::parse("permit out 6 from 192.0.2.0/24 80,443,8000-8080 to assigned 1024-65535").unwrap();
    let uplink = web.filters(Direction::Uplink);
    assert_eq!(uplink.len(), 3);
    let hits = |filters: &[Filter], key: Key| filters.iter().any(|filter| filter.matches(&key));
    assert!(hits(&uplink, key("10.45.0.2", "192.0.2.9", 6, (2000, 8001))));
    assert!(!hits(&uplink, key("10.45.0.2", "192.0.2.9", 6, (2000, 81))));
    let downlink = web.filters(Direction::Downlink);
    assert!(hits(&downlink, key("192.0.2.9", "10.45.0.2", 6, (443, 2000))));
    assert!(!hits(&downlink, key("192.0.2.9", "10.45.0.2", 17, (443, 2000))));

    for (name, number) in [("udp", "17"), ("tcp", "6"), ("ICMP", "1"), ("ipv6-icmp", "58"), ("sctp", "132")] {
        let parse =
            |protocol| SdfFilter::parse(&format!("permit out {protocol} from 192.0.2.1 80 to any")).unwrap();
        assert_eq!(parse(name), parse(number), "{name}");
    }
    let v6 = SdfFilter::parse("permit out 17 from 2001:db8::/32 to any").unwrap();
    assert!(hits(&v6.filters(Direction::Downlink), key("2001:db8::1", "fd00::1", 17, (1, 2))));
}

#[test]
fn other_texts_are_refused_with_a_reason() {
    for text in [
        "",
        "permit",
        "permit out",
        "permit out ip from",
        "permit out ip from any",
        "permit out ip from any to",
        "deny out ip from any to any",
        "permit in ip from any to any",
        "permit out tcpp from any to any",
        "permit out ip from !10.0.0.1 to any",
        "permit out ip from 10.0.0.1/33 to any",
        "permit out ip from any 80-70 to any",
        "permit out ip from any 70000 to any",
        "permit out ip from any 1,2,3,4,5,6,7,8,9 to any",
        "permit out ip from any to any established",
        "permit out ip from any to any 80 frag",
        "permit out 256 from any to any",
    ] {
        assert!(SdfFilter::parse(text).is_err(), "{text}");
    }
    assert_eq!(SdfFilter::parse(&"x ".repeat(400)), Err(SdfError::TooLong));
    assert_eq!(SdfFilter::parse("permit out ip from any"), Err(SdfError::Missing("to")));
}

proptest! {
    #[test]
    fn any_text_is_survived(text in "\\PC{0,80}") {
        let _ = SdfFilter::parse(&text);
    }

    #[test]
    fn filters_near_the_grammar_are_survived(text in "permit out (ip|[0-9]{1,3}) from (any|[0-9./:]{1,12}) ([0-9,-]{0,9} )?to (any|assigned)( [0-9,-]{1,9})?") {
        if let Ok(filter) = SdfFilter::parse(&text) {
            prop_assert!(!filter.filters(Direction::Uplink).is_empty());
        }
    }

    /// The list gives the verdict of the definition: the minimum of (precedence, id) among all rules that
    /// match.
    #[test]
    fn the_list_is_the_definition(
        rules in proptest::collection::vec((0u32..4, 0u16..4, 0u16..4, any::<bool>()), 0..20),
        ports in (0u16..4, 0u16..4),
    ) {
        let mut list = List::new();
        let mut all = Vec::new();
        for (id, (precedence, first, more, source)) in rules.into_iter().enumerate() {
            let range = Some(PortRange::new(first, first + more).unwrap());
            let filter = if source { Filter { source_ports: range, ..Filter::default() } }
                else { Filter { destination_ports: range, ..Filter::default() } };
            let rule = rule(id as u32, precedence, 100 + id as u32, filter);
            list.insert(rule).unwrap();
            all.push(rule);
        }
        let key = key("10.0.0.1", "10.0.0.2", 17, ports);
        let expected = all.iter().filter(|r| r.filter.matches(&key)).min_by_key(|r| (r.precedence, r.id)).map(|r| r.value);
        prop_assert_eq!(verdict(&list, key), expected);
    }
}
