//! Commands of the MME: each ends with the request that it triggers, or is refused.

use crate::bearers::{create, filter, tft};
use crate::support::*;
use gtpv2c::message::*;
use gtpv2c::tft::{Operation, Tft};
use gtpv2c::*;
use lte::ue::{DEFAULT_BEARER, NetworkEvent};

#[tokio::test]
async fn a_ue_asks_for_a_bearer_and_gives_it_back() {
    let (mut world, attachment) = attached(70, |_| {}).await;
    let mme = attachment.mme;
    let World { gateway, ue, .. } = &mut world;
    let flow = FlowQos { qci: 1, gbr_uplink_kbps: 64, gbr_downlink_kbps: 64, ..Default::default() };
    let script = async {
        let (id, CONTROL, Message::BearerResourceCommand(command)) = gateway.request().await else {
            panic!()
        };
        assert_eq!((command.linked_ebi, command.flow_qos, command.ebi), (DEFAULT_BEARER, Some(flow), None));
        let tad = Tft::decode(&command.tad.unwrap().0).unwrap();
        assert_eq!(tad.operation, Operation::Create(vec![filter(1, 5060)]));
        let bearers = [(0, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)];
        let request = CreateBearerRequest { pti: Some(command.pti), ..create(gateway, &bearers) };
        let request = gateway.trigger(id, mme, request);
        let Message::CreateBearerResponse(answer) = gateway.answer(request).await else { panic!() };
        assert!(answer.cause.is_accepted());
        command.pti
    };
    let (event, first) = tokio::join!(ue.request_bearer(vec![filter(1, 5060)], flow), script);
    assert_eq!(event.unwrap(), NetworkEvent::BearersCreated(vec![Ebi(6)]));
    assert!(ue.send(to_port(5060)));
    assert_eq!(gateway.uplink().await, (0x3300, to_port(5060)));

    let script = async {
        let (id, _, Message::BearerResourceCommand(command)) = gateway.request().await else { panic!() };
        assert_ne!(command.pti, first);
        assert_eq!(command.ebi, Some(Ebi(6)));
        let tad = Tft::decode(&command.tad.unwrap().0).unwrap();
        assert_eq!(tad.operation, Operation::DeleteFilters(vec![1]));
        let request = DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() };
        let request = gateway.trigger(id, mme, request);
        gateway.answer(request).await;
    };
    let (event, ()) = tokio::join!(ue.give_back(Ebi(6)), script);
    assert_eq!(event.unwrap(), NetworkEvent::BearersDeleted(vec![Ebi(6)]));
}

#[tokio::test]
async fn the_radio_network_and_the_subscription_change_bearers() {
    let (mut world, attachment) = attached(71, |_| {}).await;
    let mme = attachment.mme;
    let World { gateway, ue, .. } = &mut world;
    let apn_ambr = Ambr { uplink_kbps: 5, downlink_kbps: 6 };
    let qos = BearerQos { flow: FlowQos { qci: 8, ..Default::default() }, ..Default::default() };
    let script = async {
        let (id, _, Message::ModifyBearerCommand(command)) = gateway.request().await else { panic!() };
        assert_eq!((command.apn_ambr, command.bearer.qos), (apn_ambr, Some(qos)));
        let bearer =
            BearerInUpdateRequest { ebi: DEFAULT_BEARER, qos: command.bearer.qos, ..Default::default() };
        let request = UpdateBearerRequest { bearers: vec![bearer], apn_ambr, ..Default::default() };
        let request = gateway.trigger(id, mme, request);
        gateway.answer(request).await;
    };
    let (event, ()) = tokio::join!(ue.change_subscription(apn_ambr, qos), script);
    assert_eq!(event.unwrap(), NetworkEvent::BearersUpdated(vec![DEFAULT_BEARER]));
    let pdn = ue.pdn().unwrap();
    assert_eq!((pdn.ambr(), pdn.bearers()[&DEFAULT_BEARER].qos.flow.qci), (Some(apn_ambr), 8));

    // Each command may be refused.
    let refuse = async {
        for cause in [CauseValue::SERVICE_DENIED, CauseValue::NO_RESOURCES, CauseValue::CONTEXT_NOT_FOUND] {
            let (id, _, _) = gateway.request().await;
            gateway.reject(id, mme, cause);
        }
    };
    let ask = async {
        let flow = FlowQos { qci: 9, ..Default::default() };
        let first = ue.request_bearer(vec![filter(1, 5060)], flow).await.unwrap_err();
        let second = ue.change_subscription(apn_ambr, qos).await.unwrap_err();
        (first, second, ue.lose_bearers(&[Ebi(6)]).await.unwrap_err())
    };
    let ((first, second, third), ()) = tokio::join!(ask, refuse);
    assert_eq!(first.cause(), Some(CauseValue::SERVICE_DENIED));
    assert_eq!(second.cause(), Some(CauseValue::NO_RESOURCES));
    assert_eq!(third.cause(), Some(CauseValue::CONTEXT_NOT_FOUND));
    assert!(ue.is_attached(), "the bearer may be meant");
}

#[tokio::test]
async fn the_radio_network_gives_up_a_bearer() {
    let (mut world, attachment) = attached(72, |_| {}).await;
    let mme = attachment.mme;
    let World { gateway, ue, .. } = &mut world;
    let flow = FlowQos { qci: 1, ..Default::default() };
    let script = async {
        let (id, _, _) = gateway.request().await;
        let bearers = [(0, tft(Operation::Create(vec![filter(1, 5060)])), 0x3300)];
        let request = gateway.trigger(id, mme, create(gateway, &bearers));
        gateway.answer(request).await;
        let (id, _, Message::DeleteBearerCommand(command)) = gateway.request().await else { panic!() };
        assert_eq!(command.bearers.iter().map(|bearer| bearer.ebi).collect::<Vec<_>>(), [Ebi(6)]);
        let request = DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() };
        let request = gateway.trigger(id, mme, request);
        gateway.answer(request).await;
    };
    let loses = async {
        ue.request_bearer(vec![filter(1, 5060)], flow).await.unwrap();
        ue.lose_bearers(&[Ebi(6)]).await.unwrap()
    };
    let (event, ()) = tokio::join!(loses, script);
    assert_eq!(event, NetworkEvent::BearersDeleted(vec![Ebi(6)]));
    assert_eq!(ue.pdn().unwrap().bearers().len(), 1);
}
