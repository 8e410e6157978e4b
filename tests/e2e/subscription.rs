//! What AMF and SMF learn from the UDM, and what the UDM remembers of them, over real HTTP/2 (CP-1).

use std::{sync::Arc, time::Duration};

use sbi::{
    ProblemDetails, Router, Stored, Target,
    model::{common::*, udm::*},
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

/// What the old AMF does when it is told: it tells the test.
async fn hear(
    told: Arc<mpsc::UnboundedSender<DeregistrationData>>,
    notification: Notification<DeregistrationData>,
) -> Result<(), ProblemDetails> {
    told.send(notification.body).map_err(|_| ProblemDetails::system_failure())
}

#[tokio::test]
async fn the_old_amf_hears_that_the_ue_has_moved_and_a_purged_one_does_not() {
    let home = Home::start().await;
    let (told, mut heard) = mpsc::unbounded_channel();
    let bound = sbi::Bound::bind("127.0.0.1:0".parse().unwrap(), sbi::ServerConfig::default()).await.unwrap();
    let root = format!("http://{}", bound.address());
    let old_amf = bound.serve(Router::new(Arc::new(told)).on::<DeregistrationNotify>(hear));
    let callback = callback_uri::<DeregistrationNotify>(&root, IMSI);
    let client = &home.client;
    let register =
        |body| client.call::<RegisterAmf>(Target::Discover, RegisterAmfRequest { ue_id: supi(), body });

    assert!(matches!(register(amf(1, 1, &callback)).await.unwrap(), Stored::Created(_)));
    // The same AMF again is no move.
    assert!(matches!(register(amf(1, 1, &callback)).await.unwrap(), Stored::Replaced(_)));
    let moved = register(amf(2, 2, &callback)).await.unwrap();
    assert!(matches!(moved, Stored::Replaced(_)));
    let data = heard.recv().await.unwrap();
    assert_eq!(data.dereg_reason, DeregistrationReason::UeInitialRegistration);

    let get = || GetAmfRequest { ue_id: supi(), body: () };
    let serving = client.call::<GetAmf>(Target::Discover, get()).await.unwrap();
    assert_eq!(serving.guami, amf(2, 2, "").guami);
    let purge = |guami| Amf3GppAccessRegistrationModification { guami, purge_flag: Some(true), pei: None };
    let update = |body| client.call::<UpdateAmf>(Target::Discover, UpdateAmfRequest { ue_id: supi(), body });
    // Only the AMF that serves may say that it does no longer.
    assert!(update(purge(amf(1, 1, "").guami)).await.unwrap_err().is("INVALID_GUAMI"));
    update(purge(serving.guami)).await.unwrap();
    assert_eq!(client.call::<GetAmf>(Target::Discover, get()).await.unwrap_err().status(), Some(404));
    register(amf(3, 3, &callback)).await.unwrap();
    let quiet = net::time::timeout(Duration::from_millis(200), heard.recv()).await;
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
