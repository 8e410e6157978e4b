//! Several interfaces on one AF_XDP device, several gNBs, and one UE address in two network instances. What the UEs and the
//! servers behind the UPF send is compared octet by octet where it arrives. VLANs are tested in `vlans.rs` and `memif.rs`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::host::Running;
use crate::lab::*;
use crate::support::*;
use net::link::Links;
use net::netns::NetNs;
use packet::gtpu;
use pktio::af_xdp::device::Device;
use pktio::tun::TunPort;
use pktio::udp::UdpPort;

/// Payloads of UDP, the longest without fragments in between: the UE's link has an MTU of 1400.
const SIZES: [usize; 10] = [0, 1, 63, 512, 1351, 1352, 1372, 1373, 4000, 8000];
const UPF_RAN: [u8; 4] = [10, 100, 0, 1];
const UPF_PLANT: [u8; 4] = [10, 101, 0, 1];
const PLANT_GNB: [u8; 4] = [10, 101, 0, 2];
const PLANT_SERVER: &str = "10.102.0.2";

fn ip(namespace: &NetNs, arguments: &str) {
    let output = namespace.enter(|| Command::new("ip").args(arguments.split(' ')).output()).unwrap().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Adds the addresses of the UPF's interfaces, the gNBs and the plant on both ends of `n3`.
fn add_addresses(lab: &Lab) {
    // Or XDP on the other end would see packets without checksums.
    lab.ran.enter(|| Device::find("n3").unwrap().send_whole_frames().unwrap()).unwrap();
    for (namespace, host) in [(&lab.core, 1), (&lab.ran, 2)] {
        for network in [100, 101, 102] {
            ip(namespace, &format!("address add 10.{network}.0.{host}/24 dev n3"));
            ip(namespace, &format!("address add fd00:{network}::{host}/64 dev n3 nodad"));
        }
    }
    for gnb in [3, 4] {
        ip(&lab.ran, &format!("address add 10.100.0.{gnb}/24 dev n3"));
    }
    // The plant's data network leads to the UEs through the UPF.
    ip(&lab.ran, "route add 10.45.0.0/16 via 10.102.0.1");
    ip(&lab.ran, "route add fd00:45::/48 via fd00:102::1");
}

/// N3 of two networks and N6 of one on one device, N6 of the other on TUN.
fn configuration() -> upf::Config {
    let text = r#"{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [
        {"name": "ran", "role": "n3", "network_instance": "ran", "gtpu": "10.100.0.1:2152",
            "backend": "af_xdp", "device": "n3"},
        {"name": "plant-ran", "role": "n3", "network_instance": "plant", "gtpu": "10.101.0.1:2152",
            "backend": "af_xdp", "device": "n3"},
        {"name": "wan", "role": "n6", "device": "gw0"},
        {"name": "lan", "role": "n6", "network_instance": "plant", "backend": "af_xdp", "device": "n3"}],
        "dnn": [{"name": "internet", "interfaces": ["wan"],
                    "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}},
                {"name": "factory", "interfaces": ["lan"],
                    "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}]}"#;
    let config: upf::Config = serde_json::from_str(text).unwrap();
    config.validate().unwrap();
    config
}

/// A UE number `number` with its gNB.
struct Ue {
    namespace: NetNs,
    tun: TunPort,
    upf: SocketAddr,
    gnb: SocketAddr,
    teid: u32,
    addresses: [IpAddr; 2],
    running: Option<Gnb>,
}

impl Ue {
    fn new(
        runtime: &tokio::runtime::Runtime,
        smf: &mut Smf,
        place: (u64, u8),
        names: [&str; 2],
        hosts: [[u8; 4]; 2],
    ) -> Ue {
        let (cp_seid, number) = place;
        let [upf, gnb] = hosts.map(Ipv4Addr::from);
        let (_, teid) = smf.establish_as(session_behind(cp_seid, number, names, gnb.into()));
        let namespace = NetNs::new().unwrap();
        let tun = namespace.enter(|| TunPort::create("ue0")).unwrap().unwrap();
        let (v4, v6) = ue_addresses(number);
        runtime.block_on(async {
            let links = Links::in_ns(&namespace).unwrap();
            links.set_mtu("ue0", 1400).await.unwrap();
            links.up("ue0").await.unwrap();
            links.add_address("ue0", cidr(&format!("{v4}/32"))).await.unwrap();
            links.add_address("ue0", cidr(&format!("{v6}/128"))).await.unwrap();
            links.add_route(cidr("0.0.0.0/0"), None, Some("ue0")).await.unwrap();
            links.add_route(cidr("::/0"), None, Some("ue0")).await.unwrap();
        });
        let at = |address: Ipv4Addr| SocketAddr::from((address, gtpu::PORT));
        let (upf, gnb) = (at(upf), at(gnb));
        Ue { namespace, tun, upf, gnb, teid, addresses: [v4.into(), v6.into()], running: None }
    }

    fn start_gnb(&mut self, lab: &Lab) {
        let socket = lab.ran.enter(|| UdpPort::bind(self.gnb, false)).unwrap().unwrap();
        self.running = Some(Gnb::start(&self.tun, &socket, self.upf, self.teid));
    }

    fn socket(&self, version: usize) -> UdpSocket {
        let socket = self.namespace.enter(|| UdpSocket::bind((self.addresses[version], 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        socket
    }

    /// Sends datagrams of all sizes in both IP versions, and compares those that a server of `mark` returns.
    fn exchange(&self, servers: [&str; 2], mark: u8, round: u8) {
        for (version, server) in servers.into_iter().enumerate() {
            let (socket, to) = (self.socket(version), SocketAddr::new(server.parse().unwrap(), 5000));
            for size in SIZES {
                let sent: Vec<u8> =
                    (0..size).map(|at| (at as u8).wrapping_mul(7) ^ round ^ (at >> 8) as u8).collect();
                let expected: Vec<u8> = sent.iter().map(|octet| octet ^ mark).collect();
                let mut answer = [0; 9000];
                wait_for(&format!("{size} octets to {to} in round {round}"), || {
                    socket.send_to(&sent, to).unwrap();
                    match socket.recv_from(&mut answer) {
                        // An answer to an earlier datagram, which came late.
                        Ok((length, _)) if length != size => false,
                        Ok((length, from)) => {
                            assert_eq!(from, to);
                            assert!(answer[..length] == expected, "{size} octets of {to}");
                            true
                        }
                        Err(_) => false,
                    }
                });
            }
        }
    }
}

/// Returns every datagram with all octets changed by `mark`; checks that none comes from elsewhere than the UEs.
struct Echo {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Echo {
    fn start(namespace: &NetNs, addresses: [&str; 2], mark: u8) -> Echo {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = addresses.map(|address| {
            let at = SocketAddr::new(address.parse().unwrap(), 5000);
            let socket = namespace.enter(|| UdpSocket::bind(at).unwrap()).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut datagram = [0; 9000];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut datagram) else { continue };
                    let of_ue = match from.ip() {
                        IpAddr::V4(from) => from.octets()[..2] == [10, 45],
                        IpAddr::V6(from) => from.segments()[..2] == [0xfd00, 0x45],
                    };
                    assert!(of_ue, "{from}");
                    datagram[..length].iter_mut().for_each(|octet| *octet ^= mark);
                    let _ = socket.send_to(&datagram[..length], from);
                }
            })
        });
        Echo { stop, threads: threads.into() }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let failed = thread.join().is_err();
            assert!(!failed || std::thread::panicking(), "the server saw a wrong packet");
        }
    }
}

const INTERNET: [&str; 2] = ["10.201.0.2", "fd00:201::2"];
const PLANT: [&str; 2] = [PLANT_SERVER, "fd00:102::2"];

/// UP-1, UP-2: N3 by AF_XDP with three gNBs, N6 on TUN; another N3 and its N6 on the same device, with the same UE address.
/// A gNB dies and comes back, and so does the device.
#[test]
fn interfaces_of_one_device_are_apart() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let lab = runtime.block_on(Lab::new());
    add_addresses(&lab);
    let mut running = Running::start(&lab.core, &configuration());
    let _internet = Echo::start(&lab.dn, INTERNET, 0x55);
    let _plant = Echo::start(&lab.ran, PLANT, 0xAA);
    let smf = &mut running.smf;
    let gnb = |host: u8| [10, 100, 0, host];
    let mut ues: Vec<Ue> = (2..5)
        .map(|number| {
            Ue::new(&runtime, smf, (number.into(), number), ["ran", "internet"], [UPF_RAN, gnb(number)])
        })
        .collect();
    let mut twin = Ue::new(&runtime, smf, (9, 2), ["plant", "plant"], [UPF_PLANT, PLANT_GNB]);
    assert_eq!(twin.addresses, ues[0].addresses, "one UE address in two network instances");
    ues.iter_mut().chain([&mut twin]).for_each(|ue| ue.start_gnb(&lab));
    for round in 0..2 {
        ues.iter().for_each(|ue| ue.exchange(INTERNET, 0x55, round));
        twin.exchange(PLANT, 0xAA, round);
    }

    // What came from the TUN device lay in AF_XDP's frames, as did all other packets but those that the UPF itself makes: from
    // `lan`, whose MTU is that of N3, packets go into tunnels in fragments.
    let handle = running.upf.handle();
    let copied = || ["ran", "wan"].map(|name| sent_and_copied(&handle, name).1);
    assert!(copied().iter().all(|count| *count <= OWN), "{:?}", copied());

    // One gNB dies while packets flow to its UE; those of the others pass on.
    ues[1].running = None;
    let from_network = lab.dn.enter(|| UdpSocket::bind("10.201.0.2:6000").unwrap()).unwrap();
    for _ in 0..500 {
        from_network.send_to(&[7; 900], (ue_addresses(3).0, 6000)).unwrap();
    }
    ues[0].exchange(INTERNET, 0x55, 7);
    twin.exchange(PLANT, 0xAA, 7);
    ues[1].start_gnb(&lab);
    ues[1].exchange(INTERNET, 0x55, 8);

    // The device is deleted with all its interfaces, and made again.
    runtime.block_on(async { Links::in_ns(&lab.core).unwrap().delete("n3").await }).unwrap();
    runtime.block_on(lab.connect("n3"));
    add_addresses(&lab);
    twin.exchange(PLANT, 0xAA, 10);
    ues.iter().for_each(|ue| ue.exchange(INTERNET, 0x55, 11));
    // In frames of the new device too.
    let before = copied();
    ues.iter().for_each(|ue| ue.exchange(INTERNET, 0x55, 12));
    let more = copied().into_iter().zip(before).map(|(after, before)| after - before);
    assert!(more.clone().all(|count| count <= OWN), "{:?}", more.collect::<Vec<_>>());

    // It is given another link-layer address, for which the other side has to ask.
    ip(&lab.core, "link set n3 address 02:00:00:00:77:01");
    ip(&lab.ran, "neighbour flush dev n3");
    twin.exchange(PLANT, 0xAA, 12);
    ues.iter().for_each(|ue| ue.exchange(INTERNET, 0x55, 13));

    // Each interface counted its own packets, and none took the wrong way.
    let stats = running.upf.handle().stats();
    for name in ["ran", "plant-ran", "wan", "lan"] {
        for way in ["received", "sent"] {
            assert!(stats["interfaces"][name][way]["packets"].as_u64().unwrap() > 0, "{name} {way}: {stats}");
        }
    }
    for reason in ["unknown_teid", "unknown_ue", "direction_mismatch", "source_address", "gtpu_malformed"] {
        assert_eq!(stats["drops"][reason].as_u64().unwrap_or(0), 0, "{reason}: {stats}");
    }
    drop((ues, twin));
    running.stop();
}
