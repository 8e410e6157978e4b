//! Notifications of a UDM over real HTTP/2, with a scripted UDR, an AMF that does not answer and an SMF that does.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::time;
use sbi::model::nrf::NfType;
use sbi::model::udm::{
    AccessAndMobilitySubscriptionData, ModificationNotification, SdmSubscription, SdmSubscriptions,
};
use sbi::model::udr::DataChangeNotify;
use sbi::op::{udm::SdmNotify, udr};
use sbi::{
    Client, ClientConfig, Notification, ProblemDetails, Router, Server, ServerConfig, callback_uri, serve,
};
use types::{Plmn, Supi};

/// Time after which the UDM gives up a call.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// How much later the silent receiver answers.
const LATE: Duration = Duration::from_millis(200);

fn supi(n: u32) -> Supi {
    format!("imsi-999700000000{n:03}").parse().unwrap()
}

/// A network function that keeps the notifications it gets; with `silent` it answers too late.
#[derive(Default)]
struct Receiver {
    silent: bool,
    received: Mutex<BTreeMap<String, usize>>,
    under_way: Mutex<HashMap<String, usize>>,
    most_at_once: Mutex<(usize, usize)>,
}

/// Counts down when the call ends.
struct UnderWay(Arc<Receiver>, String);

impl Drop for UnderWay {
    fn drop(&mut self) {
        *self.0.under_way.lock().unwrap().get_mut(&self.1).unwrap() -= 1;
    }
}

async fn notified(
    receiver: Arc<Receiver>,
    notification: Notification<ModificationNotification>,
) -> Result<(), ProblemDetails> {
    let id = notification.id;
    *receiver.received.lock().unwrap().entry(id.clone()).or_default() += 1;
    let _under_way = {
        let mut under_way = receiver.under_way.lock().unwrap();
        *under_way.entry(id.clone()).or_default() += 1;
        let now = (under_way[&id], under_way.values().sum());
        let mut most = receiver.most_at_once.lock().unwrap();
        *most = (most.0.max(now.0), most.1.max(now.1));
        UnderWay(receiver.clone(), id)
    };
    if receiver.silent {
        time::sleep(TIMEOUT + LATE).await;
    }
    Ok(())
}

/// Has the subscriptions of each subscriber at AMF and SMF.
struct Udr {
    amf: String,
    smf: String,
}

async fn am_data(
    _: Arc<Udr>,
    _: udr::QueryAmDataRequest,
) -> Result<AccessAndMobilitySubscriptionData, ProblemDetails> {
    Ok(AccessAndMobilitySubscriptionData::default())
}

async fn subscriptions(
    udr: Arc<Udr>,
    request: udr::QuerySdmSubscriptionsRequest,
) -> Result<SdmSubscriptions, ProblemDetails> {
    let subscription = |root: &String| SdmSubscription {
        nf_instance_id: "6f0b3a1e-2f0a-4d6e-9a53-0c7f4f1b2a3c".parse().unwrap(),
        callback_reference: callback_uri::<SdmNotify>(root, &request.ue_id.to_string()),
        monitored_resource_uris: vec![format!("{}/am-data", request.ue_id)],
        implicit_unsubscribe: None,
        expires: None,
        single_nssai: None,
        dnn: None,
        plmn_id: None,
        subscription_id: Some("1".to_owned()),
        supported_features: None,
    };
    Ok(SdmSubscriptions([&udr.amf, &udr.smf].map(subscription).to_vec()))
}

async fn receiver(silent: bool) -> (Arc<Receiver>, Server) {
    let receiver = Arc::new(Receiver { silent, ..Receiver::default() });
    let router = Router::new(receiver.clone()).on::<SdmNotify>(notified);
    let server = serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
    (receiver, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amf_that_does_not_answer_delays_neither_the_udr_nor_others() {
    let ((amf, amf_server), (smf, smf_server)) = (receiver(true).await, receiver(false).await);
    let root = |server: &Server| format!("http://{}", server.address());
    let router = Router::new(Arc::new(Udr { amf: root(&amf_server), smf: root(&smf_server) }))
        .on::<udr::QueryAmData>(am_data)
        .on::<udr::QuerySdmSubscriptions>(subscriptions);
    let server = serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
    let run_dir = std::env::temp_dir().join(format!("godwit-udm-notifications-{}", std::process::id()));
    std::fs::create_dir_all(&run_dir).unwrap();
    let mut env = nf::Env::new(&run_dir, None);
    env.client.peers.insert(NfType::Udr, server.address().into());
    env.client.timeout = TIMEOUT;
    let config = udm::Config { sbi: "127.0.0.1:0".parse().unwrap(), ..udm::Config::default() };
    let udm = udm::start(config, Plmn::new("999", "70").unwrap(), env).await.unwrap();

    let client = Client::new(ClientConfig::default());
    let uri = callback_uri::<udr::DataChange>(&format!("http://{}", udm.sbi()), "udm");
    let changed = async |n| {
        let body = DataChangeNotify {
            original_callback_reference: Vec::new(),
            ue_id: Some(supi(n)),
            notify_items: Vec::new(),
        };
        client.notify::<udr::DataChange>(&uri, body).await.unwrap();
    };
    // The first subscriber is changed five times, all others once.
    let begin = time::now();
    for _ in 0..5 {
        changed(1).await;
        let reached = async {
            while amf.received.lock().unwrap().is_empty() {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        time::timeout(Duration::from_secs(5), reached).await.expect("the AMF is called");
    }
    for n in 2..=40 {
        changed(n).await;
    }
    let all = async {
        while smf.received.lock().unwrap().len() < 40 {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    time::timeout(Duration::from_secs(5), all).await.expect("the SMF gets all notifications");
    let took = time::now() - begin;
    assert!(took < TIMEOUT, "44 changes took {took:?} because of the AMF");
    assert_eq!(smf.most_at_once.lock().unwrap().0, 1, "one notification of a subscription at a time");

    // The calls to the AMF end by their time-out. One call stands for the four later changes.
    let rest = async {
        while amf.received.lock().unwrap().len() < 40 {
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(Duration::from_secs(60), rest).await.expect("the AMF is called for each subscriber");
    assert_eq!(amf.received.lock().unwrap()[&supi(1).to_string()], 2);
    let (of_one, in_total) = *amf.most_at_once.lock().unwrap();
    // At the AMF a call ends later than at the UDM, which has begun the next one then.
    assert!(of_one <= 2 && in_total <= 16, "{of_one} of one subscription at once, {in_total} in total");
    udm.stop().await;
    std::fs::remove_dir_all(&run_dir).unwrap();
}
