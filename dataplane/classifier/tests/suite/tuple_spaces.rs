//! Tuple space search, TupleMerge and PartitionSort compared with the linear list: any rules, any sequence of
//! updates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::{
    Backend, Classifier, Ethernet, EthernetFilter, Filter, FlowLabel, InsertError, Interface, Key, List,
    LocalAddress, Masked, NetworkInstance, PortRange, Prefix, Qfi, Rule, Side, Verdict,
};
use proptest::prelude::*;

const BACKENDS: &[&str] = &["tss", "tss_sorted", "tuple_merge", "partition_sort"];

fn build(name: &str) -> Box<dyn Classifier> {
    name.parse::<Backend>().unwrap().build()
}

/// A random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    /// Few values in each field, so that rules overlap and packets match.
    fn address(&mut self, v6: bool) -> IpAddr {
        let few = |random: &mut Random| random.of(&[0u8, 1, 2, 0x80, 0xFF]);
        if v6 {
            let mut octets = [0; 16];
            octets[0] = 0x20;
            for at in [3, 5, 9, 13, 15] {
                octets[at] = few(self);
            }
            Ipv6Addr::from(octets).into()
        } else {
            Ipv4Addr::new(10, few(self), few(self), few(self)).into()
        }
    }

    fn prefix(&mut self, v6: bool) -> Prefix {
        let lengths: &[u8] =
            if v6 { &[0, 24, 32, 48, 64, 77, 128] } else { &[0, 1, 8, 12, 16, 20, 24, 31, 32] };
        Prefix::new(self.address(v6), self.of(lengths)).unwrap()
    }

    fn port(&mut self) -> u16 {
        self.of(&[0, 53, 80, 443, 1023, 1024, 5060, 8080, 32767, 32768, 65535])
    }

    fn ports(&mut self) -> PortRange {
        let (a, b) = (self.port(), self.port());
        let one = self.one_in(2);
        if one { PortRange::single(a) } else { PortRange::new(a.min(b), a.max(b)).unwrap() }
    }

    /// A filter; each field is present with probability 1 in `sparse`.
    fn filter(&mut self, sparse: u64, full: bool) -> Filter {
        let v6 = self.one_in(6);
        let mut filter = Filter::default();
        let some = |random: &mut Random| random.one_in(sparse);
        filter.source = some(self).then(|| self.prefix(v6));
        filter.destination = some(self).then(|| self.prefix(v6));
        filter.protocol = some(self).then(|| self.of(&[6, 17, 1]));
        filter.source_ports = some(self).then(|| self.ports());
        filter.destination_ports = some(self).then(|| self.ports());
        if !full {
            return filter;
        }
        filter.ue = some(self).then(|| (self.of(&[Side::Source, Side::Destination]), self.prefix(v6)));
        filter.tos =
            some(self).then(|| Masked::new(self.below(256) as u8, self.of(&[0xFF, 0xFC, 0b1010_0001])));
        filter.spi = some(self).then(|| self.below(3) as u32);
        filter.flow_label = (some(self) && v6).then(|| FlowLabel::new(self.below(3) as u32).unwrap());
        filter.qfi = some(self).then(|| Qfi::new(self.below(4) as u8).unwrap());
        filter.source_interface = some(self).then(|| Interface::new(self.below(3) as u8).unwrap());
        filter.teid = some(self).then(|| self.below(5) as u32);
        filter.local_address = some(self).then(|| LocalAddress::new(self.below(2) as u8).unwrap());
        filter.network_instance = some(self).then(|| NetworkInstance::new(1 + self.below(2) as u16).unwrap());
        filter.traffic_endpoint = some(self).then(|| self.below(2) as u8);
        filter.application = some(self).then(|| self.below(3) as u32);
        filter.ethernet = self.one_in(2 * sparse).then(|| EthernetFilter {
            destination: Masked::mac(
                [2, 0, 0, 0, 0, self.below(3) as u8],
                [0xFF, 0, 0, 0, 0, self.of(&[0, 3])],
            ),
            c_tag: self.one_in(2).then(|| Masked::tag(self.below(4) as u16, self.of(&[0x0FFF, 1, 0x802]))),
            ..EthernetFilter::default()
        });
        filter
    }

    fn key(&mut self, full: bool) -> Key {
        let v6 = self.one_in(6);
        let mut key = Key::new(self.address(v6), self.address(v6), self.of(&[6, 17, 1]));
        if !self.one_in(8) {
            key = key.with_ports(self.port(), self.port());
        }
        if !full {
            return key;
        }
        key =
            key.with_tos(self.below(256) as u8).with_qfi(self.below(4) as u8).with_teid(self.below(5) as u32);
        key = key.with_source_interface(self.below(3) as u8).with_network_instance(1 + self.below(2) as u16);
        key = key.with_local_address(self.below(2) as u8).with_traffic_endpoint(self.below(2) as u8);
        key = key.with_flow_label(self.below(3) as u32);
        if self.one_in(2) {
            key = key.with_spi(self.below(3) as u32).with_application(self.below(3) as u32);
        }
        if self.one_in(2) {
            let c_tag = self.one_in(2).then(|| self.below(4) as u16);
            let destination = [2, 0, 0, 0, 0, self.below(3) as u8];
            key = key.with_ethernet(Ethernet { destination, c_tag, ..Ethernet::default() });
        }
        key
    }

    fn rule(&mut self, id: u32, sparse: u64, full: bool) -> Rule {
        let precedence = self.of(&[0, 1, 5, 100, 100, u32::MAX, id, id / 8]);
        Rule { id, precedence, value: id ^ 0x5555, filter: self.filter(sparse, full) }
    }
}

fn verdicts(classifier: &dyn Classifier, keys: &[Key]) -> Vec<Verdict> {
    let mut out = vec![None; keys.len()];
    classifier.classify(keys, &mut out);
    out
}

fn assert_equal(name: &str, classifier: &dyn Classifier, list: &List, keys: &[Key], when: &str) {
    assert_eq!(classifier.len(), list.len(), "{name} {when}");
    let (ours, theirs) = (verdicts(classifier, keys), verdicts(list, keys));
    for (key, (ours, theirs)) in keys.iter().zip(ours.iter().zip(&theirs)) {
        assert_eq!(ours, theirs, "{name} {when}: {key:?}");
    }
}

/// Applies a random sequence of updates to a backend and to the list.
fn program(name: &str, seed: u64, steps: u32, ids: u64, sparse: u64, full: bool) {
    let random = &mut Random(seed);
    let (mut ours, mut list) = (build(name), List::new());
    let keys: Vec<Key> = (0..200).map(|_| random.key(full)).collect();
    for step in 0..steps {
        let id = random.below(ids) as u32;
        match random.below(16) {
            0..8 => {
                let rule = random.rule(id, sparse, full);
                assert_eq!(ours.insert(rule), list.insert(rule), "{name} step {step}");
            }
            8..12 => assert_eq!(ours.remove(id), list.remove(id), "{name} step {step}"),
            12..15 => {
                let precedence = random.below(10) as u32;
                assert_eq!(ours.set_precedence(id, precedence), list.set_precedence(id, precedence));
            }
            _ if random.one_in(20) => {
                let mut draw = |_| {
                    let id = random.below(ids) as u32;
                    random.rule(id, sparse, full)
                };
                let rules: Vec<Rule> = (0..30).map(&mut draw).collect();
                assert_eq!(ours.insert_all(&rules), list.insert_all(&rules), "{name} step {step}");
            }
            _ if random.one_in(20) => ours.optimise(),
            _ => {}
        }
        if step % 16 == 0 {
            assert_equal(name, &*ours, &list, &keys[..20], &format!("step {step}"));
        }
        if step % 256 == 0 {
            assert_equal(name, &*ours, &list, &keys, &format!("step {step}"));
        }
    }
    assert_equal(name, &*ours, &list, &keys, "at the end");
    ours.optimise();
    assert_equal(name, &*ours, &list, &keys, "optimised");
    for id in 0..ids as u32 {
        assert_eq!(ours.remove(id), list.remove(id));
    }
    assert_equal(name, &*ours, &list, &keys, "emptied");
}

#[test]
fn programs_of_updates_agree_with_the_list() {
    for name in BACKENDS {
        for seed in 0..4 {
            program(name, seed, 3000, 400, 2, false);
            program(name, 100 + seed, 3000, 400, 4, true);
            program(name, 200 + seed, 1000, 12, 5, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_program_agrees_with_the_list(seed: u64, steps in 1u32..300, ids in 1u64..100, sparse in 1u64..9, full: bool) {
        for name in BACKENDS {
            program(name, seed, steps, ids, sparse, full);
        }
    }

    #[test]
    fn keys_of_any_words_agree(seed: u64, words: [u32; 20]) {
        let random = &mut Random(seed);
        let rules: Vec<Rule> = (0..50).map(|id| random.rule(id, 6, true)).collect();
        let mut list = List::new();
        list.insert_all(&rules).unwrap();
        for name in BACKENDS {
            let mut ours = build(name);
            ours.insert_all(&rules).unwrap();
            assert_equal(name, &*ours, &list, &[Key::from_words(words), Key::unknown()], "any words");
        }
    }
}

#[test]
fn many_rules_agree_while_they_come_and_go() {
    for name in BACKENDS {
        let random = &mut Random(7);
        let (mut ours, mut list) = (build(name), List::new());
        let rules: Vec<Rule> = (0..6000).map(|id| random.rule(id, 2, false)).collect();
        let keys: Vec<Key> = (0..300).map(|_| random.key(false)).collect();
        ours.insert_all(&rules).unwrap();
        list.insert_all(&rules).unwrap();
        assert_equal(name, &*ours, &list, &keys, "all in");
        assert!(ours.memory_bytes() > 6000 * 16 && ours.memory_bytes() < 6000 * 2000);
        for round in 0..8 {
            // Best rules first, so that the known best rank of a part becomes outdated.
            for id in (0..6000).filter(|id| id % 8 == round) {
                assert!(ours.remove(id) && list.remove(id));
            }
            assert_equal(name, &*ours, &list, &keys, "while they go");
        }
        assert!(ours.is_empty());
    }
}

#[test]
fn one_filter_many_times() {
    for name in BACKENDS {
        let mut ours = build(name);
        let filter = Filter { protocol: Some(6), ..Filter::default() };
        let rule = |id| Rule { id, precedence: id % 7, value: id, filter };
        for id in 0..20_000 {
            ours.insert(rule(id)).unwrap();
        }
        assert_eq!(ours.insert(rule(5)), Err(InsertError::Exists(5)));
        let key = Key::new(IpAddr::from([1, 2, 3, 4]), IpAddr::from([5, 6, 7, 8]), 6);
        for id in (0..20_000).step_by(7) {
            assert_eq!(verdicts(&*ours, &[key]), [Some(id)], "{name}");
            assert!(ours.remove(id));
        }
        assert_eq!(verdicts(&*ours, &[key, Key::unknown()]), [Some(1), None], "{name}");
    }
}
