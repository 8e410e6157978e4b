//! Whole runs: what a configuration makes the UEs do, and which events are reported.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nas::Message;
use ngap::Pdu;
use ngap::cause::{Misc, Nas, RadioNetwork};
use simulator::{Config, Event, Hold, RunError};

use crate::support::*;

/// The names of the events, in order.
fn names(events: &Mutex<Vec<Event>>) -> Vec<String> {
    let events = events.lock().unwrap();
    let name = |event: &Event| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned();
    events.iter().map(name).collect()
}

fn collector() -> (Arc<Mutex<Vec<Event>>>, impl Fn(&Event) + Send + Sync + 'static) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    (events, move |event: &Event| sink.lock().unwrap().push(event.clone()))
}

#[tokio::test]
async fn ues_come_and_go_as_often_as_asked() {
    let (config, mut listener) = listen(30, |config| {
        config.ue.session = None;
        (config.cycles, config.hold) = (2, Hold::For(Duration::ZERO));
    })
    .await;
    let (events, sink) = collector();
    let supi = config.ue.first_imsi.into();
    let script = async {
        let mut network = accept_gnb(&mut listener, 30).await;
        network.register(supi).await;
        leave(&mut network).await;
        // The UE registers again with its identity and keys.
        let octets = network.nas_octets().await;
        network.context.as_mut().unwrap().unprotect(&octets).unwrap();
        network.accept(2).await;
        leave(&mut network).await;
        network
    };
    let run = simulator::run_with(config, sink, std::future::pending());
    let (totals, _network) = tokio::join!(run, script);
    let totals = totals.unwrap();
    assert_eq!((totals.registered, totals.deregistered, totals.failed), (2, 2, 0));
    let expected = ["gnb", "registered", "ready", "deregistered", "registered", "deregistered", "summary"];
    assert_eq!(names(&events), expected);
    let Event::Registered { authenticated, registration_ms, .. } = events.lock().unwrap()[4] else {
        panic!()
    };
    assert!(!authenticated && registration_ms > 0.0);
}

async fn leave(network: &mut Network) {
    assert!(matches!(network.protected().await, Message::DeregistrationRequestUe(_)));
    network.send_protected(Message::DeregistrationAcceptUe).await;
    network.release(Nas::Deregister).await;
}

#[tokio::test]
async fn an_interrupted_run_deregisters_and_a_failure_is_told() {
    let (config, mut listener) = listen(31, |config| config.ue.session = None).await;
    let (events, sink) = collector();
    let supi = config.ue.first_imsi.into();
    let interrupted = tokio::sync::Notify::new();
    let script = async {
        let mut network = accept_gnb(&mut listener, 31).await;
        network.register(supi).await;
        // An Error Indication about the UE is a reported failure; it does not end the connection.
        network
            .send(ngap::ErrorIndication {
                amf_ue_ngap_id: Some(AMF_ID),
                ran_ue_ngap_id: network.ran_id,
                cause: Some(Misc::HardwareFailure.into()),
                criticality_diagnostics: None,
                s_tmsi: None,
            })
            .await;
        while !names(&events).contains(&"failed".to_owned()) {
            net::time::sleep(Duration::from_millis(1)).await;
        }
        interrupted.notify_one();
        leave(&mut network).await;
        network
    };
    let run = simulator::run_with(config, sink, interrupted.notified());
    let (totals, _network) = tokio::join!(run, script);
    let totals = totals.unwrap();
    assert_eq!((totals.registered, totals.deregistered, totals.failed), (1, 1, 1));
    let expected = ["gnb", "registered", "ready", "failed", "deregistered", "summary"];
    assert_eq!(names(&events), expected);
}

#[tokio::test]
async fn an_inactive_ue_is_released_and_comes_back_when_it_is_paged() {
    let (config, mut listener) = listen(33, |config| {
        config.ue.session = None;
        config.inactivity = Some(Duration::from_millis(100));
    })
    .await;
    let (events, sink) = collector();
    let supi = config.ue.first_imsi.into();
    let interrupted = tokio::sync::Notify::new();
    let script = async {
        let mut network = accept_gnb(&mut listener, 33).await;
        network.register(supi).await;
        for _ in 0..2 {
            let Pdu::UeContextReleaseRequest(request) = network.receive().await else { panic!() };
            assert_eq!(request.cause, RadioNetwork::UserInactivity.into());
            network.release(RadioNetwork::UserInactivity).await;
            network.page(guti(0x1001).s_tmsi(), 1).await;
            let (_, request) = network.service_request().await;
            assert_eq!(request.service_type, nas::ServiceType::MobileTerminated);
            let accept = Message::ServiceAccept(nas::gmm::ServiceAccept::default());
            network.set_up_context(accept, Vec::new()).await;
        }
        while names(&events).iter().filter(|name| *name == "service").count() < 2 {
            net::time::sleep(Duration::from_millis(1)).await;
        }
        interrupted.notify_one();
        leave(&mut network).await;
        network
    };
    let run = simulator::run_with(config, sink, interrupted.notified());
    let (totals, _network) = tokio::join!(run, script);
    let totals = totals.unwrap();
    assert_eq!((totals.services, totals.deregistered, totals.failed), (2, 1, 0));
    let expected =
        ["gnb", "registered", "ready", "idle", "service", "idle", "service", "deregistered", "summary"];
    assert_eq!(names(&events), expected);
}

#[tokio::test]
async fn a_gnb_that_is_refused_ends_the_run() {
    let (config, mut listener) = listen(32, |_| {}).await;
    let script = async {
        let mut association = listener.accept().await.unwrap();
        assert!(matches!(receive(&mut association).await, Pdu::NgSetupRequest(_)));
        let cause = Misc::UnknownPlmnOrSnpn.into();
        let failure = ngap::NgSetupFailure { cause, time_to_wait: None, criticality_diagnostics: None };
        send(&association, failure).await;
        association
    };
    let (outcome, _association) =
        tokio::join!(simulator::run_with(config, |_| {}, std::future::pending()), script);
    assert!(matches!(outcome, Err(RunError::Gnb { id: 1, .. })), "{outcome:?}");

    // An N3 address that another socket uses is reported before anything starts.
    let _taken = net::udp::bind("127.9.32.5:2152".parse().unwrap()).await.unwrap();
    let n3 = Some("127.9.32.5".parse().unwrap());
    let outcome =
        simulator::run_with(Config { n3, ..Config::default() }, |_| {}, std::future::pending()).await;
    assert!(matches!(outcome, Err(RunError::UserPlane { .. })), "{outcome:?}");
}
