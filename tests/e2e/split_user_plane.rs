//! The user plane of a gNB in parts: UEs, a DU and a CU, each with its own worker, between programs and a UPF that the test plays.
//!
//! ```text
//!  programs (memory) ── UE ──uu── DU ──F1-U── CU ──N3── UPF (socket)
//! ```

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use cu::user_plane::{BearerConfig, Tunnel};
use du::Radio;
use l2::pdcp::{Config, Rx, RxConfig, Security, SnLength, Tx};
use l2::sdap::{Drb, DrbId};
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use packet::gtpu::{self, PduSession};
use path::Worker;
use pktio::Port;
use pktio::memory::{self, Wire};
use pktio::udp::UdpPort;
use types::{Key, NrCellId, Qfi};

const CELL: u64 = 0x1_0000_0001;
const FLOW: u8 = 9;
const LCID: u8 = 4;
/// Numbers of the CU's interfaces, which are those of the DU's, too.
const F1U: u8 = 0;
const N3: u8 = 1;
/// Packets that are under way at once, so that no socket's memory overflows.
const BURST: usize = 32;

fn qfi() -> Qfi {
    Qfi::new(FLOW).unwrap()
}

fn security(ue: usize) -> Security {
    let key = |octet: usize| Key::new([(octet + ue) as u8; 16]);
    let cipher = Cipher::new(CipheringAlgorithm::Nea2, &key(1));
    Security::new(cipher, Some(Integrity::new(IntegrityAlgorithm::Nia2, &key(101))))
}

fn config(direction: Direction) -> Config {
    Config::drb(DrbId::new(1).unwrap(), direction, SnLength::Eighteen, true)
}

fn ends(ue: usize, sends: Direction, receives: Direction) -> (Tx, Rx) {
    let timer = RxConfig { t_reordering: Some(Duration::from_millis(80)), ..RxConfig::default() };
    (Tx::new(config(sends), security(ue)), Rx::new(config(receives), security(ue), timer))
}

fn port(address: &str) -> (Box<dyn Port>, SocketAddr) {
    let port = UdpPort::bind(address.parse().unwrap(), false).unwrap();
    let local = port.local();
    (Box::new(port), local)
}

/// One UE's ends: its session there, and its tunnels on N3.
struct Ue {
    session: ue::SessionId,
    to_upf: u32,
    to_cu: Tunnel,
}

/// The network; its workers end with it.
struct Network {
    ues: Vec<Ue>,
    programs: Wire,
    upf: UdpSocket,
    _workers: [Worker; 3],
    du: du::Control,
    c_rntis: Vec<u16>,
    _cu: cu::user_plane::UserPlane,
}

impl Network {
    /// `host`: a network of loopback addresses that no other test uses.
    fn start(host: &str, count: usize) -> Network {
        let spin = Duration::from_micros(50);
        let upf = UdpSocket::bind(format!("{host}.1:2152")).unwrap();
        upf.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let (n3_port, n3) = port(&format!("{host}.2:2152"));
        let (cu_f1u_port, cu_f1u) = port(&format!("{host}.3:2152"));
        let (du_f1u_port, du_f1u) = port(&format!("{host}.4:2152"));
        let (du_uu_port, du_uu) = port(&format!("{host}.5:38321"));
        let (ue_uu_port, _) = port(&format!("{host}.6:0"));
        let interface = cu::user_plane::Interface::new;
        let interfaces = vec![
            interface("f1u", cu::user_plane::Role::F1u, cu_f1u.ip()),
            interface("n3", cu::user_plane::Role::N3, n3.ip()),
        ];
        let (cu, relay, _) = cu::user_plane::UserPlane::new(interfaces).unwrap();
        let cu_worker = Worker::start("cu", relay, vec![cu_f1u_port, n3_port], vec![0, 1], spin).unwrap();
        let interface = |name: &str, role, local| du::Interface { name: name.to_owned(), role, local };
        let interfaces = vec![interface("f1u", du::Role::F1u, du_f1u), interface("uu", du::Role::Uu, du_uu)];
        let settings = du::Settings::new(NrCellId::new(CELL).unwrap(), interfaces);
        let (du_graph, du, du_events) = du::UserPlane::new(settings).unwrap();
        let du_worker =
            Worker::start("du", du_graph, vec![du_f1u_port, du_uu_port], vec![0, 1], spin).unwrap();
        let (ue_graph, ue_control, _) = ue::UserPlane::new();
        let (memory, programs) = memory::pair(100_000);
        let ports = vec![ue_uu_port, Box::new(memory) as Box<dyn Port>];
        let ue_worker = Worker::start("ue", ue_graph, ports, vec![ue::UU, ue::TUN], spin).unwrap();
        let mut network = Network {
            ues: Vec::new(),
            programs,
            upf,
            _workers: [ue_worker, du_worker, cu_worker],
            du,
            c_rntis: Vec::new(),
            _cu: cu,
        };
        for number in 0..count {
            network.add_ue(number, &ue_control, &du_events, du_uu, (cu_f1u.ip(), du_f1u.ip()));
        }
        network
    }

    /// A UE gets its C-RNTI by random access; then each node gets its part of the bearer.
    fn add_ue(
        &mut self,
        number: usize,
        ues: &ue::Control,
        du_events: &du::Events,
        du_uu: SocketAddr,
        (cu_f1u, du_f1u): (IpAddr, IpAddr),
    ) {
        let cell = NrCellId::new(CELL).unwrap();
        let ue = ues.access(cell, du_uu, [number as u8; 6]).unwrap();
        let du::Event::RandomAccess { c_rnti, .. } = du_events.next(Duration::from_secs(5)).unwrap() else {
            panic!("the DU says something else first");
        };
        let upf = self.upf.local_addr().unwrap().ip();
        let to_upf = 0x100 + number as u32;
        let session = self._cu.open(N3, Tunnel { address: upf, teid: to_upf }).unwrap();
        let (tx, rx) = ends(number, Direction::Downlink, Direction::Uplink);
        let at_cu = self._cu.add(session, F1U, BearerConfig::new(tx, rx, true, vec![qfi()])).unwrap();
        let to_cu = self._cu.f1u_tunnel(at_cu);
        assert_eq!(to_cu.address, cu_f1u);
        let address = SocketAddr::new(to_cu.address, gtpu::PORT);
        let tunnel = du::Tunnel { interface: F1U, address, teid: to_cu.teid };
        let at_du = self.du.add_bearer(c_rnti, du::BearerSetup::new(LCID, tunnel)).unwrap();
        self._cu.connect(session, at_cu, Tunnel { address: du_f1u, teid: at_du.teid }).unwrap();
        let (at_ue, _) = ues.add_session(ue, qfi()).unwrap();
        let (tx, rx) = ends(number, Direction::Uplink, Direction::Downlink);
        let setup = ue::BearerSetup {
            lcid: LCID,
            drb: Drb { id: DrbId::new(1).unwrap(), uplink_header: true, downlink_header: true },
            default: true,
            flows: vec![qfi()],
            rlc: l2::rlc::um::SnLength::Bits12,
            t_reassembly: Duration::from_millis(50),
            tx,
            rx,
        };
        ues.add_bearer(at_ue, setup).unwrap();
        self.ues.push(Ue { session: at_ue, to_upf, to_cu: self._cu.n3_tunnel(session) });
        self.c_rntis.push(c_rnti);
    }

    fn set_radio(&self, radio: Radio) {
        for c_rnti in &self.c_rntis {
            self.du.set_radio(*c_rnti, radio, radio).unwrap();
        }
    }

    /// What the UPF gets within a while: packets of each UE.
    fn at_upf(&self, most: usize) -> Vec<Vec<Vec<u8>>> {
        let mut got = vec![Vec::new(); self.ues.len()];
        let mut octets = [0; 10_000];
        for _ in 0..most {
            let Ok(length) = self.upf.recv(&mut octets) else { break };
            let packet = gtpu::Packet::new(&octets[..length]).unwrap();
            assert_eq!(packet.pdu_session(), Some(PduSession::Uplink { qfi: FLOW }));
            let ue = self.ues.iter().position(|ue| ue.to_upf == packet.teid()).unwrap();
            got[ue].push(packet.payload().to_vec());
        }
        got
    }

    /// What programs get within a while: packets of each UE.
    fn at_programs(&self, most: usize) -> Vec<Vec<Vec<u8>>> {
        let mut got = vec![Vec::new(); self.ues.len()];
        let (mut all, mut pauses) = (0, 0);
        while all < most && pauses < 50 {
            let packets = self.programs.take();
            pauses = if packets.is_empty() { pauses + 1 } else { 0 };
            all += packets.len();
            for (packet, to) in packets {
                got[self.ues.iter().position(|ue| ue.session.peer() == to).unwrap()].push(packet);
            }
            net::time::sleep_thread(Duration::from_millis(10));
        }
        got
    }

    /// Sends bursts of packets of all UEs in both directions, of many lengths. For each direction and UE: the numbers of
    /// those that arrived, in the order in which they did.
    fn exchange(&self, bursts: usize, first: usize) -> [Vec<Vec<usize>>; 2] {
        let mut arrived = [vec![Vec::new(); self.ues.len()], vec![Vec::new(); self.ues.len()]];
        for burst in 0..bursts {
            let numbers = (0..BURST).map(|at| first + burst * BURST + at);
            for number in numbers.clone() {
                for (at, ue) in self.ues.iter().enumerate() {
                    self.programs.inject(&packet(at, number), ue.session.peer());
                    let container = Some(PduSession::Downlink { qfi: FLOW, rqi: false, ppi: None });
                    let gpdu = gtpu::build_gpdu(ue.to_cu.teid, container, &packet(at + 100, number)).unwrap();
                    self.upf.send_to(&gpdu, (ue.to_cu.address, gtpu::PORT)).unwrap();
                }
            }
            let most = BURST * self.ues.len();
            let both = [self.at_upf(most), self.at_programs(most)];
            for (direction, of_ues) in both.into_iter().enumerate() {
                for (at, packets) in of_ues.into_iter().enumerate() {
                    for got in packets {
                        let number = u32::from_be_bytes(*got.first_chunk().unwrap()) as usize;
                        assert_eq!(got, packet(at + 100 * direction, number));
                        arrived[direction][at].push(number);
                    }
                }
            }
        }
        arrived
    }
}

/// A packet that says which one it is.
fn packet(ue: usize, number: usize) -> Vec<u8> {
    let mut packet = (number as u32).to_be_bytes().to_vec();
    packet.extend((0..20 + number * 37 % 1_400).map(|at| (at + ue * 3 + number) as u8));
    packet
}

#[test]
fn packets_of_several_ues_pass_a_split_gnb_in_order_and_once() {
    let network = Network::start("127.40.0", 3);
    for direction in network.exchange(12, 0) {
        for of_ue in direction {
            assert_eq!(of_ue, (0..12 * BURST).collect::<Vec<_>>());
        }
    }
}

/// Transport blocks are lost, transmitted again and overtaken; segments are put together; PDCP restores the order.
#[test]
fn a_faulty_radio_link_loses_packets_but_neither_order_nor_protection() {
    let network = Network::start("127.40.1", 2);
    network.set_radio(Radio {
        rate: Some(20_000_000),
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(3),
        loss: 0.3,
        harq_retransmissions: 2,
        ..Radio::UNLIMITED
    });
    let sent = 8 * BURST;
    let mut lost = 0;
    for direction in network.exchange(8, 0) {
        for of_ue in direction {
            assert!(of_ue.windows(2).all(|pair| pair[0] < pair[1]), "{of_ue:?}");
            // 2.7 % of the blocks are lost for good.
            assert!(of_ue.len() * 10 >= sent * 8, "{} of {sent} arrived", of_ue.len());
            lost += sent - of_ue.len();
        }
    }
    assert!(lost > 0, "the link has lost nothing");
    // When the link is good again, everything arrives.
    network.set_radio(Radio::UNLIMITED);
    for direction in network.exchange(2, sent) {
        for of_ue in direction {
            let new: Vec<_> = of_ue.into_iter().filter(|number| *number >= sent).collect();
            assert_eq!(new, (sent..sent + 2 * BURST).collect::<Vec<_>>());
        }
    }
}
