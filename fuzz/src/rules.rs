//! Packet classifiers: the input is a program of updates and look-ups. Every backend must give the list's
//! results.
//!
//! ```text
//! program: steps, at most 64        step: operation 1, its operands, then a key
//! operation: 0-3 insert  4 insert several  5 remove  6 change the precedence  7 optimise
//! rule: id 1, precedence 1, filter  filter: number of fields 1, then for each its number and its values
//! ```
//! Octets stand for few different values, so that rules and packets meet. Behind the end of the input, octets
//! are zero.

use std::net::IpAddr;

use classifier::rl_tree::{Model, Options, RlTree, shipped};
use classifier::{
    Backend, Classifier, Ethernet, EthernetFilter, Filter, FlowLabel, Interface, Key, List, LocalAddress,
    Masked, NetworkInstance, PortRange, Prefix, Qfi, Rule, Side,
};

/// Most steps of a program: longer ones find no more and take longer.
const STEPS_MAX: usize = 64;

/// Runs the program on all backends at once.
pub fn program(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut list = List::new();
    let mut others: Vec<_> = Backend::ALL.iter().map(|backend| (backend, backend.build())).collect();
    for _ in 0..STEPS_MAX {
        if bytes.0.is_empty() {
            break;
        }
        let step = Step::read(&mut bytes);
        let key = key(&mut bytes);
        let expected = (step.apply(&mut list), list.len(), classify(&list, key));
        for (backend, other) in &mut others {
            let got = (step.apply(&mut **other), other.len(), classify(&**other, key));
            assert_eq!(got, expected, "{backend}: outcome, length, verdict of {key:?} after {step:?}");
        }
    }
}

/// A model file of `rl_tree`: a file that is read must be written identically, and trees built from it must
/// give the list's verdicts, however bad its decisions are.
pub fn model(data: &[u8]) {
    let Some(body) = data.len().checked_sub(8) else { return };
    let mut file = data.to_vec();
    // Recomputes the checksum (FNV-1a) of the mutated file, so that the rest of the reader is reached.
    let sum = file[..body].iter().fold(0xCBF2_9CE4_8422_2325u64, |sum, octet| {
        (sum ^ u64::from(*octet)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    file[body..].copy_from_slice(&sum.to_le_bytes());
    let Ok(model) = Model::from_bytes(&file) else { return };
    assert_eq!(Model::from_bytes(&model.to_bytes()).as_ref(), Ok(&model));
    let (mut tree, mut list) = (RlTree::with_model(&model, Options::default()), List::new());
    let (rules, keys) = fixed();
    assert_eq!(tree.insert_all(&rules), list.insert_all(&rules));
    for key in keys {
        assert_eq!(classify(&tree, key), classify(&list, key), "{key:?}");
    }
}

/// The rules for which the decisions of the seeds are, and packets.
fn fixed() -> (Vec<Rule>, Vec<Key>) {
    let mut random = crate::mutate::Random::new(9);
    let octets: Vec<u8> = (0..8000).map(|_| random.draw().to_be_bytes()[3]).collect();
    let mut bytes = Bytes(&octets);
    let rules = (0..120).map(|id| Rule { id, ..rule(&mut bytes) }).collect();
    (rules, (0..40).map(|_| key(&mut bytes)).collect())
}

/// The shipped model, an untrained one, and one with the decisions of a tree.
pub fn models() -> Vec<Vec<u8>> {
    let mut tree = RlTree::new();
    let grown = tree.insert_all(&fixed().0).map(|()| tree.model().to_bytes());
    [shipped().to_bytes(), Model::random(1).to_bytes()].into_iter().chain(grown).collect()
}

fn classify(classifier: &dyn Classifier, key: Key) -> [Option<u32>; 2] {
    let mut verdicts = [None; 2];
    classifier.classify(&[key, Key::unknown()], &mut verdicts);
    verdicts
}

#[derive(Debug)]
enum Step {
    Insert(Vec<Rule>),
    Remove(u32),
    SetPrecedence(u32, u32),
    Optimise,
}

impl Step {
    fn read(bytes: &mut Bytes<'_>) -> Step {
        match bytes.next() % 8 {
            0..=3 => Step::Insert(vec![rule(bytes)]),
            4 => {
                let count = bytes.next() % 24;
                Step::Insert((0..count).map(|_| rule(bytes)).collect())
            }
            5 => Step::Remove(bytes.below(48)),
            6 => Step::SetPrecedence(bytes.below(48), bytes.below(8)),
            _ => Step::Optimise,
        }
    }

    /// Applies the update; returns whether it had an effect.
    fn apply(&self, classifier: &mut dyn Classifier) -> bool {
        match self {
            Step::Insert(rules) => match &rules[..] {
                [rule] => classifier.insert(*rule).is_ok(),
                rules => classifier.insert_all(rules).is_ok(),
            },
            Step::Remove(id) => classifier.remove(*id),
            Step::SetPrecedence(id, precedence) => classifier.set_precedence(*id, *precedence),
            Step::Optimise => {
                classifier.optimise();
                true
            }
        }
    }
}

/// The rest of the input.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, bound: u8) -> u32 {
        u32::from(self.next() % bound)
    }

    fn pick<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[usize::from(self.next()) % N]
    }

    fn wide(&mut self) -> u32 {
        self.pick([0, 1, 0x0A00_0001, 0x8000_0000, u32::MAX])
    }

    fn address(&mut self) -> IpAddr {
        let last = self.next() % 16;
        match last % 4 {
            0 => IpAddr::from([0xfd00, 0x45, 0, u16::from(last), 0, 0, 0, u16::from(last)]),
            1 => IpAddr::from([10, last, 0, 1]),
            2 => IpAddr::from([10, 0, last, 1]),
            _ => IpAddr::from([192, 0, 2, last]),
        }
    }

    fn prefix(&mut self) -> Option<Prefix> {
        let (address, length) = (self.address(), self.next());
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Prefix::new(address, length % (bits + 1)).ok()
    }

    fn port(&mut self) -> u16 {
        self.pick([0, 1, 79, 80, 443, 1023, 1024, 0x8000, u16::MAX])
    }

    fn ports(&mut self) -> Option<PortRange> {
        let (one, other) = (self.port(), self.port());
        PortRange::new(one.min(other), one.max(other)).ok()
    }

    fn mac(&mut self) -> [u8; 6] {
        [2, 0, self.next() % 3, 0, 0, self.next() % 3]
    }

    fn tag(&mut self) -> Option<Masked<u16>> {
        Some(Masked::tag(self.pick([0, 7, 0xA007, 0xFFFF]), self.pick([0, 0x0FFF, 0xE000, 0xFFFF])))
    }
}

fn rule(bytes: &mut Bytes<'_>) -> Rule {
    let (id, precedence) = (bytes.below(48), bytes.below(8));
    Rule { id, precedence, value: id / 2, filter: filter(bytes) }
}

fn filter(bytes: &mut Bytes<'_>) -> Filter {
    let mut filter = Filter::default();
    // Few fields, as packets seldom match more; seldom none, as such a rule ends every search.
    for _ in 0..bytes.pick([1, 1, 1, 2, 2, 3, 0]) {
        match bytes.next() % 20 {
            0 => filter.source = bytes.prefix(),
            1 => filter.destination = bytes.prefix(),
            2 => filter.protocol = Some(bytes.pick([1, 6, 17, 50])),
            3 => filter.source_ports = bytes.ports(),
            4 => filter.destination_ports = bytes.ports(),
            5 => filter.tos = Some(Masked::new(bytes.next(), bytes.pick([0, 1, 0x81, 0xFC, 0xFF]))),
            6 => filter.spi = Some(bytes.wide()),
            7 => filter.flow_label = FlowLabel::new(bytes.below(4)).ok(),
            8 => filter.qfi = Qfi::new(bytes.next() % 4).ok(),
            9 => filter.source_interface = Interface::new(bytes.next() % 4).ok(),
            10 => filter.teid = Some(bytes.wide()),
            11 => filter.local_address = LocalAddress::new(bytes.next() % 4).ok(),
            12 => filter.network_instance = NetworkInstance::new(u16::from(bytes.next() % 4)).ok(),
            13 => filter.traffic_endpoint = Some(bytes.next() % 4),
            14 => filter.application = Some(bytes.wide()),
            15 => filter.ue = bytes.prefix().map(|prefix| (Side::Source, prefix)),
            16 => filter.ue = bytes.prefix().map(|prefix| (Side::Destination, prefix)),
            _ => filter.ethernet = Some(ethernet(bytes)),
        }
    }
    filter
}

fn ethernet(bytes: &mut Bytes<'_>) -> EthernetFilter {
    let which = bytes.next();
    let mask = |bytes: &mut Bytes<'_>| bytes.pick([[0; 6], [0xFF; 6], [1, 0, 0xF0, 0, 0, 3]]);
    EthernetFilter {
        destination: Masked::mac(bytes.mac(), mask(bytes)),
        source: Masked::mac(bytes.mac(), mask(bytes)),
        ethertype: (which & 1 == 1).then(|| bytes.pick([0x0800, 0x86DD])),
        c_tag: bytes.tag().filter(|_| which & 2 == 2),
        s_tag: bytes.tag().filter(|_| which & 4 == 4),
    }
}

fn key(bytes: &mut Bytes<'_>) -> Key {
    let which = bytes.next();
    if which == 0xFF {
        // Words that no packet has; classifiers must accept them too.
        return Key::from_words(std::array::from_fn(|_| bytes.wide()));
    }
    let mut key = Key::new(bytes.address(), bytes.address(), bytes.pick([1, 6, 17, 50]));
    if which & 1 == 0 {
        key = key.with_ports(bytes.port(), bytes.port());
    }
    if which & 2 == 2 {
        key = key.with_tos(bytes.next()).with_qfi(bytes.next() % 4).with_teid(bytes.wide());
    }
    if which & 4 == 4 {
        key = key.with_spi(bytes.wide()).with_flow_label(bytes.below(4)).with_application(bytes.wide());
    }
    if which & 8 == 8 {
        key = key.with_source_interface(bytes.next() % 4).with_local_address(bytes.next() % 4);
        key = key.with_network_instance(u16::from(bytes.next() % 4)).with_traffic_endpoint(bytes.next() % 4);
    }
    if which & 16 == 16 {
        let (destination, source) = (bytes.mac(), bytes.mac());
        let ethertype = bytes.pick([0x0800, 0x86DD]);
        let c_tag = (which & 32 == 32).then(|| bytes.pick([0, 7, 0xA007, 0xFFFF]));
        let s_tag = (which & 64 == 64).then(|| bytes.pick([0, 7, 0xA007, 0xFFFF]));
        key = key.with_ethernet(Ethernet { destination, source, ethertype, c_tag, s_tag });
    }
    key
}

/// Programs of every operation: random octets, and programs that mostly insert.
pub fn seeds() -> Vec<Vec<u8>> {
    let mixed = |seed: u64, inserts: bool| {
        let mut random = crate::mutate::Random::new(seed);
        let mut octet = || random.draw().to_be_bytes()[3];
        let step = |octet: &mut dyn FnMut() -> u8| {
            let mut step = vec![if inserts { octet() % 5 } else { octet() }];
            step.extend((0..24).map(|_| octet()));
            step
        };
        (0..60).flat_map(|_| step(&mut octet)).collect()
    };
    (1..=3).flat_map(|seed| [mixed(seed, false), mixed(seed, true)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs whose packets match no rule would find nothing.
    #[test]
    fn rules_and_packets_of_the_seeds_meet() {
        let (mut steps, mut met, mut removed) = (0, 0, 0);
        for seed in seeds() {
            let (mut bytes, mut list) = (Bytes(&seed), List::new());
            while !bytes.0.is_empty() {
                let step = Step::read(&mut bytes);
                let done = step.apply(&mut list);
                let found = classify(&list, key(&mut bytes));
                steps += 1;
                met += usize::from(found[0].is_some() && found[0] != found[1]);
                removed += usize::from(done && matches!(step, Step::Remove(_)));
            }
        }
        assert!(
            met * 4 > steps && removed > 5,
            "{met} of {steps} look-ups met a rule, {removed} were removed"
        );
    }
}
