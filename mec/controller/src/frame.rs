//! Frames that the controller sends and reads itself: ARP, neighbour discovery, GTP-U Echo.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use openflow::MacAddr;
use packet::gtpu::{self, Signalling};
use packet::transport::Udp;
use packet::{checksum, ethernet, ipv4, ipv6, protocol, transport};

/// All stations.
pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
/// The port of GTP-U (TS 29.281 §4.4.2).
pub const GTPU_PORT: u16 = 2152;

const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Octets of VLAN tags: there are two at most, others are not read.
const TAGS: usize = 8;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Solicited, and override what is in the cache (RFC 4861 §4.4).
const SOLICITED_OVERRIDE: u8 = 0x60;

/// A station: its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    /// Link-layer address.
    pub mac: MacAddr,
    /// Network address.
    pub ip: IpAddr,
}

/// What a frame about neighbours says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// The sender asks who has an address.
    Asked {
        /// Who asks.
        by: Station,
        /// The address.
        target: IpAddr,
    },
    /// A station says where an address is.
    Told(Station),
}

/// Asks for the link-layer address of `target`. The unspecified address as `from.ip` makes it a probe, which nobody learns from
/// (RFC 5227 §2.1.1).
pub fn ask(from: Station, target: IpAddr) -> Vec<u8> {
    match (from.ip, target) {
        (IpAddr::V4(ip), IpAddr::V4(target)) => ethernet::build(
            BROADCAST.0,
            from.mac.0,
            None,
            ethernet::ARP,
            &arp(REQUEST, from.mac, ip, MacAddr([0; 6]), target),
        ),
        (ip, IpAddr::V6(target)) => {
            let ip = match ip {
                IpAddr::V6(ip) => ip,
                IpAddr::V4(_) => Ipv6Addr::UNSPECIFIED,
            };
            // RFC 4291 §2.7.1: the solicited-node address, and its multicast address.
            let low = target.octets();
            let group = Ipv6Addr::new(
                0xff02,
                0,
                0,
                0,
                0,
                1,
                0xff00 | u16::from(low[13]),
                u16::from_be_bytes([low[14], low[15]]),
            );
            let to = MacAddr([0x33, 0x33, 0xff, low[13], low[14], low[15]]);
            // An unspecified sender has no option with its link-layer address (RFC 4861 §4.3).
            let option = (!ip.is_unspecified()).then_some((OPTION_SOURCE, from.mac));
            discovery(SOLICITATION, 0, target, option, (from.mac, ip), (to, group))
        }
        // Answered by nobody, as there is no such neighbour.
        (IpAddr::V6(_), IpAddr::V4(target)) => {
            ask(Station { mac: from.mac, ip: Ipv4Addr::UNSPECIFIED.into() }, target.into())
        }
    }
}

/// Says to `to` where an address is; to everybody if `to` is `None`.
pub fn tell(station: Station, to: Option<Station>) -> Vec<u8> {
    match station.ip {
        IpAddr::V4(ip) => {
            let (to_mac, to_ip) = match to {
                Some(Station { mac, ip: IpAddr::V4(to_ip) }) => (mac, to_ip),
                _ => (BROADCAST, ip),
            };
            ethernet::build(
                to_mac.0,
                station.mac.0,
                None,
                ethernet::ARP,
                &arp(REPLY, station.mac, ip, to_mac, to_ip),
            )
        }
        IpAddr::V6(ip) => {
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let (to, flags) = match to {
                Some(Station { mac, ip: IpAddr::V6(to_ip) }) if !to_ip.is_unspecified() => {
                    ((mac, to_ip), SOLICITED_OVERRIDE)
                }
                _ => ((MacAddr([0x33, 0x33, 0, 0, 0, 1]), all), 0x20),
            };
            discovery(ADVERTISEMENT, flags, ip, Some((OPTION_TARGET, station.mac)), (station.mac, ip), to)
        }
    }
}

fn arp(operation: u16, sha: MacAddr, spa: Ipv4Addr, tha: MacAddr, tpa: Ipv4Addr) -> Vec<u8> {
    let mut out = vec![0, 1, 8, 0, 6, 4];
    out.extend_from_slice(&operation.to_be_bytes());
    out.extend_from_slice(&sha.0);
    out.extend_from_slice(&spa.octets());
    out.extend_from_slice(&tha.0);
    out.extend_from_slice(&tpa.octets());
    out
}

fn discovery(
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: Option<(u8, MacAddr)>,
    from: (MacAddr, Ipv6Addr),
    to: (MacAddr, Ipv6Addr),
) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    message.extend_from_slice(&target.octets());
    if let Some((option, mac)) = option {
        message.extend_from_slice(&[option, 1]);
        message.extend_from_slice(&mac.0);
    }
    let sum = checksum::Sum::default()
        .pseudo_header(from.1.into(), to.1.into(), protocol::ICMPV6, message.len())
        .octets(&message)
        .finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ipv6::Header { hop_limit: 255, ..ipv6::Header::new(from.1, to.1, protocol::ICMPV6) };
    // A message of 32 octets fits.
    let packet = header.build(&message).unwrap_or_default();
    ethernet::build(to.0.0, from.0.0, None, ethernet::IPV6, &packet)
}

/// Reads a question or an answer about neighbours; `None`: it is neither.
pub fn neighbour(frame: &[u8]) -> Option<Neighbour> {
    let frame = ethernet::Frame::new(frame).ok()?;
    let body = frame.payload();
    match frame.ethertype() {
        ethernet::ARP => {
            let body = body.get(..28)?;
            let mac = |at: usize| MacAddr(std::array::from_fn(|i| body[at + i]));
            let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&body[at..at + 4]).unwrap_or_default());
            let sender = Station { mac: mac(8), ip: ip(14) };
            match (&body[..6], u16::from_be_bytes([body[6], body[7]])) {
                ([0, 1, 8, 0, 6, 4], REQUEST) => Some(Neighbour::Asked { by: sender, target: ip(24) }),
                ([0, 1, 8, 0, 6, 4], REPLY) => Some(Neighbour::Told(sender)),
                _ => None,
            }
        }
        ethernet::IPV6 => {
            let packet = ipv6::Packet::new(body).ok()?;
            // RFC 4861 §7.1: from elsewhere it would have lost hops.
            if packet.next_header() != protocol::ICMPV6 || packet.hop_limit() != 255 {
                return None;
            }
            let message = packet.payload();
            let target: [u8; 16] = message.get(8..24)?.try_into().ok()?;
            let target = IpAddr::from(target);
            let option = message.get(24..32).and_then(|option| {
                let mac = MacAddr(std::array::from_fn(|i| option[2 + i]));
                [OPTION_SOURCE, OPTION_TARGET].contains(&option[0]).then_some(mac)
            });
            let mac = option.unwrap_or(MacAddr(frame.source()));
            match message[0] {
                SOLICITATION => {
                    Some(Neighbour::Asked { by: Station { mac, ip: packet.source().into() }, target })
                }
                ADVERTISEMENT => Some(Neighbour::Told(Station { mac, ip: target })),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A GTP-U Echo Request (TS 29.281 §7.2.1).
pub fn echo_request(from: Station, to: Station, sequence: u16) -> Option<Vec<u8>> {
    build_datagram((from, GTPU_PORT), (to, GTPU_PORT), &Signalling::EchoRequest { sequence }.build())
}

/// VLAN tags of a frame, as they are in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tags {
    octets: [u8; TAGS],
    length: usize,
}

impl Tags {
    /// Those of a frame.
    pub fn of(frame: &[u8]) -> Tags {
        let mut tags = Tags::default();
        let count =
            ethernet::Frame::new(frame).map_or(0, |frame| frame.vlans().into_iter().flatten().count());
        if let Some(octets) = frame.get(12..12 + 4 * count) {
            tags.octets[..octets.len()].copy_from_slice(octets);
            tags.length = octets.len();
        }
        tags
    }

    /// A frame that has none, with these.
    pub fn put(self, mut frame: Vec<u8>) -> Vec<u8> {
        let behind_addresses = 12.min(frame.len());
        frame.splice(behind_addresses..behind_addresses, self.octets[..self.length].iter().copied());
        frame
    }
}

/// A datagram between ports of two stations; `None` if it is too long, or their IP versions differ.
pub fn build_datagram(from: (Station, u16), to: (Station, u16), content: &[u8]) -> Option<Vec<u8>> {
    let ((from, source), (to, destination)) = (from, to);
    let datagram = transport::build_udp((from.ip, source), (to.ip, destination), content).ok()?;
    let (ethertype, packet) = match (from.ip, to.ip) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (ethernet::IPV4, ipv4::Header::new(from, to, protocol::UDP).build(&datagram).ok()?)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            (ethernet::IPV6, ipv6::Header::new(from, to, protocol::UDP).build(&datagram).ok()?)
        }
        _ => return None,
    };
    Some(ethernet::build(to.mac.0, from.mac.0, None, ethertype, &packet))
}

/// A frame's datagram with another content, between the same ends.
pub fn with_content(frame: &[u8], content: &[u8]) -> Option<Vec<u8>> {
    let (source, destination, udp) = datagram(frame)?;
    let ends = ethernet::Frame::new(frame).ok()?;
    let from = Station { mac: MacAddr(ends.source()), ip: source };
    let to = Station { mac: MacAddr(ends.destination()), ip: destination };
    let built = build_datagram((from, udp.source_port()), (to, udp.destination_port()), content)?;
    Some(Tags::of(frame).put(built))
}

/// The datagram of a frame: source, destination, and the datagram; `None` for other frames and for fragments.
pub fn datagram(frame: &[u8]) -> Option<(IpAddr, IpAddr, Udp<'_>)> {
    let frame = ethernet::Frame::new(frame).ok()?;
    match frame.ethertype() {
        ethernet::IPV4 => {
            let packet = ipv4::Packet::new(frame.payload()).ok()?;
            if packet.protocol() != protocol::UDP || packet.fragment_offset() != 0 || packet.more_fragments()
            {
                return None;
            }
            let udp = Udp::new(packet.payload()).ok()?;
            Some((packet.source().into(), packet.destination().into(), udp))
        }
        ethernet::IPV6 => {
            let packet = ipv6::Packet::new(frame.payload()).ok()?;
            if packet.next_header() != protocol::UDP {
                return None;
            }
            let udp = Udp::new(packet.payload()).ok()?;
            Some((packet.source().into(), packet.destination().into(), udp))
        }
        _ => None,
    }
}

/// Who has answered an Echo Request, and to which sequence number.
pub fn echo_response(frame: &[u8]) -> Option<(IpAddr, u16)> {
    let (source, _, udp) = datagram(frame)?;
    match gtpu::decode(udp.payload()).ok()?? {
        Signalling::EchoResponse { sequence } => Some((source, sequence)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(last: u8, ip: &str) -> Station {
        Station { mac: MacAddr([2, 0, 0, 0, 0, last]), ip: ip.parse().unwrap() }
    }

    #[test]
    fn a_datagram_gets_another_content() {
        for vlan in [None, Some(7)] {
            let (a, b) = (station(1, "10.0.0.1"), station(2, "10.0.0.2"));
            let plain = build_datagram((a, 8805), (b, 4000), b"before").unwrap();
            let inner = ethernet::Frame::new(&plain).unwrap();
            let frame = ethernet::build(b.mac.0, a.mac.0, vlan, inner.ethertype(), inner.payload());
            let other = with_content(&frame, b"behind it").unwrap();
            let (from, to, udp) = datagram(&other).unwrap();
            assert_eq!((from, udp.source_port(), to, udp.destination_port()), (a.ip, 8805, b.ip, 4000));
            assert_eq!(udp.payload(), b"behind it");
            let ends = ethernet::Frame::new(&other).unwrap();
            assert_eq!((ends.source(), ends.destination(), ends.vlans()[0]), (a.mac.0, b.mac.0, vlan));
        }
        // Two tags, and priorities.
        let (a, b) = (station(1, "10.0.0.1"), station(2, "10.0.0.2"));
        let plain = build_datagram((a, 8805), (b, 4000), b"before").unwrap();
        let tags = [0x88, 0xa8, 0x60, 5, 0x81, 0, 0xe0, 6];
        let tagged = [&plain[..12], &tags, &plain[12..]].concat();
        assert_eq!(Tags::of(&tagged).put(plain.clone()), tagged);
        assert_eq!(with_content(&tagged, b"before"), Some(tagged));
        assert_eq!((Tags::of(&plain), Tags::of(&plain[..9])), (Tags::default(), Tags::default()));
    }

    #[test]
    fn questions_and_answers_about_neighbours_are_read_as_written() {
        for (a, b) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (a, b) = (station(1, a), station(2, b));
            assert_eq!(neighbour(&ask(a, b.ip)), Some(Neighbour::Asked { by: a, target: b.ip }));
            assert_eq!(neighbour(&tell(b, Some(a))), Some(Neighbour::Told(b)));
            assert_eq!(neighbour(&tell(b, None)), Some(Neighbour::Told(b)));
            let echo = echo_request(a, b, 7).unwrap();
            assert_eq!(echo_response(&echo), None);
            assert_eq!(datagram(&echo).unwrap().1, b.ip);
            // No octet that is missing makes it panic.
            for frame in [ask(a, b.ip), tell(b, Some(a)), echo] {
                for length in 0..frame.len() {
                    let _ = (neighbour(&frame[..length]), echo_response(&frame[..length]));
                }
            }
        }
    }
}
