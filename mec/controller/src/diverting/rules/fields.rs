//! Fields of matches, for either IP version.

use std::net::IpAddr;

use openflow::{Oxm, PacketType};

use super::{GTPU_PORT, UDP};
use crate::diverting::model::Flow;

/// A user's IPv6 prefix (TS 23.501 §5.8.2.2.3): the user chooses the other bits.
const USER_PREFIX: u32 = 64;

pub(super) fn ethertype(address: IpAddr) -> Oxm {
    Oxm::eth_type(if address.is_ipv4() { 0x0800 } else { 0x86dd })
}

pub(super) fn packet_type(address: IpAddr) -> Oxm {
    Oxm::packet_type(if address.is_ipv4() { PacketType::IPV4 } else { PacketType::IPV6 })
}

pub(super) fn ip_src(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::ipv4_src(address),
        IpAddr::V6(address) => Oxm::ipv6_src(address),
    }
}

pub(super) fn ip_dst(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::ipv4_dst(address),
        IpAddr::V6(address) => Oxm::ipv6_dst(address),
    }
}

pub(super) fn to_ip(address: IpAddr) -> Vec<Oxm> {
    vec![ethertype(address), ip_dst(address)]
}

/// From a user: an IPv4 address, or an IPv6 prefix.
pub(super) fn from_user(ue: IpAddr) -> Oxm {
    of_user(ip_src(ue))
}

/// To a user: an IPv4 address, or an IPv6 prefix.
pub(super) fn to_user(ue: IpAddr) -> Oxm {
    of_user(ip_dst(ue))
}

fn of_user(oxm: Oxm) -> Oxm {
    let is_ipv6 = oxm.mask() > u128::from(u32::MAX);
    if is_ipv6 { oxm.prefix(USER_PREFIX).expect("an IPv6 address is longer than its prefix") } else { oxm }
}

pub(super) fn tun_src(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::tun_ipv4_src(address),
        IpAddr::V6(address) => Oxm::tun_ipv6_src(address),
    }
}

pub(super) fn tun_dst(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::tun_ipv4_dst(address),
        IpAddr::V6(address) => Oxm::tun_ipv6_dst(address),
    }
}

/// The outer header of tunnelled packets.
pub(super) fn tunnelled(source: Option<IpAddr>, destination: Option<IpAddr>) -> Vec<Oxm> {
    let any = source.or(destination);
    let mut fields: Vec<Oxm> = any.map(ethertype).into_iter().collect();
    fields.extend(source.map(ip_src));
    fields.extend(destination.map(ip_dst));
    fields.extend([Oxm::ip_proto(UDP), Oxm::udp_dst(GTPU_PORT)]);
    fields
}

/// The inner header of an application's or a pair's packets, as the user sends them.
pub(super) fn inner_flow(ue: IpAddr, flow: Flow) -> Vec<Oxm> {
    let mut fields = vec![packet_type(ue), from_user(ue), ip_dst(flow.server), Oxm::ip_proto(flow.protocol)];
    fields.extend(flow.port.map(|port| match flow.protocol {
        6 => Oxm::tcp_dst(port),
        _ => Oxm::udp_dst(port),
    }));
    fields
}

/// The header of an application's packets as the user gets them, on SGi or N6.
pub(super) fn outer_answer(ue: IpAddr, flow: Flow) -> Vec<Oxm> {
    let mut fields = vec![ethertype(ue), to_user(ue), ip_src(flow.server), Oxm::ip_proto(flow.protocol)];
    fields.extend(flow.port.map(|port| match flow.protocol {
        6 => Oxm::tcp_src(port),
        _ => Oxm::udp_src(port),
    }));
    fields
}
