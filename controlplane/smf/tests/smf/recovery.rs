//! Sessions that AMF, SMF, UPF or gNB have lost: the others learn of it.

use std::sync::atomic::Ordering;

use crate::world::*;
use nas::SmBody;
use pfcp::message::*;
use pfcp::{ApplyAction, InterfaceType, Message, QerId, ReportType};
use sbi::ResourceUri;
use sbi::model::amf::{
    N1N2MessageTransferCause, N1N2MessageTransferError, N1N2MessageTransferRspData,
    N1N2MsgTxfrFailureNotification,
};
use sbi::model::smf::*;
use sbi::op::amf::{N1N2MessageTransfer, N1N2MessageTransferRequest, N1N2TransferFailureNotify};
use sbi::op::pcf::{SmPolicyTerminateNotify, SmPolicyUpdateNotify};
use sbi::op::smf::{ReleaseSmContext, ReleaseSmContextRequest};
use types::PduSessionType;

fn state(state: UpCnxState) -> SmContextUpdateData {
    SmContextUpdateData { up_cnx_state: Some(state), ..Default::default() }
}

fn report(report_type: ReportType) -> SessionReportRequest {
    let gnb = pfcp::FTeid::Assigned { teid: 0xbeef, ipv4: Some([10, 200, 0, 2].into()), ipv6: None };
    let downlink = pfcp::DownlinkDataReport { pdr_ids: vec![pfcp::PdrId(2)], ..Default::default() };
    let dldr = report_type == ReportType::DLDR;
    let erir = report_type == ReportType::ERIR;
    SessionReportRequest {
        report_type,
        downlink_data_report: dldr.then_some(downlink),
        error_indication_report: erir.then(|| pfcp::ErrorIndicationReport { remote_f_teids: vec![gnb] }),
        ..Default::default()
    }
}

/// The Apply Action in a modification of the FAR towards the gNB.
fn action(message: Message) -> ApplyAction {
    let Message::SessionModificationRequest(change) = message else { panic!("{message:?}") };
    change.update_fars[0].apply_action.unwrap()
}

impl World {
    /// The Apply Action of the next modification at the UPF. Other messages are skipped.
    async fn next_action(&mut self) -> ApplyAction {
        loop {
            let message = self.next_at_upf().await;
            if matches!(message, Message::SessionModificationRequest(_)) {
                return action(message);
            }
        }
    }
}

/// Two SMFs, or one before and after its restart, use different references, SEIDs and TEIDs.
#[tokio::test]
async fn what_one_smf_names_is_nothing_to_another() {
    let mut before = World::new().await;
    let mut after = World::new().await;
    let old = before.establish(supi(1), id(5), PduSessionType::Ipv4v6).await;
    let new = after.establish(supi(2), id(5), PduSessionType::Ipv4v6).await;
    assert_ne!(old.context.id, new.context.id);
    assert_ne!(old.establishment.cp_f_seid.seid, new.establishment.cp_f_seid.seid);
    let n4u = |session: &Established| {
        let to_smf = session.establishment.create_fars[2].forwarding_parameters.clone().unwrap();
        to_smf.outer_header_creation.unwrap().teid
    };
    assert_ne!(n4u(&old), n4u(&new));
    // The AMF releases the session that it had with the first SMF.
    let context = ResourceUri { api_root: new.context.api_root.clone(), id: old.context.id.clone() };
    let release = ReleaseSmContextRequest { sm_context_ref: context.id.clone(), body: None };
    let error = after.client.call::<ReleaseSmContext>(&context, release).await.unwrap_err();
    assert!(error.is("CONTEXT_NOT_FOUND"), "{error}");
    let error = after.update(&context, state(UpCnxState::Deactivated)).await.unwrap_err();
    assert!(error.is("CONTEXT_NOT_FOUND"), "{error}");
    // A UPF reports for a session that it had with the first SMF.
    after.upf.report(after.n4, old.establishment.cp_f_seid.seid, report(ReportType::ERIR));
    let Message::SessionReportResponse(response) = after.next_at_upf().await else { panic!() };
    assert_eq!(response.cause, pfcp::Cause::SESSION_NOT_FOUND);
    let shown = after.oam("GET", "/sessions").await;
    assert_eq!((&shown[0]["state"], &shown[0]["user_plane"]), (&"active".into(), &"activated".into()));
    assert_eq!(after.sessions_at_upf(), 1);
    let nonsense = ["", "1", "0", "-1", "ffffffffffffffff", "1ffffffffffffffff", "context"];
    for id in nonsense {
        let context = ResourceUri { api_root: new.context.api_root.clone(), id: id.into() };
        assert!(after.update(&context, state(UpCnxState::Deactivated)).await.is_err(), "{id}");
    }
}

/// TS 23.527 §5.3.3.2: the gNB has lost the user plane of one session.
#[tokio::test]
async fn after_an_error_indication_the_gnb_releases_the_session_and_sets_it_up_again() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.upf.report(world.n4, seid, report(ReportType::ERIR));
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    // The AMF, which considers the user plane active, makes the gNB release it.
    let Seen::Transfer { n1, n2, skip } = world.next().await else { panic!() };
    assert_eq!((n1, n2.unwrap().0, skip), (None, N2SmInfoType::PduResRelCmd, true));
    let released = ngap::transfer::PduSessionResourceReleaseResponseTransfer.encode().unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResRelRsp, released).await;
    let (n1, n2) = world.next_transfer().await;
    assert_eq!((n1, n2.unwrap().0), (None, N2SmInfoType::PduResSetupReq));
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "activated");
}

/// The UE brings its user plane back before the release that the SMF asked for reaches the gNB, which then releases what it
/// has just set up.
#[tokio::test]
async fn a_late_release_takes_the_new_user_plane_down_and_it_comes_back() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.upf.report(world.n4, seid, report(ReportType::ERIR));
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    assert_eq!(world.next_transfer().await.1.unwrap().0, N2SmInfoType::PduResRelCmd);
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    let released = ngap::transfer::PduSessionResourceReleaseResponseTransfer.encode().unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResRelRsp, released).await;
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    assert_eq!(world.next_transfer().await.1.unwrap().0, N2SmInfoType::PduResSetupReq);
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "activated");
}

/// The gNB does not answer an activation: the activation ends after its time, and later data starts
/// another one.
#[tokio::test]
async fn an_activation_without_answer_ends_and_is_tried_again() {
    let mut world = World::with(|config| config["timers"]["establishment_guard_ms"] = 150.into()).await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    world.next_action().await;
    for _ in 0..2 {
        world.upf.report(world.n4, seid, report(ReportType::DLDR));
        let (_, n2) = world.next_transfer().await;
        assert_eq!(n2.unwrap().0, N2SmInfoType::PduResSetupReq);
        assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "activating");
        // The UPF is told again to report the next packet.
        assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
        let (_, n2) = world.next_transfer().await;
        assert_eq!(n2.unwrap().0, N2SmInfoType::PduResRelCmd);
        assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "deactivated");
    }
    // The same when the AMF asked for the activation; an answer in time completes it.
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    net::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "activated");
}

fn refusal() -> bytes::Bytes {
    let cause = ngap::cause::RadioNetwork::RadioResourcesNotAvailable.into();
    let transfer =
        ngap::transfer::PduSessionResourceSetupUnsuccessfulTransfer { cause, criticality_diagnostics: None };
    transfer.encode().unwrap()
}

/// The gNB refuses the resources of a session that exists: downlink packets wait, and soon are a reason to ask again.
#[tokio::test]
async fn after_a_refusal_of_the_gnb_downlink_data_activates_the_user_plane_again() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    for _ in 0..2 {
        world.upf.report(world.n4, seid, report(ReportType::DLDR));
        let (_, n2) = world.next_transfer().await;
        assert_eq!(n2.unwrap().0, N2SmInfoType::PduResSetupReq);
        let updated = world.gnb_says(&session.context, N2SmInfoType::PduResSetupFail, refusal()).await;
        assert_eq!(updated.up_cnx_state, Some(UpCnxState::Deactivated));
        // Not at once: what waits would be reported at once, too.
        assert_eq!(world.next_action().await, ApplyAction::BUFF);
        assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    }
    world.upf.report(world.n4, seid, report(ReportType::DLDR));
    world.next_transfer().await;
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    // A user plane that was up does not go on into the tunnel that the gNB has given up.
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupFail, refusal()).await;
    assert_eq!(world.next_action().await, ApplyAction::BUFF);
    assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "deactivated");
    // The UE comes back before the pause is over, which must not take its user plane down.
    world.update(&session.context, state(UpCnxState::Activating)).await.unwrap();
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
    net::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(world.at_upf.try_recv().is_err());
}

/// The AMF says that paging failed.
async fn not_delivered(world: &World, context: &ResourceUri, cause: N1N2MessageTransferCause) {
    let root = context.api_root.as_str();
    let uri = sbi::callback_uri::<N1N2TransferFailureNotify>(root, &context.id);
    let body = N1N2MsgTxfrFailureNotification { cause, n1n2_msg_data_uri: String::new() };
    world.client.notify::<N1N2TransferFailureNotify>(&uri, body).await.unwrap();
}

/// Packets of a UE that answers no page are dropped for a while; then the next one has it paged again.
#[tokio::test]
async fn an_unreachable_ue_has_its_packets_dropped_and_is_paged_again_later() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    for _ in 0..2 {
        world.upf.report(world.n4, seid, report(ReportType::DLDR));
        assert_eq!(world.next_transfer().await.1.unwrap().0, N2SmInfoType::PduResSetupReq);
        // The same once more changes nothing.
        for _ in 0..2 {
            not_delivered(&world, &session.context, N1N2MessageTransferCause::UeNotResponding).await;
        }
        assert_eq!(world.next_action().await, ApplyAction::DROP);
        assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    }
}

/// The AMF hears of the UE again, long before the time is over: the next packet has the UE reached.
#[tokio::test]
async fn packets_for_an_unreachable_ue_are_dropped_no_longer_than_until_it_is_back() {
    let mut world = World::with(|config| config["timers"]["unreachable_ms"] = 60_000.into()).await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    let location = SmContextUpdateData {
        ue_location: Some(sbi::model::common::UserLocation { nr_location: None }),
        ..Default::default()
    };
    let body = SmBody::Status(nas::gsm::SmStatus { cause: nas::GsmCause::ProtocolErrorUnspecified });
    let status = nas::SmMessage { pdu_session_id: Some(id(5)), pti: types::Pti(7), body };
    let message =
        SmContextUpdateData { n1_sm_msg: Some(status.encode().unwrap().into()), ..Default::default() };
    for heard in [location.clone(), message, location.clone()] {
        world.upf.report(world.n4, seid, report(ReportType::DLDR));
        assert_eq!(world.next_transfer().await.1.unwrap().0, N2SmInfoType::PduResSetupReq);
        not_delivered(&world, &session.context, N1N2MessageTransferCause::UeNotResponding).await;
        assert_eq!(world.next_action().await, ApplyAction::DROP);
        world.update(&session.context, heard).await.unwrap();
        assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    }
    // Of a UE that can be reached, its location says nothing new.
    world.update(&session.context, location).await.unwrap();
    assert!(world.at_upf.try_recv().is_err());
}

/// TS 29.502 §5.2.2.3: the UE has moved to another AMF, which says so with its status callback.
#[tokio::test]
async fn a_session_follows_its_ue_to_another_amf() {
    async fn transferred(
        asked: std::sync::Arc<tokio::sync::Notify>,
        _: N1N2MessageTransferRequest,
    ) -> Result<sbi::Initiated<N1N2MessageTransferRspData>, N1N2MessageTransferError> {
        asked.notify_one();
        let cause = N1N2MessageTransferCause::Initiated;
        Ok(sbi::Initiated::Done(N1N2MessageTransferRspData { cause, supported_features: None }))
    }
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let asked = std::sync::Arc::<tokio::sync::Notify>::default();
    let router = sbi::Router::new(asked.clone()).on::<N1N2MessageTransfer>(transferred);
    let other = sbi::serve(router, "127.0.0.1:0".parse().unwrap(), Default::default()).await.unwrap();
    let moved = |uri: String| SmContextUpdateData {
        serving_nf_id: Some(sbi::model::common::NfInstanceId::from_random(8)),
        sm_context_status_uri: Some(uri),
        up_cnx_state: Some(UpCnxState::Deactivated),
        ..Default::default()
    };
    let unusable = world.update(&session.context, moved("nowhere".to_owned())).await.unwrap_err();
    assert_eq!(unusable.status(), Some(400));
    let uri = format!("http://{}/nsmf-callback/v1/sm-context-status/moved", other.address());
    world.update(&session.context, moved(uri)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    world.upf.report(world.n4, session.establishment.cp_f_seid.seid, report(ReportType::DLDR));
    net::time::timeout(std::time::Duration::from_secs(5), asked.notified()).await.unwrap();
    // The session does not end with the AMF that created it.
    world.started("AMF", net::time::wall_clock() + std::time::Duration::from_secs(1)).await;
    net::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(world.sessions_at_upf(), 1);
}

/// An AMF that is busy, or has no gNB for the UE, does not say that the UE cannot be reached: what waits is kept.
#[tokio::test]
async fn what_waits_outlives_an_amf_that_cannot_help_now() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let seid = session.establishment.cp_f_seid.seid;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    for congested in [true, false] {
        world.peers.amf_congested.store(congested, Ordering::Relaxed);
        world.upf.report(world.n4, seid, report(ReportType::DLDR));
        world.next_transfer().await;
        if !congested {
            not_delivered(&world, &session.context, N1N2MessageTransferCause::AnNotResponding).await;
        }
        assert_eq!(world.next_action().await, ApplyAction::BUFF);
        assert_eq!(world.next_action().await, ApplyAction::BUFF | ApplyAction::NOCP);
    }
    world.upf.report(world.n4, seid, report(ReportType::DLDR));
    world.next_transfer().await;
    world.gnb_says(&session.context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(world.next_action().await, ApplyAction::FORW);
}

#[tokio::test]
async fn a_session_whose_ue_the_amf_has_lost_ends() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    world.update(&session.context, state(UpCnxState::Deactivated)).await.unwrap();
    world.peers.amf_refuses.store(true, Ordering::Relaxed);
    let seid = session.establishment.cp_f_seid.seid;
    world.upf.report(world.n4, seid, report(ReportType::DLDR));
    while world.sessions_at_upf() > 0 {
        world.next_at_upf().await;
    }
    assert_eq!(world.oam("GET", "/sessions").await, serde_json::json!([]));
}

/// Npcf_SMPolicyControl_UpdateNotify: a later decision of the PCF reaches UPF, gNB and UE, and can end
/// the session.
#[tokio::test]
async fn the_pcf_changes_and_ends_the_policy_of_a_session() {
    let mut world = World::with(|config| config["timers"]["t3591_ms"] = 100.into()).await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let uri = world.peers.policy_uri.lock().unwrap().clone().unwrap();
    let decision = serde_json::json!({"resourceUri": "", "smPolicyDecision": {"sessRules": {"default": {
        "sessRuleId": "default", "authSessAmbr": {"uplink": "5 Mbps", "downlink": "6 Mbps"},
        "authDefQos": {"5qi": 7, "arp": {"priorityLevel": 3, "preemptCap": "NOT_PREEMPT", "preemptVuln": "PREEMPTABLE"}},
    }}}});
    let update: sbi::model::pcf::SmPolicyNotification = serde_json::from_value(decision).unwrap();
    let update_uri = format!("{uri}/update");
    world.client.notify::<SmPolicyUpdateNotify>(&update_uri, update.clone()).await.unwrap();
    let Message::SessionModificationRequest(change) = world.next_at_upf().await else { panic!() };
    assert_eq!(change.update_qers[0].mbr.unwrap().downlink_kbps, 6_000);
    let (n1, n2) = world.next_transfer().await;
    let command = n1.unwrap();
    let SmBody::ModificationCommand(body) = &command.body else { panic!("{command:?}") };
    assert_eq!(body.session_ambr.unwrap().uplink.kbps(), 5_000);
    assert_eq!(body.qos_flows[0].five_qi(), Some(types::FiveQi(7)));
    let (kind, octets) = n2.unwrap();
    assert_eq!(kind, N2SmInfoType::PduResModReq);
    let modify = ngap::transfer::PduSessionResourceModifyRequestTransfer::decode(&octets).unwrap();
    assert_eq!(modify.session_ambr, body.session_ambr);
    assert_eq!(modify.qos_flows[0].parameters.as_ref().unwrap().arp.priority, 3);
    // T3591 repeats the command until the UE answers. The same decision once more changes nothing.
    let (n1, n2) = world.next_transfer().await;
    assert_eq!((n1.unwrap(), n2), (command, None));
    let complete = nas::gsm::ModificationComplete::default();
    let complete = nas::SmMessage::new(id(5), types::Pti::UNASSIGNED, SmBody::ModificationComplete(complete));
    assert_eq!(world.ue_says(&session.context, &complete).await, SmContextUpdatedData::default());
    world.client.notify::<SmPolicyUpdateNotify>(&update_uri, update).await.unwrap();
    net::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(world.seen.try_recv().is_err());
    assert_eq!(world.oam("GET", "/sessions").await[0]["ambr_downlink"], "6 Mbps");

    let end = sbi::model::pcf::TerminationNotification {
        resource_uri: String::new(),
        cause: "UNSPECIFIED".to_owned(),
    };
    let end_uri = format!("{uri}/terminate");
    world.client.notify::<SmPolicyTerminateNotify>(&end_uri, end.clone()).await.unwrap();
    let (n1, _) = world.next_transfer().await;
    assert!(matches!(n1.unwrap().body, SmBody::ReleaseCommand(_)));
    let stranger = end_uri.replace(&session.context.id, "0000000100000001");
    let error = world.client.notify::<SmPolicyTerminateNotify>(&stranger, end).await.unwrap_err();
    assert!(error.is("CONTEXT_NOT_FOUND"), "{error}");
}

/// A decision with these session AMBRs and nothing else.
fn ambr_decision(uplink: &str, downlink: &str) -> sbi::model::pcf::SmPolicyDecision {
    let decision = serde_json::json!({"sessRules": {"default": {
        "sessRuleId": "default", "authSessAmbr": {"uplink": uplink, "downlink": downlink},
    }}});
    serde_json::from_value(decision).unwrap()
}

/// A PCF that restarted has forgotten what the SMF has with it, and may decide otherwise now.
#[tokio::test]
async fn a_pcf_that_restarted_gets_the_policy_associations_anew() {
    let mut world = World::new().await;
    let _session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let policies = |world: &World| world.peers.policies.load(Ordering::Relaxed);
    // It has started, but not without the association; that it is there is all it says.
    let now = net::time::wall_clock();
    let second = std::time::Duration::from_secs(1);
    world.started("PCF", now).await;
    let deadline = net::time::now() + 10 * second;
    while world.peers.policies_read.load(Ordering::Relaxed) == 0 {
        assert!(net::time::now() < deadline, "the PCF is asked");
        net::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(policies(&world), 1);
    // It has lost it, and decides otherwise: UPF, gNB and UE are told.
    *world.peers.decision.lock().unwrap() = ambr_decision("5 Mbps", "6 Mbps");
    world.peers.policies_lost.store(true, Ordering::Relaxed);
    world.started("PCF", now + second).await;
    assert_eq!(world.modified().await, 6_000);
    assert_eq!(policies(&world), 2);
    // A decision that says nothing goes back to the subscription, which the PCF was told again.
    *world.peers.decision.lock().unwrap() = sbi::model::pcf::SmPolicyDecision::default();
    world.started("PCF", now + 2 * second).await;
    assert_eq!(world.modified().await, 200_000);
    // It refuses the session now: that is obeyed.
    world.peers.pcf_refuses.store(true, Ordering::Relaxed);
    world.started("PCF", now + 3 * second).await;
    let (n1, _) = world.next_transfer().await;
    assert!(matches!(n1.unwrap().body, SmBody::ReleaseCommand(_)));
}

impl World {
    /// The modification that UPF, UE and gNB are told; the session AMBR in it, downlink kbit/s.
    async fn modified(&mut self) -> u64 {
        let Message::SessionModificationRequest(change) = self.next_at_upf().await else { panic!() };
        let (n1, n2) = self.next_transfer().await;
        let SmBody::ModificationCommand(command) = n1.unwrap().body else { panic!() };
        assert_eq!(n2.unwrap().0, N2SmInfoType::PduResModReq);
        let downlink = command.session_ambr.unwrap().downlink.kbps();
        assert_eq!(change.update_qers[0].mbr.unwrap().downlink_kbps, downlink);
        downlink
    }
}

/// Nudm_SDM: a changed subscription reaches UPF, gNB and UE by way of the PCF, and one that is gone ends the session.
#[tokio::test]
async fn changes_of_the_subscription_take_effect_in_sessions() {
    let mut world = World::new().await;
    let subscribe = |world: &World, to| *world.peers.subscribed.lock().unwrap() = to;
    world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    let deadline = net::time::now() + std::time::Duration::from_secs(10);
    while world.peers.sdm_subscriptions.load(Ordering::Relaxed) == 0 {
        assert!(net::time::now() < deadline, "the SMF subscribes");
        net::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // The PCF has no opinion: what is subscribed holds. It was told.
    subscribe(&world, Some(ambr(1_000, 2_000)));
    world.subscription_changed().await.unwrap();
    assert_eq!(world.modified().await, 2_000);
    let told = world.peers.policy_updates.lock().unwrap().pop().unwrap();
    assert_eq!(told.subs_sess_ambr, Some(ambr(1_000, 2_000)));
    // It decides otherwise.
    *world.peers.decision.lock().unwrap() = ambr_decision("5 Mbps", "6 Mbps");
    subscribe(&world, Some(ambr(3_000, 4_000)));
    world.subscription_changed().await.unwrap();
    assert_eq!(world.modified().await, 6_000);
    // The same again, and a UDM that does not answer, change nothing.
    world.subscription_changed().await.unwrap();
    world.peers.udm_silent.store(true, Ordering::Relaxed);
    world.subscription_changed().await.unwrap();
    net::time::sleep(std::time::Duration::from_millis(700)).await;
    assert!(world.seen.try_recv().is_err() && world.at_upf.try_recv().is_err());
    world.peers.udm_silent.store(false, Ordering::Relaxed);
    // It has lost the association: it is made again, with what is subscribed now.
    *world.peers.decision.lock().unwrap() = sbi::model::pcf::SmPolicyDecision::default();
    world.peers.policies_lost.store(true, Ordering::Relaxed);
    subscribe(&world, Some(ambr(7_000, 8_000)));
    world.subscription_changed().await.unwrap();
    assert_eq!(world.modified().await, 8_000);
    assert_eq!(world.peers.policies.load(Ordering::Relaxed), 2);
    // Another session of the UE needs no subscription of its own.
    world.establish(supi(1), id(6), PduSessionType::Ipv4).await;
    assert_eq!(world.peers.sdm_subscriptions.load(Ordering::Relaxed), 1);
    // The data network is not subscribed any more.
    subscribe(&world, None);
    world.subscription_changed().await.unwrap();
    for _ in 0..2 {
        let (n1, _) = world.next_transfer().await;
        assert!(matches!(n1.unwrap().body, SmBody::ReleaseCommand(_)));
    }
    // T3592 gives up on the UE; the UDM is told that nobody wants to hear any more.
    let deadline = net::time::now() + std::time::Duration::from_secs(10);
    while world.oam("GET", "/sessions").await != serde_json::json!([]) {
        assert!(net::time::now() < deadline, "released");
        net::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(world.subscription_changed().await.unwrap_err().is("CONTEXT_NOT_FOUND"));
}

/// An AMF that restarted has forgotten its UEs: their sessions would stay for ever.
#[tokio::test]
async fn sessions_end_with_the_amf_that_created_them() {
    let mut world = World::new().await;
    let (millisecond, before) = (std::time::Duration::from_millis(1), net::time::wall_clock());
    world.establish(supi(1), id(5), PduSessionType::Ipv4v6).await;
    // It started before it created the session.
    world.started("AMF", before).await;
    net::time::sleep(200 * millisecond).await;
    assert_eq!(world.sessions_at_upf(), 1);
    // It restarted; another session is younger than that.
    net::time::sleep(2 * millisecond).await;
    let restart = net::time::wall_clock();
    net::time::sleep(2 * millisecond).await;
    world.establish(supi(2), id(5), PduSessionType::Ipv4).await;
    world.started("AMF", restart).await;
    let (mut told, mut policy, mut registration) = (false, false, false);
    while !(told && policy && registration) {
        match world.next().await {
            Seen::Released(context) => told = context.contains(&supi(1).to_string()),
            Seen::PolicyDeleted => policy = true,
            Seen::Deregistered => registration = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.sessions_at_upf(), 1);
    let shown = world.oam("GET", "/sessions").await;
    assert_eq!((shown.as_array().unwrap().len(), &shown[0]["supi"]), (1, &supi(2).to_string().into()));
}

/// Open5GS's UPF: no uplink without interface types, data network of the uplink from the network instance, the QoS flow
/// from the first QER, router solicitations by the interface identifier.
#[tokio::test]
async fn the_rules_have_what_other_upfs_look_for() {
    let (n3, n6) = (Some(InterfaceType(11)), Some(InterfaceType(17)));
    for (configured, octets) in [("labels", &b"\x08internet"[..]), ("text", b"internet")] {
        let mut world = World::with(|config| config["network_instance"] = configured.into()).await;
        let session = world.establish(supi(1), id(5), PduSessionType::Ipv4v6).await;
        let request = &session.establishment;
        for (number, interface) in [(1, n3), (2, n6), (3, n3)] {
            let pdi = &pdr(request, number).unwrap().pdi;
            assert_eq!(pdi.source_interface_type, interface, "PDR {number}");
            assert_eq!(pdi.network_instance.as_ref().unwrap().as_bytes(), octets, "PDR {number}");
        }
        let parameters = request.create_fars[0].forwarding_parameters.as_ref().unwrap();
        assert_eq!(parameters.destination_interface_type, n6);
        assert_eq!(parameters.network_instance.as_ref().unwrap().as_bytes(), octets);
        let to_gnb = session.modification.update_fars[0].update_forwarding_parameters.as_ref().unwrap();
        assert_eq!(to_gnb.destination_interface_type, n3);
        let first = request.create_qers[0].clone();
        assert!(first.qfi.is_some() && first.mbr.is_none(), "{first:?}");
        for number in [1, 2] {
            assert_eq!(pdr(request, number).unwrap().qer_ids, [first.qer_id, QerId(2)]);
        }
        let interface_id = session.accept.address.unwrap().link_local().unwrap().segments();
        for number in [1, 2] {
            let ue = pdr(request, number).unwrap().pdi.ue_ip_address.unwrap();
            assert_eq!(ue.ipv6.unwrap().segments()[4..], interface_id[4..]);
            assert_eq!((ue.ipv6_prefix_length, ue.ipv6_delegation_bits), (None, None));
        }
    }
}

/// On N3 the family that is configured, on N4-u that of the SMF's own address.
#[tokio::test]
async fn tunnels_have_addresses_of_the_configured_family() {
    for (configured, ipv6) in [("ipv4", false), ("ipv6", true)] {
        let mut world = World::with(|config| config["n3"] = configured.into()).await;
        let session = world.establish(supi(1), id(5), PduSessionType::Ipv4v6).await;
        // Uplink, router solicitations, and advertisements.
        for (number, expected) in [(1, ipv6), (3, ipv6), (4, false)] {
            match pdr(&session.establishment, number).unwrap().pdi.f_teid {
                Some(pfcp::FTeid::Choose { ipv4, ipv6, .. }) => {
                    assert_eq!((ipv4, ipv6), (!expected, expected), "PDR {number}, n3: {configured}");
                }
                other => panic!("PDR {number}: {other:?}"),
            }
        }
    }
}

/// A UPF that restarts and answers no heartbeat before it has an association again.
#[tokio::test]
async fn a_upf_that_ignores_strangers_is_associated_again_and_gets_its_sessions_back() {
    let mut world = World::with(|config| config["timers"]["pfcp_n1"] = 2.into()).await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    for _ in 0..2 {
        world.upf.mode.store(IGNORING_STRANGERS, Ordering::Relaxed);
        world.upf.restart();
        let restored = loop {
            if let Message::SessionEstablishmentRequest(request) = world.next_at_upf().await {
                break request;
            }
        };
        assert_eq!(restored.cp_f_seid, session.establishment.cp_f_seid);
        assert_eq!(restored.create_fars[1].apply_action, ApplyAction::FORW);
    }
}

/// A UPF that was out of reach and did not restart, and that keeps its sessions with the new
/// association or deletes them.
#[tokio::test]
async fn a_upf_that_was_out_of_reach_keeps_its_sessions_or_gets_them_back() {
    let mut world = World::with(|config| config["timers"]["pfcp_n1"] = 2.into()).await;
    world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    for keeps in [true, false] {
        world.upf.mode.store(SILENT, Ordering::Relaxed);
        while world.oam("GET", "/status").await["detail"]["upfs"][0]["associated"] == true {
            net::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "upf_lost");
        world.upf.associated.store(false, Ordering::Relaxed);
        world.upf.mode.store(IGNORING_STRANGERS, Ordering::Relaxed);
        if !keeps {
            world.upf.sessions.lock().unwrap().clear();
        }
        loop {
            match world.next_at_upf().await {
                Message::SessionModificationRequest(_) if keeps => break,
                Message::SessionEstablishmentRequest(_) if !keeps => break,
                Message::SessionModificationRequest(_) | Message::AssociationSetupRequest(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(world.oam("GET", "/sessions").await[0]["state"], "active");
        assert_eq!(world.sessions_at_upf(), 1);
    }
}
