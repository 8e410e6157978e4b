//! The vector classifier compared with the list, with every instruction set that this CPU has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::simd::{Isa, Simd};
use classifier::{
    Classifier, Ethernet, EthernetFilter, Filter, FlowLabel, InsertError, Interface, Key, List, LocalAddress,
    Masked, NetworkInstance, PortRange, Prefix, Qfi, Rule, Side, Verdict,
};

/// A sequence of numbers from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// `Some` once in `count` times.
    fn maybe<T>(&mut self, count: u64, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
        self.one_in(count).then(|| make(self))
    }

    /// One of few addresses, so that rules overlap.
    fn address(&mut self, v6: bool) -> IpAddr {
        let low = self.below(4) as u8;
        let high = [10, 10, 138, 0][self.below(4) as usize];
        if v6 {
            Ipv6Addr::new(0x2001, u16::from(high), 0, 0, u16::from(low), 0, 0, low.into()).into()
        } else {
            Ipv4Addr::new(high, 0, 0, low).into()
        }
    }

    fn prefix(&mut self, v6: bool) -> Prefix {
        let length = if v6 { [0, 16, 32, 64, 80, 128] } else { [0, 1, 8, 24, 31, 32] };
        Prefix::new(self.address(v6), length[self.below(6) as usize]).unwrap()
    }

    fn ports(&mut self) -> PortRange {
        let first = [0, 1, 2, 80, 65_535][self.below(5) as usize];
        PortRange::new(first, [first, first, 65_535, 80.max(first)][self.below(4) as usize]).unwrap()
    }

    fn mac(&mut self) -> [u8; 6] {
        [2, 0, 0, 0, 0, self.below(2) as u8]
    }

    /// Rules on the 5-tuple, and with `full` on any field.
    fn filter(&mut self, full: bool) -> Filter {
        let v6 = full && self.one_in(3);
        let tuple = Filter {
            source: self.maybe(2, |random| random.prefix(v6)),
            destination: self.maybe(2, |random| random.prefix(v6)),
            protocol: self.maybe(2, |random| random.below(2) as u8 * 6),
            source_ports: self.maybe(3, Random::ports),
            destination_ports: self.maybe(3, Random::ports),
            ..Filter::default()
        };
        if !full || self.one_in(3) {
            return tuple;
        }
        Filter {
            ue: self.maybe(4, |random| (Side::Source, random.prefix(v6))),
            tos: self.maybe(4, |random| Masked::new(random.below(4) as u8, random.below(256) as u8)),
            spi: self.maybe(8, |random| random.below(2) as u32),
            flow_label: self.maybe(8, |random| FlowLabel::new(random.below(2) as u32).unwrap()),
            qfi: self.maybe(3, |random| Qfi::new(random.below(2) as u8).unwrap()),
            source_interface: self.maybe(3, |random| Interface::new(random.below(2) as u8).unwrap()),
            teid: self.maybe(3, |random| random.below(2) as u32),
            local_address: self.maybe(4, |random| LocalAddress::new(random.below(2) as u8).unwrap()),
            network_instance: self.maybe(4, |_| NetworkInstance::new(1).unwrap()),
            traffic_endpoint: self.maybe(4, |random| random.below(2) as u8),
            application: self.maybe(6, |random| random.below(2) as u32),
            ethernet: self.maybe(6, |random| EthernetFilter {
                destination: Masked::mac(random.mac(), [0xFF, 0, 0xFF, 0, 0, random.below(2) as u8]),
                ethertype: random.maybe(2, |_| 0x800),
                c_tag: random.maybe(2, |random| Masked::tag(random.below(2) as u16, 0x0FFF)),
                s_tag: random.maybe(2, |random| Masked::tag(random.below(2) as u16, 0x0FFF)),
                ..EthernetFilter::default()
            }),
            ..tuple
        }
    }

    fn key(&mut self) -> Key {
        let v6 = self.one_in(3);
        let (source, destination) = (self.address(v6), self.address(v6));
        let mut key = Key::new(source, destination, self.below(2) as u8 * 6);
        if !self.one_in(4) {
            let port = |random: &mut Random| [0, 1, 2, 3, 80, 81, 65_535][random.below(7) as usize];
            key = key.with_ports(port(self), port(self));
        }
        if self.one_in(2) {
            key = key.with_qfi(self.below(2) as u8).with_teid(self.below(2) as u32).with_spi(0);
            key = key.with_source_interface(self.below(2) as u8).with_local_address(0);
            key = key.with_network_instance(1).with_traffic_endpoint(0).with_tos(self.below(4) as u8);
            key = key.with_application(self.below(2) as u32).with_flow_label(self.below(2) as u32);
        }
        if self.one_in(3) {
            key = key.with_ethernet(Ethernet {
                destination: self.mac(),
                ethertype: 0x800,
                c_tag: self.maybe(2, |random| random.below(2) as u16),
                s_tag: self.maybe(2, |random| random.below(2) as u16),
                ..Ethernet::default()
            });
        }
        if self.one_in(16) {
            // Words that no packet has, such as both IP versions.
            let mut words = *key.words();
            words[self.below(20) as usize] ^= 1 << self.below(32);
            key = Key::from_words(words);
        }
        key
    }

    fn rule(&mut self, id: u32, full: bool) -> Rule {
        Rule { id, precedence: self.below(8) as u32, value: id ^ 0xABCD, filter: self.filter(full) }
    }
}

fn verdicts(classifier: &dyn Classifier, keys: &[Key]) -> Vec<Verdict> {
    let mut verdicts = vec![Some(u32::MAX); keys.len()];
    classifier.classify(keys, &mut verdicts);
    verdicts
}

fn all() -> Vec<Simd> {
    Isa::ALL.into_iter().filter_map(Simd::with_isa).collect()
}

fn assert_equal(list: &List, others: &[Simd], random: &mut Random) {
    let keys: Vec<Key> = (0..64).map(|_| random.key()).collect();
    let expected = verdicts(list, &keys);
    for simd in others {
        assert_eq!(verdicts(simd, &keys), expected);
        assert_eq!(simd.len(), list.len());
    }
}

#[test]
fn equals_the_list_after_any_updates() {
    for seed in 0..24 {
        let random = &mut Random(seed);
        let (mut list, mut others) = (List::new(), all());
        let (full, ids) = (seed % 2 == 1, [4, 16, 40, 200][seed as usize / 2 % 4]);
        for step in 0..600 {
            let id = random.below(ids) as u32;
            let (rule, precedence) = (random.rule(id, full), random.below(8) as u32);
            match random.below(5) {
                0..2 => {
                    let expected = list.insert(rule);
                    others.iter_mut().for_each(|simd| assert_eq!(simd.insert(rule), expected));
                }
                2..4 => {
                    let expected = list.set_precedence(id, precedence);
                    others
                        .iter_mut()
                        .for_each(|simd| assert_eq!(simd.set_precedence(id, precedence), expected));
                }
                _ => {
                    let expected = list.remove(id);
                    others.iter_mut().for_each(|simd| assert_eq!(simd.remove(id), expected));
                }
            }
            if step % 16 == 0 {
                assert_equal(&list, &others, random);
            }
            if step % 200 == 0 {
                others.iter_mut().for_each(Simd::optimise);
                assert_equal(&list, &others, random);
            }
        }
    }
}

#[test]
fn many_rules_at_once_are_as_many_inserted_one_by_one() {
    for (seed, count) in [(1, 5), (2, 16), (3, 17), (4, 100), (5, 1000)] {
        let random = &mut Random(seed);
        let (mut list, mut others) = (List::new(), all());
        let first = random.rule(3000, true);
        let mut rules: Vec<Rule> = (0..count).map(|id| random.rule(id, true)).collect();
        list.insert(first).unwrap();
        list.insert_all(&rules).unwrap();
        for simd in &mut others {
            simd.insert(first).unwrap();
            simd.insert_all(&rules).unwrap();
        }
        assert_equal(&list, &others, random);

        // The second batch ends at a rule that exists already.
        rules.iter_mut().for_each(|rule| rule.id += count);
        rules[count as usize - 2].id = 0;
        assert_eq!(list.insert_all(&rules), Err(InsertError::Exists(0)));
        others.iter_mut().for_each(|simd| assert_eq!(simd.insert_all(&rules), Err(InsertError::Exists(0))));
        assert_equal(&list, &others, random);
        for id in 0..count {
            assert!(list.remove(id) && others.iter_mut().all(|simd| simd.remove(id)));
        }
        assert_equal(&list, &others, random);
    }
}

#[test]
fn the_ends_of_all_numbers_are_rules_too() {
    let any = Filter::default();
    let never = Filter {
        source: Some(Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap()),
        destination: Some(Prefix::new("::".parse().unwrap(), 0).unwrap()),
        ..any
    };
    for mut simd in all() {
        let rule = |id, filter| Rule { id, precedence: u32::MAX, value: id, filter };
        assert!(!simd.remove(u32::MAX) && !simd.set_precedence(u32::MAX, 0));
        simd.insert(rule(u32::MAX, any)).unwrap();
        assert_eq!(simd.insert(rule(u32::MAX, never)), Err(InsertError::Exists(u32::MAX)));
        simd.insert(rule(0, never)).unwrap();
        assert_eq!(verdicts(&simd, &[Key::unknown()]), [Some(u32::MAX)]);
        assert!(simd.set_precedence(u32::MAX, 0) && simd.remove(u32::MAX) && !simd.remove(u32::MAX));
        assert_eq!((verdicts(&simd, &[Key::unknown()]), simd.len()), (vec![None], 1));
    }
}

#[test]
fn rules_of_the_5_tuple_are_small() {
    let mut simd = Simd::new();
    let random = &mut Random(9);
    let rules: Vec<Rule> = (0..64).map(|id| random.rule(id, false)).collect();
    simd.insert_all(&rules).unwrap();
    assert!(simd.memory_bytes() <= 64 * 32 + 256, "{} octets", simd.memory_bytes());
}
