//! Three workers with each backend: sockets and queues by owner with the kernel's ports, packets that cross from worker to
//! worker with the others. Many sessions, both IP versions, both directions and several gNBs at once, on the real kernel in
//! namespaces.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // helpers of tests fail as tests do

#[path = "support/lab.rs"]
mod lab;
mod support;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lab::*;
use net::link::Links;
use net::netns::NetNs;
use packet::gtpu::{self, PduSession, Signalling};
use packet::{ipv4, protocol};
use pfcp::message::*;
use pfcp::*;
use pktio::udp::UdpPort;
use pktio::{Port, Vector};
use support::*;
use upf::interface::Backend;

const WORKERS: u32 = 3;
const SESSIONS: u32 = 24;
const GNBS: u32 = 3;
const ROUNDS: u32 = 30;
/// Packets of a session, IP version and direction in a round; of IPv4 one of them in two fragments.
const BURST: u32 = 4;
/// First payload octets: the number of the packet in its session, IP version and direction.
const NUMBER: usize = 4;

/// Held by the test whose UPF runs.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Default, Clone, Copy)]
struct Count {
    packets: u64,
    octets: u64,
}

impl Count {
    fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.octets += packet.len() as u64;
    }
}

struct Session {
    seid: u64,
    teid: u32,
    number: u32,
    uplink: Count,
    downlink: Count,
    /// Numbers of the next packets that arrive: IPv4 and IPv6, at the data network and at the gNB.
    next_up: [u32; 2],
    next_down: [u32; 2],
}

fn ue_v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(UE_V4) + number)
}

fn ue_prefix(number: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(UE_PREFIX.to_bits() + (u128::from(number) << 64))
}

/// An address of the UE, which changes with each packet: the /64 is the UE's.
fn ue_v6(number: u32, packet: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(ue_prefix(number).to_bits() | 1 << 48 | u128::from(packet))
}

fn gnb_address(number: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 200, 0, 2 + (number % GNBS) as u8]), gtpu::PORT)
}

/// An IPv4 packet in two fragments.
fn in_two(packet: &[u8], identification: u16) -> [Vec<u8>; 2] {
    let payload = &packet[20..];
    let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into();
    let header =
        ipv4::Header { identification, ..ipv4::Header::new(address(12), address(16), protocol::UDP) };
    [(0, 1u16 << 13, &payload[..400]), (400 / 8, 0, &payload[400..])].map(|(offset, more, part)| {
        let mut packet = header.build(part).unwrap();
        packet[6..8].copy_from_slice(&(more | offset).to_be_bytes());
        packet[10..12].fill(0);
        let sum = packet::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    })
}

/// The packets of one session in one round, in their order.
fn uplink(session: &Session, round: u32) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for n in 0..BURST {
        let number = round * BURST + n;
        let payload = |length| [&number.to_be_bytes()[..], &vec![number as u8; length]].concat();
        let v4 = udp(ue_v4(session.number).into(), SERVER_V4.into(), &payload(if n == 1 { 900 } else { 60 }));
        match n {
            1 => out.extend(in_two(&v4, number as u16)),
            _ => out.push(v4),
        }
        out.push(udp(ue_v6(session.number, number).into(), SERVER_V6.into(), &payload(100)));
    }
    out
}

/// Sends what each session has for its gNB, one packet of each session after another.
fn send_uplink(gnbs: &mut [UdpPort], sessions: &mut [Session], round: u32, upf: SocketAddr) {
    let packets: Vec<_> = sessions.iter().map(|session| uplink(session, round)).collect();
    for n in 0..packets[0].len() {
        for (gnb, port) in gnbs.iter_mut().enumerate() {
            let mut batch = Vector::new(SESSIONS as usize, 2048);
            for (session, packets) in sessions.iter_mut().zip(&packets) {
                if session.number % GNBS != gnb as u32 {
                    continue;
                }
                session.uplink.add(&packets[n]);
                assert!(batch.push(&packets[n], upf));
                let mut frame = batch.last_mut().unwrap();
                let length = frame.len();
                let container = Some(PduSession::Uplink { qfi: QFI });
                let taken = gtpu::encapsulate(frame.headroom(), session.teid, length, container).unwrap();
                assert!(frame.grow_front(taken));
            }
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            assert_eq!(port.transmit(&mut batch, &all).packets, all.len());
        }
    }
}

/// Sends to every UE, one datagram of each session after another.
fn send_downlink(servers: &[UdpSocket; 2], sessions: &[Session], round: u32, downlink: Downlink) {
    let Downlink { lengths, addresses_change } = downlink;
    for (n, length) in (0..).zip(lengths) {
        let number = round * BURST + n;
        let payload = |length| [&number.to_be_bytes()[..], &vec![number as u8; length]].concat();
        for session in sessions {
            let to = (ue_v4(session.number), 4000);
            servers[0].send_to(&payload(length), to).unwrap();
            let host = if addresses_change { number } else { 0 };
            servers[1].send_to(&payload(120), (ue_v6(session.number, host), 4000)).unwrap();
        }
    }
}

/// Takes what has arrived at the data network.
fn take_uplink(servers: &[UdpSocket; 2], sessions: &mut [Session]) {
    for (version, server) in servers.iter().enumerate() {
        let mut payload = [0; 2048];
        while let Ok((length, from)) = server.recv_from(&mut payload) {
            let of = |session: &&mut Session| match from.ip() {
                IpAddr::V4(from) => from == ue_v4(session.number),
                IpAddr::V6(from) => from.segments()[..4] == ue_prefix(session.number).segments()[..4],
            };
            let session = sessions.iter_mut().find(of).unwrap();
            let number = u32::from_be_bytes(payload[..NUMBER].try_into().unwrap());
            assert_eq!(number, session.next_up[version], "in order: session {}", session.number);
            assert!(payload[NUMBER..length].iter().all(|octet| *octet == number as u8));
            session.next_up[version] += 1;
        }
    }
}

/// Takes what has arrived at the gNBs. A later fragment must follow the first one of its packet.
fn take_downlink(gnbs: &mut [UdpPort], sessions: &mut [Session], open: &mut HashMap<u32, u16>) {
    for (gnb, port) in gnbs.iter_mut().enumerate() {
        let mut batch = Vector::new(64, 2048);
        while port.receive(&mut batch).unwrap() > 0 {
            for frame in batch.frames() {
                let message = gtpu::Packet::new(frame.packet()).unwrap();
                let packet = &frame.packet()[message.header_len()..];
                let session =
                    sessions.iter_mut().find(|session| session.number + 1 == message.teid()).unwrap();
                assert_eq!(session.number % GNBS, gnb as u32);
                session.downlink.add(packet);
                let v4 = packet[0] >> 4 == 4;
                let fragment = if v4 { u16::from_be_bytes([packet[6], packet[7]]) & 0x3FFF } else { 0 };
                let identification = u16::from_be_bytes([packet[4], packet[5]]);
                let more = fragment & 0x2000 != 0;
                let pending = if v4 { open.remove(&session.number) } else { None };
                if fragment & 0x1FFF != 0 {
                    assert_eq!(pending, Some(identification), "behind its first fragment");
                } else {
                    assert_eq!(pending, None, "all fragments of a packet follow each other");
                    let at = if v4 { 28 } else { 48 };
                    let number = u32::from_be_bytes(packet[at..at + NUMBER].try_into().unwrap());
                    let next = &mut session.next_down[usize::from(!v4)];
                    assert_eq!(number, *next, "in order: session {}", session.number);
                    *next += 1;
                }
                if more {
                    open.insert(session.number, identification);
                }
            }
        }
    }
}

/// How often each worker has waited for packets.
fn waits() -> Vec<u64> {
    let mut waits = Vec::new();
    for worker in 0..WORKERS {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let paths: Vec<_> = tasks.map(|task| task.unwrap().path()).collect();
        let named = |path: &&std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm"))
                .is_ok_and(|name| name.trim() == format!("upf-{worker}"))
        };
        let path = paths.iter().find(named).unwrap_or_else(|| panic!("no worker {worker}"));
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        waits.push(line.trim().parse().unwrap());
    }
    waits
}

/// Adds the gNBs' addresses, and lowers the data network's MTU: longer datagrams leave in fragments that the UPF need not
/// cut again.
async fn prepare(lab: &Lab) {
    let links = Links::in_ns(&lab.ran).unwrap();
    for gnb in 1..GNBS {
        links.add_address("n3", cidr(&format!("{}/24", gnb_address(gnb).ip()))).await.unwrap();
    }
    Links::in_ns(&lab.dn).unwrap().set_mtu("n6", 1300).await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn upf_address() -> SocketAddr {
    SocketAddr::new(N3_CORE.parse().unwrap(), gtpu::PORT)
}

#[test]
fn three_workers_keep_order_and_count_exactly() {
    let lab = runtime().block_on(async {
        let lab = Lab::new().await;
        prepare(&lab).await;
        lab
    });
    let mut config = config("gw0");
    config.gtpu = Some(upf_address());
    exchange(&lab, config, DOWNLINK, &["link_local"]);
}

/// What the data network sends.
#[derive(Clone, Copy)]
struct Downlink {
    /// Lengths of IPv4 datagrams; those beyond 1,272 leave in fragments.
    lengths: [usize; BURST as usize],
    /// Whether the addresses of a UE's /64 change with each packet.
    addresses_change: bool,
}

const DOWNLINK: Downlink = Downlink { lengths: [80, 1900, 80, 80], addresses_change: true };
/// Queues of virtual interfaces are chosen by flow, and between queues there is no order. Fragments have no ports, so here are no
/// datagrams but these.
const FLOWS: Downlink = Downlink { lengths: [1300, 1400, 1350, 1300], addresses_change: false };

/// Packets come to queues by their outer flow. Each worker owns a third of those in its queues.
#[test]
fn three_workers_share_the_queues_of_af_xdp() {
    let lab = runtime().block_on(async {
        let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let lab = Lab { core: ns(), ran: ns(), dn: ns(), ue: ns() };
        lab.connect_queues("n3", WORKERS).await;
        lab.connect_queues("n6", WORKERS).await;
        prepare(&lab).await;
        lab
    });
    let mut config = config("");
    config.gtpu = Some(upf_address());
    bypass(&mut config, Backend::AfXdp, ["n3", "n6"]);
    exchange(&lab, config.clone(), FLOWS, &["link_local"]);
    // The same addresses without the kernel.
    for (interface, network) in config.interfaces.iter_mut().zip([200, 201]) {
        let addresses = [format!("10.{network}.0.1/24"), format!("fd00:{network}::1/64")];
        interface.link.addresses = addresses.map(|address| cidr(&address)).to_vec();
        // The other side asks for them again, from which the UPF learns who it is.
        let (device, far) = (interface.link.device(), if network == 200 { &lab.ran } else { &lab.dn });
        for (namespace, what) in [(&lab.core, "address"), (far, "neighbour")] {
            let command = || Command::new("ip").args([what, "flush", "dev", device]).status().unwrap();
            assert!(namespace.enter(command).unwrap().success());
        }
    }
    exchange(&lab, config, FLOWS, &["link_local"]);
}

/// Each worker receives what comes from its queue of the TUN device into the frames of its own AF_XDP sockets.
#[test]
fn three_workers_have_queues_of_af_xdp_and_of_a_tun_device() {
    let lab = runtime().block_on(async {
        let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let lab = Lab { core: ns(), ran: ns(), dn: ns(), ue: ns() };
        lab.connect_queues("n3", WORKERS).await;
        lab.connect("n6").await;
        prepare(&lab).await;
        lab
    });
    let mut config = config("");
    config.gtpu = Some(upf_address());
    bypass(&mut config, Backend::AfXdp, ["n3", "gw0"]);
    config.interfaces[1].link.backend = Backend::Kernel;
    let downlink = Downlink { lengths: [80, 1272, 1271, 80], addresses_change: true };
    let stats = exchange(&lab, config, downlink, &["link_local"]);
    let sent = &stats["interfaces"]["n3"]["sent"];
    let [sent, copied] = ["packets", "copied"].map(|name| sent[name].as_u64().unwrap());
    // The UPF's own answers to echo requests are copied.
    assert!(sent >= u64::from(SESSIONS * 2 * ROUNDS * BURST), "{sent}");
    assert!(
        copied <= sent - u64::from(SESSIONS * 2 * ROUNDS * BURST) + OWN,
        "{copied} of {sent} were copied"
    );
}

/// As before, with neighbours that the UPF itself looks for, and that answer to any queue.
#[cfg(feature = "dpdk")]
#[test]
fn three_workers_share_the_queues_of_dpdk() {
    let lab = runtime().block_on(async {
        let lab = Lab::beside_the_kernel().await;
        prepare(&lab).await;
        lab
    });
    let device = |number: u32, name: &str| format!("net_af_packet{number},iface={name},qpairs={WORKERS}");
    let (n3, n6) = (device(4, "n3"), device(5, "n6"));
    let mut config = config("");
    config.gtpu = Some(upf_address());
    bypass(&mut config, Backend::Dpdk, [&n3, &n6]);
    config.dpdk = serde_json::from_str(r#"{"huge_pages": false, "memory_mb": 512}"#).unwrap();
    for (interface, network) in config.interfaces.iter_mut().zip([200, 201]) {
        let addresses = [format!("10.{network}.0.1/24"), format!("fd00:{network}::1/64")];
        interface.link.addresses = addresses.map(|address| cidr(&address)).to_vec();
    }
    // The kernels of the other side say hello to their neighbours, and send multicast.
    exchange(&lab, config.clone(), FLOWS, &["link_local", "n3_not_served"]);
    // Without so many queues the UPF does not start.
    config.workers.count = Some(WORKERS + 1);
    let core = lab.core.runtime(1).unwrap();
    let error = core.block_on(core.spawn(upf::start(config))).unwrap().unwrap_err().to_string();
    assert!(
        error.contains("does not have 4 pairs of queues") && error.contains("upf.workers.count"),
        "{error}"
    );
}

/// Sends in both directions through a UPF with this configuration and [`WORKERS`] workers. Each packet arrives, in order
/// and counted for its session. Packets of others may be dropped for the reasons `others`. Returns the UPF's counters.
fn exchange(lab: &Lab, mut config: upf::Config, downlink: Downlink, others: &[&str]) -> serde_json::Value {
    // Workers are known by the names of their threads, of which the tests of this program have the same.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let upf = upf_address();
    config.workers.count = Some(WORKERS);
    let core = lab.core.runtime(2).unwrap();
    let running = core.block_on(core.spawn(upf::start(config.clone()))).unwrap().unwrap();
    let handle = running.handle();
    let socket = lab.core.enter(|| UdpSocket::bind((SMF, 8805))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut smf = Smf { socket, upf: config.pfcp, sequence: 0, started: 100 };
    smf.associate(100);
    let mut sessions: Vec<Session> = (0..SESSIONS).map(|number| establish(&mut smf, number)).collect();

    let bind = |gnb| lab.ran.enter(|| UdpPort::bind(gnb_address(gnb), false)).unwrap().unwrap();
    let mut gnbs: Vec<UdpPort> = (0..GNBS).map(bind).collect();
    gnbs.iter_mut().for_each(UdpPort::keep_tunnels_apart);
    let server = |address: IpAddr| {
        let socket = lab.dn.enter(|| UdpSocket::bind((address, 5000))).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let servers = [server(SERVER_V4.into()), server(SERVER_V6.into())];
    for port in &mut gnbs {
        expect_echo(port, upf);
    }
    wait_for("the data network", || {
        ping(&lab.dn, "10.201.0.1", 1, 56) && ping(&lab.dn, "fd00:201::1", 1, 56)
    });
    let before = waits();
    let mut open = HashMap::new();
    for round in 0..ROUNDS {
        send_uplink(&mut gnbs, &mut sessions, round, upf);
        send_downlink(&servers, &sessions, round, downlink);
        let all = (round + 1) * BURST;
        wait_for(&format!("every packet of round {round} arrives"), || {
            take_uplink(&servers, &mut sessions);
            take_downlink(&mut gnbs, &mut sessions, &mut open);
            sessions.iter().all(|session| session.next_up == [all; 2] && session.next_down == [all; 2])
                && open.is_empty()
        });
    }
    let after = waits();
    assert!(
        before.iter().zip(&after).all(|(before, after)| after > before),
        "{before:?} {after:?}: all have worked"
    );
    let (stats, graph) = (handle.stats(), handle.graph());
    // Packets belong to another worker than the one that has received them, two of three on average. Which queue a flow has, and so
    // how many it is, depends on hashes and on what else the kernel receives.
    let node = |name: &str| graph.as_array().unwrap().iter().find(|node| node["node"] == name).unwrap();
    let [crossed, received] = ["cross", "receive"].map(|name| node(name)["packets"].as_u64().unwrap());
    assert_eq!(crossed > received / 10, !config.interfaces.is_empty(), "{crossed} of {received}");
    let drops = stats["drops"].as_object().unwrap();
    assert!(drops.keys().all(|reason| others.contains(&reason.as_str())), "{stats}");
    for session in &sessions {
        let Message::SessionDeletionResponse(response) = smf.ask(session.seid, SessionDeletionRequest {})
        else {
            panic!("the session is deleted");
        };
        let volume = response.usage_reports[0].volume.unwrap();
        let counted = [volume.uplink_packets, volume.uplink, volume.downlink_packets, volume.downlink];
        let Session { uplink, downlink, .. } = session;
        let passed = [uplink.packets, uplink.octets, downlink.packets, downlink.octets];
        assert_eq!(counted, passed.map(Some), "session {}", session.number);
    }
    core.block_on(running.stop());
    stats
}

/// The UPF answers a gNB, which it knows by then.
fn expect_echo(gnb: &mut UdpPort, upf: SocketAddr) {
    let mut batch = Vector::new(64, 2048);
    let mut echoed = false;
    wait_for("an answer", || {
        batch.clear();
        assert!(batch.push(&Signalling::EchoRequest { sequence: 1 }.build(), upf));
        gnb.transmit(&mut batch, &[0]);
        net::time::sleep_thread(Duration::from_millis(20));
        while gnb.receive(&mut batch).unwrap() > 0 {
            echoed = true;
        }
        echoed
    });
}

fn establish(smf: &mut Smf, number: u32) -> Session {
    let mut request = establishment(u64::from(number) + 1);
    request.create_qers[0].mbr = None;
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            (ue.ipv4, ue.ipv6) = (Some(ue_v4(number)), Some(ue_prefix(number)));
        }
    }
    let IpAddr::V4(gnb) = gnb_address(number).ip() else { panic!("an IPv4 address") };
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((number + 1, gnb)));
    let (seid, teid) = smf.establish_as(request);
    let (uplink, downlink) = (Count::default(), Count::default());
    Session { seid, teid, number, uplink, downlink, next_up: [0; 2], next_down: [0; 2] }
}

/// What cannot be is said when the UPF starts, and before packets are lost.
#[test]
fn impossible_numbers_of_workers_are_named() {
    let namespace = NetNs::new().unwrap();
    let core = namespace.runtime(1).unwrap();
    let start = |change: &dyn Fn(&mut upf::Config)| {
        let mut config = config("gw0");
        change(&mut config);
        core.block_on(core.spawn(upf::start(config))).unwrap()
    };
    let taken =
        namespace.enter(|| UdpPort::bind_group("127.0.0.7:2152".parse().unwrap(), 2)).unwrap().unwrap();
    let error = start(&|config| config.workers.count = Some(2)).unwrap_err().to_string();
    assert!(error.contains("127.0.0.7:2152") && error.contains("upf.gtpu"), "{error}");
    drop(taken);
    for (count, cores, said) in [
        (Some(0), vec![], "upf.workers: count must be between 1 and 256, not 0"),
        (Some(257), vec![], "not 257"),
        (Some(2), vec![0], "2 workers need 2 cores, not 1"),
        (Some(2), vec![0, 0], "core 0 appears twice"),
        (Some(1), vec![100_000], "core 100000 does not exist"),
        (None, vec![0], "there are 2 workers; give as many cores, not 1"),
    ] {
        let change =
            |config: &mut upf::Config| (config.workers.count, config.workers.cores) = (count, cores.clone());
        let error = start(&change).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    // How many rings a memif has is up to its peer.
    for (backend, device) in
        [(Backend::Memif, "memif0,socket=/tmp/x"), (Backend::Dpdk, "net_memif0,role=client")]
    {
        let error = start(&|config| {
            bypass(config, backend, [device, device]);
            config.workers.count = Some(2);
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("count must be 1 with n3, as a memif has one pair of rings"), "{error}");
    }
    let first = pktio::poll::cores().unwrap()[0];
    let pinned =
        start(&|config| (config.workers.count, config.workers.cores) = (Some(1), vec![first])).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mut paths = tasks
        .filter(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "upf-0"));
    let allowed = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).unwrap();
        status.lines().find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:")?.trim().to_owned()))
    };
    assert!(paths.any(|path| allowed(path) == Some(first.to_string())));
    core.block_on(pinned.stop());
}
