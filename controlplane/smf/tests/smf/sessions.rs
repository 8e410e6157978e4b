//! Sessions: established, released, deactivated and activated, refused, and restored after a restart of
//! their UPF.

use crate::world::*;
use nas::gsm::{ModificationRequest, ReleaseComplete, ReleaseRequest};
use nas::{GsmCause, SmBody, SmMessage};
use ngap::transfer::*;
use pfcp::message::*;
use pfcp::{
    ApplyAction, DownlinkDataReport, ErrorIndicationReport, FTeid, Message, OuterHeaderCreation, PdrId,
    ReportType,
};
use sbi::model::smf::*;
use sbi::op::smf::{ReleaseSmContext, ReleaseSmContextRequest, UpdateSmContext, UpdateSmContextRequest};
use std::sync::atomic::Ordering;
use std::time::Duration;
use types::{PduSessionType, Pti};

fn n1_of(updated: SmContextUpdatedData) -> SmMessage {
    let n1 = updated.n1_sm_msg.expect("something for the UE");
    SmMessage::decode(n1.bytes()).expect("readable").message
}

/// The cause and body of a refused creation.
fn refusal(error: sbi::CallError<SmContextCreateError>) -> (u16, String, SmBody) {
    let sbi::CallError::Problem { error, .. } = error else { panic!("{error}") };
    let n1 = SmMessage::decode(error.n1_sm_msg.expect("told to the UE").bytes()).expect("readable").message;
    (error.error.status, error.error.cause, n1.body)
}

pub fn reject_cause(body: &SmBody) -> GsmCause {
    match body {
        SmBody::EstablishmentReject(reject) => reject.cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_ipv4_session_is_established_end_to_end() {
    let mut world = World::new().await;
    let mut session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let address = session.accept.address.unwrap().ipv4().unwrap();
    assert_eq!(address.octets()[..2], [10, 45]);
    assert_eq!(session.accept.session_ambr.uplink.kbps(), 100_000);
    assert_eq!(session.accept.qos_rules.len(), 1);
    assert_eq!(session.accept.dnn, Some(dnn("internet")));
    // The gNB gets the tunnel that the UPF chose, and the UPF the gNB's tunnel.
    let teid = session.setup.ul_tunnel.teid.0;
    assert_eq!(teid & 0xff, 1);
    assert_eq!(session.setup.ul_tunnel.address.preferred(), world.upf.address.ip());
    let far = session.modification.update_fars.remove(0);
    assert_eq!(far.apply_action, Some(ApplyAction::FORW));
    let gnb = gnb_tunnel();
    let header = far.update_forwarding_parameters.unwrap().outer_header_creation.unwrap();
    assert_eq!(header, OuterHeaderCreation::gtpu(gnb.teid.0, gnb.address.preferred()));
    // Before that, downlink packets were buffered.
    let request = &session.establishment;
    assert_eq!(request.create_pdrs.len(), 2);
    assert_eq!(request.create_fars[1].apply_action, ApplyAction::BUFF);
    assert_eq!(request.create_qers[1].mbr.unwrap().downlink_kbps, 200_000);
    let downlink = pdr(request, 2).unwrap().pdi.ue_ip_address.unwrap();
    assert!(downlink.destination && downlink.ipv4 == Some(address));

    let shown = world.oam("GET", "/sessions").await;
    assert_eq!(
        (&shown[0]["ipv4"], &shown[0]["state"]),
        (&address.to_string().into(), &"active".into()),
        "{shown}"
    );
    let times = world.oam("GET", "/procedures").await;
    assert_eq!(times[0]["outcome"], "ok", "{times}");
}

#[tokio::test]
async fn what_the_pcf_authorises_reaches_upf_gnb_and_ue() {
    let mut world = World::new().await;
    let decision = serde_json::json!({"sessRules": {"default": {
        "sessRuleId": "default", "authSessAmbr": {"uplink": "5 Mbps", "downlink": "6 Mbps"},
        "authDefQos": {"5qi": 7, "arp": {"priorityLevel": 3, "preemptCap": "NOT_PREEMPT", "preemptVuln": "PREEMPTABLE"}},
    }}});
    *world.peers.decision.lock().unwrap() = serde_json::from_value(decision).unwrap();
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    let (n1, n2) = world.next_transfer().await;
    let SmBody::EstablishmentAccept(accept) = n1.unwrap().body else { panic!() };
    assert_eq!(accept.session_ambr.downlink.kbps(), 6_000);
    assert_eq!(accept.qos_flows[0].five_qi(), Some(types::FiveQi(7)));
    let setup = PduSessionResourceSetupRequestTransfer::decode(&n2.unwrap().1).unwrap();
    assert_eq!(setup.session_ambr, Some(accept.session_ambr));
    assert_eq!(setup.qos_flows[0].parameters.arp.priority, 3);
    assert!(matches!(world.next_at_upf().await, Message::SessionEstablishmentRequest(_)));
    let Message::SessionModificationRequest(change) = world.next_at_upf().await else { panic!() };
    assert_eq!(change.update_qers[0].mbr.unwrap().downlink_kbps, 6_000);
}

#[tokio::test]
async fn ipv6_and_dual_stack_sessions_solicit_and_get_their_prefix_from_the_smf() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(1), PduSessionType::Ipv4v6).await;
    let address = session.accept.address.unwrap();
    assert_eq!(address.session_type(), PduSessionType::Ipv4v6);
    let request = &session.establishment;
    assert_eq!((request.create_pdrs.len(), request.create_fars.len()), (4, 3));
    let smf = request.create_fars[2].forwarding_parameters.as_ref().unwrap().outer_header_creation.unwrap();
    let (smf_teid, smf_address) = smf.gtpu_endpoint().unwrap();
    assert_eq!(smf_address, world.n4u.ip());

    // In the UPF's place: forward a router solicitation, receive the advertisement on the tunnel of PDR
    // 4.
    let n3 = net::udp::bind((world.upf.address.ip(), packet::gtpu::PORT).into()).await.unwrap();
    let host = address.link_local().unwrap();
    let solicitation = packet::ndp::RouterSolicitation { source: host }.build();
    let gpdu = packet::gtpu::build_gpdu(smf_teid, None, &solicitation).unwrap();
    n3.send_to(&gpdu, world.n4u).await.unwrap();
    let mut buffer = [0; 1500];
    let (length, from) = n3.recv_from(&mut buffer).await.unwrap();
    assert_eq!(from, world.n4u);
    let gpdu = packet::gtpu::Packet::new(&buffer[..length]).unwrap();
    assert_eq!(gpdu.teid() & 0xff, 2, "CHOOSE ID of PDR 4");
    let advertisement = packet::ndp::RouterAdvertisement::parse(gpdu.payload()).unwrap();
    assert_eq!(advertisement.destination, host);
    // The UE's address consists of prefix and interface identifier, as the UE forms it.
    let ue = pdr(request, 2).unwrap().pdi.ue_ip_address.unwrap().ipv6.unwrap();
    assert_eq!(advertisement.prefix.unwrap().prefix.segments()[..4], ue.segments()[..4]);
    assert_eq!(host.segments()[4..], ue.segments()[4..]);
    assert_eq!(advertisement.dns.len(), 1);

    // While the gNB's tunnel is unknown the answer waits; it is sent when the tunnel is known.
    let state = |state| SmContextUpdateData { up_cnx_state: Some(state), ..Default::default() };
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    let gpdu = packet::gtpu::build_gpdu(smf_teid, None, &solicitation).unwrap();
    n3.send_to(&gpdu, world.n4u).await.unwrap();
    n3.send_to(&packet::gtpu::Signalling::EchoRequest { sequence: 6 }.build(), world.n4u).await.unwrap();
    let (length, _) = n3.recv_from(&mut buffer).await.unwrap();
    assert!(
        packet::gtpu::decode(&buffer[..length]).unwrap().is_some(),
        "the echo, no advertisement before it"
    );
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    let (length, _) = n3.recv_from(&mut buffer).await.unwrap();
    let gpdu = packet::gtpu::Packet::new(&buffer[..length]).unwrap();
    packet::ndp::RouterAdvertisement::parse(gpdu.payload()).unwrap();
    while world.at_upf.try_recv().is_ok() {}

    // Echo requests, malformed packets and unknown tunnels do no harm.
    n3.send_to(&[1, 2, 3], world.n4u).await.unwrap();
    let stray = packet::gtpu::build_gpdu(9999, None, &solicitation).unwrap();
    n3.send_to(&stray, world.n4u).await.unwrap();
    n3.send_to(&packet::gtpu::Signalling::EchoRequest { sequence: 7 }.build(), world.n4u).await.unwrap();
    let (length, _) = n3.recv_from(&mut buffer).await.unwrap();
    let echo = packet::gtpu::decode(&buffer[..length]).unwrap().unwrap();
    assert_eq!(echo, packet::gtpu::Signalling::EchoResponse { sequence: 7 });

    let other = world.establish(supi(2), id(1), PduSessionType::Ipv6).await;
    assert_eq!(other.accept.session_type, PduSessionType::Ipv6);
    assert_eq!(other.accept.address.unwrap().ipv4(), None);
}

#[tokio::test]
async fn refusals_name_the_cause_of_ts_24_501() {
    let mut world = World::with(|config| {
        config["dnn"][0]["ue_pool"] = serde_json::json!({"ipv4": "10.45.0.0/29"});
    })
    .await;
    let cases = [
        (supi(1), "ims", PduSessionType::Ipv4, GsmCause::MissingOrUnknownDnn, "DNN_NOT_SUPPORTED"),
        (
            supi(99),
            "internet",
            PduSessionType::Ipv4,
            GsmCause::UserAuthenticationFailed,
            "SUBSCRIPTION_DENIED",
        ),
        (supi(1), "internet", PduSessionType::Ipv6, GsmCause::OnlyIpv4Allowed, "PDUTYPE_DENIED"),
        (supi(1), "internet", PduSessionType::Ethernet, GsmCause::UnknownPduSessionType, "PDUTYPE_DENIED"),
    ];
    for (supi, name, kind, cause, problem) in cases {
        let error = world.create(supi, id(1), name, &request(id(1), kind)).await.unwrap_err();
        let (_, got, body) = refusal(error);
        assert_eq!((reject_cause(&body), got.as_str()), (cause, problem));
    }
    // Five addresses, then none; a release frees one.
    let mut contexts = Vec::new();
    for n in 1..=5 {
        contexts.push(world.establish(supi(n), id(1), PduSessionType::Ipv4).await.context);
    }
    let sixth = request(id(1), PduSessionType::Ipv4);
    let (_, _, body) = refusal(world.create(supi(6), id(1), "internet", &sixth).await.unwrap_err());
    assert_eq!(reject_cause(&body), GsmCause::InsufficientResources);
    let context = contexts.remove(0);
    let release = ReleaseSmContextRequest { sm_context_ref: context.id.clone(), body: None };
    world.client.call::<ReleaseSmContext>(&context, release).await.unwrap();
    assert!(matches!(world.next_at_upf().await, Message::SessionDeletionRequest(_)));
    // An IPv4v6 request gets the type that is available, with the cause.
    world.create(supi(6), id(1), "internet", &request(id(1), PduSessionType::Ipv4v6)).await.unwrap();
    let accept = loop {
        if let Seen::Transfer { n1, .. } = world.next().await {
            break n1.unwrap();
        }
    };
    let SmBody::EstablishmentAccept(accept) = accept.body else { panic!("{accept:?}") };
    assert_eq!((accept.session_type, accept.cause), (PduSessionType::Ipv4, Some(GsmCause::OnlyIpv4Allowed)));
}

/// `quarantine_s`: of a pool without other addresses, new sessions have to wait for a released one.
#[tokio::test]
async fn a_released_address_goes_to_nobody_else_during_its_quarantine() {
    let mut world = World::with(|config| {
        config["dnn"][0]["ue_pool"] = serde_json::json!({"ipv4": "10.45.0.0/29"});
        config["dnn"][0]["quarantine_s"] = 1.into();
    })
    .await;
    let mut contexts = Vec::new();
    for n in 1..=5 {
        contexts.push(world.establish(supi(n), id(1), PduSessionType::Ipv4).await.context);
    }
    let release = ReleaseSmContextRequest { sm_context_ref: contexts[0].id.clone(), body: None };
    world.client.call::<ReleaseSmContext>(&contexts[0], release).await.unwrap();
    let sixth = request(id(1), PduSessionType::Ipv4);
    let (_, _, body) = refusal(world.create(supi(6), id(1), "internet", &sixth).await.unwrap_err());
    assert_eq!(reject_cause(&body), GsmCause::InsufficientResources);
    // At most a second longer than configured.
    net::time::sleep(Duration::from_millis(2_100)).await;
    world.create(supi(6), id(1), "internet", &sixth).await.unwrap();
}

#[tokio::test]
async fn damaged_and_misplaced_n1_messages_are_answered_and_harm_nobody() {
    let mut world = World::new().await;
    let good = request(id(3), PduSessionType::Ipv4).encode().unwrap();
    for cut in 0..good.len() {
        let result = world.create_with(supi(1), id(3), "internet", good[..cut].to_vec().into()).await;
        if let Ok(context) = result {
            // Only optional elements are missing.
            let release = ReleaseSmContextRequest { sm_context_ref: context.id.clone(), body: None };
            world.client.call::<ReleaseSmContext>(&context, release).await.unwrap();
        }
    }
    let status = |error| match refusal(error).2 {
        SmBody::Status(status) => status.cause,
        other => panic!("{other:?}"),
    };
    let mut message = request(id(3), PduSessionType::Ipv4);
    message.pti = Pti::UNASSIGNED;
    let error = world.create(supi(1), id(3), "internet", &message).await.unwrap_err();
    assert_eq!(status(error), GsmCause::InvalidPti);
    let error = world.create(supi(1), id(4), "internet", &request(id(3), PduSessionType::Ipv4)).await;
    assert_eq!(status(error.unwrap_err()), GsmCause::InvalidPduSessionIdentity);
    let message = SmMessage::new(id(3), Pti(4), SmBody::ReleaseRequest(ReleaseRequest::default()));
    let error = world.create(supi(1), id(3), "internet", &message).await.unwrap_err();
    assert_eq!(status(error), GsmCause::MessageTypeNotCompatible);

    while world.seen.try_recv().is_ok() {}
    let mut world = World::new().await;
    let session = world.establish(supi(2), id(3), PduSessionType::Ipv4).await;
    let message = SmMessage::new(id(3), Pti(8), SmBody::ModificationRequest(ModificationRequest::default()));
    let answer = n1_of(world.ue_says(&session.context, &message).await);
    assert!(matches!(answer.body, SmBody::ModificationReject(_)), "{answer:?}");
    assert_eq!(answer.pti, Pti(8));
    let message = SmMessage::new(id(3), Pti(8), SmBody::ReleaseComplete(ReleaseComplete::default()));
    let answer = n1_of(world.ue_says(&session.context, &message).await);
    assert!(matches!(answer.body, SmBody::Status(s) if s.cause == GsmCause::MessageTypeNotCompatible));
    // N2 information that is not a transfer.
    let body = SmContextUpdateData {
        n2_sm_info: Some(vec![0xff; 40].into()),
        n2_sm_info_type: Some(N2SmInfoType::PduResSetupRsp),
        ..Default::default()
    };
    let error = world.update(&session.context, body).await.unwrap_err();
    assert!(error.is("N2_SM_ERROR"), "{error}");
}

#[tokio::test]
async fn the_ue_releases_its_session() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let message = SmMessage::new(id(5), Pti(3), SmBody::ReleaseRequest(ReleaseRequest::default()));
    let updated = world.ue_says(&session.context, &message).await;
    assert_eq!(updated.n2_sm_info_type, Some(N2SmInfoType::PduResRelCmd));
    let octets = updated.n2_sm_info.clone().unwrap();
    PduSessionResourceReleaseCommandTransfer::decode(octets.bytes()).unwrap();
    let command = n1_of(updated);
    assert_eq!(command.pti, Pti(3));
    assert!(matches!(&command.body, SmBody::ReleaseCommand(c) if c.cause == GsmCause::RegularDeactivation));
    assert!(matches!(world.next_at_upf().await, Message::SessionDeletionRequest(_)));
    assert_eq!(world.sessions_at_upf(), 0);
    // The UE repeats its request: it gets the same command, and nothing happens at the UPF.
    let again = n1_of(world.ue_says(&session.context, &message).await);
    assert_eq!(again, command);
    // A wrong transaction identity does not complete it.
    let complete = |pti| SmMessage::new(id(5), pti, SmBody::ReleaseComplete(ReleaseComplete::default()));
    let answer = n1_of(world.ue_says(&session.context, &complete(Pti(4))).await);
    assert!(matches!(answer.body, SmBody::Status(s) if s.cause == GsmCause::PtiMismatch));
    world.gnb_says(&session.context, N2SmInfoType::PduResRelRsp, gnb_released()).await;
    assert_eq!(world.ue_says(&session.context, &complete(Pti(3))).await, SmContextUpdatedData::default());
    wait_for_end(&mut world, true).await;
    let error = world.update(&session.context, SmContextUpdateData::default()).await.unwrap_err();
    assert!(error.is("CONTEXT_NOT_FOUND"));
    // The address is free, but is given out last.
    let next = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    assert_ne!(next.accept.address, session.accept.address);
}

fn gnb_released() -> bytes::Bytes {
    PduSessionResourceReleaseResponseTransfer.encode().unwrap()
}

/// Everybody hears of the end, in any order.
pub async fn wait_for_end(world: &mut World, registered: bool) {
    let (mut told, mut policy, mut registration) = (false, false, !registered);
    while !(told && policy && registration) {
        match world.next().await {
            Seen::Released(context) => {
                assert!(context.starts_with("imsi-"), "the AMF's own name for it: {context}");
                told = true;
            }
            Seen::PolicyDeleted => policy = true,
            Seen::Deregistered => registration = true,
            Seen::Registered => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.oam("GET", "/sessions").await, serde_json::json!([]));
}

#[tokio::test]
async fn the_operator_releases_a_session_and_a_silent_ue_does_not_keep_it() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    world.oam("POST", &format!("/sessions/{}/5/release", supi(1))).await;
    let Seen::Transfer { n1, n2, skip } = world.next().await else { panic!() };
    assert!(skip, "an idle UE is not paged for this");
    let command = n1.unwrap();
    assert_eq!(command.pti, Pti::UNASSIGNED);
    assert_eq!(n2.unwrap().0, N2SmInfoType::PduResRelCmd);
    world.gnb_says(&session.context, N2SmInfoType::PduResRelRsp, gnb_released()).await;
    // T3592: four repetitions, then the session ends.
    for _ in 0..4 {
        let (n1, n2) = world.next_transfer().await;
        assert_eq!((n1.unwrap(), n2), (command.clone(), None));
    }
    wait_for_end(&mut world, true).await;
    assert_eq!(world.sessions_at_upf(), 0);
}

#[tokio::test]
async fn a_used_identity_takes_the_place_of_the_old_session() {
    let mut world = World::new().await;
    let old = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    assert!(matches!(world.next_at_upf().await, Message::SessionDeletionRequest(_)));
    assert!(matches!(world.next_at_upf().await, Message::SessionEstablishmentRequest(_)));
    let error = world.update(&old.context, SmContextUpdateData::default()).await.unwrap_err();
    assert!(error.is("CONTEXT_NOT_FOUND"));
    assert_eq!(world.oam("GET", "/sessions").await.as_array().unwrap().len(), 1);
    assert_eq!(world.sessions_at_upf(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn crossing_requests_for_one_identity_leave_one_session_on_upf_and_pcf() {
    let world = World::new().await;
    let n1 = request(id(5), PduSessionType::Ipv4);
    // Scheduling decides which of them is ended early; many rounds meet every order.
    for _ in 0..40 {
        let one = || world.create(supi(1), id(5), "internet", &n1);
        let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
        assert!([a, b, c, d].iter().all(Result::is_ok));
    }
    // An earlier session may be the only one at UPF and PCF for a moment, so the one that is listed has to be there.
    let mut left = (Vec::new(), 0, 0);
    for _ in 0..100 {
        let listed = world.oam("GET", "/sessions").await;
        let at_upf = listed.as_array().unwrap().iter().map(|session| session["upf"].is_string());
        left = (at_upf.collect(), world.sessions_at_upf(), world.peers.policies.load(Ordering::Relaxed));
        if left == (vec![true], 1, 1) {
            return;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("which sessions of the list are at the UPF, its number of them, and of policies: {left:?}");
}

#[tokio::test]
async fn the_user_plane_goes_idle_and_comes_back() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let state = |state| SmContextUpdateData { up_cnx_state: Some(state), ..Default::default() };
    let updated = world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Deactivated));
    let Message::SessionModificationRequest(mut change) = world.next_at_upf().await else { panic!() };
    let action = change.update_fars.remove(0).apply_action;
    assert_eq!(action, Some(ApplyAction::BUFF | ApplyAction::NOCP));

    let updated = world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Activating));
    let octets = updated.n2_sm_info.unwrap();
    let setup = PduSessionResourceSetupRequestTransfer::decode(octets.bytes()).unwrap();
    assert_eq!(setup.ul_tunnel, session.setup.ul_tunnel);
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    let Message::SessionModificationRequest(change) = world.next_at_upf().await else { panic!() };
    assert_eq!(change.update_fars[0].apply_action, Some(ApplyAction::FORW));

    // Deactivated again; downlink data makes the AMF page the UE.
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    world.next_at_upf().await;
    let seid = session.establishment.cp_f_seid.seid;
    world.upf.report(world.n4, seid, downlink_data());
    let Message::SessionReportResponse(response) = world.next_at_upf().await else { panic!() };
    assert_eq!(response.cause, pfcp::Cause::ACCEPTED);
    let (n1, n2) = world.next_transfer().await;
    assert_eq!((n1, n2.unwrap().0), (None, N2SmInfoType::PduResSetupReq));
    // A report for an unknown session.
    world.upf.report(world.n4, 9999, downlink_data());
    let Message::SessionReportResponse(response) = world.next_at_upf().await else { panic!() };
    assert_eq!(response.cause, pfcp::Cause::SESSION_NOT_FOUND);
}

#[tokio::test]
async fn a_gnb_that_refuses_ends_a_new_session_with_a_reject() {
    let mut world = World::new().await;
    let context =
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    world.next_transfer().await;
    let cause = ngap::cause::RadioNetwork::RadioResourcesNotAvailable.into();
    let transfer = PduSessionResourceSetupUnsuccessfulTransfer { cause, criticality_diagnostics: None };
    let updated = world.gnb_says(&context, N2SmInfoType::PduResSetupFail, transfer.encode().unwrap()).await;
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Deactivated));
    let (n1, n2) = world.next_transfer().await;
    assert_eq!((reject_cause(&n1.unwrap().body), n2), (GsmCause::InsufficientResources, None));
    wait_for_end(&mut world, false).await;
    assert_eq!(world.sessions_at_upf(), 0);
}

#[tokio::test]
async fn a_gnb_that_stays_silent_does_not_keep_the_session() {
    let mut world = World::with(|config| config["timers"]["establishment_guard_ms"] = 100.into()).await;
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    world.next_transfer().await;
    while world.sessions_at_upf() > 0 {
        world.next_at_upf().await;
    }
    loop {
        if matches!(world.next().await, Seen::Released(_)) {
            break;
        }
    }
}

#[tokio::test]
async fn a_silent_or_refusing_upf_fails_the_procedure_with_a_cause() {
    let mut world = World::new().await;
    for (mode, cause) in [(REFUSING, GsmCause::InsufficientResources), (SILENT, GsmCause::NetworkFailure)] {
        world.upf.mode.store(mode, Ordering::Relaxed);
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
        let (n1, n2) = world.next_transfer().await;
        assert_eq!((reject_cause(&n1.unwrap().body), n2), (cause, None));
        wait_for_end(&mut world, false).await;
    }
    // The heartbeats have noticed: the next session is refused at once, and succeeds when the UPF is
    // back.
    until_associated(&world, false).await;
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    let (n1, _) = world.next_transfer().await;
    assert_eq!(reject_cause(&n1.unwrap().body), GsmCause::InsufficientResources);
    wait_for_end(&mut world, false).await;
    world.upf.mode.store(NORMAL, Ordering::Relaxed);
    until_associated(&world, true).await;
    while world.at_upf.try_recv().is_ok() {}
    world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
}

fn downlink_data() -> SessionReportRequest {
    SessionReportRequest {
        report_type: ReportType::DLDR,
        downlink_data_report: Some(DownlinkDataReport { pdr_ids: vec![PdrId(2)], ..Default::default() }),
        ..Default::default()
    }
}

/// Somebody who forges a UPF's address can send requests and guess responses. Only what the UPF itself answers counts.
#[tokio::test]
async fn forged_messages_of_a_upf_lose_no_session() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let octets = |message: Message, seid, sequence| {
        let mut out = Vec::new();
        message.encode(seid, sequence, &mut out).unwrap();
        out
    };
    let node_id = || pfcp::NodeId::from(world.upf.address.ip());
    let stamp = pfcp::NtpSeconds(9999);
    let mut forged = vec![
        octets(HeartbeatRequest { recovery_time_stamp: stamp }.into(), 0, 1),
        octets(AssociationReleaseRequest { node_id: node_id() }.into(), 0, 2),
        octets(
            AssociationSetupRequest { node_id: node_id(), recovery_time_stamp: stamp, ..Default::default() }
                .into(),
            0,
            3,
        ),
    ];
    forged.extend((0..500).map(|n| octets(HeartbeatResponse { recovery_time_stamp: stamp }.into(), 0, n)));
    let elsewhere = std::net::UdpSocket::bind((world.upf.address.ip(), 0)).unwrap();
    let report = SessionReportRequest {
        report_type: ReportType::ERIR,
        error_indication_report: Some(ErrorIndicationReport {
            remote_f_teids: vec![FTeid::Assigned {
                teid: 0xbeef,
                ipv4: Some([10, 200, 0, 2].into()),
                ipv6: None,
            }],
        }),
        ..Default::default()
    };
    let seid = session.establishment.cp_f_seid.seid;
    elsewhere.send_to(&octets(report.into(), seid, 4), world.n4).unwrap();
    for message in forged {
        elsewhere.send_to(&message, world.n4).unwrap();
        world.upf.forge(world.n4, message);
    }
    net::time::sleep(Duration::from_millis(500)).await;
    let asked = world.at_upf.try_recv();
    assert!(asked.is_err(), "the SMF did something about it: {asked:?}");
    let status = world.oam("GET", "/status").await;
    assert_eq!(status["detail"]["upfs"][0]["associated"], true, "{status}");
    assert_eq!(status["detail"]["upfs"][0]["recovery_time_stamp"], 1000, "{status}");
    assert_eq!(
        (world.sessions_at_upf(), world.oam("GET", "/sessions").await[0]["state"].clone()),
        (1, "active".into())
    );
}

/// The UPF cannot send to the gNB: UE and gNB are told that there is no session.
#[tokio::test]
async fn a_tunnel_that_the_upf_refuses_ends_the_session() {
    let mut world = World::new().await;
    let context =
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    world.next_transfer().await;
    world.upf.mode.store(REFUSING_TUNNELS, Ordering::Relaxed);
    let updated = world.gnb_says(&context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Deactivated));
    let (n1, n2) = world.next_transfer().await;
    let SmBody::ReleaseCommand(command) = n1.unwrap().body else { panic!() };
    assert_eq!((command.cause, n2.unwrap().0), (GsmCause::NetworkFailure, N2SmInfoType::PduResRelCmd));
    while world.sessions_at_upf() > 0 {
        world.next_at_upf().await;
    }
}

async fn until_associated(world: &World, associated: bool) {
    while world.oam("GET", "/status").await["detail"]["upfs"][0]["associated"] != associated {
        net::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_restarted_upf_gets_its_sessions_back_with_their_tunnels() {
    let mut world = World::new().await;
    let first = world.establish(supi(1), id(5), PduSessionType::Ipv4v6).await;
    let second = world.establish(supi(2), id(5), PduSessionType::Ipv4).await;
    let state = SmContextUpdateData { up_cnx_state: Some(UpCnxState::Deactivated), ..Default::default() };
    world.update(&second.context, state).await.unwrap();
    world.next_at_upf().await;
    world.upf.restart();
    assert_eq!(world.sessions_at_upf(), 0);
    let mut restored = Vec::new();
    while restored.len() < 2 {
        match world.next_at_upf().await {
            Message::SessionEstablishmentRequest(request) => restored.push(request),
            Message::AssociationSetupRequest(_) => assert!(restored.is_empty()),
            Message::SessionModificationRequest(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let second_was_first = restored[0].cp_f_seid == second.establishment.cp_f_seid;
    restored.rotate_left(usize::from(second_was_first));
    for (request, session) in restored.iter().zip([&first, &second]) {
        assert_eq!(request.flags, Some(pfcp::SeReqFlags::RESTI));
        let FTeid::Assigned { teid, .. } = pdr(request, 1).unwrap().pdi.f_teid.unwrap() else { panic!() };
        assert_eq!(teid, session.setup.ul_tunnel.teid.0, "the gNB's tunnel stays");
        assert_eq!(request.cp_f_seid, session.establishment.cp_f_seid);
    }
    // For the connected UE downlink packets are sent to the gNB at once, for the idle one they are
    // buffered.
    assert_eq!(restored[0].create_fars[1].apply_action, ApplyAction::FORW);
    assert_eq!(restored[1].create_fars[1].apply_action, ApplyAction::BUFF);
    assert_eq!(world.oam("GET", "/sessions").await.as_array().unwrap().len(), 2);
}

/// The UPF fails between making the change and answering: the gNB's answer is not lost.
#[tokio::test]
async fn a_session_whose_upf_did_not_confirm_the_gnbs_tunnel_is_restored_with_it() {
    let mut world = World::with(|config| config["timers"]["pfcp_n1"] = 2.into()).await;
    let context =
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    world.next_transfer().await;
    world.upf.mode.store(LOSING_MODIFICATIONS, Ordering::Relaxed);
    let updated = world.gnb_says(&context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Activated));
    while world.at_upf.try_recv().is_ok() {}
    world.upf.restart();
    let restored = loop {
        if let Message::SessionEstablishmentRequest(request) = world.next_at_upf().await {
            break request;
        }
    };
    assert_eq!(restored.create_fars[1].apply_action, ApplyAction::FORW);
    assert_eq!(world.oam("GET", "/sessions").await[0]["state"], "active");
}

#[tokio::test]
async fn a_session_that_a_procedure_has_put_back_is_not_restored_again() {
    let mut world = World::with(|config| config["timers"]["pfcp_n1"] = 100.into()).await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let state = |state| SmContextUpdateData { up_cnx_state: Some(state), ..Default::default() };
    // An AN release changes the session while the UPF restarts, so the restoration has to wait.
    world.upf.mode.store(LOSING_MODIFICATIONS, Ordering::Relaxed);
    let restart = async {
        while world.upf.lost.load(Ordering::Relaxed) == 0 {
            net::time::sleep(Duration::from_millis(5)).await;
        }
        world.upf.restart();
        while !matches!(world.at_upf.recv().await.unwrap(), Message::AssociationSetupRequest(_)) {}
        net::time::sleep(Duration::from_millis(30)).await;
        world.upf.mode.store(NORMAL, Ordering::Relaxed);
    };
    let deactivate = UpdateSmContextRequest {
        sm_context_ref: session.context.id.clone(),
        body: state(UpCnxState::Deactivated),
    };
    let (updated, ()) =
        tokio::join!(world.client.call::<UpdateSmContext>(&session.context, deactivate), restart);
    assert_eq!(updated.unwrap().unwrap().up_cnx_state, Some(UpCnxState::Deactivated));
    // This waits for the restoration.
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    let mut establishments = 0;
    while let Ok(message) = world.at_upf.try_recv() {
        establishments += u32::from(matches!(message, Message::SessionEstablishmentRequest(_)));
    }
    assert_eq!(establishments, 1);
    assert_eq!(world.oam("GET", "/sessions").await[0]["state"], "active");
}

#[tokio::test]
async fn a_session_the_upf_cannot_take_back_is_released_for_reactivation() {
    let mut world = World::new().await;
    world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    world.upf.mode.store(REFUSING, Ordering::Relaxed);
    world.upf.restart();
    let (n1, _) = world.next_transfer().await;
    let SmBody::ReleaseCommand(command) = n1.unwrap().body else { panic!() };
    assert_eq!(command.cause, GsmCause::ReactivationRequested);
}

#[tokio::test]
async fn peers_down_or_refusing() {
    let mut world = World::new().await;
    world.peers.udm_silent.store(true, Ordering::Relaxed);
    let error = world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await;
    let (status, _, body) = refusal(error.unwrap_err());
    assert_eq!((status, reject_cause(&body)), (504, GsmCause::NetworkFailure));
    world.peers.udm_silent.store(false, Ordering::Relaxed);

    world.peers.pcf_refuses.store(true, Ordering::Relaxed);
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    let (n1, _) = world.next_transfer().await;
    assert_eq!(reject_cause(&n1.unwrap().body), GsmCause::RequestRejected);
    loop {
        if matches!(world.next().await, Seen::Released(_)) {
            break;
        }
    }
    world.peers.pcf_refuses.store(false, Ordering::Relaxed);

    // The AMF does not know the UE any more: everything is released.
    world.peers.amf_refuses.store(true, Ordering::Relaxed);
    world.create(supi(1), id(6), "internet", &request(id(6), PduSessionType::Ipv4)).await.unwrap();
    loop {
        if matches!(world.next().await, Seen::Released(_)) {
            break;
        }
    }
    while world.sessions_at_upf() > 0 {
        world.next_at_upf().await;
    }
    assert_eq!(world.oam("GET", "/sessions").await, serde_json::json!([]));
}
