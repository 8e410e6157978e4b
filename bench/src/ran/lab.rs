//! UEs, DU, CU and UPF, through which programs talk: each UE has a TUN device in a namespace of its own, and the data network has
//! one. The nodes are workers as `godwit` starts them: they poll while there is traffic, and sleep when there is none.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, bail};
use l2::pdcp::{Rx, RxConfig, Security, Tx};
use l2::rlc::um;
use l2::sdap::{Drb, DrbId};
use l2::security::Direction;
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::{self, Duration};
use packet::gtpu;
use path::Ports;
use pktio::tun::TunPort;
use types::{NrCellId, Qfi};

use super::network::{Network, PATIENCE, Point, Way, come_up, memif, stack};
use super::nodes::{CELL, CU_N3, LCID, Nodes, Plan, UES};
use super::packets::pdcp;
use super::serving::{Mode, Placed, Serving};
use crate::upf::subscriber::{QFI, SERVER, Subscriber, UE_POOL};
use crate::upf::world::{Kept, World};

/// UEs with TUN devices.
pub(crate) const PHONES: usize = 2;
const TUN: &str = "tun0";
/// MTU of the TUN devices.
const TUN_MTU: u32 = 1500;
/// Addresses of DU and UEs on `uu`.
const DU_ON_UU: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 212, 0, 1)), l2::uu::PORT);
const UES_ON_UU: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 212, 0, 2)), 40_000);

/// Nodes that run until this is dropped.
pub(crate) struct Lab {
    /// The namespaces of the UEs.
    pub(crate) phones: Vec<NetNs>,
    /// The data network's.
    pub(crate) network: NetNs,
    _serving: Vec<Serving>,
    _kept: Kept,
    _plane: cu::user_plane::UserPlane,
    _devices: ue::Devices,
    _links: Network,
}

impl Lab {
    /// Starts all nodes, with these ways on F1-U and N3. `uu`, which stands for the radio, is a memif always.
    ///
    /// # Errors
    /// The process lacks rights, or packets do not pass.
    pub(crate) fn start([f1u, n3]: [Way; 2], poll: Duration) -> anyhow::Result<Lab> {
        let links = Network::build(1)?;
        let plan = Plan { tunnels: World::teids(UES)?, ues_at: Some(UES_ON_UU), ..Plan::default() };
        let mut nodes = Nodes::of(&plan)?;
        let upf = World::of_gnb((CU_N3, gtpu::PORT).into(), &nodes.n3)?;
        let start = |name: &str, ports: Ports| {
            let inputs = (0..ports.len()).collect();
            (name.to_owned(), ports, inputs, Mode::Worker(poll))
        };
        let mut serving = Vec::new();

        let [at_du, at_ues] = radio(&links)?;
        let [cu_f1u, du_f1u] = links.open(Point::MIDHAUL, f1u)?;
        let [cu_n3, upf_n3] = links.open(Point::N3, n3)?;
        let (name, ports, inputs, mode) = start("du", vec![du_f1u, at_du]);
        let graph = nodes.take_du()?.graph;
        serving.push(Serving::start(Placed { name, core: None, graph, ports, inputs, mode })?);
        let (name, ports, inputs, mode) = start("cu", vec![cu_f1u, cu_n3]);
        serving.push(Serving::start(Placed { name, core: None, graph: nodes.cu, ports, inputs, mode })?);

        let own = || NetNs::new().context("create a network namespace");
        let (network, pool) = (own()?, UE_POOL.parse().map_err(|_| anyhow::anyhow!("pool"))?);
        let server = Cidr::new(SERVER.into(), 24).context("24 bits fit")?;
        let n6 = device(&network, server, pool)?;
        let (graph, kept) = upf.into_graph();
        let (name, ports, inputs, mode) = start("upf", vec![upf_n3, Box::new(n6)]);
        serving.push(Serving::start(Placed { name, core: None, graph, ports, inputs, mode })?);

        let (tuns, devices) = ue::Tuns::new()?;
        let (graph, control, _events) = ue::UserPlane::new();
        let (name, ports, inputs, mode) = start("ue", vec![at_ues, Box::new(tuns)]);
        serving.push(Serving::start(Placed { name, core: None, graph, ports, inputs, mode })?);
        let mut phones = Vec::new();
        for number in 0..PHONES {
            let namespace = own()?;
            let everywhere = Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0).context("0 bits fit")?;
            let tun = device(&namespace, Cidr::host(Subscriber(number as u32).ue().into()), everywhere)?;
            devices.attach(session(&control, number)?, tun);
            phones.push(namespace);
        }
        let lab = Lab {
            phones,
            network,
            _serving: serving,
            _kept: kept,
            _plane: nodes.plane,
            _devices: devices,
            _links: links,
        };
        lab.wait_for_packets()?;
        Ok(lab)
    }

    /// Pings from all UEs until answers come.
    fn wait_for_packets(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for phone in &self.phones {
            let start = time::now_std();
            let server = SERVER.to_string();
            let ping = || Command::new("ping").args(["-c", "1", "-W", "1", &server]).namespace(phone);
            while !runtime.block_on(ping().output(PATIENCE))?.status.success() {
                if start.elapsed() > PATIENCE {
                    bail!("the data network does not answer a UE");
                }
            }
        }
        Ok(())
    }
}

/// The session of a UE, with its bearer.
fn session(control: &ue::Control, number: usize) -> anyhow::Result<ue::SessionId> {
    let (cell, flow) = (NrCellId::new(CELL)?, Qfi::new(QFI)?);
    let ue = control.add_ue(cell, DU_ON_UU, 1 + number as u16)?;
    let (session, _) = control.add_session(ue, flow)?;
    let id = DrbId::new(1).context("DRB")?;
    let setup = ue::BearerSetup {
        lcid: LCID,
        drb: Drb { id, uplink_header: true, downlink_header: true },
        default: true,
        flows: vec![flow],
        rlc: um::SnLength::Bits12,
        t_reassembly: Duration::from_millis(50),
        tx: Tx::new(pdcp(Direction::Uplink)?, Security::none()),
        rx: Rx::new(pdcp(Direction::Downlink)?, Security::none(), RxConfig::default()),
    };
    control.add_bearer(session, setup)?;
    Ok(session)
}

/// The ends of `uu` at DU and UEs.
fn radio(links: &Network) -> anyhow::Result<[Box<dyn pktio::Port>; 2]> {
    let socket = links.folder().join("uu.sock");
    let (du, ues) = (memif(&socket, "server")?, memif(&socket, "client")?);
    come_up(&[&du, &ues])?;
    Ok([stack(du, DU_ON_UU)?, stack(ues, UES_ON_UU)?])
}

/// A TUN device with an address, and a route out of it.
fn device(namespace: &NetNs, address: Cidr, route: Cidr) -> anyhow::Result<TunPort> {
    let tun = namespace.enter(|| TunPort::create(TUN))??;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let links = Links::in_ns(namespace)?;
        links.set_mtu(TUN, TUN_MTU).await?;
        links.add_address(TUN, address).await?;
        links.up(TUN).await?;
        links.add_route(route, None, Some(TUN)).await
    })?;
    namespace.enter(net::netns::loopback_up)??;
    Ok(tun)
}
