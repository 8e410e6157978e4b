//! The stack below datagram sockets, frame by frame: endpoints that come and go, and frames that are damaged.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::frames::{Frames, MTU, OURS, nobody};
use packet::ethernet::{self, Mac};
use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pktio::memory::{self, Wire};
use pktio::stack::Neighbours;
use pktio::stack::datagram::{DatagramStack, Endpoints};
use pktio::stack::resolver::Resolver;
use pktio::vlan::Tags;
use pktio::{Port, VECTOR, Vector};
use telemetry::DropReason;

const THEIRS: Mac = [2, 0, 0, 0, 0, 2];

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A stack with 10.0.0.1 and fd00::1, whose neighbours 10.0.0.2 and fd00::2 are known.
fn stack(endpoints: &Arc<Endpoints>) -> (DatagramStack<Frames>, Wire) {
    let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|own| own.parse().unwrap());
    let neighbours = Neighbours::Own(Box::new(Resolver::new(&addresses, &[])));
    let (port, wire) = memory::pair(1 << 16);
    let mut stack = DatagramStack::new(Frames(port), endpoints, Tags::default(), neighbours, MTU).unwrap();
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend_from_slice(&THEIRS);
    arp.extend_from_slice(&[10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    wire.inject(&ethernet::build(OURS, THEIRS, None, ethernet::ARP, &arp), nobody());
    stack.receive(&mut Vector::new(VECTOR, 2048)).unwrap();
    wire.take();
    (stack, wire)
}

fn frame(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let udp = build_udp((from.ip(), from.port()), (to.ip(), to.port()), payload).unwrap();
    let (kind, packet) = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            (ethernet::IPV4, ipv4::Header::new(*from.ip(), *to.ip(), protocol::UDP).build(&udp))
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            (ethernet::IPV6, ipv6::Header::new(*from.ip(), *to.ip(), protocol::UDP).build(&udp))
        }
        _ => panic!("one family"),
    };
    ethernet::build(OURS, THEIRS, None, kind, &packet.unwrap())
}

/// The payloads and senders of what a frame brings.
fn brings(stack: &mut impl Port, wire: &Wire, frame: &[u8]) -> Vec<(Vec<u8>, SocketAddr)> {
    let mut vector = Vector::new(VECTOR, 2048);
    wire.inject(frame, nobody());
    stack.receive(&mut vector).unwrap();
    vector.frames().iter().zip(vector.peers()).map(|(frame, peer)| (frame.packet().to_vec(), *peer)).collect()
}

#[test]
fn endpoints_come_and_go_and_each_answers_from_its_own_address() {
    let endpoints = Arc::<Endpoints>::default();
    let (mut stack, wire) = stack(&endpoints);
    let peer = address("10.0.0.2:9");
    let locals = ["10.0.0.1:7", "10.0.0.1:8"].map(address);
    assert!(brings(&mut stack, &wire, &frame(peer, locals[0], b"early")).is_empty());
    let numbers = locals.map(|local| endpoints.bind(local).unwrap().0);
    // A vector with datagrams to both endpoints, back as it is: a frame's number is that of its endpoint.
    let mut vector = Vector::new(VECTOR, 2048);
    for at in [0, 1, 1, 0, 1] {
        wire.inject(&frame(peer, locals[at], &[at as u8; 5]), nobody());
    }
    assert_eq!(stack.receive(&mut vector).unwrap(), 5);
    let sent = stack.transmit(&mut vector, &[0, 1, 2, 3, 4]);
    assert_eq!(sent.packets, 5, "{sent:?}");
    let ports: Vec<u16> =
        wire.take().iter().map(|(frame, _)| u16::from_be_bytes([frame[34], frame[35]])).collect();
    assert_eq!(ports, [7, 8, 8, 7, 8]);
    // After closing nothing comes, and what was sent before still leaves.
    wire.inject(&frame(peer, locals[1], b"last"), nobody());
    stack.receive(&mut vector).unwrap();
    endpoints.close(locals[1]);
    assert_eq!(stack.transmit(&mut vector, &[0]).packets, 1);
    assert!(brings(&mut stack, &wire, &frame(peer, locals[1], b"late")).is_empty());
    assert_eq!(brings(&mut stack, &wire, &frame(peer, locals[0], b"open")), [(b"open".to_vec(), peer)]);
    wire.inject(&frame(peer, locals[0], b"x"), nobody());
    stack.receive(&mut vector).unwrap();
    vector.frame_mut(0).send_to(numbers[1]);
    endpoints.release(numbers[1]);
    assert_eq!(stack.transmit(&mut vector, &[0]).errors, 1, "nobody has the number");
    let mut lost = Vec::new();
    stack.losses(&mut |reason, count| lost.push((reason, count)));
    assert_eq!(lost, [(DropReason::N3NotServed, 2)]);
}

/// Frames cut at every octet, and with every bit flipped: each brings nothing, or one datagram of no more octets than it has.
#[test]
fn damaged_frames_bring_nothing_that_is_not_in_them() {
    let endpoints = Arc::<Endpoints>::default();
    let (mut stack, wire) = stack(&endpoints);
    for (from, to) in [("10.0.0.2:9", "10.0.0.1:7"), ("[fd00::2]:9", "[fd00::1]:7")] {
        let (from, to) = (address(from), address(to));
        endpoints.bind(to).unwrap();
        let payload: Vec<u8> = (0..40).collect();
        let whole = frame(from, to, &payload);
        assert_eq!(brings(&mut stack, &wire, &whole), [(payload.clone(), from)]);
        for length in 0..whole.len() {
            assert!(
                brings(&mut stack, &wire, &whole[..length]).is_empty(),
                "{length} octets of {}",
                whole.len()
            );
        }
        let header = whole.len() - payload.len();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            for (octets, _) in brings(&mut stack, &wire, &damaged) {
                assert!(damaged[header..].starts_with(&octets), "bit {bit}: {octets:?}");
            }
        }
        wire.take();
    }
    assert_eq!(
        brings(&mut stack, &wire, &frame(address("10.0.0.2:9"), address("10.0.0.1:7"), b"on")).len(),
        1
    );
}
