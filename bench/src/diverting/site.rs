//! A base station, two anchors and a switch between them: one site for each contender, so that they can take turns.
//!
//! ```text
//!  station: n3 ──── ran  switch  core1 ──── gw1 :core
//!                                core2 ──── gw2
//! ```
//! Namespaces `station`, `switch` and `core`, with veth links. Their ends in `station` and `core` belong to the part that measures:
//! it sends and receives whole frames there. Nobody has addresses or asks for any, apart from Open vSwitch's own port.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use controller::switch::Dialect;
use lab::open_vswitch::{Bridge, OpenVswitch};
use net::link::Links;
use net::netns::NetNs;
use net::time::{self, Duration};
use openflow::{Change, Text};
use packet::ethernet::Mac;
use pktio::af_xdp::device::Device;
use pktio::xdp::Chain;
use serde_json::json;
use switch::{Config, Service};

use super::client::Client;
use super::frames::{Ends, GW1, GW2, STATION};
use super::steering::{GTP, Ground, LOCAL};

/// Interfaces in the switch's namespace, with the numbers of its ports.
const PORTS: [(u32, &str); 3] = [(1, "ran"), (2, "core1"), (3, "core2")];
/// Their far ends.
pub(super) const STATION_LINK: &str = "n3";
pub(super) const CORE_LINKS: [&str; 2] = ["gw1", "gw2"];
const BRIDGE: &str = "br0";
/// Where Open vSwitch lets us connect.
const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 6654);
/// An entry that steers, in table 1.
const STEERING_TABLE: usize = 1;

/// Who forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contender {
    /// Nobody: base station and first anchor have a link.
    Wire,
    /// Our switch on AF_XDP.
    Host,
    /// Our switch with known tunnels in XDP.
    Xdp,
    /// Open vSwitch.
    Ovs,
}

impl Contender {
    /// Those that steer, in the order of their turns.
    pub(super) const STEERING: [Contender; 3] = [Contender::Host, Contender::Xdp, Contender::Ovs];

    /// What it is measured with: without steering, and with so many users diverted.
    pub(super) fn modes(self, users: u32) -> Vec<Steering> {
        match self {
            Contender::Wire => vec![Steering::Off],
            _ => vec![Steering::Off, Steering::On(users)],
        }
    }

    /// Its name in series.
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Wire => "wire",
            Contender::Host => "host",
            Contender::Xdp => "xdp",
            Contender::Ovs => "ovs",
        }
    }
}

/// Whether users are diverted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Steering {
    /// The switch only forwards.
    Off,
    /// So many users are diverted, by one entry each.
    On(u32),
}

impl Steering {
    pub(super) fn name(self) -> &'static str {
        if self == Steering::Off { "off" } else { "on" }
    }

    /// The anchor to which packets come that were sent to the first one.
    pub(super) fn anchor(self) -> usize {
        usize::from(self != Steering::Off)
    }

    fn users(self) -> u32 {
        match self {
            Steering::Off => 0,
            Steering::On(users) => users,
        }
    }
}

enum Forwarder {
    Wire,
    Ours(Box<Service>),
    Ovs { switch: Box<OpenVswitch>, client: Box<Client>, _chains: Vec<Arc<Chain>> },
}

/// A site.
pub(super) struct Site {
    pub(super) contender: Contender,
    pub(super) station: NetNs,
    pub(super) core: NetNs,
    /// Link-layer addresses of base station and anchors.
    pub(super) macs: [Mac; 3],
    ground: Option<Ground>,
    forwarder: Forwarder,
    /// What the switch uses of the processor.
    pub(super) meter: super::meter::Meter,
    runtime: tokio::runtime::Runtime,
}

impl Drop for Site {
    fn drop(&mut self) {
        // A service ends in its runtime.
        let _entered = self.runtime.enter();
        self.forwarder = Forwarder::Wire;
    }
}

impl Site {
    /// Builds it, with a switch that runs on this core and is empty.
    ///
    /// # Errors
    /// The process lacks rights, or the switch does not start.
    pub(super) fn build(contender: Contender, core: usize) -> anyhow::Result<Site> {
        let [station, switch, far] = [NetNs::new()?, NetNs::new()?, NetNs::new()?];
        let runtime = switch.runtime(1)?;
        let wire = contender == Contender::Wire;
        runtime.block_on(async {
            if wire {
                return link((&station, STATION_LINK), (&far, CORE_LINKS[0])).await;
            }
            let ends = [(&station, STATION_LINK), (&far, CORE_LINKS[0]), (&far, CORE_LINKS[1])];
            for ((_, port), end) in PORTS.into_iter().zip(ends) {
                link((&switch, port), end).await?;
            }
            Ok(())
        })?;
        let mac = |space: &NetNs, name: &str| -> anyhow::Result<Mac> {
            Ok(space.enter(|| Device::find(name))??.mac)
        };
        let second = if wire { [0; 6] } else { mac(&far, CORE_LINKS[1])? };
        let macs = [mac(&station, STATION_LINK)?, mac(&far, CORE_LINKS[0])?, second];
        let before = super::meter::Before::now()?;
        let (forwarder, ports) = match contender {
            Contender::Wire => (Forwarder::Wire, Vec::new()),
            Contender::Host | Contender::Xdp => ours(contender, core, &switch, &runtime)?,
            Contender::Ovs => open_vswitch(core, macs, &switch, &runtime)?,
        };
        let process = match &forwarder {
            Forwarder::Ovs { switch, .. } => switch.process(),
            _ => None,
        };
        let meter = before.meter(process)?;
        let dialect = if contender == Contender::Ovs { Dialect::OpenVswitch } else { Dialect::Native };
        let ends = [0, 1, 2].map(|at| (macs[at], PORTS[at].0));
        let ground = (!wire).then_some(Ground { dialect, ports, ends });
        Ok(Site { contender, station, core: far, macs, ground, forwarder, meter, runtime })
    }

    /// Addresses of a packet that the base station sends to the first anchor.
    pub(super) fn uplink(&self) -> Ends {
        Ends { macs: [self.macs[1], self.macs[0]], source: STATION, destination: GW1 }
    }

    /// Fills the switch anew. Data paths may follow later.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn set(&mut self, steering: Steering) -> anyhow::Result<()> {
        let Some(ground) = &self.ground else { return Ok(()) };
        let entries = ground.entries(steering.users())?;
        match &mut self.forwarder {
            Forwarder::Wire => {}
            Forwarder::Ours(service) => {
                let changes: Vec<_> = entries.into_iter().map(Change::FlowMod).collect();
                if let Err(failed) = service.switch().commit(&changes) {
                    bail!("the switch refuses an entry: {failed:?}");
                }
            }
            Forwarder::Ovs { client, .. } => {
                let batch = client.one_by_one(&entries)?;
                self.runtime.block_on(client.send(&batch))?;
            }
        }
        Ok(())
    }

    /// Packets that the users' entries have steered since [`Site::set`].
    ///
    /// # Errors
    /// The switch does not answer.
    pub(super) fn steered(&self) -> anyhow::Result<u64> {
        match &self.forwarder {
            Forwarder::Wire => Ok(0),
            Forwarder::Ours(service) => {
                service.switch().settle();
                let pipeline = service.switch().pipeline();
                let table = pipeline.tables().get(STEERING_TABLE).context("the switch has one table")?;
                let of_users = table
                    .flows()
                    .filter(|flow| flow.matching.iter().any(|oxm| oxm.field() == openflow::Field::TunnelId));
                Ok(of_users.map(|flow| flow.counters.get().0).sum())
            }
            Forwarder::Ovs { switch, .. } => {
                self.runtime.block_on(switch.tunnel_packets(BRIDGE, STEERING_TABLE as u8))
            }
        }
    }

    /// Waits until at least so many packets were steered; returns how many.
    ///
    /// # Errors
    /// As [`Site::steered`].
    pub(super) fn wait_for_steered(&self, packets: u64) -> anyhow::Result<u64> {
        // Open vSwitch brings counters up to date by and by.
        let (start, patience) = (time::now_std(), Duration::from_secs(5));
        loop {
            let steered = self.steered()?;
            if steered >= packets || start.elapsed() > patience {
                return Ok(steered);
            }
            time::sleep_thread(Duration::from_millis(50));
        }
    }

    /// Packets that entries in XDP have sent on; `None` of contenders without XDP.
    pub(super) fn in_xdp(&self) -> Option<u64> {
        let Forwarder::Ours(service) = &self.forwarder else { return None };
        service.switch().settle();
        service.switch().offload()?.status()["packets"].as_u64()
    }

    /// Index of an interface of the core's.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn core_index(&self, name: &str) -> anyhow::Result<u32> {
        Ok(self.core.enter(|| Device::find(name))??.index)
    }
}

/// A veth link with whole checksums, as on a cable.
async fn link(near: (&NetNs, &str), far: (&NetNs, &str)) -> anyhow::Result<()> {
    Links::in_ns(near.0)?.add_veth(near.1, far.1, far.0).await?;
    for (space, name) in [near, far] {
        Links::in_ns(space)?.up(name).await?;
        space.enter(|| Device::find(name)?.send_whole_frames())??;
    }
    Ok(())
}

type Started = (Forwarder, Vec<openflow::Port>);

fn ours(
    contender: Contender,
    core: usize,
    space: &NetNs,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Started> {
    let ports = PORTS.map(|(number, interface)| json!({"number": number, "interface": interface}));
    let mut config = json!({
        "datapath_id": 1, "gtp_port": GTP, "ports": ports,
        "workers": {"count": 1, "cores": [core]},
    });
    if contender == Contender::Xdp {
        ensure!(xdp::programs::BUILT, "left out: this build has no XDP programs (`make bench` with clang)");
        config["xdp"] = json!({});
    }
    let config: Config = serde_json::from_value(config)?;
    let service = space.enter(|| runtime.block_on(Service::start(&config)))??;
    let ports = service.switch().port_descriptions();
    Ok((Forwarder::Ours(Box::new(service)), ports))
}

fn open_vswitch(
    core: usize,
    macs: [Mac; 3],
    space: &NetNs,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Started> {
    let opened = space.enter(|| {
        runtime.block_on(async {
            let ovs = OpenVswitch::start(space).await?;
            crate::machine::pin_process(ovs.process().context("no daemon")?, &[core])?;
            let listen = LISTEN.into();
            let bridge = Bridge {
                name: BRIDGE,
                datapath_id: 1,
                ports: &PORTS,
                gtp_port: Some(GTP),
                controller: None,
                listen,
            };
            ovs.add(&bridge).await?;
            let ends = [STATION, GW1, GW2].map(IpAddr::V4);
            let neighbours: Vec<_> = ends.into_iter().zip(macs).collect();
            ovs.know(BRIDGE, &LOCAL.map(|(_, address)| address.into()), &neighbours).await?;
            anyhow::Ok((ovs, Client::connect(listen).await?))
        })
    })?;
    let (ovs, client) = opened?;
    // A veth's end receives what XDP programs send to it only if it has one itself. These have no part: packets pass.
    let chain =
        |(_, name): (u32, &str)| -> anyhow::Result<_> { Ok(Chain::attach(Device::find(name)?.index)?) };
    let chains = space.enter(|| PORTS.into_iter().map(chain).collect::<anyhow::Result<Vec<_>>>())??;
    let port = |number, name: &str, mac: Mac| openflow::Port {
        port_no: openflow::PortNo(number),
        hw_addr: openflow::MacAddr(mac),
        name: Text::new(name),
        config: Default::default(),
        state: openflow::PortState::LIVE,
        current: 0,
        advertised: 0,
        supported: 0,
        peer: 0,
        current_speed_kbps: 0,
        max_speed_kbps: 0,
    };
    let ports = vec![port(GTP, "gtp", [0; 6]), port(openflow::PortNo::LOCAL.0, "local", ovs.mac(BRIDGE)?)];
    Ok((Forwarder::Ovs { switch: Box::new(ovs), client: Box::new(client), _chains: chains }, ports))
}
