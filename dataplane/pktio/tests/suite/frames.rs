//! The frame stack octet by octet, without an interface: headers, VLANs, neighbours and hostile frames.

use std::net::{IpAddr, SocketAddr};

use crate::support::frames::{Frames, OURS, ip, nobody};
use net::link::Cidr;
use packet::ethernet::{self, Mac};
use packet::transport::build_udp;
use packet::{icmp, ipv4, ipv6, protocol};
use pktio::memory::{Wire, pair};
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{Port, Sent, Slab, Vector};
use telemetry::DropReason;

const PEER: Mac = [2, 0, 0, 0, 0, 2];
const VLAN: Option<u16> = Some(100);

fn own() -> Neighbours {
    let addresses: [Cidr; 2] = ["10.0.0.1/24".parse().unwrap(), "2001:db8::1/64".parse().unwrap()];
    Neighbours::Own(Box::new(Resolver::new(&addresses, &[ip("10.0.0.254"), ip("2001:db8::ff")])))
}

fn udp_stack(local: &str) -> (UdpStack<Frames>, Wire) {
    let (port, wire) = pair(1000);
    (UdpStack::new(Frames(port), local.parse().unwrap(), VLAN, own()).unwrap(), wire)
}

fn ip_stack() -> (IpStack<Frames>, Wire) {
    let (port, wire) = pair(1000);
    (IpStack::new(Frames(port), VLAN, own()).unwrap(), wire)
}

/// An IP packet with `payload` in the protocol given.
fn packet(from: &str, to: &str, next: u8, payload: &[u8]) -> Vec<u8> {
    match (ip(from), ip(to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::Header::new(from, to, next).build(payload).unwrap(),
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::Header::new(from, to, next).build(payload).unwrap(),
        _ => panic!("one family"),
    }
}

fn udp_packet(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let datagram = build_udp((from.ip(), from.port()), (to.ip(), to.port()), payload).unwrap();
    packet(&from.ip().to_string(), &to.ip().to_string(), protocol::UDP, &datagram)
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 };
    ethernet::build(OURS, PEER, VLAN, kind, packet)
}

fn arp(kind: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut message = vec![0, 1, 8, 0, 6, 4, 0, kind];
    message.extend_from_slice(&PEER);
    message.extend_from_slice(&sender);
    message.extend_from_slice(&[0; 6]);
    message.extend_from_slice(&target);
    message
}

fn receive(stack: &mut impl Port, wire: &Wire, frame: &[u8]) -> Vec<(Vec<u8>, SocketAddr)> {
    wire.inject(frame, nobody());
    let mut batch = Vector::new(8, 2048);
    stack.receive(&mut batch).unwrap();
    batch.frames().iter().zip(batch.peers()).map(|(frame, peer)| (frame.packet().to_vec(), *peer)).collect()
}

fn send(stack: &mut impl Port, payload: &[u8], peer: SocketAddr, tos: u8) -> Sent {
    let mut batch = Vector::new(1, 2048);
    assert!(batch.push(payload, peer));
    batch.frame_mut(0).set_tos(tos);
    stack.transmit(&mut batch, &[0])
}

fn lost(stack: &mut impl Port) -> usize {
    lost_for(DropReason::N3NotServed, stack)
}

fn lost_for(wanted: DropReason, stack: &mut impl Port) -> usize {
    let mut lost = 0;
    stack.losses(&mut |reason, count| {
        assert_eq!(reason, wanted);
        lost += count;
    });
    lost
}

#[test]
fn a_datagram_waits_for_its_neighbour_and_has_the_right_octets() {
    let (mut stack, wire) = udp_stack("10.0.0.1:2152");
    let peer = "10.0.0.2:2152".parse().unwrap();
    for n in 0..3u8 {
        let sent = send(&mut stack, &[n; 5], peer, 0xB8);
        assert_eq!((sent.packets, sent.bytes), (1, 5));
    }
    let asked = wire.take();
    assert_eq!(asked.len(), 1, "one question for all of them");
    let question = ethernet::Frame::new(&asked[0].0).unwrap();
    assert_eq!((question.destination(), question.source(), question.vlans()[0]), ([0xFF; 6], OURS, VLAN));
    let mut expected = arp(1, [10, 0, 0, 1], [10, 0, 0, 2]);
    expected[8..14].copy_from_slice(&OURS);
    assert_eq!((question.ethertype(), question.payload()), (ethernet::ARP, &expected[..]));

    let answer = ethernet::build(OURS, PEER, VLAN, ethernet::ARP, &arp(2, [10, 0, 0, 2], [10, 0, 0, 1]));
    assert!(receive(&mut stack, &wire, &answer).is_empty());
    send(&mut stack, &[3; 5], peer, 0xB8);
    let frames = wire.take();
    assert_eq!(frames.len(), 4);
    for (n, (bytes, _)) in frames.iter().enumerate() {
        let frame = ethernet::Frame::new(bytes).unwrap();
        assert_eq!((frame.destination(), frame.source(), frame.vlans()[0]), (PEER, OURS, VLAN));
        let header = ipv4::Packet::new(frame.payload()).unwrap();
        assert!(header.checksum_ok() && header.dont_fragment());
        assert_eq!((header.tos(), header.ttl(), header.protocol()), (0xB8, 64, protocol::UDP));
        assert_eq!(
            (IpAddr::from(header.source()), IpAddr::from(header.destination())),
            (ip("10.0.0.1"), ip("10.0.0.2"))
        );
        let udp = [8, 104, 8, 104, 0, 13, 0, 0];
        assert_eq!(header.payload(), [&udp[..], &[n as u8; 5]].concat(), "in order");
    }
    // For destinations behind the gateway the gateway's address is resolved.
    send(&mut stack, b"x", "198.51.100.1:2152".parse().unwrap(), 0);
    assert_eq!(wire.take()[0].0[42..46], [10, 0, 0, 254]);
    assert_eq!(lost(&mut stack), 0);
}

#[test]
fn datagrams_over_ipv6_have_a_checksum() {
    let (mut stack, wire) = udp_stack("[2001:db8::1]:2152");
    let peer: SocketAddr = "[2001:db8::2]:2152".parse().unwrap();
    // The peer resolves our address (RFC 4861 §7.2.3), from which we learn its own.
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    solicitation.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 2]);
    let group = "ff02::1:ff00:1";
    let sum = packet::checksum::Sum::default()
        .pseudo_header(ip("2001:db8::2"), ip(group), protocol::ICMPV6, solicitation.len())
        .octets(&solicitation)
        .finish();
    solicitation[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut asked = packet("2001:db8::2", group, protocol::ICMPV6, &solicitation);
    asked[7] = 255;
    let asked = ethernet::build([0x33, 0x33, 0xFF, 0, 0, 1], PEER, VLAN, ethernet::IPV6, &asked);
    assert!(receive(&mut stack, &wire, &asked).is_empty());
    let answers = wire.take();
    let answer = ethernet::Frame::new(&answers[0].0).unwrap();
    assert_eq!(answer.destination(), PEER);
    let answer = ipv6::Packet::new(answer.payload()).unwrap();
    let message = icmp::Message::new(answer.payload()).unwrap();
    assert!(message.checksum_ok(answer.source().into(), answer.destination().into()));
    assert_eq!((message.kind(), answer.hop_limit()), (136, 255));
    assert_eq!(answer.payload()[24..32], [2, 1, 2, 0, 0, 0, 0, 1]);

    assert_eq!(send(&mut stack, &[1, 2, 3], peer, 0x28).packets, 1);
    let sent = wire.take();
    let sent = ipv6::Packet::new(ethernet::Frame::new(&sent[0].0).unwrap().payload()).unwrap();
    assert_eq!((sent.traffic_class(), sent.next_header(), sent.hop_limit()), (0x28, protocol::UDP, 64));
    let whole = packet::checksum::Sum::default()
        .pseudo_header(sent.source().into(), sent.destination().into(), protocol::UDP, sent.payload().len())
        .octets(sent.payload());
    assert_eq!((whole.finish(), &sent.payload()[8..]), (0, &[1, 2, 3][..]));
}

#[test]
fn what_is_not_for_the_endpoint_is_counted_and_goes_no_further() {
    let (mut stack, wire) = udp_stack("10.0.0.1:2152");
    let good = udp_packet("10.0.0.2:5000", "10.0.0.1:2152", b"payload");
    let got = receive(&mut stack, &wire, &frame(&good));
    assert_eq!(got, [(b"payload".to_vec(), "10.0.0.2:5000".parse().unwrap())]);
    // Padding of short frames is cut off.
    let padded = [&frame(&good)[..], &[0; 30]].concat();
    assert_eq!(receive(&mut stack, &wire, &padded), got);

    let change = |at: usize, to: u8| {
        let mut packet = good.clone();
        packet[at] = to;
        frame(&packet)
    };
    let others = [
        change(0, 0x46),
        change(6, 0x20),
        change(7, 1),
        change(8, 1),
        change(9, protocol::TCP),
        change(3, 255),
        change(25, 7),
        frame(&udp_packet("10.0.0.2:5000", "10.0.0.1:2153", b"x")),
        frame(&udp_packet("10.0.0.2:5000", "10.0.0.9:2152", b"x")),
        ethernet::build([2, 0, 0, 0, 0, 9], PEER, VLAN, ethernet::IPV4, &good),
        ethernet::build(OURS, PEER, VLAN, 0x88CC, &good),
    ];
    for (n, other) in others.iter().enumerate() {
        assert!(receive(&mut stack, &wire, other).is_empty(), "{n}");
        assert_eq!(lost(&mut stack), 1, "{n}");
    }
    for vlan in [None, Some(101)] {
        let other = ethernet::build(OURS, PEER, vlan, ethernet::IPV4, &good);
        assert!(receive(&mut stack, &wire, &other).is_empty());
        assert_eq!(lost_for(DropReason::UnknownVlan, &mut stack), 1, "{vlan:?}");
    }
}

#[test]
fn user_packets_pass_and_the_stacks_own_do_not() {
    let (mut stack, wire) = ip_stack();
    let user = udp_packet("198.51.100.1:53", "10.45.0.9:5000", b"answer");
    let got = receive(&mut stack, &wire, &frame(&user));
    assert_eq!(got[0].0, user);
    let ping = icmp::build_echo(ip("10.0.0.2"), ip("10.0.0.1"), icmp::ECHO_REQUEST_V4, 1, 2, b"ping");
    let ping = packet("10.0.0.2", "10.0.0.1", protocol::ICMP, &ping);
    assert!(receive(&mut stack, &wire, &frame(&ping)).is_empty());
    let answers = wire.take();
    let answer = ipv4::Packet::new(ethernet::Frame::new(&answers[0].0).unwrap().payload()).unwrap();
    assert_eq!(icmp::Message::new(answer.payload()).unwrap().kind(), icmp::ECHO_REPLY_V4);
    assert_eq!(IpAddr::from(answer.destination()), ip("10.0.0.2"));
    // Packets that are too long for the link, or not IP.
    let long = udp_packet("10.45.0.9:1", "10.0.0.2:1", &[0; 1473]);
    assert_eq!(send(&mut stack, &long, nobody(), 0).too_big, 1);
    assert_eq!(send(&mut stack, b"\x00nothing", nobody(), 0).errors, 1);
    assert_eq!(send(&mut stack, &user[..10], nobody(), 0).errors, 1);
}

/// Frames cut at every length and with random octets changed: nothing panics, and each is delivered or counted.
#[test]
fn hostile_frames_are_survived() {
    let seeds = [
        frame(&udp_packet("10.0.0.2:5000", "10.0.0.1:2152", b"payload")),
        frame(&udp_packet("[2001:db8::2]:5000", "[2001:db8::1]:2152", b"payload")),
        ethernet::build([0xFF; 6], PEER, VLAN, ethernet::ARP, &arp(1, [10, 0, 0, 2], [10, 0, 0, 1])),
        frame(&packet(
            "2001:db8::2",
            "2001:db8::1",
            protocol::ICMPV6,
            &icmp::build_echo(ip("2001:db8::2"), ip("2001:db8::1"), icmp::ECHO_REQUEST_V6, 1, 2, b"ping"),
        )),
    ];
    let (mut udp, udp_wire) = udp_stack("10.0.0.1:2152");
    let (mut udp6, udp6_wire) = udp_stack("[2001:db8::1]:2152");
    let (mut users, users_wire) = ip_stack();
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for seed in &seeds {
        let cuts = (0..=seed.len()).map(|length| seed[..length].to_vec());
        let changed: Vec<Vec<u8>> = (0..3000)
            .map(|_| {
                let mut bytes = seed.clone();
                for _ in 0..1 + random() % 4 {
                    let at = random() % bytes.len();
                    bytes[at] = random() as u8;
                }
                bytes.truncate(1 + random() % (2 * bytes.len()));
                bytes
            })
            .collect();
        for bytes in cuts.chain(changed) {
            for (stack, wire) in
                [(&mut udp as &mut dyn Port, &udp_wire), (&mut udp6, &udp6_wire), (&mut users, &users_wire)]
            {
                wire.inject(&bytes, nobody());
                let mut batch = Vector::new(2, 2048);
                let delivered = stack.receive(&mut batch).unwrap();
                let mut lost = 0;
                stack.losses(&mut |_, count| lost += count);
                assert!(delivered + lost <= 1);
                // At most one answer to each, so that a flood does not cause a larger one.
                assert!(wire.take().len() <= 1);
            }
        }
    }
}

/// The most and longest frames that a pool can have, of which few are ever used. Runs itself again, because other tests take memory
/// meanwhile.
#[test]
fn frames_that_were_never_used_take_no_memory() {
    const INSIDE: &str = "GODWIT_TEST_RESIDENT";
    if std::env::var_os(INSIDE).is_none() {
        let itself = ["--exact", "frames::frames_that_were_never_used_take_no_memory", "--nocapture"];
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args(itself).env(INSIDE, "1").output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
        return;
    }
    let resident = || -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let before = resident();
    let pool = Slab::new(1 << 14, 9000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 16_384, "{grown} kB of {} for no packet", pool.free_chunks() * 9);
}
