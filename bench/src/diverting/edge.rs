//! An access switch with a base station, two anchors and a controller, of any contender:
//!
//! ```text
//!           ┌─────────── one namespace ───────────┐
//!  enb ─────┤ port enb   switch           gw1 gw2 ├───── gw1, gw2
//!           │            │ 127.0.0.1, OpenFlow    │
//!           │            controller, its REST API  │
//!           └─────────────────────────────────────┘
//! ```
//! The ends are one thread with AF_XDP sockets ([`Ends`]). The controller is the real one, in this process, and so is our switch; Open
//! vSwitch's processes are children. Rules come by the controller, or from the measurement by a connection of its own.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, bail, ensure};
use controller::Controller;
use controller::diverting::model::Diversion;
use controller::diverting::rules::{self, Macs, Stage};
use lab::open_vswitch::{Bridge, OpenVswitch};
use net::link::Links;
use net::netns::NetNs;
use net::time::{self, Duration};
use openflow::{FlowMod, FlowStats, MacAddr, TableId};
use pktio::af_xdp::device::Device;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::client::{COOKIE, Client};
use super::site::Contender;
use super::steering::{GTP, LOCAL};
use super::users::{self, ADDRESSES, DEVICES, Ends, Load, MACS, NEW, OLD};

const OPENFLOW: &str = "127.0.0.1:6653";
const REST: &str = "127.0.0.1:8181";
/// Where the switch lets others connect.
const LISTEN: &str = "127.0.0.1:6654";
const DATAPATH: u64 = 1;
const BRIDGE: &str = "br0";
/// The switch's ports.
const PORTS: [(u32, &str); 3] = [(1, DEVICES[0]), (2, DEVICES[OLD]), (3, DEVICES[NEW])];
/// Names in the API: the base station's, and the anchors'.
const NAMES: [&str; 3] = DEVICES;
/// Time limit for the edge to be ready, and for an answer of the API: 10,000 users in a debug build take some seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for all users to be at the other anchor.
const MOVED: Duration = Duration::from_secs(5);
/// Packets between the base station and the new anchor take as many pairs' rules.
const PAIRS: usize = 6;
/// Queue of the links, for ends that lose their core for a moment.
const QUEUE: u32 = 4096;

/// The switch, as it has to be held.
enum Held {
    Ours { _service: Box<switch::Service> },
    OpenVswitch { _processes: OpenVswitch },
}

/// An edge that runs.
pub(super) struct Edge {
    pub(super) contender: Contender,
    pub(super) ends: Ends,
    space: NetNs,
    runtime: Runtime,
    config: controller::Config,
    controller: Option<Controller>,
    switch: Option<Held>,
    _folder: tempfile::TempDir,
}

impl Drop for Edge {
    fn drop(&mut self) {
        // Their tasks end on the runtime.
        let _entered = self.runtime.enter();
        drop(self.controller.take());
        drop(self.switch.take());
    }
}

impl Edge {
    /// Builds an edge, and waits until both anchors answer and the ways to them are known. A worker of ours takes the first of
    /// these cores, all else any of them.
    ///
    /// # Errors
    /// The process lacks rights, or Open vSwitch is not installed.
    pub(super) fn start(contender: Contender, cores: &[usize]) -> anyhow::Result<Edge> {
        Edge::try_start(contender, cores).with_context(|| contender.name())
    }

    fn try_start(contender: Contender, cores: &[usize]) -> anyhow::Result<Edge> {
        let new = || NetNs::new().context("create a network namespace (needs root: see `godwit doctor`)");
        let (space, far) = (new()?, new()?);
        let runtime = space.runtime(1)?;
        let on = |future: Building<'_>| space.enter(|| runtime.block_on(future))?;
        on(Box::pin(wires(&space, &far)))?;
        let ends = Ends::start(&far, cores)?;
        let folder = tempfile::tempdir()?;
        let config = configuration(contender, folder.path());
        let config: controller::Config = serde_json::from_value(config)?;
        let (mut controller, mut held) = (None, None);
        on(Box::pin(async {
            controller = Some(Controller::start(config.clone()).await?);
            held = Some(match contender {
                Contender::Ovs => open_vswitch(&space, cores).await?,
                _ => Held::Ours { _service: Box::new(ours(contender, cores).await?) },
            });
            Ok(())
        }))?;
        let edge =
            Edge { contender, ends, space, runtime, config, controller, switch: held, _folder: folder };
        edge.wait_until_ready()?;
        Ok(edge)
    }

    /// Runs something in the switch's namespace.
    ///
    /// # Errors
    /// Its own.
    pub(super) fn run<T: Send>(
        &self,
        future: impl Future<Output = anyhow::Result<T>> + Send,
    ) -> anyhow::Result<T> {
        self.space.enter(|| self.runtime.block_on(future))?
    }

    fn controller(&self) -> anyhow::Result<&Controller> {
        self.controller.as_ref().context("the controller has ended")
    }

    /// What the switch has now.
    fn flows(&self) -> anyhow::Result<Vec<FlowStats>> {
        let fabric = self.controller()?.fabric();
        self.run(async { Ok(fabric.flows(DATAPATH).await?) })
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let deadline = time::now_std() + PATIENCE;
        let mut why = String::new();
        while time::now_std() < deadline {
            match self.is_ready() {
                Ok(None) => return Ok(()),
                Ok(Some(missing)) => why = missing,
                Err(error) => why = format!("{error:#}"),
            }
            time::sleep_thread(Duration::from_millis(50));
        }
        bail!("the edge does not get ready: {why}")
    }

    /// What is missing.
    fn is_ready(&self) -> anyhow::Result<Option<String>> {
        let anchors = self.call("GET", "/v1/anchors", None)?;
        let dead = anchors["anchors"].as_array().context("anchors")?.iter().any(|one| one["alive"] != true);
        if dead {
            return Ok(Some(format!("an anchor is not alive: {anchors}")));
        }
        let lasting =
            |flow: &&FlowStats| flow.table_id == TableId(2) && flow.priority > 1 && flow.idle_timeout_s == 0;
        let flows = self.flows()?;
        let pairs = flows.iter().filter(lasting).count();
        Ok((pairs < PAIRS).then(|| format!("{pairs} rules of pairs of stations")))
    }

    /// Asks the API.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let rest = self.controller()?.rest();
        let response = self.run(async { Ok(nf::rest::call(PATIENCE, rest, method, path, body).await?) })?;
        ensure!(response.status == 200, "{method} {path}: {} {}", response.status, response.body);
        Ok(response.body)
    }

    /// A further connection to the switch.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn connect(&self) -> anyhow::Result<Client> {
        let address: SocketAddr = LISTEN.parse()?;
        self.run(Client::connect(address))
    }

    /// The rules by which the controller would steer these users, as messages of another owner.
    ///
    /// # Errors
    /// The switch is not connected.
    pub(super) fn rules_of(&self, numbers: impl Iterator<Item = u32>) -> anyhow::Result<Vec<FlowMod>> {
        let views = self.controller()?.fabric().switches();
        let mut diversion: Diversion = serde_json::from_value(diversion(0))?;
        let mut all = Vec::new();
        for user in numbers {
            diversion.ue = Some(users::ue(user).into());
            diversion.tunnels[0].uplink = users::teid(user);
            let placed = rules::of_diversion(&diversion, &self.config, &views, &Known)?;
            let own =
                placed.into_iter().filter(|placed| placed.stage == Stage::User).map(|placed| placed.rule);
            all.extend(own.map(|rule| FlowMod {
                cookie: COOKIE,
                ..FlowMod::add(rule.key.table, rule.key.priority, rule.key.matching, rule.instructions)
            }));
        }
        Ok(all)
    }

    /// Sends packets of these users until each of them has had one at this anchor.
    ///
    /// # Errors
    /// It does not become so.
    pub(super) fn see(&self, users: u32, pps: u32, end: usize) -> anyhow::Result<()> {
        self.ends.begin(Load { users, moved: users, pps, to: end });
        let there = self.wait_for(users);
        let counts = self.ends.end()?.at_ends();
        ensure!(there == users, "{there} of {users} users get to {}: {counts:?}", NAMES[end]);
        Ok(())
    }

    /// Waits until so many users have had a packet where they move to; returns how many have.
    pub(super) fn wait_for(&self, users: u32) -> u32 {
        let deadline = time::now_std() + MOVED;
        while self.ends.there() < users && time::now_std() < deadline {
            time::sleep_thread(Duration::from_millis(1));
        }
        self.ends.there()
    }
}

type Building<'a> = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send + 'a>>;

/// Link-layer addresses of the ends.
struct Known;

impl Macs for Known {
    fn mac(&self, _: u64, address: IpAddr) -> Option<MacAddr> {
        let at = ADDRESSES.iter().position(|own| IpAddr::V4(*own) == address)?;
        Some(MacAddr(MACS[at]))
    }
}

/// The request that moves a user to the new anchor.
pub(super) fn diversion(user: u32) -> Value {
    json!({
        "ue": users::ue(user), "from": NAMES[OLD], "to": NAMES[NEW], "base_station": NAMES[0], "confirmed_by": "bench",
        "tunnels": [{"uplink": users::teid(user)}],
    })
}

async fn wires(space: &NetNs, far: &NetNs) -> anyhow::Result<()> {
    let (near_links, far_links) = (Links::in_ns(space)?, Links::in_ns(far)?);
    for device in DEVICES {
        near_links.add_veth(device, device, far).await?;
        for (links, space) in [(&near_links, space), (&far_links, far)] {
            links.set_txqueuelen(device, QUEUE).await?;
            links.up(device).await?;
            space.enter(|| Device::find(device)?.send_whole_frames())??;
        }
    }
    Ok(())
}

fn configuration(contender: Contender, folder: &std::path::Path) -> Value {
    let local: HashMap<&str, IpAddr> = match contender {
        Contender::Ovs => LOCAL.into_iter().map(|(name, address)| (name, address.into())).collect(),
        _ => HashMap::new(),
    };
    let anchor = |end: usize| json!({"name": NAMES[end], "address": ADDRESSES[end]});
    json!({
        "openflow": OPENFLOW, "rest": REST, "state": folder.join("diversions"),
        "switches": [{"name": "edge", "datapath_id": DATAPATH, "place": "access", "probe": "10.0.0.250", "local": local}],
        "anchors": [anchor(OLD), anchor(NEW)],
        "base_stations": [{"name": NAMES[0], "address": ADDRESSES[0], "switch": "edge", "access": "4g"}],
        // A measurement is no failure of an anchor, even if the thread of the ends loses its core for long.
        "diverting": {"restore": false, "echo_misses": 20},
        "forwarding": {"discovery_s": 1},
    })
}

async fn ours(contender: Contender, cores: &[usize]) -> anyhow::Result<switch::Service> {
    let ports = PORTS.map(|(number, interface)| json!({"number": number, "interface": interface}));
    let mut config = json!({
        "datapath_id": DATAPATH, "controllers": [OPENFLOW], "listen": LISTEN, "gtp_port": GTP,
        "ports": ports,
        "workers": {"cores": cores[..1].to_vec(), "count": 1},
    });
    if contender == Contender::Xdp {
        ensure!(xdp::programs::BUILT, "left out: this build has no XDP programs (`make bench` with clang)");
        config["xdp"] = json!({});
    }
    let config: switch::Config = serde_json::from_value(config)?;
    Ok(switch::Service::start(&config).await?)
}

async fn open_vswitch(space: &NetNs, cores: &[usize]) -> anyhow::Result<Held> {
    let processes = OpenVswitch::start(space).await?;
    crate::machine::pin_process(processes.process().context("no daemon")?, cores)?;
    let bridge = Bridge {
        name: BRIDGE,
        datapath_id: DATAPATH,
        ports: &PORTS,
        gtp_port: Some(GTP),
        controller: Some(OPENFLOW.parse()?),
        listen: LISTEN.parse()?,
    };
    processes.add(&bridge).await?;
    let neighbours: Vec<_> = ADDRESSES.map(IpAddr::V4).into_iter().zip(MACS).collect();
    processes.know(BRIDGE, &LOCAL.map(|(_, address)| address.into()), &neighbours).await?;
    Ok(Held::OpenVswitch { _processes: processes })
}
