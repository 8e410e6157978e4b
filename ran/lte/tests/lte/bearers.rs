//! Dedicated bearers that the gateway creates, changes and deletes.

use crate::support::*;
use gtpv2c::message::*;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::*;
use lte::ue::{DEFAULT_BEARER, NetworkEvent};

pub(crate) fn tft(operation: Operation) -> Octets {
    Tft { operation, parameters: Vec::new() }.encode().unwrap()
}

pub(crate) fn filter(id: u8, port: u16) -> PacketFilter {
    let components = vec![Component::RemotePort(port)];
    PacketFilter { id, direction: Direction::Bidirectional, precedence: id, components }
}

pub(crate) fn create(gateway: &Gateway, bearers: &[(u8, Octets, u32)]) -> CreateBearerRequest {
    let bearer = |(ebi, tft, teid): &(u8, Octets, u32)| BearerInCreateRequest {
        ebi: Ebi(*ebi),
        tft: tft.clone(),
        s1u_sgw_f_teid: Some(gateway.s1u_f_teid(*teid)),
        qos: BearerQos { flow: FlowQos { qci: 1, ..Default::default() }, ..Default::default() },
        ..Default::default()
    };
    let bearers = bearers.iter().map(bearer).collect();
    CreateBearerRequest { linked_ebi: DEFAULT_BEARER, bearers, ..Default::default() }
}

/// Sends a request while the UE serves. Returns what happened to the UE and its answer.
pub(crate) async fn exchange(
    world: &mut World,
    mme: u32,
    request: impl Into<Message>,
) -> (NetworkEvent, Message) {
    let World { gateway, ue, .. } = world;
    let script = async {
        let request = gateway.send(mme, request);
        gateway.answer(request).await
    };
    let (event, answer) = tokio::join!(ue.serve(), script);
    (event.unwrap(), answer)
}

#[tokio::test]
async fn filters_choose_the_bearer_until_it_is_deleted() {
    let (mut world, attachment) = attached(30, |_| {}).await;
    let mme = attachment.mme;
    let request = create(&world.gateway, &[(0, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)]);
    let (event, answer) = exchange(&mut world, mme, request).await;
    assert_eq!(event, NetworkEvent::BearersCreated(vec![Ebi(6)]));
    let Message::CreateBearerResponse(answer) = answer else { panic!() };
    let bearer = &answer.bearers[0];
    assert!(answer.cause.is_accepted() && bearer.cause.is_accepted());
    assert_eq!((bearer.ebi, bearer.s1u_sgw_f_teid), (Ebi(6), Some(world.gateway.s1u_f_teid(0x3300))));
    let enb = bearer.s1u_enb_f_teid.unwrap();

    // Both directions.
    for (port, teid) in [(5060, 0x3300), (80, UPLINK)] {
        assert!(world.ue.send(to_port(port)));
        assert_eq!(world.gateway.uplink().await, (teid, to_port(port)));
    }
    world.gateway.downlink(enb, b"\x45voice");
    assert_eq!(world.ue.received(Ebi(6)).await.unwrap(), b"\x45voice".as_slice());

    // Another port and QoS.
    let bearer = BearerInUpdateRequest {
        ebi: Ebi(6),
        tft: Some(tft(Operation::Add(vec![filter(2, 5061)]))),
        qos: Some(BearerQos { flow: FlowQos { qci: 2, ..Default::default() }, ..Default::default() }),
        ..Default::default()
    };
    let apn_ambr = Ambr { uplink_kbps: 1, downlink_kbps: 2 };
    let request = UpdateBearerRequest { bearers: vec![bearer], apn_ambr, ..Default::default() };
    let (event, _) = exchange(&mut world, mme, request).await;
    assert_eq!(event, NetworkEvent::BearersUpdated(vec![Ebi(6)]));
    let pdn = world.ue.pdn().unwrap();
    assert_eq!((pdn.ambr(), pdn.bearers()[&Ebi(6)].qos.flow.qci), (Some(apn_ambr), 2));
    for (port, teid) in [(5060, 0x3300), (5061, 0x3300), (80, UPLINK)] {
        assert!(world.ue.send(to_port(port)));
        assert_eq!(world.gateway.uplink().await, (teid, to_port(port)));
    }

    let request = DeleteBearerRequest { ebis: vec![Ebi(6), Ebi(9)], ..Default::default() };
    let (event, answer) = exchange(&mut world, mme, request).await;
    assert_eq!(event, NetworkEvent::BearersDeleted(vec![Ebi(6)]));
    let Message::DeleteBearerResponse(answer) = answer else { panic!() };
    assert_eq!(answer.cause.value, CauseValue::ACCEPTED_PARTIALLY);
    assert_eq!(answer.bearers[1].cause.value, CauseValue::CONTEXT_NOT_FOUND);
    assert!(world.ue.send(to_port(5060)));
    assert_eq!(world.gateway.uplink().await, (UPLINK, to_port(5060)));
}

#[tokio::test]
async fn a_bearer_with_a_broken_filter_is_refused_and_the_others_are_not() {
    let (mut world, attachment) = attached(31, |_| {}).await;
    let good = tft(Operation::Create(vec![filter(1, 5060)]));
    let bearers = [
        (0, Octets(vec![0x21, 0x31]), 0x3300),
        (0, good.clone(), 0x3301),
        (0, tft(Operation::Delete), 0x3302),
    ];
    let request = create(&world.gateway, &bearers);
    let (event, answer) = exchange(&mut world, attachment.mme, request).await;
    assert_eq!(event, NetworkEvent::BearersCreated(vec![Ebi(6)]));
    let Message::CreateBearerResponse(answer) = answer else { panic!() };
    assert_eq!(answer.cause.value, CauseValue::ACCEPTED_PARTIALLY);
    let causes: Vec<_> = answer.bearers.iter().map(|bearer| bearer.cause.value).collect();
    assert_eq!(causes[1..], [CauseValue::ACCEPTED, CauseValue::TFT_SEMANTIC_ERROR]);
    assert!(!causes[0].is_accepted());

    // Of another PDN connection.
    let request = CreateBearerRequest { linked_ebi: Ebi(7), ..create(&world.gateway, &[(0, good, 1)]) };
    let (event, _) = exchange(&mut world, attachment.mme, request).await;
    assert_eq!(event, NetworkEvent::Refused(CauseValue::CONTEXT_NOT_FOUND));
    // An unknown bearer.
    let bearer = BearerInUpdateRequest { ebi: Ebi(9), ..Default::default() };
    let request = UpdateBearerRequest { bearers: vec![bearer], ..Default::default() };
    let (event, _) = exchange(&mut world, attachment.mme, request).await;
    assert_eq!(event, NetworkEvent::Refused(CauseValue::CONTEXT_NOT_FOUND));
}

#[tokio::test]
async fn an_idle_ue_comes_back_for_a_new_bearer_and_keeps_it_in_idle_mode_and_handover() {
    let (mut world, attachment) = attached(32, |_| {}).await;
    let mme = attachment.mme;
    let request = create(&world.gateway, &[(6, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)]);
    let World { gateway, ue, enbs, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(mme));
    idle.unwrap();
    let script = async {
        let request = gateway.send(mme, request);
        gateway.accept_modify(mme).await;
        gateway.answer(request).await
    };
    let (event, answer) = tokio::join!(ue.serve(), script);
    assert_eq!(event.unwrap(), NetworkEvent::BearersCreated(vec![Ebi(6)]));
    assert!(matches!(answer, Message::CreateBearerResponse(answer) if answer.cause.is_accepted()));

    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(mme));
    idle.unwrap();
    let (served, ends) = tokio::join!(ue.service_request(), gateway.accept_modify(mme));
    served.unwrap();
    assert_eq!(ends.iter().map(|(ebi, _)| ebi.0).collect::<Vec<_>>(), [5, 6]);
    let switch = async {
        let new = gateway.accept_modify(mme).await;
        for (_, former) in &ends {
            gateway.end_marker(*former);
        }
        new
    };
    let (moved, _) = tokio::join!(ue.handover(enbs[1].clone()), switch);
    assert_eq!(moved.unwrap().end_markers, 2);
    assert!(ue.send(to_port(5060)));
    assert_eq!(gateway.uplink().await, (0x3300, to_port(5060)));
}

#[tokio::test]
async fn a_ue_that_ignores_pages_gets_no_bearer_while_it_is_idle() {
    let (mut world, attachment) = attached(33, |config| config.ue.answers_paging = false).await;
    let World { gateway, ue, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    let request = create(&world.gateway, &[(0, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)]);
    let (event, answer) = exchange(&mut world, attachment.mme, request).await;
    assert_eq!(event, NetworkEvent::Refused(CauseValue::UNABLE_TO_PAGE_UE));
    assert!(matches!(answer, Message::CreateBearerResponse(answer) if !answer.cause.is_accepted()));
}
