//! The frame stack against the real kernel: AF_XDP on one end of a veth pair, ordinary sockets on the other.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::memory::{self, MemoryPort};
use pktio::poll::Poller;
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::kernel::KernelTables;
use pktio::stack::raw::RawPort;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;
use pktio::{FrameMut, FramePort, Port, Sent, Vector};
use telemetry::DropReason;

/// Two namespaces with a veth pair `up0`–`peer0`. The peer has 10.0.0.2, fd00::2 and, behind it, 198.51.100.1 and
/// fd01::1; we have 10.0.0.1 and fd00::1 if the kernel is to have them.
struct Net {
    ours: NetNs,
    peer: NetNs,
    runtime: tokio::runtime::Runtime,
}

fn cidr(text: &str) -> net::link::Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(kernel_has_addresses: bool) -> Net {
    let (ours, peer) = (NetNs::new().expect("tests run with CAP_SYS_ADMIN"), NetNs::new().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let links = Links::in_ns(&ours).unwrap();
        links.add_veth("up0", "peer0", &peer).await.unwrap();
        for (namespace, name, addresses) in [
            (&ours, "up0", ["10.0.0.1/24", "fd00::1/64"].as_slice()),
            (&peer, "peer0", &["10.0.0.2/24", "fd00::2/64"]),
            (&peer, "lo", &["198.51.100.1/32", "fd01::1/128"]),
        ] {
            let links = Links::in_ns(namespace).unwrap();
            links.up(name).await.unwrap();
            for address in addresses.iter().filter(|_| kernel_has_addresses || name != "up0") {
                links.add_address(name, cidr(address)).await.unwrap();
            }
        }
        if kernel_has_addresses {
            for (network, gateway) in [("198.51.100.0/24", "10.0.0.2"), ("fd01::/64", "fd00::2")] {
                links.add_route(cidr(network), Some(ip(gateway)), None).await.unwrap();
            }
        }
        let links = Links::in_ns(&peer).unwrap();
        for (network, gateway) in [("10.45.0.0/16", "10.0.0.1"), ("fd45::/48", "fd00::1")] {
            links.add_route(cidr(network), Some(ip(gateway)), None).await.unwrap();
        }
    });
    Net { ours, peer, runtime }
}

impl Net {
    fn af_xdp(&self, selects: &[Select]) -> (AfXdpPort, u32) {
        let open = || {
            let interface = Interface::open("up0", None, selects).unwrap();
            let mut memory = Memory::new(1, [interface.device()]).unwrap();
            let port = AfXdpPort::open(&interface, [0], &mut memory, Options::default()).unwrap();
            (port, interface.device().index)
        };
        self.ours.enter(open).unwrap()
    }

    fn peer(&self, address: &str) -> UdpSocket {
        let socket = self.peer.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    }
}

/// Receives until a packet satisfies `wanted`, while the stack answers and asks neighbours.
fn until(port: &mut impl Port, batch: &mut Vector, mut wanted: impl FnMut(FrameMut<'_>) -> bool) {
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    for _ in 0..100 {
        poller.wait(Some(50), |_| ()).unwrap();
        while port.receive(batch).unwrap() > 0 {
            if batch.frames_mut().any(&mut wanted) {
                return;
            }
        }
    }
    panic!("it did not come");
}

fn send(port: &mut impl Port, payload: &[u8], to: SocketAddr, tos: u8) -> Sent {
    let mut batch = Vector::new(1, 9000);
    assert!(batch.push(payload, to));
    batch.frame_mut(0).set_tos(tos);
    port.transmit(&mut batch, &[0])
}

/// Exchanges datagrams of many sizes with a socket. The first one makes the neighbours known to each other.
fn converse<F: FramePort>(stack: &mut UdpStack<F>, local: SocketAddr, socket: &UdpSocket) {
    let to = socket.local_addr().unwrap();
    let mut batch = Vector::new(64, 2048);
    let mut bytes = [0; 2048];
    for length in [1usize, 2, 63, 100, 1000, 1400] {
        let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
        let sent = send(stack, &payload, to, 0x28);
        assert_eq!((sent.packets, sent.bytes), (1, length), "{sent:?}");
        // The stack may have to resolve the neighbour first.
        stack.receive(&mut batch).unwrap();
        socket.send_to(&payload, local).unwrap();
        until(stack, &mut batch, |buffer| {
            assert_eq!(*buffer.peer, to);
            buffer.packet() == payload
        });
        assert_eq!(socket.recv_from(&mut bytes).unwrap(), (length, local));
        assert_eq!(bytes[..length], payload);
    }
    assert_eq!(send(stack, &[0; 1473], to, 0).too_big, 1);
    stack.losses(&mut |reason, count| panic!("{count} lost: {}", reason.name()));
}

#[test]
fn udp_on_the_kernels_interface() {
    let net = net(true);
    for address in ["10.0.0.1:2152", "[fd00::1]:2152"] {
        let local: SocketAddr = address.parse().unwrap();
        let (frames, index) = net.af_xdp(&[Select::Udp(local.ip(), local.port())]);
        let (tables, slow) = net
            .ours
            .enter(|| (KernelTables::follow(index).unwrap(), UdpPort::bind(local, false).unwrap()))
            .unwrap();
        let neighbours = Neighbours::Kernel(tables.reader(), Box::new(slow));
        let mut stack = UdpStack::new(frames, local, None, neighbours).unwrap();
        for peer in if local.is_ipv4() {
            ["10.0.0.2:0", "198.51.100.1:2152"]
        } else {
            ["[fd00::2]:0", "[fd01::1]:2152"]
        } {
            converse(&mut stack, local, &net.peer(peer));
        }
    }
}

/// The kernel's socket, and how many packets it was given to send.
struct Counted(UdpPort, Arc<AtomicUsize>);

impl Port for Counted {
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        self.0.receive(batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.1.fetch_add(selected.len(), Relaxed);
        self.0.transmit(batch, selected)
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.fd()
    }
}

/// The kernel's socket sends until the neighbour is known; later packets, with their marking, do not pass the kernel.
#[test]
fn the_kernel_only_sends_the_first_packets() {
    let net = net(true);
    let local: SocketAddr = "10.0.0.1:2152".parse().unwrap();
    let (frames, index) = net.af_xdp(&[Select::Udp(local.ip(), local.port())]);
    let open = || (KernelTables::follow(index).unwrap(), UdpPort::bind(local, false).unwrap());
    let (tables, slow) = net.ours.enter(open).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let slow = Box::new(Counted(slow, Arc::clone(&count)));
    let mut stack = UdpStack::new(frames, local, None, Neighbours::Kernel(tables.reader(), slow)).unwrap();
    let socket = net.peer("198.51.100.1:2152");
    let to = socket.local_addr().unwrap();
    assert_eq!((send(&mut stack, b"x", to, 0).packets, count.load(Relaxed)), (1, 1));
    let fast = (0..100).any(|_| {
        net::time::sleep_thread(Duration::from_millis(20));
        let before = count.load(Relaxed);
        assert_eq!(send(&mut stack, b"x", to, 0).packets, 1);
        count.load(Relaxed) == before
    });
    assert!(fast, "the neighbour was learnt");

    // A new route takes effect.
    net.runtime.block_on(async {
        let links = Links::in_ns(&net.ours).unwrap();
        links.add_route(cidr("198.51.100.1/32"), None, Some("lo")).await.unwrap();
    });
    let slow = (0..100).any(|_| {
        net::time::sleep_thread(Duration::from_millis(20));
        let before = count.load(Relaxed);
        send(&mut stack, b"x", to, 0);
        count.load(Relaxed) > before
    });
    assert!(slow, "the route was learnt");
}

/// Packets that the BPF program leaves to the kernel arrive too: the kernel reassembles a datagram in fragments.
#[test]
fn fragments_come_by_way_of_the_kernel() {
    let net = net(true);
    let local: SocketAddr = "10.0.0.1:2152".parse().unwrap();
    let (frames, index) = net.af_xdp(&[Select::Udp(local.ip(), local.port())]);
    let (tables, slow) = net
        .ours
        .enter(|| (KernelTables::follow(index).unwrap(), UdpPort::bind(local, false).unwrap()))
        .unwrap();
    let neighbours = Neighbours::Kernel(tables.reader(), Box::new(slow));
    let mut stack = UdpStack::new(frames, local, None, neighbours).unwrap();
    let socket = net.peer("10.0.0.2:0");
    let payload: Vec<u8> = (0..4000u32).map(|i| i as u8).collect();
    socket.send_to(&payload, local).unwrap();
    until(&mut stack, &mut Vector::new(4, 9000), |buffer| buffer.packet() == payload);
    // A datagram that is too long for a frame is not sent, and not fragmented.
    assert_eq!(send(&mut stack, &payload, socket.local_addr().unwrap(), 0).too_big, 1);
}

/// A packet between a UE and a server.
fn ip_packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let datagram = build_udp((from.ip(), from.port()), (to.ip(), to.port()), payload).unwrap();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4::Header::new(from, to, protocol::UDP).build(&datagram).unwrap()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Header::new(from, to, protocol::UDP).build(&datagram).unwrap()
        }
        _ => panic!("one family"),
    }
}

/// A UE exchanges packets with servers of both IP versions, on the link and behind a gateway.
fn serve_ues<F: FramePort>(net: &Net, stack: &mut IpStack<F>) {
    let mut batch = Vector::new(64, 2048);
    for (ue, server) in [
        ("10.45.0.9:5000", "10.0.0.2:0"),
        ("10.45.0.9:5001", "198.51.100.1:0"),
        ("[fd45::9]:5000", "[fd00::2]:0"),
        ("[fd45::9]:5001", "[fd01::1]:0"),
    ] {
        let ue: SocketAddr = ue.parse().unwrap();
        let socket = net.peer(server);
        let server = socket.local_addr().unwrap();
        for n in 0..3u8 {
            let packet = ip_packet(ue, server, &[n; 100]);
            let sent = send(stack, &packet, "0.0.0.0:0".parse().unwrap(), 0);
            assert_eq!((sent.packets, sent.bytes), (1, packet.len()), "{ue} to {server}: {sent:?}");
            socket.send_to(&[n; 100], ue).unwrap();
            until(stack, &mut batch, |buffer| buffer.packet().ends_with(&[n; 100]));
            let mut bytes = [0; 128];
            assert_eq!(socket.recv_from(&mut bytes).unwrap(), (100, ue));
            assert_eq!(bytes[..100], [n; 100]);
        }
    }
}

#[test]
fn ip_on_the_kernels_interface() {
    let net = net(true);
    let pools = [Select::Prefix(cidr("10.45.0.0/16")), Select::Prefix(cidr("fd45::/48"))];
    let (frames, index) = net.af_xdp(&pools);
    let (tables, slow) =
        net.ours.enter(|| (KernelTables::follow(index).unwrap(), RawPort::open().unwrap())).unwrap();
    let neighbours = Neighbours::Kernel(tables.reader(), Box::new(slow));
    let mut stack = IpStack::new(frames, None, neighbours).unwrap();
    serve_ues(&net, &mut stack);
}

fn resolver() -> Neighbours {
    let addresses = [cidr("10.0.0.1/24"), cidr("fd00::1/64")];
    Neighbours::Own(Box::new(Resolver::new(&addresses, &[ip("10.0.0.2"), ip("fd00::2")])))
}

#[test]
fn ip_on_an_interface_of_our_own() {
    let net = net(false);
    let (frames, _) = net.af_xdp(&[Select::Everything]);
    let mut stack = IpStack::new(frames, None, resolver()).unwrap();
    serve_ues(&net, &mut stack);
}

#[test]
fn udp_on_an_interface_of_our_own() {
    let net = net(false);
    for address in ["10.0.0.1:2152", "[fd00::1]:2152"] {
        let local: SocketAddr = address.parse().unwrap();
        let (frames, _) = net.af_xdp(&[Select::Everything]);
        let mut stack = UdpStack::new(frames, local, None, resolver()).unwrap();
        // Both sides resolve each other's address.
        let socket = net.peer(if local.is_ipv4() { "10.0.0.2:0" } else { "[fd00::2]:0" });
        socket.send_to(b"hello", local).unwrap();
        until(&mut stack, &mut Vector::new(4, 2048), |buffer| buffer.packet() == b"hello");
        // Packets that the kernel sends on its own, such as multicast listener reports, are not used.
        stack.losses(&mut |reason, _| assert_eq!(reason, DropReason::N3NotServed));
        converse_quietly(&mut stack, local, &socket);
    }
}

fn converse_quietly<F: FramePort>(stack: &mut UdpStack<F>, local: SocketAddr, socket: &UdpSocket) {
    let to = socket.local_addr().unwrap();
    let mut bytes = [0; 64];
    for n in 0..5u8 {
        assert_eq!(send(stack, &[n; 33], to, 0).packets, 1);
        assert_eq!(socket.recv_from(&mut bytes).unwrap(), (33, local));
        socket.send_to(&[n; 33], local).unwrap();
        until(stack, &mut Vector::new(4, 2048), |buffer| buffer.packet() == [n; 33]);
    }
}

/// Packets to a neighbour that never answers wait within bounds, and are counted as lost when it is given up, although
/// nothing else is sent.
#[test]
fn packets_to_a_silent_neighbour_are_bounded_and_counted() {
    let net = net(false);
    let (frames, _) = net.af_xdp(&[Select::Everything]);
    let mut stack = UdpStack::new(frames, "10.0.0.1:2152".parse().unwrap(), None, resolver()).unwrap();
    let (mut held, mut refused) = (0, 0);
    for _ in 0..100 {
        let sent = send(&mut stack, b"x", "10.0.0.99:2152".parse().unwrap(), 0);
        held += sent.packets;
        refused += sent.unresolved;
    }
    assert_eq!((held, refused), (32, 68));
    let mut batch = Vector::new(4, 2048);
    let mut lost = 0;
    for _ in 0..60 {
        net::time::sleep_thread(Duration::from_millis(100));
        assert_eq!(stack.unsent(), lost == 0, "the owner must not sleep");
        stack.receive(&mut batch).unwrap();
        stack.losses(&mut |reason, count| {
            if reason == DropReason::NeighbourUnresolved {
                lost += count;
            }
        });
        if lost == 32 {
            return;
        }
    }
    panic!("{lost} of 32 were counted");
}

/// One of several queues of an interface.
struct Queue(MemoryPort);

impl Port for Queue {
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        self.0.receive(batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.0.transmit(batch, selected)
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl FramePort for Queue {
    fn mac(&self) -> packet::ethernet::Mac {
        [2, 0, 0, 0, 0, 1]
    }

    fn mtu(&self) -> usize {
        1500
    }
}

/// Two workers with a queue each: one asks, the answer comes to the other, and both send what waited, in order.
#[test]
fn workers_share_the_neighbours_of_an_interface() {
    const NEIGHBOUR: [u8; 6] = [2, 0, 0, 0, 0, 9];
    let resolver = Resolver::new(&[cidr("10.0.0.1/24")], &[]);
    let stack = |resolver| {
        let (port, wire) = memory::pair(100);
        (IpStack::new(Queue(port), None, Neighbours::Own(Box::new(resolver))).unwrap(), wire)
    };
    let ((mut one, one_wire), (mut other, other_wire)) = (stack(resolver.share()), stack(resolver));
    let to = |host: u8| ip_packet("10.45.0.1:1".parse().unwrap(), ([10, 0, 0, host], 1).into(), &[host]);
    let give = |stack: &mut IpStack<Queue>, payload: u8, host: u8| {
        let mut batch = Vector::new(1, 2000);
        let mut packet = to(host);
        *packet.last_mut().unwrap() = payload;
        assert!(batch.push(&packet, "0.0.0.0:0".parse().unwrap()));
        let sent = stack.transmit(&mut batch, &[0]);
        assert_eq!(sent.packets, 1, "{sent:?}");
    };
    let taken =
        |wire: &memory::Wire| -> Vec<Vec<u8>> { wire.take().into_iter().map(|(frame, _)| frame).collect() };
    let answer = |host: u8| {
        let mut frame = vec![2, 0, 0, 0, 0, 1];
        frame.extend_from_slice(&NEIGHBOUR);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame.extend_from_slice(&NEIGHBOUR);
        frame.extend_from_slice(&[10, 0, 0, host, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        frame
    };
    let payloads = |frames: &[Vec<u8>]| -> Vec<u8> {
        assert!(frames.iter().all(|frame| frame[..6] == NEIGHBOUR), "{frames:?}");
        frames.iter().map(|frame| *frame.last().unwrap()).collect()
    };
    let mut batch = Vector::new(64, 2000);
    for host in [2, 3] {
        (1..4).for_each(|n| give(&mut one, n, host));
        (11..13).for_each(|n| give(&mut other, n, host));
        let asked = taken(&one_wire);
        assert!(asked.len() == 1 && asked[0][12..14] == [8, 6], "one question: {asked:?}");
        assert!(taken(&other_wire).is_empty(), "nobody asks twice");
        assert!(one.unsent() && other.unsent(), "they look for an answer to the other one");
        other_wire.inject(&answer(host), "0.0.0.0:0".parse().unwrap());
        assert_eq!(other.receive(&mut batch).unwrap(), 0);
        assert_eq!(payloads(&taken(&other_wire)), [11, 12]);
        // What has waited goes first, also when nothing was received meanwhile.
        if host == 2 {
            assert_eq!(one.receive(&mut batch).unwrap(), 0);
        }
        give(&mut one, 4, host);
        assert_eq!(payloads(&taken(&one_wire)), [1, 2, 3, 4]);
        assert!(!one.unsent() && !other.unsent());
    }
    // Nobody answers: each counts what it has kept.
    give(&mut one, 1, 4);
    (0..2).for_each(|n| give(&mut other, n, 4));
    for _ in 0..3 {
        net::time::sleep_thread(Duration::from_millis(1100));
        give(&mut one, 1, 2);
    }
    net::time::sleep_thread(Duration::from_millis(1100));
    give(&mut one, 1, 2);
    for (stack, lost) in [(&mut one, 1), (&mut other, 2)] {
        stack.receive(&mut batch).unwrap();
        let mut counted = 0;
        stack.losses(&mut |reason, count| {
            assert_eq!(reason, DropReason::NeighbourUnresolved);
            counted += count;
        });
        assert_eq!(counted, lost);
    }
}
