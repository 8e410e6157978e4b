//! Translations as exact-match entries, for a data path that looks up (outer destination, TEID) only.
//!
//! Such a path treats the user packets of a tunnel alike, and can check a few fields of the frame beside the key ([`Only`]). So a
//! translation can be an entry there if it has consulted nothing else, and if what it does are changes that the path can make, in
//! front of one output to an interface. All other packets stay with the host path.

use std::net::IpAddr;
use std::sync::Arc;

use openflow::{Field, PacketType, PortNo};
use packet::{ethernet, gtpu};

use super::Pipeline;
use super::field::{self, WORDS, Words, shape};
use super::trace::{Consulted, Layer, Step, Trace};

/// The user packets of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// The outer destination, as packets come.
    pub destination: IpAddr,
    /// The TEID, as packets come.
    pub teid: u32,
}

/// Fields beside the key that packets of an entry have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Only {
    /// The port by which they come, which counts them.
    pub in_port: u32,
    /// Their source on the link. It is known of every entry, and so is the destination: a rule for another neighbour concerns none.
    pub eth_source: [u8; 6],
    /// Their destination on the link.
    pub eth_destination: [u8; 6],
    /// Their outer source; `None`: any.
    pub source: Option<IpAddr>,
}

/// An address of the packet inside that is replaced. Packets of the other IP version are not those of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Inner {
    /// The source.
    Source(IpAddr),
    /// The destination.
    Destination(IpAddr),
}

/// What is written into packets; `None`: stays. Nothing is written that is there already.
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
    /// An address inside.
    pub inner: Option<Inner>,
}

/// An exact-match entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exact {
    /// Its key.
    pub tunnel: Tunnel,
    /// What must hold beside the key.
    pub only: Only,
    /// What is written.
    pub rewrite: Rewrite,
    /// Where the packets go; `None`: nowhere.
    pub port: Option<u32>,
}

/// Fields of which key and [`Only`] fix the value: those of a G-PDU in whole UDP in a frame without tag, and those that are zero in
/// every frame.
const FIXED_OUTER: [Field; 19] = [
    Field::InPort,
    Field::EthSrc,
    Field::EthDst,
    Field::EthType,
    Field::IpProto,
    Field::UdpDst,
    Field::Ipv4Dst,
    Field::Ipv6Dst,
    Field::VlanVid,
    Field::VlanPcp,
    Field::PacketType,
    Field::Metadata,
    Field::TunnelId,
    Field::TunIpv4Src,
    Field::TunIpv4Dst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunGtpuFlags,
    Field::TunGtpuMsgtype,
];
/// The same for the packet inside, which has no link layer.
const FIXED_INNER: [Field; 7] = [
    Field::TunnelId,
    Field::TunGtpuMsgtype,
    Field::Metadata,
    Field::EthSrc,
    Field::EthDst,
    Field::VlanVid,
    Field::VlanPcp,
];

/// The entry that a translation of a packet with these fields is. `None`: it depends on more, or does what such an entry cannot.
pub fn exact(pipeline: &Pipeline, outer: &Words, inner: &Words, trace: &Trace) -> Option<Exact> {
    let (exact, asks_version) = candidate(outer, inner, trace)?;
    if !asks_version || has_version_of(exact.rewrite.inner, inner) {
        return Some(exact);
    }
    // Entries for ARP, say, ask every packet for its EthType. It makes no difference if none is treated otherwise.
    let makes_no_difference = |(packet_type, ethertype): (u128, u16)| {
        let mut other = *inner;
        field::set(&mut other, Field::PacketType, packet_type);
        field::set(&mut other, Field::EthType, ethertype.into());
        let of_other = pipeline.trace(outer, &other);
        let same_rules = of_other.rules.len() == trace.rules.len()
            && of_other.rules.iter().zip(&trace.rules).all(|(a, b)| Arc::ptr_eq(a, b));
        same_rules
            && of_other.tables == trace.tables
            && candidate(outer, &other, &of_other).is_some_and(|(entry, _)| entry == exact)
    };
    INSIDE.into_iter().all(makes_no_difference).then_some(exact)
}

/// The same where nothing depends on the IP version inside; and whether something does.
fn candidate(outer: &Words, inner: &Words, trace: &Trace) -> Option<(Exact, bool)> {
    let is_ipv6 = match field::get(outer, Field::EthType) as u16 {
        ethernet::IPV4 => false,
        ethernet::IPV6 => true,
        _ => return None,
    };
    let address = |v4: Field, v6: Field| match is_ipv6 {
        false => IpAddr::V4((field::get(outer, v4) as u32).into()),
        true => IpAddr::V6(field::get(outer, v6).into()),
    };
    let in_port = field::get(outer, Field::InPort) as u32;
    let is_gpdu = outer[shape::WORD] & shape::GTPU != 0 && field::get(inner, Field::TunGtpuMsgtype) == G_PDU;
    // Counters of groups and buckets are the host path's, and so are packets that have waited.
    if !is_gpdu
        || field::get(outer, Field::VlanVid) != 0
        || in_port == PortNo::LOCAL.0
        || field::get(outer, Field::Metadata) != 0
        || !trace.groups.is_empty()
    {
        return None;
    }
    let tunnel = Tunnel {
        destination: address(Field::Ipv4Dst, Field::Ipv6Dst),
        teid: field::get(inner, Field::TunnelId) as u32,
    };
    // Fast paths have IPv4 addresses in this form.
    if matches!(tunnel.destination, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
        return None;
    }
    let source = address(Field::Ipv4Src, Field::Ipv6Src);
    let (mut rewrite, port) = rewrite(&trace.steps)?;
    let mut open = Open { outer: trace.consulted.outer, inner: trace.consulted.inner };
    for of in FIXED_OUTER {
        open.asks(of);
    }
    for of in FIXED_INNER {
        open.asks_inner(of);
    }
    open.outer[shape::WORD] &= !shape::GTPU;
    let asks_source = open.asks(Field::Ipv4Src) | open.asks(Field::Ipv6Src);
    let only = Only {
        in_port,
        eth_source: mac(field::get(outer, Field::EthSrc)),
        eth_destination: mac(field::get(outer, Field::EthDst)),
        // Also where the source is written, as an entry cannot look whether it is there already.
        source: (asks_source || rewrite.source.is_some()).then_some(source),
    };
    let asks_version = open.asks_inner(Field::PacketType) | open.asks_inner(Field::EthType);
    if open.outer != [0; WORDS] || open.inner != [0; WORDS] {
        return None;
    }
    rewrite.destination = rewrite.destination.filter(|new| *new != tunnel.destination);
    rewrite.source = rewrite.source.filter(|new| *new != source);
    rewrite.teid = rewrite.teid.filter(|new| *new != tunnel.teid);
    Some((Exact { tunnel, only, rewrite, port }, asks_version))
}

/// Makes a translation hold for the user packets of one tunnel from one sender only, or for packets that are none, though it may have
/// consulted less: so a cache knows each tunnel that it meets, and whether an entry can be made for it.
pub fn separate(outer: &Words, inner: &Words, consulted: &mut Consulted) {
    consulted.outer[shape::WORD] |= shape::GTPU;
    field::cover(&mut consulted.inner, Field::TunGtpuMsgtype);
    if field::get(inner, Field::TunGtpuMsgtype) != G_PDU {
        return;
    }
    let addresses = match field::get(outer, Field::EthType) as u16 {
        ethernet::IPV4 => [Field::Ipv4Src, Field::Ipv4Dst],
        _ => [Field::Ipv6Src, Field::Ipv6Dst],
    };
    let link = [Field::InPort, Field::EthSrc, Field::EthDst, Field::EthType, Field::VlanVid];
    for of in link.into_iter().chain(addresses) {
        field::cover(&mut consulted.outer, of);
    }
    field::cover(&mut consulted.inner, Field::TunnelId);
}

/// Whether the packet inside has the IP version of the address that is replaced, which is then all that an entry looks at.
fn has_version_of(replaced: Option<Inner>, inner: &Words) -> bool {
    let packet_type = field::get(inner, Field::PacketType);
    match replaced {
        Some(Inner::Source(new) | Inner::Destination(new)) => {
            packet_type == if new.is_ipv6() { IPV6 } else { IPV4 }
        }
        None => false,
    }
}

const G_PDU: u128 = gtpu::message_type::G_PDU as u128;
const IPV4: u128 = (PacketType::IPV4.namespace as u128) << 16 | PacketType::IPV4.ns_type as u128;
const IPV6: u128 = (PacketType::IPV6.namespace as u128) << 16 | PacketType::IPV6.ns_type as u128;

/// What there can be inside: IPv4, IPv6, or what is neither.
const INSIDE: [(u128, u16); 3] = [(IPV4, ethernet::IPV4), (IPV6, ethernet::IPV6), (0, 0)];

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
    if *port == PortNo::LOCAL.0 {
        return None;
    }
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
            (Layer::Inner, Field::Ipv4Src) => rewrite.replace(Inner::Source, v4())?,
            (Layer::Inner, Field::Ipv6Src) => rewrite.replace(Inner::Source, v6())?,
            (Layer::Inner, Field::Ipv4Dst) => rewrite.replace(Inner::Destination, v4())?,
            (Layer::Inner, Field::Ipv6Dst) => rewrite.replace(Inner::Destination, v6())?,
            _ => return None,
        }
    }
    Some((rewrite, Some(*port)))
}

impl Rewrite {
    /// Replaces an address inside; `None` if both would be replaced.
    fn replace(&mut self, which: fn(IpAddr) -> Inner, address: Option<IpAddr>) -> Option<()> {
        let new = which(address?);
        if self.inner.is_some_and(|old| std::mem::discriminant(&old) != std::mem::discriminant(&new)) {
            return None;
        }
        self.inner = Some(new);
        Some(())
    }
}
