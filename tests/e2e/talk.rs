//! Traffic of a UE with a program in the data network: numbered datagrams both ways, each compared with what was sent where it
//! arrives.
//!
//! The pace follows what arrives, so that a slow machine is only slower: no more than [`WINDOW`] datagrams are under way, and
//! while nothing arrives one is sent each way every [`PAUSE`].

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use net::time::{Duration, now, sleep_until, timeout};
use net::udp::UdpSocket;
use packet::{ipv4, protocol, transport};
use simulator::Ue;
use types::PduSessionId;

use testkit::world::{LIMIT, World, id};

/// The UE's port, and that of the program in the data network.
const PORT: u16 = 4_242;
/// Datagrams under way at once in a direction.
pub(crate) const WINDOW: u32 = 16;
/// How long an arrival is waited for before more is sent.
const PAUSE: Duration = Duration::from_millis(5);
/// Octets of each datagram that say which one it is, and many times what it is, so that they are found in what is captured.
pub(crate) const MARK: &[u8] = b"a packet of a UE that nobody else is to read ";

/// A conversation through session 1 of a UE.
pub(crate) struct Talk {
    pub(crate) ue: Ue,
    address: Ipv4Addr,
    server: UdpSocket,
    /// Number of the next datagram, in both directions.
    pub(crate) next: u32,
    /// The numbers of those that arrived, in the order in which they did.
    pub(crate) up: Vec<u32>,
    pub(crate) down: Vec<u32>,
}

/// The direction of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Up,
    Down,
}

/// What a datagram carries: which one it is, its direction, and as many octets as its number says.
pub(crate) fn content(way: Way, number: u32) -> Vec<u8> {
    let mut content = number.to_be_bytes().to_vec();
    content.push(way as u8);
    content.extend(MARK);
    content.extend((0..number * 37 % 1_200).map(|at| (at * 7 + number) as u8));
    content
}

/// The number of a datagram that arrived, whose octets must be those that were sent.
fn number_of(way: Way, arrived: &[u8]) -> u32 {
    let number = u32::from_be_bytes(*arrived.first_chunk().unwrap());
    assert!(arrived == content(way, number), "{way:?} {number} differs from what was sent");
    number
}

impl Talk {
    /// A conversation of a UE that has session 1.
    pub(crate) fn new(world: &World, mut ue: Ue) -> Talk {
        let address = ue.session_mut(session()).unwrap().ipv4.unwrap();
        let place = SocketAddr::from((lab::DN, PORT + u16::from(address.octets()[3])));
        let bind = || net::udp::bind_std(place, net::udp::Options::default());
        let server = UdpSocket::from_std(world.lab.dn().enter(bind).unwrap().unwrap()).unwrap();
        Talk { ue, address, server, next: 0, up: Vec::new(), down: Vec::new() }
    }

    fn server_port(&self) -> u16 {
        self.server.local_addr().unwrap().port()
    }

    /// The UE's packet with a number.
    pub(crate) fn packet(&self, number: u32) -> Vec<u8> {
        let (from, to) = ((self.address.into(), PORT), (lab::DN.into(), self.server_port()));
        let datagram = transport::build_udp(from, to, &content(Way::Up, number)).unwrap();
        ipv4::Header::new(self.address, lab::DN, protocol::UDP).build(&datagram).unwrap()
    }

    /// Sends so many more datagrams in each direction, and takes what arrives meanwhile.
    pub(crate) async fn send(&mut self, count: u32) {
        for _ in 0..count {
            self.send_up().await;
            let to = SocketAddr::from((self.address, PORT));
            self.server.send_to(&content(Way::Down, self.next), to).await.unwrap();
            self.next += 1;
            self.keep_pace().await;
        }
    }

    async fn send_up(&mut self) {
        let packet = self.packet(self.next);
        self.ue.session_mut(session()).unwrap().send(packet);
    }

    /// Takes what has arrived, and waits a little if too much is under way.
    async fn keep_pace(&mut self) {
        let until = now() + PAUSE;
        while self.under_way() >= WINDOW {
            if !self.take_until(until).await {
                break;
            }
        }
    }

    /// Datagrams that may still arrive: those after the last one that did.
    fn under_way(&self) -> u32 {
        let last = |arrived: &[u32]| arrived.last().map_or(0, |last| last + 1);
        self.next - last(&self.up).min(last(&self.down))
    }

    /// Takes one datagram; `false` if none came in time.
    async fn take_until(&mut self, until: net::time::Instant) -> bool {
        let mut octets = [0; 2_000];
        let session = self.ue.session_mut(session()).unwrap();
        tokio::select! {
            received = self.server.recv_from(&mut octets) => {
                let (length, from) = received.unwrap();
                assert_eq!(from, SocketAddr::from((self.address, PORT)));
                self.up.push(number_of(Way::Up, &octets[..length]));
            }
            Some(packet) = session.received() => {
                let packet = ipv4::Packet::new(&packet).unwrap();
                assert_eq!((packet.source(), packet.protocol()), (lab::DN, protocol::UDP));
                let datagram = transport::Udp::new(packet.payload()).unwrap();
                self.down.push(number_of(Way::Down, datagram.payload()));
            }
            () = sleep_until(until) => return false,
        }
        true
    }

    /// Waits until the last datagram has arrived both ways, which nothing overtakes.
    pub(crate) async fn settle(&mut self) {
        let last = async {
            while self.under_way() > 0 {
                self.take_until(now() + LIMIT).await;
            }
        };
        timeout(LIMIT, last).await.expect("the last datagram arrives");
    }

    /// Takes what is still under way for so long.
    pub(crate) async fn listen(&mut self, time: Duration) {
        let until = now() + time;
        while self.take_until(until).await {}
    }

    /// Sends until a datagram sent from now on has arrived both ways: traffic flows again.
    pub(crate) async fn resume(&mut self) {
        let first = self.next;
        let flows = async {
            while [&self.up, &self.down].iter().any(|arrived| arrived.last() < Some(&first)) {
                self.send(1).await;
            }
        };
        timeout(LIMIT, flows).await.expect("traffic resumes by itself");
    }

    /// Sends until the UE has learnt that its connection is lost: a DU tells it so when it does not know the UE.
    pub(crate) async fn notice(&mut self) {
        let noticed = async {
            while self.ue.connected() {
                self.send(1).await;
                // Its failure is what is waited for.
                let _ = self.ue.serve_until(now() + PAUSE).await;
            }
        };
        timeout(LIMIT, noticed).await.expect("the UE notices that it has lost its connection");
    }

    /// Checks that all datagrams from number `first` on arrived in order and once, both ways.
    pub(crate) fn all_arrived_since(&self, first: u32) {
        let expected: Vec<u32> = (first..self.next).collect();
        for (way, arrived) in [(Way::Up, &self.up), (Way::Down, &self.down)] {
            let arrived: Vec<u32> = arrived.iter().copied().filter(|number| *number >= first).collect();
            assert_eq!(arrived, expected, "{way:?}");
        }
    }

    /// Checks that nothing came twice.
    pub(crate) fn once(&self) {
        for (way, arrived) in [(Way::Up, &self.up), (Way::Down, &self.down)] {
            let different: BTreeSet<u32> = arrived.iter().copied().collect();
            assert_eq!(different.len(), arrived.len(), "{way:?}: {arrived:?}");
        }
    }
}

fn session() -> PduSessionId {
    id(1)
}
