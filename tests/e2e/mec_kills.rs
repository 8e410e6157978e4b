//! The table of kills: each part of a real edge is killed with SIGKILL at each step of a move of UEs that talk, and back.
//!
//! Steps are not listed here. A proxy between orchestrator and controller writes down the calls of an undisturbed move; then each of
//! them is held, before it is forwarded, in its middle, or after its answer, while the victim is killed and started again. In the end each
//! UE must be wholly on one anchor, as the kernel counts its packets at both ends, and a further move to the other one must work.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use lab::edge;
use lab::moves::{Moves, ORIGIN};
use lab::{Lab, Simulator, SimulatorOptions};
use net::link::Links;
use net::netns::NetNs;
use net::time::{self, Duration, Instant};
use serde_json::{Value, json};

use crate::anchors::{Come, edit, kill_at};
use crate::flow::until;
use crate::mec_move::{DN_PORT, UE_PORT};
use crate::proxy::{Phase, Proxy};
use crate::stream::{Stream, bind};

const UES: u32 = 2;
/// Where the orchestrator calls the controller.
const PROXY: &str = "127.0.0.1:8183";
const PATIENCE: Duration = Duration::from_secs(60);
/// How long recovery may take.
const RECOVERY: Duration = Duration::from_secs(40);
/// How long packets are counted.
const WINDOW: Duration = Duration::from_millis(120);
/// A call that is to be held comes within this time.
const COMES: Duration = Duration::from_secs(10);
/// How often a kill is repeated after which packets were lost that should not be.
const TRIES: usize = 2;
const HOST: &str = edge::SITES[0].host;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The call is held, and nothing else: for comparison.
    Nobody,
    Controller,
    /// On the side of the base station.
    SwitchN3,
    /// On the side of the data network.
    SwitchN6,
    Orchestrator,
    Agent,
    /// UPF at the edge, in 4G with its S/P-GW.
    NewAnchor,
    /// The original S/P-GW.
    OldGateway,
    /// The original UPF.
    OldUpf,
    /// With the eNB and the UEs, which are the same process.
    Mme,
    Smf,
    /// With the gNB and the UEs: their N2 ends with it, and they begin anew.
    Amf,
}

impl Victim {
    /// What both networks have.
    const COMMON: [Victim; 8] = [
        Victim::Nobody,
        Victim::Controller,
        Victim::SwitchN3,
        Victim::SwitchN6,
        Victim::Orchestrator,
        Victim::Agent,
        Victim::NewAnchor,
        Victim::OldUpf,
    ];

    /// What a network of 4G or of 5G has.
    fn all(epc: bool) -> Vec<Victim> {
        let own = if epc { [Victim::OldGateway, Victim::Mme] } else { [Victim::Smf, Victim::Amf] };
        Victim::COMMON.into_iter().chain(own).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Victim::Nobody => "nobody",
            Victim::Controller => "controller",
            Victim::SwitchN3 => "switch-n3",
            Victim::SwitchN6 => "switch-n6",
            Victim::Orchestrator => "orchestrator",
            Victim::Agent => "agent",
            Victim::NewAnchor => "new anchor",
            Victim::OldGateway => "spgw",
            Victim::OldUpf => "upf",
            Victim::Mme => "mme",
            Victim::Smf => "smf",
            Victim::Amf => "amf",
        }
    }

    /// Whether no packet passes it.
    fn is_control_only(self) -> bool {
        matches!(self, Victim::Nobody | Victim::Controller | Victim::Orchestrator | Victim::Agent)
    }
}

/// A call of an undisturbed move.
#[derive(Debug, Clone)]
struct Step {
    to: &'static str,
    name: String,
    /// Which of those with this name.
    nth: usize,
    took: Duration,
}

/// A UE that talks both ways.
struct Ue {
    address: Ipv4Addr,
    space: NetNs,
    /// To which its packets go, uplink and downlink.
    ports: [u16; 2],
    up: Stream,
    down: Stream,
}

/// Where a UE's packets have passed, as both anchors and both ends have counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Old,
    New,
    Other { old: (u64, u64), new: (u64, u64), come: (usize, usize) },
}

/// What has become of a kill.
#[derive(Debug, Default)]
struct Outcome {
    at: String,
    /// Uplink and downlink.
    lost: [usize; 2],
    doubled: usize,
    reordered: usize,
    /// The longest time without a packet of a flow, and when it began, after the kill.
    gap: Duration,
    gap_from: Duration,
    /// UEs have attached again.
    again: bool,
    recovery: Duration,
}

impl Outcome {
    fn cell(&self) -> String {
        let mut text = match self.again {
            true => format!("{}, attached again in {} ms", self.at, self.recovery.as_millis()),
            false => format!("{}, {} ms", self.at, self.gap.as_millis()),
        };
        let all = [
            (self.lost[0], "lost uplink"),
            (self.lost[1], "lost downlink"),
            (self.doubled, "doubled"),
            (self.reordered, "reordered"),
        ];
        for (count, what) in all {
            if count > 0 && !self.again {
                let _ = write!(text, ", {count} {what}");
            }
        }
        text
    }
}

/// An edge with UEs that talk.
struct World {
    ues: BTreeMap<String, Ue>,
    simulator: Option<Simulator>,
    come: Come,
    proxy: Proxy,
    lab: Lab,
}

impl Drop for World {
    fn drop(&mut self) {
        // They outlive the orchestrator.
        for part in ["agent", "anchor"] {
            kill_at(self.lab.folder(), HOST, part);
        }
    }
}

fn simulated(epc: bool, more: &[&str]) -> SimulatorOptions {
    // Restarted gateways are noticed soon.
    let echo: &[&str] = if epc { &["--echo", "0.5"] } else { &[] };
    let arguments = echo.iter().chain(more).map(|text| (*text).to_owned());
    SimulatorOptions {
        ues: UES,
        session_type: "IPV4".to_owned(),
        mme: epc.then_some(edge::CONTROL.into()),
        arguments: arguments.collect(),
        ..SimulatorOptions::default()
    }
}

impl World {
    /// A network of 4G, or of 5G.
    async fn start(epc: bool) -> World {
        World::start_with(epc, &[]).await
    }

    /// With further arguments of the simulator.
    async fn start_with(epc: bool, arguments: &[&str]) -> World {
        let mut options = lab::Options { epc, ..lab::Options::new(UES).unwrap() };
        let heartbeats_of = if epc { "spgw" } else { "smf" };
        options.edit = Box::new(move |all| all[heartbeats_of]["timers"] = json!({"pfcp_heartbeat_ms": 500}));
        let mut lab = Moves::network(options, 1).await.unwrap();
        lab.start_moves().await.unwrap();
        edit(&lab, "orchestrator", |own| {
            own["controller"] = json!(format!("http://{PROXY}"));
            own["times"] = json!({"look_ms": 500, "retry_ms": 50, "call_ms": 5000});
        });
        edit(&lab, "controller", |own| own["diverting"]["echo_ms"] = json!(400));
        let space = lab.namespace_of("controller").clone();
        let proxy = Proxy::start(&space, PROXY.parse().unwrap(), edge::REST.parse().unwrap());
        for part in ["controller", "orchestrator"] {
            lab.kill(part).await.unwrap();
            lab.restart_part(part).unwrap();
        }
        let come = Come::start(
            &lab,
            [(lab.dn(), "n6"), (lab.ran(), "n2")],
            &[lab.core(), lab.namespace_of("edge-upf")],
        )
        .await;
        let mut world = World { ues: BTreeMap::new(), simulator: None, come, proxy, lab };
        world.controller_has_switches().await;
        world.simulator = Some(world.lab.simulate(&simulated(epc, arguments)).unwrap());
        until("the anchor at the edge is started", async || {
            world.orchestrator("POST", &format!("/v1/hosts/{HOST}/anchor"), None).await.ok()
        })
        .await;
        let deadline = time::now() + PATIENCE;
        while world.ues.len() < UES as usize {
            assert!(time::now() < deadline, "UEs do not attach");
            world.events().await;
        }
        until("the sessions are known by their messages", async || {
            let known = world.lab.controller("GET", "/v1/replication", None).await.ok()?;
            (known["anchors"][0]["ues"] == UES).then_some(())
        })
        .await;
        world
    }

    async fn controller_has_switches(&self) {
        until("the controller has its switches", async || {
            let switches = self.lab.controller("GET", "/v1/switches", None).await.ok()?;
            let switches = switches["switches"].as_array()?.clone();
            (switches.len() == 2 && switches.iter().all(|switch| switch["connected"] == true)).then_some(())
        })
        .await;
    }

    async fn orchestrator(
        &self,
        method: &'static str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let server: SocketAddr = edge::MOVES.parse().unwrap();
        let answer = self.proxy.call(server, (method, path.to_owned()), body).await.unwrap();
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status < 300 { Ok(answer.body) } else { Err(answer.body.to_string()) }
    }

    /// Takes what the simulator has said.
    async fn events(&mut self) {
        let Some(simulator) = &mut self.simulator else { return };
        while let Ok(Some(event)) = time::timeout(Duration::from_millis(5), simulator.next()).await {
            let Some(imsi) = event.text("imsi").or(event.text("supi")) else { continue };
            let imsi = imsi.trim_start_matches("imsi-").to_owned();
            match event.kind() {
                "attached" | "session" => {
                    let address = event.text("ipv4").unwrap().parse().unwrap();
                    let Ok(space) = event.namespace() else { continue };
                    // Their sockets have the same ports.
                    self.ues.remove(&imsi);
                    let number: u16 = imsi[imsi.len() - 4..].parse().unwrap();
                    let (ue_port, dn_port) = (UE_PORT + number, DN_PORT + number);
                    // It may have detached meanwhile.
                    let Ok(user) = bind(&space, address, ue_port) else { continue };
                    let server = bind(self.lab.dn(), lab::DN, dn_port).unwrap();
                    let up = Stream::start(&user, &server, (lab::DN, dn_port).into());
                    let down = Stream::start(&server, &user, (address, ue_port).into());
                    self.ues.insert(imsi, Ue { address, space, ports: [dn_port, ue_port], up, down });
                }
                "gateway_restarted" | "detached" | "released" | "deregistered" => _ = self.ues.remove(&imsi),
                _ => {}
            }
        }
    }

    async fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Nobody => {}
            Victim::Agent => kill_at(self.lab.folder(), HOST, "agent"),
            Victim::NewAnchor => kill_at(self.lab.folder(), HOST, "anchor"),
            Victim::Mme | Victim::Amf => {
                self.ues.clear();
                self.simulator.take().unwrap().kill().await.unwrap();
                if victim == Victim::Amf {
                    self.lab.kill(victim.name()).await.unwrap();
                }
            }
            _ => self.lab.kill(victim.name()).await.unwrap(),
        }
    }

    /// What whoever watches processes does. The parts at the edge host are the orchestrator's.
    async fn start_again(&mut self, victim: Victim) {
        match victim {
            Victim::Nobody | Victim::Agent | Victim::NewAnchor => {}
            Victim::Mme => {
                // The controller takes who attaches before an Echo has told it of the restart for lost. So each UE attaches twice.
                self.simulator = Some(self.lab.simulate(&simulated(true, &["--cycles", "2"])).unwrap());
            }
            Victim::Amf => {
                self.lab.restart(victim.name()).await.unwrap();
                self.simulator = Some(self.lab.simulate(&simulated(false, &[])).unwrap());
            }
            Victim::OldGateway | Victim::OldUpf | Victim::Smf => {
                self.lab.restart(victim.name()).await.unwrap()
            }
            _ => self.lab.restart_part(victim.name()).unwrap(),
        }
    }

    /// Waits until a look of the orchestrator is over, so that the next calls are a move's.
    async fn after_a_look(&self) {
        let before = self.proxy.calls().len();
        until("the orchestrator looks", async || {
            let calls = self.proxy.calls();
            let last = calls.last()?;
            let is_over =
                last.took.is_some_and(|took| time::now() - (last.began + took) > Duration::from_millis(60));
            (calls.len() > before && is_over).then_some(())
        })
        .await;
    }

    /// How controller and orchestrator name a UE. In 4G that is its identity, as addresses are others after an attach. N4 does not say it.
    fn name(&self, imsi: &str) -> String {
        if self.lab.is_epc() { format!("imsi-{imsi}") } else { self.ues[imsi].address.to_string() }
    }

    fn all(&self) -> Vec<String> {
        self.ues.keys().map(|imsi| self.name(imsi)).collect()
    }

    /// Moves all UEs; the calls.
    async fn moved(&mut self, to: &'static str) -> Result<Vec<Step>, String> {
        self.after_a_look().await;
        let first = self.proxy.calls().len();
        let request = json!({"ues": self.all(), "to": to, "order": "keep"});
        let one = self.orchestrator("POST", "/v1/moves?wait=30", Some(request)).await?;
        let all = one["ues"].as_array().is_some_and(|ues| ues.iter().all(|ue| ue["state"] == "moved"));
        if one["state"] != "done" || !all {
            return Err(format!("a further move to {to} is not done: {one}"));
        }
        let calls = self.proxy.calls().split_off(first);
        let at = self.settled(RECOVERY).await?;
        let expected = if to == HOST { "new" } else { "old" };
        if at != expected {
            return Err(format!("after a further move to {to} UEs are at {at}"));
        }
        self.is_clean(to, UES as usize).await?;
        let mut steps: Vec<Step> = Vec::new();
        for call in calls {
            let nth = 1 + steps.iter().filter(|step| step.name == call.name).count();
            let took = call.took.unwrap_or_default();
            steps.push(Step { to, name: call.name, nth, took });
        }
        Ok(steps)
    }

    /// State of so many users is at the edge if they are there, and nowhere else. Nothing of ended sessions is left at the original UPF
    /// and at the controller.
    async fn is_clean(&self, at: &str, users: usize) -> Result<(), String> {
        let expected = if at == HOST { users } else { 0 };
        let deadline = time::now() + Duration::from_secs(10);
        let count = |all: Value| all.as_array().map(Vec::len).unwrap_or_default();
        loop {
            let there = self.lab.edge_oam(&edge::SITES[0], "upf", "/sessions").await.unwrap_or_default();
            let original = self.lab.oam("upf", "GET", "/sessions").await.unwrap_or_default();
            let known = self.lab.controller("GET", "/v1/replication", None).await.unwrap_or_default();
            let diverted = self.lab.controller("GET", "/v1/diversions", None).await.unwrap_or_default();
            let (there, original, known) = (count(there), count(original), &known["anchors"][0]["ues"]);
            let diverted = diverted["diversions"].as_array().map(Vec::len).unwrap_or_default();
            if there == expected && diverted == expected && original == users && *known == users {
                return Ok(());
            }
            if time::now() > deadline {
                return Err(format!(
                    "{there} sessions at the edge and {diverted} diversions instead of {expected}, {original} sessions at the \
                     original UPF, and the controller knows {known} of {users} users"
                ));
            }
            time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The ways of UEs at present.
    async fn ways(&self) -> BTreeMap<&str, Way> {
        let come = || self.ues.values().map(|ue| (ue.up.come(), ue.down.come())).collect::<Vec<_>>();
        let (counts, first) = (self.come.counts().await, come());
        time::sleep(WINDOW).await;
        let (last, after) = (come(), self.come.counts().await);
        let mut ways = BTreeMap::new();
        for (at, (imsi, ue)) in self.ues.iter().enumerate() {
            let passed = |anchor: usize| {
                let count = |counts: &[BTreeMap<u16, u64>]| {
                    ue.ports.map(|port| counts[anchor].get(&port).copied().unwrap_or_default())
                };
                let (before, after) = (count(&counts), count(&after));
                (after[0] - before[0], after[1] - before[1])
            };
            let (old, new) = (passed(0), passed(1));
            let come = (last[at].0 - first[at].0, last[at].1 - first[at].1);
            let way = match (old, new) {
                (old, (0, 0)) if old.0 > 0 && old.1 > 0 && come.0 > 0 && come.1 > 0 => Way::Old,
                ((0, 0), new) if new.0 > 0 && new.1 > 0 && come.0 > 0 && come.1 > 0 => Way::New,
                _ => Way::Other { old, new, come },
            };
            ways.insert(&**imsi, way);
        }
        ways
    }

    /// Whether nothing is under way and each UE talks by one anchor, which the orchestrator knows; else what is not so.
    async fn is_settled(&mut self) -> Result<String, String> {
        self.events().await;
        if self.ues.len() < UES as usize {
            return Err(format!("only {} UEs are attached", self.ues.len()));
        }
        let moves = self.orchestrator("GET", "/v1/moves", None).await?;
        let open = moves["moves"].as_array().into_iter().flatten().find(|one| one["ended"] != true);
        if let Some(one) = open {
            return Err(format!("a move has not ended: {one}"));
        }
        let known = self.orchestrator("GET", "/v1/ues", None).await?;
        let mut at_host = BTreeSet::new();
        for ue in known["ues"].as_array().into_iter().flatten().filter(|ue| ue["on"] == HOST) {
            let addresses = ue["addresses"].as_array().into_iter().flatten();
            at_host.extend(addresses.chain([&ue["id"]]).filter_map(|name| Some(name.as_str()?.to_owned())));
        }
        let ways = self.ways().await;
        for (imsi, way) in &ways {
            let is_new = at_host.contains(&self.name(imsi));
            if !matches!((way, is_new), (Way::Old, false) | (Way::New, true)) {
                return Err(format!(
                    "{imsi}: {way:?}, and for the orchestrator it is {}",
                    if is_new { "new" } else { "old" }
                ));
            }
        }
        let new = ways.values().filter(|way| **way == Way::New).count();
        Ok(match new {
            0 => "old".to_owned(),
            _ if new == ways.len() => "new".to_owned(),
            _ => format!("{new} new, {} old", ways.len() - new),
        })
    }

    async fn settled(&mut self, limit: Duration) -> Result<String, String> {
        let deadline = time::now() + limit;
        loop {
            match self.is_settled().await {
                Ok(at) => return Ok(at),
                Err(why) if time::now() > deadline => return Err(why),
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// Kills a part at a step of a move, and waits until all is well again.
    async fn kill_at(&mut self, step: &Step, phase: Phase, victim: Victim) -> Result<Outcome, String> {
        let start = if step.to == HOST { "old" } else { "new" };
        if self.settled(RECOVERY).await? != start {
            self.moved(if start == "new" { HOST } else { ORIGIN }).await?;
        }
        self.after_a_look().await;
        let before = time::now();
        let first: BTreeMap<String, (Ipv4Addr, [u64; 2])> = self
            .ues
            .iter()
            .map(|(imsi, ue)| (imsi.clone(), (ue.address, [ue.up.next(), ue.down.next()])))
            .collect();
        let comes = self.proxy.hold(&step.name, step.nth, phase);
        let request = json!({"ues": self.all(), "to": step.to, "order": "keep"});
        let server = edge::MOVES.parse().unwrap();
        let asked = self.proxy.call(server, ("POST", "/v1/moves?wait=40".to_owned()), Some(request));
        let Ok(Ok(held)) = time::timeout(COMES, comes).await else {
            self.proxy.hold_nothing();
            return Err("the call does not come".to_owned());
        };
        let killed = time::now();
        let had: Vec<String> = self.ues.keys().cloned().collect();
        self.kill(victim).await;
        drop(held);
        self.start_again(victim).await;
        // Its answer may be lost with the orchestrator.
        let said = asked.await.unwrap();
        let at =
            self.settled(RECOVERY).await.map_err(|why| format!("{why}; the answer to the move: {said:?}"))?;
        let recovery = time::now() - killed;
        let end: Vec<[u64; 2]> = self.ues.values().map(|ue| [ue.up.next(), ue.down.next()]).collect();
        let mut outcome = Outcome { at, recovery, ..Outcome::default() };
        outcome.again = had.iter().any(|imsi| self.is_new_since(imsi, before, &first));
        if outcome.again {
            return Ok(outcome);
        }
        // What is late is not lost.
        for _ in 0..8 {
            time::sleep(Duration::from_millis(100)).await;
            (outcome.lost, outcome.doubled, outcome.reordered, outcome.gap) = Default::default();
            for ((imsi, ue), end) in self.ues.iter().zip(&end) {
                for (way, flow) in [&ue.up, &ue.down].into_iter().enumerate() {
                    let from = first[imsi].1[way];
                    let found = flow.between(from, end[way]);
                    outcome.lost[way] += found.lost;
                    outcome.doubled += found.doubled;
                    outcome.reordered += found.reordered;
                    let (begin, gap) = flow.longest_gap(from).unwrap_or((killed, Duration::ZERO));
                    if gap > outcome.gap {
                        (outcome.gap, outcome.gap_from) = (gap, begin.saturating_duration_since(killed));
                    }
                }
            }
            if outcome.lost == [0, 0] || !victim.is_control_only() {
                break;
            }
        }
        Ok(outcome)
    }

    /// Whether a UE's flows have begun since then.
    fn is_new_since(
        &self,
        imsi: &str,
        before: Instant,
        first: &BTreeMap<String, (Ipv4Addr, [u64; 2])>,
    ) -> bool {
        let ue = &self.ues[imsi];
        ue.address != first[imsi].0 || ue.up.began() > before
    }

    /// How many sessions of a restarted UPF were set up again so far, as the controller has heard.
    async fn restored(&self) -> u64 {
        let status = self.lab.controller("GET", "/v1/status", None).await.unwrap_or_default();
        status["counters"]["replication_sessions_restored"].as_u64().unwrap_or_default()
    }

    /// What the parts say of themselves, and what they have said.
    async fn logs(&self) -> String {
        let mut said = String::new();
        for (what, state) in [
            ("old gateway", self.lab.oam("spgw", "GET", "/sessions").await.ok()),
            ("SMF", self.lab.oam("smf", "GET", "/sessions").await.ok()),
            ("old UPF", self.lab.oam("upf", "GET", "/sessions").await.ok()),
            ("new UPF", self.lab.edge_oam(&edge::SITES[0], "upf", "/sessions").await.ok()),
            ("sessions", self.lab.controller("GET", "/v1/replication/central/ues", None).await.ok()),
            ("replicas", self.lab.controller("GET", "/v1/replicas", None).await.ok()),
            ("diversions", self.lab.controller("GET", "/v1/diversions", None).await.ok()),
            ("counters", self.lab.controller("GET", "/v1/status", None).await.ok()),
            ("users", self.orchestrator("GET", "/v1/ues", None).await.ok()),
            ("moves", self.orchestrator("GET", "/v1/moves", None).await.ok()),
            ("switch n3", self.lab.switch_status("n3").await.ok()),
            ("switch n6", self.lab.switch_status("n6").await.ok()),
        ] {
            let _ = writeln!(said, "--- {what}\n{}", state.unwrap_or_default());
        }
        said + &self.written()
    }

    fn written(&self) -> String {
        let calls = self.proxy.calls();
        let last = calls.iter().rev().take(40).rev().map(|call| format!("{call:?}\n")).collect::<String>();
        let names = [
            "orchestrator",
            "controller",
            "switch-n3",
            "switch-n6",
            "run-orchestrator/edge-host-anchor",
            "run-orchestrator/edge-host-agent",
            "spgw",
            "smf",
            "amf",
            "upf",
            "ran",
        ];
        let tail = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        names.map(|name| format!("--- {name}\n{}\n", tail(self.lab.log(name)))).concat()
            + "--- calls\n"
            + &last
    }

    async fn stop(mut self) {
        self.ues.clear();
        self.simulator.take().unwrap().stop().await.unwrap();
        let _ = self.orchestrator("DELETE", &format!("/v1/hosts/{HOST}/anchor"), None).await;
    }
}

/// A place in the table.
type Cell = (usize, usize, usize);

const PHASES: [&str; 3] = ["before", "during", "after"];

/// Fills cells of the table, and writes it down. Cells that are not as they should be are named.
async fn table(epc: bool, name: &str, cells: impl Fn(&[Step]) -> Vec<Cell>) {
    let mut world = World::start(epc).await;
    let (mut steps, mut before) = (Vec::new(), Vec::new());
    // Neighbours and translations are known after the first one. What only one of them has are calls of a look that came between.
    for round in 0..2 {
        for to in [HOST, ORIGIN] {
            let of_move = world.moved(to).await.unwrap_or_else(|why| panic!("{why}\n{}", world.written()));
            let names = of_move.iter().map(|step| (step.to, step.name.clone(), step.nth));
            match round {
                0 => before.extend(names),
                _ => steps.extend(
                    of_move
                        .into_iter()
                        .filter(|step| before.contains(&(step.to, step.name.clone(), step.nth))),
                ),
            }
        }
    }
    let began = time::now();
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (mut found, mut bad) = (BTreeMap::new(), Vec::new());
    let only = std::env::var("KILLS").unwrap_or_default();
    for (step, phase, victim) in cells(&steps) {
        let victim_is = Victim::all(epc)[victim];
        let of = &steps[step];
        let place = [Phase::Before, Phase::During(of.took / 2), Phase::After][phase];
        let title = format!(
            "{} killed, move to {}, {} {} ({})",
            victim_is.name(),
            of.to,
            PHASES[phase],
            of.name,
            of.nth
        );
        if !only.split('|').any(|only| title.contains(only)) {
            continue;
        }
        let start = time::now();
        let lossless = |outcome: &Outcome| outcome.lost == [0, 0] && outcome.doubled == 0;
        let is_well = |outcome: &Result<Outcome, String>| {
            outcome.as_ref().is_ok_and(|outcome| !victim_is.is_control_only() || lossless(outcome))
        };
        let mut outcome = world.kill_at(of, place, victim_is).await;
        // A busy machine loses packets as well, but not each time.
        for _ in 0..TRIES {
            if outcome.is_err() || is_well(&outcome) {
                break;
            }
            let said = outcome.as_ref().map(Outcome::cell).unwrap_or_default();
            eprintln!("{title}: {said}; tried again");
            outcome = world.kill_at(of, place, victim_is).await;
        }
        let is_well = is_well(&outcome);
        let mut logs = if is_well { String::new() } else { world.logs().await };
        let after = match &outcome {
            // Then to the other side.
            Ok(outcome) => world.moved(if outcome.at == "old" { HOST } else { ORIGIN }).await.err(),
            Err(_) => None,
        };
        if after.is_some() {
            logs.push_str(&world.logs().await);
        }
        let text = match (&outcome, &after) {
            (Err(why), _) => why.clone(),
            (Ok(outcome), None) => outcome.cell(),
            (Ok(outcome), Some(why)) => format!("{}; {why}", outcome.cell()),
        };
        let gap = outcome.as_ref().map(|outcome| outcome.gap_from.as_millis()).unwrap_or_default();
        eprintln!("{title}: {text} (gap from {gap} ms; all in {} ms)", (time::now() - start).as_millis());
        if !is_well || after.is_some() {
            let file = folder.join(format!(
                "{name}-{step}-{}-{}.log",
                PHASES[phase],
                victim_is.name().replace(' ', "-")
            ));
            std::fs::write(&file, format!("{title}: {text}\n{logs}")).unwrap();
            bad.push(format!("{title}: {text} (see {})", file.display()));
            if outcome.is_err() || after.is_some() {
                drop(world);
                world = World::start(epc).await;
            }
        }
        found.insert(
            (step, phase, victim),
            if is_well && after.is_none() { text } else { format!("**{text}**") },
        );
    }
    let markdown = markdown(epc, &steps, &found);
    let file = folder.join(format!("{name}.md"));
    std::fs::write(&file, &markdown).unwrap();
    eprintln!(
        "{markdown}\n{} cells in {} ms: {}",
        found.len(),
        (time::now() - began).as_millis(),
        file.display()
    );
    world.stop().await;
    assert!(bad.is_empty(), "{} cells are not as they should be:\n{}", bad.len(), bad.join("\n"));
}

fn markdown(epc: bool, steps: &[Step], found: &BTreeMap<Cell, String>) -> String {
    let victims = Victim::all(epc);
    let mut text = "| move | step | |".to_owned();
    victims.iter().for_each(|victim| _ = write!(text, " {} |", victim.name()));
    text.push_str("\n|---|---|---|");
    text.push_str(&"---|".repeat(victims.len()));
    for (at, step) in steps.iter().enumerate() {
        for (phase, name) in PHASES.iter().enumerate() {
            let nth = if step.nth > 1 { format!(" ({})", step.nth) } else { String::new() };
            let _ = write!(text, "\n| {} | `{}`{nth} | {name} |", step.to, step.name);
            for victim in 0..victims.len() {
                let _ = write!(text, " {} |", found.get(&(at, phase, victim)).map_or("", |text| text));
            }
        }
    }
    text.push('\n');
    text
}

/// EV-10: each step and each victim, but not each pair of them.
#[tokio::test(flavor = "multi_thread")]
async fn any_part_may_be_killed_at_any_step_of_a_move() {
    let victims = Victim::all(true).len();
    let of = |steps: &[Step]| {
        (0..steps.len() * 3).map(|row| (row / 3, row % 3, (row + row / victims) % victims)).collect()
    };
    table(true, "kills-sample", of).await;
}

/// EV-10 over N4: the SMF forgets all sessions while they are being copied, when they have been diverted, and on their way back.
#[tokio::test(flavor = "multi_thread")]
async fn an_smf_may_be_killed_at_any_step_of_a_move() {
    let smf = Victim::all(false).iter().position(|victim| *victim == Victim::Smf).unwrap();
    let of = |steps: &[Step]| {
        let step = |to: &str, call: &str| {
            let at = steps.iter().position(|step| step.to == to && step.name.starts_with(call));
            at.unwrap_or_else(|| panic!("no {call} in {steps:?}"))
        };
        vec![
            (step(HOST, "POST /v1/replicas"), 1, smf),
            (step(HOST, "POST /v1/diversions"), 2, smf),
            (step(ORIGIN, "POST /v1/diversions"), 0, smf),
        ]
    };
    table(false, "kills-smf", of).await;
}

/// All pairs, as often as `KILLS_TIMES` says.
fn all_cells(epc: bool, steps: usize) -> Vec<Cell> {
    let times: usize = std::env::var("KILLS_TIMES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let rows = (0..steps).flat_map(|step| (0..3).map(move |phase| (step, phase)));
    let victims = 0..Victim::all(epc).len();
    rows.flat_map(|(step, phase)| {
        victims.clone().flat_map(move |victim| std::iter::repeat_n((step, phase, victim), times))
    })
    .collect()
}

/// EV-10: a restart of the original UPF is nothing to UEs at the edge. The SMF sets up their sessions again, and the copies stay.
#[tokio::test(flavor = "multi_thread")]
async fn ues_at_the_edge_outlive_a_restart_of_their_original_upf() {
    let mut world = World::start(false).await;
    world.moved(HOST).await.unwrap();
    for left in (0..=TRIES).rev() {
        world.after_a_look().await;
        let before = world.restored().await;
        let first: Vec<[u64; 2]> = world.ues.values().map(|ue| [ue.up.next(), ue.down.next()]).collect();
        world.kill(Victim::OldUpf).await;
        world.start_again(Victim::OldUpf).await;
        until("the sessions are there again", async || {
            (world.restored().await == before + u64::from(UES)).then_some(())
        })
        .await;
        // What had ended would be found and made anew.
        for _ in 0..3 {
            world.after_a_look().await;
        }
        assert_eq!(world.settled(RECOVERY).await.as_deref(), Ok("new"), "{}", world.logs().await);
        let mut found = Vec::new();
        for (ue, [up, down]) in world.ues.values().zip(first) {
            found.extend([ue.up.since(up).await, ue.down.since(down).await]);
        }
        // A busy machine loses packets as well, but not each time.
        if found.iter().all(|flow| flow.lost == 0 && flow.doubled == 0) {
            break;
        }
        assert!(left > 0, "{found:?}\n{}", world.logs().await);
        eprintln!("{found:?}; tried again");
    }
    world.moved(ORIGIN).await.unwrap();
    world.stop().await;
}

/// EV-10: all of them.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes and more"]
async fn all_parts_are_killed_at_all_steps_of_a_move() {
    table(true, "kills", |steps| all_cells(true, steps.len())).await;
}

/// The same in 5G.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes and more"]
async fn all_parts_are_killed_at_all_steps_of_a_move_of_5g() {
    table(false, "kills-5g", |steps| all_cells(false, steps.len())).await;
}

/// Two moves of one UE at once, a detach in the middle of a move, and a path between switch and target that is broken.
#[tokio::test(flavor = "multi_thread")]
async fn moves_that_something_comes_between_end_well() {
    let mut world = World::start(true).await;
    world.moved(HOST).await.unwrap();
    world.moved(ORIGIN).await.unwrap();
    let (moves, all) = (edge::MOVES.parse().unwrap(), world.all());
    let there = json!({"ues": &all, "to": HOST, "order": "keep"});
    let begin = |world: &World| {
        world.proxy.call(moves, ("POST", "/v1/moves?wait=40".to_owned()), Some(there.clone()))
    };

    // The second one is refused, and the first one is not disturbed.
    let comes = world.proxy.hold("POST /v1/replicas", 1, Phase::During(Duration::ZERO));
    let first = begin(&world);
    let held = time::timeout(COMES, comes).await.unwrap().unwrap();
    let back = json!({"ues": [&all[0]], "to": ORIGIN});
    for second in [there.clone(), back] {
        let refused = world.orchestrator("POST", "/v1/moves", Some(second)).await.unwrap_err();
        assert!(refused.contains("is being moved by /v1/moves/"), "{refused}");
    }
    drop(held);
    assert_eq!(first.await.unwrap().unwrap().body["state"], "done");
    assert_eq!(world.settled(RECOVERY).await.as_deref(), Ok("new"));
    world.moved(ORIGIN).await.unwrap();

    // Nothing is at the edge of users that are gone; when they are back they can be moved.
    let comes = world.proxy.hold("POST /v1/diversions?order=keep", 1, Phase::Before);
    let first = begin(&world);
    let held = time::timeout(COMES, comes).await.unwrap().unwrap();
    world.ues.clear();
    world.simulator.take().unwrap().stop().await.unwrap();
    drop(held);
    assert_eq!(first.await.unwrap().unwrap().body["ended"], true);
    world.is_clean(ORIGIN, 0).await.unwrap();
    until("no diversion is left", async || {
        let left = world.lab.controller("GET", "/v1/diversions", None).await.ok()?;
        left["diversions"].as_array()?.is_empty().then_some(())
    })
    .await;
    world.simulator = Some(world.lab.simulate(&simulated(true, &["--cycles", "2"])).unwrap());
    assert_eq!(world.settled(RECOVERY).await.as_deref(), Ok("old"));
    world.moved(HOST).await.unwrap();

    // Users go back by the controller or by the orchestrator, whoever is first, and can be moved when the path is whole.
    let links = Links::in_ns(world.lab.namespace_of("controller")).unwrap();
    links.down(edge::N3_PORTS[2]).await.unwrap();
    time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.settled(RECOVERY).await.as_deref(), Ok("old"));
    links.up(edge::N3_PORTS[2]).await.unwrap();
    until("the anchor answers again", async || {
        let anchors = world.lab.controller("GET", "/v1/anchors", None).await.ok()?;
        let edge =
            anchors["anchors"].as_array()?.iter().find(|anchor| anchor["name"] == edge::SITES[0].anchor)?;
        (edge["alive"] == true).then_some(())
    })
    .await;
    world.moved(HOST).await.unwrap();
    world.moved(ORIGIN).await.unwrap();
    world.stop().await;
}

/// An idle UE is moved: it is paged by its original anchor, nothing that waited for it is lost, and it is diverted when it is active.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_ue_is_paged_and_then_diverted() {
    let mut world = World::start_with(true, &["--inactivity", "0.3"]).await;
    let all = world.all();
    let places: Vec<_> =
        std::mem::take(&mut world.ues).into_values().map(|ue| (ue.address, ue.space)).collect();
    for _ in 0..UES {
        world.simulator.as_mut().unwrap().expect("idle", PATIENCE).await.unwrap();
    }
    let request = json!({"ues": all, "to": HOST, "order": "keep"});
    let one = world.orchestrator("POST", "/v1/moves?wait=40", Some(request)).await.unwrap();
    assert_eq!((&one["state"], &one["counts"]["waiting"]), (&json!("done"), &json!(UES)), "{one}");
    let flows: Vec<Stream> = (0..)
        .zip(&places)
        .map(|(number, (address, space))| {
            let user = bind(space, *address, UE_PORT + number).unwrap();
            let server = bind(world.lab.dn(), lab::DN, DN_PORT + number).unwrap();
            Stream::start(&server, &user, (*address, UE_PORT + number).into())
        })
        .collect();
    until("both are at the edge", async || {
        let known = world.orchestrator("GET", "/v1/ues", None).await.ok()?;
        let known = known["ues"].as_array()?.clone();
        (known.len() == UES as usize && known.iter().all(|ue| ue["on"] == HOST)).then_some(())
    })
    .await;
    let first: Vec<usize> = flows.iter().map(Stream::come).collect();
    time::sleep(Duration::from_millis(500)).await;
    for (flow, first) in flows.iter().zip(first) {
        assert!(flow.come() > first, "downlink packets come");
        let found = flow.since(0).await;
        assert_eq!((found.lost, found.doubled), (0, 0), "{found:?}");
    }
    world.is_clean(HOST, UES as usize).await.unwrap();
    drop(flows);
    world.stop().await;
}
