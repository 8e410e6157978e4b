//! RRC over a bad radio link.

use std::time::Duration;

use du::Radio;
use f1ap::Pdu;
use net::time::timeout;

use crate::support::*;

#[tokio::test]
async fn rrc_arrives_over_a_link_that_loses_half() {
    let net = Net(60);
    let mut config = net.config();
    for link in [&mut config.radio.downlink, &mut config.radio.uplink] {
        (link.loss, link.harq_retransmissions, link.delay_us) = (0.5, 0, 2_000);
    }
    let mut world = World::with(net, &config).await;
    let mut ue = Ue::new(net.uu()).await;
    ue.access().await;
    // SRB0 is repeated by the UE, and by the DU.
    let initial = loop {
        ue.send(0, b"RRCSetupRequest").await;
        if let Ok(initial) = timeout(Duration::from_millis(50), world.cu.initial()).await {
            break initial;
        }
    };
    let id = initial.gnb_du_ue_f1ap_id;
    world.cu.send(dl(CU_ID, id, 0, b"RRCSetup")).await;
    loop {
        match timeout(Duration::from_millis(50), ue.rrc()).await {
            Ok(answer) => break assert_eq!(answer, (0, b"RRCSetup".to_vec())),
            Err(_) => ue.send(0, b"RRCSetupRequest").await,
        }
    }
    // The DU gives a bearer up that loses eight times in a row: that is one message in 256 here, so a few are few enough.
    ue.send(1, b"RRCSetupComplete").await;
    assert_eq!(world.cu.ul().await, (1, b"RRCSetupComplete".to_vec()));
    world.cu.send(dl(CU_ID, id, 1, b"DLInformationTransfer")).await;
    loop {
        // Repeated answers on SRB0 may come late.
        if ue.rrc().await == (1, b"DLInformationTransfer".to_vec()) {
            break;
        }
    }
    assert!(world.du.stats().drops.get(telemetry::DropReason::RadioLoss) > 0);
}

#[tokio::test]
async fn without_a_rate_nothing_arrives_and_the_ue_is_given_up() {
    let mut world = World::new(61).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let dead = Radio { rate: Some(0), ..Radio::UNLIMITED };
    let control = world.du.control().clone();
    control.set_radio(ue.c_rnti, dead, dead).unwrap();
    world.cu.send(dl(CU_ID, id, 1, b"DLInformationTransfer")).await;
    ue.send(1, b"ULInformationTransfer").await;
    let Pdu::UeContextReleaseRequest(_) = world.cu.next().await else { panic!("nothing arrives") };
    assert!(ue.is_quiet().await);
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command(CU_ID, id, Some(b"RRCRelease"))).await else {
        panic!()
    };
    // A release on `uu` is not subject to the radio link.
    ue.released().await;
}

/// RRCReject comes in the command that releases the UE: the context lives until it has arrived.
#[tokio::test]
async fn a_rejection_arrives_over_a_slow_link() {
    let net = Net(62);
    let mut config = net.config();
    for link in [&mut config.radio.downlink, &mut config.radio.uplink] {
        link.delay_us = 300_000;
    }
    let mut world = World::with(net, &config).await;
    let (mut ue, initial) = world.access().await;
    let command = f1ap::message::UeContextReleaseCommand {
        srb_id: Some(f1ap::ie::SrbId(0)),
        ..command(CU_ID, initial.gnb_du_ue_f1ap_id, Some(b"RRCReject"))
    };
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command).await else { panic!() };
    assert_eq!(ue.rrc().await, (0, b"RRCReject".to_vec()));
}
