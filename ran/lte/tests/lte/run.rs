//! Whole runs against a gateway that accepts everything.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use gtpv2c::endpoint::{Event as EndpointEvent, PORT};
use gtpv2c::message::*;
use gtpv2c::*;
use lte::{Config, Event, Totals, run_with};
use simulator::Hold;

/// Accepts what MMEs ask for, and sends End Markers to former eNBs.
async fn accept_everything(mut gateway: Gateway) {
    let mut enbs: HashMap<u32, FTeid> = HashMap::new();
    // All UEs have the same TEID at this gateway, so they are told apart by the MME's, which only the first request carries.
    let mut mmes: HashMap<u32, u32> = HashMap::new();
    let mut next = 1;
    let accepted: Cause = CauseValue::ACCEPTED.into();
    loop {
        let EndpointEvent::Request { id, teid, message, .. } = gateway.event_without_limit().await else {
            continue;
        };
        let mme = mmes.get(&teid).copied().unwrap_or_default();
        match message {
            Message::CreateSessionRequest(request) => {
                let mut created = gateway.created(&request);
                let control = created.sender_f_teid.as_mut().unwrap();
                control.teid = next;
                mmes.insert(next, request.sender_f_teid.teid);
                next += 1;
                gateway.respond(id, request.sender_f_teid.teid, created);
            }
            Message::ModifyBearerRequest(request) => {
                let bearer = &request.bearers_to_be_modified[0];
                let modified = BearerModified { ebi: bearer.ebi, cause: accepted, ..Default::default() };
                let bearers_modified = vec![modified];
                let response =
                    ModifyBearerResponse { cause: accepted, bearers_modified, ..Default::default() };
                gateway.respond(id, mme, response);
                if let Some(former) = enbs.insert(teid, bearer.s1u_enb_f_teid.unwrap()) {
                    gateway.end_marker(former);
                }
            }
            Message::ReleaseAccessBearersRequest(_) => {
                enbs.remove(&teid);
                gateway.respond(
                    id,
                    mme,
                    ReleaseAccessBearersResponse { cause: accepted, ..Default::default() },
                );
            }
            Message::DeleteSessionRequest(_) => {
                gateway.respond(id, mme, DeleteSessionResponse { cause: accepted, ..Default::default() });
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn run(host: u8, change: impl FnOnce(&mut Config)) -> (Totals, Vec<Event>) {
    let mut config = config(host);
    change(&mut config);
    let gateway = tokio::spawn(accept_everything(Gateway::start(host, 1).await));
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = {
        let events = Arc::clone(&events);
        move |event: &Event| events.lock().unwrap().push(event.clone())
    };
    let totals = net::time::timeout(Duration::from_secs(20), run_with(config, sink, std::future::pending()));
    let totals = totals.await.expect("an end").unwrap();
    gateway.abort();
    let events = std::mem::take(&mut *events.lock().unwrap());
    (totals, events)
}

fn count(events: &[Event], wanted: impl Fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| wanted(event)).count()
}

#[tokio::test]
async fn many_ues_attach_twice_and_detach() {
    let (totals, events) = run(90, |config| {
        (config.count, config.cycles, config.hold) = (50, 2, Hold::For(Duration::from_millis(10)));
    })
    .await;
    assert_eq!((totals.attached, totals.detached, totals.failed), (100, 100, 0));
    assert!(matches!(
        events[..],
        [Event::Mme { .. }, Event::Enb { enb: 1, .. }, Event::Enb { enb: 2, .. }, ..]
    ));
    assert_eq!(count(&events, |event| matches!(event, Event::Attached { .. })), 100);
    assert_eq!(count(&events, |event| matches!(event, Event::Ready(_))), 1);
    assert!(matches!(events.last(), Some(Event::Summary(summary)) if *summary == totals));
}

#[tokio::test]
async fn ues_become_idle_come_back_and_move() {
    let (totals, events) = run(91, |config| {
        config.count = 4;
        config.inactivity = Some(Duration::from_millis(30));
        config.idle = Some(Duration::from_millis(30));
        config.hold = Hold::For(Duration::from_millis(400));
    })
    .await;
    assert_eq!((totals.attached, totals.failed, totals.detached), (4, 0, 4));
    let idle = count(&events, |event| matches!(event, Event::Idle { .. })) as u64;
    assert!(idle >= 8 && totals.services >= 8, "{idle} {totals:?}");

    let (totals, events) = run(92, |config| {
        config.count = 4;
        config.handover = Some(Duration::from_millis(50));
        config.hold = Hold::For(Duration::from_millis(400));
    })
    .await;
    assert_eq!(totals.failed, 0);
    assert!(totals.handovers >= 8 && totals.end_markers == totals.handovers, "{totals:?}");
    assert!(events.iter().all(|event| !matches!(event, Event::Handover { end_markers: 0, .. })));
}

#[tokio::test]
async fn ues_have_the_s_gw_of_their_enb() {
    let other = tokio::spawn(accept_everything(Gateway::start(95, 1).await));
    let [first, second] = [94, 95].map(|host| SocketAddr::new(address(host, 1), PORT));
    let (totals, events) = run(94, |config| {
        config.count = 4;
        config.gateways = vec![first, second];
        config.ue.pgw = Some([127, 11, 255, 1].into());
        config.ue.end_marker_wait = Duration::from_millis(1);
        config.handover = Some(Duration::from_millis(50));
        config.hold = Hold::For(Duration::from_millis(400));
    })
    .await;
    other.abort();
    assert_eq!((totals.attached, totals.failed, totals.detached), (4, 0, 4));
    assert!(totals.handovers >= 8, "{totals:?}");
    let of_enb = |enb: u32| if enb == 1 { first } else { second };
    for event in &events {
        if let Event::Handover { enb, gateway, .. } = event {
            assert_eq!(*gateway, of_enb(*enb));
        }
    }
}

#[tokio::test]
async fn without_a_gateway_each_ue_fails() {
    let mut config = config(93);
    (config.count, config.mme.t3_response) = (3, Duration::from_millis(20));
    config.hold = Hold::For(Duration::ZERO);
    let totals = run_with(config, |_| {}, std::future::pending()).await.unwrap();
    assert_eq!((totals.attached, totals.failed, totals.retransmissions), (0, 3, 2 * 4));
}
