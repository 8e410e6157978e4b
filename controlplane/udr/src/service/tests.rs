//! Each operation over a real SQLite file.

use store::{Authentication, KeySource, OnConflict, Sqlite};

use super::*;

const SUPI: &str = "imsi-999700000000001";

async fn repository() -> (tempfile::TempDir, Arc<Repository>) {
    let folder = tempfile::tempdir().unwrap();
    let key = KeySource::File(folder.path().join("store.key"));
    let store = Sqlite::open(&folder.path().join("godwit.db"), &key).unwrap();
    let authentication = Authentication {
        k: Key::new([1; 16]),
        operator_code: OperatorCode::Op(Key::new([2; 16])),
        amf: Key::new([0x80, 0]),
        sqn: 5,
    };
    let subscriber = Subscriber::new(SUPI.parse().unwrap(), authentication);
    store.put_subscribers(vec![subscriber], OnConflict::Fail).await.unwrap();
    (folder, Arc::new(Repository::new(Arc::new(store))))
}

fn supi() -> Supi {
    SUPI.parse().unwrap()
}

fn step(op: PatchOperation, sqn: u64) -> PatchItem {
    let value = serde_json::to_value(sequence_number(sqn)).unwrap();
    PatchItem { op, path: SQN_POINTER.into(), from: None, value: Some(value) }
}

#[tokio::test]
async fn the_sequence_number_advances_once_for_two_that_try() {
    let (_folder, udr) = repository().await;
    let advance = || {
        let body = Patch(vec![step(PatchOperation::Test, 5), step(PatchOperation::Replace, 6)]);
        udr.clone().modify_auth_subscription(ModifyAuthSubscriptionRequest { ue_id: supi(), body })
    };
    advance().await.unwrap();
    assert_eq!(advance().await.unwrap_err().status, 409);
    let now =
        udr.clone().query_auth_subscription(QueryAuthSubscriptionRequest { ue_id: supi(), body: () }).await;
    let now = now.unwrap();
    assert_eq!(sqn_value(&now.sequence_number.unwrap().sqn.unwrap()), 6);
    assert_eq!(now.enc_topc_key, Some(Key::new([2; 16])));
    assert_eq!(now.enc_opc_key, None);
}

#[tokio::test]
async fn only_the_sequence_number_may_be_patched() {
    let (_folder, udr) = repository().await;
    for body in [
        Patch::replace("/encPermanentKey", "00".into()),
        Patch::replace(SQN_POINTER, "no object".into()),
        Patch(vec![]),
        Patch(vec![step(PatchOperation::Remove, 1)]),
    ] {
        let request = ModifyAuthSubscriptionRequest { ue_id: supi(), body };
        assert_eq!(udr.clone().modify_auth_subscription(request).await.unwrap_err().status, 400);
    }
}

#[tokio::test]
async fn subscription_data_comes_by_slice_and_dnn() {
    let (_folder, udr) = repository().await;
    let serving_plmn_id = "99970".parse().unwrap();
    let am = udr.clone().query_am_data(QueryAmDataRequest { ue_id: supi(), serving_plmn_id, body: () });
    assert_eq!(am.await.unwrap().nssai.unwrap().default_single_nssais, ["1".parse().unwrap()]);
    let select = QuerySmfSelectDataRequest { ue_id: supi(), serving_plmn_id, body: () };
    let select = udr.clone().query_smf_select_data(select).await.unwrap();
    assert_eq!(select.subscribed_snssai_infos["1"].dnn_infos[0].dnn.as_str(), "internet");
    let sm_data = |slice: &str, dnn: &str| {
        let (single_nssai, dnn) = (Some(slice.parse().unwrap()), Some(dnn.parse().unwrap()));
        udr.clone().query_sm_data(QuerySmDataRequest {
            ue_id: supi(),
            serving_plmn_id,
            single_nssai,
            dnn,
            body: (),
        })
    };
    assert_eq!(sm_data("1", "internet").await.unwrap().0.len(), 1);
    for (slice, dnn) in [("2", "internet"), ("1", "ims")] {
        assert_eq!(sm_data(slice, dnn).await.unwrap_err().cause, "DATA_NOT_FOUND");
    }
}

#[tokio::test]
async fn contexts_are_kept_for_known_subscribers_only() {
    let (_folder, udr) = repository().await;
    let registration = Amf3GppAccessRegistration {
        amf_instance_id: NfInstanceId::from_random(7),
        dereg_callback_uri: "http://127.0.0.5:7777/x".into(),
        guami: types::Guami { plmn: "999-70".parse().unwrap(), amf_id: "020040".parse().unwrap() },
        rat_type: RatType::Nr,
        initial_registration_ind: None,
        supi: None,
        pei: None,
        purge_flag: None,
        ims_vo_ps: None,
        registration_time: None,
        supported_features: None,
    };
    let put = |supi: Supi| {
        udr.clone().create_amf_context(CreateAmfContextRequest { ue_id: supi, body: registration.clone() })
    };
    assert!(matches!(put(supi()).await.unwrap(), Stored::Created(_)));
    assert!(matches!(put(supi()).await.unwrap(), Stored::Replaced(_)));
    assert_eq!(put("imsi-999700000000002".parse().unwrap()).await.unwrap_err().cause, "USER_NOT_FOUND");
    let patch = |path: &str, value: serde_json::Value| {
        let add = PatchItem { op: PatchOperation::Add, path: path.into(), from: None, value: Some(value) };
        udr.clone().update_amf_context(UpdateAmfContextRequest { ue_id: supi(), body: Patch(vec![add]) })
    };
    patch("/purgeFlag", true.into()).await.unwrap();
    assert_eq!(patch("/guami", 5.into()).await.unwrap_err().status, 403);
    let stored =
        udr.clone().query_amf_context(QueryAmfContextRequest { ue_id: supi(), body: () }).await.unwrap();
    assert_eq!((stored.purge_flag, stored.guami), (Some(true), registration.guami));
}
