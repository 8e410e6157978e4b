//! A network with an uplink classifier (TS 23.501 §5.6.4.2): three UPFs in namespaces of their own, with a CP function each,
//! a gNB, and data networks that all have the same application, so that the path of a packet shows in who answers.
//!
//! ```text
//!         n3 ┌───────┐ n9      n9 ┌─────────┐ n6
//!  gNB ──────┤ UL CL ├────────────┤ central ├──── 'c'
//!   │        └─┬───┬─┘            └────┬────┘
//!   │    'u' ──┘n6 │ n9   n9 ┌───────┐ │ n3
//!   │              └─────────┤ local ├─│── 'l'
//!   └──────────────────────────────────┘
//! ```
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::flow::Flow;
use packet::gtpu::{self, PduSession, Signalling, build_gpdu, message_type};
use packet::transport::build_udp;
use packet::{ipv4, protocol};
use upf::Upf;

use super::lab::{PATIENCE, Smf, cidr};
use super::support::*;

/// GTP-U addresses: the gNB's as the UL CL and as the central anchor reach it, the UL CL's on N3 and N9, the anchors'.
pub const GNB_V4: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
pub const GNB_AT_CENTRAL: Ipv4Addr = Ipv4Addr::new(10, 220, 0, 2);
pub const UL_CL_N3: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
pub const UL_CL_N9: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 1);
pub const CENTRAL_N3: Ipv4Addr = Ipv4Addr::new(10, 220, 0, 1);
pub const CENTRAL_N9: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 2);
pub const LOCAL_N9: Ipv4Addr = Ipv4Addr::new(10, 211, 0, 2);

/// The application and another one: both are in every data network.
pub const APPLICATION: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub const SITE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Ports on which they answer.
pub const PORTS: [u16; 2] = [5001, 5002];

/// Which data network an answer comes from.
pub const CENTRAL: u8 = b'c';
pub const LOCAL: u8 = b'l';
pub const UL_CL: u8 = b'u';

/// A UPF in its namespace, and its CP function.
pub struct Node {
    pub smf: Smf,
    pub handle: upf::Handle,
    upf: Option<Upf>,
    runtime: tokio::runtime::Runtime,
}

impl Node {
    /// `tunnels`: role, network instance and address of each interface with tunnels.
    fn start(namespace: &NetNs, tunnels: &[(&str, &str, Ipv4Addr)]) -> Node {
        let tunnels: String = tunnels
            .iter()
            .map(|(role, instance, address)| {
                format!(
                    r#"{{"name": "{role}", "role": "{role}", "network_instance": "{instance}", "gtpu": "{address}:2152"}},"#
                )
            })
            .collect();
        let config = format!(
            r#"{{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [{tunnels}
                {{"name": "n6", "role": "n6", "device": "gw0"}}],
                "dnn": [{{"name": "internet", "interfaces": ["n6"],
                    "ue_pool": {{"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}}}]}}"#
        );
        let config: upf::Config = serde_json::from_str(&config).unwrap();
        let runtime = namespace.runtime(2).unwrap();
        let upf = runtime.block_on(runtime.spawn(upf::start(config.clone()))).unwrap().unwrap();
        let socket = namespace.enter(|| UdpSocket::bind((SMF, 8805))).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut smf = Smf { socket, upf: config.pfcp, sequence: 0, started: 100 };
        smf.associate(100);
        Node { smf, handle: upf.handle(), upf: Some(upf), runtime }
    }

    /// A number of the statistics.
    pub fn count(&self, pointer: &str) -> u64 {
        self.handle.stats().pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }

    /// Packets dropped for any reason but those of the link itself.
    pub fn drops(&self) -> u64 {
        let drops = self.handle.stats()["drops"].clone();
        let drops = drops.as_object().unwrap().iter();
        drops.filter(|(reason, _)| *reason != "link_local").filter_map(|(_, count)| count.as_u64()).sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(upf) = self.upf.take() {
            self.runtime.block_on(upf.stop());
        }
    }
}

/// Connects two namespaces by a network of this number; host 1 is in the first of them.
async fn join(name: &str, near: &NetNs, far: &NetNs, number: u8) {
    let (a, b) = (Links::in_ns(near).unwrap(), Links::in_ns(far).unwrap());
    a.add_veth(name, name, far).await.unwrap();
    for (links, host) in [(&a, 1), (&b, 2)] {
        links.up(name).await.unwrap();
        links.add_address(name, cidr(&format!("10.{number}.0.{host}/24"))).await.unwrap();
    }
}

/// The data network of an anchor, with the applications.
async fn data_network(anchor: &NetNs, number: u8) -> NetNs {
    let network = NetNs::new().unwrap();
    join("n6", anchor, &network, number).await;
    let (near, far) = (Links::in_ns(anchor).unwrap(), Links::in_ns(&network).unwrap());
    far.add_route(cidr("10.45.0.0/16"), Some(IpAddr::from([10, number, 0, 1])), None).await.unwrap();
    for address in [APPLICATION, SITE] {
        far.add_address("n6", cidr(&format!("{address}/32"))).await.unwrap();
        let via = Some(IpAddr::from([10, number, 0, 2]));
        near.add_route(cidr(&format!("{address}/32")), via, None).await.unwrap();
    }
    network
}

/// Answers datagrams with the name of the data network in front.
fn answer(network: &NetNs, name: u8, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let sockets = [APPLICATION, SITE].into_iter().flat_map(|address| PORTS.map(|port| (address, port)));
    let serve = |at: (Ipv4Addr, u16)| {
        let socket = network.enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            datagram[0] = name;
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut datagram[1..]) {
                    let _ = socket.send_to(&datagram[..=length], from);
                }
            }
        })
    };
    sockets.map(serve).collect()
}

/// What the gNB has received in a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// An answer of an application to the packet with this number.
    Answer {
        teid: u32,
        container: Option<PduSession>,
        /// The UE's port, the application's address and port.
        flow: (u16, Ipv4Addr, u16),
        number: u32,
        /// The data network of the answer.
        from: u8,
    },
    EndMarker {
        teid: u32,
    },
}

/// The gNB's end of N3: it sends the UE's packets into the tunnel that is set, and keeps what comes.
pub struct Gnb {
    socket: Arc<UdpSocket>,
    /// The tunnel for uplink packets.
    pub uplink: Arc<Mutex<(SocketAddr, u32)>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Gnb {
    fn start(namespace: &NetNs, stop: &Arc<AtomicBool>) -> (Gnb, JoinHandle<()>) {
        let socket =
            namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, gtpu::PORT))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let socket = Arc::new(socket);
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (stop, from, to) = (Arc::clone(stop), Arc::clone(&socket), Arc::clone(&received));
        let thread = std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, peer)) = from.recv_from(&mut datagram) else { continue };
                let message = gtpu::Packet::new(&datagram[..length]).unwrap();
                match message.message_type() {
                    message_type::G_PDU => to.lock().unwrap().extend(read(&message)),
                    message_type::END_MARKER => {
                        to.lock().unwrap().push(Received::EndMarker { teid: message.teid() });
                    }
                    message_type::ECHO_REQUEST => {
                        let sequence = message.sequence().unwrap();
                        from.send_to(&Signalling::EchoResponse { sequence }.build(), peer).unwrap();
                    }
                    other => panic!("GTP-U message {other}"),
                }
            }
        });
        let uplink = Arc::new(Mutex::new((SocketAddr::from(([0, 0, 0, 0], 0)), 0)));
        (Gnb { socket, uplink, received }, thread)
    }

    /// Sends a packet of the UE from this port.
    pub fn send(&self, flow: (u16, Ipv4Addr, u16), number: u32) {
        let (port, to, to_port) = flow;
        let datagram = build_udp((UE_V4.into(), port), (to.into(), to_port), &number.to_be_bytes()).unwrap();
        let packet = ipv4::Header::new(UE_V4, to, protocol::UDP).build(&datagram).unwrap();
        let (upf, teid) = *self.uplink.lock().unwrap();
        let message = build_gpdu(teid, Some(PduSession::Uplink { qfi: QFI }), &packet).unwrap();
        self.socket.send_to(&message, upf).unwrap();
    }

    /// Sends an End Marker, as if the UE's packets in this tunnel ended.
    pub fn send_end_marker(&self, upf: Ipv4Addr, teid: u32) {
        let message = Signalling::EndMarker { teid, pdu_session: None }.build();
        self.socket.send_to(&message, (upf, gtpu::PORT)).unwrap();
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The data network that answers the next packet of the flow. The numbers of these packets are above those of [`Traffic`].
    pub fn ask(&self, flow: (u16, Ipv4Addr, u16)) -> u8 {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1 << 30);
        let asked = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.send(flow, asked);
        let mut answer = None;
        super::lab::wait_for("an answer", || {
            answer = self.received.lock().unwrap().iter().rev().find_map(|received| match received {
                Received::Answer { number, from, .. } if *number == asked => Some(*from),
                _ => None,
            });
            answer.is_some()
        });
        answer.unwrap()
    }
}

/// A G-PDU; `None` for what no application has sent, such as Router Advertisements.
fn read(message: &gtpu::Packet<'_>) -> Option<Received> {
    let flow = Flow::parse(message.payload()).unwrap();
    let (IpAddr::V4(source), Some((from_port, to))) = (flow.source, flow.ports) else { return None };
    let payload = message.payload().get(28..33)?;
    let (from, number) = payload.split_first()?;
    Some(Received::Answer {
        teid: message.teid(),
        container: message.pdu_session(),
        flow: (to, source, from_port),
        number: u32::from_be_bytes(number.try_into().unwrap()),
        from: *from,
    })
}

/// Packets of several flows at a steady rate until it is stopped.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Traffic {
    pub fn start(gnb: &Arc<Gnb>, flows: &[(u16, Ipv4Addr, u16)]) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, gnb, flows) = (Arc::clone(&stop), Arc::clone(gnb), flows.to_vec());
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            // At least one round, also if the test has ended before this thread had a core.
            loop {
                flows.iter().for_each(|flow| gnb.send(*flow, number));
                number += 1;
                if stopped.load(Ordering::Relaxed) {
                    return number;
                }
                net::time::sleep_thread(Duration::from_micros(300));
            }
        });
        Traffic { stop, thread }
    }

    /// How many packets each flow has sent.
    pub fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// The whole network. Fields are dropped in this order.
pub struct Branches {
    pub ul_cl: Node,
    pub central: Node,
    pub local: Node,
    pub gnb: Arc<Gnb>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _namespaces: Vec<NetNs>,
}

impl Branches {
    pub fn new() -> Branches {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let [ran, ul_cl, central, local] = std::array::from_fn(|_| NetNs::new().unwrap());
        let networks = runtime.block_on(async {
            join("n3", &ul_cl, &ran, 200).await;
            join("n9c", &ul_cl, &central, 210).await;
            join("n9l", &ul_cl, &local, 211).await;
            join("n3c", &central, &ran, 220).await;
            // The UL CL has one address on N9.
            let links = Links::in_ns(&local).unwrap();
            links.add_route(cidr("10.210.0.1/32"), Some([10, 211, 0, 1].into()), None).await.unwrap();
            // So that a gNB can try to be an anchor.
            let links = Links::in_ns(&ran).unwrap();
            links.add_route(cidr("10.210.0.1/32"), Some([10, 200, 0, 1].into()), None).await.unwrap();
            [
                data_network(&central, 201).await,
                data_network(&local, 202).await,
                data_network(&ul_cl, 203).await,
            ]
        });
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (network, name) in networks.iter().zip([CENTRAL, LOCAL, UL_CL]) {
            threads.extend(answer(network, name, &stop));
        }
        let (gnb, thread) = Gnb::start(&ran, &stop);
        threads.push(thread);
        let nodes = (
            Node::start(&ul_cl, &[("n3", "ran", UL_CL_N3), ("n9", "upfs", UL_CL_N9)]),
            Node::start(&central, &[("n3", "ran", CENTRAL_N3), ("n9", "upfs", CENTRAL_N9)]),
            Node::start(&local, &[("n9", "upfs", LOCAL_N9)]),
        );
        let mut namespaces = vec![ran, ul_cl, central, local];
        namespaces.extend(networks);
        let (ul_cl, central, local) = nodes;
        Branches { ul_cl, central, local, gnb: Arc::new(gnb), stop, threads, _namespaces: namespaces }
    }

    /// Waits until every packet of the flows was answered, and checks that it was once. The data networks that have answered
    /// each flow, in the order of packets, without repetitions.
    #[track_caller]
    pub fn answered_once(&self, flows: &[(u16, Ipv4Addr, u16)], sent: u32) -> Vec<Vec<u8>> {
        let answers = || {
            let mut answers: BTreeMap<(u16, u32), Vec<u8>> = BTreeMap::new();
            for received in self.gnb.received() {
                if let Received::Answer { flow, number, from, .. } = received
                    && number < sent
                {
                    answers.entry((flow.0, number)).or_default().push(from);
                }
            }
            answers
        };
        let deadline = net::time::now_std() + Duration::from_secs(3);
        while answers().len() < flows.len() * sent as usize && net::time::now_std() < deadline {
            net::time::sleep_thread(Duration::from_millis(20));
        }
        let answers = answers();
        flows
            .iter()
            .map(|(port, ..)| {
                let mut networks: Vec<u8> = Vec::new();
                for number in 0..sent {
                    let from = answers.get(&(*port, number)).map_or(&[][..], Vec::as_slice);
                    let [from] = from else {
                        panic!("packet {number} of {sent} from port {port}: answers {from:?}")
                    };
                    networks.push(*from);
                }
                networks.dedup();
                networks
            })
            .collect()
    }
}

impl Drop for Branches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
