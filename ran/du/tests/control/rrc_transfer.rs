//! RRC messages between UE and CU.

use f1ap::Pdu;
use rrc::CellGroupConfig;
use rrc::cell_group::{RlcConfig, ServedRadioBearer};

use crate::support::*;

#[tokio::test]
async fn messages_pass_in_both_directions_on_all_bearers() {
    let mut world = World::new(20).await;
    let (mut ue, initial) = world.access().await;
    assert_eq!((initial.nr_cgi, &initial.rrc_container[..]), (ncgi(), &b"RRCSetupRequest"[..]));
    let group = CellGroupConfig::decode(&initial.du_to_cu_rrc_container.unwrap()).unwrap();
    let [srb1] = &group.rlc_bearer_to_add_mod_list[..] else { panic!() };
    assert_eq!(srb1.logical_channel_identity.value(), 1);
    assert!(matches!(&srb1.served_radio_bearer, Some(ServedRadioBearer::Srb(id)) if id.value() == 1));
    assert!(matches!(srb1.rlc_config, Some(RlcConfig::Am(_))));
    let id = initial.gnb_du_ue_f1ap_id;

    // The UE has no answer yet: the CU does not hear of its repetition.
    ue.send(0, b"RRCSetupRequest").await;
    ue.send(0, b"something else").await;
    assert!(world.cu.is_quiet().await);
    world.cu.send(dl(CU_ID, id, 0, b"RRCSetup")).await;
    assert_eq!(ue.rrc().await, (0, b"RRCSetup".to_vec()));
    // The answer was lost: it is repeated.
    ue.send(0, b"RRCSetupRequest").await;
    assert_eq!(ue.rrc().await, (0, b"RRCSetup".to_vec()));
    assert!(world.cu.is_quiet().await);

    ue.send(1, &[1; 3_000]).await;
    assert_eq!(world.cu.ul().await, (1, vec![1; 3_000]));
    // From now on SRB0 is not used.
    ue.send(0, b"RRCSetupRequest").await;
    // SRB2 is not there yet.
    ue.send(2, b"too early").await;
    assert!(ue.is_quiet().await && world.cu.is_quiet().await);
    let Pdu::ErrorIndication(_) = world.cu.ask(dl(CU_ID, id, 2, b"too early")).await else { panic!() };
    let Pdu::ErrorIndication(_) = world.cu.ask(dl(CU_ID, id, 3, b"never")).await else { panic!() };

    let request = f1ap::message::UeContextSetupRequest {
        rrc_container: Some(b"SecurityModeCommand".to_vec()),
        ..setup(CU_ID, id, Vec::new())
    };
    let Pdu::UeContextSetupResponse(response) = world.cu.ask(request).await else { panic!() };
    let group = CellGroupConfig::decode(&response.du_to_cu_rrc_information.cell_group_config).unwrap();
    assert_eq!(group.rlc_bearer_to_add_mod_list.len(), 1);
    assert_eq!(response.c_rnti.unwrap().0, ue.c_rnti);
    assert_eq!(ue.rrc().await, (1, b"SecurityModeCommand".to_vec()));
    for (srb, message) in [(1, vec![3; 100]), (2, vec![4; 5_000])] {
        ue.send(srb, &message).await;
        assert_eq!(world.cu.ul().await, (srb, message.clone()));
        world.cu.send(dl(CU_ID, id, srb, &message)).await;
        assert_eq!(ue.rrc().await, (srb, message));
    }
}

#[tokio::test]
async fn a_ue_that_comes_back_loses_its_former_context() {
    let mut world = World::new(21).await;
    let (mut before, old) = world.connect(CU_ID).await;
    let (mut ue, initial) = world.access().await;
    let cu = f1ap::ie::GnbCuUeF1apId(5);
    let transfer = f1ap::message::DlRrcMessageTransfer {
        old_gnb_du_ue_f1ap_id: Some(old),
        ..dl(cu, initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup")
    };
    world.cu.send(transfer).await;
    before.released().await;
    assert_eq!(ue.rrc().await, (0, b"RRCSetup".to_vec()));
    let Pdu::ErrorIndication(_) = world.cu.ask(dl(CU_ID, old, 1, b"x")).await else { panic!() };
}
