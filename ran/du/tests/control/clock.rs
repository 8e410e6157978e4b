//! Time-outs: the machine and the user plane on a clock that the test sets.

use std::net::SocketAddr;

use du::f1c::{Cell, Commands, F1u, Machine, Output};
use du::{Added, BearerSetup, Echo, Event, Events, Interface, Refused, Role, Settings, Tunnel, UserPlane};
use f1ap::Pdu;
use f1ap::cause::{Cause, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use l2::uu::{Header, Kind};
use path::{Graph as _, Ports};
use pktio::memory::{self, Wire};
use pktio::{VECTOR, Vector};
use types::{NrCellId, SNssai, Tac};

use crate::support::{CELL, CU_ID, accepted, command, dl, drb, end, ncgi, setup};

const S: u64 = 1_000_000_000;

/// The user plane between memory ports.
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
    uu: Wire,
    vector: Vector,
    /// Messages for the CU, and whether the association is to end.
    sent: Vec<Pdu>,
    disconnects: usize,
}

fn cu() -> SocketAddr {
    "192.0.2.1:2152".parse().unwrap()
}

fn ue() -> SocketAddr {
    "198.51.100.7:5000".parse().unwrap()
}

impl World {
    fn new() -> World {
        let cell = NrCellId::new(CELL).unwrap();
        let interface = |name: &str, role, local: &str| Interface {
            name: name.to_owned(),
            role,
            local: local.parse().unwrap(),
        };
        let interfaces = vec![
            interface("f1u", Role::F1u, "192.0.2.2:2152"),
            interface("uu", Role::Uu, "198.51.100.1:38321"),
        ];
        let settings = Settings { echo: Some(Echo::default()), ..Settings::new(cell, interfaces) };
        let (du, _, events) = UserPlane::new(settings).unwrap();
        let (f1u_port, _) = memory::pair(1_000_000);
        let (uu_port, uu) = memory::pair(1_000_000);
        let plane = Plane { du, ports: vec![Box::new(f1u_port), Box::new(uu_port)], now_ns: S };
        let slices = [SNssai::new(1, None).unwrap()];
        let described = Cell::new(1, "du", cell, ncgi().plmn, Tac::new(1).unwrap(), &slices).unwrap();
        let f1u = F1u { interface: 0, address: "192.0.2.2".parse().unwrap() };
        let mut world = World {
            machine: Machine::new(described, f1u),
            plane,
            events,
            uu,
            vector: Vector::new(VECTOR, 9_216),
            sent: Vec::new(),
            disconnects: 0,
        };
        world.machine.connected(world.plane.now_ns);
        world.step();
        world
    }

    fn up() -> World {
        let mut world = World::new();
        let Some(Pdu::F1SetupRequest(request)) = world.sent.pop() else { panic!() };
        world.cu_sends(accepted(request.transaction_id));
        assert!(world.machine.is_set_up());
        world
    }

    /// One round of the worker, and of the machine.
    fn step(&mut self) {
        let now_ns = self.plane.now_ns;
        while self.plane.ports[1].receive(&mut self.vector).unwrap() > 0 {
            self.plane.du.process(1, &mut self.vector, now_ns, &mut self.plane.ports);
            self.vector.clear();
        }
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
                Output::Send { octets, .. } => self.sent.push(Pdu::decode(&octets).unwrap().pdu),
                Output::Disconnect => self.disconnects += 1,
            }
        }
    }

    fn pass(&mut self, duration_ns: u64) {
        for _ in 0..duration_ns / (S / 100) {
            self.plane.now_ns += S / 100;
            self.step();
        }
    }

    fn cu_sends(&mut self, pdu: impl Into<Pdu>) {
        let octets = pdu.into().encode().unwrap();
        self.machine.receive(&octets, self.plane.now_ns, &mut self.plane);
        self.step();
    }

    fn ue_sends(&mut self, header: Header, payload: &[u8]) {
        self.uu.inject(&header.datagram(payload), ue());
        self.step();
    }

    /// What the UE has heard since, by kind.
    fn heard(&self) -> Vec<Header> {
        self.uu.take().iter().map(|(datagram, _)| Header::parse(datagram).unwrap().0).collect()
    }

    fn access(&mut self) -> u16 {
        let preamble = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL };
        self.ue_sends(preamble, b"abcdef");
        self.heard().last().unwrap().c_rnti
    }

    /// A UE that the CU knows.
    fn connect(&mut self) -> (u16, GnbDuUeF1apId) {
        let c_rnti = self.access();
        self.ue_sends(Header::uplink(CELL, c_rnti, 0), b"RRCSetupRequest");
        let Some(Pdu::InitialUlRrcMessageTransfer(initial)) = self.sent.pop() else { panic!() };
        self.cu_sends(dl(CU_ID, initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup"));
        (c_rnti, initial.gnb_du_ue_f1ap_id)
    }

    fn is_released(&self, c_rnti: u16) -> bool {
        let release = Header { kind: Kind::Release, c_rnti, lcid: 0, cell: CELL };
        self.heard().contains(&release)
    }
}

#[test]
fn a_cu_that_does_not_answer_set_up_is_left() {
    let mut world = World::new();
    world.pass(4 * S);
    assert_eq!((world.sent.len(), world.disconnects), (1, 0));
    world.pass(2 * S);
    assert_eq!((world.sent.len(), world.disconnects), (1, 1));
    world.machine.disconnected(&mut world.plane);
    assert_eq!(world.machine.deadline_ns(), None);
}

#[test]
fn refusals_without_time_to_wait_make_the_du_ask_less_often() {
    let mut world = World::new();
    let mut waits = Vec::new();
    for _ in 0..9 {
        let Some(Pdu::F1SetupRequest(request)) = world.sent.pop() else { panic!() };
        let from_ns = world.plane.now_ns;
        world.cu_sends(F1SetupFailure {
            transaction_id: request.transaction_id,
            cause: Cause::default(),
            time_to_wait: None,
            criticality_diagnostics: None,
        });
        while world.sent.is_empty() {
            world.pass(S / 10);
        }
        waits.push((world.plane.now_ns - from_ns) / S);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
}

#[test]
fn a_ue_that_the_cu_does_not_answer_is_released() {
    let mut world = World::up();
    let c_rnti = world.access();
    world.ue_sends(Header::uplink(CELL, c_rnti, 0), b"RRCSetupRequest");
    world.pass(4 * S);
    assert!(!world.is_released(c_rnti) && world.machine.ues() == 1);
    world.pass(2 * S);
    assert!(world.is_released(c_rnti) && world.machine.ues() == 0);
    // One that sends nothing is forgotten by both.
    world.access();
    world.pass(3 * S);
    assert_eq!(world.machine.ues(), 0);
    assert_eq!(world.machine.deadline_ns(), None);
}

#[test]
fn a_release_that_the_cu_does_not_command_becomes_a_reset() {
    let mut world = World::up();
    let (c_rnti, id) = world.connect();
    world.ue_sends(Header { kind: Kind::Release, c_rnti, lcid: 0, cell: CELL }, b"");
    assert!(matches!(world.sent.pop(), Some(Pdu::UeContextReleaseRequest(_))));
    world.pass(9 * S);
    assert_eq!((world.machine.ues(), world.sent.len()), (1, 0));
    world.pass(2 * S);
    assert_eq!(world.machine.ues(), 0);
    let Some(Pdu::Reset(reset)) = world.sent.pop() else { panic!() };
    let named = UeAssociation { gnb_cu_ue_f1ap_id: Some(CU_ID), gnb_du_ue_f1ap_id: Some(id) };
    assert_eq!(reset.reset_type, ResetType::PartOfF1Interface(vec![named]));
    // The command comes too late.
    world.cu_sends(command(CU_ID, id, None));
    assert!(matches!(world.sent.pop(), Some(Pdu::ErrorIndication(_))));
    // Another acknowledgement than that of this Reset means nothing; it is sent three times, then the CU counts as lost.
    let acknowledge = |transaction_id| ResetAcknowledge {
        transaction_id,
        ue_associations: Vec::new(),
        criticality_diagnostics: None,
    };
    world.cu_sends(acknowledge(TransactionId(200)));
    world.pass(11 * S);
    assert_eq!(world.sent, [Pdu::Reset(reset.clone()), Pdu::Reset(reset.clone())]);
    assert_eq!(world.disconnects, 0);
    world.pass(5 * S);
    assert_eq!(world.disconnects, 1);
}

#[test]
fn a_path_that_fails_ends_the_ues_on_it() {
    let mut world = World::up();
    let (_, id) = world.connect();
    world.cu_sends(setup(CU_ID, id, vec![drb(1, end(cu().ip(), 11))]));
    assert!(matches!(world.sent.pop(), Some(Pdu::UeContextSetupResponse(_))));
    // Another UE without bearers.
    let preamble = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL };
    world.ue_sends(preamble, b"ghijkl");
    let other = world.heard().iter().find(|header| header.kind == Kind::RandomAccessResponse).unwrap().c_rnti;
    world.ue_sends(Header::uplink(CELL, other, 0), b"other");
    let Some(Pdu::InitialUlRrcMessageTransfer(initial)) = world.sent.pop() else { panic!() };
    world.cu_sends(dl(GnbCuUeF1apId(2), initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup"));
    // Nobody answers the Echo Requests: three of them, three seconds each.
    world.pass(15 * S);
    let [Pdu::UeContextReleaseRequest(request), ..] = &world.sent[..] else { panic!("{:?}", world.sent) };
    assert!(matches!(request.cause, Cause::Transport(_)));
    assert_eq!(request.gnb_du_ue_f1ap_id, id);
    let about_other = |pdu: &Pdu| {
        matches!(pdu, Pdu::UeContextReleaseRequest(request)
        if request.gnb_du_ue_f1ap_id == initial.gnb_du_ue_f1ap_id)
    };
    assert!(!world.sent.iter().any(about_other));
}

#[test]
fn signalling_that_does_not_get_through_ends_the_ue() {
    let mut world = World::up();
    let (_, id) = world.connect();
    // The bearer's memory is full before retransmissions are over.
    for _ in 0..60 {
        world.cu_sends(dl(CU_ID, id, 1, &[0; 8_000]));
    }
    let requests: Vec<&Pdu> = world.sent.iter().collect();
    let [Pdu::UeContextReleaseRequest(request)] = requests[..] else { panic!("{requests:?}") };
    assert_eq!(request.cause, Cause::RadioNetwork(RadioNetwork::RlFailureRlc));
}

#[test]
fn a_tunnel_unknown_at_the_cu_that_was_released_meanwhile_ends_nobody() {
    let mut world = World::up();
    let (c_rnti, id) = world.connect();
    world.cu_sends(setup(CU_ID, id, vec![drb(1, end(cu().ip(), 11)), drb(2, end(cu().ip(), 12))]));
    world.sent.clear();
    world.cu_sends(UeContextModificationRequest {
        drbs_to_be_released: vec![DrbToBeReleased { drb_id: DrbId(1) }],
        ..crate::support::modification(CU_ID, id)
    });
    assert!(matches!(world.sent[..], [Pdu::UeContextModificationResponse(_)]));
    let unknown = |lcid| Event::UnknownAtCu { c_rnti, lcid };
    world.machine.event(unknown(4), world.plane.now_ns, &mut world.plane);
    world.step();
    assert_eq!(world.sent.len(), 1);
    world.machine.event(unknown(5), world.plane.now_ns, &mut world.plane);
    world.step();
    assert!(matches!(world.sent[..], [_, Pdu::UeContextReleaseRequest(_)]));
}

/// The CU may give its numbers of UEs to others: a Reset of the DU that waits must not name them.
#[test]
fn a_reset_of_the_cu_makes_those_of_the_du_pointless() {
    let mut world = World::up();
    let mut named = Vec::new();
    for n in 1..=2 {
        let preamble = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL };
        world.ue_sends(preamble, &[n; 6]);
        let c_rnti = world.heard().last().unwrap().c_rnti;
        world.ue_sends(Header::uplink(CELL, c_rnti, 0), &[n]);
        let Some(Pdu::InitialUlRrcMessageTransfer(initial)) = world.sent.pop() else { panic!() };
        world.cu_sends(dl(GnbCuUeF1apId(n.into()), initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup"));
        // Each goes a while after the other, and the CU commands nothing.
        world.ue_sends(Header { kind: Kind::Release, c_rnti, lcid: 0, cell: CELL }, b"");
        world.pass(S);
        named.push(initial.gnb_du_ue_f1ap_id);
    }
    world.sent.clear();
    world.pass(10 * S);
    let Some(Pdu::Reset(first)) = world.sent.pop() else { panic!() };
    assert!(matches!(&first.reset_type, ResetType::PartOfF1Interface(ues) if ues.len() == 1));
    world.cu_sends(Reset {
        transaction_id: TransactionId(9),
        cause: Cause::default(),
        reset_type: ResetType::F1Interface,
    });
    world.sent.clear();
    world.cu_sends(ResetAcknowledge {
        transaction_id: first.transaction_id,
        ue_associations: Vec::new(),
        criticality_diagnostics: None,
    });
    world.pass(20 * S);
    assert_eq!((world.sent.len(), world.disconnects), (0, 0), "{:?}", world.sent);
}
