//! The whole UPF on the real kernel: namespaces for core, RAN, data network and UE; PFCP and GTP-U spoken by this
//! test; traffic by system programs. Needs root, or a user namespace with networks of its own.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // helpers of tests fail as tests do

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::gtpu::{self, PduSession};
use pfcp::message::*;
use pfcp::*;
use pktio::poll::Poller;
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{Batch, Port};
use support::*;
use upf::interface::{Backend, InterfaceConfig};

const N3_CORE: &str = "10.200.0.1";
const N3_GNB: &str = "10.200.0.2";

/// A CP function that asks and waits.
struct Smf {
    socket: UdpSocket,
    upf: SocketAddr,
    sequence: u32,
}

impl Smf {
    fn ask(&mut self, seid: u64, message: impl Into<Message>) -> Message {
        self.sequence += 1;
        let mut out = Vec::new();
        message.into().encode(seid, self.sequence, &mut out).expect("it fits");
        self.socket.send_to(&out, self.upf).expect("sent");
        let mut datagram = [0; 4096];
        loop {
            let length = self.socket.recv(&mut datagram).expect("the UPF answers");
            let (header, message) = Message::decode(&datagram[..length]).expect("the UPF sends valid PFCP");
            // Requests of the UPF (heartbeats) are none of this test's business.
            if header.sequence == self.sequence && !message.message_type().is_request() {
                return message;
            }
        }
    }

    fn associate(&mut self, started: u32) {
        let request = AssociationSetupRequest {
            node_id: NodeId::Ipv4(SMF),
            recovery_time_stamp: NtpSeconds(started),
            ..Default::default()
        };
        match self.ask(0, request) {
            Message::AssociationSetupResponse(response) => {
                assert_eq!(response.cause, Cause::ACCEPTED);
                assert!(response.up_function_features.expect("told").contains(UpFunctionFeatures::FTUP));
            }
            other => panic!("{other:?}"),
        }
    }

    fn set_downlink(&mut self, seid: u64, action: ApplyAction) {
        let far = UpdateFar { far_id: FarId(2), apply_action: Some(action), ..Default::default() };
        let request = SessionModificationRequest { update_fars: vec![far], ..Default::default() };
        match self.ask(seid, request) {
            Message::SessionModificationResponse(response) => assert_eq!(response.cause, Cause::ACCEPTED),
            other => panic!("{other:?}"),
        }
    }

    /// Our SEID at the UPF, and the TEID of the tunnel on N3.
    fn establish(&mut self) -> (u64, u32) {
        let mut request = establishment(1);
        request.create_fars[1] =
            forward(2, DestinationInterface::Access, Some((GNB_TEID, N3_GNB.parse().expect("an address"))));
        match self.ask(0, request) {
            Message::SessionEstablishmentResponse(response) => {
                assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
                let teid = match response.created_pdrs[0].f_teid {
                    Some(FTeid::Assigned { teid, .. }) => teid,
                    other => panic!("{other:?}"),
                };
                (response.up_f_seid.expect("accepted").seid, teid)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A gNB with one UE: moves packets between the UE's device and the tunnel.
struct Gnb {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Gnb {
    fn start(tun: &TunPort, n3: &UdpPort, upf: SocketAddr, teid: u32) -> Gnb {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut from_ue, mut to_upf) = (tun.share(), n3.share());
        let up = pump(&stop, tun.share(), move |batch| {
            for buffer in batch.buffers_mut() {
                let length = buffer.len();
                let container = Some(PduSession::Uplink { qfi: QFI });
                let taken = gtpu::encapsulate(buffer.headroom(), teid, length, container).expect("room");
                assert!(buffer.grow_front(taken));
                buffer.peer = upf;
            }
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            to_upf.transmit(batch, &all);
        });
        let down = pump(&stop, n3.share(), move |batch| {
            for buffer in batch.buffers_mut() {
                let packet = gtpu::Packet::new(buffer.packet()).expect("the UPF sends valid GTP-U");
                assert_eq!(packet.teid(), GNB_TEID);
                let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
                assert_eq!(packet.pdu_session(), container);
                let header = packet.header_len();
                buffer.trim_front(header);
            }
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            from_ue.transmit(batch, &all);
        });
        Gnb { stop, threads: vec![up, down] }
    }
}

impl Drop for Gnb {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn pump(
    stop: &Arc<AtomicBool>,
    mut port: impl Port + 'static,
    mut forward: impl FnMut(&mut Batch) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut poller = Poller::new().expect("epoll");
        poller.add(port.fd().expect("a descriptor"), 0).expect("added");
        let mut batch = Batch::new(64, 2048);
        while !stop.load(Ordering::Relaxed) {
            poller.wait(Some(50), |_| ()).expect("waited");
            while port.receive(&mut batch).expect("received") > 0 {
                forward(&mut batch);
            }
        }
    })
}

/// The namespaces; everything in them goes when they do.
struct Lab {
    core: NetNs,
    ran: NetNs,
    dn: NetNs,
    ue: NetNs,
}

fn cidr(text: &str) -> net::link::Cidr {
    text.parse().expect("tests use valid prefixes")
}

impl Lab {
    async fn new() -> Lab {
        let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let lab = Lab { core: ns(), ran: ns(), dn: ns(), ue: ns() };
        let core = Links::in_ns(&lab.core).expect("netlink");
        for (name, peer, namespace, prefix) in [("n3", "n3", &lab.ran, "200"), ("n6", "n6", &lab.dn, "201")] {
            core.add_veth(name, peer, namespace).await.expect("veth");
            let far = Links::in_ns(namespace).expect("netlink");
            for (links, host) in [(&core, 1), (&far, 2)] {
                links.up(name).await.expect("up");
                links.add_address(name, cidr(&format!("10.{prefix}.0.{host}/24"))).await.expect("address");
                links.add_address(name, cidr(&format!("fd00:{prefix}::{host}/64"))).await.expect("address");
            }
        }
        let dn = Links::in_ns(&lab.dn).expect("netlink");
        dn.add_route(cidr("10.45.0.0/16"), Some("10.201.0.1".parse().expect("ip")), None)
            .await
            .expect("route");
        dn.add_route(cidr("fd00:45::/48"), Some("fd00:201::1".parse().expect("ip")), None)
            .await
            .expect("route");
        lab
    }

    async fn ue_device(&self) -> TunPort {
        let tun = self.ue.enter(|| TunPort::create("ue0")).expect("entered").expect("created");
        let links = Links::in_ns(&self.ue).expect("netlink");
        links.set_mtu("ue0", 1400).await.expect("mtu");
        links.up("ue0").await.expect("up");
        links.add_address("ue0", cidr(&format!("{UE_V4}/32"))).await.expect("address");
        links.add_address("ue0", cidr(&format!("{UE_V6}/128"))).await.expect("address");
        links.add_route(cidr("0.0.0.0/0"), None, Some("ue0")).await.expect("route");
        links.add_route(cidr("::/0"), None, Some("ue0")).await.expect("route");
        tun
    }
}

fn ping(namespace: &NetNs, target: &str, count: u32, size: u32) -> bool {
    let output = namespace
        .enter(|| {
            Command::new("ping")
                .args(["-c", &count.to_string(), "-i", "0.05", "-W", "2", "-s", &size.to_string(), target])
                .output()
        })
        .expect("entered")
        .expect("ping is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        eprintln!("{text}{}", String::from_utf8_lossy(&output.stderr));
    }
    text.contains(" 0% packet loss")
}

#[test]
fn a_ue_reaches_the_data_network_through_the_upf() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let lab = runtime.block_on(Lab::new());
    let mut config = config("gw0");
    config.gtpu = SocketAddr::new(N3_CORE.parse().expect("an address"), gtpu::PORT);
    let core = lab.core.runtime(2).expect("a runtime in the namespace");
    // Spawned, so that everything happens on threads inside the namespace.
    let upf = core.block_on(core.spawn(upf::start(config.clone()))).expect("no panic").expect("it starts");
    let handle = upf.handle();

    let socket = lab.core.enter(|| UdpSocket::bind((SMF, 8805))).expect("entered").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    let mut smf = Smf { socket, upf: config.pfcp, sequence: 0 };
    match smf.ask(0, establishment(1)) {
        Message::SessionEstablishmentResponse(response) => assert_eq!(response.cause, Cause::NO_ASSOCIATION),
        other => panic!("{other:?}"),
    }
    smf.associate(100);
    let (seid, teid) = smf.establish();

    let tun = runtime.block_on(lab.ue_device());
    let n3 = lab
        .ran
        .enter(|| UdpPort::bind(SocketAddr::new(N3_GNB.parse().expect("an address"), gtpu::PORT), false))
        .expect("entered")
        .expect("bound");
    let gnb = Gnb::start(&tun, &n3, config.gtpu, teid);

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");
    assert!(ping(&lab.ue, "10.45.0.1", 1, 56), "the gateway itself");

    let stats = handle.stats();
    assert!(stats["interfaces"]["n6"]["sent"]["packets"].as_u64().expect("a number") >= 27, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    let before = stats["interfaces"]["n3"]["received"]["packets"].as_u64().expect("a number");
    let sessions = core.block_on(handle.sessions());
    assert_eq!(sessions[0]["ipv4"][0], "10.45.0.2");
    assert_eq!(sessions[0]["dnn"], "internet");
    assert!(sessions[0]["uplink"]["packets"].as_u64().expect("a number") >= 27, "{sessions}");
    assert_eq!(core.block_on(handle.status())["sessions"], 1);

    // The machine answers pings and offers services, but not its tunnels and control interfaces.
    assert!(ping(&lab.ue, N3_CORE, 3, 56), "the machine");
    let bound = |namespace: &NetNs, address: &str| {
        let socket = namespace.enter(|| UdpSocket::bind(address)).expect("entered").expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
        socket
    };
    let service = bound(&lab.core, "10.201.0.1:5353");
    let exposed = bound(&lab.core, "10.201.0.1:8805");
    let client = bound(&lab.ue, "10.45.0.2:4000");
    for to in ["10.200.0.1:2152", "10.201.0.1:8805", "10.201.0.1:5353"] {
        client.send_to(b"from a UE", to).expect("sent");
    }
    let mut datagram = [0; 64];
    assert_eq!(service.recv(&mut datagram).expect("the service is reached"), 9);
    exposed.set_nonblocking(true).expect("set");
    assert!(exposed.recv(&mut datagram).is_err(), "sent before what the service has received");
    let drops = handle.stats()["drops"].clone();
    assert_eq!(drops["core_interface"], 2, "{drops}");
    assert!(drops.get("gtpu_malformed").is_none(), "{drops}");

    // While the path is not there packets wait, and none is lost when it comes.
    smf.set_downlink(seid, ApplyAction::BUFF);
    let waiting = {
        let ue = lab.ue.clone();
        std::thread::spawn(move || ping(&ue, "10.201.0.2", 10, 56))
    };
    for _ in 0..500 {
        if handle.stats()["interfaces"]["n3"]["received"]["packets"].as_u64() > Some(before + 5) {
            break;
        }
        net::time::sleep_thread(Duration::from_millis(2));
    }
    smf.set_downlink(seid, ApplyAction::FORW);
    assert!(waiting.join().expect("no panic"), "buffered replies arrive");

    // Volume is reported at the end, and nothing passes afterwards.
    match smf.ask(seid, SessionDeletionRequest {}) {
        Message::SessionDeletionResponse(response) => {
            assert_eq!(response.cause, Cause::ACCEPTED);
            let volume = response.usage_reports[0].volume.expect("measured");
            assert!(
                volume.uplink_packets.expect("counted") >= 27 && volume.downlink.expect("counted") > 4000
            );
        }
        other => panic!("{other:?}"),
    }
    drop(gnb);
    assert!(!ping(&lab.ue, "10.201.0.2", 1, 56));

    // A CP function that restarts loses its sessions.
    smf.establish();
    smf.associate(100);
    assert_eq!(core.block_on(handle.status())["sessions"], 1, "asking again is no restart");
    smf.associate(101);
    assert_eq!(core.block_on(handle.status())["sessions"], 0);

    core.block_on(async move { upf.stop().await });
    let left = lab.core.enter(|| nix_index("gw0")).expect("entered");
    assert!(!left, "the device goes with the UPF");
    let status = core.block_on(handle.status());
    assert_eq!(status["running"], false);
}

/// N3 and N6 by AF_XDP on interfaces that stay the kernel's (UP-2): the same traffic, past the kernel's stack.
#[test]
fn a_ue_reaches_the_data_network_by_af_xdp() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let lab = runtime.block_on(Lab::new());
    let mut config = config("");
    config.gtpu = SocketAddr::new(N3_CORE.parse().expect("an address"), gtpu::PORT);
    let on = |device: &str| InterfaceConfig {
        backend: Backend::AfXdp,
        device: Some(device.to_owned()),
        ..InterfaceConfig::default()
    };
    config.n3 = on("n3");
    config.dnn[0].n6 = on("n6");
    let core = lab.core.runtime(2).expect("a runtime in the namespace");
    let upf = core.block_on(core.spawn(upf::start(config.clone()))).expect("no panic").expect("it starts");
    let handle = upf.handle();

    let socket = lab.core.enter(|| UdpSocket::bind((SMF, 8805))).expect("entered").expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
    let mut smf = Smf { socket, upf: config.pfcp, sequence: 0 };
    smf.associate(100);
    let (_, teid) = smf.establish();
    let tun = runtime.block_on(lab.ue_device());
    let n3 = lab
        .ran
        .enter(|| UdpPort::bind(SocketAddr::new(N3_GNB.parse().expect("an address"), gtpu::PORT), false))
        .expect("entered")
        .expect("bound");
    let gnb = Gnb::start(&tun, &n3, config.gtpu, teid);

    assert!(ping(&lab.ue, "10.201.0.2", 10, 56), "IPv4");
    assert!(ping(&lab.ue, "fd00:201::2", 10, 56), "IPv6");
    assert!(ping(&lab.ue, "10.201.0.2", 3, 1372), "a full packet");
    assert!(ping(&lab.dn, "10.45.0.2", 3, 56), "the other way round");
    // The rest of the host's traffic on these interfaces is the kernel's as before.
    assert!(ping(&lab.dn, "10.201.0.1", 3, 56), "the machine itself");
    assert!(ping(&lab.ran, "10.200.0.1", 3, 56), "the machine itself");

    let stats = handle.stats();
    assert!(stats["interfaces"]["n6"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    assert!(stats["interfaces"]["n3"]["sent"]["packets"].as_u64().expect("a number") >= 26, "{stats}");
    let drops = stats["drops"].as_object().expect("an object");
    assert!(drops.keys().all(|reason| reason == "link_local"), "{stats}");
    drop(gnb);
    core.block_on(async move { upf.stop().await });
    // The interfaces are free again, and the kernel's alone.
    let again = core.block_on(core.spawn(upf::start(config))).expect("no panic").expect("it starts again");
    core.block_on(async move { again.stop().await });
}

/// Whether the calling thread's namespace has an interface of this name.
fn nix_index(name: &str) -> bool {
    std::fs::read_to_string("/proc/thread-self/net/dev").is_ok_and(|text| text.contains(&format!("{name}:")))
}

#[test]
fn what_is_in_the_way_is_named() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let namespace = NetNs::new().expect("tests run with CAP_SYS_ADMIN");
    let core = namespace.runtime(1).expect("a runtime in the namespace");
    let start = |config: upf::Config| core.block_on(core.spawn(upf::start(config))).expect("no panic");

    let taken = namespace.enter(|| UdpSocket::bind("127.0.0.7:2152")).expect("entered").expect("bound");
    let error = start(config("gw0")).expect_err("the address is in use").to_string();
    assert!(error.contains("127.0.0.7:2152") && error.contains("upf.gtpu"), "{error}");
    drop(taken);
    let error = start(config("a name too long for it")).expect_err("a bad name").to_string();
    assert!(error.contains("interface name"), "{error}");
    let mut foreign = config("gw0");
    foreign.gtpu = "192.0.2.1:2152".parse().expect("an address");
    assert!(start(foreign).expect_err("not ours").to_string().contains("192.0.2.1"));
    let mut nowhere = config("gw0");
    nowhere.gtpu = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 2152);
    assert!(start(nowhere).expect_err("no address").to_string().contains("gNBs"));
    // After all these failures nothing is left in the way.
    let upf = start(config("gw0")).expect("it starts");
    core.block_on(upf.stop());
    drop(runtime);
}
