//! The far end of a veth pair, octet by octet: frames are sent by a packet socket, and received by AF_XDP, which leaves tags
//! where they are. Several simulated hosts stand behind it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each binary uses its part; helpers of tests"
)]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use net::netns::NetNs;
use net::time::Instant;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, send, socket};
use packet::checksum::Sum;
use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, ipv6, protocol};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::poll::Poller;
use pktio::vlan::Tags;
use pktio::{Port, Vector};

use super::lab::PATIENCE;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Time in which a frame comes that comes at all.
const LOOK_MS: u16 = 100;

/// The far end of a link.
pub struct Wire {
    sender: OwnedFd,
    receiver: RefCell<Receiver>,
    interface: Arc<Interface>,
}

struct Receiver {
    port: AfXdpPort,
    poller: Poller,
    batch: Vector,
    frames: std::collections::VecDeque<Vec<u8>>,
}

impl Wire {
    /// On the interface `device` of a namespace.
    pub fn open(namespace: &NetNs, device: &str) -> Wire {
        let open = || {
            let interface = Interface::open(device, None, &[Select::Everything]).unwrap();
            let queues = interface.device().queues;
            let mut memory = Memory::new(queues as usize, [interface.device()]).unwrap();
            let port = AfXdpPort::open(&interface, 0..queues, &mut memory, Options::default()).unwrap();
            let sender = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
            let own = |interface: &nix::ifaddrs::InterfaceAddress| {
                let address = interface.address.as_ref().and_then(|address| address.as_link_addr());
                address.copied().filter(|_| interface.interface_name == device)
            };
            let address = nix::ifaddrs::getifaddrs().unwrap().find_map(|interface| own(&interface)).unwrap();
            bind(sender.as_raw_fd(), &address).unwrap();
            let poller = Poller::new().unwrap();
            poller.add(port.fd().unwrap(), 0).unwrap();
            let batch = Vector::new(64, 4096);
            (sender, Receiver { port, poller, batch, frames: Default::default() }, interface)
        };
        let (sender, receiver, interface) = namespace.enter(open).unwrap();
        Wire { sender, receiver: RefCell::new(receiver), interface }
    }

    fn queues(&self) -> u32 {
        self.interface.device().queues
    }

    pub fn send(&self, frame: &[u8]) {
        assert_eq!(send(self.sender.as_raw_fd(), frame, MsgFlags::empty()).unwrap(), frame.len());
    }

    /// The next frame, if one comes.
    pub fn next(&self) -> Option<Vec<u8>> {
        let receiver = &mut *self.receiver.borrow_mut();
        if receiver.frames.is_empty() {
            for _ in 0..2 {
                while receiver.port.receive(&mut receiver.batch).unwrap() > 0 {
                    receiver
                        .frames
                        .extend(receiver.batch.frames().iter().map(|frame| frame.packet().to_vec()));
                    receiver.batch.clear();
                }
                if receiver.frames.is_empty() {
                    receiver.poller.wait(Some(LOOK_MS), |_| ()).unwrap();
                }
            }
        }
        receiver.frames.pop_front()
    }
}

/// A simulated host.
#[derive(Clone, Debug)]
pub struct Host {
    pub mac: Mac,
    /// Tags of its frames.
    pub tags: Vec<u8>,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    /// The UPF's.
    pub upf_mac: Mac,
    pub upf_v4: Ipv4Addr,
    pub upf_v6: Ipv6Addr,
}

impl Host {
    /// Host number `host` of the networks 10.`network`.0.0/24 and fd00:`network`::/64, where the UPF is number 1.
    pub fn new(network: u8, host: u8, tags: Tags, upf_mac: Mac) -> Host {
        let v4 = |host| Ipv4Addr::new(10, network, 0, host);
        let hextet = u16::from_str_radix(&network.to_string(), 16).unwrap();
        let v6 = |host: u8| Ipv6Addr::new(0xfd00, hextet, 0, 0, 0, 0, 0, host.into());
        Host {
            mac: [2, 0, 0, 9, network, host],
            tags: tags.octets().to_vec(),
            v4: v4(host),
            v6: v6(host),
            upf_mac,
            upf_v4: v4(1),
            upf_v6: v6(1),
        }
    }

    pub fn address(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.v6.into() } else { self.v4.into() }
    }

    pub fn upf(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.upf_v6.into() } else { self.upf_v4.into() }
    }

    /// A frame with the host's tags.
    pub fn frame(&self, to: Mac, from: Mac, kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = ethernet::build(to, from, None, kind, packet);
        frame.splice(12..12, self.tags.iter().copied());
        frame
    }

    /// A frame with an IP packet to the UPF.
    pub fn sent(&self, packet: &[u8]) -> Vec<u8> {
        self.frame(self.upf_mac, self.mac, kind(packet), packet)
    }

    /// A frame with an IP packet from the UPF.
    pub fn received(&self, packet: &[u8]) -> Vec<u8> {
        self.frame(self.mac, self.upf_mac, kind(packet), packet)
    }

    /// Type and payload of a frame with the host's tags.
    fn payload<'a>(&self, frame: &'a [u8]) -> Option<(u16, &'a [u8])> {
        let rest = frame.get(12..)?.strip_prefix(&self.tags[..])?;
        Some((u16::from_be_bytes([*rest.first()?, *rest.get(1)?]), &rest[2..]))
    }

    /// The answer to a question for the host's link-layer address, which comes from the UPF.
    fn answer(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (kind, packet) = self.payload(frame)?;
        for ipv6 in [false, true] {
            let (asked, own) = (self.upf(ipv6), self.address(ipv6));
            let (kind_of_question, to, question) = question(self.upf_mac, asked, own);
            if (kind, packet) == (kind_of_question, &question[..]) {
                assert_eq!(*frame, self.frame(to, self.upf_mac, kind, &question), "a question");
                let (kind, answer) = answer(self.mac, own, (self.upf_mac, asked));
                return Some(self.frame(self.upf_mac, self.mac, kind, &answer));
            }
        }
        None
    }
}

pub fn kind(packet: &[u8]) -> u16 {
    if packet[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 }
}

/// Who has `to`? Type, destination and packet of ARP or neighbour discovery.
pub fn question(mac: Mac, from: IpAddr, to: IpAddr) -> (u16, Mac, Vec<u8>) {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (ethernet::ARP, [0xFF; 6], arp(1, (mac, from), ([0; 6], to))),
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let [.., a, b, c] = to.octets();
            let group =
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let packet = discovery(SOLICITATION, 0, (from, group), to, mac);
            (ethernet::IPV6, [0x33, 0x33, 0xFF, a, b, c], packet)
        }
        _ => panic!("one family"),
    }
}

/// `address` is at `mac`, to who has asked.
pub fn answer(mac: Mac, address: IpAddr, (to_mac, to): (Mac, IpAddr)) -> (u16, Vec<u8>) {
    match (address, to) {
        (IpAddr::V4(address), IpAddr::V4(to)) => (ethernet::ARP, arp(2, (mac, address), (to_mac, to))),
        (IpAddr::V6(address), IpAddr::V6(to)) => {
            (ethernet::IPV6, discovery(ADVERTISEMENT, 0x60, (address, to), address, mac))
        }
        _ => panic!("one family"),
    }
}

pub fn arp(kind: u8, (mac, address): (Mac, Ipv4Addr), (to_mac, to): (Mac, Ipv4Addr)) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, kind];
    [&head[..], &mac, &address.octets(), &to_mac, &to.octets()].concat()
}

/// A message of neighbour discovery (RFC 4861 §4.3, §4.4) with the sender's link-layer address.
pub fn discovery(
    kind: u8,
    flags: u8,
    (from, to): (Ipv6Addr, Ipv6Addr),
    target: Ipv6Addr,
    mac: Mac,
) -> Vec<u8> {
    let option = [kind - SOLICITATION + 1, 1];
    let mut message = [&[kind, 0, 0, 0, flags, 0, 0, 0], &target.octets()[..], &option, &mac].concat();
    let sum = Sum::default().pseudo_header(from.into(), to.into(), protocol::ICMPV6, message.len());
    let sum = sum.octets(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = ipv6::Header { hop_limit: 255, ..ipv6::Header::new(from, to, protocol::ICMPV6) };
    header.build(&message).unwrap()
}

/// A packet of GTP-U between these addresses, as the UPF builds it: without UDP checksum in IPv4 if `bare`.
pub fn outer(from: IpAddr, to: IpAddr, message: &[u8], bare: bool) -> Vec<u8> {
    let mut datagram = packet::transport::build_udp((from, gtpu::PORT), (to, gtpu::PORT), message).unwrap();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            if bare {
                datagram[6..8].fill(0);
            }
            let header = ipv4::Header { dont_fragment: bare, ..ipv4::Header::new(from, to, protocol::UDP) };
            header.build(&datagram).unwrap()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Header::new(from, to, protocol::UDP).build(&datagram).unwrap()
        }
        _ => panic!("one family"),
    }
}

/// The hosts behind a link.
pub struct Site {
    pub wire: Wire,
    pub hosts: Vec<Host>,
}

impl Site {
    /// The next frame that is no question for a host here; these are answered. `None` when nothing comes.
    pub fn next(&self) -> Option<Vec<u8>> {
        while let Some(frame) = self.wire.next() {
            match self.hosts.iter().find_map(|host| host.answer(&frame)) {
                Some(answer) => self.wire.send(&answer),
                None => return Some(frame),
            }
        }
        None
    }

    /// Sends a frame again and again until `expected` comes. Whatever else comes is returned.
    #[track_caller]
    pub fn until(&self, what: &str, frame: &[u8], expected: &[u8]) -> Vec<Vec<u8>> {
        let (start, mut others) = (Instant::now(), Vec::new());
        loop {
            self.wire.send(frame);
            while let Some(frame) = self.next() {
                if frame == expected {
                    return others;
                }
                others.push(frame);
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {expected:02x?} did not come, but {others:02x?}");
        }
    }

    /// Sends frames, and compares all that come, but for what kernels say by themselves. They come in their order if the link
    /// has one queue: a packet socket chooses queues by the core that it runs on.
    #[track_caller]
    pub fn exchange(&self, what: &str, frames: &[Vec<u8>], expected: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.wire.send(frame));
        let (start, mut got) = (Instant::now(), Vec::new());
        while got.len() < expected.len() && start.elapsed() < PATIENCE {
            got.extend(self.next().filter(|frame| !is_of_kernel(frame)));
        }
        let mut expected = expected.to_vec();
        if self.wire.queues() > 1 {
            got.sort();
            expected.sort();
        }
        for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert!(got == expected, "{what}, frame {number}:\n{got:02x?}, expected\n{expected:02x?}");
        }
        assert_eq!(got.len(), expected.len(), "{what}");
    }

    /// Each host asks for the UPF's addresses, which then knows the host, and gets the answers in its VLAN.
    pub fn ask(&self) {
        for host in &self.hosts {
            for ipv6 in [false, true] {
                let (own, upf) = (host.address(ipv6), host.upf(ipv6));
                let (kind, to, asked) = question(host.mac, own, upf);
                let (_, answer) = answer(host.upf_mac, upf, (host.mac, own));
                let question = host.frame(to, host.mac, kind, &asked);
                let expected = host.frame(host.mac, host.upf_mac, kind, &answer);
                self.until(&format!("{upf} for {own}"), &question, &expected);
            }
        }
        self.drain();
    }

    /// Takes what still comes.
    pub fn drain(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// Whether a kernel sends such frames without being asked: of IPv6 to groups, without tags.
pub fn is_of_kernel(frame: &[u8]) -> bool {
    frame[..2] == [0x33, 0x33] && frame[12..14] == ethernet::IPV6.to_be_bytes()
}

/// Waits for a time in which nothing is expected to happen.
pub const PAUSE: Duration = Duration::from_millis(200);

/// The address of a peer as a socket's.
pub fn at(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, gtpu::PORT)
}
