//! Two gateways, of which the second one serves UEs that the first one has set up: by a database that both have, or because the first one
//! has sent their contexts.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod common;

use common::*;
use epc::Node;
use gtpv2c::value::*;
use serde_json::json;

const OTHER: &str = "999700000000002";

/// The second gateway serves the UE with this TEID as the first one has: same MME, addresses and tunnels, on its own UPF.
async fn serves(second: &Core, mme: &mut Mme, gateway: u32, as_before: &serde_json::Value) {
    assert_eq!(mme.connect(gateway, 5, 0x99).await.cause.value, CauseValue::ACCEPTED);
    let sessions = second.sessions().await;
    let ours = sessions.iter().find(|session| session["imsi"] == as_before["imsi"]).unwrap();
    for same in ["apn", "type", "ipv4", "ipv6", "ambr_uplink", "ambr_downlink", "mme"] {
        assert_eq!(ours[same], as_before[same], "{same}");
    }
    for same in ["ebi", "qci", "arp", "upf", "upf_teid"] {
        assert_eq!(ours["bearers"][0][same], as_before["bearers"][0][same], "{same}");
    }
    assert_eq!(ours["bearers"][0]["enb_teid"], "0x00000099");
}

/// Its UPF has got both sessions, with the tunnels of the first one.
fn has_kept_tunnels(second: &Core) -> bool {
    let asked = second.upf.asked();
    let f_teids = asked.iter().filter_map(|asked| match asked {
        Asked::Establish(_, request) => Some(request.create_pdrs[0].pdi.f_teid),
        _ => None,
    });
    let f_teids: Vec<_> = f_teids.collect();
    f_teids.len() == 2 && f_teids.iter().all(|f_teid| matches!(f_teid, Some(pfcp::FTeid::Assigned { .. })))
}

async fn stands_in(url: &str) {
    let network = Network::new();
    let with = |config: &mut serde_json::Value| config["contexts"] = json!(url);
    let first = Core::site(network, Node::Spgw, 5, with).await;
    let second = Core::site(network, Node::Spgw, 15, with).await;
    let mut mme = first.mme(6).await;
    let (one, _) = mme.attach(IMSI, 0x77).await;
    let (two, _) = mme.attach(OTHER, 0x78).await;
    assert_eq!(mme.release(two).await, CauseValue::ACCEPTED);
    let before = first.sessions().await;
    assert_eq!(second.sessions().await, Vec::<serde_json::Value>::new());
    drop(mme);

    let mut mme = second.mme(6).await;
    serves(&second, &mut mme, one, &before[0]).await;
    serves(&second, &mut mme, two, &before[1]).await;
    assert!(has_kept_tunnels(&second));
    assert_eq!(mme.delete(one, 5).await, CauseValue::ACCEPTED);
    // What has left is known nowhere.
    assert_eq!(mme.connect(one, 5, 0x99).await.cause.value, CauseValue::CONTEXT_NOT_FOUND);
    assert_eq!(mme.connect(0x1234, 5, 0x99).await.cause.value, CauseValue::CONTEXT_NOT_FOUND);
    assert_eq!(mme.delete(two, 5).await, CauseValue::ACCEPTED);
    assert_eq!(second.upf.sessions(), 0);
}

#[tokio::test]
async fn a_gateway_with_the_same_file_stands_in() {
    let folder = tempfile::tempdir().unwrap();
    stands_in(&format!("sqlite:{}/contexts.db", folder.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_the_same_postgresql_stands_in() {
    if !postgres::is_possible() {
        return;
    }
    let cluster = postgres::Postgres::start().unwrap();
    stands_in(&cluster.url()).await;
    let left = "SELECT count(*) FROM godwit_records.record";
    assert_eq!(cluster.sql(left).unwrap(), "0\n", "UEs that have left are in no database");
}

#[tokio::test]
async fn contexts_are_sent_to_another_gateway() {
    let network = Network::new();
    let to = format!("{}:7000", network.ip(15));
    let first = Core::site(network, Node::Spgw, 5, |_| ()).await;
    let second = Core::site(network, Node::Spgw, 15, |config| config["transfer"] = json!(to)).await;
    let mut mme = first.mme(6).await;
    let (one, _) = mme.attach(IMSI, 0x77).await;
    let (two, _) = mme.attach(OTHER, 0x78).await;
    let before = first.sessions().await;

    let send = |ues| first.oam("POST", "/contexts/send", Some(json!({"to": to, "ues": ues})));
    let sent = send(json!([OTHER, "999700000000009"])).await.unwrap();
    assert_eq!((&sent["contexts"], &sent["adopted"]), (&json!(1), &json!(1)));
    assert_eq!(second.sessions().await.len(), 1);
    // A UE that is there stays as it is.
    let sent = send(json!(null)).await.unwrap();
    assert_eq!((&sent["contexts"], &sent["adopted"]), (&json!(2), &json!(1)));
    assert!(sent["octets"].as_u64().unwrap() < 2 * 128, "{sent}");
    assert_eq!(first.sessions().await, before, "the first one serves them, too");
    drop(mme);
    let mut mme = second.mme(6).await;
    serves(&second, &mut mme, one, &before[0]).await;
    serves(&second, &mut mme, two, &before[1]).await;
    assert!(has_kept_tunnels(&second));
    assert!(first.oam("POST", "/contexts/send", Some(json!({"to": "127.0.0.1:1"}))).await.is_err());
}
