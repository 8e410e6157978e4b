//! Edge sites: further anchors, and two switches between them, the gNBs, the core and the data network.
//!
//! ```text
//!  ran 10.200.0.2 ──┐ switch ┌── core 10.200.0.1   N2, N3: the central anchor
//!                   └── n3 ──┤
//!                            ├── edge 10.200.0.3   N3: the anchor at the edge
//!                            └── edge2 10.200.0.5
//!  dn  10.201.0.2 ──┐ switch ┌── core 10.201.0.1
//!                   └── n6 ──┤
//!                            ├── edge 10.201.0.3
//!                            └── edge2 10.201.0.5
//! ```
//! `edge2` is there in a lab with two sites, and an S-GW 10.200.0.6 at the switch on N3 if it is apart: then `core` has the P-GW, and each
//! site an S-GW. Both switches are in one namespace, with one interface for each neighbour. The anchor at the edge is a `godwit run --nf upf`
//! of its own that no SMF knows; [`Clones`] gives it copies of the sessions at the central anchor, by N4.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::{self, Duration};
use net::udp::UdpSocket;
use pfcp::endpoint::{Config, Endpoint, Event, Handle};
use pfcp::message::*;
use pfcp::*;
use pktio::af_xdp::device::Device;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::network::{self, DN, QUEUE};
use crate::open_vswitch::{Bridge, OpenVswitch, Port};

/// The link between an anchor and the host for applications beside it.
const HOSTS: &str = "hosts";
/// An address that the data network's host and a host at each site have: a UE's packets to it end beside the anchor that serves the UE.
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 205, 0, 1);
/// The address of the MME, or of AMF and SMF with [`crate::Options::n4_at_switch`]. Agents at the edge have it as well, so that the
/// anchors there reach them.
pub const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 4);
/// Interfaces of the switch on N3, by what is behind them.
pub const N3_PORTS: [&str; 5] = ["n3-ran", "n3-core", "n3-edge", "n3-edge2", "n3-sgw"];
/// Interfaces of the switch on N6, likewise.
pub const N6_PORTS: [&str; 4] = ["n6-dn", "n6-core", "n6-edge", "n6-edge2"];
/// The S-GW's address if it is apart: of S11, S5 and S1-U.
pub const SGW: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 6);
/// The name of its process, and of its section and file.
pub(crate) const SGW_PROCESS: &str = "sgw";
/// The folder of its sockets.
pub(crate) const SGW_RUN_DIR: &str = "run-sgw";

/// A place for an anchor at the edge.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// The anchor's name in the controller's API, and of its files in the lab's folder.
    pub anchor: &'static str,
    /// The host's name in the orchestrator's API.
    pub host: &'static str,
    /// The process of the agent beside an anchor that the lab does not start.
    pub(crate) agent: &'static str,
    /// The anchor's address towards the gNBs (N3).
    pub n3: Ipv4Addr,
    /// Its address towards the data network (N6).
    pub n6: Ipv4Addr,
    /// The link to the controller, and its ends: there and here.
    management: &'static str,
    at_switches: Ipv4Addr,
    at_site: Ipv4Addr,
    /// The anchor's address on its link to the host for applications, and the host's.
    hosts: [Ipv4Addr; 2],
    /// The address of Open vSwitch on N3 that stands for the anchor.
    stand_in: Ipv4Addr,
    /// The anchor's own UE addresses, and their halves.
    pub(crate) pool: &'static str,
    pools: [&'static str; 2],
}

/// The edge sites. A lab has the first one, or both.
pub const SITES: [Site; 2] = [
    Site {
        anchor: "edge",
        host: "edge-host",
        agent: "edge-agent",
        n3: Ipv4Addr::new(10, 200, 0, 3),
        n6: Ipv4Addr::new(10, 201, 0, 3),
        management: "mgmt",
        at_switches: Ipv4Addr::new(10, 203, 0, 1),
        at_site: Ipv4Addr::new(10, 203, 0, 2),
        hosts: [Ipv4Addr::new(10, 206, 0, 1), Ipv4Addr::new(10, 206, 0, 2)],
        stand_in: Ipv4Addr::new(10, 200, 0, 103),
        pool: "10.46.0.0/16",
        pools: ["10.46.0.0/17", "10.46.128.0/17"],
    },
    Site {
        anchor: "edge2",
        host: "edge2-host",
        agent: "edge2-agent",
        n3: Ipv4Addr::new(10, 200, 0, 5),
        n6: Ipv4Addr::new(10, 201, 0, 5),
        management: "mgmt2",
        at_switches: Ipv4Addr::new(10, 204, 0, 1),
        at_site: Ipv4Addr::new(10, 204, 0, 2),
        hosts: [Ipv4Addr::new(10, 207, 0, 1), Ipv4Addr::new(10, 207, 0, 2)],
        stand_in: Ipv4Addr::new(10, 200, 0, 105),
        pool: "10.47.0.0/16",
        pools: ["10.47.0.0/17", "10.47.128.0/17"],
    },
];

impl Site {
    /// Where the agent beside its anchor listens.
    pub fn agent_address(&self) -> SocketAddr {
        SocketAddr::from((self.at_site, AGENT_PORT))
    }

    /// The file of its anchor's configuration.
    pub(crate) fn file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.yaml", self.anchor))
    }

    /// The folder of its anchor's sockets.
    pub fn run_dir(&self, folder: &Path) -> PathBuf {
        folder.join(format!("run-{}", self.anchor))
    }
}

/// Where the edge anchor takes N4 from, and who may ask it.
const UPF_N4: &str = "127.0.0.7:8805";
const CP_N4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
/// Name of its process and its configuration.
pub(crate) const PROCESS: &str = "edge-upf";
/// Processes in the namespace of the switches.
pub(crate) const SWITCHES: [&str; 4] = ["controller", "switch-n3", "switch-n6", "orchestrator"];
/// Where the agent listens.
const AGENT_PORT: u16 = 8806;
/// The orchestrator's API, in the namespace of the switches.
pub const MOVES: &str = "127.0.0.1:8182";
/// Time limit for an answer on N4.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that wait for the task of [`Clones`].
const WAITING: usize = 64;
/// The QoS flow of the sessions that are copied: the SMF's default.
const QFI: u8 = 1;

/// The namespaces of the edge.
pub(crate) struct Namespaces {
    /// That of the switches.
    pub switch: NetNs,
    /// Those of the anchors, in the order of [`SITES`].
    pub sites: Vec<NetNs>,
    /// Those of hosts for applications beside them.
    pub hosts: Vec<NetNs>,
    /// That of the S-GW, if it is apart.
    pub sgw: Option<NetNs>,
}

impl Namespaces {
    /// The sites that there are, with their namespaces.
    pub(crate) fn sites(&self) -> impl Iterator<Item = (&'static Site, &NetNs)> {
        SITES.iter().zip(&self.sites)
    }

    /// Ports of a switch that there are, with their numbers.
    fn ports(&self, all: &'static [&'static str]) -> Vec<(u32, &'static str)> {
        let is_there = |port: &(u32, &str)| match port.1.split_once('-') {
            Some((_, "sgw")) => self.sgw.is_some(),
            Some((_, name)) => SITES.iter().skip(self.sites.len()).all(|site| site.anchor != name),
            None => false,
        };
        (1..).zip(all.iter().copied()).filter(is_there).collect()
    }
}

/// Builds the links between the switches and their neighbours. `n2` and `n6` are the neighbours' names for their ends.
pub(crate) async fn build(
    core: &NetNs,
    ran: &NetNs,
    dn: &NetNs,
    sites: usize,
    sgw: bool,
) -> anyhow::Result<Namespaces> {
    anyhow::ensure!(sites <= SITES.len(), "a lab has at most {} edge sites", SITES.len());
    let spaces = || std::iter::repeat_with(network::namespace).take(sites).collect::<Result<_, _>>();
    let sgw = if sgw { Some(network::namespace()?) } else { None };
    let edge = Namespaces { switch: network::namespace()?, sites: spaces()?, hosts: spaces()?, sgw };
    let at_switch = Links::in_ns(&edge.switch)?;
    let mut n3 = vec![(ran, network::RAN_N2), (core, network::CORE_N2)];
    let mut n6 = vec![(dn, DN), (core, network::CORE_N6)];
    for (site, space) in edge.sites() {
        n3.push((space, site.n3));
        n6.push((space, site.n6));
    }
    n3.extend(edge.sgw.iter().map(|space| (space, SGW)));
    for (name, ports, hosts) in [(network::N2, &N3_PORTS[..], n3), (network::N6, &N6_PORTS, n6)] {
        for ((_, port), (host, address)) in edge.ports(ports).into_iter().zip(hosts) {
            at_switch.add_veth(port, name, host).await?;
            let at_host = Links::in_ns(host)?;
            for (links, interface) in [(&at_switch, port), (&at_host, name)] {
                links.set_txqueuelen(interface, QUEUE).await?;
                links.up(interface).await?;
            }
            let [.., third, fourth] = address.octets();
            let ipv6 = network::ipv6(0x200 + u16::from(third != 200 && name == network::N6), fourth.into());
            for (address, prefix) in [(IpAddr::V4(address), 24), (IpAddr::V6(ipv6), 64)] {
                let cidr = Cidr::new(address, prefix).context("the prefixes fit their families")?;
                at_host.add_address(name, cidr).await?;
            }
            // The switch sees frames as they are on a wire, with their checksums.
            host.enter(|| Device::find(name)?.send_whole_frames())?.context("switch off offloads")?;
        }
    }
    edge.switch.enter(net::netns::loopback_up)?.context("bring up the loopback interface")?;
    let service = Cidr::new(SERVICE.into(), 32).context("a prefix of IPv4")?;
    Links::in_ns(dn)?.add_address("lo", service).await?;
    Links::in_ns(core)?.add_route(service, Some(DN.into()), Some(network::N6)).await?;
    let own = Cidr::new(CONTROL.into(), 32).context("a prefix of IPv4")?;
    for ((site, space), host) in edge.sites().zip(&edge.hosts) {
        at_host(site, space, host, service).await?;
        at_switch.add_veth(site.management, site.management, space).await?;
        let at_site = Links::in_ns(space)?;
        for (links, address) in [(&at_switch, site.at_switches), (&at_site, site.at_site)] {
            links.up(site.management).await?;
            let cidr = Cidr::new(address.into(), 24).context("a prefix of IPv4")?;
            links.add_address(site.management, cidr).await?;
        }
        at_site.add_address("lo", own).await?;
    }
    // The control plane is a host of its own towards anchors. At the edge its address is the agents'.
    let on_link = Cidr::new(CONTROL.into(), 24).context("a prefix of IPv4")?;
    Links::in_ns(ran)?.add_address(network::N2, on_link).await?;
    ran.enter(net::netns::loopback_up)?.context("bring up the loopback interface")?;
    Ok(edge)
}

/// A host for applications beside an anchor. A UPF lets UEs reach no address of its own machine.
async fn at_host(site: &Site, anchor: &NetNs, host: &NetNs, service: Cidr) -> anyhow::Result<()> {
    let (at_anchor, at_host) = (Links::in_ns(anchor)?, Links::in_ns(host)?);
    at_anchor.add_veth(HOSTS, HOSTS, host).await?;
    for (links, address) in [(&at_anchor, site.hosts[0]), (&at_host, site.hosts[1])] {
        links.up(HOSTS).await?;
        links.add_address(HOSTS, Cidr::new(address.into(), 24).context("a prefix of IPv4")?).await?;
    }
    at_host.add_address("lo", service).await?;
    at_host.add_route("0.0.0.0/0".parse()?, Some(site.hosts[0].into()), Some(HOSTS)).await?;
    Ok(at_anchor.add_route(service, Some(site.hosts[1].into()), Some(HOSTS)).await?)
}

/// The configuration of an edge anchor: that of the core, with other addresses and a folder of its own for sockets. UEs that move there keep
/// their addresses, or get some of the anchor's own.
pub(crate) fn configuration(core: &Value, site: &Site, folder: &Path, kind: Kind) -> Value {
    let mut made = core.clone();
    made["run_dir"] = json!(site.run_dir(folder));
    made["upf"]["gtpu"] = json!(format!("{}:2152", site.n3));
    if kind.n4_at_switch {
        made["upf"]["pfcp"] = json!(format!("{}:8805", site.n3));
        let at = SITES.iter().position(|known| known.host == site.host);
        made["upf"]["teid_range"] = crate::settings::teid_range(1 + at.unwrap_or_default());
    }
    if kind.sgw {
        crate::settings::make_sgw(&mut made, site.n3);
    } else if kind.epc {
        made["spgw"]["gtpc"] = json!(format!("{}:2123", site.n3));
        // It has no SMF, but the pools in a file must fit one another.
        let own = [("spgw", "apn", site.pools[0]), ("smf", "dnn", site.pools[1]), ("upf", "dnn", site.pool)];
        for (section, names, pool) in own.into_iter().filter(|_| !kind.keeps_addresses) {
            made[section][names][0]["ue_pool"]["ipv4"] = json!(pool);
        }
    }
    if kind.is_replicated() {
        made["mec"] = json!({"agent": {
            "listen": site.agent_address(), "control": CONTROL, "clone": site.n3, "gtpu": site.n3,
        }});
    }
    made
}

/// The configuration of the S-GW that is apart, in the beginning the only one.
pub(crate) fn first_sgw(core: &Value, folder: &Path) -> Value {
    let mut made = core.clone();
    made["run_dir"] = json!(folder.join(SGW_RUN_DIR));
    crate::settings::make_sgw(&mut made, SGW);
    made
}

/// The switches' numbers in OpenFlow, and the names by which the controller knows them.
const SWITCHES_OF: [(&str, u64, &[&str]); 2] = [("n3", 3, &N3_PORTS), ("n6", 6, &N6_PORTS)];
/// The switches' port for the insides of tunnels.
const GTP_PORT: u32 = 100;
/// How long tokens are waited for: all parts of a lab share one machine, and may wait for a core for long.
const TOKEN_MS: u64 = 2000;
/// Where the switches connect, and where the controller's API is, in their namespace.
const OPENFLOW: &str = "127.0.0.1:6653";
/// The controller's API.
pub const REST: &str = "127.0.0.1:8181";
/// The names of the first anchor and of the base station in the API.
pub const CENTRAL: &str = "central";
/// See [`CENTRAL`].
pub const GNB: &str = "gnb";

/// Addresses of Open vSwitch on N3 that stand for the first anchor and for the base station.
const CENTRAL_STAND_IN: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 101);
const GNB_STAND_IN: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 102);

/// What Open vSwitch is told of itself and of its neighbours on N3.
fn stand_ins(edge: &Namespaces) -> Vec<(&'static str, Ipv4Addr)> {
    let sites = edge.sites().map(|(site, _)| (site.anchor, site.stand_in));
    [(CENTRAL, CENTRAL_STAND_IN), (GNB, GNB_STAND_IN)].into_iter().chain(sites).collect()
}

/// Starts Open vSwitch in the place of both switches.
pub(crate) async fn open_vswitch(
    edge: &Namespaces,
    core: &NetNs,
    ran: &NetNs,
) -> anyhow::Result<OpenVswitch> {
    let ovs = OpenVswitch::start(&edge.switch).await?;
    for (listen, (name, datapath_id, ports)) in (6654..).zip(SWITCHES_OF) {
        let ports: Vec<Port<'_>> = edge.ports(ports);
        let bridge = Bridge {
            name: &format!("br-{name}"),
            datapath_id,
            ports: &ports,
            gtp_port: (name == "n3").then_some(GTP_PORT),
            controller: Some(OPENFLOW.parse()?),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, listen)),
        };
        ovs.add(&bridge).await?;
    }
    let mut hosts = vec![(core, network::CORE_N2), (ran, network::RAN_N2)];
    hosts.extend(edge.sites().map(|(site, space)| (space, site.n3)));
    let mut neighbours = Vec::new();
    for (space, address) in hosts {
        neighbours.push((IpAddr::V4(address), space.enter(|| Device::find(network::N2))??.mac));
        // The UDP checksum of what it encapsulates is wrong.
        let rules = "table ip godwit {\nchain gtpu {\ntype filter hook prerouting priority raw;\nudp dport 2152 udp checksum set 0\n}\n}";
        let nft = Command::new("nft").arg(rules).namespace(space).output(PATIENCE).await?;
        anyhow::ensure!(nft.status.success(), "nft: {}", String::from_utf8_lossy(&nft.stderr));
    }
    let own: Vec<IpAddr> = stand_ins(edge).into_iter().map(|(_, address)| address.into()).collect();
    ovs.know("br-n3", &own, &neighbours).await?;
    Ok(ovs)
}

/// A process of the edge: its name, its arguments, and its configuration.
pub(crate) struct Part {
    pub name: &'static str,
    pub arguments: [&'static str; 3],
    pub configuration: Value,
}

/// The orchestrator, which starts anchors at the edge with their agents, unless these are of another make.
pub(crate) fn orchestrator(
    edge: &Namespaces,
    folder: &Path,
    log: &str,
    kind: Kind,
    is_foreign: bool,
) -> Part {
    let host = |(site, space): (&Site, &NetNs)| {
        // Its processes are children of another one than this.
        let fd = space.path().file_name().map(|name| name.to_owned()).unwrap_or_default();
        let namespace = Path::new("/proc").join(std::process::id().to_string()).join("fd").join(fd);
        let agent = site.agent_address();
        if is_foreign {
            return json!({"name": site.host, "anchor": site.anchor, "agent": agent, "driver": "external"});
        }
        json!({
            "name": site.host, "anchor": site.anchor, "agent": agent,
            "driver": {"namespace": namespace},
            "configuration": site.file(folder), "nfs": kind.anchor(),
        })
    };
    let orchestrator = json!({
        "rest": MOVES, "controller": format!("http://{REST}"), "state": folder.join("moves"),
        "hosts": edge.sites().map(host).collect::<Vec<_>>(),
    });
    let configuration = json!({"run_dir": folder.join("run-orchestrator"), "log": log, "mec": {"orchestrator": orchestrator}});
    Part { name: "orchestrator", arguments: ["mec", "orchestrator", "run"], configuration }
}

/// Which edge it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub epc: bool,
    /// The S-GW is apart.
    pub sgw: bool,
    pub n4_at_switch: bool,
    pub keeps_addresses: bool,
    pub open_vswitch: bool,
    pub realtime: bool,
}

impl Kind {
    /// Whether the controller sees S11 or N4, and the orchestrator can move UEs.
    pub(crate) fn is_replicated(self) -> bool {
        self.epc || self.n4_at_switch
    }

    /// The NFs of an anchor.
    fn anchor(self) -> &'static [&'static str] {
        match (self.epc, self.sgw) {
            (true, true) => &["upf", "sgw"],
            (true, false) => &["upf", "spgw"],
            (false, _) => &["upf"],
        }
    }

    /// See [`crate::Lab::gateway`].
    pub(crate) fn gateway(self) -> &'static str {
        if self.sgw { SGW_PROCESS } else { "spgw" }
    }
}

/// The controller and the switches, which know one another by these.
pub(crate) fn parts(
    core: &NetNs,
    edge: &Namespaces,
    folder: &Path,
    log: &str,
    kind: Kind,
) -> anyhow::Result<Vec<Part>> {
    let Kind { epc, keeps_addresses, open_vswitch, realtime, .. } = kind;
    let mac = |namespace: &NetNs| -> anyhow::Result<String> {
        let device = namespace.enter(|| Device::find(network::N6))?.context("find the device of N6")?;
        Ok(device.mac.map(|octet| format!("{octet:02x}")).join(":"))
    };
    let anchor = |name: &str, n3: Ipv4Addr, n6: Ipv4Addr, namespace: &NetNs| -> anyhow::Result<Value> {
        if kind.sgw {
            return Ok(json!({"name": name, "address": n3}));
        }
        let sgi = json!({"switch": "n6", "mac": mac(namespace)?, "address": n6});
        Ok(json!({"name": name, "address": n3, "sgi": sgi, "keeps_addresses": keeps_addresses}))
    };
    let first = if kind.sgw { SGW } else { network::CORE_N2 };
    let mut anchors = vec![anchor(CENTRAL, first, network::CORE_N6, core)?];
    for (site, space) in edge.sites() {
        anchors.push(anchor(site.anchor, site.n3, site.n6, space)?);
    }
    let known = |(name, number, _): &(&str, u64, &[&str])| {
        // Addresses of the links that nobody has: the controller asks from them.
        let (place, probe) = if *name == "n3" { ("access", "10.200.0.250") } else { ("sgi", "10.201.0.250") };
        json!({
            "name": name, "datapath_id": number, "place": place, "probe": probe,
            // S11 or N4 passes here.
            "capture": kind.is_replicated() && *name == "n3",
            "local": if open_vswitch && *name == "n3" { stand_ins(edge).into_iter().collect() } else { HashMap::new() },
        })
    };
    let controller = json!({
        "openflow": OPENFLOW,
        "rest": REST,
        "state": folder.join("diversions"),
        "switches": SWITCHES_OF.iter().map(known).collect::<Vec<_>>(),
        "anchors": anchors,
        // The data network's host: all anchors have a route there.
        "diverting": {"order": {"token": DN, "token_ipv6": network::DN_IPV6, "timeout_ms": TOKEN_MS}},
        "replication": {"records": format!("sqlite:{}", folder.join("sessions.db").display())},
        "base_stations": [{
            "name": GNB, "address": network::RAN_N2, "switch": "n3", "access": if epc { "4g" } else { "5g" },
        }],
    });
    let switch = |(name, number, ports): (&str, u64, &'static [&'static str])| {
        let ports = edge.ports(ports).into_iter();
        let ports = ports.map(|(number, port)| json!({"number": number, "interface": port}));
        json!({
            "datapath_id": number,
            "description": format!("{name} of the edge site"),
            "controllers": [OPENFLOW],
            "ports": ports.collect::<Vec<_>>(),
            "local": format!("{name}-host"),
            "gtp_port": GTP_PORT,
            "hold": {"timeout_ms": TOKEN_MS},
            // Whole networks attach at once, and what is captured goes to the controller.
            "packet_in_per_s": 100_000,
            // Several of each UE.
            "entries": 1 << 20,
            "workers": crate::settings::workers(realtime),
        })
    };
    let whole = |name: &str, key: &str, value: Value| json!({"run_dir": folder.join(format!("run-{name}")), "log": log, "mec": {key: value}});
    let [n3, n6] = SWITCHES_OF.map(switch);
    let controller = Part {
        name: "controller",
        arguments: ["mec", "controller", "run"],
        configuration: whole("controller", "controller", controller),
    };
    if open_vswitch {
        return Ok(vec![controller]);
    }
    Ok(vec![
        controller,
        Part {
            name: "switch-n3",
            arguments: ["mec", "switch", "run"],
            configuration: whole("switch-n3", "switch", n3),
        },
        Part {
            name: "switch-n6",
            arguments: ["mec", "switch", "run"],
            configuration: whole("switch-n6", "switch", n6),
        },
    ])
}

/// A session to copy, as SMF and UPF list it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The UE's address.
    pub ue: Ipv4Addr,
    /// TEID at the anchor, which the copy gets as well.
    pub uplink_teid: u32,
    /// The gNB's end of the tunnel.
    pub gnb: Ipv4Addr,
    /// TEID at the gNB.
    pub downlink_teid: u32,
}

impl Session {
    /// From the SMF's list of sessions.
    ///
    /// # Errors
    /// The session has no IPv4 address, or no tunnel.
    pub fn of(listed: &Value) -> anyhow::Result<Session> {
        let text = |member: &str| listed[member].as_str().with_context(|| format!("{member} of {listed}"));
        let teid = |member: &str| {
            let text = text(member)?;
            u32::from_str_radix(text.trim_start_matches("0x"), 16).with_context(|| format!("TEID {text}"))
        };
        Ok(Session {
            ue: text("ipv4")?.parse()?,
            uplink_teid: teid("upf_teid")?,
            gnb: text("gnb")?.parse()?,
            downlink_teid: teid("gnb_teid")?,
        })
    }

    /// The rules of its copy: all packets both ways, in one QoS flow.
    fn establishment(&self, cp_seid: u64) -> SessionEstablishmentRequest {
        let ue = |destination| Some(UeIpAddress { ipv4: Some(self.ue), destination, ..Default::default() });
        let tunnel = FTeid::Assigned { teid: self.uplink_teid, ipv4: Some(SITES[0].n3), ipv6: None };
        let uplink = Pdi { f_teid: Some(tunnel), ue_ip_address: ue(false), ..Default::default() };
        let downlink =
            Pdi { source_interface: SourceInterface::Core, ue_ip_address: ue(true), ..Default::default() };
        let pdr = |id: u16, pdi: Pdi| CreatePdr {
            pdr_id: PdrId(id),
            precedence: Precedence(255),
            outer_header_removal: pdi.f_teid.map(|_| OuterHeaderRemoval::default()),
            pdi,
            far_id: Some(FarId(id.into())),
            qer_ids: vec![QerId(1)],
            ..Default::default()
        };
        let far = |id: u32, to: DestinationInterface, header: Option<OuterHeaderCreation>| CreateFar {
            far_id: FarId(id),
            apply_action: ApplyAction::FORW,
            forwarding_parameters: Some(Box::new(ForwardingParameters {
                destination_interface: to,
                outer_header_creation: header,
                ..Default::default()
            })),
            ..Default::default()
        };
        let to_gnb = OuterHeaderCreation::gtpu(self.downlink_teid, self.gnb.into());
        SessionEstablishmentRequest {
            node_id: NodeId::Ipv4(CP_N4),
            cp_f_seid: FSeid::new(cp_seid, CP_N4.into()),
            create_pdrs: vec![pdr(1, uplink), pdr(2, downlink)],
            create_fars: vec![
                far(1, DestinationInterface::Core, None),
                far(2, DestinationInterface::Access, Some(to_gnb)),
            ],
            create_qers: vec![CreateQer { qer_id: QerId(1), qfi: Some(Qfi(QFI)), ..Default::default() }],
            ..Default::default()
        }
    }
}

/// A request for the task, and where its answer goes.
type Question = (Message, oneshot::Sender<anyhow::Result<Message>>);

/// The CP function of the edge anchor: sets up copies of sessions. They are deleted with the anchor.
pub struct Clones {
    questions: mpsc::Sender<Question>,
    given: u64,
}

impl Clones {
    /// Associates with the anchor in its namespace.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub(crate) async fn associate(site: &NetNs) -> anyhow::Result<Clones> {
        let address = SocketAddr::new(CP_N4.into(), 8805);
        let socket = site.enter(|| net::udp::bind_std(address, net::udp::Options::default()))??;
        let socket = UdpSocket::from_std(socket)?;
        let started = NtpSeconds(1);
        let secret = time::now_ns();
        let endpoint = Endpoint::new(Config::new(NodeId::Ipv4(CP_N4), started, secret));
        let (questions, received) = mpsc::channel(WAITING);
        tokio::spawn(serve(endpoint, socket, received));
        let clones = Clones { questions, given: 0 };
        let request = AssociationSetupRequest {
            node_id: NodeId::Ipv4(CP_N4),
            recovery_time_stamp: started,
            ..Default::default()
        };
        match clones.ask(request.into()).await? {
            Message::AssociationSetupResponse(response) if response.cause == Cause::ACCEPTED => Ok(clones),
            other => bail!("the edge anchor refuses the association: {other:?}"),
        }
    }

    /// Sets up a session's copy.
    ///
    /// # Errors
    /// The anchor does not answer, or refuses: it may have the TEID already.
    pub async fn copy(&mut self, session: &Session) -> anyhow::Result<()> {
        self.given += 1;
        match self.ask(session.establishment(self.given).into()).await? {
            Message::SessionEstablishmentResponse(response) if response.cause == Cause::ACCEPTED => Ok(()),
            other => bail!("the edge anchor refuses a copy of {session:?}: {other:?}"),
        }
    }

    async fn ask(&self, request: Message) -> anyhow::Result<Message> {
        let (answer, answered) = oneshot::channel();
        self.questions.send((request, answer)).await.ok().context("N4 of the edge anchor has ended")?;
        time::timeout(PATIENCE, answered).await.context("no answer on N4")?.context("N4 has ended")?
    }
}

/// Runs the endpoint until the last question.
async fn serve(mut endpoint: Endpoint, socket: UdpSocket, mut questions: mpsc::Receiver<Question>) {
    let upf: SocketAddr = UPF_N4.parse().expect("an address");
    let mut open: HashMap<Handle, oneshot::Sender<anyhow::Result<Message>>> = HashMap::new();
    let mut datagram = vec![0; 65_535];
    loop {
        while let Some(transmit) = endpoint.poll_transmit() {
            // What is lost is repeated.
            let _ = socket.send_to(&transmit.payload, transmit.to).await;
        }
        while let Some(event) = endpoint.poll_event() {
            let (handle, answer) = match event {
                Event::Response { handle, message, .. } => (handle, Ok(message)),
                Event::Failed { handle, failure, .. } => (handle, Err(failure.into())),
                _ => continue,
            };
            if let Some(asker) = open.remove(&handle) {
                let _ = asker.send(answer);
            }
        }
        let due = endpoint.poll_timeout();
        let timer = async {
            match due {
                Some(due) => time::sleep(due.saturating_duration_since(time::now_std())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            question = questions.recv() => {
                let Some((request, asker)) = question else { return };
                match endpoint.send_request(time::now_std(), upf, 0, request) {
                    Ok(handle) => drop(open.insert(handle, asker)),
                    Err(error) => drop(asker.send(Err(error.into()))),
                }
            }
            received = socket.recv_from(&mut datagram) => {
                if let Ok((length, from)) = received {
                    endpoint.handle_datagram(time::now_std(), from, &datagram[..length]);
                }
            }
            () = timer => endpoint.handle_timeout(time::now_std()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_session_has_all_that_its_copy_needs() {
        let listed = json!({"ipv4": "10.45.0.9", "upf_teid": "0x00001234", "gnb": "10.200.0.2",
                            "gnb_teid": "0xfffffffe", "supi": "imsi-1"});
        let session = Session::of(&listed).unwrap();
        assert_eq!((session.uplink_teid, session.downlink_teid), (0x1234, 0xffff_fffe));
        let request = session.establishment(7);
        assert_eq!(request.cp_f_seid.seid, 7);
        for missing in ["ipv4", "gnb_teid"] {
            let mut listed = listed.clone();
            listed[missing] = Value::Null;
            assert!(Session::of(&listed).unwrap_err().to_string().contains(missing));
        }
    }
}
