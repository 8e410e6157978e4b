//! A UPF as uplink classifier (TS 23.501 §5.6.4.2), by N4 rules of a CP function: its PDRs choose the anchor of a packet, tunnels
//! on N9 lead to other anchors and back, and rules come and go under traffic (TS 23.502 §4.3.5.4 to §4.3.5.7). Three UPFs in
//! namespaces; see `support/branches.rs`.

use std::net::{Ipv4Addr, SocketAddr};

use crate::branches::*;
use crate::lab::wait_for;
use crate::support::*;
use packet::gtpu::PduSession;
use pfcp::message::*;
use pfcp::*;

/// A flow of the application that is diverted, one of the same server, and one of another server.
const APP: (u16, Ipv4Addr, u16) = (40_001, APPLICATION, PORTS[0]);
const SAME_SERVER: (u16, Ipv4Addr, u16) = (40_002, APPLICATION, PORTS[1]);
const OTHER_SERVER: (u16, Ipv4Addr, u16) = (40_003, SITE, PORTS[0]);
const FLOWS: [(u16, Ipv4Addr, u16); 3] = [APP, SAME_SERVER, OTHER_SERVER];

/// The gNB's TEIDs: for the central anchor before and after, and for the UL CL.
const BEFORE: u32 = 0xC0;
const AFTER: u32 = 0xC1;
/// QoS flows of the anchors.
const CENTRAL_QFI: u8 = QFI;
const LOCAL_QFI: u8 = 5;

const APPLICATION_FILTER: &str = "permit out 17 from 198.51.100.1 5001 to assigned";
const SITE_FILTER: &str = "permit out ip from 198.51.100.2 to assigned";

fn ue(destination: bool) -> Option<UeIpAddress> {
    Some(UeIpAddress { ipv4: Some(UE_V4), destination, ..Default::default() })
}

/// Packets of the UE that come by a tunnel of this network instance.
fn from_tunnel(source_interface: SourceInterface, instance: &str, tunnel: u8) -> Pdi {
    let ue_ip_address = if source_interface == SourceInterface::Access { ue(false) } else { None };
    Pdi {
        source_interface,
        network_instance: Some(instance.into()),
        f_teid: Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(tunnel) }),
        ue_ip_address,
        ..Default::default()
    }
}

/// Packets of the UE that come by the UL CL's tunnel to the gNB, of which a filter describes those that are meant.
fn diverted(sessions: &Sessions, filter: &str) -> Pdi {
    let filter = SdfFilter { flow_description: Some(filter.into()), ..Default::default() };
    Pdi {
        // A CHOOSE ID is known in its own request only.
        f_teid: Some(FTeid::Assigned { teid: sessions.ul_cl_n3, ipv4: Some(UL_CL_N3), ipv6: None }),
        sdf_filters: vec![filter],
        ..from_tunnel(SourceInterface::Access, "ran", 1)
    }
}

fn to(
    id: u32,
    interface: DestinationInterface,
    instance: &str,
    tunnel: Option<(u32, Ipv4Addr)>,
) -> CreateFar {
    let mut far = forward(id, interface, tunnel);
    far.forwarding_parameters.as_mut().unwrap().network_instance = Some(instance.into());
    far
}

/// A FAR gets another tunnel, with an End Marker in the old one.
fn switch(id: u32, instance: &str, tunnel: (u32, Ipv4Addr)) -> SessionModificationRequest {
    let parameters = UpdateForwardingParameters {
        network_instance: Some(instance.into()),
        outer_header_creation: Some(OuterHeaderCreation::gtpu(tunnel.0, tunnel.1.into())),
        sm_req_flags: Some(SmReqFlags::SNDEM),
        ..Default::default()
    };
    let far = UpdateFar {
        far_id: FarId(id),
        update_forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

fn session(pdrs: Vec<CreatePdr>, fars: Vec<CreateFar>, qfi: Option<u8>) -> SessionEstablishmentRequest {
    let mark =
        |qfi| CreateQer { qer_id: QerId(1), qfi: Some(Qfi(qfi)), rqi: Some(Rqi::RQI), ..Default::default() };
    SessionEstablishmentRequest {
        create_pdrs: pdrs,
        create_fars: fars,
        create_qers: qfi.map(mark).into_iter().collect(),
        ..SessionEstablishmentRequest { create_pdrs: Vec::new(), ..establishment(1) }
    }
}

/// The session of an anchor, which sends into this tunnel and marks packets with a QoS flow.
fn anchor(instance: &str, down: (u32, Ipv4Addr), qfi: u8) -> SessionEstablishmentRequest {
    let from_network = Pdi {
        source_interface: SourceInterface::Core,
        network_instance: Some("internet".into()),
        ue_ip_address: ue(true),
        ..Default::default()
    };
    let pdrs = vec![
        pdr(1, 255, from_tunnel(SourceInterface::Access, instance, 1), 1, &[]),
        pdr(2, 255, from_network, 2, &[1]),
    ];
    let fars = vec![
        to(1, DestinationInterface::Core, "internet", None),
        to(2, DestinationInterface::Access, instance, Some(down)),
    ];
    session(pdrs, fars, Some(qfi))
}

/// The session of the UL CL with one anchor.
fn classifier(anchor: (u32, Ipv4Addr), gnb_teid: u32) -> SessionEstablishmentRequest {
    let pdrs = vec![
        pdr(1, 255, from_tunnel(SourceInterface::Access, "ran", 1), 1, &[]),
        pdr(2, 255, from_tunnel(SourceInterface::Core, "upfs", 2), 2, &[]),
    ];
    let fars = vec![
        to(1, DestinationInterface::Core, "upfs", Some(anchor)),
        to(2, DestinationInterface::Access, "ran", Some((gnb_teid, GNB_V4))),
    ];
    session(pdrs, fars, None)
}

fn teid_of(created: &[CreatedPdr], id: u16) -> u32 {
    match created.iter().find(|created| created.pdr_id == PdrId(id)).and_then(|created| created.f_teid) {
        Some(FTeid::Assigned { teid, .. }) => teid,
        other => panic!("PDR {id}: {other:?}"),
    }
}

impl Node {
    fn establish(&mut self, request: SessionEstablishmentRequest) -> (u64, Vec<CreatedPdr>) {
        match self.smf.ask(0, request) {
            Message::SessionEstablishmentResponse(response) => {
                assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
                (response.up_f_seid.unwrap().seid, response.created_pdrs)
            }
            other => panic!("{other:?}"),
        }
    }

    fn modify(&mut self, seid: u64, request: SessionModificationRequest) -> SessionModificationResponse {
        match self.smf.ask(seid, request) {
            Message::SessionModificationResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }

    fn change(&mut self, seid: u64, request: SessionModificationRequest) -> Vec<CreatedPdr> {
        let response = self.modify(seid, request);
        assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
        response.created_pdrs
    }

    /// Ends the session: packets up and down of its URR.
    fn end(&mut self, seid: u64) -> (u64, u64) {
        match self.smf.ask(seid, SessionDeletionRequest {}) {
            Message::SessionDeletionResponse(response) => {
                assert_eq!(response.cause, Cause::ACCEPTED);
                let volume = response.usage_reports[0].volume.unwrap();
                (volume.uplink_packets.unwrap(), volume.downlink_packets.unwrap())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The sessions of one UE at the three UPFs, and the tunnels between them.
#[derive(Default)]
struct Sessions {
    central: u64,
    /// The central anchor's tunnels for uplink packets, on N3 and on N9.
    central_n3: u32,
    central_n9: u32,
    ul_cl: u64,
    /// The UL CL's tunnels for uplink packets, and for those of the central anchor.
    ul_cl_n3: u32,
    ul_cl_n9: u32,
    local: u64,
}

fn gtpu(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::new(address.into(), 2152)
}

impl Branches {
    /// The UE has one anchor, and the gNB's tunnel leads there.
    fn without_classifier(&mut self) -> Sessions {
        let (central, created) = self.central.establish(anchor("ran", (BEFORE, GNB_AT_CENTRAL), CENTRAL_QFI));
        let central_n3 = teid_of(&created, 1);
        *self.gnb.uplink.lock().unwrap() = (gtpu(CENTRAL_N3), central_n3);
        Sessions { central, central_n3, ..Default::default() }
    }

    /// The UL CL is put between gNB and anchor (TS 23.502 §4.3.5.4): nothing is broken before its successor works.
    fn insert_classifier(&mut self, sessions: &mut Sessions) {
        let pdi = from_tunnel(SourceInterface::Access, "upfs", 2);
        let create_pdrs = vec![pdr(11, 255, pdi, 1, &[])];
        let request = SessionModificationRequest { create_pdrs, ..Default::default() };
        let created = self.central.change(sessions.central, request);
        sessions.central_n9 = teid_of(&created, 11);
        let (seid, created) = self.ul_cl.establish(classifier((sessions.central_n9, CENTRAL_N9), GNB_TEID));
        (sessions.ul_cl, sessions.ul_cl_n3) = (seid, teid_of(&created, 1));
        sessions.ul_cl_n9 = teid_of(&created, 2);
        self.central.change(sessions.central, switch(2, "upfs", (sessions.ul_cl_n9, UL_CL_N9)));
        *self.gnb.uplink.lock().unwrap() = (gtpu(UL_CL_N3), sessions.ul_cl_n3);
    }

    /// A second anchor, for the packets of these filters: first the way back, then the anchor, then the rules.
    fn insert_branch(&mut self, sessions: &mut Sessions, filters: &[(u16, &str)]) {
        let pdi = from_tunnel(SourceInterface::Core, "upfs", 3);
        let create_pdrs = vec![pdr(21, 255, pdi, 2, &[])];
        let request = SessionModificationRequest { create_pdrs, ..Default::default() };
        let back = teid_of(&self.ul_cl.change(sessions.ul_cl, request), 21);
        let (local, created) = self.local.establish(anchor("upfs", (back, UL_CL_N9), LOCAL_QFI));
        sessions.local = local;
        let far = to(8, DestinationInterface::Core, "upfs", Some((teid_of(&created, 1), LOCAL_N9)));
        let request = SessionModificationRequest { create_fars: vec![far], ..Default::default() };
        self.ul_cl.change(sessions.ul_cl, request);
        filters.iter().for_each(|(id, filter)| self.divert(sessions, *id, filter));
    }

    /// The packets of another filter take the branch, too.
    fn divert(&mut self, sessions: &Sessions, id: u16, filter: &str) {
        let create_pdrs = vec![pdr(id, 10, diverted(sessions, filter), 8, &[])];
        let request = SessionModificationRequest { create_pdrs, ..Default::default() };
        self.ul_cl.change(sessions.ul_cl, request);
    }

    /// The branch ends: its packets go to the central anchor, with an End Marker behind the last one to the local anchor.
    fn remove_branch(&mut self, sessions: &Sessions, pdrs: &[u16]) {
        self.ul_cl.change(sessions.ul_cl, switch(8, "upfs", (sessions.central_n9, CENTRAL_N9)));
        let request = SessionModificationRequest {
            remove_pdrs: pdrs.iter().map(|id| RemovePdr { pdr_id: PdrId(*id) }).collect(),
            remove_fars: vec![RemoveFar { far_id: FarId(8) }],
            ..Default::default()
        };
        self.ul_cl.change(sessions.ul_cl, request);
    }

    /// An End Marker comes to the UL CL, which sends none on.
    #[track_caller]
    fn keeps_end_marker(&mut self, send: impl FnOnce(&mut Self)) {
        let count = |network: &Self| network.ul_cl.count("/gtpu/other_signalling");
        let before = count(self);
        send(self);
        wait_for("the End Marker at the UL CL", || count(self) > before);
        assert_eq!(self.gnb.ask(SAME_SERVER), CENTRAL);
        let markers = self.gnb.received().into_iter().filter(|it| matches!(it, Received::EndMarker { .. }));
        assert_eq!(markers.collect::<Vec<_>>(), [Received::EndMarker { teid: BEFORE }]);
    }

    /// The anchor serves the gNB without UL CL again.
    fn remove_classifier(&mut self, sessions: &Sessions) {
        self.central.change(sessions.central, switch(2, "ran", (AFTER, GNB_AT_CENTRAL)));
        *self.gnb.uplink.lock().unwrap() = (gtpu(CENTRAL_N3), sessions.central_n3);
    }

    /// Waits until the gNB has an End Marker in this tunnel, and checks that no packet is behind it.
    #[track_caller]
    fn ended(&self, ended: u32) {
        let is_marker = |received: &Received| *received == Received::EndMarker { teid: ended };
        wait_for("an End Marker", || self.gnb.received().iter().any(is_marker));
        let received = self.gnb.received();
        let at = received.iter().position(is_marker).unwrap();
        let late = received[at + 1..].iter().filter(|received| match received {
            Received::Answer { teid, .. } | Received::EndMarker { teid } => *teid == ended,
        });
        assert_eq!(late.count(), 0, "behind the End Marker in tunnel {ended:#x}");
    }
}

/// DIV-3: inserting and removing the UL CL, and a branch of it, loses nothing and repeats nothing.
#[test]
fn an_uplink_classifier_comes_and_goes_under_traffic() {
    let mut network = Branches::new();
    let mut sessions = network.without_classifier();
    assert_eq!(FLOWS.map(|flow| network.gnb.ask(flow)), [CENTRAL; 3]);

    let traffic = Traffic::start(&network.gnb, &FLOWS);
    let asked = |network: &Branches| FLOWS.map(|flow| network.gnb.ask(flow));
    network.insert_classifier(&mut sessions);
    assert_eq!(asked(&network), [CENTRAL; 3]);
    network.insert_branch(&mut sessions, &[(20, APPLICATION_FILTER)]);
    assert_eq!(asked(&network), [LOCAL, CENTRAL, CENTRAL], "by application");
    network.divert(&sessions, 22, SITE_FILTER);
    assert_eq!(asked(&network), [LOCAL, CENTRAL, LOCAL], "by destination");
    network.remove_branch(&sessions, &[20, 22]);
    assert_eq!(asked(&network), [CENTRAL; 3]);
    // The local anchor ends its path, too; but what the gNB gets by the UL CL's tunnel goes on.
    network.keeps_end_marker(|network| {
        network.local.change(sessions.local, switch(2, "upfs", (0x77, UL_CL_N9)));
    });
    let remove_pdrs = vec![RemovePdr { pdr_id: PdrId(21) }];
    network.ul_cl.change(sessions.ul_cl, SessionModificationRequest { remove_pdrs, ..Default::default() });
    // Nobody but the anchor can end the tunnel.
    network.keeps_end_marker(|network| network.gnb.send_end_marker(UL_CL_N9, sessions.ul_cl_n9));
    network.keeps_end_marker(|network| network.gnb.send_end_marker(UL_CL_N3, sessions.ul_cl_n9));
    network.remove_classifier(&sessions);
    assert_eq!(asked(&network), [CENTRAL; 3]);
    let sent = traffic.stop();

    assert!(sent > 100, "{sent} packets of each flow");
    let path = |networks: &[u8]| networks.to_vec();
    let there_and_back = path(&[CENTRAL, LOCAL, CENTRAL]);
    let answers = network.answered_once(&FLOWS, sent);
    assert_eq!(answers, [there_and_back.clone(), path(&[CENTRAL]), there_and_back]);
    network.ended(BEFORE);
    // The anchor's End Marker behind its last packet by the UL CL has come to the gNB.
    network.ended(GNB_TEID);
    for (name, node) in [("UL CL", &network.ul_cl), ("central", &network.central), ("local", &network.local)]
    {
        assert_eq!(node.drops(), 0, "{name}: {}", node.handle.stats()["drops"]);
    }
}

/// Each packet is counted once in each UPF that it passes, and marked by its anchor. A handover ends the old tunnel once.
#[test]
fn counts_marks_and_the_handover_of_an_uplink_classifier() {
    const EACH: u32 = 50;
    let mut network = Branches::new();
    let mut sessions = network.without_classifier();
    network.insert_classifier(&mut sessions);
    network.insert_branch(&mut sessions, &[(20, APPLICATION_FILTER)]);
    // Some packets leave at the UL CL itself, to its own data network.
    let from_network = Pdi {
        source_interface: SourceInterface::Core,
        network_instance: Some("internet".into()),
        ue_ip_address: ue(true),
        ..Default::default()
    };
    let request = SessionModificationRequest {
        create_pdrs: vec![
            pdr(30, 10, diverted(&sessions, SITE_FILTER), 9, &[]),
            pdr(31, 255, from_network, 2, &[]),
        ],
        create_fars: vec![to(9, DestinationInterface::Core, "internet", None)],
        ..Default::default()
    };
    network.ul_cl.change(sessions.ul_cl, request);

    let send = |network: &Branches, numbers: std::ops::Range<u32>| {
        for number in numbers {
            FLOWS.iter().for_each(|flow| network.gnb.send(*flow, number));
            net::time::sleep_thread(std::time::Duration::from_micros(200));
        }
    };
    let paths = [vec![LOCAL], vec![CENTRAL], vec![UL_CL]];
    send(&network, 0..EACH);
    assert_eq!(network.answered_once(&FLOWS, EACH), paths);
    // Which tunnel, and what its PDU Session Container says.
    for received in network.gnb.received() {
        let Received::Answer { teid, container, from, .. } = received else { continue };
        let marked = |qfi| Some(PduSession::Downlink { qfi, rqi: true, ppi: None });
        let expected = match from {
            CENTRAL => marked(CENTRAL_QFI),
            LOCAL => marked(LOCAL_QFI),
            // No QER marks these.
            _ => None,
        };
        assert_eq!((teid, container), (GNB_TEID, expected), "from {}", char::from(from));
    }
    let total = u64::from(EACH) * 2;

    // To another gNB, which has the same address here.
    network.ul_cl.change(sessions.ul_cl, switch(2, "ran", (0xB1, GNB_V4)));
    send(&network, EACH..2 * EACH);
    assert_eq!(network.answered_once(&FLOWS, 2 * EACH), paths);
    network.ended(GNB_TEID);
    let tunnels = network.gnb.received();
    let new = |received: &&Received| matches!(received, Received::Answer { teid: 0xB1, .. });
    assert_eq!(tunnels.iter().filter(new).count() as u64, total / 2 * 3);

    assert_eq!(network.ul_cl.end(sessions.ul_cl), (total * 3, total * 3));
    assert_eq!(network.central.end(sessions.central), (total, total));
    assert_eq!(network.local.end(sessions.local), (total, total));
}

/// Wrong rules are refused as a whole, with the cause of the standard, and packets go on as before.
#[test]
fn wrong_branches_are_refused_and_change_nothing() {
    let mut network = Branches::new();
    let mut sessions = network.without_classifier();
    network.insert_classifier(&mut sessions);
    network.insert_branch(&mut sessions, &[(20, APPLICATION_FILTER)]);
    let traffic = Traffic::start(&network.gnb, &FLOWS);
    let branch = |filter: &str, far: CreateFar| SessionModificationRequest {
        create_pdrs: vec![pdr(40, 1, diverted(&sessions, filter), far.far_id.0, &[])],
        create_fars: vec![far],
        ..Default::default()
    };
    let n9 = |teid, peer| to(10, DestinationInterface::Core, "upfs", Some((teid, peer)));
    let mut other_family = to(10, DestinationInterface::Core, "upfs", None);
    other_family.forwarding_parameters.as_mut().unwrap().outer_header_creation =
        Some(OuterHeaderCreation::gtpu(7, "fd00:211::2".parse().unwrap()));
    let wrong = [
        ("no anchor", branch(SITE_FILTER, n9(7, Ipv4Addr::UNSPECIFIED)), Cause::MANDATORY_IE_INCORRECT),
        ("TEID 0", branch(SITE_FILTER, n9(0, LOCAL_N9)), Cause::MANDATORY_IE_INCORRECT),
        ("the UL CL itself", branch(SITE_FILTER, n9(7, UL_CL_N9)), Cause::MANDATORY_IE_INCORRECT),
        ("IPv6 on an N9 of IPv4", branch(SITE_FILTER, other_family), Cause::MANDATORY_IE_INCORRECT),
        (
            "a filter that is none",
            branch("permit out 17 form nowhere", n9(7, LOCAL_N9)),
            Cause::MANDATORY_IE_INCORRECT,
        ),
        (
            "an unknown network instance",
            branch(SITE_FILTER, to(10, DestinationInterface::Core, "elsewhere", Some((7, LOCAL_N9)))),
            Cause(73),
        ),
    ];
    for (what, request, cause) in wrong {
        let response = network.ul_cl.modify(sessions.ul_cl, request);
        assert_eq!(response.cause, cause, "{what}: {response:?}");
        assert!(response.created_pdrs.is_empty(), "{what}");
    }
    // A good rule beside a bad one is not installed either.
    let mut request = branch(SITE_FILTER, n9(7, LOCAL_N9));
    request.create_pdrs.push(pdr(41, 1, diverted(&sessions, APPLICATION_FILTER), 99, &[]));
    let response = network.ul_cl.modify(sessions.ul_cl, request);
    assert_ne!(response.cause, Cause::ACCEPTED, "a FAR that does not exist");
    assert_eq!(response.failed_rule_id, Some(FailedRuleId::Pdr(41)), "{response:?}");
    let sent = traffic.stop();
    assert_eq!(network.answered_once(&FLOWS, sent), [vec![LOCAL], vec![CENTRAL], vec![CENTRAL]]);
}
