//! Moves between gateways of another make: go-gtp's S/P-GW in the center and another one at the edge, neither of which knows of the edge. Left
//! out where Go is missing.

use std::net::Ipv4Addr;
use std::path::Path;

use gogtp::Peer;
use gtpv2c::endpoint::PORT;
use lab::Options;
use lab::edge::{self, Site};
use lab::moves::{Moves, ORIGIN};
use net::time::{self, Duration};
use serde_json::{Value, json};

use crate::epc::Enb;
use crate::epc_go_gtp::status;
use crate::flow::{Flow, Found, bind, until};

const EDGE: &Site = &edge::SITES[0];
/// Cause "Request accepted".
const ACCEPTED: u8 = 16;
const IMSI: &str = "999700000000001";

fn program() -> &'static Path {
    gogtp::program().unwrap()
}

/// Both gateways: in the center and at the edge.
fn both(gateways: Vec<Peer>) -> [Peer; 2] {
    gateways.try_into().unwrap()
}

/// Packets that a gateway has passed on, both ways.
async fn passed(gateway: &mut Peer) -> u64 {
    let status = status(gateway).await;
    status["uplink"].as_u64().unwrap() + status["downlink"].as_u64().unwrap()
}

/// TOP-4, NAI-3, SEL-1…6: a UE moves between go-gtp's gateways and back while it talks; nothing is lost or doubled, and downlink nothing
/// overtaken.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_moves_between_go_gtps_gateways() {
    if !gogtp::is_possible() {
        return;
    }
    let options = Options { epc: true, ..Options::new(2).unwrap() };
    let (lab, gateways) = Moves::without_ues(options, 1, Some(program())).await.unwrap();
    let [mut center, mut at_edge] = both(gateways);
    let moves = Moves::attach(lab, 2).await.unwrap();
    let (ue, space) = moves.ues.iter().next().map(|(ue, space)| (*ue, space.clone())).unwrap();
    let user = bind(&space, ue, 5000);
    let server = bind(moves.lab.dn(), lab::DN, 6000);
    let up = Flow::start(&user, &server, (lab::DN, 6000).into());
    let down = Flow::start(&server, &user, (ue, 5000).into());
    let keep = json!({"order": "keep"});
    let carry = async |to: &str| {
        let made = moves.carry(&[ue], to, &keep).await;
        made.unwrap_or_else(|error| panic!("{error:#}\n{}", moves.logs()))
    };
    // Neighbours and translations are known.
    carry(EDGE.host).await;
    carry(ORIGIN).await;
    time::sleep(Duration::from_millis(500)).await;
    let first = [up.next(), down.next()];
    for round in 0..3 {
        carry(EDGE.host).await;
        time::sleep(Duration::from_millis(300)).await;
        let (before, there) = (passed(&mut center).await, passed(&mut at_edge).await);
        time::sleep(Duration::from_millis(300)).await;
        assert_eq!(passed(&mut center).await, before, "round {round}: nothing comes to the center");
        assert!(passed(&mut at_edge).await > there + 100, "round {round}");
        assert_eq!(status(&mut center).await["sessions"], 2, "the original anchor keeps its sessions");
        carry(ORIGIN).await;
        assert_eq!(status(&mut at_edge).await["sessions"], 0, "round {round}: nothing is left at the edge");
        time::sleep(Duration::from_millis(300)).await;
    }
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    assert!(found.iter().all(|found| found.sent > 1000));
    // go-gtp handles each uplink packet on a goroutine of its own, so some overtake others also when nobody moves.
    for (found, reordered) in [(found[0], found[0].reordered), (found[1], 0)] {
        assert_eq!(found, Found { sent: found.sent, reordered, ..Found::default() });
    }
    drop((up, down));
    moves.stop().await.unwrap();
}

/// TOP-4: the MME is go-gtp's as well. It keeps its tunnels and TEIDs, wherever its UE is; what it asks for while the UE is at the edge has its effect there
/// (CAP-6, SEL-3, SEL-8), and its UE leaves everywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_of_go_gtps_mme_moves_between_go_gtps_gateways() {
    if !gogtp::is_possible() {
        return;
    }
    let options = Options { epc: true, ..Options::new(2).unwrap() };
    let (lab, gateways) = Moves::without_ues(options, 1, Some(program())).await.unwrap();
    let [mut center, mut at_edge] = both(gateways);
    let (own, enbs) = (format!("{}:{PORT}", edge::CONTROL), lab::RAN_N2.to_string() + ":2152");
    let gateway = format!("{}:{PORT}", lab::CORE_N2);
    let mut mme = gogtp::start(Some(lab.ran()), &["mme", "-gtpc", &own, "-gtpu", &enbs, "-peer", &gateway])
        .await
        .unwrap();
    let attached = mme.ask(json!({"do": "attach", "imsi": IMSI, "teid": 0x11})).await.unwrap();
    assert_eq!(attached["cause"], ACCEPTED);
    let ue: Ipv4Addr = attached["ipv4"].as_str().unwrap().parse().unwrap();
    let upf = (lab::CORE_N2.into(), attached["user"]["teid"].as_u64().unwrap() as u32);
    until("the session is known by its messages", async || {
        let known = lab.controller("GET", "/v1/replication", None).await.ok()?;
        (known["anchors"][0]["ues"] == 1).then_some(())
    })
    .await;
    let enb = Enb::at(lab.ran()).await;
    let carry = async |to: &str| -> Value {
        let request = json!({"ues": [ue], "to": to, "order": "keep"});
        lab.orchestrator("POST", "/v1/moves?wait=20", Some(&request)).await.unwrap()
    };
    for sequence in 0..5 {
        enb.ping(ue, upf, 0x11, sequence).await;
    }
    assert_eq!(carry(EDGE.host).await["state"], "done");
    let before = passed(&mut center).await;
    for sequence in 5..10 {
        enb.ping(ue, upf, 0x11, sequence).await;
    }
    assert_eq!((passed(&mut center).await, passed(&mut at_edge).await), (before, 10));
    // The eNB gives the UE another tunnel: both gateways hear of it.
    let connect = json!({"do": "connect", "imsi": IMSI, "teid": 0x22});
    assert_eq!(mme.ask(connect).await.unwrap()["cause"], ACCEPTED);
    until("the new tunnel is steered", async || {
        let listed = lab.controller("GET", "/v1/diversions", None).await.ok()?;
        (listed["diversions"][0]["tunnels"][0]["downlink"] == 0x22).then_some(())
    })
    .await;
    // Each gateway ends the old tunnel with an End Marker.
    let mut markers = 0;
    while !enb.is_silent().await {
        markers += 1;
    }
    assert!((1..=2).contains(&markers), "{markers}");
    for sequence in 10..15 {
        enb.ping(ue, upf, 0x22, sequence).await;
    }
    assert_eq!(carry(ORIGIN).await["state"], "done");
    for sequence in 15..20 {
        enb.ping(ue, upf, 0x22, sequence).await;
    }
    assert_eq!(status(&mut at_edge).await["sessions"], 0);
    assert_eq!(carry(EDGE.host).await["state"], "done");
    assert_eq!(mme.ask(json!({"do": "detach", "imsi": IMSI})).await.unwrap()["cause"], ACCEPTED);
    until("the UE has left both gateways", async || {
        let left = [&mut center, &mut at_edge];
        for gateway in left {
            if status(gateway).await["sessions"] != 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
    drop(mme);
    lab.stop().await.unwrap();
}
