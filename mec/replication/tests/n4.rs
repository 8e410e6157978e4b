//! N4 from capture to copy, without sockets: an SMF's messages, a UPF that answers them, and another one on which they are replayed. The
//! UPFs are written for the test after TS 29.244; real ones are in `tests/e2e`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use pfcp::message::*;
use pfcp::*;
use replication::clone::{Clone, Event, Limits, Made, Script, Why};
use replication::n4::Tracker;
use replication::n4::clone::N4;
use replication::track::{Datagram, Effect};

const SMF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const UPF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const GNB: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// Where the agent is, and the clone's GTP-U.
const AGENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const CLONE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

fn encode(message: impl Into<Message>, seid: u64, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(seid, sequence, &mut octets).unwrap();
    octets
}

/// A UPF's session.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    cp: FSeid,
    node: NodeId,
    /// Tunnels by PDR.
    tunnels: BTreeMap<u16, FTeid>,
    ue: Option<Ipv4Addr>,
    /// gNB's TEID; `None`: buffers.
    gnb: Option<u32>,
}

#[derive(Debug)]
struct Upf {
    own: Ipv4Addr,
    sessions: BTreeMap<u64, Held>,
    next: u32,
    /// Takes no TEIDs that it has not chosen.
    chooses: bool,
    /// When it has started.
    started: u32,
    /// Refuses sessions without an association.
    is_associated: bool,
    /// Requests about sessions so far.
    asked: Vec<MessageType>,
}

impl Upf {
    fn new(own: Ipv4Addr, next: u32) -> Upf {
        let (sessions, asked) = Default::default();
        Upf { own, sessions, next, chooses: false, started: 7, is_associated: true, asked }
    }

    fn restart(&mut self) {
        self.sessions.clear();
        self.started += 1;
        self.is_associated = false;
    }

    fn teid(&mut self) -> u32 {
        self.next = self.next.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        self.next
    }

    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let (header, message) = Message::decode(request).unwrap();
        let seid = header.seid.unwrap_or(0);
        let not_found = Cause::SESSION_NOT_FOUND;
        let cp = self.sessions.get(&seid).map_or(0, |held| held.cp.seid);
        if header.seid.is_some() {
            self.asked.push(header.message_type);
        }
        match message {
            Message::HeartbeatRequest(_) => {
                let answer = HeartbeatResponse { recovery_time_stamp: NtpSeconds(self.started) };
                encode(answer, 0, header.sequence)
            }
            Message::AssociationSetupRequest(_) => {
                self.is_associated = true;
                let answer = AssociationSetupResponse {
                    node_id: NodeId::Ipv4(self.own),
                    cause: Cause::ACCEPTED,
                    recovery_time_stamp: NtpSeconds(self.started),
                    ..Default::default()
                };
                encode(answer, 0, header.sequence)
            }
            Message::SessionEstablishmentRequest(request) if !self.is_associated => {
                let refused = SessionEstablishmentResponse {
                    node_id: NodeId::Ipv4(self.own),
                    cause: Cause::NO_ASSOCIATION,
                    ..Default::default()
                };
                encode(refused, request.cp_f_seid.seid, header.sequence)
            }
            Message::SessionEstablishmentRequest(request) => {
                let refuse = |cause| SessionEstablishmentResponse {
                    node_id: NodeId::Ipv4(UPF),
                    cause,
                    ..Default::default()
                };
                let (mut tunnels, mut created, mut chosen) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
                for pdr in &request.create_pdrs {
                    let tunnel = match pdr.pdi.f_teid {
                        None => continue,
                        Some(FTeid::Choose { id, .. }) => {
                            let teid = self.teid();
                            let teid = *id.map_or(&teid, |id| chosen.entry(id).or_insert(teid));
                            FTeid::Assigned { teid, ipv4: Some(self.own), ipv6: None }
                        }
                        Some(assigned @ FTeid::Assigned { ipv4, .. }) => {
                            if self.chooses || ipv4 != Some(self.own) {
                                let refused = refuse(Cause::RULE_FAILURE);
                                return encode(refused, request.cp_f_seid.seid, header.sequence);
                            }
                            assigned
                        }
                    };
                    tunnels.insert(pdr.pdr_id.0, tunnel);
                    created.push(CreatedPdr {
                        pdr_id: pdr.pdr_id,
                        f_teid: Some(tunnel),
                        ue_ip_address: None,
                    });
                }
                let ue =
                    request.create_pdrs.iter().find_map(|pdr| pdr.pdi.ue_ip_address.and_then(|ue| ue.ipv4));
                let mut forwarding =
                    request.create_fars.iter().filter(|far| far.apply_action.contains(ApplyAction::FORW));
                let gnb = forwarding
                    .find_map(|far| far.forwarding_parameters.as_ref()?.outer_header_creation.as_ref()?.teid);
                let own = u64::from(self.teid()) << 20;
                let held = Held { cp: request.cp_f_seid, node: request.node_id, tunnels, ue, gnb };
                let answer = SessionEstablishmentResponse {
                    node_id: NodeId::Ipv4(self.own),
                    cause: Cause::ACCEPTED,
                    up_f_seid: Some(FSeid::new(own, self.own.into())),
                    created_pdrs: created,
                    ..Default::default()
                };
                let to = held.cp.seid;
                self.sessions.insert(own, held);
                encode(answer, to, header.sequence)
            }
            Message::SessionModificationRequest(request) => {
                let Some(held) = self.sessions.get_mut(&seid) else {
                    let answer = SessionModificationResponse { cause: not_found, ..Default::default() };
                    return encode(answer, 0, header.sequence);
                };
                for far in &request.update_fars {
                    let parameters = far.update_forwarding_parameters.as_ref();
                    if let Some(header) =
                        parameters.and_then(|parameters| parameters.outer_header_creation.as_ref())
                    {
                        held.gnb = header.teid;
                    }
                    if far.apply_action.is_some_and(|action| action.contains(ApplyAction::BUFF)) {
                        held.gnb = None;
                    }
                }
                encode(
                    SessionModificationResponse { cause: Cause::ACCEPTED, ..Default::default() },
                    cp,
                    header.sequence,
                )
            }
            Message::SessionDeletionRequest(_) => {
                let cause = if self.sessions.remove(&seid).is_some() { Cause::ACCEPTED } else { not_found };
                encode(SessionDeletionResponse { cause, ..Default::default() }, cp, header.sequence)
            }
            other => panic!("{other:?}"),
        }
    }
}

struct World {
    now: Instant,
    upf: Upf,
    tracker: Tracker,
    sequence: u32,
}

fn establishment(number: u32) -> SessionEstablishmentRequest {
    let ue = Some(Ipv4Addr::new(10, 45, 0, number as u8));
    let choose = FTeid::Choose { ipv4: true, ipv6: false, id: Some(1) };
    let pdr = |id: u16, pdi: Pdi| CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(255),
        pdi,
        far_id: Some(FarId(id.into())),
        ..Default::default()
    };
    let address = |destination| Some(UeIpAddress { ipv4: ue, destination, ..Default::default() });
    let uplink = Pdi { f_teid: Some(choose), ue_ip_address: address(false), ..Default::default() };
    let downlink =
        Pdi { source_interface: SourceInterface::Core, ue_ip_address: address(true), ..Default::default() };
    let far = |id: u32, action| CreateFar { far_id: FarId(id), apply_action: action, ..Default::default() };
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(SMF),
        cp_f_seid: FSeid::new(0x1111_2222_3333_0000 + u64::from(number), SMF.into()),
        // Two PDRs of one tunnel (CHOOSE ID).
        create_pdrs: vec![pdr(1, uplink.clone()), pdr(2, downlink), pdr(3, uplink)],
        create_fars: vec![far(1, ApplyAction::FORW), far(2, ApplyAction::BUFF)],
        ..Default::default()
    }
}

fn to_gnb(teid: u32) -> SessionModificationRequest {
    let header = OuterHeaderCreation::gtpu(teid, GNB.into());
    let parameters = UpdateForwardingParameters {
        destination_interface: Some(DestinationInterface::Access),
        outer_header_creation: Some(header),
        ..Default::default()
    };
    let far = UpdateFar {
        far_id: FarId(2),
        apply_action: Some(ApplyAction::FORW),
        update_forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

fn buffer() -> SessionModificationRequest {
    let far = UpdateFar { far_id: FarId(2), apply_action: Some(ApplyAction::BUFF), ..Default::default() };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

impl World {
    fn new() -> World {
        let tracker = Tracker::new(UPF.into(), 1_000_000);
        World { now: net::time::now_std(), upf: Upf::new(UPF, 7), tracker, sequence: 0 }
    }

    fn ask(&mut self, seid: u64, message: impl Into<Message>) -> (Message, Vec<Effect>) {
        self.sequence += 1;
        let request = encode(message, seid, self.sequence);
        let mut effects = Vec::new();
        let control = IpAddr::from(SMF);
        self.tracker.observe(
            self.now,
            Datagram { control, by_control: true, octets: &request },
            &mut effects,
        );
        let answer = self.upf.answer(&request);
        self.tracker.observe(
            self.now,
            Datagram { control, by_control: false, octets: &answer },
            &mut effects,
        );
        (Message::decode(&answer).unwrap().1, effects)
    }

    fn see(&mut self, by_control: bool, message: impl Into<Message>, sequence: u32) {
        let octets = encode(message, 0, sequence);
        let datagram = Datagram { control: SMF.into(), by_control, octets: &octets };
        self.tracker.observe(self.now, datagram, &mut Vec::new());
    }

    /// A session with its gNB; the UPF's SEID.
    fn session(&mut self, number: u32) -> u64 {
        let (Message::SessionEstablishmentResponse(answer), effects) = self.ask(0, establishment(number))
        else {
            panic!()
        };
        assert!(matches!(effects[..], [Effect::Began { .. }]), "{effects:?}");
        let seid = answer.up_f_seid.unwrap().seid;
        self.ask(seid, to_gnb(0xe000 + number));
        seid
    }

    fn copy(&self, to: &mut Upf) -> (Clone<N4>, BTreeMap<u32, Result<Made, Why>>) {
        let side = N4 { own: AGENT.into(), started: 5, gtpu: CLONE.into() };
        let mut clone = Clone::new(side, Limits::default(), 99);
        for number in self.tracker.table().numbers() {
            let session = self.tracker.session(number).unwrap();
            clone.make(self.now, number, Script { control: session.control, requests: session.requests });
        }
        let ends = drive(&mut clone, to, self.now);
        (clone, ends)
    }
}

fn drive(clone: &mut Clone<N4>, to: &mut Upf, now: Instant) -> BTreeMap<u32, Result<Made, Why>> {
    let mut ends = BTreeMap::new();
    while let Some(request) = clone.poll_transmit() {
        clone.handle_datagram(now, &to.answer(&request));
        while let Some(event) = clone.poll_event() {
            match event {
                Event::Made(number, made) => assert!(ends.insert(number, Ok(made)).is_none()),
                Event::Refused(number, why) => assert!(ends.insert(number, Err(why)).is_none()),
                Event::Ended(_) | Event::Usage { .. } => {}
                Event::Request { .. } => panic!("{event:?}"),
            }
        }
    }
    ends
}

/// SEL-7: with the original's TEIDs at the clone nothing is translated; Node ID, CP F-SEID and F-TEID addresses are the clone's own.
#[test]
fn a_copy_has_the_tunnels_of_its_original() {
    let mut world = World::new();
    (1..=100).for_each(|number| _ = world.session(number));
    for number in world.tracker.table().numbers() {
        assert!(world.tracker.table().octets(number).unwrap().len() <= 64);
    }
    let mut to = Upf::new(CLONE, 1);
    let (_, ends) = world.copy(&mut to);
    assert_eq!(ends.len(), 100);
    let by_ue =
        |upf: &Upf| upf.sessions.values().map(|held| (held.ue, held.clone())).collect::<BTreeMap<_, _>>();
    let (originals, copies) = (by_ue(&world.upf), by_ue(&to));
    for (ue, copy) in copies {
        let original = &originals[&ue];
        let teids = |held: &Held| {
            let teid = |tunnel: &FTeid| match tunnel {
                FTeid::Assigned { teid, .. } => *teid,
                other => panic!("{other:?}"),
            };
            held.tunnels.iter().map(|(pdr, tunnel)| (*pdr, teid(tunnel))).collect::<Vec<_>>()
        };
        assert_eq!(teids(&copy), teids(original));
        assert_eq!(copy.gnb, original.gnb);
        assert_eq!(copy.cp, FSeid { ipv4: Some(AGENT), ..original.cp });
        assert_eq!(copy.node, NodeId::Ipv4(AGENT));
        assert!(copy.gnb.is_some());
    }
    for (number, made) in ends {
        let original = world.tracker.session(number).unwrap();
        assert_eq!(made.unwrap().bearers[0].uplink, original.bearers[0].uplink);
    }
}

/// A UPF that takes no TEIDs of others chooses its own: then packets are translated (SEL-4).
#[test]
fn a_upf_that_chooses_is_asked_to() {
    let mut world = World::new();
    let seid = world.session(1);
    let mut to = Upf { chooses: true, ..Upf::new(CLONE, 1) };
    let (_, ends) = world.copy(&mut to);
    let made = ends[&0].clone().unwrap();
    assert_eq!(made.bearers.len(), 1, "two PDRs of one tunnel");
    assert_ne!(made.bearers[0].uplink, world.tracker.session(0).unwrap().bearers[0].uplink);
    assert_eq!(to.sessions.len(), 1);
    assert!(world.upf.sessions.contains_key(&seid));
}

/// Later changes take the place of earlier ones, also through idle and active, so that a session does not grow.
#[test]
fn a_session_does_not_grow_and_copies_follow() {
    let mut world = World::new();
    let seid = world.session(1);
    let mut to = Upf::new(CLONE, 1);
    let (mut clone, _) = world.copy(&mut to);
    for round in 0..20 {
        for message in [buffer(), to_gnb(0xf000 + round)] {
            let (_, effects) = world.ask(seid, message);
            let [Effect::Changed { number, request }] = &effects[..] else { panic!("{effects:?}") };
            clone.later(world.now, *number, request.clone());
            drive(&mut clone, &mut to, world.now);
            let (original, copy) =
                (world.upf.sessions.values().next().unwrap(), to.sessions.values().next().unwrap());
            assert_eq!(original.gnb, copy.gnb);
            let session = world.tracker.session(0).unwrap();
            assert!(session.requests.len() <= 3, "{}", session.requests.len());
            assert_eq!(session.idle, original.gnb.is_none());
        }
    }
    assert!(world.tracker.table().octets(0).unwrap().len() <= 64);
    let (_, effects) = world.ask(seid, SessionDeletionRequest {});
    assert_eq!(effects, [Effect::Ended(0)]);
    clone.end(world.now, 0);
    drive(&mut clone, &mut to, world.now);
    assert!(to.sessions.is_empty());
    assert!(world.tracker.table().templates().is_empty());
}

/// CAP-5: heartbeats of a clone are answered; a report is for the SMF, and its answer goes back.
#[test]
fn what_a_clone_asks_reaches_the_smf() {
    let mut world = World::new();
    world.session(1);
    let mut to = Upf::new(CLONE, 1);
    let (mut clone, _) = world.copy(&mut to);
    let heartbeat = HeartbeatRequest { recovery_time_stamp: NtpSeconds(7) };
    clone.handle_datagram(world.now, &encode(heartbeat, 0, 3));
    let answer = Message::decode(&clone.poll_transmit().unwrap()).unwrap().1;
    assert_eq!(answer, HeartbeatResponse { recovery_time_stamp: NtpSeconds(5) }.into());
    let cp = establishment(1).cp_f_seid.seid;
    let report = encode(SessionReportRequest { report_type: ReportType::DLDR, ..Default::default() }, cp, 4);
    clone.handle_datagram(world.now, &report);
    assert_eq!(clone.poll_event(), Some(Event::Request { handle: 0, sequence: 4, octets: report }));
    let answer = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
    clone.answer(0, 4, encode(answer, 1, 0x40_0001));
    let (header, _) = Message::decode(&clone.poll_transmit().unwrap()).unwrap();
    assert_eq!((header.seid, header.sequence), (to.sessions.keys().next().copied(), 4));
}

/// A request that was not captured: the record says that it is not all. One that is captured behind its answer counts.
#[test]
fn lost_requests_make_a_record_incomplete() {
    let mut world = World::new();
    let seids: Vec<u64> = (1..=3).map(|number| world.session(number)).collect();
    let see = |world: &mut World, by_control, octets: &[u8]| {
        let mut effects = Vec::new();
        let datagram = Datagram { control: SMF.into(), by_control, octets };
        world.tracker.observe(world.now, datagram, &mut effects);
        effects
    };
    let cp = |number| establishment(number).cp_f_seid.seid;
    let modified = SessionModificationResponse { cause: Cause::ACCEPTED, ..Default::default() };
    let deleted = SessionDeletionResponse { cause: Cause::ACCEPTED, ..Default::default() };
    assert_eq!(see(&mut world, false, &encode(modified.clone(), cp(1), 700)), []);
    let request = encode(to_gnb(0x99), seids[0], 700);
    assert!(matches!(see(&mut world, true, &request)[..], [Effect::Changed { number: 0, .. }]));
    see(&mut world, false, &encode(modified, cp(2), 701));
    see(&mut world, false, &encode(deleted, cp(3), 702));
    world.now += std::time::Duration::from_secs(1);
    let heartbeat = HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) };
    assert_eq!(see(&mut world, true, &encode(heartbeat, 0, 703)), [Effect::Ended(2)]);
    let incomplete = |number| world.tracker.session(number).map(|session| session.incomplete);
    assert_eq!([0, 1, 2].map(incomplete), [Some(false), Some(true), None]);
}

/// STO-3: an SMF makes its association anew, and nobody has heard yet when it had started before. The UPF says whether it has retained
/// the sessions.
#[test]
fn an_association_that_is_made_anew_takes_sessions_away_unless_they_are_retained() {
    for (is_retained, left) in [(true, 3), (false, 0)] {
        let mut world = World::new();
        (1..=3).for_each(|number| _ = world.session(number));
        let recovery_time_stamp = NtpSeconds(20);
        let node_id = || NodeId::Ipv4(SMF);
        let request =
            AssociationSetupRequest { node_id: node_id(), recovery_time_stamp, ..Default::default() };
        world.see(true, request, 900);
        // The UPF asks the SMF itself before it believes that.
        world.see(false, HeartbeatRequest { recovery_time_stamp: NtpSeconds(7) }, 50);
        world.see(true, HeartbeatResponse { recovery_time_stamp }, 50);
        assert_eq!(world.tracker.table().len(), 3, "not before the UPF has accepted it");
        let answer = AssociationSetupResponse {
            node_id: NodeId::Ipv4(UPF),
            cause: Cause::ACCEPTED,
            recovery_time_stamp: NtpSeconds(7),
            flags: is_retained.then_some(AsRspFlags::PSREI),
            ..Default::default()
        };
        world.see(false, answer, 900);
        assert_eq!(world.tracker.table().len(), left);
        // From now on it is known when it has started.
        (4..=5).for_each(|number| _ = world.session(number));
        let request =
            AssociationSetupRequest { node_id: node_id(), recovery_time_stamp, ..Default::default() };
        world.ask(0, request);
        assert_eq!(world.tracker.table().len(), left + 2);
    }
}

/// Sessions that a UPF has lost wait for the SMF, which sets them up again with their tunnels (TS 23.527 §4.3). SEIDs that are given again
/// mix nobody up; who gets another tunnel begins anew; who does not come back is gone.
#[test]
fn sessions_wait_for_their_restoration() {
    let heartbeat = || HeartbeatRequest { recovery_time_stamp: NtpSeconds(5) };
    let mut world = World::new();
    world.ask(0, heartbeat());
    let seids: Vec<u64> = (1..=4).map(|number| world.session(number)).collect();
    let teids: Vec<u32> =
        (0..4).map(|number| world.tracker.session(number).unwrap().bearers[0].uplink).collect();
    let mut to = Upf::new(CLONE, 1);
    let (mut clone, _) = world.copy(&mut to);
    world.upf.restart();
    assert_eq!(world.ask(0, heartbeat()).1, []);
    assert_eq!((world.tracker.table().len(), world.tracker.table().by_anchor(seids[0])), (4, None));
    let association = AssociationSetupRequest {
        node_id: NodeId::Ipv4(SMF),
        recovery_time_stamp: NtpSeconds(5),
        ..Default::default()
    };
    assert_eq!(world.ask(0, association).1, []);
    // The second one is the first to come back, idle, and gets the first one's SEID.
    world.upf.next = teids[0];
    world.upf.teid();
    let again = |number: u32, gnb: Option<u32>| {
        let mut request = establishment(number);
        let teid = teids[number as usize - 1];
        let tunnel = Some(FTeid::Assigned { teid, ipv4: Some(UPF), ipv6: None });
        request
            .create_pdrs
            .iter_mut()
            .filter(|pdr| pdr.pdi.f_teid.is_some())
            .for_each(|pdr| pdr.pdi.f_teid = tunnel);
        if let Some(teid) = gnb {
            let header = OuterHeaderCreation::gtpu(teid, GNB.into());
            let parameters =
                ForwardingParameters { outer_header_creation: Some(header), ..Default::default() };
            request.create_fars[1].apply_action = ApplyAction::FORW;
            request.create_fars[1].forwarding_parameters = Some(Box::new(parameters));
        }
        request
    };
    let mut now_at = Vec::new();
    for (number, gnb) in [(2, None), (1, Some(0xe001))] {
        let (answer, effects) = world.ask(0, again(number, gnb));
        let Message::SessionEstablishmentResponse(answer) = answer else { panic!() };
        now_at.push(answer.up_f_seid.unwrap().seid);
        let [Effect::Restored { number: place, request }] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(*place, number - 1);
        clone.later(world.now, *place, request.clone());
        drive(&mut clone, &mut to, world.now);
        let held = to.sessions.values().find(|held| held.cp.seid == establishment(number).cp_f_seid.seid);
        assert_eq!(held.unwrap().gnb, gnb);
        let session = world.tracker.session(*place).unwrap();
        // Of one that is idle it is still known where it was.
        assert_eq!(
            (session.idle, session.requests.len()),
            (gnb.is_none(), if gnb.is_none() { 3 } else { 2 })
        );
        assert!(world.tracker.table().octets(*place).unwrap().len() <= 64);
    }
    assert_eq!(now_at[0], seids[0], "given again");
    assert!(matches!(world.ask(now_at[0], to_gnb(0xf002)).1[..], [Effect::Changed { number: 1, .. }]));
    // The third one is not what it was: its packets are counted.
    let mut other = again(3, None);
    other.create_urrs = vec![CreateUrr { urr_id: UrrId(1), ..Default::default() }];
    assert!(matches!(world.ask(0, other).1[..], [Effect::Began { number: 2, .. }]));
    // It takes its time, but not for ever.
    world.now += replication::n4::track::RESTORED_WITHIN / 2;
    assert!(matches!(world.ask(0, again(1, Some(0xe001))).1[..], [Effect::Restored { number: 0, .. }]));
    world.now += replication::n4::track::RESTORED_WITHIN / 2;
    assert_eq!(world.ask(0, heartbeat()).1, []);
    world.now += replication::n4::track::RESTORED_WITHIN;
    assert_eq!(world.ask(0, heartbeat()).1, [Effect::Ended(3)]);
    assert_eq!(world.tracker.waits_until(), None);
    assert_eq!(world.tracker.table().len(), 3);
}

/// Sessions that the SMF deletes while their UPF is away, or has lost them, are not waited for.
#[test]
fn lost_sessions_that_are_deleted_are_gone() {
    let heartbeat = || HeartbeatRequest { recovery_time_stamp: NtpSeconds(5) };
    let mut world = World::new();
    world.ask(0, heartbeat());
    let seids: Vec<u64> = (1..=3).map(|number| world.session(number)).collect();
    let deletion = encode(SessionDeletionRequest {}, seids[0], 700);
    let datagram = Datagram { control: SMF.into(), by_control: true, octets: &deletion };
    let mut effects = Vec::new();
    world.tracker.observe(world.now, datagram, &mut effects);
    assert_eq!(effects, []);
    world.upf.restart();
    assert_eq!(world.ask(0, heartbeat()).1, [Effect::Ended(0)]);
    assert_eq!(world.ask(seids[1], SessionDeletionRequest {}).1, [Effect::Ended(1)]);
    assert_eq!(world.ask(seids[1], SessionDeletionRequest {}).1, []);
    assert_eq!(world.tracker.table().len(), 1);
}

/// Another user has the address of a session that its UPF has lost: that one does not come back.
#[test]
fn a_lost_session_whose_address_another_one_gets_is_gone() {
    let mut world = World::new();
    world.ask(0, HeartbeatRequest { recovery_time_stamp: NtpSeconds(5) });
    world.session(1);
    world.upf.restart();
    world.ask(0, HeartbeatRequest { recovery_time_stamp: NtpSeconds(5) });
    world.upf.is_associated = true;
    let mut other = establishment(1);
    other.cp_f_seid.seid += 7;
    let (_, effects) = world.ask(0, other);
    assert!(matches!(effects[..], [Effect::Ended(0), Effect::Began { number: 0, .. }]), "{effects:?}");
}

/// SEL-1: what modifications have made of the first FARs is asked for with the session; what else they do comes behind it.
#[test]
fn a_session_takes_one_exchange_however_often_its_user_was_idle() {
    let with_pdr = |teid| SessionModificationRequest {
        update_pdrs: vec![UpdatePdr {
            pdr_id: PdrId(2),
            precedence: Some(Precedence(7)),
            ..Default::default()
        }],
        ..to_gnb(teid)
    };
    let of_another_far = SessionModificationRequest {
        update_fars: vec![UpdateFar { far_id: FarId(9), ..to_gnb(3).update_fars.remove(0) }],
        ..Default::default()
    };
    for (changes, gnb, behind) in [
        (vec![], Some(0xe001), 0),
        (vec![buffer()], None, 0),
        (vec![buffer(), to_gnb(5)], Some(5), 0),
        (vec![buffer(), with_pdr(6)], Some(6), 1),
        (vec![of_another_far], Some(3), 1),
    ] {
        let mut world = World::new();
        let seid = world.session(1);
        changes.into_iter().for_each(|change| _ = world.ask(seid, change));
        for chooses in [false, true] {
            let mut to = Upf { chooses, ..Upf::new(CLONE, 1) };
            let (_, ends) = world.copy(&mut to);
            assert!(ends[&0].is_ok(), "{ends:?}");
            let establishments = 1 + usize::from(chooses);
            let mut expected = vec![MessageType::SessionEstablishmentRequest; establishments];
            expected.extend(vec![MessageType::SessionModificationRequest; behind]);
            assert_eq!(to.asked, expected);
            assert_eq!(to.sessions.values().next().unwrap().gnb, gnb);
        }
    }
}

/// A clone that restarts has lost its copies: they are reported as gone, and the association is made again before anything else is asked.
#[test]
fn a_clone_that_restarts_is_noticed() {
    let mut world = World::new();
    (1..=3).for_each(|number| _ = world.session(number));
    let mut to = Upf::new(CLONE, 1);
    let (mut clone, _) = world.copy(&mut to);
    let mut now = world.now;
    // It is asked whether it is there as long as it has users.
    for is_restart in [false, false, true] {
        if is_restart {
            to.restart();
        }
        now = clone.poll_timeout().expect("it is asked");
        clone.handle_timeout(now);
        let question = clone.poll_transmit().expect("it is asked");
        assert_eq!(clone.poll_event(), None);
        clone.handle_datagram(now, &to.answer(&question));
    }
    assert!(now <= world.now + 4 * Limits::default().probe);
    let events: Vec<Event> = std::iter::from_fn(|| clone.poll_event()).collect();
    for handle in 0..3 {
        assert!(events.contains(&Event::Refused(handle, Why::Restarted)), "{events:?}");
        assert!(events.contains(&Event::Ended(handle)), "{events:?}");
    }
    // Nothing else before the association, which is asked for again.
    let session = world.tracker.session(0).unwrap();
    clone.make(now, 9, Script { control: session.control, requests: session.requests });
    for _ in 0..2 {
        let asked = clone.poll_transmit().unwrap();
        assert!(matches!(Message::decode(&asked).unwrap().1, Message::AssociationSetupRequest(_)));
        assert_eq!(clone.poll_transmit(), None);
        now += Limits::default().repeat;
        clone.handle_timeout(now);
    }
    let greeting = clone.poll_transmit().unwrap();
    clone.handle_datagram(now, &to.answer(&greeting));
    let ends = drive(&mut clone, &mut to, now);
    assert!(ends[&9].is_ok());
    assert_eq!(to.sessions.len(), 1);
}

/// A clone has restarted since it was last asked. What is made now is made, and only what was there before is gone, in whatever order the
/// clone answers.
#[test]
fn a_restart_between_two_copies_ends_only_the_first() {
    for is_late in [false, true] {
        let mut world = World::new();
        (1..=3).for_each(|number| _ = world.session(number));
        let mut to = Upf::new(CLONE, 1);
        let (mut clone, _) = world.copy(&mut to);
        to.restart();
        let now = world.now + std::time::Duration::from_secs(1);
        for number in 0..3 {
            let session = world.tracker.session(number).unwrap();
            clone.make(
                now,
                10 + number,
                Script { control: session.control + 100, requests: session.requests },
            );
        }
        let mut asked: Vec<Vec<u8>> = std::iter::from_fn(|| clone.poll_transmit()).collect();
        if is_late {
            asked.reverse();
        }
        for octets in asked {
            clone.handle_datagram(now, &to.answer(&octets));
        }
        drive_on(&mut clone, &mut to, now);
        let (mut made, mut gone) = (Vec::new(), Vec::new());
        while let Some(event) = clone.poll_event() {
            match event {
                Event::Made(handle, _) => made.push(handle),
                Event::Refused(handle, why) => {
                    assert_eq!(why, Why::Restarted);
                    gone.push(handle);
                }
                Event::Ended(_) => {}
                other => panic!("{other:?}"),
            }
        }
        made.sort_unstable();
        gone.sort_unstable();
        assert_eq!((made, gone), (vec![10, 11, 12], vec![0, 1, 2]));
        assert_eq!(to.sessions.len(), 3);
        // It is asked again, and nobody is gone.
        let later = clone.poll_timeout().expect("it is asked");
        clone.handle_timeout(later);
        drive_on(&mut clone, &mut to, later);
        assert_eq!(clone.poll_event(), None);
    }
}

/// A UPF that knows no association whatever it has accepted: a user is tried twice, then refused.
#[test]
fn a_clone_that_forgets_its_associations_is_given_up() {
    let mut world = World::new();
    world.session(1);
    let mut to = Upf::new(CLONE, 1);
    let side = N4 { own: AGENT.into(), started: 5, gtpu: CLONE.into() };
    let mut clone = Clone::new(side, Limits::default(), 99);
    let session = world.tracker.session(0).unwrap();
    clone.make(world.now, 0, Script { control: session.control, requests: session.requests });
    for _ in 0..100 {
        let Some(octets) = clone.poll_transmit() else { break };
        to.is_associated = false;
        clone.handle_datagram(world.now, &to.answer(&octets));
    }
    assert_eq!(clone.poll_transmit(), None);
    assert_eq!(clone.poll_event(), Some(Event::Refused(0, Why::Cause(Cause::NO_ASSOCIATION.0))));
    assert_eq!(clone.poll_event(), Some(Event::Ended(0)));
}

/// A session that another agent made is asked after, and gone when its UPF has restarted.
#[test]
fn an_adopted_session_is_gone_with_a_restart() {
    let mut world = World::new();
    world.session(1);
    let mut to = Upf::new(CLONE, 1);
    let side = N4 { own: AGENT.into(), started: 5, gtpu: CLONE.into() };
    let mut clone = Clone::new(side, Limits::default(), 99);
    clone.adopt(world.now, 0, 77, Made { anchor: 88, bearers: Vec::new() });
    for is_restart in [false, true] {
        if is_restart {
            to.restart();
        }
        assert_eq!(clone.poll_event(), None);
        let now = clone.poll_timeout().expect("it is asked");
        clone.handle_timeout(now);
        drive_on(&mut clone, &mut to, now);
    }
    assert_eq!(clone.poll_event(), Some(Event::Refused(0, Why::Restarted)));
    assert_eq!(clone.poll_event(), Some(Event::Ended(0)));
}

/// A UPF has restarted and accepts no association: who waits for it is refused.
#[test]
fn nobody_waits_for_an_association_without_end() {
    let mut world = World::new();
    (1..=3).for_each(|number| _ = world.session(number));
    let mut to = Upf::new(CLONE, 1);
    to.restart();
    let side = N4 { own: AGENT.into(), started: 5, gtpu: CLONE.into() };
    let mut clone = Clone::new(side, Limits { window: 2, ..Limits::default() }, 99);
    for number in 0..3 {
        let session = world.tracker.session(number).unwrap();
        clone.make(world.now, number, Script { control: session.control, requests: session.requests });
    }
    let (mut now, mut refused) = (world.now, Vec::new());
    for _ in 0..40 {
        while let Some(octets) = clone.poll_transmit() {
            if !matches!(Message::decode(&octets).unwrap().1, Message::AssociationSetupRequest(_)) {
                clone.handle_datagram(now, &to.answer(&octets));
            }
        }
        while let Some(event) = clone.poll_event() {
            match event {
                Event::Refused(handle, why) => refused.push((handle, why)),
                Event::Ended(_) => {}
                other => panic!("{other:?}"),
            }
        }
        now = clone.poll_timeout().expect("it is greeted on");
        clone.handle_timeout(now);
    }
    refused.sort_unstable_by_key(|(handle, _)| *handle);
    assert_eq!(refused, [0, 1, 2].map(|handle| (handle, Why::Silent)));
}

/// The clone answers all that it is asked.
fn drive_on(clone: &mut Clone<N4>, to: &mut Upf, now: Instant) {
    while let Some(octets) = clone.poll_transmit() {
        clone.handle_datagram(now, &to.answer(&octets));
    }
}

/// Hostile: cut off, damaged and repeated messages do no harm.
#[test]
fn hostile_messages_do_no_harm() {
    let mut world = World::new();
    let control = IpAddr::from(SMF);
    let request = encode(establishment(1), 0, 5);
    let answer = world.upf.answer(&request);
    let mut effects = Vec::new();
    for octets in [&request, &answer] {
        for at in 0..octets.len() {
            let mut damaged = octets.clone();
            damaged[at] ^= 0xff;
            for by_control in [true, false] {
                world.tracker.observe(
                    world.now,
                    Datagram { control, by_control, octets: &damaged },
                    &mut effects,
                );
                world.tracker.observe(
                    world.now,
                    Datagram { control, by_control, octets: &octets[..at] },
                    &mut effects,
                );
            }
            world.tracker.observe(
                world.now,
                Datagram { control, by_control: true, octets: &request },
                &mut effects,
            );
        }
    }
    let (_, made) = world.copy(&mut Upf::new(CLONE, 1));
    assert!(made.len() <= world.tracker.table().len());
}
