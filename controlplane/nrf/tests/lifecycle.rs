//! NFs and NRF together: any order of start, restarts, silence, discovery with its cache, OAM.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use nf::{Env, Instance, Oam, Running};
use nrf::Config;
use sbi::{
    CallError, Client, ProblemDetails, Router, Target,
    model::nrf::*,
    op::{nrf::*, udm::*},
};

/// A folder for the sockets of one test, which is removed with the value.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// A free address; each test has its own loopback address.
fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 77, last], 7777))
}

fn config(sbi: SocketAddr) -> Config {
    Config { sbi, heartbeat_s: 1, ..Config::default() }
}

fn env(folder: &Path, nrf: SocketAddr) -> Env {
    Env::new(folder, Some(nrf.into()))
}

/// A UDM that answers every am-data request with a cause that contains its instance identity.
async fn udm(env: &Env, at: SocketAddr) -> Running {
    let instance = Instance::bind(NfType::Udm, at, env).await.unwrap();
    let cause = format!("FROM_{}", instance.id());
    let router = Router::new(Arc::new(cause))
        .on::<GetAmData>(async |cause: Arc<String>, _| Err(ProblemDetails::new(404, &cause)));
    instance.start(router, Oam::new()).unwrap()
}

fn am_data() -> GetAmDataRequest {
    GetAmDataRequest { supi: "imsi-999700000000001".parse().unwrap(), plmn_id: None, body: () }
}

async fn ask(client: &Client) -> CallError {
    client.call::<GetAmData>(Target::Discover, am_data()).await.unwrap_err()
}

fn discover(target: NfType) -> DiscoverNfRequest {
    DiscoverNfRequest {
        target_nf_type: target,
        requester_nf_type: NfType::Amf,
        service_names: None,
        dnn: None,
        snssais: None,
        target_plmn_list: None,
        guami: None,
        target_nf_instance_id: None,
        limit: None,
        body: (),
    }
}

/// Waits until `check` holds, for at most some seconds.
async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if check().await {
            return;
        }
        net::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never happened: {what}");
}

#[tokio::test]
async fn nrf_may_come_last_and_may_restart() {
    let (folder, at) = (folder(), address(1));
    let env = env(folder.path(), at);
    let udm = udm(&env, address(2)).await;
    let client = env.client(NfType::Amf).unwrap();
    assert!(matches!(ask(&client).await, CallError::Unreachable { .. }), "no NRF yet");

    let nrf_env = Env::new(folder.path().join("nrf"), None);
    let first = nrf::start(config(at), nrf_env.clone()).await.unwrap();
    udm.registered().await;
    assert!(ask(&client).await.is(&format!("FROM_{}", udm.id())));

    // A restarted NRF knows no instance; the next heartbeat discovers that.
    first.stop().await;
    let second = nrf::start(config(at), nrf_env).await.unwrap();
    let request = || GetNfRequest { nf_instance_id: udm.id(), body: () };
    eventually("registration with the new NRF", async || client.call::<GetNf>(at, request()).await.is_ok())
        .await;
    // A client without cache finds it again, too.
    assert!(ask(&env.client(NfType::Amf).unwrap()).await.is(&format!("FROM_{}", udm.id())));

    // A regular end deregisters.
    udm.stop().await;
    assert_eq!(client.call::<GetNf>(at, request()).await.unwrap_err().status(), Some(404));
    second.stop().await;
}

#[tokio::test]
async fn discoveries_are_remembered_and_corrected() {
    let (folder, at) = (folder(), address(11));
    let env = env(folder.path(), at);
    let nrf = nrf::start(config(at), Env::new(folder.path().join("nrf"), None)).await.unwrap();
    let old = udm(&env, address(12)).await;
    old.registered().await;
    let client = env.client(NfType::Amf).unwrap();
    assert!(ask(&client).await.is(&format!("FROM_{}", old.id())));
    // Many callers that find the cache empty share one discovery request.
    let fresh = env.client(NfType::Amf).unwrap();
    let discoveries = async || {
        let status = nf::oam::call(nrf.oam(), "GET", "/status", None).await.unwrap();
        status["counters"]["sbi_discoveries"].as_u64().unwrap()
    };
    let before = discoveries().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let fresh = fresh.clone();
        calls.spawn(async move { ask(&fresh).await });
    }
    let cause = format!("FROM_{}", old.id());
    assert!(calls.join_all().await.iter().all(|error| error.is(&cause)));
    // Counters belong to the process. Other tests may discover at the same time, but not two hundred
    // times.
    assert!(discoveries().await - before < 20);
    // Without NRF the cache answers.
    nrf.stop().await;
    assert!(ask(&client).await.is(&format!("FROM_{}", old.id())));
    // The instance has another address now: its old address refuses connections, and the NRF knows the
    // new one.
    let _nrf = nrf::start(config(at), Env::new(folder.path().join("nrf"), None)).await.unwrap();
    old.stop().await;
    let new = udm(&env, address(13)).await;
    new.registered().await;
    assert!(ask(&client).await.is(&format!("FROM_{}", new.id())));
    new.stop().await;
}

#[tokio::test]
async fn silent_instances_are_not_discovered() {
    let (folder, at) = (folder(), address(21));
    let nrf = nrf::start(config(at), Env::new(folder.path(), None)).await.unwrap();
    let client = env(folder.path(), at).client(NfType::Amf).unwrap();
    let profile: NfProfile = serde_json::from_value(serde_json::json!({
        "nfInstanceId": "4947a69a-f61b-4bc1-b9da-47c9c5d14b64",
        "nfType": "SMF",
        "nfStatus": "REGISTERED",
        "fqdn": "smf.example",
        "heartBeatTimer": 99,
        "locality": "here",
        "smfInfo": {"sNssaiSmfInfoList": [{"sNssai": {"sst": 1}, "dnnSmfInfoList": [{"dnn": "internet", "x": 1}]}]},
    }))
    .unwrap();
    let id = profile.nf_instance_id;
    let register = RegisterNfRequest { nf_instance_id: id, body: profile };
    let sbi::Stored::Created(created) = client.call::<RegisterNf>(at, register).await.unwrap() else {
        panic!("201 expected")
    };
    assert_eq!(created.body.heart_beat_timer, Some(1), "NRF decides the interval");
    assert_eq!(created.body.other["locality"], "here", "unknown attributes are kept");
    let found = async |request| client.call::<DiscoverNf>(at, request).await.unwrap().nf_instances.len();
    assert_eq!(found(discover(NfType::Smf)).await, 1);
    assert_eq!(found(discover(NfType::Udm)).await, 0);
    let with_dnn = |dnn: &str| DiscoverNfRequest { dnn: dnn.parse().ok(), ..discover(NfType::Smf) };
    assert_eq!((found(with_dnn("internet")).await, found(with_dnn("ims")).await), (1, 0));
    let with_slice =
        |sst: &str| DiscoverNfRequest { snssais: Some(vec![sst.parse().unwrap()]), ..discover(NfType::Smf) };
    assert_eq!((found(with_slice("1")).await, found(with_slice("2")).await), (1, 0));

    eventually("suspension", async || found(discover(NfType::Smf)).await == 0).await;
    let get = || GetNfRequest { nf_instance_id: id, body: () };
    assert_eq!(client.call::<GetNf>(at, get()).await.unwrap().nf_status, NfStatus::Suspended);

    // A late heartbeat makes it registered again.
    let patch = sbi::model::common::Patch::replace("/nfStatus", "REGISTERED".into());
    let update = UpdateNfRequest { nf_instance_id: id, body: patch };
    assert_eq!(client.call::<UpdateNf>(at, update).await.unwrap(), None);
    assert_eq!(found(discover(NfType::Smf)).await, 1);

    let patch =
        sbi::model::common::Patch::replace("/nfInstanceId", "1947a69a-f61b-4bc1-b9da-47c9c5d14b64".into());
    let update = UpdateNfRequest { nf_instance_id: id, body: patch };
    assert_eq!(client.call::<UpdateNf>(at, update).await.unwrap_err().status(), Some(400));
    nrf.stop().await;
}

#[tokio::test]
async fn subscribers_hear_of_changes() {
    let (folder, at) = (folder(), address(31));
    let nrf = nrf::start(config(at), Env::new(folder.path(), None)).await.unwrap();
    let env = env(folder.path(), at);
    let (sender, mut heard) = tokio::sync::mpsc::channel(8);
    let instance = Instance::bind(NfType::Amf, address(32), &env).await.unwrap();
    let uri = sbi::callback_uri::<NfStatusNotify>(instance.api_root().as_str(), "1");
    let client = instance.client();
    let router = Router::new(Arc::new(sender)).on::<NfStatusNotify>(
        async |sender: Arc<tokio::sync::mpsc::Sender<_>>,
               notification: sbi::Notification<NotificationData>| {
            sender.send((notification.body.event, notification.body.nf_instance_uri)).await.unwrap();
            Ok(())
        },
    );
    let amf = instance.start(router, Oam::new()).unwrap();
    let body = SubscriptionData {
        nf_status_notification_uri: uri,
        req_nf_instance_id: None,
        subscr_cond: Some(SubscrCond { nf_type: Some(NfType::Udm), ..SubscrCond::default() }),
        subscription_id: None,
        validity_time: None,
        req_notif_events: vec![],
        req_nf_type: None,
    };
    let created = client.call::<SubscribeNf>(at, SubscribeNfRequest { body }).await.unwrap();
    let udm = udm(&env, address(33)).await;
    let (event, uri) = heard.recv().await.unwrap();
    assert_eq!(event, NotificationEventType::Registered);
    assert!(uri.ends_with(&format!("/nnrf-nfm/v1/nf-instances/{}", udm.id())), "{uri}");
    udm.stop().await;
    assert_eq!(heard.recv().await.unwrap().0, NotificationEventType::Deregistered);
    let subscription_id = created.body.subscription_id.unwrap();
    let end = || UnsubscribeNfRequest { subscription_id: subscription_id.clone(), body: () };
    client.call::<UnsubscribeNf>(at, end()).await.unwrap();
    assert_eq!(client.call::<UnsubscribeNf>(at, end()).await.unwrap_err().status(), Some(404));
    amf.stop().await;
    nrf.stop().await;
}

#[tokio::test]
async fn the_environment_stops_everything_and_status_tells() {
    let (folder, at) = (folder(), address(41));
    let env = env(folder.path(), at);
    let nrf = nrf::start(config(at), env.clone()).await.unwrap();
    let udm = udm(&env, address(42)).await;
    udm.registered().await;
    let status = nf::oam::call(udm.oam(), "GET", "/status", None).await.unwrap();
    assert_eq!((&status["nf"], &status["registered"]), (&"UDM".into(), &true.into()));
    assert!(status["counters"]["sbi_client_calls"].as_u64() > Some(0));
    let instances = nf::oam::call(nrf.oam(), "GET", "/instances", None).await.unwrap();
    assert_eq!(instances[0]["nfType"], "UDM");
    let again = nrf::start(config(address(43)), env.clone()).await.unwrap_err();
    assert!(again.to_string().contains("nrf.sock"), "{again}");
    env.shutdown.trigger();
    udm.stopped().await;
    nrf.stopped().await;
    assert!(!udm.oam().exists() && !nrf.oam().exists());
    let gone = nf::oam::call(udm.oam(), "GET", "/status", None).await.unwrap_err();
    assert!(matches!(gone, nf::oam::CallError::NotRunning { .. }));
}

/// TS 29.510 §5.2.2.6: restarts are noticed by the recovery time in the NRF's notifications.
#[tokio::test]
async fn who_watches_notices_restarts() {
    let (folder, at) = (folder(), address(51));
    let env = env(folder.path(), at);
    let nrf = nrf::start(config(at), env.clone()).await.unwrap();
    let mut instance = Instance::bind(NfType::Amf, address(52), &env).await.unwrap();
    let (watch, mut started) = instance.watch(&[NfType::Udm, NfType::Pcf]);
    let router = Router::new(watch)
        .on::<NfStatusNotify>(async |watch: Arc<nf::Watch>, notification| watch.notified(notification));
    let amf = instance.start(router, Oam::new()).unwrap();
    let mut times = Vec::new();
    for _ in 0..3 {
        let udm = udm(&env, address(53)).await;
        let heard = net::time::timeout(Duration::from_secs(10), started.recv()).await;
        let profile = heard.expect("noticed").unwrap();
        assert_eq!(profile.nf_instance_id, udm.id());
        times.push(profile.recovery_time.unwrap().time().unwrap());
        udm.stop().await;
    }
    assert!(times.is_sorted() && times[0] < times[2], "{times:?}");
    assert!(started.try_recv().is_err(), "each is noticed once");
    amf.stop().await;
    nrf.stop().await;
}
