//! S-GW and P-GW apart, over S5/S8, between a scripted MME and a scripted UPF for each gateway.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod common;

use std::time::Duration;

use common::*;
use epc::Node;
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerInCreateResponse, BearerToBeCreated};
use serde_json::json;

const PGW: u8 = 5;
const SGW: u8 = 15;
const OTHER_SGW: u8 = 25;

/// A P-GW and two S-GWs.
struct World {
    pgw: Core,
    sgw: Core,
    other_sgw: Core,
    mme: Mme,
}

impl World {
    async fn start() -> Self {
        Self::with(Node::Pgw).await
    }

    /// `first` also is S-GW, or not.
    async fn with(first: Node) -> Self {
        let network = Network::new();
        let pgw = Core::site(network, first, PGW, |_| {}).await;
        let sgw = Core::site(network, Node::Sgw, SGW, |_| {}).await;
        let other_sgw = Core::site(network, Node::Sgw, OTHER_SGW, |_| {}).await;
        let mme = sgw.mme(6).await;
        Self { pgw, sgw, other_sgw, mme }
    }

    fn pgw_f_teid(&self, teid: u32) -> FTeid {
        FTeid::new(InterfaceType::S5S8_PGW_GTPC, teid, self.pgw.network.ip(PGW))
    }

    fn create_request(&self, imsi: &str, teid: u32) -> CreateSessionRequest {
        CreateSessionRequest { pgw_f_teid: Some(self.pgw_f_teid(0)), ..self.mme.create_request(imsi, teid) }
    }

    /// Attaches a UE by the first S-GW. Returns the S-GW's TEID and answer.
    async fn attach(&mut self, imsi: &str, teid: u32) -> (u32, CreateSessionResponse) {
        let created = self.mme.create(self.create_request(imsi, teid)).await;
        assert_eq!(created.cause.value, CauseValue::ACCEPTED, "{created:?}");
        let gateway = created.sender_f_teid.unwrap().teid;
        assert_eq!(self.mme.connect(gateway, 5, teid).await.cause.value, CauseValue::ACCEPTED);
        (gateway, created)
    }

    /// What an MME sends to the S-GW to which a UE moves.
    fn move_request(
        &self,
        created: &CreateSessionResponse,
        indication: Option<Indication>,
        enb: Option<u32>,
    ) -> CreateSessionRequest {
        let bearer = BearerToBeCreated {
            s5s8u_pgw_f_teid: created.bearers_created[0].s5s8u_pgw_f_teid,
            s1u_enb_f_teid: enb.map(|teid| FTeid::new(InterfaceType::S1U_ENB, teid, self.pgw.network.ip(9))),
            ..default_bearer(5)
        };
        CreateSessionRequest {
            pgw_f_teid: created.pgw_f_teid,
            indication,
            linked_ebi: Some(Ebi(5)),
            paa: created.paa,
            bearers_to_be_created: vec![bearer],
            ..self.mme.create_request(IMSI, 1)
        }
    }

    async fn move_to(&mut self, host: u8, request: CreateSessionRequest) -> CreateSessionResponse {
        self.mme.gateway = self.pgw.network.gateway(host);
        self.mme.create(request).await
    }
}

/// The tunnel into which a FAR forwards, and whether the former far end gets an End Marker.
fn to_tunnel(asked: &[Asked], far: u32) -> Option<(u32, bool)> {
    asked.iter().rev().find_map(|asked| match asked {
        Asked::Establish(_, request) => {
            let far = request.create_fars.iter().find(|create| create.far_id.0 == far)?;
            let to = far.forwarding_parameters.as_ref()?;
            Some((to.outer_header_creation?.teid?, false))
        }
        Asked::Modify(_, request) => {
            let far = request.update_fars.iter().find(|update| update.far_id.0 == far)?;
            let to = far.update_forwarding_parameters.as_ref()?;
            let end_marker = to.sm_req_flags == Some(pfcp::SmReqFlags::SNDEM);
            Some((to.outer_header_creation?.teid?, end_marker))
        }
        Asked::Delete(_) => None,
    })
}

/// TEIDs that the scripted UPF gives, by CHOOSE ID: S1-U of an S-GW, or S5/S8-U of a P-GW, and S5/S8-U of an S-GW.
const ACCESS: u32 = 16;
const S5: u32 = 32;

fn teid(upf: &Upf, choose: u32) -> u32 {
    assert_eq!(upf.sessions(), 1);
    upf.only_session() as u32 * 256 + choose
}

#[tokio::test]
async fn attach_idle_paging_and_detach() {
    let mut world = World::start().await;
    let (gateway, created) = world.attach(IMSI, 0x77).await;
    let address = created.paa.and_then(Paa::ipv4).unwrap();
    assert!(address.octets().starts_with(&[10, 45]), "the P-GW's");
    assert_eq!(created.pgw_f_teid.unwrap().address(), Some(world.pgw.network.ip(PGW)));
    let (pgw_asked, sgw_asked) = (world.pgw.upf.asked(), world.sgw.upf.asked());
    // eNB ... S-GW ... P-GW, both ways.
    let (pgw_own, sgw_own) = (teid(&world.pgw.upf, ACCESS), teid(&world.sgw.upf, S5));
    let bearer = &created.bearers_created[0];
    assert_eq!(bearer.s1u_sgw_f_teid.unwrap().teid, teid(&world.sgw.upf, ACCESS));
    assert_eq!(bearer.s5s8u_pgw_f_teid.unwrap().teid, pgw_own);
    assert_eq!(to_tunnel(&sgw_asked, 64), Some((pgw_own, false)), "uplink");
    assert_eq!(to_tunnel(&pgw_asked, 16), Some((sgw_own, false)), "downlink to the S-GW");
    assert_eq!(to_tunnel(&sgw_asked, 16), Some((0x77, false)), "downlink to the eNB");
    let Asked::Establish(_, of_sgw) = &sgw_asked[0] else { panic!("{sgw_asked:?}") };
    assert!(of_sgw.create_qers.is_empty() && of_sgw.create_pdrs.iter().all(|pdr| pdr.pdi.f_teid.is_some()));
    let shown = &world.pgw.sessions().await[0];
    assert_eq!(shown["sgw"], json!(world.sgw.network.ip(SGW).to_string()));
    assert_eq!(world.sgw.sessions().await[0]["ipv4"], json!(address.to_string()));

    // Idle mode is the S-GW's matter.
    assert_eq!(world.mme.release(gateway).await, CauseValue::ACCEPTED);
    world.sgw.upf.report_data();
    let (id, _, message) = world.mme.request().await;
    let Message::DownlinkDataNotification(notification) = message else { panic!("{message:?}") };
    assert_eq!(notification.ebis, [Ebi(5)]);
    let cause = CauseValue::ACCEPTED.into();
    let ack = DownlinkDataNotificationAcknowledge { cause, ..Default::default() };
    world.mme.respond(id, gateway, ack);
    world.mme.connect(gateway, 5, 0x88).await;
    assert_eq!(to_tunnel(&world.sgw.upf.asked(), 16), Some((0x88, false)));
    assert!(world.pgw.upf.asked().is_empty());

    assert_eq!(world.mme.delete(gateway, 5).await, CauseValue::ACCEPTED);
    assert_eq!((world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 0));
    assert_eq!((world.sgw.sessions().await.len(), world.pgw.sessions().await.len()), (0, 0));
}

#[tokio::test]
async fn what_the_pgw_refuses_the_mme_hears_and_nothing_stays() {
    let mut world = World::start().await;
    let unknown = CreateSessionRequest { apn: "nowhere".into(), ..world.create_request(IMSI, 1) };
    let refused = world.mme.create(unknown).await.cause;
    assert_eq!((refused.value, refused.from_remote), (CauseValue::UNKNOWN_APN, true));
    // One that nobody answers for.
    let nobody = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, world.pgw.network.ip(99));
    let request = CreateSessionRequest { pgw_f_teid: Some(nobody), ..world.create_request(IMSI, 1) };
    assert_eq!(world.mme.create(request).await.cause.value, CauseValue::REMOTE_PEER_NOT_RESPONDING);
    // The S-GW is no P-GW, and the P-GW no S-GW.
    let own = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, world.pgw.network.ip(SGW));
    let request = CreateSessionRequest { pgw_f_teid: Some(own), ..world.create_request(IMSI, 1) };
    assert_eq!(world.mme.create(request).await.cause.value, CauseValue::SERVICE_NOT_SUPPORTED);
    let request = world.create_request(IMSI, 1);
    assert_eq!(world.move_to(PGW, request).await.cause.value, CauseValue::SERVICE_NOT_SUPPORTED);
    assert_eq!((world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 0));
    assert_eq!(world.sgw.sessions().await.len(), 0);
    // The P-GW's UPF has failed: the S-GW's part goes as well.
    world.mme.gateway = world.pgw.network.gateway(SGW);
    world.pgw.upf.refuse(75);
    let refused = world.mme.create(world.create_request(IMSI, 1)).await.cause;
    assert_eq!(refused.value, CauseValue::NO_RESOURCES);
    assert_eq!((world.sgw.upf.sessions(), world.sgw.sessions().await.len()), (0, 0));
}

#[tokio::test]
async fn a_dedicated_bearer_passes_the_sgw_both_ways() {
    let mut world = World::start().await;
    let (gateway, _) = world.attach(IMSI, 1).await;
    world.sgw.upf.asked();
    world.pgw.upf.asked();
    let body = json!({"linked_ebi": 5, "qci": 8, "protocol": 17, "remote": "9.9.9.9", "remote_port": 5060});
    let at_sgw = world.sgw.oam("POST", "/ues/999700000000001/bearers", Some(body.clone())).await;
    assert!(at_sgw.unwrap_err().contains("68"), "bearers are the P-GW's matter");
    let create = world.pgw.oam("POST", "/ues/999700000000001/bearers", Some(body));
    let accept = async {
        let (id, to, message) = world.mme.request().await;
        let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
        assert_eq!((to, request.linked_ebi), (1, Ebi(5)));
        let own = request.bearers[0].s1u_sgw_f_teid;
        assert_eq!(own.and_then(|own| own.address()), Some(world.sgw.upf.ip), "the S-GW's own tunnel");
        let bearer = BearerInCreateResponse {
            ebi: Ebi(6),
            cause: CauseValue::ACCEPTED.into(),
            s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, 0x66, world.sgw.network.ip(9))),
            s1u_sgw_f_teid: own,
            ..Default::default()
        };
        let cause = CauseValue::ACCEPTED.into();
        let answer = CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() };
        world.mme.respond(id, gateway, answer);
        world.mme.event_within(Duration::from_millis(50)).await;
    };
    let (created, ()) = tokio::join!(create, accept);
    assert_eq!(created, Ok(json!({"ebi": 6})));
    let (sgw_asked, pgw_asked) = (world.sgw.upf.asked(), world.pgw.upf.asked());
    let (sgw_own, pgw_own) = (teid(&world.sgw.upf, S5 + 1), teid(&world.pgw.upf, ACCESS + 1));
    assert_eq!(to_tunnel(&sgw_asked, 17), Some((0x66, false)));
    assert_eq!(to_tunnel(&pgw_asked, 17), Some((sgw_own, false)));
    let Asked::Modify(_, added) = &sgw_asked[0] else { panic!("{sgw_asked:?}") };
    let to_pgw = added.create_fars.iter().find(|far| far.far_id.0 == 65).unwrap();
    let header = to_pgw.forwarding_parameters.as_ref().unwrap().outer_header_creation.unwrap();
    assert_eq!(header.teid, Some(pgw_own));

    // The radio network gives it up: the command passes, and its request comes back with the command's number.
    let command = DeleteBearerCommand {
        bearers: vec![gtpv2c::BearerInDeleteCommand { ebi: Ebi(6), ..Default::default() }],
        ..Default::default()
    };
    world.mme.send(gateway, command);
    let (id, _, message) = world.mme.request().await;
    let Message::DeleteBearerRequest(request) = message else { panic!("{message:?}") };
    assert_eq!(request.ebis, [Ebi(6)]);
    let cause = CauseValue::ACCEPTED.into();
    world.mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
    let one_bearer = async |core: &Core| core.sessions().await[0]["bearers"].as_array().unwrap().len() == 1;
    world.pgw.until(async || one_bearer(&world.sgw).await && one_bearer(&world.pgw).await).await;
    let removed = |asked: &[Asked]| match asked.last() {
        Some(Asked::Modify(_, request)) => (request.remove_pdrs.len(), request.remove_fars.len()),
        _ => (0, 0),
    };
    assert_eq!(removed(&world.sgw.upf.asked()), (2, 2));
    assert_eq!(removed(&world.pgw.upf.asked()), (2, 1));
    // A bearer that is no more: the P-GW is not asked.
    let command = DeleteBearerCommand {
        bearers: vec![gtpv2c::BearerInDeleteCommand { ebi: Ebi(6), ..Default::default() }],
        ..Default::default()
    };
    let refused = world.mme.ask(gateway, command).await;
    let Ok((_, Message::DeleteBearerFailureIndication(indication))) = refused else { panic!("{refused:?}") };
    assert_eq!(indication.cause.value, CauseValue::CONTEXT_NOT_FOUND);
}

#[tokio::test]
async fn a_ue_asks_for_a_bearer_which_the_mme_refuses() {
    let mut world = World::start().await;
    let (gateway, _) = world.attach(IMSI, 1).await;
    let filter = tft::PacketFilter {
        id: 0,
        direction: tft::Direction::Bidirectional,
        precedence: 9,
        components: vec![tft::Component::Protocol(6), tft::Component::RemotePort(80)],
    };
    let tad = tft::Tft { operation: tft::Operation::Create(vec![filter]), ..Default::default() };
    let ask = |flow| BearerResourceCommand {
        linked_ebi: Ebi(5),
        pti: Pti(7),
        flow_qos: Some(flow),
        tad: Some(tad.encode().unwrap()),
        ..Default::default()
    };
    world.mme.send(gateway, ask(FlowQos { qci: 8, ..Default::default() }));
    let (id, _, message) = world.mme.request().await;
    let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
    assert_eq!(request.pti, Some(Pti(7)));
    let cause = CauseValue::UE_REFUSES.into();
    world.mme.respond(id, gateway, CreateBearerResponse { cause, ..Default::default() });
    let one_bearer = async |core: &Core| core.sessions().await[0]["bearers"].as_array().unwrap().len() == 1;
    world.pgw.until(async || one_bearer(&world.sgw).await && one_bearer(&world.pgw).await).await;
    // The P-GW itself refuses what this UE may not have.
    let refused = world.mme.ask(gateway, ask(FlowQos { qci: 1, ..Default::default() })).await;
    let Ok((_, Message::BearerResourceFailureIndication(answer))) = refused else { panic!("{refused:?}") };
    assert_eq!((answer.cause.value, answer.pti), (CauseValue::SERVICE_DENIED, Pti(7)));
}

/// Tracking area update or X2 handover with change of S-GW (TS 23.401 §5.3.3.1, §5.5.1.1.3).
#[tokio::test]
async fn a_ue_moves_to_another_sgw_at_once() {
    let mut world = World::start().await;
    let (old, created) = world.attach(IMSI, 1).await;
    world.pgw.upf.asked();
    let request = world.move_request(&created, Some(Indication::OI), Some(0x99));
    let moved = world.move_to(OTHER_SGW, request).await;
    assert_eq!(moved.cause.value, CauseValue::ACCEPTED, "{moved:?}");
    let (new_s5, pgw_own) = (teid(&world.other_sgw.upf, S5), teid(&world.pgw.upf, ACCESS));
    assert_eq!(
        to_tunnel(&world.pgw.upf.asked(), 16),
        Some((new_s5, true)),
        "with End Marker to the old S-GW"
    );
    let asked = world.other_sgw.upf.asked();
    assert_eq!((to_tunnel(&asked, 16), to_tunnel(&asked, 64)), (Some((0x99, false)), Some((pgw_own, false))));
    // The old S-GW forgets the UE with all it has, without the P-GW.
    world.mme.gateway = world.pgw.network.gateway(SGW);
    let all = DeleteSessionRequest { indication: Some(Indication::SI), ..Default::default() };
    let Ok((_, Message::DeleteSessionResponse(answer))) = world.mme.ask(old, all).await else { panic!() };
    assert_eq!(answer.cause.value, CauseValue::ACCEPTED);
    assert_eq!((world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 1));
    // The old S-GW has no say any more, the new one has.
    world.mme.gateway = world.pgw.network.gateway(OTHER_SGW);
    assert_eq!(world.mme.delete(moved.sender_f_teid.unwrap().teid, 5).await, CauseValue::ACCEPTED);
    assert_eq!((world.other_sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 0));
}

/// An idle UE that moves is paged by its new S-GW.
#[tokio::test]
async fn an_idle_ue_that_has_moved_is_paged_by_its_new_sgw() {
    let mut world = World::start().await;
    let (old, created) = world.attach(IMSI, 1).await;
    world.mme.release(old).await;
    let request = world.move_request(&created, Some(Indication::OI), None);
    let moved = world.move_to(OTHER_SGW, request).await;
    assert_eq!(moved.cause.value, CauseValue::ACCEPTED, "{moved:?}");
    let asked = world.other_sgw.upf.asked();
    let buffer = pfcp::ApplyAction::BUFF | pfcp::ApplyAction::NOCP;
    let Some(Asked::Modify(_, change)) = asked.last() else { panic!("{asked:?}") };
    assert_eq!(change.update_fars[0].apply_action, Some(buffer));
    world.other_sgw.upf.report_data();
    let (_, _, message) = world.mme.request().await;
    assert!(matches!(message, Message::DownlinkDataNotification(_)), "{message:?}");
}

/// S1 handover (TS 23.401 §5.5.1.2.2): the packets go to the old S-GW until the UE is at the new eNB.
#[tokio::test]
async fn a_handover_that_is_prepared_changes_nothing_until_the_ue_is_there() {
    let mut world = World::start().await;
    let (_, created) = world.attach(IMSI, 1).await;
    world.pgw.upf.asked();
    let request = world.move_request(&created, None, None);
    let moved = world.move_to(OTHER_SGW, request).await;
    assert_eq!(moved.cause.value, CauseValue::ACCEPTED, "{moved:?}");
    assert!(world.pgw.upf.asked().is_empty(), "only prepared");
    let new = moved.sender_f_teid.unwrap().teid;
    assert_eq!(world.mme.connect(new, 5, 0x99).await.cause.value, CauseValue::ACCEPTED);
    let new_s5 = teid(&world.other_sgw.upf, S5);
    assert_eq!(to_tunnel(&world.pgw.upf.asked(), 16), Some((new_s5, true)));
    // Once only.
    world.mme.connect(new, 5, 0x9a).await;
    assert!(world.pgw.upf.asked().is_empty());
    // The one that is not its S-GW any more cannot end it, though it has not been told.
    let pgw = created.pgw_f_teid.unwrap().teid;
    let mut intruder =
        Mme::start(world.pgw.network.ip(66), world.pgw.network.gateway(PGW), world.pgw.network.ip(9), 1)
            .await;
    assert_eq!(intruder.delete(pgw, 5).await, CauseValue::INVALID_PEER);
    assert_eq!(world.pgw.sessions().await.len(), 1);
}

/// A UE of a gateway that is both moves to an S-GW alone, and comes back.
#[tokio::test]
async fn a_ue_leaves_a_gateway_that_is_both_and_comes_back() {
    let mut world = World::with(Node::Spgw).await;
    world.mme.gateway = world.pgw.network.gateway(PGW);
    let (old, created) = world.attach(IMSI, 1).await;
    assert_eq!(world.pgw.sessions().await[0]["sgw"], json!(null));
    world.pgw.upf.asked();
    let request = world.move_request(&created, Some(Indication::OI), Some(0x99));
    let moved = world.move_to(SGW, request.clone()).await;
    assert_eq!(moved.cause.value, CauseValue::ACCEPTED, "{moved:?}");
    let sgw_s5 = teid(&world.sgw.upf, S5);
    assert_eq!(to_tunnel(&world.pgw.upf.asked(), 16), Some((sgw_s5, true)));
    world.mme.gateway = world.pgw.network.gateway(PGW);
    assert_eq!(world.mme.delete_as(old, 5, None).await, CauseValue::ACCEPTED);
    assert_eq!(world.pgw.sessions().await[0]["sgw"], json!(world.sgw.network.ip(SGW).to_string()));
    // Back, with the P-GW's tunnels as the S-GW knows them.
    let back = world.move_request(&moved, Some(Indication::OI), Some(0xaa));
    assert_eq!(
        (back.pgw_f_teid, &back.bearers_to_be_created[0].s5s8u_pgw_f_teid),
        (created.pgw_f_teid, &created.bearers_created[0].s5s8u_pgw_f_teid)
    );
    let here = world.move_to(PGW, back).await;
    assert_eq!((here.cause.value, here.paa), (CauseValue::ACCEPTED, created.paa), "{here:?}");
    assert_eq!(to_tunnel(&world.pgw.upf.asked(), 16), Some((0xaa, true)));
    world.mme.gateway = world.pgw.network.gateway(SGW);
    assert_eq!(world.mme.delete_as(moved.sender_f_teid.unwrap().teid, 5, None).await, CauseValue::ACCEPTED);
    assert_eq!((world.sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 1));
    world.mme.gateway = world.pgw.network.gateway(PGW);
    assert_eq!(world.mme.delete(here.sender_f_teid.unwrap().teid, 5).await, CauseValue::ACCEPTED);
    assert_eq!(world.pgw.sessions().await.len(), 0);
}

#[tokio::test]
async fn a_restarted_pgw_ends_what_it_has_lost_and_the_mme_hears_it() {
    let mut world = World::start().await;
    let (gateway, _) = world.attach(IMSI, 1).await;
    world.mme.event_within(Duration::from_millis(300)).await;
    world.pgw.restart_gateway().await;
    // Another UE, for whom the P-GW's answer has its new counter.
    world.attach("999700000000002", 2).await;
    let (id, to, message) = world.mme.request().await;
    let Message::DeleteBearerRequest(request) = message else { panic!("{message:?}") };
    assert_eq!((to, request.linked_ebi), (1, Some(Ebi(5))));
    assert_eq!(request.cause.map(|cause| cause.value), Some(CauseValue::REACTIVATION_REQUESTED));
    let cause = CauseValue::ACCEPTED.into();
    world.mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
    world.pgw.until(async || world.sgw.sessions().await.len() == 1).await;
    assert_eq!(world.sgw.sessions().await[0]["imsi"], "999700000000002");
}

#[tokio::test]
async fn a_restarted_sgw_ends_what_it_has_lost_at_the_pgw() {
    let mut world = World::start().await;
    world.attach(IMSI, 1).await;
    world.mme.event_within(Duration::from_millis(300)).await;
    world.sgw.restart_gateway().await;
    world.attach("999700000000002", 2).await;
    world.pgw.until(async || world.pgw.sessions().await.len() == 1).await;
    assert_eq!(world.pgw.sessions().await[0]["imsi"], "999700000000002");
}

#[tokio::test]
async fn a_restarted_mme_ends_its_ues_at_the_pgw_as_well() {
    let mut world = World::start().await;
    world.attach(IMSI, 1).await;
    world.mme.event_within(Duration::from_millis(300)).await;
    world.mme.restart(2);
    let fresh =
        CreateSessionRequest { recovery: Some(Recovery(2)), ..world.create_request("999700000000002", 2) };
    assert!(world.mme.create(fresh).await.cause.is_accepted());
    for _ in 0..50 {
        world.mme.event_within(Duration::from_millis(100)).await;
        if world.pgw.sessions().await.len() == 1 && world.sgw.sessions().await.len() == 1 {
            return assert_eq!(world.pgw.sessions().await[0]["imsi"], "999700000000002");
        }
    }
    panic!("{:?}", world.pgw.sessions().await);
}

/// The user plane of the P-GW has lost a tunnel: the UE asks for another PDN connection (TS 23.007 §22).
#[tokio::test]
async fn a_tunnel_that_the_pgw_has_lost_ends_the_pdn_connection() {
    let mut world = World::start().await;
    world.attach(IMSI, 1).await;
    let lost = pfcp::FTeid::Assigned {
        teid: teid(&world.pgw.upf, ACCESS),
        ipv4: match world.pgw.upf.ip {
            std::net::IpAddr::V4(v4) => Some(v4),
            std::net::IpAddr::V6(_) => None,
        },
        ipv6: None,
    };
    world.sgw.upf.report(pfcp::message::SessionReportRequest {
        report_type: pfcp::ReportType::ERIR,
        error_indication_report: Some(pfcp::ErrorIndicationReport { remote_f_teids: vec![lost] }),
        ..Default::default()
    });
    let (_, _, message) = world.mme.request().await;
    let Message::DeleteBearerRequest(request) = message else { panic!("{message:?}") };
    assert_eq!(request.linked_ebi, Some(Ebi(5)));
    world
        .pgw
        .until(async || world.sgw.sessions().await.is_empty() && world.pgw.sessions().await.is_empty())
        .await;
}

/// A restarted UPF of an S-GW gets both tunnels of each bearer again.
#[tokio::test]
async fn a_restarted_upf_of_the_sgw_gets_both_tunnels_again() {
    let mut world = World::start().await;
    world.attach(IMSI, 1).await;
    let own = [teid(&world.sgw.upf, ACCESS), teid(&world.sgw.upf, S5)];
    world.sgw.upf.asked();
    world.sgw.upf.restart().await;
    world.pgw.until(async || world.sgw.upf.sessions() == 1).await;
    let asked = world.sgw.upf.asked();
    let Some(Asked::Establish(_, again)) = asked.first() else { panic!("{asked:?}") };
    let teids: Vec<_> = again
        .create_pdrs
        .iter()
        .map(|pdr| match pdr.pdi.f_teid {
            Some(pfcp::FTeid::Assigned { teid, .. }) => teid,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(teids, own);
    assert!(to_tunnel(&asked, 64).is_some() && to_tunnel(&asked, 16).is_some());
}

/// A neighbour whose part the test plays, at another address.
async fn scripted(world: &World, host: u8, gateway: u8) -> Mme {
    let network = world.pgw.network;
    Mme::start(network.ip(host), network.gateway(gateway), network.ip(9), 1).await
}

/// The MME has not got the answer in time and asks anew; the UE moves to and fro. The P-GW keeps the PDN connection all the time.
#[tokio::test]
async fn a_repeated_move_and_one_back_end_nothing() {
    let mut world = World::start().await;
    let (_, created) = world.attach(IMSI, 1).await;
    for (host, enb) in [(OTHER_SGW, 0x91), (OTHER_SGW, 0x92), (SGW, 0x93), (OTHER_SGW, 0x94)] {
        let request = world.move_request(&created, Some(Indication::OI), Some(enb));
        let moved = world.move_to(host, request).await;
        assert_eq!((moved.cause.value, moved.pgw_f_teid), (CauseValue::ACCEPTED, created.pgw_f_teid));
        let sgw = if host == SGW { &world.sgw } else { &world.other_sgw };
        let s5 = teid(&sgw.upf, S5);
        assert_eq!(to_tunnel(&world.pgw.upf.asked(), 16).map(|(teid, _)| teid), Some(s5));
        assert_eq!(to_tunnel(&sgw.upf.asked(), 16), Some((enb, false)));
    }
    // What was begun on tasks of their own would have come by now.
    world.mme.event_within(Duration::from_millis(400)).await;
    assert_eq!((world.pgw.upf.sessions(), world.pgw.sessions().await.len()), (1, 1));
}

/// A prepared handover that comes to nothing: the MME cancels it, or has restarted and forgotten it.
#[tokio::test]
async fn a_handover_that_comes_to_nothing_leaves_the_ue_where_it_is() {
    let mut world = World::with(Node::Spgw).await;
    world.mme.gateway = world.pgw.network.gateway(SGW);
    let (old, created) = world.attach(IMSI, 1).await;
    world.pgw.upf.asked();
    // To the gateway that is its P-GW, and to another one.
    for host in [PGW, OTHER_SGW] {
        let request = world.move_request(&created, None, None);
        let prepared = world.move_to(host, request.clone()).await;
        assert_eq!(prepared.cause.value, CauseValue::ACCEPTED, "{prepared:?}");
        // Prepared twice is prepared once.
        let prepared = world.move_to(host, request).await;
        let target = prepared.sender_f_teid.unwrap().teid;
        assert_eq!(world.mme.delete_as(target, 5, None).await, CauseValue::ACCEPTED);
        assert_eq!(world.pgw.sessions().await[0]["sgw"], json!(world.sgw.network.ip(SGW).to_string()));
    }
    // A target that hears of a restart of the MME does not end what the P-GW has with the source.
    let request =
        CreateSessionRequest { recovery: Some(Recovery(1)), ..world.move_request(&created, None, None) };
    assert_eq!(world.move_to(OTHER_SGW, request).await.cause.value, CauseValue::ACCEPTED);
    assert_eq!(world.other_sgw.upf.sessions(), 1);
    world.other_sgw.upf.refuse(75);
    world.other_sgw.upf.restart().await;
    world.pgw.until(async || world.other_sgw.sessions().await.is_empty()).await;
    world.mme.event_within(Duration::from_millis(200)).await;
    assert_eq!(world.pgw.upf.asked().len(), 0, "the P-GW has not changed anything");
    world.mme.gateway = world.pgw.network.gateway(SGW);
    assert_eq!(world.mme.connect(old, 5, 0x55).await.cause.value, CauseValue::ACCEPTED);
    assert_eq!(world.mme.delete(old, 5).await, CauseValue::ACCEPTED);
    assert_eq!(world.pgw.upf.sessions(), 0);
}

/// The handover to the gateway that is the UE's P-GW is done: the packets go to the eNB, with an End Marker to the former S-GW.
#[tokio::test]
async fn a_prepared_handover_to_the_gateway_that_is_both_is_done_when_the_enb_is_named() {
    let mut world = World::with(Node::Spgw).await;
    world.mme.gateway = world.pgw.network.gateway(SGW);
    let (old, created) = world.attach(IMSI, 1).await;
    world.pgw.upf.asked();
    let request = world.move_request(&created, None, None);
    let target = world.move_to(PGW, request).await.sender_f_teid.unwrap().teid;
    assert!(world.pgw.upf.asked().is_empty());
    assert_eq!(world.mme.connect(target, 5, 0x66).await.cause.value, CauseValue::ACCEPTED);
    assert_eq!(to_tunnel(&world.pgw.upf.asked(), 16), Some((0x66, true)));
    world.mme.gateway = world.pgw.network.gateway(SGW);
    assert_eq!(world.mme.delete_as(old, 5, None).await, CauseValue::ACCEPTED);
    assert_eq!(world.pgw.sessions().await[0]["sgw"], json!(null));
}

/// A P-GW that takes its time: the MME has given up and attaches the UE anew. What the P-GW sets up late, it ends.
#[tokio::test]
async fn what_a_slow_pgw_sets_up_for_nobody_it_is_told_to_end() {
    let mut world = World::start().await;
    let mut slow = scripted(&world, 77, SGW).await;
    let at_slow = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, slow.ip);
    let request = CreateSessionRequest { pgw_f_teid: Some(at_slow), ..world.create_request(IMSI, 1) };
    world.mme.send(0, request);
    // The datagram leaves at the MME's next step.
    world.mme.event_within(Duration::from_millis(20)).await;
    let (id, _, message) = slow.request().await;
    let Message::CreateSessionRequest(asked) = message else { panic!("{message:?}") };
    assert_eq!(asked.sender_f_teid.interface, InterfaceType::S5S8_SGW_GTPC);
    assert_eq!(world.sgw.upf.sessions(), 1);
    // Meanwhile the UE is free for others: it attaches with another P-GW.
    world.attach(IMSI, 2).await;
    let created = gtpv2c::BearerCreated {
        ebi: Ebi(5),
        cause: CauseValue::ACCEPTED.into(),
        s5s8u_pgw_f_teid: Some(FTeid::new(InterfaceType::S5S8_PGW_GTPU, 9, slow.ip)),
        ..Default::default()
    };
    let response = CreateSessionResponse {
        cause: CauseValue::ACCEPTED.into(),
        pgw_f_teid: Some(FTeid { teid: 0x99, ..at_slow }),
        paa: Some(Paa::Ipv4([10, 1, 1, 1].into())),
        bearers_created: vec![created],
        ..Default::default()
    };
    slow.respond(id, asked.sender_f_teid.teid, response);
    let (_, to, message) = slow.request().await;
    assert!(matches!(message, Message::DeleteSessionRequest(_)), "{message:?}");
    assert_eq!(to, 0x99);
    assert_eq!((world.sgw.upf.sessions(), world.sgw.sessions().await.len()), (1, 1));
}

/// What the UE has not taken along ends at the P-GW, and a bearer that was being set up is taken back.
#[tokio::test]
async fn bearers_that_do_not_move_end() {
    let mut world = World::start().await;
    let (gateway, created) = world.attach(IMSI, 1).await;
    let body = |port: u16| json!({"linked_ebi": 5, "qci": 8, "protocol": 17, "remote_port": port});
    let create = world.pgw.oam("POST", "/ues/999700000000001/bearers", Some(body(1)));
    let accept = async {
        let (id, _, message) = world.mme.request().await;
        let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
        world.mme.respond(id, gateway, accepted_bearer(&world.sgw, &request, 6));
        world.mme.event_within(Duration::from_millis(50)).await;
    };
    assert!(tokio::join!(create, accept).0.is_ok());
    // A second one is on its way when the UE moves, with its default bearer only.
    let network = world.pgw.network;
    let move_request = world.move_request(&created, Some(Indication::OI), Some(0x99));
    let World { pgw, sgw, mme, .. } = &mut world;
    let create = pgw.oam("POST", "/ues/999700000000001/bearers", Some(body(2)));
    let interfere = async {
        let (id, _, message) = mme.request().await;
        let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
        mme.gateway = network.gateway(OTHER_SGW);
        assert!(mme.create(move_request).await.cause.is_accepted());
        mme.respond(id, gateway, accepted_bearer(sgw, &request, 7));
        mme.event_within(Duration::from_millis(100)).await;
    };
    let (refused, ()) = tokio::join!(create, interfere);
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(world.pgw.sessions().await[0]["bearers"].as_array().unwrap().len(), 1);
}

fn accepted_bearer(sgw: &Core, request: &CreateBearerRequest, ebi: u8) -> CreateBearerResponse {
    let cause = CauseValue::ACCEPTED.into();
    let bearer = BearerInCreateResponse {
        ebi: Ebi(ebi),
        cause,
        s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, ebi.into(), sgw.network.ip(9))),
        s1u_sgw_f_teid: request.bearers[0].s1u_sgw_f_teid,
        ..Default::default()
    };
    CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() }
}

#[tokio::test]
async fn an_sgw_that_names_no_tunnel_is_refused() {
    let world = World::start().await;
    let mut sgw = scripted(&world, 77, PGW).await;
    let request = CreateSessionRequest {
        sender_f_teid: FTeid::new(InterfaceType::S5S8_SGW_GTPC, 7, sgw.ip),
        ..sgw.create_request(IMSI, 7)
    };
    assert_eq!(sgw.create(request).await.cause.value, CauseValue::CONDITIONAL_IE_MISSING);
    assert_eq!((world.pgw.upf.sessions(), world.pgw.sessions().await.len()), (0, 0));
}

/// The UE leaves an S-GW and comes back before the MME has ended what it had there: that comes late, and ends nothing.
#[tokio::test]
async fn what_the_mme_deletes_late_is_not_what_has_come_back() {
    for first in [Node::Pgw, Node::Spgw] {
        let mut world = World::with(first).await;
        let home = if first == Node::Spgw { PGW } else { SGW };
        world.mme.gateway = world.pgw.network.gateway(home);
        let (old, created) = world.attach(IMSI, 1).await;
        let away = world.move_request(&created, Some(Indication::OI), Some(0x91));
        let away = world.move_to(OTHER_SGW, away).await;
        let back = world.move_request(&created, Some(Indication::OI), Some(0x92));
        let back = world.move_to(home, back).await;
        assert_eq!(back.cause.value, CauseValue::ACCEPTED, "{back:?}");
        let all = DeleteSessionRequest { indication: Some(Indication::SI), ..Default::default() };
        let _ = world.mme.ask(old, all.clone()).await;
        assert_eq!(world.pgw.upf.sessions(), 1);
        let at_home = if first == Node::Spgw { &world.pgw } else { &world.sgw };
        assert_eq!((at_home.upf.sessions(), at_home.sessions().await.len()), (1, 1));
        world.mme.gateway = world.pgw.network.gateway(OTHER_SGW);
        let _ = world.mme.ask(away.sender_f_teid.unwrap().teid, all).await;
        assert_eq!((world.other_sgw.upf.sessions(), world.pgw.upf.sessions()), (0, 1));
        world.mme.gateway = world.pgw.network.gateway(home);
        assert_eq!(world.mme.delete(back.sender_f_teid.unwrap().teid, 5).await, CauseValue::ACCEPTED);
        assert_eq!(world.pgw.upf.sessions(), 0);
    }
}

/// The UE's PDN connection was prepared at the target and not taken along: the MME ends it there, and the P-GW hears of it.
#[tokio::test]
async fn what_is_ended_at_the_target_of_a_handover_ends_at_the_pgw() {
    let mut world = World::with(Node::Spgw).await;
    for target in [OTHER_SGW, PGW] {
        world.mme.gateway = world.pgw.network.gateway(SGW);
        let (old, created) = world.attach(IMSI, 1).await;
        let request = world.move_request(&created, None, None);
        let prepared = world.move_to(target, request).await.sender_f_teid.unwrap().teid;
        assert_eq!(world.mme.delete(prepared, 5).await, CauseValue::ACCEPTED);
        assert_eq!((world.pgw.upf.sessions(), world.other_sgw.upf.sessions()), (0, 0));
        world.mme.gateway = world.pgw.network.gateway(SGW);
        assert_eq!(world.mme.delete_as(old, 5, None).await, CauseValue::ACCEPTED);
        assert_eq!(world.sgw.upf.sessions(), 0);
    }
}
