//! Random filters, packets and updates, drawn from few different values so that they meet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::{
    Ethernet, EthernetFilter, Filter, FlowLabel, Interface, LocalAddress, Masked, NetworkInstance, PortRange,
    Prefix, Qfi, Rule, Side,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::definition::Packet;

fn v4() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(vec![[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 129, 1], [10, 64, 0, 1], [192, 0, 2, 7]])
        .prop_map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

fn v6() -> impl Strategy<Value = IpAddr> {
    const TEXTS: &[&str] = &["fd00:45::1", "fd00:45::2", "fd00:45:0:1::1", "fd01::1"];
    prop::sample::select(TEXTS).prop_map(|text| IpAddr::V6(text.parse::<Ipv6Addr>().expect("an address")))
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let lengths = |lengths: &'static [u8]| prop::sample::select(lengths);
    prop_oneof![
        3 => (v4(), lengths(&[0, 1, 8, 10, 16, 17, 24, 30, 31, 32])),
        1 => (v6(), lengths(&[0, 16, 31, 32, 33, 63, 64, 96, 127, 128])),
    ]
    .prop_map(|(address, length)| Prefix::new(address, length).expect("a length that fits"))
}

fn ports() -> impl Strategy<Value = PortRange> {
    const BOUNDS: [u16; 8] = [0, 1, 79, 80, 443, 1023, 1024, u16::MAX];
    (0..BOUNDS.len(), 0..BOUNDS.len()).prop_map(|(one, other)| {
        PortRange::new(BOUNDS[one.min(other)], BOUNDS[one.max(other)]).expect("not reversed")
    })
}

fn mac() -> impl Strategy<Value = [u8; 6]> {
    prop::sample::select(vec![[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xFF; 6], [3, 0, 0x5E, 0, 0, 1]])
}

fn masked_mac() -> impl Strategy<Value = Masked<[u8; 6]>> {
    let masks = prop::sample::select(vec![[0; 6], [0xFF; 6], [1, 0, 0, 0, 0, 0], [0xFF, 0, 0xF0, 0, 0, 3]]);
    (mac(), masks).prop_map(|(value, mask)| Masked::mac(value, mask))
}

fn tag() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0, 7, 0x0007 | 5 << 13, 100, 0xFFFF])
}

fn masked_tag() -> impl Strategy<Value = Option<Masked<u16>>> {
    let masks = prop::sample::select(vec![0, 0x0FFF, 0xE000, 0xFFFF]);
    prop::option::of((tag(), masks).prop_map(|(value, mask)| Masked::tag(value, mask)))
}

fn ethertype() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![0x0800, 0x86DD, 0x0806])
}

fn ethernet_filter() -> impl Strategy<Value = EthernetFilter> {
    (masked_mac(), masked_mac(), prop::option::of(ethertype()), masked_tag(), masked_tag()).prop_map(
        |(destination, source, ethertype, c_tag, s_tag)| EthernetFilter {
            destination,
            source,
            ethertype,
            c_tag,
            s_tag,
        },
    )
}

/// Adds one condition. A second condition on a field replaces the first. Conditions on addresses may contradict
/// each other.
fn condition() -> impl Strategy<Value = fn(Filter, Drawn) -> Filter> {
    let conditions: [fn(Filter, Drawn) -> Filter; 17] = [
        |filter, drawn| Filter { source: Some(drawn.prefix), ..filter },
        |filter, drawn| Filter { destination: Some(drawn.prefix), ..filter },
        |filter, drawn| Filter { ue: Some((drawn.side(), drawn.prefix)), ..filter },
        |filter, drawn| Filter { protocol: Some([1, 6, 17, 50][drawn.small as usize]), ..filter },
        |filter, drawn| Filter { source_ports: Some(drawn.ports), ..filter },
        |filter, drawn| Filter { destination_ports: Some(drawn.ports), ..filter },
        |filter, drawn| Filter { tos: Some(drawn.tos()), ..filter },
        |filter, drawn| Filter { spi: Some(drawn.wide()), ..filter },
        |filter, drawn| Filter { flow_label: FlowLabel::new(drawn.wide() & 0xF_FFFF).ok(), ..filter },
        |filter, drawn| Filter { qfi: Qfi::new([0, 1, 9, 63][drawn.small as usize]).ok(), ..filter },
        |filter, drawn| Filter { source_interface: Interface::new(drawn.small).ok(), ..filter },
        |filter, drawn| Filter { teid: Some(drawn.wide()), ..filter },
        |filter, drawn| Filter { local_address: LocalAddress::new(drawn.small * 42).ok(), ..filter },
        |filter, drawn| Filter { network_instance: NetworkInstance::new(drawn.small.into()).ok(), ..filter },
        |filter, drawn| Filter { traffic_endpoint: Some(drawn.small * 85), ..filter },
        |filter, drawn| Filter { application: Some(drawn.wide()), ..filter },
        |filter, drawn| Filter { ethernet: Some(drawn.ethernet), ..filter },
    ];
    // The 5-tuple more often than other fields.
    prop_oneof![2 => 0..6usize, 1 => 0..conditions.len()].prop_map(move |at| conditions[at])
}

/// Random values for a condition.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    prefix: Prefix,
    ports: PortRange,
    small: u8,
    ethernet: EthernetFilter,
}

impl Drawn {
    fn side(&self) -> Side {
        if self.small.is_multiple_of(2) { Side::Source } else { Side::Destination }
    }

    /// Few values, with and without bits above and below.
    fn wide(&self) -> u32 {
        [0, 1, 0x8000_0000, u32::MAX][self.small as usize]
    }

    /// Contiguous and other masks.
    fn tos(&self) -> Masked {
        [Masked::new(0xB8, 0xFC), Masked::new(0, 0), Masked::new(0x81, 0xC3), Masked::new(1, 1)]
            [self.small as usize]
    }
}

pub fn filter() -> impl Strategy<Value = Filter> {
    let drawn = (prefix(), ports(), 0..4u8, ethernet_filter())
        .prop_map(|(prefix, ports, small, ethernet)| Drawn { prefix, ports, small, ethernet });
    vec((condition(), drawn), 0..5).prop_map(|conditions| {
        conditions.into_iter().fold(Filter::default(), |filter, (add, drawn)| add(filter, drawn))
    })
}

pub fn packet() -> impl Strategy<Value = Packet> {
    let port = || prop::sample::select(vec![0u16, 1, 79, 80, 443, 1024, 5000, u16::MAX]);
    let wide = || prop::option::of(prop::sample::select(vec![0u32, 1, 0x8000_0000, u32::MAX]));
    let small = || prop::option::of(0..4u8);
    let addresses = prop_oneof![
        4 => (v4(), v4()).prop_map(Some),
        2 => (v6(), v6()).prop_map(Some),
        1 => Just(None),
    ];
    let frame = (mac(), mac(), ethertype(), prop::option::of(tag()), prop::option::of(tag())).prop_map(
        |(destination, source, ethertype, c_tag, s_tag)| Ethernet {
            destination,
            source,
            ethertype,
            c_tag,
            s_tag,
        },
    );
    let ip = (
        addresses,
        prop::sample::select(vec![1u8, 6, 17, 50]),
        prop::option::weighted(0.8, (port(), port())),
        prop::sample::select(vec![0u8, 1, 0x81, 0xB8, 0xBB]),
        prop::option::of(prop::sample::select(vec![0u8, 1, 9, 63])),
        wide(),
        prop::sample::select(vec![0u32, 1, 0xF_FFFF]),
    );
    let around = (small(), wide(), small(), small(), small(), wide(), prop::option::of(frame));
    (ip, around).prop_map(|(ip, around)| Packet {
        addresses: ip.0,
        protocol: ip.1,
        ports: ip.2,
        tos: ip.3,
        qfi: ip.4,
        spi: ip.5,
        flow_label: ip.6,
        source_interface: around.0,
        teid: around.1,
        local_address: around.2.map(|number| number * 42),
        network_instance: around.3.map(|number| u16::from(number) + 1),
        traffic_endpoint: around.4.map(|number| number * 85),
        application: around.5,
        ethernet: around.6,
    })
}

/// Any words at all, with few different values in each.
pub fn words() -> impl Strategy<Value = [u32; 20]> {
    let word = prop_oneof![
        3 => prop::sample::select(vec![0u32, 1, 0x0A00_0001, 0x0280_0011, 0x0600_0011, 80, u32::MAX]),
        1 => any::<u32>(),
    ];
    prop::array::uniform20(word)
}

/// Rules of different ids and few precedences.
pub fn rules(most: usize) -> impl Strategy<Value = Vec<Rule>> {
    vec((filter(), 0..4u32), 0..=most).prop_map(|drawn| {
        let rule = |(at, (filter, precedence)): (usize, (Filter, u32))| {
            let id = at as u32;
            Rule { id, precedence, value: 1000 + id / 2, filter }
        };
        drawn.into_iter().enumerate().map(rule).collect()
    })
}

/// One update of a sequence.
#[derive(Clone, Debug)]
pub enum Update {
    Insert(Box<Rule>),
    InsertAll(Vec<Rule>),
    Remove(u32),
    SetPrecedence(u32, u32),
    Optimise,
}

pub fn update() -> impl Strategy<Value = Update> {
    // Few ids, so that many exist already and many do not.
    let rule = || {
        (0..24u32, 0..4u32, 0..100u32, filter()).prop_map(|(id, precedence, value, filter)| Rule {
            id,
            precedence,
            value,
            filter,
        })
    };
    prop_oneof![
        6 => rule().prop_map(|rule| Update::Insert(Box::new(rule))),
        1 => vec(rule(), 0..40).prop_map(Update::InsertAll),
        3 => (0..24u32).prop_map(Update::Remove),
        2 => (0..24u32, 0..4u32).prop_map(|(id, precedence)| Update::SetPrecedence(id, precedence)),
        1 => Just(Update::Optimise),
    ]
}
