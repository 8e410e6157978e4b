//! Several interfaces on one device: each gets its frames, in their order, and nobody gets those of another.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::support::frames::{Frames, OURS, ip, nobody};
use net::link::Cidr;
use packet::ethernet::{self, Mac};
use packet::transport::build_udp;
use packet::{icmp, ipv4, ipv6, protocol};
use pktio::memory::{Wire, pair};
use pktio::slab::Slab;
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::trunk::{Branch, Share, Trunk};
use pktio::vlan::{Protocol, Tags};
use pktio::{Pool, Port, Vector};
use telemetry::DropReason;

const PEER: Mac = [2, 0, 0, 0, 0, 2];
const CUSTOMER: u16 = 0x8100;
const SERVICE: u16 = 0x88A8;
const OLD: u16 = 0x9100;

fn tags(ids: &[u16]) -> Tags {
    Tags::new(ids).unwrap()
}

fn share(ids: &[u16], addresses: &[&str], others: bool) -> Share {
    Share { tags: tags(ids), addresses: addresses.iter().map(|address| ip(address)).collect(), others }
}

/// Two N3 and an N6 in one VLAN, an N6 without tag, one with two tags, one with these of another protocol.
fn shares() -> [Share; 6] {
    let old = tags(&[100, 200]).with_protocol(Protocol::Old);
    [
        share(&[100], &["10.0.0.1", "2001:db8::1"], false),
        share(&[100], &["10.0.0.2"], false),
        share(&[100], &["10.0.0.3", "2001:db8::3"], true),
        share(&[], &["10.9.0.1"], true),
        share(&[100, 200], &["10.0.0.1"], false),
        Share { tags: old, ..share(&[], &[], true) },
    ]
}

fn trunk(shares: &[Share]) -> (Vec<Branch<Frames>>, Wire) {
    let (port, wire) = pair(10_000);
    let trunk = Trunk::new(Frames(port), shares);
    ((0..shares.len()).map(|number| trunk.branch(number).unwrap()).collect(), wire)
}

/// A frame with these tags, each as EtherType and identifier.
fn frame(tags: &[(u16, u16)], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut out = [OURS, PEER].concat();
    for (kind, id) in tags {
        out.extend(kind.to_be_bytes());
        out.extend(id.to_be_bytes());
    }
    out.extend(kind.to_be_bytes());
    out.extend(packet);
    out
}

fn udp(to: &str, number: u16) -> (u16, Vec<u8>) {
    let (to, payload) = (ip(to), number.to_be_bytes());
    let from = ip(if to.is_ipv4() { "192.0.2.9" } else { "2001:db8:9::9" });
    let datagram = build_udp((from, 2152), (to, 2152), &payload).unwrap();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            (ethernet::IPV4, ipv4::Header::new(from, to, protocol::UDP).build(&datagram).unwrap())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            (ethernet::IPV6, ipv6::Header::new(from, to, protocol::UDP).build(&datagram).unwrap())
        }
        _ => panic!("one family"),
    }
}

fn arp(target: [u8; 4]) -> (u16, Vec<u8>) {
    let mut message = vec![0, 1, 8, 0, 6, 4, 0, 1];
    message.extend(PEER);
    message.extend([10, 0, 0, 9]);
    message.extend([0; 6]);
    message.extend(target);
    (ethernet::ARP, message)
}

/// A question for the link-layer address of an IPv6 address.
fn solicitation(target: &str) -> (u16, Vec<u8>) {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    let IpAddr::V6(target) = ip(target) else { panic!("IPv6") };
    message.extend(target.octets());
    let packet =
        ipv6::Header::new("fe80::9".parse().unwrap(), "ff02::1:ff00:1".parse().unwrap(), protocol::ICMPV6);
    (ethernet::IPV6, packet.build(&message).unwrap())
}

fn losses(port: &mut impl Port) -> Vec<(DropReason, usize)> {
    let mut all = Vec::new();
    port.losses(&mut |reason, count| all.push((reason, count)));
    all
}

/// All that a branch has, in batches.
fn receive(branch: &mut impl Port, batch: &mut Vector) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while branch.receive(batch).unwrap() > 0 {
        all.extend(batch.frames().iter().map(|frame| frame.packet().to_vec()));
        batch.clear();
    }
    all
}

/// Tags, type and packet of a frame, and the branch that gets it.
type Case<'a> = (&'a [(u16, u16)], (u16, Vec<u8>), Option<usize>);

#[test]
fn tags_and_addresses_choose_the_interface() {
    let vlan = [(CUSTOMER, 100)];
    let cases: [Case<'_>; 24] = [
        (&vlan, udp("10.0.0.1", 1), Some(0)),
        (&vlan, udp("10.0.0.2", 2), Some(1)),
        (&vlan, udp("10.0.0.3", 3), Some(2)),
        (&vlan, udp("10.45.0.9", 4), Some(2)),
        (&vlan, udp("2001:db8::1", 5), Some(0)),
        (&vlan, udp("2001:db8:45::1", 6), Some(2)),
        (&vlan, arp([10, 0, 0, 2]), Some(1)),
        (&vlan, arp([10, 0, 0, 99]), Some(2)),
        (&vlan, solicitation("2001:db8::1"), Some(0)),
        (&vlan, solicitation("2001:db8::3"), Some(2)),
        (&[(CUSTOMER, 0x6000 | 100)], udp("10.0.0.1", 7), Some(0)),
        (&[], udp("10.0.0.1", 8), Some(3)),
        (&[(CUSTOMER, 0)], udp("10.0.0.1", 9), Some(3)),
        (&[(SERVICE, 100), (CUSTOMER, 200)], udp("10.45.0.9", 10), Some(4)),
        (&[(CUSTOMER, 100), (CUSTOMER, 200)], udp("10.0.0.1", 11), None),
        (&[(OLD, 100), (CUSTOMER, 200)], udp("10.0.0.1", 15), Some(5)),
        (&[(OLD, 100)], udp("10.0.0.1", 16), None),
        (&[(CUSTOMER, 0xE000), (CUSTOMER, 100)], udp("10.0.0.2", 17), Some(1)),
        (&[(CUSTOMER, 100), (CUSTOMER, 0x2000)], arp([10, 0, 0, 2]), Some(1)),
        (&[(SERVICE, 100), (CUSTOMER, 0), (CUSTOMER, 200)], solicitation("2001:db8::3"), Some(4)),
        (&[(CUSTOMER, 100), (CUSTOMER, 201)], udp("10.0.0.1", 12), None),
        (&[(CUSTOMER, 200)], udp("10.0.0.1", 13), None),
        (&[(SERVICE, 200), (CUSTOMER, 100)], udp("10.0.0.1", 14), None),
        (&vlan, (ethernet::IPV4, vec![0x45; 3]), Some(2)),
    ];
    // Whichever reads first, and however many are behind.
    for first in 0..6 {
        for further in [0, 40, 64, 200] {
            let (mut branches, wire) = trunk(&shares());
            let mut expected: [Vec<Vec<u8>>; 6] = Default::default();
            for (tags, (kind, packet), branch) in &cases {
                let frame = frame(tags, *kind, packet);
                wire.inject(&frame, nobody());
                if let Some(branch) = branch {
                    expected[*branch].push(frame);
                }
            }
            for number in 0..further {
                let (kind, packet) = udp("10.0.0.2", 1000 + number);
                let frame = frame(&vlan, kind, &packet);
                wire.inject(&frame, nobody());
                expected[1].push(frame);
            }
            // Ends within its header.
            wire.inject(&[0; 13], nobody());
            let home: Arc<dyn Pool> = Slab::new(512, 2048);
            let mut batch = Vector::of(&home);
            let mut got: [Vec<Vec<u8>>; 6] = Default::default();
            for turn in 0..100 {
                let number = (first + turn) % 6;
                got[number].extend(receive(&mut branches[number], &mut batch));
            }
            assert_eq!(got, expected, "first {first}, {further} more");
            assert_eq!(losses(&mut branches[first]), [(DropReason::UnknownVlan, 6)]);
            assert!(branches.iter().all(|branch| !branch.unsent()));
        }
    }
}

/// An interface that has no port does not hold up the others: its frames are counted, and all memory comes back.
#[test]
fn an_interface_that_is_away_does_not_hold_up_the_others() {
    let (mut branches, wire) = trunk(&shares());
    let home: Arc<dyn Pool> = Slab::new(512, 2048);
    let mut batch = Vector::of(&home);
    let inject = |number| {
        let (kind, packet) = udp("10.0.0.1", number);
        wire.inject(&frame(&[], kind, &packet), nobody());
        wire.inject(&frame(&[(CUSTOMER, 100)], kind, &packet), nobody());
    };
    // Some of its frames wait already when it goes.
    (0..20).for_each(inject);
    assert_eq!(receive(&mut branches[3], &mut batch).len(), 20);
    assert!(branches[0].unsent());
    drop(branches.remove(0));
    (0..1000).for_each(inject);
    let mut got = 0;
    for _ in 0..1000 {
        got += receive(&mut branches[2], &mut batch).len();
    }
    assert_eq!((got, losses(&mut branches[2])), (1000, vec![(DropReason::UnknownVlan, 1000)]));
}

/// What waits for one interface is bounded, lost by nobody, and slows the others only where there is no room.
#[test]
fn an_interface_that_is_not_read_loses_nothing() {
    let (mut branches, wire) = trunk(&shares());
    let home: Arc<dyn Pool> = Slab::new(512, 2048);
    let mut batch = Vector::of(&home);
    let numbered = |ids: &[(u16, u16)], number| {
        let (kind, packet) = udp("10.0.0.1", number);
        frame(ids, kind, &packet)
    };
    let (busy, silent): (Vec<_>, Vec<_>) =
        (0..1000).map(|number| (numbered(&[], number), numbered(&[(CUSTOMER, 100)], number))).unzip();
    for (busy, silent) in busy.iter().zip(&silent) {
        wire.inject(busy, nobody());
        wire.inject(silent, nobody());
    }
    let early = receive(&mut branches[3], &mut batch);
    assert!((64..=128).contains(&early.len()), "{}", early.len());
    assert_eq!(branches[3].receive(&mut batch).unwrap(), 0);
    assert!(branches[0].unsent() && !branches[1].unsent());
    let (mut got_busy, mut got_silent) = (early, Vec::new());
    while got_silent.len() < silent.len() || got_busy.len() < busy.len() {
        let before = got_busy.len() + got_silent.len();
        got_silent.extend(receive(&mut branches[0], &mut batch));
        got_busy.extend(receive(&mut branches[3], &mut batch));
        assert!(got_busy.len() + got_silent.len() > before);
    }
    assert!(got_busy == busy && got_silent == silent);
    assert!(losses(&mut branches[2]).is_empty());
    // All memory is back.
    drop((batch, branches));
    let mut all = Vector::of(&home);
    all.refill(64);
    assert_eq!(all.len(), 64);
    assert_eq!(Arc::strong_count(&home), 2, "nobody else holds the pool");
}

/// Each interface's own addresses, neighbours and tags, octet by octet.
#[test]
fn stacks_on_one_device_answer_for_themselves() {
    let (port, wire) = pair(1000);
    let trunk = Trunk::new(
        Frames(port),
        &[share(&[100], &["10.0.0.1"], false), share(&[100, 200], &["10.0.0.1"], true)],
    );
    let own = || {
        let addresses: [Cidr; 1] = ["10.0.0.1/24".parse().unwrap()];
        Neighbours::Own(Box::new(Resolver::new(&addresses, &[])))
    };
    let local: SocketAddr = "10.0.0.1:2152".parse().unwrap();
    let mut n3 = UdpStack::new(trunk.branch(0).unwrap(), local, tags(&[100]), own()).unwrap();
    let n6 = IpStack::new(trunk.branch(1).unwrap(), tags(&[100, 200]), own()).unwrap();
    let mut n6 = n6.with_mtu(1400);
    let mut batch = Vector::new(64, 2048);
    let (kind, question) = arp([10, 0, 0, 1]);
    let outer = [(SERVICE, 100), (CUSTOMER, 200)];
    wire.inject(&frame(&outer, kind, &question), nobody());
    wire.inject(&frame(&[(CUSTOMER, 100)], kind, &question), nobody());
    // N3 reads both questions; each stack answers its own.
    for turn in 0..2 {
        assert_eq!((n3.receive(&mut batch).unwrap(), n6.receive(&mut batch).unwrap()), (0, 0), "{turn}");
    }
    let mut answer = vec![0, 1, 8, 0, 6, 4, 0, 2];
    answer.extend(OURS);
    answer.extend([10, 0, 0, 1]);
    answer.extend(PEER);
    answer.extend([10, 0, 0, 9]);
    let mut answers: Vec<_> = wire.take().into_iter().map(|(frame, _)| frame).collect();
    answers.sort();
    let with = |tags: &[(u16, u16)]| {
        let mut out = frame(tags, ethernet::ARP, &answer);
        out[..6].copy_from_slice(&PEER);
        out[6..12].copy_from_slice(&OURS);
        out
    };
    assert_eq!(answers, [with(&[(CUSTOMER, 100)]), with(&outer)]);

    // A packet out of each, to the neighbour that asked.
    let (_, packet) = udp("10.0.0.9", 5);
    assert!(batch.push(&packet, nobody()));
    assert_eq!(n6.transmit(&mut batch, &[0]).packets, 1);
    let sent = wire.take().remove(0).0;
    assert_eq!((&sent[..6], &sent[6..12]), (&PEER[..], &OURS[..]));
    assert_eq!(sent[12..22], [0x88, 0xA8, 0, 100, 0x81, 0, 0, 200, 8, 0]);
    assert_eq!(sent[22..], packet);
    batch.clear();
    assert!(batch.push(b"payload", "10.0.0.9:2152".parse().unwrap()));
    assert_eq!(n3.transmit(&mut batch, &[0]).packets, 1);
    let sent = wire.take().remove(0).0;
    assert_eq!(sent[12..18], [0x81, 0, 0, 100, 8, 0]);
    assert_eq!(&sent[18 + 28..], b"payload");
    // Each has its own MTU.
    for (length, too_big) in [(1400, 0), (1401, 1)] {
        batch.clear();
        let echo = icmp::build_echo(ip("10.0.0.1"), ip("10.0.0.9"), 8, 1, 1, &vec![0; length - 28]);
        let from = "10.0.0.1".parse().unwrap();
        let packet =
            ipv4::Header::new(from, "10.0.0.9".parse().unwrap(), protocol::ICMP).build(&echo).unwrap();
        assert!(batch.push(&packet, nobody()));
        assert_eq!(n6.transmit(&mut batch, &[0]).too_big, too_big);
    }
    // A frame with a tag more is nobody's: N3 counts it.
    let (kind, packet) = udp("10.0.0.1", 1);
    wire.inject(&frame(&[(CUSTOMER, 100), (CUSTOMER, 300)], kind, &packet), nobody());
    assert_eq!(n3.receive(&mut batch).unwrap(), 0);
    assert_eq!(losses(&mut n6), [(DropReason::UnknownVlan, 1)]);
}

/// Tags with priority bits only are no VLAN: such frames are for the interface with the others, on a device of its own too.
#[test]
fn frames_with_priority_bits_only_belong_to_their_interface() {
    let local: SocketAddr = "10.0.0.1:2152".parse().unwrap();
    let own = || {
        let addresses: [Cidr; 1] = ["10.0.0.1/24".parse().unwrap()];
        Neighbours::Own(Box::new(Resolver::new(&addresses, &[])))
    };
    let mut batch = Vector::new(64, 2048);
    let (service, old) = (tags(&[100, 200]), tags(&[100, 200]).with_protocol(Protocol::Old));
    for (own_tags, octets) in [
        (tags(&[]), &[(CUSTOMER, 0xE000)][..]),
        (tags(&[]), &[(SERVICE, 0)]),
        (tags(&[100]), &[(CUSTOMER, 0x2000), (CUSTOMER, 100)]),
        (tags(&[100]), &[(CUSTOMER, 0xE000 | 100), (CUSTOMER, 0xE000)]),
        (service, &[(SERVICE, 100), (CUSTOMER, 0), (CUSTOMER, 200)]),
        (old, &[(CUSTOMER, 0), (OLD, 100), (CUSTOMER, 200)]),
    ] {
        let (port, wire) = pair(1000);
        let mut n3 = UdpStack::new(Frames(port), local, own_tags, own()).unwrap();
        let (port, n6_wire) = pair(1000);
        let mut n6 = IpStack::new(Frames(port), own_tags, own()).unwrap();
        let (kind, datagram) = udp("10.0.0.1", 0x1234);
        let (_, packet) = udp("10.45.0.9", 7);
        for _ in 0..3 {
            wire.inject(&frame(octets, kind, &datagram), nobody());
            assert_eq!(n3.receive(&mut batch).unwrap(), 1, "{octets:?}");
            assert_eq!(batch.frames()[0].packet(), [0x12, 0x34]);
            n6_wire.inject(&frame(octets, kind, &packet), nobody());
            assert_eq!(n6.receive(&mut batch).unwrap(), 1, "{octets:?}");
            assert_eq!(batch.frames()[0].packet(), packet);
        }
        // A question is answered in the VLAN.
        let (kind, question) = arp([10, 0, 0, 1]);
        wire.inject(&frame(octets, kind, &question), nobody());
        assert_eq!(n3.receive(&mut batch).unwrap(), 0);
        let answers = wire.take();
        assert_eq!(answers.len(), 1, "{octets:?}");
        assert_eq!(answers[0].0[12..12 + own_tags.octets().len()], *own_tags.octets());
        // Another VLAN's are nobody's.
        wire.inject(&frame(&[(CUSTOMER, 0), (CUSTOMER, 300)], ethernet::IPV4, &datagram), nobody());
        assert_eq!(n3.receive(&mut batch).unwrap(), 0);
        assert_eq!(losses(&mut n3), [(DropReason::UnknownVlan, 1)]);
    }
}
