//! The control plane of a DU above its user plane: messages of a CU, datagrams of UEs, and time.
//!
//! Before each message is an octet: its lower bits say from where it comes, its upper ones how much time passes. In messages of the CU
//! about a UE, its numbers are made right where the octet says so, so that they get beyond the tables. What the DU sends must be
//! well-formed, and time must not stand still. At the end the association is lost: no UE may be left.

use std::net::SocketAddr;

use ::f1ap::Pdu;
use ::f1ap::ie::*;
use ::f1ap::message::*;
use du::f1c::{Cell, Commands, F1u, Machine, Output};
use du::{Added, BearerSetup, Events, Interface, Refused, Role, Settings, Tunnel, UserPlane};
use l2::uu::{Header, Kind};
use path::{Graph as _, Ports};
use pktio::memory::{self, Wire};
use pktio::{Port as _, VECTOR, Vector};
use types::{NrCellId, Plmn, SNssai, Tac};

use crate::targets::folder;

/// Most messages of an input; also bounds the time of an input.
const MESSAGES: usize = 64;
const CELL: u64 = 7;
/// Bits of the octet before a message.
const FROM_UE: u8 = 1;
/// The message as it is, without numbers that are right.
const BARE: u8 = 2;
const TIME_SHIFT: u32 = 2;
const STEP_NS: u64 = 150_000_000;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// The user plane, commanded in place.
struct Plane {
    du: UserPlane,
    ports: Ports,
    now_ns: u64,
}

impl Commands for Plane {
    fn set_system_information(&mut self, mib: Vec<u8>, sib1: Vec<u8>) -> Result<(), Refused> {
        self.du.set_system_information(mib, sib1, self.now_ns, &mut self.ports)
    }
    fn take_out_of_service(&mut self) -> Result<(), Refused> {
        self.du.take_out_of_service();
        Ok(())
    }
    fn page(&mut self, pcch: Vec<u8>) -> Result<(), Refused> {
        self.du.page(&pcch, self.now_ns, &mut self.ports)
    }
    fn send_rrc(&mut self, c_rnti: u16, lcid: u8, sdu: Vec<u8>) -> Result<(), Refused> {
        self.du.send_rrc(c_rnti, lcid, sdu, self.now_ns)
    }
    fn release_ue(&mut self, c_rnti: u16, last: Option<(u8, Vec<u8>)>) -> Result<(), Refused> {
        self.du.release_ue(c_rnti, last, self.now_ns, &mut self.ports)
    }
    fn remove_ue(&mut self, c_rnti: u16) -> Result<(), Refused> {
        self.du.remove_ue(c_rnti, &mut self.ports)
    }
    fn add_bearer(&mut self, c_rnti: u16, setup: BearerSetup) -> Result<Added, Refused> {
        self.du.add_bearer(c_rnti, &setup, self.now_ns)
    }
    fn redirect_bearer(&mut self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<(), Refused> {
        self.du.redirect_bearer(c_rnti, lcid, cu, self.now_ns)
    }
    fn remove_bearer(&mut self, c_rnti: u16, lcid: u8) -> Result<(), Refused> {
        self.du.remove_bearer(c_rnti, lcid, &mut self.ports)
    }
}

struct World {
    machine: Machine,
    plane: Plane,
    events: Events,
    wires: [Wire; 2],
    vector: Vector,
    /// The UE of the last random access, as UE, DU and CU call it.
    c_rnti: u16,
    du_id: GnbDuUeF1apId,
    cu_id: GnbCuUeF1apId,
    setup: Option<TransactionId>,
    ncgi: types::Ncgi,
}

impl World {
    fn new() -> World {
        let cell = NrCellId::new(CELL).expect("36 bits");
        let plmn = Plmn::new("999", "70").expect("digits");
        let interface =
            |name: &str, role, local: &str| Interface { name: name.to_owned(), role, local: address(local) };
        let interfaces = vec![
            interface("f1u", Role::F1u, "192.0.2.2:2152"),
            interface("uu", Role::Uu, "198.51.100.1:38321"),
        ];
        let (du, _, events) = UserPlane::new(Settings::new(cell, interfaces)).expect("two interfaces");
        let [(f1u, f1u_wire), (uu, uu_wire)] = [0, 1].map(|_| memory::pair(10_000));
        let tac = Tac::new(1).expect("24 bits");
        let described = Cell::new(1, "du", cell, plmn, tac, &[SNssai::from_octets(1, None)]);
        let f1u_end = F1u { interface: 0, address: address("192.0.2.2:0").ip() };
        let mut world = World {
            machine: Machine::new(described.expect("a cell"), f1u_end),
            plane: Plane { du, ports: vec![Box::new(f1u), Box::new(uu)], now_ns: 1_000_000_000 },
            events,
            wires: [f1u_wire, uu_wire],
            vector: Vector::new(VECTOR, 2_048),
            c_rnti: 1,
            du_id: GnbDuUeF1apId(1),
            cu_id: GnbCuUeF1apId(1),
            setup: None,
            ncgi: types::Ncgi { plmn, nr_cell_id: cell },
        };
        world.machine.connected(world.plane.now_ns);
        world.turn();
        let accepted = F1SetupResponse {
            transaction_id: world.setup.take().expect("the DU sets F1 up"),
            gnb_cu_name: None,
            cells_to_be_activated: vec![CellToBeActivated { nr_cgi: world.ncgi, nr_pci: None }],
            rrc_version: RrcVersion { latest: RrcVersionBits(0), latest_enhanced: None },
        };
        world.cu_sends(&Pdu::from(accepted).encode().expect("it is well-formed"));
        world.ue_sends(&preamble());
        world.ue_sends(&Header::uplink(CELL, world.c_rnti, 0).datagram(b"RRCSetupRequest"));
        assert_eq!(world.machine.ues(), 1);
        world
    }

    fn cu_sends(&mut self, octets: &[u8]) {
        self.machine.receive(octets, self.plane.now_ns, &mut self.plane);
        self.turn();
    }

    fn ue_sends(&mut self, datagram: &[u8]) {
        self.wires[1].inject(datagram, address("198.51.100.7:5000"));
        if self.plane.ports[1].receive(&mut self.vector).is_ok_and(|received| received > 0) {
            let now_ns = self.plane.now_ns;
            self.plane.du.process(1, &mut self.vector, now_ns, &mut self.plane.ports);
            self.vector.clear();
        }
        self.turn();
    }

    /// One round of the worker and of the machine.
    fn turn(&mut self) {
        let now_ns = self.plane.now_ns;
        self.plane.du.turn(now_ns, &mut self.plane.ports);
        while let Some(event) = self.events.next(std::time::Duration::ZERO) {
            self.machine.event(event, now_ns, &mut self.plane);
        }
        if self.machine.deadline_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            self.machine.expire(now_ns, &mut self.plane);
            assert!(self.machine.deadline_ns().is_none_or(|due_ns| due_ns > now_ns), "time stands still");
        }
        while let Some(output) = self.machine.take_output() {
            match output {
                Output::Send { octets, .. } => {
                    match Pdu::decode(&octets).expect("what the DU sends is well-formed").pdu {
                        Pdu::F1SetupRequest(request) => self.setup = Some(request.transaction_id),
                        Pdu::InitialUlRrcMessageTransfer(initial) => {
                            self.du_id = initial.gnb_du_ue_f1ap_id;
                            self.cu_id = GnbCuUeF1apId(self.du_id.0.wrapping_add(1_000));
                        }
                        _ => {}
                    }
                }
                Output::Disconnect => {
                    self.machine.disconnected(&mut self.plane);
                    self.machine.connected(now_ns);
                }
            }
        }
        for (datagram, _) in self.wires[1].take() {
            let (header, _) = Header::parse(&datagram).expect("what the DU sends is well-formed");
            if header.kind == Kind::RandomAccessResponse {
                self.c_rnti = header.c_rnti;
            }
        }
        self.wires[0].take();
    }

    /// Makes the numbers of a message right.
    fn about_ue(&self, octets: &[u8]) -> Vec<u8> {
        let Ok(decoded) = Pdu::decode(octets) else { return octets.to_vec() };
        let mut pdu = decoded.pdu;
        let (cu, du) = (self.cu_id, self.du_id);
        match &mut pdu {
            Pdu::DlRrcMessageTransfer(m) => (m.gnb_cu_ue_f1ap_id, m.gnb_du_ue_f1ap_id) = (cu, du),
            Pdu::UeContextSetupRequest(m) => {
                (m.gnb_cu_ue_f1ap_id, m.gnb_du_ue_f1ap_id) = (cu, Some(du));
                m.sp_cell_id = self.ncgi;
            }
            Pdu::UeContextModificationRequest(m) => (m.gnb_cu_ue_f1ap_id, m.gnb_du_ue_f1ap_id) = (cu, du),
            Pdu::UeContextReleaseCommand(m) => (m.gnb_cu_ue_f1ap_id, m.gnb_du_ue_f1ap_id) = (cu, du),
            Pdu::Paging(m) => m.cells.iter_mut().for_each(|cell| cell.nr_cgi = self.ncgi),
            _ => {}
        }
        pdu.encode().unwrap_or_else(|_| octets.to_vec())
    }

    fn step(&mut self, choice: u8, octets: &[u8]) {
        self.plane.now_ns += u64::from(choice >> TIME_SHIFT) * STEP_NS;
        match (choice & FROM_UE != 0, choice & BARE != 0) {
            (true, true) => self.ue_sends(octets),
            (true, false) => {
                // The first octet is the channel.
                let (lcid, pdu) = octets.split_first().map_or((0, &[0][..]), |(lcid, pdu)| (lcid % 6, pdu));
                self.ue_sends(&Header::uplink(CELL, self.c_rnti, lcid).datagram(pdu));
            }
            (false, true) => self.cu_sends(octets),
            (false, false) => self.cu_sends(&self.about_ue(octets)),
        }
    }
}

fn preamble() -> Vec<u8> {
    Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL }.datagram(b"abcdef")
}

/// Runs a program of messages.
pub fn run(mut data: &[u8]) {
    let mut world = World::new();
    for _ in 0..MESSAGES {
        let [choice, high, low, rest @ ..] = data else { break };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (octets, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        world.step(*choice, octets);
    }
    world.machine.disconnected(&mut world.plane);
    assert_eq!((world.machine.ues(), world.machine.deadline_ns()), (0, None));
}

/// A program of messages with the octet of each.
fn program(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut program = Vec::new();
    for (choice, octets) in messages {
        program.push(*choice);
        program.extend((octets.len() as u16).to_be_bytes());
        program.extend(octets);
    }
    program
}

/// All F1AP messages about one UE, and a life of a UE.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = folder("f1ap");
    let release = Header { kind: Kind::Release, c_rnti: 1, lcid: 0, cell: CELL }.datagram(b"");
    let life = [
        (FROM_UE | BARE, Header::camp(CELL).datagram(b"")),
        (FROM_UE, b"\x01\xC0\x00RRCSetupComplete".to_vec()),
        (FROM_UE, b"\x00RRCSetupRequest".to_vec()),
        (FROM_UE | BARE, preamble()),
        (FROM_UE | BARE, Header::uplink(CELL, 1, 0).datagram(b"x")),
        (FROM_UE | BARE, release),
        (20 << TIME_SHIFT, all.first().cloned().unwrap_or_default()),
    ];
    let mut seeds = vec![program(&life)];
    let about_ue: Vec<(u8, Vec<u8>)> = all.iter().map(|octets| (1 << TIME_SHIFT, octets.clone())).collect();
    seeds.push(program(&about_ue));
    seeds.push(program(&about_ue.into_iter().rev().collect::<Vec<_>>()));
    seeds.extend(all.into_iter().map(|octets| program(&[(BARE, octets)])));
    seeds
}
