//! The network of tests of moves: an edge, eNBs, an MME, and UEs with flows both ways.
//!
//! Each flow must come by one anchor, as the kernel counts at both far ends, and state must be where users are and nowhere else.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gtpv2c::PdnType;
use lab::edge::{self, SITES};
use lab::traffic::{self, Counts, Ends, Traffic};
use net::link::{Cidr, Links};
use net::time::{self, Duration};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::anchors::{Come, edit, edit_all, kill_at};
use crate::cell::{Cell, Do, Ue};
use crate::flow::until;
use crate::mec_move::{DN_PORT, UE_PORT};
use crate::proxy::Proxy;

/// Where the orchestrator calls the controller.
const PROXY: &str = "127.0.0.1:8183";
pub(crate) const ORIGIN: &str = "origin";
/// A second eNB, which the lab does not have.
const ENB2: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 22);
/// How long it may take until all is as it should be.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How long packets are counted.
pub(crate) const WINDOW: Duration = Duration::from_millis(150);
/// How often the orchestrator looks, if a test does not say otherwise.
pub(crate) const LOOK_MS: u64 = 300;
/// How long rules for what an old anchor has sent stay.
pub(crate) const OLD_WAYS: Duration = Duration::from_millis(500);
/// Between two packets of a flow.
const INTERVAL: Duration = Duration::from_millis(1);
const OCTETS: usize = 16;

/// What a UE's pairs of flows are about: its ports at the UE and at the data network are those of the default bearer and this.
const DEFAULT: u16 = 0;
pub(crate) const DEDICATED: u16 = 100;
const IPV6: u16 = 200;

/// An edge, and UEs with flows both ways.
pub(crate) struct World {
    pub(crate) ues: Vec<Ue>,
    pub(crate) traffic: Option<Traffic>,
    /// To which the flows' packets go, with the place of the UE in the list.
    pub(crate) ports: Vec<(u16, usize)>,
    pub(crate) cell: Cell,
    pub(crate) proxy: Proxy,
    pub(crate) come: Come,
    pub(crate) sites: usize,
    pub(crate) lab: lab::Lab,
}

impl Drop for World {
    fn drop(&mut self) {
        for site in &SITES[..self.sites] {
            for part in ["agent", "anchor"] {
                kill_at(self.lab.folder(), site.host, part);
            }
        }
    }
}

/// What an anchor's sessions are, but for what it chooses itself: by IMSI.
pub(crate) fn sessions(listed: &Value) -> BTreeMap<String, String> {
    let all = listed.as_array().into_iter().flatten();
    all.map(|session| {
        let bearers = session["bearers"].as_array().into_iter().flatten();
        let bearers: Vec<Value> = bearers
            .map(|bearer| {
                json!([bearer["ebi"], bearer["qci"], bearer["filters"], bearer["enb"], bearer["enb_teid"]])
            })
            .collect();
        let what = json!([session["state"], session["ambr_uplink"], session["ambr_downlink"], bearers]);
        (session["imsi"].as_str().unwrap_or_default().to_owned(), what.to_string())
    })
    .collect()
}

/// Sessions of the first anchor that the controller knows. S-GWs at the edge are known as well, by what they say to a P-GW.
fn sessions_known(known: &Value) -> usize {
    let mut anchors = known["anchors"].as_array().into_iter().flatten();
    let first = anchors.find(|anchor| anchor["name"] == edge::CENTRAL);
    first.and_then(|anchor| anchor["ues"].as_u64()).unwrap_or_default() as usize
}

/// What differs between the tests.
pub(crate) struct Setup {
    pub(crate) sites: usize,
    /// The S-GW is apart, and is what is moved.
    pub(crate) sgw: bool,
    pub(crate) ues: u16,
    pub(crate) pdn_type: PdnType,
    /// The first UE's prefix by its subscription; the others' follow.
    pub(crate) static_ipv6: Option<Ipv6Addr>,
    /// Sessions that the gateway of the first site takes, and UEs that may be at the second one.
    pub(crate) rooms: Option<[usize; 2]>,
    pub(crate) look_ms: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sites: 1,
            sgw: false,
            ues: 2,
            pdn_type: PdnType::Ipv4,
            static_ipv6: None,
            rooms: None,
            look_ms: LOOK_MS,
        }
    }
}

impl World {
    pub(crate) async fn start(setup: Setup) -> World {
        let mut options = lab::Options::new(setup.ues.into()).unwrap();
        (options.edges, options.epc, options.processes, options.sgw) = (setup.sites, true, true, setup.sgw);
        let section = if setup.sgw { "pgw" } else { "spgw" };
        options.edit = Box::new(move |all| all[section]["apn"][0]["ue_gbr_kbps"] = json!(10_000));
        let mut lab = lab::Lab::start(options).await.unwrap();
        let enb2 = Cidr::new(ENB2.into(), 24).unwrap();
        Links::in_ns(lab.ran()).unwrap().add_address("n2", enb2).await.unwrap();
        lab.start_moves().await.unwrap();
        edit(&lab, "orchestrator", |own| {
            own["controller"] = json!(format!("http://{PROXY}"));
            own["times"] =
                json!({"look_ms": setup.look_ms, "retry_ms": 50, "call_ms": 5000, "start_ms": 1500});
            if let Some([_, room]) = setup.rooms {
                own["hosts"][1]["capacity"] = json!(room);
            }
            // Each eNB is next to a site.
            for (host, enb) in own["hosts"].as_array_mut().unwrap().iter_mut().zip([lab::RAN_N2, ENB2]) {
                host["base_stations"] = json!([enb]);
            }
        });
        if let Some([room, _]) = setup.rooms {
            edit_all(&lab, SITES[0].anchor, |all| all["spgw"]["limits"] = json!({"sessions": room}));
        }
        edit(&lab, "controller", |own| {
            own["diverting"]["echo_ms"] = json!(400);
            own["diverting"]["old_ways_ms"] = json!(OLD_WAYS.as_millis() as u64);
            // Tokens of UEs that have handed over meanwhile do not come.
            own["diverting"]["order"]["timeout_ms"] = json!(300);
            let second = json!({"name": "enb2", "address": ENB2, "switch": "n3", "access": "4g"});
            own["base_stations"].as_array_mut().unwrap().push(second);
        });
        let space = lab.namespace_of("controller").clone();
        let proxy = Proxy::start(&space, PROXY.parse().unwrap(), edge::REST.parse().unwrap());
        for part in ["controller", "orchestrator"] {
            lab.kill(part).await.unwrap();
            lab.restart_part(part).unwrap();
        }
        let mut anchors = vec![lab.first_anchor_space()];
        anchors.extend(SITES[..setup.sites].iter().map(|site| lab.site(site)));
        // Uplink packets come at the data network, or from S-GWs in tunnels at their P-GW.
        let uplink = if setup.sgw { (lab.core(), "n2") } else { (lab.dn(), "n6") };
        let come = Come::start(&lab, [uplink, (lab.ran(), "n2")], &anchors).await;
        until("the controller has its switches", async || {
            let switches = lab.controller("GET", "/v1/switches", None).await.ok()?;
            let switches = switches["switches"].as_array()?.clone();
            (switches.len() == 2 && switches.iter().all(|switch| switch["connected"] == true)).then_some(())
        })
        .await;
        let mut cell =
            Cell::start(&lab, &[lab::RAN_N2.into(), ENB2.into()], setup.pdn_type, setup.static_ipv6).await;
        for site in &SITES[..setup.sites] {
            until("the anchor at the edge is started", async || {
                lab.orchestrator("POST", &format!("/v1/hosts/{}/anchor", site.host), None).await.ok()
            })
            .await;
        }
        let mut ues = Vec::new();
        for _ in 0..setup.ues {
            ues.push(cell.attach().await);
        }
        until("the sessions are known by their messages", async || {
            let known = lab.controller("GET", "/v1/replication", None).await.ok()?;
            (sessions_known(&known) == usize::from(setup.ues)).then_some(())
        })
        .await;
        let mut world =
            World { ues, traffic: None, ports: Vec::new(), cell, proxy, come, sites: setup.sites, lab };
        world.talk();
        world
    }

    /// Starts the flows.
    pub(crate) fn talk(&mut self) {
        self.ports.clear();
        let mut flows = Vec::new();
        for (at, ue) in self.ues.iter().enumerate() {
            for address in &ue.addresses {
                let (kinds, dn): (&[u16], IpAddr) = match address {
                    IpAddr::V4(_) => (&[DEFAULT, DEDICATED], lab::DN.into()),
                    IpAddr::V6(_) => (&[IPV6], lab::DN_IPV6.into()),
                };
                for kind in kinds {
                    let [ue_port, dn_port] = [UE_PORT, DN_PORT].map(|base| base + kind + at as u16);
                    let user = traffic::bind(&ue.space, *address, ue_port).unwrap();
                    let server = traffic::bind(self.lab.dn(), dn, dn_port).unwrap();
                    let [from, to] = [&user, &server].map(|socket| socket.try_clone().unwrap());
                    flows.push(Ends { from, to, address: SocketAddr::new(dn, dn_port) });
                    flows.push(Ends { from: server, to: user, address: SocketAddr::new(*address, ue_port) });
                    self.ports.extend([(dn_port, at), (ue_port, at)]);
                }
            }
        }
        self.traffic = Some(Traffic::start(flows, INTERVAL, OCTETS));
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        self.traffic.as_ref().unwrap()
    }

    /// What has become of packets from a number on, by flow.
    pub(crate) async fn found(&self, first: u64) -> Vec<Counts> {
        self.traffic().since(first).await.into_iter().map(|found| found.counts).collect()
    }

    async fn orchestrator(
        &self,
        method: &'static str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let answer = self.proxy.call(edge::MOVES.parse().unwrap(), (method, path.to_owned()), body);
        let answer = answer.await.unwrap().map_err(|error| error.to_string())?;
        if answer.status < 300 { Ok(answer.body) } else { Err(answer.body.to_string()) }
    }

    /// All UEs that talk, by their places.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.ues.len()).collect()
    }

    /// Begins a move of UEs, and of further ones by their names.
    pub(crate) fn begin(
        &self,
        ues: &[usize],
        further: &[String],
        to: &str,
        more: Value,
    ) -> JoinHandle<Value> {
        let all: Vec<String> =
            ues.iter().map(|at| self.ues[*at].id()).chain(further.iter().cloned()).collect();
        let mut request = json!({"ues": all, "to": to, "order": "keep"});
        for (name, value) in more.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        let path = "/v1/moves?wait=30".to_owned();
        let asked = self.proxy.call(edge::MOVES.parse().unwrap(), ("POST", path), Some(request));
        tokio::spawn(async move {
            // The orchestrator may be killed meanwhile.
            let answer = asked.await.unwrap();
            answer.map_or_else(|error| json!({"unanswered": error.to_string()}), |answer| answer.body)
        })
    }

    /// Moves UEs, and waits for the end; the move.
    pub(crate) async fn moved(&self, ues: &[usize], to: &str, more: Value) -> Value {
        let one = self.begin(ues, &[], to, more).await.unwrap();
        assert_eq!((&one["state"], &one["counts"]["moved"]), (&json!("done"), &json!(ues.len())), "{one}");
        one
    }

    /// Which anchor serves each UE, if each flow comes by one anchor, and all of a UE by the same: 0 is the central one.
    async fn at(&self) -> Result<Vec<usize>, String> {
        let before = self.come.counts().await;
        time::sleep(WINDOW).await;
        let after = self.come.counts().await;
        let mut at: Vec<Option<usize>> = vec![None; self.ues.len()];
        for (port, ue) in &self.ports {
            let come = |anchor: usize| {
                let count =
                    |counts: &[BTreeMap<u16, u64>]| counts[anchor].get(port).copied().unwrap_or_default();
                count(&after) - count(&before)
            };
            let packets: Vec<u64> = (0..=self.sites).map(come).collect();
            let by: Vec<usize> = (0..=self.sites).filter(|anchor| packets[*anchor] > 0).collect();
            match (&by[..], at[*ue]) {
                ([one], None) => at[*ue] = Some(*one),
                ([one], Some(other)) if *one == other => {}
                _ => return Err(format!("port {port} of UE {ue}: {packets:?} packets by anchors; {at:?}")),
            }
        }
        Ok(at.into_iter().flatten().collect())
    }

    /// Which anchor serves each UE, if no move is under way, each flow comes by one anchor, the orchestrator says the same, and state is there, as at
    /// the original, and nowhere else.
    async fn settled_at(&self) -> Result<Vec<usize>, String> {
        let moves = self.orchestrator("GET", "/v1/moves", None).await?;
        if let Some(one) = moves["moves"].as_array().into_iter().flatten().find(|one| one["ended"] != true) {
            return Err(format!("a move has not ended: {one}"));
        }
        let at = self.at().await?;
        let known = self.orchestrator("GET", "/v1/ues", None).await?;
        for (ue, at) in self.ues.iter().zip(&at) {
            let own = known["ues"].as_array().into_iter().flatten().find(|one| one["id"] == ue.id());
            let on = own.and_then(|one| one["on"].as_str()).unwrap_or(ORIGIN);
            if on != (if *at == 0 { ORIGIN } else { SITES[at - 1].host }) {
                return Err(format!("{} is at {at}, and for the orchestrator on {on}", ue.id()));
            }
        }
        let original =
            self.lab.oam(self.lab.gateway(), "GET", "/sessions").await.map_err(|error| error.to_string())?;
        for (number, site) in (1..).zip(&SITES[..self.sites]) {
            // An anchor that was killed has none.
            let there = self.lab.edge_oam(site, self.lab.gateway(), "/sessions").await.unwrap_or_default();
            let ues = self.ues.iter().zip(&at).filter(|(_, at)| **at == number);
            let wanted: BTreeMap<String, String> = ues
                .filter_map(|(ue, _)| Some((ue.imsi.clone(), sessions(&original).remove(&ue.imsi)?)))
                .collect();
            if sessions(&there) != wanted {
                return Err(format!("at {} is {:?} instead of {wanted:?}", site.host, sessions(&there)));
            }
        }
        Ok(at)
    }

    /// Waits until all is as it should be; where UEs are.
    pub(crate) async fn settled(&self) -> Vec<usize> {
        let deadline = time::now() + SOON;
        loop {
            match self.settled_at().await {
                Ok(at) => return at,
                Err(why) => assert!(time::now() < deadline, "{why}\n{}", self.logs().await),
            }
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until UEs are where they should be.
    pub(crate) async fn settled_as(&self, expected: &[usize]) {
        let deadline = time::now() + SOON;
        loop {
            let at = self.settled().await;
            if at == expected {
                return;
            }
            assert!(time::now() < deadline, "{at:?} instead of {expected:?}\n{}", self.logs().await);
        }
    }

    /// Moves all there and back, so that neighbours and translations are known.
    pub(crate) async fn warm_up(&self) {
        for to in [SITES[0].host, ORIGIN] {
            self.moved(&self.all(), to, json!({})).await;
            self.settled().await;
        }
    }

    /// Nothing was lost, doubled or overtaken from a packet on.
    pub(crate) async fn all_came(&self, first: u64, context: &str) {
        for (found, (port, _)) in self.found(first).await.into_iter().zip(&self.ports) {
            let expected = Counts { sent: found.sent, ..Counts::default() };
            assert_eq!(found, expected, "{context}: to port {port}");
        }
    }

    pub(crate) async fn logs(&self) -> String {
        let mut said = String::new();
        for (what, path) in [
            ("sessions", "/v1/replication/central/ues"),
            ("replicas", "/v1/replicas"),
            ("diversions", "/v1/diversions"),
        ] {
            said += &format!(
                "--- {what}\n{}\n",
                self.lab.controller("GET", path, None).await.unwrap_or_default()
            );
        }
        let users = self.orchestrator("GET", "/v1/ues", None).await.unwrap_or_default();
        let moves = self.orchestrator("GET", "/v1/moves", None).await.unwrap_or_default();
        said += &format!("--- users\n{users}\n--- moves\n{moves}\n");
        let at_edge = self.lab.edge_oam(&SITES[0], self.lab.gateway(), "/sessions").await;
        said += &format!("--- gateway at the edge\n{at_edge:?}\n");
        if let Ok(at_pgw) = self.lab.oam("pgw", "GET", "/sessions").await {
            said += &format!("--- P-GW\n{at_pgw}\n");
        }
        for name in [
            "orchestrator",
            "controller",
            self.lab.gateway(),
            "run-orchestrator/edge-host-anchor",
            "run-orchestrator/edge-host-agent",
        ] {
            let log = self.lab.log(name);
            let lines: Vec<&str> = log.lines().collect();
            said += &format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
        said
    }

    pub(crate) async fn detach_all(&mut self) {
        self.traffic = None;
        for ue in &self.ues {
            ue.does(Do::Detach).await;
        }
        self.ues.clear();
        self.ports.clear();
    }

    /// Detaches the UEs; then nothing of them may be anywhere.
    pub(crate) async fn stop(mut self) {
        self.detach_all().await;
        self.nobody_else_is_left().await;
        for site in &SITES[..self.sites] {
            self.orchestrator("DELETE", &format!("/v1/hosts/{}/anchor", site.host), None).await.unwrap();
        }
    }

    /// Waits until no part knows other UEs than those that talk.
    pub(crate) async fn nobody_else_is_left(&self) {
        let deadline = time::now() + SOON;
        while let Err(why) = self.is_of_own().await {
            assert!(time::now() < deadline, "something is left: {why}\n{}", self.logs().await);
            time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sessions, records, copies and diversions are those of UEs that talk.
    async fn is_of_own(&self) -> Result<(), String> {
        let ask = async |path: &str| {
            self.lab.controller("GET", path, None).await.map_err(|error| format!("{error:#}"))
        };
        let at = self.settled_at().await?;
        let moved = at.iter().filter(|at| **at > 0).count();
        let original =
            self.lab.oam(self.lab.gateway(), "GET", "/sessions").await.map_err(|error| error.to_string())?;
        let users = self.orchestrator("GET", "/v1/ues", None).await?;
        let (known, replicas) = (ask("/v1/replication").await?, ask("/v1/replicas").await?);
        let diversions = ask("/v1/diversions").await?;
        let copies = replicas["replicas"].as_array().into_iter().flatten();
        let copies: u64 = copies.filter_map(|one| one["ues"].as_u64()).sum();
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let found = [
            sessions(&original).len(),
            sessions_known(&known),
            copies as usize,
            count(&diversions["diversions"]),
            count(&users["ues"]),
        ];
        let expected = [self.ues.len(), self.ues.len(), moved, moved, moved];
        if found != expected {
            return Err(format!(
                "sessions, records, copies, diversions, users: {found:?} instead of {expected:?}; {known} {replicas} {diversions} {users}"
            ));
        }
        Ok(())
    }
}
