//! A network with edge sites, whose UEs are moved by the orchestrator: for demos, experiments and tests of moves. It is of 4G with
//! [`Options::epc`], else of 5G.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context as _;
use net::netns::NetNs;
use net::time::{self, Duration};
use serde_json::{Value, json};

use crate::edge::{self, Site};
use crate::peer::Peer;
use crate::{DN, Lab, Options, RAN_N2, Simulator, SimulatorOptions};

/// Where UEs are by themselves, as the target of a move.
pub const ORIGIN: &str = "origin";

/// How long the controller may take to know all that there is, and UEs to attach.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The network, with attached UEs.
pub struct Moves {
    /// All but the UEs.
    pub lab: Lab,
    /// The UEs, their eNB and MME, unless these are the caller's.
    pub simulator: Option<Simulator>,
    /// The UEs' namespaces, by their addresses.
    pub ues: BTreeMap<Ipv4Addr, NetNs>,
}

impl Moves {
    /// Builds it, and returns when the UEs are attached and the controller knows their sessions by the messages that made them.
    ///
    /// # Errors
    /// A part does not start, or a UE does not attach.
    pub async fn start(options: Options, sites: usize) -> anyhow::Result<Moves> {
        let ues = options.subscribers.len();
        let (lab, _) = Moves::without_ues(options, sites, None).await?;
        Moves::attach(lab, u32::try_from(ues).context("too many subscribers")?).await
    }

    /// Builds it without UEs. A program of another make may be the gateway of 4G in the center and at each site; these run, in this order.
    /// Whether there is one decides about [`Options::foreign_gateway`].
    ///
    /// # Errors
    /// A part does not start.
    pub async fn without_ues(
        options: Options,
        sites: usize,
        gateway: Option<&Path>,
    ) -> anyhow::Result<(Lab, Vec<Peer>)> {
        let mut lab =
            Moves::network(Options { foreign_gateway: gateway.is_some(), ..options }, sites).await?;
        let gateways = match gateway {
            Some(program) => lab.start_gateways(program).await?,
            None => Vec::new(),
        };
        Moves::control(&mut lab).await?;
        Ok((lab, gateways))
    }

    /// Builds the network with the first anchor, and nothing of the edge but its links.
    ///
    /// # Errors
    /// The gateway does not start.
    pub async fn network(mut options: Options, sites: usize) -> anyhow::Result<Lab> {
        (options.edges, options.processes) = (sites, true);
        if !options.epc {
            // A UPF at the edge gives UEs the addresses that the SMF says.
            (options.n4_at_switch, options.keeps_addresses) = (true, true);
        }
        Lab::start(options).await
    }

    /// Starts all that moves UEs. Anchors of another make run already.
    ///
    /// # Errors
    /// A part does not start.
    pub async fn control(lab: &mut Lab) -> anyhow::Result<()> {
        Moves::control_with(lab, |_| ()).await
    }

    /// The same, with changes to the controller's configuration.
    ///
    /// # Errors
    /// A part does not start.
    pub async fn control_with(lab: &mut Lab, edit: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        lab.start_moves_with(edit).await?;
        until("the controller has its switches", async || {
            lab.check()?;
            let Ok(switches) = lab.controller("GET", "/v1/switches", None).await else { return Ok(false) };
            let switches = switches["switches"].as_array().cloned().unwrap_or_default();
            Ok(switches.len() == 2 && switches.iter().all(|switch| switch["connected"] == true))
        })
        .await?;
        Moves::meet(lab).await
    }

    /// Lets the hosts of anchors at the edge learn the link-layer addresses of the base station and of the data network, which hosts in use know.
    /// Linux lets packets that wait for the answer to ARP be overtaken: it sends them while later ones are sent already.
    async fn meet(lab: &Lab) -> anyhow::Result<()> {
        for site in lab.sites() {
            for neighbour in [RAN_N2, DN] {
                // Asks each second until there is an answer, for ten seconds.
                let ping = lab.command(lab.site(site), "ping").args(["-c1", "-w10", &neighbour.to_string()]);
                let said = ping.output(PATIENCE).await.context("ping (`scripts/setup.sh` installs it)")?;
                anyhow::ensure!(said.status.success(), "{} does not reach {neighbour}", site.host);
            }
        }
        Ok(())
    }

    /// Lets UEs attach, and returns when their sessions are known by the messages that made them.
    ///
    /// # Errors
    /// A UE does not attach.
    pub async fn attach(lab: Lab, ues: u32) -> anyhow::Result<Moves> {
        let simulated = SimulatorOptions {
            ues,
            session_type: "IPV4".to_owned(),
            mme: lab.is_epc().then_some(edge::CONTROL.into()),
            ..SimulatorOptions::default()
        };
        let mut simulator = lab.simulate(&simulated)?;
        let mut namespaces = BTreeMap::new();
        while namespaces.len() < ues as usize {
            let event = time::timeout(PATIENCE, simulator.next()).await.context("a UE does not attach")?;
            let event = event.context("the simulator has ended")?;
            match event.kind() {
                "attached" | "session" => {
                    let address = event.text("ipv4").context("a UE without an IPv4 address")?;
                    namespaces.insert(address.parse()?, event.namespace()?);
                }
                "failed" => {
                    anyhow::bail!("a UE failed: {}", event.text("detail").unwrap_or("no reason given"))
                }
                _ => {}
            }
        }
        Ok(Moves { simulator: Some(simulator), ..Moves::of(lab, namespaces).await? })
    }

    /// With UEs that are attached. Returns when their sessions are known by the messages that made them.
    ///
    /// # Errors
    /// The controller has not heard of them.
    pub async fn of(lab: Lab, ues: BTreeMap<Ipv4Addr, NetNs>) -> anyhow::Result<Moves> {
        until("the sessions are known by their messages", async || {
            let known = lab.controller("GET", "/v1/replication", None).await?;
            Ok(known["anchors"][0]["ues"] == ues.len())
        })
        .await
        .with_context(|| lab.log("controller"))?;
        Ok(Moves { lab, simulator: None, ues })
    }

    /// Moves UEs to an edge host or to [`ORIGIN`], with further members of the request, and waits for the end; the move.
    ///
    /// # Errors
    /// The orchestrator refuses, or the move has not ended well.
    pub async fn carry(&self, ues: &[Ipv4Addr], to: &str, further: &Value) -> anyhow::Result<Value> {
        let mut request = json!({"ues": ues, "to": to});
        for (name, value) in further.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        let made = self.lab.orchestrator("POST", "/v1/moves?wait=25", Some(&request)).await?;
        anyhow::ensure!(made["state"] == "done", "the move to {to} has not ended well: {made:#}");
        Ok(made)
    }

    /// Sessions of the anchor at a site, as its gateway and its UPF say.
    pub async fn sessions_at(&self, site: &Site) -> (u64, u64) {
        let count = async |nf, pointer| {
            let status = self.lab.edge_oam(site, nf, "/status").await.unwrap_or_default();
            status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
        };
        (count(self.lab.gateway(), "/detail/sessions").await, count("upf", "/sessions").await)
    }

    /// Logs of who takes part in a move.
    pub fn logs(&self) -> String {
        let mut names = vec!["orchestrator".to_owned(), "controller".to_owned()];
        for site in &edge::SITES {
            names.extend(["anchor", "agent"].map(|what| format!("run-orchestrator/{}-{what}", site.host)));
        }
        names.iter().map(|name| format!("--- {name}\n{}", self.lab.log(name))).collect()
    }

    /// Detaches the simulator's UEs, stops the anchors that the orchestrator has started, and all else.
    ///
    /// # Errors
    /// A part did not end well. Everything else is removed all the same.
    pub async fn stop(self) -> anyhow::Result<()> {
        let stopped = match self.simulator {
            Some(simulator) => simulator.stop().await.map(drop),
            None => Ok(()),
        };
        let hosts = self.lab.orchestrator("GET", "/v1/hosts", None).await?;
        // Those of another make are the caller's.
        let own = hosts["hosts"].as_array().filter(|_| !self.lab.foreign_gateway);
        for host in own.into_iter().flatten() {
            let path = format!("/v1/hosts/{}/anchor", host["name"].as_str().unwrap_or_default());
            self.lab.orchestrator("DELETE", &path, None).await?;
        }
        self.lab.stop().await?;
        stopped
    }
}

/// From the request for a move to its last stage, by its history.
pub fn took_ms(made: &Value) -> Option<f64> {
    let history = made["history"].as_array()?;
    let at = |entry: Option<&Value>| entry?["time_us"].as_f64();
    Some((at(history.last())? - at(history.first())?) / 1e3)
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = time::now() + PATIENCE;
    while !is_so().await? {
        anyhow::ensure!(time::now() < deadline, "{what}: not after {PATIENCE:?}");
        time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_takes_the_time_of_its_history() {
        let made = json!({"history": [{"time_us": 1_000}, {"time_us": 2_500}, {"time_us": 9_000}]});
        assert_eq!(took_ms(&made), Some(8.0));
        assert_eq!(took_ms(&json!({})), None);
    }
}
