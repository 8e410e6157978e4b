//! The parts of the program with one another, so that a failure of a test with ours is not one of theirs. Left out where Go is missing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests: a panic is how they fail")]

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use gogtp::Peer;
use net::time::Duration;
use serde_json::{Value, json};

const IMSI: &str = "999700000000001";
const ACCEPTED: u8 = 16;
const CONTEXT_NOT_FOUND: u8 = 64;

/// An address of a test: no other test has its network.
fn address(network: u32, host: u8) -> String {
    format!("127.{}.{network}.{host}", 20 + std::process::id() % 200)
}

/// A gateway and a client of it, on addresses of loopback; without a user plane. `None` without Go.
async fn pair(gateway: &str, client: &str) -> Option<(Peer, Peer, u32)> {
    static NEXT: AtomicU32 = AtomicU32::new(128);
    if !gogtp::is_possible() {
        return None;
    }
    let network = NEXT.fetch_add(1, Ordering::Relaxed);
    let end = |host, port: u16| format!("{}:{port}", address(network, host));
    let (peer, user) = (end(5, 2123), end(5, 2152));
    let gateway = gogtp::start(None, &[gateway, "-gtpc", &peer, "-gtpu", &user]).await.unwrap();
    let (own, user) = (end(6, 2123), end(6, 2152));
    let client = gogtp::start(None, &[client, "-gtpc", &own, "-gtpu", &user, "-peer", &peer]).await.unwrap();
    Some((gateway, client, network))
}

async fn sessions(gateway: &mut Peer) -> (u64, u64) {
    let status = gateway.ask(json!({"do": "status"})).await.unwrap();
    (status["sessions"].as_u64().unwrap(), status["tunnels"].as_u64().unwrap())
}

/// What an S-GW and a P-GW, or an MME and a gateway, do with one another.
async fn procedures(gateway: &mut Peer, client: &mut Peer) {
    let begun: Vec<u64> = (0..20)
        .map(|n| {
            client.begin(
                json!({"do": "attach", "imsi": format!("{}", 999_700_000_000_001_u64 + n), "teid": n + 1}),
            )
        })
        .map(Result::unwrap)
        .collect();
    let mut addresses = BTreeSet::new();
    for command in begun {
        let attached = client.answer(command).await.unwrap();
        assert_eq!((&attached["cause"], &attached["bearer_cause"]), (&ACCEPTED.into(), &ACCEPTED.into()));
        assert!(attached["user"]["teid"].as_u64().unwrap() != 0);
        addresses.insert(attached["ipv4"].as_str().unwrap().to_owned());
    }
    assert_eq!((addresses.len(), sessions(gateway).await), (20, (20, 20)));

    let created =
        gateway.ask(json!({"do": "create_bearer", "imsi": IMSI, "qci": 1, "port": 5060})).await.unwrap();
    assert_eq!((&created["cause"], &created["ebi"]), (&ACCEPTED.into(), &6.into()));
    let told = client.event("create_bearer").await.unwrap();
    let bearer = &told["bearers"][0];
    assert_eq!((&bearer["qci"], &bearer["has_tft"]), (&1.into(), &true.into()));
    assert_eq!((&bearer["user"], &bearer["own"]), (&created["own"], &created["peer"]));
    let deleted = gateway.ask(json!({"do": "delete_bearer", "imsi": IMSI, "ebi": 6})).await.unwrap();
    assert_eq!(deleted["cause"], ACCEPTED);
    assert_eq!(client.event("delete_bearer").await.unwrap()["ebis"], json!([6]));
    let deleted = gateway.ask(json!({"do": "delete_bearer", "imsi": IMSI, "ebi": 5})).await.unwrap();
    assert_eq!(deleted["cause"], ACCEPTED);
    assert_eq!(client.event("delete_bearer").await.unwrap()["linked_ebi"], 5);
    assert_eq!(sessions(gateway).await, (19, 19));

    let other = "999700000000002";
    let command = |what: &str, header: Option<u32>| {
        let mut command = json!({"do": what, "imsi": other, "teid": 77});
        if let Some(teid) = header {
            command["header_teid"] = teid.into();
        }
        command
    };
    for what in ["connect", "detach"] {
        let refused = client.ask(command(what, Some(1))).await.unwrap();
        assert_eq!((&refused["cause"], &refused["header_teid"]), (&CONTEXT_NOT_FOUND.into(), &0.into()));
    }
    assert_eq!(client.ask(command("connect", None)).await.unwrap()["cause"], ACCEPTED);
    assert_eq!(client.ask(command("detach", None)).await.unwrap()["cause"], ACCEPTED);
    assert_eq!(sessions(gateway).await, (18, 18));
    client.ask(json!({"do": "echo"})).await.unwrap();
    client.event("echo_response").await.unwrap();
    assert_eq!(client.ask(json!({"do": "status"})).await.unwrap()["repeats"], 0);
}

#[tokio::test]
async fn an_sgw_and_a_pgw_understand_each_other() {
    let Some((mut pgw, mut sgw, _)) = pair("pgw", "sgw").await else { return };
    procedures(&mut pgw, &mut sgw).await;
}

#[tokio::test]
async fn an_mme_and_a_gateway_understand_each_other() {
    let Some((mut spgw, mut mme, _)) = pair("spgw", "mme").await else { return };
    procedures(&mut spgw, &mut mme).await;
}

/// A request that comes again is answered again, and done once.
#[tokio::test]
async fn a_repeated_request_is_answered_once_more() {
    let Some((mut spgw, _mme, network)) = pair("spgw", "mme").await else { return };
    let socket = UdpSocket::bind((address(network, 7), 2123)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let gateway: SocketAddr = format!("{}:2123", address(network, 5)).parse().unwrap();
    let mut request = Vec::new();
    create_session(&address(network, 7)).encode(0, 0x1234, &mut request).unwrap();
    let mut answers = BTreeSet::new();
    for _ in 0..3 {
        socket.send_to(&request, gateway).unwrap();
        let mut buffer = [0; 2048];
        let (length, _) = socket.recv_from(&mut buffer).unwrap();
        answers.insert(buffer[..length].to_vec());
    }
    assert_eq!((answers.len(), sessions(&mut spgw).await), (1, (1, 1)));
}

fn create_session(own: &str) -> gtpv2c::Message {
    use gtpv2c::*;
    let flow = FlowQos { qci: 9, ..FlowQos::default() };
    let qos = BearerQos { arp: Arp { pl: 8, ..Arp::default() }, flow };
    message::CreateSessionRequest {
        imsi: IMSI.parse().ok(),
        rat_type: RatType::EUTRAN,
        sender_f_teid: FTeid::new(InterfaceType::S11_MME, 1, own.parse().unwrap()),
        apn: "internet".into(),
        pdn_type: Some(PdnType::Ipv4),
        paa: Some(Paa::Ipv4([0; 4].into())),
        bearers_to_be_created: vec![BearerToBeCreated { ebi: Ebi(5), qos, ..Default::default() }],
        ..Default::default()
    }
    .into()
}

/// A gateway that has gone is asked again, and the UE is not left behind.
#[tokio::test]
async fn a_gateway_that_does_not_answer_is_asked_again() {
    let Some((spgw, mut mme, _)) = pair("spgw", "mme").await else { return };
    drop(spgw);
    let failed = mme.ask(json!({"do": "attach", "imsi": IMSI, "teid": 1})).await.unwrap_err();
    assert!(failed.to_string().contains("no answer"), "{failed}");
    let status: Value = mme.ask(json!({"do": "status"})).await.unwrap();
    assert_eq!((&status["repeats"], &status["sessions"]), (&3.into(), &0.into()));
}
