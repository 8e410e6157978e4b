//! A relay between wires, with the UE's ends of its bearers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cu::user_plane::{
    BearerConfig, BearerId, Event, Interface, Relay, Role, SessionId, Stats, Tunnel, UserPlane,
};
use l2::pdcp::{self, Rx, RxConfig, Security, SnLength, Tx, Verdict};
use l2::sdap::DrbId;
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use packet::gtpu::{self, PduSession};
use packet::nr_u::{DeliveryStatus, MAX_STATUS, Message, UserData};
use path::{Graph as _, Ports};
use pktio::memory::{self, Wire};
use pktio::{Port as _, VECTOR, Vector};
use telemetry::DropReason;
use tokio::sync::mpsc;
use types::{Key, Qfi};

pub const F1U: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub const N3: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
pub const DU: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
pub const UPF: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
pub const UPF_TEID: u32 = 0x0A0B_0C0D;
pub const DU_TEID: u32 = 0x0102_0304;

/// How a bearer protects packets.
#[derive(Clone, Copy, Debug)]
pub struct Protection {
    pub sn: SnLength,
    pub header: bool,
    pub ciphering: CipheringAlgorithm,
    pub integrity: Option<IntegrityAlgorithm>,
}

/// None, 18 bits, with SDAP headers.
pub const PLAIN: Protection =
    Protection { sn: SnLength::Eighteen, header: true, ciphering: CipheringAlgorithm::Nea0, integrity: None };

impl Protection {
    fn security(&self) -> Security {
        let key = |octet: u8| Key::new([octet; 16]);
        let integrity = self.integrity.map(|algorithm| Integrity::new(algorithm, &key(2)));
        Security::new(Cipher::new(self.ciphering, &key(1)), integrity)
    }

    fn config(&self, direction: Direction) -> pdcp::Config {
        pdcp::Config::drb(DrbId::new(1).unwrap(), direction, self.sn, self.header)
    }

    pub fn tx(&self, direction: Direction) -> Tx {
        Tx::new(self.config(direction), self.security())
    }

    pub fn rx(&self, direction: Direction) -> Rx {
        Rx::new(self.config(direction), self.security(), RxConfig::default())
    }

    /// The CU's side of a bearer.
    pub fn bearer(&self, flows: &[u8]) -> BearerConfig {
        let flows = flows.iter().map(|qfi| Qfi::new(*qfi).unwrap()).collect();
        BearerConfig::new(self.tx(Direction::Downlink), self.rx(Direction::Uplink), self.header, flows)
    }
}

/// The UE's ends of a bearer.
pub struct Ue {
    pub protection: Protection,
    pub tx: Tx,
    pub rx: Rx,
}

impl Ue {
    pub fn new(protection: Protection) -> Ue {
        Ue { protection, tx: protection.tx(Direction::Uplink), rx: protection.rx(Direction::Downlink) }
    }

    /// The PDCP PDU of a packet.
    pub fn pdu(&mut self, qfi: u8, packet: &[u8]) -> Vec<u8> {
        let mut pdu = vec![0; self.tx.header_len()];
        pdu.extend(self.protection.header.then_some(0x80 | qfi));
        pdu.extend_from_slice(packet);
        pdu.resize(pdu.len() + self.tx.trailer_len(), 0);
        self.tx.seal(&mut pdu).unwrap();
        pdu
    }

    /// QFI with RQI, and packet, of a PDCP PDU that is the next one.
    pub fn packet(&mut self, pdu: &[u8]) -> (u8, Vec<u8>) {
        let mut pdu = pdu.to_vec();
        let Verdict::Deliver { sdu, .. } = self.rx.open(&mut pdu, 0) else {
            panic!("not delivered: {pdu:02x?}")
        };
        let sdu = &pdu[sdu];
        match self.protection.header {
            true => (sdu[0], sdu[1..].to_vec()),
            false => (0, sdu.to_vec()),
        }
    }
}

pub struct World {
    pub user_plane: UserPlane,
    pub relay: Relay,
    pub events: mpsc::Receiver<Event>,
    pub ports: Ports,
    pub wires: Vec<Wire>,
    pub now_ns: u64,
    pub f1u: u8,
    pub n3: u8,
}

/// What came out of F1-U.
#[derive(Debug)]
pub struct FromCu {
    pub to: SocketAddr,
    pub teid: u32,
    pub sequence: u32,
    pub polling: bool,
    pub pdu: Vec<u8>,
}

impl World {
    /// With F1-U and N3 on interfaces of their own.
    pub fn new() -> World {
        World::on(0, 1)
    }

    /// With both on interfaces with these numbers.
    pub fn on(f1u: u8, n3: u8) -> World {
        World::with(match f1u == n3 {
            true => vec![Interface::new("ran", Role::Both, F1U)],
            false => vec![Interface::new("f1u", Role::F1u, F1U), Interface::new("n3", Role::N3, N3)],
        })
    }

    /// With an interface for each of so many DUs, and then N3.
    pub fn with_dus(count: u8) -> World {
        let dus = (0..count).map(|du| Interface::new(&format!("du{du}"), Role::F1u, F1U));
        World::with(dus.chain([Interface::new("n3", Role::N3, N3)]).collect())
    }

    fn with(interfaces: Vec<Interface>) -> World {
        let (f1u, n3) = (0, interfaces.len() as u8 - 1);
        let (ports, wires): (Vec<_>, Vec<_>) = interfaces.iter().map(|_| memory::pair(4096)).unzip();
        let (user_plane, relay, events) = UserPlane::new(interfaces).unwrap();
        let ports = ports.into_iter().map(|port| Box::new(port) as _).collect();
        World { user_plane, relay, events, ports, wires, now_ns: 1_000_000_000, f1u, n3 }
    }

    /// A session with a bearer, connected with the DU.
    pub fn session(&mut self, config: BearerConfig) -> (SessionId, BearerId) {
        let session = self.user_plane.open(self.n3, Tunnel { address: UPF, teid: UPF_TEID }).unwrap();
        let bearer = self.user_plane.add(session, self.f1u, config).unwrap();
        self.connect(session, bearer);
        (session, bearer)
    }

    pub fn connect(&mut self, session: SessionId, bearer: BearerId) {
        self.user_plane.connect(session, bearer, Tunnel { address: DU, teid: DU_TEID }).unwrap();
    }

    /// Everything that waits at the ports goes through the relay, in vectors of up to 64.
    pub fn run(&mut self) {
        let mut vector = Vector::of(self.relay.home());
        for input in 0..self.ports.len() {
            while self.ports[input].receive(&mut vector).unwrap() > 0 {
                self.relay.process(input, &mut vector, self.now_ns, &mut self.ports);
                vector.clear();
            }
        }
        assert!(vector.capacity() == VECTOR);
    }

    pub fn turn(&mut self) -> Option<u64> {
        self.relay.turn(self.now_ns, &mut self.ports)
    }

    /// A packet of the UPF.
    pub fn upf_sends(&self, session: SessionId, qfi: u8, packet: &[u8]) {
        let container = Some(PduSession::Downlink { qfi, rqi: qfi == 9, ppi: None });
        let message = gtpu::build_gpdu(self.user_plane.n3_tunnel(session).teid, container, packet).unwrap();
        self.inject_n3(&message);
    }

    pub fn inject_n3(&self, message: &[u8]) {
        self.wires[usize::from(self.n3)].inject(message, SocketAddr::new(UPF, gtpu::PORT));
    }

    /// A PDU of the DU.
    pub fn du_sends(&self, bearer: BearerId, pdu: &[u8]) {
        let message = gtpu::build_gpdu(self.user_plane.f1u_tunnel(bearer).teid, None, pdu).unwrap();
        self.inject_f1u(&message);
    }

    pub fn inject_f1u(&self, message: &[u8]) {
        self.wires[usize::from(self.f1u)].inject(message, SocketAddr::new(DU, gtpu::PORT));
    }

    pub fn status(&self, bearer: BearerId, status: &DeliveryStatus<'_>) {
        let mut out = [0; MAX_STATUS];
        let length = status.write(self.user_plane.f1u_tunnel(bearer).teid, &mut out).unwrap();
        self.inject_f1u(&out[..length]);
    }

    /// What the DU gets, without signalling.
    pub fn at_du(&self) -> Vec<FromCu> {
        let mut all = Vec::new();
        for (message, to) in self.wires[usize::from(self.f1u)].take() {
            let packet = gtpu::Packet::new(&message).unwrap();
            if let Some(Message::UserData(UserData { sequence, report_polling, .. })) =
                Message::of(&packet).unwrap()
            {
                let (teid, pdu) = (packet.teid(), packet.payload().to_vec());
                all.push(FromCu { to, teid, sequence, polling: report_polling, pdu });
            }
        }
        all
    }

    /// What the UPF gets: destination, TEID, QFI and packet.
    pub fn at_upf(&self) -> Vec<(SocketAddr, u32, u8, Vec<u8>)> {
        let messages = self.wires[usize::from(self.n3)].take();
        let read = messages.into_iter().map(|(message, to)| {
            let packet = gtpu::Packet::new(&message).unwrap();
            let Some(PduSession::Uplink { qfi }) = packet.pdu_session() else { panic!("{message:02x?}") };
            (to, packet.teid(), qfi, packet.payload().to_vec())
        });
        read.collect()
    }

    pub fn stats(&self) -> &Stats {
        self.user_plane.stats()
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.stats().drops.get(reason)
    }

    pub fn all_drops(&self) -> u64 {
        DropReason::ALL.iter().map(|reason| self.drops(*reason)).sum()
    }
}

/// A packet of `octets` that differs from others in every octet.
pub fn packet(octets: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
    let octet = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..octets).map(octet).collect()
}
