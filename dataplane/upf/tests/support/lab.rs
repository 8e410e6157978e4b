//! A network for one UPF: namespaces for core, RAN, data network and UE, a CP function that asks and waits, and a gNB
//! with one UE.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "each binary uses its part; helpers of tests"
)]

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::gtpu::{self, PduSession};
use pfcp::message::*;
use pfcp::*;
use pktio::capture::{Capture, Point};
use pktio::poll::Poller;
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{Port, Vector};

use upf::{Config, Upf};

use super::support::*;

pub const N3_CORE: &str = "10.200.0.1";
pub const N3_GNB: &str = "10.200.0.2";

/// Waits end after this.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = net::time::now_std() + PATIENCE;
    while !holds() {
        assert!(net::time::now_std() < deadline, "{what}: not within {PATIENCE:?}");
        net::time::sleep_thread(Duration::from_millis(5));
    }
}

/// Most datagrams that [`compare`] sends again. A kernel that is busy loses some of a burst, and DPDK's `net_af_packet` says nothing.
const SENT_AGAIN: usize = 40;

/// Sends datagrams from one socket to the other, some at a time and of all sizes up to `longest`, and compares them with those
/// that arrive. Kernels may exchange some of them on their way.
#[track_caller]
pub fn compare(from: &UdpSocket, to: &UdpSocket, longest: usize) {
    let address = to.local_addr().expect("bound");
    to.set_read_timeout(Some(PATIENCE / 4)).expect("set");
    let datagram = |number: usize| -> Vec<u8> {
        let length = [0, 1, 22, 23, longest - 1, longest, number * 389 % longest][number % 7];
        (0..length).map(|at| (at.wrapping_mul(number | 1) >> 2) as u8 ^ number as u8).collect()
    };
    let send = |datagram: &Vec<u8>| {
        assert_eq!(from.send_to(datagram, address).expect("sent"), datagram.len());
    };
    let mut next = 0;
    // Datagrams that were sent again, and may come twice.
    let mut again: Vec<Vec<u8>> = Vec::new();
    for burst in (1..40).chain([1, 1, 40]) {
        let mut missing: Vec<Vec<u8>> = (next..next + burst).map(datagram).collect();
        missing.iter().for_each(send);
        while !missing.is_empty() {
            let mut received = vec![0; longest + 1];
            match to.recv(&mut received) {
                Ok(length) => received.truncate(length),
                Err(error) => {
                    again.extend_from_slice(&missing);
                    let what = format!("{} of {burst} from {next} on: {error}", missing.len());
                    assert!(again.len() <= SENT_AGAIN, "{what}");
                    missing.iter().for_each(send);
                    continue;
                }
            }
            let list = if missing.contains(&received) { &mut missing } else { &mut again };
            let at = list.iter().position(|datagram| *datagram == received);
            list.swap_remove(at.unwrap_or_else(|| panic!("nobody sent this: {burst} from {next} on")));
        }
        next += burst;
    }
}

/// Most packets that an interface copies because the UPF itself makes them: Router Advertisements, answers to packets that are too
/// long.
pub const OWN: u64 = 9;

/// How many packets an interface of the UPF has sent, and how many of them it had to copy.
pub fn sent_and_copied(handle: &upf::Handle, interface: &str) -> (u64, u64) {
    let sent = &handle.stats()["interfaces"][interface]["sent"];
    let number = |name: &str| sent[name].as_u64().expect("a number");
    (number("packets"), number("copied"))
}

/// A CP function that asks and waits.
pub struct Smf {
    pub socket: UdpSocket,
    pub upf: SocketAddr,
    pub sequence: u32,
    /// Its recovery time stamp, which it answers heartbeats with while it waits.
    pub started: u32,
}

impl Smf {
    pub fn ask(&mut self, seid: u64, message: impl Into<Message>) -> Message {
        self.sequence += 1;
        let mut out = Vec::new();
        message.into().encode(seid, self.sequence, &mut out).expect("it fits");
        self.socket.send_to(&out, self.upf).expect("sent");
        let mut datagram = [0; 4096];
        loop {
            let length = self.socket.recv(&mut datagram).expect("the UPF answers");
            let (header, message) = Message::decode(&datagram[..length]).expect("the UPF sends valid PFCP");
            if let Message::HeartbeatRequest(_) = message {
                let response = HeartbeatResponse { recovery_time_stamp: NtpSeconds(self.started) };
                out.clear();
                Message::from(response).encode(0, header.sequence, &mut out).expect("it fits");
                self.socket.send_to(&out, self.upf).expect("sent");
            }
            if header.sequence == self.sequence && !message.message_type().is_request() {
                return message;
            }
        }
    }

    pub fn associate(&mut self, started: u32) {
        self.started = started;
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

    pub fn set_downlink(&mut self, seid: u64, action: ApplyAction) {
        self.modify(seid, update_far(2, action));
    }

    pub fn modify(&mut self, seid: u64, request: SessionModificationRequest) {
        match self.ask(seid, request) {
            Message::SessionModificationResponse(response) => assert_eq!(response.cause, Cause::ACCEPTED),
            other => panic!("{other:?}"),
        }
    }

    /// Our SEID at the UPF, and the TEID of the tunnel on N3.
    pub fn establish(&mut self) -> (u64, u32) {
        self.establish_by(establishment(1))
    }

    /// The same for other rules, whose downlink goes to the gNB here.
    pub fn establish_by(&mut self, mut request: SessionEstablishmentRequest) -> (u64, u32) {
        request.create_fars[1] =
            forward(2, DestinationInterface::Access, Some((GNB_TEID, N3_GNB.parse().expect("an address"))));
        self.establish_as(request)
    }

    /// The same for rules as they are.
    pub fn establish_as(&mut self, request: SessionEstablishmentRequest) -> (u64, u32) {
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
pub struct Gnb {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Gnb {
    pub fn start(tun: &TunPort, n3: &UdpPort, upf: SocketAddr, teid: u32) -> Gnb {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut from_ue, mut to_upf) = (tun.share(), n3.share());
        let up = pump(&stop, tun.share(), move |batch| {
            for mut buffer in batch.frames_mut() {
                let length = buffer.len();
                let container = Some(PduSession::Uplink { qfi: QFI });
                let taken = gtpu::encapsulate(buffer.headroom(), teid, length, container).expect("room");
                assert!(buffer.grow_front(taken));
                *buffer.peer = upf;
            }
            let all: Vec<u16> = (0..batch.len() as u16).collect();
            to_upf.transmit(batch, &all);
        });
        let down = pump(&stop, n3.share(), move |batch| {
            for mut buffer in batch.frames_mut() {
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
    mut forward: impl FnMut(&mut Vector) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut poller = Poller::new().expect("epoll");
        poller.add(port.fd().expect("a descriptor"), 0).expect("added");
        let mut batch = Vector::new(64, 2048);
        while !stop.load(Ordering::Relaxed) {
            poller.wait(Some(50), |_| ()).expect("waited");
            while port.receive(&mut batch).expect("received") > 0 {
                forward(&mut batch);
            }
        }
    })
}

/// The namespaces; everything in them is deleted with them.
pub struct Lab {
    pub core: NetNs,
    pub ran: NetNs,
    pub dn: NetNs,
    pub ue: NetNs,
}

pub fn cidr(text: &str) -> net::link::Cidr {
    text.parse().expect("tests use valid prefixes")
}

impl Lab {
    pub async fn new() -> Lab {
        let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let lab = Lab { core: ns(), ran: ns(), dn: ns(), ue: ns() };
        lab.connect("n3").await;
        lab.connect("n6").await;
        lab
    }

    /// Makes the pair of interfaces that is N3, or N6.
    pub async fn connect(&self, name: &str) {
        match name {
            "n3" => self.connect_to(name, &self.ran, 200).await,
            _ => {
                self.connect_to(name, &self.dn, 201).await;
                self.route_ues(&self.dn, 201).await;
            }
        }
    }

    /// Makes a pair of interfaces to a namespace, in networks of this number.
    pub async fn connect_to(&self, name: &str, namespace: &NetNs, prefix: u8) {
        let core = Links::in_ns(&self.core).expect("netlink");
        core.add_veth(name, name, namespace).await.expect("veth");
        // Without duplicate address detection, as with permanently configured addresses.
        let keep = format!("net.ipv6.conf.{name}.keep_addr_on_down");
        net::sysctl::set_in(&self.core, &keep, "1").expect("set");
        let far = Links::in_ns(namespace).expect("netlink");
        for (links, host) in [(&core, 1), (&far, 2)] {
            links.up(name).await.expect("up");
            links.add_address(name, cidr(&format!("10.{prefix}.0.{host}/24"))).await.expect("address");
            links.add_address(name, cidr(&format!("fd00:{prefix}::{host}/64"))).await.expect("address");
        }
    }

    /// N3, or N6, as interfaces with so many queues.
    pub async fn connect_queues(&self, name: &str, queues: u32) {
        let (far, prefix) = if name == "n3" { (&self.ran, 200) } else { (&self.dn, 201) };
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        let arguments = format!("link add {name} {queues} type veth peer name far {queues}");
        let mut command = Command::new("ip");
        command.args(arguments.split(' '));
        let ran = self.core.enter(|| command.status().expect("ip is installed"));
        assert!(ran.expect("entered").success(), "ip {arguments}");
        let core = Links::in_ns(&self.core).expect("netlink");
        core.move_to("far", far).await.expect("moved");
        Links::in_ns(far).expect("netlink").rename("far", name).await.expect("renamed");
        let far = Links::in_ns(far).expect("netlink");
        for (links, host) in [(&core, 1), (&far, 2)] {
            links.up(name).await.expect("up");
            links.add_address(name, cidr(&format!("10.{prefix}.0.{host}/24"))).await.expect("address");
            links.add_address(name, cidr(&format!("fd00:{prefix}::{host}/64"))).await.expect("address");
        }
        if name == "n6" {
            self.route_ues(&self.dn, prefix).await;
        }
    }

    /// N3 and N6 as veth pairs whose near ends are not the kernel's: it has no addresses there.
    pub async fn beside_the_kernel() -> Lab {
        let ns = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let lab = Lab { core: ns(), ran: ns(), dn: ns(), ue: ns() };
        let core = Links::in_ns(&lab.core).expect("netlink");
        for (name, far, prefix) in [("n3", &lab.ran, 200), ("n6", &lab.dn, 201)] {
            core.add_veth(name, name, far).await.expect("veth");
            core.up(name).await.expect("up");
            let links = Links::in_ns(far).expect("netlink");
            links.up(name).await.expect("up");
            links.add_address(name, cidr(&format!("10.{prefix}.0.2/24"))).await.expect("address");
            links.add_address(name, cidr(&format!("fd00:{prefix}::2/64"))).await.expect("address");
        }
        lab.route_ues(&lab.dn, 201).await;
        lab
    }

    /// Adds the routes from the network of this number to the UEs.
    pub async fn route_ues(&self, namespace: &NetNs, prefix: u8) {
        let far = Links::in_ns(namespace).expect("netlink");
        let gateways =
            [("10.45.0.0/16", format!("10.{prefix}.0.1")), ("fd00:45::/48", format!("fd00:{prefix}::1"))];
        for (pool, gateway) in gateways {
            let gateway = Some(gateway.parse().expect("an address"));
            far.add_route(cidr(pool), gateway, None).await.expect("route");
        }
    }

    /// Sends datagrams in both directions; some are still on their way when this ends.
    pub fn bursts(&self, target: &str) {
        let send = |to: &str| {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
            for n in 0..200u16 {
                // Packets that the kernel cannot route are not those of this test.
                let _ = socket.send_to(&n.to_be_bytes(), (to, 9));
                net::time::sleep_thread(Duration::from_micros(100));
            }
        };
        self.ue.enter(|| send(target)).expect("entered");
        self.dn.enter(|| send(&UE_V4.to_string())).expect("entered");
    }

    pub async fn ue_device(&self) -> TunPort {
        self.ue_device_in(&self.ue).await
    }

    /// The device of a UE in its namespace.
    pub async fn ue_device_in(&self, ue: &NetNs) -> TunPort {
        let tun = ue.enter(|| TunPort::create("ue0")).expect("entered").expect("created");
        let links = Links::in_ns(ue).expect("netlink");
        links.set_mtu("ue0", 1400).await.expect("mtu");
        links.up("ue0").await.expect("up");
        links.add_address("ue0", cidr(&format!("{UE_V4}/32"))).await.expect("address");
        links.add_address("ue0", cidr(&format!("{UE_V6}/128"))).await.expect("address");
        links.add_route(cidr("0.0.0.0/0"), None, Some("ue0")).await.expect("route");
        links.add_route(cidr("::/0"), None, Some("ue0")).await.expect("route");
        tun
    }
}

impl Lab {
    /// A UE that sends frames.
    pub async fn ue_tap(&self) -> TunPort {
        let tap = self.ue.enter(|| TunPort::create_tap("ue0")).expect("entered").expect("created");
        let links = Links::in_ns(&self.ue).expect("netlink");
        links.set_mtu("ue0", 1400).await.expect("mtu");
        links.up("ue0").await.expect("up");
        links.add_address("ue0", cidr("10.46.0.2/24")).await.expect("address");
        tap
    }
}

/// A UE with a session behind a UPF. Fields are dropped in this order.
pub struct Network {
    pub gnb: Option<Gnb>,
    pub smf: Smf,
    pub handle: upf::Handle,
    pub upf: Option<Upf>,
    pub core: tokio::runtime::Runtime,
    pub runtime: tokio::runtime::Runtime,
    pub lab: Lab,
    pub capture: Option<Capture>,
    pub seid: u64,
}

impl Network {
    /// With the UPF that `configure` makes of the ordinary one.
    pub fn new(configure: impl FnOnce(&mut Config)) -> Network {
        Network::start(config("gw0"), None, configure, establishment(1), async |lab| lab.ue_device().await)
    }

    /// The same, with captures of N3 and N6 in `folder`.
    pub fn captured(folder: &Path, configure: impl FnOnce(&mut Config)) -> Network {
        let session = establishment(1);
        Network::start(config("gw0"), Some(folder), configure, session, async |lab| lab.ue_device().await)
    }

    /// With a session of Ethernet frames, whose data network is the device `tap0`. The machine is a station of it, which
    /// answers pings.
    pub fn ethernet() -> Network {
        let mut config = ethernet_config("gw0", "tap0");
        let open = r#"[{"address": "10.46.0.1", "protocol": "icmp"}]"#;
        config.dnn[1].open = serde_json::from_str(open).expect("valid");
        Network::start(config, None, |_| (), ethernet_establishment(1), async |lab| lab.ue_tap().await)
    }

    fn start(
        mut config: Config,
        capture: Option<&Path>,
        configure: impl FnOnce(&mut Config),
        session: SessionEstablishmentRequest,
        device: impl AsyncFnOnce(&Lab) -> TunPort,
    ) -> Network {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let lab = runtime.block_on(Lab::new());
        let address = SocketAddr::new(N3_CORE.parse().unwrap(), gtpu::PORT);
        config.gtpu = Some(address);
        configure(&mut config);
        let core = lab.core.runtime(2).unwrap();
        let points = || vec![Point::n3(), Point::n6(["gw0"])];
        let capture =
            capture.map(|folder| lab.core.enter(|| Capture::start(folder, points())).unwrap().unwrap());
        let taps = capture.as_ref().map(Capture::taps);
        // Spawned, so that everything happens on threads inside the namespace.
        let upf = core.block_on(core.spawn(upf::start_captured(config.clone(), taps))).unwrap().unwrap();
        let socket = lab.core.enter(|| UdpSocket::bind((SMF, 8805))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut smf = Smf { socket, upf: config.pfcp, sequence: 0, started: 100 };
        match smf.ask(0, establishment(1)) {
            Message::SessionEstablishmentResponse(response) => {
                assert_eq!(response.cause, Cause::NO_ASSOCIATION);
            }
            other => panic!("{other:?}"),
        }
        smf.associate(100);
        let (seid, teid) = smf.establish_by(session);
        let tun = runtime.block_on(device(&lab));
        let own = SocketAddr::new(N3_GNB.parse().unwrap(), gtpu::PORT);
        let n3 = lab.ran.enter(|| UdpPort::bind(own, false)).unwrap().unwrap();
        let gnb = Some(Gnb::start(&tun, &n3, address, teid));
        Network { gnb, smf, handle: upf.handle(), upf: Some(upf), core, runtime, lab, capture, seid }
    }

    /// Stops the UPF; the rest of the network stays.
    pub fn stop(&mut self) {
        if let Some(upf) = self.upf.take() {
            self.core.block_on(upf.stop());
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether all of `count` pings are answered.
pub fn ping(namespace: &NetNs, target: &str, count: u32, size: u32) -> bool {
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
