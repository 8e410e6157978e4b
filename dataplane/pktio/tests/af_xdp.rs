//! AF_XDP against the real kernel: a veth pair between two anonymous namespaces. Needs root (or a user namespace
//! with its own network, as `make test` sets up).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::net::UdpSocket;
use std::time::Duration;

use net::link::Links;
use packet::ethernet;
use pktio::af_xdp::{AfXdpError, AfXdpPort, Interface, Memory, Mode, Options};
use pktio::bpf::filter::Select;
use pktio::poll::Poller;
use pktio::{Batch, FramePort, Port};
use support::{Net, exchange_addresses, open};

fn gtpu() -> Select {
    Select::Udp("10.0.0.1".parse().unwrap(), 2152)
}

/// Receives until `count` frames have come, and calls `each` with every batch.
fn receive(port: &mut AfXdpPort, count: usize, mut each: impl FnMut(&mut AfXdpPort, &mut Batch)) -> usize {
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    let mut batch = Batch::new(64, 2048);
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
            for buffer in batch.buffers_mut() {
                let frame = ethernet::Frame::new(buffer.packet()).unwrap();
                assert_eq!((frame.destination(), frame.ethertype()), (mac, ethernet::IPV4));
                assert_eq!(frame.payload()[28..68], [next; 40], "in order");
                next = (next + 1) % 100;
                reverse(buffer.packet_mut());
            }
            let sent = port.transmit(batch, &all);
            assert_eq!((sent.packets, sent.bytes), (all.len(), all.len() * 82));
            assert!(batch.buffers().iter().all(|buffer| buffer.is_gone()), "sent without a copy");
            assert_eq!(port.transmit(batch, &all).errors, all.len(), "and not twice");
        });
        assert_eq!(received, 100);
        for n in 0..100u8 {
            assert_eq!(socket.recv_from(&mut payload).unwrap(), (40, "10.0.0.1:2152".parse().unwrap()));
            assert_eq!(payload[..40], [n; 40]);
        }
    }
    // All frames are home once the kernel has let go of the last ones.
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
        reverse(batch.buffers_mut()[0].packet_mut());
        frame = batch.buffers()[0].packet().to_vec();
    });
    let mut own = Batch::new(3, 4096);
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
    let mut kept = Batch::new(4, 64);
    let mut poller = Poller::new().unwrap();
    poller.add(port.fd().unwrap(), 1).unwrap();
    poller.wait(Some(5000), |_| ()).unwrap();
    assert_eq!(port.receive(&mut kept).unwrap(), 1);
    drop((port, memory));
    assert_eq!(kept.buffers()[0].packet()[42..82], [6; 40]);
}

#[test]
fn what_the_kernel_leaves_in_the_ring_is_sent_with_a_later_look() {
    let net = Net::new();
    let (_interface, mut port, memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let free = memory.free_frames();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket.send_to(&[5; 40], "10.0.0.1:2152").unwrap();
    let mut batch = Batch::new(64, 2048);
    receive(&mut port, 1, |_, received| {
        reverse(received.buffers_mut()[0].packet_mut());
        let frame = received.buffers()[0].packet();
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
    // The next packet takes along what the kernel is done with.
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

/// Two queues in one port: whichever a flow comes by, it is received, and in its order.
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
        for buffer in batch.buffers() {
            let [flow, n] = buffer.packet()[42..44] else { panic!("two octets") };
            assert_eq!(n, next[usize::from(flow)], "flow {flow}");
            next[usize::from(flow)] += 1;
        }
    });
    assert_eq!((received, next), (160, [10; 16]));
}

/// An interface that goes down and comes up again serves on, and nothing is left behind meanwhile.
#[test]
fn an_interface_may_go_down_and_up() {
    let net = Net::new();
    let (_interface, mut port, _memory) = open(&net.ours, "up0", &[gtpu()]).unwrap();
    let socket = net.peer.enter(|| UdpSocket::bind("10.0.0.2:0").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let round = |port: &mut AfXdpPort| {
        socket.send_to(&[7; 40], "10.0.0.1:2152").unwrap();
        let received = receive(port, 1, |port, batch| {
            reverse(batch.buffers_mut()[0].packet_mut());
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
    let mut batch = Batch::new(1, 2048);
    assert!(batch.push(&[0; 60], "0.0.0.0:0".parse().unwrap()));
    port.transmit(&mut batch, &[0]);
    assert_eq!(port.receive(&mut batch).unwrap(), 0);
    links(true);
    round(&mut port);
}
