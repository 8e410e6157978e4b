//! TUN devices and captures against the real kernel, in anonymous network namespaces. Needs root (or a user
//! namespace with its own network, as `make test` sets up).

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;

use net::link::Links;
use net::netns::NetNs;
use packet::transport::build_udp;
use packet::{ipv4, protocol};
use pktio::capture::{Capture, Point};
use pktio::tun::{TunError, TunPort};
use pktio::udp::UdpPort;
use pktio::{Port, Sent, Vector};

/// A namespace with a TUN device that has 10.45.0.1/16 and is up.
fn tun_in_namespace() -> (NetNs, TunPort) {
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let tun = namespace.enter(|| TunPort::create("gw0")).expect("entered").expect("created");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let links = Links::in_ns(&namespace).expect("netlink");
        links.add_address("gw0", "10.45.0.1/16".parse().expect("an address")).await.expect("address");
        links.up("gw0").await.expect("up");
    });
    (namespace, tun)
}

fn udp_packet(from: ([u8; 4], u16), to: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let datagram = build_udp((from.0.into(), from.1), (to.0.into(), to.1), payload).expect("short");
    ipv4::Header::new(from.0.into(), to.0.into(), protocol::UDP).build(&datagram).expect("short")
}

/// Receives until a packet for `port` comes; the kernel may send packets of its own.
fn receive_udp(tun: &mut TunPort, port: u16) -> Option<Vec<u8>> {
    let mut batch = Vector::new(8, 2048);
    let mut poller = pktio::poll::Poller::new().expect("epoll");
    poller.add(tun.fd().expect("a descriptor"), 1).expect("added");
    for _ in 0..100 {
        poller.wait(Some(100), |_| ()).expect("waited");
        tun.receive(&mut batch).expect("received");
        for buffer in batch.frames() {
            let flow = packet::flow::Flow::parse(buffer.packet()).expect("the kernel sends valid packets");
            if flow.ports.is_some_and(|(_, to)| to == port) {
                return Some(buffer.packet().to_vec());
            }
        }
    }
    None
}

#[test]
fn a_tun_device_exchanges_packets_with_the_kernel() {
    let (namespace, mut tun) = tun_in_namespace();
    let socket = namespace.enter(|| UdpSocket::bind("10.45.0.1:7000").unwrap()).unwrap();
    let mut batch = Vector::new(4, 2048);
    assert!(batch.push(
        &udp_packet(([10, 45, 0, 2], 5000), ([10, 45, 0, 1], 7000), b"up"),
        "0.0.0.0:0".parse().unwrap()
    ));
    assert!(batch.push(b"\x00not ip", "0.0.0.0:0".parse().unwrap()));
    let sent = tun.transmit(&mut batch, &[0, 1]);
    assert_eq!((sent.packets, sent.errors), (1, 1), "the kernel refuses what is not IP");
    let mut payload = [0; 16];
    let (length, from) = socket.recv_from(&mut payload).unwrap();
    assert_eq!((&payload[..length], from), (&b"up"[..], "10.45.0.2:5000".parse().unwrap()));

    socket.send_to(b"down", "10.45.0.2:5000").unwrap();
    let packet = receive_udp(&mut tun, 5000).expect("the packet arrives");
    assert!(ipv4::Packet::new(&packet).unwrap().checksum_ok());
    assert_eq!(&packet[28..], b"down");
    assert_eq!(tun.share().transmit(&mut batch, &[]), Sent::default());
}

/// A device with a queue for each worker: packets to an address come from its owner's queue, in order, also after the
/// device was deleted and created again. Packets sent to any queue arrive.
#[test]
fn each_address_has_its_queue() {
    const WORKERS: usize = 3;
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let create = || TunPort::create_queues("gw0", WORKERS as u32);
    let first = namespace.enter(create).expect("entered").expect("created");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut queues: Vec<TunPort> = (0..WORKERS).map(|worker| first.queue(worker)).collect();
    for attempt in 0..2 {
        runtime.block_on(async {
            let links = Links::in_ns(&namespace).expect("netlink");
            for address in ["10.45.0.1/16", "fd00:45::1/48"] {
                links.add_address("gw0", address.parse().expect("an address")).await.expect("address");
            }
            links.up("gw0").await.expect("up");
        });
        let bind = |address: &'static str| {
            let socket = namespace.enter(|| UdpSocket::bind(address)).expect("entered").expect("bound");
            socket.set_nonblocking(true).expect("set");
            socket
        };
        let socket = bind("10.45.0.1:7000");
        let mut next = [0u8; 100];
        let mut used = [0; WORKERS];
        for number in 0..20u8 {
            for ue in 2..100u8 {
                socket.send_to(&[ue, number], (std::net::Ipv4Addr::new(10, 45, 0, ue), 5000)).expect("sent");
            }
            for (worker, queue) in queues.iter_mut().enumerate() {
                let mut batch = Vector::new(64, 2048);
                while queue.receive(&mut batch).expect("received") > 0 {
                    for packet in batch.frames().iter().map(|frame| frame.packet()) {
                        assert_eq!(pktio::owner::of_packet(packet, WORKERS as u32), worker as u32);
                        let flow = packet::flow::Flow::parse(packet).expect("valid");
                        if flow.ports.is_some_and(|(_, to)| to == 5000) {
                            let (ue, number) = (usize::from(packet[28]), packet[29]);
                            assert_eq!(number, next[ue], "in order");
                            next[ue] += 1;
                            used[worker] += 1;
                        }
                    }
                }
            }
        }
        assert!(next[2..].iter().all(|count| *count == 20), "{attempt}: {next:?}");
        assert!(used.iter().all(|count| *count > 20 * 98 / 6), "{used:?}");
        for (worker, queue) in queues.iter_mut().enumerate() {
            let mut batch = Vector::new(1, 2048);
            let packet = udp_packet(([10, 45, 0, 2], 5000), ([10, 45, 0, 1], 7000), &[worker as u8]);
            assert!(batch.push(&packet, "0.0.0.0:0".parse().expect("an address")));
            assert_eq!(queue.transmit(&mut batch, &[0]).packets, 1);
            let mut payload = [0; 4];
            let (length, _) = socket.recv_from(&mut payload).expect("arrived");
            assert_eq!(payload[..length], [worker as u8]);
        }
        if attempt == 0 {
            runtime.block_on(async {
                Links::in_ns(&namespace).expect("netlink").delete("gw0").await.expect("deleted");
            });
            assert!(!first.is_attached());
            namespace.enter(|| first.attach()).expect("entered").expect("created again");
        }
        assert!(queues.iter().all(TunPort::is_attached));
    }
}

/// Packets longer than the MTU, which the kernel does not take as one message, are sent one by one.
#[test]
fn packets_beyond_the_mtu_are_sent_singly() {
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        Links::in_ns(&namespace).expect("netlink").set_mtu("lo", 1500).await.expect("mtu");
    });
    let bind = || UdpPort::bind("127.0.0.1:0".parse().expect("an address"), false).expect("bound");
    let (mut a, mut b) = namespace.enter(|| (bind(), bind())).expect("entered");
    let mut out = Vector::new(8, 4096);
    for n in 0..8u8 {
        assert!(out.push(&[n; 2000], b.local()));
        out.frame_mut(usize::from(n)).set_tos(0x28 * (n / 4));
    }
    let sent = a.transmit(&mut out, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((sent.packets, sent.bytes), (8, 16_000), "{sent:?}");
    let mut batch = Vector::new(16, 4096);
    assert_eq!(b.receive(&mut batch).expect("received"), 8);
    for (n, buffer) in batch.frames().iter().enumerate() {
        assert_eq!(buffer.packet(), [n as u8; 2000]);
    }
}

#[test]
fn bad_names_are_refused_and_devices_vanish_with_their_port() {
    for name in ["", "seventeen-letters", "a b", "x/y"] {
        assert!(matches!(TunPort::create(name), Err(TunError::Name(_))), "{name}");
    }
    let (namespace, tun) = tun_in_namespace();
    assert!(matches!(namespace.enter(|| TunPort::create("gw0")).unwrap(), Err(TunError::Create { .. })));
    drop(tun);
    namespace.enter(|| TunPort::create("gw0")).unwrap().expect("the name is free again");
}

/// Packets of a capture file by interface name, read block by block.
fn packets(path: &Path) -> BTreeMap<String, Vec<Vec<u8>>> {
    let bytes = std::fs::read(path).expect("the capture file exists");
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four octets"));
    let (mut at, mut names, mut out) = (0, Vec::new(), BTreeMap::new());
    while at < bytes.len() {
        let total = u32_at(at + 4) as usize;
        match u32_at(at) {
            1 => {
                let length = usize::from(u16::from_ne_bytes([bytes[at + 18], bytes[at + 19]]));
                names.push(String::from_utf8_lossy(&bytes[at + 20..at + 20 + length]).into_owned());
            }
            6 => {
                let name = names[u32_at(at + 8) as usize].clone();
                let length = u32_at(at + 20) as usize;
                assert_eq!(u32_at(at + 20), u32_at(at + 24), "nothing was cut");
                out.entry(name).or_insert_with(Vec::new).push(bytes[at + 28..at + 28 + length].to_vec());
            }
            _ => {}
        }
        at += total;
    }
    out
}

#[test]
fn captures_sort_packets_by_reference_point_without_duplicates() {
    let (namespace, mut tun) = tun_in_namespace();
    let directory = std::env::temp_dir().join(format!("godwit-capture-{}", std::process::id()));
    let pgw = "127.0.0.9:2123".parse().unwrap();
    let mut points = vec![Point::n2(None), Point::n3(), Point::n4(), Point::n6(["gw0"]), Point::sbi([7777])];
    points.extend([Point::s5([pgw]), Point::s11()]);
    let capture = namespace.enter(|| Capture::start(&directory, points)).unwrap().unwrap();

    let gtpu = namespace.enter(|| UdpSocket::bind("127.0.0.7:2152").unwrap()).unwrap();
    for n in 0..10u8 {
        gtpu.send_to(&[n; 100], "127.0.0.7:2152").unwrap();
    }
    let pfcp = namespace.enter(|| UdpSocket::bind("127.0.0.7:8805").unwrap()).unwrap();
    pfcp.send_to(b"pfcp", "127.0.0.7:8805").unwrap();
    // GTP-C of a P-GW is on S5, in both directions; other GTP-C is on S11.
    let sgw = namespace.enter(|| UdpSocket::bind("127.0.0.8:2123").unwrap()).unwrap();
    let at_pgw = namespace.enter(|| UdpSocket::bind(pgw).unwrap()).unwrap();
    sgw.send_to(b"gtpc", pgw).unwrap();
    at_pgw.send_to(b"gtpc", "127.0.0.8:2123").unwrap();
    sgw.send_to(b"gtpc", "127.0.0.8:2123").unwrap();
    // A packet on N6 is never N4, whatever its ports are.
    let mut batch = Vector::new(1, 2048);
    assert!(batch.push(
        &udp_packet(([10, 45, 0, 2], 8805), ([10, 45, 0, 1], 8805), b"n6"),
        "0.0.0.0:0".parse().unwrap()
    ));
    assert_eq!(tun.transmit(&mut batch, &[0]).packets, 1);

    let summary = capture.stop();
    let count = |name: &str| summary.packets.iter().find(|(point, _)| point == name).unwrap().1;
    assert_eq!((count("n2"), count("n3"), count("n4"), count("sbi"), summary.lost), (0, 10, 1, 0, 0));
    assert!(count("n6") >= 1);
    assert_eq!((count("s5"), count("s11")), (2, 1));

    let n3 = packets(&directory.join("n3.pcapng"));
    let frames = &n3["lo"];
    assert_eq!(frames.len(), 10);
    for (n, frame) in frames.iter().enumerate() {
        assert_eq!(frame[42..], [n as u8; 100], "in order, with Ethernet, IPv4 and UDP in front");
    }
    let n6 = packets(&directory.join("n6.pcapng"));
    assert!(n6["gw0"].iter().any(|packet| packet.ends_with(b"n6") && packet[0] == 0x45));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A burst that a port sends as one message, and that the kernel cuts, is in the file as the datagrams on the wire.
#[test]
fn captures_show_each_datagram_of_a_burst() {
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Links::in_ns(&namespace).unwrap().up("lo").await.unwrap() });
    let directory = std::env::temp_dir().join(format!("godwit-burst-{}", std::process::id()));
    let capture = namespace.enter(|| Capture::start(&directory, vec![Point::n3()])).unwrap().unwrap();
    // Bursts of several lengths, each with a shorter packet at its end, and a packet alone.
    let lengths = [80, 80, 80, 80, 20, 300, 300, 300, 7, 1000];
    let sent: Vec<Vec<u8>> = (0..)
        .zip(lengths)
        .map(|(n, length)| packet::gtpu::build_gpdu(n, None, &vec![n as u8; length]).unwrap())
        .collect();
    let addresses = ["127.0.0.7:2152", "[::1]:2152"];
    for at in addresses {
        let to = at.parse().unwrap();
        let mut port = namespace.enter(|| UdpPort::bind(to, false)).unwrap().unwrap();
        let mut batch = Vector::new(16, 2048);
        assert!(sent.iter().all(|packet| batch.push(packet, to)));
        let all: Vec<u16> = (0..sent.len() as u16).collect();
        assert_eq!(port.transmit(&mut batch, &all).packets, sent.len());
    }
    assert_eq!(capture.stop().packets[0].1, 20);
    let frames = packets(&directory.join("n3.pcapng")).remove("lo").unwrap();
    for (at, (frame, sent)) in frames.iter().zip(sent.iter().chain(&sent)).enumerate() {
        let headers = if at < lengths.len() { 42 } else { 62 };
        assert_eq!(&frame[headers..], sent, "packet {at}");
        let udp = packet::transport::Udp::new(&frame[headers - 8..]).unwrap();
        assert_eq!(udp.payload(), sent, "the length is this datagram's");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
