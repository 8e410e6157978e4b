//! The life of connections: establishment, context, sessions, release.

use std::time::Duration;

use f1ap::Pdu as F1;
use f1ap::cause::{Cause as F1Cause, RadioNetwork as F1RadioNetwork};
use f1ap::message::UeContextReleaseRequest;
use ngap::Pdu as Ngap;
use ngap::cause::RadioNetwork;
use ngap::transfer::*;
use types::{PduSessionId, Qfi};
use ue::rrc::Action;

use crate::support::*;

/// RAN-3: tunnels are set up by real signalling.
#[tokio::test]
async fn a_ue_gets_a_connection_security_sessions_and_loses_them() {
    let mut world = World::start(1, |_| {}).await;
    let mut du = world.du(1).await;
    let upf = address(1, 40);
    let mut ue = world.with_context(&mut du, 5, vec![session(1, upf, 0, None)]).await;
    // NAS of the session and of the request reached the UE, once its bearers were there.
    let nas: Vec<&[u8]> = ue
        .seen
        .iter()
        .filter_map(|action| match action {
            Action::Nas(nas) => Some(&nas[..]),
            _ => None,
        })
        .collect();
    assert_eq!(nas, [&b"session"[..], b"accept"]);
    let up = ue.seen.iter().position(|action| matches!(action, Action::SessionsUp(ids) if ids.len() == 1));
    let first_nas = ue.seen.iter().position(|action| matches!(action, Action::Nas(_)));
    assert!(up.unwrap() < first_nas.unwrap(), "{:?}", ue.seen);
    assert_eq!(world.cu.status().ues, 1);

    // NAS both ways, now on SRB2 and ciphered.
    world.amf.send(nas_message(&ue)).await;
    assert_eq!(du.nas_of(&mut ue).await, &b"down"[..]);
    ue.machine.send_nas(bytes::Bytes::from_static(b"up"));
    du.serve(&mut ue).await;
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"up"[..]);

    // A second session with flows of guaranteed rate: a bearer each.
    world.amf.set_up(&ue, vec![session(2, upf, 2, None), session(1, upf, 0, None)]).await;
    let request = du.modify(&mut ue).await;
    let drbs: Vec<u8> = request.drbs.iter().map(|drb| drb.drb_id.0).collect();
    assert_eq!(drbs, [2, 3, 4]);
    let Ngap::PduSessionResourceSetupResponse(response) = world.amf.receive().await else { panic!() };
    assert_eq!(response.pdu_sessions.len(), 1);
    let transfer =
        PduSessionResourceSetupResponseTransfer::decode(&response.pdu_sessions[0].transfer).unwrap();
    assert_eq!(transfer.qos_flows, [9, 10, 11].map(|qfi| Qfi::new(qfi).unwrap()));
    // Session 1 is there already.
    let failed = PduSessionResourceSetupUnsuccessfulTransfer::decode(&response.failed[0].transfer).unwrap();
    assert_eq!(failed.cause, RadioNetwork::MultiplePduSessionIdInstances.into());

    // Its release.
    let id = PduSessionId::new(2).unwrap();
    world.amf.release_session(&ue, 2).await;
    let request = du.modify(&mut ue).await;
    assert_eq!(request.drbs_to_be_released.len(), 3);
    assert!(ue.seen.iter().any(|action| matches!(action, Action::RemoveSession(gone) if *gone == id)));
    let Ngap::PduSessionResourceReleaseResponse(_) = world.amf.receive().await else { panic!() };

    // The end.
    world.amf.release(&ue).await;
    let command = du.released(&mut ue).await;
    assert_eq!(command.cause, F1Cause::RadioNetwork(F1RadioNetwork::NormalRelease));
    assert!(matches!(ue.machine.next_action(), Some(Action::Released)));
    let Ngap::UeContextReleaseComplete(complete) = world.amf.receive().await else { panic!() };
    assert_eq!(complete.pdu_sessions, [PduSessionId::new(1).unwrap()]);
    idle(&world).await;
}

fn nas_message(ue: &Ue) -> ngap::DownlinkNasTransport {
    nas(ue, b"down")
}

/// Waits until no UE has a connection.
pub async fn idle(world: &World) {
    let empty = async {
        while world.cu.status().ues > 0 {
            net::time::sleep(Duration::from_millis(5)).await;
        }
    };
    net::time::timeout(LIMIT, empty).await.expect("UEs end");
}

#[tokio::test]
async fn security_of_the_user_plane_is_what_the_smf_asks_for() {
    let mut world = World::start(2, |config| config.pdcp_sn_bits = 12).await;
    let mut du = world.du(1).await;
    let upf = address(2, 40);
    let wants = |integrity, confidentiality| {
        Some(SecurityIndication { integrity, confidentiality, full_rate_integrity_uplink: Some(true) })
    };
    let sessions = vec![
        session(1, upf, 0, wants(Protection::Required, Protection::NotNeeded)),
        session(2, upf, 0, wants(Protection::NotNeeded, Protection::Preferred)),
    ];
    let mut ue = world.connected(&mut du, 1).await;
    world.amf.send(context_request(&ue, sessions)).await;
    let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
    let twelve = Some(f1ap::ie::PdcpSnLength::TwelveBits);
    assert!(request.drbs.iter().all(|drb| drb.dl_pdcp_sn_length == twelve));
    du.answer_setup(&mut ue, &request).await;
    du.serve(&mut ue).await;
    du.deliver(&mut ue).await;
    du.serve(&mut ue).await;
    let Ngap::InitialContextSetupResponse(response) = world.amf.receive().await else { panic!() };
    let result = |at: usize| {
        let transfer = &response.pdu_sessions[at].transfer;
        PduSessionResourceSetupResponseTransfer::decode(transfer).unwrap().security_result
    };
    assert_eq!(result(0), None, "nothing was preferred");
    assert_eq!(result(1), Some(SecurityResult { integrity: false, confidentiality: true }));
    let trailers: Vec<usize> = ue
        .seen
        .iter()
        .filter_map(|action| match action {
            Action::AddBearer(_, setup) => Some(setup.tx.trailer_len()),
            _ => None,
        })
        .collect();
    assert_eq!(trailers, [4, 0], "MAC-I with integrity protection only");
}

#[tokio::test]
async fn a_silent_ue_is_released() {
    let mut world = World::start(3, |config| config.inactivity_s = Some(1)).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, vec![session(1, address(3, 40), 0, None)]).await;
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, RadioNetwork::UserInactivity.into());
    assert_eq!(request.pdu_sessions.len(), 1);
    world.amf.release(&ue).await;
    du.released(&mut ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn the_du_may_ask_for_the_release() {
    let mut world = World::start(4, |_| {}).await;
    let mut du = world.du(1).await;
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    du.send(UeContextReleaseRequest {
        gnb_cu_ue_f1ap_id: ue.cu_ue,
        gnb_du_ue_f1ap_id: ue.du_ue,
        cause: F1Cause::RadioNetwork(F1RadioNetwork::RlFailureRlc),
    })
    .await;
    let Ngap::UeContextReleaseRequest(request) = world.amf.receive().await else { panic!() };
    assert_eq!(request.cause, RadioNetwork::RadioConnectionWithUeLost.into());
    world.amf.release(&ue).await;
    du.released(&mut ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
}

#[tokio::test]
async fn a_page_reaches_the_dus_of_its_tracking_area() {
    let world = World::start(5, |_| {}).await;
    let (mut du, mut other) = (world.du(1).await, world.du(2).await);
    let s_tmsi = types::STmsi::new(1, 2, types::Tmsi(0x0102_0304)).unwrap();
    let tai = |tac| types::Tai { plmn: plmn(), tac: types::Tac::new(tac).unwrap() };
    let cycle = Some(ngap::PagingDrx::V64);
    let page = |tac| ngap::Paging { s_tmsi, paging_drx: cycle, tais: vec![tai(tac)] };
    world.amf.send(page(2)).await;
    world.amf.send(page(1)).await;
    for du in [&mut du, &mut other] {
        let F1::Paging(paging) = du.receive().await else { panic!() };
        assert_eq!(paging.paging_identity, f1ap::ie::PagingIdentity::CnUe(s_tmsi));
        assert_eq!(paging.ue_identity_index.0, 0x304);
        assert_eq!(paging.paging_drx, Some(f1ap::ie::PagingDrx::V64));
        assert!(du.is_silent().await, "the page of another area goes nowhere");
    }
}
