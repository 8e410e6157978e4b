//! Datagram sockets: every backend against the kernel's sockets, and memif against itself.
#![allow(clippy::disallowed_methods, reason = "a test's own thread may sleep")]

#[allow(dead_code, reason = "the test calls it in place of `main`")]
#[path = "../../examples/echo.rs"]
mod echo;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use net::time::now_std;
use pktio::datagram::{DatagramSocket, Device, DeviceError, Options};
use pktio::interface::{Backend, LinkConfig};
use pktio::poll::Poller;
use pktio::{VECTOR, Vector};
use telemetry::DropReason;

/// Waits end after this.
const PATIENCE: Duration = Duration::from_secs(20);

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Octets that differ from datagram to datagram and from place to place.
fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (number.wrapping_mul(31) + i.wrapping_mul(7) + (i >> 8)) as u8).collect()
}

/// Waits in epoll until a socket is readable; `false` after the time.
fn readable(socket: &DatagramSocket, timeout_ms: u16) -> bool {
    let mut poller = Poller::new().unwrap();
    poller.add(socket.as_fd(), 1).unwrap();
    let mut readable = false;
    poller.wait(Some(timeout_ms), |_| readable = true).unwrap();
    readable
}

/// Receives a datagram, which comes soon.
fn receive(socket: &DatagramSocket) -> (Vec<u8>, SocketAddr) {
    assert!(readable(socket, PATIENCE.as_millis() as u16), "nothing came");
    let mut buffer = [0; 10_000];
    let (length, peer) = socket.recv_from(&mut buffer).unwrap();
    (buffer[..length].to_vec(), peer)
}

/// Sends until an answer comes: neighbours, and a memif's peer, may not be known yet.
fn meet(one: &DatagramSocket, other: &DatagramSocket) {
    let (from, to) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    let start = now_std();
    loop {
        one.send_to(b"hello", to).unwrap();
        if readable(other, 50) {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{from} does not reach {to}");
    }
    std::thread::sleep(Duration::from_millis(100));
    while readable(other, 0) {
        assert_eq!(receive(other), (b"hello".to_vec(), from));
    }
}

/// Sends a datagram of every given length both ways, several at a time, and compares what comes.
fn converse(one: &DatagramSocket, other: &DatagramSocket, lengths: impl Iterator<Item = usize> + Clone) {
    meet(one, other);
    meet(other, one);
    for (from, to) in [(one, other), (other, one)] {
        let (source, destination) = (from.local_addr().unwrap(), to.local_addr().unwrap());
        let lengths: Vec<usize> = lengths.clone().collect();
        for (round, group) in lengths.chunks(16).enumerate() {
            let number = |at: usize| round * 16 + at;
            for (at, &length) in group.iter().enumerate() {
                let sent = from.send_to(&content(number(at), length), destination);
                assert_eq!(sent.unwrap_or_else(|error| panic!("{length}: {error}")), length);
            }
            for (at, &length) in group.iter().enumerate() {
                assert!(readable(to, 10_000), "{length} octets to {destination} did not come");
                let (octets, peer) = receive(to);
                assert!(octets == content(number(at), length), "{length} octets, got {}", octets.len());
                assert_eq!(peer, source);
            }
        }
        assert!(!readable(to, 0));
        assert_eq!(to.recv_from(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

fn nothing_lost(device: &Device) {
    let lost = device.losses();
    // Before its peer was there, a device may have lost some; and a kernel sends to groups on its own.
    let harmless = |reason| {
        matches!(reason, DropReason::TxQueueFull | DropReason::NeighbourUnresolved | DropReason::N3NotServed)
    };
    let lost: Vec<_> = lost.into_iter().filter(|(reason, _)| !harmless(*reason)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// A directory with the socket of a memif, deleted at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("godwit-datagram-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// One end of a memif: 10.0.0.1 and fd00::1 at the server, .2 at the client.
    fn memif(&self, server: bool, change: impl FnOnce(&mut Options)) -> Device {
        let (role, host) = if server { ("server", 1) } else { ("client", 2) };
        let device = format!("memif0,role={role},socket={}", self.0.join("m.sock").display());
        let mut options = Options {
            link: LinkConfig {
                backend: Backend::Memif,
                device: Some(device),
                addresses: [format!("10.0.0.{host}/24"), format!("fd00::{host}/64")]
                    .map(|own| own.parse().unwrap())
                    .to_vec(),
                ..LinkConfig::default()
            },
            ..Options::default()
        };
        change(&mut options);
        Device::open(&options).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn memif_carries_datagrams_of_every_size_in_both_ip_versions() {
    for (mtu, buffers) in [(1500u16, ""), (1600, ""), (9000, ""), (9000, ",bsize=512,rsize=10")] {
        let directory = Directory::new(&format!("sizes{mtu}{}", buffers.len()));
        let [server, client] = [true, false].map(|is_server| {
            directory.memif(is_server, |options| {
                options.link.mtu = Some(mtu);
                options.link.device.as_mut().unwrap().push_str(buffers);
            })
        });
        for (headers, one, other) in
            [(28, "10.0.0.1:7", "10.0.0.2:5000"), (48, "[fd00::1]:7", "[fd00::2]:5000")]
        {
            let most = usize::from(mtu) - headers;
            let (one, other) = (server.bind(address(one)).unwrap(), client.bind(address(other)).unwrap());
            let step = if mtu == 1500 { 1 } else { 61 };
            converse(&one, &other, (0..=most).step_by(step).chain([most]));
            let too_long = one.send_to(&vec![0; most + 1], other.local_addr().unwrap()).unwrap_err();
            assert_eq!(too_long.raw_os_error(), Some(libc::EMSGSIZE));
        }
        nothing_lost(&server);
        nothing_lost(&client);
    }
}

/// Two namespaces with a veth pair: `up0` with `addresses`, and `peer0` with 10.0.0.2 and fd00::2.
fn namespaces(addresses: &[&str]) -> [NetNs; 2] {
    let namespaces = [NetNs::new().expect("needs CAP_SYS_ADMIN"), NetNs::new().unwrap()];
    connect(&namespaces, addresses);
    namespaces
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn connect([ours, peer]: &[NetNs; 2], addresses: &[&str]) {
    runtime().block_on(async {
        let links = Links::in_ns(ours).unwrap();
        links.add_veth("up0", "peer0", peer).await.unwrap();
        for (namespace, name, addresses) in
            [(ours, "up0", addresses), (peer, "peer0", &["10.0.0.2/24", "fd00::2/64"])]
        {
            let links = Links::in_ns(namespace).unwrap();
            for address in addresses {
                links.add_address(name, address.parse().unwrap()).await.unwrap();
            }
            links.up(name).await.unwrap();
        }
    });
    // The kernel first makes sure that nobody else has an address of IPv6.
    std::thread::sleep(Duration::from_secs(2));
}

/// Our end of a link by `backend`, and the kernel at the other end, in a namespace of its own.
fn on_a_link(link: LinkConfig) {
    let [ours, peer] = namespaces(&[]);
    let link = LinkConfig {
        addresses: ["10.0.0.1/24", "fd00::1/64"].map(|own| own.parse().unwrap()).to_vec(),
        ..link
    };
    let options = Options { link, ..Options::default() };
    let device = ours.enter(|| Device::open(&options)).unwrap().unwrap();
    let kernel = Device::open(&Options::default()).unwrap();
    for (most, one, other) in [(1472, "10.0.0.1:7", "10.0.0.2:7"), (1452, "[fd00::1]:7", "[fd00::2]:7")] {
        let one = device.bind(address(one)).unwrap();
        let other = peer.enter(|| kernel.bind(address(other))).unwrap().unwrap();
        converse(&one, &other, (0..=most).step_by(13).chain([most]));
    }
    nothing_lost(&device);
}

/// The example, moved from the kernel to AF_XDP by its constructor, answers programs behind the kernel's sockets.
#[test]
fn the_echo_server_answers_on_any_backend() {
    let [ours, peer] = namespaces(&[]);
    let af_xdp = r#"{"backend": "af_xdp", "device": "up0", "addresses": ["10.0.0.1/24"]}"#;
    for (server, link) in [("10.0.0.1:7", Some(af_xdp)), ("10.0.0.2:7", None)] {
        let namespace = if link.is_some() { &ours } else { &peer };
        let socket = namespace.enter(|| echo::bind(address(server), link).unwrap()).unwrap();
        std::thread::spawn(move || echo::serve(&socket));
        let client = peer.enter(|| std::net::UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 2000];
        for length in (0..=1472).step_by(32) {
            client.send_to(&content(7, length), server).unwrap();
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (length, address(server)));
            assert_eq!(buffer[..length], content(7, length));
        }
    }
}

#[test]
fn af_xdp_and_the_kernel_exchange_datagrams() {
    on_a_link(LinkConfig {
        backend: Backend::AfXdp,
        device: Some("up0".to_owned()),
        ..LinkConfig::default()
    });
}

/// An interface that is deleted and made again is served again; its sockets stay.
#[test]
fn sockets_outlive_their_interface() {
    let namespaces = namespaces(&[]);
    let link = r#"{"backend": "af_xdp", "device": "up0", "addresses": ["10.0.0.1/24"]}"#;
    let options = Options { link: serde_json::from_str(link).unwrap(), ..Options::default() };
    let device = namespaces[0].enter(|| Device::open(&options)).unwrap().unwrap();
    let one = device.bind(address("10.0.0.1:7")).unwrap();
    let kernel = Device::open(&Options::default()).unwrap();
    for round in 0..2 {
        let other = namespaces[1].enter(|| kernel.bind(address("10.0.0.2:7"))).unwrap().unwrap();
        converse(&one, &other, (0..1472).step_by(100));
        if round == 0 {
            runtime().block_on(async { Links::in_ns(&namespaces[0]).unwrap().delete("up0").await }).unwrap();
            for _ in 0..50 {
                assert!(one.send_to(b"to nobody", address("10.0.0.2:7")).is_ok());
                std::thread::sleep(Duration::from_millis(2));
            }
            connect(&namespaces, &[]);
        }
    }
}

/// Threads send and receive through one socket at the same time; every datagram comes to one of them.
#[test]
fn threads_share_a_socket() {
    const EACH: u32 = 5000;
    let directory = Directory::new("threads");
    let [server, client] = [true, false].map(|is_server| directory.memif(is_server, |_| ()));
    let one = server.bind(address("10.0.0.1:7")).unwrap();
    let other = client.bind(address("10.0.0.2:7")).unwrap();
    meet(&one, &other);
    let seen = std::sync::Mutex::new(vec![0u8; 3 * EACH as usize]);
    let left = std::sync::atomic::AtomicI64::new(3 * i64::from(EACH));
    let waiting = std::sync::atomic::AtomicI64::new(0);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (one, other, seen, left, waiting) = (&one, &other, &seen, &left, &waiting);
            scope.spawn(move || {
                for number in thread * EACH..(thread + 1) * EACH {
                    // No more than the queues hold.
                    while waiting.load(relaxed) > 500 {
                        std::thread::yield_now();
                    }
                    waiting.fetch_add(1, relaxed);
                    one.send_to(&number.to_be_bytes(), address("10.0.0.2:7")).unwrap();
                }
            });
            scope.spawn(move || {
                let start = now_std();
                while left.load(relaxed) > 0 {
                    assert!(start.elapsed() < PATIENCE, "{left:?} did not come");
                    readable(other, 10);
                    let mut buffer = [0; 4];
                    while other.recv_from(&mut buffer).is_ok() {
                        seen.lock().unwrap()[u32::from_be_bytes(buffer) as usize] += 1;
                        waiting.fetch_sub(1, relaxed);
                        left.fetch_sub(1, relaxed);
                    }
                }
            });
        }
    });
    assert!(seen.into_inner().unwrap().iter().all(|count| *count == 1));
}

#[cfg(feature = "dpdk")]
#[test]
fn dpdk_and_the_kernel_exchange_datagrams() {
    on_a_link(LinkConfig {
        backend: Backend::Dpdk,
        device: Some("net_af_packet7,iface=up0".to_owned()),
        ..LinkConfig::default()
    });
}

#[test]
fn the_kernels_sockets_have_the_same_methods() {
    let [ours, peer] = namespaces(&["10.0.0.1/24", "fd00::1/64"]);
    let kernel = Device::open(&Options::default()).unwrap();
    for (one, other) in [("10.0.0.1:7", "10.0.0.2:7"), ("[fd00::1]:7", "[fd00::2]:7")] {
        let one = ours.enter(|| kernel.bind(address(one))).unwrap().unwrap();
        let other = peer.enter(|| kernel.bind(address(other))).unwrap().unwrap();
        converse(&one, &other, (0..1400).step_by(101));
        batches(&one, &other);
        one.set_traffic_class(0xB8).unwrap();
        assert_eq!(one.traffic_class(), 0xB8);
    }
}

/// Vectors of datagrams go to `other` and come back, without their octets being touched.
fn batches(one: &DatagramSocket, other: &DatagramSocket) {
    let [from, to] = [one, other].map(|socket| socket.local_addr().unwrap());
    let (mut out, mut back) = (Vector::new(VECTOR, 2000), Vector::new(VECTOR, 2000));
    let positions: Vec<u16> = (0..VECTOR as u16).collect();
    for round in 0..20 {
        out.clear();
        (0..VECTOR).for_each(|at| assert!(out.push(&content(round + at, 20 * at), to)));
        assert_eq!(one.send_vector(&mut out, &positions).packets, VECTOR);
        let mut returned = 0;
        while returned < VECTOR {
            assert!(readable(other, 5000), "{returned} came");
            let count = other.recv_vector(&mut back).unwrap();
            assert!(back.peers().iter().all(|peer| *peer == from));
            assert_eq!(other.send_vector(&mut back, &positions[..count]).packets, count);
            returned += count;
        }
        let mut seen = 0;
        while seen < VECTOR {
            assert!(readable(one, 5000), "{seen} came back");
            one.recv_vector(&mut back).unwrap();
            for (frame, peer) in back.frames().iter().zip(back.peers()) {
                assert_eq!((frame.packet(), *peer), (&content(round + seen, 20 * seen)[..], to));
                seen += 1;
            }
        }
        assert_eq!(one.recv_vector(&mut back).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn vectors_pass_without_being_copied_by_the_program() {
    let directory = Directory::new("vectors");
    let [server, client] = [true, false].map(|is_server| directory.memif(is_server, |_| ()));
    let one = server.bind(address("10.0.0.1:7")).unwrap();
    let other = client.bind(address("10.0.0.2:7")).unwrap();
    meet(&one, &other);
    meet(&other, &one);
    batches(&one, &other);
}

/// Each socket gets what was sent to its port, whatever the order, while others are bound and closed.
#[test]
fn many_sockets_share_a_device() {
    const COUNT: u16 = 300;
    let directory = Directory::new("many");
    let [server, client] = [true, false].map(|is_server| directory.memif(is_server, |_| ()));
    let sender = client.bind(address("10.0.0.2:0")).unwrap();
    let sockets: Vec<_> = (1..=COUNT)
        .map(|port| server.bind(SocketAddr::new(IpAddr::from([10, 0, 0, 1]), port)).unwrap())
        .collect();
    meet(&sender, &sockets[0]);
    for round in 0..5u16 {
        for at in 0..COUNT {
            let at = (at * 7 + round) % COUNT;
            let payload = [at.to_be_bytes(), round.to_be_bytes()].concat();
            sender.send_to(&payload, sockets[usize::from(at)].local_addr().unwrap()).unwrap();
            if at.is_multiple_of(10) {
                let other = server.bind(address("10.0.0.1:0")).unwrap();
                assert!(other.local_addr().unwrap().port() >= 49152);
            }
        }
        for (at, socket) in (0..COUNT).zip(&sockets) {
            assert_eq!(receive(socket).0, [at.to_be_bytes(), round.to_be_bytes()].concat());
            assert!(!readable(socket, 0));
        }
    }
}

#[test]
fn who_sleeps_in_epoll_is_woken_and_looks_in_vain_never() {
    let directory = Directory::new("wake");
    let [server, client] = [true, false].map(|is_server| directory.memif(is_server, |_| ()));
    let one = server.bind(address("10.0.0.1:7")).unwrap();
    let other = client.bind(address("10.0.0.2:7")).unwrap();
    meet(&one, &other);
    meet(&other, &one);
    let echo = std::thread::spawn(move || {
        for _ in 0..30 {
            let (octets, peer) = receive(&other);
            other.send_to(&octets, peer).unwrap();
        }
        other
    });
    let mut longest = Duration::ZERO;
    for round in 0..30u8 {
        // Long enough for both devices' threads to sleep.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!readable(&one, 0));
        let start = now_std();
        one.send_to(&[round], address("10.0.0.2:7")).unwrap();
        assert_eq!(receive(&one).0, [round]);
        longest = longest.max(start.elapsed());
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}: something was found by chance");
    drop(echo.join().unwrap());
}

#[test]
fn what_a_full_socket_does_not_take_is_counted() {
    let directory = Directory::new("full");
    let server = directory.memif(true, |options| options.queue = 10);
    let client = directory.memif(false, |_| ());
    let [full, other] = ["10.0.0.1:7", "10.0.0.1:8"].map(|own| server.bind(address(own)).unwrap());
    let sender = client.bind(address("10.0.0.2:7")).unwrap();
    meet(&sender, &full);
    let before = full.overflow().unwrap();
    for number in 0..25u8 {
        sender.send_to(&[number], full.local_addr().unwrap()).unwrap();
    }
    // Behind them, so that all of them have come.
    sender.send_to(b"last", other.local_addr().unwrap()).unwrap();
    assert_eq!(receive(&other).0, b"last", "one full socket does not hold up another");
    assert_eq!((full.overflow().unwrap() - before, other.overflow().unwrap()), (15, 0));
    for number in 0..10u8 {
        assert_eq!(receive(&full).0, [number]);
    }
    assert!(!readable(&full, 0));
    sender.send_to(b"again", full.local_addr().unwrap()).unwrap();
    assert_eq!(receive(&full).0, b"again");
}

#[test]
fn the_kernels_overflow_is_counted() {
    let kernel = Device::open(&Options::default()).unwrap();
    let [full, sender] = [0, 0].map(|_| kernel.bind(address("127.0.0.1:0")).unwrap());
    assert_eq!(full.overflow().unwrap(), 0);
    let to = full.local_addr().unwrap();
    let mut sent = 0u64;
    while full.overflow().unwrap() == 0 {
        assert!(sent < 100_000, "the kernel takes everything");
        sent += u64::from(sender.send_to(&[0; 8000], to).is_ok());
    }
}

#[test]
fn a_peer_that_dies_and_comes_back_is_served_again() {
    let directory = Directory::new("death");
    let server = directory.memif(true, |_| ());
    let one = server.bind(address("10.0.0.1:7")).unwrap();
    for round in 0..3 {
        let client = directory.memif(false, |_| ());
        let other = client.bind(address("10.0.0.2:7")).unwrap();
        meet(&other, &one);
        converse(&one, &other, (0..200).step_by(40));
        // With datagrams under way both ways.
        for n in 0..10u8 {
            one.send_to(&[n], address("10.0.0.2:7")).unwrap();
            other.send_to(b"hello", address("10.0.0.1:7")).unwrap();
        }
        drop((client, other));
        std::thread::sleep(Duration::from_millis(50));
        while readable(&one, 0) {
            receive(&one);
        }
        for _ in 0..20_000 {
            match one.send_to(b"to nobody", address("10.0.0.2:7")) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "round {round}"),
            }
        }
    }
    let start = now_std();
    while server.losses().is_empty() {
        assert!(start.elapsed() < PATIENCE, "nothing was counted");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn closing_frees_the_port_and_what_was_sent_still_leaves() {
    let directory = Directory::new("close");
    let [server, client] = [true, false].map(|is_server| directory.memif(is_server, |_| ()));
    let receiver = server.bind(address("10.0.0.1:7")).unwrap();
    meet(&client.bind(address("10.0.0.2:7")).unwrap(), &receiver);
    for round in 0..100u8 {
        let sender = client.bind(address("10.0.0.2:7")).unwrap();
        let twice = client.bind(address("10.0.0.2:7")).unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::AddrInUse);
        sender.send_to(&[round], receiver.local_addr().unwrap()).unwrap();
        drop(sender);
        assert_eq!(receive(&receiver), (vec![round], address("10.0.0.2:7")));
    }
    // The last socket takes the device's thread with it.
    let last = client.bind(address("10.0.0.2:9")).unwrap();
    drop(client);
    last.send_to(b"last", receiver.local_addr().unwrap()).unwrap();
    drop(last);
    assert_eq!(receive(&receiver).0, b"last");
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let directory = Directory::new("refused");
    let server = directory.memif(true, |_| ());
    for (own, kind) in [
        ("10.0.0.9:7", ErrorKind::AddrNotAvailable),
        ("0.0.0.0:7", ErrorKind::AddrNotAvailable),
        ("[fd00::2]:7", ErrorKind::AddrNotAvailable),
    ] {
        assert_eq!(server.bind(address(own)).unwrap_err().kind(), kind, "{own}");
    }
    let socket = server.bind(address("10.0.0.1:7")).unwrap();
    for to in ["[fd00::2]:7", "0.0.0.0:7", "10.0.0.2:0"] {
        assert_eq!(socket.send_to(b"x", address(to)).unwrap_err().kind(), ErrorKind::InvalidInput, "{to}");
    }
    let open = |link: LinkConfig, core| Device::open(&Options { link, core, ..Options::default() });
    let link = |text: &str| serde_json::from_str::<LinkConfig>(text).unwrap();
    for (text, said) in [
        (r#"{"backend": "af_xdp", "device": "eth0"}"#, "datagrams need addresses of their own"),
        (r#"{"backend": "memif", "device": "m0,socket=/x"}"#, "the backend memif needs addresses"),
        (r#"{"gtpu": "10.0.0.1:2152"}"#, "leave out gtpu"),
        (r#"{"device": "eth0"}"#, "leave it out, or choose `backend: af_xdp`"),
    ] {
        match open(link(text), None) {
            Err(DeviceError::Config { reason, .. }) => assert!(reason.contains(said), "{text}: {reason}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let memif = format!(
        r#"{{"backend": "memif", "device": "m0,role=server,socket={}", "addresses": ["10.0.0.1/24"]}}"#,
        directory.0.join("other.sock").display()
    );
    assert!(matches!(open(link(&memif), Some(100_000)), Err(DeviceError::Thread { .. })));
    let absent = r#"{"backend": "af_xdp", "device": "absent9", "addresses": ["10.0.0.1/24"]}"#;
    let error = open(link(absent), None).unwrap_err().to_string();
    assert!(error.contains("absent9"), "{error}");
}
