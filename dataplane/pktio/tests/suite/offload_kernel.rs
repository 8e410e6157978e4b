//! Super-packets against the real kernel: two namespaces, each with a TUN device, exchange streams and datagrams over a
//! wire that sees frames only. Needs root (or a user namespace with its own network, as `make test` sets up).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::flow::Flow;
use packet::{ipv4, protocol, transport};
use pktio::poll::Poller;
use pktio::tun::{Offload, TunPort};
use pktio::udp::UdpPort;
use pktio::{Port, Vector};

/// Octets of a stream: more than a window, not a multiple of anything.
const STREAM: usize = 8_000_003;

/// What went over the wire from one end to the other.
#[derive(Default)]
struct Seen {
    frames: AtomicUsize,
    longest: AtomicUsize,
}

struct Wire {
    stop: Arc<AtomicBool>,
    /// To B, and to A.
    seen: [Arc<Seen>; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let result = thread.join();
            if !std::thread::panicking() {
                result.expect("the wire saw right frames");
            }
        }
    }
}

/// A namespace with an end of the wire.
struct End {
    namespace: NetNs,
    tun: TunPort,
}

impl End {
    fn new(host: u8, mtu: u32, most: Offload) -> End {
        let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let tun = namespace.enter(|| TunPort::create_with("t0", most)).expect("entered").expect("created");
        assert_eq!(tun.offload(), most, "this kernel has all of them");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let links = Links::in_ns(&namespace).expect("netlink");
            links.set_mtu("t0", mtu).await.expect("mtu");
            links.set_txqueuelen("t0", 4000).await.expect("queue");
            for address in [format!("10.45.0.{host}/24"), format!("fd00:45::{host}/64")] {
                links.add_address("t0", address.parse().expect("an address")).await.expect("address");
            }
            links.up("t0").await.expect("up");
        });
        End { namespace, tun }
    }

    /// Packets that the device has brought into the kernel.
    fn received(&self) -> usize {
        let table = self
            .namespace
            .enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
            .expect("entered")
            .expect("read");
        let line = table.lines().find(|line| line.trim_start().starts_with("t0:")).expect("the device");
        line.split_whitespace().nth(2).and_then(|count| count.parse().ok()).expect("a count")
    }
}

/// Whether everything in a frame is right: length and checksums.
fn check(frame: &[u8]) {
    let flow = Flow::parse(frame).expect("the kernel sends valid packets");
    assert_eq!(flow.length, frame.len());
    let header = if flow.source.is_ipv4() {
        let packet = ipv4::Packet::new(frame).expect("IPv4");
        assert!(packet.checksum_ok());
        packet.header_len()
    } else {
        40
    };
    let right = match flow.protocol {
        protocol::TCP => transport::Tcp::new(&frame[header..])
            .expect("a header")
            .checksum_ok(flow.source, flow.destination),
        protocol::UDP => transport::Udp::new(&frame[header..])
            .expect("a header")
            .checksum_ok(flow.source, flow.destination),
        _ => true,
    };
    assert!(right, "{flow:?}");
}

/// Moves frames from one port to the other, and there to `peer`, in batches of `batch`.
fn pump(
    (mut from, mut to, peer): (impl Port + 'static, impl Port + 'static, Option<SocketAddr>),
    batch: usize,
    stop: &Arc<AtomicBool>,
    seen: &Arc<Seen>,
) -> JoinHandle<()> {
    let (stop, seen) = (Arc::clone(stop), Arc::clone(seen));
    std::thread::spawn(move || {
        let mut poller = Poller::new().expect("epoll");
        poller.add(from.fd().expect("a descriptor"), 0).expect("added");
        let all: Vec<u16> = (0..batch as u16).collect();
        let mut batch = Vector::new(batch, 9216);
        while !stop.load(Relaxed) {
            poller.wait(Some(20), |_| ()).expect("waited");
            while from.receive(&mut batch).expect("received") > 0 {
                for frame in batch.frames_mut() {
                    check(frame.packet());
                    seen.longest.fetch_max(frame.len(), Relaxed);
                    *frame.peer = peer.unwrap_or(*frame.peer);
                }
                let bytes = batch.frames().iter().map(|buffer| buffer.len()).sum::<usize>();
                let count = batch.len();
                let sent = to.transmit(&mut batch, &all[..count]);
                assert_eq!((sent.packets, sent.bytes), (count, bytes), "{sent:?}");
                seen.frames.fetch_add(sent.packets, Relaxed);
            }
            from.losses(&mut |reason, count| assert_eq!(count, 0, "lost: {}", reason.name()));
        }
    })
}

fn connect(a: &End, b: &End, batch: usize) -> Wire {
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), [Arc::default(), Arc::default()]);
    let threads = vec![
        pump((a.tun.share(), b.tun.share(), None), batch, &stop, &seen[0]),
        pump((b.tun.share(), a.tun.share(), None), batch, &stop, &seen[1]),
    ];
    Wire { stop, seen, threads }
}

/// The same, but in datagrams between sockets at the ends of a veth pair.
async fn connect_by_tunnel(a: &End, b: &End, batch: usize) -> Wire {
    let links = Links::in_ns(&a.namespace).expect("netlink");
    links.add_veth("v0", "v0", &b.namespace).await.expect("veth");
    let mut ports = Vec::new();
    for (end, host) in [(a, 1), (b, 2)] {
        let links = Links::in_ns(&end.namespace).expect("netlink");
        links
            .add_address("v0", format!("10.200.0.{host}/24").parse().expect("an address"))
            .await
            .expect("added");
        links.up("v0").await.expect("up");
        let local = format!("10.200.0.{host}:2152").parse().expect("an address");
        ports.push(end.namespace.enter(|| UdpPort::bind(local, false).expect("bound")).expect("entered"));
    }
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), [Arc::default(), Arc::default()]);
    let mut threads = Vec::new();
    for (end, near, far, seen) in [(a, &ports[0], &ports[1], &seen[1]), (b, &ports[1], &ports[0], &seen[0])] {
        let ignored = Arc::default();
        threads.push(pump((end.tun.share(), near.share(), Some(far.local())), batch, &stop, &ignored));
        threads.push(pump((near.share(), end.tun.share(), None), batch, &stop, seen));
    }
    Wire { stop, seen, threads }
}

/// The octet at a place of the stream of a direction.
fn octets(direction: u32, from: usize, count: usize) -> Vec<u8> {
    let octet = |at: usize| ((at as u32).wrapping_mul(2_654_435_761).wrapping_add(direction) >> 13) as u8;
    (from..from + count).map(octet).collect()
}

/// Writes a stream in pieces of different lengths and reads the other, both to their ends.
fn exchange(stream: TcpStream, out: u32) {
    let mut writer = stream.try_clone().expect("cloned");
    let sender = std::thread::spawn(move || {
        let (mut at, mut piece) = (0, 1);
        while at < STREAM {
            let count = piece.min(STREAM - at);
            writer.write_all(&octets(out, at, count)).expect("sent");
            (at, piece) = (at + count, (piece * 7 + 11) % 90_001);
        }
        writer.shutdown(std::net::Shutdown::Write).expect("shut down");
    });
    let mut reader = stream;
    reader.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut received = Vec::new();
    reader.read_to_end(&mut received).expect("the stream goes on");
    sender.join().expect("sent all");
    assert_eq!(received.len(), STREAM);
    assert!(received == octets(1 - out, 0, STREAM), "the octets that were sent");
}

/// A stream each way at once; the octets at the far ends are those that were sent.
fn streams(a: &End, b: &End, address: &str) {
    let address: SocketAddr = format!("{address}:7000").parse().expect("an address");
    let listener = b.namespace.enter(|| TcpListener::bind(address).expect("bound")).expect("entered");
    let far = std::thread::spawn(move || exchange(listener.accept().expect("accepted").0, 1));
    let near = a.namespace.enter(|| TcpStream::connect(address).expect("connected")).expect("entered");
    exchange(near, 0);
    far.join().expect("the far end");
}

/// Datagrams of many lengths, some of them cut by the device; the far end gets each as it was.
fn datagrams(a: &End, b: &End, address: &str, segment: usize) {
    let to: SocketAddr = format!("{address}:7001").parse().expect("an address");
    let receiver = b.namespace.enter(|| UdpSocket::bind(to).expect("bound")).expect("entered");
    receiver.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sender = a.namespace.enter(|| UdpSocket::bind(any).expect("bound")).expect("entered");
    for (round, count) in [(0, 1), (1, segment), (2, segment * 30), (3, segment * 40 - 7), (4, segment + 1)] {
        let cut: libc::c_int = if round % 2 == 0 || round == 3 { segment as libc::c_int } else { 0 };
        // SAFETY: the option takes an int, to which we pass a pointer with its size.
        let status = unsafe {
            let size = size_of_val(&cut) as libc::socklen_t;
            libc::setsockopt(
                sender.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                (&raw const cut).cast(),
                size,
            )
        };
        assert_eq!(status, 0);
        let message = octets(round, 0, count);
        assert_eq!(sender.send_to(&message, to).expect("sent"), count);
        for expected in message.chunks(segment) {
            let mut datagram = [0; 2048];
            let length = receiver.recv(&mut datagram).expect("the datagram arrives");
            assert!(datagram[..length] == *expected, "round {round}: {length} octets");
        }
    }
}

fn transfers(offloads: (Offload, Offload), mtus: (u32, u32), batch: usize) -> (End, End, Wire) {
    let (a, b) = (End::new(1, mtus.0, offloads.0), End::new(2, mtus.1, offloads.1));
    let wire = connect(&a, &b, batch);
    for address in ["10.45.0.2", "[fd00:45::2]"] {
        streams(&a, &b, address);
        datagrams(&a, &b, address, 1000);
    }
    for seen in &wire.seen {
        assert!(seen.longest.load(Relaxed) <= mtus.0.max(mtus.1) as usize, "frames only");
    }
    (a, b, wire)
}

#[test]
fn streams_and_datagrams_pass_in_super_packets() {
    let (a, b, wire) = transfers((Offload::Udp, Offload::Udp), (1400, 1400), 64);
    // Two streams each way.
    for (end, seen) in [(&b, &wire.seen[0]), (&a, &wire.seen[1])] {
        let (frames, packets) = (seen.frames.load(Relaxed), end.received());
        assert!(
            frames > 2 * STREAM / 1400 && packets < frames / 4,
            "{frames} frames left as {packets} packets"
        );
    }
}

/// Both ends have another MTU, and batches are so small that a super-packet needs many.
#[test]
fn small_batches_and_mixed_mtus_lose_nothing() {
    transfers((Offload::Udp, Offload::Udp), (1500, 1280), 5);
    transfers((Offload::Udp, Offload::Udp), (9000, 1400), 1);
}

/// A kernel without some of it, or a device opened without: at one end or both.
#[test]
fn devices_without_offload_pass_the_same() {
    transfers((Offload::Tcp, Offload::Udp), (1400, 1400), 64);
    transfers((Offload::Checksum, Offload::Tcp), (1400, 1400), 64);
    let (a, b, wire) = transfers((Offload::None, Offload::Udp), (1400, 1280), 64);
    assert!(b.received() < wire.seen[0].frames.load(Relaxed) / 2, "what is sent is joined all the same");
    assert_eq!(a.received(), wire.seen[1].frames.load(Relaxed), "frame by frame");
}

/// As between gNB and UPF: the datagrams of the tunnel travel as messages of many, too.
#[test]
fn streams_and_datagrams_pass_a_tunnel() {
    for (mtu, batch) in [(1400, 64), (1400, 7), (9000, 64)] {
        let (a, b) = (End::new(1, mtu, Offload::Udp), End::new(2, mtu, Offload::Udp));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let wire = runtime.block_on(connect_by_tunnel(&a, &b, batch));
        for address in ["10.45.0.2", "[fd00:45::2]"] {
            streams(&a, &b, address);
            datagrams(&a, &b, address, 1000);
        }
        let (frames, packets) = (wire.seen[0].frames.load(Relaxed), b.received());
        // Few long frames, or those of a small batch, are joined too, but acknowledgements stay alone.
        let most = if (mtu, batch) == (1400, 64) { frames / 2 } else { frames - 1 };
        assert!(packets < most, "{frames} frames left as {packets} packets");
    }
}

/// A device that is deleted and made again has its super-packets again.
#[test]
fn a_device_made_again_offers_the_same() {
    let end = End::new(1, 1400, Offload::Udp);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        Links::in_ns(&end.namespace).expect("netlink").delete("t0").await.expect("deleted");
    });
    let End { namespace, tun } = end;
    namespace.enter(|| tun.attach().expect("attached")).expect("entered");
    runtime.block_on(async {
        let links = Links::in_ns(&namespace).expect("netlink");
        links.set_mtu("t0", 1400).await.expect("mtu");
        for address in ["10.45.0.1/24", "fd00:45::1/64"] {
            links.add_address("t0", address.parse().expect("an address")).await.expect("address");
        }
        links.up("t0").await.expect("up");
    });
    let (a, b) = (End { namespace, tun }, End::new(2, 1400, Offload::Udp));
    let wire = connect(&a, &b, 64);
    streams(&a, &b, "10.45.0.2");
    assert!(b.received() < wire.seen[0].frames.load(Relaxed) / 4);
}
