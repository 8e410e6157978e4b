//! Usage of UEs that are moved to the edge and back, as their SMF has it, and the octets that they have really sent and received (CAP-5). SMF and UPFs
//! know nothing of the moves.

use std::net::Ipv4Addr;

use lab::Lab;
use lab::edge::{self, Site};
use lab::moves::{Moves, ORIGIN};
use lab::traffic::{Ends, Traffic};
use net::time::Duration;
use serde_json::{Value, json};

use crate::flow::{bind, until};
use crate::mec_move::{DN_PORT, UE_PORT};

const EDGE: &Site = &edge::SITES[0];
const UES: u32 = 2;
/// Between two packets of a flow.
const INTERVAL: Duration = Duration::from_millis(1);
/// What a packet carries, and what a UPF measures of it: with headers of UDP and IPv4.
const OCTETS: usize = 100;
const PACKET: u64 = OCTETS as u64 + 8 + 20;
/// The same of a token, which a move in order sends by the old anchor in each direction.
const TOKEN: u64 = 35 + 8 + 20;

/// What an SMF has counted of all sessions, uplink and downlink; of ended ones, too.
async fn charged(lab: &Lab) -> [u64; 2] {
    let status = lab.oam("smf", "GET", "/status").await.unwrap();
    ["uplink", "downlink"]
        .map(|way| status["counters"][format!("smf_usage_{way}_octets")].as_u64().unwrap_or_default())
}

/// Sessions that the SMF has, with their usage.
async fn listed(moves: &Moves) -> Vec<Value> {
    let listed = moves.lab.oam("smf", "GET", "/sessions").await.unwrap();
    listed.as_array().cloned().unwrap_or_default()
}

/// Waits until the SMF has got further reports of each UE, so that all UPFs have reported that have a part of the usage.
async fn reported(moves: &Moves) {
    let reports = |of: &[Value]| {
        of.iter().map(|one| one["usage"]["reports"].as_u64().unwrap_or_default()).collect::<Vec<_>>()
    };
    let before = reports(&listed(moves).await);
    until("the SMF has got reports", async || {
        let now = reports(&listed(moves).await);
        now.iter().zip(&before).all(|(now, before)| *now >= before + 2).then_some(())
    })
    .await;
}

/// Moves UEs there and back while they talk; in the end the first one leaves from the edge.
async fn is_charged_once(further: Value, token: u64) {
    let mut options = lab::Options::new(UES).unwrap();
    options.edit = Box::new(|all| all["smf"]["dnn"][0]["usage_period_s"] = json!(1));
    let moves = Moves::start(options, 1).await.unwrap();
    let mut flows = Vec::new();
    for (at, (ue, space)) in (0..).zip(&moves.ues) {
        let (user, server) = (bind(space, *ue, UE_PORT), bind(moves.lab.dn(), lab::DN, DN_PORT + at));
        let [from, to] = [&user, &server].map(|socket| socket.try_clone().unwrap());
        flows.push(Ends { from, to, address: (lab::DN, DN_PORT + at).into() });
        flows.push(Ends { from: server, to: user, address: (*ue, UE_PORT).into() });
    }
    let traffic = Traffic::start(flows, INTERVAL, OCTETS);
    let all: Vec<Ipv4Addr> = moves.ues.keys().copied().collect();
    let mut tokens = 0;
    let mut moved = async |ues: &[Ipv4Addr], to: &str| {
        tokens += token * ues.len() as u64;
        let made = moves.carry(ues, to, &further).await;
        made.unwrap_or_else(|error| panic!("{error:#}\n{}", moves.logs()));
        reported(&moves).await;
    };
    reported(&moves).await;
    for _ in 0..2 {
        moved(&all, EDGE.host).await;
        moved(&all, ORIGIN).await;
    }
    moved(&all[..1], EDGE.host).await;
    let found = traffic.finish().await;
    for session in listed(&moves).await {
        assert_eq!(session["usage"]["missing_reports"], 0, "{session:#}");
    }
    let Moves { lab, simulator, .. } = moves;
    // Nothing can be reported later.
    simulator.unwrap().stop().await.unwrap();
    for (way, charged) in charged(&lab).await.into_iter().enumerate() {
        let of_way = found.iter().skip(way).step_by(2).map(|flow| flow.counts);
        let sent: u64 = of_way.clone().map(|flow| flow.sent).sum();
        let lost: u64 = of_way.clone().map(|flow| flow.lost as u64).sum();
        assert!(sent > 1000 && of_way.clone().all(|flow| flow.doubled == 0), "counts of way {way}");
        // What is lost, on a machine that is too busy, may be lost before or behind a UPF.
        let (least, most) = ((sent - lost) * PACKET, sent * PACKET);
        let of_users = charged - tokens;
        eprintln!("{charged} octets charged, {tokens} of tokens; {sent} packets sent, {lost} lost");
        assert!((least..=most).contains(&of_users), "{of_users} is not in {least}..={most}");
    }
    until("nobody is at the edge", async || {
        lab.orchestrator("DELETE", &format!("/v1/hosts/{}/anchor", EDGE.host), None).await.ok()
    })
    .await;
    lab.stop().await.unwrap();
}

/// Without order: exactly what the UEs have sent and received.
#[tokio::test(flavor = "multi_thread")]
async fn usage_at_two_upfs_is_charged_once() {
    is_charged_once(json!({}), 0).await;
}

/// In order: and the tokens, which UPFs take for the UE's packets.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_moves_in_order_are_charged() {
    is_charged_once(json!({"order": "keep"}), TOKEN).await;
}
