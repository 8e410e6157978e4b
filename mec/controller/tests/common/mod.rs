//! A mobile edge of Debian's Open vSwitch: one or two switches, a base station, anchors and a controller, each in a namespace of its own.
//!
//! ```text
//!   enb1 10.0.0.1 ──┐                          ┌── gw1 10.0.0.11
//!   10.0.0.2 enb2 ──┤ edge1 (OVS, 0x1) ────────┼── gw2 10.0.0.12
//!                   └──────┬───────────────────┴── gw3 10.0.0.13
//!                  control │ 10.99.1.0/24
//!                     controller
//! ```
//! With two switches `enb2` is behind `edge2`, which is linked to `edge1`.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use controller::{Config, Controller};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::time::{self, Duration};
use net::udp::{self, UdpSocket};
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType};
use openvswitch::OpenVswitch;
use packet::gtpu;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something is so.
pub async fn until<T>(what: &str, mut is_so: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = time::now() + PATIENCE;
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(time::now() < deadline, "{what} does not become so");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// An endpoint of GTP-U: base station or anchor, in a namespace with one interface `n3`. Its task answers the controller's echoes.
pub struct Endpoint {
    pub namespace: NetNs,
    pub address: IpAddr,
    socket: Arc<UdpSocket>,
    received: tokio::sync::Mutex<mpsc::UnboundedReceiver<(Vec<u8>, SocketAddr)>>,
    /// Whether it answers echoes.
    pub answers: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    async fn start(address: &str, namespace: NetNs) -> Endpoint {
        let address: IpAddr = address.parse().unwrap();
        let socket = namespace
            .enter(|| udp::bind_std(SocketAddr::new(address, 2152), udp::Options::default()).unwrap())
            .unwrap();
        let socket = Arc::new(UdpSocket::from_std(socket).unwrap());
        let (sender, received) = mpsc::unbounded_channel();
        let answers = Arc::new(AtomicBool::new(true));
        let (own, answering) = (socket.clone(), answers.clone());
        // Open vSwitch's UDP checksums of what it encapsulates are wrong, so the kernel would drop it. A raw socket gets it before that.
        let raw = || {
            socket::socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::Udp)
                .unwrap()
        };
        let raw: OwnedFd = namespace.enter(raw).unwrap();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 2048];
            loop {
                let length = match socket::recv(raw.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                    Ok(length) => length,
                    Err(_) => {
                        net::readable(raw.as_fd()).await.unwrap();
                        continue;
                    }
                };
                let Ok(packet) = packet::ipv4::Packet::new(&buffer[..length]) else { continue };
                let Ok(datagram) = packet::transport::Udp::new(packet.payload()) else { continue };
                if datagram.destination_port() != 2152 {
                    continue;
                }
                let (octets, from) = (
                    datagram.payload().to_vec(),
                    SocketAddr::new(packet.source().into(), datagram.source_port()),
                );
                let of_controller = from.ip().to_string().starts_with("10.0.0.25");
                match gtpu::decode(&octets) {
                    Ok(Some(gtpu::Signalling::EchoRequest { sequence })) if of_controller => {
                        if answering.load(Relaxed) {
                            let response = gtpu::Signalling::EchoResponse { sequence }.build();
                            let _ = own.send_to(&response, from).await;
                        }
                    }
                    _ => _ = sender.send((octets, from)),
                }
            }
        });
        Endpoint { namespace, address, socket, received: tokio::sync::Mutex::new(received), answers, task }
    }

    /// Sends a datagram to another endpoint.
    pub async fn send(&self, to: &Endpoint, octets: &[u8]) {
        self.socket.send_to(octets, SocketAddr::new(to.address, 2152)).await.unwrap();
    }

    /// The next datagram.
    pub async fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut received = self.received.lock().await;
        time::timeout(PATIENCE, received.recv()).await.expect("a datagram comes").unwrap()
    }

    /// What has come so far, and comes within a moment.
    pub async fn drain(&self) -> Vec<Vec<u8>> {
        let mut received = self.received.lock().await;
        let mut all = Vec::new();
        while let Ok(Some((octets, _))) = time::timeout(Duration::from_millis(100), received.recv()).await {
            all.push(octets);
        }
        all
    }
}

/// A G-PDU of an uplink packet.
pub fn g_pdu(teid: u32, ue: &str, server: &str, port: u16, text: &[u8]) -> Vec<u8> {
    let mut octets = vec![0x30, 255, 0, 0];
    octets.extend(teid.to_be_bytes());
    octets.extend(user_packet(ue, server, port, text));
    let length = (octets.len() - 8) as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets
}

/// As [`g_pdu`], with a PDU session container.
pub fn g_pdu_5g(teid: u32, ue: &str, server: &str, port: u16, text: &[u8]) -> Vec<u8> {
    let mut octets = vec![0x34, 255, 0, 0];
    octets.extend(teid.to_be_bytes());
    octets.extend([0, 0, 0, 0x85, 1, 0x10, 5, 0]);
    octets.extend(user_packet(ue, server, port, text));
    let length = (octets.len() - 8) as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets
}

pub fn user_packet(from: &str, to: &str, port: u16, text: &[u8]) -> Vec<u8> {
    let (from, to): (std::net::Ipv4Addr, std::net::Ipv4Addr) = (from.parse().unwrap(), to.parse().unwrap());
    let datagram = packet::transport::build_udp((from.into(), 4000), (to.into(), port), text).unwrap();
    packet::ipv4::Header::new(from, to, packet::protocol::UDP).build(&datagram).unwrap()
}

/// A switch of the edge.
pub struct Switch {
    namespace: NetNs,
    pub programs: OpenVswitch,
}

impl Switch {
    fn start(namespace: &NetNs, datapath_id: u64, controller: &str) -> Switch {
        let programs = OpenVswitch::start(namespace, &[]);
        let id = format!("other-config:datapath-id={datapath_id:016x}");
        programs.add_bridge(&["datapath_type=netdev", "fail_mode=secure", &id]);
        let flow = ["options:remote_ip=flow", "options:local_ip=flow", "options:key=flow"];
        let gtp = ["type=gtpu", "ofport_request=100", "options:packet_type=ptap"];
        programs.add_port("gtp", &[&gtp[..], &flow].concat());
        programs.vsctl(&["set-controller", "br0", &format!("tcp:{controller}")]);
        let fast = ["max_backoff=1000", "inactivity_probe=5000", "connection_mode=out-of-band"];
        programs.vsctl(&[&["set", "controller", "br0"], &fast[..]].concat());
        Switch { namespace: namespace.clone(), programs }
    }

    /// The switch's own addresses, and neighbours, which it does not ask for in time.
    pub async fn local(&self, addresses: &[&str], neighbours: &[(String, String)]) {
        let links = Links::in_ns(&self.namespace).unwrap();
        links.up("br0").await.unwrap();
        for address in addresses {
            links.add_address("br0", Cidr::new(address.parse().unwrap(), 24).unwrap()).await.unwrap();
        }
        for (address, mac) in neighbours {
            self.programs.appctl(&["tnl/neigh/set", "br0", address, mac]);
        }
    }

    /// The flows, as `ovs-ofctl` prints them.
    pub fn flows(&self) -> String {
        self.programs.ofctl("dump-flows", &[])
    }
}

/// What a test has.
pub struct Edge {
    pub switches: Vec<Switch>,
    pub enb1: Endpoint,
    pub enb2: Endpoint,
    pub gw1: Endpoint,
    pub gw2: Endpoint,
    pub config: Config,
    pub controller: Option<Controller>,
    /// Addresses and link-layer addresses of all ends.
    pub neighbours: Vec<(String, String)>,
    folder: tempfile::TempDir,
    state: std::path::PathBuf,
}

/// Runs a test in the namespace of the controller, on one thread.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(NetNs) -> F + Send) {
    if !openvswitch::is_possible() {
        return;
    }
    let home = NetNs::new().unwrap();
    let own = home.clone();
    let on_thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(own));
    };
    home.enter(on_thread).unwrap();
}

const LOCAL: [(&str, &str); 5] = [
    ("gw1", "10.0.0.101"),
    ("gw2", "10.0.0.102"),
    ("gw3", "10.0.0.103"),
    ("enb1", "10.0.0.111"),
    ("enb2", "10.0.0.112"),
];

impl Edge {
    /// Builds it; `two`: with a second switch.
    pub async fn start(home: &NetNs, two: bool) -> Edge {
        Self::start_with(home, two, |_| ()).await
    }

    /// As [`Edge::start`], with changes to the controller's configuration.
    pub async fn start_with(home: &NetNs, two: bool, change: impl FnOnce(&mut Value)) -> Edge {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut switches = Vec::new();
        let mut spaces = Vec::new();
        let count = if two { 2 } else { 1 };
        for number in 1..=count {
            let space = NetNs::new().unwrap();
            let (name, far) = (format!("ctl{number}"), "ctl0");
            wire(home, &name, &space, far).await;
            let links = Links::in_ns(home).unwrap();
            let address = |host: u8| Cidr::new(IpAddr::from([10, 99, number, host]), 24).unwrap();
            links.add_address(&name, address(1)).await.unwrap();
            Links::in_ns(&space).unwrap().add_address(far, address(2)).await.unwrap();
            let controller = format!("10.99.{number}.1:6653");
            switches.push(Switch::start(&space, u64::from(number), &controller));
            spaces.push(space);
        }
        let station = |name: &'static str, address: &'static str, at: usize| {
            let (space, switch) = (&spaces[at], &switches[at]);
            async move {
                let own = NetNs::new().unwrap();
                wire(space, name, &own, "n3").await;
                let links = Links::in_ns(&own).unwrap();
                links.add_address("n3", Cidr::new(address.parse().unwrap(), 24).unwrap()).await.unwrap();
                switch.programs.add_port(name, &[]);
                Endpoint::start(address, own).await
            }
        };
        let enb1 = station("enb1", "10.0.0.1", 0).await;
        let enb2 = station("enb2", "10.0.0.2", count as usize - 1).await;
        let gw1 = station("gw1", "10.0.0.11", 0).await;
        let gw2 = station("gw2", "10.0.0.12", 0).await;
        if two {
            wire(&spaces[0], "link", &spaces[1], "link").await;
            for switch in &switches {
                switch.programs.add_port("link", &[]);
            }
        }
        let neighbours: Vec<(String, String)> =
            [&enb1, &enb2, &gw1, &gw2].map(|end| (end.address.to_string(), mac_of(&end.namespace))).into();
        let mut own = Vec::new();
        for (number, switch) in switches.iter().enumerate() {
            // A second switch has addresses of its own for the same ends.
            let addresses: Vec<String> = LOCAL.iter().map(|(_, address)| local_at(address, number)).collect();
            let texts: Vec<&str> = addresses.iter().map(String::as_str).collect();
            switch.local(&texts, &neighbours).await;
            let local: serde_json::Map<String, Value> = LOCAL
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .zip(addresses.iter().map(|a| json!(a)))
                .collect();
            own.push(
                json!({"name": format!("edge{}", number + 1), "datapath_id": number + 1, "place": "access",
                "probe": format!("10.0.0.25{number}"), "local": local}),
            );
        }
        let second = if two { "edge2" } else { "edge1" };
        let mut config = json!({
            "openflow": "0.0.0.0:6653", "rest": "127.0.0.1:8181", "state": state,
            "switches": own,
            "anchors": [{"name": "gw1", "address": "10.0.0.11"}, {"name": "gw2", "address": "10.0.0.12"}, {"name": "gw3", "address": "10.0.0.13"}],
            "base_stations": [
                {"name": "enb1", "address": "10.0.0.1", "switch": "edge1", "access": "4g"},
                {"name": "enb2", "address": "10.0.0.2", "switch": second, "access": "4g"},
            ],
            "diverting": {"echo_ms": 200, "restore": false},
            "forwarding": {"discovery_s": 1},
        });
        change(&mut config);
        let config: Config = serde_json::from_value(config).unwrap();
        Edge { switches, enb1, enb2, gw1, gw2, config, controller: None, neighbours, folder, state }
    }

    /// Starts the controller and waits until the anchors answer.
    pub async fn control(&mut self) {
        self.controller = Some(Controller::start(self.config.clone()).await.unwrap());
        until("connected", async || {
            let all = self.controller.as_ref()?.fabric().switches();
            all.iter().all(|view| view.connected).then_some(())
        })
        .await;
        until("anchors alive", async || {
            let anchors = self.get("/v1/anchors").await;
            let anchors = anchors["anchors"].as_array()?;
            let up = |name: &str| anchors.iter().filter(|a| a["name"] == name).all(|a| a["alive"] == true);
            (up("gw1") && up("gw2")).then_some(())
        })
        .await;
        // Base stations have answered as well when a request for them is accepted; see `divert`.
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let rest = self.controller.as_ref().unwrap().rest();
        let response = nf::rest::call(PATIENCE, rest, method, path, body.as_ref()).await.unwrap();
        (response.status, response.body)
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Diverts; waits for link-layer addresses that are not known yet.
    pub async fn divert(&self, body: Value) -> Value {
        until("diverted", async || match self.call("POST", "/v1/diversions", Some(body.clone())).await {
            (200, done) => Some(done),
            (409, problem) if problem["detail"].as_str().unwrap().contains("not known yet") => None,
            (status, problem) => panic!("{status} {problem}"),
        })
        .await
    }

    /// Waits until forwarding knows all ends of the first switch, and has its rules between them.
    pub async fn discovered(&self) {
        until("discovered", async || {
            let flows = self.switches[0].flows();
            let lasting = |line: &&str| {
                line.contains("table=2") && line.contains("priority=100") && !line.contains("idle_timeout")
            };
            (flows.lines().filter(lasting).count() == 12).then_some(())
        })
        .await;
    }

    /// As [`Edge::divert`], and waits until the target answers.
    pub async fn divert_when_alive(&self, body: Value) {
        until("diverted", async || {
            (self.call("POST", "/v1/diversions", Some(body.clone())).await.0 == 200).then_some(())
        })
        .await;
    }

    pub fn state(&self) -> &Path {
        &self.state
    }
}

/// A further switch with its connection to the controller.
pub async fn further(home: &NetNs, number: u8) -> (NetNs, Switch) {
    let space = NetNs::new().unwrap();
    let (name, far) = (format!("ctl{number}"), "ctl0");
    wire(home, &name, &space, far).await;
    let address = |host: u8| Cidr::new(IpAddr::from([10, 99, number, host]), 24).unwrap();
    Links::in_ns(home).unwrap().add_address(&name, address(1)).await.unwrap();
    Links::in_ns(&space).unwrap().add_address(far, address(2)).await.unwrap();
    let switch = Switch::start(&space, u64::from(number), &format!("10.99.{number}.1:6653"));
    (space, switch)
}

/// A host at a port of a switch, with addresses on its interface `n3`; and its link-layer address.
pub async fn host(space: &NetNs, switch: &Switch, port: &str, addresses: &[&str]) -> (NetNs, String) {
    let own = NetNs::new().unwrap();
    wire(space, port, &own, "n3").await;
    for address in addresses {
        Links::in_ns(&own).unwrap().add_address("n3", address.parse().unwrap()).await.unwrap();
    }
    switch.programs.add_port(port, &[]);
    let mac = mac_of(&own);
    (own, mac)
}

/// A datagram socket in a namespace.
pub fn socket(space: &NetNs, address: &str) -> UdpSocket {
    let address: SocketAddr = address.parse().unwrap();
    let socket = space.enter(|| udp::bind_std(address, udp::Options::default()).unwrap()).unwrap();
    UdpSocket::from_std(socket).unwrap()
}

/// The address of a switch that stands for an end: each switch has its own.
fn local_at(address: &str, number: usize) -> String {
    let last: usize = address.rsplit('.').next().unwrap().parse().unwrap();
    format!("10.0.0.{}", last + 50 * number)
}

/// A veth between two namespaces, with whole checksums.
async fn wire(a: &NetNs, name: &str, b: &NetNs, far: &str) {
    Links::in_ns(a).unwrap().add_veth(name, far, b).await.unwrap();
    for (space, name) in [(a, name), (b, far)] {
        Links::in_ns(space).unwrap().up(name).await.unwrap();
        let name = name.to_owned();
        space
            .enter(move || pktio::af_xdp::device::Device::find(&name).unwrap().send_whole_frames().unwrap())
            .unwrap();
    }
}

fn mac_of(space: &NetNs) -> String {
    let device = space.enter(|| pktio::af_xdp::device::Device::find("n3").unwrap()).unwrap();
    device.mac.map(|octet| format!("{octet:02x}")).join(":")
}
