//! What AMF and SMF learn from the UDM, and which AMF and SMF the UDM records, over real HTTP/2 (CP-1).

use std::{sync::Arc, time::Duration};

use sbi::{
    ProblemDetails, Router, Stored, Target,
    model::{common::*, udm::*, udr::SubscriptionDataSubscriptions},
    op::udm::*,
    operation::{Notification, callback_uri},
};
use tokio::sync::mpsc;
use types::{Ambr, Dnn, FiveQi, PduSessionId, SNssai, Supi};

use crate::authentication::{Home, IMSI};

fn supi() -> Supi {
    IMSI.parse().unwrap()
}

fn amf(instance: u128, set: u16, callback: &str) -> Amf3GppAccessRegistration {
    Amf3GppAccessRegistration {
        amf_instance_id: NfInstanceId::from_random(instance),
        dereg_callback_uri: callback.to_owned(),
        guami: types::Guami {
            plmn: "999-70".parse().unwrap(),
            amf_id: types::AmfId::new(2, set, 0).unwrap(),
        },
        rat_type: RatType::Nr,
        initial_registration_ind: Some(true),
        supi: Some(supi()),
        pei: None,
        purge_flag: None,
        ims_vo_ps: None,
        registration_time: None,
        supported_features: None,
    }
}

#[tokio::test]
async fn a_subscription_reaches_amf_and_smf_as_it_was_provisioned() {
    let home = Home::start().await;
    let client = &home.client;
    let get = GetAmDataRequest { supi: supi(), plmn_id: None, body: () };
    let am = client.call::<GetAmData>(Target::Discover, get).await.unwrap();
    let gigabit = Ambr { uplink: "1 Gbps".parse().unwrap(), downlink: "1 Gbps".parse().unwrap() };
    assert_eq!(am.subscribed_ue_ambr, Some(gigabit));
    let slice: SNssai = "1".parse().unwrap();
    assert_eq!(am.nssai.unwrap().default_single_nssais, [slice]);

    let get = GetSmfSelectDataRequest { supi: supi(), plmn_id: None, body: () };
    let select = client.call::<GetSmfSelectData>(Target::Discover, get).await.unwrap();
    let info = &select.subscribed_snssai_infos["1"].dnn_infos[0];
    assert_eq!((info.dnn.as_str(), info.default_dnn_indicator), ("internet", Some(true)));

    let sm_data = |dnn: &str| GetSmDataRequest {
        supi: supi(),
        single_nssai: Some(slice),
        dnn: Some(Dnn::new(dnn).unwrap()),
        plmn_id: None,
        body: (),
    };
    let sm = client.call::<GetSmData>(Target::Discover, sm_data("internet")).await.unwrap();
    let configuration = &sm.0[0].dnn_configurations[&Dnn::new("internet").unwrap()];
    assert_eq!(configuration.five_g_qos_profile.as_ref().unwrap().five_qi, FiveQi(9));
    assert_eq!(configuration.session_ambr, Some(gigabit));
    let unknown = client.call::<GetSmData>(Target::Discover, sm_data("nowhere")).await.unwrap_err();
    assert_eq!(unknown.status(), Some(404));

    let stranger: Supi = "999700000000099".parse().unwrap();
    let get = GetAmDataRequest { supi: stranger, plmn_id: None, body: () };
    assert!(client.call::<GetAmData>(Target::Discover, get).await.unwrap_err().is("USER_NOT_FOUND"));
    home.stop().await;
}

/// The old AMF's handler of the notification: it passes it to the test.
async fn forward_to_test(
    to_test: Arc<mpsc::UnboundedSender<DeregistrationData>>,
    notification: Notification<DeregistrationData>,
) -> Result<(), ProblemDetails> {
    to_test.send(notification.body).map_err(|_| ProblemDetails::system_failure())
}

#[tokio::test]
async fn the_old_amf_hears_that_the_ue_has_moved_and_a_purged_one_does_not() {
    let home = Home::start().await;
    let (to_test, mut received) = mpsc::unbounded_channel();
    let bound = sbi::Bound::bind("127.0.0.1:0".parse().unwrap(), sbi::ServerConfig::default()).await.unwrap();
    let root = format!("http://{}", bound.address());
    let old_amf = bound.serve(Router::new(Arc::new(to_test)).on::<DeregistrationNotify>(forward_to_test));
    let callback = callback_uri::<DeregistrationNotify>(&root, IMSI);
    let client = &home.client;
    let register =
        |body| client.call::<RegisterAmf>(Target::Discover, RegisterAmfRequest { ue_id: supi(), body });

    assert!(matches!(register(amf(1, 1, &callback)).await.unwrap(), Stored::Created(_)));
    // A registration by the same AMF is no move.
    assert!(matches!(register(amf(1, 1, &callback)).await.unwrap(), Stored::Replaced(_)));
    let moved = register(amf(2, 2, &callback)).await.unwrap();
    assert!(matches!(moved, Stored::Replaced(_)));
    let data = received.recv().await.unwrap();
    assert_eq!(data.dereg_reason, DeregistrationReason::UeInitialRegistration);

    let get = || GetAmfRequest { ue_id: supi(), body: () };
    let serving = client.call::<GetAmf>(Target::Discover, get()).await.unwrap();
    assert_eq!(serving.guami, amf(2, 2, "").guami);
    let purge = |guami| Amf3GppAccessRegistrationModification { guami, purge_flag: Some(true), pei: None };
    let update = |body| client.call::<UpdateAmf>(Target::Discover, UpdateAmfRequest { ue_id: supi(), body });
    // Only the serving AMF may report a purge.
    assert!(update(purge(amf(1, 1, "").guami)).await.unwrap_err().is("INVALID_GUAMI"));
    update(purge(serving.guami)).await.unwrap();
    assert_eq!(client.call::<GetAmf>(Target::Discover, get()).await.unwrap_err().status(), Some(404));
    register(amf(3, 3, &callback)).await.unwrap();
    let quiet = net::time::timeout(Duration::from_millis(200), received.recv()).await;
    assert!(quiet.is_err(), "only the first move was one; a purged AMF is told nothing");
    old_amf.stop().await;
    home.stop().await;
}

#[tokio::test]
async fn the_smf_of_a_session_is_remembered_until_it_says_goodbye() {
    let home = Home::start().await;
    let client = &home.client;
    let id = PduSessionId::new(5).unwrap();
    let body = SmfRegistration {
        smf_instance_id: NfInstanceId::from_random(9),
        pdu_session_id: id,
        single_nssai: "1".parse().unwrap(),
        dnn: Some(Dnn::new("internet").unwrap()),
        plmn_id: "999-70".parse().unwrap(),
        emergency_services: None,
        registration_time: None,
        supported_features: None,
    };
    let register = |body: SmfRegistration| {
        let request = RegisterSmfRequest { ue_id: supi(), pdu_session_id: id, body };
        client.call::<RegisterSmf>(Target::Discover, request)
    };
    assert!(matches!(register(body.clone()).await.unwrap(), Stored::Created(_)));
    assert!(matches!(register(body.clone()).await.unwrap(), Stored::Replaced(_)));
    let other = SmfRegistration { pdu_session_id: PduSessionId::new(6).unwrap(), ..body };
    assert_eq!(register(other).await.unwrap_err().status(), Some(400));
    let goodbye = || {
        let request = DeregisterSmfRequest { ue_id: supi(), pdu_session_id: id, body: () };
        client.call::<DeregisterSmf>(Target::Discover, request)
    };
    goodbye().await.unwrap();
    assert_eq!(goodbye().await.unwrap_err().status(), Some(404));
    home.stop().await;
}

/// A network function that accepts notifications of changes as long as it knows the UE.
struct Subscriber {
    to_test: mpsc::UnboundedSender<ModificationNotification>,
    knows: std::sync::atomic::AtomicBool,
}

async fn changed(
    subscriber: Arc<Subscriber>,
    notification: Notification<ModificationNotification>,
) -> Result<(), ProblemDetails> {
    subscriber.to_test.send(notification.body).map_err(|_| ProblemDetails::system_failure())?;
    let knows = subscriber.knows.load(std::sync::atomic::Ordering::Relaxed);
    knows.then_some(()).ok_or_else(ProblemDetails::context_not_found)
}

/// An operator's change reaches the subscribers to notifications, through store, UDR and UDM, once per
/// change.
#[tokio::test]
async fn who_subscribed_hears_of_changes_and_who_serves_of_a_removal() {
    const SOON: Duration = Duration::from_secs(10);
    let home = Home::start().await;
    let (to_test, mut received) = mpsc::unbounded_channel();
    let (told_amf, mut heard_amf) = mpsc::unbounded_channel();
    let subscriber = Arc::new(Subscriber { to_test, knows: true.into() });
    let bind = || sbi::Bound::bind("127.0.0.1:0".parse().unwrap(), sbi::ServerConfig::default());
    let (first, second) = (bind().await.unwrap(), bind().await.unwrap());
    let root = |bound: &sbi::Bound| format!("http://{}", bound.address());
    let (uri, amf_uri) = (
        callback_uri::<SdmNotify>(&root(&first), IMSI),
        callback_uri::<DeregistrationNotify>(&root(&second), IMSI),
    );
    let nf = first.serve(Router::new(subscriber.clone()).on::<SdmNotify>(changed));
    let old_amf = second.serve(Router::new(Arc::new(told_amf)).on::<DeregistrationNotify>(forward_to_test));
    let client = &home.client;
    let change = async || {
        let before = home.store.subscriber(supi()).await.unwrap().unwrap();
        home.store.put_subscribers(vec![before], store::OnConflict::Replace).await.unwrap();
    };
    let subscribe = || {
        let body = SdmSubscription {
            nf_instance_id: NfInstanceId::from_random(7),
            callback_reference: uri.clone(),
            monitored_resource_uris: vec![format!("{}/am-data", supi())],
            implicit_unsubscribe: Some(true),
            expires: None,
            single_nssai: None,
            dnn: None,
            plmn_id: None,
            subscription_id: None,
            supported_features: None,
        };
        client.call::<SdmSubscribe>(Target::Discover, SdmSubscribeRequest { ue_id: supi(), body })
    };
    let registration = RegisterAmfRequest { ue_id: supi(), body: amf(1, 1, &amf_uri) };
    client.call::<RegisterAmf>(Target::Discover, registration).await.unwrap();
    let created = subscribe().await.unwrap();
    let id = created.body.subscription_id.unwrap();
    // Subscribers do not wait for a UDM that no longer exists.
    let gone_udm = SubscriptionDataSubscriptions {
        ue_id: None,
        callback_reference: "http://127.0.0.1:1/nudr-callback/v1/data-change/udm".to_owned(),
        monitored_resource_uris: Vec::new(),
    };
    let request = sbi::op::udr::SubscribeToDataRequest { body: gone_udm };
    client.call::<sbi::op::udr::SubscribeToData>(Target::Discover, request).await.unwrap();
    change().await;
    let notification = net::time::timeout(SOON, received.recv()).await.unwrap().unwrap();
    assert_eq!(notification.subscription_id, Some(id.clone()));
    assert_eq!(notification.notify_items[0].resource_id, format!("{}/am-data", supi()));
    // The same network function subscribes again: one subscription, one notification.
    subscribe().await.unwrap();
    change().await;
    net::time::timeout(SOON, received.recv()).await.unwrap().unwrap();
    assert!(
        net::time::timeout(Duration::from_millis(1_500), received.recv()).await.is_err(),
        "notified twice"
    );
    // A new sequence number does not change the subscription.
    assert!(home.store.set_sqn(supi(), 77).await.unwrap());
    // A network function that has forgotten the UE without unsubscribing is notified once more, and
    // then no longer.
    subscriber.knows.store(false, std::sync::atomic::Ordering::Relaxed);
    change().await;
    net::time::timeout(SOON, received.recv()).await.unwrap().unwrap();
    let gone = async || {
        let unsubscribe = SdmUnsubscribeRequest { ue_id: supi(), subscription_id: id.clone(), body: () };
        client.call::<SdmUnsubscribe>(Target::Discover, unsubscribe).await
    };
    let forgotten = async {
        let query = || sbi::op::udr::QuerySdmSubscriptionsRequest { ue_id: supi(), body: () };
        while !client
            .call::<sbi::op::udr::QuerySdmSubscriptions>(Target::Discover, query())
            .await
            .unwrap()
            .0
            .is_empty()
        {
            net::time::sleep(Duration::from_millis(20)).await;
        }
    };
    net::time::timeout(SOON, forgotten).await.unwrap();
    assert_eq!(gone().await.unwrap_err().status(), Some(404));
    subscribe().await.unwrap();
    gone().await.unwrap();
    change().await;
    assert!(net::time::timeout(Duration::from_millis(1_500), received.recv()).await.is_err());

    assert!(home.store.remove_subscriber(supi()).await.unwrap());
    let data = net::time::timeout(SOON, heard_amf.recv()).await.unwrap().unwrap();
    assert_eq!(data.dereg_reason, DeregistrationReason::SubscriptionWithdrawn);
    // The pending state is removed then.
    let cleared = async {
        while home.store.context(store::SERVING_AMF, &supi().to_string()).await.unwrap().is_some() {
            net::time::sleep(Duration::from_millis(20)).await;
        }
    };
    net::time::timeout(SOON, cleared).await.unwrap();
    nf.stop().await;
    old_amf.stop().await;
    home.stop().await;
}

/// `godwit subscriber` while UEs are registered, in a whole network.
#[test]
fn an_operators_changes_reach_registered_ues() {
    let two_slices = |options: &mut lab::Options| {
        options.edit = Box::new(|configuration| {
            configuration["slices"] = serde_json::json!([{"sst": 1}, {"sst": 2}]);
        });
    };
    testkit::world::network(two_slices, async |world| {
        use nas::{GmmCause, Message};
        use simulator::ue::{NetworkEvent, WakeReason};
        use testkit::world::{LIMIT, establish, ping};
        let gnb = world.gnb(0).await;
        world.watch(&gnb).await;
        let mut ue = world.ue(&gnb, 0);
        ue.record();
        ue.register().await.unwrap();
        establish(&mut ue, 1).await.unwrap();
        let imsi = ue.supi().to_string();
        let godwit = async |arguments: &[&str]| {
            let output = world.lab.godwit(arguments).output(LIMIT).await.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let keys = ["--k", "465B5CE8B199B49FAA5F0A2EE238A6BC", "--opc", "E8ED289DEBA952E4283B54E88E6183CA"];
        let replace = ["subscriber", "add", &imsi, "--replace", "--snssai", "1", "--snssai", "2"];
        let rates = ["--ambr-uplink", "50 Mbps", "--ambr-downlink", "60 Mbps"];
        godwit(&[replace.as_slice(), &rates, &keys].concat()).await;
        let configured = async {
            loop {
                ue.serve_until(net::time::now() + Duration::from_millis(20)).await.unwrap();
                let update = ue.recorded().iter().find_map(|one| match &one.message {
                    Some(Message::ConfigurationUpdateCommand(command)) => {
                        Some(command.configured_nssai.clone())
                    }
                    _ => None,
                });
                if let Some(slices) = update {
                    return slices;
                }
            }
        };
        let slices = net::time::timeout(LIMIT, configured).await.expect("a configuration update");
        assert_eq!(slices, ["1".parse::<SNssai>().unwrap(), "2".parse().unwrap()]);
        // The session that exists has the new bit rate.
        let changed = async {
            let shown = async || world.ask("smf", "/sessions").await;
            while !shown()
                .await
                .as_array()
                .unwrap()
                .iter()
                .any(|session| session["supi"] == imsi.as_str() && session["ambr_downlink"] == "60 Mbps")
            {
                ue.serve_until(net::time::now() + Duration::from_millis(50)).await.unwrap();
            }
        };
        net::time::timeout(LIMIT, changed).await.expect("a changed session");
        ping(&mut ue, 1).await;

        // Removed while idle: the UE is paged, deregistered, and its session released. Other UEs are
        // not affected.
        let inactivity = ngap::Cause::RadioNetwork(ngap::cause::RadioNetwork::UserInactivity);
        ue.connection().unwrap().request_release(inactivity).await.unwrap();
        while !matches!(
            net::time::timeout(LIMIT, ue.serve()).await.unwrap().unwrap(),
            NetworkEvent::Released(_)
        ) {}
        godwit(&["subscriber", "remove", &imsi]).await;
        assert_eq!(net::time::timeout(LIMIT, ue.idle()).await.unwrap(), WakeReason::Paged);
        ue.wake_up(WakeReason::Paged).await.unwrap();
        let occurred = net::time::timeout(LIMIT, ue.serve()).await.unwrap().unwrap();
        let expected =
            NetworkEvent::Deregistered { reregistration_required: false, cause: Some(GmmCause::IllegalUe) };
        assert_eq!(occurred, expected);
        world.until("smf", "/sessions", |sessions| !sessions.to_string().contains(&imsi)).await;
        world.bystander_is_well().await;
    });
}
