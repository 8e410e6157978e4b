//! What the controller keeps of sessions, and users who are looked up among them.
#![allow(clippy::unwrap_used, clippy::panic)]

use controller::{Config, Controller};
use net::time::Duration;
use serde_json::{Value, json};
use store::records::{Change, Records};

/// What clears a space: SQLite's, and PostgreSQL's.
const STORES: [&str; 2] = [
    include_str!("../../../controlplane/store/src/records/sqlite.rs"),
    include_str!("../../../controlplane/store/src/records/postgresql.rs"),
];

fn config(folder: &tempfile::TempDir) -> Config {
    let records = format!("sqlite:{}", folder.path().join("records").display());
    serde_json::from_value(json!({
        "openflow": "127.0.0.1:0", "rest": "127.0.0.1:0", "state": folder.path().join("state"), "switches": [],
        "anchors": [{"name": "gw1", "address": "10.0.0.11"}, {"name": "gw2", "address": "10.0.0.12"}],
        "base_stations": [], "replication": {"records": records, "max_sessions": 1000},
    }))
    .unwrap()
}

/// Nothing is taken from a database that contradicts itself, and the error has the statement that helps.
#[tokio::test]
async fn a_damaged_database_is_refused_and_the_error_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder);
    let url = config.replication.records.clone().unwrap();
    let (damaged, other) = ("10.0.0.11/pfcp", "10.0.0.12/gtp-c");
    for key in [(2 << 32) + 5, (2 << 32) + (1 << 26)] {
        let records = Records::open(&url).await.unwrap();
        let put = |key, octets| vec![Change::Put { key, octets }];
        records.write(damaged, put(key, vec![9; 40])).await.unwrap();
        records.write(other, put(0, b"10.0.0.21".to_vec())).await.unwrap();
        drop(records);
        let refused = Controller::start(config.clone()).await.unwrap_err().to_string();
        assert!(refused.contains("replication.records") && refused.contains(damaged), "{refused}");
        let statements: Vec<&str> = refused.split('`').filter(|part| part.starts_with("DELETE")).collect();
        assert_eq!(statements.len(), STORES.len(), "{refused}");
        for (statement, store) in statements.iter().zip(STORES) {
            let (begins, space) = statement.split_once('\'').unwrap();
            assert!(store.contains(begins), "the store clears a space by another statement");
            assert_eq!(space, format!("{damaged}'"));
        }
        // What the store does by that statement.
        let records = Records::open(&url).await.unwrap();
        records.clear(damaged).await.unwrap();
        drop(records);
        drop(Controller::start(config.clone()).await.unwrap());
        let records = Records::open(&url).await.unwrap();
        assert_eq!(records.load(other, None, 10).await.unwrap().len(), 1, "others stay");
    }
}

#[tokio::test]
async fn users_are_looked_up_by_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(config(&folder)).await.unwrap();
    let find = async |anchor: &str, body: Value| {
        let path = format!("/v1/replication/{anchor}/ues/find");
        let patience = Duration::from_secs(10);
        let answer = nf::rest::call(patience, controller.rest(), "POST", &path, Some(&body)).await.unwrap();
        (answer.status, answer.body)
    };
    let names = json!({"ues": ["10.45.0.2", "2001:DB8::1", "imsi-999700000000001", "nobody"]});
    assert_eq!(find("gw1", names.clone()).await, (200, json!({"ues": []})));
    assert_eq!(find("gw9", names).await.0, 404);
    assert_eq!(find("gw1", json!({"ues": vec!["a"; 10_001]})).await.0, 413);
}
