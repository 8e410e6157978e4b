//! The PCF over its real interface: its decisions, and creating and deleting associations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use pcf::{Config, config::DnnPolicy};
use sbi::{CallError, Client, ResourceUri, model::pcf::*, op::pcf::*};
use types::{Ambr, Arp, FiveQi, PduSessionId, PduSessionType};

fn ambr(text: &str) -> Ambr {
    Ambr { uplink: text.parse().unwrap(), downlink: text.parse().unwrap() }
}

fn session(dnn: &str) -> SmPolicyContextData {
    SmPolicyContextData {
        supi: "imsi-999700000000001".parse().unwrap(),
        gpsi: None,
        pdu_session_id: PduSessionId::new(1).unwrap(),
        pdu_session_type: PduSessionType::Ipv4,
        dnn: dnn.parse().unwrap(),
        notification_uri: "http://127.0.0.4:7777/x".into(),
        access_type: None,
        rat_type: None,
        serving_network: None,
        user_location_info: None,
        ue_time_zone: None,
        pei: None,
        ipv4_address: None,
        ipv6_address_prefix: None,
        subs_sess_ambr: Some(ambr("100 Mbps")),
        subs_def_qos: None,
        slice_info: "1".parse().unwrap(),
        supp_feat: None,
    }
}

/// A PCF, a client, the PCF's API root, and the folder of its socket, which is removed with the value.
async fn start(config: Config) -> (nf::Running, Client, sbi::ApiRoot, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let env = nf::Env::new(folder.path(), None);
    let client = env.client(sbi::model::nrf::NfType::Smf).unwrap();
    let config = Config { sbi: "127.0.0.1:0".parse().unwrap(), ..config };
    let running = pcf::start(config, env).await.unwrap();
    let root = running.sbi().into();
    (running, client, root, folder)
}

fn rule(decision: &SmPolicyDecision) -> (Ambr, FiveQi, Arp) {
    let [rule] = &decision.sess_rules.values().collect::<Vec<_>>()[..] else {
        panic!("one session rule expected")
    };
    let qos = rule.auth_def_qos.as_ref().unwrap();
    let pcc = decision.pcc_rules.values().next().unwrap();
    let flow = &decision.qos_decs[&pcc.ref_qos_data[0]];
    assert_eq!((flow.five_qi, flow.def_qos_flow_indication), (Some(qos.five_qi), Some(true)));
    (rule.auth_sess_ambr.unwrap(), qos.five_qi, qos.arp)
}

#[tokio::test]
async fn operator_then_subscription_then_default_decides() {
    let arp = Arp { priority: 2, may_preempt: true, preemptable: false };
    let policy = DnnPolicy {
        name: "ims".parse().unwrap(),
        five_qi: Some(FiveQi(5)),
        arp: Some(arp),
        session_ambr: Some(ambr("1 Mbps")),
    };
    let (running, client, root, _folder) = start(Config { dnn: vec![policy], ..Config::default() }).await;
    let create =
        async |body| client.call::<CreateSmPolicy>(&root, CreateSmPolicyRequest { body }).await.unwrap().body;
    assert_eq!(rule(&create(session("ims")).await), (ambr("1 Mbps"), FiveQi(5), arp));
    let (session_ambr, five_qi, _) = rule(&create(session("internet")).await);
    assert_eq!((session_ambr, five_qi), (ambr("100 Mbps"), FiveQi(9)));
    let (session_ambr, ..) =
        rule(&create(SmPolicyContextData { subs_sess_ambr: None, ..session("internet") }).await);
    assert_eq!(session_ambr, ambr("1 Gbps"));
    running.stop().await;
}

#[tokio::test]
async fn associations_are_created_changed_and_deleted() {
    let (running, client, root, _folder) = start(Config { max_associations: 1, ..Config::default() }).await;
    let create = |body| client.call::<CreateSmPolicy>(&root, CreateSmPolicyRequest { body });
    let created = create(session("internet")).await.unwrap();
    let resource = ResourceUri::parse(&created.location, &NPCF_SM).unwrap();
    let mut update = UpdateSmPolicyRequest {
        sm_policy_id: resource.id.clone(),
        body: SmPolicyUpdateContextData::default(),
    };
    update.body.ipv4_address = "10.45.0.2".parse().ok();
    update.body.subs_sess_ambr = Some(ambr("7 Mbps"));
    let decision = client.call::<UpdateSmPolicy>(&resource, update).await.unwrap();
    assert_eq!(rule(&decision).0, ambr("7 Mbps"));
    let get = GetSmPolicyRequest { sm_policy_id: resource.id.clone(), body: () };
    let shown = client.call::<GetSmPolicy>(&resource, get).await.unwrap();
    assert_eq!(shown.context.ipv4_address, "10.45.0.2".parse().ok());
    // A second association for the same session replaces the first; another session finds no room.
    let again = create(session("internet")).await.unwrap();
    let other = SmPolicyContextData { pdu_session_id: PduSessionId::new(2).unwrap(), ..session("internet") };
    assert_eq!(create(other).await.unwrap_err().status(), Some(503));
    let delete =
        |id: &str| DeleteSmPolicyRequest { sm_policy_id: id.into(), body: SmPolicyDeleteData::default() };
    let old = client.call::<DeleteSmPolicy>(&root, delete(&resource.id)).await.unwrap_err();
    assert!(old.is("POLICY_ASSOCIATION_NOT_FOUND"));
    let id = ResourceUri::parse(&again.location, &NPCF_SM).unwrap().id;
    client.call::<DeleteSmPolicy>(&root, delete(&id)).await.unwrap();
    for gone in [id.as_str(), "nonsense", "18446744073709551616"] {
        let error = client.call::<DeleteSmPolicy>(&root, delete(gone)).await.unwrap_err();
        assert_eq!(error.status(), Some(404));
    }
    running.stop().await;
}

#[tokio::test]
async fn am_policy_is_what_was_subscribed() {
    let (running, client, root, _folder) = start(Config::default()).await;
    let body = PolicyAssociationRequest {
        notification_uri: "http://127.0.0.5:7777/x".into(),
        supi: "imsi-999700000000001".parse().unwrap(),
        gpsi: None,
        access_type: None,
        pei: None,
        user_loc: None,
        time_zone: None,
        serving_plmn: None,
        rat_type: None,
        rfsp: Some(3),
        ue_ambr: Some(ambr("2 Gbps")),
        allowed_snssais: vec![],
        guami: None,
        service_name: None,
        supp_feat: "0".into(),
    };
    let created =
        client.call::<CreateAmPolicy>(&root, CreateAmPolicyRequest { body: body.clone() }).await.unwrap();
    assert_eq!((created.body.ue_ambr, created.body.rfsp), (Some(ambr("2 Gbps")), Some(3)));
    let id = ResourceUri::parse(&created.location, &NPCF_AM).unwrap().id;
    let get = GetAmPolicyRequest { pol_asso_id: id.clone(), body: () };
    assert_eq!(client.call::<GetAmPolicy>(&root, get).await.unwrap().request, Some(body));
    let delete = || DeleteAmPolicyRequest { pol_asso_id: id.clone(), body: () };
    client.call::<DeleteAmPolicy>(&root, delete()).await.unwrap();
    assert_eq!(client.call::<DeleteAmPolicy>(&root, delete()).await.unwrap_err().status(), Some(404));
    let counts = nf::oam::call(running.oam(), "GET", "/policies", None).await.unwrap();
    assert_eq!(counts["am_policies"], 0);
    running.stop().await;
    let after = client.call::<DeleteAmPolicy>(&root, delete()).await.unwrap_err();
    assert!(matches!(after, CallError::Unreachable { .. }), "{after}");
    assert!(!running.oam().exists());
}

#[test]
fn a_guaranteed_default_flow_is_a_mistake() {
    let policy =
        DnnPolicy { name: "ims".parse().unwrap(), five_qi: Some(FiveQi(1)), arp: None, session_ambr: None };
    assert!(Config { dnn: vec![policy.clone()], ..Config::default() }.validate().is_err());
    let policy = DnnPolicy { five_qi: Some(FiveQi(5)), ..policy };
    assert!(Config { dnn: vec![policy.clone()], ..Config::default() }.validate().is_ok());
    assert!(Config { dnn: vec![policy.clone(), policy], ..Config::default() }.validate().is_err());
}
