//! A UE that moves to another S-GW, connected or idle.

use std::net::SocketAddr;

use crate::bearers::{create, exchange, filter, tft};
use crate::support::*;
use gtpv2c::endpoint::PORT;
use gtpv2c::message::*;
use gtpv2c::tft::Operation;
use gtpv2c::*;
use lte::ue::{DEFAULT_BEARER, NetworkEvent};

/// The former S-GW ends what it has, and does not tell the P-GW.
async fn accept_local_delete(gateway: &mut Gateway, mme: u32) {
    let (id, CONTROL, Message::DeleteSessionRequest(request)) = gateway.request().await else { panic!() };
    assert_eq!((request.indication, request.linked_ebi), (Some(Indication::SI), None));
    let cause = CauseValue::ACCEPTED.into();
    gateway.respond(id, mme, DeleteSessionResponse { cause, ..Default::default() });
}

fn gtpc(host: u8) -> SocketAddr {
    SocketAddr::new(address(host, 1), PORT)
}

#[tokio::test]
async fn a_connected_ue_moves_with_all_its_bearers() {
    let (mut world, attachment) = attached(60, |_| {}).await;
    let request = create(&world.gateway, &[(0, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)]);
    let (event, _) = exchange(&mut world, attachment.mme, request).await;
    assert_eq!(event, NetworkEvent::BearersCreated(vec![Ebi(6)]));
    let mut target = Gateway::start(61, 1).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let script = async {
        let (id, create) = target.create_session().await;
        assert_eq!((create.indication, create.linked_ebi), (Some(Indication::OI), Some(DEFAULT_BEARER)));
        assert_eq!(create.pgw_f_teid, Some(gateway.pgw_f_teid(true)));
        let mme = create.sender_f_teid.teid;
        assert_ne!(mme, attachment.mme, "the former S-GW's requests are told apart");
        let [default, dedicated] = &create.bearers_to_be_created[..] else { panic!("{create:?}") };
        assert_eq!((default.ebi, default.qos.flow.qci), (DEFAULT_BEARER, 9));
        assert_eq!(default.s5s8u_pgw_f_teid, Some(gateway.pgw_f_teid(false)));
        assert_eq!((dedicated.ebi, dedicated.qos.flow.qci), (Ebi(6), 1));
        let enb = default.s1u_enb_f_teid.unwrap();
        assert_eq!(enb.address(), Some(address(60, 5)));
        // Downlink packets may come through the new S-GW before its answer, and through the former one until the End Marker.
        target.downlink(enb, b"\x45new");
        gateway.downlink(attachment.enb, b"\x45old");
        target.respond(id, mme, target.created(&create));
        gateway.end_marker(attachment.enb);
        accept_local_delete(gateway, attachment.mme).await;
        (mme, enb)
    };
    let (outcome, (mme, enb)) = tokio::join!(ue.relocate(gtpc(61), enbs[1].clone()), script);
    let relocated = outcome.unwrap();
    // The dedicated bearer's End Marker does not come.
    assert_eq!((relocated.moved.tunnels, relocated.moved.end_markers), (2, 1));
    assert_eq!((relocated.former, ue.enb().id()), (Ok(()), 2));
    for packet in [b"\x45old", b"\x45new"] {
        assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), packet.as_slice());
    }
    for (port, teid) in [(80, UPLINK), (5060, UPLINK + 1)] {
        assert!(ue.send(to_port(port)));
        assert_eq!(target.uplink().await, (teid, to_port(port)));
    }
    target.downlink(enb, b"\x45later");
    assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), b"\x45later".as_slice());

    // The new S-GW is the UE's from now on.
    let (idle, ()) = tokio::join!(ue.go_idle(), target.accept_release(mme));
    idle.unwrap();
    let page = gateway.send(attachment.mme, DownlinkDataNotification::default());
    let Message::DownlinkDataNotificationAcknowledge(answer) = gateway.answer(page).await else { panic!() };
    assert_eq!(answer.cause.value, CauseValue::CONTEXT_NOT_FOUND, "the former one's requests are refused");
    let (outcome, ()) = tokio::join!(ue.detach(), target.accept_delete(mme));
    outcome.unwrap();
}

#[tokio::test]
async fn an_idle_ue_moves_without_tunnels() {
    let (mut world, attachment) = attached(62, |_| {}).await;
    let mut target = Gateway::start(63, 1).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    let script = async {
        let (id, create) = target.create_session().await;
        assert_eq!((create.indication, create.bearers_to_be_created.len()), (Some(Indication::OI), 1));
        assert_eq!(create.bearers_to_be_created[0].s1u_enb_f_teid, None);
        let mme = create.sender_f_teid.teid;
        target.respond(id, mme, target.created(&create));
        accept_local_delete(gateway, attachment.mme).await;
        mme
    };
    let (outcome, mme) = tokio::join!(ue.relocate(gtpc(63), enbs[1].clone()), script);
    assert_eq!(outcome.unwrap().moved.tunnels, 0);
    assert!(ue.is_attached() && !ue.is_connected());
    let (served, _) = tokio::join!(ue.service_request(), target.accept_modify(mme));
    served.unwrap();
    assert!(ue.send(to_port(80)));
    assert_eq!(target.uplink().await, (UPLINK, to_port(80)));
}

#[tokio::test]
async fn a_ue_that_the_new_s_gw_refuses_stays_with_its_own() {
    let (mut world, attachment) = attached(64, |_| {}).await;
    let mut target = Gateway::start(65, 1).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let refuse = async {
        let (id, create) = target.create_session().await;
        target.reject(id, create.sender_f_teid.teid, CauseValue::NO_RESOURCES);
        // Then one without the default bearer, which is ended again.
        let (id, create) = target.create_session().await;
        let mut created = target.created(&create);
        created.bearers_created[0].cause = CauseValue::NO_RESOURCES.into();
        created.cause = CauseValue::ACCEPTED_PARTIALLY.into();
        target.respond(id, create.sender_f_teid.teid, created);
        accept_local_delete(&mut target, create.sender_f_teid.teid).await;
    };
    let moves = async {
        let first = ue.relocate(gtpc(65), enbs[1].clone()).await.unwrap_err();
        (first, ue.relocate(gtpc(65), enbs[1].clone()).await.unwrap_err())
    };
    let ((first, second), ()) = tokio::join!(moves, refuse);
    assert_eq!(first.cause(), Some(CauseValue::NO_RESOURCES));
    assert_eq!(second.cause(), Some(CauseValue::NO_RESOURCES));
    assert_eq!(ue.enb().id(), 1);
    gateway.downlink(attachment.enb, b"\x45here");
    assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), b"\x45here".as_slice());
    assert!(ue.send(to_port(80)));
    assert_eq!(gateway.uplink().await, (UPLINK, to_port(80)));
}
