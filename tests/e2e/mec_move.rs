//! UEs of 4G that move to an anchor at the edge and back, while they talk: real gateways and UPFs, an MME that nobody has told, the edge's
//! switches, controller, agent and orchestrator, each a process of its own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use lab::edge;
use lab::{Lab, Simulator, SimulatorOptions};
use net::netns::NetNs;
use net::time::{self, Duration};
use serde_json::{Value, json};

use crate::flow::{Flow, Found, bind, until};

const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const UE_PORT: u16 = 5000;
pub(crate) const DN_PORT: u16 = 6000;

/// A network with an edge, and UEs that are attached.
struct Edge {
    lab: Lab,
    simulator: Simulator,
    ues: BTreeMap<Ipv4Addr, NetNs>,
}

impl Edge {
    async fn start(ues: u32) -> Edge {
        let mut options = lab::Options::new(ues).unwrap();
        (options.edges, options.epc, options.processes) = (1, true, true);
        let mut lab = Lab::start(options).await.unwrap();
        lab.start_moves().unwrap();
        until("the controller has its switches", async || {
            let switches = lab.controller("GET", "/v1/switches", None).await.ok()?;
            let switches = switches["switches"].as_array()?.clone();
            (switches.len() == 2 && switches.iter().all(|switch| switch["connected"] == true)).then_some(())
        })
        .await;
        let simulated = SimulatorOptions {
            ues,
            session_type: "IPV4".to_owned(),
            mme: Some(edge::MME.into()),
            ..SimulatorOptions::default()
        };
        let mut simulator = lab.simulate(&simulated).unwrap();
        let mut namespaces = BTreeMap::new();
        while namespaces.len() < ues as usize {
            let event = time::timeout(PATIENCE, simulator.next()).await.unwrap().unwrap();
            assert_ne!(event.kind(), "failed", "{:?}", event.text("detail"));
            if event.kind() == "attached" {
                namespaces.insert(event.text("ipv4").unwrap().parse().unwrap(), event.namespace().unwrap());
            }
        }
        Edge { lab, simulator, ues: namespaces }
    }

    /// Sessions of the anchor at the edge, as its gateway and its UPF say.
    async fn at_edge(&self) -> (u64, u64) {
        let mut counts = Vec::new();
        for (nf, path) in [("spgw", "/detail/sessions"), ("upf", "/sessions")] {
            let status = self.lab.edge_oam(&edge::SITES[0], nf, "/status").await;
            let status = status.unwrap_or_default();
            counts.push(status.pointer(path).and_then(Value::as_u64).unwrap_or(0));
        }
        (counts[0], counts[1])
    }

    /// Moves UEs, and waits for the end; the move.
    async fn moved(&self, ues: &[Ipv4Addr], to: &str) -> Value {
        let request = json!({"ues": ues, "to": to, "order": "keep"});
        let moved = self.lab.orchestrator("POST", "/v1/moves?wait=50", Some(&request)).await;
        let moved = moved.unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
        assert_eq!(moved["state"], "done", "{moved:#}\n{}", self.logs());
        moved
    }

    fn logs(&self) -> String {
        let names = [
            "orchestrator",
            "controller",
            "run-orchestrator/edge-host-anchor",
            "run-orchestrator/edge-host-agent",
        ];
        names.map(|name| format!("--- {name}\n{}", self.lab.log(name))).concat()
    }

    async fn stop(self) {
        self.simulator.stop().await.unwrap();
        self.lab.orchestrator("DELETE", "/v1/hosts/edge-host/anchor", None).await.unwrap();
        self.lab.stop().await.unwrap();
    }
}

/// MEO-1…6, EV-9: a UE is moved to the edge and back under load, in order; the MME and both gateways know nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_ue_moves_to_the_edge_and_back_while_it_talks() {
    let edge = Edge::start(3).await;
    let (ue, space) = edge.ues.iter().next().map(|(ue, space)| (*ue, space.clone())).unwrap();
    let user = bind(&space, ue, UE_PORT);
    let server = bind(edge.lab.dn(), lab::DN, DN_PORT);
    let up = Flow::start(&user, &server, (lab::DN, DN_PORT).into());
    let down = Flow::start(&server, &user, (ue, UE_PORT).into());
    until("the sessions are known by their messages", async || {
        let known = edge.lab.controller("GET", "/v1/replication", None).await.ok()?;
        (known["anchors"][0]["ues"] == 3).then_some(())
    })
    .await;
    // Neighbours and translations are known.
    edge.moved(&[ue], "edge-host").await;
    assert_eq!(edge.at_edge().await, (1, 1), "{}", edge.logs());
    edge.moved(&[ue], "origin").await;
    time::sleep(Duration::from_millis(500)).await;
    let first = [up.next(), down.next()];
    for round in 0..4 {
        edge.moved(&[ue], "edge-host").await;
        assert_eq!(edge.at_edge().await, (1, 1), "round {round}");
        time::sleep(Duration::from_millis(200)).await;
        edge.moved(&[ue], "origin").await;
        assert_eq!(edge.at_edge().await, (0, 0), "round {round}: nothing is left at the edge");
        time::sleep(Duration::from_millis(200)).await;
    }
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    for found in &found {
        assert!(found.sent > 1000);
        assert_eq!(*found, Found { sent: found.sent, ..Found::default() });
    }
    // All at once, of whom the others are silent.
    let all: Vec<Ipv4Addr> = edge.ues.keys().copied().collect();
    edge.moved(&all, "edge-host").await;
    assert_eq!(edge.at_edge().await, (3, 3));
    let first = [up.next(), down.next()];
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!(up.since(first[0]).await.lost + down.since(first[1]).await.lost, 0);
    drop((up, down));
    edge.moved(&all, "origin").await;
    edge.stop().await;
}

/// CAP-6, CAP-9, SEL-8: agent and controller are killed while a UE is at the edge; traffic goes on, and the UE comes back in the end.
#[tokio::test(flavor = "multi_thread")]
async fn agent_and_controller_may_be_killed_while_a_ue_is_at_the_edge() {
    let mut edge = Edge::start(1).await;
    let (ue, space) = edge.ues.iter().next().map(|(ue, space)| (*ue, space.clone())).unwrap();
    edge.moved(&[ue], "edge-host").await;
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
    assert_eq!(edge.at_edge().await, (1, 1));
    edge.moved(&[ue], "origin").await;
    assert_eq!(edge.at_edge().await, (0, 0), "{}", edge.logs());
    let first = [up.next(), down.next()];
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!(up.since(first[0]).await.lost + down.since(first[1]).await.lost, 0);
    drop((up, down));
    edge.stop().await;
}
