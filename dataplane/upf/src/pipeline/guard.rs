//! The guard: destinations that UEs must not reach through a data network, which are this machine and the
//! core's networks.
//!
//! Packets to a data network use the machine's routing, which also leads to the machine itself. Without a
//! guard, a UE could send G-PDUs into other UEs' tunnels, PFCP to the UPF, SCTP to the AMF and requests to any
//! NF's SBI. So a packet from a UE is dropped when its destination is an address of any interface of this
//! machine, or in a network that the configuration closes (`upf.closed`). `upf.dnn[].open` lets the UEs of a
//! data network use single services there, such as a name server. The address of a data network's own device
//! counts as an address of this machine too.
//!
//! The UEs of Ethernet sessions share a link with this machine. Their frames are checked by the IP packets
//! inside, not by the addresses of the frames: a system accepts a packet for itself in a frame to all. What
//! is of the link passes: packets to groups and all hosts, and to link-local addresses that are not this
//! machine's. So do resolution and confirmation of this machine's IPv6 addresses (RFC 4861 §7), as ARP does.
//!
//! Addresses of interfaces change while the UPF runs. [`Guard::set_addresses`] takes the new list, and each
//! worker fetches the resulting ranges at the start of its next batch ([`Guard::closed`]). Checking a
//! destination takes two bit tests, by its first octet and by its leading bits, for most packets, and a binary
//! search in a few ranges for the others.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::link::Cidr;
use packet::flow::Flow;
use packet::protocol;
use telemetry::DropReason;

use crate::config::{Config, Service};
use crate::interface::broadcasts;
use crate::interfaces::{Interface, Interfaces};

/// Destinations of the sender's own machine, closed whatever addresses the interfaces have.
const ALWAYS: [&str; 6] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "::/128",
    "::1/128",
    // IPv4 addresses in IPv6 form, which a socket for both IP versions would accept as IPv4.
    "::/96",
    "::ffff:0:0/96",
];
/// Destinations of a link, closed to packets but not to frames; the multicast of one link is in RFC 5771 §4.
const LINK: [&str; 4] = ["169.254.0.0/16", "255.255.255.255/32", "fe80::/10", "224.0.0.0/24"];
/// ICMPv6 types of Neighbor Solicitation and Advertisement.
const NEIGHBOURS: [u8; 2] = [135, 136];
/// Widest scope of IPv6 multicast that stays on a link (RFC 7346).
const LINK_SCOPE: u16 = 2;

/// The closed destinations of one IP version, as ranges in order.
#[derive(Debug, Clone)]
struct Ranges<T> {
    /// One bit for each first octet of an address in a wide range: one with many leading bits.
    first_octets: [u64; 4],
    /// One bit for each hash of the leading bits of an address in another range.
    hints: [u64; HINTS / 64],
    ranges: Vec<(T, T)>,
}

/// Hashes of leading bits.
const HINTS: usize = 4096;
/// Number of leading bits' values from which a range is wide.
const WIDE: u32 = 64;

/// Hash of an address's leading bits: of IPv4 the first 16, of IPv6 the first 32.
#[inline(always)]
fn hint(leading: u32) -> usize {
    (leading.wrapping_mul(0x9E37_79B1) >> 20) as usize % HINTS
}

fn set_bit(bits: &mut [u64], at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

#[inline(always)]
fn bit<const WORDS: usize>(bits: &[u64; WORDS], at: usize) -> bool {
    bits[at / 64] >> (at % 64) & 1 != 0
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { first_octets: [0; 4], hints: [0; HINTS / 64], ranges: Vec::new() }
    }
}

impl<T: Copy + Ord> Ranges<T> {
    /// `bits` is how many leading bits of an address `leading` gives.
    fn new(mut ranges: Vec<(T, T)>, bits: u32, leading: impl Fn(T) -> u32) -> Ranges<T> {
        ranges.sort_unstable();
        let (mut first_octets, mut hints) = ([0; 4], [0; HINTS / 64]);
        for (first, last) in &ranges {
            let (first, last) = (leading(*first), leading(*last));
            if last - first < WIDE {
                for leading in first..=last {
                    set_bit(&mut hints, hint(leading));
                }
            } else {
                for octet in first >> (bits - 8)..=last >> (bits - 8) {
                    set_bit(&mut first_octets, octet as usize);
                }
            }
        }
        // Overlapping ranges are merged, so that the last range that begins at or before an address decides.
        let mut apart: Vec<(T, T)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut().filter(|before| first <= before.1) {
                Some(before) => before.1 = before.1.max(last),
                None => apart.push((first, last)),
            }
        }
        Ranges { first_octets, hints, ranges: apart }
    }

    /// Whether an address with this first octet and these leading bits may be closed.
    #[inline(always)]
    fn may_contain(&self, first_octet: u8, leading: u32) -> bool {
        bit(&self.first_octets, first_octet.into()) | bit(&self.hints, hint(leading))
    }

    fn contains(&self, address: T) -> bool {
        let before = self.ranges.partition_point(|(first, _)| *first <= address);
        before > 0 && address <= self.ranges[before - 1].1
    }
}

/// The closed destinations of both IP versions.
#[derive(Debug, Default)]
struct Destinations {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl Destinations {
    fn new(cidrs: impl IntoIterator<Item = Cidr>) -> Destinations {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for cidr in cidrs {
            match (cidr.network().address(), cidr.prefix()) {
                (IpAddr::V4(network), prefix) => {
                    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                    v4.push((network.to_bits(), network.to_bits() | hosts));
                }
                (IpAddr::V6(network), prefix) => {
                    let hosts = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
                    v6.push((network.to_bits(), network.to_bits() | hosts));
                }
            }
        }
        Destinations {
            v4: Ranges::new(v4, 16, |address| address >> 16),
            v6: Ranges::new(v6, 32, |address| (address >> 96) as u32),
        }
    }

    /// Whether the destination of an IP packet is closed; `None` when it has none.
    #[inline(always)]
    fn of(&self, packet: &[u8]) -> Option<bool> {
        Some(match packet.first()? >> 4 {
            4 => {
                let to: &[u8; 4] = packet.get(16..20)?.first_chunk()?;
                let (first, to) = (to[0], u32::from_be_bytes(*to));
                self.v4.may_contain(first, to >> 16) && self.v4.contains(to)
            }
            _ => {
                let to: &[u8; 16] = packet.get(24..40)?.first_chunk()?;
                let (first, to) = (to[0], u128::from_be_bytes(*to));
                self.v6.may_contain(first, (to >> 96) as u32) && self.v6.contains(to)
            }
        })
    }
}

/// The closed destinations at one moment.
#[derive(Debug, Default)]
pub struct Closed {
    /// Version of the list of addresses from which it was made.
    version: u64,
    to_packets: Destinations,
    to_frames: Destinations,
    /// The open services, by number of the data network's interface.
    open: Arc<[Vec<Service>]>,
    /// UDP ports of the core. A service without a port does not open them.
    core_ports: Arc<[u16]>,
}

impl Closed {
    /// Whether a packet from a UE to the data network of interface `network` must be dropped, and the reason. `ports` are those
    /// of the packet's flow, as a later fragment does not have them.
    #[inline(always)]
    pub fn stops(
        &self,
        network: usize,
        packet: &[u8],
        ports: impl FnOnce() -> Option<(u16, u16)>,
    ) -> Option<DropReason> {
        if self.to_packets.of(packet)? { self.stops_unless_open(network, packet, ports()) } else { None }
    }

    /// The same for a packet inside a frame.
    pub fn stops_in_frame(&self, network: usize, packet: &[u8]) -> Option<DropReason> {
        if self.to_frames.of(packet)? && !is_neighbours(packet) {
            self.stops_unless_open(network, packet, None)
        } else {
            None
        }
    }

    #[cold]
    fn stops_unless_open(
        &self,
        network: usize,
        packet: &[u8],
        ports: Option<(u16, u16)>,
    ) -> Option<DropReason> {
        let Ok(flow) = Flow::parse(packet) else { return Some(DropReason::IpMalformed) };
        if flow.destination.is_multicast() {
            return Some(DropReason::LinkLocal);
        }
        let port = flow.ports.or(ports).map(|(_, to)| to);
        let opens =
            |service: &Service| service.opens(flow.destination, flow.protocol, port, &self.core_ports);
        let open = self.open.get(network).is_some_and(|services| services.iter().any(opens));
        (!open).then_some(DropReason::CoreInterface)
    }

    /// Whether an address is closed to UEs.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.to_packets.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.to_packets.v6.contains(address.to_bits()),
        }
    }
}

/// Whether a packet is a Neighbor Solicitation or Advertisement. A receiver ignores those that are extended,
/// fragmented or not of its link (RFC 4861 §7.1, RFC 6980 §5).
fn is_neighbours(packet: &[u8]) -> bool {
    const HOP_LIMIT: u8 = 255;
    const TYPE: usize = 40;
    packet[0] >> 4 == 6
        && packet[6..8] == [protocol::ICMPV6, HOP_LIMIT]
        && packet.get(TYPE).is_some_and(|kind| NEIGHBOURS.contains(kind))
}

/// Keeps the closed destinations up to date; see the module.
#[derive(Debug)]
pub struct Guard {
    /// Addresses and networks of the configuration.
    configured: Vec<Cidr>,
    open: Arc<[Vec<Service>]>,
    core_ports: Arc<[u16]>,
    version: AtomicU64,
    current: Mutex<Arc<Closed>>,
}

impl Guard {
    /// A guard for the addresses of this machine, `addresses`, and those that `config` closes.
    pub fn new(config: &Config, addresses: impl IntoIterator<Item = IpAddr>) -> Guard {
        let guard = Guard {
            configured: config.closed_networks().collect(),
            open: Interfaces::of(config).iter().map(services).collect(),
            core_ports: config.core_ports().into(),
            version: AtomicU64::new(0),
            current: Mutex::default(),
        };
        guard.set_addresses(addresses.into_iter().map(Cidr::host));
        guard
    }

    /// Sets the addresses of this machine, with the prefixes of their networks.
    pub fn set_addresses(&self, addresses: impl IntoIterator<Item = Cidr>) {
        let constant = |texts: &'static [&str]| texts.iter().filter_map(|text| text.parse::<Cidr>().ok());
        let mut cidrs: Vec<Cidr> = constant(&ALWAYS).chain(self.configured.iter().copied()).collect();
        let own: Vec<Cidr> = addresses.into_iter().collect();
        cidrs.extend(own.iter().map(|own| Cidr::host(own.address())));
        cidrs.extend(own.iter().filter_map(anycast));
        let to_frames = Destinations::new(cidrs.iter().copied());
        cidrs.extend(
            constant(&LINK).chain(own.iter().flat_map(broadcasts).map(|address| Cidr::host(address.into()))),
        );
        for (flags, scope) in (0..16).flat_map(|flags| (0..=LINK_SCOPE).map(move |scope| (flags, scope))) {
            let group = Ipv6Addr::new(0xFF00 | flags << 4 | scope, 0, 0, 0, 0, 0, 0, 0);
            cidrs.extend(Cidr::new(group.into(), 16));
        }
        let mut current = self.lock();
        let version = current.version + 1;
        *current = Arc::new(Closed {
            version,
            to_packets: Destinations::new(cidrs),
            to_frames,
            open: Arc::clone(&self.open),
            core_ports: Arc::clone(&self.core_ports),
        });
        self.version.store(version, Ordering::Release);
    }

    /// The present closed destinations, if they differ from `known`.
    #[inline(always)]
    pub fn closed(&self, known: &Closed) -> Option<Arc<Closed>> {
        let changed = self.version.load(Ordering::Acquire) != known.version;
        if changed { Some(Arc::clone(&self.lock())) } else { None }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Closed>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open services of an interface's data network.
fn services(interface: &Interface) -> Vec<Service> {
    interface.dnn.as_ref().map_or_else(Vec::new, |dnn| dnn.open.clone())
}

/// The anycast address of routers in the IPv6 network of an interface's address (RFC 4291 §2.6.1).
fn anycast(own: &Cidr) -> Option<Cidr> {
    let network = own.network().address();
    (network.is_ipv6() && (1..=126).contains(&own.prefix())).then(|| Cidr::host(network))
}

#[cfg(test)]
mod tests {
    use packet::gtpu;

    use super::*;
    use crate::n4::PFCP_PORT;

    fn config(more: &str, dnn: &str) -> Config {
        let text = format!(
            r#"{{"pfcp": "192.0.2.7:8805", "gtpu": "192.0.2.8:2152" {more}, "dnn": [
                 {{"name": "internet", "tun": "gw0", "ue_pool": {{"ipv4": "10.45.0.0/16"}} {dnn}}},
                 {{"name": "ims", "tun": "gw1", "ue_pool": {{"ipv4": "10.46.0.0/16"}}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn udp(to: &str, port: u16) -> Vec<u8> {
        let to = address(to);
        let from = if to.is_ipv4() { address("10.45.0.2") } else { address("2001:db8::2") };
        let datagram = packet::transport::build_udp((from, 4000), (to, port), b"x").unwrap();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => packet::ipv4::Header::new(from, to, 17).build(&datagram),
            (IpAddr::V6(from), IpAddr::V6(to)) => packet::ipv6::Header::new(from, to, 17).build(&datagram),
            _ => unreachable!("one family"),
        }
        .unwrap()
    }

    fn stopped(guard: &Guard, to: &str, port: u16) -> bool {
        let closed = guard.closed(&Closed::default()).unwrap();
        closed.stops(1, &udp(to, port), || None).is_some()
    }

    /// The bits exclude no address of a range, wide or narrow, and nearly all others.
    #[test]
    fn bits_of_addresses_exclude_only_what_is_not_closed() {
        for cidr in [
            "0.0.0.0/0",
            "0.0.0.0/1",
            "10.0.0.0/8",
            "10.0.0.0/10",
            "10.64.0.0/11",
            "10.96.0.0/12",
            "172.16.255.0/24",
            "192.0.2.7/32",
            "255.255.255.255/32",
            "::/0",
            "8000::/1",
            "fe80::/10",
            "2001:db8::/26",
            "2001:db8::/27",
            "2001:db8:5::/48",
            "::ffff:0:0/96",
            "2001:db8::1/128",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
        ] {
            let cidr: Cidr = cidr.parse().unwrap();
            let closed = Destinations::new([cidr]);
            let (network, prefix) = (cidr.network().address(), u32::from(cidr.prefix()));
            let may = |to: IpAddr| match to {
                IpAddr::V4(to) => closed.v4.may_contain(to.octets()[0], to.to_bits() >> 16),
                IpAddr::V6(to) => closed.v6.may_contain(to.octets()[0], (to.to_bits() >> 96) as u32),
            };
            // Within the range: its ends, and addresses spread over it.
            let mut random = 1u128;
            for n in 0..2000u32 {
                random = random.wrapping_mul(0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645).wrapping_add(1);
                let host = match n {
                    0 => 0,
                    1 => u128::MAX,
                    _ => random,
                };
                let inside: IpAddr = match network {
                    IpAddr::V4(network) => {
                        let hosts = u32::MAX.checked_shr(prefix).unwrap_or(0);
                        std::net::Ipv4Addr::from_bits(network.to_bits() | (host >> 64) as u32 & hosts).into()
                    }
                    IpAddr::V6(network) => {
                        let hosts = u128::MAX.checked_shr(prefix).unwrap_or(0);
                        Ipv6Addr::from_bits(network.to_bits() | host & hosts).into()
                    }
                };
                assert!(may(inside), "{inside} is in {cidr}");
            }
            let elsewhere = ["8.8.8.8", "203.0.113.9", "2606:4700::1", "2a00:1450::5"].map(address);
            let excluded = elsewhere.iter().filter(|to| !may(**to)).count();
            assert!(prefix < 2 || excluded == 4, "{cidr}: {excluded}");
        }
    }

    #[test]
    fn this_machine_and_closed_networks_are_out_of_reach() {
        let guard = Guard::new(&config(r#", "closed": ["198.51.100.0/24", "2001:db8:5::/48"]"#, ""), []);
        for (to, expected) in [
            ("192.0.2.7", true),
            ("192.0.2.8", true),
            ("192.0.2.9", false),
            ("198.51.99.255", false),
            ("198.51.100.0", true),
            ("198.51.100.255", true),
            ("198.51.101.0", false),
            ("127.0.0.1", true),
            ("127.255.255.255", true),
            ("0.0.0.0", true),
            ("169.254.1.1", true),
            ("255.255.255.255", true),
            ("224.0.0.251", true),
            ("239.1.1.1", false),
            ("8.8.8.8", false),
            ("10.45.0.9", false),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("fe80::1", true),
            ("ff02::1", true),
            ("ff32::1", true),
            ("ff05::1", false),
            ("2001:db8:5::1", true),
            ("2001:db8:6::1", false),
        ] {
            assert_eq!(stopped(&guard, to, 53), expected, "{to}");
        }
    }

    /// Frames reach their link, but no address of this machine or of the core.
    #[test]
    fn frames_reach_groups_and_neighbours_only() {
        let guard = Guard::new(&config(r#", "closed": ["198.51.100.0/24"]"#, ""), []);
        let own = ["10.200.0.1/24", "169.254.7.7/16", "fe80::7/64", "2001:db8:7::5/64"];
        guard.set_addresses(own.map(|text| text.parse().unwrap()));
        let closed = guard.closed(&Closed::default()).unwrap();
        for (to, expected) in [
            ("10.200.0.1", true),
            ("192.0.2.7", true),
            ("198.51.100.9", true),
            ("127.0.0.1", true),
            ("169.254.7.7", true),
            ("fe80::7", true),
            ("fe80::", true),
            ("2001:db8:7::5", true),
            ("2001:db8:7::", true),
            ("::ffff:10.200.0.1", true),
            ("169.254.1.1", false),
            ("fe80::8", false),
            ("10.200.0.2", false),
            ("10.200.0.255", false),
            ("255.255.255.255", false),
            ("224.0.0.251", false),
            ("ff02::fb", false),
        ] {
            let stops = closed.stops_in_frame(1, &udp(to, PFCP_PORT));
            assert_eq!(stops, expected.then_some(DropReason::CoreInterface), "{to}");
        }
        for (kind, hop_limit, expected) in
            [(134, 255, true), (135, 255, false), (135, 254, true), (136, 255, false), (137, 255, true)]
        {
            let mut packet = udp("fe80::7", 9);
            (packet[6], packet[7], packet[40]) = (protocol::ICMPV6, hop_limit, kind);
            assert_eq!(closed.stops_in_frame(1, &packet).is_some(), expected, "{kind} {hop_limit}");
        }
    }

    #[test]
    fn addresses_that_come_and_go_are_followed() {
        let guard = Guard::new(&config("", ""), []);
        let before = guard.closed(&Closed::default()).unwrap();
        assert!(!stopped(&guard, "203.0.113.5", 22) && guard.closed(&before).is_none());
        guard.set_addresses(["203.0.113.5/24", "2001:db8:7::5/64"].map(|text| text.parse().unwrap()));
        assert!(guard.closed(&before).is_some());
        for to in
            ["203.0.113.5", "203.0.113.255", "203.0.113.0", "2001:db8:7::5", "2001:db8:7::", "192.0.2.8"]
        {
            assert!(stopped(&guard, to, 22), "{to}");
        }
        for to in ["203.0.113.6", "2001:db8:7::6"] {
            assert!(!stopped(&guard, to, 22), "{to}");
        }
        guard.set_addresses([]);
        assert!(!stopped(&guard, "203.0.113.5", 22));
    }

    #[test]
    fn services_are_open_to_one_data_network_and_the_core_stays_closed() {
        let open = r#", "open": [{"address": "10.45.0.1", "port": 53}, {"address": "192.0.2.0/24"},
                       {"address": "10.45.0.1", "protocol": "icmp"}]"#;
        let guard = Guard::new(&config("", open), [address("10.45.0.1"), address("192.0.2.9")]);
        let closed = guard.closed(&Closed::default()).unwrap();
        for (to, port, expected) in [
            ("10.45.0.1", 53, false),
            ("10.45.0.1", 80, true),
            ("192.0.2.9", 80, false),
            ("192.0.2.9", gtpu::PORT, true),
            ("192.0.2.7", PFCP_PORT, true),
            ("127.0.0.1", 53, true),
        ] {
            assert_eq!(closed.stops(1, &udp(to, port), || None).is_some(), expected, "{to} {port}");
            // The other data network does not have these services open.
            assert!(closed.stops(2, &udp(to, port), || None).is_some());
        }
        let mut ping = udp("10.45.0.1", 80);
        ping[9] = protocol::ICMP;
        assert_eq!(closed.stops(1, &ping, || None), None);
        // A later fragment has the ports of its first fragment.
        let mut fragment = udp("10.45.0.1", 80);
        fragment[7] = 9;
        assert!(closed.stops(1, &fragment, || None).is_some());
        assert_eq!(closed.stops(1, &fragment, || Some((4000, 53))), None);
    }
}
