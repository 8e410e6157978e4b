//! F1 Setup, broadcast, paging, resets, and what happens when the CU goes.

use f1ap::Pdu;
use f1ap::cause::{Cause, Misc, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use l2::uu::{self, Header, Kind};
use net::time::{now, timeout};
use rrc::system::{Mib, Sib1};
use rrc::{BcchBch, BcchDlSch, Pcch};
use types::{STmsi, Tmsi};

use crate::support::*;

#[tokio::test]
async fn the_cell_is_in_service_once_the_cu_has_accepted_it() {
    let net = Net(1);
    let mut listener = net.listen().await;
    let du = du::Du::start(&net.config(), None, 1).await.unwrap();
    let mut cu = Cu::accept(&mut listener).await;
    let Pdu::F1SetupRequest(request) = cu.next().await else { panic!() };
    let mut ue = Ue::new(net.uu()).await;
    ue.camp().await;
    ue.preamble().await;
    let Heard::Other(header, _) = ue.next().await else { panic!() };
    assert_eq!(header.kind, Kind::Backoff, "there is no answer to a camp yet, and no C-RNTI");
    assert!(!du.is_up());

    assert_eq!((request.gnb_du_id, request.gnb_du_name), (GnbDuId(0xD0), Some(NodeName("north-1".into()))));
    let [cell] = &request.served_cells[..] else { panic!() };
    let information = &cell.information;
    assert_eq!((information.nr_cgi, information.tac.unwrap().value()), (ncgi(), 7));
    let [plmn] = &information.served_plmns[..] else { panic!() };
    assert_eq!((plmn.plmn, plmn.slices.as_ref().unwrap().0.len()), (ncgi().plmn, 2));
    let information = cell.system_information.as_ref().unwrap();
    let (mib, sib1) = (Mib::decode(&information.mib).unwrap(), Sib1::decode(&information.sib1).unwrap());
    let [identity] = &sib1.cell_access_related_info.plmn_identity_info_list[..] else { panic!() };
    assert_eq!(identity.cell_identity, ncgi().nr_cell_id);
    assert_eq!(identity.tracking_area_code.unwrap().value(), 7);

    cu.send(accepted(request.transaction_id)).await;
    assert!(timeout(LIMIT, du.up()).await.unwrap());
    // The camp was noted.
    let (mib, sib1) = (BcchBch::from(mib).encode().unwrap(), BcchDlSch::from(sib1).encode().unwrap());
    let mib = Heard::Other(Header::broadcast(CELL, uu::BCH), mib.into());
    let sib1 = Heard::Other(Header::broadcast(CELL, uu::SI_RNTI), sib1.into());
    assert_eq!((ue.next().await, ue.next().await), (mib, sib1));
    ue.access().await;
}

fn refused(transaction_id: TransactionId, time_to_wait: Option<TimeToWait>) -> F1SetupFailure {
    F1SetupFailure {
        transaction_id,
        cause: Cause::Misc(Misc::ControlProcessingOverload),
        time_to_wait,
        criticality_diagnostics: None,
    }
}

#[tokio::test]
async fn a_refused_du_waits_as_long_as_the_cu_says() {
    let net = Net(2);
    let mut listener = net.listen().await;
    let du = du::Du::start(&net.config(), None, 1).await.unwrap();
    let mut cu = Cu::accept(&mut listener).await;
    let mut transactions = Vec::new();
    for (time_to_wait, least_ms) in [(Some(TimeToWait::V2s), 2_000), (None, 2_000)] {
        let Pdu::F1SetupRequest(request) = cu.next().await else { panic!() };
        let asked = now();
        cu.send(refused(request.transaction_id, time_to_wait)).await;
        transactions.push(request.transaction_id);
        assert!(cu.is_quiet().await && !du.is_up());
        if time_to_wait.is_none() {
            break;
        }
        // An answer to the old request means nothing.
        let Pdu::F1SetupRequest(again) = cu.next().await else { panic!() };
        assert!(now().duration_since(asked).as_millis() >= least_ms);
        assert!(!transactions.contains(&again.transaction_id));
        let Pdu::ErrorIndication(_) = cu.ask(accepted(request.transaction_id)).await else { panic!() };
        assert!(!du.is_up());
        cu.send(refused(again.transaction_id, Some(TimeToWait::V1s))).await;
    }
    // A cell that the CU does not activate stays out of service.
    let Pdu::F1SetupRequest(request) = cu.next().await else { panic!() };
    let response = F1SetupResponse { cells_to_be_activated: Vec::new(), ..accepted(request.transaction_id) };
    cu.send(response).await;
    assert!(cu.is_quiet().await && !du.is_up());
    cu.set_up().await;
    assert!(timeout(LIMIT, du.up()).await.unwrap());
}

#[tokio::test]
async fn ues_are_released_when_the_cu_vanishes_and_served_when_it_returns() {
    let mut world = World::new(3).await;
    let (mut ue, _) = world.connect(CU_ID).await;
    for abort in [true, false] {
        let camper = Ue::new(world.net.uu()).await;
        camper.camp().await;
        if abort {
            world.cu.association.abort();
        } else {
            world.cu.association.shutdown().await;
        }
        ue.released().await;
        assert!(timeout(LIMIT, world.du.down()).await.unwrap());
        ue.preamble().await;
        let Heard::Other(header, _) = ue.next().await else { panic!() };
        assert_eq!(header.kind, Kind::Backoff);
        world.cu = Cu::accept(&mut world.listener).await;
        world.cu.set_up().await;
        assert!(timeout(LIMIT, world.du.up()).await.unwrap());
        ue = world.connect(CU_ID).await.0;
    }
    world.du.shutdown().await;
    ue.released().await;
    assert!(matches!(
        timeout(LIMIT, world.cu.association.recv()).await,
        Ok(Some(net::sctp::Event::Closed { reason: net::sctp::CloseReason::Shutdown }))
    ));
}

#[tokio::test]
async fn a_du_waits_for_a_cu_that_is_not_there_yet() {
    let net = Net(4);
    let du = du::Du::start(&net.config(), None, 1).await.unwrap();
    assert!(timeout(QUIET, du.up()).await.is_err());
    let mut listener = net.listen().await;
    let mut cu = Cu::accept(&mut listener).await;
    cu.set_up().await;
    assert!(timeout(LIMIT, du.up()).await.unwrap());
}

fn paging(cell: types::Ncgi) -> Paging {
    let s_tmsi = STmsi::new(1, 2, Tmsi(0xCAFE_0001)).unwrap();
    Paging {
        ue_identity_index: UeIdentityIndexValue(1),
        paging_identity: PagingIdentity::CnUe(s_tmsi),
        paging_drx: None,
        cells: vec![PagingCell { nr_cgi: cell }],
    }
}

#[tokio::test]
async fn who_camps_hears_paging() {
    let world = World::new(5).await;
    let mut ue = Ue::new(world.net.uu()).await;
    ue.camp().await;
    let _ = (ue.next().await, ue.next().await);
    let elsewhere = types::Ncgi { nr_cell_id: types::NrCellId::new(CELL + 1).unwrap(), ..ncgi() };
    world.cu.send(paging(elsewhere)).await;
    world.cu.send(paging(ncgi())).await;
    let Heard::Other(header, message) = ue.next().await else { panic!() };
    assert_eq!(header, Header::broadcast(CELL, uu::P_RNTI));
    let Ok(Pcch::Paging(paging)) = Pcch::decode(&message) else { panic!() };
    let [record] = &paging.paging_record_list[..] else { panic!() };
    let s_tmsi = STmsi::new(1, 2, Tmsi(0xCAFE_0001)).unwrap();
    assert_eq!(record.ue_identity, rrc::message::PagingUeIdentity::Ng5gSTmsi(s_tmsi));
    assert!(ue.is_quiet().await);
}

fn reset(reset_type: ResetType) -> Reset {
    Reset { transaction_id: TransactionId(9), cause: Cause::Misc(Misc::HardwareFailure), reset_type }
}

#[tokio::test]
async fn the_cu_resets_some_ues_and_all() {
    let mut world = World::new(6).await;
    let (mut first, first_id) = world.connect(GnbCuUeF1apId(1)).await;
    let (mut second, second_id) = world.connect(GnbCuUeF1apId(2)).await;
    let named = |cu: Option<u32>, du: Option<GnbDuUeF1apId>| UeAssociation {
        gnb_cu_ue_f1ap_id: cu.map(GnbCuUeF1apId),
        gnb_du_ue_f1ap_id: du,
    };
    let ues = vec![
        named(Some(1), None),
        // Numbers of two UEs, of none, and nothing.
        named(Some(1), Some(second_id)),
        named(Some(77), Some(GnbDuUeF1apId(77_777))),
        named(None, None),
    ];
    let acknowledge = world.cu.ask(reset(ResetType::PartOfF1Interface(ues.clone()))).await;
    let Pdu::ResetAcknowledge(acknowledge) = acknowledge else { panic!() };
    assert_eq!((acknowledge.transaction_id, acknowledge.ue_associations), (TransactionId(9), ues));
    first.released().await;
    assert!(second.is_quiet().await);
    let answer = world.cu.ask(dl(GnbCuUeF1apId(1), first_id, 1, b"x")).await;
    assert!(matches!(answer, Pdu::ErrorIndication(_)));

    let Pdu::ResetAcknowledge(_) = world.cu.ask(reset(ResetType::F1Interface)).await else { panic!() };
    second.released().await;
    let (_ue, id) = world.connect(GnbCuUeF1apId(2)).await;
    assert!(id != first_id && id != second_id, "numbers are not used again at once");
}

#[tokio::test]
async fn the_du_resets_the_interface() {
    let mut world = World::new(7).await;
    let (mut ue, _) = world.connect(CU_ID).await;
    world.du.reset();
    let Pdu::Reset(reset) = world.cu.next().await else { panic!() };
    assert_eq!(reset.reset_type, ResetType::F1Interface);
    ue.released().await;
    // New UEs are served while the Reset is under way, and after it.
    world.connect(CU_ID).await;
    let acknowledge = ResetAcknowledge {
        transaction_id: reset.transaction_id,
        ue_associations: Vec::new(),
        criticality_diagnostics: None,
    };
    world.cu.send(acknowledge.clone()).await;
    world.cu.send(acknowledge).await;
    world.connect(GnbCuUeF1apId(2)).await;
}

#[tokio::test]
async fn an_error_indication_about_an_unknown_ue_releases_it() {
    let mut world = World::new(8).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let indication = |cause| ErrorIndication {
        transaction_id: TransactionId(0),
        gnb_cu_ue_f1ap_id: Some(CU_ID),
        gnb_du_ue_f1ap_id: Some(id),
        cause: Some(Cause::RadioNetwork(cause)),
        criticality_diagnostics: None,
    };
    world.cu.send(indication(RadioNetwork::Unspecified)).await;
    assert!(ue.is_quiet().await);
    world.cu.send(indication(RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId)).await;
    ue.released().await;
    assert!(world.cu.is_quiet().await, "an Error Indication has no answer");
}
