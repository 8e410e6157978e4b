//! UEs moved by a controller, and what its capture costs them: a lab with an edge site, each part a process as an operator starts it.
//!
//! [`Edge::carry`]: UEs are copied to the clone at the edge, and the controller diverts their packets, there and back; in advance it may be told to
//! prepare that, as the orchestrator does when their state is there before they move. In 4G the clone gives UEs other TEIDs and addresses, so a
//! user is two rules in the switch before the eNB and four in that on SGi. In 5G it keeps both. The time is that from the first octet of a request to the controller's REST API
//! until the last one of its answer: then both switches have the rules, and the request is on the disk.
//!
//! [`Edge::attach_time_us`]: attaches through the switch before the eNB, with what the controller captures there ([`Capture`]). MME or SMF and the base
//! station are of this experiment, without packets of users.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use lab::moves::Moves;
use lab::{Lab, edge};
use net::tcp;
use net::time::{self, Duration};
use replication::replicator::Protocol;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

use super::messages::Control;
use super::mme::Mme;
use super::smf::{self, Smf};
use crate::stats::median;

/// Time limit for what the controller, or the network, does.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Users of a request, as many as the orchestrator has in one.
const AT_ONCE: usize = 10_000;
/// Rules of old ways stay so long, which nobody waits for; behind the second time the next move finds the switches as this one did.
const OLD_WAYS_MS: u64 = 100;
const OLD_WAYS: Duration = Duration::from_millis(250);
/// Most UEs of a gateway.
const MOST_UES: u32 = 120_000;
/// Addresses for more UEs than a lab has otherwise: of the gateway, of the SMF, and of their UPF, at each anchor.
type Pools = [(&'static str, &'static str, &'static str); 3];
const POOLS: [Pools; 2] = [
    [("spgw", "apn", "10.64.0.0/14"), ("smf", "dnn", "10.68.0.0/16"), ("upf", "dnn", "10.64.0.0/13")],
    [("spgw", "apn", "10.72.0.0/14"), ("smf", "dnn", "10.76.0.0/16"), ("upf", "dnn", "10.72.0.0/13")],
];

/// What becomes of control messages at the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
    /// They pass.
    Off,
    /// The controller gets copies (CAP-3).
    Copy,
    /// They go by the controller (CAP-2).
    ViaController,
}

/// The lab with its MME or SMF.
pub(super) struct Edge {
    lab: Lab,
    control: Control,
    client: Client,
}

/// The runtime of the controller's client, in the controller's namespace. It may be dropped wherever an error ends the experiment.
struct Client(Option<Runtime>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// What a move of UEs took, ms.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Carried {
    /// Copying their state.
    pub(super) copied: f64,
    /// Having their diversions prepared.
    pub(super) prepared: f64,
    /// Diverting them.
    pub(super) there: f64,
    /// Undiverting them.
    pub(super) back: f64,
}

impl Edge {
    /// Starts it: 4G with S11, or 5G with N4.
    pub(super) async fn start(protocol: Protocol, capture: Capture) -> anyhow::Result<Edge> {
        let epc = protocol == Protocol::S11;
        let edit = Box::new(move |configuration: &mut Value| give_room(configuration, epc, POOLS[0]));
        let options = lab::Options { epc, log: "warn".to_owned(), edit, ..lab::Options::new(1)? };
        let mut lab = Moves::network(options, 1).await?;
        Moves::control_with(&mut lab, |controller| {
            controller["diverting"]["old_ways_ms"] = json!(OLD_WAYS_MS);
            match capture {
                Capture::Off => controller["switches"][0]["capture"] = json!(false),
                Capture::Copy => {}
                Capture::ViaController => controller["capture"] = json!({"mode": "via_controller"}),
            }
        })
        .await?;
        let file = lab.folder().join(format!("{}.yaml", edge::SITES[0].anchor));
        let mut clone: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        give_room(&mut clone, epc, POOLS[1]);
        std::fs::write(&file, clone.to_string())?;
        let (own, anchor) = (edge::CONTROL, lab::CORE_N2);
        let control = if epc {
            let mme = lab.ran().enter(|| Mme::new(own, lab::RAN_N2, anchor, Box::new(|_, _| ())))??;
            Control::Mme(mme, Vec::new())
        } else {
            // The one of this experiment has its address.
            lab.kill("smf").await?;
            let smf =
                lab.ran().enter(|| Smf::new(own, (anchor, smf::PORT).into(), Box::new(|_, _| ())))??;
            Control::Smf(smf, Vec::new())
        };
        let client = Client(Some(lab.namespace_of("controller").runtime(1)?));
        Ok(Edge { lab, control, client })
    }

    /// Starts the anchor at the edge, to which UEs are moved.
    pub(super) async fn start_clone(&self) -> anyhow::Result<()> {
        let site = &edge::SITES[0];
        self.lab.orchestrator("POST", &format!("/v1/hosts/{}/anchor", site.host), None).await?;
        self.until("the anchor at the edge answers", async |edge| {
            let anchors = edge.call("GET", "/v1/anchors", None).await?;
            let mut anchors = anchors["anchors"].as_array().into_iter().flatten();
            Ok(anchors.any(|anchor| anchor["name"] == site.anchor && anchor["alive"] == true))
        })
        .await
    }

    /// The median time of attaches, one after the other, us. The UEs leave.
    pub(super) fn attach_time_us(&mut self, attaches: usize) -> anyhow::Result<f64> {
        let mut times = Vec::with_capacity(attaches);
        for _ in 0..attaches {
            let start = time::now_std();
            self.control.register(1)?;
            times.push((time::now_std() - start).as_secs_f64() * 1e6);
            self.control.clear()?;
        }
        Ok(median(&times))
    }

    /// Lets UEs attach until there are so many, whom the controller knows by their messages.
    pub(super) async fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        self.control.register(ues)?;
        self.until("the sessions are known by their messages", async |edge| {
            let known = edge.call("GET", "/v1/replication", None).await?;
            Ok(known["anchors"][0]["ues"] == ues)
        })
        .await
    }

    /// Moves the first UEs to the clone, and back, in as many requests as the orchestrator would. Copies stay.
    pub(super) async fn carry(&self, ues: usize, prepare: bool) -> anyhow::Result<Carried> {
        let site = &edge::SITES[0];
        let (from, to, agent) = (edge::CENTRAL, site.anchor, site.agent_address());
        let mut took = Carried::default();
        let mut diverted = Vec::new();
        let ids = self.ids().await?;
        let ids = ids.get(..ues).context("not so many UEs are there")?;
        for ids in ids.chunks(AT_ONCE) {
            let wanted = json!({"from": from, "to": to, "agent": agent, "ues": ids});
            let mut done = self.timed("POST", "/v1/replicas", &wanted, &mut took.copied).await?;
            let done = done["done"].as_array_mut().context("no copies")?;
            let diversions: Value = done.iter_mut().map(|one| one["diversion"].take()).collect();
            if prepare {
                let path = "/v1/diversions/prepare";
                let ready = self.timed("POST", path, &diversions, &mut took.prepared).await?;
                ensure!(ready["prepared"] == ids.len() && ready["switches"] == 2, "prepared: {ready}");
            }
            let done = self.timed("POST", "/v1/diversions", &diversions, &mut took.there).await?;
            changed(&done, ids.len())?;
            diverted.push(json!({"ids": done["changed"]}));
        }
        for removal in diverted {
            let done = self.timed("POST", "/v1/diversions/remove", &removal, &mut took.back).await?;
            changed(&done, removal["ids"].as_array().map_or(0, Vec::len))?;
        }
        time::sleep(OLD_WAYS).await;
        Ok(took)
    }

    /// Ends all copies.
    pub(super) async fn remove_copies(&self) -> anyhow::Result<()> {
        let unwanted = json!({"from": edge::CENTRAL, "to": edge::SITES[0].anchor});
        self.call("POST", "/v1/replicas/remove", Some(&unwanted)).await.map(drop)
    }

    /// Identities of all UEs.
    async fn ids(&self) -> anyhow::Result<Vec<String>> {
        let mut all = Vec::new();
        let mut behind = 0;
        loop {
            let path = format!("/v1/replication/{}/ues?behind={behind}&most={AT_ONCE}", edge::CENTRAL);
            let page = self.call("GET", &path, None).await?;
            let page = page["ues"].as_array().cloned().unwrap_or_default();
            let Some(last) = page.last() else { return Ok(all) };
            behind = last["number"].as_u64().context("a UE without a number")?;
            all.extend(page.iter().filter_map(|ue| ue["id"].as_str().map(str::to_owned)));
        }
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.timed(method, path, body.unwrap_or(&Value::Null), &mut 0.0).await
    }

    /// Asks the controller; adds the time of the exchange, ms.
    async fn timed(&self, method: &str, path: &str, body: &Value, ms: &mut f64) -> anyhow::Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (host, length) = (edge::REST, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let exchange = async move {
            let address: SocketAddr = edge::REST.parse()?;
            let mut stream = tcp::connect(address, PATIENCE).await?;
            let start = time::now();
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await??;
            anyhow::Ok((answer, (time::now() - start).as_secs_f64() * 1e3))
        };
        let runtime = self.client.0.as_ref().context("the client has ended")?;
        let (answer, took_ms) = runtime.spawn(exchange).await??;
        *ms += took_ms;
        let text = std::str::from_utf8(&answer)?;
        let (head, content) = text.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {text}");
        Ok(serde_json::from_str(content)?)
    }

    async fn until(
        &self,
        what: &str,
        mut is_so: impl AsyncFnMut(&Edge) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = time::now() + PATIENCE;
        while !is_so(self).await? {
            ensure!(time::now() < deadline, "{what}: not after {PATIENCE:?}");
            time::sleep(PAUSE).await;
        }
        Ok(())
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        // One that was not started is no error.
        let path = format!("/v1/hosts/{}/anchor", edge::SITES[0].host);
        let _ = self.lab.orchestrator("DELETE", &path, None).await;
        self.lab.stop().await
    }
}

/// Room for all UEs that are moved at once.
fn give_room(configuration: &mut Value, epc: bool, pools: Pools) {
    configuration["upf"]["max_tunnels"] = json!(2 * MOST_UES);
    if !epc {
        return;
    }
    configuration["spgw"]["limits"] = json!({"sessions": MOST_UES});
    for (section, names, pool) in pools {
        configuration[section][names][0]["ue_pool"]["ipv4"] = json!(pool);
    }
}

/// All of so many users are diverted now, or no longer, by both switches.
fn changed(done: &Value, users: usize) -> anyhow::Result<()> {
    let changed = done["changed"].as_array().map_or(0, Vec::len);
    ensure!(changed == users, "{changed} of {users} users");
    let switches: std::collections::BTreeSet<_> =
        done["done"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(
        switches.len() == 2 && done["pending"] == json!([]),
        "switches: {switches:?}, {}",
        done["pending"]
    );
    Ok(())
}
