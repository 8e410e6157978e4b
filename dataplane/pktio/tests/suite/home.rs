//! What sockets and TUN devices receive lies in the frames of an AF_XDP interface and leaves through it without a copy.
//! Against the real kernel: a veth pair between two anonymous namespaces, of which the far end compares all octets. Needs
//! root (or a user namespace with its own network, as `make test` sets up).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Net, open, two_links};
use net::link::Links;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::tun::{Offload, TunPort};
use pktio::udp::UdpPort;
use pktio::{Pool, Port, Sent, Slab, VECTOR, Vector};

/// An Ethernet header with a type of local experiments (IEEE 802), which no kernel sends.
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5];
/// Frames of the pool that the vector began with.
const LONG: usize = 128;
/// The longest packet of a frame of AF_XDP here.
const SHORT: usize = 1920;

/// The near end, with what a worker has.
struct Near {
    port: AfXdpPort,
    memory: Memory,
    slab: Arc<Slab>,
    vector: Vector,
    sent: Sent,
}

impl Near {
    fn new(net: &Net) -> Near {
        let (_, port, memory) = open(&net.ours, "up0", &[Select::Everything]).unwrap();
        let slab = Slab::new(LONG, 9216);
        let mut vector = Vector::of(&(Arc::clone(&slab) as Arc<dyn Pool>));
        vector.settle(&port.pool().unwrap());
        Near { port, memory, slab, vector, sent: Sent::default() }
    }

    /// Receives from `from`, and sends the packets for which `is_ours` in frames. Returns the lengths of those that are too long.
    fn forward(&mut self, from: &mut impl Port, is_ours: impl Fn(&[u8]) -> bool) -> Vec<usize> {
        // Takes back what was sent.
        self.port.receive(&mut self.vector).unwrap();
        let mut too_long = Vec::new();
        while from.receive(&mut self.vector).unwrap() > 0 {
            let mut selected = Vec::new();
            for (at, mut frame) in (0..).zip(self.vector.frames_mut()) {
                if !is_ours(frame.packet()) {
                    continue;
                }
                if frame.len() > 1500 {
                    too_long.push(frame.len());
                }
                assert!(frame.grow_front(HEADER.len()));
                frame.packet_mut()[..HEADER.len()].copy_from_slice(&HEADER);
                selected.push(at);
            }
            let sent = self.port.transmit(&mut self.vector, &selected);
            assert_eq!(sent.packets + sent.too_big, selected.len(), "{sent:?}");
            self.sent.packets += sent.packets;
            self.sent.copied += sent.copied;
            self.sent.too_big += sent.too_big;
        }
        too_long
    }

    /// Asserts that all frames are where they belong: the vector's are the only ones that are lent.
    fn assert_no_frame_is_lost(mut self) {
        drop(self.vector);
        assert_eq!((self.memory.lent_frames(), self.slab.free_chunks()), (0, LONG));
        for _ in 0..500 {
            let rings = self.port.ring_frames();
            if self.memory.free_frames() + rings == self.memory.frames() {
                return;
            }
            net::time::sleep_thread(Duration::from_millis(10));
        }
        panic!("{} of {} frames are free", self.memory.free_frames(), self.memory.frames());
    }
}

/// What arrives at the far end, without the header.
fn arrived(port: &mut AfXdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut batch = Vector::new(VECTOR, 2048);
    let started = net::time::now_std();
    while all.len() < count && started.elapsed() < Duration::from_secs(20) {
        port.receive(&mut batch).unwrap();
        let frames = batch.frames().iter().map(|frame| frame.packet());
        all.extend(frames.filter(|frame| frame[12..14] == HEADER[12..]).map(|frame| frame[14..].to_vec()));
    }
    all
}

/// Lengths in runs of equal ones, which a socket sends as one message. With long ones among them if `some_long`.
fn lengths(noise: &mut u64, some_long: bool) -> Vec<usize> {
    let mut lengths = Vec::new();
    while lengths.len() < 30 {
        *noise ^= *noise << 13;
        *noise ^= *noise >> 7;
        *noise ^= *noise << 17;
        let length = match *noise % 10 {
            0 if some_long => 1500 + *noise / 16 % 6500,
            1 => [4, 5, 1471, 1472][(*noise / 16 % 4) as usize],
            _ => 4 + *noise / 16 % 1460,
        };
        lengths.extend((0..1 + *noise / 65_536 % 9).map(|_| length as usize));
    }
    lengths
}

fn payload(number: u32, length: usize) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..length).map(|at| (at as u32).wrapping_mul(number | 1) as u8).collect();
    payload[..4].copy_from_slice(&number.to_be_bytes());
    payload
}

/// Sends datagrams in rounds from a socket to `to`, lets `near` forward them, and compares what arrives. `header` octets stand
/// in front of the payload.
fn pass(
    net: &Net,
    some_long: bool,
    header: usize,
    sender: &mut UdpPort,
    from: &mut impl Port,
    to: SocketAddr,
) {
    let (_, mut far, _memory) = open(&net.peer, "peer0", &[Select::Everything]).unwrap();
    let mut near = Near::new(net);
    let mut noise = 0x9E37_79B9_7F4A_7C15_u64;
    let (mut number, mut too_long) = (0u32, 0);
    let mut out = Vector::new(VECTOR, 9216);
    for round in 0..150 {
        let lengths: Vec<usize> = lengths(&mut noise, some_long);
        let first = number;
        for part in lengths.chunks(VECTOR) {
            out.clear();
            for length in part {
                assert!(out.push(&payload(number, *length), to));
                number += 1;
            }
            let all: Vec<u16> = (0..part.len() as u16).collect();
            assert_eq!(sender.transmit(&mut out, &all).packets, part.len());
        }
        let port = to.port().to_be_bytes();
        let is_ours = |packet: &[u8]| header == 0 || packet[0] == 0x45 && packet[22..24] == port;
        let long = near.forward(from, is_ours);
        let numbered = || (first..).zip(&lengths);
        let is_long = |length: usize| length + header > 1500;
        let wanted: Vec<usize> =
            lengths.iter().filter(|length| is_long(**length)).map(|n| n + header).collect();
        assert_eq!(long, wanted, "round {round}");
        too_long += long.len();
        let wanted: Vec<Vec<u8>> = numbered()
            .filter(|(_, length)| !is_long(**length))
            .map(|(n, length)| payload(n, *length))
            .collect();
        let found = arrived(&mut far, wanted.len());
        assert_eq!(found.len(), wanted.len(), "round {round}");
        for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            // Short frames are padded on the way.
            assert_eq!(found[header..][..wanted.len()], wanted[..], "round {round}, packet {at}");
        }
    }
    assert_eq!(near.sent.too_big, too_long);
    match some_long {
        false => assert_eq!((near.sent.copied, too_long), (0, 0), "of {number}"),
        // Those that came behind a long one in the same call.
        true => assert!(too_long > 100 && near.sent.copied < near.sent.packets / 2, "{:?}", near.sent),
    }
    near.assert_no_frame_is_lost();
}

/// A TUN device with these features, whose packets are longer than frames of AF_XDP if `mtu` is.
fn tun(net: &Net, most: Offload, mtu: u32) -> TunPort {
    let tun = net.ours.enter(|| TunPort::create_with("gw0", most)).unwrap().unwrap();
    net.runtime.block_on(async {
        let links = Links::in_ns(&net.ours).unwrap();
        links.set_mtu("gw0", mtu).await.unwrap();
        links.set_txqueuelen("gw0", 4000).await.unwrap();
        links.add_address("gw0", "10.45.0.1/16".parse().unwrap()).await.unwrap();
        links.up("gw0").await.unwrap();
    });
    tun
}

fn bind(net: &Net, address: &str) -> UdpPort {
    net.ours.enter(|| UdpPort::bind(address.parse().unwrap(), false)).unwrap().unwrap()
}

/// IPv4 and UDP.
const HEADERS: usize = 28;

#[test]
fn packets_of_a_tun_device_are_not_copied() {
    let net = Net::new();
    for (most, mtu, some_long) in [
        (Offload::None, 1500, false),
        (Offload::Checksum, 1500, false),
        (Offload::Udp, 1500, false),
        (Offload::None, 9000, true),
        (Offload::Checksum, 9000, true),
        (Offload::Udp, 9000, true),
    ] {
        let mut tun = tun(&net, most, mtu);
        let mut sender = bind(&net, "10.45.0.1:7000");
        let to = "10.45.0.2:5000".parse().unwrap();
        pass(&net, some_long, HEADERS, &mut sender, &mut tun, to);
    }
}

#[test]
fn datagrams_of_a_socket_are_not_copied() {
    let net = Net::new();
    net.runtime.block_on(async { Links::in_ns(&net.ours).unwrap().up("lo").await.unwrap() });
    for some_long in [false, true] {
        let (mut sender, mut socket) = (bind(&net, "127.0.0.1:0"), bind(&net, "127.0.0.1:0"));
        let to = socket.local();
        pass(&net, some_long, 0, &mut sender, &mut socket, to);
    }
}

/// An interface that does not send, with as many packets as it takes, keeps no chunk that others need to receive.
#[test]
fn packets_that_wait_to_be_sent_do_not_stop_reception() {
    const MANY: u32 = 20_000;
    let net = two_links();
    let open_both = || {
        let interfaces =
            ["up0", "up1"].map(|name| Interface::open(name, None, &[Select::Everything]).unwrap());
        let mut memory = Memory::new(2, interfaces.iter().map(|interface| interface.device())).unwrap();
        let ports = interfaces
            .map(|interface| AfXdpPort::open(&interface, [0], &mut memory, Options::default()).unwrap());
        (ports, memory)
    };
    let ([mut stuck, mut other], memory) = net.ours.enter(open_both).unwrap();
    let (_, mut far, _far_memory) = open(&net.peer, "peer1", &[Select::Everything]).unwrap();
    let mut vector = Vector::of(&(Slab::new(VECTOR, 9216) as Arc<dyn Pool>));
    vector.settle(&stuck.pool().unwrap());
    let links = |up: bool| {
        net.runtime.block_on(async {
            let links = Links::in_ns(&net.ours).unwrap();
            if up { links.up("up0").await.unwrap() } else { links.down("up0").await.unwrap() }
        });
    };
    links(false);
    let nobody: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let frame = [&HEADER[..], &[0; 60]].concat();
    let all: Vec<u16> = (0..VECTOR as u16).collect();
    let (mut next, mut taken) = (0, 0);
    let mut out = Vector::new(VECTOR, 2048);
    while next < MANY {
        // What a TUN device would have received.
        vector.clear();
        while vector.len() < VECTOR {
            assert!(vector.push(&frame, nobody), "the pool is empty after {next}");
        }
        let sent = stuck.transmit(&mut vector, &all);
        assert_eq!((sent.packets + sent.full, sent.copied), (VECTOR, 0));
        taken += sent.packets;

        out.clear();
        for number in (next..MANY).take(48) {
            assert!(out.push(&[&HEADER[..], &number.to_be_bytes(), &[0; 50]].concat(), nobody));
        }
        let count = out.len();
        assert_eq!(far.transmit(&mut out, &all[..count]).packets, count);
        let before = next;
        let started = net::time::now_std();
        while next < before + count as u32 && started.elapsed() < Duration::from_secs(10) {
            stuck.receive(&mut vector).unwrap();
            other.receive(&mut vector).unwrap();
            for frame in vector.frames().iter().filter(|frame| frame.packet()[12..14] == HEADER[12..]) {
                assert_eq!(frame.packet()[14..18], next.to_be_bytes());
                next += 1;
            }
        }
        assert_eq!(next, before + count as u32, "frames are received although {taken} wait to be sent");
        far.receive(&mut out).unwrap();
    }
    assert!((VECTOR..=4096).contains(&taken), "{taken} wait");
    links(true);
    drop(vector);
    let rings = |ports: &mut [&mut AfXdpPort]| ports.iter_mut().map(|port| port.ring_frames()).sum::<usize>();
    let mut batch = Vector::new(1, 64);
    for _ in 0..500 {
        stuck.receive(&mut batch).unwrap();
        batch.clear();
        if !stuck.unsent() && memory.free_frames() + rings(&mut [&mut stuck, &mut other]) == memory.frames() {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(10));
    }
    panic!("{} of {} frames are free", memory.free_frames(), memory.frames());
}

#[test]
fn frames_of_af_xdp_are_as_long_as_this_test_takes_them_to_be() {
    let net = Net::new();
    let (_, port, _memory) = open(&net.ours, "up0", &[]).unwrap();
    let mut vector = Vector::of(&(Slab::new(1, 9216) as Arc<dyn Pool>));
    vector.settle(&port.pool().unwrap());
    assert!(vector.push(&[1; SHORT], "0.0.0.0:0".parse().unwrap()));
    vector.clear();
    assert!(!vector.push(&[1; SHORT + 1], "0.0.0.0:0".parse().unwrap()));
}
