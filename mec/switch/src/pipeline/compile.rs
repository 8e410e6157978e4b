//! Translations as exact-match entries, for a data path that looks up (outer destination, TEID) only.
//!
//! Such a path treats the user packets of a tunnel alike, and can check a few fields of the frame beside the key ([`Only`]). So a
//! translation can be an entry there if it has consulted nothing else, and if what it does are changes that the path can make, in
//! front of one output. All other packets stay with the host path.
//!
//! [`compile`] makes the entries ahead of the users' packets: of every tunnel that an entry of the tables names, in the frames of
//! those base stations and anchors that have been seen, or are known otherwise. [`exact`] says what a single translation is worth.

use std::net::IpAddr;
use std::sync::Arc;

use openflow::{Field, PacketType};
use packet::{ethernet, gtpu, protocol};

use super::Pipeline;
use super::field::{self, WORDS, Words, shape};
use super::flow::Flow;
use super::trace::{Layer, Step, Trace};

/// The user packets of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// The outer destination, as packets come.
    pub destination: IpAddr,
    /// The TEID, as packets come.
    pub teid: u32,
}

/// Fields beside the key that packets of an entry must have; `None`: any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Only {
    /// The port by which they come.
    pub in_port: Option<u32>,
    /// Their outer source.
    pub source: Option<IpAddr>,
    /// Their source on the link.
    pub eth_source: Option<[u8; 6]>,
    /// Their destination on the link.
    pub eth_destination: Option<[u8; 6]>,
    /// Whether the packet inside is of IPv6 or IPv4.
    pub inner_ipv6: Option<bool>,
}

/// What is written into packets; `None`: stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rewrite {
    /// Destination on the link.
    pub eth_destination: Option<[u8; 6]>,
    /// Source on the link.
    pub eth_source: Option<[u8; 6]>,
    /// Outer destination.
    pub destination: Option<IpAddr>,
    /// Outer source.
    pub source: Option<IpAddr>,
    /// TEID.
    pub teid: Option<u32>,
    /// Source of the packet inside.
    pub inner_source: Option<IpAddr>,
    /// Destination of the packet inside.
    pub inner_destination: Option<IpAddr>,
}

/// An exact-match entry.
#[derive(Debug, Clone)]
pub struct Exact {
    /// Its key.
    pub tunnel: Tunnel,
    /// What must hold beside the key.
    pub only: Only,
    /// What is written.
    pub rewrite: Rewrite,
    /// Where the packets go; `None`: nowhere.
    pub port: Option<u32>,
    /// The entries of the tables whose counters its packets belong to, each as often as they pass it.
    pub rules: Vec<Arc<Flow>>,
}

/// The entry that a translation of a packet with these fields is. `None`: it depends on more, or does what such an entry cannot.
pub fn exact(outer: &Words, inner: &Words, trace: &Trace) -> Option<Exact> {
    let is_ipv6 = match field::get(outer, Field::EthType) as u16 {
        ethernet::IPV4 => false,
        ethernet::IPV6 => true,
        _ => return None,
    };
    let address = |words: &Words, v4: Field, v6: Field, ipv6: bool| match ipv6 {
        false => IpAddr::V4((field::get(words, v4) as u32).into()),
        true => IpAddr::V6(field::get(words, v6).into()),
    };
    if outer[shape::WORD] & shape::GTPU == 0 || field::get(inner, Field::TunGtpuMsgtype) != G_PDU {
        return None;
    }
    let mut open = Open { outer: trace.consulted.outer, inner: trace.consulted.inner };
    // What the key fixes: a G-PDU in whole UDP without VLAN tag, its destination and TEID.
    for of in [Field::EthType, Field::IpProto, Field::UdpDst, Field::Ipv4Dst, Field::Ipv6Dst, Field::VlanVid]
    {
        clear(&mut open.outer, of);
    }
    open.outer[shape::WORD] &= !shape::GTPU;
    for of in [Field::TunnelId, Field::TunGtpuMsgtype] {
        clear(&mut open.inner, of);
    }
    let inner_ipv6 = match field::get(inner, Field::PacketType) {
        IPV4 => Some(false),
        IPV6 => Some(true),
        _ => None,
    };
    let asks_inner = open.asks_inner(Field::PacketType) | open.asks_inner(Field::EthType);
    if asks_inner && inner_ipv6.is_none() {
        return None;
    }
    let only = Only {
        in_port: open.asks(Field::InPort).then(|| field::get(outer, Field::InPort) as u32),
        source: (open.asks(Field::Ipv4Src) | open.asks(Field::Ipv6Src))
            .then(|| address(outer, Field::Ipv4Src, Field::Ipv6Src, is_ipv6)),
        eth_source: open.asks(Field::EthSrc).then(|| mac(field::get(outer, Field::EthSrc))),
        eth_destination: open.asks(Field::EthDst).then(|| mac(field::get(outer, Field::EthDst))),
        inner_ipv6: inner_ipv6.filter(|_| asks_inner),
    };
    if open.outer != [0; WORDS] || open.inner != [0; WORDS] || field::get(outer, Field::VlanVid) != 0 {
        return None;
    }
    let tunnel = Tunnel {
        destination: address(outer, Field::Ipv4Dst, Field::Ipv6Dst, is_ipv6),
        teid: field::get(inner, Field::TunnelId) as u32,
    };
    let (rewrite, port) = rewrite(&trace.steps)?;
    // Counters of groups and buckets are the host path's.
    trace.groups.is_empty().then(|| Exact { tunnel, only, rewrite, port, rules: trace.rules.clone() })
}

const G_PDU: u128 = gtpu::message_type::G_PDU as u128;
const IPV4: u128 = (PacketType::IPV4.namespace as u128) << 16 | PacketType::IPV4.ns_type as u128;
const IPV6: u128 = (PacketType::IPV6.namespace as u128) << 16 | PacketType::IPV6.ns_type as u128;

/// Consulted fields that nothing accounts for yet.
struct Open {
    outer: Words,
    inner: Words,
}

impl Open {
    /// Whether a field of the frame was consulted; it is accounted for then.
    fn asks(&mut self, of: Field) -> bool {
        clear(&mut self.outer, of)
    }

    fn asks_inner(&mut self, of: Field) -> bool {
        clear(&mut self.inner, of)
    }
}

/// Takes a field's bits out; whether there were some.
fn clear(words: &mut Words, of: Field) -> bool {
    let had = field::get(words, of) != 0;
    field::set(words, of, 0);
    had
}

fn mac(bits: u128) -> [u8; 6] {
    let [.., a, b, c, d, e, f] = bits.to_be_bytes();
    [a, b, c, d, e, f]
}

/// The changes in front of the one output, if there is no more to it.
fn rewrite(steps: &[Step]) -> Option<(Rewrite, Option<u32>)> {
    let mut rewrite = Rewrite::default();
    let Some((last, changes)) = steps.split_last() else { return Some((rewrite, None)) };
    let Step::Output(port) = last else { return None };
    for change in changes {
        let Step::Set { layer, field, value } = change else { return None };
        let v4 = || Some(IpAddr::V4((*value as u32).into()));
        let v6 = || Some(IpAddr::V6((*value).into()));
        match (layer, field) {
            (Layer::Outer, Field::EthDst) => rewrite.eth_destination = Some(mac(*value)),
            (Layer::Outer, Field::EthSrc) => rewrite.eth_source = Some(mac(*value)),
            (Layer::Outer, Field::Ipv4Dst) => rewrite.destination = v4(),
            (Layer::Outer, Field::Ipv6Dst) => rewrite.destination = v6(),
            (Layer::Outer, Field::Ipv4Src) => rewrite.source = v4(),
            (Layer::Outer, Field::Ipv6Src) => rewrite.source = v6(),
            (Layer::Outer, Field::TunnelId) => rewrite.teid = Some(*value as u32),
            (Layer::Inner, Field::Ipv4Src) => rewrite.inner_source = v4(),
            (Layer::Inner, Field::Ipv6Src) => rewrite.inner_source = v6(),
            (Layer::Inner, Field::Ipv4Dst) => rewrite.inner_destination = v4(),
            (Layer::Inner, Field::Ipv6Dst) => rewrite.inner_destination = v6(),
            _ => return None,
        }
    }
    Some((rewrite, Some(*port)))
}

/// A way between a base station and an anchor: the fields that its frames have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Way {
    /// The port by which the frames come.
    pub in_port: u32,
    /// Their source and destination on the link.
    pub eth: ([u8; 6], [u8; 6]),
    /// Their outer source.
    pub source: IpAddr,
    /// Their outer destination.
    pub destination: IpAddr,
}

impl Way {
    /// That of a frame; `None` for one without tunnel.
    pub fn of(outer: &Words) -> Option<Way> {
        let get = |of| field::get(outer, of);
        let (source, destination) = match get(Field::EthType) as u16 {
            ethernet::IPV4 => (
                IpAddr::V4((get(Field::Ipv4Src) as u32).into()),
                IpAddr::V4((get(Field::Ipv4Dst) as u32).into()),
            ),
            ethernet::IPV6 => {
                (IpAddr::V6(get(Field::Ipv6Src).into()), IpAddr::V6(get(Field::Ipv6Dst).into()))
            }
            _ => return None,
        };
        let eth = (mac(get(Field::EthSrc)), mac(get(Field::EthDst)));
        let has_tunnel = outer[shape::WORD] & shape::GTPU != 0;
        has_tunnel.then_some(Way { in_port: get(Field::InPort) as u32, eth, source, destination })
    }

    /// Fields of a made-up G-PDU with a packet of either IP version.
    fn packet(&self, teid: u32, ipv6: bool) -> (Words, Words) {
        let (mut outer, mut inner) = ([0; WORDS], [0; WORDS]);
        let bits = |mac: [u8; 6]| mac.iter().fold(0u128, |bits, octet| bits << 8 | u128::from(*octet));
        let mut set = |of, value: u128| field::set(&mut outer, of, value);
        set(Field::InPort, self.in_port.into());
        set(Field::EthSrc, bits(self.eth.0));
        set(Field::EthDst, bits(self.eth.1));
        set(Field::IpProto, protocol::UDP.into());
        set(Field::UdpDst, gtpu::PORT.into());
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                set(Field::EthType, ethernet::IPV4.into());
                set(Field::Ipv4Src, source.to_bits().into());
                set(Field::Ipv4Dst, destination.to_bits().into());
            }
            (source, destination) => {
                let bits = |address: IpAddr| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                    IpAddr::V6(address) => address.to_bits(),
                };
                set(Field::EthType, ethernet::IPV6.into());
                set(Field::Ipv6Src, bits(source));
                set(Field::Ipv6Dst, bits(destination));
            }
        }
        outer[shape::WORD] |= shape::GTPU;
        let mut set = |of, value: u128| field::set(&mut inner, of, value);
        set(Field::TunnelId, teid.into());
        set(Field::TunGtpuMsgtype, G_PDU);
        set(Field::PacketType, if ipv6 { IPV6 } else { IPV4 });
        set(Field::EthType, if ipv6 { ethernet::IPV6 } else { ethernet::IPV4 }.into());
        (outer, inner)
    }
}

/// Exact-match entries of all tunnels that the present entries name, on these ways. Not counted as packets.
///
/// Where the IP version inside decides what happens, a tunnel has an entry for each version ([`Only::inner_ipv6`]).
pub fn compile(pipeline: &Pipeline, ways: &[Way]) -> Vec<Exact> {
    let mut tunnels: Vec<Tunnel> = pipeline
        .tables()
        .iter()
        .flat_map(|table| table.flows())
        .filter_map(|flow| {
            let address =
                |field: Field| flow.matching.get(field).filter(|oxm| oxm.is_exact()).map(|oxm| oxm.value());
            let v4 = address(Field::TunIpv4Dst).map(|bits| IpAddr::V4((bits as u32).into()));
            let v6 = address(Field::TunIpv6Dst).map(|bits| IpAddr::V6(bits.into()));
            let teid = address(Field::TunnelId).and_then(|teid| u32::try_from(teid).ok());
            Some(Tunnel { destination: v4.or(v6)?, teid: teid? })
        })
        .collect();
    tunnels.sort_unstable_by_key(|tunnel| (tunnel.destination, tunnel.teid));
    tunnels.dedup();
    let mut entries = Vec::new();
    for tunnel in tunnels {
        for way in ways.iter().filter(|way| way.destination == tunnel.destination) {
            for ipv6 in [false, true] {
                let (outer, inner) = way.packet(tunnel.teid, ipv6);
                let found = exact(&outer, &inner, &pipeline.trace(&outer, &inner));
                // Without a look at the version, the first entry is for both.
                let is_for_both = found.as_ref().is_some_and(|entry| entry.only.inner_ipv6.is_none());
                entries.extend(found);
                if is_for_both {
                    break;
                }
            }
        }
    }
    entries
}
