//! Ready-made headers, compared octet by octet with frames that are built in another way, while what they are made from
//! changes.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::support::frames::{Frames, MTU, OURS, ip};
use net::netns::NetNs;
use packet::ethernet::{self, Mac};
use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pktio::memory::{Wire, pair};
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::kernel::KernelTables;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{Peers, Port, Sent, Vector};

/// Counts the packets that are left to the kernel.
#[derive(Clone, Default)]
struct Slow(Arc<AtomicUsize>);

impl Port for Slow {
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        batch.clear();
        Ok(0)
    }

    fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> Sent {
        self.0.fetch_add(selected.len(), Relaxed);
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    [2, 0, 0, 0, 9, last]
}

/// 10.0.0.1/24 and fd00::1/64, with routers.
fn resolver() -> Neighbours {
    let addresses = [("10.0.0.1", 24), ("fd00::1", 64)];
    let addresses = addresses.map(|(address, prefix)| net::link::Cidr::new(ip(address), prefix).unwrap());
    Neighbours::Own(Box::new(Resolver::new(&addresses, &[ip("10.0.0.254"), ip("fd00::ff")])))
}

/// A stack for `local`, with neighbours of its own.
fn udp_stack(local: SocketAddr, vlan: Option<u16>) -> (UdpStack<Frames>, Wire) {
    let (port, wire) = pair(1 << 16);
    (UdpStack::new(Frames(port), local, vlan, resolver()).unwrap(), wire)
}

fn ip_packet(from: IpAddr, to: IpAddr, next: u8, tos: u8, payload: &[u8]) -> Vec<u8> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = ipv4::Header::new(from, to, next).build(payload).unwrap();
            // As tunnels send: not to be fragmented, without identification.
            (packet[1], packet[4], packet[5], packet[6], packet[7]) = (tos, 0, 0, 0x40, 0);
            packet[10..12].fill(0);
            let sum = packet::checksum::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut packet = ipv6::Header::new(from, to, next).build(payload).unwrap();
            (packet[0], packet[1]) = (0x60 | tos >> 4, tos << 4);
            packet
        }
        _ => panic!("one family"),
    }
}

/// The frame in which a payload must arrive.
fn datagram(
    to_mac: Mac,
    vlan: Option<u16>,
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut udp = build_udp((from.ip(), from.port()), (to.ip(), to.port()), payload).unwrap();
    if from.is_ipv4() {
        udp[6..8].fill(0);
    }
    let packet = ip_packet(from.ip(), to.ip(), protocol::UDP, tos, &udp);
    let kind = if from.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
    ethernet::build(to_mac, OURS, vlan, kind, &packet)
}

/// Tells a stack with addresses of [`resolver`] where a neighbour is: it asks for us.
fn introduce(stack: &mut impl Port, wire: &Wire, vlan: Option<u16>, neighbour: IpAddr, at: Mac) {
    let frame = match neighbour {
        IpAddr::V4(address) => {
            let mut message = vec![0, 1, 8, 0, 6, 4, 0, 1];
            message.extend_from_slice(&at);
            message.extend_from_slice(&address.octets());
            message.extend_from_slice(&[0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
            ethernet::build(OURS, at, vlan, ethernet::ARP, &message)
        }
        IpAddr::V6(_) => {
            let IpAddr::V6(own) = ip("fd00::1") else { panic!("of this version") };
            let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
            message.extend_from_slice(&own.octets());
            message.extend_from_slice(&[1, 1]);
            message.extend_from_slice(&at);
            let sum = packet::checksum::Sum::default()
                .pseudo_header(neighbour, own.into(), protocol::ICMPV6, message.len())
                .octets(&message)
                .finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let mut packet = ip_packet(neighbour, own.into(), protocol::ICMPV6, 0, &message);
            packet[7] = 255;
            ethernet::build(OURS, at, vlan, ethernet::IPV6, &packet)
        }
    };
    wire.inject(&frame, socket("0.0.0.0:0"));
    assert_eq!(stack.receive(&mut Vector::new(4, 2048)).unwrap(), 0);
    assert_eq!(wire.take().len(), 1, "it is answered");
}

/// Sends payloads to the peer with a number, each with its traffic class.
fn send(stack: &mut impl Port, peers: &Arc<Peers>, number: u16, packets: &[(u8, impl AsRef<[u8]>)]) -> Sent {
    let mut batch = Vector::new(64, 2048);
    batch.set_peers(peers);
    for (tos, payload) in packets {
        assert!(batch.push(payload.as_ref(), socket("203.0.113.1:9")));
        let mut frame = batch.last_mut().unwrap();
        frame.set_tos(*tos);
        frame.send_to(number);
    }
    let selected: Vec<u16> = (0..batch.len() as u16).collect();
    stack.transmit(&mut batch, &selected)
}

fn frames(wire: &Wire) -> Vec<Vec<u8>> {
    wire.take().into_iter().map(|(frame, _)| frame).collect()
}

/// Peers of both IP versions, on the link and behind its router, with and without a VLAN, by number and by address, with
/// payloads of every length.
#[test]
fn every_octet_is_right_at_every_length() {
    for (local, peer, router) in [
        ("10.0.0.1:2152", "10.0.0.9:2152", None),
        ("10.0.0.1:2152", "198.51.100.200:40000", Some("10.0.0.254")),
        ("[fd00::1]:2152", "[fd00::9]:2152", None),
        ("[fd00::1]:2152", "[2001:db8:ffff::fffe]:40001", Some("fd00::ff")),
    ] {
        let (local, peer) = (socket(local), socket(peer));
        for vlan in [None, Some(100), Some(4094)] {
            let (mut stack, wire) = udp_stack(local, vlan);
            introduce(&mut stack, &wire, vlan, router.map_or(peer.ip(), ip), mac(9));
            let peers = Arc::new(Peers::default());
            assert!(peers.set(7, peer));
            let most = MTU - if local.is_ipv4() { 28 } else { 48 };
            for length in 1..=most {
                let payload: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
                let tos = (length * 37) as u8;
                let expected = [datagram(mac(9), vlan, local, peer, tos, &payload)];
                let sent = send(&mut stack, &peers, 7, &[(tos, &payload)]);
                assert_eq!((sent.packets, sent.bytes), (1, length), "{sent:?}");
                assert_eq!(frames(&wire), expected, "{local} to {peer}, {vlan:?}, {length}");
                let mut batch = Vector::new(1, 2048);
                assert!(batch.push(&payload, peer));
                batch.frame_mut(0).set_tos(tos);
                assert_eq!(stack.transmit(&mut batch, &[0]).packets, 1);
                assert_eq!(frames(&wire), expected, "by address");
            }
            let long = vec![0; most + 1];
            assert_eq!(send(&mut stack, &peers, 7, &[(0, &long[..]), (0, b"x")]).too_big, 1);
            assert_eq!(frames(&wire).len(), 1);
        }
    }
}

/// A UDP checksum that comes out as 0 is sent as 65,535 (RFC 8200 §8.1).
#[test]
fn no_checksum_over_ipv6_is_zero() {
    let (local, peer) = (socket("[fd00::1]:2152"), socket("[fd00::9]:2152"));
    let (mut stack, wire) = udp_stack(local, None);
    introduce(&mut stack, &wire, None, peer.ip(), mac(9));
    let peers = Arc::new(Peers::default());
    assert!(peers.set(7, peer));
    let plain = datagram(mac(9), None, local, peer, 0, &[0; 2]);
    let sum = plain[14 + 46..14 + 48].to_vec();
    assert_eq!(send(&mut stack, &peers, 7, &[(0, &sum)]).packets, 1);
    assert_eq!(frames(&wire)[0][14 + 46..], [0xFF, 0xFF, sum[0], sum[1]]);
}

/// Packets whose headroom other headers have used: the window does not fit, the header does or does not.
#[test]
fn little_headroom_is_enough_for_the_header_alone() {
    for (local, peer, vlan, least) in [
        ("10.0.0.1:2152", "10.0.0.9:2152", None, 42),
        ("10.0.0.1:2152", "10.0.0.9:2152", Some(5), 46),
        ("[fd00::1]:2152", "[fd00::9]:2152", Some(5), 66),
    ] {
        let (local, peer) = (socket(local), socket(peer));
        let (mut stack, wire) = udp_stack(local, vlan);
        introduce(&mut stack, &wire, vlan, peer.ip(), mac(9));
        let peers = Arc::new(Peers::default());
        assert!(peers.set(1, peer));
        for left in 0..=128 {
            let mut batch = Vector::new(1, 256);
            batch.set_peers(&peers);
            assert!(batch.push(b"x", local));
            let mut frame = batch.frame_mut(0);
            frame.send_to(1);
            assert!(frame.grow_front(pktio::HEADROOM - left));
            frame.packet_mut().fill(left as u8);
            let expected = datagram(mac(9), vlan, local, peer, 0, frame.packet());
            let sent = stack.transmit(&mut batch, &[0]);
            let fits = left >= least;
            assert_eq!((sent.packets, sent.errors), (usize::from(fits), usize::from(!fits)), "{left}");
            assert_eq!(frames(&wire), if fits { vec![expected] } else { vec![] }, "{left}");
        }
    }
}

/// A neighbour's address changes between two vectors: all of the first one go to the old address, all of the second to
/// the new one. Another neighbour's headers stay right.
#[test]
fn a_neighbour_that_moves_is_followed_at_once() {
    let local = socket("10.0.0.1:2152");
    let (mut stack, wire) = udp_stack(local, Some(100));
    let peers = Arc::new(Peers::default());
    let (moves, stays) = (socket("10.0.0.9:2152"), socket("10.0.0.8:2152"));
    assert!(peers.set(1, moves) && peers.set(2, stays));
    introduce(&mut stack, &wire, Some(100), stays.ip(), mac(200));
    for round in 0..100 {
        introduce(&mut stack, &wire, Some(100), moves.ip(), mac(round));
        for _ in 0..3 {
            assert_eq!(send(&mut stack, &peers, 1, &[(0, b"moves"); 5]).packets, 5);
            assert_eq!(send(&mut stack, &peers, 2, &[(0, b"stays"); 5]).packets, 5);
        }
        let expected = [
            datagram(mac(round), Some(100), local, moves, 0, b"moves"),
            datagram(mac(200), Some(100), local, stays, 0, b"stays"),
        ];
        for (n, frame) in frames(&wire).iter().enumerate() {
            assert_eq!(*frame, expected[n / 5 % 2], "{round}, {n}");
        }
    }
}

#[test]
fn numbers_can_be_given_again() {
    let local = socket("10.0.0.1:2152");
    let (mut stack, wire) = udp_stack(local, None);
    let peers = Arc::new(Peers::default());
    for n in 2..100u8 {
        introduce(&mut stack, &wire, None, IpAddr::from([10, 0, 0, n]), mac(n));
    }
    assert_eq!(send(&mut stack, &peers, 5, &[(0, b"x")]).errors, 1, "nobody has the number");
    for n in 2..100u8 {
        let peer = SocketAddr::from(([10, 0, 0, n], 2000 + u16::from(n)));
        assert!(peers.set(5, peer));
        assert_eq!(send(&mut stack, &peers, 5, &[(n, &b"x"[..]), (0, b"yy")]).packets, 2);
        let expected =
            [(n, &b"x"[..]), (0, b"yy")].map(|(tos, it)| datagram(mac(n), None, local, peer, tos, it));
        assert_eq!(frames(&wire), expected);
        // One that this port cannot reach.
        assert!(peers.set(5, socket("[fd00::9]:2152")));
        assert_eq!(send(&mut stack, &peers, 5, &[(0, b"x")]).packets, 0);
        assert!(frames(&wire).iter().all(|frame| frame[12..14] != [0x08, 0x00]));
    }
}

/// One table, and ports that differ in address, port number or VLAN: each sends with its own headers.
#[test]
fn a_table_serves_several_ports() {
    let peers = Arc::new(Peers::default());
    let peer = socket("10.0.0.9:2152");
    assert!(peers.set(1, peer));
    let mut ports: Vec<_> = [("10.0.0.1:2152", None), ("10.0.0.1:2152", Some(7)), ("10.0.0.1:2153", None)]
        .map(|(local, vlan)| (socket(local), vlan, udp_stack(socket(local), vlan)))
        .into();
    for (n, (_, vlan, (stack, wire))) in ports.iter_mut().enumerate() {
        introduce(stack, wire, *vlan, peer.ip(), mac(n as u8));
    }
    for _ in 0..5 {
        for (n, (local, vlan, (stack, wire))) in ports.iter_mut().enumerate() {
            assert_eq!(send(stack, &peers, 1, &[(0, b"x"); 2]).packets, 2);
            let expected = datagram(mac(n as u8), *vlan, *local, peer, 0, b"x");
            assert_eq!(frames(wire), [expected.clone(), expected]);
        }
    }
}

/// Somebody gives a number other addresses while packets are sent to it: no packet has parts of two headers.
#[test]
fn no_packet_has_parts_of_two_headers() {
    let local = socket("10.0.0.1:2152");
    let (mut stack, wire) = udp_stack(local, None);
    let known: Vec<SocketAddr> =
        (2..10u8).map(|n| SocketAddr::from(([10, 0, 0, n], u16::from_be_bytes([n, n])))).collect();
    for (peer, n) in known.iter().zip(2..) {
        introduce(&mut stack, &wire, None, peer.ip(), mac(n));
    }
    let possible: HashSet<Vec<u8>> =
        known.iter().zip(2..).map(|(peer, n)| datagram(mac(n), None, local, *peer, 0, b"payload")).collect();
    let peers = Arc::new(Peers::default());
    assert!(peers.set(3, known[0]));
    let stop = AtomicBool::new(false);
    let mut seen = HashSet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for peer in known.iter().cycle() {
                assert!(peers.set(3, *peer));
                (0..200).for_each(|_| std::hint::spin_loop());
                if stop.load(Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..5000 {
            assert_eq!(send(&mut stack, &peers, 3, &[(0, b"payload"); 20]).packets, 20);
            for frame in frames(&wire) {
                assert!(possible.contains(&frame), "{frame:02x?}");
                seen.insert(frame);
            }
        }
        stop.store(true, Relaxed);
    });
    assert!(seen.len() > 1, "the number changed meanwhile");
    // The last one stays.
    assert!(peers.set(3, known[5]));
    assert_eq!(send(&mut stack, &peers, 3, &[(0, b"payload")]).packets, 1);
    assert_eq!(frames(&wire), [datagram(mac(7), None, local, known[5], 0, b"payload")]);
}

/// Our own addresses, broadcasts and groups are no next hops, even if the configuration names one as a router.
#[test]
fn own_addresses_are_no_next_hop() {
    let (port, wire) = pair(1000);
    let addresses = [("10.0.0.1", 24), ("10.7.0.1", 32), ("fd00::1", 64)];
    let addresses = addresses.map(|(address, prefix)| net::link::Cidr::new(ip(address), prefix).unwrap());
    let resolver = Resolver::new(&addresses, &[ip("10.7.0.1"), ip("10.0.0.254"), ip("fd00::1")]);
    let mut stack = IpStack::new(Frames(port), None, Neighbours::Own(Box::new(resolver))).unwrap();
    let mut try_to = |to: &str| {
        let from = if ip(to).is_ipv4() { "10.45.0.1" } else { "fd45::1" };
        let packet = ip_packet(ip(from), ip(to), 59, 0, b"x");
        let mut batch = Vector::new(1, 256);
        assert!(batch.push(&packet, socket("0.0.0.0:0")));
        let sent = stack.transmit(&mut batch, &[0]);
        (sent.packets, sent.unresolved, frames(&wire))
    };
    for refused in [
        "10.0.0.1",
        "10.7.0.1",
        "10.0.0.255",
        "255.255.255.255",
        "224.0.0.5",
        "fd00::1",
        "ff02::1",
        "2001:db8::1",
    ] {
        let (packets, unresolved, frames) = try_to(refused);
        assert_eq!((packets, unresolved, frames.len()), (0, 1, 0), "{refused}");
    }
    // Held, and asked for: the second router, since the first is ourselves.
    let (packets, _, questions) = try_to("198.51.100.1");
    assert_eq!((packets, questions.len()), (1, 1));
    assert_eq!(questions[0][38..42], [10, 0, 0, 254]);
}

/// `ip` in a namespace.
fn run(namespace: &NetNs, command: &str) {
    let run = || std::process::Command::new("ip").args(command.split(' ')).status();
    assert!(namespace.enter(run).unwrap().unwrap().success(), "ip {command}");
}

/// A namespace with `up0`, 10.0.0.1/24 and fd00::1/64, whose other end is somewhere. The interface has [`OURS`].
fn kernel_net() -> (NetNs, NetNs, u32) {
    let (ours, other) = (NetNs::new().expect("tests run with CAP_SYS_ADMIN"), NetNs::new().unwrap());
    run(&ours, "link add up0 address 02:00:00:00:00:01 type veth peer name peer0");
    let path = other.path();
    run(&ours, &format!("link set peer0 netns {}", path.display()));
    run(&other, "link set peer0 up");
    run(&ours, "link set lo up");
    run(&ours, "link set up0 up");
    run(&ours, "address add 10.0.0.1/24 dev up0");
    run(&ours, "address add fd00::1/64 dev up0 nodad");
    let index = ours.enter(|| nix::net::if_::if_nametoindex("up0").unwrap()).unwrap();
    (ours, other, index)
}

/// Neighbours, routes and the interface's own address change in the kernel while packets flow: every frame is one that was
/// right before or is right after the change, and soon all are the latter.
#[test]
fn changes_in_the_kernel_reach_every_header() {
    let (ours, _other, index) = kernel_net();
    for (address, n) in [("10.0.0.8", 8), ("10.0.0.9", 9), ("fd00::9", 19)] {
        run(&ours, &format!("neighbour add {address} lladdr 02:00:00:00:09:{n:02x} dev up0 nud permanent"));
    }
    run(&ours, "route add 198.51.100.0/24 via 10.0.0.8");
    let tables = ours.enter(|| KernelTables::follow(index).unwrap()).unwrap();
    let slow = Slow::default();
    let local = socket("10.0.0.1:2152");
    let (port, wire) = pair(1 << 16);
    let neighbours = Neighbours::Kernel(tables.reader(), Box::new(slow.clone()));
    let mut stack = UdpStack::new(Frames(port), local, None, neighbours).unwrap();
    let peers = Arc::new(Peers::default());
    let peer = socket("198.51.100.1:2152");
    assert!(peers.set(9, peer));
    let frame_to = |to: Mac, from: Mac| {
        let mut frame = datagram(to, None, local, peer, 0, b"payload");
        frame[6..12].copy_from_slice(&from);
        frame
    };
    let mut last = Some(frame_to(mac(8), OURS));
    let moved: Mac = [2, 0, 0, 0, 0, 0x77];
    for (change, expected) in [
        ("neighbour change 10.0.0.8 lladdr 02:00:00:00:09:28 dev up0 nud permanent", Some((mac(0x28), OURS))),
        ("route replace 198.51.100.0/24 via 10.0.0.9", Some((mac(9), OURS))),
        ("route add 198.51.100.1/32 via 10.0.0.8 metric 10", Some((mac(0x28), OURS))),
        ("route add blackhole 198.51.100.1/32 metric 5", None),
        ("route del blackhole 198.51.100.1/32", Some((mac(0x28), OURS))),
        ("route add unreachable 198.51.100.1/32", None),
        ("route replace 198.51.100.1/32 via inet6 fd00::9 dev up0", Some((mac(19), OURS))),
        // The kernel forgets all neighbours.
        ("link set up0 address 02:00:00:00:00:77", None),
        ("neighbour add fd00::9 lladdr 02:00:00:00:09:13 dev up0 nud permanent", Some((mac(19), moved))),
        ("neighbour add 10.0.0.8 lladdr 02:00:00:00:09:28 dev up0 nud permanent", Some((mac(19), moved))),
        ("neighbour add 10.0.0.9 lladdr 02:00:00:00:09:09 dev up0 nud permanent", Some((mac(19), moved))),
        ("route del 198.51.100.1/32", Some((mac(0x28), moved))),
        ("route del 198.51.100.1/32 metric 10", Some((mac(9), moved))),
        ("neighbour del 10.0.0.9 dev up0", None),
        ("neighbour add 10.0.0.9 lladdr 02:00:00:00:09:39 dev up0 nud permanent", Some((mac(0x39), moved))),
        // Our own address, of another interface: nothing goes to a router.
        ("address add 198.51.100.1/32 dev lo", None),
    ] {
        let next = expected.map(|(to, from)| frame_to(to, from));
        let mut settled = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| run(&ours, change));
            let began = net::time::now_std();
            while settled < 3 {
                assert!(began.elapsed() < Duration::from_secs(5), "{change}: it takes no effect");
                let before = slow.0.load(Relaxed);
                assert_eq!(send(&mut stack, &peers, 9, &[(0, b"payload"); 30]).packets, 30);
                let (sent, left) = (frames(&wire), slow.0.load(Relaxed) - before);
                assert!(sent.is_empty() || left == 0, "one vector, one copy of the tables");
                for frame in &sent {
                    assert!(
                        [&last, &next].map(Option::as_ref).contains(&Some(frame)),
                        "{change}: {frame:02x?}"
                    );
                }
                let is_new = match &next {
                    Some(next) => sent.len() == 30 && sent.iter().all(|frame| frame == next),
                    None => left == 30,
                };
                // Once there, it stays.
                assert!(is_new || settled == 0, "{change}: back to the old state");
                settled += usize::from(is_new);
                net::time::sleep_thread(Duration::from_micros(300));
            }
        });
        last = next;
    }
}

/// Workers with two endpoints send to one number, while it is given other addresses and the kernel's neighbours move: each
/// frame is one of its worker's, to an address that the number had, at a place where that was.
#[test]
fn workers_share_a_table_that_changes() {
    let (ours, _other, index) = kernel_net();
    let place = |host: u8, n: u8| {
        let command = "neighbour replace 10.0.0.";
        run(&ours, &format!("{command}{host} lladdr 02:00:00:00:09:{n:02x} dev up0 nud permanent"));
    };
    let peers = Arc::new(Peers::default());
    let hosts: [u8; 2] = [8, 9];
    let address = |host: u8| SocketAddr::from(([10, 0, 0, host], 2000 + u16::from(host)));
    hosts.iter().for_each(|host| place(*host, *host));
    assert!(peers.set(1, address(8)));
    let tables = ours.enter(|| KernelTables::follow(index).unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    let work = |local: &str| {
        let local = socket(local);
        let possible: HashSet<Vec<u8>> = hosts
            .iter()
            .flat_map(|host| {
                [*host, host + 16].map(|n| datagram(mac(n), None, local, address(*host), 0, b"user's"))
            })
            .collect();
        let (port, wire) = pair(1 << 10);
        let neighbours = Neighbours::Kernel(tables.reader(), Box::new(Slow::default()));
        let mut stack = UdpStack::new(Frames(port), local, None, neighbours).unwrap();
        let mut seen = HashSet::new();
        while !stop.load(Relaxed) {
            assert_eq!(send(&mut stack, &peers, 1, &[(0, b"user's"); 32]).packets, 32);
            for frame in frames(&wire) {
                assert!(possible.contains(&frame), "{local}: {frame:02x?}");
                seen.insert(frame);
            }
        }
        seen.len()
    };
    std::thread::scope(|scope| {
        let workers =
            ["10.0.0.1:2152", "10.0.0.1:2152", "10.0.0.1:2153"].map(|local| scope.spawn(move || work(local)));
        for round in 0..16u8 {
            hosts.iter().for_each(|host| place(*host, host + 16 * (round % 2)));
            for n in 0..50 {
                assert!(peers.set(1, address(hosts[n % 2])));
                std::thread::yield_now();
            }
            if workers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
        }
        stop.store(true, Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 1, "it changed meanwhile");
        }
    });
}

/// N6: what the kernel would not simply send to a router or neighbour is left to it.
#[test]
fn packets_that_are_not_simply_sent_are_left_to_the_kernel() {
    let (ours, _other, index) = kernel_net();
    for (address, n) in [("10.0.0.9", 9), ("fd00::9", 19)] {
        run(&ours, &format!("neighbour add {address} lladdr 02:00:00:00:09:{n:02x} dev up0 nud permanent"));
    }
    for route in [
        "default via 10.0.0.9",
        "default via fd00::9",
        "blackhole 192.0.2.0/25",
        "192.0.2.8/29 via 10.0.0.9",
        "unreachable 192.0.2.128/26",
        "prohibit 192.0.2.192/26",
        "blackhole 2001:db8:1::/48",
        "203.0.113.0/24 nexthop via 10.0.0.9 nexthop via 10.0.0.8",
        "198.18.0.0/15 dev lo",
    ] {
        run(&ours, &format!("route add {route}"));
    }
    run(&ours, "address add 172.16.5.5/32 dev lo");
    run(&ours, "address add fd99::5/128 dev lo");
    let tables = ours.enter(|| KernelTables::follow(index).unwrap()).unwrap();
    let slow = Slow::default();
    let (port, wire) = pair(1000);
    let neighbours = Neighbours::Kernel(tables.reader(), Box::new(slow.clone()));
    let mut stack = IpStack::new(Frames(port), Some(30), neighbours).unwrap();
    for (to, expected) in [
        ("8.8.8.8", Some(9)),
        ("10.0.0.9", Some(9)),
        ("10.0.0.10", None),
        ("10.0.0.1", None),
        ("10.0.0.255", None),
        ("127.0.0.1", None),
        ("172.16.5.5", None),
        ("172.16.5.6", Some(9)),
        ("192.0.2.1", None),
        ("192.0.2.9", Some(9)),
        ("192.0.2.16", None),
        ("192.0.2.130", None),
        ("192.0.2.200", None),
        ("198.19.255.255", None),
        ("203.0.113.7", None),
        ("224.0.0.1", None),
        ("2001:db8::1", Some(19)),
        ("2001:db8:1::1", None),
        ("fd00::9", Some(19)),
        ("fd00::1", None),
        ("fd99::5", None),
        ("fd99::6", Some(19)),
        ("ff02::1", None),
    ] {
        let from = if ip(to).is_ipv4() { "10.45.0.1" } else { "fd45::1" };
        let packet = ip_packet(ip(from), ip(to), 59, 0x28, b"user's");
        let mut batch = Vector::new(1, 256);
        assert!(batch.push(&packet, socket("0.0.0.0:0")));
        let before = slow.0.load(Relaxed);
        assert_eq!(stack.transmit(&mut batch, &[0]).packets, 1);
        let kind = if ip(to).is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        let expected: Vec<Vec<u8>> =
            expected.iter().map(|n| ethernet::build(mac(*n), OURS, Some(30), kind, &packet)).collect();
        assert_eq!(frames(&wire), expected, "{to}");
        assert_eq!(slow.0.load(Relaxed) - before, 1 - expected.len(), "{to}");
    }
}
