//! Refusals, silence, lost datagrams, and a gateway that restarts.

use std::time::Duration;

use crate::support::*;
use gtpv2c::message::*;
use gtpv2c::*;
use lte::Failure;
use lte::ue::{DEFAULT_BEARER, NetworkEvent};

#[tokio::test]
async fn a_refused_attach_says_why_and_can_be_tried_again() {
    let mut world = world(50, |_| {}).await;
    let World { gateway, ue, .. } = &mut world;
    let refuse = async {
        let (id, create) = gateway.create_session().await;
        gateway.reject(id, create.sender_f_teid.teid, CauseValue::UNKNOWN_APN);
    };
    let (outcome, ()) = tokio::join!(ue.attach(), refuse);
    let failure = outcome.unwrap_err();
    assert_eq!(failure.to_string(), "refused: Missing or unknown APN (78)");
    assert_eq!((failure.reason(), failure.cause()), ("refused", Some(CauseValue::UNKNOWN_APN)));
    let (outcome, _) = tokio::join!(ue.attach(), gateway.accept_attach());
    outcome.unwrap();
    assert!(matches!(ue.attach().await, Err(Failure::Attached)));
}

#[tokio::test]
async fn a_session_that_the_ue_cannot_use_is_deleted() {
    let mut world = world(51, |_| {}).await;
    let World { gateway, ue, .. } = &mut world;
    let script = async {
        let (id, create) = gateway.create_session().await;
        let mut created = gateway.created(&create);
        created.bearers_created[0].s1u_sgw_f_teid = None;
        gateway.respond(id, create.sender_f_teid.teid, created);
        gateway.accept_delete(create.sender_f_teid.teid).await;
        // The tunnel is refused.
        let (id, create) = gateway.create_session().await;
        let created = gateway.created(&create);
        gateway.respond(id, create.sender_f_teid.teid, created);
        let (id, _, _) = gateway.request().await;
        gateway.reject(id, create.sender_f_teid.teid, CauseValue::NO_RESOURCES);
        gateway.accept_delete(create.sender_f_teid.teid).await;
    };
    let attaches = async { (ue.attach().await.unwrap_err(), ue.attach().await.unwrap_err()) };
    let ((first, second), ()) = tokio::join!(attaches, script);
    assert_eq!(first.reason(), "malformed_answer");
    assert_eq!(second.cause(), Some(CauseValue::NO_RESOURCES));
    assert!(!ue.is_attached());
}

#[tokio::test]
async fn a_lost_request_is_sent_again_and_a_silent_gateway_is_given_up() {
    let mut world = world(52, |_| {}).await;
    let World { gateway, ue, mme, .. } = &mut world;
    // The Echo Request and the Create Session Request.
    gateway.lose = 2;
    let (outcome, _) = tokio::join!(ue.attach(), gateway.accept_attach());
    assert!(outcome.unwrap().took >= Duration::from_millis(200));
    assert!(mme.counters().retransmissions >= 1);

    let started = net::time::now();
    let failure = ue.go_idle().await.unwrap_err();
    assert_eq!(
        (failure.reason(), failure.to_string().as_str()),
        ("timeout", "gateway: peer does not answer")
    );
    assert!(net::time::now() - started >= Duration::from_millis(600), "three times");
    assert!(ue.is_connected(), "nothing has changed");
}

#[tokio::test]
async fn a_ue_that_the_gateway_does_not_know_is_detached() {
    let (mut world, attachment) = attached(53, |_| {}).await;
    let World { gateway, ue, .. } = &mut world;
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(attachment.mme));
    idle.unwrap();
    let refuse = async {
        let (id, _, _) = gateway.request().await;
        gateway.reject(id, 0, CauseValue::CONTEXT_NOT_FOUND);
    };
    let (outcome, ()) = tokio::join!(ue.service_request(), refuse);
    assert_eq!(outcome.unwrap_err().to_string(), "refused: Context not found (64)");
    assert!(!ue.is_attached());

    // The MME has forgotten the UE's TEID, too.
    let request = gateway.send(attachment.mme, DownlinkDataNotification::default());
    let Message::DownlinkDataNotificationAcknowledge(answer) = gateway.answer(request).await else {
        panic!()
    };
    assert_eq!(answer.cause.value, CauseValue::CONTEXT_NOT_FOUND);
}

#[tokio::test]
async fn a_refused_handover_leaves_the_ue_where_it_is() {
    let (mut world, attachment) = attached(54, |_| {}).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let refuse = async {
        let (id, _, _) = gateway.request().await;
        gateway.reject(id, attachment.mme, CauseValue::NO_RESOURCES);
    };
    let (outcome, ()) = tokio::join!(ue.handover(enbs[1].clone()), refuse);
    assert_eq!(outcome.unwrap_err().cause(), Some(CauseValue::NO_RESOURCES));
    assert_eq!(ue.enb().id(), 1);
    gateway.downlink(attachment.enb, b"\x45here");
    assert_eq!(ue.received(DEFAULT_BEARER).await.unwrap(), b"\x45here".as_slice());
}

#[tokio::test]
async fn ues_of_a_gateway_that_restarts_attach_again() {
    let (mut world, former) =
        attached(55, |config| config.mme.echo_interval = Duration::from_millis(100)).await;
    let World { gateway, ue, mme, .. } = &mut world;
    // The gateway's counter is known.
    let known = async {
        while mme.counters().received < 3 {
            net::time::sleep(Duration::from_millis(5)).await;
        }
    };
    net::time::timeout(LIMIT, known).await.unwrap();
    gateway.restart(2);
    let echoes = async { gateway.event().await };
    let event = tokio::select! {
        event = ue.serve() => event.unwrap(),
        event = echoes => panic!("{event:?}"),
    };
    assert_eq!(event, NetworkEvent::GatewayRestarted);
    assert!(!ue.is_attached());
    let (outcome, attachment) = tokio::join!(ue.attach(), gateway.accept_attach());
    outcome.unwrap();
    assert_ne!(attachment.mme, former.mme);
    // The new PDN connection is the restarted gateway's.
    let quiet = net::time::timeout(Duration::from_millis(300), async {
        tokio::select! {
            event = ue.serve() => panic!("{event:?}"),
            event = gateway.event() => panic!("{event:?}"),
        }
    });
    assert!(quiet.await.is_err());
}

#[tokio::test]
async fn requests_for_a_ue_come_only_from_its_gateway() {
    let (world, attachment) = attached(56, |_| {}).await;
    let other = net::udp::bind((address(56, 9), 2123).into()).await.unwrap();
    let mut request = Vec::new();
    let page = Message::from(DownlinkDataNotification::default());
    page.encode(attachment.mme, 9, &mut request).unwrap();
    other.send_to(&request, world.mme.local()).await.unwrap();
    let mut buffer = [0; 512];
    let (length, _) = net::time::timeout(LIMIT, other.recv_from(&mut buffer)).await.unwrap().unwrap();
    let (_, answer) = Message::decode(&buffer[..length]).unwrap();
    let Message::DownlinkDataNotificationAcknowledge(answer) = answer else { panic!() };
    assert_eq!(answer.cause.value, CauseValue::CONTEXT_NOT_FOUND);
}
