//! What goes wrong: DUs and AMFs that vanish, UEs that answer wrongly or not at all.

use f1ap::Pdu as F1;
use f1ap::cause::{Cause as F1Cause, RadioNetwork as F1RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use ngap::Pdu as Ngap;
use ngap::cause::RadioNetwork;
use types::Key;
use ue::rrc::Action;

use crate::connections::idle;
use crate::support::*;

#[tokio::test]
async fn the_ues_of_a_du_that_vanishes_are_released() {
    let mut world = World::start(30, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, vec![session(1, address(30, 40), 0, None)]).await;
    du.abort();
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, RadioNetwork::RadioConnectionWithUeLost.into());
    world.amf.release(&ue).await;
    let Ngap::UeContextReleaseComplete(complete) = world.amf.receive().await else { panic!() };
    assert_eq!(complete.pdu_sessions.len(), 1);
    idle(&world).await;
    // It comes back, with the same cell, and serves UEs.
    let mut du = world.du(1).await;
    world.with_context(&mut du, 1, Vec::new()).await;
}

#[tokio::test]
async fn a_du_that_restarts_replaces_itself() {
    let mut world = World::start(31, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    // The former association has not been missed yet.
    let again = world.du(1).await;
    du.closed().await;
    let Ngap::UeContextReleaseRequest(_) = world.amf.receive().await else { panic!() };
    world.amf.release(&ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
    assert_eq!(world.cu.status().dus.len(), 1);
    drop(again);
}

#[tokio::test]
async fn an_amf_that_vanishes_ends_connections_and_is_found_again() {
    let mut world = World::start(32, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    let World { cu, amf, mut listener, .. } = world;
    drop(amf);
    let command = du.released(&mut ue).await;
    let cause = F1RadioNetwork::AmfInitiatedAbnormalRelease;
    assert_eq!(command.cause, F1Cause::RadioNetwork(cause));
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    // Without AMF a UE is asked to come later.
    let rejected = du.connect(2, cell(1), |initial| initial).await;
    assert!(rejected.err().unwrap().wait_time.is_some());
    let _amf = Amf::accept(&mut listener).await;
    while cu.status().amf.is_none() {
        net::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    assert!(du.connect(3, cell(1), |initial| initial).await.is_ok());
}

#[tokio::test]
async fn a_du_that_cannot_serve_a_ue_says_so_by_its_silence() {
    let world = World::start(33, |_| {}).await;
    let mut du = world.du(1).await;
    let without = |mut initial: InitialUlRrcMessageTransfer| {
        initial.du_to_cu_rrc_container = None;
        initial
    };
    assert!(du.connect(1, cell(1), without).await.is_err());
    idle(&world).await;
}

#[tokio::test]
async fn wrong_and_replayed_messages_change_nothing() {
    let mut world = World::start(34, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    ue.machine.send_nas(bytes::Bytes::from_static(b"first"));
    let Some(Action::Send(srb, pdu)) = ue.machine.next_action() else { panic!() };
    let mut changed = pdu.clone();
    changed[5] ^= 1;
    for pdu in [changed, vec![], vec![1, 2], pdu.clone(), pdu, vec![0; 9_100]] {
        du.send(ue.uplink(srb, pdu)).await;
    }
    du.send(ue.uplink(3, vec![0; 20])).await;
    ue.machine.send_nas(bytes::Bytes::from_static(b"second"));
    du.serve(&mut ue).await;
    for expected in [&b"first"[..], b"second"] {
        let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
        assert_eq!(uplink.nas_pdu, expected);
    }
}

#[tokio::test]
async fn a_wrong_key_fails_the_security_mode_command() {
    let mut world = World::start(35, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, Vec::new())).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    du.answer_setup(&mut ue, &request).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::SecurityMode)));
    ue.machine.activate_security(&Key::new([1; 32]));
    assert_eq!(ue.machine.rejected().integrity, 1);
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupFailure(failure) = world.amf.receive().await else { panic!() };
    assert_eq!(failure.cause, RadioNetwork::FailureInRadioInterfaceProcedure.into());
    still_listens(&mut world, &mut du, &mut ue).await;
}

/// NAS passes both ways, and the UE hears of its release.
async fn still_listens(world: &mut World, du: &mut Du, ue: &mut Ue) {
    world.amf.send(nas(ue, b"sorry")).await;
    assert_eq!(du.nas_of(ue).await, &b"sorry"[..]);
    ue.machine.send_nas(bytes::Bytes::from_static(b"never mind"));
    du.serve(ue).await;
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"never mind"[..]);
    world.amf.release(ue).await;
    du.released(ue).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(world).await;
}

/// The security mode command in the request does not reach the UE, which would wait for it for ever if its number were used.
#[tokio::test]
async fn a_context_that_the_du_refuses_is_as_if_it_had_not_been_asked_for() {
    let mut world = World::start(41, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, vec![session(1, address(41, 40), 0, None)])).await;
    let F1::UeContextSetupRequest(_) = du.receive().await else { panic!() };
    du.send(UeContextSetupFailure {
        gnb_cu_ue_f1ap_id: ue.cu_ue,
        gnb_du_ue_f1ap_id: Some(ue.du_ue),
        cause: F1Cause::RadioNetwork(F1RadioNetwork::NoRadioResourcesAvailable),
        criticality_diagnostics: None,
    })
    .await;
    let Ngap::InitialContextSetupFailure(failure) = world.amf.receive().await else { panic!() };
    assert_eq!(failure.cause, RadioNetwork::RadioResourcesNotAvailable.into());
    assert_eq!(failure.failed.len(), 1);
    still_listens(&mut world, &mut du, &mut ue).await;
}

/// It registers, and is gone before the AMF has answered, or the AMF is silent.
#[tokio::test]
async fn a_ue_that_gets_no_context_is_released() {
    let mut world = World::start(42, |config| config.inactivity_s = Some(1)).await;
    let mut du = world.du(1).await;
    let mut ue = du.connect(1, cell(1), |request| request).await.unwrap();
    ue.machine.complete_setup(ue.setup, None, bytes::Bytes::from_static(b"hello"));
    du.serve(&mut ue).await;
    let Ngap::InitialUeMessage(initial) = world.amf.receive().await else { panic!() };
    // The AMF has no identity of the UE yet.
    let Ngap::NgReset(reset) = world.amf.receive().await else { panic!() };
    let ngap::ResetType::PartOfNgInterface(ues) = reset.reset_type else { panic!() };
    assert_eq!((ues.len(), ues[0].ran_ue_ngap_id), (1, Some(initial.ran_ue_ngap_id)));
    du.released(&mut ue).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    idle(&world).await;
}

#[tokio::test]
async fn a_du_that_does_not_release_a_ue_is_told_to_forget_it() {
    let mut world = World::start(43, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    world.amf.release(&ue).await;
    let F1::UeContextReleaseCommand(_) = du.receive().await else { panic!() };
    let F1::Reset(reset) = du.receive().await else { panic!() };
    let named = UeAssociation { gnb_cu_ue_f1ap_id: Some(ue.cu_ue), gnb_du_ue_f1ap_id: Some(ue.du_ue) };
    assert_eq!(reset.reset_type, ResetType::PartOfF1Interface(vec![named.clone()]));
    du.send(ResetAcknowledge {
        transaction_id: reset.transaction_id,
        ue_associations: vec![named],
        criticality_diagnostics: None,
    })
    .await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn bearers_that_the_du_refuses_fail_alone() {
    let mut world = World::start(36, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = address(36, 40);
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, vec![session(1, upf, 1, None), session(2, upf, 0, None)])).await;
    let F1::UeContextSetupRequest(mut request) = du.receive().await else { panic!() };
    assert_eq!(request.drbs.len(), 3);
    // The GBR bearer of session 1 and the only one of session 2 are not set up.
    request.drbs.truncate(1);
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupResponse(response) = world.amf.receive().await else { panic!() };
    let ids = |items: &[ngap::PduSessionItem]| items.iter().map(|item| item.id.value()).collect::<Vec<_>>();
    assert_eq!((ids(&response.pdu_sessions), ids(&response.failed)), (vec![1], vec![2]));
    let transfer = &response.pdu_sessions[0].transfer;
    let transfer = ngap::transfer::PduSessionResourceSetupResponseTransfer::decode(transfer).unwrap();
    assert_eq!((transfer.qos_flows.len(), transfer.failed_qos_flows.len()), (1, 1));
}

#[tokio::test]
async fn a_du_without_the_ue_ends_the_connection() {
    let mut world = World::start(37, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    world.amf.send(nas(&ue, b"lost")).await;
    let F1::DlRrcMessageTransfer(_) = du.receive().await else { panic!() };
    du.send(ErrorIndication {
        transaction_id: TransactionId(0),
        gnb_cu_ue_f1ap_id: Some(ue.cu_ue),
        gnb_du_ue_f1ap_id: Some(ue.du_ue),
        cause: Some(F1Cause::RadioNetwork(F1RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId)),
        criticality_diagnostics: None,
    })
    .await;
    let Ngap::UeContextReleaseRequest(_) = world.amf.receive().await else { panic!() };
    world.amf.release(&ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn paths_without_answer_and_unknown_tunnels_end_connections() {
    let echo = cu::Echo { interval_ms: 60_000, response_ms: 40, requests: 2 };
    let mut world = World::start(38, |config| config.echo = echo).await;
    let mut du = world.du(1).await;
    // Nobody answers Echo Requests at these addresses.
    let mut ue = world.with_context(&mut du, 1, vec![session(1, address(38, 40), 0, None)]).await;
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, ngap::cause::Transport::TransportResourceUnavailable.into());
    world.amf.release(&ue).await;
    du.released(&mut ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn a_cu_that_stops_releases_its_ues() {
    let mut world = World::start(39, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    let World { cu, amf, .. } = world;
    let stopping = tokio::spawn(cu.shutdown());
    du.released(&mut ue).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    du.closed().await;
    net::time::timeout(LIMIT, stopping).await.expect("it stops in time").unwrap();
    drop(amf);
}

#[tokio::test]
async fn a_flood_for_one_ue_stops_no_other() {
    let mut world = World::start(40, |_| {}).await;
    let (mut du, mut quiet) = (world.du(1).await, world.du(2).await);
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    for _ in 0..3_000 {
        du.send(ue.uplink(1, vec![0; 30])).await;
    }
    // Whether it was more than the UE's task could take or not: the others are served.
    assert!(quiet.connect(1, cell(2), |initial| initial).await.is_ok());
    let flooded = net::time::timeout(std::time::Duration::from_secs(1), du.receive()).await;
    if let Ok(F1::UeContextReleaseCommand(command)) = flooded {
        assert_eq!(command.gnb_du_ue_f1ap_id, ue.du_ue);
    }
    assert!(world.cu.status().dus.len() == 2);
}

#[tokio::test]
async fn an_amf_without_the_ue_ends_the_connection() {
    let mut world = World::start(44, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    let error = |cause: RadioNetwork| ngap::ErrorIndication {
        amf_ue_ngap_id: Some(AMF_ID),
        ran_ue_ngap_id: Some(ue.ran),
        cause: Some(cause.into()),
        criticality_diagnostics: None,
        s_tmsi: None,
    };
    let (other, unknown) = (error(RadioNetwork::Unspecified), error(RadioNetwork::UnknownLocalUeNgapId));
    world.amf.send(other).await;
    assert!(du.is_silent().await, "another error ends nothing");
    world.amf.send(unknown).await;
    let command = du.released(&mut ue).await;
    let cause = F1RadioNetwork::AmfInitiatedAbnormalRelease;
    assert_eq!(command.cause, F1Cause::RadioNetwork(cause));
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    idle(&world).await;
}

/// NAS that is too long for RRC goes back, and ends nothing.
#[tokio::test]
async fn nas_of_any_length_leaves_the_connection() {
    let mut world = World::start(45, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    for length in [8_980, 8_981, 9_000, 20_000] {
        let nas_pdu = bytes::Bytes::from(vec![7; length]);
        world.amf.send(ngap::DownlinkNasTransport { nas_pdu: nas_pdu.clone(), ..nas(&ue, b"") }).await;
        if length == 8_980 {
            assert_eq!(du.nas_of(&mut ue).await, nas_pdu);
            continue;
        }
        let Ngap::NasNonDeliveryIndication(back) = world.amf.receive().await else { panic!() };
        assert_eq!(back.nas_pdu, Some(nas_pdu));
    }
    world.amf.send(nas(&ue, b"short")).await;
    assert_eq!(du.nas_of(&mut ue).await, &b"short"[..]);
}
