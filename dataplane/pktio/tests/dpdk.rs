//! DPDK's ports (feature `dpdk`): loop-backs within the process, and memif with another process, which is this test
//! program started again.

#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test's own thread may sleep")]

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use net::time::Instant;
use pktio::dpdk::{DpdkPort, Settings, eal};
use pktio::stack::Neighbours;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{FramePort, Port, Sent, Vector, outbox};
use telemetry::DropReason;

/// Environment variable for the other process of a test: the device that it opens.
const PEER_DEVICE: &str = "GODWIT_TEST_DPDK_PEER";
/// Waits end after this.
const PATIENCE: Duration = Duration::from_secs(20);

fn peer() -> std::net::SocketAddr {
    "192.0.2.1:2152".parse().unwrap()
}

/// Ordinary pages, so that the tests run on any machine.
fn open(device: &str, settings: &Settings) -> Result<Vec<DpdkPort>, pktio::dpdk::Error> {
    let options = eal::Options { huge_pages: eal::HugePages::No, megabytes: 256, ..eal::Options::default() };
    eal::start_with(&options).unwrap();
    DpdkPort::open(device, settings)
}

/// Little memory, but enough for the rings of 1024 mbufs that a zero-copy memif fills and loses with its peer.
fn small() -> Settings {
    Settings { buffers: 8191, descriptors: 256, ..Settings::default() }
}

fn open_one(device: &str) -> DpdkPort {
    open(device, &small()).unwrap().remove(0)
}

fn all(batch: &Vector) -> Vec<u16> {
    (0..batch.len() as u16).collect()
}

/// A batch in ordinary memory with frames that bear their number, `len` octets each.
fn numbered(count: usize, len: usize) -> Vector {
    let mut batch = Vector::new(count.max(1), len);
    for n in 0..count {
        assert!(batch.push(&vec![n as u8; len], peer()));
    }
    batch
}

/// Waits until something holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn packets_in_other_memory_are_copied_and_frames_go_on_as_they_are() {
    let mut port = open_one("net_ring0");
    let mut out = numbered(40, 100);
    let sent = port.transmit(&mut out, &all(&numbered(40, 1)));
    assert_eq!(sent, Sent { packets: 40, bytes: 4000, copied: 40, ..Sent::default() });

    let mut batch = Vector::new(64, 2048);
    assert_eq!(port.receive(&mut batch).unwrap(), 40);
    for (n, mut buffer) in batch.frames_mut().enumerate() {
        assert_eq!(buffer.packet(), vec![n as u8; 100]);
        // Replaces octets at the front, like the headers of tunnels.
        buffer.trim_front(60);
        buffer.headroom().last_mut().unwrap().clone_from(&0xEE);
        assert!(buffer.grow_front(1));
    }
    let at: Vec<*const u8> = batch.frames().iter().map(|buffer| buffer.packet().as_ptr()).collect();
    // Some of them, in another order; the others return to DPDK.
    let sent = port.transmit(&mut batch, &[5, 3, 3, 99]);
    assert_eq!(sent, Sent { packets: 2, bytes: 82, errors: 2, ..Sent::default() });
    assert!(batch.frames()[5].is_gone() && !batch.frames()[4].is_gone());
    assert_eq!(port.receive(&mut batch).unwrap(), 2);
    for (buffer, n) in batch.frames().iter().zip([5u8, 3]) {
        assert_eq!(buffer.packet()[0], 0xEE);
        assert_eq!(buffer.packet()[1..], vec![n; 40]);
        assert_eq!(buffer.packet().as_ptr(), at[usize::from(n)], "sent without being copied");
    }
    assert_eq!(port.receive(&mut batch).unwrap(), 0);
}

#[test]
fn no_buffer_is_lost_whatever_becomes_of_the_packets() {
    let mut port = open_one("net_ring1");
    let mut batch = Vector::new(64, 2048);
    // Ten times as many packets as there are buffers.
    for round in 0..200 {
        let mut out = numbered(50, 60);
        assert_eq!(port.transmit(&mut out, &all(&numbered(50, 1))).packets, 50, "round {round}");
        assert_eq!(port.receive(&mut batch).unwrap(), 50);
        match round % 3 {
            // The frames are sent and received again.
            0 => {
                assert_eq!(port.transmit(&mut batch, &all(&numbered(50, 1))).packets, 50);
                assert_eq!(port.receive(&mut batch).unwrap(), 50);
            }
            1 => batch.clear(),
            // The batch is dropped in a thread that DPDK does not know.
            _ => {
                let full = std::mem::replace(&mut batch, Vector::new(64, 2048));
                std::thread::spawn(move || drop(full)).join().unwrap();
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut port = open_one("net_ring2");
    // One octet beyond MTU and header, and the longest that is allowed.
    let mut out = Vector::new(2, 4000);
    assert!(out.push(&[1; 1523], peer()) && out.push(&[2; 1522], peer()));
    let sent = port.transmit(&mut out, &[0, 1]);
    assert_eq!(sent, Sent { packets: 1, bytes: 1522, copied: 1, too_big: 1, ..Sent::default() });
    let mut batch = Vector::new(4, 64);
    assert_eq!(port.receive(&mut batch).unwrap(), 1);
    assert_eq!(batch.frames()[0].len(), 1522, "a lent frame has its own size");
    batch.clear();
    // A device from which nobody reads fills up, and the buffers run out; the port still works afterwards.
    let mut sent = Sent::default();
    for _ in 0..40 {
        let mut out = numbered(50, 60);
        let more = port.transmit(&mut out, &all(&numbered(50, 1)));
        sent.packets += more.packets;
        sent.full += more.full;
    }
    assert_eq!(sent.packets + sent.full, 2000);
    assert!(sent.full > 0);
    let mut received = 0;
    while port.receive(&mut batch).unwrap() > 0 {
        received += batch.len();
    }
    assert_eq!(received, sent.packets);
    drop(batch);
    let mut out = numbered(50, 60);
    assert_eq!(port.transmit(&mut out, &all(&numbered(50, 1))).packets, 50);
}

#[test]
fn the_null_device_gives_and_takes_for_ever() {
    let mut port = open_one("net_null0,size=64");
    assert_eq!((port.mtu(), port.fd().is_none()), (1500, true));
    let mut batch = Vector::new(32, 2048);
    for _ in 0..1000 {
        assert_eq!(port.receive(&mut batch).unwrap(), 32);
        assert_eq!(batch.frames()[31].len(), 64);
        let selected = all(&batch);
        assert_eq!(port.transmit(&mut batch, &selected).packets, 32);
    }
}

#[test]
fn queues_are_ports_of_their_own() {
    let settings = Settings { queues: 2, ..small() };
    let mut ports = open("net_null1,size=64", &settings).unwrap_or_default();
    // In some versions of DPDK the null device has one queue; the error then says so.
    if ports.is_empty() {
        let error = open("net_null2", &Settings { queues: 4000, ..small() }).unwrap_err();
        assert!(error.to_string().contains("4000"), "{error}");
        return;
    }
    let mut batch = Vector::new(8, 64);
    let second = ports.remove(1);
    drop(ports);
    let mut second = second;
    assert_eq!(second.receive(&mut batch).unwrap(), 8, "the device stays while one of its queues is used");
}

#[test]
fn errors_say_what_is_wrong() {
    let first = open_one("net_ring3");
    let error = |device: &str, settings: &Settings| open(device, settings).unwrap_err().to_string();
    assert_eq!(error("net_ring3", &small()), "DPDK: net_ring3: it is open already");
    assert_eq!(error("", &small()), "DPDK: : a device has a name, such as net_memif0");
    assert!(error("net_nonsense0", &small()).contains("net_nonsense0"));
    assert!(error("net_memif9,role=chief", &small()).contains("role"), "DPDK's own words are passed on");
    let many = Settings { queues: 4000, ..small() };
    assert_eq!(error("net_ring4", &many), "DPDK: net_ring4: it does not have 4000 pairs of queues");
    drop(first);
    // A closed device can be opened again.
    drop(open_one("net_ring3"));
    drop(open_one("net_ring3"));
}

/// A directory that is deleted at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("godwit-dpdk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn memif(&self, number: u8, role: &str) -> String {
        memif(&self.0.join("memif.sock"), number, role)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn memif(socket: &Path, number: u8, role: &str) -> String {
    format!("net_memif{number},role={role},id=0,socket-abstract=no,socket={}", socket.display())
}

/// The other process, killed at the end.
struct Peer(Child);

impl Peer {
    fn start(device: &str) -> Peer {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memif_peer", "--nocapture"])
            .env(PEER_DEVICE, device)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Peer(child)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The other process: sends received packets back with the first octet increased. As an ordinary test it does nothing.
#[test]
fn memif_peer() {
    let Ok(device) = std::env::var(PEER_DEVICE) else { return };
    let mut port = open_one(&device);
    let mut batch = Vector::new(32, 2048);
    let start = Instant::now();
    while start.elapsed() < 3 * PATIENCE {
        if port.receive(&mut batch).unwrap() == 0 {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        for mut buffer in batch.frames_mut() {
            buffer.packet_mut()[0] = buffer.packet()[0].wrapping_add(1);
        }
        let selected = all(&batch);
        port.transmit(&mut batch, &selected);
    }
}

/// Sends packets and waits for the answers.
fn exchange(port: &mut DpdkPort) {
    let mut batch = Vector::new(64, 2048);
    // A server sends into places that its client offers by receiving: there are none before both have done so.
    assert_eq!(port.receive(&mut batch).unwrap(), 0);
    let mut out = numbered(30, 64);
    for n in 0..30 {
        wait_for("room", || port.transmit(&mut out, &[n]).packets == 1);
    }
    let mut next = 0u8;
    wait_for("answers", || {
        port.receive(&mut batch).unwrap();
        for buffer in batch.frames() {
            assert_eq!(buffer.packet()[0], next + 1);
            assert_eq!(buffer.packet()[1..], vec![next; 63]);
            next += 1;
        }
        next == 30
    });
}

#[test]
fn memif_connects_two_processes() {
    let directory = Directory::new("two");
    let mut port = open_one(&directory.memif(1, "server"));
    assert!(!port.is_up());
    let _peer = Peer::start(&directory.memif(1, "client"));
    wait_for("connection", || port.is_up());
    exchange(&mut port);
}

#[test]
fn a_worker_survives_the_loss_of_its_memif_peer_and_meets_the_next() {
    let directory = Directory::new("loss");
    let mut port = open_one(&directory.memif(2, "server"));
    for _ in 0..3 {
        let peer = Peer::start(&directory.memif(2, "client"));
        wait_for("connection", || port.is_up());
        exchange(&mut port);
        // Packets pass in both directions while the peer is killed.
        let mut out = numbered(30, 64);
        let mut batch = Vector::new(64, 2048);
        let mut peer = Some(peer);
        let start = Instant::now();
        while port.is_up() {
            assert!(start.elapsed() < PATIENCE);
            for _ in 0..100 {
                out.clear();
                for n in 0..30 {
                    out.push(&[n; 64], "192.0.2.1:2152".parse().unwrap());
                }
                port.transmit(&mut out, &all(&numbered(30, 1)));
                port.receive(&mut batch).unwrap();
            }
            peer.take();
        }
    }
}

#[test]
fn a_memif_client_waits_for_its_server_and_finds_the_next() {
    let directory = Directory::new("client");
    let mut port = open_one(&directory.memif(3, "client,zero-copy=yes"));
    // Without a peer no packet is received, and sent ones are counted as lost.
    let mut batch = Vector::new(32, 64);
    for _ in 0..100 {
        let sent = port.transmit(&mut numbered(30, 64), &all(&numbered(30, 1)));
        assert_eq!((sent.packets, sent.full, port.receive(&mut batch).unwrap()), (0, 30, 0));
    }
    assert!(!port.is_up());
    let mut peer = Some(Peer::start(&directory.memif(3, "server")));
    for _ in 0..2 {
        wait_for("connection", || port.is_up());
        exchange(&mut port);
        peer.take();
        wait_for("loss", || !port.is_up());
        peer = Some(Peer::start(&directory.memif(3, "server")));
    }
}

/// An ARP request for 10.0.0.2 from 10.0.0.1 at `mac`.
fn arp_request(mac: [u8; 6]) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(mac);
    arp.extend([10, 0, 0, 1]);
    arp.extend([0; 6]);
    arp.extend([10, 0, 0, 2]);
    packet::ethernet::build([0xFF; 6], mac, None, packet::ethernet::ARP, &arp)
}

/// Two namespaces with a veth pair: `up0` in the first, for DPDK; the kernel is 10.0.0.2 on `peer0` in the other.
fn veth() -> (NetNs, NetNs) {
    let (ours, other) = (NetNs::new().expect("tests run with CAP_SYS_ADMIN"), NetNs::new().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let links = Links::in_ns(&ours).unwrap();
        links.add_veth("up0", "peer0", &other).await.unwrap();
        links.up("up0").await.unwrap();
        let links = Links::in_ns(&other).unwrap();
        links.add_address("peer0", "10.0.0.2/24".parse().unwrap()).await.unwrap();
        links.up("peer0").await.unwrap();
    });
    (ours, other)
}

/// Opens a device of the kernel at one end of a veth pair and has the kernel at the other end answer.
fn asks_the_kernel(device: &str) {
    let (ours, _other) = veth();
    // DPDK opens the interface by its name, in the thread's namespace.
    let mut port =
        ours.enter(|| open(device, &Settings::default()).map(|mut ports| ports.remove(0))).unwrap().unwrap();
    let mut batch = Vector::new(64, 2048);
    wait_for("answer", || {
        let mut out = Vector::new(1, 100);
        assert!(out.push(&arp_request(port.mac()), peer()));
        port.transmit(&mut out, &[0]);
        port.receive(&mut batch).unwrap();
        // An ARP reply to us, from the address asked for.
        batch.frames().iter().any(|buffer| {
            let frame = buffer.packet();
            frame.len() >= 42
                && frame[..6] == port.mac()
                && frame[12..14] == [8, 6]
                && frame[20..22] == [0, 2]
                && frame[28..32] == [10, 0, 0, 2]
        })
    });
    // The namespaces are dropped after the port.
    drop(port);
}

#[test]
fn af_packet_meets_the_kernel() {
    asks_the_kernel("net_af_packet0,iface=up0");
}

#[test]
fn af_xdp_meets_the_kernel() {
    asks_the_kernel("net_af_xdp0,iface=up0,start_queue=0");
}

#[test]
fn udp_over_dpdk_meets_the_kernel_with_arp_of_its_own() {
    let (ours, other) = veth();
    let device = "net_af_packet1,iface=up0";
    let port = ours.enter(|| open(device, &Settings::default()).map(|mut ports| ports.remove(0)));
    let resolver = Resolver::new(&["10.0.0.1/24".parse().unwrap()], &[]);
    let local = "10.0.0.1:2152".parse().unwrap();
    let stack =
        UdpStack::new(port.unwrap().unwrap(), local, None, Neighbours::Own(Box::new(resolver))).unwrap();
    let (mut n3, mut outbox) = outbox::share(stack);
    let socket = other.enter(|| UdpSocket::bind("10.0.0.2:2152").unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();

    // To an unknown neighbour: its address is resolved, and the packet waits for the answer.
    let mut signal = Vector::new(1, 100);
    assert!(signal.push(b"end marker", "10.0.0.2:2152".parse().unwrap()));
    assert_eq!(outbox.transmit(&mut signal, &[0]).packets, 1);
    let (mut batch, mut text) = (Vector::new(32, 2048), [0; 100]);
    wait_for("what was put into the outbox", || {
        n3.receive(&mut batch).unwrap();
        socket.recv_from(&mut text).is_ok_and(|(len, from)| &text[..len] == b"end marker" && from == local)
    });
    // The kernel sends a datagram, and gets it back with one more octet in front.
    socket.send_to(b"up", local).unwrap();
    wait_for("datagram", || n3.receive(&mut batch).unwrap() > 0 && batch.frames()[0].packet() == b"up");
    let mut buffer = batch.frame_mut(0);
    assert_eq!(*buffer.peer, "10.0.0.2:2152".parse().unwrap());
    *buffer.headroom().last_mut().unwrap() = b'+';
    assert!(buffer.grow_front(1));
    assert_eq!(n3.transmit(&mut batch, &[0]).packets, 1);
    wait_for("answer", || socket.recv(&mut text).is_ok_and(|len| &text[..len] == b"+up"));
    drop((n3, batch));
}

/// Opens a device at one end of a veth pair. The kernel at the other end knows its address, so that it sends at once.
fn at_a_link(device: &str, settings: &Settings) -> (DpdkPort, NetNs, NetNs, UdpSocket) {
    let (ours, other) = veth();
    let port = ours.enter(|| open(device, settings).map(|mut ports| ports.remove(0))).unwrap().unwrap();
    let mac = port.mac().map(|octet| format!("{octet:02x}")).join(":");
    let neighbour = ["neighbour", "replace", "10.0.0.1", "lladdr", &mac, "dev", "peer0", "nud", "permanent"];
    let set = other.enter(|| Command::new("ip").args(neighbour).status()).unwrap().unwrap();
    assert!(set.success());
    let socket = other.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    (port, ours, other, socket)
}

/// Our datagrams of a batch.
fn datagrams(batch: &Vector) -> usize {
    let ours =
        |frame: &[u8]| frame.len() > 42 && frame[12..14] == [8, 0] && frame[42..].starts_with(b"counted");
    batch.frames().iter().filter(|buffer| ours(buffer.packet())).count()
}

/// The losses that a port reports. It does not read the device's counters at every call.
fn losses(port: &mut DpdkPort) -> Vec<(DropReason, usize)> {
    let (start, mut found) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_millis(30) {
        for _ in 0..5000 {
            port.losses(&mut |reason, count| found.push((reason, count)));
        }
    }
    found
}

#[test]
fn what_a_device_misses_is_counted() {
    const SENT: usize = 9000;
    let device = "net_af_xdp1,iface=up0,start_queue=0";
    // As many as the driver gives the kernel buffers for: with fewer it does not count what is lost (DPDK 22.11).
    let settings = Settings { descriptors: 2048, ..small() };
    let (mut port, _ours, _other, socket) = at_a_link(device, &settings);
    let mut batch = Vector::new(64, 2048);
    assert_eq!(losses(&mut port), []);
    // More packets than the device has room for, while nobody receives.
    for _ in 0..SENT {
        socket.send_to(b"counted", "10.0.0.1:9").unwrap();
    }
    let mut received = 0;
    while port.receive(&mut batch).unwrap() > 0 {
        received += datagrams(&batch);
    }
    let lost = losses(&mut port);
    let [(DropReason::RxQueueFull, missed)] = lost[..] else { panic!("{lost:?}, {received} received") };
    assert!(received > 0 && missed > 0);
    // The kernel may have sent Neighbor Discovery packets too.
    assert!((SENT..SENT + 20).contains(&(received + missed)), "{received} received, {missed} missed");
    assert_eq!(losses(&mut port), [], "each is counted once");
    drop((batch, port));
}

#[test]
fn what_a_device_takes_and_does_not_send_counts_as_an_error_and_not_as_sent() {
    let (mut port, ours, _other, _socket) = at_a_link("net_af_packet2,iface=up0", &small());
    let sent = port.transmit(&mut numbered(10, 60), &all(&numbered(10, 1)));
    assert_eq!((sent.packets, losses(&mut port)), (10, vec![]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Links::in_ns(&ours).unwrap().down("up0").await.unwrap() });
    let mut total = Sent::default();
    for _ in 0..10 {
        let sent = port.transmit(&mut numbered(10, 60), &all(&numbered(10, 1)));
        (total.packets, total.bytes) = (total.packets + sent.packets, total.bytes + sent.bytes);
        (total.errors, total.full) = (total.errors + sent.errors, total.full + sent.full);
        assert_eq!(losses(&mut port), []);
    }
    // The loss of the last ten is noticed when the next ones are sent.
    assert_eq!(total, Sent { packets: 10, bytes: 600, errors: 90, ..Sent::default() });
    drop(port);
}

/// A packet without a free buffer waits in the device and is not lost.
#[test]
fn packets_wait_in_the_device_for_buffers() {
    let settings = Settings { buffers: 400, descriptors: 64, ..Settings::default() };
    let (mut port, _ours, _other, socket) = at_a_link("net_af_packet3,iface=up0", &settings);
    for _ in 0..450 {
        socket.send_to(b"counted", "10.0.0.1:9").unwrap();
    }
    let (mut held, mut received) = (Vec::new(), 0);
    loop {
        let mut batch = Vector::new(64, 2048);
        if port.receive(&mut batch).unwrap() == 0 {
            break;
        }
        received += datagrams(&batch);
        held.push(batch);
    }
    assert!(received < 450, "the buffers do not suffice for {received}");
    assert_eq!(losses(&mut port), []);
    drop(held);
    let mut batch = Vector::new(64, 2048);
    while port.receive(&mut batch).unwrap() > 0 {
        received += datagrams(&batch);
    }
    assert_eq!((received, losses(&mut port)), (450, vec![]));
    drop((batch, port));
}
