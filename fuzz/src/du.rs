//! The user plane of a DU between memory ports: datagrams of a CU and of UEs, with a clock that goes on between them.
//!
//! Before each packet is an octet: its lower bits say from where and for which of two UEs it comes, its upper ones how much time passes.
//! One UE has a radio link without limits, the other one a slow and lossy one. TEID, cell, C-RNTI and channel are made right
//! for some packets, so that they get beyond the tables. What leaves must be well-formed.

use std::net::SocketAddr;
use std::time::Duration;

use du::{BearerSetup, Interface, Place, Radio, Role, Settings, Tunnel, UserPlane};
use l2::uu;
use packet::{gtpu, nr_u};
use path::{Graph as _, Ports};
use pktio::memory::{self, Wire};
use pktio::{Port as _, VECTOR, Vector};
use types::NrCellId;

/// Most packets of an input; also bounds the time of an input.
const PACKETS: usize = 64;
const CELL: u64 = 7;
const F1U: u8 = 0;
const UU: u8 = 1;
/// Bits of the octet before a packet.
const FROM_UE: u8 = 1;
const SECOND_UE: u8 = 2;
/// The packet as it is: without a header that is right.
const BARE: u8 = 4;
const TIME_SHIFT: u32 = 3;
const STEP_NS: u64 = 700_000;

struct World {
    du: UserPlane,
    ports: Ports,
    wires: [Wire; 2],
    vector: Vector,
    teids: [u32; 2],
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn cu() -> SocketAddr {
    address("192.0.2.1:2152")
}

fn ue() -> SocketAddr {
    address("198.51.100.7:5000")
}

impl World {
    fn new() -> World {
        let interface =
            |name: &str, role, local: &str| Interface { name: name.to_owned(), role, local: address(local) };
        let interfaces = vec![
            interface("f1u", Role::F1u, "192.0.2.2:2152"),
            interface("uu", Role::Uu, "198.51.100.1:38321"),
        ];
        let cell = NrCellId::new(CELL).expect("36 bits");
        let (mut du, _, _) = UserPlane::new(Settings::new(cell, interfaces)).expect("two interfaces");
        let teids = [1u16, 2].map(|c_rnti| {
            du.add_ue(c_rnti, Place { interface: UU, address: ue() }).expect("free");
            let tunnel = Tunnel { interface: F1U, address: cu(), teid: c_rnti.into() };
            du.add_bearer(c_rnti, &BearerSetup::new(4, tunnel), 1).expect("free").teid
        });
        let radio = Radio {
            rate: Some(400_000),
            delay: Duration::from_millis(2),
            jitter: Duration::from_millis(1),
            loss: 0.3,
            ..Radio::UNLIMITED
        };
        du.set_radio(2, radio, radio, 1).expect("possible");
        let [(f1u, f1u_wire), (uu, uu_wire)] = [0, 1].map(|_| memory::pair(10_000));
        let ports: Ports = vec![Box::new(f1u), Box::new(uu)];
        World { du, ports, wires: [f1u_wire, uu_wire], vector: Vector::new(VECTOR, 2_048), teids }
    }

    /// Gives the DU a packet, and time.
    fn step(&mut self, choice: u8, octets: &[u8], now_ns: u64) {
        let second = choice & SECOND_UE != 0;
        let from_ue = choice & FROM_UE != 0;
        let mut packet = octets.to_vec();
        if choice & BARE == 0 {
            if from_ue {
                let lcid = [4, 1][usize::from(octets.len().is_multiple_of(5))];
                packet = uu::Header::uplink(CELL, 1 + u16::from(second), lcid).datagram(octets);
            } else if let Some(teid) = packet.get_mut(4..8) {
                teid.copy_from_slice(&self.teids[usize::from(second)].to_be_bytes());
            }
        }
        let (input, peer) = if from_ue { (UU, ue()) } else { (F1U, cu()) };
        let input = usize::from(input);
        self.wires[input].inject(&packet, peer);
        if self.ports[input].receive(&mut self.vector).is_ok_and(|received| received > 0) {
            self.du.process(input, &mut self.vector, now_ns, &mut self.ports);
            self.vector.clear();
        }
        self.du.turn(now_ns, &mut self.ports);
        for (packet, to) in self.wires[usize::from(F1U)].take() {
            assert!(to == cu() && gtpu::decode(&packet).is_ok(), "{packet:02x?}");
        }
        for (datagram, to) in self.wires[usize::from(UU)].take() {
            assert!(to == ue() && uu::Header::parse(&datagram).is_ok(), "{datagram:02x?}");
        }
    }
}

/// Runs a program of packets.
pub fn run(mut data: &[u8]) {
    let mut world = World::new();
    let mut now_ns = 1_000_000_000;
    for _ in 0..PACKETS {
        let [choice, length, rest @ ..] = data else { break };
        let (octets, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        now_ns += u64::from(choice >> TIME_SHIFT) * STEP_NS;
        world.step(*choice, octets, now_ns);
    }
}

/// Packets in both directions, and signalling.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut user_data = vec![0; nr_u::USER_DATA_HEADER];
    let pdcp = [0x80, 0, 1, 7, 7, 7, 7, 7, 7, 7, 7];
    nr_u::encapsulate(&mut user_data, 0, pdcp.len(), 1, true);
    user_data.extend(pdcp);
    // Flush and discard.
    let discard = [
        0x34, 0xFF, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0x84, 5, 0x06, 0, 0, 0, 10, 0, 0, 2, 2, 0, 0, 5, 2, 0, 0, 8,
        1, 0, 0,
    ];
    let echo = gtpu::Signalling::EchoRequest { sequence: 9 }.build();
    let segment = [&[0x40, 1][..], &pdcp].concat();
    let preamble =
        uu::Header { kind: uu::Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL }.datagram(b"abcdef");
    let packets: [(u8, &[u8]); 8] = [
        (0, &user_data),
        (SECOND_UE, &user_data),
        (SECOND_UE, &discard),
        (BARE, &echo),
        (FROM_UE, &[&[0][..], &pdcp].concat()),
        (FROM_UE | SECOND_UE, &segment),
        (FROM_UE | BARE, &preamble),
        // SRB1: a whole SDU that asks for a status.
        (FROM_UE | SECOND_UE, &[0xC0, 0, 1, 2, 3]),
    ];
    let mut program = Vec::new();
    for (choice, packet) in packets {
        program.extend([choice | 3 << TIME_SHIFT, packet.len() as u8]);
        program.extend(packet);
    }
    vec![program.repeat(4), program]
}
