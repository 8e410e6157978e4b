//! The gateway and go-gtp's MME and P-GW, an implementation that shares nothing with ours: its connection, its sequence numbers, its sessions.
//! Left out where Go is missing.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::*;
use epc::Node;
use gogtp::Peer;
use net::time;
use serde_json::{Value, json};

/// Causes of TS 29.274 table 8.4-1.
const ACCEPTED: u8 = 16;
const NEW_PDN_TYPE: u8 = 18;
const NEW_PDN_TYPE_SINGLE_ADDRESS: u8 = 19;
const CONTEXT_NOT_FOUND: u8 = 64;
const UNKNOWN_APN: u8 = 78;
const PDN_TYPE_NOT_SUPPORTED: u8 = 83;
const UE_NOT_RESPONDING: u8 = 87;
const REMOTE_PEER_NOT_RESPONDING: u8 = 100;

/// The core with go-gtp's MME as the only one; `None` without Go.
async fn start(edit: impl FnOnce(&mut Value)) -> Option<(Core, Peer)> {
    if !gogtp::is_possible() {
        return None;
    }
    let core = Core::with(edit).await;
    let mme = mme(&core, 1).await;
    Some((core, mme))
}

async fn mme(core: &Core, restart_counter: u8) -> Peer {
    let (own, enb) = (format!("{}:2123", core.network.ip(6)), format!("{}:2152", core.network.ip(9)));
    let (peer, counter) = (core.gateway().to_string(), restart_counter.to_string());
    let arguments = ["mme", "-gtpc", &own, "-gtpu", &enb, "-peer", &peer, "-restart-counter", &counter];
    gogtp::start(None, &arguments).await.unwrap()
}

fn imsi(n: u64) -> String {
    (999_700_000_000_000 + n).to_string()
}

async fn attach(mme: &mut Peer, n: u64) -> Value {
    let attached = mme.ask(json!({"do": "attach", "imsi": imsi(n), "teid": 0x100 + n})).await.unwrap();
    assert_eq!((&attached["cause"], &attached["bearer_cause"]), (&ACCEPTED.into(), &ACCEPTED.into()));
    attached
}

async fn cause(mme: &mut Peer, command: Value) -> Value {
    mme.ask(command).await.unwrap()["cause"].take()
}

/// What the UPF was asked last about the downlink of a default bearer: the action, and the eNB's end of the tunnel.
fn downlink(asked: &[Asked]) -> Option<(pfcp::ApplyAction, Option<(u32, IpAddr)>)> {
    asked.iter().rev().find_map(|asked| {
        let Asked::Modify(_, request) = asked else { return None };
        let far = request.update_fars.iter().find(|far| far.far_id.0 == 16)?;
        let header = far.update_forwarding_parameters.as_ref().and_then(|to| to.outer_header_creation);
        let end = header.and_then(|header| Some((header.teid?, header.ipv4?.into())));
        Some((far.apply_action?, end))
    })
}

#[tokio::test]
async fn attach_idle_paging_active_and_detach() {
    let Some((core, mut mme)) = start(|_| {}).await else { return };
    let attached = attach(&mut mme, 1).await;
    let address: std::net::Ipv4Addr = attached["ipv4"].as_str().unwrap().parse().unwrap();
    assert!(address.octets().starts_with(&[10, 45]));
    assert_eq!(attached["gateway"]["address"], core.network.ip(5).to_string());
    assert_eq!(attached["user"]["address"], core.upf.ip.to_string());
    let enb = core.network.ip(9);
    assert_eq!(downlink(&core.upf.asked()), Some((pfcp::ApplyAction::FORW, Some((0x101, enb)))));
    let sessions = core.sessions().await;
    assert_eq!((&sessions[0]["imsi"], &sessions[0]["ipv4"]), (&imsi(1).into(), &attached["ipv4"]));

    assert_eq!(cause(&mut mme, json!({"do": "release", "imsi": imsi(1)})).await, ACCEPTED);
    let buffer = pfcp::ApplyAction::BUFF | pfcp::ApplyAction::NOCP;
    assert_eq!(downlink(&core.upf.asked()), Some((buffer, None)));
    assert_eq!(core.sessions().await[0]["state"], "idle");

    core.upf.report_data();
    let page = mme.event("downlink_data_notification").await.unwrap();
    assert_eq!((&page["imsi"], &page["ebi"]), (&imsi(1).into(), &5.into()));
    assert_eq!(page["header_teid"], attached["header_teid"], "the TEID that the MME has given");
    // go-gtp's acknowledgement is understood: the page is not repeated.
    let again = mme.event_within("downlink_data_notification", Duration::from_millis(700)).await.unwrap();
    assert_eq!(again, None);

    let connect = json!({"do": "connect", "imsi": imsi(1), "teid": 0x222});
    let connected = mme.ask(connect).await.unwrap();
    assert_eq!((&connected["cause"], &connected["ebi"]), (&ACCEPTED.into(), &5.into()));
    assert_eq!(downlink(&core.upf.asked()), Some((pfcp::ApplyAction::FORW, Some((0x222, enb)))));

    assert_eq!(cause(&mut mme, json!({"do": "detach", "imsi": imsi(1)})).await, ACCEPTED);
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (0, 0));
}

#[tokio::test]
async fn ues_attach_at_once_and_keep_apart() {
    let Some((core, mut mme)) = start(|_| {}).await else { return };
    const UES: u64 = 50;
    let begun: Vec<u64> = (1..=UES)
        .map(|n| mme.begin(json!({"do": "attach", "imsi": imsi(n), "teid": 0x100 + n})).unwrap())
        .collect();
    let (mut addresses, mut tunnels) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    for command in begun {
        let attached = mme.answer(command).await.unwrap();
        assert_eq!(attached["cause"], ACCEPTED);
        addresses.insert(attached["ipv4"].to_string());
        tunnels.insert(attached["user"]["teid"].as_u64().unwrap());
    }
    assert_eq!((addresses.len(), tunnels.len()), (UES as usize, UES as usize));
    // Each UE has the eNB's tunnel that was named for it, and every second one leaves.
    for session in core.sessions().await {
        let n = session["imsi"].as_str().unwrap().parse::<u64>().unwrap() - 999_700_000_000_000;
        let enb = types::Teid(0x100 + n as u32).to_string();
        assert_eq!(session["bearers"][0]["enb_teid"], enb);
    }
    let leaving: Vec<u64> =
        (1..=UES).step_by(2).map(|n| mme.begin(json!({"do": "detach", "imsi": imsi(n)})).unwrap()).collect();
    for command in leaving {
        assert_eq!(mme.answer(command).await.unwrap()["cause"], ACCEPTED);
    }
    let left = core.sessions().await;
    assert_eq!((core.upf.sessions(), left.len()), (UES as usize / 2, UES as usize / 2));
    assert!(
        left.iter().all(|session| session["imsi"].as_str().unwrap().ends_with(['0', '2', '4', '6', '8']))
    );
    let status = mme.ask(json!({"do": "status"})).await.unwrap();
    assert_eq!((&status["sessions"], &status["repeats"]), (&(UES / 2).into(), &0.into()));
}

#[tokio::test]
async fn causes_reach_the_mme() {
    let Some((core, mut mme)) = start(|_| {}).await else { return };
    let create = |n: u64, more: Value| {
        let mut command = json!({"do": "create", "imsi": imsi(n), "teid": 1});
        command.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        command
    };
    assert_eq!(cause(&mut mme, create(1, json!({"apn": "nowhere"}))).await, UNKNOWN_APN);
    // Another identity than 5, and the operator identifier of the APN.
    let other = mme.ask(create(2, json!({"ebi": 7, "apn": "internet.mnc070.mcc999.gprs"}))).await.unwrap();
    assert_eq!((&other["cause"], &other["ebi"]), (&ACCEPTED.into(), &7.into()));
    let both = mme.ask(create(3, json!({"pdn_type": 3}))).await.unwrap();
    assert_eq!(both["cause"], ACCEPTED, "go-gtp sets the dual address flag");
    assert!(both["ipv4"].is_string() && both["ipv6"].is_string(), "{both}");
    let ipv6 = mme.ask(create(4, json!({"pdn_type": 2}))).await.unwrap();
    assert!(ipv6["ipv4"].is_null() && ipv6["ipv6"].is_string(), "{ipv6}");
    assert_ne!(ipv6["cause"], NEW_PDN_TYPE_SINGLE_ADDRESS);
    // Nobody has this TEID: refused, and nothing changes.
    for what in ["connect", "release", "detach"] {
        let wrong = json!({"do": what, "imsi": imsi(2), "teid": 9, "header_teid": 1});
        assert_eq!(cause(&mut mme, wrong).await, CONTEXT_NOT_FOUND, "{what}");
    }
    assert_eq!(core.sessions().await.len(), 3);
    mme.ask(json!({"do": "echo"})).await.unwrap();
    assert_eq!(mme.event("echo_response").await.unwrap()["restart_counter"], 1);
}

#[tokio::test]
async fn a_page_that_fails_is_believed() {
    let Some((core, mut mme)) = start(|_| {}).await else { return };
    attach(&mut mme, 1).await;
    cause(&mut mme, json!({"do": "release", "imsi": imsi(1)})).await;
    core.upf.report_data();
    mme.event("downlink_data_notification").await.unwrap();
    core.upf.asked();
    mme.ask(json!({"do": "paging_failed", "imsi": imsi(1), "cause": UE_NOT_RESPONDING})).await.unwrap();
    until(async || core.sessions().await[0]["state"] == "unreachable").await;
    assert_eq!(downlink(&core.upf.asked()), Some((pfcp::ApplyAction::DROP, None)));
    // After the pause it is paged again; this time the MME does not know it any more.
    until(async || core.sessions().await[0]["state"] == "idle").await;
    mme.ask(json!({"do": "answer_pages", "cause": CONTEXT_NOT_FOUND})).await.unwrap();
    core.upf.report_data();
    mme.event("downlink_data_notification").await.unwrap();
    until(async || core.upf.sessions() == 0 && core.sessions().await.is_empty()).await;
}

#[tokio::test]
async fn dedicated_bearers_come_and_go() {
    let Some((core, mut mme)) = start(|_| {}).await else { return };
    attach(&mut mme, 1).await;
    core.upf.asked();
    let bearers = format!("/ues/{}/bearers", imsi(1));
    let body = json!({"linked_ebi": 5, "qci": 8, "protocol": 17, "remote": "9.9.9.9", "remote_port": 5060});
    assert_eq!(core.oam("POST", &bearers, Some(body.clone())).await, Ok(json!({"ebi": 6})));
    let created = mme.event("create_bearer").await.unwrap();
    let bearer = &created["bearers"][0];
    assert_eq!(
        (&created["linked_ebi"], &bearer["qci"], &bearer["has_tft"]),
        (&5.into(), &8.into(), &true.into())
    );
    let sessions = core.sessions().await;
    let own = types::Teid(bearer["own"]["teid"].as_u64().unwrap() as u32).to_string();
    assert_eq!(sessions[0]["bearers"][1]["enb_teid"], own);

    let gone = core.oam("POST", &format!("{bearers}/6/delete"), None).await;
    assert_eq!(gone, Ok(json!({"deleted": true})));
    let deleted = mme.event("delete_bearer").await.unwrap();
    assert_eq!((&deleted["linked_ebi"], &deleted["ebis"]), (&0.into(), &json!([6])));
    // One that the UE does not want leaves nothing.
    mme.ask(json!({"do": "answer_bearers", "cause": 88})).await.unwrap();
    assert!(core.oam("POST", &bearers, Some(body)).await.unwrap_err().contains("88"));
    assert_eq!(core.sessions().await[0]["bearers"].as_array().unwrap().len(), 1);
    // With the default bearer all of it ends.
    let all = core.oam("POST", &format!("{bearers}/5/delete"), None).await;
    assert_eq!(all, Ok(json!({"deleted": true})));
    assert_eq!(mme.event("delete_bearer").await.unwrap()["linked_ebi"], 5);
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (0, 0));
}

/// Another run of the MME: the gateway sees a new restart counter, has it confirmed, and ends what the former run had.
#[tokio::test]
async fn a_restarted_mme_is_noticed() {
    let Some((core, mut former)) = start(|_| {}).await else { return };
    attach(&mut former, 1).await;
    attach(&mut former, 2).await;
    // The gateway asks for the counter.
    time::sleep(Duration::from_millis(200)).await;
    drop(former);
    let mut mme = mme(&core, 2).await;
    attach(&mut mme, 3).await;
    until(async || {
        let sessions = core.sessions().await;
        sessions.len() == 1 && sessions[0]["imsi"] == imsi(3)
    })
    .await;
    assert_eq!(core.upf.sessions(), 1);
}

/// Our S-GW with a scripted UPF, between go-gtp's MME and go-gtp's P-GW, which has no user plane.
struct Between {
    sgw: Core,
    mme: Peer,
    pgw: Peer,
}

impl Between {
    async fn start() -> Option<Self> {
        if !gogtp::is_possible() {
            return None;
        }
        let sgw = Core::site(Network::new(), Node::Sgw, 15, |_| {}).await;
        let far = sgw.network.ip(5).to_string();
        let (gtpc, gtpu) = (format!("{far}:2123"), format!("{far}:2152"));
        let pgw = gogtp::start(None, &["pgw", "-gtpc", &gtpc, "-gtpu", &gtpu]).await.unwrap();
        let (gtpc, gtpu) = (format!("{}:2123", sgw.network.ip(6)), format!("{}:2152", sgw.network.ip(9)));
        let gateway = sgw.gateway().to_string();
        let arguments = ["mme", "-gtpc", &gtpc, "-gtpu", &gtpu, "-peer", &gateway, "-pgw", &far];
        let mme = gogtp::start(None, &arguments).await.unwrap();
        Some(Self { sgw, mme, pgw })
    }

    /// Commands to the MME, all at once; all are accepted. Returns the answers.
    async fn all(&mut self, commands: impl Iterator<Item = Value>) -> Vec<Value> {
        let begun: Vec<u64> = commands.map(|command| self.mme.begin(command).unwrap()).collect();
        let mut answers = Vec::new();
        for command in begun {
            let answer = self.mme.answer(command).await.unwrap();
            assert_eq!(answer["cause"], ACCEPTED);
            answers.push(answer);
        }
        answers
    }

    /// PDN connections at S-GW, its UPF, and P-GW.
    async fn sessions(&mut self) -> (usize, usize, u64) {
        let status = self.pgw.ask(json!({"do": "status"})).await.unwrap();
        (self.sgw.sessions().await.len(), self.sgw.upf.sessions(), status["sessions"].as_u64().unwrap())
    }
}

#[tokio::test]
async fn ues_pass_an_sgw_at_once() {
    const UES: u64 = 50;
    let Some(mut between) = Between::start().await else { return };
    let attach = |n| json!({"do": "attach", "imsi": imsi(n), "teid": 0x100 + n});
    let attached = between.all((1..=UES).map(attach)).await;
    let distinct = |member: &str| {
        attached.iter().map(|one| one[member].to_string()).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((distinct("ipv4"), distinct("user")), (UES as usize, UES as usize));
    assert_eq!(between.sessions().await, (UES as usize, UES as usize, UES));
    // Each has the address that the P-GW gave it, and the eNB's tunnel that was named for it.
    for session in between.sgw.sessions().await {
        let n = session["imsi"].as_str().unwrap().parse::<u64>().unwrap() - 999_700_000_000_000;
        assert_eq!(session["ipv4"], attached[n as usize - 1]["ipv4"]);
        assert_eq!(session["bearers"][0]["enb_teid"], types::Teid(0x100 + n as u32).to_string());
    }
    // A dedicated bearer for each of them, while every second one becomes idle.
    let mut begun = Vec::new();
    for n in 1..=UES {
        let create = json!({"do": "create_bearer", "imsi": imsi(n), "qci": 5, "port": 5060});
        begun.push(between.pgw.begin(create).unwrap());
    }
    between.all((1..=UES).step_by(2).map(|n| json!({"do": "release", "imsi": imsi(n)}))).await;
    for command in begun {
        let created = between.pgw.answer(command).await.unwrap();
        assert_eq!((&created["cause"], &created["ebi"]), (&ACCEPTED.into(), &6.into()));
        assert_eq!(created["peer"]["address"], between.sgw.upf.ip.to_string());
    }
    // The P-GW ends some, the MME the others, at the same time.
    let ended: Vec<u64> = (1..=UES / 2)
        .map(|n| between.pgw.begin(json!({"do": "delete_bearer", "imsi": imsi(n), "ebi": 5})).unwrap())
        .collect();
    between.all((UES / 2 + 1..=UES).map(|n| json!({"do": "detach", "imsi": imsi(n)}))).await;
    for command in ended {
        assert_eq!(between.pgw.answer(command).await.unwrap()["cause"], ACCEPTED);
    }
    assert_eq!(between.sessions().await, (0, 0, 0));
    for peer in [&mut between.mme, &mut between.pgw] {
        assert_eq!(peer.ask(json!({"do": "status"})).await.unwrap()["repeats"], 0);
    }
}

/// What the P-GW refuses, and what nobody answers for, the MME hears from our S-GW, which keeps nothing.
#[tokio::test]
async fn an_sgw_passes_what_the_pgw_refuses() {
    let Some(mut between) = Between::start().await else { return };
    let create = |more: (&str, Value)| {
        let mut command = json!({"do": "create", "imsi": imsi(1), "teid": 1});
        command[more.0] = more.1;
        command
    };
    assert_eq!(cause(&mut between.mme, create(("apn", "nowhere".into()))).await, UNKNOWN_APN);
    assert_eq!(cause(&mut between.mme, create(("pdn_type", 2.into()))).await, PDN_TYPE_NOT_SUPPORTED);
    assert_eq!(between.sessions().await, (0, 0, 0));
    // Both types are asked for: the P-GW gives one, with a cause of its own.
    let both = between.mme.ask(create(("pdn_type", 3.into()))).await.unwrap();
    assert_eq!((&both["cause"], both["ipv4"].is_string()), (&NEW_PDN_TYPE.into(), true));
    let detach = json!({"do": "detach", "imsi": imsi(1)});
    assert_eq!(cause(&mut between.mme, detach).await, ACCEPTED);
    assert_eq!(between.sessions().await, (0, 0, 0));
    drop(between.pgw);
    assert_eq!(cause(&mut between.mme, create(("ebi", 5.into()))).await, REMOTE_PEER_NOT_RESPONDING);
    assert_eq!((between.sgw.sessions().await.len(), between.sgw.upf.sessions()), (0, 0));
}

async fn until(condition: impl AsyncFn() -> bool) {
    for _ in 0..400 {
        if condition().await {
            return;
        }
        time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it stays as it is");
}
