//! F1 Setup, resets, and what DUs may not do.

use f1ap::Pdu as F1;
use f1ap::cause::{Cause, Protocol, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use ngap::Pdu as Ngap;
use types::{Ncgi, NrCellId, Plmn};

use crate::connections::idle;
use crate::support::*;

#[tokio::test]
async fn f1_setup_is_refused_with_the_reason() {
    let world = World::start(10, |_| {}).await;
    let du = world.du(1).await;
    let foreign = Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(0x0_0000_1001).unwrap() };
    let elsewhere = Ncgi { plmn: Plmn::new("001", "01").unwrap(), ..cell(9) };
    for (id, nr_cgi, cause) in [
        (2, foreign, Cause::RadioNetwork(RadioNetwork::CellNotAvailable)),
        (2, elsewhere, Cause::RadioNetwork(RadioNetwork::PlmnNotServedByTheGnbCu)),
        // Another DU's cell, and another DU's identity.
        (2, cell(1), Cause::RadioNetwork(RadioNetwork::CellNotAvailable)),
        (1, cell(9), Cause::Misc(f1ap::cause::Misc::OmIntervention)),
    ] {
        let mut other = world.associate(50).await;
        other.send(setup_request(id, nr_cgi)).await;
        let F1::F1SetupFailure(failure) = other.receive().await else { panic!() };
        assert_eq!((failure.cause, failure.transaction_id), (cause, TransactionId(3)), "{id} {nr_cgi:?}");
        assert!(failure.time_to_wait.is_some());
        // It may try again on the same association.
        other.send(setup_request(3, cell(3))).await;
        let F1::F1SetupResponse(_) = other.receive().await else { panic!() };
        other.abort();
        while world.cu.status().dus.len() > 1 {
            net::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    drop(du);
}

#[tokio::test]
async fn what_is_malformed_or_out_of_place_is_answered() {
    let world = World::start(11, |_| {}).await;
    let mut du = world.associate(21).await;
    // Before F1 Setup nothing else is served.
    du.send(Reset {
        transaction_id: TransactionId(1),
        cause: Cause::RadioNetwork(RadioNetwork::Unspecified),
        reset_type: ResetType::F1Interface,
    })
    .await;
    let F1::ErrorIndication(error) = du.receive().await else { panic!() };
    assert_eq!(error.cause, Some(Cause::Protocol(Protocol::MessageNotCompatibleWithReceiverState)));
    du.send(setup_request(1, cell(1))).await;
    let F1::F1SetupResponse(_) = du.receive().await else { panic!() };
    for octets in [vec![0xFF; 40], vec![0], b"GET / HTTP/1.1".to_vec()] {
        du.send_bytes(octets).await;
    }
    // A UE that the CU does not have.
    du.send(UlRrcMessageTransfer {
        gnb_cu_ue_f1ap_id: GnbCuUeF1apId(123),
        gnb_du_ue_f1ap_id: GnbDuUeF1apId(1),
        srb_id: SrbId(1),
        rrc_container: vec![0; 20],
    })
    .await;
    // What is malformed is answered, unless its criticality is `ignore`.
    let mut answers = 0;
    let error = loop {
        let F1::ErrorIndication(error) = du.receive().await else { panic!() };
        match error.cause {
            Some(Cause::Protocol(_)) => answers += 1,
            _ => break error,
        }
    };
    assert!(answers > 0);
    let unknown = RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId;
    assert_eq!(error.cause, Some(Cause::RadioNetwork(unknown)));
    // A message that only a CU sends.
    du.send(Paging {
        ue_identity_index: UeIdentityIndexValue(1),
        paging_identity: PagingIdentity::RanUe(1),
        paging_drx: None,
        cells: vec![PagingCell { nr_cgi: cell(1) }],
    })
    .await;
    let F1::ErrorIndication(_) = du.receive().await else { panic!() };
    assert_eq!(world.cu.status().dus.len(), 1, "the DU is still served");
}

#[tokio::test]
async fn a_du_cannot_speak_for_another_dus_ue() {
    let mut world = World::start(12, |_| {}).await;
    let (mut du, mut other) = (world.du(1).await, world.du(2).await);
    let mut ue = world.with_context(&mut du, 1, Vec::new()).await;
    other
        .send(UeContextReleaseRequest {
            gnb_cu_ue_f1ap_id: ue.cu_ue,
            gnb_du_ue_f1ap_id: ue.du_ue,
            cause: Cause::RadioNetwork(RadioNetwork::Unspecified),
        })
        .await;
    let F1::ErrorIndication(error) = other.receive().await else { panic!() };
    let inconsistent = RadioNetwork::UnknownOrInconsistentPairOfUeF1apId;
    assert_eq!(error.cause, Some(Cause::RadioNetwork(inconsistent)));
    // Its resets reach its own UEs only.
    other
        .send(Reset {
            transaction_id: TransactionId(7),
            cause: Cause::RadioNetwork(RadioNetwork::Unspecified),
            reset_type: ResetType::PartOfF1Interface(vec![UeAssociation {
                gnb_cu_ue_f1ap_id: Some(ue.cu_ue),
                gnb_du_ue_f1ap_id: None,
            }]),
        })
        .await;
    let F1::ResetAcknowledge(acknowledge) = other.receive().await else { panic!() };
    assert_eq!(acknowledge.transaction_id, TransactionId(7));
    ue.machine.send_nas(bytes::Bytes::from_static(b"still here"));
    du.serve(&mut ue).await;
    let Ngap::UplinkNasTransport(uplink) = world.amf.receive().await else { panic!() };
    assert_eq!(uplink.nas_pdu, &b"still here"[..]);
}

#[tokio::test]
async fn a_reset_ends_the_ues_that_it_names() {
    let mut world = World::start(13, |_| {}).await;
    let mut du = world.du(1).await;
    let ue = world.with_context(&mut du, 1, Vec::new()).await;
    let reset = |reset_type| Reset {
        transaction_id: TransactionId(9),
        cause: Cause::RadioNetwork(RadioNetwork::Unspecified),
        reset_type,
    };
    let named = UeAssociation { gnb_cu_ue_f1ap_id: None, gnb_du_ue_f1ap_id: Some(ue.du_ue) };
    du.send(reset(ResetType::PartOfF1Interface(vec![named]))).await;
    let F1::ResetAcknowledge(acknowledge) = du.receive().await else { panic!() };
    assert_eq!(acknowledge.ue_associations.len(), 1);
    let Ngap::UeContextReleaseRequest(_) = world.amf.receive().await else { panic!() };
    world.amf.release(&ue).await;
    let Ngap::UeContextReleaseComplete(_) = world.amf.receive().await else { panic!() };
    idle(&world).await;
    assert!(du.is_silent().await, "a UE that the DU has forgotten is not released there");
}

/// The time for F1 Setup begins anew when a DU has lost what it had set up.
#[tokio::test]
async fn a_du_may_set_up_once_more_on_an_old_association() {
    let world = World::start(14, |_| {}).await;
    let mut du = world.du(1).await;
    net::time::sleep(std::time::Duration::from_millis(10_200)).await;
    let foreign = Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(0x0_0000_1001).unwrap() };
    du.send(setup_request(1, foreign)).await;
    let F1::F1SetupFailure(_) = du.receive().await else { panic!() };
    net::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(world.cu.status().dus.len(), 0);
    du.send(setup_request(1, cell(1))).await;
    let F1::F1SetupResponse(_) = du.receive().await else { panic!() };
}
