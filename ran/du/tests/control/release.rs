//! How UEs go.

use f1ap::Pdu;
use f1ap::cause::{Cause, RadioNetwork};

use crate::support::*;

#[tokio::test]
async fn the_cu_releases_a_ue_with_a_last_message() {
    let mut world = World::new(40).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    assert_eq!(world.du.ues(), 1);
    let Pdu::UeContextReleaseComplete(complete) = world.cu.ask(command(CU_ID, id, Some(b"RRCRelease"))).await
    else {
        panic!()
    };
    assert_eq!((complete.gnb_cu_ue_f1ap_id, complete.gnb_du_ue_f1ap_id), (CU_ID, id));
    assert_eq!(ue.rrc().await, (1, b"RRCRelease".to_vec()));
    assert!(ue.is_quiet().await, "it has got it, so there is no release on `uu`");
    // The second time there is no such UE.
    let answer = world.cu.ask(command(CU_ID, id, None)).await;
    let Pdu::ErrorIndication(error) = answer else { panic!("{answer:?}") };
    assert_eq!(error.cause, Some(Cause::RadioNetwork(RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId)));
    // Both numbers can be used again: the CU's at once, the C-RNTI not yet.
    let (mut again, other) = world.connect(CU_ID).await;
    assert!(other != id && again.c_rnti != ue.c_rnti);
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command(CU_ID, other, None)).await else { panic!() };
    again.released().await;
    let gone = async {
        while world.du.ues() > 0 {
            net::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    net::time::timeout(LIMIT, gone).await.unwrap();
}

#[tokio::test]
async fn a_ue_can_be_rejected_on_srb0() {
    let mut world = World::new(41).await;
    let (mut ue, initial) = world.access().await;
    let command = f1ap::message::UeContextReleaseCommand {
        srb_id: Some(f1ap::ie::SrbId(0)),
        ..command(CU_ID, initial.gnb_du_ue_f1ap_id, Some(b"RRCReject"))
    };
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command).await else { panic!() };
    assert_eq!(ue.rrc().await, (0, b"RRCReject".to_vec()));
    ue.released().await;
}

#[tokio::test]
async fn the_cu_is_asked_to_release_a_ue_that_has_gone() {
    let mut world = World::new(42).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    ue.release().await;
    let Pdu::UeContextReleaseRequest(request) = world.cu.next().await else { panic!() };
    assert_eq!((request.gnb_cu_ue_f1ap_id, request.gnb_du_ue_f1ap_id), (CU_ID, id));
    assert_eq!(request.cause, Cause::RadioNetwork(RadioNetwork::RlFailureOthers));
    ue.release().await;
    assert!(world.cu.is_quiet().await, "once is enough");
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command(CU_ID, id, Some(b"RRCRelease"))).await else {
        panic!()
    };
    ue.released().await;
    // One that goes before the CU has answered is not mentioned.
    let (ue, initial) = world.access().await;
    ue.release().await;
    assert!(world.cu.is_quiet().await);
    let answer = world.cu.ask(dl(CU_ID, initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup")).await;
    assert!(matches!(answer, Pdu::ErrorIndication(_)));
}

#[tokio::test]
async fn the_cu_is_asked_to_release_a_ue_that_is_silent() {
    let mut world = World::new(43).await;
    let (ue, id) = world.connect(CU_ID).await;
    ue.fall_silent();
    world.cu.send(dl(CU_ID, id, 1, b"DLInformationTransfer")).await;
    let Pdu::UeContextReleaseRequest(request) = world.cu.next().await else { panic!() };
    assert_eq!(request.cause, Cause::RadioNetwork(RadioNetwork::RlFailureRlc));
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command(CU_ID, id, Some(b"RRCRelease"))).await else {
        panic!()
    };
}
