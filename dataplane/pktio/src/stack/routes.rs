//! Which way packets to an address go: the longest prefix decides.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;
use net::link::Cidr;

/// An address as a number. On its way through the stages of a look-up it stays in registers, as an [`IpAddr`] does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    V4(u32),
    V6(u128),
}

impl From<IpAddr> for Number {
    #[inline(always)]
    fn from(address: IpAddr) -> Number {
        match address {
            IpAddr::V4(address) => Number::V4(address.to_bits()),
            IpAddr::V6(address) => Number::V6(address.to_bits()),
        }
    }
}

impl From<Number> for IpAddr {
    #[inline(always)]
    fn from(number: Number) -> IpAddr {
        match number {
            Number::V4(number) => Ipv4Addr::from_bits(number).into(),
            Number::V6(number) => Ipv6Addr::from_bits(number).into(),
        }
    }
}

impl Number {
    /// Where an IP packet goes, if its header is there.
    #[inline(always)]
    pub(super) fn destination(packet: &[u8]) -> Option<Number> {
        match packet.first()? >> 4 {
            4 => Some(Number::V4(u32::from_be_bytes(*packet.get(16..)?.first_chunk()?))),
            6 => Some(Number::V6(u128::from_be_bytes(*packet.get(24..)?.first_chunk()?))),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn is_ipv4(self) -> bool {
        matches!(self, Number::V4(_))
    }
}

/// Neighbours of an interface, by address. There is a look-up for each packet to a data network, so the two families have
/// maps of their own: an address as a number costs one multiplication to hash.
#[derive(Clone, Debug)]
pub(super) struct Hosts<T> {
    ipv4: HashMap<u32, T, RandomState>,
    ipv6: HashMap<u128, T, RandomState>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Hosts<T> {
        Hosts { ipv4: HashMap::default(), ipv6: HashMap::default() }
    }
}

impl<T> Hosts<T> {
    pub(super) fn len(&self) -> usize {
        self.ipv4.len() + self.ipv6.len()
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.get(address).is_some()
    }

    #[inline(always)]
    pub(super) fn get(&self, address: impl Into<Number>) -> Option<&T> {
        match address.into() {
            Number::V4(address) => self.ipv4.get(&address),
            Number::V6(address) => self.ipv6.get(&address),
        }
    }

    pub(super) fn get_mut(&mut self, address: IpAddr) -> Option<&mut T> {
        match address.into() {
            Number::V4(address) => self.ipv4.get_mut(&address),
            Number::V6(address) => self.ipv6.get_mut(&address),
        }
    }

    /// Returns what stood for the address before.
    pub(super) fn insert(&mut self, address: IpAddr, host: T) -> Option<T> {
        match address.into() {
            Number::V4(address) => self.ipv4.insert(address, host),
            Number::V6(address) => self.ipv6.insert(address, host),
        }
    }

    /// Keeps the hosts for which `keep` says so.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(IpAddr, &mut T) -> bool) {
        self.ipv4.retain(|address, host| keep(Number::V4(*address).into(), host));
        self.ipv6.retain(|address, host| keep(Number::V6(*address).into(), host));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &T)> {
        let ipv4 = self.ipv4.iter().map(|(address, host)| (Number::V4(*address).into(), host));
        ipv4.chain(self.ipv6.iter().map(|(address, host)| (Number::V6(*address).into(), host)))
    }
}

impl<T> FromIterator<(IpAddr, T)> for Hosts<T> {
    fn from_iter<I: IntoIterator<Item = (IpAddr, T)>>(hosts: I) -> Hosts<T> {
        let mut all = Hosts::default();
        hosts.into_iter().for_each(|(address, host)| drop(all.insert(address, host)));
        all
    }
}

/// Where packets to some destinations go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Via {
    /// The destination itself is on the link.
    Link,
    /// To a router on the link.
    Gateway(IpAddr),
    /// To an address of the interface's own, or to a group.
    Own,
    /// Not through this interface: through another one, or nowhere.
    Elsewhere,
}

/// A route to the destinations of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) network: Cidr,
    pub(super) rank: Rank,
    pub(super) via: Via,
}

/// Which of two routes to a destination counts: the lower one, and of equal prefixes the one with the lower metric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// Of our own addresses: however short its prefix is, no other route to its destinations counts.
    Local,
    /// An ordinary route, with its metric.
    Metric(u32),
}

/// The routes of an interface, in ranges of addresses, each of which ends where the next one begins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Routes {
    ipv4: Ranges<u32>,
    ipv6: Ranges<u128>,
    /// Those to which ranges refer.
    gateways: Vec<IpAddr>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Ranges<K> {
    /// First addresses, in order.
    first: Vec<K>,
    ways: Vec<Way>,
}

/// A [`Via`] with the number of the gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Link,
    Gateway(u32),
    Own,
    Elsewhere,
}

/// The ranges in which addresses were found last: packets of one vector tend to go the same way. Only for as long as the
/// routes do not change.
pub(super) struct Near {
    ipv4: (u32, u32, Way),
    ipv6: (u128, u128, Way),
}

impl Default for Near {
    /// No range.
    fn default() -> Near {
        Near { ipv4: (1, 0, Way::Elsewhere), ipv6: (1, 0, Way::Elsewhere) }
    }
}

/// What became of looking a next hop up.
pub(super) enum Found<'h, T> {
    /// A neighbour.
    Host(&'h T),
    /// A neighbour about which nothing is known.
    Unknown,
    /// The way is none of this interface.
    Elsewhere,
}

impl<K> Default for Ranges<K> {
    fn default() -> Ranges<K> {
        Ranges { first: Vec::new(), ways: Vec::new() }
    }
}

impl<K: Ord + Copy> Ranges<K> {
    /// The way to an address: that of `near`, if it is in this range, else that of its own range, which becomes `near`.
    /// `most` is the last address.
    #[inline(always)]
    fn get(&self, address: K, near: &mut (K, K, Way), most: K) -> Way {
        if !(near.0 <= address && address < near.1) {
            *near = self.find(address, most);
        }
        near.2
    }

    /// The range of an address: its first address, that of the next range, and the way. The last range is cut short at the
    /// last address, which is not in it.
    fn find(&self, address: K, most: K) -> (K, K, Way) {
        let next = self.first.partition_point(|first| *first <= address);
        let at = next.wrapping_sub(1);
        match (self.first.get(at), self.ways.get(at)) {
            (Some(first), Some(way)) => (*first, self.first.get(next).copied().unwrap_or(most), *way),
            _ => (address, address, Way::Elsewhere),
        }
    }
}

impl Routes {
    /// The order of `routes` does not matter. Groups and the broadcast address are never reached through them.
    pub(super) fn new(routes: impl IntoIterator<Item = Route>) -> Routes {
        let groups = [
            (IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4, Via::Own),
            (IpAddr::V4(Ipv4Addr::BROADCAST), 32, Via::Elsewhere),
            (IpAddr::V6(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0)), 8, Via::Own),
        ];
        let groups = groups.into_iter().filter_map(|(address, prefix, via)| {
            Some(Route { network: Cidr::new(address, prefix)?, rank: Rank::Local, via })
        });
        let (ipv4, ipv6): (Vec<Block>, Vec<Block>) =
            groups.chain(routes).map(Block::of).partition(|block| block.ipv4);
        let mut gateways = Vec::new();
        let mut way = |via| match via {
            Via::Link => Way::Link,
            Via::Gateway(gateway) => {
                let known = gateways.iter().position(|known| *known == gateway);
                if known.is_none() {
                    gateways.push(gateway);
                }
                Way::Gateway(known.unwrap_or(gateways.len() - 1) as u32)
            }
            Via::Own => Way::Own,
            Via::Elsewhere => Way::Elsewhere,
        };
        // What begins behind the last IPv4 address is not one.
        let ipv4 =
            ranges(ipv4).into_iter().filter_map(|(first, via)| Some((u32::try_from(first).ok()?, way(via))));
        let (first, ways) = ipv4.unzip();
        let ipv4 = Ranges { first, ways };
        let (first, ways) = ranges(ipv6).into_iter().map(|(first, via)| (first, way(via))).unzip();
        let ipv6 = Ranges { first, ways };
        Routes { ipv4, ipv6, gateways }
    }

    #[inline(always)]
    fn way(&self, to: Number, near: &mut Near) -> Way {
        match to {
            Number::V4(to) => self.ipv4.get(to, &mut near.ipv4, u32::MAX),
            Number::V6(to) => self.ipv6.get(to, &mut near.ipv6, u128::MAX),
        }
    }

    /// The way to an address.
    pub(super) fn via(&self, to: IpAddr) -> Via {
        match self.way(to.into(), &mut Near::default()) {
            Way::Link => Via::Link,
            Way::Gateway(number) => {
                self.gateways.get(number as usize).copied().map_or(Via::Elsewhere, Via::Gateway)
            }
            Way::Own => Via::Own,
            Way::Elsewhere => Via::Elsewhere,
        }
    }

    /// Whether an address is one of the interface's own or a group's.
    #[inline(always)]
    pub(super) fn is_own(&self, to: Number, near: &mut Near) -> bool {
        self.way(to, near) == Way::Own
    }

    /// The neighbour among `hosts` to which packets to an address go.
    #[inline(always)]
    pub(super) fn find<'h, T>(&self, hosts: &'h Hosts<T>, to: Number, near: &mut Near) -> Found<'h, T> {
        let host = match self.way(to, near) {
            Way::Link => hosts.get(to),
            Way::Gateway(number) => {
                self.gateways.get(number as usize).and_then(|gateway| hosts.get(*gateway))
            }
            Way::Own | Way::Elsewhere => return Found::Elsewhere,
        };
        host.map_or(Found::Unknown, Found::Host)
    }
}

/// The addresses of a route's prefix.
#[derive(Clone, Copy)]
struct Block {
    ipv4: bool,
    first: u128,
    last: u128,
    rank: Rank,
    via: Via,
}

impl Block {
    fn of(route: Route) -> Block {
        let Route { network, rank, via } = route;
        let (first, bits) = match network.network().address() {
            IpAddr::V4(first) => (u128::from(first.to_bits()), 32),
            IpAddr::V6(first) => (first.to_bits(), 128),
        };
        let others = u128::MAX.checked_shr(128 - (bits - u32::from(network.prefix()))).unwrap_or(0);
        Block { ipv4: bits == 32, first, last: first | others, rank, via }
    }
}

/// Ranges over all addresses of a family. Two prefixes are apart, or one contains the other.
fn ranges(mut blocks: Vec<Block>) -> Vec<(u128, Via)> {
    // The outer ones before those within them, and of equal ones that which counts.
    blocks.sort_by_key(|block| (block.first, Reverse(block.last), block.rank));
    blocks.dedup_by_key(|block| (block.first, block.last));
    let mut ranges = vec![(0, Via::Elsewhere)];
    // Prefixes around the present address, the outermost first.
    let mut around: Vec<Block> = Vec::new();
    for block in blocks {
        leave(&mut ranges, &mut around, |inner| inner.last < block.first);
        if around.last().is_none_or(|outer| outer.rank != Rank::Local) {
            begin(&mut ranges, block.first, block.via);
            around.push(block);
        }
    }
    leave(&mut ranges, &mut around, |_| true);
    ranges
}

/// Ends the innermost prefixes for which `ends` says so.
fn leave(ranges: &mut Vec<(u128, Via)>, around: &mut Vec<Block>, ends: impl Fn(&Block) -> bool) {
    while let Some(inner) = around.pop_if(|inner| ends(inner)) {
        let via = around.last().map_or(Via::Elsewhere, |outer| outer.via);
        if let Some(next) = inner.last.checked_add(1) {
            begin(ranges, next, via);
        }
    }
}

fn begin(ranges: &mut Vec<(u128, Via)>, first: u128, via: Via) {
    match ranges.last_mut() {
        Some(last) if last.0 == first => last.1 = via,
        Some(last) if last.1 == via => {}
        _ => ranges.push((first, via)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(network: &str, rank: Rank, gateway: u8) -> Route {
        let network: Cidr = network.parse().unwrap();
        let via = match gateway {
            0 => Via::Link,
            254 => Via::Own,
            255 => Via::Elsewhere,
            n => Via::Gateway(IpAddr::from([10, 0, 0, n])),
        };
        Route { network, rank, via }
    }

    /// What the ranges stand for, one route after the other.
    fn linear(routes: &[Route], to: IpAddr) -> Via {
        let groups = [
            route("224.0.0.0/4", Rank::Local, 254),
            route("255.255.255.255/32", Rank::Local, 255),
            route("ff00::/8", Rank::Local, 254),
        ];
        let covering = || groups.iter().chain(routes).filter(|route| route.network.contains(to));
        let local = covering().filter(|route| route.rank == Rank::Local);
        let best = local
            .min_by_key(|route| route.network.prefix())
            .or_else(|| covering().min_by_key(|route| (Reverse(route.network.prefix()), route.rank)));
        best.map_or(Via::Elsewhere, |route| route.via)
    }

    #[test]
    fn ranges_are_what_the_routes_say() {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for round in 0..300 {
            let mut routes: Vec<Route> = Vec::new();
            for n in 0..random(40) {
                // Few bits differ, so that prefixes contain each other and coincide.
                let (bits, prefix) = (random(256) as u8, random(33) as u8);
                let octets = [bits & 0xE0, bits, bits << 3, bits << 5];
                let (address, prefix): (IpAddr, u8) = if random(2) == 0 {
                    (octets.into(), prefix)
                } else {
                    let mut long = [0u8; 16];
                    long[..4].copy_from_slice(&octets);
                    long[15] = bits;
                    (long.into(), (random(129)) as u8)
                };
                let rank = match random(6) {
                    0 => Rank::Local,
                    // No two are equal: which of these counts is not said.
                    _ => Rank::Metric(random(3) as u32 * 100 + n as u32),
                };
                let via = if rank == Rank::Local {
                    Via::Elsewhere
                } else {
                    Via::Gateway([10, 0, 0, n as u8].into())
                };
                let network =
                    Cidr::new(address, prefix.min(if address.is_ipv4() { 32 } else { 128 })).unwrap();
                routes.push(Route { network: network.network(), rank, via });
            }
            let table = Routes::new(routes.iter().copied());
            let edges = routes.iter().flat_map(|route| {
                let block = Block::of(*route);
                [block.first.wrapping_sub(1), block.first, block.last, block.last.wrapping_add(1)]
                    .map(|at| (block.ipv4, at))
            });
            let mut near = Near::default();
            for (ipv4, at) in edges.chain([(true, 0), (true, u128::MAX), (false, 0), (false, u128::MAX)]) {
                let to = if ipv4 { IpAddr::V4((at as u32).into()) } else { IpAddr::V6(at.into()) };
                assert_eq!(table.via(to), linear(&routes, to), "{round}: {to} of {routes:?}");
                // From wherever the last address was.
                assert_eq!(
                    table.way(to.into(), &mut near),
                    table.way(to.into(), &mut Near::default()),
                    "{round}: {to}"
                );
            }
        }
    }

    #[test]
    fn the_longest_prefix_the_lowest_metric_and_our_own_addresses_decide() {
        let routes = Routes::new([
            route("0.0.0.0/0", Rank::Metric(100), 9),
            route("0.0.0.0/0", Rank::Metric(10), 1),
            route("10.0.0.0/24", Rank::Metric(0), 0),
            route("10.0.0.1/32", Rank::Local, 254),
            route("10.1.0.0/16", Rank::Metric(0), 255),
            route("10.1.9.0/24", Rank::Metric(0), 2),
            route("127.0.0.0/8", Rank::Local, 255),
            route("127.5.0.0/16", Rank::Metric(0), 3),
            route("2001:db8::/32", Rank::Metric(0), 0),
        ]);
        let gateway = |n: u8| Via::Gateway([10, 0, 0, n].into());
        for (to, expected) in [
            ("0.0.0.0", gateway(1)),
            ("9.255.255.255", gateway(1)),
            ("10.0.0.0", Via::Link),
            ("10.0.0.1", Via::Own),
            ("10.0.0.2", Via::Link),
            ("10.0.1.0", gateway(1)),
            ("10.1.8.255", Via::Elsewhere),
            ("10.1.9.77", gateway(2)),
            ("10.1.10.0", Via::Elsewhere),
            ("127.5.0.1", Via::Elsewhere),
            ("223.255.255.255", gateway(1)),
            ("224.0.0.1", Via::Own),
            ("240.0.0.1", gateway(1)),
            ("255.255.255.255", Via::Elsewhere),
            ("2001:db8:ffff::1", Via::Link),
            ("2001:db9::", Via::Elsewhere),
            ("::ffff:10.0.0.2", Via::Elsewhere),
            ("ff02::1", Via::Own),
        ] {
            assert_eq!(routes.via(to.parse().unwrap()), expected, "{to}");
        }
        assert_eq!(Routes::default().via([10, 0, 0, 1].into()), Via::Elsewhere);
        assert_eq!(Routes::new([]).via([10, 0, 0, 1].into()), Via::Elsewhere);
    }
}
