//! Procedures that cross: what overtakes what, and what is lost.

use std::time::Duration;

use bytes::Bytes;
use f1ap::Pdu as F1;
use f1ap::ie::DrbToBeSetup;
use f1ap::message::UeContextModificationFailure;
use net::time::{sleep, timeout};
use ngap::Pdu as Ngap;
use ngap::cause::RadioNetwork;
use ngap::transfer::*;
use packet::gtpu::{self, Signalling};
use types::{Ambr, BitRate, PduSessionId, Qfi, Teid};
use ue::rrc::Action;

use crate::connections::idle;
use crate::support::*;

/// A UE takes NAS messages in the order of their numbers only.
#[tokio::test]
async fn nas_does_not_overtake_the_procedure_before_it() {
    let mut world = World::start(50, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    world.amf.set_up(&ue, vec![session(1, address(50, 40), 0, None)]).await;
    world.amf.send(nas(&ue, b"later")).await;
    let F1::UeContextModificationRequest(request) = du.receive().await else { panic!() };
    assert!(du.is_silent().await, "the NAS message waits for the DU's answer");
    du.answer_modification(&ue, &request).await;
    du.deliver(&mut ue).await;
    assert!(du.is_silent().await, "it waits for the UE's, since it would go on another bearer");
    du.serve(&mut ue).await;
    assert!(matches!(ue.seen.last(), Some(Action::Nas(nas)) if nas == &b"session"[..]), "{:?}", ue.seen);
    assert_eq!(du.nas_of(&mut ue).await, &b"later"[..]);
    let Ngap::PduSessionResourceSetupResponse(_) = world.amf.receive().await else { panic!() };
}

#[tokio::test]
async fn nas_before_a_release_reaches_the_ue() {
    let mut world = World::start(51, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    world.amf.set_up(&ue, vec![session(1, address(51, 40), 0, None)]).await;
    world.amf.send(nas(&ue, b"last")).await;
    world.amf.release(&ue).await;
    let F1::UeContextModificationRequest(_) = du.receive().await else { panic!() };
    assert_eq!(du.nas_of(&mut ue).await, &b"last"[..]);
    du.released(&mut ue).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn nas_that_cannot_be_delivered_goes_back_to_the_amf() {
    let mut world = World::start(52, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    world.amf.set_up(&ue, vec![session(1, address(52, 40), 0, None)]).await;
    world.amf.send(nas(&ue, b"first")).await;
    let F1::UeContextModificationRequest(_) = du.receive().await else { panic!() };
    sleep(Duration::from_millis(50)).await;
    du.abort();
    let lost = RadioNetwork::RadioConnectionWithUeLost.into();
    let back = |pdu: Ngap| match pdu {
        Ngap::NasNonDeliveryIndication(indication) => {
            assert_eq!((indication.ran_ue_ngap_id, indication.cause), (ue.ran, lost));
            indication.nas_pdu.unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(back(world.amf.receive().await), &b"first"[..]);
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, lost);
    world.amf.send(nas(&ue, b"second")).await;
    assert_eq!(back(world.amf.receive().await), &b"second"[..]);
    world.amf.release(&ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

/// RLC does not keep order between SRB1 and SRB2.
#[tokio::test]
async fn nas_on_srb2_may_come_before_the_completion_that_srb2_is_there() {
    let mut world = World::start(53, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, Vec::new())).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    ue.machine.send_nas(Bytes::from_static(b"quick"));
    let mut pdus = Vec::new();
    while let Some(action) = ue.machine.next_action() {
        if let Action::Send(srb, pdu) = action {
            pdus.push((srb, pdu));
        }
    }
    assert_eq!(pdus.iter().map(|(srb, _)| *srb).collect::<Vec<_>>(), [1, 2]);
    for (srb, pdu) in pdus.into_iter().rev() {
        du.send(ue.uplink(srb, pdu)).await;
    }
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"quick"[..]);
    let Ngap::InitialContextSetupResponse(_) = world.amf.receive().await else { panic!() };
}

/// A UE that has not got the security mode command yet sends without protection. What it has sent is no gap in its numbers.
#[tokio::test]
async fn nas_may_cross_the_security_mode_command() {
    let mut world = World::start(54, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, Vec::new())).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    ue.machine.send_nas(Bytes::from_static(b"crossing"));
    du.serve(&mut ue).await;
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"crossing"[..]);
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupResponse(_) = world.amf.receive().await else { panic!() };
    ue.machine.send_nas(Bytes::from_static(b"protected"));
    du.serve(&mut ue).await;
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"protected"[..]);
}

fn ids(drbs: &[DrbToBeSetup]) -> Vec<u8> {
    drbs.iter().map(|drb| drb.drb_id.0).collect()
}

/// A bearer that had the identity and keys of an earlier one would use its keystream again.
#[tokio::test]
async fn no_bearer_has_the_identity_of_an_earlier_one() {
    let mut world = World::start(55, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = address(55, 40);
    let mut ue = world.with_context(&mut du, 1, vec![session(1, upf, 0, None)]).await;
    for drb in 2..=3 {
        world.amf.set_up(&ue, vec![session(2, upf, 0, None)]).await;
        assert_eq!(ids(&du.modify(&mut ue).await.drbs), [drb]);
        let Ngap::PduSessionResourceSetupResponse(_) = world.amf.receive().await else { panic!() };
        world.amf.release_session(&ue, 2).await;
        assert_eq!(du.modify(&mut ue).await.drbs_to_be_released[0].drb_id.0, drb);
        let Ngap::PduSessionResourceReleaseResponse(_) = world.amf.receive().await else { panic!() };
    }
    world.amf.set_up(&ue, vec![session(2, upf, 25, None)]).await;
    assert_eq!(ids(&du.modify(&mut ue).await.drbs), (4..=29).collect::<Vec<u8>>());
    let Ngap::PduSessionResourceSetupResponse(_) = world.amf.receive().await else { panic!() };
    // When there are no more, the session fails, and the UE gets new keys with a new connection.
    world.amf.set_up(&ue, vec![session(3, upf, 0, None)]).await;
    let Ngap::PduSessionResourceSetupResponse(response) = world.amf.receive().await else { panic!() };
    assert_eq!((response.pdu_sessions.len(), response.failed.len()), (0, 1));
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, RadioNetwork::ReleaseDueToNgranGeneratedReason.into());
    world.amf.release(&ue).await;
    du.released(&mut ue).await;
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
}

/// The GTP-U end of a peer of the CU.
struct Peer(tokio::net::UdpSocket);

impl Peer {
    async fn bind(host: u8, last: u8) -> Peer {
        Peer(tokio::net::UdpSocket::bind((address(host, last), gtpu::PORT)).await.unwrap())
    }

    /// Tells the CU's end `last` that a tunnel is unknown here.
    async fn indicate_error(&self, host: u8, last: u8, teid: u32) {
        let peer = self.0.local_addr().unwrap().ip();
        let message = Signalling::ErrorIndication { teid, peer, udp_port: None }.build();
        self.0.send_to(&message, (address(host, last), gtpu::PORT)).await.unwrap();
    }

    /// Whether the CU says within a while that a tunnel is unknown there.
    async fn hears_of_an_error(&self) -> bool {
        let mut buffer = [0; 2_000];
        let error = async {
            loop {
                let length = self.0.recv(&mut buffer).await.unwrap();
                let packet = gtpu::Packet::new(&buffer[..length]).unwrap();
                if packet.message_type() == gtpu::message_type::ERROR_INDICATION {
                    return;
                }
            }
        };
        timeout(Duration::from_millis(200), error).await.is_ok()
    }
}

/// The UPF's end of a session stays when the UE comes back, and DUs that restart give out the same TEIDs.
#[tokio::test]
async fn a_tunnel_of_two_connections_is_watched_until_both_have_ended() {
    let mut world = World::start(56, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = Peer::bind(56, 40).await;
    let sessions = || vec![session(1, address(56, 40), 0, None)];
    let mut former = world.with_context(&mut du, 1, sessions()).await;
    let mut ue = world.with_context(&mut du, 2, sessions()).await;
    world.amf.release(&former).await;
    du.released(&mut former).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    upf.indicate_error(56, 4, 0x101).await;
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.ran_ue_ngap_id, ue.ran);
    assert_eq!(request.cause, ngap::cause::Transport::TransportResourceUnavailable.into());
    world.amf.release(&ue).await;
    du.released(&mut ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

/// Packets are under way in both directions while a session goes. Neither end may take the other's word that the tunnel is unknown
/// for the loss of the connection.
#[tokio::test]
async fn a_session_that_goes_leaves_the_others() {
    let mut world = World::start(57, |_| {}).await;
    let mut du = world.du(1).await;
    let (f1u, upf) = (Peer::bind(57, 30).await, Peer::bind(57, 40).await);
    let mut ue = world.connected(&mut du, 1).await;
    let sessions = (1..=2).map(|id| session(id, address(57, 40), 0, None)).collect();
    world.amf.send(context_request(&ue, sessions)).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupResponse(_) = world.amf.receive().await else { panic!() };

    // The SMF releases a session at the UPF first.
    upf.indicate_error(57, 4, 0x101).await;
    assert!(du.is_silent().await);
    world.amf.release_session(&ue, 1).await;
    let F1::UeContextModificationRequest(modification) = du.receive().await else { panic!() };
    // The DU has not released the bearer yet, or already.
    let tunnel = request.drbs[0].ul_up_tnl[0].tunnel;
    let pdu = gtpu::build_gpdu(tunnel.teid.0, None, b"\x80\0\0\x01packet").unwrap();
    f1u.0.send_to(&pdu, (address(57, 3), gtpu::PORT)).await.unwrap();
    assert!(!f1u.hears_of_an_error().await);
    f1u.indicate_error(57, 3, 0x501).await;
    upf.indicate_error(57, 4, 0x101).await;
    sleep(Duration::from_millis(100)).await;
    du.answer_modification(&ue, &modification).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::PduSessionResourceReleaseResponse(_) = world.amf.receive().await else { panic!() };
    f1u.0.send_to(&pdu, (address(57, 3), gtpu::PORT)).await.unwrap();
    assert!(f1u.hears_of_an_error().await, "now it is unknown");
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.cu.status().ues, 1);
    // The other one is watched still.
    f1u.indicate_error(57, 3, 0x502).await;
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.pdu_sessions, [PduSessionId::new(2).unwrap()]);
}

fn modification(
    ue: &Ue,
    change: PduSessionResourceModifyRequestTransfer,
) -> ngap::PduSessionResourceModifyRequest {
    ngap::PduSessionResourceModifyRequest {
        amf_ue_ngap_id: AMF_ID,
        ran_ue_ngap_id: ue.ran,
        pdu_sessions: vec![ngap::PduSessionModifyItem {
            id: PduSessionId::new(1).unwrap(),
            nas_pdu: Some(Bytes::from_static(b"modified")),
            transfer: change.encode().unwrap(),
        }],
    }
}

/// The same flow is added and released in one request, twice: the second time it has a bearer.
#[tokio::test]
async fn a_flow_may_be_released_and_come_anew_in_one_request() {
    let mut world = World::start(59, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = address(59, 40);
    let mut ue = world.with_context(&mut du, 1, vec![session(1, upf, 0, None)]).await;
    let template =
        PduSessionResourceSetupRequestTransfer::decode(&session(1, upf, 1, None).transfer).unwrap();
    let QosFlow { qfi, parameters } = template.qos_flows[1].clone();
    for round in 0..2 {
        let change = PduSessionResourceModifyRequestTransfer {
            qos_flows: vec![QosFlowChange { qfi, parameters: Some(parameters.clone()) }],
            released_qos_flows: vec![QosFlowCause { qfi, cause: ngap::cause::Nas::NormalRelease.into() }],
            ..Default::default()
        };
        world.amf.send(modification(&ue, change)).await;
        let request = du.modify(&mut ue).await;
        assert_eq!((request.drbs.len(), request.drbs_to_be_released.len()), (1, round));
        let Ngap::PduSessionResourceModifyResponse(response) = world.amf.receive().await else { panic!() };
        let transfer = &response.pdu_sessions[0].transfer;
        let done = PduSessionResourceModifyResponseTransfer::decode(transfer).unwrap();
        assert_eq!((done.qos_flows, done.failed_qos_flows), (vec![qfi], vec![]));
    }
}

/// The DU hears of a flow's new QoS, and of a flow more on the default bearer; what it refuses is as before.
#[tokio::test]
async fn a_flow_changes_its_qos() {
    let mut world = World::start(60, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = address(60, 40);
    let mut ue = world.with_context(&mut du, 1, vec![session(1, upf, 1, None)]).await;
    let template =
        PduSessionResourceSetupRequestTransfer::decode(&session(1, upf, 1, None).transfer).unwrap();
    let [default, guaranteed] = &template.qos_flows[..] else { panic!() };
    let rate = |mbit: u64| {
        let mut flow = guaranteed.clone();
        let rates = Ambr { uplink: BitRate::from_bps(mbit * 1_000_000), ..template.session_ambr.unwrap() };
        flow.parameters.gbr.as_mut().unwrap().guaranteed = rates;
        flow
    };
    let added = QosFlow { qfi: Qfi::new(20).unwrap(), ..default.clone() };
    // A flow with a guaranteed rate cannot become one without.
    let other_kind = QosFlow { qfi: guaranteed.qfi, ..default.clone() };
    let mut rates_seen = Vec::new();
    // The flow, whether the DU takes it, its bearer and how many flows that has then.
    for (flow, accepted, expected) in [
        (rate(2), true, Some((2, 1))),
        (added.clone(), false, Some((1, 2))),
        (default.clone(), true, Some((1, 1))),
        (rate(3), false, Some((2, 1))),
        (added, true, Some((1, 2))),
        (other_kind, false, None),
    ] {
        let qfi = flow.qfi;
        let change = PduSessionResourceModifyRequestTransfer {
            qos_flows: vec![QosFlowChange { qfi, parameters: Some(flow.parameters) }],
            ..Default::default()
        };
        world.amf.send(modification(&ue, change)).await;
        if let Some((bearer, flows)) = expected {
            let F1::UeContextModificationRequest(request) = du.receive().await else { panic!() };
            let [drb] = &request.drbs_to_be_modified[..] else { panic!("{request:?}") };
            let qos = &drb.qos.as_ref().unwrap().0;
            assert_eq!((drb.drb_id.0, qos.flows.len()), (bearer, flows));
            rates_seen.extend(qos.qos.gbr.as_ref().map(|gbr| gbr.guaranteed_ul));
            if accepted {
                du.answer_modification(&ue, &request).await;
            } else {
                du.send(UeContextModificationFailure {
                    gnb_cu_ue_f1ap_id: ue.cu_ue,
                    gnb_du_ue_f1ap_id: ue.du_ue,
                    cause: f1ap::cause::Cause::RadioNetwork(f1ap::cause::RadioNetwork::Unspecified),
                    criticality_diagnostics: None,
                })
                .await;
            }
        }
        assert_eq!(du.nas_of(&mut ue).await, &b"modified"[..]);
        let Ngap::PduSessionResourceModifyResponse(response) = world.amf.receive().await else { panic!() };
        let done =
            PduSessionResourceModifyResponseTransfer::decode(&response.pdu_sessions[0].transfer).unwrap();
        assert_eq!(
            (done.qos_flows.len(), done.failed_qos_flows.len()),
            (accepted.into(), (!accepted).into())
        );
    }
    assert_eq!(rates_seen, [2, 3].map(|mbit| BitRate::from_bps(mbit * 1_000_000)));
}

#[tokio::test]
async fn the_upf_of_a_session_may_move() {
    let mut world = World::start(58, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, vec![session(1, address(58, 40), 0, None)])).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupResponse(response) = world.amf.receive().await else { panic!() };
    let transfer = &response.pdu_sessions[0].transfer;
    let own = PduSessionResourceSetupResponseTransfer::decode(transfer).unwrap().dl_tunnel;
    let next = ngap::GtpTunnel { address: address(58, 41).into(), teid: Teid(0x999) };
    // A tunnel that is none of the session's, and then its own.
    let change =
        |own| PduSessionResourceModifyRequestTransfer { ul_tunnels: vec![(next, own)], ..Default::default() };
    world.amf.send(modification(&ue, change(next))).await;
    let Ngap::PduSessionResourceModifyResponse(response) = world.amf.receive().await else { panic!() };
    assert_eq!((response.pdu_sessions.len(), response.failed.len()), (0, 1));
    world.amf.send(modification(&ue, change(own))).await;
    assert_eq!(du.nas_of(&mut ue).await, &b"modified"[..]);
    let Ngap::PduSessionResourceModifyResponse(response) = world.amf.receive().await else { panic!() };
    assert_eq!((response.pdu_sessions.len(), response.failed.len()), (1, 0));
    // The former end is not the session's any more.
    let (former, moved) = (Peer::bind(58, 40).await, Peer::bind(58, 41).await);
    former.indicate_error(58, 4, 0x101).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.cu.status().ues, 1);
    moved.indicate_error(58, 4, 0x999).await;
    let Ngap::UeContextReleaseRequest(_) = world.amf.receive().await else { panic!() };
}
