//! A DU between memory ports: each call of [`World::step`] is a round of its worker, at a time that the test sets.

use std::net::SocketAddr;

use du::{Added, BearerSetup, Events, Interface, Place, Role, Settings, Tunnel, UserPlane};
use l2::uu::Header;
use packet::gtpu;
use packet::nr_u::{self, DeliveryStatus, Message};
use path::{Graph, Ports};
use pktio::memory::{self, Wire};
use pktio::{VECTOR, Vector};
use types::NrCellId;

pub const CELL: u64 = 0x1_2345_6789;
pub const C_RNTI: u16 = 0x4601;
pub const LCID: u8 = 4;
pub const F1U: u8 = 0;
pub const UU: u8 = 1;
/// TEID of the CU's end of the first bearer.
pub const CU_TEID: u32 = 0xCAFE_0001;
pub const MS: u64 = 1_000_000;

pub fn cu_address() -> SocketAddr {
    "192.0.2.1:2152".parse().unwrap()
}

pub fn ue_place() -> Place {
    Place { interface: UU, address: "198.51.100.7:5000".parse().unwrap() }
}

pub fn cu() -> Tunnel {
    Tunnel { interface: F1U, address: cu_address(), teid: CU_TEID }
}

pub fn settings() -> Settings {
    let interface = |name: &str, role, local: &str| Interface {
        name: name.to_owned(),
        role,
        local: local.parse().unwrap(),
    };
    let interfaces =
        vec![interface("f1u", Role::F1u, "192.0.2.2:2152"), interface("uu", Role::Uu, "198.51.100.1:38321")];
    // Without Echo, a worker without packets has nothing to do.
    Settings { echo: None, ..Settings::new(NrCellId::new(CELL).unwrap(), interfaces) }
}

/// A packet of the CU: a PDCP PDU with an 18-bit sequence number and `octets` octets that say which one it is.
pub fn pdcp(sequence: u32, octets: usize) -> Vec<u8> {
    let [_, a, b, c] = (sequence & 0x3_FFFF).to_be_bytes();
    let mut pdu = vec![0x80 | a, b, c];
    pdu.extend((0..octets.saturating_sub(3)).map(|at| (at as u32 ^ sequence) as u8));
    pdu.truncate(octets);
    pdu
}

/// A G-PDU with DL USER DATA.
pub fn user_data(teid: u32, sequence: u32, polling: bool, pdu: &[u8]) -> Vec<u8> {
    let mut head = [0; nr_u::USER_DATA_HEADER];
    nr_u::encapsulate(&mut head, teid, pdu.len(), sequence, polling).unwrap();
    [&head[..], pdu].concat()
}

/// A delivery status that the CU has got, with copies of its ranges.
#[derive(Debug, PartialEq, Eq)]
pub struct Status {
    pub teid: u32,
    pub lost: Vec<(u32, u32)>,
    pub highest_transmitted: Option<u32>,
    pub desired: u32,
    pub is_final: bool,
}

/// What a CU has got: the SDUs of G-PDUs with their TEIDs, or delivery status.
#[derive(Debug, Default)]
pub struct AtCu {
    pub sdus: Vec<(u32, Vec<u8>)>,
    pub status: Vec<Status>,
    pub other: Vec<gtpu::Signalling>,
}

pub struct World {
    pub du: UserPlane,
    pub events: Events,
    pub ports: Ports,
    pub f1u: Wire,
    pub uu: Wire,
    pub vector: Vector,
    pub now_ns: u64,
}

impl World {
    pub fn new() -> World {
        let (du, _, events) = UserPlane::new(settings()).unwrap();
        let (f1u_port, f1u) = memory::pair(1_000_000);
        let (uu_port, uu) = memory::pair(1_000_000);
        let vector = Vector::new(VECTOR, 9_216);
        let ports: Ports = vec![Box::new(f1u_port), Box::new(uu_port)];
        World { du, events, ports, f1u, uu, vector, now_ns: 1_000 * MS }
    }

    /// With one UE and one bearer, whose first delivery status has been sent.
    pub fn with_bearer() -> (World, Added) {
        let mut world = World::new();
        world.du.add_ue(C_RNTI, ue_place()).unwrap();
        let added = world.add_bearer(C_RNTI, LCID, CU_TEID);
        world.step();
        let first = world.at_cu();
        assert_eq!(first.status.len(), 1);
        assert_eq!((first.status[0].teid, first.status[0].highest_transmitted), (CU_TEID, None));
        (world, added)
    }

    pub fn add_bearer(&mut self, c_rnti: u16, lcid: u8, cu_teid: u32) -> Added {
        let setup = BearerSetup::new(lcid, Tunnel { teid: cu_teid, ..cu() });
        self.du.add_bearer(c_rnti, &setup, self.now_ns).unwrap()
    }

    /// One round of the worker; returns when the next turn is due.
    pub fn step(&mut self) -> Option<u64> {
        for input in 0..self.ports.len() {
            while self.ports[input].receive(&mut self.vector).unwrap() > 0 {
                self.du.process(input, &mut self.vector, self.now_ns, &mut self.ports);
                self.vector.clear();
            }
        }
        self.du.turn(self.now_ns, &mut self.ports)
    }

    /// Lets time pass, with a round whenever one is due.
    pub fn pass(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        while let Some(due_ns) = self.step().filter(|due_ns| *due_ns <= end_ns) {
            assert!(due_ns > self.now_ns, "a turn that is due at once never ends");
            self.now_ns = due_ns;
        }
        self.now_ns = end_ns;
        self.step();
    }

    pub fn cu_sends(&self, packet: &[u8]) {
        self.f1u.inject(packet, cu_address());
    }

    pub fn ue_sends(&self, pdu: &[u8]) {
        self.uu.inject(&Header::uplink(CELL, C_RNTI, LCID).datagram(pdu), ue_place().address);
    }

    /// The RLC PDUs that the UE has got, with their channels.
    pub fn at_ue(&self) -> Vec<(u8, Vec<u8>)> {
        self.uu
            .take()
            .into_iter()
            .map(|(datagram, to)| {
                assert_eq!(to, ue_place().address);
                let (header, pdu) = Header::parse(&datagram).unwrap();
                assert_eq!(header, Header::downlink(CELL, C_RNTI, header.lcid));
                (header.lcid, pdu.to_vec())
            })
            .collect()
    }

    /// Everything that the UE has got.
    pub fn datagrams(&self) -> Vec<(Header, Vec<u8>, SocketAddr)> {
        let parse = |(datagram, to): (Vec<u8>, SocketAddr)| {
            let (header, payload) = Header::parse(&datagram).unwrap();
            (header, payload.to_vec(), to)
        };
        self.uu.take().into_iter().map(parse).collect()
    }

    pub fn at_cu(&self) -> AtCu {
        let mut all = AtCu::default();
        for (packet, to) in self.f1u.take() {
            assert_eq!(to, cu_address());
            let packet = gtpu::Packet::new(&packet).unwrap();
            let teid = packet.teid();
            match (gtpu::decode(packet.bytes()), Message::of(&packet)) {
                (Ok(Some(other)), _) => all.other.push(other),
                (Ok(None), Ok(Some(Message::DeliveryStatus(status)))) => all.status.push(read(teid, &status)),
                (Ok(None), Ok(None)) => all.sdus.push((teid, packet.payload().to_vec())),
                found => panic!("{found:?}"),
            }
        }
        all
    }

    pub fn dropped(&self, reason: telemetry::DropReason) -> u64 {
        self.du.stats().drops.get(reason)
    }

    pub fn all_dropped(&self) -> u64 {
        telemetry::DropReason::ALL.iter().map(|reason| self.dropped(*reason)).sum()
    }
}

fn read(teid: u32, status: &DeliveryStatus<'_>) -> Status {
    Status {
        teid,
        lost: status.lost.iter().collect(),
        highest_transmitted: status.highest_transmitted,
        desired: status.desired_buffer_size,
        is_final: status.final_frame,
    }
}

/// Numbers from a seed (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
