//! AF_XDP against the real kernel: a veth pair between two anonymous namespaces. Needs root (or a user namespace
//! with its own network, as `make test` sets up).

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Net, exchange_addresses, open, two_links};
use net::link::Links;
use net::netns::NetNs;
use packet::ethernet;
use pktio::af_xdp::{AfXdpError, AfXdpPort, Interface, Memory, Mode, Options};
use pktio::bpf::filter::Select;
use pktio::poll::Poller;
use pktio::{Frame, FrameMut, FramePort, Port, Sent, Vector};
use telemetry::DropReason;

fn gtpu() -> Select {
    Select::Udp("10.0.0.1".parse().unwrap(), 2152)
}

/// Receives until `count` frames have come, and calls `each` with every batch.
fn receive(port: &mut AfXdpPort, count: usize, mut each: impl FnMut(&mut AfXdpPort, &mut Vector)) -> usize {
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    let mut batch = Vector::new(64, 2048);
    let mut received = 0;
    for _ in 0..100 {
        poller.wait(Some(100), |_| ()).unwrap();
        while port.receive(&mut batch).unwrap() > 0 {
            received += batch.len();
            each(port, &mut batch);
        }
        if received >= count {
            break;
        }
    }
    received
}

/// Turns a UDP frame round.
fn reverse(frame: &mut [u8]) {
    exchange_addresses(frame);
    let (source, destination) = frame[34..38].split_at_mut(2);
    source.swap_with_slice(destination);
    // Neither side computes the checksum on a veth pair.
    frame[40..42].fill(0);
}

#[test]
fn selected_frames_come_and_go_and_the_kernel_keeps_the_rest() {
    let net = Net::new();
    let (interface, mut port, memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    assert!(interface.native(), "veth has XDP");
    assert_eq!((port.mode(), port.mtu()), (Mode::Copy, 1500));
    let free = memory.free_frames();

    let other = net.ours.enter(|| UdpSocket::bind("10.0.0.1:9").unwrap()).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    for time_out in [&other, &socket] {
        time_out.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }
    socket.send_to(b"to the kernel", "10.0.0.1:9").unwrap();
    let mut payload = [0; 64];
    assert_eq!(other.recv_from(&mut payload).unwrap().0, 13);

    let mut next = 0u8;
    for _ in 0..3 {
        for n in 0..100u8 {
            socket.send_to(&[n; 40], "10.0.0.1:2152").unwrap();
        }
        let mac = port.mac();
        let received = receive(&mut port, 100, |port, batch| {
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            for mut buffer in batch.frames_mut() {
                let frame = ethernet::Frame::new(buffer.packet()).unwrap();
                assert_eq!((frame.destination(), frame.ethertype()), (mac, ethernet::IPV4));
                assert_eq!(frame.payload()[28..68], [next; 40], "in order");
                next = (next + 1) % 100;
                reverse(buffer.packet_mut());
            }
            let sent = port.transmit(batch, &all);
            assert_eq!((sent.packets, sent.bytes), (all.len(), all.len() * 82));
            assert!(batch.frames().iter().all(|buffer| buffer.is_gone()), "sent without a copy");
            assert_eq!(port.transmit(batch, &all).errors, all.len(), "and not twice");
        });
        assert_eq!(received, 100);
        for n in 0..100u8 {
            assert_eq!(socket.recv_from(&mut payload).unwrap(), (40, "10.0.0.1:2152".parse().unwrap()));
            assert_eq!(payload[..40], [n; 40]);
        }
    }
    // All frames are free after the kernel has returned the last ones.
    receive(&mut port, 0, |_, _| ());
    assert_eq!(memory.free_frames(), free);
}

#[test]
fn packets_of_other_memory_are_copied_and_bounds_hold() {
    let net = Net::new();
    let (_interface, mut port, memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(&[5; 40], "10.0.0.1:2152").unwrap();
    let mut frame = Vec::new();
    receive(&mut port, 1, |_, batch| {
        reverse(batch.frame_mut(0).packet_mut());
        frame = batch.frames()[0].packet().to_vec();
    });
    let mut own = Vector::new(3, 4096);
    let nobody = "0.0.0.0:0".parse().unwrap();
    assert!(own.push(&frame, nobody) && own.push(&[0; 4000], nobody) && own.push(&frame, nobody));
    let sent = port.transmit(&mut own, &[0, 1, 2, 3]);
    assert_eq!((sent.packets, sent.too_big, sent.errors), (2, 1, 1));
    let mut payload = [0; 64];
    for _ in 0..2 {
        assert_eq!(socket.recv_from(&mut payload).unwrap().0, 40);
    }

    // A batch outlives its port and its memory's last owner.
    socket.send_to(&[6; 40], "10.0.0.1:2152").unwrap();
    let mut kept = Vector::new(4, 64);
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    poller.wait(Some(5000), |_| ()).unwrap();
    assert_eq!(port.receive(&mut kept).unwrap(), 1);
    drop((port, memory));
    assert_eq!(kept.frames()[0].packet()[42..82], [6; 40]);
}

/// With traffic nobody watches the sockets of an owner that says when it sleeps. It is told of a frame all the same, whether that
/// came before or after it said so.
#[test]
fn an_owner_that_sleeps_is_told_of_frames() {
    let net = Net::new();
    let (_interface, mut port, _memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    let mut batch = Vector::new(64, 2048);
    // Without asking the descriptor. The kernel of a busy machine hands frames over later than it takes them.
    let mut receive = |port: &mut AfXdpPort, count: usize, echoes: bool| {
        let (mut received, began) = (0, net::time::now_std());
        while received < count && began.elapsed() < Duration::from_secs(5) {
            let came = port.receive(&mut batch).unwrap();
            received += came;
            if echoes {
                batch.frames_mut().for_each(|mut frame| reverse(frame.packet_mut()));
                let all: Vec<u16> = (0..came as u16).collect();
                assert_eq!(port.transmit(&mut batch, &all).packets, came);
            }
        }
        assert_eq!(received, count);
    };
    let send =
        |count| (0..count).for_each(|_| assert_eq!(socket.send_to(&[7; 40], "10.0.0.1:2152").unwrap(), 40));
    let mut is_told = |within_ms| {
        let mut told = false;
        poller.wait(Some(within_ms), |_| told = true).unwrap();
        told
    };
    for says in [false, true, true, true] {
        for (before, after) in [(1, 0), (0, 1), (1, 0), (3, 3)] {
            send(64);
            receive(&mut port, 64, true);
            send(before);
            if says {
                port.before_sleep().unwrap();
            }
            send(after);
            assert!(is_told(5000), "{says}, {before} before, {after} after");
            receive(&mut port, before + after, false);
            assert!(!is_told(0), "there is nothing left");
        }
    }
    // Now it does not sleep.
    for _ in 0..2 {
        send(64);
        receive(&mut port, 64, false);
    }
    send(1);
    assert!(!is_told(50), "nobody watches");
    port.before_sleep().unwrap();
    port.before_sleep().unwrap();
    assert!(is_told(5000));
}

#[test]
fn what_the_kernel_leaves_in_the_ring_is_sent_with_a_later_look() {
    let net = Net::new();
    let (_interface, mut port, memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let free = memory.free_frames();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(&[5; 40], "10.0.0.1:2152").unwrap();
    let mut batch = Vector::new(64, 2048);
    receive(&mut port, 1, |_, received| {
        reverse(received.frame_mut(0).packet_mut());
        let frame = received.frames()[0].packet();
        while batch.len() < 3 && batch.push(frame, "0.0.0.0:0".parse().unwrap()) {}
    });
    assert!(!port.unsent());

    let links = net.ours.enter(|| net.runtime.block_on(async { Links::here().unwrap() })).unwrap();
    net.runtime.block_on(links.down("up0")).unwrap();
    assert_eq!(port.transmit(&mut batch, &[0, 1, 2]).packets, 3, "there is room in the ring");
    assert!(port.unsent());
    assert_eq!(port.receive(&mut batch).unwrap(), 0);
    assert!(port.unsent(), "the interface is still down");
    net.runtime.block_on(links.up("up0")).unwrap();
    for _ in 0..500 {
        port.receive(&mut batch).unwrap();
        if !port.unsent() {
            break;
        }
        net::time::sleep_thread(Duration::from_millis(10));
    }
    let mut payload = [0; 64];
    for _ in 0..3 {
        assert_eq!(socket.recv_from(&mut payload).unwrap().0, 40);
    }
    // Receiving the next packet also takes back the frames that the kernel has sent.
    socket.send_to(&[6; 40], "10.0.0.1:2152").unwrap();
    receive(&mut port, 1, |_, _| ());
    assert_eq!(memory.free_frames(), free);
}

#[test]
fn a_port_leaves_no_trace_and_can_be_opened_again_at_once() {
    let net = Net::new();
    for _ in 0..3 {
        let (_interface, port, _memory) = open(&net.ours, "up0", &[Select::Everything]).unwrap();
        drop(port);
    }
    let kernel = net.ours.enter(|| UdpSocket::bind("10.0.0.1:2152").unwrap()).unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.send_to(b"x", "10.0.0.1:2152").unwrap();
    assert_eq!(kernel.recv_from(&mut [0; 8]).unwrap().0, 1, "the kernel has its interface back");
}

#[test]
fn what_cannot_work_is_said() {
    let net = Net::new();
    let missing = net.ours.enter(|| Interface::open("nowhere0", None, &[])).unwrap();
    assert!(matches!(missing, Err(AfXdpError::Device { .. })), "{missing:?}");
    let loopback = net.ours.enter(|| Interface::open("lo", None, &[])).unwrap();
    assert!(loopback.unwrap_err().to_string().contains("not an Ethernet interface"));
    let error = net.ours.enter(|| {
        let interface = Interface::open("up0", None, &[gtpu()]).unwrap();
        let mut memory = Memory::new(1, [interface.device()]).unwrap();
        AfXdpPort::open(&interface, [9], &mut memory, Options::default()).unwrap_err()
    });
    assert!(matches!(error.unwrap(), AfXdpError::Socket { queue: 9, .. }));
    net.runtime.block_on(async {
        Links::in_ns(&net.ours).unwrap().set_mtu("up0", 9000).await.unwrap();
    });
    let jumbo = net.ours.enter(|| Interface::open("up0", None, &[])).unwrap();
    assert!(matches!(jumbo, Err(AfXdpError::Mtu { mtu: 9000, .. })), "{jumbo:?}");
}

/// Two queues in one port: flows of both queues are received, each in its order.
#[test]
fn a_port_serves_several_queues() {
    let net = Net::with(async |ours, links, peer| {
        let queues = ["numrxqueues", "2", "numtxqueues", "2"];
        let mut command = std::process::Command::new("ip");
        command.args(["link", "add", "up0"]).args(queues).args(["type", "veth", "peer", "name", "peer0"]);
        let ran = ours.enter(|| command.args(queues).status().expect("ip is installed"));
        assert!(ran.unwrap().success());
        links.move_to("peer0", peer).await.unwrap();
    });
    let (_interface, mut port, _memory) = net
        .ours
        .enter(|| {
            let interface = Interface::open("up0", None, &[gtpu()]).unwrap();
            assert_eq!(interface.device().queues, 2);
            let mut memory = Memory::new(2, [interface.device()]).unwrap();
            let port = AfXdpPort::open(&interface, [0, 1], &mut memory, Options::default()).unwrap();
            (interface, port, memory)
        })
        .unwrap();
    let sockets: Vec<UdpSocket> =
        net.peer.enter(|| (0..16).map(|_| UdpSocket::bind("10.0.0.2:0").unwrap()).collect()).unwrap();
    for n in 0..10u8 {
        for (flow, socket) in sockets.iter().enumerate() {
            socket.send_to(&[flow as u8, n], "10.0.0.1:2152").unwrap();
        }
    }
    let mut next = [0u8; 16];
    let received = receive(&mut port, 160, |_, batch| {
        for buffer in batch.frames() {
            let [flow, n] = buffer.packet()[42..44] else { panic!("two octets") };
            assert_eq!(n, next[usize::from(flow)], "flow {flow}");
            next[usize::from(flow)] += 1;
        }
    });
    assert_eq!((received, next), (160, [10; 16]));
}

/// A port works on after its interface went down and came up again.
#[test]
fn an_interface_may_go_down_and_up() {
    let net = Net::new();
    let (_interface, mut port, _memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let round = |port: &mut AfXdpPort| {
        socket.send_to(&[7; 40], "10.0.0.1:2152").unwrap();
        let received = receive(port, 1, |port, batch| {
            reverse(batch.frame_mut(0).packet_mut());
            port.transmit(batch, &[0]);
        });
        assert_eq!(received, 1);
        assert_eq!(socket.recv_from(&mut [0; 64]).unwrap().0, 40);
    };
    round(&mut port);
    let links = |up: bool| {
        net.runtime.block_on(async {
            let links = Links::in_ns(&net.ours).unwrap();
            if up { links.up("up0").await.unwrap() } else { links.down("up0").await.unwrap() }
        });
    };
    links(false);
    let mut batch = Vector::new(1, 2048);
    assert!(batch.push(&[0; 60], "0.0.0.0:0".parse().unwrap()));
    port.transmit(&mut batch, &[0]);
    assert_eq!(port.receive(&mut batch).unwrap(), 0);
    links(true);
    round(&mut port);
}

/// EtherType of local experiments (IEEE 802), which no kernel sends.
const EXPERIMENT: [u8; 2] = [0x88, 0xB5];
/// Octets of an Ethernet header.
const HEADER: usize = 14;
/// Most frames between sender and receiver: fewer than a veth pair queues, so that none is lost.
const UNDER_WAY: usize = 192;

/// Frames whose length, contents and changes on the way follow from their numbers.
struct Numbered {
    noise: Vec<u8>,
}

impl Numbered {
    fn new() -> Numbered {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut octet = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        Numbered { noise: (0..1 << 16).map(|_| octet()).collect() }
    }

    /// Numbers of octets that are removed from the front of frame `number` on the way, and added there.
    fn change(number: u32) -> (usize, usize) {
        let octets = 4 + number as usize * 13 % 60;
        match number % 3 {
            0 => (0, 0),
            1 => (octets, 0),
            _ => (0, octets),
        }
    }

    fn payload(&self, number: u32) -> &[u8] {
        // All lengths from the shortest to the longest; consecutive frames differ much.
        let length = 60 + number as usize * 389 % (1514 - 60 - 64);
        let place = number as usize * 7919 % (self.noise.len() - 1514);
        &self.noise[place..place + length - HEADER - 4]
    }

    /// What is in front of the payload: the Ethernet header, `more` octets, the number.
    fn head(&self, number: u32, more: usize) -> Vec<u8> {
        let mut head = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]].concat();
        head.extend(EXPERIMENT);
        head.extend(&self.noise[number as usize % 1000..][..more]);
        head.extend(number.to_be_bytes());
        head
    }

    fn sent(&self, number: u32) -> Vec<u8> {
        let (off, _) = Numbered::change(number);
        [&self.head(number, off), self.payload(number)].concat()
    }

    fn received(&self, number: u32) -> Vec<u8> {
        let (_, on) = Numbered::change(number);
        [&self.head(number, on), self.payload(number)].concat()
    }

    /// Removes and adds octets in place, like the headers of tunnels.
    fn pass(&self, number: u32, buffer: &mut FrameMut<'_>) {
        let (off, on) = Numbered::change(number);
        buffer.trim_front(off);
        assert!(buffer.grow_front(on));
        let head = self.head(number, on);
        buffer.packet_mut()[..head.len()].copy_from_slice(&head);
    }
}

/// Ports on interfaces of a namespace, all of one memory.
fn open_sharing(namespace: &NetNs, names: &[&str]) -> (Vec<AfXdpPort>, Memory) {
    let open = || {
        let open = |name: &&str| Interface::open(name, None, &[Select::Everything]).unwrap();
        let interfaces: Vec<Arc<Interface>> = names.iter().map(open).collect();
        let devices = interfaces.iter().map(|interface| interface.device());
        let mut memory = Memory::new(names.len(), devices).unwrap();
        let port = |interface| AfXdpPort::open(interface, [0], &mut memory, Options::default()).unwrap();
        (interfaces.iter().map(port).collect(), memory)
    };
    namespace.enter(open).unwrap()
}

/// Positions of our frames in a batch, with the numbers that they must have, beginning with `next`.
fn ours(batch: &Vector, next: &mut u32) -> Vec<(u16, u32)> {
    let is_ours = |buffer: &Frame| buffer.packet().get(12..14) == Some(&EXPERIMENT);
    let places = (0..).zip(batch.frames()).filter(|(_, buffer)| is_ours(buffer)).map(|(at, _)| at);
    let found: Vec<(u16, u32)> = places.zip(*next..).collect();
    *next += found.len() as u32;
    found
}

/// Sends frames from one far end through two ports of ours to the other far end, where each is compared. Our ports share
/// one memory, so that frames pass without a copy, or each has its own.
fn pass_frames(net: &Net, count: u32, shared: bool) {
    let frames = Numbered::new();
    let (mut near, memories) = if shared {
        let (ports, memory) = open_sharing(&net.ours, &["up0", "up1"]);
        (ports, vec![memory])
    } else {
        let (mut ports, first) = open_sharing(&net.ours, &["up0"]);
        let (other, second) = open_sharing(&net.ours, &["up1"]);
        ports.extend(other);
        (ports, vec![first, second])
    };
    let (mut far, far_memory) = open_sharing(&net.peer, &["peer0", "peer1"]);
    let (mut out, mut taken) = (Vector::new(48, 2048), Vector::new(64, 2048));
    let (mut sent, mut passed, mut arrived, mut turn) = (0, 0, 0, 0);
    let started = net::time::now_std();
    while arrived < count {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "of {sent} frames {passed} passed and {arrived} arrived; the others are lost"
        );
        out.clear();
        // Batches of all sizes, the empty one among them.
        turn += 1;
        let most = (turn * 31 % 49).min(UNDER_WAY - (sent - arrived) as usize);
        while out.len() < most && sent < count {
            assert!(out.push(&frames.sent(sent), "0.0.0.0:0".parse().unwrap()));
            sent += 1;
        }
        let all: Vec<u16> = (0..out.len() as u16).collect();
        assert_eq!(far[0].transmit(&mut out, &all).packets, all.len());

        near[0].receive(&mut taken).unwrap();
        let mut selected = Vec::new();
        for (at, number) in ours(&taken, &mut passed) {
            let mut buffer = taken.frame_mut(usize::from(at));
            assert_eq!(buffer.packet(), frames.sent(number), "frame {number} on its way in");
            frames.pass(number, &mut buffer);
            selected.push(at);
        }
        assert_eq!(near[1].transmit(&mut taken, &selected).packets, selected.len());
        // Takes sent frames back, and frames that a kernel sends on its own.
        near[1].receive(&mut taken).unwrap();
        far[0].receive(&mut taken).unwrap();

        far[1].receive(&mut taken).unwrap();
        for (at, number) in ours(&taken, &mut arrived) {
            let frame = taken.frames()[usize::from(at)].packet();
            assert_eq!(frame, frames.received(number), "frame {number} at the far end");
        }
    }
    assert_eq!((sent, passed), (count, count));
    for port in near.iter_mut().chain(&mut far) {
        port.losses(&mut |reason, count| panic!("{count} frames lost: {}", reason.name()));
    }
    // Batches hold the frames received last.
    assert!(far_memory.lent_frames() > 0);
    let mut check = || {
        if shared {
            assert_no_frame_is_lost(&mut near, &memories[0]);
        } else {
            for (port, memory) in near.chunks_mut(1).zip(&memories) {
                assert_no_frame_is_lost(port, memory);
            }
        }
        assert_no_frame_is_lost(&mut far, &far_memory);
    };
    check();
    drop((out, taken));
    check();
    let lent = |memory: &Memory| memory.lent_frames();
    assert_eq!((memories.iter().map(lent).sum::<usize>(), lent(&far_memory)), (0, 0));
}

/// All frames of a memory are in the list of free ones, in batches, or in the rings of `ports`, which are all ports of
/// this memory and idle.
fn assert_no_frame_is_lost(ports: &mut [AfXdpPort], memory: &Memory) {
    let mut rings = 0;
    // The kernel may still have to release frames that it has sent.
    for _ in 0..500 {
        rings = ports.iter_mut().map(AfXdpPort::ring_frames).sum();
        if memory.free_frames() + memory.lent_frames() + rings == memory.frames() {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(10));
    }
    let (all, free, lent) = (memory.frames(), memory.free_frames(), memory.lent_frames());
    panic!("of {all} frames {free} are free, {lent} in batches, and {rings} in rings");
}

#[test]
fn frames_of_all_sizes_arrive_as_they_were_sent() {
    let net = two_links();
    // First with a copy in our namespace, then without, then with a copy again: ports release their interfaces.
    for (count, shared) in [(150_000, false), (150_000, true), (1000, false)] {
        pass_frames(&net, count, shared);
    }
}

/// Runs itself again without CAP_IPC_LOCK and with little memory to lock.
#[test]
fn the_limit_of_locked_memory_is_named() {
    const INSIDE: &str = "GODWIT_TEST_LOCKED_MEMORY";
    if std::env::var_os(INSIDE).is_some() {
        let net = Net::new();
        let error = open(&net.ours, "up0", &[gtpu()]).err().unwrap().to_string();
        assert!(error.contains("up0, queue 0") && error.contains("ulimit -l"), "{error}");
        return;
    }
    let limited = ["--bounding-set=-ipc_lock", "prlimit", "--memlock=65536:65536"];
    let itself = ["--exact", "af_xdp::the_limit_of_locked_memory_is_named", "--nocapture"];
    let mut command = std::process::Command::new("setpriv");
    let output = command.args(limited).arg(std::env::current_exe().unwrap()).args(itself).env(INSIDE, "1");
    let output = output.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
}

/// The losses that a port reports.
fn losses(port: &mut AfXdpPort) -> Vec<(DropReason, usize)> {
    // A port reads the kernel's counters every ten milliseconds.
    net::time::sleep_thread(Duration::from_millis(15));
    port.receive(&mut Vector::new(1, 64)).unwrap();
    let mut found = Vec::new();
    port.losses(&mut |reason, count| found.push((reason, count)));
    found
}

#[test]
fn what_the_kernel_discards_is_counted_by_reason() {
    let net = Net::new();
    let (_interface, mut port, _memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(losses(&mut port), []);

    // More packets than the kernel has chunks for, while nobody receives.
    const RING: usize = 4096;
    for _ in 0..RING + 300 {
        socket.send_to(&[1; 40], "10.0.0.1:2152").unwrap();
    }
    let received = receive(&mut port, RING, |_, _| ());
    let lost = losses(&mut port);
    let [(DropReason::RxNoBuffer, count)] = lost[..] else { panic!("{lost:?}") };
    assert!(received >= RING && count <= 300 && received + count > RING, "{received} received, {count} lost");
    assert_eq!(losses(&mut port), [], "each is counted once");

    // Packets longer than a chunk, after a change of the MTU.
    net.runtime.block_on(async {
        Links::in_ns(&net.ours).unwrap().set_mtu("up0", 3000).await.unwrap();
        Links::in_ns(&net.peer).unwrap().set_mtu("peer0", 3000).await.unwrap();
    });
    for _ in 0..7 {
        socket.send_to(&[2; 2500], "10.0.0.1:2152").unwrap();
    }
    assert_eq!(receive(&mut port, 1, |_, _| ()), 0);
    socket.send_to(&[1; 40], "10.0.0.1:2152").unwrap();
    assert_eq!(receive(&mut port, 1, |_, _| ()), 1);
    assert_eq!(losses(&mut port), [(DropReason::TooBig, 7)]);
}

#[test]
fn frames_that_the_interface_refuses_are_counted_and_come_home() {
    let net = Net::new();
    let (_interface, mut port, memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let free = memory.free_frames();
    // The peer is down, so there is no carrier: frames leave the ring and are dropped.
    net.runtime.block_on(async { Links::in_ns(&net.peer).unwrap().down("peer0").await.unwrap() });
    let mut batch = Vector::new(5, 2048);
    let nobody = "0.0.0.0:0".parse().unwrap();
    for length in [60, 600, 1514, 13, 1600] {
        assert!(batch.push(&vec![2; length], nobody));
    }
    let sent = port.transmit(&mut batch, &[0, 1, 2, 3, 4]);
    assert_eq!(
        sent,
        Sent { full: 3, errors: 1, too_big: 1, ..Sent::default() },
        "refused; no header; longer than the MTU"
    );
    assert_eq!(losses(&mut port), [], "each is counted once");
    assert!(!port.unsent());
    port.transmit(&mut batch, &[]);
    assert_eq!(memory.free_frames(), free);
}
