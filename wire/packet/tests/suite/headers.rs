//! L2–L4 views and builders against fixtures made by scapy 2.8, damaged input, and round trips.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::support::{INNER, damaged, hex};
use packet::flow::Flow;
use packet::ndp::{RouterAdvertisement, RouterSolicitation};
use packet::transport::{Tcp, Udp, build_udp};
use packet::{ParseError, ethernet, icmp, ipv4, ipv6, ndp, protocol};
use proptest::prelude::*;

const ETH_VLAN_TCP: &str = "0200000000020200000000018100602a0800450000280001000040068e93c0000201c633640704d20050000003e800000000500220009a9c0000";
const IPV4_OPTIONS_ICMP: &str =
    "46000028000500004001d1c90a0000010a0000029404000008006663000300046162636465666768";
const IPV4_FRAGMENT: &str = "4500001c00050003401166c70a0000010a0000023132333435363738";
const IPV6_UDP: &str = "62cabcde000d113dfd000045000000000000000000000002fd00020100000000000000000000000200070009000dbfa668656c6c6f";
const IPV6_EXT_UDP: &str = "6000000000250040fd000045000000000000000000000002fd0002010000000000000000000000023c000502000001002c00010400000000110000010000000900070009000dbfa668656c6c6f";
const IPV6_FRAGMENT_TAIL: &str = "6000000000102c40fd000045000000000000000000000002fd000201000000000000000000000002110000500000000968656c6c6f68656c";
const IPV6_ECHO: &str =
    "60000000000b3a40fd000045000000000000000000000002fd000201000000000000000000000002800090f10001000278797a";
const ESP: &str = "4500002400050000403266a10a0000010a00000201020304000000010000000000000000";
const RS: &str =
    "6000000000083afffe800000000000000000000000001234ff02000000000000000000000000000285006b0300000000";
const RS_LLADDR: &str = "6000000000103afffe800000000000000000000000001234ff020000000000000000000000000002850067f9000000000101020000000001";
const RA: &str = "6000000000503afffe800000000000000000000000000001fe8000000000000000000000000012348600c6db4000ffff000000000000000003044040ffffffffffffffff00000000fd000045000000070000000000000000050100000000057819030000fffffffffd000201000000000000000000000053";

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("fixtures are addresses")
}

#[test]
fn tagged_frame_with_tcp() {
    let bytes = hex(ETH_VLAN_TCP);
    let frame = ethernet::Frame::new(&bytes).unwrap();
    assert_eq!(frame.source(), [2, 0, 0, 0, 0, 1]);
    assert_eq!(frame.destination(), [2, 0, 0, 0, 0, 2]);
    assert_eq!(frame.vlans(), [Some(42), None]);
    assert_eq!(frame.ethertype(), ethernet::IPV4);
    let packet = ipv4::Packet::new(frame.payload()).unwrap();
    assert!(packet.checksum_ok());
    let tcp = Tcp::new(packet.payload()).unwrap();
    assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.sequence(), tcp.flags()), (1234, 80, 1000, 2));
    assert!(tcp.checksum_ok(IpAddr::V4(packet.source()), IpAddr::V4(packet.destination())));
    assert!(tcp.payload().is_empty());
    let rebuilt = ethernet::build(frame.destination(), frame.source(), None, ethernet::IPV4, frame.payload());
    assert_eq!(ethernet::Frame::new(&rebuilt).unwrap().vlans(), [None, None]);
    let tagged =
        ethernet::build(frame.destination(), frame.source(), Some(42), ethernet::IPV4, frame.payload());
    // Only the priority in the tag differs from scapy's frame.
    assert_eq!((&tagged[..14], tagged[14] | 0x60, &tagged[15..]), (&bytes[..14], bytes[14], &bytes[15..]));
}

#[test]
fn ipv4_udp_is_built_as_scapy_builds_it() {
    let (source, destination) = (Ipv4Addr::new(10, 45, 0, 2), Ipv4Addr::new(10, 201, 0, 2));
    let udp = build_udp((IpAddr::V4(source), 4000), (IpAddr::V4(destination), 5000), b"godwit").unwrap();
    let mut header = ipv4::Header::new(source, destination, protocol::UDP);
    header.tos = 0x28;
    header.identification = 7;
    let built = header.build(&udp).unwrap();
    assert_eq!(built, hex(INNER));
    let packet = ipv4::Packet::new(&built).unwrap();
    let udp = Udp::new(packet.payload()).unwrap();
    assert!(udp.checksum_ok(IpAddr::V4(source), IpAddr::V4(destination)));
    assert_eq!(udp.payload(), b"godwit");
}

#[test]
fn ipv6_and_icmp_are_built_as_scapy_builds_them() {
    let (source, destination) = (v6("fd00:45::2"), v6("fd00:201::2"));
    let udp = build_udp((IpAddr::V6(source), 7), (IpAddr::V6(destination), 9), b"hello").unwrap();
    let mut header = ipv6::Header::new(source, destination, protocol::UDP);
    header.traffic_class = 0x2c;
    header.flow_label = 0xabcde;
    header.hop_limit = 61;
    assert_eq!(header.build(&udp).unwrap(), hex(IPV6_UDP));

    let echo = icmp::build_echo(source.into(), destination.into(), icmp::ECHO_REQUEST_V6, 1, 2, b"xyz");
    let header = ipv6::Header::new(source, destination, protocol::ICMPV6);
    assert_eq!(header.build(&echo).unwrap(), hex(IPV6_ECHO));
    let echo = icmp::Message::new(&echo).unwrap();
    assert!(echo.checksum_ok(source.into(), destination.into()));
    assert_eq!((echo.identifier(), echo.sequence(), echo.payload()), (1, 2, &b"xyz"[..]));

    let v4 = hex(IPV4_OPTIONS_ICMP);
    let packet = ipv4::Packet::new(&v4).unwrap();
    assert_eq!((packet.header_len(), packet.protocol()), (24, protocol::ICMP));
    let built = icmp::build_echo(packet.source().into(), packet.destination().into(), 8, 3, 4, b"abcdefgh");
    assert_eq!(built, packet.payload());
}

#[test]
fn flows_are_extracted() {
    let flow = Flow::parse(&hex(INNER)).unwrap();
    assert_eq!(flow.source, IpAddr::from([10, 45, 0, 2]));
    assert_eq!(flow.destination, IpAddr::from([10, 201, 0, 2]));
    assert_eq!((flow.protocol, flow.ports, flow.tos, flow.length), (17, Some((4000, 5000)), 0x28, 34));

    let flow = Flow::parse(&hex(IPV6_UDP)).unwrap();
    assert_eq!((flow.tos, flow.flow_label, flow.ports), (0x2c, 0xabcde, Some((7, 9))));
    let flow = Flow::parse(&hex(IPV6_EXT_UDP)).unwrap();
    assert_eq!((flow.protocol, flow.ports), (17, Some((7, 9))));
    let flow = Flow::parse(&hex(IPV6_FRAGMENT_TAIL)).unwrap();
    assert_eq!((flow.protocol, flow.ports), (17, None));
    let flow = Flow::parse(&hex(IPV4_FRAGMENT)).unwrap();
    assert_eq!((flow.protocol, flow.ports), (17, None));
    let flow = Flow::parse(&hex(ESP)).unwrap();
    assert_eq!((flow.protocol, flow.spi), (50, Some(0x0102_0304)));
    // Padding behind the packet does not belong to it.
    let mut padded = hex(INNER);
    padded.extend_from_slice(&[0; 12]);
    assert_eq!(Flow::parse(&padded).unwrap().length, 34);
}

#[test]
fn inconsistent_headers_are_refused() {
    assert_eq!(Flow::parse(&[]).unwrap_err(), ParseError::Truncated);
    assert_eq!(Flow::parse(&[0x50; 64]).unwrap_err(), ParseError::Version);
    let mut bytes = hex(INNER);
    bytes[0] = 0x44;
    assert_eq!(Flow::parse(&bytes).unwrap_err(), ParseError::Length);
    bytes[0] = 0x46;
    bytes[3] = 22;
    assert_eq!(Flow::parse(&bytes).unwrap_err(), ParseError::Length);
    // UDP announced, two octets of it present.
    let short = ipv4::Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17).build(&[1, 2]).unwrap();
    assert_eq!(Flow::parse(&short).unwrap_err(), ParseError::Truncated);
    // Nine chained destination options.
    let mut chain = Vec::new();
    for _ in 0..9 {
        chain.extend_from_slice(&[protocol::DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0]);
    }
    let packet =
        ipv6::Header::new(v6("::1"), v6("::2"), protocol::DESTINATION_OPTIONS).build(&chain).unwrap();
    assert_eq!(Flow::parse(&packet).unwrap_err(), ParseError::TooManyExtensions);
}

#[test]
fn router_discovery_as_scapy_builds_it() {
    let solicitation = RouterSolicitation { source: v6("fe80::1234") };
    assert_eq!(solicitation.build(), hex(RS));
    assert_eq!(RouterSolicitation::parse(&hex(RS)).unwrap(), solicitation);
    assert_eq!(RouterSolicitation::parse(&hex(RS_LLADDR)).unwrap(), solicitation);
    assert!(ndp::is_router_solicitation(&hex(RS)) && !ndp::is_router_solicitation(&hex(IPV6_ECHO)));

    let mut advertisement =
        RouterAdvertisement::for_ue(v6("fe80::1"), v6("fe80::1234"), v6("fd00:45:0:7::"), Some(1400));
    advertisement.dns = vec![v6("fd00:201::53")];
    assert_eq!(advertisement.build(), hex(RA));
    assert_eq!(RouterAdvertisement::parse(&hex(RA)).unwrap(), advertisement);
}

#[test]
fn router_discovery_is_verified() {
    let mut bytes = hex(RA);
    bytes[7] = 64;
    assert_eq!(RouterAdvertisement::parse(&bytes).unwrap_err(), ParseError::Value);
    let mut bytes = hex(RA);
    bytes[90] ^= 1;
    assert_eq!(RouterAdvertisement::parse(&bytes).unwrap_err(), ParseError::Checksum);
    assert_eq!(RouterAdvertisement::parse(&hex(RS)).unwrap_err(), ParseError::Truncated);
}

#[test]
fn damaged_packets_are_errors_not_panics() {
    for text in [
        INNER,
        ETH_VLAN_TCP,
        IPV4_OPTIONS_ICMP,
        IPV4_FRAGMENT,
        IPV6_UDP,
        IPV6_EXT_UDP,
        IPV6_FRAGMENT_TAIL,
        IPV6_ECHO,
        ESP,
        RS_LLADDR,
        RA,
    ] {
        let bytes = hex(text);
        damaged(&bytes, |bytes| {
            let _ = Flow::parse(bytes);
            let _ = RouterAdvertisement::parse(bytes);
            let _ = RouterSolicitation::parse(bytes);
            let _ = icmp::Message::new(bytes).map(|m| m.payload().len());
            let _ = Udp::new(bytes).map(|u| u.payload().len());
            let _ = Tcp::new(bytes).map(|t| t.payload().len());
            let _ = ethernet::Frame::new(bytes).map(|f| (f.vlans(), f.payload().len()));
        });
        if Flow::parse(&bytes).is_ok() {
            for length in 0..bytes.len() {
                assert!(Flow::parse(&bytes[..length]).is_err(), "{text} cut at {length}");
            }
        }
    }
}

proptest! {
    #[test]
    fn udp_over_either_family_round_trips(
        source: [u8; 16], destination: [u8; 16], v4: bool, ports: (u16, u16),
        payload in proptest::collection::vec(any::<u8>(), 0..1500),
    ) {
        let (source, destination) = if v4 {
            (IpAddr::from([source[0], source[1], source[2], source[3]]),
             IpAddr::from([destination[0], destination[1], destination[2], destination[3]]))
        } else {
            (IpAddr::from(source), IpAddr::from(destination))
        };
        let udp = build_udp((source, ports.0), (destination, ports.1), &payload).unwrap();
        let packet = match (source, destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => ipv4::Header::new(s, d, protocol::UDP).build(&udp).unwrap(),
            (IpAddr::V6(s), IpAddr::V6(d)) => ipv6::Header::new(s, d, protocol::UDP).build(&udp).unwrap(),
            _ => unreachable!(),
        };
        let flow = Flow::parse(&packet).unwrap();
        prop_assert_eq!((flow.source, flow.destination, flow.ports), (source, destination, Some(ports)));
        prop_assert!(Udp::new(&udp).unwrap().checksum_ok(source, destination));
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Flow::parse(&bytes);
        let _ = RouterAdvertisement::parse(&bytes);
        let _ = ethernet::Frame::new(&bytes);
    }
}
