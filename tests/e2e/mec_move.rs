//! UEs that move to an anchor at the edge and back, while they talk: real gateways and UPFs, an MME or an SMF that nobody has told, the
//! edge's switches, controller, agent and orchestrator, each a process of its own.

use std::net::Ipv4Addr;

use lab::edge::{self, Site};
use lab::moves::{Moves, ORIGIN};
use net::time::{self, Duration};
use serde_json::json;

use crate::flow::{Flow, Found, bind, until};

pub(crate) const UE_PORT: u16 = 5000;
pub(crate) const DN_PORT: u16 = 6000;

const EDGE: &Site = &edge::SITES[0];

/// A network of 4G, or of 5G.
async fn start(ues: u32, epc: bool) -> Moves {
    Moves::start(lab::Options { epc, ..lab::Options::new(ues).unwrap() }, 1).await.unwrap()
}

/// Moves UEs in order, and waits for the end.
async fn moved(moves: &Moves, ues: &[Ipv4Addr], to: &str) {
    let made = moves.carry(ues, to, &json!({"order": "keep"})).await;
    made.unwrap_or_else(|error| panic!("{error:#}\n{}", moves.logs()));
}

/// MEO-1…6, EV-9 over S11: MME and gateways know nothing of the moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_of_4g_moves_to_the_edge_and_back_while_it_talks() {
    there_and_back(true).await;
}

/// MEO-1…6, EV-9, EV-10 over N4: SMF and UPFs know nothing of the moves.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_of_5g_moves_to_the_edge_and_back_while_it_talks() {
    there_and_back(false).await;
}

/// Moves of a UE under load, in order, and of several at once.
async fn there_and_back(epc: bool) {
    let edge = start(3, epc).await;
    // Of the gateway, which there is in 4G, and of the UPF.
    let of = |ues: u64| (if epc { ues } else { 0 }, ues);
    let (ue, space) = edge.ues.iter().next().map(|(ue, space)| (*ue, space.clone())).unwrap();
    let user = bind(&space, ue, UE_PORT);
    let server = bind(edge.lab.dn(), lab::DN, DN_PORT);
    let up = Flow::start(&user, &server, (lab::DN, DN_PORT).into());
    let down = Flow::start(&server, &user, (ue, UE_PORT).into());
    // Neighbours and translations are known.
    moved(&edge, &[ue], EDGE.host).await;
    assert_eq!(edge.sessions_at(EDGE).await, of(1), "{}", edge.logs());
    moved(&edge, &[ue], ORIGIN).await;
    time::sleep(Duration::from_millis(500)).await;
    let first = [up.next(), down.next()];
    for round in 0..4 {
        moved(&edge, &[ue], EDGE.host).await;
        assert_eq!(edge.sessions_at(EDGE).await, of(1), "round {round}");
        time::sleep(Duration::from_millis(200)).await;
        moved(&edge, &[ue], ORIGIN).await;
        assert_eq!(edge.sessions_at(EDGE).await, of(0), "round {round}: nothing is left at the edge");
        time::sleep(Duration::from_millis(200)).await;
    }
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    for found in &found {
        assert!(found.sent > 1000);
        assert_eq!(*found, Found { sent: found.sent, ..Found::default() });
    }
    // All at once, of whom the others are silent.
    let all: Vec<Ipv4Addr> = edge.ues.keys().copied().collect();
    moved(&edge, &all, EDGE.host).await;
    assert_eq!(edge.sessions_at(EDGE).await, of(3));
    let first = [up.next(), down.next()];
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!(up.since(first[0]).await.lost + down.since(first[1]).await.lost, 0);
    drop((up, down));
    moved(&edge, &all, ORIGIN).await;
    edge.stop().await.unwrap();
}

/// CAP-6, CAP-9, SEL-8: agent and controller are killed while a UE is at the edge; traffic goes on, and the UE comes back in the end.
#[tokio::test(flavor = "multi_thread")]
async fn agent_and_controller_may_be_killed_while_a_ue_is_at_the_edge() {
    let mut edge = start(1, true).await;
    let (ue, space) = edge.ues.iter().next().map(|(ue, space)| (*ue, space.clone())).unwrap();
    moved(&edge, &[ue], EDGE.host).await;
    let user = bind(&space, ue, UE_PORT);
    let server = bind(edge.lab.dn(), lab::DN, DN_PORT);
    let up = Flow::start(&user, &server, (lab::DN, DN_PORT).into());
    let down = Flow::start(&server, &user, (ue, UE_PORT).into());
    time::sleep(Duration::from_millis(500)).await;
    let first = [up.next(), down.next()];
    let agent =
        net::process::holder(&edge.lab.folder().join("run-orchestrator/edge-host-agent.lock")).unwrap();
    let agent = nix::unistd::Pid::from_raw(agent.unwrap().cast_signed());
    nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGKILL).unwrap();
    edge.lab.kill("controller").await.unwrap();
    edge.lab.restart_part("controller").unwrap();
    until("the controller knows the copy again, by an agent that the orchestrator has started", async || {
        let replicas = edge.lab.controller("GET", "/v1/replicas", None).await.ok()?;
        let replica = &replicas["replicas"][0];
        (replica["connected"] == true && replica["ues"] == 1).then_some(())
    })
    .await;
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    for found in &found {
        assert_eq!(*found, Found { sent: found.sent, ..Found::default() });
    }
    assert_eq!(edge.sessions_at(EDGE).await, (1, 1));
    moved(&edge, &[ue], ORIGIN).await;
    assert_eq!(edge.sessions_at(EDGE).await, (0, 0), "{}", edge.logs());
    let first = [up.next(), down.next()];
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!(up.since(first[0]).await.lost + down.since(first[1]).await.lost, 0);
    drop((up, down));
    edge.stop().await.unwrap();
}
