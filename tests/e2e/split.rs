//! A gNB in parts, its user plane: real `ping` in a UE's namespace, through UE, DU and CU, each in a namespace of its own, to a
//! UPF that answers. Tunnels are set up by the nodes' internal APIs. The three models differ in configuration only.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cu::user_plane::{BearerConfig, BearerId, SessionId, Tunnel};
use l2::pdcp::{Config as PdcpConfig, Rx, RxConfig, Security, SnLength, Tx};
use l2::rlc::um;
use l2::sdap::{Drb, DrbId};
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;
use packet::gtpu::{self, PduSession};
use path::{Graph, Ports, Worker};
use pktio::interface::{self, Backend, DpdkConfig, Interface, LinkConfig, Setup, Traffic};
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{Pool, Slab, VECTOR, Vector};
use types::{Key, NrCellId, Qfi};

const CELL: u64 = 0x1_0000_0001;
const LCID: u8 = 4;
const QFI: u8 = 9;
const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
const UPF_TEID: u32 = 0x0BAD_CAFE;
/// Room for the headers of F1-U around what the UE sends.
const MTU: u16 = 1600;
const UE_MTU: u32 = 1400;

/// How F1-U and N3 pass.
#[derive(Clone, Copy, Debug)]
struct Model {
    f1u: Backend,
    n3: Backend,
}

/// A link between two namespaces: addresses 10.N.0.1 and 10.N.0.2.
async fn link(name: &str, number: u8, [one, other]: [&NetNs; 2]) {
    Links::in_ns(one).unwrap().add_veth(name, name, other).await.unwrap();
    for (namespace, host) in [(one, 1), (other, 2)] {
        let links = Links::in_ns(namespace).unwrap();
        links.set_mtu(name, MTU.into()).await.unwrap();
        links.up(name).await.unwrap();
        links.add_address(name, Cidr::new(address(number, host), 24).unwrap()).await.unwrap();
    }
}

fn address(link: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, link, 0, host).into()
}

/// One end of a link, as a configuration has it. `name` is that of the veth device or of the memif's socket.
fn end(backend: Backend, name: &str, number: u8, host: u8, folder: &Path) -> LinkConfig {
    let role = if host == 1 { "server" } else { "client" };
    let socket = folder.join(format!("{name}.sock"));
    let device = match backend {
        Backend::Memif => Some(format!("memif{number},role={role},bsize=2048,socket={}", socket.display())),
        Backend::AfXdp => Some(name.to_owned()),
        _ => None,
    };
    let own = backend == Backend::Memif;
    LinkConfig {
        gtpu: Some(SocketAddr::new(address(number, host), gtpu::PORT)),
        backend,
        device,
        addresses: own.then(|| Cidr::new(address(number, host), 24).unwrap()).into_iter().collect(),
        mtu: own.then_some(MTU),
        ..LinkConfig::default()
    }
}

/// A UPF with one session, whose data network answers pings.
struct Responder {
    home: Arc<dyn Pool>,
    cu: Tunnel,
    answered: Arc<AtomicU64>,
}

impl Graph for Responder {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        let mut selected = Vec::new();
        for at in 0..vector.len() {
            let mut frame = vector.frame_mut(at);
            let Ok(packet) = gtpu::Packet::new(frame.packet()) else { continue };
            if packet.teid() != UPF_TEID || packet.pdu_session() != Some(PduSession::Uplink { qfi: QFI }) {
                continue;
            }
            let (header, total) = (packet.header_len(), packet.bytes().len());
            frame.truncate(total);
            frame.trim_front(header);
            let ip = frame.packet_mut();
            // An echo request over IPv4 without options: its answer has the addresses swapped and another type.
            if ip.len() < 28 || ip[9] != 1 || ip[20] != 8 || ip[16..20] != SERVER.octets() {
                continue;
            }
            let (source, destination) = ip[12..20].split_at_mut(4);
            source.swap_with_slice(destination);
            ip[20] = 0;
            let sum = u32::from(u16::from_be_bytes([ip[22], ip[23]])) + 0x0800;
            ip[22..24].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
            let (length, container) =
                (frame.len(), Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None }));
            let written = gtpu::encapsulate(frame.headroom(), self.cu.teid, length, container).unwrap();
            assert!(frame.grow_front(written));
            *frame.peer = SocketAddr::new(self.cu.address, gtpu::PORT);
            frame.send_to(0);
            selected.push(at as u16);
        }
        let sent = ports[input].transmit(vector, &selected);
        self.answered.fetch_add(sent.packets as u64, Relaxed);
    }

    fn recover(&mut self, lost: usize) {
        panic!("{lost} packets were lost by a defect");
    }

    fn interface_name(&self, _: usize) -> &str {
        "n3"
    }
}

fn security() -> Security {
    let integrity = Integrity::new(IntegrityAlgorithm::Nia2, &Key::new([2; 16]));
    Security::new(Cipher::new(CipheringAlgorithm::Nea2, &Key::new([1; 16])), Some(integrity))
}

fn pdcp(direction: Direction) -> (Tx, Rx) {
    let config = |direction| PdcpConfig::drb(DrbId::new(1).unwrap(), direction, SnLength::Eighteen, true);
    let other = match direction {
        Direction::Uplink => Direction::Downlink,
        Direction::Downlink => Direction::Uplink,
    };
    (Tx::new(config(direction), security()), Rx::new(config(other), security(), RxConfig::default()))
}

/// The nodes, and what holds them.
struct Network {
    ue: NetNs,
    cu: cu::Node,
    du: du::Node,
    answered: Arc<AtomicU64>,
    session: SessionId,
    bearer: BearerId,
    _workers: Vec<Worker>,
    _namespaces: Vec<NetNs>,
    _folder: tempfile::TempDir,
}

/// Opens the only port of a link in a namespace.
fn port(namespace: &NetNs, link: LinkConfig) -> (Ports, Vec<usize>) {
    let interface = Interface { place: "upf".to_owned(), point: "n3", link, traffic: Traffic::Tunnels };
    let setup = Setup { section: "upf", workers: Some(1), dpdk: &DpdkConfig::default(), taps: None };
    let opened = namespace.enter(|| interface::open(&setup, vec![interface])).unwrap().unwrap();
    let worker = opened.workers.into_iter().next().unwrap();
    (worker.ports, worker.inputs)
}

async fn network(model: Model) -> Network {
    let [cu_ns, du_ns, upf_ns, ue_ns, tun_ns] = std::array::from_fn(|_| NetNs::new().unwrap());
    link("f1u", 10, [&cu_ns, &du_ns]).await;
    link("n3", 11, [&cu_ns, &upf_ns]).await;
    link("uu", 12, [&du_ns, &ue_ns]).await;
    let folder = tempfile::tempdir().unwrap();
    let end = |backend, name, number, host| end(backend, name, number, host, folder.path());

    let config = cu::Config::new(vec![end(model.f1u, "f1u", 10, 1)], Some(end(model.n3, "n3", 11, 1)));
    let cu = cu_ns.enter(|| cu::Node::start(&config, None)).unwrap().unwrap();
    let uu = SocketAddr::new(address(12, 1), l2::uu::PORT);
    let to_ues = LinkConfig { gtpu: Some(uu), ..LinkConfig::default() };
    let config = du::Config::new(CELL, end(model.f1u, "f1u", 10, 2), to_ues);
    let du = du_ns.enter(|| du::Node::start(&config, None, 1)).unwrap().unwrap();

    // UEs: a device of the kernel, and the link to the DU.
    let place = SocketAddr::new(address(12, 2), l2::uu::PORT);
    let (graph, ues, _events) = ue::UserPlane::new();
    let (tuns, devices) = ue::Tuns::new().unwrap();
    let to_du = ue_ns.enter(|| UdpPort::bind(place, false)).unwrap().unwrap();
    // In the order of `ue::UU` and `ue::TUN`.
    let ports: Ports = vec![Box::new(to_du), Box::new(tuns)];
    let poll = Duration::from_micros(100);
    let ue_worker = Worker::start("ue", graph, ports, vec![ue::UU, ue::TUN], poll).unwrap();

    // The tunnels, from the UPF to the UE.
    let upf = Tunnel { address: address(11, 2), teid: UPF_TEID };
    let session = cu.user_plane.open(1, upf).unwrap();
    let (tx, rx) = pdcp(Direction::Downlink);
    let flows = vec![Qfi::new(QFI).unwrap()];
    let bearer = cu.user_plane.add(session, 0, BearerConfig::new(tx, rx, true, flows.clone())).unwrap();
    du.control.add_ue(1, du::Place { interface: 1, address: place }).unwrap();
    let to_cu = du::Tunnel {
        interface: 0,
        address: SocketAddr::new(address(10, 1), gtpu::PORT),
        teid: cu.user_plane.f1u_tunnel(bearer).teid,
    };
    let added = du.control.add_bearer(1, du::BearerSetup::new(LCID, to_cu)).unwrap();
    let at_du = Tunnel { address: address(10, 2), teid: added.teid };
    cu.user_plane.connect(session, bearer, at_du).unwrap();
    let id = ues.add_ue(NrCellId::new(CELL).unwrap(), uu, 1).unwrap();
    let (of_ue, _stats) = ues.add_session(id, flows[0]).unwrap();
    let (tx, rx) = pdcp(Direction::Uplink);
    let setup = ue::BearerSetup {
        lcid: LCID,
        drb: Drb { id: DrbId::new(1).unwrap(), downlink_header: true, uplink_header: true },
        default: true,
        flows,
        rlc: um::SnLength::Bits12,
        t_reassembly: Duration::from_millis(50),
        tx,
        rx,
    };
    ues.add_bearer(of_ue, setup).unwrap();
    let tun = tun_ns.enter(|| TunPort::create("tun0")).unwrap().unwrap();
    let links = Links::in_ns(&tun_ns).unwrap();
    links.set_mtu("tun0", UE_MTU).await.unwrap();
    links.up("tun0").await.unwrap();
    links.add_address("tun0", Cidr::host(UE.into())).await.unwrap();
    let all = Cidr::new(Ipv4Addr::UNSPECIFIED.into(), 0).unwrap();
    links.add_route(all, None, Some("tun0")).await.unwrap();
    devices.attach(of_ue, tun);

    let answered = Arc::<AtomicU64>::default();
    let responder = Responder {
        home: Slab::new(2 * VECTOR, 9000),
        cu: cu.user_plane.n3_tunnel(session),
        answered: Arc::clone(&answered),
    };
    let (ports, inputs) = port(&upf_ns, end(model.n3, "n3", 11, 2));
    let upf_worker = Worker::start("upf", responder, ports, inputs, poll).unwrap();
    Network {
        ue: tun_ns,
        cu,
        du,
        answered,
        session,
        bearer,
        _workers: vec![ue_worker, upf_worker],
        _namespaces: vec![cu_ns, du_ns, upf_ns, ue_ns],
        _folder: folder,
    }
}

/// `ping` of the server, with so many octets of payload; returns what it printed if all answers came, with the right octets.
async fn ping(network: &Network, count: u32, octets: u32) -> Result<String, String> {
    let output = Command::new("ping")
        .args(["-c", &count.to_string(), "-s", &octets.to_string(), "-i", "0.01", "-W", "2", "-M", "do"])
        .arg(SERVER.to_string())
        .namespace(&network.ue)
        .output(Duration::from_secs(30))
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let whole = text.contains(&format!("{count} packets transmitted, {count} received"));
    if whole && !text.contains("wrong data byte") { Ok(text) } else { Err(text) }
}

async fn passes(model: Model) {
    let network = network(model).await;
    // The first ones find no neighbours, and memifs that are not connected yet.
    let mut warm = false;
    for _ in 0..20 {
        warm = ping(&network, 1, 56).await.is_ok();
        if warm {
            break;
        }
    }
    assert!(warm, "{model:?}: no answer");
    // Answers to what was sent before there was one may still come.
    net::time::sleep(Duration::from_millis(200)).await;
    let before = network.answered.load(Relaxed);
    // A machine that is busy loses a frame between two veth devices now and then: each size passes whole at the second attempt.
    let mut repeated = 0;
    for octets in [0, 1, 56, 200, 1000, UE_MTU - 28] {
        if let Err(first) = ping(&network, 10, octets).await {
            repeated += 1;
            let again = ping(&network, 10, octets).await;
            again.unwrap_or_else(|text| panic!("{model:?}, {octets} octets:\n{first}\n{text}"));
        }
    }
    assert!(repeated <= 2, "{model:?}: {repeated} of 6 sizes lost packets");
    let answered = network.answered.load(Relaxed) - before;
    assert!((60..=60 + 10 * repeated).contains(&answered), "{model:?}: {answered}");
    let stats = network.cu.user_plane.bearer_stats(network.session, network.bearer).unwrap();
    let (up, down) = (stats.traffic.uplink.get(), stats.traffic.downlink.get());
    let all = network.answered.load(Relaxed);
    assert!(down.packets <= all && down.packets + 10 * repeated >= all, "{model:?}: {down:?} of {all}");
    // The device of the UE sends router solicitations of its own.
    assert!(up.packets >= down.packets && up.bytes >= down.bytes, "{model:?}: {up:?}, {down:?}");
    // A UE that the DU does not know any more hears nothing; the CU is told.
    network.du.control.remove_ue(1).unwrap();
    assert!(ping(&network, 1, 56).await.is_err(), "{model:?}");
}

#[tokio::test]
async fn ping_passes_with_kernel_sockets() {
    passes(Model { f1u: Backend::Kernel, n3: Backend::Kernel }).await;
}

#[tokio::test]
async fn ping_passes_with_bypass_on_f1u_only() {
    passes(Model { f1u: Backend::Memif, n3: Backend::Kernel }).await;
    passes(Model { f1u: Backend::AfXdp, n3: Backend::Kernel }).await;
}

#[tokio::test]
async fn ping_passes_with_bypass_from_end_to_end() {
    passes(Model { f1u: Backend::Memif, n3: Backend::Memif }).await;
    passes(Model { f1u: Backend::AfXdp, n3: Backend::AfXdp }).await;
}
