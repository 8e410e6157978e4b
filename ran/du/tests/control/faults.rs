//! Messages that cannot be served.

use f1ap::Pdu;
use f1ap::cause::{Cause, Protocol, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;

use crate::support::*;

fn cause(pdu: &Pdu) -> Cause {
    match pdu {
        Pdu::ErrorIndication(error) => error.cause.unwrap(),
        Pdu::UeContextSetupFailure(failure) => failure.cause,
        Pdu::UeContextModificationFailure(failure) => failure.cause,
        other => panic!("{other:?}"),
    }
}

const UNKNOWN: Cause = Cause::RadioNetwork(RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId);
const PAIR: Cause = Cause::RadioNetwork(RadioNetwork::UnknownOrInconsistentPairOfUeF1apId);
const TAKEN: Cause = Cause::RadioNetwork(RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId);

#[tokio::test]
async fn ues_that_do_not_exist_are_named() {
    let mut world = World::new(50).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let (other_cu, other_du) = (GnbCuUeF1apId(1), GnbDuUeF1apId(99_999));
    for (cu, du, expected) in [(CU_ID, other_du, UNKNOWN), (other_cu, id, PAIR)] {
        let messages: [Pdu; 4] = [
            dl(cu, du, 1, b"x").into(),
            setup(cu, du, Vec::new()).into(),
            modification(cu, du).into(),
            command(cu, du, None).into(),
        ];
        for message in messages {
            let answer = world.cu.ask(message).await;
            assert_eq!(cause(&answer), expected, "{answer:?}");
        }
    }
    // The CU's number of one UE for another one.
    let (_second, initial) = world.access().await;
    let answer = world.cu.ask(dl(CU_ID, initial.gnb_du_ue_f1ap_id, 0, b"RRCSetup")).await;
    assert_eq!(cause(&answer), TAKEN);
    // The UE has not noticed.
    world.cu.send(dl(CU_ID, id, 1, b"still here")).await;
    assert_eq!(ue.rrc().await, (1, b"still here".to_vec()));
}

#[tokio::test]
async fn another_cell_and_a_handover_are_refused() {
    let mut world = World::new(51).await;
    let (_ue, id) = world.connect(CU_ID).await;
    let mut request = setup(CU_ID, id, Vec::new());
    request.sp_cell_id.nr_cell_id = types::NrCellId::new(CELL + 1).unwrap();
    let answer = world.cu.ask(request).await;
    assert_eq!(cause(&answer), Cause::RadioNetwork(RadioNetwork::CellNotAvailable));
    let request =
        UeContextSetupRequest { gnb_du_ue_f1ap_id: None, ..setup(GnbCuUeF1apId(8), id, Vec::new()) };
    let answer = world.cu.ask(request).await;
    assert_eq!(cause(&answer), Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable));
}

#[tokio::test]
async fn octets_that_are_no_message_are_answered() {
    let mut world = World::new(52).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    world.cu.send_octets(vec![0xFF; 40]).await;
    assert_eq!(cause(&world.cu.next().await), Cause::Protocol(Protocol::TransferSyntaxError));
    let whole = Pdu::from(modification(CU_ID, id)).encode().unwrap();
    for length in 1..whole.len() {
        world.cu.send_octets(whole[..length].to_vec()).await;
        let answer = world.cu.next().await;
        assert!(matches!(cause(&answer), Cause::Protocol(_)), "{answer:?}");
    }
    // Messages of a DU, and answers to nothing.
    let strange: [Pdu; 3] = [
        UeContextReleaseComplete {
            gnb_cu_ue_f1ap_id: CU_ID,
            gnb_du_ue_f1ap_id: id,
            criticality_diagnostics: None,
        }
        .into(),
        UlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id: CU_ID,
            gnb_du_ue_f1ap_id: id,
            srb_id: SrbId(1),
            rrc_container: vec![1],
        }
        .into(),
        accepted(TransactionId(1)).into(),
    ];
    for message in strange {
        let state = Cause::Protocol(Protocol::MessageNotCompatibleWithReceiverState);
        assert_eq!(cause(&world.cu.ask(message).await), state);
    }
    world.cu.send(dl(CU_ID, id, 1, b"still here")).await;
    assert_eq!(ue.rrc().await, (1, b"still here".to_vec()));
}

#[tokio::test]
async fn nothing_is_served_before_set_up() {
    let net = Net(53);
    let mut listener = net.listen().await;
    let _du = du::Du::start(&net.config(), None, 1).await.unwrap();
    let mut cu = Cu::accept(&mut listener).await;
    let Pdu::F1SetupRequest(_) = cu.next().await else { panic!() };
    let answer = cu.ask(dl(CU_ID, GnbDuUeF1apId(1), 0, b"RRCSetup")).await;
    assert_eq!(cause(&answer), Cause::Protocol(Protocol::MessageNotCompatibleWithReceiverState));
}
