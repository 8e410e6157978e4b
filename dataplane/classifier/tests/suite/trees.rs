//! Decision trees compared with the linear list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::generate::{self, Fields, Traffic};
use classifier::rl_tree::{Model, Options, RlTree};
use classifier::tree::{CutSplit, Forest, HyperCuts, HyperSplit, Policy};
use classifier::{
    Classifier, Ethernet, EthernetFilter, Filter, FlowLabel, Interface, Key, List, LocalAddress, Masked,
    NetworkInstance, PortRange, Prefix, Qfi, Rule, Side,
};

/// A small generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn some<T>(&mut self, one_in: u64, value: impl FnOnce(&mut Random) -> T) -> Option<T> {
        (self.below(one_in) == 0).then(|| value(self))
    }

    /// Few addresses, some near each other and some far apart.
    fn address(&mut self) -> IpAddr {
        if self.below(5) == 0 {
            let words =
                [0x2001, self.below(2) as u16, 0, 0, self.below(3) as u16, 0, 0, self.below(4) as u16];
            return Ipv6Addr::from(words).into();
        }
        let spread = [0x0A00_0000, 0x0A2D_0000, 0xC000_0200, 0][self.below(4) as usize];
        Ipv4Addr::from_bits(spread + self.below(48) as u32 * if self.below(2) == 0 { 1 } else { 0x0101 })
            .into()
    }

    fn prefix(&mut self) -> Prefix {
        let address = self.address();
        let lengths: &[u8] =
            if address.is_ipv4() { &[0, 8, 16, 24, 28, 31, 32, 32] } else { &[0, 32, 48, 64, 127, 128] };
        Prefix::new(address, lengths[self.below(lengths.len() as u64) as usize]).unwrap()
    }

    fn ports(&mut self) -> PortRange {
        let first = [0, 53, 80, 1024, 8000][self.below(5) as usize] + self.below(4) as u16;
        match self.below(3) {
            0 => PortRange::single(first),
            1 => PortRange::new(first, first + self.below(20) as u16).unwrap(),
            _ => PortRange::new(first, u16::MAX - self.below(2) as u16).unwrap(),
        }
    }

    fn tuple(&mut self) -> Filter {
        Filter {
            source: self.some(2, Random::prefix),
            destination: self.some(2, Random::prefix),
            protocol: self.some(2, |random| [6, 17][random.below(2) as usize]),
            source_ports: self.some(4, Random::ports),
            destination_ports: self.some(2, Random::ports),
            ..Filter::default()
        }
    }

    fn full(&mut self) -> Filter {
        let octets = |random: &mut Random| [2, 0, 0, 0, random.below(2) as u8, random.below(4) as u8];
        let mac = |random: &mut Random| {
            Masked::mac(octets(random), octets(random).map(|octet| octet.wrapping_mul(85)))
        };
        let tag =
            |random: &mut Random| Masked::tag(random.next() as u16, random.below(0x1000) as u16 & 0x303);
        Filter {
            ue: self.some(6, |random| {
                ([Side::Source, Side::Destination][random.below(2) as usize], random.prefix())
            }),
            tos: self.some(6, |random| Masked::new(random.next() as u8, random.next() as u8 & 0x59)),
            spi: self.some(12, |random| random.below(3) as u32),
            flow_label: self.some(12, |random| FlowLabel::new(random.below(3) as u32).unwrap()),
            qfi: self.some(4, |random| Qfi::new(random.below(4) as u8).unwrap()),
            source_interface: self.some(3, |random| Interface::new(random.below(3) as u8).unwrap()),
            teid: self.some(3, |random| random.below(64) as u32 * 0x0101),
            local_address: self.some(8, |random| LocalAddress::new(random.below(2) as u8).unwrap()),
            network_instance: self
                .some(8, |random| NetworkInstance::new(1 + random.below(3) as u16).unwrap()),
            traffic_endpoint: self.some(8, |random| random.below(3) as u8),
            application: self.some(8, |random| random.below(3) as u32),
            ethernet: self.some(8, |random| EthernetFilter {
                destination: mac(random),
                source: mac(random),
                ethertype: random.some(2, |_| 0x0800),
                c_tag: random.some(3, tag),
                s_tag: random.some(3, tag),
            }),
            ..self.tuple()
        }
    }

    fn rule(&mut self, id: u32, full: bool) -> Rule {
        let filter = if full { self.full() } else { self.tuple() };
        // Few precedences, so that equal ones are common; the greatest possible one is among them.
        let precedence = [self.below(8) as u32, self.below(300) as u32, u32::MAX][self.below(3) as usize];
        Rule { id, precedence, value: id ^ 0x5555, filter }
    }

    fn key(&mut self, full: bool) -> Key {
        let mut key = Key::new(self.address(), self.address(), [6, 17, 1][self.below(3) as usize]);
        if self.below(8) > 0 {
            let ports = [self.ports().bounds().0, self.ports().bounds().1];
            key = key.with_ports(ports[0], ports[self.below(2) as usize]);
        }
        if full {
            key = key.with_tos(self.next() as u8).with_flow_label(self.below(3) as u32);
            key = key.with_source_interface(self.below(3) as u8).with_network_instance(self.below(4) as u16);
            key = key.with_traffic_endpoint(self.below(3) as u8).with_local_address(self.below(2) as u8);
            key = self.some(2, |random| random.below(4) as u8).map_or(key, |qfi| key.with_qfi(qfi));
            key = self
                .some(2, |random| random.below(64) as u32)
                .map_or(key, |teid| key.with_teid(teid * 0x0101));
            key = self.some(3, |random| random.below(3) as u32).map_or(key, |spi| key.with_spi(spi));
            key = self
                .some(3, |random| random.below(3) as u32)
                .map_or(key, |number| key.with_application(number));
            if self.below(3) == 0 {
                key = key.with_ethernet(Ethernet {
                    destination: [2, 0, 0, 0, self.below(2) as u8, self.below(4) as u8],
                    source: [2, 0, 0, 0, self.below(2) as u8, self.below(4) as u8],
                    ethertype: 0x0800,
                    c_tag: self.some(2, |random| random.next() as u16),
                    s_tag: self.some(2, |random| random.next() as u16),
                });
            }
        }
        key
    }
}

fn agree(list: &List, tree: &impl Classifier, random: &mut Random, full: bool, keys: usize, note: &str) {
    let mut keys: Vec<Key> = (0..keys).map(|_| random.key(full)).collect();
    let words = std::array::from_fn(|_| random.next() as u32 & random.next() as u32);
    keys.push(Key::from_words(words));
    let (mut expected, mut got) = (vec![None; keys.len()], vec![None; keys.len()]);
    list.classify(&keys, &mut expected);
    tree.classify(&keys, &mut got);
    for ((key, expected), got) in keys.iter().zip(&expected).zip(&got) {
        assert_eq!(expected, got, "{note}: {key:x?}");
    }
    assert_eq!(list.len(), tree.len());
}

/// Inserts, removes and changes precedences at random, and rebuilds now and then.
fn update_at_random(policy: impl Policy, seed: u64, full: bool, first: usize, steps: usize) {
    let random = &mut Random(seed);
    let (mut list, mut tree) = (List::new(), Forest::new(policy));
    let rules: Vec<Rule> = (0..first as u32).map(|id| random.rule(id * 3, full)).collect();
    list.insert_all(&rules).unwrap();
    tree.insert_all(&rules).unwrap();
    agree(&list, &tree, random, full, 300, "built");
    for step in 0..steps {
        let id = random.below(first as u64 * 6 + 40) as u32;
        match random.below(8) {
            0..4 => {
                let rule = random.rule(id, full);
                assert_eq!(list.insert(rule), tree.insert(rule));
            }
            4..6 => assert_eq!(list.remove(id), tree.remove(id)),
            6 => {
                let precedence = random.below(300) as u32;
                assert_eq!(list.set_precedence(id, precedence), tree.set_precedence(id, precedence));
            }
            _ if step % 64 == 7 => tree.optimise(),
            _ if step % 64 == 9 => {
                let more: Vec<Rule> = (0..random.below(80) as u32)
                    .map(|at| random.rule(1000 + step as u32 * 64 + at, full))
                    .collect();
                assert_eq!(list.insert_all(&more), tree.insert_all(&more));
            }
            _ => {}
        }
        agree(&list, &tree, random, full, 12, "updated");
    }
    let ids: Vec<u32> = (0..100_000).filter(|&id| list.remove(id)).collect();
    ids.iter().for_each(|&id| assert!(tree.remove(id)));
    agree(&list, &tree, random, full, 20, "emptied");
    assert_eq!(tree.len(), 0);
}

fn everything(scheme: &Forest<impl Policy>) {
    for seed in 0..6 {
        for first in [0, 3, 40, 700] {
            update_at_random(scheme.policy().clone(), seed * 100 + first as u64, false, first, 400);
            update_at_random(scheme.policy().clone(), seed * 100 + first as u64 + 7, true, first, 400);
        }
    }
}

#[test]
fn hyper_cuts_equals_the_list() {
    everything(&HyperCuts::default());
}

#[test]
fn hyper_split_equals_the_list() {
    everything(&HyperSplit::default());
}

#[test]
fn cut_split_equals_the_list() {
    everything(&CutSplit::default());
}

/// An untrained policy makes choices that no heuristic would make.
#[test]
fn untrained_rl_tree_equals_the_list() {
    everything(RlTree::with_model(&Model::random(1), Options::default()).forest());
}

/// Verdicts for generated sets equal the list's; copies and depth stay within their bounds.
fn generated(scheme: &Forest<impl Policy>) {
    for family in generate::Family::CLASSBENCH {
        for (fields, n) in
            [(Fields::FiveTuple, 1), (Fields::FiveTuple, 5000), (Fields::Full, 100), (Fields::Full, 3000)]
        {
            let rules = generate::rules(family, fields, n, 3);
            let (mut list, mut tree) = (List::new(), Forest::new(scheme.policy().clone()));
            list.insert_all(&rules).unwrap();
            tree.insert_all(&rules).unwrap();
            let copies: usize = tree.tree_stats().iter().map(|stats| stats.copies).sum();
            let longest = tree.tree_stats().iter().map(|stats| stats.longest_leaf).max();
            assert!(
                copies <= 7 * n && longest <= Some(64 + n / 4),
                "{family:?} {fields:?}: {copies}, {longest:?}"
            );
            for traffic in [Traffic::Uniform, Traffic::NoMatch] {
                let keys = generate::trace(&rules, traffic, 500, 5);
                let (mut expected, mut got) = (vec![None; keys.len()], vec![None; keys.len()]);
                list.classify(&keys, &mut expected);
                tree.classify(&keys, &mut got);
                assert_eq!(expected, got, "{family:?} {fields:?} {traffic:?}");
            }
        }
    }
}

#[test]
fn generated_sets_stay_within_bounds() {
    generated(&HyperCuts::default());
    generated(&HyperSplit::default());
    generated(&CutSplit::default());
}

#[test]
fn rules_that_cannot_be_told_apart_become_one_leaf() {
    let ports = |at: u32| PortRange::new(at as u16, 60_000 - at as u16).unwrap();
    let nested = |id: u32| Filter {
        source_ports: Some(ports(id % 50)),
        destination_ports: Some(ports(id / 50)),
        ..Filter::default()
    };
    let same = |_| Filter { protocol: Some(6), ..Filter::default() };
    for filter in [&nested as &dyn Fn(u32) -> Filter, &same] {
        let rules: Vec<Rule> =
            (0..2000).map(|id| Rule { id, precedence: 2000 - id, value: id, filter: filter(id) }).collect();
        let mut tree = CutSplit::default();
        tree.insert_all(&rules).unwrap();
        assert!(tree.tree_stats().iter().map(|stats| stats.copies).sum::<usize>() <= 4 * rules.len());
        let key = key_of(30_000, 30_000);
        for last in (1990..2000).rev() {
            let mut verdict = [None];
            tree.classify(&[key], &mut verdict);
            assert_eq!(verdict, [Some(last)]);
            assert!(tree.remove(last));
        }
    }
}

fn key_of(source_port: u16, destination_port: u16) -> Key {
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    Key::new(address, address, 6).with_ports(source_port, destination_port)
}
