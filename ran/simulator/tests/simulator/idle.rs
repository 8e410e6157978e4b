//! Idle UEs against a scripted network: paging, service request, registration updates.

use crate::support::*;
use nas::gmm::*;
use nas::{GmmCause, Message, MobileIdentity, PsiSet, RegistrationType, ServiceType, Timer};
use ngap::cause::RadioNetwork;
use ngap::{Pdu, RrcEstablishmentCause};
use simulator::Failure;
use simulator::gnb::Downlink;
use simulator::ue::{NetworkEvent, WakeReason};
use types::*;

fn id(value: u8) -> PduSessionId {
    PduSessionId::new(value).unwrap()
}

fn set(ids: &[u8]) -> PsiSet {
    ids.iter().map(|value| id(*value)).collect()
}

/// A registered UE with session 1 whose connection the network has released.
async fn idle_world(host: u8, edit: impl FnOnce(&mut RegistrationAccept)) -> World {
    let World { mut network, mut ue, gnb } = world(host, |_| {}).await;
    let supi = ue.supi();
    let (registered, ()) = tokio::join!(ue.register(), async {
        let Message::RegistrationRequest(request) = network.plain().await else { panic!() };
        network.secure(supi, &request).await;
        network.accept_with(0x1001, edit).await;
    });
    registered.unwrap();
    let wish = ue.default_session().unwrap();
    let (session, _) = tokio::join!(ue.establish_session(wish), async {
        let (_, message) = network.sm().await;
        network.accept_session(id(1), message.pti).await
    });
    session.unwrap();
    become_idle(&mut network, &mut ue).await;
    World { network, ue, gnb }
}

async fn become_idle(network: &mut Network, ue: &mut simulator::Ue) {
    let (occurred, ()) = tokio::join!(ue.serve(), network.release(RadioNetwork::UserInactivity));
    assert_eq!(
        occurred.unwrap(),
        NetworkEvent::Released(ngap::Cause::from(RadioNetwork::UserInactivity).into())
    );
    assert!(!ue.session_mut(id(1)).unwrap().send(b"\x45".as_slice()), "an idle UE has no radio resources");
}

/// `None` if the UE had no reason to wake up within a short time.
async fn woken(ue: &simulator::Ue) -> Option<WakeReason> {
    net::time::timeout(std::time::Duration::from_millis(100), ue.idle()).await.ok()
}

#[tokio::test]
async fn a_paged_ue_asks_for_service_and_has_its_sessions_again() {
    let World { mut network, mut ue, gnb } = idle_world(40, |_| ()).await;
    // A page in another tracking area and one for another UE: the gNB does not page our UE.
    let mine = guti(0x1001).s_tmsi();
    network.page(mine, 2).await;
    network.page(guti(0x1002).s_tmsi(), 1).await;
    assert!(matches!(gnb.interface_message().await, Some(Pdu::Paging(_))));
    assert!(matches!(gnb.interface_message().await, Some(Pdu::Paging(_))));
    assert_eq!(woken(&ue).await, None);
    // The network repeats the page; the UE answers once.
    network.page(mine, 1).await;
    network.page(mine, 1).await;
    assert_eq!(ue.idle().await, WakeReason::Paged);
    let script = async {
        let (initial, request) = network.service_request().await;
        assert_eq!(initial.rrc_establishment_cause, RrcEstablishmentCause::MtAccess);
        assert_eq!(initial.s_tmsi, Some(mine));
        assert_eq!((request.service_type, request.s_tmsi), (ServiceType::MobileTerminated, mine));
        assert_eq!((request.pdu_session_status, request.uplink_data_status), (Some(set(&[1])), None));
        let accept = ServiceAccept { pdu_session_status: Some(set(&[1])), ..Default::default() };
        network.set_up_context(Message::ServiceAccept(accept), Vec::new()).await;
        // The session that it was paged for.
        let item = network.setup_item(id(1), None);
        network
            .send(ngap::PduSessionResourceSetupRequest {
                amf_ue_ngap_id: AMF_ID,
                ran_ue_ngap_id: network.ran_id.unwrap(),
                nas_pdu: None,
                pdu_sessions: vec![item],
                ue_ambr: None,
            })
            .await;
        let Pdu::PduSessionResourceSetupResponse(response) = network.receive().await else { panic!() };
        let transfer = ngap::transfer::PduSessionResourceSetupResponseTransfer::decode(
            &response.pdu_sessions[0].transfer,
        );
        network.upf_send(transfer.unwrap().dl_tunnel, b"\x45waited").await;
    };
    let woken_up = async {
        ue.wake_up(WakeReason::Paged).await.unwrap();
        while ue.session_mut(id(1)).unwrap().bearer.is_none() {
            let soon = net::time::now() + std::time::Duration::from_millis(10);
            assert_eq!(ue.serve_until(soon).await.unwrap(), None);
        }
        ue.session_mut(id(1)).unwrap().received().await.unwrap()
    };
    let (received, ()) = tokio::join!(woken_up, script);
    assert_eq!(received, b"\x45waited".as_slice());

    // Idle once more, with a new identity: only a page with that identity reaches it.
    let command = ConfigurationUpdateCommand {
        acknowledge: true,
        guti: Some(guti(0x2002)),
        ..ConfigurationUpdateCommand::default()
    };
    network.send_protected(Message::ConfigurationUpdateCommand(command)).await;
    let (_, complete) = tokio::join!(
        ue.serve_until(net::time::now() + std::time::Duration::from_millis(100)),
        network.protected()
    );
    assert_eq!(complete, Message::ConfigurationUpdateComplete);
    become_idle(&mut network, &mut ue).await;
    network.page(mine, 1).await;
    assert!(matches!(gnb.interface_message().await, Some(Pdu::Paging(_))));
    assert_eq!(woken(&ue).await, None);
    network.page(guti(0x2002).s_tmsi(), 1).await;
    assert_eq!(ue.idle().await, WakeReason::Paged);
}

#[tokio::test]
async fn a_ue_with_data_names_its_sessions_and_gives_up_those_the_network_lost() {
    let World { mut network, mut ue, .. } = idle_world(41, |_| ()).await;
    let script = async {
        let (initial, request) = network.service_request().await;
        assert_eq!(initial.rrc_establishment_cause, RrcEstablishmentCause::MoData);
        assert_eq!((request.service_type, request.uplink_data_status), (ServiceType::Data, Some(set(&[1]))));
        let items = vec![network.setup_item(id(1), None)];
        let accept = ServiceAccept { pdu_session_status: Some(set(&[1])), ..Default::default() };
        network.set_up_context(Message::ServiceAccept(accept), items).await
    };
    let (outcome, tunnels) = tokio::join!(ue.wake_up(WakeReason::UplinkData(set(&[1]))), script);
    outcome.unwrap();
    assert!(ue.session_mut(id(1)).unwrap().send(b"\x45up".as_slice()));
    network.upf_receive_where(|packet| packet == b"\x45up").await;
    network.upf_send(tunnels[0], b"\x45down").await;
    assert_eq!(ue.session_mut(id(1)).unwrap().received().await.unwrap(), b"\x45down".as_slice());

    become_idle(&mut network, &mut ue).await;
    let script = async {
        network.service_request().await;
        let accept = ServiceAccept {
            pdu_session_status: Some(PsiSet::default()),
            reactivation_result: Some(set(&[1])),
            ..Default::default()
        };
        network.set_up_context(Message::ServiceAccept(accept), Vec::new()).await;
    };
    let (outcome, ()) = tokio::join!(ue.wake_up(WakeReason::UplinkData(set(&[1]))), script);
    outcome.unwrap();
    assert_eq!(ue.sessions().count(), 0);
}

#[tokio::test]
async fn a_network_that_does_not_know_the_ue_makes_it_register() {
    let World { mut network, mut ue, .. } = idle_world(42, |_| ()).await;
    let supi = ue.supi();
    let script = async {
        network.service_request().await;
        let reject = ServiceReject::new(GmmCause::UeIdentityCannotBeDerived);
        network.send_plain(Message::ServiceReject(reject)).await;
        network.release(ngap::cause::Nas::NormalRelease).await;
    };
    let (outcome, ()) = tokio::join!(ue.service_request(ServiceType::Signalling, PsiSet::default()), script);
    assert!(matches!(outcome, Err(Failure::Rejected(GmmCause::UeIdentityCannotBeDerived))), "{outcome:?}");
    assert!(!ue.registered() && ue.guti().is_none() && ue.sessions().count() == 0 && !ue.connected());
    let (registered, request) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    assert!(matches!(request.identity, MobileIdentity::Suci(_)));
}

#[tokio::test]
async fn an_idle_ue_updates_its_registration_in_time_and_place() {
    let t3512 = std::time::Duration::from_secs(2);
    let here = Tai { plmn: guami().plmn, tac: Tac::from_octets([0, 0, 1]) };
    let edit = |accept: &mut RegistrationAccept| {
        (accept.t3512, accept.tai_list) = (Some(Timer::For(t3512)), vec![here]);
    };
    let World { mut network, mut ue, gnb } = idle_world(43, edit).await;
    let began = net::time::now();
    assert_eq!(ue.idle().await, WakeReason::PeriodicUpdate);
    assert!(began.elapsed() > t3512 / 2);
    let update = async |network: &mut Network, registration_type, tmsi| {
        let octets = network.nas_octets().await;
        let verified = network.context.as_mut().unwrap().unprotect(&octets).unwrap();
        let Message::RegistrationRequest(request) = verified.message.message else { panic!() };
        assert_eq!((request.registration_type, request.follow_on), (registration_type, false));
        assert_eq!(request.pdu_session_status, Some(set(&[1])));
        let elsewhere = |accept: &mut RegistrationAccept| {
            accept.pdu_session_status = Some(set(&[1]));
            accept.tai_list = vec![Tai { tac: Tac::from_octets([0, 0, 2]), ..here }];
        };
        network.accept_with(tmsi, elsewhere).await;
    };
    let periodic = RegistrationType::PeriodicUpdating;
    let (outcome, ()) =
        tokio::join!(ue.wake_up(WakeReason::PeriodicUpdate), update(&mut network, periodic, 0x1002));
    outcome.unwrap();
    assert_eq!(ue.sessions().count(), 1, "an update keeps sessions");
    become_idle(&mut network, &mut ue).await;
    // The network has moved its registration area away.
    assert_eq!(ue.idle().await, WakeReason::Moved);
    let mobility = RegistrationType::MobilityUpdating;
    let (outcome, ()) = tokio::join!(ue.wake_up(WakeReason::Moved), update(&mut network, mobility, 0x1003));
    outcome.unwrap();
    assert_eq!((ue.guti(), gnb.lost_messages()), (Some(guti(0x1003)), 0));
}

/// The UPF sends what it has kept as soon as the AMF has the gNB's answer: the UE must be ready for it by then.
#[tokio::test]
async fn the_gnb_answers_when_the_ue_has_taken_its_radio_resources() {
    let World { mut network, gnb, .. } = world(49, |_| {}).await;
    let mut connection = gnb.open(RrcEstablishmentCause::MoData);
    connection.send_nas(b"\x7e\x00\x43".as_slice(), None).await.unwrap();
    let Pdu::InitialUeMessage(initial) = network.receive().await else { panic!() };
    network
        .send(ngap::PduSessionResourceSetupRequest {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: initial.ran_ue_ngap_id,
            nas_pdu: None,
            pdu_sessions: [1, 2].map(|value| network.setup_item(id(value), Some(vec![value].into()))).into(),
            ue_ambr: None,
        })
        .await;
    let Some(Downlink::SessionsUp(bearers)) = connection.next().await else { panic!() };
    assert_eq!(bearers.iter().map(|bearer| bearer.id).collect::<Vec<_>>(), [id(1), id(2)]);
    let moment = std::time::Duration::from_millis(100);
    assert!(net::time::timeout(moment, network.receive()).await.is_err(), "answered too early");
    connection.confirm().await.unwrap();
    let Pdu::PduSessionResourceSetupResponse(response) = network.receive().await else { panic!() };
    assert_eq!((response.pdu_sessions.len(), response.failed.len()), (2, 0));
    for value in [1, 2] {
        assert!(matches!(connection.next().await, Some(Downlink::Nas(octets)) if octets[..] == [value]));
    }
}
